//! The write-ahead log, read as etcd reads it and never written: whose it is, how far it reaches,
//! and whether etcd can read it.
//!
//! A frame is a little-endian length, a record, and padding to eight bytes; a record carries its
//! kind, a running CRC-32C and data (etcd's `server/storage/wal`). Only the newest segment is read
//! to its end: etcd may not need the older ones.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use prost::Message as _;

use crate::cluster::{ClusterId, MemberId};
use crate::diagnosis;
use crate::start::Log;

/// `walpb.Record`.
#[derive(Clone, PartialEq, prost::Message)]
struct Record {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(uint32, tag = "2")]
    crc: u32,
    #[prost(bytes = "vec", optional, tag = "3")]
    data: Option<Vec<u8>>,
}

/// What the log says of its owner (`etcdserverpb.Metadata`).
#[derive(Clone, PartialEq, prost::Message)]
struct Metadata {
    #[prost(uint64, tag = "1")]
    member: u64,
    #[prost(uint64, tag = "2")]
    cluster: u64,
}

/// The part of `raftpb.Entry` that says where it stands.
#[derive(Clone, PartialEq, prost::Message)]
struct Entry {
    #[prost(uint64, tag = "3")]
    index: u64,
}

const METADATA_TYPE: i64 = 1;
const ENTRY_TYPE: i64 = 2;
const CRC_TYPE: i64 = 4;
/// etcd takes a record for torn when one of its sectors of this size is all zero.
const SECTOR: usize = 512;
/// A longer record than this is none: etcd's segments have 64 MB.
const RECORD_MAX: u64 = 128 << 20;

/// One frame as it stands in the file.
enum Frame {
    /// The body, and where in the file it begins.
    Body(Vec<u8>, u64),
    /// The allocated rest, or the end of the file.
    End,
    /// The file ends within the frame, or the length is none: etcd cuts it off.
    Torn,
}

struct Frames<R> {
    reader: R,
    offset: u64,
}

impl<R: Read> Frames<R> {
    fn next(&mut self) -> Frame {
        let mut field = [0_u8; 8];
        if self.reader.read_exact(&mut field).is_err() {
            return Frame::End;
        }
        let field = u64::from_le_bytes(field);
        let length = field & ((1 << 56) - 1);
        let padding = if field >> 63 == 1 {
            (field >> 56) & 7
        } else {
            0
        };
        if field == 0 {
            return Frame::End;
        }
        if length > RECORD_MAX {
            return Frame::Torn;
        }
        let mut body = Vec::new();
        let whole = length + padding;
        let read = self.reader.by_ref().take(whole).read_to_end(&mut body);
        if read.is_err() || body.len() as u64 != whole {
            return Frame::Torn;
        }
        let begin = self.offset + 8;
        self.offset = begin + whole;
        body.truncate(
            body.len()
                .saturating_sub(usize::try_from(padding).unwrap_or(0)),
        );
        Frame::Body(body, begin)
    }
}

/// Cluster and member of a log segment. A segment that was allocated and not used yet has none.
pub(super) fn owner(segment: &Path) -> Option<(ClusterId, MemberId)> {
    let mut frames = Frames {
        reader: BufReader::with_capacity(4096, File::open(segment).ok()?),
        offset: 0,
    };
    // Checksum, then metadata; a few more are looked at, none is needed.
    for _ in 0..4 {
        let Frame::Body(body, _) = frames.next() else {
            return None;
        };
        let record = Record::decode(body.as_slice()).ok()?;
        if record.kind == METADATA_TYPE {
            let metadata = Metadata::decode(record.data?.as_slice()).ok()?;
            return Some((ClusterId(metadata.cluster), MemberId(metadata.member)));
        }
    }
    None
}

/// Reads a segment to its end.
pub(super) fn scan(segment: &Path) -> Log {
    let Ok(file) = File::open(segment) else {
        return Log::UNREAD;
    };
    let before = first_index(segment).and_then(|it| it.checked_sub(1));
    scan_frames(
        Frames {
            reader: BufReader::with_capacity(64 * 1024, file),
            offset: 0,
        },
        before,
    )
}

/// A segment is called by its number and the index of its first entry.
fn first_index(segment: &Path) -> Option<u64> {
    let name = segment.file_stem()?.to_str()?;
    u64::from_str_radix(name.split_once('-')?.1, 16).ok()
}

