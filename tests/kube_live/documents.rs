//! Documents at a real API server: what it takes and refuses is what the host's parser takes and
//! refuses, and it names the field.

use etcd_operator::api::requests::{ACKNOWLEDGED, IMMUTABLE};
use etcd_operator::api::rules::{LASTING, OF_A_HOST, RULES, Rule};
use etcd_operator::document;
use etcd_operator::document::v1beta2::convert;
use etcd_operator::plan::version::hop;
use serde_json::{Value, json};

use crate::cluster::Output;
use crate::lab::{Api, ApiOptions};
use crate::old::one_of_each;
use crate::operator::{cluster, deployed, object};
use crate::random::Random;

/// An API server that knows the types, and has published what they are made of: that comes a moment
/// after it serves them.
pub fn api() -> Option<Api> {
    let api = Api::up(&ApiOptions::default())?;
    api.apply(&deployed("crds.yaml"));
    for kind in ["etcdclusters", "etcdbackups", "etcdrestores"] {
        let name = format!("crd/{kind}.etcd.edge-operator.io");
        api.kubectl(&[
            "wait",
            "--for=condition=Established",
            "--timeout=60s",
            &name,
        ])
        .good();
        api.eventually("the type to be served", crate::lab::SOON, || {
            api.kubectl(&["get", kind]).ok.then_some(())
        });
        api.eventually("the type to be explained", crate::lab::SOON, || {
            api.kubectl(&["explain", kind]).ok.then_some(())
        });
    }
    Some(api)
}

/// The server's verdict; nothing is made.
fn asked(api: &Api, text: &str) -> Output {
    api.admin()
        .with_input(&["create", "--dry-run=server"], text)
}

fn local() -> Value {
    json!({"local": {}})
}

fn s3() -> Value {
    json!({"s3": {"bucket": "edge"}})
}

fn other_s3() -> Value {
    json!({"s3": {"bucket": "edge", "prefix": "other"}})
}

fn backup(destinations: &[Value]) -> Value {
    json!({"backup": {"destinations": destinations}})
}

