//! Snapshots: taken, proven, kept, copied and brought back.
//!
//! ```text
//! Snapshot RPC -> sha256 -> zstd frames -> NAME.part -> levels 1-3 -> NAME.db.zst, NAME.json
//!                 create                   frames       verify, bolt    local, manifest
//! ```
//!
//! Nothing here decides: when one is due, which ones stay and whether a restore may begin is said by
//! the core. Memory does not grow with the database.

pub mod bolt;
pub mod create;
pub mod frames;
pub mod local;
pub mod manifest;
pub mod name;
pub mod place;
pub mod prune;
pub mod schedule;
pub mod verify;

/// What long work is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// etcd's snapshot arrives.
    Taking,
    /// Bytes are read back and hashed.
    Hashing,
    /// The database is walked.
    Walking,
    /// Bytes go to or come from another place.
    Copying,
    /// The database is unpacked.
    Unpacking,
}

/// How far long work is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// With what.
    pub phase: Phase,
    /// Bytes.
    pub done: u64,
    /// Bytes, as far as known.
    pub total: u64,
}
