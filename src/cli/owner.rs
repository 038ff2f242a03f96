//! Rights: root acts as the owner of the state, and whoever has too few rights gets one sentence.
//!
//! Under systemd the state belongs to the user etcd-operator. What that user could exchange, programs and
//! links among them, is neither run nor followed with root's rights: what root asks is done as that user.
//! What only root can read, the keys to S3 and files that the command line names, is opened before.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Access, CWD, Gid, Mode, OFlags, ResolveFlags, Uid, access, openat2};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::desk::Desk;
use super::restore::is_name;
use super::{
    BackupCommand, CertsCommand, Command, Context, DriverChoice, EtcdCommand, FAILED, Failure,
    USAGE,
};
use crate::backup::directory::{Links, Parts};
use crate::error::shell_word;
use crate::s3::Credentials;
use crate::systemd;

/// Where systemd looks for the keys that the unit's `LoadCredential=` names, and where it puts them.
const KEYS: [&str; 2] = [
    "etc/credstore/etcd-operator.s3",
    "run/credentials/etcd-operator.service/etcd-operator.s3",
];
/// No file of keys is longer.
const KEYS_MAX: u64 = 64 * 1024;

/// Files that the command line names and root alone can read.
#[derive(Default)]
pub(super) struct Given {
    /// Of `restore --from`.
    pub(super) snapshot: Option<File>,
    /// The same, where it is a data directory.
    pub(super) directory: Option<Parts>,
    /// The copy in memory of `restore --identity`, and its path.
    pub(super) identity: Option<(File, PathBuf)>,
}

/// Goes on as the owner of the state directory, where root asks and the owner is another. Commands that
/// need root stay root; those that would run the owner's programs as root are refused.
pub(super) fn act_as_owner(context: &mut Context, command: &Command) -> Result<(), Failure> {
    if !of_this_host(command) {
        return Ok(());
    }
    if !Path::new("/proc/self/stat").exists() {
        let text = "/proc is not mounted, without which processes cannot be told apart: mount -t proc proc /proc";
        return Err(Failure::new(FAILED, text));
    }
    offer_keys(&context.paths.root, command);
    if !rustix::process::geteuid().is_root() {
        return check_rights(context, command);
    }
    let (uid, gid) = match fs::metadata(&context.paths.lib) {
        Ok(it) if it.uid() != 0 => (it.uid(), it.gid()),
        _ => return Ok(()),
    };
    match command {
        Command::Guard(_) => return Err(refused(context, command, uid)),
        Command::Agent(it) if it.driver != DriverChoice::Systemd => {
            return Err(refused(context, command, uid));
        }
        // The unit's agent by its drop-in, what installs programs, what gives files to another user.
        Command::Agent(_) | Command::Etcd(EtcdCommand::Install(_)) => return Ok(()),
        Command::Certs(CertsCommand::Issue(it)) if it.out.is_some() => return Ok(()),
        _ => {}
    }
    if let Command::Restore(it) = command {
        context.given.snapshot = open_plainly(Path::new(&it.from));
        let names_one = it.command.is_none() && !it.undo && !is_name(&it.from);
        if names_one {
            context.given.directory = Parts::open(Path::new(&it.from), Links::Refused)?;
        }
        let identity = it.identity.as_deref().and_then(open_plainly);
        context.given.identity = identity.map(in_memory).transpose()?;
    }
    Ok(become_user(uid, gid)?)
}

/// How often threads are counted, a millisecond apart. That of the parser has ended, and the kernel takes it from its list
/// a moment later.
const COUNTS: usize = 2000;

/// Waits until there is one thread.
fn alone(mut threads: impl FnMut() -> io::Result<usize>) -> io::Result<()> {
    for _ in 0..COUNTS {
        if threads()? == 1 {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(io::Error::other("other threads would keep their rights"))
}

/// Goes on with the rights of another user. This has to be the only thread. A process that changed its
/// user so is nobody's to look into, the new user's neither.
pub(super) fn become_user(uid: u32, gid: u32) -> io::Result<()> {
    alone(|| Ok(fs::read_dir("/proc/self/task")?.count()))?;
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    Ok(())
}

/// Runs a command of this program as the owner of the state, where root asks and the owner is another;
/// what it printed. None: this process may do it itself.
pub(super) fn ask_as_owner(
    context: &Context,
    arguments: &[&std::ffi::OsStr],
) -> Result<Option<Vec<u8>>, Failure> {
    let owner = fs::metadata(&context.paths.lib).map(|it| (it.uid(), it.gid()));
    let (uid, gid) = match owner {
        Ok((uid, gid)) if rustix::process::geteuid().is_root() && uid != 0 => (uid, gid),
        _ => return Ok(None),
    };
    #[expect(
        clippy::disallowed_methods,
        reason = "this program itself, with fewer rights"
    )]
    let mut again = std::process::Command::new(crate::process::own_executable()?);
    again.arg("--root").arg(&context.paths.root);
    again.arg("--config").arg(&context.config);
    let output = again
        .args(arguments)
        .uid(uid)
        .gid(gid)
        .stdin(std::process::Stdio::null())
        .stderr(std::process::Stdio::inherit())
        .output()?;
    if output.status.success() {
        return Ok(Some(output.stdout));
    }
    let code = output.status.code().and_then(|it| u8::try_from(it).ok());
    // It said why itself.
    Err(Failure::new(code.unwrap_or(FAILED), ""))
}

