//! Decides how a living cluster gets another version of etcd (rules D21, D22, D23, D25, D26).
//!
//! ```text
//! asked      the document names another version: the hop is allowed, the binary is there, the member serves
//! rehearsed  the new etcd served a copy of the data, made from a snapshot of now; nothing was touched
//! changing   the identity names the new version, and the old one as the other that may open the data;
//!            etcd is restarted, and has a window to serve
//! final      it has served for a while: the identity names one version only
//! way back   it does not serve: the identity names the old version, and the new one as the other;
//!            etcd is restarted with the old one, and the new one is not tried again until the document changes
//! ```
//!
//! Each line is written down before it is acted upon, so a power cut between any two leads to the old version or the
//! new one, as far as the change had come.

mod downgrade;
mod hop;
mod rehearsal;
mod words;

use super::permit::{Declared, permit};
use super::{Act, Hold, Steps, Upkeep};
use crate::cluster::{Detail, Health, Role, detail};
use crate::observed::{
    Failed, Instance, Membership, Observed, Process, Reach, SnapshotSeen, Unanswered, Upgrade,
};
use crate::retention::VERIFIED;
use crate::spec::ClusterSpec;
use crate::start::{self, CRASH_LOOP, DATA_NEWER, Identity, LOG_TOO_OLD, Refusal};
use crate::version::Version;
pub use downgrade::{LOWERS_WITHIN_SECONDS, expects_downgrade};
use downgrade::{end_downgrade, is_held_back};
pub use hop::{First, hop};
pub use rehearsal::SKIPS_SECONDS;
use rehearsal::rehearse_or_change;
pub use words::{pending, words};

/// For so many seconds the new etcd must have served before the change is final. Until then a death leads
/// back. Longer than its own timers take for the first time with the settings that this operator renders: the commit of
/// the database (5 s), the check of the cluster's version (4 s).
pub const STABLE_SECONDS: u64 = 30;
/// The operator also asks this many times first, so that no single question decides.
pub const SERVES_WITHIN_LOOKS: u32 = 10;
/// The new etcd may end less often than this, with nobody asking it to. One death has many causes (somebody's kill, the kernel's
/// out-of-memory killer); two in a row count as the version's.
pub const ENDS_MAX: u32 = 2;

/// A change that is written down and not final.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changing {
    /// The version before; on the way back the one that is given up.
    pub from: Version,
    /// The version that is started.
    pub to: Version,
    /// The way back.
    pub back: bool,
}

/// The change of this member that is written down and not final.
pub fn changing(instance: &Instance) -> Option<Changing> {
    let identity: &Identity = instance.facts.born()?;
    let from = identity.other_version?;
    Some(Changing {
        from,
        to: identity.version,
        back: identity.goes_back,
    })
}

/// Whether the member has this version for good.
fn has(instance: &Instance, version: Version) -> bool {
    let born = instance.facts.born();
    born.is_some_and(|it| it.version == version && it.other_version.is_none())
}

/// The member whose turn it is to get this version: one after the other, the leader last. One that answers nothing comes
/// first, since nobody else can be changed before it serves.
fn next<'a>(spec: &ClusterSpec, observed: &'a Observed, to: Version) -> Option<&'a Instance> {
    let leads = |it: &Instance| it.service.details.is_some_and(|it| it.leads());
    let lacks = |it: &&Instance| spec.member(&it.member).is_some() && !has(it, to);
    let lacking = observed.instances.iter().filter(lacks);
    lacking.min_by_key(|it| (!is_silent(it), leads(it)))
}

/// Whether a change of another member is not final.
pub(super) fn another_changes(observed: &Observed, instance: &Instance) -> bool {
    let other = |it: &&Instance| it.member != instance.member;
    let mut others = observed.instances.iter().filter(other);
    others.any(|it| changing(it).is_some())
}

