//! Snapshots on this host: what is known of them, and the one job that works on them beside the loop.
//!
//! A job runs in a thread of its own with a runtime of its own, so that neither a slow card nor a thin
//! link keeps the agent from looking after etcd. Its end wakes the loop.

mod jobs;

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::{Agent, AgentError, chain};
use crate::backup::copy::CopyError;
use crate::backup::local::{Entry, LocalError, LocalStore};
use crate::backup::manifest::Manifest;
use crate::backup::{copy, place, schedule};
use crate::clock;
use crate::cluster::{Timestamp, detail};
use crate::member::place::HostPlace;
use crate::member::records;
use crate::observed::{BackupFailure, Backups, Clock, SnapshotSeen};
use crate::paths::Paths;
use crate::retention::VERIFIED;
use crate::spec::ClusterSpec;
use crate::spec::backup::{Backup, Trigger};
use crate::state;

pub(super) use jobs::runtime;

use jobs::{SnapshotJob, check, failure, locked, trial};

/// Seconds until the next attempt after so many failed ones.
const RETRY: [u64; 4] = [60, 300, 900, 3600];

/// A command holds the lock on backups.
const BUSY: &str = "BackupBusy";
const BUSY_SECONDS: u64 = 5;

/// What the agent remembers of its work on snapshots.
#[derive(Default)]
pub(super) struct Work {
    /// The job under way.
    job: Option<JoinHandle<Ended>>,
    /// Copies under way, which may take long.
    copying: Option<JoinHandle<Ended>>,
    /// Rung by a job that ends.
    pub(super) bell: Arc<tokio::sync::Notify>,
    snapshot: Attempts,
    copies: Attempts,
    checks: Attempts,
    /// What the last snapshot took, in milliseconds.
    took: Option<u64>,
    /// The last listing, the directory's stamp then, and its path.
    listing: Option<(SystemTime, PathBuf, Vec<Entry>)>,
}

/// Failed attempts since the last one that succeeded.
#[derive(Default)]
struct Attempts {
    failed: usize,
    last: Option<BackupFailure>,
    /// Seconds since boot.
    at: u64,
    /// Not before, in seconds since boot.
    wait: Option<u64>,
}

impl Attempts {
    fn record(&mut self, failure: Option<BackupFailure>) {
        self.at = clock::since_boot().as_secs();
        self.failed = if failure.is_some() {
            self.failed + 1
        } else {
            0
        };
        self.last = failure;
    }

    fn retry_in(&self) -> u64 {
        let now = clock::since_boot().as_secs();
        let wait = self.wait.map_or(0, |it| it.saturating_sub(now));
        wait.max(self.back_off())
    }

    fn back_off(&self) -> u64 {
        match self.failed {
            0 => 0,
            failed => {
                let wait = RETRY[(failed - 1).min(RETRY.len() - 1)];
                (self.at + wait).saturating_sub(clock::since_boot().as_secs())
            }
        }
    }
}

/// How a job ended.
pub(super) enum Ended {
    /// A snapshot was taken, or there was nothing new.
    Snapshot(Result<(), BackupFailure>, Duration),
    /// Copies were made.
    Copies(Result<(), BackupFailure>),
    /// What is kept was checked.
    Checks(Result<(), BackupFailure>),
    /// The new data of a restore.
    Prepared(Box<super::restore::Prepared>),
}

/// When the document's next snapshot was found to hold nothing new (rule B5). Under /run.
#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RunsFile {
    boot_id: String,
    /// Seconds since boot.
    skipped: Option<u64>,
    /// By the wall clock.
    skipped_at: Option<i64>,
}

fn runs(paths: &Paths) -> RunsFile {
    state::load_volatile::<RunsFile>(&paths.backup_runs())
        .filter(|it| it.boot_id == clock::boot_id())
        .unwrap_or_default()
}

impl Agent {
    /// Begins a job; its end wakes the loop.
    pub(super) fn begin(&mut self, job: impl FnOnce() -> Ended + Send + 'static) {
        self.work.job = Some(self.spawn(job));
    }

    fn spawn(&self, job: impl FnOnce() -> Ended + Send + 'static) -> JoinHandle<Ended> {
        let bell = self.work.bell.clone();
        std::thread::spawn(move || {
            let ended = job();
            bell.notify_one();
            ended
        })
    }

    /// Whether a job runs. One that has ended is taken note of.
    pub(super) fn is_busy(&mut self) -> bool {
        let ended =
            |it: &Option<JoinHandle<Ended>>| it.as_ref().is_some_and(JoinHandle::is_finished);
        let mut jobs = Vec::new();
        if ended(&self.work.job) {
            jobs.extend(self.work.job.take());
        }
        if ended(&self.work.copying) {
            jobs.extend(self.work.copying.take());
        }
        for job in jobs {
            // A panic ends the whole process (panic = "abort"), so that a join always succeeds.
            if let Ok(ended) = job.join() {
                self.take_note(ended);
            }
        }
        self.work.job.is_some()
    }

