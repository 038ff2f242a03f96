//! Plans in words: a reason for programs, sentences and a next step for people.

mod steps;

use core::fmt;

use super::version::{First, LOWERS_WITHIN_SECONDS};
use super::{Hold, space};
use crate::cluster::{Detail, MemberId, OPERATOR, detail};
use crate::observed::{Predecessor, Reach, RestorePhase};
use crate::start::Refusal;

impl Hold {
    /// Whether the member list may be another cluster's, or is not to be trusted.
    pub(super) fn is_foreign(&self) -> bool {
        matches!(
            self,
            Hold::Start(Refusal::DocumentOfAnotherCluster(_))
                | Hold::ForeignProcess(_)
                | Hold::ForeignCluster(_)
                | Hold::Corrupt
        )
    }

    /// Whether it only says that votes of others are missing.
    pub(super) fn misses_votes(&self) -> bool {
        matches!(self, Hold::QuorumLost | Hold::Unreachable)
    }

    /// Whether it keeps one member, and no other for the same reason.
    pub(super) fn is_of_one(&self) -> bool {
        matches!(
            self,
            Hold::Start(_)
                | Hold::ForeignProcess(_)
                | Hold::Terminating
                | Hold::ForeignCluster(_)
                | Hold::ClaimDeleted
        )
    }

    /// Whether somebody paused the operator.
    pub fn is_pause(&self) -> bool {
        matches!(self, Hold::Paused | Hold::PausedFor(..))
    }

