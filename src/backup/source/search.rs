//! Where a snapshot is looked for, and which of those that lie there counts.

use std::path::Path;

use super::{Found, fetched, file as file_of, found, is_latest, unresolved};
use crate::backup::local::{Entry, LocalStore, SNAPSHOT};
use crate::backup::manifest::Manifest;
use crate::backup::name::{LATEST, Several, SnapshotName, meant};
use crate::backup::remote::{CopyError, RemoteEntry, RemoteStore};
use crate::backup::restore::{RestoreError, check_version};
use crate::backup::served::{Served, Unsent};
use crate::backup::trust::{Distrust, Trust};
use crate::backup::{Progress, place, verify};
use crate::error::chain;
use crate::member::pod::TLS_DIR;
use crate::member::restore_record::{Reason, SourceFile};
use crate::paths::Paths;
use crate::retention::VERIFIED;
use crate::spec::ClusterSpec;
use crate::spec::backup::{Destination, Place, S3};
use crate::state;
use crate::tls::Certificates;
use crate::version::Version;

/// Where to look for which snapshot.
#[derive(Clone, Copy)]
pub struct Search<'a> {
    /// Where records lie.
    pub paths: &'a Paths,
    /// The document.
    pub spec: &'a ClusterSpec,
    /// Which one.
    pub wanted: &'a SourceFile,
    /// The file of secret keys, for one that is encrypted.
    pub identity: Option<&'a Path>,
    /// Of one of these clusters; of any of the document's name where none is named.
    pub clusters: &'a [String],
    /// Whose signatures count; none: every snapshot counts, because a person decides.
    pub trust: Option<&'a Trust>,
    /// Names that are passed over.
    pub passed: &'a [String],
    /// Of several, one that this version of etcd can read.
    pub at_most: Option<Version>,
    /// In the Pod of a restore: the worker that has the first destination.
    pub served: Option<&'a Served>,
}

