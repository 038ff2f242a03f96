//! A root directory of its own, an agent over it, a real etcd behind it, and a client.
//!
//! Everything that a lab started ends with it, by the ids that it recorded.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use etcd_operator::member::records::IdentityFile;
use serde_json::Value;

/// The binary under test: cargo's, unless the environment names a release artefact.
pub fn program() -> PathBuf {
    std::env::var_os("ETCD_OPERATOR_PROGRAM").map_or_else(
        || PathBuf::from(env!("CARGO_BIN_EXE_etcd-operator")),
        PathBuf::from,
    )
}

/// Where `make tools` put a line of etcd (`3.6`): etcd, etcdctl, etcdutl.
pub fn etcd_dir(line: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("target/tools/etcd")
        .join(line);
    assert!(
        dir.join("etcd").exists(),
        "no etcd {line}: run make etcd-{line}"
    );
    dir
}

/// The version in such a directory.
pub fn version_of(dir: &Path) -> String {
    let output = Command::new(dir.join("etcd"))
        .arg("--version")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .next()
        .unwrap()
        .strip_prefix("etcd Version: ")
        .unwrap()
        .to_owned()
}

/// Builds an etcd of a version that never was, which behaves in a way of `tests/tools/bad-etcd.c` and is otherwise the
/// one at `real`; into a directory.
pub fn bad_etcd(dir: &Path, version: &str, mode: &str, real: &Path) {
    fs::create_dir_all(dir).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/bad-etcd.c");
    let built = Command::new("gcc")
        .arg("-O1")
        .arg(format!("-DREAL={:?}", real.to_str().unwrap()))
        .arg(format!("-DVERSION={version:?}"))
        .arg(format!("-DMODE={mode:?}"))
        .arg("-o")
        .arg(dir.join("etcd"))
        .arg(source)
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", text(&built.stderr));
}

/// Ports that are free, and stay so while their etcd is away: below those that the kernel gives to
/// clients, and claimed for as long as the files are open, whoever else runs these tests.
pub fn free_ports() -> ([u16; 3], Vec<fs::File>) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let claims = std::env::temp_dir().join("etcd-operator-test-ports");
    fs::create_dir_all(&claims).unwrap();
    let first = std::process::id().wrapping_mul(61);
    let mut found = Vec::new();
    let mut files = Vec::new();
    while found.len() < 3 {
        let number = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = u16::try_from(10_240 + number % 20_000).unwrap();
        let claim = fs::File::create(claims.join(port.to_string())).unwrap();
        if claim.try_lock().is_ok() && std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            found.push(port);
            files.push(claim);
        }
    }
    (found.try_into().unwrap(), files)
}

/// One host.
pub struct Lab {
    /// The cluster's.
    pub name: String,
    pub root: PathBuf,
    pub etcd: PathBuf,
    pub version: String,
    pub ports: [u16; 3],
    _claims: Vec<fs::File>,
    /// What goes below `spec:`, besides version and network.
    pub spec: String,
    /// The directory that the document names, instead of the operator's own.
    storage: Option<PathBuf>,
    agent: Option<Child>,
    /// Environment of the agent, such as a faked clock.
    pub environment: Vec<(String, String)>,
    /// Further arguments of the agent.
    pub arguments: Vec<String>,
}

static LABS: AtomicU32 = AtomicU32::new(0);

impl Lab {
    /// An empty host with etcd of this line in its store, and no agent yet.
    pub fn new(line: &str) -> Lab {
        let number = LABS.fetch_add(1, Ordering::Relaxed);
        let base = Path::new(env!("CARGO_TARGET_TMPDIR"));
        Lab::at(
            base.join(format!("lab-{}-{number}", std::process::id())),
            line,
        )
    }

