//! Which snapshot a restore takes.

mod fetched;

use std::fs::File;
use std::path::{Path, PathBuf};

use super::local::{Entry, LocalStore};
use super::manifest::Manifest;
use super::name::LATEST;
use super::remote::CopyError;
use super::remote::RemoteStore;
use super::restore::RestoreError;
use super::verify;
use super::{Progress, place};
use crate::error::chain;
use crate::member::records::IdentityFile;
use crate::member::restore_record::{Reason, RestoreRecord, SourceFile};
use crate::paths::Paths;
use crate::retention::VERIFIED;
use crate::spec::ClusterSpec;
use crate::spec::backup::{Destination, Place, S3, Source};
use crate::state;
use crate::tls::{Bundle, Certificates};
use crate::version::Version;

use fetched::copy_of;
pub use fetched::{fetched, forget_fetched};

/// A source that the document names and that is not resolved yet.
pub fn unresolved(spec: &ClusterSpec, reason: Reason) -> SourceFile {
    let (path, name) = match (&spec.bootstrap, reason) {
        (Some(Source::File(path)), Reason::Bootstrap) => {
            (PathBuf::from(path.as_str()), path.to_string())
        }
        (Some(Source::Named(name)), Reason::Bootstrap) => (PathBuf::new(), name.to_string()),
        _ => (PathBuf::new(), LATEST.to_owned()),
    };
    SourceFile {
        path,
        name,
        revision: 0,
        cluster_id: None,
        database: 0,
        checksummed: true,
        sha256: None,
        hash: None,
    }
}

/// Whichever is the newest, not looked for yet.
fn is_latest(wanted: &SourceFile) -> bool {
    wanted.path.as_os_str().is_empty() && wanted.name == LATEST
}

/// Finds the snapshot unless a command has already done so. The restore verifies it when it uses it.
pub async fn resolve(
    paths: &Paths,
    spec: &ClusterSpec,
    record: &mut RestoreRecord,
    identity: &IdentityFile,
) -> Result<(), RestoreError> {
    if record.source.hash.is_some() {
        return Ok(());
    }
    let clusters = match record.reason {
        // Search by name: the host was replaced, so the cluster's id is unknown.
        Reason::Bootstrap => Vec::new(),
        _ => record
            .former
            .as_ref()
            .map(IdentityFile::clusters)
            .unwrap_or_default(),
    };
    let mut passed = Vec::new();
    let found = loop {
        let wanted = (&record.source, passed.as_slice());
        // Replace damaged data only from the first destination: a link may be thin, and a bucket
        // somebody else's.
        let found = match record.reason {
            Reason::Bootstrap => {
                anywhere(paths, spec, wanted, None, &clusters, &mut |_| ()).await?
            }
            _ => here(spec, wanted, &clusters)?,
        };
        found.check_version(identity.version.parse().ok())?;
        if !is_latest(&record.source) {
            break found;
        }
        // No person is there to name another one: if the newest is not whole, try the next one.
        match found.prove(&mut |_| ()) {
            Ok(()) => break found,
            Err(error) => {
                let why = chain(&error);
                tracing::warn!(name = found.file.name, "snapshot passed over: {why}");
                passed.push(found.file.name);
            }
        }
    };
    record.source = found.file;
    Ok(())
}

/// A snapshot that was found. [`Found::prove`] verifies one with a manifest, and
/// [`super::restore::prepare`] verifies every snapshot once more.
pub struct Found {
    /// The file.
    pub file: SourceFile,
    /// The version of etcd that it needs, where that is known.
    pub version: Option<String>,
    /// The name of the cluster that it was taken from (as in the document), if a manifest gives it.
    pub cluster: Option<String>,
    /// When it was taken, if a manifest gives it.
    pub created: Option<String>,
    /// The manifest to verify against. A file without one was examined when it was found.
    manifest: Option<Manifest>,
    /// The CAs and clients beside it in the bucket, if this host has none.
    authorities: Option<Bundle>,
}

/// Directories that the agent's unit sees as private or empty ones (PrivateTmp, ProtectHome).
const HIDDEN: [&str; 5] = ["tmp", "var/tmp", "home", "root", "run/user"];