/// For each rule, in its order: a spec that keeps it, and one that breaks it.
fn table() -> Vec<(Value, Value)> {
    vec![
        (json!({"size": 0}), json!({"size": 2})),
        (
            json!({"size": 1, "version": "3.5.33"}),
            json!({"size": 3, "version": "3.5.33"}),
        ),
        (
            json!({"network": {"clientPort": 3379, "peerPort": 3380}}),
            json!({"network": {"clientPort": 2380}}),
        ),
        (
            json!({"options": {"heartbeatMilliseconds": 100, "electionMilliseconds": 500}}),
            json!({"options": {"heartbeatMilliseconds": 200, "electionMilliseconds": 999}}),
        ),
        (
            json!({"options": {"heartbeatMilliseconds": 500, "electionMilliseconds": 5000}}),
            json!({"options": {"heartbeatMilliseconds": 100}}),
        ),
        (
            json!({"storage": {"quota": "16Mi"}}),
            json!({"storage": {"quota": "15Mi"}}),
        ),
        (
            json!({"options": {"maxRequestSize": "10Mi"}}),
            json!({"options": {"maxRequestSize": "11Mi"}}),
        ),
        (
            json!({"options": {"memoryLimit": "64Mi"}}),
            json!({"options": {"memoryLimit": "63Mi"}}),
        ),
        (
            json!({"storage": {"volumeClaim": {"size": "1Gi"}}}),
            json!({"storage": {"path": "/x", "volumeClaim": {"size": "1Gi"}}}),
        ),
        (
            json!({"clients": [{"name": "a"}, {"name": "b"}]}),
            json!({"clients": [{"name": "a"}, {"name": "a", "namespace": "other"}]}),
        ),
        (
            json!({"clients": [{"name": "etcd-operators"}]}),
            json!({"clients": [{"name": "etcd-operator"}]}),
        ),
        (
            json!({"service": {"type": "NodePort", "nodePort": 31379}}),
            json!({"service": {"nodePort": 31379}}),
        ),
        (
            json!({"service": {"type": "LoadBalancer", "loadBalancerClass": "a.io/b"}}),
            json!({"service": {"type": "NodePort", "loadBalancerClass": "a.io/b"}}),
        ),
        (
            json!({"storage": {"quota": "1Gi"}}),
            json!({"storage": {"memory": {"sizeLimit": "64Mi"}}}),
        ),
        (
            json!({"tls": {"mode": "managed"}}),
            json!({"tls": {"mode": "disabledInsecure"}}),
        ),
        (
            json!({"tls": {}}),
            json!({"tls": {"secretRefs": {"server": "a", "peer": "b", "operator": "c"}}}),
        ),
        (
            json!({"backup": {"interval": "6h", "destinations": [local()]}}),
            json!({"backup": {"interval": "6h", "schedule": "0 3 * * *", "destinations": [local()]}}),
        ),
        (
            backup(&[local(), s3()]),
            backup(&[local(), json!({"local": {}, "s3": {"bucket": "edge"}})]),
        ),
        (
            backup(&[json!({"local": {"claim": {"size": "1Gi"}}}), s3()]),
            backup(&[json!({"local": {"claimName": "snapshots", "claim": {"size": "1Gi"}}})]),
        ),
        (
            backup(&[json!({"local": {"claimName": "snapshots"}}), s3()]),
            backup(&[s3()]),
        ),
        (
            backup(&[local(), s3(), other_s3()]),
            backup(&[local(), s3(), s3()]),
        ),
        (
            json!({"bootstrap": {"from": "latest"}, "backup": {"destinations": [local()]}}),
            json!({"bootstrap": {"from": "latest"}}),
        ),
        (
            json!({"recovery": {"singleMember": "restoreLatestVerified"}, "backup": {"destinations": [local()]}}),
            json!({"recovery": {"singleMember": "restoreLatestVerified"}}),
        ),
        (
            json!({"maintenance": {"onNoSpace": "hold"}}),
            json!({"maintenance": {"defragment": {"fragmentationPercent": 50, "minimumSize": "100Mi"}}}),
        ),
        (
            json!({"maintenance": {"windows": []}}),
            json!({"maintenance": {"windows": [{"schedule": "0 3 * * 0", "minutes": 60}]}}),
        ),
        (
            json!({"hosts": []}),
            json!({"hosts": [{"name": "a", "address": "10.0.0.1"}]}),
        ),
    ]
}

#[test]
fn each_rule_takes_and_refuses_what_the_hosts_parser_takes_and_refuses() {
    let Some(api) = api() else {
        return;
    };
    let table = table();
    assert_eq!(table.len(), RULES.len(), "a row for each rule");
    for (rule, (kept, broken)) in RULES.iter().zip(&table) {
        let text = cluster("default", "edge", kept);
        let answer = asked(&api, &text);
        assert!(answer.ok, "{text}: {}", answer.stderr);
        document::parse(text.as_bytes()).unwrap_or_else(|it| panic!("{text}: {it}"));
        let text = cluster("default", "edge", broken);
        refused(&api, &text, rule);
        let problems = document::parse(text.as_bytes()).unwrap_err().to_string();
        assert!(
            problems.contains(&format!("spec.{}", rule.path)) && problems.contains(rule.message),
            "{text}: not {} but {problems}",
            rule.message
        );
    }
}

/// The server says so in the words of the rule.
#[track_caller]
fn refused(api: &Api, text: &str, rule: &Rule) {
    let answer = asked(api, text);
    let said = format!("spec.{}: {}", rule.path, rule.message);
    assert!(
        !answer.ok && answer.stderr.contains(&said),
        "{text}: not {said} but {}{}",
        answer.stdout,
        answer.stderr
    );
}

