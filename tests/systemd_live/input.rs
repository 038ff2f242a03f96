//! What people and machines get wrong: the operator says it, and a running etcd is left alone.

use std::time::Duration;

use crate::host::{MEMBER, OPERATOR, SOON};
use crate::lab::{condition, text};
use crate::machine::Machine;

#[test]
fn a_bad_document_at_start_ends_the_operator_for_good_and_leaves_etcd() {
    let Some(machine) = Machine::serving() else {
        return;
    };
    let etcd = machine.pid(MEMBER);
    machine.sh(&format!("systemctl stop {OPERATOR}"));
    let unit = machine.sh(&format!("cat /etc/systemd/system/{MEMBER}"));
    machine.write_document("  sise: 1\n  size: 17\n");
    let start = machine.try_sh(&format!("systemctl start {OPERATOR} 2>&1"));
    assert!(!start.status.success(), "{}", text(&start.stdout));
    assert_eq!(machine.property(OPERATOR, "ActiveState"), "failed");
    assert_eq!(machine.property(OPERATOR, "ExecMainStatus"), "2");
    std::thread::sleep(Duration::from_secs(7)); // longer than RestartSec
    assert_eq!(machine.property(OPERATOR, "ActiveState"), "failed");
    assert_eq!(machine.property(OPERATOR, "NRestarts"), "0");
    let told = machine.journal(OPERATOR);
    assert!(
        told.contains("sise") && told.contains("cluster.yaml"),
        "{told}"
    );
    assert_eq!(told.matches("sise").count(), 1, "told twice: {told}");
    assert!(
        !told.contains("etcd-operator: /etc"),
        "the journal names the program: {told}"
    );
    assert_eq!(machine.pid(MEMBER), etcd);
    assert!(machine.serves());
    assert_eq!(
        machine.sh(&format!("cat /etc/systemd/system/{MEMBER}")),
        unit
    );
    // Put right, it goes on with the same etcd.
    machine.write_document("");
    machine.sh(&format!("systemctl start {OPERATOR}"));
    machine.wait_available();
    assert_eq!(machine.pid(MEMBER), etcd);
}

#[test]
fn a_bad_document_on_reload_keeps_the_one_before_in_force() {
    let Some(machine) = Machine::serving() else {
        return;
    };
    let (etcd, operator) = (machine.pid(MEMBER), machine.pid(OPERATOR));
    machine.write_document("  sise: 1\n");
    machine.sh(&format!("systemctl reload {OPERATOR}"));
    machine.until(SOON, "what is wrong, in the journal", || {
        machine.journal(OPERATOR).contains("sise")
    });
    assert_eq!(machine.property(OPERATOR, "ActiveState"), "active");
    assert_eq!(machine.pid(OPERATOR), operator);
    assert_eq!(machine.pid(MEMBER), etcd);
    machine.wait_available();
    machine.write_document("  options: {snapshotCount: 1234}\n");
    machine.sh(&format!("systemctl reload {OPERATOR}"));
    machine.wait_restarted(etcd);
}

#[test]
fn without_the_user_the_commands_name_the_remedy() {
    let Some(machine) = Machine::with_files() else {
        return;
    };
    machine.sh("chown -R root: /var/lib/etcd-operator; userdel etcd-operator");
    // systemd finds nobody to run the unit as, before a program of ours can say a word.
    machine.try_sh(&format!("systemctl start {OPERATOR}"));
    assert_eq!(machine.property(OPERATOR, "ExecMainStatus"), "217");
    for command in ["etcd-operator preflight", "etcd-operator unit --install"] {
        let said = machine.try_sh(&format!("{command} 2>&1"));
        assert_eq!(said.status.code(), Some(1), "{command}");
        let said = text(&said.stdout);
        assert!(said.contains("no user etcd-operator"), "{said}");
        assert!(said.contains("systemd-sysusers"), "{said}");
    }
    // The remedy as it is named, and nothing else: systemd tries again by itself.
    machine.sh("systemd-sysusers");
    machine.wait_available();
    assert_eq!(
        machine.sh("find /var/lib/etcd-operator ! -user etcd-operator"),
        ""
    );
}

