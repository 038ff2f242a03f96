//! What the operator tells: a report under /run, metrics, and a log line when something changed.

use serde::{Deserialize, Serialize};

use super::driver::Driver as _;
use super::{Agent, AgentError};
use crate::api::status::{EtcdClusterStatus, to_wire};
use crate::cluster::ADMIN;
use crate::member::place::{self, HostPlace};
use crate::member::records;
use crate::observed::{Observed, Process};
use crate::paths::Paths;
use crate::spec::ClusterSpec;
use crate::state;
use crate::status::Status;
use crate::tls::Certificates;

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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// `process` or `systemd`.
    pub driver: String,
    /// The member on this host.
    pub etcd: HostEtcd,
    /// The operator.
    pub operator: HostOperator,
    /// A client's files, on this host.
    pub files: HostFiles,
}

/// The member on this host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostEtcd {
    /// Its process, while it runs.
    pub pid: Option<u32>,
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostOperator {
    /// Its process; none where no agent runs.
    pub pid: Option<u32>,
}

/// A client's files, on this host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostFiles {
    /// The CA of the server.
    pub ca: String,
    /// The certificate of the client `admin`.
    pub cert: String,
    /// Its key.
    pub key: String,
}

/// Puts the pieces together.
pub fn report(
    paths: &Paths,
    place: &HostPlace,
    driver: &str,
    process: Process,
    status: EtcdClusterStatus,
    operator: Option<u32>,
) -> Report {
    let files = Certificates::at(paths.tls()).client_files(ADMIN);
    let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
    let pid = match process {
        Process::Running { pid, .. } => Some(pid),
        _ => None,
    };
    Report {
        host: Host {
            driver: driver.to_owned(),
            etcd: HostEtcd {
                pid,
                version: status.version.clone(),
                client_url: place.client_url.clone(),
                metrics_url: place.metrics_url.clone(),
                data_dir: text(&records::data_dir(&place.storage_dir)),
            },
            operator: HostOperator { pid: operator },
            files: HostFiles {
                ca: text(&files.ca),
                cert: text(&files.cert),
                key: text(&files.key),
            },
        },
        status,
    }
}

impl Agent {
    /// The report of this pass.
    pub(super) fn report(
        &self,
        spec: &ClusterSpec,
        observed: &Observed,
        status: &Status,
    ) -> Report {
        let before = self.memory.published.as_ref().map(|it| &it.status);
        let wire = to_wire(status, before, self.memory.generation);
        let process = observed
            .instances
            .first()
            .map_or(Process::Unknown, |it| it.process);
        let place = place::resolve(&self.paths, spec);
        let operator = (self.memory.generation > 0).then(std::process::id);
        report(
            &self.paths,
            &place,
            self.driver.name(),
            process,
            wire,
            operator,
        )
    }

    /// Publishes: the file only when something changed but the time (rule G7).
    pub(super) fn tell(
        &mut self,
        spec: &ClusterSpec,
        observed: &Observed,
        status: &Status,
    ) -> Result<(), AgentError> {
        let report = self.report(spec, observed, status);
        if let Some(metrics) = &self.telemetry {
            metrics.record(observed, status);
        }
        self.remember_seen(observed);
        let before = self.memory.published.as_ref();
        let changed = before.is_none_or(|it| differs(it, &report));
        if log_conditions(before, &report) {
            self.memory.told.clear();
        }
        self.memory.published = Some(report);
        if changed && let Some(report) = &self.memory.published {
            state::save_volatile(&self.paths.status(), report)?;
        }
        Ok(())
    }
}

/// Changed conditions, one line each; whether there was one.
fn log_conditions(before: Option<&Report>, now: &Report) -> bool {
    let mut changed = false;
    for condition in &now.status.conditions {
        let old = before.and_then(|it| {
            it.status
                .conditions
                .iter()
                .find(|it| it.type_ == condition.type_)
        });
        if old.is_some_and(|it| it.status == condition.status && it.reason == condition.reason) {
            continue;
        }
        changed |= condition.type_ != "Progressing";
        let (kind, value, reason) = (&condition.type_, &condition.status, &condition.reason);
        let wrong = match kind.as_str() {
            "Degraded" => value == "True",
            "Available" | "HostHealthy" => value == "False",
            _ => false,
        };
        if wrong && reason != "Starting" {
            tracing::warn!(%reason, "{kind} is {value}: {}", condition.message);
        } else if kind == "Available" || before.is_some() && kind != "Progressing" {
            tracing::info!(%reason, "{kind} is {value}: {}", condition.message);
        }
    }
    changed
}

/// Whether anything but times and counters changed.
fn differs(one: &Report, other: &Report) -> bool {
    one.host != other.host || one.status.differs(&other.status)
}
