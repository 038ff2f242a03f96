//! Paths that a document may name: one text gets one verdict, as a file and as an object.

use etcd_operator::api::EtcdClusterSpec;
use etcd_operator::api::node_paths::refused;
use etcd_operator::document;
use serde_json::{Value, json};

use super::random::{self, Random};

/// The spec as the API server hands it to the controller.
fn as_an_object(spec: &Value) -> EtcdClusterSpec {
    serde_json::from_value(spec.clone()).unwrap()
}

/// The spec as a file brings it; `None`: a host refuses it.
fn as_a_file(spec: &Value) -> Option<EtcdClusterSpec> {
    let document = json!({"apiVersion": "etcd.edge-operator.io/v1alpha1", "kind": "EtcdCluster",
        "metadata": {"name": "edge"}, "spec": spec});
    let read = document::check(document.to_string().as_bytes()).ok()?;
    Some(*read.wire)
}

fn verdict(wire: &EtcdClusterSpec) -> Option<String> {
    refused("shop", "edge", wire).map(|it| it.to_string())
}

fn backup(destinations: &[Value]) -> Value {
    json!({"backup": {"destinations": destinations}})
}

fn local(path: &str) -> Value {
    json!({"local": {"path": path}})
}

/// What Kubernetes says of each; a host's author may name every path.
#[track_caller]
fn says(spec: &Value, expected: Option<&str>) {
    let object = verdict(&as_an_object(spec));
    let file = verdict(&as_a_file(spec).unwrap());
    assert_eq!(file, object, "{spec}");
    match expected {
        Some(words) => assert!(object.as_ref().unwrap().contains(words), "{object:?}"),
        None => assert_eq!(object, None, "{spec}"),
    }
}

const NOT_OURS: &str =
    "is not this cluster's: in Kubernetes it may use /var/lib/etcd-operator/shop/edge/ of the node";

#[test]
fn a_cluster_may_use_its_own_directory_of_the_node_and_nothing_else() {
    let own = "/var/lib/etcd-operator/shop/edge/data";
    let another = "/var/lib/etcd-operator/shop/other/backup/a.zst";
    says(&json!({}), None);
    says(&backup(&[local(own)]), None);
    for path in [
        "/etc",
        "/var/lib/etcd-operator",
        "/var/lib/etcd-operator/shop",
        "/var/lib/etcd-operator/shop/edge",
        "/var/lib/etcd-operator/shop/edge2/data",
        "/var/lib/etcd-operator/shop2/edge/data",
        another,
    ] {
        says(&backup(&[local(path)]), Some(NOT_OURS));
        for file in ["caFile", "credentials"] {
            let s3 = json!({"s3": {"bucket": "snapshots", file: path}});
            says(&backup(&[local(own), s3]), Some(NOT_OURS));
        }
    }
    // A snapshot may be another cluster's of the namespace, or lie on a claim of it.
    let from = |path: &str| json!({"bootstrap": {"from": path}});
    says(&from(another), None);
    says(&from("/claim/a.zst"), None);
    for path in [
        "/a.zst",
        "/var/lib/etcd-operator/bank/edge/a.zst",
        "/claim2/a.zst",
    ] {
        says(&from(path), Some(NOT_OURS));
    }
}

#[test]
fn no_path_of_a_cluster_lies_in_another_one() {
    let below = |rest: &str| format!("/var/lib/etcd-operator/shop/edge/{rest}");
    let two = |one: &str, other: &str| backup(&[local(&below(one)), local(&below(other))]);
    let nested = "lies inside the other";
    says(&two("data", "data2"), None);
    for (one, other) in [("data", "data/x"), ("data/x", "data")] {
        says(&two(one, other), Some(nested));
    }
    says(&backup(&[local(&below("state/x"))]), Some(nested));
}

#[test]
fn beside_a_claim_no_file_of_the_node_is_named() {
    let claim = json!({"local": {"claimName": "snapshots"}});
    let s3 = |field: &str, value: &str| json!({"s3": {"bucket": "snapshots", field: value}});
    let file = "/var/lib/etcd-operator/shop/edge/file";
    says(
        &backup(&[claim.clone(), s3("credentialsSecret", "s3")]),
        None,
    );
    for field in ["caFile", "credentials"] {
        let spec = backup(&[claim.clone(), s3(field, file)]);
        says(&spec, Some("claimName excludes caFile and credentials"));
    }
}

#[test]
fn every_document_that_a_file_may_hold_gets_the_verdict_of_its_object() {
    let mut seen = [0, 0];
    for seed in 0..4000 {
        let spec = serde_json::to_value(random::spec(&mut Random(seed))).unwrap();
        if let Some(read) = as_a_file(&spec) {
            let told = verdict(&read);
            assert_eq!(told, verdict(&as_an_object(&spec)), "SEED={seed}");
            seen[usize::from(told.is_some())] += 1;
        }
    }
    assert!(seen.iter().all(|it| *it > 0), "{seen:?}");
}
