//! etcd's own downgrade, the way to an older line (rule D24).

use super::{hop, is_in_the_store};
use crate::observed::{Instance, Observed, Process};
use crate::plan::{Steps, Upkeep};
use crate::spec::ClusterSpec;
use crate::version::Version;

/// etcd looks every 5 s whether it can lower its data, and begins its log anew before. Taken so long, it is told of.
pub const LOWERS_WITHIN_SECONDS: u64 = 300;

/// How far etcd's own downgrade has come: it lowers the version of its data to that of an older line (rule D24).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lowering {
    /// Nobody has enabled it, and it can be.
    NotBegun,
    /// etcd does it, or what has to come before, in a few seconds.
    UnderWay,
    /// The data is as the other version needs it.
    Done,
}

/// How far it has come for a change from one version to another.
pub(super) fn lowering(
    observed: &Observed,
    instance: &Instance,
    from: Version,
    to: Version,
) -> Lowering {
    let details = instance.service.details;
    let enabled = details.and_then(|it| it.downgrade_to);
    // One that somebody else enabled is taken over with that.
    let written = instance.tries.downgrade.and_then(Version::line) == to.line();
    match (enabled, details.and_then(|it| it.storage)) {
        _ if !from.is_newer_line_than(to) => Lowering::Done,
        // The cluster raises what it stores only once all members run the newer line.
        (None, Some(storage)) if !storage.is_newer_line_than(to) && runs(observed, to) => {
            Lowering::Done
        }
        // Before etcd has raised what it stores to its own version, that tells nothing of a downgrade.
        (None, Some(storage)) if storage.line() == from.line() => Lowering::NotBegun,
        (Some(_), _) if !written => Lowering::NotBegun,
        (Some(_), Some(storage)) if !storage.is_newer_line_than(to) => Lowering::Done,
        _ => Lowering::UnderWay,
    }
}

/// Whether a member of the older line holds the others' data back: etcd raises it only once all run the newer one.
pub(super) fn is_held_back(observed: &Observed, (from, to): (Version, Version)) -> bool {
    from.is_newer_line_than(to) && runs(observed, to)
}

/// Whether a member serves with a version of this line.
fn runs(observed: &Observed, of: Version) -> bool {
    let runs = |it: &Instance| match it.process {
        Process::Running { version, .. } => version.line() == of.line() && it.service.serves(),
        _ => false,
    };
    observed.instances.iter().any(runs)
}

/// Whether a downgrade of etcd's own is one that the operator needs, has enabled or has carried out.
pub fn expects_downgrade(spec: &ClusterSpec, instance: &Instance, to: Version) -> bool {
    let running = match instance.process {
        Process::Running { version, .. } => Some(version),
        _ => None,
    };
    let lines = [spec.version, running, instance.tries.downgrade];
    lines.into_iter().flatten().any(|it| it.line() == to.line())
}

/// Plans the end of a downgrade that this operator enabled and nobody asks for any more. `asked`: another version than the
/// one that runs.
pub(super) fn end_downgrade(
    observed: &Observed,
    instance: &Instance,
    (version, asked): (Version, Option<Version>),
    steps: &mut Steps<'_>,
) {
    let failed = observed.upgrade.failed();
    let leads_there = |it: &Version| {
        hop(version, *it).is_ok() && is_in_the_store(instance, *it).is_ok() && Some(*it) != failed
    };
    let asked = asked.filter(leads_there);
    let enabled = instance.tries.downgrade;
    if enabled.is_some_and(|it| asked.and_then(Version::line) != it.line())
        && instance.service.serves()
    {
        steps.push(Upkeep::CancelDowngrade);
    }
}
