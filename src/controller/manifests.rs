//! `deploy/etcd-operator.yaml`: everything but the CRDs, in one file with names that k3s' auto-deploy
//! directory takes (rule A12). Deleting it leaves CRDs, clusters and data.

use serde_json::{Value, json};

use super::names::{MANAGED_BY, OPERATOR, RUN_DIR};
use super::rights::{RIGHTS, Right, Where};
use crate::api::node_paths::NODE_DIR;

/// The operator's namespace.
pub const NAMESPACE: &str = "etcd-operator";
/// The port of `/metrics`, `/livez` and `/readyz`.
pub const PORT: u16 = 8383;

/// The image that `make dist` makes.
pub fn image(version: &str) -> String {
    format!("localhost/etcd-operator:{version}")
}

/// All objects, in the order in which they are applied.
pub fn generate(image: &str) -> Vec<Value> {
    vec![
        namespace(),
        account(),
        role("ClusterRole", None, Where::Everywhere),
        binding("ClusterRoleBinding", None),
        role("Role", Some(NAMESPACE), Where::OwnNamespace),
        binding("RoleBinding", Some(NAMESPACE)),
        people("view", "etcd-operator-view", &["get", "list", "watch"]),
        people(
            "edit",
            "etcd-operator-edit",
            &["create", "delete", "patch", "update"],
        ),
        daemon_set(image),
    ]
}

fn labels() -> Value {
    json!({"app.kubernetes.io/name": OPERATOR, (MANAGED_BY): "kubectl"})
}

fn metadata(name: &str, namespace: Option<&str>) -> Value {
    let mut it = json!({"name": name, "labels": labels()});
    if let Some(namespace) = namespace {
        it["namespace"] = json!(namespace);
    }
    it
}

/// The operator's own directory lies on the node: its namespace is privileged, members' need not be.
fn namespace() -> Value {
    let mut metadata = metadata(NAMESPACE, None);
    metadata["labels"]["pod-security.kubernetes.io/enforce"] = json!("privileged");
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
}

fn account() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(OPERATOR, Some(NAMESPACE)),
        "automountServiceAccountToken": false,
    })
}

/// The rules of one scope.
pub fn rules(scope: Where) -> Vec<Value> {
    let rule = |it: &Right| {
        let mut rule = json!({
            "apiGroups": [it.group],
            "resources": [it.resource],
            "verbs": it.verbs,
        });
        if let Some(name) = it.name {
            rule["resourceNames"] = json!([name]);
        }
        rule
    };
    let in_scope = RIGHTS.iter().filter(|it| it.scope == scope);
    in_scope.map(rule).collect()
}

fn role(kind: &str, namespace: Option<&str>, scope: Where) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": metadata(OPERATOR, namespace),
        "rules": rules(scope),
    })
}

fn binding(kind: &str, namespace: Option<&str>) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": metadata(OPERATOR, namespace),
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": kind.trim_end_matches("Binding"),
            "name": OPERATOR,
        },
        "subjects": [{"kind": "ServiceAccount", "name": OPERATOR, "namespace": NAMESPACE}],
    })
}

/// Whoever may view or edit a namespace may view or edit our objects in it.
fn people(role: &str, name: &str, verbs: &[&str]) -> Value {
    let mut metadata = metadata(name, None);
    let key = format!("rbac.authorization.k8s.io/aggregate-to-{role}");
    metadata["labels"][key] = json!("true");
    if role == "edit" {
        metadata["labels"]["rbac.authorization.k8s.io/aggregate-to-admin"] = json!("true");
    }
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": metadata,
        "rules": [{
            "apiGroups": [crate::api::GROUP],
            "resources": ["etcdclusters", "etcdbackups", "etcdrestores"],
            "verbs": verbs,
        }],
    })
}

fn container(image: &str) -> Value {
    let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let probe = |path: &str| json!({"httpGet": {"path": path, "port": "http"}});
    let mut live = probe("/livez");
    live["periodSeconds"] = json!(30);
    live["timeoutSeconds"] = json!(10);
    live["failureThreshold"] = json!(6);
    let mut ready = probe("/readyz");
    ready["periodSeconds"] = json!(5);
    ready["timeoutSeconds"] = json!(5);
    json!({
        "name": OPERATOR,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": ["controller"],
        "env": [
            field("POD_NAME", "metadata.name"),
            field("POD_NAMESPACE", "metadata.namespace"),
            field("POD_IP", "status.podIP"),
            field("NODE_NAME", "spec.nodeName"),
        ],
        "ports": [{"name": "http", "containerPort": PORT}],
        "livenessProbe": live,
        "readinessProbe": ready,
        "resources": {
            "requests": {"cpu": "10m", "memory": "24Mi"},
            "limits": {"memory": "256Mi"},
        },
        "securityContext": {
            "runAsUser": 0,
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            // Directories of members on the node: made, given to them, and read.
            "capabilities": {
                "drop": ["ALL"],
                "add": ["CHOWN", "DAC_OVERRIDE", "FOWNER"],
            },
        },
        "volumeMounts": [
            // A disk that is mounted there later is seen, too.
            {"name": "node", "mountPath": NODE_DIR, "mountPropagation": "HostToContainer"},
            {"name": "run", "mountPath": RUN_DIR},
            {"name": "timesync", "mountPath": "/run/systemd/timesync", "readOnly": true},
        ],
    })
}

fn daemon_set(image: &str) -> Value {
    let selector = json!({
        "app.kubernetes.io/name": OPERATOR,
        "app.kubernetes.io/component": "operator",
    });
    let mut pod_labels = selector.clone();
    pod_labels[MANAGED_BY] = json!(OPERATOR); // its own watch sees it, and who else could act
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": metadata(OPERATOR, Some(NAMESPACE)),
        "spec": {
            "selector": {"matchLabels": selector},
            "template": {
                "metadata": {"labels": pod_labels},
                "spec": {
                    "serviceAccountName": OPERATOR,
                    "automountServiceAccountToken": true,
                    "enableServiceLinks": false,
                    "nodeSelector": {"kubernetes.io/os": "linux"},
                    "priorityClassName": "system-node-critical",
                    "terminationGracePeriodSeconds": 10,
                    // Data lies on nodes that are tainted, too.
                    "tolerations": [{"operator": "Exists"}],
                    "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
                    "containers": [container(image)],
                    "volumes": [
                        {"name": "node", "hostPath": {"path": NODE_DIR, "type": "DirectoryOrCreate"}},
                        {"name": "run", "emptyDir": {"medium": "Memory", "sizeLimit": "32Mi"}},
                        // systemd's sign of a synchronised clock; an empty directory says nothing.
                        {"name": "timesync", "hostPath": {
                            "path": "/run/systemd/timesync",
                            "type": "DirectoryOrCreate",
                        }},
                    ],
                },
            },
        },
    })
}
