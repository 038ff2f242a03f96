#!/usr/bin/env python3
"""image.py OUT.tar REFERENCE SPEC...: a container image of static programs, without a container engine.

OUT.tar is an OCI image layout with Docker's manifest beside it: `ctr images import` and k3s read it.
SPEC is SOURCE=/path (a file), =/path/ (an empty directory) or =/path->TARGET (a symbolic link);
--command, --entrypoint, --workdir and --user are the image's defaults. The same input gives the same bytes.
"""
import argparse
import hashlib
import io
import json
import os
import platform
import tarfile

ARCH = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def blob(data):
    return "blobs/sha256/" + hashlib.sha256(data).hexdigest()


def document(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def layer(specs):
    out, made = io.BytesIO(), set()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:

        def directory(path):
            parts = path.strip("/").split("/")
            for end in range(1, len(parts) + 1):
                name = "/".join(parts[:end])
                if name and name not in made:
                    made.add(name)
                    info = tarfile.TarInfo(name)
                    info.type, info.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
                    tar.addfile(info)

        for spec in specs:
            source, path = spec.split("=", 1)
            path, _, target = path.partition("->")
            if path.endswith("/"):
                directory(path)
                continue
            directory(os.path.dirname(path))
            info = tarfile.TarInfo(path.strip("/"))
            if target:
                info.type, info.linkname = tarfile.SYMTYPE, target
                tar.addfile(info)
                continue
            with open(source, "rb") as file:
                data = file.read()
            info.size, info.mode = len(data), 0o755
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("reference")
    parser.add_argument("specs", nargs="+")
    parser.add_argument("--command", default="")
    parser.add_argument("--entrypoint", default="")
    parser.add_argument("--workdir", default="/")
    parser.add_argument("--user", default="")
    options = parser.parse_args()
    files = layer(options.specs)
    config = document({
        "architecture": ARCH,
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [digest(files)]},
        "config": {
            **({"Cmd": options.command.split()} if options.command else {}),
            **({"Entrypoint": options.entrypoint.split()} if options.entrypoint else {}),
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "User": options.user,
            "WorkingDir": options.workdir,
        },
    })
    kind = "application/vnd.oci.image."
    manifest = document({
        "schemaVersion": 2,
        "mediaType": kind + "manifest.v1+json",
        "config": {"mediaType": kind + "config.v1+json", "digest": digest(config), "size": len(config)},
        "layers": [{"mediaType": kind + "layer.v1.tar", "digest": digest(files), "size": len(files)}],
    })
    index = document({
        "schemaVersion": 2,
        "manifests": [{
            "mediaType": kind + "manifest.v1+json",
            "digest": digest(manifest),
            "size": len(manifest),
            "platform": {"architecture": ARCH, "os": "linux"},
            "annotations": {
                "io.containerd.image.name": options.reference,
                "org.opencontainers.image.ref.name": options.reference.rsplit(":", 1)[1],
            },
        }],
    })
    docker = document([{"Config": blob(config), "RepoTags": [options.reference], "Layers": [blob(files)]}])
    with tarfile.open(options.out, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in [
            ("oci-layout", document({"imageLayoutVersion": "1.0.0"})),
            ("index.json", index),
            ("manifest.json", docker),
        ] + [(blob(part), part) for part in (config, manifest, files)]:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o644
            tar.addfile(info, io.BytesIO(data))


if __name__ == "__main__":
    main()
