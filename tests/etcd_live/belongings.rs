//! What the operator knows etcd and itself by: the record of the process, the lock, the socket, the
//! identity. Each is a file, and files are lost, forged and replaced.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::lab::{Lab, condition, program, text};
use crate::restore::{json, lab as with_backups};

fn born() -> (Lab, u32) {
    let mut lab = Lab::new("3.6");
    lab.start_agent();
    lab.wait_available();
    assert!(lab.put("before", "x"));
    let pid = lab.etcd_pid().unwrap();
    (lab, pid)
}

/// Somebody else's process.
struct Victim(Child);

impl Victim {
    fn begin() -> Self {
        Victim::run(Command::new("sleep").arg("600"))
    }

    fn run(command: &mut Command) -> Self {
        Victim(command.stdin(Stdio::null()).spawn().unwrap())
    }

    fn lives(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    /// The record of etcd's process with this one's id and true start time.
    fn forge(&self, lab: &Lab, record: &[u8]) {
        let pid = self.0.id();
        let mut forged: Value = serde_json::from_slice(record).unwrap();
        forged["pid"] = pid.into();
        forged["start_time"] = etcd_operator::process::stat(pid).unwrap().start_time.into();
        fs::write(lab.run("process.json"), forged.to_string()).unwrap();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The document asks for no etcd; the agent stops what it takes for etcd.
fn hibernate(lab: &mut Lab) {
    lab.add("size: 0");
    lab.signal_agent("HUP");
    lab.wait("the stop", |it| condition(it, "Available").1 == "SizeZero");
}

#[test]
fn a_forged_record_gets_no_other_process_signalled_or_called_etcd() {
    let (mut lab, pid) = born();
    let record = fs::read(lab.run("process.json")).unwrap();
    let mut victim = Victim::begin();
    // While etcd runs: the right process is found again.
    victim.forge(&lab, &record);
    let status = lab.wait("etcd's own id", |it| it["host"]["etcd"]["pid"] == pid);
    assert_ne!(condition(&status, "Available").0, "False", "{status:#}");
    lab.wait_available();
    // While it does not: it is started.
    lab.stop_agent();
    lab.kill_etcd();
    victim.forge(&lab, &record);
    lab.start_agent();
    lab.wait_available();
    assert!(
        lab.etcd_pid()
            .is_some_and(|it| it != victim.0.id() && it != pid)
    );
    let record = fs::read(lab.run("process.json")).unwrap();
    hibernate(&mut lab);
    victim.forge(&lab, &record);
    let status = lab.status();
    assert!(status["host"]["etcd"]["pid"].is_null(), "{status:#}");
    assert!(victim.lives());
}

/// The ways to lose the record.
const LOST: [(&str, &str); 5] = [
    ("removed", "rm process.json"),
    ("empty", ": > process.json"),
    ("a directory", "rm process.json; mkdir process.json"),
    ("a link to nowhere", "ln -sf /nonexistent process.json"),
    ("all of it", "rm -r ../etcd-operator"),
];

fn in_run(lab: &Lab, script: &str) {
    let shell = Command::new("sh")
        .args(["-c", script])
        .current_dir(lab.run(""))
        .status();
    assert!(shell.unwrap().success(), "{script}");
}

#[test]
fn an_etcd_whose_record_was_lost_is_found_again_by_what_proves_it() {
    let (mut lab, pid) = born();
    for (what, script) in LOST {
        in_run(&lab, script);
        let limit = Duration::from_secs(20);
        let back = |it: &Value| {
            condition(it, "Available").0 == "True"
                && it["host"]["operator"]["pid"] == lab.agent_pid()
        };
        let status = lab.wait_for(limit, what, back);
        assert_eq!(status["host"]["etcd"]["pid"], pid, "{what}");
        assert!(status["plan"]["hold"].is_null(), "{what}: {status:#}");
    }
    // The same for an operator that was away meanwhile.
    for (what, script) in LOST {
        lab.stop_agent();
        in_run(&lab, script);
        lab.start_agent();
        assert_eq!(lab.wait_available()["host"]["etcd"]["pid"], pid, "{what}");
    }
    assert_eq!(lab.get("before").as_deref(), Some("x"));
    // It is ours again: it ends when it is told to.
    hibernate(&mut lab);
    assert_eq!(lab.etcd_pid(), None);
}

/// It holds the lock, and etcd's configuration is among its arguments; it does not answer as our cluster.
#[test]
fn who_holds_the_lock_and_does_not_answer_as_the_cluster_is_left_alone() {
    let (mut lab, _) = born();
    lab.stop_agent();
    lab.kill_etcd();
    fs::remove_file(lab.run("process.json")).unwrap();
    let lock = lab.lib("member/member.lock");
    // No fork: the one that holds the lock is the one that is started, and that ends with this test.
    let mut other = Victim::run(
        Command::new("flock")
            .arg("--no-fork")
            .arg(&lock)
            .args(["tail", "-f", "/dev/null"])
            .arg(lab.lib("member/etcd.conf.yaml"))
            .stdout(Stdio::null()),
    );
    let begin = Instant::now();
    while etcd_operator::process::lock_holder(&lock).is_none() {
        assert!(begin.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(10));
    }
    lab.start_agent();
    lab.wait_hold("ForeignProcess");
    lab.add("size: 0");
    lab.signal_agent("HUP");
    lab.wait_hold("ForeignProcess");
    assert!(other.lives());
    assert!(!lab.run("process.json").exists(), "nobody was recorded");
}

/// A second agent; its exit code and words.
fn second(lab: &Lab) -> (i32, String) {
    let output = Command::new(program())
        .args(["agent", "--driver", "process", "--root"])
        .arg(&lab.root)
        .output()
        .unwrap();
    (output.status.code().unwrap_or(-1), text(&output.stderr))
}

#[test]
fn there_is_one_agent_also_where_the_lock_was_deleted() {
    let (lab, pid) = born();
    let (code, words) = second(&lab);
    assert_eq!(code, 1, "{words}");
    assert!(
        words.contains(&format!("is held by process {}", lab.agent_pid())),
        "{words}"
    );
    let lock = lab.lib("operator.lock");
    fs::remove_file(&lock).unwrap();
    let (code, words) = second(&lab);
    assert_eq!(code, 1, "{words}");
    assert!(
        words.contains("one agent at a time works on a directory"),
        "{words}"
    );
    // The agent takes its lock anew.
    let begin = Instant::now();
    while etcd_operator::process::lock_holder(&lock) != Some(lab.agent_pid()) {
        assert!(begin.elapsed() < Duration::from_secs(20), "{}", lab.log());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(
        lab.wait_available()["host"]["operator"]["pid"],
        lab.agent_pid()
    );
    assert_eq!(lab.etcd_pid(), Some(pid));
}

#[test]
fn the_socket_comes_back_and_a_directory_in_its_place_is_named() {
    let (mut lab, pid) = born();
    let socket = lab.run("operator.sock");
    fs::remove_file(&socket).unwrap();
    let answered = |it: &Value| it["host"]["operator"]["pid"] == lab.agent_pid();
    let begin = Instant::now();
    while !socket.exists() {
        assert!(begin.elapsed() < Duration::from_secs(20), "{}", lab.log());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(answered(&lab.wait_available()));
    // A directory lies there: told, and taken up once it has gone.
    fs::remove_file(&socket).unwrap();
    fs::create_dir(&socket).unwrap();
    let words = "operator.sock is a directory, and the agent's socket goes there: remove it";
    let begin = Instant::now();
    while !lab.log().contains(words) {
        assert!(begin.elapsed() < Duration::from_secs(20), "{}", lab.log());
        std::thread::sleep(Duration::from_millis(50));
    }
    lab.kill_agent();
    let (code, said) = second(&lab);
    assert!(code == 1 && said.contains(words), "{code} {said}");
    fs::remove_dir(&socket).unwrap();
    lab.start_agent();
    lab.wait_available();
    assert_eq!(lab.etcd_pid(), Some(pid));
}

#[test]
fn an_identity_that_became_unreadable_is_told_while_etcd_runs() {
    let (lab, pid) = born();
    let identity = lab.lib("member/identity.json");
    let aside = lab.lib("member/aside.json");
    fs::rename(&identity, &aside).unwrap();
    fs::create_dir(&identity).unwrap();
    let status = lab.wait("the record", |it| {
        condition(it, "Degraded").1 == "RecordUnreadable"
    });
    assert!(
        status["conditions"].to_string().contains("identity.json"),
        "{status:#}"
    );
    assert_eq!(condition(&status, "Available").0, "True");
    fs::remove_dir(&identity).unwrap();
    fs::rename(&aside, &identity).unwrap();
    lab.wait("no word of it", |it| condition(it, "Degraded").0 == "False");
    assert_eq!(lab.etcd_pid(), Some(pid));
}

#[test]
fn of_two_restores_at_once_one_is_told_of_the_other() {
    let mut lab = with_backups("3.6");
    lab.start_agent();
    lab.wait_available();
    assert!(lab.put("a", "1"));
    assert_eq!(json(&lab, &["backup", "create"])["result"], "saved");
    let begin = || {
        Command::new(program())
            .args(["restore", "--from", "latest", "--yes", "--root"])
            .arg(&lab.root)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    for _ in 0..3 {
        let both = [begin(), begin(), begin()].map(|it| it.wait_with_output().unwrap());
        let done = both.iter().filter(|it| it.status.success()).count();
        let told: Vec<String> = both
            .iter()
            .filter(|it| !it.status.success())
            .map(|it| text(&it.stderr))
            .collect();
        assert!(done >= 1, "{told:?}");
        assert!(
            told.iter()
                .all(|it| it.contains("a restore is under way already")),
            "{told:?}"
        );
        lab.wait_available();
    }
    assert_eq!(lab.get("a").as_deref(), Some("1"));
}

/// Whoever moved the disk knows it: a reload says so, and it is told no more.
#[test]
fn another_machine_is_told_until_a_person_asks_for_another_try() {
    let mut lab = Lab::new("3.6");
    let machine = lab.root.join("etc/machine-id");
    fs::write(&machine, "0123456789abcdef0123456789abcdef\n").unwrap();
    lab.start_agent();
    lab.wait_available();
    lab.stop_agent();
    fs::write(&machine, "fedcba9876543210fedcba9876543210\n").unwrap();
    lab.start_agent();
    let told = |it: &Value| condition(it, "Degraded") == ("True", "MachineChanged");
    lab.wait("the other machine", |it| {
        told(it) && condition(it, "Available").0 == "True"
    });
    lab.signal_agent("HUP");
    let sound = |it: &Value| condition(it, "Degraded").0 == "False";
    lab.wait("nothing to tell", sound);
    lab.stop_agent();
    lab.start_agent();
    let status = lab.wait_available();
    assert!(sound(&status), "{status:#}");
}
