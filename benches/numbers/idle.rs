//! The operator at rest, which looks at etcd over a new connection every 10 s; and etcd at rest under both
//! profiles.

use std::thread;
use std::time::Duration;

use crate::cluster;
use crate::procfs::{counters, memory};
use crate::table::{Row, kib, mib};

/// Until everything that a start brings is over.
const SETTLE: Duration = Duration::from_secs(10);
/// What is measured.
const WINDOW: Duration = Duration::from_secs(60);
const RSS_MAX: u64 = 8 << 20;
const CPU_MAX: f64 = 0.001;

/// One window over both.
pub fn rows() -> Vec<Row> {
    let (edge, standard) = (cluster("edge"), cluster("standard"));
    thread::sleep(SETTLE);
    let pids = [
        edge.agent_pid(),
        edge.etcd_pid().unwrap(),
        standard.etcd_pid().unwrap(),
    ];
    let before = pids.map(counters);
    thread::sleep(WINDOW);
    let after = pids.map(counters);
    let cpu = (after[0].cpu - before[0].cpu) / WINDOW.as_secs_f64();
    let written: Vec<u64> = after
        .iter()
        .zip(before)
        .map(|(after, before)| after.written - before.written)
        .collect();
    let used = memory(edge.agent_pid());
    let hour = |bytes: u64| bytes as f64 * 3600.0 / WINDOW.as_secs_f64();
    let etcd_cpu = (after[1].cpu - before[1].cpu) / WINDOW.as_secs_f64();
    vec![
        Row::new("operator idle: VmRSS", mib(used.resident))
            .promised("<= 8 MiB", used.resident <= RSS_MAX),
        Row::new("operator idle: VmHWM", mib(used.peak)),
        Row::new("operator idle: private dirty", mib(used.private_dirty)),
        Row::new(
            "operator idle: CPU of a core",
            format!("{:.3} %", cpu * 100.0),
        )
        .promised("<= 0.1 %", cpu <= CPU_MAX),
        Row::new(
            "operator idle: written to disk in a minute",
            format!("{} B", written[0]),
        )
        .promised("0 B", written[0] == 0),
        Row::new(
            "etcd idle beside it: CPU",
            format!("{:.3} %", etcd_cpu * 100.0),
        ),
        Row::new(
            "etcd idle beside it: to disk in an hour",
            format!("edge {}", kib(hour(written[1]))),
        )
        .compared(format!("standard {}", kib(hour(written[2])))),
    ]
}
