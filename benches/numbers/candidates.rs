//! Settings that the edge profile could have, side by side: what each costs and saves.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::LINE;
use crate::bare::{Bare, Recipe, target};
use crate::client::{Target, Writer};
use crate::lab::{Lab, free_ports};
use crate::procfs::{counters, memory};
use crate::starts::words;
use crate::table::{Row, kib, mib};

const SETTLE: Duration = Duration::from_secs(12);
/// A multiple of every batch interval.
const WINDOW: Duration = Duration::from_secs(120);
const KEYS: usize = 100_000;

/// What is changed against the edge profile.
struct Candidate {
    name: &'static str,
    gogc: u32,
    settings: &'static [(&'static str, &'static str)],
    /// Also with much data, which takes a minute.
    heavy: bool,
}

const fn candidate(
    name: &'static str,
    gogc: u32,
    settings: &'static [(&'static str, &'static str)],
    heavy: bool,
) -> Candidate {
    Candidate {
        name,
        gogc,
        settings,
        heavy,
    }
}

const BATCH: &str = "backend-batch-interval";
const SNAPSHOT: &str = "snapshot-count";
const HEARTBEAT: &str = "heartbeat-interval";
const ELECTION: &str = "election-timeout";
const CHECKS: (&str, &str) = (
    "feature-gates",
    "'InitialCorruptCheck=true,CompactHashCheck=true'",
);

const CANDIDATES: [Candidate; 12] = [
    candidate("edge as it is", 50, &[], true),
    candidate("batch 0.1 s", 50, &[(BATCH, "100000000")], true),
    candidate("batch 2 s", 50, &[(BATCH, "2000000000")], false),
    candidate("batch 10 s", 50, &[(BATCH, "10000000000")], true),
    candidate("GOGC 100", 100, &[], true),
    candidate("GOGC 30", 30, &[], true),
    candidate("snapshot-count 1000", 50, &[(SNAPSHOT, "1000")], true),
    candidate("snapshot-count 10000", 50, &[(SNAPSHOT, "10000")], true),
    candidate("corruption checks", 50, &[CHECKS], true),
    candidate("election 1000", 50, &[(ELECTION, "1000")], false),
    candidate(
        "heartbeat 50, election 250",
        50,
        &[(HEARTBEAT, "50"), (ELECTION, "250")],
        false,
    ),
    candidate(
        "heartbeat 20, election 100",
        50,
        &[(HEARTBEAT, "20"), (ELECTION, "100")],
        false,
    ),
];

/// A copy of the lab's configuration with other ports, another directory and the changes.
fn recipe(lab: &Lab, base: &Recipe, it: &Candidate, number: usize) -> (Recipe, Target) {
    let dir = lab.root.join(format!("candidate-{number}"));
    fs::create_dir_all(&dir).unwrap();
    let (ports, _claims) = free_ports();
    let mut text = fs::read_to_string(&base.conf).unwrap();
    for (own, other) in lab.ports.iter().zip(ports) {
        text = text.replace(&format!(":{own}"), &format!(":{other}"));
    }
    let dir_text = dir.display();
    let key_of = |line: &str| line.split_once(':').map(|it| it.0.to_owned());
    let own = [
        ("data-dir", format!("'{dir_text}/data'")),
        ("log-outputs", format!("['{dir_text}/etcd.log']")),
    ];
    let theirs = it
        .settings
        .iter()
        .map(|(key, value)| (*key, (*value).to_owned()));
    let changes: Vec<(&str, String)> = own.into_iter().chain(theirs).collect();
    let kept = text.lines().filter(|line| {
        let key = key_of(line);
        !changes.iter().any(|(it, _)| key.as_deref() == Some(it))
    });
    let lines: Vec<String> = kept
        .map(str::to_owned)
        .chain(changes.iter().map(|(key, value)| format!("{key}: {value}")))
        .collect();
    let conf = dir.join("etcd.conf.yaml");
    fs::write(&conf, lines.join("\n")).unwrap();
    let recipe = Recipe {
        program: base.program.clone(),
        conf,
        environment: vec![("GOGC".to_owned(), it.gogc.to_string())],
        output: dir.join("etcd.stderr"),
    };
    let target = Target {
        port: ports[0],
        files: target(lab).files,
    };
    (recipe, target)
}