    /// The same below this directory.
    pub fn at(root: PathBuf, line: &str) -> Lab {
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("etc/etcd-operator")).unwrap();
        // The lab's host vouches for its clock, as systemd-timesyncd does.
        fs::create_dir_all(root.join("run/systemd/timesync")).unwrap();
        fs::write(root.join("run/systemd/timesync/synchronized"), "").unwrap();
        let etcd = etcd_dir(line);
        let version = version_of(&etcd);
        let (ports, claims) = free_ports();
        let mut spec = String::new();
        if is_unsafe(&root) {
            spec.push_str("  storage: {unsafeFilesystem: allow}\n");
        }
        let lab = Lab {
            name: "lab".to_owned(),
            root,
            etcd,
            version,
            ports,
            _claims: claims,
            spec,
            storage: None,
            agent: None,
            environment: Vec::new(),
            arguments: Vec::new(),
        };
        lab.write_document();
        let from = lab.etcd.to_str().unwrap().to_owned();
        let installed = lab.operator(&["etcd", "install", "--from", &from, &lab.version.clone()]);
        assert!(installed.status.success(), "{}", text(&installed.stderr));
        lab
    }

    /// The document as a person would write it.
    pub fn document(&self) -> String {
        let [client, peer, metrics] = self.ports;
        format!(
            "apiVersion: etcd.edge-operator.io/v1alpha1\nkind: EtcdCluster\nmetadata:\n  name: {}\nspec:\n  \
             version: {}\n  network: {{clientPort: {client}, peerPort: {peer}, metricsPort: {metrics}, \
             listenAddresses: [127.0.0.1]}}\n{}",
            self.name, self.version, self.spec
        )
    }

    /// The data lies in this directory, which the document names.
    pub fn store_at(&mut self, dir: &Path) {
        let accept = if is_unsafe(&self.root) {
            ", unsafeFilesystem: allow"
        } else {
            ""
        };
        self.spec = format!("  storage: {{path: {}{accept}}}\n", dir.display());
        self.storage = Some(dir.to_owned());
        self.write_document();
    }

    pub fn write_document(&self) {
        fs::write(self.document_path(), self.document()).unwrap();
    }

    /// Adds fields below `spec.storage` (in YAML's flow style) and writes the document.
    pub fn storage(&mut self, fields: &str) {
        let flag = "unsafeFilesystem: allow";
        let (unsafe_allowed, fields) = (self.spec.contains(flag), fields.to_owned());
        let line = self
            .spec
            .lines()
            .find(|it| it.starts_with("  storage:"))
            .map(str::to_owned);
        if let Some(line) = line {
            self.spec = self.spec.replace(&format!("{line}\n"), "");
        }
        let flag = if unsafe_allowed {
            ", unsafeFilesystem: allow"
        } else {
            ""
        };
        let _ = std::fmt::Write::write_fmt(
            &mut self.spec,
            format_args!("  storage: {{{fields}{flag}}}\n"),
        );
        self.write_document();
    }

    /// Adds a line below `spec` and writes the document.
    pub fn add(&mut self, line: &str) {
        self.spec.push_str("  ");
        self.spec.push_str(line);
        self.spec.push('\n');
        self.write_document();
    }

    /// The certificates of this host, for tests that age or break them.
    pub fn certificates(&self) -> etcd_operator::tls::Certificates {
        etcd_operator::tls::Certificates::at(self.lib("tls"))
    }

    /// The public key with which the cluster here signs its snapshots.
    pub fn signer(&self) -> String {
        self.certificates().signer().unwrap().public()
    }

    /// The document pins the key of another cluster.
    pub fn trust(&mut self, key: &str) {
        let pinned = self.spec.replace(
            "  backup: {",
            &format!("  backup: {{trustedSigners: ['{key}'], "),
        );
        self.spec = pinned.replace(
            "  backup:\n",
            &format!("  backup:\n    trustedSigners: ['{key}']\n"),
        );
        self.write_document();
    }

    pub fn document_path(&self) -> PathBuf {
        self.root.join("etc/etcd-operator/cluster.yaml")
    }

    pub fn lib(&self, path: &str) -> PathBuf {
        self.root.join("var/lib/etcd-operator").join(path)
    }

    /// Who lives here, as the operator has recorded it.
    pub fn identity(&self) -> Option<IdentityFile> {
        etcd_operator::state::load(&self.lib("member/identity.json")).unwrap()
    }

    pub fn run(&self, path: &str) -> PathBuf {
        self.root.join("run/etcd-operator").join(path)
    }

    /// etcd's data directory.
    pub fn data(&self, path: &str) -> PathBuf {
        let dir = self.storage.clone();
        dir.unwrap_or_else(|| self.lib("member"))
            .join("data")
            .join(path)
    }

    /// Runs a command of the operator to its end.
    pub fn operator(&self, arguments: &[&str]) -> Output {
        Command::new(program())
            .args(arguments)
            .arg("--root")
            .arg(&self.root)
            .output()
            .unwrap()
    }

    /// Starts the agent; its log is appended to `agent.log`.
    pub fn start_agent(&mut self) {
        assert!(self.agent.is_none());
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.root.join("agent.log"))
            .unwrap();
        let child = Command::new(program())
            .args(["agent", "--driver", "process", "--root"])
            .arg(&self.root)
            .args(&self.arguments)
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.agent = Some(child);
    }

    pub fn agent_pid(&self) -> u32 {
        self.agent.as_ref().unwrap().id()
    }

    /// Waits until the agent answers: before, a status comes from the command itself.
    pub fn wait_agent(&self) {
        let socket = self.run("operator.sock");
        let begun = Instant::now();
        while UnixStream::connect(&socket).is_err() && begun.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// An agent that has just begun would die of a signal.
    pub fn signal_agent(&self, signal: &str) {
        self.wait_agent();
        kill(signal, self.agent_pid());
    }

    /// Ends the agent by SIGTERM; etcd stays.
    pub fn stop_agent(&mut self) {
        self.signal_agent("TERM");
        let mut child = self.agent.take().unwrap();
        let status = child.wait().unwrap();
        assert!(
            status.success(),
            "the agent ended with {status}: {}",
            self.log()
        );
    }

    /// Kills the agent by SIGKILL.
    pub fn kill_agent(&mut self) {
        let mut child = self.agent.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Whether the agent has not ended by itself; one that has is forgotten.
    pub fn agent_runs(&mut self) -> bool {
        let ended = |it: &mut Child| it.try_wait().unwrap().is_some();
        if self.agent.as_mut().is_some_and(ended) {
            self.agent = None;
        }
        self.agent.is_some()
    }

    /// Waits for an agent that ends by itself; 128 and more: by a signal.
    pub fn agent_exit(&mut self) -> i32 {
        let mut child = self.agent.take().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            if let Some(status) = child.try_wait().unwrap() {
                let signal = std::os::unix::process::ExitStatusExt::signal(&status);
                return status.code().or_else(|| signal.map(|it| 128 + it)).unwrap();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.agent = Some(child);
        panic!("the agent did not end: {}", self.log());
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.root.join("agent.log")).unwrap_or_default()
    }

    /// `status -o json`, from the agent or by a look of the command's own: of a look that began after
    /// it was asked for.
    pub fn status(&self) -> Value {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let status = self.status_now();
            if status["host"]["look"]["fresh"] != false || Instant::now() > deadline {
                return status;
            }
        }
    }

    /// The same as it is answered: while a pass is under way, what was seen last.
    pub fn status_now(&self) -> Value {
        let output = self.operator(&["status", "-o", "json"]);
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("no status: {} {}", text(&output.stderr), self.log()))
    }

    /// Waits until the status is as wanted.
    pub fn wait(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        self.wait_for(Duration::from_secs(30), what, wanted)
    }

    pub fn wait_for(&self, limit: Duration, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + limit;
        let mut last = Value::Null;
        while Instant::now() < deadline {
            last = self.status();
            if wanted(&last) {
                return last;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!(
            "waited in vain for {what}\nlast: {last:#}\nagent: {}\netcd: {}",
            self.log(),
            self.etcd_log()
        );
    }

    pub fn wait_available(&self) -> Value {
        self.wait("Available", |it| condition(it, "Available").0 == "True")
    }

    /// Waits for a hold with this reason; the status.
    pub fn wait_hold(&self, reason: &str) -> Value {
        self.wait(&format!("hold {reason}"), |it| it["plan"]["hold"] == reason)
    }

    pub fn etcd_log(&self) -> String {
        let whole = fs::read_to_string(self.lib("member/log/etcd.log")).unwrap_or_default();
        let tail = whole
            .get(whole.len().saturating_sub(3000)..)
            .unwrap_or_default();
        format!(
            "{tail}{}",
            fs::read_to_string(self.run("etcd.stderr")).unwrap_or_default()
        )
    }

    /// How long etcd's own log is.
    pub fn log_length(&self) -> u64 {
        fs::metadata(self.lib("member/log/etcd.log")).map_or(0, |it| it.len())
    }

    /// etcd has logged this behind that length.
    pub fn logged_since(&self, length: u64, words: &str) -> bool {
        let whole = fs::read(self.lib("member/log/etcd.log")).unwrap_or_default();
        let new = whole.get(usize::try_from(length).unwrap()..);
        text(new.unwrap_or_default()).contains(words)
    }

    /// The process that the guard recorded.
    pub fn etcd_pid(&self) -> Option<u32> {
        let record: Value =
            serde_json::from_slice(&fs::read(self.run("process.json")).ok()?).ok()?;
        let pid = u32::try_from(record["pid"].as_u64()?).ok()?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        (fields[0] != "Z" && fields[19].parse::<u64>().ok()? == record["start_time"].as_u64()?)
            .then_some(pid)
    }

    /// Kills etcd by SIGKILL and waits until it is gone.
    pub fn kill_etcd(&self) {
        let pid = self.etcd_pid().expect("etcd runs");
        kill("KILL", pid);
        let deadline = Instant::now() + Duration::from_secs(10);
        // Its files and ports are free once its last thread is gone.
        let tasks = PathBuf::from(format!("/proc/{pid}/task"));
        let threads = || fs::read_dir(&tasks).map_or(0, Iterator::count);
        while (self.etcd_pid() == Some(pid) || threads() > 1) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// etcdctl with the client `admin`.
    pub fn etcdctl(&self, arguments: &[&str]) -> Output {
        self.etcdctl_command(arguments).output().unwrap()
    }

    pub fn etcdctl_command(&self, arguments: &[&str]) -> Command {
        let files = self.lib("tls/clients/admin");
        let mut command = Command::new(self.etcd.join("etcdctl"));
        command
            .env_clear()
            .env("ETCDCTL_API", "3")
            .env(
                "ETCDCTL_ENDPOINTS",
                format!("https://127.0.0.1:{}", self.ports[0]),
            )
            .env("ETCDCTL_CACERT", files.join("ca.crt"))
            .env("ETCDCTL_CERT", files.join("client.crt"))
            .env("ETCDCTL_KEY", files.join("client.key"))
            .args(["--dial-timeout", "3s", "--command-timeout", "5s"])
            .args(arguments);
        command
    }

    pub fn put(&self, key: &str, value: &str) -> bool {
        self.etcdctl(&["put", key, value]).status.success()
    }

    pub fn get(&self, key: &str) -> Option<String> {
        let output = self.etcdctl(&["get", "--print-value-only", key]);
        let value = text(&output.stdout).trim_end().to_owned();
        (output.status.success() && !value.is_empty()).then_some(value)
    }

    /// Writes `count` keys in transactions; each is acknowledged.
    pub fn fill(&self, count: u32) {
        for first in (0..count).step_by(100) {
            let mut operations = String::new();
            for it in first..(first + 100).min(count) {
                let _ = std::fmt::Write::write_fmt(
                    &mut operations,
                    format_args!("put key/{it:05} value-{it}\n"),
                );
            }
            let mut child = Command::new(self.etcd.join("etcdctl"))
                .env_clear()
                .env(
                    "ETCDCTL_ENDPOINTS",
                    format!("https://127.0.0.1:{}", self.ports[0]),
                )
                .env("ETCDCTL_CACERT", self.lib("tls/clients/admin/ca.crt"))
                .env("ETCDCTL_CERT", self.lib("tls/clients/admin/client.crt"))
                .env("ETCDCTL_KEY", self.lib("tls/clients/admin/client.key"))
                .arg("txn")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            std::io::Write::write_all(
                &mut child.stdin.take().unwrap(),
                format!("\n{operations}\n\n").as_bytes(),
            )
            .unwrap();
            let output = child.wait_with_output().unwrap();
            assert!(
                text(&output.stdout).contains("SUCCESS"),
                "{}",
                text(&output.stdout)
            );
        }
    }

    /// How many of [`Lab::fill`]'s keys are there.
    pub fn filled(&self) -> usize {
        let output = self.etcdctl(&["get", "--prefix", "key/", "--keys-only"]);
        text(&output.stdout)
            .lines()
            .filter(|it| it.starts_with("key/"))
            .count()
    }

    /// The sha256 of every file in the data directory, by its path.
    pub fn fingerprints(&self) -> BTreeMap<PathBuf, String> {
        let mut found = BTreeMap::new();
        let mut folders = vec![self.data("")];
        while let Some(folder) = folders.pop() {
            // A directory that is not there has no files.
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                if entry.file_type().unwrap().is_dir() {
                    folders.push(entry.path());
                } else {
                    let bytes = fs::read(entry.path()).unwrap();
                    found.insert(entry.path(), etcd_operator::state::sha256(&bytes));
                }
            }
        }
        found
    }

    /// Starts of etcd since it last served.
    pub fn starts(&self) -> usize {
        let record = fs::read(self.run("starts.json")).unwrap_or_default();
        serde_json::from_slice::<Value>(&record)
            .ok()
            .and_then(|it| Some(it["starts"].as_array()?.len()))
            .unwrap_or(0)
    }

    /// Runs the guard as a service manager would; its exit code and words.
    pub fn guard(&self) -> (i32, String) {
        self.guard_as(false)
    }

    /// Runs the guard as a service manager would, or as the process driver does.
    pub fn guard_as(&self, detach: bool) -> (i32, String) {
        self.guard_with(detach, &[])
    }

    /// The same in such an environment.
    pub fn guard_with(&self, detach: bool, environment: &[(&str, &str)]) -> (i32, String) {
        let log = self.log_length();
        #[expect(clippy::zombie_processes, reason = "waited for wherever this returns")]
        let mut child = Command::new(program())
            .arg("guard")
            .args(detach.then_some("--detach"))
            .envs(environment.iter().copied())
            .arg("--root")
            .arg(&self.root)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            if let Some(status) = child.try_wait().unwrap() {
                let mut words = String::new();
                child
                    .stderr
                    .take()
                    .unwrap()
                    .read_to_string(&mut words)
                    .unwrap();
                return (status.code().unwrap_or(-1), words);
            }
            // It became etcd, which serves: that is an answer too.
            if self.logged_since(log, "ready to serve client requests") {
                child.kill().unwrap();
                child.wait().unwrap();
                return (0, "etcd started".to_owned());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        child.kill().unwrap();
        panic!("the guard did not decide");
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Some(mut child) = self.agent.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if let Some(pid) = self.etcd_pid() {
            kill("CONT", pid);
            kill("KILL", pid);
        }
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.root);
        }
    }
}

/// Sends a signal to a process that this test started.
pub fn kill(signal: &str, pid: u32) {
    let _ = Command::new("kill")
        .arg(format!("-{signal}"))
        .arg(pid.to_string())
        .stderr(Stdio::null())
        .status();
}

/// Status and reason of a condition.
pub fn condition<'a>(status: &'a Value, kind: &str) -> (&'a str, &'a str) {
    let conditions = status["conditions"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let found = conditions
        .iter()
        .find(|it| it["type"] == kind)
        .unwrap_or(&Value::Null);
    (
        found["status"].as_str().unwrap_or("-"),
        found["reason"].as_str().unwrap_or("-"),
    )
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The operator refuses it for data.
pub fn is_unsafe(path: &Path) -> bool {
    ["tmpfs", "overlayfs"].contains(&filesystem(path).as_str())
}

fn filesystem(path: &Path) -> String {
    let output = Command::new("stat")
        .args(["-f", "-c", "%T"])
        .arg(path)
        .output()
        .unwrap();
    text(&output.stdout).trim().to_owned()
}

#[allow(unused_imports, reason = "the bench skips nothing")]
pub use crate::skip::skip;
