//! Moves a cluster into systemd: etcd's unit, written by root before each start of the operator.
//!
//! This is the one step that needs root, and it takes nothing from the operator's user: the
//! document, the program and the unit all belong to root.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

use super::AgentError;
use crate::clock;
use crate::member::{place, records};
use crate::observed::Membership;
use crate::paths::Paths;
use crate::plan::permit::{Declared, to_interrupt};
use crate::process::ProcessRecord;
use crate::render::unit::{UnitPlace, etcd_unit, operator_drop_in};
use crate::spec::ClusterSpec;
use crate::state;
use crate::systemd::{self, Systemd};

/// As whom etcd and the operator run.
pub const USER: &str = "etcd";

/// etcd gets so long to end by SIGTERM.
const STOP_DEADLINE: Duration = Duration::from_secs(60);

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
    /// Any other step.
    #[error(transparent)]
    Agent(#[from] AgentError),
}

/// What is written for a document.
struct Units {
    member: String,
    drop_in: Option<String>,
}

fn units(paths: &Paths, spec: &ClusterSpec, document: &Path) -> Units {
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let place = UnitPlace {
        document: &text(document.to_owned()),
        state_dir: &text(paths.lib.clone()),
        guard: &text(paths.store().join("etcd-operator")),
        storage_dir: &text(place::resolve(paths, spec).storage_dir),
    };
    Units {
        member: etcd_unit(spec, &place),
        drop_in: operator_drop_in(&place),
    }
}

/// The text of etcd's unit for this document.
pub fn text(paths: &Paths, spec: &ClusterSpec, document: &Path) -> String {
    units(paths, spec, document).member
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
    if let Some(kept) = kept.filter(|it| it.cluster != spec.name.as_str()) {
        return Err(UnitError::AnotherCluster {
            kept: kept.cluster,
            named: spec.name.to_string(),
        });
    }
    hand_over(paths, owner)?;
    let Units { member, drop_in } = units(paths, spec, document);
    let folder = paths.units().join("etcd-operator.service.d");
    let mut changed = write(&folder.join("storage.conf"), drop_in.as_deref())?;
    changed |= write(&systemd::member_unit_path(paths, &spec.name), Some(&member))?;
    if changed {
        let systemd = Systemd::connect().await.map_err(AgentError::from)?;
        systemd
            .enable(&systemd::member_unit(&spec.name))
            .await
            .map_err(AgentError::from)?;
    }
    Ok(changed)
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

/// The state directory belongs to the unit's user. One that belonged to somebody else was kept by
/// the process driver: its etcd is stopped first, where it runs as that user, for nobody but root
/// could stop it later. The start of the unit declares that interruption.
fn hand_over(paths: &Paths, owner: (u32, u32)) -> Result<(), UnitError> {
    let lib = &paths.lib;
    state::create_private_dir(lib).map_err(AgentError::from)?;
    let before = fs::metadata(lib).map_err(failed("look at", lib))?;
    if before.uid() == owner.0 {
        return Ok(());
    }
    if let Some(record) =
        state::load_volatile::<ProcessRecord>(&paths.process()).filter(ProcessRecord::is_alive)
    {
        to_interrupt(
            &Membership::Unreachable,
            None,
            true, // sizes above 1 are refused by the parser
            Some(Declared::DriverChanged),
        )
        .map_err(AgentError::NoPermit)?;
        tracing::warn!(
            pid = record.pid,
            "etcd moves into its unit: it is stopped, and started there"
        );
        record.signal(Signal::TERM);
        let begin = clock::since_boot();
        while record.is_alive() {
            if clock::since_boot() > begin + STOP_DEADLINE {
                return Err(AgentError::StopTimeout { pid: record.pid }.into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    // The guard may be a second name of the package's program, which stays root's.
    let _ = fs::remove_file(paths.store().join("etcd-operator"));
    for dir in [lib, &paths.run] {
        if dir.exists() {
            give(dir, owner).map_err(failed("hand over", dir))?;
        }
    }
    tracing::info!("{} now belongs to the user {USER}", lib.display());
    Ok(())
}

/// Gives a tree to a user, deepest first, so that it is not theirs before all of it is. Links are
/// not followed.
fn give(path: &Path, owner: (u32, u32)) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() {
        for entry in fs::read_dir(path)? {
            give(&entry?.path(), owner)?;
        }
    }
    std::os::unix::fs::lchown(path, Some(owner.0), Some(owner.1))
}

fn failed<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> AgentError + 'a {
    move |source| AgentError::System {
        what,
        path: path.to_owned(),
        source,
    }
}

/// The ids of a user of this host itself.
pub fn user(passwd: &Path, name: &str) -> Option<(u32, u32)> {
    let text = fs::read_to_string(passwd).ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then_some(())?;
        Some((fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?))
    })
}
