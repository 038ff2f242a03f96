#!/usr/bin/env bash
# boot.sh ROOT DISK: boots the systemd of ROOT as PID 1 of namespaces of its own, and ends with it.
#
# ROOT is never written to: what the machine writes lies in DISK, so that booting again from the same
# DISK is a reboot. /var is a plain directory there (etcd's data shall not lie on overlayfs), the
# rest the upper side of an overlay. DISK/init names the init process once it is about to start;
# DISK/console is what it would show.
#
# It has cgroups of its own, of the version that is here: a sub-tree in each hierarchy of version 1, or
# in the one of version 2, writable, so that MemoryMax= and its like are enforced (systemd-nspawn
# mounts them read-only). 1 GiB is the limit of the whole machine.
#
# SIGTERM is a power cut: init is killed, and with it all that it ever started. Nothing stays behind:
# mounts and network belong to the namespaces, and the cgroups are removed below. The exit code after
# a clean halt is 130, as the kernel tells it.
set -euo pipefail
root=$(readlink -f "$1")
disk=$(readlink -f "$2")
name=etcd-operator-machine-$$
memory=1G
groups=/sys/fs/cgroup
hierarchies="memory cpu cpuacct pids blkio cpuset devices freezer systemd unified"
[ ! -e "$groups/cgroup.controllers" ] || hierarchies=

# Removes the cgroups of a machine that has ended; those of a living one cannot be removed.
clean() {
    local tree attempt
    for tree in "$groups/$1" "$groups"/*/"$1"; do
        # What was killed leaves its cgroup a moment after it was waited for.
        for attempt in {1..100}; do
            [ -d "$tree" ] || break
            find "$tree" -depth -type d -exec rmdir {} + 2> /dev/null || sleep 0.05
        done
    done
}

for hierarchy in $hierarchies; do
    [ -d "$groups/$hierarchy" ] || { echo "boot: no cgroup hierarchy $hierarchy here" >&2; exit 1; }
done
unshare=
trap 'clean "$name"' EXIT
# Init itself is killed, which takes everything with it, so that unshare is there to reap it.
cut() {
    local init
    read -r init 2> /dev/null < "$disk/init" || init=$unshare
    [ -z "$init" ] || kill -KILL "$init" 2> /dev/null || true
}
trap cut TERM INT HUP

# Launchers that were killed could not clean.
for tree in "$groups"/{,memory/}etcd-operator-machine-*; do
    [ ! -d "$tree" ] || [ -d "/proc/${tree##*-}" ] || clean "${tree##*/}"
done
mkdir -p "$disk/upper/etc" "$disk/work" "$disk/root"
[ -d "$disk/var" ] || { cp -a "$root/var" "$disk/var.part"; mv -T "$disk/var.part" "$disk/var"; }
[ -s "$disk/upper/etc/machine-id" ] || tr -d - < /proc/sys/kernel/random/uuid > "$disk/upper/etc/machine-id"
rm -f "$disk/init"

