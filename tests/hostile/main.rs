//! What others may write is fed to each parser with bytes changed, cut, doubled and exchanged for telling numbers.
//! Nothing panics (arithmetic is checked here, and a panic would end the operator), and nothing takes more memory than
//! its ceiling, whatever a length in the input says.
//!
//! The inputs lie beside this file: a snapshot and the log of a real etcd 3.6, and what it says of itself. A case that
//! was found joins them in [`found`]. By hand, for longer: `CASES=100000 cargo test --test hostile`.

#![allow(clippy::disallowed_methods, reason = "tests write files")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a failed step fails the test, and figures are told"
)]
#![allow(unreachable_pub, reason = "one binary, several files")]

mod free;
#[path = "../world/random.rs"]
#[allow(dead_code, reason = "several tests share it")]
mod random;
mod wire;

use std::fs;
use std::path::PathBuf;

use etcd_operator::backup::frames::{FrameReader, FrameWriter};
use etcd_operator::backup::manifest::Manifest;
use etcd_operator::backup::name::SnapshotName;
use etcd_operator::backup::verify;
use etcd_operator::etcd::{bolt, data_dir, examine};
use etcd_operator::member::records::IdentityFile;
use etcd_operator::tls::SignedBundle;
use etcd_operator::version::Line;

use random::Random;

const MIB: u64 = 1 << 20;

fn unpacked(packed: &[u8]) -> Vec<u8> {
    zstd::stream::decode_all(packed).unwrap()
}

fn database() -> Vec<u8> {
    let mut snapshot = unpacked(include_bytes!("snapshot.db.zst"));
    snapshot.truncate(snapshot.len() - 32); // etcd's checksum
    snapshot
}

/// Another input: one to four changes.
fn changed(random: &mut Random, whole: &[u8]) -> Vec<u8> {
    const TELLING: [u64; 12] = [
        0,
        1,
        u64::MAX,
        i64::MAX as u64,
        1 << 63,
        u32::MAX as u64,
        1 << 31,
        0xffff,
        0x7fff,
        4096,
        1 << 27,
        0x0101_0101_0101_0101,
    ];
    let mut bytes = whole.to_vec();
    for _ in 0..=random.below(3) {
        if bytes.is_empty() {
            break;
        }
        let place = |random: &mut Random, most: usize| {
            // The beginning holds what decides over all the rest.
            let most = if random.chance(30) {
                most.min(4096)
            } else {
                most
            };
            usize::try_from(random.below(most as u64)).unwrap()
        };
        let at = place(random, bytes.len());
        match random.below(7) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = u8::try_from(random.below(256)).unwrap(),
            2 => bytes.truncate(at),
            3 => {
                let from = place(random, bytes.len());
                let end = (from + 1 + place(random, 512)).min(bytes.len());
                let piece = bytes[from..end].to_vec();
                bytes.splice(at..at, piece);
            }
            4 => {
                let end = (at + 1 + place(random, 512)).min(bytes.len());
                bytes.drain(at..end);
            }
            kind => {
                let number = TELLING[usize::try_from(random.below(12)).unwrap()];
                let width = [2, 4, 8][usize::try_from(random.below(3)).unwrap()];
                let mut number = number.to_le_bytes()[..width].to_vec();
                if kind == 6 {
                    number.reverse();
                }
                let end = (at + width).min(bytes.len());
                bytes[at..end].copy_from_slice(&number[..end - at]);
            }
        }
    }
    bytes
}

/// How many cases: `CASES`, else this.
fn cases(usual: u64) -> u64 {
    let asked = std::env::var("CASES").ok().and_then(|it| it.parse().ok());
    asked.unwrap_or(usual)
}

