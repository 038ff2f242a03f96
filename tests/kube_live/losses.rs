//! Nodes that are lost: a member of one that is away for good is replaced on another node, and a member is left alone as long
//! as it, or its node, is heard of.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::lab::{SOON, is_true};
use crate::operated::{Operated, document, local_volume, on_volume};
use crate::processes::started_again;
use crate::several::{MEMBERS, id_of, whole};
use crate::stream::{Stream, assert_written};

/// The grace, what Kubernetes needs to see that a node is away, and a member that joins.
const REPLACED_WITHIN: Duration = Duration::from_secs(300);

fn number_of(node: &str) -> u32 {
    node.trim_start_matches("edge").parse().unwrap()
}

fn row<'a>(status: &'a Value, member: &str) -> &'a Value {
    let mut members = status["members"].as_array().unwrap().iter();
    members.find(|it| it["name"] == member).unwrap()
}

/// Three members on nodes of their own, and what is told of them.
fn three_on_three() -> Option<(Operated, Value)> {
    let it = Operated::three_nodes()?;
    let spec = "{size: 3, recovery: {graceMinutes: 1}}";
    it.apply(&document("EtcdCluster", "shop", spec));
    let status = whole(&it, 3);
    Some((it, status))
}

/// The backup worker comes to a node without the control plane. The node, and the member on it.
fn beside_the_worker(it: &Operated) -> (&'static str, String) {
    it.kubectl(&["cordon", "edge1"]).good();
    let backup = r#"{"spec": {"backup": {"destinations": [{"local": {}}]}}}"#;
    it.patch("shop", backup);
    it.snapshot("shop", "first");
    it.kubectl(&["uncordon", "edge1"]).good();
    let node = it.node_of("shop-backup").unwrap();
    let mut all = MEMBERS.into_iter();
    let member = all.find(|name| it.node_of(name).as_deref() == Some(&node));
    (member.unwrap(), node)
}

/// Nobody takes a snapshot while the node of the claim is away, and that is said. With the claim given up, it goes on
/// elsewhere.
fn snapshots_go_on_without(it: &Operated, node: &str) {
    it.eventually("the silent worker's node to be told", SOON, || {
        let told = it.says_now("shop", "BackupHealthy")?;
        let words = told["message"].as_str()?;
        (told["status"] == "False" && words.contains(node)).then(|| println!("{words}"))
    });
    // As `etcd-operator explain SnapshotFailed` says.
    it.kubectl(&["delete", "pod", "shop-backup", "--force"])
        .good();
    it.kubectl(&["delete", "pvc", "shop-snapshots"]).good();
    it.eventually("a worker on another node", REPLACED_WITHIN, || {
        let now = it.node_of("shop-backup")?;
        (now != node).then_some(())
    });
    it.snapshot("shop", "second");
}

