#!/bin/sh
# The server's SuperLink, until Ctrl-C.   sh server/start.sh
# It listens on loopback only: whoever reaches this port may submit apps. Sites come in through server/nginx.conf.
set -eu
cd "$(dirname "$0")"
export FLWR_HOME="$PWD/flwr" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.1
exec flower-superlink --ssl-ca-certfile ca.crt --ssl-certfile server.crt --ssl-keyfile server.key \
    --enable-supernode-auth --disable-runtime-dependency-installation --database state.db \
    --host 127.0.0.1 --port @port@
