#!/bin/sh
# This site's vault and its SuperNode, until Ctrl-C.   sh start.sh
# CA names the server's ca.crt, SERVER where it listens.
set -eu
umask 077              # what is written here is for this user only; the vault's socket follows site.toml
cd "$(dirname "$0")"
export FLWR_HOME="$PWD/flwr" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.5
mkdir -p flwr
fedmest site serve site.toml &
vault=$!
trap 'kill $vault 2> /dev/null; wait $vault' EXIT
trap 'exit 130' INT TERM
while [ ! -S vault.sock ]; do kill -0 $vault; sleep 0.2; done
flower-supernode --root-certificates "${CA:-../../server/ca.crt}" --auth-supernode-private-key key \
    --superlink "${SERVER:-127.0.0.1:@port@}" --port @node_port@ \
    --node-config "socket=\"$PWD/vault.sock\"" &
node=$!
trap 'kill $node $vault 2> /dev/null; wait' EXIT
wait $node
