//! The operator goes, comes back and is exchanged, by the files of `deploy/`: members, objects and data
//! stay.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster::output;
use crate::lab::{SOON, root};
use crate::operated::{Operated, pass};
use crate::writer::{longest_gap, restarts};

#[test]
fn deleting_the_operators_file_leaves_a_cluster_and_applying_it_again_or_another_image_finds_it() {
    let Some(it) = Operated::with_one() else {
        return;
    };
    let stays = || (it.pod_uid("one"), restarts(&it, "one"), objects(&it));
    let before = stays();
    deleted(&it);
    assert_eq!(stays(), before);
    applied_again(&it);
    assert_eq!(stays(), before);
    another_image(&it);
    assert_eq!(stays(), before);
    assert_eq!(it.get("one", "kept"), "1");
    the_next_member_has_its_guard(&it);
    assert_eq!(it.get("one", "kept"), "1");
}

const NEWER: &str = "localhost/etcd-operator:newer";

/// What was made for the cluster: names, UIDs, and contents of Secrets.
fn objects(it: &Operated) -> Vec<Value> {
    let kinds = "etcdclusters,services,secrets,persistentvolumeclaims,networkpolicies";
    let list = it.json(&["get", kinds]);
    let all = list["items"].as_array().unwrap().iter();
    let own = all.filter(|it| it["metadata"]["name"] != "one-client-late");
    let own: Vec<Value> = own
        .map(|it| {
            let metadata = &it["metadata"];
            let name = [&it["kind"], &metadata["name"], &metadata["uid"]];
            serde_json::json!([name, it["data"], it["status"]["clusterID"]])
        })
        .collect();
    assert!(own.len() >= 7, "{own:?}");
    own
}

/// Since when the cluster is available.
fn available_since(it: &Operated) -> Value {
    let one = it.available("one");
    let all = one["status"]["conditions"].as_array().unwrap();
    let found = all.iter().find(|it| it["type"] == "Available").unwrap();
    found["lastTransitionTime"].clone()
}

fn deleted(it: &Operated) {
    let file = root().join("deploy/etcd-operator.yaml");
    let begun = Instant::now();
    let gap = longest_gap(it, "one", || {
        it.kubectl(&["delete", "-f", file.to_str().unwrap()]).good();
        it.gone(&["namespace", "etcd-operator"]);
        pass(3);
    });
    println!(
        "the file deleted in {:.1?}: longest time between two writes {gap:.1?}",
        begun.elapsed()
    );
    assert!(gap < Duration::from_secs(2), "{gap:?}");
    assert!(it.processes("etcd-operator controller").is_empty());
}

/// What was asked for meanwhile is done, and the status goes on.
fn applied_again(it: &Operated) {
    let since = available_since(it);
    it.patch("one", r#"{"spec":{"clients":[{"name":"late"}]}}"#);
    pass(2);
    assert!(!it.kubectl(&["get", "secret", "one-client-late"]).ok);
    it.install();
    it.eventually("what was asked for meanwhile", SOON, || {
        it.try_json(&["get", "secret", "one-client-late"])
    });
    let lease = it.eventually("a Lease", SOON, || {
        it.try_json(&["get", "lease", "-n", "etcd-operator", "etcd-operator"])
    });
    assert_eq!(lease["spec"]["holderIdentity"], "edge1", "{lease}");
    it.eventually("the status of what is asked for now", SOON, || {
        let one = it.cluster("one");
        let generation = &one["metadata"]["generation"];
        (one["status"]["observedGeneration"] == *generation).then_some(())
    });
    assert_eq!(available_since(it), since, "it was available all the while");
}

/// `etcd-operator manifests --image IMAGE | kubectl apply -f -`
fn another_image(it: &Operated) {
    let reference = &it.images.operator.as_ref().unwrap().reference;
    it.tag_image(reference, NEWER);
    let mut made = Command::new(env!("CARGO_BIN_EXE_etcd-operator"));
    let made = output(made.args(["manifests", "--image", NEWER])).good();
    let gap = longest_gap(it, "one", || {
        let applied = it.apply(&made);
        let changed: Vec<&str> = applied
            .lines()
            .filter(|it| !it.ends_with(" unchanged"))
            .collect();
        assert_eq!(changed, ["daemonset.apps/etcd-operator configured"]);
        let rolled = ["-n", "etcd-operator", "rollout", "status", "--timeout=90s"];
        let rolled = [&rolled[..], &["daemonset/etcd-operator"]].concat();
        it.kubectl(&rolled).good();
        let acting = it.acting();
        assert_eq!(acting["spec"]["containers"][0]["image"], NEWER);
    });
    println!("another image: longest time between two writes {gap:.1?}");
    assert!(gap < Duration::from_secs(2), "{gap:?}");
    it.patch("one", r#"{"spec":{"clients":[]}}"#);
    it.eventually("the new one to act", SOON, || {
        let one = it.cluster("one");
        let generation = &one["metadata"]["generation"];
        (one["status"]["observedGeneration"] == *generation).then_some(())
    });
}

fn the_next_member_has_its_guard(it: &Operated) {
    it.kubectl(&["delete", "pod", "one-0"]).good();
    let pod = it.ready("default", "one-0");
    assert_eq!(pod["spec"]["initContainers"][0]["image"], NEWER);
    it.available("one");
}
