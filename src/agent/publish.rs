//! What the operator tells: a report under /run, metrics, and a log line when something changed.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::driver::Driver as _;
use super::report::{Host, HostDisk, HostDocument, HostOperator, Report};
use super::{Agent, AgentError};
use crate::api::status::{news, to_wire};
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
        let before = self
            .memory
            .published
            .as_ref()
            .or(self.memory.before.as_ref());
        let mut wire = to_wire(status, before.map(|it| &it.status), self.memory.generation);
        let changes = self.memory.changes.as_ref();
        let posted = self.board.lock().identity.clone();
        let born = posted.and_then(|it| it.cluster.born);
        wire.tell_changes(changes.map_or(&[], |it| &it.history), born.as_ref());
        let reached = self.reached(spec);
        let host = Host {
            name: spec.name.to_string(),
            driver: self.driver.name().to_owned(),
            operator: HostOperator {
                pid: self.operates().then(std::process::id),
                version: env!("CARGO_PKG_VERSION").to_owned(),
            },
            disk: HostDisk::of(&reached.storage_dir),
            leftovers: self.leftovers(&reached.storage_dir),
            document: self.board.lock().accepted.as_ref().map(HostDocument::of),
            ..Host::of(&self.paths, &reached, observed, wire.version.clone())
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
        self.board.post(report.clone());
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
    for it in news(before.map(|it| &it.status), &now.status) {
        changed = true;
        let condition = it.condition;
        // That a document is refused was said when it was read, with every problem.
        let of_document = condition.type_ == "DocumentAccepted";
        if of_document || is_of_the_document(now, condition) {
            continue;
        }
        let (kind, value, reason) = (&condition.type_, &condition.status, &condition.reason);
        if it.wrong {
            tracing::warn!(%reason, "{kind} is {value}: {}", condition.message);
        } else {
            tracing::info!(%reason, "{kind} is {value}: {}", condition.message);
        }
    }
    changed
}

/// Whether a condition only repeats that the document is refused.
fn is_of_the_document(report: &Report, condition: &Condition) -> bool {
    let mut all = report.status.conditions.iter();
    let document = all.find(|it| it.type_ == "DocumentAccepted");
    document.is_some_and(|it| it.message == condition.message)
}
