//! What the guard costs a start of etcd: all of its checks on data that has served, then a program that
//! ends at once, against that program alone.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::lab::{self, Lab};
use crate::median;
use crate::table::Row;

const ROUNDS: usize = 31;

/// In turns.
pub fn rows() -> Vec<Row> {
    let mut lab = crate::cluster("edge");
    lab.stop_agent();
    lab.kill_etcd();
    let folder = lab.lib(&format!("store/etcd-{}", lab.version));
    fs::copy("/bin/true", folder.join("etcd")).unwrap();
    fs::remove_file(folder.join("installed")).unwrap(); // else it is another one than was installed
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        with.push(guard(&lab));
        without.push(took(&mut Command::new("/bin/true")));
    }
    let cost = median(with).saturating_sub(median(without));
    vec![Row::new(
        "guard: cost of a start of etcd",
        format!("{:.1} ms", cost.as_secs_f64() * 1000.0),
    )]
}

fn guard(lab: &Lab) -> Duration {
    // No start of etcd's is a failed one here.
    let _ = fs::remove_file(lab.run("starts.json"));
    let mut command = Command::new(lab::program());
    took(command.args(["guard", "--root"]).arg(&lab.root))
}

fn took(command: &mut Command) -> Duration {
    let begin = Instant::now();
    let status = command.status().unwrap();
    assert!(status.success(), "{command:?}: {status}");
    begin.elapsed()
}
