//! Which version of etcd may follow which (rules D21, D24, D26).

use crate::plan::Hold;
use crate::version::{Class, HOPS, Line, Version, classify};

/// Whether a cluster may go from one version to another in one step.
///
/// # Errors
/// The hold, which names what to do instead.
pub fn hop(from: Version, to: Version) -> Result<(), Hold> {
    match classify(to) {
        Class::NeverCreate(bug) => return Err(Hold::VersionLosesData(to, bug)),
        Class::TooOld | Class::Unknown => return Err(Hold::VersionUnsupported(to)),
        Class::Supported | Class::Warn(_) => {}
    }
    let newer = to.is_newer_line_than(from);
    let up = HOPS.iter().find(|it| from.line() == Some(it.from));
    let down = HOPS.iter().find(|it| from.line() == Some(it.to));
    let first = match (up, down) {
        _ if from.line() == to.line() => return Ok(()),
        (Some(step), _) if newer && from.patch < step.patch => First::Patch(step.from, step.patch),
        (Some(step), _) if to.line() == Some(step.to) => return Ok(()),
        (Some(step), _) if newer => First::Line(step.to),
        (_, Some(step)) if to.line() != Some(step.from) => First::Line(step.from),
        (_, Some(step)) if to.patch < step.patch => First::Instead(step.from, step.patch),
        (_, Some(_)) => return Ok(()),
        _ => return Err(Hold::VersionUnsupported(from)),
    };
    Err(Hold::UpgradeNotAllowed { from, to, first })
}

/// What to take before a version that cannot follow at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// This patch of the line that runs, or a newer one.
    Patch(Line, u16),
    /// A version of this line.
    Line(Line),
    /// This patch of the older line, or a newer one, instead of the one that is asked for.
    Instead(Line, u16),
}
