//! What a host reports: the status of the object, and `host` beside it.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Agent;
use super::kept::Accepted;
use crate::api::status::EtcdClusterStatus;
use crate::clock::rfc3339;
use crate::cluster::ADMIN;
use crate::disk;
use crate::etcd::data_dir::OURS_ASIDE;
use crate::member::records::{self, Running};
use crate::observed::{Observed, Process};
use crate::paths::Paths;
use crate::state;
use crate::tls::Certificates;

/// What of the member is in force: of the process that runs, else what the document says.
#[derive(Clone, Debug)]
pub(super) struct Reached {
    /// For clients on this host.
    pub(super) client_url: String,
    /// etcd's metrics.
    pub(super) metrics: SocketAddr,
    /// Holds the data directory.
    pub(super) storage_dir: PathBuf,
}

/// The status of the object, and `host` beside it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The keys of the object's `.status`.
    #[serde(flatten)]
    pub status: EtcdClusterStatus,
    /// What only a host has.
    pub host: Host,
}

/// What only a host has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// The cluster's, of the document.
    pub name: String,
    /// `process` or `systemd`.
    pub driver: String,
    /// The member on this host.
    pub etcd: HostEtcd,
    /// The operator.
    pub operator: HostOperator,
    /// A client's files, on this host.
    pub files: HostFiles,
    /// The file system of the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<HostDisk>,
    /// What restores and interrupted births left beside the data.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leftovers: Vec<Leftover>,
    /// The document that is in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<HostDocument>,
    /// How old this is; only in the answer of an agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub look: Option<HostLook>,
}

/// The document that is in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostDocument {
    /// Where it was read.
    pub path: PathBuf,
    /// When it was accepted.
    pub accepted: String,
}

impl HostDocument {
    /// Of a document.
    pub fn of(accepted: &Accepted) -> Self {
        HostDocument {
            path: accepted.path.clone(),
            accepted: rfc3339(accepted.at),
        }
    }
}

/// How old a report is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostLook {
    /// Its look began after it was asked for.
    pub fresh: bool,
    /// Passes that this agent has made.
    pub passes: u64,
    /// Seconds since its look began.
    pub age_seconds: u64,
    /// The pass that is under way and has not ended in time for the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under_way: Option<UnderWay>,
}

/// A pass that is under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnderWay {
    /// Since when.
    pub seconds: u64,
    /// What it does; none while it looks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
}

/// The member on this host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostEtcd {
    /// Its process, while it runs.
    pub pid: Option<u32>,
    /// For how long it has run, while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_seconds: Option<u64>,
    /// How often it was started again in this boot, whoever ended it.
    #[serde(default)]
    pub restarts: u32,
    /// Its version.
    pub version: Option<String>,
    /// Where clients on this host connect.
    #[serde(rename = "clientURL")]
    pub client_url: String,
    /// etcd's own metrics.
    #[serde(rename = "metricsURL")]
    pub metrics_url: String,
    /// Its data directory.
    pub data_dir: String,
}

/// The operator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostOperator {
    /// Its process; none where no agent runs.
    pub pid: Option<u32>,
    /// Of the program that reports.
    #[serde(default)]
    pub version: String,
}

/// A client's files, on this host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostFiles {
    /// The CA of the server.
    pub ca: String,
    /// The certificate of the client `admin`.
    pub cert: String,
    /// Its key.
    pub key: String,
}

/// The file system of the data.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostDisk {
    /// What etcd's user may still write.
    pub free_bytes: u64,
    /// The whole.
    pub size_bytes: u64,
}

/// A directory that nothing uses any more, and that a person may remove.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Leftover {
    /// Where it lies.
    pub path: String,
    /// What it takes.
    pub bytes: u64,
}

impl Report {
    /// Whether anything but times and counters changed.
    pub(super) fn differs(&self, other: &Self) -> bool {
        let still = |it: &Host| {
            let mut it = it.clone();
            it.disk = None;
            it.etcd.up_seconds = None;
            it
        };
        still(&self.host) != still(&other.host) || self.status.differs(&other.status)
    }
}

impl Host {
    /// What place and process tell.
    pub(super) fn of(
        paths: &Paths,
        reached: &Reached,
        observed: &Observed,
        version: Option<String>,
    ) -> Self {
        let files = Certificates::at(paths.tls()).client_files(ADMIN);
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let process = observed.speaker().map(|it| it.process);
        let (pid, up_seconds) = match process {
            Some(Process::Running { pid, seconds, .. }) => (Some(pid), Some(seconds)),
            _ => (None, None),
        };
        let record = state::load_volatile::<Running>(&paths.process());
        let record = record.filter(|it| it.process.boot_id == crate::clock::boot_id());
        Host {
            etcd: HostEtcd {
                pid,
                up_seconds,
                restarts: record.map_or(0, |it| it.starts.saturating_sub(1)),
                version,
                client_url: reached.client_url.clone(),
                metrics_url: format!("http://{}", reached.metrics),
                data_dir: text(&records::data_dir(&reached.storage_dir)),
            },
            files: HostFiles {
                ca: text(&files.ca),
                cert: text(&files.cert),
                key: text(&files.key),
            },
            ..Host::default()
        }
    }
}

impl HostDisk {
    /// Of a directory, where that is there.
    pub(super) fn of(dir: &Path) -> Option<Self> {
        dir.is_dir().then_some(())?;
        Some(HostDisk {
            free_bytes: disk::free_bytes(dir)?,
            size_bytes: disk::size_bytes(dir)?,
        })
    }
}

impl Agent {
    /// What lies beside the data, looked at again when something came or went there.
    pub(super) fn leftovers(&mut self, storage_dir: &Path) -> Vec<Leftover> {
        let stamp = fs::metadata(storage_dir).and_then(|it| it.modified()).ok();
        if let (Some(stamp), Some((known, leftovers))) = (stamp, &self.memory.leftovers)
            && stamp == *known
        {
            return leftovers.clone();
        }
        let found = leftovers(storage_dir);
        self.memory.leftovers = stamp.map(|it| (it, found.clone()));
        found
    }
}

/// What lies set aside beside the data.
pub fn leftovers(storage_dir: &Path) -> Vec<Leftover> {
    let entries = fs::read_dir(storage_dir).into_iter().flatten().flatten();
    let left = entries.filter(|it| {
        let name = it.file_name();
        OURS_ASIDE
            .iter()
            .any(|start| name.to_string_lossy().starts_with(start))
    });
    let mut found: Vec<Leftover> = left
        .map(|it| Leftover {
            path: it.path().to_string_lossy().into_owned(),
            bytes: bytes_below(&it.path()),
        })
        .collect();
    found.sort_by(|one, other| one.path.cmp(&other.path));
    found
}

/// What the files below a directory take on the disk. No link is followed.
fn bytes_below(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(metadata) = fs::symlink_metadata(path) else {
        return 0;
    };
    let below = if metadata.is_dir() {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|it| bytes_below(&it.path())).sum()
    } else {
        0
    };
    metadata.blocks() * 512 + below
}
