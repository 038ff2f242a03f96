//! How etcd's process is kept: the seam between a service manager and none.
//!
//! The process driver starts the guard detached. A driver for systemd has the same three verbs on
//! a unit of its own.

use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use super::AgentError;
use crate::clock;
use crate::etcd::store;
use crate::observed::Process;
use crate::paths::Paths;
use crate::process::{self, ProcessRecord};
use crate::spec::Settings;
use crate::state;

/// A guard decides within this time; certificates and a look at the data take milliseconds.
const GUARD_DEADLINE: Duration = Duration::from_secs(20);
/// etcd gets so long to end by SIGTERM. Longer is reported, never answered with SIGKILL.
const STOP_DEADLINE: Duration = Duration::from_secs(60);

/// Looks at a lock whose recorded holder is no more, 10 ms apart.
const LOCK_LOOKS: u32 = 30;

/// What keeps etcd's process.
pub trait Driver {
    /// What `status` calls it.
    fn name(&self) -> &'static str;
    /// Looks at the process.
    fn look(&mut self) -> Process;
    /// Starts etcd through the guard. Returns once the guard became etcd or refused.
    fn start(&mut self) -> impl Future<Output = Result<(), AgentError>>;
    /// Ends etcd by SIGTERM and waits.
    fn stop(&mut self) -> impl Future<Output = Result<(), AgentError>>;
    /// A descriptor that becomes readable when the process ends.
    fn death(&self) -> Option<OwnedFd>;
}

/// No service manager: the guard detaches itself and etcd inherits its lock.
#[derive(Debug)]
pub struct ProcessDriver {
    paths: Paths,
    child: Option<Child>,
}

impl ProcessDriver {
    /// For the member under these paths.
    pub fn new(paths: &Paths) -> Self {
        ProcessDriver {
            paths: paths.clone(),
            child: None,
        }
    }

    fn record(&self) -> Option<ProcessRecord> {
        state::load_volatile(&self.paths.process())
    }

    /// A child that ended is waited for, so that it does not stay as a zombie.
    fn reap(&mut self) -> Option<std::process::ExitStatus> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        self.child = None;
        Some(status)
    }

    /// A process that is dying keeps its lock until its last thread has gone.
    fn unlocks_soon(&self) -> bool {
        (0..LOCK_LOOKS).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            !self.locked()
        })
    }

    /// The member's lock is held by somebody.
    fn locked(&self) -> bool {
        use rustix::fs::{FlockOperation, flock};
        let Ok(file) = std::fs::File::open(self.paths.member_lock()) else {
            return false;
        };
        // Shared and for an instant: a guard that starts meanwhile waits longer than this.
        flock(&file, FlockOperation::NonBlockingLockShared) == Err(rustix::io::Errno::WOULDBLOCK)
    }
}

impl Driver for ProcessDriver {
    fn name(&self) -> &'static str {
        "process"
    }

    fn look(&mut self) -> Process {
        self.reap();
        match self.record() {
            Some(record) if record.is_alive() => match record.version.parse() {
                Ok(version) => Process::Running {
                    pid: record.pid,
                    settings: Settings(record.settings),
                    version,
                    seconds: clock::since_boot().as_secs().saturating_sub(record.started),
                },
                Err(_) => Process::Foreign {
                    pid: Some(record.pid),
                },
            },
            record if self.locked() && !(record.is_some() && self.unlocks_soon()) => {
                Process::Foreign {
                    pid: process::lock_holder(&self.paths.member_lock()),
                }
            }
            _ => Process::Stopped,
        }
    }

    async fn start(&mut self) -> Result<(), AgentError> {
        let guard = store::place_guard(&self.paths.store())?;
        #[expect(
            clippy::disallowed_methods,
            reason = "the guard is the only program that the agent starts"
        )]
        let mut command = Command::new(guard);
        command
            .arg("guard")
            .arg("--detach")
            .arg("--root")
            .arg(&self.paths.root);
        // Nothing of the agent's environment reaches etcd, and no descriptor of its terminal.
        command
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit());
        let child = command
            .spawn()
            .map_err(|source| AgentError::Spawn { source })?;
        let pid = child.id();
        self.child = Some(child);
        let begin = clock::since_boot();
        while clock::since_boot() < begin + GUARD_DEADLINE {
            if let Some(status) = self.reap() {
                let refused = crate::member::records::RefusalFile::load(&self.paths);
                return Err(AgentError::Guard {
                    why: refused.map_or_else(|| status.to_string(), |it| it.to_string()),
                });
            }
            if self
                .record()
                .is_some_and(|it| it.pid == pid && it.is_alive())
            {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Err(AgentError::Guard {
            why: format!("no decision within {} s", GUARD_DEADLINE.as_secs()),
        })
    }

    async fn stop(&mut self) -> Result<(), AgentError> {
        let Some(record) = self.record().filter(ProcessRecord::is_alive) else {
            return Ok(());
        };
        if !record.signal(Signal::TERM) {
            return Ok(()); // it ended between the two looks
        }
        let begin = clock::since_boot();
        while clock::since_boot() < begin + STOP_DEADLINE {
            self.reap();
            if !record.is_alive() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Err(AgentError::StopTimeout { pid: record.pid })
    }

    fn death(&self) -> Option<OwnedFd> {
        self.record()?.open()
    }
}