    fn take_note(&mut self, ended: Ended) {
        let (attempts, result) = match ended {
            Ended::Snapshot(result, took) => {
                self.work.took = u64::try_from(took.as_millis()).ok();
                (&mut self.work.snapshot, result)
            }
            Ended::Copies(result) => (&mut self.work.copies, result),
            Ended::Checks(result) => (&mut self.work.checks, result),
            Ended::Prepared(prepared) => return self.restore_prepared(*prepared),
        };
        if result.as_ref().is_err_and(|it| it.reason == BUSY) {
            // A command works on the snapshots: that is no failure, and soon over.
            attempts.wait = Some(clock::since_boot().as_secs() + BUSY_SECONDS);
            return;
        }
        attempts.record(result.clone().err());
        if let Err(failure) = result {
            self.log_once(&format!("{}: {}", failure.reason, failure.why));
        }
    }

    /// What is known of the snapshots of this cluster.
    pub(super) fn backups(
        &mut self,
        spec: &ClusterSpec,
        place: &HostPlace,
        clock: Clock,
        now: Timestamp,
    ) -> Backups {
        let busy = self.is_busy();
        let trusted = Some(now).filter(|_| clock == Clock::Trusted);
        let restore_failed = self.restore_failed(trusted);
        let (Some(backup), Some(store)) = (&spec.backup, place::primary(spec)) else {
            return Backups {
                busy,
                restore_failed,
                ..Backups::default()
            };
        };
        let clusters = self.clusters(place);
        let mut failed = self.work.snapshot.last.clone();
        let entries = match self.list(&store) {
            Ok(entries) => entries,
            Err(error) => {
                let why = detail(format_args!("{}", chain(&error)));
                failed = failed.or(Some(BackupFailure {
                    reason: "DestinationUnusable",
                    why,
                }));
                Vec::new()
            }
        };
        let ours: Vec<&Entry> = entries.iter().filter(|it| it.is_of(&clusters)).collect();
        let newest = ours.first().and_then(|it| it.manifest.as_ref().ok());
        let verified = ours.iter().find(|it| it.level() >= VERIFIED).copied();
        let queue = copy::queue(&self.paths, spec, &entries, &clusters);
        let bytes = |entries: &mut dyn Iterator<Item = &&Entry>| {
            entries.fold((0_u32, 0_u64), |(count, bytes), it| {
                (count + 1, bytes + it.size.unwrap_or(0))
            })
        };
        Backups {
            due_in: due_in(&self.paths, backup, newest, clock, now),
            busy,
            last: ours.first().map(|it| seen(it)),
            verified: verified.map(seen),
            kept: bytes(&mut ours.iter()),
            took_milliseconds: self.work.took,
            failed: failed.or_else(|| self.work.checks.last.clone()),
            retry_in: self.work.snapshot.retry_in(),
            queued: queue,
            copy_failed: self.work.copies.last.clone(),
            copies_checked: copy::last_check(&self.paths, spec),
            copy_due: (queue.0 > 0 || copy::check_due(&self.paths, spec, trusted))
                && self.work.copying.is_none()
                && self.work.copies.retry_in() == 0,
            check_due: self.work.checks.retry_in() == 0 && check_due(backup, verified, clock, now),
            restore_failed,
        }
    }

    /// The listing, read again only when something came or went: a look every few seconds must cost
    /// nothing.
    fn list(&mut self, store: &LocalStore) -> Result<Vec<Entry>, LocalError> {
        let stamp = store.stamp();
        if let (Some(stamp), Some((known, path, entries))) = (stamp, &self.work.listing)
            && stamp == *known
            && path == store.path()
        {
            return Ok(entries.clone());
        }
        let entries = store.list()?;
        self.work.listing = stamp.map(|it| (it, store.path().to_owned(), entries.clone()));
        Ok(entries)
    }

    /// The ids that this cluster has and had.
    pub(super) fn clusters(&self, place: &HostPlace) -> Vec<String> {
        let identities = records::load_identities(&self.paths, &place.storage_dir);
        let identity = identities.ok().and_then(|(identity, _)| identity);
        identity.map(|it| it.clusters()).unwrap_or_default()
    }

    /// The document's time for a snapshot has come, and nothing was written since the last one.
    pub(super) fn skip_snapshot(&self, now: Timestamp) -> Result<(), AgentError> {
        let file = RunsFile {
            boot_id: clock::boot_id(),
            skipped: Some(clock::since_boot().as_secs()),
            skipped_at: Some(now.0),
        };
        Ok(state::save_volatile(&self.paths.backup_runs(), &file)?)
    }

