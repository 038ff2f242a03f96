//! Another version of etcd on a node: tried on a copy of the data by a Pod, then started, and taken back where it does not
//! serve.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::images::{bad_etcd, version_of};
use crate::lab::{SOON, is_true, skip, status_of};
use crate::operated::{Operated, document, local_volume, on_volume};
use crate::processes::{kill, kill_etcd_of, process_of, restarts_in};
use crate::writer::Writer;

/// A rehearsal, a restart and 30 s, and for one that answers nothing a minute more.
const CHANGES_WITHIN: Duration = Duration::from_secs(240);

/// The cluster `one` on the older patch of 3.6, in which `kept` is 1; the newer patch is on the node.
fn born() -> Option<(Operated, String, String)> {
    born_on(Operated::up()?, "")
}

/// The same with this storage.
fn born_on(it: Operated, storage: &str) -> Option<(Operated, String, String)> {
    let Some(before) = it.images.etcd.get("3.6-before").cloned() else {
        skip("an image of the patch before is made of target/tools/etcd/3.6-before");
        return None;
    };
    it.import(&before);
    let (older, newer) = (version_of(&before), version_of(&it.images.etcd["3.6"]));
    let spec = format!("{{version: {older}, {storage}}}");
    it.apply(&document("EtcdCluster", "one", &spec));
    it.available("one");
    it.put("one", "kept", "1");
    Some((it, older, newer))
}

fn ask_for(it: &Operated, version: &str) {
    it.patch("one", &json!({"spec": {"version": version}}).to_string());
}

/// Waits until the version serves and is final.
#[track_caller]
fn wait_final(it: &Operated, version: &str, outcomes: usize) -> Value {
    let what = format!("{version} to be final");
    let mut said = String::new();
    it.eventually(&what, CHANGES_WITHIN, || {
        let now = it.try_json(&["get", "etcdcluster", "one"])?;
        let status = &now["status"];
        let words = format!("{}: {}", status_of(&now, "Progressing"), status["plan"]);
        if words != said {
            println!("{words}");
            said = words;
        }
        let history = status["history"].as_array().map_or(0, Vec::len);
        let settled = status_of(&now, "Progressing") == "False" && is_true(&now, "Available");
        (status["version"] == version && history == outcomes && settled).then(|| status.clone())
    })
}

/// What the last change came to: from, to, outcome.
fn last_change(status: &Value) -> (String, String, String) {
    let last = status["history"].as_array().unwrap().last().unwrap();
    let text = |key: &str| last[key].as_str().unwrap().to_owned();
    (text("from"), text("to"), text("outcome"))
}

fn with_backup(it: &Operated) {
    it.patch(
        "one",
        r#"{"spec": {"backup": {"destinations": [{"local": {}}]}}}"#,
    );
    it.ready("default", "one-backup");
}

