#!/usr/bin/env bash
# promtool.sh DEST: puts promtool into DEST/bin, unpacked from Debian's package and not installed:
# the package would start a server. Where it cannot be had, the test says that it is skipped.
set -euo pipefail
dest=$1
[ -x "$dest/bin/promtool" ] && exit 0
mkdir -p "$dest/bin"
if system=$(command -v promtool); then
    ln -sfn "$system" "$dest/bin/promtool"
    exit 0
fi
command -v apt-get > /dev/null && command -v dpkg > /dev/null || { echo "promtool: not to be had here"; exit 0; }
work=$(mktemp -d)
chmod 755 "$work"
trap 'rm -rf "$work"' EXIT
cd "$work"
{ [ "$(id -u)" != 0 ] || apt-get update -qq || true; } > /dev/null 2>&1
if apt-get download -qq prometheus > /dev/null 2>&1 && dpkg -x prometheus_*.deb root && [ -x root/usr/bin/promtool ]; then
    install -m 755 root/usr/bin/promtool "$dest/bin/promtool"
    echo "promtool: from Debian's package prometheus"
else
    echo "promtool: not to be had here"
fi
