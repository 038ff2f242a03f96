//! The structure of a bbolt database, read page by page: level 3 of verification, and the proof that
//! a member's database is damaged.
//!
//! It yields what `etcdutl snapshot status` prints (hash, revision, number of entries) and finds
//! what bbolt's own check finds, without mapping the file: the tree is walked one level at a time,
//! and each level in the order of the file, so that compressed frames are opened once and not once a
//! page. Memory does not grow with the database, but for one bit a page.
//!
//! Layout: <https://github.com/etcd-io/bbolt/tree/main/internal/common>.

mod error;
mod free;
mod keys;
mod level;
mod live;
mod page;

pub use error::BoltError;
use error::damaged;
use keys::Kind;
use level::{Level, PageSet};
pub use live::{LiveError, TakenUp, head, taken_up, walk_live};
pub use page::MAGIC;
use page::{Header, Meta, Page};

use super::read_at::ReadAt;

/// What a whole database says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// CRC-32C over bucket names, keys and values in order: etcdutl's `HASH`.
    pub hash: u32,
    /// The last main revision in the bucket `key`: etcdutl's `REVISION`.
    pub revision: i64,
    /// Entries of all buckets: etcdutl's `TOTAL KEYS`.
    pub entries: u64,
    /// Pages in use times their size: etcdutl's `TOTAL SIZE`.
    pub size: u64,
    /// The version that the cluster agreed on, such as `3.6.0`; `None` in a cluster that never
    /// elected a leader.
    pub cluster_version: Option<String>,
    /// The last entry of the log that is applied in it.
    pub consistent_index: Option<u64>,
    /// The revision up to which it was compacted; the store has at least this one.
    pub compacted: i64,
}

/// Four pages of the smallest size.
pub const SIZE_MIN: u64 = 4 * 4096;

/// Leaves that are digested in one sweep through the file: 128 MiB of full pages of 4 KiB.
const LEAVES_AT_ONCE: usize = 32 * 1024;
/// Branches that are expanded at once; each holds the keys of some hundred pages.
const BRANCHES_AT_ONCE: usize = 256;
/// Deeper than any tree of 2^32 pages.
const DEPTH_MAX: u32 = 32;
/// No leaf of a snapshot is larger, with what overflows: bbolt splits none of up to four entries, and a request has at
/// most 10 MiB (`spec.options.maxRequestSize`; etcd's own advice). Keys are short, and branches hold nothing else.
const LEAF_BYTES_MAX: u64 = 48 << 20;
const BRANCH_BYTES_MAX: u64 = 256 << 10;
/// A page of the root holds the names of some buckets, and what is in those that have no page of their own.
const ROOT_BYTES_MAX: u64 = 256 << 10;
/// etcd has about a dozen.
const BUCKETS_MAX: usize = 256;
/// Its longest name has 16 bytes.
const BUCKET_NAME_MAX: usize = 256;
/// No id of a page: the list of free pages is not kept in the file.
const NO_FREE_LIST: u64 = u64::MAX;

/// Walks the whole database of a snapshot. `progress` gets the bytes of the pages seen so far.
///
/// # Errors
/// [`BoltError`] at the first thing that is wrong.
pub fn walk(source: &mut dyn ReadAt, progress: &mut dyn FnMut(u64)) -> Result<Summary, BoltError> {
    let meta = page::read_meta(source)?;
    let size = meta.pages.saturating_mul(meta.page_size);
    if source.size() < size {
        return Err(BoltError::Truncated {
            found: source.size(),
            needed: size,
        });
    }
    let mut walk = Walk::new(source, progress, meta);
    for bucket in &walk.buckets()? {
        walk.bucket(bucket)?;
    }
    walk.free_list()?;
    Ok(walk.summary())
}

/// A bucket of the root.
struct Bucket {
    name: Vec<u8>,
    /// 0: the page lies in `inline`.
    root: u64,
    inline: Vec<u8>,
    page: u64,
}