/// Whether a command reads or writes the state of this host. The others look at rights themselves, need
/// root for what they write, or print what is built in.
fn of_this_host(command: &Command) -> bool {
    if command.cluster().is_some_and(Desk::is_meant) {
        return false;
    }
    match command {
        Command::Status(_)
        | Command::Plan(_)
        | Command::Diff(_)
        | Command::Reload(_)
        | Command::Env(_)
        | Command::Pause { .. }
        | Command::Resume
        | Command::Etcdctl { .. }
        | Command::Agent(_)
        | Command::Etcd(EtcdCommand::List(_) | EtcdCommand::Install(_))
        | Command::Certs(_) => true,
        Command::Backup(it) => !matches!(it.command, BackupCommand::Worker),
        Command::Restore(it) => !it.pod,
        Command::Guard(it) => !it.pod && it.copy_to.is_none(),
        Command::Init(_)
        | Command::Unit(_)
        | Command::Preflight(_)
        | Command::VerifySnapshot { .. }
        | Command::Controller(_)
        | Command::Manifests { .. }
        | Command::Convert { .. }
        | Command::Completions { .. }
        | Command::Version
        | Command::Explain(_)
        | Command::Crd => false,
    }
}

/// Without rights nothing is known, which is not the same as nothing being there.
fn check_rights(context: &Context, command: &Command) -> Result<(), Failure> {
    // A file is checked without any rights; what is in force is then not compared.
    if matches!(command, Command::Diff(_)) {
        return Ok(());
    }
    let lib = &context.paths.lib;
    let denied = |path: &Path, rights| access(path, rights) == Err(rustix::io::Errno::ACCESS);
    let there = lib.ancestors().find(|it| it.exists()).unwrap_or(lib);
    let enough = if there == lib {
        !denied(lib, Access::READ_OK | Access::EXEC_OK)
    } else {
        !denied(lib, Access::EXISTS) && (reads(command) || !denied(there, Access::WRITE_OK))
    };
    // The agent answers its group, too.
    let asks = matches!(
        command,
        Command::Status(_) | Command::Plan(_) | Command::Reload(_)
    );
    if enough || asks && UnixStream::connect(context.paths.socket()).is_ok() {
        return Ok(());
    }
    let by_unit = matches!(command, Command::Agent(_)) && systemd::runs(&context.paths);
    let next = if by_unit {
        "sudo systemctl start etcd-operator".to_owned()
    } else {
        let words = std::env::args().skip(1).map(|it| shell_word(&it));
        format!("sudo etcd-operator {}", words.collect::<Vec<_>>().join(" "))
    };
    let text = format!("{} is not this user's: {next}", lib.display());
    Err(Failure::new(FAILED, text))
}

fn reads(command: &Command) -> bool {
    matches!(
        command,
        Command::Status(_)
            | Command::Plan(_)
            | Command::Env(_)
            | Command::Etcd(EtcdCommand::List(_))
            | Command::Certs(CertsCommand::List(_))
    )
}

fn refused(context: &Context, command: &Command, uid: u32) -> Failure {
    let next = match command {
        Command::Agent(_) if systemd::runs(&context.paths) => {
            "start it by its unit: systemctl start etcd-operator"
        }
        _ => "run it as that user",
    };
    let text = format!(
        "{} belongs to the user {uid}, whose programs are not run as root: {next}",
        context.paths.lib.display()
    );
    Failure::new(USAGE, text)
}

/// The keys of the agent's unit, for commands that go to buckets.
fn offer_keys(root: &Path, command: &Command) {
    if !matches!(command, Command::Backup(_) | Command::Restore(_)) {
        return;
    }
    for path in KEYS.map(|it| root.join(it)) {
        let mut text = String::new();
        let read = File::open(&path).map(|it| it.take(KEYS_MAX).read_to_string(&mut text));
        if matches!(read, Ok(Ok(_))) {
            return Credentials::offer(path, text);
        }
    }
}

/// Opens a file for reading that lies where it is named: not behind a link, and under no second name, by
/// either of which another user could have put a file of root's there.
fn open_plainly(path: &Path) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS).ok()?;
    let file = File::from(file);
    let metadata = file.metadata().ok()?;
    (metadata.is_file() && metadata.nlink() == 1).then_some(file)
}

/// A copy in memory, under a path that this process alone can open.
fn in_memory(file: File) -> io::Result<(File, PathBuf)> {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let mut copy = File::from(rustix::fs::memfd_create("identity", flags)?);
    io::copy(&mut file.take(KEYS_MAX), &mut copy)?;
    copy.flush()?;
    copy.rewind()?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", copy.as_raw_fd()));
    Ok((copy, path))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::arguments::Cli;

    #[test]
    fn a_thread_that_has_ended_is_waited_for_and_one_that_stays_is_refused() {
        let mut counts = [2, 2, 1].into_iter();
        alone(|| Ok(counts.next().unwrap())).unwrap();
        let error = alone(|| Ok(2)).unwrap_err();
        assert_eq!(error.to_string(), "other threads would keep their rights");
    }

    #[test]
    fn what_a_pod_runs_has_no_rights_on_a_host_to_look_at() {
        let of_this_host = |words: &[&str]| {
            let all = ["etcd-operator"].iter().chain(words);
            of_this_host(&Cli::try_parse_from(all).unwrap().command)
        };
        assert!(!of_this_host(&["guard", "--copy-to", "/guard"]));
        assert!(!of_this_host(&["guard", "--pod"]));
        assert!(!of_this_host(&["backup", "worker"]));
        assert!(of_this_host(&["guard", "--supervised"]));
    }
}
