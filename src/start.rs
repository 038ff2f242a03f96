//! May etcd be started here? One predicate, asked by the guard before every start and by the
//! planner, from facts that an adapter gathered.
//!
//! It knows no file and no clock. Rules B9, C6, D1-D3, D5, D9, A10.

pub mod damage;
mod data;
mod history;
mod words;

use crate::cluster::{ClusterId, ClusterName, Detail, MemberId, MemberName};
use crate::version::Version;

use damage::Damage;
pub use data::{Completeness, DataDir, Database, Log, Room};
pub use history::{Ending, How, LastWords, StartHistory};
pub use words::restore_helps;

/// Starts that may fail in a row before the guard refuses the next one (rule D9).
pub const START_BUDGET: u32 = 3;
/// Failed starts older than this many seconds no longer count.
pub const START_WINDOW_SECONDS: u64 = 600;

/// What is latched when a cluster is born on this host, and the ids that etcd gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The document's name.
    pub cluster: ClusterName,
    /// This host's member.
    pub member: MemberName,
    /// The version that the cluster was born with or last upgraded to.
    pub version: Version,
    /// The database quota in bytes (rule D27).
    pub quota: u64,
    /// Given by etcd; known once the member has served for the first time.
    pub served: Option<(ClusterId, MemberId)>,
}

/// The file system under the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filesystem {
    /// A disk of this machine.
    Disk,
    /// One that can lose acknowledged writes; its name.
    Unsafe(&'static str),
    /// It could not be told.
    Unknown,
}

/// Whether a directory can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writable {
    /// Yes.
    Yes,
    /// Mounted read-only.
    ReadOnly,
    /// The directory is not there.
    Missing,
    /// It is there, and this user has no right to write to it.
    Denied,
    /// A request got no answer within its deadline: frozen or hanging.
    Stalled,
}

/// The etcd binary for the version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    /// There, for this architecture.
    Ready,
    /// Not in the store; the newest one there that a cluster may be born with.
    Missing(Option<Version>),
    /// For another architecture, or no program at all (rule C6).
    WrongArchitecture,
}

/// Whether the certificates that etcd will read are usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificatesUsable {
    /// Each pair belongs together and is valid now, or can be made before the start.
    Yes,
    /// Not, and they cannot be made.
    No,
}

/// An address that etcd shall listen on and cannot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressConflict {
    /// `IP:port`.
    pub address: heapless::String<64>,
    /// The host has no such address (else: the port is taken).
    pub not_ours: bool,
    /// This user may not listen there.
    pub denied: bool,
    /// Who holds the port, as far as it can be seen.
    pub holder: heapless::String<64>,
    /// A k3s with an embedded etcd keeps its data on this host (rule A10).
    pub k3s_embedded: bool,
}

/// Everything that the predicate looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// What the document asks for.
    pub cluster: ClusterName,
    /// The document's size is 0.
    pub hibernates: bool,
    /// A restore is changing the data right now.
    pub restoring: bool,
    /// A record that cannot be read: what it says is unknown, which is not the same as nothing.
    pub unreadable: Option<Detail>,
    /// The version to be started.
    pub version: Version,
    /// The document accepts a file system that can lose data.
    pub unsafe_filesystem_allowed: bool,
    /// From the state directory. Where it is lost, the copy beside the data counts.
    pub identity: Option<Identity>,
    /// The copy beside the data.
    pub marker: Option<Identity>,
    /// The data directory.
    pub data: DataDir,
    /// Where an etcd that is not ours has its data, at or beside the place of ours.
    pub strange_etcd: Option<Detail>,
    /// The room for it.
    pub room: Room,
    /// The file system under it.
    pub filesystem: Filesystem,
    /// Whether it can be written.
    pub writable: Writable,
    /// The binary.
    pub binary: Binary,
    /// The certificates.
    pub certificates: CertificatesUsable,
    /// The first address that is not to be had.
    pub conflict: Option<AddressConflict>,
    /// The last Raft index that this cluster was seen to have committed, in this boot.
    pub seen: Option<u64>,
    /// Earlier starts.
    pub history: StartHistory,
}

/// How etcd may be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With the data that is there, or with none for a cluster that never served.
    Go,
    /// The very first start was cut short before etcd had a log: what it left is set aside by
    /// rename, then etcd starts with nothing. Only for a cluster that never served.
    SetAsideThenGo,
}

