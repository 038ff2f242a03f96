//! The write-ahead log, read as etcd reads it and never written: whose it is, how far it reaches, and
//! where etcd cannot read on.
//!
//! A torn end, which etcd cuts off by itself, is no damage; what would be cut off with it is, once it
//! was committed. Damage before the last segment is never repaired by etcd. Verified against etcd's
//! `server/storage/wal` of 3.5, 3.6 and 3.7, and against the programs themselves.

mod beyond;
mod record;

use std::path::{Path, PathBuf};

use beyond::Beyond;
#[cfg(test)]
pub(super) use record::writer;
use record::{Field, Fields, Flaw, Frame, Kind, Record, Segment, numbers, parse};

use super::files::{Unreadable, list, name_of};
use crate::cluster::{ClusterId, MemberId};
use crate::start::damage::{Damage, ENTRY_UNREADABLE, FileName, LOG_DAMAGED, LOG_TORN, Lost};
use crate::version::Line;

/// More marks of raft snapshots than five segments can sensibly hold; older ones are forgotten.
const MARKS_MAX: usize = 64 * 1024;

/// A segment by its name: its number, and the index of its first entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) number: u64,
    pub(super) first_index: u64,
    pub(super) path: PathBuf,
}

/// The segments of a log, oldest first. Whatever is named otherwise is ignored, as by etcd.
pub(super) fn segments(dir: &Path) -> Result<Vec<Name>, Unreadable> {
    let mut found: Vec<Name> = list(dir)?.iter().filter_map(|it| named(it)).collect();
    found.sort();
    Ok(found)
}

fn named(path: &Path) -> Option<Name> {
    let stem = path.file_name()?.to_str()?.strip_suffix(".wal")?;
    let (number, first) = stem.split_once('-')?;
    let hex = |it: &str| u64::from_str_radix(it, 16).ok();
    Some(Name {
        number: hex(number)?,
        first_index: hex(first)?,
        path: path.to_owned(),
    })
}

impl Name {
    /// Cluster and member of its log. A segment that was allocated and not used yet has none.
    pub(super) fn owner(&self) -> Option<(ClusterId, MemberId)> {
        let mut segment = Segment::open(&self.path).ok()?;
        // Checksum, then metadata; a few more are looked at, none is needed.
        for _ in 0..4 {
            let Ok(Frame::Body) = segment.read() else {
                return None;
            };
            let record = parse(segment.record()).ok()?;
            if record.kind == Kind::Metadata {
                let [member, cluster, _] = numbers(record.data).ok()?;
                return Some((ClusterId(cluster), MemberId(member)));
            }
        }
        None
    }
}

/// A raft snapshot as the log mentions it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) term: u64,
    pub(super) index: u64,
}

/// An entry, for whoever counts them.
pub(super) struct Entry<'a> {
    pub(super) index: u64,
    /// What it asks for; empty where it asks for nothing or for a change of members.
    pub(super) request: &'a [u8],
}

/// What a scan found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The last whole entry.
    pub(super) last_index: Option<u64>,
    /// The last entry that the log says was committed.
    pub(super) committed: u64,
    /// Raft snapshots in order.
    pub(super) marks: Vec<Mark>,
    /// The last request of the v2 kind.
    pub(super) last_v2: Option<u64>,
    /// The last hole between two entries.
    pub(super) gap: Option<Gap>,
    /// Bytes of the segment whose torn end etcd cuts off, after it has copied it.
    pub(super) repair: Option<u64>,
    /// Where etcd cannot read on.
    pub(super) damage: Option<Damage>,
    /// The log says whose it is.
    owned: bool,
}

impl Found {
    /// Whether requests of the v2 kind lie behind the last raft snapshot, from which etcd reads on.
    pub(super) fn replays_v2(&self) -> bool {
        let snapshot = self
            .marks
            .iter()
            .rev()
            .find(|it| it.index <= self.committed);
        self.last_v2 > snapshot.map(|it| it.index)
    }
}

/// Entries that no segment holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) file: FileName,
    pub(super) offset: u64,
}

