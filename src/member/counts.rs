//! For how long a process of etcd has answered and served, or has not, in the operator's looks at it.

use crate::clock;
use crate::cluster::quorum;
use crate::observed::{Membership, Process, Reading, Service, Tries, Unanswered, Writing};

/// What is counted of the process that was looked at last.
#[derive(Default)]
pub struct Counts {
    answers: Option<Spell>,
    serves: Option<Spell>,
    lowers: Option<Spell>,
}

/// A process does one thing, or does not, for a while.
#[derive(Clone, Copy)]
struct Spell {
    pid: u32,
    does: bool,
    looks: u32,
    /// In seconds since boot.
    since: u64,
}

impl Spell {
    /// The spell with one look more.
    fn with(before: Option<Spell>, pid: u32, does: bool, now: u64) -> Self {
        let before = before.filter(|it| it.pid == pid && it.does == does);
        Spell {
            pid,
            does,
            looks: before.map_or(0, |it| it.looks).saturating_add(1),
            since: before.map_or(now, |it| it.since),
        }
    }

    fn seconds(self, now: u64) -> u64 {
        now.saturating_sub(self.since)
    }

    /// What it does not do.
    fn in_vain(self, now: u64) -> Unanswered {
        if self.does {
            return Unanswered::default();
        }
        Unanswered {
            looks: self.looks,
            seconds: self.seconds(now),
        }
    }
}

impl Counts {
    /// Counts one more look. `is_heard`: an etcd that is well would be seen to serve: the operator has certificates to ask with
    /// and a way to it, and enough others answer ([`could_serve`]). That it does not serve is not counted where etcd is not the
    /// cause: it could not be seen to serve, its database is full, or it does not let the operator in; nor while it answers
    /// reads and no write was tried.
    pub fn look(&mut self, process: Process, service: &Service, is_heard: bool) -> Tries {
        let Process::Running { pid, .. } = process else {
            *self = Counts::default();
            return Tries::default();
        };
        let now = clock::since_boot().as_secs();
        let answers = Spell::with(self.answers, pid, service.read == Reading::Answered, now);
        self.answers = Some(answers);
        let known = service.details.map(|it| {
            let storage = it.storage.zip(it.downgrade_to);
            storage.is_some_and(|(storage, to)| storage.is_newer_line_than(to))
        });
        // One look without an answer begins nothing anew.
        let lowers = known.or_else(|| Some(self.lowers?.does)) == Some(true);
        let lowers = Spell::with(self.lowers, pid, lowers, now);
        self.lowers = Some(lowers);
        let mut tries = Tries {
            unanswered: answers.in_vain(now),
            answered: if answers.does {
                answers.seconds(now)
            } else {
                0
            },
            lowering: if lowers.does { lowers.seconds(now) } else { 0 },
            ..Tries::default()
        };
        let permitted = !matches!(service.read, Reading::NotPermitted(_));
        let is_untried = service.read == Reading::Answered && service.write == Writing::NotTried;
        if is_untried || !service.serves() && (service.alarms.no_space || !is_heard || !permitted) {
            self.serves = None;
            return tries;
        }
        let serves = Spell::with(self.serves, pid, service.serves(), now);
        self.serves = Some(serves);
        tries.unserved = serves.in_vain(now);
        tries.served = if serves.does { serves.seconds(now) } else { 0 };
        tries
    }
}

/// Whether this member of several would serve if it were well: with it, those that tell something of the cluster, a leader
/// or not, are a majority. `others`: what each of the other members told.
pub fn could_serve<'a>(others: impl Iterator<Item = &'a Membership>) -> bool {
    let (mut all, mut listed, mut answer) = (1, None, 1);
    for told in others {
        all += 1;
        match told {
            Membership::Known(members) | Membership::Unconfirmed(members) => {
                listed = listed.max(Some(members.voter_count()));
                answer += 1;
            }
            Membership::TooManyMembers => return true,
            Membership::Unreachable | Membership::Unbootstrapped => {}
        }
    }
    answer >= quorum(listed.unwrap_or(all))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{ClusterId, Detail, Health, Member, MemberId, MemberName, MemberSet};
    use crate::cluster::{PeerUrl, Role};
    use crate::spec::Settings;
    use crate::version::Version;

    fn listed(voters: u64) -> MemberSet {
        let mut members = MemberSet::of(ClusterId(1));
        for id in 1..=voters {
            let it = Member {
                id: MemberId(id),
                name: MemberName::new(),
                peer_url: PeerUrl::new(),
                role: Role::Voter,
                health: Health::Unknown,
            };
            members.insert(it).unwrap();
        }
        members
    }

    #[test]
    fn a_member_without_enough_others_is_not_blamed() {
        let (away, lone) = (Membership::Unreachable, Membership::Unconfirmed(listed(3)));
        let five = Membership::Unconfirmed(listed(5));
        assert!(could_serve([].iter()));
        assert!(!could_serve([away.clone(), away.clone()].iter()));
        assert!(could_serve([away.clone(), lone].iter()));
        let of_five = |count: usize| {
            let told = (0..4).map(|it| if it < count { &five } else { &away });
            could_serve(told)
        };
        assert_eq!(
            [0, 1, 2, 3, 4].map(of_five),
            [false, false, true, true, true]
        );
    }

    #[test]
    fn only_what_was_tried_in_vain_is_counted() {
        let process = Process::Running {
            pid: 7,
            settings: Settings(1),
            version: Version::new(3, 6, 15),
            quota: 1,
            seconds: 1,
        };
        let seen = |read, write| Service {
            read,
            write,
            ..Service::UNKNOWN
        };
        let mut counts = Counts::default();
        let silent = seen(Reading::TimedOut, Writing::NotTried);
        let mut look =
            |service: &Service, is_heard| counts.look(process, service, is_heard).unserved.looks;
        assert_eq!(look(&silent, true), 1);
        assert_eq!(look(&silent, true), 2);
        assert_eq!(look(&silent, false), 0);
        assert_eq!(look(&silent, true), 1);
        assert_eq!(look(&seen(Reading::Answered, Writing::NotTried), true), 0);
        let refused = seen(Reading::Answered, Writing::Failed(Detail::new()));
        assert_eq!(look(&refused, true), 1);
    }
}
