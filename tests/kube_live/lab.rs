//! A real Kubernetes for a test, by `tests/tools/kube/`: nodes, or an API server alone.
//!
//! A lab ends with its value. If the test is killed, its keeper sees that and ends the lab; if that is
//! killed too, the next lab in its slot clears it away.

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::cluster::output;
#[allow(unused_imports, reason = "names for tests to come")]
pub use crate::cluster::{Access, Cluster, Mark, Output, Request};
#[allow(unused_imports, reason = "names for tests to come")]
pub use crate::images::{Image, Images, images};
use crate::processes;
pub use crate::prometheus::Prometheus;

/// For what takes seconds on a quiet machine.
pub const SOON: Duration = Duration::from_secs(120);

/// What every lab needs.
const COMMANDS: &[&str] = &["kube-apiserver", "kubectl", "kube-controller-manager"];
/// What nodes need besides.
const NODE_COMMANDS: &[&str] = &[
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "coredns",
    "kine",
    "local-path-provisioner",
];
/// Debian's part of it, by a file of each package.
const PACKAGES: &[(&str, &str)] = &[
    ("containerd", "/usr/bin/containerd"),
    ("runc", "/usr/sbin/runc"),
    ("containernetworking-plugins", "/usr/lib/cni/bridge"),
    ("iptables", "/usr/sbin/iptables"),
    ("nftables", "/usr/sbin/nft"),
    ("iproute2", "/usr/bin/ip"),
    ("e2fsprogs", "/usr/sbin/mkfs.ext4"),
];

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where `make` puts what tests need.
pub fn tools() -> PathBuf {
    root().join("target/tools")
}

pub use crate::skip::skip;

/// What limits containers, where neither version of cgroups has it.
fn missing_controller() -> Option<&'static str> {
    let groups = Path::new("/sys/fs/cgroup");
    let unified = fs::read_to_string(groups.join("cgroup.controllers")).unwrap_or_default();
    let has =
        |it: &&str| unified.split_whitespace().any(|own| own == *it) || groups.join(it).is_dir();
    ["cpu", "memory", "pids"].into_iter().find(|it| !has(it))
}

/// Whether all is there; says what is skipped for want of what.
fn can(nodes: bool) -> bool {
    let commands = COMMANDS
        .iter()
        .chain(NODE_COMMANDS.iter().filter(|_| nodes));
    let missing: Vec<&str> = commands
        .copied()
        .filter(|it| !tools().join("kubernetes").join(it).exists())
        .collect();
    if !missing.is_empty() {
        skip(&format!(
            "tests/tools/kubernetes.sh builds {} with Go",
            missing.join(" ")
        ));
        return false;
    }
    if !tools().join("etcd/3.6/etcd").exists() {
        skip("an API server lives on etcd: make etcd-3.6");
        return false;
    }
    if !nodes {
        return true;
    }
    if !is_root() {
        skip("a node's namespaces and cgroups need root");
        return false;
    }
    if let Some(missing) = missing_controller() {
        skip(&format!(
            "a node needs cgroups with the controller {missing}"
        ));
        return false;
    }
    for (package, file) in PACKAGES {
        if !Path::new(file).exists() {
            skip(&format!("a node needs Debian's package {package}"));
            return false;
        }
    }
    images();
    for name in ["pause", "busybox", "local-path"] {
        if !crate::images::dir().join(format!("{name}.tar")).exists() {
            skip(&format!("the image {name} could not be made"));
            return false;
        }
    }
    true
}

pub fn is_root() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|it| it.starts_with("Uid:")).unwrap();
    line.split_whitespace().nth(2) == Some("0")
}

/// What nodes to have.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    pub nodes: u32,
    /// Imported on every node.
    pub images: &'a [&'a Image],
    /// A node that is cut off is NotReady after 16 s instead of 50 s, and 5 s later Pods leave it that do
    /// not say otherwise. Its status is written every 4 s, so not where writes are counted.
    pub is_fast: bool,
    /// libfaketime, where the API server's certificate must be valid from 1970 on; else empty.
    pub faketime: &'a str,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Options {
            nodes: 1,
            images: &[],
            is_fast: false,
            faketime: "",
        }
    }
}

/// Real nodes, `edge1` and so on, with the control plane on the first.
pub struct Node(Cluster);

impl Deref for Node {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.0
    }
}

impl Node {
    /// Nodes that are Ready, with storage; none where they are not to be had.
    pub fn up(options: &Options<'_>) -> Option<Node> {
        if !can(true) {
            return None;
        }
        let tars: Vec<&Path> = options.images.iter().map(|it| it.tar.as_path()).collect();
        let leave = if options.is_fast {
            "--default-not-ready-toleration-seconds=5 --default-unreachable-toleration-seconds=5"
        } else {
            ""
        };
        let environment = [
            ("NODES", options.nodes.to_string()),
            ("FAST", u8::from(options.is_fast).to_string()),
            ("API_ARGUMENTS", leave.to_owned()),
            ("API_FAKETIME", options.faketime.to_owned()),
        ];
        Some(Node(Cluster::up(&environment, &tars)))
    }

    pub fn exec(&self, namespace: &str, pod: &str, container: &str, command: &[&str]) -> Output {
        let mut arguments = vec!["exec", "-n", namespace, pod, "-c", container, "--"];
        arguments.extend(command);
        self.kubectl(&arguments)
    }

    #[track_caller]
    pub fn logs(&self, namespace: &str, pod: &str, container: &str) -> String {
        self.kubectl(&["logs", "-n", namespace, pod, "-c", container])
            .good()
    }

