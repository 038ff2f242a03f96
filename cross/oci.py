#!/usr/bin/env python3
"""oci.py OUT.tar: a container image of one static binary and nothing else, without a container engine.

OUT.tar is an OCI image layout with Docker's manifest beside it: `k3s ctr images import`, `ctr`, podman,
skopeo and `docker load` all read it. The same input gives the same bytes (time is --epoch).
"""
import argparse
import datetime
import gzip
import hashlib
import io
import json
import tarfile

USER = 65532  # "nonroot" by the convention of distroless images


def entry(tar, name, data, epoch, mode=0o644):
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = len(data), mode, epoch
    tar.addfile(info, io.BytesIO(data))


def archive(entries, epoch):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data, mode in entries:
            entry(tar, name, data, epoch, mode)
    return out.getvalue()


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def blob(data):
    return "blobs/sha256/" + hashlib.sha256(data).hexdigest()


def document(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    for name in ("binary", "arch", "version", "licence"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--epoch", required=True, type=int)
    parser.add_argument("--revision", default="")
    options = parser.parse_args()
    epoch = options.epoch
    created = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    # `localhost` is nobody's registry: an image that was not imported is never pulled from a stranger.
    tag = options.version
    reference = "localhost/etcd-operator:" + tag

    with open(options.binary, "rb") as file:
        layer = archive([("etcd-operator", file.read(), 0o755)], epoch)
    packed = gzip.compress(layer, 9, mtime=0)
    labels = {
        "org.opencontainers.image.title": "etcd-operator",
        "org.opencontainers.image.description": "Keeps an etcd cluster alive at the edge",
        "org.opencontainers.image.version": options.version,
        "org.opencontainers.image.licenses": options.licence,
        "org.opencontainers.image.created": created,
    }
    if options.revision:
        labels["org.opencontainers.image.revision"] = options.revision
    platform = {"architecture": options.arch, "os": "linux"}
    if options.arch == "arm64":
        platform["variant"] = "v8"
    config = document({
        **platform,
        "created": created,
        "config": {
            "Entrypoint": ["/etcd-operator"],
            "Labels": labels,
            "User": f"{USER}:{USER}",
            "WorkingDir": "/",
        },
        "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
        "history": [{"created": created, "created_by": "cross/oci.py"}],
    })
    manifest = document({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": digest(config),
            "size": len(config),
        },
        "layers": [{
            "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip",
            "digest": digest(packed),
            "size": len(packed),
        }],
    })
    index = document({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [{
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": digest(manifest),
            "size": len(manifest),
            "platform": platform,
            "annotations": {
                "io.containerd.image.name": reference,
                "org.opencontainers.image.ref.name": tag,
            },
        }],
    })
    docker = document([{"Config": blob(config), "RepoTags": [reference], "Layers": [blob(packed)]}])
    with open(options.out, "wb") as out:
        out.write(archive([
            ("oci-layout", b'{"imageLayoutVersion":"1.0.0"}', 0o644),
            ("index.json", index, 0o644),
            ("manifest.json", docker, 0o644),
            *((blob(it), it, 0o644) for it in (config, manifest, packed)),
        ], epoch))


if __name__ == "__main__":
    main()
