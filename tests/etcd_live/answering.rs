//! The agent answers while etcd stops or hangs or its disk does; and a step that fails keeps no other one
//! from being taken.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::disk::{Disk, Silent, may_mount};
use crate::lab::{Lab, condition, kill, skip, text};

/// What an answer may take, the command's own start included; processors are shared with other tests.
const ANSWERED: Duration = Duration::from_secs(1);
const ENDED: Duration = Duration::from_secs(5);

fn born() -> Lab {
    let mut lab = Lab::new("3.6");
    lab.start_agent();
    lab.wait_available();
    lab
}

/// One status, as quickly as it is promised. The best of three: a machine under load starts programs
/// slowly.
fn answered(lab: &Lab) -> Value {
    let mut best = (Duration::MAX, Value::Null);
    for _ in 0..3 {
        let begin = Instant::now();
        let status = lab.status_now();
        let took = begin.elapsed();
        if took < best.0 {
            best = (took, status);
        }
        if took <= ANSWERED {
            break;
        }
    }
    assert!(best.0 <= ANSWERED, "{:?}", best.0);
    best.1
}

/// SIGTERM ends the agent as quickly as it is promised.
fn ends(lab: &mut Lab) {
    let begin = Instant::now();
    lab.stop_agent();
    assert!(begin.elapsed() < ENDED, "{:?}", begin.elapsed());
}

/// Waits until the pass that is under way does this.
fn wait_doing(lab: &Lab, step: &str) -> Value {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let status = answered(lab);
        let doing = &status["host"]["look"]["underWay"]["step"];
        if doing.as_str().is_some_and(|it| it.contains(step)) {
            return status;
        }
        assert!(Instant::now() < deadline, "{status:#}\n{}", lab.log());
    }
}

#[test]
fn the_agent_answers_while_it_waits_for_the_end_of_an_etcd_that_hangs() {
    let mut lab = born();
    let pid = lab.etcd_pid().unwrap();
    let plain = lab.spec.clone();
    kill("STOP", pid);
    lab.add("size: 0");
    assert_eq!(lab.operator(&["reload"]).status.code(), Some(0));
    let status = wait_doing(&lab, "stop etcd");
    assert_eq!(status["host"]["look"]["fresh"], false);
    let page = text(&lab.operator(&["status"]).stdout);
    assert!(
        page.contains("; under way for") && page.contains("stop etcd"),
        "{page}"
    );
    // As often as it is asked, and by several at one time.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..5).for_each(|_| drop(lab.status_now())));
        }
    });
    answered(&lab);
    // The document is read, judged and told of meanwhile.
    lab.spec = format!("{plain}  sise: 0\n");
    lab.write_document();
    lab.signal_agent("HUP");
    let begin = Instant::now();
    while condition(&answered(&lab), "DocumentAccepted") != ("False", "SpecInvalid") {
        assert!(begin.elapsed() < Duration::from_secs(10), "{}", lab.log());
    }
    lab.spec = plain;
    lab.write_document();
    let begin = Instant::now();
    let reload = lab.operator(&["reload"]);
    assert_eq!(reload.status.code(), Some(0), "{}", text(&reload.stderr));
    assert!(begin.elapsed() < ANSWERED * 2, "{:?}", begin.elapsed());
    let status = answered(&lab);
    let told = condition(&status, "DocumentAccepted");
    assert_eq!(told, ("True", "Waits"), "{status:#}");
    let diff = lab.operator(&["diff"]);
    assert_eq!(diff.status.code(), Some(0));
    // A certificate needs a pass; who asks for one is told why it has to wait.
    let issue = lab.operator(&["certs", "issue", "till"]);
    assert_eq!(issue.status.code(), Some(1));
    assert!(
        text(&issue.stderr).contains("stop etcd"),
        "{}",
        text(&issue.stderr)
    );
    ends(&mut lab);
    assert!(
        lab.log()
            .contains("operator ends while this is under way: stop etcd")
    );
    // It was told to end, and does so once it can; the next agent starts it again.
    kill("CONT", pid);
    lab.start_agent();
    lab.wait("another etcd", |it| {
        condition(it, "Available").0 == "True" && it["host"]["etcd"]["pid"] != pid
    });
}

