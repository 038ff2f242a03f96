//! The vocabulary: members, roles, quorum arithmetic, identities and their limits.
//!
//! It knows no clock, no I/O, no heap, no Kubernetes and no serde.

use core::fmt;

/// More voters than this are not allowed ("no more than seven nodes", etcd's FAQ).
pub const VOTERS_MAX: usize = 7;
/// Learners at one time, rendered as `max-learners`: a cluster of one grows to the largest at once.
pub const LEARNERS_MAX: usize = VOTERS_MAX - 1;
/// Members at one time.
pub const MEMBERS_MAX: usize = VOTERS_MAX + LEARNERS_MAX;
const _: () = assert!(VOTERS_MAX % 2 == 1); // an even count adds no failure tolerance

/// The operator's own name among clients; no other client may have it.
pub const OPERATOR: &str = "etcd-operator";
/// The client that always has a certificate: what `env` and `status` name.
pub const ADMIN: &str = "admin";

/// The name of a member: one DNS label.
pub type MemberName = heapless::String<63>;
/// The name of a cluster: one DNS label.
pub type ClusterName = heapless::String<63>;
/// A member's peer URL; empty where it is longer. The longest names of Kubernetes fit.
pub type PeerUrl = heapless::String<208>;
/// A sentence for people inside a fixed-size value; longer text is cut at a character boundary.
pub type Detail = heapless::String<320>;

/// One DNS label (RFC 1123): what names of clusters, members and clients are.
pub fn is_dns_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.bytes().all(|it| inner(it) || it == b'-')
        && text.bytes().next().is_some_and(inner)
        && text.bytes().next_back().is_some_and(inner)
}

/// How many members, and their names with commas between.
pub fn names<'a>(members: impl Iterator<Item = &'a MemberName>) -> (usize, Detail) {
    let none = (0, Detail::new());
    members.fold(none, |(count, before), it| {
        let comma = if count == 0 { "" } else { ", " };
        (count + 1, detail(format_args!("{before}{comma}{it}")))
    })
}

/// Builds a [`Detail`], cutting what does not fit. A control character becomes a space: part of the text may come from
/// outside, and it is shown on terminals and in logs.
pub fn detail(arguments: fmt::Arguments<'_>) -> Detail {
    struct Cutting(Detail);
    impl fmt::Write for Cutting {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let space = self.0.capacity() - self.0.len();
            let mut end = text.len().min(space);
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            for part in text[..end].split_inclusive(char::is_control) {
                let plain = part.trim_end_matches(char::is_control);
                self.0.push_str(plain).map_err(|_| fmt::Error)?;
                if plain.len() < part.len() {
                    self.0.push(' ').map_err(|_| fmt::Error)?;
                }
            }
            if end == text.len() {
                Ok(())
            } else {
                Err(fmt::Error)
            }
        }
    }
    let mut cutting = Cutting(Detail::new());
    let _ = fmt::Write::write_fmt(&mut cutting, arguments);
    cutting.0
}

/// A member's id, given by etcd when the member joins and never used again after its removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemberId(pub u64);

/// A cluster's id, given by etcd at birth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterId(pub u64);

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Wall-clock time in seconds since 1970-01-01 UTC. The core gets it as an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Seconds from `earlier` to `self`; negative when the clock went back.
    pub fn seconds_since(self, earlier: Timestamp) -> i64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// RFC 3339 in UTC, by the calendar of days since 0000-03-01, in which a leap day ends its year.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, second) = (self.0.div_euclid(86_400), self.0.rem_euclid(86_400));
        let days = days + 719_468;
        let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let (year, month) = match month {
            0..10 => (era * 400 + year, month + 3),
            _ => (era * 400 + year + 1, month - 9),
        };
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z"
        )
    }
}

/// What a member may do in Raft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A voting member.
    Voter,
    /// Receives the log without a vote, until promoted.
    Learner {
        /// Close enough to the leader's log for etcd to accept the promotion (90 %).
        caught_up: bool,
    },
}

