//! What a person reads on the machine: `systemctl status` and the journal.

use crate::host::{MEMBER, OPERATOR, version};
use crate::machine::Machine;

#[test]
fn systemctl_status_shows_one_living_line() {
    let Some(machine) = Machine::serving() else {
        return;
    };
    let shown = machine.sh(&format!("systemctl status --no-pager --lines=0 {OPERATOR}"));
    let status: Vec<&str> = shown
        .lines()
        .filter_map(|it| it.trim().strip_prefix("Status: "))
        .collect();
    assert_eq!(status.len(), 1, "{shown}");
    assert!(status[0].contains(&format!("serving etcd {}", version())));
    assert!(shown.contains("Active: active (running)"), "{shown}");
    assert!(shown.contains("; enabled;"), "{shown}");
}

#[test]
fn the_journal_reads_well() {
    let Some(machine) = Machine::serving() else {
        return;
    };
    // Something to warn of.
    machine.write_document("  sise: 1\n");
    machine.try_sh(&format!("systemctl reload {OPERATOR}"));
    machine.until(crate::host::SOON, "a warning", || {
        machine.journal(OPERATOR).contains("sise")
    });
    let entries = machine.journal_entries(OPERATOR);
    let field = |it: &serde_json::Value, name: &str| it[name].as_str().unwrap_or("").to_owned();
    let ours: Vec<_> = entries
        .iter()
        .filter(|it| field(it, "_COMM").starts_with("etcd-operator"))
        .collect();
    assert!(ours.len() > 2, "{entries:#?}");
    for entry in &ours {
        let message = field(entry, "MESSAGE");
        // The journal has the time, the program and the level already.
        let first = message.split(' ').next().unwrap();
        for word in ["ERROR", "WARN", "INFO", "DEBUG"] {
            assert_ne!(first, word, "{message}");
        }
        assert!(!first.contains("202"), "a second date: {message}");
        assert!(!message.starts_with("etcd-operator"), "{message}");
        assert!(!message.contains('\u{1b}'), "colour: {message:?}");
        assert!(!message.starts_with('<'), "a raw level: {message}");
        assert_eq!(field(entry, "SYSLOG_IDENTIFIER"), "etcd-operator");
    }
    let level = |words: &str| {
        let found = ours.iter().find(|it| field(it, "MESSAGE").contains(words));
        field(
            found.unwrap_or_else(|| panic!("no {words}: {ours:#?}")),
            "PRIORITY",
        )
    };
    assert_eq!(level("operator started"), "6");
    assert!(["3", "4"].contains(&level("sise").as_str()));
    // What nobody has to read is not there.
    assert!(ours.len() < 30, "{ours:#?}");
    // etcd logs to its own file, by size; its unit says what the guard and systemd did.
    let etcd = machine.journal_entries(MEMBER);
    assert!(etcd.len() < 15, "{etcd:#?}");
}
