//! A link in a cluster's directory of snapshots on the node leads to another tenant's: nobody goes through it, and it is
//! told.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;

use serde_json::Value;

use crate::backups::take;
use crate::lab::{SOON, is_true};
use crate::operated::{Operated, copy, document, pass};

/// What lies there, whose it is, and when it was last changed.
fn everything(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for path in fs::read_dir(&dir).unwrap().map(|it| it.unwrap().path()) {
            let is = fs::symlink_metadata(&path).unwrap();
            let (owner, mode) = ((is.uid(), is.gid()), is.mode());
            let content = if is.is_file() {
                fs::read(&path).unwrap()
            } else {
                Vec::new()
            };
            let content = String::from_utf8_lossy(&content);
            found.push(format!("{} {owner:?} {mode:o} {content}", path.display()));
            if is.is_dir() {
                dirs.push(path);
            }
        }
        let is = fs::metadata(&dir).unwrap();
        let (owner, mode, changed) = ((is.uid(), is.gid()), is.mode(), is.mtime_nsec());
        found.push(format!("{} {owner:?} {mode:o} {changed}", dir.display()));
    }
    found.sort();
    found
}

const OWN: &str = "/var/lib/etcd-operator/default/till";
/// Of a cluster of the same name in another namespace.
const OTHERS: &str = "/var/lib/etcd-operator/bank/till";

/// The member serves on, and snapshots are taken again once the link has gone.
#[test]
fn a_link_in_the_place_of_a_clusters_snapshots_is_refused_and_nothing_behind_it_is_touched() {
    let Some(it) = Operated::up() else {
        return;
    };
    let spec = format!(
        "{{backup: {{interval: 24h, destinations: [{{local: {{path: {OWN}/snapshots, keep: 1}}}}]}}}}"
    );
    it.apply(&document("EtcdCluster", "till", &spec));
    it.available("till");
    take(&it, "first");
    let (own, others) = (it.path(1, OWN), it.path(1, OTHERS));
    fs::create_dir_all(&others).unwrap();
    let from = own.join("snapshots");
    copy(&from, &others);
    let before = everything(&others);
    let (link, aside) = (own.join("snapshots"), own.join("aside"));
    fs::rename(&link, &aside).unwrap();
    symlink(format!("{OTHERS}/snapshots"), &link).unwrap();
    // The worker that runs has its directory already; the next one goes through no link.
    it.kubectl(&["delete", "pod", "till-backup"]).good();
    it.put("till", "written", "later");
    it.apply(&document("EtcdBackup", "linked", "{cluster: till}"));
    it.eventually("the link to be told", SOON, || {
        let told = it.cluster("till")["status"]["conditions"].clone();
        let told: Vec<Value> = told.as_array()?.clone();
        let way = format!("link {OWN}/snapshots: not a directory");
        let says = |it: &Value| it["message"].as_str().is_some_and(|it| it.contains(&way));
        told.into_iter()
            .find(|it| it["type"] == "Degraded" && says(it))
    });
    it.eventually("the EtcdBackup to wait for it", SOON, || {
        let linked = it.try_json(&["get", "etcdbackup", "linked"])?;
        let message = linked["status"]["message"].as_str()?.to_owned();
        (message.starts_with("waits:") && message.contains("the link")).then_some(())
    });
    pass(3);
    assert_eq!(everything(&others), before);
    assert!(is_true(&it.cluster("till"), "Available"));
    fs::remove_file(&link).unwrap();
    fs::rename(&aside, &link).unwrap();
    it.phase("etcdbackup", "linked", "Succeeded");
    // The cluster's own below it.
    let (link, aside) = (from.join("till"), own.join("aside"));
    fs::rename(&link, &aside).unwrap();
    symlink(format!("{OTHERS}/snapshots/till"), &link).unwrap();
    it.put("till", "written", "last");
    it.apply(&document("EtcdBackup", "below", "{cluster: till}"));
    let below = it.phase("etcdbackup", "below", "Failed");
    let message = below["status"]["message"].as_str().unwrap();
    assert!(message.contains("snapshots/till is a link"), "{message}");
    assert_eq!(everything(&others), before);
    fs::remove_file(&link).unwrap();
    fs::rename(&aside, &link).unwrap();
    take(&it, "again");
    assert_eq!(everything(&others), before);
}
