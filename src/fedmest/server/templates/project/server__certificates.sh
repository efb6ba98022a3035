#!/bin/sh
# Once: a certificate authority for this study, and a certificate for the server.   sh server/certificates.sh [HOST]
# ca.crt goes to every site; ca.key and server.key stay here.
set -eu
cd "$(dirname "$0")"
host="${1:-localhost}"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -days 365 -subj "/CN=study CA" \
    -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign \
    -keyout ca.key -out ca.crt 2> /dev/null
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -days 365 -subj "/CN=$host" \
    -CA ca.crt -CAkey ca.key -addext "subjectAltName=DNS:$host,DNS:localhost,IP:127.0.0.1" \
    -addext basicConstraints=critical,CA:FALSE -addext extendedKeyUsage=serverAuth \
    -keyout server.key -out server.crt 2> /dev/null
mkdir -p flwr
printf '[superlink.study]\naddress = "127.0.0.1:@port@"\nroot-certificates = "%s/ca.crt"\n' "$PWD" > flwr/config.toml
echo "server/ca.crt is for the sites"
