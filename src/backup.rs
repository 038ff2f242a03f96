//! Snapshots: taken, proven, kept, copied and brought back.
//!
//! ```text
//! Snapshot RPC -> sha256 -> zstd frames -> NAME.part -> levels 1-3 -> NAME.db.zst, NAME.json
//!                 create                   frames       verify          local, manifest
//! ```
//!
//! Nothing here decides: when one is due, which ones stay and whether a restore may begin is said by
//! the core. Memory does not grow with the database.

pub mod age;
pub mod copy;
pub mod create;
pub mod directory;
pub mod encrypt;
pub mod frames;
pub mod local;
pub mod manifest;
pub mod name;
pub mod place;
pub mod prune;
pub mod remote;
pub mod restore;
pub mod served;
pub mod source;
pub mod trial;
pub mod trust;
pub mod verify;
mod window;
pub mod work;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// A new file for this user alone. Whatever an interrupted attempt left there is replaced.
fn new_file(path: &Path) -> io::Result<File> {
    let _ = std::fs::remove_file(path);
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    crate::state::inherit_owner_open(&file, path)?;
    Ok(file)
}

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
