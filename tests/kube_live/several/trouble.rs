//! What stops several members in a namespace, and what takes their data away: told, and nobody else is touched for it.

use std::time::Duration;

use serde_json::{Value, json};

use super::{GROWS_WITHIN, MEMBERS, id_of, pods, resize, whole};
use crate::claims::directory;
use crate::lab::{Options, SOON, is_true};
use crate::operated::{Operated, copy, document};
use crate::processes::{Frozen, etcd_of, restarts_in};
use crate::stream::{Stream, assert_written};
use crate::writer::restarts;

/// So many claims, and no more.
fn quota(it: &Operated, claims: u32) {
    let claims = claims.to_string();
    let body = json!({
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "claims", "namespace": "default"},
        "spec": {"hard": {"persistentvolumeclaims": claims}},
    });
    it.apply(&body.to_string());
    it.eventually("the quota in force", SOON, || {
        let now = it.try_json(&["get", "resourcequota", "claims"])?;
        (now["status"]["hard"]["persistentvolumeclaims"] == claims.as_str()).then_some(())
    });
}

/// Waits until so many voters serve of a cluster that has not all it asked for.
#[track_caller]
fn stuck(it: &Operated, voters: usize, words: &str) {
    let mut said = String::new();
    it.eventually(
        &format!("{voters} that serve, and {words}"),
        GROWS_WITHIN,
        || {
            let now = it.try_json(&["get", "etcdcluster", "shop"])?;
            let status = &now["status"];
            let members = status["members"].as_array()?;
            let serve = |it: &&Value| it["role"] == "voter" && it["serving"] == true;
            let line = format!("{members:?} {} {}", status["plan"], status["conditions"]);
            if line != said {
                println!("{line}");
                said.clone_from(&line);
            }
            let serving = members.iter().filter(serve).count() == voters;
            (serving && is_true(&now, "Available") && line.contains(words)).then_some(())
        },
    );
}

/// Members that there is no room for stay learners: they count for nothing, and the others serve.
#[test]
fn a_quota_stops_the_third_and_later_the_fifth() {
    let Some(it) = Operated::up() else {
        return;
    };
    quota(&it, 2);
    it.apply(&document("EtcdCluster", "shop", "{size: 3}"));
    stuck(&it, 2, "shop-2: ");
    stuck(&it, 2, "exceeded quota");
    it.put("shop", "kept", "1");
    quota(&it, 4);
    whole(&it, 3);

    resize(&it, 7);
    stuck(&it, 4, "exceeded quota");
    it.put("shop", "kept", "2");
    resize(&it, 3);
    whole(&it, 3);
    it.eventually("three Pods", GROWS_WITHIN, || {
        (pods(&it) == MEMBERS).then_some(())
    });
    assert_eq!(it.get("shop", "kept"), "2");
}

/// The only member is not restarted before others serve: with several its timing is another one.
#[test]
fn sizes_go_up_and_down_under_a_writer() {
    let Some(it) = Operated::up() else {
        return;
    };
    it.apply(&document("EtcdCluster", "shop", "{size: 1}"));
    it.available("shop");
    // By then it knows no other one: whoever serves answers at the Service.
    let stream = Stream::start(&it, "shop", &["shop-client"]);
    let first = it.uid("pod", "shop-0");
    resize(&it, 3);
    it.eventually("a second voter", GROWS_WITHIN, || {
        let now = it.try_json(&["get", "etcdcluster", "shop"])?;
        let members = now["status"]["members"].as_array()?;
        let voters = members.iter().filter(|it| it["role"] == "voter").count();
        let again = it.uid("pod", "shop-0") != first;
        assert!(!again || voters > 1, "the only voter was restarted");
        (voters > 1).then_some(())
    });
    whole(&it, 3);
    let (grown, gap) = stream.end();
    println!("1 -> 3: {grown} writes, longest gap {gap:?}");
    assert!(gap < Duration::from_secs(2), "{gap:?}");
    assert_written(&it, "shop", grown);

    let stream = Stream::start(&it, "shop", &MEMBERS);
    resize(&it, 1);
    whole(&it, 1);
    let (shrunk, gap) = stream.end();
    println!("3 -> 1: {shrunk} writes, longest gap {gap:?}");
    assert!(gap < Duration::from_secs(2), "{gap:?}");
    resize(&it, 3);
    whole(&it, 3);
    let stream = Stream::start(&it, "shop", &MEMBERS);
    resize(&it, 0);
    it.eventually("no Pod", GROWS_WITHIN, || {
        pods(&it).is_empty().then_some(())
    });
    resize(&it, 3);
    whole(&it, 3);
    let (acknowledged, gap) = stream.end();
    println!("{acknowledged} writes, longest gap {gap:?}");
    assert_written(&it, "shop", acknowledged);
}

