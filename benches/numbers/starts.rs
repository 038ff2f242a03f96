//! Start to serving, and repair, against bare etcd with the same configuration and certificates.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::LINE;
use crate::bare::{Bare, Recipe, remove, target};
use crate::lab::Lab;
use crate::table::Row;

/// The lot of an election is drawn evenly from 100 ms: of this many rounds a mean is true to 5 ms.
const ROUNDS: usize = 40;
/// Where etcd's own wait for its election is part of the figure.
const ROUNDS_AS_SHIPPED: usize = 9;
/// The shortest election that etcd takes well. A start contains about one election timeout, drawn by
/// lot: as shipped the lot is larger than all that the operator adds.
pub const SHORT_ELECTION: &str =
    "  options: {heartbeatMilliseconds: 20, electionMilliseconds: 100}\n";
/// What a start may take, of what the same start takes without the operator.
const RATIO_MAX: f64 = 1.15;
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
    fn new(spec: &str) -> Self {
        let mut lab = Lab::new(LINE);
        lab.spec.push_str(spec);
        lab.write_document();
        Host {
            lab,
            times: Times::default(),
        }
    }

    /// Waits until the agent has nothing left to do: the next kill meets no back-off.
    fn settle(&self) {
        self.lab.wait_available();
        let deadline = Instant::now() + Duration::from_secs(20);
        // A write that was acknowledged ends the count of starts.
        let starts = || fs::read_to_string(self.lab.run("starts.json")).unwrap_or_default();
        while !starts().replace('\\', "").contains("\"acknowledged\":true") {
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
        let process = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        let begin = Instant::now();
        kill_process(process, Signal::KILL).unwrap();
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

fn measure(spec: &str, rounds: usize) -> Times {
    let mut host = Host::new(spec);
    for round in 0..rounds {
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

/// Mean and range.
pub fn words(times: &[Duration]) -> String {
    let ms = |it: Duration| it.as_secs_f64() * 1000.0;
    let low = ms(*times.iter().min().unwrap());
    let high = ms(*times.iter().max().unwrap());
    format!("{:.0} ms ({low:.0}..{high:.0})", mean(times) * 1000.0)
}

/// A figure's name, the operator's times, bare etcd's, and the promise.
type Figure<'a> = (&'static str, &'a [Duration], &'a [Duration], f64);

fn figures(it: &Times) -> [Figure<'_>; 3] {
    [
        (
            "start to first write, empty directory",
            &it.agent_empty,
            &it.bare_empty,
            RATIO_MAX,
        ),
        (
            "start to first write, existing data",
            &it.agent_data,
            &it.bare_data,
            RATIO_MAX,
        ),
        (
            "SIGKILL of etcd to next write",
            &it.repair,
            &it.bare_data,
            RATIO_MAX,
        ),
    ]
}

/// In seconds. Times that hold an even lot have no middle that many of them lie near, as a median needs.
fn mean(times: &[Duration]) -> f64 {
    times.iter().sum::<Duration>().as_secs_f64() / times.len() as f64
}

/// The ratio is judged with a short election on both sides: the settings as shipped leave every
/// start to a lottery of half a second, which hides an operator twice as slow as well as one that
/// costs nothing. They stand below, as measured.
pub fn rows() -> Vec<Row> {
    let short = measure(SHORT_ELECTION, ROUNDS);
    let shipped = measure("", ROUNDS_AS_SHIPPED);
    let mut rows = Vec::new();
    for ((figure, ours, bare, limit), (_, long_ours, long_bare, _)) in
        figures(&short).into_iter().zip(figures(&shipped))
    {
        let direct = |figure: String, ours: &[Duration], bare: &[Duration], limit| {
            let ratio = mean(ours) / mean(bare);
            Row::new(figure, words(ours)).against(words(bare), ratio, limit)
        };
        let judged = format!("{figure} (election 100 ms)");
        rows.push(direct(judged, ours, bare, Some(limit)));
        let shipped = "  as shipped: etcd's election lottery".to_owned();
        rows.push(direct(shipped, long_ours, long_bare, None));
    }
    rows
}

/// Where the time of a start goes: milestones of the agent and of bare etcd.
pub fn where_rows() -> Vec<Row> {
    let mut host = Host::new(SHORT_ELECTION);
    let mut rows = Vec::new();
    for round in 0..5 {
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
