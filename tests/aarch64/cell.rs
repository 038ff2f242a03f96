//! A place of its own where this kernel runs arm64 programs: user, mount and process namespaces with
//! their own register of program formats, so that nothing outside changes, and everything inside
//! ends with the test, however that ends.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::lab::{condition, free_ports, text};

/// The first process of a cell. It waits for the end of its standard input, which the test holds,
/// and reaps what has lost its parent, as any init does.
const INIT: &str = r#"
trap '' CHLD
if [ "$(uname -m)" != aarch64 ]; then
    mount -t binfmt_misc none /proc/sys/fs/binfmt_misc 2> /dev/null \
        && printf '%s' "$1" > /proc/sys/fs/binfmt_misc/register
fi
echo ready
exec cat
"#;

/// Header of an ELF program, 64 bit, little endian, for machine 183. `P` keeps its first argument,
/// `F` opens the emulator now, whatever a program sees of the file system later.
fn format_of_arm64(emulator: &Path) -> String {
    format!(
        r":etcd-operator-test:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:{}:PF",
        emulator.display()
    )
}

/// What the Makefile brings and builds.
pub fn tools() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target")
}

/// The operator as it is shipped.
pub fn operator() -> PathBuf {
    tools().join("cross/aarch64-unknown-linux-musl/release/etcd-operator")
}

/// etcd of this line for arm64.
pub fn etcd(line: &str) -> PathBuf {
    tools().join("tools/etcd-arm64").join(line)
}

/// A host that is an arm64 machine for everything that runs in it.
pub struct Cell {
    pub root: PathBuf,
    pub version: String,
    init: Child,
    /// The first process, as seen from outside.
    first: String,
    ports: [u16; 3],
    _claims: Vec<fs::File>,
    agent: Option<Child>,
}

