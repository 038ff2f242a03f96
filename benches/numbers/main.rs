//! The promised numbers, as a table: `make bench`, or `cargo bench --bench numbers -- PART...`.
//!
//! Everything is a ratio of two things measured in the same run, in turns, or a count. Parts:
//! `plan`, `size`, `starts`, `guard`, `idle`, `flash`, `memory`, `backup`, `restore`, `several`,
//! `upgrade`; and, by name only,
//! `where` (where the time of a start goes) and `candidates` (settings that the edge profile could have).

#![allow(
    clippy::disallowed_methods,
    reason = "a bench starts programs, writes files and reads the clock"
)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failed step ends the bench"
)]
#![allow(unreachable_pub, reason = "one binary, several files")]

mod backup;
mod bare;
mod candidates;
mod client;
mod flash;
#[path = "../../tests/etcd_live/fleet.rs"]
#[allow(dead_code, reason = "the home has more tools than the bench needs")]
mod fleet;
mod guard;
mod idle;
#[path = "../../tests/etcd_live/lab.rs"]
#[allow(dead_code, reason = "the lab has more tools than the bench needs")]
mod lab;
mod planning;
mod procfs;
mod restore;
mod several;
#[path = "../../tests/skip.rs"]
#[allow(dead_code, reason = "nothing is skipped here")]
mod skip;
mod starts;
mod table;
mod upgrade;

use std::path::Path;
use std::time::{Duration, Instant};

use table::{Row, Table};

/// The version line that is measured.
const LINE: &str = "3.6";

/// The part with a table of its own.
const CHANGES: &str = "upgrade";

/// A part of the table: its name, whether it runs without being named, what makes its rows.
type Part = (&'static str, bool, fn() -> Vec<Row>);

const PARTS: [Part; 13] = [
    ("plan", true, planning::rows),
    ("size", true, size),
    ("starts", true, starts::rows),
    ("guard", true, guard::rows),
    ("idle", true, idle::rows),
    ("flash", true, flash::rows),
    ("memory", true, flash::memory_rows),
    ("backup", true, backup::rows),
    ("restore", true, restore::rows),
    ("several", true, several::rows),
    (CHANGES, true, upgrade::rows),
    ("where", false, starts::where_rows),
    ("candidates", false, candidates::rows),
];

fn main() {
    // `cargo bench` adds `--bench`; a name picks parts.
    let named: Vec<String> = std::env::args()
        .skip(1)
        .filter(|it| !it.starts_with('-'))
        .collect();
    let unknown = named
        .iter()
        .find(|name| !PARTS.iter().any(|(part, ..)| part == name));
    if let Some(unknown) = unknown {
        let known = PARTS.map(|(name, ..)| name).join(", ");
        panic!("no part '{unknown}'; there are {known}");
    }
    let [mut table, mut changes] = [(); 2].map(|()| Table::default());
    for (name, by_default, rows) in PARTS {
        if named.is_empty() && by_default || named.iter().any(|it| it == name) {
            let begin = Instant::now();
            eprintln!("{name} ...");
            let of = if name == CHANGES {
                &mut changes
            } else {
                &mut table
            };
            of.extend(rows());
            eprintln!("{name}: {} s", begin.elapsed().as_secs());
        }
    }
    for (table, part) in [(table, "host"), (changes, "host-upgrade")] {
        table.publish(part);
    }
}

/// A host whose agent has nothing left to do.
fn cluster(profile: &str) -> lab::Lab {
    let mut lab = lab::Lab::new(LINE);
    lab.spec.push_str("  profile: ");
    lab.spec.push_str(profile);
    lab.spec.push('\n');
    lab.write_document();
    lab.start_agent();
    lab.wait_available();
    lab
}

fn size() -> Vec<Row> {
    let measured = std::fs::metadata(lab::program()).unwrap().len();
    let mut rows = vec![Row::new(
        "size of the binary measured here",
        table::mib(measured),
    )];
    for (architecture, budget) in [("aarch64", 7), ("x86_64", 9)] {
        let artefact = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!(
            "target/cross/{architecture}-unknown-linux-musl/release/etcd-operator"
        ));
        let Ok(metadata) = artefact.metadata() else {
            continue; // make dist builds them
        };
        let bytes = metadata.len();
        rows.push(
            Row::new(
                format!("size of the release artefact, {architecture}"),
                table::mib(bytes),
            )
            .promised(format!("<= {budget}.0 MiB"), bytes <= budget << 20),
        );
    }
    rows
}

/// The middle one.
fn median(mut values: Vec<Duration>) -> Duration {
    values.sort();
    values[values.len() / 2]
}
