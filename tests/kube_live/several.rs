//! Several members on a node: a cluster is born as one, grows, loses a Pod, and shrinks. Every key that was acknowledged is
//! there at the end.

mod trouble;

use std::time::{Duration, Instant};

use etcd_operator::clock::parse_rfc3339;
use serde_json::{Value, json};

use crate::claims::{directory, manifests_in, snapshots_in};
use crate::lab::{SOON, is_true, root};
use crate::operated::{Operated, document};
use crate::processes::{restarts_in, started_again};
use crate::stream::{Stream, assert_written};

/// Of the cluster `shop`.
pub const MEMBERS: [&str; 3] = ["shop-0", "shop-1", "shop-2"];
/// Three Pods, one after the other, on a busy machine.
pub const GROWS_WITHIN: Duration = Duration::from_secs(180);

/// When a Pod was made, in seconds.
fn created(it: &Operated, pod: &str) -> i64 {
    let pod = it.json(&["get", "pod", pod]);
    let at = pod["metadata"]["creationTimestamp"].as_str().unwrap();
    parse_rfc3339(at).unwrap().0
}

fn resize(it: &Operated, size: u32) {
    it.patch("shop", &json!({"spec": {"size": size}}).to_string());
}

/// Waits until so many voters answer and nothing is left to do.
#[track_caller]
pub fn whole(it: &Operated, size: usize) -> Value {
    let begin = Instant::now();
    let mut said = String::new();
    let status = it.eventually(&format!("{size} members"), GROWS_WITHIN, || {
        let now = it.try_json(&["get", "etcdcluster", "shop"])?;
        let status = &now["status"];
        let members = status["members"].as_array().map_or(&[][..], Vec::as_slice);
        let words = format!("{members:?} {}", status["plan"]);
        if words != said {
            println!("{:?} {words}", begin.elapsed());
            said = words;
        }
        let voters = members
            .iter()
            .filter(|it| it["role"] == "voter" && it["serving"] == true);
        let whole = voters.count() == size && members.len() == size;
        (whole && is_true(&now, "Available") && !is_true(&now, "Progressing"))
            .then(|| status.clone())
    });
    println!("{size} members after {:?}", begin.elapsed());
    status
}

pub fn id_of(status: &Value, member: &str) -> String {
    let members = status["members"].as_array().unwrap();
    let found = members.iter().find(|it| it["name"] == member).unwrap();
    found["id"].as_str().unwrap().to_owned()
}

