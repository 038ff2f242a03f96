//! Checks whether etcd may start, then becomes etcd. Every start of etcd goes through the guard.
//!
//! systemd, the kubelet and the agent all start this program. It gathers the facts and makes
//! provisional certificates where none are usable; [`crate::start`] judges the facts. The guard
//! then becomes etcd by exec, which keeps the process, its descriptors and its notify socket. If
//! etcd may not start, the guard writes the reason to a file that the operator reads, and exits.
//! The guard needs no running operator and decides nothing itself.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::{FdFlags, fcntl_setfd};

use crate::clock;
use crate::cluster::detail;
use crate::disk;
use crate::error::chain;
use crate::etcd::store;
use crate::member::certificates::{Wanted, survey};
use crate::member::examiner::Examiner;
use crate::member::facts::{self, Gathered};
use crate::member::pod::{self, LayDownError, PodMember};
use crate::member::records::{self, Launch, RefusalFile, Running};
use crate::member::refused;
use crate::member::restore_record::RestoreRecord;
use crate::member::starts;
use crate::member::turn::{self, AskedToEnd};
use crate::observed::{Clock, Pairs};
use crate::paths::Paths;
use crate::process::ProcessRecord;
use crate::render;
use crate::start::{self, CertificatesUsable, Completeness, Refusal, Start};
use crate::state::{self, StateError};
use crate::tls::{Certificates, Leaves, TlsError, Validity, leaf_of};
use crate::version::{Line, Version};

/// Why etcd was not started.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// [`crate::start::verdict`] refused the start.
    #[error("{0}")]
    Refused(Refusal),
    /// No operator has prepared a start here yet.
    #[error("there is no launch record: start etcd-operator agent once with a document")]
    NoLaunchRecord,
    /// A record could not be read or written.
    #[error(transparent)]
    State(#[from] StateError),
    /// Somebody ends the Pod while its guard waits.
    #[error("asked to end before etcd was started")]
    AskedToEnd,
    /// A step that the system refused.
    #[error("failed to {what}")]
    System {
        /// The step.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> GuardError {
    move |source| GuardError::System { what, source }
}

/// Another guard that is starting may hold the lock briefly. etcd holds the lock until it ends.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);

/// Who asked for the start, and so who may ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// The calling command. etcd stays in the foreground, and a refusal ends the guard.
    Caller,
    /// The agent, which waits for the verdict. etcd gets a session of its own.
    Agent,
    /// A service manager, which restarts this program repeatedly, even while the operator is dead or
    /// removed. The guard therefore waits for causes that may pass, instead of logging a line each time.
    Supervisor,
    /// The kubelet, which also restarts this program and passes the guard's termination message to the
    /// controller. The Pod brings what the controller prepares; only the controller makes certificates.
    Pod,
}

/// How long until the guard checks again after a refusal that may pass. Disk space can come back at
/// any moment, and checking it costs nothing.
fn look_again(refusal: &Refusal) -> Duration {
    match refusal {
        Refusal::DiskFull { .. } => Duration::from_secs(1),
        _ => Duration::from_secs(5),
    }
}

/// How long the guard waits for a refusal to pass. At first the wait is short, because a boot waits
/// for this start. Later the supervisor has restarted the guard, and only etcd still waits for it.
const BOOT_PATIENCE: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(3600);

