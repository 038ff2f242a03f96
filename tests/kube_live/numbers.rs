//! Figures on a node (`make bench`): ratios of one run, against a bare Pod of the same image.

mod addresses;
mod three;

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::claims::{directory, snapshots_in};
use crate::lab::{SOON, is_true};
use crate::nodes::{all_ready, holder, operator_on};
use crate::operated::{Operated, document, pass};
use crate::operator::USER;
use crate::table::{Row, Table};

/// etcd as somebody would write it by hand, without TLS, on a claim of the same class.
const BARE: &str = r"
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: bare}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 2Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: bare}
spec:
  terminationGracePeriodSeconds: 60
  containers:
  - name: etcd
    image: quay.io/coreos/etcd:v3.6.16
    command: [/usr/local/bin/etcd, --data-dir=/data/etcd, '--listen-client-urls=http://0.0.0.0:2379', '--advertise-client-urls=http://127.0.0.1:2379', '--listen-metrics-urls=http://0.0.0.0:2381', --heartbeat-interval=100, --election-timeout=500]
    ports: [{name: metrics, containerPort: 2381}]
    readinessProbe: {httpGet: {path: /readyz, port: metrics}, periodSeconds: 1, timeoutSeconds: 5}
    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: bare}}]
";

const APPLIED: usize = 5;
/// The kubelet looks at what has ended once a second: one round lands early and the next one late.
const DELETED: usize = 8;
/// Beside the first one.
const MORE: usize = 49;
const IDLE_SECONDS: u64 = 120;
/// Against a bare Pod.
const RATIO_MAX: f64 = 1.5;
/// Resident memory with one cluster, and with 50, in MiB.
const ONE_MIB_MAX: f64 = 10.0;
const FIFTY_MIB_MAX: f64 = 18.0;
/// What an operator that has just come asks the API for, with 50 clusters.
const REQUESTS_MAX: usize = 300;
/// Scheduled snapshots of a cluster while requests are counted.
const SNAPSHOTS: usize = 3;
/// A stand-by takes the Lease over that the one before has released.
const TAKES_OVER_MAX: Duration = Duration::from_secs(1);
/// The kubelet, the scheduler and others write, too: two spans of the same length differ by so much.
const WRITES_NOISE: f64 = 1.25;
const NEXT_ACTS_MAX: Duration = Duration::from_secs(3);

fn mean(all: &[Duration]) -> Duration {
    all.iter().sum::<Duration>() / u32::try_from(all.len()).unwrap()
}

/// Means, and their ratio.
fn row(figure: &str, ours: &[Duration], bare: &[Duration]) -> Row {
    println!("{figure}: ours {ours:.2?}, bare {bare:.2?}");
    let (ours, bare) = (mean(ours), mean(bare));
    let ratio = ours.as_secs_f64() / bare.as_secs_f64();
    Row::new(figure, format!("{ours:.2?}")).against(
        format!("bare Pod {bare:.2?}"),
        ratio,
        Some(RATIO_MAX),
    )
}

fn memory(figure: &str, it: &Operated, limit: f64) -> Row {
    let mib = resident(it);
    Row::new(figure, format!("{mib:.1} MiB")).promised(format!("<= {limit} MiB"), mib <= limit)
}

fn bare_put(it: &Operated) -> bool {
    let command = ["/usr/local/bin/etcdctl", "put", "a", "b"];
    it.exec("default", "bare", "etcd", &command).ok
}

fn bare_ready(it: &Operated, name: &str) {
    it.eventually("a bare pod", SOON, || {
        is_true(&it.try_json(&["get", "pod", name])?, "Ready").then_some(())
    });
}

/// The resident memory of the operator's process in the lab, in MiB.
fn resident(it: &Operated) -> f64 {
    let found = it.processes("etcd-operator controller");
    assert_eq!(found.len(), 1, "one operator");
    let status = std::fs::read_to_string(found[0].join("status")).unwrap();
    let line = status.lines().find(|it| it.starts_with("VmRSS:")).unwrap();
    let kib: f64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib / 1024.0
}

/// Revisions of the API's datastore, which are its writes, in so many seconds.
fn written(it: &Operated, seconds: u64) -> u64 {
    let revision = || {
        let all = it.kubectl(&["get", "--raw", "/api/v1/namespaces?limit=1"]);
        let all: Value = serde_json::from_str(&all.good()).unwrap();
        let revision = all["metadata"]["resourceVersion"].as_str().unwrap();
        revision.parse::<u64>().unwrap()
    };
    let before = revision();
    pass(seconds);
    revision() - before
}

