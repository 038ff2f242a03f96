//! Decides whether etcd may start here. The guard asks this one predicate before every start, and
//! the planner asks it, too. An adapter gathers the facts.
//!
//! The predicate reads no file and no clock. Rules B9, C6, D1-D3, D5, D9, A10.

mod addresses;
pub mod damage;
mod data;
mod history;
mod identity;
mod patience;
mod words;

use crate::cluster::{ClusterId, ClusterName, Detail};
use crate::version::{Line, Version};

pub use addresses::{
    AddressConflict, BACK_SECONDS, NETWORK_SECONDS, Returned, Unserved, does_without, of_the_host,
};
use damage::Damage;
pub use data::{Completeness, DataDir, Database, Log, Room};
pub use history::{Ending, How, LastWords, StartHistory};
pub use identity::{Identity, version};
pub use patience::{READ_BYTES, SERVES_WITHIN_SECONDS, serves_within};
pub use words::{CRASH_LOOP, DATA_NEWER, LOG_TOO_OLD, restore_helps};

/// Starts that may fail in a row before the guard refuses the next one (rule D9).
pub const START_BUDGET: u32 = 3;
/// Failed starts older than this many seconds no longer count.
pub const START_WINDOW_SECONDS: u64 = 600;

/// The file system under the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filesystem {
    /// A disk of this machine.
    Disk,
    /// A file system that can lose acknowledged writes, by its name.
    Unsafe(&'static str),
    /// The file system could not be determined.
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
    /// Not in the store. Holds the newest version there that a cluster may be born with.
    Missing(Option<Version>),
    /// For another architecture, or no program at all (rule C6).
    WrongArchitecture,
    /// Another one than was installed: its checksum differs from the one that was written down then.
    Changed,
}

impl Binary {
    /// Why it cannot be started. `born`: its cluster lives with this version, or would come from another one.
    pub fn refusal(self, version: Version, born: bool) -> Option<Refusal> {
        match self {
            Binary::Ready => None,
            Binary::Missing(stored) => Some(Refusal::BinaryMissing {
                version,
                stored,
                born,
            }),
            Binary::WrongArchitecture => Some(Refusal::BinaryWrongArchitecture(version)),
            Binary::Changed => Some(Refusal::BinaryChanged(version)),
        }
    }
}

/// Whether the certificates that etcd will read are usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificatesUsable {
    /// Each pair belongs together and is valid now, or can be made before the start.
    Yes,
    /// They are not usable and cannot be made.
    No,
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
    /// A record that cannot be read. Its content is unknown, which is not the same as absent.
    pub unreadable: Option<Detail>,
    /// The version to be started.
    pub version: Version,
    /// The document accepts a file system that can lose data.
    pub unsafe_filesystem_allowed: bool,
    /// The identity in the state directory. If that directory is lost, the copy beside the data counts.
    pub identity: Option<Identity>,
    /// The copy beside the data.
    pub marker: Option<Identity>,
    /// The data directory.
    pub data: DataDir,
    /// Where another etcd, which is not ours, keeps its data: at or beside our data directory.
    pub strange_etcd: Option<Detail>,
    /// The free space for the data.
    pub room: Room,
    /// The file system under the data.
    pub filesystem: Filesystem,
    /// Whether the data can be written.
    pub writable: Writable,
    /// The binary.
    pub binary: Binary,
    /// The certificates.
    pub certificates: CertificatesUsable,
    /// The first address that is not available.
    pub conflict: Option<AddressConflict>,
    /// The last Raft index that this cluster was seen to have committed, in this boot.
    pub seen: Option<u64>,
    /// Earlier starts.
    pub history: StartHistory,
}

impl Facts {
    /// Who lives here: by the state directory, or, where that was lost, by the copy beside the data.
    pub fn born(&self) -> Option<&Identity> {
        self.identity.as_ref().or(self.marker.as_ref())
    }
}

/// How etcd may be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With the data that is there, or with none for a cluster that never served.
    Go,
    /// With no data, as a member that the cluster's member list already has.
    Join,
    /// The first start was cut short before etcd had a log. The guard sets the leftovers aside by
    /// rename, then starts etcd without data. Only for a cluster that never served.
    SetAsideThenGo,
}

