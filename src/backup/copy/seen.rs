//! What is known of the further destinations without asking them.

use super::{arrived, further, waiting};
use crate::backup::age::Ages;
use crate::backup::local::Entry;
use crate::backup::manifest::Manifest;
use crate::backup::name::SnapshotName;
use crate::backup::prune::Ours;
use crate::backup::{place, remote};
use crate::clock;
use crate::cluster::Timestamp;
use crate::observed::SnapshotSeen;
use crate::paths::Paths;
use crate::retention::VERIFIED;
use crate::spec::ClusterSpec;
use crate::spec::backup::{Destination, Place};

/// What is known of the copies in a further destination.
#[derive(Clone)]
pub struct CopiesSeen {
    /// Where, in the words of a command line.
    pub place: String,
    /// The newest verified one of this cluster that was seen to arrive.
    pub verified: Option<SnapshotSeen>,
    /// How many wait, and their bytes.
    pub queued: (u32, u64),
    /// When the oldest of them was taken, by a trusted clock.
    pub waits_since: Option<Timestamp>,
    /// Its age in seconds, where that is known.
    pub waits: Option<u64>,
    /// How many are gone that this operator did not remove, and the revision of the newest.
    pub vanished: Option<(u32, i64)>,
}

/// What is known of the copies in each further destination, without asking it.
pub fn seen(
    paths: &Paths,
    spec: &ClusterSpec,
    entries: &[Entry],
    ours: &Ours,
    ages: &Ages,
) -> Vec<CopiesSeen> {
    let seen = |destination: &Destination| {
        let waiting = waiting(paths, spec, destination, entries, ours, ages);
        let queued = waiting.iter().fold((0, 0), |(count, bytes), (_, it)| {
            (count + 1, bytes + it.file.size)
        });
        let oldest = waiting.last().map(|(_, manifest)| *manifest);
        CopiesSeen {
            place: place::describe(destination),
            verified: newest_copy(paths, spec, destination, entries, ours, ages),
            queued,
            waits_since: oldest.and_then(Manifest::created),
            waits: oldest.and_then(|it| ages.of(it)),
            vanished: remote::vanished(paths, destination, clock::now()),
        }
    };
    further(spec).iter().map(seen).collect()
}

/// The newest verified copy that was seen to arrive. What the first destination still has is known in
/// full, of the others the name tells.
fn newest_copy(
    paths: &Paths,
    spec: &ClusterSpec,
    destination: &Destination,
    entries: &[Entry],
    ours: &Ours,
    ages: &Ages,
) -> Option<SnapshotSeen> {
    let names: Vec<(String, u8)> = match &destination.place {
        Place::Local(_) => {
            let names = arrived(paths, spec, destination).into_iter();
            names.map(|it| (it, VERIFIED)).collect()
        }
        Place::S3(_) => remote::known_names_of(paths, destination, ours),
    };
    let names = names.iter().filter(|(_, level)| *level >= VERIFIED);
    let (name, level) = names
        .filter_map(|(it, level)| Some((it.parse::<SnapshotName>().ok()?, *level)))
        .max_by_key(|(it, _)| (it.revision, it.created()))?;
    let here = entries.iter().find(|it| it.name == name);
    let manifest = here.and_then(|it| it.manifest.as_ref().ok());
    Some(SnapshotSeen {
        revision: name.revision,
        created: name.created(),
        level,
        bytes: manifest.map_or(0, |it| it.file.size),
        seconds: manifest
            .and_then(|it| ages.of(it))
            .or_else(|| ages.since(name.created())),
        version: manifest.and_then(Manifest::etcd),
    })
}
