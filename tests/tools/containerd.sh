#!/usr/bin/env bash
# containerd.sh DEST: puts containerd, its ctr and shim, and runc into DEST/bin, unpacked from Debian's
# packages and not installed: the package would start a service. Nothing happens where the machine has
# them. Where they cannot be had, the test says that it is skipped.
set -euo pipefail
dest=$1
programs=(containerd containerd-shim-runc-v2 ctr runc)
[ ! -x "$dest/bin/runc" ] || exit 0
missing=
for program in "${programs[@]}"; do command -v "$program" > /dev/null || missing=yes; done
[ -n "$missing" ] || exit 0
if ! { command -v apt-get && command -v dpkg; } > /dev/null; then
    echo "containerd: not to be had here"
    exit 0
fi
work=$(mktemp -d)
chmod 755 "$work"
trap 'rm -rf "$work"' EXIT
{ [ "$(id -u)" != 0 ] || apt-get update -qq || true; } > /dev/null 2>&1
if (cd "$work" && apt-get download -qq containerd runc > /dev/null 2>&1); then
    for deb in "$work"/*.deb; do dpkg -x "$deb" "$work/root"; done
    mkdir -p "$dest/bin"
    for program in "${programs[@]}"; do
        install -m 755 "$(find "$work/root/usr" -name "$program" -type f -path '*bin/*' | head -n 1)" "$dest/bin/"
    done
    echo "containerd: $("$dest/bin/containerd" --version | cut -d ' ' -f 3) from Debian's package, not installed"
else
    echo "containerd: not to be had here"
fi
