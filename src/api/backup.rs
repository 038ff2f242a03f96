//! `spec.backup`: snapshots, on the wire.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{EtcdClusterSpec, VolumeClaim, formats};

/// Snapshots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Backup {
    /// When, as five cron fields in UTC, of numbers, `*`, `,`, `-` and `/`, with names of months and days such as `MON-FRI`;
    /// or one of `@hourly`, `@daily`, `@weekly` and `@monthly`. It waits while the clock is
    /// not trusted. Each cluster begins up to 300 s later than that, always by as much. Without this and `interval`,
    /// snapshots are taken only when a person asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), extend("pattern" = formats::SCHEDULE))]
    pub schedule: Option<String>,
    /// The time between snapshots, such as 6h; it needs no clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), extend("pattern" = formats::DURATION))]
    pub interval: Option<String>,
    /// Where snapshots are kept. The first is local: snapshots are taken and verified there, and copied to
    /// the others when these can be reached.
    #[schemars(length(min = 1, max = 4))]
    pub destinations: Vec<BackupDestination>,
    /// How well each snapshot is checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<BackupVerify>,
    /// For how long copies may wait for a link before BackupHealthy is False, such as 72h. Left out: 24h.
    /// If the destination refuses a copy, BackupHealthy is False at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), extend("pattern" = formats::DURATION))]
    pub copy_grace: Option<String>,
    /// Public keys of other clusters, such as the box that this one replaces: what they signed is restored without a
    /// person, too. `etcd-operator certs list` and `.status.backups.signer` show a cluster's key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 64), regex(pattern = formats::SIGNER)))]
    pub trusted_signers: Vec<String>,
}

impl EtcdClusterSpec {
    /// Where snapshots are kept; none without `backup`.
    pub fn destinations(&self) -> &[BackupDestination] {
        let backup = self.backup.as_ref();
        backup.map_or(&[][..], |it| &it.destinations)
    }

    /// The local one, where snapshots are taken. In Kubernetes there is one at most.
    pub fn local(&self) -> Option<&LocalDestination> {
        self.destinations().iter().find_map(|it| it.local.as_ref())
    }
}

/// Where snapshots go: exactly one of the two.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackupDestination {
    /// A directory of a host, a claim in Kubernetes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<LocalDestination>,
    /// A bucket of an S3-compatible store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<S3Destination>,
}

/// A directory of a host, or a claim in Kubernetes. With none of the three named it is the home's own place: the directory
/// /var/lib/etcd-operator/snapshots, or the claim NAME-snapshots, which the operator makes. Without a field that says what
/// stays, these are the last 5, and the newest of each of 7 days and 4 weeks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LocalDestination {
    /// A directory of a host. In Kubernetes, where snapshots lie on a claim, it is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256), extend("pattern" = formats::ABSOLUTE_PATH))]
    pub path: Option<String>,
    /// In Kubernetes: size and class of the claim NAME-snapshots. Left out: 2Gi of the default class. On a host it says
    /// nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<VolumeClaim>,
    /// In Kubernetes: a PersistentVolumeClaim of this namespace that somebody made. On a host: the directory of this name
    /// below /var/lib/etcd-operator/claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), extend("pattern" = formats::DNS_LABEL))]
    pub claim_name: Option<String>,
    /// How many of the newest snapshots stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub keep: Option<u32>,
    /// The newest of each of this many hours also stays. Ages count only with a trusted clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub keep_hourly: Option<u32>,
    /// The newest of each of this many days also stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub keep_daily: Option<u32>,
    /// The newest of each of this many weeks also stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub keep_weekly: Option<u32>,
    /// At most this many bytes stay, such as 2Gi; the newest verified snapshot always stays. Left out: 8Gi, and on a claim
    /// that the operator made at most half of its size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 24), extend("pattern" = formats::QUANTITY))]
    pub max_bytes: Option<String>,
}

/// The operator's own directory of a host.
pub const HOME: &str = "/var/lib/etcd-operator";

impl LocalDestination {
    /// Where it lies on a host.
    pub fn directory(&self) -> String {
        match (&self.path, &self.claim_name) {
            (Some(path), _) => path.clone(),
            (None, Some(claim)) => format!("{HOME}/claims/{claim}"),
            (None, None) => format!("{HOME}/snapshots"),
        }
    }
}

/// A bucket of an S3-compatible store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct S3Destination {
    /// The bucket; the operator never creates it.
    #[schemars(length(min = 3, max = 63), extend("pattern" = formats::BUCKET))]
    pub bucket: String,
    /// The beginning of every key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256), extend("pattern" = formats::PREFIX))]
    pub prefix: Option<String>,
    /// The store's URL, such as https://s3.example.com:9000; left out: Amazon's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256), extend("pattern" = formats::ENDPOINT))]
    pub endpoint: Option<String>,
    /// The region that signatures name; left out: us-east-1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), extend("pattern" = formats::REGION))]
    pub region: Option<String>,
    /// The bucket in the path instead of the host name.
    #[serde(default)]
    pub path_style: bool,
    /// A file with further CAs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256), extend("pattern" = formats::ABSOLUTE_PATH))]
    pub ca_file: Option<String>,
    /// A file with the access keys, read anew for each run. Left out: systemd's credential
    /// etcd-operator.s3, else the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256), extend("pattern" = formats::ABSOLUTE_PATH))]
    pub credentials: Option<String>,
    /// In Kubernetes, where no file of a node is read: a Secret of this namespace. Its key `credentials` holds the text of
    /// such a file, and `ca.crt`, where it is there, further CAs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), extend("pattern" = formats::DNS_LABEL))]
    pub credentials_secret: Option<String>,
    /// How many of the newest snapshots stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub keep: Option<u32>,
    /// The newest of each of this many hours also stays. Ages count only with a trusted clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub keep_hourly: Option<u32>,
    /// The newest of each of this many days also stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub keep_daily: Option<u32>,
    /// The newest of each of this many weeks also stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub keep_weekly: Option<u32>,
    /// At most this many bytes stay, such as 2Gi; the newest verified snapshot always stays. Left out: 64Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 24), extend("pattern" = formats::QUANTITY))]
    pub max_bytes: Option<String>,
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
    /// Public keys of age: who has the secret key of one of them can read the snapshots. The device
    /// itself cannot.
    #[schemars(length(min = 1, max = 8), inner(length(max = 128), regex(pattern = formats::RECIPIENT)))]
    pub recipients: Vec<String>,
}

/// How well a snapshot is checked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackupVerify {
    /// The operator always checks size, hash and structure of a new snapshot (levels 1 to 3).
    /// 4 also restores the newest one into a scratch directory, starts an etcd on it and reads it.
    #[schemars(range(min = 3, max = 4))]
    pub level: u8,
    /// The time between checks of stored snapshots, up to `level`, such as 7d. Left out: they are not
    /// checked again, and at level 4 each new snapshot gets a trial restore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), extend("pattern" = formats::DURATION))]
    pub every: Option<String>,
}
