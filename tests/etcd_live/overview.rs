//! `status` for people: what it says first, which facts it tells, how it looks.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Output, Stdio};

use crate::lab::{Lab, condition, kill, program, skip, text};
use crate::restore::backups;
use crate::tools::garbage_meta;

/// On a terminal of util-linux' script.
fn on_a_terminal(lab: &Lab, environment: &[(&str, &str)], arguments: &str) -> Option<Output> {
    if Command::new("script").arg("--version").output().is_err() {
        skip("a terminal needs util-linux' script");
        return None;
    }
    let line = format!(
        "stty cols 200; exec '{}' --root '{}' {arguments}",
        program().display(),
        lab.root.display()
    );
    let mut command = Command::new("script");
    command
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .env_remove("NO_COLOR")
        .env("TERM", "xterm")
        .envs(environment.iter().copied())
        .stdin(Stdio::null());
    Some(command.output().unwrap())
}

#[test]
fn the_first_line_says_ok_and_the_facts_follow() {
    let mut lab = Lab::new("3.6");
    lab.start_agent();
    lab.wait_available();
    assert!(lab.put("a", "1"));
    let table = text(&lab.operator(&["status"]).stdout);
    let first = format!("OK: etcd {} serves reads and writes\n", lab.version);
    assert!(table.starts_with(&first), "{table}");
    let status = lab.status();
    let pid = &status["host"]["etcd"]["pid"];
    for words in [
        "\ncluster       lab, id ".to_owned(),
        format!("\netcd          {}, up ", lab.version),
        format!(", no restart in this boot (pid {pid}, process)"),
        format!(
            "\noperator      {} (pid {})",
            env!("CARGO_PKG_VERSION"),
            lab.agent_pid()
        ),
        format!(" in use; revision {}\n", status["revision"]),
        " free on its disk\n".to_owned(),
        "\ncertificates  valid for 36".to_owned(),
        " s ago (20".to_owned(),
    ] {
        assert!(table.contains(&words), "{words}: {table}");
    }
    assert!(!table.contains('\u{1b}'), "no colour in a pipe: {table:?}");
    // The same for programs.
    let host = &status["host"];
    assert_eq!(host["name"], "lab");
    assert_eq!(host["etcd"]["restarts"], 0);
    assert!(host["etcd"]["upSeconds"].is_u64());
    assert!(host["disk"]["freeBytes"].as_u64() < host["disk"]["sizeBytes"].as_u64());
    assert!(status["database"]["quota"].as_u64().unwrap() >= 16 << 20);
    // What happened stays visible.
    for _ in 0..2 {
        let before = lab.etcd_pid();
        lab.kill_etcd();
        lab.wait("another etcd", |_| {
            lab.etcd_pid().is_some() && lab.etcd_pid() != before
        });
        lab.wait_available();
    }
    assert_eq!(lab.status()["host"]["etcd"]["restarts"], 2);
    let table = text(&lab.operator(&["status"]).stdout);
    assert!(table.contains(", 2 restarts in this boot"), "{table}");
}

#[test]
fn what_is_wrong_comes_first_with_the_next_step() {
    let mut lab = Lab::new("3.6");
    lab.start_agent();
    lab.wait_available();
    lab.add("backup: {interval: 1s, destinations: [{local: {path: /no/such/place}}]}");
    lab.signal_agent("HUP");
    lab.wait("the reason", |it| {
        condition(it, "BackupHealthy").0 == "False"
    });
    let output = lab.operator(&["status"]);
    let table = text(&output.stdout);
    assert!(
        table.starts_with("ATTENTION: DestinationUnusable: /no/such/place is not there"),
        "{table}"
    );
    assert_eq!(
        table.matches("/no/such/place is not there").count(),
        1,
        "{table}"
    );
    assert_eq!(output.status.code(), Some(0), "etcd serves all the same");
    // Without its operator nothing is OK, however well etcd does.
    lab.stop_agent();
    let table = text(&lab.operator(&["status"]).stdout);
    let wanted =
        "ATTENTION: the operator is not running, etcd runs without it\nnext: etcd-operator agent\n";
    assert!(table.starts_with(wanted), "{table}");
}

