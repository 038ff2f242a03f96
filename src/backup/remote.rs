//! Snapshots in an S3 bucket: `PREFIX/CLUSTER/NAME.db.zst` (`.age` where it is encrypted), with
//! `NAME.json` beside it, written last.
//!
//! What is known of a bucket is kept in a small file: what arrived there, and what its manifests say,
//! so that neither the queue nor retention asks for more than a listing. It is a memory, not a truth:
//! whatever it lacks is read again.

mod content;
mod error;
mod fetch;
mod known;
mod listing;
mod prove;
mod prune;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use content::{BytesSource, Content, FileSource, Hashing};
pub use error::CopyError;
pub use known::{Known, arrived, known_names, known_names_of, vanished};
use known::{KnownFile, Vanished, known, known_of, load_known, record_path};
use listing::Listing;
pub use prune::fates;

use super::encrypt;
use super::local::{LocalStore, MANIFEST, MANIFEST_MAX, SNAPSHOT, room_for};
use super::manifest::{Class, Manifest};
use super::name::SnapshotName;
use super::{Phase, Progress};
use crate::clock;
use crate::cluster::Timestamp;
use crate::paths::Paths;
use crate::s3::{Bucket, Credentials, Location, Patience, Upload};
use crate::spec::backup::{Destination, S3};
use crate::state;
use crate::tls::{Certificates, SignedBundle};
use crate::version::{Line, Version};

/// What an encrypted snapshot's key ends with, behind [`SNAPSHOT`].
const ENCRYPTED: &str = ".age";
/// The CAs and the clients' certificates.
const AUTHORITIES: &str = "authorities.age";
const AUTHORITIES_MAX: u64 = 1 << 20;
/// An upload of before that nobody went on with for so long.
const STALE: Duration = Duration::from_secs(86_400);
/// Ciphertext up to this size is held in memory, as no part of an upload is larger; beyond it takes
/// its room on the disk, so that an upload can go on after a power cut.
const IN_MEMORY: u64 = 8 << 20;

/// A line or two of it for each recipient, and some room.
const AGE_HEADER: u64 = 64 * 1024;
/// Why what a server sends is not taken.
const TOO_LONG: &str = "the object is longer than its manifest says";

/// A snapshot in a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteEntry {
    /// Its name.
    pub name: SnapshotName,
    /// What its manifest says, if one is there.
    pub known: Option<Known>,
    /// Bytes of the object.
    pub size: Option<u64>,
    /// It is encrypted.
    pub encrypted: bool,
}

impl RemoteEntry {
    /// The id of the cluster that it was taken from.
    pub fn cluster_id(&self) -> Option<&str> {
        self.known.as_ref().map(|it| it.cluster_id.as_str())
    }

    /// The public key that signed it; none where nobody has.
    pub fn signer(&self) -> Option<&str> {
        self.known.as_ref()?.signer.as_deref()
    }

    /// Why it was taken.
    pub fn class(&self) -> Option<Class> {
        self.known.as_ref().map(|it| it.class)
    }

    /// For how many seconds a person wants it; none: until a person removes it.
    pub fn ttl(&self) -> Option<u64> {
        self.known.as_ref()?.ttl
    }

    /// The line of the etcd that it was taken from.
    pub fn line(&self) -> Option<Line> {
        let version: Version = self.known.as_ref()?.etcd.as_ref()?.parse().ok()?;
        version.line()
    }

    /// When it was taken, by a trusted clock.
    pub fn created(&self) -> Option<Timestamp> {
        self.known.as_ref()?.created.map(Timestamp)
    }

    /// The level that it had when it was copied; 0 where a part of it is missing, or not as long as it
    /// was.
    pub fn level(&self) -> u8 {
        match (&self.known, self.size) {
            (Some(known), Some(size)) if self.has_its_size(known, size) => known.level,
            _ => 0,
        }
    }

    fn has_its_size(&self, known: &Known, size: u64) -> bool {
        known.size.is_none_or(|said| {
            if self.encrypted {
                (said..=most(said, true)).contains(&size)
            } else {
                size == said
            }
        })
    }
}

