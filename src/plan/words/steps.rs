//! The steps of a plan in words.

use super::super::permit::{Declared, Grounds, Permit};
use super::super::{Act, Asked, Change, Interruption, Plan, Task, Upkeep};
use crate::cluster::{Detail, MemberId, MemberSet, detail};
use crate::observed::Observed;
use crate::start::Start;

/// By its name where the list has one.
fn called(list: Option<&MemberSet>, member: MemberId) -> Detail {
    match list.and_then(|it| it.by_id(member)) {
        Some(it) if !it.name.is_empty() => detail(format_args!("{}", it.name)),
        _ => detail(format_args!("member {member}")),
    }
}

impl Change {
    /// For people, with the names of the members that this pass has seen.
    pub fn describe_of(&self, observed: &Observed) -> Detail {
        self.describe(observed.membership.known())
    }

    /// The same with the names of this list.
    pub fn describe(&self, list: Option<&MemberSet>) -> Detail {
        match self {
            Change::AddLearner { name, .. } => detail(format_args!("add {name} as a learner")),
            Change::Promote { member } => detail(format_args!("promote {}", called(list, *member))),
            Change::Remove { member } => detail(format_args!("remove {}", called(list, *member))),
            Change::Update { member, peer_url } => {
                let member = called(list, *member);
                detail(format_args!("move {member} to {peer_url}"))
            }
        }
    }
}

impl Task {
    /// For people: of several members with whose step it is.
    pub fn describe_of(&self, observed: &Observed) -> Detail {
        let words = self.step.describe(observed.membership.known());
        observed.of_one(&self.member, words)
    }
}

impl Upkeep {
    /// For people, with the names of this list.
    #[expect(clippy::too_many_lines, reason = "a table: one row for each step")]
    pub fn describe(&self, list: Option<&MemberSet>) -> Detail {
        match self {
            Upkeep::AdoptIdentity => {
                detail(format_args!("adopt the data that lies in storage.path"))
            }
            Upkeep::LatchIdentity {
                version,
                joins: true,
                ..
            } => detail(format_args!("join the cluster with etcd {version}")),
            Upkeep::LatchIdentity { version, quota, .. } => detail(format_args!(
                "create the cluster with etcd {version}, quota {} MiB",
                quota >> 20
            )),
            Upkeep::SetDataAside => detail(format_args!(
                "set the data of the removed member aside, to join again"
            )),
            Upkeep::GiveUpClaim => detail(format_args!(
                "give up the claim of the removed member, to join with a new one"
            )),
            Upkeep::MintCertificates(mint) => detail(format_args!("{mint}")),
            Upkeep::MintClients => detail(format_args!("issue client certificates")),
            Upkeep::Start(Start::Go) => detail(format_args!("start etcd")),
            Upkeep::Start(Start::Join) => {
                detail(format_args!("start etcd as a new member of the cluster"))
            }
            Upkeep::Start(Start::SetAsideThenGo) => detail(format_args!(
                "set the leftovers of an interrupted first start aside and start etcd"
            )),
            Upkeep::StartAsBefore => detail(format_args!(
                "start etcd with the settings that served last"
            )),
            Upkeep::RaiseQuota(quota) => {
                detail(format_args!("raise the quota to {} MiB", quota >> 20))
            }
            Upkeep::RehearseVersion(to) => detail(format_args!(
                "take a snapshot and start etcd {to} on a copy of the data"
            )),
            Upkeep::EnableDowngrade(to) => detail(format_args!(
                "have etcd lower the version of its data for etcd {to}"
            )),
            Upkeep::CancelDowngrade => detail(format_args!("cancel etcd's own downgrade")),
            Upkeep::SetVersion(to) => detail(format_args!("give the data to etcd {to}")),
            Upkeep::TakeVersionBack => detail(format_args!("take the change of version back")),
            Upkeep::FinishVersion => detail(format_args!("make the version final")),
            Upkeep::StayWithVersion => detail(format_args!(
                "stay with the newer version, which alone can open the data"
            )),
            Upkeep::ProbeWrite => detail(format_args!("prove that writes are served")),
            Upkeep::RecordServed => detail(format_args!("record the cluster's identity")),
            Upkeep::GiveUpLeadership { to } => {
                let heir = called(list, *to);
                detail(format_args!("hand the leadership over to {heir}"))
            }
            Upkeep::AcceptWrites => detail(format_args!("accept writes again")),
            Upkeep::SkipSnapshot => {
                detail(format_args!("skip a snapshot that would hold nothing new"))
            }
            Upkeep::TakeSnapshot => detail(format_args!("take a snapshot and verify it")),
            Upkeep::TakeRequested => detail(format_args!(
                "take the snapshot that was asked for and verify it"
            )),
            Upkeep::CopySnapshots => detail(format_args!("copy snapshots")),
            Upkeep::CheckSnapshots => detail(format_args!("check the snapshots again")),
            Upkeep::RequestRestore(Asked::Bootstrap) => {
                detail(format_args!("look for the snapshot that bootstrap names"))
            }
            Upkeep::RequestRestore(Asked::Recovery) => detail(format_args!(
                "restore the newest verified snapshot in place of damaged data"
            )),
            Upkeep::PrepareRestore => detail(format_args!(
                "verify the snapshot and make new data from it"
            )),
            Upkeep::FinishRestore => detail(format_args!("end the restore")),
        }
    }
}

impl Permit<Interruption> {
    /// For people: of several members with whose it is.
    pub fn describe_of(&self, observed: &Observed) -> Detail {
        observed.of_one(&self.step().member, self.describe())
    }

    /// The same without whose it is.
    pub fn describe(&self) -> Detail {
        match self.step().act {
            Act::Stop if self.grounds() == Grounds::DeclaredOutage(Declared::Restore) => {
                detail(format_args!("stop etcd, so that its data can be exchanged"))
            }
            Act::Stop if self.grounds() == Grounds::HasLeft => detail(format_args!(
                "stop the etcd of a member that the cluster has removed; its data stays"
            )),
            Act::Stop => detail(format_args!("stop etcd, keep everything")),
            Act::Restart if self.grounds() == Grounds::DeclaredOutage(Declared::DriverChanged) => {
                detail(format_args!("restart etcd under the driver of this host"))
            }
            Act::Restart if self.grounds() == Grounds::DeclaredOutage(Declared::AddressBack) => {
                detail(format_args!(
                    "restart etcd, which was started without an address that is back"
                ))
            }
            Act::Restart if self.grounds() == Grounds::NothingRuns => detail(format_args!(
                "replace what waits to run with what the edited document asks for"
            )),
            Act::Restart => detail(format_args!("restart etcd with the edited document")),
            Act::RegainSpace => detail(format_args!("compact, defragment and accept writes again")),
            Act::SwapRestored => detail(format_args!(
                "stop etcd, set its data aside and put the snapshot's data in its place"
            )),
            Act::UndoRestore => detail(format_args!("put back the data from before the restore")),
        }
    }
}

impl Plan {
    /// The first step that is taken on a member, for people: of the upkeep, else the interruption.
    pub fn first_step(&self, observed: &Observed) -> Option<Detail> {
        let upkeep = self.upkeep.first().map(|it| it.describe_of(observed));
        let interruption = || Some(self.interruption.as_ref()?.describe_of(observed));
        upkeep.or_else(interruption)
    }
}
