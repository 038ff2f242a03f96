//! The proof that a member's data is damaged, or that it is sound: everything that etcd reads when it
//! starts is read, as the etcd of that line reads it.
//!
//! The whole log with the chain of its sums, the raft snapshot that it is read from, the database page
//! by page, and whether the three fit together. It takes as long as the data is large, so that it is
//! done only where etcd ended with words of damage, and before anything is thrown away.

use std::io::Read as _;
use std::path::Path;

use super::bolt::{self, BoltError, LiveError, Summary, TakenUp};
use super::files::{Unreadable, database, files, name_of, open_regular};
use super::wal::{self, Found, Mark, Name};
use crate::start::damage::{DATABASE_DAMAGED, DATABASE_OLDER, Damage, LOG_DAMAGED, Lost};
use crate::version::Line;

/// A raft snapshot holds the members, and of old versions the v2 store: some MB at the most.
const SNAPSHOT_BYTES_MAX: u64 = 64 << 20;

/// Examines a data directory that nobody has open. None: etcd of that line can read it.
pub fn examine(data_dir: &Path, line: Option<Line>) -> Result<Option<Damage>, Unreadable> {
    let segments = wal::segments(&data_dir.join("member/wal"))?;
    let log = wal::scan(&segments, line, &mut |_| ())?;
    if let Some(damage) = log.damage {
        return Ok(Some(damage));
    }
    let snapshot = snapshot(data_dir, line, &log)?;
    if let Some(damage) = fits_the_log(&segments, &log, snapshot) {
        return Ok(Some(damage));
    }
    let db = database(data_dir);
    let file = if db.exists() { open_regular(&db)?.1 } else { 0 };
    let index = match file {
        0 => 0,
        _ => match walk(&db)? {
            Ok(summary) => summary.consistent_index.unwrap_or(0),
            Err(damage) => return Ok(Some(damage)),
        },
    };
    // The database that a leader sent lies beside it until it takes its place.
    let sent = db.with_file_name(format!("{:016x}.snap.db", snapshot.index));
    if index < snapshot.index && !sent.exists() {
        return Ok(Some(Damage {
            reason: DATABASE_OLDER,
            file: name_of(&db),
            offset: None,
            what: "the database is older than the raft snapshot that the log goes on from",
            lost: Lost::Entries {
                from: index + 1,
                to: Some(snapshot.index),
            },
        }));
    }
    Ok(ends_too_early(segments.last(), log.last_index, index))
}

/// A log that ends before what the database holds: etcd would start, look healthy, and take no write
/// until the log has grown as long again (rule D1).
pub(super) fn ends_too_early(
    newest: Option<&Name>,
    last_index: Option<u64>,
    applied: u64,
) -> Option<Damage> {
    let (newest, last) = newest.zip(last_index)?;
    (applied > last).then(|| Damage {
        reason: LOG_DAMAGED,
        file: name_of(&newest.path),
        offset: None,
        what: "the log ends before what the database holds",
        lost: Lost::Entries {
            from: last + 1,
            to: Some(applied),
        },
    })
}

/// Walks the database; an error of the disk is none of the data.
fn walk(db: &Path) -> Result<Result<Summary, Damage>, Unreadable> {
    let (mut file, _) = open_regular(db)?;
    read(db, bolt::walk_live(&mut file))
}

/// A database without its head: etcd panics on it, and says little.
pub(super) fn headless(db: &Path) -> Result<Option<Damage>, Unreadable> {
    let (mut file, size) = open_regular(db)?;
    if size == 0 {
        return Ok(None);
    }
    Ok(read(db, bolt::head(&mut file))?.err())
}

fn read<T>(db: &Path, read: Result<T, LiveError>) -> Result<Result<T, Damage>, Unreadable> {
    match read {
        Ok(read) => Ok(Ok(read)),
        Err(LiveError {
            error: BoltError::Io { source, .. },
            ..
        }) => Err(Unreadable::io(db, &source)),
        Err(LiveError { error, offset }) => Ok(Err(Damage {
            reason: DATABASE_DAMAGED,
            file: name_of(db),
            offset,
            what: error.what(),
            lost: Lost::Unknown,
        })),
    }
}

/// How far the database has taken up the log, from a few of its pages. None: they cannot be read, which
/// is for etcd to say.
pub(super) fn taken_up(data_dir: &Path) -> Option<TakenUp> {
    let (mut file, size) = open_regular(&database(data_dir)).ok()?;
    (size > 0).then(|| bolt::taken_up(&mut file).ok()).flatten()
}

/// How many members the cluster of this data had. None: its database does not tell.
pub fn members(data_dir: &Path) -> Option<u32> {
    taken_up(data_dir).map(|it| it.members)
}

/// The raft snapshot from which etcd reads on: 3.7 believes the log, the others need its file.
fn snapshot(data_dir: &Path, line: Option<Line>, log: &Found) -> Result<Mark, Unreadable> {
    let begin = Mark { term: 0, index: 0 };
    let mut valid = log.marks.iter().filter(|it| it.index <= log.committed);
    if line == Some(Line::V3_7) {
        return Ok(valid.next_back().copied().unwrap_or(begin));
    }
    let mut newest_first = files(&data_dir.join("member/snap"), "snap")?;
    newest_first.reverse();
    for path in newest_first {
        let mark = mark(&path);
        if let Some(mark) = mark
            && valid.clone().any(|it| *it == mark)
            && is_whole(&path)
        {
            return Ok(mark);
        }
    }
    Ok(begin)
}

/// Its file is called by both.
fn mark(path: &Path) -> Option<Mark> {
    let (term, index) = path.file_stem()?.to_str()?.split_once('-')?;
    let hex = |it: &str| u64::from_str_radix(it, 16).ok();
    Some(Mark {
        term: hex(term)?,
        index: hex(index)?,
    })
}

/// A `snappb.Snapshot`: a sum, and what it is of. One that is not whole etcd sets aside.
fn is_whole(path: &Path) -> bool {
    let mut bytes = Vec::new();
    let read = open_regular(path)
        .ok()
        .and_then(|(file, _)| file.take(SNAPSHOT_BYTES_MAX).read_to_end(&mut bytes).ok());
    read.is_some() && wal::is_whole_snapshot(&bytes)
}

/// Whether etcd finds in the log what comes after the snapshot.
fn fits_the_log(segments: &[Name], log: &Found, snapshot: Mark) -> Option<Damage> {
    let first = segments.first()?;
    // Segments follow each other without a hole: their sums do.
    if first.first_index > snapshot.index {
        return Some(Damage {
            reason: LOG_DAMAGED,
            file: name_of(&first.path),
            offset: None,
            what: "the log begins behind the newest raft snapshot that can be read",
            lost: Lost::Entries {
                from: snapshot.index + 1,
                to: first.first_index.checked_sub(1),
            },
        });
    }
    match &log.gap {
        Some(gap) if gap.to > snapshot.index => Some(Damage {
            reason: LOG_DAMAGED,
            file: gap.file.clone(),
            offset: Some(gap.offset),
            what: "entries are missing before this one",
            lost: Lost::Entries {
                from: gap.from,
                to: Some(gap.to),
            },
        }),
        _ => None,
    }
}
