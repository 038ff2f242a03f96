//! A full disk is named before it is full, is never called damage, and etcd comes back by itself within
//! seconds once there is room again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::disk::{Disk, may_mount};
use crate::lab::{Lab, condition, program, text};
use crate::restore::{backups, json};
use crate::tools::torn_record_in_allocated_room;

/// Once there is room, the first write is acknowledged within so long. An agent looks every 2 s.
const BACK_WITHIN: Duration = Duration::from_secs(10);

/// A lab whose data lies on a disk of its own, and a snapshot of its first key elsewhere.
fn on_disk(disk: &Disk, line: &str, policy: bool) -> Lab {
    let mut lab = Lab::new(line);
    lab.storage(&format!("path: {}, quota: 64Mi", disk.path.display()));
    let snapshots = backups(&lab);
    fs::create_dir_all(&snapshots).unwrap();
    lab.add(&format!(
        "backup: {{destinations: [{{local: {{path: {}}}}}]}}",
        snapshots.display()
    ));
    if policy {
        lab.add("recovery: {singleMember: restoreLatestVerified}");
    }
    lab.start_agent();
    lab.wait_available();
    assert!(lab.put("first", "1"));
    assert_eq!(json(&lab, &["backup", "create"])["result"], "saved");
    lab
}

/// The data lies where the document says.
fn data(disk: &Disk) -> PathBuf {
    disk.path.join("data")
}

/// Writes until etcd has died of the full disk; the number of acknowledged keys.
pub fn write_until_it_ends(lab: &Lab) -> u32 {
    let value = "v".repeat(60_000);
    let deadline = Instant::now() + Duration::from_secs(60);
    let pid = lab.etcd_pid();
    let mut acknowledged = 0;
    while lab.etcd_pid() == pid && pid.is_some() {
        assert!(Instant::now() < deadline, "etcd does not mind a full disk");
        if lab.put(&format!("full/{acknowledged:05}"), &value) {
            acknowledged += 1;
        }
    }
    assert!(acknowledged > 0);
    acknowledged
}

fn all_are_there(lab: &Lab, acknowledged: u32) {
    let output = lab.etcdctl(&["get", "--prefix", "full/", "--keys-only"]);
    let keys = text(&output.stdout);
    let found = keys.lines().filter(|it| it.starts_with("full/")).count();
    assert!(found >= acknowledged as usize, "{found} of {acknowledged}");
    assert_eq!(lab.get("first").as_deref(), Some("1"));
    assert!(!lab.lib("restored.json").exists(), "{}", lab.log());
}

fn no_data_was_set_aside(disk: &Disk) {
    for entry in fs::read_dir(&disk.path).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(!name.contains("restore"), "{name}");
    }
}