/// The newest segment, from which nearly all can be told: etcd may not need the older ones. Where it
/// does not stand by itself, all of them.
pub(super) fn scan_newest(
    segments: &[Name],
    line: Option<Line>,
    each: &mut dyn FnMut(&Entry<'_>),
) -> Result<Found, Unreadable> {
    let newest = &segments[segments.len().saturating_sub(1)..];
    let Some(name) = newest.first() else {
        return Ok(Found::default());
    };
    let mut segment = Segment::open(&name.path)?;
    let begins = matches!(segment.read(), Ok(Frame::Body))
        && parse(segment.record()).is_ok_and(|it| it.kind == Kind::Checksum);
    if begins || segments.len() == 1 {
        let found = scan(newest, line, each)?;
        if found.owned || found.damage.is_some() {
            return Ok(found);
        }
    }
    scan(segments, line, each)
}

/// Reads segments to their end, or to where etcd cannot read on.
pub(super) fn scan(
    segments: &[Name],
    line: Option<Line>,
    each: &mut dyn FnMut(&Entry<'_>),
) -> Result<Found, Unreadable> {
    let mut scan = Scan {
        line,
        crc: 0,
        metadata: None,
        found: Found {
            last_index: segments.first().map(|it| it.first_index.saturating_sub(1)),
            ..Found::default()
        },
        each,
    };
    for (position, name) in segments.iter().enumerate() {
        let mut segment = Segment::open(&name.path)?;
        let is_last = position + 1 == segments.len();
        let mut stop = scan.segment(&mut segment, name, is_last)?;
        let before = position.checked_sub(1).map(|it| segments[it].number + 1);
        if let Stop::Dead(_, what) = &mut stop
            && *what == CHAIN_BROKEN
            && before.is_some_and(|it| it != name.number)
        {
            *what = SEGMENT_MISSING;
        }
        if is_last {
            scan.end(&segment, name, stop)?;
        } else if let Stop::Cut(what) | Stop::Dead(_, what) = stop {
            // Of the last segment it is known at least where it begins.
            let last = &segments[segments.len() - 1..];
            let to = self::scan(last, line, &mut |_| ())?.last_index;
            scan.found.damage = Some(scan.damage(name, segment.at, LOG_DAMAGED, what, to));
            break;
        }
    }
    if let (false, None, Some(first)) = (
        scan.metadata.is_some(),
        &scan.found.damage,
        segments.first(),
    ) {
        let what = "no record says whose log it is";
        scan.found.damage = Some(scan.damage(first, 0, LOG_DAMAGED, what, None));
    }
    scan.found.owned = scan.metadata.is_some();
    Ok(scan.found)
}

/// Where and why reading stopped.
#[derive(Clone, Copy)]
enum Stop {
    /// Nothing more was written.
    End,
    /// etcd cuts the log off here.
    Cut(&'static str),
    /// etcd ends; reason and words.
    Dead(&'static str, &'static str),
}

const CUT_SHORT: &str = "a record reaches beyond the end of the file";
const TORN: &str = "a record has sectors of nothing but zeros";
const SHORT: &str = "a record ends in its middle";
const GARBLED: &str = "a record cannot be read";
const SUM_DIFFERS: &str = "a record fails its checksum";
const CHAIN_BROKEN: &str = "it does not continue the segment before it";
const SEGMENT_MISSING: &str = "the segment before it is missing";
const HIDDEN: &str = "etcd would end the log here, and committed entries lie behind";

struct Scan<'a> {
    line: Option<Line>,
    crc: u32,
    metadata: Option<Vec<u8>>,
    found: Found,
    each: &'a mut dyn FnMut(&Entry<'_>),
}

impl Scan<'_> {
    fn segment(
        &mut self,
        segment: &mut Segment,
        name: &Name,
        is_last: bool,
    ) -> Result<Stop, Unreadable> {
        loop {
            match segment
                .read()
                .map_err(|it| Unreadable::io(&name.path, &it))?
            {
                Frame::Body => {}
                Frame::End => return Ok(Stop::End),
                Frame::CutShort => return Ok(Stop::Cut(CUT_SHORT)),
            }
            let torn = is_last && segment.is_torn();
            let record = match parse(segment.record()) {
                Ok(record) => record,
                Err(_) if torn => return Ok(Stop::Cut(TORN)),
                // 3.7 parses with another library, whose error is not taken for a torn write.
                Err(Flaw::Short) if self.line.is_some_and(|it| it < Line::V3_7) => {
                    return Ok(Stop::Cut(SHORT));
                }
                Err(Flaw::Short) => return Ok(Stop::Dead(LOG_TORN, SHORT)),
                Err(Flaw::Other) => return Ok(Stop::Dead(LOG_TORN, GARBLED)),
            };
            if record.kind == Kind::Checksum {
                // The sum of everything before; the first record of the first segment has none.
                if self.crc != 0 && record.crc != self.crc {
                    return Ok(Stop::Dead(LOG_DAMAGED, CHAIN_BROKEN));
                }
                self.crc = record.crc;
                continue;
            }
            let crc = crc32c::crc32c_append(self.crc, record.data);
            if crc != record.crc {
                return Ok(if torn {
                    Stop::Cut(TORN)
                } else {
                    Stop::Dead(LOG_DAMAGED, SUM_DIFFERS)
                });
            }
            self.crc = crc;
            if let Err((reason, what)) = self.take(&record, name, segment.at) {
                return Ok(Stop::Dead(reason, what));
            }
        }
    }

    fn take(
        &mut self,
        record: &Record<'_>,
        name: &Name,
        at: u64,
    ) -> Result<(), (&'static str, &'static str)> {
        let unfit = |_| (LOG_DAMAGED, GARBLED);
        match record.kind {
            Kind::Metadata => match &self.metadata {
                Some(before) if before != record.data => {
                    return Err((LOG_DAMAGED, "it is the log of another member"));
                }
                _ => self.metadata = Some(record.data.to_vec()),
            },
            Kind::Entry => {
                let unfit = |_| (ENTRY_UNREADABLE, "an entry is none that etcd can read");
                let entry = entry(record.data).map_err(unfit)?;
                let last = self.found.last_index.unwrap_or(0);
                if entry.index > last + 1 {
                    self.found.gap = Some(Gap {
                        from: last + 1,
                        to: entry.index - 1,
                        file: name_of(&name.path),
                        offset: at,
                    });
                }
                self.found.last_index = Some(entry.index);
                if is_v2(entry.request) {
                    self.found.last_v2 = Some(entry.index);
                }
                (self.each)(&entry);
            }
            Kind::State => {
                let [_, _, commit] = numbers(record.data).map_err(unfit)?;
                self.found.committed = commit;
            }
            Kind::Snapshot => {
                let [index, term, _] = numbers(record.data).map_err(unfit)?;
                if self.found.marks.len() == MARKS_MAX {
                    self.found.marks.remove(0);
                }
                self.found.marks.push(Mark { term, index });
                // A snapshot that a leader sent stands for the entries before it.
                self.found.last_index = self.found.last_index.max(Some(index));
            }
            Kind::Checksum => {}
            Kind::Unknown => {
                return Err((LOG_DAMAGED, "a record of a kind that etcd does not know"));
            }
        }
        Ok(())
    }

    /// What the end of the last segment means.
    fn end(&mut self, segment: &Segment, name: &Name, stop: Stop) -> Result<(), Unreadable> {
        let last = self.found.last_index.unwrap_or(0);
        let beyond = beyond::search(segment.file(), segment.at + 1, segment.size)
            .map_err(|it| Unreadable::io(&name.path, &it))?;
        let Beyond {
            last_index,
            committed,
        } = beyond;
        let to = last_index.max(committed).filter(|it| *it > last);
        let hides_committed = committed.is_some_and(|it| it > last);
        self.found.damage = match stop {
            Stop::Dead(LOG_TORN, what) if to.is_none() => {
                Some(self.damage(name, segment.at, LOG_TORN, what, None))
            }
            Stop::Dead(ENTRY_UNREADABLE, what) => {
                Some(self.damage(name, segment.at, ENTRY_UNREADABLE, what, to))
            }
            Stop::Dead(_, what) => Some(self.damage(name, segment.at, LOG_DAMAGED, what, to)),
            Stop::End | Stop::Cut(_) if hides_committed => {
                Some(self.damage(name, segment.at, LOG_DAMAGED, HIDDEN, to))
            }
            Stop::Cut(_) => {
                self.found.repair = Some(segment.size);
                None
            }
            Stop::End => None,
        };
        Ok(())
    }

    fn damage(
        &self,
        name: &Name,
        offset: u64,
        reason: &'static str,
        what: &'static str,
        to: Option<u64>,
    ) -> Damage {
        let from = self.found.last_index.unwrap_or(0) + 1;
        Damage {
            reason,
            file: name_of(&name.path),
            offset: Some(offset),
            what,
            lost: Lost::Entries { from, to },
        }
    }
}

