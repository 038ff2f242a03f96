//! What lies in etcd's data directory, by names and by the first records of the log. Nothing is
//! opened for writing and no database is opened at all.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use prost::Message as _;

use crate::cluster::{ClusterId, MemberId};
use crate::start::{DataDir, Database};

/// A record of the log (`walpb.Record`).
#[derive(Clone, PartialEq, prost::Message)]
struct Record {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(bytes = "vec", optional, tag = "3")]
    data: Option<Vec<u8>>,
}

/// What the log says of its owner (`etcdserverpb.Metadata`).
#[derive(Clone, PartialEq, prost::Message)]
struct Metadata {
    #[prost(uint64, tag = "1")]
    member: u64,
    #[prost(uint64, tag = "2")]
    cluster: u64,
}

/// `walpb.MetadataType`.
const METADATA_TYPE: i64 = 1;
/// The metadata stands in the second record of every segment.
const HEAD_BYTES: usize = 4096;

/// Looks at the directory that etcd gets as `data-dir`.
pub fn look(data_dir: &Path) -> DataDir {
    let segments = files(&data_dir.join("member/wal"), "wal");
    let snap = data_dir.join("member/snap");
    let db = snap.join("db");
    let database = match fs::metadata(&db) {
        Ok(it) if it.len() > 0 => Database::Present,
        _ => Database::Absent,
    };
    DataDir {
        wal_segments: u32::try_from(segments.len()).unwrap_or(u32::MAX),
        wal_from_start: segments.first().is_some_and(|it| {
            it.file_name()
                .is_some_and(|it| it == "0000000000000000-0000000000000000.wal")
        }),
        database,
        snapshots: u32::try_from(files(&snap, "snap").len()).unwrap_or(u32::MAX),
        owner: segments.iter().find_map(|it| owner(it)),
        in_use: is_locked(&db),
    }
}

/// A stamp that changes whenever a file of the data directory does.
pub fn stamp(data_dir: &Path) -> String {
    let mut text = String::new();
    for (dir, extension) in [
        ("member/wal", "wal"),
        ("member/snap", "snap"),
        ("member/snap", "db"),
    ] {
        let mut paths = files(&data_dir.join(dir), extension);
        if extension == "db" {
            paths.push(data_dir.join("member/snap/db"));
        }
        for path in paths {
            if let Ok(it) = fs::metadata(&path) {
                use std::fmt::Write as _;
                let _ = writeln!(
                    text,
                    "{} {} {} {}.{}",
                    path.display(),
                    it.ino(),
                    it.len(),
                    it.mtime(),
                    it.mtime_nsec()
                );
            }
        }
    }
    crate::state::sha256(text.as_bytes())
}

fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .map(|it| it.path())
        .filter(|it| it.extension().is_some_and(|it| it == extension))
        .collect();
    found.sort();
    found
}

/// Cluster and member of a log segment. A segment that was allocated and not used yet has none.
fn owner(segment: &Path) -> Option<(ClusterId, MemberId)> {
    let mut head = Vec::with_capacity(HEAD_BYTES);
    File::open(segment)
        .ok()?
        .take(HEAD_BYTES as u64)
        .read_to_end(&mut head)
        .ok()?;
    let mut rest = head.as_slice();
    // Checksum, then metadata; a few more are looked at, none is needed.
    for _ in 0..4 {
        let (record, after) = frame(rest)?;
        if record.kind == METADATA_TYPE {
            let metadata = Metadata::decode(record.data?.as_slice()).ok()?;
            return Some((ClusterId(metadata.cluster), MemberId(metadata.member)));
        }
        rest = after;
    }
    None
}

/// One frame: a little-endian length whose top byte says how many bytes of padding follow.
fn frame(bytes: &[u8]) -> Option<(Record, &[u8])> {
    let field = u64::from_le_bytes(*bytes.first_chunk::<8>()?);
    let length = usize::try_from(field & ((1 << 56) - 1)).ok()?;
    let padding = if field >> 63 == 1 {
        usize::try_from((field >> 56) & 7).ok()?
    } else {
        0
    };
    if length == 0 {
        return None;
    }
    let body = bytes.get(8..8 + length)?;
    Some((
        Record::decode(body).ok()?,
        bytes.get(8 + length + padding..)?,
    ))
}

/// Whether another process holds bbolt's lock (rules A10, D4).
fn is_locked(db: &Path) -> bool {
    use rustix::fs::{FlockOperation, flock};
    let Ok(file) = File::open(db) else {
        return false;
    };
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => {
            let _ = flock(&file, FlockOperation::Unlock);
            false
        }
        Err(error) => error == rustix::io::Errno::WOULDBLOCK,
    }
}
