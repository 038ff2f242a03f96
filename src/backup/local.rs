//! Snapshots in a directory of this host: `PATH/CLUSTER/NAME.db.zst` with `NAME.json` beside it.
//!
//! A snapshot is there once its manifest is: that is renamed into place last. What this operator did
//! not write is never touched and never counted.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::StatVfsMountFlags;

use super::manifest::{Manifest, ManifestError, Verified};
use super::name::SnapshotName;
use crate::cluster::Timestamp;
use crate::disk;
use crate::error::shell_word;
use crate::state::{self, StateError};
use crate::untrusted::Folder;

/// What the file of a snapshot ends with.
pub const SNAPSHOT: &str = ".db.zst";
/// What the file of a manifest ends with.
pub const MANIFEST: &str = ".json";
/// No manifest is longer.
pub const MANIFEST_MAX: u64 = 64 * 1024;
/// What a file ends with that is being written.
pub const PART: &str = ".part";

/// The snapshots of one cluster in a directory of this host.
#[derive(Clone, Debug)]
pub struct LocalStore {
    path: PathBuf,
    dir: PathBuf,
    cluster: String,
}

/// Why the directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// It is not there.
    #[error("{} is not there: mount the disk that holds the snapshots, or create the directory", .0.display())]
    Missing(PathBuf),
    /// It held snapshots before, and is empty now.
    #[error("{} held snapshots of this cluster and no longer does: mount the disk that holds them; to begin anew there, create {}", path.display(), dir.display())]
    Emptied {
        /// The directory of the document.
        path: PathBuf,
        /// The cluster's own below it.
        dir: PathBuf,
    },
    /// What lies behind it is not this cluster's to write to.
    #[error("{} is a link: put a directory in its place, or name the link's target in the document", .0.display())]
    Link(PathBuf),
    /// It is another user's.
    #[error("the operator may not write to {}: give it to the user that the operator runs as; on a host: sudo chown etcd-operator:etcd-operator {}", .0.display(), shell_word(&.0.to_string_lossy()))]
    NotOurs(PathBuf),
    /// Nothing can be written there.
    #[error("{} is read-only for the operator: if the document named it only now, sudo systemctl restart etcd-operator (etcd runs on); else see the kernel's log (dmesg), and mount it for writing or replace the disk", .0.display())]
    ReadOnly(PathBuf),
    /// There is not enough room (rule A7).
    #[error("{} has {} MiB free and the snapshot may need {} MiB beside a reserve of {} MiB: free some space, or lower maxBytes or keep, or remove snapshots by name: etcd-operator backup delete NAME", path.display(), free >> 20, needed >> 20, reserve >> 20)]
    Space {
        /// Where.
        path: PathBuf,
        /// Bytes.
        free: u64,
        /// Bytes.
        needed: u64,
        /// Bytes that stay free.
        reserve: u64,
    },
    /// A file could not be read or written.
    #[error(transparent)]
    State(#[from] StateError),
    /// A file could not be read or written.
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

/// A snapshot that lies in a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: SnapshotName,
    /// What its manifest says, or why it says nothing.
    pub manifest: Result<Manifest, String>,
    /// Bytes of the snapshot's file; none where it is not there, or is a link.
    pub size: Option<u64>,
}

/// etcd's log takes its room in pieces of 64 MB; so much is left to it, and of a disk that holds nothing but this
/// cluster's snapshots.
pub const RESERVE: u64 = 128 << 20;
/// So much is left, or a tenth of the disk where that is more, to others that write to it: journals, images, etcd. Of a
/// disk of less than 4 GiB, a quarter of it.
const RESERVE_SHARED: u64 = 1 << 30;
/// No more is left of a disk of any size: a disk of 1 TB with 50 GB free has room for a snapshot.
const RESERVE_MOST: u64 = 8 << 30;

/// Bytes that snapshots leave free of a file system of this size. `alone`: nothing else lies on it.
fn reserve(total: u64, alone: bool) -> u64 {
    if alone {
        return RESERVE;
    }
    RESERVE
        .max((total / 10).min(RESERVE_MOST))
        .max(RESERVE_SHARED.min(total / 4))
}

impl LocalStore {
    /// The snapshots of `cluster` below `path`. Nothing is touched.
    pub fn at(path: &Path, cluster: &str) -> Self {
        LocalStore {
            path: path.to_owned(),
            dir: path.join(cluster),
            cluster: cluster.to_owned(),
        }
    }

