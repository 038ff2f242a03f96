//! An EtcdCluster of the first operator.

use serde_json::{Value as Json, json};

use super::{Fate, Old, ours, set};
use crate::document::compare::shown;
use crate::document::node::{Node, Value, printable};
use crate::version::Version;

/// What a new cluster starts with where the old version is one that this operator does not run.
const NEW_VERSION: &str = "3.6.16";
/// What the first operator took where a document named none.
const OLD_VERSION: &str = "3.2.13";
const OLD_REPOSITORY: &str = "quay.io/coreos/etcd";

/// The new document; nothing where it has no name.
pub(super) fn convert(old: &mut Old<'_>) -> Option<Json> {
    let metadata = old.metadata();
    let Some(name) = metadata["name"].as_str().map(str::to_owned) else {
        old.tell(
            "metadata",
            Fate::Decide,
            "it has no name: no document of it",
        );
        return None;
    };
    let mut it = ours("EtcdCluster", &metadata, &json!({}));
    size(old, &mut it);
    version(old, &mut it);
    for (key, node) in old.fields("spec") {
        match key.as_str() {
            "size" | "version" | "repository" => {}
            "paused" => {
                set(&mut it, "spec.paused", node.to_json());
                old.tell("spec.paused", Fate::Mapped, "spec.paused");
            }
            "TLS" => tls(old),
            "pod" => pod(old, &mut it),
            _ => old.unknown(&format!("spec.{key}")),
        }
    }
    if old.root.at("spec.TLS").is_none() {
        old.tell("spec", Fate::Changed, format!("clients spoke plain HTTP; now they need a certificate: the Secret {name}-client-admin has one, spec.clients makes others"));
    }
    if old.root.at("spec.pod.persistentVolumeClaimSpec").is_none() {
        old.tell("spec", Fate::Changed, "data went with the Pod; now a claim of the default StorageClass keeps it: spec.storage.volumeClaim");
    }
    if it["spec"]["options"]["autoCompaction"].is_null() {
        old.tell("spec", Fate::Changed, "etcd kept all old revisions; now those older than an hour are compacted: spec.options.autoCompaction");
    }
    old.tell("spec", Fate::Changed, "this is another cluster, and empty: etcdctl make-mirror copies the keys, without leases, users and old revisions");
    Some(it)
}

fn size(old: &mut Old<'_>, it: &mut Json) {
    let given = old.root.at("spec.size").map(|node| &node.value);
    let (size, fate, text) = match given {
        Some(Value::Integer(size @ (0 | 1 | 3 | 5 | 7))) => {
            (*size, Fate::Mapped, "spec.size".to_owned())
        }
        Some(Value::Integer(size @ (2 | 4 | 6))) => {
            let text = format!(
                "{size} members survive no more losses than {}; {} is written",
                size - 1,
                size + 1
            );
            (size + 1, Fate::Decide, text)
        }
        Some(Value::Integer(size)) if *size > 7 => (
            7,
            Fate::Decide,
            format!("found {size}, at most 7 are possible; 7 is written"),
        ),
        found => {
            let found = found.map_or_else(|| "nothing".to_owned(), Value::describe);
            (1, Fate::Decide, format!("found {found}; 1 is written"))
        }
    };
    set(it, "spec.size", i64::try_from(size).unwrap_or(1));
    old.tell("spec.size", fate, text);
}

/// Version and repository, which were the two parts of an image.
fn version(old: &mut Old<'_>, it: &mut Json) {
    let given = old.text("spec.version").unwrap_or(OLD_VERSION).to_owned();
    let several = it["spec"]["size"].as_i64().is_some_and(|it| it > 1);
    let oldest = if several {
        Version::new(3, 6, 0)
    } else {
        Version::new(3, 5, 0)
    };
    let parsed = given.parse::<Version>().ok();
    let version = if let Some(version) = parsed.filter(|it| *it >= oldest) {
        old.tell("spec.version", Fate::Mapped, "spec.version");
        version.to_string()
    } else {
        let why = match parsed {
            Some(_) if several => "too old for a new cluster of several members",
            Some(_) => "too old for a new cluster",
            None => "no version",
        };
        let text = format!("'{}' is {why}; {NEW_VERSION} is written", printable(&given));
        old.tell("spec.version", Fate::Decide, text);
        NEW_VERSION.to_owned()
    };
    set(it, "spec.version", version.clone());
    let repository = old.text("spec.repository").map(str::to_owned);
    match repository.as_deref().map(|it| it.trim_end_matches('/')) {
        None => {}
        Some(OLD_REPOSITORY) => old.tell("spec.repository", Fate::Dropped, "it is the default"),
        Some(repository) => {
            set(it, "spec.image", format!("{repository}:v{version}"));
            let text = format!(
                "spec.image names {repository}:v{version}; the operator needs --image-prefix for a registry that it does not know"
            );
            old.tell("spec.repository", Fate::Changed, text);
        }
    }
}

