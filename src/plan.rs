//! Decides the next step: `plan()` is pure, total and allocates nothing.
//!
//! The order of concerns is the policy of the product; [`plan`] and `membership` show it. The
//! planner knows neither Kubernetes nor systemd: the modes differ in [`Observed::authority`] and in
//! what fills the [`Instance`]s.

pub mod backup;
mod birth;
pub mod certificate;
mod draft;
pub mod edit;
mod end;
mod held;
mod join;
mod membership;
pub mod permit;
mod requeue;
pub mod restore;
mod running;
pub mod space;
mod step;
pub mod turn;
pub mod version;
mod words;

use core::time::Duration;

use crate::cluster::{ClusterId, Detail, MemberId, MemberName, MemberSet, PeerUrl, Timestamp};
use crate::observed::{
    Claim, INSTANCES_MAX, Instance, ListFrom, Observed, Predecessor, Process, RestorePhase,
    TERMINATING_SECONDS,
};
use crate::spec::ClusterSpec;
use crate::spec::backup::Source;
use crate::start::{self, Refusal, Start};
use crate::version::Version;

pub use certificate::Mint;
use draft::{Draft, Steps};
pub use end::killed_after;
pub use held::Held;
use join::Way;
pub use join::leaves_its_claim;
use permit::{Declared, Permit};
pub use requeue::{REQUEUE_CONVERGED, REQUEUE_PROGRESSING, REQUEUE_STARTING};
pub use step::{Act, Asked, Change, Interruption, Task, Upkeep};
use version::WayBack;

/// Steps of upkeep of one member in one pass.
pub const STEPS_MAX: usize = 8;
/// The same of all members that one process runs.
pub const UPKEEP_MAX: usize = STEPS_MAX * INSTANCES_MAX;

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
    /// Some members answer, and no majority: so many of so many do not, and who.
    MajorityLost(u8, u8, Detail),
    /// A learner has not caught up yet.
    LearnerBehind,
    /// Interrupting a single member needs a declaration.
    OutageNotDeclared,
    /// One of several members has failed, and the document says to wait for a person.
    MemberFailed(MemberName),
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
    /// The document asks a living cluster for a version that cannot follow the one that runs.
    UpgradeNotAllowed {
        /// What runs.
        from: Version,
        /// What is asked for.
        to: Version,
        /// What to take first.
        first: version::First,
    },
    /// The version that the document asks for is a newer line, and no snapshot would be kept that leads back.
    UpgradeNeedsBackup(Version),
    /// The version that the document asks for does not serve the data, and the one before cannot open it any more.
    UpgradeStuck(Version, Detail, Option<WayBack>),
    /// The version that the document asks for could not be tried on a copy of the data for now.
    UpgradeNotRehearsed(Version, Detail),
    /// The version that the document asks for did not serve. It is not tried again until the document changes.
    UpgradeFailed(Version, Detail),
    /// etcd of this version was told to lower its data to an older line, and has not for longer than that takes.
    DowngradeStalled(Version, Version),
    /// Members have several versions, and the document names none: the oldest and the newest.
    VersionsDiffer(Version, Version),
    /// A process that is not ours holds the lock.
    ForeignProcess(Option<u32>),
    /// The member's Pod was asked to end and is still there.
    Terminating,
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
    /// The step would end what keeps a deleted claim, and the data, from going.
    ClaimDeleted,
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
#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    /// Steps that interrupt nothing, in the order of execution.
    pub upkeep: heapless::Vec<Task, UPKEEP_MAX>,
    /// The one interruption of this pass, after the upkeep.
    pub interruption: Option<Permit<Interruption>>,
    /// The one change of the member list, none if converged, or why changes are on hold.
    pub change: Result<Option<Permit<Change>>, Hold>,
    /// Members for which the plan goes no further, each with the reason.
    pub holds: heapless::Vec<(MemberName, Hold), INSTANCES_MAX>,
    /// When to look again if nothing happens before.
    pub requeue_after: Duration,
}

