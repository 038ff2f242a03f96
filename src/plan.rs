//! Decides the next step: `plan()` is pure, total and allocates nothing.
//!
//! The order of concerns is the policy of the product; [`plan`] and `membership` show it. The
//! planner knows neither Kubernetes nor systemd: the modes differ in [`Observed::authority`] and in
//! what fills the [`Instance`]s.

pub mod backup;
pub mod certificate;
pub mod edit;
mod membership;
pub mod permit;
mod requeue;
pub mod restore;
mod running;
pub mod space;
mod words;

use core::time::Duration;

use crate::cluster::{ClusterId, Detail, MemberId, MemberName, MemberSet, PeerUrl, Timestamp};
use crate::observed::{Instance, Observed, Predecessor, Predecessors, Process, RestorePhase};
use crate::spec::ClusterSpec;
use crate::spec::backup::Source;
use crate::start::{self, Refusal, Start};
use crate::version::{Class, Version, classify};

pub use certificate::Mint;
use permit::Permit;
pub use requeue::{REQUEUE_CONVERGED, REQUEUE_PROGRESSING, REQUEUE_STARTING, STARTING_SECONDS};

/// Steps of upkeep in one pass, for all instances of this process.
pub const UPKEEP_MAX: usize = 16;

/// A change of the member list. Raft makes one at a time, and so does a [`Plan`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A new member joins without a vote.
    AddLearner {
        /// Its name.
        name: MemberName,
        /// Proves that quorum survives.
        permit: Permit,
    },
    /// A learner that has caught up gets its vote.
    Promote {
        /// Which one.
        member: MemberId,
        /// Proves that quorum survives.
        permit: Permit,
    },
    /// A member goes for good.
    Remove {
        /// Which one.
        member: MemberId,
        /// Proves that quorum survives.
        permit: Permit,
    },
}

impl Change {
    /// Asks for the permit again, with the member list that was read right before acting. A change
    /// that was planned on an older list may by now cost quorum.
    pub fn second_look(&self, members: &MemberSet) -> Result<Permit, Hold> {
        match self {
            Change::AddLearner { .. } => permit::to_add_learner(members),
            Change::Promote { member, .. } => permit::to_promote(members, *member),
            Change::Remove { member, .. } => permit::to_remove(members, *member),
        }
    }
}

/// One step of upkeep of one instance. Upkeep continues while membership changes are on hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upkeep {
    /// Copy the identity beside the data into the state directory (the root disk was replaced).
    AdoptIdentity,
    /// Record what is fixed at birth, before etcd starts for the first time.
    LatchIdentity {
        /// The version that the cluster is born with.
        version: Version,
        /// In bytes.
        quota: u64,
    },
    /// Make new leaves for etcd and the operator, in one generation, without a restart.
    MintCertificates(Mint),
    /// Make new leaves for the clients that the document names.
    MintClients,
    /// Start etcd through the guard.
    Start(Start),
    /// Start etcd with the settings that served last, because it cannot start with the document's.
    StartAsBefore,
    /// Record the document's larger quota for the next start.
    RaiseQuota(u64),
    /// Stop etcd with SIGTERM. Everything is kept.
    Stop(Permit),
    /// Stop etcd, then start it with the document's current settings under the current driver.
    Restart(Permit),
    /// Prove that writes are served, with one write under the operator's own key (rule D7).
    ProbeWrite,
    /// Record the ids that etcd assigned.
    RecordServed,
    /// Compact, defragment and, once space was regained, disarm the alarm (rule D28).
    RegainSpace(Permit),
    /// Disarm the alarm where there is already space, as after a raised quota (rule D28).
    AcceptWrites,
    /// A snapshot is due, but nothing was written since the last one. Note that in memory only
    /// (rule B5).
    SkipSnapshot,
    /// Take a snapshot and verify it. Remove snapshots that the document no longer keeps, copy the rest.
    TakeSnapshot,
    /// Copy waiting snapshots to the other destinations.
    CopySnapshots,
    /// Check the stored snapshots again.
    CheckSnapshots,
    /// Request the restore that the document asks for: for a new cluster, or for damaged data.
    RequestRestore(Asked),
    /// Verify the snapshot and make new data from it beside the old data.
    PrepareRestore,
    /// Stop etcd if it runs, then put the new data in the place of the old data, which is kept.
    SwapRestored(Option<Permit>),
    /// etcd serves the new data: end the restore.
    FinishRestore,
    /// etcd does not serve the new data: put the old data back.
    UndoRestore(Option<Permit>),
}