/// A document with a field of a host is good there, and names what to use instead here.
#[test]
fn a_field_of_a_host_is_refused_with_what_to_use_instead() {
    let Some(api) = api() else {
        return;
    };
    let directory = json!({"local": {"path": "/mnt/usb"}});
    let table = [
        json!({"storage": {"path": "/mnt/etcd"}}),
        backup(std::slice::from_ref(&directory)),
        backup(&[local(), directory]),
        backup(&[
            local(),
            json!({"s3": {"bucket": "edge", "credentials": "/etc/keys"}}),
        ]),
        json!({"bootstrap": {"from": "/mnt/usb/edge/old.db.zst"}}),
    ];
    assert_eq!(table.len(), OF_A_HOST.len(), "a row for each rule");
    for (rule, spec) in OF_A_HOST.iter().zip(&table) {
        let text = cluster("default", "edge", spec);
        document::parse(text.as_bytes()).unwrap_or_else(|it| panic!("{text}: {it}"));
        refused(&api, &text, rule);
    }
}

/// A field, and a document whose mistake the schema alone finds there.
fn mistakes() -> Vec<(&'static str, Value)> {
    vec![
        ("spec.size", json!({"size": 9})),
        ("spec.size", json!({"size": -1})),
        ("spec.size", json!({"size": "1"})),
        ("spec.version", json!({"version": "latest"})),
        ("spec.profile", json!({"profile": "egde"})),
        ("spec.paused", json!({"paused": "maybe"})),
        ("spec.clients", json!({"clients": {"name": "a"}})),
        ("spec.clients[0].name", json!({"clients": [{"name": "A"}]})),
        ("spec.storage.quota", json!({"storage": {"quota": "512MB"}})),
        (
            "spec.storage.path",
            json!({"storage": {"path": "relative"}}),
        ),
        (
            "spec.network.peerPort",
            json!({"network": {"peerPort": 70000}}),
        ),
        (
            "spec.options.logLevel",
            json!({"options": {"logLevel": "trace"}}),
        ),
        ("spec.deletionPolicy", json!({"deletionPolicy": "retain"})),
        ("spec.backup.destinations", json!({"backup": {}})),
        ("spec.backup.destinations", backup(&[])),
        (
            "spec.backup.schedule",
            json!({"backup": {"schedule": "daily", "destinations": [local()]}}),
        ),
        (
            "spec.backup.destinations[0].local.path",
            backup(&[json!({"local": {"path": "x"}})]),
        ),
        (
            "spec.backup.destinations[0].local.keep",
            backup(&[json!({"local": {"path": "/x", "keep": 0}})]),
        ),
        (
            "spec.backup.destinations[1].s3.bucket",
            backup(&[local(), json!({"s3": {"bucket": "E"}})]),
        ),
        ("spec.sise", json!({"sise": 1})),
        ("spec.storage.pth", json!({"storage": {"pth": "/x"}})),
    ]
}

#[test]
fn mistakes_of_form_are_refused_by_both_and_name_the_field() {
    let Some(api) = api() else {
        return;
    };
    for (field, spec) in mistakes() {
        let text = cluster("default", "edge", &spec);
        let answer = asked(&api, &text);
        // A field that nobody knows is named without quotes by one of the server's two parsers.
        assert!(
            !answer.ok && answer.stderr.contains(field),
            "{text}: {}{}",
            answer.stdout,
            answer.stderr
        );
        let problems = document::parse(text.as_bytes()).unwrap_err();
        assert!(
            problems
                .0
                .iter()
                .any(|it| it.path.starts_with(field) || field.starts_with(&it.path)),
            "{text}: {problems}"
        );
    }
    let (longest, longer) = ("e".repeat(50), "e".repeat(51));
    for (name, taken) in [
        ("e", true),
        ("edge-1", true),
        (&longest, true),
        (&longer, false),
        ("e.e", false),
        ("E", false),
        ("-e", false),
    ] {
        let text = cluster("default", name, &json!({}));
        let answer = asked(&api, &text);
        assert_eq!(answer.ok, taken, "{name}: {}", answer.stderr);
        assert!(
            taken || answer.stderr.contains("metadata.name"),
            "{}",
            answer.stderr
        );
        assert_eq!(document::parse(text.as_bytes()).is_ok(), taken, "{name}");
    }
}

