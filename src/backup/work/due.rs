//! When a snapshot and a check are due, and the records that tell.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::backup::age::Ages;
use crate::backup::local::Entry;
use crate::backup::manifest::Manifest;
use crate::clock;
use crate::clock::parse_rfc3339;
use crate::cluster::Timestamp;
use crate::observed::Clock;
use crate::paths::Paths;
use crate::schedule;
use crate::spec::backup::{Backup, Trigger};
use crate::state::{self, StateError};

/// When the document's next snapshot was found to hold nothing new (rule B5). Under /run.
#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RunsFile {
    boot_id: String,
    /// Seconds since boot.
    skipped: Option<u64>,
    /// By the wall clock.
    skipped_at: Option<i64>,
}

fn runs(paths: &Paths) -> RunsFile {
    state::load_volatile::<RunsFile>(&paths.backup_runs())
        .filter(|it| it.boot_id == clock::boot_id())
        .unwrap_or_default()
}

/// The document's time for a snapshot has come, and nothing was written since the last one.
pub fn skip(paths: &Paths, now: Timestamp) -> Result<(), StateError> {
    let file = RunsFile {
        boot_id: clock::boot_id(),
        skipped: Some(clock::since_boot().as_secs()),
        skipped_at: Some(now.0),
    };
    state::save_volatile(&paths.backup_runs(), &file)
}

/// What clusters of one schedule lie apart by, at most, in seconds, and the share of the interval that it may take.
const SPREAD: (u64, u64) = (300, 10);

/// Seconds by which this cluster is apart from others with an interval of so many seconds: always the same, by its first
/// id, which etcd draws by hash. What all boxes begin in one second is too much for one machine, link or bucket.
fn apart(clusters: &[String], interval: u64) -> u64 {
    let id = clusters.first();
    let id = id.and_then(|it| u64::from_str_radix(it, 16).ok());
    let spread = SPREAD.0.min(interval / SPREAD.1);
    id.map_or(0, |id| id % (spread + 1))
}

/// Seconds until the document asks for the next snapshot (rule F7: an interval needs no clock). Each cluster is by as
/// much before the end of an interval, which promises an age, or behind a scheduled time, as [`apart`] says.
pub(super) fn due_in(
    paths: &Paths,
    backup: &Backup,
    (clusters, newest): (&[String], Option<&Manifest>),
    clock: Clock,
    now: Timestamp,
) -> Option<u64> {
    let runs = runs(paths);
    let trusted = clock == Clock::Trusted;
    match backup.trigger.as_ref()? {
        Trigger::Every(seconds) => {
            let uptime = clock::since_boot().as_secs();
            let ages = Ages::new(Some(now).filter(|_| trusted));
            let taken = newest.and_then(|it| ages.of(it));
            let skipped = runs.skipped.map(|it| uptime.saturating_sub(it));
            // Nobody knows how old the newest is: it is taken for old, once after a boot.
            let age = [taken, skipped].into_iter().flatten().min();
            let interval = seconds - apart(clusters, *seconds);
            Some(age.map_or(0, |age| interval.saturating_sub(age)))
        }
        Trigger::Schedule(text) => {
            if !trusted {
                return None;
            }
            let taken = newest.and_then(Manifest::created);
            let skipped = runs.skipped_at.map(Timestamp);
            // What is dated in the future was dated by a clock that was wrong, and keeps nothing back.
            let known = [taken, skipped].into_iter().flatten();
            let base = known.filter(|it| *it <= now).max();
            let Some(base) = base else { return Some(0) };
            let next = schedule::next(text, base)?;
            let after = schedule::next(text, next);
            let interval = after.map_or(0, |it| it.seconds_since(next));
            let apart = apart(clusters, u64::try_from(interval).unwrap_or(0));
            let next = Timestamp(next.0.saturating_add_unsigned(apart));
            Some(u64::try_from(next.seconds_since(now)).unwrap_or(0))
        }
    }
}

/// When everything that is kept was last checked. Each new snapshot is checked by itself and says
/// nothing about the others.
#[derive(Default, Serialize, Deserialize)]
struct ChecksFile {
    /// Seconds since 1970.
    last: i64,
}

fn checks_path(paths: &Paths) -> PathBuf {
    paths.backup().join("checked.json")
}

/// Everything that is kept was checked just now.
pub fn note_check(paths: &Paths, now: Option<Timestamp>) -> Result<(), StateError> {
    let Some(now) = now else { return Ok(()) };
    state::save(&checks_path(paths), &ChecksFile { last: now.0 })
}

