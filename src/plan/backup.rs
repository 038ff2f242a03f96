//! Decides when the operator takes, copies or checks snapshots.

use super::Upkeep;
use crate::observed::{Instance, Observed, Reading, Writing};
use crate::spec::ClusterSpec;

/// Whether the revision is lower than the newest snapshot's: acknowledged writes are lost. New snapshots
/// would in time make retention remove the ones that still hold these writes (rule B10).
pub fn is_behind(observed: &Observed, instance: &Instance) -> bool {
    match (&observed.backups.last, instance.service.details) {
        (Some(last), Some(details)) => details.revision < last.revision,
        _ => false,
    }
}

/// Whether snapshots are taken from this member: of several from one that serves.
fn is_source(observed: &Observed, instance: &Instance) -> bool {
    let source = observed.speaker();
    source.is_some_and(|it| it.member == instance.member)
}

/// The step for a snapshot that was asked for. It waits for an answer of etcd's alone: whoever asks may want to save
/// what refuses writes.
pub(super) fn requested(
    spec: &ClusterSpec,
    observed: &Observed,
    instance: &Instance,
) -> Option<Upkeep> {
    let backups = &observed.backups;
    let answers = instance.service.read == Reading::Answered;
    let takes = spec.backup.is_some() && backups.asked && !backups.busy && answers;
    let takes = takes && is_source(observed, instance);
    takes.then_some(Upkeep::TakeRequested)
}

/// The step for a snapshot that was asked for or is due, for a copy or a check. What is due waits until the member
/// serves (rule B13); a due snapshot is skipped if nothing was written since the last one (rule B5).
pub(super) fn step(spec: &ClusterSpec, observed: &Observed, instance: &Instance) -> Option<Upkeep> {
    let backups = &observed.backups;
    let backup = spec.backup.as_ref()?;
    if let Some(step) = requested(spec, observed, instance) {
        return Some(step);
    }
    let answers = instance.service.read == Reading::Answered;
    if backups.busy || !answers || !is_source(observed, instance) {
        return None;
    }
    if instance.service.write != Writing::Acknowledged || backups.retry_in > 0 {
        return None;
    }
    let details = instance.service.details?;
    let due = backups.due_in == Some(0) && !is_behind(observed, instance);
    let unchanged = backups
        .verified
        .as_ref()
        .is_some_and(|it| it.revision == details.revision);
    if due {
        return Some(if unchanged {
            Upkeep::SkipSnapshot
        } else {
            Upkeep::TakeSnapshot
        });
    }
    let now = observed.clock.trusted(observed.now);
    if backups.copy_due(backup, now) {
        return Some(Upkeep::CopySnapshots);
    }
    backups
        .check_due(backup, now)
        .then_some(Upkeep::CheckSnapshots)
}
