#!/usr/bin/env bash
# image.sh DEST: puts an arm64 machine into DEST: Debian 12 with systemd, its bus and polkit as
# root.img, Debian's kernel as vmlinuz, and an initrd that knows a virtual machine's devices.
# `make test-vm` boots copies of it; the operator and etcd come with each run.
#
# No arm64 program runs while it is made: packages are unpacked, and what their scripts would have
# done stands below or is done by systemd at the first boot. It is made once, from the mirror that
# this machine's apt uses, into the cache outside the checkout ($ETCD_OPERATOR_CACHE, else
# ~/.cache/etcd-operator), under a key of the files in this directory.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dest=$1
suite=bookworm
packages=systemd,systemd-sysv,dbus,polkitd,dpkg,adduser,init-system-helpers
packages+=,base-files,base-passwd,bash,dash,coreutils,debianutils,diffutils,findutils,grep,gzip,libc-bin,mount,sed,tar,util-linux
modules="virtio_pci virtio_blk virtio_net virtio_console virtio_rng ext4 crc32c_generic"
key=$suite-$(cat "$here"/* | sha256sum | cut -c 1-16)
image=${ETCD_OPERATOR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/etcd-operator}/vm/$key

link() {
    mkdir -p "$(dirname "$dest")"
    ln -sfn "$image" "$dest"
    echo "vm: $(cat "$image/version"), $1"
}

if [ -d "$image" ]; then
    link "from the cache"
    exit
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
    echo "vm: no image, since this needs root and apt-get"
    exit 0
fi
"$here/../apt.sh" mmdebstrap e2fsprogs
# The mirror is the one in use here; none is named where this machine is no Debian.
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' 2> /dev/null \
    | sort -u | head -n 1)
mkdir -p "$(dirname "$image")"
part=$(mktemp -d "$(dirname "$image")/part.XXXXXX")
trap 'rm -rf "$part"' EXIT
mkdir "$part/image" "$part/kernel" "$part/lists"

# Runs while the packages lie in apt's cache: what is there is recorded for dpkg as installed, and
# the kernel comes along unpacked only in part.
cat > "$part/hook" << 'EOF'
set -eu
root=$1 part=$2
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
for package in "$root"/var/cache/apt/archives/*.deb; do
    dpkg-deb -f "$package" | sed '/^Package:/a Status: install ok installed'
    echo
    name=$(dpkg-deb -f "$package" Package)
    [ "$(dpkg-deb -f "$package" Multi-Arch)" != same ] || name=$name:arm64
    dpkg-deb --fsys-tarfile "$package" | tar -t | sed -e 's/^\.//' -e 's,\(.\)/$,\1,' -e 's,^/$,/.,' > "$part/lists/$name.list"
done > "$part/status"
cd "$part"
kernel=$(apt-cache depends linux-image-arm64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
apt-get download -qq -o APT::Sandbox::User=root "$kernel" busybox-static > /dev/null
dpkg-deb --fsys-tarfile linux-image-*.deb | tar -x -C kernel ./boot ./lib/modules
dpkg-deb --fsys-tarfile busybox-static_*.deb | tar -x -C kernel ./bin/busybox
EOF
mmdebstrap --quiet --arch=arm64 --variant=extract --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
    --extract-hook="sh '$part/hook' \"\$1\" '$part'" --include="$packages" "$suite" "$part/root" ${mirror:+"$mirror"} > "$part/log" 2>&1 \
    || { cat "$part/log" >&2; exit 1; }

pushd "$part/root" > /dev/null
cp "$part/status" var/lib/dpkg/status
cp "$part"/lists/* var/lib/dpkg/info/
cp usr/share/base-passwd/passwd.master etc/passwd
cp usr/share/base-passwd/group.master etc/group
: > etc/shadow
rm -rf var/run var/lock
ln -s ../run var/run
ln -s ../run/lock var/lock
: > etc/machine-id
: > etc/resolv.conf
echo raspberry > etc/hostname
printf '127.0.0.1 localhost\n127.0.1.1 raspberry\n' > etc/hosts
printf 'passwd: files\ngroup: files\nshadow: files\nhosts: files\n' > etc/nsswitch.conf
# systemd would set a clock that is behind its own build forward; a board has no such luck when it
# boots another system, and nothing may depend on it.
touch -d @1 usr/lib/clock-epoch
for unit in getty.target getty@.service serial-getty@.service console-getty.service \
    proc-sys-fs-binfmt_misc.automount systemd-networkd.service e2scrub_reap.service; do
    ln -sfn /dev/null "etc/systemd/system/$unit"
done
# Commands of the test come through a virtio port: their length in a line, then their text; back go
# the exit code and the length of the output in a line, then the output.
install -D -m 755 /dev/stdin usr/lib/test/shell << 'EOF'
#!/bin/bash
export LC_ALL=C
for port in /sys/class/virtio-ports/*; do
    [ "$(< "$port/name")" != shell ] || exec 3<> "/dev/${port##*/}"
done
while read -r length <&3; do
    command=$(head -c "$length" <&3)
    output=$(bash -c "$command" 2>&1 < /dev/null 3>&-)
    code=$?
    printf '%s %s\n%s' "$code" "${#output}" "$output" >&3
done
EOF
install -D -m 644 /dev/stdin etc/systemd/system/test-shell.service << 'EOF'
[Unit]
Description=Runs what the test asks for
[Service]
ExecStart=/usr/lib/test/shell
Environment=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin HOME=/root
EOF
mkdir -p etc/systemd/system/multi-user.target.wants
ln -s ../test-shell.service etc/systemd/system/multi-user.target.wants/
rm -rf var/cache/apt var/lib/apt/lists usr/share/{doc,man,locale,info,i18n,lintian} tmp/*
popd > /dev/null

cp "$part"/kernel/boot/vmlinuz-* "$part/image/vmlinuz"
# shellcheck disable=SC2086
python3 "$here/initrd.py" "$part/kernel" "$part/image/initrd" $modules
truncate --size 1G "$part/image/root.img"
mke2fs -q -t ext4 -L root -d "$part/root" "$part/image/root.img"
kernel=$(basename "$part"/kernel/boot/vmlinuz-*)
echo "Debian $(cat "$part/root/etc/debian_version") arm64, Linux ${kernel#vmlinuz-}" > "$part/image/version"
chmod 755 "$part/image"
# Whoever was first to finish wins.
mv -T "$part/image" "$image" 2> /dev/null || [ -d "$image" ]
link "unpacked from Debian's packages"
