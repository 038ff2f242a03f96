//! What the service manager is told: READY, a living STATUS line, and that the loop still turns
//! (rule F2). Where there is none, nothing happens.

use std::sync::Arc;

use sd_notify::NotifyState;

use super::Report;
use super::board::Board;

/// The longest that a single pass may take: stopping etcd, or defragmenting a large database.
const PASS_SECONDS_MAX: u64 = 600;

/// Answers the watchdog, where one is set. The beat comes from the thread that answers, so that its end
/// is seen at once; that of the thread that makes passes, after [`PASS_SECONDS_MAX`].
pub(super) fn keep_watchdog(board: Arc<Board>) {
    let Some(limit) = sd_notify::watchdog_enabled() else {
        return;
    };
    tokio::spawn(async move {
        loop {
            if board.under_way().is_none_or(|it| it < PASS_SECONDS_MAX) {
                let _ = sd_notify::notify(&[NotifyState::Watchdog]);
            }
            tokio::time::sleep(limit / 3).await;
        }
    });
}

/// The process ends because it was asked to.
pub(super) fn stopping() {
    let _ = sd_notify::notify(&[
        NotifyState::Stopping,
        NotifyState::Status("ending; etcd stays"),
    ]);
}

/// The service manager, as the thread that makes passes talks to it.
#[derive(Default)]
pub(super) struct Notices {
    ready: bool,
    told: String,
}

impl Notices {
    /// A pass has ended: the line is told when it has changed, and once that the operator is ready.
    pub(super) fn passed(&mut self, report: Option<&Report>) {
        let line = report.map(line).unwrap_or_default();
        let changed = line != self.told;
        if changed {
            self.told = line;
        }
        let mut states = Vec::new();
        if changed {
            states.push(NotifyState::Status(&self.told));
        }
        if !self.ready {
            states.push(NotifyState::Ready);
            self.ready = true;
        }
        if !states.is_empty() {
            let _ = sd_notify::notify(&states);
        }
    }
}

/// What is, in one line.
fn line(report: &Report) -> String {
    let status = &report.status;
    let condition = |kind: &str| status.conditions.iter().find(|it| it.type_ == kind);
    let Some(available) = condition("Available") else {
        return String::new();
    };
    let mut parts = Vec::new();
    if available.status == "True" {
        let version = status.version.as_deref().unwrap_or("?");
        parts.push(format!("serving etcd {version}"));
        if let Some(revision) = status.revision {
            parts.push(format!("revision {revision}"));
        }
    } else {
        parts.push(format!("{}: {}", available.reason, available.message));
    }
    if let Some(it) = condition("Degraded")
        && it.status == "True"
        && it.reason != available.reason
    {
        parts.push(format!("{}: {}", it.reason, it.message));
    }
    if let Some(backup) = condition("BackupHealthy") {
        parts.push(format!("backup {}", backup.reason));
    }
    parts.join("; ")
}
