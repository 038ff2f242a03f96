//! How old snapshots are, also where nobody knows the time.

use super::manifest::Manifest;
use crate::clock;
use crate::cluster::Timestamp;
use crate::observed::Clock;

/// What ages are counted by: the clock, where it is trusted, and this boot of the machine.
pub struct Ages {
    now: Option<Timestamp>,
    boot_id: String,
    since_boot: u64,
}

impl Ages {
    /// As of now; `now`: the time, if it is trusted.
    pub fn new(now: Option<Timestamp>) -> Self {
        Ages {
            now,
            boot_id: clock::boot_id(),
            since_boot: clock::since_boot().as_secs(),
        }
    }

    /// Whether the time is known.
    pub fn clock(&self) -> Clock {
        match self.now {
            Some(_) => Clock::Trusted,
            None => Clock::Unsynchronised,
        }
    }

    /// Seconds since a snapshot was taken: in this boot by the clock that never jumps, else by the wall
    /// clock.
    pub fn of(&self, manifest: &Manifest) -> Option<u64> {
        if manifest.boot_id == self.boot_id && !self.boot_id.is_empty() {
            return Some(self.since_boot.saturating_sub(manifest.since_boot));
        }
        self.since(manifest.created())
    }

    /// Whether it is older than whoever took it said. Of an unknown age it is not.
    pub fn outlived(&self, manifest: &Manifest) -> bool {
        let age = self.of(manifest);
        matches!((manifest.ttl, age), (Some(ttl), Some(age)) if age >= ttl)
    }

    /// Seconds since a time of a trusted clock; none where that lies ahead.
    pub fn since(&self, created: Option<Timestamp>) -> Option<u64> {
        u64::try_from(self.now?.seconds_since(created?)).ok()
    }
}
