//! EtcdBackup and EtcdRestore of the first operator.

use serde_json::{Value as Json, json};

use super::{Fate, Old, is_same, ours, set};
use crate::cluster::is_dns_label;
use crate::document::compare::shown;
use crate::document::node::{Node, Value, printable};
use crate::error::shell_word;

/// Characters of a cluster's name, as the CRD has it.
const NAME_MAX: usize = 50;

/// Where a new cluster's snapshots go first.
const LOCAL_FIRST: &str = "spec.backup.destinations[0]: {local: {}}, a claim: snapshots are verified there before they are copied";

/// Of the fields of a document that becomes none.
const NO_DOCUMENT: &str = "no document of it";
const KEYS: &str = "no document of it; the Secret stays, and its keys read the snapshot";

/// The new request for one snapshot, where it asked for one. What says where snapshots go becomes a part of the cluster.
pub(super) fn backup(
    old: &mut Old<'_>,
    clusters: &mut [(Json, &Node)],
    others: &[&Json],
) -> Option<Json> {
    let metadata = old.metadata();
    let mut destination = s3(old);
    storage(old, destination["s3"]["bucket"].is_string());
    let mut periodic = None;
    let cluster = cluster(old, &metadata);
    for (key, _) in old.fields("spec") {
        let path = format!("spec.{key}");
        match key.as_str() {
            "gcs" | "abs" | "oss" => old.tell(&path, Fate::Dropped, "no copy goes to this store"),
            "backupPolicy" => periodic = policy(old, &mut destination),
            "clientTLSSecret" => old.tell(
                &path,
                Fate::Dropped,
                "the operator has a certificate of its own",
            ),
            _ => {}
        }
    }
    let Some(cluster) = cluster else {
        old.nothing_came(NO_DOCUMENT);
        return None;
    };
    let named = json!({"name": cluster, "namespace": metadata["namespace"]});
    let found = { clusters.iter_mut() }.find(|(it, _)| is_same(&it["metadata"], &named));
    if let Some((found, _)) = found {
        join(old, found, destination, periodic.as_deref());
    } else {
        let mut patch = json!({});
        join(old, &mut patch, destination, periodic.as_deref());
        let namespace = shell_word(metadata["namespace"].as_str().unwrap_or("default"));
        let patch = shell_word(&patch.to_string());
        let text = format!(
            "the EtcdCluster {cluster} is not among these documents; once it is there: kubectl patch etcdcluster {cluster} -n {namespace} --type=merge -p {patch}"
        );
        old.tell("spec", Fate::Decide, text);
    }
    if periodic.is_some() || !old.is_nameable(&metadata, others) {
        return None;
    }
    Some(ours("EtcdBackup", &metadata, &json!({"cluster": cluster})))
}

/// The cluster that the endpoints name by its Service or by its members.
fn cluster(old: &mut Old<'_>, metadata: &Json) -> Option<String> {
    let path = "spec.etcdEndpoints";
    let given = old.root.at(path).map(|it| it.value.clone());
    let Some(Value::List(items)) = given else {
        old.tell(
            "spec",
            Fate::Decide,
            "it names no etcdEndpoints: no document of it",
        );
        return None;
    };
    let namespace = metadata["namespace"].as_str().unwrap_or("default");
    let mut names: Vec<Option<String>> = items
        .iter()
        .map(|it| named(it.as_text()?, namespace))
        .collect();
    names.dedup();
    if let [Some(name)] = &names[..] {
        old.tell(path, Fate::Mapped, format!("spec.cluster: {name}"));
        return Some(name.clone());
    }
    old.tell(path, Fate::Decide, "no Service NAME-client of one cluster in this namespace: no document of it; name the EtcdCluster in spec.cluster of an EtcdBackup");
    None
}

/// The cluster of `http(s)://NAME-client[.NAMESPACE[.svc[...]]]:2379`, or of a member's own `NAME-0000.NAME[.NAMESPACE...]`.
fn named(endpoint: &str, namespace: &str) -> Option<String> {
    let rest = endpoint
        .strip_prefix("https://")
        .or_else(|| endpoint.strip_prefix("http://"))?;
    let host = rest.split([':', '/']).next()?;
    let mut labels = host.split('.');
    let first = labels.next()?;
    let name = match first.strip_suffix("-client") {
        Some(name) => name,
        None => labels.next().filter(|it| {
            let number = first.strip_prefix(it).and_then(|it| it.strip_prefix('-'));
            number.is_some_and(|it| !it.is_empty())
        })?,
    };
    let of = labels.next().unwrap_or(namespace);
    let is_service = labels.next().is_none_or(|it| it == "svc");
    let is_name = name.len() <= NAME_MAX && is_dns_label(name);
    (of == namespace && is_service && is_name).then(|| name.to_owned())
}

