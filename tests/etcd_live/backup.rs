//! Snapshots by the document: taken in time, kept as asked, skipped when idle, copied elsewhere.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::lab::{Lab, condition, text};
use crate::restore::{backups, json, lab};

fn names(lab: &Lab) -> Vec<String> {
    json(lab, &["backup", "list"])
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["name"].as_str().unwrap().to_owned())
        .collect()
}

fn every(lab: &mut Lab, seconds: u32, more: &str) {
    let path = backups(lab);
    fs::create_dir_all(&path).unwrap();
    let document = format!(
        "  backup: {{interval: {seconds}s, destinations: [{{local: {{path: {}, keep: 2}}}}{more}]}}\n",
        path.display()
    );
    lab.spec.push_str(&document);
    lab.write_document();
}

#[test]
fn snapshots_are_taken_in_time_and_as_many_kept_as_asked_for() {
    as_many_kept_as_asked_for(Lab::new("3.6"));
}

/// A container, a Pi without a network: nobody ever vouches for the time.
#[test]
fn as_many_snapshots_are_kept_where_the_clock_is_never_trusted() {
    let lab = Lab::new("3.6");
    fs::remove_file(lab.root.join("run/systemd/timesync/synchronized")).unwrap();
    let lab = as_many_kept_as_asked_for(lab);
    assert_ne!(condition(&lab.status(), "ClockTrusted").0, "True");
    assert!(lab.log().contains("snapshot removed by retention"));
}

fn as_many_kept_as_asked_for(mut lab: Lab) -> Lab {
    every(&mut lab, 1, "");
    lab.start_agent();
    lab.wait_available();
    let mut seen = std::collections::BTreeSet::new();
    let begin = Instant::now();
    while seen.len() < 4 {
        assert!(begin.elapsed() < Duration::from_secs(60), "{}", lab.log());
        assert!(lab.put("a", &begin.elapsed().as_nanos().to_string()));
        seen.extend(names(&lab));
        std::thread::sleep(Duration::from_millis(200));
    }
    let status = lab.wait("retention", |it| {
        names(&lab).len() <= 2 && it["backups"]["count"].as_u64().is_some_and(|it| it <= 2)
    });
    assert_eq!(condition(&status, "BackupHealthy"), ("True", "Verified"));
    assert_eq!(status["backups"]["lastVerified"]["level"], 3);
    assert_eq!(status["backups"]["queued"], 0);
    lab
}

#[test]
fn nothing_is_taken_or_written_while_nobody_writes_to_etcd() {
    let mut lab = Lab::new("3.6");
    every(&mut lab, 1, "");
    lab.start_agent();
    lab.wait_available();
    lab.wait("the first one", |_| names(&lab).len() == 1);
    std::thread::sleep(Duration::from_secs(2));
    let written = |dir: &std::path::Path| {
        let files = fs::read_dir(dir).unwrap().flatten();
        let files = files.map(|it| (it.file_name(), it.metadata().unwrap().modified().unwrap()));
        files.collect::<std::collections::BTreeMap<_, _>>()
    };
    let look = || {
        (
            written(&backups(&lab).join("lab")),
            written(&lab.lib("backup")),
        )
    };
    let before = look();
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(names(&lab).len(), 1);
    assert_eq!(look(), before);
}

#[test]
fn a_missing_or_unmounted_place_is_told_and_etcd_goes_on() {
    let mut lab = Lab::new("3.6");
    every(&mut lab, 1, "");
    fs::remove_dir(backups(&lab)).unwrap();
    lab.add("bootstrap: {from: empty}");
    lab.start_agent();
    lab.wait_available();
    let status = lab.wait("the reason", |it| {
        condition(it, "BackupHealthy").1 == "DestinationUnusable"
    });
    let conditions = status["conditions"].to_string();
    assert!(conditions.contains("mount the disk"), "{conditions}");
    assert_eq!(condition(&status, "Available").0, "True");
    fs::create_dir(backups(&lab)).unwrap();
    let created = json(&lab, &["backup", "create"]);
    assert_eq!(created["result"], "saved");
    // The disk is away: its mount point is an empty directory.
    fs::rename(backups(&lab), lab.root.join("disk")).unwrap();
    fs::create_dir(backups(&lab)).unwrap();
    assert!(lab.put("a", "1"));
    let refused = lab.operator(&["backup", "create"]);
    assert_eq!(refused.status.code(), Some(1));
    let words = text(&refused.stderr);
    assert!(words.contains("no longer does"), "{words}");
    assert_eq!(fs::read_dir(backups(&lab)).unwrap().count(), 0);
}

