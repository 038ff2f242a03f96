//! The store: one folder for each installed version, with etcd, etcdutl and etcdctl as far as they
//! were there, their checksums, and a copy of the guard.
//!
//! Nothing here is fetched from a network: a person brings it, or asks for [`super::download`].

mod record;

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::cluster::{Detail, detail};
use crate::start::Binary;
use crate::state::{self, StateError};
use crate::version::{Class, Version, classify};
use record::Record;

/// The programs that a folder may hold; the first must be there.
pub const PROGRAMS: [&str; 3] = ["etcd", "etcdutl", "etcdctl"];

/// Why a version could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file of the store could not be written.
    #[error(transparent)]
    State(#[from] StateError),
    /// No program of the name in any of the places.
    #[error(
        "no etcd {version} in {places}: name the release's .tar.gz, or a directory with its etcd, etcdutl and etcdctl, with --from"
    )]
    NotFound {
        /// Which version.
        version: Version,
        /// Where it was looked for.
        places: String,
    },
    /// The file is no program for this machine (rule C6).
    #[error("{} is not a program for this machine ({})", path.display(), std::env::consts::ARCH)]
    Architecture {
        /// Which file.
        path: PathBuf,
    },
    /// It says that it is another version.
    #[error("{} reports version '{found}' instead of {wanted}", path.display())]
    Version {
        /// Which file.
        path: PathBuf,
        /// What it says.
        found: String,
        /// What was asked for.
        wanted: Version,
    },
    /// It could not be copied.
    #[error("failed to copy {}", path.display())]
    Copy {
        /// Which file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl StoreError {
    /// The program is another one than was asked for. One that says nothing at all may not have run.
    pub fn is_of_the_program(&self) -> bool {
        match self {
            StoreError::Architecture { .. } => true,
            StoreError::Version { found, .. } => !found.is_empty(),
            _ => false,
        }
    }
}

/// An installed version.
#[derive(Clone, Debug)]
pub struct Installed {
    /// Which one.
    pub version: Version,
    /// Which of [`PROGRAMS`] are there.
    pub programs: Vec<&'static str>,
    /// sha256 of etcd itself.
    pub sha256: String,
    /// Nobody compared it with the checksum of a release: it came from a directory, from an archive that the list does
    /// not know, from a mirror that vouches for itself alone, or with `--unverified`.
    pub unverified: bool,
}

/// The folder of a version.
pub fn folder(store: &Path, version: Version) -> PathBuf {
    store.join(format!("etcd-{version}"))
}

/// Whether etcd of this version can be started here.
pub fn binary(store: &Path, version: Version) -> Binary {
    let folder = folder(store, version);
    match is_program_for_this_machine(&folder.join("etcd")) {
        Ok(true) if record::is_changed(&folder) => Binary::Changed,
        Ok(true) => Binary::Ready,
        Ok(false) => Binary::WrongArchitecture,
        Err(_) => Binary::Missing(newest_supported(store)),
    }
}

/// Everything installed, oldest first.
pub fn list(store: &Path) -> Vec<Installed> {
    let Ok(entries) = fs::read_dir(store) else {
        return Vec::new();
    };
    let mut found: Vec<Installed> = entries
        .flatten()
        .filter_map(|it| {
            let name = it.file_name().into_string().ok()?;
            let version = name.strip_prefix("etcd-")?.parse().ok()?;
            let record = Record::load(&it.path())?;
            let programs = PROGRAMS
                .into_iter()
                .filter(|name| it.path().join(name).exists());
            Some(Installed {
                version,
                programs: programs.collect(),
                sha256: record.sha256("etcd").unwrap_or_default().to_owned(),
                unverified: record.unverified,
            })
        })
        .collect();
    found.sort_by_key(|it| it.version);
    found
}

/// An installed version, if nobody compared it with the checksum of a release.
pub fn unverified(store: &Path, version: Version) -> Option<Detail> {
    let record = Record::load(&folder(store, version))?;
    record.unverified.then(|| detail(format_args!("{version}")))
}

/// Versions installed, without opening a file.
pub fn versions(store: &Path) -> impl Iterator<Item = Version> + use<> {
    let entries = fs::read_dir(store).into_iter().flatten().flatten();
    entries.filter_map(|it| it.file_name().to_str()?.strip_prefix("etcd-")?.parse().ok())
}

/// etcdutl of this version, else the newest one of its line: patches of a line make the same data (rule D34).
pub fn etcdutl(store: &Path, version: Version) -> Option<PathBuf> {
    let program = |it: Version| Some(folder(store, it).join("etcdutl")).filter(|it| it.exists());
    let mut others: Vec<Version> = versions(store)
        .filter(|it| it.line() == version.line())
        .collect();
    others.sort_unstable();
    program(version).or_else(|| others.into_iter().rev().find_map(program))
}

