//! Another version of etcd, in a unit that systemd keeps.

use std::path::Path;

use crate::host::{MEMBER, OPERATOR, version};
use crate::lab::{bad_etcd, condition};
use crate::machine::Machine;

/// Puts an etcd that behaves in a way of `tests/tools/bad-etcd.c` into the store.
fn install(machine: &Machine, version: &str, mode: &str) {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bad-{}", std::process::id()));
    bad_etcd(&dir, version, mode, Path::new("/usr/local/lib/etcd/etcd"));
    machine.copy(
        &dir.join("etcd"),
        &format!("/usr/local/lib/{version}/etcd"),
        0o755,
    );
    machine.sh(&format!(
        "etcd-operator etcd install --from /usr/local/lib/{version} {version}"
    ));
}

fn ask_for(machine: &Machine, version: &str) {
    machine.write_document_of(version, "");
    machine.sh(&format!("systemctl reload {OPERATOR}"));
}

/// Under a writer; the machine is rebooted before the change is final. Then one that ends at each start, which systemd
/// starts again and again.
#[test]
fn a_version_is_changed_and_taken_back_under_systemd() {
    let Some(mut machine) = Machine::serving() else {
        return;
    };
    install(&machine, "3.6.97", "good");
    install(&machine, "3.6.98", "ends");
    let writer = machine.writer("upgraded");
    let pid = machine.pid(MEMBER);
    ask_for(&machine, "3.6.97");
    machine.wait_restarted(pid);
    machine.wait("the newer one to serve", |it| it["version"] == "3.6.97");
    writer.more(&machine, 5);
    let mut written = vec![writer.stop(&machine)];
    machine.reboot();
    machine.wait("the change to be final", |it| {
        it["version"] == "3.6.97" && it["history"][0]["outcome"] == "Done"
    });
    let writer = machine.writer("kept");
    ask_for(&machine, "3.6.98");
    let status = machine.wait_hold("UpgradeFailed");
    assert_eq!(status["history"][1]["outcome"], "RolledBack", "{status:#}");
    assert_eq!(condition(&status, "Available").0, "True");
    assert_eq!(status["version"], "3.6.97");
    writer.more(&machine, 5);
    written.push(writer.stop(&machine));
    for it in &written {
        assert_eq!(machine.lost(it), 0, "{it:?}");
    }
    // And back to the one that it was born with.
    ask_for(&machine, version());
    machine.wait("the first one again", |it| {
        it["version"] == version() && it["history"][2]["outcome"] == "Done"
    });
    assert_eq!(machine.lost(&written[0]), 0);
}
