//! What is put back, what is never made anew in silence, and who may do what: at an API server alone, where whatever
//! the operator does is seen.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::Access;
use crate::lab::{Api, ApiOptions, Mark, SOON};
use crate::operator::{self, Operator, USER, cluster, namespace, object};
use crate::tenants::{says, status};

fn up() -> Option<(Api, Access, Operator)> {
    if !operator::can() {
        return None;
    }
    let api = Api::up(&ApiOptions::default())?;
    let access = operator::install(&api);
    let operator = Operator::start(&access);
    Some((api, access, operator))
}

fn get(api: &Api, kind: &str, name: &str) -> Option<Value> {
    api.try_json(&["get", kind, name, "-n", "shop"])
}

/// A cluster whose Pod was made.
fn made(api: &Api, name: &str) {
    api.apply(&cluster("shop", name, &json!({})));
    api.eventually("the Pod", SOON, || get(api, "pod", &format!("{name}-0")));
}

#[test]
fn what_somebody_edits_or_removes_is_put_back_and_what_cannot_be_is_told() {
    let Some((api, access, operator)) = up() else {
        return;
    };
    api.apply(&namespace("shop", &json!({})));
    made(&api, "c");
    a_policy_is_put_back(&api);
    a_secret_is_put_back(&api);
    a_status_is_put_back(&api);
    the_services_address_stands_in_the_certificate(&api);
    requests_can_be_waited_for(&api);
    what_a_document_may_not_say_of_a_pod(&api);
    drop(operator);
    an_authority_that_vanished_is_a_hold(&api, &access);
}

/// K10.
fn a_policy_is_put_back(api: &Api) {
    let rules = || get(api, "networkpolicy", "c").map(|it| it["spec"]["ingress"].clone());
    let before = api.eventually("the NetworkPolicy", SOON, rules);
    let remove = ["delete", "networkpolicy", "-n", "shop", "c"];
    api.kubectl(&remove).good();
    api.eventually("the NetworkPolicy again", SOON, rules);
    let open = r#"{"spec": {"ingress": [{}]}}"#;
    let patch = [
        "patch",
        "networkpolicy",
        "-n",
        "shop",
        "c",
        "--type=merge",
        "-p",
        open,
    ];
    api.kubectl(&patch).good();
    assert_ne!(rules(), Some(before.clone()));
    api.eventually("its rules again", SOON, || {
        (rules() == Some(before.clone())).then_some(())
    });
}

fn a_secret_is_put_back(api: &Api) {
    let key = || {
        let it = get(api, "secret", "c-member")?;
        Some(it["data"]["server.key"].clone())
    };
    let before = key();
    let remove = ["delete", "secret", "-n", "shop", "c-member"];
    api.kubectl(&remove).good();
    api.eventually("the same Secret", SOON, || (key() == before).then_some(()));
    let admin = get(api, "secret", "c-client-admin").unwrap();
    assert!(
        admin["data"]["ETCDCTL_ENDPOINTS"].is_string(),
        "{}",
        admin["data"]
    );
}

/// K11.
fn a_status_is_put_back(api: &Api) {
    let told = || {
        let conditions = status(api, "shop", "c")["conditions"].clone();
        let conditions: Vec<Value> = conditions.as_array()?.clone();
        let all = conditions
            .iter()
            .map(|it| format!("{} {}", it["type"], it["reason"]));
        Some(all.collect::<Vec<_>>())
    };
    // No kubelet is here, which is told after a minute.
    says(api, "shop", "c", "PodNotStarted");
    let before = told().unwrap();
    assert!(before.len() > 5, "{before:?}");
    let time = "2026-01-01T00:00:00Z";
    let lie = json!({"status": {"readyMembers": 1, "conditions": [{
        "type": "Available", "status": "True", "reason": "Serving", "message": "all is well",
        "lastTransitionTime": time,
    }]}});
    let lie = lie.to_string();
    let patch = [
        "patch",
        "etcdcluster",
        "-n",
        "shop",
        "c",
        "--subresource=status",
        "--type=merge",
        "-p",
        &lie,
    ];
    api.kubectl(&patch).good();
    api.eventually("the truth", SOON, || (told()? == before).then_some(()));
    assert_eq!(status(api, "shop", "c")["readyMembers"], 0);
    // It is written once, not again and again.
    let mark = api.mark();
    std::thread::sleep(Duration::from_secs(10));
    let written = api.requests("", mark).into_iter();
    let written = written.filter(|it| it.user == USER && it.resource == "etcdclusters/status");
    assert_eq!(written.count(), 0);
}

