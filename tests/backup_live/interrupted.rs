//! Backups that end in the middle: nothing half is ever shown, and nothing is left that grows.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use etcd_operator::backup::verify;

use crate::lab::{kill, text};
use crate::stage::Stage;
use crate::watched::Watched;

const CREATE: [&str; 4] = ["backup", "create", "-o", "json"];

/// Everything that is shown verifies; how many.
fn all_verify(stage: &Stage) -> usize {
    let entries = stage.entries();
    for entry in &entries {
        let manifest = entry.manifest.as_ref().unwrap();
        let path = stage.store().snapshot(&entry.name);
        verify::verify(&path, manifest, 3, &mut |_| ()).unwrap();
    }
    entries.len()
}

/// What is half.
fn parts(stage: &Stage) -> Vec<String> {
    let mut files = stage.files();
    files.retain(|it| Path::new(it).extension() == Some("part".as_ref()));
    files
}

#[test]
fn a_second_backup_with_nothing_written_says_unchanged_and_writes_nothing() {
    let stage = Stage::new("3.6");
    stage.fill("key", 1000, 100);
    let (file, manifest) = stage.saved();
    let look = || {
        let files = stage.files();
        let times: Vec<_> = files
            .iter()
            .map(|it| stage.dir().join(it))
            .chain([stage.dir(), stage.place.clone(), stage.lab.lib("backup")])
            .map(|it| fs::metadata(it).unwrap())
            .map(|it| (it.ino(), it.mtime_nsec(), it.len()))
            .collect();
        (files, times)
    };
    let before = look();
    for _ in 0..3 {
        let needed = Watched::start(&stage, &CREATE).end();
        assert_eq!(needed.output.status.code(), Some(0));
        let answer: serde_json::Value = serde_json::from_slice(&needed.output.stdout).unwrap();
        assert_eq!(answer["result"], "unchanged");
        assert_eq!(answer["snapshot"]["name"], manifest.name);
        assert_eq!(needed.written, 0, "bytes to disk");
    }
    let output = stage.lab.operator(&["backup", "create"]);
    assert!(text(&output.stdout).contains("nothing was written to etcd since"));
    assert_eq!(look(), before);
    // A revision later, or with that snapshot damaged, there is something to do.
    stage.etcdctl(&["put", "key", "1"]);
    let (newer, _) = stage.saved();
    let mut bytes = fs::read(&newer).unwrap();
    bytes.pop();
    fs::write(&newer, bytes).unwrap();
    std::thread::sleep(Duration::from_millis(1100));
    let (newest, _) = stage.saved();
    assert!(newest != newer && newest != file);
}

#[test]
fn etcd_killed_in_the_middle_of_the_stream_leaves_no_snapshot() {
    let stage = Stage::new("3.6");
    stage.fill("key", 3000, 10_000);
    let part = stage.store().part();
    let command = Watched::start(&stage, &CREATE);
    assert!(command.stop_at(&part, 1 << 20), "it was too fast");
    stage.lab.kill_etcd();
    command.go_on();
    let output = command.end().output;
    let words = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(words.contains("etcd's snapshot"), "{words}");
    println!("{}", words.trim());
    assert_eq!(stage.files(), [""; 0], "nothing is left");
    assert!(stage.entries().is_empty());
    stage.lab.wait_available();
    stage.saved();
    assert_eq!(all_verify(&stage), 1);
}

/// As by a disk that no longer answers. The whole stall timeout is waited for.
#[test]
fn etcd_that_hangs_in_the_middle_of_the_stream_is_given_up_and_leaves_no_snapshot() {
    let mut stage = Stage::new("3.6");
    stage.fill("key", 3000, 10_000);
    stage.lab.stop_agent();
    let etcd = stage.lab.etcd_pid().unwrap();
    let part = stage.store().part();
    let command = Watched::start(&stage, &CREATE);
    assert!(command.stop_at(&part, 1 << 20), "it was too fast");
    kill("STOP", etcd);
    command.go_on();
    let begin = Instant::now();
    while !command.ended() {
        assert!(begin.elapsed() < Duration::from_secs(90), "it waits on");
        std::thread::sleep(Duration::from_millis(50));
    }
    let took = begin.elapsed();
    let output = command.end().output;
    kill("CONT", etcd);
    let words = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{words}");
    println!("after {took:?}: {}", words.trim());
    assert!(words.contains("no answer in time"), "{words}");
    assert!(took > Duration::from_secs(50), "{took:?}");
    assert!(stage.entries().is_empty());
    assert_eq!(stage.files(), [""; 0], "nothing is left");
    stage.lab.start_agent();
    stage.lab.wait_available();
    stage.saved();
    assert_eq!(all_verify(&stage), 1);
}

