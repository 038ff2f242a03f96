//! When what failed is tried again.

use crate::clock;
use crate::observed::BackupFailure;

/// Seconds until the next attempt after so many failed ones.
const RETRY: [u64; 4] = [60, 300, 900, 3600];

/// Failed attempts since the last one that succeeded.
#[derive(Default)]
pub(super) struct Attempts {
    pub(super) failed: usize,
    pub(super) last: Option<BackupFailure>,
    /// Seconds since boot.
    pub(super) at: u64,
    /// The first failed one since the last that succeeded, in seconds since boot.
    since: Option<u64>,
    /// Not before, in seconds since boot.
    pub(super) wait: Option<u64>,
}

impl Attempts {
    pub(super) fn record(&mut self, failure: Option<BackupFailure>) {
        self.at = clock::since_boot().as_secs();
        if failure.is_some() {
            self.failed += 1;
            self.since.get_or_insert(self.at);
        } else {
            self.failed = 0;
            self.since = None;
        }
        self.last = failure;
    }

    /// Seconds since the first failed one after the last that succeeded.
    pub(super) fn failing(&self) -> u64 {
        let now = clock::since_boot().as_secs();
        self.since.map_or(0, |it| now.saturating_sub(it))
    }

    pub(super) fn retry_in(&self) -> u64 {
        let now = clock::since_boot().as_secs();
        let wait = self.wait.map_or(0, |it| it.saturating_sub(now));
        wait.max(self.back_off())
    }

    /// Seconds from the last failed attempt to the next one.
    pub(super) fn interval(&self) -> u64 {
        match self.failed {
            0 => 0,
            failed => RETRY[(failed - 1).min(RETRY.len() - 1)],
        }
    }

    fn back_off(&self) -> u64 {
        (self.at + self.interval()).saturating_sub(clock::since_boot().as_secs())
    }
}
