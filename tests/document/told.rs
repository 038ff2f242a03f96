//! Documents of the first operator: nothing of them is left out in silence.

use etcd_operator::api::pod::{IMAGE_PREFIXES, refused};
use etcd_operator::document::v1beta2::{Fate, Row, convert};
use etcd_operator::document::{check_of_kubernetes, to_yaml};
use serde_json::{Value, json};

use crate::old::{GROUP, one_of_each};
use crate::random::Random;

/// Paths of the values of a document.
fn leaves(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                leaves(value, &path, found);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (index, value) in items.iter().enumerate() {
                leaves(value, &format!("{path}[{index}]"), found);
            }
        }
        _ => found.push(path.to_owned()),
    }
}

/// Whether it is of this value, or of a map that the value is in. Those of a whole document are of what is missing in it.
fn is_of(row: &Row, leaf: &str) -> bool {
    let rest = leaf.strip_prefix(&row.path);
    let is_whole = ["", "spec", "metadata"].contains(&row.path.as_str());
    // A map whose fields have rows of their own is not told of as mapped.
    let maps = ["pod", "resources", "static", "member", "s3", "backupPolicy"];
    let is_map = maps.iter().any(|it| row.path.ends_with(&format!(".{it}")));
    let is_told = !is_map || matches!(row.fate, Fate::Dropped | Fate::Decide);
    row.path == leaf || !is_whole && is_told && rest.is_some_and(|it| it.starts_with(['.', '[']))
}

/// The operator makes the cluster, or a person was told what it needs; and what is told as mapped is there.
fn is_made(document: &Value, report: &[Row]) {
    let wire = serde_json::from_value(document["spec"].clone()).unwrap();
    let prefixes = IMAGE_PREFIXES.map(ToOwned::to_owned);
    if let Some(why) = refused(&wire, &prefixes) {
        let told = |it: &Row| it.fate == Fate::Decide && it.text.contains("--image-prefix");
        assert!(
            why.starts_with("spec.image") && report.iter().any(told),
            "{why}"
        );
    }
    let name = format!(
        "EtcdCluster {}",
        document["metadata"]["name"].as_str().unwrap()
    );
    let rows = report
        .iter()
        .filter(|it| it.object == name && it.fate == Fate::Mapped);
    for row in rows.filter(|it| it.text.starts_with("spec.")) {
        let path = row.text.split([':', ' ']).next().unwrap();
        let path = path.replace(['.', '['], "/").replace(']', "");
        assert!(
            document.pointer(&format!("/{path}")).is_some(),
            "{row} {document:#}"
        );
    }
}

