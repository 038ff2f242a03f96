//! Every check of the guard: the operator is away, the damage is done, etcd's start is refused with
//! the reason, the data stays as it is, and the operator that returns shows that reason.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use etcd_operator::cluster::Timestamp;
use etcd_operator::member::records::IdentityFile;
use etcd_operator::state;
use etcd_operator::tls::{Certificates, Leaves, Validity};
use serde_json::Value;

use crate::lab::{Lab, condition, program, skip, text};
use crate::tools::{break_pem, garbage_meta, garbage_pages, open};

const KEYS: u32 = 20;

/// A member that has served; then the operator was killed, and etcd after it.
fn served() -> Lab {
    served_by(Lab::new("3.6"))
}

fn served_by(mut lab: Lab) -> Lab {
    lab.start_agent();
    lab.wait_available();
    lab.fill(KEYS);
    lab.kill_agent();
    lab.kill_etcd();
    lab
}

/// A member that has served from a directory that its document names.
fn served_at(name: &str) -> (Lab, PathBuf) {
    let mut lab = Lab::new("3.6");
    let dir = lab.root.join(name);
    fs::create_dir(&dir).unwrap();
    lab.store_at(&dir);
    (served_by(lab), dir)
}

/// The guard refuses with this reason, whoever asks; the operator returns and shows it.
fn refused(lab: &mut Lab, reason: &str) -> Value {
    let before = lab.fingerprints();
    let words = guard_refuses(lab, reason);
    lab.start_agent();
    let status = lab.wait_hold(reason);
    assert_eq!(condition(&status, "Available"), ("False", reason));
    let message = status["plan"]["message"].as_str().unwrap();
    assert!(words.contains(message), "{words}: {message}");
    assert_eq!(lab.etcd_pid(), None);
    assert_eq!(lab.fingerprints(), before, "the data is untouched");
    status
}

fn guard_refuses(lab: &Lab, reason: &str) -> String {
    for detach in [false, true] {
        let (code, words) = lab.guard_as(detach);
        assert_eq!(code, 3, "{words}");
        assert!(words.contains(&format!(" {reason}: ")), "{words}");
        let left = fs::read_to_string(lab.run("refusal.json")).unwrap();
        assert!(left.contains(reason), "for the operator: {left}");
        if detach {
            return words;
        }
    }
    unreachable!()
}

/// The cause went, and nobody asked for another try.
fn heals(lab: &Lab) {
    lab.wait_available();
    assert_eq!(lab.filled(), KEYS as usize);
}

#[test]
fn the_guard_alone_starts_etcd_again() {
    let lab = served();
    let (code, words) = lab.guard();
    assert_eq!(code, 0, "{words}");
}

#[test]
fn no_binary_in_the_store() {
    let mut lab = served();
    let binary = lab.lib(&format!("store/etcd-{}/etcd", lab.version));
    let aside = lab.root.join("etcd-aside");
    fs::rename(&binary, &aside).unwrap();
    refused(&mut lab, "BinaryMissing");
    fs::rename(aside, binary).unwrap();
    heals(&lab);
}

#[test]
fn a_binary_for_another_machine() {
    let mut lab = served();
    let binary = lab.lib(&format!("store/etcd-{}/etcd", lab.version));
    let aside = lab.root.join("etcd-aside");
    fs::rename(&binary, &aside).unwrap();
    for strange in [&b"#!/bin/sh\n"[..], &elf_for_another_machine(&aside)] {
        fs::write(&binary, strange).unwrap();
        guard_refuses(&lab, "BinaryWrongArchitecture");
    }
    refused(&mut lab, "BinaryWrongArchitecture");
    fs::rename(aside, binary).unwrap();
    heals(&lab);
}

#[test]
fn a_binary_that_was_changed_after_its_installation() {
    let mut lab = served();
    let binary = lab.lib(&format!("store/etcd-{}/etcd", lab.version));
    let mut bytes = fs::read(&binary).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    let aside = lab.root.join("etcd-aside");
    fs::rename(&binary, &aside).unwrap();
    fs::write(&binary, &bytes).unwrap();
    guard_refuses(&lab, "BinaryChanged");
    refused(&mut lab, "BinaryChanged");
    // The same bytes at another time are the same program.
    fs::remove_file(&binary).unwrap();
    fs::copy(&aside, &binary).unwrap();
    heals(&lab);
}

