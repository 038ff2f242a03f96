//! Brings a snapshot back in place of a member's data (rules B8, D34, D35).
//!
//! ```text
//! Requested   nothing is touched; a job proves the snapshot and makes new data beside the old
//! Prepared    the new data lies in restore.part, synced
//! Swapping    the guard starts nothing; etcd stops, old data goes aside, new data takes its place
//! Starting    the guard starts etcd on the new data; once it serves, the record goes
//! Undoing     it did not serve: the new data goes aside, the old data comes back
//! ```
//!
//! Each phase begins after the record of the restore is written, and each step checks what is
//! there. After a power cut at any instruction, the rest of the phase therefore follows. A restore
//! deletes only what a restore has made.

mod etcdutl;
mod loss;
mod often;
mod undo;
mod unpack;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::Progress;
use super::local::LocalError;
use super::name::Several;
use super::remote::CopyError;
use super::verify::{self, VerifyError};
use crate::disk;
use crate::etcd::data_dir;
use crate::member::crash::CrashPoint;
use crate::member::records::{self, IdentityFile, Jump};
use crate::member::restore_record::RestoreRecord;
use crate::paths::Paths;
use crate::state::{self, StateError};
use crate::version::Version;

pub(in crate::backup) use etcdutl::Etcdutl;
pub use loss::{count as count_loss, is_damaged_still};
pub use often::{forget_recoveries, note_recovery, why_no_more};
pub use undo::check_aside;

/// etcd allocates its log in pieces of 64 MB.
const LOG_BYTES: u64 = 64 << 20;

/// Why a restore does not go on.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The snapshot could not be verified.
    #[error(transparent)]
    Verify(#[from] VerifyError),
    /// The directory of the snapshots failed.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// A bucket failed.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// A record could not be read or written.
    #[error(transparent)]
    State(#[from] StateError),
    /// There is no such snapshot.
    #[error("{0}")]
    NoSnapshot(String),
    /// What it is called by fits several.
    #[error("{0}")]
    Several(String),
    /// There are snapshots, and nobody who counts has signed one.
    #[error("{0}")]
    Untrusted(String),
    /// The snapshot is of a newer line of etcd.
    #[error(
        "the snapshot is of etcd {snapshot}, and the data would be given to etcd {target}, which cannot read it: name an older snapshot, or set version to a patch of the snapshot's line"
    )]
    NewerMinor {
        /// The snapshot's.
        snapshot: String,
        /// The cluster's.
        target: String,
    },
    /// The data that the document would have replaced is not damaged.
    #[error("a second check found the data sound: nothing is restored, and etcd starts with it")]
    Sound,
    /// Not enough room.
    #[error("{} has {} MiB free and the restore needs {} MiB beside the data that is kept", path.display(), free >> 20, needed >> 20)]
    Space {
        /// Where.
        path: PathBuf,
        /// Bytes.
        free: u64,
        /// Bytes.
        needed: u64,
    },
    /// The data that a restore had set aside cannot be used.
    #[error("the data in {} {why}", path.display())]
    Aside {
        /// Where.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// The data made from the snapshot was removed before it took its place.
    #[error("the data made from the snapshot is missing: somebody removed {}", .0.display())]
    NewDataGone(PathBuf),
    /// A directory that was named is no data of one etcd that can be taken up.
    #[error("{}: {why}", path.display())]
    Directory {
        /// The one that was named.
        path: PathBuf,
        /// Why not, and what helps.
        why: String,
    },
    /// etcdutl is not in the store, or refused.
    #[error("etcdutl {version}: {why}")]
    Etcdutl {
        /// Which.
        version: String,
        /// Its words.
        why: String,
    },
    /// A step that the system refused.
    #[error("failed to {what} {}", path.display())]
    Io {
        /// The step.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl From<Several> for RestoreError {
    fn from(it: Several) -> Self {
        RestoreError::Several(it.to_string())
    }
}

fn io_error<'a>(what: &'static str, path: &'a Path) -> impl Fn(io::Error) -> RestoreError + 'a {
    move |source| RestoreError::Io {
        what,
        path: path.to_owned(),
        source,
    }
}

/// Bytes that preparing needs beside the data that is kept: the unpacked snapshot, the new database
/// and its log.
pub fn needed(database: u64) -> u64 {
    database.saturating_mul(2).saturating_add(LOG_BYTES)
}

/// Checks that there is enough free space.
pub fn check_room(storage_dir: &Path, database: u64) -> Result<(), RestoreError> {
    check_room_beside(storage_dir, database, 0)
}

/// The same with so many bytes that stay free.
pub(super) fn check_room_beside(
    storage_dir: &Path,
    database: u64,
    kept_free: u64,
) -> Result<(), RestoreError> {
    let needed = needed(database).saturating_add(kept_free);
    match disk::free_bytes(storage_dir) {
        Some(free) if free < needed => Err(RestoreError::Space {
            path: storage_dir.to_owned(),
            free,
            needed,
        }),
        _ => Ok(()),
    }
}

/// New data, beside the old.
pub struct Made {
    /// The identity of the new data, with the ids that the data has.
    pub identity: IdentityFile,
    /// The last entry of the log that is applied in the snapshot.
    pub index: Option<u64>,
}

/// The result of preparing.
pub struct Prepared {
    /// The restore, its source resolved.
    pub record: RestoreRecord,
    /// The identity of the new data, or why nothing was made.
    pub result: Result<IdentityFile, Failed>,
}

/// Why nothing was made.
pub struct Failed {
    /// For people.
    pub why: String,
    /// The data that should have been replaced is sound.
    pub is_sound: bool,
    /// Bytes that must be free for the restore.
    pub room: Option<u64>,
}

/// What preparing needs to know.
pub struct Preparation<'a> {
    /// The restore.
    pub record: &'a RestoreRecord,
    /// Where the data lies.
    pub storage_dir: &'a Path,
    /// The identity for the new data.
    pub identity: &'a IdentityFile,
    /// The store of versions.
    pub store: &'a Path,
    /// Where the member's peers find it.
    pub peer_url: &'a str,
}

