//! One page of a bbolt file: header, meta, branch, leaf and free list.

use super::{BoltError, damaged};
use crate::etcd::read_at::ReadAt;

/// Bytes of a page's header.
pub(super) const HEADER: usize = 16;
/// The flag of a leaf's element that is a bucket.
pub(super) const BUCKET: u32 = 1;

const BRANCH_PAGE: u16 = 0x01;
const LEAF_PAGE: u16 = 0x02;
const META_PAGE: u16 = 0x04;
const FREE_LIST_PAGE: u16 = 0x10;
const ELEMENT: usize = 16;
/// What a meta page begins with, behind its header.
pub const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;
/// Bytes of a meta after the header, its checksum last.
const META: usize = 64;
/// Sizes that a kernel's pages have.
const PAGE_SIZES: [u64; 5] = [4096, 8192, 16_384, 32_768, 65_536];
/// bbolt makes a file longer before it uses it: 1 GiB of the smallest pages.
const PAGES_GROWN_MAX: u64 = 256 * 1024;

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes
        .get(at..at + 2)
        .and_then(|it| it.try_into().ok())
        .map_or(0, u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes
        .get(at..at + 4)
        .and_then(|it| it.try_into().ok())
        .map_or(0, u32::from_le_bytes)
}

/// Eight bytes as a number, if there are as many.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + 8)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// Reads from the begin of page `id`. An end of the file before that is no error of the disk.
pub(super) fn read(
    source: &mut dyn ReadAt,
    meta: &Meta,
    id: u64,
    buffer: &mut [u8],
) -> Result<(), BoltError> {
    let offset = id * meta.page_size;
    if offset.saturating_add(buffer.len() as u64) > source.size() {
        return Err(damaged(id, "it lies beyond the end of the file"));
    }
    read_bytes(source, offset, buffer)
}

fn read_bytes(source: &mut dyn ReadAt, offset: u64, buffer: &mut [u8]) -> Result<(), BoltError> {
    let failed = |source| BoltError::Io { offset, source };
    source.read_at(offset, buffer).map_err(failed)
}

/// Both meta pages say the same, but for the transaction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meta {
    pub(super) page_size: u64,
    pub(super) root: u64,
    pub(super) free_list: u64,
    /// Pages that were ever in use.
    pub(super) pages: u64,
    transaction: u64,
}

/// The newer of the two. A file of which one does not fit is damaged: bbolt would go on with the
/// other, which can be of a transaction before.
pub(super) fn read_meta(source: &mut dyn ReadAt) -> Result<Meta, BoltError> {
    if source.size() < 4 * PAGE_SIZES[0] {
        return Err(BoltError::Truncated {
            found: source.size(),
            needed: 4 * PAGE_SIZES[0],
        });
    }
    let mut bytes = [0; HEADER + META];
    read_bytes(source, 0, &mut bytes)?;
    let first = parse_meta(0, &bytes)?;
    check_meta_header(0, &bytes)?;
    read_bytes(source, first.page_size, &mut bytes)?;
    check_meta_header(1, &bytes)?;
    let second = parse_meta(1, &bytes)?;
    if second.page_size != first.page_size || first.transaction.abs_diff(second.transaction) != 1 {
        return Err(damaged(1, "the two meta pages do not belong together"));
    }
    Ok(if second.transaction > first.transaction {
        second
    } else {
        first
    })
}

/// The meta that bbolt goes on with: the newer of those that are sound. One is enough, since a crash
/// in the middle of a commit leaves the other.
pub(super) fn read_live_meta(source: &mut dyn ReadAt) -> Result<Meta, BoltError> {
    let first = meta_at(source, 0, 0);
    let sizes = match &first {
        Ok(first) => &[first.page_size][..],
        Err(BoltError::Io { .. }) => return first,
        Err(_) => &PAGE_SIZES[..],
    };
    let mut newest = first;
    for size in sizes {
        let second = match meta_at(source, 1, *size) {
            Ok(it) if it.page_size == *size => it,
            Err(error @ BoltError::Io { .. }) => return Err(error),
            _ => continue,
        };
        match &newest {
            Ok(first) if first.transaction >= second.transaction => {}
            _ => newest = Ok(second),
        }
    }
    let meta = newest?;
    // Where it was cut short, bbolt extends it; more than that it never claims.
    let most = source.size() / meta.page_size * 2 + PAGES_GROWN_MAX;
    if meta.pages > most {
        return Err(damaged(0, "it claims more pages than it can have"));
    }
    Ok(meta)
}

fn meta_at(source: &mut dyn ReadAt, id: u64, offset: u64) -> Result<Meta, BoltError> {
    let mut bytes = [0; HEADER + META];
    if source.size() < offset + bytes.len() as u64 {
        return Err(damaged(id, "the file ends before its meta pages"));
    }
    read_bytes(source, offset, &mut bytes)?;
    parse_meta(id, &bytes)
}

