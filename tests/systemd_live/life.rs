//! etcd in its own unit: it does not need the operator, and systemd keeps it through the guard.

use std::time::Duration;

use crate::host::{MEMBER, OPERATOR, SOON, version};
use crate::lab::{condition, text};
use crate::machine::Machine;

#[test]
fn enable_now_brings_etcd_up_and_the_status_line_lives() {
    let Some(machine) = Machine::with_files() else {
        return;
    };
    // Returns once the operator said READY.
    machine.sh(&format!("systemctl enable --now --quiet {OPERATOR}"));
    assert_eq!(machine.property(OPERATOR, "ActiveState"), "active");
    let status = machine.wait_available();
    assert_eq!(status["host"]["driver"], "systemd");
    assert_eq!(status["version"], version());
    assert_eq!(machine.property(MEMBER, "ActiveState"), "active");
    assert_eq!(machine.property(MEMBER, "UnitFileState"), "enabled");
    assert_eq!(machine.property(OPERATOR, "UnitFileState"), "enabled");
    let pid = machine.pid(MEMBER).unwrap();
    assert_eq!(status["host"]["etcd"]["pid"], pid);
    // Both run as the user of their own, and the operator's unit holds no process but its own.
    for unit in [MEMBER, OPERATOR] {
        let pid = machine.pid(unit).unwrap();
        assert_eq!(
            machine.sh(&format!("stat -c %U /proc/{pid}")).trim(),
            "etcd-operator"
        );
        let group = machine.sh(&format!(
            "cat /sys/fs/cgroup/{{,systemd/}}system.slice/{{,*/}}{unit}/cgroup.procs 2> /dev/null || true"
        ));
        assert_eq!(group.trim(), pid.to_string(), "{unit}");
    }
    for unit in [MEMBER, OPERATOR] {
        assert_eq!(machine.property(unit, "Type"), "notify");
    }
    let line = machine.property(OPERATOR, "StatusText");
    let serving = format!("serving etcd {}", version());
    assert!(line.starts_with(&serving), "{line}");
    // The line follows what is.
    machine.write_document("  size: 0\n");
    machine.sh(&format!("systemctl reload {OPERATOR}"));
    machine.until(SOON, "another line", || {
        let line = machine.property(OPERATOR, "StatusText");
        line.starts_with("SizeZero: ")
    });
    machine.until(SOON, "the end of etcd", || {
        machine.property(MEMBER, "ActiveState") == "inactive"
    });
    machine.write_document("  size: 1\n");
    machine.sh(&format!("systemctl reload {OPERATOR}"));
    machine.wait_available();
    machine.until(SOON, "the line of before", || {
        machine
            .property(OPERATOR, "StatusText")
            .starts_with(&serving)
    });
}

#[test]
fn the_operator_is_killed_stopped_and_stalled_and_no_write_fails() {
    let Some(machine) = Machine::serving() else {
        return;
    };
    let etcd = machine.pid(MEMBER);
    let writer = machine.writer("w");

    let operator = machine.pid(OPERATOR);
    machine.kill("KILL", OPERATOR);
    machine.until(SOON, "systemd to start the operator again", || {
        let now = machine.pid(OPERATOR);
        now.is_some() && now != operator && machine.property(OPERATOR, "SubState") == "running"
    });
    writer.more(&machine, 5);

    machine.sh(&format!("systemctl stop {OPERATOR}"));
    assert_eq!(machine.property(OPERATOR, "Result"), "success");
    writer.more(&machine, 5);
    machine.sh(&format!("systemctl start {OPERATOR}"));

    // A watchdog of a minute is as shipped; a test has less time.
    assert_eq!(machine.property(OPERATOR, "WatchdogUSec"), "1min");
    machine.write(
        "/run/systemd/system/etcd-operator.service.d/quick.conf",
        "[Service]\nWatchdogSec=2\nRestartSec=100ms\n",
    );
    machine.sh(&format!(
        "systemctl daemon-reload; systemctl restart {OPERATOR}"
    ));
    let operator = machine.pid(OPERATOR);
    // It beats: nothing happens to it in twice that time.
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(machine.pid(OPERATOR), operator);
    machine.kill("STOP", OPERATOR);
    machine.until(SOON, "the watchdog", || {
        let now = machine.pid(OPERATOR);
        now.is_some() && now != operator
    });
    assert!(
        machine.journal(OPERATOR).contains("Watchdog timeout"),
        "{}",
        machine.journal(OPERATOR)
    );
    writer.more(&machine, 5);

    machine.wait_available();
    assert_eq!(machine.pid(MEMBER), etcd);
    let written = writer.stop(&machine);
    assert!(written.failed.is_empty(), "{:?}", written.failed);
    assert_eq!(machine.lost(&written), 0);
}

