//! Services: the names under which a member is reached, whether they lead there, the rule who may reach its metrics, and how
//! many may be taken away at a time.

use std::rc::Rc;

use serde_json::{Value, json};

use super::names;
use super::objects::Kind;
use super::pod::{self, REHEARSAL, RESTORE};
use super::seen::PodSeen;
use super::{Cluster, ControllerError};
use crate::api::Service;
use crate::backup::served::PORT;
use crate::cluster::{Detail, detail};
use crate::observed::{Instance, Process, Reading};
use crate::spec::ClusterSpec;

/// An etcd that serves makes its Pod ready within so long.
const READY_SECONDS: u64 = 15;

impl Cluster {
    /// The names under which the members are reached. One that cannot be made keeps no other one from its place.
    pub(super) async fn ensure_services(
        &mut self,
        spec: &ClusterSpec,
    ) -> Result<(), ControllerError> {
        let mut ensured = self.ensure_service_for_clients(spec).await;
        for number in self.looked_at(spec) {
            ensured = ensured.and(self.ensure_service_of(spec, number).await);
        }
        ensured
    }

    /// The name under which clients reach the members.
    pub(super) async fn ensure_service_for_clients(
        &mut self,
        spec: &ClusterSpec,
    ) -> Result<(), ControllerError> {
        let asked = self.object.object.spec.service.clone().unwrap_or_default();
        let object = self.for_clients(spec, &asked);
        self.ensure_service(object).await
    }

    /// The name under which its peers reach a member.
    pub(super) async fn ensure_service_of(
        &mut self,
        spec: &ClusterSpec,
        number: usize,
    ) -> Result<(), ControllerError> {
        let object = self.of_member(spec, &self.members[number].name);
        self.ensure_service(object).await
    }