/// A person mends the cause and reloads: nobody waits for the next attempt's time, of a minute or more.
#[test]
fn after_a_reload_what_failed_is_tried_at_once() {
    let mut lab = Lab::new("3.6");
    every(&mut lab, 3600, "");
    fs::remove_dir(backups(&lab)).unwrap();
    lab.add("bootstrap: {from: empty}");
    lab.start_agent();
    let status = lab.wait("the reason", |it| {
        condition(it, "BackupHealthy").1 == "DestinationUnusable"
            && it["backups"]["destinations"][0]["nextSeconds"].as_u64() > Some(30)
    });
    assert_eq!(condition(&status, "Available").0, "True");
    let table = text(&lab.operator(&["status"]).stdout);
    assert!(
        table.contains(": no verified snapshot yet; next in "),
        "{table}"
    );
    fs::create_dir(backups(&lab)).unwrap();
    lab.signal_agent("HUP");
    lab.wait_for(Duration::from_secs(15), "the next attempt", |it| {
        condition(it, "BackupHealthy").1 == "Verified"
    });
}

#[test]
fn a_revision_behind_the_newest_snapshot_stops_snapshots() {
    let mut lab = lab("3.6");
    lab.start_agent();
    lab.wait_available();
    for number in 0..5 {
        assert!(lab.put("a", &number.to_string()));
    }
    json(&lab, &["backup", "create"]);
    // A manifest of a later revision: what acknowledged writes lost by a card would look like.
    let row = json(&lab, &["backup", "list"])[0].clone();
    let name = row["name"].as_str().unwrap();
    let later = name.replace(&format!("-r{}-", row["revision"]), "-r900-");
    let dir = backups(&lab).join("lab");
    fs::rename(
        dir.join(format!("{name}.db.zst")),
        dir.join(format!("{later}.db.zst")),
    )
    .unwrap();
    let bytes = fs::read(dir.join(format!("{name}.json"))).unwrap();
    let manifest = etcd_operator::backup::manifest::Manifest::decode(&bytes, name).unwrap();
    let manifest = etcd_operator::backup::manifest::Manifest {
        name: later.clone(),
        checksum: String::new(),
        ..manifest
    };
    let manifest = manifest.signed_by(lab.certificates().signer().as_ref());
    fs::write(dir.join(format!("{later}.json")), manifest.encode()).unwrap();
    fs::remove_file(dir.join(format!("{name}.json"))).unwrap();
    let status = lab.wait("the alarm", |it| {
        condition(it, "BackupHealthy").1 == "RevisionBehindBackups"
    });
    assert_eq!(condition(&status, "BackupHealthy").0, "False");
    assert_eq!(names(&lab), [later]);
}

#[test]
fn proven_snapshots_are_copied_to_a_second_disk() {
    let mut lab = Lab::new("3.6");
    let second = lab.root.join("second");
    fs::create_dir(&second).unwrap();
    every(
        &mut lab,
        1,
        &format!(", {{local: {{path: {}, keep: 5}}}}", second.display()),
    );
    lab.start_agent();
    lab.wait_available();
    assert!(lab.put("a", "1"));
    let copies = || {
        fs::read_dir(second.join("lab")).map_or(0, |it| {
            it.flatten()
                .filter(|it| it.path().extension().is_some_and(|it| it == "json"))
                .count()
        })
    };
    // The first snapshot may hold that write already, and then there is nothing new to take.
    lab.wait("a copy", |_| copies() >= 1);
    assert!(lab.put("b", "1"));
    lab.wait("copies", |it| copies() >= 2 && it["backups"]["queued"] == 0);
    // One of them alone is enough for a restore.
    let copy = fs::read_dir(second.join("lab"))
        .unwrap()
        .map(|it| it.unwrap().path())
        .find(|it| it.to_string_lossy().ends_with(".db.zst"))
        .unwrap();
    let report = json(
        &lab,
        &["restore", "--yes", "--from", copy.to_str().unwrap()],
    );
    assert_eq!(report["outcome"], "restored");
}

