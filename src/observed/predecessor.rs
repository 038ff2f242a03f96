//! Snapshots of a cluster of the document's name, where none lives here yet.

use super::SnapshotSeen;
use crate::cluster::Detail;
use crate::spec::backup::PublicKey;

/// What the document's destinations hold before a cluster is born here. It decides whether the first
/// start begins with nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Predecessors {
    /// None, or nobody looked: a cluster lives here, the document says where its data comes from, or
    /// keeps no snapshots. Also where only a bucket could not be asked: a box without a link starts all
    /// the same, and what that bucket holds stays there, to be restored later.
    #[default]
    None,
    /// A bucket is being asked.
    Looking,
    /// There are some.
    Found(Predecessor),
    /// A directory cannot be read: the disk that holds them may not be mounted. The box is at hand, a
    /// person has just set it up, and a word in the document ends it, so that this is no `None`.
    Unreadable(Detail),
}

/// What was found in one destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Predecessor {
    /// Verified snapshots.
    pub count: u32,
    /// The newest of them.
    pub newest: SnapshotSeen,
    /// The public key that signed the newest; none where nobody has.
    pub signer: Option<PublicKey>,
    /// Where, in the words of a command line.
    pub place: Detail,
}