/// From apply to Available and to Ready, on new claims. The last ones of both stay.
fn applied(it: &Operated) -> (Row, String) {
    let name = |round: usize| format!("one{round}");
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for round in 0..APPLIED {
        if round > 0 {
            it.kubectl(&["delete", "pod,pvc", "bare"]).good();
            // Not again of that name: what it was outlives its claim.
            let last = name(round - 1);
            it.kubectl(&["delete", "etcdcluster", &last]).good();
            it.gone(&["pod", &format!("{last}-0")]);
            it.kubectl(&["delete", "pvc", &format!("data-{last}-0")])
                .good();
        }
        let begun = Instant::now();
        it.apply(&document("EtcdCluster", &name(round), "{}"));
        it.available(&name(round));
        ours.push(begun.elapsed());
        it.put(&name(round), "a", "b");

        let begun = Instant::now();
        it.apply(BARE);
        bare_ready(it, "bare");
        bare.push(begun.elapsed());
        assert!(bare_put(it));
    }
    let row = row("apply to Available", &ours, &bare);
    (row, name(APPLIED - 1))
}

/// From the deletion to an acknowledged write; the bare Pod is made again by hand, at once.
fn deleted(it: &Operated, name: &str) -> Row {
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..DELETED {
        let uid = it.pod_uid(name).unwrap();
        let begun = Instant::now();
        it.kubectl(&["delete", "pod", &format!("{name}-0"), "--wait=false"])
            .good();
        it.eventually("another pod", SOON, || {
            it.pod_uid(name).filter(|it| *it != uid)
        });
        it.put(name, "a", "c");
        ours.push(begun.elapsed());

        let begun = Instant::now();
        it.kubectl(&["delete", "pod", "bare"]).good();
        it.apply(BARE);
        it.eventually("a write", SOON, || bare_put(it).then_some(()));
        bare.push(begun.elapsed());
    }
    row("pod deleted to the next write", &ours, &bare)
}

/// The API's datastore, with the operator and without it.
fn datastore(it: &Operated) -> Row {
    let with = written(it, IDLE_SECONDS);
    let arguments = ["delete", "ds", "-n", "etcd-operator", "etcd-operator"];
    it.kubectl(&arguments).good();
    it.gone(&["ds", "-n", "etcd-operator", "etcd-operator"]);
    pass(20);
    let without = written(it, IDLE_SECONDS);
    it.install();
    println!("writes of the datastore: with the operator {with}, without {without}");
    #[expect(clippy::cast_precision_loss, reason = "writes of minutes")]
    let ratio = with as f64 / without.max(1) as f64;
    let figure = format!("writes of the API's datastore in {IDLE_SECONDS} s");
    Row::new(figure, with.to_string()).against(
        format!("without operator {without}"),
        ratio,
        Some(WRITES_NOISE),
    )
}

/// The DaemonSet makes the next Pod when the last one has ended.
fn next_acts(it: &Operated) -> Row {
    let old = it.acting()["metadata"]["uid"].clone();
    let begun = Instant::now();
    let mut arguments = vec!["delete", "pod", "-n", "etcd-operator"];
    arguments.extend(["--all", "--wait=false"]);
    it.kubectl(&arguments).good();
    it.eventually("the next operator to act", SOON, || {
        let log = it.kubectl(&["logs", "-n", "etcd-operator", "ds/etcd-operator"]);
        let fresh = log.ok && log.stdout.contains("this operator acts");
        let pods = it.try_json(&["get", "pods", "-n", "etcd-operator"])?;
        let all = pods["items"].as_array()?;
        (fresh && all.len() == 1 && all[0]["metadata"]["uid"] != old).then_some(())
    });
    let took = begun.elapsed();
    Row::new(
        "SIGTERM of the acting pod to the next one acting",
        format!("{took:.1?}"),
    )
    .promised("<= 3 s", took <= NEXT_ACTS_MAX)
}