/// Verifies the snapshot, levels 1 to 3, and makes the new data beside the old. While etcdutl
/// works, another thread walks the tree of the same snapshot. Leftovers of an interrupted attempt
/// are removed, and the data is made anew.
pub fn prepare(
    it: &Preparation<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Made, RestoreError> {
    let scratch = RestoreRecord::scratch(it.storage_dir);
    match fs::remove_dir_all(&scratch) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(io_error("remove", &scratch)(error));
        }
        _ => {}
    }
    state::create_private_dir(it.storage_dir)?;
    check_room(it.storage_dir, it.record.source.database)?;
    state::create_private_dir(&scratch)?;
    let unpacked = scratch.join("snapshot.db");
    unpack::unpack(&it.record.source, &unpacked, progress)?;
    CrashPoint::Unpacked.pass();
    let data = scratch.join("data");
    let (index, agreed) = std::thread::scope(|scope| {
        let hash = it.record.source.hash.as_deref();
        let walked = &unpacked;
        let walk = scope.spawn(move || verify::check_unpacked(walked, hash));
        let made = run_etcdutl(it, &unpacked, &data);
        // Report a fault of the snapshot first: it says more than what etcdutl made of it.
        let summary = match walk.join() {
            Ok(walked) => walked?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        made.map(|()| (summary.consistent_index, summary.cluster_version))
    })?;
    let agreed = agreed.and_then(|it| it.parse::<Version>().ok());
    check_version(agreed, it.identity.version())?;
    fs::remove_file(&unpacked).map_err(io_error("remove", &unpacked))?;
    sync_tree(&data)?;
    state::sync_dir(&scratch)?;
    state::sync_dir(it.storage_dir)?;
    CrashPoint::DataMade.pass();
    let owner = data_dir::look(&data, None, false).owner;
    let (cluster, member) = owner.ok_or_else(|| RestoreError::Etcdutl {
        version: it.identity.member.version.clone(),
        why: "made a data directory without a readable log".to_owned(),
    })?;
    let from = it.record.source.revision;
    let mut identity = it.identity.clone();
    identity.cluster.id = Some(cluster.to_string());
    identity.member.id = Some(member.to_string());
    identity.cluster.jumps.push(Jump {
        from,
        to: from.saturating_add_unsigned(it.record.bump),
    });
    Ok(Made { identity, index })
}

