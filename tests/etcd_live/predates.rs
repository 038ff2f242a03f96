//! Data of etcd 3.4, which this operator does not run: its database, and its whole directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::lab::{Lab, etcd_dir, free_ports, text};
use crate::restore::json;

const WRITES: usize = 50;

/// The data directory of an etcd 3.4 that was killed right after it had acknowledged writes.
fn left_by_3_4(lab: &Lab) -> PathBuf {
    let dir = lab.root.join("of 3.4");
    let ([client, peer, _], _held) = free_ports();
    let own = format!("http://127.0.0.1:{peer}");
    let clients = format!("http://127.0.0.1:{client}");
    let mut etcd = Command::new(etcd_dir("3.4").join("etcd"))
        .args(["--name", "one", "--data-dir", dir.to_str().unwrap()])
        .args(["--listen-peer-urls", &own])
        .args(["--initial-advertise-peer-urls", &own])
        .args(["--listen-client-urls", &clients])
        .args(["--advertise-client-urls", &clients])
        .args(["--initial-cluster", &format!("one={own}")])
        .stderr(fs::File::create(lab.root.join("3.4.log")).unwrap())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    for number in 0..WRITES {
        let key = format!("key/{number:05}");
        loop {
            let mut put = Command::new(lab.etcd.join("etcdctl"));
            let put = put.args(["--endpoints", &clients, "put", &key, "value"]);
            let said = put.output().unwrap();
            if said.status.success() {
                break;
            }
            let said = text(&said.stderr);
            assert!(begun.elapsed() < Duration::from_secs(20), "{said}");
        }
    }
    etcd.kill().unwrap();
    etcd.wait().unwrap();
    dir
}

/// What a restore from there says on standard error, and whether it was done.
fn restore(lab: &Lab, from: &Path) -> (bool, String) {
    let from = from.to_str().unwrap();
    let unsigned = ["--trust", "unsigned", "--other-cluster", "--from", from];
    let output = lab.operator(&[&["restore", "--yes"], &unsigned[..]].concat());
    (output.status.success(), text(&output.stderr))
}

/// The database alone lacks what only the log holds, which is said; the directory lacks nothing.
#[test]
fn data_that_etcd_3_4_left_is_restored_by_3_5_and_3_6() {
    for line in ["3.5", "3.6", "3.7"] {
        let mut lab = Lab::new(line);
        lab.start_agent();
        lab.wait_available();
        let dir = left_by_3_4(&lab);
        let database = dir.join("member/snap/db");
        let told = json(
            &lab,
            &["restore", "--dry-run", "--from", database.to_str().unwrap()],
        );
        let (done, said) = restore(&lab, &database);
        assert!(done && said.contains("cannot be counted"), "{line}: {said}");
        lab.wait_available();
        let there = lab.filled();
        assert_eq!(told["snapshotRevision"], there + 1, "{line}: {told}");
        let (done, said) = restore(&lab, &dir);
        if line == "3.7" {
            let first = "set version to a patch of 3.6 first";
            assert!(!done && said.contains(first), "{said}");
            assert_eq!(lab.filled(), there);
            continue;
        }
        assert!(done, "{line}: {said}");
        lab.wait_available();
        assert_eq!(lab.filled(), WRITES, "{line}");
    }
}