/// The first bytes of a program, with the machine of its header changed.
fn elf_for_another_machine(program: &Path) -> Vec<u8> {
    let mut bytes = fs::read(program).unwrap();
    bytes.truncate(4096);
    bytes[18] = if cfg!(target_arch = "x86_64") {
        183
    } else {
        62
    };
    bytes
}

#[test]
fn a_file_system_that_loses_data() {
    let (mut lab, dir) = served_at("disk");
    if lab.spec.contains("unsafeFilesystem") {
        return skip("this directory lies on such a file system itself");
    }
    let aside = lab.root.join("disk-aside");
    copy_dir(&dir, &aside);
    let Some(mount) = Mount::new(&["-t", "tmpfs", "none"], &dir) else {
        return;
    };
    copy_dir(&aside, &dir);
    refused(&mut lab, "FilesystemUnsafe");
    drop(mount);
    heals(&lab);
}

#[test]
fn a_disk_that_turned_read_only() {
    let (mut lab, dir) = served_at("disk");
    let source = dir.to_str().unwrap();
    let Some(mount) = Mount::new(&["--bind", source], &dir) else {
        return;
    };
    mount.again("remount,bind,ro");
    refused(&mut lab, "FilesystemReadOnly");
    mount.again("remount,bind,rw");
    heals(&lab);
}

/// The operator's own state lies on it too: the usual end of an SD card.
#[test]
fn a_root_disk_that_turned_read_only() {
    let mut lab = served();
    let dir = lab.lib("");
    let source = dir.to_str().unwrap().to_owned();
    let Some(mount) = Mount::new(&["--bind", &source], &dir) else {
        return;
    };
    mount.again("remount,bind,ro");
    refused(&mut lab, "FilesystemReadOnly");
    mount.again("remount,bind,rw");
    heals(&lab);
}

#[test]
fn nothing_is_born_on_a_file_system_that_loses_data() {
    let mut lab = Lab::new("3.6");
    let dir = lab.root.join("memory");
    fs::create_dir(&dir).unwrap();
    let Some(_mount) = Mount::new(&["-t", "tmpfs", "none"], &dir) else {
        return;
    };
    if lab.spec.contains("unsafeFilesystem") {
        return skip("this directory lies on such a file system itself");
    }
    lab.store_at(&dir);
    lab.start_agent();
    let status = lab.wait_hold("FilesystemUnsafe");
    assert!(message(&status).contains("tmpfs"));
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
}

/// Frozen as by a hanging disk. A process that asks such a disk cannot even end before it answers,
/// so the guard's words are read from the file that it leaves.
#[test]
fn a_disk_that_does_not_answer() {
    let (mut lab, dir) = served_at("disk");
    let aside = lab.root.join("disk-aside");
    copy_dir(&dir, &aside);
    let image = lab.root.join("disk.img");
    fs::File::create(&image)
        .unwrap()
        .set_len(400 << 20)
        .unwrap();
    let made = Command::new("mkfs.ext4").arg("-q").arg(&image).status();
    if !made.is_ok_and(|it| it.success()) {
        return skip("mkfs.ext4 is missing");
    }
    let from = image.to_str().unwrap();
    let Some(_mount) = Mount::new(&["-o", "loop", from], &dir) else {
        return;
    };
    copy_dir(&aside, &dir);
    let Some(frozen) = Frozen::new(&dir) else {
        return;
    };
    let mut guard = Command::new(program())
        .args(["guard", "--root"])
        .arg(&lab.root)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    lab.start_agent();
    // A status of its own, before the agent answers, could not end either.
    let begin = Instant::now();
    let told = || {
        let left = fs::read_to_string(lab.run("refusal.json")).unwrap_or_default();
        left.contains("FilesystemStalled") && lab.log().contains("reason=FilesystemStalled")
    };
    while !told() && begin.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(told(), "{}", lab.log());
    lab.wait_hold("FilesystemStalled");
    // However often it looks, one question is open.
    let threads = threads_of(lab.agent_pid());
    for _ in 0..5 {
        let reads = lab.log().matches("document read again").count();
        lab.signal_agent("HUP");
        lab.wait("another look", |it| {
            lab.log().matches("document read again").count() > reads
                && it["plan"]["hold"] == "FilesystemStalled"
        });
    }
    assert!(threads_of(lab.agent_pid()) <= threads);
    drop(frozen);
    assert_eq!(guard.wait().unwrap().code(), Some(3));
    heals(&lab);
}