/// Certificates that a person made and put into Secrets.
fn tls(old: &mut Old<'_>) {
    for (path, whose) in [
        ("spec.TLS.static.member.peerSecret", "members'"),
        ("spec.TLS.static.member.serverSecret", "members'"),
        ("spec.TLS.static.operatorSecret", "the operator's"),
    ] {
        if old.root.at(path).is_some() {
            let text = format!(
                "the operator makes {whose} certificates by CAs of its own; clients need new ones, from the Secrets of spec.clients"
            );
            old.tell(path, Fate::Decide, text);
        }
    }
    for (above, known) in [
        ("spec.TLS", &["static"][..]),
        ("spec.TLS.static", &["member", "operatorSecret"]),
        ("spec.TLS.static.member", &["peerSecret", "serverSecret"]),
    ] {
        for (key, _) in old.fields(above) {
            if !known.contains(&key.as_str()) {
                old.unknown(&format!("{above}.{key}"));
            }
        }
    }
}

fn pod(old: &mut Old<'_>, it: &mut Json) {
    for (key, node) in old.fields("spec.pod") {
        let path = format!("spec.pod.{key}");
        match key.as_str() {
            "labels" | "annotations" | "nodeSelector" | "affinity" => {
                set(it, &path, node.to_json());
                old.tell(&path, Fate::Mapped, &path);
            }
            "tolerations" => tolerations(old, it, &node),
            "antiAffinity" => anti_affinity(old, it, &node),
            "resources" => resources(old, it),
            "etcdEnv" => environment(old, it, &node),
            "persistentVolumeClaimSpec" => claim(old, it),
            "securityContext" => old.tell(
                &path,
                Fate::Dropped,
                "Pods are restricted: no root, no privileges, a group of their own for the volume",
            ),
            "busyboxImage" | "DNSTimeoutInSecond" => {
                old.tell(&path, Fate::Dropped, "no container waits for DNS");
            }
            "ClusterDomain" => {
                set(it, "spec.service.dnsDomain", node.to_json());
                old.tell(&path, Fate::Mapped, "spec.service.dnsDomain");
            }
            _ => old.unknown(&path),
        }
    }
}

fn tolerations(old: &mut Old<'_>, it: &mut Json, node: &Node) {
    let mut all = node.to_json();
    let mut timed = false;
    for toleration in all.as_array_mut().into_iter().flatten() {
        let fields = toleration.as_object_mut();
        timed |= fields.is_some_and(|it| it.remove("tolerationSeconds").is_some());
    }
    set(it, "spec.pod.tolerations", all);
    let path = "spec.pod.tolerations";
    if timed {
        old.tell(
            path,
            Fate::Changed,
            "without tolerationSeconds: a member stays on its node, where its data is",
        );
    } else {
        old.tell(path, Fate::Mapped, path);
    }
}

fn anti_affinity(old: &mut Old<'_>, it: &mut Json, node: &Node) {
    let path = "spec.pod.antiAffinity";
    if matches!(node.value, Value::Bool(true)) {
        set(it, "spec.pod.spread", "required");
        old.tell(path, Fate::Mapped, "spec.pod.spread: required");
    } else {
        old.tell(
            path,
            Fate::Dropped,
            "members go to nodes of their own where there are such",
        );
    }
}

/// A quantity as text, which ours is, also where it was written as a number.
fn quantity(node: &Node) -> Json {
    match node.to_json() {
        Json::Number(number) => number.to_string().into(),
        other => other,
    }
}

fn resources(old: &mut Old<'_>, it: &mut Json) {
    for part in ["requests", "limits"] {
        for (key, node) in old.fields(&format!("spec.pod.resources.{part}")) {
            let path = format!("spec.pod.resources.{part}.{key}");
            if ["cpu", "memory"].contains(&key.as_str()) {
                set(it, &path, quantity(&node));
                old.tell(&path, Fate::Mapped, &path);
            } else {
                old.tell(&path, Fate::Dropped, "cpu and memory alone are asked for");
            }
        }
    }
}

const RETENTION: &str = "spec.options.autoCompaction.retention";

/// How a value of etcd's environment is written here.
#[derive(Clone, Copy)]
enum As {
    Text,
    Number,
    Bytes,
    /// A number; of hours, where it has a unit.
    Retention,
}

