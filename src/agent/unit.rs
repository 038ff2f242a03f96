//! Moves a cluster into systemd: etcd's unit, written by root before each start of the operator.
//!
//! This is the one step that needs root, and it takes nothing from the operator's user: the
//! document, the program and the unit all belong to root.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::process::Signal;

use super::AgentError;
use super::driver::wait_for_end;
use crate::accounts::{USER, user};
use crate::cluster::MemberName;
use crate::member::{place, records};
use crate::observed::Membership;
use crate::paths::Paths;
use crate::plan::Act;
use crate::plan::permit::{Declared, Lapsed, Seen, to_interrupt};
use crate::process;
use crate::render::unit::{UnitPlace, etcd_unit, operator_drop_in};
use crate::spec::ClusterSpec;
use crate::spec::backup::Destination;
use crate::state;
use crate::systemd::{self, Systemd};

/// Why the unit was not installed.
#[derive(Debug, thiserror::Error)]
pub enum UnitError {
    /// Only root may.
    #[error("only root may write a unit: sudo etcd-operator unit --install")]
    NotRoot,
    /// systemd is not what runs this host, or another root was named.
    #[error("systemd does not run this host: without it, etcd-operator agent --driver process")]
    NoSystemd,
    /// Nobody to run etcd as.
    #[error(
        "there is no user {USER}: systemd-sysusers makes it from /usr/lib/sysusers.d/etcd-operator.conf, or: useradd --system {USER}"
    )]
    NoUser,
    /// The document names another cluster than the one that lives here.
    #[error(
        "this host keeps the cluster {kept}, and the document names {named}: set metadata.name back"
    )]
    AnotherCluster {
        /// Who lives here.
        kept: String,
        /// What the document says.
        named: String,
    },
    /// The units protect the system, and with it what the document names.
    #[error(
        "storage.path {} is hidden or read-only for a unit: choose a directory such as /mnt/etcd or /srv/etcd", .0.display()
    )]
    StorageHidden(PathBuf),
    /// The same of a place for snapshots.
    #[error(
        "the backup destination {} is hidden or read-only for a unit: choose a directory such as /mnt/backup or /srv/backup", .0.display()
    )]
    SnapshotsHidden(PathBuf),
    /// Any other step.
    #[error(transparent)]
    Agent(#[from] AgentError),
}

/// What is written for a document.
struct Units {
    member: String,
    drop_in: Option<String>,
}

fn units(paths: &Paths, spec: &ClusterSpec, document: &Path, storage_dir: &Path) -> Units {
    let (guard, hibernates) = (paths.store().join("etcd-operator"), paths.hibernates());
    let backup = spec.backup.as_ref();
    let destinations = backup.map(|it| it.destinations.as_slice());
    let snapshots: Vec<&str> = destinations
        .unwrap_or_default()
        .iter()
        .filter_map(Destination::local_path)
        .collect();
    let place = UnitPlace {
        snapshots: &snapshots,
        document: &document.to_string_lossy(),
        state_dir: &paths.lib.to_string_lossy(),
        guard: &guard.to_string_lossy(),
        hibernates: &hibernates.to_string_lossy(),
        storage_dir: &storage_dir.to_string_lossy(),
    };
    Units {
        member: etcd_unit(spec, &place),
        drop_in: operator_drop_in(&place),
    }
}

/// The text of etcd's unit for this document.
pub fn text(paths: &Paths, spec: &ClusterSpec, document: &Path) -> String {
    let storage_dir = place::resolve(paths, spec).storage_dir;
    units(paths, spec, document, &storage_dir).member
}