# Runs in the new namespaces, until it becomes init.
inside() {
    local root=$1 disk=$2 controllers=$3 init hierarchy node
    read -r init _ < /proc/self/stat # this /proc still counts as the outside does
    local to=$disk/root
    mount -t overlay -o "lowerdir=$root,upperdir=$disk/upper,workdir=$disk/work" overlay "$to"
    mount --bind "$disk/var" "$to/var"
    mount -t proc -o nosuid,nodev,noexec proc "$to/proc"
    mount -t sysfs -o nosuid,nodev,noexec,ro sysfs "$to/sys"
    if [ -z "$controllers" ]; then
        mount -t cgroup2 cgroup2 "$to/sys/fs/cgroup"
    else
        mount -t tmpfs -o mode=755 tmpfs "$to/sys/fs/cgroup"
    fi
    for hierarchy in $controllers; do
        mkdir "$to/sys/fs/cgroup/$hierarchy"
        case $hierarchy in
            unified) mount -t cgroup2 cgroup2 "$to/sys/fs/cgroup/unified" ;;
            systemd) mount -t cgroup -o none,name=systemd cgroup "$to/sys/fs/cgroup/systemd" ;;
            *) mount -t cgroup -o "$hierarchy" cgroup "$to/sys/fs/cgroup/$hierarchy" ;;
        esac
    done
    mount -t tmpfs -o mode=755,nosuid tmpfs "$to/dev"
    mkdir "$to/dev/pts" "$to/dev/shm" "$to/dev/mqueue" "$to/dev/hugepages"
    while read -r node minor; do
        mknod -m 666 "$to/dev/$node" c "${minor%:*}" "${minor#*:}"
    done <<< $'null 1:3\nzero 1:5\nfull 1:7\nrandom 1:8\nurandom 1:9\ntty 5:0'
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$to/dev/pts"
    ln -s pts/ptmx "$to/dev/ptmx"
    ln -s /proc/self/fd "$to/dev/fd"
    ln -s fd/0 "$to/dev/stdin"
    ln -s fd/1 "$to/dev/stdout"
    ln -s fd/2 "$to/dev/stderr"
    : > "$to/dev/console"
    mount --bind "$disk/console" "$to/dev/console"
    mount -t tmpfs -o mode=1777 tmpfs "$to/dev/shm"
    mount -t tmpfs -o mode=755,nosuid,nodev tmpfs "$to/run"
    mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "$to/tmp"
    # A boot of its own, by which the journal and the operator tell before from after.
    cat /proc/sys/kernel/random/uuid > "$to/run/boot_id"
    mount --bind "$to/proc/sys" "$to/proc/sys"
    mount -o remount,bind,ro "$to/proc/sys"
    mount --bind "$to/run/boot_id" "$to/proc/sys/kernel/random/boot_id"
    mkdir -p "$to/run/outside"
    cd "$to"
    pivot_root . run/outside
    echo "$init" > "/run/outside$disk/init.part"
    mv "/run/outside$disk/init.part" "/run/outside$disk/init"
    umount -l /run/outside
    rmdir /run/outside
    # Credentials and mounts of units reach them only through shared mounts.
    mount --make-rshared /
    # The kernel's clock and modules are those of the machine outside.
    exec setpriv --bounding-set=-sys_time,-sys_module,-sys_rawio \
        env -i container=lab PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb /lib/systemd/systemd --system --show-status=1
}

(
    for hierarchy in $hierarchies; do
        tree=$groups/$hierarchy/$name
        mkdir "$tree"
        case $hierarchy in
            memory)
                echo 1 > "$tree/memory.use_hierarchy" 2> /dev/null || true
                echo $memory > "$tree/memory.limit_in_bytes"
                ;;
            cpuset)
                cat "$groups/cpuset/cpuset.cpus" > "$tree/cpuset.cpus"
                cat "$groups/cpuset/cpuset.mems" > "$tree/cpuset.mems"
                echo 1 > "$tree/cgroup.clone_children"
                ;;
        esac
        echo $BASHPID > "$tree/cgroup.procs"
    done
    # In version 2 a group that gives controllers to groups below holds no process itself: the launcher
    # stays outside of the machine's.
    machine=
    if [ -z "$hierarchies" ]; then
        machine=$groups/$name/machine
        mkdir -p "$groups/$name/launcher" "$machine"
        for controller in $(cat "$groups/cgroup.controllers"); do
            echo "+$controller" > "$groups/cgroup.subtree_control"
            echo "+$controller" > "$groups/$name/cgroup.subtree_control"
        done
        [ ! -e "$groups/$name/memory.max" ] || echo $memory > "$groups/$name/memory.max"
        echo $BASHPID > "$groups/$name/launcher/cgroup.procs"
    fi
    exec setpriv --pdeathsig KILL unshare --pid --fork --kill-child --mount --uts --ipc --net --propagation private -- \
        bash -euc '[ -z "$1" ] || echo 0 > "$1/cgroup.procs"; shift; exec unshare --cgroup -- "$@"' enter "$machine" \
        bash -euc "$(declare -f inside)"$'\ninside "$@"' boot "$root" "$disk" "$hierarchies"
) < /dev/null > "$disk/console" 2>&1 &
unshare=$!
status=0
wait "$unshare" || status=$?
# After a signal to this script: until what it killed is gone.
while kill -0 "$unshare" 2> /dev/null; do wait "$unshare" || true; done
exit "$status"
