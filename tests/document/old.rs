//! Random documents of the first operator.

use serde_json::{Value, json};

use crate::random::Random;

pub const GROUP: &str = "etcd.database.coreos.com/v1beta2";

/// Its Pods, most of their fields sound.
fn pod(random: &mut Random) -> Value {
    let mut pod = json!({});
    let mut some = |field: &str, values: &[Value]| {
        if random.one_in(3) {
            pod[field] = random.pick(values);
        }
    };
    some(
        "labels",
        &[
            json!({"app": "till"}),
            json!({"a/b": "c"}),
            json!({"": 1}),
            json!({"app.kubernetes.io/x": 1, "app": "till", "topology.kubernetes.io/zone": "a"}),
        ],
    );
    some(
        "annotations",
        &[
            json!({"a": "b"}),
            json!({"etcd.version": "3.2.13"}),
            json!({"prometheus.io/scrape": true, "prometheus.io/port": 2379, "a": "b",
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}),
        ],
    );
    some("nodeSelector", &[json!({"disk": "flash"}), json!("flash")]);
    some("antiAffinity", &[json!(true), json!(false)]);
    some(
        "tolerations",
        &[
            json!([{"key": "edge", "operator": "Exists"}]),
            json!([{"operator": "Sometimes"}]),
        ],
    );
    some(
        "resources",
        &[
            json!({"requests": {"cpu": 1, "memory": "1Gi"}}),
            json!({"limits": {"memory": "1GB"}}),
        ],
    );
    some(
        "etcdEnv",
        &[
            json!([{"name": "ETCD_SNAPSHOT_COUNT", "value": "5000"}]),
            json!([{"name": "ETCD_HEARTBEAT_INTERVAL", "value": "0"}]),
            json!([{"name": "X"}]),
        ],
    );
    some(
        "persistentVolumeClaimSpec",
        &[
            json!({"resources": {"requests": {"storage": "1Gi"}}}),
            json!({"accessModes": ["ReadWriteOnce"]}),
            json!({"storageClassName": 4}),
        ],
    );
    some("securityContext", &[json!({"fsGroup": 1})]);
    some("ClusterDomain", &[json!("edge.local"), json!("-")]);
    some("affinity", &[json!({"nodeAffinity": {}}), json!([])]);
    pod
}

fn cluster(random: &mut Random) -> Value {
    let mut spec = json!({"pod": pod(random)});
    for (field, values) in [
        (
            "size",
            &[json!(1), json!(2), json!(3), json!(5), json!(8), json!("3")][..],
        ),
        (
            "version",
            &[
                json!("3.2.13"),
                json!("v3.5.33"),
                json!("3.6.16"),
                json!("latest"),
            ],
        ),
        (
            "repository",
            &[
                json!("quay.io/coreos/etcd"),
                json!("registry.example/etcd"),
                json!("no image"),
            ],
        ),
        ("paused", &[json!(true), json!("yes, please")]),
        ("TLS", &[json!({"static": {"operatorSecret": "client"}})]),
    ] {
        if !random.one_in(3) {
            spec[field] = random.pick(values);
        }
    }
    let name = random.pick(&[
        "shop",
        "till",
        "Shop",
        "a-name-that-is-far-longer-than-fifty-characters-may-be",
    ]);
    json!({"apiVersion": GROUP, "kind": "EtcdCluster", "metadata": {"name": name}, "spec": spec})
}

