//! Work on snapshots that its operator does not see: in Kubernetes a Pod does it on a claim, and leaves
//! in a few words what lies there.

use serde::{Deserialize, Serialize};

use super::jobs::SNAPSHOT_FAILED;
use super::task::Task;
use super::{
    Attempts, BUSY, DAMAGED, Member, Work, checked, count, due_in, named, newest_own, seen,
};
use crate::backup::age::Ages;
use crate::backup::local::Entry;
use crate::backup::manifest::Manifest;
use crate::backup::name::SnapshotName;
use crate::backup::trust::Trust;
use crate::backup::{copy, place};
use crate::cluster::{Detail, Timestamp, detail};
use crate::observed::{
    BackupFailure, Backups, Clock, DestinationSeen, NAMED_MAX, SnapshotNamed, SnapshotSeen,
};
use crate::spec::backup::{Backup, DESTINATIONS_MAX};

/// Work that other processes are at.
#[derive(Clone, Debug, Default)]
pub struct UnderWay {
    /// On snapshots.
    pub snapshots: bool,
    /// On copies.
    pub copies: bool,
    /// Why such a process waits to begin.
    pub waits: Option<BackupFailure>,
}

/// What a Pod that worked on snapshots leaves: how that went, and what lies there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Kept {
    /// What lies there was seen: without it, none of the counts and snapshots says anything.
    pub listed: bool,
    /// The newest snapshot of this cluster, and the bytes of its file.
    pub newest: Option<Manifest>,
    /// As it lies there, which may not be what its manifest says.
    pub newest_size: Option<u64>,
    /// The name of the one that a restore of the latest takes.
    pub restorable: Option<String>,
    /// The newest one that is verified.
    pub verified: Option<Seen>,
    /// The newest ones, newest first: the name, the level, and the bytes of the file.
    pub named: Vec<(String, u8, u64)>,
    /// How many there are, and their bytes.
    pub kept: (u32, u64),
    /// How many wait to be copied, and their bytes.
    pub queued: (u32, u64),
    /// The further destinations, in the document's order.
    pub copies_seen: Vec<CopiesKept>,
    /// What the last one took, in milliseconds.
    pub took: Option<u64>,
    /// When everything was last checked, in seconds since 1970.
    pub checked: Option<i64>,
    /// When copies were last read back.
    pub copies_checked: Option<i64>,
    /// Copies lie in a destination of which none ever was.
    pub copies_unchecked: bool,
    /// The snapshot that was asked for.
    pub made: Option<Made>,
    /// A snapshot.
    pub snapshot: Done,
    /// Copies.
    pub copies: Done,
    /// Checks of what is kept.
    pub checks: Done,
}

/// A snapshot that was asked for: just taken, or there already with nothing written since.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Made {
    /// Its name.
    pub name: String,
    /// etcd's revision in it.
    pub revision: i64,
    /// The level to which it was verified.
    pub level: u8,
    /// Bytes of its file.
    pub size: Option<u64>,
}

impl Made {
    pub(super) fn of(entry: &Entry) -> Self {
        Made {
            name: entry.name.to_string(),
            revision: entry.name.revision,
            level: entry.level(),
            size: entry.size,
        }
    }
}

/// How a part of the work went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Done {
    /// It was none of the work: what was known of it stands.
    #[default]
    NotTried,
    /// As asked.
    Well,
    /// It failed.
    Failed(Failure),
}

impl Done {
    /// Why it failed.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Done::Failed(failure) => Some(failure),
            Done::NotTried | Done::Well => None,
        }
    }

    fn of(attempts: &Attempts) -> Self {
        match &attempts.last {
            Some(failure) => Done::Failed(failure.into()),
            // Somebody else held the lock: nothing was done.
            None if attempts.wait.is_some() => Done::Failed(Failure {
                reason: BUSY.to_owned(),
                why: "another process is working on the snapshots".to_owned(),
            }),
            None if attempts.at > 0 => Done::Well,
            None => Done::NotTried,
        }
    }

    fn record(&self, attempts: &mut Attempts) {
        match self {
            Done::NotTried => {}
            Done::Well => attempts.record(None),
            Done::Failed(failure) => attempts.record(Some(failure.into())),
        }
    }
}

/// A snapshot, in words for another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    revision: i64,
    created: Option<i64>,
    level: u8,
    bytes: u64,
}

