//! `spec.pod`: the part of a Pod that a document may say.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{EtcdClusterSpec, GROUP, formats};
use crate::cluster::{Detail, detail};

/// What the members' Pods carry besides etcd.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Pod {
    /// Further labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Further annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Labels that a node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// The PriorityClass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub priority_class_name: Option<String>,
    /// What is reserved for etcd, and the most that it may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Taints of nodes that are tolerated, besides those of a node that is not ready or not reached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub tolerations: Vec<Toleration>,
    /// Affinity to nodes and Pods, as a Pod has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<AsInAPod>,
    /// Whether each member has to be on a node of its own. `topologySpreadConstraints`, or a `podAntiAffinity` in `affinity`,
    /// says it instead.
    #[serde(default, skip_serializing_if = "is_preferred")]
    pub spread: Spread,
    /// How members are spread over nodes and zones, each as a Pod has it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub topology_spread_constraints: Vec<AsInAPod>,
    /// Secrets of this namespace with the keys of a registry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub image_pull_secrets: Vec<PullSecret>,
}

/// How members keep apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Spread {
    /// Where there are nodes for it, each is on one of its own.
    #[default]
    Preferred,
    /// No two are on one node: one that finds none of its own waits.
    Required,
}

impl Pod {
    /// Whether no two members may share a node.
    pub fn has_nodes_of_their_own(&self) -> bool {
        let says = self.affinity.as_ref();
        let own = says.is_some_and(|it| !it.0.get("podAntiAffinity").is_none_or(Value::is_null));
        self.spread == Spread::Required && self.topology_spread_constraints.is_empty() && !own
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde asks")]
fn is_preferred(it: &Spread) -> bool {
    *it == Spread::Preferred
}

/// What is reserved for etcd, and the most that it may take.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Resources {
    /// What is reserved. Left out: 64Mi and 20m in `edge`, 256Mi and 100m in `standard`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<Amounts>,
    /// The most that etcd may take. Left out: there is no limit. An etcd that reaches its limit of memory is killed, and
    /// one short of CPU loses its leader; `options.memoryLimit` is the softer way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Amounts>,
}

/// Amounts of CPU and memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Amounts {
    /// Cores, or thousandths of one, such as 250m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8), extend("pattern" = formats::CORES))]
    pub cpu: Option<String>,
    /// Memory, such as 128Mi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 24), extend("pattern" = formats::QUANTITY))]
    pub memory: Option<String>,
}

/// A taint that is tolerated, as a Pod has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Toleration {
    /// The taint's key; left out with `Exists`: every one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 317))]
    pub key: Option<String>,
    /// Whether the value is compared: `Equal`, or `Exists`. Left out: `Equal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<Compare>,
    /// The taint's value, for `Equal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub value: Option<String>,
    /// The taint's effect; left out: every one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<Effect>,
}

/// How a taint is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Compare {
    /// The value is the same.
    Equal,
    /// The key is there.
    Exists,
}

/// What a taint does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Effect {
    /// New Pods are kept away.
    NoSchedule,
    /// New Pods are kept away where another node takes them.
    PreferNoSchedule,
    /// Pods are driven away.
    NoExecute,
}

/// A Secret with the keys of a registry.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PullSecret {
    /// The Secret's name.
    #[schemars(length(max = 253), extend("pattern" = formats::DNS_LABEL))]
    pub name: String,
}

/// A part of a Pod that Kubernetes itself checks, when the Pod is made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct AsInAPod(#[schemars(schema_with = "as_in_a_pod")] pub Map<String, Value>);

