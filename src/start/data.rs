//! Describes a member's data directory and the free space on its disk.

use super::damage::Damage;
use crate::cluster::{ClusterId, Detail, MemberId};
use crate::version::Version;

/// The database file of a data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Database {
    /// There is none, or it is empty, which is the same for etcd.
    Absent,
    /// There is one.
    Present,
}

/// The contents of the data directory, by the names of its files and the first records of the log.
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
    /// The version on which the cluster has agreed, of which only the line counts: no older line opens the data. None: the
    /// data says nothing of it, or nobody has read it.
    pub agreed: Option<Version>,
    /// The end of the log, read record by record.
    pub log: Log,
    /// Damage that a reader found and that etcd does not repair.
    pub damage: Option<Damage>,
    /// The data is being examined, and the result decides.
    pub examining: bool,
    /// A part that could not be read, and why. Nothing else is known then.
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
        agreed: None,
        log: Log::UNREAD,
        damage: None,
        examining: false,
        unreadable: None,
        in_use: false,
    };

    /// Whether a part is missing although the others exist.
    pub fn lacks_a_part(&self) -> bool {
        matches!(
            self.completeness(),
            Completeness::LogMissing | Completeness::DatabaseMissing
        )
    }

    /// Whether the parts fit together, or which one is missing (rule D1: a member without its log starts,
    /// looks healthy and loses writes).
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
    /// Behind the last raft snapshot it has requests of the v2 kind, of etcd 3.5. 3.6 reads them; 3.7 ends at the first.
    pub replays_v2: bool,
}

impl Log {
    /// Nobody has read it.
    pub const UNREAD: Log = Log {
        last_index: None,
        torn_bytes: 0,
        replays_v2: false,
    };
}

/// Whether a data directory has all its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completeness {
    /// There are no parts.
    Empty,
    /// etcd can start from it, judged by the names of the files.
    Complete,
    /// Database or snapshots without a log.
    LogMissing,
    /// A log that refers to a database which is not there.
    DatabaseMissing,
}

/// Bytes on the data's file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes that etcd may still use, if the system reports them.
    pub free: Option<u64>,
    /// Bytes that it needs before it cuts a torn end off its log; 0: nothing is torn.
    pub repair: u64,
    /// Bytes that it needs to start again after it ended because the disk was full.
    pub resume: u64,
    /// Bytes that a member needs to join others, whose data may lie on the same disk.
    pub join: u64,
}

impl Room {
    /// Enough for every start.
    pub const AMPLE: Room = Room {
        free: None,
        repair: 0,
        resume: 0,
        join: 0,
    };

    /// Whether this many bytes are free. An unknown amount counts as enough.
    pub fn holds(&self, bytes: u64) -> bool {
        self.free.is_none_or(|it| it >= bytes)
    }
}
