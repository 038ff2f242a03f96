//! What lies behind the place where etcd would end the log: records that were whole once, and among
//! them the proof that they were committed.
//!
//! After a power cut a few of the last, never acknowledged records may lie behind a hole. A state
//! whose commit index is beyond the readable end was written only after the entries up to there had
//! reached the disk: cutting those off would lose acknowledged writes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use rustix::fs::{Advice, SeekFrom};

use super::record::{HEAD, Kind, lengths, numbers, parse};

/// Read at once.
const CHUNK: usize = 64 * 1024;
/// Frames begin at multiples of this.
const ALIGNMENT: u64 = 8;

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Beyond {
    /// The last entry.
    pub(super) last_index: Option<u64>,
    /// The highest commit index.
    pub(super) committed: Option<u64>,
}

/// Looks through a segment from this place on. Passes over holes and over blocks that are allocated
/// and were never written: etcd allocates 64 MB for a segment, most of which nobody ever wrote.
pub(super) fn search(file: &File, from: u64, size: u64) -> io::Result<Beyond> {
    forget(file, from);
    let mut found = Beyond::default();
    let mut at = from.next_multiple_of(ALIGNMENT);
    let mut chunk = vec![0; CHUNK];
    while let Some((begin, end)) = next_data(file, at, size) {
        at = at.max(begin / ALIGNMENT * ALIGNMENT);
        while at + 2 * HEAD <= end {
            let count = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK);
            file.read_exact_at(&mut chunk[..count], at)?;
            let words: &[u8] = &chunk[..count];
            let candidate = words.windows(16).step_by(8).position(|it| {
                let field = u64::from_le_bytes(it[..8].try_into().unwrap_or_default());
                field != 0 && fits(field, size - at) && is_record(&it[8..])
            });
            let Some(candidate) = candidate else {
                // The last word's record begins in the next chunk.
                at += (count as u64).saturating_sub(ALIGNMENT).max(ALIGNMENT);
                continue;
            };
            at += candidate as u64 * ALIGNMENT;
            let followed = follow(file, at, size, &mut found)?;
            at = followed.max(at + ALIGNMENT);
        }
        at = at.max(end.next_multiple_of(ALIGNMENT));
    }
    Ok(found)
}

/// Drops what the kernel keeps of the file behind `from`, and asks it not to read ahead. Once they are
/// in memory, blocks that nobody wrote look like data, and reading them brings the ones behind them.
/// What was written stays on the disk, or in memory until it is there.
fn forget(file: &File, from: u64) {
    for advice in [Advice::DontNeed, Advice::Random] {
        // Without it the search is slower, and finds the same.
        let _ = rustix::fs::fadvise(file, from, None, advice);
    }
}

/// Where the next bytes are that were ever written, up to the next ones that were not; all of the rest
/// where the file system does not tell.
fn next_data(file: &File, at: u64, size: u64) -> Option<(u64, u64)> {
    let seek = |it| rustix::fs::seek(file, it);
    if at + 2 * HEAD > size {
        return None;
    }
    match seek(SeekFrom::Data(at)) {
        Ok(begin) => {
            let end = seek(SeekFrom::Hole(begin)).unwrap_or(size).min(size);
            (begin + 2 * HEAD <= size).then_some((begin, end))
        }
        Err(rustix::io::Errno::NXIO) => None,
        Err(_) => Some((at, size)),
    }
}

/// Whether this can be the head of a frame.
fn fits(field: u64, rest: u64) -> bool {
    let (length, padding) = lengths(field);
    let flagged = match field >> 56 {
        0 => padding == 0,
        flag => (0x81..=0x87).contains(&flag),
    };
    let whole = length.saturating_add(padding);
    flagged && length >= 4 && whole.is_multiple_of(ALIGNMENT) && whole.saturating_add(HEAD) <= rest
}

/// Every record of etcd's begins with its kind, and its sum follows.
fn is_record(body: &[u8]) -> bool {
    matches!(body, [0x08, 1..=5, 0x10, ..])
}

/// Reads records from here on for as long as each continues the sum of the one before; where the last
/// of them ends.
fn follow(file: &File, from: u64, size: u64, found: &mut Beyond) -> io::Result<u64> {
    let (mut at, mut crc) = (from, None);
    let mut body = Vec::new();
    loop {
        let mut head = [0; 16];
        if at + 2 * HEAD > size {
            return Ok(at);
        }
        file.read_exact_at(&mut head, at)?;
        let field = u64::from_le_bytes(head[..8].try_into().unwrap_or_default());
        if field == 0 || !fits(field, size - at) || !is_record(&head[8..]) {
            return Ok(at);
        }
        let (length, padding) = lengths(field);
        body.resize(usize::try_from(length).unwrap_or(0), 0);
        file.read_exact_at(&mut body, at + HEAD)?;
        let Ok(record) = parse(&body) else {
            return Ok(at);
        };
        // The first one is believed its sum, and nothing else.
        let sound = crc.map(|crc| match record.kind {
            Kind::Checksum => record.crc == crc,
            _ => record.crc == crc32c::crc32c_append(crc, record.data),
        });
        match sound {
            Some(false) => return Ok(at),
            Some(true) => found.take(record.kind, record.data),
            None => {}
        }
        crc = Some(record.crc);
        at += HEAD + length + padding;
    }
}

impl Beyond {
    fn take(&mut self, kind: Kind, data: &[u8]) {
        match (kind, numbers(data)) {
            (Kind::Entry, Ok([_, _, index])) => self.last_index = self.last_index.max(Some(index)),
            (Kind::State, Ok([_, _, commit])) => self.committed = self.committed.max(Some(commit)),
            _ => {}
        }
    }
}
