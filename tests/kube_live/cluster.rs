//! An API server, whatever is behind it: how it is asked, and who asked it for what.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::lab::{SOON, root, tools};

/// The shortest and the longest time between two looks. A look starts a kubectl, which takes 50 ms of a core: so the time
/// between two looks is a twentieth of the wait so far.
const BETWEEN_LOOKS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];

/// What each cluster says of itself.
const PLANS: &str = "jsonpath={range .items[*]}{.metadata.name}{' '}{.status.plan}{'\\n'}{end}";

/// Since when the kubelet says what it says of a Pod.
const READY_SINCE: &str = "custom-columns=NAME:.metadata.name,READY:.status.conditions[?(@.type=='Ready')].status,SINCE:.status.conditions[?(@.type=='Ready')].lastTransitionTime";
/// Which Pods a Service leads to.
const ENDPOINTS: &str = "custom-columns=NAME:.metadata.name,TO:.endpoints[*].targetRef.name,READY:.endpoints[*].conditions.ready";

/// What the containers of members said last.
const MEMBERS_SAID: [&str; 7] = [
    "logs",
    "-n",
    "default",
    "-l",
    "app.kubernetes.io/name=etcd",
    "--tail=8",
    "--prefix",
];

/// Waits for something to be so, and tells the story if it is not.
#[track_caller]
pub fn eventually<T>(
    what: &str,
    within: Duration,
    look: &mut dyn FnMut() -> Option<T>,
    story: impl Fn() -> String,
) -> T {
    let begun = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(
            begun.elapsed() < within,
            "waited in vain for {what}\n{}",
            story()
        );
        let [shortest, longest] = BETWEEN_LOOKS;
        std::thread::sleep((begun.elapsed() / 20).clamp(shortest, longest));
    }
}

/// What a command came to.
#[derive(Clone, Debug)]
pub struct Output {
    pub ok: bool,
    pub stdout: String,
    pub stderr: String,
}

impl Output {
    /// What it printed. It has to have succeeded.
    #[track_caller]
    pub fn good(self) -> String {
        assert!(self.ok, "{}{}", self.stdout, self.stderr);
        self.stdout
    }
}

pub fn output(command: &mut Command) -> Output {
    let done = command.stdin(Stdio::null()).output().unwrap();
    Output {
        ok: done.status.success(),
        stdout: String::from_utf8_lossy(&done.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&done.stderr).into_owned(),
    }
}

/// How a lab's API server is asked: by an administrator, or by a service account.
#[derive(Clone, Debug)]
pub struct Access {
    pub kubeconfig: PathBuf,
    /// Of a service account: what a Pod of it finds mounted.
    pub mounted: PathBuf,
    /// The server's URL.
    pub server: String,
    pub home: PathBuf,
}