/// The snapshot that a key of a cluster's folder holds.
fn name_in(file: &str) -> Option<SnapshotName> {
    let plain = file.strip_suffix(ENCRYPTED).unwrap_or(file);
    plain.strip_suffix(SNAPSHOT)?.parse().ok()
}

/// The most bytes that a snapshot of this size has in a bucket: age adds a header, and 16 bytes to every
/// 64 KiB.
fn most(size: u64, encrypted: bool) -> u64 {
    let more = if encrypted {
        size / 4096 + AGE_HEADER
    } else {
        0
    };
    size.saturating_add(more)
}

/// One cluster's snapshots in a bucket.
pub struct RemoteStore {
    bucket: Bucket,
    cluster: String,
    known_path: PathBuf,
    upload_path: PathBuf,
    spool: PathBuf,
    recipients: Vec<String>,
}

impl RemoteStore {
    /// The snapshots of a cluster in the bucket of a destination. Connects to nothing yet; the
    /// credentials are read now, and with each run (rule B15).
    pub fn open(
        paths: &Paths,
        destination: &Destination,
        it: &S3,
        cluster: &str,
    ) -> Result<Self, CopyError> {
        let text = |it: &heapless::String<256>| it.to_string();
        let location = Location {
            bucket: it.bucket.to_string(),
            prefix: it.prefix.to_string(),
            endpoint: it.endpoint.as_ref().map(text),
            region: it.region.as_ref().map(ToString::to_string),
            path_style: it.path_style,
            ca_file: it.ca_file.as_ref().map(|it| PathBuf::from(it.as_str())),
            bandwidth: it.bandwidth,
        };
        state::create_private_dir(&paths.backup())?;
        let file = it.credentials.as_ref().map(|it| Path::new(it.as_str()));
        let spool = record_path(paths, "upload", destination).with_extension("age");
        Ok(RemoteStore {
            bucket: Bucket::new(&location, Credentials::read(file)?)?,
            cluster: cluster.to_owned(),
            known_path: record_path(paths, "bucket", destination),
            upload_path: record_path(paths, "upload", destination),
            spool,
            recipients: it.recipients.iter().map(ToString::to_string).collect(),
        })
    }

    /// For a person who waits: no second try, and no long one.
    #[must_use]
    pub fn impatient(mut self) -> Self {
        self.bucket = self.bucket.with_patience(Patience {
            connect: Duration::from_secs(5),
            stall: Duration::from_secs(10),
            tries: 1,
            ..Patience::default()
        });
        self
    }

    /// The server's time less ours, where they are far apart.
    pub fn clock_skew(&self) -> Option<i64> {
        self.bucket.clock_skew()
    }

    /// The key of a snapshot, below the prefix.
    pub fn key(&self, name: &str, encrypted: bool) -> String {
        let suffix = if encrypted { ENCRYPTED } else { "" };
        format!("{}/{name}{SNAPSHOT}{suffix}", self.cluster)
    }

    /// Ends uploads of this cluster's snapshots that nobody will go on with: a day old, and not the one
    /// under way (rule E2). What others send to the same bucket is theirs.
    pub async fn sweep(&mut self) {
        let kept = state::load::<Upload>(&self.upload_path).ok().flatten();
        let kept: Vec<String> = kept.into_iter().map(|it| it.upload_id).collect();
        let under = format!("{}/", self.cluster);
        let cluster = &self.cluster;
        let ours = |file: &str| name_in(file).is_some_and(|it| it.is_of(cluster));
        if let Err(error) = self.bucket.sweep((&under, &ours), STALE, &kept).await {
            tracing::debug!("failed to end earlier uploads: {error}");
        }
    }

    /// Every snapshot of this cluster there, newest first, and written down as known.
    pub async fn list(&mut self) -> Result<Vec<RemoteEntry>, CopyError> {
        let entries = self.look().await?;
        self.remember(&entries)?;
        Ok(entries)
    }