/// `raftpb.Entry`: kind, term, index, data.
fn entry(data: &[u8]) -> Result<Entry<'_>, Flaw> {
    let mut entry = Entry {
        index: 0,
        request: &[],
    };
    let mut is_request = true;
    let mut fields = Fields(data);
    while let Some((number, field)) = fields.next()? {
        match (number, field) {
            (1, Field::Number(kind)) => is_request = kind == 0,
            (3, Field::Number(index)) => entry.index = index,
            (4, Field::Bytes(request)) => entry.request = request,
            (1..=4, Field::Bytes(_) | Field::Fixed) | (4, _) => return Err(Flaw::Other),
            _ => {}
        }
    }
    if !is_request {
        entry.request = &[];
    }
    Ok(entry)
}

/// A `snappb.Snapshot` is a sum, and what it is of.
pub(super) fn is_whole_snapshot(bytes: &[u8]) -> bool {
    let (mut sum, mut content) = (0, &[][..]);
    let mut fields = Fields(bytes);
    loop {
        match fields.next() {
            Ok(Some((1, Field::Number(it)))) => sum = it,
            Ok(Some((2, Field::Bytes(it)))) => content = it,
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(_) => return false,
        }
    }
    !content.is_empty() && sum != 0 && u64::from(crc32c::crc32c(content)) == sum
}

