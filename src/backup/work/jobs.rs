//! What jobs on snapshots do, in threads of their own.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{BUSY, DAMAGED, checked, note_check};
use crate::backup::create::{self, CreateError, Created};
use crate::backup::local::{Entry, LocalError, LocalStore};
use crate::backup::manifest::Class;
use crate::backup::prune::{self, Ours};
use crate::backup::{place, trial, verify};
use crate::cluster::{Timestamp, detail};
use crate::error::chain;
use crate::member::records::IdentityFile;
use crate::observed::BackupFailure;
use crate::paths::Paths;
use crate::retention::VERIFIED;
use crate::spec::ClusterSpec;
use crate::spec::backup::Keep;
use crate::tls::{Certificates, ClientFiles};

/// What a snapshot's job needs, its own copy of all.
pub(super) struct SnapshotJob {
    pub(super) paths: Paths,
    pub(super) store: LocalStore,
    pub(super) keep: Keep,
    pub(super) url: String,
    pub(super) files: ClientFiles,
    /// Where the key lies with which manifests are signed.
    pub(super) certificates: Certificates,
    pub(super) cluster: String,
    pub(super) member: String,
    pub(super) ours: Ours,
    pub(super) class: Class,
    pub(super) now: Option<Timestamp>,
    pub(super) quota: u64,
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
    /// Of a snapshot as it lies there.
    pub fn of(entry: &Entry) -> Self {
        Made {
            name: entry.name.to_string(),
            revision: entry.name.revision,
            level: entry.level(),
            size: entry.size,
        }
    }
}

/// No snapshot could be taken, or what lies there could not be worked on.
pub(super) const SNAPSHOT_FAILED: &str = "SnapshotFailed";

pub(super) fn failure(reason: &'static str, error: &dyn std::error::Error) -> BackupFailure {
    BackupFailure {
        reason,
        why: detail(format_args!("{}", chain(error))),
    }
}

pub(super) fn locked(paths: &Paths, work: place::Work) -> Result<place::BackupLock, BackupFailure> {
    match place::lock(paths, work) {
        Ok(Some(lock)) => Ok(lock),
        Ok(None) => Err(BackupFailure {
            reason: BUSY,
            why: detail(format_args!(
                "a command is working on the snapshots; the operator retries"
            )),
        }),
        Err(error) => Err(failure(SNAPSHOT_FAILED, &error)),
    }
}

/// A runtime for a job in a thread of its own.
pub fn runtime() -> Result<tokio::runtime::Runtime, BackupFailure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| failure(SNAPSHOT_FAILED, &error))
}

/// Whether only room was missing.
pub fn lacks_room(created: &Result<Created, CreateError>) -> bool {
    matches!(created, Err(CreateError::Local(LocalError::Space { .. })))
}

impl SnapshotJob {
    /// The name of the snapshot that was taken, or of the one since which nothing was written.
    pub(super) fn run(&self) -> Result<String, BackupFailure> {
        let _lock = locked(&self.paths, place::Work::Local)?;
        self.run_locked()
    }

    /// The same by whoever holds the lock.
    pub(super) fn run_locked(&self) -> Result<String, BackupFailure> {
        let mut full = false;
        let taken = self.take(&mut full);
        place::note_save(&self.paths, taken.is_ok() || full);
        taken
    }

    /// The snapshot of this name as it lies there; none where it was removed meanwhile.
    pub(super) fn made(&self, name: &str) -> Result<Option<Made>, BackupFailure> {
        let entries = self.store.list();
        let entries = entries.map_err(|error| failure("DestinationUnusable", &error))?;
        let entry = entries.iter().find(|it| it.name.to_string() == name);
        Ok(entry.map(Made::of))
    }

    /// `full`: only room was missing. Then retention must go on.
    fn take(&self, full: &mut bool) -> Result<String, BackupFailure> {
        let unusable = |error: &dyn std::error::Error| failure("DestinationUnusable", error);
        place::prepare(&self.paths, &self.store).map_err(|it| unusable(&it))?;
        let entries = self.store.list().map_err(|it| unusable(&it))?;
        let request = create::Request {
            url: &self.url,
            files: &self.files,
            signer: self
                .certificates
                .sound_signer()
                .map_err(|it| failure(SNAPSHOT_FAILED, &it))?,
            cluster: &self.cluster,
            member: &self.member,
            store: &self.store,
            class: self.class,
            ttl: None,
            now: self.now,
            quota: self.quota,
            entries: &entries,
        };
        let created = runtime()?.block_on(create::create(&request, &mut |_| ()));
        *full = lacks_room(&created);
        if *full {
            // A document that keeps less is the way out, and takes effect with a snapshot only.
            self.prune()?;
        }
        let created = created.map_err(|error| failure(SNAPSHOT_FAILED, &error))?;
        let made = match created {
            Created::Saved(it) => {
                tracing::info!(
                    name = it.name,
                    revision = it.revision.held(),
                    bytes = it.file.size,
                    "snapshot taken and verified"
                );
                place::mark_used(&self.paths, &self.store).map_err(|it| unusable(&it))?;
                // The first one of all is all that is kept, and was just checked.
                if checked(&self.paths, &[]).is_none() && entries.is_empty() {
                    note_check(&self.paths, self.now).map_err(|it| unusable(&it))?;
                }
                it.name
            }
            Created::Unchanged(it) => return Ok(it.name),
        };
        self.prune()?;
        Ok(made)
    }