#[test]
fn the_agent_answers_while_etcd_answers_nobody() {
    let mut lab = born();
    let pid = lab.etcd_pid().unwrap();
    kill("STOP", pid);
    let begin = Instant::now();
    // At first what was seen before, with its age; then that it does not answer.
    while condition(&answered(&lab), "Available").0 != "False" {
        assert!(begin.elapsed() < Duration::from_secs(20), "{}", lab.log());
    }
    ends(&mut lab);
    // An agent that has just begun has the report of the one before.
    lab.start_agent();
    lab.wait_agent();
    let status = answered(&lab);
    assert_eq!(status["host"]["operator"]["pid"], lab.agent_pid());
    assert_eq!(condition(&status, "Available").0, "False");
    kill("CONT", pid);
    lab.wait_available();
    assert_eq!(lab.etcd_pid(), Some(pid));
}

#[test]
fn the_agent_answers_and_ends_while_the_disk_of_the_data_is_frozen() {
    if !may_mount() {
        return;
    }
    let disk = Disk::new("answers", 192);
    let mut lab = Lab::new("3.6");
    lab.storage(&format!("path: {}, quota: 16Mi", disk.path.display()));
    lab.start_agent();
    lab.wait_available();
    let pid = lab.etcd_pid();
    let frost = disk.freeze();
    let begin = Instant::now();
    // That the disk does not answer; or that etcd does not, which waits for it.
    while condition(&answered(&lab), "Available").0 != "False" {
        assert!(begin.elapsed() < Duration::from_secs(20), "{}", lab.log());
    }
    lab.spec.push_str("  profil: edge\n");
    lab.write_document();
    assert_eq!(lab.operator(&["reload"]).status.code(), Some(2));
    let status = answered(&lab);
    assert_eq!(condition(&status, "DocumentAccepted").0, "False");
    ends(&mut lab);
    drop(frost);
    lab.spec = lab.spec.replace("  profil: edge\n", "");
    lab.write_document();
    lab.start_agent();
    lab.wait_available();
    assert_eq!(lab.etcd_pid(), pid);
}

#[test]
fn etcd_is_kept_while_a_destination_of_snapshots_does_not_answer() {
    if !may_mount() || !Path::new("/dev/fuse").exists() {
        return skip("a share that does not answer needs root and FUSE");
    }
    let mut lab = Lab::new("3.6");
    let share = lab.root.join("share");
    fs::create_dir(&share).unwrap();
    lab.add(&format!(
        "backup: {{interval: 1h, destinations: [{{local: {{path: {}}}}}]}}",
        share.display()
    ));
    lab.start_agent();
    let healthy = |it: &Value| condition(it, "BackupHealthy").0 == "True";
    lab.wait("a snapshot", healthy);
    let silent = Silent::over(&share);
    for restarted in [false, true] {
        if restarted {
            // This one never saw what lies there.
            ends(&mut lab);
            lab.start_agent();
            lab.wait_agent();
        }
        let pid = lab.etcd_pid().unwrap();
        kill("KILL", pid);
        let begin = Instant::now();
        lab.wait("another etcd", |it| {
            lab.etcd_pid().is_some_and(|it| it != pid) && condition(it, "Available").0 == "True"
        });
        assert!(begin.elapsed() < Duration::from_secs(15), "{}", lab.log());
        lab.wait("the destination is told of", |it| {
            condition(it, "BackupHealthy") == ("False", "DestinationUnusable")
        });
    }
    drop(silent);
    lab.wait("the share is back", healthy);
}

#[test]
fn an_agent_that_does_not_answer_is_told_of_with_what_it_saw_last() {
    let lab = born();
    kill("STOP", lab.agent_pid());
    let output = lab.operator(&["status"]);
    kill("CONT", lab.agent_pid());
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(
        said.contains("does not answer: this is what it saw last"),
        "{said}"
    );
    assert!(
        said.contains("Available") && said.contains("Serving"),
        "{said}"
    );
    lab.wait_available();
}