/// Writes the unit, hands the state over to its user, and has systemd start it at every boot.
/// Nothing happens where all of it is so already. Returns whether something was changed.
pub async fn install(
    paths: &Paths,
    spec: &ClusterSpec,
    document: &Path,
) -> Result<bool, UnitError> {
    if !rustix::process::geteuid().is_root() {
        return Err(UnitError::NotRoot);
    }
    if !systemd::runs(paths) {
        return Err(UnitError::NoSystemd);
    }
    let owner = user(Path::new("/etc/passwd"), USER).ok_or(UnitError::NoUser)?;
    let kept = state::load::<records::IdentityFile>(&paths.identity()).map_err(AgentError::from)?;
    if let Some(kept) = kept.filter(|it| it.cluster.name != spec.name.as_str()) {
        return Err(UnitError::AnotherCluster {
            kept: kept.cluster.name,
            named: spec.name.to_string(),
        });
    }
    let storage_dir = place::resolve(paths, spec).storage_dir;
    if is_hidden(&storage_dir) {
        return Err(UnitError::StorageHidden(storage_dir));
    }
    let backup = spec.backup.as_ref();
    for it in backup
        .map(|it| it.destinations.as_slice())
        .unwrap_or_default()
    {
        if let Some(path) = it.local_path().map(Path::new).filter(|it| is_hidden(it)) {
            return Err(UnitError::SnapshotsHidden(path.to_owned()));
        }
    }
    // Everything that can fail comes before an etcd is stopped, and an attempt that failed is repeated.
    let systemd = Systemd::connect().await.map_err(AgentError::from)?;
    let Units { member, drop_in } = units(paths, spec, document, &storage_dir);
    let unit = systemd::member_unit(&spec.name);
    let path = systemd::member_unit_path(paths, &spec.name);
    let folder = paths.units().join("etcd-operator.service.d");
    let mut changed = write(&folder.join("storage.conf"), drop_in.as_deref())?;
    changed |= write(&path, Some(&member))?;
    changed |= !enabled(paths, &unit);
    if changed && let Err(error) = systemd.enable(&unit).await {
        let _ = fs::remove_file(&path);
        return Err(AgentError::from(error).into());
    }
    for old in other_members(paths, &unit) {
        // The cluster was called otherwise before it was born: two units would fight over it.
        systemd.disable(&old).await.map_err(AgentError::from)?;
        changed |= write(&paths.units().join(&old), None)?;
    }
    if hand_over(paths, &storage_dir, owner).await? {
        systemd.start(&unit).await.map_err(AgentError::from)?;
    }
    Ok(changed)
}

/// Where the units' own protection would hide the data, or keep it from being written; below `/`.
const HIDDEN: &[&str] = &[
    "home", "root", "run/user", "tmp", "var/tmp", "usr", "boot", "efi", "etc",
];

/// Whether the units could not use a directory for the data.
pub fn is_hidden(storage_dir: &Path) -> bool {
    storage_dir
        .strip_prefix("/")
        .is_ok_and(|below| HIDDEN.iter().any(|it| below.starts_with(it)))
}

/// Whether systemd starts the unit at boot.
pub fn enabled(paths: &Paths, unit: &str) -> bool {
    let link = paths.units().join("multi-user.target.wants").join(unit);
    fs::symlink_metadata(link).is_ok()
}

/// Units of members that this operator has written, but for this one.
fn other_members(paths: &Paths, unit: &str) -> Vec<String> {
    let entries = fs::read_dir(paths.units()).into_iter().flatten().flatten();
    entries
        .filter_map(|it| it.file_name().into_string().ok())
        .filter(|it| it != unit && systemd::is_member_unit(it))
        .filter(|it| {
            fs::read_to_string(paths.units().join(it))
                .is_ok_and(|text| text.starts_with("# Written by etcd-operator"))
        })
        .collect()
}

/// Writes a file of systemd's, or removes it; whether that changed anything.
fn write(path: &Path, text: Option<&str>) -> Result<bool, AgentError> {
    let Some(text) = text else {
        return Ok(fs::remove_file(path).is_ok());
    };
    if fs::read_to_string(path).is_ok_and(|it| it == text) {
        return Ok(false);
    }
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).map_err(failed("create", folder))?;
    state::write_file(path, text.as_bytes())?;
    for (path, mode) in [(folder, 0o755), (path, 0o644)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .map_err(failed("set the mode of", path))?;
    }
    Ok(true)
}

/// All of the state belongs to the unit's user. What root made there, by the process driver before this
/// host had a unit, or on the command line, is handed over.
///
/// An etcd of another user is stopped first: nobody but root could stop it later. The start of the
/// operator's unit declares that interruption.
///
/// Returns whether one was stopped.
async fn hand_over(
    paths: &Paths,
    storage_dir: &Path,
    owner: (u32, u32),
) -> Result<bool, UnitError> {
    let lib = &paths.lib;
    state::create_private_dir(lib).map_err(AgentError::from)?;
    let running = records::Running::load(paths)
        .map(|it| it.process)
        .filter(|it| process_owner(it.pid).is_some_and(|uid| uid != owner.0))
        // The record is the unit's user's to write: only what was started as our etcd is stopped.
        .filter(|it| process::has_argument(it.pid, &paths.etcd_conf()));
    let stopped = running.is_some();
    if let Some(record) = running {
        let _alone = super::lock(paths, super::Locking::Act)?;
        let seen = Seen {
            member: &MemberName::new(),
            pid: Some(record.pid),
            id: None,
            alone: true, // sizes above 1 are refused by the parser
            membership: &Membership::Unreachable,
            claim_deleted: false,
        };
        to_interrupt(seen, Act::Restart, Some(Declared::DriverChanged))
            .map_err(|hold| AgentError::NoPermit(Lapsed::Held(hold)))?;
        tracing::warn!(
            pid = record.pid,
            "etcd runs as another user, outside of its unit: the operator stops it and starts it in its unit"
        );
        record.signal(Signal::TERM);
        wait_for_end(paths, &record, None).await?;
    }
    let mut given = 0;
    for dir in [lib, &paths.run] {
        if dir.exists() {
            given += give(dir, owner).map_err(failed("hand over", dir))?;
        }
    }
    // A directory elsewhere is handed over where a cluster of ours lives in it.
    if !storage_dir.starts_with(lib) && records::marker_path(storage_dir).exists() {
        given += give(storage_dir, owner).map_err(failed("hand over", storage_dir))?;
    }
    if given > 0 {
        tracing::info!("{given} files of the state now belong to the user {USER}");
    }
    Ok(stopped)
}

