//! Another version of etcd: tried on a copy of the data, then started, and taken back where it does not serve.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use etcd_operator::member::crash::CrashPoint;
use etcd_operator::member::records::Launch;
use etcd_operator::plan::version::ENDS_MAX;
use etcd_operator::process::ProcessRecord;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::disk::{Disk, may_mount};
use crate::fleet::Writer;
use crate::full::write_until_it_ends;
use crate::lab::{Lab, bad_etcd, condition, etcd_dir, text, version_of};
use crate::lines;
use crate::restore::json;

/// A cluster on the older patch of 3.6, with some data, and the newer patch in its store.
fn born() -> (Lab, String) {
    let mut lab = Lab::new("3.6-before");
    lab.start_agent();
    lab.wait_available();
    lab.etcd = etcd_dir("3.6"); // its etcdctl
    for it in 0..20 {
        assert!(lab.put(&format!("key/{it}"), "value"));
    }
    let newer = version_of(&etcd_dir("3.6"));
    install(&lab, &etcd_dir("3.6"), &newer);
    (lab, newer)
}

pub fn install(lab: &Lab, from: &Path, version: &str) {
    let installed = lab.operator(&["etcd", "install", "--from", from.to_str().unwrap(), version]);
    assert!(installed.status.success(), "{}", text(&installed.stderr));
}

/// An etcd that behaves badly in a way of `tests/tools/bad-etcd.c`, in the store.
fn install_bad(lab: &Lab, mode: &str) -> String {
    install_bad_of(lab, "3.6", "3.6.98", mode)
}

/// The same of a line.
pub fn install_bad_of(lab: &Lab, line: &str, version: &str, mode: &str) -> String {
    let real = fs::canonicalize(etcd_dir(line).join("etcd")).unwrap();
    let dir = lab.root.join("bad");
    bad_etcd(&dir, version, mode, &real);
    install(lab, &dir, version);
    version.to_owned()
}

pub fn ask_for(lab: &mut Lab, version: &str) {
    version.clone_into(&mut lab.version);
    reload(lab);
}

/// Writes the document and has it read.
pub fn reload(lab: &Lab) {
    lab.write_document();
    let reloaded = lab.operator(&["reload"]);
    let held = reloaded.status.code() == Some(3);
    let words = text(&reloaded.stderr);
    assert!(reloaded.status.success() || held, "{words}");
}

pub fn wait_serving(lab: &Lab, version: &str) {
    lab.wait("it to serve", |it| {
        it["version"] == version && condition(it, "Available").0 == "True"
    });
}

/// Waits until the change is final.
pub fn wait_final(lab: &Lab, version: &str) -> Value {
    let limit = Duration::from_secs(90);
    lab.wait_for(limit, "the version in force", |it| {
        it["version"] == version
            && condition(it, "Progressing").0 == "False"
            && condition(it, "Available").0 == "True"
    })
}

pub fn assert_kept(lab: &Lab) {
    assert_eq!(lab.get("key/19").as_deref(), Some("value"));
    let identity = lab.identity().unwrap();
    assert_eq!(identity.member.other_version, None);
}

/// The only change so far, however often it was cut off.
#[track_caller]
fn assert_outcome(lab: &Lab, outcome: &str) {
    lab.wait_for(Duration::from_secs(60), outcome, |it| {
        let history = it["history"].as_array().map_or(&[][..], Vec::as_slice);
        assert!(history.len() < 2, "{history:#?}");
        history.len() == 1 && history[0]["outcome"] == outcome
    });
}

