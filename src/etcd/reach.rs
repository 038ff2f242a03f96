//! How far a member's data can have reached, so that what a restore loses is a number also where etcd
//! cannot be asked any more.
//!
//! Revisions follow from the log: each entry that writes makes at most one. They are counted from a
//! known point, and an entry that cannot be read counts as one.

use std::path::Path;

use super::bolt;
use super::files::{Unreadable, database, open_regular};
use super::wal;
use crate::observed::Reach;
use crate::start::damage::Lost;
use crate::version::Line;

/// A state of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Its revision.
    pub revision: i64,
    /// The last entry of the log that is applied in it.
    pub index: u64,
}

/// The revision of a store that has taken up nothing.
pub const BORN: Point = Point {
    revision: 1,
    index: 0,
};

/// How far this data can have reached, by its log from one of these points or its own database on.
/// `seen`: an entry that was there for certain.
pub fn reach(
    data_dir: &Path,
    line: Option<Line>,
    known: &[Point],
    seen: Option<u64>,
) -> Result<Reach, Unreadable> {
    let own = applied(data_dir);
    let mut points = known.to_vec();
    points.extend(own);
    Ok(Reach {
        begun: 0,
        at_least: own.map(|it| it.revision),
        at_most: highest_revision(data_dir, line, &points, seen)?,
    })
}

fn highest_revision(
    data_dir: &Path,
    line: Option<Line>,
    points: &[Point],
    seen: Option<u64>,
) -> Result<Option<i64>, Unreadable> {
    let segments = wal::segments(&data_dir.join("member/wal"))?;
    let Some(first) = segments.first() else {
        return Ok(None);
    };
    let begin = first.first_index.saturating_sub(1);
    // Writes behind each point, entry by entry.
    let mut writes: Vec<u64> = points
        .iter()
        .map(|it| begin.saturating_sub(it.index))
        .collect();
    let mut last = begin;
    let log = wal::scan(&segments, line, &mut |entry| {
        let missing = entry.index.saturating_sub(last + 1);
        let writing = u64::from(wal::may_write(entry.request));
        for (point, count) in points.iter().zip(&mut writes) {
            if entry.index > point.index {
                *count += writing + missing.min(entry.index - point.index - 1);
            }
        }
        last = last.max(entry.index);
    })?;
    let end = match log.damage.map(|it| it.lost) {
        None => Some(last),
        Some(Lost::Entries { to, .. }) => to.max(seen),
        Some(Lost::Unknown) => seen,
    };
    let Some(end) = end else {
        return Ok(None);
    };
    let end = end.max(last);
    let highest = points.iter().zip(writes).map(|(point, count)| {
        let unread = end - last.max(point.index).min(end);
        point.revision.saturating_add_unsigned(count + unread)
    });
    Ok(highest.min())
}

/// The database's own point, where it can be read.
fn applied(data_dir: &Path) -> Option<Point> {
    let (mut file, size) = open_regular(&database(data_dir)).ok()?;
    let summary = (size > 0)
        .then(|| bolt::walk_live(&mut file).ok())
        .flatten()?;
    Some(Point {
        revision: summary.revision.max(summary.compacted).max(BORN.revision),
        index: summary.consistent_index?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::wal::writer::{Dir, Writer};

    fn highest(dir: &Dir, known: &[Point], seen: Option<u64>) -> Option<i64> {
        reach(&dir.data(), Some(Line::V3_6), known, seen)
            .unwrap()
            .at_most
    }

    #[test]
    fn revisions_are_counted_from_a_known_point() {
        let mut log = Writer::default();
        log.head();
        for index in 1..=9 {
            log.entry(index, 100);
            log.state(index - 1);
        }
        let snapshot = Point {
            revision: 40,
            index: 6,
        };
        let dir = Dir::new();
        assert_eq!(highest(&dir, &[BORN], None), None, "no log tells nothing");
        dir.put(0, 0, &log.bytes);
        assert_eq!(highest(&dir, &[BORN], None), Some(10));
        assert_eq!(highest(&dir, &[snapshot], None), Some(43));
        // Older segments are gone: each of their entries may have written.
        let mut later = Writer::default();
        later.head();
        later.entry(10, 100);
        let dir = Dir::new();
        dir.put(4, 10, &later.bytes);
        assert_eq!(highest(&dir, &[snapshot], None), Some(44));
        assert_eq!(highest(&dir, &[snapshot, BORN], None), Some(11));
    }

    #[test]
    fn what_cannot_be_read_counts_where_it_is_known_to_end() {
        let mut log = Writer::default();
        log.head();
        for index in 1..=9 {
            log.entry(index, 100);
            log.state(index - 1);
        }
        let dir = Dir::new();
        let fifth = log.frames[2 + 2 * 4];
        let mut bytes = log.bytes.clone();
        bytes[fifth + 60] ^= 1;
        dir.put(0, 0, &bytes);
        assert_eq!(
            highest(&dir, &[BORN], None),
            Some(10),
            "four, and five at most"
        );
        // Nothing is left behind it.
        let last = log.frames[2 + 2 * 8];
        let mut bytes = log.bytes[..log.frames[2 + 2 * 8 + 1]].to_vec();
        bytes[last + 60] ^= 1;
        dir.put(0, 0, &bytes);
        assert_eq!(highest(&dir, &[BORN], None), None);
        assert_eq!(highest(&dir, &[BORN], Some(12)), Some(13));
    }
}
