//! Another version of etcd for three members on a node, one after the other, under a client that writes all the while.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::images::{bad_etcd, version_of};
use crate::lab::{SOON, is_true, skip};
use crate::operated::{Operated, document};
use crate::several::MEMBERS;
use crate::stream::{Stream, assert_written, written};

/// A trial on a copy, and three times a restart and 30 s.
const ROLLS_WITHIN: Duration = Duration::from_secs(400);

/// Three members of the first of these lines; the images of all are on the node. With the versions.
fn born<const N: usize>(lines: [&str; N]) -> Option<(Operated, [String; N])> {
    let it = Operated::up()?;
    let images = lines.map(|line| it.images.etcd.get(line).cloned());
    if images.iter().any(Option::is_none) {
        skip("images of etcd are made of target/tools/etcd");
        return None;
    }
    let images = images.map(Option::unwrap);
    for image in &images {
        it.import(image);
    }
    let versions = images.each_ref().map(version_of);
    let spec = format!(
        "{{size: 3, version: {}, backup: {{destinations: [{{local: {{}}}}]}}}}",
        versions[0]
    );
    it.apply(&document("EtcdCluster", "shop", &spec));
    rolled(&it, &versions[0]);
    it.ready("default", "shop-backup");
    Some((it, versions))
}

fn ask_for(it: &Operated, version: &str) {
    it.patch("shop", &json!({"spec": {"version": version}}).to_string());
}

fn versions(status: &Value) -> Vec<String> {
    let members = status["members"].as_array().map_or(&[][..], Vec::as_slice);
    let version = |it: &Value| it["version"].as_str().unwrap_or_default().to_owned();
    members.iter().map(version).collect()
}

/// What the operator is doing, in words.
fn progress(cluster: &Value) -> &str {
    let all = cluster["status"]["conditions"].as_array();
    let found = all.and_then(|all| all.iter().find(|it| it["type"] == "Progressing"));
    found.map_or("", |it| it["message"].as_str().unwrap_or_default())
}

/// The status once `holds` of it; what the plan says is printed.
#[track_caller]
fn until(it: &Operated, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let (mut said, begun) = (String::new(), Instant::now());
    it.eventually(what, ROLLS_WITHIN, || {
        let now = it.try_json(&["get", "etcdcluster", "shop"])?;
        let status = &now["status"];
        let words = format!("{:?} {}", versions(status), progress(&now));
        if words != said {
            println!("{:?} {words}", begun.elapsed());
            said = words;
        }
        let seen = now["status"]["observedGeneration"] == now["metadata"]["generation"];
        (seen && holds(&now)).then(|| status.clone())
    })
}

/// Waits until three members have this version for good.
#[track_caller]
fn rolled(it: &Operated, version: &str) -> Value {
    until(it, &format!("{version} on three members"), |now| {
        let all = versions(&now["status"]);
        all.len() == 3
            && all.iter().all(|it| it == version)
            && is_true(now, "Available")
            && !is_true(now, "Progressing")
    })
}

fn outcomes(status: &Value) -> Vec<String> {
    let history = status["history"].as_array().map_or(&[][..], Vec::as_slice);
    let words = |it: &Value| {
        let text = |key: &str| it[key].as_str().unwrap().to_owned();
        format!("{} -> {} {}", text("from"), text("to"), text("outcome"))
    };
    history.iter().map(words).collect()
}

