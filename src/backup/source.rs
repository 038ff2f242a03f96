//! Which snapshot a restore takes.

use std::path::{Path, PathBuf};

use super::local::{Entry, LocalStore};
use super::place;
use super::restore::{Reason, RestoreError, RestoreRecord, SourceFile};
use super::verify;
use crate::member::records::IdentityFile;
use crate::spec::ClusterSpec;
use crate::spec::backup::Source;
use crate::version::Version;

/// The newest verified one, in the words of `bootstrap` and the command line.
pub const LATEST: &str = "latest";

/// A source that the document names and nobody has looked for yet.
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
    }
}

/// Finds the snapshot and proves it, up to level 3, right before it is used.
pub fn resolve(
    spec: &ClusterSpec,
    record: &mut RestoreRecord,
    identity: &IdentityFile,
) -> Result<(), RestoreError> {
    let clusters = match record.reason {
        // By name: the box was replaced, and nobody knows the id.
        Reason::Bootstrap => Vec::new(),
        _ => record
            .former
            .as_ref()
            .map(IdentityFile::clusters)
            .unwrap_or_default(),
    };
    let found = find(spec, &record.source, &clusters)?;
    let newest = found.version.and_then(|it| it.parse::<Version>().ok());
    let target: Option<Version> = identity.version.parse().ok();
    if let (Some(newest), Some(target)) = (newest, target)
        && (newest.major, newest.minor) > (target.major, target.minor)
    {
        return Err(RestoreError::NewerMinor {
            snapshot: newest.to_string(),
            target: target.to_string(),
        });
    }
    record.source = found.file;
    Ok(())
}

/// A snapshot that was found and proven.
pub struct Found {
    /// The file.
    pub file: SourceFile,
    /// The version of etcd that it needs, where that is known.
    pub version: Option<String>,
    /// The document's name of the cluster that it was taken from, where a manifest says it.
    pub cluster: Option<String>,
    /// When it was taken, where a manifest says it.
    pub created: Option<String>,
}

/// Finds and proves a snapshot: by name or `latest` in the first destination, or a file.
pub fn find(
    spec: &ClusterSpec,
    wanted: &SourceFile,
    clusters: &[String],
) -> Result<Found, RestoreError> {
    if wanted.path.as_os_str().is_empty() {
        let store = place::primary(spec).ok_or_else(|| {
            RestoreError::NoSnapshot(
                "the document has no spec.backup to find a snapshot in: name a file".to_owned(),
            )
        })?;
        let entries = store.list()?;
        let entry = match wanted.name.as_str() {
            LATEST => place::newest_verified(&entries, clusters),
            name => entries.iter().find(|it| it.name.to_string() == name),
        };
        let entry = entry.ok_or_else(|| {
            RestoreError::NoSnapshot(format!(
                "there is no {} of the cluster {} in {}",
                if wanted.name == LATEST {
                    "verified snapshot"
                } else {
                    &wanted.name
                },
                spec.name,
                store.path().display()
            ))
        })?;
        return prove_entry(&store, entry);
    }
    file(&wanted.path)
}

/// A file: with the manifest beside it where there is one, else by itself.
pub fn file(path: &Path) -> Result<Found, RestoreError> {
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
        return prove_entry(&store, &entry);
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
        },
        version: examined.summary.cluster_version,
        cluster: None,
        created: None,
    })
}

fn prove_entry(store: &LocalStore, entry: &Entry) -> Result<Found, RestoreError> {
    let manifest = entry.manifest.as_ref().map_err(|why| {
        RestoreError::NoSnapshot(format!(
            "{}: {why}; to use it all the same, name its file: {}",
            entry.name,
            store.snapshot(&entry.name).display()
        ))
    })?;
    let path = store.snapshot(&entry.name);
    verify::verify(&path, manifest, crate::retention::VERIFIED, &mut |_| ())?;
    Ok(Found {
        file: SourceFile {
            path,
            name: manifest.name.clone(),
            revision: manifest.revision.snapshot,
            cluster_id: Some(manifest.cluster_id.clone()),
            database: manifest.database.size,
            checksummed: true,
        },
        version: Some(manifest.etcd_version.clone()),
        cluster: Some(manifest.cluster.clone()),
        created: manifest.created.clone(),
    })
}
