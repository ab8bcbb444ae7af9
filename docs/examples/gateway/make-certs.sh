#!/bin/sh
# Makes the certificates that this example names: an ECDSA one for *.example.test and a CA for client certificates.
set -eu
cd "$(dirname "$0")"
mkdir -p tls
new_key="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30"
# shellcheck disable=SC2086 # several words on purpose
openssl req -x509 $new_key -keyout tls/www.key -out tls/www.pem -subj "/CN=example.test" \
    -addext "subjectAltName=DNS:example.test,DNS:*.example.test,DNS:localhost"
# shellcheck disable=SC2086
openssl req -x509 $new_key -keyout tls/partner-ca.key -out tls/partner-ca.pem -subj "/CN=partner CA"
chmod 600 tls/*.key