#[test]
fn where_a_restore_helps_the_newest_snapshot_is_named() {
    let mut lab = Lab::new("3.6");
    fs::create_dir_all(backups(&lab)).unwrap();
    lab.add(&format!(
        "backup: {{destinations: [{{local: {{path: {}}}}}]}}",
        backups(&lab).display()
    ));
    lab.start_agent();
    lab.wait_available();
    assert!(lab.put("a", "1"));
    assert!(lab.operator(&["backup", "create"]).status.success());
    lab.stop_agent();
    lab.kill_etcd();
    garbage_meta(&lab);
    lab.start_agent();
    lab.wait_hold("DatabaseDamaged");
    let table = text(&lab.operator(&["status"]).stdout);
    for wanted in [
        "\nnewest verified snapshot: revision 2, ",
        "\nmore: etcd-operator explain DatabaseDamaged\n",
    ] {
        assert!(table.contains(wanted), "{wanted}: {table}");
    }
    let explained = lab.operator(&["explain", "databasedamaged"]);
    let page = text(&explained.stdout);
    assert!(
        page.starts_with("DatabaseDamaged  (Hold, Refusal"),
        "{page}"
    );
    for field in ["\nmeans ", "\noperator ", "\nyou ", "\nnever "] {
        assert!(page.contains(field), "{field}: {page}");
    }
    let unknown = lab.operator(&["explain", "Wal"]);
    assert_eq!(unknown.status.code(), Some(1));
    let said = text(&unknown.stderr);
    assert!(
        said.contains("did you mean WalDamaged, WalTornWrite?"),
        "{said}"
    );
}

#[test]
fn a_terminal_shows_colours_unless_a_person_wants_none() {
    let mut lab = Lab::new("3.6");
    lab.start_agent();
    lab.wait_available();
    let Some(shown) = on_a_terminal(&lab, &[], "status") else {
        return;
    };
    let shown = text(&shown.stdout);
    assert!(
        shown.starts_with("\u{1b}[32mOK\u{1b}[0m: etcd"),
        "{shown:?}"
    );
    assert!(
        shown.contains("  \u{1b}[32mFalse\u{1b}[0m    AsAsked"),
        "{shown:?}"
    );
    for environment in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let shown = on_a_terminal(&lab, &[environment], "status").unwrap();
        assert!(!text(&shown.stdout).contains('\u{1b}'), "{environment:?}");
    }
}

#[test]
fn watching_goes_on_until_it_is_interrupted() {
    let mut lab = Lab::new("3.6");
    lab.start_agent();
    lab.wait_available();
    let watch = |lab: &Lab, output: &str| {
        let mut command = Command::new(program());
        command.args(["status", "--watch", "-o", output, "--root"]);
        command
            .arg(&lab.root)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    // Without a terminal: one block after the other, also while the agent is away.
    let mut child = watch(&lab, "table");
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut until = |words: &str| {
        let found = lines
            .by_ref()
            .map(Result::unwrap)
            .find(|it| it.contains(words));
        let found = found.unwrap_or_else(|| panic!("no {words}"));
        assert!(!found.contains('\u{1b}'), "{found:?}");
    };
    until("OK: etcd");
    until("OK: etcd");
    lab.stop_agent();
    until("the operator is not running");
    lab.start_agent();
    until("OK: etcd");
    kill("INT", child.id());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    // One document after the other for programs.
    let mut child = watch(&lab, "json");
    let stdout = child.stdout.take().unwrap();
    let mut documents =
        serde_json::Deserializer::from_reader(stdout).into_iter::<serde_json::Value>();
    for _ in 0..2 {
        assert_eq!(documents.next().unwrap().unwrap()["host"]["name"], "lab");
    }
    // Nobody reads any more.
    drop(documents);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    // On a terminal: in the same place.
    let interrupt = "status --watch & sleep 3; kill -INT $!; wait $!";
    let Some(shown) = on_a_terminal(&lab, &[], interrupt) else {
        return;
    };
    let shown = text(&shown.stdout);
    assert!(shown.matches("\u{1b}[H\u{1b}[J").count() >= 2, "{shown:?}");
}

#[test]
fn what_a_restore_left_is_listed_with_its_size() {
    let mut lab = Lab::new("3.6");
    lab.start_agent();
    lab.wait_available();
    assert!(lab.put("a", "1"));
    let file = lab.root.join("snap.db");
    let saved = lab.etcdctl(&["snapshot", "save", file.to_str().unwrap()]);
    assert!(saved.status.success(), "{}", text(&saved.stderr));
    assert_eq!(lab.status()["host"].get("leftovers"), None);
    let restored = lab.operator(&["restore", "--from", file.to_str().unwrap(), "--yes"]);
    assert!(restored.status.success(), "{}", text(&restored.stderr));
    let status = lab.wait_available();
    let left = status["host"]["leftovers"].as_array().unwrap();
    assert_eq!(left.len(), 1, "{left:#?}");
    let path = left[0]["path"].as_str().unwrap();
    assert!(
        path.starts_with(lab.data("").parent().unwrap().to_str().unwrap()),
        "{path}"
    );
    assert!(left[0]["bytes"].as_u64().unwrap() > 1 << 20, "{left:#?}");
    let table = text(&lab.operator(&["status"]).stdout);
    assert!(
        table.contains(&format!("\nleftovers     {path} (")),
        "{table}"
    );
    std::fs::remove_dir_all(path).unwrap();
    lab.wait("nothing left", |it| it["host"].get("leftovers").is_none());
}
