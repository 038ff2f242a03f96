//! A plan while it is being made.

use core::time::Duration;

use super::permit::Permit;
use super::{Change, Hold, Interruption, Plan, Task, UPKEEP_MAX, Upkeep};
use crate::cluster::{MEMBERS_MAX, MemberName};
use crate::observed::Instance;

/// A plan that is being made.
#[derive(Default)]
pub(super) struct Draft {
    pub(super) upkeep: heapless::Vec<Task, UPKEEP_MAX>,
    pub(super) interruption: Option<Permit<Interruption>>,
    /// The member to interrupt leads: others go first.
    interrupts_leader: bool,
    pub(super) holds: heapless::Vec<(MemberName, Hold), MEMBERS_MAX>,
}

impl Draft {
    pub(super) fn of<'a>(&'a mut self, instance: &'a Instance) -> Steps<'a> {
        Steps {
            draft: self,
            instance,
        }
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

    /// Whether this member is interrupted in this pass.
    pub(super) fn interrupts(&self) -> bool {
        let planned = self.draft.interruption.as_ref();
        planned.is_some_and(|it| it.step().member == self.instance.member)
    }

    /// One interruption in a pass: of several members the leader comes last, so that it gives up its
    /// leadership once only.
    pub(super) fn interrupt(&mut self, permit: Permit<Interruption>) {
        let details = self.instance.service.details;
        let leads = details.is_some_and(|it| it.leader == Some(it.member));
        if self.draft.interruption.is_none() || self.draft.interrupts_leader && !leads {
            self.draft.interruption = Some(permit);
            self.draft.interrupts_leader = leads;
        }
    }
}