impl Plan {
    /// The steps of upkeep, whichever member they are for.
    pub fn steps(&self) -> impl Iterator<Item = &Upkeep> {
        self.upkeep.iter().map(|it| &it.step)
    }

    /// What interrupts a member in this pass.
    pub fn act(&self) -> Option<Act> {
        self.interruption.as_ref().map(|it| it.step().act)
    }
}

/// Decides the next step. Pure, total, without allocation.
pub fn plan(spec: &ClusterSpec, observed: &Observed) -> Plan {
    let mut draft = Draft::default();
    if let Some((hold, end)) = paused(spec, observed) {
        // Proving that writes are served counts as observing: it leaves nothing behind.
        for instance in &observed.instances {
            running::probe(instance, &mut draft.of(instance));
        }
        let requeue_after = requeue::while_paused(observed, &draft.upkeep).min(end);
        return draft.plan(Err(hold), requeue_after);
    }
    if let Some(restoring) = observed.restoring {
        return restore::plan(spec, observed, restoring);
    }
    for instance in &observed.instances {
        if let Err(hold) = instance_steps(spec, observed, instance, &mut draft.of(instance)) {
            let _ = draft.holds.push((instance.member.clone(), hold)); // one for each instance
        }
    }
    let settling = observed.instances.iter().any(|it| settling(spec, it));
    let waits = turn::waits(spec, observed);
    let change = change(spec, observed, &mut draft, (settling, waits));
    let change = draft.without_the_leader(spec, observed, change);
    let mut plan = draft.plan(change, Duration::ZERO);
    plan.requeue_after = requeue::after(observed, &plan, settling, waits);
    plan
}

/// The one change of the member list. Repair and growth come before an interruption that an edit asks for,
/// and shrinking comes after it.
fn change(
    spec: &ClusterSpec,
    observed: &Observed,
    draft: &mut Draft,
    (settling, waits): (bool, bool),
) -> Result<Option<Permit<Change>>, Hold> {
    let foreign = draft.holds.iter().any(|(_, hold)| hold.is_foreign());
    if spec.size == 0 || foreign {
        return Ok(None);
    }
    let voting = observed.membership.known();
    let coming_up = match voting {
        Some(members) => draft.starts_a_voter(members) || voter_settles(observed, members),
        // Where one of several tells the list, those whose Pods are away do not come up by themselves.
        None if observed.membership.of_a_minority().is_some() => {
            observed.instances.iter().any(Instance::comes_up)
                || draft.upkeep.iter().any(|it| it.step.starts())
        }
        None => settling || draft.upkeep.iter().any(|it| it.step.starts()),
    };
    let act = draft.interruption.as_ref().map(|it| it.step().act);
    let edited = voting.is_some() && act == Some(Act::Restart);
    if coming_up || act.is_some() && !edited {
        return if draft.holds.iter().any(|it| it.1.misses_votes()) {
            membership::stranger(spec, observed).map_or(Ok(None), Err)
        } else {
            Ok(None)
        };
    }
    let Some(members) = membership::changeable(spec, observed)? else {
        return Ok(None);
    };
    match membership::repair_and_grow(spec, observed, members) {
        Ok(Some(permit)) => {
            draft.interruption = None; // the edit waits until the cluster is whole
            Ok(Some(permit))
        }
        Err(Hold::LearnerBehind)
            if membership::outage_can_wait(spec, &draft.holds, observed, members) =>
        {
            draft.interruption = None;
            Err(Hold::LearnerBehind)
        }
        Err(hold) => Err(hold),
        Ok(None) if edited => Ok(None),
        // Between two restarts for an edit, only who does not serve is removed: the edit may wait for it.
        Ok(None) => membership::shrink(spec, observed, members, waits),
    }
}