fn process_owner(pid: u32) -> Option<u32> {
    Some(fs::metadata(format!("/proc/{pid}")).ok()?.uid())
}

/// Gives a tree to a user; how many entries were another's. The tree may be that user's already, who
/// could exchange any name in it at any moment: every step goes from an open directory, no link is
/// followed, and a file with a second name (the guard's, which is the package's program) is left alone.
fn give(path: &Path, owner: (u32, u32)) -> io::Result<usize> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = rustix::fs::open(path, flags, Mode::empty())?;
    let mut given = 0;
    if rustix::fs::fstat(&top)?.st_uid != owner.0 {
        rustix::fs::fchown(
            &top,
            Some(Uid::from_raw(owner.0)),
            Some(Gid::from_raw(owner.1)),
        )?;
        given += 1;
    }
    Ok(given + give_below(&top, owner)?)
}

fn give_below(dir: &OwnedFd, owner: (u32, u32)) -> io::Result<usize> {
    let (uid, gid) = (Uid::from_raw(owner.0), Gid::from_raw(owner.1));
    let mut given = 0;
    for entry in rustix::fs::Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if stat.st_uid != owner.0 && (is_dir || stat.st_nlink == 1) {
            rustix::fs::chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
            given += 1;
        }
        if is_dir {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let below = rustix::fs::openat(dir, name, flags, Mode::empty())?;
            given += give_below(&below, owner)?;
        }
    }
    Ok(given)
}

fn failed<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> AgentError + 'a {
    move |source| AgentError::System {
        what,
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "makes a tree")]
mod tests {
    use super::*;

    #[test]
    fn directories_that_units_hide_are_known_by_whole_names() {
        for dir in [
            "/home/pi/etcd",
            "/root",
            "/tmp/x",
            "/var/tmp/x",
            "/etc/etcd",
            "/run/user/1",
        ] {
            assert!(is_hidden(Path::new(dir)), "{dir}");
        }
        for dir in [
            "/mnt/etcd",
            "/srv/etcd",
            "/homes/etcd",
            "/var/lib/etcd",
            "/data",
        ] {
            assert!(!is_hidden(Path::new(dir)), "{dir}");
        }
    }

    /// Needs root, as the step itself does; without it there is nothing to look at.
    #[test]
    fn a_tree_is_handed_over_and_nothing_outside_of_it() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let base = std::env::temp_dir().join(format!("etcd-operator-give-{}", std::process::id()));
        let tree = base.join("tree");
        fs::create_dir_all(tree.join("tls")).unwrap();
        fs::write(base.join("outside"), "").unwrap();
        fs::write(base.join("program"), "").unwrap();
        fs::write(tree.join("tls/key"), "").unwrap();
        std::os::unix::fs::symlink("../outside", tree.join("link")).unwrap();
        fs::hard_link(base.join("program"), tree.join("guard")).unwrap();
        let uid = |name: &str| fs::symlink_metadata(base.join(name)).unwrap().uid();
        assert_eq!(give(&tree, (54_321, 54_321)).unwrap(), 4);
        for name in ["tree", "tree/tls", "tree/tls/key", "tree/link"] {
            assert_eq!(uid(name), 54_321, "{name}");
        }
        assert_eq!(uid("outside"), 0, "no link is followed");
        assert_eq!(uid("program"), 0, "a second name of a program stays root's");
        assert_eq!(give(&tree, (54_321, 54_321)).unwrap(), 0);
        let way_out = base.join("way-out");
        std::os::unix::fs::symlink(&base, &way_out).unwrap();
        assert!(give(&way_out, (54_321, 54_321)).is_err());
        fs::remove_dir_all(base).unwrap();
    }
}
