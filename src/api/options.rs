//! `options`: settings of etcd.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::formats;

/// Settings of etcd. What is left out follows the profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Options {
    /// Which old revisions etcd compacts.
    #[serde(default)]
    pub auto_compaction: AutoCompaction,
    /// Time between heartbeats, in milliseconds. Left out: 500 for several members in `edge`,
    /// else 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 5000))]
    pub heartbeat_milliseconds: Option<u32>,
    /// Time without a heartbeat until an election, in milliseconds. Left out: in `edge` 500 for
    /// one member and 5000 for several, in `standard` 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 50, max = 50000))]
    pub election_milliseconds: Option<u32>,
    /// Entries applied between two Raft snapshots. Left out: 5000 in `edge`, 10000 in `standard`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 100, max = 1_000_000))]
    pub snapshot_count: Option<u32>,
    /// The largest request of a client, such as 1536Ki.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 24), extend("pattern" = formats::QUANTITY))]
    pub max_request_size: Option<String>,
    /// The most operations in one transaction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub max_transaction_operations: Option<u32>,
    /// A soft limit for the memory of etcd's Go runtime (GOMEMLIMIT), such as 128Mi; at least
    /// 64Mi. Left out: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 24), extend("pattern" = formats::QUANTITY))]
    pub memory_limit: Option<String>,
    /// Whether etcd answers JSON over HTTP beside gRPC, as Patroni and etcd3gw ask.
    #[serde(default = "http_gateway")]
    pub http_gateway: bool,
    /// How much etcd logs.
    #[serde(default)]
    pub log_level: LogLevel,
}

fn http_gateway() -> bool {
    true
}

impl Default for Options {
    fn default() -> Self {
        Options {
            auto_compaction: AutoCompaction::default(),
            heartbeat_milliseconds: None,
            election_milliseconds: None,
            snapshot_count: None,
            max_request_size: None,
            max_transaction_operations: None,
            memory_limit: None,
            http_gateway: http_gateway(),
            log_level: LogLevel::default(),
        }
    }
}

/// Which old revisions etcd compacts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AutoCompaction {
    /// By age, by number, or not at all.
    #[serde(default)]
    pub mode: AutoCompactionMode,
    /// For `periodic` hours of history, for `revision` the number of revisions.
    #[serde(default = "compaction_retention")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub retention: u32,
}

fn compaction_retention() -> u32 {
    1
}

impl Default for AutoCompaction {
    fn default() -> Self {
        AutoCompaction {
            mode: AutoCompactionMode::default(),
            retention: compaction_retention(),
        }
    }
}

/// How old revisions are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum AutoCompactionMode {
    /// Older than so many hours.
    #[default]
    Periodic,
    /// More than so many revisions back.
    Revision,
    /// A client compacts, as kube-apiserver does.
    Disabled,
}

/// How much etcd logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum LogLevel {
    /// Everything.
    Debug,
    /// What happens.
    #[default]
    Info,
    /// What should not happen.
    Warn,
    /// What went wrong.
    Error,
}