/// All at once under the light load, then one after the other with much data.
pub fn rows() -> Vec<Row> {
    let mut lab = Lab::new(LINE);
    lab.start_agent();
    lab.wait_available();
    lab.stop_agent();
    lab.kill_etcd();
    let base = Recipe::of(&lab);
    let recipes: Vec<(Recipe, Target)> = (0..)
        .zip(&CANDIDATES)
        .map(|(number, it)| recipe(&lab, &base, it, number))
        .collect();
    let light = light(&recipes);
    CANDIDATES
        .iter()
        .zip(&recipes)
        .zip(light)
        .map(|((it, (recipe, target)), light)| {
            let restart = words(&restarts(recipe, target));
            let heavy = if it.heavy {
                heavy(recipe, target)
            } else {
                String::new()
            };
            Row::new(it.name, format!("{light}; restart {restart}{heavy}"))
        })
        .collect()
}

fn light(recipes: &[(Recipe, Target)]) -> Vec<String> {
    let running: Vec<(Bare, Writer)> = recipes
        .iter()
        .map(|(recipe, target)| {
            let etcd = recipe.start();
            target.first_write(Instant::now());
            (etcd, Writer::start(target))
        })
        .collect();
    thread::sleep(SETTLE);
    let before: Vec<_> = running
        .iter()
        .map(|(etcd, writer)| (counters(etcd.pid()), writer.count()))
        .collect();
    thread::sleep(WINDOW);
    running
        .iter()
        .zip(before)
        .map(|((etcd, writer), (before, puts))| {
            let after = counters(etcd.pid());
            let per_put = (after.written - before.written) as f64 / (writer.count() - puts) as f64;
            let cpu = (after.cpu - before.cpu) / WINDOW.as_secs_f64() * 100.0;
            let used = memory(etcd.pid());
            format!(
                "{} a put, CPU {cpu:.2} %, RSS {} / {}",
                kib(per_put),
                mib(used.resident),
                mib(used.anonymous)
            )
        })
        .collect()
}

/// Times from the start after a SIGKILL to the first write.
fn restarts(recipe: &Recipe, target: &Target) -> Vec<Duration> {
    (0..9)
        .map(|_| {
            let begin = Instant::now();
            let etcd = recipe.start();
            let time = target.first_write(begin);
            drop(etcd);
            time
        })
        .collect()
}

fn heavy(recipe: &Recipe, target: &Target) -> String {
    let etcd = recipe.start();
    target.first_write(Instant::now());
    let begin = Instant::now();
    let before = counters(etcd.pid());
    target.load(KEYS, 1024);
    let seconds = begin.elapsed().as_secs_f64();
    let after = counters(etcd.pid());
    let loaded = memory(etcd.pid());
    drop(etcd); // SIGKILL: the log is replayed
    let begin = Instant::now();
    let etcd = recipe.start();
    let start = target.first_write(begin);
    thread::sleep(Duration::from_secs(10));
    let restarted = memory(etcd.pid());
    etcd.stop();
    format!(
        "; 100,000 x 1 KiB: {:.0} puts/s, CPU {:.1} s, {} to disk, RSS {} / {}; killed and started in {} ms, RSS {} / {}",
        KEYS as f64 / seconds,
        after.cpu - before.cpu,
        mib(after.written - before.written),
        mib(loaded.resident),
        mib(loaded.anonymous),
        start.as_millis(),
        mib(restarted.resident),
        mib(restarted.anonymous)
    )
}
