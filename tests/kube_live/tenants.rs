//! Whoever may make an EtcdCluster in one namespace reaches nothing of another one by it, nothing of the
//! node, and nothing that somebody else made.

use std::time::Duration;

use serde_json::{Value, json};

use crate::lab::{Api, ApiOptions, SOON};
use crate::operator::{self, Operator, USER, cluster, namespace};

pub fn up(controllers: bool) -> Option<(Api, Operator)> {
    if !operator::can() {
        return None;
    }
    let api = Api::up(&ApiOptions {
        controllers,
        ..ApiOptions::default()
    })?;
    let access = operator::install(&api);
    let operator = Operator::start(&access);
    Some((api, operator))
}

pub fn status(api: &Api, namespace: &str, name: &str) -> Value {
    let it = api.try_json(&["get", "etcdcluster", name, "-n", namespace]);
    it.map_or(Value::Null, |it| it["status"].clone())
}

/// Waits until the status says this of a cluster.
#[track_caller]
pub fn says(api: &Api, namespace: &str, name: &str, words: &str) {
    api.eventually(&format!("{namespace}/{name} to say {words}"), SOON, || {
        status(api, namespace, name)
            .to_string()
            .contains(words)
            .then_some(())
    });
}

/// Everything in a namespace that the operator made.
pub fn ours(api: &Api, namespace: &str) -> String {
    let kinds = "pods,services,secrets,persistentvolumeclaims,networkpolicies,configmaps";
    let label = "app.kubernetes.io/managed-by=etcd-operator";
    api.kubectl(&["get", kinds, "-n", namespace, "-l", label, "-o", "name"])
        .good()
}

fn local(path: &str) -> Value {
    json!({"backup": {"destinations": [{"local": {"path": path}}]}})
}

fn beside(more: &Value) -> Value {
    json!({"backup": {"destinations": [{"local": {}}, more]}})
}

/// A server whose CRD is of before the rules: the operator refuses the same.
#[test]
fn a_path_of_a_node_is_refused_and_nothing_is_made() {
    let Some((api, operator)) = up(false) else {
        return;
    };
    api.apply(&namespace("shop", &json!({})));
    let rules = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/x-kubernetes-validations";
    let without = json!([{"op": "remove", "path": rules}]).to_string();
    let crd = ["patch", "crd", "etcdclusters.etcd.edge-operator.io"];
    let mut patch = crd.to_vec();
    patch.extend(["--type=json", "-p", &without]);
    api.kubectl(&patch).good();
    let s3 = |field: &str| {
        let mut bucket = json!({"bucket": "edge"});
        bucket[field] = json!("/etc/ssl/own");
        beside(&json!({"s3": bucket}))
    };
    let asked = [
        json!({"storage": {"path": "/etc"}}),
        json!({"storage": {"path": "/var/lib/etcd-operator/shop/t1"}}),
        local("/var/lib/rancher/k3s/server"),
        beside(&json!({"local": {"path": "/mnt/usb"}})),
        s3("caFile"),
        s3("credentials"),
        json!({"bootstrap": {"from": "/etc/shadow"}}),
    ];
    for (index, spec) in asked.iter().enumerate() {
        let text = cluster("shop", &format!("t{index}"), spec);
        api.eventually("the server to know no rule", SOON, || {
            api.try_apply(&text).ok.then_some(())
        });
    }
    for (index, spec) in asked.iter().enumerate() {
        let name = format!("t{index}");
        says(&api, "shop", &name, "SpecInvalid");
        let told = status(&api, "shop", &name);
        let conditions = told["conditions"].as_array().unwrap();
        let of = |kind: &str| conditions.iter().find(|it| it["type"] == kind).unwrap();
        assert_eq!(of("DocumentAccepted")["status"], "False", "{spec}: {told}");
        let message = of("Degraded")["message"].as_str().unwrap();
        assert!(message.contains("in Kubernetes"), "{spec}: {message}");
    }
    assert_eq!(ours(&api, "shop"), "");
    api.apply(&cluster("shop", "good", &json!({})));
    let pod = ["get", "pod", "-n", "shop", "good-0"];
    api.eventually("the Pod", SOON, || api.try_json(&pod));
    // Nor does one come in with an edit: what is made next is of the document before.
    let mut edited = local("/mnt/usb");
    edited["image"] = json!("localhost/own:1");
    api.apply(&cluster("shop", "good", &edited));
    says(&api, "shop", "good", "SpecInvalid");
    api.kubectl(&["delete", "pod", "-n", "shop", "good-0", "--force"])
        .good();
    let again = api.eventually("the next Pod", SOON, || api.try_json(&pod));
    let text = again["spec"].to_string();
    assert!(
        !text.contains("hostPath") && !text.contains("localhost/own"),
        "{text}"
    );
    let node = operator.path("/var/lib/etcd-operator");
    assert!(!node.exists(), "nothing on the node");
}

