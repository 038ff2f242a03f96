//! The file of a download: kept when the link breaks, and written by one command at a time.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags};

use crate::state;

/// Why it cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PartError {
    /// Another process has it.
    #[error("another command downloads {}: wait for it", .0.display())]
    Busy(PathBuf),
    /// There is no room for it and what is in it.
    #[error("{} MiB are free on the disk of {}, and {} MiB are needed: free some", free >> 20, path.display(), needed.div_ceil(1 << 20))]
    NoRoom {
        /// The file.
        path: PathBuf,
        /// In bytes.
        needed: u64,
        /// In bytes.
        free: u64,
    },
    /// It could not be read or written.
    #[error("failed to {what} {}", path.display())]
    Io {
        /// The step.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

/// The file of a download. It stays where it is, so that the next command goes on with it.
pub struct Part {
    file: File,
    path: PathBuf,
}

impl Part {
    /// Takes it up, or makes it. No link is followed.
    ///
    /// # Errors
    /// Another process has it, or the disk does not let it be written.
    pub fn open(path: &Path) -> Result<Part, PartError> {
        loop {
            let mut options = OpenOptions::new();
            let options = options.read(true).write(true).create(true).truncate(false);
            let opened = options
                .mode(0o600)
                .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
                .open(path);
            let file = opened.map_err(failed("open", path))?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Err(PartError::Busy(path.to_owned())),
                Err(error) => return Err(failed("lock", path)(error.into())),
            }
            // Whoever had it may have removed it in between.
            let ours = file.metadata().map_err(failed("read", path))?;
            if fs::symlink_metadata(path).is_ok_and(|it| it.ino() == ours.ino()) {
                let path = path.to_owned();
                return Ok(Part { file, path });
            }
        }
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How much came so far, in bytes.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn size(&self) -> Result<u64, PartError> {
        let metadata = self.file.metadata();
        Ok(metadata.map_err(failed("read", &self.path))?.len())
    }

    /// The sha256 of what came.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn sha256(&mut self) -> Result<String, PartError> {
        let begin = self.file.seek(SeekFrom::Start(0));
        let sum = begin.and_then(|_| state::copy_hashed(&mut self.file, &mut io::sink()));
        sum.map_err(failed("read", &self.path))
    }

    /// Nothing came so far.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn clear(&mut self) -> Result<(), PartError> {
        self.file.set_len(0).map_err(failed("write", &self.path))
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), PartError> {
        let end = self.file.seek(SeekFrom::End(0));
        let written = end.and_then(|_| self.file.write_all(bytes));
        written.map_err(failed("write", &self.path))
    }

    pub(super) fn check_room(&self, needed: u64) -> Result<(), PartError> {
        let Ok(disk) = rustix::fs::fstatvfs(&self.file) else {
            return Ok(());
        };
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if needed <= free {
            return Ok(());
        }
        Err(PartError::NoRoom {
            path: self.path.clone(),
            needed,
            free,
        })
    }

    /// It is of no more use.
    ///
    /// # Errors
    /// The disk does not let it go.
    pub fn remove(self) -> Result<(), PartError> {
        fs::remove_file(&self.path).map_err(failed("remove", &self.path))
    }
}

fn failed<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> PartError + 'a {
    move |source| PartError::Io {
        what,
        path: path.to_owned(),
        source,
    }
}
