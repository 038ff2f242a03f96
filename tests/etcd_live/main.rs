//! Promises on a real etcd of three version lines, behind mutual TLS, on this machine.
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
#![allow(dead_code, reason = "the lab has tools for tests to come")]
#![allow(unreachable_pub, reason = "one binary, several files")]

mod answering;
mod attacked;
mod backup;
mod belongings;
mod beside;
mod certificates;
mod clients;
mod damage;
mod datastore;
mod directory;
mod disk;
mod download;
#[path = "../s3_live/editor.rs"]
mod editor;
mod edits;
mod fleet;
mod full;
mod guard;
mod health;
mod hints;
mod input;
mod lab;
mod life;
mod lines;
mod link;
mod origin;
mod overview;
mod pause;
mod predates;
mod predecessor;
#[path = "../world/raft.rs"]
mod raft;
#[path = "../world/random.rs"]
mod random;
mod restore;
mod s3;
mod several;
#[path = "../skip.rs"]
mod skip;
mod store;
mod strangers;
mod telemetry;
mod tools;
mod tuning;
mod undo;
mod upgrades;
mod watched;
#[path = "../s3_live/wire.rs"]
#[allow(clippy::print_stdout, reason = "what a link does is told")]
mod wire;
mod words;
