//! The file system under the data: its kind, its room, and whether it takes writes at all.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use crate::host::preflight::SyncLatency;
use crate::start::{Filesystem, Writable};

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
    let statfs = rustix::fs::statvfs(&nearest(path)?).ok()?;
    Some(statfs.f_bavail.saturating_mul(statfs.f_frsize))
}

/// Files that are made, or grow over a page, need one of these; so few are none.
const FILES_MIN: u64 = 8;

/// Bytes that etcd may still write there: none where no file can be made any more.
pub fn room(path: &Path) -> Option<u64> {
    let statfs = rustix::fs::statvfs(&nearest(path)?).ok()?;
    // A file system that makes them as they are needed counts none at all.
    if statfs.f_files > 0 && statfs.f_favail < FILES_MIN {
        return Some(0);
    }
    Some(statfs.f_bavail.saturating_mul(statfs.f_frsize))
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

type Answer = Result<(), rustix::io::Errno>;

/// The question that was not answered in time. At most one thread waits for a frozen file system,
/// however long it stays so.
static UNANSWERED: Mutex<Option<(PathBuf, mpsc::Receiver<Answer>)>> = Mutex::new(None);

/// Whether the file system takes writes, without writing: the kernel asks for write access to the
/// mount before it looks for the name that shall be removed, so that a frozen file system blocks,
/// a read-only one says so, and a sound one finds no such name.
pub fn writable(dir: &Path, deadline: Duration) -> Writable {
    let mut unanswered = UNANSWERED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((path, receiver)) = unanswered.take()
        && path == dir
        && receiver.try_recv() == Err(mpsc::TryRecvError::Empty)
    {
        *unanswered = Some((path, receiver));
        return Writable::Stalled;
    }
    let (sender, receiver) = mpsc::channel();
    let name = dir.join(".etcd-operator-no-such-file");
    let spawned = thread::Builder::new().stack_size(64 * 1024).spawn(move || {
        let _ = sender.send(rustix::fs::unlink(&name));
    });
    if spawned.is_err() {
        return Writable::Yes; // nothing is known, and etcd's own answers still count
    }
    match receiver.recv_timeout(deadline) {
        Ok(Err(error)) if error == rustix::io::Errno::ROFS => Writable::ReadOnly,
        Ok(Err(error)) if error == rustix::io::Errno::NOTDIR => Writable::Missing,
        Ok(_) if !dir.is_dir() => Writable::Missing,
        Ok(_) if turned_read_only(dir) => Writable::ReadOnly,
        Ok(_) => Writable::Yes,
        Err(_) => {
            *unanswered = Some((dir.to_owned(), receiver));
            Writable::Stalled
        }
    }
}

/// Whether the kernel stopped writing after an error. Newer ones leave the mount writable by name
/// and refuse each write; then only the options of the file system tell.
fn turned_read_only(dir: &Path) -> bool {
    let Some((major, minor)) = device(dir) else {
        return false;
    };
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts
        .lines()
        .any(|line| says_read_only(line, &format!("{major}:{minor}")))
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
