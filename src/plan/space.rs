//! Decides when the operator regains space in a database that has reached its quota, and when that would
//! achieve nothing.

use crate::observed::{Instance, Process};
use crate::plan::Hold;

/// Writes are accepted again only where the database is below this share of the quota (rule D28).
const REGAINED_PERCENT: u64 = 80;
/// After an attempt that did not suffice, the next one waits at least this long. Each further attempt
/// doubles the wait, because defragmenting rewrites all live data.
const REST_SECONDS: u64 = 15;
/// The longest wait.
const REST_SECONDS_MAX: u64 = 3600;

/// The quota in force: the running process' quota, else the recorded one.
pub fn quota(instance: &Instance) -> u64 {
    match instance.process {
        Process::Running { quota, .. } => quota,
        _ => instance.facts.identity.as_ref().map_or(0, |it| it.quota),
    }
}

/// The largest database, in bytes, for which the operator accepts writes again under this quota.
pub fn regained(quota: u64) -> u64 {
    quota / 100 * REGAINED_PERCENT
}

/// The smallest quota, in whole MiB, under which a database of this many bytes accepts writes again.
pub fn quota_for(bytes: u64) -> u64 {
    ((bytes / REGAINED_PERCENT * 100) >> 20) + 1
}

/// Whether the database is already far below the quota, so that nothing has to be compacted.
pub(super) fn is_there(instance: &Instance) -> bool {
    let details = instance.service.details;
    details.is_some_and(|it| it.db_size <= regained(quota(instance)))
}

/// Whether compacting and defragmenting can regain space. Without a change since the last attempt they
/// cannot: while the alarm is raised, only a delete changes the revision.
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