    async fn ensure_service(&mut self, object: Value) -> Result<(), ControllerError> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let seen = self.shared.services.get(&self.namespace, name);
        let seen = seen.as_deref().map(|it| &it.meta);
        self.objects.ensure(Kind::Service, object, seen).await
    }

    /// Everything that the server's certificate names.
    pub(super) fn names(&self, spec: &ClusterSpec) -> Vec<String> {
        let (name, namespace) = (&self.name, &self.namespace);
        let service = names::client_service(name);
        let asked = self.object.object.spec.service.as_ref();
        let domain = asked.and_then(|it| it.dns_domain.as_deref());
        let domain = domain.unwrap_or("cluster.local");
        let mut all: Vec<String> = vec![
            service.clone(),
            format!("{service}.{namespace}"),
            format!("{service}.{namespace}.svc"),
            format!("{service}.{namespace}.svc.{domain}"),
        ];
        for member in &self.members {
            all.push(self.member_host(&member.name));
            all.push(format!("{}.{domain}", self.member_host(&member.name)));
        }
        let seen = self.shared.services.get(namespace, &service);
        let seen = seen.as_deref().map(|it| &it.addresses);
        let addresses = self.objects.addresses(&service).or(seen);
        all.extend(addresses.into_iter().flatten().cloned());
        all.extend(spec.network.advertised.iter().map(ToString::to_string));
        all.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
        all.sort();
        all.dedup();
        all
    }

    /// A name that the server's certificate always carries: Pods' addresses come and go.
    pub(super) fn server_name(&self) -> String {
        format!(
            "{}.{}.svc",
            names::client_service(&self.name),
            self.namespace
        )
    }

    /// The port for clients, by the document that is in force.
    pub(super) fn client_port(&self) -> u16 {
        let spec = self.memory.spec.as_ref();
        spec.map_or(2379, |it| it.network.client_port)
    }

    /// Why the Service for clients leads to no member that answers.
    pub(super) fn unreached(
        &self,
        pods: &[Option<Rc<PodSeen>>],
        instances: &[Instance],
    ) -> Option<Detail> {
        let answers =
            |it: &(&Option<Rc<PodSeen>>, &Instance)| it.1.service.read == Reading::Answered;
        let all = pods.iter().zip(instances).filter(answers);
        let mut all = all.map(|(pod, it)| self.unreached_at(pod.as_deref()?, it.process));
        let first = all.next().flatten()?;
        all.all(|it| it.is_some()).then_some(first)
    }

    /// Why it does not lead to this one.
    fn unreached_at(&self, pod: &PodSeen, process: Process) -> Option<Detail> {
        let Process::Running { seconds, .. } = process else {
            return None;
        };
        let (name, service) = (&pod.name, names::client_service(&self.name));
        let selector = self.selector();
        let mut wanted = selector.as_object().into_iter().flatten();
        let lost = wanted.find(|(key, value)| {
            let there = pod.meta.labels.get(*key);
            there.map(String::as_str) != value.as_str()
        });
        if let Some((key, value)) = lost {
            let value = value.as_str().unwrap_or_default();
            return Some(detail(format_args!(
                "the Pod {name} lost its label {key}={value}, so the Service {service} does not lead to it; next: kubectl label pod {name} --overwrite {key}={value}"
            )));
        }
        // The kubelet asks every three seconds whether it is ready: at first it only has not asked yet.
        let why = pod
            .not_ready
            .as_ref()
            .filter(|_| seconds >= READY_SECONDS)?;
        Some(detail(format_args!(
            "etcd answers, but the Pod {name} is not ready, so the Service {service} does not lead to it: {why}"
        )))
    }

    /// The name of a member's own Service, whose address outlives its Pods.
    pub(super) fn member_host(&self, member: &str) -> String {
        format!("{member}.{}.svc", self.namespace)
    }

    /// Where its peers reach a member.
    pub(super) fn peer_url(&self, member: &str, port: u16) -> String {
        format!("https://{}:{port}", self.member_host(member))
    }

    fn service(&self, name: &str, spec: &Value) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": self.metadata(name),
            "spec": spec,
        })
    }

    /// Of what goes with the cluster.
    fn metadata(&self, name: &str) -> Value {
        json!({
            "name": name,
            "namespace": self.namespace,
            "labels": self.labels(),
            "ownerReferences": self.owner(),
        })
    }

    pub(super) fn selector(&self) -> Value {
        pod::selector(&self.name)
    }

    /// A member's own, also while it is not ready: its peers find it.
    fn of_member(&self, spec: &ClusterSpec, member: &str) -> Value {
        let mut selector = self.selector();
        selector[names::MEMBER] = json!(member);
        self.service(
            member,
            &json!({
                "publishNotReadyAddresses": true,
                "selector": selector,
                "ports": [
                    port("client", spec.network.client_port),
                    port("peer", spec.network.peer_port),
                    port("metrics", spec.network.metrics_port),
                ],
            }),
        )
    }

    fn for_clients(&self, spec: &ClusterSpec, asked: &Service) -> Value {
        let mut client = port("client", spec.network.client_port);
        if let Some(number) = asked.node_port {
            client["nodePort"] = json!(number);
        }
        let mut said = json!({
            "type": asked.kind,
            "selector": self.selector(),
            "ports": [client],
        });
        if let Some(class) = &asked.load_balancer_class {
            said["loadBalancerClass"] = json!(class);
        }
        let mut service = self.service(&names::client_service(&self.name), &said);
        if !asked.annotations.is_empty() {
            service["metadata"]["annotations"] = json!(asked.annotations);
        }
        service
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
            "metadata": self.metadata(&self.name),
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
        self.objects
            .ensure_unwatched(Kind::NetworkPolicy, object)
            .await?;
        if spec.backup.is_none() {
            return Ok(());
        }
        self.ensure_policy_of_worker().await
    }

    /// Of several members, whoever drains nodes takes one at a time, and none while one is not ready. How many there should
    /// be, Kubernetes asks of the EtcdCluster's scale.
    pub(super) async fn ensure_budget(
        &mut self,
        spec: &ClusterSpec,
    ) -> Result<(), ControllerError> {
        if spec.size < 3 {
            return Ok(()); // a budget from when there were more lets the only one go, too
        }
        let object = json!({
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": self.metadata(&self.name),
            "spec": {
                "maxUnavailable": 1,
                "selector": {"matchLabels": self.selector()},
            },
        });
        self.objects
            .ensure_unwatched(Kind::DisruptionBudget, object)
            .await
    }

    /// The worker answers the operator, and Pods of restores and rehearsals in this namespace; which of these may ask, it
    /// knows by their certificates.
    async fn ensure_policy_of_worker(&mut self) -> Result<(), ControllerError> {
        let object = json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": self.metadata(&names::worker_policy(&self.name)),
            "spec": {
                "podSelector": {"matchLabels": {
                    (names::CLUSTER): self.name,
                    "app.kubernetes.io/component": "backup",
                }},
                "policyTypes": ["Ingress"],
                "ingress": [{
                    "ports": [{"protocol": "TCP", "port": PORT}],
                    "from": [
                        {"namespaceSelector": {"matchLabels": {
                            "kubernetes.io/metadata.name": self.shared.own.namespace,
                        }}},
                        {"podSelector": {
                            "matchLabels": {(names::MANAGED_BY): names::OPERATOR},
                            "matchExpressions": [{
                                "key": "app.kubernetes.io/component",
                                "operator": "In",
                                "values": [RESTORE, REHEARSAL],
                            }],
                        }},
                    ],
                }],
            },
        });
        self.objects
            .ensure_unwatched(Kind::NetworkPolicy, object)
            .await
    }
}

fn port(name: &str, number: u16) -> Value {
    json!({"name": name, "port": number, "targetPort": name, "protocol": "TCP"})
}
