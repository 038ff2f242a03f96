#!/bin/sh
# install.sh BINARY: installs etcd-operator with its units below $DESTDIR, under $PREFIX (/usr/local).
# install.sh --uninstall: removes what it installed; etcd keeps running, document and data stay.
#
# It is what `make install` runs, in the unpacked tarball and in the checkout. As with the Debian
# package nothing is enabled or started: there is no document yet. What runs is replaced.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
prefix=${PREFIX:-/usr/local}
root=${DESTDIR:-}
case $root in '' | /*) ;; *) root=$PWD/$root ;; esac
unit=etcd-operator.service
# polkit reads rules below /usr/share and /etc alone, not below /usr/local.
case $prefix in /usr) rules=/usr/share/polkit-1/rules.d ;; *) rules=/etc/polkit-1/rules.d ;; esac
doc=$prefix/share/doc/etcd-operator
bash=$prefix/share/bash-completion/completions/etcd-operator
# Debian's zsh looks below /usr in a directory of its own.
case $prefix in /usr) zsh=$prefix/share/zsh/vendor-completions ;; *) zsh=$prefix/share/zsh/site-functions ;; esac
zsh=$zsh/_etcd-operator
fish=$prefix/share/fish/vendor_completions.d/etcd-operator.fish

# Where systemd runs and the files are its own, not those of an image that is being built.
running() { [ -z "$root" ] && [ -d /run/systemd/system ] && [ "$(id -u)" = 0 ]; }

if [ "${1:-}" = --uninstall ]; then
    if running; then
        systemctl disable --now --quiet "$unit" 2> /dev/null || true
    fi
    rm -rf "$root$doc"
    rm -f "$root$prefix/bin/etcd-operator" "$root$prefix/lib/systemd/system/$unit" \
        "$root$prefix/lib/sysusers.d/etcd-operator.conf" "$root$prefix/lib/tmpfiles.d/etcd-operator.conf" \
        "$root$rules/50-etcd-operator.rules" "$root$prefix/share/man/man8/etcd-operator.8" \
        "$root$prefix/share/man/man8/etcd-operator-"*.8 "$root$bash" "$root$zsh" "$root$fish"
    if running; then systemctl daemon-reload; fi
    echo "removed; etcd, $root/etc/etcd-operator and $root/var/lib/etcd-operator stay as they are"
    exit 0
fi

binary=${1:?usage: install.sh BINARY | install.sh --uninstall}
# e_machine of the binary against the kernel's, which may be 64-bit below a 32-bit system. DESTDIR may
# be for another machine.
case $(uname -m) in x86_64) machine=3e ;; aarch64) machine=b7 ;; *) machine=none ;; esac
if [ -z "$root" ] && [ "$(od -An -tx1 -j18 -N1 "$binary" | tr -d ' ')" != "$machine" ]; then
    echo "install: $binary is not for this machine, $(uname -m)" >&2
    exit 1
fi
# The tarball's pages link to each other alone; those of a checkout become so.
pages=$here/..
if [ -e "$here/../cross/pages.py" ]; then
    pages=$(mktemp -d)
    trap 'rm -rf "$pages"' EXIT
    python3 "$here/../cross/pages.py" "$pages"
fi
# place SOURCE DEST: texts name the binary where it is installed.
place() {
    install -d -m 755 "$root${2%/*}"
    sed -e "s|/usr/bin/etcd-operator|$prefix/bin/etcd-operator|g" \
        -e "s|/usr/share/doc/etcd-operator|$doc|g" "$1" > "$root$2.new"
    chmod 644 "$root$2.new"
    mv "$root$2.new" "$root$2"
}
install -d -m 755 "$root$prefix/bin"
install -m 755 "$binary" "$root$prefix/bin/etcd-operator.new"
mv "$root$prefix/bin/etcd-operator.new" "$root$prefix/bin/etcd-operator"
cd "$here"
# Pages that are no more go with the version that had them.
rm -rf "$root$doc"
rm -f "$root$prefix/share/man/man8/etcd-operator-"*.8
place etcd-operator.service "$prefix/lib/systemd/system/$unit"
place sysusers.conf "$prefix/lib/sysusers.d/etcd-operator.conf"
place tmpfiles.conf "$prefix/lib/tmpfiles.d/etcd-operator.conf"
place polkit.rules "$rules/50-etcd-operator.rules"
place completions/etcd-operator "$bash"
place completions/_etcd-operator "$zsh"
place completions/etcd-operator.fish "$fish"
for page in man/*.8; do
    place "$page" "$prefix/share/man/man8/${page##*/}"
done
for file in run-as-root.conf k3s-on-etcd.conf; do
    place "$file" "$doc/examples/$file"
done
for file in LICENSE THIRD-PARTY.txt; do
    # The last one is of the tarball alone.
    [ ! -e "../$file" ] || place "../$file" "$doc/$file"
done
cd "$pages"
for page in $(find README.md SECURITY.md deploy src systemd -name '*.md' -o -path 'deploy/examples/*'); do
    place "$page" "$doc/$page"
done

if running; then
    systemd-sysusers "$prefix/lib/sysusers.d/etcd-operator.conf"
    systemd-tmpfiles --create "$prefix/lib/tmpfiles.d/etcd-operator.conf"
    systemctl daemon-reload
    systemctl try-restart "$unit"
fi
echo "installed; next: sudo etcd-operator init"
