//! What commands about snapshots have in common: the document's destinations, the lock, the time.

use std::path::Path;

use super::{Context, FAILED, Failure, HELD, USAGE, runtime};
use crate::backup::local::{Entry, LocalStore};
use crate::backup::name::{LATEST, SnapshotName, meant};
use crate::backup::place::{self, BackupLock, Work};
use crate::backup::remote::{RemoteEntry, RemoteStore};
use crate::retention::VERIFIED;
use crate::s3::{Credentials, S3Error};
use crate::spec::ClusterSpec;
use crate::spec::backup::{Destination, Place, S3};

/// The document and its first destination.
pub(super) fn primary(context: &Context) -> Result<(ClusterSpec, LocalStore), Failure> {
    let spec = context.document()?;
    let store = place::primary(&spec).ok_or_else(|| {
        let text = format!(
            "{}: spec.backup is not there: say where snapshots go, such as backup: {{destinations: [{{local: {{path: /mnt/backup}}}}]}}",
            context.config.display()
        );
        Failure::new(USAGE, text)
    })?;
    Ok((spec, store))
}

/// One process at a time.
pub(super) fn lock(context: &Context, work: Work) -> Result<BackupLock, Failure> {
    place::lock(&context.paths, work)?.ok_or_else(|| {
        let text = match work {
            Work::Local => "another process takes or checks snapshots: try again when it is done",
            Work::Copies => {
                "the agent is copying already: see queued in etcd-operator status -o json"
            }
        };
        Failure::new(HELD, text)
    })
}

/// The time, if it is trusted.
pub(super) fn trusted_now(context: &Context) -> Option<crate::cluster::Timestamp> {
    use crate::clock;
    let now = clock::now();
    if context.worker.is_some() {
        return crate::worker::clock_by_worker(&context.paths, now).trusted(now);
    }
    let newest = clock::newest_known(Path::new("/nonexistent"), None);
    let kernel = crate::systemd::runs(&context.paths) && clock_is_synchronised();
    let clock = clock::trust(&context.paths, now, newest, kernel);
    clock.trusted(now)
}

/// Asks timedated on a thread of its own: some commands ask from within a runtime.
fn clock_is_synchronised() -> bool {
    let ask = || super::runtime().map(|it| it.block_on(crate::systemd::clock_is_synchronised()));
    let asked = std::thread::spawn(ask).join();
    matches!(asked, Ok(Ok(true)))
}

/// A destination.
pub(super) struct Site<'a> {
    /// In the words of `--at`.
    pub(super) name: String,
    pub(super) destination: &'a Destination,
    pub(super) kind: Kind<'a>,
}

/// What it is.
pub(super) enum Kind<'a> {
    Local(LocalStore),
    Bucket(&'a S3),
}

/// All of the document, or the one that is named.
pub(super) fn sites<'a>(spec: &'a ClusterSpec, at: Option<&str>) -> Result<Vec<Site<'a>>, Failure> {
    let all = spec.backup.iter().flat_map(|it| &it.destinations);
    let all: Vec<Site<'a>> = all
        .map(|destination| Site {
            name: place::describe(destination),
            destination,
            kind: match (&destination.place, place::local(spec, destination)) {
                (Place::S3(it), _) => Kind::Bucket(it),
                (Place::Local(path), store) => Kind::Local(
                    store.unwrap_or_else(|| LocalStore::at(Path::new(path.as_str()), &spec.name)),
                ),
            },
        })
        .collect();
    let Some(at) = at else { return Ok(all) };
    let plain = |it: &str| it.trim_end_matches('/').to_owned();
    let known: Vec<String> = all.iter().map(|it| it.name.clone()).collect();
    let named: Vec<Site<'a>> = all
        .into_iter()
        .filter(|it| plain(&it.name) == plain(at))
        .collect();
    if named.is_empty() {
        let known = known.join(", ");
        let text = format!("{at} is no destination of the document: there are {known}");
        return Err(Failure::new(USAGE, text));
    }
    Ok(named)
}

impl Site<'_> {
    /// Why nothing can be asked of a bucket, where the keys to it are missing: the other places do
    /// without them.
    pub(super) fn lacks_keys(&self) -> Option<String> {
        let Kind::Bucket(s3) = &self.kind else {
            return None;
        };
        let file = s3.credentials.as_ref().map(|it| Path::new(it.as_str()));
        match Credentials::read(file) {
            Err(error @ (S3Error::NoCredentials | S3Error::CredentialsOfTheUnit)) => {
                Some(format!("{} could not be asked: {error}", self.name))
            }
            _ => None,
        }
    }

    /// The bucket, for a person who waits.
    pub(super) fn open(
        &self,
        context: &Context,
        s3: &S3,
        spec: &ClusterSpec,
    ) -> Result<RemoteStore, Failure> {
        let opened = RemoteStore::open(&context.paths, self.destination, s3, &spec.name);
        Ok(opened?.impatient())
    }

    /// What lies in a bucket.
    pub(super) fn look(
        &self,
        context: &Context,
        s3: &S3,
        spec: &ClusterSpec,
    ) -> Result<(RemoteStore, Vec<RemoteEntry>), Failure> {
        let mut store = self.open(context, s3, spec)?;
        let entries = runtime()?.block_on(store.look())?;
        Ok((store, entries))
    }
}

/// The snapshot that a person means among these: the newest verified one by `latest`, else as [`meant`] says.
fn pick_by<T>(
    mut entries: Vec<T>,
    word: &str,
    told: impl Fn(&T) -> (&SnapshotName, u8),
) -> Result<Option<T>, Failure> {
    let at = if word == LATEST {
        entries.iter().position(|it| told(it).1 >= VERIFIED)
    } else {
        let found = meant(word, entries.iter().map(|it| told(it).0));
        let found = found.map_err(|it| Failure::new(FAILED, it.to_string()))?;
        found.and_then(|name| entries.iter().position(|it| told(it).0 == name))
    };
    Ok(at.map(|it| entries.swap_remove(it)))
}

/// The same of a directory.
pub(super) fn pick(entries: Vec<Entry>, word: &str) -> Result<Option<Entry>, Failure> {
    pick_by(entries, word, |it| (&it.name, it.level()))
}

/// The same of a bucket.
pub(super) fn pick_remote(
    entries: Vec<RemoteEntry>,
    word: &str,
) -> Result<Option<RemoteEntry>, Failure> {
    pick_by(entries, word, |it| (&it.name, it.level()))
}

/// The same of names with their levels, the newest first.
pub(super) fn pick_name(
    names: Vec<(SnapshotName, u8)>,
    word: &str,
) -> Result<Option<SnapshotName>, Failure> {
    Ok(pick_by(names, word, |it| (&it.0, it.1))?.map(|it| it.0))
}

/// None of these places has it.
pub(super) fn nowhere(name: &str, sites: &[Site<'_>]) -> Failure {
    let places: Vec<&str> = sites.iter().map(|it| it.name.as_str()).collect();
    let places = places.join(", ");
    let text = format!("there is no snapshot {name} in {places}: see etcd-operator backup list");
    Failure::new(FAILED, text)
}
