//! Retention of real snapshots, with manifests of times gone by.

use std::collections::BTreeSet;
use std::fs;

use etcd_operator::backup::manifest::{Class, Manifest};
use etcd_operator::backup::name::{SnapshotName, When};
use etcd_operator::clock;
use etcd_operator::clock::rfc3339;
use etcd_operator::cluster::Timestamp;
use etcd_operator::tls::Signer;
use serde_json::Value;

use crate::lab::text;
use crate::stage::Stage;

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;

/// A cluster of the past, whose snapshots were taken at such times.
struct Past {
    stage: Stage,
    packed: Vec<u8>,
    template: Manifest,
    /// Noon of today or of yesterday, so that hours before it are of the same day.
    noon: i64,
}

impl Past {
    fn new() -> Self {
        let mut stage = Stage::new("3.6");
        stage.fill("key", 200, 100);
        let (file, template) = stage.saved();
        let packed = fs::read(file).unwrap();
        // Nothing here needs etcd any more.
        stage.stop();
        fs::remove_dir_all(stage.dir()).unwrap();
        fs::create_dir(stage.dir()).unwrap();
        let now = clock::now().0;
        let today = now.div_euclid(DAY) * DAY + DAY / 2;
        Past {
            stage,
            packed,
            template,
            noon: if today > now { today - DAY } else { today },
        }
    }

    /// One that was taken so many seconds before noon; its name.
    fn taken(&self, before: i64, edit: impl FnOnce(&mut Manifest)) -> String {
        let own = self.stage.lab.certificates().signer();
        self.signed(before, own.as_ref(), edit)
    }

    /// The same, signed by somebody, or by nobody.
    fn signed(
        &self,
        before: i64,
        signer: Option<&Signer>,
        edit: impl FnOnce(&mut Manifest),
    ) -> String {
        let at = Timestamp(self.noon - before);
        let mut manifest = Manifest {
            class: Class::Scheduled,
            created: Some(rfc3339(at)),
            boot_id: "another".to_owned(),
            ..self.template.clone()
        };
        manifest.revision.snapshot = 1_000_000 - before / 60;
        edit(&mut manifest);
        let name = SnapshotName {
            member: manifest.member.clone(),
            when: When::At(at),
            revision: manifest.revision.snapshot,
            hash: u32::from_str_radix(&manifest.hash, 16).unwrap(),
        };
        manifest.name = name.to_string();
        let manifest = manifest.signed_by(signer);
        let store = self.stage.store();
        fs::write(store.part(), &self.packed).unwrap();
        store.commit(&store.part(), &name, &manifest).unwrap();
        manifest.name
    }

    /// Says in the document what stays.
    fn keep(&mut self, keep: &str) {
        let spec = &self.stage.lab.spec;
        let from = spec.find("{local:").unwrap();
        let path = self.stage.place.display();
        let spec = format!("{}{{local: {{path: {path}, {keep}}}}}]}}\n", &spec[..from]);
        self.stage.lab.spec = spec;
        self.stage.lab.write_document();
    }

    fn prune(&self, arguments: &[&str]) -> (i32, Value, String) {
        let arguments = [&["backup", "prune", "-o", "json"], arguments].concat();
        let output = self.stage.lab.operator(&arguments);
        let rows = serde_json::from_slice(&output.stdout).unwrap_or_default();
        (output.status.code().unwrap(), rows, text(&output.stderr))
    }

    fn names(&self) -> BTreeSet<String> {
        let entries = self.stage.entries();
        entries.iter().map(|it| it.name.to_string()).collect()
    }

