//! When space is regained from a database that has reached its quota, and when that is in vain.

use crate::observed::Instance;
use crate::plan::Hold;

/// Writes are accepted again only where the database is below this share of the quota (rule D28).
pub const REGAINED_PERCENT: u64 = 80;
/// After an attempt that was not enough, the next one waits at least so long, twice as long after
/// each further one: defragmenting writes all live data anew.
const REST_SECONDS: u64 = 15;
/// And at most so long.
const REST_SECONDS_MAX: u64 = 3600;

/// Whether compacting and defragmenting can bring anything. In vain without a change since the
/// last attempt: while the alarm stands, only a delete changes the revision.
pub(super) fn worth_trying(instance: &Instance) -> Result<(), Hold> {
    let (Some(before), Some(now)) = (instance.regain, instance.service.details) else {
        return Ok(());
    };
    let quota = instance.facts.identity.as_ref().map_or(0, |it| it.quota);
    let shrunk = now.db_in_use < before.in_use;
    if shrunk && now.db_in_use <= quota / 100 * REGAINED_PERCENT {
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
