//! A member's own database, as bbolt opens it: with one sound meta page, and whatever lies in pages that
//! nothing points to.

use super::keys::Kind;
use super::{BoltError, ReadAt, Summary, Walk, page};

/// What is wrong with a member's own database, and at which byte.
#[derive(Debug)]
pub struct LiveError {
    /// What is wrong.
    pub error: BoltError,
    /// Where; none where no page says how long pages are.
    pub offset: Option<u64>,
}

/// A leaf of the member's own database takes at most so many bytes: whoever wrote larger values than this operator's
/// documents allow has sound data nevertheless, and what is said of it here can lead to a restore.
const LEAF_BYTES_MAX: u64 = 128 << 20;

/// Reads its meta pages alone: 84 bytes each.
///
/// # Errors
/// [`LiveError`]: neither is sound, and bbolt panics.
pub fn head(source: &mut dyn ReadAt) -> Result<(), LiveError> {
    live_meta(source).map(|_| ())
}

fn live_meta(source: &mut dyn ReadAt) -> Result<page::Meta, LiveError> {
    page::read_live_meta(source).map_err(|error| LiveError {
        offset: error
            .offset(0)
            .filter(|_| matches!(error, BoltError::Damaged { page: 0, .. })),
        error,
    })
}

/// Walks a member's own database, which nobody has open. bbolt opens it with one sound meta page, and
/// does not mind what lies in pages that nothing points to: neither does this.
///
/// # Errors
/// [`LiveError`] at the first thing that keeps bbolt from reading it.
pub fn walk_live(source: &mut dyn ReadAt) -> Result<Summary, LiveError> {
    let meta = live_meta(source)?;
    let mut ignored = |_| ();
    let mut walk = Walk::new(source, &mut ignored, meta);
    walk.leaf_max = LEAF_BYTES_MAX;
    let walked = walk.buckets().and_then(|buckets| {
        let mut each = buckets.iter();
        each.try_for_each(|it| walk.bucket(it))
    });
    match walked {
        Ok(()) => Ok(walk.summary()),
        Err(error) => Err(LiveError {
            offset: error.offset(meta.page_size),
            error,
        }),
    }
}

/// What a member's own database has taken up: a few pages are read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TakenUp {
    /// The last entry of the log.
    pub index: Option<u64>,
    /// The version on which the cluster had agreed by then.
    pub cluster_version: Option<String>,
    /// How many members the cluster had.
    pub members: u32,
}

/// How far a member's own database has come.
///
/// # Errors
/// [`BoltError`] at the first thing that keeps bbolt from reading these pages.
pub fn taken_up(source: &mut dyn ReadAt) -> Result<TakenUp, BoltError> {
    let meta = page::read_live_meta(source)?;
    let mut ignored = |_| ();
    let mut walk = Walk::new(source, &mut ignored, meta);
    for bucket in &walk.buckets()? {
        let kind = Kind::of(&bucket.name);
        if matches!(kind, Kind::Meta | Kind::Cluster | Kind::Members) {
            walk.bucket(bucket)?;
        }
    }
    Ok(TakenUp {
        index: walk.total.consistent_index,
        cluster_version: walk.total.cluster_version,
        members: walk.total.members,
    })
}
