//! A link in a cluster's own directory on the node leads to another tenant's data, or out of the tree:
//! nobody goes through it, and it is told.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;

use serde_json::{Value, json};

use crate::backups::take;
use crate::lab::{Api, SOON, is_true};
use crate::operated::{Operated, copy, document, pass};
use crate::operator::{Operator, cluster, namespace};
use crate::tenants::{ours, says, status, up};

/// Another tenant's.
const VAULT: &str = "/var/lib/etcd-operator/bank/vault";
/// The node's.
const OUTSIDE: &str = "/run/outside";

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

/// A cluster's path, and the link at a level of it.
struct Planted {
    namespace: &'static str,
    name: &'static str,
    path: &'static str,
    link: &'static str,
    to: &'static str,
}

const PLANTED: &[Planted] = &[
    Planted {
        namespace: "shop",
        name: "last",
        path: "/var/lib/etcd-operator/shop/last/data",
        link: "/var/lib/etcd-operator/shop/last/data",
        to: "/var/lib/etcd-operator/bank/vault/data",
    },
    Planted {
        namespace: "shop",
        name: "middle",
        path: "/var/lib/etcd-operator/shop/middle/disk/data",
        link: "/var/lib/etcd-operator/shop/middle/disk",
        to: "/var/lib/etcd-operator/bank/vault",
    },
    Planted {
        namespace: "shop",
        name: "own",
        path: "/var/lib/etcd-operator/shop/own/data",
        link: "/var/lib/etcd-operator/shop/own",
        to: "../bank/vault",
    },
    Planted {
        namespace: "linked",
        name: "vault",
        path: "/var/lib/etcd-operator/linked/vault/data",
        link: "/var/lib/etcd-operator/linked",
        to: "bank",
    },
    Planted {
        namespace: "shop",
        name: "away",
        path: "/var/lib/etcd-operator/shop/away/data",
        link: "/var/lib/etcd-operator/shop/away/data",
        to: OUTSIDE,
    },
    Planted {
        namespace: "shop",
        name: "nothing",
        path: "/var/lib/etcd-operator/shop/nothing/data",
        link: "/var/lib/etcd-operator/shop/nothing/data",
        to: "/var/lib/etcd-operator/bank/vault/new",
    },
    Planted {
        namespace: "shop",
        name: "parent",
        path: "/var/lib/etcd-operator/shop/parent/disk/data",
        link: "/var/lib/etcd-operator/shop/parent/disk",
        to: "/run/outside/new",
    },
];

#[test]
fn a_link_at_any_level_of_a_members_path_is_refused_and_nothing_behind_it_is_touched() {
    let Some((api, operator)) = up(false) else {
        return;
    };
    // Its directories are its own only once it runs.
    api.eventually("the operator", SOON, || operator.get("/readyz"));
    let vault = operator.path(VAULT);
    let outside = operator.path(OUTSIDE);
    for dir in [&vault.join("data"), &outside] {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join("kept"), "another's").unwrap();
    }
    for space in ["shop", "linked"] {
        api.apply(&namespace(space, &json!({})));
    }
    for it in PLANTED {
        let link = operator.path(it.link);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(it.to, link).unwrap();
    }
    let behind = || {
        let bank = vault.parent().unwrap();
        (everything(bank), everything(&outside))
    };
    let before = behind();
    for it in PLANTED {
        let storage = json!({"storage": {"path": it.path}});
        api.apply(&cluster(it.namespace, it.name, &storage));
    }
    for it in PLANTED {
        refused(&api, it);
    }
    pass(3);
    assert_eq!(behind(), before);
    for it in PLANTED {
        mended(&api, &operator, it);
    }
    assert_eq!(behind(), before);
}

/// The status names the link, and there is no Pod that would use it.
fn refused(api: &Api, it: &Planted) {
    says(api, it.namespace, it.name, "DirectoryUnusable");
    let told = status(api, it.namespace, it.name);
    let mut conditions = told["conditions"].as_array().unwrap().iter();
    let degraded = conditions.find(|it| it["type"] == "Degraded").unwrap();
    assert_eq!(degraded["reason"], "DirectoryUnusable", "{told}");
    let message = degraded["message"].as_str().unwrap();
    println!("{} -> {}: {message}", it.link, it.to);
    assert!(message.contains(&format!("link {}", it.link)), "{message}");
    assert!(!ours(api, it.namespace).contains("pod/"), "{}", it.path);
}

/// Without the link it is made, and its directory is one.
fn mended(api: &Api, operator: &Operator, it: &Planted) {
    fs::remove_file(operator.path(it.link)).unwrap();
    let pod = format!("{}-0", it.name);
    api.eventually(&format!("the Pod, {} gone", it.link), SOON, || {
        api.try_json(&["get", "pod", "-n", it.namespace, &pod])
    });
    let made = fs::symlink_metadata(operator.path(it.path)).unwrap();
    assert!(made.is_dir(), "{}", it.path);
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