/// While their Pods hold them nothing is lost; when all have gone, nobody founds a new cluster in the place of the data.
#[test]
fn all_claims_are_deleted() {
    let Some(it) = Operated::up() else {
        return;
    };
    let spec = "{size: 3, backup: {destinations: [{local: {}}]}}";
    it.apply(&document("EtcdCluster", "shop", spec));
    let before = whole(&it, 3);
    it.put("shop", "kept", "1");
    it.snapshot("shop", "taken");
    let claims = MEMBERS.map(|it| format!("pvc/data-{it}"));
    let mut delete = vec!["delete", "--wait=false"];
    delete.extend(claims.iter().map(String::as_str));
    it.kubectl(&delete).good();
    it.eventually("all three to be told", SOON, || {
        let told = it.says_now("shop", "Degraded")?;
        let words = told["message"].as_str()?;
        let all = MEMBERS.iter().all(|name| words.contains(name));
        (told["reason"] == "ClaimDeleted" && all).then_some(())
    });
    let now = whole(&it, 3);
    for member in MEMBERS {
        assert_eq!(id_of(&now, member), id_of(&before, member));
    }

    let was = MEMBERS.map(|name| it.uid("pvc", &format!("data-{name}")));
    let mut all = vec!["delete", "pods", "--wait=false"];
    all.extend(MEMBERS);
    it.kubectl(&all).good();
    for (name, was) in MEMBERS.iter().zip(&was) {
        it.eventually("another claim", GROWS_WITHIN, || {
            let now = it.uid("pvc", &format!("data-{name}"))?;
            (Some(&now) != was.as_ref()).then_some(())
        });
    }
    it.says("shop", "Degraded", "DataDirMissing");
    it.restored("shop", "back");
    whole(&it, 3);
    assert_eq!(it.get("shop", "kept"), "1");
}

/// Who stands still gets no clients, and is not ended for it.
#[test]
fn a_frozen_member_is_out_of_the_service_until_it_answers() {
    let Some(it) = Operated::up() else {
        return;
    };
    it.apply(&document("EtcdCluster", "shop", "{size: 3}"));
    let before = whole(&it, 3);
    let behind = |wanted: &[&str]| {
        let of_it = "kubernetes.io/service-name=shop-client";
        it.eventually(&format!("{wanted:?} behind the Service"), SOON, || {
            let slices = it.try_json(&["get", "endpointslices", "-l", of_it])?;
            let endpoints = slices["items"][0]["endpoints"].as_array()?.iter();
            let serving = endpoints.filter(|it| it["conditions"]["ready"] == true);
            let mut names: Vec<&str> = serving
                .filter_map(|it| it["targetRef"]["name"].as_str())
                .collect();
            names.sort_unstable();
            (names == wanted).then_some(())
        });
    };
    behind(&MEMBERS);
    let pod = it.json(&["get", "pod", "shop-1"]);
    let frozen = Frozen::new(vec![etcd_of(&pod)]);
    behind(&["shop-0", "shop-2"]);
    it.put("shop", "kept", "1");
    drop(frozen);
    behind(&MEMBERS);
    let after = whole(&it, 3);
    assert_eq!(id_of(&after, "shop-1"), id_of(&before, "shop-1"));
    let now = it.json(&["get", "pod", "shop-1"]);
    assert_eq!(now["metadata"]["uid"], pod["metadata"]["uid"]);
    assert_eq!(restarts_in(&now), Some(0), "it was ended");
}

/// It went while no operator was there. What `explain` says leads out of it.
#[test]
fn the_authority_of_three_is_lost() {
    let Some(it) = Operated::up() else {
        return;
    };
    it.apply(&document("EtcdCluster", "shop", "{size: 3}"));
    let before = whole(&it, 3);
    it.put("shop", "kept", "1");
    it.without_operator(|| {
        it.kubectl(&["delete", "secret", "shop-ca"]).good();
    });
    it.says("shop", "Degraded", "AuthorityMissing");
    assert_eq!(it.get("shop", "kept"), "1");
    let annotation = "etcd.edge-operator.io/new-authority";
    let annotate = |it: &Operated, word: &str| {
        let word = format!("{annotation}{word}");
        it.kubectl(&["annotate", "etcdcluster", "shop", &word])
            .good();
    };
    annotate(&it, "=accepted");
    let all = ["delete", "pod", "-l", "etcd.edge-operator.io/cluster=shop"];
    it.kubectl(&all).good();
    annotate(&it, "-");
    let now = whole(&it, 3);
    for member in MEMBERS {
        assert_eq!(id_of(&now, member), id_of(&before, member));
    }
    assert_eq!(it.get("shop", "kept"), "1");
    it.put("shop", "again", "1");
}