fn the_services_address_stands_in_the_certificate(api: &Api) {
    let service = get(api, "service", "c-client").unwrap();
    let address = service["spec"]["clusterIP"].as_str().unwrap();
    let names = names_of_the_server(api, "c-member");
    assert!(names.contains(&format!("IP Address:{address}")), "{names}");
}

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Names and addresses in a member's certificate.
pub fn names_of_the_server(api: &Api, secret: &str) -> String {
    let template = "-o=go-template={{index .data \"server.crt\" | base64decode}}";
    let certificate = api
        .kubectl(&["get", "secret", "-n", "shop", secret, template])
        .good();
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let file = std::env::temp_dir().join(format!("kept-{}-{number}.crt", std::process::id()));
    std::fs::write(&file, certificate).unwrap();
    let mut openssl = std::process::Command::new("openssl");
    openssl
        .args(["x509", "-noout", "-ext", "subjectAltName", "-in"])
        .arg(&file);
    let names = crate::cluster::output(&mut openssl).good();
    std::fs::remove_file(file).unwrap();
    names
}

fn requests_can_be_waited_for(api: &Api) {
    api.apply(&object("EtcdBackup", "shop", "b", &json!({"cluster": "c"})));
    let wait = [
        "wait",
        "-n",
        "shop",
        "etcdbackup/b",
        "--for=condition=Stalled",
        "--timeout=60s",
    ];
    api.kubectl(&wait).good();
    let status = get(api, "etcdbackup", "b").unwrap()["status"].clone();
    assert_eq!(status["phase"], "Failed");
    let ready = status["conditions"].as_array().unwrap().iter();
    let ready: Vec<&Value> = ready.filter(|it| it["type"] == "Ready").collect();
    assert_eq!((ready.len(), &ready[0]["status"]), (1, &json!("False")));
    let columns = api.kubectl(&["get", "-n", "shop", "etcdbackup"]).good();
    assert!(
        columns.contains("SNAPSHOT") && columns.contains("AGE"),
        "{columns}"
    );
}

/// M3: whoever may edit an EtcdCluster gets no more of a Pod than etcd.
fn what_a_document_may_not_say_of_a_pod(api: &Api) {
    let before = get(api, "pod", "c-0").unwrap()["metadata"]["uid"].clone();
    for (spec, words) in [
        (json!({"image": "docker.io/library/evil:1"}), "image-prefix"),
        (
            json!({"image": "quay.io/coreos/etcd-evil:1"}),
            "image-prefix",
        ),
        (
            json!({"pod": {"priorityClassName": "system-node-critical"}}),
            "system-node-critical",
        ),
        (
            json!({"pod": {"annotations": {"container.apparmor.security.beta.kubernetes.io/etcd": "unconfined"}}}),
            "apparmor",
        ),
        (
            json!({"pod": {"labels": {"etcd.edge-operator.io/cluster": "other"}}}),
            "labels",
        ),
    ] {
        api.apply(&cluster("shop", "c", &spec));
        says(api, "shop", "c", words);
        let told = status(api, "shop", "c");
        assert!(told.to_string().contains("SpecInvalid"), "{told}");
    }
    api.apply(&cluster(
        "shop",
        "c",
        &json!({"pod": {"labels": {"team": "till"}}}),
    ));
    api.eventually("the next Pod", SOON, || {
        let pod = get(api, "pod", "c-0")?;
        (pod["metadata"]["labels"]["team"] == "till").then_some(())
    });
    assert_ne!(get(api, "pod", "c-0").unwrap()["metadata"]["uid"], before);
}

/// K6: the operator was away when it went.
fn an_authority_that_vanished_is_a_hold(api: &Api, access: &Access) {
    api.kubectl(&["delete", "secret", "-n", "shop", "c-ca"])
        .good();
    let client = get(api, "secret", "c-client-admin").unwrap()["data"].clone();
    let operator = Operator::start(access);
    says(api, "shop", "c", "AuthorityMissing");
    std::thread::sleep(Duration::from_secs(3));
    assert!(
        get(api, "secret", "c-ca").is_none(),
        "none is made in silence"
    );
    drop(operator);
    // The member's Secret, too: a claim of a cluster that was born says as much.
    api.kubectl(&["delete", "secret", "-n", "shop", "c-member"])
        .good();
    let operator = Operator::start(access);
    says(api, "shop", "c", "data-c-0");
    assert!(get(api, "secret", "c-ca").is_none());
    // Clients get theirs once a member is started, or runs.
    api.kubectl(&[
        "delete",
        "pod",
        "-n",
        "shop",
        "c-0",
        "--force",
        "--grace-period=0",
    ])
    .good();
    let accept = [
        "annotate",
        "etcdcluster",
        "-n",
        "shop",
        "c",
        "etcd.edge-operator.io/new-authority=accepted",
    ];
    api.kubectl(&accept).good();
    api.eventually("new CAs", SOON, || get(api, "secret", "c-ca"));
    // Whose CA it was is no client of this one.
    api.eventually("the client's new certificate", SOON, || {
        let now = get(api, "secret", "c-client-admin")?["data"].clone();
        (now["tls.crt"] != client["tls.crt"] && now["ca.crt"] != client["ca.crt"]).then_some(())
    });
    drop(operator);
}

