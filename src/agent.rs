//! Host mode: keeps etcd alive on one host, from one document. SIGTERM ends the agent; etcd runs on.
//!
//! The agent has two threads. `passes` looks after etcd: `observe` gathers, `apply` acts, `driver`
//! keeps the process. `front` answers signals and, through `socket`, the command line, even while a
//! pass waits. The two threads share what they know on the `board`.

mod adopt;
mod apply;
mod backup;
mod board;
pub mod driver;
pub mod edit;
mod front;
pub mod kept;
mod notify;
mod observe;
mod passes;
mod predecessors;
mod publish;
mod report;
mod restore;
pub mod socket;
pub mod unit;
mod upgrade;

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::backup::work::Work;
use crate::cluster::MemberName;
use crate::error::chain;
use crate::etcd::store::StoreError;
use crate::member::contact::{CallError, Contact};
use crate::member::examiner::Examiner;
use crate::observed::{Again, Membership, Observed};
use crate::paths::Paths;
use crate::plan::Plan;
use crate::plan::permit::Lapsed;
use crate::runtime::Runtime;
use crate::spec::ClusterSpec;
use crate::state::{self, StateError};
use crate::status::Status;
use crate::systemd::SystemdError;
use crate::tls::{Certificates, TlsError};
use board::Board;
use driver::{Driver as _, HostDriver};
use kept::{Accepted, RefusedDocument};

pub use front::{Beginning, run};
pub use report::{Host, HostDocument, HostLook, Leftover, Report, UnderWay, leftovers};