fn storage(old: &mut Old<'_>, is_s3: bool) {
    let path = "spec.storageType";
    let given = old.plain(path);
    match given.as_deref() {
        Some("S3") if !is_s3 => old.tell(path, Fate::Decide, "spec.s3.path names no bucket: no copy goes anywhere; snapshots stay on the local claim"),
        None if is_s3 => old.tell(path, Fate::Decide, "it names none; S3 is taken, as spec.s3 is there"),
        Some("S3") => old.tell(path, Fate::Mapped, "spec.backup.destinations[1].s3"),
        Some("GCS") => old.tell(path, Fate::Decide, "no such store; Google's speaks S3 with HMAC keys: destinations: [{local: {}}, {s3: {endpoint: https://storage.googleapis.com, ...}}]"),
        Some("OSS") => old.tell(path, Fate::Decide, "no such store; Alibaba's speaks S3: destinations: [{local: {}}, {s3: {endpoint: https://oss-REGION.aliyuncs.com, ...}}]"),
        Some("ABS") => old.tell(path, Fate::Decide, "Azure's store does not speak S3: no copy goes there; snapshots stay on the local claim"),
        _ => old.tell(path, Fate::Decide, "no such store: S3 is"),
    }
}

/// The destination, where it names one.
fn s3(old: &mut Old<'_>) -> Json {
    let mut s3 = json!({});
    for (key, node) in old.fields("spec.s3") {
        let path = format!("spec.s3.{key}");
        match key.as_str() {
            "path" => {
                let text = node.as_text().unwrap_or_default();
                let (bucket, object) = text.split_once('/').unwrap_or((text, ""));
                if bucket.is_empty() {
                    old.tell(&path, Fate::Decide, "it names no bucket");
                    continue;
                }
                set(&mut s3, "bucket", bucket);
                if let Some((folder, _)) = object.rsplit_once('/') {
                    set(&mut s3, "prefix", folder);
                }
                old.tell(
                    &path,
                    Fate::Changed,
                    "bucket and prefix; the names of snapshots are the operator's own",
                );
            }
            "awsSecret" => {
                set(&mut s3, "credentialsSecret", node.to_json());
                old.tell(
                    &path,
                    Fate::Decide,
                    "credentialsSecret; look into the Secret: where its config names a region, set region",
                );
            }
            "endpoint" if node.as_text() == Some("") => {
                old.tell(&path, Fate::Dropped, "it is empty");
            }
            "endpoint" => {
                set(&mut s3, "endpoint", node.to_json());
                old.tell(&path, Fate::Mapped, "endpoint");
            }
            "forcePathStyle" => {
                set(&mut s3, "pathStyle", node.to_json());
                old.tell(&path, Fate::Mapped, "pathStyle");
            }
            _ => {}
        }
    }
    json!({"s3": s3})
}

/// How often, where more than once. How many stay goes into the destination.
fn policy(old: &mut Old<'_>, destination: &mut Json) -> Option<String> {
    let mut periodic = None;
    for (key, node) in old.fields("spec.backupPolicy") {
        let path = format!("spec.backupPolicy.{key}");
        let number = match node.value {
            Value::Integer(it) => u64::try_from(it).ok(),
            _ => None,
        };
        match (key.as_str(), number) {
            ("backupIntervalInSecond", Some(0)) => old.tell(&path, Fate::Dropped, "one snapshot, now"),
            ("backupIntervalInSecond", Some(seconds)) => {
                let (interval, fate, text) = interval(seconds);
                old.tell(&path, fate, format!("spec.backup.interval: {interval}{text}"));
                periodic = Some(interval);
            }
            ("maxBackups", Some(0)) => old.tell(&path, Fate::Decide, "all stayed; how many stay is said by keep, and maxBytes bounds them: left out, the last 5, and the newest of each of 7 days and 4 weeks"),
            ("maxBackups", Some(keep)) if destination["s3"]["bucket"].is_string() => {
                set(destination, "s3.keep", keep);
                old.tell(&path, Fate::Mapped, "keep");
            }
            ("maxBackups", Some(_)) => old.tell(&path, Fate::Dropped, "there is no destination that it is of"),
            ("timeoutInSecond", _) => old.tell(&path, Fate::Dropped, "a snapshot ends when nothing comes any more, however long it takes"),
            ("backupIntervalInSecond" | "maxBackups", None) => old.tell(&path, Fate::Decide, format!("found {}, expected a number from 0", node.value.describe())),
            _ => {}
        }
    }
    periodic
}