fn check_meta_header(id: u64, bytes: &[u8]) -> Result<(), BoltError> {
    let header = Header::parse(bytes);
    if header.flags != META_PAGE || header.id != id || header.count != 0 || header.overflow != 0 {
        return Err(damaged(id, "the header of a meta page is damaged"));
    }
    Ok(())
}

fn parse_meta(id: u64, bytes: &[u8]) -> Result<Meta, BoltError> {
    let it = &bytes[HEADER..];
    if u32_at(it, 0) != MAGIC || u32_at(it, 4) != VERSION {
        return Err(damaged(id, "this is no database of etcd"));
    }
    let number = |at| u64_at(it, at).unwrap_or(0);
    if number(56) != fnv(&it[..56]) {
        return Err(damaged(id, "the checksum of a meta page differs"));
    }
    let page_size = u64::from(u32_at(it, 8));
    if !PAGE_SIZES.contains(&page_size) {
        return Err(damaged(id, "pages of a size that no machine has"));
    }
    Ok(Meta {
        page_size,
        root: number(16),
        free_list: number(32),
        pages: number(40),
        transaction: number(48),
    })
}

/// FNV-1a, 64 bits, as bbolt sums a meta.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The first bytes of a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) id: u64,
    flags: u16,
    pub(super) count: u16,
    pub(super) overflow: u32,
}

impl Header {
    pub(super) fn parse(bytes: &[u8]) -> Self {
        Header {
            id: u64_at(bytes, 0).unwrap_or(u64::MAX),
            flags: u16_at(bytes, 8),
            count: u16_at(bytes, 10),
            overflow: u32_at(bytes, 12),
        }
    }

    pub(super) fn is_branch(&self) -> bool {
        self.flags == BRANCH_PAGE
    }

    pub(super) fn is_leaf(&self) -> bool {
        self.flags == LEAF_PAGE
    }

    /// Where the ids of free pages begin in such a page and how many there are; none in another one.
    pub(super) fn free_pages(&self, first: &[u8]) -> Option<(usize, u64)> {
        if self.flags != FREE_LIST_PAGE {
            return None;
        }
        // A count that does not fit stands before the ids.
        Some(if self.count == u16::MAX {
            (HEADER + 8, u64_at(first, HEADER).unwrap_or(u64::MAX))
        } else {
            (HEADER, u64::from(self.count))
        })
    }
}

/// A page with all of its bytes.
pub(super) struct Page<'a> {
    id: u64,
    header: Header,
    bytes: &'a [u8],
    /// The most bytes that its entries may leave.
    rest: usize,
}

impl<'a> Page<'a> {
    /// A page of the file: bbolt takes as many as its entries need (before 1.3 one more, where they
    /// fill the last).
    pub(super) fn new(id: u64, header: Header, bytes: &'a [u8], page_size: u64) -> Self {
        Page {
            id,
            header,
            bytes,
            rest: usize::try_from(page_size).unwrap_or(usize::MAX),
        }
    }

    /// A page in a bucket's entry of page `id`: it is as long as its entries.
    pub(super) fn inline(id: u64, bytes: &'a [u8]) -> Result<Self, BoltError> {
        let header = Header::parse(bytes);
        if header.id != 0 || header.overflow != 0 {
            return Err(damaged(id, "the header of a bucket's own page is damaged"));
        }
        Ok(Page {
            id,
            header,
            bytes,
            rest: 0,
        })
    }

    /// Key and child of each element, in order.
    pub(super) fn branch(
        &self,
        mut each: impl FnMut(&'a [u8], u64) -> Result<(), BoltError>,
    ) -> Result<(), BoltError> {
        if self.header.count == 0 {
            return Err(damaged(self.id, "a branch without a child"));
        }
        let mut cursor = Cursor::new(self)?;
        for index in 0..usize::from(self.header.count) {
            let at = HEADER + index * ELEMENT;
            let (position, length) = (u32_at(self.bytes, at), u32_at(self.bytes, at + 4));
            let key = cursor.take(at, position, length)?;
            cursor.ascend(key)?;
            each(key, u64_at(self.bytes, at + 8).unwrap_or(u64::MAX))?;
        }
        self.end(&cursor)
    }

    /// Flags, key and value of each element, in order.
    pub(super) fn leaf(
        &self,
        mut each: impl FnMut(u32, &'a [u8], &'a [u8]) -> Result<(), BoltError>,
    ) -> Result<(), BoltError> {
        if !self.header.is_leaf() {
            return Err(damaged(self.id, "it is neither branch nor leaf"));
        }
        let mut cursor = Cursor::new(self)?;
        for index in 0..usize::from(self.header.count) {
            let at = HEADER + index * ELEMENT;
            let word = |offset| u32_at(self.bytes, at + offset);
            let key = cursor.take(at, word(4), word(8))?;
            let value = cursor.more(word(12))?;
            cursor.ascend(key)?;
            each(word(0), key, value)?;
        }
        self.end(&cursor)
    }

    /// There are not more pages than the entries need.
    fn end(&self, cursor: &Cursor<'_>) -> Result<(), BoltError> {
        if self.bytes.len() - cursor.at > self.rest {
            return Err(damaged(self.id, "it is longer than its entries"));
        }
        Ok(())
    }
}

/// Keys and values lie one after the other, right behind the elements.
struct Cursor<'a> {
    id: u64,
    bytes: &'a [u8],
    at: usize,
    before: Option<&'a [u8]>,
}

