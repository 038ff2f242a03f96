//! Container images as tars, made without an engine and imported without a registry.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::lab::{root, tools};

/// One image.
#[derive(Clone, Debug)]
pub struct Image {
    pub tar: PathBuf,
    /// What a pod names.
    pub reference: String,
}

/// What there is. Nodes have busybox without asking.
#[derive(Debug)]
pub struct Images {
    /// The operator's: `ETCD_OPERATOR_IMAGE`, else what `make dist` made.
    pub operator: Option<Image>,
    /// By line: etcd, etcdctl and etcdutl in /usr/local/bin and nothing else, under upstream's name.
    pub etcd: BTreeMap<&'static str, Image>,
    /// A client's shell.
    pub busybox: Option<Image>,
}

/// Where `images.sh` puts them.
pub fn dir() -> PathBuf {
    root().join("target/tools/kubernetes-images")
}

/// Makes what is missing or outdated.
pub fn images() -> Images {
    let made = Command::new(root().join("tests/tools/kube/images.sh"))
        .args([dir(), tools()])
        .output()
        .unwrap();
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    let one = |name: &str| {
        let tar = dir().join(format!("{name}.tar"));
        tar.exists().then(|| image(&tar))
    };
    let etcd = ["3.5", "3.6", "3.6-before", "3.7"]
        .into_iter()
        .filter_map(|line| Some((line, one(&format!("etcd-{line}"))?)));
    Images {
        operator: operator(),
        etcd: etcd.collect(),
        busybox: one("busybox"),
    }
}

/// The version of an image of etcd.
pub fn version_of(image: &Image) -> String {
    let (_, version) = image.reference.rsplit_once(":v").unwrap();
    version.to_owned()
}

/// An image of an etcd that behaves badly in a way of `tests/tools/bad-etcd.c`, with the programs of etcd of its line beside
/// it.
pub fn bad_etcd(dir: &Path, version: &str, mode: &str) -> Image {
    let (line, _) = version.rsplit_once('.').unwrap();
    let program = dir.join(format!("etcd-{version}"));
    let built = Command::new("gcc")
        .args(["-Os", "-static", "-s"])
        .arg(format!("-DREAL={:?}", "/usr/local/bin/etcd-real"))
        .arg(format!("-DVERSION={version:?}"))
        .arg(format!("-DMODE={mode:?}"))
        .arg("-o")
        .arg(&program)
        .arg(root().join("tests/tools/bad-etcd.c"))
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{words}");
    let real = |name: &str| {
        tools()
            .join("etcd")
            .join(line)
            .join(name)
            .display()
            .to_string()
    };
    let tar = dir.join(format!("etcd-{version}.tar"));
    let mut packs = Command::new("python3");
    packs
        .arg(root().join("tests/tools/kube/image.py"))
        .arg(&tar)
        .arg(format!("quay.io/coreos/etcd:v{version}"))
        .arg(format!("{}=/usr/local/bin/etcd", program.display()))
        .arg(format!("{}=/usr/local/bin/etcd-real", real("etcd")))
        .arg(format!("{}=/usr/local/bin/etcdctl", real("etcdctl")))
        .arg(format!("{}=/usr/local/bin/etcdutl", real("etcdutl")))
        .arg("=/tmp/");
    // What the guard of an operator that was not built statically needs beside etcd.
    let needed = std::env::var_os("LIBC_OF").map(|it| Command::new("ldd").arg(it).output());
    let needed = needed.map_or(Vec::new(), |it| it.unwrap().stdout);
    let needed = String::from_utf8_lossy(&needed).into_owned();
    let libraries = needed.split_whitespace().filter(|it| it.starts_with('/'));
    packs.args(libraries.map(|it| format!("{it}={it}")));
    let packed = packs.args(["--command", "/usr/local/bin/etcd"]).output();
    let packed = packed.unwrap();
    let words = String::from_utf8_lossy(&packed.stderr);
    assert!(packed.status.success(), "{words}");
    image(&tar)
}

fn operator() -> Option<Image> {
    if let Some(named) = std::env::var_os("ETCD_OPERATOR_IMAGE") {
        let tar = PathBuf::from(named);
        assert!(
            tar.exists(),
            "ETCD_OPERATOR_IMAGE names no file: {}",
            tar.display()
        );
        return Some(image(&tar));
    }
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let version = env!("CARGO_PKG_VERSION");
    let tar = root().join(format!(
        "target/dist/etcd-operator-{version}-image-{arch}.tar"
    ));
    tar.exists().then(|| image(&tar))
}

/// An image's name is in it.
fn image(tar: &Path) -> Image {
    let manifest = Command::new("tar")
        .arg("-xOf")
        .args([tar, Path::new("manifest.json")])
        .output()
        .unwrap()
        .stdout;
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    Image {
        tar: tar.to_owned(),
        reference: manifest[0]["RepoTags"][0].as_str().unwrap().to_owned(),
    }
}
