//! Damage that this operator's own readers have found in a member's files: where, what, and what of
//! it is lost.

use core::fmt;

/// Reasons that a proof of damage has, for programs: what a guard in a Pod may say of its volume.
pub const REASONS: [&str; 6] = [
    LOG_DAMAGED,
    LOG_TORN,
    ENTRY_UNREADABLE,
    DATABASE_DAMAGED,
    DATABASE_OLDER,
    DATA_INCOMPLETE,
];
/// A part of the log cannot be read.
pub const LOG_DAMAGED: &str = "WalDamaged";
/// The log ends in a half-written record that etcd does not cut off.
pub const LOG_TORN: &str = "WalTornWrite";
/// An entry is whole and is no entry.
pub const ENTRY_UNREADABLE: &str = "LogEntryUnreadable";
/// A page of the database cannot be read.
pub const DATABASE_DAMAGED: &str = "DatabaseDamaged";
/// Log and database do not fit together.
pub const DATABASE_OLDER: &str = "DatabaseOlderThanLog";
/// A part is not there at all.
pub const DATA_INCOMPLETE: &str = "DataDirIncomplete";

/// The name of a file below the data directory.
pub type FileName = heapless::String<80>;

/// Damage that a reader has found, and that no repair of etcd's own mends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// One of [`REASONS`].
    pub reason: &'static str,
    /// Below the data directory.
    pub file: FileName,
    /// The byte where it begins, where it has a place.
    pub offset: Option<u64>,
    /// What is wrong there, in words without a period.
    pub what: &'static str,
    /// What cannot be read any more.
    pub lost: Lost,
}

/// What cannot be read any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// It cannot be told from the files.
    Unknown,
    /// Entries of the log.
    Entries {
        /// The first one.
        from: u64,
        /// No entry after this one was ever written, as far as the files tell.
        to: Option<u64>,
    },
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if let Some(offset) = self.offset {
            write!(f, " at byte {offset}")?;
        }
        write!(f, ": {}", self.what)?;
        match self.lost {
            Lost::Unknown => Ok(()),
            Lost::Entries { from, to: Some(to) } if to <= from => {
                write!(f, "; lost of the log: at most entry {from}")
            }
            Lost::Entries { from, to: Some(to) } => {
                write!(f, "; lost of the log: entries {from} to at most {to}")
            }
            Lost::Entries { from, to: None } => {
                write!(f, "; lost of the log: entries from {from} on")
            }
        }
    }
}
