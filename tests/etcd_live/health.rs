//! What is told of a member that does not serve, and that it heals without a person.
//!
//! Each status request makes one pass, so `False` within two requests is "within two passes".

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use etcd_operator::etcd::client;

use crate::disk::{Disk, may_mount};
use crate::lab::{Lab, condition, kill, text};

/// At most two passes until Available is not True; its status and reason.
fn not_available_within_two_passes(lab: &Lab, what: &str) -> (String, String) {
    let mut seen = Vec::new();
    for _ in 0..2 {
        let status = lab.status();
        let (value, reason) = condition(&status, "Available");
        if value != "True" {
            return (value.to_owned(), reason.to_owned());
        }
        seen.push(status["conditions"].clone());
    }
    panic!("{what}: Available stays True: {seen:?}\n{}", lab.log());
}

/// The same where the fault is mended by the pass that sees it: the change stands in the log,
/// which is compared from `since` on.
fn was_not_available_within_two_passes(lab: &Lab, since: usize, reason: &str) {
    let told = "Available is False: ";
    for _ in 0..2 {
        let (value, now) = {
            let status = lab.status();
            let (value, now) = condition(&status, "Available");
            (value.to_owned(), now.to_owned())
        };
        if value == "False" {
            assert_eq!(now, reason);
            return;
        }
        // It may be mended by now, and a write not proven yet.
        let log = lab.log();
        if let Some(line) = log[since..].lines().find(|it| it.contains(told)) {
            assert!(line.contains(reason), "{line}");
            return;
        }
    }
    panic!("Available was always True: {}", lab.log());
}

fn born() -> (Lab, u32) {
    let mut lab = Lab::new("3.6");
    lab.start_agent();
    lab.wait_available();
    let pid = lab.etcd_pid().unwrap();
    (lab, pid)
}

#[test]
fn a_frozen_etcd_is_not_available_and_comes_back_when_it_thaws() {
    let (lab, pid) = born();
    kill("STOP", pid);
    let (value, reason) = not_available_within_two_passes(&lab, "SIGSTOP");
    assert_eq!((value.as_str(), reason.as_str()), ("False", "NoAnswer"));
    // Slowness is no reason to kill: the same process goes on.
    kill("CONT", pid);
    lab.wait_available();
    assert_eq!(lab.etcd_pid(), Some(pid));
    assert!(lab.put("after", "thaw"));
}

/// Puts so many values of 1 MiB under one key.
pub fn put_megabytes(lab: &Lab, count: u32) {
    let value = "v".repeat(1 << 20);
    for _ in 0..count {
        let (words, done) = put_value(lab, "large", &value);
        assert!(done, "{words}");
    }
}

/// Puts a value that is too long for a command line.
fn put_value(lab: &Lab, key: &str, value: &str) -> (String, bool) {
    let mut child = Command::new(lab.etcd.join("etcdctl"))
        .env_clear()
        .env(
            "ETCDCTL_ENDPOINTS",
            format!("https://127.0.0.1:{}", lab.ports[0]),
        )
        .env("ETCDCTL_CACERT", lab.lib("tls/clients/admin/ca.crt"))
        .env("ETCDCTL_CERT", lab.lib("tls/clients/admin/client.crt"))
        .env("ETCDCTL_KEY", lab.lib("tls/clients/admin/client.key"))
        .args(["put", key])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), value.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    (text(&output.stderr), output.status.success())
}

/// Puts values of 1 MiB until etcd refuses; how many it took.
fn fill_quota(lab: &Lab, key: impl Fn(u32) -> String) -> u32 {
    let value = "v".repeat(1 << 20);
    for count in 0..40 {
        if count > 20 {
            // With `edge` the database file, and so what the quota sees, grows every 5 s.
            std::thread::sleep(Duration::from_secs(1));
        }
        let (words, done) = put_value(lab, &key(count), &value);
        if !done {
            assert!(words.contains("space exceeded"), "{words}");
            return count;
        }
    }
    panic!("40 MiB fit into a quota of 16 MiB");
}

