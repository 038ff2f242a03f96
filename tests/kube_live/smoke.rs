//! The lab itself: what it promises to the tests that stand on it (`make lab`).

use std::time::{Duration, Instant};

use crate::lab::{
    Api, ApiOptions, Image, Node, Options, Prometheus, SOON, images, status_of, tools,
};

/// etcd 3.6 on a claim, as upstream's image has it.
fn etcd(reference: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: data}}
spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 64Mi}}}}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: etcd}}
spec:
  containers:
  - name: etcd
    image: {reference}
    command: [/usr/local/bin/etcd, --data-dir=/data/etcd, --listen-client-urls=http://0.0.0.0:2379, "--advertise-client-urls=http://$(IP):2379"]
    env: [{{name: IP, valueFrom: {{fieldRef: {{fieldPath: status.podIP}}}}}}]
    readinessProbe: {{httpGet: {{path: /readyz, port: 2379}}, periodSeconds: 1}}
    volumeMounts: [{{name: data, mountPath: /data}}, {{name: memory, mountPath: /memory}}]
  volumes:
  - {{name: data, persistentVolumeClaim: {{claimName: data}}}}
  - {{name: memory, emptyDir: {{medium: Memory}}}}
"#
    )
}

/// A pod with a shell, that says what it is.
fn client(name: &str, more: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  {more}
  containers:
  - name: shell
    image: localhost/busybox:1
    imagePullPolicy: Never
    command: [/bin/sh, -c, "echo a shell speaks; trap 'exit 143' TERM; while true; do sleep 1; done"]
"#
    )
}

fn node(options: &Options<'_>) -> Option<Node> {
    let begun = Instant::now();
    let node = Node::up(options)?;
    println!("{} node(s) up in {:.1?}", options.nodes, begun.elapsed());
    Some(node)
}

fn etcd_image() -> Image {
    images().etcd["3.6"].clone()
}

fn etcdctl(node: &Node, arguments: &[&str]) -> String {
    let program = tools().join("etcd/3.6/etcdctl");
    let address = node.ready("default", "etcd")["status"]["podIP"]
        .as_str()
        .unwrap()
        .to_owned();
    let endpoint = format!("--endpoints=http://{address}:2379");
    let mut command = vec![program.to_str().unwrap(), &endpoint];
    command.extend(arguments);
    node.run_in_node(&command).good()
}

fn uid(node: &Node, pod: &str) -> String {
    let pod = node.json(&["get", "pod", pod]);
    pod["metadata"]["uid"].as_str().unwrap().to_owned()
}

#[test]
#[ignore = "of the lab itself, by make lab"]
fn a_node_is_ready_within_a_minute_with_k3s_storage_and_names() {
    let begun = Instant::now();
    let Some(node) = node(&Options::default()) else {
        return;
    };
    assert!(begun.elapsed() < Duration::from_secs(60));
    assert!(node.node_is(1, "Ready", "True"));
    let class = node.json(&["get", "storageclass", "local-path"]);
    let default = "storageclass.kubernetes.io/is-default-class";
    assert_eq!(class["metadata"]["annotations"][default], "true");
    assert_eq!(class["provisioner"], "rancher.io/local-path");
    node.apply(&client("shell", ""));
    node.ready("default", "shell");
    node.eventually("a line in the pod's log", SOON, || {
        (node.logs("default", "shell", "shell") == "a shell speaks\n").then_some(())
    });
    let looked_up = ["nslookup", "kubernetes.default.svc.cluster.local"];
    let answer = node.eventually("an answer of the cluster's DNS", SOON, || {
        let answer = node.exec("default", "shell", "shell", &looked_up);
        answer.ok.then_some(answer.stdout)
    });
    assert!(answer.contains("10.43.0.1"), "{answer}");
    let failed = node.exec("default", "shell", "shell", &["sh", "-c", "exit 3"]);
    assert!(!failed.ok);
    node.kubectl(&["delete", "pod", "shell", "--timeout=60s"])
        .good();
    assert!(!node.kubectl(&["get", "pod", "shell"]).ok);
    let reasons: Vec<String> = node
        .events("default")
        .into_iter()
        .map(|(reason, _)| reason)
        .collect();
    assert!(reasons.contains(&"Killing".to_owned()), "{reasons:?}");
}

