#!/bin/sh
# Once: this site's key and its ledger.   sh setup.sh
# key.pub goes to the server; key stays here.
set -eu
umask 077
cd "$(dirname "$0")"
ssh-keygen -q -t ecdsa -b 384 -N "" -C "@name@" -f key
fedmest site init site.toml
echo "sites/@name@/key.pub is for the server"