/// Whether a request may make a new revision: a put, a deletion of a range, a transaction, the end of
/// a lease.
pub(super) fn may_write(request: &[u8]) -> bool {
    let mut fields = Fields(request);
    loop {
        match fields.next() {
            Ok(Some((4..=6 | 9, Field::Bytes(_)))) => return true,
            Ok(Some(_)) => {}
            Ok(None) => return false,
            Err(_) => return true, // what cannot be read is counted
        }
    }
}

/// Whether a request is one of the v2 kind, as which etcd 3.5 writes members' attributes and the cluster's version: either
/// one by itself, or inside an `InternalRaftRequest`. In both its second field holds bytes.
fn is_v2(request: &[u8]) -> bool {
    let mut fields = Fields(request);
    while let Ok(Some((number, field))) = fields.next() {
        match (number, field) {
            (1, _) => {}
            (2, Field::Bytes(_)) => return true,
            _ => return false,
        }
    }
    false
}

/// The field of an `InternalRaftRequest` with a `ClusterVersionSetRequest`, whose first field is the version.
const CLUSTER_VERSION_SET: u64 = 1300;

/// The version on which the cluster agrees with a request.
pub(super) fn agreed(request: &[u8]) -> Option<&str> {
    let field = |bytes, wanted: u64| {
        let mut fields = Fields(bytes);
        while let Ok(Some((number, field))) = fields.next() {
            if let Field::Bytes(it) = field
                && number == wanted
            {
                return Some(it);
            }
        }
        None
    };
    std::str::from_utf8(field(field(request, CLUSTER_VERSION_SET)?, 1)?).ok()
}

#[cfg(test)]
mod tests {
    use super::record::writer::{Dir, Writer};
    use super::*;

    impl Dir {
        fn newest(&self, line: Line) -> Found {
            scan_newest(&segments(&self.0).unwrap(), Some(line), &mut |_| ()).unwrap()
        }

        fn all(&self, line: Line) -> Found {
            scan(&segments(&self.0).unwrap(), Some(line), &mut |_| ()).unwrap()
        }
    }

    const LINES: [Line; 3] = [Line::V3_5, Line::V3_6, Line::V3_7];

    /// A segment as etcd writes it: each entry is committed by the state behind the next one.
    fn log(count: u64) -> Writer {
        log_of(count, 600)
    }

