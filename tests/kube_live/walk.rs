//! What a person does with it on a node, in one walk.

use std::time::Instant;

use serde_json::{Value, json};

use crate::lab::{SOON, is_true, root};
use crate::operated::{Operated, document, pass};

const BACKUP: &str = "{storage: {volumeClaim: {size: 2Gi}}, backup: {interval: 24h, destinations: [{local: {keep: 5}}]}, clients: [{name: till, namespace: tills}]}";

#[test]
fn a_person_walks_through_it() {
    let begun = Instant::now();
    let Some(it) = Operated::up() else {
        return;
    };
    println!("node and operator up in {:.1?}", begun.elapsed());
    has_the_time(&it);
    is_nobody(&it);
    resource_types(&it);
    a_request_without_a_cluster(&it);
    create(&it);
    delete_the_pod(&it);
    without_the_operator(&it);
    hibernate(&it);
    a_client_of_another_namespace(&it);
    back_up_and_restore(&it);
    into_a_new_cluster(&it);
    delete_and_create_again(&it);
    purge(&it);
}

/// Nobody sets the kernel's clock of the machine that tests run on: systemd-timesyncd's sign in the operator's Pod stands
/// in for it. That the kernel is asked, and answers a container without rights, shows in what is not logged.
fn has_the_time(it: &Operated) {
    let log = it.operator_log();
    assert!(log.contains("this operator acts"), "{log}");
    assert!(!log.contains("does not tell"), "{log}");
    let sign = ["create", "configmap", "-n", "etcd-operator", "timesync"];
    let sign = [&sign[..], &["--from-literal=synchronized=yes"]].concat();
    it.kubectl(&sign).good();
    let volume = json!({"name": "timesync", "configMap": {"name": "timesync"}});
    let mount = json!({"name": "timesync", "mountPath": "/run/systemd/timesync"});
    let container = json!({"name": "etcd-operator", "volumeMounts": [mount]});
    let more =
        json!({"spec": {"template": {"spec": {"containers": [container], "volumes": [volume]}}}});
    let (set, more) = ("daemonset/etcd-operator", more.to_string());
    it.kubectl(&["patch", "-n", "etcd-operator", set, "-p", &more])
        .good();
    it.kubectl(&["rollout", "status", "-n", "etcd-operator", set])
        .good();
}

