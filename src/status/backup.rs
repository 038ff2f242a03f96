//! The condition BackupHealthy.

use super::{Condition, Kind, Verdict, condition};
use crate::cluster::{Detail, detail};
use crate::observed::{BackupFailure, Backups, Clock, Observed};
use crate::plan::backup::is_behind;
use crate::spec::ClusterSpec;
use crate::spec::backup::{Backup, Place, Trigger};

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
    if let (Some(last), Some(instance)) = (&backups.last, observed.speaker())
        && is_behind(observed, instance)
    {
        let revision = instance.service.details.map_or(0, |it| it.revision);
        let message = detail(format_args!(
            "etcd is at revision {revision}, behind the newest snapshot's {}: acknowledged writes are lost; the operator takes no snapshot now, so that retention removes none; next: restore",
            last.revision
        ));
        return no("RevisionBehindBackups", message);
    }
    let waiting = waiting(backups);
    if let Some((seconds, message)) = &waiting
        && *seconds >= backup.copy_grace
    {
        return no("CopyFailed", message.clone());
    }
    let vanished = backups.destinations.iter().find(|it| it.vanished.is_some());
    if let Some(it) = vanished {
        let (count, revision) = it.vanished.unwrap_or_default();
        let message = detail(format_args!(
            "{count} copies are gone from {}, the newest of revision {revision}, and this operator did not remove them: somebody else did, or a rule of the store",
            it.place
        ));
        return no("CopiesVanished", message);
    }
    if let Some(failed) = backups.copy_failed.as_ref().filter(|_| waiting.is_none()) {
        return no(failed.reason, failed.why.clone());
    }
    let waits = matches!(backup.trigger, Some(Trigger::Schedule(_))) && backups.due_in.is_none();
    if waits && observed.clock != Clock::Trusted {
        let message = detail(format_args!(
            "the schedule waits for a trusted clock; next: set backup.interval, which needs no clock"
        ));
        return no("ScheduleWaitsForClock", message);
    }
    let clear = in_clear(backup);
    match (&backups.verified, waiting) {
        (Some(_), Some((_, message))) => {
            let message = detail(format_args!("{message}{clear}"));
            told(Verdict::True, "CopiesWait", message)
        }
        (Some(it), None) => {
            let message = detail(format_args!(
                "revision {} is verified up to level {}{clear}",
                it.revision, it.level
            ));
            told(Verdict::True, "Verified", message)
        }
        (None, _) => {
            let message = detail(format_args!("there is no verified snapshot yet{clear}"));
            told(Verdict::Unknown, "NoSnapshotYet", message)
        }
    }
}

/// What others can see of the copies, with the field that changes it; empty where it is nothing.
fn in_clear(backup: &Backup) -> Detail {
    let mut each = backup.destinations.iter().enumerate();
    let open = each.find_map(|(index, it)| match &it.place {
        Place::S3(s3) => Some((index, s3.in_clear()?)),
        Place::Local(_) => None,
    });
    open.map_or_else(Detail::new, |(index, why)| {
        detail(format_args!("; backup.destinations[{index}]: {why}"))
    })
}

/// For how many seconds copies have waited for a link, and the message about it. No number in the message
/// changes between two attempts, because an unchanged status is not written again (rule G7).
fn waiting(backups: &Backups) -> Option<(u64, Detail)> {
    let failed = backups.copy_failed.as_ref()?;
    if failed.reason != BackupFailure::LINK_DOWN {
        return None;
    }
    let minutes = backups.copy_retry_every / 60;
    let why = &failed.why;
    let longest = backups.destinations.iter().filter(|it| it.queued.0 > 0);
    let Some(longest) = longest.max_by_key(|it| it.waits) else {
        // No copy waits: reading one back has failed.
        let message = detail(format_args!(
            "no copy can be read back; the operator retries every {minutes} min: {why}"
        ));
        return Some((backups.copy_failing, message));
    };
    let (count, place) = (longest.queued.0, &longest.place);
    let since = longest.waits_since;
    let since = since.map_or_else(Detail::new, |it| detail(format_args!(" since {it}")));
    let message = detail(format_args!(
        "{count} to be copied to {place}, waiting{since}; the operator retries every {minutes} min: {why}"
    ));
    Some((longest.waits, message))
}
