//! What is done next: `plan()` is pure, total and allocates nothing.
//!
//! The order of concerns is the policy of the product and readable in [`plan`] and
//! [`membership`]. It knows neither Kubernetes nor systemd: the homes differ in
//! [`Observed::authority`] and in what fills the [`Instance`]s.

pub mod backup;
pub mod certificate;
mod membership;
pub mod permit;
mod requeue;
pub mod restore;
pub mod space;
mod words;

use core::time::Duration;

use crate::cluster::{ClusterId, Detail, MemberId, MemberName, MemberSet};
use crate::observed::{Instance, Observed, Process, Reading, RestorePhase, Writing};
use crate::spec::ClusterSpec;
use crate::start::{self, Refusal, Start, Writable};
use crate::version::{Class, Version, classify};

pub use certificate::Mint;
use permit::{Declared, Permit};
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
        /// Quorum survives.
        permit: Permit,
    },
    /// A learner that has caught up gets its vote.
    Promote {
        /// Which one.
        member: MemberId,
        /// Quorum survives.
        permit: Permit,
    },
    /// A member goes for good.
    Remove {
        /// Which one.
        member: MemberId,
        /// Quorum survives.
        permit: Permit,
    },
}

impl Change {
    /// Asks for the permit again, of the member list that was read right before acting: what was
    /// planned on an older one may meanwhile cost quorum.
    pub fn second_look(&self, members: &MemberSet) -> Result<Permit, Hold> {
        match self {
            Change::AddLearner { .. } => permit::to_add_learner(members),
            Change::Promote { member, .. } => permit::to_promote(members, *member),
            Change::Remove { member, .. } => permit::to_remove(members, *member),
        }
    }
}

/// Upkeep of one instance. It goes on while membership is on hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upkeep {
    /// The copy beside the data becomes the state directory's (the root disk was replaced).
    AdoptIdentity,
    /// What is fixed at birth is written down, before etcd starts for the first time.
    LatchIdentity {
        /// The version that the cluster is born with.
        version: Version,
        /// In bytes.
        quota: u64,
    },
    /// New leaves for etcd and the operator, in one generation; no restart.
    MintCertificates(Mint),
    /// New leaves for clients of the document.
    MintClients,
    /// etcd starts, through the guard.
    Start(Start),
    /// etcd ends by SIGTERM. Everything is kept.
    Stop(Permit),
    /// etcd ends and starts with what the document says now, kept by the driver of now.
    Restart(Permit),
    /// One write under the operator's own key proves that writes are served (rule D7).
    ProbeWrite,
    /// The ids that etcd gave are written down.
    RecordServed,
    /// Compact, defragment and, once space was regained, disarm the alarm (rule D28).
    RegainSpace(Permit),
    /// The time for a snapshot has come and nothing was written since the last one: so much is noted
    /// in memory (rule B5).
    SkipSnapshot,
    /// A snapshot is taken and proven, what the document no longer keeps goes, the rest is copied.
    TakeSnapshot,
    /// What waits is copied to the other destinations.
    CopySnapshots,
    /// What is kept is checked again.
    CheckSnapshots,
    /// The document asks for a restore: of a new cluster, or of damaged data.
    RequestRestore(Asked),
    /// The snapshot is proven and new data made of it, beside the old.
    PrepareRestore,
    /// etcd ends if it runs, and the new data takes the place of the old, which is kept.
    SwapRestored(Option<Permit>),
    /// etcd serves the new data: the restore has ended.
    FinishRestore,
    /// etcd does not serve the new data: the old data comes back.
    UndoRestore(Option<Permit>),
}

/// Why the document asks for a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// `spec.bootstrap`, where no cluster was ever born.
    Bootstrap,
    /// `spec.recovery.singleMember: restoreLatestVerified`.
    Recovery,
}

