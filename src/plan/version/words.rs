//! How far a change of the version has come, in words.

use core::fmt;

use super::downgrade::{Lowering, lowering};
use super::{Changing, STABLE_SECONDS, changing, has, hop, next};
use crate::cluster::{Detail, Health, Member, MemberName, detail};
use crate::observed::{Instance, Membership, Observed, Process, Upgrade};
use crate::spec::ClusterSpec;
use crate::version::Version;

/// Whether a change of the version is under way, in words: for status.
pub fn words(spec: &ClusterSpec, observed: &Observed) -> Option<Detail> {
    let mut instances = observed.instances.iter();
    if let Some((instance, Changing { from, to, back })) =
        instances.find_map(|it| Some((it, changing(it)?)))
    {
        let member = &instance.member;
        let done = Progress(observed, to);
        return Some(match (back, instance.service.serves()) {
            (false, true) => detail(format_args!(
                "upgrade {from} -> {to}{done}: {member} serves with {to}, final after {STABLE_SECONDS} s"
            )),
            (false, false) => detail(format_args!(
                "upgrade {from} -> {to}{done}: restarting {member}"
            )),
            (true, _) => detail(format_args!("back from {from} to {to} on {member}")),
        });
    }
    let instance = spec.version.and_then(|it| next(spec, observed, it));
    let instance = instance.or_else(|| observed.speaker())?;
    let from = instance.facts.identity.as_ref()?.version;
    let asked = spec.version.filter(|it| *it != from);
    let awaited = asked.zip(awaited(observed, instance));
    match &observed.upgrade {
        Upgrade::RehearsingImage => Some(detail(format_args!(
            "another image of etcd {from} is tried on a copy of the data"
        ))),
        Upgrade::Rehearsing { to } if asked == Some(*to) => Some(detail(format_args!(
            "upgrade {from} -> {to}: rehearsing on a copy of the data"
        ))),
        Upgrade::Rehearsed { to, revision } if asked == Some(*to) => Some(detail(format_args!(
            "upgrade {from} -> {to}: rehearsed, snapshot r{revision} verified"
        ))),
        // Another version comes only while all others serve.
        _ if awaited.is_some() => {
            let (to, member) = awaited?;
            let done = Progress(observed, to);
            Some(detail(format_args!(
                "upgrade {from} -> {to}{done}: waits for {member}, which does not serve"
            )))
        }
        // Between two members.
        _ if asked.is_some_and(|to| observed.instances.iter().any(|it| has(it, to))) => {
            let (to, member) = (asked?, &instance.member);
            let done = Progress(observed, to);
            Some(detail(format_args!(
                "upgrade {from} -> {to}{done}: {member} is next"
            )))
        }
        _ => {
            let older = |it: &Version| from.is_newer_line_than(*it) && hop(from, *it).is_ok();
            let to = asked.filter(older)?;
            let enabled = instance.service.details?.downgrade_to.is_some();
            match lowering(observed, instance, from, to) {
                Lowering::UnderWay if enabled => Some(detail(format_args!(
                    "upgrade {from} -> {to}: etcd lowers the version of its data"
                ))),
                _ if instance.tries.served < STABLE_SECONDS => Some(detail(format_args!(
                    "upgrade {from} -> {to}: begins once etcd {from} is seen to serve for {STABLE_SECONDS} s"
                ))),
                _ => None,
            }
        }
    }
}

/// What a change waits for where nothing else is to be done: an edit that is not carried out is not done.
pub fn pending(spec: &ClusterSpec, observed: &Observed) -> Option<Detail> {
    let to = spec.version?;
    let instance = next(spec, observed, to)?;
    let Process::Running { version: from, .. } = instance.process else {
        return None;
    };
    if from == to || hop(from, to).is_err() {
        return None;
    }
    let told = |what: fmt::Arguments<'_>| {
        Some(detail(format_args!(
            "upgrade {from} -> {to}: begins once {what}"
        )))
    };
    match (&observed.upgrade, instance.service.details?.downgrade_to) {
        (Upgrade::Rehearsing { to: other }, _) => {
            told(format_args!("the rehearsal of {other} has ended"))
        }
        _ if observed.backups.busy => told(format_args!("the work on snapshots has ended")),
        (_, Some(other)) if other.line() != to.line() => told(format_args!(
            "etcd's downgrade to {other} has ended, which somebody enabled: etcdctl downgrade cancel"
        )),
        _ => told(format_args!("all members serve and have caught up")),
    }
}

/// Another member that has to serve before this one gets a version.
fn awaited<'a>(observed: &'a Observed, instance: &Instance) -> Option<&'a MemberName> {
    let Membership::Known(members) = &observed.membership else {
        return None;
    };
    let mut voters = members.voters();
    let awaited = |it: &&Member| it.health != Health::Serving && it.name != instance.member;
    voters.find(awaited).map(|it| &it.name)
}

/// How many of several members have the version for good.
struct Progress<'a>(&'a Observed, Version);

impl fmt::Display for Progress<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Progress(observed, to) = self;
        match observed.instances.len() {
            0 | 1 => Ok(()),
            count => {
                let has = |it: &&Instance| has(it, *to);
                let done = observed.instances.iter().filter(has).count();
                write!(f, ", {done} of {count} members")
            }
        }
    }
}
