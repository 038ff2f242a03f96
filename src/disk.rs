//! The file system under the data: its kind, its room, and whether it takes writes at all.

mod look;

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;

use crate::host::preflight::SyncLatency;
use crate::start::{Filesystem, Writable};

pub use look::{Look, Seen};

/// Kinds on which an acknowledged write can be lost (rule D5), by their magic number.
const UNSAFE: &[(u64, &str)] = &[
    (0x0102_1994, "tmpfs"),
    (0x8584_58f6, "ramfs"),
    (0x794c_7630, "overlayfs"),
    (0x6969, "NFS"),
    (0x4d44, "vfat"),
    (0x2011_bab0, "exfat"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x0102_1997, "9p"),
];

/// Which kind of file system holds `path`, or the nearest of its parents that is there.
pub fn filesystem(path: &Path) -> Filesystem {
    let Some(statfs) = nearest(path).and_then(|it| rustix::fs::statfs(&it).ok()) else {
        return Filesystem::Unknown;
    };
    #[expect(
        clippy::cast_sign_loss,
        reason = "a magic number; its type differs by target"
    )]
    let magic = statfs.f_type as u64 & 0xffff_ffff;
    match UNSAFE.iter().find(|(it, _)| *it == magic) {
        Some((_, name)) => Filesystem::Unsafe(name),
        None => Filesystem::Disk,
    }
}

/// Bytes that this user may still write there.
pub fn free_bytes(path: &Path) -> Option<u64> {
    statvfs(path).map(|it| free(&it))
}

/// Bytes of the whole file system.
pub fn size_bytes(path: &Path) -> Option<u64> {
    statvfs(path).map(|it| it.f_blocks.saturating_mul(it.f_frsize))
}

fn statvfs(path: &Path) -> Option<rustix::fs::StatVfs> {
    rustix::fs::statvfs(&nearest(path)?).ok()
}

fn free(it: &rustix::fs::StatVfs) -> u64 {
    it.f_bavail.saturating_mul(it.f_frsize)
}

/// Files that are made, or grow over a page, need one of these; so few are none.
const FILES_MIN: u64 = 8;

/// Bytes that etcd may still write there: none where no file can be made any more.
pub fn room(path: &Path) -> Option<u64> {
    let statfs = statvfs(path)?;
    // A file system that makes them as they are needed counts none at all.
    if statfs.f_files > 0 && statfs.f_favail < FILES_MIN {
        return Some(0);
    }
    Some(free(&statfs))
}

/// Major and minor number of the device that holds `path`, or the nearest of its parents.
pub fn device(path: &Path) -> Option<(u32, u32)> {
    let stat = rustix::fs::stat(&nearest(path)?).ok()?;
    Some((
        rustix::fs::major(stat.st_dev),
        rustix::fs::minor(stat.st_dev),
    ))
}

/// Writes as etcd writes its log, small pieces of which each reaches the disk, into a file of its own
/// that is removed again: at most 22 MB and `limit` (rule D45).
pub fn sync_latency(dir: &Path, limit: Duration) -> io::Result<SyncLatency> {
    const PIECE: [u8; 2300] = [0x5a; 2300];
    const PIECES_MAX: usize = 22_000_000 / PIECE.len();
    let path = dir.join(".etcd-operator-preflight");
    let _ = std::fs::remove_file(&path);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)?;
    // Nobody else needs its name, and nothing is left of it however this ends.
    std::fs::remove_file(&path)?;
    let begin = crate::clock::since_boot();
    let mut micros = Vec::with_capacity(PIECES_MAX);
    while micros.len() < PIECES_MAX && crate::clock::since_boot() < begin + limit {
        let before = crate::clock::since_boot();
        file.write_all(&PIECE)?;
        file.sync_data()?;
        let took = crate::clock::since_boot().saturating_sub(before);
        micros.push(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }
    micros.sort_unstable();
    let at = |percent: usize| micros[(micros.len() - 1) * percent / 100];
    Ok(SyncLatency {
        writes: u32::try_from(micros.len()).unwrap_or(u32::MAX),
        p50: at(50),
        p99: at(99),
    })
}

fn nearest(path: &Path) -> Option<PathBuf> {
    path.ancestors().find(|it| it.exists()).map(Path::to_owned)
}

