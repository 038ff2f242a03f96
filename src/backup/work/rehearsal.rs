//! The trial of another version of etcd on a copy of the data.

use std::path::PathBuf;
use std::time::Duration;

use super::jobs::{SnapshotJob, locked, runtime};
use super::{BUSY, Ended, Member, Work, snapshot_job, turns};
use crate::backup::manifest::Class;
use crate::backup::place;
use crate::backup::restore::Etcdutl;
use crate::backup::served::FOR_REHEARSAL;
use crate::backup::trial::{self, Trial};
use crate::clock;
use crate::cluster::{Detail, Timestamp, detail};
use crate::error::chain;
use crate::etcd::{client, data_dir};
use crate::member::records::IdentityFile;
use crate::member::restore_record::SourceFile;
use crate::observed::BackupFailure;
use crate::process;
use crate::spec::ClusterSpec;
use crate::spec::backup::Keep;
use crate::start::Refusal;
use crate::tls::ClientFiles;
use crate::version::{Line, SHORT_LOG, Version};

/// Which snapshots retention counts one among that was asked for: nobody would remove what a person did not ask for.
pub(super) fn class_of(asked: Option<&str>) -> Class {
    match asked {
        Some(id) if !id.starts_with(FOR_REHEARSAL) => Class::OnDemand,
        _ => Class::Scheduled,
    }
}