impl Seen {
    fn of(it: SnapshotSeen) -> Self {
        Seen {
            revision: it.revision,
            created: it.created.map(|it| it.0),
            level: it.level,
            bytes: it.bytes,
        }
    }

    fn seen(self) -> SnapshotSeen {
        SnapshotSeen {
            revision: self.revision,
            created: self.created.map(Timestamp),
            level: self.level,
            bytes: self.bytes,
            seconds: None,
        }
    }

    /// With its age, where a trusted clock tells it.
    fn aged(self, ages: &Ages) -> SnapshotSeen {
        let seen = self.seen();
        SnapshotSeen {
            seconds: ages.since(seen.created),
            ..seen
        }
    }
}

/// What is known of a further destination, in words for another process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiesKept {
    verified: Option<Seen>,
    queued: (u32, u64),
    since: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    vanished: Option<(u32, i64)>,
}

/// What the kubelet keeps of a container's last words, in bytes.
const LAST_WORDS_MAX: usize = 4096;

/// A failure, in words for another process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// One CamelCase word.
    pub reason: String,
    /// For people.
    pub why: String,
}

/// Reasons of failures that come from another process; any other one is a snapshot's.
const REASONS: &[&str] = &[
    BUSY,
    DAMAGED,
    "CopyDamaged",
    "CopyFailed",
    "DestinationUnusable",
    BackupFailure::LINK_DOWN,
    "TrialRestoreFailed",
];

impl From<&BackupFailure> for Failure {
    fn from(it: &BackupFailure) -> Self {
        Failure {
            reason: it.reason.to_owned(),
            why: it.why.to_string(),
        }
    }
}

impl From<&Failure> for BackupFailure {
    fn from(it: &Failure) -> Self {
        let known = REASONS.iter().find(|reason| **reason == it.reason);
        BackupFailure {
            reason: known.copied().unwrap_or(SNAPSHOT_FAILED),
            why: detail(format_args!("{}", it.why)),
        }
    }
}

impl Kept {
    /// A Pod that ended without a word: what lay there lies there.
    #[must_use]
    pub fn without_a_word(self, task: &Task, why: &str) -> Self {
        let failed = |reason: &str| {
            Done::Failed(Failure {
                reason: reason.to_owned(),
                why: why.to_owned(),
            })
        };
        let mut kept = Kept {
            snapshot: Done::NotTried,
            copies: Done::NotTried,
            checks: Done::NotTried,
            ..self
        };
        match task {
            Task::Scheduled | Task::OnDemand(_) => kept.snapshot = failed(SNAPSHOT_FAILED),
            Task::Copies => kept.copies = failed("CopyFailed"),
            Task::Checks => kept.checks = failed("TrialRestoreFailed"),
        }
        kept
    }

    /// Of a Pod that could not see what lies there: what was known before stands.
    #[must_use]
    pub fn or_as_before(self, before: Kept) -> Self {
        if self.listed {
            return self;
        }
        Kept {
            made: self.made,
            snapshot: self.snapshot,
            copies: self.copies,
            checks: self.checks,
            ..before
        }
    }

    /// In words: what the kubelet keeps of a container's last ones. The oldest names are left out where they are too
    /// long.
    pub fn words(mut self) -> Result<String, serde_json::Error> {
        loop {
            let words = serde_json::to_string(&self)?;
            if words.len() < LAST_WORDS_MAX || self.named.pop().is_none() {
                return Ok(words);
            }
        }
    }

    /// The snapshot, with the level that it has by now: checks follow when it was taken.
    #[must_use]
    pub fn checked_since(&self, made: Made) -> Made {
        let newest = self.newest_entry().map(|it| Made::of(&it));
        newest.filter(|it| it.name == made.name).unwrap_or(made)
    }

    fn named(&self, ages: &Ages) -> impl Iterator<Item = SnapshotNamed> {
        self.named.iter().filter_map(|(name, level, bytes)| {
            let known: SnapshotName = name.parse().ok()?;
            let created = known.created();
            Some(SnapshotNamed {
                name: name.as_str().try_into().ok()?,
                seen: SnapshotSeen {
                    revision: known.revision,
                    created,
                    level: *level,
                    bytes: *bytes,
                    seconds: ages.since(created),
                },
            })
        })
    }

