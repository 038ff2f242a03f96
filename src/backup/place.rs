//! Where this host keeps snapshots and the records about them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::local::{Entry, LocalError, LocalStore};
use crate::paths::Paths;
use crate::spec::ClusterSpec;
use crate::spec::backup::{Destination, Place};
use crate::state;

/// The snapshots of the document's first destination; `None`: there is no `backup`.
pub fn primary(spec: &ClusterSpec) -> Option<LocalStore> {
    let first = spec.backup.as_ref()?.destinations.first()?;
    local(spec, first)
}

/// Where the snapshot of a change of version lies where the document has no `backup`.
pub fn before_upgrade(paths: &Paths, spec: &ClusterSpec) -> LocalStore {
    LocalStore::at(&paths.backup().join("before-upgrade"), &spec.name)
}

/// The snapshots of a local destination.
pub fn local(spec: &ClusterSpec, destination: &Destination) -> Option<LocalStore> {
    match &destination.place {
        Place::Local(path) => Some(LocalStore::at(Path::new(path.as_str()), &spec.name)),
        Place::S3(_) => None,
    }
}

/// A destination in the words of a command line.
pub fn describe(destination: &Destination) -> String {
    match &destination.place {
        Place::Local(path) => path.to_string(),
        Place::S3(it) if it.prefix.is_empty() => format!("s3://{}", it.bucket),
        Place::S3(it) => format!("s3://{}/{}", it.bucket, it.prefix),
    }
}

/// The directories among these, in the words of a command line.
pub fn describe_local<'a>(all: impl IntoIterator<Item = &'a Destination>) -> String {
    let local = all.into_iter().filter_map(Destination::local_path);
    local.collect::<Vec<_>>().join(", ")
}

/// A destination in a word that no other one has, for the names of records about it: two stores may have
/// a bucket of the same name.
pub(super) fn key(destination: &Destination) -> String {
    let endpoint = match &destination.place {
        Place::S3(it) => it.endpoint.as_ref(),
        Place::Local(_) => None,
    };
    let text = match endpoint {
        Some(endpoint) => format!("{endpoint} {}", describe(destination)),
        None => describe(destination),
    };
    state::sha256(text.as_bytes())[..16].to_owned()
}

/// Local directories that snapshots were written to, so that an empty one is told from a new one.
#[derive(Default, Serialize, Deserialize)]
struct UsedFile {
    paths: Vec<PathBuf>,
}

fn used_path(paths: &Paths) -> PathBuf {
    paths.backup().join("used.json")
}

/// Makes a local destination ready to be written to. Once a snapshot lies there: [`mark_used`].
pub fn prepare(paths: &Paths, store: &LocalStore) -> Result<(), LocalError> {
    state::create_private_dir(&paths.backup())?;
    let used: UsedFile = state::load(&used_path(paths))?.unwrap_or_default();
    // Below our own directory there is nothing to mount.
    if store.path().starts_with(&paths.lib) {
        state::create_private_dir(store.path())?;
    }
    let known = used.paths.iter().any(|it| it == store.path());
    store.prepare(known)
}

/// Writes down that a snapshot lies in a local destination: from now on an empty one is a disk that is
/// not mounted.
pub fn mark_used(paths: &Paths, store: &LocalStore) -> Result<(), LocalError> {
    let mut used: UsedFile = state::load(&used_path(paths))?.unwrap_or_default();
    if used.paths.iter().all(|it| it != store.path()) {
        used.paths.push(store.path().to_owned());
        state::save(&used_path(paths), &used)?;
    }
    Ok(())
}

fn failed_path(paths: &Paths) -> PathBuf {
    paths.backup_runs().with_file_name("backup-failed")
}

/// Notes whether the last snapshot could be saved (rule A3). Under /run: a boot later there is
/// another attempt before anything is removed.
pub fn note_save(paths: &Paths, saved: bool) {
    let path = failed_path(paths);
    if !saved {
        if let Err(error) = state::save_volatile(&path, &()) {
            tracing::warn!(%error, "failed to write down that a snapshot failed");
        }
        return;
    }
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!("failed to remove {}: {error}", path.display());
        }
        _ => {}
    }
}

/// Whether the last snapshot could not be saved.
pub fn save_failed(paths: &Paths) -> bool {
    failed_path(paths).exists()
}

