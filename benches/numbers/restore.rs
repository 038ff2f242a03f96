//! A restore by the operator beside the same by hand: etcdutl, a stop and a start of etcd.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::backup::{MB, Place, ROUNDS, run, seconds, unpack};
use crate::bare::{Recipe, remove};
use crate::lab::program;
use crate::median;
use crate::starts::SHORT_ELECTION;
use crate::table::Row;

/// Of the same by hand.
const RESTORE_MAX: f64 = 1.3;

#[derive(Default)]
struct Times {
    /// From the request, written down, to the new data lying beside the old, proven and synced; from
    /// the command to its end.
    made: Vec<Duration>,
    whole: Vec<Duration>,
    /// etcdutl alone, with nothing but its defaults, and with the flags that a restore needs.
    etcdutl: Vec<Duration>,
    with_flags: Vec<Duration>,
    /// etcdutl with its defaults, etcd's stop, two renames, its start and a first write.
    by_hand: Vec<Duration>,
}

/// Both in turns.
pub fn rows() -> Vec<Row> {
    let mut place = Place::new(SHORT_ELECTION);
    place.target.load(108_000, 1024);
    place.put();
    place.operator(&["backup", "create"]);
    let (packed, manifest) = place.newest();
    unpack(&packed, &place.scratch);
    let mut times = Times::default();
    for _ in 0..ROUNDS {
        ours(&place, &manifest.name, &mut times);
        place.lab.wait_available();
        by_hand(&mut place, &mut times);
    }
    let megabytes = (manifest.database.size as f64 / MB).round();
    let ratio = |ours: Duration, other: Duration| ours.as_secs_f64() / other.as_secs_f64();
    let [made, whole, etcdutl, with_flags, by_hand] = [
        times.made,
        times.whole,
        times.etcdutl,
        times.with_flags,
        times.by_hand,
    ]
    .map(median);
    vec![
        Row::new(
            format!("restore of {megabytes} MB: data proven, made and synced"),
            seconds(made),
        )
        .against(
            format!("etcdutl snapshot restore {}", seconds(etcdutl)),
            ratio(made, etcdutl),
            Some(RESTORE_MAX),
        ),
        Row::new("", "").compared(format!(
            "with --bump-revision and --mark-compacted {}",
            seconds(with_flags)
        )),
        Row::new(
            "restore --yes, whole: proven, made, exchanged, served",
            seconds(whole),
        )
        .against(
            format!("etcdutl, stop and start by hand {}", seconds(by_hand)),
            ratio(whole, by_hand),
            Some(RESTORE_MAX),
        ),
    ]
}

fn ours(place: &Place, name: &str, times: &mut Times) {
    let record = place.lab.lib("restore.json");
    let begin = Instant::now();
    let mut command = Command::new(program())
        .args(["restore", "--yes", "--from", name, "--root"])
        .arg(&place.lab.root)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut reached = |phases: [&str; 2]| {
        let is = || {
            let text = fs::read_to_string(&record).unwrap_or_default();
            phases.iter().any(|it| text.contains(it))
        };
        while !is() {
            assert!(command.try_wait().unwrap().is_none(), "{}", place.lab.log());
            thread::sleep(Duration::from_millis(1));
        }
        begin.elapsed()
    };
    let requested = reached(["requested", "prepared"]);
    times
        .made
        .push(reached(["prepared", "swapping"]).saturating_sub(requested));
    assert!(command.wait().unwrap().success(), "{}", place.lab.log());
    times.whole.push(begin.elapsed());
    for entry in fs::read_dir(place.lab.lib("member")).unwrap() {
        let path = entry.unwrap().path();
        if path.to_string_lossy().contains("before-restore") {
            remove(&path);
        }
    }
}

fn etcdutl(place: &Place, data: &Path, more: &[&str]) -> Duration {
    remove(data);
    let peer = format!("https://127.0.0.1:{}", place.lab.ports[1]);
    run(Command::new(place.lab.etcd.join("etcdutl"))
        .args(["snapshot", "restore"])
        .arg(&place.scratch)
        .arg("--data-dir")
        .arg(data)
        .args(["--name", "lab-0", "--initial-cluster-token", "by-hand"])
        .args(["--initial-cluster", &format!("lab-0={peer}")])
        .args(["--initial-advertise-peer-urls", &peer])
        .args(more))
    .took
}

/// The operator's etcd gives way to one by hand, and gets its data back.
fn by_hand(place: &mut Place, times: &mut Times) {
    let made = place.lab.lib("member/by-hand");
    let flags = ["--bump-revision", "1000000000", "--mark-compacted"];
    times.with_flags.push(etcdutl(place, &made, &flags));
    place.lab.stop_agent();
    place.lab.kill_etcd();
    let recipe = Recipe::of(&place.lab);
    let etcd = recipe.start();
    place.target.first_write(Instant::now());
    let [data, aside] = ["", "member/aside"].map(|it| -> PathBuf {
        if it.is_empty() {
            place.lab.data("")
        } else {
            place.lab.lib(it)
        }
    });
    let begin = Instant::now();
    times.etcdutl.push(etcdutl(place, &made, &[]));
    etcd.stop();
    fs::rename(&data, &aside).unwrap();
    fs::rename(&made, &data).unwrap();
    let etcd = recipe.start();
    times.by_hand.push(place.target.first_write(begin));
    drop(etcd);
    remove(&data);
    fs::rename(&aside, &data).unwrap();
    place.lab.start_agent();
    place.lab.wait_available();
}
