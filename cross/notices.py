#!/usr/bin/env python3
"""notices.py OUT: the licences of what is linked into the binary, as their authors ask for it.

Crates come from cargo's own resolution for the target (build scripts and macros are not in the binary);
each distinct text is printed once. Needs the crates' sources, which a build has fetched.
"""
import hashlib
import json
import os
import re
import subprocess
import sys

TARGET = "x86_64-unknown-linux-musl"
TEXTS = re.compile(r"^(licen[cs]e|copying|copyright|notice|unlicense)", re.IGNORECASE)
# Where there is a choice it is not these; the Apache licence is the file LICENSE.
OTHERS = re.compile(r"apache|unlicense", re.IGNORECASE)


def linked(metadata):
    """The packages in the binary, without our own."""
    packages = {it["id"]: it for it in metadata["packages"]}
    nodes = {it["id"]: it for it in metadata["resolve"]["nodes"]}
    root = metadata["resolve"]["root"]
    seen, todo = set(), [root]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        for dep in nodes[node]["deps"]:
            normal = any(kind["kind"] is None for kind in dep["dep_kinds"])
            macro = any("proc-macro" in it["kind"] for it in packages[dep["pkg"]]["targets"])
            if normal and not macro:
                todo.append(dep["pkg"])
    return sorted((packages[it] for it in seen - {root}), key=lambda it: (it["name"], it["version"]))


def texts(package):
    """The texts of its licence that have to go with the binary."""
    folder = os.path.dirname(package["manifest_path"])
    names = sorted(it for it in os.listdir(folder) if TEXTS.match(it) and os.path.isfile(os.path.join(folder, it)))
    for name in (it for it in names if not OTHERS.search(it)):
        with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
            yield file.read().strip()


def main():
    command = ["cargo", "metadata", "--format-version=1", "--locked", "--filter-platform", TARGET]
    metadata = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    packages = linked(metadata)
    by_text = {}
    for package in packages:
        for text in texts(package):
            key = hashlib.sha256(" ".join(text.split()).encode()).hexdigest()
            by_text.setdefault(key, (text, []))[1].append(package["name"])
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        out.write("etcd-operator is linked with these; where they offer a choice, under the MIT licence.\n\n")
        out.write("Rust's standard library: MIT OR Apache-2.0, Copyright (c) The Rust Project Contributors\n")
        out.write("musl: MIT, Copyright (c) 2005-2020 Rich Felker, et al.\n")
        for package in packages:
            out.write(f"{package['name']} {package['version']}: {package['license'] or 'see below'}\n")
        for text, names in sorted(by_text.values(), key=lambda it: it[1]):
            out.write(f"\n{'-' * 80}\n{', '.join(sorted(set(names)))}\n\n{text}\n")


if __name__ == "__main__":
    main()