/// Checks, then becomes etcd. Returns only if etcd was not started, with the reason.
pub fn run(paths: &Paths, keeper: Keeper) -> GuardError {
    let mut examiner = Examiner::patient();
    let mut told = None;
    let begin = clock::since_boot();
    let mut patience = None;
    loop {
        let error = match start(paths, keeper, &mut examiner) {
            Ok(never) => match never {},
            Err(GuardError::AskedToEnd) => return GuardError::AskedToEnd,
            Err(error) => error,
        };
        let refusal = match &error {
            GuardError::Refused(refusal) => refusal.clone(),
            other => no_room(paths, other)
                .unwrap_or_else(|| Refusal::Other(detail(format_args!("{}", chain(other))))),
        };
        RefusalFile::save(paths, &refusal);
        if keeper == Keeper::Pod {
            let words = format!("{}: {refusal}", refusal.reason());
            pod::say_last(&words);
        }
        let alone = matches!(error, GuardError::NoLaunchRecord); // only the operator writes one
        if matches!(keeper, Keeper::Caller | Keeper::Agent) || alone || !refusal.may_pass() {
            return error;
        }
        let patience = *patience.get_or_insert_with(|| match keeper {
            Keeper::Pod => pod::GUARD_PATIENCE,
            _ if RefusalFile::lasts(paths) < BOOT_PATIENCE.as_secs() => BOOT_PATIENCE,
            _ => PATIENCE,
        });
        if clock::since_boot() > begin + patience {
            return error;
        }
        let text = format!("{}: {refusal}", refusal.reason());
        if told.as_ref() != Some(&text) {
            tracing::warn!(
                "etcd is not started: {text}; the guard checks again every {} s; next: {}",
                look_again(&refusal).as_secs(),
                refusal.next_step()
            );
            tell_service_manager(&format!("waiting: {text}"));
            told = Some(text);
        }
        std::thread::sleep(look_again(&refusal));
    }
}

/// More than all records of a member.
const RECORDS_BYTES: u64 = 1 << 20;

/// A record that found no room beside the data.
fn no_room(paths: &Paths, error: &GuardError) -> Option<Refusal> {
    let free = disk::room(&paths.lib).filter(|it| *it < RECORDS_BYTES)?;
    let needed = RECORDS_BYTES;
    is_for_want_of_room(error).then_some(Refusal::DiskFull { free, needed })
}

fn is_for_want_of_room(error: &GuardError) -> bool {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(it) = cause {
        let of_system = it.downcast_ref::<io::Error>();
        if of_system.is_some_and(|it| it.kind() == io::ErrorKind::StorageFull) {
            return true;
        }
        cause = it.source();
    }
    false
}

/// The line that `systemctl status` shows. Nothing depends on it.
fn tell_service_manager(status: &str) {
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Status(status)]);
}

/// Waits before a start that follows failed starts, longer each time. A running operator waits the
/// same time before it asks for a start.
fn back_off(paths: &Paths) {
    let seconds = starts::back_off(paths);
    if seconds > 0 {
        tell_service_manager(&format!("the next start is tried in {seconds} s"));
        std::thread::sleep(Duration::from_secs(seconds));
    }
}

fn start(
    paths: &Paths,
    keeper: Keeper,
    examiner: &mut Examiner,
) -> Result<std::convert::Infallible, GuardError> {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    state::create_private_dir(&paths.run)?;
    let mut before = Vec::new();
    if keeper == Keeper::Pod {
        if let Some(refusal) = refused::denied(&paths.lib) {
            return Err(GuardError::Refused(refusal));
        }
        // In Kubernetes mode a restore has its own Pod. No etcd may use the data before the restore
        // ends.
        if RestoreRecord::load(paths)?.is_some_and(|it| it.has_begun()) {
            return Err(GuardError::Refused(Refusal::Restoring));
        }
        before = lay_down(paths)?;
    }
    if matches!(keeper, Keeper::Supervisor | Keeper::Pod) {
        facts::look_into_the_last_start(paths, &launch(paths)?.0);
        back_off(paths);
    }
    let lock = take_lock(paths)?;
    let (launch, version) = launch(paths)?; // an operator may have written another one while this waited
    let certificates = if keeper == Keeper::Pod {
        mounted_certificates(paths)
    } else {
        ensure_certificates(paths, &launch)
    };
    let mut judge = || -> Result<(Gathered, Start), GuardError> {
        let mut gathered = facts::gather(paths, &launch, version, certificates, None, examiner);
        let restore = RestoreRecord::load(paths)?;
        gathered.facts.restoring = restore.is_some_and(|it| it.holds_the_data());
        let start = start::verdict(&gathered.facts).map_err(GuardError::Refused)?;
        Ok((gathered, start))
    };
    let (mut gathered, mut start) = judge()?;
    store::note_unchanged(&paths.store(), version);
    if gathered.facts.data.completeness() == Completeness::Empty && !before.is_empty() {
        turn::wait(
            &before,
            &Certificates::at(paths.tls()).current(),
            turn::PATIENCE,
        )?;
        // Those before it have taken their room.
        (gathered, start) = judge()?;
    }
    let data = records::data_dir(&launch.storage_dir);
    if start == Start::SetAsideThenGo {
        set_aside(&data)?;
    }
    state::create_private_dir(&data)?;
    state::create_private_dir(paths.etcd_log().parent().unwrap_or(&paths.lib))?;
    if keeper == Keeper::Agent {
        // Fails only if this process already leads a group, as under a shell's job control.
        let _ = rustix::process::setsid();
    }
    let mut conf = launch.conf.clone();
    if gathered.facts.data.log.replays_v2 && version.line() == Some(Line::V3_6) {
        conf = render::with_short_log(&conf);
    }
    if !gathered.left_out.is_empty() {
        conf = render::listening_on(&conf, &launch.clients_but(&gathered.left_out));
    }
    state::write_changed(&paths.etcd_conf(), conf.as_bytes())?;
    record_process(paths, &launch, gathered.left_out)?;
    starts::record(paths);
    let _ = fs::remove_file(paths.refusal());
    if keeper == Keeper::Pod {
        pod::say_last(""); // what was refused for a while is not why etcd ends
    }
    become_etcd(paths, &launch, version, lock, keeper)
}

