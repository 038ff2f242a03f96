#!/usr/bin/env python3
"""initrd.py KERNEL OUT MODULE...: an initial file system with busybox, and the modules with what they
depend on, in the order in which they have to be loaded. Written without any tool of the machine.

KERNEL holds what Debian's packages of the kernel and of busybox-static unpack to.
"""
import gzip
import os
import re
import sys

kernel, out, *wanted = sys.argv[1:]
files = {}
for folder, _, names in os.walk(f"{kernel}/lib/modules"):
    for name in names:
        if name.endswith(".ko"):
            files[name[:-3].replace("-", "_")] = os.path.join(folder, name)
order = {}


def add(name):
    """A module after those that it names itself as needed."""
    if name in order:
        return
    if name not in files:
        sys.exit(f"initrd: the kernel has no module {name}")
    with open(files[name], "rb") as file:
        content = file.read()
    needed = re.search(rb"\0depends=([^\0]*)\0", content)
    for other in filter(None, needed[1].decode().split(",") if needed else []):
        add(other.replace("-", "_"))
    order[name] = content


for module in wanted:
    add(module)

archive = bytearray()


def entry(name, mode, content=b"", device=(0, 0)):
    """One file in the kernel's own format (newc)."""
    path = name.encode() + b"\0"
    inode = entry.inode = getattr(entry, "inode", 0) + 1
    fields = (inode, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(path), 0)
    for piece in (b"070701" + b"".join(b"%08x" % it for it in fields) + path, content):
        archive.extend(piece + b"\0" * (-len(piece) % 4))


for folder in ("bin", "dev", "proc", "sys", "modules", "root"):
    entry(folder, 0o040755)
entry("dev/console", 0o020600, device=(5, 1))
with open(f"{kernel}/bin/busybox", "rb") as busybox:
    entry("bin/busybox", 0o100755, busybox.read())
entry("bin/sh", 0o120777, b"busybox")
for name, content in order.items():
    entry(f"modules/{name}", 0o100644, content)
# 10.0.2.15 is the address that qemu's own network gives to a machine.
entry("init", 0o100755, f"""#!/bin/sh
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs devtmpfs /dev
for module in {' '.join(order)}; do $b insmod /modules/$module || echo "initrd: no $module"; done
$b ip link set lo up
$b ip addr add 10.0.2.15/24 dev eth0
$b ip link set eth0 up
tries=0
while [ ! -b /dev/vda ] && [ $tries -lt 300 ]; do $b usleep 100000; tries=$((tries + 1)); done
$b mount -o rw /dev/vda /root || exec sh
exec $b switch_root /root /sbin/init
""".encode())
entry("TRAILER!!!", 0)
with open(out, "wb") as file:
    file.write(gzip.compress(bytes(archive), 6, mtime=0))
