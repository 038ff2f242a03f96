//! Decides which member joins, gets its vote or is removed: at most one change, in the order that keeps
//! quorum.

use crate::cluster::{Health, Member, MemberName, MemberSet, PeerUrl, Role, names};
use crate::observed::{Authority, Instance, Membership, Observed, Process, Reading};
use crate::plan::join;
use crate::plan::permit::Permit;
use crate::plan::{Change, Hold, permit, version};
use crate::spec::ClusterSpec;

/// The changes that keep a cluster whole and let it grow, or why none is possible.
///
/// The order is the policy: remove learners that are of no use; remove a voter that has failed or whose
/// data is gone (rule D15: adding first would raise the majority while a vote is missing); add all that
/// are missing, at once; give a vote to who has caught up.
pub(super) fn repair_and_grow(
    spec: &ClusterSpec,
    observed: &Observed,
    members: &MemberSet,
) -> Result<Option<Permit<Change>>, Hold> {
    // What somebody else added is nobody's to remove, whether it answers or not.
    let failed =
        |it: &Member| it.health == Health::Failed && (wanted(spec, it) || unwanted(spec, it));
    let gone = |it: &&Member| failed(it) || lost(spec, observed, it);
    let useless = |it: &&Member| gone(it) || unwanted(spec, it);
    if let Some(learner) = members.learners().find(useless) {
        return permit::to_remove(members, learner.id).map(Some);
    }
    if let Some(voter) = members.voters().find(gone) {
        return match members.voter_count() {
            1 => Err(Hold::QuorumLost),
            _ if !spec.replace_failed => Err(Hold::MemberFailed(voter.name.clone())),
            _ => permit::to_replace(members, voter.id).map(Some),
        };
    }
    if let Some((only, peer_url)) = moved(spec, members) {
        // First it listens there: who joins looks for it there.
        let listens = observed.instance(&only.name).is_some_and(|it| {
            matches!(it.process, Process::Running { settings, .. } if settings == spec.settings)
        });
        return if listens {
            permit::to_update(members, only.id, peer_url).map(Some)
        } else {
            Ok(None)
        };
    }
    // What a version that is not final yet does is seen with the members that there are. An even number of voters has lost
    // one, and may be too few for the restart that ends the change.
    let odd = !members.voter_count().is_multiple_of(2);
    let mut instances = observed.instances.iter();
    let waits = odd && instances.any(|it| version::changing(it).is_some());
    if let Some(it) = spec.missing(members).filter(|_| !waits) {
        if members.voters().any(|it| !is_recorded(spec, observed, it)) {
            return Ok(None); // its record comes first: it is written in this pass
        }
        match permit::to_add_learner(members, &it.name, &it.peer_url) {
            Ok(permit) => return Ok(Some(permit)),
            // With seven voters, an unwanted one is removed before its replacement joins.
            Err(_) if members.voters().any(|it| unwanted(spec, it)) => return Ok(None),
            Err(hold) => return Err(hold),
        }
    }
    let ready = |it: &&Member| it.is_ready() && is_recorded(spec, observed, it);
    if let Some(learner) = members.learners().find(ready) {
        return permit::to_promote(members, learner.id).map(Some);
    }
    if members.learners().any(|it| wanted(spec, it)) {
        return Err(Hold::LearnerBehind);
    }
    Ok(None)
}

/// Whether the id of a member that this process runs is written down, also where it is seen too late to have told one. Who
/// runs elsewhere is written down there.
fn is_recorded(spec: &ClusterSpec, observed: &Observed, member: &Member) -> bool {
    let place = spec.place_of(member).map(|it| &it.name);
    let own = |it: &&Instance| {
        let told = it.ids(&observed.membership).map(|(_, id)| id);
        told == Some(member.id) || place == Some(&it.member)
    };
    let mut instances = observed.instances.iter();
    let record = instances
        .find(own)
        .and_then(|it| it.facts.identity.as_ref());
    record.is_none_or(|it| it.served.is_some_and(|(_, id)| id == member.id))
}

/// Removes a voter that the document no longer names: last of all; of several one that does not serve first and
/// the leader last. Else the hold for a member that the document never named. `silent`: only one that does not serve.
pub(super) fn shrink(
    spec: &ClusterSpec,
    observed: &Observed,
    members: &MemberSet,
    silent: bool,
) -> Result<Option<Permit<Change>>, Hold> {
    let leader = observed.speaker().and_then(|it| it.service.details?.leader);
    // Who does not serve goes first: its going costs nothing.
    let order = |it: &&Member| (it.health == Health::Serving, Some(it.id) == leader);
    let surplus = members.voters().filter(|it| unwanted(spec, it));
    match surplus.min_by_key(order) {
        Some(voter) if silent && voter.health == Health::Serving => return Ok(None),
        Some(voter) => return permit::to_remove(members, voter.id).map(Some),
        None => {}
    }
    match members.iter().find(|it| !wanted(spec, it)) {
        Some(it) => Err(unexpected(it, true)),
        None => Ok(None),
    }
}

