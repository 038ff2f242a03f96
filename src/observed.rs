//! What one pass saw. "Unknown" is a value of its own, never an error and never "empty".
//!
//! Time is an observation too: the core reads no clock.

mod backups;
mod clock;
mod membership;
mod placement;
mod predecessor;
mod service;
mod upgrade;

use crate::cluster::{ClusterId, Detail, MemberId, MemberName, Timestamp, VOTERS_MAX, detail};
use crate::host::HostFacts;
use crate::spec::Settings;
use crate::start::{Binary, Facts, Refusal, Unserved, Writable};
use crate::version::Version;

pub use backups::{
    BackupFailure, Backups, DestinationSeen, NAMED_MAX, SnapshotNamed, SnapshotSeen, due_again,
};
pub use clock::Clock;
pub use membership::Membership;
pub use placement::{NoPlace, Placement};
pub use predecessor::{Predecessor, Predecessors};
pub use service::{Alarms, Details, Proposals, Reading, Service, Writing, answer};
pub use upgrade::{Failed, Reach, Upgrade};

/// Members that one process runs: those that shall exist, and one that leaves.
pub const INSTANCES_MAX: usize = VOTERS_MAX + 1;

/// Everything that one pass saw.
#[derive(Clone, Debug)]
pub struct Observed {
    /// Wall-clock time.
    pub now: Timestamp,
    /// Whether that time can be believed (rule G2).
    pub clock: Clock,
    /// Whose state this process may change.
    pub authority: Authority,
    /// etcd's member list.
    pub membership: Membership,
    /// Why the last pass could not be carried out, if it could not.
    pub failed: Option<Detail>,
    /// The host, if this process runs on it.
    pub host: Option<HostFacts>,
    /// Snapshots.
    pub backups: Backups,
    /// Snapshots of a cluster of this name, if no cluster exists here yet.
    pub predecessors: Predecessors,
    /// A restore that was asked for and has not ended.
    pub restoring: Option<Restoring>,
    /// A change of etcd's version.
    pub upgrade: Upgrade,
    /// A person asked for a pause.
    pub paused: Option<Pause>,
    /// Why clients do not reach a member that serves, where they have a way of their own: in Kubernetes a Service.
    pub unreached: Option<Detail>,
    /// The newest document that was read.
    pub document: DocumentSeen,
    /// Who made this observation.
    pub looker: Looker,
    /// The members that this process runs: its own host's, or its pods.
    pub instances: heapless::Vec<Instance, INSTANCES_MAX>,
}

impl Observed {
    /// The instance whose answers count for the cluster: one that serves reads and writes, else one that
    /// answers, else one that runs, else the first.
    pub fn speaker(&self) -> Option<&Instance> {
        let rank = |it: &&Instance| {
            (
                it.service.serves(),
                it.service.read == Reading::Answered,
                matches!(it.process, Process::Running { .. }),
            )
        };
        self.instances.iter().rev().max_by_key(rank)
    }

    /// The instance that runs this member.
    pub fn instance(&self, member: &str) -> Option<&Instance> {
        self.instances.iter().find(|it| it.member == member)
    }
}

/// A pause. The operator changes nothing until the pause ends, which it does by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Seconds that are left.
    pub left: u64,
    /// The requested length in seconds.
    pub seconds: u64,
    /// When it ends, if the clock was trusted when the person asked.
    pub until: Option<Timestamp>,
}

/// The newest document that was read. The specification in force is the last sound document's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DocumentSeen {
    /// It is sound.
    Accepted,
    /// It is not sound, and the last sound document stays in force; or a field of it cannot be followed.
    Refused {
        /// One CamelCase word.
        reason: &'static str,
        /// The first problem with its line, and how many more there are.
        why: Detail,
    },
}

impl Observed {
    /// Words about one member: of several with its name.
    pub fn of_one(&self, member: &MemberName, words: Detail) -> Detail {
        match self.instances.len() {
            0 | 1 => words,
            _ => detail(format_args!("{member}: {words}")),
        }
    }

