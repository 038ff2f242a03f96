//! A snapshot's data takes the place of the member's, whatever happens in between.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use etcd_operator::backup::frames::FrameWriter;
use etcd_operator::backup::manifest::Manifest;
use etcd_operator::member::crash::CrashPoint;
use etcd_operator::member::restore_record::{Reason, RestoreRecord, SourceFile};
use serde_json::Value;

use crate::lab::{Lab, condition, kill, program, text};

/// A host whose document keeps snapshots in a directory of the host.
pub fn lab(line: &str) -> Lab {
    let mut lab = Lab::new(line);
    let path = backups(&lab);
    fs::create_dir_all(&path).unwrap();
    let more = format!(
        "  backup: {{destinations: [{{local: {{path: {}, keep: 3}}}}]}}\n",
        path.display()
    );
    lab.spec.push_str(&more);
    lab.write_document();
    lab
}

pub fn backups(lab: &Lab) -> PathBuf {
    lab.root.join("snapshots")
}

/// A command that must succeed, as JSON.
pub fn json(lab: &Lab, arguments: &[&str]) -> Value {
    let output = lab.operator(&[arguments, &["-o", "json"]].concat());
    assert!(
        output.status.success(),
        "{arguments:?}: {}\n{}",
        text(&output.stderr),
        lab.log()
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// `a` is in the snapshot, three writes of `b` came after it.
pub fn with_a_snapshot(line: &str) -> Lab {
    let mut lab = lab(line);
    lab.start_agent();
    lab.wait_available();
    assert!(lab.put("a", "1"));
    assert_eq!(json(&lab, &["backup", "create"])["result"], "saved");
    for number in 0..3 {
        assert!(lab.put("b", &number.to_string()));
    }
    lab
}

pub fn is_restored(lab: &Lab) {
    assert_eq!(lab.get("a").as_deref(), Some("1"));
    assert_eq!(lab.get("b"), None, "written after the snapshot");
    assert!(lab.put("c", "3"), "and it takes writes");
}

pub fn report(lab: &Lab) -> Value {
    let envelope: Value =
        serde_json::from_slice(&fs::read(lab.lib("restored.json")).unwrap()).unwrap();
    serde_json::from_str(envelope["payload"].as_str().unwrap()).unwrap()
}

/// Waits until no restore is under way and etcd serves.
pub fn wait_for_the_end(lab: &Lab) -> Value {
    let begin = Instant::now();
    while lab.lib("restore.json").exists() {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "{}\n{:#}",
            lab.log(),
            lab.status()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    lab.wait_available()
}

fn restored(line: &str) {
    let lab = with_a_snapshot(line);
    let before = lab.status()["clusterID"].clone();
    let untouched = json(&lab, &["restore", "--dry-run"]);
    assert_eq!(untouched["revisionsLost"], 3);
    assert_eq!(lab.get("b").as_deref(), Some("2"));
    let asked = lab.operator(&["restore"]);
    assert_eq!(asked.status.code(), Some(3), "{}", text(&asked.stderr));
    let report = json(&lab, &["restore", "--yes"]);
    assert_eq!(report["outcome"], "restored");
    assert_eq!(report["revisionsLost"], 3);
    let kept = PathBuf::from(report["kept"].as_str().unwrap());
    assert!(kept.join("member/snap/db").exists(), "old data is kept");
    is_restored(&lab);
    let status = lab.wait_available();
    assert_ne!(status["clusterID"], before, "a new identity");
    assert!(status["revision"].as_i64().unwrap() > 1_000_000_000);
    assert_eq!(condition(&status, "Degraded").0, "False");
    // The snapshots of before are still this cluster's, and so is the next one.
    assert_eq!(json(&lab, &["backup", "create"])["result"], "saved");
    let names = json(&lab, &["backup", "list"]);
    let first = names[1]["name"].as_str().unwrap();
    assert!(lab.put("d", "4"));
    // All of them are this member's.
    let unclear = lab.operator(&["restore", "--from", "lab-0", "--yes"]);
    let said = text(&unclear.stderr);
    assert_eq!(unclear.status.code(), Some(1), "{said}");
    assert!(
        said.contains("'lab-0' fits 2 snapshots") && said.contains(first),
        "{said}"
    );
    assert_eq!(lab.get("d").as_deref(), Some("4"));
    let revision = first.rsplit('-').nth(1).unwrap();
    let report = json(&lab, &["restore", "--from", revision, "--yes"]);
    assert_eq!(report["outcome"], "restored");
    assert_eq!(report["revisionsLost"], 2, "c and d, not the jump between");
    is_restored(&lab);
    assert_eq!(lab.get("d"), None);
    // Revisions went on beyond those of every snapshot, so that the next one is the newest.
    assert_eq!(json(&lab, &["backup", "create"])["result"], "saved");
    let status = lab.wait("health", |it| condition(it, "BackupHealthy").0 == "True");
    assert!(status["revision"].as_i64().unwrap() > 2_000_000_000);
}

#[test]
fn a_restore_on_3_5_tells_what_is_lost_and_keeps_the_old_data() {
    restored("3.5");
}

#[test]
fn a_restore_on_3_6_tells_what_is_lost_and_keeps_the_old_data() {
    restored("3.6");
}

#[test]
fn a_restore_on_3_7_tells_what_is_lost_and_keeps_the_old_data() {
    restored("3.7");
}

#[test]
fn a_restore_needs_neither_agent_nor_a_running_etcd() {
    let mut lab = with_a_snapshot("3.6");
    lab.stop_agent();
    lab.kill_etcd();
    let report = json(&lab, &["restore", "--yes"]);
    assert_eq!(report["outcome"], "restored");
    is_restored(&lab);
    lab.start_agent();
    lab.wait_available();
    is_restored(&lab);
}

/// Ends the operator at each place where the power may go, and starts it again.
#[test]
fn a_restore_that_was_cut_anywhere_is_brought_to_its_end() {
    std::thread::scope(|scope| {
        for points in CrashPoint::FORTH.chunks(4) {
            scope.spawn(move || points.iter().for_each(|it| cut_at(*it)));
        }
    });
}

/// Ends the agent, or the command, at this place, starts the agent again and waits for the restore's end.
pub fn cut(lab: &mut Lab, command: &[&str], point: CrashPoint) {
    lab.stop_agent();
    let word = format!("{point:?}");
    if point != CrashPoint::RequestWritten {
        lab.environment = crash_at(point);
    }
    lab.start_agent();
    lab.wait_available();
    let output = Command::new(program())
        .arg("--root")
        .arg(&lab.root)
        .args(command)
        .envs(crash_at(point))
        .output()
        .unwrap();
    assert!(!output.status.success(), "{word}: it was cut");
    if point != CrashPoint::RequestWritten {
        assert_ne!(lab.agent_exit(), 0, "{word}: the agent ended itself");
        // In the middle of the exchange nobody may start etcd.
        if fs::read_to_string(lab.lib("restore.json")).is_ok_and(|it| it.contains("swapping"))
            && lab.etcd_pid().is_none()
        {
            let (code, words) = lab.guard();
            assert_eq!(code, 3, "{word}: {words}");
            assert!(words.contains("Restoring"), "{word}: {words}");
        }
        lab.environment.clear();
        lab.start_agent();
    }
    wait_for_the_end(lab);
    assert_eq!(report(lab)["outcome"], "restored", "{word}");
}

fn crash_at(point: CrashPoint) -> Vec<(String, String)> {
    vec![("ETCD_OPERATOR_CRASH_AT".to_owned(), format!("{point:?}"))]
}

fn cut_at(point: CrashPoint) {
    let mut lab = with_a_snapshot("3.6");
    let word = format!("{point:?}");
    cut(&mut lab, &["restore", "--yes"], point);
    is_restored(&lab);
    let storage = fs::read_dir(lab.lib("member")).unwrap();
    let names: Vec<String> = storage
        .map(|it| it.unwrap().file_name().into_string().unwrap())
        .collect();
    let kept = names.iter().filter(|it| it.starts_with("data.")).count();
    assert_eq!(kept, 1, "{word}: {names:?}");
    assert!(!names.contains(&"restore.part".to_owned()), "{word}");
}

/// The restored data cannot be started from, and the undoing is cut at each of its places.
#[test]
fn where_etcd_does_not_serve_the_restored_data_the_old_data_comes_back() {
    let points = CrashPoint::BACK.into_iter().map(Some).chain([None]);
    std::thread::scope(|scope| {
        for point in points {
            scope.spawn(move || undone(point));
        }
    });
}

/// `damage` keeps etcd from serving the data that a command put in place; the undoing is cut at `point`.
pub fn undo_cut(
    lab: &mut Lab,
    command: &[&str],
    damage: impl FnOnce(&Lab),
    point: Option<CrashPoint>,
) {
    lab.stop_agent();
    lab.environment = crash_at(CrashPoint::StartingWritten);
    lab.start_agent();
    lab.wait_available();
    let output = lab.operator(command);
    assert!(!output.status.success());
    assert_ne!(lab.agent_exit(), 0);
    damage(lab);
    if let Some(point) = point {
        lab.environment = crash_at(point);
        lab.start_agent();
        assert_ne!(lab.agent_exit(), 0, "{point:?}");
    }
    lab.environment.clear();
    lab.start_agent();
    wait_for_the_end(lab);
    assert_eq!(report(lab)["outcome"], "undone", "{point:?}");
}

/// A worn card: the new log is damaged before etcd ever reads it.
fn damage_the_log(lab: &Lab) {
    let wal = fs::read_dir(lab.data("member/wal")).unwrap();
    let wal = wal
        .map(|it| it.unwrap().path())
        .find(|it| it.extension().is_some_and(|it| it == "wal"))
        .unwrap();
    let mut bytes = fs::read(&wal).unwrap();
    for byte in &mut bytes[40..200] {
        *byte ^= 0x55;
    }
    fs::write(&wal, bytes).unwrap();
}

fn undone(point: Option<CrashPoint>) {
    let mut lab = with_a_snapshot("3.6");
    undo_cut(&mut lab, &["restore", "--yes"], damage_the_log, point);
    assert_eq!(lab.get("b").as_deref(), Some("2"), "nothing was lost");
    assert!(lab.put("c", "3"));
}

#[test]
fn sigkills_at_any_instant_of_a_restore_lose_nothing_twice() {
    let mut lab = with_a_snapshot("3.6");
    for round in 0..12_u64 {
        assert!(lab.put("b", &round.to_string()) || lab.get("b").is_some());
        let root = lab.root.clone();
        let command = std::thread::spawn(move || {
            Command::new(program())
                .arg("--root")
                .arg(root)
                .args(["restore", "--from", "latest", "--yes"])
                .output()
                .unwrap()
        });
        std::thread::sleep(Duration::from_millis(60 + round * 45));
        lab.kill_agent();
        let _ = command.join();
        lab.start_agent();
        wait_for_the_end(&lab);
        assert_eq!(lab.get("a").as_deref(), Some("1"), "round {round}");
        assert!(lab.put("alive", "yes"), "round {round}");
    }
}

#[test]
fn a_file_of_etcdctl_is_taken_after_a_check_and_a_yes() {
    let lab = with_a_snapshot("3.6");
    let dir = lab.root.join("theirs");
    fs::create_dir(&dir).unwrap();
    let file = dir.join("snapshot.db");
    let name = file.to_str().unwrap();
    let saved = lab.etcdctl(&["snapshot", "save", name]);
    assert!(saved.status.success(), "{}", text(&saved.stderr));
    let before = fs::read(&file).unwrap();
    assert!(lab.put("late", "1"));
    let held = lab.operator(&["restore", "--from", name]);
    assert_eq!(held.status.code(), Some(3), "{}", text(&held.stderr));
    assert_eq!(lab.get("late").as_deref(), Some("1"));
    let report = json(&lab, &["restore", "--from", name, "--yes"]);
    assert_eq!(report["revisionsLost"], 1);
    assert_eq!(lab.get("b").as_deref(), Some("2"));
    assert_eq!(lab.get("late"), None);
    assert_eq!(fs::read(&file).unwrap(), before, "the source is only read");
    // A damaged one is refused before anything else happens.
    let mut damaged = before;
    let middle = damaged.len() / 2;
    damaged[middle] ^= 0xff;
    fs::write(&file, damaged).unwrap();
    let pid = lab.etcd_pid();
    let refused = lab.operator(&["restore", "--from", name, "--yes"]);
    let words = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{words}");
    // By the walk or the checksum, and not by etcdutl in the middle of a restore.
    assert!(
        words.contains("level 3") || words.contains("checksum"),
        "{words}"
    );
    assert_eq!(lab.etcd_pid(), pid, "etcd was not stopped");
}

#[test]
fn a_snapshot_of_another_cluster_or_of_a_newer_etcd_3_7_is_refused() {
    let lab = with_a_snapshot("3.6");
    let pid = lab.etcd_pid();
    let mut other = self::lab("3.7");
    other.name = "other".to_owned();
    other.write_document();
    other.start_agent();
    other.wait_available();
    let row = json(&other, &["backup", "create"]);
    let name = row["snapshot"]["name"].as_str().unwrap();
    let file = backups(&other).join(format!("other/{name}.db.zst"));
    let refuse = |file: &Path, words: &str| {
        let refused = lab.operator(&["restore", "--from", file.to_str().unwrap(), "--yes"]);
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains(words), "{said}");
    };
    refuse(&file, "belongs to the cluster other");
    // Without its manifest only the version is left to tell.
    let alone = lab.root.join("alone.db.zst");
    fs::copy(&file, &alone).unwrap();
    refuse(&alone, "which cannot read it: name an older snapshot");
    // Below /tmp, where this checkout may lie, the command says more.
    refuse(Path::new("/srv/etcd-operator-absent.db"), "is missing");
    assert_eq!(lab.etcd_pid(), pid);
    assert!(!lab.lib("restore.json").exists());
    assert!(!lab.lib("restored.json").exists(), "none was begun");
}

/// Two boxes of one name share a bucket, or a disk is carried from one to the other.
#[test]
fn a_snapshot_of_another_cluster_of_the_name_is_taken_on_demand_only_and_stays_the_others() {
    let lab = with_a_snapshot("3.6");
    let other = with_a_snapshot("3.6");
    let row = json(&other, &["backup", "list"]);
    let (name, id) = (row[0]["name"].as_str().unwrap(), cluster_id(&other));
    let file = backups(&other).join(format!("{}/{name}.db.zst", other.name));
    let file = file.to_str().unwrap();
    let refused = lab.operator(&["restore", "--from", file, "--yes"]);
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(
        said.contains("--other-cluster") && said.contains(&id),
        "{said}"
    );
    assert!(!lab.lib("restore.json").exists());
    json(
        &lab,
        &["restore", "--from", file, "--yes", "--other-cluster"],
    );
    is_restored(&lab);
    let ours = lab.identity().unwrap().clusters();
    assert!(!ours.contains(&id), "its snapshots are not ours: {ours:?}");
}

fn cluster_id(lab: &Lab) -> String {
    lab.identity().unwrap().cluster.id.unwrap()
}

#[test]
fn a_replaced_box_comes_up_with_the_newest_snapshot_of_its_name() {
    let mut old = with_a_snapshot("3.6");
    old.stop_agent();
    old.kill_etcd();
    let mut new = Lab::new("3.6");
    let path = backups(&old);
    let document = format!(
        "  backup: {{interval: 6h, destinations: [{{local: {{path: {}}}}}]}}\n  bootstrap: {{from: latest}}\n",
        path.display()
    );
    new.spec.push_str(&document);
    new.trust(&old.signer());
    new.start_agent();
    new.wait("the restore", |_| new.lib("restored.json").exists());
    wait_for_the_end(&new);
    is_restored(&new);
    assert_eq!(report(&new)["reason"], "bootstrap");
    let authorities = new.identity().unwrap().cluster.authorities;
    assert!(authorities.is_some(), "a replaced CA would be told");
    // A boot later it is a cluster like any other.
    new.stop_agent();
    new.kill_etcd();
    new.start_agent();
    new.wait_available();
    assert_eq!(new.get("c").as_deref(), Some("3"));
}

/// Nobody is there to name another snapshot: a worn card under the newest one costs what came after the
/// one before, and not everything.
#[test]
fn a_replaced_box_passes_over_a_damaged_snapshot() {
    let mut old = with_a_snapshot("3.6");
    let row = json(&old, &["backup", "create"]);
    old.stop_agent();
    old.kill_etcd();
    let name = row["snapshot"]["name"].as_str().unwrap();
    let newest = backups(&old).join(format!("{}/{name}.db.zst", old.name));
    let mut bytes = fs::read(&newest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&newest, bytes).unwrap();
    let mut new = Lab::new("3.6");
    let document = format!(
        "  backup: {{interval: 6h, destinations: [{{local: {{path: {}}}}}]}}\n  bootstrap: {{from: latest}}\n",
        backups(&old).display()
    );
    new.spec.push_str(&document);
    new.trust(&old.signer());
    new.start_agent();
    new.wait_available();
    wait_for_the_end(&new);
    is_restored(&new);
    assert!(new.log().contains("passed over"), "{}", new.log());
}

#[test]
fn a_bootstrap_without_a_snapshot_never_becomes_an_empty_cluster() {
    let mut lab = Lab::new("3.6");
    let path = backups(&lab);
    let document = format!(
        "  backup: {{destinations: [{{local: {{path: {}}}}}]}}\n  bootstrap: {{from: latest}}\n",
        path.display()
    );
    lab.spec.push_str(&document);
    lab.write_document();
    lab.start_agent();
    let status = lab.wait_hold("RestoreFailed");
    assert!(
        status["plan"]["message"]
            .as_str()
            .unwrap()
            .contains("is not there"),
        "{status:#}"
    );
    fs::create_dir_all(&path).unwrap();
    lab.signal_agent("HUP");
    lab.wait("an empty store", |it| {
        it["plan"]["message"]
            .as_str()
            .is_some_and(|it| it.contains("there is no verified snapshot"))
    });
    assert_eq!(lab.etcd_pid(), None);
    assert!(!lab.data("member").exists(), "nothing was born");
}

/// Garbage in the middle of the log, which etcd cannot start from.
pub fn damage(lab: &Lab) {
    let _ = crate::tools::flip_bit_in_log(lab);
}

#[test]
fn damaged_data_is_held_unless_the_document_says_otherwise() {
    let mut lab = with_a_snapshot("3.6");
    lab.status(); // the agent looks once more
    lab.stop_agent();
    lab.kill_etcd();
    damage(&lab);
    lab.start_agent();
    lab.wait("a hold", |it| it["plan"]["hold"].is_string());
    std::thread::sleep(Duration::from_secs(1));
    assert!(!lab.lib("restored.json").exists(), "a person decides");
    lab.spec
        .push_str("  recovery: {singleMember: restoreLatestVerified}\n");
    lab.write_document();
    lab.signal_agent("HUP");
    lab.wait("the restore", |_| lab.lib("restored.json").exists());
    wait_for_the_end(&lab);
    let report = report(&lab);
    assert_eq!(
        (&report["reason"], &report["outcome"]),
        (&"recovery".into(), &"restored".into())
    );
    assert_eq!(report["revisionsLost"], 3, "announced as a number");
    assert!(
        PathBuf::from(report["kept"].as_str().unwrap()).exists(),
        "the damaged data is kept"
    );
    is_restored(&lab);
}

/// The document asked for it, and by the time it is made the data is sound: everything is read once more.
#[test]
fn nothing_is_restored_over_data_that_is_sound_on_a_second_look() {
    let mut lab = with_a_snapshot("3.6");
    lab.add("recovery: {singleMember: restoreLatestVerified}");
    lab.stop_agent();
    lab.kill_etcd();
    let paths = etcd_operator::paths::Paths::under(&lab.root);
    let former = lab.identity();
    let latest = SourceFile {
        path: PathBuf::new(),
        name: "latest".to_owned(),
        revision: 0,
        cluster_id: None,
        database: 0,
        checksummed: false,
        sha256: None,
        hash: None,
    };
    let id = "1".to_owned();
    let record = RestoreRecord::requested(id, Reason::Recovery, latest, None, former);
    assert!(record.request(&paths).unwrap());
    lab.start_agent();
    lab.wait_available();
    assert_eq!(lab.get("b").as_deref(), Some("2"));
    assert!(!lab.lib("restore.json").exists() && !lab.lib("restored.json").exists());
    let log = lab.log();
    assert!(log.contains("a second check found the data sound"), "{log}");
}

/// After a reboot nobody has seen how far the data reached: its log tells, and where that is gone, its
/// database.
#[test]
fn what_a_recovery_loses_is_a_number_also_after_a_reboot() {
    type Wrong = fn(&Lab);
    let cases: [(Wrong, &str, &str); 3] = [
        (damage, "exactly", ""),
        (crate::tools::garbage_pages, "atMost", "at most "),
        (
            |lab| fs::remove_dir_all(lab.data("member/wal")).unwrap(),
            "atLeast",
            "at least ",
        ),
    ];
    for (wrong, kind, word) in cases {
        let mut lab = with_a_snapshot("3.6");
        lab.add("recovery: {singleMember: restoreLatestVerified}");
        lab.stop_agent();
        // It takes up its log before it ends.
        kill("TERM", lab.etcd_pid().unwrap());
        while lab.etcd_pid().is_some() {
            std::thread::sleep(Duration::from_millis(20));
        }
        for entry in fs::read_dir(lab.run("")).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        wrong(&lab);
        let dry = lab.operator(&["restore", "--dry-run"]);
        let said = text(&dry.stdout);
        let told = format!("lost       {word}");
        assert!(said.contains(&told), "{said}{}", text(&dry.stderr));
        lab.start_agent();
        lab.wait("the restore", |_| lab.lib("restored.json").exists());
        wait_for_the_end(&lab);
        let report = report(&lab);
        let lost = report["revisionsLost"].as_i64().unwrap();
        assert!(
            (3..=20).contains(&lost),
            "three, and what the operator wrote: {lost}"
        );
        assert_eq!(report["lostIs"], kind);
        let told = format!("{word}{lost} revisions");
        assert!(lab.log().contains(&told), "{told}: {}", lab.log());
        is_restored(&lab);
    }
}

#[test]
fn a_record_of_a_restore_that_cannot_be_read_keeps_etcd_from_starting() {
    let mut lab = with_a_snapshot("3.6");
    lab.stop_agent();
    lab.kill_etcd();
    fs::write(lab.lib("restore.json"), "{").unwrap();
    let (code, words) = lab.guard();
    assert_ne!(code, 0, "{words}");
    assert!(words.contains("restore.json"), "{words}");
    lab.start_agent();
    let status = lab.wait_hold("RecordUnreadable");
    let message = status["plan"]["message"].as_str().unwrap();
    assert!(message.contains("restore.json"), "{message}");
    assert_eq!(lab.etcd_pid(), None);
    fs::remove_file(lab.lib("restore.json")).unwrap();
    lab.wait_available();
    assert_eq!(lab.get("b").as_deref(), Some("2"));
}

/// What lies in a snapshot with a byte of it changed and everything that could tell made to fit,
/// but for the database itself: by somebody who has the key.
fn forge(lab: &Lab, file: &Path, manifest: &Path, change: &dyn Fn(&mut Vec<u8>)) {
    let packed = fs::File::open(file).unwrap();
    let mut content = zstd::stream::decode_all(packed).unwrap();
    change(&mut content);
    let mut packed = Vec::new();
    let mut sink = |bytes: &[u8]| {
        packed.extend_from_slice(bytes);
        Ok(())
    };
    let mut writer = FrameWriter::new().unwrap();
    writer.write(&content, &mut sink).unwrap();
    writer.finish(&mut sink).unwrap();
    let name = manifest.file_stem().unwrap().to_str().unwrap();
    let mut said = Manifest::decode(&fs::read(manifest).unwrap(), name).unwrap();
    said.file.size = packed.len() as u64;
    said.file.sha256 = etcd_operator::state::sha256(&packed);
    fs::write(file, packed).unwrap();
    let said = said.signed_by(lab.certificates().signer().as_ref());
    fs::write(manifest, said.encode()).unwrap();
}

/// The root of the tree, by the newer meta page; other pages may be free, where nothing is damaged.
fn root_page(database: &[u8]) -> usize {
    let number = |at: usize| u64::from_le_bytes(database[at..at + 8].try_into().unwrap());
    // Behind a page's header of 16 bytes: four numbers of 4 bytes, the root and its sequence, the
    // list of free pages, the first page that was never used, the transaction.
    let newer = if number(64) > number(4096 + 64) {
        0
    } else {
        4096
    };
    usize::try_from(number(newer + 32)).unwrap()
}

#[test]
fn a_snapshot_that_was_damaged_after_it_was_proven_is_refused_while_etcd_serves_on() {
    let lab = with_a_snapshot("3.6");
    let pid = lab.etcd_pid();
    let name = json(&lab, &["backup", "list"])[0]["name"].clone();
    let file = backups(&lab).join(format!("lab/{}.db.zst", name.as_str().unwrap()));
    let manifest = file.with_extension("").with_extension("json");
    let (whole, said) = (fs::read(&file).unwrap(), fs::read(&manifest).unwrap());
    let refuse = |words: &str| {
        for how in ["--yes", "--dry-run"] {
            let arguments = ["restore", how, "--from", name.as_str().unwrap()];
            let refused = lab.operator(&arguments);
            let said = text(&refused.stderr);
            assert_eq!(refused.status.code(), Some(1), "{arguments:?}: {said}");
            assert!(said.contains(words), "{arguments:?}: {said}");
        }
        assert_eq!(lab.etcd_pid(), pid, "etcd was not stopped");
        assert!(!lab.lib("restore.json").exists());
        assert_eq!(lab.get("b").as_deref(), Some("2"));
    };
    for at in [60, whole.len() / 2, whole.len() - 3] {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        fs::write(&file, damaged).unwrap();
        refuse("level 2");
    }
    fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    refuse("level 1");
    // The bytes are those that the manifest says, and the database in them is none of etcd's: a
    // page that calls itself another, then a value that is another.
    fs::write(&file, &whole).unwrap();
    forge(&lab, &file, &manifest, &|it| {
        let page = root_page(it);
        it[page * 4096] ^= 1;
    });
    refuse("level 3");
    fs::write(&file, &whole).unwrap();
    fs::write(&manifest, &said).unwrap();
    forge(&lab, &file, &manifest, &|it| {
        let mut places = it.windows(4).enumerate();
        let at = places.find(|(_, it)| *it == b"\x0a\x01a\x10");
        let at = at.expect("the key a in its protobuf").0;
        it[at + 2] = b'z';
    });
    refuse("level 3: the hash");
}

#[test]
fn the_policy_replaces_damaged_data_three_times_a_day_and_then_a_person_decides() {
    let mut lab = with_a_snapshot("3.6");
    lab.spec
        .push_str("  recovery: {singleMember: restoreLatestVerified}\n");
    lab.write_document();
    lab.signal_agent("HUP");
    lab.wait_available();
    for round in 0..4 {
        lab.status(); // the agent looks once more
        lab.stop_agent();
        lab.kill_etcd();
        fs::remove_dir_all(lab.data("member/wal")).unwrap();
        let _ = fs::remove_file(lab.lib("restored.json"));
        lab.start_agent();
        if round == 3 {
            break;
        }
        lab.wait("the restore", |_| lab.lib("restored.json").exists());
        wait_for_the_end(&lab);
        is_restored(&lab);
    }
    let status = lab.wait_hold("RestoreFailed");
    let message = status["plan"]["message"].as_str().unwrap();
    assert!(message.contains("3 times within a day"), "{message}");
    assert!(!lab.lib("restored.json").exists());
    assert_eq!(lab.etcd_pid(), None);
    lab.signal_agent("HUP");
    lab.wait("another try", |_| lab.lib("restored.json").exists());
    wait_for_the_end(&lab);
    is_restored(&lab);
}

/// By the mask of caught signals that the kernel tells.
fn catches_interrupts(pid: u32) -> bool {
    const SIGINT: u64 = 1 << 1;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mask = status.lines().find_map(|it| it.strip_prefix("SigCgt:"));
    u64::from_str_radix(mask.unwrap().trim(), 16).unwrap() & SIGINT != 0
}

/// The agent carries a restore out: who no longer waits for it is told that it goes on.
#[test]
fn ctrl_c_ends_the_command_and_says_that_the_restore_goes_on() {
    let lab = with_a_snapshot("3.6");
    kill("STOP", lab.agent_pid());
    let child = Command::new(program())
        .args(["restore", "--yes", "--root"])
        .arg(&lab.root)
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    while !lab.lib("restore.json").exists() {
        assert!(begin.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(10));
    }
    // Until it listens to the signal it dies of it without a word.
    while !catches_interrupts(child.id()) {
        assert!(begin.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(10));
    }
    kill("INT", child.id());
    let output = child.wait_with_output().unwrap();
    kill("CONT", lab.agent_pid());
    let words = text(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{words}");
    assert!(
        words.contains("the restore goes on without this command"),
        "{words}"
    );
    for way in ["etcd-operator status", "etcd-operator restore --undo"] {
        assert!(words.contains(way), "{words}");
    }
    wait_for_the_end(&lab);
    is_restored(&lab);
}

#[test]
fn what_restores_set_aside_is_removed_on_demand_only() {
    let lab = with_a_snapshot("3.6");
    for _ in 0..2 {
        json(&lab, &["restore", "--yes"]);
    }
    let left = lab.status()["host"]["leftovers"].clone();
    assert_eq!(left.as_array().unwrap().len(), 2, "{left}");
    let paths = || {
        let left = left.as_array().unwrap().iter();
        left.map(|it| PathBuf::from(it["path"].as_str().unwrap()))
    };
    let clean = |more: &[&str]| {
        let output = lab.operator(&[&["restore", "clean"], more].concat());
        let words = text(&output.stdout) + &text(&output.stderr);
        (output.status.code(), words)
    };
    let (code, words) = clean(&["--dry-run"]);
    assert_eq!(code, Some(0), "{words}");
    assert!(
        paths().all(|it| words.contains(it.to_str().unwrap())),
        "{words}"
    );
    assert!(words.contains("MiB would be removed"), "{words}");
    let (code, words) = clean(&[]);
    assert_eq!(code, Some(3), "nobody was asked: {words}");
    // Whoever brings a restore to its end may need them.
    fs::write(lab.lib("restore.json"), b"{}").unwrap();
    assert_ne!(clean(&["--yes"]).0, Some(0));
    fs::remove_file(lab.lib("restore.json")).unwrap();
    // Where the data itself is lost they may be all that is left.
    let aside = lab.root.join("data-aside");
    kill("STOP", lab.agent_pid());
    lab.kill_etcd();
    fs::rename(lab.data(""), &aside).unwrap();
    let (code, words) = clean(&["--yes"]);
    assert_eq!(code, Some(3), "{words}");
    assert!(words.contains("may be all that is left"), "{words}");
    assert!(paths().all(|it| it.join("member/snap/db").exists()));
    fs::rename(&aside, lab.data("")).unwrap();
    kill("CONT", lab.agent_pid());
    lab.wait_available();
    let removed = json(&lab, &["restore", "clean", "--yes"]);
    assert_eq!(removed.as_array().unwrap().len(), 2);
    assert!(paths().all(|it| !it.exists()));
    is_restored(&lab);
    lab.wait("no leftovers", |it| it["host"]["leftovers"].is_null());
    assert_eq!(json(&lab, &["restore", "clean"]), serde_json::json!([]));
}
