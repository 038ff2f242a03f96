//! Issues permits: no step that can cost quorum or availability is taken without one.
//!
//! Only this module can make a [`Permit`]. The planner asks for one when it plans a step. `execute`
//! asks again, with a fresh observation, before it acts.

use crate::cluster::{Health, MemberId, MemberSet, Role, VOTERS_MAX, quorum};
use crate::observed::{Membership, Observed};
use crate::plan::Hold;

/// Permission to interrupt, add, promote or remove a member. Only this module makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permit(Grounds);

/// Why a step is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grounds {
    /// The other voters that answer are still a majority.
    QuorumSurvives,
    /// Somebody declared the interruption.
    DeclaredOutage(Declared),
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
    /// A restore, by a person's command or by the document's policy for damaged data.
    Restore,
    /// `maintenance.onNoSpace: repair`. etcd already refuses writes.
    NoSpaceRepair,
}

impl Permit {
    /// Why it was given.
    pub fn grounds(self) -> Grounds {
        self.0
    }
}

/// May this member be interrupted and come back? `alone`: it was its cluster's only member when
/// it was last seen.
pub fn to_interrupt(
    membership: &Membership,
    member: Option<MemberId>,
    alone: bool,
    declared: Option<Declared>,
) -> Result<Permit, Hold> {
    if declared == Some(Declared::SizeZero) {
        return Ok(Permit(Grounds::DeclaredOutage(Declared::SizeZero)));
    }
    let (Membership::Known(members), Some(member)) = (membership, member) else {
        // A member that does not answer is interrupted only if it was the single member when it was
        // last seen, and only if its owner declared the outage.
        return match declared {
            Some(declared) if alone || *membership == Membership::Unbootstrapped => {
                Ok(Permit(Grounds::DeclaredOutage(declared)))
            }
            _ => Err(Hold::Unreachable),
        };
    };
    let others = serving_without(members, member);
    if members.voter_count() > 1 && others >= quorum(members.voter_count()) {
        return Ok(Permit(Grounds::QuorumSurvives));
    }
    match declared {
        Some(declared) if members.voter_count() <= 1 => {
            Ok(Permit(Grounds::DeclaredOutage(declared)))
        }
        _ if members.voter_count() <= 1 => Err(Hold::OutageNotDeclared),
        _ => Err(Hold::QuorumLost),
    }
}

/// Asks for the permit again right before the act, with the newest observation.
pub fn second_look(observed: &Observed, permit: Permit) -> Result<(), Hold> {
    let instance = observed.instances.first();
    let member = instance
        .and_then(|it| it.service.details)
        .map(|it| it.member);
    let declared = match permit.grounds() {
        Grounds::QuorumSurvives => None,
        Grounds::DeclaredOutage(declared) => Some(declared),
    };
    let alone = instance.is_some_and(|it| it.alone);
    if declared != Some(Declared::SizeZero) || member.is_some() {
        to_interrupt(&observed.membership, member, alone, declared)?;
    }
    Ok(())
}

/// May a learner be added? Adding one never changes quorum, but a cluster without quorum cannot
/// commit the change (rules D12, D13).
pub fn to_add_learner(members: &MemberSet) -> Result<Permit, Hold> {
    if members.learner().is_some() || !members.has_quorum() || members.voter_count() >= VOTERS_MAX {
        return Err(Hold::QuorumLost);
    }
    Ok(Permit(Grounds::QuorumSurvives))
}

/// May this learner vote? A majority of the larger cluster must answer, and so must the learner.
pub fn to_promote(members: &MemberSet, learner: MemberId) -> Result<Permit, Hold> {
    let ready = members.iter().any(|it| {
        it.id == learner
            && it.role == Role::Learner { caught_up: true }
            && it.health == Health::Serving
    });
    let survives = members.serving_voters() + 1 >= quorum(members.voter_count() + 1);
    if ready && members.has_quorum() && survives {
        Ok(Permit(Grounds::QuorumSurvives))
    } else {
        Err(Hold::LearnerBehind)
    }
}

/// May this member be removed for good? Never the last voter (rule C4). The cluster must have
/// quorum, and the remaining voters that serve must be a majority of the new size.
pub fn to_remove(members: &MemberSet, member: MemberId) -> Result<Permit, Hold> {
    let voter = members.voters().any(|it| it.id == member);
    if !voter {
        return if members.has_quorum() {
            Ok(Permit(Grounds::QuorumSurvives))
        } else {
            Err(Hold::QuorumLost)
        };
    }
    let left = members.voter_count() - 1;
    let others = serving_without(members, member);
    if left >= 1 && members.has_quorum() && others >= quorum(left) {
        Ok(Permit(Grounds::QuorumSurvives))
    } else {
        Err(Hold::QuorumLost)
    }
}

fn serving_without(members: &MemberSet, member: MemberId) -> usize {
    members
        .voters()
        .filter(|it| it.id != member && it.health == Health::Serving)
        .count()
}
