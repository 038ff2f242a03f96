//! Plans the steps of a restore under way. The operator does nothing else meanwhile.

use core::time::Duration;

use super::permit::{Declared, permit};
use super::{
    Act, Draft, Hold, Plan, REQUEUE_CONVERGED, REQUEUE_PROGRESSING, REQUEUE_STARTING, Steps,
    Upkeep, ends_in_time, requeue,
};
use crate::observed::{
    Instance, Observed, Pairs, Process, Reading, RestorePhase, Restoring, Writing,
};
use crate::spec::ClusterSpec;
use crate::start::{self, Refusal, Start, damage};

/// A restored etcd has this many seconds to serve before the operator puts the old data back.
pub const SERVES_WITHIN_SECONDS: u64 = 300;
/// The operator also asks this many times first, so that no single question decides.
pub const SERVES_WITHIN_LOOKS: u32 = 10;

/// A step of a restore is complete when it returns. etcd does not serve meanwhile, so the next step
/// follows at once.
const REQUEUE_STEP: Duration = Duration::from_millis(10);

/// The next step of a restore.
pub(super) fn plan(spec: &ClusterSpec, observed: &Observed, restoring: Restoring) -> Plan {
    let mut draft = Draft::default();
    let mut hold = if observed.instances.is_empty() {
        Hold::Unreachable
    } else {
        Hold::Restoring(restoring.phase)
    };
    for instance in &observed.instances {
        let steps = &mut draft.of(instance);
        if let Err(found) = step(spec, observed, instance, restoring, steps) {
            hold = found;
        }
    }
    let waits = draft.upkeep.is_empty() && draft.interruption.is_none();
    let requeue_after = match &hold {
        // The end of the job, and that of a Pod, wakes the loop. Each look takes time from the job.
        Hold::Restoring(RestorePhase::Requested) if waits || restoring.stops_first => {
            REQUEUE_PROGRESSING
        }
        Hold::Restoring(_) if waits => REQUEUE_PROGRESSING.min(while_starting(observed)),
        Hold::Restoring(_) if is_young(observed) || !is_starting(restoring) => REQUEUE_STEP,
        Hold::Restoring(_) => REQUEUE_STARTING,
        Hold::Terminating => requeue::while_terminating(observed),
        _ => REQUEUE_CONVERGED,
    };
    draft.plan(Err(hold), requeue_after)
}

/// Looks often while etcd is starting.
fn while_starting(observed: &Observed) -> Duration {
    if is_young(observed) {
        REQUEUE_STARTING
    } else {
        REQUEUE_PROGRESSING
    }
}

fn is_young(observed: &Observed) -> bool {
    observed
        .instances
        .iter()
        .any(|it| matches!(it.process, Process::Running { seconds, .. } if seconds < 20))
}

/// Only in this phase could one step follow another without end.
fn is_starting(restoring: Restoring) -> bool {
    restoring.phase == RestorePhase::Starting
}

fn step(
    spec: &ClusterSpec,
    observed: &Observed,
    instance: &Instance,
    restoring: Restoring,
    steps: &mut Steps<'_>,
) -> Result<(), Hold> {
    match instance.process {
        Process::Unknown => return ends_in_time(instance),
        Process::Foreign { pid } => return Err(Hold::ForeignProcess(pid)),
        Process::Stopped | Process::Running { .. } => {}
    }
    // Who asks for no member at all declares more than who asks for a restore.
    let declared = match restoring.phase {
        RestorePhase::Requested if spec.size == 0 => Declared::SizeZero,
        _ => Declared::Restore,
    };
    let mut interrupt = |act| {
        // If etcd does not run, nothing is interrupted.
        let permit = permit(observed, instance, act, declared)?;
        steps.interrupt(permit);
        Ok(())
    };
    match restoring.phase {
        RestorePhase::Requested if restoring.stops_first && instance.is_there() => {
            interrupt(Act::Stop)?;
        }
        RestorePhase::Requested if restoring.busy => {}
        // Once none is there: who serves the data of before is not one of the cluster that begins.
        RestorePhase::Requested if restoring.stops_first && !is_for(observed, instance) => {}
        RestorePhase::Requested => steps.push(Upkeep::PrepareRestore),
        RestorePhase::Prepared | RestorePhase::Swapping => interrupt(Act::SwapRestored)?,
        RestorePhase::Undoing => interrupt(Act::UndoRestore)?,
        RestorePhase::Starting => match starting(spec, instance)? {
            Next::Wait => {}
            Next::Step(step) => steps.push(step),
            Next::Undo => interrupt(Act::UndoRestore)?,
        },
    }
    Ok(())
}

/// Whether the data of this one is replaced, with which the cluster begins anew, and all others have stopped.
fn is_for(observed: &Observed, instance: &Instance) -> bool {
    let first = observed.instances.first();
    let gone = |it: &Instance| it.process == Process::Stopped && !it.is_there();
    first.is_some_and(|it| it.member == instance.member) && observed.instances.iter().all(gone)
}

/// What follows while etcd starts with the new data.
enum Next {
    Wait,
    Step(Upkeep),
    Undo,
}

/// Waits until etcd serves the new data, or plans to put the old data back.
fn starting(spec: &ClusterSpec, instance: &Instance) -> Result<Next, Hold> {
    let service = &instance.service;
    match instance.process {
        Process::Running { .. } => {
            if service.read == Reading::Answered {
                return Ok(Next::Step(match service.write {
                    Writing::Acknowledged => Upkeep::FinishRestore,
                    _ => Upkeep::ProbeWrite,
                }));
            }
            // Without a certificate that etcd accepts, the operator would get no answer on the old
            // data either.
            let ours = matches!(
                instance.certificates.pairs,
                Pairs::Usable | Pairs::AddressesDiffer
            );
            if ours
                && instance.tries.unanswered.seconds > SERVES_WITHIN_SECONDS
                && instance.tries.unanswered.looks >= SERVES_WITHIN_LOOKS
            {
                return Ok(Next::Undo);
            }
            Ok(Next::Wait)
        }
        _ if spec.size == 0 => Err(Hold::Start(Refusal::Hibernates)),
        _ => match start::verdict(&instance.facts) {
            Ok(_) if instance.restart_in > 0 => Ok(Next::Wait),
            Ok(_) => Ok(Next::Step(Upkeep::Start(Start::Go))),
            Err(refusal) if is_of_the_data(&refusal) => Ok(Next::Undo),
            Err(refusal) => Err(Hold::Start(refusal)),
        },
    }
}

/// Whether the new data prevents the start. Any other cause would also prevent a start on the old data.
fn is_of_the_data(refusal: &Refusal) -> bool {
    matches!(
        refusal,
        Refusal::DataDamaged(_)
            | Refusal::CrashLoop { .. }
            | Refusal::DataMissing
            | Refusal::LogMissing
            | Refusal::DatabaseMissing
            | Refusal::DataOfAnotherCluster(_)
            | Refusal::DataNewer { .. }
    )
}

/// Whether the files prove that etcd cannot start from the data, so that a policy may replace the
/// data. A cause that only a person can judge does not count (a disk that is not mounted, a wrong
/// document). etcd's own messages do not count either. In a Pod, the guard has read the data.
pub fn is_damage(refusal: &Refusal) -> bool {
    match refusal {
        Refusal::DataDamaged(_) | Refusal::LogMissing | Refusal::DatabaseMissing => true,
        Refusal::Unplaceable { reason, .. } => damage::REASONS.contains(reason),
        _ => false,
    }
}