    /// The directory that the document names.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes ready to write. `used_before`: snapshots were written there once, so that an empty
    /// directory is one whose disk is not mounted. The caller holds the lock on backups.
    pub fn prepare(&self, used_before: bool) -> Result<(), LocalError> {
        if !self.path.is_dir() {
            return Err(LocalError::Missing(self.path.clone()));
        }
        let flags = rustix::fs::statvfs(&self.path).map(|it| it.f_flag);
        if flags.is_ok_and(|it| it.contains(StatVfsMountFlags::RDONLY)) {
            return Err(LocalError::ReadOnly(self.path.clone()));
        }
        self.no_link()?;
        if self.dir.is_dir() {
            return self.end_interrupted();
        }
        if used_before {
            return Err(LocalError::Emptied {
                path: self.path.clone(),
                dir: self.dir.clone(),
            });
        }
        match state::create_private_dir(&self.dir) {
            Err(StateError::Io { source, .. })
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                return Err(LocalError::NotOurs(self.path.clone()));
            }
            made => made?,
        }
        Ok(state::sync_dir(&self.path)?)
    }

    /// Ends what a power cut left in the middle: half a snapshot goes, with the room that it takes;
    /// one that has its name and waits for its manifest gets it.
    fn end_interrupted(&self) -> Result<(), LocalError> {
        remove_file(&self.part())?;
        let Some(folder) = self.folder()? else {
            return Ok(());
        };
        let waiting = folder.names(|it| {
            let stem = it.strip_suffix(PART)?.strip_suffix(MANIFEST)?;
            self.name_of_ours(stem)
        });
        for name in waiting.map_err(io_error("read", &self.dir))? {
            let (manifest, part) = (self.manifest_path(&name), self.manifest_part(&name));
            let said = folder.read(&format!("{name}{MANIFEST}{PART}"), MANIFEST_MAX);
            let said = said.ok();
            let said = said.and_then(|it| Manifest::decode(&it, &name.to_string()).ok());
            let size = folder.size(&format!("{name}{SNAPSHOT}"));
            let fits = said.is_some_and(|it| Some(it.file.size) == size);
            if fits && !manifest.exists() {
                rename(&part, &manifest)?;
            } else {
                remove_file(&part)?;
            }
            state::sync_dir(&self.dir)?;
        }
        Ok(())
    }

    /// Sees that there is room for so many bytes, and the disk's [`reserve`] left.
    pub fn room_for(&self, needed: u64) -> Result<(), LocalError> {
        let alone = self.is_alone();
        let reserve = disk::size_bytes(&self.dir).map_or(RESERVE, |it| reserve(it, alone));
        room_beside(&self.dir, needed, reserve)
    }

    /// Whether a whole file system is mounted there, on which lie this cluster's snapshots and nothing else.
    fn is_alone(&self) -> bool {
        if disk::is_whole(&self.dir) {
            return true;
        }
        let others = |name: &std::ffi::OsStr| name != "lost+found" && name != self.cluster.as_str();
        let mut found = fs::read_dir(&self.path).into_iter().flatten().flatten();
        disk::is_whole(&self.path)
            && disk::device(&self.path) == disk::device(&self.dir)
            && !found.any(|it| others(&it.file_name()))
    }

    /// The file of a snapshot.
    pub fn snapshot(&self, name: &SnapshotName) -> PathBuf {
        self.dir.join(format!("{name}{SNAPSHOT}"))
    }

    fn manifest_path(&self, name: &SnapshotName) -> PathBuf {
        self.dir.join(format!("{name}{MANIFEST}"))
    }

    fn manifest_part(&self, name: &SnapshotName) -> PathBuf {
        self.dir.join(format!("{name}{MANIFEST}{PART}"))
    }

    /// Where a new snapshot is written. What an interrupted one left there is replaced.
    pub fn part(&self) -> PathBuf {
        self.dir.join(format!(".{}{SNAPSHOT}{PART}", self.cluster))
    }

    /// Makes a verified, synced snapshot visible: the file first, then its manifest.
    pub fn commit(
        &self,
        part: &Path,
        name: &SnapshotName,
        it: &Manifest,
    ) -> Result<(), LocalError> {
        let manifest = self.manifest_path(name);
        let manifest_part = self.manifest_part(name);
        state::write_synced(&manifest_part, &it.encode())?;
        rename(part, &self.snapshot(name))?;
        rename(&manifest_part, &manifest)?;
        Ok(state::sync_dir(&self.dir)?)
    }

    /// Writes down to which level a further verification came; `now`: the time, if it is trusted.
    pub fn record_level(
        &self,
        name: &SnapshotName,
        manifest: &Manifest,
        level: u8,
        now: Option<Timestamp>,
    ) -> Result<(), LocalError> {
        let at = now.map(crate::clock::rfc3339);
        let manifest = Manifest {
            verified: Verified { level, at },
            ..manifest.clone()
        };
        Ok(state::write_file(
            &self.manifest_path(name),
            &manifest.encode(),
        )?)
    }

    /// Removes a snapshot. Its file first becomes half a snapshot, which the next one replaces: a
    /// power cut leaves no large file that nobody knows. The caller holds the lock on backups.
    pub fn remove(&self, name: &SnapshotName) -> Result<(), LocalError> {
        let (snapshot, part) = (self.snapshot(name), self.part());
        match fs::rename(&snapshot, &part) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(io_error("remove", &snapshot)(error));
            }
            _ => {}
        }
        remove_file(&self.manifest_path(name))?;
        remove_file(&part)?;
        Ok(state::sync_dir(&self.dir)?)
    }

    /// Changes whenever a snapshot or a manifest comes or goes; none where the directory is not there.
    pub fn stamp(&self) -> Option<std::time::SystemTime> {
        fs::metadata(&self.dir).ok()?.modified().ok()
    }

    /// Every snapshot of this cluster, newest first. None where the directory is not there.
    pub fn list(&self) -> Result<Vec<Entry>, LocalError> {
        if !self.path.is_dir() {
            return Err(LocalError::Missing(self.path.clone()));
        }
        let Some(folder) = self.folder()? else {
            return Ok(Vec::new());
        };
        let names = folder.names(|it| {
            let stem = it.strip_suffix(SNAPSHOT);
            self.name_of_ours(stem.or_else(|| it.strip_suffix(MANIFEST))?)
        });
        let mut names = names.map_err(io_error("read", &self.dir))?;
        names.sort_by_cached_key(ToString::to_string);
        names.dedup();
        let names = names.into_iter();
        let mut found: Vec<Entry> = names.map(|it| entry(&folder, it)).collect();
        found.sort_by_key(|it| std::cmp::Reverse(it.order()));
        Ok(found)
    }

    /// One of these snapshots; none where it does not lie there.
    pub fn find(&self, name: &SnapshotName) -> Result<Option<Entry>, LocalError> {
        let Some(folder) = self.folder()? else {
            return Ok(None);
        };
        let found = entry(&folder, name.clone());
        Ok((found.manifest.is_ok() && found.size.is_some()).then_some(found))
    }

    /// The cluster's own directory is one, or is not there.
    fn no_link(&self) -> Result<(), LocalError> {
        if state::is_link(&self.dir) {
            return Err(LocalError::Link(self.dir.clone()));
        }
        Ok(())
    }

    /// The cluster's own directory; none where it is not there.
    fn folder(&self) -> Result<Option<Folder>, LocalError> {
        self.no_link()?;
        let opened = Folder::named(&self.path).and_then(|it| it.below(&self.cluster));
        match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some).map_err(io_error("read", &self.dir)),
        }
    }

    /// The file of a snapshot, open: what is proven of it holds for this, whatever becomes of its name.
    pub fn open(&self, name: &SnapshotName) -> io::Result<File> {
        let folder = Folder::named(&self.path)?.below(&self.cluster)?;
        folder.open(&format!("{name}{SNAPSHOT}"))
    }

    fn name_of_ours(&self, stem: &str) -> Option<SnapshotName> {
        let name = stem.parse::<SnapshotName>().ok();
        name.filter(|it| it.is_of(&self.cluster))
    }
}

