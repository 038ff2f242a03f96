//! A whole arm64 machine: Debian with systemd, its clock at 1970 at every boot, memory cgroup off as
//! on a Raspberry Pi, and a disk that outlives its power.
//!
//! The disk is written through: what the machine's kernel gave to it is in the file when qemu is
//! killed. What only that kernel knew is lost, as with a power cut.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cell::{etcd, tools};
use crate::lab::free_ports;

/// Longer than anything takes on a machine with no more than half a core for this.
const PATIENCE: Duration = Duration::from_secs(240);

/// Two patches of one line of etcd.
pub const OLDER: &str = "3.6-before";
pub const NEWER: &str = "3.6";

const FROM_GO: &str = "make test-vm, with Go or a network";

/// The package as `make dist` built it.
fn package() -> Option<PathBuf> {
    let entries = fs::read_dir(tools().join("dist")).ok()?;
    let mut paths = entries.flatten().map(|it| it.path());
    paths.find(|it| it.to_string_lossy().ends_with("_arm64.deb"))
}

/// A machine that is off or on.
pub struct Machine {
    dir: PathBuf,
    /// Here a client of this host reaches etcd in the machine.
    pub port: u16,
    _claims: Vec<fs::File>,
    power: Option<Power>,
}

struct Power {
    qemu: Child,
    shell: BufReader<UnixStream>,
}

impl Machine {
    /// A machine that never ran, or why there can be none. Its second disk holds the package and
    /// two patches of etcd.
    pub fn new(name: &str) -> Result<Machine, String> {
        let image = tools().join("tools/vm/root.img");
        let package = package().ok_or("no package for arm64: run make dist")?;
        for (file, remedy) in [
            (image.clone(), "make test-vm, as root on Debian"),
            (qemu(), "make test-vm, as root on Debian"),
            (etcd(OLDER).join("etcd"), FROM_GO),
            (etcd(NEWER).join("etcd"), FROM_GO),
        ] {
            if !file.exists() {
                return Err(format!("{} is missing: {remedy}", file.display()));
            }
        }
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("machine-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        run(Command::new("cp")
            .args(["--sparse=always", "--reflink=auto"])
            .arg(&image)
            .arg(dir.join("root.img")));
        fs::create_dir(dir.join("in")).unwrap();
        for (name, content) in [
            ("etcd-operator.deb", &package),
            (OLDER, &etcd(OLDER)),
            (NEWER, &etcd(NEWER)),
        ] {
            symlink(
                fs::canonicalize(content).unwrap(),
                dir.join("in").join(name),
            )
            .unwrap();
        }
        run(Command::new("tar")
            .args(["--create", "--dereference", "--mtime=@0", "--file"])
            .arg(dir.join("in.tar"))
            .arg("-C")
            .arg(dir.join("in"))
            .args(["etcd-operator.deb", OLDER, NEWER]));
        let (ports, claims) = free_ports();
        Ok(Machine {
            dir,
            port: ports[0],
            _claims: claims,
            power: None,
        })
    }

