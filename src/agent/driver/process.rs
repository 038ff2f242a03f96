//! No service manager: the guard detaches itself, and etcd inherits its lock.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use super::{Changed, Driver, GUARD_DEADLINE, Record, ended, wait_for_end};
use crate::agent::AgentError;
use crate::clock;
use crate::etcd::store;
use crate::member::starts;
use crate::observed::Process;
use crate::paths::Paths;
use crate::process;
use crate::start::How;
use crate::systemd;

/// The driver of containers, laptops and tests.
#[derive(Debug)]
pub struct ProcessDriver {
    paths: Paths,
    child: Option<Child>,
    /// The program that becomes etcd, where it is not this one.
    guard: Option<PathBuf>,
}

impl ProcessDriver {
    /// For the member under these paths.
    pub fn new(paths: &Paths) -> Self {
        ProcessDriver {
            paths: paths.clone(),
            child: None,
            guard: None,
        }
    }

    /// The same with another program as the guard: a test is not `etcd-operator` itself.
    #[must_use]
    pub fn with_guard(self, program: &Path) -> Self {
        ProcessDriver {
            guard: Some(program.to_owned()),
            ..self
        }
    }

    /// A child that ended is waited for, so that it does not stay as a zombie. Of one that had become
    /// etcd it is written down how it ended.
    fn reap(&mut self, stopped: bool) -> Option<ExitStatus> {
        let child = self.child.as_mut()?;
        let status = child.try_wait().ok()??;
        let was_etcd = Record(&self.paths)
            .read()
            .is_some_and(|it| it.process.pid == child.id());
        if was_etcd {
            starts::ended(&self.paths, stopped, how(status));
        }
        self.child = None;
        Some(status)
    }
}

fn how(status: ExitStatus) -> How {
    let number = |it: i32| u8::try_from(it).ok();
    let signal = status.signal().and_then(number).map(How::Signal);
    signal
        .or_else(|| status.code().and_then(number).map(How::Exit))
        .unwrap_or(How::Unknown)
}

impl Driver for ProcessDriver {
    fn name(&self) -> &'static str {
        "process"
    }

    fn look(&mut self) -> Process {
        self.reap(false);
        match Record(&self.paths).look() {
            // systemd would start it again whenever this driver stops it.
            Process::Running { pid, .. }
                if process::unit(pid).is_some_and(|it| systemd::is_member_unit(&it)) =>
            {
                Process::Foreign { pid: Some(pid) }
            }
            seen => seen,
        }
    }

    fn kept_elsewhere(&self) -> bool {
        false
    }

    async fn start(&mut self) -> Result<(), AgentError> {
        let store = self.paths.store();
        let guard = match &self.guard {
            Some(program) => store::place_program(&store, program)?,
            None => store::place_guard(&store)?,
        };
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
            if let Some(status) = self.reap(false) {
                let refused = crate::member::records::RefusalFile::load(&self.paths);
                return Err(AgentError::Guard {
                    why: refused.map_or_else(|| status.to_string(), |it| it.to_string()),
                });
            }
            if Record(&self.paths).alive().is_some_and(|it| it.pid == pid) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Err(AgentError::Guard {
            why: format!("no decision within {} s", GUARD_DEADLINE.as_secs()),
        })
    }

    async fn stop(&mut self, killed_after: Option<Duration>) -> Result<(), AgentError> {
        let Some(record) = Record(&self.paths).alive() else {
            return Ok(());
        };
        if !record.signal(Signal::TERM) {
            return Ok(()); // it ended between the two looks
        }
        wait_for_end(&self.paths, &record, killed_after).await?;
        self.reap(true);
        // An etcd that another agent had started is nobody's child here.
        starts::ended(&self.paths, true, How::Unknown);
        Ok(())
    }

    async fn changed(&mut self) -> Changed {
        ended(Record(&self.paths).alive().and_then(|it| it.open())).await;
        Changed::Ended
    }
}