/// Plans what a running member needs for the version that the document names. Nothing else interrupts it in this pass.
pub(super) fn running(
    spec: &ClusterSpec,
    observed: &Observed,
    instance: &Instance,
    steps: &mut Steps<'_>,
) -> Result<(), Hold> {
    let Process::Running { version, .. } = instance.process else {
        return Ok(());
    };
    if let Some(changing) = changing(instance) {
        let back = why_back(spec, observed, instance).is_some();
        let wanted = if back { changing.from } else { changing.to };
        let asked_and_there = if spec.version == Some(changing.from) {
            is_in_the_store(instance, changing.from)
        } else {
            Ok(())
        };
        if back {
            if instance.service.serves() {
                // Nothing that serves is given up for one that is not there.
                asked_and_there.clone()?;
            }
            // Whether or not it may be interrupted now: its next start is one of the version before.
            steps.push(Upkeep::TakeVersionBack);
        }
        if version != wanted {
            if instance.service.serves() {
                // Do not stop an etcd that could not start again.
                start::verdict(&instance.facts).map_err(Hold::Start)?;
            }
            let permit = permit(observed, instance, Act::Restart, Declared::DocumentEdited)?;
            steps.interrupt(permit);
        }
        if !back && version == wanted && instance.tries.served >= STABLE_SECONDS {
            steps.push(Upkeep::FinishVersion);
        }
        return asked_and_there;
    }
    if failed_in_force(observed, instance).is_some() && instance.tries.served >= STABLE_SECONDS {
        steps.push(Upkeep::FinishVersion); // it serves after all
    }
    let asked = spec.version.filter(|it| *it != version);
    let next = spec.version.and_then(|it| next(spec, observed, it));
    let waits = next.is_some_and(|it| it.member != instance.member);
    if waits || another_changes(observed, instance) {
        return Ok(());
    }
    end_downgrade(observed, instance, (version, asked), steps);
    let Some(to) = asked else {
        return agree(spec, observed);
    };
    hop(version, to)?;
    match &observed.upgrade {
        Upgrade::Failed(failed) if failed.to == to => {
            Err(Hold::UpgradeFailed(to, failed.why.clone()))
        }
        _ if to.is_newer_line_than(version) && !keeps_snapshot(spec, observed) => {
            Err(Hold::UpgradeNeedsBackup(to))
        }
        _ if is_silent(instance) => {
            // Nothing can be tried, and nothing is interrupted that serves.
            if to.line() != version.line() && !is_held_back(observed, (version, to)) {
                let why = "etcd answers nothing, so no snapshot can be taken of its data";
                return Err(Hold::UpgradeNotRehearsed(to, detail(format_args!("{why}"))));
            }
            is_in_the_store(instance, to)?;
            let restart = permit(observed, instance, Act::Restart, Declared::DocumentEdited)?;
            steps.push(Upkeep::SetVersion(to));
            steps.interrupt(restart);
            Ok(())
        }
        _ if !is_ready(spec, observed, instance, (version, to)) => Ok(()), // it is told for itself
        _ => rehearse_or_change(spec, observed, instance, (version, to), steps),
    }
}

/// Whether all members have one version, where the document names none that they could be brought to.
fn agree(spec: &ClusterSpec, observed: &Observed) -> Result<(), Hold> {
    let born = observed.instances.iter().filter_map(|it| it.facts.born());
    let versions = born.map(|it| it.version);
    match versions.clone().min().zip(versions.max()) {
        Some((old, new)) if spec.version.is_none() && old != new => {
            Err(Hold::VersionsDiffer(old, new))
        }
        _ => Ok(()),
    }
}

/// Whether the snapshot of a rehearsal is kept. On a host it is in any case; in Kubernetes only the worker has a place.
fn keeps_snapshot(spec: &ClusterSpec, observed: &Observed) -> bool {
    spec.backup.is_some() || !observed.backups.elsewhere
}

/// Plans the way back of a member that does not run; or the way to another version where its own one does not start,
/// so that nothing can be tried. Returns whether one is taken.
pub(super) fn stopped(
    spec: &ClusterSpec,
    observed: &Observed,
    instance: &Instance,
    steps: &mut Steps<'_>,
) -> bool {
    if let Some(changing) = changing(instance) {
        let Changing { from, to, back } = changing;
        let goes_back = why_back(spec, observed, instance).is_some();
        let step = match (back, goes_back) {
            (true, _) if is_newer(instance, to) => Upkeep::StayWithVersion,
            (false, true) if is_newer(instance, from) => Upkeep::StayWithVersion,
            (false, true) => Upkeep::TakeVersionBack,
            _ => return false,
        };
        steps.push(step);
        return true;
    }
    let identity = instance.facts.identity.as_ref();
    let from = identity.filter(|it| it.served.is_some());
    let from = from.map(|it| it.version);
    let asked = from.zip(spec.version).filter(|(from, to)| from != to);
    let Some((from, to)) = asked else {
        return false;
    };
    let failed = observed.upgrade.failed() == Some(to);
    // Without a trial no snapshot would lead back from a newer line, but where the data is one of it; and no older line opens
    // data that etcd has raised and not lowered.
    let opens = to.line() == from.line() || is_held_back(observed, (from, to));
    let starts = opens && refused_binary(instance, from).is_some();
    let goes = (starts || is_newer(instance, from) && !is_newer(instance, to))
        && !failed
        && !another_changes(observed, instance)
        && hop(from, to).is_ok()
        && is_in_the_store(instance, to).is_ok();
    if goes {
        steps.push(Upkeep::SetVersion(to));
    }
    goes
}

