//! Which of the snapshots that lie there are the cluster's own, by its signature.

use super::{Member, seen};
use crate::backup::age::Ages;
use crate::backup::local::Entry;
use crate::backup::place;
use crate::observed::{NAMED_MAX, SnapshotNamed};
use crate::retention::VERIFIED;

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
    named.take(NAMED_MAX).collect()
}

/// The newest ones that were taken for changes of version, where the document has no `backup`.
pub fn of_changes(member: &Member<'_>) -> heapless::Vec<SnapshotNamed, NAMED_MAX> {
    let entries = place::before_upgrade(member.paths, member.spec).list();
    let (entries, clusters) = (entries.unwrap_or_default(), member.clusters());
    let ours: Vec<&Entry> = entries.iter().filter(|it| it.is_of(&clusters)).collect();
    named(&ours, member.key().as_deref(), &Ages::new(None))
}