#[test]
fn a_directory_for_the_data_that_is_gone() {
    let (mut lab, dir) = served_at("disk");
    let aside = lab.root.join("disk-aside");
    fs::rename(&dir, &aside).unwrap();
    refused(&mut lab, "StorageMissing");
    assert!(!dir.exists(), "nobody makes it");
    fs::rename(aside, dir).unwrap();
    heals(&lab);
}

#[test]
fn a_disk_that_is_not_mounted() {
    let (mut lab, dir) = served_at("disk");
    let aside = lab.root.join("disk-aside");
    fs::rename(&dir, &aside).unwrap();
    fs::create_dir(&dir).unwrap();
    refused(&mut lab, "DataDirMissing");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "nothing is born");
    fs::remove_dir(&dir).unwrap();
    fs::rename(aside, dir).unwrap();
    heals(&lab);
}

/// The data of nobody knows whom lies where ours should be: that is not "missing".
#[test]
fn a_disk_with_data_and_nothing_that_says_whose() {
    let (mut lab, dir) = served_at("disk");
    for name in ["identity.json", "identity.json.previous"] {
        fs::rename(dir.join(name), lab.root.join(name)).unwrap();
    }
    refused(&mut lab, "DataForeign");
    fs::rename(lab.root.join("identity.json"), dir.join("identity.json")).unwrap();
    heals(&lab);
}

/// The power went while the cluster was born, before its log was there: nobody was ever served.
#[test]
fn an_interrupted_birth_is_set_aside_and_begun_anew() {
    let mut lab = served();
    for name in ["identity.json", "identity.json.previous"] {
        let path = lab.lib("member").join(name);
        let born: Option<IdentityFile> = state::load(&path).unwrap();
        let unserved = born.unwrap().without_ids();
        state::save(&path, &unserved).unwrap();
    }
    // Nobody had looked at it: the power went within the first second of its life.
    fs::remove_file(lab.run("seen.json")).unwrap();
    fs::rename(lab.data("member/wal"), lab.root.join("wal-aside")).unwrap();
    let left = fs::read(lab.data("member/snap/db")).unwrap();
    let (code, words) = lab.guard();
    assert_eq!(code, 0, "{words}");
    let aside = lab.lib("member/data.birth-interrupted-1/member/snap/db");
    assert!(fs::read(aside).unwrap() == left, "kept as it was");
    lab.start_agent();
    lab.wait_available();
    assert_eq!(lab.filled(), 0);
}

#[test]
fn a_data_directory_that_is_gone() {
    let mut lab = served();
    let aside = lab.root.join("data-aside");
    fs::rename(lab.data(""), &aside).unwrap();
    refused(&mut lab, "DataDirMissing");
    assert!(!lab.data("member").exists(), "nothing is born");
    let _ = fs::remove_dir(lab.data(""));
    fs::rename(aside, lab.data("")).unwrap();
    heals(&lab);
}

#[test]
fn a_log_that_is_gone() {
    let mut lab = served();
    let aside = lab.root.join("wal-aside");
    fs::rename(lab.data("member/wal"), &aside).unwrap();
    let status = refused(&mut lab, "DataDirIncomplete");
    assert!(message(&status).contains("write-ahead log is missing"));
    fs::rename(aside, lab.data("member/wal")).unwrap();
    heals(&lab);
}

#[test]
fn a_database_that_is_gone() {
    let mut lab = served();
    let aside = lab.root.join("db-aside");
    fs::rename(lab.data("member/snap/db"), &aside).unwrap();
    // A log that no longer begins at the beginning.
    let first = lab.data("member/wal/0000000000000000-0000000000000000.wal");
    let later = lab.data("member/wal/0000000000000001-0000000000000005.wal");
    fs::rename(&first, &later).unwrap();
    let status = refused(&mut lab, "DataDirIncomplete");
    assert!(message(&status).contains("database is missing"));
    fs::rename(later, first).unwrap();
    fs::rename(aside, lab.data("member/snap/db")).unwrap();
    heals(&lab);
}

