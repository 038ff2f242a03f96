//! Looks for snapshots of the document's cluster before the first one is born here.
//!
//! Directories are read with each look, buckets are asked once; both beside the loop. Whether the link works is not
//! known then, and no start waits for it longer than [`DEADLINE`].

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::backup::age::Ages;
use crate::backup::local::LocalError;
use crate::backup::remote::RemoteStore;
use crate::backup::{place, work};
use crate::clock;
use crate::cluster::{Detail, Timestamp, detail};
use crate::disk::Look;
use crate::error::chain;
use crate::observed::{Predecessor, Predecessors, SnapshotSeen};
use crate::paths::Paths;
use crate::retention::VERIFIED;
use crate::spec::ClusterSpec;
use crate::spec::backup::{Backup, Destination, Place, PublicKey, S3};

/// A first start waits no longer for buckets.
const DEADLINE: Duration = Duration::from_secs(30);
/// What a bucket holds may change, and a person may have removed it.
const ASK_AGAIN: Duration = Duration::from_secs(600);

/// What buckets were asked.
#[derive(Default)]
pub(super) struct Search {
    /// What directories hold.
    directories: Look<Option<Backup>, Result<Option<Predecessor>, Detail>>,
    job: Option<JoinHandle<Option<Predecessor>>>,
    /// What they said, and when (since boot).
    said: Option<(Option<Predecessor>, Duration)>,
}

impl Search {
    /// What the destinations hold. `asks`: buckets, too.
    pub(super) fn look(
        &mut self,
        paths: &Paths,
        spec: &ClusterSpec,
        now: Option<Timestamp>,
        bell: Arc<tokio::sync::Notify>,
        asks: bool,
    ) -> Predecessors {
        let (own, document) = (paths.clone(), spec.clone());
        let seen = self.directories.at(spec.backup.clone(), move |_| {
            here(&own, &document, now).map_err(|it| detail(format_args!("{}", chain(&it))))
        });
        match (seen.what, seen.silent) {
            (Some(Ok(None)), None) => {}
            (Some(Ok(Some(it))), _) => return Predecessors::Found(it),
            (Some(Err(why)), _) => return Predecessors::Unreadable(why),
            (_, Some(silent)) if silent >= DEADLINE => {
                let why = place::describe_local(destinations(spec));
                let why = format_args!("the file system does not answer: {why}");
                return Predecessors::Unreadable(detail(why));
            }
            _ => return Predecessors::Looking,
        }
        let buckets: Vec<Destination> = destinations(spec)
            .filter(|it| matches!(it.place, Place::S3(_)))
            .cloned()
            .collect();
        if buckets.is_empty() || !asks {
            return Predecessors::None;
        }
        if self.job.as_ref().is_some_and(JoinHandle::is_finished) {
            let said = self.job.take().and_then(|it| it.join().ok()).flatten();
            self.said = Some((said, clock::since_boot()));
        }
        let fresh = |at: Duration| clock::since_boot() < at + ASK_AGAIN;
        match &self.said {
            Some((Some(it), at)) if fresh(*at) => return Predecessors::Found(it.clone()),
            Some((None, at)) if fresh(*at) => return Predecessors::None,
            _ => {}
        }
        if self.job.is_none() {
            let (paths, name) = (paths.clone(), spec.name.to_string());
            let job = std::thread::Builder::new().spawn(move || {
                let found = ask_all(&paths, &name, &buckets, now);
                bell.notify_one();
                found
            });
            // Where the system has no room for a thread, the next pass asks again.
            self.job = job.ok();
        }
        Predecessors::Looking
    }
}

fn destinations(spec: &ClusterSpec) -> impl Iterator<Item = &Destination> {
    let backup = spec.backup.as_ref();
    backup.map_or(&[][..], |it| &it.destinations).iter()
}

/// The newest of all directories; an unreadable one counts only where no other holds any.
fn here(
    paths: &Paths,
    spec: &ClusterSpec,
    now: Option<Timestamp>,
) -> Result<Option<Predecessor>, LocalError> {
    let mut unread = None;
    let mut found: Vec<Predecessor> = Vec::new();
    for store in destinations(spec).filter_map(|it| place::local(spec, it)) {
        let entries = match store.list() {
            Ok(entries) => entries,
            // Our own directory is made when it is first written to: nothing is mounted there.
            Err(LocalError::Missing(path)) if path.starts_with(&paths.lib) => continue,
            Err(error) => {
                unread.get_or_insert(error);
                continue;
            }
        };
        let proven = || entries.iter().filter(|it| it.level() >= VERIFIED);
        let Some(newest) = place::newest_verified(&entries, &[]) else {
            continue;
        };
        found.push(Predecessor {
            count: u32::try_from(proven().count()).unwrap_or(u32::MAX),
            newest: work::seen(newest, &Ages::new(now)),
            signer: newest.signer().and_then(key),
            place: detail(format_args!("{}", store.path().display())),
        });
    }
    match (found.into_iter().max_by_key(order), unread) {
        (None, Some(error)) => Err(error),
        (found, _) => Ok(found),
    }
}

fn key(text: &str) -> Option<PublicKey> {
    text.try_into().ok()
}

fn order(it: &Predecessor) -> (Option<Timestamp>, i64) {
    (it.newest.created, it.newest.revision)
}

/// What buckets hold. One that does not answer holds nothing, as far as this box can tell.
fn ask_all(
    paths: &Paths,
    name: &str,
    buckets: &[Destination],
    now: Option<Timestamp>,
) -> Option<Predecessor> {
    let runtime = work::runtime().ok()?;
    let mut found = Vec::new();
    for destination in buckets {
        let Place::S3(s3) = &destination.place else {
            continue;
        };
        let at = place::describe(destination);
        let asked = async {
            let asked = tokio::time::timeout(DEADLINE, ask(paths, name, (destination, s3), now));
            asked.await.map_err(|_| "no answer".to_owned()).flatten()
        };
        match runtime.block_on(asked) {
            Ok(it) => found.extend(it),
            Err(why) => tracing::warn!(
                at,
                "the operator cannot see whether snapshots of this name exist there, and creates the cluster all the same: {why}"
            ),
        }
    }
    found.into_iter().max_by_key(order)
}

async fn ask(
    paths: &Paths,
    name: &str,
    (destination, s3): (&Destination, &S3),
    now: Option<Timestamp>,
) -> Result<Option<Predecessor>, String> {
    let store = RemoteStore::open(paths, destination, s3, name);
    let mut store = store.map_err(|it| chain(&it))?;
    let entries = store.look().await.map_err(|it| chain(&it))?;
    let proven: Vec<_> = entries.iter().filter(|it| it.level() >= VERIFIED).collect();
    let newest = place::newest(proven.iter(), false, |it| {
        let cluster = it.cluster_id().unwrap_or_default().to_owned();
        (cluster, it.name.revision, it.created().map(|it| it.0))
    });
    Ok(newest.map(|it| Predecessor {
        count: u32::try_from(proven.len()).unwrap_or(u32::MAX),
        newest: SnapshotSeen {
            revision: it.name.revision,
            created: it.created(),
            level: it.level(),
            bytes: it.size.unwrap_or(0),
            seconds: now
                .zip(it.created())
                .and_then(|(now, at)| u64::try_from(now.seconds_since(at)).ok()),
            version: None,
        },
        signer: it.known.as_ref().and_then(|it| key(it.signer.as_deref()?)),
        place: detail(format_args!("{}", place::describe(destination))),
    }))
}
