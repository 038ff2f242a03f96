//! The box itself: what it is like, and what of it needs a person (rules F6, G1-G4, G7-G10). Pure.
//!
//! The agent looks at these facts with little effort and reports them as the condition `HostHealthy`;
//! `preflight` adds what costs more: see [`preflight`].

pub mod preflight;
pub mod space;

use crate::cluster::{Detail, detail};

/// Findings of one look.
pub const FINDINGS_MAX: usize = 32;

/// What the cheap look saw. `None` and `Unknown`: it could not be told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// Bytes of a memory page: 4096, on a Raspberry Pi 5 16384.
    pub page_bytes: u64,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// The kernel promises no more memory than there is (`vm.overcommit_memory` is 2).
    pub strict_memory: Option<bool>,
    /// Whether limits on memory are in force.
    pub memory_cgroup: Option<bool>,
    /// There is a clock that goes on without power.
    pub rtc: Option<bool>,
    /// What the firmware of a Raspberry Pi says of its supply and temperature.
    pub throttled: Option<Throttled>,
    /// The disk under the data.
    pub disk: Disk,
    /// Who can have certificates for clients made, and is not root: members of the operator's group.
    pub group: Option<Detail>,
    /// The version of etcd in use, if nobody compared it with the checksum of a release.
    pub unverified: Option<Detail>,
}

/// Bits of the firmware's `get_throttled`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttled(pub u32);

impl Throttled {
    const UNDER_VOLTAGE: u32 = 1;
    /// The clock is capped, throttled, or at the soft limit of temperature.
    const SLOWED: u32 = 0b1110;
    /// The same bits, of the time since boot.
    const SINCE_BOOT: u32 = 16;
}

/// What kind of thing stores the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskKind {
    /// Tells nothing of its wear.
    SdCard,
    /// Soldered flash.
    Emmc,
    /// A stick or a disk on USB.
    Usb,
    /// NVMe.
    Nvme,
    /// Any other without moving parts.
    Ssd,
    /// One that turns.
    Rotating,
    /// Of a virtual machine, a loop device or the like.
    Virtual,
    /// It could not be told.
    #[default]
    Unknown,
}

/// The disk under the data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// What it is.
    pub kind: DiskKind,
    /// Its name in the kernel.
    pub name: heapless::String<32>,
    /// Its size in bytes.
    pub bytes: Option<u64>,
    /// The file system is mounted read-only, or was turned so by an error.
    pub read_only: Option<bool>,
    /// Room on it.
    pub space: space::Space,
    /// Errors that ext4 has counted since it was last checked.
    pub errors: Option<u64>,
    /// Bytes written to the file system in its life (ext4).
    pub written_bytes: Option<u64>,
    /// Bytes an hour written to it since it was mounted (ext4).
    pub written_per_hour: Option<u64>,
    /// Wear that an eMMC reports, in percent of its life; the worse of its two kinds of cells.
    pub life_used_percent: Option<u8>,
    /// Spare blocks that an eMMC has left: 1 normal, 2 fewer than 20 %, 3 nearly none.
    pub pre_eol: Option<u8>,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    /// As it should be.
    Good,
    /// Worth knowing.
    Note,
    /// It could not be told.
    Unknown,
    /// It should be changed.
    Warning,
    /// It must be changed.
    Failure,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at.
    pub check: &'static str,
    /// How bad it is.
    pub grade: Grade,
    /// One CamelCase word.
    pub reason: &'static str,
    /// What was found.
    pub found: Detail,
    /// What a person does about it; empty where there is nothing to be done.
    pub next: Detail,
}

impl Finding {
    fn new(check: &'static str, grade: Grade, reason: &'static str, found: Detail) -> Self {
        Finding {
            check,
            grade,
            reason,
            found,
            next: Detail::new(),
        }
    }

    fn next(self, next: Detail) -> Self {
        Finding { next, ..self }
    }
}

/// Findings of one look, in the order of a table.
pub type Findings = heapless::Vec<Finding, FINDINGS_MAX>;

/// Erase cycles of a cell and bytes that reach it for each byte written: what is assumed of a card
/// that tells nothing of itself. Both are ordinary for cheap TLC flash under a journalling file system.
const ERASE_CYCLES: u64 = 300;
const WRITE_AMPLIFICATION: u64 = 4;
/// Below this much memory rule G9 holds.
const LITTLE_MEMORY: u64 = 1_100 << 20;
/// An eMMC that has used so much of its life is near its end (rule G7).
const LIFE_USED_WARN_PERCENT: u8 = 80;

