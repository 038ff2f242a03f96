//! The operator as a process beside an API server: with its service account's rights and no others.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cluster::{Access, Cluster};
use crate::lab::{Node, SOON, is_root, root, skip};

/// Its user, as the API server names it.
pub const USER: &str = "system:serviceaccount:etcd-operator:etcd-operator";

/// In a namespace of mounts of its own: nothing of it stays on this machine. The clock is trusted.
const SCRIPT: &str = "mount -t tmpfs none /run && mount -t tmpfs none /var/lib \
    && mkdir -p /run/etcd-operator /run/systemd/timesync \
    && touch /run/systemd/timesync/synchronized && mkdir -p /run/secrets/kubernetes.io \
    && cp -r \"$2\" /run/secrets/kubernetes.io/serviceaccount && operator=\"$0\" port=\"$1\" && shift 2 && exec \"$operator\" controller --port \"$port\" \"$@\"";

/// Ends with its value.
pub struct Operator {
    process: Child,
    log: PathBuf,
    address: SocketAddr,
}

/// Whether the operator can have directories of its own.
pub fn can() -> bool {
    if !is_root() {
        skip("the operator's directories on the node are mounted, which needs root");
    }
    is_root()
}

/// The file of `deploy/`.
pub fn deployed(file: &str) -> String {
    fs::read_to_string(root().join("deploy").join(file)).unwrap()
}

/// Applies what a person applies; the operator's way to the API.
pub fn install(api: &Cluster) -> Access {
    api.apply(&deployed("crds.yaml"));
    let access = install_without_crds(api);
    for kind in ["etcdclusters", "etcdbackups", "etcdrestores"] {
        let name = format!("crd/{kind}.etcd.edge-operator.io");
        api.kubectl(&[
            "wait",
            "--for=condition=Established",
            "--timeout=60s",
            &name,
        ])
        .good();
    }
    access
}

/// All but the DaemonSet, whose place the operator beside the node takes.
pub fn install_beside(node: &Node) -> Access {
    node.apply(&deployed("crds.yaml"));
    for document in deployed("etcd-operator.yaml").split("\n---\n") {
        if !document.contains("kind: DaemonSet\n") {
            node.apply(document);
        }
    }
    node.service_account("etcd-operator/etcd-operator")
}

pub fn install_without_crds(api: &Cluster) -> Access {
    api.apply(&deployed("etcd-operator.yaml"));
    api.service_account("etcd-operator/etcd-operator")
}

impl Operator {
    pub fn start(access: &Access) -> Operator {
        Self::start_at(access, free_address(), &[], &[], &[])
    }

    /// With more on its command line.
    pub fn start_as(access: &Access, arguments: &[&str]) -> Operator {
        Self::start_at(access, free_address(), &[], &[], arguments)
    }

    /// With more in its environment.
    pub fn start_with(access: &Access, environment: &[(&str, &str)]) -> Operator {
        Self::start_at(access, free_address(), &[], environment, &[])
    }

    /// On the first node's network, where members are reached.
    pub fn start_in(node: &Node, access: &Access) -> Operator {
        Self::start_in_with(node, access, &[])
    }

    /// There, with more in its environment.
    pub fn start_in_with(node: &Node, access: &Access, environment: &[(&str, &str)]) -> Operator {
        let network = node.network();
        let address = node.address().split("//").nth(1).unwrap();
        let (host, _) = address.rsplit_once(':').unwrap();
        let address = SocketAddr::new(host.parse().unwrap(), 8383);
        Self::start_at(access, address, &["nsenter", &network], environment, &[])
    }

    fn start_at(
        access: &Access,
        address: SocketAddr,
        inside: &[&str],
        environment: &[(&str, &str)],
        arguments: &[&str],
    ) -> Operator {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let port = address.port();
        let (host, api_port) = access
            .server
            .trim_start_matches("https://")
            .split_once(':')
            .unwrap();
        let log = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("operator-{}-{number}", std::process::id()));
        let process = Command::new("setpriv")
            .arg("--pdeathsig=KILL")
            .args(inside)
            .args(["unshare", "--mount"])
            .args(["--propagation=private", "sh", "-c", SCRIPT])
            .arg(env!("CARGO_BIN_EXE_etcd-operator"))
            .arg(port.to_string())
            .arg(&access.mounted)
            .args(arguments)
            .env("KUBERNETES_SERVICE_HOST", host)
            .env("KUBERNETES_SERVICE_PORT", api_port)
            .env("POD_IP", address.ip().to_string())
            .env("POD_NAME", "etcd-operator-desk")
            .env("POD_NAMESPACE", "etcd-operator")
            .env("NODE_NAME", "edge1")
            .env("ETCD_OPERATOR_IMAGE", "localhost/etcd-operator:0.1.0")
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Operator {
            process,
            log,
            address,
        }
    }

    /// Where it answers.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Everything that it has logged.
    pub fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn is_alive(&mut self) -> bool {
        self.process.try_wait().unwrap().is_none()
    }

    pub fn signal(&self, signal: &str) {
        let id = self.process.id().to_string();
        let sent = Command::new("kill")
            .args([&format!("-{signal}"), &id])
            .status();
        assert!(sent.unwrap().success());
    }

    /// A path of the node, as it sees it.
    pub fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.process.id()))
    }

    /// What it answers: the status and the body.
    pub fn get(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(self.address).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: desk\r\nConnection: close\r\n\r\n"
        )
        .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let status = head.split_whitespace().nth(1)?.parse().ok()?;
        Some((status, body.to_owned()))
    }

    /// SIGTERM, and its end.
    pub fn terminate(&mut self) -> ExitStatus {
        let id = self.process.id().to_string();
        let _ = Command::new("kill").args(["-TERM", &id]).status();
        let deadline = Instant::now() + SOON;
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "it does not end: {}",
                self.said()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            println!("the operator said:\n{}", self.said());
        }
        let _ = fs::remove_file(&self.log);
    }
}

/// Free a moment ago.
pub fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

/// A StorageClass as text: nobody provisions for it, and its claims may grow or not.
pub fn storage_class(name: &str, grows: bool) -> String {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
        "provisioner": "example.com/none", "allowVolumeExpansion": grows,
    })
    .to_string()
}

/// An EtcdCluster as text.
pub fn cluster(namespace: &str, name: &str, spec: &Value) -> String {
    object("EtcdCluster", namespace, name, spec)
}

pub fn object(kind: &str, namespace: &str, name: &str, spec: &Value) -> String {
    json!({
        "apiVersion": "etcd.edge-operator.io/v1alpha1",
        "kind": kind,
        "metadata": {"namespace": namespace, "name": name},
        "spec": spec,
    })
    .to_string()
}

pub fn namespace(name: &str, labels: &Value) -> String {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        .to_string()
}