#[test]
fn a_patch_is_tried_on_a_copy_and_then_serves_under_a_writer() {
    let (mut lab, newer) = born();
    let older = lab.version.clone();
    assert!(lab.status()["versionSince"].is_string(), "since its birth");
    let writer = |lab: &Lab| {
        let url = format!("https://127.0.0.1:{}", lab.ports[0]);
        Writer::start(vec![url], lab.certificates().operator_files())
    };
    // What a restart of the same etcd costs here and now, to compare with.
    let plain = writer(&lab);
    lab.add("options: {snapshotCount: 4321}");
    reload(&lab);
    let wanted = |it: &Value| condition(it, "DocumentAccepted").1 == "InForce";
    lab.wait("the restart", |it| {
        wanted(it) && condition(it, "Available").0 == "True"
    });
    let (_, restart) = plain.end();

    let first = lab.etcd_pid();
    let under = writer(&lab);
    let begun = Instant::now();
    ask_for(&mut lab, &newer);
    wait_serving(&lab, &newer);
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert_ne!(lab.etcd_pid(), first);
    let status = wait_final(&lab, &newer);
    let (acknowledged, gap) = under.end();
    println!(
        "from the edit to serving: {took:?}; a writer's longest gap {gap:?}, in a restart {restart:?}"
    );
    // As long as a restart; `make bench` compares the two without others beside them.
    assert!(
        gap < restart + Duration::from_secs(2),
        "{gap:?} against {restart:?}"
    );
    assert_kept(&lab);
    // The newest key that was acknowledged, and all before it.
    let counted = lab.etcdctl(&["get", "w/", "--prefix", "--keys-only"]);
    let there = text(&counted.stdout)
        .lines()
        .filter(|it| it.starts_with("w/"))
        .count();
    assert!(
        u64::try_from(there).unwrap() >= acknowledged,
        "{there} of {acknowledged}"
    );
    let last = status["history"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (last["from"].as_str(), last["to"].as_str()),
        (Some(&*older), Some(&*newer))
    );
    assert_eq!(
        (&last["what"], &last["outcome"]),
        (&"version".into(), &"Done".into())
    );
    assert!(last["at"].is_string() && status["versionSince"] == last["at"]);
    let table = text(&lab.operator(&["status"]).stdout);
    let told = format!("etcd {older} -> {newer}: in force since");
    assert!(table.contains(&told), "{table}");
    let log = lab.log();
    for words in [
        "etcd served a copy of the data",
        "give the data to etcd",
        "the version is final",
    ] {
        assert!(log.contains(words), "{words}: {log}");
    }
}

#[test]
fn a_patch_back_is_an_edit_like_any_other_and_one_in_the_middle_takes_it_back() {
    let (mut lab, newer) = born();
    let older = lab.version.clone();
    ask_for(&mut lab, &newer);
    wait_serving(&lab, &newer);
    let pid = lab.etcd_pid();
    // Not final yet.
    assert_eq!(
        lab.identity().unwrap().member.other_version,
        Some(older.clone())
    );
    ask_for(&mut lab, &older);
    wait_final(&lab, &older);
    assert_ne!(lab.etcd_pid(), pid);
    assert_kept(&lab);
    // Nobody calls the newer one bad for it.
    assert!(
        !lab.log().contains("the version does not serve"),
        "{}",
        lab.log()
    );
    ask_for(&mut lab, &newer);
    wait_final(&lab, &newer);
    ask_for(&mut lab, &older);
    let status = wait_final(&lab, &older);
    assert_kept(&lab);
    let outcomes = status["history"].as_array().unwrap().iter();
    let outcomes: Vec<_> = outcomes.map(|it| (&it["to"], &it["outcome"])).collect();
    let done = Value::from("Done");
    let (older, newer) = (Value::from(older), Value::from(newer));
    assert_eq!(
        outcomes,
        [(&older, &done), (&newer, &done), (&older, &done)]
    );
}

#[test]
fn a_version_that_does_not_serve_a_copy_never_touches_the_data() {
    let (mut lab, newer) = born();
    let older = lab.version.clone();
    let bad = install_bad(&lab, "ends-on-the-copy");
    let pid = lab.etcd_pid();
    ask_for(&mut lab, &bad);
    let status = lab.wait_hold("UpgradeFailed");
    assert_eq!(condition(&status, "Available").0, "True");
    assert_eq!(
        (lab.etcd_pid(), status["version"].as_str()),
        (pid, Some(older.as_str()))
    );
    let kept = fs::read_to_string(lab.lib("rehearsal.log")).unwrap();
    assert!(kept.contains("a bad build ends on the copy"), "{kept}");
    let table = text(&lab.operator(&["status"]).stdout);
    let told = format!("etcd {older} -> {bad}: not served on a copy of the data");
    assert!(table.contains(&told), "{table}");
    // Not again, not even by a new agent; and a good one is not held up by it.
    lab.stop_agent();
    lab.start_agent();
    lab.wait_hold("UpgradeFailed");
    assert_eq!(lab.log().matches("the rehearsal failed").count(), 1);
    ask_for(&mut lab, &newer);
    wait_final(&lab, &newer);
    assert_kept(&lab);
}

