//! Why etcd ended, from its own last words (rule D9): fatal texts, what each means, what to do.
//!
//! A text is a hint, never a fact: etcd says the same of a torn log that it then repairs. Whether data
//! is damaged is for readers of the data to say. It knows no files: callers hand it text.

/// What a fatal text hints at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The data may be damaged: a reason to read it.
    Damage,
    /// This member or its configuration does not fit its cluster; a person decides.
    Misfit,
    /// Something outside etcd that may pass: memory, space, a port.
    Surroundings,
}

/// A known way to end.
#[derive(Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// What etcd writes, verbatim and across its versions.
    pub text: &'static str,
    /// One CamelCase word for conditions, metrics and tests.
    pub reason: &'static str,
    /// What it says about the data.
    pub kind: Kind,
    /// What it means, in a sentence without a period.
    pub meaning: &'static str,
    /// What a person does next.
    pub next_step: &'static str,
}

/// Where etcd says that data is damaged which its readers here find sound.
const LOOK: &str = "read etcd's log; systemctl reload etcd-operator (SIGHUP) tries again, and restore brings a snapshot back";

/// The reason of an end for want of room.
pub const DISK_FULL: &str = "DiskFull";

/// The table of rule D9.
pub const DIAGNOSES: &[Diagnosis] = &[
    Diagnosis {
        text: "illegal tag 0",
        reason: "WalTornWrite",
        kind: Kind::Damage,
        meaning: "the write-ahead log ends in a half-written record (power loss while writing)",
        next_step: LOOK,
    },
    Diagnosis {
        text: "unmarshal should never fail",
        reason: "LogEntryUnreadable",
        kind: Kind::Damage,
        meaning: "the write-ahead log holds an entry that this etcd cannot read",
        next_step: LOOK,
    },
    Diagnosis {
        text: "cannot parse invalid wire-format data", // etcd 3.7's words for the same
        reason: "WalTornWrite",
        kind: Kind::Damage,
        meaning: "the write-ahead log ends in a half-written record (power loss while writing)",
        next_step: LOOK,
    },
    Diagnosis {
        text: "max entry size limit exceeded",
        reason: "WalDamaged",
        kind: Kind::Damage,
        meaning: "the write-ahead log holds a record of impossible length",
        next_step: LOOK,
    },
    Diagnosis {
        text: "crc mismatch",
        reason: "WalDamaged",
        kind: Kind::Damage,
        meaning: "the write-ahead log fails its checksum",
        next_step: LOOK,
    },
    Diagnosis {
        text: "failed to find database snapshot file",
        reason: "DatabaseOlderThanLog",
        kind: Kind::Damage,
        meaning: "the database is missing or older than the log says",
        next_step: LOOK,
    },
    Diagnosis {
        text: "failed to recover v3 backend from snapshot",
        reason: "DatabaseOlderThanLog",
        kind: Kind::Damage,
        meaning: "the database is missing or older than the log says",
        next_step: LOOK,
    },
    Diagnosis {
        text: "Page expected to be",
        reason: "DatabaseDamaged",
        kind: Kind::Damage,
        meaning: "a page of the database is damaged",
        next_step: LOOK,
    },
    Diagnosis {
        text: "invalid freelist page",
        reason: "DatabaseDamaged",
        kind: Kind::Damage,
        meaning: "the database's list of free pages is damaged",
        next_step: LOOK,
    },
    Diagnosis {
        text: "freepages",
        reason: "DatabaseDamaged",
        kind: Kind::Damage,
        meaning: "the database's list of free pages is damaged",
        next_step: LOOK,
    },
    Diagnosis {
        text: "unexpected fault address",
        reason: "DatabaseDamaged",
        kind: Kind::Damage,
        meaning: "the database file ends too early or cannot be read",
        next_step: LOOK,
    },
    Diagnosis {
        text: "file size too small",
        reason: "DatabaseDamaged",
        kind: Kind::Damage,
        meaning: "the database file ends too early",
        next_step: LOOK,
    },
    Diagnosis {
        text: "invalid database",
        reason: "DatabaseDamaged",
        kind: Kind::Damage,
        meaning: "the database's two meta pages are damaged",
        next_step: LOOK,
    },
    Diagnosis {
        text: "file already closed",
        reason: "WalDamaged",
        kind: Kind::Damage,
        meaning: "the write-ahead log could not be read",
        next_step: LOOK,
    },
    Diagnosis {
        text: "has been permanently removed",
        reason: "MemberRemoved",
        kind: Kind::Misfit,
        meaning: "this member was removed from its cluster",
        next_step: "add it again as a new member with an empty data directory",
    },
    Diagnosis {
        text: "member count is unequal",
        reason: "MembersDiffer",
        kind: Kind::Misfit,
        meaning: "the cluster has other members than the configuration says",
        next_step: "compare the document with the cluster's member list",
    },
    Diagnosis {
        text: "cluster ID mismatch",
        reason: "WrongCluster",
        kind: Kind::Misfit,
        meaning: "the data belongs to another cluster than its peers",
        next_step: "check which disk is mounted and which peers are named",
    },
    Diagnosis {
        text: "cannot fetch cluster info",
        reason: "PeersUnreachable",
        kind: Kind::Misfit,
        meaning: "a joining member could not reach any peer",
        next_step: "check the network between the members",
    },
    Diagnosis {
        text: "invalid downgrade",
        reason: "OlderThanData",
        kind: Kind::Misfit,
        meaning: "this etcd is older than the one that wrote the data",
        next_step: "set version to the one that wrote the data, or restore a snapshot",
    },
    Diagnosis {
        text: "cannot downgrade",
        reason: "OlderThanData",
        kind: Kind::Misfit,
        meaning: "this etcd is older than the one that wrote the data",
        next_step: "set version to the one that wrote the data, or restore a snapshot",
    },
    Diagnosis {
        text: "is not supported",
        reason: "OlderThanData",
        kind: Kind::Misfit,
        meaning: "this etcd is older than the one that wrote the data",
        next_step: "set version to the one that wrote the data, or restore a snapshot",
    },
    Diagnosis {
        text: "unknown flag",
        reason: "ConfigurationRefused",
        kind: Kind::Misfit,
        meaning: "this etcd does not know an option that it was given",
        next_step: "report this as a bug, with the version: the operator wrote the configuration",
    },
    Diagnosis {
        text: "failed to verify flags",
        reason: "ConfigurationRefused",
        kind: Kind::Misfit,
        meaning: "etcd cannot read its configuration",
        next_step: "systemctl reload etcd-operator (SIGHUP) writes it anew and tries again",
    },
    Diagnosis {
        text: "flag provided but not defined",
        reason: "ConfigurationRefused",
        kind: Kind::Misfit,
        meaning: "this etcd does not know an option that it was given",
        next_step: "report this as a bug, with the version: the operator wrote the configuration",
    },
    Diagnosis {
        text: "private key does not match",
        reason: "CertificatePairBroken",
        kind: Kind::Surroundings,
        meaning: "a certificate and its key do not belong together",
        next_step: "the operator issues a new pair; see certs list",
    },
    Diagnosis {
        text: "no space left on device",
        reason: DISK_FULL,
        kind: Kind::Surroundings,
        meaning: "the disk is full",
        next_step: "free some space on the disk that holds the data",
    },
    Diagnosis {
        text: "read-only file system",
        reason: "DiskReadOnly",
        kind: Kind::Surroundings,
        meaning: "the file system is mounted read-only, often after a disk error",
        next_step: "check the disk and the kernel's log",
    },
    Diagnosis {
        text: "input/output error",
        reason: "DiskError",
        kind: Kind::Surroundings,
        meaning: "the disk returned an error",
        next_step: "check the disk and the kernel's log",
    },
    Diagnosis {
        text: "cannot allocate memory",
        reason: "OutOfMemory",
        kind: Kind::Surroundings,
        meaning: "the system gave etcd no memory",
        next_step: "lower storage.quota for a new cluster, or free memory",
    },
    Diagnosis {
        text: "out of memory",
        reason: "OutOfMemory",
        kind: Kind::Surroundings,
        meaning: "the system gave etcd no memory",
        next_step: "lower storage.quota for a new cluster, or free memory",
    },
    Diagnosis {
        text: "file descriptor limit",
        reason: "TooManyOpenFiles",
        kind: Kind::Surroundings,
        meaning: "too many open files: the limit of this process is too low",
        next_step: "raise the limit of open files (ulimit -n, LimitNOFILE=) to 65536",
    },
    Diagnosis {
        text: "too many open files",
        reason: "TooManyOpenFiles",
        kind: Kind::Surroundings,
        meaning: "too many open files: the limit of this process is too low",
        next_step: "raise the limit of open files (ulimit -n, LimitNOFILE=) to 65536",
    },
    Diagnosis {
        text: "address already in use",
        reason: "PortTaken",
        kind: Kind::Surroundings,
        meaning: "a port is taken",
        next_step: "choose another port in network, or stop what listens there",
    },
    Diagnosis {
        text: "cannot assign requested address",
        reason: "AddressGone",
        kind: Kind::Surroundings,
        meaning: "the host no longer has an address that etcd is to listen on",
        next_step: "correct network.listenAddresses",
    },
];

/// The known text that stands last in `words`: etcd names the outer failure first and its cause last.
pub fn diagnose(words: &str) -> Option<&'static Diagnosis> {
    let found = DIAGNOSES
        .iter()
        .filter_map(|it| Some((words.rfind(it.text)?, it)));
    found.max_by_key(|(at, _)| *at).map(|(_, it)| it)
}

/// The diagnosis with this text: how a record on disk finds its row again.
pub fn by_text(text: &str) -> Option<&'static Diagnosis> {
    DIAGNOSES.iter().find(|it| it.text == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_finds_its_own_row() {
        for row in DIAGNOSES {
            let found = diagnose(&format!("panic: something: {} (details)", row.text)).unwrap();
            assert_eq!(found.reason, row.reason, "{}", row.text);
            assert!(
                !row.meaning.ends_with('.') && !row.next_step.ends_with('.'),
                "{}",
                row.text
            );
        }
        assert_eq!(diagnose("everything is fine"), None);
    }
}