/// Judges the facts.
pub fn judge(facts: &HostFacts) -> Findings {
    let mut findings = Findings::new();
    for finding in [
        page_size(facts),
        memory(facts),
        memory_cgroup(facts),
        rtc(facts),
        supply(facts),
        disk(&facts.disk),
        file_system(&facts.disk),
        space::judge(&facts.disk.space),
        wear(&facts.disk),
    ] {
        let _ = findings.push(finding);
    }
    for finding in trusted(facts) {
        let _ = findings.push(finding);
    }
    findings
}

/// What the operator relies on without proof: no defect, and a person should know.
fn trusted(facts: &HostFacts) -> impl Iterator<Item = Finding> {
    let group = facts.group.as_ref().map(|who| {
        Finding::new("group", Grade::Note, "GroupMembers", who.clone()).next(detail(format_args!(
            "whoever is in the group etcd-operator can have certificates made that are root in etcd; gpasswd -d NAME etcd-operator removes one"
        )))
    });
    let etcd = facts.unverified.as_ref().map(|version| {
        let found = detail(format_args!(
            "{version}; nobody compared it with the checksum of a release"
        ));
        Finding::new("origin of etcd", Grade::Note, "BinaryUnverified", found).next(detail(format_args!(
            "install it from the release's .tar.gz: etcd-operator etcd install --from FILE VERSION"
        )))
    });
    group.into_iter().chain(etcd)
}

/// The words of `status` for a host that needs no attention.
pub fn sound(facts: &HostFacts) -> Detail {
    let mut said = detail(format_args!("nothing on the host needs attention"));
    for it in trusted(facts) {
        said = detail(format_args!("{said}; {}: {}", it.check, it.found));
    }
    said
}

/// The worst finding that needs a person, if there is one.
pub fn worst(findings: &Findings) -> Option<&Finding> {
    findings
        .iter()
        .filter(|it| it.grade >= Grade::Warning)
        .max_by_key(|it| it.grade)
}

fn page_size(facts: &HostFacts) -> Finding {
    let kib = facts.page_bytes >> 10;
    let found = detail(format_args!("{kib} KiB"));
    match kib {
        4..=64 => Finding::new("page size", Grade::Good, "PageSize", found),
        _ => Finding::new("page size", Grade::Unknown, "PageSize", found),
    }
}

fn memory(facts: &HostFacts) -> Finding {
    let Some(bytes) = facts.memory_bytes else {
        let found = detail(format_args!("/proc/meminfo cannot be read"));
        return Finding::new("memory", Grade::Unknown, "Memory", found);
    };
    let found = detail(format_args!("{} MiB", bytes >> 20));
    if facts.strict_memory == Some(true) {
        let found = detail(format_args!("{found}, vm.overcommit_memory is 2"));
        return Finding::new("memory", Grade::Warning, "MemoryNotOvercommitted", found).next(detail(
            format_args!("etcd reserves 12 GB of addresses that it never uses: set vm.overcommit_memory to 0, or storage.quota"),
        ));
    }
    if bytes < LITTLE_MEMORY {
        return Finding::new("memory", Grade::Note, "LittleMemory", found).next(detail(
            format_args!("keep profile: edge; set options.memoryLimit"),
        ));
    }
    Finding::new("memory", Grade::Good, "Memory", found)
}

/// Rule F6. The command line of the kernel is a person's to change.
fn memory_cgroup(facts: &HostFacts) -> Finding {
    let told = |grade, found: &str| {
        let found = detail(format_args!("{found}"));
        Finding::new("memory limits", grade, "MemoryLimitsOff", found)
    };
    match facts.memory_cgroup {
        Some(true) => told(Grade::Good, "in force"),
        Some(false) => told(Grade::Warning, "not in force: the kernel's memory cgroup is off")
            .next(detail(format_args!(
                "append cgroup_enable=memory cgroup_memory=1 to the one line of /boot/firmware/cmdline.txt, and reboot"
            ))),
        None => told(Grade::Unknown, "/sys/fs/cgroup cannot be read"),
    }
}

/// Rules G2 to G4: no harm is done without one.
fn rtc(facts: &HostFacts) -> Finding {
    match facts.rtc {
        Some(true) => Finding::new(
            "real-time clock",
            Grade::Good,
            "Rtc",
            detail(format_args!("there is one")),
        ),
        Some(false) => Finding::new(
            "real-time clock",
            Grade::Note,
            "NoRtc",
            detail(format_args!(
                "none: after a power cut the time is unknown until the network provides it"
            )),
        )
        .next(detail(format_args!(
            "nothing: the certificates allow for that"
        ))),
        None => Finding::new(
            "real-time clock",
            Grade::Unknown,
            "Rtc",
            detail(format_args!("/sys/class/rtc cannot be read")),
        ),
    }
}

