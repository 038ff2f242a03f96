//! Why a member in a Pod cannot run, in the words of its guard, of Kubernetes, and for people.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::facts::DISK_DEADLINE;
use crate::cluster::detail;
use crate::disk;
use crate::start::{Refusal, Writable, damage};

/// Why a member cannot run, with the next step for a person.
pub fn unplaceable(reason: &'static str, why: std::fmt::Arguments<'_>) -> Refusal {
    Refusal::Unplaceable {
        reason,
        why: detail(why),
        next: next_step(reason),
    }
}

/// Why this Pod's user may not write to the root of its volume. Kubernetes makes a volume writable for the Pod's group where
/// its kind allows that, and some kinds (`hostPath`) do not.
pub fn denied(root: &Path) -> Option<Refusal> {
    match disk::writable(root, DISK_DEADLINE) {
        Writable::Denied => {
            let it = std::fs::metadata(root).ok()?;
            let (uid, gid, mode) = (it.uid(), it.gid(), it.mode() & 0o7777);
            let own = rustix::process::geteuid();
            Some(unplaceable(
                "StorageDenied",
                format_args!(
                    "the volume's directory belongs to user {uid} and group {gid} with mode {mode:04o}: user {} of this Pod may not write to it",
                    own.as_raw()
                ),
            ))
        }
        Writable::ReadOnly => Some(unplaceable(
            "FilesystemReadOnly",
            format_args!("the volume is read-only"),
        )),
        Writable::Yes | Writable::Missing | Writable::Stalled => None, // the guard looks further
    }
}

/// What a person does next about a reason.
pub fn next_step(reason: &str) -> &'static str {
    match reason {
        "ImageUnavailable" => {
            "import the image on the node (k3s ctr images import FILE), or correct spec.image"
        }
        "ImageVersion" => {
            "set spec.version to the version of the image and the data, or correct spec.image"
        }
        "DataNewer" => "set spec.version to the line that the message names",
        "LogTooOld" => "keep spec.version on a patch of 3.6 until 100 more writes were made",
        "AuthorityMissing" => {
            "put the Secret back from a copy; if it is lost for good: etcd-operator explain AuthorityMissing"
        }
        "NoStorageClass" => {
            "name one in storage.volumeClaim.storageClassName, or make one the default"
        }
        "VolumeElsewhere" => {
            "bring that node back; if it is lost for good: kubectl delete node NODE, and of several members another one takes its place; an only one: etcd-operator explain VolumeElsewhere"
        }
        "StorageDenied" => {
            "on the node: chown 65532:65532 DIR, where DIR is the volume's path that kubectl get pv shows"
        }
        "FilesystemReadOnly" => {
            "check the node's disk and its kernel's log; once it takes writes again, delete the Pod"
        }
        "NotOurs" => {
            "rename or delete that object: the operator changes only objects that it created"
        }
        "PodRefused" => {
            "correct spec.pod, or allow it: the message names what the API server refused"
        }
        "RightMissing" => "apply deploy/etcd-operator.yaml of this version",
        "DataDirMissing" => {
            "bring back the volume that holds the data; if it is lost for good: of several members delete its claim and its Pod, and another one takes its place; an only one: restore a snapshot"
        }
        "DiskFull" => {
            "free some space on the volume, make it larger, or give a member that joins another claim; etcd then starts by itself"
        }
        it if damage::REASONS.contains(&it) => {
            "the data is untouched: restore a snapshot with an EtcdRestore"
        }
        "DataForeign"
        | "DataOfAnotherCluster"
        | "DataOfAnotherEtcd"
        | "DocumentOfAnotherCluster"
        | "StorageOfAnotherCluster" => {
            "give the member its own volume; of several members, where nobody wants what lies there: delete its claim and its Pod, and another member takes its place"
        }
        _ => "see kubectl describe pod and kubectl logs",
    }
}

/// Reasons that a guard may report besides those of damage.
const REASONS: &[&str] = &[
    "AcknowledgedWritesMissing",
    "AddressGone",
    "BinaryChanged",
    "BinaryMissing",
    "BinaryWrongArchitecture",
    "CertificatesUnusable",
    "CrashLoop",
    "DataDirMissing",
    "DataForeign",
    "DataInUse",
    "DataNewer",
    "DataOfAnotherCluster",
    "DataOfAnotherEtcd",
    "DataUnreadable",
    "DiskFull",
    "DocumentOfAnotherCluster",
    "FilesystemReadOnly",
    "FilesystemStalled",
    "FilesystemUnsafe",
    "ImageVersion",
    "LogTooOld",
    "PortDenied",
    "PortTaken",
    "RecordUnreadable",
    "Restoring",
    "StorageDenied",
    "StorageMissing",
    "StorageOfAnotherCluster",
];

/// Why a guard refused, from its termination message `REASON: message`.
pub fn refusal_from(words: &str) -> Refusal {
    let (reason, why) = words.split_once(": ").unwrap_or(("", words));
    let mut known = REASONS.iter().chain(&damage::REASONS).copied();
    match known.find(|it| *it == reason) {
        Some(reason) => unplaceable(reason, format_args!("{why}")),
        None => Refusal::Other(detail(format_args!("{words}"))),
    }
}
