//! What lies in etcd's data directory, by names and by the records of the log. Nothing is opened
//! for writing.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::cluster::{Detail, detail};
use crate::etcd::examine::{ends_too_early, headless, taken_up};
use crate::etcd::files::{Unreadable, database, files, list, open_regular};
use crate::etcd::wal;
use crate::start::{Completeness, DataDir, Database, Log, Room};
use crate::version::Line;

/// etcd takes the room of a segment of its log at once, and the next one's ahead of time.
const SEGMENT_BYTES: u64 = 64_000_000;
/// What etcd writes to its database until it has taken up the entries that it had not committed yet.
/// Measured on 3.5, 3.6 and 3.7 with some 15 MB of them: with 8 MB one of three served, with 16 all.
const COMMIT_BYTES: u64 = 16 << 20;

/// What the names of directories begin with that the operator sets aside beside its data.
pub const OURS_ASIDE: [&str; 4] = [
    "data.before-restore-",
    "data.failed-restore-",
    "data.birth-interrupted-",
    "data.removed",
];

/// Bytes of the database file; 0: there is none.
pub fn database_bytes(data_dir: &Path) -> u64 {
    fs::metadata(database(data_dir)).map_or(0, |it| it.len())
}

/// Looks at the directory that etcd gets as `data-dir`. `line`: of the etcd that will read it.
/// `read_log`: the newest segment of the log too, which nobody may be writing then.
pub fn look(data_dir: &Path, line: Option<Line>, read_log: bool) -> DataDir {
    let read = look_at(data_dir, line, read_log);
    read.unwrap_or_else(|error| DataDir {
        unreadable: Some(error.detail()),
        ..DataDir::EMPTY
    })
}

/// Whether etcd would read requests of the v2 kind in this log: all of it is read, also while an etcd writes it. False where it
/// cannot be read, which is for etcd to say.
pub fn replays_v2(data_dir: &Path, line: Option<Line>) -> bool {
    let segments = wal::segments(&data_dir.join("member/wal"));
    let found = segments.and_then(|it| wal::scan(&it, line, &mut |_| ()));
    found.is_ok_and(|it| it.replays_v2())
}

/// Whether a part of a member's data is there.
pub fn has_data(data_dir: &Path) -> bool {
    look(data_dir, None, false).completeness() != Completeness::Empty
}

fn look_at(data_dir: &Path, line: Option<Line>, read_log: bool) -> Result<DataDir, Unreadable> {
    let segments = wal::segments(&data_dir.join("member/wal"))?;
    let db = database(data_dir);
    let is_empty = fs::symlink_metadata(&db).is_err_and(|it| it.kind() == ErrorKind::NotFound)
        || open_regular(&db)?.1 == 0;
    let taken_up = if read_log { taken_up(data_dir) } else { None };
    let applied = taken_up.as_ref().and_then(|it| it.index);
    let mut agreed = taken_up.and_then(|it| it.cluster_version);
    let log = if read_log {
        // What is to be taken up yet lies at the end of the log.
        wal::scan_newest(&segments, line, &mut |it| {
            if it.index > applied.unwrap_or(0)
                && let Some(version) = wal::agreed(it.request)
            {
                agreed = Some(version.to_owned());
            }
        })?
    } else {
        wal::Found::default()
    };
    let headless = if read_log && !is_empty {
        headless(&db)?
    } else {
        None
    };
    let damage = log.damage.clone();
    let damage = damage
        .or(headless)
        .or_else(|| ends_too_early(segments.last(), log.last_index, applied?));
    let snapshots = files(&data_dir.join("member/snap"), "snap")?.len();
    Ok(DataDir {
        wal_segments: u32::try_from(segments.len()).unwrap_or(u32::MAX),
        wal_from_start: segments
            .first()
            .is_some_and(|it| (it.number, it.first_index) == (0, 0)),
        database: if is_empty {
            Database::Absent
        } else {
            Database::Present
        },
        snapshots: u32::try_from(snapshots).unwrap_or(u32::MAX),
        owner: segments.iter().find_map(wal::Name::owner),
        agreed: agreed.and_then(|it| it.parse().ok()),
        log: Log {
            last_index: log.last_index,
            torn_bytes: log.repair.unwrap_or(0),
            replays_v2: log.replays_v2(),
        },
        damage,
        examining: false,
        unreadable: None,
        in_use: is_locked(&db),
    })
}

/// Entries of a directory that are looked into for another etcd: more is a place of another kind.
const NEIGHBOURS_MAX: usize = 1024;