/// The newest installed version that a cluster may be born with.
pub fn newest_supported(store: &Path) -> Option<Version> {
    versions(store)
        .filter(|it| classify(*it) == Class::Supported)
        .max()
}

/// Installs a version from `from`, or from where a distribution puts it. Already installed with the
/// same content: nothing happens. `unverified`: nobody compared it with the checksum of a release.
pub fn install(
    store: &Path,
    version: Version,
    from: Option<&Path>,
    unverified: bool,
) -> Result<Installed, StoreError> {
    let places: Vec<PathBuf> = match from {
        Some(dir) => vec![dir.to_owned()],
        None => ["/usr/local/bin", "/usr/bin"].map(PathBuf::from).to_vec(),
    };
    // A release's names, and the names of a folder with several versions.
    let locate = |name: &str| {
        places
            .iter()
            .flat_map(|dir| [dir.join(name), dir.join(format!("{name}-{version}"))])
            .find(|it| it.is_file())
    };
    let Some(etcd) = locate("etcd") else {
        let places = places
            .iter()
            .map(|it| it.display().to_string())
            .collect::<Vec<_>>()
            .join(", ");
        return Err(StoreError::NotFound { version, places });
    };
    check(&etcd, version)?;
    state::create_private_dir(store)?;
    let target = folder(store, version);
    let part = store.join(format!("etcd-{version}.part"));
    let _ = fs::remove_dir_all(&part);
    state::create_private_dir(&part)?;
    let mut sums = Vec::new();
    for name in PROGRAMS {
        let Some(source) = locate(name) else { continue };
        sums.push((name, copy_program(&source, &part.join(name))?));
    }
    let programs: Vec<&'static str> = sums.iter().map(|it| it.0).collect();
    let installed = Installed {
        version,
        sha256: sums.first().map(|it| it.1.clone()).unwrap_or_default(),
        programs: programs.clone(),
        unverified,
    };
    let recorded = list(store).into_iter().find(|it| {
        it.version == version && it.sha256 == installed.sha256 && it.programs == programs
    });
    if recorded.is_some() && same_programs(&part, &target, &programs) {
        let _ = fs::remove_dir_all(&part);
        Record::of(&target, &sums, unverified).save(&target)?;
        return Ok(installed);
    }
    Record::of(&part, &sums, unverified).write_synced(&part)?;
    let rename = |from: &Path, to: &Path| {
        fs::rename(from, to).map_err(|source| StateError::Io {
            what: "rename",
            path: from.to_owned(),
            source,
        })
    };
    if target.exists() {
        // What runs keeps its file; the folder is swapped by two renames.
        let old = store.join(format!("etcd-{version}.old"));
        let _ = fs::remove_dir_all(&old);
        rename(&target, &old)?;
        rename(&part, &target)?;
        let _ = fs::remove_dir_all(&old);
    } else {
        rename(&part, &target)?;
    }
    state::sync_dir(store)?;
    Ok(installed)
}

/// Notes that the programs of a version are those that were installed, where they have other times and places than they
/// had then. What cannot be written down is read again with the next start.
pub fn note_unchanged(store: &Path, version: Version) {
    if let Err(error) = record::renew(&folder(store, version)) {
        tracing::debug!("{error}");
    }
}

/// Where an image of etcd has its programs.
pub const IMAGE_PROGRAMS: &str = "/usr/local/bin";

/// In a Pod etcd comes with the image: the store names its programs, once the image is seen to hold the
/// version that is wanted (rule C6).
pub fn link(store: &Path, version: Version) -> Result<(), StoreError> {
    let programs = Path::new(IMAGE_PROGRAMS);
    check(&programs.join("etcd"), version)?;
    let folder = folder(store, version);
    state::create_private_dir(&folder)?;
    record::forget(&folder); // of an etcd that lay there before
    for name in PROGRAMS {
        let (link, target) = (folder.join(name), programs.join(name));
        if !target.exists() || fs::read_link(&link).is_ok_and(|it| it == target) {
            continue;
        }
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(&target, &link)
            .map_err(|source| StoreError::Copy { path: link, source })?;
    }
    Ok(())
}

/// Whether two folders hold the same bytes: a worn card gives back others than were recorded.
fn same_programs(one: &Path, other: &Path, programs: &[&str]) -> bool {
    programs
        .iter()
        .all(|name| same_content(&one.join(name), &other.join(name)))
}

/// What a program prints as its version, in bytes, and how long that takes at most, from a slow card.
const VERSION_MAX: u64 = 4096;
const VERSION_WITHIN: Duration = Duration::from_secs(20);

/// Checks that etcd of a version is a program for this machine and says that it is this version.
pub fn check_program(store: &Path, version: Version) -> Result<(), StoreError> {
    check(&folder(store, version).join("etcd"), version)
}

