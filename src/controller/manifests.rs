//! `deploy/etcd-operator.yaml`: everything but the CRDs, in one file with names that k3s' auto-deploy
//! directory takes (rule A12). Deleting it leaves CRDs, clusters and data.

use serde_json::{Value, json};

use super::names::{MANAGED_BY, OPERATOR, RUN_DIR, USER};
use super::rights::{RIGHTS, Right, Where};

/// The operator's namespace.
pub const NAMESPACE: &str = "etcd-operator";
/// The port of `/metrics`, `/livez` and `/readyz`.
pub const PORT: u16 = 8383;

/// The image that `make dist` makes.
pub fn image(version: &str) -> String {
    format!("localhost/etcd-operator:{version}")
}

/// All objects, in the order in which they are applied. `namespaces`: those whose clusters the operator works on, which
/// are there already; empty: all.
pub fn generate(image: &str, namespaces: &[String]) -> Vec<Value> {
    let mut all = vec![namespace(), account()];
    let (everywhere, mut own) = (rules(Where::Everywhere), rules(Where::OwnNamespace));
    if namespaces.is_empty() {
        all.push(role("ClusterRole", OPERATOR, None, &everywhere));
        all.push(binding("ClusterRoleBinding", OPERATOR, None));
    } else {
        own.push(operators());
    }
    for namespace in namespaces {
        all.push(role("Role", OF_CLUSTERS, Some(namespace), &everywhere));
        all.push(binding("RoleBinding", OF_CLUSTERS, Some(namespace)));
    }
    all.push(role("Role", OPERATOR, Some(NAMESPACE), &own));
    all.push(binding("RoleBinding", OPERATOR, Some(NAMESPACE)));
    all.extend([
        people("view", "etcd-operator-view", &["get", "list", "watch"]),
        people(
            "edit",
            "etcd-operator-edit",
            &["create", "delete", "patch", "update"],
        ),
        policy("pods", &["CREATE", "UPDATE", "DELETE"], PODS),
        policy_binding("pods"),
        policy("secrets", &["CREATE", "UPDATE"], SECRETS),
        policy_binding("secrets"),
        policy("persistentvolumeclaims", &["DELETE"], CLAIMS),
        policy_binding("persistentvolumeclaims"),
        daemon_set(image, namespaces),
    ]);
    all
}

/// The Role in each namespace that the operator was given.
const OF_CLUSTERS: &str = "etcd-operator-clusters";

/// It sees its own Pods, wherever clusters are.
fn operators() -> Value {
    json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]})
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

/// Nothing in it may be more than the operator is.
fn namespace() -> Value {
    let mut metadata = metadata(NAMESPACE, None);
    metadata["labels"]["pod-security.kubernetes.io/enforce"] = json!("restricted");
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

fn role(kind: &str, name: &str, namespace: Option<&str>, rules: &[Value]) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": metadata(name, namespace),
        "rules": rules,
    })
}

fn binding(kind: &str, name: &str, namespace: Option<&str>) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": metadata(name, namespace),
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": kind.trim_end_matches("Binding"),
            "name": name,
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

/// What this operator's own account is refused of Pods, beside its rights: whoever has its token has no more than that.
const PODS: &[(&str, &str)] = &[
    (
        "(request.operation == 'DELETE' ? oldObject : object).metadata.?labels[?'app.kubernetes.io/managed-by'].orValue('') == 'etcd-operator'",
        "a Pod that it has not made",
    ),
    (
        "request.operation != 'UPDATE' || object.spec == oldObject.spec",
        "a change of a Pod",
    ),
    (
        "request.operation == 'DELETE' || !(object.spec.?hostNetwork.orValue(false) || object.spec.?hostPID.orValue(false) || object.spec.?hostIPC.orValue(false))",
        "a namespace of the node",
    ),
    (
        "request.operation == 'DELETE' || (object.spec.?automountServiceAccountToken.orValue(true) == false && object.spec.?serviceAccountName.orValue('default') in ['default', ''] && object.spec.?volumes.orValue([]).all(v, !has(v.projected) || v.projected.?sources.orValue([]).all(s, !has(s.serviceAccountToken))))",
        "a token of a ServiceAccount",
    ),
    (
        "request.operation == 'DELETE' || object.spec.?volumes.orValue([]).all(v, !has(v.hostPath))",
        "a directory of the node",
    ),
    (
        "request.operation == 'DELETE' || object.spec.containers.all(c, CONFINED)",
        "a container with privileges, or as root",
    ),
    (
        "request.operation == 'DELETE' || object.spec.?initContainers.orValue([]).all(c, CONFINED)",
        "an init container with privileges, or as root",
    ),
    (
        "request.operation == 'DELETE' || object.spec.?securityContext.?runAsNonRoot.orValue(false)",
        "a Pod that may run as root",
    ),
];