    /// Power on; returns once systemd says that everything was started.
    pub fn boot(&mut self) {
        assert!(self.power.is_none());
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(PATIENCE)).unwrap();
        let path = |name: &str| self.dir.join(name).display().to_string();
        let image = tools().join("tools/vm");
        let mut command = Command::new(qemu());
        command
            .args(["-M", "virt", "-cpu", "cortex-a72", "-accel", "tcg,thread=multi"])
            .args(["-m", "512M", "-smp", "2", "-nodefaults", "-display", "none", "-no-reboot"])
            .args(["-rtc", "base=1970-01-01T00:00:01"])
            .arg("-kernel")
            .arg(image.join("vmlinuz"))
            .arg("-initrd")
            .arg(image.join("initrd"))
            .arg("-append")
            .arg("console=ttyAMA0 root=/dev/vda rw quiet panic=-1 cgroup_disable=memory systemd.show_status=0")
            .arg("-chardev")
            .arg(format!("file,id=console,path={},append=on", path("console.log")))
            .args(["-serial", "chardev:console", "-device", "virtio-serial-pci"])
            .args(["-chardev", "stdio,id=shell,signal=off"])
            .args(["-device", "virtserialport,chardev=shell,name=shell"])
            .args(["-device", "virtio-rng-pci", "-device", "virtio-net-pci,netdev=net,romfile="])
            .arg("-netdev")
            .arg(format!(
                "user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{}-10.0.2.15:2379",
                self.port
            ))
            .arg("-drive")
            .arg(format!(
                "file={},if=none,id=root,format=raw,cache=writethrough",
                path("root.img")
            ))
            .args(["-device", "virtio-blk-pci,drive=root"])
            .arg("-drive")
            .arg(format!(
                "file={},if=none,id=in,format=raw,readonly=on",
                path("in.tar")
            ))
            .args(["-device", "virtio-blk-pci,drive=in"])
            .stdin(OwnedFd::from(theirs.try_clone().unwrap()))
            .stdout(OwnedFd::from(theirs));
        let qemu = command.spawn().unwrap();
        let shell = BufReader::new(ours);
        self.power = Some(Power { qemu, shell });
        let (_, state) = self.run("systemctl is-system-running --wait");
        assert_eq!(
            state.trim(),
            "running",
            "{}",
            self.run("systemctl --failed").1
        );
    }

    /// Runs a command in the machine; its exit code and output.
    pub fn run(&mut self, command: &str) -> (i32, String) {
        let power = self.power.as_mut().expect("the machine is on");
        let asked = (|| {
            power
                .shell
                .get_mut()
                .write_all(format!("{}\n{command}", command.len()).as_bytes())?;
            let mut line = String::new();
            power.shell.read_line(&mut line)?;
            let (code, length) = line.trim().split_once(' ').unwrap_or(("-1", "0"));
            let mut output = vec![0; length.parse().unwrap()];
            power.shell.read_exact(&mut output)?;
            std::io::Result::Ok((
                code.parse().unwrap(),
                String::from_utf8_lossy(&output).into_owned(),
            ))
        })();
        match asked {
            Ok((-1, _)) | Err(_) => panic!("no answer to {command}: {}", self.console()),
            Ok(answer) => answer,
        }
    }

    /// Runs a command that has to succeed; its output.
    pub fn must(&mut self, command: &str) -> String {
        let (code, output) = self.run(command);
        assert_eq!(code, 0, "{command}: {output}");
        output
    }

    pub fn status(&mut self) -> Value {
        let (_, output) = self.run("etcd-operator status -o json");
        serde_json::from_str(&output).unwrap_or_else(|_| panic!("no status: {output}"))
    }

    /// Waits until the status is as wanted.
    pub fn wait(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let begin = Instant::now();
        let mut last = Value::Null;
        while begin.elapsed() < PATIENCE {
            last = self.status();
            if wanted(&last) {
                return last;
            }
            std::thread::sleep(Duration::from_millis(500));
        }
        let (_, journal) = self.run("journalctl -b --no-pager | tail -n 60");
        panic!("waited in vain for {what}\nlast: {last:#}\n{journal}");
    }

    /// Seconds since the machine booted, by its own clock.
    pub fn uptime(&mut self) -> f64 {
        let text = self.must("cat /proc/uptime");
        text.split(' ').next().unwrap().parse().unwrap()
    }

    /// The power goes, whatever the machine is doing.
    pub fn cut(&mut self) {
        let mut power = self.power.take().unwrap();
        power.qemu.kill().unwrap();
        power.qemu.wait().unwrap();
    }

    /// Shuts down in order.
    pub fn power_off(&mut self) {
        self.must("systemctl poweroff");
        let mut power = self.power.take().unwrap();
        let begin = Instant::now();
        while power.qemu.try_wait().unwrap().is_none() {
            if begin.elapsed() > PATIENCE {
                self.power = Some(power);
                panic!("the machine did not power off: {}", self.console());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub fn console(&self) -> String {
        fs::read_to_string(self.dir.join("console.log")).unwrap_or_default()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(mut power) = self.power.take() {
            let _ = power.qemu.kill();
            let _ = power.qemu.wait();
        }
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

fn qemu() -> PathBuf {
    tools().join("tools/qemu/qemu-system-aarch64")
}

fn run(command: &mut Command) {
    let done = command.stdin(Stdio::null()).output().unwrap();
    assert!(done.status.success(), "{command:?}: {done:?}");
}
