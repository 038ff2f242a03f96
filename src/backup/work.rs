//! What an operator knows of a cluster's snapshots, and the job that works on them beside its loop. Both
//! homes use it.
//!
//! A job runs in a thread of its own with a runtime of its own, so that neither a slow card nor a thin
//! link keeps the operator from looking after etcd. Its end wakes the loop.

mod attempts;
mod due;
mod jobs;
mod own;
mod places;
mod rehearsal;
mod turns;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::age::Ages;
use super::copy::CopiesSeen;
use super::local::{Entry, LocalStore};
use super::manifest::{Class, Manifest};
use super::prune::Ours;
use super::remote::CopyError;
use super::restore::Prepared;
use super::trust::Trust;
use super::{copy, place};
use crate::clock;
use crate::cluster::{Detail, Timestamp, detail};
use crate::disk::Look;
use crate::member::records::IdentityFile;
use crate::observed::{BackupFailure, Backups, Clock, DestinationSeen, Reach, SnapshotSeen};
use crate::paths::Paths;
use crate::spec::ClusterSpec;
use crate::spec::backup::{DESTINATIONS_MAX, Keep, PublicKey};
use crate::tls::{Certificates, ClientFiles};
use crate::version::Version;

pub use due::{note_check, skip};
pub use jobs::{Made, lacks_room, runtime};
pub use own::of_changes;
pub use rehearsal::{Live, NotRehearsed, rehearse_alone};

use attempts::Attempts;
use due::{checked, due_in};
use jobs::{SnapshotJob, check, failure, locked, trial};
use own::{named, newest_own};
use places::{Asked as Place, First, Further};

/// What is kept was looked at, and is not whole.
const DAMAGED: &str = "SnapshotDamaged";
/// A command holds the lock on backups.
const BUSY: &str = "BackupBusy";
const BUSY_SECONDS: u64 = 5;

/// What is remembered from pass to pass.
#[derive(Default)]
pub struct Work {
    /// The job under way.
    job: Option<JoinHandle<Ended>>,
    /// Copies under way, which may take long.
    copying: Option<JoinHandle<Ended>>,
    /// Rung by a job that ends.
    bell: Arc<tokio::sync::Notify>,
    snapshot: Attempts,
    copies: Attempts,
    checks: Attempts,
    /// What the last snapshot took, in milliseconds.
    took: Option<u64>,
    /// What was seen in the first destination, and in the further ones: one that hangs hides no other.
    first: Look<Place, First>,
    further: Look<Place, Further>,
}

/// How a job ended.
pub enum Ended {
    /// A snapshot was taken, or there was nothing new.
    Snapshot(Result<(), BackupFailure>, Duration),
    /// Copies were made.
    Copies(Result<(), BackupFailure>),
    /// What is kept was checked.
    Checks(Result<(), BackupFailure>),
    /// The new data of a restore.
    Prepared(Box<Prepared>),
    /// What a person asked for.
    Asked(Box<Asked>),
    /// Another version was tried on a copy of the data.
    Rehearsed(Version, Result<i64, NotRehearsed>),
    /// It was read how far data reaches; none: etcd was started meanwhile. And what the data was known by.
    Counted(Option<Reach>, String),
}

/// Whose snapshots are worked on, as one pass knows it.
pub struct Member<'a> {
    /// Where records lie.
    pub paths: &'a Paths,
    /// The document.
    pub spec: &'a ClusterSpec,
    /// Who lives there; none before birth.
    pub identity: Option<&'a IdentityFile>,
    /// Where etcd is reached.
    pub url: &'a str,
    /// The operator as its client.
    pub files: ClientFiles,
    /// Where the key lies with which manifests are signed.
    pub certificates: Certificates,
}

impl Member<'_> {
    /// The ids that this cluster has and had.
    fn clusters(&self) -> Vec<String> {
        self.identity
            .map(IdentityFile::clusters)
            .unwrap_or_default()
    }

    /// Which snapshots retention counts.
    fn ours(&self) -> Ours {
        Ours {
            clusters: self.clusters(),
            trust: Trust::of(&self.certificates, self.spec, None),
        }
    }

    /// The public key with which this cluster signs.
    fn key(&self) -> Option<PublicKey> {
        let key = self.certificates.signer()?.public();
        key.as_str().try_into().ok()
    }
}