/// What was digested so far, in the order of keys.
#[derive(Default)]
struct Total {
    crc: u32,
    entries: u64,
    revision: i64,
    cluster_version: Option<String>,
    consistent_index: Option<u64>,
    compacted: i64,
    members: u32,
}

/// Neighbouring leaves, in the file as in the order of keys.
struct Run {
    first: usize,
    crc: u32,
    bytes: u64,
    entries: u64,
    revision: i64,
}

struct Walk<'a> {
    source: &'a mut dyn ReadAt,
    progress: &'a mut dyn FnMut(u64),
    seen: PageSet,
    seen_bytes: u64,
    buffer: Vec<u8>,
    total: Total,
    meta: Meta,
    /// Bytes of a leaf, at most.
    leaf_max: u64,
}

impl<'a> Walk<'a> {
    fn new(source: &'a mut dyn ReadAt, progress: &'a mut dyn FnMut(u64), meta: Meta) -> Self {
        let mut seen = PageSet::new(meta.pages);
        seen.insert(0);
        seen.insert(1);
        Walk {
            source,
            progress,
            seen,
            seen_bytes: 0,
            buffer: Vec::new(),
            total: Total::default(),
            meta,
            leaf_max: LEAF_BYTES_MAX,
        }
    }

    fn summary(self) -> Summary {
        Summary {
            hash: self.total.crc,
            revision: self.total.revision,
            entries: self.total.entries,
            size: self.meta.pages.saturating_mul(self.meta.page_size),
            cluster_version: self.total.cluster_version,
            consistent_index: self.total.consistent_index,
            compacted: self.total.compacted,
        }
    }

    /// Loads a page that nothing else has pointed to yet, of at most so many bytes.
    fn load(&mut self, id: u64, most: u64) -> Result<Header, BoltError> {
        let header = self.peek(id)?;
        let pages = self.pages(id, &header)?;
        let most = if header.is_branch() {
            BRANCH_BYTES_MAX
        } else {
            most
        };
        if pages.saturating_mul(self.meta.page_size) > most {
            return Err(damaged(id, "it is larger than any page of etcd"));
        }
        self.claim(id, pages)?;
        self.fill(id, pages)?;
        Ok(header)
    }

    /// How many pages it takes with what overflows.
    fn pages(&self, id: u64, header: &Header) -> Result<u64, BoltError> {
        let pages = u64::from(header.overflow) + 1;
        match id.checked_add(pages) {
            Some(end) if end <= self.meta.pages => Ok(pages),
            _ => Err(damaged(id, "it reaches beyond the last page")),
        }
    }

    /// Nothing else has pointed to these.
    fn claim(&mut self, id: u64, pages: u64) -> Result<(), BoltError> {
        let twice = (id..id + pages).find(|it| !self.seen.insert(*it));
        twice.map_or(Ok(()), |it| Err(damaged(it, "two places point to it")))
    }

    /// Reads so many pages into the buffer.
    fn fill(&mut self, id: u64, pages: u64) -> Result<(), BoltError> {
        let bytes = pages * self.meta.page_size;
        let length = usize::try_from(bytes).map_err(|_| damaged(id, "it is too large"))?;
        self.buffer.resize(length, 0);
        page::read(self.source, &self.meta, id, &mut self.buffer)?;
        self.seen_bytes += bytes;
        (self.progress)(self.seen_bytes);
        Ok(())
    }

    fn peek(&mut self, id: u64) -> Result<Header, BoltError> {
        if id < 2 || id >= self.meta.pages {
            return Err(damaged(id, "there is no such page"));
        }
        let mut head = [0; page::HEADER];
        page::read(self.source, &self.meta, id, &mut head)?;
        let header = Header::parse(&head);
        if header.id != id {
            return Err(damaged(id, "its header names another page"));
        }
        Ok(header)
    }

    /// The buckets of the root, in order.
    fn buckets(&mut self) -> Result<Vec<Bucket>, BoltError> {
        let mut found = Vec::new();
        self.root_buckets(self.meta.root, &mut found, 0)?;
        let mut pairs = found.iter().zip(found.iter().skip(1));
        match pairs.find(|(one, next)| one.name >= next.name) {
            Some((_, next)) => Err(damaged(next.page, "buckets are not in order")),
            None => Ok(found),
        }
    }

