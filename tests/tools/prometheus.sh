#!/usr/bin/env bash
# prometheus.sh DEST: puts prometheus and promtool into DEST/bin, unpacked from Debian's packages and
# not installed: the package would start a server. Where they cannot be had, the tests say what they
# skip.
#
# In this order: the cache; Debian's unstable, which has Prometheus 3, strict about what it scrapes, and
# whose packages run on older systems; this machine's own suite. The cache lies outside the checkout
# ($ETCD_OPERATOR_CACHE, else ~/.cache/etcd-operator), keyed by architecture and by this recipe.
set -euo pipefail
dest=$(realpath -ms "$1") # a link stays one: what it leads to is the cache
command -v apt-get > /dev/null && command -v dpkg > /dev/null || { echo "prometheus: not to be had here"; exit 0; }
cache=${ETCD_OPERATOR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/etcd-operator}/prometheus
key=sid-$(dpkg --print-architecture)-$(sha256sum "$0" | cut -c 1-8)

# The mirror that this machine's apt uses, with a state of its own: the machine's sources stay as they are.
from_unstable() {
    local mirror state=$work/apt options
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' 2> /dev/null \
        | grep -v security | sort -u | head -n 1)
    [ -n "$mirror" ] && [ -f /usr/share/keyrings/debian-archive-keyring.gpg ] || return 1
    mkdir -p "$state"/{lists/partial,cache/archives/partial}
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" > "$state/sources.list"
    : > "$state/status"
    options=(-qq -o Dir::State="$state" -o Dir::State::lists="$state/lists" -o Dir::State::status="$state/status"
        -o Dir::Cache="$state/cache" -o Dir::Etc::sourcelist="$state/sources.list" -o Dir::Etc::sourceparts=/dev/null
        -o Dir::Etc::preferencesparts=/dev/null -o APT::Sandbox::User=root -o Acquire::Languages=none)
    apt-get "${options[@]}" update && apt-get "${options[@]}" download prometheus promtool && unpack
}

from_own_suite() {
    { [ "$(id -u)" != 0 ] || apt-get update -qq || true; } > /dev/null 2>&1
    apt-get download -qq prometheus && unpack
}

# What does not run here is not had.
unpack() {
    local deb program
    rm -rf root
    for deb in ./*.deb; do dpkg -x "$deb" root; done
    rm -f ./*.deb
    mkdir -p "$part/bin"
    for program in prometheus promtool; do
        install -m 755 "root/usr/bin/$program" "$part/bin/$program" || return 1
        "$part/bin/$program" --version > /dev/null 2>&1 || return 1
    done
}

from="from the cache"
if [ ! -x "$cache/$key/bin/promtool" ]; then
    mkdir -p "$cache"
    part=$(mktemp -d "$cache/part.XXXXXX")
    work=$(mktemp -d)
    chmod 755 "$part" "$work"
    trap 'rm -rf "$work" "$part"' EXIT
    cd "$work"
    if from_unstable > /dev/null 2>&1; then
        from="from Debian's unstable"
    elif from_own_suite > /dev/null 2>&1; then
        from="from this machine's Debian"
    else
        echo "prometheus: not to be had here"
        exit 0
    fi
    cd /
    mv -T "$part" "$cache/$key"
fi
[ ! -d "$dest" ] || [ -L "$dest" ] || rm -rf "$dest"
mkdir -p "$(dirname "$dest")"
ln -sfn "$cache/$key" "$dest"
echo "prometheus: $("$dest/bin/prometheus" --version 2>&1 | sed -n 's/^prometheus, version \([^ ]*\).*/\1/p'), $from"
