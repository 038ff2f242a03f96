//! Names, labels and annotations of everything that the controller makes.

use crate::cluster::{MemberName, VOTERS_MAX};
use crate::spec::member_name;
use crate::state;

/// The reason of a document that is refused.
pub(super) const SPEC_INVALID: &str = "SpecInvalid";
/// Whose it is; the watches ask for nothing else.
pub(super) const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
pub(super) const OPERATOR: &str = "etcd-operator";
/// `managed-by` as a selector.
pub(super) const OURS: &str = "app.kubernetes.io/managed-by=etcd-operator";
/// The EtcdCluster that it is for.
pub(super) const CLUSTER: &str = "etcd.edge-operator.io/cluster";
/// That cluster's namespace, on a Secret in another one.
pub(super) const CLUSTER_NAMESPACE: &str = "etcd.edge-operator.io/cluster-namespace";
/// On a claim: which cluster was born when it was made, by the end of its token.
pub(super) const BORN: &str = "etcd.edge-operator.io/cluster-token";
/// On a claim: the member that has given it up, because nobody heard of its node. What it holds is of no use to the cluster.
pub(super) const GIVEN_UP: &str = "etcd.edge-operator.io/given-up-by";
/// On a claim: the class that the document named when it was made; empty where it named none.
pub(super) const STORAGE_CLASS: &str = "etcd.edge-operator.io/storage-class";
/// On an EtcdCluster, with the value [`ACCEPTED`]: CAs and identity may be made anew beside data that is there.
pub(super) const NEW_AUTHORITY: &str = "etcd.edge-operator.io/new-authority";
pub(super) const ACCEPTED: &str = "accepted";
/// On a Namespace: the one whose clusters may put Secrets for clients there.
pub(super) const ACCEPTS_CLIENTS_OF: &str = "etcd.edge-operator.io/accepts-clients-of";
/// On a member's Pod and claim: which member. Its own Service leads to the Pod by it.
pub(super) const MEMBER: &str = "etcd.edge-operator.io/member";
/// On a Pod: the image that the document named for etcd; none: the standard one.
pub(super) const IMAGE_ASKED: &str = "etcd.edge-operator.io/image";
/// On a Pod: what the document asked for when it was made.
pub(super) const SETTINGS: &str = "etcd.edge-operator.io/settings";
/// On a Pod: the database quota of etcd in it, in bytes.
pub(super) const QUOTA: &str = "etcd.edge-operator.io/quota";
/// On a Pod: the version of etcd in it.
pub(super) const VERSION: &str = "etcd.edge-operator.io/etcd-version";

/// On a Pod of a restore or a rehearsal: what asked for it. On a backup worker's: what it was made from. On a member's
/// that joins: [`TO_JOIN`].
pub(super) const MADE_FOR: &str = "etcd.edge-operator.io/made-for";
/// The Pod's guard waits until the cluster lists the member.
pub(super) const TO_JOIN: &str = "joining";

/// On a Service, a NetworkPolicy and a PodDisruptionBudget: a sum of what the operator made it from.
pub(super) const MADE_FROM: &str = "etcd.edge-operator.io/made-from";

/// Where the operator works on certificates and records, in memory: no key of a Secret ever reaches a node's disk.
pub(super) const RUN_DIR: &str = "/run/etcd-operator";

/// Where a member's Pod has its claim.
pub(super) const STATE_DIR: &str = "/var/lib/etcd-operator";

/// The image of etcd where the document names none.
pub(super) const IMAGE: &str = "quay.io/coreos/etcd";

/// The volume of a member's data in its Pod.
pub(super) const DATA: &str = "data";
/// The container of etcd, and of what works on its data or snapshots.
pub(crate) const CONTAINER: &str = "etcd";
/// The init container that brings the guard.
pub(super) const GUARD: &str = "guard";

/// The user of every Pod, and its own group.
pub(super) const USER: u32 = 65532;

/// The least group of a cluster's volumes: above what distributions and images give to people and programs.
const GROUPS_FROM: u32 = 20_000;
/// How many there are: a node in a namespace of users has ids below 65,536 alone.
const GROUPS: u32 = 40_000;

/// The group of a cluster's volumes, always the same for its namespace and name. It keeps accidents apart, a file that
/// its group may read for one; two clusters in 40,000 share one.
pub(super) fn group(namespace: &str, cluster: &str) -> u32 {
    let sum = state::sha256(format!("{namespace}/{cluster}").as_bytes());
    let number = sum.get(..8).and_then(|it| u32::from_str_radix(it, 16).ok());
    GROUPS_FROM + number.unwrap_or_default() % GROUPS
}

/// The member that a cluster is born as.
pub(super) fn founder(cluster: &str) -> String {
    member_name(cluster, 0).to_string()
}

/// All members that a cluster can have, in their order; the first is the founder.
pub(super) fn members(cluster: &str) -> impl Iterator<Item = MemberName> {
    let numbers = 0..u8::try_from(VOTERS_MAX).unwrap_or(u8::MAX);
    numbers.map(move |it| member_name(cluster, it))
}

/// The claim with a member's data. `given_up`: how many were before. With a dot, as no cluster's name has one.
pub(super) fn claim(member: &str, given_up: u32) -> String {
    match given_up {
        0 => format!("data-{member}"),
        _ => format!("data-{member}.{given_up}"),
    }
}

/// The claim with the snapshots, where the document names none.
pub(super) fn snapshots_claim(cluster: &str) -> String {
    format!("{cluster}-snapshots")
}

pub(super) fn restore_pod(cluster: &str) -> String {
    format!("{cluster}-restore")
}

pub(super) fn rehearsal_pod(cluster: &str) -> String {
    format!("{cluster}-rehearsal")
}

pub(crate) fn backup_pod(cluster: &str) -> String {
    format!("{cluster}-backup")
}

/// With a dot, as no cluster's name has one: another cluster's policy may be called like the Pod.
pub(super) fn worker_policy(cluster: &str) -> String {
    format!("{cluster}.backup")
}

pub(super) fn client_service(cluster: &str) -> String {
    format!("{cluster}-client")
}

/// The CAs, the operator's own certificate and the identity: what only the operator reads.
pub(super) fn authority_secret(cluster: &str) -> String {
    format!("{cluster}-ca")
}

/// What the member's Pod mounts.
pub(super) fn member_secret(cluster: &str) -> String {
    format!("{cluster}-member")
}

pub(super) fn client_secret(cluster: &str, client: &str) -> String {
    format!("{cluster}-client-{client}")
}

/// On a cluster that an EtcdRestore made: its UID.
pub(super) const RESTORED_BY: &str = "etcd.edge-operator.io/restored-by";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_keeps_its_group_and_shares_it_with_no_neighbour() {
        let neighbours = [("default", "shop"), ("default", "shop1"), ("other", "shop")];
        let groups = neighbours.map(|(namespace, name)| group(namespace, name));
        assert_eq!(groups, [40_042, 35_857, 33_666]);
        assert!(groups.iter().all(|it| (20_000..60_000).contains(it)));
    }
}
