//! `EtcdCluster`, the one document of both homes: its wire types and nothing else.
//!
//! The doc comments here are what `kubectl explain` shows. Rules that join several fields are in
//! [`rules`], formats of single strings in [`formats`]; the step to [`crate::spec::ClusterSpec`]
//! is in [`convert`]. It knows neither etcd nor any file.

#![allow(
    clippy::duplicated_attributes,
    reason = "columns of one derive look alike to the lint"
)]

mod backup;
pub mod convert;
pub mod crd;
pub mod formats;
mod options;
pub mod pod;
mod recovery;
pub mod requests;
pub mod rules;
pub mod service;
pub mod status;
mod upgrade;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use backup::{
    Backup, BackupDestination, BackupVerify, Encryption, HOME, LocalDestination, S3Destination,
};
pub use options::{AutoCompaction, AutoCompactionMode, LogLevel, Options};
pub use pod::Pod;
pub use recovery::{MemberRecovery, Recovery, SingleMemberRecovery};
pub use requests::{EtcdBackup, EtcdRestore};
pub use service::{Service, ServiceType};
pub use status::EtcdClusterStatus;
pub use upgrade::Upgrade;

/// The API group of every type of this operator.
pub const GROUP: &str = "etcd.edge-operator.io";
/// The version of the API.
pub const VERSION: &str = "v1alpha1";

/// An etcd cluster: on a k3s node an object, on a bare host a file.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "etcd.edge-operator.io",
    version = "v1alpha1",
    kind = "EtcdCluster",
    plural = "etcdclusters",
    shortname = "etcd",
    category = "etcd-operator",
    namespaced,
    status = "EtcdClusterStatus",
    doc = "An etcd cluster with mutual TLS that the operator keeps alive.",
    scale(
        spec_replicas_path = ".spec.size",
        status_replicas_path = ".status.readyMembers"
    ),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.ready"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.version"),
    printcolumn(
        name = "Available",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Available')].status"
    ),
    printcolumn(
        name = "Backup",
        type_ = "date",
        json_path = ".status.backups.lastVerified.created"
    ),
    printcolumn(name = "Hold", type_ = "string", json_path = ".status.plan.hold"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EtcdClusterSpec {
    /// Voting members: 1, 3, 5 or 7. 0 stops etcd and keeps data and membership; setting it back
    /// brings the same cluster back.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 7))]
    pub size: u8,

    /// The version of etcd, such as 3.6.14. Left out: the newest supported one that is installed
    /// when the cluster is born, kept from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), extend("pattern" = formats::VERSION))]
    pub version: Option<String>,

    /// While true the operator observes and reports, and changes nothing.
    #[serde(default)]
    pub paused: bool,

    /// Memory, timing and disk writes: `edge` for small devices and flash, `standard` for etcd's own
    /// defaults. Durability is the same in both.
    #[serde(default)]
    pub profile: Profile,

    /// Where the data lies and how large it may grow.
    #[serde(default)]
    pub storage: Storage,

    /// Ports and addresses.
    #[serde(default)]
    pub network: Network,

    /// Certificates.
    #[serde(default)]
    pub tls: Tls,

    /// Who gets a client certificate from the cluster's own CA, renewed by the operator.
    /// `admin` always has one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub clients: Vec<Client>,

    /// Settings of etcd, typed. There are no raw flags.
    #[serde(default)]
    pub options: Options,

    /// Snapshots: when, where to, how long, how well verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<Backup>,

    /// Where the data of a new cluster comes from. Used only with an empty data directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<Bootstrap>,

    /// Upkeep that interrupts a member, and when it may.
    #[serde(default)]
    pub maintenance: Maintenance,

    /// What may be done without a person when data is damaged.
    #[serde(default)]
    pub recovery: Recovery,

    /// How another version of etcd is brought in.
    #[serde(default)]
    pub upgrade: Upgrade,

    /// What happens to the data and to the claim of snapshots when the cluster is deleted.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,

    /// What the members' Pods carry besides etcd (in Kubernetes; a host has no Pods).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,

    /// The Service for clients, in Kubernetes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<Service>,

    /// The container image of etcd, in Kubernetes; it must hold the `version` of the document, so edit both
    /// at once. Left out: the project's own, quay.io/coreos/etcd:vVERSION.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub image: Option<String>,

    /// The hosts of the members (bare hosts only), one for each member.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 7))]
    pub hosts: Vec<Host>,
}

fn one() -> u8 {
    1
}

/// A set of defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Profile {
    /// For small devices: a third of the writes to flash, less memory.
    #[default]
    Edge,
    /// etcd's own defaults.
    Standard,
}

