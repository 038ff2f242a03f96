//! Issues permits: no step that can cost quorum or availability is taken without one.
//!
//! Only this module can make a [`Permit`]. The planner asks for one when it plans a step. Right before the
//! act, `execute` has the member read again ([`crate::runtime::Runtime::look_again`]) and exchanges the
//! permit for the step itself.

use crate::cluster::{
    Health, LEARNERS_MAX, Member, MemberId, MemberName, MemberSet, PeerUrl, VOTERS_MAX, quorum,
};
use crate::observed::{Again, Claim, Instance, Membership, Observed, Process};
use crate::plan::{Change, Hold, Interruption};

/// Permission for one step on one member. It can be used once: the act takes it.
#[derive(Debug, PartialEq, Eq)]
pub struct Permit<Step> {
    step: Step,
    grounds: Grounds,
    /// Of an interruption: the member's id, if it was known.
    id: Option<MemberId>,
    /// Of an interruption: the member was its cluster's only one when it was last seen.
    alone: bool,
    /// Of a removal: it is for a member that does not answer.
    silent: bool,
    /// Of a restart for an edit: the other voters, which serve: one at a time is away.
    others: Others,
}

/// Ids of voters.
pub(super) type Others = heapless::Vec<MemberId, VOTERS_MAX>;

/// Why a step is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grounds {
    /// The other voters that answer are still a majority.
    QuorumSurvives,
    /// Somebody declared the interruption.
    DeclaredOutage(Declared),
    /// The member's etcd does not run, so nothing is interrupted.
    NothingRuns,
    /// The cluster has removed the member.
    HasLeft,
}

/// How an interruption was declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declared {
    /// The document now asks for other settings of the running etcd.
    DocumentEdited,
    /// `size: 0`.
    SizeZero,
    /// The host moved to another driver, so etcd has to leave the driver that kept it.
    DriverChanged,
    /// An address of the document is on the host again, and etcd was started without it: its clients are not served.
    AddressBack,
    /// A restore, by a person's command or by the document's policy for damaged data.
    Restore,
    /// `maintenance.onNoSpace: repair`. etcd already refuses writes.
    NoSpaceRepair,
}

/// Why a permit no longer holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lapsed {
    /// The step would now cost quorum or availability.
    Held(Hold),
    /// Another process runs than the one that the step was planned for.
    ProcessChanged,
    /// The member that was to be replaced answers again.
    Answers,
    /// Another voter went away, and one at a time is restarted.
    AnotherAway,
}

impl core::fmt::Display for Lapsed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Lapsed::Held(hold) => hold.fmt(f),
            Lapsed::ProcessChanged => write!(f, "etcd's process has changed in the meantime"),
            Lapsed::Answers => write!(f, "the member answers again"),
            Lapsed::AnotherAway => write!(f, "another member went away in the meantime"),
        }
    }
}

impl<Step> Permit<Step> {
    /// The step that it permits.
    pub fn step(&self) -> &Step {
        &self.step
    }

    /// Why it was given.
    pub fn grounds(&self) -> Grounds {
        self.grounds
    }

    /// The same as long as each of these voters serves.
    pub(super) fn while_serving(mut self, others: Others) -> Self {
        self.others = others;
        self
    }
}

impl Permit<Interruption> {
    /// Exchanges the permit for its step, if what was read right before the act still permits it.
    ///
    /// # Errors
    /// [`Lapsed`]: the world has changed since the step was planned. The next pass plans anew.
    pub fn exchange(self, again: &Again) -> Result<Interruption, Lapsed> {
        let Permit {
            step,
            grounds,
            id,
            alone,
            others,
            ..
        } = self;
        let pid = match again.process {
            Process::Running { pid, .. } => Some(pid),
            Process::Stopped => None,
            // Its node does not end it.
            Process::Unknown if grounds == Grounds::HasLeft => None,
            Process::Foreign { .. } | Process::Unknown => return Err(Lapsed::ProcessChanged),
        };
        if pid != step.pid {
            return Err(Lapsed::ProcessChanged);
        }
        let id = again.id.or(id);
        if grounds == Grounds::HasLeft {
            let left = |members: &MemberSet| match id {
                Some(id) => members.by_id(id).is_none(),
                None => members.named(&step.member).is_none(),
            };
            return match &again.membership {
                Membership::Known(members) if left(members) => Ok(step),
                _ => Err(Lapsed::Held(Hold::Unreachable)),
            };
        }
        if again.claim_deleted && step.act.ends_the_process() {
            return Err(Lapsed::Held(Hold::ClaimDeleted));
        }
        let declared = match grounds {
            Grounds::QuorumSurvives => None,
            Grounds::DeclaredOutage(declared) => Some(declared),
            Grounds::NothingRuns | Grounds::HasLeft => return Ok(step),
        };
        let still = grounds_to_interrupt(&again.membership, id, alone, declared);
        still.map_err(Lapsed::Held)?;
        match &again.membership {
            Membership::Known(members) if id.is_some_and(|it| waits_for(members, it, &others)) => {
                Err(Lapsed::AnotherAway)
            }
            _ => Ok(step),
        }
    }
}

