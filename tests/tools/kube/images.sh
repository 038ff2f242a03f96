#!/usr/bin/env bash
# images.sh DEST TOOLS: puts the container images of the Kubernetes tests into DEST, from the programs
# below TOOLS; only what is missing or whose programs changed.
#
#   etcd-LINE.tar    quay.io/coreos/etcd:vX.Y.Z, etcd, etcdctl and etcdutl of TOOLS/etcd/LINE in
#                    /usr/local/bin and nothing else: no shell, no libc, as upstream's image
#   busybox.tar      localhost/busybox:1, a client's shell, from Debian's busybox-static
#   local-path.tar   localhost/local-path-provisioner:1, k3s' storage
#   pause.tar        localhost/pause:1, what holds a pod's namespaces
#
# An image that cannot be made is left out, with a line that says so. DEST/NAME.ref is its reference.
# LIBC_OF=PROGRAM: beside etcd lie the libraries of that program, which the guard of operator.sh needs.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dest=$1
tools=$2
mkdir -p "$dest"
exec 9> "$dest/.lock"
flock 9

# image NAME REFERENCE FILES -- ARGUMENTS...: FILES decide whether it is made again.
image() {
    local name=$1 reference=$2 key
    shift 2
    key=$({ echo "$reference $*"; cat "$here/image.py"; stat -L -c '%n %s %Y' "${files[@]}"; } | sha256sum)
    [ ! -f "$dest/$name.tar" ] || [ "$(cat "$dest/$name.key" 2> /dev/null)" != "$key" ] || return 0
    rm -f "$dest/$name.key"
    python3 "$here/image.py" "$dest/$name.part" "$reference" "$@"
    mv "$dest/$name.part" "$dest/$name.tar"
    echo "$reference" > "$dest/$name.ref"
    echo "$key" > "$dest/$name.key"
    echo "image: $reference"
}

without() {
    rm -f "$dest/$1".*
    echo "image: no $1, for want of $2"
}

libraries=()
if [ -n "${LIBC_OF:-}" ]; then
    for library in $(ldd "$LIBC_OF" | grep -o '/[^ ]*'); do libraries+=("$library=$library"); done
fi
for line in 3.5 3.6 3.6-before 3.7; do
    bin=$tools/etcd/$line
    if [ -x "$bin/etcd" ] && [ -x "$bin/etcdctl" ] && [ -x "$bin/etcdutl" ]; then
        version=$("$bin/etcd" --version | sed -n 's/^etcd Version: //p')
        files=("$bin/etcd" "$bin/etcdctl" "$bin/etcdutl")
        image "etcd-$line" "quay.io/coreos/etcd:v$version" "$bin/etcd=/usr/local/bin/etcd" \
            "$bin/etcdctl=/usr/local/bin/etcdctl" "$bin/etcdutl=/usr/local/bin/etcdutl" \
            =/tmp/ =/var/etcd/ =/var/lib/etcd/ "${libraries[@]}" --command /usr/local/bin/etcd
    else
        without "etcd-$line" "etcd, etcdctl and etcdutl $line"
    fi
done

busybox=$(command -v busybox || true)
if [ -n "$busybox" ] && ! ldd "$busybox" > /dev/null 2>&1; then
    files=("$busybox")
    links=()
    for applet in $("$busybox" --list); do
        [ "$applet" = busybox ] || links+=("=/bin/$applet->busybox")
    done
    image busybox localhost/busybox:1 "$busybox=/bin/busybox" "${links[@]}" =/tmp/ =/etc/ --command /bin/sh
else
    without busybox "Debian's busybox-static"
fi

provisioner=$tools/kubernetes/local-path-provisioner
if [ -x "$provisioner" ]; then
    files=("$provisioner")
    image local-path localhost/local-path-provisioner:1 "$provisioner=/bin/local-path-provisioner" =/tmp/
else
    without local-path local-path-provisioner
fi

# It reaps what is orphaned into a pod's shared process namespace, and ends when asked to.
if command -v gcc > /dev/null; then
    files=("$0")
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    cat > "$work/pause.c" <<'C'
#include <signal.h>
#include <unistd.h>
static void end(int signal) { (void)signal; _exit(0); }
int main(void) {
    signal(SIGTERM, end);
    signal(SIGINT, end);
    signal(SIGCHLD, SIG_IGN);
    for (;;) pause();
}
C
    if [ ! -f "$dest/pause.key" ] || [ "$dest/pause.key" -ot "$0" ]; then
        if gcc -Os -static -s -o "$dest/pause" "$work/pause.c" 2> /dev/null; then
            image pause localhost/pause:1 "$dest/pause=/pause" --command /pause
        else
            without pause "libc6-dev"
        fi
    fi
else
    without pause gcc
fi
