//! Copies of proven snapshots in the document's further destinations.
//!
//! The queue is not stored. It is a difference: the verified snapshots of the first destination,
//! less those that were seen to have arrived. So the queue survives restarts and power cuts.

mod check;
mod seen;

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::age::Ages;
use super::local::{Entry, LocalStore};
use super::manifest::Manifest;
use super::name::SnapshotName;
use super::prune::{self, Ours};
use super::remote::{self, CopyError, RemoteStore};
use super::verify::{self, VerifyError};
use super::{Phase, Progress, place};
use crate::cluster::Timestamp;
use crate::paths::Paths;
use crate::retention::VERIFIED;
use crate::spec::ClusterSpec;
use crate::spec::backup::{Destination, Place, S3};
use crate::state::{self, StateError};
use crate::tls::Certificates;

pub use check::{check, last_check};
pub use seen::{CopiesSeen, seen};

/// At most this many copies wait for a destination, and at most [`QUEUE_BYTES_MAX`], except that
/// the newest one always waits. Older ones follow once these have arrived.
pub const QUEUE_MAX: usize = 32;
/// At most this many bytes wait for a destination.
pub const QUEUE_BYTES_MAX: u64 = 8 << 30;

/// The snapshots that were seen to arrive in a destination.
#[derive(Default, Serialize, Deserialize)]
struct ArrivedFile {
    names: BTreeSet<String>,
    /// Snapshots that retention removed there. They are not copied again while the first
    /// destination keeps them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    removed: BTreeSet<String>,
}

fn arrived_path(paths: &Paths, destination: &Destination) -> PathBuf {
    let key = place::key(destination);
    paths.backup().join(format!("arrived-{key}.json"))
}

fn load(paths: &Paths, destination: &Destination) -> ArrivedFile {
    let file = state::load(&arrived_path(paths, destination));
    file.ok().flatten().unwrap_or_default()
}

/// The snapshots that were seen to arrive in a destination. In a local one they must still be
/// there, because the disk may be a new one.
fn arrived(paths: &Paths, spec: &ClusterSpec, destination: &Destination) -> BTreeSet<String> {
    let mut names = load(paths, destination).names;
    if let Some(store) = place::local(spec, destination) {
        names.retain(|it| it.parse().is_ok_and(|it| store.snapshot(&it).exists()));
    }
    names
}

/// Records that a person removed these from a further directory, so that they are not copied there
/// again. The caller holds the lock on copies.
pub fn note_removed(
    paths: &Paths,
    destination: &Destination,
    names: &[SnapshotName],
) -> Result<(), StateError> {
    let mut file = load(paths, destination);
    for name in names.iter().map(ToString::to_string) {
        file.names.remove(&name);
        file.removed.insert(name);
    }
    state::save(&arrived_path(paths, destination), &file)
}

/// The snapshots of the first destination that are worth a copy, newest first.
fn worth_copying<'a>(
    entries: &'a [Entry],
    ours: &'a Ours,
) -> impl Iterator<Item = (&'a Entry, &'a Manifest)> {
    entries.iter().filter_map(|it| {
        let manifest = it.manifest.as_ref().ok()?;
        let worth = ours.has_entry(it) && it.level() >= VERIFIED;
        worth.then_some((it, manifest))
    })
}

/// The snapshots that wait for a destination, newest first, within the bounds.
fn waiting<'a>(
    paths: &Paths,
    spec: &ClusterSpec,
    destination: &Destination,
    entries: &'a [Entry],
    ours: &'a Ours,
    ages: &Ages,
) -> Vec<(&'a Entry, &'a Manifest)> {
    let mut local = arrived(paths, spec, destination);
    local.extend(load(paths, destination).removed);
    let remote = remote::arrived(paths, destination);
    // Do not send a snapshot that the destination's retention would remove at once.
    let fates = prune::fates(destination.keep, entries, ours, ages);
    let stays: BTreeSet<String> = entries
        .iter()
        .zip(fates)
        .filter(|(_, fate)| !fate.removes())
        .map(|(it, _)| it.name.to_string())
        .collect();
    let missing = worth_copying(entries, ours).filter(|(_, it)| {
        stays.contains(&it.name) && !local.contains(&it.name) && !remote(&it.name)
    });
    bounded(missing, |(_, it)| it.file.size)
}

