//! How well a snapshot is checked (rule B4): level 1 that its file is there with its size, 2 that
//! each byte is the one that was written, 3 that the database in it is whole. Level 4, a trial
//! restore, is [`super::trial`]'s.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use ring::digest::{Context, SHA256};
use rustix::fs::Advice;

use super::frames::FrameReader;
use super::local::LocalStore;
use super::manifest::Manifest;
use super::name::SnapshotName;
use super::window::Windows;
use super::{Phase, Progress};
use crate::error::shell_word;
use crate::etcd::bolt::{self, BoltError, Summary};
use crate::etcd::read_at::ReadAt;
use crate::state::hex;
use crate::untrusted;

/// Bytes of the sha256 that etcd sends last.
pub(super) const TRAILER: u64 = 32;
/// Read at once.
const BUFFER: usize = 256 * 1024;
/// The first bytes of a zstd frame.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// What is wrong with a snapshot.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// Level 1.
    #[error("{} is missing (level 1)", .0.display())]
    Missing(PathBuf),
    /// Level 1.
    #[error("level 1: {} has {found} bytes, written were {expected}", path.display())]
    Size {
        /// The file.
        path: PathBuf,
        /// Bytes that are there.
        found: u64,
        /// Bytes that were written.
        expected: u64,
    },
    /// Level 2.
    #[error("level 2: {} is not what was written: its sha256 differs", .0.display())]
    Hash(PathBuf),
    /// Level 3.
    #[error("level 3: the database is damaged")]
    Structure(#[from] BoltError),
    /// Level 3.
    #[error("level 3: {what} is {found}, the manifest says {expected}")]
    Differs {
        /// Of what.
        what: &'static str,
        /// In the database.
        found: String,
        /// In the manifest.
        expected: String,
    },
    /// It could not be read.
    #[error("failed to read {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// No snapshot, or none that can be read as it is.
    #[error("{} {what}", path.display())]
    NotASnapshot {
        /// The file.
        path: PathBuf,
        /// What it is instead, and what to do.
        what: &'static str,
    },
}

impl VerifyError {
    /// The snapshot is what is wrong, and not what it lies on or who looks at it: only then is it
    /// written down as damaged.
    pub fn is_damage(&self) -> bool {
        let of_the_bytes = |it: &io::Error| {
            matches!(
                it.kind(),
                io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
            )
        };
        match self {
            VerifyError::Io { source, .. }
            | VerifyError::Structure(BoltError::Io { source, .. }) => of_the_bytes(source),
            _ => true,
        }
    }
}

/// What was read of a file is read from the disk the next time.
pub fn forget_cached(file: &File) {
    let _ = rustix::fs::fadvise(file, 0, None, Advice::DontNeed);
}

fn open(path: &Path) -> Result<File, VerifyError> {
    untrusted::open(path).map_err(unreadable(path))
}

fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> VerifyError + '_ {
    |source| match source.kind() {
        io::ErrorKind::NotFound => VerifyError::Missing(path.to_owned()),
        _ => VerifyError::Io {
            path: path.to_owned(),
            source,
        },
    }
}

/// Levels 1 to `level`, at most 3, of a file of this operator's own with the manifest of a snapshot.
pub fn verify(
    path: &Path,
    manifest: &Manifest,
    level: u8,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), VerifyError> {
    verify_open(path, open(path)?, manifest, level, progress).map(drop)
}

/// The same of a snapshot in a directory. Gives the file that was proven: its name may lead to another one by now.
pub fn verify_in(
    store: &LocalStore,
    manifest: &Manifest,
    name: &SnapshotName,
    level: u8,
    progress: &mut dyn FnMut(Progress),
) -> Result<File, VerifyError> {
    let path = store.snapshot(name);
    let file = store.open(name).map_err(unreadable(&path))?;
    verify_open(&path, file, manifest, level, progress)
}

fn verify_open(
    path: &Path,
    file: File,
    manifest: &Manifest,
    level: u8,
    progress: &mut dyn FnMut(Progress),
) -> Result<File, VerifyError> {
    if level < 3 {
        forget_cached(&file);
        check_size(path, &file, manifest)?;
        if level == 2 {
            check_hash(path, &file, manifest, progress)?;
        }
    } else {
        let summary = prove_open(path, &file, manifest, progress)?;
        differs("the hash", &hex_of(summary.hash), &manifest.hash)?;
        let (found, said) = (summary.revision, manifest.revision.snapshot);
        differs("the revision", &found.to_string(), &said.to_string())?;
        let (found, said) = (summary.entries, manifest.entries);
        differs(
            "the number of entries",
            &found.to_string(),
            &said.to_string(),
        )?;
    }
    Ok(file)
}