impl Permit<Change> {
    /// Exchanges the permit for its step, if the member list that was read right before the act still
    /// permits it. A change that was planned on an older list may by now cost quorum, or a member that has
    /// come back.
    ///
    /// # Errors
    /// [`Lapsed`]: the hold that the change meets now, or the member answers.
    pub fn exchange(self, members: &MemberSet) -> Result<Change, Lapsed> {
        if let Change::Remove { member } = self.step
            && self.silent
            && let Some(it) = members.by_id(member)
            && it.health == Health::Serving
        {
            return Err(Lapsed::Answers);
        }
        let still = match &self.step {
            Change::AddLearner { name, peer_url } => to_add_learner(members, name, peer_url),
            Change::Promote { member } => to_promote(members, *member),
            Change::Remove { member } => to_remove(members, *member),
            Change::Update { member, peer_url } => to_update(members, *member, peer_url),
        };
        still.map(|it| it.step).map_err(Lapsed::Held)
    }
}

/// A member, as far as it matters for its interruption.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Its name.
    pub member: &'a MemberName,
    /// The process to interrupt. `None`: nothing runs.
    pub pid: Option<u32>,
    /// Its id, as it answers, else as it was written down.
    pub id: Option<MemberId>,
    /// It was its cluster's only member when it was last seen.
    pub alone: bool,
    /// etcd's member list.
    pub membership: &'a Membership,
    /// The place of its data goes with what uses it ([`crate::observed::Claim::Deleted`]).
    pub claim_deleted: bool,
}

/// The permit to interrupt this instance, of which nothing may run.
pub(super) fn permit(
    observed: &Observed,
    instance: &Instance,
    act: super::Act,
    declared: Declared,
) -> Result<Permit<Interruption>, Hold> {
    let seen = Seen {
        member: &instance.member,
        pid: instance.process.pid(),
        id: instance.id(&observed.membership),
        alone: instance.alone,
        membership: &observed.membership,
        claim_deleted: instance.claim == Claim::Deleted,
    };
    to_interrupt(seen, act, Some(declared))
}

/// The permit to end what runs for a member that the cluster has removed: it has no vote, and serves nobody. Its claim, if
/// somebody deleted that, may go.
pub(super) fn to_end_who_left(instance: &Instance, id: Option<MemberId>) -> Permit<Interruption> {
    Permit {
        step: Interruption {
            member: instance.member.clone(),
            act: super::Act::Stop,
            pid: instance.process.pid(),
        },
        grounds: Grounds::HasLeft,
        id,
        alone: false,
        silent: false,
        others: Others::new(),
    }
}

/// May this member be interrupted and come back?
pub fn to_interrupt(
    seen: Seen<'_>,
    act: super::Act,
    declared: Option<Declared>,
) -> Result<Permit<Interruption>, Hold> {
    // Also what waits to run uses the claim. No declaration is about the loss of data.
    if seen.claim_deleted && act.ends_the_process() {
        return Err(Hold::ClaimDeleted);
    }
    let grounds = match seen.pid {
        Some(_) => grounds_to_interrupt(seen.membership, seen.id, seen.alone, declared)?,
        None => Grounds::NothingRuns,
    };
    let step = Interruption {
        member: seen.member.clone(),
        act,
        pid: seen.pid,
    };
    Ok(Permit {
        step,
        grounds,
        id: seen.id,
        alone: seen.alone,
        silent: false,
        others: Others::new(),
    })
}

