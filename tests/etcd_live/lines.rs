//! From one line of etcd to the next, under a writer; and where nothing leads back.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::fleet::{Watcher, Writer};
use crate::lab::{Lab, condition, etcd_dir, text, version_of};
use crate::upgrades::{ask_for, assert_kept, install, install_bad_of, wait_final};

/// A cluster of this line, with some data, and etcd of the other lines in its store.
pub fn born(line: &str, others: &[&str]) -> Lab {
    let mut lab = Lab::new(line);
    lab.start_agent();
    lab.wait_available();
    lab.etcd = etcd_dir("3.6"); // its etcdctl knows all lines
    for it in 0..20 {
        assert!(lab.put(&format!("key/{it}"), "value"));
    }
    for other in others {
        let dir = etcd_dir(other);
        install(&lab, &dir, &version_of(&dir));
    }
    lab
}

fn last_change(status: &Value) -> (String, String, String) {
    let last = status["history"].as_array().unwrap().last().unwrap();
    let word = |key: &str| last[key].as_str().unwrap().to_owned();
    (word("from"), word("to"), word("outcome"))
}

#[test]
fn data_born_on_3_5_is_carried_to_3_7_and_back_under_a_writer() {
    let mut lab = born("3.5", &["3.6", "3.7"]);
    let lines = ["3.5", "3.6", "3.7"].map(|it| version_of(&etcd_dir(it)));
    // Not in one step.
    ask_for(&mut lab, &lines[2]);
    let status = lab.wait_hold("UpgradeNotAllowed");
    let next = status["plan"]["nextStep"].as_str().unwrap();
    assert!(next.contains("a patch of 3.6 first"), "{next}");
    let url = format!("https://127.0.0.1:{}", lab.ports[0]);
    let files = lab.certificates().operator_files();
    let watcher = Watcher::start(url.clone(), files.clone());
    let writer = Writer::start(vec![url], files);
    let granted = lab.etcdctl(&["lease", "grant", "3600"]);
    let granted = text(&granted.stdout);
    let lease = granted.split_whitespace().nth(1).unwrap();
    let leased = lab.etcdctl(&["put", "leased", "kept", "--lease", lease]);
    assert!(leased.status.success(), "{}", text(&leased.stderr));
    // To the newest line, back to the oldest, and up again.
    for (from, to) in [(0, 1), (1, 2), (2, 1), (1, 0), (0, 1)] {
        let [from, to] = [from, to].map(|it: usize| lines[it].clone());
        let begun = Instant::now();
        ask_for(&mut lab, &to);
        let status = wait_final(&lab, &to);
        println!("{from} -> {to}: final after {:.1?}", begun.elapsed());
        assert_eq!(last_change(&status), (from, to, "Done".to_owned()));
        assert_kept(&lab);
    }
    let (acknowledged, gap) = writer.end();
    println!("a writer's longest gap in all: {gap:?}");
    let counted = lab.etcdctl(&["get", "w/", "--prefix", "--keys-only"]);
    let there = text(&counted.stdout)
        .lines()
        .filter(|it| it.starts_with("w/"))
        .count();
    let there = u64::try_from(there).unwrap();
    let seen = watcher.end(there);
    assert_eq!(seen, there, "what the watcher has seen");
    assert!(
        there >= acknowledged && acknowledged > 0,
        "{there} of {acknowledged}"
    );
    assert_eq!(lab.get("leased").as_deref(), Some("kept"));
    let left = lab.etcdctl(&["lease", "timetolive", lease]);
    let left = text(&left.stdout);
    assert!(left.contains("granted with TTL(3600s)"), "{left}");
    assert_kept(&lab);
}

/// Nobody but the operator writes, so that its own writes alone begin the log anew that 3.7 could not read.
#[test]
fn data_born_on_3_5_is_carried_to_3_7_without_a_writer() {
    let mut lab = born("3.5", &["3.6", "3.7"]);
    for line in ["3.6", "3.7"] {
        let version = version_of(&etcd_dir(line));
        ask_for(&mut lab, &version);
        let status = wait_final(&lab, &version);
        assert_eq!(last_change(&status).2, "Done");
        assert_kept(&lab);
    }
}