/// Why etcd is not started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The document's size is 0, and somebody else than the operator asked for a start.
    Hibernates,
    /// A restore is changing the data.
    Restoring,
    /// A record of the member cannot be read.
    RecordUnreadable(Detail),
    /// The store has no etcd of this version.
    BinaryMissing {
        /// The one that is wanted.
        version: Version,
        /// The newest one there that a cluster may be born with.
        stored: Option<Version>,
        /// The cluster was born with the one that is wanted.
        born: bool,
    },
    /// The binary is for another machine.
    BinaryWrongArchitecture(Version),
    /// The file system can lose acknowledged writes.
    FilesystemUnsafe(&'static str),
    /// Read-only.
    FilesystemReadOnly,
    /// No answer from the file system.
    FilesystemStalled,
    /// The directory named by storage.path is not there.
    StorageMissing,
    /// It is there, and etcd's user has no right to write to it.
    StorageDenied,
    /// The document names another cluster than the one that lives here.
    DocumentOfAnotherCluster(ClusterName),
    /// The data's directory belongs to another cluster (a wrong disk).
    StorageOfAnotherCluster(ClusterName),
    /// The log belongs to another cluster id.
    DataOfAnotherCluster(ClusterId),
    /// Data that this operator did not make.
    DataForeign,
    /// The data of another etcd lies where a cluster would be born empty; where.
    DataOfAnotherEtcd(Detail),
    /// The cluster has served, and its data directory is empty.
    DataMissing,
    /// Database without log.
    LogMissing,
    /// Log without its database.
    DatabaseMissing,
    /// Another process has the database open.
    DataInUse,
    /// A reader found it in the files, as they lie now.
    DataDamaged(Damage),
    /// A part of the data cannot be read: by an error of the disk, a right, or since it is no file.
    DataUnreadable(Detail),
    /// The data is being read through.
    Examining,
    /// etcd needs more room than there is: to mend its log, or to go on where it ended.
    DiskFull {
        /// Bytes.
        free: u64,
        /// Bytes.
        needed: u64,
    },
    /// The log ends before what it was seen to hold: acknowledged writes would be gone.
    LogShorterThanSeen {
        /// The last index seen.
        seen: u64,
        /// The last index found.
        found: u64,
    },
    /// No usable certificates, and they could not be made.
    CertificatesUnusable,
    /// An address is not to be had.
    AddressUnavailable(AddressConflict),
    /// Too many failed starts.
    CrashLoop {
        /// How many.
        failed: u32,
        /// Seconds until the next one may be tried.
        window_left: u64,
        /// How the last one ended.
        ending: Ending,
    },
    /// The home gives the member no place, or something of our name there is not ours.
    Unplaceable {
        /// One CamelCase word.
        reason: &'static str,
        /// For people.
        why: Detail,
        /// What a person does next.
        next: &'static str,
    },
    /// What the guard wrote and this version cannot parse.
    Other(Detail),
}

impl Refusal {
    /// Whether the cause may go away without a person and without the operator: a disk that is
    /// mounted late, a port that is given back, the window of the crash-loop budget. The guard then
    /// waits; otherwise it ends, and nobody but the operator or a person asks it again.
    pub fn may_pass(&self) -> bool {
        match self {
            Refusal::Hibernates
            | Refusal::RecordUnreadable(_)
            | Refusal::BinaryMissing { .. }
            | Refusal::BinaryWrongArchitecture(_)
            | Refusal::DocumentOfAnotherCluster(_)
            | Refusal::StorageOfAnotherCluster(_)
            | Refusal::DataOfAnotherCluster(_)
            | Refusal::DataForeign
            | Refusal::DataOfAnotherEtcd(_)
            | Refusal::LogMissing
            | Refusal::DatabaseMissing
            | Refusal::DataDamaged(_)
            | Refusal::LogShorterThanSeen { .. } => false,
            // Below a mount point that is not mounted yet lies what the system was booted from.
            Refusal::FilesystemUnsafe(_)
            | Refusal::Restoring
            | Refusal::FilesystemReadOnly
            | Refusal::FilesystemStalled
            | Refusal::StorageMissing
            | Refusal::StorageDenied
            | Refusal::DataMissing
            | Refusal::DataInUse
            | Refusal::DataUnreadable(_)
            | Refusal::Examining
            | Refusal::DiskFull { .. }
            | Refusal::CertificatesUnusable
            | Refusal::AddressUnavailable(_)
            | Refusal::CrashLoop { .. }
            | Refusal::Unplaceable { .. }
            | Refusal::Other(_) => true,
        }
    }
}

/// Whether the whole data has to be read before it can be said whether etcd may start: it ended with
/// words of damage, or again and again with words that nobody knows. Not at any other start, which it
/// would make slower.
pub fn is_to_be_examined(history: &StartHistory) -> bool {
    let unexplained = history.ending.diagnosis.is_none() && !history.ending.words.is_empty();
    history.ending.hints_at_damage() || history.failed >= START_BUDGET && unexplained
}

/// Whether etcd may be started, and how. Total: every combination of facts has one answer.
pub fn verdict(facts: &Facts) -> Result<Start, Refusal> {
    if facts.hibernates {
        return Err(Refusal::Hibernates);
    }
    if facts.restoring {
        return Err(Refusal::Restoring);
    }
    check_surroundings(facts)?;
    let start = check_data(facts)?;
    check_log(facts)?;
    check_room(facts)?;
    if facts.certificates == CertificatesUsable::No {
        return Err(Refusal::CertificatesUnusable);
    }
    if let Some(conflict) = &facts.conflict {
        return Err(Refusal::AddressUnavailable(conflict.clone()));
    }
    if facts.history.failed >= START_BUDGET {
        let StartHistory {
            failed,
            window_left,
            ending,
        } = facts.history.clone();
        return Err(Refusal::CrashLoop {
            failed,
            window_left,
            ending,
        });
    }
    Ok(start)
}