/// What the operator asks the API for, the looks of an idle one aside, while the worker takes snapshots.
fn scheduled(it: &Operated) -> Row {
    let spec = "{backup: {interval: 30s, destinations: [{local: {}}]}}";
    it.apply(&document("EtcdCluster", "till", spec));
    it.available("till");
    it.says("till", "BackupHealthy", "Verified");
    let place = it.path(1, &directory(it, "till-snapshots")).join("till");
    let count = || snapshots_in(&place);
    pass(20);
    let (mark, before) = (it.mark(), count());
    let mut written = 0;
    it.eventually("three snapshots", 2 * SOON, || {
        // With nothing new there is none to take.
        it.put("till", "a", &written.to_string());
        written += 1;
        (count() >= before + SNAPSHOTS).then_some(())
    });
    let mut asked = it.requests("", mark);
    asked.retain(|it| it.user == USER && !["get", "watch", "list"].contains(&it.verb.as_str()));
    for it in &asked {
        println!("{} {} {}", it.verb, it.resource, it.name);
    }
    it.kubectl(&["delete", "etcdcluster", "till"]).good();
    // The status names each; nothing else is asked for one.
    asked.retain(|it| it.resource != "etcdclusters/status");
    let figure =
        format!("writes to the API for {SNAPSHOTS} scheduled snapshots, beside the status");
    Row::new(figure, asked.len().to_string()).promised("0", asked.is_empty())
}

/// What an operator that has just come asks the API for within half a minute.
fn comes(it: &Operated) -> Row {
    let mark = it.mark();
    it.next_operator();
    pass(30);
    let mut asked = it.requests("", mark);
    asked.retain(|it| it.user == USER);
    let mut kinds = std::collections::BTreeMap::new();
    for it in &asked {
        let kind = format!("{} {}", it.verb, it.resource);
        *kinds.entry(kind).or_insert(0_usize) += 1;
    }
    println!("requests of an operator that comes to 50 clusters: {kinds:?}");
    let figure = "requests of an operator that has just come, with 50 clusters";
    Row::new(figure, asked.len().to_string())
        .promised(format!("<= {REQUESTS_MAX}"), asked.len() <= REQUESTS_MAX)
}

/// On two nodes one stands by, and takes over before the DaemonSet has made another one.
#[test]
#[ignore = "figures, by make bench"]
fn figures_of_two_nodes() {
    let Some(it) = Operated::two_nodes(false) else {
        return;
    };
    let server = "node-role.kubernetes.io/control-plane=";
    it.kubectl(&["label", "node", "edge2", server]).good();
    all_ready(&it);
    pass(20);
    let mut took = Vec::new();
    for _ in 0..APPLIED {
        let acting = holder(&it);
        let pod = operator_on(&it, &acting);
        let begun = Instant::now();
        it.kubectl(&["delete", "pod", "-n", "etcd-operator", &pod, "--wait=false"])
            .good();
        it.eventually("the stand-by to act", SOON, || {
            let now = holder(&it);
            (!now.is_empty() && now != acting).then_some(())
        });
        took.push(begun.elapsed());
        all_ready(&it);
        pass(5);
    }
    let longest = took.iter().max().copied().unwrap_or_default();
    let figure = "SIGTERM of the acting Pod to the Lease of the stand-by, longest of five";
    let mut table = Table::default();
    table.extend(vec![
        Row::new(figure, format!("{longest:.1?}")).promised("<= 1 s", longest <= TAKES_OVER_MAX),
    ]);
    table.publish("kubernetes-two-nodes");
}

#[test]
#[ignore = "figures, by make bench"]
fn figures_of_a_node() {
    let Some(it) = Operated::up() else {
        return;
    };
    let (row, name) = applied(&it);
    let mut rows = vec![row, deleted(&it, &name)];
    it.kubectl(&["delete", "pod,pvc", "bare"]).good();
    pass(20);
    rows.push(memory("operator with one cluster: VmRSS", &it, ONE_MIB_MAX));
    rows.push(datastore(&it));
    rows.push(scheduled(&it));
    rows.push(next_acts(&it));
    for index in 0..MORE {
        it.apply(&document("EtcdCluster", &format!("more{index}"), "{}"));
    }
    for index in 0..MORE {
        it.available(&format!("more{index}"));
    }
    pass(30);
    let figure = "operator with 50 clusters that all serve: VmRSS";
    rows.push(memory(figure, &it, FIFTY_MIB_MAX));
    rows.push(comes(&it));
    let figure = "the same of an operator that has just come";
    rows.push(memory(figure, &it, FIFTY_MIB_MAX));
    let mut table = Table::default();
    table.extend(rows);
    table.publish("kubernetes");
}