/// Refuses a snapshot of a newer line of etcd, which `target` cannot read.
pub(super) fn check_version(
    snapshot: Option<Version>,
    target: Option<Version>,
) -> Result<(), RestoreError> {
    match snapshot.zip(target) {
        Some((snapshot, target)) if snapshot.is_newer_line_than(target) => {
            Err(RestoreError::NewerMinor {
                snapshot: snapshot.to_string(),
                target: target.to_string(),
            })
        }
        _ => Ok(()),
    }
}

fn run_etcdutl(it: &Preparation<'_>, snapshot: &Path, data: &Path) -> Result<(), RestoreError> {
    let etcdutl = Etcdutl::of(it.store, &it.identity.member.version)?;
    let member = &it.identity.member.name;
    let mut command = etcdutl.command();
    command
        .args(["snapshot", "restore"])
        .arg(snapshot)
        .arg("--data-dir")
        .arg(data)
        .args(["--name", member])
        .args(["--initial-cluster", &format!("{member}={}", it.peer_url)])
        .args(["--initial-cluster-token", &it.identity.cluster.token])
        .args(["--initial-advertise-peer-urls", it.peer_url])
        // The checksum was compared while unpacking; a copy of a data directory has none (rule D37).
        .arg("--skip-hash-check");
    if it.record.bump > 0 {
        let bump = it.record.bump.to_string();
        command.args(["--bump-revision", &bump, "--mark-compacted"]);
    }
    etcdutl.run(&mut command, it.storage_dir)
}

/// Syncs everything below a directory to the disk.
fn sync_tree(dir: &Path) -> Result<(), RestoreError> {
    for entry in fs::read_dir(dir).map_err(io_error("read", dir))? {
        let path = entry.map_err(io_error("read", dir))?.path();
        if path.is_dir() {
            sync_tree(&path)?;
        } else {
            let file = File::open(&path).map_err(io_error("open", &path))?;
            file.sync_all().map_err(io_error("sync", &path))?;
        }
        state::inherit_owner(&path).map_err(io_error("set the owner of", &path))?;
    }
    Ok(state::sync_dir(dir)?)
}

/// Puts the new data in the place of the old, also after an interrupted attempt. etcd does not run,
/// and the guard does not start it.
pub fn swap(record: &RestoreRecord, paths: &Paths, storage_dir: &Path) -> Result<(), RestoreError> {
    let data = records::data_dir(storage_dir);
    let made = record.made(storage_dir);
    let kept = record.kept(storage_dir);
    if made.exists() {
        if data.exists() {
            fs::rename(&data, &kept).map_err(io_error("set aside", &data))?;
            state::sync_dir(storage_dir)?;
        }
        CrashPoint::OldDataAside.pass();
        fs::rename(&made, &data).map_err(io_error("rename", &made))?;
        state::sync_dir(storage_dir)?;
    } else if !is_swapped(record, &data, &kept) {
        if kept.exists() {
            fs::rename(&kept, &data).map_err(io_error("rename", &kept))?;
            state::sync_dir(storage_dir)?;
        }
        return Err(RestoreError::NewDataGone(made));
    }
    CrashPoint::NewDataInPlace.pass();
    if let Some(next) = &record.next {
        records::save_identity(paths, storage_dir, next)?;
    }
    CrashPoint::IdentityWritten.pass();
    let _ = fs::remove_dir_all(RestoreRecord::scratch(storage_dir));
    Ok(())
}

/// Whether an earlier attempt has already put the new data in its place. Then the old data lies
/// aside, or, if there was none, the log names the new cluster.
fn is_swapped(record: &RestoreRecord, data: &Path, kept: &Path) -> bool {
    if kept.exists() {
        return data.exists();
    }
    let owner = data_dir::look(data, None, false).owner;
    let next = record.next.as_ref().and_then(|it| it.cluster.id.as_deref());
    owner.is_some_and(|(cluster, _)| Some(cluster.to_string().as_str()) == next)
}