    fn root_buckets(
        &mut self,
        id: u64,
        found: &mut Vec<Bucket>,
        depth: u32,
    ) -> Result<(), BoltError> {
        let header = self.load(id, ROOT_BYTES_MAX)?;
        if depth > DEPTH_MAX {
            return Err(damaged(id, "more buckets than etcd has"));
        }
        let page = Page::new(id, header, &self.buffer, self.meta.page_size);
        if header.is_branch() {
            let mut children = Vec::new();
            page.branch(|_, child| {
                children.push(child);
                Ok(())
            })?;
            for child in children {
                self.root_buckets(child, found, depth + 1)?;
            }
            return Ok(());
        }
        let page_size = self.meta.page_size;
        page.leaf(|flags, key, value| {
            if flags != page::BUCKET {
                return Err(damaged(id, "an entry beside the buckets"));
            }
            if found.len() >= BUCKETS_MAX || key.len() > BUCKET_NAME_MAX {
                return Err(damaged(id, "more buckets than etcd has"));
            }
            let root =
                page::u64_at(value, 0).ok_or_else(|| damaged(id, "a bucket without a root"))?;
            let inline = match value.get(16..) {
                // bbolt gives a bucket a page of its own once it takes a quarter of one.
                Some(inline) if root == 0 && inline.len() as u64 <= page_size => inline.to_vec(),
                Some([]) => Vec::new(),
                _ => return Err(damaged(id, "a bucket of the wrong size")),
            };
            found.push(Bucket {
                name: key.to_vec(),
                root,
                inline,
                page: id,
            });
            Ok(())
        })
    }

    fn bucket(&mut self, bucket: &Bucket) -> Result<(), BoltError> {
        let kind = Kind::of(&bucket.name);
        self.total.crc = crc32c::crc32c_append(self.total.crc, &bucket.name);
        if bucket.root == 0 {
            let mut run = Run::at(0);
            let page = Page::inline(bucket.page, &bucket.inline)?;
            page.leaf(|flags, key, value| {
                run.entry(bucket.page, kind, (flags, key, value), &mut self.total)
            })?;
            self.total.add(&run);
            return Ok(());
        }
        let mut level = Level::default();
        level.push(bucket.root, &[]);
        self.level(&level, kind, 0)
    }

    /// Digests what is below these pages.
    fn level(&mut self, level: &Level, kind: Kind, depth: u32) -> Result<(), BoltError> {
        let mut from = 0;
        while from < level.items.len() {
            let first = level.items[from].page;
            if depth > DEPTH_MAX {
                return Err(damaged(first, "the tree is too deep"));
            }
            if self.peek(first)?.is_leaf() {
                let to = level.items.len().min(from + LEAVES_AT_ONCE);
                self.leaves(level, from, to, kind)?;
                from = to;
            } else {
                let to = level.items.len().min(from + BRANCHES_AT_ONCE);
                let below = self.expand(level, from, to, kind)?;
                self.level(&below, kind, depth + 1)?;
                from = to;
            }
        }
        Ok(())
    }

    /// The items of a range, in the order of the file.
    fn in_file_order(level: &Level, from: usize, to: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (from..to).filter_map(|it| u32::try_from(it).ok()).collect();
        order.sort_unstable_by_key(|it| level.items[*it as usize].page);
        order
    }

    /// The level below some branches.
    fn expand(
        &mut self,
        level: &Level,
        from: usize,
        to: usize,
        kind: Kind,
    ) -> Result<Level, BoltError> {
        let mut parts: Vec<Level> = (from..to).map(|_| Level::default()).collect();
        for index in Self::in_file_order(level, from, to) {
            let index = index as usize;
            let id = level.items[index].page;
            let header = self.load(id, BRANCH_BYTES_MAX)?;
            if !header.is_branch() {
                return Err(damaged(
                    id,
                    "neither branch nor leaf, or a leaf beside branches",
                ));
            }
            let (low, high) = level.bounds(index);
            let part = &mut parts[index - from];
            Page::new(id, header, &self.buffer, self.meta.page_size).branch(|key, child| {
                within(id, key, low, high)?;
                if kind == Kind::Keys && keys::main_of(key).is_none() {
                    return Err(damaged(id, "a key that is no revision"));
                }
                part.push(child, key);
                Ok(())
            })?;
        }
        let mut below = Level::until(level.bounds(to - 1).1);
        for part in parts {
            below.append(&part);
        }
        Ok(below)
    }