#[test]
fn a_newer_line_3_7_that_never_serves_is_taken_back() {
    let mut lab = born("3.6", &[]);
    let older = lab.version.clone();
    let bad = install_bad_of(&lab, "3.7", "3.7.98", "ends");
    ask_for(&mut lab, &bad);
    let status = wait_final(&lab, &older);
    lab.wait_hold("UpgradeFailed");
    assert_eq!(last_change(&status), (older, bad, "RolledBack".to_owned()));
    assert_kept(&lab);
}

/// A cluster of 3.6 that was given a 3.7 which serves and ends; what was asked for, before and now; and the status of the hold.
fn stuck(others: &[&str]) -> (Lab, [String; 2], Value) {
    let mut lab = born("3.6", others);
    let older = lab.version.clone();
    let bad = install_bad_of(&lab, "3.7", "3.7.98", "serves-then-ends");
    ask_for(&mut lab, &bad);
    let limit = Duration::from_secs(120);
    let status = lab.wait_for(limit, "the hold", |it| it["plan"]["hold"] == "UpgradeStuck");
    (lab, [older, bad], status)
}

#[test]
fn from_a_newer_line_3_7_that_has_served_nothing_leads_back() {
    let (mut lab, [older, bad], status) = stuck(&["3.7"]);
    assert_eq!(
        last_change(&status),
        (older.clone(), bad.clone(), "Stuck".to_owned())
    );
    let next = status["plan"]["nextStep"].as_str().unwrap();
    assert!(next.contains("explain UpgradeStuck"), "{next}");
    names_and_counts_the_way_back(&lab);
    // The guard does not start the older one either.
    let identity = lab.identity().unwrap();
    assert_eq!(
        (
            identity.member.version.as_str(),
            identity.member.other_version
        ),
        ("3.7.98", None)
    );
    // A good patch of the line serves it.
    let good = version_of(&etcd_dir("3.7"));
    ask_for(&mut lab, &good);
    lab.wait_for(Duration::from_secs(300), "the good patch", |it| {
        it["version"] == good.as_str() && condition(it, "Available").0 == "True"
    });
    let status = wait_final(&lab, &good);
    assert_eq!(last_change(&status), (bad, good, "Done".to_owned()));
    assert_kept(&lab);
}

/// The status names the snapshot that a restore would take, and counts in the log of an etcd that has ended what it lacks.
fn names_and_counts_the_way_back(lab: &Lab) {
    // In the few seconds that each of its lives has.
    let limit = Duration::from_secs(120);
    let begun = Instant::now();
    let mut acknowledged = 0;
    while acknowledged < 5 {
        assert!(begun.elapsed() < limit, "{acknowledged} writes in all");
        acknowledged += u64::from(lab.put(&format!("late/{acknowledged}"), "value"));
    }
    let most = |next: &str| {
        let (_, lacks) = next.split_once(", which lacks ")?;
        let mut words = lacks.split(' ');
        let last = words.by_ref().take_while(|it| !it.starts_with("write"));
        let last = last.last()?.parse::<u64>().ok();
        last.filter(|_| !lacks.starts_with("at least"))
    };
    let status = lab.wait_for(limit, "the count", |it| {
        let next = it["plan"]["nextStep"].as_str().unwrap_or_default();
        // Beside them are the operator's own writes and an etcd's that elects itself, and nothing that jumps.
        most(next).is_some_and(|it| it >= acknowledged && it < acknowledged + 100)
    });
    let next = status["plan"]["nextStep"].as_str().unwrap();
    let shown = lab.operator(&["restore", "--dry-run", "-o", "json"]);
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    let revision = shown["snapshotRevision"].as_i64().unwrap();
    assert!(next.contains(&format!("restore r{revision}, ")), "{next}");
}

