//! A disk of one's own: the example is applied as it is written, and a restore is made from it.

use std::os::unix::fs::MetadataExt as _;

use crate::lab::root;
use crate::operated::Operated;

/// The member's user.
const USER: u32 = 65532;

#[test]
fn a_usb_disk_holds_data_and_snapshots_as_the_example_says() {
    let Some(it) = Operated::up() else {
        return;
    };
    let restricted = "pod-security.kubernetes.io/enforce=restricted";
    it.kubectl(&["label", "namespace", "default", restricted])
        .good();
    it.mount_disk(768, "/mnt/usb");
    it.in_mounts_of_node("mkdir /mnt/usb/data /mnt/usb/snapshots; chmod 0700 /mnt/usb/data");
    let example = std::fs::read_to_string(root().join("deploy/examples/usb-disk.yaml")).unwrap();
    it.apply(&example);
    it.available("shop");
    it.put("shop", "kept", "1");
    let first = it.snapshot("shop", "first");
    let disk = it.path(1, "/mnt/usb");
    let [root, data] = ["data", "data/member"].map(|it| std::fs::metadata(disk.join(it)).unwrap());
    assert_eq!((data.uid(), data.mode() & 0o777), (USER, 0o700));
    // The volume belongs to the cluster's own group.
    let group = it.json(&["get", "pod", "shop-0"])["spec"]["securityContext"]["fsGroup"].clone();
    let group = group.as_u64().unwrap();
    assert_eq!(u64::from(root.gid()), group);
    assert!((20_000..60_000).contains(&group), "{group}");
    let name = first["status"]["snapshot"].as_str().unwrap();
    let file = disk.join(format!("snapshots/shop/{name}.db.zst"));
    assert!(file.exists(), "{}", file.display());
    it.put("shop", "kept", "2");
    it.restored("shop", "back");
    it.available("shop");
    assert_eq!(it.get("shop", "kept"), "1");
}
