//! Processes of labs, as this host sees them below /proc.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

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

fn signal(process: &Path, name: &str) -> bool {
    let number = process.file_name().unwrap();
    let sent = Command::new("kill").arg(name).arg(number).status();
    sent.unwrap().success()
}
