//! Where people find a member, and whether another node would take one in its stead.

use std::fmt;

use crate::cluster::Detail;

/// Why no other node would take a member in the stead of one, where no two may share a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPlace {
    /// Each node that would take one has a member already.
    NoOtherNode,
    /// Nobody could ask for the nodes.
    Unknown,
}

impl fmt::Display for NoPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NoPlace::NoOtherNode => "no other node has a place for it",
            NoPlace::Unknown => "whether another node has a place for it is not known",
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
