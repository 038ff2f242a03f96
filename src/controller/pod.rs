//! Pods as data: a member's, the one of a restore, the one of a rehearsal (`rehearsal`), and a backup worker's (`worker`).
//! Pure: what goes in decides what comes out.

mod rehearsal;
mod worker;

use serde::Serialize;
use serde_json::{Value, json};

use super::names::{
    self, CLUSTER, IMAGE_ASKED, MANAGED_BY, OPERATOR, QUOTA, SETTINGS, STATE_DIR, USER, VERSION,
};
use crate::api::EtcdClusterSpec;
use crate::api::pod::{self as asked, Amounts};
use crate::backup::served::Served;
use crate::member::pod::{
    CLAIM_DIR, DOCUMENT_VARIABLE, LAST_WORDS, PodMember, RESTORE_VARIABLE, S3_CA, S3_KEY,
    SERVED_VARIABLE, SIGNER_VARIABLE, TLS_DIR, VARIABLE, s3_dir,
};
use crate::member::records::MemberRecord;
use crate::spec::{ClusterSpec, Profile};

pub(super) use rehearsal::{Rehearsal, rehearsal};
pub(super) use worker::{records, worker};

/// Everything that a Pod is made of.
pub(super) struct Parts<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) wire: &'a EtcdClusterSpec,
    pub(super) spec: &'a ClusterSpec,
    pub(super) member: &'a PodMember,
    /// The operator's image, which brings the guard.
    pub(super) operator_image: &'a str,
    pub(super) owner: Value,
}

/// Where the guard lies inside of the Pod.
const GUARD_DIR: &str = "/guard";
/// This program there.
pub(crate) const PROGRAM: &str = "/guard/etcd-operator";

/// The image of the version that the data is for.
fn etcd_image(member: &MemberRecord) -> String {
    let standard = || format!("{}:v{}", names::IMAGE, member.version);
    member.image.clone().unwrap_or_else(standard)
}

/// The member's Pod: the guard is its entrypoint, in etcd's own image.
pub(super) fn member(parts: &Parts<'_>) -> Value {
    let network = &parts.spec.network;
    let port = |name: &str, number: u16| json!({"name": name, "containerPort": number});
    let probe = |path: &str, period: u32, failures: u32| {
        json!({
            "httpGet": {"path": path, "port": "metrics"},
            "periodSeconds": period,
            "timeoutSeconds": 5,
            "failureThreshold": failures,
        })
    };
    let mut container = container(parts, &["guard", "--pod"]);
    container["ports"] = json!([
        port("client", network.client_port),
        port("peer", network.peer_port),
        port("metrics", network.metrics_port),
    ]);
    // Rule D44: a restart makes a slow disk slower, so that only an etcd that has stood still for minutes
    // is restarted. A guard that waits is none, and its own end is its answer.
    container["livenessProbe"] = probe("/livez", 30, 6);
    container["livenessProbe"]["initialDelaySeconds"] = json!(60);
    // Clients come back a second after etcd does. One that is slow for a moment keeps them.
    container["readinessProbe"] = probe("/readyz", 1, 9);
    let name = &parts.member.identity.member.name;
    let mut pod = pod(parts, name, MEMBER, &container);
    pod["metadata"]["labels"][names::MEMBER] = json!(name);
    // `kubectl exec POD -- etcdctl ...`, in a Pod that has the certificates anyway. etcdctl refuses flags beside these.
    let tls = |file: &str| format!("{TLS_DIR}/{file}");
    let variables = [
        (
            "ETCDCTL_ENDPOINTS",
            format!("https://127.0.0.1:{}", network.client_port),
        ),
        ("ETCDCTL_CACERT", tls("client-ca.crt")),
        ("ETCDCTL_CERT", tls("server.crt")),
        ("ETCDCTL_KEY", tls("server.key")),
    ];
    let variables = variables.map(|(name, value)| json!({"name": name, "value": value}));
    extend(&mut pod["spec"]["containers"][0]["env"], variables.to_vec());
    pod["spec"]["hostname"] = json!(name);
    pod["spec"]["restartPolicy"] = json!("Always");
    let tls = json!({"name": "tls", "secret": {
        "secretName": names::member_secret(parts.name),
        "defaultMode": 0o440,
        "optional": true, // the guard waits for it, and says so
    }});
    extend(&mut pod["spec"]["volumes"], vec![tls]);
    let mount = json!({"name": "tls", "mountPath": TLS_DIR, "readOnly": true});
    extend(
        &mut pod["spec"]["containers"][0]["volumeMounts"],
        vec![mount],
    );
    pod
}

