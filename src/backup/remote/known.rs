//! What is known of a bucket without asking it: a small file, a memory and not a truth.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::backup::manifest::{Class, Manifest};
use crate::backup::place;
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

/// The same of the snapshots of these clusters.
pub fn known_names_of(
    paths: &Paths,
    destination: &Destination,
    clusters: &[String],
) -> Vec<(String, u8)> {
    let known = known_of(&record_path(paths, "bucket", destination));
    let ours = known
        .into_iter()
        .filter(|(_, it)| clusters.contains(&it.cluster_id));
    ours.map(|(name, it)| (name, it.level)).collect()
}

/// Whether a snapshot was seen to have arrived.
pub fn arrived(paths: &Paths, destination: &Destination) -> impl Fn(&str) -> bool + use<> {
    let file = load_known(&record_path(paths, "bucket", destination));
    // What was found damaged there has not.
    let whole = move |it: &Known| it.level > 0;
    move |name| file.removed.contains(name) || file.snapshots.get(name).is_some_and(whole)
}
