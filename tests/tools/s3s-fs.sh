#!/usr/bin/env bash
# s3s-fs.sh DEST: puts the S3 server s3s-fs at DEST, built from its crate: 90 s once, then from the
# cache. It checks signatures and hashes of what it gets, keeps objects as files, and lists neither
# parts nor uploads, like the smaller of the stores that people run.
#
# The cache lies outside the checkout ($ETCD_OPERATOR_CACHE, else ~/.cache/etcd-operator) and is keyed
# by version.
set -euo pipefail
version=0.14.1 # the newest that Rust 1.95 builds
cache=${ETCD_OPERATOR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/etcd-operator}/s3s-fs
dest=$1

source="from the cache"
if [ ! -x "$cache/$version/bin/s3s-fs" ]; then
    mkdir -p "$cache"
    part=$(mktemp -d "$cache/part.XXXXXX")
    trap 'rm -rf "$part"' EXIT
    # From the root: configuration of this checkout is not meant for it.
    # Little optimised: it compiles in half the time, and the tests do not wait for it.
    (cd / && env -u CARGO_TARGET_DIR CARGO_PROFILE_RELEASE_OPT_LEVEL=1 nice -n 15 cargo install s3s-fs --version "$version" --features binary --locked --quiet \
        --root "$part" --target-dir "$part/target") >&2
    rm -rf "$part/target"
    chmod 755 "$part"
    # Two builds at once: the first one counts.
    mv -T "$part" "$cache/$version" 2> /dev/null || [ -x "$cache/$version/bin/s3s-fs" ]
    source="built from its crate"
fi
mkdir -p "$(dirname "$dest")"
ln -sfn "$cache/$version/bin/s3s-fs" "$dest"
echo "s3s-fs: $version, $source"