    /// One CamelCase word for conditions, metrics and scripts.
    pub fn reason(&self) -> &'static str {
        match self {
            Hold::Paused | Hold::PausedFor(..) => "Paused",
            Hold::Unreachable => "Unreachable",
            Hold::QuorumLost | Hold::MajorityLost(..) => "QuorumLost",
            Hold::LearnerBehind => "LearnerBehind",
            Hold::OutageNotDeclared => "OutageNotDeclared",
            Hold::MemberFailed(_) => "MemberFailed",
            Hold::TooManyMembers => "TooManyMembers",
            Hold::UnexpectedMember { .. } => "UnexpectedMember",
            Hold::AuthEnabled => "AuthEnabled",
            Hold::Start(refusal) => refusal.reason(),
            Hold::NoVersion => "NoVersion",
            Hold::VersionLosesData(..) => "VersionLosesData",
            Hold::VersionUnsupported(_) => "VersionUnsupported",
            Hold::UpgradeNotAllowed { .. } => "UpgradeNotAllowed",
            Hold::UpgradeNeedsBackup(_) => "UpgradeNeedsBackup",
            Hold::UpgradeStuck(..) => "UpgradeStuck",
            Hold::UpgradeNotRehearsed(..) => "UpgradeNotRehearsed",
            Hold::UpgradeFailed(..) => "UpgradeFailed",
            Hold::DowngradeStalled(..) => "DowngradeStalled",
            Hold::VersionsDiffer(..) => "VersionsDiffer",
            Hold::ForeignProcess(_) => "ForeignProcess",
            Hold::Terminating => "Terminating",
            Hold::ClaimDeleted => "ClaimDeleted",
            Hold::ForeignCluster(_) => "ForeignCluster",
            Hold::NoSpace => "NoSpace",
            Hold::QuotaSmaller { .. } => "QuotaSmaller",
            Hold::LiveDataFillsQuota { .. } => "LiveDataFillsQuota",
            Hold::AuthorityDamaged => "AuthorityDamaged",
            Hold::Corrupt => "Corrupt",
            Hold::SnapshotsFound(_) => "SnapshotsFound",
            Hold::SnapshotsUnknown(_) => "SnapshotsUnknown",
            Hold::Restoring(_) => "Restoring",
            Hold::RestoreFailed(_) => "RestoreFailed",
        }
    }

    /// What a person does next.
    #[expect(clippy::too_many_lines, reason = "a table: one row for each hold")]
    pub fn next_step(&self) -> Detail {
        match self {
            Hold::Start(refusal) => refusal.next_step(),
            Hold::Paused => detail(format_args!("set paused: false")),
            Hold::PausedFor(..) => detail(format_args!(
                "wait until the pause ends, or run: etcd-operator resume"
            )),
            Hold::Unreachable | Hold::QuorumLost => {
                detail(format_args!("bring back the members that do not answer"))
            }
            Hold::MajorityLost(..) => detail(format_args!(
                "bring them back, their nodes first; if they are lost for good, restore the newest snapshot in place (an EtcdRestore with replaceData), which loses what was written since"
            )),
            Hold::LearnerBehind => {
                detail(format_args!("wait, or check the network to the new member"))
            }
            Hold::OutageNotDeclared => detail(format_args!(
                "ask for the interruption: edit a field that needs a restart, or run a command such as restore"
            )),
            Hold::MemberFailed(_) => detail(format_args!(
                "bring it back, or set recovery.member: replace"
            )),
            Hold::TooManyMembers => detail(format_args!("remove members with etcdctl")),
            Hold::UnexpectedMember {
                member,
                quorum: true,
                ..
            } => detail(format_args!("remove it: etcdctl member remove {member}")),
            Hold::UnexpectedMember { member, .. } => detail(format_args!(
                "start the member that was added, then remove it (etcdctl member remove {member}); or restore a snapshot in place: etcd-operator restore --from latest, or an EtcdRestore"
            )),
            Hold::AuthEnabled => detail(format_args!(
                "make the operator a user: as root, etcdctl user add {OPERATOR} --no-password, then etcdctl user grant-role {OPERATOR} root; or etcdctl auth disable. Root's certificate: etcd-operator certs issue root, in Kubernetes clients: [{{name: root}}]"
            )),
            Hold::NoVersion => detail(format_args!(
                "set version, and run: etcd-operator etcd install VERSION; or mount the disk that holds the store"
            )),
            Hold::VersionLosesData(..) | Hold::VersionUnsupported(_) => {
                detail(format_args!("choose the newest patch of 3.5, 3.6 or 3.7"))
            }
            Hold::UpgradeNotAllowed { first, .. } => match first {
                First::Patch(line, patch) => detail(format_args!(
                    "set version to {line}.{patch} or a newer patch of {line} first"
                )),
                First::Line(line) => detail(format_args!("set version to a patch of {line} first")),
                First::Instead(line, patch) => detail(format_args!(
                    "set version to {line}.{patch} or a newer patch of {line}"
                )),
            },
            Hold::UpgradeNeedsBackup(_) => detail(format_args!(
                "add backup to the document; the least is destinations: [{{local: {{}}}}]"
            )),
            Hold::UpgradeStuck(_, _, None) => detail(format_args!(
                "set version to another patch of this line; etcd-operator explain UpgradeStuck tells the way back by a snapshot"
            )),
            Hold::UpgradeStuck(_, _, Some(back)) => detail(format_args!(
                "set version to another patch of this line; or to an older line, and restore r{}, which {}: etcd-operator explain UpgradeStuck",
                back.revision,
                Writes(back.lacks)
            )),
            Hold::UpgradeNotRehearsed(to, _) => detail(format_args!(
                "remove the cause: the operator tries again by itself; or skip the trial of this version: upgrade: {{skipRehearsal: {to}}}"
            )),
            Hold::UpgradeFailed(to, _) => detail(format_args!(
                "set version back, or to another one than {to}; any edit of the document makes the operator try again"
            )),
            Hold::DowngradeStalled(from, _) => detail(format_args!(
                "set version back to {from}, which ends the downgrade; from this data only a snapshot may lead back: etcd-operator explain DowngradeStalled"
            )),
            Hold::VersionsDiffer(old, new) => {
                detail(format_args!("set version to {new}, or to {old}"))
            }
            Hold::ForeignProcess(Some(pid)) => detail(format_args!("see what it is: ps -fp {pid}")),
            Hold::ForeignProcess(None) => {
                detail(format_args!("find who holds the lock: fuser member.lock"))
            }
            Hold::Terminating => detail(format_args!(
                "see what keeps it, a finalizer or a lost node: etcd-operator explain Terminating"
            )),
            Hold::ClaimDeleted => detail(format_args!(
                "of several members, delete the Pod, and another one takes its place; an only one: take a snapshot with an EtcdBackup, delete the Pod, and restore the snapshot with an EtcdRestore"
            )),
            Hold::ForeignCluster(_) => detail(format_args!("find what else serves on this port")),
            Hold::NoSpace => detail(format_args!(
                "compact, defragment and disarm with etcdctl, set maintenance.onNoSpace: repair, or raise storage.quota"
            )),
            Hold::QuotaSmaller { in_force, .. } => detail(format_args!(
                "set storage.quota: {}Mi or more, or leave it out",
                in_force.div_ceil(1 << 20)
            )),
            Hold::LiveDataFillsQuota { in_use, .. } => detail(format_args!(
                "raise storage.quota to {}Mi or more (one restart of etcd), or delete keys; the operator then accepts writes again",
                space::quota_for(*in_use)
            )),
            Hold::AuthorityDamaged => detail(format_args!(
                "put peer-ca and client-ca back from a copy; or move the damaged one aside: the operator makes a new CA, and every client needs a new certificate"
            )),
            Hold::Corrupt => detail(format_args!(
                "compare the members' hashes; restore the one that differs"
            )),
            Hold::SnapshotsFound(_) => detail(format_args!(
                "bring its data back: set bootstrap: {{from: latest}} and, if you know its signer, backup.trustedSigners; or begin with nothing: bootstrap: {{from: empty}}; then systemctl reload etcd-operator (SIGHUP)"
            )),
            Hold::SnapshotsUnknown(_) => detail(format_args!(
                "mount the disk or create the directory: the operator notices it by itself; or set bootstrap: {{from: empty}} to begin with nothing, or from: latest to wait for a snapshot"
            )),
            Hold::Restoring(_) => detail(format_args!("wait until the restore ends")),
            Hold::RestoreFailed(_) => detail(format_args!(
                "remove the cause (to retry at once: systemctl reload etcd-operator, or SIGHUP; in Kubernetes edit the document); or restore by hand: etcd-operator restore --from FILE, or an EtcdRestore"
            )),
        }
    }
}