#[test]
fn etcd_that_is_killed_comes_back_through_the_guard_also_with_no_operator() {
    let Some(machine) = Machine::serving() else {
        return;
    };
    assert!(machine.put("a", "1"));
    let first = machine.pid(MEMBER);
    machine.kill("KILL", MEMBER);
    let second = machine.wait_restarted(first);
    assert_eq!(machine.get("a").as_deref(), Some("1"));
    let status = machine.wait_available();
    assert_eq!(status["host"]["etcd"]["pid"], second);

    machine.sh(&format!(
        "systemctl stop {OPERATOR}; rm /usr/bin/etcd-operator"
    ));
    machine.kill("KILL", MEMBER);
    let third = machine.wait_restarted(Some(second));
    assert_eq!(machine.get("a").as_deref(), Some("1"));
    // By the guard: it leaves a record of the process that it became.
    let record = machine.sh("cat /run/etcd-operator/process.json");
    assert!(record.contains(&format!("\"pid\":{third}")), "{record}");
    assert_eq!(
        machine.property(MEMBER, "ExecStart").split(' ').nth(1),
        Some("path=/var/lib/etcd-operator/store/etcd-operator")
    );
}

#[test]
fn restarts_by_hand_are_no_crash_loop_also_with_no_operator() {
    let Some(machine) = Machine::serving() else {
        return;
    };
    machine.sh(&format!("systemctl stop {OPERATOR}"));
    for _ in 0..8 {
        machine.sh(&format!("timeout 10 systemctl restart {MEMBER}"));
        assert!(machine.serves());
    }
    // An etcd that ends as soon as it serves is one: the next starts wait, longer each time.
    let begin = std::time::Instant::now();
    for _ in 0..2 {
        let before = machine.pid(MEMBER);
        machine.kill("KILL", MEMBER);
        machine.wait_restarted(before);
    }
    assert!(begin.elapsed() > Duration::from_secs(1), "no pause at all");
    machine.sh(&format!("systemctl start {OPERATOR}"));
    machine.wait_available();
}

/// etcd would wait for a client that watches, with its port closed. So the operator kills it after a while.
#[test]
fn an_etcd_that_waits_for_a_client_is_killed_for_a_restart() {
    let Some(machine) = Machine::serving() else {
        return;
    };
    machine.watch("news");
    let before = machine.pid(MEMBER);
    machine.write_document("  options: {snapshotCount: 4321}\n");
    machine.sh(&format!("systemctl reload {OPERATOR}"));
    machine.wait_restarted(before);
    let journal = machine.journal(MEMBER);
    assert!(journal.contains("status=9/KILL"), "{journal}");
    let told = machine.journal(OPERATOR);
    assert!(told.contains("ends it with SIGKILL"), "{told}");
    machine.wait_available();
    let held = machine.status()["plan"]["hold"].clone();
    assert!(held.is_null(), "{held}");
}

#[test]
fn a_member_that_a_person_stops_stays_stopped_while_the_operator_is_paused() {
    let Some(machine) = Machine::serving() else {
        return;
    };
    machine.sh("etcd-operator pause 1h");
    machine.sh(&format!("systemctl stop {MEMBER}"));
    for _ in 0..5 {
        machine.wait_hold("Paused"); // each is another pass
        assert_eq!(machine.property(MEMBER, "ActiveState"), "inactive");
    }
    machine.sh(&format!("systemctl restart {OPERATOR}"));
    machine.wait_hold("Paused");
    assert_eq!(machine.property(MEMBER, "ActiveState"), "inactive");
    machine.sh("etcd-operator resume");
    machine.wait_available();
}