/// The first items within the bounds, and always the first one.
fn bounded<T>(all: impl Iterator<Item = T>, size: impl Fn(&T) -> u64) -> Vec<T> {
    let mut bytes = 0_u64;
    let mut within = |index, it: &T| {
        bytes = bytes.saturating_add(size(it));
        index == 0 || bytes <= QUEUE_BYTES_MAX
    };
    let first = all.take(QUEUE_MAX).enumerate();
    first
        .take_while(|(index, it)| within(*index, it))
        .map(|(_, it)| it)
        .collect()
}

/// The further destinations.
pub(super) fn further(spec: &ClusterSpec) -> &[Destination] {
    spec.backup
        .as_ref()
        .and_then(|it| it.destinations.get(1..))
        .unwrap_or_default()
}

/// How many copies wait, and their bytes.
pub fn queue(
    paths: &Paths,
    spec: &ClusterSpec,
    entries: &[Entry],
    ours: &Ours,
    ages: &Ages,
) -> (u32, u64) {
    let mut queued = (0, 0);
    for destination in further(spec) {
        for (_, manifest) in waiting(paths, spec, destination, entries, ours, ages) {
            queued = (queued.0 + 1, queued.1 + manifest.file.size);
        }
    }
    queued
}

/// Copies the waiting snapshots, newest first, and removes those that the document no longer keeps
/// there. A destination that fails does not stop the others. Returns the first failure, or the
/// first that a person has to fix. The caller holds the lock on backups.
pub async fn run(
    paths: &Paths,
    spec: &ClusterSpec,
    ours: &Ours,
    now: Option<Timestamp>,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<(), CopyError> {
    let Some(primary) = place::primary(spec) else {
        return Ok(());
    };
    primary.list()?;
    let run = Run {
        paths,
        spec,
        ours,
        now,
        primary: &primary,
    };
    let mut first_failure = None;
    for destination in further(spec) {
        let copied = match &destination.place {
            Place::Local(_) => run.to_local(destination, progress),
            Place::S3(it) => run.to_bucket(destination, it, progress).await,
        };
        if let Err(error) = copied {
            // Report a failure that a person has to fix before one that may pass by itself.
            let temporary = |it: &CopyError| it.is_of_the_link();
            if first_failure.as_ref().is_none_or(temporary) {
                first_failure = Some(error);
            }
        }
    }
    first_failure.map_or(Ok(()), Err)
}

/// What every destination of a run has in common.
struct Run<'a> {
    paths: &'a Paths,
    spec: &'a ClusterSpec,
    ours: &'a Ours,
    now: Option<Timestamp>,
    primary: &'a LocalStore,
}