/// Why nothing more is done. Each has a reason, words and a next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    /// The document says so.
    Paused,
    /// Nobody answers, so nothing about the members is known.
    Unreachable,
    /// A majority does not answer, or would not after the step.
    QuorumLost,
    /// A learner has not caught up yet.
    LearnerBehind,
    /// Interrupting a single member needs a declaration.
    OutageNotDeclared,
    /// More members than this operator can hold.
    TooManyMembers,
    /// etcd must not be started.
    Start(Refusal),
    /// The document names no version and the store has none that is supported.
    NoVersion,
    /// Known to lose data: nothing is born with it.
    VersionLosesData(Version, &'static str),
    /// No line that this operator renders a configuration for.
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
    /// The quota was reached, and what fills it is no garbage.
    LiveDataFillsQuota {
        /// Live data in bytes.
        in_use: u64,
        /// The quota in bytes.
        quota: u64,
    },
    /// A CA cannot sign, so nothing can be renewed; what runs goes on.
    AuthorityDamaged,
    /// Members disagree on the data. Never disarmed without evidence (rule A8).
    Corrupt,
    /// A restore is under way: nothing else is done.
    Restoring(RestorePhase),
    /// The document asks for the data of a snapshot, and it could not be restored.
    RestoreFailed(Detail),
}

/// Exactly one for each specification and observation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Act, converged, or blocked and why.
    pub change: Result<Option<Change>, Hold>,
    /// In the order in which it is done.
    pub upkeep: heapless::Vec<Upkeep, UPKEEP_MAX>,
    /// When to look again if nothing happens before.
    pub requeue_after: Duration,
}