fn check(etcd: &Path, version: Version) -> Result<(), StoreError> {
    if !is_program_for_this_machine(etcd).unwrap_or(false) {
        return Err(StoreError::Architecture {
            path: etcd.to_owned(),
        });
    }
    #[expect(
        clippy::disallowed_methods,
        reason = "asks the program for its version"
    )]
    let mut command = Command::new(etcd);
    let command = command.arg("--version").env_clear().stderr(Stdio::null());
    let text = crate::process::printed(command, VERSION_MAX, VERSION_WITHIN).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().next().unwrap_or_default().trim();
    let found = line.strip_prefix("etcd Version: ").unwrap_or(line);
    if found.parse() == Ok(version) {
        return Ok(());
    }
    Err(StoreError::Version {
        path: etcd.to_owned(),
        found: found.to_owned(),
        wanted: version,
    })
}

/// Class and machine of the programs that run where this one does (rule G11: 64 bits).
const OWN_MACHINE: (u8, [u8; 2]) = (
    2,
    if cfg!(target_arch = "x86_64") {
        [0x3e, 0]
    } else {
        [0xb7, 0]
    },
);

/// Whether a file is an ELF program for the machine that this one runs on (rules C6, G11).
fn is_program_for_this_machine(path: &Path) -> io::Result<bool> {
    Ok(elf_machine(path)? == Some(OWN_MACHINE))
}

/// Class and machine of an ELF file; `None` when it is none.
fn elf_machine(path: &Path) -> io::Result<Option<(u8, [u8; 2])>> {
    let mut head = [0_u8; 20];
    let mut file = fs::File::open(path)?;
    if file.read_exact(&mut head).is_err() || head[..4] != *b"\x7fELF" {
        return Ok(None);
    }
    Ok(Some((head[4], [head[18], head[19]])))
}

/// Copies a program, synced and executable; its sha256.
fn copy_program(from: &Path, to: &Path) -> Result<String, StoreError> {
    let failed = |source| StoreError::Copy {
        path: from.to_owned(),
        source,
    };
    let mut reader = fs::File::open(from).map_err(failed)?;
    let _ = fs::remove_file(to);
    let mut writer = fs::File::create_new(to).map_err(failed)?;
    state::inherit_owner_open(&writer, to).map_err(failed)?;
    let sum = state::copy_hashed(&mut reader, &mut writer).map_err(failed)?;
    writer
        .set_permissions(fs::Permissions::from_mode(0o755))
        .map_err(failed)?;
    writer.sync_all().map_err(failed)?;
    Ok(sum)
}

/// Puts a copy of this program beside etcd, so that a member can restart after the package was
/// removed. Written only when its content differs.
pub fn place_guard(store: &Path) -> Result<PathBuf, StoreError> {
    let target = store.join("etcd-operator");
    let own = crate::process::own_executable().and_then(|it| {
        if it.exists() {
            Ok(it)
        } else {
            Err(io::Error::from(io::ErrorKind::NotFound))
        }
    });
    let source = match own {
        Ok(path) => path,
        // The running file was replaced; the copy that is there serves.
        Err(_) if target.exists() => return Ok(target),
        Err(source) => {
            return Err(StoreError::Copy {
                path: PathBuf::from("/proc/self/exe"),
                source,
            });
        }
    };
    place_program(store, &source)
}

/// The same with another program than this one, which a home's tests are.
pub fn place_program(store: &Path, source: &Path) -> Result<PathBuf, StoreError> {
    let target = store.join("etcd-operator");
    let is_executable = |path: &Path| {
        let mode = fs::metadata(path).map(|it| it.permissions().mode());
        mode.is_ok_and(|it| it & 0o111 != 0)
    };
    if is_executable(&target) && same_content(source, &target) {
        return Ok(target);
    }
    state::create_private_dir(store)?;
    let part = store.join("etcd-operator.part");
    let _ = fs::remove_file(&part);
    // Another name for the same file costs no flash, and outlives the one that the package removes.
    // Across file systems, or where the kernel forbids it, it is copied.
    if !is_executable(source) || fs::hard_link(source, &part).is_err() {
        copy_program(source, &part)?;
    }
    fs::rename(&part, &target).map_err(|source| StoreError::Copy { path: part, source })?;
    state::sync_dir(store)?;
    Ok(target)
}

fn same_content(one: &Path, other: &Path) -> bool {
    let (Ok(a), Ok(b)) = (fs::metadata(one), fs::metadata(other)) else {
        return false;
    };
    if (a.dev(), a.ino()) == (b.dev(), b.ino()) {
        return true;
    }
    if a.len() != b.len() {
        return false;
    }
    let (Ok(mut one), Ok(mut other)) = (fs::File::open(one), fs::File::open(other)) else {
        return false;
    };
    let (mut left, mut right) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    loop {
        let Ok(count) = one.read(&mut left) else {
            return false;
        };
        if count == 0 {
            return true;
        }
        if other.read_exact(&mut right[..count]).is_err() || left[..count] != right[..count] {
            return false;
        }
    }
}
