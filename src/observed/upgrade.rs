//! How far a change of etcd's version has come.

use crate::cluster::{Detail, MemberName};
use crate::version::Version;

/// A change of version, as far as the operator has come. What is recorded of the member itself is its
/// [`crate::start::Identity::other_version`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Upgrade {
    /// None is under way.
    #[default]
    None,
    /// The new etcd is being tried on a copy of the data.
    Rehearsing {
        /// Its version.
        to: Version,
    },
    /// The new etcd served a copy of the data. This holds for some minutes.
    Rehearsed {
        /// Its version.
        to: Version,
        /// The revision of the snapshot that the copy was made of.
        revision: i64,
    },
    /// It could not be tried for now: no snapshot, or no room for the copy. The operator tries again.
    NotRehearsed {
        /// Its version.
        to: Version,
        /// Why not.
        why: Detail,
        /// Seconds until the operator tries again.
        retry_in: u64,
    },
    /// Another image of the version that serves is being tried on a copy of the data, or will be. The plan has no part in
    /// that.
    RehearsingImage,
    /// The new etcd did not serve: a copy of the data, or the data. It is not tried again until the document changes.
    Failed(Failed),
}

impl Upgrade {
    /// The version that is not tried again until the document changes.
    pub fn failed(&self) -> Option<Version> {
        match self {
            Upgrade::Failed(it) => Some(it.to),
            _ => None,
        }
    }
}

/// How far data reaches: a revision of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Those of this life begin with this one, to which a restore jumped; 0: at birth.
    pub begun: i64,
    /// It holds this one.
    pub at_least: Option<i64>,
    /// It holds none after this one. None: nobody knows where it ends.
    pub at_most: Option<i64>,
}

/// A version that did not serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The version.
    pub to: Version,
    /// What happened.
    pub why: Detail,
    /// The member whose data it did not serve; empty: it did not serve a copy.
    pub member: MemberName,
}