impl Cell {
    /// An empty host, or why there can be none.
    pub fn new(name: &str) -> Result<Cell, String> {
        let emulator = tools().join("tools/qemu/qemu-aarch64-static");
        for (file, remedy) in [
            (operator(), "make dist"),
            (etcd("3.6").join("etcd"), "make test, with Go or a network"),
            (emulator.clone(), "make test, as root on Debian"),
        ] {
            if !file.exists() {
                return Err(format!("{} is missing: {remedy}", file.display()));
            }
        }
        let root = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("cell-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("etc/etcd-operator")).unwrap();
        fs::create_dir_all(root.join("run/systemd/timesync")).unwrap();
        fs::write(root.join("run/systemd/timesync/synchronized"), "").unwrap();
        let mut init = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "--pid", "--fork"])
            .args(["--kill-child", "--mount-proc", "sh", "-c", INIT, "init"])
            .arg(format_of_arm64(&emulator.canonicalize().unwrap()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let _ = BufReader::new(init.stdout.take().unwrap()).read_line(&mut line);
        if line.trim() != "ready" {
            let _ = init.kill();
            let mut why = String::new();
            let _ = init.stderr.take().unwrap().read_to_string(&mut why);
            init.wait().unwrap();
            return Err(format!("no namespaces here: {}", why.trim()));
        }
        let id = init.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
        let (ports, claims) = free_ports();
        let mut cell = Cell {
            root,
            version: String::new(),
            init,
            first: children.trim().to_owned(),
            ports,
            _claims: claims,
            agent: None,
        };
        let asked = cell.inside(&[operator().to_str().unwrap(), "--version"]);
        if !asked.status.success() {
            return Err(format!(
                "arm64 programs do not run here, for which Linux must be 6.7 or newer, or have them registered: {}",
                text(&asked.stderr).trim()
            ));
        }
        let etcd = etcd("3.6").join("etcd");
        let asked = cell.inside(&[etcd.to_str().unwrap(), "--version"]);
        let says = text(&asked.stdout);
        let line = says.lines().next().unwrap();
        let version = line.strip_prefix("etcd Version: ").unwrap();
        version.clone_into(&mut cell.version);
        assert!(says.contains("linux/arm64"), "{says}");
        Ok(cell)
    }

    fn enter(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.first, "--user", "--mount", "--pid"]);
        command.args(["--preserve-credentials", "--"]);
        command.stdin(Stdio::null());
        command
    }

    /// Runs a program in the cell to its end.
    pub fn inside(&self, command: &[&str]) -> Output {
        self.enter().args(command).output().unwrap()
    }

    /// Runs a command of the operator to its end.
    pub fn operator(&self, arguments: &[&str]) -> Output {
        let mut command = self.enter();
        command.arg(operator()).args(arguments);
        command.arg("--root").arg(&self.root).output().unwrap()
    }

    /// Puts etcd into the operator's store, as a person would.
    pub fn install_etcd(&self) {
        let from = etcd("3.6");
        let version = self.version.as_str();
        let installed =
            self.operator(&["etcd", "install", "--from", from.to_str().unwrap(), version]);
        assert!(installed.status.success(), "{}", text(&installed.stderr));
    }

    pub fn write_document(&self) {
        let [client, peer, metrics] = self.ports;
        let unsafe_here = if crate::lab::is_unsafe(&self.root) {
            "  storage: {unsafeFilesystem: allow}\n"
        } else {
            ""
        };
        fs::write(
            self.root.join("etc/etcd-operator/cluster.yaml"),
            format!(
                "apiVersion: etcd.edge-operator.io/v1alpha1\nkind: EtcdCluster\nmetadata: {{name: pi}}\nspec:\n  \
                 version: {}\n  network: {{clientPort: {client}, peerPort: {peer}, metricsPort: {metrics}, \
                 listenAddresses: [127.0.0.1]}}\n{unsafe_here}",
                self.version
            ),
        )
        .unwrap();
    }

    /// Starts the agent; its log is appended to `agent.log`.
    pub fn start_agent(&mut self) {
        assert!(self.agent.is_none());
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.root.join("agent.log"))
            .unwrap();
        let mut command = self.enter();
        command
            .arg(operator())
            .args(["agent", "--driver", "process", "--root"])
            .arg(&self.root)
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        self.agent = Some(command.spawn().unwrap());
    }

    /// Ends the agent by a signal; etcd stays.
    pub fn end_agent(&mut self, signal: &str) {
        // Until the agent answers, `status` looks by itself and names no operator.
        let status = self.wait("the agent's answer", |it| {
            it["host"]["operator"]["pid"].is_u64()
        });
        self.signal(signal, &status["host"]["operator"]["pid"].to_string());
        let mut child = self.agent.take().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends a signal to a process of the cell.
    pub fn signal(&self, signal: &str, pid: &str) {
        let sent = self.inside(&["kill", &format!("-{signal}"), pid]);
        assert!(sent.status.success(), "{}", text(&sent.stderr));
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.root.join("agent.log")).unwrap_or_default()
    }

    pub fn status(&self) -> Value {
        let output = self.operator(&["status", "-o", "json"]);
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("no status: {} {}", text(&output.stderr), self.log()))
    }

    /// Waits until the status is as wanted. Emulation takes its time, more so beside other tests.
    pub fn wait(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + Duration::from_secs(90);
        let mut last = Value::Null;
        while Instant::now() < deadline {
            last = self.status();
            if wanted(&last) {
                return last;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let etcd = fs::read_to_string(self.root.join("var/lib/etcd-operator/member/log/etcd.log"));
        panic!(
            "waited in vain for {what}\nlast: {last:#}\nagent: {}\netcd: {}",
            self.log(),
            etcd.unwrap_or_default()
        );
    }

    pub fn wait_available(&self) -> Value {
        self.wait("Available", |it| condition(it, "Available").0 == "True")
    }

    /// The etcdctl of this machine, from outside, with the certificate of the client `admin`.
    pub fn etcdctl(&self, arguments: &[&str]) -> Output {
        let files = self.root.join("var/lib/etcd-operator/tls/clients/admin");
        Command::new(crate::lab::etcd_dir("3.6").join("etcdctl"))
            .env_clear()
            .env(
                "ETCDCTL_ENDPOINTS",
                format!("https://127.0.0.1:{}", self.ports[0]),
            )
            .env("ETCDCTL_CACERT", files.join("ca.crt"))
            .env("ETCDCTL_CERT", files.join("client.crt"))
            .env("ETCDCTL_KEY", files.join("client.key"))
            .args(["--dial-timeout", "5s", "--command-timeout", "10s"])
            .args(arguments)
            .output()
            .unwrap()
    }

    pub fn put(&self, key: &str, value: &str) {
        let output = self.etcdctl(&["put", key, value]);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }

    pub fn get(&self, key: &str) -> String {
        let output = self.etcdctl(&["get", "--print-value-only", key]);
        text(&output.stdout).trim_end().to_owned()
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        // With its first process everything in a process namespace ends.
        let _ = self.init.kill();
        let _ = self.init.wait();
        if let Some(mut agent) = self.agent.take() {
            let _ = agent.wait();
        }
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.root);
        }
    }
}
