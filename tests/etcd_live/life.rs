//! A member's life: born, killed, adopted, stopped, edited.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use crate::lab::{Lab, condition, kill, text};

fn born(line: &str) {
    let mut lab = Lab::new(line);
    lab.start_agent();
    let status = lab.wait_available();
    assert_eq!(status["version"], lab.version.as_str());
    assert!(lab.put("a", "1"));
    lab.kill_etcd();
    lab.wait_available();
    assert_eq!(lab.get("a").as_deref(), Some("1"));
}

#[test]
fn etcd_3_5_is_born_and_comes_back_after_sigkill() {
    born("3.5");
}

#[test]
fn etcd_3_6_is_born_and_comes_back_after_sigkill() {
    born("3.6");
}

#[test]
fn etcd_3_7_is_born_and_comes_back_after_sigkill() {
    born("3.7");
}

#[test]
fn the_operator_comes_and_goes_and_etcd_does_not_notice() {
    let mut lab = Lab::new("3.6");
    lab.start_agent();
    lab.wait_available();
    let pid = lab.etcd_pid().unwrap();
    lab.stop_agent();
    assert_eq!(lab.etcd_pid(), Some(pid), "SIGTERM leaves etcd running");
    assert!(lab.put("without", "operator"));
    lab.start_agent();
    lab.wait_available();
    lab.kill_agent();
    assert!(lab.put("still", "there"));
    lab.start_agent();
    let status = lab.wait_available();
    assert_eq!(status["host"]["etcd"]["pid"], pid, "adopted, not restarted");
    // The death of an adopted process, which is no child, is seen at once too.
    let begin = Instant::now();
    lab.kill_etcd();
    lab.wait("a new process", |it| {
        it["host"]["etcd"]["pid"]
            .as_u64()
            .is_some_and(|it| it != u64::from(pid))
    });
    assert!(
        begin.elapsed() < Duration::from_secs(5),
        "{:?}",
        begin.elapsed()
    );
    assert_eq!(lab.get("still").as_deref(), Some("there"));
}

#[test]
fn the_second_agent_on_a_directory_is_refused() {
    let mut lab = Lab::new("3.6");
    lab.start_agent();
    lab.wait_available();
    let second = lab.operator(&["agent"]);
    assert_eq!(second.status.code(), Some(1));
    assert!(
        text(&second.stderr).contains("one agent at a time"),
        "{}",
        text(&second.stderr)
    );
    assert!(text(&second.stderr).contains(&format!("process {}", lab.agent_pid())));
    assert_eq!(condition(&lab.status(), "Available").0, "True");
}

#[test]
fn size_zero_stops_etcd_and_keeps_everything() {
    let mut lab = Lab::new("3.6");
    lab.start_agent();
    lab.wait_available();
    assert!(lab.put("kept", "yes"));
    let id = lab.status()["clusterID"].clone();
    lab.spec.push_str("  size: 0\n");
    lab.write_document();
    lab.signal_agent("HUP");
    lab.wait("stopped", |it| {
        condition(it, "Available") == ("False", "SizeZero")
    });
    assert_eq!(lab.etcd_pid(), None);
    lab.spec = lab.spec.replace("size: 0", "size: 1");
    lab.write_document();
    lab.signal_agent("HUP");
    let status = lab.wait_available();
    assert_eq!(status["clusterID"], id);
    assert_eq!(lab.get("kept").as_deref(), Some("yes"));
}

#[test]
fn an_edit_restarts_etcd_and_a_bad_edit_changes_nothing() {
    let mut lab = Lab::new("3.6");
    lab.start_agent();
    lab.wait_available();
    let pid = lab.etcd_pid();
    fs::write(lab.document_path(), "apiVersion: nonsense\n").unwrap();
    lab.signal_agent("HUP");
    let status = lab.wait("the refusal", |it| {
        condition(it, "DocumentAccepted").0 == "False"
    });
    assert_eq!(condition(&status, "Available").0, "True");
    assert_eq!(lab.etcd_pid(), pid);
    assert!(
        lab.log().contains("the one before stays in force"),
        "{}",
        lab.log()
    );
    lab.spec.push_str("  options: {snapshotCount: 1234}\n");
    lab.write_document();
    lab.signal_agent("HUP");
    lab.wait("a new process", |it| {
        it["host"]["etcd"]["pid"]
            .as_u64()
            .is_some_and(|it| Some(it) != pid.map(u64::from))
    });
    lab.wait_available();
    assert!(
        fs::read_to_string(lab.lib("member/etcd.conf.yaml"))
            .unwrap()
            .contains("snapshot-count: 1234")
    );
}

#[test]
fn no_other_user_can_read_a_key() {
    let mut lab = Lab::new("3.6");
    lab.start_agent();
    lab.wait_available();
    let mut looked_at = 0;
    let mut folders = vec![lab.lib(""), lab.run("")];
    while let Some(folder) = folders.pop() {
        let mode = fs::metadata(&folder).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o700, "{}", folder.display());
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let metadata = fs::symlink_metadata(entry.path()).unwrap();
            if metadata.is_dir() {
                folders.push(entry.path());
            } else if entry.path().extension().is_some_and(|it| it == "key") {
                assert_eq!(
                    metadata.permissions().mode() & 0o777,
                    0o600,
                    "{}",
                    entry.path().display()
                );
                looked_at += 1;
            }
        }
    }
    assert!(
        looked_at >= 6,
        "two CAs, three leaves, one client: {looked_at}"
    );
}

#[test]
fn a_pid_file_that_names_somebody_else_harms_nobody() {
    let mut lab = Lab::new("3.6");
    lab.start_agent();
    lab.wait_available();
    lab.kill_agent();
    lab.kill_etcd();
    let mut stranger = std::process::Command::new("sleep")
        .arg("60")
        .spawn()
        .unwrap();
    let record = fs::read_to_string(lab.run("process.json")).unwrap();
    let mut record: serde_json::Value = serde_json::from_str(&record).unwrap();
    record["pid"] = stranger.id().into();
    fs::write(lab.run("process.json"), record.to_string()).unwrap();
    lab.spec.push_str("  size: 0\n");
    lab.write_document();
    lab.start_agent();
    lab.wait("stopped", |it| {
        condition(it, "Available") == ("False", "SizeZero")
    });
    assert!(stranger.try_wait().unwrap().is_none(), "the stranger lives");
    kill("KILL", stranger.id());
    stranger.wait().unwrap();
}