/// When everything that is kept was last checked. Where that was never done: when the first one was.
pub(super) fn checked(paths: &Paths, ours: &[&Entry]) -> Option<Timestamp> {
    let at = |it: &&Entry| {
        let manifest = it.manifest.as_ref().ok()?;
        parse_rfc3339(manifest.verified.at.as_deref()?)
    };
    let file: Option<ChecksFile> = state::load(&checks_path(paths)).ok().flatten();
    let last = file.map(|it| Timestamp(it.last));
    last.or_else(|| ours.iter().filter_map(at).min())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backup::manifest::tests::manifest;
    use crate::spec::ClusterSpec;

    fn spec(lines: &str) -> ClusterSpec {
        let text = format!(
            "apiVersion: etcd.edge-operator.io/v1alpha1\nkind: EtcdCluster\nmetadata: {{name: shop}}\n\
             spec:\n  backup: {{{lines}, destinations: [{{local: {{path: /a}}}}]}}\n"
        );
        crate::document::parse(text.as_bytes()).unwrap()
    }

    /// Taken and checked by itself then.
    fn entry(at: Timestamp) -> Entry {
        let mut manifest = manifest();
        manifest.created = Some(crate::clock::rfc3339(at));
        manifest.verified.at = manifest.created.clone();
        Entry {
            name: manifest.name.parse().unwrap(),
            size: Some(manifest.file.size),
            manifest: Ok(manifest),
        }
    }

    #[test]
    fn a_new_one_says_nothing_about_the_others_that_are_kept() {
        let root = std::env::temp_dir().join(format!("due-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        let paths = Paths::under(&root);
        state::create_private_dir(&paths.backup()).unwrap();
        let at = |hour: i64| Timestamp(2_000_000_000 + hour * 3600);
        let kept = [3, 2, 1].map(|it| entry(at(it)));
        let kept: Vec<&Entry> = kept.iter().collect();
        assert_eq!(checked(&paths, &kept), Some(at(1)));
        assert_eq!(checked(&paths, &[]), None);
        note_check(&paths, Some(at(2))).unwrap();
        assert_eq!(checked(&paths, &kept), Some(at(2)));
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn clusters_of_one_schedule_do_not_begin_in_one_second() {
        let root = std::env::temp_dir().join(format!("apart-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        let paths = Paths::under(&root);
        let now = Timestamp(2_000_000_000);
        let due = |lines: &str, id: u64, age: i64| {
            let spec = spec(lines);
            let newest = entry(Timestamp(now.0 - age)).manifest.unwrap();
            let clusters = [format!("{id:x}")];
            let backup = spec.backup.as_ref().unwrap();
            let of = (&clusters[..], Some(&newest));
            due_in(&paths, backup, of, Clock::Trusted, now).unwrap()
        };
        let spread = |lines: &str| {
            let all: std::collections::BTreeSet<u64> =
                (0..1000).map(|id| due(lines, id, 60)).collect();
            (all.len(), all.last().unwrap() - all.first().unwrap())
        };
        assert_eq!(spread("schedule: '0 3 * * *'"), (301, 300));
        assert_eq!(spread("schedule: '*/5 * * * *'"), (31, 30));
        assert_eq!(spread("interval: 1d"), (301, 300));
        assert_eq!(spread("interval: 10s"), (1, 0), "younger than its interval");
        // An interval promises an age, and a schedule's time comes first.
        assert!((0..1000).all(|id| due("interval: 1h", id, 60) <= 3540));
        assert!((0..1000).all(|id| due("interval: 1h", id, 3600) == 0));
        // Once the scheduled time has come (03:30 of each day; it is 03:33:20), each still keeps its distance.
        let schedule = "schedule: '30 3 * * *'";
        assert_eq!(due(schedule, 300, 86_400), 100);
        assert_eq!(due(schedule, 201, 86_400), 1);
        assert_eq!(due(schedule, 200, 86_400), 0);
    }

    #[test]
    fn a_snapshot_dated_in_the_future_keeps_no_other_one_back() {
        let root = std::env::temp_dir().join(format!("future-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        let paths = Paths::under(&root);
        let spec = spec("schedule: '0 3 * * *'");
        let backup = spec.backup.as_ref().unwrap();
        let now = Timestamp(2_000_000_000); // 03:33
        let due = |at: i64| {
            let Ok(newest) = entry(Timestamp(at)).manifest else {
                unreachable!()
            };
            due_in(&paths, backup, (&[], Some(&newest)), Clock::Trusted, now)
        };
        assert_eq!(due(now.0 - 86_400), Some(0));
        assert!(due(now.0 - 60) > Some(3600));
        assert_eq!(due(now.0 + 400 * 86_400), Some(0));
        // Nothing was written since: that is no reason to look again at once.
        std::fs::create_dir_all(&paths.run).unwrap();
        skip(&paths, now).unwrap();
        assert!(due(now.0 + 400 * 86_400) > Some(3600));
        std::fs::remove_dir_all(&root).unwrap();
    }
}
