//! The condition BackupHealthy.

use super::{Condition, Kind, Verdict, condition};
use crate::cluster::detail;
use crate::observed::{Clock, Observed};
use crate::plan::backup::is_behind;
use crate::spec::ClusterSpec;
use crate::spec::backup::Trigger;

/// Snapshots are taken, proven and copied as the document asks.
pub(super) fn healthy(spec: &ClusterSpec, observed: &Observed) -> Condition {
    let told = |verdict, reason, message| condition(Kind::BackupHealthy, verdict, reason, message);
    let no = |reason, message| told(Verdict::False, reason, message);
    let Some(backup) = &spec.backup else {
        let message = detail(format_args!("the document configures no backup"));
        return told(Verdict::Unknown, "NotConfigured", message);
    };
    let backups = &observed.backups;
    if let Some(failed) = &backups.failed {
        return no(failed.reason, failed.why.clone());
    }
    if let (Some(last), Some(instance)) = (&backups.last, observed.instances.first())
        && is_behind(observed, instance)
    {
        let revision = instance.service.details.map_or(0, |it| it.revision);
        let message = detail(format_args!(
            "etcd is at revision {revision} and the newest snapshot at {}: acknowledged writes are gone; no snapshot is taken, so that none is pushed out; next: restore",
            last.revision
        ));
        return no("RevisionBehindBackups", message);
    }
    if let Some(failed) = &backups.copy_failed {
        return no(failed.reason, failed.why.clone());
    }
    let waits = matches!(backup.trigger, Some(Trigger::Schedule(_))) && backups.due_in.is_none();
    if waits && observed.clock != Clock::Trusted {
        let message = detail(format_args!(
            "the schedule waits for a trusted clock; next: use interval, which needs none"
        ));
        return no("ScheduleWaitsForClock", message);
    }
    if let Some(it) = &backups.verified {
        let message = detail(format_args!(
            "revision {} is verified up to level {}",
            it.revision, it.level
        ));
        return told(Verdict::True, "Verified", message);
    }
    let message = detail(format_args!("there is no verified snapshot yet"));
    told(Verdict::Unknown, "NoSnapshotYet", message)
}