/// An EtcdBackup, of this cluster or of none.
fn backup(random: &mut Random) -> Value {
    let mut spec = json!({
        "etcdEndpoints": random.pick(&[json!(["http://shop-client:2379"]), json!(["https://till-client.default.svc:2379"]), json!(["http://10.0.0.1:2379"]), json!([])]),
        "storageType": random.pick(&["S3", "S3", "S3", "GCS", "ABS", "OSS", "Tape"]),
    });
    let s3 = [
        json!({"path": "edge/etcd.backup", "awsSecret": "aws"}),
        json!({"path": "edge/shops/a/etcd.backup", "awsSecret": "aws", "endpoint": "https://s3.example.com", "forcePathStyle": true}),
        json!({"path": "Edge", "awsSecret": "AWS", "endpoint": "s3"}),
    ];
    for (field, values) in [
        ("s3", &s3[..]),
        (
            "backupPolicy",
            &[
                json!({"backupIntervalInSecond": 3600, "maxBackups": 5}),
                json!({"backupIntervalInSecond": 0, "maxBackups": 0}),
                json!({"backupIntervalInSecond": 1, "timeoutInSecond": 60}),
                json!({"maxBackups": "all"}),
            ],
        ),
        ("clientTLSSecret", &[json!("tls")]),
        ("gcs", &[json!({"path": "a/b"})]),
    ] {
        if random.one_in(2) {
            spec[field] = random.pick(values);
        }
    }
    json!({"apiVersion": GROUP, "kind": "EtcdBackup", "metadata": {"name": "b"}, "spec": spec})
}

/// An EtcdRestore of one of them.
fn restore(random: &mut Random) -> Value {
    let mut spec = json!({"etcdCluster": {"name": random.pick(&["shop", "till"])}});
    for (field, values) in [
        ("backupStorageType", &[json!("S3"), json!("Tape")][..]),
        (
            "s3",
            &[
                json!({"path": "edge/etcd.backup", "awsSecret": "aws"}),
                json!("edge"),
            ],
        ),
        ("gcs", &[json!({"path": "a/b", "gcpSecret": "gcp"})]),
        ("abs", &[json!({"path": "a/b", "absSecret": "abs"})]),
        ("oss", &[json!({"path": "a/b", "bucket": "a"})]),
        ("etcdClusterRef", &[json!({"name": "shop"})]),
    ] {
        if random.one_in(2) {
            spec[field] = random.pick(values);
        }
    }
    json!({"apiVersion": GROUP, "kind": "EtcdRestore", "metadata": {"name": "r"}, "spec": spec})
}

/// Something that nobody meant: a field mistyped, emptied, or of a fork, anywhere below the kind.
fn disturb(random: &mut Random, value: &mut Value) {
    let Some(fields) = value.as_object_mut() else {
        return;
    };
    let keys: Vec<String> = { fields.keys() }
        .filter(|it| !["apiVersion", "kind"].contains(&it.as_str()))
        .cloned()
        .collect();
    if keys.is_empty() || random.one_in(3) {
        fields.insert(
            "forked".to_owned(),
            random.pick(&[json!(1), json!({"a": 1}), json!({})]),
        );
        return;
    }
    let key = random.pick(&keys);
    match random.pick(&[0, 1, 2, 3, 4, 5]) {
        0 => fields[&key] = json!(null),
        1 => fields[&key] = json!({}),
        2 => {
            let value = fields.remove(&key).unwrap();
            fields.insert(format!("{key}s"), value);
        }
        _ => disturb(random, &mut fields[&key]),
    }
}

fn metadata(random: &mut Random, old: &mut Value) {
    for (field, values) in [
        (
            "labels",
            [json!({"app": "till"}), json!({"a": 1, "b": null})],
        ),
        (
            "annotations",
            [
                json!({"etcd.database.coreos.com/scope": "clusterwide", "a": "b"}),
                json!({"a": true}),
            ],
        ),
        ("generateName", [json!("shop-"), json!("")]),
    ] {
        if random.one_in(4) {
            old["metadata"][field] = random.pick(&values);
        }
    }
}

/// In no order of theirs.
pub fn one_of_each(random: &mut Random) -> [Value; 3] {
    let cluster = cluster(random);
    let mut all = [backup(random), cluster, restore(random)];
    for old in &mut all {
        metadata(random, old);
        if random.one_in(2) {
            disturb(random, old);
        }
    }
    all
}