    /// Prunes, after a look at what would go; exactly these stay.
    fn stay(&self, expected: &[&String]) {
        let expected: BTreeSet<String> = expected.iter().map(|it| (*it).clone()).collect();
        let before = (self.names(), self.stage.files());
        let (code, rows, words) = self.prune(&["--dry-run"]);
        assert_eq!(code, 0, "{words}");
        let would_stay: BTreeSet<String> = rows
            .as_array()
            .unwrap()
            .iter()
            .filter(|it| !it["fate"].as_str().unwrap().starts_with("goes"))
            .map(|it| it["name"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(would_stay, expected, "{rows:#}");
        assert_eq!(
            (self.names(), self.stage.files()),
            before,
            "a look removes nothing"
        );
        let (code, rows, words) = self.prune(&[]);
        assert_eq!(code, 0, "{words}");
        assert_eq!(self.names(), expected, "{rows:#}");
        assert_eq!(
            self.stage.files().len(),
            2 * expected.len(),
            "{:?}",
            self.stage.files()
        );
        let (code, rows, _) = self.prune(&[]);
        assert!(code == 0 && self.names() == expected, "again: {rows:#}");
    }
}

#[test]
fn counts_hours_and_days_keep_what_they_say_and_no_more() {
    let mut past = Past::new();
    past.keep("keep: 2, keepHourly: 4, keepDaily: 3");
    let at = |before: i64| past.taken(before, |_| ());
    let minutes = [0, 10, 20, 30].map(|it| at(it * 60));
    let hours = [2, 3, 4, 5].map(|it| at(it * HOUR));
    let days = [1, 2, 3, 9].map(|it| at(it * DAY));
    let earlier = at(DAY + 2 * HOUR);
    assert_eq!(past.names().len(), 13);
    // Noon is the newest of its hour, of its day and of all; 11:50 that of the hour before, 10:00 and
    // 9:00 of those before.
    past.stay(&[
        &minutes[0],
        &minutes[1],
        &hours[0],
        &hours[1],
        &days[0],
        &days[1],
    ]);
    assert!(!past.names().contains(&earlier));
}

#[test]
fn no_more_bytes_stay_than_the_document_says_and_the_newest_verified_always_does() {
    let mut past = Past::new();
    let size = past.packed.len();
    past.keep(&format!("keep: 9, maxBytes: \"{}\"", size * 3 + size / 2));
    let all: Vec<String> = (0..6).map(|it| past.taken(it * DAY, |_| ())).collect();
    past.stay(&[&all[0], &all[1], &all[2]]);
    past.keep("keep: 9, maxBytes: \"1\"");
    past.stay(&[&all[0]]);
    past.keep("keep: 1");
    past.stay(&[&all[0]]);
}

#[test]
fn what_is_not_ours_asked_for_or_last_to_verify_is_never_pruned() {
    let mut past = Past::new();
    past.keep("keep: 1");
    let unproven = past.taken(0, |it| it.verified.level = 2);
    let damaged = past.taken(HOUR, |it| it.verified.level = 0);
    let newest = past.taken(2 * HOUR, |_| ());
    let asked = past.taken(DAY, |it| it.class = Class::OnDemand);
    let other = past.taken(2 * DAY, |it| it.cluster_id = "00000000000000aa".to_owned());
    let expired = past.taken(3 * DAY, |_| ());
    let worthless = past.taken(4 * DAY, |it| it.verified.level = 0);
    past.stay(&[&unproven, &damaged, &newest, &asked, &other]);
    assert!(!past.names().contains(&expired) && !past.names().contains(&worthless));
    // Nobody's: no manifest, or one of another format.
    let name = past.taken(5 * DAY, |_| ());
    let json = past.stage.dir().join(format!("{name}.json"));
    fs::remove_file(&json).unwrap();
    past.prune(&[]);
    assert!(
        past.names().contains(&name),
        "without a manifest nobody knows whose it is"
    );
}

/// Whoever can write there plants snapshots with the cluster's own id, newer than all of its own.
#[test]
fn what_others_signed_pushes_none_of_ours_out_and_is_not_removed() {
    let mut past = Past::new();
    past.keep("keep: 2");
    let ours: Vec<String> = (1..5).map(|it| past.taken(it * HOUR, |_| ())).collect();
    let newer = |it: &mut Manifest| it.revision.snapshot += 5000;
    let planted: Vec<String> = (0..3).map(|it| past.signed(it, None, newer)).collect();
    past.stay(&[&ours[0], &ours[1], &planted[0], &planted[1], &planted[2]]);
    // A person is not led to believe that one of them is the newest verified one.
    let output = past
        .stage
        .lab
        .operator(&["backup", "delete", "--yes", &ours[0], &ours[1]]);
    let said = text(&output.stderr);
    assert!(said.contains("is the newest verified snapshot"), "{said}");
}

#[test]
fn without_a_trusted_clock_retention_goes_by_count_and_bytes() {
    let mut past = Past::new();
    let size = past.packed.len();
    let undated = |before: i64| past.taken(before, |it| it.created = None);
    let new: Vec<String> = (0..8).map(|it| undated(it * HOUR)).collect();
    let old: Vec<String> = (1..4).map(|it| past.taken(it * DAY, |_| ())).collect();
    let marker = past
        .stage
        .lab
        .root
        .join("run/systemd/timesync/synchronized");
    fs::remove_file(&marker).unwrap();
    // Two by count, three whose day nobody knows, and the days that were dated once.
    past.keep("keep: 2, keepDaily: 3");
    let (code, rows, words) = past.prune(&["--dry-run"]);
    assert_eq!(code, 0, "{words}");
    let fate = |name: &String| {
        let row = rows
            .as_array()
            .unwrap()
            .iter()
            .find(|it| it["name"] == name.as_str());
        row.unwrap()["fate"].as_str().unwrap().to_owned()
    };
    assert!(
        fate(&new[2]).contains("wait for a trusted clock"),
        "{rows:#}"
    );
    let stay = [&new[..5], &old[..]].concat();
    past.stay(&stay.iter().collect::<Vec<_>>());
    past.keep(&format!("keep: 9, maxBytes: \"{}\"", size * 2 + size / 2));
    past.stay(&[&new[0], &new[1]]);
    past.keep("keep: 1");
    past.stay(&[&new[0]]);
}

#[test]
fn retention_waits_where_the_clock_jumped() {
    let mut past = Past::new();
    past.keep("keep: 1");
    for before in 0..4 {
        past.taken(before * DAY, |_| ());
    }
    // A snapshot of the day after tomorrow: the clock went back since.
    past.taken(-3 * DAY, |_| ());
    let before = past.stage.files();
    let (code, _, words) = past.prune(&[]);
    assert_eq!(code, 3, "{words}");
    assert!(words.contains("jumped by more than a day"), "{words}");
    assert_eq!(past.stage.files(), before);
}

#[test]
fn what_was_taken_for_a_time_goes_after_it_by_a_clock_that_is_trusted() {
    let mut past = Past::new();
    past.keep("keep: 1");
    let on_demand = |ttl: Option<i64>| {
        move |it: &mut Manifest| {
            it.class = Class::OnDemand;
            it.ttl = ttl.map(i64::unsigned_abs);
        }
    };
    let newest = past.taken(0, on_demand(Some(1)));
    let for_ever = past.taken(3 * DAY, on_demand(None));
    let not_yet = past.taken(4 * DAY, on_demand(Some(30 * DAY)));
    past.taken(5 * DAY, on_demand(Some(DAY)));
    // The newest verified one stays whatever was said of it.
    past.stay(&[&newest, &for_ever, &not_yet]);
    // Of an unknown age nothing is too old.
    let unknown = past.taken(6 * DAY, |it| {
        on_demand(Some(1))(it);
        it.created = None;
    });
    past.stay(&[&newest, &for_ever, &not_yet, &unknown]);
}

#[test]
fn a_snapshot_is_deleted_by_name_and_the_newest_verified_one_by_force_alone() {
    let past = Past::new();
    let all: Vec<String> = (0..4).map(|it| past.taken(it * DAY, |_| ())).collect();
    let other = past.taken(5 * DAY, |it| it.cluster_id = "00000000000000aa".to_owned());
    let delete = |arguments: &[&str]| {
        let arguments = [&["backup", "delete", "-o", "json"], arguments].concat();
        let output = past.stage.lab.operator(&arguments);
        let rows: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        (output.status.code().unwrap(), rows, text(&output.stderr))
    };
    let refused = |arguments: &[&str], code, words: &str| {
        let before = past.stage.files();
        let (found, _, said) = delete(arguments);
        assert!(found == code && said.contains(words), "{found} {said}");
        assert_eq!(past.stage.files(), before, "nothing is deleted");
    };
    refused(&[&all[1]], 3, "say --yes");
    refused(
        &["latest", "--yes"],
        3,
        "latest may mean another one the next time",
    );
    refused(
        &[&all[1], "nonexistent", "--yes"],
        1,
        "there is no snapshot nonexistent",
    );
    refused(&[&all[0], "--yes"], 3, "is the newest verified snapshot in");
    refused(
        &[&all[1], &all[0], "--yes"],
        3,
        "is the newest verified snapshot in",
    );
    refused(&[&other, "--yes"], 3, "is the newest verified snapshot in");
    refused(
        &[&all[1], "--yes", "--at", "/elsewhere"],
        2,
        "is no destination",
    );
    let (code, rows, words) = delete(&[&all[1], &all[3], "--yes"]);
    assert_eq!(code, 0, "{words}");
    assert_eq!(rows.as_array().unwrap().len(), 2, "{rows:#}");
    let left = |names: &[&String]| {
        names
            .iter()
            .map(|it| (*it).clone())
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(past.names(), left(&[&all[0], &all[2], &other]));
    let (code, _, words) = delete(&[&all[0], "--yes", "--force"]);
    assert_eq!(code, 0, "{words}");
    assert_eq!(past.names(), left(&[&all[2], &other]));
    assert_eq!(past.stage.files().len(), 4, "{:?}", past.stage.files());
}

#[test]
fn a_list_is_newest_first_and_tells_age_and_cluster() {
    let past = Past::new();
    let second = past.taken(2 * HOUR, |_| ());
    let first = past.taken(HOUR, |it| {
        it.cluster_id = "00000000000000aa".to_owned();
        it.revision.snapshot = 5; // a cluster that began anew
    });
    let listed = past.stage.lab.operator(&["backup", "list", "-o", "json"]);
    let rows: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let name = |index: usize| rows[index]["name"].as_str().unwrap();
    assert_eq!([name(0), name(1)], [first.as_str(), second.as_str()]);
    let hours = (clock::now().0 - past.noon) / HOUR + 1;
    let age = rows[0]["ageSeconds"].as_i64().unwrap();
    assert_eq!(age / HOUR, hours, "{rows:#}");
    let table = text(&past.stage.lab.operator(&["backup", "list"]).stdout);
    let mut lines = table.lines();
    let header: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    assert_eq!(header[..2], ["NAME", "AGE"]);
    assert!(header.contains(&"CLUSTER"), "{table}");
    assert!(
        lines.next().unwrap().contains(" 00000000000000aa "),
        "{table}"
    );
    // One alone: with its file and its age.
    let shown = past
        .stage
        .lab
        .operator(&["backup", "show", &second, "-o", "json"]);
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    let path = past.stage.dir().join(format!("{second}.db.zst"));
    assert_eq!(shown["path"], path.to_str().unwrap());
    assert_eq!(shown["ageSeconds"].as_i64().unwrap() / HOUR, hours + 1);
    assert_eq!(shown["name"], second.as_str());
}

/// A cron of `backup create --ttl` and nothing else: no schedule, no prune.
#[test]
fn snapshots_with_a_time_to_live_do_not_fill_the_disk() {
    let stage = Stage::new("3.6");
    let create = |arguments: &[&str]| {
        let arguments = [&["backup", "create", "-o", "json"], arguments].concat();
        let output = stage.lab.operator(&arguments);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(answer["result"], "saved", "{answer}");
        answer["snapshot"].clone()
    };
    let names = || -> BTreeSet<String> {
        stage
            .entries()
            .iter()
            .map(|it| it.name.to_string())
            .collect()
    };
    let wrong = stage.lab.operator(&["backup", "create", "--ttl", "1 day"]);
    assert_eq!(wrong.status.code(), Some(2), "{}", text(&wrong.stderr));
    assert!(stage.lab.put("a", "1"));
    let first = create(&["--ttl", "1s"]);
    assert_eq!(first["ttlSeconds"], 1, "{first}");
    // The same data for ever is taken once more (in the same second under the same name).
    let second = create(&[]);
    assert!(second["ttlSeconds"].is_null(), "{second}");
    assert!(stage.lab.put("a", "2"));
    stage.lab.wait("the end of the first one's time", |_| {
        let age = &stage.entries();
        age.len() < 2 || {
            let rows = stage.lab.operator(&["backup", "list", "-o", "json"]);
            let rows: Value = serde_json::from_slice(&rows.stdout).unwrap();
            let rows = rows.as_array().unwrap();
            let first = rows.iter().find(|it| it["name"] == first["name"]).unwrap();
            first["ageSeconds"].as_u64().unwrap() >= 1
        }
    });
    let third = create(&["--ttl", "1d"]);
    let left = [&second, &third].map(|it| it["name"].as_str().unwrap().to_owned());
    assert_eq!(names(), BTreeSet::from(left));
}

#[test]
fn where_etcd_is_held_a_snapshot_is_refused_in_the_words_of_the_hold() {
    let mut stage = Stage::cold("3.6", "", "");
    let port = std::net::TcpListener::bind(("127.0.0.1", stage.lab.ports[0])).unwrap();
    stage.lab.start_agent();
    stage.lab.wait_hold("PortTaken");
    // Only a cluster that lives has snapshots: let it be born, and take its port again.
    drop(port);
    stage.lab.wait_available();
    stage.lab.stop_agent();
    stage.lab.kill_etcd();
    let _port = std::net::TcpListener::bind(("127.0.0.1", stage.lab.ports[0])).unwrap();
    stage.lab.start_agent();
    stage.lab.wait_hold("PortTaken");
    let refused = stage.lab.operator(&["backup", "create"]);
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("etcd does not serve: PortTaken: "), "{said}");
    assert!(said.contains("; next: choose another port"), "{said}");
}
