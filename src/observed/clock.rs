//! Whether the time of an observation can be believed.

use crate::cluster::Timestamp;

/// Whether the wall clock can be believed (rule G2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Synchronised, and not before anything already dated.
    Trusted,
    /// Not synchronised, as far as this host reports.
    Unsynchronised,
    /// Earlier than something that this operator has already dated.
    BehindKnown {
        /// The newest time known: this build, our certificates, the data.
        newest: Timestamp,
    },
}

impl Clock {
    /// The time `now`, if this clock is trusted.
    pub fn trusted(self, now: Timestamp) -> Option<Timestamp> {
        (self == Clock::Trusted).then_some(now)
    }
}
