//! What etcd answers.

use crate::cluster::{Answer, ClusterId, Detail, MemberId};
use crate::version::Version;

/// What etcd answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// A linearizable read over a new mutual TLS connection.
    pub read: Reading,
    /// One write under the operator's own key, after each start (rule D7).
    pub write: Writing,
    /// Alarms that etcd raised.
    pub alarms: Alarms,
    /// Whether etcd applies what clients propose.
    pub proposals: Proposals,
    /// The details that came with the answers.
    pub details: Option<Details>,
}

impl Service {
    /// etcd was not asked.
    pub const UNKNOWN: Service = Service {
        read: Reading::NotTried,
        write: Writing::NotTried,
        alarms: Alarms {
            no_space: false,
            corrupt: false,
        },
        proposals: Proposals::Unknown,
        details: None,
    };

    /// Whether it has answered a read and acknowledged a write.
    pub fn serves(&self) -> bool {
        self.read == Reading::Answered && self.write == Writing::Acknowledged
    }

    /// What counts as the member's own answer: a linearizable read, or that it follows a leader.
    pub fn answer(&self) -> Option<Answer> {
        answer(&self.read, self.details)
    }
}

/// The same of what a look brought.
pub fn answer(read: &Reading, details: Option<Details>) -> Option<Answer> {
    match (read, details) {
        (Reading::Joining(answer), _) => Some(*answer),
        (Reading::Answered, Some(details)) => Some(Answer {
            member: details.member,
            raft_index: details.raft_index,
        }),
        _ => None,
    }
}

/// A linearizable read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Not tried: nothing runs.
    NotTried,
    /// Answered.
    Answered,
    /// Refused or failed, with the connection's error.
    Failed(Detail),
    /// It follows a leader and does not serve clients yet: a member that joins.
    Joining(Answer),
    /// etcd answered that its own users' permissions (`auth enable`) do not let the operator read.
    NotPermitted(Detail),
    /// No answer within the deadline.
    TimedOut,
}

impl Reading {
    /// Whether etcd is up: it answered, even if it does not let the operator read.
    pub fn is_answer(&self) -> bool {
        matches!(
            self,
            Reading::Answered | Reading::Joining(_) | Reading::NotPermitted(_)
        )
    }
}

/// A write under the operator's own key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Writing {
    /// Not tried since the process started.
    NotTried,
    /// Acknowledged since the process started.
    Acknowledged,
    /// Refused or unanswered.
    Failed(Detail),
}

/// etcd's alarms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Alarms {
    /// The quota was reached: writes are refused.
    pub no_space: bool,
    /// Members disagree on the data.
    pub corrupt: bool,
}

/// Whether proposals are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proposals {
    /// The metrics could not be read, or only once so far.
    Unknown,
    /// None is waiting, or they are being applied.
    Moving,
    /// Proposals waited in this pass and in the one before, and none was applied in between.
    Stuck,
}

/// What came with the answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Details {
    /// The cluster that answered.
    pub cluster: ClusterId,
    /// The member that answered.
    pub member: MemberId,
    /// Raft's leader, if there is one.
    pub leader: Option<MemberId>,
    /// The store's revision.
    pub revision: i64,
    /// The last index that Raft has committed.
    pub raft_index: u64,
    /// The database file, in bytes.
    pub db_size: u64,
    /// The part of it in use.
    pub db_in_use: u64,
    /// The version of a downgrade under way (`etcdctl downgrade enable`). etcd 3.5 does not report it.
    pub downgrade_to: Option<Version>,
    /// The version of the data as it is stored. etcd 3.5 does not tell it.
    pub storage: Option<Version>,
}

impl Details {
    /// Whether who answered is the leader.
    pub fn leads(&self) -> bool {
        self.leader == Some(self.member)
    }
}
