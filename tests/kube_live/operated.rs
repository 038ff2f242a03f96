//! The operator in a lab: applied as a person would, and what it is asked there.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::cluster::output;
use crate::lab::{Image, Images, Node, Options, SOON, images, is_true, root, skip};

/// A node with the operator on it, acting.
pub struct Operated {
    pub node: Node,
    pub images: Images,
}

impl std::ops::Deref for Operated {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.node
    }
}

/// The images that a walk needs, or what is skipped.
fn wanted(images: &Images) -> Option<[&Image; 2]> {
    let Some(operator) = &images.operator else {
        skip("the operator's image is made by make dist, or named by ETCD_OPERATOR_IMAGE");
        return None;
    };
    let Some(etcd) = images.etcd.get("3.6") else {
        skip("an image of etcd 3.6 is made of target/tools/etcd/3.6");
        return None;
    };
    Some([operator, etcd])
}

impl Operated {
    /// Applies the two files, and waits until the DaemonSet's Pod is ready.
    pub fn up() -> Option<Operated> {
        Operated::up_with(&Options::default())
    }

    /// The same, on these nodes.
    pub fn up_with(options: &Options<'_>) -> Option<Operated> {
        let it = Operated::not_installed(options)?;
        it.install();
        Some(it)
    }

    /// Nodes with the images, and nothing applied.
    pub fn not_installed(options: &Options<'_>) -> Option<Operated> {
        let images = images();
        let options = Options {
            images: &wanted(&images)?,
            ..options.clone()
        };
        let node = Node::up(&options)?;
        Some(Operated { node, images })
    }

    /// With the cluster `one`, in which `kept` is 1.
    pub fn with_one() -> Option<Operated> {
        let it = Operated::up()?;
        it.apply(&document("EtcdCluster", "one", "{}"));
        it.available("one");
        it.put("one", "kept", "1");
        Some(it)
    }

    /// Two nodes. `is_fast`: as [`Options::is_fast`].
    pub fn two_nodes(is_fast: bool) -> Option<Operated> {
        Operated::up_with(&Options {
            nodes: 2,
            is_fast,
            ..Options::default()
        })
    }

    /// Three nodes, as many as members of `shop`.
    pub fn three_nodes() -> Option<Operated> {
        Operated::up_with(&Options {
            nodes: 3,
            ..Options::default()
        })
    }

    /// The node that a Pod was bound to.
    pub fn node_of(&self, pod: &str) -> Option<String> {
        let pod = self.try_json(&["get", "pod", pod])?;
        pod["spec"]["nodeName"].as_str().map(str::to_owned)
    }

    /// The cluster `one`, in which `kept` is 1, with a snapshot on its claim; copies of it go to this destination. The
    /// snapshot's name.
    #[track_caller]
    pub fn one_with_copies(&self, destination: &str) -> String {
        let spec = format!("{{backup: {{destinations: [{{local: {{}}}}, {destination}]}}}}");
        self.apply(&document("EtcdCluster", "one", &spec));
        self.available("one");
        self.put("one", "kept", "1");
        let first = self.snapshot("one", "first");
        first["status"]["snapshot"].as_str().unwrap().to_owned()
    }

    pub fn install(&self) {
        let file = |name: &str| root().join("deploy").join(name);
        let (crds, operator) = (file("crds.yaml"), file("etcd-operator.yaml"));
        let (crds, operator) = (crds.to_str().unwrap(), operator.to_str().unwrap());
        self.kubectl(&["apply", "-f", crds, "-f", operator]).good();
        self.acting();
    }

    /// Waits for the operator's Pod.
    pub fn acting(&self) -> Value {
        self.eventually("the operator's pod to be ready", SOON, || {
            let pods = self.try_json(&["get", "pods", "-n", "etcd-operator"])?;
            let mut ready = pods["items"]
                .as_array()?
                .iter()
                .filter(|it| it["metadata"]["deletionTimestamp"].is_null() && is_true(it, "Ready"));
            ready.next().cloned()
        })
    }

    /// The operator's Pods are deleted, and others act.
    pub fn next_operator(&self) {
        self.kubectl(&["delete", "pod", "-n", "etcd-operator", "--all"])
            .good();
        self.acting();
    }