/// How many, and their bytes.
fn count(entries: &[&Entry]) -> (u32, u64) {
    entries.iter().fold((0, 0), |(count, bytes), it| {
        (count + 1, bytes.saturating_add(it.size.unwrap_or(0)))
    })
}

/// What is told once a job has ended.
pub enum Told {
    /// It failed: a line for the log.
    Failure(String),
    /// The new data of a restore.
    Prepared(Box<Prepared>),
    /// What a person asked for ended.
    Asked(Box<Asked>),
    /// Another version was tried on a copy of the data: the revision of the snapshot that it was made of.
    Rehearsed(Version, Result<i64, NotRehearsed>),
    /// How far data reaches, and what the data was known by.
    Counted(Reach, String),
}

/// A snapshot that a person asked for.
pub struct Asked {
    /// Of what asked for it.
    pub id: String,
    /// The snapshot: just taken, or there already with nothing written since.
    pub result: Result<Option<Made>, BackupFailure>,
}

impl Work {
    /// Rung by a job that ends.
    pub fn bell(&self) -> Arc<tokio::sync::Notify> {
        self.bell.clone()
    }

    /// Begins a job, unless one is under way; its end rings.
    pub fn begin(&mut self, job: impl FnOnce() -> Ended + Send + 'static) {
        if self.job.is_none() {
            self.job = self.spawn(job);
        }
    }

    /// None where the system has no room for one more thread: the next pass asks again.
    fn spawn(&self, job: impl FnOnce() -> Ended + Send + 'static) -> Option<JoinHandle<Ended>> {
        let bell = self.bell.clone();
        let thread = std::thread::Builder::new().spawn(move || {
            let ended = job();
            bell.notify_one();
            ended
        });
        thread
            .inspect_err(|error| tracing::warn!("no job on snapshots could begin: {error}"))
            .ok()
    }

    /// Whether a job runs that keeps others from beginning.
    pub fn is_busy(&self) -> bool {
        self.job.is_some()
    }

    /// Whether copies are under way.
    pub fn is_copying(&self) -> bool {
        self.copying.is_some()
    }

    /// Somebody asks: what could not be copied is tried again at once.
    pub fn copy_soon(&mut self) {
        self.copies.failed = 0;
    }

    /// A person mended something: everything that failed is tried again at once.
    pub fn retry_now(&mut self) {
        for attempts in [&mut self.snapshot, &mut self.copies, &mut self.checks] {
            attempts.failed = 0;
            attempts.wait = None;
        }
    }

    /// Takes note of jobs that have ended.
    pub fn collect(&mut self) -> Vec<Told> {
        let ended =
            |it: &Option<JoinHandle<Ended>>| it.as_ref().is_some_and(JoinHandle::is_finished);
        let mut jobs = Vec::new();
        if ended(&self.job) {
            jobs.extend(self.job.take());
        }
        if ended(&self.copying) {
            jobs.extend(self.copying.take());
        }
        // A panic ends the whole process (panic = "abort"), so that a join always succeeds.
        let ended: Vec<Ended> = jobs.into_iter().filter_map(|it| it.join().ok()).collect();
        if !ended.is_empty() {
            self.first.changed();
            self.further.changed();
        }
        ended
            .into_iter()
            .filter_map(|it| self.take_note(it))
            .collect()
    }

    fn take_note(&mut self, ended: Ended) -> Option<Told> {
        let (attempts, result) = match ended {
            Ended::Snapshot(result, took) => {
                self.took = u64::try_from(took.as_millis()).ok();
                (&mut self.snapshot, result)
            }
            Ended::Copies(result) => (&mut self.copies, result),
            Ended::Checks(result) => (&mut self.checks, result),
            Ended::Prepared(prepared) => return Some(Told::Prepared(prepared)),
            Ended::Asked(asked) => return Some(Told::Asked(asked)),
            Ended::Rehearsed(to, result) => return Some(Told::Rehearsed(to, result)),
            Ended::Counted(reach, stamp) => return Some(Told::Counted(reach?, stamp)),
        };
        if result.as_ref().is_err_and(|it| it.reason == BUSY) {
            // A command works on the snapshots: that is no failure, and soon over.
            attempts.wait = Some(clock::since_boot().as_secs() + BUSY_SECONDS);
            return None;
        }
        attempts.record(result.clone().err());
        let BackupFailure { reason, why } = result.err()?;
        Some(Told::Failure(format!("{reason}: {why}")))
    }

