//! Decides what an edit of the document does, field by field, in the present state of a cluster. Pure:
//! `diff`, `plan`, the agent's answer to a reload and the planner all use it, so they agree.

use core::cmp::Ordering;
use core::fmt;
use core::time::Duration;

use super::end::{ENDS_BY_ITSELF, ENDS_WITHIN};
use super::{Hold, space, version};
use crate::cluster::{Detail, detail};
use crate::observed::{Instance, Process};
use crate::spec::ClusterSpec;
use crate::spec::field::{Class, There};
use crate::start::{Binary, Identity, Refusal};
use crate::version::{Class as Grade, Version, classify};

/// The state of the cluster at an edit.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// The identity of the cluster; `None`: no cluster exists yet.
    pub identity: Option<&'a Identity>,
    /// The version of the running etcd.
    pub running: Option<Version>,
    /// The quota that is in force, in bytes.
    pub quota: u64,
    /// The size of the database file in bytes, if etcd reports it.
    pub database: Option<u64>,
    /// The binary of the document's version.
    pub binary: Option<Binary>,
    /// The version that is not tried again with this very document, and why.
    pub failed: Option<(Version, &'a Detail)>,
    /// Why etcd could not start with the document's settings, if that is known.
    pub refusal: Option<&'a Refusal>,
    /// How long the last start of etcd took, in milliseconds.
    pub start_took: Option<u64>,
    /// It never served, does not run and has no data: the document's version counts.
    pub unserved: bool,
    /// How many members there are, in Kubernetes; none on a host.
    pub members: Option<u8>,
    /// What the document asks for.
    pub asked: &'a ClusterSpec,
}

/// Restarts of etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restarts {
    /// The last start took this many milliseconds.
    pub took: Option<u64>,
    /// Members that are restarted, one after the other.
    pub members: u8,
}

impl Restarts {
    /// For people. `version`: another one is started. `ends`: how long each may take to end.
    fn write(
        self,
        f: &mut fmt::Formatter<'_>,
        version: Option<Version>,
        ends: Duration,
    ) -> fmt::Result {
        match self.members {
            0 | 1 => write!(f, "restarts etcd once")?,
            count => write!(
                f,
                "restarts {count} members one after the other, the leader last"
            )?,
        }
        if let Some(version) = version {
            write!(f, " with {version}")?;
        }
        let each = if self.members > 1 { "each " } else { "" };
        write!(f, ": {each}up to {} s to stop, ", ends.as_secs())?;
        match self.took.map(|it| it.div_ceil(100)) {
            None => write!(f, "about a second to start"),
            Some(tenths) => write!(f, "about {}.{} s to start", tenths / 10, tenths % 10),
        }
    }
}

const ON_A_HOST: Effect = Effect::Nothing("it has no effect on a host");

/// What an edit of one field does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The cluster is created with it.
    Birth,
    /// It does nothing, for this reason.
    Nothing(&'static str),
    /// It takes effect at once; etcd runs on.
    Live,
    /// The same, with a directory that the operator's unit may have to be restarted for.
    LiveDirectory,
    /// It takes effect when etcd starts the next time.
    NextStart,
    /// etcd is restarted once.
    Restart(Restarts),
    /// etcd is restarted once with another version.
    Upgrade {
        /// That one.
        to: Version,
        /// Of what.
        restarts: Restarts,
        /// How its line compares with the one before.
        line: Ordering,
        /// The version is tried on a copy of the data before.
        rehearsed: bool,
    },
    /// etcd is stopped, everything is kept.
    Stop,
    /// etcd is started.
    Start,
    /// There are more members, or fewer.
    Resize {
        /// So many.
        from: u8,
        /// The document's.
        to: u8,
    },
    /// It waits; etcd runs on with the settings in force.
    Waits(Hold),
    /// The operator never does it.
    Refused(Hold),
}

