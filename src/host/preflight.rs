//! What `preflight` looks at besides: rights, programs, the clock, and how fast the disk syncs. Pure.

use super::{DiskKind, Finding, Findings, Grade, HostFacts};
use crate::cluster::{Detail, detail};

/// The oldest systemd whose options the units use (Debian 12).
pub const SYSTEMD_OLDEST: u32 = 252;

/// What `preflight` saw.
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, not states"
)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreflightFacts {
    /// Everything that the agent looks at, too.
    pub host: HostFacts,
    /// `aarch64` or `x86_64`.
    pub architecture: &'static str,
    /// What runs this host: systemd's version; 0 where it runs and does not tell.
    pub systemd: Option<u32>,
    /// The document, by its cluster's name, or what is wrong with it.
    pub document: Result<Detail, Detail>,
    /// Copies that leave the host and that others can read, by place; none where there are none.
    pub in_clear: Option<Detail>,
    /// etcd in the store: its version, or the reason why it is not to be started, what is wrong and what to do.
    pub etcd: Result<Detail, (&'static str, Detail, Detail)>,
    /// The user that etcd and the operator run as is known.
    pub user: bool,
    /// The state directory belongs to that user and is readable for nobody else. `None`: there is
    /// none yet.
    pub state_private: Option<bool>,
    /// The system bus answers.
    pub bus: bool,
    /// polkit runs or can be started, and has the operator's rule.
    pub polkit: Polkit,
    /// The drop-in that does without polkit is in place.
    pub runs_as_root: bool,
    /// etcd's unit is installed.
    pub unit: bool,
    /// A time source confirms the clock.
    pub clock_trusted: bool,
    /// The journal is kept on disk.
    pub journal_on_disk: bool,
    /// The directory that the document names for the data.
    pub storage: Storage,
    /// A cluster lives there.
    pub has_data: bool,
    /// The data's file system is one that can lose acknowledged writes; its name.
    pub unsafe_filesystem: Option<&'static str>,
    /// A port of the document that somebody else holds.
    pub port_taken: Option<Detail>,
    /// How fast the disk syncs; or why it was not tried.
    pub sync: Result<SyncLatency, Detail>,
}

/// The directory for the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// The document names none, or it is fit.
    Ready,
    /// It is not there.
    Missing,
    /// Its file system does not answer.
    Stalled,
    /// The units' own protection hides it, or keeps it from being written.
    Hidden,
    /// It belongs to another user than etcd's.
    NotOwned,
}

/// polkit, as far as it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polkit {
    /// It is not installed.
    Missing,
    /// It is, and has no rule of ours.
    NoRule,
    /// It is, and has.
    Ready,
}

/// How long one small write took to reach the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncLatency {
    /// How many were made.
    pub writes: u32,
    /// Half of them took at most so many microseconds.
    pub p50: u64,
    /// All but one in a hundred took at most so many.
    pub p99: u64,
}

/// Judges all of it.
pub fn judge(facts: &PreflightFacts) -> Findings {
    let mut findings = Findings::new();
    let mut push = |it| {
        let _ = findings.push(it);
    };
    push(document(facts));
    push(etcd(facts));
    push(Finding::new(
        "architecture",
        Grade::Good,
        "Architecture",
        words(facts.architecture),
    ));
    push(systemd(facts));
    if facts.systemd.is_some() {
        push(user(facts));
        push(authority(facts));
        push(unit(facts));
    }
    push(state(facts));
    push(storage(facts.storage));
    push(port(facts));
    push(clock(facts));
    for finding in super::judge(&facts.host) {
        let of_space = finding.check == super::space::CHECK && !facts.has_data;
        push(if of_space {
            super::space::judge_for_a_cluster(&facts.host.disk.space)
        } else {
            finding
        });
    }
    if let Some(name) = facts.unsafe_filesystem {
        push(
            Finding::new(
                "data",
                Grade::Failure,
                "FilesystemUnsafe",
                detail(format_args!(
                    "lies on {name}, which can lose acknowledged writes"
                )),
            )
            .next(words("set storage.path to a directory on a disk")),
        );
    }
    if let Some(places) = &facts.in_clear {
        push(
            Finding::new("copies", Grade::Warning, "CopiesInClear", places.clone()).next(words(
                "name encryption.recipients, so that only these can read the copies; and an endpoint with https",
            )),
        );
    }
    push(sync(facts));
    push(journal(facts));
    findings
}

