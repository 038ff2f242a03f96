//! The units themselves, as systemd reads and rates them, in the state in which a machine has them.

use crate::host::{MEMBER, OPERATOR};
use crate::machine::{BOOKWORM, Machine, TRIXIE};

/// The most that `systemd-analyze security` may count, in tenths: systemd/README.md explains each point.
const EXPOSURE_MAX: [(&str, u32); 2] = [(OPERATOR, 15), (MEMBER, 30)];

#[test]
fn the_units_are_valid_and_their_exposure_is_low() {
    verified(BOOKWORM);
}

#[test]
fn under_systemd_257_too_the_units_are_valid_and_their_exposure_is_low() {
    verified(TRIXIE);
}

fn verified(suite: &str) {
    let Some(machine) = Machine::serving_on(suite) else {
        return;
    };
    for (unit, most) in EXPOSURE_MAX {
        // Unknown keys and bad values are only printed.
        let words = machine.sh(&format!("systemd-analyze verify --man=no {unit} 2>&1"));
        assert_eq!(words.trim(), "", "{unit}");
        let offline = machine.sh(&format!(
            "file=$(systemctl show -P FragmentPath {unit}); \
             systemd-analyze security --offline=true --threshold={most} --no-pager $file 2>&1"
        ));
        let overall = offline.lines().last().unwrap_or_default().to_owned();
        assert!(overall.contains("Overall exposure level"), "{offline}");
        // What is in force is not more than what the file says.
        let running = machine.sh(&format!(
            "systemd-analyze security --threshold={most} --no-pager {unit} 2>&1"
        ));
        println!("{overall}");
        assert!(running.contains("Overall exposure level"), "{running}");
    }
}

#[test]
fn a_weaker_unit_is_rated_so() {
    let Some(machine) = Machine::serving() else {
        return;
    };
    machine.write(
        "/etc/systemd/system/etcd-operator.service.d/weak.conf",
        "[Service]\nNoNewPrivileges=no\nCapabilityBoundingSet=~\nSystemCallFilter=\nProtectSystem=no\n",
    );
    machine.sh("systemctl daemon-reload");
    let rated = machine.sh(&format!(
        "systemd-analyze security --threshold=15 --no-pager {OPERATOR} > /dev/null 2>&1 || echo too much"
    ));
    assert_eq!(rated.trim(), "too much", "the gate is one");
}