impl Upkeep {
    /// Whether this step must be skipped because `failed` failed earlier in the same pass. Only a
    /// start of etcd depends on earlier steps; every other step is taken. For example, a client's
    /// directory that cannot be written does not prevent the proof that writes are served.
    pub fn needs(&self, failed: &Upkeep) -> bool {
        let starts = matches!(
            self,
            Upkeep::Start(_) | Upkeep::StartAsBefore | Upkeep::Restart(_)
        );
        starts
            && matches!(
                failed,
                Upkeep::AdoptIdentity
                    | Upkeep::LatchIdentity { .. }
                    | Upkeep::RaiseQuota(_)
                    | Upkeep::MintCertificates(_)
            )
    }

    /// Whether this step stops, starts or interrupts etcd.
    pub fn interrupts(&self) -> bool {
        matches!(
            self,
            Upkeep::Start(_)
                | Upkeep::StartAsBefore
                | Upkeep::Stop(_)
                | Upkeep::Restart(_)
                | Upkeep::RegainSpace(_)
        )
    }
}

/// Why the document asks for a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// `spec.bootstrap`, where no cluster was ever born.
    Bootstrap,
    /// `spec.recovery.singleMember: restoreLatestVerified`.
    Recovery,
}

/// Why the plan goes no further. Each hold has a reason, a message and a next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    /// The document sets `paused: true`.
    Paused,
    /// A person paused the operator for this many seconds. The end is known if the clock was trusted.
    PausedFor(u64, Option<Timestamp>),
    /// No member answers, so nothing about the members is known.
    Unreachable,
    /// A majority does not answer, or would not after the step.
    QuorumLost,
    /// A learner has not caught up yet.
    LearnerBehind,
    /// Interrupting a single member needs a declaration.
    OutageNotDeclared,
    /// More members than this operator can hold.
    TooManyMembers,
    /// A member that the document does not ask for and that this operator did not add.
    UnexpectedMember {
        /// Its id.
        member: MemberId,
        /// Where it is expected to be reached.
        peer_url: PeerUrl,
        /// It has no vote.
        learner: bool,
        /// A majority answers, so the member can be removed.
        quorum: bool,
    },
    /// etcd's own users and permissions are in force, and the operator is not one of these users.
    AuthEnabled,
    /// etcd must not be started.
    Start(Refusal),
    /// The document names no version and the store has none that is supported.
    NoVersion,
    /// This version is known to lose data, so no cluster is born with it.
    VersionLosesData(Version, &'static str),
    /// The operator renders no configuration for this version's line.
    VersionUnsupported(Version),
    /// The document asks a living cluster for another version.
    UpgradeNotSupportedYet {
        /// What runs.
        from: Version,
        /// What is asked for.
        to: Version,
    },
    /// A process that is not ours holds the lock.
    ForeignProcess(Option<u32>),
    /// Another cluster answers on our port.
    ForeignCluster(ClusterId),
    /// The quota was reached and the document asks to wait.
    NoSpace,
    /// The document asks for a smaller quota than the one that is in force.
    QuotaSmaller {
        /// In bytes.
        in_force: u64,
        /// The database file in bytes, where etcd tells.
        database: Option<u64>,
        /// In bytes.
        asked: u64,
    },
    /// The quota was reached, and live data fills it.
    LiveDataFillsQuota {
        /// Live data in bytes.
        in_use: u64,
        /// The quota in bytes.
        quota: u64,
    },
    /// A CA cannot sign, so nothing can be renewed. etcd runs on.
    AuthorityDamaged,
    /// Members disagree on the data. Never disarmed without evidence (rule A8).
    Corrupt,
    /// No cluster lives here yet, but snapshots of a cluster with its name exist.
    SnapshotsFound(Predecessor),
    /// No cluster lives here yet, and the operator cannot see whether snapshots with its name exist.
    SnapshotsUnknown(Detail),
    /// A restore is under way: nothing else is done.
    Restoring(RestorePhase),
    /// The document asks for the data of a snapshot, and it could not be restored.
    RestoreFailed(Detail),
}