fn grounds_to_interrupt(
    membership: &Membership,
    member: Option<MemberId>,
    alone: bool,
    declared: Option<Declared>,
) -> Result<Grounds, Hold> {
    // Both stop all members, whatever they serve.
    if let Some(declared @ (Declared::SizeZero | Declared::Restore)) = declared {
        return Ok(Grounds::DeclaredOutage(declared));
    }
    let (Membership::Known(members), Some(member)) = (membership, member) else {
        // A member that does not answer is interrupted only if it was the single member when it was
        // last seen, and only if its owner declared the outage.
        return match declared {
            Some(declared) if alone || *membership == Membership::Unbootstrapped => {
                Ok(Grounds::DeclaredOutage(declared))
            }
            _ => Err(Hold::Unreachable),
        };
    };
    let others = serving_without(members, member);
    if members.voter_count() > 1 && others >= quorum(members.voter_count()) {
        return Ok(Grounds::QuorumSurvives);
    }
    match declared {
        Some(declared) if members.voter_count() <= 1 => Ok(Grounds::DeclaredOutage(declared)),
        _ if members.voter_count() <= 1 => Err(Hold::OutageNotDeclared),
        _ => Err(Hold::QuorumLost),
    }
}

/// May a learner be added? Adding one never changes quorum, but a cluster without quorum cannot
/// commit the change (rules D12, D13).
pub fn to_add_learner(
    members: &MemberSet,
    name: &MemberName,
    peer_url: &PeerUrl,
) -> Result<Permit<Change>, Hold> {
    let full = members.learners().count() >= LEARNERS_MAX || members.voter_count() >= VOTERS_MAX;
    if full || !members.has_quorum() {
        return Err(Hold::QuorumLost);
    }
    Ok(survived(Change::AddLearner {
        name: name.clone(),
        peer_url: peer_url.clone(),
    }))
}

/// May this learner vote? A majority of the larger cluster must answer, and so must the learner.
pub fn to_promote(members: &MemberSet, learner: MemberId) -> Result<Permit<Change>, Hold> {
    let ready = members.by_id(learner).is_some_and(Member::is_ready);
    let survives = members.serving_voters() + 1 >= quorum(members.voter_count() + 1);
    if ready && members.has_quorum() && survives {
        Ok(survived(Change::Promote { member: learner }))
    } else {
        Err(Hold::LearnerBehind)
    }
}

/// May this member be removed for good? Never the last voter (rule C4). The cluster must have
/// quorum, and the remaining voters that serve must be a majority of the new size.
pub fn to_remove(members: &MemberSet, member: MemberId) -> Result<Permit<Change>, Hold> {
    let voter = members.voters().any(|it| it.id == member);
    let survives = if voter {
        let left = members.voter_count() - 1;
        left >= 1 && serving_without(members, member) >= quorum(left)
    } else {
        true
    };
    if survives && members.has_quorum() {
        Ok(survived(Change::Remove { member }))
    } else {
        Err(Hold::QuorumLost)
    }
}

/// May this member, which does not answer, be removed, so that another one takes its place? As [`to_remove`]; and
/// the permit lapses if the member answers again.
pub fn to_replace(members: &MemberSet, member: MemberId) -> Result<Permit<Change>, Hold> {
    let permit = to_remove(members, member)?;
    Ok(Permit {
        silent: true,
        ..permit
    })
}

/// May this member's peer URL be changed? Only while it is the only voter: nobody else looks for it.
pub fn to_update(
    members: &MemberSet,
    member: MemberId,
    peer_url: &PeerUrl,
) -> Result<Permit<Change>, Hold> {
    let mut voters = members.voters();
    if voters.all(|it| it.id == member) && members.has_quorum() {
        return Ok(survived(Change::Update {
            member,
            peer_url: peer_url.clone(),
        }));
    }
    Err(Hold::QuorumLost)
}

fn survived(step: Change) -> Permit<Change> {
    Permit {
        step,
        grounds: Grounds::QuorumSurvives,
        id: None,
        alone: false,
        silent: false,
        others: Others::new(),
    }
}

/// Whether one of the other voters does not serve, and this member does: the restart of one that does not costs nothing.
fn waits_for(members: &MemberSet, member: MemberId, others: &Others) -> bool {
    !is_away(members, member) && others.iter().any(|it| is_away(members, *it))
}

/// Whether this voter does not serve.
pub(super) fn is_away(members: &MemberSet, voter: MemberId) -> bool {
    let mut voters = members.voters();
    voters.any(|it| it.id == voter && it.health != Health::Serving)
}

fn serving_without(members: &MemberSet, member: MemberId) -> usize {
    members
        .voters()
        .filter(|it| it.id != member && it.health == Health::Serving)
        .count()
}
