//! Retention of one place: the listing goes through the core's fold.

use super::age::Ages;
use super::local::{Entry, LocalError, LocalStore};
use super::manifest::{Class, Manifest};
use super::name::SnapshotName;
use super::trust::Trust;
use crate::clock;
use crate::cluster::Timestamp;
use crate::observed::Clock;
use crate::retention::{self, Fate, Frozen, Kept, Retention};
use crate::spec::backup::Keep;
use crate::version::Version;

/// Which snapshots retention counts and removes, and which are copied.
///
/// Whoever can write to a destination can put snapshots there that carry the cluster's id. Counted, they would push the
/// cluster's own ones out.
#[derive(Clone, Debug, Default)]
pub struct Ours {
    /// The ids that this cluster has and had (rule A1); without any nothing is ours.
    pub clusters: Vec<String>,
    /// Whose signatures count.
    pub trust: Trust,
}

impl Ours {
    /// Whether a snapshot of this cluster id, with this signer, is one of them.
    pub fn has(&self, cluster: Option<&str>, signer: Option<&str>) -> bool {
        cluster.is_some_and(|id| self.clusters.iter().any(|it| it == id))
            && self.trust.keeps(signer)
    }

    /// Whether one in a directory is.
    pub fn has_entry(&self, entry: &Entry) -> bool {
        let manifest = entry.manifest.as_ref().ok();
        self.has(manifest.map(|it| it.cluster_id.as_str()), entry.signer())
    }
}

/// The fate of each snapshot of a listing, newest first.
pub fn fates(keep: Keep, entries: &[Entry], ours: &Ours, ages: &Ages) -> Vec<Fate> {
    let mut fold = Retention::new(keep, ages.clock());
    entries
        .iter()
        .map(|it| fold.next(&kept(it, ours, ages)))
        .collect()
}

fn kept(entry: &Entry, ours: &Ours, ages: &Ages) -> Kept {
    let manifest = entry.manifest.as_ref().ok();
    Kept {
        ours: ours.has_entry(entry),
        on_demand: manifest.is_some_and(|it| it.class == Class::OnDemand),
        outlived: manifest.is_some_and(|it| ages.outlived(it)),
        level: entry.level(),
        created: manifest.and_then(Manifest::created),
        bytes: entry.size.unwrap_or(0),
        line: manifest.and_then(Manifest::etcd).and_then(Version::line),
    }
}

/// Whether retention may run at all. `now`: the time, if it is trusted.
pub fn frozen(
    entries: &[Entry],
    ours: &Ours,
    now: Option<Timestamp>,
    last_save_failed: bool,
) -> Option<Frozen> {
    let clock = if now.is_some() {
        Clock::Trusted
    } else {
        Clock::Unsynchronised
    };
    let newest = entries
        .iter()
        .filter(|it| ours.has_entry(it))
        .filter_map(|it| it.manifest.as_ref().ok())
        .find(|it| it.created.is_some());
    let boot = clock::boot_id();
    let since = newest
        .filter(|it| it.boot_id == boot && !boot.is_empty())
        .map(|it| clock::since_boot().as_secs().saturating_sub(it.since_boot));
    let created = newest.and_then(Manifest::created);
    retention::frozen(
        clock,
        now.unwrap_or(Timestamp(0)),
        created,
        since,
        last_save_failed,
    )
}

/// Removes what is no longer kept in a place, unless retention is frozen. The caller holds the lock on
/// its snapshots. `now`: the time, if it is trusted. What was removed.
pub fn run(
    store: &LocalStore,
    keep: Keep,
    ours: &Ours,
    now: Option<Timestamp>,
) -> Result<Result<Vec<SnapshotName>, Frozen>, LocalError> {
    let entries = store.list()?;
    if let Some(why) = frozen(&entries, ours, now, false) {
        return Ok(Err(why));
    }
    let fates = fates(keep, &entries, ours, &Ages::new(now));
    let mut removed = Vec::new();
    for (entry, _) in entries
        .into_iter()
        .zip(fates)
        .filter(|(_, it)| it.removes())
    {
        store.remove(&entry.name)?;
        removed.push(entry.name);
    }
    Ok(Ok(removed))
}

/// Removes what has outlived its own time to live, and nothing else. The caller holds the lock on the
/// snapshots of the place.
pub fn remove_outlived(
    store: &LocalStore,
    ours: &Ours,
    ages: &Ages,
) -> Result<Vec<SnapshotName>, LocalError> {
    let entries = store.list()?;
    let fates = fates(Keep::DEFAULT, &entries, ours, ages);
    let mut removed = Vec::new();
    for (entry, fate) in entries.into_iter().zip(fates) {
        if fate == Fate::Outlived {
            store.remove(&entry.name)?;
            removed.push(entry.name);
        }
    }
    Ok(removed)
}

/// For people.
pub fn words(frozen: Frozen) -> &'static str {
    match frozen {
        Frozen::LastSaveFailed => {
            "the last snapshot could not be saved, so the ones before it are needed"
        }
        Frozen::ClockJumped => {
            "the clock jumped by more than a day since the newest snapshot; next: take a new one with backup create, if the time is right"
        }
    }
}

/// Why a snapshot stays or goes, for people.
pub fn fate_words(fate: Fate) -> &'static str {
    match fate {
        Fate::NotOurs => {
            "of another cluster, signed by somebody else, or without a readable manifest: never touched"
        }
        Fate::OnDemand => "taken by a person: stays until a person removes it",
        Fate::Outlived => "goes: older than the --ttl that it was taken with",
        Fate::NewestVerified => "the newest verified one",
        Fate::LineBefore => "the newest verified one of the line of etcd before",
        Fate::Last => "among the newest",
        Fate::Period => "the newest of its hour, day or week",
        Fate::AgeUnknown => "of unknown age: hours, days and weeks wait for a trusted clock",
        Fate::Expired => "goes: older than what is kept",
        Fate::OverBytes => "goes: newer ones take all of maxBytes",
        Fate::Damaged => "goes: damaged, and a newer one is verified",
    }
}