/// Nothing is lost by an image that was never of use.
#[test]
fn a_cluster_that_never_served_takes_the_image_that_was_corrected() {
    let Some(it) = Operated::up() else {
        return;
    };
    let spec = "{image: 'quay.io/coreos/etcd:nowhere'}";
    it.apply(&document("EtcdCluster", "one", spec));
    it.says("one", "Degraded", "ImageUnavailable");
    it.patch("one", r#"{"spec": {"image": null}}"#);
    it.available("one");
    it.put("one", "kept", "1");
}

/// The cluster `one` on 3.5, in which `kept` is 1; the versions of all lines, which are on the node.
fn born_on_3_5() -> Option<(Operated, [String; 3])> {
    let it = Operated::up()?;
    let lines = ["3.5", "3.6", "3.7"].map(|line| it.images.etcd[line].clone());
    let versions = lines.each_ref().map(version_of);
    for image in &lines {
        it.import(image);
    }
    let spec = format!("{{version: {}}}", versions[0]);
    it.apply(&document("EtcdCluster", "one", &spec));
    it.available("one");
    it.put("one", "kept", "1");
    Some((it, versions))
}

/// To the newest line, and back to the one before.
fn carry(it: &Operated, [first, next, last]: &[String; 3]) {
    for (to, from, changes) in [(next, first, 1), (last, next, 2), (next, last, 3)] {
        let begun = Instant::now();
        ask_for(it, to);
        let status = wait_final(it, to, changes);
        println!("{from} -> {to}: final after {:.1?}", begun.elapsed());
        let change = (from.clone(), to.clone(), "Done".to_owned());
        assert_eq!(last_change(&status), change);
        // Nobody says since when, where no time source confirms the clock of this machine.
        let trusted = it.cluster("one")["status"]["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .any(|it| it["type"] == "ClockTrusted" && it["status"] == "True");
        assert_eq!(status["versionSince"].is_string(), trusted, "{status}");
        assert_eq!(it.get("one", "kept"), "1");
    }
    assert!(image_of(it).ends_with(next));
}

/// Nobody but the operator writes, so that only its own writes begin the log of 3.5 anew before 3.7 has to read it.
#[test]
fn data_born_on_3_5_is_carried_to_3_7_and_back_to_3_6() {
    let Some((it, versions)) = born_on_3_5() else {
        return;
    };
    let [first, next, last] = &versions;
    let asked = json!({"spec": {"version": last}}).to_string();
    let refused = it.kubectl(&["patch", "etcd", "one", "--type=merge", "-p", &asked]);
    let words = format!("etcd {last} cannot follow etcd {first}");
    assert!(
        !refused.ok && refused.stderr.contains(&words),
        "{}",
        refused.stderr
    );
    ask_for(&it, next);
    held(&it, "UpgradeNeedsBackup", "the document has no backup");
    with_backup(&it);
    carry(&it, &versions);
    it.put("one", "kept", "2");
    let told = it.events("default");
    let lowered = told.iter().any(|it| it.0 == "Downgrading");
    assert!(lowered, "{told:?}");
}

/// etcd before 3.6 takes one new member at a time, and all join at once here.
#[test]
fn one_on_3_5_becomes_three_once_its_line_is_3_6() {
    let Some((it, [first, next, _])) = born_on_3_5() else {
        return;
    };
    let three = r#"{"spec": {"version": null, "size": 3}}"#;
    it.patch("one", three);
    let refused = it.says("one", "DocumentAccepted", "SizeNotChanged");
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains(&format!("etcd {first} runs")), "{message}");
    assert_eq!(it.available("one")["status"]["readyMembers"], 1);
    // What it asks for otherwise counts, and so does the way to three.
    with_backup(&it);
    ask_for(&it, &next);
    it.eventually("three members", CHANGES_WITHIN, || {
        (it.cluster("one")["status"]["readyMembers"] == 3).then_some(())
    });
    it.says("one", "DocumentAccepted", "InForce");
    assert_eq!(it.get("one", "kept"), "1");
}

/// A writer, one watch that resumes in each Pod, and a lease, through the same lines.
#[test]
fn a_watch_and_a_lease_outlive_every_line() {
    let Some((it, versions)) = born_on_3_5() else {
        return;
    };
    with_backup(&it);
    let granted = it.etcdctl("one", &["lease", "grant", "3600"]);
    let lease = granted.split_whitespace().nth(1).unwrap().to_owned();
    it.etcdctl("one", &["put", "--lease", &lease, "leased", "1"]);
    let watcher = Writer::new(&it, 1, "one").watch("w/");
    let written = written_while(&it, || carry(&it, &versions));
    assert_kept(&it, &written);
    let last = format!("w/{:06}", written.acknowledged - 1);
    it.eventually("the last write to be seen", SOON, || {
        watcher
            .keys("w/")
            .iter()
            .any(|it| *it >= last)
            .then_some(())
    });
    // One that was not acknowledged was written again.
    let mut seen = watcher.keys("w/");
    seen.dedup();
    let wanted = (0..written.acknowledged).map(|it| format!("w/{it:06}"));
    assert!(wanted.eq(seen.into_iter().take_while(|it| *it <= last)));
    let left = it.etcdctl("one", &["lease", "timetolive", &lease, "--keys"]);
    assert!(
        left.contains("granted with TTL(3600s)") && left.contains("leased"),
        "{left}"
    );
    println!(
        "{} writes, longest gap {:.1?}",
        written.acknowledged, written.longest_gap
    );
}

/// A newer line that served for a moment alone opens the data, and another patch of it does.
#[test]
fn a_newer_line_that_served_and_ends_is_told_as_stuck() {
    let Some((it, ..)) = born() else {
        return;
    };
    let good = it.images.etcd["3.7"].clone();
    it.import(&good);
    it.import(&bad_etcd(&it.dir, "3.7.95", "serves-then-ends"));
    with_backup(&it);
    ask_for(&it, "3.7.95");
    let message = held(&it, "UpgradeStuck", "ended by itself");
    assert!(message.contains("3.7.95"), "{message}");
    // The one before was tried, and its guard has refused: nothing leads back.
    it.eventually("the newer one's Pod", CHANGES_WITHIN, || {
        let pod = it.try_json(&["get", "pod", "one-0"])?;
        let image = pod["spec"]["containers"][0]["image"].as_str()?;
        image.ends_with("3.7.95").then_some(())
    });
    // In the few seconds that each of its lives has.
    it.eventually("a late write", CHANGES_WITHIN, || {
        it.try_etcdctl("one", &["put", "late", "1"]).map(drop)
    });
    // What the operator saw of it tells at least so much.
    it.eventually("the snapshot that leads back", CHANGES_WITHIN, || {
        let now = it.try_json(&["get", "etcdcluster", "one"])?;
        let next = now["status"]["plan"]["nextStep"].as_str()?;
        (next.contains("restore r") && next.contains(", which lacks at least ")).then_some(())
    });
    ask_for(&it, &version_of(&good));
    let status = wait_final(&it, &version_of(&good), 2);
    let change = ("3.7.95".to_owned(), version_of(&good), "Done".to_owned());
    assert_eq!(last_change(&status), change);
    assert_eq!(it.get("one", "kept"), "1");
}

/// A restore that a person asks for is the way to the older line that the document names.
#[test]
fn from_a_newer_line_that_is_stuck_a_restore_leads_back() {
    let Some((it, older, _)) = born() else {
        return;
    };
    it.import(&bad_etcd(&it.dir, "3.7.96", "serves-then-ends"));
    with_backup(&it);
    ask_for(&it, "3.7.96");
    held(&it, "UpgradeStuck", "ended by itself");
    // The volume knows by then which version has it.
    it.eventually("another start of the newer line", CHANGES_WITHIN, || {
        let pod = it.try_json(&["get", "pod", "one-0"])?;
        let etcd = &pod["status"]["containerStatuses"][0];
        let newer = pod["spec"]["containers"][0]["image"]
            .as_str()?
            .ends_with("3.7.96");
        (newer && etcd["restartCount"].as_u64()? > 0).then_some(())
    });
    ask_for(&it, &older);
    // Two objects, two watches: an operator that has seen the restore first restores what the document said before.
    it.eventually("the edit to be seen", CHANGES_WITHIN, || {
        let now = it.try_json(&["get", "etcdcluster", "one"])?;
        let seen = &now["status"]["observedGeneration"];
        (*seen == now["metadata"]["generation"]).then_some(())
    });
    it.restored("one", "back");
    it.available("one");
    let image = image_of(&it);
    assert!(image.ends_with(&older), "{image} {}", it.story());
    assert_eq!(it.get("one", "kept"), "1");
    it.put("one", "kept", "2");
}

/// Waits for a hold, and returns its message.
#[track_caller]
fn held(it: &Operated, reason: &str, words: &str) -> String {
    let what = format!("the hold {reason} with {words}");
    it.eventually(&what, CHANGES_WITHIN, || {
        let now = it.try_json(&["get", "etcdcluster", "one"])?;
        let plan = &now["status"]["plan"];
        let message = plan["message"].as_str()?;
        (plan["hold"] == reason && message.contains(words)).then(|| message.to_owned())
    })
}

fn image_of(it: &Operated) -> String {
    let pod = it.json(&["get", "pod", "one-0"]);
    let image = pod["spec"]["containers"][0]["image"].as_str().unwrap();
    image.to_owned()
}

/// No Pod of a rehearsal is left.
#[track_caller]
fn rehearsal_gone(it: &Operated) {
    it.gone(&["pod", "one-rehearsal"]);
}

/// Numbered keys, one after the other, wherever the member is.
struct Written {
    acknowledged: u64,
    longest_gap: Duration,
}

fn written_while(it: &Operated, happens: impl FnOnce()) -> Written {
    let ends = AtomicBool::new(false);
    let mut writer = Writer::new(it, 1, "one");
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            let mut written = Written {
                acknowledged: 0,
                longest_gap: Duration::ZERO,
            };
            let mut last = Instant::now();
            while !ends.load(Ordering::Relaxed) {
                let key = format!("w/{:06}", written.acknowledged);
                if writer.ask(&["put", &key, "x"]).is_some() {
                    written.acknowledged += 1;
                    written.longest_gap = written.longest_gap.max(last.elapsed());
                    last = Instant::now();
                } else if let Some(next) = Writer::try_new(it, 1, "one") {
                    writer = next; // another Pod has another address
                }
            }
            written
        });
        let happened = std::panic::catch_unwind(std::panic::AssertUnwindSafe(happens));
        ends.store(true, Ordering::Relaxed);
        let written = writing.join().unwrap();
        happened.unwrap_or_else(|why| std::panic::resume_unwind(why));
        written
    })
}

