//! zstd in independent frames with a table at the end: the published seekable format
//! (<https://github.com/facebook/zstd/blob/dev/contrib/seekable_format/zstd_seekable_compression_format.md>).
//!
//! Any zstd unpacks it; with the table a page can be read without unpacking what is before it. Each
//! frame carries a checksum of its content.

use std::collections::VecDeque;
use std::io;

use crate::etcd::read_at::{Pieces, ReadAt};

/// Bytes of content in a frame: a page is read by unpacking no more than this, in well under a
/// millisecond, and a database of 8 GiB has a table of 256 KiB.
pub const FRAME: usize = 256 * 1024;
/// Level 1: a third of the time of level 3 for some percent of size, and little memory (rule G9).
const LEVEL: i32 = 1;
/// The magic number of the skippable frame that holds the table.
const SKIPPABLE: u32 = 0x184D_2A5E;
/// The magic number at the end of the file.
const SEEKABLE: u32 = 0x8F92_EAB1;
/// Bytes at the end: number of frames, descriptor, magic number.
const FOOTER: usize = 9;
/// Bytes of the skippable frame's header.
const SKIP_HEADER: usize = 8;
/// Bytes of an entry of the table: compressed and unpacked size.
const ENTRY: usize = 8;
/// 64 GiB of content; the table of more would take memory for what no etcd holds.
const FRAMES_MAX: usize = 256 * 1024;
/// Frames that are kept unpacked.
const CACHED: usize = 6;

/// Packs a stream.
pub struct FrameWriter {
    compressor: zstd::bulk::Compressor<'static>,
    pending: Vec<u8>,
    packed: Vec<u8>,
    table: Vec<(u32, u32)>,
}

impl FrameWriter {
    /// A new stream.
    pub fn new() -> io::Result<Self> {
        let mut compressor = zstd::bulk::Compressor::new(LEVEL)?;
        compressor.include_checksum(true)?;
        Ok(FrameWriter {
            compressor,
            pending: Vec::with_capacity(FRAME),
            packed: Vec::with_capacity(zstd::zstd_safe::compress_bound(FRAME)),
            table: Vec::new(),
        })
    }

    /// Takes more content; whole frames go to the sink.
    pub fn write(
        &mut self,
        mut bytes: &[u8],
        sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        while !bytes.is_empty() {
            let count = bytes.len().min(FRAME - self.pending.len());
            self.pending.extend_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            if self.pending.len() == FRAME {
                self.flush(sink)?;
            }
        }
        Ok(())
    }

    fn flush(&mut self, sink: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        self.packed.clear();
        self.compressor
            .compress_to_buffer(&self.pending, &mut self.packed)?;
        sink(&self.packed)?;
        let entry = (size(self.packed.len())?, size(self.pending.len())?);
        self.table.push(entry);
        self.pending.clear();
        Ok(())
    }

    /// The last frame and the table.
    pub fn finish(mut self, sink: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        if !self.pending.is_empty() {
            self.flush(sink)?;
        }
        let entries = self.table.len();
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&SKIPPABLE.to_le_bytes());
        bytes.extend_from_slice(&size(entries * ENTRY + FOOTER)?.to_le_bytes());
        for (packed, unpacked) in &self.table {
            bytes.extend_from_slice(&packed.to_le_bytes());
            bytes.extend_from_slice(&unpacked.to_le_bytes());
        }
        bytes.extend_from_slice(&size(self.table.len())?.to_le_bytes());
        bytes.push(0); // entries carry no checksum: the frames do
        bytes.extend_from_slice(&SEEKABLE.to_le_bytes());
        sink(&bytes)
    }
}

fn size(count: usize) -> io::Result<u32> {
    u32::try_from(count).map_err(io::Error::other)
}

/// A frame's place in the file and in the content.
#[derive(Clone, Copy)]
struct Frame {
    packed_at: u64,
    packed: u32,
    at: u64,
    unpacked: u32,
}

/// Content of a seekable file, anywhere, with a few frames kept unpacked.
pub struct FrameReader<R> {
    source: R,
    frames: Vec<Frame>,
    size: u64,
    decompressor: zstd::bulk::Decompressor<'static>,
    packed: Vec<u8>,
    /// The one used last stands last.
    cache: VecDeque<(usize, Vec<u8>)>,
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|it| it.try_into().ok());
    word.map_or(0, u32::from_le_bytes)
}