#[test]
fn a_document_of_another_cluster() {
    let mut lab = served();
    // The guard goes by what was launched, and the agent by the last document that was sound: an edit
    // alone stops nobody.
    lab.name = "other".to_owned();
    lab.write_document();
    lab.start_agent();
    let status = lab.wait_available();
    let told = condition(&status, "DocumentAccepted");
    assert_eq!(told, ("False", "DocumentOfAnotherCluster"), "{status:#}");
    assert!(
        status.to_string().contains("line 4: metadata.name"),
        "{status:#}"
    );
    lab.kill_agent();
    lab.kill_etcd();
    // With no document that was ever sound nothing is started, and nothing is touched.
    for name in ["document.json", "document.json.previous"] {
        let _ = fs::remove_file(lab.lib(name));
    }
    let before = lab.fingerprints();
    lab.start_agent();
    let status = lab.wait_hold("DocumentOfAnotherCluster");
    assert_eq!(condition(&status, "Available").0, "False");
    assert!(message(&status).contains("keeps the cluster lab"));
    assert_eq!(lab.fingerprints(), before);
    lab.kill_agent();
    // The identity of another cluster beside this launch is the same mistake.
    let mut other = Lab::new("3.6");
    other.name = "other".to_owned();
    other.write_document();
    let other = served_by(other);
    let own = fs::read(lab.lib("member/identity.json")).unwrap();
    fs::copy(
        other.lib("member/identity.json"),
        lab.lib("member/identity.json"),
    )
    .unwrap();
    guard_refuses(&lab, "DocumentOfAnotherCluster");
    fs::write(lab.lib("member/identity.json"), own).unwrap();
    lab.name = "lab".to_owned();
    lab.write_document();
    lab.start_agent();
    heals(&lab);
}

#[test]
fn a_disk_of_another_cluster() {
    let (mut lab, dir) = served_at("disk");
    let mut other = Lab::new("3.6");
    other.name = "other".to_owned();
    let strange = other.root.join("disk");
    fs::create_dir(&strange).unwrap();
    other.store_at(&strange);
    let _other = served_by(other);
    swap(&dir, &strange);
    let status = refused(&mut lab, "StorageOfAnotherCluster");
    assert!(message(&status).contains("the cluster other"));
    swap(&dir, &strange);
    heals(&lab);
}

#[test]
fn the_data_of_another_cluster() {
    let mut lab = served();
    let other = served();
    swap(&lab.data(""), &other.data(""));
    refused(&mut lab, "DataOfAnotherCluster");
    swap(&lab.data(""), &other.data(""));
    heals(&lab);
}

#[test]
fn the_data_of_an_etcd_that_was_not_started_here() {
    let other = served();
    let mut lab = Lab::new("3.6");
    fs::create_dir_all(lab.lib("member")).unwrap();
    copy_dir(&other.data(""), &lab.data(""));
    let before = lab.fingerprints();
    let (code, words) = lab.guard();
    assert_eq!(code, 1, "nothing was ever launched: {words}");
    lab.start_agent();
    let status = lab.wait_hold("DataForeign");
    assert_eq!(condition(&status, "Available"), ("False", "DataForeign"));
    assert_eq!(lab.fingerprints(), before);
    assert!(!lab.lib("member/identity.json").exists(), "not adopted");
    // The same with a launch record, as after the loss of the identity alone.
    lab.kill_agent();
    let mut lab = served();
    let identity = lab.lib("member/identity.json");
    fs::rename(&identity, lab.root.join("identity-aside")).unwrap();
    let previous = lab.lib("member/identity.json.previous");
    fs::rename(&previous, lab.root.join("previous-aside")).unwrap();
    refused(&mut lab, "DataForeign");
    fs::rename(lab.root.join("identity-aside"), identity).unwrap();
    heals(&lab);
}

/// The root disk was replaced and the disk with the data was not: what lies beside the data says
/// whose it is.
#[test]
fn a_new_root_disk_adopts_the_data_of_its_cluster() {
    let (mut lab, _dir) = served_at("disk");
    let id = lab.status()["clusterID"].clone();
    fs::rename(lab.lib("member"), lab.root.join("member-aside")).unwrap();
    fs::rename(lab.lib("tls"), lab.root.join("tls-aside")).unwrap();
    lab.start_agent();
    let status = lab.wait_available();
    assert_eq!(lab.filled(), KEYS as usize);
    assert!(id.is_null() || status["clusterID"] == id);
    // Only its own cluster's.
    lab.kill_agent();
    lab.kill_etcd();
    fs::rename(lab.lib("member"), lab.root.join("member-aside-2")).unwrap();
    lab.name = "other".to_owned();
    lab.write_document();
    let before = lab.fingerprints();
    lab.start_agent();
    let status = lab.wait_hold("StorageOfAnotherCluster");
    assert!(message(&status).contains("the cluster lab"));
    assert_eq!(lab.fingerprints(), before);
}