    fn log_of(count: u64, bytes: usize) -> Writer {
        let mut it = Writer::default();
        it.head();
        it.snapshot(0, 0);
        for index in 1..=count {
            it.entry(index, bytes);
            it.state(index - 1);
        }
        it
    }

    fn allocated(mut bytes: Vec<u8>) -> Vec<u8> {
        bytes.extend([0; 8192]);
        bytes
    }

    fn one(bytes: &[u8]) -> Dir {
        let dir = Dir::new();
        dir.put(0, 0, bytes);
        dir
    }

    fn lost(found: &Found) -> (u64, Option<u64>) {
        match found.damage.as_ref().unwrap().lost {
            Lost::Entries { from, to } => (from, to),
            Lost::Unknown => panic!("unknown"),
        }
    }

    #[test]
    fn a_sound_log_reaches_its_last_entry() {
        let dir = one(&allocated(log(4).bytes));
        for line in LINES {
            let found = dir.newest(line);
            assert_eq!((found.last_index, found.repair), (Some(4), None));
            assert_eq!((found.damage, found.gap), (None, None));
            assert_eq!(found.committed, 3);
        }
        let [name] = &segments(&dir.0).unwrap()[..] else {
            panic!()
        };
        assert_eq!(name.owner(), Some((ClusterId(0xc1), MemberId(7))));
        crate::state::write_file(&dir.0.join("note.wal"), b"no segment").unwrap();
        assert_eq!(dir.newest(Line::V3_6).last_index, Some(4));
    }

    /// Whatever byte is changed: what is not damage is either padding or a torn end behind which nothing
    /// was committed.
    #[test]
    fn every_changed_byte_is_damage_or_ends_the_log_where_nothing_was_committed() {
        let sound = log_of(4, 150);
        let dir = one(&[]);
        for position in 0..sound.bytes.len() {
            let mut bytes = sound.bytes.clone();
            bytes.extend([0; 64]);
            bytes[position] ^= 0x55;
            dir.put(0, 0, &bytes);
            for line in LINES {
                let found = dir.newest(line);
                let unharmed = found.last_index == Some(4) && found.repair.is_none();
                // The last state says that three were committed.
                let torn = found.repair.is_some() && found.last_index >= Some(3);
                assert!(
                    found.damage.is_some() || unharmed || torn,
                    "{line:?} byte {position}: {found:?}"
                );
            }
        }
    }

    #[test]
    fn a_torn_end_is_cut_off_and_no_damage() {
        let sound = log(4);
        let state = sound.frames[sound.frames.len() - 1];
        let entry = sound.frames[sound.frames.len() - 2];
        // The file ends in the record; as etcd truncates what it repairs.
        for end in [entry + 4, entry + 28, entry + 300] {
            let found = one(&sound.bytes[..end]).newest(Line::V3_6);
            assert_eq!((found.last_index, &found.damage), (Some(3), &None), "{end}");
            assert_eq!(found.repair, Some(end as u64));
        }
        // A sector of it never reached the disk.
        let mut bytes = allocated(sound.bytes.clone());
        let sector = (entry + 100).next_multiple_of(512);
        bytes[sector..sector + 512].fill(0);
        bytes[state..].fill(0);
        let found = one(&bytes).newest(Line::V3_6);
        assert_eq!((found.last_index, &found.damage), (Some(3), &None));
        assert!(found.repair.is_some());
        // And what came behind it, in the same write, did: it was committed by nobody.
        let mut bytes = allocated(sound.bytes.clone());
        bytes[sector..sector + 512].fill(0);
        let found = one(&bytes).newest(Line::V3_6);
        assert_eq!((found.last_index, &found.damage), (Some(3), &None));
        // Nothing of it did.
        let mut bytes = allocated(sound.bytes[..entry].to_vec());
        bytes.truncate(bytes.len() - bytes.len() % 8);
        let found = one(&bytes).newest(Line::V3_6);
        assert_eq!((found.last_index, found.repair), (Some(3), None));
    }

