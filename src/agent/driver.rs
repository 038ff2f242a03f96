//! How etcd's process is kept: the seam between a service manager and none.

mod process;
mod systemd;

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::unix::AsyncFd;

use super::AgentError;
use crate::clock;
use crate::member::records::Running;
use crate::member::starts;
use crate::observed;
use crate::paths::Paths;
use crate::process::ProcessRecord;
use crate::spec::Settings;
use crate::state;

pub use process::ProcessDriver;
pub use systemd::SystemdDriver;

/// A guard decides within this time; certificates and a look at the data take milliseconds.
const GUARD_DEADLINE: Duration = Duration::from_secs(20);
/// etcd gets so long to end. Longer is reported.
const STOP_DEADLINE: Duration = Duration::from_secs(60);
/// Looks at a lock whose recorded holder is no more, 1 ms apart.
const LOCK_LOOKS: u32 = 300;

/// What keeps etcd's process.
pub trait Driver {
    /// What `status` calls it.
    fn name(&self) -> &'static str;
    /// Looks at the process.
    fn look(&mut self) -> observed::Process;
    /// The process that runs is ours, and something else keeps it than this driver.
    fn kept_elsewhere(&self) -> bool;
    /// Starts etcd through the guard. Returns once the guard became etcd or refused.
    fn start(&mut self) -> impl Future<Output = Result<(), AgentError>>;
    /// Ends etcd by SIGTERM, by SIGKILL after `killed_after`, and waits.
    fn stop(
        &mut self,
        killed_after: Option<Duration>,
    ) -> impl Future<Output = Result<(), AgentError>>;
    /// Waits until it is worth looking again. May be dropped and called again at any time.
    fn changed(&mut self) -> impl Future<Output = Changed>;
}

/// What [`Driver::changed`] saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// The process ended.
    Ended,
    /// The service manager changed something about the unit.
    Unit,
}

/// The driver of this host.
#[derive(Debug)]
pub enum HostDriver {
    /// No service manager.
    Process(ProcessDriver),
    /// A unit of its own.
    Systemd(SystemdDriver),
}

impl HostDriver {
    /// systemd where it runs this host and has the member's unit; else none.
    pub fn choose(paths: &Paths, cluster: &str) -> Self {
        if crate::systemd::has_member_unit(paths, cluster) {
            HostDriver::Systemd(SystemdDriver::new(paths, cluster))
        } else {
            HostDriver::Process(ProcessDriver::new(paths))
        }
    }
}

impl HostDriver {
    /// The document names the cluster otherwise: before its birth that is nothing but a name.
    pub fn rename(&mut self, paths: &Paths, cluster: &str) {
        if let HostDriver::Systemd(_) = self {
            *self = HostDriver::Systemd(SystemdDriver::new(paths, cluster));
        }
    }
}

impl Driver for HostDriver {
    fn name(&self) -> &'static str {
        match self {
            HostDriver::Process(it) => it.name(),
            HostDriver::Systemd(it) => it.name(),
        }
    }

    fn look(&mut self) -> observed::Process {
        match self {
            HostDriver::Process(it) => it.look(),
            HostDriver::Systemd(it) => it.look(),
        }
    }

    fn kept_elsewhere(&self) -> bool {
        match self {
            HostDriver::Process(it) => it.kept_elsewhere(),
            HostDriver::Systemd(it) => it.kept_elsewhere(),
        }
    }

    async fn start(&mut self) -> Result<(), AgentError> {
        match self {
            HostDriver::Process(it) => it.start().await,
            HostDriver::Systemd(it) => it.start().await,
        }
    }

    async fn stop(&mut self, killed_after: Option<Duration>) -> Result<(), AgentError> {
        match self {
            HostDriver::Process(it) => it.stop(killed_after).await,
            HostDriver::Systemd(it) => it.stop(killed_after).await,
        }
    }

    async fn changed(&mut self) -> Changed {
        match self {
            HostDriver::Process(it) => it.changed().await,
            HostDriver::Systemd(it) => it.changed().await,
        }
    }
}

/// Waits until a process that was told to end has ended. It is killed after `killed_after`.
pub(super) async fn wait_for_end(
    paths: &Paths,
    record: &ProcessRecord,
    mut killed_after: Option<Duration>,
) -> Result<(), AgentError> {
    let begin = clock::since_boot();
    while record.is_alive() {
        if killed_after.is_some_and(|it| clock::since_boot() > begin + it) {
            killed_after = None;
            tracing::info!("etcd has not ended in time: the operator ends it with SIGKILL");
            starts::stopping(paths); // or its end would count as a crash
            record.signal(Signal::KILL);
        }
        if clock::since_boot() > begin + STOP_DEADLINE {
            return Err(AgentError::StopTimeout { pid: record.pid });
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// What the guard wrote about the process that became etcd, and the lock that etcd holds.
struct Record<'a>(&'a Paths);

impl Record<'_> {
    fn read(&self) -> Option<Running> {
        state::load_volatile(&self.0.process())
    }

    fn alive(&self) -> Option<ProcessRecord> {
        Running::load(self.0).map(|it| it.process)
    }

    fn look(&self) -> observed::Process {
        match Running::load(self.0) {
            Some(Running {
                process, launch, ..
            }) => {
                let age = clock::milliseconds_since_boot().saturating_sub(process.started);
                match launch.version.parse() {
                    Ok(version) => observed::Process::Running {
                        pid: process.pid,
                        settings: Settings(launch.settings),
                        version,
                        quota: launch.quota,
                        seconds: age / 1000,
                    },
                    Err(_) => observed::Process::Foreign {
                        pid: Some(process.pid),
                    },
                }
            }
            None if self.locked() && !(self.read().is_some() && self.unlocks_soon()) => {
                observed::Process::Foreign {
                    pid: crate::process::lock_holder(&self.0.member_lock()),
                }
            }
            None => observed::Process::Stopped,
        }
    }

    /// A process that is dying keeps its lock until its last thread has gone.
    fn unlocks_soon(&self) -> bool {
        (0..LOCK_LOOKS).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            !self.locked()
        })
    }

    /// The member's lock is held by somebody.
    fn locked(&self) -> bool {
        crate::process::is_locked(&self.0.member_lock())
    }
}

/// Until the process behind the descriptor ends; forever where there is none.
async fn ended(descriptor: Option<OwnedFd>) {
    #[expect(
        deprecated,
        reason = "its successor is unsafe to call; an owned descriptor is what makes it sound"
    )]
    let registered = descriptor.and_then(|it| AsyncFd::new(it).ok());
    let Some(descriptor) = registered else {
        return std::future::pending().await;
    };
    let _ = descriptor.readable().await;
}