impl Access {
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(tools().join("kubernetes/kubectl"));
        command
            .env_clear()
            .env("HOME", &self.home)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(arguments);
        command
    }

    pub fn kubectl(&self, arguments: &[&str]) -> Output {
        output(&mut self.command(arguments))
    }

    /// `kubectl VERB... -f -` of this text.
    pub fn with_input(&self, arguments: &[&str], text: &str) -> Output {
        let mut child = self
            .command(arguments)
            .args(["-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A command that ends without reading it is told by its status.
        let _ = child.stdin.take().unwrap().write_all(text.as_bytes());
        let done = child.wait_with_output().unwrap();
        Output {
            ok: done.status.success(),
            stdout: String::from_utf8_lossy(&done.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&done.stderr).into_owned(),
        }
    }
}

/// A place in the API server's log of requests.
#[derive(Clone, Copy, Debug)]
pub struct Mark(usize);

/// One request that the API server answered, or began to answer where it is a watch.
#[derive(Clone, Debug)]
pub struct Request {
    pub agent: String,
    pub user: String,
    /// `patch`, `watch`, ...; `dry-run` where nothing was to be kept
    pub verb: String,
    /// `pods`, `etcdclusters/status`; a path where it is no resource.
    pub resource: String,
    pub namespace: String,
    pub name: String,
    pub code: u64,
}

/// An API server, whatever is behind it.
pub struct Cluster {
    pub dir: PathBuf,
    pub settings: BTreeMap<String, String>,
    admin: Access,
    keeper: Child,
    /// What the keeper said.
    said: PathBuf,
}

impl Cluster {
    pub fn up(environment: &[(&str, String)], tars: &[&Path]) -> Cluster {
        static LABS: AtomicU32 = AtomicU32::new(0);
        let number = LABS.fetch_add(1, Ordering::Relaxed);
        let said = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("kube-{}-{number}", std::process::id()));
        let mut keeper = Command::new(root().join("tests/tools/kube/up.sh"))
            .arg(tools())
            .arg(crate::images::dir())
            .args(tars)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            // An interrupted test ends its lab by the end of the pipe, not by the terminal.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(&said).unwrap())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let read = BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line);
        if !line.ends_with('\n') {
            let _ = keeper.wait();
            let why = fs::read_to_string(&said).unwrap_or_default();
            panic!("the lab did not come up ({read:?}): {why}");
        }
        let dir = PathBuf::from(line.trim());
        let settings = fs::read_to_string(dir.join("settings"))
            .unwrap()
            .lines()
            .filter_map(|it| it.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let admin = Access {
            kubeconfig: dir.join("pki/admin.kubeconfig"),
            mounted: PathBuf::new(),
            server: String::new(),
            home: dir.clone(),
        };
        Cluster {
            dir,
            settings,
            admin,
            keeper,
            said,
        }
    }

    /// The API's URL, as it is reached from this host.
    pub fn address(&self) -> &str {
        &self.settings["SERVER"]
    }

    /// All rights.
    pub fn admin(&self) -> &Access {
        &self.admin
    }

    /// The rights of a service account, `NAMESPACE/NAME`, which is there.
    #[track_caller]
    pub fn service_account(&self, account: &str) -> Access {
        let (namespace, name) = account.split_once('/').unwrap();
        let token = self
            .kubectl(&["create", "token", "-n", namespace, name, "--duration=2h"])
            .good();
        let server = self.address();
        let authority = self.dir.join("pki/ca.crt");
        let kubeconfig = self.dir.join(format!("{namespace}-{name}.kubeconfig"));
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: lab\n\
             clusters: [{{name: lab, cluster: {{server: '{server}', certificate-authority: {}}}}}]\n\
             users: [{{name: user, user: {{token: {}}}}}]\n\
             contexts: [{{name: lab, context: {{cluster: lab, user: user, namespace: {namespace}}}}}]\n",
            authority.display(),
            token.trim(),
        );
        fs::write(&kubeconfig, text).unwrap();
        let mounted = self.dir.join(format!("{namespace}-{name}.mounted"));
        fs::create_dir_all(&mounted).unwrap();
        fs::write(mounted.join("token"), token).unwrap();
        fs::write(mounted.join("namespace"), namespace).unwrap();
        fs::copy(&authority, mounted.join("ca.crt")).unwrap();
        Access {
            kubeconfig,
            mounted,
            server: server.to_owned(),
            home: self.dir.join(format!("{namespace}-{name}.home")),
        }
    }

    pub fn kubectl(&self, arguments: &[&str]) -> Output {
        self.admin.kubectl(arguments)
    }

    /// Applies documents. A namespace's service account comes a moment after the namespace.
    #[track_caller]
    pub fn apply(&self, yaml: &str) -> String {
        self.eventually("documents to be applied", SOON, || {
            let applied = self.try_apply(yaml);
            let is_early = applied.stderr.contains("error looking up service account");
            (applied.ok || !is_early).then_some(applied)
        })
        .good()
    }

    /// Applies documents once.
    pub fn try_apply(&self, yaml: &str) -> Output {
        self.admin.with_input(&["apply"], yaml)
    }

    /// `kubectl ... -o json`.
    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        let mut all = arguments.to_vec();
        all.extend(["-o", "json"]);
        serde_json::from_str(&self.kubectl(&all).good()).unwrap()
    }

    /// The same, if it is there and the API answers.
    pub fn try_json(&self, arguments: &[&str]) -> Option<Value> {
        let mut all = arguments.to_vec();
        all.extend(["-o", "json"]);
        let got = self.kubectl(&all);
        got.ok.then(|| serde_json::from_str(&got.stdout).unwrap())
    }

    /// Waits for something to be so, and says what the cluster looks like if it is not.
    #[track_caller]
    pub fn eventually<T>(
        &self,
        what: &str,
        within: Duration,
        mut look: impl FnMut() -> Option<T>,
    ) -> T {
        eventually(what, within, &mut look, || self.story())
    }

    /// What a person would look at first.
    pub fn story(&self) -> String {
        let mut story = String::new();
        for arguments in [
            &["get", "nodes", "-o", "wide"][..],
            &["get", "pods,pvc", "-A", "-o", "wide"],
            &["get", "pods", "-o", READY_SINCE],
            &["get", "endpointslices", "-o", ENDPOINTS],
            &["get", "events", "-A", "--sort-by=.lastTimestamp"],
            &["get", "etcdclusters", "-A", "-o", PLANS],
            &MEMBERS_SAID,
            &[&MEMBERS_SAID[..], &["-p"]].concat(),
            &[
                "logs",
                "-n",
                "etcd-operator",
                "ds/etcd-operator",
                "--tail=30",
            ],
        ] {
            let got = self.kubectl(arguments);
            let lines: Vec<&str> = got.stdout.lines().collect();
            let first = lines.len().saturating_sub(40);
            let _ = writeln!(story, "{}\n{}", lines[first..].join("\n"), got.stderr);
        }
        story
    }

    /// Reason and message of each Event of a namespace.
    pub fn events(&self, namespace: &str) -> Vec<(String, String)> {
        let list = self.json(&["get", "events", "-n", namespace]);
        let of = |event: &Value, field: &str| event[field].as_str().unwrap_or_default().to_owned();
        let events = list["items"].as_array().unwrap();
        events
            .iter()
            .map(|it| (of(it, "reason"), of(it, "message")))
            .collect()
    }

    /// Now, in the log of requests.
    pub fn mark(&self) -> Mark {
        Mark(self.audit().len())
    }

    /// The log of requests since then, one JSON event a line.
    pub fn log_since(&self, since: Mark) -> String {
        String::from_utf8(self.audit()[since.0..].to_vec()).unwrap()
    }

    fn audit(&self) -> Vec<u8> {
        fs::read(self.dir.join("audit.log")).unwrap_or_default()
    }

    /// Requests since then of clients whose User-Agent begins so. Each counts once: a watch when it
    /// begins, all others when they are answered.
    pub fn requests(&self, agent: &str, since: Mark) -> Vec<Request> {
        let log = self.audit();
        let mut known = HashSet::new();
        let mut found = Vec::new();
        let mut at = 0;
        // What is being written has no end yet.
        for line in log
            .split_inclusive(|it| *it == b'\n')
            .filter(|it| it.ends_with(b"\n"))
        {
            let is_before = at < since.0;
            at += line.len();
            let event: Value = serde_json::from_slice(line).unwrap();
            if known.insert(event["auditID"].as_str().unwrap().to_owned()) && !is_before {
                found.push(request(&event));
            }
        }
        found.retain(|it| it.agent.starts_with(agent));
        found
    }

    /// The same by verb and resource: `patch etcdclusters/status`.
    pub fn counted(&self, agent: &str, since: Mark) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for it in self.requests(agent, since) {
            *counts
                .entry(format!("{} {}", it.verb, it.resource))
                .or_default() += 1;
        }
        counts
    }

    pub fn is_ready(&self) -> bool {
        self.kubectl(&["get", "--raw", "/readyz", "--request-timeout=5s"])
            .stdout
            == "ok"
    }

    /// The API server goes away; its datastore stays.
    pub fn api_stop(&self) {
        self.happen(&["api-stop"]);
    }

    pub fn api_start(&self) {
        self.happen(&["api-start"]);
        self.eventually("the API server", SOON, || self.is_ready().then_some(()));
    }

    /// A log of the lab: apiserver, kubelet1, ...
    pub fn log(&self, process: &str) -> String {
        fs::read_to_string(self.dir.join(format!("log/{process}.log"))).unwrap_or_default()
    }

    /// Something happens to the lab, by `node.sh`.
    #[track_caller]
    pub fn happen(&self, arguments: &[&str]) -> String {
        let script = root().join("tests/tools/kube/node.sh");
        output(Command::new(script).arg(&self.dir).args(arguments)).good()
    }
}

fn request(event: &Value) -> Request {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let object = &event["objectRef"];
    let mut resource = text(&object["resource"]);
    if let Some(part) = object["subresource"].as_str() {
        resource = format!("{resource}/{part}");
    }
    if resource.is_empty() {
        resource = text(&event["requestURI"]);
    }
    let dry = text(&event["requestURI"]).contains("dryRun=All");
    Request {
        agent: text(&event["userAgent"]),
        user: text(&event["user"]["username"]),
        verb: if dry {
            "dry-run".to_owned()
        } else {
            text(&event["verb"])
        },
        resource,
        namespace: text(&object["namespace"]),
        name: text(&object["name"]),
        code: event["responseStatus"]["code"].as_u64().unwrap_or_default(),
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let ended = self.keeper.wait();
        let said = fs::read_to_string(&self.said).unwrap_or_default();
        let _ = fs::remove_file(&self.said);
        let left = self.dir.exists() || !ended.is_ok_and(|it| it.success());
        // While another failure is told, a second panic would hide it.
        if !std::thread::panicking() {
            assert!(!left, "the lab did not end: {said}");
        }
    }
}
