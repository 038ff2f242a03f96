//! What the operator tells: a report under /run, metrics, and a log line when something changed.

use super::driver::Driver as _;
use super::report::{Host, HostDisk, HostOperator, Report};
use super::{Agent, AgentError};
use crate::api::status::to_wire;
use crate::member::place;
use crate::observed::Observed;
use crate::spec::ClusterSpec;
use crate::state;
use crate::status::Status;

impl Agent {
    /// The report of this pass.
    pub(super) fn report(
        &mut self,
        spec: &ClusterSpec,
        observed: &Observed,
        status: &Status,
    ) -> Report {
        let before = self.memory.published.as_ref().map(|it| &it.status);
        let wire = to_wire(status, before, self.memory.generation);
        let place = place::resolve(&self.paths, spec);
        let host = Host {
            name: spec.name.to_string(),
            driver: self.driver.name().to_owned(),
            operator: HostOperator {
                pid: (self.memory.generation > 0).then(std::process::id),
                version: env!("CARGO_PKG_VERSION").to_owned(),
            },
            disk: HostDisk::of(&place.storage_dir),
            leftovers: self.leftovers(&place.storage_dir),
            ..Host::of(&self.paths, &place, observed, wire.version.clone())
        };
        Report { status: wire, host }
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
        let changed = before.is_none_or(|it| it.differs(&report));
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