/// The next steps. Each specification and observation gives exactly one plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The change to make, none if converged, or why changes are on hold.
    pub change: Result<Option<Change>, Hold>,
    /// Steps in the order of execution.
    pub upkeep: heapless::Vec<Upkeep, UPKEEP_MAX>,
    /// When to look again if nothing happens before.
    pub requeue_after: Duration,
}

/// Decides the next step. Pure, total, without allocation.
pub fn plan(spec: &ClusterSpec, observed: &Observed) -> Plan {
    let mut upkeep = heapless::Vec::new();
    if let Some((hold, end)) = paused(spec, observed) {
        // Proving that writes are served counts as observing: it leaves nothing behind.
        for instance in &observed.instances {
            running::probe(
                instance,
                &mut Steps {
                    upkeep: &mut upkeep,
                },
            );
        }
        return Plan {
            change: Err(hold),
            requeue_after: requeue::while_paused(observed, &upkeep).min(end),
            upkeep,
        };
    }
    if let Some(restoring) = observed.restoring {
        return restore::plan(spec, observed, restoring);
    }
    let mut hold = None;
    for instance in &observed.instances {
        let mut steps = Steps {
            upkeep: &mut upkeep,
        };
        if let Err(found) = instance_steps(spec, observed, instance, &mut steps)
            && hold.is_none()
        {
            hold = Some(found);
        }
    }
    // A hold that names the unexpected member says more than one that reports a missing vote.
    if matches!(hold, Some(Hold::QuorumLost | Hold::Unreachable)) {
        hold = membership::stranger(spec, observed).or(hold);
    }
    let interrupting = upkeep.iter().any(Upkeep::interrupts);
    let settling = observed.instances.iter().any(|it| settling(spec, it));
    let change = match hold {
        Some(hold) => Err(hold),
        None if spec.size == 0 || interrupting || settling => Ok(None),
        None => membership::change(spec, observed),
    };
    let requeue_after = requeue::after(observed, &change, &upkeep, settling);
    Plan {
        change,
        upkeep,
        requeue_after,
    }
}

/// Whether a pause is in force, and when to look again.
fn paused(spec: &ClusterSpec, observed: &Observed) -> Option<(Hold, Duration)> {
    if spec.paused {
        return Some((Hold::Paused, Duration::MAX));
    }
    let pause = observed.paused?;
    let hold = Hold::PausedFor(pause.seconds, pause.until);
    Some((hold, Duration::from_secs(pause.left)))
}

/// The steps so far. Bounded by construction: the list has room for all steps of an instance.
struct Steps<'a> {
    upkeep: &'a mut heapless::Vec<Upkeep, UPKEEP_MAX>,
}

impl Steps<'_> {
    /// A step that does not fit waits for the next pass.
    fn push(&mut self, step: Upkeep) {
        let _ = self.upkeep.push(step);
    }
}

fn instance_steps(
    spec: &ClusterSpec,
    observed: &Observed,
    instance: &Instance,
    steps: &mut Steps<'_>,
) -> Result<(), Hold> {
    match instance.process {
        Process::Unknown => Ok(()),
        Process::Foreign { pid } => Err(Hold::ForeignProcess(pid)),
        Process::Stopped if spec.size == 0 => Ok(()),
        Process::Stopped => start_steps(spec, observed, instance, steps),
        Process::Running { .. } => running::steps(spec, observed, instance, steps),
    }
}