fn words(text: &str) -> Detail {
    detail(format_args!("{text}"))
}

fn document(facts: &PreflightFacts) -> Finding {
    match &facts.document {
        Ok(name) => Finding::new(
            "document",
            Grade::Good,
            "Document",
            detail(format_args!("cluster {name}")),
        ),
        Err(why) => Finding::new("document", Grade::Failure, "SpecInvalid", why.clone())
            .next(words("correct it; etcd-operator crd explains every field")),
    }
}

fn etcd(facts: &PreflightFacts) -> Finding {
    match &facts.etcd {
        Ok(version) => Finding::new("etcd", Grade::Good, "Binary", version.clone()),
        Err((reason, why, next)) => {
            Finding::new("etcd", Grade::Failure, reason, why.clone()).next(next.clone())
        }
    }
}

fn systemd(facts: &PreflightFacts) -> Finding {
    let told = |grade, found| Finding::new("systemd", grade, "Systemd", found);
    match facts.systemd {
        None => told(Grade::Note, words("does not run this host")).next(words(
            "etcd-operator agent --driver process, from whatever starts programs here",
        )),
        Some(0) => told(Grade::Unknown, words("does not tell its version")),
        Some(version) if version < SYSTEMD_OLDEST => told(
            Grade::Warning,
            detail(format_args!(
                "{version}: older than {SYSTEMD_OLDEST}, it ignores options of the units"
            )),
        )
        .next(words("upgrade the system to Debian 12 or newer")),
        Some(version) => told(Grade::Good, detail(format_args!("{version}"))),
    }
}

fn user(facts: &PreflightFacts) -> Finding {
    if facts.user {
        return Finding::new("user", Grade::Good, "User", words("etcd-operator"));
    }
    Finding::new(
        "user",
        Grade::Failure,
        "UserMissing",
        words("there is no user etcd-operator"),
    )
    .next(words(
        "systemd-sysusers, or: useradd --system etcd-operator",
    ))
}

/// The operator, as its own user, asks systemd over D-Bus, and systemd asks polkit.
fn authority(facts: &PreflightFacts) -> Finding {
    let told = |grade, reason, found| Finding::new("rights", grade, reason, words(found));
    if !facts.bus {
        return told(
            Grade::Failure,
            "BusMissing",
            "the system bus (D-Bus) does not answer",
        )
        .next(words("apt install dbus"));
    }
    if facts.runs_as_root {
        return told(
            Grade::Good,
            "Rights",
            "the operator runs as root, by its drop-in",
        );
    }
    match facts.polkit {
        Polkit::Ready => told(
            Grade::Good,
            "Rights",
            "polkit lets the user etcd-operator start and stop etcd's unit",
        ),
        Polkit::Missing => told(
            Grade::Failure,
            "PolkitMissing",
            "polkit is not installed: systemd obeys only root",
        )
        .next(words(
            "apt install polkitd; or install /usr/share/doc/etcd-operator/examples/run-as-root.conf as a drop-in",
        )),
        Polkit::NoRule => told(
            Grade::Failure,
            "PolkitRuleMissing",
            "polkit has no rule for the operator",
        )
        .next(words(
            "put 50-etcd-operator.rules of the package back below /usr/share/polkit-1/rules.d",
        )),
    }
}

fn unit(facts: &PreflightFacts) -> Finding {
    if facts.unit {
        return Finding::new(
            "unit",
            Grade::Good,
            "Unit",
            words("etcd's unit is installed"),
        );
    }
    Finding::new(
        "unit",
        Grade::Note,
        "UnitMissing",
        words("etcd's unit is not there yet"),
    )
    .next(words("systemctl start etcd-operator installs it"))
}

fn state(facts: &PreflightFacts) -> Finding {
    let told = |grade, reason, found| Finding::new("state", grade, reason, words(found));
    match facts.state_private {
        None => told(Grade::Note, "State", "there is none yet"),
        Some(true) => told(
            Grade::Good,
            "State",
            "only its user can read /var/lib/etcd-operator",
        ),
        Some(false) => told(
            Grade::Warning,
            "StateNotPrivate",
            "others can read /var/lib/etcd-operator, or it does not belong to the user etcd-operator",
        )
        .next(words(
            "chown etcd-operator:etcd-operator and chmod 0700 /var/lib/etcd-operator",
        )),
    }
}