/// Whether the data is a newer line's than this version. In Kubernetes the guard of a Pod of that version says so.
fn is_newer(instance: &Instance, version: Version) -> bool {
    let agreed = instance.facts.data.agreed;
    agreed.is_some_and(|it| it.is_newer_line_than(version))
        || told(instance, version).map(Refusal::reason) == Some(DATA_NEWER)
}

/// Why a Pod of this version does not run: what one of another version says proves nothing.
fn told(instance: &Instance, version: Version) -> Option<&Refusal> {
    let made = instance
        .made_for
        .map_or(instance.facts.version, |it| it.version);
    instance.refused.as_ref().filter(|_| made == version)
}

/// Whether etcd of the document's version can be started here.
fn is_in_the_store(instance: &Instance, to: Version) -> Result<(), Hold> {
    let binary = instance.tries.asked_binary;
    let refusal = binary.and_then(|it| it.refusal(to, true));
    refusal.map_or(Ok(()), |it| Err(Hold::Start(it)))
}

/// Whether etcd has answered nothing for as long as any start may take.
fn is_silent(instance: &Instance) -> bool {
    is_long(instance.tries.unserved, instance) && !instance.service.read.is_answer()
}

fn is_long(asked: Unanswered, instance: &Instance) -> bool {
    asked.seconds > start::serves_within(instance.tries.database)
        && asked.looks >= SERVES_WITHIN_LOOKS
}

/// What is told of a member that has not served for long with a version that failed, and has no way back. What keeps it from
/// its start for another reason is told before that.
pub(super) fn stuck(
    observed: &Observed,
    instance: &Instance,
    taken: Result<(), Hold>,
) -> Result<(), Hold> {
    match (taken, failed_in_force(observed, instance)) {
        (Err(hold), _) if !matches!(&hold, Hold::Start(it) if it.reason() == CRASH_LOOP) => {
            Err(hold)
        }
        (_, Some((version, why))) if instance.tries.served < STABLE_SECONDS => {
            let back = leads_back(observed, instance, version);
            Err(Hold::UpgradeStuck(version, why, back))
        }
        (taken, _) => taken,
    }
}

/// The snapshot that leads back to an older line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WayBack {
    /// The last revision in it.
    pub revision: i64,
    /// How many revisions the data has after it.
    pub lacks: Reach,
}

/// The newest verified snapshot that an older line than this version's can read.
fn leads_back(observed: &Observed, instance: &Instance, version: Version) -> Option<WayBack> {
    let readable = |it: &SnapshotSeen| it.version.is_some_and(|it| version.is_newer_line_than(it));
    let mut named = observed.backups.named.iter().map(|it| it.seen);
    let revision = named
        .find(|it| it.level >= VERIFIED && readable(it))?
        .revision;
    let reach = instance.tries.reach;
    // Of another life: the jump between them would be counted, too.
    let after = |it: i64| Some((it - revision).max(0)).filter(|_| revision >= reach.begun);
    Some(WayBack {
        revision,
        lacks: Reach {
            begun: 0,
            at_least: reach.at_least.and_then(after),
            at_most: reach.at_most.and_then(after),
        },
    })
}

/// The version in force, where it is one that failed and has no way back.
fn failed_in_force(observed: &Observed, instance: &Instance) -> Option<(Version, Detail)> {
    let version = instance.facts.born()?.version;
    match &observed.upgrade {
        Upgrade::Failed(it)
            if it.to == version && it.member == instance.member && changing(instance).is_none() =>
        {
            Some((version, it.why.clone()))
        }
        _ => None,
    }
}

/// Why a change is taken back, for whoever writes it down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Back {
    /// The document asks for the version before.
    Asked,
    /// The new one does not serve.
    Failed(Detail),
}

/// The version that is given up because it does not serve, and why.
pub fn given_up(spec: &ClusterSpec, instance: &Instance) -> Option<Failed> {
    let changing = changing(instance)?;
    // Which one has failed before counts only for what is asked for again.
    match way_back(spec, None, instance, changing)? {
        Back::Failed(why) => {
            let member = instance.member.clone();
            Some(Failed {
                to: changing.to,
                why: if instance.alone {
                    why
                } else {
                    detail(format_args!("{member}: {why}"))
                },
                member,
            })
        }
        Back::Asked => None,
    }
}

/// Why the change of this member is taken back, if it is.
pub fn why_back(spec: &ClusterSpec, observed: &Observed, instance: &Instance) -> Option<Back> {
    way_back(
        spec,
        observed.upgrade.failed(),
        instance,
        changing(instance)?,
    )
}