/// Seconds in whole minutes or hours.
fn interval(seconds: u64) -> (String, Fate, &'static str) {
    match (seconds % 3600, seconds % 60) {
        (0, _) => (format!("{}h", seconds / 3600), Fate::Mapped, ""),
        (_, 0) => (format!("{}m", seconds / 60), Fate::Mapped, ""),
        _ => (
            format!("{}m", seconds / 60 + 1),
            Fate::Changed,
            ", as whole minutes",
        ),
    }
}

/// Adds a destination to a cluster's.
fn join(old: &mut Old<'_>, cluster: &mut Json, destination: Json, periodic: Option<&str>) {
    if cluster["spec"]["backup"].is_null() {
        set(cluster, "spec.backup.destinations", json!([{"local": {}}]));
        old.tell("spec", Fate::Changed, LOCAL_FIRST);
    }
    let is_s3 = destination["s3"]["bucket"].is_string();
    if let Some(all) = cluster["spec"]["backup"]["destinations"].as_array_mut()
        && is_s3
    {
        add(old, all, destination);
    }
    let Some(interval) = periodic else {
        return;
    };
    let before = cluster["spec"]["backup"]["interval"]
        .as_str()
        .map(str::to_owned);
    match before {
        Some(before) if before != interval => {
            let text = format!(
                "another EtcdBackup asks for {before}, and a cluster has one interval: that stays"
            );
            old.tell("spec.backupPolicy", Fate::Decide, text);
        }
        _ => set(cluster, "spec.backup.interval", interval),
    }
}

/// Adds a place once: what several EtcdBackups say of one is told where they differ.
fn add(old: &mut Old<'_>, all: &mut Vec<Json>, destination: Json) {
    let is_same = |it: &&mut Json| {
        let place = ["endpoint", "bucket", "prefix"];
        place.iter().all(|of| it["s3"][of] == destination["s3"][of])
    };
    let Some(there) = all.iter_mut().find(is_same) else {
        all.push(destination);
        return;
    };
    for field in ["credentialsSecret", "pathStyle", "keep"] {
        let (before, now) = (&there["s3"][field], &destination["s3"][field]);
        if before.is_null() {
            there["s3"][field] = now.clone();
        } else if !now.is_null() && before != now {
            let text = format!(
                "another EtcdBackup has {field}: {} for this place, and that stays",
                shown(Some(before))
            );
            old.tell("spec", Fate::Decide, text);
        }
    }
    if let Some(it) = there["s3"].as_object_mut() {
        it.retain(|_, it| !it.is_null());
    }
}

/// No document: what it names is a file of the first operator, and a restore here takes what this operator has verified.
pub(super) fn restore(old: &mut Old<'_>) {
    let name = old
        .text("spec.etcdCluster.name")
        .or_else(|| old.text("metadata.name"));
    let name = printable(name.unwrap_or("NAME"));
    let stores = ["s3", "gcs", "abs", "oss"];
    let path = { stores.iter() }.find_map(|it| old.text(&format!("spec.{it}.path")));
    let path = printable(path.unwrap_or("the object"));
    let text = format!(
        "no document of it: {path} is a snapshot of the first operator, and an EtcdRestore takes those of {name}'s own destinations. Restore it with etcdutl into an etcd of your own, and copy its keys with etcdctl make-mirror"
    );
    old.tell("spec", Fate::Decide, text);
    for (key, _) in old.fields("metadata") {
        old.tell(&format!("metadata.{key}"), Fate::Dropped, NO_DOCUMENT);
    }
    for (key, _) in old.fields("spec") {
        let known: &[&str] = match key.as_str() {
            "backupStorageType" => &[],
            "etcdCluster" => &["name"],
            "s3" => &["path", "awsSecret", "endpoint", "forcePathStyle"],
            "gcs" => &["path", "gcpSecret"],
            "abs" => &["path", "absSecret"],
            "oss" => &["path", "ossSecret", "endpoint"],
            _ => continue,
        };
        if known.is_empty() {
            old.tell(&format!("spec.{key}"), Fate::Dropped, NO_DOCUMENT);
            continue;
        }
        for (field, _) in old.fields(&format!("spec.{key}")) {
            let path = format!("spec.{key}.{field}");
            if known.contains(&field.as_str()) {
                let is_secret = field.ends_with("Secret");
                old.tell(
                    &path,
                    Fate::Dropped,
                    if is_secret { KEYS } else { NO_DOCUMENT },
                );
            }
        }
    }
}
