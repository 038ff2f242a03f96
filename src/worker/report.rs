//! What a worker knows of its cluster's snapshots, in words for another process.

use serde::{Deserialize, Serialize};

use crate::backup::local::Entry;
use crate::backup::name::SnapshotName;
use crate::backup::work::Made;
use crate::cluster::{Timestamp, detail};
use crate::observed::{
    BackupFailure, Backups, DestinationSeen, NAMED_MAX, SnapshotNamed, SnapshotSeen,
};
use crate::spec::backup::DESTINATIONS_MAX;

/// The same as [`Backups`], and how requests stand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Report {
    /// The name of the one that a restore of the latest takes.
    pub restorable: Option<String>,
    /// Ids of requests that wait or are worked on.
    pub asked: Vec<String>,
    /// Requests that have ended.
    pub ended: Vec<Ended>,
    /// Destinations for which there are no access keys, by their place in the document.
    pub without_keys: Vec<usize>,
    /// The last attempt that failed: its number, and why.
    pub failure: Option<(u64, String)>,
    /// A snapshot is taken, or what is kept is checked.
    pub busy: bool,
    /// Copies are made.
    pub copying: bool,
    due_in: Option<u64>,
    signer: Option<String>,
    last: Option<Seen>,
    verified: Option<Seen>,
    named: Vec<(String, Seen)>,
    kept: (u32, u64),
    took_milliseconds: Option<u64>,
    /// Why the last snapshot failed.
    pub failed: Option<Failure>,
    retry_in: u64,
    queued: (u32, u64),
    /// Why the last copies failed.
    pub copy_failed: Option<Failure>,
    copy_failing: u64,
    copy_retry_in: u64,
    copy_retry_every: u64,
    destinations: Vec<Destination>,
    copies_checked: Option<i64>,
    copies_unchecked: bool,
    checked: Option<i64>,
    check_retry_in: u64,
}

/// What lies in the first destination under one name, or another word for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Found {
    /// The level that it has reached; none: it does not lie there. Of the latest: the highest of all.
    pub level: Option<u8>,
    /// A key that counts has signed it.
    pub counts: bool,
    /// Its name. Of the latest: the name of the one that a restore takes.
    pub name: Option<String>,
    /// The word fits several, in words.
    pub several: Option<String>,
}

/// How a request ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ended {
    /// Of the request.
    pub id: String,
    /// The snapshot, just taken or there already with nothing written since; none: somebody removed it meanwhile.
    pub made: Option<Made>,
    /// Why there is none.
    pub failed: Option<Failure>,
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Seen {
    revision: i64,
    created: Option<i64>,
    level: u8,
    bytes: u64,
    seconds: Option<u64>,
    version: Option<String>,
}

/// A destination, in the document's order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Destination {
    place: String,
    verified: Option<Seen>,
    queued: (u32, u64),
    since: Option<i64>,
    waits: u64,
    vanished: Option<(u32, i64)>,
}

/// A failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// One CamelCase word.
    pub reason: String,
    /// For people.
    pub why: String,
}

/// Reasons of failures that a worker tells; any other one is a snapshot's.
const REASONS: &[&str] = &[
    "BackupBusy",
    "CopyDamaged",
    "CopyFailed",
    "DestinationUnusable",
    BackupFailure::LINK_DOWN,
    "SnapshotDamaged",
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
            reason: known.copied().unwrap_or("SnapshotFailed"),
            why: detail(format_args!("{}", it.why)),
        }
    }
}

impl Ended {
    /// How work on a request ended.
    pub fn of(id: String, result: Result<Option<Made>, BackupFailure>) -> Self {
        let (made, failed) = match result {
            Ok(made) => (made, None),
            Err(failure) => (None, Some((&failure).into())),
        };
        Ended { id, made, failed }
    }

    /// With the level that the snapshot has by now: checks follow when it was taken.
    #[must_use]
    pub fn as_it_lies(self, entries: &[Entry]) -> Self {
        let made = self.made.map(|made| {
            let mut all = entries.iter();
            let found = all.find(|it| it.name.to_string() == made.name);
            found.map_or(made, Made::of)
        });
        Ended { made, ..self }
    }
}

impl Seen {
    fn of(it: &SnapshotSeen) -> Self {
        Seen {
            revision: it.revision,
            created: it.created.map(|it| it.0),
            level: it.level,
            bytes: it.bytes,
            seconds: it.seconds,
            version: it.version.map(|it| it.to_string()),
        }
    }

    fn seen(&self, older: u64) -> SnapshotSeen {
        SnapshotSeen {
            revision: self.revision,
            created: self.created.map(Timestamp),
            level: self.level,
            bytes: self.bytes,
            seconds: self.seconds.map(|it| it.saturating_add(older)),
            version: self.version.as_ref().and_then(|it| it.parse().ok()),
        }
    }
}

