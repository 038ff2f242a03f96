//! Restores that are withdrawn, forgotten or cut: one volume never has two who work on it, and the member
//! comes back with the data of before or of after, and nothing in between.

use std::fs;
use std::time::{Duration, Instant};

use crate::claims::directory;
use crate::lab::SOON;
use crate::operated::{Operated, document, pass};
use crate::processes::Frozen;
use crate::writer::Writer;

fn spec(more: &str) -> String {
    format!("{{{more}backup: {{destinations: [{{local: {{}}}}]}}}}")
}

/// The process that exchanges the data stands still, once its record says this.
fn freeze_restore(it: &Operated, phases: &[&str]) -> Frozen {
    let record = it.path(1, &directory(it, "data-till-0"));
    let record = record.join("restore.json");
    let begun = Instant::now();
    loop {
        assert!(
            begun.elapsed() < SOON,
            "no restore in {phases:?}\n{}",
            it.story()
        );
        std::thread::sleep(Duration::from_millis(2));
        let Ok(text) = fs::read_to_string(&record) else {
            continue;
        };
        let text = text.replace('\\', ""); // JSON inside of JSON
        if !phases.iter().any(|it| text.contains(&format!("\"{it}\""))) {
            continue;
        }
        let found = it.processes("etcd-operator restore --pod");
        if !found.is_empty() {
            return Frozen::new(found);
        }
    }
}

fn withdraw(it: &Operated, name: &str) {
    it.kubectl(&["delete", "etcdrestore", name]).good();
}

fn message(it: &Operated, restore: &str, words: &str) {
    it.eventually(&format!("{restore} to say {words}"), SOON, || {
        let asked = it.try_json(&["get", "etcdrestore", restore])?;
        let text = asked["status"]["message"].as_str()?;
        text.contains(words).then_some(())
    });
}

/// A cluster with a snapshot in which `kept` is `before`; now it is `after`.
fn with_a_snapshot() -> Option<Operated> {
    let it = Operated::up()?;
    it.apply(&document("EtcdCluster", "till", &spec("")));
    it.available("till");
    Writer::new(&it, 1, "till").fill(40);
    it.put("till", "kept", "before");
    it.snapshot("till", "till");
    it.put("till", "kept", "after");
    Some(it)
}

#[test]
fn a_restore_that_is_withdrawn_or_cut_leaves_a_member_that_serves() {
    let Some(it) = with_a_snapshot() else {
        return;
    };
    not_begun_where_there_is_no_such_snapshot(&it);
    not_begun_while_its_worker_is_silent(&it);
    not_begun_where_its_pod_is_refused(&it);
    withdrawn_before_it_began(&it);
    assert_eq!(it.get("till", "kept"), "after");
    withdrawn_and_forgotten_while_it_works(&it);
    assert_eq!(it.get("till", "kept"), "before");
    it.put("till", "kept", "after");
    withdrawn_and_cut(&it);
    assert_eq!(it.get("till", "kept"), "before");
}

#[test]
fn a_bootstrap_keeps_data_that_is_there_and_a_pod_that_does_not_go_is_told() {
    let Some(it) = with_a_snapshot() else {
        return;
    };
    bootstrap_where_there_is_data(&it);
    assert_eq!(it.get("till", "kept"), "after");
    a_bootstrap_that_failed_is_tried_again(&it);
    a_pod_that_does_not_go(&it);
}

/// A mistyped name stops nobody, and changes nothing of what is known of snapshots.
fn not_begun_where_there_is_no_such_snapshot(it: &Operated) {
    let uid = it.pod_uid("till");
    let taken = || it.json(&["get", "etcdcluster", "till"])["status"]["backups"].clone();
    let before = taken();
    it.apply(&document(
        "EtcdRestore",
        "typo",
        "{cluster: till, from: till-0-typo, replaceData: till}",
    ));
    let told = it.phase("etcdrestore", "typo", "Failed");
    let message = told["status"]["message"].as_str().unwrap();
    assert!(
        message.contains("no snapshot till-0-typo of till; till runs on unchanged"),
        "{message}"
    );
    pass(3);
    assert_eq!(it.pod_uid("till"), uid);
    assert_eq!(taken()["count"], before["count"]);
    withdraw(it, "typo");
}