#[test]
fn an_emptied_data_directory_is_not_started_over_by_anybody() {
    let Some(machine) = Machine::serving() else {
        return;
    };
    assert!(machine.put("a", "1"));
    machine.sh(&format!("systemctl stop {OPERATOR}"));
    machine.sh("cd /var/lib/etcd-operator/member; mv data /var/tmp/data; \
         install -d -o etcd-operator -g etcd-operator -m 0700 data");
    machine.kill("KILL", MEMBER);
    machine.until(SOON, "the guard's words", || {
        machine.journal(MEMBER).contains("DataDirMissing")
    });
    // It waits for the data, and neither it nor systemd's restarts make new data.
    std::thread::sleep(Duration::from_secs(7));
    let empty = machine.sh("find /var/lib/etcd-operator/member/data -type f | wc -l");
    assert_eq!(empty.trim(), "0");
    assert!(!machine.serves());
    let told = machine.journal(MEMBER);
    assert_eq!(told.matches("DataDirMissing").count(), 1, "{told}");
    // Nor does the operator, which says why.
    machine.sh(&format!("systemctl start {OPERATOR}"));
    machine.wait_hold("DataDirMissing");
    // A person puts the disk back: etcd serves without being asked for.
    machine.sh(&format!("systemctl stop {OPERATOR}"));
    machine.sh("cd /var/lib/etcd-operator/member; rmdir data; mv /var/tmp/data data");
    machine.until(SOON, "etcd on its data", || machine.serves());
    assert_eq!(machine.get("a").as_deref(), Some("1"));
}

#[test]
fn damaged_data_is_refused_once_and_systemd_does_not_insist() {
    let Some(machine) = Machine::serving() else {
        return;
    };
    machine.sh(&format!("systemctl stop {OPERATOR}"));
    machine.sh("mv /var/lib/etcd-operator/member/data/member/wal /var/tmp/wal");
    machine.kill("KILL", MEMBER);
    machine.until(SOON, "the end of the unit", || {
        machine.property(MEMBER, "ActiveState") == "failed"
    });
    assert_eq!(machine.property(MEMBER, "ExecMainStatus"), "3");
    let restarts = machine.property(MEMBER, "NRestarts");
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(machine.property(MEMBER, "ActiveState"), "failed");
    assert_eq!(machine.property(MEMBER, "NRestarts"), restarts);
    let told = machine.journal(MEMBER);
    assert_eq!(told.matches("DataDirIncomplete").count(), 1, "{told}");
    machine.sh(&format!("systemctl start {OPERATOR}"));
    machine.wait_hold("DataDirIncomplete");
    // Back in its place, and the operator starts what it held.
    machine.sh("mv /var/tmp/wal /var/lib/etcd-operator/member/data/member/wal");
    machine.wait_available();
}

#[test]
fn two_reboots_lose_nothing_and_etcd_comes_without_the_operator() {
    let Some(mut machine) = Machine::serving() else {
        return;
    };
    let writer = machine.writer("w");
    writer.more(&machine, 20);
    let written = writer.stop(&machine);
    machine.reboot();
    machine.until(SOON, "etcd after the boot", || machine.serves());
    machine.wait_available();
    assert_eq!(machine.lost(&written), 0);
    assert_eq!(machine.property(OPERATOR, "ActiveState"), "active");
    assert!(machine.put("between", "two"));

    machine.sh(&format!("systemctl disable --quiet {OPERATOR}"));
    machine.reboot();
    machine.until(SOON, "etcd with no operator", || machine.serves());
    assert_eq!(machine.property(OPERATOR, "ActiveState"), "inactive");
    assert_eq!(machine.lost(&written), 0);
    assert_eq!(machine.get("between").as_deref(), Some("two"));
    // Nor does what was stopped in order leave a failure behind.
    assert_eq!(
        machine.sh("systemctl list-units --failed --plain --no-legend"),
        ""
    );
}

