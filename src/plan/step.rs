//! The steps that a plan may hold, by what they do to a member.

use super::Mint;
use crate::cluster::{MemberId, MemberName, PeerUrl};
use crate::start::Start;
use crate::version::Version;

/// A change of the member list. Raft makes one at a time, and so does a [`Plan`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A new member joins without a vote.
    AddLearner {
        /// Where its peers will reach it: what it is known by until it has started.
        peer_url: PeerUrl,
        /// Its name.
        name: MemberName,
    },
    /// A learner that has caught up gets its vote.
    Promote {
        /// Which one.
        member: MemberId,
    },
    /// A member goes for good.
    Remove {
        /// Which one.
        member: MemberId,
    },
    /// The member list gets the peer URL at which the only voter listens: who joins looks for it there.
    Update {
        /// Which one.
        member: MemberId,
        /// The document's.
        peer_url: PeerUrl,
    },
}

/// A step that stops a member from serving, for a while or until the document asks for it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interruption {
    /// The member.
    pub member: MemberName,
    /// What is done to it.
    pub act: Act,
    /// The process that is interrupted. `None`: nothing runs.
    pub pid: Option<u32>,
}

/// What interrupts a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Stop etcd with SIGTERM. Everything is kept.
    Stop,
    /// Stop etcd, then start it with the document's current settings under the current driver.
    Restart,
    /// Compact, defragment and, once space was regained, disarm the alarm (rule D28).
    RegainSpace,
    /// Stop etcd if it runs, then put the new data in the place of the old data, which is kept.
    SwapRestored,
    /// etcd does not serve the new data: put the old data back.
    UndoRestore,
}

/// A step of upkeep, and the member that it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// The member.
    pub member: MemberName,
    /// The step.
    pub step: Upkeep,
}

/// One step of upkeep of one member: it interrupts nothing. Upkeep continues while membership changes are
/// on hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upkeep {
    /// Copy the identity beside the data into the state directory (the root disk was replaced).
    AdoptIdentity,
    /// Record what is fixed at birth, before etcd starts for the first time.
    LatchIdentity {
        /// The version that the cluster is born with.
        version: Version,
        /// In bytes.
        quota: u64,
        /// The member joins a cluster that lives: it never makes one of its own.
        joins: bool,
    },
    /// etcd's member list has this member no more, or anew: rename its old data aside and forget its old
    /// id, so that it can join. Nothing is deleted.
    SetDataAside,
    /// In Kubernetes: the claim of a removed member lies on a node that is lost. The next one of its name gets another claim, and
    /// the old one stays.
    GiveUpClaim,
    /// Make new leaves for etcd and the operator, in one generation, without a restart.
    MintCertificates(Mint),
    /// Make new leaves for the clients that the document names.
    MintClients,
    /// Start etcd through the guard.
    Start(Start),
    /// Start etcd with the settings that served last, because it cannot start with the document's.
    StartAsBefore,
    /// Record the document's larger quota for the next start.
    RaiseQuota(u64),
    /// Take a snapshot, and start etcd of this version on a copy of the data that is made from it.
    RehearseVersion(Version),
    /// Have etcd lower the version of its data to that of an older line, which this version is of.
    EnableDowngrade(Version),
    /// Have etcd end the downgrade that this operator enabled.
    CancelDowngrade,
    /// Record this version for the next start, and the one that runs as the other that may open the data.
    SetVersion(Version),
    /// Record the version before for the next start again.
    TakeVersionBack,
    /// The version is final: the other one may open the data no more.
    FinishVersion,
    /// The version before cannot open the data any more: the newer one stays, though it does not serve.
    StayWithVersion,
    /// Prove that writes are served, with one write under the operator's own key (rule D7).
    ProbeWrite,
    /// Record the ids that etcd assigned.
    RecordServed,
    /// Hand the leadership over to this member, before the leader is interrupted or removed: nobody then waits
    /// for an election.
    GiveUpLeadership {
        /// A voter that serves.
        to: MemberId,
    },
    /// Disarm the alarm where there is already space, as after a raised quota (rule D28).
    AcceptWrites,
    /// A snapshot is due, but nothing was written since the last one. Note that in memory only
    /// (rule B5).
    SkipSnapshot,
    /// Take a snapshot and verify it. Remove snapshots that the document no longer keeps, copy the rest.
    TakeSnapshot,
    /// The same of the one that somebody has asked for.
    TakeRequested,
    /// Copy waiting snapshots to the other destinations.
    CopySnapshots,
    /// Check the stored snapshots again.
    CheckSnapshots,
    /// Request the restore that the document asks for: for a new cluster, or for damaged data.
    RequestRestore(Asked),
    /// Verify the snapshot and make new data from it beside the old data; or make the Pod that does this and all
    /// that follows.
    PrepareRestore,
    /// etcd serves the new data: end the restore.
    FinishRestore,
}

impl Upkeep {
    /// Whether this step must be skipped because `failed` failed earlier in the same pass. Only a
    /// start of etcd depends on earlier steps; every other step is taken. For example, a client's
    /// directory that cannot be written does not prevent the proof that writes are served.
    pub fn needs(&self, failed: &Upkeep) -> bool {
        self.starts() && failed.is_for_a_start()
    }

    /// Whether this step starts etcd.
    pub fn starts(&self) -> bool {
        matches!(self, Upkeep::Start(_) | Upkeep::StartAsBefore)
    }

    /// Whether a start of etcd needs what this step makes.
    fn is_for_a_start(&self) -> bool {
        matches!(
            self,
            Upkeep::AdoptIdentity
                | Upkeep::SetDataAside
                | Upkeep::LatchIdentity { .. }
                | Upkeep::RaiseQuota(_)
                | Upkeep::SetVersion(_)
                | Upkeep::TakeVersionBack
                | Upkeep::StayWithVersion
                | Upkeep::MintCertificates(_)
        )
    }
}

impl Act {
    /// Whether the process that runs is ended by it.
    pub fn ends_the_process(self) -> bool {
        self != Act::RegainSpace
    }

    /// Whether this must be left undone because `failed` failed earlier in the same pass: an etcd is not
    /// stopped that could not start again.
    pub fn needs(self, failed: &Upkeep) -> bool {
        self == Act::Restart && failed.is_for_a_start()
    }
}

/// Why the document asks for a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// `spec.bootstrap`, where no cluster was ever born.
    Bootstrap,
    /// `spec.recovery.singleMember: restoreLatestVerified`.
    Recovery,
}
