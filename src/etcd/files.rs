//! Files of etcd's data, opened for reading only, and by nothing that blocks.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crate::cluster::{Detail, detail};
use crate::start::damage::FileName;

/// A part of the data that could not be read. That is no damage: the disk may be mounted later, a right
/// be given back, a cable be plugged in again.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {why}")]
pub struct Unreadable {
    /// Below the data directory.
    file: String,
    why: String,
}

impl Unreadable {
    /// The system refused it.
    pub(super) fn io(path: &Path, error: &io::Error) -> Self {
        Self::because(path, error.to_string())
    }

    fn because(path: &Path, why: impl Into<String>) -> Self {
        Unreadable {
            file: name_of(path).to_string(),
            why: why.into(),
        }
    }

    /// For people.
    pub fn detail(&self) -> Detail {
        detail(format_args!("{self}"))
    }
}

/// A file's name below the data directory.
pub(super) fn name_of(path: &Path) -> FileName {
    let parts: Vec<_> = path.iter().map(|it| it.to_string_lossy()).collect();
    let from = parts.iter().rposition(|it| it == "member").unwrap_or(0);
    let mut name = FileName::new();
    let _ = name.push_str(&parts[from..].join("/"));
    name
}

/// Opens a file of the data for reading: a regular one, behind a link or not, and nothing that blocks.
pub(super) fn open_regular(path: &Path) -> Result<(File, u64), Unreadable> {
    let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(nonblocking)
        .open(path)
        .map_err(|error| match error.kind() {
            ErrorKind::NotFound if is_link(path) => {
                Unreadable::because(path, "it is a link that leads nowhere")
            }
            _ => Unreadable::io(path, &error),
        })?;
    let metadata = file
        .metadata()
        .map_err(|error| Unreadable::io(path, &error))?;
    match () {
        () if metadata.is_file() => Ok((file, metadata.len())),
        () if metadata.is_dir() => Err(Unreadable::because(path, "it is a directory, not a file")),
        () => Err(Unreadable::because(path, "it is no regular file")),
    }
}

fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|it| it.is_symlink())
}

/// The entries of a directory. One that is not there has none.
pub(super) fn list(dir: &Path) -> Result<Vec<PathBuf>, Unreadable> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            if is_link(dir) {
                return Err(Unreadable::because(dir, "it is a link that leads nowhere"));
            }
            return Ok(Vec::new());
        }
        other => other.map_err(|error| Unreadable::io(dir, &error))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        found.push(entry.map_err(|error| Unreadable::io(dir, &error))?.path());
    }
    found.sort();
    Ok(found)
}

/// Files of a directory with this extension, in order of their names.
pub(super) fn files(dir: &Path, extension: &str) -> Result<Vec<PathBuf>, Unreadable> {
    let mut found = list(dir)?;
    found.retain(|it| it.extension().is_some_and(|it| it == extension));
    Ok(found)
}

/// bbolt's file.
pub(super) fn database(data_dir: &Path) -> PathBuf {
    data_dir.join("member/snap/db")
}