#[test]
fn a_member_of_a_lost_node_is_replaced_on_another_one() {
    let Some((it, before)) = three_on_three() else {
        return;
    };
    // As in the README.
    let rows = r#"jsonpath={range .status.members[*]}{.name} {.role} {.node} leader={.leader} {.claim}{"\n"}{end}"#;
    for shown in [&["get", "etcd"][..], &["get", "etcd", "shop", "-o", rows]] {
        println!("{}", it.kubectl(shown).good());
    }
    let (lost, node) = beside_the_worker(&it);
    let number = number_of(&node);

    // Its kubelet is away, and the member goes on.
    it.kubelet_stop(number);
    it.eventually("the node to be called away", REPLACED_WITHIN, || {
        it.node_is(number, "Ready", "Unknown").then_some(())
    });
    // As where its kubelet went before the member was ready: then the Pod tells nothing of its node.
    let unready = json!({"status": {"conditions": [{"type": "Ready", "status": "False",
        "reason": "ContainersNotReady", "message": "containers with unready status: [etcd]"}]}});
    let unready = unready.to_string();
    it.kubectl(&["patch", "pod", lost, "--subresource=status", "-p", &unready])
        .good();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(90) {
        let now = it.json(&["get", "etcdcluster", "shop"]);
        assert_eq!(id_of(&now["status"], lost), id_of(&before, lost));
        assert_eq!(now["status"]["readyMembers"], 3, "it answers by itself");
        std::thread::sleep(Duration::from_secs(5));
    }

    let stream = Stream::start(&it, "shop", &MEMBERS);
    it.cut(number);
    let begun = Instant::now();
    let told = it.says("shop", "Degraded", "NodeAway").to_string();
    assert!(told.contains(&node), "{told}");
    it.eventually("another member in its place", REPLACED_WITHIN, || {
        let now = it.try_json(&["get", "etcdcluster", "shop"])?;
        let members = now["status"]["members"].as_array()?;
        let serves = |it: &&Value| it["role"] == "voter" && it["serving"] == true;
        let own = members.iter().find(|it| it["name"] == lost)?;
        let other = own["id"] != id_of(&before, lost).as_str();
        (other && members.iter().filter(serves).count() == 3).then_some(())
    });
    println!("{lost} of {node}: replaced after {:.1?}", begun.elapsed());
    let next = it.node_of(lost).unwrap();
    assert_ne!(next, node);
    let (acknowledged, gap) = stream.end();
    println!("{acknowledged} writes, longest gap {gap:?}");
    assert_written(&it, "shop", acknowledged);
    snapshots_go_on_without(&it, &node);

    // What it held stays, by name and label, until a person says otherwise.
    let of_it = format!("etcd.edge-operator.io/given-up-by={lost}");
    let kept = it.json(&["get", "pvc", "-l", &of_it]);
    let names: Vec<&Value> = kept["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["metadata"]["name"])
        .collect();
    assert_eq!(json!(names), json!([format!("data-{lost}")]));
    let status = it.json(&["get", "etcdcluster", "shop"])["status"].clone();
    assert_eq!(status["keptClaims"], json!(names));
    assert_eq!(row(&status, lost)["claim"], format!("data-{lost}.1"));
    assert_eq!(row(&status, lost)["node"], next.as_str());

    // The node comes back: nobody of before does.
    it.heal(number);
    it.kubelet_start(number);
    it.eventually("the node", REPLACED_WITHIN, || {
        it.node_is(number, "Ready", "True").then_some(())
    });
    let after = whole(&it, 3);
    assert_eq!(it.node_of(lost), Some(next.clone()));
    assert_ne!(id_of(&after, lost), id_of(&before, lost));
    assert_written(&it, "shop", acknowledged);

    // As `etcd-operator explain ClaimGivenUp` says.
    it.kubectl(&["delete", "pvc", "-l", &of_it]).good();
    it.eventually("no claim to be listed as kept", SOON, || {
        let kept = it.cluster("shop")["status"]["keptClaims"].clone();
        kept.as_array().is_none_or(Vec::is_empty).then_some(())
    });
    let purged = whole(&it, 3);
    assert_eq!(id_of(&purged, lost), id_of(&after, lost));
    assert_eq!(it.node_of(lost), Some(next));
}

#[test]
fn without_a_majority_nothing_is_replaced_and_all_are_back_as_they_were() {
    let Some((it, before)) = three_on_three() else {
        return;
    };
    it.put("shop", "kept", "1");
    let on = |number: u32| {
        let node = format!("edge{number}");
        let members = MEMBERS.into_iter();
        members
            .filter(|name| row(&before, name)["node"] == node.as_str())
            .collect::<Vec<&str>>()
    };
    let away = [on(2), on(3)].concat();
    assert_eq!(away.len(), 2, "a node each: {before}");

    for number in [2, 3] {
        it.cut(number);
    }
    let told = it.says("shop", "Available", "QuorumLost").to_string();
    for name in &away {
        assert!(told.contains(name), "{told}");
    }
    let plan = it.cluster("shop")["status"]["plan"].clone();
    let next = plan["nextStep"].as_str().unwrap();
    assert!(next.contains("EtcdRestore"), "{next}");
    // Longer than the grace, and than Kubernetes needs to call the nodes away.
    for number in [2, 3] {
        it.eventually("the node to be called away", REPLACED_WITHIN, || {
            it.node_is(number, "Ready", "Unknown").then_some(())
        });
    }
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(90) {
        let plan = it.cluster("shop")["status"]["plan"].clone();
        assert_eq!(plan["hold"], "QuorumLost", "{plan}");
        std::thread::sleep(Duration::from_secs(5));
    }

    for number in [2, 3] {
        it.heal(number);
    }
    let ids = |status: &Value| MEMBERS.map(|it| id_of(status, it));
    assert_eq!(ids(&whole(&it, 3)), ids(&before));
    assert_eq!(it.get("shop", "kept"), "1");

    it.put("shop", "kept", "2");
    it.reboot_of(&[2, 3]);
    for name in away {
        started_again(&it, name);
    }
    assert_eq!(ids(&whole(&it, 3)), ids(&before));
    assert_eq!(it.get("shop", "kept"), "2");
}

/// A majority is lost for good, the founder with its claim among it: what `QuorumLost` and `status` say, a person does.
#[test]
fn a_lost_majority_is_restored_on_the_node_that_is_left() {
    let Some(it) = Operated::three_nodes() else {
        return;
    };
    let cordon = |verb: &str, nodes: &[&str]| {
        it.kubectl(&[&[verb], nodes].concat()).good();
    };
    cordon("cordon", &["edge1"]);
    let spec = "{size: 3, pod: {spread: required}}";
    it.apply(&document("EtcdCluster", "shop", spec));
    it.eventually("the founder's node", SOON, || it.node_of("shop-0"));
    cordon("uncordon", &["edge1"]);
    whole(&it, 3);
    cordon("cordon", &["edge2", "edge3"]);
    let backup = r#"{"spec": {"backup": {"destinations": [{"local": {}}]}}}"#;
    it.patch("shop", backup);
    it.put("shop", "kept", "1");
    it.snapshot("shop", "first");
    it.put("shop", "lost", "1");
    assert_eq!(it.node_of("shop-backup").as_deref(), Some("edge1"));
    cordon("uncordon", &["edge2", "edge3"]);

    it.cut(2);
    it.cut(3);
    it.says("shop", "Available", "QuorumLost");
    for number in [2, 3] {
        it.eventually("the node to be called away", REPLACED_WITHIN, || {
            it.node_is(number, "Ready", "Unknown").then_some(())
        });
    }
    let survivor = MEMBERS.map(|name| it.uid("pod", name));
    it.ask_for_restore("shop", "back");
    let says = |words: &[&str]| {
        it.eventually("the restore to say what helps", REPLACED_WITHIN, || {
            let asked = it.try_json(&["get", "etcdrestore", "back"])?;
            let said = asked["status"]["message"].as_str()?;
            words
                .iter()
                .all(|it| said.contains(it))
                .then(|| println!("{said}"))
        });
    };
    // Nobody is stopped for a restore that could not begin.
    says(&["stays as it is", "kubectl delete node edge2 edge3"]);
    assert_eq!(MEMBERS.map(|name| it.uid("pod", name)), survivor);
    it.kubectl(&["delete", "node", "edge2", "edge3"]).good();
    says(&["the node edge", "kubectl delete pvc data-shop-0"]);
    it.kubectl(&["delete", "pvc", "data-shop-0"]).good();
    it.phase("etcdrestore", "back", "Succeeded");
    it.available("shop");
    assert_eq!(it.get("shop", "kept"), "1");
    assert_eq!(it.get("shop", "lost"), "", "what was written since is lost");
}

/// The scheduler names what the document asks of a node beside the volume that is gone with one.
#[test]
fn a_member_of_a_node_that_was_deleted_is_replaced_where_the_document_lets_it() {
    let Some(it) = Operated::three_nodes() else {
        return;
    };
    it.kubectl(&["label", "node", "edge2", "edge3", "shop=yes"])
        .good();
    let spec = "{size: 3, recovery: {graceMinutes: 1}, pod: {nodeSelector: {shop: \"yes\"}}}";
    it.apply(&document("EtcdCluster", "shop", spec));
    let before = whole(&it, 3);
    let on = |node: &str| {
        let mut members = MEMBERS.to_vec();
        members.retain(|name| row(&before, name)["node"] == node);
        members
    };
    let node = ["edge2", "edge3"].into_iter().find(|it| on(it).len() == 1);
    let node = node.unwrap();
    is_replaced_without(&it, &before, (on(node)[0], node));
}

/// Of volumes that were there before, no claim says for which node the scheduler chose it.
#[test]
fn a_member_on_a_volume_that_was_made_by_hand_is_replaced_after_its_node_was_deleted() {
    let Some(it) = Operated::three_nodes() else {
        return;
    };
    for (number, place) in [1, 2, 3].into_iter().flat_map(|it| [(it, "a"), (it, "b")]) {
        let directory = format!("/var/lib/hand/{place}");
        std::fs::create_dir_all(it.path(number, &directory)).unwrap();
        let volume = local_volume("hand", &directory)
            .replace("[edge1]", &format!("[edge{number}]"))
            .replace(
                "PersistentVolume\nmetadata: {name: hand}",
                &format!("PersistentVolume\nmetadata: {{name: {place}{number}}}"),
            );
        it.apply(&volume);
    }
    let spec = format!(
        "{{size: 3, recovery: {{graceMinutes: 1}}, {}}}",
        on_volume("hand")
    );
    it.apply(&document("EtcdCluster", "shop", &spec));
    let before = whole(&it, 3);
    let mut members = MEMBERS.into_iter();
    let lost = members.find(|name| row(&before, name)["node"] != "edge1");
    let lost = lost.unwrap();
    let node = row(&before, lost)["node"].as_str().unwrap();
    is_replaced_without(&it, &before, (lost, node));
}

fn is_replaced_without(it: &Operated, before: &Value, (lost, node): (&str, &str)) {
    it.put("shop", "kept", "1");
    it.cut(number_of(node));
    it.kubectl(&["delete", "node", node]).good();
    let begun = Instant::now();
    it.eventually("another member in its place", REPLACED_WITHIN, || {
        let status = it.try_json(&["get", "etcdcluster", "shop"])?["status"].clone();
        let other = || id_of(&status, lost) != id_of(before, lost);
        (status["ready"] == "3/3" && other()).then_some(())
    });
    println!("{lost} of {node}: replaced after {:.1?}", begun.elapsed());
    assert_ne!(it.node_of(lost).as_deref(), Some(node));
    assert_eq!(it.get("shop", "kept"), "1");
}

/// The member counts on, with its data, until its node is back or another one has a place.
#[test]
fn a_member_that_no_other_node_has_a_place_for_is_not_removed() {
    let Some(it) = Operated::three_nodes() else {
        return;
    };
    let spec = "{size: 3, recovery: {graceMinutes: 1}, pod: {spread: required}}";
    it.apply(&document("EtcdCluster", "shop", spec));
    let before = whole(&it, 3);
    let node_of = |name: &str| row(&before, name)["node"].as_str().unwrap();
    // etcdctl runs in the first one's Pod.
    let mut others = MEMBERS.into_iter().skip(1);
    let member = others.find(|it| node_of(it) != "edge1").unwrap();
    let number = number_of(node_of(member));
    it.put("shop", "kept", "1");
    let is_away = || {
        it.eventually("why it is waited for", REPLACED_WITHIN, || {
            let told = it.says_now("shop", "Degraded")?;
            let words = told["message"].as_str()?;
            (told["reason"] == "NodeAway" && words.contains("no other node")).then_some(())
        });
    };
    it.cut(number);
    is_away();
    // Longer than the grace.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(100) {
        let listed = it.etcdctl("shop", &["member", "list"]);
        let id = id_of(&before, member);
        assert!(listed.contains(id.as_str()), "{listed}");
        std::thread::sleep(Duration::from_secs(5));
    }
    it.heal(number);
    let ids = |status: &Value| MEMBERS.map(|it| id_of(status, it));
    assert_eq!(ids(&whole(&it, 3)), ids(&before));
    assert_eq!(it.get("shop", "kept"), "1");

    // Two members on one node will do, as `etcd-operator explain NodeAway` says: the others' Pods let no other one in before they
    // are made anew.
    it.cut(number);
    it.patch("shop", r#"{"spec": {"pod": {"spread": "preferred"}}}"#);
    is_away();
    for other in MEMBERS.into_iter().filter(|it| *it != member) {
        it.kubectl(&["delete", "pod", other]).good();
        it.eventually("its next Pod", REPLACED_WITHIN, || {
            is_true(&it.try_json(&["get", "pod", other])?, "Ready").then_some(())
        });
    }
    it.eventually("another member in its place", REPLACED_WITHIN, || {
        let status = it.try_json(&["get", "etcdcluster", "shop"])?["status"].clone();
        let other = || id_of(&status, member) != id_of(&before, member);
        (status["ready"] == "3/3" && other()).then_some(())
    });
    assert_eq!(it.get("shop", "kept"), "1");
}

/// Its volume is on a node that is there: what keeps the Pod from it ends one day.
#[test]
fn a_member_whose_node_takes_no_pod_is_waited_for() {
    let Some((it, before)) = three_on_three() else {
        return;
    };
    let mut members = MEMBERS.into_iter();
    let member = members.find(|name| row(&before, name)["node"] != "edge1");
    let member = member.unwrap();
    let node = row(&before, member)["node"].as_str().unwrap();
    it.kubectl(&["taint", "node", node, "full=yes:NoExecute"])
        .good();
    it.eventually("its Pod to wait for the volume", REPLACED_WITHIN, || {
        let pod = it.try_json(&["get", "pod", member])?;
        let mut all = pod["status"]["conditions"].as_array()?.iter();
        let placed = all.find(|it| it["type"] == "PodScheduled")?;
        let said = placed["message"].as_str()?;
        said.contains("PersistentVolume's node affinity")
            .then_some(())
    });
    // Longer than the grace.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(100) {
        let status = it.cluster("shop")["status"].clone();
        assert_eq!(id_of(&status, member), id_of(&before, member));
        std::thread::sleep(Duration::from_secs(5));
    }
    it.kubectl(&["taint", "node", node, "full-"]).good();
    let ids = |status: &Value| MEMBERS.map(|it| id_of(status, it));
    assert_eq!(ids(&whole(&it, 3)), ids(&before));
}