fn storage(storage: Storage) -> Finding {
    let failed = |reason, found, next| {
        Finding::new("data", Grade::Failure, reason, words(found)).next(words(next))
    };
    match storage {
        Storage::Ready => Finding::new(
            "data",
            Grade::Good,
            "Storage",
            words("its directory is usable"),
        ),
        Storage::Missing => failed(
            "StorageMissing",
            "storage.path is not there",
            "mount the disk, or create the directory",
        ),
        Storage::Stalled => failed(
            "FilesystemStalled",
            "its file system does not answer",
            "check the disk and the kernel's log",
        ),
        Storage::Hidden => failed(
            "StorageHidden",
            "storage.path is hidden or read-only for a unit",
            "choose a directory such as /mnt/etcd or /srv/etcd",
        ),
        Storage::NotOwned => failed(
            "StorageNotOwned",
            "storage.path does not belong to the user etcd-operator",
            "chown etcd-operator:etcd-operator that directory",
        ),
    }
}

fn port(facts: &PreflightFacts) -> Finding {
    match &facts.port_taken {
        None => Finding::new("ports", Grade::Good, "Ports", words("free, or etcd's own")),
        Some(who) => Finding::new("ports", Grade::Failure, "PortTaken", who.clone()).next(words(
            "choose other ports in network, or stop what listens there",
        )),
    }
}

fn clock(facts: &PreflightFacts) -> Finding {
    if facts.clock_trusted {
        return Finding::new("clock", Grade::Good, "Clock", words("synchronised"));
    }
    Finding::new(
        "clock",
        Grade::Note,
        "ClockUntrusted",
        words("no time source confirms the clock; new certificates are provisional"),
    )
    .next(words(
        "apt install systemd-timesyncd, or chrony, where there is a network",
    ))
}

/// Rule D45.
fn sync(facts: &PreflightFacts) -> Finding {
    let latency = match &facts.sync {
        Ok(latency) => latency,
        Err(why) => return Finding::new("sync", Grade::Unknown, "SyncLatency", why.clone()),
    };
    let ms = |us: u64| (us / 1000, us % 1000 / 100);
    let ((a, b), (c, d)) = (ms(latency.p50), ms(latency.p99));
    let found = detail(format_args!(
        "a synced write takes {a}.{b} ms, 99 of 100 within {c}.{d} ms ({} writes)",
        latency.writes
    ));
    match latency.p99 {
        0..10_000 => Finding::new("sync", Grade::Good, "SyncLatency", found),
        10_000..100_000 => Finding::new("sync", Grade::Note, "SyncLatency", found).next(words(
            "keep profile: edge, whose election timeout allows for it",
        )),
        100_000..500_000 => Finding::new("sync", Grade::Warning, "SyncSlow", found).next(words(
            "every write waits this long: use a faster disk, or move other writers off it",
        )),
        _ => Finding::new("sync", Grade::Warning, "SyncTooSlow", found).next(words(
            "too slow for one member, and far too slow for several: use another disk",
        )),
    }
}

