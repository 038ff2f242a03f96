//! Logs, metrics, and that an idle operator writes nothing to disk.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use crate::disk::{Disk, may_mount};
use crate::lab::{Lab, condition, free_ports, kill, skip, text};

/// Head and body of an answer.
fn get(address: &str, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_lowercase(), body.to_owned())
}

#[test]
fn metrics_and_health_are_served_where_asked_for() {
    let mut lab = Lab::new("3.6");
    let address = format!("127.0.0.1:{}", free_ports().0[0]);
    lab.arguments = vec!["--metrics-address".to_owned(), address.clone()];
    lab.start_agent();
    lab.wait_available();
    let (head, page) = get(&address, "/metrics");
    assert!(head.starts_with("http/1.1 200"), "{head}");
    assert!(
        head.contains("content-type: text/plain; version=0.0.4"),
        "{head}"
    );
    let version = format!(
        "etcd_operator_version_info{{version=\"{}\"}} 1",
        lab.version
    );
    for line in [
        "etcd_operator_condition{condition=\"Available\"} 1",
        "# TYPE etcd_operator_passes_total counter",
        "# TYPE etcd_operator_certificate_expiry_timestamp_seconds gauge",
        "# TYPE etcd_operator_backup_last_verified_timestamp_seconds gauge",
        "etcd_operator_backup_queue_snapshots 0",
        "etcd_operator_disk_full_in_seconds -1",
        &version,
    ] {
        assert!(page.lines().any(|it| it == line), "{line}: {page}");
    }
    let free = page
        .lines()
        .find_map(|it| it.strip_prefix("etcd_operator_disk_free_bytes "));
    assert!(free.unwrap().parse::<i64>().unwrap() > 0, "{page}");
    assert!(get(&address, "/healthz").0.starts_with("http/1.1 200"));
    assert!(get(&address, "/else").0.starts_with("http/1.1 404"));
    // A hold shows, and goes again.
    kill("STOP", lab.etcd_pid().unwrap());
    lab.wait("not available", |it| condition(it, "Available").0 != "True");
    let (_, frozen) = get(&address, "/metrics");
    assert!(
        frozen.contains("etcd_operator_condition{condition=\"Available\"} 0"),
        "{frozen}"
    );
    kill("CONT", lab.etcd_pid().unwrap());
    lab.wait_available();
    // So does a document that is refused.
    for (document, value) in [
        (format!("{}  sise: 1\n", lab.document()), 0),
        (lab.document(), 1),
    ] {
        fs::write(lab.document_path(), document).unwrap();
        lab.signal_agent("HUP");
        let wanted = ["False", "True"][value];
        lab.wait("told", |it| condition(it, "DocumentAccepted").0 == wanted);
        let (_, page) = get(&address, "/metrics");
        let line = format!("etcd_operator_condition{{condition=\"DocumentAccepted\"}} {value}");
        assert!(page.lines().any(|it| it == line), "{line}: {page}");
    }
    checked_by_promtool(&page);
}

/// What Prometheus' own tool says of a page of metrics: nothing.
fn checked_by_promtool(page: &str) {
    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut promtool) = promtool else {
        skip("promtool check metrics needs tests/tools/prometheus.sh");
        return;
    };
    promtool
        .stdin
        .take()
        .unwrap()
        .write_all(page.as_bytes())
        .unwrap();
    let output = promtool.wait_with_output().unwrap();
    let words = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success() && words.is_empty(),
        "{words}\n{page}"
    );
}

#[test]
fn metrics_are_refused_on_an_address_that_others_can_reach() {
    let mut lab = Lab::new("3.6");
    for address in ["0.0.0.0:2390", "192.0.2.1:2390", "[::]:2390"] {
        lab.arguments = vec!["--metrics-address".to_owned(), address.to_owned()];
        lab.start_agent();
        assert_eq!(lab.agent_exit(), 2, "{address}");
        assert!(lab.log().contains("loopback only"), "{}", lab.log());
    }
    assert_eq!(lab.etcd_pid(), None);
}

#[test]
fn logs_are_json_or_carry_the_journals_priorities_where_asked_for() {
    let mut lab = Lab::new("3.6");
    lab.arguments = vec!["--log-format".to_owned(), "json".to_owned()];
    lab.start_agent();
    lab.wait_available();
    lab.stop_agent();
    let log = lab.log();
    assert!(log.lines().count() > 3, "{log}");
    for line in log.lines() {
        let it: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
        assert!(
            it["message"].is_string() && it["level"].is_string() && it["timestamp"].is_string(),
            "{line}"
        );
    }
    fs::remove_file(lab.root.join("agent.log")).unwrap();
    lab.arguments.clear();
    lab.environment = vec![("JOURNAL_STREAM".to_owned(), "8:1".to_owned())];
    lab.start_agent();
    lab.wait_available();
    kill("STOP", lab.etcd_pid().unwrap());
    lab.wait("not available", |it| condition(it, "Available").0 != "True");
    kill("CONT", lab.etcd_pid().unwrap());
    lab.wait_available();
    lab.stop_agent();
    let log = lab.log();
    for line in log.lines() {
        assert!(line.starts_with("<6>") || line.starts_with("<4>"), "{line}");
    }
    assert!(
        log.lines()
            .any(|it| it.starts_with("<4>Available is False")),
        "{log}"
    );
}

/// Bytes that a process caused to be written to disk.
fn write_bytes(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
    let line = text
        .lines()
        .find_map(|it| it.strip_prefix("write_bytes: "))
        .unwrap();
    line.parse().unwrap()
}

/// Files below a directory that were changed since then.
fn written_since(dir: &Path, then: SystemTime) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let metadata = entry.metadata().unwrap();
        if metadata.modified().unwrap() >= then {
            found.push(entry.path());
        }
        if metadata.is_dir() {
            found.extend(written_since(&entry.path(), then));
        }
    }
    found
}

#[test]
fn an_idle_operator_writes_nothing_to_disk_and_lets_etcd_rest() {
    if !may_mount() {
        return;
    }
    // What others write would fill the disk of the data, and the operator says so.
    let disk = Disk::new("idle", 400);
    let mut lab = Lab::new("3.6");
    lab.storage(&format!("path: {}, quota: 64Mi", disk.path.display()));
    lab.start_agent();
    lab.wait_available();
    // What the birth left to be written is over when two looks find the same (etcd notes the
    // storage version late).
    let both = |lab: &Lab| {
        (
            write_bytes(lab.agent_pid()),
            write_bytes(lab.etcd_pid().unwrap()),
        )
    };
    let deadline = Instant::now() + Duration::from_secs(90);
    let mut begin = both(&lab);
    loop {
        std::thread::sleep(Duration::from_secs(15));
        let now = both(&lab);
        if now == begin {
            break;
        }
        assert!(
            Instant::now() < deadline,
            "never at rest: {begin:?} {now:?}"
        );
        begin = now;
    }
    let (passes, before) = (lab.log().len(), SystemTime::now());
    std::thread::sleep(Duration::from_secs(60));
    let end = both(&lab);
    eprintln!(
        "idle for 60 s: operator {} bytes, etcd {} bytes",
        end.0 - begin.0,
        end.1 - begin.1
    );
    assert_eq!(lab.log().len(), passes, "nothing to log: {}", lab.log());
    let written = [&lab.root, &disk.path].map(|it| written_since(it, before));
    assert_eq!(end.0, begin.0, "the operator: {written:?}");
    assert_eq!(end.1, begin.1, "etcd, because of the operator's looks");
    lab.wait_available();
}
