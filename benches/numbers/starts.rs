//! Start to serving, and repair, against bare etcd with the same configuration and certificates.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::bare::{Bare, Recipe, remove, target};
use crate::lab::{Lab, kill};
use crate::table::Row;
use crate::{LINE, median};

const ROUNDS: usize = 9;
/// What the data directory holds where a start finds data.
const KEYS: usize = 1000;

#[derive(Default)]
struct Times {
    agent_empty: Vec<Duration>,
    bare_empty: Vec<Duration>,
    agent_data: Vec<Duration>,
    bare_data: Vec<Duration>,
    repair: Vec<Duration>,
}

/// One host, measured in turns.
struct Host {
    lab: Lab,
    times: Times,
}

impl Host {
    /// Waits until the agent has nothing left to do: the next kill meets no back-off.
    fn settle(&self) {
        self.lab.wait_available();
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.lab.run("starts.json").exists() {
            assert!(Instant::now() < deadline, "{}", self.lab.log());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Agent and etcd end; the data stays as SIGKILL left it.
    fn end(&mut self) {
        self.lab.stop_agent();
        self.lab.kill_etcd();
    }

    /// As on a new host: the document and the etcd that `etcd install` put there, nothing else.
    fn wipe(&self) {
        for path in ["member", "tls"] {
            remove(&self.lab.lib(path));
        }
        remove(&self.lab.run(""));
        for file in [
            self.lab.lib("store/etcd-operator"),
            self.lab.lib("operator.lock"),
        ] {
            let _ = fs::remove_file(file);
        }
    }

    fn agent_empty(&mut self) {
        self.wipe();
        let begin = Instant::now();
        self.lab.start_agent();
        let time = target(&self.lab).first_write(begin);
        self.times.agent_empty.push(time);
        self.settle();
    }

    fn repair(&mut self) {
        let pid = self.lab.etcd_pid().unwrap();
        let begin = Instant::now();
        kill("KILL", pid);
        // The dead one's port is closed before a connection to it could be tried.
        while self.lab.etcd_pid() == Some(pid) {
            thread::sleep(Duration::from_millis(1));
        }
        let time = target(&self.lab).first_write(begin);
        self.times.repair.push(time);
        self.settle();
    }

    fn agent_data(&mut self) {
        let begin = Instant::now();
        self.lab.start_agent();
        let time = target(&self.lab).first_write(begin);
        self.times.agent_data.push(time);
        self.settle();
        self.end();
    }

    fn bare(&mut self) -> Duration {
        let recipe = Recipe::of(&self.lab);
        let begin = Instant::now();
        let etcd: Bare = recipe.start();
        let time = target(&self.lab).first_write(begin);
        drop(etcd);
        time
    }

    fn bare_data(&mut self) {
        let time = self.bare();
        self.times.bare_data.push(time);
    }

    fn bare_empty(&mut self) {
        remove(&self.lab.data(""));
        let time = self.bare();
        self.times.bare_empty.push(time);
    }
}

fn measure() -> Times {
    let mut host = Host {
        lab: Lab::new(LINE),
        times: Times::default(),
    };
    for round in 0..ROUNDS {
        host.agent_empty();
        target(&host.lab).load(KEYS, 512);
        host.repair();
        host.end();
        // In turns, so that neither always follows the other.
        if round % 2 == 0 {
            host.agent_data();
            host.bare_data();
        } else {
            host.bare_data();
            host.agent_data();
        }
        host.bare_empty();
    }
    host.times
}

/// Median and range.
pub fn words(times: &[Duration]) -> String {
    let ms = |it: Duration| it.as_secs_f64() * 1000.0;
    let low = ms(*times.iter().min().unwrap());
    let high = ms(*times.iter().max().unwrap());
    format!("{:.0} ms ({low:.0}..{high:.0})", ms(median(times.to_vec())))
}

fn row(figure: &str, ours: &[Duration], other: &[Duration], limit: f64) -> Row {
    let ratio = median(ours.to_vec()).as_secs_f64() / median(other.to_vec()).as_secs_f64();
    let other = format!("bare etcd {}", words(other));
    Row::new(figure, words(ours)).against(other, ratio, Some(limit))
}

/// The three figures, medians of the rounds.
pub fn rows() -> Vec<Row> {
    let it = measure();
    vec![
        row(
            "start to first write, empty directory",
            &it.agent_empty,
            &it.bare_empty,
            1.3,
        ),
        row(
            "start to first write, existing data",
            &it.agent_data,
            &it.bare_data,
            1.2,
        ),
        row(
            "SIGKILL of etcd to next write",
            &it.repair,
            &it.bare_data,
            1.3,
        ),
    ]
}

/// Where the time of a start goes: milestones of the agent and of bare etcd.
pub fn where_rows() -> Vec<Row> {
    let mut host = Host {
        lab: Lab::new(LINE),
        times: Times::default(),
    };
    let mut rows = Vec::new();
    for round in 0..3 {
        host.wipe();
        let begin = Instant::now();
        host.lab.start_agent();
        rows.push(milestones(
            &format!("agent, empty, round {round}"),
            &host,
            begin,
        ));
        host.settle();
        host.end();
        remove(&host.lab.data(""));
        let recipe = Recipe::of(&host.lab);
        let begin = Instant::now();
        let etcd = recipe.start();
        rows.push(milestones(
            &format!("bare, empty, round {round}"),
            &host,
            begin,
        ));
        drop(etcd);
        let begin = Instant::now();
        let etcd = recipe.start();
        rows.push(milestones(
            &format!("bare, data, round {round}"),
            &host,
            begin,
        ));
        drop(etcd);
    }
    rows
}

fn milestones(figure: &str, host: &Host, begin: Instant) -> Row {
    let [key, port, write] = target(&host.lab).milestones(begin).map(|it| it.as_millis());
    Row::new(
        figure,
        format!("key {key} ms, port {port} ms, write {write} ms"),
    )
}