/// Where an etcd that is not ours has its data: in the directory that holds ours, in one right below
/// it, or that directory is itself the inside of one. What the operator set aside there is ours. One
/// that cannot be looked into counts for nothing, but for its place at the top: a disk has such
/// directories from its birth (`lost+found`).
pub fn strange_etcd(storage_dir: &Path) -> Option<Detail> {
    let has_parts = |dir: &Path| dir.join("wal").is_dir() && dir.join("snap").is_dir();
    if has_parts(storage_dir) || is_etcds(storage_dir) {
        return Some(detail(format_args!("{}", storage_dir.display())));
    }
    let entries = fs::read_dir(storage_dir).ok()?;
    let mut dirs = entries.take(NEIGHBOURS_MAX).flatten();
    let found = dirs.find(|it| {
        let name = it.file_name();
        let name = name.to_string_lossy();
        name != "data"
            && !OURS_ASIDE.iter().any(|ours| name.starts_with(ours))
            && is_etcds(&it.path())
    })?;
    Some(detail(format_args!("{}", found.path().display())))
}

/// A directory that an etcd got as `data-dir`.
fn is_etcds(dir: &Path) -> bool {
    let member = dir.join("member");
    ["wal", "snap"]
        .iter()
        .any(|part| match fs::symlink_metadata(member.join(part)) {
            Err(error) => error.kind() == ErrorKind::PermissionDenied && member.is_dir(),
            Ok(_) => true,
        })
}

/// The room that etcd has and needs there. What its own leftovers hold is used again.
pub fn room(data_dir: &Path, log: Log, free: Option<u64>) -> Room {
    let wal = data_dir.join("member/wal");
    let held = |path: &Path| fs::metadata(path).map_or(0, |it| it.blocks() * 512);
    // Before it cuts a torn end off, etcd copies the whole segment.
    let copy = wal::segments(&wal)
        .ok()
        .and_then(|it| it.last().map(|it| it.path.with_extension("wal.broken")));
    let repair = log
        .torn_bytes
        .saturating_sub(copy.map_or(0, |it| held(&it)));
    let segment = SEGMENT_BYTES.saturating_sub(held(&wal.join("0.tmp")));
    Room {
        free,
        repair,
        resume: repair + segment + COMMIT_BYTES,
        // Its log and the segment made ahead, and as much again for one of another member.
        join: 3 * SEGMENT_BYTES + COMMIT_BYTES,
    }
}

/// A stamp that changes whenever a file of the data directory does.
pub fn stamp(data_dir: &Path) -> String {
    let mut text = String::new();
    for dir in ["member/wal", "member/snap"] {
        // What cannot be read is seen when it is looked at.
        for path in list(&data_dir.join(dir)).unwrap_or_default() {
            if let Ok(it) = fs::metadata(&path) {
                use std::fmt::Write as _;
                let _ = writeln!(
                    text,
                    "{} {}.{} {} {}.{} {}.{}",
                    path.display(),
                    it.dev(),
                    it.ino(),
                    it.len(),
                    it.mtime(),
                    it.mtime_nsec(),
                    it.ctime(),
                    it.ctime_nsec()
                );
            }
        }
    }
    crate::state::sha256(text.as_bytes())
}

/// Whether another process has the data open.
pub fn is_in_use(data_dir: &Path) -> bool {
    is_locked(&database(data_dir))
}

fn is_locked(db: &Path) -> bool {
    File::open(db).is_ok_and(|it| is_locked_by_another(&it))
}

/// Whether another process holds bbolt's lock on this database (rules A10, D4). Afterwards nobody holds it for this look:
/// an etcd that is started waits for it.
pub fn is_locked_by_another(database: &File) -> bool {
    use rustix::fs::{FlockOperation, flock};
    match flock(database, FlockOperation::NonBlockingLockShared) {
        Ok(()) => {
            let _ = flock(database, FlockOperation::Unlock);
            false
        }
        Err(error) => error == rustix::io::Errno::WOULDBLOCK,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn another_etcds_data_is_found_and_our_own_is_none() {
        let dir = std::env::temp_dir().join(format!("strange-etcd-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let make = |path: &str| fs::create_dir_all(dir.join(path)).unwrap();
        let found = || strange_etcd(&dir).map(|it| it.to_string());
        let at = |path: &str| Some(dir.join(path).display().to_string());
        assert_eq!(found(), None, "there is nothing");
        for ours in OURS_ASIDE.iter().chain(&["data"]) {
            make(&format!("{ours}/member/wal"));
        }
        make("lost+found/member");
        make("wal");
        assert_eq!(found(), None);
        make("default/member/snap");
        assert_eq!(found(), at("default"));
        make("member/wal");
        assert_eq!(found().map(PathBuf::from), Some(dir.clone()));
        fs::remove_dir_all(dir.join("member")).unwrap();
        make("snap");
        assert_eq!(
            found().map(PathBuf::from),
            Some(dir.clone()),
            "the inside of one"
        );
        fs::remove_dir_all(&dir).unwrap();
    }
}
