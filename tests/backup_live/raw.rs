//! A bbolt file as bytes that a test can damage: its pages, and where their fields stand.

use std::collections::BTreeSet;
use std::ops::Range;

/// Bytes of a page's header, and of an element behind it.
pub const HEADER: usize = 16;
pub const ELEMENT: usize = 16;
pub const BRANCH: u16 = 1;
pub const LEAF: u16 = 2;
pub const FREE_LIST: u16 = 0x10;
/// The id that stands for a list of free pages that is not in the file.
pub const NO_FREE_LIST: u64 = u64::MAX;

/// Fields of a meta, behind the page's header: name, place, bytes.
pub const META: [(&str, usize, usize); 10] = [
    ("magic", 0, 4),
    ("version", 4, 4),
    ("page size", 8, 4),
    ("flags", 12, 4),
    ("root", 16, 8),
    ("sequence", 24, 8),
    ("free list", 32, 8),
    ("pages", 40, 8),
    ("transaction", 48, 8),
    ("checksum", 56, 8),
];

/// A database.
#[derive(Clone)]
pub struct Raw {
    pub bytes: Vec<u8>,
    pub page_size: usize,
}

/// A page that the root leads to.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub id: u64,
    /// Where the number stands that leads to it.
    pub link: usize,
    pub depth: usize,
    /// It belongs to the bucket `key`, or is the root's.
    pub keys: bool,
}

impl Raw {
    /// A database, with etcd's checksum behind it or not.
    pub fn new(mut bytes: Vec<u8>) -> Self {
        bytes.truncate(bytes.len() / 512 * 512);
        let page_size = usize::try_from(number(&bytes, HEADER + 8, 4)).unwrap();
        Raw { bytes, page_size }
    }

    pub fn get(&self, at: usize, length: usize) -> u64 {
        number(&self.bytes, at, length)
    }

    pub fn set(&mut self, at: usize, length: usize, value: u64) {
        self.bytes[at..at + length].copy_from_slice(&value.to_le_bytes()[..length]);
    }

    /// Where a page begins.
    pub fn at(&self, page: u64) -> usize {
        usize::try_from(page).unwrap() * self.page_size
    }

    /// Where a field of a meta stands.
    pub fn meta_at(&self, meta: u64, field: &str) -> (usize, usize) {
        let (_, at, length) = META.into_iter().find(|it| it.0 == field).unwrap();
        (self.at(meta) + HEADER + at, length)
    }

    /// What the meta in force says.
    pub fn meta(&self, field: &str) -> u64 {
        let said = |meta, field| {
            let (at, length) = self.meta_at(meta, field);
            self.get(at, length)
        };
        let newest = u64::from(said(1, "transaction") > said(0, "transaction"));
        said(newest, field)
    }

    /// Says something else in both metas, with a checksum that fits.
    pub fn set_meta(&mut self, field: &str, value: u64) {
        for meta in [0, 1] {
            let (at, length) = self.meta_at(meta, field);
            self.set(at, length, value);
            self.sum_meta(meta);
        }
    }

    /// The checksum of a meta fits again.
    pub fn sum_meta(&mut self, meta: u64) {
        let (from, _) = self.meta_at(meta, "magic");
        let (to, length) = self.meta_at(meta, "checksum");
        let sum = self.bytes[from..to]
            .iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            });
        self.set(to, length, sum);
    }

    pub fn flags(&self, page: u64) -> u16 {
        u16::try_from(self.get(self.at(page) + 8, 2)).unwrap()
    }

    pub fn count(&self, page: u64) -> usize {
        usize::try_from(self.get(self.at(page) + 10, 2)).unwrap()
    }

    pub fn overflow(&self, page: u64) -> u64 {
        self.get(self.at(page) + 12, 4)
    }

    /// Where an element of a page stands.
    pub fn element(&self, page: u64, index: usize) -> usize {
        self.at(page) + HEADER + index * ELEMENT
    }

    /// Key and value of an element of a leaf.
    pub fn entry(&self, page: u64, index: usize) -> (Range<usize>, Range<usize>) {
        let at = self.element(page, index);
        let word = |offset| usize::try_from(self.get(at + offset, 4)).unwrap();
        let from = at + word(4);
        let key = from..from + word(8);
        (key.clone(), key.end..key.end + word(12))
    }

    /// Every page that the root leads to.
    pub fn reachable(&self) -> Vec<Seen> {
        let newest = u64::from(
            self.get(self.meta_at(1, "transaction").0, 8)
                > self.get(self.meta_at(0, "transaction").0, 8),
        );
        let mut found = Vec::new();
        let mut open = vec![Seen {
            id: self.meta("root"),
            link: self.meta_at(newest, "root").0,
            depth: 0,
            keys: false,
        }];
        while let Some(seen) = open.pop() {
            found.push(seen);
            for index in 0..self.count(seen.id) {
                let at = self.element(seen.id, index);
                if self.flags(seen.id) == BRANCH {
                    open.push(Seen {
                        id: self.get(at + 8, 8),
                        link: at + 8,
                        depth: seen.depth + 1,
                        keys: seen.keys,
                    });
                } else if self.get(at, 4) == 1 {
                    let (key, value) = self.entry(seen.id, index);
                    let root = self.get(value.start, 8);
                    if root != 0 {
                        open.push(Seen {
                            id: root,
                            link: value.start,
                            depth: 0,
                            keys: &self.bytes[key] == b"key",
                        });
                    }
                }
            }
        }
        found
    }

    /// Ids of pages that nothing uses.
    pub fn free(&self) -> Vec<u64> {
        let mut used = BTreeSet::from([0, 1]);
        for seen in self.reachable() {
            used.extend(seen.id..=seen.id + self.overflow(seen.id));
        }
        let list = self.meta("free list");
        if list != NO_FREE_LIST {
            used.extend(list..=list + self.overflow(list));
        }
        (0..self.meta("pages"))
            .filter(|it| !used.contains(it))
            .collect()
    }

    /// The same database with a list of free pages behind it, as an etcd that keeps one writes it.
    pub fn with_free_list(&self) -> Self {
        let mut it = self.clone();
        let (free, list) = (self.free(), self.meta("pages"));
        assert!(free.len() > 10 && free.len() < 0xffff);
        let pages = (HEADER + free.len() * 8) / self.page_size + 1;
        it.bytes.truncate(it.at(list));
        it.bytes.resize(it.at(list) + pages * it.page_size, 0);
        let at = it.at(list);
        it.set(at, 8, list);
        it.set(at + 8, 2, u64::from(FREE_LIST));
        it.set(at + 10, 2, free.len() as u64);
        it.set(at + 12, 4, pages as u64 - 1);
        for (index, id) in free.iter().enumerate() {
            it.set(at + HEADER + index * 8, 8, *id);
        }
        it.set_meta("free list", list);
        it.set_meta("pages", list + pages as u64);
        it
    }
}

fn number(bytes: &[u8], at: usize, length: usize) -> u64 {
    let mut word = [0; 8];
    word[..length].copy_from_slice(&bytes[at..at + length]);
    u64::from_le_bytes(word)
}