/// Every acknowledged write is there.
#[track_caller]
fn assert_kept(it: &Operated, written: &Written) {
    let keys = it.etcdctl("one", &["get", "w/", "--prefix", "--keys-only"]);
    let there = keys.lines().filter(|it| it.starts_with("w/")).count();
    let there = u64::try_from(there).unwrap();
    let acknowledged = written.acknowledged;
    assert!(
        there >= acknowledged && acknowledged > 0,
        "{there} of {acknowledged}"
    );
    assert_eq!(it.get("one", "kept"), "1");
}

#[test]
fn a_patch_is_tried_by_a_pod_and_then_serves_under_a_writer() {
    let Some((it, older, newer)) = born() else {
        return;
    };
    // What a Pod that is replaced costs here and now, to compare with.
    let uid = it.pod_uid("one").unwrap();
    let plain = written_while(&it, || {
        it.patch("one", r#"{"spec": {"options": {"snapshotCount": 4321}}}"#);
        it.eventually("another Pod", CHANGES_WITHIN, || {
            it.pod_uid("one").filter(|it| *it != uid)
        });
        it.available("one");
        it.put("one", "kept", "1");
    });
    it.etcdctl("one", &["del", "w/", "--prefix"]);
    let begun = Instant::now();
    let written = written_while(&it, || {
        ask_for(&it, &newer);
        it.eventually("the new version to serve", CHANGES_WITHIN, || {
            (it.cluster("one")["status"]["version"] == newer.as_str()).then_some(())
        });
        println!("from the edit to serving {:.1?}", begun.elapsed());
        let status = wait_final(&it, &newer, 1);
        let change = (older.clone(), newer.clone(), "Done".to_owned());
        assert_eq!(last_change(&status), change);
    });
    println!(
        "a writer's longest gap {:.1?}, where the Pod is replaced for a setting {:.1?}",
        written.longest_gap, plain.longest_gap
    );
    assert_kept(&it, &written);
    assert!(image_of(&it).ends_with(&newer));
    rehearsal_gone(&it);
    let told = it.events("default");
    for reason in [
        "RehearsingVersion",
        "VersionRehearsed",
        "ChangingVersion",
        "VersionFinal",
    ] {
        assert!(told.iter().any(|it| it.0 == reason), "{reason}: {told:?}");
    }
    back_through_a_snapshot_and_another_operator(&it, &older, &newer);
}

/// The other direction, with snapshots on a claim; the operator is replaced in the middle.
fn back_through_a_snapshot_and_another_operator(it: &Operated, older: &str, newer: &str) {
    with_backup(it);
    ask_for(it, older);
    it.eventually("the trial to begin", CHANGES_WITHIN, || {
        it.try_json(&["get", "pod", "one-rehearsal"])
    });
    it.next_operator();
    let status = wait_final(it, older, 2);
    let change = (newer.to_owned(), older.to_owned(), "Done".to_owned());
    assert_eq!(last_change(&status), change);
    assert!(image_of(it).ends_with(older));
    assert_eq!(it.get("one", "kept"), "1");
    rehearsal_gone(it);
    // The first snapshot of this cluster is the one that was taken for it.
    assert_eq!(status["backups"]["count"], 1, "{status}");
    assert_eq!(status["backups"]["lastVerified"]["level"], 3, "{status}");
}

/// Kills the operator once an Event tells of this step, with this word in its message.
fn killed_at(it: &Operated, (reason, word): (&str, &str)) {
    let what = format!("the Event {reason} with {word}");
    it.eventually(&what, CHANGES_WITHIN, || {
        let told = it.events("default");
        let told = told.iter().any(|it| it.0 == reason && it.1.contains(word));
        told.then_some(())
    });
    let pod = it.acting();
    let operator = process_of(&pod, "etcd-operator");
    kill(&operator);
    it.eventually("the operator to be back", CHANGES_WITHIN, || {
        let now = it.acting();
        (restarts_in(&now) > restarts_in(&pod)).then_some(())
    });
}

/// So is etcd, while its version is new to the data.
#[test]
fn an_operator_that_is_killed_at_any_step_leaves_the_old_version_or_the_new_one() {
    let Some((it, older, newer)) = born() else {
        return;
    };
    it.import(&bad_etcd(&it.dir, "3.6.92", "ends"));
    ask_for(&it, &newer);
    killed_at(&it, ("RehearsingVersion", &newer));
    killed_at(&it, ("ChangingVersion", &newer));
    it.eventually("the new version to serve", CHANGES_WITHIN, || {
        let pod = it.try_json(&["get", "pod", "one-0"])?;
        let image = pod["spec"]["containers"][0]["image"].as_str()?;
        (image.ends_with(&newer) && is_true(&pod, "Ready")).then_some(())
    });
    kill_etcd_of(&it, "one-0");
    let change = last_change(&wait_final(&it, &newer, 1));
    assert_eq!(change, (older.clone(), newer.clone(), "Done".to_owned()));
    ask_for(&it, &older);
    killed_at(&it, ("VersionRehearsed", &older));
    let change = last_change(&wait_final(&it, &older, 2));
    assert_eq!(change, (newer, older.clone(), "Done".to_owned()));
    let bad = "3.6.92";
    ask_for(&it, bad);
    killed_at(&it, ("ChangingVersion", bad));
    killed_at(&it, ("ChangingVersion", "back"));
    // What it had seen of the new one's ends is gone with it: that it does not serve is told in any case.
    held(&it, "UpgradeFailed", bad);
    let change = last_change(&wait_final(&it, &older, 3));
    assert_eq!(
        change,
        (older.clone(), bad.to_owned(), "RolledBack".to_owned())
    );
    assert!(image_of(&it).ends_with(&older));
    assert_eq!(it.get("one", "kept"), "1");
}

#[test]
fn what_cannot_be_tried_or_fails_on_a_copy_touches_nothing() {
    let Some((it, older, newer)) = born() else {
        return;
    };
    let uid = it.pod_uid("one").unwrap();
    let untouched = || assert_eq!(it.pod_uid("one").as_ref(), Some(&uid));
    // No such image.
    ask_for(&it, "3.6.97");
    let message = held(&it, "UpgradeNotRehearsed", "no image");
    assert!(message.contains("one-rehearsal"), "{message}");
    assert_eq!(it.get("one", "kept"), "1");
    untouched();
    ask_for(&it, &older);
    rehearsal_gone(&it);
    // One that ends on the copy; its log stays.
    it.import(&bad_etcd(&it.dir, "3.6.98", "ends-on-the-copy"));
    ask_for(&it, "3.6.98");
    held(&it, "UpgradeFailed", "exit status: 3");
    untouched();
    let log = it.logs("default", "one-rehearsal", "etcd");
    assert!(log.contains("a bad build ends on the copy"), "{log}");
    let status = it.cluster("one")["status"].clone();
    let change = (
        older.clone(),
        "3.6.98".to_owned(),
        "NotRehearsed".to_owned(),
    );
    assert_eq!(last_change(&status), change);
    // Another operator does not try it again.
    let first = it.uid("pod", "one-rehearsal").unwrap();
    it.next_operator();
    held(&it, "UpgradeFailed", "exit status: 3");
    it.put("one", "kept", "1");
    let now = it.uid("pod", "one-rehearsal").unwrap();
    assert_eq!(now, first);
    let status = it.cluster("one")["status"].clone();
    assert_eq!(
        status["history"].as_array().map(Vec::len),
        Some(1),
        "{status}"
    );
    // An image that holds another version than its name and the document say.
    let wrong = "quay.io/coreos/etcd:v3.6.96";
    it.tag_image("quay.io/coreos/etcd:v3.6.98", wrong);
    ask_for(&it, "3.6.96");
    held(&it, "UpgradeFailed", "instead of 3.6.96");
    untouched();
    // An image of one's own is taken together with its version, and not before.
    let own = "quay.io/coreos/etcd:mine";
    it.tag_image(&it.images.etcd["3.6"].reference, own);
    let both = json!({"spec": {"version": newer, "image": own}});
    it.patch("one", &both.to_string());
    wait_final(&it, &newer, 3);
    assert_eq!(image_of(&it), own);
    assert_eq!(it.get("one", "kept"), "1");
    another_image_of_the_same_version(&it, own);
    a_trial_that_nobody_wants(&it, &older);
}

/// A node that has no room for a copy.
fn a_trial_that_nobody_wants(it: &Operated, version: &str) {
    let tried = || {
        let told = it.events("default");
        told.iter().filter(|it| it.0 == "RehearsingVersion").count()
    };
    let before = tried();
    let both = json!({"spec": {"version": version, "upgrade": {"skipRehearsal": version}}});
    it.patch("one", &both.to_string());
    wait_final(it, version, 4);
    assert_eq!(it.get("one", "kept"), "1");
    assert_eq!(tried(), before);
}

/// It is tried first, too; one that holds another version, or is not there, stops nobody.
fn another_image_of_the_same_version(it: &Operated, own: &str) {
    let uid = it.pod_uid("one");
    for (image, words) in [
        ("quay.io/coreos/etcd:v3.6.98", "instead of"),
        ("quay.io/coreos/etcd:nowhere", "no image"),
    ] {
        it.patch("one", &json!({"spec": {"image": image}}).to_string());
        it.eventually(words, CHANGES_WITHIN, || {
            let said = it.says_now("one", "DocumentAccepted")?;
            let message = said["message"].as_str()?;
            (said["reason"] == "ImageNotChanged" && message.contains(words)).then_some(())
        });
        assert_eq!(it.pod_uid("one"), uid);
        assert_eq!(image_of(it), own);
    }
    it.patch("one", r#"{"spec": {"image": null}}"#);
    // As somebody waits who has edited it: for what the operator says of this edit.
    let generation = &it.cluster("one")["metadata"]["generation"];
    let seen = format!("--for=jsonpath={{.status.observedGeneration}}={generation}");
    for what in [seen.as_str(), "--for=condition=Progressing=false"] {
        it.kubectl(&["wait", "etcdcluster/one", what, "--timeout=300s"])
            .good();
    }
    assert!(it.pod_uid("one").is_some_and(|it| Some(it) != uid));
    assert_ne!(image_of(it), own);
    it.available("one");
    assert_eq!(it.get("one", "kept"), "1");
}

#[test]
fn a_version_that_serves_a_copy_and_not_the_data_is_taken_back() {
    let Some((it, older, _)) = born() else {
        return;
    };
    for (version, mode, words) in [
        ("3.6.95", "ends", "ended by itself"),
        ("3.6.94", "serves-then-ends", "ended by itself"),
        ("3.6.93", "silent", "did not serve"),
    ] {
        it.import(&bad_etcd(&it.dir, version, mode));
        let changes = it.cluster("one")["status"]["history"]
            .as_array()
            .map_or(0, Vec::len);
        let begun = Instant::now();
        let written = written_while(&it, || {
            ask_for(&it, version);
            let message = held(&it, "UpgradeFailed", words);
            println!("{mode}: {:.1?}: {message}", begun.elapsed());
            it.available("one");
            let status = wait_final(&it, &older, changes + 1);
            println!("{mode}: final after {:.1?}", begun.elapsed());
            let change = (older.clone(), version.to_owned(), "RolledBack".to_owned());
            assert_eq!(last_change(&status), change);
        });
        assert_kept(&it, &written);
        assert!(image_of(&it).ends_with(&older));
        // Without the thousands of keys the next one is as fast.
        it.etcdctl("one", &["del", "w/", "--prefix"]);
    }
}

/// As on a host: deaths for want of room say nothing of the version.
#[test]
fn a_disk_that_fills_up_in_the_middle_is_no_failure_of_the_version() {
    let Some(it) = Operated::up() else {
        return;
    };
    it.mount_disk(500, "/mnt/small");
    it.in_mounts_of_node("mkdir /mnt/small/data");
    it.apply(&local_volume("small", "/mnt/small/data"));
    let Some((it, older, newer)) = born_on(it, &on_volume("small")) else {
        return;
    };
    ask_for(&it, &newer);
    for time in 1..=2 {
        it.eventually("the newer one to serve", CHANGES_WITHIN, || {
            let now = it.try_json(&["get", "etcdcluster", "one"])?;
            (now["status"]["version"] == newer.as_str() && is_true(&now, "Available")).then_some(())
        });
        it.in_mounts_of_node("dd if=/dev/zero of=/mnt/small/ballast bs=1M 2>&1 || true");
        let writer = Writer::new(&it, 1, "one");
        assert!(!writer.try_fill(200), "{time}: all of it found room");
        held(&it, "DiskFull", "");
        it.in_mounts_of_node("rm /mnt/small/ballast");
    }
    let status = wait_final(&it, &newer, 1);
    assert_eq!(last_change(&status), (older, newer, "Done".to_owned()));
    assert_eq!(it.get("one", "kept"), "1");
}
