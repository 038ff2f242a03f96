//! Copies of proven snapshots in the document's further destinations.
//!
//! What waits is no list of its own but a difference: the proven snapshots of the first destination,
//! less those that were seen to have arrived. So it survives restarts and power cuts, and retention
//! of the first destination is its bound.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::encrypt::DecryptError;
use super::local::{Entry, LocalError, LocalStore};
use super::manifest::Manifest;
use super::remote::{self, RemoteStore};
use super::verify::{self, VerifyError};
use super::{Phase, Progress, place, prune};
use crate::cluster::Timestamp;
use crate::paths::Paths;
use crate::retention::VERIFIED;
use crate::s3::S3Error;
use crate::spec::ClusterSpec;
use crate::spec::backup::{Destination, Place, S3};
use crate::state::{self, StateError};
use crate::tls::{Certificates, TlsError};

/// Why a copy was not made.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The place.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// A record.
    #[error(transparent)]
    State(#[from] StateError),
    /// The snapshot to be copied, or its copy.
    #[error(transparent)]
    Verify(#[from] VerifyError),
    /// A file could not be copied.
    #[error("failed to copy to {}", path.display())]
    Io {
        /// The copy.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The bucket.
    #[error(transparent)]
    S3(#[from] S3Error),
    /// The CAs to be kept with the snapshots.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// An encrypted snapshot that cannot be read.
    #[error(transparent)]
    Decrypt(#[from] DecryptError),
    /// A snapshot in a bucket without its manifest.
    #[error(
        "the manifest of {0} in the bucket is damaged: take another snapshot; or fetch the file yourself and name it with --from"
    )]
    ManifestDamaged(String),
    /// A damaged copy is never made.
    #[error("{name} is not copied")]
    SourceDamaged {
        /// Which snapshot.
        name: String,
        /// What is wrong with it.
        source: VerifyError,
    },
}

/// What was seen to have arrived in a destination.
#[derive(Default, Serialize, Deserialize)]
struct ArrivedFile {
    names: BTreeSet<String>,
}

fn arrived_path(paths: &Paths, destination: &Destination) -> PathBuf {
    let sum = state::sha256(place::describe(destination).as_bytes());
    paths.backup().join(format!("arrived-{}.json", &sum[..16]))
}

fn arrived(paths: &Paths, destination: &Destination) -> BTreeSet<String> {
    let file = state::load::<ArrivedFile>(&arrived_path(paths, destination));
    file.ok().flatten().unwrap_or_default().names
}

/// The snapshots of the first destination that are worth a copy, newest first.
fn worth_copying<'a>(
    entries: &'a [Entry],
    clusters: &'a [String],
) -> impl Iterator<Item = (&'a Entry, &'a Manifest)> {
    entries.iter().filter_map(|it| {
        let manifest = it.manifest.as_ref().ok()?;
        let ours = it.is_of(clusters) && it.level() >= VERIFIED;
        ours.then_some((it, manifest))
    })
}

/// The further destinations.
fn further(spec: &ClusterSpec) -> &[Destination] {
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
    clusters: &[String],
) -> (u32, u64) {
    let mut waiting = (0, 0);
    for destination in further(spec) {
        let local = arrived(paths, destination);
        let remote = remote::arrived(paths, destination);
        for (_, manifest) in worth_copying(entries, clusters) {
            if !local.contains(&manifest.name) && !remote(&manifest.name) {
                waiting = (waiting.0 + 1, waiting.1 + manifest.file.size);
            }
        }
    }
    waiting
}

/// Copies what waits, newest first, and removes what the document no longer keeps there. A destination
/// that fails does not keep the others from going on; the first failure is reported. The caller holds
/// the lock on backups.
pub async fn run(
    paths: &Paths,
    spec: &ClusterSpec,
    clusters: &[String],
    now: Option<Timestamp>,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<(), CopyError> {
    let Some(primary) = place::primary(spec) else {
        return Ok(());
    };
    let entries = primary.list()?;
    let mut first_failure = None;
    for destination in further(spec) {
        let copied = match &destination.place {
            Place::Local(_) => to_local(
                paths,
                spec,
                destination,
                &primary,
                &entries,
                clusters,
                now,
                progress,
            ),
            Place::S3(it) => {
                let what = (destination, it);
                to_bucket(
                    paths, spec, what, &primary, &entries, clusters, now, progress,
                )
                .await
            }
        };
        if let Err(error) = copied {
            first_failure.get_or_insert(error);
        }
    }
    first_failure.map_or(Ok(()), Err)
}

#[expect(clippy::too_many_arguments, reason = "one call, each of its own kind")]
fn to_local(
    paths: &Paths,
    spec: &ClusterSpec,
    destination: &Destination,
    primary: &LocalStore,
    entries: &[Entry],
    clusters: &[String],
    now: Option<Timestamp>,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<(), CopyError> {
    let Some(store) = place::local(spec, destination) else {
        return Ok(());
    };
    place::prepare(paths, &store)?;
    let mut arrived = arrived(paths, destination);
    for (entry, manifest) in worth_copying(entries, clusters) {
        if arrived.contains(&manifest.name) {
            continue;
        }
        store.room_for(manifest.file.size)?;
        let part = store.part();
        copy_file(&primary.snapshot(&entry.name), &part, progress)?;
        verify::verify(&part, manifest, VERIFIED, progress)?;
        store.commit(&part, &entry.name, manifest)?;
        arrived.insert(manifest.name.clone());
        remember(paths, destination, entries, &mut arrived)?;
        tracing::info!(name = manifest.name, to = %store.path().display(), "snapshot copied and verified");
    }
    // A clock that keeps the first destination from removing does so here, and was told there.
    prune::run(&store, destination.keep, clusters, now)?.ok();
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "one call, each of its own kind")]
async fn to_bucket(
    paths: &Paths,
    spec: &ClusterSpec,
    (destination, s3): (&Destination, &S3),
    primary: &LocalStore,
    entries: &[Entry],
    clusters: &[String],
    now: Option<Timestamp>,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<(), CopyError> {
    let arrived = remote::arrived(paths, destination);
    let waiting = worth_copying(entries, clusters).filter(|(_, it)| !arrived(&it.name));
    let waiting: Vec<_> = waiting.collect();
    if waiting.is_empty() {
        return Ok(());
    }
    let mut store = RemoteStore::open(paths, destination, s3, &spec.name)?;
    for (entry, manifest) in waiting {
        let path = primary.snapshot(&entry.name);
        // What a worn card has changed meanwhile is not sent.
        verify::verify(&path, manifest, 2, progress).map_err(|source| {
            CopyError::SourceDamaged {
                name: manifest.name.clone(),
                source,
            }
        })?;
        store.store(&path, manifest, progress).await?;
        tracing::info!(
            name = manifest.name,
            to = place::describe(destination),
            "snapshot copied and verified"
        );
    }
    let certificates = Certificates::at(paths.tls());
    if certificates.has_authorities() {
        store.store_authorities(&certificates).await?;
    }
    store.sweep().await;
    // Nothing is removed by a clock that the server contradicts.
    if prune::frozen(entries, clusters, now, false).is_none() && store.clock_skew().is_none() {
        store.prune(destination, clusters).await?;
    }
    Ok(())
}

/// Writes down what has arrived, as far as the first destination still has it.
fn remember(
    paths: &Paths,
    destination: &Destination,
    entries: &[Entry],
    arrived: &mut BTreeSet<String>,
) -> Result<(), CopyError> {
    let there: BTreeSet<String> = entries.iter().map(|it| it.name.to_string()).collect();
    arrived.retain(|it| there.contains(it));
    let file = ArrivedFile {
        names: arrived.clone(),
    };
    Ok(state::save(&arrived_path(paths, destination), &file)?)
}

fn copy_file(from: &Path, to: &Path, progress: &mut dyn FnMut(Progress)) -> Result<(), CopyError> {
    use std::io::{Read as _, Write as _};
    let failed = |source| CopyError::Io {
        path: to.to_owned(),
        source,
    };
    let mut reader = fs::File::open(from).map_err(failed)?;
    let total = reader.metadata().map_or(0, |it| it.len());
    let mut writer = super::new_file(to).map_err(failed)?;
    let mut buffer = vec![0; super::frames::FRAME];
    let mut done = 0;
    loop {
        let count = reader.read(&mut buffer).map_err(failed)?;
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
