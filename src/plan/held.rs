//! Chooses the hold that is told first, of all that a plan has.

use super::{Hold, Plan};
use crate::cluster::{Detail, MemberName, detail};
use crate::observed::Observed;

/// A hold as it is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// What it is.
    pub hold: Hold,
    /// The same for people: of several members with whose it is, if it does not keep all of them.
    pub words: Detail,
}

impl Plan {
    /// The hold to tell first: a member's, else that of the member list.
    pub fn hold(&self) -> Option<&Hold> {
        self.first_hold().map(|(_, hold)| hold)
    }

    /// The same, with its words.
    pub fn held(&self, observed: &Observed) -> Option<Held> {
        let (member, hold) = self.first_hold()?;
        let mut words = detail(format_args!("{hold}"));
        // What keeps one of those that are missed may be what a person can mend.
        let mut others = self.holds.iter().filter(|it| !it.1.misses_votes());
        let cause = match hold {
            _ if member.is_some() => None,
            Hold::MajorityLost(..) => others.next(),
            Hold::MemberFailed(failed) => others.find(|it| it.0 == *failed),
            _ => None,
        };
        if let Some((of, why)) = cause {
            words = detail(format_args!("{words}; {of}: {why}"));
        }
        Some(Held {
            hold: hold.clone(),
            words: match member.filter(|_| hold.is_of_one()) {
                Some(member) => observed.of_one(member, words),
                None => words,
            },
        })
    }

    fn first_hold(&self) -> Option<(Option<&MemberName>, &Hold)> {
        // Who waits for the vote of another says less than that other.
        let mut all = self.holds.iter();
        let members = all.clone().find(|it| !it.1.misses_votes());
        let members = members.or_else(|| all.next());
        let members = members.map(|(member, hold)| (Some(member), hold));
        let list = self.change.as_ref().err().map(|hold| (None, hold));
        match (members, list) {
            // Nothing is written: that comes before why one of several does not start.
            (Some((_, hold)), Some((_, Hold::MajorityLost(..)))) if hold.is_of_one() => list,
            // Why it does not start says less than that another one could take its place.
            (Some((member, hold)), Some((_, Hold::MemberFailed(failed))))
                if member == Some(failed) && hold.is_of_one() =>
            {
                list
            }
            // Why no majority is seen says more than that a vote is missing.
            (
                Some((_, hold)),
                Some((
                    _,
                    Hold::UnexpectedMember { .. } | Hold::MajorityLost(..) | Hold::AuthEnabled,
                )),
            ) if hold.misses_votes() => list,
            _ => members.or(list),
        }
    }
}
