//! What is known of snapshots.

use crate::cluster::{Detail, Timestamp};
use crate::spec::backup::DESTINATIONS_MAX;

/// Snapshots, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backups {
    /// Seconds until the next one is due. `None`: the document asks for none, or its schedule waits
    /// for a trusted clock.
    pub due_in: Option<u64>,
    /// Snapshots are being worked on.
    pub busy: bool,
    /// The newest one of this cluster in the first destination.
    pub last: Option<SnapshotSeen>,
    /// The newest one that is verified.
    pub verified: Option<SnapshotSeen>,
    /// How many there are, and their bytes.
    pub kept: (u32, u64),
    /// How long the last one took, verification included.
    pub took_milliseconds: Option<u64>,
    /// The last attempt failed.
    pub failed: Option<BackupFailure>,
    /// Seconds until another attempt.
    pub retry_in: u64,
    /// How many wait to be copied to another destination, and their bytes.
    pub queued: (u32, u64),
    /// The last copy failed.
    pub copy_failed: Option<BackupFailure>,
    /// Seconds since the first failed copy after a successful one. A restart loses this value, but
    /// not the age of the waiting snapshots.
    pub copy_failing: u64,
    /// Seconds until copies are tried again.
    pub copy_retry_in: u64,
    /// Seconds from the last attempt to the next one.
    pub copy_retry_every: u64,
    /// The document's destinations, in its order.
    pub destinations: heapless::Vec<DestinationSeen, DESTINATIONS_MAX>,
    /// When copies were last read back and found whole, for the destination where that is longest ago.
    pub copies_checked: Option<Timestamp>,
    /// It is time to copy, or to read a copy back.
    pub copy_due: bool,
    /// It is time to check again what is kept.
    pub check_due: bool,
    /// Why the last restore that only the document asked for has failed.
    pub restore_failed: Option<Detail>,
    /// Seconds until the operator retries it. `None`: it is not retried by itself, or it did not fail.
    pub restore_retry_in: Option<u64>,
}

/// A snapshot that was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotSeen {
    /// The last revision in it.
    pub revision: i64,
    /// When it was taken, by a trusted clock.
    pub created: Option<Timestamp>,
    /// The level of verification that it reached.
    pub level: u8,
    /// Of its file.
    pub bytes: u64,
    /// Its age in seconds, where that is known.
    pub seconds: Option<u64>,
}

/// A destination of snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DestinationSeen {
    /// The destination as a command line names it.
    pub place: Detail,
    /// The newest verified snapshot of this cluster that is known to lie there.
    pub verified: Option<SnapshotSeen>,
    /// How many wait to be copied there, and their bytes.
    pub queued: (u32, u64),
    /// When the oldest of them was taken, by a trusted clock.
    pub waits_since: Option<Timestamp>,
    /// Seconds that the oldest one has waited; if its age is unknown, seconds that copying has failed.
    pub waits: u64,
}

/// Why something about snapshots failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupFailure {
    /// One CamelCase word.
    pub reason: &'static str,
    /// For people.
    pub why: Detail,
}

impl BackupFailure {
    /// The reason for a failure that ends when the link to the destination comes back.
    pub const LINK_DOWN: &'static str = "LinkDown";
}
