#!/usr/bin/env bash
# kube-apiserver.sh DEST COMMAND...: makes DEST a folder with commands of Kubernetes (kube-apiserver,
# kubectl, kubelet, ...), for tests that need a real API server. One line of output says which
# version came from where.
#
# No Debian package, crate or wheel carries the server, so it is built from the Go module registry,
# once. The cache lies outside the checkout ($ETCD_OPERATOR_CACHE, else ~/.cache/etcd-operator) and
# is keyed by version; what Go keeps for itself may be deleted. Where it is not to be had, the tests
# say what they skip.
set -euo pipefail
dest=$1
shift
version=1.36.3
cache=${ETCD_OPERATOR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/etcd-operator}/kubernetes/$version
module=k8s.io/kubernetes

# The module cannot be installed as it is: its go.mod looks for k8s.io/* in folders that the
# registry leaves out. A copy of it becomes our own, with the published modules (v0.x.y belongs to
# v1.x.y) in their place; everything else keeps upstream's checksum.
make_module() {
    local work=$1 source
    source=$(cd / && go mod download -json "$module@v$version" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p') || return 1
    [ -n "$source" ] || return 1
    sed -E -e 's#^module .*#module build.local/kubernetes#' \
        -e "s#(k8s\.io/[a-z-]+) => \./staging/.*#\1 => \1 v0.${version#*.}#" "$source/go.mod" > "$work/go.mod"
    cat "$source/go.sum" > "$work/go.sum"
    (cd "$work" && go mod edit -require="$module@v$version")
}

# A server that is not told its version takes itself for 0.0.0 and does not start.
build() {
    local work=$1 command=$2 major minor package=k8s.io/component-base/version
    IFS=. read -r major minor _ <<< "$version"
    (
        cd "$work"
        nice -n 15 go build -o "bin/$command" -ldflags "-s -w -X $package.gitVersion=v$version
            -X $package.gitMajor=$major -X $package.gitMinor=$minor -X $package.gitTreeState=clean
            -X $package.buildDate=1970-01-01T00:00:00Z" "$module/cmd/$command"
    ) >&2
}

missing=()
for command in "$@"; do
    [ -x "$cache/$command" ] || missing+=("$command")
done
from="from the cache"
if [ ${#missing[@]} -gt 0 ]; then
    if ! command -v go > /dev/null; then
        echo "kubernetes $version: not to be had: ${missing[*]} would be built, and Go is not installed"
        exit 0
    fi
    mkdir -p "$cache"
    work=$(mktemp -d "${cache%/*}/part.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    export CGO_ENABLED=0 GOWORK=off GOFLAGS="-mod=mod -trimpath -buildvcs=false"
    if ! make_module "$work"; then
        echo "kubernetes $version: not to be had: the Go module registry does not answer"
        exit 0
    fi
    echo "kubernetes $version: building ${missing[*]}: minutes, once" >&2
    for command in "${missing[@]}"; do
        build "$work" "$command"
        mv "$work/bin/$command" "$cache/$command"
    done
    from="built from the Go module registry"
fi
mkdir -p "${dest%/*}"
ln -sfn "$cache" "$dest"
echo "kubernetes $version: $*, $from"