/// How a member answers. Not knowing is a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Answered a linearizable read within the deadline.
    Serving,
    /// Did not answer; shorter than the grace period, or it could not be asked.
    Unknown,
    /// Has not answered for longer than the grace period (rule D15: 10 minutes).
    Failed,
}

/// One member as etcd's member list and its own answers show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Given by etcd.
    pub id: MemberId,
    /// Empty until the member has started for the first time.
    pub name: MemberName,
    /// The first of its peer URLs.
    pub peer_url: PeerUrl,
    /// Voter or learner.
    pub role: Role,
    /// What it answered.
    pub health: Health,
}

impl Member {
    /// Whether this is a learner that could get its vote.
    pub fn is_ready(&self) -> bool {
        (self.role, self.health) == (Role::Learner { caught_up: true }, Health::Serving)
    }
}

/// Seconds without a word after which a member counts as failed (rule D15), where the document says nothing else.
pub const FAILED_SECONDS: u64 = 600;

/// A member that does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    /// Which one.
    pub member: MemberId,
    /// For how long.
    pub seconds: u64,
}

/// A member's own answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Who answered.
    pub member: MemberId,
    /// The last index of the log that it knows to be committed.
    pub raft_index: u64,
}

/// Why a member list cannot be represented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsertError {
    /// Two members with one id: never valid.
    DuplicateId,
    /// More members than [`MEMBERS_MAX`]: a foreign cluster, held, never cut short.
    Full,
}

/// The members of one etcd cluster. Invariant: ids are unique and ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberSet {
    cluster: Option<ClusterId>,
    members: heapless::Vec<Member, MEMBERS_MAX>,
}

/// How many of `voters` have to agree.
pub const fn quorum(voters: usize) -> usize {
    voters / 2 + 1
}

impl MemberSet {
    /// The empty list of this cluster.
    pub fn of(cluster: ClusterId) -> Self {
        MemberSet {
            cluster: Some(cluster),
            ..MemberSet::default()
        }
    }