#[test]
#[ignore = "of the lab itself, by make lab"]
fn etcd_on_a_claim_keeps_a_key_over_reboots_and_runs_on_without_its_api_server() {
    let image = etcd_image();
    let options = Options {
        images: &[&image],
        ..Options::default()
    };
    let Some(node) = node(&options) else {
        return;
    };
    node.apply(&etcd(&image.reference));
    etcdctl(&node, &["put", "kept", "over reboots"]);
    let uid_before = uid(&node, "etcd");
    for round in 1..=2 {
        let in_memory = ["/usr/local/bin/etcdutl", "snapshot", "status", "/memory/x"];
        let save = ["/usr/local/bin/etcdctl", "snapshot", "save", "/memory/x"];
        let before = node.exec("default", "etcd", "etcd", &in_memory);
        assert!(!before.ok, "memory was empty: {}", before.stdout);
        node.exec("default", "etcd", "etcd", &save).good();
        node.exec("default", "etcd", "etcd", &in_memory).good();
        let begun = Instant::now();
        node.reboot();
        node.eventually("another start of the container", SOON, || {
            let pod = node.try_json(&["get", "pod", "etcd"])?;
            (pod["status"]["containerStatuses"][0]["restartCount"] == round).then_some(())
        });
        assert_eq!(
            etcdctl(&node, &["get", "kept", "--print-value-only"]),
            "over reboots\n"
        );
        println!("reboot to a read: {:.1?}", begun.elapsed());
    }
    assert_eq!(uid(&node, "etcd"), uid_before, "the same pod");

    let address = node.json(&["get", "pod", "etcd"])["status"]["podIP"].clone();
    let program = tools().join("etcd/3.6/etcdctl");
    let endpoint = format!("--endpoints=http://{}:2379", address.as_str().unwrap());
    let put = [
        program.to_str().unwrap(),
        &endpoint,
        "put",
        "without",
        "API",
    ];
    node.api_stop();
    let until = Instant::now() + Duration::from_secs(20);
    while Instant::now() < until {
        assert!(!node.is_ready());
        node.run_in_node(&put).good();
        std::thread::sleep(Duration::from_secs(1));
    }
    node.api_start();
    assert_eq!(uid(&node, "etcd"), uid_before);
    let pod = node.ready("default", "etcd");
    assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 2);
}

#[test]
#[ignore = "of the lab itself, by make lab"]
fn kubelet_restarts_beside_a_pod_and_images_come_and_go() {
    let Some(node) = node(&Options::default()) else {
        return;
    };
    let image = etcd_image();
    node.apply(&etcd(&image.reference));
    let reason = |pod: &serde_json::Value| {
        let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"];
        waiting.as_str().unwrap_or_default().to_owned()
    };
    node.eventually("an image that is nowhere", SOON, || {
        let pod = node.try_json(&["get", "pod", "etcd"])?;
        ["ErrImagePull", "ImagePullBackOff"]
            .contains(&reason(&pod).as_str())
            .then_some(())
    });
    node.import(&image);
    etcdctl(&node, &["put", "a", "b"]);
    let started = |name: &str| {
        let pod = node.ready("default", name);
        pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"].clone()
    };
    let before = started("etcd");
    node.kubelet_restart();
    node.remove_image(&image);
    node.apply(&client("after", ""));
    node.ready("default", "after");
    assert_eq!(started("etcd"), before, "the container ran on");
    etcdctl(&node, &["put", "a", "c"]);
    node.kubectl(&["delete", "pod", "etcd", "--timeout=60s"])
        .good();
    let never_pulled =
        etcd(&image.reference).replace("command:", "imagePullPolicy: Never\n    command:");
    node.apply(&never_pulled);
    node.eventually("the image to be gone", SOON, || {
        let pod = node.try_json(&["get", "pod", "etcd"])?;
        (reason(&pod) == "ErrImageNeverPull").then_some(())
    });
}

#[test]
#[ignore = "of the lab itself, by make lab"]
fn a_full_disk_evicts_and_a_node_cut_off_is_not_ready() {
    let options = Options {
        nodes: 2,
        is_fast: true,
        ..Options::default()
    };
    let Some(node) = node(&options) else {
        return;
    };
    node.apply(&client("first", "nodeName: edge1"));
    node.apply(&client("second", "nodeName: edge2"));
    let address = node.ready("default", "second")["status"]["podIP"].clone();
    node.ready("default", "first");
    let ping = ["ping", "-c", "1", "-w", "1", address.as_str().unwrap()];
    let reaches = || node.exec("default", "first", "shell", &ping).ok;
    assert!(reaches(), "pods of two nodes reach each other");
    node.cut(2);
    assert!(!reaches());
    node.eventually("the node to be NotReady", SOON, || {
        node.node_is(2, "Ready", "Unknown").then_some(())
    });
    assert!(node.node_is(1, "Ready", "True"));
    node.heal(2);
    node.eventually("the node to be back", SOON, || {
        node.node_is(2, "Ready", "True").then_some(())
    });
    node.eventually("pods to reach each other", SOON, || reaches().then_some(()));

    node.disk_fill(2);
    node.eventually("disk pressure", SOON, || {
        node.node_is(2, "DiskPressure", "True").then_some(())
    });
    let evicted = node.eventually("the pod to be evicted", SOON, || {
        let pod = node.try_json(&["get", "pod", "second"])?;
        (pod["status"]["phase"] == "Failed").then_some(pod)
    });
    assert_eq!(evicted["status"]["reason"], "Evicted");
    node.disk_empty(2);
    node.eventually("the pressure to end", SOON, || {
        node.node_is(2, "DiskPressure", "False").then_some(())
    });
    let first = node.json(&["get", "pod", "first"]);
    assert_eq!(
        status_of(&first, "Ready"),
        "True",
        "the other node's pod stayed"
    );
}