/// What is to be started.
fn launch(paths: &Paths) -> Result<(Launch, Version), GuardError> {
    let launch: Launch = state::load(&paths.launch())?.ok_or(GuardError::NoLaunchRecord)?;
    let version = launch.version.parse();
    let version = version.map_err(|_| GuardError::NoLaunchRecord)?;
    let hibernates = paths.hibernates().exists();
    Ok((
        Launch {
            hibernates,
            ..launch
        },
        version,
    ))
}

/// Writes the records that the controller put into the Pod's environment. The peer URLs of those that start before this member.
fn lay_down(paths: &Paths) -> Result<Vec<String>, GuardError> {
    let member = PodMember::from_environment().ok_or(GuardError::NoLaunchRecord)?;
    let listed = member.listed(paths)?;
    member.lay_down(paths, listed.as_ref())?;
    Ok(listed.map_or_else(Vec::new, |it| it.before))
}

impl From<LayDownError> for GuardError {
    fn from(error: LayDownError) -> Self {
        match error {
            LayDownError::Refused(refusal) => GuardError::Refused(refusal),
            LayDownError::State(error) => error.into(),
            LayDownError::AskedToEnd => GuardError::AskedToEnd,
        }
    }
}

impl From<AskedToEnd> for GuardError {
    fn from(_: AskedToEnd) -> Self {
        GuardError::AskedToEnd
    }
}

/// etcd's two pairs, as the kubelet mounted them from the Secret.
fn mounted_certificates(paths: &Paths) -> CertificatesUsable {
    let dir = Certificates::at(paths.tls()).current();
    let now = clock::now();
    let usable = |role: &str, ca: &str| {
        let file = |name: String| dir.join(name);
        let (cert, key) = (file(format!("{role}.crt")), file(format!("{role}.key")));
        leaf_of(&cert, &key, &dir.join(ca))
            .is_ok_and(|it| it.not_before <= now && now <= it.not_after)
    };
    if usable("server", "client-ca.crt") && usable("peer", "peer-ca.crt") {
        CertificatesUsable::Yes
    } else {
        CertificatesUsable::No
    }
}

fn refused<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> StateError + 'a {
    move |source| StateError::Io {
        what,
        path: path.to_owned(),
        source,
    }
}

/// etcd inherits the lock's descriptor, so the lock is held until etcd ends.
fn take_lock(paths: &Paths) -> Result<File, GuardError> {
    let path = paths.member_lock();
    let file = state::open_lock(&path).map_err(refused("open", &path))?;
    let begin = clock::since_boot();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) if clock::since_boot() < begin + LOCK_PATIENCE => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(GuardError::Refused(Refusal::DataInUse));
            }
            Err(error) => return Err(system("lock the member")(error.into())),
        }
    }
}

