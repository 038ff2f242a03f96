//! Decides what is fixed when a member is born or joins: its version and its quota.

use super::join::Way;
use super::{Hold, Steps, Upkeep};
use crate::observed::{Instance, Observed, Predecessors};
use crate::spec::ClusterSpec;
use crate::start::{self, Completeness};
use crate::version::{Class, Version, classify};

/// Whether there are no snapshots of a cluster of this name; false while they are looked for.
pub(super) fn has_no_predecessor(observed: &Observed) -> Result<bool, Hold> {
    match &observed.predecessors {
        Predecessors::None => Ok(true),
        Predecessors::Looking => Ok(false),
        Predecessors::Found(it) => Err(Hold::SnapshotsFound(it.clone())),
        Predecessors::Unreadable(why) => Err(Hold::SnapshotsUnknown(why.clone())),
    }
}

/// Plans the record of what is fixed at birth, or of the version that a cluster which never served is given
/// now.
pub(super) fn latch(
    spec: &ClusterSpec,
    instance: &Instance,
    version: Version,
    joins: bool,
    steps: &mut Steps<'_>,
) {
    let facts = &instance.facts;
    match (&facts.identity, &facts.marker) {
        // With both copies: data beside which the second one is missing could not be started again.
        (Some(born), Some(_)) if born.version == version && (born.joined || !joins) => {}
        (Some(born), None) if born.served.is_some() => {}
        (None, Some(born)) if born.version == version => steps.push(Upkeep::AdoptIdentity),
        _ => steps.push(Upkeep::LatchIdentity {
            version,
            // Who joins takes no less than the others have: their database has to fit.
            quota: match spec.quota {
                Some(asked) if joins => asked.max(instance.quota_at_birth),
                asked => asked.unwrap_or(instance.quota_at_birth),
            },
            joins,
        }),
    }
}

/// The version to start, if one may be. What a cluster was born with runs on, even a version that no new
/// cluster may be born with. Who joins takes the one that the others run.
pub(super) fn version_to_start(
    spec: &ClusterSpec,
    observed: &Observed,
    instance: &Instance,
    way: Way,
) -> Result<Version, Hold> {
    let facts = &instance.facts;
    let born = facts.born();
    if way == Way::Join
        && let Some(version) = observed.version_of_others(instance)
    {
        return Ok(version);
    }
    let data = facts.data.completeness() != Completeness::Empty;
    let version = start::version(spec.version, born, data, instance.newest_installed);
    let version = version.ok_or(Hold::NoVersion)?;
    if born.is_some_and(|it| it.version == version) {
        return match version.line() {
            Some(_) => Ok(version),
            None => Err(Hold::VersionUnsupported(version)),
        };
    }
    match classify(version) {
        Class::NeverCreate(bug) => Err(Hold::VersionLosesData(version, bug)),
        Class::TooOld | Class::Unknown => Err(Hold::VersionUnsupported(version)),
        Class::Supported | Class::Warn(_) => Ok(version),
    }
}