    /// The version with which the other members answer that this process runs; of several the oldest.
    pub fn version_of_others(&self, instance: &Instance) -> Option<Version> {
        let others = self.instances.iter();
        let others = others
            .filter(|it| it.member != instance.member && it.service.read == Reading::Answered);
        let versions = others.filter_map(|it| match it.process {
            Process::Running { version, .. } => Some(version),
            _ => None,
        });
        versions.min()
    }
}

/// Who made an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looker {
    /// An operator, which carries out what is planned.
    Operator,
    /// A command that runs without an operator. It executes no step of the plan.
    Command,
}

/// Whose state this process may change. The two modes differ here, in data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authority {
    /// The cluster's: it holds the election key or the Lease, or it is the only one.
    Cluster,
    /// Only what runs on its own host.
    Host,
}

/// Who tells a member that joins the cluster's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListFrom {
    /// The operator, for its start: it is started once the list has it.
    Operator,
    /// The other members: its guard asks them, so it may be started before the list has it.
    Peers,
}

/// A member that this process runs.
#[derive(Clone, Debug)]
pub struct Instance {
    /// Its name.
    pub member: MemberName,
    /// The process.
    pub process: Process,
    /// Seconds since its Pod was asked to end, as far as this operator saw; 0: it was not.
    pub terminating: u64,
    /// The place of its data.
    pub claim: Claim,
    /// It was its cluster's only member when it was last seen.
    pub alone: bool,
    /// What a start with the document's settings would find.
    pub facts: Facts,
    /// What a start with the settings that served last would find, if they differ and nothing runs.
    pub last_served: Option<LastServed>,
    /// Whether the data in use can be written: the running process' data, else the document's.
    pub writable: Writable,
    /// How etcd does with data, or with a version, that is new to it.
    pub tries: Tries,
    /// The newest supported version in the store, for a document without one.
    pub newest_installed: Option<Version>,
    /// What the quota would be if the cluster were born now, in bytes.
    pub quota_at_birth: u64,
    /// The certificates that etcd and the operator read.
    pub certificates: Certificates,
    /// What etcd answers.
    pub service: Service,
    /// Seconds until another start may be tried (growing back-off).
    pub restart_in: u64,
    /// What an instance that does not run was made for, if it was made and is kept until it is made anew.
    pub made_for: Option<MadeFor>,
    /// The guard's last refusal since etcd last served.
    pub refused: Option<Refusal>,
    /// The disk was moved to another machine since the cluster was born: a warning only.
    pub machine_changed: bool,
    /// The driver that keeps the running process is not the one that should.
    pub kept_elsewhere: bool,
    /// Addresses of clients on which it serves nobody.
    pub unserved: Option<Unserved>,
    /// Who tells it the cluster's list if it joins.
    pub list_from: ListFrom,
    /// The last attempt to regain space, while the NOSPACE alarm is raised.
    pub regain: Option<Regain>,
    /// Seconds for which neither it nor its node was heard of; none: one of them was, or nobody knows of a node.
    pub unheard: Option<u64>,
    /// Why no other node would take a member in its stead. It is asked for while nothing is heard of this one's.
    pub no_place: Option<NoPlace>,
    /// Where people find it.
    pub placement: Placement,
}

impl Instance {
    /// Seconds for which nothing was heard of it and its node, where another node would take a member in its stead.
    pub fn silent(&self) -> Option<u64> {
        self.unheard.filter(|_| self.no_place.is_none())
    }

    /// Whether its process runs, or waits to run.
    pub fn is_there(&self) -> bool {
        matches!(self.process, Process::Running { .. }) || self.made_for.is_some()
    }

    /// Whether its etcd was started recently and does not answer yet.
    pub fn comes_up(&self) -> bool {
        self.process.is_young() && !self.service.read.is_answer()
    }