/// A user without a right, whatever the image says; and nothing of it lies on the node.
fn is_nobody(it: &Operated) {
    let found = it.processes("etcd-operator controller");
    assert!(!found.is_empty(), "the operator is a process");
    for process in found {
        let status = std::fs::read_to_string(process.join("status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|it| it.strip_prefix(name));
            line.unwrap().split_whitespace().collect::<Vec<_>>()
        };
        assert_eq!(field("Uid:"), ["65532"; 4]);
        assert_eq!(field("Gid:"), ["65532"; 4]);
        assert_eq!(field("Seccomp:"), ["2"], "the filter of RuntimeDefault");
        for set in ["CapPrm:", "CapEff:", "CapBnd:"] {
            assert_eq!(field(set), ["0000000000000000"], "{set}");
        }
    }
    assert!(!it.path(1, "/var/lib/etcd-operator").exists());
}

fn resource_types(it: &Operated) {
    let types = it
        .kubectl(&["api-resources", "--api-group=etcd.edge-operator.io"])
        .good();
    for kind in ["EtcdCluster", "EtcdBackup", "EtcdRestore"] {
        assert!(types.contains(kind), "{types}");
    }
    let explained = it.kubectl(&["explain", "etcdcluster.spec"]).good();
    assert!(
        explained.contains("Voting members: 1, 3, 5 or 7."),
        "{explained}"
    );
    let refused = it.try_apply(&document("EtcdCluster", "shop", "{size: 2}"));
    assert!(
        !refused.ok && refused.stderr.contains("allowed are 0 (stopped"),
        "{refused:?}"
    );
}

/// Nobody works on it, and it says so.
fn a_request_without_a_cluster(it: &Operated) {
    it.apply(&document("EtcdBackup", "early", "{cluster: nobody}"));
    it.eventually("the request to be answered", SOON, || {
        let it = it.try_json(&["get", "etcdbackup", "early"])?;
        let message = it["status"]["message"].as_str()?;
        message.contains("no EtcdCluster nobody").then_some(())
    });
}

fn create(it: &Operated) {
    let begun = Instant::now();
    let example = root().join("deploy/examples/single-node.yaml");
    it.kubectl(&["apply", "-f", example.to_str().unwrap()])
        .good();
    let waits = [
        "wait",
        "--for=condition=Available",
        "etcd/shop",
        "--timeout=90s",
    ];
    it.kubectl(&waits).good();
    println!("apply to Available: {:.1?}", begun.elapsed());
    it.says("shop", "BackupHealthy", "Verified");
    for shown in [["get", "etcd"], ["get", "pods,services,pvc"]] {
        println!(
            "$ kubectl {}\n{}",
            shown.join(" "),
            it.kubectl(&shown).good()
        );
    }
    // As any person asks it: the Pod knows where its etcd is.
    let etcdctl = ["/usr/local/bin/etcdctl", "endpoint", "health"];
    let healthy = it.exec("default", "shop-0", "etcd", &etcdctl);
    assert!(
        healthy.ok && healthy.stdout.contains("is healthy"),
        "{healthy:?}"
    );
    it.put("shop", "first", "1");
    let uid = it.pod_uid("shop");
    it.apply(&document("EtcdCluster", "shop", BACKUP));
    pass(2);
    assert_eq!(
        it.pod_uid("shop"),
        uid,
        "nothing of it is the running etcd's"
    );
    let shown = it.kubectl(&["get", "etcd"]).good();
    for column in ["READY", "VERSION", "AVAILABLE", "BACKUP", "HOLD", "AGE"] {
        assert!(shown.contains(column), "{shown}");
    }
    for service in ["shop-0", "shop-client"] {
        it.kubectl(&["get", "service", service]).good();
    }
    is_found_by_name(it, "shop");
    speaks_json(it, "shop");
    let told: Vec<String> = it.eventually("the story in Events", SOON, || {
        let events = it.events("default");
        let reasons: Vec<String> = events.into_iter().map(|(reason, _)| reason).collect();
        reasons.contains(&"Serving".to_owned()).then_some(reasons)
    });
    assert!(
        !told.contains(&"Missing".to_owned()),
        "nobody is born with certificates"
    );
    for reason in ["Born", "CertificatesMade", "PodCreated", "Serving"] {
        assert!(told.contains(&reason.to_owned()), "{reason} in {told:?}");
    }
}

/// A client that has HTTP and no gRPC, with the Secret of a client.
fn speaks_json(it: &Operated, cluster: &str) {
    let dir = std::env::temp_dir().join(format!("json-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    for file in ["ca.crt", "tls.crt", "tls.key"] {
        let secret = it.secret(&format!("{cluster}-client-admin"), file);
        std::fs::write(dir.join(file), secret).unwrap();
    }
    let pod = it.json(&["get", "pod", &format!("{cluster}-0")]);
    let address = format!("{}:2379", pod["status"]["podIP"].as_str().unwrap());
    let script = r#"cd "$1"
        printf 'POST /v3/kv/range HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\nContent-Length: 18\r\n\r\n{"key":"Zmlyc3Q="}' |
            openssl s_client -quiet -connect "$0" -CAfile ca.crt -cert tls.crt -key tls.key 2>&1"#;
    let run = ["sh", "-c", script, &address, dir.to_str().unwrap()];
    let answer = it.run_in_node(&run).good();
    std::fs::remove_dir_all(dir).unwrap();
    assert!(answer.contains(r#""value":"MQ==""#), "{answer}"); // 1
}

/// From its birth on a member's peers reach it by a name that outlives its Pod.
fn is_found_by_name(it: &Operated, cluster: &str) {
    let name = format!("{cluster}-0.default.svc");
    let list = it.etcdctl(cluster, &["member", "list"]);
    let url = format!("https://{name}:2380");
    assert!(
        list.contains(&url) && !list.contains("127.0.0.1:2380"),
        "{list}"
    );
}

fn delete_the_pod(it: &Operated) {
    let uid = it.pod_uid("shop").unwrap();
    let begun = Instant::now();
    it.kubectl(&["delete", "pod", "shop-0", "--wait=false"])
        .good();
    it.eventually("another pod", SOON, || {
        it.pod_uid("shop").filter(|it| *it != uid)
    });
    it.put("shop", "second", "2");
    println!("pod deleted to the next write: {:.1?}", begun.elapsed());
    assert_eq!(it.get("shop", "first"), "1");
}

/// Deleting its pod and its DaemonSet leaves etcd serving; a new one changes nothing.
fn without_the_operator(it: &Operated) {
    it.available("shop");
    let uid = it.pod_uid("shop").unwrap();
    it.next_operator();
    it.put("shop", "third", "3");
    it.kubectl(&[
        "delete",
        "-n",
        "etcd-operator",
        "daemonset",
        "etcd-operator",
    ])
    .good();
    it.eventually("the operator to be gone", SOON, || {
        let pods = it.kubectl(&["get", "pods", "-n", "etcd-operator", "-o", "name"]);
        (pods.ok && pods.stdout.is_empty()).then_some(())
    });
    pass(3);
    it.put("shop", "fourth", "4");
    it.install();
    it.available("shop");
    pass(3);
    assert_eq!(it.pod_uid("shop"), Some(uid), "nobody touched the member");
}

fn hibernate(it: &Operated) {
    it.patch("shop", r#"{"spec":{"size":0}}"#);
    it.says("shop", "Available", "SizeZero");
    it.gone(&["pod", "shop-0"]);
    it.patch("shop", r#"{"spec":{"size":1}}"#);
    it.available("shop");
    assert_eq!(it.get("shop", "fourth"), "4");
}

fn a_client_of_another_namespace(it: &Operated) {
    it.apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: tills}\n");
    pass(2);
    let secret = ["get", "secret", "-n", "tills", "shop-client-till"];
    assert!(!it.kubectl(&secret).ok, "it has not opted in");
    it.kubectl(&[
        "label",
        "namespace",
        "tills",
        "etcd.edge-operator.io/accepts-clients-of=default",
    ])
    .good();
    it.eventually("the client's Secret", SOON, || {
        it.kubectl(&secret).ok.then_some(())
    });
    it.apply(CLIENT);
    it.ready("tills", "till");
    let command = [
        "/usr/local/bin/etcdctl",
        "--endpoints=https://shop-client.default.svc:2379",
        "--cacert=/client/ca.crt",
        "--cert=/client/tls.crt",
        "--key=/client/tls.key",
        "get",
        "first",
        "--print-value-only",
    ];
    it.eventually("the client's read", SOON, || {
        let read = it.exec("tills", "till", "till", &command);
        (read.ok && read.stdout == "1\n").then_some(())
    });
}

/// It has the Secret and waits; `etcdctl` is a real client.
const CLIENT: &str = r"
apiVersion: v1
kind: Pod
metadata: {name: till, namespace: tills}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: till
    image: quay.io/coreos/etcd:v3.6.16
    command: [/usr/local/bin/etcd, --data-dir=/tmp/till]
    volumeMounts: [{name: client, mountPath: /client}]
  volumes: [{name: client, secret: {secretName: shop-client-till}}]
";

fn back_up_and_restore(it: &Operated) {
    it.put("shop", "kept", "before");
    it.apply(&document(
        "EtcdBackup",
        "now",
        "{cluster: shop, ttlHours: 1}",
    ));
    let taken = it.phase("etcdbackup", "now", "Succeeded");
    assert_eq!(taken["status"]["level"], 3);
    has_an_event(it, "etcdbackup", "now", "Succeeded");
    is_told_by_name(it, &taken["status"]);
    it.put("shop", "kept", "after");
    it.put("shop", "lost", "after");
    let unacknowledged = it.try_apply(&document("EtcdRestore", "wrong", "{cluster: shop}"));
    assert!(!unacknowledged.ok, "in place needs an acknowledgement");
    let begun = Instant::now();
    let restored = it.restored("shop", "back");
    assert_eq!(restored["status"]["revisionsLost"], 2, "{restored}");
    has_an_event(it, "etcdrestore", "back", "Succeeded");
    it.available("shop");
    println!("restore in place to Available: {:.1?}", begun.elapsed());
    is_found_by_name(it, "shop");
    assert_eq!(it.get("shop", "kept"), "before");
    assert_eq!(it.get("shop", "lost"), "");
    it.put("shop", "after the restore", "5");
    for round in 1..=2 {
        it.reboot();
        it.eventually("the member after the reboot", SOON, || {
            let pod = it.try_json(&["get", "pod", "shop-0"])?;
            is_true(&pod, "Ready").then_some(())
        });
        assert_eq!(it.get("shop", "after the restore"), "5", "reboot {round}");
        assert_eq!(it.get("shop", "kept"), "before", "no restore ran again");
    }
    it.gone(&["pod", "shop-restore"]);
}

/// `kubectl describe` of the request itself tells how it ended.
fn has_an_event(it: &Operated, kind: &str, name: &str, reason: &str) {
    it.eventually("an Event beside the request", SOON, || {
        let described = it.kubectl(&["describe", kind, name]);
        let events = described.stdout.split_once("Events:")?.1.to_owned();
        events.contains(reason).then_some(())
    });
}

/// What a restore may name stands in the cluster's status.
fn is_told_by_name(it: &Operated, taken: &Value) {
    let told = it.eventually("the snapshot in the cluster's status", SOON, || {
        let status = it.cluster("shop")["status"].clone();
        let newest = status["backups"]["snapshots"][0].clone();
        (newest["name"] == taken["snapshot"]).then_some(newest)
    });
    assert_eq!(told["revision"], taken["revision"], "{told}");
    assert_eq!(told["level"], 3, "{told}");
    let place = told["place"].as_str().unwrap();
    assert_eq!(place, "the claim shop-snapshots");
}

fn into_a_new_cluster(it: &Operated) {
    it.acting();
    it.available("shop");
    it.apply(&document(
        "EtcdRestore",
        "copy",
        "{cluster: shop, into: copy}",
    ));
    it.phase("etcdrestore", "copy", "Succeeded");
    it.available("copy");
    is_found_by_name(it, "copy");
    assert_eq!(it.get("copy", "kept"), "before");
    assert_eq!(
        it.get("shop", "after the restore"),
        "5",
        "the source is as it was"
    );
}

/// Data and CA stay when the object goes, and are found by the next one of the name.
fn delete_and_create_again(it: &Operated) {
    let authority =
        |it: &Operated| it.json(&["get", "secret", "shop-ca"])["data"]["client-ca.crt"].clone();
    let before = authority(it);
    let id = it.cluster("shop")["status"]["clusterID"].clone();
    it.kubectl(&["delete", "etcdcluster", "shop"]).good();
    it.gone(&["pod", "shop-0"]);
    it.gone(&["service", "shop-client"]);
    it.kubectl(&["get", "pvc", "data-shop-0"]).good();
    assert_eq!(authority(it), before);
    it.apply(&document("EtcdCluster", "shop", BACKUP));
    let again = it.available("shop");
    assert_eq!(again["status"]["clusterID"], id);
    assert_eq!(authority(it), before);
    assert_eq!(it.get("shop", "after the restore"), "5");
}

/// What a deleted cluster left is found by its label, and deleted by it.
fn purge(it: &Operated) {
    it.kubectl(&["delete", "etcdcluster", "copy"]).good();
    it.gone(&["pod", "copy-0"]);
    let label = "etcd.edge-operator.io/cluster=copy,!etcd.edge-operator.io/cluster-namespace";
    let left = || {
        let listed = ["get", "pvc,secret", "-l", label, "-o", "name"];
        it.kubectl(&listed).good()
    };
    for kept in ["persistentvolumeclaim/data-copy-0", "secret/copy-ca"] {
        assert!(left().lines().any(|it| it == kept), "{}", left());
    }
    it.kubectl(&["delete", "pvc,secret", "-l", label]).good();
    assert_eq!(left(), "");
    it.kubectl(&["get", "pvc", "data-shop-0"]).good();
}
