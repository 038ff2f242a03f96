//! Words at the right place: a refusal names the cause, once, and what helps.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use crate::lab::{Lab, program, skip, text};

#[test]
fn a_version_that_is_not_in_the_store_names_the_one_that_is() {
    let mut lab = Lab::new("3.6");
    let stored = lab.version.clone();
    lab.version = "3.6.99".to_owned();
    lab.write_document();
    lab.start_agent();
    let status = lab.wait("a hold", |it| it["plan"]["hold"] == "BinaryMissing");
    let next = status["plan"]["nextStep"].as_str().unwrap();
    assert!(
        next.starts_with(&format!("set version: {stored}; or run: ")),
        "{next}"
    );
    // What is said stands in the table once.
    let table = lab.operator(&["status"]);
    let table = text(&table.stdout);
    assert_eq!(table.matches("is not in the store").count(), 1, "{table}");
    assert_eq!(table.matches("etcd install").count(), 1, "{table}");
    // As told, and nothing else.
    lab.version = stored;
    lab.write_document();
    lab.signal_agent("HUP");
    lab.wait_available();
}

#[test]
fn a_refusal_of_the_system_names_the_file_and_the_cause_once() {
    let mut lab = Lab::new("3.6");
    lab.start_agent();
    lab.wait_available();
    lab.stop_agent();
    lab.kill_etcd();
    fs::remove_file(lab.lib("member/member.lock")).unwrap();
    fs::create_dir(lab.lib("member/member.lock")).unwrap();
    lab.start_agent();
    let status = lab.wait("a hold", |it| it["plan"]["hold"] == "GuardRefused");
    let message = status["plan"]["message"].as_str().unwrap();
    let path = lab.lib("member/member.lock").display().to_string();
    assert!(
        message.starts_with(&format!("failed to open {path}: Is a directory")),
        "{message}"
    );
    fs::remove_dir(lab.lib("member/member.lock")).unwrap();
    lab.wait_available();
}

#[test]
fn a_guard_that_nobody_may_run_is_placed_again() {
    let mut lab = Lab::new("3.6");
    lab.start_agent();
    lab.wait_available();
    // Another file than the program itself, as after a copy.
    let guard = lab.lib("store/etcd-operator");
    let bytes = fs::read(&guard).unwrap();
    fs::remove_file(&guard).unwrap();
    fs::write(&guard, bytes).unwrap();
    fs::set_permissions(&guard, fs::Permissions::from_mode(0o000)).unwrap();
    let before = lab.status()["host"]["etcd"]["pid"].clone();
    lab.kill_etcd();
    lab.wait("another etcd", |it| {
        it["host"]["etcd"]["pid"].is_u64() && it["host"]["etcd"]["pid"] != before
    });
    lab.wait_available();
}

#[test]
fn without_proc_the_cause_is_named() {
    let lab = Lab::new("3.6");
    let without = |arguments: &str| {
        let script = format!(
            "mount -t tmpfs none /proc && exec {} {arguments} --root {}",
            program().display(),
            lab.root.display()
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script]).output()
    };
    let probe = Command::new("unshare").args(["--mount", "true"]).status();
    if !probe.is_ok_and(|it| it.success()) {
        return skip("a /proc of one's own needs root and unshare");
    }
    for command in ["agent --driver process", "status", "guard"] {
        let output = without(command).unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("/proc is not mounted"), "{said}");
    }
}

#[test]
fn init_writes_the_first_document_and_never_a_second_one() {
    let lab = Lab::new("3.6");
    let path = lab.document_path();
    let before = fs::read_to_string(&path).unwrap();
    let refused = lab.operator(&["init", "--name", "other"]);
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(3), "{said}");
    assert!(
        said.contains("is there already, and nothing was written"),
        "{said}"
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), before);
    // By force: the one before is kept beside it.
    let forced = lab.operator(&["init", "--name", "other", "--force"]);
    assert!(forced.status.success(), "{}", text(&forced.stderr));
    let kept = path.with_extension("yaml.before-init");
    assert_eq!(fs::read_to_string(kept).unwrap(), before);
    fs::remove_file(&path).unwrap();
    // What is in the store, and a name that is no cluster's.
    let wrote = lab.operator(&["init", "--name", "other"]);
    let wanted = format!("cluster other, etcd {}\n", lab.version);
    assert!(
        text(&wrote.stdout).contains(&wanted),
        "{}",
        text(&wrote.stdout)
    );
    let document = fs::read_to_string(&path).unwrap();
    assert!(
        document.contains(&format!("\n  version: {}\n", lab.version)),
        "{document}"
    );
    fs::remove_file(&path).unwrap();
    for wrong in [["--name", "No_Name"], ["--version", "new"]] {
        let refused = lab.operator(&["init", wrong[0], wrong[1]]);
        assert_eq!(refused.status.code(), Some(2), "{wrong:?}");
    }
    assert!(!path.exists());
}

/// A lost document of a cluster that lives: its name, not the host's.
#[test]
fn init_knows_the_cluster_that_lives_here() {
    let mut lab = Lab::new("3.6");
    lab.start_agent();
    lab.wait_available();
    lab.stop_agent();
    fs::remove_file(lab.document_path()).unwrap();
    let wrote = lab.operator(&["init"]);
    let wanted = format!("cluster lab, etcd {}\n", lab.version);
    assert!(
        text(&wrote.stdout).contains(&wanted),
        "{}",
        text(&wrote.stdout)
    );
}
