//! What kubectl shows of our types.

use serde_json::{Value, json};

use crate::documents::api;
use crate::operator::cluster;

/// Each map below, with its path.
fn maps(schema: &Value, path: &str, found: &mut Vec<String>) {
    let inner = if schema["items"].is_object() {
        &schema["items"]
    } else {
        schema
    };
    let Some(fields) = inner["properties"].as_object() else {
        return;
    };
    found.push(path.to_owned());
    for (name, field) in fields {
        maps(field, &format!("{path}.{name}"), found);
    }
}

#[test]
fn kubectl_explains_every_field() {
    let Some(api) = api() else {
        return;
    };
    let mut explained = 0;
    for kind in ["etcdclusters", "etcdbackups", "etcdrestores"] {
        let crd = api.json(&["get", "crd", &format!("{kind}.etcd.edge-operator.io")]);
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
        let mut paths = Vec::new();
        for part in ["spec", "status"] {
            maps(&schema[part], &format!("{kind}.{part}"), &mut paths);
        }
        for path in paths {
            let text = api.kubectl(&["explain", &path]).good();
            assert!(!text.contains("<no description>"), "{path}: {text}");
            assert!(text.contains("FIELDS:"), "{path}: {text}");
            explained += 1;
        }
    }
    assert!(explained > 25, "{explained}");
    let text = api.kubectl(&["explain", "etcdcluster.spec.size"]).good();
    assert!(text.contains("0 stops etcd and keeps data"), "{text}");
}

#[test]
fn kubectl_lists_waits_and_scales() {
    let Some(api) = api() else {
        return;
    };
    api.apply(&cluster("default", "edge", &json!({})));
    let status = json!({"status": {
        "ready": "1/1",
        "readyMembers": 1,
        "version": "3.6.16",
        "conditions": [{
            "type": "Available", "status": "True", "reason": "Serving", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }],
        "backups": {
            "count": 1, "bytes": 1, "queued": 0, "queuedBytes": 0,
            "lastVerified": {"revision": 5, "level": 3, "size": 1, "created": "2026-01-01T00:00:00Z"},
        },
        "plan": {"hold": "Paused"},
        "observedGeneration": 1,
    }});
    api.kubectl(&[
        "patch",
        "etcd",
        "edge",
        "--subresource=status",
        "--type=merge",
        "-p",
        &status.to_string(),
    ])
    .good();
    let table = api.kubectl(&["get", "etcd"]).good();
    let words: Vec<Vec<&str>> = table
        .lines()
        .map(|it| it.split_whitespace().collect())
        .collect();
    let heads = [
        "NAME",
        "READY",
        "VERSION",
        "AVAILABLE",
        "BACKUP",
        "HOLD",
        "AGE",
    ];
    assert_eq!(words[0], heads, "{table}");
    assert_eq!(words[1][..4], ["edge", "1/1", "3.6.16", "True"], "{table}");
    assert!(
        words[1][4].ends_with('d') && words[1][5] == "Paused",
        "{table}"
    );
    let all = api.kubectl(&["get", "etcd-operator", "-o", "name"]).good();
    assert_eq!(
        all, "etcdcluster.etcd.edge-operator.io/edge\n",
        "by category"
    );
    api.kubectl(&[
        "wait",
        "--for=condition=Available",
        "etcd/edge",
        "--timeout=5s",
    ])
    .good();
    let other = [
        "wait",
        "--for=condition=Degraded",
        "etcd/edge",
        "--timeout=1s",
    ];
    assert!(!api.kubectl(&other).ok);
    let path = "/apis/etcd.edge-operator.io/v1alpha1/namespaces/default/etcdclusters/edge/scale";
    let scale = api.kubectl(&["get", "--raw", path]).good();
    let scale: Value = serde_json::from_str(&scale).unwrap();
    assert_eq!(
        (&scale["spec"]["replicas"], &scale["status"]["replicas"]),
        (&json!(1), &json!(1))
    );
    api.kubectl(&["scale", "etcd/edge", "--replicas=0"]).good();
    assert_eq!(api.json(&["get", "etcd", "edge"])["spec"]["size"], 0);
    api.kubectl(&["scale", "etcd/edge", "--replicas=3"]).good();
    let refused = api.kubectl(&["scale", "etcd/edge", "--replicas=4"]);
    assert!(
        !refused.ok && refused.stderr.contains("allowed are 0 (stopped"),
        "{}",
        refused.stderr
    );
}
