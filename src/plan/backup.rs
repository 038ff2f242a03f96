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

/// The step for a due snapshot, copy or check. The member must serve (rule B13). A due snapshot is skipped
/// if nothing was written since the last one (rule B5).
pub(super) fn step(spec: &ClusterSpec, observed: &Observed, instance: &Instance) -> Option<Upkeep> {
    let backups = &observed.backups;
    spec.backup.as_ref()?;
    let serves = instance.service.read == Reading::Answered
        && instance.service.write == Writing::Acknowledged;
    if backups.busy || !serves || backups.retry_in > 0 {
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
    if backups.copy_due {
        return Some(Upkeep::CopySnapshots);
    }
    backups.check_due.then_some(Upkeep::CheckSnapshots)
}