impl<'a> Cursor<'a> {
    fn new(page: &Page<'a>) -> Result<Self, BoltError> {
        let at = HEADER + usize::from(page.header.count) * ELEMENT;
        if at > page.bytes.len() {
            return Err(damaged(page.id, "more elements than fit"));
        }
        Ok(Cursor {
            id: page.id,
            bytes: page.bytes,
            at,
            before: None,
        })
    }

    /// What begins `position` bytes behind its element.
    fn take(&mut self, element: usize, position: u32, length: u32) -> Result<&'a [u8], BoltError> {
        if element.checked_add(position as usize) != Some(self.at) {
            return Err(damaged(self.id, "an element points to the wrong place"));
        }
        self.more(length)
    }

    fn more(&mut self, length: u32) -> Result<&'a [u8], BoltError> {
        let end = self.at.checked_add(length as usize);
        let bytes = end.and_then(|end| self.bytes.get(self.at..end));
        let bytes = bytes.ok_or_else(|| damaged(self.id, "an element reaches beyond its page"))?;
        self.at += bytes.len();
        Ok(bytes)
    }

    fn ascend(&mut self, key: &'a [u8]) -> Result<(), BoltError> {
        if self.before.is_some_and(|before| before >= key) {
            return Err(damaged(self.id, "keys are not in order"));
        }
        self.before = Some(key);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A database of zeros but for its metas and the root, as a few packed bytes can claim it.
    struct Claimed {
        head: Vec<u8>,
        size: u64,
    }

    impl ReadAt for Claimed {
        fn size(&self) -> u64 {
            self.size
        }

        fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
            assert!(buffer.len() <= 256 << 10, "{} bytes at once", buffer.len());
            buffer.fill(0);
            let from = usize::try_from(offset).unwrap().min(self.head.len());
            let count = buffer.len().min(self.head.len() - from);
            buffer[..count].copy_from_slice(&self.head[from..from + count]);
            Ok(())
        }
    }

    #[test]
    fn a_page_that_claims_a_whole_file_is_refused_before_it_takes_its_memory() {
        let pages: u64 = (256 << 20) / 4096;
        let mut head = vec![0; 3 * 4096];
        for id in 0..2_u64 {
            let at = usize::try_from(id).unwrap() * 4096;
            let page = &mut head[at..];
            page[..8].copy_from_slice(&id.to_le_bytes());
            page[8..10].copy_from_slice(&META_PAGE.to_le_bytes());
            let meta = &mut page[HEADER..];
            meta[..4].copy_from_slice(&MAGIC.to_le_bytes());
            meta[4..8].copy_from_slice(&VERSION.to_le_bytes());
            meta[8..12].copy_from_slice(&4096_u32.to_le_bytes());
            for (at, value) in [(16, 2), (32, u64::MAX), (40, pages), (48, id + 1)] {
                meta[at..at + 8].copy_from_slice(&value.to_le_bytes());
            }
            let sum = fnv(&meta[..56]);
            meta[56..64].copy_from_slice(&sum.to_le_bytes());
        }
        let root = &mut head[2 * 4096..];
        root[..8].copy_from_slice(&2_u64.to_le_bytes());
        for (kind, overflow, said) in [
            (LEAF_PAGE, pages - 3, "256 MiB"),
            (BRANCH_PAGE, pages - 3, "256 MiB"),
            (LEAF_PAGE, 64, "260 KiB"),
        ] {
            let mut head = head.clone();
            let overflow = u32::try_from(overflow).unwrap();
            head[2 * 4096 + 12..2 * 4096 + 16].copy_from_slice(&overflow.to_le_bytes());
            head[2 * 4096 + 8..2 * 4096 + 10].copy_from_slice(&kind.to_le_bytes());
            let size = pages * 4096;
            let refused = super::super::walk(&mut Claimed { head, size }, &mut |_| ());
            let why = refused.unwrap_err().to_string();
            assert!(
                why.contains("larger than any page of etcd"),
                "{said}: {why}"
            );
        }
    }
}
