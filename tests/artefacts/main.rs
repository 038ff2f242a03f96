//! What `make dist` publishes, as it lies in target/dist: the budgets of size, static binaries that
//! run where they should, and contents exactly as listed here.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test, which starts tar, dpkg-deb and the like"
)]
#![allow(unreachable_pub, reason = "one binary, several files")]

mod completions;
mod container;
mod elf;
mod image;
mod install;
mod krew;
mod links;
mod package;
#[path = "../skip.rs"]
mod skip;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// Of this tree, which the artefacts must be of too.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// An architecture by the words of the artefacts' names, and what it is held to.
pub struct Arch {
    /// As in the artefacts' names.
    pub name: &'static str,
    /// What `uname -m` says of it.
    pub machine: &'static str,
    /// The most that the binary may weigh, of DESIGN's promise.
    pub size_max: u64,
    /// `e_machine`.
    pub elf: u16,
    /// What the kernel's page size may be at most: 64 KiB on some arm64 systems, 16 on a Pi 5.
    pub page_max: u64,
}

/// What is published.
pub const ARCHES: [Arch; 2] = [
    Arch {
        name: "arm64",
        machine: "aarch64",
        size_max: 7 << 20,
        elf: 183,
        page_max: 0x1_0000,
    },
    Arch {
        name: "amd64",
        machine: "x86_64",
        size_max: 9 << 20,
        elf: 62,
        page_max: 0x1000,
    },
];

/// The artefacts; without them nothing is tested, and that is said.
pub fn dist() -> Option<PathBuf> {
    let dist = checkout().join("target/dist");
    if dist.join("SHA256SUMS").exists() {
        return Some(dist);
    }
    skip("no artefacts: make dist");
    None
}

/// The top of this tree.
pub fn checkout() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub use skip::skip;

/// What a program prints, which must succeed.
pub fn run(program: &str, arguments: &[&str]) -> Vec<u8> {
    let output = output(program, arguments);
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}

/// What came of a program.
pub fn output(program: &str, arguments: &[&str]) -> Output {
    let started = Command::new(program).args(arguments).output();
    started.unwrap_or_else(|error| panic!("{program}: {error}"))
}

/// As text, which it must be.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The path as an argument.
pub fn arg(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The archive to unpack and install.
pub fn tarball(dist: &Path, arch: &Arch) -> PathBuf {
    dist.join(format!("{}.tar.gz", folder(arch)))
}

/// The one folder in a tarball.
pub fn folder(arch: &Arch) -> String {
    format!("etcd-operator-{VERSION}-linux-{}", arch.name)
}

/// The binary as the tarball has it.
pub fn binary(dist: &Path, arch: &Arch) -> Vec<u8> {
    let member = format!("{}/etcd-operator", folder(arch));
    run("tar", &["-xzOf", arg(&tarball(dist, arch)), &member])
}

/// `MODE PATH` of each file in a tar, all of them root's; folders are left out.
pub fn listing(tar: &[u8]) -> Vec<String> {
    let dir = Scratch::empty();
    let file = dir.0.join("listed.tar");
    fs::write(&file, tar).unwrap();
    let lines = text(&run("tar", &["--numeric-owner", "-tvf", arg(&file)]));
    let mut files = Vec::new();
    for line in lines.lines() {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        assert_eq!(fields[1], "0/0", "{line}");
        match &fields[0][..1] {
            "d" => assert_eq!(fields[0], "drwxr-xr-x", "{line}"),
            "-" => files.push(format!(
                "{} {}",
                &fields[0][1..],
                fields[5].trim_start_matches("./")
            )),
            _ => panic!("neither file nor folder: {line}"),
        }
    }
    files.sort();
    files
}

/// A list as it is written in a test: indented lines.
pub fn lines(list: &str) -> Vec<String> {
    let mut lines: Vec<String> = list.lines().map(|it| it.trim().to_owned()).collect();
    lines.retain(|it| !it.is_empty());
    lines.sort();
    lines
}

/// A directory that ends with its test.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// An empty one.
    pub fn empty() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("artefacts-{}-{number}", std::process::id());
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_checksums_are_true_and_name_every_artefact() {
    let Some(dist) = dist() else { return };
    let mut expected = ["chart.tgz", "krew.yaml"]
        .map(|it| format!("etcd-operator-{VERSION}-{it}"))
        .to_vec();
    for Arch { name, .. } in ARCHES {
        expected.push(format!("etcd-operator-{VERSION}-image-{name}.tar"));
        expected.push(format!("etcd-operator-{VERSION}-linux-{name}.tar.gz"));
        expected.push(format!("etcd-operator_{VERSION}_{name}.deb"));
    }
    expected.sort();
    let entries = fs::read_dir(&dist).unwrap();
    let mut there: Vec<String> = entries
        .map(|it| it.unwrap().file_name().into_string().unwrap())
        .filter(|it| it != "SHA256SUMS")
        .collect();
    there.sort();
    assert_eq!(there, expected);
    let sums = fs::read_to_string(dist.join("SHA256SUMS")).unwrap();
    let mut named = Vec::new();
    for line in sums.lines() {
        let (sum, name) = line.split_once("  ").unwrap();
        assert_eq!(sum, sha256(&fs::read(dist.join(name)).unwrap()), "{name}");
        named.push(name.to_owned());
    }
    named.sort();
    assert_eq!(named, expected);
}

/// As `sha256sum` prints it.
pub fn sha256(data: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, data);
    let mut text = String::new();
    for byte in digest.as_ref() {
        use std::fmt::Write as _;
        write!(text, "{byte:02x}").unwrap();
    }
    text
}

#[test]
fn a_32_bit_build_is_refused_with_the_reason() {
    let script = checkout().join("cross/build.sh");
    for target in [
        "armv7-unknown-linux-musleabihf",
        "arm-unknown-linux-musleabihf",
        "i686-unknown-linux-musl",
    ] {
        let refused = output(arg(&script), &[target]);
        assert_eq!(refused.status.code(), Some(2), "{target}");
        let reason = text(&refused.stderr);
        assert!(
            reason.contains("etcd does not support 32-bit systems"),
            "{target}: {reason}"
        );
    }
}

/// The manual pages of this tree as lines of a list, in a folder; each name ends with `end`.
pub fn manual(folder: &str, end: &str) -> String {
    let pages = fs::read_dir(checkout().join("systemd/man")).unwrap();
    let names = pages.map(|it| it.unwrap().file_name().into_string().unwrap());
    let pages: Vec<String> = names
        .map(|it| format!("\nrw-r--r-- {folder}/{it}{end}"))
        .collect();
    assert!(pages.len() > 30, "{pages:?}");
    pages.concat()
}

/// The pages that go with the program, and the examples that they name.
pub const PAGES: [&str; 15] = [
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
];

/// They as lines of a list, in a folder.
pub fn pages(folder: &str) -> String {
    PAGES.map(|it| format!("\nrw-r--r-- {folder}{it}")).concat()
}
