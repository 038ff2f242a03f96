//! The trial of another version of etcd on a copy of the data.

use std::time::Duration;

use super::jobs::{SnapshotJob, locked, runtime};
use super::{BUSY, Ended, Member, Work, snapshot_job, turns};
use crate::backup::local::LocalStore;
use crate::backup::manifest::Class;
use crate::backup::{place, trial};
use crate::clock;
use crate::cluster::{Detail, Timestamp, detail};
use crate::error::chain;
use crate::member::records::IdentityFile;
use crate::observed::BackupFailure;
use crate::process;
use crate::spec::ClusterSpec;
use crate::spec::backup::Keep;
use crate::version::Version;

impl Work {
    /// Tries another version of etcd on a copy of the data, beside the loop. The snapshot for it goes where the
    /// document's go; without a backup in the document, into a place of the operator's own, which keeps one.
    /// `live`: the member's process and the bytes of its database.
    pub fn rehearse(
        &mut self,
        member: &Member<'_>,
        now: Option<Timestamp>,
        to: Version,
        live: (Option<u32>, u64),
    ) {
        let Some(identity) = member.identity else {
            return;
        };
        let first = member.spec.backup.as_ref();
        let keep = first
            .and_then(|it| it.destinations.first())
            .map(|it| it.keep);
        let place = place::primary(member.spec).zip(keep);
        let place = place.unwrap_or_else(|| {
            let own = member.paths.backup().join("before-upgrade");
            (LocalStore::at(&own, &member.spec.name), Keep::ONE)
        });
        let rehearsal = Rehearsal {
            snapshot: snapshot_job(member, identity, place, Class::Scheduled, now),
            spec: Box::new(member.spec.clone()),
            identity: identity.clone(),
            to,
            live,
        };
        self.begin(move || {
            let _turn = turns::LOCAL.wait();
            Ended::Rehearsed(to, rehearsal.run())
        });
    }
}

/// Why another version was not tried, or did not stand the trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotRehearsed {
    /// For people.
    pub why: Detail,
    /// The version is the cause, and not the place or the moment.
    pub of_the_version: bool,
}

/// Another version of etcd, tried on a copy of the data.
struct Rehearsal {
    snapshot: SnapshotJob,
    spec: Box<ClusterSpec>,
    identity: IdentityFile,
    to: Version,
    live: (Option<u32>, u64),
}

/// Waits a while for a command that works on the snapshots.
fn lock(job: &SnapshotJob) -> Result<place::BackupLock, BackupFailure> {
    let begin = clock::since_boot();
    loop {
        match locked(&job.paths, place::Work::Local) {
            Err(it) if it.reason == BUSY && clock::since_boot() < begin + LOCK_PATIENCE => {
                std::thread::sleep(Duration::from_millis(100));
            }
            other => return other,
        }
    }
}

/// How long.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// What a second etcd needs in memory besides what the first one takes.
const MEMORY_BESIDE: u64 = 32 << 20;

impl Rehearsal {
    /// Takes a snapshot, and starts etcd of today and the other one on a copy that is made from it. The revision of the
    /// snapshot.
    fn run(&self) -> Result<i64, NotRehearsed> {
        let waits = |why| NotRehearsed {
            why,
            of_the_version: false,
        };
        let unusable =
            |error: &dyn std::error::Error| waits(detail(format_args!("{}", chain(error))));
        let (pid, database) = self.live;
        trial::check_room(&self.snapshot.paths, database).map_err(|it| unusable(&it))?;
        if let (Some(taken), Some(there)) =
            (pid.and_then(process::memory), process::available_memory())
            && there < taken + MEMORY_BESIDE
        {
            return Err(waits(detail(format_args!(
                "a second etcd needs some {} MiB of memory, and {} MiB are available",
                (taken + MEMORY_BESIDE) >> 20,
                there >> 20
            ))));
        }
        let _lock = lock(&self.snapshot).map_err(|it| waits(it.why))?;
        let name = self.snapshot.run_locked().map_err(|it| waits(it.why))?;
        let store = &self.snapshot.store;
        let entries = store.list().map_err(|it| unusable(&it))?;
        let entry = entries.iter().find(|it| it.name.to_string() == name);
        let gone = || waits(detail(format_args!("somebody removed the snapshot {name}")));
        let entry = entry.ok_or_else(gone)?;
        let manifest = entry.manifest.as_ref().map_err(|_| gone())?;
        let paths = &self.snapshot.paths;
        let trial = trial::Trial {
            paths,
            spec: &self.spec,
            identity: &self.identity,
            then: Some(self.to),
            log: Some(&paths.rehearsal_log()),
            file: &store.snapshot(&entry.name),
            revision: manifest.revision.held(),
            database: manifest.database.size,
        };
        let runtime = runtime().map_err(|it| waits(it.why))?;
        let mut tried = runtime.block_on(trial::run(&trial, &mut |_| ()));
        // One mishap has many causes.
        if tried.as_ref().is_err_and(|it| it.is_of(self.to)) {
            tried = runtime.block_on(trial::run(&trial, &mut |_| ()));
        }
        tried.map_err(|error| NotRehearsed {
            of_the_version: error.is_of(self.to),
            why: detail(format_args!("{}", chain(&error))),
        })?;
        Ok(entry.name.revision)
    }
}
