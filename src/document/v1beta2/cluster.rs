//! An EtcdCluster of the first operator.

use serde_json::{Value as Json, json};

use super::{Fate, Old, is_nothing, ours, plain, set};
use crate::document::compare::shown;
use crate::document::node::{Node, Value, printable};
use crate::version::{Class, Version, classify};

/// What a new cluster starts with where the old version is one that this operator does not run.
const NEW_VERSION: &str = "3.6.16";
/// What the first operator took where a document named none.
const OLD_VERSION: &str = "3.2.13";
const OLD_REPOSITORY: &str = "quay.io/coreos/etcd";
const CLAIM: &str = "spec.pod.persistentVolumeClaimSpec";

/// The new document; nothing where it has no name, or that of another one.
pub(super) fn convert(old: &mut Old<'_>, others: &[&Json]) -> Option<Json> {
    let metadata = old.metadata();
    if !old.is_nameable(&metadata, others) {
        return None;
    }
    let name = metadata["name"].as_str().unwrap_or_default().to_owned();
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
            _ => {}
        }
    }
    // As the first operator decided it.
    let secret = old.text("spec.TLS.static.operatorSecret");
    if secret.is_none_or(str::is_empty) {
        old.tell("spec", Fate::Changed, format!("clients spoke plain HTTP; now they need a certificate: the Secret {name}-client-admin has one, spec.clients makes others"));
    }
    if old.root.at(CLAIM).is_none_or(Node::is_null) {
        old.tell("spec", Fate::Changed, "data went with the Pod; now a claim of the default StorageClass keeps it: spec.storage.volumeClaim");
    }
    let unknown = { old.root.at("spec.pod.etcdEnv") }
        .is_some_and(|it| Variables::of(it).is_elsewhere(COMPACTS_AFTER));
    if it["spec"]["options"]["autoCompaction"].is_null() && !unknown {
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
    let given = old.root.at("spec.version").filter(|it| !is_nothing(it));
    let given = given.map_or_else(
        || OLD_VERSION.to_owned(),
        |it| plain(it).unwrap_or_else(|| it.value.describe()),
    );
    let several = it["spec"]["size"].as_i64().is_some_and(|it| it > 1);
    let version = match fit(&given, several) {
        Ok(version) => {
            old.tell("spec.version", Fate::Mapped, "spec.version");
            version.to_string()
        }
        Err(why) => {
            let text = format!("'{}' {why}; {NEW_VERSION} is written", printable(&given));
            old.tell("spec.version", Fate::Decide, text);
            NEW_VERSION.to_owned()
        }
    };
    set(it, "spec.version", version.clone());
    let repository = old.plain("spec.repository");
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

/// The version that a new cluster can have, or why it cannot.
fn fit(given: &str, several: bool) -> Result<Version, String> {
    let Ok(version) = given.parse::<Version>() else {
        return Err("is no version".to_owned());
    };
    match classify(version) {
        Class::TooOld if !several => Err("is too old for a new cluster".to_owned()),
        _ if several && version < Version::new(3, 6, 0) => {
            Err("is too old for a new cluster of several members".to_owned())
        }
        Class::TooOld | Class::Unknown => Err("is of no line that this operator runs".to_owned()),
        Class::NeverCreate(bug) => Err(format!("loses data: {bug}")),
        Class::Supported | Class::Warn(_) => Ok(version),
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
            _ => {}
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
    match &node.value {
        Value::Bool(true) => {
            set(it, "spec.pod.spread", "required");
            old.tell(path, Fate::Mapped, "spec.pod.spread: required");
        }
        Value::Bool(false) => old.tell(
            path,
            Fate::Dropped,
            "members go to nodes of their own where there are such",
        ),
        other => {
            let text = format!("found {}, expected true or false", other.describe());
            old.tell(path, Fate::Decide, text);
        }
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

const COMPACTS_AFTER: &str = "ETCD_AUTO_COMPACTION_RETENTION";
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
    (COMPACTS_AFTER, RETENTION, As::Retention),
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
    if !matches!(node.value, Value::List(_)) {
        return old.tell(
            "spec.pod.etcdEnv",
            Fate::Decide,
            format!("found {}, expected a list", node.value.describe()),
        );
    }
    let variables = Variables::of(node);
    for index in 0..variables.0.len() {
        let path = format!("spec.pod.etcdEnv[{index}]");
        match variables.becomes(index) {
            Ok((field, value)) => {
                let text = format!("{field}: {}", shown(Some(&value)));
                set(it, field, value);
                old.tell(&path, Fate::Mapped, text);
            }
            Err((fate, text)) => old.tell(&path, fate, text),
        }
    }
    // Ours are set together or not at all.
    let options = &mut it["spec"]["options"];
    for (one, other, default) in [
        ("electionMilliseconds", "heartbeatMilliseconds", 100),
        ("heartbeatMilliseconds", "electionMilliseconds", 1000),
    ] {
        if options[one].is_u64() && options[other].is_null() {
            options[other] = default.into();
            let text = format!("spec.options.{other}: {default}, etcd's own, goes with {one}");
            old.tell("spec.pod.etcdEnv", Fate::Changed, text);
        }
    }
    if options.is_null() {
        it["spec"].as_object_mut().map(|it| it.remove("options"));
    }
}

/// The environment of etcd.
struct Variables<'a>(&'a [Node]);

impl<'a> Variables<'a> {
    fn of(node: &'a Node) -> Self {
        match &node.value {
            Value::List(items) => Variables(items),
            _ => Variables(&[]),
        }
    }

    /// The last one of a name, which is the one that etcd got.
    fn last(&self, name: &str) -> Option<&Node> {
        let index = (0..self.0.len()).rev().find(|it| self.name(*it) == name)?;
        Some(&self.0[index])
    }

    /// Whether another object has the value of a variable.
    fn is_elsewhere(&self, name: &str) -> bool {
        let last = self.last(name);
        last.is_some_and(|it| it.get("valueFrom").is_some())
    }

    fn name(&self, index: usize) -> &str {
        let name = self.0[index].get("name").and_then(Node::as_text);
        name.unwrap_or_default()
    }

    fn value(&self, name: &str) -> Option<String> {
        self.last(name)?.get("value").and_then(plain)
    }

    /// Whether old revisions were compacted.
    fn compacts(&self) -> bool {
        let retention = self.value(COMPACTS_AFTER);
        retention.is_some_and(|it| !is_never(&it))
    }

    fn debugs(&self) -> bool {
        let value = self.value("ETCD_DEBUG");
        value.is_some_and(|it| ["1", "t", "T", "true", "TRUE", "True"].contains(&it.as_str()))
    }

    /// Field and value of a variable, or what became of it else.
    fn becomes(&self, index: usize) -> Result<(&'static str, Json), (Fate, String)> {
        let name = self.name(index);
        let dropped = |why: &str| Err((Fate::Dropped, why.to_owned()));
        let left_out = |why: String| Err((Fate::Decide, format!("{why}: it is left out")));
        let Some((_, field, form)) = ENVIRONMENT.iter().find(|(it, ..)| *it == name) else {
            return left_out(if name.is_empty() {
                "a variable without a name".to_owned()
            } else {
                format!("{} has no field of its own here", printable(name))
            });
        };
        if (index + 1..self.0.len()).any(|it| self.name(it) == name) {
            return dropped("it is given again below");
        }
        if self.is_elsewhere(name) {
            return left_out(format!("another object has the value of {name}"));
        }
        if name == "ETCD_AUTO_COMPACTION_MODE" && self.is_elsewhere(COMPACTS_AFTER) {
            return left_out(format!("another object has the value of {COMPACTS_AFTER}"));
        }
        let Some(value) = self.value(name) else {
            return dropped("it is empty");
        };
        let value = match (name, form) {
            ("ETCD_AUTO_COMPACTION_MODE", _) if !self.compacts() => {
                return dropped("etcd compacted nothing, as there is no retention");
            }
            ("ETCD_LOG_LEVEL", _) if self.debugs() => return dropped("ETCD_DEBUG is set"),
            ("ETCD_DEBUG", _) if !self.debugs() => return dropped("it is off"),
            ("ETCD_DEBUG", _) => "debug".into(),
            (_, As::Retention) if is_never(&value) => {
                return Ok(("spec.options.autoCompaction.mode", "disabled".into()));
            }
            (_, As::Number) => number(&value),
            (_, As::Retention) => number(value.strip_suffix('h').unwrap_or(&value)),
            (_, As::Bytes) => bytes(&value).into(),
            (_, As::Text) => value.into(),
        };
        Ok((field, value))
    }
}

/// `0` and `0h`.
fn is_never(retention: &str) -> bool {
    let number = retention.trim_end_matches(|it: char| it.is_ascii_alphabetic());
    number.parse() == Ok(0_u64)
}

/// One that is wrong stays as it is, and is refused as that.
fn number(text: &str) -> Json {
    { text.parse::<u64>() }.map_or_else(|_| text.into(), Json::from)
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
    for (key, node) in old.fields(CLAIM) {
        let path = format!("{CLAIM}.{key}");
        match key.as_str() {
            "storageClassName" => {
                let field = "spec.storage.volumeClaim.storageClassName";
                set(it, field, node.to_json());
                old.tell(&path, Fate::Mapped, field);
            }
            "resources" => {
                let path = format!("{path}.requests.storage");
                if let Some(size) = old.root.at(&path) {
                    let field = "spec.storage.volumeClaim.size";
                    set(it, field, quantity(size));
                    old.tell(&path, Fate::Mapped, field);
                }
            }
            "accessModes" => old.tell(&path, Fate::Dropped, "one node at a time, always"),
            _ => old.tell(
                &path,
                Fate::Decide,
                "claims are made by size and StorageClass alone: it is left out",
            ),
        }
    }
    let asks = |it: &Node| matches!(it.value, Value::Map(_));
    let size = &it["spec"]["storage"]["volumeClaim"]["size"];
    if old.root.at(CLAIM).is_some_and(asks) && size.as_str().is_none() {
        set(it, "spec.storage.volumeClaim.size", "2Gi");
        let path = format!("{CLAIM}.resources.requests.storage");
        old.tell(&path, Fate::Decide, "it asks for no size; 2Gi is written");
    }
}
