//! Keeps an etcd cluster alive at the edge, from one document, in host mode or Kubernetes mode.
//! This text describes the architecture; the modules below are in reading order.
//!
//! # Bird's-eye view
//!
//! ```text
//! trigger (time, etcd's end, SIGHUP, a question)   says only "look again"; carries no facts
//!   cluster.yaml | EtcdCluster object              one schema, one parser          document, api
//!     -> ClusterSpec                               valid by construction           spec
//!        or the last one that was sound            and DocumentAccepted False      agent/kept
//!   Runtime::observe  -> Observed                  a failed read is a value        agent/observe
//!   plan(spec, observed) -> Plan                   pure and total                  plan
//!   status(...)       -> Status                    published before acting         status
//!   Runtime::execute(plan)                         in order; see Upkeep::needs     agent/apply
//!     Runtime::look_again(member)                  before it is interrupted        plan/permit
//!     -> requeue_after
//!                                    guard -> exec etcd      every start of etcd, whoever asks
//! ```
//!
//! systemd and the kubelet restart etcd without asking the operator. [`guard`] therefore asks
//! [`start::verdict`] before each start whether etcd may start. The planner asks the same function,
//! so it reports the same reason.
//!
//! # Who may import whom
//!
//! The core (`cluster version diagnosis spec start host observed plan status render retention`)
//! imports only itself, `heapless` and `core`. Adapters import the core but not [`plan`], except
//! where they share one of its rules. [`agent`] joins core and adapters on a host, [`controller`]
//! does so in Kubernetes. [`worker`] takes snapshots there, in a Pod of its own, by the rules of
//! [`plan::backup`]. `tests/tidy.rs` holds the table of allowed imports.
//!
//! # Invariants, mostly of absence
//!
//! - The core does no I/O, reads no clock, allocates nothing while planning, and cannot fail.
//! - Nothing interrupts, adds, promotes or removes a member without a [`plan::permit::Permit`],
//!   which only one module can make, and which is good for one act on what is read right before it.
//! - A pass interrupts one member at most, and changes the member list once at most.
//! - Data is never deleted: the operator renames it. Only a person's word removes it for good.
//! - Data counts as damaged only after a reader of ours read it. etcd's messages are hints
//!   ([`diagnosis`]); [`etcd::examine`] makes the proofs.
//! - What a restart of the operator forgets is asked or counted anew: whether a write was proven, for how long
//!   etcd has not answered, attempts to regain space, retries and their waits. In Kubernetes it also forgets the
//!   last sound object: where a newer one is refused, the cluster stays as it is until that one is corrected.
//! - The agent starts only these programs: the guard, etcdutl for a restore, an etcd for a trial
//!   restore, and itself to ask a disk that may not answer. The guard starts only etcd, and itself
//!   to ask such a disk.
//! - A snapshot is visible only once it is verified. A restore is final only once etcd serves its data.
//! - No process is signalled by its id alone: see [`process`].
//! - An idle operator writes nothing to disk.
//! - Every field of the document has an effect, and the operator states the effect beforehand:
//!   [`spec::field`].
//! - A request never waits for a pass: a separate thread answers it, even while etcd or a disk does
//!   not answer.
//! - There is no `if kubernetes`: the modes differ in what fills [`observed::Observed`].
//!
//! # Cross-cutting
//!
//! - **Errors**: none in the core, where problems are values ([`plan::Hold`], [`start::Refusal`]);
//!   one `thiserror` enum for each adapter; messages without a final period.
//! - **Time** comes from [`clock`] alone; decisions get it in [`observed::Observed`].
//! - **Limits** are constants with their source, and the capacities of `heapless` containers.
//! - **Files** are written by [`state`] so that a power cut leaves the old file or the new one.
//! - **What others may write**, snapshots and manifests, keys, CAs, is opened by [`untrusted`] alone: once, through
//!   no link, without waiting, up to a limit. A directory that may not answer is looked at by [`disk::Look`].
//! - **Rules**: Rule numbers such as D35 are explained in [`rules`]. A comment cites a rule where the
//!   code follows it.

#[cfg(not(target_pointer_width = "64"))]
compile_error!(
    "etcd does not support 32-bit systems, where its database can be damaged (rule G11): build for aarch64 or x86_64"
);

// Core: pure, synchronous, fixed capacity.
pub mod cluster;
pub mod diagnosis;
pub mod host;
pub mod observed;
pub mod plan;
pub mod render;
pub mod retention;
pub mod spec;
pub mod start;
pub mod status;
pub mod version;

// The seam.
pub mod runtime;

// Adapters: the only code that can fail.
pub mod accounts;
pub mod api;
pub mod backup;
pub mod changes;
pub mod clock;
pub mod dial;
pub mod disk;
pub mod document;
pub mod error;
pub mod etcd;
pub mod explain;
pub mod http;
pub mod member;
pub mod paths;
pub mod process;
pub mod s3;
pub mod schedule;
pub mod state;
pub mod sysfs;
pub mod systemd;
pub mod telemetry;
pub mod tls;
pub mod untrusted;

// Modes and the command line.
pub mod agent;
pub mod cli;
pub mod controller;
pub mod guard;
pub mod worker;

// The numbered rules that comments cite. The module holds only its documentation.
#[doc = include_str!("rules.md")]
pub mod rules {}
