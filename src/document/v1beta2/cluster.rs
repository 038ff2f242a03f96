//! An EtcdCluster of the first operator.

use serde_json::{Value as Json, json};

use super::{Fate, Old, environment, is_nothing, ours, plain, set};
use crate::api::pod;
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
            "pod" => pods(old, &mut it),
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
    let unknown =
        { old.root.at("spec.pod.etcdEnv") }.is_some_and(environment::has_compaction_elsewhere);
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
            let image = format!("{repository}:v{version}");
            set(it, "spec.image", image.clone());
            let known = { pod::IMAGE_PREFIXES.iter() }.any(|it| pod::is_below(&image, it));
            let (fate, more) = if known {
                (Fate::Changed, "")
            } else {
                (
                    Fate::Decide,
                    "; the operator takes it by its --image-prefix",
                )
            };
            old.tell(
                "spec.repository",
                fate,
                format!("spec.image: {image}{more}"),
            );
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
        _ if several && !version.takes_several() => {
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

fn pods(old: &mut Old<'_>, it: &mut Json) {
    for (key, node) in old.fields("spec.pod") {
        let path = format!("spec.pod.{key}");
        match key.as_str() {
            "labels" => keys(old, it, &path, pod::is_label_refused),
            "annotations" => keys(old, it, &path, pod::is_reserved),
            "nodeSelector" | "affinity" => {
                set(it, &path, node.to_json());
                old.tell(&path, Fate::Mapped, &path);
            }
            "tolerations" => tolerations(old, it, &node),
            "antiAffinity" => anti_affinity(old, it, &node),
            "resources" => resources(old, it),
            "etcdEnv" => environment::convert(old, it, &node),
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

/// Labels or annotations, without those that the operator does not set.
fn keys(old: &mut Old<'_>, it: &mut Json, path: &str, is_refused: fn(&str) -> bool) {
    let Some(Json::Object(mut all)) = old.root.at(path).map(Node::to_json) else {
        return;
    };
    for key in all.keys().filter(|it| is_refused(it)) {
        let text = format!("left out: {}: {}", printable(key), pod::RESERVED);
        old.tell(path, Fate::Decide, text);
    }
    all.retain(|key, _| !is_refused(key));
    if !all.is_empty() {
        set(it, path, all);
        old.tell(path, Fate::Mapped, path);
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
