//! Programs that people run on this etcd: the real ones, with the lines that `env` prints for them.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::certificates::{serial, server_file, wait_renewed};
use crate::disk::run;
use crate::edits::born;
use crate::lab::{Lab, skip, text};

/// Until a client is back after a restart of etcd: grpc waits up to 20 s between two tries.
const BACK_WITHIN: Duration = Duration::from_secs(60);

/// Where `make test-all` puts the clients; says what is skipped where they are not.
fn tools() -> Option<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/clients");
    if dir.exists() {
        return Some(dir);
    }
    skip("clients of other makes come from their registries, by tests/tools/clients.sh");
    None
}

/// A client that does what it is told. Ends with its test.
struct Client {
    process: Child,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Client {
    fn start(tools: &Path, program: &str, lab: &Lab, files: &Value) -> Client {
        let script = |name: &str| {
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("tests/tools/clients")
                .join(name)
        };
        let mut command = if program == "node" {
            let mut node = Command::new("node");
            node.arg(script("client.js"));
            node
        } else {
            let mut python = Command::new("python3");
            python.arg(script("client.py")).arg(program);
            python
        };
        let mut process = command
            // Of the machine, and stronger than what the client is told.
            .env_remove("REQUESTS_CA_BUNDLE")
            .env_remove("CURL_CA_BUNDLE")
            .env("PYTHONPATH", tools.join("python"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("NODE_PATH", tools.join("node/node_modules"))
            .env("PATRONI", env(lab, &["--for", "patroni"]).0)
            .env(
                "ETCDCTL_ENDPOINTS",
                format!("https://127.0.0.1:{}", lab.ports[0]),
            )
            .env("ETCDCTL_CACERT", files["ca"].as_str().unwrap())
            .env("ETCDCTL_CERT", files["cert"].as_str().unwrap())
            .env("ETCDCTL_KEY", files["key"].as_str().unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut client = Client { process, answers };
        assert_eq!(client.answer(), "ready");
        client
    }

    fn answer(&mut self) -> String {
        self.answers.next().unwrap().unwrap()
    }

    /// What came of one line.
    fn tries(&mut self, line: &str) -> Result<String, String> {
        writeln!(self.process.stdin.as_mut().unwrap(), "{line}").unwrap();
        let answer = self.answer();
        match answer.strip_prefix("done") {
            Some(done) => Ok(done.trim_start().to_owned()),
            None => Err(answer),
        }
    }

    fn does(&mut self, line: &str) -> String {
        self.tries(line).unwrap_or_else(|it| panic!("{line}: {it}"))
    }

    /// Again and again while etcd starts.
    fn does_again(&mut self, line: &str) -> String {
        let begin = Instant::now();
        loop {
            match self.tries(line) {
                Ok(done) => return done,
                Err(it) => assert!(begin.elapsed() < BACK_WITHIN, "{line}: {it}"),
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// What `env` prints, and what it says beside.
fn env(lab: &Lab, arguments: &[&str]) -> (String, String) {
    let output = lab.operator(&[&["env"], arguments].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

/// `certs issue` with these words; what it says of the files.
pub fn issue(lab: &Lab, arguments: &[&str]) -> Value {
    let issued = lab.operator(&[&["certs", "issue", "-o", "json"], arguments].concat());
    assert!(issued.status.success(), "{}", text(&issued.stderr));
    serde_json::from_slice(&issued.stdout).unwrap()
}

/// A client locks, writes, reads and watches; the operator restarts, the certificates of both sides are
/// rotated, etcd is killed. One that `resumes` its watch sees what is written after all that.
fn lives_on_it(program: &str, resumes: bool) {
    let Some(tools) = tools() else { return };
    let mut lab = born(&[]);
    let name = if program == "node" { "till" } else { program };
    let files = issue(&lab, &[name]);
    let mut client = Client::start(&tools, program, &lab, &files);
    // Patroni's store has its own keys, and JSON in them.
    let patroni = program == "patroni";
    let key = if patroni {
        "/service/till/config"
    } else {
        "greeting"
    };
    let put = |lab: &Lab, value: &str| {
        let value = if patroni {
            format!(r#"{{"is": "{value}"}}"#)
        } else {
            value.to_owned()
        };
        assert!(lab.put(key, &value));
    };
    client.does("lock");
    client.does(&format!("put {key} first"));
    assert_eq!(client.does(&format!("get {key}")), "first");
    client.does(&format!("watch {key}"));
    put(&lab, "watched");
    client.does("await watched");
    assert_eq!(client.does(&format!("get {key}")), "watched");

    lab.stop_agent();
    client.does("hold");
    client.does(&format!("put {key} alone"));
    client.does("await alone");
    lab.start_agent();
    lab.wait_available();
    client.does("hold");

    let old = serial(&server_file(&lab, "server.crt"));
    std::fs::remove_file(server_file(&lab, "server.key")).unwrap();
    wait_renewed(&lab, &old);
    issue(&lab, &[name, "--renew"]);
    client.does("hold");
    client.does(&format!("put {key} rotated"));
    client.does("await rotated");

    lab.kill_etcd();
    client.does_again(&format!("put {key} back"));
    lab.wait_available();
    assert_eq!(client.does_again(&format!("get {key}")), "back");
    client.does_again("hold");
    put(&lab, "after");
    if resumes {
        client.does("await after");
    }
    assert_eq!(client.does_again(&format!("get {key}")), "after");
}

#[test]
fn patroni_keeps_its_leader_here() {
    lives_on_it("patroni", true);
}

#[test]
fn etcd3gw_speaks_json_to_it() {
    lives_on_it("etcd3gw", false);
}

#[test]
fn etcd3_of_python_speaks_grpc_to_it() {
    lives_on_it("etcd3", false);
}

#[test]
fn etcd3_of_node_speaks_grpc_to_it() {
    lives_on_it("node", true);
}

#[test]
fn every_line_answers_json() {
    let Some(tools) = tools() else { return };
    for line in ["3.5", "3.7"] {
        let mut lab = Lab::new(line);
        lab.start_agent();
        lab.wait_available();
        let files = issue(&lab, &["etcd3gw"]);
        Client::start(&tools, "etcd3gw", &lab, &files).does("put greeting hello");
        assert_eq!(lab.get("greeting").as_deref(), Some("hello"), "{line}");
    }
}

#[test]
fn without_its_gateway_etcd_says_404_and_env_warns() {
    let Some(tools) = tools() else { return };
    let mut lab = born(&["options: {httpGateway: false}"]);
    let files = issue(&lab, &["etcd3gw"]);
    let said = Client::start(&tools, "etcd3gw", &lab, &files).tries("put greeting hello");
    assert!(
        said.as_ref().is_err_and(|it| it.contains("Not Found")),
        "{said:?}"
    );
    let words = "warning: Patroni speaks JSON over HTTP, and this etcd does not";
    let warned = |lab: &Lab| env(lab, &["--for", "patroni"]).1.contains(words);
    assert!(warned(&lab));
    // Of the etcd that runs, whether the operator does or not.
    lab.stop_agent();
    assert!(warned(&lab));
    assert!(!env(&lab, &[]).1.contains(words));
    let document = lab
        .document()
        .replace("httpGateway: false", "httpGateway: true");
    std::fs::write(lab.document_path(), document).unwrap();
    assert!(warned(&lab));
    lab.start_agent();
    lab.wait("restarted", |_| !warned(&lab));
    lab.wait_available();
    Client::start(&tools, "etcd3gw", &lab, &files).does_again("put greeting hello");
    assert_eq!(lab.get("greeting").as_deref(), Some("hello"));
}

/// kubeadm itself reads it, and refuses a field that it does not know.
fn kubeadm_accepts(lab: &Lab, section: &str) {
    let kubeadm = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/kubeadm/kubeadm");
    if !kubeadm.exists() {
        return skip("kubeadm is built with Go, by tests/tools/kubernetes.sh");
    }
    let accepts = |section: &str| {
        let file = lab.root.join("kubeadm.yaml");
        // Without a version it would ask the internet for one.
        std::fs::write(&file, format!("{section}kubernetesVersion: v1.36.3\n")).unwrap();
        let mut command = Command::new(&kubeadm);
        command.args(["config", "validate", "--config"]).arg(&file);
        command.output().unwrap().status.success()
    };
    assert!(accepts(section));
    assert!(!accepts(&section.replace("caFile", "caFiles")));
}

#[test]
fn env_prints_the_section_of_each_program() {
    let lab = born(&[]);
    let port = lab.ports[0];
    let of =
        |arguments: &[&str]| -> Value { serde_saphyr::from_str(&env(&lab, arguments).0).unwrap() };
    // Without a client of its own: the administrator's, which not everybody can read.
    let admin = lab.lib("tls/clients/admin");
    let patroni = of(&["--for", "patroni"]);
    assert_eq!(
        patroni["etcd3"]["hosts"],
        serde_json::json!([format!("127.0.0.1:{port}")])
    );
    assert_eq!(patroni["etcd3"]["protocol"], "https");
    assert_eq!(
        patroni["etcd3"]["key"],
        admin.join("client.key").display().to_string()
    );
    assert!(
        env(&lab, &["--for", "patroni"])
            .1
            .contains("certs issue patroni --out /etc/patroni/tls")
    );

    let files = issue(&lab, &["kubeadm"]);
    let external = &of(&["--for", "kubeadm"])["etcd"]["external"];
    let expected = serde_json::json!({
        "endpoints": [format!("https://127.0.0.1:{port}")],
        "caFile": files["ca"], "certFile": files["cert"], "keyFile": files["key"],
    });
    assert_eq!(*external, expected);
    kubeadm_accepts(&lab, &env(&lab, &["--for", "kubeadm"]).0);

    // Copies for another user, in a directory with a blank.
    let copies = lab.root.join("its tls");
    let copies = copies.to_str().unwrap();
    let missing = lab.operator(&["env", "--for", "patroni", "--tls", copies]);
    assert_eq!(missing.status.code(), Some(1));
    let said = text(&missing.stderr);
    assert!(
        said.contains(&format!(
            "certs issue patroni --out '{copies}' --owner USER"
        )),
        "{said}"
    );
    issue(&lab, &["patroni", "--out", copies]);
    issue(&lab, &["k3s", "--out", copies]);
    let split = lab.operator(&["env", "--for", "k3s", "--tls", copies]);
    let said = text(&split.stderr);
    assert!(
        !split.status.success() && said.contains("a shell splits k3s' flags"),
        "{said}"
    );
    let (_, warned) = env(&lab, &["--for", "patroni", "--tls", copies]);
    assert_eq!(warned, "");
    let etcd3 = &of(&["--for", "patroni", "--tls", copies])["etcd3"];
    for (field, file) in [
        ("cacert", "ca.crt"),
        ("cert", "patroni.crt"),
        ("key", "patroni.key"),
    ] {
        let path = format!("{copies}/{file}");
        assert_eq!(etcd3[field], path);
        run("test", &["-s", &path]).unwrap();
    }
}