impl Effect {
    /// One word for programs.
    pub fn name(&self) -> &'static str {
        match self {
            Effect::Birth => "birth",
            Effect::Nothing(_) => "nothing",
            Effect::Live | Effect::LiveDirectory => "live",
            Effect::NextStart => "nextStart",
            Effect::Restart(_) => "restart",
            Effect::Upgrade { .. } => "upgrade",
            Effect::Stop => "stop",
            Effect::Start => "start",
            Effect::Resize { .. } => "resize",
            Effect::Waits(_) => "waits",
            Effect::Refused(_) => "refused",
        }
    }

    /// Why the edit is not carried out, if it is not.
    pub fn hold(&self) -> Option<&Hold> {
        match self {
            Effect::Waits(hold) | Effect::Refused(hold) => Some(hold),
            _ => None,
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Effect::Birth => write!(f, "the cluster is created with it"),
            Effect::Nothing(why) => write!(f, "nothing: {why}"),
            Effect::Live => write!(f, "takes effect at once; etcd runs on"),
            Effect::LiveDirectory => write!(
                f,
                "takes effect at once; under systemd, a new directory needs: systemctl restart etcd-operator; etcd runs on"
            ),
            Effect::NextStart => write!(f, "takes effect when etcd starts the next time"),
            Effect::Restart(it) => it.write(f, None, ENDS_WITHIN),
            Effect::Upgrade {
                to,
                restarts,
                line,
                rehearsed,
            } => {
                if *line == Ordering::Less {
                    write!(f, "has etcd lower the version of its data, ")?;
                }
                if *rehearsed {
                    write!(
                        f,
                        "takes a snapshot, starts etcd {to} on a copy of the data, then "
                    )?;
                }
                let ends = match line {
                    Ordering::Equal => ENDS_WITHIN,
                    _ => ENDS_BY_ITSELF,
                };
                restarts.write(f, Some(*to), ends)?;
                if !*rehearsed {
                    write!(f, ", without a trial on a copy of the data")?;
                }
                if *line == Ordering::Greater {
                    write!(
                        f,
                        "; once it serves, only etcd's own downgrade or a snapshot leads back"
                    )?;
                }
                Ok(())
            }
            Effect::Stop => write!(f, "stops etcd; everything is kept"),
            Effect::Start => write!(f, "starts etcd"),
            Effect::Resize { from, to } if from < to => {
                write!(f, "adds {} to {from}; etcd runs on", Members(to - from))
            }
            Effect::Resize { from, to } => write!(
                f,
                "removes {} of {from}; their claims are kept, and etcd runs on",
                Members(from - to)
            ),
            Effect::Waits(hold) => write!(f, "waits: {}: {hold}", hold.reason()),
            Effect::Refused(hold) => write!(f, "refused: {}: {hold}", hold.reason()),
        }
    }
}

struct Members(u8);

impl fmt::Display for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.0 == 1 { "" } else { "s" };
        write!(f, "{} member{plural}", self.0)
    }
}

/// What an edit of a field of this class does.
pub fn effect(class: Class, situation: &Situation<'_>) -> Effect {
    let asked = situation.asked;
    let unborn = situation.identity.is_none() || class == Class::Version && situation.unserved;
    let Some(identity) = situation.identity.filter(|_| !unborn) else {
        return match (class, asked.version.map(|it| (it, classify(it)))) {
            (Class::Kubernetes(_), _) if situation.members.is_none() => ON_A_HOST,
            (Class::Version, Some((it, Grade::NeverCreate(bug)))) => {
                Effect::Refused(Hold::VersionLosesData(it, bug))
            }
            (Class::Version, Some((it, Grade::TooOld | Grade::Unknown))) => {
                Effect::Refused(Hold::VersionUnsupported(it))
            }
            _ => Effect::Birth,
        };
    };
    match class {
        Class::Kubernetes(_) if situation.members.is_none() => ON_A_HOST,
        Class::Kubernetes(There::Live) => Effect::Live,
        Class::Kubernetes(There::Pod) => restart(situation),
        Class::Kubernetes(There::Claim) => Effect::Nothing("a claim that is there stays as it is"),
        Class::Birth => Effect::Nothing("it is read only when the cluster is created"),
        Class::Live | Class::Unsupported => Effect::Live,
        Class::Directory => Effect::LiveDirectory,
        Class::NextStart => Effect::NextStart,
        Class::Size if asked.paused => Effect::Waits(Hold::Paused),
        Class::Size if asked.size == 0 => Effect::Stop,
        Class::Size => match situation.members.filter(|it| *it > 0) {
            Some(from) => Effect::Resize {
                from,
                to: asked.size,
            },
            None => Effect::Start,
        },
        Class::Version => {
            let from = situation.running.unwrap_or(identity.version);
            match asked.version {
                Some(to) if to != from => upgrade(situation, from, to),
                _ => Effect::Nothing("it is the version that is in force"),
            }
        }
        Class::Quota => match asked.quota {
            Some(quota) if quota > situation.quota => restart(situation),
            Some(quota) if quota < situation.quota => Effect::Refused(Hold::QuotaSmaller {
                in_force: situation.quota,
                database: situation.database,
                asked: quota,
            }),
            _ => Effect::Nothing("it is the quota that is in force"),
        },
        Class::Restart | Class::Moved => restart(situation),
    }
}

/// What an edit of the cluster's name does.
pub fn rename(situation: &Situation<'_>) -> Effect {
    match situation.identity {
        None => Effect::Birth,
        Some(it) => {
            let lives_here = it.cluster.clone();
            Effect::Refused(Hold::Start(Refusal::DocumentOfAnotherCluster(lives_here)))
        }
    }
}

fn upgrade(situation: &Situation<'_>, from: Version, to: Version) -> Effect {
    if let Err(hold) = version::hop(from, to) {
        return Effect::Refused(hold);
    }
    if let Some((failed, why)) = situation.failed
        && failed == to
    {
        return Effect::Waits(Hold::UpgradeFailed(to, why.clone()));
    }
    if let Some(refusal) = situation.binary.and_then(|it| it.refusal(to, true)) {
        return Effect::Waits(Hold::Start(refusal));
    }
    // As the planner has it: of a newer line only a snapshot leads back, and in Kubernetes the worker alone keeps one.
    if to.is_newer_line_than(from)
        && situation.members.is_some()
        && situation.asked.backup.is_none()
    {
        return Effect::Waits(Hold::UpgradeNeedsBackup(to));
    }
    let line = to.line().cmp(&from.line());
    let restarts = match restart(situation) {
        Effect::Restart(it) => it,
        Effect::NextStart => restarts(situation),
        other => return other,
    };
    Effect::Upgrade {
        to,
        restarts,
        line,
        rehearsed: situation.asked.skip_rehearsal != Some(to),
    }
}

