//! Decides how a member that does not run comes into its cluster: by birth, with its own data, or by joining.

use crate::cluster::{ClusterId, Health, Member, MemberId, MemberSet, Role};
use crate::observed::{Claim, Instance, ListFrom, Membership, Observed, Process, Reading};
use crate::plan::permit::Permit;
use crate::plan::{Interruption, Steps, Upkeep, permit, restore};
use crate::spec::{ClusterSpec, MemberSpec};
use crate::start::{self, Completeness, Refusal, Writable};

/// How a member that does not run comes into its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// With its own data, or as the first member of a cluster that is born; or its start is refused.
    Own,
    /// Without data, as a learner that the list has and that never started.
    Join,
    /// First its old data is renamed aside: the cluster has removed the member that it belongs to.
    SetAside,
    /// The list does not have it yet, or cannot be read.
    Wait,
}

/// How this member comes into its cluster. A cluster is born as the document's first member, and only where
/// nothing of it lies with any of its members.
pub(super) fn way(spec: &ClusterSpec, observed: &Observed, instance: &Instance) -> Way {
    // What cannot be read says nothing: the start is refused with the reason.
    if !is_readable(instance) {
        return Way::Own;
    }
    let has_data = instance.facts.data.completeness() != Completeness::Empty;
    let id = member_id(instance);
    let Membership::Known(members) = &observed.membership else {
        let founder = spec
            .members
            .first()
            .is_some_and(|it| it.name == instance.member);
        // Its record says that it is to be born here, and never that it joins.
        let begun = instance.facts.born().is_some_and(|it| !it.joined) && spec.members.len() == 1;
        let born = founder && (begun || is_unborn(spec, observed));
        if born || has_data || id.is_some() {
            return Way::Own;
        }
        // With the first one, so that images and volumes are fetched at the same time.
        let together = finds_its_place(spec, instance) && is_unborn(spec, observed);
        return if together { Way::Join } else { Way::Wait };
    };
    let Some(wanted) = spec.member(&instance.member) else {
        // Nobody asks for it any more. Until the list is without it, it counts: etcd adds nobody while it is away.
        return match id.map(|it| members.by_id(it)) {
            Some(Some(_)) => Way::Own,
            Some(None) if is_of(spec, members, instance) => Way::SetAside,
            _ => Way::Wait,
        };
    };
    let entry = wanted.listed_in(members);
    match (entry, id) {
        (Some(entry), Some(id)) if entry.id == id => Way::Own,
        // A majority confirmed that the cluster has no member with the id of this data.
        (_, Some(id)) if members.by_id(id).is_none() && is_of(spec, members, instance) => {
            Way::SetAside
        }
        (_, Some(_)) => Way::Own,
        // A first start as a learner was cut short.
        (Some(entry), None) if has_data && entry.role != Role::Voter && instance.joins() => {
            Way::SetAside
        }
        (_, None) if has_data => Way::Own,
        (None, None) if finds_its_place(spec, instance) => Way::Join,
        // etcd starts it only with the list as it is, so all are listed before the first one starts.
        (Some(entry), None)
            if entry.name.is_empty()
                && entry.role != Role::Voter
                && (finds_its_place(spec, instance) || spec.missing(members).is_none()) =>
        {
            Way::Join
        }
        // Listed as a member that had data: it is removed first.
        (Some(_) | None, None) => Way::Wait,
    }
}

/// Whether the document asks for this member, whose guard waits until the list has it.
fn finds_its_place(spec: &ClusterSpec, instance: &Instance) -> bool {
    instance.list_from == ListFrom::Peers && spec.member(&instance.member).is_some()
}

/// Whether the first member of a cluster that is born is not started yet, nor in this pass: something may keep it from that.
pub(super) fn is_too_early(
    spec: &ClusterSpec,
    observed: &Observed,
    instance: &Instance,
    steps: &Steps<'_>,
) -> bool {
    let first = spec.members.first();
    observed.membership.known().is_none()
        && instance.facts.born().is_none()
        && !first.is_some_and(|it| steps.starts(&it.name))
}

/// The permit to end this process, where a majority confirmed that the cluster has no member for which it was made, or no
/// longer.
pub(super) fn to_end_who_left(
    spec: &ClusterSpec,
    observed: &Observed,
    instance: &Instance,
) -> Option<Permit<Interruption>> {
    let Membership::Known(members) = &observed.membership else {
        return None;
    };
    // What has another claim than the member is of one that was removed, also where its node does not end it.
    let former = instance.claim == Claim::Former;
    let ours = match instance.process {
        Process::Foreign { .. } => false,
        Process::Unknown => former,
        Process::Running { .. } | Process::Stopped => true,
    };
    let is_there = instance.is_there() || former;
    if !ours || !is_there || !is_of(spec, members, instance) {
        return None;
    }
    let answers = instance.service.details.map(|it| it.member);
    let id = answers.or_else(|| member_id(instance));
    let mut places = spec.members.iter().chain(&spec.former);
    let left = match (id, instance.joins()) {
        _ if former => true,
        (Some(id), _) => members.by_id(id).is_none(),
        (None, true) if finds_its_place(spec, instance) => false,
        (None, true) => places
            .find(|it| it.name == instance.member)
            .is_some_and(|it| it.listed_in(members).is_none()),
        (None, false) => false,
    };
    left.then(|| permit::to_end_who_left(instance, id))
}

