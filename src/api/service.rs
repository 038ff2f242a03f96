//! `spec.service`: the Service for clients, in Kubernetes.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::formats;

/// The Service for clients, NAME-client.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Service {
    /// From where it is reached: `ClusterIP` from within the cluster, `NodePort` by a port of each node,
    /// `LoadBalancer` by an address of its own. The server's certificate carries the Service's own addresses; those of
    /// nodes are named in `network.advertisedAddresses`.
    #[serde(default, rename = "type")]
    pub kind: ServiceType,
    /// The port of each node. Left out: Kubernetes chooses one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub node_port: Option<u16>,
    /// The class of the load balancer. Left out: the default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub load_balancer_class: Option<String>,
    /// Annotations, such as a load balancer or a name server reads.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The DNS domain of this Kubernetes. Left out: cluster.local.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), extend("pattern" = formats::HOST))]
    pub dns_domain: Option<String>,
}

/// From where a Service is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ServiceType {
    /// From within the cluster.
    #[default]
    ClusterIP,
    /// By a port of each node.
    NodePort,
    /// By an address of its own.
    LoadBalancer,
}