/// What the Pod of a restore is asked.
pub(super) struct Restore<'a> {
    /// Of what asked for it: it is carried out once.
    pub(super) id: &'a str,
    /// What the host's command reads.
    pub(super) document: &'a str,
    pub(super) arguments: &'a [String],
    /// The worker that serves the snapshots.
    pub(super) served: Option<&'a Served>,
    /// Where nobody serves them yet: the claim with the snapshots, read-only.
    pub(super) claim: Option<&'a str>,
    /// The public key with which the cluster signs its snapshots.
    pub(super) signer: Option<String>,
}

/// The Pod of a restore: it works on the volume of a member that is stopped.
pub(super) fn restore(parts: &Parts<'_>, asks: &Restore<'_>) -> Value {
    let words = ["restore", "--pod", "--yes"].into_iter();
    let words: Vec<&str> = words
        .chain(asks.arguments.iter().map(String::as_str))
        .collect();
    let mut container = container(parts, &words);
    let mut more = command(asks.document, (RESTORE_VARIABLE, asks.id));
    more.mount_keys(parts);
    let signer = asks.signer.as_deref();
    more.env
        .extend(signer.map(|it| json!({"name": SIGNER_VARIABLE, "value": it})));
    if let Some(served) = asks.served {
        more.tell(SERVED_VARIABLE, served);
        // What it shows to the worker, and knows it by.
        more.mount("tls", &certificates(&served.cluster), TLS_DIR, true);
    }
    if let Some(name) = asks.claim {
        let claim = json!({"persistentVolumeClaim": {"claimName": name, "readOnly": true}});
        more.mount("claim", &claim, CLAIM_DIR, true);
    }
    extend(&mut container["env"], more.env);
    extend(&mut container["volumeMounts"], more.mounts);
    container["terminationMessagePolicy"] = json!("FallbackToLogsOnError");
    let mut pod = pod(parts, &names::restore_pod(parts.name), RESTORE, &container);
    pod["spec"]["restartPolicy"] = json!("OnFailure");
    extend(&mut pod["spec"]["volumes"], more.volumes);
    pod
}

/// The component of a member's Pod.
const MEMBER: &str = "member";
/// The components of those that fetch snapshots from the worker.
pub(super) const RESTORE: &str = "restore";
pub(super) const REHEARSAL: &str = "rehearsal";

/// A member's certificates.
fn certificates(cluster: &str) -> Value {
    json!({"secret": {
        "secretName": names::member_secret(cluster),
        "defaultMode": 0o440,
        "items": items(&["client-ca.crt", "server.crt", "server.key"]),
    }})
}

/// These keys of a Secret, as files of the same names.
fn items(keys: &[&str]) -> Value {
    let all = keys.iter().map(|it| json!({"key": it, "path": it}));
    all.collect()
}

/// What a command of the host needs in a Pod, besides what any Pod has.
struct More {
    env: Vec<Value>,
    mounts: Vec<Value>,
    volumes: Vec<Value>,
}

impl More {
    /// A variable, as JSON.
    fn tell(&mut self, variable: &str, value: &impl Serialize) {
        let text = serde_json::to_string(value).unwrap_or_default();
        self.env.push(json!({"name": variable, "value": text}));
    }

    fn mount(&mut self, name: &str, source: &Value, path: &str, read_only: bool) {
        let mut volume = source.clone();
        volume["name"] = json!(name);
        self.volumes.push(volume);
        let mount = json!({"name": name, "mountPath": path, "readOnly": read_only});
        self.mounts.push(mount);
    }

