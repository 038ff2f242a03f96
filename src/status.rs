//! Computes the conditions that people and programs see, from specification, observation and plan.
//!
//! Available means that reads and writes are served. This module uses no serde;
//! [`crate::api::status`] is its form on the wire.

mod backup;
mod certificate;
mod degraded;
mod document;
mod progressing;

use crate::cluster::{Detail, Health, MemberId, Timestamp, detail};
use crate::host::{self, HostFacts};
use crate::observed::{
    Backups, Instance, Looker, Membership, Observed, Pairs, Process, Proposals, Reading, Writing,
};
use crate::plan::{Held, Hold, Plan};
use crate::spec::ClusterSpec;
use crate::start::Writable;

/// Kubernetes' three values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The statement holds.
    True,
    /// The statement does not hold.
    False,
    /// It could not be determined.
    Unknown,
}

/// What a condition is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Whether etcd serves reads and writes.
    Available,
    /// Whether a change is under way.
    Progressing,
    /// Whether something needs a person, or the cluster falls short of its specification.
    Degraded,
    /// Whether snapshots are taken and verified.
    BackupHealthy,
    /// Whether every certificate is usable.
    CertificatesValid,
    /// Whether the wall clock can be trusted.
    ClockTrusted,
    /// Whether the newest document is sound and no field of it is refused.
    DocumentAccepted,
    /// Whether the host needs no attention: its disk, its power supply, its kernel's settings.
    HostHealthy,
}

/// One statement about the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// What it is about.
    pub kind: Kind,
    /// Whether it holds.
    pub verdict: Verdict,
    /// One CamelCase word.
    pub reason: &'static str,
    /// The message for people.
    pub message: Detail,
}

/// One member, as people see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// The member as etcd lists it.
    pub member: crate::cluster::Member,
    /// Whether it leads.
    pub leader: bool,
    /// The version that it runs, where this process sees it.
    pub version: Option<crate::version::Version>,
    /// Entries of Raft's log that it has to catch up with the foremost, where it answers.
    pub lag: Option<u64>,
    /// Where people find it.
    pub placement: crate::observed::Placement,
}

impl MemberStatus {
    /// Whether it answers.
    pub fn serves(&self) -> bool {
        self.member.health == Health::Serving
    }
}

/// The status of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// All conditions, in the order of [`Kind`].
    pub conditions: [Condition; 8],
    /// Everything here is confirmed up to this time.
    pub confirmed_until: Timestamp,
    /// Members by id.
    pub members: heapless::Vec<MemberStatus, { crate::cluster::MEMBERS_MAX }>,
    /// Voters that answer.
    pub ready_members: u8,
    /// Voters that the document asks for.
    pub size: u8,
    /// Details of this process' own member.
    pub details: Option<crate::observed::Details>,
    /// The size in bytes that etcd lets its database grow to.
    pub quota: Option<u64>,
    /// The version that runs, of several the oldest; else the version that the cluster was born with.
    pub version: Option<crate::version::Version>,
    /// The next step in words, if there is one.
    pub next: Option<Detail>,
    /// Why the operator does nothing more.
    pub hold: Option<Held>,
    /// Seconds until the operator retries what is on hold, if a retry is scheduled.
    pub next_try: Option<u64>,
    /// The earliest end of a leaf in use, and whether it is provisional.
    pub certificates: Option<(Timestamp, bool)>,
    /// Snapshots, if the document configures a backup.
    pub backups: Option<Backups>,
}

impl Status {
    /// The condition of this kind.
    pub fn condition(&self, kind: Kind) -> &Condition {
        &self.conditions[kind as usize]
    }

    /// Whether reads and writes are served.
    pub fn is_available(&self) -> bool {
        self.condition(Kind::Available).verdict == Verdict::True
    }
}

/// People look for a member by its name; one that has none yet comes last.
fn order(it: &MemberStatus) -> (bool, &str, MemberId) {
    (it.member.name.is_empty(), &it.member.name, it.member.id)
}

