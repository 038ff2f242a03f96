//! What etcd is started with, what runs, and what served last.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::listen;
use crate::paths::Paths;
use crate::process::{self, ProcessRecord};
use crate::state;

/// What the guard needs for a start, written by the operator before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Launch {
    /// The document's name.
    pub cluster: String,
    /// The version of etcd.
    pub version: String,
    /// Where the data directory lies.
    pub storage_dir: PathBuf,
    /// The storage directory was named by the document and is not made by us.
    pub storage_named: bool,
    /// The document accepts a file system that loses data.
    pub unsafe_filesystem_allowed: bool,
    /// Every address on which etcd will listen.
    pub addresses: Vec<SocketAddr>,
    /// Names for a provisional server certificate.
    pub names: Vec<String>,
    /// The same for the peer's.
    #[serde(default)]
    pub peer_names: Vec<String>,
    /// Life of a leaf certificate, in seconds.
    pub leaf_seconds: i64,
    /// Environment of etcd; nothing else is in it.
    pub environment: Vec<(String, String)>,
    /// etcd's configuration file.
    pub conf: String,
    /// The database quota in it, in bytes.
    pub quota: u64,
    /// Where clients on this host reach it.
    #[serde(rename = "clientURL")]
    pub client_url: String,
    /// Its metrics.
    pub metrics: SocketAddr,
    /// [`crate::spec::Settings`] of the document.
    pub settings: u64,
    /// What the document says of these settings, as [`crate::api::convert::settings_of`] has it.
    pub asked: serde_json::Value,
    /// `size: 0`. Not part of the record: see [`Paths::hibernates`].
    #[serde(skip)]
    pub hibernates: bool,
}

/// The process that the guard became, and what it was started with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    /// The process.
    #[serde(flatten)]
    pub process: ProcessRecord,
    /// Its settings: what is in force, whatever the document says by now.
    pub launch: Launch,
    /// How often etcd was started in this boot, this start included.
    #[serde(default)]
    pub starts: u32,
    /// Addresses of clients that were not on this host when it was started: it does not listen there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<SocketAddr>,
}

impl Launch {
    /// Of the clients.
    pub fn client_port(&self) -> u16 {
        let port = self.client_url.rsplit(':').next();
        port.and_then(|it| it.parse().ok()).unwrap_or_default()
    }

    /// The addresses of clients without these.
    pub fn clients_but(&self, left_out: &[SocketAddr]) -> Vec<SocketAddr> {
        let mut clients = self.addresses.clone();
        clients.retain(|it| it.port() == self.client_port() && !left_out.contains(it));
        clients
    }
}

impl Running {
    /// Where it listens.
    pub fn bound(&self) -> Vec<SocketAddr> {
        let mut all = self.launch.addresses.clone();
        all.retain(|it| !self.left_out.contains(it));
        all
    }

    /// Where clients on this host reach it: at the first of its addresses that is there, where the usual one is not.
    pub fn client_url(&self) -> String {
        let url = &self.launch.client_url;
        let serves =
            |it: &SocketAddr| !self.left_out.contains(it) && listen::gone(&[*it]).is_empty();
        let mut clients = self.launch.clients_but(&[]);
        let usual = clients.iter().find(|it| format!("https://{it}") == *url);
        if usual.is_none_or(serves) {
            return url.clone();
        }
        clients.retain(serves);
        clients
            .first()
            .map_or_else(|| url.clone(), |it| format!("https://{it}"))
    }

    /// The process that runs, as the guard recorded it. A record is anybody's word who can write to /run:
    /// it counts where that very process holds the member's lock.
    pub fn load(paths: &Paths) -> Option<Self> {
        state::load_volatile::<Self>(&paths.process())
            .filter(|it| it.process.is_alive())
            .filter(|it| process::holds_lock(it.process.pid, &paths.member_lock()))
    }
}

/// The settings that served last. They are kept, so that an edit that cannot be started is no outage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Served {
    /// What etcd was started with.
    pub launch: Launch,
    /// From its start to the first write, in milliseconds, where the operator saw both.
    pub took_milliseconds: Option<u64>,
}