    /// Every snapshot of this cluster there, newest first. What is not known of them yet is read;
    /// nothing is written down.
    pub async fn look(&mut self) -> Result<Vec<RemoteEntry>, CopyError> {
        let under = format!("{}/", self.cluster);
        let mut listing = Listing::of(&self.cluster);
        self.bucket
            .list(&under, &mut |object| {
                if let Some(file) = object.key.strip_prefix(&under) {
                    listing.take(file, object.len);
                }
            })
            .await?;
        let seen = listing.end();
        let mut known_before = known_of(&self.known_path);
        let mut entries = Vec::new();
        for (name, it) in seen {
            let text = name.to_string();
            let known = match known_before.remove(&text) {
                _ if !it.manifest => None,
                Some(known) => Some(known),
                None => self.manifest(&text).await?.as_ref().map(known),
            };
            entries.push(RemoteEntry {
                name,
                known,
                size: it.size,
                encrypted: it.encrypted,
            });
        }
        self.tell_gone(&known_before);
        entries.sort_by_key(|it| std::cmp::Reverse((it.name.revision, it.created())));
        Ok(entries)
    }

    /// What was seen in the bucket and is there no more, though neither retention nor a person removed it here.
    /// Whoever removes the newest brings an older one up.
    fn tell_gone(&self, gone: &BTreeMap<String, Known>) {
        let revision = |name: &&String| name.parse::<SnapshotName>().map_or(0, |it| it.revision);
        if let Some(newest) = gone.keys().max_by_key(revision) {
            tracing::warn!(
                cluster = self.cluster,
                newest,
                "snapshots are gone from the bucket, {} of them, and this operator did not remove them: somebody else did, or a rule of the store",
                gone.len()
            );
        }
    }

    /// Writes down what is known, where that changed.
    fn remember(&self, entries: &[RemoteEntry]) -> Result<(), CopyError> {
        let snapshots: BTreeMap<String, Known> = entries
            .iter()
            .filter(|it| it.size.is_some())
            .filter_map(|it| Some((it.name.to_string(), it.known.clone()?)))
            .collect();
        let before = load_known(&self.known_path);
        if snapshots == before.snapshots {
            return Ok(());
        }
        let vanished = Vanished::of(&before.snapshots, &snapshots, clock::now());
        let file = KnownFile {
            vanished: vanished.or(before.vanished),
            snapshots,
            ..before
        };
        Ok(state::save(&self.known_path, &file)?)
    }

    /// What a snapshot's manifest there says; none where it says nothing that can be read.
    pub async fn manifest(&mut self, name: &str) -> Result<Option<Manifest>, CopyError> {
        let key = format!("{}/{name}{MANIFEST}", self.cluster);
        let bytes = self.bucket.get(&key, MANIFEST_MAX).await?;
        Ok(Manifest::decode(&bytes, name).ok())
    }

