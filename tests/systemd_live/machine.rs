//! A machine with a real systemd as PID 1, its own disk, network, cgroups and users.
//!
//! What runs in it ends with it, also when the test is killed: see `tests/tools/boot.sh`.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::lab::{skip, text};

/// Other tests share the processors.
const BOOT_DEADLINE: Duration = Duration::from_secs(60);
const STOP_DEADLINE: Duration = Duration::from_secs(100);
/// How the kernel tells the end of a PID namespace whose init asked for a halt.
const HALTED: i32 = 130;

pub struct Machine {
    /// What it boots from, never written to.
    root: PathBuf,
    disk: PathBuf,
    launcher: Option<Child>,
    init: u32,
}

static MACHINES: AtomicU32 = AtomicU32::new(0);

/// The Debian release of the machines: systemd 252, the oldest that the units promise to run on.
pub const BOOKWORM: &str = "bookworm";
/// A newer one: systemd 257.
pub const TRIXIE: &str = "trixie";

/// What `make test` put under `target/tools`.
pub fn tool(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("target/tools")
        .join(path)
}

impl Machine {
    /// Boots one with nothing of ours in it; says what is missing where that cannot be.
    pub fn bare() -> Option<Machine> {
        Machine::bare_on(BOOKWORM)
    }

    /// The same of another Debian release.
    pub fn bare_on(suite: &str) -> Option<Machine> {
        let mut machine = Machine::off(suite)?;
        machine.boot();
        Some(machine)
    }

