//! `status.members`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cluster::Role;

/// One member.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemberStatus {
    /// Its id, in hexadecimal.
    pub id: String,
    /// Its name; empty for one that the document does not ask for and that never started.
    pub name: String,
    /// `voter` or `learner`.
    pub role: String,
    /// Whether it answers.
    pub serving: bool,
    /// Whether it leads.
    pub leader: bool,
    /// The version of etcd that it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Entries of Raft's log that it had to catch up when this was confirmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag: Option<u64>,
    /// The node that it runs on, in Kubernetes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The claim that holds its data, in Kubernetes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
}

/// A role on the wire.
pub fn role_name(role: Role) -> &'static str {
    match role {
        Role::Voter => "voter",
        Role::Learner { .. } => "learner",
    }
}

pub(super) fn member_to_wire(it: &crate::status::MemberStatus) -> MemberStatus {
    MemberStatus {
        id: it.member.id.to_string(),
        name: it.member.name.to_string(),
        role: role_name(it.member.role).to_owned(),
        serving: it.serves(),
        leader: it.leader,
        version: it.version.map(|it| it.to_string()),
        lag: it.lag,
        node: it.placement.node.as_ref().map(ToString::to_string),
        claim: it.placement.claim.as_ref().map(ToString::to_string),
    }
}
