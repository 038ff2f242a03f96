//! `spec.recovery`: what may be done without a person.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cluster::FAILED_SECONDS;

/// What may be done without a person.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Recovery {
    /// For a single member whose data is damaged beyond what etcd can start from.
    #[serde(default)]
    pub single_member: SingleMemberRecovery,
    /// For one of several members that has failed: its node is gone, or its data is gone or damaged.
    #[serde(default)]
    pub member: MemberRecovery,
    /// After so many minutes without a word of a member and of its node it has failed. Left out: 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_080))]
    pub grace_minutes: Option<u32>,
}

impl Recovery {
    /// Whether damaged data of a single member is replaced by a snapshot.
    pub(super) fn restores(&self) -> bool {
        self.single_member == SingleMemberRecovery::RestoreLatestVerified
    }

    /// How long nothing has to be heard of a member and of its node until it has failed.
    pub(super) fn grace_seconds(&self) -> u64 {
        self.grace_minutes
            .map_or(FAILED_SECONDS, |it| u64::from(it) * 60)
    }
}

/// What happens to one of several members that has failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum MemberRecovery {
    /// While the others are a majority, the cluster removes it, and another one joins in its place.
    #[default]
    Replace,
    /// Nothing is changed; a person decides.
    Hold,
}

/// What happens to a single member with damaged data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum SingleMemberRecovery {
    /// Nothing is touched; a person decides.
    #[default]
    Hold,
    /// The newest verified local snapshot is restored, the damaged data kept aside, and the loss
    /// announced as a number.
    RestoreLatestVerified,
}
