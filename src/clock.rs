//! The wall clock, and whether it can be believed (rules G2, G3). The only place that reads it.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::cluster::Timestamp;
use crate::observed::Clock;
use crate::paths::Paths;

/// A clock that shows an earlier time is wrong: 2026-11-01, when this code was written.
const BUILD_FLOOR: Timestamp = Timestamp(1_793_491_200);

/// Wall-clock time now.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place that reads the clock"
)]
pub fn now() -> Timestamp {
    let seconds = match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_secs()).map_or(i64::MIN, |it| -it),
    };
    Timestamp(seconds)
}

/// RFC 3339, in UTC.
pub fn rfc3339(timestamp: Timestamp) -> String {
    timestamp.to_string()
}

/// Seconds since 1970 of an RFC 3339 text.
pub fn parse_rfc3339(text: &str) -> Option<Timestamp> {
    let format = &time::format_description::well_known::Rfc3339;
    let time = time::OffsetDateTime::parse(text, format).ok()?;
    Some(Timestamp(time.unix_timestamp()))
}

/// Seconds since this machine booted, suspended time included.
pub fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

/// The same in milliseconds.
pub fn milliseconds_since_boot() -> u64 {
    u64::try_from(since_boot().as_millis()).unwrap_or(u64::MAX)
}

/// Measures how long something has been in its present state, by the clock since boot.
#[derive(Debug, Default)]
pub struct Since(Option<(String, u64)>);

impl Since {
    /// The seconds for which the state has been `what`; 0 if it was different at the last call.
    pub fn seconds(&mut self, what: &str) -> u64 {
        self.at(what, since_boot().as_secs())
    }

    fn at(&mut self, what: &str, now: u64) -> u64 {
        match &self.0 {
            Some((same, since)) if same == what => now.saturating_sub(*since),
            _ => {
                self.0 = Some((what.to_owned(), now));
                0
            }
        }
    }

    /// Ends the present state.
    pub fn end(&mut self) {
        self.0 = None;
    }
}

/// The id of this boot; empty if the kernel does not report it.
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// The newest time on record: of this build, of the data, of our own certificates (`dated`). A clock behind
/// it is wrong.
pub fn newest_known(data_dir: &Path, dated: Option<Timestamp>) -> Timestamp {
    let modified = |path: &Path| {
        let time = std::fs::metadata(path).and_then(|it| it.modified()).ok()?;
        let seconds = time.duration_since(UNIX_EPOCH).ok()?.as_secs();
        i64::try_from(seconds).ok().map(Timestamp)
    };
    [
        modified(&data_dir.join("member/snap/db")),
        newest_segment(data_dir).and_then(|it| modified(&it)),
        dated,
    ]
    .into_iter()
    .flatten()
    .fold(BUILD_FLOOR, Timestamp::max)
}

/// The segment of the write-ahead log that etcd writes to.
fn newest_segment(data_dir: &Path) -> Option<std::path::PathBuf> {
    let entries = std::fs::read_dir(data_dir.join("member/wal")).ok()?;
    let segments = entries.flatten().map(|it| it.path());
    segments
        .filter(|it| it.extension().is_some_and(|it| it == "wal"))
        .max()
}

/// The kernel takes its clock for synchronised while it may be wrong by less than this, in microseconds: whatever sets it
/// (timesyncd, chrony, ntpd) says how wrong it may be, and the kernel adds to that as long as nobody does. systemd's
/// timedated tells `NTPSynchronized` by the same rule.
const MAX_ERROR_UNKNOWN: i64 = 16_000_000;

/// Whether the kernel's clock is synchronised. Needs no right: a container asks it, too. On a host timedated tells the
/// same, as the unit's `ProtectClock` refuses this call.
///
/// # Errors
/// The system's, where a filter of system calls refuses to tell.
pub fn kernel_is_synchronised() -> std::io::Result<bool> {
    let mut state = rtime_clock::adjtime::Timex::new();
    rtime_clock::adjtime::adjtimex(&mut state)?;
    Ok(state.0.maxerror < MAX_ERROR_UNKNOWN)
}

/// Whether a time source confirms the clock, and nothing contradicts it.
///
/// A time source confirms it by systemd-timesyncd's marker, or by the kernel's state (chrony, ntpsec). Without either, the
/// clock is never trusted; [`crate::plan::certificate`] allows for that.
pub fn trust(paths: &Paths, now: Timestamp, newest: Timestamp, kernel_synchronised: bool) -> Clock {
    // One day of tolerance: certificates are backdated by a day, and file times may come from a clock
    // in the wrong time zone.
    if now.0 < newest.0 - 86_400 {
        return Clock::BehindKnown { newest };
    }
    if kernel_synchronised || paths.timesync_marker().exists() {
        return Clock::Trusted;
    }
    Clock::Unsynchronised
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn since_counts_from_when_it_became_so() {
        let mut since = Since::default();
        assert_eq!(since.at("a", 10), 0);
        assert_eq!(since.at("a", 25), 15);
        assert_eq!(since.at("b", 30), 0, "something else");
        assert_eq!(since.at("b", 31), 1);
        since.end();
        assert_eq!(since.at("b", 40), 0);
    }
}