/// Where the data lies.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Storage {
    /// A directory of a host, on a real disk. Left out: under the operator's state directory. In Kubernetes, where
    /// the data lies on a claim, it is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256), extend("pattern" = formats::ABSOLUTE_PATH))]
    pub path: Option<String>,
    /// In Kubernetes a PersistentVolumeClaim, which is the default there. A host has no claims: there
    /// it is the operator's state directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_claim: Option<VolumeClaim>,
    /// Data in memory only, gone with a reboot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStorage>,
    /// The largest size of the database, such as 512Mi. It may grow later, by one
    /// restart, and never shrinks. Left out: the smaller of 2Gi and a quarter of the free disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 24), extend("pattern" = formats::QUANTITY))]
    pub quota: Option<String>,
    /// `allow` lets the data lie on tmpfs, overlay, NFS or vfat, which can lose acknowledged
    /// writes. For tests and demonstrations.
    #[serde(default)]
    pub unsafe_filesystem: UnsafeFilesystem,
}

/// Whether data may lie where it can be lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum UnsafeFilesystem {
    /// etcd is not started there.
    #[default]
    Refuse,
    /// The person who wrote this accepts the loss.
    Allow,
}

/// A PersistentVolumeClaim for each member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VolumeClaim {
    /// The StorageClass; left out: the default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub storage_class_name: Option<String>,
    /// The requested size.
    #[schemars(length(max = 24), extend("pattern" = formats::QUANTITY))]
    pub size: String,
}

/// Data in memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MemoryStorage {
    /// The most memory that the data may take.
    #[schemars(length(max = 24), extend("pattern" = formats::QUANTITY))]
    pub size_limit: String,
}

/// Ports and addresses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Network {
    /// Where clients connect, always with mutual TLS.
    #[serde(default = "client_port")]
    #[schemars(range(min = 1, max = 65535))]
    pub client_port: u16,
    /// Where members connect, always with mutual TLS.
    #[serde(default = "peer_port")]
    #[schemars(range(min = 1, max = 65535))]
    pub peer_port: u16,
    /// etcd's metrics, plain and on loopback only.
    #[serde(default = "metrics_port")]
    #[schemars(range(min = 1, max = 65535))]
    pub metrics_port: u16,
    /// IP addresses on which clients are served; of those that went from the host, the others are. Left out: loopback and
    /// the host's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4), inner(length(max = 45), regex(pattern = formats::IP_ADDRESS)))]
    pub listen_addresses: Option<Vec<String>>,
    /// Names or addresses that clients use; the server's certificate contains them.
    /// Left out: the addresses listened on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4), inner(length(max = 253), regex(pattern = formats::HOST)))]
    pub advertised_addresses: Option<Vec<String>>,
}

fn client_port() -> u16 {
    2379
}
fn peer_port() -> u16 {
    2380
}
fn metrics_port() -> u16 {
    2381
}

impl Default for Network {
    fn default() -> Self {
        Network {
            client_port: client_port(),
            peer_port: peer_port(),
            metrics_port: metrics_port(),
            listen_addresses: None,
            advertised_addresses: None,
        }
    }
}

/// Certificates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Tls {
    /// Who makes the certificates.
    #[serde(default)]
    pub mode: TlsMode,
    /// How long leaf certificates live, in days. They are renewed after two thirds of it, or 30
    /// days before the end if that is earlier.
    #[serde(default = "leaf_days")]
    #[schemars(range(min = 2, max = 3650))]
    pub leaf_days: u32,
    /// Secrets with the certificates (Kubernetes only).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_refs: Option<SecretRefs>,
}

