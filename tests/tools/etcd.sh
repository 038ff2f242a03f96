#!/usr/bin/env bash
# etcd.sh [--arch amd64|arm64] DEST LINE...: puts etcd, and etcdctl and etcdutl where they can be had,
# into DEST/LINE/ for each version line (3.5, 3.6, 3.7; 3.6-before is an older patch of 3.6; of 3.4 the server alone), for
# this machine or for the one named. One line of output says which version came from where.
#
# In this order: the cache; the official release, with a pinned checksum, where the network allows;
# the Go module registry, where Go is installed; the server alone from its crate. The cache lies
# outside the checkout ($ETCD_OPERATOR_CACHE, else ~/.cache/etcd-operator) and is keyed by version, and by architecture
# where it is not this machine's.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/crate.sh"
cache=${ETCD_OPERATOR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/etcd-operator}/etcd
case $(uname -m) in
    x86_64) arch=amd64 ;;
    aarch64) arch=arm64 ;;
    *) arch=$(uname -m) ;;
esac
foreign=
if [ "$1" = --arch ]; then
    [ "$2" = "$arch" ] || foreign=-$2
    arch=$2
    shift 2
fi
case $arch in
    amd64 | arm64) ;;
    *) echo "etcd: no etcd for $arch (32-bit ARM is not supported by etcd)" >&2; exit 1 ;;
esac
dest=$1
shift

# line -> version in: releases, Go modules, crates
versions() {
    case $1 in
        3.4) echo "- 3.4.13 -" ;;
        3.5) echo "3.5.33 3.5.35 3.5.34" ;;
        3.6) echo "3.6.14 3.6.16 3.6.15" ;;
        3.6-before) echo "- 3.6.15 3.6.13" ;;
        3.7) echo "- 3.7.3 3.7.2" ;;
        *) echo "etcd: unknown line $1" >&2; return 1 ;;
    esac
}

# Every step fills a directory beside the final one, which is renamed when it is complete.
from_release() {
    local version=$1 part=$2 sum name work
    sum=$(awk -v v="$version" -v a="$arch" '$1 == v && $2 == a { print $3 }' "$here/etcd-checksums.txt")
    [ -n "$sum" ] && command -v curl > /dev/null || return 1
    name=etcd-v$version-linux-$arch
    work=$(mktemp -d)
    if ! curl --fail --silent --location --connect-timeout 5 --max-time 300 --output "$work/$name.tar.gz" \
        "https://github.com/etcd-io/etcd/releases/download/v$version/$name.tar.gz"; then
        rm -rf "$work"
        return 1
    fi
    if ! echo "$sum  $work/$name.tar.gz" | sha256sum --check --quiet >&2; then
        echo "etcd: the release of $version does not have its pinned checksum" >&2
        rm -rf "$work"
        return 1
    fi
    tar -xzf "$work/$name.tar.gz" -C "$work"
    install -m 755 "$work/$name/etcd" "$work/$name/etcdctl" "$work/$name/etcdutl" "$part"
    rm -rf "$work"
}

from_go() {
    local version=$1 part=$2 pair
    command -v go > /dev/null || return 1
    if [ "$version" = 3.4.13 ]; then
        # Before its modules had the names of their versions: Kubernetes 1.20 took it by its commit. Its golang.org/x/sys
        # does not build any more.
        from_module go.etcd.io/etcd v0.5.0-alpha.5.0.20200910180754-dd1b699fc489 "$part/etcd" golang.org/x/sys@v0.30.0
        return
    fi
    for pair in server:etcd etcdctl:etcdctl etcdutl:etcdutl; do
        from_module "go.etcd.io/etcd/${pair%:*}/v3" "v$version" "$part/${pair#*:}" || return 1
    done
}

# from_module MODULE VERSION PROGRAM [MODULE@VERSION...]: requiring the module from one of our own gives its dependencies;
# `go install` is refused.
from_module() {
    local module=$1 version=$2 program=$3 source work
    shift 3
    source=$(cd / && go mod download -json "$module@$version" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p') || return 1
    [ -n "$source" ] || return 1
    work=$(mktemp -d)
    printf 'module build.local/etcd\n\ngo 1.24.0\n' > "$work/go.mod"
    cat "$source/go.sum" > "$work/go.sum"
    (
        cd "$work"
        # As kubernetes.sh has them: what both compile is compiled once.
        export GOARCH=$arch CGO_ENABLED=0 GOWORK=off GOFLAGS="-mod=mod -trimpath -buildvcs=false -gcflags=all=-dwarf=false"
        go mod edit -require="$module@$version" "${@/#/-require=}"
        go build -ldflags '-s -w' -o "$program" "$module"
    ) >&2 || return 1
    rm -rf "$work"
}

from_crate() {
    local version=$1 part=$2 dir
    dir=$(crate_dir "etcd-bin-vendored-linux-$arch" "$version") || return 1
    install -m 755 "$dir/bin/etcd" "$part"
}

link() {
    mkdir -p "$dest"
    ln -sfn "$cache/$2$foreign" "$dest/$1"
    echo "etcd $1${foreign:+ for $arch}: $2, $3"
}

for line in "$@"; do
    read -r release module crate <<< "$(versions "$line")"
    for version in "$module" "$release" "$crate"; do
        if [ -x "$cache/$version$foreign/etcd" ]; then
            link "$line" "$version" "from the cache ($(cat "$cache/$version$foreign/source"))"
            continue 2
        fi
    done
    mkdir -p "$cache"
    found=
    for attempt in "from_release $release" "from_go $module" "from_crate $crate"; do
        read -r step version <<< "$attempt"
        part=$(mktemp -d "$cache/part.XXXXXX")
        if "$step" "$version" "$part"; then
            case $step in
                from_release) source="the official release, checksum as pinned" ;;
                from_go) source="built from the Go module registry" ;;
                from_crate) source="the server alone, from the crate etcd-bin-vendored-linux-$arch" ;;
            esac
            echo "$source" > "$part/source"
            chmod 755 "$part"
            mv -T "$part" "$cache/$version$foreign"
            link "$line" "$version" "$source"
            found=yes
            break
        fi
        rm -rf "$part"
    done
    [ -n "$found" ] || { echo "etcd $line: not to be had: no network to its releases, no Go, no crate" >&2; exit 1; }
done