/// Decides the next step. Pure, total, without allocation.
pub fn plan(spec: &ClusterSpec, observed: &Observed) -> Plan {
    let mut upkeep = heapless::Vec::new();
    if spec.paused {
        return Plan {
            change: Err(Hold::Paused),
            upkeep,
            requeue_after: REQUEUE_CONVERGED,
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
    let interrupting = upkeep.iter().any(|it| {
        matches!(
            it,
            Upkeep::Start(_) | Upkeep::Stop(_) | Upkeep::Restart(_) | Upkeep::RegainSpace(_)
        )
    });
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

/// Bounded by construction: each instance adds at most as many steps as fit for one.
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
        Process::Running { .. } => running_steps(spec, observed, instance, steps),
    }
}

/// What a stopped instance needs until it may start.
fn start_steps(
    spec: &ClusterSpec,
    observed: &Observed,
    instance: &Instance,
    steps: &mut Steps<'_>,
) -> Result<(), Hold> {
    let facts = &instance.facts;
    let version = version_to_start(spec, instance)?;
    let unborn = facts.identity.is_none() && facts.marker.is_none();
    let start = match start::verdict(facts) {
        Ok(start) => start,
        Err(refusal) if spec.restore_when_damaged && restore::is_damage(&refusal) => {
            return restore_steps(observed, Asked::Recovery, steps);
        }
        Err(refusal) => return Err(Hold::Start(refusal)),
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
    if unborn && spec.bootstrap.is_some() {
        return restore_steps(observed, Asked::Bootstrap, steps);
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
    let certificates = certificate_steps(observed, instance, steps);
    if instance.restart_in > 0 {
        // Waiting is part of progressing, unless the guard said why it refused.
        return match &instance.refused {
            Some(refusal) => Err(Hold::Start(refusal.clone())),
            None => Ok(()),
        };
    }
    steps.push(Upkeep::Start(start));
    client_steps(instance, steps);
    certificates
}

/// The document asks for a snapshot's data. Where that failed, nothing else is tried in its place: a
/// store that cannot be reached or is empty is no new cluster (rule B7).
fn restore_steps(observed: &Observed, asked: Asked, steps: &mut Steps<'_>) -> Result<(), Hold> {
    if let Some(why) = &observed.backups.restore_failed {
        return Err(Hold::RestoreFailed(why.clone()));
    }
    steps.push(Upkeep::RequestRestore(asked));
    Ok(())
}

/// New leaves are picked up at the next handshake: they need no permit (rule D38).
fn certificate_steps(
    observed: &Observed,
    instance: &Instance,
    steps: &mut Steps<'_>,
) -> Result<(), Hold> {
    if !instance.certificates.authorities_usable {
        return Err(Hold::AuthorityDamaged);
    }
    if let Some(reason) = certificate::mint(&instance.certificates, observed) {
        steps.push(Upkeep::MintCertificates(reason));
    }
    Ok(())
}

/// etcd needs nothing of its clients' certificates: they are made while it comes up.
fn client_steps(instance: &Instance, steps: &mut Steps<'_>) {
    if instance.certificates.clients_due && instance.certificates.authorities_usable {
        steps.push(Upkeep::MintClients);
    }
}

/// The version for a start. What was born is always started again; only births are choosy.
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

/// What a running instance needs.
fn running_steps(
    spec: &ClusterSpec,
    observed: &Observed,
    instance: &Instance,
    steps: &mut Steps<'_>,
) -> Result<(), Hold> {
    let service = &instance.service;
    let member = service.details.map(|it| it.member);
    let identity = instance.facts.identity.as_ref();
    // A document of another cluster says nothing about the one that runs here.
    if let Some(identity) = identity
        && identity.cluster != spec.name
    {
        let refusal = Refusal::DocumentOfAnotherCluster(identity.cluster.clone());
        return Err(Hold::Start(refusal));
    }
    if spec.size == 0 {
        let permit = permit::to_interrupt(
            &observed.membership,
            member,
            instance.alone,
            Some(Declared::SizeZero),
        )?;
        steps.push(Upkeep::Stop(permit));
        return Ok(());
    }
    // Whoever writes to a frozen file system waits until it thaws: nothing is written then.
    if instance.facts.writable == Writable::Stalled {
        return Ok(());
    }
    let certificates = certificate_steps(observed, instance, steps);
    client_steps(instance, steps);
    if let (Some((cluster, _)), Some(details)) =
        (identity.and_then(|it| it.served), service.details)
        && details.cluster != cluster
    {
        return Err(Hold::ForeignCluster(details.cluster));
    }
    if service.alarms.corrupt {
        return Err(Hold::Corrupt);
    }
    if service.alarms.no_space {
        if !spec.repair_no_space {
            return Err(Hold::NoSpace);
        }
        space::worth_trying(instance)?;
        let permit = permit::to_interrupt(
            &observed.membership,
            member,
            instance.alone,
            Some(Declared::NoSpaceRepair),
        )?;
        steps.push(Upkeep::RegainSpace(permit));
        return Ok(());
    }
    if service.read == Reading::Answered {
        if service.write != Writing::Acknowledged {
            steps.push(Upkeep::ProbeWrite);
        } else if identity.is_some_and(|it| it.served.is_none()) {
            steps.push(Upkeep::RecordServed);
        }
    }
    restart_steps(spec, observed, instance, steps)?;
    if let Some(step) = backup::step(spec, observed, instance) {
        steps.push(step);
    }
    certificates
}

/// A restart happens only because the document was edited or the host was moved to another driver,
/// never because this operator would render something else than the one before it.
fn restart_steps(
    spec: &ClusterSpec,
    observed: &Observed,
    instance: &Instance,
    steps: &mut Steps<'_>,
) -> Result<(), Hold> {
    let Process::Running {
        settings, version, ..
    } = instance.process
    else {
        return Ok(());
    };
    if let Some(to) = spec.version
        && to != version
    {
        return Err(Hold::UpgradeNotSupportedYet { from: version, to });
    }
    let declared = if settings != spec.settings {
        Some(Declared::DocumentEdited)
    } else if instance.kept_elsewhere {
        Some(Declared::DriverChanged)
    } else {
        None
    };
    if declared.is_some() {
        // What could not be started again is not stopped: the edit waits, etcd runs on as it is.
        start::verdict(&instance.facts).map_err(Hold::Start)?;
        let member = instance.service.details.map(|it| it.member);
        let permit = permit::to_interrupt(&observed.membership, member, instance.alone, declared)?;
        steps.push(Upkeep::Restart(permit));
    }
    Ok(())
}

/// Not there yet, and nothing is wrong with that.
fn settling(spec: &ClusterSpec, instance: &Instance) -> bool {
    match instance.process {
        Process::Unknown | Process::Stopped => spec.size > 0,
        Process::Foreign { .. } => false,
        Process::Running { seconds, .. } => {
            seconds < STARTING_SECONDS && instance.service.read != Reading::Answered
        }
    }
}