/// Feeds the input and its changed forms; no case takes more memory than the ceiling.
fn feed(what: &str, inputs: &[Vec<u8>], count: u64, ceiling: u64, parse: &mut dyn FnMut(&[u8])) {
    let mut most = 0;
    for seed in 1..=cases(count) {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let whole = &inputs[usize::try_from(random.below(inputs.len() as u64)).unwrap()];
        let case = if seed == 1 {
            whole.clone()
        } else {
            changed(&mut random, whole)
        };
        let used = allocation_counter::measure(|| parse(&case)).bytes_max;
        assert!(
            used <= ceiling,
            "{what}: case {seed} took {used} bytes, allowed are {ceiling}"
        );
        most = most.max(used);
    }
    println!("{what}: {} cases, at most {most} bytes", cases(count));
}

/// What a parser of text is given besides its own kind.
fn found() -> Vec<Vec<u8>> {
    let nested = |open: &str, close: &str| [open.repeat(20_000), close.repeat(20_000)].concat();
    let texts = [
        String::new(),
        "\u{0}".to_owned(),
        nested("[", "]"),
        nested("{\"a\":", "}"),
        nested("<a>", "</a>"),
        "9".repeat(10_000),
        "-".repeat(10_000),
        "&a;".repeat(10_000),
    ];
    texts.map(String::into_bytes).to_vec()
}

#[test]
fn the_tree_of_a_database() {
    let whole = database();
    let mut ends = [0, 0];
    feed("database", &[whole], 20_000, 4 * MIB, &mut |bytes| {
        let end = bolt::walk(&mut &*bytes, &mut |_| ());
        ends[usize::from(end.is_ok())] += 1;
    });
    assert!(ends[0] > 1000 && ends[1] > 0, "{ends:?}");
}

#[test]
fn frames_of_a_snapshot() {
    let packed = |content: &[u8]| {
        let mut packed = Vec::new();
        let mut sink = |bytes: &[u8]| {
            packed.extend_from_slice(bytes);
            Ok(())
        };
        let mut writer = FrameWriter::new().unwrap();
        writer.write(content, &mut sink).unwrap();
        writer.finish(&mut sink).unwrap();
        packed
    };
    let whole = packed(&unpacked(include_bytes!("snapshot.db.zst")));
    // A frame of a megabyte that is one byte again and again packs to a few.
    let bomb = packed(&vec![0; 64 << 20]);
    feed("frames", &[whole, bomb], 3000, 16 * MIB, &mut |bytes| {
        if let Ok(mut frames) = FrameReader::open(bytes) {
            let _ = frames.copy_to(&mut |_| Ok(()));
        }
    });
}

#[test]
fn a_file_that_is_called_a_snapshot() {
    let dir = Dir::new("snapshot");
    let inputs = [
        unpacked(include_bytes!("snapshot.db.zst")),
        include_bytes!("snapshot.db.zst").to_vec(),
    ];
    let path = dir.0.join("file");
    feed("snapshot", &inputs, 3000, 16 * MIB, &mut |bytes| {
        fs::write(&path, bytes).unwrap();
        let _ = verify::examine(&path, &mut |_| ());
    });
}

#[test]
fn the_log_of_an_etcd() {
    let dir = Dir::new("log");
    let wal = dir.0.join("member/wal");
    fs::create_dir_all(&wal).unwrap();
    fs::create_dir_all(dir.0.join("member/snap")).unwrap();
    let database = database();
    let path = wal.join("0000000000000000-0000000000000000.wal");
    let line = Some(Line::V3_6);
    feed(
        "log",
        &[unpacked(include_bytes!("log.wal.zst"))],
        3000,
        16 * MIB,
        &mut |bytes| {
            fs::write(&path, bytes).unwrap();
            fs::write(dir.0.join("member/snap/db"), &database).unwrap();
            let _ = data_dir::look(&dir.0, line, true);
            let _ = examine::examine(&dir.0, line);
        },
    );
}