/// The data of another cluster's member lies where this one's was: it is told, and nobody starts on it. What the hold says
/// leads out of it.
#[test]
fn a_claim_holds_the_data_of_another_cluster() {
    let Some(it) = Operated::up() else {
        return;
    };
    it.apply(&document("EtcdCluster", "other", "{size: 1}"));
    it.available("other");
    it.put("other", "whose", "other");
    it.apply(&document("EtcdCluster", "shop", "{size: 3}"));
    let before = whole(&it, 3);
    it.put("shop", "whose", "shop");
    let own = it.path(1, &directory(&it, "data-shop-1"));
    let others = it.path(1, &directory(&it, "data-other-0"));
    it.kubectl(&["delete", "etcdcluster", "other"]).good();
    it.gone(&["pod", "other-0"]);
    it.without_operator(|| {
        it.kubectl(&["delete", "pod", "shop-1"]).good();
        std::fs::rename(&own, own.with_extension("old")).unwrap();
        copy(&others, &own);
    });
    let told = it.says("shop", "Degraded", "DocumentOfAnotherCluster");
    let words = told["message"].as_str().unwrap();
    assert!(words.starts_with("shop-1: "), "{words}");
    let plan = it.cluster("shop")["status"]["plan"].clone();
    let next = plan["nextStep"].as_str().unwrap();
    assert!(next.contains("delete its claim and its Pod"), "{next}");
    assert_eq!(it.get("shop", "whose"), "shop");

    it.kubectl(&["delete", "pvc/data-shop-1", "pod/shop-1", "--wait=false"])
        .good();
    it.eventually("another member in its place", GROWS_WITHIN, || {
        (id_of(&whole(&it, 3), "shop-1") != id_of(&before, "shop-1")).then_some(())
    });
    assert_eq!(it.get("shop", "whose"), "shop");
}

/// The kubelet evicts it, because the disk of its node is full. Its claim lies on that node, so it waits for it, and the
/// others serve.
#[test]
fn a_member_that_is_evicted_is_back_on_its_claim() {
    let Some(it) = Operated::up_with(&Options {
        nodes: 3,
        is_fast: true,
        ..Options::default()
    }) else {
        return;
    };
    it.apply(&document("EtcdCluster", "shop", "{size: 3}"));
    let before = whole(&it, 3);
    let stream = Stream::start(&it, "shop", &MEMBERS);
    let on = |name: &&str| it.node_of(name).as_deref() == Some("edge2");
    let name = MEMBERS.into_iter().find(on).unwrap();
    let was = it.uid("pod", name);
    it.disk_fill(2);
    it.eventually("the kubelet to evict it", SOON, || {
        let events = it.events("default");
        events.iter().any(|it| it.0 == "Evicted").then_some(())
    });
    it.disk_empty(2);
    it.eventually("the pressure to end", SOON, || {
        it.node_is(2, "DiskPressure", "False").then_some(())
    });
    it.eventually("another Pod", GROWS_WITHIN, || {
        (it.uid("pod", name)? != was.clone()?).then_some(())
    });
    let after = whole(&it, 3);
    for name in MEMBERS {
        assert_eq!(id_of(&after, name), id_of(&before, name), "{name}");
    }
    let (acknowledged, gap) = stream.end();
    println!("{acknowledged} writes, longest gap {gap:?}");
    assert_written(&it, "shop", acknowledged);
}

/// The volumes of k3s share the node's disk, whatever their claims ask for. Those who find no room wait, and take none of
/// what those who serve need.
#[test]
fn seven_members_do_not_fit_on_the_nodes_disk() {
    let Some(it) = Operated::up() else {
        return;
    };
    it.mount_disk(480, "/var/lib/rancher/k3s/storage");
    it.apply(&document("EtcdCluster", "shop", "{size: 1}"));
    it.available("shop");
    let stream = Stream::start(&it, "shop", &["shop-client"]);
    resize(&it, 7);
    stuck(&it, 2, "the disk is too full");
    it.put("shop", "kept", "1");
    assert_eq!(restarts(&it, "shop"), 0, "the first member had to end");
    resize(&it, 1);
    whole(&it, 1);
    it.eventually("one Pod", GROWS_WITHIN, || {
        (pods(&it) == ["shop-0"]).then_some(())
    });
    let (acknowledged, gap) = stream.end();
    println!("{acknowledged} writes, longest gap {gap:?}");
    assert_written(&it, "shop", acknowledged);
    assert_eq!(it.get("shop", "kept"), "1");
    assert_eq!(restarts(&it, "shop"), 0, "the first member had to end");
}
