//! How long etcd may take to serve.

/// An etcd has this many seconds to serve, and one more for each [`READ_BYTES`] of its database.
pub const SERVES_WITHIN_SECONDS: u64 = 60;
/// etcd reads its whole database at a start to build its index. The slowest class of SD cards reads 10 MB/s.
pub const READ_BYTES: u64 = 8 << 20;

/// The seconds that an etcd has to serve a database of this many bytes.
pub fn serves_within(database: u64) -> u64 {
    SERVES_WITHIN_SECONDS + database / READ_BYTES
}
