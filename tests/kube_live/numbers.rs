//! Figures on a node (`make bench`): ratios of one run, against a bare Pod of the same image.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use crate::lab::{SOON, is_true};
use crate::operated::{Operated, document, pass};
use crate::processes;

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
    readinessProbe: {httpGet: {path: /readyz, port: metrics}, periodSeconds: 3, timeoutSeconds: 5}
    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: bare}}]
";

const APPLIED: usize = 5;
/// The kubelet looks at what has ended once a second: one round lands early and the next one late.
const DELETED: usize = 12;
const SERVING: usize = 19;
const IDLE_SECONDS: u64 = 120;

fn mean(all: &[Duration]) -> Duration {
    all.iter().sum::<Duration>() / u32::try_from(all.len()).unwrap()
}

/// A row of the table: means, and their ratio.
fn row(figure: &str, ours: &[Duration], bare: &[Duration]) -> String {
    println!("{figure}: ours {ours:.2?}, bare {bare:.2?}");
    let (ours, bare) = (mean(ours), mean(bare));
    let ratio = ours.as_secs_f64() / bare.as_secs_f64();
    format!("| {figure} | {ours:.2?} | {bare:.2?} | {ratio:.2} |\n")
}

fn bare_put(it: &Operated) -> bool {
    let command = ["/usr/local/bin/etcdctl", "put", "a", "b"];
    it.exec("default", "bare", "etcd", &command).ok
}

fn bare_ready(it: &Operated) {
    it.eventually("the bare pod", SOON, || {
        let pod = it.try_json(&["get", "pod", "bare"])?;
        is_true(&pod, "Ready").then_some(())
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

/// What the API's datastore gives to the disk in so many seconds, in KiB.
fn stored(it: &Operated, seconds: u64) -> u64 {
    let socket = it.dir.join("kine.sock");
    let socket = socket.to_str().unwrap();
    let datastores = processes::all(|it| {
        let command = processes::command(it);
        command.contains("kine --listen") && command.contains(socket)
    });
    let process = &datastores[0];
    let written = || {
        let io = std::fs::read_to_string(process.join("io")).unwrap();
        let mut lines = io.lines().filter_map(|it| it.strip_prefix("write_bytes: "));
        lines.next().unwrap().parse::<u64>().unwrap()
    };
    let before = written();
    pass(seconds);
    (written() - before) >> 10
}

/// From apply to Available and to Ready, on new claims. The last ones of both stay.
fn applied(it: &Operated) -> (String, String) {
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
        bare_ready(it);
        bare.push(begun.elapsed());
        assert!(bare_put(it));
    }
    let row = row("apply to Available", &ours, &bare);
    (row, name(APPLIED - 1))
}

/// From the deletion to an acknowledged write; the bare Pod is made again by hand, at once.
fn deleted(it: &Operated, name: &str) -> String {
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

#[test]
#[ignore = "figures, by make bench: 10 min"]
fn figures_of_a_node() {
    let Some(it) = Operated::up() else {
        return;
    };
    let mut table = String::from("| figure | ours | bare Pod | ratio |\n|---|---|---|---|\n");
    let (row, name) = applied(&it);
    table += &row;
    table += &deleted(&it, &name);
    it.kubectl(&["delete", "pod,pvc", "bare"]).good();
    pass(20);
    let _ = writeln!(
        table,
        "| operator with one cluster: VmRSS | {:.1} MiB | | |",
        resident(&it)
    );
    let mark = it.mark();
    pass(180);
    let counted: Vec<(String, usize)> = it
        .requests("", mark)
        .into_iter()
        .filter(|it| it.user == "system:serviceaccount:etcd-operator:etcd-operator")
        .fold(std::collections::BTreeMap::new(), |mut all, it| {
            *all.entry(format!("{} {}", it.verb, it.resource))
                .or_insert(0) += 1;
            all
        })
        .into_iter()
        .collect();
    let _ = writeln!(
        table,
        "| its requests in 3 idle minutes | {counted:?} | | |"
    );
    let with = stored(&it, IDLE_SECONDS);
    let arguments = ["delete", "ds", "-n", "etcd-operator", "etcd-operator"];
    it.kubectl(&arguments).good();
    it.gone(&["ds", "-n", "etcd-operator", "etcd-operator"]);
    pass(20);
    let without = stored(&it, IDLE_SECONDS);
    it.install();
    let _ = writeln!(
        table,
        "| the API's datastore to disk in {IDLE_SECONDS} s, with and without the operator | {with} KiB | {without} KiB | |"
    );
    let old = it.acting()["metadata"]["uid"].clone();
    let begun = Instant::now();
    it.kubectl(&[
        "delete",
        "pod",
        "-n",
        "etcd-operator",
        "--all",
        "--wait=false",
    ])
    .good();
    it.eventually("the next operator to act", SOON, || {
        let log = it.kubectl(&["logs", "-n", "etcd-operator", "ds/etcd-operator"]);
        let fresh = log.ok && log.stdout.contains("this operator acts");
        let pods = it.try_json(&["get", "pods", "-n", "etcd-operator"])?;
        let all = pods["items"].as_array()?;
        (fresh && all.len() == 1 && all[0]["metadata"]["uid"] != old).then_some(())
    });
    let _ = writeln!(
        table,
        "| SIGTERM of the acting pod to the next one acting | {:.1?} | | |",
        begun.elapsed()
    );
    for index in 0..49 {
        // More disks than these do not fit the node.
        let spec = format!("{{size: {}}}", usize::from(index < SERVING));
        it.apply(&document("EtcdCluster", &format!("more{index}"), &spec));
    }
    for index in 0..SERVING {
        it.available(&format!("more{index}"));
    }
    pass(60);
    let _ = writeln!(
        table,
        "| operator with 50 clusters, {} of them serving: VmRSS | {:.1} MiB | | |",
        SERVING + 1,
        resident(&it)
    );
    println!("{table}");
}
