//! Pages of one level of the tree in the order of their keys, and a set of pages.

/// A page that a branch points to, and the lowest key that it may have.
pub(super) struct Item {
    pub(super) page: u64,
    /// Where that key stands in the level's `keys`; the next item's is the end.
    low: (usize, usize),
}

/// Pages of one level, in the order of their keys.
#[derive(Default)]
pub(super) struct Level {
    pub(super) items: Vec<Item>,
    keys: Vec<u8>,
    /// No key of this level reaches it; empty: there is no end.
    end: Vec<u8>,
}

impl Level {
    /// No page yet, and no key that reaches `end`.
    pub(super) fn until(end: &[u8]) -> Self {
        Level {
            end: end.to_vec(),
            ..Level::default()
        }
    }

    pub(super) fn push(&mut self, page: u64, low: &[u8]) {
        let start = self.keys.len();
        self.keys.extend_from_slice(low);
        let low = (start, self.keys.len());
        self.items.push(Item { page, low });
    }

    pub(super) fn append(&mut self, other: &Level) {
        for item in &other.items {
            self.push(item.page, other.key(item.low));
        }
    }

    fn key(&self, range: (usize, usize)) -> &[u8] {
        &self.keys[range.0..range.1]
    }

    /// The keys between which those of this item lie; an empty end is none.
    pub(super) fn bounds(&self, index: usize) -> (&[u8], &[u8]) {
        let high = match self.items.get(index + 1) {
            Some(next) => self.key(next.low),
            None => &self.end,
        };
        (self.key(self.items[index].low), high)
    }
}

/// One bit for each page.
pub(super) struct PageSet {
    bits: Vec<u64>,
}

impl PageSet {
    pub(super) fn new(pages: u64) -> Self {
        let words = usize::try_from(pages / 64 + 1).unwrap_or(0);
        PageSet {
            bits: vec![0; words],
        }
    }

    fn place(page: u64) -> (usize, u64) {
        let word = usize::try_from(page / 64).unwrap_or(usize::MAX);
        (word, 1 << (page % 64))
    }

    pub(super) fn contains(&self, page: u64) -> bool {
        let (word, bit) = Self::place(page);
        self.bits.get(word).is_some_and(|it| it & bit != 0)
    }

    /// Whether it was not there yet.
    pub(super) fn insert(&mut self, page: u64) -> bool {
        let (word, bit) = Self::place(page);
        let Some(bits) = self.bits.get_mut(word) else {
            return false;
        };
        let new = *bits & bit == 0;
        *bits |= bit;
        new
    }
}
