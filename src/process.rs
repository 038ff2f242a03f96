//! A process by its id and start time, so that a recycled id is never taken for ours.

use std::fs;
use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// What the guard writes before it becomes etcd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRecord {
    /// Its id on this host.
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat`: clock ticks since boot.
    pub start_time: u64,
    /// The boot in which that was.
    pub boot_id: String,
    /// Milliseconds since boot when it was started.
    pub started: u64,
}

impl ProcessRecord {
    /// A process that was started just now; `None`: it has ended.
    pub fn of(pid: u32) -> Option<Self> {
        Some(ProcessRecord {
            pid,
            start_time: stat(pid)?.start_time,
            boot_id: crate::clock::boot_id(),
            started: crate::clock::milliseconds_since_boot(),
        })
    }

    /// Whether that very process is alive. A zombie is not, unless it has threads that still end:
    /// files, locks and ports are free once the last of them is gone.
    pub fn is_alive(&self) -> bool {
        self.boot_id == crate::clock::boot_id()
            && stat(self.pid).is_some_and(|it| {
                let ended = matches!(it.state, 'Z' | 'X') && it.threads <= 1;
                it.start_time == self.start_time && !ended
            })
    }

    /// A descriptor of that very process: checked again after it was opened, so that no other
    /// process can stand behind it.
    pub fn open(&self) -> Option<OwnedFd> {
        let pid = Pid::from_raw(i32::try_from(self.pid).ok()?)?;
        let descriptor = pidfd_open(pid, PidfdFlags::NONBLOCK).ok()?;
        self.is_alive().then_some(descriptor)
    }

    /// Sends a signal to that very process, and to no other.
    pub fn signal(&self, signal: Signal) -> bool {
        self.open()
            .is_some_and(|it| pidfd_send_signal(it, signal).is_ok())
    }
}

/// Has a program run as the owner of a directory, where this process is root and the owner is another: etcd's own programs
/// need no more rights than etcd has.
pub fn as_owner<'a>(command: &'a mut Command, dir: &Path) -> std::io::Result<&'a mut Command> {
    use std::os::unix::fs::MetadataExt as _;
    use std::os::unix::process::CommandExt as _;
    if rustix::process::geteuid().is_root() {
        let owner = std::fs::metadata(dir)?;
        if owner.uid() != 0 {
            command.uid(owner.uid()).gid(owner.gid());
        }
    }
    Ok(command)
}

/// The first bytes that a program prints. It is killed where it has not ended in time.
///
/// # Errors
/// It cannot be started, or has not ended in time.
pub fn printed(command: &mut Command, most: u64, within: Duration) -> std::io::Result<Vec<u8>> {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let Some(stdout) = child.stdout.take() else {
        return Ok(Vec::new());
    };
    let (sender, printed) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = stdout.take(most).read_to_end(&mut bytes);
        let _ = sender.send(read.map(|_| bytes));
    });
    let silent = |_| Err(std::io::ErrorKind::TimedOut.into());
    let bytes = printed.recv_timeout(within).unwrap_or_else(silent);
    let _ = child.kill(); // one that prints on and on
    child.wait()?;
    bytes
}

/// Part of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// `R`, `S`, `T`, `Z`, ...
    pub state: char,
    /// Threads that have not ended.
    pub threads: u32,
    /// Clock ticks since boot.
    pub start_time: u64,
}

/// Reads the stat of a process' first thread, which has what the process' own says; `None` when there
/// is no such process. An emulator (qemu-user) answers `/proc/PID/stat` of its own process itself,
/// with another start time than the kernel tells everybody else.
pub fn stat(pid: u32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/task/{pid}/stat")).ok()?)
}

/// Bytes of memory that a process takes (VmRSS); `None`: there is no such process.
pub fn memory(pid: u32) -> Option<u64> {
    bytes(&format!("/proc/{pid}/status"), "VmRSS:")
}

/// Bytes of memory that programs may still take without swapping (MemAvailable).
pub fn available_memory() -> Option<u64> {
    bytes("/proc/meminfo", "MemAvailable:")
}

/// A line of a file of the kernel's, such as `VmRSS:   1234 kB`.
fn bytes(path: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|it| it.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// Whether a process was started with this path as an argument.
pub fn has_argument(pid: u32, path: &Path) -> bool {
    let wanted = path.as_os_str().as_encoded_bytes();
    fs::read(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|it| it.split(|byte| *byte == 0).any(|it| it == wanted))
}

/// The systemd unit that a process belongs to, by its control group. `None`: it could not be read.
/// Empty: none.
pub fn unit(pid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    Some(unit_of(&text).unwrap_or_default().to_owned())
}

/// systemd's own hierarchy: `name=systemd` beside the controllers of version 1, or else that of version 2.
fn unit_of<'a>(cgroup: &'a str) -> Option<&'a str> {
    let path = |wanted: &str| {
        cgroup.lines().find_map(|line| {
            let (hierarchy, path) = line.split_once(':')?.1.split_once(':')?;
            (hierarchy == wanted).then_some(path)
        })
    };
    let service = |path: &'a str| path.split('/').find(|it| it.ends_with(".service"));
    [path("name=systemd"), path("")]
        .into_iter()
        .flatten()
        .find_map(service)
}

fn parse_stat(text: &str) -> Option<Stat> {
    // The second field is the program's name in parentheses and may hold anything, parentheses too.
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some(Stat {
        state,
        threads: fields.nth(16)?.parse().ok()?,
        start_time: fields.nth(1)?.parse().ok()?,
    })
}

/// Whether a process holds an exclusive `flock` on this file. To ask, it takes a shared one for an
/// instant: a guard that starts meanwhile waits longer than this.
pub fn is_locked(path: &Path) -> bool {
    use rustix::fs::{FlockOperation, flock};
    fs::File::open(path).is_ok_and(|file| {
        flock(&file, FlockOperation::NonBlockingLockShared) == Err(rustix::io::Errno::WOULDBLOCK)
    })
}

/// The process that holds a `flock` on this file, as far as the kernel tells.
pub fn lock_holder(path: &Path) -> Option<u32> {
    lock_holders(path).first().copied()
}

/// Whether a process holds the lock that lies at this path, or lay there before its file was deleted.
pub fn holds_lock(pid: u32, path: &Path) -> bool {
    let deleted = PathBuf::from(format!("{} (deleted)", path.display()));
    let is_it = |link: PathBuf| link == path || link == deleted;
    let has_it_open = || {
        let open = fs::read_dir(format!("/proc/{pid}/fd"));
        let mut open = open.into_iter().flatten().flatten();
        open.any(|it| fs::read_link(it.path()).is_ok_and(is_it))
    };
    // The kernel writes its list of locks for each reader anew, which takes milliseconds.
    has_it_open() || lock_holders(path).contains(&pid)
}

fn lock_holders(path: &Path) -> Vec<u32> {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(inode) = fs::metadata(path).map(|it| it.ino()) else {
        return Vec::new();
    };
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let holder = |line: &str| {
        let fields: Vec<&str> = line
            .split_ascii_whitespace()
            .filter(|it| *it != "->")
            .collect();
        let [_, "FLOCK", _, _, pid, file, ..] = fields[..] else {
            return None;
        };
        (file.rsplit(':').next()?.parse() == Ok(inode))
            .then(|| pid.parse().ok())
            .flatten()
    };
    locks.lines().filter_map(holder).collect()
}

/// The name and id of the process that listens on a port at such an address, if it can be seen.
pub fn listener(port: u16, at: impl Fn(SocketAddr) -> bool) -> Option<String> {
    let sockets = sockets(port);
    let inodes: Vec<&str> = sockets
        .iter()
        .filter(|(address, _)| at(*address))
        .map(|(_, inode)| inode.as_str())
        .collect();
    let processes = fs::read_dir("/proc").ok()?;
    processes.flatten().find_map(|it| {
        let pid: u32 = it.file_name().to_str()?.parse().ok()?;
        let descriptors = fs::read_dir(it.path().join("fd")).ok()?;
        let holds = descriptors
            .flatten()
            .any(|it| fs::read_link(it.path()).is_ok_and(|link| is_socket(&link, &inodes)));
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        holds.then(|| format!("{} (pid {pid})", name.trim()))
    })
}

/// The addresses on which anybody listens on a port, as far as the kernel tells.
pub fn listening(port: u16) -> Vec<SocketAddr> {
    sockets(port)
        .into_iter()
        .map(|(address, _)| address)
        .collect()
}

/// The sockets that listen on a port: their addresses and inodes.
fn sockets(port: u16) -> Vec<(SocketAddr, String)> {
    let mut found = Vec::new();
    for file in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = fs::read_to_string(file).unwrap_or_default();
        let lines = text.lines().skip(1);
        for socket in lines.filter_map(|it| listening_socket(it, port)) {
            // The kernel hands the list out in pieces: while others come, one may stand there twice.
            if !found.contains(&socket) {
                found.push(socket);
            }
        }
    }
    found
}

fn listening_socket(line: &str, port: u16) -> Option<(SocketAddr, String)> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (address, local) = fields.get(1)?.rsplit_once(':')?;
    if u16::from_str_radix(local, 16).ok()? != port || *fields.get(3)? != "0A" {
        return None;
    }
    // Addresses are written as words of the machine, in hexadecimal.
    let word = |index: usize| {
        let text = address.get(index * 8..index * 8 + 8)?;
        Some(u32::from_str_radix(text, 16).ok()?.to_ne_bytes())
    };
    let address = if address.len() == 8 {
        IpAddr::from(word(0)?)
    } else {
        let mut bytes = [0_u8; 16];
        for (index, four) in bytes.chunks_exact_mut(4).enumerate() {
            four.copy_from_slice(&word(index)?);
        }
        IpAddr::from(bytes).to_canonical()
    };
    Some((SocketAddr::new(address, port), (*fields.get(9)?).to_owned()))
}

fn is_socket(link: &Path, inodes: &[&str]) -> bool {
    let text = link.to_string_lossy();
    let inode = text
        .strip_prefix("socket:[")
        .and_then(|it| it.strip_suffix(']'));
    inode.is_some_and(|it| inodes.contains(&it))
}

/// The path of this program.
pub fn own_executable() -> std::io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    // A package upgrade unlinks the running file; its name then ends so.
    let text = path.to_string_lossy();
    Ok(text
        .strip_suffix(" (deleted)")
        .map_or_else(|| path.clone(), PathBuf::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_root_runs_for_another_owner_has_that_owners_rights_and_no_group_of_root() {
        let dir = std::env::temp_dir().join(format!("owned-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let id = |option: &str| {
            #[expect(clippy::disallowed_methods, reason = "tells whose rights it has")]
            let mut command = Command::new("id");
            let output = as_owner(command.arg(option), &dir)
                .unwrap()
                .output()
                .unwrap();
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        };
        let own = rustix::process::geteuid();
        assert_eq!(id("-u"), own.as_raw().to_string());
        if own.is_root() {
            std::os::unix::fs::chown(&dir, Some(65_534), Some(65_533)).unwrap();
            assert_eq!([id("-u"), id("-g"), id("-G")], ["65534", "65533", "65533"]);
        }
        std::fs::remove_dir(&dir).unwrap();
    }

    #[test]
    fn a_program_that_does_not_end_is_not_waited_for() {
        let run = |script: &str, within: u64| {
            #[expect(clippy::disallowed_methods, reason = "any program")]
            let mut command = Command::new("sh");
            printed(
                command.args(["-c", script]),
                10,
                Duration::from_secs(within),
            )
        };
        assert_eq!(run("echo it ends", 60).unwrap(), b"it ends\n");
        assert_eq!(run("exec yes", 60).unwrap(), b"y\ny\ny\ny\ny\n");
        let silent = run("exec sleep 60", 0).unwrap_err();
        assert_eq!(silent.kind(), std::io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_program_may_be_called_anything() {
        let line = "7 (a) b) R 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 1 2";
        assert_eq!(
            parse_stat(line),
            Some(Stat {
                state: 'R',
                threads: 1,
                start_time: 4242
            })
        );
        assert_eq!(parse_stat("7 (a"), None);
    }

    #[test]
    fn a_process_belongs_to_the_unit_of_its_control_group() {
        let unified = "0::/system.slice/system-etcd\\x2dmember.slice/etcd-member@edge.service\n";
        assert_eq!(unit_of(unified), Some("etcd-member@edge.service"));
        let hybrid = "4:memory:/\n1:name=systemd:/system.slice/cron.service\n0::/\n";
        assert_eq!(unit_of(hybrid), Some("cron.service"));
        let unused = "9:name=systemd:/\n4:memory:/\n0::/system.slice/cron.service\n";
        assert_eq!(unit_of(unused), Some("cron.service"));
        assert_eq!(
            unit_of("0::/user.slice/user-0.slice/session-1.scope\n"),
            None
        );
        assert_eq!(unit_of(""), None);
    }

    #[test]
    fn a_recycled_pid_is_another_process() {
        let me = std::process::id();
        let mut record = ProcessRecord {
            pid: me,
            start_time: stat(me).unwrap().start_time,
            boot_id: crate::clock::boot_id(),
            started: 0,
        };
        assert!(record.is_alive() && record.open().is_some());
        record.start_time += 1;
        assert!(!record.is_alive() && record.open().is_none());
        record.start_time -= 1;
        record.boot_id.push('x');
        assert!(!record.is_alive(), "another boot");
    }

    #[test]
    fn who_holds_a_lock_holds_it_also_where_its_file_was_deleted() {
        let path = std::env::temp_dir().join(format!("lock-{}", std::process::id()));
        let file = fs::File::create(&path).unwrap();
        file.lock().unwrap();
        let me = std::process::id();
        assert_eq!(lock_holder(&path), Some(me));
        assert!(holds_lock(me, &path) && !holds_lock(1, &path));
        fs::remove_file(&path).unwrap();
        assert!(holds_lock(me, &path));
        drop(file);
        assert!(!holds_lock(me, &path));
    }

    #[test]
    fn the_holder_of_a_port_has_a_name() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        assert!(
            listener(port, |_| true)
                .unwrap()
                .contains(&format!("(pid {})", std::process::id()))
        );
        assert_eq!(listener(port, |it| it.ip().is_unspecified()), None);
    }

    #[test]
    fn listeners_of_both_families_are_seen_with_their_address() {
        for address in [
            "127.0.0.1:0",
            "127.0.0.7:0",
            "0.0.0.0:0",
            "[::1]:0",
            "[::]:0",
        ] {
            let Ok(socket) = std::net::TcpListener::bind(address) else {
                assert!(address.starts_with('['), "{address}: no IPv6 here");
                continue;
            };
            let address = socket.local_addr().unwrap();
            assert_eq!(listening(address.port()), [address]);
        }
    }
}
