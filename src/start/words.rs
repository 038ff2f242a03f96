//! Refusals in words: a reason for programs, a sentence and a next step for people.

use core::fmt;

use super::{AddressConflict, How, Refusal, damage};
use crate::cluster::{Detail, detail};
use crate::diagnosis::DISK_FULL;
use crate::version::SHORT_LOG;

/// The data directory is missing.
const DATA_MISSING: &str = "DataDirMissing";
/// The log lacks entries that were acknowledged.
const WRITES_MISSING: &str = "AcknowledgedWritesMissing";

/// The reason of [`Refusal::CrashLoop`].
pub const CRASH_LOOP: &str = "CrashLoop";
/// The reason of [`Refusal::DataNewer`].
pub const DATA_NEWER: &str = "DataNewer";
/// The reason of [`Refusal::LogTooOld`].
pub const LOG_TOO_OLD: &str = "LogTooOld";

/// Whether a restore can end a hold for this reason.
pub fn restore_helps(reason: &str) -> bool {
    damage::REASONS.contains(&reason) || [DATA_MISSING, WRITES_MISSING].contains(&reason)
}

impl Refusal {
    /// One CamelCase word for conditions, metrics and scripts.
    pub fn reason(&self) -> &'static str {
        match self {
            Refusal::Hibernates => "SizeZero",
            Refusal::Restoring => "Restoring",
            Refusal::RecordUnreadable(_) => "RecordUnreadable",
            Refusal::BinaryMissing { .. } => "BinaryMissing",
            Refusal::BinaryWrongArchitecture(_) => "BinaryWrongArchitecture",
            Refusal::BinaryChanged(_) => "BinaryChanged",
            Refusal::VersionOfAnother { .. } => "VersionOfAnother",
            Refusal::DataNewer { .. } => DATA_NEWER,
            Refusal::LogTooOld(_) => LOG_TOO_OLD,
            Refusal::FilesystemUnsafe(_) => "FilesystemUnsafe",
            Refusal::FilesystemReadOnly => "FilesystemReadOnly",
            Refusal::FilesystemStalled => "FilesystemStalled",
            Refusal::StorageMissing => "StorageMissing",
            Refusal::StorageDenied => "StorageDenied",
            Refusal::DocumentOfAnotherCluster(_) => "DocumentOfAnotherCluster",
            Refusal::StorageOfAnotherCluster(_) => "StorageOfAnotherCluster",
            Refusal::DataOfAnotherCluster(_) => "DataOfAnotherCluster",
            Refusal::DataForeign => "DataForeign",
            Refusal::DataOfAnotherEtcd(_) => "DataOfAnotherEtcd",
            Refusal::DataMissing => DATA_MISSING,
            Refusal::LogMissing | Refusal::DatabaseMissing => damage::DATA_INCOMPLETE,
            Refusal::DataInUse => "DataInUse",
            Refusal::DataDamaged(damage) => damage.reason,
            Refusal::DataUnreadable(_) => "DataUnreadable",
            Refusal::Examining => "Examining",
            Refusal::DiskFull { .. } => DISK_FULL,
            Refusal::LogShorterThanSeen { .. } => WRITES_MISSING,
            Refusal::CertificatesUnusable => "CertificatesUnusable",
            Refusal::AddressUnavailable(conflict) if conflict.not_ours => "AddressGone",
            Refusal::AddressUnavailable(conflict) if conflict.denied => "PortDenied",
            Refusal::AddressUnavailable(_) => "PortTaken",
            Refusal::CrashLoop { .. } => CRASH_LOOP,
            Refusal::Unplaceable { reason, .. } => reason,
            Refusal::Other(_) => "GuardRefused",
        }
    }

    /// What a person does next.
    #[expect(clippy::too_many_lines, reason = "a table: one row for each refusal")]
    pub fn next_step(&self) -> Detail {
        match self {
            Refusal::Hibernates => detail(format_args!("set size: 1")),
            Refusal::Restoring => {
                detail(format_args!("start etcd-operator: it finishes the restore"))
            }
            Refusal::RecordUnreadable(_) => detail(format_args!(
                "put the file back from a copy; nothing was touched"
            )),
            Refusal::BinaryMissing {
                version,
                stored: Some(stored),
                born: false,
            } => detail(format_args!(
                "set version: {stored}; or run: etcd-operator etcd install --from FILE {version}"
            )),
            Refusal::VersionOfAnother { .. } => detail(format_args!(
                "start etcd-operator: it starts what the data is for"
            )),
            Refusal::DataNewer { agreed, .. } => detail(format_args!(
                "set version to a patch of {}.{}",
                agreed.major, agreed.minor
            )),
            Refusal::LogTooOld(_) => detail(format_args!(
                "set version to a patch of 3.6: its etcd begins the log anew within {SHORT_LOG} writes"
            )),
            Refusal::BinaryChanged(version) => detail(format_args!(
                "run: etcd-operator etcd install --from FILE {version}"
            )),
            Refusal::BinaryMissing { version, .. } | Refusal::BinaryWrongArchitecture(version) => {
                detail(format_args!(
                    "run: etcd-operator etcd install --from FILE {version}; or mount the disk that holds the store"
                ))
            }
            Refusal::FilesystemUnsafe(_) => detail(format_args!(
                "set storage.path to a directory on a disk, or storage.unsafeFilesystem: allow for a test"
            )),
            Refusal::FilesystemReadOnly | Refusal::FilesystemStalled => {
                detail(format_args!("check the disk and the kernel's log"))
            }
            Refusal::StorageMissing => detail(format_args!(
                "mount the disk, or create the directory that storage.path names"
            )),
            Refusal::StorageDenied => detail(format_args!(
                "give it to the user that the operator runs as: chown -R etcd-operator: DIR; and let that user search the directories above it"
            )),
            Refusal::DocumentOfAnotherCluster(name) => detail(format_args!(
                "set metadata.name back to {name}, or give the new cluster a state directory of its own"
            )),
            Refusal::StorageOfAnotherCluster(_) | Refusal::DataOfAnotherCluster(_) => {
                detail(format_args!("check which disk is mounted at storage.path"))
            }
            Refusal::DataForeign | Refusal::DataOfAnotherEtcd(_) => detail(format_args!(
                "to take the data over: etcdctl snapshot save FILE, stop that etcd, etcd-operator restore --from FILE (of an etcd that does not run: --from DIR); else name an empty directory in storage.path"
            )),
            Refusal::DataMissing => detail(format_args!(
                "mount the disk that holds the data; if the data is lost for good, restore a snapshot"
            )),
            Refusal::LogMissing | Refusal::DatabaseMissing => detail(format_args!(
                "put the missing part back, or restore a snapshot; nothing was touched"
            )),
            Refusal::DataInUse => detail(format_args!(
                "stop the other process; see fuser member/snap/db"
            )),
            Refusal::DataDamaged(_) => detail(format_args!(
                "the data is untouched: etcd-operator restore --dry-run shows the newest snapshot and what would be lost; or put the file back from a copy"
            )),
            Refusal::DataUnreadable(_) => detail(format_args!(
                "mount or repair its disk, and let etcd's user read the data; the operator retries by itself"
            )),
            Refusal::Examining => detail(format_args!("wait until the check ends")),
            Refusal::DiskFull { .. } => detail(format_args!(
                "free some space on the disk that holds the data; etcd then starts by itself"
            )),
            Refusal::LogShorterThanSeen { .. } => detail(format_args!(
                "restore a snapshot; or, to start without those writes, systemctl reload etcd-operator (SIGHUP)"
            )),
            Refusal::CertificatesUnusable => detail(format_args!(
                "put the damaged CA below tls back from a copy; see certs list and the operator's log"
            )),
            Refusal::AddressUnavailable(it) => detail(format_args!("{}", next_step_of_address(it))),
            Refusal::CrashLoop { ending, .. } => match (ending.diagnosis, ending.how) {
                (Some(it), _) => detail(format_args!("{}", it.next_step)),
                (None, How::Signal(_) | How::OutOfMemory) if ending.words.is_empty() => {
                    detail(format_args!(
                        "find out what kills etcd: the kernel's log (dmesg) tells if memory ran out; systemctl reload etcd-operator (SIGHUP) tries again at once"
                    ))
                }
                _ => detail(format_args!(
                    "read etcd's log; systemctl reload etcd-operator (SIGHUP) tries again at once"
                )),
            },
            Refusal::Unplaceable { next, .. } => detail(format_args!("{next}")),
            Refusal::Other(_) => detail(format_args!(
                "read etcd's log; systemctl reload etcd-operator (SIGHUP) tries again"
            )),
        }
    }
}