/// etcd's variables, and the field that sets the same.
const ENVIRONMENT: [(&str, &str, As); 10] = [
    (
        "ETCD_AUTO_COMPACTION_MODE",
        "spec.options.autoCompaction.mode",
        As::Text,
    ),
    ("ETCD_AUTO_COMPACTION_RETENTION", RETENTION, As::Retention),
    ("ETCD_QUOTA_BACKEND_BYTES", "spec.storage.quota", As::Bytes),
    (
        "ETCD_SNAPSHOT_COUNT",
        "spec.options.snapshotCount",
        As::Number,
    ),
    (
        "ETCD_HEARTBEAT_INTERVAL",
        "spec.options.heartbeatMilliseconds",
        As::Number,
    ),
    (
        "ETCD_ELECTION_TIMEOUT",
        "spec.options.electionMilliseconds",
        As::Number,
    ),
    (
        "ETCD_MAX_REQUEST_BYTES",
        "spec.options.maxRequestSize",
        As::Bytes,
    ),
    (
        "ETCD_MAX_TXN_OPS",
        "spec.options.maxTransactionOperations",
        As::Number,
    ),
    ("ETCD_LOG_LEVEL", "spec.options.logLevel", As::Text),
    ("ETCD_DEBUG", "spec.options.logLevel", As::Text),
];

fn environment(old: &mut Old<'_>, it: &mut Json, node: &Node) {
    let Value::List(items) = &node.value else {
        return old.tell(
            "spec.pod.etcdEnv",
            Fate::Decide,
            format!("found {}, expected a list", node.value.describe()),
        );
    };
    for (index, item) in items.iter().enumerate() {
        let path = format!("spec.pod.etcdEnv[{index}]");
        let name = item.get("name").and_then(Node::as_text).unwrap_or_default();
        let known = ENVIRONMENT.iter().find(|(variable, ..)| *variable == name);
        let value = item.get("value").map(Node::to_json);
        let Some(((_, field, form), value)) = known.zip(value) else {
            let text = format!(
                "{} has no field of its own here: it is left out",
                printable(name)
            );
            old.tell(&path, Fate::Decide, text);
            continue;
        };
        let value = match value {
            Json::String(text) => text,
            other => other.to_string(),
        };
        let (field, written) = if *field == RETENTION && value == "0" {
            ("spec.options.autoCompaction.mode", "disabled".into())
        } else {
            (*field, written(name, *form, &value))
        };
        set(it, field, written.clone());
        old.tell(
            &path,
            Fate::Mapped,
            format!("{field}: {}", shown(Some(&written))),
        );
    }
}

/// The value of a variable as the field has it. One that is wrong stays as it is, and is refused as that.
fn written(name: &str, form: As, value: &str) -> Json {
    let number = |text: &str| { text.parse::<u64>() }.map_or_else(|_| value.into(), Json::from);
    match form {
        As::Number => number(value),
        As::Retention => number(value.strip_suffix('h').unwrap_or(value)),
        As::Bytes => bytes(value).into(),
        As::Text if name == "ETCD_DEBUG" => {
            { if value == "true" { "debug" } else { "info" } }.into()
        }
        As::Text => value.into(),
    }
}

/// Bytes in the largest unit that names them exactly.
fn bytes(number: &str) -> String {
    let Ok(bytes) = number.parse::<u64>() else {
        return number.to_owned();
    };
    let units = [(30, "Gi"), (20, "Mi"), (10, "Ki")];
    let found = units
        .iter()
        .find(|(bits, _)| bytes > 0 && bytes.is_multiple_of(1 << bits));
    found.map_or_else(
        || bytes.to_string(),
        |(bits, unit)| format!("{}{unit}", bytes >> bits),
    )
}

fn claim(old: &mut Old<'_>, it: &mut Json) {
    let above = "spec.pod.persistentVolumeClaimSpec";
    for (key, node) in old.fields(above) {
        let path = format!("{above}.{key}");
        match key.as_str() {
            "storageClassName" => {
                let field = "spec.storage.volumeClaim.storageClassName";
                set(it, field, node.to_json());
                old.tell(&path, Fate::Mapped, field);
            }
            "resources" => {
                let size = old.root.at(&format!("{path}.requests.storage"));
                let field = "spec.storage.volumeClaim.size";
                set(it, field, size.map(quantity).unwrap_or_default());
                old.tell(&format!("{path}.requests.storage"), Fate::Mapped, field);
            }
            "accessModes" => old.tell(&path, Fate::Dropped, "one node at a time, always"),
            _ => old.tell(
                &path,
                Fate::Decide,
                "claims are made by size and StorageClass alone: it is left out",
            ),
        }
    }
    let claimed = &it["spec"]["storage"]["volumeClaim"];
    if claimed.is_object() && claimed["size"].as_str().is_none() {
        set(it, "spec.storage.volumeClaim.size", "2Gi");
        old.tell(above, Fate::Decide, "it asks for no size; 2Gi is written");
    }
}