impl fmt::Display for Hold {
    #[expect(clippy::too_many_lines, reason = "a table: one row for each hold")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Hold::Start(refusal) => write!(f, "{refusal}"),
            Hold::Paused => write!(f, "the document sets paused: true"),
            Hold::PausedFor(_, Some(until)) => {
                write!(f, "a person paused the operator until {until}")
            }
            Hold::PausedFor(seconds, None) => {
                write!(
                    f,
                    "a person paused the operator for {} min",
                    seconds.div_ceil(60)
                )
            }
            Hold::Unreachable => write!(f, "no member answers, so nothing is changed"),
            Hold::QuorumLost => write!(
                f,
                "a majority of the members does not answer, or would not after the step"
            ),
            Hold::MajorityLost(0, voters, _) => write!(
                f,
                "no majority of the {voters} voting members has a leader: without one nothing is written"
            ),
            Hold::MajorityLost(count, voters, silent) => write!(
                f,
                "{count} of {voters} members do not answer ({silent}): without a majority nothing is written"
            ),
            Hold::LearnerBehind => write!(f, "the new member has not caught up yet"),
            Hold::OutageNotDeclared => write!(
                f,
                "the step would interrupt the only member, and nobody asked for that"
            ),
            Hold::MemberFailed(member) => write!(
                f,
                "the member {member} has failed, and the document says recovery.member: hold"
            ),
            Hold::TooManyMembers => {
                write!(f, "etcd lists more members than this operator can manage")
            }
            Hold::UnexpectedMember {
                member,
                peer_url,
                learner,
                quorum,
            } => unexpected(f, *member, peer_url, *learner, *quorum),
            Hold::AuthEnabled => write!(
                f,
                "etcd's own auth is enabled and does not let the operator read: the operator cannot prove writes, take snapshots or free space"
            ),
            Hold::NoVersion => write!(
                f,
                "the document names no version, and the store holds no supported one"
            ),
            Hold::VersionLosesData(version, bug) => {
                write!(f, "the operator gives no data to etcd {version}: {bug}")
            }
            Hold::VersionUnsupported(version) => {
                write!(
                    f,
                    "etcd {version} is not supported; this operator supports 3.5, 3.6 and 3.7"
                )
            }
            Hold::UpgradeNotAllowed { from, to, .. } => {
                write!(f, "etcd {to} cannot follow etcd {from}, which runs on")
            }
            Hold::UpgradeNeedsBackup(to) => write!(
                f,
                "only a snapshot leads back from the line of etcd {to}, and the document has no backup"
            ),
            Hold::UpgradeStuck(to, why, _) => write!(
                f,
                "etcd {to} does not serve the data, which no older line can open any more: {why}"
            ),
            Hold::UpgradeNotRehearsed(to, why) => write!(
                f,
                "etcd {to} could not be tried on a copy of the data, and nothing was touched: {why}"
            ),
            Hold::UpgradeFailed(to, why) => write!(
                f,
                "etcd {to} did not serve this data, so the version before runs: {why}"
            ),
            Hold::DowngradeStalled(from, to) => write!(
                f,
                "etcd {from} was told more than {} min ago to lower its data for etcd {to}, and has not: it serves on",
                LOWERS_WITHIN_SECONDS / 60
            ),
            Hold::VersionsDiffer(old, new) => write!(
                f,
                "members have etcd {old} and {new}, and the document names no version"
            ),
            Hold::ForeignProcess(Some(pid)) => {
                write!(
                    f,
                    "process {pid} holds the member's lock and is not the etcd that the operator started"
                )
            }
            Hold::ForeignProcess(None) => write!(f, "an unknown process holds the member's lock"),
            Hold::Terminating => write!(f, "the member's Pod was asked to end and is still there"),
            Hold::ClaimDeleted => write!(
                f,
                "somebody deleted the claim of the data: Kubernetes removes it, with the data, as soon as no Pod uses it, so the operator stops none"
            ),
            Hold::ForeignCluster(id) => {
                write!(f, "another cluster, {id}, answers on this cluster's port")
            }
            Hold::NoSpace => write!(
                f,
                "the database has reached its quota and etcd refuses writes"
            ),
            Hold::QuotaSmaller {
                in_force,
                database,
                asked,
            } => smaller_quota(f, *in_force, *database, *asked),
            Hold::LiveDataFillsQuota { in_use, quota } => full_of_live_data(f, *in_use, *quota),
            Hold::AuthorityDamaged => write!(
                f,
                "a CA under tls cannot be read or cannot sign: no certificate can be renewed"
            ),
            Hold::Corrupt => write!(
                f,
                "etcd raised the CORRUPT alarm: members disagree on the data"
            ),
            Hold::SnapshotsFound(it) => found(f, it),
            Hold::SnapshotsUnknown(why) => write!(
                f,
                "no cluster exists here yet, and the operator cannot see whether snapshots of its name exist: {why}"
            ),
            Hold::Restoring(phase) => write!(f, "a restore is under way: {}", words(*phase)),
            Hold::RestoreFailed(why) => {
                write!(
                    f,
                    "the document asks for a snapshot's data, which could not be restored: {why}"
                )
            }
        }
    }
}