/// The newest snapshot that is verified, of one of these clusters; of any where none is named.
pub fn newest_verified<'a>(entries: &'a [Entry], clusters: &[String]) -> Option<&'a Entry> {
    let proven = entries.iter().filter(|it| {
        it.level() >= crate::retention::VERIFIED
            && (it.is_of(clusters) || clusters.is_empty() && it.manifest.is_ok())
    });
    let key = |it: &&Entry| {
        let cluster = it.manifest.as_ref().map(|it| it.cluster_id.clone());
        let (revision, created) = it.order();
        (cluster.unwrap_or_default(), revision, created)
    };
    newest(proven, !clusters.is_empty(), key)
}

/// The newest one, by the id of its cluster, revision and time. Within a cluster revisions only grow and
/// clocks do not; of several clusters of a name it is the one that lived last. `one`: all are of one
/// cluster, under whatever ids it had.
pub fn newest<T>(
    all: impl Iterator<Item = T>,
    one: bool,
    key: impl Fn(&T) -> (String, i64, Option<i64>),
) -> Option<T> {
    struct Best<T> {
        newest: T,
        order: (i64, Option<i64>),
        lived: Option<i64>,
    }
    let mut best: BTreeMap<String, Best<T>> = BTreeMap::new();
    for it in all {
        let (cluster, revision, created) = key(&it);
        let cluster = if one { String::new() } else { cluster };
        let order = (revision, created);
        let lived = best.get(&cluster).and_then(|it| it.lived).max(created);
        if best.get(&cluster).is_none_or(|it| order > it.order) {
            let newest = it;
            let found = Best {
                newest,
                order,
                lived,
            };
            best.insert(cluster, found);
        } else if let Some(known) = best.get_mut(&cluster) {
            known.lived = lived;
        }
    }
    let last = best.into_values().max_by_key(|it| (it.lived, it.order));
    last.map(|it| it.newest)
}

/// What is done to snapshots by one process at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// They are taken, checked or removed here.
    Local,
    /// They are copied elsewhere, which may take days over a thin link and keeps nobody from taking
    /// the next one.
    Copies,
}

/// The lock on one kind of work, for as long as it is held.
pub struct BackupLock {
    _file: std::fs::File,
}

/// Takes the lock; `None`: another process holds it.
pub fn lock(paths: &Paths, work: Work) -> Result<Option<BackupLock>, state::StateError> {
    use rustix::fs::{FlockOperation, flock};
    state::create_private_dir(&paths.backup())?;
    let path = paths.backup().join(match work {
        Work::Local => "lock",
        Work::Copies => "copies.lock",
    });
    let file = state::open_lock(&path).map_err(|source| state::StateError::Io {
        what: "open",
        path: path.clone(),
        source,
    })?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(BackupLock { _file: file })),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(state::StateError::Io {
            what: "lock",
            path,
            source: error.into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_of_the_same_name_in_another_store_is_another_place() {
        let place = |endpoint: Option<&str>| {
            let endpoint = endpoint.map_or_else(String::new, |it| format!(", endpoint: {it}"));
            let text = format!(
                "apiVersion: etcd.edge-operator.io/v1alpha1\nkind: EtcdCluster\nmetadata: {{name: shop}}\n\
                 spec:\n  backup: {{destinations: [{{local: {{path: /a}}}}, {{s3: {{bucket: snaps{endpoint}}}}}]}}\n"
            );
            let spec = crate::document::parse(text.as_bytes()).unwrap();
            spec.backup.unwrap().destinations[1].clone()
        };
        let places = [None, Some("https://one:9000"), Some("https://two:9000")].map(place);
        let mut keys = places.map(|it| key(&it)).to_vec();
        keys.dedup();
        assert_eq!(keys.len(), 3);
    }

    #[test]
    fn the_newest_is_told_by_revision_within_a_cluster_and_by_time_between_clusters() {
        let latest = |all: &[(&str, i64, Option<i64>)], one| {
            let key = |it: &(&str, i64, Option<i64>)| (it.0.to_owned(), it.1, it.2);
            newest(all.iter().copied(), one, key).map(|it| it.1)
        };
        // Taken after a boot without a clock, and so without a date.
        let undated = [("a", 5, Some(100)), ("a", 9, None)];
        assert_eq!(latest(&undated, false), Some(9));
        assert_eq!(latest(&undated, true), Some(9));
        // The cluster began anew, and with it its revisions.
        let anew = [("a", 900, Some(100)), ("b", 3, Some(200)), ("b", 7, None)];
        assert_eq!(latest(&anew, false), Some(7));
        assert_eq!(latest(&anew, true), Some(900));
        assert_eq!(latest(&[], false), None);
    }
}