    /// Takes a snapshot beside the loop, and removes what the document no longer keeps.
    pub(super) fn take_snapshot(
        &mut self,
        spec: &ClusterSpec,
        place: &HostPlace,
        now: Option<Timestamp>,
    ) -> Result<(), AgentError> {
        let (identity, _) = records::load_identities(&self.paths, &place.storage_dir)?;
        let first = spec.backup.as_ref().and_then(|it| it.destinations.first());
        let (Some(identity), Some(store), Some(first)) = (identity, place::primary(spec), first)
        else {
            return Ok(());
        };
        let job = SnapshotJob {
            paths: self.paths.clone(),
            store,
            keep: first.keep,
            url: place.client_url.clone(),
            files: self.certificates.operator_files(),
            cluster: spec.name.to_string(),
            clusters: identity.clusters(),
            member: identity.member,
            now,
        };
        self.begin(move || {
            let begin = clock::since_boot();
            let result = job.run();
            Ended::Snapshot(result, clock::since_boot().saturating_sub(begin))
        });
        Ok(())
    }

    /// Copies what waits to the other destinations, beside the loop.
    pub(super) fn copy_snapshots(
        &mut self,
        spec: &ClusterSpec,
        place: &HostPlace,
        now: Option<Timestamp>,
    ) {
        let (paths, spec) = (self.paths.clone(), spec.clone());
        let clusters = self.clusters(place);
        let job = self.spawn(move || {
            let result = locked(&paths, place::Work::Copies).and_then(|_lock| {
                let runtime = runtime()?;
                runtime
                    .block_on(async {
                        copy::run(&paths, &spec, &clusters, now, &mut |_| ()).await?;
                        match now {
                            Some(now) => copy::check(&paths, &spec, now, &mut |_| ()).await,
                            None => Ok(()),
                        }
                    })
                    .map_err(|error| match error {
                        CopyError::CopyDamaged { .. } => failure("CopyDamaged", &error),
                        _ => failure("CopyFailed", &error),
                    })
            });
            Ended::Copies(result)
        });
        self.work.copying = Some(job);
    }

    /// Checks again what is kept, beside the loop.
    pub(super) fn check_snapshots(
        &mut self,
        spec: &ClusterSpec,
        place: &HostPlace,
        now: Option<Timestamp>,
    ) {
        let (paths, clusters) = (self.paths.clone(), self.clusters(place));
        let identities = records::load_identities(&paths, &place.storage_dir);
        let identity = identities.ok().and_then(|(identity, _)| identity);
        let (Some(store), Some(identity)) = (place::primary(spec), identity) else {
            return;
        };
        let spec = spec.clone();
        self.begin(move || {
            let result = locked(&paths, place::Work::Local).and_then(|_lock| {
                check(&store, &clusters, now)?;
                trial(&paths, &spec, &identity, &store, &clusters, now)
            });
            Ended::Checks(result)
        });
    }
}

fn seen(entry: &Entry) -> SnapshotSeen {
    SnapshotSeen {
        revision: entry.name.revision,
        created: entry.manifest.as_ref().ok().and_then(Manifest::created),
        level: entry.level(),
        bytes: entry.size.unwrap_or(0),
    }
}

/// Seconds until the document asks for the next snapshot (rule F7: an interval needs no clock).
fn due_in(
    paths: &Paths,
    backup: &Backup,
    newest: Option<&Manifest>,
    clock: Clock,
    now: Timestamp,
) -> Option<u64> {
    let runs = runs(paths);
    let trusted = clock == Clock::Trusted;
    match backup.trigger.as_ref()? {
        Trigger::Every(seconds) => {
            let uptime = clock::since_boot().as_secs();
            let taken = newest.and_then(|it| {
                if it.boot_id == clock::boot_id() {
                    return Some(uptime.saturating_sub(it.since_boot));
                }
                let age = now.seconds_since(it.created().filter(|_| trusted)?);
                u64::try_from(age).ok()
            });
            let skipped = runs.skipped.map(|it| uptime.saturating_sub(it));
            // Nobody knows how old the newest is: it is taken for old, once after a boot.
            let age = [taken, skipped].into_iter().flatten().min();
            Some(age.map_or(0, |age| seconds.saturating_sub(age)))
        }
        Trigger::Schedule(text) => {
            if !trusted {
                return None;
            }
            let taken = newest.and_then(Manifest::created);
            let base = taken.max(runs.skipped_at.map(Timestamp));
            let Some(base) = base else { return Some(0) };
            let next = schedule::next(text, base.min(now))?;
            Some(u64::try_from(next.seconds_since(now)).unwrap_or(0))
        }
    }
}

/// Whether the newest verified snapshot was checked longer ago than the document asks.
fn check_due(backup: &Backup, verified: Option<&Entry>, clock: Clock, now: Timestamp) -> bool {
    let tried = verified.is_some_and(|it| it.level() >= 4);
    let first_trial = backup.verify_level >= 4 && !tried && backup.verify_every.is_none();
    let (Some(every), Some(entry)) = (backup.verify_every, verified) else {
        return first_trial && verified.is_some();
    };
    let Ok(manifest) = &entry.manifest else {
        return false;
    };
    let at = manifest.verified.at.as_deref();
    let at = at.and_then(crate::backup::manifest::parse_rfc3339);
    match at.filter(|_| clock == Clock::Trusted) {
        Some(at) => now.seconds_since(at) >= i64::try_from(every).unwrap_or(i64::MAX),
        None => false,
    }
}