    fn leaves(
        &mut self,
        level: &Level,
        from: usize,
        to: usize,
        kind: Kind,
    ) -> Result<(), BoltError> {
        let mut runs: Vec<Run> = Vec::new();
        let mut next = usize::MAX;
        for index in Self::in_file_order(level, from, to) {
            let index = index as usize;
            let id = level.items[index].page;
            let header = self.load(id, self.leaf_max)?;
            if !header.is_leaf() {
                return Err(damaged(
                    id,
                    "neither leaf nor branch, or a branch beside leaves",
                ));
            }
            if header.count == 0 && level.items.len() > 1 {
                return Err(damaged(id, "it is empty"));
            }
            let (low, high) = level.bounds(index);
            if index != next {
                runs.push(Run::at(index));
            }
            next = index + 1;
            let Some(run) = runs.last_mut() else { continue };
            let total = &mut self.total;
            Page::new(id, header, &self.buffer, self.meta.page_size).leaf(
                |flags, key, value| {
                    within(id, key, low, high)?;
                    run.entry(id, kind, (flags, key, value), total)
                },
            )?;
        }
        runs.sort_unstable_by_key(|it| it.first);
        for run in &runs {
            self.total.add(run);
        }
        Ok(())
    }
}

fn within(page: u64, key: &[u8], low: &[u8], high: &[u8]) -> Result<(), BoltError> {
    if key < low || !high.is_empty() && key >= high {
        return Err(damaged(page, "a key is not where its branch says"));
    }
    Ok(())
}

impl Run {
    fn at(first: usize) -> Self {
        Run {
            first,
            crc: 0,
            bytes: 0,
            entries: 0,
            revision: 0,
        }
    }

    fn entry(
        &mut self,
        page: u64,
        kind: Kind,
        (flags, key, value): (u32, &[u8], &[u8]),
        total: &mut Total,
    ) -> Result<(), BoltError> {
        if flags != 0 {
            return Err(damaged(page, "a bucket inside a bucket"));
        }
        match kind {
            Kind::Keys => {
                let unfit = damaged(page, "an entry of the store does not fit its revision");
                self.revision = keys::revision(key, value).ok_or(unfit)?;
            }
            Kind::Cluster if key == b"clusterVersion" => {
                total.cluster_version = String::from_utf8(value.to_vec()).ok();
            }
            Kind::Meta if key == b"consistent_index" => {
                let bytes = value.try_into().map(u64::from_be_bytes);
                let unfit = |_| damaged(page, "the consistent index is no number");
                total.consistent_index = Some(bytes.map_err(unfit)?);
            }
            Kind::Meta if key == b"scheduledCompactRev" => {
                total.compacted = keys::main_of(value).map_or(0, |(main, _)| main);
            }
            Kind::Members => total.members = total.members.saturating_add(1),
            Kind::Cluster | Kind::Meta | Kind::Other => {}
        }
        self.crc = crc32c::crc32c_append(self.crc, key);
        self.crc = crc32c::crc32c_append(self.crc, value);
        self.bytes += (key.len() + value.len()) as u64;
        self.entries += 1;
        Ok(())
    }
}

impl Total {
    fn add(&mut self, run: &Run) {
        let bytes = usize::try_from(run.bytes).unwrap_or(usize::MAX);
        self.crc = crc32c::crc32c_combine(self.crc, run.crc, bytes);
        self.entries += run.entries;
        if run.revision != 0 {
            self.revision = run.revision;
        }
    }
}