    fn newest_entry(&self) -> Option<Entry> {
        let manifest = self.newest.clone()?;
        Some(Entry {
            name: manifest.name.parse().ok()?,
            size: self.newest_size,
            manifest: Ok(manifest),
        })
    }
}

impl Work {
    /// What lies in the first destination, and how the work of this process on it went.
    pub fn kept(&self, member: &Member<'_>) -> Kept {
        let (copies_checked, copies_unchecked) = copy::last_check(member.paths, member.spec);
        let mut kept = Kept {
            took: self.took,
            snapshot: Done::of(&self.snapshot),
            copies: Done::of(&self.copies),
            checks: Done::of(&self.checks),
            copies_checked: copies_checked.map(|it| it.0),
            copies_unchecked,
            ..Kept::default()
        };
        let store = place::primary(member.spec);
        match store.map(|it| it.list()) {
            Some(Ok(entries)) => {
                kept.listed = true;
                let clusters = member.clusters();
                let ours: Vec<&Entry> = entries.iter().filter(|it| it.is_of(&clusters)).collect();
                let key = member.key();
                let (newest, verified) = newest_own(&ours, key.as_deref());
                let ages = Ages::new(None);
                let names = named(&ours, key.as_deref(), &ages).into_iter();
                let names =
                    names.map(|it| (it.name.as_str().to_owned(), it.seen.level, it.seen.bytes));
                kept.named = names.collect();
                kept.newest = newest.and_then(|it| it.manifest.clone().ok());
                kept.newest_size = newest.and_then(|it| it.size);
                kept.checked = checked(member.paths, &ours).map(|it| it.0);
                let trust = Trust::of(&member.certificates, member.spec, None);
                let counting = trust.counting(&entries);
                let restorable = place::newest_verified(&counting, &clusters);
                kept.restorable = restorable.map(|it| it.name.to_string());
                kept.verified = verified.map(|it| Seen::of(seen(it, &ages)));
                kept.kept = count(&ours);
                let copies = copy::seen(member.paths, member.spec, &entries, &member.ours(), &ages);
                for it in copies {
                    kept.queued.0 += it.queued.0;
                    kept.queued.1 += it.queued.1;
                    kept.copies_seen.push(CopiesKept {
                        verified: it.verified.map(Seen::of),
                        queued: it.queued,
                        since: it.waits_since.map(|it| it.0),
                        vanished: it.vanished,
                    });
                }
            }
            Some(Err(error)) => {
                let failed = super::failure("DestinationUnusable", &error);
                kept.snapshot = Done::Failed((&failed).into());
                if kept.checks != Done::NotTried {
                    kept.checks = kept.snapshot.clone();
                }
            }
            None => {}
        }
        kept
    }

    /// Takes note of how work in another process went.
    pub fn note(&mut self, kept: &Kept) {
        self.took = kept.took.or(self.took);
        kept.snapshot.record(&mut self.snapshot);
        kept.copies.record(&mut self.copies);
        kept.checks.record(&mut self.checks);
    }

    /// Seconds until what lies there is looked at again, after looks that failed.
    pub fn looks_in(&self) -> u64 {
        self.checks.retry_in()
    }

    fn destinations_kept(
        &self,
        backup: &Backup,
        kept: &Kept,
        verified: Option<Seen>,
        ages: &Ages,
    ) -> heapless::Vec<DestinationSeen, DESTINATIONS_MAX> {
        let first = CopiesKept {
            verified,
            ..CopiesKept::default()
        };
        let all = core::iter::once(&first).chain(&kept.copies_seen);
        let seen = all.zip(&backup.destinations).map(|(it, destination)| {
            let since = it.since.map(Timestamp);
            DestinationSeen {
                place: detail(format_args!("{}", place::describe(destination))),
                verified: it.verified.map(|it| it.aged(ages)),
                queued: it.queued,
                waits_since: since,
                waits: ages.since(since).unwrap_or_else(|| self.copies.failing()),
                vanished: it.vanished,
            }
        });
        seen.collect()
    }

