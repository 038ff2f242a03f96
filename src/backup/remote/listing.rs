//! What a listing of a bucket shows of a cluster's snapshots: only what is ours is kept in memory, and not without end.

use std::collections::BTreeMap;

use super::ENCRYPTED;
use crate::backup::local::{MANIFEST, SNAPSHOT};
use crate::backup::name::SnapshotName;

/// Snapshots of one cluster in a bucket that are looked at: the newest. Retention keeps some dozens; only a bucket from
/// which nothing can be removed holds more. Each takes a few hundred bytes of memory.
const SNAPSHOTS_MAX: usize = 10_000;

/// What is there of a snapshot.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) manifest: bool,
    /// Bytes of its object.
    pub(super) size: Option<u64>,
    pub(super) encrypted: bool,
}

/// The snapshots of one cluster, as their names come.
pub(super) struct Listing<'a> {
    cluster: &'a str,
    /// By revision and name, the oldest first.
    seen: BTreeMap<(i64, String), (SnapshotName, Seen)>,
    left_out: bool,
}

impl<'a> Listing<'a> {
    pub(super) fn of(cluster: &'a str) -> Self {
        Listing {
            cluster,
            seen: BTreeMap::new(),
            left_out: false,
        }
    }

    /// A file of so many bytes below the cluster's own prefix.
    pub(super) fn take(&mut self, file: &str, bytes: u64) {
        let plain = file.strip_suffix(ENCRYPTED);
        let (stem, manifest) = match file.strip_suffix(MANIFEST) {
            Some(stem) => (Some(stem), true),
            None => (plain.unwrap_or(file).strip_suffix(SNAPSHOT), false),
        };
        let name = stem.and_then(|it| it.parse::<SnapshotName>().ok());
        let Some(name) = name.filter(|it| it.is_of(self.cluster)) else {
            return;
        };
        let key = (name.revision, name.to_string());
        let (_, it) = self
            .seen
            .entry(key)
            .or_insert_with(|| (name, Seen::default()));
        it.manifest |= manifest;
        if !manifest {
            it.size = Some(bytes);
            it.encrypted = plain.is_some();
        }
        if self.seen.len() > SNAPSHOTS_MAX {
            self.seen.pop_first();
            self.left_out = true;
        }
    }

    /// The newest of them.
    pub(super) fn end(self) -> Vec<(SnapshotName, Seen)> {
        if self.left_out {
            tracing::warn!(
                cluster = self.cluster,
                "the bucket holds more than {SNAPSHOTS_MAX} snapshots: the operator looks at the newest"
            );
        }
        self.seen.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_ours_is_kept_and_not_without_end() {
        let file = |cluster: &str, number: usize| {
            format!("{cluster}-0-20261121T131500Z-r{number}-0000000a{SNAPSHOT}")
        };
        let mut listing = Listing::of("shop");
        for number in 0..100_000 {
            listing.take(&file("bank", number), 1);
            listing.take(&"x".repeat(number % 1000), 1);
        }
        assert!(listing.seen.is_empty());
        for number in 0..SNAPSHOTS_MAX {
            listing.take(&file("shop", number), 1);
        }
        listing.take(&file("shop", 1), 2);
        assert!(!listing.left_out);
        listing.take(&file("shop", SNAPSHOTS_MAX), 1);
        assert!(listing.left_out);
        let newest = listing.end();
        assert_eq!(newest.len(), SNAPSHOTS_MAX);
        assert_eq!(newest[0].0.revision, 1);
    }
}