/// Makes provisional certificates if none are usable. This prevents rule C7's deadlock: no
/// certificate without a clock, no clock without a network, no network without a cluster.
fn ensure_certificates(paths: &Paths, launch: &Launch) -> CertificatesUsable {
    let certificates = Certificates::at(paths.tls());
    let now = clock::now();
    let wanted = Wanted {
        names: &launch.names,
        peer_names: &launch.peer_names,
        clients: &[],
        clock: Clock::Unsynchronised,
    };
    let usable = |pairs| matches!(pairs, Pairs::Usable | Pairs::AddressesDiffer);
    let summary = survey(&certificates, now, &wanted);
    if usable(summary.pairs) {
        return CertificatesUsable::Yes;
    }
    let newest = clock::newest_known(&records::data_dir(&launch.storage_dir), Some(now));
    let minted = (|| -> Result<(), TlsError> {
        certificates.ensure_authorities(&launch.cluster, newest)?;
        let validity = Validity::provisional(newest, launch.leaf_seconds);
        certificates.mint(&Leaves {
            names: &launch.names,
            peer_names: &launch.peer_names,
            cluster: &launch.cluster,
            validity,
        })
    })();
    match minted {
        Ok(()) => {
            tracing::info!(was = ?summary.pairs, "made provisional certificates");
            CertificatesUsable::Yes
        }
        Err(error) => {
            tracing::error!(%error, "failed to make provisional certificates");
            CertificatesUsable::No
        }
    }
}

/// Renames the data that an interrupted birth left. Deletes nothing.
fn set_aside(data: &Path) -> Result<(), GuardError> {
    let target = records::aside(data, "birth-interrupted");
    tracing::warn!(to = %target.display(), "set the leftovers of an interrupted first start aside");
    fs::rename(data, target).map_err(system("set the data directory aside"))
}

/// Records the process before exec. Exec keeps the id and start time, so they are already etcd's.
fn record_process(
    paths: &Paths,
    launch: &Launch,
    left_out: Vec<SocketAddr>,
) -> Result<(), GuardError> {
    let process = ProcessRecord::of(std::process::id())
        .ok_or_else(|| system("read /proc/self/stat")(io::Error::from(io::ErrorKind::NotFound)))?;
    let before = state::load_volatile::<Running>(&paths.process());
    let before = before.filter(|it| it.process.boot_id == process.boot_id);
    let record = Running {
        process,
        launch: launch.clone(),
        starts: before.map_or(0, |it| it.starts) + 1,
        left_out,
    };
    Ok(state::save_volatile(&paths.process(), &record)?)
}

fn become_etcd(
    paths: &Paths,
    launch: &Launch,
    version: Version,
    lock: File,
    keeper: Keeper,
) -> Result<std::convert::Infallible, GuardError> {
    fcntl_setfd(&lock, FdFlags::empty())
        .map_err(|it| system("keep the member's lock")(it.into()))?;
    std::mem::forget(lock);
    #[expect(clippy::disallowed_methods, reason = "this is where etcd starts")]
    let mut command = Command::new(store::folder(&paths.store(), version).join("etcd"));
    command
        .arg("--config-file")
        .arg(paths.etcd_conf())
        .env_clear()
        .current_dir("/");
    command.envs(launch.environment.iter().map(|(key, value)| (key, value)));
    // etcd itself reports to its service manager that it is ready.
    for name in ["NOTIFY_SOCKET", "PATH"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    // This file receives a panic, which etcd's log does not. It must not be a journal, because the
    // next guard cannot read one: the panic identifies a damaged database.
    let stderr = OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(paths.etcd_stderr())
        .map_err(refused("open", &paths.etcd_stderr()))?;
    let stdout = if keeper == Keeper::Pod {
        Stdio::inherit() // kubectl logs
    } else {
        let same = stderr.try_clone();
        same.map_err(system("open etcd's standard output"))?.into()
    };
    command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
    Err(system("start etcd")(command.exec()))
}