impl<R: ReadAt> FrameReader<R> {
    /// Reads the table and sees that it accounts for every byte of the file.
    pub fn open(mut source: R) -> io::Result<Self> {
        let length = source.size();
        let no_table = "it does not end with a table of zstd frames";
        let mut footer = [0; FOOTER];
        let footer_at = length
            .checked_sub(FOOTER as u64)
            .ok_or_else(|| invalid(no_table))?;
        source.read_at(footer_at, &mut footer)?;
        let count = u32_at(&footer, 0) as usize;
        if u32_at(&footer, 5) != SEEKABLE || footer[4] != 0 {
            return Err(invalid(no_table));
        }
        if count > FRAMES_MAX {
            return Err(invalid("its table names more frames than any snapshot has"));
        }
        let table_bytes = count * ENTRY;
        let table_at = footer_at.checked_sub((table_bytes + SKIP_HEADER) as u64);
        let table_at = table_at.ok_or_else(|| invalid("its table is longer than the file"))?;
        let mut table = vec![0; table_bytes + SKIP_HEADER];
        source.read_at(table_at, &mut table)?;
        if u32_at(&table, 0) != SKIPPABLE || u32_at(&table, 4) as usize != table_bytes + FOOTER {
            return Err(invalid("its table of frames is damaged"));
        }
        let mut frames = Vec::with_capacity(count);
        let (mut packed_at, mut at) = (0, 0);
        for entry in table[SKIP_HEADER..].chunks_exact(ENTRY) {
            let (packed, unpacked) = (u32_at(entry, 0), u32_at(entry, 4));
            let sizes = (packed as usize, unpacked as usize);
            if !(1..=2 * FRAME).contains(&sizes.0) || !(1..=FRAME).contains(&sizes.1) {
                return Err(invalid("its table names a frame of a wrong size"));
            }
            frames.push(Frame {
                packed_at,
                packed,
                at,
                unpacked,
            });
            packed_at += u64::from(packed);
            at += u64::from(unpacked);
        }
        if packed_at != table_at {
            return Err(invalid(
                "its table of frames does not account for every byte",
            ));
        }
        Ok(FrameReader {
            source,
            frames,
            size: at,
            decompressor: zstd::bulk::Decompressor::new()?,
            packed: Vec::new(),
            cache: VecDeque::new(),
        })
    }

    /// Every frame in order, unpacked.
    pub fn copy_to(&mut self, sink: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let mut content = Vec::new();
        for index in 0..self.frames.len() {
            content = self.unpack(index, content)?;
            sink(&content)?;
        }
        Ok(())
    }

    /// What it reads from.
    pub fn into_source(self) -> R {
        self.source
    }

    fn unpack(&mut self, index: usize, mut content: Vec<u8>) -> io::Result<Vec<u8>> {
        let frame = self.frames[index];
        self.packed.resize(frame.packed as usize, 0);
        self.source.read_at(frame.packed_at, &mut self.packed)?;
        content.clear();
        content.reserve_exact(frame.unpacked as usize);
        let count = self
            .decompressor
            .decompress_to_buffer(&self.packed, &mut content)
            .map_err(|_| invalid("a zstd frame is damaged"))?;
        if count != frame.unpacked as usize {
            return Err(invalid("a zstd frame has another size than the table says"));
        }
        Ok(content)
    }

    /// The unpacked frame, from the cache if it is there.
    fn frame(&mut self, index: usize) -> io::Result<&[u8]> {
        match self.cache.iter().position(|(it, _)| *it == index) {
            Some(place) if place + 1 == self.cache.len() => {}
            Some(place) => {
                if let Some(it) = self.cache.remove(place) {
                    self.cache.push_back(it);
                }
            }
            None => {
                let reused = if self.cache.len() < CACHED {
                    Vec::new()
                } else {
                    self.cache.pop_front().map(|(_, it)| it).unwrap_or_default()
                };
                let content = self.unpack(index, reused)?;
                self.cache.push_back((index, content));
            }
        }
        Ok(self.cache.back().map_or(&[], |(_, it)| it.as_slice()))
    }
}

