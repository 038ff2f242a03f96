//! A command of the operator that is watched while it runs: memory, bytes written, and stops.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::lab::{kill, program};
use crate::stage::Stage;

/// Nothing here takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// A command that runs. It is killed when it is dropped.
pub struct Watched {
    child: Option<Child>,
}

/// What a command needed.
pub struct Needed {
    pub output: Output,
    /// The most memory that was ever resident, in bytes.
    pub peak: u64,
    /// Bytes that it made the kernel write to a disk.
    pub written: u64,
}

impl Watched {
    /// Starts a command of the operator on this host.
    pub fn start(stage: &Stage, arguments: &[&str]) -> Self {
        Watched::spawn(Command::new(program()), stage, arguments)
    }

    /// Starts it where some file systems are other ones: in a mount namespace of its own, after a
    /// shell ran `setup`. The mounts end with it.
    pub fn among_mounts(stage: &Stage, setup: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-ec"])
            .arg(format!("{setup}\nexec \"$@\""))
            .arg("sh")
            .arg(program());
        Watched::spawn(command, stage, arguments)
    }

    fn spawn(mut command: Command, stage: &Stage, arguments: &[&str]) -> Self {
        let child = command
            .args(arguments)
            .arg("--root")
            .arg(&stage.lab.root)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Watched { child: Some(child) }
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// Whether it has ended.
    pub fn ended(&self) -> bool {
        let pid = Pid::from_raw(self.pid().try_into().unwrap()).unwrap();
        let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        waitid(WaitId::Pid(pid), how).unwrap().is_some()
    }

    /// Stops it once a file has so many bytes, as it sees that file; whether it came so far.
    pub fn stop_at(&self, file: &Path, bytes: u64) -> bool {
        let file = self.path(file);
        let begin = Instant::now();
        while fs::metadata(&file).map_or(0, |it| it.len()) < bytes {
            assert!(begin.elapsed() < PATIENCE, "{}", file.display());
            if self.ended() {
                return false;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        kill("STOP", self.pid());
        true
    }

    /// A file as it sees it.
    pub fn path(&self, file: &Path) -> std::path::PathBuf {
        let root = format!("/proc/{}/root", self.pid());
        Path::new(&root).join(file.strip_prefix("/").unwrap())
    }

    pub fn go_on(&self) {
        kill("CONT", self.pid());
    }

    pub fn kill(&self) {
        kill("KILL", self.pid());
    }

    /// Waits for its end.
    pub fn end(mut self) -> Needed {
        let status = format!("/proc/{}/status", self.pid());
        let begin = Instant::now();
        let mut peak = 0;
        while !self.ended() {
            assert!(begin.elapsed() < PATIENCE, "it does not end");
            peak = peak.max(field(&status, "VmHWM:").unwrap_or(0) * 1024);
            std::thread::sleep(Duration::from_micros(500));
        }
        // The counters of a process stay until somebody has waited for it.
        let written = field(&format!("/proc/{}/io", self.pid()), "write_bytes:").unwrap();
        let output = self.child.take().unwrap().wait_with_output().unwrap();
        Needed {
            output,
            peak,
            written,
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn field(path: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|it| it.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}