/// Puts the old data back, and the new data aside. etcd does not run, and the guard does not start it.
pub fn undo(record: &RestoreRecord, paths: &Paths, storage_dir: &Path) -> Result<(), RestoreError> {
    let data = records::data_dir(storage_dir);
    let kept = record.kept(storage_dir);
    let failed = record.failed(storage_dir);
    if data.exists() && !failed.exists() {
        fs::rename(&data, &failed).map_err(io_error("set aside", &data))?;
        state::sync_dir(storage_dir)?;
    }
    CrashPoint::NewDataAside.pass();
    if kept.exists() && !data.exists() {
        fs::rename(&kept, &data).map_err(io_error("rename", &kept))?;
        state::sync_dir(storage_dir)?;
    }
    CrashPoint::OldDataBack.pass();
    match &record.former {
        Some(former) => records::save_identity(paths, storage_dir, former)?,
        // No cluster lived here before. An identity without data would look like lost data.
        None => {
            for path in [records::marker_path(storage_dir), paths.identity()] {
                for path in [path.with_extension("json.previous"), path] {
                    let _ = fs::remove_file(path);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::restore_record::{BUMP, Reason, SourceFile, StoredPhase};
    use std::fs::create_dir_all;

    fn record() -> RestoreRecord {
        let identity: IdentityFile = serde_json::from_str(
            r#"{"cluster": {"name": "shop", "token": "t", "id": "a"},
                "member": {"name": "shop-0", "version": "3.6.0", "quota": 1, "machineID": "m"}}"#,
        )
        .unwrap();
        let source = SourceFile {
            path: PathBuf::new(),
            name: String::new(),
            revision: 1,
            cluster_id: None,
            database: 0,
            checksummed: true,
            sha256: None,
            hash: None,
        };
        RestoreRecord {
            id: "1".to_owned(),
            reason: Reason::Command,
            phase: StoredPhase::Swapping,
            source,
            live_revision: None,
            live_at_most: None,
            bump: BUMP,
            former: Some(identity.clone()),
            next: Some(identity),
            asked: None,
            version: None,
            takes_back: None,
        }
    }

    /// Revisions that clients saw in a life that was taken back are never given out again (rule D35).
    #[test]
    fn a_restore_after_an_undo_goes_beyond_the_life_that_was_taken_back() {
        let jump = Jump {
            from: 31,
            to: 1_000_000_031,
        };
        let mut undo = record();
        undo.takes_back = Some("data.before-restore-1".to_owned());
        if let Some(it) = undo.former.as_mut() {
            it.cluster.jumps = vec![jump];
        }
        for (seen, highest) in [(Some(1_000_000_040), 1_000_000_040), (None, 2_000_000_031)] {
            undo.live_revision = seen;
            undo.remember_highest();
            let back = undo.next.clone().unwrap();
            assert_eq!(back.cluster.highest, Some(highest));
            let mut next = RestoreRecord {
                former: Some(back),
                ..record()
            };
            next.source.revision = 31;
            next.live_revision = Some(45);
            next.set_bump(None);
            assert!(31 + i64::try_from(next.bump).unwrap() > highest);
        }
    }

    #[test]
    fn new_data_that_is_gone_is_never_taken_for_data_in_its_place() {
        let root = std::env::temp_dir().join(format!("swap-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let (paths, dir) = (Paths::under(&root), root.join("member"));
        create_dir_all(&paths.lib).unwrap();
        let record = record();
        let (data, kept) = (dir.join("data"), record.kept(&dir));
        let made = RestoreRecord::scratch(&dir).join("data");
        let swapped = || swap(&record, &paths, &dir);
        create_dir_all(data.join("old")).unwrap();
        assert!(matches!(swapped(), Err(RestoreError::NewDataGone(_))));
        assert!(data.join("old").exists() && !kept.exists());
        // The power went between the two renames, and then somebody tidied up.
        fs::rename(&data, &kept).unwrap();
        assert!(matches!(swapped(), Err(RestoreError::NewDataGone(_))));
        assert!(data.join("old").exists() && !kept.exists());
        assert!(!records::marker_path(&dir).exists(), "who lives here stays");

        create_dir_all(made.join("new")).unwrap();
        for _ in 0..2 {
            swapped().unwrap();
            assert!(data.join("new").exists() && kept.join("old").exists());
        }
        fs::remove_dir_all(&root).unwrap();
    }
}
