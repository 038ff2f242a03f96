//! One segment of the log, record by record: how etcd frames, sums and parses what it writes.
//!
//! A frame is a little-endian length, a record, and padding to eight bytes; a record carries its
//! kind, a running CRC-32C and data (etcd's `server/storage/wal`).

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read as _};
use std::path::Path;

use crate::etcd::files::{Unreadable, open_regular};

/// Bytes of a frame's length.
pub(super) const HEAD: u64 = 8;
/// etcd takes a record for torn when one of its sectors of this size is all zero.
const SECTOR: usize = 512;

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Metadata,
    Entry,
    State,
    Checksum,
    Snapshot,
    Unknown,
}

impl Kind {
    fn of(number: u64) -> Self {
        match number {
            1 => Kind::Metadata,
            2 => Kind::Entry,
            3 => Kind::State,
            4 => Kind::Checksum,
            5 => Kind::Snapshot,
            _ => Kind::Unknown,
        }
    }
}

/// `walpb.Record`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<'a> {
    pub(super) kind: Kind,
    pub(super) crc: u32,
    pub(super) data: &'a [u8],
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// A number or a field reaches beyond the end: what etcd 3.5 and 3.6 take for a torn write.
    Short,
    /// Anything else.
    Other,
}

/// A field of a message.
pub(super) enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// A fixed width, which no message here has.
    Fixed,
}

/// The fields of a message in order, as etcd's parser reads them.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Result<u64, Flaw> {
        let mut number = 0;
        for shift in (0..70_u32).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or(Flaw::Short)?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Flaw::Other)
    }

    fn take(&mut self, count: u64) -> Result<&'a [u8], Flaw> {
        if count > i64::MAX as u64 {
            return Err(Flaw::Other);
        }
        let count = usize::try_from(count).map_err(|_| Flaw::Short)?;
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Flaw::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Number and content of the next field; none at the end.
    pub(super) fn next(&mut self) -> Result<Option<(u64, Field<'a>)>, Flaw> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number = tag >> 3;
        if number == 0 {
            return Err(Flaw::Other);
        }
        let field = match tag & 7 {
            0 => Field::Number(self.varint()?),
            1 => self.take(8).map(|_| Field::Fixed)?,
            2 => {
                let length = self.varint()?;
                Field::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| Field::Fixed)?,
            _ => return Err(Flaw::Other),
        };
        Ok(Some((number, field)))
    }
}

/// The fields 1 to 3 of a message that has nothing but numbers there.
pub(super) fn numbers(bytes: &[u8]) -> Result<[u64; 3], Flaw> {
    let mut found = [0; 3];
    let mut fields = Fields(bytes);
    while let Some((number, field)) = fields.next()? {
        // Others are an entry's data, or the voters of a snapshot.
        if let (1..=3, Field::Number(value)) = (number, field) {
            found[usize::try_from(number - 1).unwrap_or(0)] = value;
        }
    }
    Ok(found)
}

/// Reads a record.
pub(super) fn parse(body: &[u8]) -> Result<Record<'_>, Flaw> {
    let mut record = Record {
        kind: Kind::Unknown,
        crc: 0,
        data: &[],
    };
    let mut fields = Fields(body);
    while let Some((number, field)) = fields.next()? {
        match (number, field) {
            (1, Field::Number(kind)) => record.kind = Kind::of(kind),
            (2, Field::Number(crc)) => record.crc = u32::try_from(crc & 0xffff_ffff).unwrap_or(0),
            (3, Field::Bytes(data)) => record.data = data,
            (1..=3, _) => return Err(Flaw::Other),
            _ => {}
        }
    }
    Ok(record)
}

/// Length of a record and of its padding, as the head of its frame says.
pub(super) fn lengths(field: u64) -> (u64, u64) {
    let padding = if field >> 63 == 1 {
        (field >> 56) & 7
    } else {
        0
    };
    (field & ((1 << 56) - 1), padding)
}

/// What stands at a place of a segment.
pub(super) enum Frame {
    /// A record; its bytes are in [`Segment::body`].
    Body,
    /// The allocated rest, or the end of the file.
    End,
    /// The file ends within the frame, or the length is none.
    CutShort,
}

/// A segment that is read from its begin.
pub(super) struct Segment {
    reader: BufReader<File>,
    pub(super) size: u64,
    /// Where the next frame begins.
    pub(super) next: u64,
    /// Where the last one began.
    pub(super) at: u64,
    body: Vec<u8>,
    record: usize,
}

impl Segment {
    pub(super) fn open(path: &Path) -> Result<Self, Unreadable> {
        let (file, size) = open_regular(path)?;
        Ok(Segment {
            reader: BufReader::with_capacity(64 * 1024, file),
            size,
            next: 0,
            at: 0,
            body: Vec::new(),
            record: 0,
        })
    }

    pub(super) fn file(&self) -> &File {
        self.reader.get_ref()
    }

    /// The record of the last frame, without its padding.
    pub(super) fn record(&self) -> &[u8] {
        &self.body[..self.record]
    }

