//! Services and the rule who may reach the member's metrics.

use serde_json::{Value, json};

use super::names;
use super::objects::Kind;
use super::{Cluster, ControllerError};
use crate::spec::ClusterSpec;

impl Cluster {
    /// The names under which the member is reached.
    pub(super) async fn ensure_services(
        &mut self,
        spec: &ClusterSpec,
    ) -> Result<(), ControllerError> {
        for object in [self.headless(spec), self.for_clients(spec)] {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let seen = self.shared.services.get(&self.namespace, name);
            self.objects
                .ensure(Kind::Service, object, seen.as_deref())
                .await?;
        }
        Ok(())
    }

    /// Where its peers reach a member, whichever address its Pod has: etcd asks for the address when it dials, and a
    /// single member never does.
    pub(super) fn peer_url(&self, member: &str, port: u16) -> String {
        let (service, namespace) = (&self.name, &self.namespace);
        format!("https://{member}.{service}.{namespace}.svc:{port}")
    }

    fn service(&self, name: &str, spec: &Value) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "labels": self.labels(),
                "ownerReferences": self.owner(),
            },
            "spec": spec,
        })
    }

    fn selector(&self) -> Value {
        json!({
            (names::CLUSTER): self.name,
            "app.kubernetes.io/component": "member",
        })
    }

    /// The member's own name, also while it is not ready: peers and the operator find it.
    fn headless(&self, spec: &ClusterSpec) -> Value {
        self.service(
            &self.name,
            &json!({
                "clusterIP": "None",
                "publishNotReadyAddresses": true,
                "selector": self.selector(),
                "ports": [
                    port("client", spec.network.client_port),
                    port("peer", spec.network.peer_port),
                    port("metrics", spec.network.metrics_port),
                ],
            }),
        )
    }

    fn for_clients(&self, spec: &ClusterSpec) -> Value {
        self.service(
            &names::client_service(&self.name),
            &json!({
                "type": "ClusterIP",
                "selector": self.selector(),
                "ports": [port("client", spec.network.client_port)],
            }),
        )
    }

    /// Metrics are plain: they are for the operator's namespace and for namespaces of monitoring
    /// (`etcd.edge-operator.io/scrapes: "true"`). Clients and peers show certificates to come in.
    pub(super) async fn ensure_policy(
        &mut self,
        spec: &ClusterSpec,
    ) -> Result<(), ControllerError> {
        let tcp = |port: u16| json!({"protocol": "TCP", "port": port});
        let object = json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {
                "name": self.name,
                "namespace": self.namespace,
                "labels": self.labels(),
                "ownerReferences": self.owner(),
            },
            "spec": {
                "podSelector": {"matchLabels": self.selector()},
                "policyTypes": ["Ingress"],
                "ingress": [
                    {"ports": [tcp(spec.network.client_port), tcp(spec.network.peer_port)]},
                    {
                        "ports": [tcp(spec.network.metrics_port)],
                        "from": [
                            {"namespaceSelector": {"matchLabels": {
                                "kubernetes.io/metadata.name": self.shared.own.namespace,
                            }}},
                            {"namespaceSelector": {"matchLabels": {
                                "etcd.edge-operator.io/scrapes": "true",
                            }}},
                        ],
                    },
                ],
            },
        });
        self.objects.ensure_once(Kind::NetworkPolicy, object).await
    }
}

fn port(name: &str, number: u16) -> Value {
    json!({"name": name, "port": number, "targetPort": name, "protocol": "TCP"})
}
