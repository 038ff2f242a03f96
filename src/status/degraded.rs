//! The condition Degraded: the worst problem, or a harmless oddity.

use super::{Condition, Kind, Verdict, condition, running_version};
use crate::cluster::{Detail, Health, Member, MemberSet, Role, detail, names, quorum};
use crate::observed::{Claim, DocumentSeen, Instance, Membership, Observed, Process};
use crate::plan::version::expects_downgrade;
use crate::plan::{Held, Hold};
use crate::spec::ClusterSpec;
use crate::start::{BACK_SECONDS, Refusal};
use crate::version::{Class, classify};

/// Whether something needs a person, or the cluster falls short of its specification.
pub(super) fn degraded(spec: &ClusterSpec, observed: &Observed, held: Option<&Held>) -> Condition {
    let yes = |reason, message| condition(Kind::Degraded, Verdict::True, reason, message);
    if let Some((reason, message)) = claims_deleted(observed) {
        return yes(reason, message);
    }
    if let Some(held) = held
        && !held.hold.is_pause()
    {
        return yes(held.hold.reason(), held.words.clone());
    }
    if let DocumentSeen::Refused { reason, why } = &observed.document {
        return yes(reason, why.clone());
    }
    if let Some(why) = &observed.failed {
        return yes("StepFailed", why.clone());
    }
    if let Some(why) = &observed.unreached {
        return yes(super::UNREACHED, why.clone());
    }
    let worst = |it| Some((it, of_instance(spec, it)?));
    if let Some((instance, (reason, message))) = observed.instances.iter().find_map(worst) {
        return yes(reason, observed.of_one(&instance.member, message));
    }
    if let Some(it) = observed.instances.iter().find(|it| it.unheard.is_some()) {
        let node = it.placement.node.as_deref().unwrap_or("of its volume");
        let silent = detail(format_args!(
            "nothing is heard of {} and of the node {node}",
            it.member
        ));
        let message = match it.no_place {
            Some(why) => detail(format_args!("{silent}, and {why}")),
            None => silent,
        };
        return yes("NodeAway", message);
    }
    if let Membership::Known(members) = &observed.membership
        && let Some(message) = not_serving(spec, members)
    {
        return yes("MembersNotServing", message);
    }
    let told = |reason, message| condition(Kind::Degraded, Verdict::False, reason, message);
    told(
        "AsAsked",
        detail(format_args!("nothing is known to be wrong")),
    )
}

/// Who does not serve, or has no vote yet.
fn not_serving(spec: &ClusterSpec, members: &MemberSet) -> Option<Detail> {
    let serves = |it: &Member| it.role == Role::Voter && it.health == Health::Serving;
    let mut others = members.iter().filter(|it| !serves(it));
    let first = others.next()?;
    let name = spec.name_of(first);
    let who = if name.is_empty() {
        detail(format_args!("a member that joins"))
    } else {
        detail(format_args!("{name}"))
    };
    let what = if first.role == Role::Voter {
        "does not serve"
    } else {
        "has no vote yet"
    };
    let more = match others.count() {
        0 => detail(format_args!("")),
        more => detail(format_args!(", and {more} more")),
    };
    Some(detail(format_args!("{who} {what}{more}")))
}

/// Claims that go as soon as no Pod uses them, and what a person can do where the others are a majority without these members.
fn claims_deleted(observed: &Observed) -> Option<(&'static str, Detail)> {
    let all = observed.instances.iter();
    let deleted = all.filter(|it| it.claim == Claim::Deleted);
    let (count, whose) = names(deleted.map(|it| &it.member));
    if count == 0 {
        return None;
    }
    let hold = Hold::ClaimDeleted;
    if observed.instances.len() == 1 {
        let message = detail(format_args!("{hold}; next: {}", hold.next_step()));
        return Some((hold.reason(), message));
    }
    let enough = match &observed.membership {
        Membership::Known(members) => {
            members.serving_voters() >= quorum(members.voter_count()) + count
        }
        _ => false,
    };
    let message = if enough {
        detail(format_args!(
            "{whose}: {hold}; next: delete the Pod of each, one after the other: another member takes its place, with the data of the others"
        ))
    } else {
        detail(format_args!("{whose}: {hold}; next: {}", hold.next_step()))
    };
    Some((hold.reason(), message))
}

/// What is wrong with one instance.
fn of_instance(spec: &ClusterSpec, instance: &Instance) -> Option<(&'static str, Detail)> {
    if instance.service.alarms.no_space {
        return Some((
            "NoSpace",
            detail(format_args!("the database has reached its quota")),
        ));
    }
    let runs = matches!(instance.process, Process::Running { .. });
    if let Some(why) = instance.facts.unreadable.as_ref().filter(|_| runs) {
        let message = detail(format_args!(
            "{why}; etcd runs on, but could not be started again"
        ));
        return Some((Refusal::RecordUnreadable(why.clone()).reason(), message));
    }
    let class = running_version(instance).map(classify);
    if let Some(Class::Warn(bug) | Class::NeverCreate(bug)) = class {
        return Some(("VersionHasKnownBug", detail(format_args!("{bug}"))));
    }
    if let Some(it) = &instance.unserved {
        let addresses = &it.addresses;
        let message = match it.there {
            Some(_) => detail(format_args!(
                "{addresses} is there, and etcd does not listen there: the operator restarts etcd for it once it was there for {BACK_SECONDS} s, once an hour at most"
            )),
            None => detail(format_args!(
                "{addresses} is no address of this host now: clients are served on the others, and there again once it is back; next: check the network (ip address), or correct network.listenAddresses"
            )),
        };
        return Some(("AddressGone", message));
    }
    if instance.machine_changed {
        let message = detail(format_args!(
            "the data was moved to another machine since the cluster was born; next: if this is the right disk, sudo systemctl reload etcd-operator"
        ));
        return Some(("MachineChanged", message));
    }
    if let Some(to) = instance.service.details.and_then(|it| it.downgrade_to)
        && !expects_downgrade(spec, instance, to)
    {
        let message = detail(format_args!(
            "somebody enabled a downgrade of etcd to {to}, which the document does not ask for; next: etcdctl downgrade cancel"
        ));
        return Some(("DowngradeEnabled", message));
    }
    None
}
