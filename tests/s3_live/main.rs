//! Promises on real S3 servers of two makes, s3s-fs and versitygw, on loopback; on garage and MinIO, too, where they are
//! there. What stands between the adapter and a server in some tests injects faults; the server behind it is
//! real.
//!
//! `tests/tools/s3s-fs.sh`, `versitygw.sh`, `garage.sh` and `minio.sh` bring the servers to `target/tools`.

#![allow(
    clippy::disallowed_methods,
    reason = "tests start programs and write files"
)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failed step fails the test"
)]
#![allow(
    clippy::print_stdout,
    reason = "what was measured, and what was left out"
)]
#![allow(unreachable_pub, reason = "one binary, several files")]

mod answers;
mod editor;
mod lab;
mod link;
mod named;
mod objects;
mod parts;
mod refusals;
#[path = "../skip.rs"]
mod skip;
mod wire;