impl<R: ReadAt> Pieces for FrameReader<R> {
    fn total(&self) -> u64 {
        self.size
    }

    fn rest_at(&mut self, offset: u64) -> io::Result<&[u8]> {
        let index = self.frames.partition_point(|it| it.at <= offset);
        let index = index.checked_sub(1).ok_or(io::ErrorKind::UnexpectedEof)?;
        let inside = usize::try_from(offset - self.frames[index].at).map_err(io::Error::other)?;
        Ok(self.frame(index)?.get(inside..).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pack(content: &[u8]) -> Vec<u8> {
        let mut file = Vec::new();
        let mut sink = |bytes: &[u8]| {
            file.extend_from_slice(bytes);
            Ok(())
        };
        let mut writer = FrameWriter::new().unwrap();
        for part in content.chunks(32 * 1024 + 7) {
            writer.write(part, &mut sink).unwrap();
        }
        writer.finish(&mut sink).unwrap();
        file
    }

    fn content(length: usize) -> Vec<u8> {
        (0_u32..)
            .map(|it| it.wrapping_mul(2_654_435_761).to_le_bytes()[3] & 0x1f)
            .take(length)
            .collect()
    }

    #[test]
    fn any_part_can_be_read_and_any_zstd_unpacks_it() {
        for length in [0, 1, FRAME - 1, FRAME, FRAME + 1, 3 * FRAME + 77] {
            let content = content(length);
            let file = pack(&content);
            assert_eq!(zstd::stream::decode_all(file.as_slice()).unwrap(), content);
            let mut reader = FrameReader::open(file.as_slice()).unwrap();
            assert_eq!(reader.size(), length as u64);
            for (from, to) in [(0, length), (length / 2, length), (0, length.min(9))] {
                let mut buffer = vec![0; to - from];
                reader.read_at(from as u64, &mut buffer).unwrap();
                assert_eq!(buffer, content[from..to]);
            }
            let beyond = reader.read_at(length as u64, &mut [0]);
            assert_eq!(beyond.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
    }

    /// No byte of such frames has to be there for gigabytes of content to be claimed.
    #[test]
    fn frames_of_no_bytes_and_more_of_them_than_any_snapshot_has_are_refused() {
        let table = |frames: usize, packed: u32| {
            let mut file = vec![0; frames * packed as usize];
            file.extend_from_slice(&SKIPPABLE.to_le_bytes());
            file.extend_from_slice(&size(frames * ENTRY + FOOTER).unwrap().to_le_bytes());
            for _ in 0..frames {
                file.extend_from_slice(&packed.to_le_bytes());
                file.extend_from_slice(&size(FRAME).unwrap().to_le_bytes());
            }
            file.extend_from_slice(&size(frames).unwrap().to_le_bytes());
            file.push(0);
            file.extend_from_slice(&SEEKABLE.to_le_bytes());
            FrameReader::open(file.as_slice()).map(|it| it.size())
        };
        assert_eq!(table(3, 1).unwrap(), 3 * FRAME as u64);
        assert!(table(3, 0).is_err());
        assert!(table(FRAMES_MAX, 1).is_ok());
        assert!(table(FRAMES_MAX + 1, 1).is_err());
    }

    #[test]
    fn a_changed_missing_or_added_byte_is_found() {
        let content = content(FRAME + 5000);
        let file = pack(&content);
        let whole = |file: &[u8]| -> io::Result<Vec<u8>> {
            let mut reader = FrameReader::open(file)?;
            let mut buffer = vec![0; usize::try_from(reader.size()).unwrap()];
            reader.read_at(0, &mut buffer)?;
            Ok(buffer)
        };
        assert_eq!(whole(&file).unwrap(), content);
        for index in (0..file.len())
            .step_by(211)
            .chain(file.len() - 40..file.len())
        {
            let mut changed = file.clone();
            changed[index] ^= 0x40;
            assert!(whole(&changed).is_err(), "byte {index} changed");
            let mut missing = file.clone();
            missing.remove(index);
            assert!(whole(&missing).is_err(), "byte {index} missing");
            let mut added = file.clone();
            added.insert(index, 0);
            assert!(whole(&added).is_err(), "byte added before {index}");
        }
        assert!(whole(&[]).is_err());
    }
}
