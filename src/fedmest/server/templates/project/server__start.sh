#!/bin/sh
# The server's SuperLink, until Ctrl-C.   sh server/start.sh
# It listens on loopback only: whoever reaches this port may submit apps. Sites come in through server/nginx.conf.
# It keeps its state in memory, which is faster than a --database file: register the sites after every start.
set -eu
cd "$(dirname "$0")"
export FLWR_HOME="$PWD/flwr" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.5
exec flower-superlink --ssl-ca-certfile ca.crt --ssl-certfile server.crt --ssl-keyfile server.key \
    --enable-supernode-auth --disable-runtime-dependency-installation \
    --host 127.0.0.1 --port @port@
