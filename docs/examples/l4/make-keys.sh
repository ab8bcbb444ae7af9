#!/bin/sh
# Makes the keys that l4.yaml names. On a real fleet they are made once and copied to every box.
set -eu
cd "$(dirname "$0")"
mkdir -p keys
for name in flow-hash quic; do
    [ -e "keys/$name" ] || (umask 077 && head -c 16 /dev/urandom > "keys/$name")
done