/// As the operator's own account, whose token somebody has taken: its rights alone would allow all of this.
#[test]
fn its_own_account_gets_no_pod_but_its_own_and_no_secret_of_others() {
    if !operator::can() {
        return;
    }
    let Some(api) = Api::up(&ApiOptions::default()) else {
        return;
    };
    let access = operator::install(&api);
    api.apply(&namespace("shop", &json!({})));
    let pod = |change: &dyn Fn(&mut Value)| {
        let confined =
            json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
        let mut pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "p", "namespace": "shop",
                "labels": {"app.kubernetes.io/managed-by": "etcd-operator"},
            },
            "spec": {
                "automountServiceAccountToken": false,
                "serviceAccountName": "default",
                "securityContext": {"runAsNonRoot": true},
                "initContainers": [{"name": "i", "image": "i", "securityContext": confined}],
                "containers": [{"name": "a", "image": "a", "securityContext": confined}],
                "volumes": [{"name": "v", "emptyDir": {}}],
            },
        });
        change(&mut pod);
        access.with_input(&["create"], &pod.to_string())
    };
    let set = |pointer: &'static str, value: Value| {
        move |pod: &mut Value| {
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            match pod.pointer_mut(parent).unwrap() {
                Value::Array(list) => list[key.parse::<usize>().unwrap()] = value.clone(),
                object => object[key] = value.clone(),
            }
        }
    };
    // The server has taken the policies up once one of them refuses.
    api.eventually("the policies", SOON, || {
        let refused = pod(&set("/spec/hostNetwork", json!(true)));
        if refused.ok {
            api.kubectl(&[
                "delete",
                "pod",
                "-n",
                "shop",
                "p",
                "--force",
                "--grace-period=0",
            ])
            .good();
        }
        (!refused.ok).then_some(())
    });
    let host_path = |path: &str| json!({"name": "v", "hostPath": {"path": path}});
    for (change, words) in [
        (
            set("/spec/hostNetwork", json!(true)),
            "a namespace of the node",
        ),
        (set("/spec/hostPID", json!(true)), "a namespace of the node"),
        (set("/spec/hostIPC", json!(true)), "a namespace of the node"),
        (
            set("/spec/automountServiceAccountToken", json!(true)),
            "a token of a ServiceAccount",
        ),
        (
            set("/spec/serviceAccountName", json!("etcd-operator")),
            "a token of a ServiceAccount",
        ),
        (
            set(
                "/spec/volumes/0",
                json!({"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}),
            ),
            "a token of a ServiceAccount",
        ),
        (
            set(
                "/spec/containers/0/securityContext",
                json!({"allowPrivilegeEscalation": false, "runAsUser": 0, "runAsNonRoot": false}),
            ),
            "as root",
        ),
        (
            set("/metadata/labels", json!({})),
            "a Pod that it has not made",
        ),
        (
            set("/spec/securityContext", json!({})),
            "a Pod that may run as root",
        ),
        (
            set("/spec/volumes/0", host_path("/etc")),
            "a directory of the node",
        ),
        (
            set(
                "/spec/volumes/0",
                host_path("/var/lib/etcd-operator/shop/c/data"),
            ),
            "a directory of the node",
        ),
        (
            set(
                "/spec/containers/0/securityContext",
                json!({"privileged": true}),
            ),
            "with privileges",
        ),
        (
            set(
                "/spec/initContainers/0/securityContext",
                json!({"privileged": true}),
            ),
            "with privileges",
        ),
        (
            set(
                "/spec/containers/0/securityContext",
                json!({"allowPrivilegeEscalation": false, "capabilities": {"add": ["SYS_ADMIN"]}}),
            ),
            "with privileges",
        ),
        (
            set(
                "/spec/containers/0/ports",
                json!([{"containerPort": 1, "hostPort": 1}]),
            ),
            "with privileges",
        ),
    ] {
        let refused = pod(&change);
        let said = format!("{}{}", refused.stdout, refused.stderr);
        assert!(
            !refused.ok && said.contains("ValidatingAdmissionPolicy") && said.contains(words),
            "{words}: {said}"
        );
    }
    pod(&|_| {}).good();
    // Pods and Secrets of others.
    let other = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other", "namespace": "shop"},
        "spec": {"containers": [{"name": "a", "image": "a"}]},
    });
    api.apply(&other.to_string());
    let secret = |name: &str, labels: Value| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {"name": name, "namespace": "shop", "labels": labels},
        })
    };
    let ours = json!({"app.kubernetes.io/managed-by": "etcd-operator"});
    api.apply(&secret("other", json!({})).to_string());
    let refused = |arguments: &[&str], input: &str, words: &str| {
        let it = if input.is_empty() {
            access.kubectl(arguments)
        } else {
            access.with_input(arguments, input)
        };
        assert!(
            !it.ok && it.stderr.contains(words),
            "{arguments:?}: {}{}",
            it.stdout,
            it.stderr
        );
    };
    refused(
        &["delete", "pod", "-n", "shop", "other"],
        "",
        "a Pod that it has not made",
    );
    let unlabelled = secret("made", json!({})).to_string();
    refused(&["create"], &unlabelled, "a Secret without its label");
    let mut account = secret("token", ours.clone());
    account["type"] = json!("kubernetes.io/service-account-token");
    account["metadata"]["annotations"] = json!({"kubernetes.io/service-account.name": "default"});
    refused(&["create"], &account.to_string(), "fills with a token");
    let taken = json!({"metadata": {"labels": ours.clone()}}).to_string();
    let patch = [
        "patch",
        "secret",
        "-n",
        "shop",
        "other",
        "--type=merge",
        "-p",
        &taken,
    ];
    refused(&patch, "", "a Secret that somebody else made");
    let claim = |name: &str, labels: Value| {
        json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": "shop", "labels": labels},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "none",
                "resources": {"requests": {"storage": "1Gi"}}},
        })
    };
    let mut bound = claim("bound", ours.clone());
    bound["spec"]["volumeName"] = json!("v");
    for it in [claim("other", json!({})), bound, claim("own", ours.clone())] {
        api.apply(&it.to_string());
    }
    let delete = |name| ["delete", "pvc", "-n", "shop", name, "--wait=false"];
    refused(&delete("other"), "", "a claim that it has not made");
    refused(&delete("bound"), "", "a claim that has a volume");
    access.kubectl(&delete("own")).good();
    access
        .with_input(&["create"], &secret("made", ours).to_string())
        .good();
    // And no list of them: names of others' Secrets have to be known.
    refused(&["get", "secrets", "-A"], "", "cannot list resource");
    access
        .kubectl(&["delete", "pod", "-n", "shop", "p", "--wait=false"])
        .good();
}

