//! Promises under a real systemd as PID 1, on a disk that outlives its reboots.
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
#![allow(dead_code, reason = "the machine has tools for tests to come")]
#![allow(unreachable_pub, reason = "one binary, several files")]

mod backup;
mod bench;
mod host;
mod input;
#[path = "../etcd_live/lab.rs"]
mod lab;
mod life;
mod machine;
mod numbers;
mod package;
mod rights;
mod root;
#[path = "../skip.rs"]
mod skip;
mod story;
#[path = "../../benches/numbers/table.rs"]
mod table;
mod units;
mod upgrade;
mod words;