impl Found {
    /// Copies a file that the agent's unit cannot see to the directory of files fetched from
    /// buckets. Later steps verify the copy.
    pub fn bring_into_sight(
        &mut self,
        paths: &Paths,
        spec: &ClusterSpec,
    ) -> Result<(), RestoreError> {
        let real = std::fs::canonicalize(&self.file.path);
        let real = real.unwrap_or_else(|_| self.file.path.clone());
        let below_root = real.strip_prefix("/").unwrap_or(&real);
        if !HIDDEN.iter().any(|it| below_root.starts_with(it)) {
            return Ok(());
        }
        let opened = std::fs::File::open(&real).map_err(|source| RestoreError::Io {
            what: "open",
            path: real.clone(),
            source,
        });
        self.file.path = copy_of(paths, spec, &opened?, &real)?;
        Ok(())
    }

    /// Verifies levels 1 to 3 against the manifest, if there is one.
    pub fn prove(&self, progress: &mut dyn FnMut(Progress)) -> Result<(), RestoreError> {
        match &self.manifest {
            Some(it) => Ok(verify::verify(&self.file.path, it, VERIFIED, progress)?),
            None => Ok(()),
        }
    }

    /// Imports the CAs and clients that came with the snapshot. Called once the restore is decided.
    pub fn import(&self, paths: &Paths) -> Result<(), RestoreError> {
        let Some(bundle) = &self.authorities else {
            return Ok(());
        };
        let imported = Certificates::at(paths.tls()).import(bundle);
        imported.map_err(CopyError::from)?;
        let clients: Vec<&str> = bundle.clients().collect();
        tracing::info!(
            "the cluster's CAs are back, and the clients {}",
            clients.join(", ")
        );
        Ok(())
    }

    /// Refuses a snapshot of a newer line of etcd, which `target` cannot read. An unknown version
    /// on either side refuses nothing.
    pub fn check_version(&self, target: Option<Version>) -> Result<(), RestoreError> {
        let snapshot = self.version.as_deref().and_then(|it| it.parse().ok());
        let (Some(snapshot), Some(target)): (Option<Version>, _) = (snapshot, target) else {
            return Ok(());
        };
        if (snapshot.major, snapshot.minor) > (target.major, target.minor) {
            return Err(RestoreError::NewerMinor {
                snapshot: snapshot.to_string(),
                target: target.to_string(),
            });
        }
        Ok(())
    }
}

/// Finds a snapshot: by name or `latest` in the first destination, or a file.
pub fn find(
    spec: &ClusterSpec,
    wanted: &SourceFile,
    clusters: &[String],
) -> Result<Found, RestoreError> {
    here(spec, (wanted, &[]), clusters)
}

/// The same, without the snapshots in `passed`.
fn here(
    spec: &ClusterSpec,
    (wanted, passed): (&SourceFile, &[String]),
    clusters: &[String],
) -> Result<Found, RestoreError> {
    if wanted.path.as_os_str().is_empty() {
        let store = place::primary(spec).ok_or_else(|| {
            RestoreError::NoSnapshot(
                "the document has no spec.backup to find a snapshot in: name a file".to_owned(),
            )
        })?;
        return of_store(spec, &store, (wanted, passed), clusters);
    }
    file(&wanted.path)
}

/// Finds the wanted snapshot in a directory.
fn of_store(
    spec: &ClusterSpec,
    store: &LocalStore,
    (wanted, passed): (&SourceFile, &[String]),
    clusters: &[String],
) -> Result<Found, RestoreError> {
    let mut entries = store.list()?;
    entries.retain(|it| !passed.contains(&it.name.to_string()));
    let entry = match wanted.name.as_str() {
        LATEST => place::newest_verified(&entries, clusters),
        name => entries.iter().find(|it| it.name.to_string() == name),
    };
    let at = store.path().display().to_string();
    found(store, entry.ok_or_else(|| none_there(spec, wanted, &at))?)
}

fn none_there(spec: &ClusterSpec, wanted: &SourceFile, at: &str) -> RestoreError {
    let what = match wanted.name.as_str() {
        LATEST => "verified snapshot",
        name => name,
    };
    let name = &spec.name;
    RestoreError::NoSnapshot(format!("there is no {what} of the cluster {name} in {at}"))
}