#[test]
fn a_version_that_serves_other_data_never_touches_the_data() {
    for (mode, words) in [
        ("no-data", "serves revision 1, the snapshot has"),
        ("other-data", "the hashes differ"),
    ] {
        let (mut lab, _) = born();
        let bad = install_bad(&lab, mode);
        let pid = lab.etcd_pid();
        ask_for(&mut lab, &bad);
        let status = lab.wait_hold("UpgradeFailed");
        let told = status["plan"]["message"].as_str().unwrap();
        assert!(told.contains(words), "{told}");
        assert_eq!(lab.etcd_pid(), pid);
        assert_kept(&lab);
    }
}

/// How long it took until the version before served again.
fn comes_back(mode: &str, limit: Duration) -> Duration {
    let (mut lab, _) = born();
    let older = lab.version.clone();
    let bad = install_bad(&lab, mode);
    ask_for(&mut lab, &bad);
    let begun = Instant::now();
    lab.wait_for(limit, "the way back", |it| {
        let back = lab.log().contains("the version does not serve");
        back && it["version"] == older.as_str() && condition(it, "Available").0 == "True"
    });
    let took = begun.elapsed();
    lab.wait_for(Duration::from_secs(60), "the end", |_| {
        lab.identity()
            .is_some_and(|it| it.member.other_version.is_none())
    });
    assert_kept(&lab);
    let pid = lab.etcd_pid();
    // Not a second time by itself.
    lab.stop_agent();
    lab.start_agent();
    lab.wait_hold("UpgradeFailed");
    assert_eq!(lab.etcd_pid(), pid);
    took
}

#[test]
fn a_version_that_ends_at_its_start_is_taken_back() {
    let took = comes_back("ends", Duration::from_secs(60));
    println!("back after {took:?}");
}

#[test]
fn a_version_that_answers_nothing_is_taken_back() {
    let took = comes_back("silent", Duration::from_secs(150));
    println!("back after {took:?}");
}

#[test]
fn a_version_that_serves_and_then_ends_is_taken_back() {
    let took = comes_back("serves-then-ends", Duration::from_secs(90));
    println!("back after {took:?}");
}

/// Asks for a version with an agent that ends at this place, then starts one that does not.
fn cut_at(point: CrashPoint, lab: &mut Lab, version: &str) {
    ends_at(point, lab, version);
    lab.start_agent();
}

