//! Which snapshot a restore takes.

mod fetched;
mod search;

use std::fs::File;
use std::path::{Path, PathBuf};

use super::Progress;
use super::local::{Entry, LocalStore};
use super::manifest::Manifest;
use super::name::LATEST;
use super::remote::CopyError;
use super::restore::{RestoreError, check_version};
use super::trust::{Distrust, Trust, Whose};
use super::{place, verify};
use crate::cluster::Timestamp;
use crate::error::chain;
use crate::member::records::IdentityFile;
use crate::member::restore_record::{Reason, RestoreRecord, SourceFile};
use crate::paths::Paths;
use crate::retention::VERIFIED;
use crate::spec::ClusterSpec;
use crate::spec::backup::Source;
use crate::tls::{Certificates, SignedBundle};
use crate::untrusted;
use crate::version::Version;

use fetched::copy_of;
pub use fetched::{fetched, forget_fetched};
pub use search::Search;

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
    now: Option<Timestamp>,
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
    let trust = Trust::of(&Certificates::at(paths.tls()), spec, now);
    let mut passed = Vec::new();
    let found = loop {
        let search = Search {
            paths,
            spec,
            wanted: &record.source,
            identity: None,
            clusters: &clusters,
            trust: Some(&trust),
            passed: &passed,
            at_most: identity.version(),
            served: None,
        };
        // Replace damaged data only from the first destination: a link may be thin, and a bucket
        // somebody else's.
        let found = match record.reason {
            Reason::Bootstrap => search.anywhere(&mut |_| ()).await?,
            _ => search.here()?,
        };
        found.check_version(identity.member.version.parse().ok())?;
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

/// The newest revision among the snapshots of this cluster.
pub fn newest_revision(
    paths: &Paths,
    spec: &ClusterSpec,
    former: Option<&IdentityFile>,
) -> Option<i64> {
    let clusters = former?.clusters();
    let entries = place::primary(spec)?.list().ok()?;
    // A number that anybody could have written would move all revisions.
    let trust = Trust::of(&Certificates::at(paths.tls()), spec, None);
    let ours = entries
        .iter()
        .filter(|it| it.is_of(&clusters) && trust.counts(it));
    ours.map(|it| it.name.revision).max()
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
    authorities: Option<SignedBundle>,
}

/// CAs and clients that came with a snapshot.
pub struct Authorities {
    /// sha256 over the CAs' certificates; none where they cannot be read.
    pub fingerprint: Option<String>,
    /// The clients.
    pub clients: Vec<String>,
    /// Why their origin does not count.
    pub doubt: Option<Distrust>,
    /// The key that signed the snapshot signed them, too.
    pub same: bool,
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
        let opened = untrusted::open(&real).map_err(|source| RestoreError::Io {
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

    /// The public key that signed it; none where nobody has.
    pub fn signer(&self) -> Option<&str> {
        self.manifest.as_ref().and_then(Manifest::signer)
    }

    /// Whether its origin counts.
    pub fn judged(&self, trust: &Trust) -> Result<Whose, Distrust> {
        match &self.manifest {
            Some(manifest) => trust.judge(manifest),
            None => trust.signer(None),
        }
    }

    /// The CAs that came with it: their fingerprint, their clients, and whether the same key signed them as the
    /// snapshot, or one that counts.
    pub fn authorities(&self, trust: &Trust, cluster: &str) -> Option<Authorities> {
        let bundle = self.authorities.as_ref()?;
        let signer = bundle.signer(cluster);
        let same = signer.is_some() && signer == self.signer();
        Some(Authorities {
            fingerprint: bundle.bundle().fingerprint(),
            clients: bundle.bundle().clients().map(str::to_owned).collect(),
            // A word for data that nobody has signed is none for CAs.
            doubt: match signer {
                Some(key) => trust.signer(Some(key)).err(),
                None => Some(Distrust::Unsigned),
            },
            same,
        })
    }

    /// Imports the CAs and clients that came with the snapshot. Called once the restore is decided.
    pub fn import(&self, paths: &Paths) -> Result<(), RestoreError> {
        let Some(bundle) = self.authorities.as_ref().map(SignedBundle::bundle) else {
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
        check_version(snapshot, target)
    }
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
    verify::verify_in(store, manifest, &entry.name, 1, &mut |_| ())?;
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
