#!/usr/bin/env bash
# garage.sh DEST: puts the S3 server garage at DEST, built from its crate: 5 to 10 minutes once, then
# from the cache. It is what people run at the edge, and of another make than s3s-fs: it lists parts
# and uploads, takes one region only, and ignores If-None-Match.
#
# The cache lies outside the checkout ($ETCD_OPERATOR_CACHE, else ~/.cache/etcd-operator) and is keyed
# by version. It needs a C compiler and make, no protoc and no cmake.
set -euo pipefail
version=2.5.0
cache=${ETCD_OPERATOR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/etcd-operator}/garage
dest=$1

source="from the cache"
if [ ! -x "$cache/$version/bin/garage" ]; then
    mkdir -p "$cache"
    part=$(mktemp -d "$cache/part.XXXXXX")
    trap 'rm -rf "$part"' EXIT
    # Optimised little: half the time to build, and a test moves a hundred megabytes.
    (cd / && env -u CARGO_TARGET_DIR CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_DEBUG=false \
        nice -n 15 cargo install garage --version "$version" --locked --quiet \
        --no-default-features --features bundled-libs,sqlite \
        --root "$part" --target-dir "$part/target") >&2
    rm -rf "$part/target"
    chmod 755 "$part"
    # Two builds at once: the first one counts.
    mv -T "$part" "$cache/$version" 2> /dev/null || [ -x "$cache/$version/bin/garage" ]
    source="built from its crate"
fi
mkdir -p "$(dirname "$dest")"
ln -sfn "$cache/$version/bin/garage" "$dest"
echo "garage: $version, $source"