    /// Reads the next frame.
    pub(super) fn read(&mut self) -> io::Result<Frame> {
        self.at = self.next;
        let mut head = [0; 8];
        let rest = self.size.saturating_sub(self.at);
        if rest == 0 {
            return Ok(Frame::End);
        }
        if rest < HEAD {
            return Ok(Frame::CutShort);
        }
        match self.reader.read_exact(&mut head) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(Frame::CutShort),
            other => other?,
        }
        let field = u64::from_le_bytes(head);
        if field == 0 {
            return Ok(Frame::End);
        }
        let (length, padding) = lengths(field);
        let whole = length.saturating_add(padding);
        if whole > rest - HEAD {
            return Ok(Frame::CutShort);
        }
        let bytes = usize::try_from(whole).map_err(|_| ErrorKind::OutOfMemory)?;
        self.body.resize(bytes, 0);
        match self.reader.read_exact(&mut self.body) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(Frame::CutShort),
            other => other?,
        }
        self.record = usize::try_from(length).unwrap_or(bytes);
        self.next = self.at + HEAD + whole;
        Ok(Frame::Body)
    }

    /// As etcd judges whether the last frame was torn by a power cut: a sector of it is all zero.
    pub(super) fn is_torn(&self) -> bool {
        is_torn(&self.body, self.at + HEAD)
    }
}

fn is_torn(body: &[u8], begin: u64) -> bool {
    let mut rest = body;
    let mut position = usize::try_from(begin % SECTOR as u64).unwrap_or(0);
    while !rest.is_empty() {
        let (sector, after) = rest.split_at(rest.len().min(SECTOR - position));
        if sector.iter().all(|it| *it == 0) {
            return true;
        }
        rest = after;
        position = 0;
    }
    false
}

/// Writes logs for tests.
#[cfg(test)]
pub(in crate::etcd) mod writer {
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// `member/wal` of a data directory; removed with it.
    pub(in crate::etcd) struct Dir(pub(in crate::etcd) PathBuf);

    impl Dir {
        pub(in crate::etcd) fn new() -> Self {
            static NUMBER: AtomicU32 = AtomicU32::new(0);
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let name = format!("wal-{}-{number}", std::process::id());
            let path = std::env::temp_dir().join(name).join("member/wal");
            std::fs::create_dir_all(&path).unwrap();
            Dir(path)
        }

        pub(in crate::etcd) fn put(&self, number: u64, first: u64, bytes: &[u8]) {
            let name = format!("{number:016x}-{first:016x}.wal");
            crate::state::write_file(&self.0.join(name), bytes).unwrap();
        }

        pub(in crate::etcd) fn data(&self) -> PathBuf {
            self.0.parent().unwrap().parent().unwrap().to_owned()
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(self.data());
        }
    }

    /// A segment under construction.
    #[derive(Clone, Default)]
    pub(in crate::etcd) struct Writer {
        pub(in crate::etcd) bytes: Vec<u8>,
        /// Where each frame begins.
        pub(in crate::etcd) frames: Vec<usize>,
        pub(in crate::etcd) crc: u32,
    }

    fn varint(bytes: &mut Vec<u8>, mut number: u64) {
        while number >= 0x80 {
            bytes.push(u8::try_from(number & 0x7f).unwrap() | 0x80);
            number >>= 7;
        }
        bytes.push(u8::try_from(number).unwrap());
    }

    fn message(numbers: &[(u64, u64)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (number, value) in numbers {
            varint(&mut bytes, number << 3);
            varint(&mut bytes, *value);
        }
        bytes
    }

    impl Writer {
        fn put(&mut self, kind: u64, crc: u32, data: Option<&[u8]>) {
            let mut body = message(&[(1, kind), (2, u64::from(crc))]);
            if let Some(data) = data {
                body.push(0x1a);
                varint(&mut body, data.len() as u64);
                body.extend(data);
            }
            let padding = (8 - body.len() % 8) % 8;
            let flag = if padding == 0 {
                0
            } else {
                (0x80 | padding as u64) << 56
            };
            self.frames.push(self.bytes.len());
            self.bytes.extend((body.len() as u64 | flag).to_le_bytes());
            self.bytes.extend(body);
            self.bytes.extend(vec![0; padding]);
        }

        fn summed(&mut self, kind: u64, data: &[u8]) {
            self.crc = crc32c::crc32c_append(self.crc, data);
            self.put(kind, self.crc, Some(data));
        }

        /// The head of a segment: the sum so far, and whose log it is.
        pub(in crate::etcd) fn head(&mut self) {
            self.put(4, self.crc, None);
            self.summed(1, &message(&[(1, 7), (2, 0xc1)]));
        }

        pub(in crate::etcd) fn snapshot(&mut self, term: u64, index: u64) {
            self.summed(5, &message(&[(1, index), (2, term)]));
        }

        pub(in crate::etcd) fn state(&mut self, commit: u64) {
            self.summed(3, &message(&[(1, 2), (2, 7), (3, commit)]));
        }

        /// An entry with a put of so many bytes.
        pub(in crate::etcd) fn entry(&mut self, index: u64, bytes: usize) {
            let mut put = vec![0x22]; // InternalRaftRequest.put
            varint(&mut put, bytes as u64);
            put.extend((0..bytes).map(|it| u8::try_from(it % 251 + 1).unwrap_or(1)));
            self.request(index, &put);
        }

        /// An entry with this request.
        pub(in crate::etcd) fn request(&mut self, index: u64, request: &[u8]) {
            let mut data = message(&[(1, 0), (2, 2), (3, index)]);
            data.push(0x22);
            varint(&mut data, request.len() as u64);
            data.extend(request);
            self.summed(2, &data);
        }
    }
}
