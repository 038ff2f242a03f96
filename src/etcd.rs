//! etcd from outside: its data directory, its binaries in the store, its API, its metrics.
//!
//! Every call has a deadline, and a failed one is a value. It never plans.

pub mod archive;
pub mod bolt;
pub mod client;
pub mod data_dir;
pub mod download;
pub mod examine;
pub mod files;
pub mod metrics;
pub mod reach;
pub mod read_at;
pub mod store;
mod wal;
