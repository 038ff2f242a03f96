//! The table: each right, how it is needed, and what breaks without it.

use std::rc::Rc;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::lab::{Api, SOON};
use crate::operator::{USER, object, storage_class};

/// What a right is taken away from.
pub struct Stage {
    pub api: Rc<Api>,
    /// A namespace of its own.
    pub namespace: String,
    /// Where clients are accepted from it.
    pub other: String,
}

impl Stage {
    fn get(&self, kind: &str, name: &str) -> Option<Value> {
        self.api
            .try_json(&["get", kind, name, "-n", &self.namespace])
    }

    fn has(&self, kind: &str, name: &str) -> bool {
        self.get(kind, name).is_some()
    }

    fn make(&self, kind: &str, name: &str, spec: &Value) {
        self.api.apply(&object(kind, &self.namespace, name, spec));
    }

    /// The cluster, with a client in another namespace.
    fn cluster(&self) {
        let spec = json!({"clients": [{"name": "app", "namespace": self.other}]});
        self.make("EtcdCluster", "c", &spec);
    }

    fn cluster_with_pod(&self) {
        self.cluster();
        self.await_pod();
    }

    fn await_pod(&self) {
        self.api
            .eventually("the member's Pod", SOON, || self.get("pod", "c-0"));
    }

    /// As the scheduler would, were there one.
    fn bind(&self, node: &str) {
        let to = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": "c-0"},
            "target": {"kind": "Node", "name": node},
        });
        let path = format!("/api/v1/namespaces/{}/pods/c-0/binding", self.namespace);
        let arguments = ["create", "--raw", &path];
        let bound = self.api.admin().with_input(&arguments, &to.to_string());
        bound.good();
    }

    /// As the scheduler and the volume's provisioner would, were there any, and after somebody deleted the node.
    fn lies_on(&self, node: &str) {
        let volume = format!("{}-data", self.namespace);
        let host = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [node]});
        let term = json!({"matchExpressions": [host]});
        let it = json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume},
            "spec": {
                "capacity": {"storage": "8Gi"},
                "accessModes": ["ReadWriteOnce"],
                "local": {"path": "/data"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
            },
        });
        self.api.apply(&it.to_string());
        let claim = json!({
            "metadata": {"annotations": {"volume.kubernetes.io/selected-node": node}},
            "spec": {"volumeName": volume},
        });
        let patch = ["--type=merge", "-p", &claim.to_string()];
        self.change("persistentvolumeclaim", "data-c-0", &patch);
        let words = "0/2 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity, \
            1 node(s) didn't match Pod's node affinity/selector.";
        let unplaced = json!({"status": {"conditions": [{"type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": words}]}});
        let patch = ["--subresource=status", "-p", &unplaced.to_string()];
        self.change("pod", "c-0", &patch);
    }

    fn is_told(&self) -> bool {
        let status = self.get("etcdcluster", "c").map(|it| it["status"].clone());
        status.is_some_and(|it| it["conditions"].is_array())
    }

    fn hold_says(&self, words: &str) -> bool {
        let status = self
            .get("etcdcluster", "c")
            .map(|it| it["status"].to_string());
        status.is_some_and(|it| it.contains(words))
    }

    fn phase(&self, kind: &str, name: &str, phase: &str) -> bool {
        self.get(kind, name)
            .is_some_and(|it| it["status"]["phase"] == phase)
    }

    /// As the kubelet would, were there one.
    fn evict(&self) {
        let patch = json!({"status": {"phase": "Failed", "reason": "Evicted"}}).to_string();
        self.change(
            "pod",
            "c-0",
            &["--subresource=status", "--type=merge", "-p", &patch],
        );
    }

    /// A Pod has gone when its kubelet says so.
    fn is_replaced(&self) -> bool {
        let pod = self.get("pod", "c-0");
        pod.is_some_and(|it| it["status"]["phase"] == "Pending")
    }

    fn change(&self, kind: &str, name: &str, patch: &[&str]) {
        let mut arguments = vec!["patch", kind, name, "-n", &self.namespace];
        arguments.extend(patch);
        self.api.kubectl(&arguments).good();
    }

    /// An object with the operator's labels or without, in its place.
    fn place(&self, kind: &str, group: &str, name: &str, ours: bool, body: Value) {
        let labels = if ours {
            json!({"app.kubernetes.io/managed-by": "etcd-operator", "etcd.edge-operator.io/cluster": "c"})
        } else {
            json!({})
        };
        let mut it = body;
        it["apiVersion"] = json!(group);
        it["kind"] = json!(kind);
        it["metadata"] = json!({"name": name, "namespace": self.namespace, "labels": labels});
        self.api.apply(&it.to_string());
    }

    /// Whether the operator sends none of these for a while: it knows what is there.
    fn is_quiet(&self, request: &str) -> bool {
        let mark = self.api.mark();
        std::thread::sleep(Duration::from_secs(8));
        let sent = self.api.requests("", mark).into_iter();
        let mut sent = sent.filter(|it| it.user == USER && it.namespace == self.namespace);
        !sent.any(|it| format!("{} {}", it.verb, it.resource) == request)
    }
}

