//! What happens to volumes: one that the Pod's user may not write to, a full one, a read-only one, and a claim that
//! somebody deletes under a living Pod.

use std::time::Duration;

use serde_json::Value;

use crate::claims::directory;
use crate::lab::{SOON, is_true};
use crate::operated::{Operated, document, local_volume, on_volume, pass};
use crate::writer::Writer;

/// The longest back-off of six starts, and the start.
const BACKS_OFF: Duration = Duration::from_secs(200);

/// A volume of the kind for which Kubernetes does nothing about rights, as k3s' local-path storage has them.
fn host_path(it: &Operated, name: &str) -> String {
    local_volume(name, &place(it, name))
        .replace("local: {path: ", "hostPath: {type: Directory, path: ")
}

/// A directory of this lab, which its node sees.
fn place(it: &Operated, name: &str) -> String {
    it.dir.join("volumes").join(name).display().to_string()
}

/// What the status says of snapshots.
fn of_backup(it: &Operated, words: &[&str]) {
    it.eventually(&format!("BackupHealthy with {words:?}"), SOON, || {
        let status = it.cluster("shut")["status"].to_string();
        words.iter().all(|it| status.contains(it)).then_some(())
    });
}

/// As k3s 1.21.3 made them: 0700, of root.
#[test]
fn a_directory_of_root_is_told_with_the_command_that_helps() {
    let Some(it) = Operated::up() else {
        return;
    };
    let it = &it;
    let [shut, kept] = ["shut", "kept"].map(|name| place(it, name));
    it.in_mounts_of_node(&format!("mkdir -p {shut} {kept}; chmod 0700 {shut} {kept}"));
    for name in ["shut", "kept"] {
        it.apply(&host_path(it, name));
    }
    // The volume's mode of access is the strictest that there is: one Pod alone.
    it.apply(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: once, namespace: default}\n\
         spec: {storageClassName: kept, accessModes: [ReadWriteOncePod], resources: {requests: {storage: 1Gi}}}\n",
    );
    let modes = r#"{"spec": {"accessModes": ["ReadWriteOncePod"]}}"#;
    it.kubectl(&["patch", "pv", "kept", "--type=merge", "-p", modes])
        .good();
    let spec = format!(
        "{{{}, backup: {{destinations: [{{local: {{claimName: once}}}}]}}}}",
        on_volume("shut")
    );
    it.apply(&document("EtcdCluster", "shut", &spec));
    let told = it.says("shut", "Degraded", "StorageDenied");
    let text = told["message"].as_str().unwrap();
    let who = "user 0 and group 0 with mode 0700: user 65532";
    assert!(text.contains(who), "{text}");
    let next = it.cluster("shut")["status"]["plan"]["nextStep"].clone();
    let next = next.as_str().unwrap();
    assert!(next.contains("chown 65532:65532"), "{next}");
    // As it says; nobody touches the Pod.
    it.in_mounts_of_node(&format!("chown 65532:65532 {shut}"));
    it.available("shut");
    of_backup(it, &[who, "chown 65532:65532"]);
    it.in_mounts_of_node(&format!("chown 65532:65532 {kept}"));
    it.snapshot("shut", "first");
    it.put("shut", "kept", "1");
}

#[test]
fn a_full_or_read_only_volume_is_told_and_etcd_comes_back_by_itself() {
    let Some(it) = Operated::up() else {
        return;
    };
    a_full_disk(&it);
    a_disk_that_turned_read_only(&it);
}

/// Two file systems of their own: one for data, one for snapshots.
fn a_full_disk(it: &Operated) {
    it.in_mounts_of_node(&format!("mkdir -p {}", place(it, "")));
    for (name, size) in [("data", "512M"), ("copies", "160M")] {
        let place = place(it, name);
        it.in_mounts_of_node(&format!(
            "truncate -s {size} {place}.img; mkfs.ext4 -q -m 0 {place}.img; \
             mkdir {place}; mount -o loop {place}.img {place}; mkdir {place}/own"
        ));
        it.apply(&local_volume(name, &format!("{place}/own")));
    }
    let spec = format!(
        "{{{}, backup: {{destinations: [{{local: {{claim: {{size: 1Gi, storageClassName: copies}}}}}}]}}}}",
        on_volume("data")
    );
    it.apply(&document("EtcdCluster", "full", &spec));
    it.available("full");
    it.put("full", "kept", "1");
    it.snapshot("full", "before");
    // The snapshots' first: the member serves on.
    let fill = |name: &str| {
        let file = format!("{}/other", place(it, name));
        it.in_mounts_of_node(&format!(
            "dd if=/dev/zero of={file} bs=64k oflag=append conv=notrunc 2> /dev/null || true; sync"
        ));
    };
    let empty = |name: &str| it.in_mounts_of_node(&format!("rm {}/other", place(it, name)));
    fill("copies");
    it.put("full", "kept", "2");
    it.apply(&document("EtcdBackup", "meanwhile", "{cluster: full}"));
    let meanwhile = it.phase("etcdbackup", "meanwhile", "Failed");
    let text = meanwhile["status"]["message"].as_str().unwrap();
    println!("{text}");
    assert!(text.contains("free some space"), "{text}");
    it.available("full");
    empty("copies");
    it.put("full", "kept", "3");
    it.snapshot("full", "after");
    // The member's own: etcd ends when it finds no room, and its guard tells before it is started again.
    let writer = Writer::new(it, 1, "full");
    it.eventually("the full disk to be told", SOON, || {
        // What etcd left when it ended is room again.
        fill("data");
        writer.try_fill(20);
        let told = it.says_now("full", "Degraded")?;
        (told["reason"] == "DiskFull").then_some(())
    });
    empty("data");
    // The kubelet waits for up to 160 s before it starts the guard for the sixth time.
    it.eventually("full to be available", BACKS_OFF, || {
        let now = it.try_json(&["get", "etcdcluster", "full"])?;
        is_true(&now, "Available").then_some(())
    });
    assert_eq!(it.get("full", "kept"), "3");
}