fn differs(what: &'static str, found: &str, expected: &str) -> Result<(), VerifyError> {
    if found == expected {
        return Ok(());
    }
    Err(VerifyError::Differs {
        what,
        found: found.to_owned(),
        expected: expected.to_owned(),
    })
}

/// Levels 1 to 3 of a snapshot that was just written; what its manifest does not say yet.
pub fn prove_new(
    path: &Path,
    manifest: &Manifest,
    progress: &mut dyn FnMut(Progress),
) -> Result<Summary, VerifyError> {
    prove_open(path, &open(path)?, manifest, progress)
}

fn prove_open(
    path: &Path,
    file: &File,
    manifest: &Manifest,
    progress: &mut dyn FnMut(Progress),
) -> Result<Summary, VerifyError> {
    forget_cached(file);
    check_size(path, file, manifest)?;
    check_hash(path, file, manifest, progress)?;
    let again = file.try_clone().map_err(unreadable(path))?;
    structure(path, again, manifest, progress)
}

fn check_size(path: &Path, file: &File, manifest: &Manifest) -> Result<(), VerifyError> {
    let found = file.size();
    if found == manifest.file.size {
        return Ok(());
    }
    Err(VerifyError::Size {
        path: path.to_owned(),
        found,
        expected: manifest.file.size,
    })
}

fn check_hash(
    path: &Path,
    file: &File,
    manifest: &Manifest,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), VerifyError> {
    let failed = |source| VerifyError::Io {
        path: path.to_owned(),
        source,
    };
    let mut sum = Context::new(&SHA256);
    let mut buffer = vec![0; BUFFER];
    let mut done = 0;
    loop {
        let count = file.read_at(&mut buffer, done).map_err(failed)?;
        if count == 0 {
            break;
        }
        sum.update(&buffer[..count]);
        done += count as u64;
        progress(Progress {
            phase: Phase::Hashing,
            done,
            total: manifest.file.size,
        });
    }
    if hex(sum.finish().as_ref()) == manifest.file.sha256 {
        return Ok(());
    }
    Err(VerifyError::Hash(path.to_owned()))
}

fn structure(
    path: &Path,
    file: File,
    manifest: &Manifest,
    progress: &mut dyn FnMut(Progress),
) -> Result<Summary, VerifyError> {
    let mut content = FrameReader::open(file).map_err(|source| VerifyError::Io {
        path: path.to_owned(),
        source,
    })?;
    let summary = walk(&mut content, progress)?;
    let (found, said) = (
        content.size(),
        manifest.database.size.saturating_add(TRAILER),
    );
    if found != said || summary.size != manifest.database.size {
        return Err(VerifyError::Differs {
            what: "the size",
            found: found.to_string(),
            expected: said.to_string(),
        });
    }
    Ok(summary)
}

fn walk(
    content: &mut dyn ReadAt,
    progress: &mut dyn FnMut(Progress),
) -> Result<Summary, BoltError> {
    let total = content.size();
    bolt::walk(content, &mut |done| {
        progress(Progress {
            phase: Phase::Walking,
            done,
            total,
        });
    })
}

/// What a file without a manifest is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Examined {
    /// What its database says.
    pub summary: Summary,
    /// It ends with etcd's checksum, which fits. A copy from a data directory has none (rule D37).
    pub checksummed: bool,
    /// It is packed as this operator packs.
    pub packed: bool,
}

/// Opens the database in a file, packed or not.
pub fn open_content(path: &Path) -> Result<(Box<dyn ReadAt>, bool), VerifyError> {
    let mut file = open(path)?;
    forget_cached(&file);
    if !is_packed(path, &mut file)? {
        return Ok((Box::new(Windows::new(file)), false));
    }
    let frames = FrameReader::open(file).map_err(|_| VerifyError::NotASnapshot {
        path: path.to_owned(),
        what: "is packed by zstd, and not whole or not by this operator: unpack it with zstd -d first",
    })?;
    Ok((Box::new(frames), true))
}

