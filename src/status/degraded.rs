//! The condition Degraded: the worst problem, or a harmless oddity.

use super::{Condition, Kind, Verdict, condition, running_version};
use crate::cluster::{Detail, Role, detail};
use crate::observed::{Claim, DocumentSeen, Instance, Membership, Observed, Process};
use crate::plan::Hold;
use crate::plan::version::expects_downgrade;
use crate::spec::ClusterSpec;
use crate::start::Refusal;
use crate::version::{Class, classify};

/// Whether something needs a person, or the cluster falls short of its specification.
pub(super) fn degraded(spec: &ClusterSpec, observed: &Observed, hold: Option<&Hold>) -> Condition {
    let yes = |reason, message| condition(Kind::Degraded, Verdict::True, reason, message);
    if observed
        .instances
        .iter()
        .any(|it| it.claim == Claim::Deleted)
    {
        let deleted = Hold::ClaimDeleted;
        let message = detail(format_args!("{deleted}; next: {}", deleted.next_step()));
        return yes(deleted.reason(), message);
    }
    if let Some(hold) = hold
        && !hold.is_pause()
    {
        return yes(hold.reason(), detail(format_args!("{hold}")));
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
    let worst = |it| of_instance(spec, it);
    if let Some((reason, message)) = observed.instances.iter().find_map(worst) {
        return yes(reason, message);
    }
    if let Some(it) = observed.instances.iter().find(|it| it.unheard.is_some()) {
        let node = it.placement.node.as_deref().unwrap_or("of its volume");
        let message = detail(format_args!(
            "nothing is heard of {} and of the node {node}",
            it.member
        ));
        return yes("NodeAway", message);
    }
    if let Membership::Known(members) = &observed.membership
        && (members.iter().any(|it| it.role != Role::Voter)
            || members.serving_voters() < members.voter_count())
    {
        return yes(
            "MembersNotServing",
            detail(format_args!("not every member serves")),
        );
    }
    let told = |reason, message| condition(Kind::Degraded, Verdict::False, reason, message);
    told(
        "AsAsked",
        detail(format_args!("nothing is known to be wrong")),
    )
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
