//! Where people find a member, and what keeps it there.

use std::fmt;

use crate::cluster::Detail;

/// What keeps a member's place on the node that it had, where no two members may share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Each node that would take one has a member already.
    NoOtherNode,
    /// Nobody could ask for the nodes.
    Unknown,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Bound::NoOtherNode => "no other node has a place for it",
            Bound::Unknown => "whether another node has a place for it is not known",
        })
    }
}

/// Where people find a member, as far as its home has names for that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The node that it runs on.
    pub node: Option<Detail>,
    /// The claim that holds its data.
    pub claim: Option<Detail>,
}