/// A restore that a person asks for is the way to the older line that the document names.
#[test]
fn from_a_newer_line_3_7_a_restore_leads_back() {
    let (mut lab, [older, _], _) = stuck(&[]);
    ask_for(&mut lab, &older);
    let output = lab.operator(&["restore", "--yes"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    lab.wait_for(Duration::from_secs(120), "the older line", |it| {
        it["version"] == older.as_str() && condition(it, "Available").0 == "True"
    });
    assert_kept(&lab);
}

/// What etcd says of its own downgrade: the target, if one is enabled, and the version of its data.
fn downgrade_of(lab: &Lab) -> (Option<String>, String) {
    let told = lab.etcdctl(&["endpoint", "status", "-w", "json"]);
    let told: Value = serde_json::from_slice(&told.stdout).unwrap();
    let status = &told[0]["Status"];
    let word = |it: &Value| it.as_str().map(str::to_owned);
    let target = word(&status["downgradeInfo"]["targetVersion"]);
    (target, word(&status["storageVersion"]).unwrap())
}

fn wait_raised(lab: &Lab, line: &str) {
    let limit = Duration::from_secs(60);
    lab.wait_for(limit, "the data to be raised again", |_| {
        downgrade_of(lab) == (None, format!("{line}.0"))
    });
}

fn wait_change(lab: &Lab, change: &(String, String, String)) {
    let limit = Duration::from_secs(120);
    lab.wait_for(limit, "the end of a change", |it| {
        it["history"].is_array() && last_change(it) == *change
    });
}

/// An older line that does not serve the copy is none that is started; and who changes their mind finds everything as before.
#[test]
fn an_older_line_that_fails_or_is_not_asked_for_any_more_leaves_the_newer_one() {
    let mut lab = born("3.7", &["3.6"]);
    let newer = lab.version.clone();
    let bad = install_bad_of(&lab, "3.6", "3.6.98", "ends-on-the-copy");
    // One of the data that was not lowered is there, and nothing is written after it.
    let backup = "  backup: {interval: 3s, destinations: [{local: {}}]}\n";
    lab.spec.push_str(backup);
    ask_for(&mut lab, "3.6.10");
    lab.wait("a snapshot", |it| it["backups"]["count"] == 1);
    let status = lab.wait_hold("UpgradeNotAllowed");
    let next = status["plan"]["nextStep"].as_str().unwrap();
    assert!(next.contains("3.6.11 or a newer patch"), "{next}");
    ask_for(&mut lab, &bad);
    wait_change(&lab, &(newer.clone(), bad, "NotRehearsed".to_owned()));
    wait_raised(&lab, "3.7");
    // It serves the copy and not the data.
    let bad = install_bad_of(&lab, "3.6", "3.6.97", "ends");
    ask_for(&mut lab, &bad);
    wait_change(&lab, &(newer.clone(), bad, "RolledBack".to_owned()));
    wait_raised(&lab, "3.7");
    // A change of mind, while the data is lowered.
    ask_for(&mut lab, &version_of(&etcd_dir("3.6")));
    let limit = Duration::from_secs(60);
    lab.wait_for(limit, "the downgrade", |_| {
        downgrade_of(&lab).0.as_deref() == Some("3.6.0")
    });
    ask_for(&mut lab, &newer);
    wait_raised(&lab, "3.7");
    assert_eq!(lab.status()["history"].as_array().unwrap().len(), 2);
    // A snapshot of data that was being lowered does not lower that of a restore.
    let output = lab.operator(&["restore", "--yes"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("lab-0-"), "{output:?}");
    wait_raised(&lab, "3.7");
    lab.wait_available();
    // What somebody else enabled is told, and left alone.
    let enabled = lab.etcdctl(&["downgrade", "enable", "3.6"]);
    assert!(enabled.status.success(), "{}", text(&enabled.stderr));
    lab.wait_for(limit, "the word", |it| {
        condition(it, "Degraded").1 == "DowngradeEnabled"
    });
    assert_eq!(downgrade_of(&lab).0.as_deref(), Some("3.6.0"));
    assert_kept(&lab);
}