fn scan_frames<R: Read>(mut frames: Frames<R>, before: Option<u64>) -> Log {
    let mut last_index = before;
    let mut crc = 0_u32;
    loop {
        let (body, begin) = match frames.next() {
            Frame::Body(body, begin) => (body, begin),
            Frame::End | Frame::Torn => {
                return Log {
                    last_index,
                    damage: None,
                };
            }
        };
        let Ok(record) = Record::decode(body.as_slice()) else {
            return unreadable(last_index, is_torn(&body, begin), "illegal tag 0");
        };
        let data = record.data.as_deref().unwrap_or_default();
        if record.kind == CRC_TYPE {
            // The sum of everything before; the first record of the first segment has none.
            if crc != 0 && record.crc != crc {
                return unreadable(last_index, false, "crc mismatch");
            }
            crc = record.crc;
            continue;
        }
        crc = crc32c::crc32c_append(crc, data);
        if crc != record.crc {
            return unreadable(last_index, is_torn(&body, begin), "crc mismatch");
        }
        if record.kind == ENTRY_TYPE {
            match Entry::decode(data) {
                Ok(entry) => last_index = Some(entry.index),
                Err(_) => return unreadable(last_index, false, "illegal tag 0"),
            }
        }
    }
}

/// What etcd cuts off by itself ends the log; the rest is damage.
fn unreadable(last_index: Option<u64>, torn: bool, text: &str) -> Log {
    let damage = if torn { None } else { diagnosis::by_text(text) };
    Log { last_index, damage }
}

/// As etcd judges it: a sector of the record is all zero.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A log with entries of these indexes, and where each frame ends.
    fn log(indexes: &[u64]) -> (Vec<u8>, Vec<usize>) {
        let mut bytes = Vec::new();
        let mut ends = Vec::new();
        let mut crc = 0;
        let mut put = |kind: i64, data: Option<Vec<u8>>, crc: u32| {
            let body = Record { kind, crc, data }.encode_to_vec();
            let padding = (8 - body.len() % 8) % 8;
            let flag = if padding == 0 {
                0
            } else {
                (0x80 | padding as u64) << 56
            };
            bytes.extend((body.len() as u64 | flag).to_le_bytes());
            bytes.extend(body);
            bytes.extend(vec![0; padding]);
            ends.push(bytes.len());
        };
        put(CRC_TYPE, None, 0);
        for index in indexes {
            let mut data = Entry { index: *index }.encode_to_vec();
            data.extend([0x22, 0xb0, 0x09]); // field 4, 1200 bytes
            data.extend((0..1200_u32).map(|it| u8::try_from(it % 251).unwrap_or(1)));
            crc = crc32c::crc32c_append(crc, &data);
            put(ENTRY_TYPE, Some(data), crc);
        }
        bytes.extend([0; 4096]);
        (bytes, ends)
    }

    fn read(bytes: &[u8]) -> Log {
        scan_frames(
            Frames {
                reader: bytes,
                offset: 0,
            },
            Some(0),
        )
    }

    #[test]
    fn a_sound_log_reaches_its_last_entry() {
        let (bytes, _) = log(&[1, 2, 3, 4]);
        assert_eq!(
            read(&bytes),
            Log {
                last_index: Some(4),
                damage: None
            }
        );
        assert_eq!(
            read(&[]),
            Log {
                last_index: Some(0),
                damage: None
            }
        );
    }

    #[test]
    fn every_changed_byte_of_an_entry_is_damage_or_ends_the_log_before_it() {
        let (bytes, ends) = log(&[1, 2, 3]);
        for position in ends[0]..ends[3] {
            let mut changed = bytes.clone();
            changed[position] ^= 0x55;
            let seen = read(&changed);
            let whole = (1..=3).filter(|it| position >= ends[*it]).count() as u64;
            let in_padding = seen == read(&bytes);
            assert!(
                in_padding || seen.damage.is_some() || seen.last_index == Some(whole),
                "byte {position}: {seen:?}"
            );
        }
    }

    #[test]
    fn zeros_over_whole_sectors_end_the_log_there() {
        let (mut bytes, ends) = log(&[1, 2, 3, 4]);
        bytes[ends[2]..].fill(0);
        assert_eq!(
            read(&bytes),
            Log {
                last_index: Some(2),
                damage: None
            }
        );
        let (mut bytes, ends) = log(&[1, 2, 3, 4]);
        bytes[ends[2] + 200..].fill(0);
        assert_eq!(
            read(&bytes),
            Log {
                last_index: Some(2),
                damage: None
            }
        );
    }
}