/// Why a pass, or the start of the agent, failed.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Another agent, or a command, works on this directory.
    #[error("{} is held by process {}: one agent at a time works on a directory", path.display(), pid.map_or_else(|| "?".to_owned(), |it| it.to_string()))]
    Locked {
        /// The lock.
        path: PathBuf,
        /// Who holds it.
        pid: Option<u32>,
    },
    /// Another agent works on this directory without holding its lock, because the lock's file was
    /// deleted.
    #[error("an agent answers at {}, though nobody holds {}: one agent at a time works on a directory; end that agent first", socket.display(), lock.display())]
    Answering {
        /// Where it answers.
        socket: PathBuf,
        /// The lock that it should hold.
        lock: PathBuf,
    },
    /// A directory lies where the socket goes.
    #[error("{} is a directory, and the agent's socket goes there: remove it", .0.display())]
    SocketIsDirectory(PathBuf),
    /// A record could not be read or written.
    #[error(transparent)]
    State(#[from] StateError),
    /// Certificates.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The guard could not be started at all.
    #[error("failed to start the guard")]
    Spawn {
        /// The system's reason.
        source: io::Error,
    },
    /// The guard did not start etcd.
    #[error("the guard did not start etcd: {why}")]
    Guard {
        /// Why.
        why: String,
    },
    /// etcd did not end.
    #[error("etcd (pid {pid}) did not end within 60 s after SIGTERM; it is left alone")]
    StopTimeout {
        /// Its id.
        pid: u32,
    },
    /// systemd did not do what the agent asked.
    #[error(transparent)]
    Systemd(#[from] SystemdError),
    /// etcd runs as another user, so the agent cannot stop it.
    #[error(
        "etcd (pid {pid}) runs as another user and outside of its unit: run as root: etcd-operator unit --install"
    )]
    ForeignUser {
        /// Its id.
        pid: u32,
    },
    /// A restore.
    #[error(transparent)]
    Restore(#[from] crate::backup::restore::RestoreError),
    /// A second look no longer allows a step.
    #[error("the operator checked again right before a step and did not take it: {0}")]
    NoPermit(Lapsed),
    /// A call to etcd failed.
    #[error(transparent)]
    Etcd(#[from] CallError),
    /// The member list was not changed.
    #[error(transparent)]
    Change(#[from] crate::member::change::ChangeError),
    /// Several steps of one pass failed.
    #[error("{}", .0.iter().map(|it| chain(it)).collect::<Vec<_>>().join("; and "))]
    Several(Vec<AgentError>),
    /// A defect: the thread that looks after etcd has ended.
    #[error("the thread that looks after etcd has ended")]
    PassesEnded,
    /// A step that the system refused.
    #[error("failed to {what} {}", path.display())]
    System {
        /// The step.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

/// Host mode's [`Runtime`].
pub struct Agent {
    paths: Paths,
    driver: HostDriver,
    certificates: Certificates,
    memory: Memory,
    work: Work,
    telemetry: Option<Arc<crate::telemetry::Metrics>>,
    board: Arc<Board>,
}

/// State carried between passes. What a restart forgets is asked or counted anew; the crate's text says what.
#[derive(Default)]
struct Memory {
    /// The last look at etcd.
    contact: Contact,
    /// Results of reading data that no etcd has open.
    examiner: Examiner,
    /// The same for the data that served last, if the document names another directory.
    examiner_elsewhere: Examiner,
    /// timedated's last answer, and when (seconds since boot).
    kernel_synchronised: Option<(bool, u64)>,
    /// The last facts about the host, when (seconds since boot), and with which version of etcd.
    host: Option<(crate::host::HostFacts, u64, Option<crate::version::Version>)>,
    /// What restores left beside the data, and the data's directory time when that was listed.
    leftovers: Option<(std::time::SystemTime, Vec<Leftover>)>,
    /// How fast the disk fills up. Losing this record can delay the warning by an hour.
    space: crate::host::space::SpaceWatch,
    /// The last report, for transition times and to report only changes.
    published: Option<Report>,
    /// The report of an earlier agent in this boot, used only for transition times.
    before: Option<Report>,
    /// Why the last pass could not be carried out.
    failed: Option<crate::cluster::Detail>,
    /// A person asked for another try, and so accepts this machine as the cluster's.
    accepts_machine: bool,
    /// Certificates that were asked for.
    issued: passes::Issues,
    /// How many passes failed in a row.
    failures: usize,
    /// When this agent began, in milliseconds since boot.
    began: u64,
    /// What the document says of etcd's settings.
    asked: serde_json::Value,
    /// The accepted document that is still to be saved.
    keep: Option<Accepted>,
    /// The last lines that were logged; see `log_once`.
    told: std::collections::VecDeque<String>,
    /// Failed restores that the document asked for, until one succeeds. Losing it only costs a wait.
    restores: restore::Tries,
    /// The search for snapshots in buckets before a birth.
    predecessors: predecessors::Search,
    /// For how long the process has answered and served, or has not.
    counts: crate::member::counts::Counts,
    /// What is written down of changes of the version, once it was read.
    changes: Option<crate::changes::Changes>,
    /// How far the data of a version that failed reaches, and what the data was known by.
    reach: Option<(crate::observed::Reach, String)>,
    /// A trial of another version.
    rehearsal: Option<upgrade::Rehearsal>,
    /// The sha256 of the document that is in force.
    document: String,
    /// The last index that was written down as seen.
    seen: Option<u64>,
    /// The addresses that are back, and that etcd was started without.
    returned: crate::start::Returned,
    /// How often the document was read; 0 in a command that runs without an agent.
    generation: i64,
}

/// The lock on the directory, for as long as it is held.
pub struct DirectoryLock {
    file: File,
}

impl DirectoryLock {
    /// Whether the locked file is still the file that others would lock.
    fn is_in_place(&self, paths: &Paths) -> bool {
        use std::os::unix::fs::MetadataExt as _;
        let place = |it: std::fs::Metadata| (it.dev(), it.ino());
        let locked = self.file.metadata().map(place);
        let found = std::fs::symlink_metadata(paths.operator_lock()).map(place);
        matches!((locked, found), (Ok(locked), Ok(found)) if locked == found)
    }

    /// Takes the lock again if its file was deleted. Returns whether it was.
    fn renew(&mut self, paths: &Paths) -> Result<bool, AgentError> {
        if self.is_in_place(paths) {
            return Ok(false);
        }
        state::create_private_dir(&paths.lib)?;
        self.file = try_lock(paths, Locking::Agent)?
            .ok_or_else(|| held(paths))?
            .file;
        Ok(true)
    }
}

/// Who takes the directory's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locking {
    /// An agent: exclusive. It waits for a command that looks, but not for another agent.
    Agent,
    /// A command that acts: exclusive, without waiting.
    Act,
    /// A command that looks: shared with other commands that look.
    Look,
}

/// How long an agent waits for commands that look.
const LOCK_PATIENCE: Duration = Duration::from_secs(15);

/// Takes the directory's lock; the second of two agents is refused.
pub fn lock(paths: &Paths, locking: Locking) -> Result<DirectoryLock, AgentError> {
    state::create_private_dir(&paths.lib)?;
    state::create_private_dir(&paths.run)?;
    let answers = || std::os::unix::net::UnixStream::connect(paths.socket()).is_ok();
    let begin = crate::clock::since_boot();
    loop {
        if let Some(lock) = try_lock(paths, locking)? {
            // The lock's file may have been deleted under an agent that runs.
            if locking != Locking::Look && answers() {
                return Err(AgentError::Answering {
                    socket: paths.socket(),
                    lock: paths.operator_lock(),
                });
            }
            return Ok(lock);
        }
        if locking != Locking::Agent
            || answers()
            || crate::clock::since_boot() > begin + LOCK_PATIENCE
        {
            return Err(held(paths));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn held(paths: &Paths) -> AgentError {
    let path = paths.operator_lock();
    AgentError::Locked {
        pid: crate::process::lock_holder(&path),
        path,
    }
}

/// The lock, if nobody else has it.
fn try_lock(paths: &Paths, locking: Locking) -> Result<Option<DirectoryLock>, AgentError> {
    use rustix::fs::FlockOperation;
    let path = paths.operator_lock();
    let operation = match locking {
        Locking::Look => FlockOperation::NonBlockingLockShared,
        Locking::Agent | Locking::Act => FlockOperation::NonBlockingLockExclusive,
    };
    let file = state::open_lock(&path).map_err(|source| AgentError::System {
        what: "open",
        path: path.clone(),
        source,
    })?;
    let locked = rustix::fs::flock(&file, operation).is_ok();
    let lock = DirectoryLock { file };
    Ok((locked && lock.is_in_place(paths)).then_some(lock))
}

impl Agent {
    /// An agent over these paths. Nothing is touched yet.
    pub fn new(
        paths: &Paths,
        driver: HostDriver,
        telemetry: Option<Arc<crate::telemetry::Metrics>>,
    ) -> Self {
        Agent {
            paths: paths.clone(),
            driver,
            certificates: Certificates::at(paths.tls()),
            memory: Memory {
                began: crate::clock::milliseconds_since_boot(),
                ..Memory::default()
            },
            work: Work::default(),
            telemetry,
            board: Arc::default(),
        }
    }

    /// Runs passes until the requested restore has ended. A command uses this when no agent runs.
    pub async fn end_restore(&mut self, spec: &ClusterSpec) {
        self.memory.generation = 1;
        while self.paths.restore().exists() {
            let wait = self.pass(spec).await;
            let bell = self.work.bell();
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                _ = self.driver.changed() => {}
                () = bell.notified() => {}
            }
        }
    }

    /// Stops etcd with SIGTERM. A command uses this when nothing keeps etcd running any longer.
    pub async fn end_etcd(&mut self) -> Result<(), AgentError> {
        self.driver.stop(None).await
    }

    /// Observes once without acting. A command prints the result when no agent runs.
    pub async fn look(&mut self, accepted: Accepted, refused: Option<RefusedDocument>) -> Report {
        let spec = &accepted.document.spec.clone();
        self.memory.document = kept::sum(&accepted.document);
        {
            let posted = &mut *self.board.lock();
            posted.accepted = Some(accepted);
            posted.refused = refused;
        }
        let observed = self.observe(spec).await;
        let plan = crate::plan::plan(spec, &observed);
        let status = crate::status::status(spec, &observed, &plan);
        self.report(spec, &observed, &status)
    }
}

impl Runtime for Agent {
    type Error = AgentError;

    async fn observe(&mut self, spec: &ClusterSpec) -> Box<Observed> {
        self.gather(spec).await
    }

    async fn publish(
        &mut self,
        spec: &ClusterSpec,
        observed: &Observed,
        status: &Status,
    ) -> Result<(), AgentError> {
        self.tell(spec, observed, status)
    }

    async fn look_again(&mut self, spec: &ClusterSpec, _: &MemberName) -> Again {
        let asked = self.driver.look();
        let (id, membership) = if spec.size == 0 {
            (None, Membership::Unreachable) // needs no answer of an etcd that may hang
        } else {
            let endpoint = self.endpoint(spec);
            self.memory.contact.look_again(&endpoint, asked).await
        };
        Again {
            process: self.driver.look(), // etcd may have taken its time to answer
            id,
            membership,
            claim_deleted: false,
        }
    }

    async fn execute(
        &mut self,
        spec: &ClusterSpec,
        observed: &Observed,
        plan: Plan,
    ) -> Result<(), AgentError> {
        self.act(spec, observed, plan).await
    }
}
