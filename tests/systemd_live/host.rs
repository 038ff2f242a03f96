//! The operator on a machine, as a person brings it there, and etcd behind it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use crate::lab::{condition, etcd_dir, program, skip, text, version_of};
use crate::machine::{BOOKWORM, Machine, tool};

pub const OPERATOR: &str = "etcd-operator.service";
/// etcd's own unit, of the cluster that the tests name `edge`.
pub const MEMBER: &str = "etcd-member@edge.service";
/// The package's files below `systemd/`, and where they belong.
const FILES: &[(&str, &str)] = &[
    (
        "etcd-operator.service",
        "/usr/lib/systemd/system/etcd-operator.service",
    ),
    ("sysusers.conf", "/usr/lib/sysusers.d/etcd-operator.conf"),
    ("tmpfiles.conf", "/usr/lib/tmpfiles.d/etcd-operator.conf"),
    (
        "polkit.rules",
        "/usr/share/polkit-1/rules.d/50-etcd-operator.rules",
    ),
];
/// Longer than etcd needs to be born, on processors that other tests share.
pub const SOON: Duration = Duration::from_secs(60);

/// The version of etcd in `target/tools`.
pub fn version() -> &'static str {
    static VERSION: OnceLock<String> = OnceLock::new();
    VERSION.get_or_init(|| version_of(&etcd_dir("3.6")))
}

/// A file of the checkout's `systemd/`.
pub fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("systemd")
        .join(name)
}

/// The package of this machine's architecture that `make dist` made.
pub fn package() -> Option<PathBuf> {
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        _ => "arm64",
    };
    let name = format!("etcd-operator_{}_{arch}.deb", env!("CARGO_PKG_VERSION"));
    let package = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("target/dist")
        .join(name);
    let package = package.exists().then_some(package);
    if package.is_none() {
        skip("the package is made by make dist");
    }
    package
}

impl Machine {
    /// A machine with the operator's files and a document, and etcd in the store: nothing is enabled
    /// and nothing runs.
    pub fn with_files() -> Option<Machine> {
        Machine::with_files_on(BOOKWORM)
    }

    /// The same of another Debian release.
    pub fn with_files_on(suite: &str) -> Option<Machine> {
        let machine = Machine::bare_on(suite)?;
        machine.trust_clock();
        machine.install_files();
        machine.write_document("");
        machine.install_etcd();
        Some(machine)
    }

    /// The same by the package, whose scripts do the rest.
    pub fn with_package(package: &Path) -> Option<Machine> {
        let machine = Machine::bare()?;
        machine.trust_clock();
        machine.install(package);
        machine.write_document("");
        machine.install_etcd();
        Some(machine)
    }

    /// A machine whose etcd serves, kept by the operator, both enabled.
    pub fn serving() -> Option<Machine> {
        Machine::serving_on(BOOKWORM)
    }

    /// The same of another Debian release.
    pub fn serving_on(suite: &str) -> Option<Machine> {
        let machine = Machine::with_files_on(suite)?;
        machine.sh(&format!("systemctl enable --now --quiet {OPERATOR}"));
        machine.wait_available();
        Some(machine)
    }

    /// What the package does, without it.
    pub fn install_files(&self) {
        self.copy(&program(), "/usr/bin/etcd-operator", 0o755);
        // The compiler's tables, which nobody copies to a device, are two thirds of it.
        let _ = Command::new("strip")
            .arg("--strip-debug")
            .arg(self.path("/usr/bin/etcd-operator"))
            .status();
        for (file, place) in FILES {
            self.copy(&shipped(file), place, 0o644);
        }
        self.sh("systemd-sysusers; systemd-tmpfiles --create; systemctl daemon-reload");
        // polkit reads new rules by itself, where it runs already.
        self.sh("systemctl try-restart polkit.service");
    }

    /// The machine vouches for its clock at every boot, as systemd-timesyncd does.
    pub fn trust_clock(&self) {
        let sign = "/run/systemd/timesync/synchronized";
        self.write("/etc/tmpfiles.d/clock.conf", &format!("f {sign} 0644\n"));
        self.write(sign, "");
    }

