//! `restore --from DIR`: the whole data directory of a box that died, whose log holds what its database does not yet.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use etcd_operator::backup::place;
use etcd_operator::paths::Paths;
use etcd_operator::process::ProcessRecord;

use crate::lab::{Lab, etcd_dir, free_ports, kill, program, text};
use crate::restore::json;

/// Acknowledged, and younger than the last commit of the database.
const WRITES: u32 = 500;

/// What is left of a box whose power was cut right after it had acknowledged writes.
fn dead_box(line: &str) -> Lab {
    let mut lab = Lab::new(line);
    lab.start_agent();
    lab.wait_available();
    lab.fill(WRITES);
    lab.kill_agent();
    lab.kill_etcd();
    lab
}

/// A host that serves a cluster of its own.
fn new_box(line: &str) -> Lab {
    let mut lab = Lab::new(line);
    lab.start_agent();
    lab.wait_available();
    lab
}

/// The same files elsewhere, as on a disk that was carried over.
fn carried_over(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(copied.unwrap().success());
}

#[track_caller]
fn refused(lab: &Lab, from: &Path, words: &str) {
    let from = from.to_str().unwrap();
    let output = lab.operator(&["restore", "--yes", "--other-cluster", "--from", from]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(words) && said.contains(from), "{said}");
    assert!(!lab.lib("backup/trial").exists(), "a copy was left");
    assert!(!lab.lib("backup/fetched").exists(), "a snapshot was left");
}

fn a_directory_gives_back_what_its_log_holds(line: &str) {
    let dead = dead_box(line);
    let disk = dead.root.join("USB DISK");
    fs::create_dir(&disk).unwrap();
    carried_over(&dead.lib("member"), &disk.join("member"));
    let before = dead.fingerprints();
    let lab = new_box(line);
    let dir = disk.to_str().unwrap();
    // Its cluster is another one, which a person has to say.
    let output = lab.operator(&["restore", "--yes", "--from", dir]);
    let said = text(&output.stderr);
    assert!(
        !output.status.success() && said.contains("--other-cluster"),
        "{said}"
    );
    let told = json(
        &lab,
        &["restore", "--dry-run", "--other-cluster", "--from", dir],
    );
    let [snapshot, revision] = ["snapshot", "snapshotRevision"].map(|it| told[it].clone());
    assert_eq!(snapshot, dir);
    // The database alone has not all of it.
    let database = disk.join("member/data/member/snap/db");
    let alone = json(
        &lab,
        &["restore", "--dry-run", "--from", database.to_str().unwrap()],
    );
    assert!(
        alone["snapshotRevision"].as_i64() < revision.as_i64(),
        "{alone} {told}"
    );
    assert_eq!(lab.filled(), 0, "nothing was done");

    let report = json(
        &lab,
        &["restore", "--yes", "--other-cluster", "--from", dir],
    );
    assert_eq!(report["outcome"], "restored");
    lab.wait_available();
    assert_eq!(lab.filled(), WRITES as usize);
    assert!(!lab.lib("backup/fetched").exists() && !lab.lib("backup/trial").exists());
    // What was named is as it was.
    let now = dead.fingerprints();
    assert_eq!(before, now);
    let elsewhere = etcd_operator::state::sha256(&fs::read(&database).unwrap());
    assert_eq!(Some(&elsewhere), before.get(&dead.data("member/snap/db")));
}

#[test]
fn a_directory_of_3_5_gives_back_what_its_log_holds() {
    a_directory_gives_back_what_its_log_holds("3.5");
}

#[test]
fn a_directory_of_3_6_gives_back_what_its_log_holds() {
    a_directory_gives_back_what_its_log_holds("3.6");
}

#[test]
fn a_directory_of_3_7_gives_back_what_its_log_holds() {
    a_directory_gives_back_what_its_log_holds("3.7");
}

/// The data of an older line is taken up by the one of the document; that of a newer one, or of one too old, is not.
#[test]
fn a_directory_of_another_line_3_5_3_7_is_taken_up_or_told() {
    let (oldest, newest) = (dead_box("3.5"), dead_box("3.7"));
    let lab = new_box("3.6");
    refused(
        &lab,
        &newest.data(""),
        "set version to a patch of that line",
    );
    let dir = oldest.data("");
    let arguments = [
        "restore",
        "--yes",
        "--other-cluster",
        "--from",
        dir.to_str().unwrap(),
    ];
    assert_eq!(json(&lab, &arguments)["outcome"], "restored");
    assert_eq!(lab.filled(), WRITES as usize);
    let lab = new_box("3.7");
    refused(&lab, &dir, "set version to a patch of 3.6 first");
}

