//! No cluster is born in silence beside the snapshots of one that lived before it.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::lab::{Lab, condition, text};
use crate::restore::{backups, json, lab};
use crate::s3;

/// The root disk was replaced: nothing of the operator's is left, and what its snapshots lie on is.
fn replace_the_box(lab: &mut Lab) {
    lab.stop_agent();
    lab.kill_etcd();
    let store = lab.lib("store");
    let aside = lab.root.join("store-aside");
    fs::rename(&store, &aside).unwrap();
    fs::remove_dir_all(lab.lib("")).unwrap();
    fs::remove_dir_all(lab.run("")).unwrap();
    fs::create_dir_all(lab.lib("")).unwrap();
    fs::rename(aside, store).unwrap();
}

/// Two snapshots, and then another box.
fn with_two(mut lab: Lab) -> Lab {
    lab.start_agent();
    lab.wait_available();
    for value in ["1", "2"] {
        assert!(lab.put("a", value));
        json(&lab, &["backup", "create"]);
    }
    lab
}

fn message(status: &Value) -> &str {
    status["plan"]["message"].as_str().unwrap()
}

fn is_unborn(lab: &Lab) {
    assert_eq!(lab.starts(), 0);
    assert!(!lab.lib("member/identity.json").exists(), "nothing is born");
}

fn says(lab: &mut Lab, word: &str) {
    lab.add(&format!("bootstrap: {{from: {word}}}"));
    lab.signal_agent("HUP");
    lab.wait_available();
}

#[test]
fn a_replaced_box_asks_before_it_passes_snapshots_over() {
    let mut lab = with_two(lab("3.6"));
    let newest = lab.status()["backups"]["last"].clone();
    let key = lab.signer();
    assert_eq!(lab.status()["backups"]["signer"], key.as_str());
    replace_the_box(&mut lab);
    lab.start_agent();
    let status = lab.wait_hold("SnapshotsFound");
    let said = message(&status);
    let created = newest["created"].as_str().unwrap();
    for part in [
        format!("{} holds 2 verified snapshots", backups(&lab).display()),
        format!("at revision {}, of {created}", newest["revision"]),
        format!("signed by {key}"),
    ] {
        assert!(said.contains(&part), "{said}: {part}");
    }
    let next = status["plan"]["nextStep"].as_str().unwrap();
    assert!(next.contains("from: latest") && next.contains("from: empty"));
    assert_eq!(condition(&status, "Available"), ("False", "SnapshotsFound"));
    is_unborn(&lab);
    lab.trust(&key);
    says(&mut lab, "latest");
    assert_eq!(lab.get("a").as_deref(), Some("2"));
}

#[test]
fn a_box_begins_with_nothing_where_its_document_says_so() {
    let mut lab = with_two(lab("3.6"));
    replace_the_box(&mut lab);
    lab.start_agent();
    lab.wait_hold("SnapshotsFound");
    says(&mut lab, "empty");
    assert_eq!(lab.get("a"), None);
    let listed = json(&lab, &["backup", "list"]);
    assert_eq!(listed.as_array().unwrap().len(), 2, "they stay");
    // The word is for the birth alone.
    lab.kill_etcd();
    lab.wait_available();
}

/// The disk with the snapshots comes up late: nothing is born meanwhile, and no person is needed.
#[test]
fn a_disk_for_snapshots_that_is_not_mounted_is_waited_for() {
    let mut lab = with_two(lab("3.6"));
    replace_the_box(&mut lab);
    let (path, aside) = (backups(&lab), lab.root.join("disk-aside"));
    fs::rename(&path, &aside).unwrap();
    lab.start_agent();
    let status = lab.wait_hold("SnapshotsUnknown");
    assert!(message(&status).contains("is not there"), "{status:#}");
    is_unborn(&lab);
    fs::rename(&aside, &path).unwrap();
    lab.wait_hold("SnapshotsFound");
    is_unborn(&lab);
    fs::remove_dir_all(path.join("lab")).unwrap();
    lab.wait_available();
}

#[test]
fn a_bucket_is_asked_and_one_that_does_not_answer_holds_nobody_up() {
    let (lab, mut server) = s3::lab(&s3::Server::new, "");
    let mut lab = with_two(lab);
    lab.wait("the copies", |it| {
        it["backups"]["queued"] == 0 && server.objects().len() == 4
    });
    replace_the_box(&mut lab);
    fs::remove_dir_all(backups(&lab).join("lab")).unwrap();
    lab.start_agent();
    let status = lab.wait_hold("SnapshotsFound");
    assert!(
        message(&status).contains("s3://backup/shops holds 2 verified snapshots"),
        "{status:#}"
    );
    is_unborn(&lab);
    lab.stop_agent();
    server.stop();
    lab.start_agent();
    lab.wait_for(Duration::from_secs(60), "a first start", |it| {
        condition(it, "Available").0 == "True"
    });
    assert_eq!(lab.get("a"), None);
    assert!(lab.log().contains("creates the cluster all the same"));
}

/// The box was swapped because nobody is there: its disk comes up seconds later, and no person reloads.
#[test]
fn a_bootstrap_is_tried_again_by_itself() {
    let mut lab = with_two(lab("3.6"));
    let key = lab.signer();
    lab.trust(&key);
    replace_the_box(&mut lab);
    let (path, aside) = (backups(&lab), lab.root.join("disk-aside"));
    fs::rename(&path, &aside).unwrap();
    lab.add("bootstrap: {from: latest}");
    lab.start_agent();
    let status = lab.wait_hold("RestoreFailed");
    let next = status["plan"]["nextTrySeconds"].as_u64();
    assert!(next.is_some_and(|it| it <= 10), "{status:#}");
    for command in ["status", "plan"] {
        let output = lab.operator(&[command]);
        let text = text(&output.stdout);
        assert!(text.contains("next try in "), "{command}: {text}");
    }
    // Without a change the wait grows.
    let status = lab.wait("the next try", |it| {
        it["plan"]["nextTrySeconds"]
            .as_u64()
            .is_some_and(|it| it > 10)
    });
    assert_eq!(status["plan"]["hold"], "RestoreFailed");
    is_unborn(&lab);
    assert_eq!(
        lab.log().matches("the restore failed, and").count(),
        1,
        "told once"
    );
    fs::rename(&aside, &path).unwrap();
    lab.wait_available();
    assert!(
        lab.log()
            .contains("the operator retries the restore at once"),
        "seen, not waited for"
    );
    assert_eq!(lab.get("a").as_deref(), Some("2"));
}

#[test]
fn a_bootstrap_tells_of_each_destination_why_it_is_of_no_use() {
    let (lab, mut server) = s3::lab(&s3::Server::new, "");
    let mut lab = lab;
    server.stop();
    fs::remove_dir_all(backups(&lab)).unwrap();
    lab.add("bootstrap: {from: latest}");
    lab.start_agent();
    lab.wait_hold("RestoreFailed");
    let log = lab.log();
    let line = log
        .lines()
        .find(|it| it.contains("the restore failed, and"));
    let line = line.unwrap_or_else(|| panic!("{log}"));
    assert!(
        line.contains(&format!("{} is not there", backups(&lab).display())),
        "{line}"
    );
    assert!(line.contains("s3://backup/shops: "), "{line}");
    server.start();
    lab.signal_agent("HUP");
    let words = "no verified snapshot of the cluster lab in s3://backup/shops";
    lab.wait("the empty bucket", |_| lab.log().contains(words));
}