#[test]
fn data_that_another_process_has_open() {
    let mut lab = served();
    let held = open(&lab.data("member/snap/db"));
    held.lock().unwrap();
    refused(&mut lab, "DataInUse");
    drop(held);
    heals(&lab);
}

#[test]
fn certificates_that_cannot_be_made() {
    let mut lab = served();
    let authority = lab.lib("tls/client-ca/ca.key");
    let whole = fs::read(&authority).unwrap();
    break_pem(&authority);
    break_pem(&lab.lib("tls/current/server.key"));
    refused(&mut lab, "CertificatesUnusable");
    assert_eq!(
        condition(&lab.status(), "CertificatesValid"),
        ("False", "Broken")
    );
    fs::write(authority, whole).unwrap();
    heals(&lab);
}

/// Damaged like this, the guard alone makes provisional ones and starts etcd; the operator that
/// returns replaces them.
fn certificates_are_made(damage: impl Fn(&Lab)) {
    let mut lab = served();
    damage(&lab);
    let certificates = Certificates::at(lab.lib("tls"));
    let (code, words) = lab.guard();
    assert_eq!(code, 0, "{words}");
    for (role, leaf) in certificates.leaves() {
        assert!(leaf.unwrap().is_provisional(), "{role}");
    }
    lab.start_agent();
    heals(&lab);
    lab.wait("certificates of the trusted clock", |it| {
        condition(it, "CertificatesValid") == ("True", "Valid")
    });
}

#[test]
fn a_broken_certificate_is_made_anew() {
    certificates_are_made(|lab| break_pem(&lab.lib("tls/current/server.crt")));
}

#[test]
fn a_half_written_pair_is_made_anew() {
    certificates_are_made(|lab| {
        let key = fs::read(lab.lib("tls/current/peer.key")).unwrap();
        fs::write(lab.lib("tls/current/server.key"), key).unwrap();
    });
}

#[test]
fn missing_certificates_are_made_anew() {
    certificates_are_made(|lab| fs::remove_file(lab.lib("tls/current")).unwrap());
}

#[test]
fn certificates_that_ran_out_are_made_anew() {
    certificates_are_made(|lab| {
        let over = Leaves {
            names: &["127.0.0.1".to_owned()],
            peer_names: &["127.0.0.1".to_owned()],
            cluster: "lab",
            validity: Validity {
                not_before: Timestamp(1_000_000_000),
                not_after: Timestamp(1_100_000_000),
            },
        };
        Certificates::at(lab.lib("tls")).mint(&over).unwrap();
    });
}

#[test]
fn a_port_that_another_process_has() {
    let mut lab = served();
    for port in [lab.ports[0], lab.ports[2]] {
        let holder = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let words = guard_refuses(&lab, "PortTaken");
        let me = format!("127.0.0.1:{port} is taken by ");
        assert!(words.contains(&me), "{words}");
        let pid = format!("(pid {})", std::process::id());
        assert!(words.contains(&pid), "{words}");
        drop(holder);
    }
    let holder = TcpListener::bind(("127.0.0.1", lab.ports[1])).unwrap();
    // A k3s with an embedded etcd is the usual reason.
    let k3s = lab.root.join("var/lib/rancher/k3s/server/db/etcd");
    fs::create_dir_all(k3s.join("member")).unwrap();
    let words = guard_refuses(&lab, "PortTaken");
    assert!(words.contains("k3s' embedded etcd"), "{words}");
    refused(&mut lab, "PortTaken");
    drop(holder);
    heals(&lab);
}

#[test]
fn an_etcd_that_ends_again_and_again() {
    let mut lab = served();
    let record = lab.lib("member/launch.json");
    let mut launch: Value = etcd_operator::state::load(&record).unwrap().unwrap();
    let whole = launch["conf"].as_str().unwrap();
    launch["conf"] = format!("{whole}no-such-option: 1\nname: [\n").into();
    etcd_operator::state::save(&record, &launch).unwrap();
    let before = lab.fingerprints();
    for number in 1..=3 {
        let (code, _) = lab.guard();
        assert!(code != 3 && code != 0, "start {number} is tried: {code}");
    }
    for number in 4..=10 {
        let (code, words) = lab.guard();
        assert_eq!(code, 3, "start {number} is refused: {words}");
        assert!(words.contains("CrashLoop: etcd ended 3 times"), "{words}");
    }
    assert_eq!(lab.starts(), 3);
    assert_eq!(lab.fingerprints(), before);
    let status = refused(&mut lab, "CrashLoop");
    assert!(message(&status).contains("cannot read its configuration"));
    // A person asks for another try, and the operator writes its configuration anew.
    lab.signal_agent("HUP");
    heals(&lab);
}

