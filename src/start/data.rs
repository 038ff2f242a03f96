//! What lies in a member's data directory, and the room around it.

use super::damage::Damage;
use crate::cluster::{ClusterId, Detail, MemberId};

/// The database file of a data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Database {
    /// There is none, or it has no bytes: the same to etcd.
    Absent,
    /// There is one.
    Present,
}

/// What lies in the data directory, by its names and the first records of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataDir {
    /// Segments of the write-ahead log.
    pub wal_segments: u32,
    /// Whether the log begins at the beginning, so that a database can be rebuilt from it.
    pub wal_from_start: bool,
    /// bbolt's file.
    pub database: Database,
    /// Raft snapshots.
    pub snapshots: u32,
    /// Whose log it is, from its first record. `None` when there is no log or it cannot be read.
    pub owner: Option<(ClusterId, MemberId)>,
    /// The end of the log, read record by record.
    pub log: Log,
    /// What a reader found there that etcd cannot read and does not mend.
    pub damage: Option<Damage>,
    /// It is being read through, and what comes of it decides.
    pub examining: bool,
    /// A part that could not be read, and why: nothing else is known then.
    pub unreadable: Option<Detail>,
    /// Another process holds the database's lock (rule D4).
    pub in_use: bool,
}

impl DataDir {
    /// Nothing was ever written.
    pub const EMPTY: DataDir = DataDir {
        wal_segments: 0,
        wal_from_start: false,
        database: Database::Absent,
        snapshots: 0,
        owner: None,
        log: Log::UNREAD,
        damage: None,
        examining: false,
        unreadable: None,
        in_use: false,
    };

    /// One of its parts is not there, by what lies beside it.
    pub fn lacks_a_part(&self) -> bool {
        matches!(
            self.completeness(),
            Completeness::LogMissing | Completeness::DatabaseMissing
        )
    }

    /// The parts fit together, or what is missing (rule D1: a member without its log starts,
    /// looks healthy and swallows writes).
    pub fn completeness(&self) -> Completeness {
        let database = self.database == Database::Present;
        match self.wal_segments {
            0 if !database && self.snapshots == 0 => Completeness::Empty,
            0 => Completeness::LogMissing,
            _ if database => Completeness::Complete,
            _ if self.snapshots > 0 || !self.wal_from_start => Completeness::DatabaseMissing,
            _ => Completeness::Complete, // etcd rebuilds the database from the log
        }
    }
}

/// The newest segment of the log, as etcd would read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    /// The index of its last whole entry. A torn end, which etcd cuts off itself, does not count.
    pub last_index: Option<u64>,
    /// Bytes of the segment whose torn end etcd will cut off, once it has copied it; 0: nothing is torn.
    pub torn_bytes: u64,
}

impl Log {
    /// It was not looked into.
    pub const UNREAD: Log = Log {
        last_index: None,
        torn_bytes: 0,
    };
}

/// Whether a data directory has all its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completeness {
    /// Never used.
    Empty,
    /// etcd can start from it, as far as names tell.
    Complete,
    /// Database or snapshots without a log.
    LogMissing,
    /// A log that refers to a database which is not there.
    DatabaseMissing,
}

/// Bytes on the data's file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// What etcd may still take, if the system tells.
    pub free: Option<u64>,
    /// What it needs before it cuts a torn end off its log; 0: nothing is torn.
    pub repair: u64,
    /// What it needs to go on where it ended for want of room.
    pub resume: u64,
}

impl Room {
    /// More than anybody asks for.
    pub const AMPLE: Room = Room {
        free: None,
        repair: 0,
        resume: 0,
    };

    /// Whether so much is there. What is not told is taken for enough.
    pub fn holds(&self, bytes: u64) -> bool {
        self.free.is_none_or(|it| it >= bytes)
    }
}