#[test]
fn a_reboot_at_size_zero_starts_no_etcd_and_fails_no_unit() {
    let Some(mut machine) = Machine::serving() else {
        return;
    };
    assert!(machine.put("a", "1"));
    machine.write_document("  size: 0\n");
    machine.sh(&format!("systemctl reload {OPERATOR}"));
    machine.until(SOON, "the end of etcd", || {
        machine.property(MEMBER, "ActiveState") == "inactive"
    });
    machine.reboot();
    assert_eq!(machine.state(), "running");
    assert_eq!(machine.property(MEMBER, "ActiveState"), "inactive");
    machine.wait("size 0", |it| condition(it, "Available").1 == "SizeZero");
    machine.write_document("  size: 1\n");
    machine.sh(&format!("systemctl reload {OPERATOR}"));
    machine.wait_available();
    assert_eq!(machine.get("a").as_deref(), Some("1"));
    // And from now on at every boot again.
    machine.sh(&format!("systemctl disable --quiet {OPERATOR}"));
    machine.reboot();
    machine.until(SOON, "etcd with no operator", || machine.serves());
}

#[test]
fn a_power_cut_while_writing_loses_no_acknowledged_write() {
    let Some(mut machine) = Machine::serving() else {
        return;
    };
    let mut all = Vec::new();
    for name in ["first", "second"] {
        let writer = machine.writer(name);
        writer.more(&machine, 20);
        machine.power_cut();
        all.push(writer.gone());
        machine.boot();
        machine.wait_available();
        for written in &all {
            assert!(written.acknowledged.len() > 20);
            assert_eq!(machine.lost(written), 0);
        }
    }
}

#[test]
fn a_cluster_of_the_process_driver_moves_to_systemd_with_one_restart() {
    let Some(machine) = Machine::with_files() else {
        return;
    };
    // As root and by hand, as on a host before the package came.
    machine.sh("chown -R root:root /var/lib/etcd-operator /run/etcd-operator");
    let agent =
        "setsid etcd-operator agent --driver process < /dev/null > /var/log/agent.log 2>&1 &";
    machine.sh(&format!("{agent} echo $! > /run/agent.pid"));
    let before = machine.wait_available();
    assert_eq!(before["host"]["driver"], "process");
    assert!(machine.put("a", "1"));
    machine.sh("kill $(cat /run/agent.pid); while kill -0 $(cat /run/agent.pid); do sleep 0.05; done 2> /dev/null");
    assert!(machine.serves(), "etcd stays");

    machine.sh("systemd-tmpfiles --create etcd-operator.conf"); // as the package does
    machine.sh(&format!("systemctl enable --now --quiet {OPERATOR}"));
    let after = machine.wait("the other driver", |it| {
        it["host"]["driver"] == "systemd" && condition(it, "Available").0 == "True"
    });
    assert_eq!(after["clusterID"], before["clusterID"]);
    assert_ne!(after["host"]["etcd"]["pid"], before["host"]["etcd"]["pid"]);
    assert_eq!(machine.get("a").as_deref(), Some("1"));
    let etcd = machine.pid(MEMBER);
    assert_eq!(machine.property(MEMBER, "NRestarts"), "0");
    assert_eq!(machine.sh("pgrep -xc etcd").trim(), "1");
    let owners = machine.sh("find /var/lib/etcd-operator ! -user etcd-operator");
    assert_eq!(owners, "", "nothing of it belongs to anybody else");
    // Once: the operator comes and goes from here on.
    machine.sh(&format!("systemctl restart {OPERATOR}"));
    machine.wait_available();
    assert_eq!(machine.pid(MEMBER), etcd);
    let back = machine.try_sh("timeout 20 etcd-operator agent --driver process 2>&1");
    assert!(!back.status.success(), "{}", text(&back.stdout));
    assert_eq!(machine.pid(MEMBER), etcd);
}
