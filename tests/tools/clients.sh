#!/usr/bin/env bash
# clients.sh DEST: puts clients of etcd at DEST: python (Patroni's store, etcd3gw, etcd3) and node (etcd3), from the
# registries of Python and npm, each file by the checksum in clients/. The Python is Debian 12's, 3.11, on amd64.
#
# The cache lies outside the checkout ($ETCD_OPERATOR_CACHE, else ~/.cache/etcd-operator) and is keyed by these
# checksums.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${ETCD_OPERATOR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/etcd-operator}/clients
dest=$1
key=$(cat "$here/clients/requirements.txt" "$here/clients/package-lock.json" | sha256sum | cut -c 1-16)

source="from the cache"
if [ ! -d "$cache/$key" ]; then
    for command in python3 npm; do
        command -v "$command" > /dev/null || { echo "clients: no $command" >&2; exit 1; }
    done
    mkdir -p "$cache"
    part=$(mktemp -d "$cache/part.XXXXXX")
    trap 'rm -rf "$part"' EXIT
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --require-hashes \
        --target "$part/python" --requirement "$here/clients/requirements.txt" >&2
    mkdir "$part/node"
    cp "$here"/clients/package*.json "$part/node/"
    (cd "$part/node" && npm ci --silent --ignore-scripts --no-audit --no-fund >&2)
    chmod 755 "$part"
    # Two builds at once: the first one counts.
    mv -T "$part" "$cache/$key" 2> /dev/null || [ -d "$cache/$key" ]
    source="from the registries"
fi
mkdir -p "$(dirname "$dest")"
ln -sfn "$cache/$key" "$dest"
echo "clients: Patroni 4.1.5, etcd3gw 2.7.0, etcd3 0.12.0 of Python and 1.1.2 of Node, $source"
