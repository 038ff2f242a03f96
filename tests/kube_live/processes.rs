//! Processes of labs, as this host sees them below /proc.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::lab::{SOON, is_true};
use crate::operated::Operated;

/// Those of which this holds.
pub fn all(wanted: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries
        .map(|it| it.path())
        .filter(|it| wanted(it))
        .collect()
}

/// A process' words; empty where it has gone.
pub fn command(process: &Path) -> String {
    let words = fs::read(process.join("cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&words).replace('\0', " ")
}

/// Its control groups: those of a lab's Pods have the lab's name and the Pod's UID in them.
pub fn groups(process: &Path) -> String {
    fs::read_to_string(process.join("cgroup")).unwrap_or_default()
}

/// The etcd of a Pod.
pub fn etcd_of(pod: &Value) -> PathBuf {
    process_of(pod, "etcd")
}

/// The process of this name in a Pod.
pub fn process_of(pod: &Value, name: &str) -> PathBuf {
    let uid = pod["metadata"]["uid"].as_str().unwrap();
    let mut found = all(|it| {
        let is_it = fs::read_to_string(it.join("comm")).is_ok_and(|it| it.trim_end() == name);
        let groups = groups(it);
        is_it && (groups.contains(uid) || groups.contains(&uid.replace('-', "_")))
    });
    assert_eq!(found.len(), 1, "one {name} in the Pod {uid}");
    found.remove(0)
}

/// Processes that stand still until this is dropped.
pub struct Frozen(Vec<PathBuf>);

impl Frozen {
    pub fn new(processes: Vec<PathBuf>) -> Frozen {
        for it in &processes {
            assert!(signal(it, "-STOP"), "{} has gone", it.display());
        }
        Frozen(processes)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        for it in &self.0 {
            signal(it, "-CONT");
        }
    }
}

/// Ends a process as a power cut would.
pub fn kill(process: &Path) {
    assert!(signal(process, "-KILL"), "{} has gone", process.display());
}

fn signal(process: &Path, name: &str) -> bool {
    let number = process.file_name().unwrap();
    let sent = Command::new("kill").arg(name).arg(number).status();
    sent.unwrap().success()
}

/// Ends etcd of a Pod as a power cut would, and waits for the one after it.
pub fn kill_etcd_of(it: &Operated, name: &str) {
    kill(&etcd_of(&it.json(&["get", "pod", name])));
    started_again(it, name);
}

/// Waits for a Pod whose etcd was started again, by a reboot of its node too, and is ready.
#[track_caller]
pub fn started_again(it: &Operated, name: &str) {
    it.eventually("its etcd anew", SOON, || {
        let pod = it.try_json(&["get", "pod", name])?;
        (restarts_in(&pod)? > 0 && is_true(&pod, "Ready")).then_some(())
    });
}

/// How often the kubelet has started a Pod's container again.
pub fn restarts_in(pod: &Value) -> Option<u64> {
    pod["status"]["containerStatuses"][0]["restartCount"].as_u64()
}
