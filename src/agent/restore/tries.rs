//! When the operator retries a restore that the document asks for and that failed without touching anything.

use std::path::PathBuf;
use std::time::SystemTime;

use crate::clock;
use crate::spec::ClusterSpec;
use crate::spec::backup::{Destination, Source};

/// Seconds until the next try, by the number of failed ones.
const RETRY: [u64; 5] = [10, 30, 60, 300, 600];

/// Failed restores that the document asked for.
#[derive(Default)]
pub(in crate::agent) struct Tries {
    /// The id of the last one.
    id: String,
    failed: usize,
    /// When the last one failed, in seconds since boot.
    at: u64,
    /// The state then of the files and directories that hold the snapshots.
    places: Vec<Option<(u64, u64, SystemTime)>>,
}

impl Tries {
    /// Seconds until the next try. It is due at once when a disk was mounted or a directory changed.
    pub(super) fn retry_in(&mut self, id: &str, spec: &ClusterSpec) -> u64 {
        let (now, places) = (clock::since_boot().as_secs(), places(spec));
        if self.id != id {
            let failed = self.failed + 1;
            *self = Tries {
                id: id.to_owned(),
                failed,
                at: now,
                places,
            };
        } else if self.places != places {
            if self.failed > 0 {
                tracing::info!(
                    "a disk with snapshots was mounted or changed: the operator retries the restore at once"
                );
            }
            self.failed = 0;
            return 0;
        }
        let wait = RETRY[self.failed.saturating_sub(1).min(RETRY.len() - 1)];
        (self.at + wait).saturating_sub(now)
    }
}

/// The state of each place on this host where the document's snapshots lie: device, inode and time.
fn places(spec: &ClusterSpec) -> Vec<Option<(u64, u64, SystemTime)>> {
    use std::os::unix::fs::MetadataExt as _;
    let mut paths: Vec<PathBuf> = Vec::new();
    let destinations = spec.backup.as_ref().map(|it| it.destinations.as_slice());
    for path in destinations
        .unwrap_or_default()
        .iter()
        .filter_map(Destination::local_path)
    {
        let dir = PathBuf::from(path);
        paths.push(dir.join(spec.name.as_str()));
        paths.push(dir);
    }
    if let Some(Source::File(path)) = &spec.bootstrap {
        paths.push(PathBuf::from(path.as_str()));
    }
    let stamp = |path: PathBuf| {
        let it = std::fs::metadata(path).ok()?;
        Some((it.dev(), it.ino(), it.modified().ok()?))
    };
    paths.into_iter().map(stamp).collect()
}
