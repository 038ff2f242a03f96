#!/usr/bin/env bash
# versitygw.sh DEST: puts the S3 gateway versitygw at DEST, built from the Go module registry: two
# minutes once, then from the cache. It is of another make than s3s-fs: it lists parts and uploads,
# and keeps what it knows of an object in extended attributes.
#
# The cache lies outside the checkout ($ETCD_OPERATOR_CACHE, else ~/.cache/etcd-operator) and is keyed
# by version.
set -euo pipefail
version=1.8.0
cache=${ETCD_OPERATOR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/etcd-operator}/versitygw
dest=$1

source="from the cache"
if [ ! -x "$cache/$version/versitygw" ]; then
    mkdir -p "$cache"
    part=$(mktemp -d "$cache/part.XXXXXX")
    trap 'rm -rf "$part"' EXIT
    (cd / && GOWORK=off GOFLAGS="-trimpath -buildvcs=false" CGO_ENABLED=0 GOBIN=$part \
        go install -ldflags "-s -w -X main.Version=$version" \
        "github.com/versity/versitygw/cmd/versitygw@v$version") >&2
    chmod 755 "$part"
    # Two builds at once: the first one counts.
    mv -T "$part" "$cache/$version" 2> /dev/null || [ -x "$cache/$version/versitygw" ]
    source="built from the Go module registry"
fi
mkdir -p "$(dirname "$dest")"
ln -sfn "$cache/$version/versitygw" "$dest"
echo "versitygw: $version, $source"