impl Report {
    /// What is known; how requests stand comes from elsewhere.
    pub fn of(it: &Backups) -> Self {
        let failure = |it: &Option<BackupFailure>| it.as_ref().map(Failure::from);
        let destinations = it.destinations.iter().map(|it| Destination {
            place: it.place.to_string(),
            verified: it.verified.as_ref().map(Seen::of),
            queued: it.queued,
            since: it.waits_since.map(|it| it.0),
            waits: it.waits,
            vanished: it.vanished,
        });
        let named = it.named.iter();
        Report {
            busy: it.busy,
            copying: it.copying,
            due_in: it.due_in,
            signer: it.signer.as_ref().map(ToString::to_string),
            last: it.last.as_ref().map(Seen::of),
            verified: it.verified.as_ref().map(Seen::of),
            named: named
                .map(|it| (it.name.to_string(), Seen::of(&it.seen)))
                .collect(),
            kept: it.kept,
            took_milliseconds: it.took_milliseconds,
            failed: failure(&it.failed),
            retry_in: it.retry_in,
            queued: it.queued,
            copy_failed: failure(&it.copy_failed),
            copy_failing: it.copy_failing,
            copy_retry_in: it.copy_retry_in,
            copy_retry_every: it.copy_retry_every,
            destinations: destinations.collect(),
            copies_checked: it.copies_checked.map(|it| it.0),
            copies_unchecked: it.copies_unchecked,
            checked: it.checked.map(|it| it.0),
            check_retry_in: it.check_retry_in,
            ..Report::default()
        }
    }

    /// The same, so many seconds after it was told.
    pub fn backups(&self, older: u64) -> Backups {
        let failure = |it: &Option<Failure>| it.as_ref().map(BackupFailure::from);
        let seen = |it: &Option<Seen>| it.as_ref().map(|it| it.seen(older));
        let destinations = self.destinations.iter().take(DESTINATIONS_MAX);
        let destinations = destinations.map(|it| DestinationSeen {
            place: detail(format_args!("{}", it.place)),
            verified: seen(&it.verified),
            queued: it.queued,
            waits_since: it.since.map(Timestamp),
            waits: it
                .waits
                .saturating_add(if it.queued.0 > 0 { older } else { 0 }),
            vanished: it.vanished,
        });
        // What is no name of ours is nothing that a status shows.
        let named = self
            .named
            .iter()
            .filter(|it| it.0.parse::<SnapshotName>().is_ok());
        let named = named.filter_map(|(name, it)| {
            let name = name.as_str().try_into().ok()?;
            let seen = it.seen(older);
            Some(SnapshotNamed { name, seen })
        });
        Backups {
            elsewhere: true,
            due_in: self.due_in.map(|it| it.saturating_sub(older)),
            busy: self.busy,
            signer: self
                .signer
                .as_ref()
                .and_then(|it| it.as_str().try_into().ok()),
            last: seen(&self.last),
            verified: seen(&self.verified),
            named: named.take(NAMED_MAX).collect(),
            kept: self.kept,
            took_milliseconds: self.took_milliseconds,
            failed: failure(&self.failed),
            retry_in: self.retry_in.saturating_sub(older),
            queued: self.queued,
            copy_failed: failure(&self.copy_failed),
            copy_failing: self.copy_failing,
            copy_retry_in: self.copy_retry_in.saturating_sub(older),
            copy_retry_every: self.copy_retry_every,
            destinations: destinations.collect(),
            copies_checked: self.copies_checked.map(Timestamp),
            copies_unchecked: self.copies_unchecked,
            copying: self.copying,
            checked: self.checked.map(Timestamp),
            check_retry_in: self.check_retry_in.saturating_sub(older),
            ..Backups::default() // the operator knows
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_what_is_known() {
        let seen = SnapshotSeen {
            revision: 7,
            created: Some(Timestamp(2_000_000_000)),
            level: 3,
            bytes: 651,
            seconds: Some(5),
            version: Some(crate::version::VERSION_AT_BIRTH),
        };
        let name = "shop-0-20330518T033320Z-r7-0123abcd";
        let known = Backups {
            elsewhere: true,
            due_in: Some(60),
            signer: Some("key".try_into().unwrap()),
            last: Some(seen),
            verified: Some(seen),
            named: [SnapshotNamed {
                name: name.try_into().unwrap(),
                seen,
            }]
            .into_iter()
            .collect(),
            kept: (1, 651),
            took_milliseconds: Some(12),
            failed: Some(BackupFailure {
                reason: "TrialRestoreFailed",
                why: detail(format_args!("why")),
            }),
            retry_in: 9,
            queued: (1, 651),
            destinations: [DestinationSeen {
                place: detail(format_args!("/usb")),
                verified: Some(seen),
                queued: (1, 651),
                waits_since: Some(Timestamp(2_000_000_000)),
                waits: 5,
                vanished: Some((2, 3)),
            }]
            .into_iter()
            .collect(),
            copies_checked: Some(Timestamp(3)),
            copies_unchecked: true,
            checked: Some(Timestamp(4)),
            ..Backups::default()
        };
        let words = serde_json::to_string(&Report::of(&known)).unwrap();
        let told: Report = serde_json::from_str(&words).unwrap();
        assert_eq!(told.backups(0), known);
        let later = told.backups(10);
        assert_eq!((later.due_in, later.retry_in), (Some(50), 0));
        assert_eq!(later.last.unwrap().seconds, Some(15));
        assert_eq!(later.destinations[0].waits, 15);
        // A worker that lies can fill no more than there is room for.
        let many = Report {
            named: vec![(name.to_owned(), Seen::of(&seen)); 50],
            destinations: vec![Destination::default(); 50],
            failed: Some(Failure {
                reason: "Strange".to_owned(),
                why: "a".repeat(5000),
            }),
            ..Report::default()
        };
        let many = many.backups(0);
        assert_eq!(
            (many.named.len(), many.destinations.len()),
            (NAMED_MAX, DESTINATIONS_MAX)
        );
        assert_eq!(many.failed.unwrap().reason, "SnapshotFailed");
    }
}
