//! What etcd itself says of its settings, for three version lines and both profiles; and which
//! versions a cluster is born with.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::lab::{Lab, condition, text};

const LINES: [&str; 3] = ["3.5", "3.6", "3.7"];

fn born(line: &str, storage: Option<&str>, lines: &[&str]) -> Lab {
    let mut lab = Lab::new(line);
    if let Some(storage) = storage {
        lab.storage(storage);
    }
    for it in lines {
        lab.add(it);
    }
    lab.start_agent();
    lab.wait_available();
    lab
}

/// Everything that etcd logged, and what it wrote to its standard error.
fn logged(lab: &Lab) -> Vec<Value> {
    let log = fs::read_to_string(lab.lib("member/log/etcd.log")).unwrap();
    let stderr = fs::read_to_string(lab.run("etcd.stderr")).unwrap();
    log.lines()
        .chain(stderr.lines())
        .map(|it| {
            serde_json::from_str(it)
                .unwrap_or_else(|_| serde_json::json!({"level": "warn", "msg": it}))
        })
        .collect()
}

fn line<'a>(log: &'a [Value], message: &str) -> &'a Value {
    log.iter()
        .find(|it| it["msg"] == message)
        .unwrap_or_else(|| panic!("etcd did not log '{message}'"))
}

/// A warning of every etcd that has one address for gRPC and HTTP.
const USUAL: [&str; 1] =
    ["Running http and grpc server on single port. This is not recommended for production."];

/// No option was unknown, deprecated or ignored.
fn assert_no_complaint(log: &[Value], what: &str) {
    for it in log {
        let message = it["msg"].as_str().unwrap_or_default();
        let level = it["level"].as_str().unwrap_or_default();
        let words = [
            "deprecat",
            "unknown",
            "unrecognized",
            "ignor",
            "experimental",
        ];
        let complains = words
            .iter()
            .any(|word| message.to_lowercase().contains(word));
        // "other flags ... will be ignored if provided" is said of every configuration file.
        let always = message.starts_with("loaded server configuration");
        assert!(!complains || always, "{what}: {it}");
        // Who reads the configuration, and what is on standard error.
        let caller = it["caller"].as_str().unwrap_or("etcdmain");
        let reads = ["etcdmain", "embed/"]
            .iter()
            .any(|part| caller.starts_with(part));
        let wrong = reads && ["warn", "error", "fatal"].contains(&level);
        assert!(!wrong || USUAL.contains(&message), "{what}: {it}");
    }
}

fn environment(pid: u32) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{pid}/environ")).unwrap();
    let mut variables: Vec<String> = bytes
        .split(|it| *it == 0)
        .map(text)
        .filter(|it| !it.is_empty() && !it.starts_with("PATH="))
        .collect();
    variables.sort();
    variables
}

fn assert_in_force(log: &[Value], what: &str, expected: &[(&str, Value)]) {
    let config = line(log, "starting an etcd server");
    for (key, value) in expected {
        assert_eq!(&config[*key], value, "{what}: {key} in {config}");
    }
}

#[test]
fn the_values_of_both_profiles_are_in_force_in_every_line() {
    for version in LINES {
        for profile in ["edge", "standard"] {
            let what = format!("{version} {profile}");
            let lab = born(
                version,
                Some("quota: 96Mi"),
                &[&format!("profile: {profile}")],
            );
            let log = logged(&lab);
            assert_no_complaint(&log, &what);
            let edge = profile == "edge";
            let pick = |one: u64, other: u64| Value::from(if edge { one } else { other });
            let mut expected = vec![
                ("heartbeat-interval", "100ms".into()),
                (
                    "election-timeout",
                    (if edge { "500ms" } else { "1s" }).into(),
                ),
                ("snapshot-count", pick(5000, 10_000)),
                ("max-wals", pick(2, 5)),
                ("quota-backend-bytes", (96_u64 << 20).into()),
                ("max-request-bytes", 1_572_864.into()),
                ("auto-compaction-mode", "periodic".into()),
                ("auto-compaction-retention", "1h0m0s".into()),
                ("pre-vote", true.into()),
            ];
            if version == "3.5" {
                expected.push(("max-snapshots", pick(2, 5)));
                expected.push(("initial-corrupt-check", false.into()));
            } else {
                expected.push(("snapshot-catchup-entries", pick(1000, 5000)));
            }
            assert_in_force(&log, &what, &expected);
            let batch = line(&log, "setting backend batch interval")["batch interval"].clone();
            assert_eq!(batch, if edge { "5s" } else { "100ms" }, "{what}");
            let wanted: &[&str] = if edge { &["GOGC=50"] } else { &[] };
            assert_eq!(environment(lab.etcd_pid().unwrap()), wanted, "{what}");
        }
    }
}