    /// One with an empty disk that was not booted yet.
    fn off(suite: &str) -> Option<Machine> {
        let root = match suite {
            BOOKWORM => tool("systemd-root"),
            other => tool(&format!("systemd-root-{other}")),
        };
        let rights = fs::metadata("/proc/self").is_ok_and(|it| {
            use std::os::unix::fs::MetadataExt as _;
            it.uid() == 0
        });
        if !(rights && root.join("sbin").exists()) {
            skip(
                "a systemd of its own needs root, and the root file system that \
                 tests/tools/systemd-root.sh makes",
            );
            return None;
        }
        let number = MACHINES.fetch_add(1, Ordering::Relaxed);
        let disk = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("machine-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&disk);
        fs::create_dir_all(&disk).unwrap();
        Some(Machine {
            root,
            disk,
            launcher: None,
            init: 0,
        })
    }

    /// Switches it on and waits until every unit that is enabled was started.
    pub fn boot(&mut self) {
        self.switch_on();
        self.until(BOOT_DEADLINE, "the end of the boot", || {
            ["running", "degraded"].contains(&self.state().as_str())
        });
    }

    /// Switches it on and waits until systemd answers.
    pub fn switch_on(&mut self) {
        assert!(self.launcher.is_none(), "it runs");
        let _ = fs::remove_file(self.disk.join("init"));
        let launcher = Command::new("setpriv")
            .args(["--pdeathsig", "TERM"])
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/boot.sh"))
            .arg(&self.root)
            .arg(&self.disk)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        self.launcher = Some(launcher);
        let init = self.disk.join("init");
        self.until(BOOT_DEADLINE, "init", || init.exists());
        self.init = fs::read_to_string(init).unwrap().trim().parse().unwrap();
        self.until(BOOT_DEADLINE, "systemd", || {
            ["starting", "running", "degraded"].contains(&self.state().as_str())
        });
    }

    /// How far systemd has come: `starting`, `running`, `degraded`.
    pub fn state(&self) -> String {
        let output = self.run(&["systemctl", "is-system-running"]);
        text(&output.stdout).trim().to_owned()
    }

    /// Stops everything in order, as `poweroff` does.
    pub fn halt(&mut self) {
        let mut launcher = self.launcher.take().expect("it runs");
        signal("RTMIN+3", self.init);
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = launcher.try_wait().unwrap() {
                break status;
            }
            if begin.elapsed() > STOP_DEADLINE {
                self.launcher = Some(launcher);
                panic!("it does not halt: {}", self.console());
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        assert_eq!(status.code(), Some(HALTED), "{}", self.console());
    }

    /// Halts and boots again from the same disk.
    pub fn reboot(&mut self) {
        self.halt();
        self.boot();
    }

    /// Kills everything at once. What the kernel holds for the disk is not lost by that: the test in
    /// a virtual machine cuts there too.
    pub fn power_cut(&mut self) {
        signal("KILL", self.init);
        self.launcher.take().unwrap().wait().unwrap();
    }

    /// A file of the machine, seen from outside.
    pub fn path(&self, path: &str) -> PathBuf {
        let path = path.trim_start_matches('/');
        if self.launcher.is_some() {
            return Path::new(&format!("/proc/{}/root", self.init)).join(path);
        }
        match path.strip_prefix("var/") {
            Some(_) => self.disk.join(path),
            None => self.disk.join("upper").join(path),
        }
    }

    pub fn write(&self, path: &str, contents: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
    }

    /// Copies a file in, as `install -m MODE` does: a file of that name that is in use stays whole.
    pub fn copy(&self, from: &Path, to: &str, mode: u32) {
        let to = self.path(to);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        let part = to.with_extension("part");
        fs::copy(from, &part).unwrap_or_else(|it| panic!("{}: {it}", from.display()));
        fs::set_permissions(&part, fs::Permissions::from_mode(mode)).unwrap();
        fs::rename(part, to).unwrap();
    }

    /// A command inside, as root, with an environment of its own.
    pub fn command(&self, arguments: &[&str]) -> Command {
        // The clock and the modules of the kernel are those of the machine outside.
        let bounds = "--bounding-set=-sys_time,-sys_module,-sys_rawio";
        let mut command = Command::new("timeout");
        command
            .args(["--kill-after=5", "120", "nsenter", "-t"])
            .arg(self.init.to_string())
            .args(["-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w"])
            .args(["setpriv", "--pdeathsig", "KILL", bounds, "env", "-i"])
            .args(["PATH=/usr/local/bin:/usr/sbin:/usr/bin", "HOME=/root"])
            .args(["LANG=C.UTF-8", "TERM=dumb"])
            .args(arguments)
            .stdin(Stdio::null());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs a script inside, which may fail.
    pub fn try_sh(&self, script: &str) -> Output {
        self.run(&["bash", "-c", script])
    }

    /// Runs a script inside to its success; what it printed.
    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        let output = self.run(&["bash", "-euo", "pipefail", "-c", script]);
        assert!(
            output.status.success(),
            "{script}: {}\n{}{}",
            output.status,
            text(&output.stdout),
            text(&output.stderr)
        );
        text(&output.stdout)
    }

    /// Runs a script inside as another user, which may fail.
    pub fn sh_as(&self, user: &str, script: &str) -> Output {
        let (user, group) = (format!("--reuid={user}"), format!("--regid={user}"));
        self.run(&[
            "setpriv",
            &user,
            &group,
            "--init-groups",
            "bash",
            "-c",
            script,
        ])
    }

    /// `dpkg -i`, also of an older version.
    #[track_caller]
    pub fn install(&self, package: &Path) -> String {
        self.copy(package, "/var/tmp/package.deb", 0o644);
        self.sh("DEBIAN_FRONTEND=noninteractive dpkg -i --force-confold /var/tmp/package.deb 2>&1")
    }

    /// Whether the machine can limit memory: where cgroup v2 lacks that controller, it cannot.
    pub fn limits_memory(&self) -> bool {
        let group = "/sys/fs/cgroup/{memory/memory.limit_in_bytes,init.scope/memory.max}";
        let limits = self.sh(&format!("ls {group} 2> /dev/null || true"));
        !limits.trim().is_empty()
    }

    /// [`Machine::limits_memory`], and the test is skipped where it cannot.
    pub fn can_limit_memory(&self) -> bool {
        let limits = self.limits_memory();
        if !limits {
            skip("limits of memory need the memory controller of cgroup v1 or v2");
        }
        limits
    }

    /// A property of a unit, as `systemctl show` prints it.
    pub fn property(&self, unit: &str, property: &str) -> String {
        self.sh(&format!("systemctl show -P {property} {unit}"))
            .trim()
            .to_owned()
    }

    /// What a unit, and systemd about it, wrote since this boot.
    pub fn journal(&self, unit: &str) -> String {
        self.sh(&format!(
            "journalctl --sync; journalctl -b -u {unit} -o cat --no-pager"
        ))
    }

    /// The same with everything that is known of each line.
    pub fn journal_entries(&self, unit: &str) -> Vec<Value> {
        self.sh(&format!(
            "journalctl --sync; journalctl -b -u {unit} -o json --no-pager"
        ))
        .lines()
        .map(|it| serde_json::from_str(it).unwrap())
        .collect()
    }

    /// Waits for something that must come.
    #[track_caller]
    pub fn until(&self, limit: Duration, what: &str, done: impl Fn() -> bool) {
        let begin = Instant::now();
        while !done() {
            assert!(
                begin.elapsed() < limit,
                "waited in vain for {what}\n{}",
                self.console()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The init process, as the outside counts.
    pub fn init(&self) -> u32 {
        self.init
    }

    pub fn disk(&self) -> &Path {
        &self.disk
    }

    fn console(&self) -> String {
        let mut shown = String::new();
        if let Ok(mut file) = fs::File::open(self.disk.join("console")) {
            let _ = file.read_to_string(&mut shown);
        }
        tail(&shown)
    }

    /// For a person who reads why a test failed.
    fn tell(&self) {
        let journal = self.run(&["journalctl", "-b", "-n", "150", "--no-pager"]);
        eprintln!("{}\n{}", tail(&self.console()), text(&journal.stdout));
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if std::thread::panicking() && self.launcher.is_some() {
            self.tell();
        }
        if let Some(mut launcher) = self.launcher.take() {
            signal("TERM", launcher.id());
            let _ = launcher.wait();
        }
        let _ = fs::remove_dir_all(&self.disk);
    }
}

/// Sends a signal to a process that this test started.
pub fn signal(name: &str, pid: u32) {
    let _ = Command::new("kill")
        .args(["-s", name])
        .arg(pid.to_string())
        .stderr(Stdio::null())
        .status();
}

fn tail(whole: &str) -> String {
    let lines: Vec<&str> = whole.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}