    /// The keys of buckets.
    fn mount_keys(&mut self, parts: &Parts<'_>) {
        let backup = parts.wire.backup.as_ref();
        let destinations = backup.into_iter().flat_map(|it| &it.destinations);
        for (index, destination) in destinations.enumerate() {
            let s3 = destination.s3.as_ref();
            if let Some(secret) = s3.and_then(|it| it.credentials_secret.as_ref()) {
                let secret = json!({"secret": {
                    "secretName": secret,
                    "defaultMode": 0o440,
                    "optional": true, // without keys there are no copies, and that is told
                    "items": items(&[S3_KEY, S3_CA]),
                }});
                self.mount(&format!("s3-{index}"), &secret, &s3_dir(index), true);
            }
        }
    }
}

/// The document, and what is asked.
fn command(document: &str, (variable, asked): (&str, &str)) -> More {
    let mut more = More {
        env: vec![
            json!({"name": DOCUMENT_VARIABLE, "value": document}),
            json!({"name": variable, "value": asked}),
        ],
        mounts: Vec::new(),
        volumes: Vec::new(),
    };
    let memory = json!({"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}});
    more.mount("document", &memory, "/etc/etcd-operator", false);
    more
}

fn extend(list: &mut Value, more: Vec<Value>) {
    if let Some(list) = list.as_array_mut() {
        list.extend(more);
    }
}

fn container(parts: &Parts<'_>, words: &[&str]) -> Value {
    let member = serde_json::to_string(parts.member).unwrap_or_default();
    let mut arguments = vec![PROGRAM.to_owned()];
    arguments.extend(words.iter().map(|it| (*it).to_owned()));
    json!({
        "name": names::CONTAINER,
        "image": etcd_image(&parts.member.identity.member),
        "imagePullPolicy": "IfNotPresent",
        "command": arguments,
        "env": [{"name": VARIABLE, "value": member}],
        "resources": resources(parts),
        "securityContext": confined(),
        "terminationMessagePath": LAST_WORDS,
        "volumeMounts": [
            {"name": names::DATA, "mountPath": STATE_DIR},
            {"name": "keys", "mountPath": format!("{STATE_DIR}/tls")},
            {"name": "run", "mountPath": names::RUN_DIR},
            {"name": "guard", "mountPath": GUARD_DIR, "readOnly": true},
        ],
    })
}

/// What a Pod is told apart by: etcd's settings, version, image and quota in it.
fn in_force(parts: &Parts<'_>) -> impl Iterator<Item = (String, String)> {
    let launch = &parts.member.launch;
    let image = parts.member.identity.member.image.clone();
    let all = [
        (SETTINGS, format!("{:016x}", parts.spec.settings.0)),
        (VERSION, launch.version.clone()),
        (QUOTA, launch.quota.to_string()),
    ];
    let all = all.into_iter().chain(image.map(|it| (IMAGE_ASKED, it)));
    all.map(|(key, value)| (key.to_owned(), value))
}

fn pod(parts: &Parts<'_>, name: &str, component: &str, container: &Value) -> Value {
    let nothing = asked::Pod::default();
    let asked = parts.wire.pod.as_ref().unwrap_or(&nothing);
    let mut labels = asked.labels.clone();
    labels.extend(
        [
            ("app.kubernetes.io/name", "etcd"),
            ("app.kubernetes.io/instance", parts.name),
            ("app.kubernetes.io/component", component),
            (MANAGED_BY, OPERATOR),
            (CLUSTER, parts.name),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned())),
    );
    let mut annotations = asked.annotations.clone();
    annotations.extend(in_force(parts));
    let always = |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute"});
    let mut spec = json!({
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": 60,
        "nodeSelector": asked.node_selector,
        // A node that comes back finds its member, however long it was away.
        "tolerations": [
            always("node.kubernetes.io/not-ready"),
            always("node.kubernetes.io/unreachable"),
        ],
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": names::group(parts.namespace, parts.name),
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "initContainers": [{
            "name": names::GUARD,
            "image": parts.operator_image,
            "imagePullPolicy": "IfNotPresent",
            "args": ["guard", "--copy-to", GUARD_DIR],
            "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
            "securityContext": confined(),
            "volumeMounts": [{"name": "guard", "mountPath": GUARD_DIR}],
        }],
        "containers": [container],
        "volumes": [
            {"name": names::DATA, "persistentVolumeClaim": {"claimName": names::claim(&parts.member.identity.member.name, parts.member.identity.member.claims_given_up)}},
            // What the volume never holds: where etcd finds its certificates, or a restore's own.
            {"name": "keys", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            {"name": "run", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}},
            {"name": "guard", "emptyDir": {"sizeLimit": "64Mi"}},
        ],
    });
    shape(&mut spec, asked, parts.name, component);
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": parts.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": parts.owner,
        },
        "spec": spec,
    })
}

