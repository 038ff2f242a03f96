//! Promises on a real Kubernetes, shaped like k3s: nodes with kubelet and containerd, and an API server
//! alone.
//!
//! `make test` brings everything that is needed.

#![allow(
    clippy::disallowed_methods,
    reason = "tests start programs and write files"
)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failed step fails the test"
)]
#![allow(clippy::print_stdout, reason = "figures are printed")]
#![allow(
    clippy::too_many_lines,
    reason = "tables, and stories that are told from beginning to end"
)]
#![allow(dead_code, reason = "the lab has tools for tests to come")]
#![allow(unreachable_pub, reason = "one binary, several files")]

mod absence;
mod admission;
mod alerts;
mod away;
mod backups;
mod bucket;
mod chart;
mod claims;
mod clock;
mod cluster;
mod deploy;
mod desk;
mod disks;
mod documents;
mod drains;
mod idle;
mod images;
mod kept;
mod kubectl;
mod lab;
mod losses;
mod mirror;
mod monitoring;
mod namespaces;
mod needs;
mod nodes;
mod numbers;
#[path = "../document/old.rs"]
mod old;
mod operated;
mod operator;
mod processes;
mod prometheus;
#[allow(dead_code, reason = "the parser's tests have more than is used here")]
#[path = "../document/random.rs"]
mod random;
mod refused;
mod requests;
mod restores;
mod restricted;
mod rights;
mod rolling;
mod several;
mod shape;
#[path = "../skip.rs"]
mod skip;
mod slow;
mod smoke;
mod stream;
#[path = "../../benches/numbers/table.rs"]
mod table;
mod tenants;
mod turns;
mod tutorial;
mod uninstall;
mod upgrade;
mod versions;
mod volumes;
mod walk;
mod writer;