/// A directory in place of the link of a client's certificates, as a careless copy leaves it.
#[test]
fn a_step_that_fails_keeps_no_independent_one_from_being_taken() {
    let mut lab = Lab::new("3.6");
    let snapshots = lab.root.join("snapshots");
    fs::create_dir(&snapshots).unwrap();
    lab.add(&format!(
        "backup: {{interval: 1h, destinations: [{{local: {{path: {}}}}}]}}",
        snapshots.display()
    ));
    lab.add("clients: [{name: till}]");
    let broken = lab.lib("tls/clients/till");
    fs::create_dir_all(broken.join("foreign")).unwrap();
    fs::write(broken.join("foreign/file"), "").unwrap();
    lab.start_agent();
    // Born, proven, recorded, and a snapshot of it taken, whatever is wrong with one client's directory.
    let status = lab.wait("what goes on", |it| {
        condition(it, "Available").0 == "True" && condition(it, "BackupHealthy").0 == "True"
    });
    assert_eq!(condition(&status, "Degraded"), ("True", "StepFailed"));
    assert!(
        status["conditions"].to_string().contains("clients/till"),
        "{status:#}"
    );
    let identity = lab.identity().unwrap();
    assert!(identity.member.id.is_some(), "{identity:?}");
    assert!(
        lab.put("by", "admin"),
        "the other clients have their certificates"
    );
    // An edit is carried out as well.
    let before = lab.etcd_pid();
    lab.add("profile: standard");
    assert_eq!(lab.operator(&["reload"]).status.code(), Some(0));
    lab.wait("the edit in force", |it| {
        condition(it, "DocumentAccepted").1 == "InForce" && condition(it, "Available").0 == "True"
    });
    assert_ne!(lab.etcd_pid(), before);
    fs::remove_dir_all(&broken).unwrap();
    let status = lab.wait("healed", |it| condition(it, "Degraded").0 == "False");
    assert_eq!(condition(&status, "Available").0, "True");
}

/// What somebody does to a lab.
type Edit = fn(&mut Lab);

#[test]
fn a_hold_keeps_the_write_from_being_proven_no_longer() {
    let mut lab = born();
    let plain = (lab.spec.clone(), lab.version.clone());
    let holds: [(&str, Edit); 3] = [
        ("UpgradeNotAllowed", |lab| {
            lab.version = "3.5.30".to_owned();
        }),
        ("Paused", |lab| lab.spec.push_str("  paused: true\n")),
        ("DocumentOfAnotherCluster", |lab| {
            lab.name = "other".to_owned();
            for name in ["document.json", "document.json.previous"] {
                let _ = fs::remove_file(lab.lib(name)); // as if none had ever been sound
            }
        }),
    ];
    for (reason, edit) in holds {
        lab.stop_agent();
        edit(&mut lab);
        lab.write_document();
        lab.start_agent();
        lab.wait_hold(reason);
        lab.wait_available();
        (lab.spec, lab.version) = plain.clone();
    }
}

#[test]
fn without_an_agent_nobody_is_said_to_try_a_write() {
    let mut lab = born();
    lab.stop_agent();
    let output = lab.operator(&["status", "-o", "json"]);
    assert_eq!(output.status.code(), Some(1));
    let status = lab.status();
    assert_eq!(
        condition(&status, "Available"),
        ("Unknown", "WriteNotProven")
    );
    assert_eq!(condition(&status, "Progressing"), ("False", "NoOperator"));
    let said = status.to_string();
    assert!(said.contains("no operator runs to try a write"), "{said}");
    assert!(!said.contains("is being tried"), "{said}");
    lab.kill_etcd();
    let status = lab.status();
    assert_eq!(condition(&status, "Available"), ("False", "NoOperator"));
    assert!(
        !status.to_string().contains("the operator starts etcd"),
        "{status:#}"
    );
}

#[test]
fn snapshots_are_taken_in_their_time_while_a_further_destination_does_not_answer() {
    if !may_mount() || !Path::new("/dev/fuse").exists() {
        return skip("a share that does not answer needs root and FUSE");
    }
    let mut lab = Lab::new("3.6");
    let (own, share) = (lab.root.join("own"), lab.root.join("share"));
    fs::create_dir(&own).unwrap();
    fs::create_dir(&share).unwrap();
    lab.add(&format!(
        "backup: {{interval: 3s, destinations: [{{local: {{path: {}, keep: 100}}}}, {{local: {{path: {}}}}}]}}",
        own.display(),
        share.display()
    ));
    lab.start_agent();
    let count = |it: &Value| it["backups"]["count"].as_u64().unwrap_or(0);
    let copied = || fs::read_dir(share.join("lab")).map_or(0, Iterator::count) > 0;
    lab.wait("a copy", |it| count(it) > 0 && copied());
    let silent = Silent::over(&share);
    let begin = Instant::now();
    let before = count(&lab.status());
    while begin.elapsed() < Duration::from_secs(20) {
        lab.put("a", &begin.elapsed().as_millis().to_string());
        std::thread::sleep(Duration::from_millis(100));
    }
    let taken = count(&lab.status()) - before;
    // A look every ten seconds takes what is due; each job's end brings another look, which takes nothing.
    assert!((1..=4).contains(&taken), "{taken}: {}", lab.log());
    drop(silent);
    // It is tried again after 30 s.
    lab.wait_for(Duration::from_secs(90), "the share is back", |it| {
        it["backups"]["queued"] == 0 && condition(it, "BackupHealthy").0 == "True"
    });
}
