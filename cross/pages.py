#!/usr/bin/env python3
"""pages.py DEST: puts into DEST the pages that go with the program, and the examples that they name.

A link to a file that does not go with it becomes words: the place in the source stays readable.
"""

import os
import pathlib
import re
import sys

SHIPPED = [
    "README.md",
    "SECURITY.md",
    "deploy/README.md",
    "deploy/TUTORIAL.md",
    "deploy/examples/backup.yaml",
    "deploy/examples/client.yaml",
    "deploy/examples/host.yaml",
    "deploy/examples/mirror.yaml",
    "deploy/examples/restore.yaml",
    "deploy/examples/single-node.yaml",
    "deploy/examples/three-members.yaml",
    "deploy/examples/usb-disk.yaml",
    "src/backup/README.md",
    "src/explain/troubleshooting.md",
    "systemd/README.md",
]
# What Kubernetes needs of deploy/ comes from the program itself.
NOTE = (
    "`etcd-operator crd` prints `deploy/crds.yaml`, and `etcd-operator manifests` prints `deploy/etcd-operator.yaml`;\n"
    "what else of `deploy/` does not lie beside this page is in the source.\n"
)
LINK = re.compile(r"\[([^]]*)\]\(([^)#:]+)(#[^)]*)?\)")


def shipped(page, text):
    """The page with links to what is shipped alone."""

    def kept(link):
        words, target, anchor = link.groups()
        at = os.path.normpath(os.path.join(os.path.dirname(page), target))
        if at in SHIPPED:
            return link.group(0)
        # Debian keeps it compressed beside the pages.
        return f"{words} ({at})" if at == "CHANGELOG.md" else f"{words} ({at} in the source)"

    text = LINK.sub(kept, text)
    if "deploy/crds.yaml" not in text:
        return text
    title, rest = text.split("\n\n", 1)
    return f"{title}\n\n{NOTE}\n{rest}"


def main():
    top = pathlib.Path(__file__).resolve().parent.parent
    dest = pathlib.Path(sys.argv[1])
    for page in SHIPPED:
        text = (top / page).read_text()
        (dest / page).parent.mkdir(parents=True, exist_ok=True)
        (dest / page).write_text(shipped(page, text) if page.endswith(".md") else text)


main()
