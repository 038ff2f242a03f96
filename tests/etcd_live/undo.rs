//! `restore --undo`: what the last restore set aside is lived on again, whatever happens in between.

use std::fs;
use std::path::PathBuf;

use etcd_operator::member::crash::CrashPoint;
use serde_json::Value;

use crate::lab::{Lab, condition, text};
use crate::restore::{cut, is_restored, json, report, undo_cut, with_a_snapshot};

/// A cluster that was restored, with a write `c` since.
fn restored(line: &str) -> (Lab, Value) {
    let lab = with_a_snapshot(line);
    let before = lab.status();
    assert_eq!(json(&lab, &["restore", "--yes"])["outcome"], "restored");
    is_restored(&lab);
    (lab, before)
}

fn is_as_before(lab: &Lab, before: &Value) {
    let status = lab.wait_available();
    assert_eq!(lab.get("b").as_deref(), Some("2"), "lost by the restore");
    assert_eq!(lab.get("c"), None, "written since");
    assert_eq!(status["clusterID"], before["clusterID"]);
    assert_eq!(status["members"][0]["id"], before["members"][0]["id"]);
    assert_eq!(condition(&status, "Degraded").0, "False");
}

fn refused(lab: &Lab, code: i32, words: &str) {
    let output = lab.operator(&["restore", "--undo", "--yes"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.contains(words), "{words}: {said}");
}

/// Directories beside the data.
fn aside(lab: &Lab) -> Vec<String> {
    let names = fs::read_dir(lab.lib("member")).unwrap();
    let names = names.map(|it| it.unwrap().file_name().into_string().unwrap());
    names.filter(|it| it.starts_with("data.")).collect()
}

fn a_restore_is_taken_back(line: &str) {
    let (lab, before) = restored(line);
    let revision = before["revision"].as_i64().unwrap();
    let told = json(&lab, &["restore", "--undo", "--dry-run"]);
    assert_eq!(told["revision"], revision);
    assert_eq!(told["revisionsBack"], 3);
    assert_eq!(told["revisionsLost"], 1, "c");
    let asked = lab.operator(&["restore", "--undo"]);
    assert_eq!(asked.status.code(), Some(3), "{}", text(&asked.stderr));
    assert_eq!(lab.get("b"), None, "nothing was done");

    let report = json(&lab, &["restore", "--undo", "--yes"]);
    assert_eq!(report["outcome"], "restored");
    assert_eq!(report["revisionsLost"], 1);
    is_as_before(&lab, &before);
    assert_eq!(lab.status()["revision"], revision);
    // Snapshots of the life that was taken back are not this cluster's newest.
    assert!(lab.put("d", "4"));
    assert_eq!(json(&lab, &["backup", "create"])["result"], "saved");
    let latest = json(&lab, &["restore", "--dry-run"]);
    assert_eq!(latest["snapshotRevision"], revision + 1);
    // What is aside now is no restore's; its data comes back by a restore.
    refused(&lab, 3, "no restore has set data aside here");
    let names = aside(&lab);
    assert_eq!(names.len(), 1);
    let database = lab.lib("member").join(&names[0]).join("member/snap/db");
    // What a person is told of a database alone.
    let from = database.to_str().unwrap();
    let log = lab.lib("member").join(&names[0]).join("member/wal");
    let words = format!(
        "may be only in the log, {}, and cannot be counted",
        log.display()
    );
    for command in [
        &["verify-snapshot", from][..],
        &["restore", "--dry-run", "--from", from],
        &["restore", "--yes", "--from", from],
    ] {
        let output = lab.operator(command);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(
            said.contains(&words) && said.contains("etcd-operator restore --from "),
            "{said}"
        );
    }
    assert_eq!(lab.get("c").as_deref(), Some("3"));
    assert_eq!(lab.get("d"), None);
}

#[test]
fn a_restore_on_3_5_is_taken_back() {
    a_restore_is_taken_back("3.5");
}

#[test]
fn a_restore_on_3_6_is_taken_back() {
    a_restore_is_taken_back("3.6");
}

#[test]
fn a_restore_on_3_7_is_taken_back() {
    a_restore_is_taken_back("3.7");
}

#[test]
fn what_is_damaged_gone_or_never_was_does_not_come_back() {
    let lab = with_a_snapshot("3.6");
    refused(&lab, 3, "no restore has set data aside here");
    json(&lab, &["restore", "--yes"]);
    let kept = PathBuf::from(report(&lab)["kept"].as_str().unwrap());
    let db = kept.join("member/snap/db");
    let whole = fs::read(&db).unwrap();
    let mut bytes = whole.clone();
    bytes[..8192].fill(0x55);
    fs::write(&db, bytes).unwrap();
    refused(&lab, 1, "is damaged: member/snap/db");
    is_restored(&lab);
    // Nobody sees to it beforehand, who says yes beforehand: it is read in any case, and what can be taken
    // back stays known.
    assert_eq!(report(&lab)["outcome"], "failed");
    fs::write(&db, whole).unwrap();
    let undone = lab.status()["revision"].as_i64().unwrap();
    json(&lab, &["restore", "--undo", "--yes"]);
    assert_eq!(lab.get("b").as_deref(), Some("2"));
    // No later life has revisions that clients saw in the one that was taken back.
    json(&lab, &["restore", "--yes"]);
    let later = lab.wait_available()["revision"].as_i64().unwrap();
    assert!(later > undone, "{later} after {undone}");
    // A link leads to a file system that nobody has looked at.
    let kept = PathBuf::from(report(&lab)["kept"].as_str().unwrap());
    let moved = lab.root.join("moved");
    fs::rename(&kept, &moved).unwrap();
    std::os::unix::fs::symlink(&moved, &kept).unwrap();
    refused(&lab, 1, "is no directory");
    fs::remove_file(&kept).unwrap();
    fs::rename(&moved, &kept).unwrap();
    // etcd is not stopped for data that it could not be started with.
    let store = lab.lib(&format!("store/etcd-{}", lab.version));
    let elsewhere = lab.root.join("elsewhere");
    fs::rename(&store, &elsewhere).unwrap();
    refused(&lab, 1, "which is not in the store");
    fs::rename(&elsewhere, &store).unwrap();
    is_restored(&lab);
    let cleaned = lab.operator(&["restore", "clean", "--yes"]);
    assert!(cleaned.status.success(), "{}", text(&cleaned.stderr));
    refused(&lab, 1, "no longer exists");
    lab.wait_available();
}

#[test]
fn an_undo_that_was_cut_anywhere_is_brought_to_its_end() {
    // No snapshot is unpacked.
    let points = CrashPoint::FORTH
        .into_iter()
        .filter(|it| ![CrashPoint::Unpacked, CrashPoint::DataMade].contains(it));
    let points: Vec<CrashPoint> = points.collect();
    std::thread::scope(|scope| {
        for points in points.chunks(4) {
            scope.spawn(move || points.iter().for_each(|it| cut_at(*it)));
        }
    });
}

fn cut_at(point: CrashPoint) {
    let (mut lab, before) = restored("3.6");
    cut(&mut lab, &["restore", "--undo", "--yes"], point);
    is_as_before(&lab, &before);
    assert_eq!(aside(&lab).len(), 1, "{point:?}");
}

/// What was set aside is damaged after it was read: the life that was to be taken back goes on.
#[test]
fn where_etcd_does_not_serve_what_came_back_the_data_of_now_returns() {
    let points = CrashPoint::BACK.into_iter().map(Some).chain([None]);
    std::thread::scope(|scope| {
        for point in points {
            scope.spawn(move || undone(point));
        }
    });
}

fn undone(point: Option<CrashPoint>) {
    let (mut lab, _) = restored("3.6");
    let set_aside = aside(&lab);
    let damage = |lab: &Lab| {
        fs::write(lab.data("member/snap/db"), vec![0x55; 32 << 10]).unwrap();
    };
    undo_cut(&mut lab, &["restore", "--undo", "--yes"], damage, point);
    is_restored(&lab);
    assert_eq!(aside(&lab), set_aside, "it lies where it lay");
}

/// A restore ends when etcd serves, and a document that stops it would have it wait.
#[test]
fn at_size_zero_nothing_is_restored_and_nothing_taken_back() {
    let (mut lab, _) = restored("3.6");
    lab.add("size: 0");
    lab.signal_agent("HUP");
    lab.wait("etcd to stop", |_| lab.etcd_pid().is_none());
    refused(&lab, 3, "size: 0");
    let output = lab.operator(&["restore", "--yes"]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    assert!(!lab.lib("restore.json").exists());
}
