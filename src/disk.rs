//! The file system under the data: its kind, its room, and whether it takes writes at all.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

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

fn nearest(path: &Path) -> Option<PathBuf> {
    path.ancestors().find(|it| it.exists()).map(Path::to_owned)
}

/// Whether the file system takes writes, without writing: the kernel asks for write access to the
/// mount before it looks for the name that shall be removed, so that a frozen file system blocks,
/// a read-only one says so, and a sound one finds no such name.
pub fn writable(dir: &Path, deadline: Duration) -> Writable {
    // The thread of an earlier question may hang: then there is no answer yet, and no second one.
    if !waiting().insert(dir.to_owned()) {
        return Writable::Stalled;
    }
    let (sender, receiver) = mpsc::channel();
    let asked = dir.to_owned();
    let name = dir.join(".etcd-operator-no-such-file");
    // A frozen file system keeps this thread until it thaws.
    let spawned = thread::Builder::new().stack_size(64 * 1024).spawn(move || {
        let answer = rustix::fs::unlink(&name);
        waiting().remove(&asked);
        let _ = sender.send(answer);
    });
    if spawned.is_err() {
        waiting().remove(dir);
        return Writable::Yes; // nothing is known, and etcd's own answers still count
    }
    match receiver.recv_timeout(deadline) {
        Ok(Err(error)) if error == rustix::io::Errno::ROFS => Writable::ReadOnly,
        Ok(Err(error)) if error == rustix::io::Errno::NOTDIR => Writable::Missing,
        Ok(_) if !dir.is_dir() => Writable::Missing,
        Ok(_) => Writable::Yes,
        Err(_) => Writable::Stalled,
    }
}

/// Directories about which a question is open.
fn waiting() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    static WAITING: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

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