    /// Removes what the document no longer keeps.
    fn prune(&self) -> Result<(), BackupFailure> {
        let pruned = prune::run(&self.store, self.keep, &self.ours, self.now);
        match pruned.map_err(|it| failure("DestinationUnusable", &it))? {
            Ok(removed) => {
                for name in removed {
                    tracing::info!(%name, "snapshot removed by retention");
                }
            }
            Err(why) => tracing::info!("no snapshot is removed: {}", prune::words(why)),
        }
        Ok(())
    }
}

/// Level 4 of the newest verified snapshot, where the document asks for it.
pub(super) fn trial(
    paths: &Paths,
    spec: &ClusterSpec,
    identity: &IdentityFile,
    store: &LocalStore,
    ours: &Ours,
    now: Option<Timestamp>,
) -> Result<(), BackupFailure> {
    if spec.backup.as_ref().is_none_or(|it| it.verify_level < 4) {
        return Ok(());
    }
    let unusable = |error: &dyn std::error::Error| failure("DestinationUnusable", error);
    let entries = store.list().map_err(|it| unusable(&it))?;
    let own: Vec<_> = entries
        .into_iter()
        .filter(|it| ours.has_entry(it))
        .collect();
    let Some(entry) = place::newest_verified(&own, &ours.clusters) else {
        return Ok(());
    };
    let Ok(manifest) = &entry.manifest else {
        return Ok(());
    };
    let tried = runtime()?.block_on(trial::run(
        &trial::Trial {
            paths,
            spec,
            identity,
            then: None,
            expected: None,
            log: None,
            file: &store.snapshot(&entry.name),
            revision: manifest.revision.held(),
            database: manifest.database.size,
        },
        &mut |_| (),
    ));
    tried.map_err(|error| failure("TrialRestoreFailed", &error))?;
    tracing::info!(name = %entry.name, "a trial restore of the snapshot was served");
    store
        .record_level(&entry.name, manifest, 4, now)
        .map_err(|it| unusable(&it))
}

/// Levels 1 to 3 of every snapshot of this cluster; what is found is written down.
pub(super) fn check(
    store: &LocalStore,
    ours: &Ours,
    now: Option<Timestamp>,
) -> Result<(), BackupFailure> {
    let entries = store
        .list()
        .map_err(|error| failure("DestinationUnusable", &error))?;
    let mut damaged: Option<(PathBuf, String)> = None;
    let mut unread: Option<BackupFailure> = None;
    for entry in entries.iter().filter(|it| ours.has_entry(it)) {
        let Ok(manifest) = &entry.manifest else {
            continue;
        };
        let path = store.snapshot(&entry.name);
        let result = verify::verify_in(store, manifest, &entry.name, VERIFIED, &mut |_| ());
        let level = match &result {
            Ok(_) => manifest.verified.level.max(VERIFIED),
            Err(error) if error.is_damage() => 0,
            // What could not be read now says nothing about the snapshot.
            Err(error) => {
                unread.get_or_insert_with(|| failure("DestinationUnusable", error));
                continue;
            }
        };
        store
            .record_level(&entry.name, manifest, level, now)
            .map_err(|error| failure("DestinationUnusable", &error))?;
        if let Err(error) = result {
            damaged.get_or_insert_with(|| (path, chain(&error)));
        }
    }
    match damaged {
        Some((path, why)) => Err(BackupFailure {
            reason: DAMAGED,
            why: detail(format_args!("{}: {why}", path.display())),
        }),
        None => unread.map_or(Ok(()), Err),
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test writes files")]
mod tests {
    use super::*;
    use crate::backup::manifest::tests::manifest;

    /// A directory in the file's place cannot be read: for root as for anybody.
    #[test]
    fn a_snapshot_that_cannot_be_read_now_is_not_written_down_as_damaged() {
        let dir = std::env::temp_dir().join(format!("unread-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let store = LocalStore::at(&dir, "shop");
        std::fs::create_dir_all(&dir).unwrap();
        store.prepare(false).unwrap();
        let mut manifest = manifest();
        let ours = Ours {
            clusters: vec![manifest.cluster_id.clone()],
            ..Ours::default()
        };
        let name = manifest.name.parse().unwrap();
        std::fs::create_dir(store.snapshot(&name)).unwrap();
        manifest.file.size = std::fs::metadata(store.snapshot(&name)).unwrap().len();
        store.record_level(&name, &manifest, 3, None).unwrap();
        let level = || {
            let entries = store.list().unwrap();
            entries[0].manifest.as_ref().unwrap().verified.level
        };

        let failed = check(&store, &ours, None).unwrap_err();
        assert_eq!((failed.reason, level()), ("DestinationUnusable", 3));
        // The same with other bytes than the manifest says.
        std::fs::remove_dir(store.snapshot(&name)).unwrap();
        let bytes = vec![0; usize::try_from(manifest.file.size).unwrap()];
        std::fs::write(store.snapshot(&name), bytes).unwrap();
        let failed = check(&store, &ours, None).unwrap_err();
        assert_eq!((failed.reason, level()), ("SnapshotDamaged", 0));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