/// Why etcd is not started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The document's size is 0, and something other than the operator asked for a start.
    Hibernates,
    /// A restore is changing the data.
    Restoring,
    /// A record of the member cannot be read.
    RecordUnreadable(Detail),
    /// The store has no etcd of this version.
    BinaryMissing {
        /// The wanted version.
        version: Version,
        /// The newest version in the store that a cluster may be born with.
        stored: Option<Version>,
        /// The cluster was born with the wanted version.
        born: bool,
    },
    /// The binary is for another machine.
    BinaryWrongArchitecture(Version),
    /// The binary is not the one that was installed.
    BinaryChanged(Version),
    /// The data is another version's, and no change to this one is under way.
    VersionOfAnother {
        /// What was to be started.
        version: Version,
        /// What the identity beside the data names.
        data: Version,
    },
    /// The data is a newer line's: etcd would end with a fatal message.
    DataNewer {
        /// What was to be started.
        version: Version,
        /// On which version the cluster has agreed.
        agreed: Version,
    },
    /// The log has requests of etcd 3.5's kind, at which this etcd would end.
    LogTooOld(Version),
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
    /// Another etcd's data lies, at this place, where a cluster would be born empty.
    DataOfAnotherEtcd(Detail),
    /// The cluster has served, and its data directory is empty.
    DataMissing,
    /// Database without log.
    LogMissing,
    /// Log without its database.
    DatabaseMissing,
    /// Another process has the database open.
    DataInUse,
    /// A reader of ours found damage in the files as they are now.
    DataDamaged(Damage),
    /// A part of the data cannot be read: a disk error, a missing right, or not a file.
    DataUnreadable(Detail),
    /// The data is still being read completely.
    Examining,
    /// etcd needs more space than is free: to repair its log, or to continue where it ended.
    DiskFull {
        /// Bytes.
        free: u64,
        /// Bytes.
        needed: u64,
    },
    /// The log ends earlier than the operator saw it reach: acknowledged writes would be lost.
    LogShorterThanSeen {
        /// The last index seen.
        seen: u64,
        /// The last index found.
        found: u64,
    },
    /// No usable certificates, and they could not be made.
    CertificatesUnusable,
    /// An address is not available.
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
    /// The mode gives the member no place, or an object there with our name is not ours.
    Unplaceable {
        /// One CamelCase word.
        reason: &'static str,
        /// For people.
        why: Detail,
        /// What a person does next.
        next: &'static str,
    },
    /// A cause without a variant of its own, or a refusal that this version cannot parse.
    Other(Detail),
}

impl Refusal {
    /// Whether the cause may go away without a person and without the operator: a disk that is
    /// mounted late, a port that becomes free, the window of the crash-loop budget. If so, the
    /// guard waits. If not, the guard exits, and only the operator or a person starts it again.
    pub fn may_pass(&self) -> bool {
        match self {
            Refusal::Hibernates
            | Refusal::RecordUnreadable(_)
            | Refusal::BinaryMissing { .. }
            | Refusal::BinaryWrongArchitecture(_)
            | Refusal::VersionOfAnother { .. }
            | Refusal::DataNewer { .. }
            | Refusal::LogTooOld(_)
            | Refusal::DocumentOfAnotherCluster(_)
            | Refusal::StorageOfAnotherCluster(_)
            | Refusal::DataOfAnotherCluster(_)
            | Refusal::DataForeign
            | Refusal::DataOfAnotherEtcd(_)
            | Refusal::LogMissing
            | Refusal::DatabaseMissing
            | Refusal::DataDamaged(_)
            | Refusal::LogShorterThanSeen { .. } => false,
            // Before a disk is mounted, its mount point shows the file system that the host booted from.
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
            // Somebody may be at it.
            | Refusal::BinaryChanged(_)
            | Refusal::CertificatesUnusable
            | Refusal::AddressUnavailable(_)
            | Refusal::CrashLoop { .. }
            | Refusal::Unplaceable { .. }
            | Refusal::Other(_) => true,
        }
    }
}

/// Whether all of the data must be read before the verdict. That is so if etcd's last messages
/// reported damage, or if etcd failed repeatedly with unknown messages. Other starts skip this
/// reading, because it would slow them down.
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
    let refusal = facts.binary.refusal(facts.version, facts.born().is_some());
    refusal.map_or(Ok(()), Err)
}

/// Checks for damage that etcd would find only after it has written to its database, and for damage
/// that etcd never finds: it takes zeroed sectors of the log for a torn write, cuts the log and starts.
///
/// Only findings of our own reader count: etcd uses the same words for damage that it repairs itself.
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

/// Checks the free space. A full disk is not damage, and a start on it is not a failed start: the
/// guard starts etcd when there is space. If the last end had another cause, only the space to
/// repair the log is required, because etcd may need no more.
///
/// A member that joins others leaves room for them: volumes of one node often share its disk, whatever their claims ask for.
fn check_room(facts: &Facts) -> Result<(), Refusal> {
    let Room {
        free,
        repair,
        resume,
        join,
    } = facts.room;
    let joins = facts
        .born()
        .is_some_and(|it| it.joined && it.served.is_none())
        && facts.data.completeness() == Completeness::Empty;
    let needed = if joins && facts.filesystem == Filesystem::Disk {
        join
    } else if facts.history.ending.for_want_of_room() {
        resume
    } else {
        repair
    };
    match free {
        Some(free) if free < needed => Err(Refusal::DiskFull { free, needed }),
        _ => Ok(()),
    }
}

/// Refuses a birth beside another etcd's data: a person who named that directory meant that data.
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
    // If the state directory was lost, the copy beside the data says which cluster lives here.
    let Some(identity) = facts.born() else {
        // No cluster is known here, so any data here is not ours (rule A10).
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
    if identity.served.is_some() && !identity.may_open(facts.version) {
        return Err(Refusal::VersionOfAnother {
            version: facts.version,
            data: identity.version,
        });
    }
    // Rule D23.
    if let Some(agreed) = facts.data.agreed
        && agreed.is_newer_line_than(facts.version)
    {
        return Err(Refusal::DataNewer {
            version: facts.version,
            agreed,
        });
    }
    if facts.data.log.replays_v2 && facts.version.line() >= Some(Line::V3_7) {
        return Err(Refusal::LogTooOld(facts.version)); // rule D22
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
        // The power failed before the first log existed, so the cluster never served a client.
        (Completeness::LogMissing, None) if facts.data.snapshots == 0 => Ok(Start::SetAsideThenGo),
        (Completeness::LogMissing, _) => Err(Refusal::LogMissing),
        (Completeness::DatabaseMissing, _) => Err(Refusal::DatabaseMissing),
    }
}
