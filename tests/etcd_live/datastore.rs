//! The box's own Kubernetes lives on the etcd that is kept here.
//!
//! k3s gives its `--datastore-*` flags to the API server that it contains, word by word. k3s itself
//! is not to be had for these tests: the API server of Kubernetes stands in for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use etcd_operator::cluster::Timestamp;
use etcd_operator::tls::Validity;
use serde_json::Value;

use crate::disk::run;
use crate::lab::{Lab, condition, free_ports, skip, text};

/// A first start, on two cores that other tests share.
const READY_WITHIN: Duration = Duration::from_secs(180);
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);
const TOKEN: &str = "a-token-of-this-test";

/// Where `make test` puts the commands of Kubernetes; says what is skipped where they are not.
fn kubernetes() -> Option<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/kubernetes");
    let all = ["kube-apiserver", "kubectl"];
    if all.iter().all(|it| dir.join(it).exists()) {
        return Some(dir);
    }
    skip("a Kubernetes API server is built with Go, by tests/tools/kubernetes.sh");
    None
}

/// A process of a test. Ends with it.
pub struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn runs(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

/// An API server and its client.
struct ApiServer {
    process: Process,
    commands: PathBuf,
    dir: PathBuf,
    port: u16,
    _claims: Vec<fs::File>,
}

impl ApiServer {
    /// Starts one on such a datastore. Declare it after the lab, so that it ends before.
    fn start(commands: &Path, lab: &Lab, datastore: &[String]) -> ApiServer {
        let dir = lab.root.join("kubernetes");
        fs::create_dir_all(&dir).unwrap();
        let file = |name: &str| dir.join(name).display().to_string();
        // The key of service accounts. The server makes its own certificate.
        let key = file("accounts.key");
        let script = format!("openssl ecparam -name prime256v1 -genkey -noout -out {key}");
        run("sh", &["-c", &script]).unwrap();
        fs::write(
            dir.join("tokens.csv"),
            format!("{TOKEN},admin,admin,system:masters\n"),
        )
        .unwrap();
        let ([port, ..], claims) = free_ports();
        let log = fs::File::create(dir.join("log")).unwrap();
        let process = Command::new(commands.join("kube-apiserver"))
            .env_clear()
            .args(datastore)
            .args(["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"])
            .arg(format!("--secure-port={port}"))
            .arg(format!("--cert-dir={}", file("certificates")))
            .arg(format!("--token-auth-file={}", file("tokens.csv")))
            .arg("--service-account-issuer=https://kubernetes.default.svc.cluster.local")
            .arg(format!("--service-account-key-file={key}"))
            .arg(format!("--service-account-signing-key-file={key}"))
            .args([
                "--service-cluster-ip-range=10.43.0.0/16",
                "--authorization-mode=RBAC",
            ])
            .arg("--endpoint-reconciler-type=none")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        ApiServer {
            process: Process(process),
            commands: commands.to_owned(),
            dir,
            port,
            _claims: claims,
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.commands.join("kubectl"));
        command
            .env_clear()
            .env("HOME", &self.dir)
            .arg(format!("--server=https://127.0.0.1:{}", self.port))
            .arg(format!("--token={TOKEN}"))
            .arg("--certificate-authority")
            .arg(self.dir.join("certificates/apiserver.crt"))
            .args(arguments)
            .stdin(Stdio::null());
        command
    }

    fn kubectl(&self, arguments: &[&str]) -> Output {
        self.command(arguments)
            .arg("--request-timeout=5s")
            .output()
            .unwrap()
    }

    /// It answers to all its checks, of which etcd is one.
    fn is_ready(&self) -> bool {
        self.kubectl(&["get", "--raw", "/readyz"]).stdout == b"ok"
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// Waits, as long as it runs, until something is so.
    fn wait(&mut self, what: &str, wanted: impl Fn(&ApiServer) -> bool) {
        let deadline = Instant::now() + READY_WITHIN;
        while !wanted(self) {
            let runs = self.process.runs();
            assert!(
                runs && Instant::now() < deadline,
                "waited in vain for {what}; the API server runs: {runs}: {}",
                self.log()
            );
            std::thread::sleep(BETWEEN_LOOKS);
        }
    }

    fn wait_ready(&mut self) {
        self.wait("the API server", ApiServer::is_ready);
    }

    fn create_namespace(&self) {
        let created = self.kubectl(&["create", "namespace", "edge"]);
        assert!(created.status.success(), "{}", text(&created.stderr));
    }

    /// Creates a ConfigMap; whether it was acknowledged.
    fn create(&self, name: &str) -> bool {
        let literal = format!("--from-literal=name={name}");
        self.kubectl(&["create", "configmap", name, "-n", "edge", &literal])
            .status
            .success()
    }

    /// What a ConfigMap says.
    fn read(&self, name: &str) -> String {
        let output = "jsonpath={.data.name}";
        let found = self.kubectl(&["get", "configmap", name, "-n", "edge", "-o", output]);
        text(&found.stdout)
    }
}

/// A host whose etcd serves.
fn born() -> Lab {
    let mut lab = Lab::new("3.6");
    lab.start_agent();
    lab.wait_available();
    lab
}

/// `certs issue k3s`; its files.
fn issue(lab: &Lab) -> Value {
    crate::clients::issue(lab, &["k3s"])
}

/// k3s' flags, and what was said beside them.
fn flags(lab: &Lab) -> (Vec<(String, String)>, String) {
    let output = lab.operator(&["env", "--for", "k3s"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    // Words, as in `k3s server $(etcd-operator env --for k3s)`.
    let flags = text(&output.stdout)
        .split_ascii_whitespace()
        .map(|it| it.strip_prefix("--").unwrap().split_once('=').unwrap())
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    (flags, text(&output.stderr))
}

/// What k3s makes of its flags for its API server.
fn datastore(lab: &Lab) -> Vec<String> {
    let (flags, warnings) = flags(lab);
    assert_eq!(warnings, "");
    let name = |flag: &str| match flag {
        "datastore-endpoint" => "etcd-servers",
        "datastore-cafile" => "etcd-cafile",
        "datastore-certfile" => "etcd-certfile",
        "datastore-keyfile" => "etcd-keyfile",
        other => panic!("k3s has no flag --{other}"),
    };
    flags
        .iter()
        .map(|(flag, value)| format!("--{}={value}", name(flag)))
        .collect()
}

/// Keys of Kubernetes in etcd, as the admin sees them.
fn keys(lab: &Lab, below: &str) -> Vec<String> {
    let prefix = format!("/registry/{below}");
    let output = lab.etcdctl(&["get", "--prefix", &prefix, "--keys-only"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines = text(&output.stdout);
    lines
        .lines()
        .filter(|it| !it.is_empty())
        .map(str::to_owned)
        .collect()
}

#[test]
fn kubernetes_lives_on_it_and_survives_a_sigkill_of_etcd() {
    let Some(commands) = kubernetes() else {
        return;
    };
    let lab = born();
    let files = issue(&lab);
    let datastore = datastore(&lab);
    let expected = [
        ("ca", "etcd-cafile"),
        ("cert", "etcd-certfile"),
        ("key", "etcd-keyfile"),
    ]
    .map(|(file, flag)| format!("--{flag}={}", files[file].as_str().unwrap()));
    assert_eq!(
        datastore[0],
        format!("--etcd-servers=https://127.0.0.1:{}", lab.ports[0])
    );
    assert_eq!(
        datastore[1..],
        expected,
        "what was issued is what k3s is told"
    );
    let mut api = ApiServer::start(&commands, &lab, &datastore);
    api.wait_ready();
    api.create_namespace();
    assert!(api.create("before"));
    assert_eq!(api.read("before"), "before");
    assert_eq!(keys(&lab, "namespaces/edge"), ["/registry/namespaces/edge"]);
    assert_eq!(
        keys(&lab, "configmaps/edge/"),
        ["/registry/configmaps/edge/before"]
    );
    // Controllers and kubelets live on watches; one that begins now sees what comes after.
    let seen = lab.root.join("watch");
    let _watch = Process(
        api.command(&["get", "configmaps", "-n", "edge", "--watch", "-o", "name"])
            .stdout(fs::File::create(&seen).unwrap())
            .spawn()
            .unwrap(),
    );
    let watched = |name: &str| {
        let line = format!("configmap/{name}");
        fs::read_to_string(&seen)
            .unwrap()
            .lines()
            .any(|it| it == line)
    };
    api.wait("the watch", |_| watched("before"));
    let pid = lab.etcd_pid();
    lab.kill_etcd();
    // A write that was not acknowledged may have arrived: it is tried under another name.
    let tries = std::cell::Cell::new(0);
    api.wait("a write", |it| {
        tries.set(tries.get() + 1);
        it.create(&format!("after-{}", tries.get()))
    });
    let after = format!("after-{}", tries.get());
    assert_ne!(lab.etcd_pid(), pid, "another etcd");
    api.wait_ready();
    for name in ["before", &after] {
        assert_eq!(api.read(name), name);
        assert!(
            keys(&lab, "configmaps/edge/").contains(&format!("/registry/configmaps/edge/{name}"))
        );
    }
    api.wait("the watch to go on", |_| watched(&after));
}

/// A time span around now, in days.
fn span(begin: i64, end: i64) -> Validity {
    let now: i64 = run("date", &["+%s"]).unwrap().parse().unwrap();
    Validity {
        not_before: Timestamp(now + begin * 86_400),
        not_after: Timestamp(now + end * 86_400),
    }
}

#[test]
fn an_api_server_takes_up_a_renewed_certificate_without_a_restart() {
    let Some(commands) = kubernetes() else {
        return;
    };
    let lab = born();
    issue(&lab);
    let mut api = ApiServer::start(&commands, &lab, &datastore(&lab));
    api.wait_ready();
    api.create_namespace();
    assert!(api.create("first"));
    // One that ran out is renewed, and one that soon will before that. Its files are read at each new
    // connection, so that nobody notices.
    for (begin, end, name) in [(-400, -1, "second"), (-300, 5, "third")] {
        lab.certificates().issue("k3s", span(begin, end)).unwrap();
        lab.wait("renewed", |it| {
            let leaf = lab.certificates().client_leaf("k3s").unwrap();
            leaf.not_after > span(0, 100).not_after
                && condition(it, "CertificatesValid").0 == "True"
        });
        lab.kill_etcd();
        api.wait("a write", |it| it.create(name) || it.read(name) == name);
    }
    for name in ["first", "second", "third"] {
        assert_eq!(api.read(name), name);
    }
}

#[test]
fn an_api_server_without_a_certificate_is_refused_and_gives_up() {
    let Some(commands) = kubernetes() else {
        return;
    };
    let lab = born();
    issue(&lab);
    let mut datastore = datastore(&lab);
    datastore.retain(|it| !it.contains("certfile") && !it.contains("keyfile"));
    assert_eq!(datastore.len(), 2);
    let log = lab.log_length();
    let mut api = ApiServer::start(&commands, &lab, &datastore);
    let deadline = Instant::now() + READY_WITHIN;
    while api.process.runs() {
        assert!(!api.is_ready(), "served without a certificate");
        assert!(Instant::now() < deadline, "still tries: {}", api.log());
        std::thread::sleep(BETWEEN_LOOKS);
    }
    assert!(
        lab.logged_since(log, "client didn't provide a certificate"),
        "{} {}",
        lab.etcd_log(),
        api.log()
    );
    assert_eq!(keys(&lab, ""), [""; 0]);
}

#[test]
fn k3s_that_would_ignore_its_flags_is_told_so() {
    let lab = born();
    issue(&lab);
    let (told, warnings) = flags(&lab);
    assert_eq!((told.len(), warnings.as_str()), (4, ""));
    let embedded = lab.root.join("var/lib/rancher/k3s/server/db/etcd");
    fs::create_dir_all(embedded.join("member/wal")).unwrap();
    let (same, warnings) = flags(&lab);
    assert_eq!(same, told, "the flags alone are on standard output");
    let path = embedded.display().to_string();
    assert!(
        warnings.contains("k3s ignores --datastore-endpoint") && warnings.contains(&path),
        "{warnings}"
    );
    // Moved aside, as the warning says: k3s obeys.
    fs::rename(&embedded, embedded.with_extension("aside")).unwrap();
    assert_eq!(flags(&lab).1, "");
}

#[test]
fn the_drop_in_for_k3s_says_what_env_says() {
    let drop_in = include_str!("../../systemd/k3s-on-etcd.conf");
    let lab = born();
    issue(&lab);
    let (flags, _) = flags(&lab);
    for (flag, value) in &flags {
        let name = flag.to_uppercase().replace('-', "_");
        let value = value
            .replace(lab.root.to_str().unwrap(), "")
            .replace(&format!(":{}", lab.ports[0]), ":2379");
        let line = format!("Environment=K3S_{name}={value}");
        assert!(drop_in.lines().any(|it| it == line), "{line}: {drop_in}");
    }
    assert_eq!(flags.len(), 4);
    assert_eq!(drop_in.matches("\nEnvironment=").count(), 4);
}