#[test]
fn manifests_names_bundles_and_records() {
    let name = "shop-0-20261121T131500Z-r12-0000000a";
    let manifest: Manifest = serde_json::from_str(MANIFEST).unwrap();
    let manifest = manifest.encode();
    assert!(Manifest::decode(&manifest, name).is_ok());
    let inputs = [vec![manifest, name.into()], found()].concat();
    feed("manifest", &inputs, 20_000, 4 * MIB, &mut |bytes| {
        if let Ok(it) = Manifest::decode(bytes, name) {
            let _ = (it.signer().map(str::len), it.created(), it.revision.held());
        }
        let _ = String::from_utf8_lossy(bytes).parse::<SnapshotName>();
    });
    let bundle = br#"{"cluster":"shop","bundle":{"authorities":{"peer-ca":{"ca.crt":"-----BEGIN CERTIFICATE-----"}},"signer":"pem","clients":{}},"signed":{"by":"ed25519:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=","signature":"AAAA"}}"#.to_vec();
    let identity = br#"{"cluster":{"name":"shop","token":"t","id":"a","jumps":[{"from":1,"to":9}]},"member":{"name":"shop-0","version":"3.6.0","quota":1,"machineID":"m"}}"#.to_vec();
    let inputs = [vec![bundle, identity], found()].concat();
    feed("bundle, identity", &inputs, 20_000, 4 * MIB, &mut |bytes| {
        if let Ok(it) = serde_json::from_slice::<SignedBundle>(bytes) {
            let _ = (it.signer("shop").is_some(), it.bundle().fingerprint());
        }
        if let Ok(it) = serde_json::from_slice::<IdentityFile>(bytes) {
            let _ = (it.clusters(), it.to_identity());
        }
    });
}

#[test]
fn records_in_the_state_directory() {
    let dir = Dir::new("state");
    let path = dir.0.join("identity.json");
    let identity: IdentityFile = serde_json::from_str(
        r#"{"cluster": {"name": "shop", "token": "t", "id": "a"},
            "member": {"name": "shop-0", "version": "3.6.0", "quota": 1, "machineID": "m"}}"#,
    )
    .unwrap();
    etcd_operator::state::save(&path, &identity).unwrap();
    let inputs = [vec![fs::read(&path).unwrap()], found()].concat();
    feed("state", &inputs, 3000, 4 * MIB, &mut |bytes| {
        fs::write(&path, bytes).unwrap();
        let _ = etcd_operator::state::load::<IdentityFile>(&path);
        let _ = fs::remove_file(path.with_extension("json.previous"));
    });
}

#[test]
fn documents() {
    let document = b"apiVersion: etcd.edge-operator.io/v1alpha1\nkind: EtcdCluster\nmetadata: {name: shop}\nspec:\n  size: 1\n  storage: {quota: 512Mi}\n  backup:\n    interval: 6h\n    destinations: [{local: {path: /mnt/usb, maxBytes: 2Gi}}]\n    trustedSigners: ['ed25519:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=']\n";
    let inputs = [vec![document.to_vec()], found()].concat();
    feed("document", &inputs, 3000, 64 * MIB, &mut |bytes| {
        let _ = etcd_operator::document::parse(bytes);
    });
}

const MANIFEST: &str = r#"{
    "format": 1, "name": "shop-0-20261121T131500Z-r12-0000000a", "cluster": "shop", "clusterID": "00000000000000aa",
    "member": "shop-0", "memberID": "00000000000000bb", "etcdVersion": "3.6.14", "operatorVersion": "0.1.0",
    "created": "2026-11-21T13:15:00Z", "bootId": "b", "sinceBoot": 7, "class": "scheduled",
    "revision": {"before": 12, "snapshot": 12, "after": 13}, "entries": 30, "hash": "0000000a",
    "database": {"size": 20480, "inUse": 16384, "sha256": "cc"},
    "file": {"codec": "zstd", "size": 900, "sha256": "dd"}, "verified": {"level": 3},
    "signed": {"by": "ed25519:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", "signature": "AAAA"}, "checksum": ""
}"#;

/// A directory of this test's own.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("hostile-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Dir(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