    /// What is known of the snapshots of this cluster.
    pub fn look(
        &mut self,
        member: &Member<'_>,
        clock: Clock,
        now: Timestamp,
        restore_failed: Option<Detail>,
    ) -> Backups {
        let (busy, trusted) = (self.is_busy(), clock.trusted(now));
        let (paths, spec, clusters) = (member.paths, member.spec, member.clusters());
        let nothing = |busy, failed| Backups {
            busy,
            failed,
            restore_failed: restore_failed.clone(),
            ..Backups::default()
        };
        let (Some(backup), Some(store)) = (&spec.backup, place::primary(spec)) else {
            return nothing(busy, None);
        };
        let (local, behind) = backup.destinations.split_at(1);
        let first = detail(format_args!("{}", store.path().display()));
        let looked = self.see_first(member, store);
        let busy = busy || looked.outdated;
        let silent = looked
            .silent
            .and_then(|it| places::silent(local, looked.what.is_some(), it));
        let failed = self.snapshot.last.clone().or(silent);
        let Some(places) = looked.what else {
            return nothing(busy, failed);
        };
        let failed = failed.or(places.failed);
        let looked = self.see_further(member, places.entries.clone(), trusted);
        let copying = self.copying.is_some() || looked.outdated;
        let silent = looked
            .silent
            .and_then(|it| places::silent(behind, looked.what.is_some(), it));
        let further = looked.what.unwrap_or_default();
        let ours: Vec<&Entry> = places
            .entries
            .iter()
            .filter(|it| it.is_of(&clusters))
            .collect();
        let key = member.key();
        let (newest, verified) = newest_own(&ours, key.as_deref());
        let ages = Ages::new(trusted);
        let last = newest.map(|it| seen(it, &ages));
        let newest = newest.and_then(|it| it.manifest.as_ref().ok());
        let verified = verified.map(|it| seen(it, &ages));
        let first = DestinationSeen {
            place: first,
            verified,
            ..DestinationSeen::default()
        };
        Backups {
            due_in: due_in(paths, backup, (&clusters, newest), clock, now),
            busy,
            last,
            verified,
            named: named(&ours, key.as_deref(), &ages),
            signer: key,
            kept: count(&ours),
            took_milliseconds: self.took,
            failed: failed.or_else(|| self.checks.last.clone()),
            retry_in: self.snapshot.retry_in(),
            queued: further.queued(),
            destinations: self.destinations(first, further.copies),
            copy_failed: self.copies.last.clone().or(silent),
            copy_failing: self.copies.failing(),
            copy_retry_in: self.copies.retry_in(),
            copy_retry_every: self.copies.interval(),
            copies_checked: further.checked,
            copies_unchecked: further.unchecked,
            copying,
            checked: places.checked,
            check_retry_in: self.checks.retry_in(),
            restore_failed,
            ..Backups::default() // the home knows
        }
    }

    /// The first destination and the further ones.
    fn destinations(
        &self,
        first: DestinationSeen,
        copies: Vec<CopiesSeen>,
    ) -> heapless::Vec<DestinationSeen, DESTINATIONS_MAX> {
        let further = copies.into_iter().map(|it| DestinationSeen {
            place: detail(format_args!("{}", it.place)),
            verified: it.verified,
            queued: it.queued,
            waits_since: it.waits_since,
            waits: it.waits.unwrap_or_else(|| self.copies.failing()),
            vanished: it.vanished,
        });
        core::iter::once(first)
            .chain(further)
            .take(DESTINATIONS_MAX)
            .collect()
    }

