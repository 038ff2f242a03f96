//! Nobody restarts an etcd that is only slow: a restart makes a slow disk slower.

use std::time::Duration;

use crate::lab::{SOON, is_true};
use crate::monitoring::freeze_etcd_of;
use crate::operated::{Operated, document, local_volume, on_volume, pass};
use crate::writer::{Writer, restarts};

const DISK: &str = "/var/lib/slow";

/// A disk of its own for a cluster, whose writes block until this is dropped.
struct FrozenDisk<'a>(&'a Operated);

impl<'a> FrozenDisk<'a> {
    fn new(it: &'a Operated) -> Self {
        it.in_mounts_of_node(&format!("fsfreeze --freeze {DISK}"));
        FrozenDisk(it)
    }
}

impl Drop for FrozenDisk<'_> {
    fn drop(&mut self) {
        self.0
            .in_mounts_of_node(&format!("fsfreeze --unfreeze {DISK}"));
    }
}

fn liveness_failed(it: &Operated) -> bool {
    let mut events = it.events("default").into_iter();
    events.any(|(_, text)| text.contains("Liveness probe failed"))
}

#[test]
fn an_etcd_that_stands_still_or_whose_disk_does_for_a_minute_is_not_restarted() {
    let Some(it) = Operated::up() else {
        return;
    };
    it.mount_disk(512, DISK);
    it.apply(&local_volume("slow", DISK));
    let on_disk = format!("{{{}}}", on_volume("slow"));
    it.apply(&document("EtcdCluster", "slow", &on_disk));
    it.apply(&document("EtcdCluster", "still", "{}"));
    let names = ["slow", "still"];
    let before = names.map(|name| {
        it.available(name);
        it.put(name, "kept", "1");
        it.pod_uid(name).unwrap()
    });
    let writer = Writer::new(&it, 1, "slow");
    let gap = writer.longest_gap(|| {
        let frozen = freeze_etcd_of(&it.json(&["get", "pod", "still-0"]));
        let disk = FrozenDisk::new(&it);
        for name in names {
            it.eventually(&format!("{name} to be told"), SOON, || {
                (!is_true(&it.cluster(name), "Available")).then_some(())
            });
        }
        it.eventually("the kubelet to find it does not live", SOON, || {
            liveness_failed(&it).then_some(())
        });
        pass(40);
        drop((disk, frozen));
    });
    println!("longest time between two writes {gap:.1?}");
    assert!(gap > Duration::from_secs(40), "the disk stood still");
    for (name, uid) in names.into_iter().zip(before) {
        it.available(name);
        assert_eq!(restarts(&it, name), 0, "{name}");
        assert_eq!(it.pod_uid(name), Some(uid), "{name}");
        assert_eq!(it.get(name, "kept"), "1", "{name}");
        it.put(name, "later", "2");
    }
}
