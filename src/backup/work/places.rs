//! What lies in the destinations, as far as files tell: seen beside the loop, because a share or a disk may hang.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::due::checked;
use super::jobs::failure;
use super::{Member, Work};
use crate::backup::age::Ages;
use crate::backup::copy::{self, CopiesSeen};
use crate::backup::local::{Entry, LocalError, LocalStore};
use crate::backup::place;
use crate::backup::prune::Ours;
use crate::cluster::{Detail, Timestamp, detail};
use crate::disk::Seen;
use crate::observed::BackupFailure;
use crate::paths::Paths;
use crate::spec::ClusterSpec;
use crate::spec::backup::{Backup, Destination};

/// Where something was seen before, it is told that nothing is seen now after so long.
const SILENT: Duration = Duration::from_secs(10);

/// Of which document and which clusters something is seen.
pub(super) type Asked = (Option<Backup>, Vec<String>);

/// What is seen of the first destination.
#[derive(Clone, Default)]
pub(super) struct First {
    /// The snapshots there, of whatever cluster of this name.
    pub(super) entries: Arc<Vec<Entry>>,
    /// The directory's stamp then, and its path.
    stamp: Option<(SystemTime, PathBuf)>,
    /// Why it cannot be read.
    pub(super) failed: Option<BackupFailure>,
    /// When all that are kept were last checked.
    pub(super) checked: Option<Timestamp>,
}

/// Looks at the first destination.
pub(super) fn first(
    paths: &Paths,
    store: &LocalStore,
    clusters: &[String],
    before: Option<First>,
) -> First {
    let mut seen = before.unwrap_or_default();
    seen.failed = match seen.list(store) {
        Ok(()) => None,
        Err(error) => {
            (seen.entries, seen.stamp) = (Arc::default(), None);
            Some(failure("DestinationUnusable", &error))
        }
    };
    let ours = seen.entries.iter().filter(|it| it.is_of(clusters));
    seen.checked = checked(paths, &ours.collect::<Vec<_>>());
    seen
}

impl First {
    /// The listing, read again only when something came or went: a look every few seconds must cost
    /// nothing.
    fn list(&mut self, store: &LocalStore) -> Result<(), LocalError> {
        let stamp = store.stamp().map(|it| (it, store.path().to_owned()));
        if stamp.is_none() || stamp != self.stamp {
            self.entries = Arc::new(store.list()?);
            self.stamp = stamp;
        }
        Ok(())
    }
}

/// What is seen of the further destinations.
#[derive(Clone, Default)]
pub(super) struct Further {
    pub(super) copies: Vec<CopiesSeen>,
    /// When copies were last read back.
    pub(super) checked: Option<Timestamp>,
    /// There are copies in a destination of which none ever was.
    pub(super) unchecked: bool,
}

impl Further {
    /// How many wait to be copied, and their bytes.
    pub(super) fn queued(&self) -> (u32, u64) {
        let each = self.copies.iter().map(|it| it.queued);
        each.fold((0, 0), |(count, bytes), it| (count + it.0, bytes + it.1))
    }
}

/// Looks at the further destinations, with what lies in the first. `now`: the time, if it is trusted.
pub(super) fn further(
    paths: &Paths,
    spec: &ClusterSpec,
    (entries, ours): (&[Entry], &Ours),
    now: Option<Timestamp>,
) -> Further {
    let (checked, unchecked) = copy::last_check(paths, spec);
    Further {
        copies: copy::seen(paths, spec, entries, ours, &Ages::new(now)),
        checked,
        unchecked,
    }
}

/// Why no more is known of these, where a file system has not answered for so long.
pub(super) fn silent(
    destinations: &[Destination],
    known: bool,
    since: Duration,
) -> Option<BackupFailure> {
    if known && since < SILENT {
        return None;
    }
    Some(BackupFailure {
        reason: "DestinationUnusable",
        why: detail(format_args!(
            "the file system has not answered for {} s: {}",
            since.as_secs(),
            place::describe_local(destinations)
        )),
    })
}

impl Work {
    pub(super) fn see_first(&mut self, member: &Member<'_>, store: LocalStore) -> Seen<First> {
        let (paths, clusters) = (member.paths.clone(), member.clusters());
        let asked = (member.spec.backup.clone(), clusters.clone());
        self.first.at(asked, move |before| {
            first(&paths, &store, &clusters, before)
        })
    }

    pub(super) fn see_further(
        &mut self,
        member: &Member<'_>,
        entries: Arc<Vec<Entry>>,
        now: Option<Timestamp>,
    ) -> Seen<Further> {
        // On the heap: by value each frame on the way would hold it.
        let (paths, spec) = (member.paths.clone(), Box::new(member.spec.clone()));
        let ours = member.ours();
        let asked = (spec.backup.clone(), ours.clusters.clone());
        self.further.at(asked, move |_| {
            further(&paths, &spec, (&entries, &ours), now)
        })
    }

    /// The snapshots in the first destination, as they are now, or why they cannot be seen.
    pub fn entries(&mut self, member: &Member<'_>) -> Result<Arc<Vec<Entry>>, Detail> {
        let Some(store) = place::primary(member.spec) else {
            return Ok(Arc::default());
        };
        let looked = self.see_first(member, store);
        let fresh = looked.silent.is_none() && !looked.outdated;
        match looked.what.filter(|_| fresh) {
            Some(First {
                failed: Some(it), ..
            }) => Err(it.why),
            Some(it) => Ok(it.entries),
            None => Err(detail(format_args!("the file system does not answer"))),
        }
    }
}
