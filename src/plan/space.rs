//! When space is regained from a database that has reached its quota, and when that is in vain.

use crate::observed::{Instance, Process};
use crate::plan::Hold;

/// Writes are accepted again only where the database is below this share of the quota (rule D28).
const REGAINED_PERCENT: u64 = 80;
/// After an attempt that was not enough, the next one waits at least so long, twice as long after
/// each further one: defragmenting writes all live data anew.
const REST_SECONDS: u64 = 15;
/// And at most so long.
const REST_SECONDS_MAX: u64 = 3600;

/// The quota that is in force: of the process that runs, else the latched one.
pub fn quota(instance: &Instance) -> u64 {
    match instance.process {
        Process::Running { quota, .. } => quota,
        _ => instance.facts.identity.as_ref().map_or(0, |it| it.quota),
    }
}

/// The largest database for which writes are accepted again below this quota.
pub fn regained(quota: u64) -> u64 {
    quota / 100 * REGAINED_PERCENT
}

/// The smallest quota, in whole MiB, below which so many bytes would be accepted.
pub fn quota_for(bytes: u64) -> u64 {
    ((bytes / REGAINED_PERCENT * 100) >> 20) + 1
}

/// Whether the database is far below the quota already: nothing has to be compacted.
pub(super) fn is_there(instance: &Instance) -> bool {
    let details = instance.service.details;
    details.is_some_and(|it| it.db_size <= regained(quota(instance)))
}

/// Whether compacting and defragmenting can bring anything. In vain without a change since the
/// last attempt: while the alarm stands, only a delete changes the revision.
pub(super) fn worth_trying(instance: &Instance) -> Result<(), Hold> {
    let (Some(before), Some(now)) = (instance.regain, instance.service.details) else {
        return Ok(());
    };
    let quota = quota(instance);
    let shrunk = now.db_in_use < before.in_use;
    if shrunk && now.db_in_use <= regained(quota) {
        return Ok(());
    }
    let doublings = before.attempts.saturating_sub(1).min(16);
    let rest = (REST_SECONDS << doublings).min(REST_SECONDS_MAX);
    if (shrunk || now.revision != before.revision) && before.seconds >= rest {
        return Ok(());
    }
    Err(Hold::LiveDataFillsQuota {
        in_use: before.in_use,
        quota,
    })
}