    /// Whether it was to join its cluster and its ids were not written down since.
    pub fn joins(&self) -> bool {
        let born = self.facts.born();
        born.is_some_and(|it| it.joined && it.served.is_none())
    }

    /// The ids that its etcd tells; of one that joins, the cluster's is told by the others.
    pub fn ids(&self, membership: &Membership) -> Option<(ClusterId, MemberId)> {
        if let Some(details) = self.service.details {
            return Some((details.cluster, details.member));
        }
        match (self.service.answer(), membership) {
            (Some(answer), Membership::Known(members)) => Some((members.cluster()?, answer.member)),
            _ => None,
        }
    }

    /// Its id in this cluster: as it answers, else as it was written down.
    pub fn id(&self, membership: &Membership) -> Option<MemberId> {
        let recorded = || {
            let (cluster, id) = self.facts.identity.as_ref()?.served?;
            let Membership::Known(members) = membership else {
                return None;
            };
            (members.cluster() == Some(cluster)).then_some(id)
        };
        let told = self.ids(membership).map(|(_, id)| id);
        told.or_else(recorded)
    }
}

/// The place of a member's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It stays, whatever runs: a directory of a host, or the claim that was written down.
    Stays,
    /// A claim that was not written down for this member yet.
    New,
    /// The member has another one by now: what is there was made for one that the cluster has removed.
    Former,
    /// Somebody deleted the claim. Kubernetes removes it, with the data, as soon as no Pod uses it.
    Deleted,
}

/// What a Pod was made for: it keeps that until it is made anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadeFor {
    /// The document's settings.
    pub settings: Settings,
    /// etcd's version.
    pub version: Version,
}

/// What was read of a member right before it is interrupted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Again {
    /// The process.
    pub process: Process,
    /// The member's id, if it answers.
    pub id: Option<MemberId>,
    /// etcd's member list.
    pub membership: Membership,
    /// The place of its data is [`Claim::Deleted`].
    pub claim_deleted: bool,
}

/// A start with the settings that served last.
#[derive(Clone, Debug)]
pub struct LastServed {
    /// What it would find.
    pub facts: Facts,
    /// Its data lies in another directory than the document names now.
    pub elsewhere: bool,
}

/// An attempt to regain space that was not enough (rule D28).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Regain {
    /// The store's revision at the attempt.
    pub revision: i64,
    /// The part of the database in use afterwards, in bytes.
    pub in_use: u64,
    /// The number of attempts since the alarm was raised.
    pub attempts: u32,
    /// Seconds since this attempt.
    pub seconds: u64,
}

/// A restore under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restoring {
    /// Where it is.
    pub phase: RestorePhase,
    /// Its job runs in this process, or its Pod is there.
    pub busy: bool,
    /// Its Pod carries out all phases where the old data lies, so etcd ends before the first one.
    pub stops_first: bool,
}

/// How etcd does with data, or with a version, that is new to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tries {
    /// How long it has not answered.
    pub unanswered: Unanswered,
    /// How long reads and writes are not served, for a cause that may be etcd's own.
    pub unserved: Unanswered,
    /// For so many seconds this process has answered reads, as far as this operator saw.
    pub answered: u64,
    /// For so many seconds reads and writes have been served by this process, as far as this operator saw.
    pub served: u64,
    /// How often it ended since its version was changed, though nobody asked it to and its disk was not full.
    pub ends: u32,
    /// Its database file in bytes.
    pub database: u64,
    /// The binary of the version that the document names, if that is another one than the data's.
    pub asked_binary: Option<Binary>,
    /// etcd's own downgrade to the line of this version, which this operator enabled and has not seen the end of.
    pub downgrade: Option<Version>,
    /// For so many seconds a downgrade has been enabled, and its data is still of the newer line.
    pub lowering: u64,
    /// Its etcd is made from another image than the document names now.
    pub has_another_image: bool,
    /// How far its data reaches, where its version has failed.
    pub reach: Reach,
}