    /// Waits until a pod is Ready; the pod.
    #[track_caller]
    pub fn ready(&self, namespace: &str, pod: &str) -> Value {
        self.eventually(&format!("pod {pod} to be ready"), SOON, || {
            let pod = self.try_json(&["get", "pod", "-n", namespace, pod])?;
            is_true(&pod, "Ready").then_some(pod)
        })
    }

    /// This host's program, on the first node's network: it reaches pods and services.
    pub fn run_in_node(&self, command: &[&str]) -> Output {
        output(Command::new("nsenter").arg(self.network()).args(command))
    }

    /// The first node's network, as `nsenter` takes it.
    pub fn network(&self) -> String {
        self.network_of(1)
    }

    pub fn network_of(&self, node: u32) -> String {
        let holder = fs::read_to_string(self.dir.join(format!("run/network{node}.pid"))).unwrap();
        format!("--net=/proc/{}/ns/net", holder.trim())
    }

    /// A node's path, as this host sees it until the node's next reboot.
    pub fn path(&self, node: u32, path: &str) -> PathBuf {
        let holder = fs::read_to_string(self.dir.join(format!("run/holder{node}.pid"))).unwrap();
        PathBuf::from(format!("/proc/{}/root{path}", holder.trim()))
    }

    pub fn kubelet_restart(&self) {
        self.happen(&["kubelet-restart", "1"]);
    }

    pub fn kubelet_stop(&self, node: u32) {
        self.happen(&["kubelet-stop", &node.to_string()]);
    }

    pub fn kubelet_start(&self, node: u32) {
        self.happen(&["kubelet-start", &node.to_string()]);
    }

    /// The first node's power goes and returns; back when it is Ready after that.
    #[track_caller]
    pub fn reboot(&self) {
        self.reboot_of(&[1]);
    }

    /// One of several, or several at once.
    #[track_caller]
    pub fn reboot_of(&self, nodes: &[u32]) {
        let boots: Vec<String> = nodes
            .iter()
            .map(|it| self.happen(&["reboot", &it.to_string()]))
            .collect();
        for (node, boot) in nodes.iter().zip(boots) {
            self.booted(*node, &boot);
        }
    }

    fn booted(&self, node: u32, boot: &str) {
        let name = format!("edge{node}");
        self.eventually("the node after its reboot", SOON, || {
            let seen = self.try_json(&["get", "node", &name, "--request-timeout=5s"])?;
            let is_new = seen["status"]["nodeInfo"]["bootID"] == boot.trim();
            (is_new && is_true(&seen, "Ready")).then_some(())
        });
    }

    /// A condition of a node, such as `Ready`.
    pub fn node_is(&self, node: u32, condition: &str, status: &str) -> bool {
        let seen = self.try_json(&["get", "node", &format!("edge{node}")]);
        seen.is_some_and(|it| status_of(&it, condition) == status)
    }

    /// Imports an image on every node.
    pub fn import(&self, image: &Image) {
        for node in 1..=self.nodes() {
            self.happen(&["import", &node.to_string(), image.tar.to_str().unwrap()]);
        }
    }

    pub fn remove_image(&self, image: &Image) {
        for node in 1..=self.nodes() {
            self.happen(&["remove-image", &node.to_string(), &image.reference]);
        }
    }

    /// Processes of this lab's Pods: beside it there may be others.
    pub fn processes(&self, words: &str) -> Vec<PathBuf> {
        let lab = format!("/{}/", self.settings["NAME"]);
        processes::all(|it| {
            processes::command(it).contains(words) && processes::groups(it).contains(&lab)
        })
    }

    /// Another reference to an image that is on every node.
    pub fn tag_image(&self, reference: &str, new: &str) {
        for node in 1..=self.nodes() {
            self.happen(&["tag-image", &node.to_string(), reference, new]);
        }
    }

    /// The wire to a node other than the first.
    pub fn cut(&self, node: u32) {
        assert!(node > 1, "the API server is on the first: stop its kubelet");
        self.happen(&["cut", &node.to_string()]);
    }

    pub fn heal(&self, node: u32) {
        self.happen(&["heal", &node.to_string()]);
    }

    /// All but the last 2% of a node's disk, the volumes' too, is taken; kubelet evicts below 5%.
    pub fn disk_fill(&self, node: u32) {
        self.happen(&["fill", &node.to_string()]);
    }

    pub fn disk_empty(&self, node: u32) {
        self.happen(&["empty", &node.to_string()]);
    }

    pub fn nodes(&self) -> u32 {
        self.settings["NODES"].parse().unwrap()
    }
}

/// What an object's condition says.
pub fn status_of(object: &Value, condition: &str) -> String {
    let conditions = object["status"]["conditions"].as_array();
    let found = conditions.and_then(|all| all.iter().find(|it| it["type"] == condition));
    found.map_or_else(String::new, |it| it["status"].as_str().unwrap().to_owned())
}

pub fn is_true(object: &Value, condition: &str) -> bool {
    status_of(object, condition) == "True"
}

/// What the API server alone is to have.
#[derive(Clone, Debug, Default)]
pub struct ApiOptions {
    /// The controllers: owners, namespaces that end, service accounts, StatefulSets.
    pub controllers: bool,
    /// libfaketime, where the API server's certificate must be valid from 1970 on; else empty.
    pub faketime: &'static str,
}

/// An API server with authorization on, on etcd, on loopback. Pods stay Pending.
pub struct Api(Cluster);

impl Deref for Api {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.0
    }
}

impl Api {
    pub fn up(options: &ApiOptions) -> Option<Api> {
        if !can(false) {
            return None;
        }
        let environment = [
            ("NODES", "0".to_owned()),
            ("CONTROLLERS", u8::from(options.controllers).to_string()),
            ("API_FAKETIME", options.faketime.to_owned()),
        ];
        Some(Api(Cluster::up(&environment, &[])))
    }
}