#[test]
fn what_has_our_name_and_is_not_ours_is_left_as_it_is_and_told() {
    let Some((api, operator)) = up(false) else {
        return;
    };
    let claim =
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let pod = json!({"containers": [{"name": "a", "image": "a"}]});
    let ports = json!({"ports": [{"port": 1}]});
    for (number, (kind, name, field, body)) in [
        (
            "Secret",
            "c-ca",
            "stringData",
            json!({"peer-ca.key": "mine"}),
        ),
        (
            "Secret",
            "c-member",
            "stringData",
            json!({"server.key": "mine"}),
        ),
        (
            "Secret",
            "c-client-admin",
            "stringData",
            json!({"tls.key": "mine"}),
        ),
        ("Service", "c-0", "spec", ports.clone()),
        ("Service", "c-client", "spec", ports),
        ("PersistentVolumeClaim", "data-c-0", "spec", claim),
        ("Pod", "c-0", "spec", pod),
    ]
    .into_iter()
    .enumerate()
    {
        let space = format!("n{number}");
        api.apply(&namespace(&space, &json!({})));
        let mut foreign = json!({
            "apiVersion": "v1",
            "kind": kind,
            "metadata": {"name": name, "namespace": space},
        });
        foreign[field] = body;
        api.apply(&foreign.to_string());
        let before = api.json(&["get", kind, "-n", &space, name]);
        api.apply(&cluster(&space, "c", &json!({})));
        let kind_and_name = format!("{kind} {name}");
        let words = format!("{kind_and_name} exists, and the operator did not create it");
        says(&api, &space, "c", &words);
        let reason = api.eventually("an Event", SOON, || {
            let events = api.events(&space);
            events
                .into_iter()
                .find(|(why, text)| why == "NotOurs" && text.contains(&words))
        });
        std::thread::sleep(Duration::from_secs(3));
        let after = api.json(&["get", kind, "-n", &space, name]);
        assert_eq!(before, after, "byte for byte");
        println!("{kind} {name}: {}: {}", reason.0, reason.1);
        // Once the other has gone it goes on. Nobody here lets go of a claim that is protected.
        let free = r#"{"metadata": {"finalizers": null}}"#;
        let patch = [
            "patch",
            kind,
            "-n",
            &space,
            name,
            "--type=merge",
            "-p",
            free,
        ];
        api.kubectl(&patch).good();
        let remove = [
            "delete",
            kind,
            "-n",
            &space,
            name,
            "--grace-period=0",
            "--force",
        ];
        api.kubectl(&remove).good();
        api.eventually(&format!("the Pod, {kind_and_name} gone"), SOON, || {
            let pod = api.try_json(&["get", "pod", "-n", &space, "c-0"])?;
            (pod["metadata"]["labels"]["etcd.edge-operator.io/cluster"] == "c").then_some(())
        });
        api.kubectl(&["delete", "etcdcluster", "-n", &space, "c"])
            .good();
    }
    drop(operator);
}

