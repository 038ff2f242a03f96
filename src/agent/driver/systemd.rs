//! etcd in a unit of its own: systemd starts the guard, and starts it again after a crash, with or
//! without an operator.
//!
//! What runs is known by the guard's record, as everywhere. systemd is asked to start and to stop,
//! and its signals say when to look again.

use std::time::Duration;

use rustix::process::Signal;

use super::{Changed, Driver, GUARD_DEADLINE, Record, ended, wait_for_end};
use crate::agent::AgentError;
use crate::clock;
use crate::etcd::store;
use crate::member::records::RefusalFile;
use crate::observed::Process;
use crate::paths::Paths;
use crate::process;
use crate::systemd::{self, Changes, Systemd};

/// systemd has begun with a job after this time, and is asked no more often.
const JOB_SETTLES: Duration = Duration::from_secs(1);

/// The driver of hosts with systemd.
#[derive(Debug)]
pub struct SystemdDriver {
    paths: Paths,
    /// `etcd-member@NAME.service`.
    unit: String,
    /// Until the bus goes away; made anew then.
    changes: Option<Changes>,
}

impl SystemdDriver {
    /// For the member under these paths, in the unit of this cluster.
    pub fn new(paths: &Paths, cluster: &str) -> Self {
        SystemdDriver {
            paths: paths.clone(),
            unit: systemd::member_unit(cluster),
            changes: None,
        }
    }

    /// Whether that process belongs to the unit. Unknown counts as yes: nothing is interrupted for
    /// what could not be seen.
    fn is_ours(&self, pid: u32) -> bool {
        process::unit(pid).is_none_or(|it| it == self.unit)
    }
}

impl Driver for SystemdDriver {
    fn name(&self) -> &'static str {
        "systemd"
    }

    fn look(&mut self) -> Process {
        match Record(&self.paths).look() {
            // The unit's guard holds the lock while it decides: at boot systemd starts both at once.
            Process::Foreign { pid: Some(pid) }
                if process::unit(pid).as_ref() == Some(&self.unit) =>
            {
                Process::Stopped
            }
            seen => seen,
        }
    }

    fn kept_elsewhere(&self) -> bool {
        Record(&self.paths)
            .alive()
            .is_some_and(|it| !self.is_ours(it.pid))
    }

    async fn start(&mut self) -> Result<(), AgentError> {
        store::place_guard(&self.paths.store())?;
        let begin = clock::since_boot();
        let systemd = Systemd::connect().await?;
        systemd.start(&self.unit).await?;
        let mut asked = begin;
        while clock::since_boot() < begin + GUARD_DEADLINE {
            if Record(&self.paths)
                .alive()
                .is_some_and(|it| self.is_ours(it.pid))
            {
                return Ok(());
            }
            if let Some(refusal) = RefusalFile::since(&self.paths, begin.as_secs()) {
                return Err(AgentError::Guard {
                    why: refusal.to_string(),
                });
            }
            // Until the job runs, a unit that had failed before is still called so.
            let due = clock::since_boot() > asked + JOB_SETTLES;
            if due && systemd.has_failed(&self.unit).await? {
                return Err(AgentError::Guard {
                    why: format!("{} failed: see journalctl -u {}", self.unit, self.unit),
                });
            }
            if due {
                asked = clock::since_boot();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Err(AgentError::Guard {
            why: format!("no decision within {} s", GUARD_DEADLINE.as_secs()),
        })
    }

    async fn stop(&mut self, killed_after: Option<Duration>) -> Result<(), AgentError> {
        let Some(record) = Record(&self.paths).alive() else {
            return Ok(());
        };
        let unit = process::unit(record.pid).filter(|it| systemd::is_member_unit(it));
        if let Some(unit) = unit {
            // systemd would answer a mere SIGTERM with another start. The unit may be of the name that
            // the document had before.
            Systemd::connect().await?.stop(&unit).await?;
        } else if !record.signal(Signal::TERM) && record.is_alive() {
            return Err(AgentError::ForeignUser { pid: record.pid });
        }
        wait_for_end(&self.paths, &record, killed_after).await
    }

    async fn changed(&mut self) -> Changed {
        let process = Record(&self.paths).alive().and_then(|it| it.open());
        if self.changes.is_none() {
            self.changes = match Systemd::connect().await {
                Ok(systemd) => systemd.changes(&self.unit).await.ok(),
                Err(_) => None, // time wakes the operator, too
            };
        }
        let signal = async {
            match &mut self.changes {
                Some(changes) => changes.next().await,
                None => std::future::pending().await,
            }
        };
        let alive = tokio::select! {
            () = ended(process) => return Changed::Ended,
            alive = signal => alive,
        };
        if !alive {
            self.changes = None;
        }
        Changed::Unit
    }
}
