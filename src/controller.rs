//! Kubernetes mode: EtcdCluster objects instead of one document, Pods instead of one process.
//!
//! One task for each cluster makes the same passes as a host's agent: `observe` gathers, `apply` acts,
//! `publish` tells. Watches only ring: they carry names, and the facts are looked up. Only the holder
//! of the Lease acts (`lease`).
//!
//! ```text
//! watches -> seen -> bell of the cluster -> pass: observe, plan, publish, execute
//! ```

mod apply;
mod backup;
mod claim;
mod client;
mod confirmed;
mod lease;
pub mod manifests;
mod member;
mod memory;
mod names;
mod node;
mod objects;
mod observe;
mod own;
mod pod;
mod publish;
mod requests;
mod restore;
pub mod rights;
mod secrets;
mod seen;
mod serve;
mod services;
mod upgrade;
mod watch;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use kube::Client;
use kube::runtime::events::Reporter;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use crate::api::{EtcdBackup, EtcdCluster, EtcdRestore};
use crate::cluster::Detail;
use crate::member::contact::CallError;
use crate::paths::Paths;
use crate::plan::permit::Lapsed;
use crate::state::StateError;
use crate::tls::{Certificates, TlsError};
use member::Member;
use memory::Memory;
use names::RUN_DIR;
pub(crate) use names::{CONTAINER, backup_pod};
use objects::{Kind, Objects};
pub use own::Own;
pub(crate) use pod::PROGRAM;
pub(crate) use publish::HEARTBEAT_SECONDS;
use seen::{ClaimSeen, Key, Meta, PodSeen, Seen, ServiceSeen};

