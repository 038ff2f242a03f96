//! Level 4 of verification: a snapshot is restored into a scratch directory, a real etcd is started on
//! it behind the cluster's own certificates, read, and removed again.
//!
//! It needs room for the unpacked database and its log, and memory for a second etcd: it has a
//! schedule of its own (`spec.backup.verify`).

use std::fs::{self, OpenOptions};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::Progress;
use super::restore::{self, Preparation, RestoreError};
use crate::clock;
use crate::etcd::{client, store};
use crate::member::place::HostPlace;
use crate::member::records::IdentityFile;
use crate::member::restore_record::{BUMP, Reason, RestoreRecord, SourceFile, StoredPhase};
use crate::observed::Reading;
use crate::paths::Paths;
use crate::spec::ClusterSpec;
use crate::state;
use crate::tls::Certificates;
use crate::version::Version;

/// So long a trial's etcd may take until it answers.
const SERVES_WITHIN: Duration = Duration::from_secs(120);

/// Why a trial restore failed.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// No data could be made of the snapshot.
    #[error("level 4: etcdutl could make no data from it")]
    Restore(#[from] RestoreError),
    /// etcd did not come up on it.
    #[error("level 4: etcd does not serve its data: {0}")]
    NotServed(String),
    /// It serves something else.
    #[error("level 4: etcd serves revision {found}, the snapshot has {expected}")]
    Revision {
        /// What etcd says, less the jump of a restore.
        found: i64,
        /// What the snapshot has.
        expected: i64,
    },
    /// A step that the system refused.
    #[error("level 4: failed to {what}")]
    Io {
        /// The step.
        what: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
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
    /// Who lives here: the version of etcd that the trial runs.
    pub identity: &'a IdentityFile,
    /// The snapshot's file, proven up to level 3.
    pub file: &'a Path,
    /// etcd's revision of the data in it.
    pub revision: i64,
    /// Bytes of its database.
    pub database: u64,
}

/// The scratch directory and the process, gone in the end whatever happens.
struct Scratch {
    dir: PathBuf,
    etcd: Option<Child>,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(mut child) = self.etcd.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Restores into scratch, starts etcd, reads, removes.
pub async fn run(trial: &Trial<'_>, progress: &mut dyn FnMut(Progress)) -> Result<(), TrialError> {
    let dir = trial.paths.backup().join("trial");
    let mut scratch = Scratch { dir, etcd: None };
    let _ = fs::remove_dir_all(&scratch.dir);
    let [client_port, peer_port, metrics_port] = free_ports().map_err(io_error("find ports"))?;
    let mut spec = trial.spec.clone();
    spec.network.client_port = client_port;
    spec.network.peer_port = peer_port;
    spec.network.metrics_port = metrics_port;
    // One member, on loopback, whatever the cluster is.
    (spec.members, spec.own) = (heapless::Vec::new(), 0);
    let mut identity = trial.identity.clone().without_ids();
    identity.cluster.token.push_str("-trial");
    identity.member.joined = false;
    let place = HostPlace {
        storage_dir: scratch.dir.clone(),
        storage_named: false,
        listen: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
        advertised: vec!["127.0.0.1".to_owned()],
        names: Vec::new(),
        client_url: format!("https://127.0.0.1:{client_port}"),
        metrics_url: String::new(),
        metrics_listen: IpAddr::V4(Ipv4Addr::LOCALHOST),
        log_stdout: false,
    };
    let record = RestoreRecord {
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
        bump: BUMP,
        former: None,
        next: None,
        asked: None,
        takes_back: None,
    };
    restore::prepare(
        &Preparation {
            record: &record,
            storage_dir: &scratch.dir,
            identity: &identity,
            store: &trial.paths.store(),
            peer_url: &spec.peer_url(),
        },
        progress,
    )?;
    let made = RestoreRecord::scratch(&scratch.dir).join("data");
    fs::rename(made, scratch.dir.join("data")).map_err(io_error("rename the trial's data"))?;
    scratch.etcd = Some(start(trial, &spec, &place, &identity)?);
    wait_until_served(trial, &place, &mut scratch).await
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

fn start(
    trial: &Trial<'_>,
    spec: &ClusterSpec,
    place: &HostPlace,
    identity: &IdentityFile,
) -> Result<Child, TrialError> {
    let unknown = || TrialError::NotServed(format!("{} is no version", identity.member.version));
    let version: Version = identity.member.version.parse().map_err(|_| unknown())?;
    let conf = place
        .etcd_conf(trial.paths, spec, identity, None)
        .ok_or_else(unknown)?;
    // Its log is its own: the member's is what the guard reads.
    let own = trial.paths.etcd_log().to_string_lossy().into_owned();
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
    let mut command = Command::new(store::folder(&trial.paths.store(), version).join("etcd"));
    command
        .arg("--config-file")
        .arg(path)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(output);
    crate::process::as_owner(&mut command, &place.storage_dir)
        .and_then(Command::spawn)
        .map_err(io_error("start the trial's etcd"))
}

async fn wait_until_served(
    trial: &Trial<'_>,
    place: &HostPlace,
    scratch: &mut Scratch,
) -> Result<(), TrialError> {
    let files = Certificates::at(trial.paths.tls()).operator_files();
    let begin = clock::since_boot();
    loop {
        if let Some(child) = &mut scratch.etcd
            && let Ok(Some(status)) = child.try_wait()
        {
            let log = fs::read_to_string(scratch.dir.join("etcd.log")).unwrap_or_default();
            let last = log.lines().next_back().unwrap_or("without a word");
            return Err(TrialError::NotServed(format!(
                "it ended ({status}): {last}"
            )));
        }
        let look = client::look(&place.client_url, &files).await;
        if let (Reading::Answered, Some(details)) = (&look.read, look.details) {
            let jump = i64::try_from(BUMP).unwrap_or(i64::MAX);
            let found = details.revision - jump;
            // An empty store's revision is 1 to etcd, and nothing to its database.
            if (found - trial.revision).abs() <= 1 {
                return Ok(());
            }
            return Err(TrialError::Revision {
                found,
                expected: trial.revision,
            });
        }
        if clock::since_boot() > begin + SERVES_WITHIN {
            let why = format!("no answer within {} s", SERVES_WITHIN.as_secs());
            return Err(TrialError::NotServed(why));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