#[test]
fn two_clusters_whose_objects_would_have_one_name_do_not_take_each_others() {
    let Some((api, operator)) = up(false) else {
        return;
    };
    let pod = |name: &str| {
        api.eventually("the Pod", SOON, || api.try_json(&["get", "pod", name]));
    };
    // The clients' Service of c is called like another cluster, none of whose objects is.
    api.apply(&cluster("default", "c", &json!({})));
    pod("c-0");
    let before = api.json(&["get", "service", "c-client"]);
    api.apply(&cluster("default", "c-client", &json!({})));
    pod("c-client-0");
    // The CA of d-client-x and what the client x-ca of d gets.
    api.apply(&cluster("default", "d-client-x", &json!({})));
    pod("d-client-x-0");
    let authority = api.json(&["get", "secret", "d-client-x-ca"]);
    let clients = json!({"clients": [{"name": "x-ca"}]});
    api.apply(&cluster("default", "d", &clients));
    says(
        &api,
        "default",
        "d",
        "Secret d-client-x-ca exists, and the operator did not create it",
    );
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(before, api.json(&["get", "service", "c-client"]));
    assert_eq!(authority, api.json(&["get", "secret", "d-client-x-ca"]));
    drop(operator);
}

#[test]
fn a_clients_secret_goes_only_where_it_is_welcome_and_over_nothing() {
    let Some((api, operator)) = up(false) else {
        return;
    };
    let shop =
        |client: &str, space: &str| json!({"clients": [{"name": client, "namespace": space}]});
    api.apply(&namespace("shop", &json!({})));
    let accepts = |of: &str| json!({"etcd.edge-operator.io/accepts-clients-of": of});
    for (space, labels) in [
        ("closed", json!({})),
        ("of-others", accepts("bank")),
        ("open", accepts("shop")),
        ("taken", accepts("shop")),
    ] {
        api.apply(&namespace(space, &labels));
    }
    for space in ["closed", "of-others", "nowhere"] {
        let name = format!("to-{space}");
        api.apply(&cluster("shop", &name, &shop("till", space)));
        let told = api.eventually("an Event", SOON, || {
            let mut events = api.events("shop").into_iter();
            events.find(|(why, text)| why == "ClientNotAccepted" && text.contains(space))
        });
        assert!(told.1.contains("accepts-clients-of=shop"), "{}", told.1);
        let pod = format!("{name}-0");
        api.eventually("its Pod", SOON, || {
            api.try_json(&["get", "pod", "-n", "shop", &pod])
        });
        assert_eq!(ours(&api, space), "", "{space}");
    }
    api.apply(&cluster("shop", "c", &shop("till", "open")));
    let secret = ["get", "secret", "-n", "open", "c-client-till"];
    let made = api.eventually("the Secret", SOON, || api.try_json(&secret));
    assert_eq!(made["type"], "kubernetes.io/tls");
    for key in ["tls.crt", "tls.key", "ca.crt"] {
        assert!(made["data"][key].as_str().unwrap().len() > 100, "{key}");
    }
    let keys: Vec<&String> = made["data"].as_object().unwrap().keys().collect();
    assert_eq!(keys.len(), 4, "with the address: {keys:?}");
    // A foreign one stays.
    api.apply("{apiVersion: v1, kind: Secret, metadata: {name: d-client-till, namespace: taken}, stringData: {a: b}}");
    let before = api.json(&["get", "secret", "-n", "taken", "d-client-till"]);
    api.apply(&cluster("shop", "d", &shop("till", "taken")));
    says(
        &api,
        "shop",
        "d",
        "Secret d-client-till exists, and the operator did not create it",
    );
    let after = api.json(&["get", "secret", "-n", "taken", "d-client-till"]);
    assert_eq!(before, after);
    // Nor does it read Secrets that it has no business with.
    api.apply("{apiVersion: v1, kind: Secret, metadata: {name: private, namespace: shop}, stringData: {a: b}}");
    let (begin, log) = (api.mark(), operator.said());
    api.kubectl(&[
        "label",
        "ns",
        "closed",
        "etcd.edge-operator.io/accepts-clients-of=shop",
    ])
    .good();
    api.eventually("the Secret, now that it is welcome", SOON, || {
        api.try_json(&["get", "secret", "-n", "closed", "to-closed-client-till"])
    });
    let reads = api
        .requests("", begin)
        .into_iter()
        .filter(|it| it.user == USER);
    let others: Vec<String> = reads
        .filter(|it| it.resource == "secrets" && it.name == "private")
        .map(|it| it.verb)
        .collect();
    assert!(others.is_empty(), "{others:?} {log}");
}