    #[test]
    fn a_half_written_record_that_etcd_does_not_cut_off_is_damage() {
        let sound = log_of(4, 60);
        let entry = sound.frames[sound.frames.len() - 2];
        assert_eq!(
            entry / 512,
            (entry + 110) / 512,
            "no sector of it is all zero"
        );
        let mut bytes = allocated(sound.bytes.clone());
        bytes[entry + 10..].fill(0);
        let found = one(&bytes).newest(Line::V3_6);
        let damage = found.damage.clone().unwrap();
        assert_eq!(
            (damage.reason, damage.offset),
            (LOG_TORN, Some(entry as u64))
        );
        assert_eq!(lost(&found), (4, None));
    }

    /// Where etcd would end the log in its middle and start, without a word.
    #[test]
    fn committed_entries_are_not_cut_off() {
        let sound = log(9);
        let middle = sound.frames[2 + 1 + 2 * 4]; // the fifth entry
        for (what, damage) in [
            ("a length beyond the file", (70_u64 << 20).to_le_bytes()),
            ("zeros", [0; 8]),
        ] {
            let mut bytes = allocated(sound.bytes.clone());
            bytes[middle..middle + 8].copy_from_slice(&damage);
            for line in LINES {
                let found = one(&bytes).newest(line);
                let damage = found.damage.clone().unwrap();
                assert_eq!(damage.reason, LOG_DAMAGED, "{what}");
                assert_eq!(damage.offset, Some(middle as u64), "{what}");
                assert_eq!(lost(&found), (5, Some(9)), "{what}");
            }
        }
        let mut bytes = allocated(sound.bytes.clone());
        bytes[middle..(middle + 600).next_multiple_of(512)].fill(0);
        assert_eq!(lost(&one(&bytes).newest(Line::V3_6)), (5, Some(9)));
    }

    #[test]
    fn a_log_of_several_segments_is_one_chain() {
        let (mut first, mut second) = (log(3), Writer::default());
        second.crc = first.crc;
        second.head();
        second.entry(4, 100);
        second.state(4);
        let dir = one(&first.bytes);
        dir.put(1, 4, &allocated(second.bytes.clone()));
        for line in LINES {
            let (newest, all) = (dir.newest(line), dir.all(line));
            assert_eq!((newest.damage, all.damage), (None, None));
            assert_eq!((newest.last_index, all.last_index), (Some(4), Some(4)));
        }
        // An old one is torn: only the last one is ever repaired.
        let whole = first.bytes.clone();
        first.bytes.truncate(whole.len() - 20);
        dir.put(0, 0, &first.bytes);
        assert_eq!(dir.newest(Line::V3_6).damage, None, "it is not looked at");
        let found = dir.all(Line::V3_6);
        assert!(
            found
                .damage
                .as_ref()
                .unwrap()
                .file
                .ends_with("000-0000000000000000.wal")
        );
        assert_eq!(lost(&found), (4, Some(4)));
        // Its last records are gone.
        dir.put(0, 0, &whole[..log(3).frames[2 + 1 + 2 * 2]]);
        assert_eq!(dir.all(Line::V3_6).damage.unwrap().what, CHAIN_BROKEN);
        // The one between is gone.
        dir.put(0, 0, &whole);
        std::fs::remove_file(dir.0.join("0000000000000001-0000000000000004.wal")).unwrap();
        dir.put(2, 9, &allocated(second.bytes.clone()));
        second.crc ^= 1;
        let mut other = Writer {
            crc: second.crc,
            ..Writer::default()
        };
        other.head();
        dir.put(2, 9, &other.bytes);
        assert_eq!(dir.all(Line::V3_6).damage.unwrap().what, SEGMENT_MISSING);
    }

    /// etcd goes on in an empty segment without a head: the one before it carries the chain.
    #[test]
    fn a_segment_without_a_head_goes_on_from_the_one_before() {
        let first = log(3);
        let dir = one(&first.bytes);
        dir.put(1, 4, &[]);
        assert_eq!(dir.newest(Line::V3_6).last_index, Some(3));
        assert_eq!(dir.newest(Line::V3_6).damage, None);
        let mut second = Writer {
            crc: first.crc,
            ..Writer::default()
        };
        second.entry(4, 100);
        dir.put(1, 4, &allocated(second.bytes));
        let found = dir.newest(Line::V3_6);
        assert_eq!((found.last_index, found.damage), (Some(4), None));
    }

