//! What is asked of the operator besides clusters, at an API server without nodes.

use serde_json::{Value, json};

use crate::lab::{Api, ApiOptions, SOON};
use crate::operated::pass;
use crate::operator::{self, Operator, cluster, namespace, object};

fn up() -> Option<(Api, crate::cluster::Access)> {
    if !operator::can() {
        return None;
    }
    let api = Api::up(&ApiOptions::default())?;
    let access = operator::install(&api);
    api.apply(&namespace("shop", &json!({})));
    Some((api, access))
}

fn status(api: &Api, kind: &str) -> Value {
    api.json(&["get", kind, "-n", "shop", "once"])["status"].clone()
}

/// One whose end were lost would be carried out again when its cluster comes back.
#[test]
fn a_request_that_has_ended_stays_ended_whatever_becomes_of_its_cluster() {
    let Some((api, access)) = up() else {
        return;
    };
    let requests = [
        ("EtcdBackup", json!({"cluster": "gone"})),
        (
            "EtcdRestore",
            json!({"cluster": "gone", "replaceData": "gone"}),
        ),
    ];
    for (kind, spec) in &requests {
        api.apply(&object(kind, "shop", "once", spec));
        let ended = json!({"status": {"phase": "Succeeded", "snapshot": "s", "completed": "2026-01-01T00:00:00Z"}});
        let ended = ended.to_string();
        let patch = ["patch", kind, "-n", "shop", "once", "--subresource=status"];
        let patch = [&patch[..], &["--type=merge", "-p", &ended]].concat();
        api.kubectl(&patch).good();
    }
    // Both when it begins to look, and when it is rung later; one that has not ended is told of.
    let waiting = object("EtcdBackup", "shop", "waits", &json!({"cluster": "gone"}));
    api.apply(&waiting);
    let operator = Operator::start(&access);
    let told = || {
        api.eventually("the one that waits to be told of", SOON, || {
            let it = api.try_json(&["get", "etcdbackup", "-n", "shop", "waits"])?;
            let text = it["status"]["message"].as_str()?.to_owned();
            text.contains("no EtcdCluster gone").then_some(())
        });
    };
    told();
    for (kind, _) in &requests {
        api.kubectl(&["label", kind, "-n", "shop", "once", "rung=yes"])
            .good();
    }
    api.kubectl(&["delete", "etcdbackup", "-n", "shop", "waits"])
        .good();
    api.apply(&waiting);
    told();
    for (kind, _) in &requests {
        let status = status(&api, kind);
        assert_eq!(status["phase"], "Succeeded", "{kind} {status}");
        assert_eq!(status["snapshot"], "s", "{kind} {status}");
    }
    drop(operator);
}

/// A namespace that takes clients, and has a Secret of that name which somebody else made; and one that
/// takes none.
#[test]
fn a_client_that_cannot_be_served_keeps_nothing_else_from_its_place() {
    let Some((api, access)) = up() else {
        return;
    };
    let label = json!({"etcd.edge-operator.io/accepts-clients-of": "shop"});
    api.apply(&namespace("tills", &label));
    api.apply(&namespace("closed", &json!({})));
    api.kubectl(&[
        "create",
        "secret",
        "generic",
        "-n",
        "tills",
        "one-client-app",
    ])
    .good();
    let operator = Operator::start(&access);
    let clients = json!({"clients": [
        {"name": "app", "namespace": "tills"},
        {"name": "other", "namespace": "closed"},
        {"name": "own"},
    ]});
    api.apply(&cluster("shop", "one", &clients));
    let pod = || {
        api.eventually("the member's Pod", SOON, || {
            let pod = api.try_json(&["get", "pod", "-n", "shop", "one-0"])?;
            let going = !pod["metadata"]["deletionTimestamp"].is_null();
            (!going).then(|| pod["metadata"]["uid"].clone())
        })
    };
    let first = pod();
    let told = api.eventually("the Secret to be told of", SOON, || {
        let it = api.try_json(&["get", "etcdcluster", "-n", "shop", "one"])?;
        let text = it["status"].to_string();
        (text.contains("one-client-app") && text.contains("the operator did not create it"))
            .then_some(text)
    });
    println!("{told}");
    api.eventually("the Secret of the one that can be served", SOON, || {
        api.try_json(&["get", "secret", "-n", "shop", "one-client-own"])
    });
    let delete = ["delete", "pod", "-n", "shop", "one-0", "--force"];
    api.kubectl(&delete).good();
    assert_ne!(pod(), first, "made again");
    // A namespace that takes no clients is not asked with each look.
    let since = api.mark();
    pass(30);
    let asked = api.requests("", since);
    let asked = asked
        .iter()
        .filter(|it| it.resource == "namespaces" && it.name == "closed");
    assert!(asked.count() <= 1);
    drop(operator);
}