/// In place of the word in a rule: of a container.
const CONFINED: &str = "c.?securityContext.?privileged.orValue(false) == false && c.?securityContext.?allowPrivilegeEscalation.orValue(true) == false && c.?securityContext.?capabilities.?add.orValue([]).size() == 0 && c.?securityContext.?runAsNonRoot.orValue(true) && c.?securityContext.?runAsUser.orValue(1) != 0 && c.?ports.orValue([]).all(p, p.?hostPort.orValue(0) == 0)";

/// The same of Secrets.
const SECRETS: &[(&str, &str)] = &[
    (
        "object.metadata.?labels[?'app.kubernetes.io/managed-by'].orValue('') == 'etcd-operator'",
        "a Secret without its label",
    ),
    (
        "request.operation != 'UPDATE' || oldObject.metadata.?labels[?'app.kubernetes.io/managed-by'].orValue('') == 'etcd-operator'",
        "a Secret that somebody else made",
    ),
    (
        "object.?type.orValue('Opaque') in ['Opaque', 'kubernetes.io/tls']",
        "a Secret that Kubernetes fills with a token",
    ),
];

/// The same of claims, which hold the data.
const CLAIMS: &[(&str, &str)] = &[
    (
        "oldObject.metadata.?labels[?'app.kubernetes.io/managed-by'].orValue('') == 'etcd-operator'",
        "a claim that it has not made",
    ),
    (
        "oldObject.?status.?phase.orValue('') == 'Pending' && oldObject.spec.?volumeName.orValue('') == ''",
        "a claim that has a volume",
    ),
];

/// A ValidatingAdmissionPolicy: what its ServiceAccount is refused although its rights would allow it.
fn policy(resource: &str, operations: &[&str], rules: &[(&str, &str)]) -> Value {
    let account = format!("system:serviceaccount:{NAMESPACE}:{OPERATOR}");
    let validations: Vec<Value> = rules
        .iter()
        .map(|(expression, refused)| {
            let message = format!("etcd-operator is refused {refused}");
            json!({"expression": expression.replace("CONFINED", CONFINED), "message": message})
        })
        .collect();
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": metadata(&format!("{OPERATOR}-{resource}"), None),
        "spec": {
            "failurePolicy": "Fail",
            // With what the server would add, so that applying it again changes nothing.
            "matchConstraints": {
                "matchPolicy": "Equivalent",
                "namespaceSelector": {},
                "objectSelector": {},
                "resourceRules": [{
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "operations": operations,
                    "resources": [resource],
                    "scope": "*",
                }],
            },
            "matchConditions": [{
                "name": "its-own-account",
                "expression": format!("request.userInfo.username == '{account}'"),
            }],
            "validations": validations,
        },
    })
}

fn policy_binding(resource: &str) -> Value {
    let name = format!("{OPERATOR}-{resource}");
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": metadata(&name, None),
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    })
}

fn container(image: &str, namespaces: &[String]) -> Value {
    let mut arguments = vec!["controller".to_owned()];
    if !namespaces.is_empty() {
        arguments.push(format!("--namespaces={}", namespaces.join(",")));
    }
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
        "args": arguments,
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
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "run", "mountPath": RUN_DIR}],
    })
}

/// Where the API server runs: no other node gets a token. By the label's existence: k3s gives it the value `true`, and
/// kubeadm none.
fn on_servers() -> Value {
    let server = json!({"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"});
    json!({"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [server]}],
    }})
}

fn daemon_set(image: &str, namespaces: &[String]) -> Value {
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
                    "affinity": {"nodeAffinity": on_servers()},
                    "terminationGracePeriodSeconds": 10,
                    // Servers are tainted where other nodes do the work.
                    "tolerations": [{"operator": "Exists"}],
                    "securityContext": {
                        "runAsUser": USER,
                        "runAsGroup": USER,
                        "runAsNonRoot": true,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "containers": [container(image, namespaces)],
                    "volumes": [
                        {"name": "run", "emptyDir": {"medium": "Memory", "sizeLimit": "32Mi"}},
                    ],
                },
            },
        },
    })
}
