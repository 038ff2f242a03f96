//! The box, as the kernel tells it under /sys and /proc, and who is in the operator's group. Everything is
//! read, nothing is written.
//!
//! Under a `--root` that has a `sys` or `proc` of its own, those are read: a firmware that reports
//! too little voltage cannot be had on every desk.

use std::fs;
use std::path::{Path, PathBuf};

use crate::accounts;
use crate::clock;
use crate::disk;
use crate::host::space::Space;
use crate::host::{Disk, DiskKind, HostFacts, Throttled};
use crate::paths::Paths;
use crate::start::Writable;

/// A sector, in which /sys counts sizes whatever the disk says.
const SECTOR: u64 = 512;

/// Looks at the box, and at the disk under `storage_dir`. `writable`: what was seen of its file
/// system already.
pub fn look(paths: &Paths, storage_dir: &Path, writable: Writable) -> HostFacts {
    let sys = under(paths, "sys");
    let proc = under(paths, "proc");
    HostFacts {
        page_bytes: rustix::param::page_size() as u64,
        memory_bytes: memory_bytes(&proc),
        strict_memory: text(&proc.join("sys/vm/overcommit_memory")).map(|it| it == "2"),
        memory_cgroup: memory_cgroup(&sys, &proc),
        rtc: fs::read_dir(sys.join("class/rtc"))
            .map(|mut it| it.next().is_some())
            .ok()
            .or_else(|| sys.join("class").is_dir().then_some(false)),
        throttled: throttled(&sys),
        disk: disk_under(&sys, storage_dir, writable),
        group: accounts::group(&paths.root),
        unverified: None, // the store tells
    }
}

fn under(paths: &Paths, name: &str) -> PathBuf {
    let own = paths.root.join(name);
    if own.is_dir() {
        own
    } else {
        Path::new("/").join(name)
    }
}

fn text(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn number(path: &Path) -> Option<u64> {
    text(path)?.parse().ok()
}

fn memory_bytes(proc: &Path) -> Option<u64> {
    let meminfo = text(&proc.join("meminfo"))?;
    let line = meminfo
        .lines()
        .find_map(|it| it.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Rule F6: version 2 lists its controllers, version 1 has a hierarchy for each.
fn memory_cgroup(sys: &Path, proc: &Path) -> Option<bool> {
    let has_memory = |it: &str| it.split_ascii_whitespace().any(|it| it == "memory");
    if let Some(controllers) = text(&sys.join("fs/cgroup/cgroup.controllers")) {
        return Some(has_memory(&controllers));
    }
    // Fields: name, hierarchy, number of groups, enabled.
    let cgroups = text(&proc.join("cgroups"))?;
    Some(cgroups.lines().any(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        fields.first() == Some(&"memory") && fields.get(3) == Some(&"1")
    }))
}

/// Rule G10: the firmware of a Raspberry Pi, in hexadecimal, below `soc` or, on newer boards,
/// `soc@ADDRESS`. Where the kernel has no such file, its voltage alarm (`rpi_volt`) tells a part.
fn throttled(sys: &Path) -> Option<Throttled> {
    let below = |path: &Path| {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|it| it.path()).collect::<Vec<_>>()
    };
    let named = |path: &Path, test: fn(&str) -> bool| {
        path.file_name()
            .and_then(|it| it.to_str())
            .is_some_and(test)
    };
    let bits = below(&sys.join("devices/platform"))
        .into_iter()
        .filter(|it| named(it, |it| it.starts_with("soc")))
        .flat_map(|it| below(&it))
        .filter(|it| named(it, |it| it.ends_with(":firmware")))
        .find_map(|it| text(&it.join("get_throttled")));
    if let Some(bits) = bits {
        let bits = u32::from_str_radix(bits.trim_start_matches("0x"), 16).ok()?;
        return Some(Throttled(bits));
    }
    let alarm = below(&sys.join("class/hwmon"))
        .into_iter()
        .find(|it| text(&it.join("name")).as_deref() == Some("rpi_volt"))?;
    number(&alarm.join("in0_lcrit_alarm")).map(|it| Throttled(u32::from(it != 0)))
}

/// Whether a file system is read-only, as far as that was seen.
pub fn read_only(writable: Writable) -> Option<bool> {
    match writable {
        Writable::Yes => Some(false),
        Writable::ReadOnly => Some(true),
        Writable::Missing | Writable::Denied | Writable::Stalled => None,
    }
}

fn disk_under(sys: &Path, storage_dir: &Path, writable: Writable) -> Disk {
    let read_only = read_only(writable);
    let space = Space {
        // One that does not answer would not answer this, either.
        free: (writable != Writable::Stalled)
            .then(|| disk::room(storage_dir))
            .flatten(),
        shrinks: None, // seen by whoever looks again
    };
    let unknown = Disk {
        read_only,
        space,
        ..Disk::default()
    };
    let Some((major, minor)) = disk::device(storage_dir) else {
        return unknown;
    };
    let Ok(partition) = sys
        .join(format!("dev/block/{major}:{minor}"))
        .canonicalize()
    else {
        return unknown; // btrfs and the like have no device of their own
    };
    let whole = whole_disk(&partition);
    let name = |path: &Path| {
        let name = path.file_name().and_then(|it| it.to_str());
        name.unwrap_or_default().to_owned()
    };
    let ext4 = sys.join("fs/ext4").join(name(&partition));
    let written = number(&ext4.join("lifetime_write_kbytes")).map(|it| it * 1024);
    let session = number(&ext4.join("session_write_kbytes")).map(|it| it * 1024);
    // The file system of the data is mounted at boot, and a boot writes more than the hours after it.
    let hours = clock::since_boot().as_secs_f64() / 3600.0;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "bytes an hour, far from the limits"
    )]
    let rate = session
        .filter(|_| hours >= 1.0)
        .map(|it| (it as f64 / hours) as u64);
    let life: Option<Vec<u8>> = text(&whole.join("device/life_time")).map(|it| {
        it.split_ascii_whitespace()
            .filter_map(|it| u8::from_str_radix(it.trim_start_matches("0x"), 16).ok())
            .collect()
    });
    Disk {
        kind: kind(&whole),
        name: heapless::String::try_from(name(&whole).as_str()).unwrap_or_default(),
        bytes: number(&whole.join("size")).map(|it| it * SECTOR),
        errors: number(&ext4.join("errors_count")),
        written_bytes: written,
        written_per_hour: rate,
        // In tenths: 1 is up to 10 %, 11 is beyond what was promised; 0 is not told.
        life_used_percent: life
            .and_then(|it| it.into_iter().max())
            .filter(|it| *it > 0)
            .map(|it| it.saturating_mul(10)),
        pre_eol: text(&whole.join("device/pre_eol_info"))
            .and_then(|it| u8::from_str_radix(it.trim_start_matches("0x"), 16).ok())
            .filter(|it| *it > 0),
        read_only,
        space,
    }
}