/// From now to the first acknowledged write.
fn time_to_the_first_write(lab: &Lab, since: Instant, what: &str) {
    while !lab.put("after", "1") {
        assert!(since.elapsed() < BACK_WITHIN * 3, "{}", lab.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    let took = since.elapsed();
    eprintln!(
        "{what}: first write {:.1} s after space returned",
        took.as_secs_f64()
    );
    assert!(took < BACK_WITHIN, "{took:?}");
}

fn is_full(status: &Value) -> bool {
    status["plan"]["hold"] == "DiskFull"
}

fn ends_of_a_full_disk(line: &str, policy: bool) {
    if !may_mount() {
        return;
    }
    let disk = Disk::new(&format!("full-{line}-{policy}"), 400);
    let lab = on_disk(&disk, line, policy);
    let status = lab.wait_available();
    assert_eq!(condition(&status, "HostHealthy"), ("True", "Sound"));
    let ballast = disk.fill();
    let acknowledged = write_until_it_ends(&lab);
    let status = lab.wait("the hold", is_full);
    assert_eq!(condition(&status, "Available"), ("False", "DiskFull"));
    assert_eq!(condition(&status, "HostHealthy"), ("False", "DiskFull"));
    let message = status["plan"]["message"].as_str().unwrap();
    assert!(
        message.contains("the disk is too full: 0 MiB are free"),
        "{message}"
    );
    // It costs no start of the budget, however long it lasts.
    let log = lab.log_length();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(5) {
        assert!(is_full(&lab.status()));
    }
    assert_eq!((lab.starts(), lab.log_length()), (0, log), "nobody tried");
    no_data_was_set_aside(&disk);
    fs::remove_file(ballast).unwrap();
    let name = format!("died of a full disk, {line}, agent");
    time_to_the_first_write(&lab, Instant::now(), &name);
    all_are_there(&lab, acknowledged);
    no_data_was_set_aside(&disk);
    let status = lab.wait("a sound host", |it| {
        condition(it, "HostHealthy").0 == "True"
    });
    assert_eq!(condition(&status, "Degraded").0, "False");
}

#[test]
fn an_etcd_that_died_of_a_full_disk_is_back_once_there_is_room_on_3_5() {
    ends_of_a_full_disk("3.5", false);
}

#[test]
fn an_etcd_that_died_of_a_full_disk_is_back_once_there_is_room_on_3_6() {
    ends_of_a_full_disk("3.6", false);
}

#[test]
fn an_etcd_that_died_of_a_full_disk_is_back_once_there_is_room_on_3_7() {
    ends_of_a_full_disk("3.7", false);
}

#[test]
fn a_full_disk_is_never_a_reason_to_restore() {
    ends_of_a_full_disk("3.6", true);
}

/// The log's end is torn, and there is no room for the copy that etcd makes before it cuts it off: etcd
/// is not even tried, and nothing is damaged.
fn torn_and_full(line: &str) {
    if !may_mount() {
        return;
    }
    let disk = Disk::new(&format!("torn-{line}"), 400);
    let mut lab = on_disk(&disk, line, true);
    lab.fill(200);
    lab.wait_available();
    lab.kill_agent();
    lab.kill_etcd();
    torn_record_in_allocated_room(&wal(&disk));
    let ballast = disk.fill();
    let _ = fs::remove_file(lab.run("starts.json"));
    lab.start_agent();
    let status = lab.wait("the hold", is_full);
    let message = status["plan"]["message"].as_str().unwrap();
    assert!(message.contains("etcd needs 62 MiB"), "{message}");
    assert_eq!(lab.starts(), 0);
    no_data_was_set_aside(&disk);
    fs::remove_file(ballast).unwrap();
    let name = format!("in the middle of its repair, {line}, agent");
    time_to_the_first_write(&lab, Instant::now(), &name);
    assert_eq!(lab.filled(), 200);
    all_are_there(&lab, 0);
    no_data_was_set_aside(&disk);
}

/// Damage that the document has replaced, and no room for that: it is done once there is, by itself.
#[test]
fn a_restore_that_lacks_room_is_made_once_there_is() {
    if !may_mount() {
        return;
    }
    let disk = Disk::new("no-room", 400);
    let mut lab = on_disk(&disk, "3.6", true);
    for number in 0..5 {
        assert!(lab.put("lost", &number.to_string()));
    }
    lab.wait_available();
    lab.kill_agent();
    lab.kill_etcd();
    let _ = crate::tools::flip_bit_in(&wal(&disk));
    let ballast = disk.fill();
    lab.start_agent();
    let status = lab.wait_hold("RestoreFailed");
    let message = status["plan"]["message"].as_str().unwrap();
    assert!(
        message.contains("0 MiB free and the restore needs"),
        "{message}"
    );
    no_data_was_set_aside(&disk);
    fs::remove_file(ballast).unwrap();
    lab.wait("the restore", |_| lab.lib("restored.json").exists());
    lab.wait_available();
    assert_eq!(lab.get("first").as_deref(), Some("1"));
    assert_eq!(lab.get("lost"), None);
}

fn wal(disk: &Disk) -> PathBuf {
    crate::tools::files(&data(disk).join("member/wal"), "wal")
        .pop()
        .unwrap()
}

#[test]
fn a_torn_log_on_a_full_disk_is_mended_once_there_is_room_on_3_5() {
    torn_and_full("3.5");
}

#[test]
fn a_torn_log_on_a_full_disk_is_mended_once_there_is_room_on_3_6() {
    torn_and_full("3.6");
}

#[test]
fn a_torn_log_on_a_full_disk_is_mended_once_there_is_room_on_3_7() {
    torn_and_full("3.7");
}

/// What systemd does with the unit, without an operator.
struct Supervisor {
    stop: Arc<AtomicBool>,
    child: Arc<Mutex<Option<u32>>>,
    thread: Option<JoinHandle<()>>,
}

impl Supervisor {
    fn new(root: &Path) -> Supervisor {
        let stop = Arc::new(AtomicBool::new(false));
        let child = Arc::new(Mutex::new(None));
        let (ends, pid, root) = (stop.clone(), child.clone(), root.to_owned());
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                let mut guard = guard(&root, "--supervised", &[]);
                *pid.lock().unwrap() = Some(guard.id());
                let status = guard.wait().unwrap();
                if status.code() == Some(3) {
                    return; // RestartPreventExitStatus
                }
                let code = status.code().unwrap_or(0).to_string();
                let told = [
                    ("SERVICE_RESULT", "exit-code"),
                    ("EXIT_CODE", "exited"),
                    ("EXIT_STATUS", code.as_str()),
                ];
                guard_ended(&root, &told);
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        Supervisor {
            stop,
            child,
            thread: Some(thread),
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let pid = *self.child.lock().unwrap();
        if let Some(pid) = pid {
            crate::lab::kill("KILL", pid);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn guard(root: &Path, how: &str, environment: &[(&str, &str)]) -> Child {
    Command::new(program())
        .args(["guard", how, "--root"])
        .arg(root)
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn guard_ended(root: &Path, environment: &[(&str, &str)]) {
    guard(root, "--ended", environment).wait().unwrap();
}

#[test]
fn without_an_operator_the_guard_waits_for_room_and_starts_etcd() {
    if !may_mount() {
        return;
    }
    let disk = Disk::new("supervised", 400);
    let mut lab = on_disk(&disk, "3.6", true);
    lab.kill_agent();
    lab.kill_etcd();
    let _supervisor = Supervisor::new(&lab.root);
    let serves = || lab.put("supervised", "1");
    let begin = Instant::now();
    while !serves() {
        assert!(begin.elapsed() < Duration::from_secs(20));
    }
    let ballast = disk.fill();
    let acknowledged = write_until_it_ends(&lab);
    let refusal = || fs::read_to_string(lab.run("refusal.json")).unwrap_or_default();
    let begin = Instant::now();
    while !refusal().contains("DiskFull") {
        assert!(begin.elapsed() < Duration::from_secs(20), "{}", refusal());
        std::thread::sleep(Duration::from_millis(50));
    }
    fs::remove_file(ballast).unwrap();
    time_to_the_first_write(
        &lab,
        Instant::now(),
        "died of a full disk, 3.6, guard alone",
    );
    all_are_there(&lab, acknowledged);
    no_data_was_set_aside(&disk);
}

/// While etcd still serves from the room that it took before.
#[test]
fn a_disk_that_fills_up_is_told_before_it_is_full() {
    if !may_mount() {
        return;
    }
    let disk = Disk::new("filling", 400);
    let lab = on_disk(&disk, "3.6", false);
    let free_space = || {
        let output = lab.operator(&["preflight", "--skip-disk", "-o", "json"]);
        let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
        let row = rows
            .as_array()
            .unwrap()
            .iter()
            .find(|it| it["check"] == "free space")
            .unwrap()
            .clone();
        (row, output.status.code())
    };
    assert_eq!(free_space().0["result"], "ok");
    let part = disk.fill_to(100 << 20);
    let status = lab.wait("a warning", |it| condition(it, "HostHealthy").0 == "False");
    assert_eq!(
        condition(&status, "HostHealthy"),
        ("False", "DiskNearlyFull")
    );
    assert_eq!(condition(&status, "Available").0, "True");
    assert_eq!(free_space().0["reason"], "DiskNearlyFull");
    let rest = disk.fill();
    let status = lab.wait("a full disk", |it| {
        condition(it, "HostHealthy").1 == "DiskFull"
    });
    let message = status["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .find(|it| it["type"] == "HostHealthy")
        .unwrap()["message"]
        .as_str()
        .unwrap();
    assert!(message.contains("free space: 0 MiB"), "{message}");
    let (row, code) = free_space();
    assert_eq!((row["reason"].as_str(), code), (Some("DiskFull"), Some(1)));
    for path in [part, rest] {
        fs::remove_file(path).unwrap();
    }
    lab.wait("a sound host", |it| {
        condition(it, "HostHealthy") == ("True", "Sound") && condition(it, "Available").0 == "True"
    });
}