    /// The document as a person writes it; `spec`: further lines below `spec:`.
    pub fn write_document(&self, spec: &str) {
        self.write_document_of(version(), spec);
    }

    /// The same with another version of etcd.
    pub fn write_document_of(&self, version: &str, spec: &str) {
        self.write(
            "/etc/etcd-operator/cluster.yaml",
            &format!(
                "apiVersion: etcd.edge-operator.io/v1alpha1\nkind: EtcdCluster\n\
                 metadata: {{name: edge}}\nspec:\n  version: {version}\n  \
                 network: {{listenAddresses: [127.0.0.1]}}\n{spec}"
            ),
        );
    }

    /// Puts etcd into the store, from a folder as a release unpacks to.
    pub fn install_etcd(&self) {
        for name in ["etcd", "etcdctl", "etcdutl"] {
            let from = tool(&format!("etcd/3.6/{name}"));
            self.copy(&from, &format!("/usr/local/lib/etcd/{name}"), 0o755);
        }
        self.sh(&format!(
            "etcd-operator etcd install --from /usr/local/lib/etcd {}",
            version()
        ));
    }

    /// `status -o json`, of the agent or by a look of the command's own: of a look that began after it
    /// was asked for.
    pub fn status(&self) -> Value {
        for _ in 0..20 {
            let output = self.run(&["etcd-operator", "status", "-o", "json"]);
            let status: Value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
            if status["host"]["look"]["fresh"] != false {
                return status;
            }
        }
        Value::Null
    }

    /// Waits until the status is as wanted.
    #[track_caller]
    pub fn wait(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let last = Mutex::new(Value::Null);
        let seen = |status: Value| {
            let done = wanted(&status);
            *last.lock().unwrap() = status;
            done
        };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            self.until(SOON, what, || seen(self.status()));
        }));
        let last = last.into_inner().unwrap();
        assert!(done.is_ok(), "waited in vain for {what}: {last:#}");
        last
    }

    #[track_caller]
    pub fn wait_available(&self) -> Value {
        self.wait("Available", |it| condition(it, "Available").0 == "True")
    }

    #[track_caller]
    pub fn wait_hold(&self, reason: &str) -> Value {
        self.wait(reason, |it| it["plan"]["hold"] == reason)
    }

    /// The process of a unit.
    pub fn pid(&self, unit: &str) -> Option<u32> {
        let pid = self.property(unit, "MainPID").parse().unwrap();
        (pid != 0).then_some(pid)
    }

    /// Waits for another process of a unit than this one, and until etcd serves in it.
    #[track_caller]
    pub fn wait_restarted(&self, before: Option<u32>) -> u32 {
        self.until(SOON, "another etcd", || {
            let now = self.pid(MEMBER);
            now.is_some() && now != before && self.serves()
        });
        self.pid(MEMBER).unwrap()
    }

    pub fn kill(&self, signal: &str, unit: &str) {
        self.sh(&format!(
            "systemctl kill --kill-whom=main --signal={signal} {unit}"
        ));
    }

    /// etcdctl as the client `admin`, whom only root and etcd can be.
    pub fn etcdctl(&self, arguments: &[&str]) -> Output {
        let mut all = ETCDCTL.to_vec();
        all.extend(arguments);
        self.run(&all)
    }

    pub fn put(&self, key: &str, value: &str) -> bool {
        self.etcdctl(&["put", key, value]).status.success()
    }

    pub fn get(&self, key: &str) -> Option<String> {
        let output = self.etcdctl(&["get", "--print-value-only", key]);
        let value = text(&output.stdout).trim_end().to_owned();
        (output.status.success() && !value.is_empty()).then_some(value)
    }

    pub fn serves(&self) -> bool {
        self.etcdctl(&["get", "nothing"]).status.success()
    }

    /// Has a client watch this key in a unit of its own, until the machine ends.
    pub fn watch(&self, key: &str) {
        let watch = ETCDCTL.join(" ");
        self.sh(&format!(
            "systemd-run --quiet --unit=watch {watch} watch {key}"
        ));
        self.until(SOON, "the watch", || {
            self.put(key, "seen") && self.journal("watch").contains("seen")
        });
    }

    /// Writes one key after the other until it is stopped, each by a connection of its own.
    pub fn writer(&self, name: &str) -> Writer {
        let mut script = format!("i=0; while [ ! -e /run/stop-{name} ]; do ");
        let put = ETCDCTL.join(" ");
        let _ = write!(
            script,
            "i=$((i + 1)); if said=$({put} put {name}/$i written 2>&1); then echo ok $i; \
             else echo failed $i: $said; fi; done"
        );
        let mut child = self
            .command(&["bash", "-c", &script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (shared, output) = (lines.clone(), child.stdout.take().unwrap());
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                shared.lock().unwrap().push(line);
            }
        });
        let writer = Writer {
            name: name.to_owned(),
            child,
            reader,
            lines,
        };
        self.until(SOON, "the first writes", || writer.acknowledged().len() > 3);
        writer
    }

    /// How many of a writer's acknowledged keys are not there.
    pub fn lost(&self, written: &Written) -> usize {
        let prefix = format!("{}/", written.name);
        let output = self.etcdctl(&["get", "--prefix", "--keys-only", "--limit=0", &prefix]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let output = text(&output.stdout);
        let there: BTreeSet<&str> = output
            .lines()
            .filter_map(|it| it.strip_prefix(&prefix))
            .collect();
        let acknowledged = written.acknowledged.iter();
        acknowledged
            .filter(|it| !there.contains(it.as_str()))
            .count()
    }
}