    /// What is known of snapshots by what another process said of them.
    pub fn look_at(
        &self,
        member: &Member<'_>,
        kept: &Kept,
        under_way: UnderWay,
        (clock, now): (Clock, Timestamp),
        restore_failed: Option<Detail>,
    ) -> Backups {
        let none = Backups {
            busy: under_way.snapshots,
            restore_failed,
            ..Backups::default()
        };
        let Some(backup) = &member.spec.backup else {
            return none;
        };
        let clusters = member.clusters();
        let newest = kept.newest.as_ref();
        let newest = newest.filter(|it| clusters.contains(&it.cluster_id));
        let verified = kept.verified.filter(|_| newest.is_some());
        let trusted = clock == Clock::Trusted;
        let ages = Ages::new(Some(now).filter(|_| trusted));
        let last = newest.and_then(|_| Some(seen(&kept.newest_entry()?, &ages)));
        Backups {
            due_in: due_in(member.paths, backup, (&clusters, newest), clock, now),
            signer: member.key(),
            last,
            verified: verified.map(|it| it.aged(&ages)),
            named: kept
                .named(&ages)
                .filter(|_| newest.is_some())
                .take(NAMED_MAX)
                .collect(),
            kept: kept.kept,
            took_milliseconds: self.took,
            failed: under_way
                .waits
                .or_else(|| self.snapshot.last.clone())
                .or_else(|| self.checks.last.clone()),
            retry_in: self.snapshot.retry_in(),
            queued: kept.queued,
            destinations: self.destinations_kept(backup, kept, verified, &ages),
            copy_failed: self.copies.last.clone(),
            copy_failing: self.copies.failing(),
            copy_retry_in: self.copies.retry_in(),
            copy_retry_every: self.copies.interval(),
            copies_checked: kept.copies_checked.map(Timestamp),
            copies_unchecked: kept.copies_unchecked,
            copying: under_way.copies,
            checked: kept.checked.map(Timestamp),
            check_retry_in: self.checks.retry_in(),
            ..none
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backup::manifest::tests::manifest;

    #[test]
    fn a_look_that_failed_says_nothing_of_what_lies_there() {
        let before = Kept {
            listed: true,
            kept: (3, 300),
            ..Kept::default()
        };
        let failed = Kept::default().without_a_word(&Task::Checks, "no such claim");
        let after = failed.clone().or_as_before(before.clone());
        assert!(after.listed);
        assert_eq!((after.kept, &after.checks), (before.kept, &failed.checks));
        assert!(!failed.or_as_before(Kept::default()).listed);
        let none_left = Kept {
            listed: true,
            ..Kept::default()
        };
        assert_eq!(none_left.clone().or_as_before(before), none_left);
    }

    #[test]
    fn the_longest_words_fit_into_what_the_kubelet_keeps() {
        let failure = || {
            let long = "é".repeat(4000);
            Done::Failed(Failure::from(&BackupFailure {
                reason: "TrialRestoreFailed",
                why: detail(format_args!("{long}")),
            }))
        };
        let mut manifest = manifest();
        manifest.cluster = "c".repeat(50);
        manifest.member = "m".repeat(60);
        manifest.name = format!("{}-{}", manifest.cluster, "n".repeat(80));
        let seen = Seen {
            revision: i64::MAX,
            created: Some(i64::MAX),
            level: 4,
            bytes: u64::MAX,
        };
        let kept = Kept {
            listed: true,
            restorable: Some(manifest.name.clone()),
            made: Some(Made {
                name: manifest.name.clone(),
                revision: i64::MAX,
                level: 4,
                size: Some(u64::MAX),
            }),
            newest: Some(manifest),
            newest_size: Some(u64::MAX),
            verified: Some(seen),
            named: vec![("n".repeat(128), 4, u64::MAX); NAMED_MAX],
            kept: (u32::MAX, u64::MAX),
            queued: (u32::MAX, u64::MAX),
            copies_seen: vec![
                CopiesKept {
                    verified: Some(seen),
                    queued: (u32::MAX, u64::MAX),
                    since: Some(i64::MAX),
                    vanished: Some((u32::MAX, i64::MAX)),
                };
                DESTINATIONS_MAX - 1
            ],
            took: Some(u64::MAX),
            checked: Some(i64::MAX),
            copies_checked: Some(i64::MAX),
            copies_unchecked: false,
            snapshot: failure(),
            copies: failure(),
            checks: failure(),
        };
        let words = kept.clone().words().unwrap();
        assert!(words.len() < LAST_WORDS_MAX, "{}", words.len());
        let read: Kept = serde_json::from_str(&words).unwrap();
        assert!(!read.named.is_empty() && read.named.len() < NAMED_MAX);
        let named = read.named.clone();
        assert_eq!(read, Kept { named, ..kept });
    }
}