    /// Takes a snapshot beside the loop, and removes what the document no longer keeps. `asked`: the id
    /// of what asked for it, where it was not the document.
    pub fn take(&mut self, member: &Member<'_>, now: Option<Timestamp>, asked: Option<String>) {
        let first = member.spec.backup.as_ref();
        let first = first.and_then(|it| it.destinations.first());
        let (Some(identity), Some(store), Some(first)) =
            (member.identity, place::primary(member.spec), first)
        else {
            return;
        };
        let class = rehearsal::class_of(asked.as_deref());
        let job = snapshot_job(member, identity, (store, first.keep), class, now);
        self.begin(move || {
            let _turn = turns::LOCAL.wait();
            let begin = clock::since_boot();
            let result = job.run();
            match asked {
                Some(id) => Ended::Asked(Box::new(Asked {
                    id,
                    result: result.and_then(|name| job.made(&name)),
                })),
                None => {
                    Ended::Snapshot(result.map(drop), clock::since_boot().saturating_sub(begin))
                }
            }
        });
    }

    /// Copies what waits to the other destinations, beside the loop.
    pub fn copy(&mut self, member: &Member<'_>, now: Option<Timestamp>) {
        let (paths, spec) = (member.paths.clone(), Box::new(member.spec.clone()));
        let ours = member.ours();
        let job = self.spawn(move || {
            let _turn = turns::COPIES.wait();
            let result = locked(&paths, place::Work::Copies).and_then(|_lock| {
                let runtime = runtime()?;
                runtime
                    .block_on(async {
                        copy::run(&paths, &spec, &ours, now, &mut |_| ()).await?;
                        match now {
                            Some(now) => copy::check(&paths, &spec, now, &mut |_| ()).await,
                            None => Ok(()),
                        }
                    })
                    .map_err(|error| match error {
                        CopyError::CopyDamaged { .. } => failure("CopyDamaged", &error),
                        _ if error.is_of_the_link() => failure(BackupFailure::LINK_DOWN, &error),
                        _ => failure("CopyFailed", &error),
                    })
            });
            Ended::Copies(result)
        });
        self.copying = job;
    }

    /// Checks again what is kept, beside the loop.
    pub fn check(&mut self, member: &Member<'_>, now: Option<Timestamp>) {
        let (paths, ours) = (member.paths.clone(), member.ours());
        let identity = member.identity.cloned();
        let (Some(store), Some(identity)) = (place::primary(member.spec), identity) else {
            return;
        };
        let spec = Box::new(member.spec.clone());
        self.begin(move || {
            let _turn = turns::LOCAL.wait();
            let result = locked(&paths, place::Work::Local).and_then(|_lock| {
                let checked = check(&store, &ours, now);
                if checked.as_ref().err().is_none_or(|it| it.reason == DAMAGED) {
                    note_check(&paths, now).map_err(|it| failure(jobs::SNAPSHOT_FAILED, &it))?;
                }
                checked?;
                trial(&paths, &spec, &identity, &store, &ours, now)
            });
            Ended::Checks(result)
        });
    }
}

/// The job that takes a snapshot of this member.
fn snapshot_job(
    member: &Member<'_>,
    identity: &IdentityFile,
    (store, keep): (LocalStore, Keep),
    class: Class,
    now: Option<Timestamp>,
) -> SnapshotJob {
    SnapshotJob {
        paths: member.paths.clone(),
        store,
        keep,
        url: member.url.to_owned(),
        files: member.files.clone(),
        certificates: member.certificates.clone(),
        cluster: member.spec.name.to_string(),
        ours: member.ours(),
        member: identity.member.name.clone(),
        class,
        now,
        quota: identity.member.quota,
    }
}

/// A snapshot of a directory, as it is told.
pub fn seen(entry: &Entry, ages: &Ages) -> SnapshotSeen {
    let manifest = entry.manifest.as_ref().ok();
    SnapshotSeen {
        revision: entry.name.revision,
        created: manifest.and_then(Manifest::created),
        level: entry.level(),
        bytes: entry.size.unwrap_or(0),
        seconds: manifest.and_then(|it| ages.of(it)),
        version: manifest.and_then(Manifest::etcd),
    }
}
