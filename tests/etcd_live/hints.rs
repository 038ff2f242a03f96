//! etcd's words are hints: a log that it has repaired, or words of damage over sound files, are no
//! damage, and nothing is thrown away for them.

use std::fs;
use std::io::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use etcd_operator::diagnosis::{DIAGNOSES, Kind};

use crate::lab::{Lab, condition, kill, program};
use crate::restore::{json, lab as lab_with_backup};
use crate::tools::append_torn_record;

const POLICY: &str = "  recovery: {singleMember: restoreLatestVerified}\n";
const REPAIRED: &str = "\"msg\":\"repaired WAL\"";
const SERVES: &str = "ready to serve client requests";

/// 200 keys, a snapshot from before them, and the power cut while a record was written that nobody was
/// promised: the log ends in a torn record, and /run is empty.
fn after_a_power_cut(line: &str, policy: &str) -> Lab {
    let mut lab = lab_with_backup(line);
    lab.spec.push_str(policy);
    lab.write_document();
    lab.start_agent();
    lab.wait_available();
    assert!(lab.put("first", "1"));
    assert_eq!(json(&lab, &["backup", "create"])["result"], "saved");
    lab.fill(200);
    lab.wait_available();
    lab.kill_agent();
    lab.kill_etcd();
    append_torn_record(&lab);
    clear_run(&lab);
    lab
}

/// As a reboot does.
fn clear_run(lab: &Lab) {
    for entry in fs::read_dir(lab.run("")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
}

/// Kills etcd between its repair of the log and its first service.
fn kill_after_the_repair(lab: &Lab, since: u64) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !lab.logged_since(since, REPAIRED) {
        assert!(Instant::now() < deadline, "{}", lab.etcd_log());
    }
    kill("KILL", lab.etcd_pid().unwrap());
}

/// No restore was made, asked for, or tried.
fn nothing_was_thrown_away(lab: &Lab) {
    assert_eq!(lab.filled(), 200);
    assert_eq!(lab.get("first").as_deref(), Some("1"));
    for entry in fs::read_dir(lab.lib("member")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(!name.contains("restore"), "{name}");
    }
    assert!(!lab.lib("restored.json").exists(), "{}", lab.log());
}

/// The out-of-memory killer comes in the moment after the repair.
fn killed_in_the_moment_after_a_repair(line: &str, policy: &str) {
    let mut lab = after_a_power_cut(line, policy);
    let since = lab.log_length();
    lab.start_agent();
    kill_after_the_repair(&lab, since);
    let status = lab.wait_available();
    assert_eq!(condition(&status, "Degraded").0, "False");
    assert!(lab.logged_since(since, REPAIRED) && lab.logged_since(since, SERVES));
    assert!(lab.put("after", "1"));
    nothing_was_thrown_away(&lab);
    assert!(!lab.log().contains("hold"), "{}", lab.log());
}

#[test]
fn a_repaired_log_is_not_restored_over_by_the_policy_on_3_5() {
    killed_in_the_moment_after_a_repair("3.5", POLICY);
}

#[test]
fn a_repaired_log_is_not_restored_over_by_the_policy_on_3_6() {
    killed_in_the_moment_after_a_repair("3.6", POLICY);
}

#[test]
fn a_repaired_log_is_not_restored_over_by_the_policy_on_3_7() {
    killed_in_the_moment_after_a_repair("3.7", POLICY);
}

#[test]
fn a_repaired_log_is_not_held() {
    killed_in_the_moment_after_a_repair("3.6", "");
}

/// What systemd runs when the unit's process has ended.
fn ended(lab: &Lab, result: &str, code: &str, status: &str) {
    let ran = Command::new(program())
        .args(["guard", "--ended", "--root"])
        .arg(&lab.root)
        .env("SERVICE_RESULT", result)
        .env("EXIT_CODE", code)
        .env("EXIT_STATUS", status)
        .status()
        .unwrap();
    assert!(ran.success());
}

/// The operator was removed. After a power cut the guard starts etcd, which repairs its log and serves;
/// whatever kills it then, the guard starts it again.
fn without_an_operator(line: &str) {
    let lab = after_a_power_cut(line, POLICY);
    let since = lab.log_length();
    for number in 0..4 {
        let (code, words) = lab.guard();
        assert_eq!(code, 0, "start {number}: {words}");
        ended(&lab, "signal", "killed", "KILL");
    }
    assert!(lab.logged_since(since, REPAIRED));
}

#[test]
fn an_etcd_that_served_after_a_repair_is_started_again_without_an_operator_on_3_5() {
    without_an_operator("3.5");
}

#[test]
fn an_etcd_that_served_after_a_repair_is_started_again_without_an_operator_on_3_6() {
    without_an_operator("3.6");
}

#[test]
fn an_etcd_that_served_after_a_repair_is_started_again_without_an_operator_on_3_7() {
    without_an_operator("3.7");
}

/// The healthy twin of each row of the table: the words of damage at every level in the log of the last
/// start, the last of them fatal, over sound files. etcd serves, and nothing was replaced.
#[test]
fn words_of_damage_over_sound_files_are_no_damage() {
    let mut lab = lab_with_backup("3.6");
    lab.spec.push_str(POLICY);
    lab.write_document();
    lab.start_agent();
    lab.wait_available();
    assert!(lab.put("first", "1"));
    assert_eq!(json(&lab, &["backup", "create"])["result"], "saved");
    lab.fill(200);
    let rows: Vec<_> = DIAGNOSES
        .iter()
        .filter(|it| it.kind == Kind::Damage)
        .collect();
    assert!(rows.len() > 10);
    for row in rows {
        lab.kill_agent();
        lab.kill_etcd();
        for level in ["debug", "info", "warn", "error", "dpanic", "panic", "fatal"] {
            say(&lab, level, row.text);
        }
        let before = found_sound(&lab);
        lab.start_agent();
        lab.wait_available();
        assert_ne!(
            found_sound(&lab),
            before,
            "{}: nobody read the data",
            row.text
        );
        nothing_was_thrown_away(&lab);
    }
}

