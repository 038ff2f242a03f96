//! Plans the steps of a restore under way. The operator does nothing else meanwhile.

use core::time::Duration;

use super::permit::{self, Declared};
use super::{Hold, Plan, REQUEUE_CONVERGED, REQUEUE_PROGRESSING, REQUEUE_STARTING, Upkeep};
use crate::observed::{
    Instance, Observed, Pairs, Process, Reading, RestorePhase, Restoring, Unanswered, Writing,
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
    let mut upkeep = heapless::Vec::new();
    let hold = match observed.instances.first() {
        Some(instance) => match step(spec, observed, instance, restoring) {
            Ok(Some(step)) => {
                let _ = upkeep.push(step);
                Hold::Restoring(restoring.phase)
            }
            Ok(None) => Hold::Restoring(restoring.phase),
            Err(hold) => hold,
        },
        None => Hold::Unreachable,
    };
    let requeue_after = match &hold {
        // The end of the job wakes the loop. Each look takes time from the job.
        Hold::Restoring(RestorePhase::Requested) if upkeep.is_empty() => REQUEUE_PROGRESSING,
        Hold::Restoring(_) if upkeep.is_empty() => REQUEUE_PROGRESSING.min(requeue(observed)),
        Hold::Restoring(_) if is_young(observed) || !is_starting(restoring) => REQUEUE_STEP,
        Hold::Restoring(_) => REQUEUE_STARTING,
        _ => REQUEUE_CONVERGED,
    };
    Plan {
        change: Err(hold),
        upkeep,
        requeue_after,
    }
}

/// Looks often while etcd is starting.
fn requeue(observed: &Observed) -> Duration {
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
) -> Result<Option<Upkeep>, Hold> {
    match instance.process {
        // A process of unknown state does not count as stopped.
        Process::Unknown => return Ok(None),
        Process::Foreign { pid } => return Err(Hold::ForeignProcess(pid)),
        Process::Stopped | Process::Running { .. } => {}
    }
    match restoring.phase {
        RestorePhase::Requested if restoring.busy => Ok(None),
        RestorePhase::Requested => Ok(Some(Upkeep::PrepareRestore)),
        RestorePhase::Prepared | RestorePhase::Swapping => {
            interrupting(observed, instance).map(|it| Some(Upkeep::SwapRestored(it)))
        }
        RestorePhase::Undoing => {
            interrupting(observed, instance).map(|it| Some(Upkeep::UndoRestore(it)))
        }
        RestorePhase::Starting => starting(spec, observed, instance, restoring.unanswered),
    }
}

/// The permit to stop etcd if it runs. If it does not run, nothing is interrupted.
fn interrupting(observed: &Observed, instance: &Instance) -> Result<Option<permit::Permit>, Hold> {
    match instance.process {
        Process::Running { .. } => {
            let member = instance.service.details.map(|it| it.member);
            let declared = Some(Declared::Restore);
            permit::to_interrupt(&observed.membership, member, instance.alone, declared).map(Some)
        }
        _ => Ok(None),
    }
}

/// Waits until etcd serves the new data, or plans to put the old data back.
fn starting(
    spec: &ClusterSpec,
    observed: &Observed,
    instance: &Instance,
    unanswered: Unanswered,
) -> Result<Option<Upkeep>, Hold> {
    let service = &instance.service;
    match instance.process {
        Process::Running { .. } => {
            if service.read == Reading::Answered {
                return Ok(Some(match service.write {
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
                && unanswered.seconds > SERVES_WITHIN_SECONDS
                && unanswered.looks >= SERVES_WITHIN_LOOKS
            {
                return interrupting(observed, instance).map(|it| Some(Upkeep::UndoRestore(it)));
            }
            Ok(None)
        }
        _ if spec.size == 0 => Err(Hold::Start(Refusal::Hibernates)),
        _ => match start::verdict(&instance.facts) {
            Ok(_) if instance.restart_in > 0 => Ok(None),
            Ok(_) => Ok(Some(Upkeep::Start(Start::Go))),
            Err(refusal) if is_of_the_data(&refusal) => Ok(Some(Upkeep::UndoRestore(None))),
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