/// Rule G10: the usual hidden cause of slow disks and sudden ends.
fn supply(facts: &HostFacts) -> Finding {
    let Some(Throttled(bits)) = facts.throttled else {
        let found = detail(format_args!("this board does not report it"));
        return Finding::new("power supply", Grade::Note, "Supply", found);
    };
    let (now, before) = (bits, bits >> Throttled::SINCE_BOOT);
    let told = |reason, found: &str, next: &str| {
        Finding::new(
            "power supply",
            Grade::Warning,
            reason,
            detail(format_args!("{found}")),
        )
        .next(detail(format_args!("{next}")))
    };
    let adapter = "use the board's own power adapter and a short, thick cable";
    let cooling = "cool the board, or give it more air";
    if now & Throttled::UNDER_VOLTAGE != 0 {
        return told(
            "UnderVoltage",
            "the voltage is too low now: writes may be lost",
            adapter,
        );
    }
    if now & Throttled::SLOWED != 0 {
        return told("Throttled", "the processor is slowed down now", cooling);
    }
    if before & Throttled::UNDER_VOLTAGE != 0 {
        return told(
            "UnderVoltageOccurred",
            "the voltage was too low since boot",
            adapter,
        );
    }
    if before & Throttled::SLOWED != 0 {
        return told(
            "ThrottledOccurred",
            "the processor was slowed down since boot",
            cooling,
        );
    }
    Finding::new(
        "power supply",
        Grade::Good,
        "Supply",
        detail(format_args!("as it should be")),
    )
}

fn disk(disk: &Disk) -> Finding {
    let (grade, words) = match disk.kind {
        DiskKind::SdCard => (Grade::Note, "SD card"),
        DiskKind::Emmc => (Grade::Good, "eMMC"),
        DiskKind::Usb => (Grade::Note, "USB"),
        DiskKind::Nvme => (Grade::Good, "NVMe"),
        DiskKind::Ssd => (Grade::Good, "SSD"),
        DiskKind::Rotating => (Grade::Note, "rotating disk"),
        DiskKind::Virtual => (Grade::Note, "virtual disk"),
        DiskKind::Unknown => (Grade::Unknown, "the kernel does not report it"),
    };
    let size = disk.bytes.map_or(0, |it| it >> 30);
    let found = if size > 0 {
        detail(format_args!("{words}, {}, {size} GiB", disk.name))
    } else {
        detail(format_args!("{words} {}", disk.name))
    };
    let finding = Finding::new("disk", grade, "Disk", found);
    match disk.kind {
        DiskKind::SdCard => finding.next(detail(format_args!(
            "a card for cameras or dash cams lasts longer; an SSD on USB or NVMe longest"
        ))),
        _ => finding,
    }
}

/// Rule G8.
fn file_system(disk: &Disk) -> Finding {
    if disk.read_only == Some(true) {
        return Finding::new(
            "file system",
            Grade::Failure,
            "FilesystemReadOnly",
            detail(format_args!("read-only")),
        )
        .next(detail(format_args!("check the disk and the kernel's log")));
    }
    match disk.errors {
        Some(errors) if errors > 0 => Finding::new(
            "file system",
            Grade::Warning,
            "FilesystemErrors",
            detail(format_args!("ext4 has counted {errors} errors")),
        )
        .next(detail(format_args!(
            "save the data elsewhere, then check the disk: fsck, or a new card"
        ))),
        Some(_) => Finding::new(
            "file system",
            Grade::Good,
            "Filesystem",
            detail(format_args!("writable, no errors")),
        ),
        None if disk.read_only == Some(false) => Finding::new(
            "file system",
            Grade::Good,
            "Filesystem",
            detail(format_args!("writable")),
        ),
        None => Finding::new(
            "file system",
            Grade::Unknown,
            "Filesystem",
            detail(format_args!("the kernel does not report it")),
        ),
    }
}

/// Rule G7: what an eMMC says of itself, and an estimate for what says nothing.
fn wear(disk: &Disk) -> Finding {
    let spent = disk.pre_eol.is_some_and(|it| it >= 2);
    if let Some(percent) = disk.life_used_percent.or_else(|| spent.then_some(0)) {
        let found = if spent {
            detail(format_args!("its spare blocks are nearly used up"))
        } else {
            detail(format_args!("{percent} % of its life is used"))
        };
        if spent || percent >= LIFE_USED_WARN_PERCENT {
            return Finding::new("wear", Grade::Warning, "DiskWornOut", found).next(detail(
                format_args!("save the data and replace the board's storage soon"),
            ));
        }
        return Finding::new("wear", Grade::Good, "Wear", found);
    }
    let Some(rate) = disk.written_per_hour else {
        let found = detail(format_args!("this disk does not report it"));
        return Finding::new("wear", Grade::Note, "Wear", found);
    };
    let written = disk.written_bytes.unwrap_or(0) >> 30;
    let found = match (disk.kind, years_in_all(disk, rate)) {
        (DiskKind::SdCard | DiskKind::Usb | DiskKind::Emmc, Some(years)) => detail(format_args!(
            "{written} GiB written in its life, {} MiB/h since boot: about {years} years in all, if it lasts {ERASE_CYCLES} erase cycles",
            rate >> 20
        )),
        _ => detail(format_args!(
            "{written} GiB written in its life, {} MiB/h since boot",
            rate >> 20
        )),
    };
    Finding::new("wear", Grade::Note, "Wear", found)
}