/// Whether a snapshot is packed by zstd; what is none is refused.
pub(super) fn is_packed(path: &Path, file: &mut dyn ReadAt) -> Result<bool, VerifyError> {
    let not = |what| {
        let path = path.to_owned();
        Err(VerifyError::NotASnapshot { path, what })
    };
    let mut head = [0; 32];
    if file.size() < head.len() as u64 || file.read_at(0, &mut head).is_err() {
        return not("is no snapshot: it is empty, or nearly so");
    }
    if head[..4] == ZSTD {
        return Ok(true);
    }
    if head.starts_with(b"age-encryption.org/v1") {
        return not("is encrypted: name the identity file with --identity");
    }
    if head.starts_with(b"PK\x03\x04") {
        return not("is a zip archive, as k3s compresses: unpack it first");
    }
    if head[..2] == [0x1f, 0x8b] {
        return not("is packed by gzip: unpack it first");
    }
    if head.starts_with(b"<") || head.starts_with(b"{") {
        return not("is text and no snapshot: was an error page saved?");
    }
    if head[16..20] == bolt::MAGIC.to_be_bytes() {
        return not(
            "was written on a machine of the other byte order, such as s390x: start etcd on it there, and copy its keys with etcdctl make-mirror",
        );
    }
    if file.size() < bolt::SIZE_MIN {
        return not("is no snapshot: the smallest database of etcd has 16 KiB");
    }
    Ok(false)
}

/// Level 3 of an unpacked snapshot. `hash`: the one that it must have, where that is known.
pub(super) fn check_unpacked(path: &Path, hash: Option<&str>) -> Result<Summary, VerifyError> {
    let file = open(path)?;
    let summary = walk(&mut Windows::new(file), &mut |_| ())?;
    if let Some(hash) = hash {
        differs("the hash", &hex_of(summary.hash), hash)?;
    }
    Ok(summary)
}

/// etcdutl's `HASH`, as it is written down.
pub(super) fn hex_of(hash: u32) -> String {
    format!("{hash:08x}")
}

/// What the database file of a data directory may lack, for a person. etcd writes it some seconds after it has
/// acknowledged a write (5 s in the profile `edge`); until then that is only in its log.
pub fn not_in_a_database(file: &Path) -> String {
    let whole = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let member = whole.parent().and_then(Path::parent);
    let member = member.filter(|it| it.join("wal").is_dir());
    let log = member.map_or_else(
        || "member/wal beside it".to_owned(),
        |it| it.join("wal").display().to_string(),
    );
    let dir = member.map_or_else(|| "DIR".to_owned(), |it| shell_word(&it.to_string_lossy()));
    format!(
        "it is the database of a data directory: the newest writes may be only in the log, {log}, and cannot be counted. The whole directory is the better source: etcd-operator restore --from {dir}"
    )
}

/// Everything that can be said of a snapshot without a manifest, such as one of etcdctl or k3s.
pub fn examine(path: &Path, progress: &mut dyn FnMut(Progress)) -> Result<Examined, VerifyError> {
    let (mut content, packed) = open_content(path)?;
    let summary = walk(content.as_mut(), progress)?;
    let size = content.size();
    let checksummed = match size.checked_sub(summary.size) {
        Some(TRAILER) => {
            check_trailer(path, content.as_mut(), progress)?;
            true
        }
        // etcd lets its file grow ahead of its pages; only a copy of it has a rest.
        Some(rest) if rest % 512 == 0 => false,
        _ => {
            return Err(VerifyError::NotASnapshot {
                path: path.to_owned(),
                what: "has bytes after its database that are no checksum of etcd's",
            });
        }
    };
    Ok(Examined {
        summary,
        checksummed,
        packed,
    })
}

fn check_trailer(
    path: &Path,
    content: &mut dyn ReadAt,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), VerifyError> {
    let failed = |source| VerifyError::Io {
        path: path.to_owned(),
        source,
    };
    let size = content.size() - TRAILER;
    let mut sum = Context::new(&SHA256);
    let mut buffer = vec![0; BUFFER];
    let mut done = 0;
    while done < size {
        let count = usize::try_from(size - done).map_or(BUFFER, |it| it.min(BUFFER));
        content
            .read_at(done, &mut buffer[..count])
            .map_err(failed)?;
        sum.update(&buffer[..count]);
        done += count as u64;
        progress(Progress {
            phase: Phase::Hashing,
            done,
            total: size,
        });
    }
    let mut trailer = [0; 32];
    content.read_at(size, &mut trailer).map_err(failed)?;
    if sum.finish().as_ref() == trailer {
        return Ok(());
    }
    Err(trailer_differs(path))
}

pub(super) fn trailer_differs(path: &Path) -> VerifyError {
    VerifyError::NotASnapshot {
        path: path.to_owned(),
        what: "is not what etcd sent: the checksum at its end differs",
    }
}