fn alarms(lab: &Lab) -> String {
    text(&lab.etcdctl(&["alarm", "list"]).stdout)
        .trim()
        .to_owned()
}

fn quota_lab(more: &[&str]) -> Lab {
    let mut lab = Lab::new("3.6");
    lab.storage("quota: 16Mi");
    for line in more {
        lab.add(line);
    }
    lab.start_agent();
    lab.wait_available();
    lab
}

fn defragmentations(lab: &Lab) -> usize {
    let whole = std::fs::read_to_string(lab.lib("member/log/etcd.log")).unwrap();
    whole.matches("finished defragmenting").count()
}

#[test]
fn a_full_quota_with_garbage_is_repaired_without_a_person() {
    let lab = quota_lab(&[]);
    let pid = lab.etcd_pid();
    let since = lab.log().len();
    fill_quota(&lab, |_| "same".to_owned());
    was_not_available_within_two_passes(&lab, since, "NoSpace");
    lab.wait_available();
    assert_eq!(alarms(&lab), "");
    assert!(lab.put("again", "writable"));
    assert_eq!(lab.etcd_pid(), pid, "no restart");
}

#[test]
fn a_full_quota_of_live_data_wears_no_flash_and_heals_once_keys_are_deleted() {
    let lab = quota_lab(&["profile: standard"]);
    let (mut count, mut rounds) = (0, 0);
    let mut status = lab.status();
    while status["plan"]["hold"].is_null() {
        // Large values leave holes behind: defragmenting brings something at first.
        rounds += 1;
        assert!(rounds < 8, "{status:#}");
        count += fill_quota(&lab, |it| format!("live/{}", count + it));
        status = lab.wait("a hold, or room again", |it| {
            it["plan"]["hold"] == "LiveDataFillsQuota"
                || condition(it, "Available").0 == "True" && alarms(&lab).is_empty()
        });
    }
    assert_eq!(status["plan"]["hold"], "LiveDataFillsQuota");
    assert_eq!(
        condition(&status, "Degraded"),
        ("True", "LiveDataFillsQuota")
    );
    // Passes go on; rewriting the same live data with each of them would wear the flash.
    let before = defragmentations(&lab);
    let end = Instant::now() + Duration::from_secs(8);
    while Instant::now() < end {
        let status = lab.status();
        assert_eq!(status["plan"]["hold"], "LiveDataFillsQuota", "{status:#}");
        assert_eq!(condition(&status, "Available"), ("False", "NoSpace"));
    }
    assert_eq!(defragmentations(&lab), before);
    assert!(alarms(&lab).contains("NOSPACE"), "never disarmed first");
    for it in 0..count {
        if it % 4 != 1 {
            assert!(
                lab.etcdctl(&["del", &format!("live/{it}")])
                    .status
                    .success()
            );
        }
    }
    lab.wait_for(Duration::from_secs(60), "Available", |it| {
        condition(it, "Available").0 == "True"
    });
    assert_eq!(alarms(&lab), "");
    assert!(lab.put("again", "writable"));
    assert_eq!(
        lab.get("live/1").map(|it| it.len()),
        Some(1 << 20),
        "what was kept is there"
    );
}