/// Why a pass, or the controller, failed.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// There is no way to the API server.
    #[error(
        "failed to find the API server: the controller runs in a Pod with a service account: {0}"
    )]
    Config(String),
    /// The API server refused or did not answer.
    #[error("failed to {what} {kind} {name}: {why}")]
    Api {
        /// Which step.
        what: &'static str,
        /// On what.
        kind: &'static str,
        /// Its name.
        name: String,
        /// The server's code; 0 where it did not answer.
        code: u16,
        /// Its reason.
        why: String,
    },
    /// An object of our name is somebody else's.
    #[error("{kind} {name} exists, and the operator did not create it")]
    NotOurs {
        /// Its kind.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// What goes is waited for: nothing new is built on it.
    #[error("{kind} {name} is being deleted; the operator creates the next one after that")]
    Going {
        /// Its kind.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// A Secret of ours that somebody edited: what it said is not guessed.
    #[error("the Secret {name} cannot be read: {why}")]
    Unreadable {
        /// Its name.
        name: String,
        /// Where, and what is wrong.
        why: String,
    },
    /// An object of ours that cannot be made; a defect.
    #[error("the operator made a malformed {0}")]
    Malformed(&'static str),
    /// A record.
    #[error(transparent)]
    State(#[from] StateError),
    /// Certificates.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A call to etcd.
    #[error(transparent)]
    Etcd(#[from] CallError),
    /// A step is no longer allowed by what a second look shows.
    #[error("the operator checked again right before a step and did not take it: {0}")]
    NoPermit(Lapsed),
    /// The member list was not changed.
    #[error(transparent)]
    Change(#[from] crate::member::change::ChangeError),
    /// A Secret that has gone while there is data that it belongs to.
    #[error(
        "the Secret {name} is gone, and {evidence} is there: it holds the CAs that clients and etcd know, and the cluster's identity"
    )]
    AuthorityMissing {
        /// Its name.
        name: String,
        /// What shows that it was there.
        evidence: String,
    },
    /// Another operator acts.
    #[error("the Lease was taken by {0}; this operator ends")]
    LeaseLost(String),
    /// A step that the system refused.
    #[error("failed to {what} {}", path.display())]
    System {
        /// The step.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
}

impl ControllerError {
    fn api(what: &'static str, kind: Kind, name: &str, error: kube::Error) -> Self {
        Self::of_server(what, kind.name(), name, error)
    }

    fn of_server(what: &'static str, kind: &'static str, name: &str, error: kube::Error) -> Self {
        let (code, why) = match error {
            kube::Error::Api(status) => (status.code, status.message),
            other => (0, other.to_string()),
        };
        ControllerError::Api {
            what,
            kind,
            name: name.to_owned(),
            code,
            why,
        }
    }

    fn not_ours(kind: Kind, name: &str) -> Self {
        ControllerError::NotOurs {
            kind: kind.name(),
            name: name.to_owned(),
        }
    }
}

/// What all clusters share.
struct Shared {
    client: Client,
    own: Own,
    /// The operator's own image, which brings the guard into members' Pods.
    image: RefCell<String>,
    clusters: Seen<Watched<EtcdCluster>>,
    backups: Seen<Watched<EtcdBackup>>,
    restores: Seen<Watched<EtcdRestore>>,
    pods: Seen<PodSeen>,
    services: Seen<ServiceSeen>,
    claims: Seen<ClaimSeen>,
    bells: RefCell<BTreeMap<Key, Rc<Notify>>>,
    reporter: Reporter,
    /// That Events cannot be told was said.
    untold: Cell<bool>,
    metrics: serve::Fleet,
    /// Whether the node's clock has been synchronised since this operator began; `None`: the kernel does not tell.
    synchronised: Cell<Option<bool>>,
    /// What shows that the server's CRDs are older than this operator.
    older: RefCell<Option<Detail>>,
    /// The Lease is ours.
    acting: Cell<bool>,
    confirmed: Rc<confirmed::Confirmed>,
    /// Rung when another operator's Pod comes or goes.
    operators: Notify,
}

/// An object of ours with its name, compared by version.
#[derive(Clone, Debug)]
struct Watched<K> {
    meta: Meta,
    name: String,
    object: K,
}

impl<K> PartialEq for Watched<K> {
    fn eq(&self, other: &Self) -> bool {
        self.meta.resource_version == other.meta.resource_version
    }
}

impl Shared {
    fn ring(&self, key: &Key) {
        if let Some(bell) = self.bells.borrow().get(key) {
            bell.notify_one();
        }
    }

    /// Whether a time source has set the node's clock. Once it has, that holds, as systemd-timesyncd's marker does: the kernel
    /// takes it back after nine hours without a link.
    fn synchronised(&self) -> bool {
        if self.synchronised.get() == Some(false) {
            let told = crate::clock::kernel_is_synchronised();
            if let Err(error) = &told {
                tracing::warn!(
                    "the kernel does not tell whether the clock is synchronised: {error}"
                );
            }
            self.synchronised.set(told.ok());
        }
        self.synchronised.get() == Some(true)
    }

    fn is_ready(&self) -> bool {
        self.clusters.is_ready()
            && self.backups.is_ready()
            && self.restores.is_ready()
            && self.pods.is_ready()
            && self.services.is_ready()
            && self.claims.is_ready()
    }

    fn is_ready_in(&self, namespace: &str) -> bool {
        self.clusters.is_ready_in(namespace)
            && self.backups.is_ready_in(namespace)
            && self.restores.is_ready_in(namespace)
            && self.pods.is_ready_in(namespace)
            && self.services.is_ready_in(namespace)
            && self.claims.is_ready_in(namespace)
    }
}

/// One EtcdCluster: the controller's [`crate::runtime::Runtime`] is over one.
struct Cluster {
    shared: Rc<Shared>,
    namespace: String,
    name: String,
    /// This pass' object.
    object: Rc<Watched<EtcdCluster>>,
    objects: Objects,
    /// A directory in memory: what the core reads from files is put there from Secrets.
    paths: Paths,
    certificates: Certificates,
    /// All that there can be, by their numbers.
    members: Vec<Member>,
    /// The Secret was read: before that, nothing is known of identity and CAs.
    loaded: bool,
    memory: Memory,
    /// Since when this operator looks at it, in seconds since boot.
    began: u64,
}

/// Looks at a cluster no closer together than this, however often it is rung for.
const LOOKS_APART: Duration = Duration::from_millis(20);

/// Between two looks at a worker that was asked for a snapshot, or takes one.
const WORKS: Duration = Duration::from_secs(1);

/// Runs until SIGTERM. Members stay.
pub async fn run(own: Own) -> Result<(), ControllerError> {
    let local = tokio::task::LocalSet::new();
    local.run_until(act(own)).await
}

async fn act(own: Own) -> Result<(), ControllerError> {
    let signals = |kind| {
        signal(kind).map_err(|source| ControllerError::System {
            what: "listen for signals",
            path: PathBuf::new(),
            source,
        })
    };
    let mut terminate = signals(SignalKind::terminate())?;
    let mut interrupt = signals(SignalKind::interrupt())?;
    let client = client::connect()?;
    let reporter = Reporter {
        controller: "etcd-operator".to_owned(),
        instance: Some(own.pod.clone()),
    };
    let confirmed = confirmed::Confirmed::new(&client, &own);
    let watches = watch::scopes(&own).len();
    let shared = Rc::new(Shared {
        client,
        image: RefCell::default(),
        clusters: Seen::of(watches),
        backups: Seen::of(watches),
        restores: Seen::of(watches),
        pods: Seen::of(watch::scopes_of_pods(&own).len()),
        services: Seen::of(watches),
        claims: Seen::of(watches),
        own,
        bells: RefCell::default(),
        reporter,
        untold: Cell::new(false),
        metrics: serve::Fleet::default(),
        synchronised: Cell::new(Some(false)),
        older: RefCell::default(),
        acting: Cell::new(false),
        confirmed,
        operators: Notify::new(),
    });
    serve::begin(&shared).await?;
    let lease = lease::Lease::new(&shared);
    let ended = tokio::select! {
        ended = keep(&shared, &lease) => ended,
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    // One that was lost is another one's; and whoever cannot reach it must end now.
    if shared.acting.get() && ended.is_ok() {
        tracing::info!("the operator ends; the members run on");
        lease.release().await;
    }
    ended
}

/// Waits for the Lease, then for everything else.
async fn keep(shared: &Rc<Shared>, lease: &lease::Lease) -> Result<(), ControllerError> {
    watch::pods(shared);
    lease.acquire().await;
    shared.acting.set(true);
    tracing::info!(node = %shared.own.node, "this operator acts");
    shared.image.replace(own::image(shared).await);
    watch::everything(shared);
    lease.keep().await
}

/// One cluster, until its object has gone.
async fn keep_cluster(shared: Rc<Shared>, key: Key, bell: Rc<Notify>) {
    let (namespace, name) = key.clone();
    let mut cluster: Option<Cluster> = None;
    loop {
        if shared.is_ready_in(&namespace) {
            let Some(object) = shared.clusters.get(&namespace, &name) else {
                break;
            };
            let again = cluster
                .as_ref()
                .is_some_and(|it| it.object.meta.uid == object.meta.uid);
            if !again {
                cluster = Some(Cluster::new(&shared, object.clone()));
            }
            let Some(cluster) = cluster.as_mut() else {
                break;
            };
            cluster.object = object;
            // On the heap, and given back: each idle cluster would hold some 150 KiB.
            let wait = Box::pin(cluster.pass()).await;
            let wait = if cluster.memory.is_expecting() {
                wait.min(WORKS)
            } else {
                wait
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = bell.notified() => {}
            }
        } else {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        tokio::time::sleep(LOOKS_APART).await;
    }
    shared.bells.borrow_mut().remove(&key);
    shared.metrics.forget(&namespace, &name);
    // Keys that were worked on, in memory: what outlives the object lies in Secrets.
    let _ = std::fs::remove_dir_all(dir(&namespace, &name));
    tracing::info!(%namespace, %name, "EtcdCluster deleted; its deletionPolicy decides what is kept");
}

/// A cluster's own, in memory.
fn dir(namespace: &str, name: &str) -> PathBuf {
    PathBuf::from(RUN_DIR).join(namespace).join(name)
}

impl Cluster {
    /// Of the document.
    fn generation(&self) -> i64 {
        self.object.object.metadata.generation.unwrap_or(0)
    }

    fn new(shared: &Rc<Shared>, object: Rc<Watched<EtcdCluster>>) -> Self {
        let (namespace, name) = (object.meta.namespace.clone(), object.name.clone());
        let run = dir(&namespace, &name);
        let paths = Paths {
            etc: run.clone(),
            lib: run.clone(),
            run,
            root: PathBuf::from("/"),
        };
        let memory = Memory {
            // What the last operator told: a condition keeps its time, and nothing is told again.
            published: object.object.status.clone(),
            ..Memory::default()
        };
        Cluster {
            shared: shared.clone(),
            objects: Objects::new(shared.client.clone(), shared.confirmed.clone()),
            certificates: Certificates::at(paths.tls()),
            members: Member::all(&name),
            namespace,
            name,
            object,
            paths,
            loaded: false,
            memory,
            began: crate::clock::since_boot().as_secs(),
        }
    }
}
