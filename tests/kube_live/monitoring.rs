//! `deploy/monitoring` in front of a real operator and a real etcd: what it names is there.

use std::collections::BTreeSet;

use std::time::Duration;

use serde_json::{Value, json};

use crate::lab::{Node, Options, Prometheus, SOON, images, skip};
use crate::operator::{Operator, cluster, deployed, install_beside, object};
use crate::processes::{self, Frozen};

/// Fires for three members on a laboratory's only node.
const SHARED: &str = "EtcdMembersShareNode";
const GROWS_WITHIN: Duration = Duration::from_secs(120);

/// The documents of a file of `deploy/`.
fn documents(file: &str) -> Vec<Value> {
    let text = deployed(file);
    let parts = text.split("\n---\n");
    parts
        .map(|it| serde_saphyr::from_str(it).unwrap())
        .collect()
}

/// The rules as Prometheus reads them.
pub fn rules() -> Value {
    documents("monitoring/prometheusrule.yaml")[0]["spec"].clone()
}

pub fn alerts() -> Vec<Value> {
    let rules = rules();
    let groups = rules["groups"].as_array().unwrap().iter();
    groups
        .flat_map(|it| it["rules"].as_array().unwrap().clone())
        .collect()
}

pub fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    let found = value.pointer(pointer).and_then(Value::as_str);
    found.unwrap_or_else(|| panic!("no {pointer} in {value}"))
}

fn panels() -> Vec<(String, String)> {
    let board: Value =
        serde_json::from_str(&deployed("monitoring/grafana-dashboard.json")).unwrap();
    let panels = board["panels"].as_array().unwrap();
    let of = |panel: &Value| {
        let title = text(panel, "/title").to_owned();
        let targets = panel["targets"].as_array().unwrap().clone();
        targets
            .into_iter()
            .map(move |it| (title.clone(), text(&it, "/expr").to_owned()))
    };
    panels.iter().flat_map(of).collect()
}

/// Names of metrics in an expression: words that look like those of etcd, of us or of a process.
fn named(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|it: char| !(it.is_ascii_alphanumeric() || it == '_'));
    let metric = |it: &&str| {
        ["etcd_", "process_"]
            .iter()
            .any(|prefix| it.starts_with(prefix))
    };
    words.filter(metric).map(str::to_owned).collect()
}

/// Names of families on a page; of a histogram its samples, too.
fn families(page: &str) -> BTreeSet<String> {
    let typed = page.lines().filter_map(|it| it.strip_prefix("# TYPE "));
    let mut found = BTreeSet::new();
    for line in typed {
        let (name, kind) = line.split_once(' ').unwrap();
        found.insert(name.to_owned());
        if kind == "histogram" {
            found.insert(format!("{name}_bucket"));
        }
    }
    found
}

/// The etcd of a Pod stands still.
pub fn freeze_etcd_of(pod: &Value) -> Frozen {
    Frozen::new(vec![processes::etcd_of(pod)])
}

/// What a Pod's labels and ports have to be for a PodMonitor to find it.
fn finds(monitor: &Value, labels: &Value, ports: &Value) {
    for (key, value) in monitor["spec"]["selector"]["matchLabels"]
        .as_object()
        .unwrap()
    {
        assert_eq!(&labels[key], value, "{key} in {labels}");
    }
    let port = &monitor["spec"]["podMetricsEndpoints"][0]["port"];
    let mut ports = ports.as_array().unwrap().iter();
    assert!(ports.any(|it| &it["name"] == port), "no port {port}");
}

/// What a PodMonitor makes of a member's Pod.
fn target(cluster: &str, pod: &Value) -> Value {
    json!({
        "targets": [format!("{}:2381", text(pod, "/status/podIP"))],
        "labels": {"namespace": "default", "pod": pod["metadata"]["name"], "cluster": cluster},
    })
}

