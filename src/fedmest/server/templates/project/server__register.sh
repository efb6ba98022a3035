#!/bin/sh
# Admit the sites, by the public keys that they sent; waits for the SuperLink.   sh server/register.sh
set -eu
cd "$(dirname "$0")/.."
export FLWR_HOME="$PWD/server/flwr" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
until python3 -c "import socket; socket.create_connection(('127.0.0.1', @port@), 1)" 2> /dev/null; do sleep 0.5; done
register() { flwr supernode register "$1" study --name "$2"; }
@register@