/// Computes the status. Pure and total.
pub fn status(spec: &ClusterSpec, observed: &Observed, plan: &Plan) -> Status {
    let instance = observed.speaker();
    let stays = plan.held(observed);
    let held = stays.as_ref();
    let mut members = heapless::Vec::new();
    let mut ready_members = 0;
    let leader = instance
        .and_then(|it| it.service.details)
        .and_then(|it| it.leader);
    if let Membership::Known(set) | Membership::Unconfirmed(set) = &observed.membership {
        let indices = observed.instances.iter();
        let indices = indices.filter_map(|it| Some(it.service.answer()?.raft_index));
        let foremost = indices.max();
        for member in set.iter() {
            let member = crate::cluster::Member {
                name: spec.name_of(member).clone(),
                ..member.clone()
            };
            let of = observed.instance(&member.name);
            let answer = of.and_then(|it| it.service.answer());
            let _ = members.push(MemberStatus {
                leader: leader == Some(member.id),
                version: of.and_then(running_version),
                lag: answer.and_then(|it| Some(foremost? - it.raft_index)),
                placement: of.map(|it| it.placement.clone()).unwrap_or_default(),
                member,
            });
        }
        members.sort_unstable_by(|one: &MemberStatus, other| order(one).cmp(&order(other)));
    }
    if let Membership::Known(set) = &observed.membership {
        ready_members = u8::try_from(set.serving_voters()).unwrap_or(u8::MAX);
    }
    let next = match &plan.change {
        Ok(Some(permit)) => Some(permit.step().describe_of(observed)),
        _ => plan.first_step(observed),
    };
    Status {
        conditions: [
            available(spec, observed, held),
            progressing::progressing(spec, observed, plan, held),
            degraded::degraded(spec, observed, held),
            backup::healthy(spec, observed),
            certificate::valid(observed),
            certificate::clock_trusted(observed.clock),
            document::accepted(spec, observed, held),
            host_healthy(observed.host.as_ref()),
        ],
        confirmed_until: observed.now,
        members,
        ready_members,
        size: spec.size,
        details: instance.and_then(|it| it.service.details),
        quota: instance.and_then(|it| Some(it.facts.identity.as_ref()?.quota)),
        version: observed.instances.iter().filter_map(running_version).min(),
        next,
        next_try: match held.map(|it| &it.hold) {
            Some(Hold::RestoreFailed(_)) => observed.backups.restore_retry_in,
            _ => None,
        },
        hold: stays,
        certificates: instance.and_then(|it| {
            let made = !matches!(it.certificates.pairs, Pairs::Missing | Pairs::Broken);
            made.then_some((it.certificates.not_after, it.certificates.provisional))
        }),
        backups: spec.backup.is_some().then(|| observed.backups.clone()),
    }
}

fn running_version(instance: &Instance) -> Option<crate::version::Version> {
    match instance.process {
        Process::Running { version, .. } => Some(version),
        _ => instance.facts.identity.as_ref().map(|it| it.version),
    }
}

fn condition(kind: Kind, verdict: Verdict, reason: &'static str, message: Detail) -> Condition {
    Condition {
        kind,
        verdict,
        reason,
        message,
    }
}

/// etcd serves, and clients do not reach it.
const UNREACHED: &str = "ServiceNotReached";

/// Only a successful read and a successful write together count (promise 3, rule D7).
fn available(spec: &ClusterSpec, observed: &Observed, held: Option<&Held>) -> Condition {
    let no = |reason, message| condition(Kind::Available, Verdict::False, reason, message);
    let unknown = |reason, message| condition(Kind::Available, Verdict::Unknown, reason, message);
    let Some(instance) = observed.speaker() else {
        return unknown(
            "NotObserved",
            detail(format_args!("the operator has not observed the member yet")),
        );
    };
    if !matches!(instance.process, Process::Running { .. }) {
        return not_running(spec, observed, instance, held);
    }
    if let Some(Hold::ForeignCluster(_)) = held.map(|it| &it.hold) {
        return no(
            "ForeignCluster",
            detail(format_args!("another cluster answers")),
        );
    }
    if let Some(told) = not_served(instance) {
        return match held.map(|it| &it.hold) {
            Some(it @ (Hold::UnexpectedMember { quorum: false, .. } | Hold::MajorityLost(..))) => {
                no(it.reason(), detail(format_args!("{it}")))
            }
            _ => no(told.0, told.1),
        };
    }
    if let Reading::NotPermitted(why) = &instance.service.read {
        return unknown(
            "AuthEnabled",
            detail(format_args!(
                "etcd answers, but its own auth does not let the operator prove reads and writes: {why}"
            )),
        );
    }
    match &instance.service.write {
        Writing::NotTried if observed.looker == Looker::Command => unknown(
            "WriteNotProven",
            detail(format_args!(
                "reads are served; no operator runs to try a write"
            )),
        ),
        Writing::NotTried => unknown(
            "WriteNotProven",
            detail(format_args!("reads are served; a write is being tried")),
        ),
        Writing::Failed(why) => no(
            "WritesRefused",
            detail(format_args!("a write failed: {why}")),
        ),
        Writing::Acknowledged
            if instance
                .service
                .details
                .is_some_and(|it| it.leader.is_none()) =>
        {
            no("NoLeader", detail(format_args!("there is no leader")))
        }
        Writing::Acknowledged => match &observed.unreached {
            Some(why) => no(UNREACHED, why.clone()),
            None => condition(
                Kind::Available,
                Verdict::True,
                "Serving",
                detail(format_args!("reads and writes are served")),
            ),
        },
    }
}

