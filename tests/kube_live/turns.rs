//! What happens to nodes and to the objects around a member: etcd goes on, or comes back with every key,
//! or it is told why not.

use std::time::Duration;

use serde_json::json;

use crate::claims::directory;
use crate::lab::SOON;
use crate::operated::{Operated, copy, document, local_volume, on_volume, pass};
use crate::operator::USER;
use crate::processes::restarts_in;
use crate::writer::{longest_gap, restarts};

#[test]
fn etcd_serves_on_while_the_operator_is_rolled_the_kubelet_restarts_and_the_api_server_is_away() {
    let Some(it) = Operated::with_one() else {
        return;
    };
    let uid = it.pod_uid("one").unwrap();
    idle_asks_for_nothing(&it);
    // To the image of another version: what members' Pods would be made of is another one, too.
    let reference = &it.images.operator.as_ref().unwrap().reference;
    let newer = "localhost/etcd-operator:newer";
    it.tag_image(reference, newer);
    let rolled = longest_gap(&it, "one", || {
        let arguments = ["-n", "etcd-operator", "rollout"];
        let go = |what: &[&str]| {
            let mut all = arguments.to_vec();
            all.extend(what);
            it.kubectl(&all).good();
        };
        let newer = format!("etcd-operator={newer}");
        let image = [
            "-n",
            "etcd-operator",
            "set",
            "image",
            "daemonset/etcd-operator",
            &newer,
        ];
        it.kubectl(&image).good();
        go(&["status", "daemonset/etcd-operator", "--timeout=90s"]);
        it.acting();
        pass(3);
    });
    println!("operator rolled: longest time between two writes {rolled:.1?}");
    assert!(rolled < Duration::from_secs(2), "{rolled:?}");
    let kubelet = longest_gap(&it, "one", || {
        it.kubelet_restart();
        pass(10);
    });
    println!("kubelet restarted: {kubelet:.1?}");
    assert!(kubelet < Duration::from_secs(2), "{kubelet:?}");
    let away = longest_gap(&it, "one", || {
        it.api_stop();
        pass(30);
        it.api_start();
    });
    println!("API server away for 30 s: {away:.1?}");
    assert!(away < Duration::from_secs(2), "{away:?}");
    assert_eq!(it.pod_uid("one"), Some(uid), "the Pod was not touched");
    assert_eq!(restarts(&it, "one"), 0);
    it.patch("one", r#"{"spec":{"paused":true}}"#);
    it.says("one", "Progressing", "Paused");
    assert_eq!(it.get("one", "kept"), "1");
}

/// With a cluster that serves. What nobody watches is looked at every 30 s, from the memory of the API server;
/// `idle` counts how often.
fn idle_asks_for_nothing(it: &Operated) {
    pass(15);
    let since = it.mark();
    pass(45);
    let mut asked = it.requests("", since);
    asked.retain(|it| it.user == USER && it.verb != "watch");
    asked.retain(|it| {
        it.verb != "get"
            || !["secrets", "networkpolicies", "leases"].contains(&it.resource.as_str())
    });
    assert!(asked.is_empty(), "{asked:?}");
}

#[test]
fn what_is_missing_around_a_member_is_told_and_nothing_is_lost() {
    let Some(it) = Operated::with_one() else {
        return;
    };
    a_secret_is_deleted(&it);
    a_label_is_removed(&it);
    a_certificate_is_renewed_in_place(&it);
}

#[test]
fn a_member_whose_image_is_nowhere_or_whose_node_is_full_comes_back() {
    let Some(it) = Operated::with_one() else {
        return;
    };
    an_image_is_nowhere(&it);
    an_evicted_member_comes_back(&it);
}

#[test]
fn what_is_written_wrong_is_told_and_what_is_deleted_with_its_data_is_gone() {
    let Some(it) = Operated::up() else {
        return;
    };
    it.apply(&format!(
        "{NOWHERE}---\n{}",
        document("EtcdCluster", "nowhere", ON_NOWHERE)
    ));
    what_was_written_wrong_is_corrected(&it);
    deleted_with_its_data_and_applied_again(&it);
    no_default_storage_class(&it);
    let told = it.says("nowhere", "Degraded", "PodNotStarted");
    let text = told["message"].as_str().unwrap();
    assert!(text.contains("the Pod nowhere-0"), "{text}");
}

#[test]
fn a_volume_is_one_clusters_own_and_damaged_data_is_held() {
    let Some(it) = Operated::up() else {
        return;
    };
    a_volume_is_one_clusters_own(&it);
    damaged_data(&it);
}

/// A volume that can be bound and not mounted: the kubelet makes its Pod for ever.
const NOWHERE: &str = r"
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: by-hand}
provisioner: kubernetes.io/no-provisioner
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: nowhere}
spec:
  capacity: {storage: 2Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: by-hand
  hostPath: {path: /nowhere, type: Directory}
";
const ON_NOWHERE: &str = "{storage: {volumeClaim: {size: 2Gi, storageClassName: by-hand}}}";

/// Held by default; where the document says so, the newest verified snapshot takes its place.
fn damaged_data(it: &Operated) {
    let spec = |recovery: &str| {
        format!(
            "{{recovery: {{singleMember: {recovery}}}, \
             backup: {{interval: 24h, verify: {{level: 4}}, destinations: [{{local: {{}}}}]}}}}"
        )
    };
    it.apply(&document("EtcdCluster", "worn", &spec("hold")));
    it.available("worn");
    it.put("worn", "kept", "3");
    it.snapshot("worn", "worn");
    it.eventually("a trial restore of what lies on the node", SOON, || {
        let level = it.cluster("worn")["status"]["backups"]["lastVerified"]["level"].clone();
        (level == 4).then_some(())
    });
    it.put("worn", "lost", "4");
    it.patch("worn", r#"{"spec":{"size":0}}"#);
    it.gone(&["pod", "worn-0"]);
    let member = it.path(1, &directory(it, "data-worn-0"));
    let member = member.join("member/data/member");
    let wal = std::fs::read_dir(member.join("wal")).unwrap().flatten();
    let wal = wal
        .map(|it| it.path())
        .find(|it| it.extension().is_some_and(|it| it == "wal"));
    let wal = wal.unwrap();
    let mut bytes = std::fs::read(&wal).unwrap();
    // One bit of an acknowledged write.
    let at = bytes.windows(4).position(|it| it == b"kept").unwrap();
    bytes[at] ^= 1;
    std::fs::write(&wal, bytes).unwrap();
    it.patch("worn", r#"{"spec":{"size":1}}"#);
    let held = it.says("worn", "Degraded", "WalDamaged");
    let place = held["message"].as_str().unwrap();
    assert!(place.contains(".wal at byte "), "{held}");
    // The kubelet starts the guard again and again: that is no news each time.
    it.eventually("the guard to have looked three times", SOON, || {
        let pod = it.try_json(&["get", "pod", "worn-0"])?;
        let restarts = restarts_in(&pod)?;
        (restarts >= 2).then_some(())
    });
    pass(2);
    assert_eq!(it.says("worn", "Degraded", "WalDamaged"), held);
    // It can be stopped all the same.
    it.patch("worn", r#"{"spec":{"size":0}}"#);
    it.gone(&["pod", "worn-0"]);
    it.patch("worn", r#"{"spec":{"size":1}}"#);
    it.says("worn", "Degraded", "WalDamaged");
    it.apply(&document(
        "EtcdCluster",
        "worn",
        &spec("restoreLatestVerified"),
    ));
    it.available("worn");
    assert_eq!(it.get("worn", "kept"), "3");
    assert_eq!(it.get("worn", "lost"), "");
    let aside = member.parent().unwrap().parent().unwrap().to_owned();
    let kept = std::fs::read_dir(aside).unwrap().flatten();
    let kept = kept.filter(|it| it.file_name().to_string_lossy().contains("before-restore"));
    assert_eq!(kept.count(), 1, "the damaged data is kept");
    how_often_is_remembered(it);
}

/// Damaged data is replaced three times within a day, whoever acts: the next operator knows, and forgets nothing when it
/// writes the Secret.
fn how_often_is_remembered(it: &Operated) {
    let secret = || it.json(&["get", "secret", "worn-ca"]);
    let before = secret();
    assert!(before["data"]["recoveries.json"].is_string());
    it.next_operator();
    let without = json!([{"op": "remove", "path": "/data/operator.crt"}]).to_string();
    it.kubectl(&["patch", "secret", "worn-ca", "--type=json", "-p", &without])
        .good();
    it.patch("worn", r#"{"spec":{"clients":[{"name":"looked"}]}}"#);
    let after = it.eventually("the Secret to be written again", SOON, || {
        let now = secret();
        now["data"]["operator.crt"].is_string().then_some(now)
    });
    assert_eq!(
        after["data"]["recoveries.json"],
        before["data"]["recoveries.json"]
    );
}

fn a_secret_is_deleted(it: &Operated) {
    let content = |name: &str| it.json(&["get", "secret", name])["data"].clone();
    for name in ["one-member", "one-ca", "one-client-admin"] {
        let before = content(name);
        it.kubectl(&["delete", "secret", name]).good();
        it.eventually("the Secret to be back", SOON, || {
            it.try_json(&["get", "secret", name])
        });
        assert_eq!(content(name), before, "{name} as it was");
    }
    let edited = r#"{"data":{"server.key":"bm9uZQ=="}}"#;
    let before = content("one-member");
    it.kubectl(&[
        "patch",
        "secret",
        "one-member",
        "--type=merge",
        "-p",
        edited,
    ])
    .good();
    it.eventually("the edit to be undone", SOON, || {
        (content("one-member") == before).then_some(())
    });
    assert_eq!(it.get("one", "kept"), "1");
}

/// The Service no longer leads to a Pod that serves (K8).
fn a_label_is_removed(it: &Operated) {
    let label = |label: &str| {
        it.kubectl(&["label", "pod", "one-0", "--overwrite", label])
            .good();
    };
    label("etcd.edge-operator.io/cluster-");
    let told = it.says("one", "Available", "ServiceNotReached");
    let message = told["message"].as_str().unwrap();
    assert!(
        message.contains("lost its label etcd.edge-operator.io/cluster=one"),
        "{message}"
    );
    label("etcd.edge-operator.io/cluster=one");
    it.available("one");
}

/// An operator that comes finds that it ends soon; etcd takes the next one from the mounted Secret.
fn a_certificate_is_renewed_in_place(it: &Operated) {
    let uid = it.pod_uid("one");
    let dir = it.dir.join("renewal");
    std::fs::create_dir_all(&dir).unwrap();
    let shell = |script: &str| {
        let dir = dir.to_str().unwrap();
        let script = format!("set -e; cd {dir}; {script}");
        let made = it.run_in_node(&["sh", "-c", &script]);
        made.good().trim().to_owned()
    };
    let served = || it.served("one").trim().to_owned();
    let first = served();
    let arguments = [
        "delete",
        "daemonset",
        "-n",
        "etcd-operator",
        "etcd-operator",
    ];
    it.kubectl(&arguments).good();
    for (secret, key) in [
        ("one-ca", "client-ca.crt"),
        ("one-ca", "client-ca.key"),
        ("one-member", "server.crt"),
        ("one-member", "server.key"),
    ] {
        std::fs::write(dir.join(key), it.secret(secret, key)).unwrap();
    }
    let short = shell(
        "openssl x509 -x509toreq -in server.crt -signkey server.key -copy_extensions copyall -out csr 2> /dev/null; \
         openssl x509 -req -in csr -CA client-ca.crt -CAkey client-ca.key -days 1 -copy_extensions copyall -out short.crt 2> /dev/null; \
         base64 -w0 short.crt",
    );
    let serial = shell("openssl x509 -in short.crt -noout -serial");
    let patch = format!(r#"{{"data":{{"server.crt":"{short}"}}}}"#);
    let patched = [
        "patch",
        "secret",
        "one-member",
        "--type=merge",
        "-p",
        &patch,
    ];
    it.kubectl(&patched).good();
    it.install();
    it.eventually("etcd to serve the next one", SOON, || {
        let now = served();
        (now != serial && now != first).then_some(())
    });
    assert_eq!(it.pod_uid("one"), uid);
    assert_eq!(restarts(it, "one"), 0);
    assert_eq!(it.get("one", "kept"), "1");
}

fn an_image_is_nowhere(it: &Operated) {
    let image = it.images.etcd["3.6"].clone();
    it.remove_image(&image);
    it.kubectl(&["delete", "pod", "one-0"]).good();
    let told = it.says("one", "Degraded", "ImageUnavailable");
    assert!(
        told["message"]
            .as_str()
            .unwrap()
            .contains("quay.io/coreos/etcd"),
        "{told}"
    );
    it.import(&image);
    it.available("one");
    assert_eq!(it.get("one", "kept"), "1");
}

fn an_evicted_member_comes_back(it: &Operated) {
    let uid = it.pod_uid("one").unwrap();
    it.disk_fill(1);
    it.eventually("the member to be evicted", SOON, || {
        let pod = it.try_json(&["get", "pod", "one-0"]);
        let gone = pod.is_none_or(|it| {
            it["metadata"]["uid"] != uid.as_str() || it["status"]["phase"] != "Running"
        });
        gone.then_some(())
    });
    it.disk_empty(1);
    it.eventually("another Pod", SOON, || {
        it.pod_uid("one").filter(|it| *it != uid).map(drop)
    });
    it.available("one");
    assert_ne!(it.pod_uid("one"), Some(uid));
    assert_eq!(it.get("one", "kept"), "1");
}

/// A Pod that does not run is replaced when the document is corrected, and a cluster that never served is
/// given the version that the document names now.
fn what_was_written_wrong_is_corrected(it: &Operated) {
    it.apply(&document("EtcdCluster", "typo", "{version: 3.6.15}"));
    it.says("typo", "Degraded", "ImageUnavailable");
    it.patch("typo", r#"{"spec":{"version":"3.6.16"}}"#);
    it.available("typo");
    it.put("typo", "kept", "1");
    it.patch("typo", r#"{"spec":{"image":"quay.io/coreos/etcd:v9.9.9"}}"#);
    it.says("typo", "Degraded", "ImageNotChanged");
    assert_eq!(it.get("typo", "kept"), "1", "nobody is stopped for it");
    it.patch("typo", r#"{"spec":{"image":null}}"#);
    it.available("typo");
    it.patch(
        "typo",
        r#"{"spec":{"pod":{"nodeSelector":{"disk":"ssd"}}}}"#,
    );
    it.says("typo", "Degraded", "Unschedulable");
    it.patch("typo", r#"{"spec":{"pod":null}}"#);
    it.available("typo");
    assert_eq!(it.get("typo", "kept"), "1");
    it.kubectl(&["delete", "etcdcluster", "typo"]).good();
}

/// With `Delete` nothing is left, and the next one of that name is another one.
fn deleted_with_its_data_and_applied_again(it: &Operated) {
    let spec = "{deletionPolicy: Delete}";
    it.apply(&document("EtcdCluster", "brief", spec));
    it.available("brief");
    it.put("brief", "kept", "1");
    let claim = || it.try_json(&["get", "pvc", "data-brief-0"]);
    let first = claim().unwrap()["metadata"]["uid"].clone();
    let delete = ["delete", "etcdcluster", "brief", "--wait=false"];
    it.kubectl(&delete).good();
    it.eventually("the object to go", SOON, || {
        let there = it.try_json(&["get", "etcdcluster", "brief"]);
        there.is_none().then_some(())
    });
    it.apply(&document("EtcdCluster", "brief", spec));
    it.eventually("another claim", SOON, || {
        claim().filter(|it| it["metadata"]["uid"] != first)
    });
    it.available("brief");
    assert_eq!(it.get("brief", "kept"), "");
    it.kubectl(&delete).good();
    it.gone(&["pvc", "data-brief-0"]);
    it.gone(&["secret", "brief-ca"]);
}

fn no_default_storage_class(it: &Operated) {
    let class = |value: &str| {
        let annotation = format!("storageclass.kubernetes.io/is-default-class={value}");
        let words = ["annotate", "storageclass", "local-path", "--overwrite"];
        let mut words = words.to_vec();
        words.push(&annotation);
        it.kubectl(&words).good();
    };
    class("false");
    it.apply(&document("EtcdCluster", "homeless", "{}"));
    it.says("homeless", "Degraded", "NoStorageClass");
    class("true");
    it.available("homeless");
    it.kubectl(&["delete", "etcdcluster", "homeless"]).good();
}

/// A volume that has another cluster's data in it already, and a claim that an earlier cluster has left.
fn a_volume_is_one_clusters_own(it: &Operated) {
    let spec = "{backup: {destinations: [{local: {}}]}}";
    it.apply(&document("EtcdCluster", "node", spec));
    it.available("node");
    it.put("node", "kept", "2");
    let other = it.path(1, "/var/lib/other");
    std::fs::create_dir_all(&other).unwrap();
    let from = it.path(1, &directory(it, "data-node-0")).join("member");
    copy(&from, &other);
    it.apply(&local_volume("other", "/var/lib/other"));
    let spec = format!("{{{}}}", on_volume("other"));
    it.apply(&document("EtcdCluster", "other", &spec));
    it.says("other", "Degraded", "DocumentOfAnotherCluster");
    assert_eq!(it.get("node", "kept"), "2");
    // What another cluster has left is not served in place of a snapshot.
    it.snapshot("node", "taken");
    it.kubectl(&["delete", "etcdcluster", "other"]).good();
    it.gone(&["pod", "other-0"]);
    it.kubectl(&["delete", "secret", "other-ca", "--ignore-not-found"])
        .good();
    let into = "{cluster: node, into: other}";
    it.apply(&document("EtcdRestore", "over", into));
    let over = it.phase("etcdrestore", "over", "Failed");
    let message = over["status"]["message"].as_str().unwrap();
    assert!(
        message.contains("the PersistentVolumeClaim data-other-0 of an earlier cluster exists"),
        "{message}"
    );
    let into = "{cluster: node, into: fresh}";
    it.apply(&document("EtcdRestore", "beside", into));
    it.phase("etcdrestore", "beside", "Succeeded");
    assert_eq!(it.get("fresh", "kept"), "2");
}