    /// As 3.5 writes it when it starts: `Request{ID: 5, Method: "PUT", Path: "/0/version"}`.
    const OF_3_5: &[u8] = b"\x08\x05\x12\x03PUT\x1a\x0a/0/version";

    #[test]
    fn requests_of_3_5_count_until_a_raft_snapshot_stands_for_them() {
        let mut log = log(2);
        log.request(3, OF_3_5);
        log.state(3);
        let newest = |it: &Writer| one(&allocated(it.bytes.clone())).newest(Line::V3_6);
        assert!(newest(&log).replays_v2());
        log.entry(4, 100);
        log.state(4);
        assert!(newest(&log).replays_v2());
        let mut early = Writer {
            bytes: log.bytes.clone(),
            frames: log.frames.clone(),
            crc: log.crc,
        };
        early.snapshot(2, 5); // one that is not committed stands for nothing
        assert!(newest(&early).replays_v2());
        log.snapshot(2, 2);
        assert!(newest(&log).replays_v2());
        log.snapshot(2, 4);
        assert!(!newest(&log).replays_v2());
        log.entry(5, 100);
        assert!(!newest(&log).replays_v2());
        // Inside of an InternalRaftRequest.
        log.request(6, b"\x12\x05\x12\x03PUT");
        assert!(newest(&log).replays_v2());
    }

    #[test]
    fn a_log_that_belongs_to_nobody_is_damage() {
        for bytes in [&[][..], &[0; 8192]] {
            let damage = one(bytes).newest(Line::V3_6).damage.unwrap();
            assert_eq!(damage.what, "no record says whose log it is");
        }
    }

    #[test]
    fn what_is_no_file_is_unreadable_and_no_damage() {
        let dir = Dir::new();
        let name = dir.0.join("0000000000000000-0000000000000000.wal");
        std::fs::create_dir(&name).unwrap();
        let scanned = scan_newest(&segments(&dir.0).unwrap(), Some(Line::V3_6), &mut |_| ());
        let why = scanned.unwrap_err().to_string();
        assert!(
            why.starts_with("member/wal/000") && why.ends_with("a directory, not a file"),
            "{why}"
        );
        std::fs::remove_dir(&name).unwrap();
        std::os::unix::fs::symlink("/no/such/disk", &name).unwrap();
        let scanned = scan_newest(&segments(&dir.0).unwrap(), Some(Line::V3_6), &mut |_| ());
        assert!(scanned.unwrap_err().to_string().contains("leads nowhere"));
    }

    /// etcd allocates 64 MB for a segment. Reading all of it cost every start 30 ms, and the memory.
    #[test]
    fn what_nobody_wrote_into_a_segment_is_neither_read_nor_kept_in_memory() {
        const ALLOCATED: u64 = 64_000_000;
        const BEHIND: u64 = 8 << 20;
        let dir = one(&log(4).bytes);
        let path = segments(&dir.0).unwrap()[0].path.clone();
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let none = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&file, none, 0, ALLOCATED).unwrap();
        file.sync_all().unwrap();
        let behind = || rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(BEHIND));
        let is_tmpfs = rustix::fs::fstatfs(&file).unwrap().f_type == 0x0102_1994;
        if is_tmpfs || behind().is_ok() {
            return; // its pages are no copies; another one may not tell what was written
        }
        // As after a boot, when something has read the whole file.
        std::io::copy(&mut &file, &mut std::io::sink()).unwrap();
        assert!(behind().is_ok());
        let found = dir.newest(Line::V3_6);
        assert_eq!((found.last_index, found.damage), (Some(4), None));
        assert_eq!(behind(), Err(rustix::io::Errno::NXIO));
    }

    #[test]
    fn requests_that_write_are_told_from_those_that_do_not() {
        let request = |field: u8| vec![0x08, 1, field << 3 | 2, 1, 0x55];
        for (field, writes) in [
            (3, false),
            (4, true),
            (5, true),
            (6, true),
            (7, false),
            (9, true),
        ] {
            assert_eq!(may_write(&request(field)), writes, "{field}");
        }
    }
}
