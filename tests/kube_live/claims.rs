//! Snapshots on a claim: a Pod takes, proves and tries them, in a namespace that allows nothing else.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::bucket::{SECRET, Server, secret};
use crate::lab::SOON;
use crate::operated::{Operated, document};
use crate::restricted::is_restricted;

pub fn claim(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}, namespace: default}}\n\
         spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Gi}}}}}}\n"
    )
}

fn spec(claim: &str, bucket: &Server) -> String {
    let bucket = bucket.destination("keys");
    format!(
        "{{backup: {{destinations: [{{local: {{claimName: {claim}}}}}, {bucket}], verify: {{level: 4}}}}}}"
    )
}

/// The EtcdBackup and the condition say which claim is not there.
fn waits_for(it: &Operated, claim: &str) {
    it.eventually(&format!("the claim {claim} to be missed"), SOON, || {
        let told = it.says("one", "BackupHealthy", "SnapshotFailed");
        let backup = it.try_json(&["get", "etcdbackup", "first"])?;
        let words = [&told["message"], &backup["status"]["message"]];
        let missed = |it: &Value| {
            let text = it.as_str().unwrap_or_default();
            text.contains(claim) && text.contains("not found")
        };
        words.into_iter().all(missed).then_some(())
    });
}

fn backups(it: &Operated, cluster: &str) -> Value {
    it.cluster(cluster)["status"]["backups"].clone()
}

/// How many snapshots lie in a directory.
pub fn snapshots_in(place: &Path) -> usize {
    manifests_in(place).len()
}

pub fn manifests_in(place: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(place).into_iter().flatten().flatten();
    let files = files.map(|it| it.path());
    files
        .filter(|it| it.extension().is_some_and(|it| it == "json"))
        .collect()
}

/// Where the provisioner has put a claim on its node.
pub fn directory(it: &Operated, claim: &str) -> String {
    let all = it.json(&["get", "pv"]);
    let all = all["items"].as_array().unwrap();
    let mut own = all
        .iter()
        .filter(|it| it["spec"]["claimRef"]["name"] == claim);
    let spec = &own.next().unwrap()["spec"];
    let places = [&spec["hostPath"]["path"], &spec["local"]["path"]];
    let path = places.into_iter().find_map(Value::as_str);
    path.unwrap().to_owned()
}

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn snapshots_go_to_a_claim_are_tried_there_and_come_back_from_it() {
    let Some(it) = Operated::up() else {
        return;
    };
    let label = "pod-security.kubernetes.io/enforce=restricted";
    it.kubectl(&["label", "namespace", "default", label]).good();
    let bucket = Server::start(&it);
    it.apply(&document("EtcdCluster", "one", &spec("nowhere", &bucket)));
    it.available("one");
    it.put("one", "kept", "1");

    // There is no such claim, and then another one that nobody made yet: that is told.
    it.apply(&document("EtcdBackup", "first", "{cluster: one}"));
    waits_for(&it, "nowhere");
    it.apply(&document("EtcdCluster", "one", &spec("snapshots", &bucket)));
    waits_for(&it, "snapshots");
    // The snapshot is taken once it is there, also where somebody removed the worker's Pod.
    it.kubectl(&["delete", "pod", "one-backup"]).good();
    it.apply(&claim("snapshots"));
    let first = it.phase("etcdbackup", "first", "Succeeded");
    is_restricted(&it.json(&["get", "pod", "one-backup"]));
    assert_eq!(first["status"]["level"], 4, "{first}");
    // The worker copies, too; without keys it says so.
    it.says("one", "BackupHealthy", "CopyFailed");
    it.apply(&secret("keys", SECRET));
    it.snapshot("one", "copied");
    it.says("one", "BackupHealthy", "Verified");
    bucket.gets(&it, first["status"]["snapshot"].as_str().unwrap());
    let told = backups(&it, "one");
    assert_eq!(told["count"], 1);
    assert_eq!(told["snapshots"][0]["name"], first["status"]["snapshot"]);
    assert_eq!(told["snapshots"][0]["level"], 4, "{told}");

    // In place, and into a new cluster that has its snapshots on the same claim.
    it.put("one", "lost", "2");
    let back = it.restored("one", "back");
    assert_eq!(back["status"]["revisionsLost"], 1, "{back}");
    it.available("one");
    assert_eq!(
        (it.get("one", "kept"), it.get("one", "lost")),
        ("1".into(), String::new())
    );
    it.apply(&document(
        "EtcdRestore",
        "aside",
        "{cluster: one, into: two}",
    ));
    it.phase("etcdrestore", "aside", "Succeeded");
    assert_eq!(it.get("two", "kept"), "1");
    let second = it.snapshot("two", "second");
    assert_eq!(second["status"]["level"], 4, "{second}");

    // The worker goes on where there is no operator, and the next one hears from it what lies there.
    let worker = || it.uid("pod", "one-backup").unwrap();
    let before = worker();
    it.next_operator();
    it.patch("one", r#"{"spec":{"clients":[{"name":"looked"}]}}"#);
    it.eventually("the next operator to act", SOON, || {
        it.try_json(&["get", "secret", "one-client-looked"])
    });
    it.available("one");
    assert_eq!(backups(&it, "one")["count"], 1);
    it.says("one", "BackupHealthy", "Verified");
    assert_eq!(
        worker(),
        before,
        "an edit of something else, and another operator"
    );

    // Where the worker cannot look, nobody says that there is nothing.
    let taken = it.path(1, &directory(&it, "snapshots")).join("one");
    mode(&taken, 0o000);
    it.kubectl(&["delete", "pod", "one-backup"]).good();
    let later = "{cluster: one, into: three}";
    it.apply(&document("EtcdRestore", "later", later));
    it.eventually("the claim not to be seen", SOON, || {
        let later = it.try_json(&["get", "etcdrestore", "later"])?;
        let status = &later["status"];
        assert_ne!(status["phase"], "Failed", "{status}");
        let told = status["message"]
            .as_str()?
            .contains("could not list the snapshots");
        told.then_some(())
    });
    mode(&taken, 0o2770);
    it.phase("etcdrestore", "later", "Succeeded");
    assert_eq!(it.get("three", "kept"), "1");
    assert_eq!(backups(&it, "one")["count"], 1);
}

/// The CA of a bucket's server is a key of the Secret with its access keys.
#[test]
fn a_bucket_behind_a_ca_of_ones_own_gets_copies_once_the_secret_has_it() {
    let Some(it) = Operated::up() else {
        return;
    };
    let mut bucket = Server::start(&it);
    let (destination, ca) = bucket.behind_tls(&it, "keys");
    let keys = secret("keys", SECRET);
    it.apply(&keys);
    let first = it.one_with_copies(&destination);
    let told = it.says("one", "BackupHealthy", "CopyFailed");
    let text = told["message"].as_str().unwrap();
    assert!(text.contains("in the key ca.crt of its Secret"), "{text}");
    assert!(bucket.holds().is_empty());
    let ca = ca.replace('\n', "\n    ");
    it.apply(&format!("{keys}  ca.crt: |\n    {ca}\n"));
    it.says("one", "BackupHealthy", "Verified");
    bucket.gets(&it, &first);
}
