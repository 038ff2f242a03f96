//! What the walk says of databases of every shape, beside `etcdutl snapshot status` of the same line.

use std::fs;
use std::path::Path;

use etcd_client::{LeaseGrantOptions, PutOptions};
use serde_json::Value;

use crate::lab::text;
use crate::stage::{Stage, etcdutl, status, unpack};

const MIB: usize = 1 << 20;
const MANY: u32 = 40_000;

/// etcdutl counts as many entries as we do only in 3.5: from 3.6 on it counts live keys.
const COUNTS_ENTRIES: &str = "3.5";

/// Takes a snapshot and compares what its manifest says with etcd's own word.
fn taken(stage: &Stage, line: &str, shape: &str) -> u64 {
    let (file, manifest) = stage.saved();
    let raw = stage.lab.root.join("raw.db");
    unpack(&file, &raw);
    let said = status(line, &raw);
    let hash = u32::from_str_radix(&manifest.hash, 16).unwrap();
    assert_eq!(said["hash"], hash, "{shape}");
    assert_eq!(said["revision"], manifest.revision.snapshot, "{shape}");
    assert_eq!(said["totalSize"], manifest.database.size, "{shape}");
    let counted = status(COUNTS_ENTRIES, &raw);
    assert_eq!(counted["totalKey"], manifest.entries, "{shape}");
    assert_eq!(counted["hash"], hash, "{shape}");
    assert_eq!(manifest.verified.level, 3);
    println!(
        "etcd {line}, {shape}: {} MiB, {} entries, hash {}",
        manifest.database.size >> 20,
        manifest.entries,
        manifest.hash
    );
    manifest.database.size
}

/// Compares what `verify-snapshot` says of a file with etcd's own word.
fn file(stage: &Stage, line: &str, path: &Path, checksummed: bool, shape: &str) -> Value {
    let ours = stage.examined(path);
    let said = status(line, path);
    let hash = u32::from_str_radix(ours["hash"].as_str().unwrap(), 16).unwrap();
    assert_eq!(said["hash"], hash, "{shape}");
    assert_eq!(said["revision"], ours["revision"], "{shape}");
    assert_eq!(said["totalSize"], ours["totalSize"], "{shape}");
    let counted = status(COUNTS_ENTRIES, path);
    assert_eq!(counted["totalKey"], ours["totalKeys"], "{shape}");
    assert_eq!(ours["checksummed"], checksummed, "{shape}");
    println!("etcd {line}, {shape}: {ours}");
    ours
}

fn leases(stage: &Stage) {
    stage.client(async |mut client| {
        for number in 0..50 {
            let options = LeaseGrantOptions::new().with_id(1000 + number);
            let lease = client.lease_grant(3600, Some(options)).await.unwrap().id();
            let options = PutOptions::new().with_lease(lease);
            let key = format!("leased/{number}");
            client.put(key, "held", Some(options)).await.unwrap();
        }
        client.lease_revoke(1007).await.unwrap();
    });
}

/// One member through all shapes; `large`: bytes of values of 1 MiB.
fn every_shape(line: &str, large: usize) {
    let mut stage = Stage::with(line, "", "options: {maxRequestSize: 4Mi}");
    taken(&stage, line, "nothing was ever written");
    leases(&stage);
    taken(&stage, line, "leases");
    stage.fill("small", MANY, 20);
    taken(&stage, line, "many small keys");
    stage.fill("small", MANY / 2, 30);
    stage.etcdctl(&["del", "--prefix", "small/01"]);
    taken(&stage, line, "overwritten and deleted keys");
    stage.compact();
    taken(&stage, line, "the same, compacted");
    stage.fill("large", u32::try_from(large / MIB).unwrap(), MIB);
    let size = taken(&stage, line, "values of 1 MiB");
    assert!(size > large as u64);
    let (packed, _) = stage.stored(stage.entries()[0].name.to_string().as_str());
    assert_eq!(stage.examined(&packed)["totalSize"], size, "packed");
    // A database that etcd grew ahead of its pages, and one full of free pages.
    stage.etcdctl(&["del", "--prefix", "large/"]);
    stage.etcdctl(&["put", "after", "1"]);
    stage.compact();
    stage.fill("after", 500, 100);
    let fragmented = taken(&stage, line, "full of free pages");
    assert!(fragmented >= size, "{fragmented} {size}");
    let saved = stage.lab.root.join("by-etcdctl.db");
    let path = saved.to_str().unwrap();
    stage.etcdctl(&["snapshot", "save", path]);
    let ours = file(&stage, line, &saved, true, "by etcdctl snapshot save");
    assert_eq!(ours["totalSize"], fragmented);
    stage.etcdctl(&["defrag", "--command-timeout", "60s"]);
    stage.etcdctl(&["put", "after", "2"]);
    let defragmented = taken(&stage, line, "defragmented");
    assert!(defragmented < fragmented / 4, "{defragmented}");
    let restored = stage.lab.root.join("restored");
    let dir = restored.to_str().unwrap();
    let output = etcdutl(line, &["snapshot", "restore", path, "--data-dir", dir]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let db = restored.join("member/snap/db");
    file(&stage, line, &db, false, "by etcdutl snapshot restore");
    let output = etcdutl(line, &["defrag", "--data-dir", dir]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    file(&stage, line, &db, false, "by etcdutl defrag");
    let bumped = stage.lab.root.join("bumped");
    let dir = bumped.to_str().unwrap();
    let mut restore = vec!["snapshot", "restore", path, "--data-dir", dir];
    restore.extend(["--bump-revision", "1000000", "--mark-compacted"]);
    let output = etcdutl(line, &restore);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let db = bumped.join("member/snap/db");
    let ours = file(&stage, line, &db, false, "with a bumped revision");
    assert!(ours["revision"].as_i64().unwrap() > 1_000_000);
    stage.stop();
    let copy = stage.lab.root.join("copy.db");
    fs::copy(stage.lab.data("member/snap/db"), &copy).unwrap();
    file(&stage, line, &copy, false, "copied from a stopped member");
}

#[test]
fn the_walk_says_what_etcdutl_3_5_says_of_every_shape() {
    every_shape("3.5", 72 * MIB);
}

#[test]
fn the_walk_says_what_etcdutl_3_6_and_3_5_say_of_every_shape() {
    every_shape("3.6", 24 * MIB);
}

#[test]
fn the_walk_says_what_etcdutl_3_7_says_of_every_shape() {
    every_shape("3.7", 24 * MIB);
}

/// So that the comparison above is one: one other byte in a value, and both say another hash.
#[test]
fn another_byte_in_a_value_is_another_hash() {
    let stage = Stage::new("3.6");
    stage.etcdctl(&["put", "key", "a-value-to-look-for"]);
    let raw = stage.lab.root.join("raw.db");
    let (packed, manifest) = stage.saved();
    unpack(&packed, &raw);
    let mut bytes = fs::read(&raw).unwrap();
    bytes.truncate(bytes.len() - 32);
    let words = b"a-value-to-look-for";
    let mut found = 0;
    for at in 0..bytes.len() - words.len() {
        if bytes[at..].starts_with(words) {
            bytes[at] = b'A';
            found += 1;
        }
    }
    assert!(found > 0);
    fs::write(&raw, &bytes).unwrap();
    let ours = stage.examined(&raw);
    assert_ne!(ours["hash"], manifest.hash);
    let hash = u32::from_str_radix(ours["hash"].as_str().unwrap(), 16).unwrap();
    assert_eq!(status("3.6", &raw)["hash"], hash);
}