#[test]
fn a_patch_goes_over_three_members_and_a_bad_one_stops_at_the_first() {
    let Some((it, [older, newer])) = born(["3.6-before", "3.6"]) else {
        return;
    };
    let stream = Stream::start(&it, "shop", &MEMBERS);
    ask_for(&it, &newer);
    let status = rolled(&it, &newer);
    let (acknowledged, gap) = stream.end();
    println!("{older} -> {newer}: {acknowledged} writes, longest gap {gap:?}");
    assert_written(&it, "shop", acknowledged);
    let done = format!("{older} -> {newer} Done");
    assert_eq!(outcomes(&status).join(", "), done, "one change, of all");

    // It serves a copy, and ends on the data of the first that gets it.
    it.import(&bad_etcd(&it.dir, "3.6.95", "ends"));
    let stream = Stream::start(&it, "shop", &MEMBERS);
    ask_for(&it, "3.6.95");
    let failed = until(&it, "the hold UpgradeFailed and three that serve", |now| {
        let hold = &now["status"]["plan"]["hold"];
        let all = versions(&now["status"]);
        *hold == "UpgradeFailed"
            && is_true(now, "Available")
            && all.iter().all(|it| *it == newer)
            && outcomes(&now["status"]).len() == 2
    });
    let (acknowledged, gap) = stream.end();
    println!("a bad one: {acknowledged} writes, longest gap {gap:?}");
    assert_written(&it, "shop", acknowledged);
    let back = format!("{newer} -> 3.6.95 RolledBack");
    assert_eq!(outcomes(&failed), [done, back]);

    // Two edits at once: two members go, and the one that stays changes.
    let both = json!({"spec": {"version": older, "size": 1}});
    it.patch("shop", &both.to_string());
    let status = until(&it, "one member of the older version", |now| {
        versions(&now["status"]) == [older.clone()] && !is_true(now, "Progressing")
    });
    assert_eq!(outcomes(&status).len(), 3, "{status}");
    // And the reverse, the version while two members join.
    it.patch("shop", r#"{"spec": {"size": 3}}"#);
    until(&it, "a second member", |now| {
        versions(&now["status"]).len() > 1
    });
    ask_for(&it, &newer);
    rolled(&it, &newer);
    assert_written(&it, "shop", acknowledged);
}

/// While one member is of the older line nothing is raised, so the others go back without a word to etcd.
#[test]
fn a_newer_line_is_given_up_in_the_middle() {
    let Some((it, [older, newer])) = born(["3.6", "3.7"]) else {
        return;
    };
    let stream = Stream::start(&it, "shop", &MEMBERS);
    ask_for(&it, &newer);
    until(&it, "one member of the newer line for good", |now| {
        progress(now).contains("1 of 3 members")
    });
    ask_for(&it, &older);
    rolled(&it, &older);
    let (acknowledged, gap) = stream.end();
    println!("forth and back: {acknowledged} writes, longest gap {gap:?}");
    assert_written(&it, "shop", acknowledged);
}

/// To the newer line and back by etcd's own downgrade.
#[test]
fn a_newer_line_and_the_one_before_go_over_three_members() {
    let Some((it, [older, newer])) = born(["3.6", "3.7"]) else {
        return;
    };
    let stream = Stream::start(&it, "shop", &MEMBERS);
    ask_for(&it, &newer);
    rolled(&it, &newer);
    ask_for(&it, &older);
    let status = rolled(&it, &older);
    let (acknowledged, gap) = stream.end();
    println!("forth and back: {acknowledged} writes, longest gap {gap:?}");
    assert_written(&it, "shop", acknowledged);
    let done = |from: &str, to: &str| format!("{from} -> {to} Done");
    assert_eq!(
        outcomes(&status),
        [done(&older, &newer), done(&newer, &older)]
    );
}

fn uids(it: &Operated) -> Option<Vec<String>> {
    let uid = |name| {
        let pod = it.try_json(&["get", "pod", name])?;
        let stays = pod["metadata"]["deletionTimestamp"].is_null();
        stays.then(|| pod["metadata"]["uid"].as_str().map(str::to_owned))?
    };
    MEMBERS.into_iter().map(uid).collect()
}

/// Each makes the Pods anew; a wrong one stops at the first, and the next edit corrects it.
#[test]
fn edits_go_over_three_members_and_a_wrong_one_stops_at_the_first() {
    let Some((it, [version])) = born(["3.6"]) else {
        return;
    };
    let mirror = "quay.io/coreos/etcd:mine";
    it.tag_image(&it.images.etcd["3.6"].reference, mirror);
    for (what, edit) in [
        ("the image", json!({"image": mirror})),
        ("an option", json!({"options": {"logLevel": "debug"}})),
        ("the profile", json!({"profile": "standard"})),
        ("the quota", json!({"storage": {"quota": "1536Mi"}})),
        (
            "resources",
            json!({"pod": {"resources": {"requests": {"memory": "32Mi"}}}}),
        ),
    ] {
        let before = uids(&it).unwrap();
        let stream = Stream::start(&it, "shop", &MEMBERS);
        let begun = Instant::now();
        it.patch("shop", &json!({"spec": edit}).to_string());
        until(&it, what, |now| {
            let all = uids(&it).unwrap_or_default();
            let anew = all.iter().zip(&before).filter(|(now, then)| now != then);
            anew.count() == 3 && is_true(now, "Available") && !is_true(now, "Progressing")
        });
        let (acknowledged, gap) = stream.end();
        println!(
            "{what}: {:.1?}, {acknowledged} writes, longest gap {gap:?}",
            begun.elapsed()
        );
        assert!(gap < Duration::from_secs(2), "{gap:?}");
        assert_written(&it, "shop", acknowledged);
    }

    let before = uids(&it).unwrap();
    it.patch(
        "shop",
        r#"{"spec": {"pod": {"nodeSelector": {"disk": "ssd"}}}}"#,
    );
    let held = until(&it, "a Pod that no node takes", |now| {
        now["status"]["plan"]["hold"] == "Unschedulable"
    });
    assert_eq!(held["ready"], "2/3");
    let stays = |now: &[String]| now.iter().zip(&before).filter(|(a, b)| a == b).count();
    assert_eq!(stays(&uids(&it).unwrap()), 2, "nobody else was restarted");
    // Which one waits depends on who led.
    let now = uids(&it).unwrap();
    let mut all = MEMBERS.into_iter().zip(now.iter().zip(&before));
    let serves = all.find(|(_, (now, then))| now == then).unwrap().0;
    let put = ["/usr/local/bin/etcdctl", "put", "while-one-waits", "1"];
    it.eventually("a write to the others", SOON, || {
        it.exec("default", serves, "etcd", &put).ok.then_some(())
    });
    it.patch("shop", r#"{"spec": {"pod": {"nodeSelector": null}}}"#);
    rolled(&it, &version);
    assert_eq!(
        stays(&uids(&it).unwrap()),
        2,
        "the others are as they shall be"
    );
}

/// etcd would wait for the client that watches, with its port closed.
#[test]
fn a_restart_of_one_member_is_short_under_a_client_that_watches() {
    let Some(it) = Operated::with_one() else {
        return;
    };
    let uid = it.pod_uid("one");
    let stream = Stream::start(&it, "one", &["one-0"]);
    it.eventually("writes", SOON, || written(&it, "one").filter(|it| *it > 20));
    it.patch("one", r#"{"spec": {"options": {"snapshotCount": 4321}}}"#);
    it.eventually("another Pod", SOON, || {
        it.pod_uid("one").filter(|it| Some(it) != uid.as_ref())
    });
    let before = it.eventually("its etcd", SOON, || written(&it, "one"));
    it.eventually("writes in it", SOON, || {
        written(&it, "one").filter(|it| *it > before + 20)
    });
    let (acknowledged, gap) = stream.end();
    println!("one member restarted: {acknowledged} writes, longest gap {gap:?}");
    assert_written(&it, "one", acknowledged);
    assert!(gap < Duration::from_millis(8500), "{gap:?}"); // 9.3 s and more by itself
}