/// A larger quota is the way out, whatever the document says of repairs.
#[test]
fn a_full_quota_that_is_raised_takes_writes_again_with_one_restart() {
    for policy in ["repair", "hold"] {
        let mut lab = quota_lab(&[
            "profile: standard",
            &format!("maintenance: {{onNoSpace: {policy}}}"),
        ]);
        let (mut count, mut rounds) = (0, 0);
        let mut status = lab.status();
        while status["plan"]["hold"].is_null() {
            rounds += 1;
            assert!(rounds < 8, "{status:#}");
            count += fill_quota(&lab, |it| format!("live/{}", count + it));
            status = lab.wait("a hold, or room again", |it| {
                !it["plan"]["hold"].is_null()
                    || condition(it, "Available").0 == "True" && alarms(&lab).is_empty()
            });
        }
        let next = status["plan"]["nextStep"].as_str().unwrap();
        assert!(next.contains("raise storage.quota"), "{policy}: {next}");
        let before = lab.etcd_pid();
        lab.storage("quota: 64Mi");
        assert_eq!(lab.operator(&["diff"]).status.code(), Some(0), "{policy}");
        assert_eq!(lab.operator(&["reload"]).status.code(), Some(0), "{policy}");
        let status = lab.wait_available();
        assert_eq!(
            condition(&status, "DocumentAccepted").1,
            "InForce",
            "{policy}"
        );
        assert_ne!(lab.etcd_pid(), before, "{policy}");
        assert_eq!(alarms(&lab), "", "{policy}");
        assert!(lab.put("again", "writable"), "{policy}");
        assert_eq!(lab.get("live/1").map(|it| it.len()), Some(1 << 20));
        assert_eq!(
            lab.log().matches("restart etcd").count(),
            1,
            "{}",
            lab.log()
        );
    }
}

#[test]
fn a_full_quota_is_left_to_a_person_where_the_document_says_so() {
    let lab = quota_lab(&["profile: standard", "maintenance: {onNoSpace: hold}"]);
    fill_quota(&lab, |_| "same".to_owned());
    not_available_within_two_passes(&lab, "NOSPACE");
    let status = lab.wait_hold("NoSpace");
    assert_eq!(condition(&status, "Available"), ("False", "NoSpace"));
    for _ in 0..5 {
        assert_eq!(lab.status()["plan"]["hold"], "NoSpace");
    }
    assert_eq!(defragmentations(&lab), 0);
    assert!(alarms(&lab).contains("NOSPACE"), "{}", alarms(&lab));
    // A person does what the hold says, and all is well without touching the operator.
    let revision = lab.status()["revision"].as_i64().unwrap().to_string();
    for step in [
        &["compact", "--physical", &revision][..],
        &["defrag"],
        &["alarm", "disarm"],
    ] {
        let output = lab.etcdctl(step);
        assert!(output.status.success(), "{step:?} {}", text(&output.stderr));
    }
    lab.wait_available();
}

/// etcd keeps the alarm of a member that was removed, and refuses writes for it.
#[test]
fn the_alarm_of_a_member_that_is_gone_is_disarmed() {
    use etcd_client::{AlarmAction, AlarmOptions, AlarmType};
    let (lab, pid) = born();
    let url = format!("https://127.0.0.1:{}", lab.ports[0]);
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    runtime.block_on(async {
        let files = lab.certificates().operator_files();
        let mut client = client::connect(&url, &files).await.unwrap();
        let mut options = AlarmOptions::new();
        options.with_member(0x1234);
        let armed = client.alarm(AlarmAction::Activate, AlarmType::Nospace, Some(options));
        armed.await.unwrap();
    });
    lab.wait("it to be disarmed", |_| alarms(&lab).is_empty());
    assert!(lab.put("again", "writable"));
    lab.wait_available();
    assert_eq!((lab.etcd_pid(), defragmentations(&lab)), (Some(pid), 0));
}

/// A lab whose data lies on a disk of its own.
fn on_disk(disk: &Disk) -> (Lab, u32) {
    let mut lab = Lab::new("3.6");
    lab.storage(&format!("path: {}, quota: 16Mi", disk.path.display()));
    lab.start_agent();
    lab.wait_available();
    let pid = lab.etcd_pid().unwrap();
    (lab, pid)
}

fn threads(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .count()
}

#[test]
fn a_frozen_file_system_is_seen_though_no_client_writes() {
    if !may_mount() {
        return;
    }
    let disk = Disk::new("frozen", 192);
    let (lab, pid) = on_disk(&disk);
    assert!(lab.put("before", "frost"));
    let frost = disk.freeze();
    let (value, reason) = not_available_within_two_passes(&lab, "fsfreeze");
    assert_eq!(
        (value.as_str(), reason.as_str()),
        ("False", "FilesystemStalled")
    );
    // However long it lasts, one thread waits, not one for each pass.
    let before = threads(lab.agent_pid());
    for _ in 0..4 {
        assert_eq!(condition(&lab.status(), "Available").0, "False");
    }
    assert!(threads(lab.agent_pid()) <= before, "threads pile up");
    drop(frost);
    lab.wait_available();
    assert_eq!(lab.etcd_pid(), Some(pid));
    assert_eq!(lab.get("before").as_deref(), Some("frost"));
}

