//! Retention of real snapshots, with manifests of times gone by.

use std::collections::BTreeSet;
use std::fs;

use etcd_operator::api::status::rfc3339;
use etcd_operator::backup::manifest::{Class, Manifest};
use etcd_operator::backup::name::{SnapshotName, When};
use etcd_operator::clock;
use etcd_operator::cluster::Timestamp;
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

#[test]
fn retention_waits_where_the_clock_cannot_be_trusted() {
    let mut past = Past::new();
    past.keep("keep: 1");
    for before in 0..4 {
        past.taken(before * DAY, |_| ());
    }
    let before = past.stage.files();
    let marker = past
        .stage
        .lab
        .root
        .join("run/systemd/timesync/synchronized");
    fs::remove_file(&marker).unwrap();
    let (code, _, words) = past.prune(&[]);
    assert_eq!(code, 3, "{words}");
    assert!(
        words.contains("nothing was removed: the clock is not trusted"),
        "{words}"
    );
    assert!(words.contains("next: see preflight"), "{words}");
    assert_eq!(past.prune(&["--dry-run"]).0, 0, "a look needs no clock");
    assert_eq!(past.stage.files(), before);
    fs::write(&marker, "").unwrap();
    // A snapshot of the day after tomorrow: the clock went back since.
    past.taken(-3 * DAY, |_| ());
    let before = past.stage.files();
    let (code, _, words) = past.prune(&[]);
    assert_eq!(code, 3, "{words}");
    assert!(words.contains("jumped by more than a day"), "{words}");
    assert_eq!(past.stage.files(), before);
}