/// The answer to a transaction of so many operations.
fn transaction(lab: &Lab, operations: usize) -> String {
    let files = lab.lib("tls/clients/admin");
    let mut child = Command::new(lab.etcd.join("etcdctl"))
        .env_clear()
        .env(
            "ETCDCTL_ENDPOINTS",
            format!("https://127.0.0.1:{}", lab.ports[0]),
        )
        .env("ETCDCTL_CACERT", files.join("ca.crt"))
        .env("ETCDCTL_CERT", files.join("client.crt"))
        .env("ETCDCTL_KEY", files.join("client.key"))
        .arg("txn")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut puts = String::new();
    for it in 0..operations {
        let _ = std::fmt::Write::write_fmt(&mut puts, format_args!("put t/{it} x\n"));
    }
    std::io::Write::write_all(
        &mut child.stdin.take().unwrap(),
        format!("\n{puts}\n\n").as_bytes(),
    )
    .unwrap();
    let output = child.wait_with_output().unwrap();
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

#[test]
fn every_option_of_the_document_is_in_force_in_every_line() {
    for version in LINES {
        let lab = born(
            version,
            None,
            &[
                "options: {heartbeatMilliseconds: 200, electionMilliseconds: 2000, snapshotCount: 1234, maxRequestSize: 2Mi, maxTransactionOperations: 7, memoryLimit: 96Mi, logLevel: debug, autoCompaction: {mode: revision, retention: 777}}",
            ],
        );
        let log = logged(&lab);
        assert_no_complaint(&log, version);
        let expected = [
            ("heartbeat-interval", "200ms".into()),
            ("election-timeout", "2s".into()),
            ("snapshot-count", 1234.into()),
            ("max-request-bytes", (2 << 20).into()),
            ("auto-compaction-mode", "revision".into()),
            ("auto-compaction-retention", "777ns".into()), // as etcd prints a number of revisions
        ];
        assert_in_force(&log, version, &expected);
        assert!(log.iter().any(|it| it["level"] == "debug"), "{version}");
        let answer = transaction(&lab, 7);
        assert!(answer.contains("SUCCESS"), "{version}: {answer}");
        let answer = transaction(&lab, 8);
        assert!(
            answer.contains("too many operations"),
            "{version}: {answer}"
        );
        assert_eq!(
            environment(lab.etcd_pid().unwrap()),
            ["GOGC=50", "GOMEMLIMIT=100663296"],
            "{version}"
        );
    }
}

#[test]
fn the_quota_is_latched_at_birth() {
    let mut lab = born("3.6", Some("quota: 64Mi"), &[]);
    let quota = |lab: &Lab| {
        let log = logged(lab);
        let last = log
            .iter()
            .rev()
            .find(|it| it["msg"] == "starting an etcd server");
        last.unwrap()["quota-backend-bytes"].as_u64().unwrap() >> 20
    };
    let pid = lab.etcd_pid();
    assert_eq!(quota(&lab), 64);
    lab.storage("quota: 32Mi");
    lab.signal_agent("HUP");
    lab.wait("document read", |it| it["observedGeneration"] == 2);
    lab.wait_available();
    assert_eq!(lab.etcd_pid(), pid, "no restart for it");
    lab.kill_etcd();
    lab.wait_available();
    assert_eq!(quota(&lab), 64);
}

#[test]
fn no_cluster_is_born_with_a_version_that_loses_data_or_is_not_known() {
    for (version, reason, words) in [
        ("3.5.4", "VersionLosesData", "14370"),
        ("3.6.4", "VersionLosesData", "3.6.5"),
        ("3.4.45", "VersionUnsupported", "3.4.45"),
        ("3.8.0", "VersionUnsupported", "3.8.0"),
    ] {
        let mut lab = Lab::new("3.6");
        lab.version = version.to_owned();
        lab.write_document();
        lab.start_agent();
        let status = lab.wait_hold(reason);
        assert_eq!(
            condition(&status, "Available"),
            ("False", reason),
            "{version}"
        );
        let message = status["plan"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{version}: {message}");
        assert!(
            !lab.data("").exists() && !lab.lib("member/identity.json").exists(),
            "{version}"
        );
        let plan = lab.operator(&["plan"]);
        assert_eq!(plan.status.code(), Some(3), "{version}");
        assert!(
            text(&plan.stdout).contains(words),
            "{version}: {}",
            text(&plan.stdout)
        );
    }
}

#[test]
fn a_patch_too_old_for_a_living_cluster_is_a_hold_and_etcd_runs_on() {
    let mut lab = born("3.6", None, &[]);
    let (pid, own) = (lab.etcd_pid(), lab.version.clone());
    lab.version = "3.5.30".to_owned(); // it could not go up again
    lab.write_document();
    lab.signal_agent("HUP");
    let status = lab.wait_hold("UpgradeNotAllowed");
    assert_eq!(condition(&status, "Available").0, "True");
    assert_eq!(lab.etcd_pid(), pid);
    assert!(lab.put("still", "served"));
    // Also what has to be started again is started with what it was born with.
    lab.kill_etcd();
    let status = lab.wait_available();
    assert_eq!(status["version"], own.as_str());
}