/// How long a disk of this size bears this rate, by the assumptions above. At most a century.
fn years_in_all(disk: &Disk, per_hour: u64) -> Option<u64> {
    let bears = disk.bytes?.checked_mul(ERASE_CYCLES)? / WRITE_AMPLIFICATION;
    let per_year = per_hour.checked_mul(24 * 365)?.max(1);
    Some((bears / per_year).min(100))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound() -> HostFacts {
        HostFacts {
            page_bytes: 16384,
            memory_bytes: Some(4 << 30),
            strict_memory: Some(false),
            memory_cgroup: Some(true),
            rtc: Some(true),
            throttled: Some(Throttled(0)),
            disk: Disk {
                kind: DiskKind::SdCard,
                bytes: Some(32 << 30),
                read_only: Some(false),
                errors: Some(0),
                written_bytes: Some(80 << 30),
                written_per_hour: Some(40 << 20),
                ..Disk::default()
            },
            group: None,
            unverified: None,
        }
    }

    #[test]
    fn what_is_trusted_without_proof_is_told_and_is_no_defect() {
        let facts = HostFacts {
            group: Some(detail(format_args!("till"))),
            unverified: Some(detail(format_args!("3.6.14"))),
            ..sound()
        };
        let findings = judge(&facts);
        for reason in ["GroupMembers", "BinaryUnverified"] {
            assert!(findings.iter().any(|it| it.reason == reason), "{reason}");
        }
        assert!(worst(&findings).is_none());
        let said = super::sound(&facts);
        assert!(
            said.starts_with("nothing on the host needs attention"),
            "{said}"
        );
        assert!(
            said.contains("group: till") && said.contains("3.6.14; nobody compared"),
            "{said}"
        );
    }

    fn reason(change: impl Fn(&mut HostFacts)) -> Option<&'static str> {
        let mut facts = sound();
        change(&mut facts);
        worst(&judge(&facts)).map(|it| it.reason)
    }

    #[test]
    fn a_sound_board_needs_nobody() {
        assert_eq!(reason(|_| {}), None);
        assert_eq!(
            worst(&judge(&HostFacts::default())),
            None,
            "unknown is no fault"
        );
    }

    #[test]
    fn each_fault_has_its_reason() {
        let bits = |bits| reason(|it| it.throttled = Some(Throttled(bits)));
        assert_eq!(bits(0x5_0005), Some("UnderVoltage"));
        assert_eq!(bits(0x4), Some("Throttled"));
        assert_eq!(bits(0x8), Some("Throttled"), "the soft limit");
        assert_eq!(bits(0x5_0000), Some("UnderVoltageOccurred"));
        assert_eq!(bits(0x8_0000), Some("ThrottledOccurred"));
        assert_eq!(
            reason(|it| it.memory_cgroup = Some(false)),
            Some("MemoryLimitsOff")
        );
        assert_eq!(
            reason(|it| it.strict_memory = Some(true)),
            Some("MemoryNotOvercommitted")
        );
        assert_eq!(
            reason(|it| it.disk.errors = Some(1)),
            Some("FilesystemErrors")
        );
        assert_eq!(
            reason(|it| it.disk.life_used_percent = Some(80)),
            Some("DiskWornOut")
        );
        assert_eq!(reason(|it| it.disk.life_used_percent = Some(79)), None);
        assert_eq!(
            reason(|it| {
                it.disk.life_used_percent = None;
                it.disk.pre_eol = Some(2);
            }),
            Some("DiskWornOut"),
            "no spare blocks"
        );
        assert_eq!(
            reason(|it| {
                it.throttled = Some(Throttled(1));
                it.disk.read_only = Some(true);
            }),
            Some("FilesystemReadOnly"),
            "the worst counts"
        );
    }

    #[test]
    fn wear_is_estimated_where_the_disk_tells_nothing() {
        let findings = judge(&sound());
        let wear = findings.iter().find(|it| it.check == "wear").unwrap();
        // 32 GiB * 300 / 4 = 2,400 GiB; 40 MiB/h are 342 GiB a year.
        assert!(
            wear.found.contains("40 MiB/h since boot: about 7 years"),
            "{}",
            wear.found
        );
        assert_eq!(
            years_in_all(
                &Disk {
                    bytes: Some(u64::MAX),
                    ..Disk::default()
                },
                1
            ),
            None
        );
    }
}
