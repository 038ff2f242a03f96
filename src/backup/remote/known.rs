//! What is known of a bucket without asking it: a small file, a memory and not a truth.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::backup::manifest::{Class, Manifest};
use crate::backup::name::SnapshotName;
use crate::backup::place;
use crate::backup::prune::Ours;
use crate::cluster::Timestamp;
use crate::paths::Paths;
use crate::spec::backup::Destination;
use crate::state;

/// What is known of a snapshot in a bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Known {
    #[serde(rename = "clusterID")]
    pub(super) cluster_id: String,
    pub(super) class: Class,
    pub(super) level: u8,
    pub(super) created: Option<i64>,
    /// For how many seconds a person wants it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ttl: Option<u64>,
    /// Bytes of the snapshot's file; encrypted it has more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) size: Option<u64>,
    /// The public key that signed its manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) signer: Option<String>,
    /// The version of the etcd that it was taken from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) etcd: Option<String>,
}

/// What is known of a bucket.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct KnownFile {
    pub(super) snapshots: BTreeMap<String, Known>,
    /// sha256 of the CAs and clients that lie there, and of those who can read them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) authorities: Option<String>,
    /// To whom the ciphertext is sealed that waits on the disk to be sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) spooled_to: Option<String>,
    /// What retention removed there: it is not copied again, though the first destination keeps it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) removed: BTreeSet<String>,
    /// What was there and is gone, though nobody removed it here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) vanished: Option<Vanished>,
}

/// Copies that are gone and that this operator did not remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Vanished {
    count: u32,
    /// Of the newest.
    revision: i64,
    /// By this host's clock, in seconds since 1970.
    at: i64,
}

/// For so many seconds it is told: long enough for a person, or an alert.
const VANISHED_TOLD_SECONDS: i64 = 86_400;

impl Vanished {
    /// What is no longer among those that remain, where that is none of a rule that expires what is old: then all that
    /// is older has gone, too, and what is newer has not.
    pub(super) fn of(
        before: &BTreeMap<String, Known>,
        remain: &BTreeMap<String, Known>,
        now: Timestamp,
    ) -> Option<Self> {
        let revision = |name: &String| name.parse::<SnapshotName>().map_or(0, |it| it.revision);
        let gone = || before.keys().filter(|it| !remain.contains_key(*it));
        let newest = gone().map(revision).max()?;
        let older = remain.keys().any(|it| revision(it) < newest);
        (older || remain.len() <= 1).then(|| Vanished {
            count: u32::try_from(gone().count()).unwrap_or(u32::MAX),
            revision: newest,
            at: now.0,
        })
    }
}

/// How many copies are gone from a bucket that nobody removed here, and the revision of the newest.
pub fn vanished(paths: &Paths, destination: &Destination, now: Timestamp) -> Option<(u32, i64)> {
    let file = load_known(&record_path(paths, "bucket", destination));
    let told = |it: &Vanished| now.0.saturating_sub(it.at) < VANISHED_TOLD_SECONDS;
    file.vanished.filter(told).map(|it| (it.count, it.revision))
}

/// More names are not remembered; the first destination has long lost what is older.
const REMOVED_MAX: usize = 500;

impl KnownFile {
    pub(super) fn remove(&mut self, name: String) {
        self.snapshots.remove(&name);
        self.removed.insert(name);
        while self.removed.len() > REMOVED_MAX {
            // Names begin with member and time.
            self.removed.pop_first();
        }
    }
}

pub(super) fn known(manifest: &Manifest) -> Known {
    Known {
        cluster_id: manifest.cluster_id.clone(),
        class: manifest.class,
        ttl: manifest.ttl,
        level: manifest.verified.level,
        created: manifest.created().map(|it| it.0),
        size: Some(manifest.file.size),
        signer: manifest.signer().map(str::to_owned),
        etcd: Some(manifest.etcd_version.clone()),
    }
}

pub(super) fn record_path(paths: &Paths, what: &str, destination: &Destination) -> PathBuf {
    let key = place::key(destination);
    paths.backup().join(format!("{what}-{key}.json"))
}

pub(super) fn load_known(path: &Path) -> KnownFile {
    let file = state::load::<KnownFile>(path).ok().flatten();
    file.unwrap_or_default()
}

pub(super) fn known_of(path: &Path) -> BTreeMap<String, Known> {
    load_known(path).snapshots
}

/// What is known to lie in the bucket of a destination, by name, without asking it.
pub fn known_names(paths: &Paths, destination: &Destination) -> Vec<(String, u8)> {
    let known = known_of(&record_path(paths, "bucket", destination));
    known
        .into_iter()
        .map(|(name, it)| (name, it.level))
        .collect()
}

/// The same of this cluster's own snapshots.
pub fn known_names_of(paths: &Paths, destination: &Destination, ours: &Ours) -> Vec<(String, u8)> {
    let known = known_of(&record_path(paths, "bucket", destination));
    let own = known
        .into_iter()
        .filter(|(_, it)| ours.has(Some(&it.cluster_id), it.signer.as_deref()));
    own.map(|(name, it)| (name, it.level)).collect()
}

/// Whether a snapshot was seen to have arrived.
pub fn arrived(paths: &Paths, destination: &Destination) -> impl Fn(&str) -> bool + use<> {
    let file = load_known(&record_path(paths, "bucket", destination));
    // What was found damaged there has not.
    let whole = move |it: &Known| it.level > 0;
    move |name| file.removed.contains(name) || file.snapshots.get(name).is_some_and(whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backup::manifest::tests::manifest;

    #[test]
    fn what_somebody_removed_is_told_and_what_a_rule_of_the_store_expired_is_not() {
        let known = |revisions: &[i64]| -> BTreeMap<String, Known> {
            let name = |it| format!("shop-0-20261121T131500Z-r{it}-0000000a");
            let each = revisions.iter().map(|it| (name(it), known(&manifest())));
            each.collect()
        };
        let vanished = |before: &[i64], remain: &[i64]| {
            let it = Vanished::of(&known(before), &known(remain), Timestamp(7));
            it.map(|it| (it.count, it.revision, it.at))
        };
        let all = [1, 2, 3, 4];
        assert_eq!(vanished(&all, &all), None);
        assert_eq!(vanished(&all, &[1, 2, 3]), Some((1, 4, 7)));
        assert_eq!(vanished(&all, &[1, 2, 3, 5]), Some((1, 4, 7)));
        assert_eq!(vanished(&all, &[1, 4]), Some((2, 3, 7)));
        assert_eq!(
            vanished(&all, &[5]),
            Some((4, 4, 7)),
            "the bucket was emptied"
        );
        assert_eq!(vanished(&all, &[]), Some((4, 4, 7)));
        assert_eq!(vanished(&all, &[3, 4]), None, "the oldest expired");
        assert_eq!(vanished(&[], &[1]), None);
    }
}
