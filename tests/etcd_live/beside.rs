//! Nothing is born or lost beside what is there: another etcd's data.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use etcd_operator::member::records::IdentityFile;
use etcd_operator::state;
use serde_json::Value;

use crate::lab::{Lab, condition, free_ports, kill, program, text};

/// A plain etcd that somebody else started, and will be ended with SIGTERM.
struct Plain {
    child: Child,
    etcdctl: PathBuf,
    url: String,
}

impl Plain {
    fn start(lab: &Lab, data_dir: &Path) -> Plain {
        let ([client, peer, _], claims) = free_ports();
        drop(claims);
        let (url, peers) = (
            format!("http://127.0.0.1:{client}"),
            format!("http://127.0.0.1:{peer}"),
        );
        let child = Command::new(lab.etcd.join("etcd"))
            .arg("--data-dir")
            .arg(data_dir)
            .args([
                "--listen-client-urls",
                &url,
                "--advertise-client-urls",
                &url,
            ])
            .args(["--listen-peer-urls", &peers, "--log-level", "error"])
            .args(["--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("default={peers}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let etcdctl = lab.etcd.join("etcdctl");
        let plain = Plain {
            child,
            etcdctl,
            url,
        };
        let begun = Instant::now();
        while !plain.ctl(&["put", "theirs", "1"]) {
            assert!(begun.elapsed() < Duration::from_secs(30));
            std::thread::sleep(Duration::from_millis(50));
        }
        plain
    }

    fn ctl(&self, arguments: &[&str]) -> bool {
        let output = Command::new(&self.etcdctl)
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.url, "--command-timeout", "2s"])
            .args(arguments)
            .output()
            .unwrap();
        output.status.success()
    }

    fn stop(mut self) {
        kill("TERM", self.child.id());
        self.child.wait().unwrap();
    }
}

/// An empty host whose document names this directory.
fn host_at(name: &str) -> (Lab, PathBuf) {
    let mut lab = Lab::new("3.6");
    let dir = lab.root.join(name);
    fs::create_dir_all(&dir).unwrap();
    lab.store_at(&dir);
    (lab, dir)
}

fn message(status: &Value) -> &str {
    status["plan"]["message"].as_str().unwrap()
}

/// Debian keeps its etcd in /var/lib/etcd/default: both directories are named by those who migrate.
#[test]
fn the_directory_of_another_etcd_is_held_and_its_data_taken_over() {
    for at in ["etcd", "etcd/default", "etcd/default/member"] {
        let (mut lab, _) = host_at("etcd");
        let theirs = lab.root.join("etcd/default");
        let plain = Plain::start(&lab, &theirs);
        lab.store_at(&lab.root.join(at));
        lab.start_agent();
        let status = lab.wait_hold("DataOfAnotherEtcd");
        let found = if at == "etcd" {
            &theirs
        } else {
            &lab.root.join(at)
        };
        assert!(message(&status).contains(&format!("its data in {}:", found.display())));
        assert_eq!(
            condition(&status, "Available"),
            ("False", "DataOfAnotherEtcd")
        );
        assert_eq!(lab.starts(), 0, "nothing was started");
        assert!(!lab.root.join(at).join("data").exists(), "nothing was made");
        // The way that the hold shows.
        let file = lab.root.join("theirs.db");
        let file = file.to_str().unwrap();
        assert!(plain.ctl(&["snapshot", "save", file]));
        plain.stop();
        let output = lab.operator(&["restore", "--from", file, "--yes"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        lab.wait_available();
        assert_eq!(lab.get("theirs").as_deref(), Some("1"));
        assert!(theirs.join("member/snap/db").exists(), "theirs stays");
        // From now on there is a cluster here, whose neighbour is nobody's concern.
        lab.kill_etcd();
        lab.wait_available();
        assert_eq!(lab.get("theirs").as_deref(), Some("1"));
    }
}

#[test]
fn a_document_may_take_another_etcds_snapshot_over() {
    let (mut lab, dir) = host_at("etcd");
    let plain = Plain::start(&lab, &dir.join("default"));
    let file = lab.root.join("theirs.db");
    assert!(plain.ctl(&["snapshot", "save", file.to_str().unwrap()]));
    plain.stop();
    lab.add(&format!("bootstrap: {{from: {}}}", file.display()));
    lab.start_agent();
    lab.wait_available();
    assert_eq!(lab.get("theirs").as_deref(), Some("1"));
}

/// Data of another etcd right where ours would lie: its directory serves, once it was stopped.
#[test]
fn foreign_data_in_our_own_place_is_taken_over_from_its_directory() {
    let (mut lab, dir) = host_at("etcd");
    Plain::start(&lab, &dir.join("data")).stop();
    lab.start_agent();
    let status = lab.wait_hold("DataForeign");
    let next = status["plan"]["nextStep"].as_str().unwrap_or_default();
    assert!(next.contains("--from DIR)"), "{status:#}");
    let data = dir.join("data");
    let output = lab.operator(&["restore", "--from", data.to_str().unwrap(), "--yes"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    lab.wait_available();
    assert_eq!(lab.get("theirs").as_deref(), Some("1"));
}

/// The operator is away, the first start was prepared and never made: the guard looks itself.
#[test]
fn the_guard_starts_nothing_beside_another_etcds_data() {
    let (mut lab, dir) = host_at("etcd");
    lab.start_agent();
    lab.wait_available();
    lab.kill_agent();
    lab.kill_etcd();
    for at in [lab.lib("member"), dir.clone()] {
        let path = at.join("identity.json");
        let born: Option<IdentityFile> = state::load(&path).unwrap();
        let unserved = born.unwrap().without_ids();
        state::save(&path, &unserved).unwrap();
        let _ = fs::remove_file(path.with_extension("json.previous"));
    }
    fs::create_dir(dir.join("default")).unwrap();
    fs::rename(dir.join("data/member"), dir.join("default/member")).unwrap();
    let (code, words) = lab.guard();
    assert_eq!(code, 3, "{words}");
    assert!(words.contains("DataOfAnotherEtcd"), "{words}");
    assert!(!dir.join("data/member").exists());
}

/// Without the rights that root has, and not the owner: the directory is there all the same.
#[test]
fn a_directory_without_the_right_to_write_is_not_called_missing() {
    let (lab, dir) = host_at("disk/etcd");
    std::os::unix::fs::chown(&dir, Some(65534), Some(65534)).unwrap();
    let look = || {
        let output = Command::new("setpriv")
            .arg("--bounding-set=-all")
            .arg(program())
            .args(["plan", "-o", "json", "--root"])
            .arg(&lab.root)
            .output()
            .unwrap();
        text(&output.stdout) + &text(&output.stderr)
    };
    for (path, mode) in [
        (&dir, "0755"),
        (&dir, "0700"),
        (&lab.root.join("disk"), "0700"),
    ] {
        std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
        let changed = Command::new("chmod").arg(mode).arg(path).status().unwrap();
        assert!(changed.success());
        let words = look();
        assert!(words.contains("StorageDenied"), "{mode}: {words}");
        assert!(!words.contains("StorageMissing"), "{mode}: {words}");
    }
}