    /// The cluster that the list is of; none for a list that etcd did not tell.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.cluster
    }

    /// Adds a member in its place.
    pub fn insert(&mut self, member: Member) -> Result<(), InsertError> {
        match self.members.binary_search_by_key(&member.id, |it| it.id) {
            Ok(_) => Err(InsertError::DuplicateId),
            Err(index) => self
                .members
                .insert(index, member)
                .map_err(|_| InsertError::Full),
        }
    }

    /// All members, by ascending id.
    pub fn iter(&self) -> impl Iterator<Item = &Member> {
        self.members.iter()
    }

    /// The member with this name, if it has started once.
    pub fn named(&self, name: &str) -> Option<&Member> {
        self.members.iter().find(|it| it.name == name)
    }

    /// The voting members.
    pub fn voters(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|it| it.role == Role::Voter)
    }

    /// The member with this id.
    pub fn by_id(&self, id: MemberId) -> Option<&Member> {
        self.members.iter().find(|it| it.id == id)
    }

    /// The entry of a member: by its name, or by its peer URL while it has never started.
    pub fn entry(&self, name: &str, peer_url: &str) -> Option<&Member> {
        let unnamed = |it: &&Member| it.name.is_empty() && it.peer_url == peer_url;
        let named = self.named(name);
        named.or_else(|| self.members.iter().find(unnamed))
    }

    /// The members without a vote.
    pub fn learners(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|it| it.role != Role::Voter)
    }

    /// The same members; who was silent for so many seconds has failed.
    #[must_use]
    pub fn after(mut self, silences: &[Silence], grace_seconds: u64) -> Self {
        let failed = |it: &Member| {
            let long =
                |silence: &Silence| silence.member == it.id && silence.seconds >= grace_seconds;
            it.health != Health::Serving && silences.iter().any(long)
        };
        for member in &mut self.members {
            if failed(member) {
                member.health = Health::Failed;
            }
        }
        self
    }

    /// The same members with what [`Answer`]s tell: who answers serves, and a learner has caught up that
    /// holds nine tenths of the log that the furthest of them has (etcd's own measure for a promotion).
    #[must_use]
    pub fn with(mut self, answers: &[Answer]) -> Self {
        let reached = answers.iter().map(|it| it.raft_index).max().unwrap_or(0);
        for member in &mut self.members {
            let Some(answer) = answers.iter().find(|it| it.member == member.id) else {
                continue;
            };
            member.health = Health::Serving;
            if let Role::Learner { caught_up } = &mut member.role {
                *caught_up = answer.raft_index.saturating_mul(10) >= reached.saturating_mul(9);
            }
        }
        self
    }

    /// How many voters there are.
    pub fn voter_count(&self) -> usize {
        self.voters().count()
    }

    /// How many voters answer.
    pub fn serving_voters(&self) -> usize {
        self.voters()
            .filter(|it| it.health == Health::Serving)
            .count()
    }

    /// Whether a majority of the voters answers.
    pub fn has_quorum(&self) -> bool {
        self.failure_tolerance().is_some()
    }

    /// How many more voters may fail. `None` when quorum is already lost.
    pub fn failure_tolerance(&self) -> Option<usize> {
        self.serving_voters()
            .checked_sub(quorum(self.voter_count()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(healths: &[Health]) -> MemberSet {
        let mut members = MemberSet::default();
        for (id, health) in (1..).zip(healths) {
            let member = Member {
                id: MemberId(id),
                name: MemberName::new(),
                peer_url: PeerUrl::new(),
                role: Role::Voter,
                health: *health,
            };
            members.insert(member).unwrap();
        }
        members
    }

    #[test]
    fn quorum_is_a_majority_of_the_voters() {
        assert_eq!([1, 2, 3, 4, 5, 6, 7].map(quorum), [1, 2, 2, 3, 3, 4, 4]);
    }

    #[test]
    fn an_unknown_member_does_not_count_as_serving() {
        use Health::{Failed, Serving, Unknown};
        assert_eq!(set(&[Serving]).failure_tolerance(), Some(0));
        assert_eq!(set(&[Unknown]).failure_tolerance(), None);
        assert_eq!(
            set(&[Serving, Serving, Unknown]).failure_tolerance(),
            Some(0)
        );
        assert_eq!(set(&[Serving, Failed, Unknown]).failure_tolerance(), None);
    }

    #[test]
    fn a_member_list_is_never_cut_short() {
        let mut members = set(&[Health::Serving; MEMBERS_MAX]);
        let ninth = Member {
            id: MemberId(99),
            ..members.iter().next().unwrap().clone()
        };
        assert_eq!(members.insert(ninth), Err(InsertError::Full));
        let twice = members.iter().next().unwrap().clone();
        assert_eq!(members.insert(twice), Err(InsertError::DuplicateId));
    }

    #[test]
    fn a_time_is_written_as_others_write_it() {
        use time::format_description::well_known::Rfc3339;
        // Days around each end of a month, a year, a century and an era, and the step from day to day.
        let around = |at: i64| [-1, 0, 1].map(|it| at + it);
        let ends = (-719_528..719_528).step_by(29).map(|it| it * 86_400);
        for at in ends.flat_map(around).filter(|it| *it >= -62_167_219_200) {
            let other = time::OffsetDateTime::from_unix_timestamp(at).unwrap();
            assert_eq!(Timestamp(at).to_string(), other.format(&Rfc3339).unwrap());
        }
        for day in 0..150_000 {
            let at = Timestamp(day * 86_400);
            let other = time::OffsetDateTime::from_unix_timestamp(at.0).unwrap();
            assert_eq!(at.to_string()[..10], other.date().to_string());
        }
    }

    #[test]
    fn long_text_is_cut_at_a_character() {
        let text = "ä".repeat(300);
        assert!(detail(format_args!("{text}")).len() <= 320);
    }

    #[test]
    fn no_text_from_outside_moves_a_cursor_or_forges_a_line() {
        let text = "a\u{1b}[2J\nlevel=ERROR\r\u{85}b\t";
        assert_eq!(detail(format_args!("{text}!")), "a [2J level=ERROR  b !");
    }
}