/// A key of a map may have dots, and others beside it stay.
#[test]
fn what_is_wrong_of_a_map_takes_nothing_else_away() {
    let spec = json!({"size": 1, "pod": {
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "labels": {"app": "till", "app.kubernetes.io/x": 1, "topology.kubernetes.io/zone": "a"},
        "annotations": {"prometheus.io/scrape": true, "prometheus.io/port": 2379, "a": "b",
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
    }});
    let done = Done::of(&[cluster(&spec)]);
    let pod = &done.cluster["spec"]["pod"];
    assert_eq!(pod["labels"], json!({"app": "till"}));
    assert_eq!(pod["annotations"], json!({"a": "b"}));
    assert_eq!(pod["tolerations"], spec["pod"]["tolerations"]);
    for (path, words) in [
        (
            "",
            "left out: spec.pod.annotations.prometheus.io/scrape: found true",
        ),
        (
            "",
            "left out: spec.pod.annotations.prometheus.io/port: found the number 2379",
        ),
        (
            "",
            "left out: spec.pod.labels.app.kubernetes.io/x: found the number 1",
        ),
        (
            "spec.pod.labels",
            "left out: topology.kubernetes.io/zone: labels and annotations",
        ),
        (
            "spec.pod.annotations",
            "left out: cluster-autoscaler.kubernetes.io/safe-to-evict: ",
        ),
    ] {
        done.tells(path, Fate::Decide, words);
    }
}

#[test]
fn whatever_comes_out_is_sound_and_whatever_was_left_out_is_told() {
    let mut random = Random(2026);
    let (mut clusters, mut told) = (0, 0);
    for _ in 0..3000 {
        let all = one_of_each(&mut random);
        let text = all.each_ref().map(|it| to_yaml(it).unwrap()).join("---\n");
        let it = convert(&text).unwrap();
        for document in &it.documents {
            assert!(document["metadata"]["name"].is_string(), "{text}");
            if document["kind"] == "EtcdCluster" {
                check_of_kubernetes(to_yaml(document).unwrap().as_bytes()).unwrap();
                is_made(document, &it.report);
                clusters += 1;
            }
        }
        for old in &all {
            let kind = old["kind"].as_str().unwrap();
            let rows: Vec<&Row> = { it.report.iter() }
                .filter(|it| it.object.starts_with(kind))
                .collect();
            if kind == "EtcdCluster" && rows.iter().any(|it| it.text.contains("it has no name")) {
                continue;
            }
            let mut all = Vec::new();
            leaves(old, "", &mut all);
            for leaf in all
                .iter()
                .filter(|it| !["apiVersion", "kind"].contains(&it.as_str()))
            {
                assert!(rows.iter().any(|it| is_of(it, leaf)), "{leaf}: {text}");
                told += 1;
            }
        }
    }
    assert!(clusters > 500, "{clusters} clusters");
    assert!(told > 10_000, "{told} values");
}

fn cluster(spec: &Value) -> Value {
    json!({"apiVersion": GROUP, "kind": "EtcdCluster", "metadata": {"name": "shop"}, "spec": spec})
}

fn backup(name: &str, s3: &Value, policy: &Value) -> Value {
    let spec = json!({"etcdEndpoints": ["http://shop-0000.shop.default.svc:2379"], "storageType": "S3", "s3": s3, "backupPolicy": policy});
    json!({"apiVersion": GROUP, "kind": "EtcdBackup", "metadata": {"name": name}, "spec": spec})
}

/// The cluster that comes out, and each row that a path has.
struct Done {
    cluster: Value,
    report: Vec<Row>,
}

impl Done {
    #[track_caller]
    fn of(all: &[Value]) -> Done {
        let texts: Vec<String> = all.iter().map(|it| to_yaml(it).unwrap()).collect();
        let mut done = convert(&texts.join("---\n")).unwrap();
        Done {
            cluster: done.documents.remove(0),
            report: done.report,
        }
    }

    #[track_caller]
    fn tells(&self, path: &str, fate: Fate, words: &str) {
        let is = |it: &Row| it.path == path && it.fate == fate && it.text.contains(words);
        assert!(
            self.report.iter().any(is),
            "{path} {words}: {:#?}",
            self.report
        );
    }
}

#[test]
fn a_version_that_is_not_run_is_told() {
    for (version, words) in [
        ("3.5.0", "loses data"),
        ("3.6.0", "loses data"),
        ("3.9.0", "of no line"),
        ("4.0.0", "of no line"),
        ("3.4.30", "too old"),
        ("3.6", "no version"),
    ] {
        let done = Done::of(&[cluster(&json!({"size": 1, "version": version}))]);
        done.tells("spec.version", Fate::Decide, words);
        assert_eq!(done.cluster["spec"]["version"], "3.6.16");
    }
    let done = Done::of(&[cluster(&json!({"size": 3, "version": "3.5.33"}))]);
    done.tells("spec.version", Fate::Decide, "of several members");
}

#[test]
fn the_environment_of_etcd_means_what_etcd_made_of_it() {
    let environment = |all: &[(&str, &str)]| {
        let list: Vec<Value> = { all.iter() }
            .map(|(name, value)| json!({"name": format!("ETCD_{name}"), "value": value}))
            .collect();
        let spec = json!({"size": 1, "version": "3.6.16", "pod": {"etcdEnv": list}});
        Done::of(&[cluster(&spec)])
    };
    let nothing = "etcd compacted nothing";
    let done = environment(&[("AUTO_COMPACTION_MODE", "periodic")]);
    done.tells("spec.pod.etcdEnv[0]", Fate::Dropped, nothing);
    done.tells("spec", Fate::Changed, "etcd kept all old revisions");
    let never = json!({"autoCompaction": {"mode": "disabled"}});
    for retention in ["0", "0h"] {
        let mode = ("AUTO_COMPACTION_MODE", "periodic");
        let done = environment(&[("AUTO_COMPACTION_RETENTION", retention), mode]);
        done.tells("spec.pod.etcdEnv[1]", Fate::Dropped, nothing);
        assert_eq!(done.cluster["spec"]["options"], never);
    }
    for (value, level) in [
        ("1", json!("debug")),
        ("true", json!("debug")),
        ("0", json!("warn")),
    ] {
        let done = environment(&[("LOG_LEVEL", "warn"), ("DEBUG", value)]);
        assert_eq!(done.cluster["spec"]["options"]["logLevel"], level);
    }
    let done = environment(&[("SNAPSHOT_COUNT", "1"), ("SNAPSHOT_COUNT", "9000")]);
    done.tells("spec.pod.etcdEnv[0]", Fate::Dropped, "given again");
    assert_eq!(done.cluster["spec"]["options"]["snapshotCount"], 9000);
    let done = environment(&[("ELECTION_TIMEOUT", "5000")]);
    done.tells(
        "spec.pod.etcdEnv",
        Fate::Changed,
        "heartbeatMilliseconds: 100",
    );
    let both = json!({"electionMilliseconds": 5000, "heartbeatMilliseconds": 100});
    assert_eq!(done.cluster["spec"]["options"], both);
}

#[test]
fn what_is_empty_counts_as_not_there() {
    for tls in [json!(null), json!({}), json!({"static": {}})] {
        let done = Done::of(&[cluster(
            &json!({"size": 1, "version": "3.6.16", "TLS": tls}),
        )]);
        done.tells("spec", Fate::Changed, "clients spoke plain HTTP");
        done.tells("spec.TLS", Fate::Dropped, "it is empty");
    }
    let claim = |claim: Value| {
        let spec =
            json!({"size": 1, "version": "3.6.16", "pod": {"persistentVolumeClaimSpec": claim}});
        Done::of(&[cluster(&spec)])
    };
    claim(json!(null)).tells("spec", Fate::Changed, "data went with the Pod");
    let size = "spec.pod.persistentVolumeClaimSpec.resources.requests.storage";
    claim(json!({})).tells(size, Fate::Decide, "2Gi is written");
}

#[test]
fn a_place_that_two_backups_write_to_is_there_once() {
    let shop = cluster(&json!({"size": 1, "version": "3.6.16"}));
    let s3 = json!({"path": "edge/etcd.backup", "awsSecret": "aws"});
    let now = backup("now", &s3, &json!({}));
    let hourly = backup(
        "hourly",
        &s3,
        &json!({"backupIntervalInSecond": 3600, "maxBackups": 9}),
    );
    let expected =
        json!([{"local": {}}, {"s3": {"bucket": "edge", "credentialsSecret": "aws", "keep": 9}}]);
    for order in [[&now, &hourly], [&hourly, &now]] {
        let done = Done::of(&[shop.clone(), order[0].clone(), order[1].clone()]);
        assert_eq!(done.cluster["spec"]["backup"]["destinations"], expected);
        assert_eq!(done.cluster["spec"]["backup"]["interval"], "1h");
    }
    let fewer = backup(
        "fewer",
        &s3,
        &json!({"backupIntervalInSecond": 3600, "maxBackups": 2}),
    );
    let done = Done::of(&[shop.clone(), hourly, fewer]);
    done.tells("spec", Fate::Decide, "another EtcdBackup has keep: 9");
    assert_eq!(done.cluster["spec"]["backup"]["destinations"], expected);
    for s3 in [
        json!(null),
        json!({"awsSecret": "aws"}),
        json!({"path": "", "awsSecret": "aws"}),
    ] {
        let done = Done::of(&[shop.clone(), backup("now", &s3, &json!({}))]);
        done.tells("spec.storageType", Fate::Decide, "names no bucket");
        let local = json!([{"local": {}}]);
        assert_eq!(done.cluster["spec"]["backup"]["destinations"], local);
    }
}

#[test]
fn an_object_without_a_name_or_with_that_of_another_becomes_none() {
    let shop = cluster(&json!({"size": 1, "version": "3.6.16"}));
    let mut nameless = backup(
        "x",
        &json!({"path": "edge/a", "awsSecret": "aws"}),
        &json!({}),
    );
    nameless["metadata"] = json!({"generateName": "b-"});
    let texts = [&shop, &shop, &nameless].map(|it| to_yaml(it).unwrap());
    let done = convert(&texts.join("---\n")).unwrap();
    assert_eq!(done.documents.len(), 1);
    let decided: Vec<&str> = { done.report.iter() }
        .filter(|it| it.fate == Fate::Decide && it.path == "metadata")
        .map(|it| it.text.as_str())
        .collect();
    assert_eq!(
        decided,
        [
            "another document here is of this kind and name: no document of it",
            "it has no name: no document of it"
        ]
    );
}
