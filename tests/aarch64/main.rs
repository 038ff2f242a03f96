//! What a Raspberry Pi runs: the arm64 release binary of the operator with a real arm64 etcd, under
//! qemu's user emulation in every `make test`, and in a whole machine by `make test-vm`.
//!
//! Both bring what they need; the operator's binary is the one that `make dist` built.

#![allow(
    clippy::disallowed_methods,
    reason = "tests start programs and write files"
)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failed step fails the test"
)]
#![allow(unreachable_pub, reason = "one binary, several files")]

mod cell;
#[allow(
    dead_code,
    reason = "the lab of the live tests has more than is used here"
)]
#[path = "../etcd_live/lab.rs"]
mod lab;
mod machine;
#[path = "../skip.rs"]
mod skip;
mod user;
mod vm;