fn leaf_days() -> u32 {
    365
}

impl Default for Tls {
    fn default() -> Self {
        Tls {
            mode: TlsMode::default(),
            leaf_days: leaf_days(),
            secret_refs: None,
        }
    }
}

/// Who makes the certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum TlsMode {
    /// The operator, with a CA of the cluster's own.
    #[default]
    Managed,
    /// Somebody else, in Secrets.
    SecretRefs,
    /// No TLS at all.
    DisabledInsecure,
}

/// Names of Secrets of type kubernetes.io/tls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretRefs {
    /// For etcd's client port.
    #[schemars(length(max = 253))]
    pub server: String,
    /// For etcd's peer port.
    #[schemars(length(max = 253))]
    pub peer: String,
    /// For the operator as a client.
    #[schemars(length(max = 253))]
    pub operator: String,
}

/// Somebody with a client certificate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Client {
    /// The common name in the certificate; etcd's auth, if enabled, uses it as the user name.
    #[schemars(length(max = 63), extend("pattern" = formats::DNS_LABEL))]
    pub name: String,
    /// In Kubernetes, the namespace that gets the Secret. It needs the label
    /// etcd.edge-operator.io/accepts-clients-of with this cluster's namespace. Left out: this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), extend("pattern" = formats::DNS_LABEL))]
    pub namespace: Option<String>,
}

/// Where the data of a new cluster comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Bootstrap {
    /// `latest`: the newest verified snapshot of this cluster's name in the destinations of
    /// `backup`; `empty`: the cluster starts without data, even if snapshots of its name exist; else a
    /// snapshot's name there, its revision such as r1234, or the beginning of its name; in Kubernetes also CLUSTER/NAME or CLUSTER/latest, of another cluster of this namespace; on a
    /// host also a file.
    #[schemars(length(min = 1, max = 240), extend("pattern" = formats::SNAPSHOT_SOURCE))]
    pub from: String,
}

/// Upkeep that interrupts a member.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Maintenance {
    /// What happens when the database has reached its quota and etcd refuses writes.
    #[serde(default)]
    pub on_no_space: OnNoSpace,
    /// When the database is defragmented.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defragment: Option<Defragment>,
    /// When members may be interrupted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub windows: Vec<Window>,
}

/// What happens when the quota is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum OnNoSpace {
    /// Compact, defragment and, once space was really regained, accept writes again. Writing this
    /// (or leaving it out) declares the short interruption that defragmenting is.
    #[default]
    Repair,
    /// Report it and wait for a person.
    Hold,
}

/// When the database is defragmented.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Defragment {
    /// Unused share of the database file, in percent.
    #[schemars(range(min = 10, max = 90))]
    pub fragmentation_percent: u8,
    /// Not below this size of the file, such as 100Mi.
    #[schemars(length(max = 24), extend("pattern" = formats::QUANTITY))]
    pub minimum_size: String,
}

/// A time in which members may be interrupted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Window {
    /// When it opens, as five cron fields in UTC.
    #[schemars(length(max = 64))]
    pub schedule: String,
    /// How long it stays open, in minutes.
    #[schemars(range(min = 1, max = 1440))]
    pub minutes: u32,
}

/// What happens to the claims that the operator made, data and snapshots, and to the CA when the object is deleted, in
/// Kubernetes. On a host nothing is ever deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DeletionPolicy {
    /// They stay; the same cluster created again finds them.
    #[default]
    Retain,
    /// They are deleted.
    Delete,
}

/// A host of a member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Host {
    /// The host's name; the member's name too.
    #[schemars(length(max = 63), extend("pattern" = formats::DNS_LABEL))]
    pub name: String,
    /// The name or address under which the other hosts reach it.
    #[schemars(length(max = 253), extend("pattern" = formats::HOST))]
    pub address: String,
}