#[test]
fn a_directory_that_is_no_source_is_told_with_what_helps() {
    let lab = new_box("3.6");
    refused(&lab, &lab.data(""), "a running etcd has it open");
    let empty = lab.root.join("empty");
    fs::create_dir(&empty).unwrap();
    refused(&lab, &empty, "no data directory of etcd lies there");
    let dead = dead_box("3.6");
    let copy = |name: &str| -> PathBuf {
        let to = lab.root.join(name);
        carried_over(&dead.data(""), &to);
        to
    };
    let without_log = copy("without-log");
    for it in fs::read_dir(without_log.join("member/wal")).unwrap() {
        fs::remove_file(it.unwrap().path()).unwrap();
    }
    refused(&lab, &without_log, "it has no log");
    let damaged = copy("damaged");
    let log = fs::read_dir(damaged.join("member/wal")).unwrap();
    let log = log.map(|it| it.unwrap().path());
    let log = log
        .filter(|it| it.extension().is_some_and(|it| it == "wal"))
        .min();
    let log = log.unwrap();
    let mut bytes = fs::read(&log).unwrap();
    bytes[3000..3100].fill(0x55);
    fs::write(&log, bytes).unwrap();
    refused(&lab, &damaged, "it is damaged");
    let link = copy("linked");
    let database = link.join("member/snap/db");
    fs::rename(&database, link.join("other")).unwrap();
    std::os::unix::fs::symlink("../../other", &database).unwrap();
    refused(&lab, &link, "snap/db: ");
    refused(&lab, &of_two(&lab), "it is of one of 2 members");
    assert!(lab.put("still", "serves"));
}

#[test]
fn a_directory_whose_etcd_has_users_is_told() {
    let mut dead = Lab::new("3.6");
    dead.start_agent();
    dead.wait_available();
    for words in [
        &["user", "add", "root", "--no-password"][..],
        &["user", "grant-role", "root", "root"],
        &["auth", "enable"],
    ] {
        let done = dead.etcdctl(words);
        assert!(done.status.success(), "{}", text(&done.stderr));
    }
    dead.kill_agent();
    dead.kill_etcd();
    let lab = new_box("3.6");
    let begun = Instant::now();
    refused(&lab, &dead.data(""), "its users are on (auth)");
    assert!(
        begun.elapsed() < Duration::from_secs(30),
        "it waited in vain"
    );
}

/// Scratch is the agent's for its trials, too; and whoever ends the command leaves nothing there.
#[test]
fn a_directory_is_taken_up_by_one_alone_and_an_interrupted_command_leaves_nothing() {
    let dead = dead_box("3.6");
    let lab = new_box("3.6");
    let paths = Paths::under(&lab.root);
    let held = place::lock(&paths, place::Work::Local).unwrap().unwrap();
    refused(
        &lab,
        &dead.data(""),
        "another process takes, checks or tries",
    );
    drop(held);
    for signal in ["INT", "TERM", "HUP"] {
        let mut command = Command::new(program())
            .args(["restore", "--dry-run", "--other-cluster", "--from"])
            .arg(dead.data(""))
            .arg("--root")
            .arg(&lab.root)
            .spawn()
            .unwrap();
        let trial = lab.lib("backup/trial/process.json");
        let begun = Instant::now();
        let etcd = loop {
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "no etcd of its own"
            );
            if let Some(it) = etcd_operator::state::load_volatile::<ProcessRecord>(&trial) {
                break it;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        kill(signal, command.id());
        let ended = command.wait().unwrap();
        // One that was as good as done may have ended before.
        assert!(matches!(ended.code(), Some(130 | 0)), "{signal}: {ended}");
        assert!(!etcd.is_alive(), "{signal}: its etcd runs on");
        assert!(
            !lab.lib("backup/trial").exists(),
            "{signal}: a copy was left"
        );
        assert!(
            !lab.lib("backup/fetched").exists(),
            "{signal}: a snapshot was left"
        );
    }
}

/// The data of a member whose other one never came.
fn of_two(lab: &Lab) -> PathBuf {
    let (dir, log) = (lab.root.join("of-two"), lab.root.join("of-two.log"));
    let ([client, peer, other], _held) = free_ports();
    let own = format!("http://127.0.0.1:{peer}");
    let clients = format!("http://127.0.0.1:{client}");
    let mut etcd = Command::new(etcd_dir("3.6").join("etcd"))
        .args(["--name", "one", "--data-dir", dir.to_str().unwrap()])
        .args([
            "--listen-peer-urls",
            &own,
            "--initial-advertise-peer-urls",
            &own,
        ])
        .args([
            "--listen-client-urls",
            &clients,
            "--advertise-client-urls",
            &clients,
        ])
        .args([
            "--initial-cluster",
            &format!("one={own},two=http://127.0.0.1:{other}"),
        ])
        .stderr(fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    // By then both members are in its log.
    let begun = Instant::now();
    while !fs::read_to_string(&log)
        .unwrap()
        .contains("is starting a new election")
    {
        assert!(begun.elapsed() < Duration::from_secs(20), "no election");
        std::thread::sleep(Duration::from_millis(20));
    }
    etcd.kill().unwrap();
    etcd.wait().unwrap();
    dir
}
