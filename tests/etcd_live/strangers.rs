//! What somebody else did to etcd is named with the way out, and never fought: its own auth, a learner and
//! a voter that nobody here asked for.

use std::process::{Command, Output};

use crate::lab::{Lab, condition, text};

fn born(line: &str) -> Lab {
    let mut lab = Lab::new(line);
    lab.start_agent();
    lab.wait_available();
    assert!(lab.put("before", "x"));
    lab
}

/// etcdctl, and that it did it.
fn done(lab: &Lab, arguments: &[&str]) -> String {
    let output = lab.etcdctl(arguments);
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// The same as etcd's user root, by a certificate that the operator issued.
fn as_root(lab: &Lab, arguments: &[&str]) -> Output {
    let issued = lab.operator(&["certs", "issue", "root"]);
    assert!(issued.status.success(), "{}", text(&issued.stderr));
    let files = lab.lib("tls/clients/root");
    Command::new(lab.etcd.join("etcdctl"))
        .env_clear()
        .env(
            "ETCDCTL_ENDPOINTS",
            format!("https://127.0.0.1:{}", lab.ports[0]),
        )
        .env("ETCDCTL_CACERT", files.join("ca.crt"))
        .env("ETCDCTL_CERT", files.join("client.crt"))
        .env("ETCDCTL_KEY", files.join("client.key"))
        .args(["--command-timeout", "5s"])
        .args(arguments)
        .output()
        .unwrap()
}

fn enable_auth(lab: &Lab) {
    for words in [
        &["user", "add", "root", "--no-password"][..],
        &["role", "add", "root"],
        &["user", "grant-role", "root", "root"],
        &["auth", "enable"],
    ] {
        done(lab, words);
    }
}

fn auth_is_named_and_both_ways_out_work(line: &str) {
    let lab = born(line);
    let pid = lab.etcd_pid();
    enable_auth(&lab);
    let status = lab.wait_hold("AuthEnabled");
    // etcd serves its users: neither available by proof, nor down.
    assert_eq!(condition(&status, "Available"), ("Unknown", "AuthEnabled"));
    assert_eq!(condition(&status, "Degraded"), ("True", "AuthEnabled"));
    assert!(status["members"][0]["id"].is_string(), "{status:#}");
    let table = text(&lab.operator(&["status"]).stdout);
    for words in [
        "auth",
        "user add etcd-operator",
        "certs issue root",
        "auth disable",
    ] {
        assert!(table.contains(words), "{words}: {table}");
    }
    assert!(as_root(&lab, &["auth", "disable"]).status.success());
    lab.wait_available();
    // The other way: the operator becomes a user of etcd, and auth stays on.
    done(&lab, &["auth", "enable"]);
    lab.wait_hold("AuthEnabled");
    for words in [
        &["user", "add", "etcd-operator", "--no-password"][..],
        &["user", "grant-role", "etcd-operator", "root"],
    ] {
        let output = as_root(&lab, words);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let status = lab.wait_available();
    assert!(status["plan"]["hold"].is_null(), "{status:#}");
    assert!(!lab.put("still", "refused"), "auth is on");
    assert_eq!(lab.etcd_pid(), pid, "etcd was not touched");
}

#[test]
fn auth_of_etcd_3_5_is_named() {
    auth_is_named_and_both_ways_out_work("3.5");
}

#[test]
fn auth_of_etcd_3_6_is_named() {
    auth_is_named_and_both_ways_out_work("3.6");
}

#[test]
fn auth_of_etcd_3_7_is_named() {
    auth_is_named_and_both_ways_out_work("3.7");
}

/// The id in what `member add` printed, which has spaces in place of zeros at its beginning.
fn added(words: &str) -> String {
    let id = words
        .strip_prefix("Member ")
        .and_then(|it| it.trim_start().split(' ').next());
    format!("{:0>16}", id.unwrap_or_else(|| panic!("{words}")))
}

#[test]
fn an_id_that_begins_with_zero_is_read() {
    let words = "Member  f3baf47f0dd9051 added to cluster 18798c5ceb4abd6c\n";
    assert_eq!(added(words), "0f3baf47f0dd9051");
}

#[test]
fn a_learner_that_somebody_added_is_named_and_goes_as_told() {
    let lab = born("3.6");
    let url = "--peer-urls=http://127.0.0.1:9";
    let id = added(&done(&lab, &["member", "add", "theirs", "--learner", url]));
    let status = lab.wait_hold("UnexpectedMember");
    assert_eq!(condition(&status, "Available"), ("True", "Serving"));
    let table = text(&lab.operator(&["status"]).stdout);
    for words in [
        &format!("learner {id}"),
        "http://127.0.0.1:9",
        &format!("member remove {id}"),
    ] {
        assert!(table.contains(words), "{words}: {table}");
    }
    // It is asked for again and again, and never removed by itself.
    lab.status();
    assert!(done(&lab, &["member", "list"]).contains(id.trim_start_matches('0')));
    done(&lab, &["member", "remove", &id]);
    let status = lab.wait("no hold", |it| it["plan"]["hold"].is_null());
    assert_eq!(condition(&status, "Degraded"), ("False", "AsAsked"));
}

/// The majority is gone: the member that was added is named all the same, and the way out that is told works.
fn a_voter_is_named_without_a_majority(line: &str) {
    let lab = born(line);
    // A port that is free: whoever added it can start it there.
    let url = format!("http://127.0.0.1:{}", lab.ports[1] + 1);
    let id = added(&done(
        &lab,
        &["member", "add", "theirs", &format!("--peer-urls={url}")],
    ));
    let status = lab.wait_hold("UnexpectedMember");
    let (value, reason) = condition(&status, "Available");
    assert_eq!((value, reason), ("False", "UnexpectedMember"), "{status:#}");
    let told = status["members"].as_array().unwrap();
    assert!(told.iter().any(|it| it["id"] == id.as_str()), "{status:#}");
    let table = text(&lab.operator(&["status"]).stdout);
    for words in [
        &format!("voter {id}"),
        &url,
        &format!("member remove {id}"),
        "restore --from latest",
    ] {
        assert!(table.contains(words), "{words}: {table}");
    }
}

#[test]
fn a_voter_that_somebody_added_to_3_5_is_named() {
    a_voter_is_named_without_a_majority("3.5");
}

#[test]
fn a_voter_that_somebody_added_to_3_6_is_named() {
    a_voter_is_named_without_a_majority("3.6");
}

#[test]
fn a_voter_that_somebody_added_to_3_7_is_named() {
    a_voter_is_named_without_a_majority("3.7");
}

fn is_told(lab: &Lab, verdict: &str, reason: &str) -> String {
    let status = lab.wait(reason, |it| condition(it, "Degraded") == (verdict, reason));
    assert_eq!(condition(&status, "Available").0, "True");
    let conditions = status["conditions"].as_array().unwrap();
    let degraded = conditions.iter().find(|it| it["type"] == "Degraded");
    degraded.unwrap()["message"].as_str().unwrap().to_owned()
}

/// Somebody begins a downgrade that the document does not ask for.
fn a_downgrade_is_told(line: &str, to: &str) {
    let lab = born(line);
    done(&lab, &["downgrade", "enable", to]);
    let message = is_told(&lab, "True", "DowngradeEnabled");
    assert!(
        message.contains(&format!("a downgrade of etcd to {to}")),
        "{message}"
    );
    done(&lab, &["downgrade", "cancel"]);
    is_told(&lab, "False", "AsAsked");
}

#[test]
fn a_downgrade_of_3_6_is_told() {
    a_downgrade_is_told("3.6", "3.5.0");
}

#[test]
fn a_downgrade_of_3_7_is_told() {
    a_downgrade_is_told("3.7", "3.6.0");
}

#[test]
fn a_member_that_is_announced_elsewhere_is_corrected() {
    let lab = born("3.6");
    let status = lab.status();
    let id = status["members"][0]["id"].as_str().unwrap().to_owned();
    let pid = lab.etcd_pid();
    let own = format!("https://127.0.0.1:{}", lab.ports[1]);
    let elsewhere = "https://192.0.2.1:2380";
    done(&lab, &["member", "update", &id, "--peer-urls", elsewhere]);
    assert!(done(&lab, &["member", "list"]).contains(elsewhere));
    lab.wait("its own URL", |_| {
        done(&lab, &["member", "list"]).contains(&own)
    });
    assert_eq!(lab.etcd_pid(), pid);
}