#[test]
fn requests_are_checked_and_never_changed() {
    let Some(api) = api() else {
        return;
    };
    for (kind, field, spec) in [
        ("EtcdBackup", "", json!({"cluster": "edge"})),
        ("EtcdBackup", "", json!({"cluster": "edge", "ttlHours": 1})),
        (
            "EtcdBackup",
            "",
            json!({"cluster": "edge", "ttlHours": 8760}),
        ),
        ("EtcdBackup", "spec.cluster", json!({})),
        ("EtcdBackup", "spec.cluster", json!({"cluster": "Edge"})),
        (
            "EtcdBackup",
            "spec.cluster",
            json!({"cluster": "e".repeat(51)}),
        ),
        (
            "EtcdBackup",
            "spec.ttlHours",
            json!({"cluster": "edge", "ttlHours": 0}),
        ),
        (
            "EtcdBackup",
            "spec.ttlHours",
            json!({"cluster": "edge", "ttlHours": 8761}),
        ),
        (
            "EtcdBackup",
            "spec.ttl",
            json!({"cluster": "edge", "ttl": 1}),
        ),
        (
            "EtcdRestore",
            "",
            json!({"cluster": "edge", "into": "other"}),
        ),
        (
            "EtcdRestore",
            "",
            json!({"cluster": "edge", "replaceData": "edge"}),
        ),
        (
            "EtcdRestore",
            "",
            json!({"cluster": "edge", "into": "other", "from": "edge-0-20260101T000000Z-r5-00000001"}),
        ),
        ("EtcdRestore", ACKNOWLEDGED.1, json!({"cluster": "edge"})),
        (
            "EtcdRestore",
            ACKNOWLEDGED.1,
            json!({"cluster": "edge", "into": "other", "replaceData": "edge"}),
        ),
        (
            "EtcdRestore",
            ACKNOWLEDGED.1,
            json!({"cluster": "edge", "replaceData": "egde"}),
        ),
        (
            "EtcdRestore",
            ACKNOWLEDGED.1,
            json!({"cluster": "edge", "into": "edge"}),
        ),
        ("EtcdRestore", "spec.cluster", json!({"into": "other"})),
        (
            "EtcdRestore",
            "spec.from",
            json!({"cluster": "edge", "into": "other", "from": ""}),
        ),
        (
            "EtcdRestore",
            "spec.from",
            json!({"cluster": "edge", "into": "other", "from": "../x"}),
        ),
        (
            "EtcdRestore",
            "spec.into",
            json!({"cluster": "edge", "into": "Other"}),
        ),
    ] {
        let text = object(kind, "default", "once", &spec);
        let answer = asked(&api, &text);
        assert_eq!(answer.ok, field.is_empty(), "{text}: {}", answer.stderr);
        assert!(
            answer.ok || answer.stderr.contains(field),
            "{text}: {}",
            answer.stderr
        );
    }
    for (kind, spec, change) in [
        (
            "EtcdBackup",
            json!({"cluster": "edge"}),
            json!({"spec": {"ttlHours": 2}}),
        ),
        (
            "EtcdRestore",
            json!({"cluster": "edge", "into": "other"}),
            json!({"spec": {"into": "another"}}),
        ),
    ] {
        api.apply(&object(kind, "default", "once", &spec));
        let change = change.to_string();
        let changed = api.kubectl(&["patch", kind, "once", "--type=merge", "-p", &change]);
        assert!(
            !changed.ok && changed.stderr.contains(IMMUTABLE.1),
            "{}",
            changed.stderr
        );
        let labelled = api.kubectl(&["label", kind, "once", "kept=yes"]);
        assert!(labelled.ok, "only spec is fixed: {}", labelled.stderr);
    }
}

