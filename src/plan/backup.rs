//! Decides when the operator takes, copies or checks snapshots.

use super::Upkeep;
use crate::cluster::Timestamp;
use crate::observed::{Backups, Details, Instance, Observed, Reading, Service, Writing};
use crate::spec::ClusterSpec;

/// Whether the revision is lower than the newest snapshot's: acknowledged writes are lost. New snapshots
/// would in time make retention remove the ones that still hold these writes (rule B10).
pub fn is_behind(observed: &Observed, instance: &Instance) -> bool {
    let details = instance.service.details;
    details.is_some_and(|it| is_lower(&observed.backups, it))
}

fn is_lower(backups: &Backups, details: Details) -> bool {
    backups
        .last
        .is_some_and(|last| details.revision < last.revision)
}

/// Whether snapshots are taken from this member: of several from one that serves.
fn is_source(observed: &Observed, instance: &Instance) -> bool {
    let source = observed.speaker();
    source.is_some_and(|it| it.member == instance.member)
}

/// The step for a snapshot that was asked for, where it is taken from this member.
pub(super) fn requested(
    spec: &ClusterSpec,
    observed: &Observed,
    instance: &Instance,
) -> Option<Upkeep> {
    let asked = asked(spec, &observed.backups, &instance.service);
    asked.filter(|_| is_source(observed, instance))
}

/// It waits for an answer of etcd's alone: whoever asks may want to save what refuses writes.
fn asked(spec: &ClusterSpec, backups: &Backups, service: &Service) -> Option<Upkeep> {
    let answers = service.read == Reading::Answered;
    let takes = spec.backup.is_some() && backups.asked && !backups.busy && answers;
    takes.then_some(Upkeep::TakeRequested)
}

/// The step for a snapshot that was asked for or is due, for a copy or a check.
pub(super) fn step(spec: &ClusterSpec, observed: &Observed, instance: &Instance) -> Option<Upkeep> {
    if !is_source(observed, instance) {
        return None;
    }
    let now = observed.clock.trusted(observed.now);
    due(spec, &observed.backups, &instance.service, now)
}

/// The same for a process that takes snapshots of one member and does nothing else. What is due waits until the member
/// serves (rule B13); a due snapshot is skipped if nothing was written since the last one (rule B5). `now`: the time,
/// if it is trusted.
pub fn due(
    spec: &ClusterSpec,
    backups: &Backups,
    service: &Service,
    now: Option<Timestamp>,
) -> Option<Upkeep> {
    let backup = spec.backup.as_ref()?;
    if let Some(step) = asked(spec, backups, service) {
        return Some(step);
    }
    if backups.busy || backups.elsewhere || service.read != Reading::Answered {
        return None;
    }
    if service.write != Writing::Acknowledged || backups.retry_in > 0 {
        return None;
    }
    let details = service.details?;
    if backups.due_in == Some(0) && !is_lower(backups, details) {
        let newest = backups.verified.as_ref();
        return Some(
            if newest.is_some_and(|it| it.revision == details.revision) {
                Upkeep::SkipSnapshot
            } else {
                Upkeep::TakeSnapshot
            },
        );
    }
    if backups.copy_due(backup, now) {
        return Some(Upkeep::CopySnapshots);
    }
    backups
        .check_due(backup, now)
        .then_some(Upkeep::CheckSnapshots)
}
