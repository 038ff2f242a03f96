//! A release of etcd as it is published: a .tar.gz with the programs in one folder.
//!
//! The system's `tar` reads it and writes one program after the other to its standard output: no name,
//! link or mode in the archive reaches a file system, and no program may be larger than any of etcd's.

use std::fs::{self, File};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::store::PROGRAMS;
use crate::state;
use crate::version::Version;

/// Four times the largest program of a release.
const PROGRAM_MAX: u64 = 256 << 20;
/// A release lists some dozens of names.
const LIST_MAX: u64 = 1 << 20;
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Why an archive was not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// It is something else.
    #[error("{} is neither a directory nor a release's .tar.gz", .0.display())]
    NotAnArchive(PathBuf),
    /// No program in it.
    #[error("{} holds no etcd: is it a release for Linux?", .0.display())]
    NoPrograms(PathBuf),
    /// A program that is none of etcd's.
    #[error("{name} in {} is larger than {} MiB, so it is not a program of etcd", path.display(), PROGRAM_MAX >> 20)]
    TooLarge {
        /// The archive.
        path: PathBuf,
        /// Its name there.
        name: String,
    },
    /// tar failed, and said why itself.
    #[error("tar cannot read {}", .0.display())]
    Tar(PathBuf),
    /// A file or a process of the system.
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

/// The programs of an archive, in a directory of their own that goes with this.
pub struct Unpacked(PathBuf);

impl Unpacked {
    /// Where they lie.
    pub fn dir(&self) -> &Path {
        &self.0
    }
}

impl Drop for Unpacked {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn failed<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> ArchiveError + 'a {
    move |source| ArchiveError::Io {
        what,
        path: path.to_owned(),
        source,
    }
}

/// Archives of the project's releases: version, architecture, sha256.
const RELEASES: &str = include_str!("releases.txt");

/// As the project names an architecture of Rust's.
pub(super) fn architecture(arch: &str) -> &'static str {
    match arch {
        "aarch64" => "arm64",
        _ => "amd64",
    }
}

/// The sha256 of the archive that the project released for an architecture, as far as it is known here.
pub fn released(version: Version, arch: &str) -> Option<&'static str> {
    let (version, arch) = (version.to_string(), architecture(arch));
    RELEASES.lines().find_map(|line| {
        let mut words = line.split(' ');
        let of_it = words.next() == Some(&version) && words.next() == Some(arch);
        words.next().filter(|_| of_it)
    })
}

/// The sha256 of a file.
pub fn sha256(path: &Path) -> Result<String, ArchiveError> {
    let mut file = File::open(path).map_err(failed("open", path))?;
    state::copy_hashed(&mut file, &mut io::sink()).map_err(failed("read", path))
}

/// Unpacks the programs of a release into a new directory of `beside`, which nobody else writes to.
pub fn unpack(archive: &Path, beside: &Path) -> Result<Unpacked, ArchiveError> {
    let mut head = [0; 2];
    let mut file = File::open(archive).map_err(failed("open", archive))?;
    if file.read_exact(&mut head).is_err() || head != GZIP {
        return Err(ArchiveError::NotAnArchive(archive.to_owned()));
    }
    let dir = beside.join(format!(".etcd-operator-unpacked-{}", std::process::id()));
    let made = fs::DirBuilder::new().mode(0o700).create(&dir);
    made.map_err(failed("create", &dir))?;
    let unpacked = Unpacked(dir);
    let mut found = false;
    for (program, name) in programs(archive)? {
        found |= program == "etcd";
        extract(archive, &name, &unpacked.0.join(program))?;
    }
    if !found {
        return Err(ArchiveError::NoPrograms(archive.to_owned()));
    }
    Ok(unpacked)
}

/// The programs in an archive, each with its name there: in the release's folder, or at the top.
fn programs(archive: &Path) -> Result<Vec<(&'static str, String)>, ArchiveError> {
    let mut child = tar(&["-tzf"], archive, &[])?;
    let mut list = String::new();
    let mut stdout = child.stdout.take().into_iter();
    let read = stdout.try_for_each(|it| it.take(LIST_MAX).read_to_string(&mut list).map(|_| ()));
    end(archive, child, read)?;
    let named = |line: &str| {
        let plain = line.strip_prefix("./").unwrap_or(line);
        let name = plain.split_once('/').map_or(plain, |(_, name)| name);
        let program = PROGRAMS.into_iter().find(|it| *it == name)?;
        Some((program, line.to_owned()))
    };
    let mut found: Vec<(&'static str, String)> = Vec::new();
    for (program, name) in list.lines().filter_map(named) {
        if found.iter().all(|(known, _)| *known != program) {
            found.push((program, name));
        }
    }
    Ok(found)
}

fn extract(archive: &Path, name: &str, to: &Path) -> Result<(), ArchiveError> {
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o700)
        .open(to)
        .map_err(failed("create", to))?;
    let mut child = tar(&["-xzOf"], archive, &["--", name])?;
    let mut written = 0;
    let stdout = child.stdout.take();
    let copied = stdout.map_or(Ok(0), |it| {
        io::copy(&mut it.take(PROGRAM_MAX + 1), &mut file)
    });
    let copied = copied.and_then(|count| {
        written = count;
        file.flush()
    });
    if written > PROGRAM_MAX {
        let _ = child.kill();
        let _ = child.wait();
        return Err(ArchiveError::TooLarge {
            path: archive.to_owned(),
            name: name.to_owned(),
        });
    }
    end(archive, child, copied)
}

fn tar(options: &[&str], archive: &Path, more: &[&str]) -> Result<Child, ArchiveError> {
    #[expect(
        clippy::disallowed_methods,
        reason = "the system's tar unpacks a release"
    )]
    let mut command = Command::new("tar");
    command
        .args(options)
        .arg(archive)
        .args(more)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    command.spawn().map_err(failed("unpack with tar", archive))
}

/// Waits for tar, and tells why it, or the reading of it, failed.
fn end(archive: &Path, mut child: Child, read: io::Result<()>) -> Result<(), ArchiveError> {
    // Where reading ended early, nobody reads the rest.
    drop(child.stdout.take());
    let status = child.wait().map_err(failed("unpack", archive))?;
    read.map_err(failed("unpack", archive))?;
    if status.success() {
        return Ok(());
    }
    Err(ArchiveError::Tar(archive.to_owned()))
}
