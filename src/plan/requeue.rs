//! Decides when to look again.

use core::time::Duration;

use super::{Act, Hold, Plan, Task, Upkeep};
use crate::observed::{
    Instance, Membership, Observed, Pairs, Predecessors, Process, Reading, Writing,
};
use crate::start::Refusal;

/// Time until the next look when all is well. Each look is one TLS handshake and one read.
pub const REQUEUE_CONVERGED: Duration = Duration::from_secs(10);
/// While etcd comes up. A start takes about a second on a fast machine.
pub const REQUEUE_STARTING: Duration = Duration::from_millis(50);
/// After a change of the member list, of which several may follow.
pub(super) const REQUEUE_CHANGED: Duration = Duration::from_millis(5);
/// While something else is under way or wrong.
pub const REQUEUE_PROGRESSING: Duration = Duration::from_secs(2);
/// The longest time between two looks at a Pod that was asked to end and is still there.
const TERMINATING_MAX: Duration = Duration::from_secs(60);

/// When to look again at a paused cluster, which is only observed.
pub(super) fn while_paused(observed: &Observed, upkeep: &[Task]) -> Duration {
    let retrying = observed
        .instances
        .iter()
        .any(|it| matches!(it.service.write, Writing::Failed(_)));
    if upkeep.is_empty() || retrying {
        REQUEUE_CONVERGED
    } else {
        REQUEUE_STARTING
    }
}

/// Its end wakes the loop; the longer it takes, the rarer are the looks.
pub(super) fn while_terminating(observed: &Observed) -> Duration {
    let terminating = observed.instances.iter().map(|it| it.terminating).max();
    Duration::from_secs(terminating.unwrap_or(0) / 10).clamp(REQUEUE_PROGRESSING, TERMINATING_MAX)
}

/// When to look again if nothing happens before. `waits`: a member waits for its turn to be restarted.
pub(super) fn after(observed: &Observed, plan: &Plan, settling: bool, waits: bool) -> Duration {
    let waiting = observed
        .instances
        .iter()
        .map(|it| it.restart_in)
        .max()
        .unwrap_or(0);
    let healthy = observed
        .instances
        .iter()
        .all(|it| it.service.read == Reading::Answered && it.certificates.pairs == Pairs::Usable);
    let known = matches!(observed.membership, Membership::Known(_));
    let retrying = observed
        .instances
        .iter()
        .any(|it| matches!(it.service.write, Writing::Failed(_)));
    // One member's hold does not slow the repair of another.
    let change = match (&plan.change, plan.hold()) {
        (Ok(Some(change)), _) => Ok(Some(change)),
        (_, Some(hold)) => Err(hold),
        _ => Ok(None),
    };
    let idle = plan.upkeep.is_empty() && plan.interruption.is_none();
    match change {
        // Even under a hold, an etcd that comes up is observed until it serves.
        _ if observed.instances.iter().any(Instance::comes_up) => REQUEUE_STARTING,
        _ if !retrying && (plan.steps().any(begins) || plan.act() == Some(Act::Restart)) => {
            REQUEUE_STARTING
        }
        // One that failed is not repeated at once: for 5 s after a change etcd may refuse the next one.
        Ok(Some(_)) if observed.failed.is_none() => REQUEUE_CHANGED,
        Err(Hold::LearnerBehind) if observed.instances.iter().any(|it| it.process.is_young()) => {
            REQUEUE_STARTING
        }
        // The answer wakes the loop.
        Ok(None) if observed.predecessors == Predecessors::Looking => REQUEUE_PROGRESSING,
        // Its end wakes the loop; one that never ends, such as a Pod of a lost node, costs little.
        Ok(None)
            if observed
                .instances
                .iter()
                .any(|it| it.process == Process::Unknown) =>
        {
            REQUEUE_PROGRESSING
        }
        Ok(None) if settling && waiting > 0 => Duration::from_secs(waiting),
        Ok(None) if settling => REQUEUE_STARTING,
        // The next one follows when the last one has lasted.
        Ok(None) if waits => REQUEUE_PROGRESSING,
        Ok(None)
            if idle
                && (healthy && known
                    || observed
                        .instances
                        .iter()
                        .all(|it| it.process == Process::Stopped)) =>
        {
            REQUEUE_CONVERGED
        }
        Err(Hold::Terminating) => while_terminating(observed),
        // Space may become free at any moment, and then etcd can start.
        Err(Hold::Start(Refusal::DiskFull { .. } | Refusal::Examining)) => REQUEUE_PROGRESSING,
        Err(hold) if waits_for_a_person(hold) => REQUEUE_CONVERGED,
        _ => REQUEUE_PROGRESSING,
    }
}

/// Whether nothing but a person, or a watch, changes what the hold is about.
fn waits_for_a_person(hold: &Hold) -> bool {
    matches!(
        hold,
        Hold::Start(_)
            | Hold::NoVersion
            | Hold::VersionLosesData(..)
            | Hold::VersionUnsupported(_)
            | Hold::UpgradeNotAllowed { .. }
            | Hold::UpgradeNeedsBackup(_)
            | Hold::UpgradeNotRehearsed(..)
            | Hold::UpgradeFailed(..)
            | Hold::DowngradeStalled(..)
            | Hold::VersionsDiffer(..)
            | Hold::MemberFailed(_)
            | Hold::QuotaSmaller { .. }
            | Hold::ClaimDeleted
            | Hold::SnapshotsFound(_)
            | Hold::SnapshotsUnknown(_)
            | Hold::RestoreFailed(_)
    )
}

/// Whether something follows this step soon.
fn begins(step: &Upkeep) -> bool {
    matches!(
        step,
        Upkeep::Start(_)
            | Upkeep::StartAsBefore
            | Upkeep::ProbeWrite
            | Upkeep::RecordServed
            | Upkeep::RequestRestore(_)
            | Upkeep::EnableDowngrade(_)
            | Upkeep::CancelDowngrade
            | Upkeep::TakeVersionBack
            | Upkeep::StayWithVersion
            | Upkeep::FinishVersion
    )
}