#[test]
fn a_prometheus_sees_all_that_is_named_and_fires_when_etcd_is_frozen() {
    let made = images();
    let Some(guard) = made.operator.clone() else {
        return skip("the guard comes with the operator's image: make dist");
    };
    let etcd = made.etcd["3.6"].clone();
    let options = Options {
        images: &[&guard, &etcd],
        ..Options::default()
    };
    let Some(node) = Node::up(&options) else {
        return;
    };
    // The DaemonSet is not this test's: without a node to run on it is only looked at.
    let access = install_beside(&node);
    let manifests = documents("etcd-operator.yaml");
    let daemon_set = manifests
        .iter()
        .find(|it| it["kind"] == "DaemonSet")
        .unwrap();
    let operator = Operator::start_in(&node, &access);
    let spec = json!({"backup": {"interval": "6h", "destinations": [{"local": {}}]}});
    node.eventually("the cluster to be taken", SOON, || {
        node.try_apply(&cluster("default", "edge", &spec))
            .ok
            .then_some(())
    });
    let pod = node.ready("default", "edge-0");
    node.eventually("a verified snapshot", SOON, || {
        let seen = node.try_json(&["get", "etcd", "edge"])?;
        seen["status"]["backups"]["lastVerified"]
            .is_object()
            .then_some(())
    });

    // The first one may be taken before the operator has told the worker what time it is, and has none then.
    let put = ["etcdctl", "put", "written", "1"];
    node.exec("default", "edge-0", "etcd", &put).good();
    node.apply(&object(
        "EtcdBackup",
        "default",
        "now",
        &json!({"cluster": "edge"}),
    ));
    node.eventually("a verified snapshot of a known time", SOON, || {
        let seen = node.try_json(&["get", "etcd", "edge"])?;
        seen["status"]["backups"]["lastVerified"]["created"]
            .is_string()
            .then_some(())
    });

    let monitors = documents("monitoring/podmonitor.yaml");
    let template = &daemon_set["spec"]["template"];
    finds(
        &monitors[0],
        &template["metadata"]["labels"],
        &template["spec"]["containers"][0]["ports"],
    );
    finds(
        &monitors[1],
        &pod["metadata"]["labels"],
        &pod["spec"]["containers"][0]["ports"],
    );
    let label = "etcd.edge-operator.io/cluster";
    let found: String = label
        .chars()
        .map(|it| if it.is_ascii_alphanumeric() { it } else { '_' })
        .collect();
    let relabeled = text(
        &monitors[1],
        "/spec/podMetricsEndpoints/0/relabelings/0/sourceLabels/0",
    );
    assert_eq!(relabeled, format!("__meta_kubernetes_pod_label_{found}"));
    assert_eq!(pod["metadata"]["labels"][label], "edge");

    let address = text(&pod, "/status/podIP");
    let member = format!("{address}:2381");
    let theirs = node
        .run_in_node(&[
            "curl",
            "--silent",
            "--fail",
            &format!("http://{member}/metrics"),
        ])
        .good();
    let three = json!({"size": 3});
    node.apply(&cluster("default", "trio", &three));
    let status = node.eventually("three members", GROWS_WITHIN, || {
        let seen = node.try_json(&["get", "etcd", "trio"])?;
        (seen["status"]["ready"] == "3/3").then(|| seen["status"].clone())
    });
    let pods = ["trio-0", "trio-1", "trio-2"].map(|it| node.ready("default", it));
    // There are holds only where there is one.
    node.apply(&cluster("default", "held", &json!({"paused": true})));
    let ours = node.eventually("a hold", SOON, || {
        let (status, page) = operator.get("/metrics")?;
        assert_eq!(status, 200);
        page.contains("\netcd_operator_hold{").then_some(page)
    });
    node.kubectl(&["delete", "etcd", "held"]).good();
    let mut there = families(&theirs);
    there.extend(families(&ours));
    let alerts = alerts();
    let rules_of = alerts
        .iter()
        .map(|it| (text(it, "/alert").to_owned(), text(it, "/expr").to_owned()));
    for (what, expression) in rules_of.chain(panels()) {
        let names = named(&expression);
        assert!(!names.is_empty(), "{what}: {expression}");
        for name in names {
            assert!(
                there.contains(&name),
                "{what} names {name}, which nobody tells"
            );
        }
    }

    let of_three: Vec<Value> = pods.iter().map(|it| target("trio", it)).collect();
    // As the PodMonitors make it of what they find.
    let configuration = json!({
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yml"],
        "scrape_configs": [
            {
                "job_name": "etcd-operator/etcd-operator",
                "honor_labels": monitors[0]["spec"]["podMetricsEndpoints"][0]["honorLabels"],
                "static_configs": [{
                    "targets": [operator.address().to_string()],
                    "labels": {"namespace": "etcd-operator", "pod": "etcd-operator-x"},
                }],
            },
            {
                "job_name": "etcd-operator/etcd-members",
                "static_configs": [target("edge", &pod), of_three[0], of_three[1], of_three[2]],
            },
        ],
    });
    // What takes minutes takes seconds here.
    let mut quick = rules();
    for group in quick["groups"].as_array_mut().unwrap() {
        for rule in group["rules"].as_array_mut().unwrap() {
            rule["for"] = json!("2s");
        }
    }
    let mut at = operator.address();
    at.set_port(9090);
    let inside = ["nsenter", &node.network()];
    let texts = (configuration.to_string(), quick.to_string());
    let Some(prometheus) = Prometheus::up_at(at, &inside, &texts.0, &[("rules.yml", &texts.1)])
    else {
        return;
    };
    for (title, expression) in panels() {
        let expression = expression
            .replace("$namespace", "default")
            .replace("$cluster", "edge");
        prometheus.eventually(&format!("{title}: {expression}"), SOON, || {
            let seen = prometheus.query(&expression);
            let right = !seen.is_empty()
                && seen
                    .iter()
                    .all(|it| it.0["namespace"] == "default" && it.0["cluster"] == "edge");
            right.then_some(())
        });
    }
    let firing = || prometheus.firing();
    // The node is the only one.
    let is_peace = || firing() == [SHARED];
    prometheus.eventually("peace", SOON, || is_peace().then_some(()));

    let frozen = freeze_etcd_of(&pod);
    prometheus.eventually("the alert", SOON, || {
        firing()
            .contains(&"EtcdNotAvailable".to_owned())
            .then_some(())
    });
    let alerts = prometheus.api("/api/v1/alerts", &[]);
    let alerts = alerts["alerts"].as_array().unwrap();
    let fired = alerts
        .iter()
        .find(|it| it["labels"]["alertname"] == "EtcdNotAvailable")
        .unwrap();
    assert_eq!(
        text(fired, "/annotations/summary"),
        "etcd default/edge does not answer"
    );
    drop(frozen);
    prometheus.eventually("peace", SOON, || is_peace().then_some(()));

    let follows = |it: &Value| {
        let members = status["members"].as_array().unwrap();
        let own = members
            .iter()
            .find(|row| row["name"] == it["metadata"]["name"]);
        own.unwrap()["leader"] == false
    };
    let follower = pods.iter().find(|it| follows(it)).unwrap();
    let frozen = freeze_etcd_of(follower);
    prometheus.eventually("the alerts", SOON, || {
        let now = firing();
        let both = ["EtcdMemberDown", "EtcdQuorumAtRisk"];
        both.iter()
            .all(|it| now.contains(&(*it).to_owned()))
            .then_some(())
    });
    drop(frozen);
    prometheus.eventually("peace", SOON, || is_peace().then_some(()));

    let mut next = 0;
    prometheus.eventually("the alert", SOON, || {
        next += 1;
        for row in status["members"].as_array().unwrap() {
            // Who does not lead refuses.
            let id = text(&status["members"][next % 3], "/id");
            let command = ["etcdctl", "move-leader", id];
            node.exec("default", text(row, "/name"), "etcd", &command);
        }
        firing()
            .contains(&"EtcdLeaderChanges".to_owned())
            .then_some(())
    });

    // Nobody looks after it any more, and etcd's own series tell so.
    drop(operator);
    prometheus.eventually("the alert", SOON, || {
        firing()
            .contains(&"EtcdOperatorSilent".to_owned())
            .then_some(())
    });
    std::thread::sleep(Duration::from_secs(1));
    assert!(
        !firing().contains(&"EtcdNoLeader".to_owned()),
        "etcd itself serves"
    );
}
