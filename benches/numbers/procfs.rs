//! What the kernel says of a process.

use std::fs;

/// Clock ticks in a second, as `/proc` counts them on Linux.
const TICKS: f64 = 100.0;

/// Counters of a process; the difference of two is what happened between them.
#[derive(Clone, Copy, Debug)]
pub struct Counters {
    /// Seconds on a CPU, ended threads included.
    pub cpu: f64,
    /// Bytes that it made the kernel write to a disk.
    pub written: u64,
}

/// Reads them.
pub fn counters(pid: u32) -> Counters {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_ascii_whitespace()
        .collect();
    let ticks: u64 = fields[11..13]
        .iter()
        .map(|it| it.parse::<u64>().unwrap())
        .sum();
    Counters {
        cpu: ticks as f64 / TICKS,
        written: field(&format!("/proc/{pid}/io"), "write_bytes:"),
    }
}

/// Memory of a process, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Resident now.
    pub resident: u64,
    /// The most that was ever resident.
    pub peak: u64,
    /// The resident part that no file backs.
    pub anonymous: u64,
    /// The part that would be free again if the process ended.
    pub private_dirty: u64,
}

/// Reads it.
pub fn memory(pid: u32) -> Memory {
    let status = |name| field(&format!("/proc/{pid}/status"), name) * 1024;
    Memory {
        resident: status("VmRSS:"),
        peak: status("VmHWM:"),
        anonymous: status("RssAnon:"),
        private_dirty: field(&format!("/proc/{pid}/smaps_rollup"), "Private_Dirty:") * 1024,
    }
}

fn field(path: &str, name: &str) -> u64 {
    let text = fs::read_to_string(path).unwrap();
    let line = text.lines().find_map(|it| it.strip_prefix(name)).unwrap();
    line.split_ascii_whitespace()
        .next()
        .unwrap()
        .parse()
        .unwrap()
}