fn restart(situation: &Situation<'_>) -> Effect {
    if let Some(refusal) = situation.refusal {
        return Effect::Waits(Hold::Start(refusal.clone()));
    }
    match situation.running {
        None => Effect::NextStart,
        Some(_) if situation.asked.paused => Effect::Waits(Hold::Paused),
        Some(_) if situation.asked.size == 0 => Effect::NextStart,
        Some(_) => Effect::Restart(restarts(situation)),
    }
}

fn restarts(situation: &Situation<'_>) -> Restarts {
    Restarts {
        took: situation.start_took,
        members: situation.members.unwrap_or(1),
    }
}

/// Whether the document's directory or addresses prevent the start, so that etcd may start with the earlier
/// settings instead. `elsewhere`: the earlier settings name another directory.
pub fn is_in_the_way(refusal: &Refusal, elsewhere: bool) -> bool {
    match refusal {
        Refusal::AddressUnavailable(_) => true,
        Refusal::StorageMissing
        | Refusal::StorageDenied
        | Refusal::DataMissing
        | Refusal::DataForeign
        | Refusal::DataOfAnotherEtcd(_)
        | Refusal::StorageOfAnotherCluster(_)
        | Refusal::DataOfAnotherCluster(_)
        | Refusal::LogMissing
        | Refusal::DatabaseMissing
        | Refusal::FilesystemUnsafe(_)
        | Refusal::FilesystemReadOnly
        | Refusal::FilesystemStalled => elsewhere,
        _ => false,
    }
}

/// The larger quota that a running etcd needs a restart for; `None`: its quota is large enough.
pub(super) fn quota_to_start_with(spec: &ClusterSpec, instance: &Instance) -> Option<u64> {
    let Process::Running { quota, .. } = instance.process else {
        return None;
    };
    let latched = instance.facts.identity.as_ref().map_or(0, |it| it.quota);
    let wanted = spec.quota.map_or(latched, |it| it.max(latched));
    (wanted > quota).then_some(wanted)
}

/// Whether the database is full and the document has a larger quota, which is the way out.
pub(super) fn makes_room(spec: &ClusterSpec, instance: &Instance) -> bool {
    instance.service.alarms.no_space && quota_to_start_with(spec, instance).is_some()
}

/// The hold for a smaller quota. A quota only grows: etcd refuses writes if its database exceeds the quota.
pub(super) fn smaller_quota(spec: &ClusterSpec, instance: &Instance) -> Option<Hold> {
    let (asked, in_force) = (spec.quota?, space::quota(instance));
    (asked < in_force).then(|| Hold::QuotaSmaller {
        in_force,
        database: instance.service.details.map(|it| it.db_size),
        asked,
    })
}

/// Which part of the document is not in force, whatever the reason.
pub fn pending(spec: &ClusterSpec, instance: &Instance, hold: Option<&Hold>) -> Pending {
    let refused = |hold: Hold| {
        let why = detail(format_args!("{hold}; next: {}", hold.next_step()));
        Pending::Refused(hold.reason(), why)
    };
    if let Some(identity) = &instance.facts.identity
        && identity.cluster != spec.name
    {
        let lives_here = identity.cluster.clone();
        return refused(Hold::Start(Refusal::DocumentOfAnotherCluster(lives_here)));
    }
    if let Some(smaller) = smaller_quota(spec, instance) {
        return refused(smaller);
    }
    if let (Some(to), Process::Running { version, .. }) = (spec.version, instance.process)
        && to != version
        && let Err(hold) = version::hop(version, to)
    {
        return refused(hold);
    }
    let Process::Running {
        settings, version, ..
    } = instance.process
    else {
        return Pending::Nothing;
    };
    let edited = settings != spec.settings
        || quota_to_start_with(spec, instance).is_some()
        || spec.version.is_some_and(|it| it != version);
    match hold {
        _ if !edited || spec.size == 0 => Pending::Nothing,
        Some(hold) => Pending::Waits(detail(format_args!(
            "etcd runs on with the settings that it was started with; {}: {hold}",
            hold.reason()
        ))),
        None if version::changing(instance).is_some_and(|it| it.back) => {
            Pending::Waits(detail(format_args!("the version before comes back first")))
        }
        None => Pending::Waits(detail(format_args!("the operator restarts etcd with it"))),
    }
}

/// The part of the document that is not in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pending {
    /// Nothing: the whole document is in force.
    Nothing,
    /// A part waits, for this reason.
    Waits(Detail),
    /// A part is refused: the reason as one word, and in words.
    Refused(&'static str, Detail),
}
