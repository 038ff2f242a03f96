//! The shared predicate: no step that can cost quorum or availability without a permit.
//!
//! A [`Permit`] cannot be made anywhere else. The planner asks for it when it plans a step, and
//! `execute` asks again from a fresh observation before it acts.

use crate::cluster::{Health, MemberId, MemberSet, Role, VOTERS_MAX, quorum};
use crate::observed::{Membership, Observed};
use crate::plan::Hold;

/// Leave to interrupt, add, promote or remove. Only this module makes one.
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
    /// The host moved to another driver: etcd leaves the one that kept it.
    DriverChanged,
    /// A restore: by a person's command, or by what the document says of damaged data.
    Restore,
    /// `maintenance.onNoSpace: repair`: writes are refused already.
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
        // Whoever cannot be asked is interrupted only where it was the single member when it was
        // last seen, and only because its owner said so.
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

/// The second half of the pair: asked again right before the act, of the newest observation.
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
/// commit it (rules D12, D13).
pub fn to_add_learner(members: &MemberSet) -> Result<Permit, Hold> {
    if members.learner().is_some() || !members.has_quorum() || members.voter_count() >= VOTERS_MAX {
        return Err(Hold::QuorumLost);
    }
    Ok(Permit(Grounds::QuorumSurvives))
}

/// May this learner vote? The new and larger majority must answer, the newcomer among it.
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

/// May this member go for good? Never the last voter (rule C4), and the others must be a majority
/// both of the old and of the new size.
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
