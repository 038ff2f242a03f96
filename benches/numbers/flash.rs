//! What etcd writes to flash and holds in memory under both profiles, side by side.

use std::thread;
use std::time::{Duration, Instant};

use crate::bare::target;
use crate::client::Writer;
use crate::cluster;
use crate::lab::{Lab, kill};
use crate::procfs::{Memory, counters, memory};
use crate::table::{Row, kib, mib};

const SETTLE: Duration = Duration::from_secs(10);
/// A multiple of every batch interval that is compared.
const WINDOW: Duration = Duration::from_secs(60);
const RATIO_MAX: f64 = 0.4;
const KEYS: usize = 100_000;

/// Bytes for each put at one put a second, and the hour that this makes.
pub fn rows() -> Vec<Row> {
    let labs = ["edge", "standard"].map(cluster);
    let writers = labs.each_ref().map(|it| Writer::start(&target(it)));
    thread::sleep(SETTLE);
    let pids = labs.each_ref().map(|it| it.etcd_pid().unwrap());
    let before = pids.map(counters);
    let puts_before = writers.each_ref().map(Writer::count);
    thread::sleep(WINDOW);
    let after = pids.map(counters);
    let puts = writers.each_ref().map(Writer::count);
    let written = |it: usize| (after[it].written - before[it].written) as f64;
    let per_put = |it: usize| written(it) / (puts[it] - puts_before[it]) as f64;
    let cpu = |it: usize| (after[it].cpu - before[it].cpu) / WINDOW.as_secs_f64() * 100.0;
    let hour = |it: usize| kib(per_put(it) * 3600.0 / 1024.0).replace("KiB", "MiB");
    vec![
        Row::new(
            "etcd to disk for a put of 512 B, 1 a second",
            format!("edge {}", kib(per_put(0))),
        )
        .against(
            format!("standard {}", kib(per_put(1))),
            per_put(0) / per_put(1),
            Some(RATIO_MAX),
        ),
        Row::new("the same in an hour", format!("edge {}", hour(0)))
            .compared(format!("standard {}", hour(1))),
        Row::new("CPU of etcd meanwhile", format!("edge {:.2} %", cpu(0)))
            .compared(format!("standard {:.2} %", cpu(1))),
    ]
}

/// Resident and anonymous memory with data, after a restart.
pub fn memory_rows() -> Vec<Row> {
    let labs = ["edge", "standard"].map(cluster);
    thread::scope(|scope| {
        for lab in &labs {
            let target = target(lab);
            scope.spawn(move || target.load(KEYS, 1024));
        }
    });
    let loaded = labs.each_ref().map(|it| memory(it.etcd_pid().unwrap()));
    for lab in &labs {
        restart(lab);
    }
    thread::sleep(SETTLE);
    let restarted = labs.each_ref().map(|it| memory(it.etcd_pid().unwrap()));
    let row = |when: &str, [edge, standard]: [Memory; 2]| {
        Row::new(
            format!("etcd with 100,000 keys of 1 KiB, {when}: RSS / anonymous"),
            format!("edge {}", pair(edge)),
        )
        .against(
            format!("standard {}", pair(standard)),
            edge.resident as f64 / standard.resident as f64,
            None,
        )
    };
    vec![row("loaded", loaded), row("restarted", restarted)]
}

fn pair(memory: Memory) -> String {
    format!("{} / {}", mib(memory.resident), mib(memory.anonymous))
}

/// etcd ends by SIGTERM; its agent starts it again.
fn restart(lab: &Lab) {
    let pid = lab.etcd_pid().unwrap();
    kill("TERM", pid);
    let deadline = Instant::now() + Duration::from_secs(30);
    while lab.etcd_pid().is_none_or(|it| it == pid) {
        assert!(Instant::now() < deadline, "{}", lab.log());
        thread::sleep(Duration::from_millis(20));
    }
    lab.wait_available();
}
