//! Whether the newest document is in force.

use super::{Condition, Kind, Verdict, condition};
use crate::cluster::detail;
use crate::observed::{DocumentSeen, Observed};
use crate::plan::Held;
use crate::plan::edit::{self, Pending};
use crate::spec::ClusterSpec;

/// The condition `DocumentAccepted`. False: the document, or a field of it, is refused. True with the
/// reason `Waits`: the document is sound, and a part of it is not in force yet.
pub(super) fn accepted(spec: &ClusterSpec, observed: &Observed, held: Option<&Held>) -> Condition {
    let told =
        |verdict, reason, message| condition(Kind::DocumentAccepted, verdict, reason, message);
    if let DocumentSeen::Refused { reason, why } = &observed.document {
        return told(Verdict::False, reason, why.clone());
    }
    // What one member refuses says more than what another one still waits for.
    let mut waits = None;
    let in_force = held.map(|it| &it.hold);
    for instance in &observed.instances {
        match edit::pending(spec, instance, in_force) {
            Pending::Refused(reason, why) => return told(Verdict::False, reason, why),
            Pending::Waits(why) => waits = waits.or(Some(why)),
            Pending::Nothing => {}
        }
    }
    if let Some(why) = waits {
        return told(Verdict::True, "Waits", why);
    }
    let message = detail(format_args!("the document is in force"));
    told(Verdict::True, "InForce", message)
}
