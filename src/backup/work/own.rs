//! Which of the snapshots that lie there are the cluster's own, by its signature.

use super::{Member, seen};
use crate::backup::age::Ages;
use crate::backup::local::Entry;
use crate::backup::place;
use crate::observed::{NAMED_MAX, SnapshotNamed};
use crate::retention::VERIFIED;
use crate::version::Version;

/// Whether this key signed a snapshot. Where none is known, nobody asks.
fn is_signed(entry: &Entry, key: Option<&str>) -> bool {
    key.is_none_or(|key| entry.signer() == Some(key))
}

/// The newest, and the newest verified one, that this key signed: from what somebody else signed this cluster is not
/// restored by itself.
pub(super) fn newest_own<'a>(
    ours: &[&'a Entry],
    key: Option<&str>,
) -> (Option<&'a Entry>, Option<&'a Entry>) {
    let mut own = ours.iter().copied().filter(|it| is_signed(it, key));
    let newest = own.next();
    let verified = newest
        .into_iter()
        .chain(own)
        .find(|it| it.level() >= VERIFIED);
    (newest, verified)
}

/// The newest ones that this key signed, by name.
pub(super) fn named(
    ours: &[&Entry],
    key: Option<&str>,
    ages: &Ages,
) -> heapless::Vec<SnapshotNamed, NAMED_MAX> {
    let own = ours.iter().copied().filter(|it| is_signed(it, key));
    let named = own.filter_map(|it| {
        Some(SnapshotNamed {
            name: it.name.to_string().as_str().try_into().ok()?,
            seen: seen(it, ages),
        })
    });
    shown(&named.collect::<Vec<_>>())
}

/// The newest ones that were taken for changes of version, where the document has no `backup`.
pub fn of_changes(member: &Member<'_>) -> heapless::Vec<SnapshotNamed, NAMED_MAX> {
    let entries = place::before_upgrade(member.paths, member.spec).list();
    let (entries, clusters) = (entries.unwrap_or_default(), member.clusters());
    let ours: Vec<&Entry> = entries.iter().filter(|it| it.is_of(&clusters)).collect();
    named(&ours, member.key().as_deref(), &Ages::new(None))
}

/// As many as a person reads. What leads back to the line of etcd before is among them, however many of the newer one there are.
fn shown(all: &[SnapshotNamed]) -> heapless::Vec<SnapshotNamed, NAMED_MAX> {
    let line = |it: &SnapshotNamed| it.seen.version.and_then(Version::line);
    let newest = all.first().and_then(line);
    let before = |it: &&SnapshotNamed| it.seen.level >= VERIFIED && line(it) != newest;
    let (mut first, rest) = all.split_at(all.len().min(NAMED_MAX));
    let back = rest.iter().find(before);
    let back = back.filter(|_| !first.iter().any(|it| before(&it)));
    if back.is_some() {
        first = &first[..NAMED_MAX - 1];
    }
    first.iter().chain(back).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observed::SnapshotSeen;

    #[test]
    fn the_one_that_leads_back_is_shown_beside_any_number_of_newer_ones() {
        let snapshot = |revision: i64, minor: u16| SnapshotNamed {
            name: heapless::String::new(),
            seen: SnapshotSeen {
                revision,
                created: None,
                level: VERIFIED,
                bytes: 1,
                seconds: None,
                version: Some(Version::new(3, minor, 0)),
            },
        };
        for newer in 0..=20 {
            let newer = (0..newer).map(|it| snapshot(100 - it, 7));
            let all: Vec<_> = newer.chain([snapshot(20, 6), snapshot(10, 6)]).collect();
            let shown = shown(&all);
            assert_eq!(shown.len(), all.len().min(NAMED_MAX));
            assert!(shown.iter().any(|it| it.seen.revision == 20));
            let newest: Vec<_> = all.iter().take(NAMED_MAX - 1).collect();
            assert!(newest.iter().all(|it| shown.contains(it)));
        }
    }
}