/// Asks for a version with an agent that ends at this place.
fn ends_at(point: CrashPoint, lab: &mut Lab, version: &str) {
    lab.stop_agent();
    let cut = ("ETCD_OPERATOR_CRASH_AT".to_owned(), format!("{point:?}"));
    lab.environment.push(cut);
    version.clone_into(&mut lab.version);
    lab.write_document();
    lab.start_agent();
    let limit = Instant::now() + Duration::from_secs(90);
    while lab.agent_runs() {
        assert!(
            Instant::now() < limit,
            "{point:?} is never passed: {}",
            lab.log()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    lab.environment.clear();
}

#[test]
fn an_agent_that_ends_at_any_place_leaves_the_old_version_or_the_new_one() {
    std::thread::scope(|scope| {
        for point in CrashPoint::VERSION {
            scope.spawn(move || {
                let (mut lab, newer) = born();
                let older = lab.version.clone();
                if point == CrashPoint::VersionWritten {
                    // Deaths of the version before say nothing of the new one.
                    for _ in 0..ENDS_MAX {
                        lab.kill_etcd();
                        lab.wait_available();
                    }
                }
                cut_at(point, &mut lab, &newer);
                wait_final(&lab, &newer);
                assert_kept(&lab);
                assert_outcome(&lab, "Done");
                // What is noted stays, whatever comes next, and wherever that is cut.
                cut_at(point, &mut lab, &older);
                let status = wait_final(&lab, &older);
                assert_eq!(status["history"].as_array().unwrap().len(), 2, "{status}");
            });
        }
        for point in CrashPoint::DOWNGRADE {
            scope.spawn(move || {
                let mut lab = lines::born("3.7", &["3.6"]);
                let older = version_of(&etcd_dir("3.6"));
                cut_at(point, &mut lab, &older);
                wait_final(&lab, &older);
                assert_kept(&lab);
                assert_outcome(&lab, "Done");
            });
        }
        for point in CrashPoint::VERSION_BACK {
            scope.spawn(move || {
                let (mut lab, _) = born();
                let older = lab.version.clone();
                let bad = install_bad(&lab, "ends");
                cut_at(point, &mut lab, &bad);
                lab.wait_for(Duration::from_secs(90), "the way back", |it| {
                    it["version"] == older.as_str()
                        && it["plan"]["hold"] == "UpgradeFailed"
                        && condition(it, "Available").0 == "True"
                });
                assert_kept(&lab);
                assert_outcome(&lab, "RolledBack");
            });
        }
    });
}

#[test]
fn one_death_is_no_reason_to_go_back_and_what_a_killed_agent_tried_is_ended() {
    let (mut lab, newer) = born();
    ask_for(&mut lab, &newer);
    let trial = lab.lib("backup/trial/process.json");
    let limit = Instant::now() + Duration::from_secs(20);
    let tried = loop {
        assert!(Instant::now() < limit, "nothing is tried: {}", lab.log());
        if let Some(it) = etcd_operator::state::load_volatile::<ProcessRecord>(&trial) {
            break it;
        }
    };
    // The one that serves dies meanwhile, too.
    lab.kill_etcd();
    lab.kill_agent();
    assert!(tried.is_alive(), "nobody ended it");
    lab.start_agent();
    wait_serving(&lab, &newer);
    assert!(!tried.is_alive() && !trial.exists());
    lab.kill_etcd();
    wait_final(&lab, &newer);
    assert_kept(&lab);
    assert!(
        !lab.log().contains("the version does not serve"),
        "{}",
        lab.log()
    );
}

/// Kills the next guard of a lab before it has become etcd.
fn kill_a_guard(root: &Path) {
    let limit = Instant::now() + Duration::from_secs(30);
    let is_guard = |process: &Path| {
        let line = fs::read(process.join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.contains("\0guard\0") && line.contains(root.to_str().unwrap())
    };
    loop {
        assert!(Instant::now() < limit, "no guard was seen");
        for process in fs::read_dir("/proc").unwrap().flatten() {
            let pid = process.file_name().to_str().and_then(|it| it.parse().ok());
            let Some(pid) = pid.and_then(Pid::from_raw) else {
                continue;
            };
            if !is_guard(&process.path()) {
                continue;
            }
            // It stands still, so it is one still when it is killed.
            let _ = kill_process(pid, Signal::STOP);
            let guard = is_guard(&process.path());
            let _ = kill_process(pid, if guard { Signal::KILL } else { Signal::CONT });
            if guard {
                return;
            }
        }
    }
}

#[test]
fn a_guard_that_is_killed_in_the_middle_starts_no_other_version() {
    let (mut lab, newer) = born();
    ends_at(CrashPoint::VersionWritten, &mut lab, &newer);
    let root = lab.root.clone();
    std::thread::scope(|scope| {
        let killer = scope.spawn(|| kill_a_guard(&root));
        lab.start_agent();
        killer.join().unwrap();
    });
    wait_final(&lab, &newer);
    assert_kept(&lab);
    assert_outcome(&lab, "Done");
}

#[test]
fn a_version_that_is_not_in_the_store_waits_for_it_and_the_guard_starts_no_third() {
    let mut lab = Lab::new("3.6-before");
    lab.start_agent();
    lab.wait_available();
    lab.etcd = etcd_dir("3.6");
    let (older, pid) = (lab.version.clone(), lab.etcd_pid());
    let newer = version_of(&etcd_dir("3.6"));
    ask_for(&mut lab, &newer);
    let status = lab.wait_hold("BinaryMissing");
    let next = status["plan"]["nextStep"].as_str().unwrap();
    assert!(
        next.contains(&format!("etcd install --from FILE {newer}")),
        "{next}"
    );
    assert_eq!(
        (lab.etcd_pid(), condition(&status, "Available").0),
        (pid, "True")
    );
    // A launch record of a version that the data is not for.
    lab.stop_agent();
    lab.kill_etcd();
    install(&lab, &etcd_dir("3.6"), &newer);
    let launch = lab.lib("member/launch.json");
    let mut record: Launch = etcd_operator::state::load(&launch).unwrap().unwrap();
    assert_eq!(record.version, older);
    record.version.clone_from(&newer);
    etcd_operator::state::save(&launch, &record).unwrap();
    let (code, words) = lab.guard();
    assert!(
        code != 0 && words.contains("VersionOfAnother"),
        "{code} {words}"
    );
    lab.start_agent();
    wait_final(&lab, &newer);
}

/// The disk fills up once the new version is written down, and again while it has not served for long: each time etcd dies of
/// it, and neither death counts against the version.
#[test]
fn a_disk_that_fills_up_in_the_middle_is_no_failure_of_the_version() {
    if !may_mount() {
        return;
    }
    let disk = Disk::new("full-in-the-middle", 400);
    let mut lab = Lab::new("3.6-before");
    lab.storage(&format!("path: {}, quota: 64Mi", disk.path.display()));
    lab.start_agent();
    lab.wait_available();
    for it in 0..20 {
        assert!(lab.put(&format!("key/{it}"), "value"));
    }
    let newer = version_of(&etcd_dir("3.6"));
    install(&lab, &etcd_dir("3.6"), &newer);
    ends_at(CrashPoint::VersionWritten, &mut lab, &newer);
    let mut acknowledged = 0;
    for time in ["written down", "served for a moment"] {
        let ballast = disk.fill();
        acknowledged = acknowledged.max(write_until_it_ends(&lab));
        if time == "written down" {
            lab.start_agent();
        }
        let status = lab.wait_hold("DiskFull");
        assert_eq!(condition(&status, "Available").1, "DiskFull", "{time}");
        fs::remove_file(ballast).unwrap();
        wait_serving(&lab, &newer);
    }
    let status = wait_final(&lab, &newer);
    let history = status["history"].as_array().unwrap();
    assert_eq!(history.len(), 1, "{history:?}");
    assert_eq!(history[0]["outcome"], "Done");
    assert_kept(&lab);
    let keys = lab.etcdctl(&["get", "--prefix", "full/", "--keys-only"]);
    let found = text(&keys.stdout).matches("full/").count();
    assert!(found >= acknowledged as usize, "{found} of {acknowledged}");
}

/// Somebody copied it there, past `etcd install`.
#[test]
fn a_program_that_is_another_version_than_its_folder_says_is_found_by_the_trial() {
    let (mut lab, newer) = born();
    let older = lab.version.clone();
    let folder = lab.lib("store").join(format!("etcd-{newer}"));
    fs::remove_dir_all(&folder).unwrap();
    fs::create_dir(&folder).unwrap();
    for program in ["etcd", "etcdctl", "etcdutl"] {
        fs::copy(etcd_dir("3.7").join(program), folder.join(program)).unwrap();
    }
    ask_for(&mut lab, &newer);
    let status = lab.wait_hold("UpgradeFailed");
    let told = status["plan"]["message"].as_str().unwrap();
    let newest = version_of(&etcd_dir("3.7"));
    assert!(told.contains(&newest), "{told}");
    wait_serving(&lab, &older);
    // Nor does it get at the data where no trial is made: a person skips it.
    let pid = lab.etcd_pid();
    lab.add(&format!("upgrade: {{skipRehearsal: {newer}}}"));
    ask_for(&mut lab, &older);
    lab.wait("the older one again", |it| {
        condition(it, "Progressing").0 == "False"
    });
    ask_for(&mut lab, &newer);
    lab.wait("its version to be told", |it| {
        condition(it, "Degraded").1 == "StepFailed"
            && it["conditions"].to_string().contains(&newest)
    });
    assert_eq!(lab.etcd_pid(), pid);
    assert_kept(&lab);
    // Or the version before is not there any more, so that nothing serves.
    lab.stop_agent();
    lab.kill_etcd();
    let before = lab.lib("store").join(format!("etcd-{older}"));
    fs::rename(&before, before.with_extension("away")).unwrap();
    lab.start_agent();
    lab.wait("its version to be told", |it| {
        condition(it, "Degraded").1 == "StepFailed"
            && it["conditions"].to_string().contains(&newest)
    });
    fs::rename(before.with_extension("away"), &before).unwrap();
    wait_serving(&lab, &older);
    assert_kept(&lab);
}

/// What etcd's `check v2store` finds in data of 3.5, no etcd 3.6 starts on: the old store of `--enable-v2`.
#[test]
fn data_with_the_old_store_stays_with_3_5() {
    let mut lab = Lab::new("3.5");
    lab.start_agent();
    lab.wait_available();
    for it in 0..20 {
        assert!(lab.put(&format!("key/{it}"), "value"));
    }
    lab.stop_agent();
    lab.kill_etcd();
    let conf = fs::read_to_string(lab.lib("member/etcd.conf.yaml")).unwrap();
    let with_v2 = lab.root.join("with-v2.yaml");
    let conf = conf.lines().filter(|it| !it.starts_with("snapshot-count"));
    let conf: Vec<&str> = conf.collect();
    let conf = format!("{}\nenable-v2: true\nsnapshot-count: 10\n", conf.join("\n"));
    fs::write(&with_v2, conf).unwrap();
    let mut etcd = Command::new(lab.etcd.join("etcd"));
    let etcd = etcd
        .arg("--config-file")
        .arg(&with_v2)
        .stderr(Stdio::null())
        .spawn();
    let mut etcd = etcd.unwrap();
    let files = lab.lib("tls/clients/admin");
    let url = format!("https://127.0.0.1:{}/v2/keys/old", lab.ports[0]);
    let put = || {
        let mut curl = Command::new("curl");
        curl.args([
            "-sf",
            "--retry",
            "20",
            "--retry-all-errors",
            "--retry-delay",
            "1",
        ]);
        curl.arg("--cacert").arg(files.join("ca.crt"));
        curl.arg("--cert").arg(files.join("client.crt"));
        curl.arg("--key").arg(files.join("client.key"));
        let output = curl
            .args(["-XPUT", &url, "-d", "value=1"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    };
    for _ in 0..20 {
        put();
    }
    etcd.kill().unwrap();
    etcd.wait().unwrap();
    lab.start_agent();
    lab.wait_available();
    let (older, pid) = (lab.version.clone(), lab.etcd_pid());
    let newer = version_of(&etcd_dir("3.6"));
    install(&lab, &etcd_dir("3.6"), &newer);
    ask_for(&mut lab, &newer);
    let status = lab.wait_hold("UpgradeNotRehearsed");
    let told = status["plan"]["message"].as_str().unwrap();
    println!("{told}");
    assert!(told.contains("v2"), "{told}");
    assert_eq!(lab.etcd_pid(), pid);
    wait_serving(&lab, &older);
    assert_kept(&lab);
}

/// A small device has no room for a copy of its data: a person skips the trial of one version, and of no other.
#[test]
fn where_there_is_no_room_for_a_copy_a_person_may_skip_the_trial() {
    if !may_mount() {
        return;
    }
    let disk = Disk::new("no-room", 900);
    let mut lab = Lab::at(disk.path.join("lab"), "3.6-before");
    let elsewhere = disk.path.with_extension("snapshots");
    fs::create_dir_all(&elsewhere).unwrap();
    let place = elsewhere.display();
    lab.add(&format!(
        "backup: {{destinations: [{{local: {{path: {place}}}}}]}}"
    ));
    lab.start_agent();
    lab.wait_available();
    for it in 0..20 {
        assert!(lab.put(&format!("key/{it}"), "value"));
    }
    let newer = ["3.6", "3.7"].map(|line| (line, version_of(&etcd_dir(line))));
    for (line, version) in &newer {
        install(&lab, &etcd_dir(line), version);
    }
    let [(_, patch), (_, next)] = &newer;
    disk.fill_to(200 << 20);
    // Nothing is touched, and the hold says how much is missing, and the word.
    let pid = lab.etcd_pid();
    ask_for(&mut lab, patch);
    let status = lab.wait_hold("UpgradeNotRehearsed");
    let said = status["plan"]["nextStep"].as_str().unwrap();
    assert!(said.contains(&format!("skipRehearsal: {patch}")), "{said}");
    assert_eq!(lab.etcd_pid(), pid);
    // The word for another version is none for this one.
    lab.add(&format!("upgrade: {{skipRehearsal: {next}}}"));
    reload(&lab);
    lab.wait_hold("UpgradeNotRehearsed");
    lab.spec = lab.spec.replace(
        &format!("skipRehearsal: {next}"),
        &format!("skipRehearsal: {patch}"),
    );
    reload(&lab);
    wait_final(&lab, patch);
    assert_kept(&lab);
    // From a newer line only a snapshot leads back, so there has to be one.
    lab.spec = lab.spec.replace(
        &format!("skipRehearsal: {patch}"),
        &format!("skipRehearsal: {next}"),
    );
    let pid = lab.etcd_pid();
    ask_for(&mut lab, next);
    let status = lab.wait_hold("UpgradeNotRehearsed");
    assert!(
        status.to_string().contains("needs a verified snapshot"),
        "{status}"
    );
    assert_eq!(lab.etcd_pid(), pid);
    assert_eq!(json(&lab, &["backup", "create"])["result"], "saved");
    wait_final(&lab, next);
    assert_kept(&lab);
    fs::remove_dir_all(&elsewhere).unwrap();
}