impl Work {
    /// Tries another version of etcd on a copy of the data, beside the loop. The snapshot for it goes where the
    /// document's go; without a backup in the document, into a place of the operator's own, which keeps two: the
    /// newer line of etcd may have to be tried again before the snapshot of the older one is of no use.
    pub fn rehearse(
        &mut self,
        member: &Member<'_>,
        now: Option<Timestamp>,
        to: Version,
        live: Live,
    ) {
        let Some(identity) = member.identity else {
            return;
        };
        let first = member.spec.backup.as_ref();
        let keep = first
            .and_then(|it| it.destinations.first())
            .map(|it| it.keep);
        let place = place::primary(member.spec).zip(keep);
        let own = || place::before_upgrade(member.paths, member.spec);
        let place = place.unwrap_or_else(|| (own(), KEPT_OF_CHANGES));
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

/// The member whose data is copied.
pub struct Live {
    /// Its process.
    pub pid: Option<u32>,
    /// Bytes of its database.
    pub database: u64,
    /// etcd's `data-dir`.
    pub data: PathBuf,
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
    live: Live,
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

/// etcd reads its whole database for a hash, like at a start.
const HASHES_WITHIN: Duration = Duration::from_secs(60);

/// What is kept of changes of version where the document has no backup.
const KEPT_OF_CHANGES: Keep = Keep {
    last: 2,
    ..Keep::ONE
};

/// What a second etcd needs in memory besides what the first one takes.
const MEMORY_BESIDE: u64 = 32 << 20;

fn waits(why: Detail) -> NotRehearsed {
    NotRehearsed {
        why,
        of_the_version: false,
    }
}

fn unusable(error: &dyn std::error::Error) -> NotRehearsed {
    waits(detail(format_args!("{}", chain(error))))
}

/// A snapshot that the copy is made of.
struct Taken {
    file: PathBuf,
    revision: i64,
    /// Bytes of its database.
    database: u64,
}

/// Takes a snapshot that this version can read, or finds the one since which nothing was written. The lock on snapshots is
/// held.
fn take(job: &SnapshotJob, to: Version) -> Result<Taken, NotRehearsed> {
    let name = job.run_locked().map_err(|it| waits(it.why))?;
    let entries = job.store.list().map_err(|it| unusable(&it))?;
    let entry = entries.iter().find(|it| it.name.to_string() == name);
    let gone = || waits(detail(format_args!("somebody removed the snapshot {name}")));
    let entry = entry.ok_or_else(gone)?;
    let manifest = entry.manifest.as_ref().map_err(|_| gone())?;
    let of = manifest.etcd();
    if let Some(of) = of.filter(|it| it.is_newer_line_than(to)) {
        return Err(waits(detail(format_args!(
            "the data is of etcd {of} still, which etcd {to} cannot read"
        ))));
    }
    Ok(Taken {
        file: job.store.snapshot(&entry.name),
        revision: manifest.revision.held(),
        database: manifest.database.size,
    })
}

/// Starts each etcd on a copy of the data.
fn try_on(trial: &Trial<'_>, to: Version) -> Result<i64, NotRehearsed> {
    let runtime = runtime().map_err(|it| waits(it.why))?;
    let mut tried = runtime.block_on(trial::run(trial, &mut |_| ()));
    // One mishap has many causes.
    if tried.as_ref().is_err_and(|it| it.is_of(to)) {
        tried = runtime.block_on(trial::run(trial, &mut |_| ()));
    }
    tried.map_err(|error| NotRehearsed {
        of_the_version: error.is_of(to),
        why: detail(format_args!("{}", chain(&error))),
    })?;
    Ok(trial.revision)
}

impl Rehearsal {
    /// Takes a snapshot, and starts etcd of today and the other one on a copy that is made from it. The revision of the
    /// snapshot.
    fn run(&self) -> Result<i64, NotRehearsed> {
        let paths = &self.snapshot.paths;
        trial::check_room(paths, self.live.database).map_err(|it| unusable(&it))?;
        let own = self.identity.version().unwrap_or(self.to);
        if own.line() == Some(Line::V3_5) && self.to.is_newer_line_than(own) {
            let version = &self.identity.member.version;
            let checked = Etcdutl::of(&paths.store(), version);
            let checked = checked.and_then(|it| it.check_v2store(&self.live.data));
            checked.map_err(|it| unusable(&it))?;
        }
        if self.to.line() >= Some(Line::V3_7) && data_dir::replays_v2(&self.live.data, own.line()) {
            let refusal = Refusal::LogTooOld(self.to);
            return Err(waits(detail(format_args!(
                "{refusal}; {SHORT_LOG} writes begin it anew"
            ))));
        }
        let taken = self.live.pid.and_then(process::memory);
        if let (Some(taken), Some(there)) = (taken, process::available_memory())
            && there < taken + MEMORY_BESIDE
        {
            return Err(waits(detail(format_args!(
                "a second etcd needs some {} MiB of memory, and {} MiB are available",
                (taken + MEMORY_BESIDE) >> 20,
                there >> 20
            ))));
        }
        let _lock = lock(&self.snapshot).map_err(|it| waits(it.why))?;
        let taken = take(&self.snapshot, self.to)?;
        let older = own.is_newer_line_than(self.to);
        let mut identity = self.identity.clone();
        let (then, expected) = if older {
            // The etcd of today would raise the version of the copy's data again.
            identity.member.version = self.to.to_string();
            let SnapshotJob { url, files, .. } = &self.snapshot;
            (None, said_by(url, files, taken.revision)?)
        } else {
            (Some(self.to), None) // the etcd of today says it
        };
        let trial = Trial {
            paths,
            spec: &self.spec,
            identity: &identity,
            then,
            expected,
            log: Some(&paths.rehearsal_log()),
            file: &taken.file,
            revision: taken.revision,
            database: taken.database,
        };
        try_on(&trial, self.to)
    }
}

/// Tries the version of the identity where no other etcd is: in a Pod of that version's image. `there`: a snapshot that was
/// taken for it; without one, it is taken from the member. What the member itself says of this revision is
/// what the other one has to say, as long as the member has not compacted since.
///
/// # Errors
/// It was not tried, or did not stand the trial.
pub fn rehearse_alone(
    member: &Member<'_>,
    identity: &IdentityFile,
    to: Version,
    there: Option<SourceFile>,
) -> Result<i64, NotRehearsed> {
    let paths = member.paths;
    let taken = if let Some(it) = there {
        Taken {
            file: it.path,
            revision: it.revision,
            database: it.database,
        }
    } else {
        let place = (place::before_upgrade(paths, member.spec), Keep::ONE);
        let job = snapshot_job(member, identity, place, Class::Scheduled, None);
        let _lock = lock(&job).map_err(|it| waits(it.why))?;
        take(&job, to)?
    };
    let trial = Trial {
        paths,
        spec: member.spec,
        identity,
        then: None,
        expected: said_by(member.url, &member.files, taken.revision)?,
        log: Some(&paths.rehearsal_log()),
        file: &taken.file,
        revision: taken.revision,
        database: taken.database,
    };
    try_on(&trial, to)
}

/// The hash of the member's keys at a revision, and up to which revision it has compacted them; none where it does not
/// say.
fn said_by(
    url: &str,
    files: &ClientFiles,
    revision: i64,
) -> Result<Option<(u32, i64)>, NotRehearsed> {
    let asked = async {
        let mut client = client::look(url, files).await.client?;
        let hash = client.hash_kv(revision.max(1)).await.ok()?;
        Some((hash.hash(), hash.compact_version()))
    };
    let runtime = runtime().map_err(|it| waits(it.why))?;
    let said = runtime.block_on(async { tokio::time::timeout(HASHES_WITHIN, asked).await });
    Ok(said.ok().flatten())
}