/// What the operator has written since then.
fn writes(api: &Api, mark: Mark) -> Vec<String> {
    let written = api.requests("", mark).into_iter();
    let written = written.filter(|it| it.user == USER);
    let written = written.filter(|it| !["get", "list", "watch"].contains(&it.verb.as_str()));
    let words = written.map(|it| format!("{} {}", it.verb, it.resource));
    words.collect()
}

/// R9: a holder that stood still for longer than its Lease lasts writes nothing when it goes on.
#[test]
fn a_holder_that_was_frozen_while_another_took_over_ends_and_writes_nothing() {
    let Some((api, _access, mut operator)) = up() else {
        return;
    };
    api.apply(&namespace("shop", &json!({})));
    made(&api, "c");
    // What is on its way when it is frozen comes when it goes on: nobody can take that back.
    api.eventually("nothing to be on its way", SOON, || {
        let mark = api.mark();
        std::thread::sleep(Duration::from_secs(3));
        writes(&api, mark).is_empty().then_some(())
    });
    operator.signal("STOP");
    // Another node's operator, which has waited for as long as the Lease lasts.
    let taken = r#"{"spec": {"holderIdentity": "edge2"}}"#;
    let patch = [
        "patch",
        "lease",
        "-n",
        "etcd-operator",
        "etcd-operator",
        "--type=merge",
        "-p",
        taken,
    ];
    api.kubectl(&patch).good();
    // There is something to do by then, and the watch will say so.
    api.apply(&cluster("shop", "d", &json!({})));
    api.kubectl(&["delete", "service", "-n", "shop", "c-client"])
        .good();
    std::thread::sleep(Duration::from_secs(35));
    let mark = api.mark();
    operator.signal("CONT");
    api.eventually("its end", SOON, || (!operator.is_alive()).then_some(()));
    assert!(
        operator.said().contains("the Lease was taken by edge2"),
        "{}",
        operator.said()
    );
    assert_eq!(writes(&api, mark), [""; 0]);
    let lease = api.json(&["get", "lease", "-n", "etcd-operator", "etcd-operator"]);
    assert_eq!(lease["spec"]["holderIdentity"], "edge2");
}