/// Plans the steps that a stopped instance needs before it may start.
fn start_steps(
    spec: &ClusterSpec,
    observed: &Observed,
    instance: &Instance,
    steps: &mut Steps<'_>,
) -> Result<(), Hold> {
    let facts = &instance.facts;
    let version = version_to_start(spec, instance)?;
    let unborn = facts.identity.is_none() && facts.marker.is_none();
    let has_source = !matches!(spec.bootstrap, None | Some(Source::Empty));
    let start = match start::verdict(facts) {
        Ok(start) => start,
        Err(refusal) if spec.restore_when_damaged && restore::is_damage(&refusal) => {
            return restore_steps(observed, Asked::Recovery, steps);
        }
        // The instance's data comes from a snapshot; the restore makes it beside the data that lies
        // there.
        Err(Refusal::DataOfAnotherEtcd(_)) if unborn && has_source => {
            return restore_steps(observed, Asked::Bootstrap, steps);
        }
        Err(refusal) => return Err(start_as_before(observed, instance, refusal, steps)),
    };
    if let Some(refusal) = instance
        .refused
        .as_ref()
        .filter(|it| restore::is_damage(it))
    {
        if spec.restore_when_damaged {
            return restore_steps(observed, Asked::Recovery, steps);
        }
        return Err(Hold::Start(refusal.clone()));
    }
    if unborn && has_source {
        return restore_steps(observed, Asked::Bootstrap, steps);
    }
    if unborn && spec.bootstrap.is_none() {
        match &observed.predecessors {
            Predecessors::None => {}
            Predecessors::Looking => return Ok(()),
            Predecessors::Found(it) => return Err(Hold::SnapshotsFound(it.clone())),
            Predecessors::Unreadable(why) => return Err(Hold::SnapshotsUnknown(why.clone())),
        }
    }
    match (&facts.identity, &facts.marker) {
        (Some(_), _) => {}
        (None, Some(_)) => steps.push(Upkeep::AdoptIdentity),
        (None, None) => {
            steps.push(Upkeep::LatchIdentity {
                version,
                quota: spec.quota.unwrap_or(instance.quota_at_birth),
            });
        }
    }
    if let Some(identity) = facts.identity.as_ref().or(facts.marker.as_ref())
        && let Some(quota) = spec.quota.filter(|it| *it > identity.quota)
    {
        steps.push(Upkeep::RaiseQuota(quota));
    }
    let certificates = certificate::steps(observed, instance, steps);
    if instance.restart_in > 0 {
        // Waiting is part of progressing, unless the guard gave a reason for its refusal.
        return match &instance.refused {
            Some(refusal) => Err(Hold::Start(refusal.clone())),
            None => Ok(()),
        };
    }
    steps.push(Upkeep::Start(start));
    certificate::client_steps(instance, steps);
    certificates
}

/// Plans a start with the settings that served last, if etcd ended and cannot start with the edited
/// document. Returns the hold for the edit.
fn start_as_before(
    observed: &Observed,
    instance: &Instance,
    refusal: Refusal,
    steps: &mut Steps<'_>,
) -> Hold {
    if let Some(before) = &instance.last_served
        && edit::is_in_the_way(&refusal, before.elsewhere)
        && start::verdict(&before.facts) == Ok(Start::Go)
        && instance.restart_in == 0
    {
        // The certificate names the addresses of both settings, so clients keep working with either.
        if let Err(hold) = certificate::steps(observed, instance, steps) {
            return hold;
        }
        steps.push(Upkeep::StartAsBefore);
    }
    Hold::Start(refusal)
}

/// Plans the restore that the document asks for. If a restore failed, nothing else is tried in its
/// place: an unreachable or empty store does not mean a new cluster (rule B7).
fn restore_steps(observed: &Observed, asked: Asked, steps: &mut Steps<'_>) -> Result<(), Hold> {
    if let Some(why) = &observed.backups.restore_failed {
        return Err(Hold::RestoreFailed(why.clone()));
    }
    steps.push(Upkeep::RequestRestore(asked));
    Ok(())
}

/// The version to start. A cluster keeps the version it was born with, even one that no new cluster
/// may be born with.
fn version_to_start(spec: &ClusterSpec, instance: &Instance) -> Result<Version, Hold> {
    let born = instance
        .facts
        .identity
        .as_ref()
        .or(instance.facts.marker.as_ref());
    if let Some(born) = born {
        return match born.version.line() {
            Some(_) => Ok(born.version),
            None => Err(Hold::VersionUnsupported(born.version)),
        };
    }
    let version = spec
        .version
        .or(instance.newest_installed)
        .ok_or(Hold::NoVersion)?;
    match classify(version) {
        Class::NeverCreate(bug) => Err(Hold::VersionLosesData(version, bug)),
        Class::TooOld | Class::Unknown => Err(Hold::VersionUnsupported(version)),
        Class::Supported | Class::Warn(_) => Ok(version),
    }
}

/// Whether the instance is still starting, which is no fault.
fn settling(spec: &ClusterSpec, instance: &Instance) -> bool {
    match instance.process {
        Process::Unknown | Process::Stopped => spec.size > 0,
        Process::Foreign { .. } => false,
        Process::Running { seconds, .. } => {
            seconds < STARTING_SECONDS && !instance.service.read.is_answer()
        }
    }
}