/// etcd's log says this, as if the last start had.
pub fn say(lab: &Lab, level: &str, words: &str) {
    let mut log = fs::OpenOptions::new()
        .append(true)
        .open(lab.lib("member/log/etcd.log"))
        .unwrap();
    writeln!(
        log,
        r#"{{"level":"{level}","ts":"2026-01-01T00:00:00Z","msg":"{words}","error":"{words}"}}"#,
    )
    .unwrap();
}

/// The stamp of the data that was last read through and found sound.
pub fn found_sound(lab: &Lab) -> serde_json::Value {
    let starts = fs::read(lab.run("starts.json")).unwrap();
    serde_json::from_slice::<serde_json::Value>(&starts).unwrap()["sound"].clone()
}

/// The same words as data of a client, and at levels that end nothing: nobody even looks.
#[test]
fn words_of_damage_that_end_nothing_are_not_looked_into() {
    let mut lab = Lab::new("3.6");
    lab.start_agent();
    lab.wait_available();
    lab.fill(200);
    assert!(lab.put("first", "1"));
    lab.kill_agent();
    lab.kill_etcd();
    let mut log = fs::OpenOptions::new()
        .append(true)
        .open(lab.lib("member/log/etcd.log"))
        .unwrap();
    for row in DIAGNOSES {
        for level in ["debug", "info", "warn", "error"] {
            writeln!(
                log,
                r#"{{"level":"{level}","msg":"{0}","value":"{{\"level\":\"fatal\",\"msg\":\"{0}\"}}"}}"#,
                row.text
            )
            .unwrap();
        }
    }
    let (code, words) = lab.guard();
    assert_eq!(code, 0, "{words}");
    lab.start_agent();
    lab.wait_available();
    assert!(found_sound(&lab).is_null());
    nothing_was_thrown_away(&lab);
}

/// Killed again and again before it serves: the hold names the signal, and when the next start is tried.
#[test]
fn a_killed_etcd_is_called_killed() {
    let mut lab = Lab::new("3.6");
    lab.start_agent();
    lab.wait_available();
    lab.fill(200);
    let mut last = lab.etcd_pid().unwrap();
    let since = lab.log_length();
    kill("KILL", last);
    let deadline = Instant::now() + Duration::from_secs(30);
    // Asked in the file: etcd is not to serve while somebody looks.
    let status = lab.root.join("run/etcd-operator/status.json");
    let held = || {
        let text = fs::read_to_string(&status).unwrap_or_default();
        serde_json::from_str::<Value>(&text).is_ok_and(|it| it["plan"]["hold"] == "CrashLoop")
    };
    while !held() {
        assert!(Instant::now() < deadline, "{}", lab.log());
        if let Some(pid) = lab.etcd_pid().filter(|it| *it != last) {
            kill("KILL", pid);
            last = pid;
        }
    }
    assert!(
        !lab.logged_since(since, SERVES),
        "it was never let to serve"
    );
    let status = lab.wait_hold("CrashLoop");
    let message = status["plan"]["message"].as_str().unwrap();
    assert!(
        message.contains("etcd ended 3 times before it served"),
        "{message}"
    );
    assert!(
        message.contains("killed by signal 9 (SIGKILL)"),
        "{message}"
    );
    assert!(message.contains("tried within 10 min"), "{message}");
    lab.signal_agent("HUP");
    lab.wait_available();
    assert_eq!(lab.filled(), 200);
    // One that serves is no failed start, however often it is killed.
    for _ in 0..6 {
        lab.kill_etcd();
        lab.wait_available();
    }
    assert_eq!(lab.filled(), 200);
}

/// Under systemd, whose word the guard gets when the process has ended.
#[test]
fn systemd_tells_the_guard_how_etcd_was_killed() {
    for (result, status, words) in [
        ("signal", "KILL", "killed by signal 9 (SIGKILL)"),
        ("core-dump", "SEGV", "killed by signal 11"),
        (
            "oom-kill",
            "KILL",
            "killed by the kernel for want of memory",
        ),
    ] {
        let mut lab = Lab::new("3.6");
        lab.start_agent();
        lab.wait_available();
        lab.kill_agent();
        lab.kill_etcd();
        for _ in 0..3 {
            let mut guard = Command::new(program())
                .args(["guard", "--root"])
                .arg(&lab.root)
                .spawn()
                .unwrap();
            let before = lab.log_length();
            while lab.log_length() == before {}
            guard.kill().unwrap();
            guard.wait().unwrap();
            ended(&lab, result, "killed", status);
        }
        let (code, said) = lab.guard();
        assert_eq!(code, 3, "{said}");
        assert!(said.contains(words), "{said}");
    }
}

/// A limit that is too low for etcd is named.
#[test]
fn too_few_open_files_are_called_so() {
    let mut lab = Lab::new("3.6");
    lab.start_agent();
    lab.wait_available();
    lab.kill_agent();
    lab.kill_etcd();
    for _ in 0..3 {
        let script = format!(
            "ulimit -n 64; exec {} guard --root {}",
            program().display(),
            lab.root.display()
        );
        let status = Command::new("bash").args(["-c", &script]).status().unwrap();
        assert_eq!(status.code(), Some(1));
    }
    let (code, said) = lab.guard();
    assert_eq!(code, 3, "{said}");
    assert!(
        said.contains("CrashLoop: ") && said.contains("too many open files"),
        "{said}"
    );
}