/// A right, and what breaks without it.
pub struct Row {
    pub right: &'static str,
    pub breaks: &'static str,
    /// Before the operator starts.
    pub before: fn(&Stage),
    /// After that it says that the right is missing.
    pub then: fn(&Stage),
    /// After it has said so.
    pub after: fn(&Stage),
    /// Whether what breaks is whole.
    pub whole: fn(&Stage) -> bool,
}

const ROW: Row = Row {
    right: "",
    breaks: "",
    before: |_| {},
    then: Stage::cluster,
    after: |_| {},
    whole: Stage::is_told,
};

pub fn table() -> Vec<Row> {
    let untold = "nothing is told of any cluster";
    let mut rows = vec![
        Row {
            right: "list etcdclusters",
            breaks: untold,
            ..ROW
        },
        Row {
            right: "watch etcdclusters",
            breaks: "a new cluster is not seen",
            then: |_| {},
            after: Stage::cluster,
            ..ROW
        },
        Row {
            right: "create etcdclusters",
            breaks: "an EtcdRestore makes no new cluster",
            then: |it| {
                let claim = json!({"local": {"claimName": "snapshots"}});
                let spec = json!({"backup": {"destinations": [claim]}});
                it.make("EtcdCluster", "c", &spec);
                let from = "c-0-20260101T000000Z-r5-00000001";
                it.make(
                    "EtcdRestore",
                    "r",
                    &json!({"cluster": "c", "from": from, "into": "d"}),
                );
            },
            // Here nobody runs a worker: it is asked once the cluster could be made.
            whole: |it| {
                let restore = it.get("etcdrestore", "r");
                restore.is_some_and(|it| it.to_string().contains("backup worker does not say"))
            },
            ..ROW
        },
        Row {
            right: "patch etcdclusters/status",
            breaks: "no status",
            ..ROW
        },
        Row {
            right: "delete etcdbackups",
            breaks: "an EtcdBackup outlives its time",
            // It has ended before any operator could end it.
            before: |it| {
                it.make("EtcdBackup", "b", &json!({"cluster": "c", "ttlHours": 1}));
                let ended =
                    json!({"status": {"phase": "Succeeded", "completed": "2026-01-01T00:00:00Z"}});
                let patch = ended.to_string();
                it.change(
                    "etcdbackup",
                    "b",
                    &["--subresource=status", "--type=merge", "-p", &patch],
                );
            },
            whole: |it| !it.has("etcdbackup", "b"),
            ..ROW
        },
        Row {
            right: "patch etcdbackups/status",
            breaks: "an EtcdBackup is not told how it went",
            then: |it| {
                it.cluster();
                it.make("EtcdBackup", "b", &json!({"cluster": "c"}));
            },
            whole: |it| it.phase("etcdbackup", "b", "Failed"),
            ..ROW
        },
        Row {
            right: "patch etcdrestores/status",
            breaks: "an EtcdRestore is not told how it went",
            then: |it| {
                it.cluster();
                it.make("EtcdRestore", "r", &json!({"cluster": "c", "into": "d"}));
            },
            whole: |it| it.phase("etcdrestore", "r", "Failed"),
            ..ROW
        },
        Row {
            right: "get pods",
            breaks: untold,
            ..ROW
        },
        Row {
            right: "watch pods",
            breaks: "a failed member is not replaced",
            then: Stage::cluster_with_pod,
            after: Stage::evict,
            whole: Stage::is_replaced,
            ..ROW
        },
        Row {
            right: "create pods",
            breaks: "no member",
            whole: |it| it.has("pod", "c-0"),
            ..ROW
        },
        Row {
            right: "delete pods",
            breaks: "a failed member is not replaced",
            then: |it| {
                it.cluster_with_pod();
                it.evict();
            },
            whole: Stage::is_replaced,
            ..ROW
        },
        Row {
            right: "get services",
            breaks: "another's Service is not told as such",
            before: |it| {
                let spec = json!({"spec": {"ports": [{"port": 1}]}});
                it.place("Service", "v1", "c-client", false, spec);
            },
            whole: |it| it.hold_says("c-client exists, and the operator did not create it"),
            ..ROW
        },
        Row {
            right: "watch services",
            breaks: "it asks again and again for what it could know",
            then: Stage::cluster_with_pod,
            whole: |it| it.is_quiet("create services"),
            ..ROW
        },
        Row {
            right: "create services",
            breaks: "clients have no name for the member",
            whole: |it| it.has("service", "c-client"),
            ..ROW
        },
        Row {
            right: "patch services",
            breaks: "an edited Service stays so",
            then: |it| {
                it.cluster_with_pod();
                let patch = r#"[{"op": "replace", "path": "/spec/ports/0/port", "value": 7}]"#;
                it.change("service", "c-client", &["--type=json", "-p", patch]);
            },
            whole: |it| {
                let it = it.get("service", "c-client").unwrap();
                it["spec"]["ports"][0]["port"] == 2379
            },
            ..ROW
        },
        Row {
            right: "get secrets",
            breaks: "nothing is made: whose the certificates are is not known",
            whole: |it| it.has("pod", "c-0"),
            ..ROW
        },
        Row {
            right: "create secrets",
            breaks: "no certificates",
            whole: |it| it.has("secret", "c-member"),
            ..ROW
        },
        Row {
            right: "patch secrets",
            breaks: "an edited certificate stays so",
            then: |it| {
                it.cluster_with_pod();
                let patch = r#"{"data": {"server.key": ""}}"#;
                it.change("secret", "c-member", &["--type=merge", "-p", patch]);
            },
            whole: |it| it.get("secret", "c-member").unwrap()["data"]["server.key"] != "",
            ..ROW
        },
        Row {
            right: "get persistentvolumeclaims",
            breaks: "another's claim is not told as such",
            before: |it| {
                let spec = json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
                it.place("PersistentVolumeClaim", "v1", "data-c-0", false, spec);
            },
            whole: |it| it.hold_says("data-c-0 exists, and the operator did not create it"),
            ..ROW
        },
        Row {
            right: "watch persistentvolumeclaims",
            breaks: "a claim that somebody deletes is not told",
            then: Stage::cluster_with_pod,
            // Nobody takes its finalizer away here: it is going.
            after: |it| {
                let delete = ["delete", "pvc", "data-c-0", "--wait=false"];
                let mut delete = delete.to_vec();
                delete.extend(["-n", &it.namespace]);
                it.api.kubectl(&delete).good();
            },
            whole: |it| it.hold_says("ClaimDeleted"),
            ..ROW
        },
        Row {
            right: "create persistentvolumeclaims",
            breaks: "no place for data",
            whole: |it| it.has("pvc", "data-c-0"),
            ..ROW
        },
        Row {
            right: "patch persistentvolumeclaims",
            breaks: "a claim that may grow does not",
            before: |it| {
                it.api.apply(&storage_class("grows", true));
                let spec = json!({"spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "grows",
                    "volumeName": "v", "resources": {"requests": {"storage": "1Gi"}}}});
                it.place("PersistentVolumeClaim", "v1", "data-c-0", true, spec);
                let patch = r#"{"status": {"phase": "Bound"}}"#;
                it.change(
                    "pvc",
                    "data-c-0",
                    &["--subresource=status", "--type=merge", "-p", patch],
                );
            },
            then: |it| {
                let claim = json!({"size": "2Gi", "storageClassName": "grows"});
                it.make(
                    "EtcdCluster",
                    "c",
                    &json!({"storage": {"volumeClaim": claim}}),
                );
            },
            whole: |it| {
                let claim = it.get("pvc", "data-c-0").unwrap();
                claim["spec"]["resources"]["requests"]["storage"] == "2Gi"
            },
            ..ROW
        },
        Row {
            right: "delete persistentvolumeclaims",
            breaks: "a class that was written wrong is for ever",
            before: |it| {
                let spec = json!({"spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "wrong",
                    "resources": {"requests": {"storage": "2Gi"}}}});
                it.place("PersistentVolumeClaim", "v1", "data-c-0", true, spec);
                let patch = r#"{"metadata": {"annotations": {"etcd.edge-operator.io/storage-class": "wrong"}}}"#;
                it.change("pvc", "data-c-0", &["--type=merge", "-p", patch]);
            },
            // Nobody takes its finalizer away here: it is going.
            whole: |it| {
                let claim = it.get("pvc", "data-c-0");
                claim.is_none_or(|it| it["metadata"]["deletionTimestamp"].is_string())
            },
            ..ROW
        },
        Row {
            right: "get namespaces",
            breaks: "a client in another namespace gets no Secret",
            whole: |it| {
                let found = ["get", "secret", "c-client-app", "-n", &it.other];
                it.api.kubectl(&found).ok
            },
            ..ROW
        },
        Row {
            right: "create networkpolicies",
            breaks: "plain metrics are for everybody",
            whole: |it| it.has("networkpolicy", "c"),
            ..ROW
        },
        Row {
            right: "create events",
            breaks: "no story",
            // What could not be told is not told later; what is new is.
            whole: |it| {
                let since = SystemTime::UNIX_EPOCH.elapsed().unwrap();
                it.make(
                    "EtcdCluster",
                    &format!("d{}", since.as_millis()),
                    &json!({}),
                );
                let told = it.api.events(&it.namespace);
                println!("told in {}: {told:?}", it.namespace);
                !told.is_empty()
            },
            ..ROW
        },
    ];
    for right in ["list pods", "list services", "list persistentvolumeclaims"] {
        rows.push(Row {
            right,
            breaks: untold,
            ..ROW
        });
    }
    for right in ["list etcdbackups", "watch etcdbackups"] {
        rows.push(Row {
            right,
            breaks: "an EtcdBackup is not seen",
            after: |it| it.make("EtcdBackup", "b", &json!({"cluster": "c"})),
            whole: |it| it.phase("etcdbackup", "b", "Failed"),
            ..ROW
        });
    }
    for right in ["list etcdrestores", "watch etcdrestores"] {
        rows.push(Row {
            right,
            breaks: "an EtcdRestore is not seen",
            after: |it| it.make("EtcdRestore", "r", &json!({"cluster": "c", "into": "d"})),
            whole: |it| it.phase("etcdrestore", "r", "Failed"),
            ..ROW
        });
    }
    for right in ["get networkpolicies", "patch networkpolicies"] {
        rows.push(Row {
            right,
            breaks: "an operator does not mend the rule of the one before",
            before: |it| {
                let spec = json!({"spec": {"podSelector": {}}});
                it.place("NetworkPolicy", "networking.k8s.io/v1", "c", true, spec);
            },
            whole: |it| {
                let it = it.get("networkpolicy", "c").unwrap();
                it["spec"]["ingress"].is_array()
            },
            ..ROW
        });
    }
    for (right, breaks) in [
        (
            "create poddisruptionbudgets",
            "a drain of several nodes takes all members at once",
        ),
        (
            "get poddisruptionbudgets",
            "an operator does not mend the budget of the one before",
        ),
        (
            "patch poddisruptionbudgets",
            "an operator does not mend the budget of the one before",
        ),
    ] {
        rows.push(Row {
            right,
            breaks,
            before: if right.starts_with("create") {
                |_| {}
            } else {
                |it| {
                    let spec = json!({"spec": {"maxUnavailable": 3}});
                    it.place("PodDisruptionBudget", "policy/v1", "c", true, spec);
                }
            },
            then: |it| it.make("EtcdCluster", "c", &json!({"size": 3})),
            whole: |it| {
                let budget = it.get("poddisruptionbudget", "c");
                budget.is_some_and(|it| it["spec"]["maxUnavailable"] == 1)
            },
            ..ROW
        });
    }
    rows.push(Row {
        right: "get nodes",
        breaks: "a member of a lost node is not replaced, and its node is not told",
        then: |it| {
            it.cluster_with_pod();
            it.bind("gone");
        },
        whole: |it| it.hold_says("NodeAway"),
        ..ROW
    });
    rows.push(Row {
        right: "list nodes",
        breaks: "a member of a lost node is not replaced where no two may share a node",
        then: |it| {
            it.make("EtcdCluster", "c", &json!({"pod": {"spread": "required"}}));
            it.await_pod();
            it.bind("gone");
        },
        whole: |it| it.hold_says("no other node has a place for it"),
        ..ROW
    });
    rows.push(Row {
        right: "get persistentvolumes",
        breaks: "a member whose volume went with a deleted node is not replaced",
        then: |it| {
            it.cluster_with_pod();
            it.lies_on("gone");
        },
        whole: |it| it.hold_says("VolumeElsewhere"),
        ..ROW
    });
    for right in ["create leases", "get leases", "update leases"] {
        rows.push(Row {
            right,
            breaks: "nobody acts",
            before: if right == "create leases" {
                without_lease
            } else {
                with_free_lease
            },
            ..ROW
        });
    }
    rows
}

pub fn without_lease(it: &Stage) {
    it.api
        .kubectl(&["delete", "lease", "-n", "etcd-operator", "--all"])
        .good();
}

fn with_free_lease(it: &Stage) {
    without_lease(it);
    it.api.apply(
        "apiVersion: coordination.k8s.io/v1\nkind: Lease\n\
         metadata: {name: etcd-operator, namespace: etcd-operator}\nspec: {holderIdentity: ''}\n",
    );
}
