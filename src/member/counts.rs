//! For how long a process of etcd has answered and served, or has not, in the operator's looks at it.

use crate::clock;
use crate::observed::{Process, Reading, Service, Tries, Unanswered};

/// What is counted of the process that was looked at last.
#[derive(Default)]
pub struct Counts {
    answers: Option<Spell>,
    serves: Option<Spell>,
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
    /// Counts one more look. `is_heard`: an etcd that answers is heard, since the operator has certificates to ask with, and a
    /// way to it. That it does not serve is not counted where etcd is not the cause: nobody can hear it, its database is full,
    /// or it does not let the operator in.
    pub fn look(&mut self, process: Process, service: &Service, is_heard: bool) -> Tries {
        let Process::Running { pid, .. } = process else {
            *self = Counts::default();
            return Tries::default();
        };
        let now = clock::since_boot().as_secs();
        let answers = Spell::with(self.answers, pid, service.read == Reading::Answered, now);
        self.answers = Some(answers);
        let mut tries = Tries {
            unanswered: answers.in_vain(now),
            ..Tries::default()
        };
        let permitted = !matches!(service.read, Reading::NotPermitted(_));
        if !service.serves() && (service.alarms.no_space || !is_heard || !permitted) {
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