#[test]
fn writes_that_are_stuck_in_a_frozen_file_system_are_seen() {
    if !may_mount() {
        return;
    }
    let disk = Disk::new("stuck", 192);
    let (lab, pid) = on_disk(&disk);
    let frost = disk.freeze();
    let files = lab.lib("tls/clients/admin");
    let mut writer = Command::new(lab.etcd.join("etcdctl"))
        .env_clear()
        .env(
            "ETCDCTL_ENDPOINTS",
            format!("https://127.0.0.1:{}", lab.ports[0]),
        )
        .env("ETCDCTL_CACERT", files.join("ca.crt"))
        .env("ETCDCTL_CERT", files.join("client.crt"))
        .env("ETCDCTL_KEY", files.join("client.key"))
        .args(["--command-timeout", "60s", "put", "waits", "for-the-disk"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (value, reason) = not_available_within_two_passes(&lab, "stuck proposals");
    assert_eq!(value, "False");
    assert!(
        ["NoAnswer", "FilesystemStalled", "ProposalsStuck"].contains(&reason.as_str()),
        "{reason}"
    );
    for _ in 0..2 {
        assert_eq!(condition(&lab.status(), "Available").0, "False");
    }
    drop(frost);
    lab.wait_available();
    writer.wait().unwrap();
    assert_eq!(lab.etcd_pid(), Some(pid));
    assert!(lab.put("after", "thaw"));
}

#[test]
fn a_read_only_file_system_is_seen_and_left_as_it_is() {
    if !may_mount() {
        return;
    }
    let disk = Disk::new("readonly", 192);
    let (lab, pid) = on_disk(&disk);
    assert!(lab.put("before", "error"));
    disk.turn_read_only();
    let (value, reason) = not_available_within_two_passes(&lab, "read-only");
    assert_eq!(
        (value.as_str(), reason.as_str()),
        ("False", "FilesystemReadOnly")
    );
    assert_eq!(
        lab.etcd_pid(),
        Some(pid),
        "what still answers reads is not killed for it"
    );
    // etcd ends with its next write; it is not started on a disk that takes none.
    lab.kill_etcd();
    lab.wait_hold("FilesystemReadOnly");
    assert_eq!(lab.etcd_pid(), None);
    disk.repair();
    lab.wait_available();
    assert_eq!(lab.get("before").as_deref(), Some("error"));
}

#[test]
fn an_expired_server_certificate_is_told_and_replaced() {
    let (lab, pid) = born();
    let since = lab.log().len();
    crate::certificates::replace_generation(&lab, -3 * 86_400, -60);
    was_not_available_within_two_passes(&lab, since, "ReadsRefused");
    let status = lab.wait_available();
    assert_eq!(condition(&status, "CertificatesValid"), ("True", "Valid"));
    assert_eq!(lab.etcd_pid(), Some(pid), "no restart");
    assert!(lab.put("after", "renewal"));
}

#[test]
fn available_is_not_claimed_before_a_write_was_acknowledged() {
    // The first looks at a start are Unknown or False, never True, until a write went through.
    let mut lab = Lab::new("3.6");
    lab.start_agent();
    lab.wait_available();
    lab.kill_agent();
    lab.start_agent();
    lab.wait("Available", |it| {
        let (value, reason) = condition(it, "Available");
        assert!(value != "True" || reason == "Serving", "{value} {reason}");
        value == "True"
    });
    // Without an agent a look by the command itself writes nothing, and says so.
    lab.kill_agent();
    let status = lab.status();
    assert_eq!(
        condition(&status, "Available"),
        ("Unknown", "WriteNotProven")
    );
}
