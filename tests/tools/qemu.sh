#!/usr/bin/env bash
# qemu.sh DEST user|system...: puts DEST/qemu-aarch64-static (runs arm64 programs on this kernel) or
# DEST/qemu-system-aarch64 (a whole arm64 machine) there, so that what a Raspberry Pi runs is tested
# on any machine.
#
# Debian's packages are unpacked and not installed, since installing them would take away other
# packages of qemu that a machine may have. They come from the mirror that this machine's apt uses,
# once, into the cache outside the checkout ($ETCD_OPERATOR_CACHE, else ~/.cache/etcd-operator),
# under a key of this file's text. Without root or apt nothing is made, and the tests say that they
# are skipped.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dest=$1
shift
suite=bookworm
key=$suite-$(sha256sum "$0" | cut -c 1-16)
cache=${ETCD_OPERATOR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/etcd-operator}/qemu

# The program for arm64 alone: the package has one for each of 40 machines.
make_user() {
    unpack "$part/all" qemu-user-static
    install -D -m 755 "$part/all/usr/bin/qemu-aarch64-static" "$part/root/qemu-aarch64-static"
}

# With its own libraries and loader, so that it runs beside any other libc.
make_system() {
    local root=$part/root loader
    unpack "$root" qemu-system-arm
    rm -rf "$root"/usr/share/{doc,man,locale,info,lintian} "$root"/usr/lib/*/{gconv,gstreamer-1.0} "$root/dev" "$root/tmp"
    loader=$(cd "$root" && find lib lib64 -name 'ld-linux*.so.*' | head -n 1)
    cat > "$root/qemu-system-aarch64" << EOF
#!/bin/sh
root=\$(dirname "\$(readlink -f "\$0")")
libraries=\$root/$(dirname "$loader"):\$root/usr/$(dirname "$loader")
export QEMU_MODULE_DIR="\$root/usr/$(dirname "$loader")/qemu"
exec "\$root/$loader" --library-path "\$libraries" "\$root/usr/bin/qemu-system-aarch64" -L "\$root/usr/share/qemu" "\$@"
EOF
    chmod 755 "$root/qemu-system-aarch64"
}

unpack() {
    mmdebstrap --quiet --variant=extract --include="$2" "$suite" "$1" ${mirror:+"$mirror"} >&2
}

for part_of in "$@"; do
    case $part_of in
        user) program=qemu-aarch64-static ;;
        system) program=qemu-system-aarch64 ;;
        *) echo "usage: $0 DEST user|system..." >&2; exit 2 ;;
    esac
    root=$cache/$part_of-$key
    from="from the cache"
    if [ ! -d "$root" ]; then
        if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
            echo "qemu: $program not made, since this needs root and apt-get"
            continue
        fi
        "$here/apt.sh" mmdebstrap
        # The mirror is the one in use here; none is named where this machine is no Debian.
        mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' 2> /dev/null \
            | sort -u | head -n 1)
        mkdir -p "$cache"
        part=$(mktemp -d "$cache/part.XXXXXX")
        trap 'rm -rf "$part"' EXIT
        "make_$part_of"
        chmod 755 "$part/root"
        # Whoever was first to finish wins.
        mv -T "$part/root" "$root" 2> /dev/null || [ -d "$root" ]
        rm -rf "$part"
        from="unpacked from Debian's package"
    fi
    mkdir -p "$dest"
    ln -sfn "$root/$program" "$dest/$program"
    echo "qemu: $("$dest/$program" --version | sed -n 's/.*version \([0-9.]*\).*/\1/p') ($program), $from"
done