/// Something holds a Pod that was asked to end: nothing is made beside it, and it is told.
fn a_pod_that_does_not_go(it: &Operated) {
    let finalizers = |value: &str| {
        let patch = format!(r#"{{"metadata": {{"finalizers": {value}}}}}"#);
        it.kubectl(&["patch", "pod", "till-0", "--type=merge", "-p", &patch])
            .good();
    };
    finalizers(r#"["example.com/kept"]"#);
    it.kubectl(&["delete", "pod", "till-0", "--wait=false"])
        .good();
    it.eventually("Terminating", 4 * SOON, || {
        let cluster = it.try_json(&["get", "etcdcluster", "till"])?;
        let conditions = cluster["status"]["conditions"].as_array()?.clone();
        let told = |it: &&serde_json::Value| it["type"] == "Degraded" && it["status"] == "True";
        let found = conditions.iter().find(told)?.clone();
        (found["reason"] == "Terminating").then_some(found)
    });
    finalizers("null");
    it.available("till");
}

/// The member serves on.
fn not_begun_where_its_pod_is_refused(it: &Operated) {
    // There is room for the member and the worker, and for no Pod more.
    it.apply("apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: full, namespace: default}\nspec: {hard: {pods: '2'}}\n");
    it.eventually("the quota to be in force", SOON, || {
        let quota = it.try_json(&["get", "resourcequota", "full"])?;
        (quota["status"]["used"]["pods"] == "2").then_some(())
    });
    let uid = it.pod_uid("till");
    it.ask_for_restore("till", "refused");
    message(
        it,
        "refused",
        "the restore has not begun, and till stays as it is",
    );
    message(it, "refused", "exceeded quota");
    pass(3);
    assert_eq!(it.pod_uid("till"), uid);
    withdraw(it, "refused");
    it.kubectl(&["delete", "resourcequota", "full"]).good();
}

/// Nobody else could have the snapshot: the member serves on until its worker says whether it is there.
fn not_begun_while_its_worker_is_silent(it: &Operated) {
    let uid = it.pod_uid("till");
    let frozen = Frozen::new(it.processes("etcd-operator backup worker"));
    it.ask_for_restore("till", "silent");
    message(
        it,
        "silent",
        "the restore has not begun, and till stays as it is: the backup worker does not say: \
         the Pod till-backup on the node edge1 does not answer",
    );
    pass(3);
    assert_eq!(it.pod_uid("till"), uid);
    withdraw(it, "silent");
    drop(frozen);
    it.says("till", "BackupHealthy", "Verified");
}

fn withdrawn_before_it_began(it: &Operated) {
    let image = it.images.etcd["3.6"].clone();
    it.remove_image(&image);
    it.ask_for_restore("till", "early");
    message(it, "early", "ImagePull");
    withdraw(it, "early");
    it.gone(&["pod", "till-restore"]);
    it.import(&image);
    it.available("till");
}

/// The next operator finds a Pod, and nobody who asked for it.
fn withdrawn_and_forgotten_while_it_works(it: &Operated) {
    it.ask_for_restore("till", "late");
    let frozen = freeze_restore(it, &["requested", "prepared", "swapping", "starting"]);
    withdraw(it, "late");
    it.next_operator();
    pass(5);
    assert_eq!(it.pod_uid("till"), None, "the volume is being worked on");
    drop(frozen);
    it.available("till");
    it.gone(&["pod", "till-restore"]);
}

/// The next operator finds neither who asked nor the Pod, and the data is half exchanged.
fn withdrawn_and_cut(it: &Operated) {
    it.ask_for_restore("till", "cut");
    let _frozen = freeze_restore(it, &["swapping", "starting"]);
    it.without_operator(|| {
        withdraw(it, "cut");
        let now = ["--force", "--grace-period=0"];
        it.kubectl(&["delete", "pod", "till-restore", now[0], now[1]])
            .good();
    });
    it.eventually("the Pod that brings it to its end", SOON, || {
        let events = it.events("default");
        let mut told = events.iter().map(|(_, text)| text);
        told.any(|it| it.contains("finishes an interrupted restore"))
            .then_some(())
    });
    it.available("till");
    it.gone(&["pod", "till-restore"]);
}

/// Object and Secret are lost, and the volume is there.
fn bootstrap_where_there_is_data(it: &Operated) {
    it.kubectl(&["delete", "etcdcluster", "till"]).good();
    it.gone(&["pod", "till-0"]);
    it.kubectl(&["delete", "secret", "till-ca"]).good();
    it.apply(&document(
        "EtcdCluster",
        "till",
        &spec("bootstrap: {from: latest}, "),
    ));
    let accepted = "etcd.edge-operator.io/new-authority=accepted";
    it.kubectl(&["annotate", "etcdcluster", "till", accepted])
        .good();
    it.available("till");
    it.eventually("the data to be told of", SOON, || {
        let events = it.events("default");
        events.iter().any(|it| it.0 == "DataFound").then_some(())
    });
}

fn a_bootstrap_that_failed_is_tried_again(it: &Operated) {
    // The cluster has another key by now: what it signed before is nobody's word.
    let taken = it.snapshot("till", "anew")["status"]["snapshot"].clone();
    let taken = taken.as_str().unwrap();
    let from = |name: &str| format!("{{bootstrap: {{from: till/{name}}}}}");
    it.apply(&document("EtcdCluster", "next", &from("till-0-nothing")));
    it.eventually("the failure to be told", SOON, || {
        let plan = it.cluster("next")["status"]["plan"].clone();
        (plan["hold"] == "RestoreFailed").then_some(())
    });
    // By its revision, as people call it.
    let revision = taken.rsplit('-').nth(1).unwrap();
    it.apply(&document("EtcdCluster", "next", &from(revision)));
    it.available("next");
    assert_eq!(it.get("next", "kept"), "after");
}
