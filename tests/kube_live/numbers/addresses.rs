//! Why each member has a Service with an address of its own: the same bare cluster of three, whose members know each other by
//! such addresses, or by the names of a headless Service.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::claims::claim;
use crate::lab::{SOON, is_true};
use crate::operated::Operated;
use crate::table::{Row, Table};

const MEMBERS: [&str; 3] = ["bare-0", "bare-1", "bare-2"];
/// etcd tries again after 5 s at most; a Pod without DNS is given this long.
const WITHOUT_DNS: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, PartialEq)]
enum By {
    Service,
    Name,
}

fn service(name: &str, by: By) -> Value {
    let mut it = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name},
        "spec": {
            "publishNotReadyAddresses": true,
            "selector": if by == By::Name { json!({"app": "bare"}) } else { json!({"member": name}) },
            "ports": [{"name": "peer", "port": 2380}],
        },
    });
    if by == By::Name {
        it["spec"]["clusterIP"] = json!("None");
    }
    it
}

fn pod(image: &str, name: &str, urls: &[String; 3]) -> Value {
    let own = MEMBERS.iter().position(|it| *it == name).unwrap();
    let all = MEMBERS.iter().zip(urls);
    let all: Vec<String> = all.map(|(name, url)| format!("{name}={url}")).collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "bare", "member": name}},
        "spec": {
            "hostname": name, "subdomain": "bare",
            "containers": [{
                "name": "etcd", "image": image,
                "command": ["/usr/local/bin/etcd", "--data-dir=/data/etcd", format!("--name={name}"),
                    "--listen-client-urls=http://0.0.0.0:2379", "--advertise-client-urls=http://127.0.0.1:2379",
                    "--listen-peer-urls=http://0.0.0.0:2380", format!("--initial-advertise-peer-urls={}", urls[own]),
                    format!("--initial-cluster={}", all.join(",")), "--listen-metrics-urls=http://0.0.0.0:2381",
                    "--heartbeat-interval=100", "--election-timeout=500"],
                "ports": [{"name": "metrics", "containerPort": 2381}],
                "readinessProbe": {"httpGet": {"path": "/readyz", "port": "metrics"}, "periodSeconds": 1},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}],
        },
    })
}

/// What three take to serve, what one whose Pod is lost takes to serve again, and the same while nobody answers for names;
/// none: it does not.
struct Measured {
    start: Duration,
    failover: Duration,
    without_dns: Option<Duration>,
}

/// A read that the leader has agreed to.
fn serves(it: &Operated, name: &str) -> bool {
    let get = ["/usr/local/bin/etcdctl", "get", "a", "--command-timeout=1s"];
    it.exec("default", name, "etcd", &get).ok
}

fn again(it: &Operated, made: &Value, within: Duration) -> Option<Duration> {
    let name = made["metadata"]["name"].as_str().unwrap();
    let begun = Instant::now();
    it.kubectl(&["delete", "pod", name, "--grace-period=1"])
        .good();
    it.apply(&made.to_string());
    while begun.elapsed() < within {
        if serves(it, name) {
            return Some(begun.elapsed());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    None
}

fn measure(it: &Operated, image: &str, by: By) -> Measured {
    let urls = match by {
        By::Name => {
            it.apply(&service("bare", by).to_string());
            MEMBERS.map(|it| format!("http://{it}.bare.default.svc.cluster.local:2380"))
        }
        By::Service => MEMBERS.map(|name| {
            it.apply(&service(name, by).to_string());
            let made = it.json(&["get", "service", name]);
            let address = made["spec"]["clusterIP"].as_str().unwrap();
            format!("http://{address}:2380")
        }),
    };
    let pods = MEMBERS.map(|name| pod(image, name, &urls));
    let begun = Instant::now();
    for (name, pod) in MEMBERS.iter().zip(&pods) {
        it.apply(&claim(name));
        it.apply(&pod.to_string());
    }
    for name in MEMBERS {
        it.eventually("a bare member", SOON, || {
            is_true(&it.try_json(&["get", "pod", name])?, "Ready").then_some(())
        });
    }
    let start = begun.elapsed();
    let failover = again(it, &pods[1], SOON).unwrap();
    let slice = ["endpointslice", "kube-dns-1", "-n", "kube-system"];
    let mut dns = it.json(&["get", slice[0], slice[1], slice[2], slice[3]]);
    it.kubectl(&["delete", slice[0], slice[1], slice[2], slice[3]])
        .good();
    let without_dns = again(it, &pods[1], WITHOUT_DNS);
    dns["metadata"] = json!({"name": "kube-dns-1", "namespace": "kube-system",
        "labels": {"kubernetes.io/service-name": "kube-dns"}});
    it.apply(&dns.to_string());
    for name in MEMBERS {
        it.kubectl(&["delete", "pod", name, "--grace-period=0", "--force"])
            .good();
        it.kubectl(&["delete", "pvc", name]).good();
    }
    Measured {
        start,
        failover,
        without_dns,
    }
}

#[test]
#[ignore = "figures, by make bench"]
fn figures_of_addresses_and_of_names() {
    let Some(it) = Operated::up() else {
        return;
    };
    let image = it.images.etcd["3.6"].reference.clone();
    let ours = measure(&it, &image, By::Service);
    let names = measure(&it, &image, By::Name);
    let seconds = |it: Duration| format!("{:.1} s", it.as_secs_f64());
    let never = || format!("not within {} s", WITHOUT_DNS.as_secs());
    let row = |figure: &str, ours: String, names: String| {
        Row::new(figure, ours).compared(format!("by names of a headless Service {names}"))
    };
    let mut table = Table::default();
    table.extend(vec![
        row(
            "three bare members that know each other by Services, to all ready",
            seconds(ours.start),
            seconds(names.start),
        ),
        row(
            "one Pod of them lost and made again, to a read that the leader agrees to",
            seconds(ours.failover),
            seconds(names.failover),
        ),
        row(
            "the same while the cluster's DNS is away",
            ours.without_dns.map_or_else(never, seconds),
            names.without_dns.map_or_else(never, seconds),
        ),
    ]);
    table.publish("kubernetes-addresses");
    assert!(ours.without_dns.is_some());
}
