//! Snapshots and restores under the operator's hardened unit.

use crate::host::{MEMBER, OPERATOR};
use crate::lab::{condition, text};
use crate::machine::Machine;

/// The unit may write where the document says, take snapshots, run etcdutl and a trial's etcd, and
/// exchange the data of a member that is a unit of its own.
#[test]
fn snapshots_trial_restores_and_a_restore_work_within_the_units() {
    let Some(machine) = Machine::serving() else {
        return;
    };
    machine.sh("install -d -o etcd-operator -g etcd-operator -m 700 '/srv/USB DISK ä'");
    machine.write_document(
        "  backup: {interval: 1s, destinations: [{local: {path: /srv/USB DISK ä}}], verify: {level: 4}}\n",
    );
    // The unit is written anew, and the protection of the operator's changes with its next start.
    machine.sh(&format!("systemctl restart {OPERATOR}"));
    machine.wait_available();
    assert!(machine.put("a", "1"));
    machine.wait("a trial restore in the unit", |it| {
        it["backups"]["lastVerified"]["level"] == 4
    });
    machine.sh(&format!("systemctl stop {OPERATOR}"));
    machine.write_document("  backup: {destinations: [{local: {path: /srv/USB DISK ä}}]}\n");
    machine.sh(&format!("systemctl start {OPERATOR}"));
    let status = machine.wait_available();
    assert_eq!(condition(&status, "BackupHealthy").0, "True");
    assert!(machine.put("a", "2"));
    // Root's command runs as the user to whom the snapshots belong.
    machine.sh("etcd-operator backup create");
    let owners = machine.sh("stat -c %U:%a '/srv/USB DISK ä'/edge/*.db.zst | sort -u");
    assert_eq!(owners.trim(), "etcd-operator:600");
    assert!(machine.put("a", "3"));
    let before = machine.pid(MEMBER);
    let restored = machine.try_sh("etcd-operator restore --yes");
    assert!(restored.status.success(), "{}", text(&restored.stderr));
    assert!(text(&restored.stdout).contains("lost: 1 revision\n"));
    assert_eq!(machine.get("a").as_deref(), Some("2"));
    assert_ne!(machine.pid(MEMBER), before);
    assert_eq!(machine.property(MEMBER, "ActiveState"), "active");
    // A file of etcdctl's, in a directory of which the unit has one of its own.
    assert!(machine.put("a", "4"));
    let saved = machine.etcdctl(&["snapshot", "save", "/tmp/plain.db"]);
    assert!(saved.status.success(), "{}", text(&saved.stderr));
    machine.sh("chmod 644 /tmp/plain.db");
    assert!(machine.put("a", "5"));
    let restored = machine.try_sh("etcd-operator restore --from /tmp/plain.db --yes");
    assert!(restored.status.success(), "{}", text(&restored.stderr));
    assert_eq!(machine.get("a").as_deref(), Some("4"));
    of_a_whole_directory(&machine);
    // A boot later, without the operator: the restored data, not a further restore.
    machine.sh(&format!("systemctl disable --quiet {OPERATOR}"));
    let mut machine = machine;
    machine.reboot();
    machine.until(std::time::Duration::from_secs(60), "etcd", || {
        machine.get("a").as_deref() == Some("6")
    });
}

/// The data directory of an etcd that was killed, as only root can read it.
fn of_a_whole_directory(machine: &Machine) {
    machine.sh(&format!("systemctl stop {OPERATOR}"));
    assert!(machine.put("a", "6"));
    machine.sh(&format!(
        "systemctl kill --signal=KILL {MEMBER}; systemctl stop {MEMBER}"
    ));
    machine.sh(
        "cp -r /var/lib/etcd-operator/member/data '/root/OLD BOX'; chmod -R go= '/root/OLD BOX'",
    );
    machine.sh(&format!("systemctl start {OPERATOR}"));
    machine.wait_available();
    assert!(machine.put("a", "7"));
    // Words that name a snapshot are no directory's, and the user that it goes on as may not look into /root.
    machine.sh("mkdir /root/latest; cd /root; etcd-operator restore --dry-run");
    let restored = machine.try_sh("cd /root; etcd-operator restore --from 'OLD BOX' --yes");
    assert!(restored.status.success(), "{}", text(&restored.stderr));
    assert_eq!(machine.get("a").as_deref(), Some("6"));
    let root = machine.sh("stat -c %U:%a '/root/OLD BOX/member/snap/db'");
    assert_eq!(root.trim(), "root:600");
}
