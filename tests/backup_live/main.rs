//! Snapshots of a real etcd of three version lines: taken, proven beside etcd's own tools, damaged,
//! interrupted and pruned, on this machine.
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
#![allow(dead_code, reason = "the lab has more tools than these tests need")]
#![allow(unreachable_pub, reason = "one binary, several files")]

mod bytes;
mod damage;
mod input;
mod interrupted;
#[path = "../etcd_live/lab.rs"]
mod lab;
mod memory;
mod raw;
mod retention;
mod shapes;
#[path = "../skip.rs"]
mod skip;
mod stage;
mod terminal;
mod watched;