/// The member list, if this process may change it now.
pub(super) fn changeable<'a>(
    spec: &ClusterSpec,
    observed: &'a Observed,
) -> Result<Option<&'a MemberSet>, Hold> {
    if let Some(stranger) = stranger(spec, observed) {
        return Err(stranger);
    }
    // etcd serves its users, and lets the operator confirm nothing.
    let refuses = |it: &Instance| matches!(it.service.read, Reading::NotPermitted(_));
    if observed.membership.known().is_none() && observed.instances.iter().any(refuses) {
        return Err(Hold::AuthEnabled);
    }
    if let Some(members) = observed.membership.of_a_minority() {
        return Err(majority_lost(observed, members));
    }
    let members = match &observed.membership {
        Membership::Unbootstrapped => return Ok(None),
        Membership::Unreachable | Membership::Unconfirmed(_) => return Err(Hold::Unreachable),
        Membership::TooManyMembers => return Err(Hold::TooManyMembers),
        Membership::Known(members) => members,
    };
    if !members.has_quorum() {
        return Err(majority_lost(observed, members));
    }
    Ok((observed.authority == Authority::Cluster).then_some(members))
}

/// Who keeps the voters from a majority: those that tell nothing at all.
fn majority_lost(observed: &Observed, members: &MemberSet) -> Hold {
    let tells = |it: &Member| {
        let of = observed.instance(&it.name);
        it.health == Health::Serving || of.is_some_and(|it| it.service.details.is_some())
    };
    let silent = members.voters().filter(|it| !tells(it));
    let (count, who) = names(silent.map(|it| &it.name));
    let number = |it| u8::try_from(it).unwrap_or(u8::MAX);
    Hold::MajorityLost(number(count), number(members.voter_count()), who)
}

/// Whether a learner is on its way, so that the cluster is soon larger; or, where the only voter would be interrupted, one
/// that nothing keeps from its start. `holds`: of members, in this pass.
pub(super) fn outage_can_wait(
    spec: &ClusterSpec,
    holds: &[(MemberName, Hold)],
    observed: &Observed,
    members: &MemberSet,
) -> bool {
    let answers = members.learners().any(|it| it.health == Health::Serving);
    let young = observed.instances.iter().any(|it| it.process.is_young());
    let comes = |it: &Instance| {
        let held = holds.iter().any(|(member, _)| *member == it.member);
        // One that never started is listed by its URL alone, and may not even have a record yet.
        let entry = spec.member(&it.member).and_then(|it| it.listed_in(members));
        let learner = entry.is_some_and(|it| it.role != Role::Voter);
        (learner || it.joins()) && !held
    };
    answers || young || members.voter_count() == 1 && observed.instances.iter().any(comes)
}

/// The only voter, if the document has it at another peer URL than etcd's list, and that URL. Of several none is
/// moved: two that listen where the others do not look for them cannot reach each other.
fn moved<'a>(spec: &'a ClusterSpec, members: &'a MemberSet) -> Option<(&'a Member, &'a PeerUrl)> {
    let mut voters = members.voters();
    let only = voters.next().filter(|_| voters.next().is_none())?;
    let url = &spec.place_of(only)?.peer_url;
    // A URL that was too long to be read is no other one.
    (!only.peer_url.is_empty() && *url != only.peer_url).then_some((only, url))
}

/// Whether the document asks for this member.
fn wanted(spec: &ClusterSpec, member: &Member) -> bool {
    spec.place_of(member).is_some()
}

/// Whether this is or was a member of the document's, and nobody else's.
pub(super) fn is_ours(spec: &ClusterSpec, member: &Member) -> bool {
    wanted(spec, member) || unwanted(spec, member)
}

/// Whether this was a member of the document's, which no longer asks for it. What has another name, or waits at
/// another URL, is nobody's to remove: the person who added it had a reason.
fn unwanted(spec: &ClusterSpec, member: &Member) -> bool {
    let former = spec.former.iter().any(|it| it.is_of(member));
    (former || spec.is_member_name(&member.name)) && !wanted(spec, member)
}

/// Whether the data of a member that this process runs is gone or damaged, so that it can never come back
/// as the same member.
fn lost(spec: &ClusterSpec, observed: &Observed, member: &Member) -> bool {
    let lost = |it: &Instance| join::is_lost(spec, it, member);
    observed.instances.iter().any(lost)
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
    // Whom the document does not ask for has no say in who belongs.
    if spec.size > 1 || !instance.alone || spec.member(&instance.member).is_none() {
        return None;
    }
    let served = instance.facts.identity.as_ref().and_then(|it| it.served);
    let own = served
        .map(|(_, it)| it)
        .or_else(|| instance.service.details.map(|it| it.member))?;
    let stranger = members.iter().find(|it| it.id != own)?;
    Some(unexpected(
        stranger,
        instance.service.read == Reading::Answered,
    ))
}

fn unexpected(member: &Member, quorum: bool) -> Hold {
    Hold::UnexpectedMember {
        member: member.id,
        peer_url: member.peer_url.clone(),
        learner: member.role != Role::Voter,
        quorum,
    }
}
