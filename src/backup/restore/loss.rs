//! What a restore takes away: proven to be worth it where nobody asked, and counted.

use std::path::Path;

use crate::etcd::data_dir;
use crate::etcd::examine::examine;
use crate::etcd::reach::{BORN, Point, reach};
use crate::member::records::data_dir as data_of;
use crate::member::restore_record::RestoreRecord;
use crate::version::Line;

/// Whether the data is damaged as it lies now, with everything read once more: what the document has
/// replaced without a person is thrown away on no older knowledge.
pub fn is_damaged_still(storage_dir: &Path, line: Option<Line>) -> bool {
    let data = data_of(storage_dir);
    let seen = data_dir::look(&data, line, true);
    if seen.unreadable.is_some() || seen.in_use {
        return false;
    }
    let found = seen.lacks_a_part() || seen.damage.is_some();
    found || examine(&data, line).is_ok_and(|it| it.is_some())
}

/// Counts in the log what the data to be replaced can have reached, where no etcd can be asked. `index`: the
/// last entry of the log that is applied in the snapshot. `seen`: an entry that was there for certain.
pub fn count(
    record: &mut RestoreRecord,
    index: Option<u64>,
    storage_dir: &Path,
    line: Option<Line>,
    seen: Option<u64>,
) {
    let (Some(former), data) = (&record.former, data_of(storage_dir)) else {
        return;
    };
    if data_dir::is_in_use(&data) {
        return; // it is asked right before it stops
    }
    let begun = former.cluster.jumps.last().map_or(BORN, |it| Point {
        revision: it.to,
        index: 0,
    });
    let mut known = vec![begun];
    // Another life's entries have other numbers.
    if record.source.cluster_id.is_some() && record.source.cluster_id == former.cluster.id {
        known.extend(index.map(|index| Point {
            revision: record.source.revision,
            index,
        }));
    }
    match reach(&data, line, &known, seen) {
        Ok(found) => {
            record.live_revision = record.live_revision.max(found.at_least);
            record.live_at_most = found
                .at_most
                .max(record.live_revision.filter(|_| found.at_most.is_some()));
        }
        Err(error) => tracing::warn!("the loss cannot be counted: {error}"),
    }
}