/// Whether the cluster is well enough to have its version changed (rule D22): all members are there and serve, no alarm is
/// raised, no learner is on its way, no downgrade of etcd's own is under way but the one that is needed.
fn is_ready(
    spec: &ClusterSpec,
    observed: &Observed,
    instance: &Instance,
    (from, to): (Version, Version),
) -> bool {
    let needed = |it: Version| it.line() == to.line() && from.is_newer_line_than(to);
    // One that serves for a moment only is not asked to lower its data.
    let lasts = !from.is_newer_line_than(to) || instance.tries.served >= STABLE_SECONDS;
    let Membership::Known(members) = &observed.membership else {
        return false;
    };
    let alarms = instance.service.alarms;
    instance.service.serves()
        && !alarms.no_space
        && !alarms.corrupt
        && instance
            .service
            .details
            .is_some_and(|it| it.downgrade_to.is_none_or(needed))
        && lasts
        && members
            .iter()
            .all(|it| it.role == Role::Voter && it.health == Health::Serving)
        && spec.missing(members).is_none()
        && !super::join::another_enters(observed, instance)
        && !super::backup::is_behind(observed, instance)
}

/// Why the version before is started again, if it is. A patch has the storage of its line, so both versions may open
/// the data (rule D23). `failed`: the version that is not tried again until the document changes.
fn way_back(
    spec: &ClusterSpec,
    failed: Option<Version>,
    instance: &Instance,
    changing: Changing,
) -> Option<Back> {
    let Changing { from, to, back } = changing;
    // Once a newer line serves, its data is none of the older one's any more.
    let newer = to.is_newer_line_than(from);
    if newer && instance.service.serves() {
        return None;
    }
    let asked = spec.version == Some(from);
    let fails = why_fails(instance, changing);
    if back {
        // There is one way back, unless a person asks for the other version, and this one does not serve either.
        let again = asked && failed != Some(from);
        return fails.filter(|_| again).map(|_| Back::Asked);
    }
    let runs = matches!(instance.process, Process::Running { version, .. } if version == to);
    let may_have_served = newer && runs && !is_long(instance.tries.unserved, instance);
    if asked && !may_have_served && is_in_the_store(instance, from).is_ok() {
        return Some(Back::Asked);
    }
    fails.map(Back::Failed)
}

/// Why the version that is new to the data, or back, counts as one that does not serve it.
fn why_fails(instance: &Instance, Changing { from, to, .. }: Changing) -> Option<Detail> {
    let runs = matches!(instance.process, Process::Running { version, .. } if version == to);
    let ends = instance.tries.ends;
    if ends >= ENDS_MAX {
        let words = &instance.facts.history.ending.words;
        let colon = if words.is_empty() { "" } else { ": " };
        return Some(detail(format_args!(
            "etcd {to} ended by itself {ends} times{colon}{words}"
        )));
    }
    match instance.process {
        _ if runs => {
            let asked = instance.tries.unserved;
            let why = detail(format_args!(
                "etcd {to} did not serve reads and writes for {} s",
                asked.seconds
            ));
            is_long(asked, instance).then_some(why)
        }
        // Somebody cancelled the downgrade, and the newer etcd raised its data again.
        Process::Stopped if from.is_newer_line_than(to) && is_newer(instance, to) => {
            let why = "the data is of the newer line again";
            Some(detail(format_args!("{why}")))
        }
        Process::Stopped => {
            let refusal = refused_binary(instance, to)?;
            Some(detail(format_args!("{refusal}")))
        }
        _ => None,
    }
}

/// Why etcd of this version is not started, where another one might be. In Kubernetes the kubelet or the guard says so.
fn refused_binary(instance: &Instance, version: Version) -> Option<Refusal> {
    let refusal = start::verdict(&instance.facts).err();
    let told = told(instance, version).filter(|it| matches!(it, Refusal::Unplaceable { .. }));
    let refusal = refusal.or_else(|| told.cloned());
    let refusal = refusal.filter(is_of_the_binary)?;
    // A registry may be away for a moment.
    let waits =
        refusal.reason() == IMAGE_UNAVAILABLE && !is_long(instance.tries.unserved, instance);
    (!waits).then_some(refusal)
}

const IMAGE_UNAVAILABLE: &str = "ImageUnavailable";

fn is_of_the_binary(refusal: &Refusal) -> bool {
    match refusal {
        Refusal::BinaryMissing { .. }
        | Refusal::BinaryWrongArchitecture(_)
        | Refusal::BinaryChanged(_)
        | Refusal::LogTooOld(_)
        | Refusal::CrashLoop { .. } => true,
        Refusal::Unplaceable { reason, .. } => OF_THE_IMAGE.contains(reason),
        _ => false,
    }
}

/// The same in the words of Kubernetes and of the guard in a Pod.
const OF_THE_IMAGE: [&str; 5] = [
    "BinaryWrongArchitecture",
    CRASH_LOOP,
    IMAGE_UNAVAILABLE,
    "ImageVersion",
    LOG_TOO_OLD,
];