fn pods(it: &Operated) -> Vec<String> {
    let selector = "etcd.edge-operator.io/cluster=shop,app.kubernetes.io/component=member";
    let all = it.json(&["get", "pods", "-l", selector]);
    let names = all["items"].as_array().unwrap().iter();
    names
        .map(|it| it["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

/// When a member's etcd has said this first.
fn said_at(it: &Operated, pod: &str, what: &str) -> String {
    let log = it.kubectl(&["logs", pod]).good();
    let line = log.lines().find(|it| it.contains(what)).unwrap();
    let line: Value = serde_json::from_str(line).unwrap();
    line["ts"].as_str().unwrap().to_owned()
}

#[test]
fn a_cluster_grows_to_three_survives_a_lost_pod_and_shrinks_to_one() {
    let Some(it) = Operated::up() else {
        return;
    };
    it.apply(&document("EtcdCluster", "shop", "{size: 3}"));
    let status = whole(&it, 3);
    // Where both start at once, each waits for the other.
    let begun = said_at(&it, "shop-2", "starting an etcd server");
    let serves = said_at(&it, "shop-1", "now serving peer/client/metrics");
    assert!(serves < begun, "shop-1 {serves}, shop-2 {begun}");
    it.put("shop", "grown", "3");
    let before = id_of(&status, "shop-1");

    it.kubectl(&["delete", "pod", "shop-1", "--grace-period=0", "--force"])
        .good();
    it.put("shop", "while-one-is-away", "1");
    let status = whole(&it, 3);
    assert_eq!(
        id_of(&status, "shop-1"),
        before,
        "the same member on its own claim"
    );

    resize(&it, 1);
    whole(&it, 1);
    it.eventually("the Pods of two members to go", GROWS_WITHIN, || {
        (pods(&it) == ["shop-0"]).then_some(())
    });
    for (key, value) in [("grown", "3"), ("while-one-is-away", "1")] {
        assert_eq!(it.get("shop", key), value);
    }

    // Both claims hold data of members that the cluster has removed.
    resize(&it, 3);
    let status = whole(&it, 3);
    assert_ne!(id_of(&status, "shop-1"), before);
    it.put("shop", "again", "1");
}

/// What the old operators lost everything at.
#[test]
fn a_lost_claim_is_replaced_and_the_loss_of_all_pods_loses_nothing() {
    let Some(it) = Operated::up() else {
        return;
    };
    let example = root().join("deploy/examples/three-members.yaml");
    it.kubectl(&["apply", "-f", example.to_str().unwrap()])
        .good();
    let before = id_of(&whole(&it, 3), "shop-1");
    let made = ["shop-0", "shop-1", "shop-2"].map(|pod| created(&it, pod));
    assert!(
        made.iter().all(|it| (it - made[0]).abs() <= 3),
        "images and volumes are fetched one after the other: {made:?}"
    );
    it.put("shop", "kept", "1");

    it.kubectl(&["delete", "pvc", "data-shop-1", "--wait=false"])
        .good();
    it.says("shop", "Degraded", "ClaimDeleted");
    it.kubectl(&["delete", "pod", "shop-1"]).good();
    it.put("shop", "while-two-serve", "1");
    it.eventually("another member in its place", GROWS_WITHIN, || {
        (id_of(&whole(&it, 3), "shop-1") != before).then_some(())
    });

    // Edited twice before anything of the first came to its end.
    resize(&it, 5);
    it.put("shop", "while-it-grows", "1");
    resize(&it, 3);
    whole(&it, 3);
    it.eventually("three Pods", GROWS_WITHIN, || {
        (pods(&it).len() == 3).then_some(())
    });

    let all = [
        "delete",
        "pods",
        "shop-0",
        "shop-1",
        "shop-2",
        "--grace-period=0",
        "--force",
    ];
    it.kubectl(&all).good();
    it.eventually("none of the old ones", GROWS_WITHIN, || it.pod_uid("shop"));
    whole(&it, 3);
    for key in ["kept", "while-two-serve", "while-it-grows"] {
        assert_eq!(it.get("shop", key), "1");
    }

    // Asleep and awake with what all of them have.
    resize(&it, 0);
    it.eventually("no Pod", GROWS_WITHIN, || {
        pods(&it).is_empty().then_some(())
    });
    resize(&it, 3);
    let slept = whole(&it, 3);
    assert_eq!(it.get("shop", "kept"), "1");

    it.reboot();
    for member in MEMBERS {
        started_again(&it, member);
    }
    let booted = whole(&it, 3);
    for member in MEMBERS {
        assert_eq!(id_of(&booted, member), id_of(&slept, member));
    }
    assert_eq!(it.get("shop", "kept"), "1");
}

/// Who failed stays in the list, and is told, until a person says otherwise.
#[test]
fn a_member_that_failed_is_held_where_the_document_says_so() {
    let Some(it) = Operated::up() else {
        return;
    };
    let spec = "{size: 3, recovery: {member: hold}}";
    it.apply(&document("EtcdCluster", "shop", spec));
    let before = id_of(&whole(&it, 3), "shop-1");
    it.put("shop", "kept", "1");
    it.kubectl(&["delete", "pvc", "data-shop-1", "--wait=false"])
        .good();
    it.says("shop", "Degraded", "ClaimDeleted");
    it.kubectl(&["delete", "pod", "shop-1"]).good();
    let told = it.says("shop", "Degraded", "MemberFailed");
    // Its guard looks again and again: that changes nothing.
    it.eventually("three looks of its guard", GROWS_WITHIN, || {
        let pod = it.try_json(&["get", "pod", "shop-1"])?;
        let looks = restarts_in(&pod)?;
        let now = it.says_now("shop", "Degraded")?;
        // The first one was being made when this was told.
        assert!(looks < 1 || now["message"] == told["message"], "{now}");
        (looks >= 3).then_some(())
    });
    let listed = it.etcdctl("shop", &["member", "list"]);
    assert!(listed.contains(before.as_str()), "{listed}");
    it.put("shop", "kept", "2");

    it.patch("shop", r#"{"spec": {"recovery": {"member": "replace"}}}"#);
    it.eventually("another member in its place", GROWS_WITHIN, || {
        (id_of(&whole(&it, 3), "shop-1") != before).then_some(())
    });
    assert_eq!(it.get("shop", "kept"), "2");
}

/// All three Pods are there before the first member is born, and are made anew.
#[test]
fn three_whose_image_was_wrong_are_born_once_it_is_corrected() {
    let Some(it) = Operated::up() else {
        return;
    };
    let spec = "{size: 3, image: 'quay.io/coreos/etcd:nowhere'}";
    it.apply(&document("EtcdCluster", "shop", spec));
    it.says("shop", "Degraded", "ImageUnavailable");
    it.patch("shop", r#"{"spec": {"image": null}}"#);
    whole(&it, 3);
    it.put("shop", "kept", "1");
}

/// The first of the members that the worker knows, and who leads, are away one after the other, and so is the operator.
#[test]
fn snapshots_go_on_whichever_member_goes() {
    let Some(it) = Operated::up() else {
        return;
    };
    let backup = "{interval: 30s, destinations: [{local: {keep: 100}}]}";
    let spec = format!("{{size: 3, backup: {backup}}}");
    it.apply(&document("EtcdCluster", "shop", &spec));
    whole(&it, 3);
    it.says("shop", "BackupHealthy", "Verified");
    let place = it.path(1, &directory(&it, "shop-snapshots"));
    let manifests = || snapshots_in(&place.join("shop"));
    let stream = Stream::start(&it, "shop", &MEMBERS);
    let leads = |status: &Value| {
        let members = status["members"].as_array().unwrap();
        let leader = members.iter().find(|it| it["leader"] == true).unwrap();
        leader["name"].as_str().unwrap().to_owned()
    };
    // The leader has enough to do.
    let status = whole(&it, 3);
    let leader = id_of(&status, &leads(&status));
    let begun = manifests_in(&place.join("shop"));
    let taken_from = it.eventually("a snapshot more", 2 * SOON, || {
        let mut now = manifests_in(&place.join("shop")).into_iter();
        let next = now.find(|it| !begun.contains(it))?;
        let manifest: Value = serde_json::from_slice(&std::fs::read(next).ok()?).ok()?;
        manifest["memberID"].as_str().map(str::to_owned)
    });
    assert_ne!(taken_from, leader);
    for first in [true, false] {
        let status = whole(&it, 3);
        let gone = if first {
            MEMBERS[0].to_owned()
        } else {
            leads(&status)
        };
        let before = status["backups"]["lastVerified"]["revision"].clone();
        it.without_operator(|| {
            let begun = manifests();
            it.kubectl(&["delete", "pod", &gone, "--grace-period=0", "--force"])
                .good();
            it.eventually("two snapshots more", 2 * SOON, || {
                (manifests() >= begun + 2).then_some(())
            });
        });
        let after = whole(&it, 3)["backups"]["lastVerified"]["revision"].clone();
        println!("without {gone}: revision {before} to {after}");
        assert!(after.as_u64() > before.as_u64());
    }
    let (acknowledged, gap) = stream.end();
    println!("{acknowledged} writes, longest gap {gap:?}");
    assert_written(&it, "shop", acknowledged);
}

/// Nobody wrote down that this member was removed, and its data lies on its claim.
#[test]
fn a_member_that_was_removed_by_hand_joins_anew() {
    let Some(it) = Operated::up() else {
        return;
    };
    it.apply(&document("EtcdCluster", "shop", "{size: 3}"));
    let before = id_of(&whole(&it, 3), "shop-1");
    it.put("shop", "kept", "1");
    it.etcdctl("shop", &["member", "remove", &before]);
    it.eventually("another member in its place", GROWS_WITHIN, || {
        (id_of(&whole(&it, 3), "shop-1") != before).then_some(())
    });
    assert_eq!(it.get("shop", "kept"), "1");

    // Each would look for the others in vain.
    let port = json!({"spec": {"network": {"peerPort": 12380}}}).to_string();
    let asked = ["patch", "etcdcluster", "shop", "--type=merge", "-p", &port];
    let said = it.kubectl(&asked).stderr;
    let why = "clientPort and peerPort of several members cannot be changed";
    assert!(said.contains(why), "{said}");
}

/// One member begins a new cluster with the data of the snapshot, and the others join it; what they held lies aside.
#[test]
fn a_restore_in_place_brings_three_members_back() {
    let Some(it) = Operated::up() else {
        return;
    };
    let backup = "backup: {destinations: [{local: {}}]}";
    let service = "service: {type: NodePort, nodePort: 32379}"; // the copy gets another port
    let spec = format!("{{size: 3, {service}, {backup}}}");
    it.apply(&document("EtcdCluster", "shop", &spec));
    let before = whole(&it, 3);
    it.put("shop", "kept", "before");
    it.snapshot("shop", "taken");
    it.put("shop", "kept", "after");
    it.put("shop", "later", "1");
    let told = it.restored("shop", "back");
    println!("{}", told["status"]);
    let status = whole(&it, 3);
    assert_eq!(it.get("shop", "kept"), "before");
    assert_eq!(
        it.get("shop", "later"),
        "",
        "what was written since is lost"
    );
    for member in MEMBERS {
        assert_ne!(id_of(&status, member), id_of(&before, member));
    }
    it.put("shop", "kept", "again");

    let spec = "{cluster: shop, into: copy}";
    it.apply(&document("EtcdRestore", "beside", spec));
    it.phase("etcdrestore", "beside", "Succeeded");
    it.eventually("three members of the copy", GROWS_WITHIN, || {
        let now = it.try_json(&["get", "etcdcluster", "copy"])?;
        let serves = |it: &&Value| it["role"] == "voter" && it["serving"] == true;
        let members = now["status"]["members"].as_array()?.iter();
        (members.filter(serves).count() == 3).then_some(())
    });
    assert_eq!(it.get("copy", "kept"), "before");
    it.kubectl(&["delete", "etcdcluster", "copy"]).good();

    // The one that began the cluster is replaced; then the data of another one's is restored again.
    it.kubectl(&["delete", "pvc", "data-shop-0", "--wait=false"])
        .good();
    it.says("shop", "Degraded", "ClaimDeleted");
    it.kubectl(&["delete", "pod", "shop-0"]).good();
    let old = id_of(&status, "shop-0");
    it.eventually("another member in its place", GROWS_WITHIN, || {
        (id_of(&whole(&it, 3), "shop-0") != old).then_some(())
    });

    // A restore does not begin where it would stop the others and wait for one in vain.
    it.kubectl(&["delete", "pvc", "data-shop-1", "--wait=false"])
        .good();
    it.says("shop", "Degraded", "ClaimDeleted");
    let serving = MEMBERS.map(|name| it.uid("pod", name));
    it.ask_for_restore("shop", "once-more");
    it.eventually("the restore to say why it waits", SOON, || {
        let asked = it.try_json(&["get", "etcdrestore", "once-more"])?;
        let said = asked["status"]["message"].as_str()?;
        said.contains("next: kubectl delete pod shop-1")
            .then_some(())
    });
    assert_eq!(MEMBERS.map(|name| it.uid("pod", name)), serving);
    it.kubectl(&["delete", "pod", "shop-1"]).good();
    it.phase("etcdrestore", "once-more", "Succeeded");
    whole(&it, 3);
    assert_eq!(it.get("shop", "kept"), "before");
}