/// This program, once it has said that it answers [`PROBE`].
static PROBER: OnceLock<PathBuf> = OnceLock::new();

/// The first argument of a process that asks a file system a question.
pub const PROBE: &str = "probe-disk";

/// Questions that were not answered in time, by directory. One process waits for a frozen file system,
/// however long it stays so.
static UNANSWERED: Mutex<Vec<(PathBuf, Child)>> = Mutex::new(Vec::new());

/// From now on a process of its own asks file systems: nobody can end a thread that waits for a frozen
/// one, and with it the program would not end.
pub fn probe_by(program: PathBuf) {
    let _ = PROBER.set(program);
}

/// Asks, as the process that [`writable`] starts; its exit code.
pub fn probe(dir: &Path) -> u8 {
    match ask(dir) {
        Err(Errno::ROFS) => READ_ONLY,
        Err(Errno::NOTDIR) => MISSING,
        Err(Errno::ACCESS | Errno::PERM) => DENIED,
        _ => match accessat(
            CWD,
            dir,
            Access::WRITE_OK | Access::EXEC_OK,
            AtFlags::EACCESS,
        ) {
            Err(Errno::ACCESS) => DENIED,
            _ => 0,
        },
    }
}

const READ_ONLY: u8 = 11;
const MISSING: u8 = 12;
const DENIED: u8 = 13;

/// A question that changes nothing: the kernel asks for write access to the mount before it looks for
/// the name that shall be removed, so that a frozen file system blocks, a read-only one says so, and a
/// sound one finds no such name.
fn ask(dir: &Path) -> Result<(), Errno> {
    rustix::fs::unlink(dir.join(".etcd-operator-no-such-file"))
}

/// Whether the file system takes writes, without writing.
pub fn writable(dir: &Path, deadline: Duration) -> Writable {
    let mut unanswered = UNANSWERED.lock().unwrap_or_else(PoisonError::into_inner);
    unanswered.retain_mut(|(_, child)| matches!(child.try_wait(), Ok(None)));
    if unanswered.iter().any(|(path, _)| path == dir) {
        return Writable::Stalled;
    }
    let code = match PROBER.get().map(|it| start_probe(it, dir)) {
        None => i32::from(probe(dir)),
        Some(Err(_)) => 0, // nothing is known, and etcd's own answers still count
        Some(Ok(mut child)) => {
            let Some(code) = wait(&mut child, deadline) else {
                unanswered.push((dir.to_owned(), child));
                return Writable::Stalled;
            };
            code
        }
    };
    match code {
        it if it == i32::from(READ_ONLY) => Writable::ReadOnly,
        it if it == i32::from(MISSING) => Writable::Missing,
        it if it == i32::from(DENIED) => Writable::Denied,
        _ if !dir.is_dir() => Writable::Missing,
        _ if turned_read_only(dir) => Writable::ReadOnly,
        _ => Writable::Yes,
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "this program itself, which may wait for ever"
)]
fn start_probe(program: &Path, dir: &Path) -> io::Result<Child> {
    Command::new(program)
        .arg(PROBE)
        .arg(dir)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

/// The exit code, or none in time.
fn wait(child: &mut Child, deadline: Duration) -> Option<i32> {
    let end = crate::clock::since_boot() + deadline;
    let mut pause = Duration::from_micros(200);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status.code().unwrap_or(0)),
            Ok(None) if crate::clock::since_boot() < end => thread::sleep(pause),
            Ok(None) => return None,
            Err(_) => return Some(0),
        }
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Whether the kernel stopped writing after an error. Newer ones leave the mount writable by name
/// and refuse each write; then only the options of the file system tell.
fn turned_read_only(dir: &Path) -> bool {
    let Some((major, minor)) = device(dir) else {
        return false;
    };
    mounts()
        .lines()
        .any(|line| says_read_only(line, &format!("{major}:{minor}")))
}

/// Mounts of this process (proc(5), `mountinfo`).
fn mounts() -> String {
    std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()
}

/// Whether a directory is a whole file system of this machine that is mounted there, not one directory of it among
/// others, nor a share or a part of a pool, whose room others use.
pub fn is_whole(path: &Path) -> bool {
    let path = path.canonicalize();
    let path = path.ok().and_then(|it| Some(escaped(it.to_str()?)));
    path.is_some_and(|it| is_whole_by(&mounts(), &it))
}