const ETCDCTL: &[&str] = &[
    "/usr/local/lib/etcd/etcdctl",
    "--endpoints=https://127.0.0.1:2379",
    "--cacert=/var/lib/etcd-operator/tls/clients/admin/ca.crt",
    "--cert=/var/lib/etcd-operator/tls/clients/admin/client.crt",
    "--key=/var/lib/etcd-operator/tls/clients/admin/client.key",
    "--dial-timeout=3s",
    "--command-timeout=5s",
];

/// A client that writes all the while. It ends with its machine.
pub struct Writer {
    name: String,
    child: Child,
    reader: JoinHandle<()>,
    lines: Arc<Mutex<Vec<String>>>,
}

/// What became of its writes.
#[derive(Debug)]
pub struct Written {
    name: String,
    pub acknowledged: Vec<String>,
    /// The number of the write, and etcdctl's words.
    pub failed: Vec<String>,
}

impl Writer {
    /// The numbers of the writes that were acknowledged so far.
    pub fn acknowledged(&self) -> Vec<String> {
        let lines = self.lines.lock().unwrap();
        let numbers = lines.iter().filter_map(|it| it.strip_prefix("ok "));
        numbers.map(str::to_owned).collect()
    }

    /// Waits until so many more writes were acknowledged.
    #[track_caller]
    pub fn more(&self, machine: &Machine, count: usize) {
        let before = self.acknowledged().len();
        machine.until(SOON, "further writes", || {
            self.acknowledged().len() >= before + count
        });
    }

    /// Stops after the write that is under way.
    pub fn stop(self, machine: &Machine) -> Written {
        machine.sh(&format!("touch /run/stop-{}", self.name));
        self.gone()
    }

    /// The machine is no more.
    pub fn gone(mut self) -> Written {
        let _ = self.child.wait();
        let _ = self.reader.join();
        let lines = self.lines.lock().unwrap();
        let failed = lines.iter().filter_map(|it| it.strip_prefix("failed "));
        Written {
            name: self.name.clone(),
            acknowledged: lines
                .iter()
                .filter_map(|it| it.strip_prefix("ok "))
                .map(str::to_owned)
                .collect(),
            failed: failed.map(str::to_owned).collect(),
        }
    }
}
