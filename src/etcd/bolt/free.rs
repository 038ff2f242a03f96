//! The list of free pages of a snapshot.

use super::page;
use super::{BoltError, NO_FREE_LIST, Walk, damaged};

impl Walk<'_> {
    /// Where the file keeps a list of free pages, read page by page: every page is in use or free, none is both.
    pub(super) fn free_list(&mut self) -> Result<(), BoltError> {
        let id = self.meta.free_list;
        if id == NO_FREE_LIST {
            return Ok(()); // as etcd opens it: unreachable pages are free
        }
        let header = self.peek(id)?;
        let pages = self.pages(id, &header)?;
        self.claim(id, pages)?;
        self.fill(id, 1)?;
        let (mut from, mut count) = header
            .free_pages(&self.buffer)
            .ok_or_else(|| damaged(id, "it is no list of free pages"))?;
        let room = (pages * self.meta.page_size).saturating_sub(from as u64);
        if count > room / 8 {
            return Err(damaged(id, "more free pages than fit"));
        }
        for page in id..id + pages {
            if page > id {
                self.fill(page, 1)?;
            }
            let ids = usize::try_from(count).unwrap_or(usize::MAX);
            for free in self.buffer[from..].chunks_exact(8).take(ids) {
                let free = page::u64_at(free, 0).unwrap_or(u64::MAX);
                if free < 2 || free >= self.meta.pages {
                    return Err(damaged(free, "free, but there is no such page"));
                }
                if !self.seen.insert(free) {
                    return Err(damaged(free, "free and in use"));
                }
                count -= 1;
            }
            from = 0;
        }
        match (2..self.meta.pages).find(|it| !self.seen.contains(*it)) {
            Some(lost) => Err(damaged(lost, "neither in use nor free")),
            None => Ok(()),
        }
    }
}