fn check_surroundings(facts: &Facts) -> Result<(), Refusal> {
    match facts.writable {
        Writable::Missing => return Err(Refusal::StorageMissing),
        Writable::Denied => return Err(Refusal::StorageDenied),
        Writable::ReadOnly => return Err(Refusal::FilesystemReadOnly),
        Writable::Stalled => return Err(Refusal::FilesystemStalled),
        Writable::Yes => {}
    }
    if let Some(why) = &facts.unreadable {
        return Err(Refusal::RecordUnreadable(why.clone()));
    }
    if let Filesystem::Unsafe(name) = facts.filesystem
        && !facts.unsafe_filesystem_allowed
    {
        return Err(Refusal::FilesystemUnsafe(name)); // rule D5
    }
    match facts.binary {
        Binary::Ready => Ok(()),
        Binary::Missing(stored) => Err(Refusal::BinaryMissing {
            version: facts.version,
            stored,
            born: facts.identity.is_some() || facts.marker.is_some(),
        }),
        Binary::WrongArchitecture => Err(Refusal::BinaryWrongArchitecture(facts.version)),
    }
}

/// What etcd would find only after it has written to its database, and what it never finds: where
/// whole sectors of the log are zero, it takes them for a torn write, cuts the log and starts.
///
/// Only what a reader of ours has found counts: etcd's words are the same for what it mends itself.
fn check_log(facts: &Facts) -> Result<(), Refusal> {
    if facts.data.examining {
        return Err(Refusal::Examining);
    }
    if let Some(damage) = &facts.data.damage {
        return Err(Refusal::DataDamaged(damage.clone()));
    }
    match (facts.seen, facts.data.log.last_index) {
        (Some(seen), Some(found)) if found < seen => {
            Err(Refusal::LogShorterThanSeen { seen, found })
        }
        _ => Ok(()),
    }
}

/// A full disk is no damage, and a start on it no failed one: etcd is started again when there is room.
/// One that has not ended for want of room is not kept from starting: it may need none.
fn check_room(facts: &Facts) -> Result<(), Refusal> {
    let Room {
        free,
        repair,
        resume,
    } = facts.room;
    let needed = if facts.history.ending.for_want_of_room() {
        resume
    } else {
        repair
    };
    match free {
        Some(free) if free < needed => Err(Refusal::DiskFull { free, needed }),
        _ => Ok(()),
    }
}

/// Nothing is born beside the data of another etcd: whoever named that directory meant its data.
fn check_birth(facts: &Facts) -> Result<Start, Refusal> {
    match &facts.strange_etcd {
        Some(place) => Err(Refusal::DataOfAnotherEtcd(place.clone())),
        None => Ok(Start::Go),
    }
}

fn check_data(facts: &Facts) -> Result<Start, Refusal> {
    if let Some(why) = &facts.data.unreadable {
        return Err(Refusal::DataUnreadable(why.clone()));
    }
    let completeness = facts.data.completeness();
    // Where the state directory was lost, the copy beside the data says who lives there.
    let Some(identity) = facts.identity.as_ref().or(facts.marker.as_ref()) else {
        // Nothing is known of a cluster here: whatever lies there is not ours (rule A10).
        return match completeness {
            Completeness::Empty => check_birth(facts),
            _ => Err(Refusal::DataForeign),
        };
    };
    if identity.cluster != facts.cluster {
        let lives_here = identity.cluster.clone();
        return Err(match facts.identity {
            Some(_) => Refusal::DocumentOfAnotherCluster(lives_here),
            None => Refusal::StorageOfAnotherCluster(lives_here),
        });
    }
    match &facts.marker {
        Some(marker) if marker.cluster != identity.cluster => {
            return Err(Refusal::StorageOfAnotherCluster(marker.cluster.clone()));
        }
        Some(_) => {}
        None if completeness != Completeness::Empty => return Err(Refusal::DataForeign),
        None => {}
    }
    if facts.data.in_use {
        return Err(Refusal::DataInUse);
    }
    if let (Some((cluster, _)), Some((owner, _))) = (identity.served, facts.data.owner)
        && cluster != owner
    {
        return Err(Refusal::DataOfAnotherCluster(owner)); // rule B9
    }
    match (completeness, identity.served) {
        (Completeness::Complete, _) => Ok(Start::Go),
        (Completeness::Empty, None) => check_birth(facts),
        (Completeness::Empty, Some(_)) => Err(Refusal::DataMissing), // rule D3
        // The power went before the first log existed: nobody was ever served.
        (Completeness::LogMissing, None) if facts.data.snapshots == 0 => Ok(Start::SetAsideThenGo),
        (Completeness::LogMissing, _) => Err(Refusal::LogMissing),
        (Completeness::DatabaseMissing, _) => Err(Refusal::DatabaseMissing),
    }
}