/// Rule F8.
fn journal(facts: &PreflightFacts) -> Finding {
    let flash = matches!(facts.host.disk.kind, DiskKind::SdCard | DiskKind::Usb);
    if facts.journal_on_disk && flash {
        return Finding::new(
            "journal",
            Grade::Note,
            "JournalOnFlash",
            words("kept on disk, which wears flash"),
        )
        .next(words(
            "set Storage=volatile in /etc/systemd/journald.conf, if logs may go with a power cut",
        ));
    }
    Finding::new(
        "journal",
        Grade::Good,
        "Journal",
        words(if facts.journal_on_disk {
            "kept on disk"
        } else {
            "kept in memory"
        }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound() -> PreflightFacts {
        PreflightFacts {
            host: HostFacts::default(),
            architecture: "aarch64",
            systemd: Some(SYSTEMD_OLDEST),
            document: Ok(words("edge")),
            in_clear: None,
            etcd: Ok(words("3.6.14")),
            user: true,
            state_private: Some(true),
            bus: true,
            polkit: Polkit::Ready,
            runs_as_root: false,
            unit: true,
            clock_trusted: true,
            journal_on_disk: false,
            storage: Storage::Ready,
            has_data: true,
            unsafe_filesystem: None,
            port_taken: None,
            sync: Ok(SyncLatency {
                writes: 1000,
                p50: 800,
                p99: 9_999,
            }),
        }
    }

    /// The worst grade, and its reason.
    fn worst(change: impl Fn(&mut PreflightFacts)) -> (Grade, &'static str) {
        let mut facts = sound();
        change(&mut facts);
        let findings = judge(&facts);
        let worst = findings
            .iter()
            .filter(|it| it.grade != Grade::Unknown)
            .max_by_key(|it| it.grade)
            .unwrap();
        (worst.grade, worst.reason)
    }

    #[test]
    fn each_fault_is_graded() {
        use Grade::{Failure, Warning};
        assert!(worst(|_| {}).0 < Warning);
        assert_eq!(
            worst(|it| it.document = Err(words("x"))),
            (Failure, "SpecInvalid")
        );
        assert_eq!(
            worst(|it| it.etcd = Err(("BinaryChanged", words("x"), words("y")))),
            (Failure, "BinaryChanged")
        );
        assert_eq!(worst(|it| it.user = false), (Failure, "UserMissing"));
        let clear = worst(|it| it.in_clear = Some(words("s3://x: not encrypted")));
        assert_eq!(clear, (Warning, "CopiesInClear"));
        for (storage, reason) in [
            (Storage::Missing, "StorageMissing"),
            (Storage::Stalled, "FilesystemStalled"),
            (Storage::Hidden, "StorageHidden"),
            (Storage::NotOwned, "StorageNotOwned"),
        ] {
            assert_eq!(worst(|it| it.storage = storage), (Failure, reason));
        }
        assert_eq!(worst(|it| it.bus = false), (Failure, "BusMissing"));
        assert_eq!(
            worst(|it| it.polkit = Polkit::Missing),
            (Failure, "PolkitMissing")
        );
        assert_eq!(
            worst(|it| it.polkit = Polkit::NoRule),
            (Failure, "PolkitRuleMissing")
        );
        assert!(
            worst(|it| {
                it.polkit = Polkit::Missing;
                it.runs_as_root = true;
            })
            .0 < Warning,
            "root needs no polkit"
        );
        assert!(
            worst(|it| {
                it.systemd = None;
                it.user = false;
            })
            .0 < Warning,
            "without systemd nobody needs the user"
        );
        assert_eq!(worst(|it| it.systemd = Some(247)), (Warning, "Systemd"));
        assert_eq!(
            worst(|it| it.state_private = Some(false)),
            (Warning, "StateNotPrivate")
        );
        assert_eq!(
            worst(|it| it.port_taken = Some(words("x"))),
            (Failure, "PortTaken")
        );
        assert_eq!(
            worst(|it| it.unsafe_filesystem = Some("tmpfs")),
            (Failure, "FilesystemUnsafe")
        );
    }

    #[test]
    fn the_disk_is_graded_by_its_slow_syncs() {
        let grade = |p99| {
            let sync = Ok(SyncLatency {
                writes: 1,
                p50: 1,
                p99,
            });
            judge(&PreflightFacts { sync, ..sound() })
                .iter()
                .find(|it| it.check == "sync")
                .unwrap()
                .grade
        };
        assert_eq!(grade(9_999), Grade::Good);
        assert_eq!(grade(10_000), Grade::Note);
        assert_eq!(grade(100_000), Grade::Warning);
        assert_eq!(grade(500_000), Grade::Warning);
    }

    #[test]
    fn all_findings_fit() {
        let facts = PreflightFacts {
            unsafe_filesystem: Some("tmpfs"),
            in_clear: Some(words("s3://x: not encrypted")),
            host: HostFacts {
                group: Some(words("till")),
                unverified: Some(words("3.6.14")),
                ..HostFacts::default()
            },
            ..sound()
        };
        let found = |reason| judge(&facts).iter().any(|it| it.reason == reason);
        assert!(found("BinaryUnverified") && found("GroupMembers"));
        let findings = judge(&facts);
        assert_eq!(
            findings.last().unwrap().check,
            "journal",
            "none was cut off"
        );
        assert!(findings.len() < super::super::FINDINGS_MAX);
    }
}
