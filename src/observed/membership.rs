//! etcd's member list, as far as somebody told it.

use super::{Claim, INSTANCES_MAX, Instance};
use crate::cluster::{Answer, MemberSet, Silence};
use crate::spec::ClusterSpec;

/// etcd's member list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Membership {
    /// No member has ever run.
    Unbootstrapped,
    /// It could not be read.
    Unreachable,
    /// As the answering member reports it, without a majority's confirmation. The list may only be
    /// reported; nothing else may follow from it.
    Unconfirmed(MemberSet),
    /// More members than this operator can hold; never cut short.
    TooManyMembers,
    /// As etcd reports it.
    Known(MemberSet),
}

impl Membership {
    /// Of what several members told, that which is worth most.
    pub fn best(told: impl Iterator<Item = Membership>) -> Membership {
        let worth = |it: &Membership| match it {
            Membership::Unbootstrapped => 0,
            Membership::Unreachable => 1,
            Membership::Unconfirmed(_) => 2,
            Membership::TooManyMembers => 3,
            Membership::Known(_) => 4,
        };
        told.max_by_key(worth).unwrap_or(Membership::Unreachable)
    }

    /// The list, where a majority confirmed it.
    pub fn known(&self) -> Option<&MemberSet> {
        match self {
            Membership::Known(members) => Some(members),
            _ => None,
        }
    }

    /// The list of several members that a minority tells.
    pub fn of_a_minority(&self) -> Option<&MemberSet> {
        match self {
            Membership::Unconfirmed(members) if members.voter_count() > 1 => Some(members),
            _ => None,
        }
    }

    /// The same; of whom nothing was heard for the document's grace has failed, where another node would take one in its stead.
    /// One that was to join has no id but that of its place in the list.
    #[must_use]
    pub fn after(self, spec: &ClusterSpec, instances: &[Instance]) -> Self {
        let Membership::Known(members) = &self else {
            return self;
        };
        let joins = |it: &Instance| {
            let place = spec.member(&it.member).filter(|_| it.joins())?;
            Some(place.listed_in(members)?.id)
        };
        let mut silences = heapless::Vec::<Silence, INSTANCES_MAX>::new();
        // What is on a claim that was given up says nothing of the member.
        for instance in instances.iter().filter(|it| it.claim != Claim::Former) {
            if let Some(seconds) = instance.silent()
                && let Some(member) = instance.id(&self).or_else(|| joins(instance))
            {
                let _ = silences.push(Silence { member, seconds });
            }
        }
        Membership::Known(members.clone().after(&silences, spec.grace_seconds))
    }

    /// The same with each member's own answer.
    #[must_use]
    pub fn with(self, answers: &[Answer]) -> Self {
        match self {
            Membership::Known(members) => Membership::Known(members.with(answers)),
            other => other,
        }
    }
}