/// A service account that may read ConfigMaps of its namespace and nothing else.
const READER: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: edge}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader, namespace: edge}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: edge}
rules: [{apiGroups: [""], resources: [configmaps], verbs: [get, list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader, namespace: edge}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{kind: ServiceAccount, name: reader}]
"#;

#[test]
fn a_service_account_has_only_its_rights_and_every_request_is_counted() {
    let begun = Instant::now();
    let Some(api) = Api::up(&ApiOptions::default()) else {
        return;
    };
    println!("API server up in {:.1?}", begun.elapsed());
    api.apply(READER);
    let reader = api.service_account("edge/reader");
    let mark = api.mark();
    reader.kubectl(&["get", "configmaps"]).good();
    for arguments in [
        &["get", "secrets"][..],
        &["get", "configmaps", "-n", "default"],
        &["create", "configmap", "refused"],
        &["get", "nodes"],
    ] {
        let refused = reader.kubectl(arguments);
        assert!(
            !refused.ok && refused.stderr.to_lowercase().contains("forbidden"),
            "{refused:?}"
        );
    }
    let asked: Vec<(String, u64)> = api
        .requests("kubectl/", mark)
        .into_iter()
        .filter(|it| {
            it.user == "system:serviceaccount:edge:reader" && !it.resource.starts_with('/')
        })
        .map(|it| {
            (
                format!("{} {}/{}", it.verb, it.namespace, it.resource),
                it.code,
            )
        })
        .collect();
    let expected = [
        ("list edge/configmaps", 200),
        ("list edge/secrets", 403),
        ("list default/configmaps", 403),
        ("create edge/configmaps", 403),
        ("list /nodes", 403),
    ];
    let expected: Vec<(String, u64)> = expected
        .map(|(what, code)| (what.to_owned(), code))
        .to_vec();
    assert_eq!(asked, expected);
    let counted = api.counted("kubectl/", mark);
    assert_eq!(counted["list configmaps"], 2);
    assert_eq!(counted["create configmaps"], 1);
    let mark = api.mark();
    assert!(api.requests("kubectl/", mark).is_empty());
    // Its beginning and its end are two lines of the log.
    let watch = ["get", "configmaps", "--watch", "--request-timeout=2s"];
    api.kubectl(&watch);
    let watches = || (api.log_since(mark).matches("\"verb\":\"watch\"").count() == 2).then_some(());
    api.eventually("the watch to end", SOON, watches);
    assert_eq!(api.counted("kubectl/", mark)["watch configmaps"], 1);
    assert!(api.requests("nobody/", mark).is_empty());
    api.api_stop();
    assert!(!api.is_ready());
    api.api_start();
    reader.kubectl(&["get", "configmaps"]).good();
}

#[test]
fn controllers_beside_an_api_server_remove_what_lost_its_owner() {
    let options = ApiOptions {
        controllers: true,
        ..ApiOptions::default()
    };
    let Some(api) = Api::up(&options) else {
        return;
    };
    api.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: owner}\n");
    let owner = api.json(&["get", "configmap", "owner"]);
    api.apply(&format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: owned\n  ownerReferences: \
         [{{apiVersion: v1, kind: ConfigMap, name: owner, uid: {}}}]\n",
        owner["metadata"]["uid"]
    ));
    api.kubectl(&["delete", "configmap", "owner"]).good();
    api.eventually("what was owned to go", SOON, || {
        (!api.kubectl(&["get", "configmap", "owned"]).ok).then_some(())
    });
    api.kubectl(&["create", "namespace", "brief"]).good();
    api.kubectl(&["delete", "namespace", "brief", "--timeout=60s"])
        .good();
}

#[test]
#[ignore = "of the lab itself, by make lab"]
fn a_prometheus_scrapes_and_fires() {
    // Nothing listens on the port of discard.
    let configuration = r#"
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [rules.yml]
scrape_configs:
- {job_name: gone, static_configs: [{targets: ["127.0.0.1:9"]}]}
"#;
    let rules = r"
groups:
- name: test
  rules:
  - {alert: Gone, expr: 'up == 0', for: 1s}
  - {alert: Never, expr: 'up == 2', for: 1s}
";
    let Some(prometheus) = Prometheus::up(configuration, &[("rules.yml", rules)]) else {
        return;
    };
    prometheus.eventually("an alert", SOON, || {
        (prometheus.firing() == ["Gone"]).then_some(())
    });
    let up = prometheus.query("up");
    assert_eq!(up.len(), 1);
    assert_eq!(up[0].0["job"], "gone");
    assert!(up[0].1 == 0.0);
}