fn unexpected(
    f: &mut fmt::Formatter<'_>,
    member: MemberId,
    peer_url: &str,
    learner: bool,
    quorum: bool,
) -> fmt::Result {
    let what = if learner { "learner" } else { "voter" };
    let at = if peer_url.is_empty() {
        "unknown"
    } else {
        peer_url
    };
    write!(
        f,
        "somebody added {what} {member} (peer URL {at}), which the document does not ask for"
    )?;
    if quorum {
        return Ok(());
    }
    write!(
        f,
        ": without its vote there is no majority, and no read or write is served"
    )
}

fn full_of_live_data(f: &mut fmt::Formatter<'_>, in_use: u64, quota: u64) -> fmt::Result {
    let (in_use, quota) = (in_use >> 20, quota >> 20);
    write!(
        f,
        "{in_use} MiB of the quota's {quota} MiB are live data: compacting and defragmenting regains nothing"
    )
}

fn smaller_quota(
    f: &mut fmt::Formatter<'_>,
    in_force: u64,
    database: Option<u64>,
    asked: u64,
) -> fmt::Result {
    let (asked, in_force) = (asked >> 20, in_force >> 20);
    write!(
        f,
        "the document asks for a quota of {asked} MiB, and {in_force} MiB are in force"
    )?;
    if let Some(bytes) = database {
        let taken = bytes.div_ceil(1 << 20);
        write!(f, ", of which the database takes {taken} MiB")?;
    }
    write!(f, ": a quota only grows")
}

fn found(f: &mut fmt::Formatter<'_>, it: &Predecessor) -> fmt::Result {
    let (plural, one) = if it.count == 1 {
        ("", "it")
    } else {
        ("s", "the newest")
    };
    write!(
        f,
        "no cluster exists here yet, and {} holds {} verified snapshot{plural} of its name: {one} is at revision {}",
        it.place, it.count, it.newest.revision
    )?;
    match it.newest.created {
        Some(at) => write!(f, ", of {at}")?,
        None => write!(f, ", of an unknown time")?,
    }
    match &it.signer {
        Some(key) => write!(f, ", signed by {key}"),
        None => write!(f, ", signed by nobody"),
    }
}

fn words(phase: RestorePhase) -> &'static str {
    match phase {
        RestorePhase::Requested => "the operator verifies the snapshot and makes new data from it",
        RestorePhase::Prepared => "the new data is ready",
        RestorePhase::Swapping => "the operator puts the new data in place of the old data",
        RestorePhase::Starting => "etcd starts with the new data",
        RestorePhase::Undoing => "the operator puts the old data back",
    }
}

/// How many writes, as far as that is known.
struct Writes(Reach);

impl fmt::Display for Writes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Reach {
            at_least, at_most, ..
        } = self.0;
        match (at_least, at_most) {
            (_, Some(0)) => return write!(f, "lacks no write"),
            (None | Some(0), None) => {
                return write!(f, "may lack writes, nobody knows how many");
            }
            (None | Some(0), Some(most)) => write!(f, "lacks at most {most}")?,
            (Some(least), Some(most)) if least < most => write!(f, "lacks {least} to {most}")?,
            (Some(least), None) => write!(f, "lacks at least {least}")?,
            (Some(_), Some(most)) => write!(f, "lacks {most}")?,
        }
        let one = at_most.or(at_least) == Some(1);
        write!(f, " write{}", if one { "" } else { "s" })
    }
}