/// Availability while etcd does not run.
fn not_running(
    spec: &ClusterSpec,
    observed: &Observed,
    instance: &Instance,
    held: Option<&Held>,
) -> Condition {
    let no = |reason, message| condition(Kind::Available, Verdict::False, reason, message);
    match (instance.process, held) {
        (Process::Unknown, Some(held)) if held.hold == Hold::Terminating => condition(
            Kind::Available,
            Verdict::Unknown,
            held.hold.reason(),
            held.words.clone(),
        ),
        (Process::Unknown, _) => condition(
            Kind::Available,
            Verdict::Unknown,
            "NotObserved",
            detail(format_args!(
                "the operator could not tell whether etcd runs"
            )),
        ),
        (Process::Stopped, _) if spec.size == 0 => no(
            "SizeZero",
            detail(format_args!(
                "size is 0: etcd is stopped, everything is kept"
            )),
        ),
        (_, Some(held)) => no(held.hold.reason(), held.words.clone()),
        (_, None) if observed.looker == Looker::Command => no(
            "NoOperator",
            detail(format_args!(
                "etcd does not run, and no operator runs to start it"
            )),
        ),
        (_, None) => no("Starting", detail(format_args!("the operator starts etcd"))),
    }
}

/// Whether etcd has not served yet but started so recently that it may still come up.
fn is_young(instance: &Instance) -> bool {
    instance.service.write == Writing::NotTried && instance.process.is_young()
}

/// A member that joins is no fault.
fn joining() -> (&'static str, Detail) {
    let text = detail(format_args!(
        "the member has joined and does not serve clients yet"
    ));
    ("Starting", text)
}

/// Why reads or writes are known not to be served, worst first.
fn not_served(instance: &Instance) -> Option<(&'static str, Detail)> {
    let service = &instance.service;
    match &service.read {
        Reading::NotTried => {
            return Some(("Starting", detail(format_args!("etcd was just started"))));
        }
        Reading::TimedOut => {
            return Some((
                "NoAnswer",
                detail(format_args!("etcd runs but does not answer reads")),
            ));
        }
        Reading::Failed(_) if is_young(instance) => {
            return Some(("Starting", detail(format_args!("etcd was just started"))));
        }
        Reading::Joining(_) => return Some(joining()),
        Reading::Failed(why) => {
            return Some(("ReadsRefused", detail(format_args!("a read failed: {why}"))));
        }
        Reading::Answered | Reading::NotPermitted(_) => {}
    }
    if service.alarms.corrupt {
        return Some((
            "Corrupt",
            detail(format_args!("etcd raised the CORRUPT alarm")),
        ));
    }
    if service.alarms.no_space {
        return Some((
            "NoSpace",
            detail(format_args!(
                "the database has reached its quota: etcd refuses writes"
            )),
        ));
    }
    match instance.writable {
        Writable::Yes => {}
        Writable::ReadOnly => {
            return Some((
                "FilesystemReadOnly",
                detail(format_args!("the data's file system is read-only")),
            ));
        }
        Writable::Stalled => {
            return Some((
                "FilesystemStalled",
                detail(format_args!("the data's file system does not answer")),
            ));
        }
        Writable::Denied => {
            return Some((
                "StorageDenied",
                detail(format_args!(
                    "the operator's user may not write to the data's directory"
                )),
            ));
        }
        Writable::Missing => {
            return Some((
                "StorageMissing",
                detail(format_args!("the data's directory is gone")),
            ));
        }
    }
    if service.proposals == Proposals::Stuck {
        return Some((
            "ProposalsStuck",
            detail(format_args!("etcd proposes writes but does not apply them")),
        ));
    }
    None
}

/// Reports the worst problem of the host that a person should fix. `preflight` prints all of them.
fn host_healthy(facts: Option<&HostFacts>) -> Condition {
    let told = |verdict, reason, message| condition(Kind::HostHealthy, verdict, reason, message);
    let Some(facts) = facts else {
        let message = detail(format_args!("the operator has not checked the host"));
        return told(Verdict::Unknown, "NotObserved", message);
    };
    let findings = host::judge(facts);
    match host::worst(&findings) {
        Some(it) => {
            let message = detail(format_args!(
                "{}: {}; next: {}",
                it.check, it.found, it.next
            ));
            told(Verdict::False, it.reason, message)
        }
        None => told(Verdict::True, "Sound", host::sound(facts)),
    }
}
