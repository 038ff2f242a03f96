//! Nodes that are drained: members are on nodes of their own, one of them goes at a time, and nothing that was acknowledged
//! is lost.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use crate::cluster::Output;
use crate::operated::{Operated, document};
use crate::several::{GROWS_WITHIN, MEMBERS, id_of, whole};
use crate::stream::{Stream, assert_written};

/// Of this cluster's Pods; a workload's own would come back elsewhere.
fn drain(it: &Operated, node: &str) -> Output {
    it.kubectl(&[
        "drain",
        node,
        "--ignore-daemonsets",
        "--delete-emptydir-data",
        "--pod-selector=etcd.edge-operator.io/cluster=shop",
        "--timeout=20s",
    ])
}

#[test]
fn of_three_nodes_one_is_drained_at_a_time() {
    let Some(it) = Operated::three_nodes() else {
        return;
    };
    it.apply(&document("EtcdCluster", "shop", "{size: 3}"));
    let before = whole(&it, 3);
    let on: BTreeSet<String> = MEMBERS.map(|member| it.node_of(member).unwrap()).into();
    assert_eq!(on.len(), 3, "each on a node of its own: {on:?}");

    let stream = Stream::start(&it, "shop", &MEMBERS);
    let members = before["members"].as_array().unwrap();
    let leads = |it: &&Value| it["leader"] == true;
    let leader = members.iter().find(leads).unwrap()["name"].as_str();
    let leader = leader.unwrap();
    let first = it.node_of(leader).unwrap();
    let uid = it.uid("pod", leader).unwrap();
    drain(&it, &first).good();
    it.eventually("a Pod that waits for its node", GROWS_WITHIN, || {
        let pod = it.try_json(&["get", "pod", leader])?;
        (pod["metadata"]["uid"] != uid.as_str() && pod["status"]["phase"] == "Pending")
            .then_some(())
    });
    let second = on.iter().find(|it| **it != first).unwrap();
    let refused = drain(&it, second);
    assert!(
        !refused.ok && refused.stderr.contains("disruption budget"),
        "{refused:?}"
    );
    it.kubectl(&["uncordon", second]).good();
    it.kubectl(&["uncordon", &first]).good();
    whole(&it, 3);

    drain(&it, second).good();
    it.kubectl(&["uncordon", second]).good();
    // Its Pod is there a moment later.
    it.eventually("the members of before", GROWS_WITHIN, || {
        let after = whole(&it, 3);
        let same = |member: &&str| id_of(&after, member) == id_of(&before, member);
        MEMBERS.iter().all(same).then_some(())
    });
    let (acknowledged, gap) = stream.end();
    println!("two nodes drained: {acknowledged} writes, longest gap {gap:?}");
    assert_written(&it, "shop", acknowledged);
    assert!(gap < Duration::from_secs(5), "{gap:?}");
}
