//! What the operator may do at the API server: one table, from which the RBAC in
//! `deploy/etcd-operator.yaml` is generated. Each row says what breaks without it; a test takes each
//! away and sees it break.

/// In which namespaces a right holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    /// In all: clusters may live in any.
    Everywhere,
    /// In the operator's own.
    OwnNamespace,
}

/// One right.
#[derive(Clone, Copy, Debug)]
pub struct Right {
    /// The API group; empty: the core's.
    pub group: &'static str,
    /// As in the URL.
    pub resource: &'static str,
    /// The verbs.
    pub verbs: &'static [&'static str],
    /// One object, where it is always the same.
    pub name: Option<&'static str>,
    /// Where.
    pub scope: Where,
    /// What needs it.
    pub why: &'static str,
}

const fn right(
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
    why: &'static str,
) -> Right {
    Right {
        group,
        resource,
        verbs,
        name: None,
        scope: Where::Everywhere,
        why,
    }
}

/// Our own API group.
const GROUP: &str = "etcd.edge-operator.io";

/// All of them.
pub const RIGHTS: &[Right] = &[
    right(
        GROUP,
        "etcdclusters",
        &["list", "watch", "create"],
        "clusters are found; an EtcdRestore makes a new one",
    ),
    right(GROUP, "etcdclusters/status", &["patch"], "status is told"),
    right(
        GROUP,
        "etcdbackups",
        &["list", "watch", "delete"],
        "EtcdBackups are found, and removed after their time",
    ),
    right(GROUP, "etcdbackups/status", &["patch"], "status is told"),
    right(
        GROUP,
        "etcdrestores",
        &["list", "watch"],
        "EtcdRestores are found",
    ),
    right(GROUP, "etcdrestores/status", &["patch"], "status is told"),
    right(
        "",
        "pods",
        &["get", "list", "watch", "create", "delete"],
        "members and restores run in Pods; the operator reads its own image",
    ),
    right(
        "",
        "nodes",
        &["get", "list"],
        "a member is replaced where nothing is heard of its node, and another one has a place for it",
    ),
    right(
        "",
        "persistentvolumes",
        &["get"],
        "a node that was deleted took a member's data along, or others reach it",
    ),
    right(
        "",
        "services",
        &["get", "list", "watch", "create", "patch"],
        "members are reached by name",
    ),
    right(
        "",
        "secrets",
        &["get", "create", "patch"],
        "certificates, by name: nobody lists the Secrets of others",
    ),
    right(
        "",
        "persistentvolumeclaims",
        &["get", "list", "watch", "create", "patch", "delete"],
        "members' data; whose a claim is that is there already; one that somebody deletes is told; one grows, or is made anew before it has a volume, where the document says so",
    ),
    right(
        "",
        "namespaces",
        &["get"],
        "a namespace opts in to get a client's Secret",
    ),
    right(
        "networking.k8s.io",
        "networkpolicies",
        &["get", "create", "patch"],
        "plain metrics are for the operator and for monitoring",
    ),
    right(
        "policy",
        "poddisruptionbudgets",
        &["get", "create", "patch"],
        "whoever drains nodes takes one member at a time",
    ),
    right(
        "events.k8s.io",
        "events",
        &["create"],
        "Events tell the story",
    ),
    Right {
        group: "coordination.k8s.io",
        resource: "leases",
        verbs: &["create"],
        name: None,
        scope: Where::OwnNamespace,
        why: "the first operator makes the Lease; the name of what is made cannot be a condition",
    },
    Right {
        group: "coordination.k8s.io",
        resource: "leases",
        verbs: &["get", "update", "patch"],
        name: Some("etcd-operator"),
        scope: Where::OwnNamespace,
        why: "one operator acts",
    },
];
