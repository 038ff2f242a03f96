//! `spec.backup`: snapshots, on the wire.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::formats;

/// Snapshots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Backup {
    /// When, as five cron fields in UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub schedule: Option<String>,
    /// How often, such as 6h; needs no clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), extend("pattern" = formats::DURATION))]
    pub interval: Option<String>,
    /// Where to. A local one first.
    #[schemars(length(min = 1, max = 4))]
    pub destinations: Vec<BackupDestination>,
    /// How well each snapshot is checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<BackupVerify>,
}

/// Where snapshots go: exactly one of the two.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackupDestination {
    /// A directory of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<LocalDestination>,
    /// A bucket of an S3-compatible store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<S3Destination>,
}

/// A directory of the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LocalDestination {
    /// The directory.
    #[schemars(length(max = 256), extend("pattern" = formats::ABSOLUTE_PATH))]
    pub path: String,
    /// How many snapshots stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub keep: Option<u32>,
    /// How many bytes stay, such as 2Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 24), extend("pattern" = formats::QUANTITY))]
    pub max_bytes: Option<String>,
}

/// A bucket of an S3-compatible store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct S3Destination {
    /// The bucket; it is never created.
    #[schemars(length(min = 3, max = 63))]
    pub bucket: String,
    /// The beginning of every key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub prefix: Option<String>,
    /// The store's URL; left out: Amazon's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub endpoint: Option<String>,
    /// The region that signatures name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub region: Option<String>,
    /// The bucket in the path instead of the host name.
    #[serde(default)]
    pub path_style: bool,
    /// A file with further CAs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256), extend("pattern" = formats::ABSOLUTE_PATH))]
    pub ca_file: Option<String>,
    /// A file with the access keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub credentials: Option<String>,
    /// How many snapshots stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub keep: Option<u32>,
    /// The most bytes sent in a second, such as 1Mi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 24), extend("pattern" = formats::QUANTITY))]
    pub bandwidth: Option<String>,
    /// Encryption before anything leaves the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<Encryption>,
}

/// Encryption with age.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Encryption {
    /// Public keys of those who can read the snapshots.
    #[schemars(length(min = 1, max = 8), inner(length(max = 128)))]
    pub recipients: Vec<String>,
}

/// How well a snapshot is checked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackupVerify {
    /// 1 size, 2 hash, 3 structure, 4 a trial restore.
    #[schemars(range(min = 1, max = 4))]
    pub level: u8,
    /// How often older snapshots are checked again, such as 24h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), extend("pattern" = formats::DURATION))]
    pub every: Option<String>,
}