impl Run<'_> {
    /// The next snapshot to copy, without those that were passed over. Each call lists them anew,
    /// because a copy may take days.
    fn next(
        &self,
        destination: &Destination,
        passed: &Passed,
    ) -> Result<Option<(SnapshotName, Manifest)>, CopyError> {
        let entries = self.primary.list()?;
        let ages = Ages::new(self.now);
        let waiting = waiting(
            self.paths,
            self.spec,
            destination,
            &entries,
            self.ours,
            &ages,
        );
        let next = waiting.into_iter().find(|(_, it)| !passed.has(&it.name));
        Ok(next.map(|(entry, manifest)| (entry.name.clone(), manifest.clone())))
    }

    fn to_local(
        &self,
        destination: &Destination,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<(), CopyError> {
        let Some(store) = place::local(self.spec, destination) else {
            return Ok(());
        };
        place::prepare(self.paths, &store)?;
        let mut passed = Passed::default();
        while let Some((name, manifest)) = self.next(destination, &passed)? {
            if let Err(error) = store.room_for(manifest.file.size) {
                // A document that keeps less is the way out.
                self.prune_local(destination, &store)?;
                return Err(error.into());
            }
            let part = store.part();
            let proven = match self.prove(&name, &manifest, progress) {
                Ok(it) => it,
                Err(error) => {
                    passed.over(&manifest.name, error);
                    continue;
                }
            };
            copy_file(&proven, &part, progress)?;
            verify::verify(&part, &manifest, VERIFIED, progress)?;
            store.commit(&part, &name, &manifest)?;
            place::mark_used(self.paths, &store)?;
            self.remember(destination, |it| it.names.insert(manifest.name.clone()))?;
            tracing::info!(name = manifest.name, to = %store.path().display(), "snapshot copied and verified");
        }
        self.prune_local(destination, &store)?;
        passed.end()
    }

    /// Removes what the document no longer keeps in a further directory.
    fn prune_local(&self, destination: &Destination, store: &LocalStore) -> Result<(), CopyError> {
        // A failed save prevents removal here, too. It was reported for the first destination.
        if place::save_failed(self.paths) {
            return Ok(());
        }
        let pruned = prune::run(store, destination.keep, self.ours, self.now)?;
        let removed = pruned.unwrap_or_default();
        if removed.is_empty() {
            return Ok(());
        }
        self.remember(destination, |it| {
            it.removed.extend(removed.iter().map(ToString::to_string));
            true
        })
    }

    /// Records what has arrived or was removed, for snapshots that the first destination still has.
    fn remember(
        &self,
        destination: &Destination,
        change: impl FnOnce(&mut ArrivedFile) -> bool,
    ) -> Result<(), CopyError> {
        let entries = self.primary.list()?;
        let there: BTreeSet<String> = entries.iter().map(|it| it.name.to_string()).collect();
        let mut file = load(self.paths, destination);
        change(&mut file);
        file.names.retain(|it| there.contains(it));
        file.removed.retain(|it| there.contains(it));
        Ok(state::save(&arrived_path(self.paths, destination), &file)?)
    }

    /// Verifies a snapshot before it is copied: a worn card may have changed it meanwhile. What is proven is what is
    /// copied, whatever becomes of its name.
    fn prove(
        &self,
        name: &SnapshotName,
        manifest: &Manifest,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<File, CopyError> {
        let proven = verify::verify_in(self.primary, manifest, name, 2, progress);
        proven.map_err(|source| CopyError::SourceDamaged {
            name: manifest.name.clone(),
            source,
        })
    }

    async fn to_bucket(
        &self,
        destination: &Destination,
        s3: &S3,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<(), CopyError> {
        let mut passed = Passed::default();
        let Some(first) = self.next(destination, &passed)? else {
            return Ok(());
        };
        let mut store = RemoteStore::open(self.paths, destination, s3, &self.spec.name)?;
        let mut next = Some(first);
        while let Some((name, manifest)) = next {
            match self.prove(&name, &manifest, progress) {
                Ok(proven) => {
                    store.store(proven, &manifest, progress).await?;
                    tracing::info!(
                        name = manifest.name,
                        to = place::describe(destination),
                        "snapshot copied and verified"
                    );
                }
                Err(error) => passed.over(&manifest.name, error),
            }
            next = self.next(destination, &passed)?;
        }
        let certificates = Certificates::at(self.paths.tls());
        if certificates.has_authorities() {
            store.store_authorities(&certificates).await?;
        }
        store.sweep().await;
        // Remove nothing if the server's clock contradicts ours.
        let failed = place::save_failed(self.paths);
        let entries = self.primary.list()?;
        if prune::frozen(&entries, self.ours, self.now, failed).is_none()
            && store.clock_skew().is_none()
        {
            let ages = Ages::new(self.now);
            store.prune(destination, self.ours, &ages).await?;
        }
        passed.end()
    }
}

/// Snapshots that could not be copied. They do not keep the others back. The first failure is reported.
#[derive(Default)]
struct Passed {
    names: BTreeSet<String>,
    first: Option<CopyError>,
}

impl Passed {
    fn has(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    fn over(&mut self, name: &str, error: CopyError) {
        self.names.insert(name.to_owned());
        // Retention removed the snapshot meanwhile.
        let gone = matches!(
            &error,
            CopyError::SourceDamaged {
                source: VerifyError::Missing(_),
                ..
            }
        );
        if !gone {
            self.first.get_or_insert(error);
        }
    }

    fn end(self) -> Result<(), CopyError> {
        self.first.map_or(Ok(()), Err)
    }
}

fn copy_file(from: &File, to: &Path, progress: &mut dyn FnMut(Progress)) -> Result<(), CopyError> {
    use std::io::Write as _;
    use std::os::unix::fs::FileExt as _;
    let failed = |source| CopyError::Io {
        path: to.to_owned(),
        source,
    };
    let total = from.metadata().map_or(0, |it| it.len());
    let mut writer = super::new_file(to).map_err(failed)?;
    let mut buffer = vec![0; super::frames::FRAME];
    let mut done = 0;
    loop {
        let count = from.read_at(&mut buffer, done).map_err(failed)?;
        if count == 0 {
            break;
        }
        writer.write_all(&buffer[..count]).map_err(failed)?;
        done += count as u64;
        progress(Progress {
            phase: Phase::Copying,
            done,
            total,
        });
    }
    writer.sync_all().map_err(failed)
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test writes files")]
mod tests {
    use super::*;

    #[test]
    fn the_queue_holds_the_newest_ones_within_its_bounds_and_always_one() {
        let all = |sizes: &[u64]| bounded(sizes.iter().copied(), |it| *it);
        assert_eq!(all(&[]), Vec::<u64>::new());
        assert_eq!(all(&[QUEUE_BYTES_MAX + 1, 1]), [QUEUE_BYTES_MAX + 1]);
        assert_eq!(all(&[1, QUEUE_BYTES_MAX, 1]), [1]);
        assert_eq!(all(&[1, QUEUE_BYTES_MAX - 1, 1]), [1, QUEUE_BYTES_MAX - 1]);
        assert_eq!(all(&[1; 2 * QUEUE_MAX]).len(), QUEUE_MAX);
    }

    /// Who may write to the directory exchanges the file for a link to another one's between the proof and the copy.
    #[test]
    fn what_was_proven_is_what_is_copied_whatever_its_name_leads_to_by_then() {
        let dir = std::env::temp_dir().join(format!("proven-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let (store, to) = (LocalStore::at(&dir, "shop"), dir.join("copy"));
        std::fs::create_dir_all(&dir).unwrap();
        store.prepare(false).unwrap();
        let (ours, secret) = (vec![7; 300_000], vec![9; 300_000]);
        let mut manifest = crate::backup::manifest::tests::manifest();
        manifest.file.size = ours.len() as u64;
        manifest.file.sha256 = state::sha256(&ours);
        let name: SnapshotName = manifest.name.parse().unwrap();
        let (place, fresh) = (store.snapshot(&name), dir.join("fresh"));
        std::fs::write(dir.join("secret"), &secret).unwrap();
        let over = std::sync::atomic::AtomicBool::new(false);
        let (mut copied, mut refused, mut wrong) = (0, 0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    std::fs::write(&fresh, &ours).unwrap();
                    std::fs::rename(&fresh, &place).unwrap();
                    std::thread::yield_now();
                    std::os::unix::fs::symlink(dir.join("secret"), &fresh).unwrap();
                    std::fs::rename(&fresh, &place).unwrap();
                }
            });
            let end = crate::clock::since_boot() + std::time::Duration::from_secs(60);
            while (copied < 200 || refused < 20) && crate::clock::since_boot() < end {
                let Ok(proven) = verify::verify_in(&store, &manifest, &name, 2, &mut |_| ()) else {
                    refused += 1;
                    continue;
                };
                let done = copy_file(&proven, &to, &mut |_| ());
                wrong += u32::from(done.is_err() || std::fs::read(&to).is_ok_and(|it| it != ours));
                copied += 1;
            }
            over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert!(
            wrong == 0 && copied >= 200 && refused >= 20,
            "{wrong} {copied} {refused}"
        );
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