fn next_step_of_address(conflict: &AddressConflict) -> &'static str {
    if conflict.k3s_embedded {
        "k3s' embedded etcd owns 2379-2382: choose other ports in network, or move k3s to this etcd"
    } else if conflict.not_ours {
        "correct network.listenAddresses"
    } else if conflict.denied {
        "choose a port of 1024 or more in network"
    } else {
        "choose another port in network, or stop what listens there"
    }
}

impl fmt::Display for Refusal {
    #[expect(clippy::too_many_lines, reason = "a table: one row for each refusal")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Hibernates => {
                write!(f, "size is 0: etcd is stopped, everything is kept")
            }
            Refusal::Restoring => write!(f, "a restore is changing the data"),
            Refusal::RecordUnreadable(why) => write!(f, "{why}"),
            Refusal::BinaryMissing {
                version,
                stored: Some(stored),
                ..
            } => write!(f, "etcd {version} is not in the store, {stored} is"),
            Refusal::BinaryMissing { version, .. } => {
                write!(f, "etcd {version} is not in the store")
            }
            Refusal::DataNewer { version, agreed } => write!(
                f,
                "the data is one of etcd {}.{}, which etcd {version} cannot open",
                agreed.major, agreed.minor
            ),
            Refusal::LogTooOld(version) => write!(
                f,
                "the log still has requests that etcd 3.5 wrote, which etcd {version} cannot read"
            ),
            Refusal::VersionOfAnother { version, data } => write!(
                f,
                "the data is etcd {data}'s, and etcd {version} was to be started on it"
            ),
            Refusal::BinaryChanged(version) => write!(
                f,
                "the etcd {version} in the store is not the one that was installed: its checksum is another"
            ),
            Refusal::BinaryWrongArchitecture(version) => {
                write!(
                    f,
                    "the etcd {version} in the store is not a program for this machine"
                )
            }
            Refusal::FilesystemUnsafe(name) => {
                write!(
                    f,
                    "the data lies on {name}, which can lose acknowledged writes"
                )
            }
            Refusal::FilesystemReadOnly => write!(f, "the file system of the data is read-only"),
            Refusal::FilesystemStalled => write!(f, "the file system of the data does not answer"),
            Refusal::StorageMissing => write!(f, "the directory for the data is not there"),
            Refusal::StorageDenied => write!(
                f,
                "the directory for the data is there, and the operator's user may not write to it"
            ),
            Refusal::DocumentOfAnotherCluster(name) => {
                write!(
                    f,
                    "this host keeps the cluster {name}, and the document names another"
                )
            }
            Refusal::StorageOfAnotherCluster(name) => {
                write!(
                    f,
                    "the directory for the data belongs to the cluster {name}"
                )
            }
            Refusal::DataOfAnotherCluster(id) => {
                write!(f, "the data directory belongs to another cluster, {id}")
            }
            Refusal::DataForeign => {
                write!(
                    f,
                    "the directory holds data of an etcd that this operator did not start"
                )
            }
            Refusal::DataOfAnotherEtcd(place) => write!(
                f,
                "an etcd that this operator did not start has its data in {place}: no empty one is created beside it"
            ),
            Refusal::DataMissing => {
                write!(
                    f,
                    "the cluster's data directory is empty, or its disk is not mounted"
                )
            }
            Refusal::LogMissing => {
                write!(
                    f,
                    "the write-ahead log is missing while the database is there: etcd would start and lose writes"
                )
            }
            Refusal::DatabaseMissing => {
                write!(
                    f,
                    "the database is missing and the log alone cannot rebuild it"
                )
            }
            Refusal::DataInUse => write!(f, "another process has the data open"),
            Refusal::DataDamaged(it) => write!(f, "{it}"),
            Refusal::DataUnreadable(why) => write!(f, "the data cannot be read: {why}"),
            Refusal::Examining => write!(
                f,
                "the data is being checked, because etcd's last messages may mean damage"
            ),
            Refusal::DiskFull { free, needed } => write!(
                f,
                "the disk is too full: {} MiB are free and etcd needs {} MiB",
                free >> 20,
                needed.div_ceil(1 << 20)
            ),
            Refusal::LogShorterThanSeen { seen, found } => write!(
                f,
                "the write-ahead log ends at index {found} and once reached {seen}: {} acknowledged writes would be lost",
                seen.saturating_sub(*found)
            ),
            Refusal::CertificatesUnusable => write!(f, "there are no usable certificates"),
            Refusal::AddressUnavailable(it) if it.not_ours => {
                write!(f, "this host has no address {}", it.address)
            }
            Refusal::AddressUnavailable(it) if it.denied => {
                write!(f, "etcd's user may not listen on {}", it.address)
            }
            Refusal::AddressUnavailable(it) if it.holder.is_empty() => {
                write!(f, "{} is taken by another process", it.address)
            }
            Refusal::AddressUnavailable(it) => {
                write!(f, "{} is taken by {}", it.address, it.holder)
            }
            Refusal::CrashLoop {
                failed,
                window_left,
                ending,
            } => write!(
                f,
                "etcd ended {failed} times before it served: {ending}; the next start is tried within {} min",
                window_left.div_ceil(60).max(1)
            ),
            Refusal::Unplaceable { why, .. } => write!(f, "{why}"),
            Refusal::Other(text) => write!(f, "{text}"),
        }
    }
}
