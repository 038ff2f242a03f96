//! The container images, read as a container engine reads them: from name to digest to bytes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{ARCHES, Arch, Scratch, VERSION, arg, binary, dist, lines, listing, run, sha256, text};

/// The name under which an image is imported, and which a Pod uses.
pub fn reference() -> String {
    format!("localhost/etcd-operator:{VERSION}")
}

pub fn image(dist: &Path, arch: &Arch) -> PathBuf {
    dist.join(format!("etcd-operator-{VERSION}-image-{}.tar", arch.name))
}

fn member(tar: &Path, name: &str) -> Vec<u8> {
    run("tar", &["-xOf", arg(tar), name])
}

fn json(data: &[u8]) -> Value {
    serde_json::from_slice(data).unwrap()
}

/// What a descriptor points to: its digest and its size must be true.
fn blob(tar: &Path, descriptor: &Value, seen: &mut BTreeSet<String>) -> Vec<u8> {
    let digest = descriptor["digest"].as_str().unwrap();
    let hash = digest.strip_prefix("sha256:").unwrap();
    let name = format!("blobs/sha256/{hash}");
    let data = member(tar, &name);
    assert_eq!(sha256(&data), hash);
    assert_eq!(descriptor["size"], data.len());
    seen.insert(name);
    data
}

#[test]
fn an_image_holds_the_binary_alone_and_is_nobody() {
    let Some(dist) = dist() else { return };
    for arch in ARCHES {
        let tar = image(&dist, &arch);
        let mut seen = BTreeSet::new();
        let layout = json(&member(&tar, "oci-layout"));
        assert_eq!(layout["imageLayoutVersion"], "1.0.0");
        let index = json(&member(&tar, "index.json"));
        assert_eq!(index["manifests"].as_array().unwrap().len(), 1);
        let entry = &index["manifests"][0];
        assert_eq!(entry["platform"]["architecture"], arch.name);
        assert_eq!(
            entry["annotations"]["io.containerd.image.name"],
            reference()
        );
        let manifest = json(&blob(&tar, entry, &mut seen));
        let config = json(&blob(&tar, &manifest["config"], &mut seen));
        assert_eq!(config["architecture"], arch.name);
        assert_eq!(config["os"], "linux");
        let process = &config["config"];
        assert_eq!(process["User"], "65532:65532");
        assert_eq!(process["Entrypoint"], serde_json::json!(["/etcd-operator"]));
        assert_eq!(process["Env"], Value::Null);
        let labels = &process["Labels"];
        assert_eq!(labels["org.opencontainers.image.version"], VERSION);
        assert_eq!(labels["org.opencontainers.image.licenses"], "Apache-2.0");

        assert_eq!(manifest["layers"].as_array().unwrap().len(), 1);
        let packed = blob(&tar, &manifest["layers"][0], &mut seen);
        let dir = Scratch::empty();
        let file = dir.0.join("layer.tar.gz");
        std::fs::write(&file, packed).unwrap();
        let layer = run("gzip", &["-dc", arg(&file)]);
        let id = format!("sha256:{}", sha256(&layer));
        assert_eq!(config["rootfs"]["diff_ids"], serde_json::json!([id]));
        assert_eq!(listing(&layer), ["rwxr-xr-x etcd-operator"]);
        let content = run("tar", &["-xzOf", arg(&file), "etcd-operator"]);
        assert!(content == binary(&dist, &arch), "not the tarball's binary");

        // The same in Docker's words.
        let docker = json(&member(&tar, "manifest.json"));
        assert_eq!(docker[0]["RepoTags"], serde_json::json!([reference()]));
        let hash = |it: &Value| it["digest"].as_str().unwrap().replace(':', "/");
        let at = |it: &Value| Value::String(format!("blobs/{}", hash(it)));
        assert_eq!(docker[0]["Config"], at(&manifest["config"]));
        assert_eq!(docker[0]["Layers"][0], at(&manifest["layers"][0]));

        seen.extend(["oci-layout", "index.json", "manifest.json"].map(String::from));
        let names = text(&run("tar", &["-tf", arg(&tar)]));
        let names: BTreeSet<String> = lines(&names).into_iter().collect();
        assert_eq!(names, seen);
    }
}
