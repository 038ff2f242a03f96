//! The arm64 operator and etcd on this machine's kernel, by user emulation.

use std::fs;
use std::time::{Duration, Instant};

use crate::cell::{Cell, etcd};
use crate::lab::{condition, skip, text};

#[test]
fn the_arm64_operator_keeps_an_arm64_etcd_alive() {
    let mut cell = match Cell::new("life") {
        Ok(cell) => cell,
        Err(why) => return skip(&why),
    };
    cell.install_etcd();
    cell.write_document();
    cell.start_agent();
    let status = cell.wait_available();
    assert_eq!(status["version"], cell.version.as_str());
    assert_eq!(condition(&status, "CertificatesValid").0, "True");
    cell.put("born", "on arm64");
    let without = cell.etcdctl(&["--cert", "", "--key", "", "get", "born"]);
    assert!(!without.status.success(), "mutual TLS, also on arm64");

    let pid = status["host"]["etcd"]["pid"].clone();
    cell.signal("KILL", &pid.to_string());
    let status = cell.wait("a new etcd", |it| {
        it["host"]["etcd"]["pid"].is_u64()
            && it["host"]["etcd"]["pid"] != pid
            && condition(it, "Available").0 == "True"
    });
    assert_eq!(cell.get("born"), "on arm64");

    let pid = status["host"]["etcd"]["pid"].clone();
    for signal in ["TERM", "KILL"] {
        cell.end_agent(signal);
        cell.put("without", signal);
        cell.start_agent();
        let status = cell.wait_available();
        assert_eq!(
            status["host"]["etcd"]["pid"], pid,
            "adopted after SIG{signal}"
        );
        assert_eq!(cell.get("without"), signal);
    }
}

#[test]
fn an_etcd_for_another_machine_is_refused_on_arm64() {
    let mut cell = match Cell::new("strange") {
        Ok(cell) => cell,
        Err(why) => return skip(&why),
    };
    let amd64 = fs::read(crate::lab::etcd_dir("3.6").join("etcd")).unwrap();
    let mut armv7 = amd64.clone();
    (armv7[4], armv7[18]) = (1, 40); // 32 bit, ARM: what a Pi's 32-bit system would bring
    let strange = [
        ("x86-64", amd64),
        ("ARMv7", armv7),
        ("no program", b"#!/bin/sh\n".to_vec()),
    ];
    let from = cell.root.join("from");
    fs::create_dir(&from).unwrap();
    for (what, bytes) in &strange {
        fs::write(from.join("etcd"), bytes).unwrap();
        let refused = cell.operator(&[
            "etcd",
            "install",
            "--from",
            from.to_str().unwrap(),
            &cell.version,
        ]);
        assert_eq!(refused.status.code(), Some(1), "{what}");
        let words = text(&refused.stderr);
        assert!(
            words.contains("is not a program for this machine (aarch64)"),
            "{what}: {words}"
        );
    }
    // It came into the store some other way, as with a disk that was copied from another machine.
    cell.install_etcd();
    let stored = cell.root.join(format!(
        "var/lib/etcd-operator/store/etcd-{}/etcd",
        cell.version
    ));
    cell.write_document();
    for (_, bytes) in &strange {
        fs::write(&stored, bytes).unwrap();
        cell.start_agent();
        let status = cell.wait("the hold", |it| {
            it["plan"]["hold"] == "BinaryWrongArchitecture"
        });
        assert_eq!(
            condition(&status, "Available"),
            ("False", "BinaryWrongArchitecture")
        );
        assert_eq!(status["host"]["etcd"]["pid"], serde_json::Value::Null);
        cell.end_agent("TERM");
    }
    fs::copy(etcd("3.6").join("etcd"), &stored).unwrap();
    let begin = Instant::now();
    cell.start_agent();
    cell.wait_available();
    assert!(begin.elapsed() < Duration::from_secs(60));
}