fn as_in_a_pod(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// Bytes of those parts, all together: no Pod needs more, and the operator keeps them in memory.
const FREE_MAX: usize = 16 << 10;

/// Images of etcd that a document may name where nobody said otherwise: those of the project.
pub const IMAGE_PREFIXES: [&str; 3] = [
    "quay.io/coreos/etcd",
    "gcr.io/etcd-development/etcd",
    "registry.k8s.io/etcd",
];

/// Why what a document says of its Pods is refused in Kubernetes. Whoever may edit an EtcdCluster may not be allowed to
/// make Pods, and the operator makes none for them that is more than etcd.
pub fn refused(wire: &EtcdClusterSpec, prefixes: &[String]) -> Option<Detail> {
    let image = wire.image.as_deref();
    if let Some(image) = image.filter(|it| !prefixes.iter().any(|prefix| is_below(it, prefix))) {
        return Some(detail(format_args!(
            "spec.image: {image} is not allowed: this operator takes images of {}; its --image-prefix changes that",
            prefixes.join(", ")
        )));
    }
    let service = wire.service.as_ref();
    let own = |key: &&String| key.split_once('/').is_some_and(|it| it.0.ends_with(GROUP));
    if let Some(key) = service.and_then(|it| it.annotations.keys().find(own)) {
        return Some(detail(format_args!(
            "spec.service.annotations: {key} is for this operator to say"
        )));
    }
    let pod = wire.pod.as_ref()?;
    let class = pod.priority_class_name.as_deref();
    if let Some(class) = class.filter(|it| it.starts_with("system-")) {
        return Some(detail(format_args!(
            "spec.pod.priorityClassName: {class} is for the parts of Kubernetes itself"
        )));
    }
    let free = serde_json::to_vec(&(&pod.affinity, &pod.topology_spread_constraints));
    let free = free.unwrap_or_default().len();
    if free > FREE_MAX {
        return Some(detail(format_args!(
            "spec.pod: affinity and topologySpreadConstraints have {free} bytes, allowed are {FREE_MAX}"
        )));
    }
    let labels = pod.labels.keys().filter(|it| is_label_refused(it));
    let annotations = pod.annotations.keys().filter(|it| is_reserved(it));
    let foreign = labels.chain(annotations).next()?;
    Some(detail(format_args!(
        "spec.pod: {foreign} is not allowed: {RESERVED}"
    )))
}

/// Why a key is not allowed on a Pod.
pub const RESERVED: &str =
    "labels and annotations of kubernetes.io and k8s.io decide over what a Pod may do";

/// Whether an image is of this repository, or below it.
pub fn is_below(image: &str, prefix: &str) -> bool {
    let rest = image.strip_prefix(prefix);
    rest.is_some_and(|it| it.is_empty() || prefix.ends_with('/') || it.starts_with([':', '@', '/']))
}

/// Whether a label is not allowed on a Pod.
pub fn is_label_refused(key: &str) -> bool {
    !key.starts_with("app.kubernetes.io/") && is_reserved(key)
}

/// Keys that Kubernetes, or this operator, gives a meaning: no annotation of a Pod.
pub fn is_reserved(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |it| it.0);
    ["kubernetes.io", "k8s.io", "etcd.edge-operator.io"]
        .iter()
        .any(|it| domain == *it || domain.strip_suffix(it).is_some_and(|it| it.ends_with('.')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_of_an_allowed_repository_and_of_no_other_that_begins_so() {
        let standard = IMAGE_PREFIXES.map(str::to_owned);
        let allowed = |image: &str| {
            let wire = EtcdClusterSpec {
                image: Some(image.to_owned()),
                ..EtcdClusterSpec::default()
            };
            refused(&wire, &standard).is_none()
        };
        assert!(allowed("quay.io/coreos/etcd:v3.6.16"));
        assert!(allowed("quay.io/coreos/etcd@sha256:00"));
        for image in [
            "quay.io/coreos/etcd-evil:1",
            "quay.io/coreos",
            "evil/quay.io/coreos/etcd:1",
        ] {
            assert!(!allowed(image), "{image}");
        }
        assert!(is_below("mirror.example/etcd:1", "mirror.example/"));
    }

    #[test]
    fn what_kubernetes_reads_is_not_for_documents_to_say() {
        let with = |pod: Pod| {
            let wire = EtcdClusterSpec {
                pod: Some(pod),
                ..EtcdClusterSpec::default()
            };
            refused(&wire, &[]).is_some()
        };
        let one = |key: &str| BTreeMap::from([(key.to_owned(), "x".to_owned())]);
        let labels = |key: &str| Pod {
            labels: one(key),
            ..Pod::default()
        };
        let annotations = |key: &str| Pod {
            annotations: one(key),
            ..Pod::default()
        };
        assert!(!with(labels("team")) && !with(labels("app.kubernetes.io/part-of")));
        assert!(!with(annotations("example.com/a")) && !with(annotations("mykubernetes.io/a")));
        assert!(with(labels("pod-security.kubernetes.io/enforce")));
        assert!(with(annotations(
            "container.apparmor.security.beta.kubernetes.io/etcd"
        )));
        assert!(with(annotations("k8s.io/a")));
        assert!(with(labels("etcd.edge-operator.io/cluster")));
        let class = |name: &str| Pod {
            priority_class_name: Some(name.to_owned()),
            ..Pod::default()
        };
        assert!(with(class("system-node-critical")) && !with(class("shop")));
        let fat = |bytes: usize| Pod {
            affinity: Some(AsInAPod(Map::from_iter([(
                "a".to_owned(),
                "x".repeat(bytes).into(),
            )]))),
            ..Pod::default()
        };
        assert!(with(fat(FREE_MAX)) && !with(fat(FREE_MAX - 64)));
    }
}