/// The disk of a partition, and what lies under a mapped device.
fn whole_disk(device: &Path) -> PathBuf {
    if let Ok(mut below) = fs::read_dir(device.join("slaves"))
        && let Some(first) = below.find_map(Result::ok)
        && let Ok(path) = first.path().canonicalize()
    {
        return whole_disk(&path);
    }
    match device.parent() {
        Some(parent) if device.join("partition").exists() => parent.to_owned(),
        _ => device.to_owned(),
    }
}

fn kind(disk: &Path) -> DiskKind {
    let name = disk
        .file_name()
        .and_then(|it| it.to_str())
        .unwrap_or_default();
    let on_usb = disk.components().any(|it| {
        it.as_os_str()
            .to_str()
            .is_some_and(|it| it.starts_with("usb"))
    });
    if name.starts_with("mmcblk") {
        return match text(&disk.join("device/type")).as_deref() {
            Some("SD") => DiskKind::SdCard,
            Some("MMC") => DiskKind::Emmc,
            _ => DiskKind::Unknown,
        };
    }
    if on_usb {
        return DiskKind::Usb;
    }
    if name.starts_with("nvme") {
        return DiskKind::Nvme;
    }
    if ["vd", "xvd", "loop", "dm-", "nbd"]
        .iter()
        .any(|it| name.starts_with(it))
    {
        return DiskKind::Virtual;
    }
    match number(&disk.join("queue/rotational")) {
        Some(0) => DiskKind::Ssd,
        Some(_) => DiskKind::Rotating,
        None => DiskKind::Unknown,
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "makes a tree like /sys")]
mod tests {
    use super::*;

    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir()
                .join(format!("etcd-operator-sysfs-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(&dir).unwrap();
            Tree(dir.canonicalize().unwrap())
        }

        fn put(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// A Raspberry Pi's /sys, written by hand: no such board is at hand.
    #[test]
    fn a_raspberry_pi_is_recognised() {
        let tree = Tree::new("pi");
        let (major, minor) = disk::device(&tree.0).unwrap();
        let card = "sys/devices/platform/soc/mmc0/mmc0:aaaa/block/mmcblk0";
        tree.put(&format!("{card}/device/type"), "SD");
        tree.put(&format!("{card}/size"), "62333952");
        tree.put(&format!("{card}/mmcblk0p2/partition"), "2");
        tree.put("sys/fs/ext4/mmcblk0p2/errors_count", "3");
        tree.put("sys/fs/ext4/mmcblk0p2/lifetime_write_kbytes", "1048576");
        tree.put("sys/fs/ext4/mmcblk0p2/session_write_kbytes", "1024");
        tree.put(
            "sys/devices/platform/soc/soc:firmware/get_throttled",
            "50005",
        );
        tree.put("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io pids");
        tree.put("proc/meminfo", "MemTotal:         948280 kB");
        tree.put("proc/sys/vm/overcommit_memory", "0");
        fs::create_dir_all(tree.0.join("sys/dev/block")).unwrap();
        fs::create_dir_all(tree.0.join("sys/class")).unwrap();
        std::os::unix::fs::symlink(
            tree.0.join(format!("{card}/mmcblk0p2")),
            tree.0.join(format!("sys/dev/block/{major}:{minor}")),
        )
        .unwrap();
        let facts = look(&Paths::under(&tree.0), &tree.0, Writable::Yes);
        assert_eq!(facts.memory_cgroup, Some(false));
        assert_eq!(facts.throttled, Some(Throttled(0x50005)));
        assert_eq!(facts.memory_bytes, Some(948_280 * 1024));
        assert_eq!(facts.strict_memory, Some(false));
        assert_eq!(facts.rtc, Some(false));
        assert_eq!(facts.disk.kind, DiskKind::SdCard);
        assert_eq!(facts.disk.name, "mmcblk0");
        assert_eq!(facts.disk.bytes, Some(62_333_952 * 512));
        assert_eq!(facts.disk.errors, Some(3));
        assert_eq!(facts.disk.written_bytes, Some(1 << 30));
        assert_eq!(facts.disk.life_used_percent, None, "a card tells nothing");

        tree.put(&format!("{card}/device/type"), "MMC");
        tree.put(&format!("{card}/device/life_time"), "0x02 0x09");
        tree.put(&format!("{card}/device/pre_eol_info"), "0x01");
        tree.put(
            "sys/fs/cgroup/cgroup.controllers",
            "cpuset cpu io memory pids",
        );
        tree.put("sys/class/rtc/rtc0/name", "rtc-rpi");
        fs::remove_dir_all(tree.0.join("sys/devices/platform/soc/soc:firmware")).unwrap();
        let newer = "sys/devices/platform/soc@107c000000/soc@107c000000:firmware";
        tree.put(&format!("{newer}/get_throttled"), "0x4");
        assert_eq!(throttled(&tree.0.join("sys")), Some(Throttled(4)));
        fs::remove_dir_all(tree.0.join(newer)).unwrap();
        assert_eq!(throttled(&tree.0.join("sys")), None);
        tree.put("sys/class/hwmon/hwmon1/name", "rpi_volt");
        tree.put("sys/class/hwmon/hwmon1/in0_lcrit_alarm", "1");
        assert_eq!(throttled(&tree.0.join("sys")), Some(Throttled(1)));
        let facts = look(&Paths::under(&tree.0), &tree.0, Writable::ReadOnly);
        assert_eq!(facts.disk.kind, DiskKind::Emmc);
        assert_eq!(facts.disk.life_used_percent, Some(90));
        assert_eq!(facts.disk.pre_eol, Some(1));
        assert_eq!(facts.disk.read_only, Some(true));
        assert_eq!(facts.memory_cgroup, Some(true));
        assert_eq!(facts.rtc, Some(true));
    }

    #[test]
    fn version_1_of_cgroups_says_whether_memory_is_enabled() {
        let tree = Tree::new("cgroup1");
        let cgroups = |enabled: &str| {
            tree.put(
                "proc/cgroups",
                &format!("#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t1\t1\t1\nmemory\t0\t1\t{enabled}"),
            );
            memory_cgroup(&tree.0.join("sys"), &tree.0.join("proc"))
        };
        assert_eq!(cgroups("0"), Some(false));
        assert_eq!(cgroups("1"), Some(true));
    }

    #[test]
    fn this_machine_tells_something() {
        let facts = look(&Paths::under(Path::new("/")), Path::new("/"), Writable::Yes);
        assert!(facts.page_bytes >= 4096);
        assert!(facts.memory_bytes.is_some_and(|it| it > 64 << 20));
    }
}