#[test]
fn a_damaged_snapshot_keeps_no_other_from_being_copied_and_a_new_disk_gets_its_copies() {
    let mut lab = Lab::new("3.6");
    let (first, second) = (lab.root.join("first"), lab.root.join("second"));
    fs::create_dir(&first).unwrap();
    lab.add(&format!(
        "backup: {{destinations: [{{local: {{path: {}}}}}, {{local: {{path: {}}}}}]}}",
        first.display(),
        second.display()
    ));
    lab.add("bootstrap: {from: empty}");
    lab.start_agent();
    lab.wait_available();
    let mut taken = Vec::new();
    for number in 0..2 {
        assert!(lab.put("a", &number.to_string()));
        let row = json(&lab, &["backup", "create"]);
        taken.push(row["snapshot"]["name"].as_str().unwrap().to_owned());
    }
    lab.stop_agent();
    let file = |dir: &Path, index: usize| dir.join(format!("lab/{}.db.zst", taken[index]));
    let mut bytes = fs::read(file(&first, 1)).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(file(&first, 1), bytes).unwrap();
    fs::create_dir(&second).unwrap();
    let copy = || text(&lab.operator(&["backup", "copy"]).stderr);
    let said = copy();
    assert!(
        said.contains(&format!("{} is not copied", taken[1])),
        "{said}"
    );
    assert!(file(&second, 0).exists() && !file(&second, 1).exists());
    // Another disk in its place, made ready by hand.
    fs::remove_dir_all(second.join("lab")).unwrap();
    fs::create_dir(second.join("lab")).unwrap();
    let said = copy();
    assert!(file(&second, 0).exists(), "{said}");
}

#[test]
fn a_trial_restore_is_served_by_a_real_etcd_of_every_line_and_leaves_nothing() {
    for line in ["3.5", "3.6", "3.7"] {
        let mut lab = lab(line);
        lab.start_agent();
        lab.wait_available();
        lab.fill(50);
        json(&lab, &["backup", "create"]);
        let pid = lab.etcd_pid();
        let checked = json(&lab, &["backup", "verify", "--level", "4"]);
        assert_eq!(checked[0]["level"], 4, "{line}: {checked}");
        assert_eq!(json(&lab, &["backup", "list"])[0]["level"], 4);
        assert!(!lab.lib("backup/trial").exists());
        assert_eq!(lab.etcd_pid(), pid);
        // Without etcdutl it cannot be tried, and says so.
        let store = lab.lib(&format!("store/etcd-{}/etcdutl", lab.version));
        fs::remove_file(store).unwrap();
        let failed = lab.operator(&["backup", "verify", "--level", "4"]);
        assert_eq!(failed.status.code(), Some(1));
        let words = text(&failed.stdout);
        assert!(words.contains("etcdutl"), "{words}");
    }
}

#[test]
fn the_document_asks_for_trial_restores() {
    let mut lab = Lab::new("3.6");
    every(&mut lab, 1, "");
    let spec = lab
        .spec
        .replace("backup: {", "backup: {verify: {level: 4}, ");
    lab.spec = spec;
    lab.write_document();
    lab.start_agent();
    lab.wait_available();
    assert!(lab.put("a", "1"));
    lab.wait("a trial", |it| it["backups"]["lastVerified"]["level"] == 4);
}

#[test]
fn a_snapshot_that_failed_claims_no_place_and_lets_nothing_be_removed() {
    let mut lab = lab("3.6");
    lab.start_agent();
    lab.wait_available();
    lab.stop_agent();
    lab.kill_etcd();
    let failed = lab.operator(&["backup", "create"]);
    assert_eq!(failed.status.code(), Some(1), "{}", text(&failed.stderr));
    // A new disk takes the place of the one that no snapshot was ever saved to.
    fs::remove_dir_all(backups(&lab)).unwrap();
    fs::create_dir(backups(&lab)).unwrap();
    lab.start_agent();
    lab.wait_available();
    let pruned = lab.operator(&["backup", "prune"]);
    let words = text(&pruned.stderr);
    assert_eq!(pruned.status.code(), Some(3), "{words}");
    assert!(words.contains("could not be saved"), "{words}");
    assert_eq!(json(&lab, &["backup", "create"])["result"], "saved");
    assert_eq!(json(&lab, &["backup", "prune"])[0]["removed"], false);
}