#[test]
fn sigkill_at_any_instant_leaves_nothing_half_and_nothing_that_grows() {
    let stage = Stage::new("3.6");
    stage.fill("key", 1200, 5000);
    let begin = Instant::now();
    stage.saved();
    // The first one may take longer than those that follow.
    let mut whole = begin.elapsed();
    let (mut killed, mut shown, mut left) = (0, 1, 0);
    let mut random = 0x2545_f491_4f6c_dd1d_u64 ^ u64::from(std::process::id());
    for round in 0..20_u32 {
        stage.etcdctl(&["put", "round", &round.to_string()]);
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let delay = whole.mul_f64((random % 1000) as f64 / 1000.0);
        let begin = Instant::now();
        let command = Watched::start(&stage, &CREATE);
        while begin.elapsed() < delay && !command.ended() {
            std::thread::sleep(Duration::from_millis(1));
        }
        if command.ended() {
            whole = begin.elapsed();
        }
        command.kill();
        let ended = command.end().output.status.success();
        killed += u32::from(!ended);
        let now = all_verify(&stage);
        assert!(
            now >= shown && (!ended || now > shown),
            "{now} after {shown}"
        );
        shown = now;
        let parts = parts(&stage);
        left = left.max(parts.len());
        assert!(parts.len() <= 2, "{parts:?}");
    }
    println!("{killed} of 20 killed, {shown} snapshots, at most {left} leftovers");
    assert!(killed >= 8, "{killed}: too few were killed on their way");
    stage.etcdctl(&["put", "round", "last"]);
    stage.saved();
    assert_eq!(all_verify(&stage), shown + 1);
    assert!(parts(&stage).is_empty(), "{:?}", stage.files());
    assert_eq!(stage.files().len(), 2 * (shown + 1));
}

/// The instants that a random kill seldom meets: around the two renames that make a snapshot visible.
#[test]
fn a_power_cut_between_the_renames_leaves_nothing_for_good() {
    let stage = Stage::new("3.6");
    stage.etcdctl(&["put", "key", "1"]);
    let (file, manifest) = stage.saved();
    let json = file.with_file_name(format!("{}.json", manifest.name));
    let json_part = file.with_file_name(format!("{}.json.part", manifest.name));
    // The file has its name, its manifest not yet.
    fs::rename(&json, &json_part).unwrap();
    assert!(stage.entries().iter().all(|it| it.level() == 0));
    stage.etcdctl(&["put", "key", "2"]);
    stage.saved();
    assert_eq!(all_verify(&stage), 2, "{:?}", stage.files());
    assert_eq!(stage.files().len(), 4, "{:?}", stage.files());
    // Neither has its name.
    fs::rename(&json, &json_part).unwrap();
    fs::rename(&file, stage.store().part()).unwrap();
    assert_eq!(all_verify(&stage), 1);
    stage.etcdctl(&["put", "key", "3"]);
    stage.saved();
    assert_eq!(all_verify(&stage), 2);
    assert_eq!(stage.files().len(), 4, "{:?}", stage.files());
    // The manifest that waits is not that of the file, which a person may have put there.
    let (file, manifest) = stage.stored(&stage.entries()[0].name.to_string());
    let json = file.with_file_name(format!("{}.json", manifest.name));
    fs::rename(
        &json,
        file.with_file_name(format!("{}.json.part", manifest.name)),
    )
    .unwrap();
    fs::write(&file, "other").unwrap();
    stage.etcdctl(&["put", "key", "4"]);
    stage.saved();
    assert_eq!(fs::read(&file).unwrap(), b"other");
    let found = stage
        .entries()
        .into_iter()
        .find(|it| it.name.to_string() == manifest.name);
    assert_eq!(found.unwrap().level(), 0);
}
