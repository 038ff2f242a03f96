//! A database with a list of its free pages, as an etcd that keeps one writes it.

use std::io;

use etcd_operator::etcd::bolt::{self, BoltError};
use etcd_operator::etcd::read_at::ReadAt;

use crate::{MIB, database, feed};

const PAGE: usize = 4096;
const HEADER: usize = 16;
const FREE_LIST: u16 = 0x10;
/// A count that does not fit into the header stands before the ids.
const MANY: usize = 0xffff;

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// FNV-1a, as bbolt sums up a meta page.
fn sum(bytes: &[u8]) -> u64 {
    let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, add)
}

fn list(id: u64, free: &[u64]) -> Vec<u8> {
    let many = free.len() >= MANY;
    let len = HEADER + 8 * (free.len() + usize::from(many));
    let pages = len.div_ceil(PAGE);
    let mut page = Vec::with_capacity(pages * PAGE);
    page.extend(id.to_le_bytes());
    page.extend(FREE_LIST.to_le_bytes());
    page.extend(u16::try_from(free.len()).unwrap_or(u16::MAX).to_le_bytes());
    page.extend(u32::try_from(pages - 1).unwrap().to_le_bytes());
    if many {
        page.extend((free.len() as u64).to_le_bytes());
    }
    page.extend(free.iter().flat_map(|it| it.to_le_bytes()));
    page.resize(pages * PAGE, 0);
    page
}

/// A real database, behind it empty pages that need no memory, and its list of free pages.
#[derive(Clone)]
struct Listed {
    database: Vec<u8>,
    list_at: u64,
    list: Vec<u8>,
}

impl Listed {
    /// `more`: empty pages.
    fn new(more: u64, free: &[u64]) -> Self {
        let mut database = database();
        let used = database.len().div_ceil(PAGE) as u64;
        database.resize(usize::try_from(used).unwrap() * PAGE, 0);
        let id = used + more;
        let list = list(id, free);
        for meta in [0, PAGE] {
            let at = meta + HEADER;
            database[at + 32..at + 40].copy_from_slice(&id.to_le_bytes());
            let pages = id + (list.len() / PAGE) as u64;
            database[at + 40..at + 48].copy_from_slice(&pages.to_le_bytes());
            let sum = sum(&database[at..at + 56]);
            database[at + 56..at + 64].copy_from_slice(&sum.to_le_bytes());
        }
        Listed {
            database,
            list_at: id * PAGE as u64,
            list,
        }
    }

    fn walk(&mut self) -> Result<(), BoltError> {
        bolt::walk(self, &mut |_| ()).map(drop)
    }
}

impl ReadAt for Listed {
    fn size(&self) -> u64 {
        self.list_at + self.list.len() as u64
    }

    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        // Pages are read one by one, or several of the list.
        let (bytes, from) = if offset >= self.list_at {
            (&self.list, offset - self.list_at)
        } else {
            (&self.database, offset)
        };
        let from = usize::try_from(from).unwrap();
        let rest = bytes.get(from..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        buffer[count..].fill(0);
        if count < buffer.len() && offset >= self.list_at {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }
}

/// Those that nothing points to, as the walk finds them one by one.
fn free() -> Vec<u64> {
    let mut free = Vec::new();
    loop {
        match Listed::new(0, &free).walk() {
            Ok(()) => return free,
            Err(BoltError::Damaged { page, what }) if what.starts_with("neither") => {
                free.push(page);
            }
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn a_list_of_free_pages() {
    let free = free();
    let used = database().len().div_ceil(PAGE) as u64;
    let what = |listed: &mut Listed| match listed.walk() {
        Ok(()) => "sound",
        Err(error) => error.what(),
    };
    // As many as fit into the header's count, and the first two that do not.
    for count in [0, 1, MANY - 1, MANY, MANY + 1] {
        let more = (count as u64).saturating_sub(free.len() as u64);
        let all = [free.clone(), (used..used + more).collect()].concat();
        let mut sound = Listed::new(more, &all);
        assert_eq!(what(&mut sound), "sound", "{count}");
        if let Some((last, others)) = all.split_last() {
            let lacks = what(&mut Listed::new(more, others));
            assert_eq!(lacks, "neither in use nor free", "{last}");
            let twice = [others, &[2]].concat();
            assert_eq!(what(&mut Listed::new(more, &twice)), "free and in use");
            let none = [others, &[u64::MAX]].concat();
            let said = what(&mut Listed::new(more, &none));
            assert_eq!(said, "free, but there is no such page");
        }
    }
    let more = MANY as u64 + 100;
    let all = [free, (used..used + more).collect()].concat();
    let whole = Listed::new(more, &all);
    assert_eq!(number(&whole.list, HEADER), all.len() as u64);
    let inputs = [whole.list.clone(), list(2, &[2, 3])];
    let mut ends = [0, 0];
    feed("free pages", &inputs, 200, 8 * MIB, &mut |bytes| {
        let mut listed = Listed {
            list: bytes.to_vec(),
            ..whole.clone()
        };
        ends[usize::from(listed.walk().is_ok())] += 1;
    });
    assert!(ends[0] > 10 && ends[1] > 0, "{ends:?}");
}
