//! A plan while it is being made.

use core::time::Duration;

use super::permit::Permit;
use super::{Act, Change, Hold, Interruption, Plan, Task, UPKEEP_MAX, Upkeep};
use crate::cluster::{Health, Member, MemberId, MemberName, MemberSet};
use crate::observed::{Details, INSTANCES_MAX, Instance, Membership, Observed, Process};
use crate::spec::ClusterSpec;
use crate::start::Start;

/// A plan that is being made.
#[derive(Default)]
pub(super) struct Draft {
    pub(super) upkeep: heapless::Vec<Task, UPKEEP_MAX>,
    pub(super) interruption: Option<Permit<Interruption>>,
    /// The member to interrupt leads: others go first.
    interrupts_leader: bool,
    pub(super) holds: heapless::Vec<(MemberName, Hold), INSTANCES_MAX>,
}

impl Draft {
    pub(super) fn of<'a>(&'a mut self, instance: &'a Instance) -> Steps<'a> {
        Steps {
            draft: self,
            instance,
        }
    }

    /// Whether a member that has a vote is started in this pass.
    pub(super) fn starts_a_voter(&self, members: &MemberSet) -> bool {
        let starts =
            |it: &Task| it.step.starts() && members.voters().any(|voter| voter.name == it.member);
        self.upkeep.iter().any(starts)
    }

    /// Who leads hands its leadership over before it is interrupted by an edit or removed; the step itself
    /// follows in the next pass. If the last pass failed, it is not waited for: etcd hands it over when it ends.
    pub(super) fn without_the_leader(
        &mut self,
        spec: &ClusterSpec,
        observed: &Observed,
        change: Result<Option<Permit<Change>>, Hold>,
    ) -> Result<Option<Permit<Change>>, Hold> {
        let planned = self.interruption.as_ref().map(Permit::step);
        let restarts = planned
            .filter(|it| it.act == Act::Restart)
            .map(|it| &it.member);
        let removes = |member: MemberId| {
            let remove = Change::Remove { member };
            matches!(&change, Ok(Some(permit)) if *permit.step() == remove)
        };
        let goes = |it: &&Instance| {
            let leader = it.service.details.filter(Details::leads);
            leader.is_some_and(|leader| restarts == Some(&it.member) || removes(leader.member))
        };
        let leader = observed.instances.iter().find(goes);
        let leader = leader.filter(|_| observed.failed.is_none());
        let heir = leader.and_then(|it| Some((it, successor(spec, observed, it)?)));
        let Some((leader, to)) = heir else {
            return change;
        };
        self.of(leader).push(Upkeep::GiveUpLeadership { to });
        self.interruption = None;
        Ok(None)
    }

    pub(super) fn plan(
        self,
        change: Result<Option<Permit<Change>>, Hold>,
        requeue_after: Duration,
    ) -> Plan {
        Plan {
            upkeep: self.upkeep,
            interruption: self.interruption,
            change,
            holds: self.holds,
            requeue_after,
        }
    }
}

/// Who leads next: a voter that serves and stays, and best one that need not be restarted.
fn successor(spec: &ClusterSpec, observed: &Observed, leader: &Instance) -> Option<MemberId> {
    let Membership::Known(members) = &observed.membership else {
        return None;
    };
    let edited = |it: &Member| match observed.instance(&it.name).map(|it| it.process) {
        Some(Process::Running { settings, .. }) => settings != spec.settings,
        _ => false,
    };
    let fit = |it: &&Member| {
        it.health == Health::Serving && it.name != leader.member && spec.member(&it.name).is_some()
    };
    let fit = members.voters().filter(fit);
    fit.min_by_key(|it| edited(it)).map(|it| it.id)
}

/// The steps for one member.
pub(super) struct Steps<'a> {
    draft: &'a mut Draft,
    instance: &'a Instance,
}

impl Steps<'_> {
    /// The list has room for [`super::STEPS_MAX`] steps of each member, which is more than any rule plans.
    pub(super) fn push(&mut self, step: Upkeep) {
        let member = self.instance.member.clone();
        let _ = self.draft.upkeep.push(Task { member, step });
    }

    /// Whether another member joins: it is started in this pass, or was started and does not answer yet.
    pub(super) fn another_joins(&self, observed: &Observed) -> bool {
        let started = |it: &Task| it.step == Upkeep::Start(Start::Join);
        let comes_up = |it: &Instance| it.comes_up() && it.joins();
        self.draft.upkeep.iter().any(started) || observed.instances.iter().any(comes_up)
    }

    /// Whether this member is started in this pass.
    pub(super) fn starts(&self, member: &MemberName) -> bool {
        let mut upkeep = self.draft.upkeep.iter();
        upkeep.any(|it| it.member == *member && it.step.starts())
    }

    /// Whether another version is tried on a copy of its data in this pass.
    pub(super) fn rehearses(&self) -> bool {
        let rehearses = |it: &Task| matches!(it.step, Upkeep::RehearseVersion(_));
        self.draft.upkeep.iter().any(rehearses)
    }

    /// Whether this member is interrupted in this pass.
    pub(super) fn interrupts(&self) -> bool {
        let planned = self.draft.interruption.as_ref();
        planned.is_some_and(|it| it.step().member == self.instance.member)
    }

    /// One interruption in a pass: of several members the leader comes last, so that it gives up its
    /// leadership once only.
    pub(super) fn interrupt(&mut self, permit: Permit<Interruption>) {
        let leads = self.instance.service.details.is_some_and(|it| it.leads());
        if self.draft.interruption.is_none() || self.draft.interrupts_leader && !leads {
            self.draft.interruption = Some(permit);
            self.draft.interrupts_leader = leads;
        }
    }
}
