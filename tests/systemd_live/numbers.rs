//! Figures under systemd, printed: `cargo test --test systemd_live -- --ignored --nocapture`.
//!
//! They are those of the program that `ETCD_OPERATOR_PROGRAM` names, else of the release binary that
//! `make dist` made for this machine, else of cargo's own, which says nothing about speed.

use std::time::Duration;

use crate::host::{MEMBER, OPERATOR, SOON, version};
use crate::lab::program;
use crate::machine::Machine;
use crate::table::{Row, Table, mib};

/// A start contains about one election, whose length etcd draws by lot: short on both sides.
const SHORT_ELECTION: &str = "  options: {heartbeatMilliseconds: 20, electionMilliseconds: 100}\n";
/// What a person writes by hand, with the configuration, certificates and data of the operator.
const BY_HAND: &str = "by-hand.service";
/// Starts that no operator saw serve make the next one wait.
const FORGET: &str = "rm -f /run/etcd-operator/starts.json";
const TURNS: usize = 9;
/// Until everything that a start brings is over.
const SETTLE: Duration = Duration::from_secs(30);
const RSS_MAX: u64 = 8 << 20;

#[test]
#[ignore = "figures, not promises: make bench prints them"]
fn numbers_of_a_start_and_of_the_operator_at_rest() {
    let Some(machine) = Machine::with_files() else {
        return;
    };
    machine.write_document(SHORT_ELECTION);
    machine.write(
        &format!("/etc/systemd/system/{BY_HAND}"),
        &format!(
            "[Service]\nType=notify\nUser=etcd-operator\nExecStart=/var/lib/etcd-operator/store/etcd-{}/etcd \
             --config-file=/var/lib/etcd-operator/member/etcd.conf.yaml\n",
            version()
        ),
    );
    machine.sh(&format!(
        "systemctl daemon-reload; systemctl start {OPERATOR}"
    ));
    machine.wait_available();
    machine.sh("systemctl start polkit.service"); // no start of its own shall be part of ours

    let (mut ready, mut serving, mut available, mut guarded, mut by_hand) =
        (vec![], vec![], vec![], vec![], vec![]);
    for _ in 0..TURNS {
        let begin = start(&machine, OPERATOR, FORGET);
        ready.push(became_active(&machine, OPERATOR) - begin);
        serving.push(became_active(&machine, MEMBER) - begin);
        available.push(became_available(&machine) - begin);
        let begin = start(&machine, MEMBER, FORGET);
        guarded.push(became_active(&machine, MEMBER) - begin);
        let begin = start(&machine, BY_HAND, "");
        by_hand.push(became_active(&machine, BY_HAND) - begin);
    }
    let (mut born, mut born_by_hand) = (vec![], vec![]);
    for _ in 0..TURNS {
        let all =
            "rm -r /var/lib/etcd-operator/member /var/lib/etcd-operator/tls /run/etcd-operator/*";
        let begin = start(&machine, OPERATOR, all);
        born.push(became_active(&machine, MEMBER) - begin);
        let begin = start(
            &machine,
            BY_HAND,
            "rm -r /var/lib/etcd-operator/member/data/*",
        );
        born_by_hand.push(became_active(&machine, BY_HAND) - begin);
    }
    let mut table = Table::default();
    table.extend(vec![
        row("`systemctl start` to READY", &mut ready, None),
        row(
            "to etcd serving, existing data",
            &mut serving,
            Some(&mut by_hand),
        ),
        row(
            "to etcd serving, empty directory",
            &mut born,
            Some(&mut born_by_hand),
        ),
        row(
            "etcd's own unit, through the guard",
            &mut guarded,
            Some(&mut by_hand),
        ),
        row("to Available: a write was proven", &mut available, None),
    ]);

    start(
        &machine,
        OPERATOR,
        "rm -r /var/lib/etcd-operator/member /run/etcd-operator/*",
    );
    machine.wait_available();
    std::thread::sleep(SETTLE);
    let pid = machine.pid(OPERATOR).unwrap();
    let files = machine.sh(&format!("cat /proc/{pid}/status /proc/{pid}/smaps_rollup"));
    let bytes = |what: &str| -> u64 {
        let line = files.lines().find_map(|it| it.strip_prefix(what));
        let words = line.unwrap().trim_start_matches(':');
        let kib: u64 = words.split_whitespace().next().unwrap().parse().unwrap();
        kib << 10
    };
    let resident = bytes("VmRSS");
    table.extend(vec![
        Row::new("operator at rest: VmRSS", mib(resident))
            .promised("<= 8 MiB", resident <= RSS_MAX),
        Row::new("operator at rest: VmHWM", mib(bytes("VmHWM"))),
        Row::new(
            "operator at rest: private dirty",
            mib(bytes("Private_Dirty")),
        ),
    ]);
    println!("medians of {TURNS} turns, {}", program().display());
    table.publish("systemd");
}

/// Stops everything, prepares, and starts one unit; when systemd began, in microseconds.
fn start(machine: &Machine, unit: &str, prepare: &str) -> u64 {
    machine.sh(&format!(
        "systemctl stop {OPERATOR}; systemctl stop {MEMBER} {BY_HAND}; {prepare}\nsystemctl start {unit}"
    ));
    stamp(machine, unit, "InactiveExitTimestampMonotonic")
}

/// When a unit said READY.
fn became_active(machine: &Machine, unit: &str) -> u64 {
    machine.until(SOON, unit, || {
        machine.property(unit, "ActiveState") == "active"
    });
    stamp(machine, unit, "ActiveEnterTimestampMonotonic")
}

/// When the operator said so, last.
fn became_available(machine: &Machine) -> u64 {
    machine.wait_available();
    let entries = machine.journal_entries(OPERATOR);
    let said = entries.iter().rfind(|it| {
        let message = it["MESSAGE"].as_str().unwrap_or_default();
        message.starts_with("Available is True")
    });
    let time = said.unwrap()["__MONOTONIC_TIMESTAMP"].as_str().unwrap();
    time.parse().unwrap()
}

fn stamp(machine: &Machine, unit: &str, property: &str) -> u64 {
    machine.property(unit, property).parse().unwrap()
}

fn median(values: &mut [u64]) -> u64 {
    values.sort_unstable();
    values[values.len() / 2] / 1000
}

fn row(figure: &str, ours: &mut [u64], by_hand: Option<&mut [u64]>) -> Row {
    let ours = median(ours);
    let row = Row::new(figure, format!("{ours} ms"));
    let Some(by_hand) = by_hand.map(median) else {
        return row;
    };
    let ratio = ours as f64 / by_hand as f64;
    row.against(
        format!("a unit by hand, unprotected: {by_hand} ms"),
        ratio,
        None,
    )
}
