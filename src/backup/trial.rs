//! A snapshot is restored into a scratch directory, a real etcd is started on it behind the cluster's own
//! certificates, read, and removed again. Level 4 of verification is that; a rehearsal of another version starts first
//! the etcd of today, then the new one on what it left.
//!
//! It needs room for the unpacked database and its log, and memory for a second etcd: level 4 has a
//! schedule of its own (`spec.backup.verify`).

use std::fs::{self, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use etcd_client::Client;
use rustix::process::Signal;

use super::Progress;
use super::local::RESERVE;
use super::restore::{self, Preparation, RestoreError};
use crate::clock;
use crate::etcd::client;
use crate::etcd::store::{self, StoreError};
use crate::member::place::HostPlace;
use crate::member::records::IdentityFile;
use crate::member::restore_record::{Reason, RestoreRecord, SourceFile, StoredPhase};
use crate::observed::Reading;
use crate::paths::Paths;
use crate::process::ProcessRecord;
use crate::spec::ClusterSpec;
use crate::start::serves_within;
use crate::state;
use crate::tls::{Certificates, ClientFiles};
use crate::version::Version;

/// Last words of an etcd that its place has ended, and not its version.
const OF_THE_PLACE: [&str; 3] = [
    "no space left on device",
    "address already in use",
    "cannot allocate memory",
];

/// Which process a trial's etcd is.
const PROCESS: &str = "process.json";
/// So much of its log is looked at, and kept.
const LOG_KEPT: u64 = 1 << 20;

/// What the disk keeps free for the member that serves beside the trial: the next piece of the trial's log, and what
/// snapshots leave, too.
const KEPT_FREE: u64 = (64 << 20) + RESERVE;

/// Why a trial restore failed.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// No data could be made of the snapshot.
    #[error("etcdutl could make no data from the snapshot")]
    Restore(#[from] RestoreError),
    /// The store's program is not what its folder says.
    #[error(transparent)]
    Program(#[from] StoreError),
    /// etcd did not come up on it.
    #[error("etcd {version} does not serve the data of the snapshot: {why}")]
    NotServed {
        /// Of etcd.
        version: Version,
        /// What it said.
        why: String,
        /// The place is the cause: it was killed, or it lacked room or a port.
        of_the_place: bool,
    },
    /// It serves something else.
    #[error("etcd {version} serves revision {found}, the snapshot has {expected}")]
    Revision {
        /// Of etcd.
        version: Version,
        /// What etcd says.
        found: i64,
        /// What the snapshot has.
        expected: i64,
    },
    /// Two versions serve other data.
    #[error("etcd {version} serves other data than the version before: the hashes differ")]
    Hash {
        /// The new one.
        version: Version,
    },
    /// A step that the system refused.
    #[error("failed to {what}")]
    Io {
        /// The step.
        what: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
}

impl TrialError {
    /// Whether etcd of this version is the cause, and not the place, the moment or another version.
    pub fn is_of(&self, it: Version) -> bool {
        match self {
            TrialError::NotServed {
                version,
                of_the_place: false,
                ..
            }
            | TrialError::Revision { version, .. }
            | TrialError::Hash { version } => *version == it,
            TrialError::Program(error @ StoreError::Version { wanted, .. }) => {
                *wanted == it && error.is_of_the_program()
            }
            _ => false,
        }
    }
}

fn io_error(what: &'static str) -> impl Fn(std::io::Error) -> TrialError {
    move |source| TrialError::Io { what, source }
}

/// What a trial needs to know.
pub struct Trial<'a> {
    /// Where this host keeps its state.
    pub paths: &'a Paths,
    /// The document.
    pub spec: &'a ClusterSpec,
    /// Who lives here: the version of etcd that makes the data, and is started on it.
    pub identity: &'a IdentityFile,
    /// Another version, which is started on it afterwards.
    pub then: Option<Version>,
    /// What the first etcd has to say of the keys: their hash, as long as it has compacted them up to the same revision.
    pub expected: Option<(u32, i64)>,
    /// Where to keep what etcd logged, if it does not serve.
    pub log: Option<&'a Path>,
    /// The snapshot's file, proven up to level 3.
    pub file: &'a Path,
    /// etcd's revision of the data in it.
    pub revision: i64,
    /// Bytes of its database.
    pub database: u64,
}

/// The scratch directory and the process, gone in the end whatever happens.
pub(super) struct Scratch {
    pub(super) dir: PathBuf,
    pub(super) etcd: Option<Child>,
}

impl Scratch {
    /// A new one. What an earlier trial has left there goes.
    pub(super) fn new(paths: &Paths) -> Self {
        clear(paths);
        let dir = scratch_dir(paths);
        Scratch { dir, etcd: None }
    }

    fn log(&self) -> PathBuf {
        self.dir.join("etcd.log")
    }

    fn end_etcd(&mut self) {
        if let Some(mut child) = self.etcd.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.end_etcd();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Whether a trial on a database of this size leaves the member its room.
///
/// # Errors
/// It does not.
pub fn check_room(paths: &Paths, database: u64) -> Result<(), RestoreError> {
    restore::check_room_beside(&paths.lib, database, KEPT_FREE)
}

fn scratch_dir(paths: &Paths) -> PathBuf {
    paths.backup().join("trial")
}

/// Ends and removes what a trial has left that was cut short.
pub fn clear(paths: &Paths) {
    let dir = scratch_dir(paths);
    if let Some(left) = state::load_volatile::<ProcessRecord>(&dir.join(PROCESS)) {
        left.signal(Signal::KILL);
    }
    let _ = fs::remove_dir_all(&dir);
}

/// Restores into scratch, starts each etcd, reads, removes.
pub async fn run(trial: &Trial<'_>, progress: &mut dyn FnMut(Progress)) -> Result<(), TrialError> {
    let text = &trial.identity.member.version;
    let own: Version = text.parse().map_err(|_| {
        TrialError::Restore(RestoreError::Etcdutl {
            version: text.clone(),
            why: "is no version".to_owned(),
        })
    })?;
    let mut scratch = Scratch::new(trial.paths);
    check_room(trial.paths, trial.database)?;
    let (spec, place) = on_loopback(trial.spec, &scratch.dir)?;
    let mut identity = trial.identity.clone().without_ids();
    identity.cluster.token.push_str("-trial");
    identity.member.joined = false;
    restore::prepare(
        &Preparation {
            record: &record_of(trial),
            storage_dir: &scratch.dir,
            identity: &identity,
            store: &trial.paths.store(),
            peer_url: &spec.peer_url(),
        },
        progress,
    )?;
    let made = RestoreRecord::scratch(&scratch.dir).join("data");
    fs::rename(made, scratch.dir.join("data")).map_err(io_error("rename the trial's data"))?;
    let mut served = None;
    for version in [own].into_iter().chain(trial.then) {
        identity.member.version = version.to_string();
        let etcd = Etcd {
            store: &trial.paths.store(),
            paths: trial.paths,
            spec: &spec,
            place: &place,
            identity: &identity,
        };
        scratch.etcd = Some(start(&etcd, version)?);
        let hash = wait_until_served(trial, &place, &mut scratch, version).await;
        if let (Err(_), Some(kept)) = (&hash, trial.log) {
            let _ = state::write_synced(kept, &end_of(&scratch.log()));
        }
        let hash = hash?;
        // Hashes of what was compacted otherwise cannot be compared.
        let expected = trial.expected.filter(|it| it.1 == hash.1);
        if served.or(expected).is_some_and(|it| it != hash) {
            return Err(TrialError::Hash { version });
        }
        served = Some(hash);
        scratch.end_etcd();
    }
    Ok(())
}

/// The restore into scratch. The revision stays, so that it can be compared.
fn record_of(trial: &Trial<'_>) -> RestoreRecord {
    RestoreRecord {
        id: String::new(),
        reason: Reason::Command,
        phase: StoredPhase::Requested,
        source: SourceFile {
            path: trial.file.to_owned(),
            name: trial.file.display().to_string(),
            revision: trial.revision,
            cluster_id: None,
            database: trial.database,
            checksummed: true,
            sha256: None,
            hash: None,
        },
        live_revision: None,
        live_at_most: None,
        bump: 0,
        former: None,
        next: None,
        asked: None,
        version: None,
        takes_back: None,
    }
}

/// Ports of loopback that nobody listens on.
fn free_ports() -> std::io::Result<[u16; 3]> {
    let held = [(); 3].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    let mut ports = [0; 3];
    for (port, listener) in ports.iter_mut().zip(held) {
        *port = listener?.local_addr()?.port();
    }
    Ok(ports)
}

/// The document as one member of loopback with ports of its own, whatever the cluster is, and its place in this directory.
pub(super) fn on_loopback(
    spec: &ClusterSpec,
    dir: &Path,
) -> Result<(ClusterSpec, HostPlace), TrialError> {
    let [client_port, peer_port, metrics_port] = free_ports().map_err(io_error("find ports"))?;
    let mut spec = spec.clone();
    spec.network.client_port = client_port;
    spec.network.peer_port = peer_port;
    spec.network.metrics_port = metrics_port;
    (spec.members, spec.own) = (heapless::Vec::new(), 0);
    let place = HostPlace {
        storage_dir: dir.to_owned(),
        storage_named: false,
        listen: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
        advertised: vec!["127.0.0.1".to_owned()],
        names: Vec::new(),
        client_url: format!("https://127.0.0.1:{client_port}"),
        metrics_url: String::new(),
        metrics_listen: IpAddr::V4(Ipv4Addr::LOCALHOST),
        log_stdout: false,
    };
    Ok((spec, place))
}

/// An etcd on data in scratch.
pub(super) struct Etcd<'a> {
    /// The store of versions.
    pub(super) store: &'a Path,
    /// Whose certificates it has.
    pub(super) paths: &'a Paths,
    pub(super) spec: &'a ClusterSpec,
    pub(super) place: &'a HostPlace,
    pub(super) identity: &'a IdentityFile,
}

/// Starts it.
pub(super) fn start(
    &Etcd {
        store,
        paths,
        spec,
        place,
        identity,
    }: &Etcd<'_>,
    version: Version,
) -> Result<Child, TrialError> {
    store::check_program(store, version)?;
    let conf = place.etcd_conf(paths, spec, identity, None);
    let conf = conf.ok_or_else(|| TrialError::NotServed {
        version,
        why: "this operator renders no configuration for it".to_owned(),
        of_the_place: false,
    })?;
    // Its log is its own: the member's is what the guard reads.
    let own = paths.etcd_log().to_string_lossy().into_owned();
    let log = place.storage_dir.join("etcd.log");
    let conf = conf.replace(&own, &log.to_string_lossy());
    let path = place.storage_dir.join("etcd.conf.yaml");
    state::write_synced(&path, conf.as_bytes()).map_err(RestoreError::from)?;
    let output = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(&log)
        .and_then(|it| state::inherit_owner_open(&it, &log).map(|()| it))
        .map_err(io_error("open the trial's log"))?;
    #[expect(
        clippy::disallowed_methods,
        reason = "a second etcd, for as long as the trial"
    )]
    let mut command = Command::new(store::folder(store, version).join("etcd"));
    command
        .arg("--config-file")
        .arg(path)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(output);
    let child = crate::process::as_owner(&mut command, &place.storage_dir)
        .and_then(Command::spawn)
        .map_err(io_error("start the trial's etcd"))?;
    // It is nobody's child any more where this process ends in the middle.
    if let Some(record) = ProcessRecord::of(child.id()) {
        let path = place.storage_dir.join(PROCESS);
        state::save_volatile(&path, &record).map_err(RestoreError::from)?;
    }
    Ok(child)
}

/// Waits until etcd serves the snapshot's revision. The hash of the keys that it serves, and the revision up to which
/// it has compacted them.
async fn wait_until_served(
    trial: &Trial<'_>,
    place: &HostPlace,
    scratch: &mut Scratch,
    version: Version,
) -> Result<(u32, i64), TrialError> {
    let files = Certificates::at(trial.paths.tls()).operator_files();
    let patience = Duration::from_secs(serves_within(trial.database));
    let at = (place.client_url.as_str(), &files);
    let (mut client, revision) = scratch.wait(at, patience, version).await?;
    // A lease that runs out on the copy writes to it; an empty store's revision is 1 to etcd.
    if revision < trial.revision {
        return Err(TrialError::Revision {
            version,
            found: revision,
            expected: trial.revision,
        });
    }
    let not_served = |why| TrialError::NotServed {
        version,
        why,
        of_the_place: false,
    };
    let hash = tokio::time::timeout(patience, client.hash_kv(trial.revision.max(1))).await;
    let silent = |_| {
        not_served(format!(
            "no hash of its keys within {} s",
            patience.as_secs()
        ))
    };
    let hash = hash.map_err(silent)?;
    let hash = hash.map_err(|error| not_served(client::plain(&error)))?;
    Ok((hash.hash(), hash.compact_version()))
}

/// The end of what a tried etcd logged: what it ended of stands there.
fn end_of(log: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Ok(mut file) = fs::File::open(log) {
        let length = file.metadata().map_or(0, |it| it.len());
        let _ = file.seek(SeekFrom::Start(length.saturating_sub(LOG_KEPT)));
        let _ = file.take(LOG_KEPT).read_to_end(&mut bytes);
    }
    bytes
}

impl Scratch {
    /// Waits until its etcd reads and tells a revision.
    pub(super) async fn wait(
        &mut self,
        (url, files): (&str, &ClientFiles),
        patience: Duration,
        version: Version,
    ) -> Result<(Client, i64), TrialError> {
        let begin = clock::since_boot();
        let not_served = |why, of_the_place| TrialError::NotServed {
            version,
            why,
            of_the_place,
        };
        loop {
            if let Some(child) = &mut self.etcd
                && let Ok(Some(status)) = child.try_wait()
            {
                let log = end_of(&self.log());
                let log = String::from_utf8_lossy(&log);
                let last = log.lines().next_back().unwrap_or("without a word");
                let killed = status.signal() == Some(Signal::KILL.as_raw());
                let lacks = OF_THE_PLACE.iter().any(|it| last.contains(it));
                let why = format!("it ended ({status}): {last}");
                return Err(not_served(why, killed || lacks));
            }
            let look = client::look(url, files).await;
            if let (Reading::Answered, Some(details), Some(client)) =
                (&look.read, look.details, look.client)
            {
                return Ok((client, details.revision));
            }
            if matches!(look.read, Reading::NotPermitted(_)) {
                let why = "its users are on (auth), and it lets nobody else in: start etcd on a copy, and as its root take a snapshot: etcdctl --user root snapshot save FILE";
                return Err(not_served(why.to_owned(), false));
            }
            if clock::since_boot() > begin + patience {
                let why = format!("no answer within {} s", patience.as_secs());
                return Err(not_served(why, false));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}