    /// Nobody acts meanwhile.
    pub fn without_operator(&self, meanwhile: impl FnOnce()) {
        let on = |node: &str| {
            let patch =
                format!(r#"{{"spec":{{"template":{{"spec":{{"nodeSelector":{node}}}}}}}}}"#);
            let daemon_set = "daemonset/etcd-operator";
            self.kubectl(&["patch", daemon_set, "-n", "etcd-operator", "-p", &patch])
                .good();
        };
        on(r#"{"etcd-operator":"away"}"#);
        self.eventually("the operator to be away", SOON, || {
            let pods = self.try_json(&["get", "pods", "-n", "etcd-operator"])?;
            pods["items"].as_array()?.is_empty().then_some(())
        });
        meanwhile();
        on("null");
        self.acting();
    }

    pub fn operator_log(&self) -> String {
        let arguments = ["logs", "-n", "etcd-operator", "ds/etcd-operator"];
        self.kubectl(&arguments).stdout
    }

    /// What a Pod has said, by the files on its node: there it is also while the API server is not.
    pub fn log_on(&self, node: u32, pod: &str) -> String {
        let below = |dir: PathBuf| {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            entries.map(|it| it.path())
        };
        below(self.path(node, "/var/log/pods"))
            .filter(|it| it.to_string_lossy().contains(&format!("_{pod}_")))
            .flat_map(below)
            .flat_map(below)
            .filter_map(|it| std::fs::read_to_string(it).ok())
            .collect()
    }

    pub fn cluster(&self, name: &str) -> Value {
        self.json(&["get", "etcdcluster", name])
    }

    /// Waits until an EtcdCluster says that it serves.
    #[track_caller]
    pub fn available(&self, name: &str) -> Value {
        let what = format!("{name} to be available");
        self.eventually(&what, SOON, || {
            let it = self.try_json(&["get", "etcdcluster", name])?;
            is_true(&it, "Available").then_some(it)
        })
    }

    /// Waits for the reason of a condition.
    #[track_caller]
    pub fn says(&self, cluster: &str, condition: &str, reason: &str) -> Value {
        let what = format!("{cluster}: {condition} with {reason}");
        let mut said = String::new();
        self.eventually(&what, SOON, || {
            let it = self.try_json(&["get", "etcdcluster", cluster])?;
            let all = it["status"]["conditions"].as_array()?;
            let found = all.iter().find(|it| it["type"] == condition)?.clone();
            let now = format!("{}: {}", found["reason"], found["message"]);
            if now != said {
                println!("{cluster}: {condition}: {now}");
                said = now;
            }
            (found["reason"] == reason).then_some(found)
        })
    }

    /// A condition as it is now.
    pub fn says_now(&self, cluster: &str, condition: &str) -> Option<Value> {
        let it = self.try_json(&["get", "etcdcluster", cluster])?;
        let all = it["status"]["conditions"].as_array()?;
        all.iter().find(|it| it["type"] == condition).cloned()
    }

    /// etcdctl in the member's Pod, over TLS.
    pub fn try_etcdctl(&self, cluster: &str, words: &[&str]) -> Option<String> {
        // The Pod says where its etcd is; etcdctl refuses to be told twice.
        let mut command = vec!["/usr/local/bin/etcdctl"];
        command.extend(words);
        let output = self.exec("default", &format!("{cluster}-0"), "etcd", &command);
        output.ok.then_some(output.stdout)
    }

    #[track_caller]
    pub fn etcdctl(&self, cluster: &str, words: &[&str]) -> String {
        self.eventually(&format!("etcdctl {words:?}"), SOON, || {
            self.try_etcdctl(cluster, words)
        })
    }

    #[track_caller]
    pub fn put(&self, cluster: &str, key: &str, value: &str) {
        assert_eq!(self.etcdctl(cluster, &["put", key, value]), "OK\n");
    }

    #[track_caller]
    pub fn get(&self, cluster: &str, key: &str) -> String {
        self.etcdctl(cluster, &["get", key, "--print-value-only"])
            .trim()
            .to_owned()
    }

    /// A text in a Secret of the namespace default.
    #[track_caller]
    pub fn secret(&self, name: &str, key: &str) -> String {
        let template = format!("-o=go-template={{{{index .data \"{key}\" | base64decode}}}}");
        self.kubectl(&["get", "secret", name, &template]).good()
    }

    /// The serial number of the certificate that etcd serves.
    #[track_caller]
    pub fn served(&self, cluster: &str) -> String {
        let pod = self.json(&["get", "pod", &format!("{cluster}-0")]);
        let address = format!("{}:2379", pod["status"]["podIP"].as_str().unwrap());
        let script =
            "openssl s_client -connect $0 < /dev/null 2> /dev/null | openssl x509 -noout -serial";
        self.run_in_node(&["sh", "-c", script, &address]).good()
    }

    /// Which of all that had this name.
    pub fn uid(&self, kind: &str, name: &str) -> Option<String> {
        let it = self.try_json(&["get", kind, name])?;
        it["metadata"]["uid"].as_str().map(str::to_owned)
    }

    /// The UID of the member's Pod, if it is there and not going.
    pub fn pod_uid(&self, cluster: &str) -> Option<String> {
        let pod = self.try_json(&["get", "pod", &format!("{cluster}-0")])?;
        let going = !pod["metadata"]["deletionTimestamp"].is_null();
        (!going).then(|| pod["metadata"]["uid"].as_str().unwrap().to_owned())
    }

    /// Waits for the phase of an EtcdBackup or EtcdRestore.
    #[track_caller]
    pub fn phase(&self, kind: &str, name: &str, phase: &str) -> Value {
        self.eventually(&format!("{kind} {name} {phase}"), SOON, || {
            let it = self.try_json(&["get", kind, name])?;
            let now = it["status"]["phase"].as_str().unwrap_or_default();
            assert!(
                now == phase || now.is_empty() || now == "Running",
                "{kind} {name}: {}",
                it["status"]
            );
            (now == phase).then_some(it)
        })
    }

    /// Asks for a snapshot by an EtcdBackup, and waits until it has it.
    #[track_caller]
    pub fn snapshot(&self, cluster: &str, name: &str) -> Value {
        let spec = format!("{{cluster: {cluster}}}");
        self.apply(&document("EtcdBackup", name, &spec));
        self.phase("etcdbackup", name, "Succeeded")
    }

    /// Asks for the newest snapshot in place of a cluster's data.
    pub fn ask_for_restore(&self, cluster: &str, name: &str) {
        let spec = format!("{{cluster: {cluster}, replaceData: {cluster}}}");
        self.apply(&document("EtcdRestore", name, &spec));
    }

    /// The same, and waits until it has ended as asked.
    #[track_caller]
    pub fn restored(&self, cluster: &str, name: &str) -> Value {
        self.ask_for_restore(cluster, name);
        self.phase("etcdrestore", name, "Succeeded")
    }

    #[track_caller]
    pub fn gone(&self, what: &[&str]) {
        self.eventually(&format!("{what:?} to go"), SOON, || {
            let mut arguments = vec!["get"];
            arguments.extend(what);
            (!self.kubectl(&arguments).ok).then_some(())
        });
    }

    /// Runs in the first node's own mounts.
    #[track_caller]
    pub fn in_mounts_of_node(&self, script: &str) {
        let root = self.path(1, "");
        let mounts = root.parent().unwrap().join("ns/mnt");
        let mut inside = Command::new("nsenter");
        inside.arg(format!("--mount={}", mounts.display()));
        output(inside.args(["sh", "-ec", script])).good();
    }

    /// A file system of its own on the first node, as `mkfs.ext4` leaves it: its root belongs to root, and holds `lost+found`.
    #[track_caller]
    pub fn mount_disk(&self, megabytes: u32, place: &str) {
        let image = self.dir.join(format!("{megabytes}.img"));
        let image = image.display();
        self.in_mounts_of_node(&format!(
            "truncate -s {megabytes}M {image}; mkfs.ext4 -q -m 0 {image}; \
             mkdir -p {place}; mount -o loop {image} {place}"
        ));
    }

    pub fn patch(&self, cluster: &str, patch: &str) {
        let arguments = ["patch", "etcdcluster", cluster, "--type=merge", "-p", patch];
        self.kubectl(&arguments).good();
    }
}

/// A document with a name, a specification in one line.
pub fn document(kind: &str, name: &str, spec: &str) -> String {
    format!(
        "apiVersion: etcd.edge-operator.io/v1alpha1\nkind: {kind}\nmetadata: {{name: {name}, namespace: default}}\nspec: {spec}\n"
    )
}

/// A local PersistentVolume of the first node, on a directory that is there, in a class of its own name.
pub fn local_volume(name: &str, directory: &str) -> String {
    format!(
        "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {{name: {name}}}\n\
         provisioner: kubernetes.io/no-provisioner\nvolumeBindingMode: WaitForFirstConsumer\n---\n\
         apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {name}}}\n\
         spec: {{capacity: {{storage: 2Gi}}, accessModes: [ReadWriteOnce], storageClassName: {name}, \
         persistentVolumeReclaimPolicy: Retain, local: {{path: {directory}}}, \
         nodeAffinity: {{required: {{nodeSelectorTerms: [{{matchExpressions: \
         [{{key: kubernetes.io/hostname, operator: In, values: [edge1]}}]}}]}}}}}}\n"
    )
}

/// The storage of a document whose data lies on that volume.
pub fn on_volume(name: &str) -> String {
    format!("storage: {{volumeClaim: {{size: 1Gi, storageClassName: {name}}}}}")
}

/// With everything in it, owners and modes, into another directory.
#[track_caller]
pub fn copy(from: &Path, into: &Path) {
    output(Command::new("cp").arg("-a").args([from, into])).good();
}

/// A short while in which nothing may happen.
pub fn pass(seconds: u64) {
    std::thread::sleep(Duration::from_secs(seconds));
}