fn entry(folder: &Folder, name: SnapshotName) -> Entry {
    let manifest = match folder.read(&format!("{name}{MANIFEST}"), MANIFEST_MAX) {
        Ok(bytes) => Manifest::decode(&bytes, &name.to_string())
            .map_err(|error: ManifestError| error.to_string()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err("it has no manifest".to_owned())
        }
        Err(error) => Err(format!("its manifest cannot be read: {error}")),
    };
    Entry {
        size: folder.size(&format!("{name}{SNAPSHOT}")),
        manifest,
        name,
    }
}

/// Sees that there is room in a directory for so many bytes that soon go again, and [`RESERVE`] left.
pub(super) fn room_for(dir: &Path, needed: u64) -> Result<(), LocalError> {
    room_beside(dir, needed, RESERVE)
}

fn room_beside(dir: &Path, needed: u64, reserve: u64) -> Result<(), LocalError> {
    match disk::free_bytes(dir) {
        Some(free) if free < needed.saturating_add(reserve) => Err(LocalError::Space {
            path: dir.to_owned(),
            free,
            needed,
            reserve,
        }),
        _ => Ok(()),
    }
}

fn io_error<'a>(what: &'static str, path: &'a Path) -> impl Fn(io::Error) -> LocalError + 'a {
    move |source| LocalError::Io {
        what,
        path: path.to_owned(),
        source,
    }
}

