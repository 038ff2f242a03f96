//! `EtcdBackup` and `EtcdRestore`: what a person asks for once, in Kubernetes. On a host the same is a
//! command.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::formats;

/// One snapshot, now.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "etcd.edge-operator.io",
    version = "v1alpha1",
    kind = "EtcdBackup",
    plural = "etcdbackups",
    category = "etcd-operator",
    namespaced,
    status = "EtcdBackupStatus",
    doc = "One snapshot of an EtcdCluster, taken and verified now, into the first destination of its spec.backup and copied to the others.",
    printcolumn(name = "Cluster", type_ = "string", json_path = ".spec.cluster"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Snapshot", type_ = "string", json_path = ".status.snapshot"),
    printcolumn(name = "Revision", type_ = "integer", json_path = ".status.revision"),
    printcolumn(name = "Level", type_ = "integer", json_path = ".status.level"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EtcdBackupSpec {
    /// The EtcdCluster in this namespace.
    #[schemars(length(max = 50), extend("pattern" = formats::DNS_LABEL))]
    pub cluster: String,
    /// This object is removed so many hours after it has ended. The snapshot stays under the retention
    /// of its destination. Left out: it stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 8760))]
    pub ttl_hours: Option<u32>,
}

/// How the snapshot went.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EtcdBackupStatus {
    /// Running, Succeeded or Failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Its name in the destination.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// The last revision in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
    /// The level of verification that it reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<u8>,
    /// The size of its file, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Why it failed, or what else there is to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Ready once it has ended as asked, Stalled once it has failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4), extend("x-kubernetes-list-type" = "map"), extend("x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// When it ended; `ttlHours` counts from then. Absent until the clock is trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed: Option<Time>,
}

/// How far a request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// Under way.
    Running,
    /// It ended as asked.
    Succeeded,
    /// It failed; the message says why. Nothing was lost.
    Failed,
}

impl Phase {
    /// Nobody works on the request any more.
    pub fn is_end(self) -> bool {
        matches!(self, Phase::Succeeded | Phase::Failed)
    }
}

/// A snapshot's data in place of a cluster's.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "etcd.edge-operator.io",
    version = "v1alpha1",
    kind = "EtcdRestore",
    plural = "etcdrestores",
    category = "etcd-operator",
    namespaced,
    status = "EtcdRestoreStatus",
    doc = "Brings the data of a snapshot into an EtcdCluster, once. The data from before is kept beside the new.",
    printcolumn(name = "Cluster", type_ = "string", json_path = ".spec.cluster"),
    printcolumn(name = "Into", type_ = "string", json_path = ".spec.into"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Snapshot", type_ = "string", json_path = ".status.snapshot"),
    printcolumn(name = "Lost", type_ = "integer", json_path = ".status.revisionsLost"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EtcdRestoreSpec {
    /// The EtcdCluster in this namespace whose snapshots are meant.
    #[schemars(length(max = 50), extend("pattern" = formats::DNS_LABEL))]
    pub cluster: String,
    /// `latest`, the newest verified one, or a snapshot's name, its revision such as r1234, or the beginning of its name.
    #[serde(default = "latest")]
    #[schemars(length(min = 1, max = 200), extend("pattern" = formats::SNAPSHOT_NAME))]
    pub from: String,
    /// The name of a new EtcdCluster, which the operator creates with the data of the snapshot and the
    /// specification of `cluster`. Left out: in place, which needs `replaceData`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 50), extend("pattern" = formats::DNS_LABEL))]
    pub into: Option<String>,
    /// For a restore in place: the name of the cluster once more. It confirms that the cluster stops, and
    /// that everything written since the snapshot is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 50))]
    pub replace_data: Option<String>,
}

fn latest() -> String {
    "latest".to_owned()
}

/// How the restore went.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EtcdRestoreStatus {
    /// Running, Succeeded or Failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// The snapshot that was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// Its revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
    /// How many revisions the restore lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revisions_lost: Option<i64>,
    /// What is done now, or why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Ready once it has ended as asked, Stalled once it has failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4), extend("x-kubernetes-list-type" = "map"), extend("x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed: Option<Time>,
}

/// Rules over `spec` of both, in CEL: what is asked for once is not changed afterwards.
pub const IMMUTABLE: (&str, &str) = (
    "self == oldSelf",
    "spec cannot be changed: it is carried out once; make another object",
);
/// A restore in place is acknowledged by the cluster's name.
pub const ACKNOWLEDGED: (&str, &str) = (
    "has(self.into) != has(self.replaceData) && (!has(self.replaceData) || self.replaceData == self.cluster) && (!has(self.into) || self.into != self.cluster)",
    "either into names a new cluster, or replaceData repeats the name of cluster: its data is replaced",
);
