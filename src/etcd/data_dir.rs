//! What lies in etcd's data directory, by names and by the records of the log. Nothing is opened
//! for writing and no database is opened at all.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::etcd::wal;
use crate::start::{DataDir, Database, Log};

/// Looks at the directory that etcd gets as `data-dir`. `read_log`: the newest segment of the log
/// too, which nobody may be writing then.
pub fn look(data_dir: &Path, read_log: bool) -> DataDir {
    let segments = files(&data_dir.join("member/wal"), "wal");
    let snap = data_dir.join("member/snap");
    let db = snap.join("db");
    let database = match fs::metadata(&db) {
        Ok(it) if it.len() > 0 => Database::Present,
        _ => Database::Absent,
    };
    DataDir {
        wal_segments: u32::try_from(segments.len()).unwrap_or(u32::MAX),
        wal_from_start: segments.first().is_some_and(|it| {
            it.file_name()
                .is_some_and(|it| it == "0000000000000000-0000000000000000.wal")
        }),
        database,
        snapshots: u32::try_from(files(&snap, "snap").len()).unwrap_or(u32::MAX),
        owner: segments.iter().find_map(|it| wal::owner(it)),
        log: match segments.last() {
            Some(newest) if read_log => wal::scan(newest),
            _ => Log::UNREAD,
        },
        in_use: is_locked(&db),
    }
}

/// A stamp that changes whenever a file of the data directory does.
pub fn stamp(data_dir: &Path) -> String {
    let mut text = String::new();
    for (dir, extension) in [
        ("member/wal", "wal"),
        ("member/snap", "snap"),
        ("member/snap", "db"),
    ] {
        let mut paths = files(&data_dir.join(dir), extension);
        if extension == "db" {
            paths.push(data_dir.join("member/snap/db"));
        }
        for path in paths {
            if let Ok(it) = fs::metadata(&path) {
                use std::fmt::Write as _;
                let _ = writeln!(
                    text,
                    "{} {} {} {}.{}",
                    path.display(),
                    it.ino(),
                    it.len(),
                    it.mtime(),
                    it.mtime_nsec()
                );
            }
        }
    }
    crate::state::sha256(text.as_bytes())
}

fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .map(|it| it.path())
        .filter(|it| it.extension().is_some_and(|it| it == extension))
        .collect();
    found.sort();
    found
}

/// Whether another process holds bbolt's lock (rules A10, D4).
fn is_locked(db: &Path) -> bool {
    use rustix::fs::{FlockOperation, flock};
    let Ok(file) = File::open(db) else {
        return false;
    };
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => {
            let _ = flock(&file, FlockOperation::Unlock);
            false
        }
        Err(error) => error == rustix::io::Errno::WOULDBLOCK,
    }
}