#[test]
fn a_disk_that_is_not_there_at_boot_is_waited_for_and_nothing_is_born_beneath_it() {
    let Some(mut machine) = Machine::bare() else {
        return;
    };
    // The disk: another directory, mounted by a unit that waits until it is plugged in.
    machine.write(
        "/etc/systemd/system/var-lib-etcd\\x2doperator.mount",
        "[Unit]\nConditionPathExists=/var/plugged\n[Mount]\nWhat=/var/disk\n\
         Where=/var/lib/etcd-operator\nOptions=bind\n[Install]\nWantedBy=local-fs.target\n",
    );
    machine.sh(
        "mkdir -p /var/disk /var/lib/etcd-operator; touch /var/plugged; systemctl daemon-reload; \
         systemctl enable --now --quiet 'var-lib-etcd\\x2doperator.mount'",
    );
    machine.trust_clock();
    machine.install_files();
    machine.write_document("");
    machine.install_etcd();
    machine.sh(&format!("systemctl enable --now --quiet {OPERATOR}"));
    let before = machine.wait_available();
    assert!(machine.put("a", "1"));

    machine.sh("rm /var/plugged");
    machine.reboot();
    machine.sh("! mountpoint --quiet /var/lib/etcd-operator");
    std::thread::sleep(Duration::from_secs(8));
    assert!(!machine.serves());
    let status = machine.status();
    assert_ne!(condition(&status, "Available").0, "True", "{status:#}");
    let born = machine.sh("find /var/lib/etcd-operator -name '*.wal' -o -name db");
    assert_eq!(born, "", "a second cluster beneath the mount");

    // Plugged in and mounted: what a person does next is what the text says.
    machine.sh("touch /var/plugged; systemctl start 'var-lib-etcd\\x2doperator.mount'");
    machine.sh(&format!("systemctl restart {OPERATOR}"));
    let after = machine.wait_available();
    assert_eq!(after["clusterID"], before["clusterID"]);
    assert_eq!(machine.get("a").as_deref(), Some("1"));
}

#[test]
fn a_data_disk_that_is_mounted_late_is_waited_for_with_and_without_the_operator() {
    let Some(mut machine) = Machine::bare() else {
        return;
    };
    machine.write(
        "/etc/systemd/system/mnt-ssd.mount",
        "[Unit]\nConditionPathExists=/var/plugged\n[Mount]\nWhat=/var/disk\nWhere=/mnt/ssd\n\
         Options=bind\n[Install]\nWantedBy=local-fs.target\n",
    );
    machine.sh(
        "mkdir -p /var/disk /mnt/ssd; touch /var/plugged; systemctl daemon-reload; \
         systemctl enable --now --quiet mnt-ssd.mount",
    );
    machine.trust_clock();
    machine.install_files();
    machine.sh("install -d -o etcd-operator -g etcd-operator -m 0700 /mnt/ssd/etcd");
    machine.write_document("  storage: {path: /mnt/ssd/etcd}\n");
    machine.install_etcd();
    // The very first start may write there already.
    machine.sh(&format!("systemctl enable --now --quiet {OPERATOR}"));
    let before = machine.wait_available();
    assert!(machine.put("a", "1"));
    assert!(machine.path("/mnt/ssd/etcd/data/member").exists());

    for verb in ["disable", "enable"] {
        machine.sh(&format!(
            "rm /var/plugged; systemctl {verb} --quiet {OPERATOR}"
        ));
        machine.halt();
        machine.switch_on();
        machine.until(SOON, "the guard's words", || {
            machine.journal(MEMBER).contains("StorageMissing")
        });
        if verb == "enable" {
            machine.wait_hold("StorageMissing");
        }
        assert!(!machine.serves());
        let born = machine.sh("find /mnt/ssd /var/lib/etcd-operator -name '*.wal' -o -name db");
        assert_eq!(born, "", "a second cluster beneath the mount");
        // Who else lives here does not wait.
        machine.until(SOON, "the other services", || {
            machine.property("systemd-logind", "ActiveState") == "active"
        });
        machine.sh("touch /var/plugged; systemctl start mnt-ssd.mount");
        machine.until(SOON, "etcd by itself", || machine.serves());
        assert_eq!(machine.get("a").as_deref(), Some("1"));
        if verb == "enable" {
            let after = machine.wait_available();
            assert_eq!(after["clusterID"], before["clusterID"]);
        }
        machine.until(SOON, "the end of the boot", || machine.state() == "running");
    }
}
