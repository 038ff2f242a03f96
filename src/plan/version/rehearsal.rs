//! The trial of another version on a copy of the data, or a person's word that skips it.

use super::super::permit::{Declared, permit};
use super::super::{Act, Hold, Steps, Upkeep};
use super::downgrade::{LOWERS_WITHIN_SECONDS, Lowering, lowering};
use super::{has, is_in_the_store};
use crate::cluster::detail;
use crate::observed::{Instance, Observed, SnapshotSeen, Upgrade};
use crate::spec::ClusterSpec;
use crate::start;
use crate::version::Version;

/// So old may the verified snapshot be that leads back from a newer line that nobody has rehearsed. A rehearsal takes one of
/// its own; a person who skips it takes one first, and an hour is time enough to edit the document after that.
pub const SKIPS_SECONDS: u64 = 3600;

/// The member is well: tries the new etcd on a copy, then changes.
pub(super) fn rehearse_or_change(
    spec: &ClusterSpec,
    observed: &Observed,
    instance: &Instance,
    (from, to): (Version, Version),
    steps: &mut Steps<'_>,
) -> Result<(), Hold> {
    is_in_the_store(instance, to)?;
    // What could not start again is not stopped, and what may not be stopped is not rehearsed.
    start::verdict(&instance.facts).map_err(Hold::Start)?;
    let restart = permit(observed, instance, Act::Restart, Declared::DocumentEdited)?;
    let skips = spec.skip_rehearsal == Some(to);
    if let Upgrade::NotRehearsed {
        to: waits,
        why,
        retry_in,
    } = &observed.upgrade
        && *waits == to
        && !skips
        && *retry_in > 0
    {
        return Err(Hold::UpgradeNotRehearsed(to, why.clone()));
    }
    match lowering(observed, instance, from, to) {
        Lowering::NotBegun => {
            steps.push(Upkeep::EnableDowngrade(to));
            return Ok(());
        }
        Lowering::UnderWay if instance.tries.lowering > LOWERS_WITHIN_SECONDS => {
            return Err(Hold::DowngradeStalled(from, to));
        }
        Lowering::UnderWay => return Ok(()),
        Lowering::Done => {}
    }
    // What serves another member's data is tried.
    let serves = |it: &Instance| has(it, to) && it.service.serves() && !it.tries.has_another_image;
    let tried = observed.instances.iter().any(serves)
        || matches!(&observed.upgrade, Upgrade::Rehearsed { to: it, .. } if *it == to);
    match &observed.upgrade {
        _ if tried => {}
        Upgrade::Rehearsing { .. } => return Ok(()),
        _ if observed.backups.busy => return Ok(()),
        _ if skips => has_way_back(observed, instance, (from, to))?,
        _ => {
            steps.push(Upkeep::RehearseVersion(to));
            return Ok(());
        }
    }
    steps.push(Upkeep::SetVersion(to));
    steps.interrupt(restart);
    Ok(())
}

/// What a rehearsal would have left behind: a verified snapshot of now, where only a snapshot leads back.
fn has_way_back(
    observed: &Observed,
    instance: &Instance,
    (from, to): (Version, Version),
) -> Result<(), Hold> {
    let revision = instance.service.details.map(|it| it.revision);
    let is_of_now = |it: &SnapshotSeen| {
        Some(it.revision) == revision || it.seconds.is_some_and(|it| it <= SKIPS_SECONDS)
    };
    let verified = observed.backups.verified.as_ref();
    if !to.is_newer_line_than(from) || verified.is_some_and(is_of_now) {
        return Ok(());
    }
    let why = "upgrade.skipRehearsal needs a verified snapshot of the last hour for a newer line";
    let next = "take one (etcd-operator backup create, or an EtcdBackup)";
    Err(Hold::UpgradeNotRehearsed(
        to,
        detail(format_args!("{why}: {next}")),
    ))
}