/// What the document says of it besides.
fn shape(spec: &mut Value, asked: &asked::Pod, cluster: &str, component: &str) {
    if let Some(class) = &asked.priority_class_name {
        spec["priorityClassName"] = json!(class);
    }
    let more = asked.tolerations.iter().map(|it| json!(it));
    extend(&mut spec["tolerations"], more.collect());
    if !asked.image_pull_secrets.is_empty() {
        spec["imagePullSecrets"] = json!(asked.image_pull_secrets);
    }
    // What works for a member is bound to the same nodes, by its own volumes too, however members keep apart.
    let nodes = asked
        .affinity
        .as_ref()
        .map(|it| json!(it)["nodeAffinity"].clone());
    if let Some(nodes) = nodes.filter(|it| component != MEMBER && !it.is_null()) {
        spec["affinity"] = json!({"nodeAffinity": nodes});
    }
    if component == MEMBER {
        if let Some(affinity) = &asked.affinity {
            spec["affinity"] = json!(affinity);
        }
        if !asked.topology_spread_constraints.is_empty() {
            spec["topologySpreadConstraints"] = json!(asked.topology_spread_constraints);
        } else if spec["affinity"]["podAntiAffinity"].is_null() {
            spec["affinity"]["podAntiAffinity"] = apart(cluster, asked.spread);
        }
    }
}

/// Members on nodes, and in zones, of their own.
fn apart(cluster: &str, spread: asked::Spread) -> Value {
    let of = |topology: &str| {
        json!({
            "topologyKey": topology,
            "labelSelector": {"matchLabels": selector(cluster)},
        })
    };
    let (node, zone) = ("kubernetes.io/hostname", "topology.kubernetes.io/zone");
    let wanted = |it: Value, weight: u8| json!({"weight": weight, "podAffinityTerm": it});
    match spread {
        asked::Spread::Preferred => json!({
            "preferredDuringSchedulingIgnoredDuringExecution": [wanted(of(node), 100), wanted(of(zone), 50)],
        }),
        asked::Spread::Required => json!({
            "requiredDuringSchedulingIgnoredDuringExecution": [of(node)],
            "preferredDuringSchedulingIgnoredDuringExecution": [wanted(of(zone), 50)],
        }),
    }
}

/// The labels of a cluster's members.
pub(super) fn selector(cluster: &str) -> Value {
    json!({(CLUSTER): cluster, "app.kubernetes.io/component": MEMBER})
}

/// What Pod Security calls restricted.
fn confined() -> Value {
    json!({
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": true,
    })
}

/// What is reserved, by profile. There is no limit: an etcd that is killed for its memory, of which a
/// mapped database is a part, helps nobody.
fn resources(parts: &Parts<'_>) -> Value {
    let (cpu, memory) = match parts.spec.profile {
        Profile::Edge => ("20m", "64Mi"),
        Profile::Standard => ("100m", "256Mi"),
    };
    let asked = parts.wire.pod.as_ref().and_then(|it| it.resources.clone());
    let asked = asked.unwrap_or_default();
    let (requests, limits) = (
        asked.requests.unwrap_or_default(),
        asked.limits.unwrap_or_default(),
    );
    // What is left out is not more than a limit that is named.
    let (cpu_limit, memory_limit) = (limits.cpu.as_deref(), limits.memory.as_deref());
    let mut resources = json!({"requests": {
        "cpu": requests.cpu.as_deref().or(cpu_limit).unwrap_or(cpu),
        "memory": requests.memory.as_deref().or(memory_limit).unwrap_or(memory),
    }});
    if limits != Amounts::default() {
        resources["limits"] = json!(limits);
    }
    resources
}