fn remove_file(path: &Path) -> Result<(), LocalError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(io_error("remove", path)(error))
        }
        _ => Ok(()),
    }
}

fn rename(from: &Path, to: &Path) -> Result<(), LocalError> {
    fs::rename(from, to).map_err(io_error("rename", from))
}

impl Entry {
    /// It was taken from one of these clusters, by its manifest (rule A1).
    pub fn is_of(&self, clusters: &[String]) -> bool {
        let manifest = self.manifest.as_ref();
        manifest.is_ok_and(|it| clusters.contains(&it.cluster_id))
    }

    /// The public key that signed it; none where nobody has.
    pub fn signer(&self) -> Option<&str> {
        self.manifest.as_ref().ok()?.signer()
    }

    /// Newer ones are larger: by revision, and at the same revision by time. Revisions only grow
    /// within a cluster, clocks do not (rule G5).
    pub fn order(&self) -> (i64, Option<i64>) {
        (self.name.revision, self.name.created().map(|it| it.0))
    }

    /// The level that it was found to have, if its file is there with the size that it shall have.
    pub fn level(&self) -> u8 {
        match &self.manifest {
            Ok(it) if self.size == Some(it.file.size) => it.verified.level,
            _ => 0,
        }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test writes files")]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::backup::manifest::tests::manifest;

    #[test]
    fn nothing_is_read_or_written_through_a_link() {
        let base = std::env::temp_dir().join(format!("linked-{}", std::process::id()));
        let _ = fs::remove_dir_all(&base);
        let (own, others) = (base.join("own"), base.join("others"));
        for dir in [&own, &others] {
            fs::create_dir_all(dir).unwrap();
        }
        let manifest = manifest();
        let name: SnapshotName = manifest.name.parse().unwrap();
        let their = LocalStore::at(&others, "shop");
        their.prepare(false).unwrap();
        let bytes = vec![0; usize::try_from(manifest.file.size).unwrap()];
        fs::write(their.snapshot(&name), bytes).unwrap();
        their.record_level(&name, &manifest, 3, None).unwrap();
        assert_eq!(their.list().unwrap()[0].level(), 3);

        // The directory, the file of a snapshot, its manifest.
        let store = LocalStore::at(&own, "shop");
        symlink(others.join("shop"), own.join("shop")).unwrap();
        assert!(matches!(store.prepare(false), Err(LocalError::Link(_))));
        assert!(matches!(store.list(), Err(LocalError::Link(_))));
        fs::remove_file(own.join("shop")).unwrap();
        store.prepare(false).unwrap();
        symlink(their.snapshot(&name), store.snapshot(&name)).unwrap();
        store.record_level(&name, &manifest, 3, None).unwrap();
        let entry = &store.list().unwrap()[0];
        assert_eq!((entry.size, entry.level()), (None, 0));
        fs::remove_file(store.manifest_path(&name)).unwrap();
        symlink(their.manifest_path(&name), store.manifest_path(&name)).unwrap();
        assert!(store.list().unwrap()[0].manifest.is_err());
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn a_disk_that_others_write_to_keeps_a_tenth_or_a_gibibyte() {
        const GIB: u64 = 1 << 30;
        assert_eq!(reserve(32 * GIB, false), 32 * GIB / 10);
        assert_eq!(reserve(8 * GIB, false), GIB);
        assert_eq!(reserve(GIB, false), GIB / 4);
        assert_eq!(reserve(GIB / 8, false), RESERVE);
        assert_eq!(reserve(32 * GIB, true), RESERVE);
        assert_eq!(reserve(4 * GIB, false), GIB);
        assert_eq!(reserve(3 * GIB, false), 3 * GIB / 4);
        assert_eq!(reserve(1024 * GIB, false), RESERVE_MOST);
    }

    /// A reader of it would wait for ever, or take all the memory there is.
    #[test]
    fn a_manifest_that_is_a_fifo_or_has_no_end_is_refused_at_once() {
        let base = std::env::temp_dir().join(format!("manifests-{}", std::process::id()));
        let _ = fs::remove_dir_all(&base);
        fs::create_dir_all(&base).unwrap();
        let store = LocalStore::at(&base, "shop");
        store.prepare(false).unwrap();
        let name: SnapshotName = manifest().name.parse().unwrap();
        let path = store.manifest_path(&name);
        let why = || store.list().unwrap()[0].manifest.clone().unwrap_err();
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
        assert!(why().contains("no regular file"), "{}", why());
        fs::remove_file(&path).unwrap();
        File::create(&path).unwrap().set_len(3 << 30).unwrap();
        assert!(why().contains("larger than the 65536 bytes"), "{}", why());
        fs::remove_dir_all(&base).unwrap();
    }
}