/// Whether a voter's etcd runs and is still starting.
fn voter_settles(observed: &Observed, members: &MemberSet) -> bool {
    let voter = |it: &Instance| members.voters().any(|voter| voter.name == it.member);
    observed
        .instances
        .iter()
        .any(|it| it.comes_up() && voter(it))
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

/// A process of unknown state counts neither as running nor as stopped; one that was asked to end has its time.
fn ends_in_time(instance: &Instance) -> Result<(), Hold> {
    if instance.terminating > TERMINATING_SECONDS {
        return Err(Hold::Terminating);
    }
    Ok(())
}

fn instance_steps(
    spec: &ClusterSpec,
    observed: &Observed,
    instance: &Instance,
    steps: &mut Steps<'_>,
) -> Result<(), Hold> {
    if let Some(step) = join::on_a_lost_node(spec, observed, instance) {
        steps.push(step);
        return Ok(());
    }
    if let Some(permit) = join::to_end_who_left(spec, observed, instance) {
        steps.interrupt(permit);
        return Ok(());
    }
    match instance.process {
        Process::Unknown => ends_in_time(instance),
        Process::Foreign { pid } => Err(Hold::ForeignProcess(pid)),
        Process::Stopped if spec.size == 0 && instance.is_there() => {
            let permit = permit::permit(observed, instance, Act::Stop, Declared::SizeZero)?;
            steps.interrupt(permit);
            Ok(())
        }
        Process::Stopped if spec.size == 0 => Ok(()),
        // Even one that has ended keeps the claim, until another one takes its place.
        Process::Stopped if instance.claim == Claim::Deleted && instance.is_there() => {
            Err(Hold::ClaimDeleted)
        }
        Process::Stopped if version::stopped(spec, observed, instance, steps) => Ok(()),
        Process::Stopped => {
            let taken = start_steps(spec, observed, instance, steps);
            version::stuck(observed, instance, taken)
        }
        Process::Running { .. } => {
            let taken = running::steps(spec, observed, instance, steps);
            version::stuck(observed, instance, taken)
        }
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
    let way = join::way(spec, observed, instance);
    if way == Way::SetAside {
        steps.push(Upkeep::SetDataAside);
    }
    if matches!(way, Way::SetAside | Way::Wait) {
        return Ok(());
    }
    if way == Way::Join && join::is_too_early(spec, observed, instance, steps) {
        return Ok(());
    }
    let version = birth::version_to_start(spec, observed, instance, way)?;
    let unborn = facts.born().is_none() && way == Way::Own;
    // Of several members a damaged one is replaced from the others, never by an older snapshot.
    let recovers = spec.restore_when_damaged && instance.alone && spec.members.len() <= 1;
    let has_source = !matches!(spec.bootstrap, None | Some(Source::Empty));
    if let Some(made) = instance.made_for
        && (made.settings != spec.settings || made.version != version)
    {
        // Once it has gone, the version is recorded and the start follows.
        let permit = permit::permit(observed, instance, Act::Restart, Declared::DocumentEdited)?;
        steps.interrupt(permit);
        return Ok(());
    }
    let start = match start::verdict(facts) {
        Ok(start) => start,
        Err(refusal) if recovers && restore::is_damage(&refusal) => {
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
        if recovers {
            return restore_steps(observed, Asked::Recovery, steps);
        }
        return Err(Hold::Start(refusal.clone()));
    }
    if unborn && has_source {
        return restore_steps(observed, Asked::Bootstrap, steps);
    }
    if unborn && spec.bootstrap.is_none() && !birth::has_no_predecessor(observed)? {
        return Ok(());
    }
    birth::latch(spec, instance, version, way == Way::Join, steps);
    if let Some(identity) = facts.born()
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
    let start = if way == Way::Join { Start::Join } else { start };
    // One after the other: those that join at once wait 6 s for each other, several times.
    if start != Start::Join
        || instance.list_from == ListFrom::Peers
        || !steps.another_joins(observed)
    {
        steps.push(Upkeep::Start(start));
    }
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

/// Whether the instance is still starting, which is no fault.
fn settling(spec: &ClusterSpec, instance: &Instance) -> bool {
    match instance.process {
        Process::Unknown | Process::Stopped => spec.size > 0,
        Process::Foreign { .. } => false,
        Process::Running { .. } => instance.comes_up(),
    }
}