#[test]
fn a_namespace_that_ends_is_told_once_and_is_no_flood_of_requests() {
    let Some((api, operator)) = up(true) else {
        return;
    };
    api.apply(&namespace("brief", &json!({})));
    api.apply(&cluster("brief", "c", &json!({})));
    api.eventually("the Pod", SOON, || {
        api.try_json(&["get", "pod", "-n", "brief", "c-0"])
    });
    // Something in it is not let go, so that it goes on ending, the cluster with it.
    let keep = r#"{"metadata": {"finalizers": ["example.com/kept"]}}"#;
    for it in ["configmap/kube-root-ca.crt", "etcdcluster/c"] {
        api.kubectl(&["patch", it, "-n", "brief", "--type=merge", "-p", keep])
            .good();
    }
    let mark = api.mark();
    api.kubectl(&["delete", "namespace", "brief", "--wait=false"])
        .good();
    api.eventually("the Pod to go", SOON, || {
        (!api.kubectl(&["get", "pod", "-n", "brief", "c-0"]).ok).then_some(())
    });
    std::thread::sleep(Duration::from_secs(20));
    let sent: Vec<String> = api
        .requests("", mark)
        .into_iter()
        .filter(|it| it.user == USER && it.namespace == "brief")
        .map(|it| format!("{} {} {}", it.verb, it.resource, it.code))
        .collect();
    println!("{} requests while the namespace ended", sent.len());
    assert!(sent.len() < 30, "{} requests: {sent:#?}", sent.len());
    let said = operator.said();
    let words = said.lines().filter(|it| it.contains("being terminated"));
    assert!(words.count() <= 4, "{said}");
    for it in ["configmap/kube-root-ca.crt", "etcdcluster/c"] {
        let free = r#"{"metadata": {"finalizers": null}}"#;
        let _ = api.kubectl(&["patch", it, "-n", "brief", "--type=merge", "-p", free]);
    }
    api.eventually("the namespace to go", SOON, || {
        (!api.kubectl(&["get", "ns", "brief"]).ok).then_some(())
    });
}

#[test]
fn a_member_that_a_namespace_does_not_take_any_more_is_told_once_and_asked_for_slowly() {
    // Without controllers nothing in the namespace goes, and nothing new is taken.
    let Some((api, operator)) = up(false) else {
        return;
    };
    api.apply(&namespace("brief", &json!({})));
    api.apply(&cluster("brief", "c", &json!({})));
    api.eventually("the Pod", SOON, || {
        api.try_json(&["get", "pod", "-n", "brief", "c-0"])
    });
    api.kubectl(&["delete", "namespace", "brief", "--wait=false"])
        .good();
    let remove = [
        "delete",
        "pod",
        "-n",
        "brief",
        "c-0",
        "--force",
        "--grace-period=0",
    ];
    api.kubectl(&remove).good();
    says(&api, "brief", "c", "NamespaceTerminating");
    let mark = api.mark();
    std::thread::sleep(Duration::from_secs(30));
    let sent = api.requests("", mark).into_iter();
    let sent: Vec<String> = sent
        .filter(|it| it.user == USER && it.namespace == "brief")
        .map(|it| format!("{} {} {}", it.verb, it.resource, it.code))
        .collect();
    println!("{} requests in 30 s of a namespace that ends", sent.len());
    assert!(sent.len() <= 30, "{sent:#?}");
    // Two conditions say so.
    let told = operator
        .said()
        .matches("reason=NamespaceTerminating")
        .count();
    assert!((1..=2).contains(&told), "{}", operator.said());
}

#[test]
fn one_mistake_after_the_other_is_an_event_each() {
    let Some((api, operator)) = up(false) else {
        return;
    };
    for image in ["one.example.com/etcd", "two.example.com/etcd"] {
        api.apply(&cluster("default", "c", &json!({"image": image})));
        api.eventually(&format!("an Event of {image}"), SOON, || {
            let mut events = api.events("default").into_iter();
            events.find(|(why, text)| why == "SpecInvalid" && text.contains(image))
        });
    }
    drop(operator);
}
