//! Who lives on this host, and which version of etcd may open its data.

use crate::cluster::{ClusterId, ClusterName, MemberId, MemberName};
use crate::version::Version;

/// The identity of a cluster on this host: what is fixed at its birth, and the ids that etcd assigned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The document's name.
    pub cluster: ClusterName,
    /// This host's member.
    pub member: MemberName,
    /// The version that the cluster was born with or last upgraded to.
    pub version: Version,
    /// The other version that may open the data, while a change of version is not final: the one that ran before,
    /// or, on the way back, the one that did not serve.
    pub other_version: Option<Version>,
    /// That change is taken back.
    pub goes_back: bool,
    /// The database quota in bytes (rule D27).
    pub quota: u64,
    /// The member joined a cluster that lived.
    pub joined: bool,
    /// Given by etcd; known once the member has served for the first time.
    pub served: Option<(ClusterId, MemberId)>,
}

impl Identity {
    /// Whether etcd of this version may open the data.
    pub fn may_open(&self, version: Version) -> bool {
        self.version == version || self.other_version == Some(version)
    }
}

/// The version that a start uses. A cluster that has served, or has data, keeps the version it was born with.
/// Until then the document's counts: a version that was written wrong must be correctable. `data`: something
/// lies in the data directory. `newest`: for a document without one.
pub fn version(
    declared: Option<Version>,
    born: Option<&Identity>,
    data: bool,
    newest: Option<Version>,
) -> Option<Version> {
    match born {
        Some(born) if born.served.is_some() || data => Some(born.version),
        Some(born) => declared.or(Some(born.version)),
        None => declared.or(newest),
    }
}
