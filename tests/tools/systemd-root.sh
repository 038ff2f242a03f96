#!/usr/bin/env bash
# systemd-root.sh DEST [SUITE]: links DEST to a Debian root file system that boots systemd: of bookworm
# systemd 252, the oldest that the units promise to run on, of trixie 257. tests/tools/boot.sh boots
# it; nothing ever writes to it.
#
# It is made once, by mmdebstrap from the mirror that this machine's apt uses, into the cache outside
# the checkout ($ETCD_OPERATOR_CACHE, else ~/.cache/etcd-operator), under a key of this file's text.
# Without root or apt nothing is made, and the tests say that they are skipped.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dest=$1
suite=${2:-bookworm}
# A small host as the package finds it: a service manager, its bus, who may do what, and adduser.
packages=systemd,systemd-sysv,dbus,polkitd,procps,iproute2,adduser
key=$suite-$(uname -m)-$(sha256sum "$here/systemd-root.sh" | cut -c 1-16)
root=${ETCD_OPERATOR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/etcd-operator}/systemd-root/$key

link() {
    mkdir -p "$(dirname "$dest")"
    ln -sfn "$root" "$dest"
    echo "systemd-root: $(cat "$root/usr/lib/systemd-root-version"), $1"
}

if [ -d "$root" ]; then
    link "from the cache"
    exit
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
    echo "systemd-root: not made, since this needs root and apt-get"
    exit 0
fi
"$here/apt.sh" mmdebstrap
# The mirror is the one in use here; none is named where this machine is no Debian.
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' 2> /dev/null \
    | sort -u | head -n 1)
mkdir -p "$(dirname "$root")"
part=$(mktemp -d "$(dirname "$root")/part.XXXXXX")
trap 'rm -rf "$part"' EXIT
mmdebstrap --quiet --mode=root --variant=minbase --include="$packages" "$suite" "$part/root" ${mirror:+"$mirror"} >&2

pushd "$part/root" > /dev/null
# No resolver answers inside, so the names of the machine itself stand in a file.
printf '127.0.0.1 localhost\n::1 localhost\n127.0.1.1 edge\n' > etc/hosts
echo edge > etc/hostname
rm -f etc/resolv.conf
: > etc/resolv.conf
# What needs a terminal, a network or a real disk, and what would reach the kernel of all machines.
for unit in console-getty.service getty@.service getty-static.service apt-daily.timer apt-daily-upgrade.timer \
    dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer systemd-remount-fs.service \
    sys-kernel-debug.mount sys-kernel-tracing.mount sys-fs-fuse-connections.mount; do
    ln -sfn /dev/null "etc/systemd/system/$unit"
done
# The journal outlives a reboot, and every machine gets an identity of its own.
chroot . install -d -m 2755 -g systemd-journal /var/log/journal
: > etc/machine-id
rm -rf var/cache/apt/* var/lib/apt/lists/* var/log/*.log var/log/apt usr/share/locale usr/share/man
{
    sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' etc/os-release
    dpkg-query --admindir=var/lib/dpkg -W -f ', systemd ${Version}' systemd
} | tr -d '\n' > usr/lib/systemd-root-version
chmod 755 .
popd > /dev/null
# Whoever was first to finish wins.
mv -T "$part/root" "$root" 2> /dev/null || [ -d "$root" ]
link "made by mmdebstrap"