impl Search<'_> {
    /// Finds it by name or `latest` in the first destination, or a file. A file that the document or a person names
    /// by its path is that person's word, whoever signed it.
    pub(super) fn here(&self) -> Result<Found, RestoreError> {
        if self.wanted.path.as_os_str().is_empty() {
            let own = place::before_upgrade(self.paths, self.spec);
            let own = Some(own).filter(|it| self.spec.backup.is_none() && it.path().is_dir());
            let store = place::primary(self.spec).or(own).ok_or_else(|| {
                RestoreError::NoSnapshot(
                    "the document has no spec.backup to find a snapshot in: name a file".to_owned(),
                )
            })?;
            return self.of_store(&store);
        }
        file_of(&self.wanted.path)
    }

    /// Finds it in a directory.
    fn of_store(&self, store: &LocalStore) -> Result<Found, RestoreError> {
        let mut entries = store.list()?;
        entries.retain(|it| !self.passed.contains(&it.name.to_string()));
        let counting = entries.iter().filter(|it| self.judge(it).is_ok());
        let counting = counting.map(|it| &it.name);
        let wanted = self.whole_name(counting, entries.iter().map(|it| &it.name))?;
        let named = Search {
            wanted: &wanted,
            ..*self
        };
        named.of_listed(store, entries)
    }

    /// What is looked for, with the whole name of a snapshot where a part of it was said: of those that count, so that
    /// nobody makes a word unclear by what he puts there; else of all, of which is told why they do not.
    fn whole_name<'b>(
        &self,
        counting: impl Iterator<Item = &'b SnapshotName>,
        all: impl Iterator<Item = &'b SnapshotName>,
    ) -> Result<SourceFile, Several> {
        let mut wanted = self.wanted.clone();
        if wanted.name == LATEST {
            return Ok(wanted);
        }
        let found = match meant(&wanted.name, counting)? {
            None => meant(&wanted.name, all)?,
            found => found,
        };
        if let Some(name) = found {
            wanted.name = name.to_string();
        }
        Ok(wanted)
    }

    fn of_listed(
        &self,
        store: &LocalStore,
        mut entries: Vec<Entry>,
    ) -> Result<Found, RestoreError> {
        let at = store.path().display().to_string();
        let mut doubted = None;
        entries.retain(|it| {
            let cluster = it.manifest.as_ref().ok().map(|it| it.cluster_id.as_str());
            let asked = self.asks_for(&it.name, it.level(), cluster);
            keeps(&mut doubted, &it.name, asked, self.judge(it))
        });
        if is_latest(self.wanted) {
            let readable = |it: &Entry| it.manifest.as_ref().is_ok_and(|it| self.can_read(it));
            // Where there is none, what lies there is told.
            if entries.iter().any(readable) {
                entries.retain(readable);
            }
        }
        let entry = match self.wanted.name.as_str() {
            LATEST => place::newest_verified(&entries, self.clusters),
            name => entries.iter().find(|it| it.name.to_string() == name),
        };
        found(
            store,
            entry.ok_or_else(|| self.none_there(&at, doubted.as_ref()))?,
        )
    }

    /// Whether its origin counts, as far as it says one.
    fn judge(&self, entry: &Entry) -> Result<(), Distrust> {
        match (self.trust, &entry.manifest) {
            (Some(trust), Ok(manifest)) => trust.judge(manifest).map(|_| ()),
            _ => Ok(()),
        }
    }

    /// The same of one in a bucket, by what is known of it.
    fn judge_remote(&self, entry: &RemoteEntry) -> Result<(), Distrust> {
        let signer = entry.known.as_ref().map(|it| it.signer.as_deref());
        match (self.trust, signer) {
            (Some(trust), Some(signer)) => trust.signer_at(signer, entry.created()).map(|_| ()),
            _ => Ok(()),
        }
    }

    /// Whether the etcd that gets the data can read this one.
    fn can_read(&self, manifest: &Manifest) -> bool {
        let version = manifest.etcd();
        check_version(version, self.at_most).is_ok()
    }

    /// Whether one of this name and level, of the cluster with this id, is what is looked for.
    fn asks_for(&self, name: &SnapshotName, level: u8, cluster: Option<&str>) -> bool {
        let is_of = |id: &str| self.clusters.is_empty() || self.clusters.iter().any(|it| it == id);
        match self.wanted.name.as_str() {
            LATEST => level >= VERIFIED && cluster.is_some_and(is_of),
            wanted => wanted == name.to_string(),
        }
    }

    fn none_there(&self, at: &str, doubted: Option<&Doubted>) -> RestoreError {
        if let Some((name, why)) = doubted {
            return RestoreError::Untrusted(format!("{name} in {at} {why}"));
        }
        let what = match self.wanted.name.as_str() {
            LATEST => "verified snapshot",
            name => name,
        };
        let own = self.spec.name.as_str();
        let name = self.served.map_or(own, |it| it.cluster.as_str());
        RestoreError::NoSnapshot(format!("there is no {what} of the cluster {name} in {at}"))
    }

    /// Finds it in the first destination, else in the further ones. One from a bucket is downloaded and verified.
    pub async fn anywhere(
        &self,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Found, RestoreError> {
        let first = match self.served {
            Some(served) => self.of_worker(served, progress).await,
            None => self.here(),
        };
        let mut failures = match first {
            other if !self.wanted.path.as_os_str().is_empty() => return other,
            Err(
                error @ (RestoreError::NoSnapshot(_)
                | RestoreError::Untrusted(_)
                | RestoreError::Local(_)),
            ) => vec![error],
            other => return other,
        };
        // The further places are this cluster's; another one's snapshot lies in none of them.
        let anothers = |it: &Served| it.cluster != self.spec.name.as_str();
        let backup = self.spec.backup.as_ref();
        let backup = backup.filter(|_| !self.served.is_some_and(anothers));
        let further = backup.map_or(&[][..], |it| it.destinations.get(1..).unwrap_or_default());
        for destination in further {
            let it = match &destination.place {
                Place::S3(it) => it,
                Place::Local(_) => {
                    let store = place::local(self.spec, destination);
                    match store.map(|it| self.of_store(&it)) {
                        Some(Ok(found)) => return Ok(found),
                        Some(Err(several @ RestoreError::Several(_))) => return Err(several),
                        other => failures.extend(other.and_then(Result::err)),
                    }
                    continue;
                }
            };
            let at = place::describe(destination);
            // A bucket that fails does not prevent asking the next one.
            match self.fetch(destination, (it, false), progress).await {
                Ok(Ok(found)) => return Ok(found),
                Ok(Err(doubted)) => failures.push(self.none_there(&at, doubted.as_ref())),
                Err(several @ RestoreError::Several(_)) => return Err(several),
                Err(error) => {
                    let why = chain(&error);
                    tracing::warn!(at, "passed over: {why}");
                    failures.push(RestoreError::NoSnapshot(format!("{at}: {why}")));
                }
            }
        }
        // Report all failures: a person who fixes one wants to know of all.
        if failures.len() > 1 {
            // The key that it names has to be read first.
            failures.sort_by_key(|it| !matches!(it, RestoreError::Untrusted(_)));
            let untrusted = matches!(failures[0], RestoreError::Untrusted(_));
            let all: Vec<String> = failures.iter().map(|it| chain(it)).collect();
            let all = all.join("; ");
            return Err(if untrusted {
                RestoreError::Untrusted(all)
            } else {
                RestoreError::NoSnapshot(all)
            });
        }
        Err(failures.remove(0))
    }

    /// Brings it from a worker, which has judged what it calls the latest, and verifies it; its origin is judged here once
    /// more.
    async fn of_worker(
        &self,
        served: &Served,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Found, RestoreError> {
        let (at, tls) = (served.place(), Path::new(TLS_DIR));
        let silent =
            |why: String| RestoreError::NoSnapshot(format!("{at} does not send it: {why}"));
        let wanted = self.wanted.name.as_str();
        let manifest = served.manifest(tls, wanted).await;
        let manifest = manifest.map_err(|it| match it {
            Unsent::Several(text) => RestoreError::Several(text),
            Unsent::Silent(why) => silent(why),
        })?;
        let of_it = manifest.filter(|it| it.cluster == served.cluster);
        let named = of_it.and_then(|it| Some((it.name.parse::<SnapshotName>().ok()?, it)));
        let Some((name, manifest)) = named else {
            return Err(self.none_there(&at, None));
        };
        let judged = self.trust.map(|it| it.judge(&manifest));
        if let Some(Err(why)) = judged {
            return Err(self.none_there(&at, Some(&(manifest.name, why))));
        }
        let into = LocalStore::at(fetched(self.paths, self.spec).path(), &served.cluster);
        state::create_private_dir(into.path())?;
        into.prepare(false)?;
        crate::backup::local::room_for(into.path(), manifest.file.size)?;
        let part = into.part();
        let failed = |source| RestoreError::Io {
            what: "write",
            path: part.clone(),
            source,
        };
        let fetched = async {
            let mut file = crate::backup::new_file(&part).map_err(failed)?;
            let sent = served.fetch(tls, &manifest, &mut file, progress).await;
            sent.map_err(silent)?;
            file.sync_all().map_err(failed)?;
            Ok(verify::verify(&part, &manifest, VERIFIED, progress)?)
        };
        if let Err(error) = fetched.await {
            // Half a snapshot takes no room on the volume of the data.
            let _ = std::fs::remove_file(&part);
            return Err(error);
        }
        into.commit(&part, &name, &manifest)?;
        file_of(&into.snapshot(&name))
    }

    /// Downloads the snapshot `BUCKET/KEY` from a bucket that the document describes.
    pub async fn in_bucket(
        &self,
        key: &str,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Found, RestoreError> {
        let none = |why: &str| RestoreError::NoSnapshot(format!("s3://{key}: {why}"));
        let backup = self.spec.backup.as_ref();
        let all = backup
            .map(|it| it.destinations.as_slice())
            .unwrap_or_default();
        let described = all.iter().find_map(|it| match &it.place {
            Place::S3(s3) if key.starts_with(&format!("{}/", s3.bucket)) => Some((it, s3)),
            _ => None,
        });
        let (destination, s3) = described.ok_or_else(|| {
            none("the document describes no such bucket: add it to spec.backup.destinations")
        })?;
        let last = key.rsplit('/').next().unwrap_or_default();
        let stem = last.strip_suffix(".age").unwrap_or(last);
        let name = stem.strip_suffix(SNAPSHOT).unwrap_or(stem);
        let wanted = SourceFile {
            name: name.to_owned(),
            ..unresolved(self.spec, Reason::Command)
        };
        let named = Search {
            wanted: &wanted,
            clusters: &[],
            ..*self
        };
        let found = named.fetch(destination, (s3, true), progress).await?;
        found.map_err(|_| none("there is no such snapshot of this cluster"))
    }

    /// Downloads a snapshot from a bucket. Where the bucket does not have it: the newest one there that does not
    /// count, and why.
    async fn fetch(
        &self,
        destination: &Destination,
        (s3, named): (&S3, bool),
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Result<Found, Option<Doubted>>, RestoreError> {
        let mut store = RemoteStore::open(self.paths, destination, s3, &self.spec.name)?;
        let mut entries = store.list().await?;
        entries.retain(|it| !self.passed.contains(&it.name.to_string()));
        // A key is a whole name.
        if named {
            return self
                .of_bucket((s3, named), (store, entries), progress)
                .await;
        }
        let counts = |it: &&RemoteEntry| {
            self.judge_remote(it).is_ok() && (s3.recipients.is_empty() || it.encrypted)
        };
        let counting = entries.iter().filter(counts).map(|it| &it.name);
        let wanted = self.whole_name(counting, entries.iter().map(|it| &it.name))?;
        let whole = Search {
            wanted: &wanted,
            ..*self
        };
        whole
            .of_bucket((s3, named), (store, entries), progress)
            .await
    }

    /// The same of what lies there.
    async fn of_bucket(
        &self,
        (s3, named): (&S3, bool),
        (mut store, mut entries): (RemoteStore, Vec<RemoteEntry>),
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Result<Found, Option<Doubted>>, RestoreError> {
        // Whoever demands encryption takes nothing that anybody could have put there in clear, but for what a person
        // names by its path.
        if !s3.recipients.is_empty() && !named {
            entries.retain(|it| it.encrypted);
        }
        let mut doubted = None;
        // What does not count has no say about which cluster of the name lived last, either.
        entries.retain(|it| {
            let asked = self.asks_for(&it.name, it.level(), it.cluster_id());
            keeps(&mut doubted, &it.name, asked, self.judge_remote(it))
        });
        let into = fetched(self.paths, self.spec);
        let (found, encrypted) = loop {
            let Some(entry) = self.choose(&entries) else {
                return Ok(Err(doubted));
            };
            let name = entry.name.to_string();
            // What is known of it may be older than what lies there.
            let manifest = store.manifest(&name).await?;
            if let (Some(trust), Some(manifest)) = (self.trust, &manifest)
                && let Err(why) = trust.judge(manifest)
            {
                doubted = doubted.or(Some((name, why)));
                entries.retain(|it| it.name != entry.name);
                continue;
            }
            let too_new = |it: &Manifest| is_latest(self.wanted) && !self.can_read(it);
            if manifest.as_ref().is_some_and(too_new) && entries.len() > 1 {
                entries.retain(|it| it.name != entry.name);
                continue;
            }
            state::create_private_dir(into.path())?;
            into.prepare(false)?;
            let brought = match manifest {
                Some(it) => {
                    let fetching = (&entry.name, entry.encrypted);
                    store
                        .fetch(fetching, &it, self.identity, &into, progress)
                        .await
                }
                None => Err(CopyError::ManifestDamaged(name.clone())),
            };
            match brought {
                Ok(()) => break (file_of(&into.snapshot(&entry.name))?, entry.encrypted),
                // The newest is not whole: the next one is older, but better than none.
                Err(error @ (CopyError::Verify(_) | CopyError::ManifestDamaged(_)))
                    if is_latest(self.wanted) =>
                {
                    tracing::warn!(name, "snapshot passed over: {}", chain(&error));
                    entries.retain(|it| it.name != entry.name);
                }
                Err(error) => return Err(error.into()),
            }
        };
        // The host was replaced. With the CAs, its clients keep their certificates (rule A5).
        let authorities = match self.identity.filter(|_| encrypted) {
            Some(identity) if Certificates::at(self.paths.tls()).lacks_an_authority() => {
                store.fetch_authorities(identity).await?
            }
            _ => None,
        };
        Ok(Ok(Found {
            authorities,
            ..found
        }))
    }

    /// The wanted one of those in a bucket.
    fn choose(&self, entries: &[RemoteEntry]) -> Option<RemoteEntry> {
        // Of a name there is one; of several that `latest` asks for, the newest.
        let asked = |it: &&RemoteEntry| self.asks_for(&it.name, it.level(), it.cluster_id());
        let asked = entries.iter().filter(asked);
        let chosen = place::newest(asked, !self.clusters.is_empty(), |it| {
            let cluster = it.cluster_id().unwrap_or_default().to_owned();
            let created = it.created().map(|it| it.0);
            (cluster, it.name.revision, created)
        });
        chosen.cloned()
    }
}

/// A snapshot that is looked for and does not count, and why.
type Doubted = (String, Distrust);

/// Whether a snapshot counts. The first that was `asked` for and does not is kept in mind, to be told.
fn keeps(
    doubted: &mut Option<Doubted>,
    name: &SnapshotName,
    asked: bool,
    judged: Result<(), Distrust>,
) -> bool {
    let Err(why) = judged else { return true };
    if asked && doubted.is_none() {
        *doubted = Some((name.to_string(), why));
    }
    false
}
