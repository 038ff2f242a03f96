//! Whether the newest document is in force.

use super::{Condition, Kind, Verdict, condition};
use crate::cluster::detail;
use crate::observed::{DocumentSeen, Observed};
use crate::plan::Hold;
use crate::plan::edit::{self, Pending};
use crate::spec::ClusterSpec;

/// The condition `DocumentAccepted`. False: the document, or a field of it, is refused. True with the
/// reason `Waits`: the document is sound, and a part of it is not in force yet.
pub(super) fn accepted(spec: &ClusterSpec, observed: &Observed, hold: Option<&Hold>) -> Condition {
    let told =
        |verdict, reason, message| condition(Kind::DocumentAccepted, verdict, reason, message);
    if let DocumentSeen::Refused { reason, why } = &observed.document {
        return told(Verdict::False, reason, why.clone());
    }
    let instance = observed.instances.first();
    match instance.map_or(Pending::Nothing, |it| edit::pending(spec, it, hold)) {
        Pending::Refused(reason, why) => told(Verdict::False, reason, why),
        Pending::Waits(why) => told(Verdict::True, "Waits", why),
        Pending::Nothing => {
            let message = detail(format_args!("the document is in force"));
            told(Verdict::True, "InForce", message)
        }
    }
}