/// Finds a snapshot in the first destination, else in the further ones. One from a bucket is downloaded
/// and verified. `wanted`: which one, and the file of secret keys for one that is encrypted.
pub async fn find_anywhere(
    paths: &Paths,
    spec: &ClusterSpec,
    (wanted, identity): (&SourceFile, Option<&Path>),
    clusters: &[String],
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Found, RestoreError> {
    anywhere(paths, spec, (wanted, &[]), identity, clusters, progress).await
}

async fn anywhere(
    paths: &Paths,
    spec: &ClusterSpec,
    (wanted, passed): (&SourceFile, &[String]),
    identity: Option<&Path>,
    clusters: &[String],
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Found, RestoreError> {
    let mut failures = match here(spec, (wanted, passed), clusters) {
        other if !wanted.path.as_os_str().is_empty() => return other,
        Err(error @ (RestoreError::NoSnapshot(_) | RestoreError::Local(_))) => vec![error],
        other => return other,
    };
    let backup = spec.backup.as_ref();
    let further = backup.map_or(&[][..], |it| it.destinations.get(1..).unwrap_or_default());
    for destination in further {
        let it = match &destination.place {
            Place::S3(it) => it,
            Place::Local(_) => {
                let store = place::local(spec, destination);
                let found = store.map(|it| of_store(spec, &it, (wanted, passed), clusters));
                match found {
                    Some(Ok(found)) => return Ok(found),
                    other => failures.extend(other.and_then(Result::err)),
                }
                continue;
            }
        };
        let at = place::describe(destination);
        let fetched = fetch(
            paths,
            spec,
            (destination, it),
            (wanted, passed),
            identity,
            clusters,
            progress,
        );
        // A bucket that fails does not prevent asking the next one.
        match fetched.await {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => failures.push(none_there(spec, wanted, &at)),
            Err(error) => {
                let why = chain(&error);
                tracing::warn!(at, "passed over: {why}");
                failures.push(RestoreError::NoSnapshot(format!("{at}: {why}")));
            }
        }
    }
    // Report all failures: a person who fixes one wants to know of all.
    if failures.len() > 1 {
        let all: Vec<String> = failures.iter().map(|it| chain(it)).collect();
        return Err(RestoreError::NoSnapshot(all.join("; ")));
    }
    Err(failures.remove(0))
}

/// Downloads the snapshot `BUCKET/KEY` from a bucket that the document describes.
pub async fn find_in_bucket(
    paths: &Paths,
    spec: &ClusterSpec,
    key: &str,
    identity: Option<&Path>,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Found, RestoreError> {
    let none = |why: &str| RestoreError::NoSnapshot(format!("s3://{key}: {why}"));
    let backup = spec.backup.as_ref();
    let all = backup
        .map(|it| it.destinations.as_slice())
        .unwrap_or_default();
    let described = all.iter().find_map(|it| match &it.place {
        Place::S3(s3) if key.starts_with(&format!("{}/", s3.bucket)) => Some((it, s3)),
        _ => None,
    });
    let described = described.ok_or_else(|| {
        none("the document describes no such bucket: add it to spec.backup.destinations")
    })?;
    let last = key.rsplit('/').next().unwrap_or_default();
    let stem = last.strip_suffix(".age").unwrap_or(last);
    let name = stem.strip_suffix(super::local::SNAPSHOT).unwrap_or(stem);
    let wanted = SourceFile {
        name: name.to_owned(),
        ..unresolved(spec, Reason::Command)
    };
    let found = fetch(
        paths,
        spec,
        described,
        (&wanted, &[]),
        identity,
        &[],
        progress,
    )
    .await?;
    found.ok_or_else(|| none("there is no such snapshot of this cluster"))
}

/// Downloads a snapshot from a bucket. Returns none if the bucket does not have it.
async fn fetch(
    paths: &Paths,
    spec: &ClusterSpec,
    (destination, s3): (&Destination, &S3),
    (wanted, passed): (&SourceFile, &[String]),
    identity: Option<&Path>,
    clusters: &[String],
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Option<Found>, RestoreError> {
    let mut store = RemoteStore::open(paths, destination, s3, &spec.name)?;
    let mut entries = store.list().await?;
    entries.retain(|it| !passed.contains(&it.name.to_string()));
    let into = fetched(paths, spec);
    let entry = loop {
        let entry = match wanted.name.as_str() {
            LATEST => {
                let of = |it: &str| clusters.is_empty() || clusters.iter().any(|id| id == it);
                let proven = entries
                    .iter()
                    .filter(|it| it.level() >= VERIFIED && it.cluster_id().is_some_and(of));
                place::newest(proven, !clusters.is_empty(), |it| {
                    let cluster = it.cluster_id().unwrap_or_default().to_owned();
                    let created = it.created().map(|it| it.0);
                    (cluster, it.name.revision, created)
                })
            }
            name => entries.iter().find(|it| it.name.to_string() == name),
        };
        let Some(entry) = entry.cloned() else {
            return Ok(None);
        };
        state::create_private_dir(into.path())?;
        into.prepare(false)?;
        let brought = store.fetch(&entry.name, entry.encrypted, identity, &into, progress);
        match brought.await {
            Ok(()) => break entry,
            // The newest is not whole: the next one is older, but better than none.
            Err(error @ (CopyError::Verify(_) | CopyError::ManifestDamaged(_)))
                if is_latest(wanted) =>
            {
                let name = entry.name.to_string();
                tracing::warn!(name, "snapshot passed over: {}", chain(&error));
                entries.retain(|it| it.name != entry.name);
            }
            Err(error) => return Err(error.into()),
        }
    };
    // The host was replaced. With the CAs, its clients keep their certificates (rule A5).
    let authorities = match identity.filter(|_| entry.encrypted) {
        Some(identity) if Certificates::at(paths.tls()).lacks_an_authority() => {
            store.fetch_authorities(identity).await?
        }
        _ => None,
    };
    let found = file(&into.snapshot(&entry.name))?;
    Ok(Some(Found {
        authorities,
        ..found
    }))
}

/// Copies a file that was opened for this process, which cannot open it by name. Finds the copy.
pub fn opened(
    paths: &Paths,
    spec: &ClusterSpec,
    open: &File,
    named: &Path,
) -> Result<Found, RestoreError> {
    let mut found = file(&copy_of(paths, spec, open, named)?)?;
    found.file.name = named.display().to_string();
    Ok(found)
}

/// Finds a file, with the manifest beside it if there is one.
pub fn file(path: &Path) -> Result<Found, RestoreError> {
    let below_root = path.strip_prefix("/").unwrap_or(path);
    if !path.exists() && HIDDEN.iter().any(|it| below_root.starts_with(it)) {
        let text = format!(
            "{} does not exist, or the unit cannot see it: a unit has its own /tmp, and no /home or /root; next: put the file below /srv or /mnt",
            path.display()
        );
        return Err(RestoreError::NoSnapshot(text));
    }
    let beside = (|| {
        let dir = path.parent()?;
        let name = path
            .file_name()?
            .to_str()?
            .strip_suffix(super::local::SNAPSHOT)?;
        let cluster = dir.file_name()?.to_str()?;
        let store = LocalStore::at(dir.parent()?, cluster);
        let entries = store.list().ok()?;
        let entry = entries.into_iter().find(|it| it.name.to_string() == name)?;
        entry.manifest.is_ok().then_some((store, entry))
    })();
    if let Some((store, entry)) = beside {
        return found(&store, &entry);
    }
    let examined = verify::examine(path, &mut |_| ())?;
    Ok(Found {
        file: SourceFile {
            path: path.to_owned(),
            name: path.display().to_string(),
            revision: examined.summary.revision,
            cluster_id: None,
            database: examined.summary.size,
            checksummed: examined.checksummed,
            sha256: None,
            hash: Some(verify::hex_of(examined.summary.hash)),
        },
        version: examined.summary.cluster_version,
        cluster: None,
        created: None,
        manifest: None,
        authorities: None,
    })
}

fn found(store: &LocalStore, entry: &Entry) -> Result<Found, RestoreError> {
    let manifest = entry.manifest.as_ref().map_err(|why| {
        RestoreError::NoSnapshot(format!(
            "{}: {why}; to use it anyway, name its file: {}",
            entry.name,
            store.snapshot(&entry.name).display()
        ))
    })?;
    let path = store.snapshot(&entry.name);
    verify::verify(&path, manifest, 1, &mut |_| ())?;
    Ok(Found {
        file: SourceFile {
            path,
            name: manifest.name.clone(),
            revision: manifest.revision.held(),
            cluster_id: Some(manifest.cluster_id.clone()),
            database: manifest.database.size,
            checksummed: true,
            sha256: Some(manifest.file.sha256.clone()),
            hash: Some(manifest.hash.clone()),
        },
        version: Some(manifest.etcd_version.clone()),
        cluster: Some(manifest.cluster.clone()),
        created: manifest.created.clone(),
        manifest: Some(manifest.clone()),
        authorities: None,
    })
}