/// Questions to the running process in vain, since this operator first asked it. The time that
/// the process ran before does not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unanswered {
    /// How many.
    pub looks: u32,
    /// Since the first one.
    pub seconds: u64,
}

impl Restoring {
    /// Whether the data is being exchanged, so that nobody may start etcd.
    pub fn holds_the_data(self) -> bool {
        matches!(self.phase, RestorePhase::Swapping | RestorePhase::Undoing)
    }
}

/// The phase of a restore. The module `backup::restore` explains each phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestorePhase {
    /// Nothing was touched yet.
    Requested,
    /// The new data lies beside the old.
    Prepared,
    /// The new data takes the old one's place.
    Swapping,
    /// etcd starts with the new data.
    Starting,
    /// The old data comes back.
    Undoing,
}

/// A member's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// Its state could not be determined.
    Unknown,
    /// None runs.
    Stopped,
    /// Ours runs: the lock is held by the process that we recorded.
    Running {
        /// Its id on this host.
        pid: u32,
        /// What the document asked for when it was started.
        settings: Settings,
        /// Its version.
        version: Version,
        /// The database quota that it was started with, in bytes.
        quota: u64,
        /// Seconds since its start.
        seconds: u64,
    },
    /// Another process than the recorded one holds the lock. The operator never signals it.
    Foreign {
        /// Its id, if the kernel reports it.
        pid: Option<u32>,
    },
}

/// A Pod that was asked to end has this many seconds: 60 for its etcd, and 30 for the kubelet to say so.
pub const TERMINATING_SECONDS: u64 = 90;

/// A start may take this many seconds. After that, looks become rarer and failures are reported.
const STARTING_SECONDS: u64 = 20;

impl Process {
    /// The id of the running process; `None`: nothing runs, or nothing of ours.
    pub fn pid(self) -> Option<u32> {
        match self {
            Process::Running { pid, .. } => Some(pid),
            _ => None,
        }
    }

    /// Whether it was started so recently that it may still come up.
    pub fn is_young(self) -> bool {
        matches!(self, Process::Running { seconds, .. } if seconds < STARTING_SECONDS)
    }
}

/// The pairs that etcd and the operator read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// There is no generation.
    Missing,
    /// A file cannot be read, or a key does not belong to its certificate.
    Broken,
    /// Ran out.
    Expired,
    /// Not valid yet: the clock went back, or was ahead when they were made.
    NotYetValid,
    /// Usable, but they lack an address that clients are given.
    AddressesDiffer,
    /// Usable.
    Usable,
}

impl Pairs {
    /// Whether etcd takes a client that shows its own.
    pub fn are_taken(self) -> bool {
        matches!(self, Pairs::Usable | Pairs::AddressesDiffer)
    }
}

/// The CAs of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaState {
    /// They can sign, or there are none yet.
    Usable,
    /// They can sign, but the cluster first served with others, and no person has accepted them.
    Replaced,
    /// One cannot be read or cannot sign. The operator never replaces it by itself.
    Damaged,
}

/// Certificates, as a bounded summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificates {
    /// The worst of the pairs.
    pub pairs: Pairs,
    /// Minted while the clock was not trusted (NotBefore 1970).
    pub provisional: bool,
    /// The latest start of validity among the leaves in use.
    pub not_before: Timestamp,
    /// The earliest end of validity among the leaves in use.
    pub not_after: Timestamp,
    /// The earliest end of validity among the CAs.
    pub authority_not_after: Timestamp,
    /// The CAs.
    pub authorities: CaState,
    /// A client of the document has no usable certificate, or a renewal is due.
    pub clients_due: bool,
    /// The client certificate that expires first among those that nobody renews: copies that a
    /// person had made, and clients that the document once named.
    pub issued_earliest: Option<(heapless::String<63>, Timestamp)>,
}

impl Certificates {
    /// New certificates can be made.
    pub fn can_be_made(&self) -> bool {
        self.authorities != CaState::Damaged
    }
}
