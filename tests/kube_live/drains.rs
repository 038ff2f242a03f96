//! Nodes that are drained: members are on nodes of their own, one of them goes at a time, and nothing that was acknowledged
//! is lost.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster::Output;
use crate::operated::{Operated, document};
use crate::several::{GROWS_WITHIN, MEMBERS, id_of, whole};
use crate::stream::{Stream, assert_written};

/// A Pod's grace.
const LEAVES_WITHIN: &str = "60s";

/// Of this cluster's Pods; a workload's own would come back elsewhere.
fn drain(it: &Operated, node: &str, within: &str) -> Output {
    it.kubectl(&[
        "drain",
        node,
        "--ignore-daemonsets",
        "--delete-emptydir-data",
        "--pod-selector=etcd.edge-operator.io/cluster=shop",
        "--timeout",
        within,
    ])
}

#[test]
fn three_nodes_are_drained_in_turn() {
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
    // The disruption controller does not know the kind of this owner for up to a minute.
    it.eventually("the budget to be counted", GROWS_WITHIN, || {
        let budget = it.try_json(&["get", "poddisruptionbudget", "shop"])?;
        (budget["status"]["disruptionsAllowed"] == 1).then_some(())
    });
    let begun = Instant::now();
    drain(&it, &first, LEAVES_WITHIN).good();
    println!("the leader left after {:.1?}", begun.elapsed());
    it.eventually("a Pod that waits for its node", GROWS_WITHIN, || {
        let pod = it.try_json(&["get", "pod", leader])?;
        (pod["metadata"]["uid"] != uid.as_str() && pod["status"]["phase"] == "Pending")
            .then_some(())
    });
    let second = on.iter().find(|it| **it != first).unwrap();
    let refused = drain(&it, second, "5s");
    assert!(
        !refused.ok && refused.stderr.contains("disruption budget"),
        "{refused:?}"
    );
    it.kubectl(&["uncordon", second]).good();
    it.kubectl(&["uncordon", &first]).good();
    whole(&it, 3);

    for node in on.iter().filter(|it| **it != first) {
        drain(&it, node, LEAVES_WITHIN).good();
        it.kubectl(&["uncordon", node]).good();
        // Its Pod is there a moment later.
        it.eventually("the members of before", GROWS_WITHIN, || {
            let after = whole(&it, 3);
            let same = |member: &&str| id_of(&after, member) == id_of(&before, member);
            MEMBERS.iter().all(same).then_some(())
        });
    }
    let (acknowledged, gap) = stream.end();
    println!("three nodes drained: {acknowledged} writes, longest gap {gap:?}");
    assert_written(&it, "shop", acknowledged);
    assert!(gap < Duration::from_secs(5), "{gap:?}");
}
