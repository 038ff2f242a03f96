//! Decides which member joins, gets its vote or is removed: at most one change, in the order that keeps
//! quorum.

use crate::cluster::{Health, MemberName, MemberSet, Role};
use crate::observed::{Authority, Membership, Observed, Reading};
use crate::plan::permit::Permit;
use crate::plan::{Change, Hold, permit};
use crate::spec::ClusterSpec;

/// The next change of the member list, none, or why none is possible.
///
/// The order is the policy: first finish a change under way, then replace a failed member, then add a
/// missing one, and remove an unwanted one last.
pub(super) fn change(
    spec: &ClusterSpec,
    observed: &Observed,
) -> Result<Option<Permit<Change>>, Hold> {
    if let Some(stranger) = stranger(spec, observed) {
        return Err(stranger);
    }
    let members = match &observed.membership {
        Membership::Unbootstrapped => return Ok(None),
        Membership::Unreachable | Membership::Unconfirmed(_) => return Err(Hold::Unreachable),
        Membership::TooManyMembers => return Err(Hold::TooManyMembers),
        Membership::Known(members) => members,
    };
    if !members.has_quorum() {
        return Err(Hold::QuorumLost);
    }
    if observed.authority != Authority::Cluster {
        return Ok(None);
    }
    let wanted = |name: &str| spec.members.iter().any(|it| it == name);
    if let Some(learner) = members.learner() {
        let unwanted = !learner.name.is_empty() && !wanted(&learner.name);
        if unwanted || learner.health == Health::Failed {
            return permit::to_remove(members, learner.id).map(Some);
        }
        if (learner.role, learner.health) != (Role::Learner { caught_up: true }, Health::Serving) {
            return Err(Hold::LearnerBehind);
        }
        return permit::to_promote(members, learner.id).map(Some);
    }
    let lacking = missing(spec, members);
    // A failed member is removed before its replacement joins (rule D15): adding first would
    // raise the majority while a vote is missing.
    let failed = members.voters().find(|it| it.health == Health::Failed);
    if let Some(failed) = failed {
        if members.voter_count() == 1 {
            return Err(Hold::QuorumLost);
        }
        return permit::to_remove(members, failed.id).map(Some);
    }
    let unwanted = members
        .voters()
        .find(|it| !it.name.is_empty() && !wanted(&it.name));
    if let Some(name) = lacking {
        match permit::to_add_learner(members, name.clone()) {
            Ok(permit) => return Ok(Some(permit)),
            // With seven voters, an unwanted one is removed before its replacement joins.
            Err(hold) if unwanted.is_none() => return Err(hold),
            Err(_) => {}
        }
    }
    if let Some(unwanted) = unwanted {
        return permit::to_remove(members, unwanted.id).map(Some);
    }
    Ok(None)
}

fn missing<'a>(spec: &'a ClusterSpec, members: &MemberSet) -> Option<&'a MemberName> {
    spec.members.iter().find(|it| members.named(it).is_none())
}

/// If the document asks for one member and there never was another, somebody else added any other member.
/// The operator reports such a member and does not remove it: the person who added it had a reason.
pub(super) fn stranger(spec: &ClusterSpec, observed: &Observed) -> Option<Hold> {
    let [instance] = &observed.instances[..] else {
        return None;
    };
    let (Membership::Known(members) | Membership::Unconfirmed(members)) = &observed.membership
    else {
        return None;
    };
    if spec.size > 1 || !instance.alone {
        return None;
    }
    let served = instance.facts.identity.as_ref().and_then(|it| it.served);
    let own = served
        .map(|(_, it)| it)
        .or_else(|| instance.service.details.map(|it| it.member))?;
    let stranger = members.iter().find(|it| it.id != own)?;
    Some(Hold::UnexpectedMember {
        member: stranger.id,
        peer_url: stranger.peer_url.clone(),
        learner: stranger.role != Role::Voter,
        quorum: instance.service.read == Reading::Answered,
    })
}