fn a_disk_that_turned_read_only(it: &Operated) {
    it.patch("full", r#"{"spec":{"size":0}}"#);
    it.gone(&["pod", "full-0"]);
    let data = place(it, "data");
    it.in_mounts_of_node(&format!("mount -o remount,ro {data}"));
    it.patch("full", r#"{"spec":{"size":1}}"#);
    it.says("full", "Degraded", "FilesystemReadOnly");
    it.in_mounts_of_node(&format!("mount -o remount,rw {data}"));
    // What was mounted read-only into a Pod stays so: the hold says to delete it.
    it.kubectl(&["delete", "pod", "full-0"]).good();
    it.available("full");
    assert_eq!(it.get("full", "kept"), "3");
}

/// `kubectl delete pvc` by mistake: Kubernetes removes a claim once no Pod uses it, and takes that back for nobody.
#[test]
fn a_claim_that_is_deleted_under_its_member_is_told_and_nothing_ends_what_keeps_it() {
    let Some(it) = Operated::up() else {
        return;
    };
    let spec = "{backup: {destinations: [{local: {}}]}}";
    it.apply(&document("EtcdCluster", "one", spec));
    it.available("one");
    it.put("one", "kept", "1");
    let (uid, place) = (it.pod_uid("one"), directory(&it, "data-one-0"));
    let place = it.path(1, &place);
    let delete = |name: &str| {
        it.kubectl(&["delete", "pvc", name, "--wait=false"]).good();
    };
    delete("data-one-0");
    it.says("one", "Degraded", "ClaimDeleted");
    // Each of these would end the Pod.
    let hold = |patch: &str| {
        it.patch("one", patch);
        it.eventually(&format!("{patch} to be held"), SOON, || {
            let plan = it.cluster("one")["status"]["plan"].clone();
            (plan["hold"] == "ClaimDeleted").then_some(())
        });
    };
    hold(r#"{"spec":{"options":{"logLevel":"debug"}}}"#);
    it.patch("one", r#"{"spec":{"options":null}}"#);
    it.eventually("no hold", SOON, || {
        let plan = it.cluster("one")["status"]["plan"].clone();
        plan["hold"].is_null().then_some(())
    });
    hold(r#"{"spec":{"size":0}}"#);
    // The way out stays open meanwhile.
    it.snapshot("one", "last");
    it.patch("one", r#"{"spec":{"size":1}}"#);
    let back = "{cluster: one, replaceData: one}";
    it.apply(&document("EtcdRestore", "early", back));
    it.eventually("the restore to wait", SOON, || {
        let asked = it.try_json(&["get", "etcdrestore", "early"])?;
        let text = asked["status"]["message"].as_str()?;
        text.contains("deleted the claim").then_some(())
    });
    pass(3);
    it.kubectl(&["delete", "etcdrestore", "early"]).good();
    assert_eq!(it.pod_uid("one"), uid, "nobody ended it");
    assert_eq!(it.get("one", "kept"), "1");

    // As the hold says: the Pod goes, and the claim with it; the next one is empty, and nothing is born on it.
    it.kubectl(&["delete", "pod", "one-0"]).good();
    it.says("one", "Degraded", "DataDirMissing");
    it.eventually("the old volume to go", SOON, || {
        (!place.exists()).then_some(())
    });
    it.apply(&document("EtcdRestore", "back", back));
    it.phase("etcdrestore", "back", "Succeeded");
    it.available("one");
    assert_eq!(it.get("one", "kept"), "1");

    // The snapshots' claim: its worker is kept, too, whatever the document asks.
    let worker = || it.json(&["get", "pod", "one-backup"])["metadata"]["uid"].clone();
    // The restored cluster has one of its own.
    let before = it.eventually("the worker of the restored cluster", SOON, || {
        let pod = it.try_json(&["get", "pod", "one-backup"])?;
        let id = it.cluster("one")["status"]["clusterID"].clone();
        let stays = pod["metadata"]["deletionTimestamp"].is_null();
        let knows = pod["spec"].to_string().contains(id.as_str()?);
        (stays && knows).then(|| pod["metadata"]["uid"].clone())
    });
    delete("one-snapshots");
    let keep = r#"{"spec":{"backup":{"interval":"5h","destinations":[{"local":{}}]}}}"#;
    it.patch("one", keep);
    it.eventually("the claim to be told", SOON, || {
        let told = it.says_now("one", "BackupHealthy")?;
        told.to_string().contains("deleted the claim").then_some(())
    });
    pass(3);
    assert_eq!(worker(), before);
    let going = it.json(&["get", "pod", "one-backup"])["metadata"]["deletionTimestamp"].clone();
    assert!(going.is_null(), "{going}");
    it.kubectl(&["delete", "pod", "one-backup"]).good();
    let anew: Value = it.snapshot("one", "anew");
    println!("{}", anew["status"]);
}