/// What is asked for first, a change of it that is refused, and one that is taken.
#[test]
fn what_a_cluster_is_made_with_is_kept() {
    let Some(api) = api() else {
        return;
    };
    let table = [
        (
            json!({}),
            json!({"deletionPolicy": "Delete"}),
            json!({"deletionPolicy": "Retain"}),
        ),
        (
            json!({"storage": {"volumeClaim": {"size": "2Gi"}}}),
            json!({"storage": {"volumeClaim": {"size": "1024Mi"}}}),
            json!({"storage": {"volumeClaim": {"size": "3Gi"}}}),
        ),
        // It has not served yet: its class may be corrected.
        (
            json!({"storage": {"volumeClaim": {"size": "2Gi"}}}),
            json!({"storage": {"volumeClaim": {"size": "1Gi"}}}),
            json!({"storage": {"volumeClaim": {"storageClassName": "a"}}}),
        ),
    ];
    for (index, (first, refused, taken)) in table.iter().enumerate() {
        let name = format!("edge{index}");
        api.apply(&object("EtcdCluster", "default", &name, first));
        let change = |it: &Value| {
            let it = json!({"spec": it}).to_string();
            api.kubectl(&["patch", "etcdcluster", &name, "--type=merge", "-p", &it])
        };
        let answer = change(refused);
        let told = LASTING.iter().any(|it| answer.stderr.contains(it.2));
        assert!(!answer.ok && told, "{refused}: {}", answer.stderr);
        let answer = change(taken);
        assert!(answer.ok, "{taken}: {}", answer.stderr);
    }
}

/// The API server says of each edit of a living cluster's version what the plan says; but which versions lose data, or are
/// not known, only the plan knows.
#[test]
fn a_version_that_cannot_follow_is_refused_at_once() {
    let Some(api) = api() else {
        return;
    };
    let versions = [
        "3.5.31", "3.5.32", "3.6.10", "3.6.11", "3.6.16", "3.7.0", "3.7.3",
    ];
    let patch = |more: &[&str], it: Value| {
        let it = it.to_string();
        let basic = ["patch", "etcdcluster", "edge", "--type=merge", "-p", &it];
        api.kubectl(&[&basic, more].concat())
    };
    let spec = json!({"version": versions[0]});
    api.apply(&object("EtcdCluster", "default", "edge", &spec));
    let parsed = |it: &str| it.parse().unwrap();
    let status = |it: Value| patch(&["--subresource=status"], json!({"status": it}));
    let mut refused = 0;
    for from in versions {
        status(json!({"version": null})).good();
        patch(&[], json!({"spec": {"version": from}})).good();
        status(json!({"version": from, "clusterID": "1"})).good();
        for to in versions.into_iter().filter(|it| *it != from) {
            let answer = patch(&["--dry-run=server"], json!({"spec": {"version": to}}));
            let allowed = hop(parsed(from), parsed(to)).is_ok();
            assert_eq!(answer.ok, allowed, "{from} -> {to}: {}", answer.stderr);
            if !allowed {
                refused += 1;
                let words = format!("etcd {to} cannot follow etcd {from}");
                assert!(answer.stderr.contains(&words), "{}", answer.stderr);
            }
        }
        // Anything else may be edited, whatever waits.
        patch(&[], json!({"spec": {"paused": true}})).good();
    }
    assert!(refused > 10, "{refused}");
    // A cluster that has never served has no data that a version could not open.
    status(json!({"version": "3.7.3", "clusterID": null})).good();
    patch(&[], json!({"spec": {"version": "3.5.32"}})).good();
    status(json!({"version": "3.7.3", "clusterID": "1"})).good();
    patch(&[], json!({"spec": {"paused": false}})).good();
}

/// What became of 200 pairs of the first operator's documents.
#[test]
fn a_real_server_takes_what_the_first_operators_documents_become() {
    let Some(api) = api() else {
        return;
    };
    let mut random = Random(200);
    let mut taken = 0;
    for number in 0..200 {
        let old = one_of_each(&mut random).map(|it| document::to_yaml(&it).unwrap());
        let old = old.join("---\n");
        let converted = convert(&old).unwrap();
        let ours: Vec<String> = { converted.documents.iter() }
            .map(|it| document::to_yaml(it).unwrap())
            .collect();
        if ours.is_empty() {
            continue;
        }
        let said = asked(&api, &ours.join("---\n"));
        assert!(said.ok, "{number}: {}\n{old}", said.stderr);
        taken += ours.len();
    }
    println!("{taken} documents");
    assert!(taken > 100, "{taken}");
}