/// Under a service manager, with nobody but the guard to see why etcd ended.
#[test]
fn damage_is_seen_with_the_operator_dead() {
    let mut lab = served();
    garbage_pages(&lab);
    let (code, _) = lab.guard_with(false, &[("JOURNAL_STREAM", "8:1")]);
    assert!(code != 3 && code != 0, "etcd ends by itself: {code}");
    refused(&mut lab, "DatabaseDamaged");
    assert_eq!(lab.starts(), 1);
}

#[test]
fn a_database_without_its_head_is_refused_before_etcd_panics_on_it() {
    let mut lab = served();
    let db = open(&lab.data("member/snap/db"));
    // etcd needs one of its two meta pages.
    db.write_all_at(&[0x55; 4096], 0).unwrap();
    let (code, words) = lab.guard();
    assert_eq!(code, 0, "{words}");
    garbage_meta(&lab);
    let starts = lab.starts();
    let (code, words) = lab.guard();
    assert_eq!(code, 3, "{words}");
    for told in ["DatabaseDamaged", "member/snap/db", "byte 0"] {
        assert!(words.contains(told), "{told}: {words}");
    }
    assert_eq!(lab.starts(), starts, "etcd was not started");
    refused(&mut lab, "DatabaseDamaged");
}

#[test]
fn a_launch_record_that_is_damaged() {
    let mut lab = served();
    let before = lab.fingerprints();
    for name in ["member/launch.json", "member/launch.json.previous"] {
        fs::write(lab.lib(name), "{\"format\":1").unwrap();
    }
    let (code, words) = lab.guard();
    assert_eq!(code, 1);
    assert!(words.contains("launch.json is damaged"), "{words}");
    assert_eq!(lab.fingerprints(), before);
    // The operator has all that it says from the document.
    lab.start_agent();
    heals(&lab);
}

#[test]
fn an_identity_that_is_damaged() {
    let mut lab = served();
    let identity = lab.lib("member/identity.json");
    let whole = fs::read(&identity).unwrap();
    for name in ["member/identity.json", "member/identity.json.previous"] {
        fs::write(lab.lib(name), "{}").unwrap();
    }
    refused(&mut lab, "RecordUnreadable");
    fs::write(identity, whole).unwrap();
    heals(&lab);
}

fn message(status: &Value) -> &str {
    status["plan"]["message"].as_str().unwrap()
}

fn swap(one: &Path, other: &Path) {
    let between = one.with_extension("between");
    fs::rename(one, &between).unwrap();
    fs::rename(other, one).unwrap();
    fs::rename(between, other).unwrap();
}

fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    let copied = Command::new("cp")
        .args(["-a", "--sparse=always"])
        .arg(from.join("."))
        .arg(to)
        .status()
        .unwrap();
    assert!(copied.success());
}

fn threads_of(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).unwrap().count()
}

/// A file system that answers nobody until this is dropped.
struct Frozen(PathBuf);

impl Frozen {
    fn new(dir: &Path) -> Option<Frozen> {
        let frozen = Command::new("fsfreeze").arg("-f").arg(dir).status();
        if frozen.is_ok_and(|it| it.success()) {
            return Some(Frozen(dir.to_owned()));
        }
        skip("freezing a file system needs root and fsfreeze");
        None
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").arg("-u").arg(&self.0).status();
    }
}

/// A mount that ends with the test.
struct Mount(PathBuf);

impl Mount {
    /// `None`, and said so, where this user may not mount.
    fn new(arguments: &[&str], dir: &Path) -> Option<Mount> {
        let output = Command::new("mount")
            .args(arguments)
            .arg(dir)
            .output()
            .unwrap();
        if output.status.success() {
            return Some(Mount(dir.to_owned()));
        }
        skip(&format!("mounting needs root: {}", text(&output.stderr)));
        None
    }

    fn again(&self, options: &str) {
        let output = Command::new("mount")
            .args(["-o", options])
            .arg(&self.0)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