fn is_whole_by(mounts: &str, path: &str) -> bool {
    let field = |line: &str, number| line.split_ascii_whitespace().nth(number).map(str::to_owned);
    // The last mount there hides those before it, such as that of systemd's automount.
    let last = mounts
        .lines()
        .rfind(|it| field(it, 4).as_deref() == Some(path));
    last.is_some_and(|line| {
        let (_, source) = line.split_once(" - ").unwrap_or_default();
        let (kind, device) = (field(source, 0), field(source, 1));
        let device = device.unwrap_or_default();
        let own = device.starts_with("/dev/") || kind.as_deref() == Some("tmpfs");
        own && field(line, 3).as_deref() == Some("/")
    })
}

/// A path that `mountinfo` wrote.
pub fn unescaped(path: &str) -> String {
    let path = path.replace("\\040", " ").replace("\\011", "\t");
    path.replace("\\012", "\n").replace("\\134", "\\")
}

/// As `mountinfo` writes a path.
fn escaped(path: &str) -> String {
    let path = path.replace('\\', "\\134");
    let path = path.replace(' ', "\\040");
    path.replace('\t', "\\011").replace('\n', "\\012")
}

/// Whether a line of `mountinfo` is of this device and its last field, the file system's own
/// options, says that nothing is written.
fn says_read_only(line: &str, device: &str) -> bool {
    line.split_ascii_whitespace().nth(2) == Some(device)
        && line
            .rsplit(' ')
            .next()
            .is_some_and(|it| it.split(',').any(|it| it == "emergency_ro" || it == "ro"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_counts_as_whole_where_it_is_mounted_and_of_this_machine() {
        let mounts = "\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
30 22 8:17 / /mnt/usb rw - ext4 /dev/sdb1 rw
31 22 8:1 /srv/etcd /mnt/bound rw - ext4 /dev/sda1 rw
32 22 0:40 / /mnt/nas rw - nfs4 nas:/export rw
33 22 0:41 / /mnt/pool rw - zfs tank/etcd rw
34 22 0:42 / /mnt/auto rw - autofs systemd-1 rw
35 34 8:33 / /mnt/auto rw - ext4 /dev/sdc1 rw
36 22 0:50 / /run/small rw - tmpfs tmpfs rw
37 22 8:49 / /mnt/my\\040disk rw - vfat /dev/sdd1 rw
";
        let whole = |path: &str| is_whole_by(mounts, &escaped(path));
        for path in ["/", "/mnt/usb", "/mnt/auto", "/run/small", "/mnt/my disk"] {
            assert!(whole(path), "{path}");
        }
        for path in [
            "/mnt/bound",
            "/mnt/nas",
            "/mnt/pool",
            "/mnt/usb/etcd",
            "/mnt",
        ] {
            assert!(!whole(path), "{path}");
        }
    }

    #[test]
    fn a_file_system_that_was_stopped_by_an_error_is_read_only() {
        let line = "42 27 7:0 / /data rw,relatime - ext4 /dev/loop0 rw,errors=remount-ro";
        assert!(!says_read_only(line, "7:0"));
        assert!(says_read_only(&format!("{line},emergency_ro"), "7:0"));
        assert!(!says_read_only(&format!("{line},emergency_ro"), "7:1"));
    }

    #[test]
    fn syncs_are_timed_and_leave_nothing_behind() {
        let dir = std::env::temp_dir().join(format!("etcd-operator-sync-{}", std::process::id()));
        crate::state::create_private_dir(&dir).unwrap();
        let latency = sync_latency(&dir, Duration::from_millis(200)).unwrap();
        assert!(latency.writes > 0 && latency.p50 <= latency.p99 && latency.p99 > 0);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
        std::fs::remove_dir(&dir).unwrap();
        assert!(sync_latency(Path::new("/no/such/dir"), Duration::from_secs(1)).is_err());
    }

    #[test]
    fn proc_is_no_place_for_data_and_a_disk_is_one() {
        assert_eq!(
            writable(Path::new("/no/such/dir"), Duration::from_secs(5)),
            Writable::Missing
        );
        assert_eq!(
            writable(&std::env::temp_dir(), Duration::from_secs(5)),
            Writable::Yes
        );
        assert!(
            free_bytes(Path::new("/no/such/dir")).is_some(),
            "the nearest parent"
        );
    }
}