/// Whether the claim of a member that was removed is given up: nobody has heard of its node for long.
pub fn leaves_its_claim(spec: &ClusterSpec, instance: &Instance) -> bool {
    instance.silent().is_some_and(|it| it >= spec.grace_seconds)
}

/// What is done with the claim of a lost node where the cluster has removed its member, or waits for it to join: an operator may
/// have ended in between.
pub(super) fn on_a_lost_node(
    spec: &ClusterSpec,
    observed: &Observed,
    instance: &Instance,
) -> Option<Upkeep> {
    let Membership::Known(members) = &observed.membership else {
        return None;
    };
    let lost = leaves_its_claim(spec, instance) && instance.claim != Claim::Former;
    if !lost || !members.has_quorum() || !is_of(spec, members, instance) {
        return None;
    }
    match member_id(instance) {
        Some(id) => members.by_id(id).is_none().then_some(Upkeep::SetDataAside),
        None if instance.joins() => {
            let place = spec.member(&instance.member)?;
            let listed = place.listed_in(members).is_some();
            (!listed).then_some(Upkeep::GiveUpClaim)
        }
        None => None,
    }
}

/// Whether a listed member that does not run can never come back as the same member.
pub(super) fn is_lost(spec: &ClusterSpec, instance: &Instance, member: &Member) -> bool {
    if instance.process != Process::Stopped || !is_readable(instance) {
        return false;
    }
    let empty = instance.facts.data.completeness() == Completeness::Empty;
    match member_id(instance) {
        Some(id) if id == member.id => match start::verdict(&instance.facts) {
            // Without the copy of the identity beside it, its disk may only be mounted late.
            Err(Refusal::DataMissing) => {
                instance.facts.marker.is_some() || member.health == Health::Failed
            }
            Err(refusal) if restore::is_damage(&refusal) => true,
            _ => instance.refused.as_ref().is_some_and(restore::is_damage),
        },
        Some(_) => false,
        None => {
            let place = spec.member(&instance.member);
            let at_its_url = place.is_some_and(|it| it.peer_url == member.peer_url);
            let unnamed = member.name.is_empty() && member.role == Role::Voter && at_its_url;
            empty && (instance.member == member.name || unnamed)
        }
    }
}

/// Whether what was read of the member's disk is what lies there.
fn is_readable(instance: &Instance) -> bool {
    let facts = &instance.facts;
    facts.unreadable.is_none() && facts.data.unreadable.is_none() && facts.writable == Writable::Yes
}

/// For so long one that joins is waited for: its guard waits for its turn for 30 s at most, and etcd tries again after 15 s.
const JOINS_SECONDS: u64 = 60;

/// Whether another member has its place among the others, and clients do not reach it yet: etcd takes up to 15 s more for
/// that. Who is restarted meanwhile may be the only one whom they reach.
pub(super) fn another_enters(observed: &Observed, instance: &Instance) -> bool {
    let joins = |it: &Instance| {
        let soon =
            matches!(it.process, Process::Running { seconds, .. } if seconds < JOINS_SECONDS);
        soon && matches!(it.service.read, Reading::Joining(_))
    };
    let mut others = observed.instances.iter();
    others.any(|it| it.member != instance.member && joins(it))
}

/// Whether no member of this cluster ever started: each was looked at, and nothing lies there.
fn is_unborn(spec: &ClusterSpec, observed: &Observed) -> bool {
    // Its own first start may have been cut short.
    let founder = |it: &Instance| {
        spec.members
            .first()
            .is_some_and(|first| first.name == it.member)
    };
    // The first one is written down before another one is listed, so a guard that waits for its place is no sign of life.
    let waits = |it: &Instance| {
        let known = matches!(it.process, Process::Stopped | Process::Running { .. });
        known && it.joins() && finds_its_place(spec, it)
    };
    let blank = |it: &Instance| {
        is_readable(it)
            && (it.process == Process::Stopped && !it.joins() || waits(it))
            && member_id(it).is_none()
            && (founder(it) || it.facts.data.completeness() == Completeness::Empty)
    };
    let seen = |place: &MemberSpec| observed.instance(&place.name).is_some();
    observed.membership == Membership::Unbootstrapped
        && spec.members.iter().all(seen)
        && observed.instances.iter().all(blank)
}

/// Whether the data, and the identity that says so, are of the cluster whose list was read.
fn is_of(spec: &ClusterSpec, members: &MemberSet, instance: &Instance) -> bool {
    let listed = members.cluster();
    let own = instance.facts.born();
    let named = own.is_some_and(|it| it.cluster == spec.name);
    let marker = instance.facts.marker.as_ref();
    let beside = marker.is_none_or(|it| it.cluster == spec.name);
    let served = own.and_then(|it| it.served);
    let owner = instance.facts.data.owner;
    let same = |id: Option<(ClusterId, MemberId)>| id.is_none_or(|(it, _)| Some(it) == listed);
    named && beside && same(served) && same(owner)
}

/// The id that the member had: as it was recorded when it served, else as its log has it.
fn member_id(instance: &Instance) -> Option<MemberId> {
    let served = instance.facts.born().and_then(|it| it.served);
    served
        .or(instance.facts.data.owner)
        .map(|(_, member)| member)
}