    /// Stores a proven snapshot, sees that it arrived, then stores its manifest. An upload that was cut
    /// goes on where it was.
    pub async fn store(
        &mut self,
        proven: File,
        manifest: &Manifest,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<(), CopyError> {
        let mut content = self.content(proven, manifest)?;
        let key = self.key(&manifest.name, !self.recipients.is_empty());
        let upload_path = self.upload_path.clone();
        let resume = state::load::<Upload>(&upload_path).ok().flatten();
        let total = content.source.len();
        self.bucket
            .upload(
                &key,
                content.source.as_mut(),
                &content.sha256,
                resume,
                &mut |it| state::save(&upload_path, it).map_err(io::Error::other),
                &mut |done| {
                    progress(Progress {
                        phase: Phase::Copying,
                        done,
                        total,
                    });
                },
            )
            .await?;
        self.bucket.verify(&key, total, &content.sha256).await?;
        let bytes = manifest.encode();
        let sum = state::sha256(&bytes);
        let manifest_key = format!("{}/{}{MANIFEST}", self.cluster, manifest.name);
        self.bucket.put(&manifest_key, bytes.into(), &sum).await?;
        for path in [
            upload_path.with_extension("json.previous"),
            upload_path,
            self.spool.clone(),
        ] {
            let _ = fs::remove_file(path);
        }
        let mut file = load_known(&self.known_path);
        file.snapshots
            .insert(manifest.name.clone(), known(manifest));
        Ok(state::save(&self.known_path, &file)?)
    }

    /// Stores the CAs and the clients' certificates, where what leaves this host is encrypted and they
    /// changed since (rule A5). One object, replaced at once.
    pub async fn store_authorities(
        &mut self,
        certificates: &Certificates,
    ) -> Result<(), CopyError> {
        if self.recipients.is_empty() {
            return Ok(());
        }
        let bundle = certificates.export()?;
        let signed = SignedBundle::of(&self.cluster, bundle, certificates.sound_signer()?.as_ref());
        let bundle = serde_json::to_vec(&signed).unwrap_or_default();
        let sum = state::sha256(&[&bundle, self.sealed_to().as_bytes()].concat());
        let mut file = load_known(&self.known_path);
        if file.authorities.as_ref() == Some(&sum) {
            return Ok(());
        }
        let mut sealed = Vec::new();
        let path = self.known_path.clone();
        encrypt::encrypt_bytes(&bundle, &self.recipients, &mut sealed)
            .map_err(|source| CopyError::Io { path, source })?;
        let sealed_sum = state::sha256(&sealed);
        let key = format!("{}/{AUTHORITIES}", self.cluster);
        self.bucket.put(&key, sealed.into(), &sealed_sum).await?;
        file.authorities = Some(sum);
        Ok(state::save(&self.known_path, &file)?)
    }

    /// What is sent: the file itself, or what only the recipients can read of it.
    fn content(&self, proven: File, manifest: &Manifest) -> Result<Content, CopyError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| CopyError::Io { path, source }
        };
        if self.recipients.is_empty() {
            return Ok(Content {
                source: Box::new(FileSource::of(proven)),
                sha256: manifest.file.sha256.clone(),
            });
        }
        if manifest.file.size <= IN_MEMORY {
            let mut bytes = Vec::new();
            let sealed = encrypt::encrypt(&proven, &self.recipients, &mut bytes);
            sealed.map_err(failed(Path::new(&manifest.name)))?;
            return Ok(Content {
                sha256: state::sha256(&bytes),
                source: Box::new(BytesSource(bytes)),
            });
        }
        // The same plaintext encrypted again is other bytes: an upload under way needs these.
        let resumed = state::load::<Upload>(&self.upload_path).ok().flatten();
        let key = self.key(&manifest.name, true);
        let mut known = load_known(&self.known_path);
        // Who may no longer read gets nothing that was sealed before.
        let sealed_to = Some(self.sealed_to());
        let fits = |it: &Upload| it.key == key && known.spooled_to == sealed_to;
        if let Some(upload) = resumed.filter(|it| fits(it) && self.spool.exists()) {
            return Ok(Content {
                source: Box::new(FileSource::own(&self.spool).map_err(failed(&self.spool))?),
                sha256: upload.sha256,
            });
        }
        let dir = self.spool.parent().unwrap_or(&self.spool);
        room_for(dir, most(manifest.file.size, true))?;
        // An upload that was begun with other bytes is not gone on with.
        for path in [
            self.upload_path.with_extension("json.previous"),
            self.upload_path.clone(),
            self.spool.clone(),
        ] {
            let _ = fs::remove_file(path);
        }
        known.spooled_to = sealed_to;
        state::save(&self.known_path, &known)?;
        let sha256 = self.fill_spool(&proven).inspect_err(|_| {
            let _ = fs::remove_file(&self.spool);
        });
        Ok(Content {
            sha256: sha256.map_err(failed(&self.spool))?,
            source: Box::new(FileSource::own(&self.spool).map_err(failed(&self.spool))?),
        })
    }

    /// A word for the recipients, in whatever order they stand.
    fn sealed_to(&self) -> String {
        let mut recipients = self.recipients.clone();
        recipients.sort();
        recipients.dedup();
        state::sha256(recipients.join(" ").as_bytes())
    }

    fn fill_spool(&self, proven: &File) -> io::Result<String> {
        let mut spool = Hashing::new(super::new_file(&self.spool)?);
        encrypt::encrypt(proven, &self.recipients, &mut spool)?;
        let (spool, sha256) = spool.finish();
        spool.sync_all()?;
        Ok(sha256)
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test writes files")]
mod tests {
    use super::*;
    use crate::backup::manifest::tests::manifest;

    /// A store whose bucket nobody asks, for these recipients.
    fn store(paths: &Paths, recipients: &[&str]) -> RemoteStore {
        let keys = paths.root.join("keys");
        std::fs::create_dir_all(&paths.root).unwrap();
        std::fs::write(
            &keys,
            "[default]\naws_access_key_id = a\naws_secret_access_key = b\n",
        )
        .unwrap();
        std::fs::set_permissions(&keys, std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .unwrap();
        let text = format!(
            "apiVersion: etcd.edge-operator.io/v1alpha1\nkind: EtcdCluster\nmetadata: {{name: shop}}\n\
             spec:\n  backup: {{destinations: [{{local: {{path: /a}}}}, {{s3: {{bucket: snaps, credentials: {}, \
             encryption: {{recipients: [{}]}}}}}}]}}\n",
            keys.display(),
            recipients.join(", ")
        );
        let spec = crate::document::parse(text.as_bytes()).unwrap();
        let destination = &spec.backup.as_ref().unwrap().destinations[1];
        let crate::spec::backup::Place::S3(it) = &destination.place else {
            unreachable!()
        };
        RemoteStore::open(paths, destination, it, &spec.name).unwrap()
    }

    #[test]
    fn ciphertext_that_waits_is_not_sent_once_others_are_to_read_it() {
        let root = std::env::temp_dir().join(format!("sealed-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        let paths = Paths::under(&root);
        let [one, two] = [(); 2].map(|()| {
            let key = age::x25519::Identity::generate();
            key.to_public().to_string()
        });
        let mut manifest = manifest();
        manifest.file.size = IN_MEMORY + 1;
        let before = store(&paths, &[&one, &two]);
        let file = root.join("snapshot");
        std::fs::write(&file, b"bytes").unwrap();
        let sha256 = |it: &RemoteStore| {
            it.content(File::open(&file).unwrap(), &manifest)
                .unwrap()
                .sha256
        };
        let sealed = sha256(&before);
        let upload: Upload = serde_json::from_value(serde_json::json!({
            "key": before.key(&manifest.name, true), "uploadId": "1", "upload_id": "1",
            "len": 1, "sha256": sealed, "partSize": 1, "part_size": 1, "parts": [],
        }))
        .unwrap();
        state::save(&before.upload_path, &upload).unwrap();
        assert_eq!(sha256(&before), sealed, "it goes on");
        assert_eq!(sha256(&store(&paths, &[&two, &one])), sealed, "it goes on");
        assert_ne!(sha256(&store(&paths, &[&two])), sealed);
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_snapshot_in_a_bucket_that_lost_bytes_is_none() {
        let entry = |size, encrypted| RemoteEntry {
            name: "shop-0-20261121T131500Z-r12-0000000a".parse().unwrap(),
            known: Some(Known {
                cluster_id: String::new(),
                class: Class::Scheduled,
                level: 3,
                created: None,
                ttl: None,
                size: Some(900),
                signer: None,
                etcd: None,
            }),
            size,
            encrypted,
        };
        assert_eq!(entry(Some(900), false).level(), 3);
        assert_eq!(entry(Some(1100), true).level(), 3);
        for (size, encrypted) in [(899, false), (901, false), (0, false), (899, true)] {
            assert_eq!(
                entry(Some(size), encrypted).level(),
                0,
                "{size} {encrypted}"
            );
        }
        assert_eq!(entry(None, false).level(), 0);
        assert_eq!((most(u64::MAX, true), most(900, false)), (u64::MAX, 900));
    }

    #[test]
    fn an_upload_of_ours_is_told_from_what_others_send_there() {
        let name = "shop-0-20261121T131500Z-r12-0000000a";
        let ours = |file: &str| name_in(file).is_some_and(|it| it.is_of("shop"));
        assert!(ours(&format!("{name}.db.zst")) && ours(&format!("{name}.db.zst.age")));
        for other in [
            "film.mp4".to_owned(),
            format!("{name}.json"),
            format!("till-0{}.db.zst", &name[6..]),
            format!("deep/{name}.db.zst"),
        ] {
            assert!(!ours(&other), "{other}");
        }
    }
}
