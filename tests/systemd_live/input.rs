//! What people and machines get wrong: the operator says it, and a running etcd is left alone.

use std::time::Duration;

use serde_json::Value;

use crate::host::{MEMBER, OPERATOR, SOON};
use crate::lab::{condition, text};
use crate::machine::Machine;

#[test]
fn a_start_with_no_document_that_was_ever_sound_ends_the_operator_and_leaves_etcd() {
    let Some(machine) = Machine::serving() else {
        return;
    };
    let etcd = machine.pid(MEMBER);
    machine.sh(&format!("systemctl stop {OPERATOR}"));
    let unit = machine.sh(&format!("cat /etc/systemd/system/{MEMBER}"));
    machine.sh("rm /var/lib/etcd-operator/document.json");
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
fn a_bad_document_fails_the_reload_and_the_one_before_stays_in_force_over_a_reboot() {
    let Some(mut machine) = Machine::serving() else {
        return;
    };
    assert!(machine.put("a", "1"));
    let (etcd, operator) = (machine.pid(MEMBER), machine.pid(OPERATOR));
    machine.write_document("  sise: 1\n  profil: edge\n");
    let reload = machine.try_sh(&format!("systemctl reload {OPERATOR}"));
    assert!(!reload.status.success(), "the reload fails");
    machine.until(SOON, "what is wrong, in the journal", || {
        let journal = machine.journal(OPERATOR);
        journal.contains("spec.sise") && journal.contains("spec.profil")
    });
    assert_eq!(machine.property(OPERATOR, "ActiveState"), "active");
    assert_eq!(machine.pid(OPERATOR), operator);
    assert_eq!(machine.pid(MEMBER), etcd);
    let status = machine.wait_available();
    let refused = ("False", "SpecInvalid");
    assert_eq!(condition(&status, "DocumentAccepted"), refused);
    // By hand, and without root's rights for a file of one's own.
    let said = machine.try_sh("etcd-operator reload 2>&1; echo exit $?");
    assert!(
        text(&said.stdout).contains("exit 2"),
        "{}",
        text(&said.stdout)
    );
    let said = machine.sh_as("daemon", "etcd-operator diff 2>&1; echo exit $?");
    let said = text(&said.stdout);
    assert!(
        said.contains("spec.sise") && said.contains("exit 2"),
        "{said}"
    );

    // Nobody corrects it, and the box is switched off and on: what was sound is what runs.
    machine.reboot();
    let status = machine.wait_available();
    assert_eq!(condition(&status, "DocumentAccepted"), refused);
    assert_eq!(machine.property(OPERATOR, "ActiveState"), "active");
    assert_eq!(machine.get("a").as_deref(), Some("1"));
    assert_eq!(machine.state(), "running");

    let etcd = machine.pid(MEMBER);
    machine.write_document("  options: {snapshotCount: 1234}\n");
    let said = machine.sh_as("daemon", "etcd-operator diff 2>&1; echo exit $?");
    let said = text(&said.stdout);
    assert!(
        said.contains("is sound") && said.contains("exit 0"),
        "{said}"
    );
    assert!(said.contains("sudo etcd-operator diff"), "{said}");
    let said = machine.sh("etcd-operator diff");
    assert!(said.contains("restarts etcd once"), "{said}");
    machine.sh(&format!("systemctl reload {OPERATOR}"));
    machine.wait_restarted(etcd);
    // The signal does the same.
    let etcd = machine.pid(MEMBER);
    machine.write_document("  options: {snapshotCount: 4321}\n");
    machine.kill("HUP", OPERATOR);
    machine.wait_restarted(etcd);
    // What is held is told by the reload, too.
    machine.write_document("  storage: {quota: 16Mi}\n");
    let reload = machine.try_sh(&format!("systemctl reload {OPERATOR}"));
    assert!(!reload.status.success(), "a part of it is refused");
    let status = machine.wait_hold("QuotaSmaller");
    assert_eq!(condition(&status, "DocumentAccepted").0, "False");
}

/// An address beside loopback, `add` or `del`.
fn address(machine: &Machine, what: &str) {
    machine.sh(&format!("ip address {what} 192.168.77.7/32 dev lo"));
}

fn listen_on(machine: &Machine, addresses: &str) {
    let file = "/etc/etcd-operator/cluster.yaml";
    let document = machine.sh(&format!("cat {file}"));
    machine.write(file, &document.replace("[127.0.0.1]", addresses));
}

fn serves_there(machine: &Machine) -> bool {
    let files = "/var/lib/etcd-operator/tls/clients/admin";
    let etcdctl = format!(
        "/usr/local/lib/etcd/etcdctl --endpoints=https://192.168.77.7:2379 --cacert {files}/ca.crt --cert {files}/client.crt --key {files}/client.key --command-timeout=3s get a"
    );
    machine.try_sh(&etcdctl).status.success()
}

fn degraded(status: &Value) -> &str {
    condition(status, "Degraded").1
}

/// The clients on the box itself go on, whatever becomes of the network.
#[test]
fn an_address_that_went_leaves_the_others_served_and_is_taken_when_it_is_back() {
    let Some(mut machine) = Machine::serving() else {
        return;
    };
    // An edit that asks for what was never there waits.
    listen_on(&machine, "[192.168.77.7, 127.0.0.1]");
    let reload = machine.try_sh(&format!("systemctl reload {OPERATOR}"));
    assert!(!reload.status.success(), "it waits");
    machine.wait_hold("AddressGone");
    address(&machine, "add");
    machine.wait("both addresses", |it| degraded(it) == "AsAsked");
    machine.until(SOON, "the new address", || serves_there(&machine));
    assert!(machine.put("a", "1"));

    // It goes: told, and nothing is done for it.
    let etcd = machine.pid(MEMBER);
    address(&machine, "del");
    machine.wait("the address to be missed", |it| {
        degraded(it) == "AddressGone"
    });
    assert_eq!(machine.pid(MEMBER), etcd);
    // It is gone when etcd dies, with the operator and without it, and when the box comes up.
    machine.kill("KILL", MEMBER);
    machine.wait_restarted(etcd);
    machine.wait_available();
    assert!(machine.serves() && !serves_there(&machine));
    machine.sh(&format!("systemctl stop {OPERATOR}"));
    let etcd = machine.pid(MEMBER);
    machine.kill("KILL", MEMBER);
    machine.until(SOON, "etcd without its operator", || {
        machine.pid(MEMBER) != etcd && machine.serves()
    });
    machine.sh(&format!("systemctl start {OPERATOR}"));
    let status = machine.wait_available();
    assert_eq!(condition(&status, "Degraded"), ("True", "AddressGone"));
    machine.reboot();
    let status = machine.wait_available();
    assert_eq!(condition(&status, "Degraded"), ("True", "AddressGone"));
    assert!(!serves_there(&machine));

    // It flaps, ten times in half a minute: no restart for that.
    let etcd = machine.pid(MEMBER);
    for _ in 0..10 {
        address(&machine, "add");
        std::thread::sleep(Duration::from_millis(1500));
        address(&machine, "del");
        std::thread::sleep(Duration::from_millis(1500));
    }
    assert_eq!(machine.pid(MEMBER), etcd);
    // It stays, and somebody else has the port there: etcd could not start again, and is not stopped.
    address(&machine, "add");
    machine.sh("systemd-run --unit=taker systemd-socket-activate -l 192.168.77.7:2379 cat");
    machine.until(Duration::from_secs(150), "the port to be missed", || {
        machine.status()["plan"]["hold"] == "PortTaken"
    });
    assert_eq!(machine.pid(MEMBER), etcd);
    assert!(machine.serves());
    // It is free: one restart, and none where the address goes once more.
    machine.sh("systemctl stop taker");
    machine.wait("the address that is back", |it| degraded(it) == "AsAsked");
    assert!(serves_there(&machine));
    assert_ne!(machine.pid(MEMBER), etcd);
    let etcd = machine.pid(MEMBER);
    address(&machine, "del");
    address(&machine, "add");
    machine.until(SOON, "the same etcd there", || serves_there(&machine));
    assert_eq!(machine.pid(MEMBER), etcd);
    assert_eq!(machine.get("a").as_deref(), Some("1"));
}

/// What the box has as its own address is another one after a new lease.
#[test]
fn a_document_that_names_no_address_follows_the_one_of_the_host() {
    let Some(machine) = Machine::serving() else {
        return;
    };
    // The source of packets to other networks is the host's own address.
    let route = |what: &str| {
        machine.sh(&format!(
            "ip route {what} 192.0.2.0/24 dev lo src 192.168.77.7"
        ));
    };
    let file = "/etc/etcd-operator/cluster.yaml";
    let document = machine.sh(&format!("cat {file}"));
    let named = "listenAddresses: [127.0.0.1]";
    assert!(document.contains(named), "{document}");
    machine.write(file, &document.replace(named, ""));
    let etcd = machine.pid(MEMBER);
    machine.sh(&format!("systemctl reload {OPERATOR}"));
    machine.wait_restarted(etcd);
    assert!(machine.put("a", "1"));
    assert!(!serves_there(&machine), "it came up before the network");
    // The network comes.
    address(&machine, "add");
    route("add");
    machine.until(Duration::from_secs(150), "the host's address", || {
        serves_there(&machine)
    });
    // The lease is another one, and etcd dies: nobody is there but the guard.
    machine.sh(&format!("systemctl stop {OPERATOR}"));
    route("del");
    address(&machine, "del");
    let etcd = machine.pid(MEMBER);
    machine.kill("KILL", MEMBER);
    machine.until(SOON, "etcd without its operator", || {
        machine.pid(MEMBER) != etcd && machine.serves()
    });
    // The box has an address again.
    address(&machine, "add");
    route("add");
    machine.sh(&format!("systemctl start {OPERATOR}"));
    machine.until(Duration::from_secs(150), "the host's address", || {
        serves_there(&machine)
    });
    assert_eq!(machine.get("a").as_deref(), Some("1"));
}

#[test]
fn where_no_address_of_the_clients_is_left_etcd_waits_for_one() {
    let Some(machine) = Machine::serving() else {
        return;
    };
    let etcd = machine.pid(MEMBER);
    address(&machine, "add");
    listen_on(&machine, "[192.168.77.7]");
    machine.sh(&format!("systemctl reload {OPERATOR}"));
    machine.until(SOON, "another etcd", || machine.pid(MEMBER) != etcd);
    machine.wait("served there", |it| {
        condition(it, "Degraded").1 == "AsAsked"
    });
    address(&machine, "del");
    machine.kill("KILL", MEMBER);
    let status = machine.wait_hold("AddressGone");
    assert_eq!(condition(&status, "Available").0, "False");
    address(&machine, "add");
    machine.wait_available();
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
    machine.sh("install -d -o etcd-operator -g etcd-operator -m 0700 '/mnt/ssd/etcd ä'");
    machine.write_document("  storage: {path: /mnt/ssd/etcd ä}\n");
    machine.install_etcd();
    // The very first start may write there already.
    machine.sh(&format!("systemctl enable --now --quiet {OPERATOR}"));
    let before = machine.wait_available();
    assert!(machine.put("a", "1"));
    assert!(machine.path("/mnt/ssd/etcd ä/data/member").exists());

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
