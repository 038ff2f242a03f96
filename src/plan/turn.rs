//! Decides whether it is a member's turn to be restarted for an edit: members go one after the other, each once the one before
//! has answered for a while, so that an edit that is bad for one is tried on no other.

use super::permit::{Declared, Others, is_away};
use super::{edit, membership, version};
use crate::cluster::{Detail, Member, MemberName, detail};
use crate::observed::{Instance, Membership, Observed, Process, Reading};
use crate::spec::ClusterSpec;
use crate::start::Unserved;

/// So long every other member has answered before one is restarted for an edit, in seconds: what ends right after its start, for
/// the memory that it lacks or a limit that it meets, has ended by then.
pub const LASTS_SECONDS: u64 = 10;

/// What a member's restart waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaited<'a> {
    /// Another voter serves again: one at a time is away.
    Serves(&'a MemberName),
    /// Another member, which was restarted, has answered for long enough.
    Lasts(&'a MemberName),
}

/// Why etcd of a running member is restarted for the document, if it is. It restarts only because the document was edited, the
/// host was moved to another driver, or an address of the document is back that etcd was started without. It never restarts
/// because this operator would render something else than the operator before it.
pub(super) fn declared(
    spec: &ClusterSpec,
    observed: &Observed,
    instance: &Instance,
) -> Option<Declared> {
    let Process::Running { settings, .. } = instance.process else {
        return None;
    };
    // Who leaves is not restarted for it first; and while another member's version is not final, only who is full.
    let stays = spec.size == 0 || spec.member(&instance.member).is_some();
    let full = edit::makes_room(spec, instance);
    if !stays || !full && version::another_changes(observed, instance) {
        return None;
    }
    let larger = edit::quota_to_start_with(spec, instance).is_some();
    if settings != spec.settings || larger {
        Some(Declared::DocumentEdited)
    } else if instance.kept_elsewhere {
        Some(Declared::DriverChanged)
    } else if instance.unserved.as_ref().is_some_and(Unserved::is_back) {
        Some(Declared::AddressBack)
    } else {
        None
    }
}

/// The other voters, each of which has to serve while this one is restarted for an edit: one at a time is away, however many a
/// majority can do without. None for one whose database is full: the larger quota is the way out for all. Who was added by a
/// person is nobody's to wait for.
pub(super) fn others(spec: &ClusterSpec, observed: &Observed, instance: &Instance) -> Others {
    let (Membership::Known(members), Some(id)) =
        (&observed.membership, instance.id(&observed.membership))
    else {
        return Others::new();
    };
    let votes = members.voters().any(|it| it.id == id);
    if edit::makes_room(spec, instance) || !votes {
        return Others::new();
    }
    let ours = |it: &&Member| it.id != id && membership::is_ours(spec, it);
    let others = members.voters().filter(ours);
    let mut ids = Others::new();
    for voter in others {
        let _ = ids.push(voter.id); // as many as there are voters
    }
    ids
}

/// What the restart of this member waits for: one of these other voters, or a member that was restarted just now.
pub(super) fn awaited<'a>(
    observed: &'a Observed,
    instance: &Instance,
    others: &Others,
) -> Option<Awaited<'a>> {
    let Membership::Known(members) = &observed.membership else {
        return None;
    };
    // The restart of one that does not serve costs nothing, and may mend it.
    let id = instance.id(&observed.membership);
    if id.is_none_or(|it| is_away(members, it)) {
        return None;
    }
    if let Some(away) = others.iter().find(|it| is_away(members, **it)) {
        return members.by_id(*away).map(|it| Awaited::Serves(&it.name));
    }
    let begins = |it: &&Instance| {
        let answers = it.service.read == Reading::Answered;
        let other = it.member != instance.member;
        other && answers && it.tries.answered < LASTS_SECONDS
    };
    let young = observed.instances.iter().find(begins);
    young
        .filter(|_| !others.is_empty())
        .map(|it| Awaited::Lasts(&it.member))
}

/// The first member whose restart for an edit waits for another one.
fn waiting<'a>(
    spec: &ClusterSpec,
    observed: &'a Observed,
) -> Option<(&'a MemberName, Awaited<'a>)> {
    observed.instances.iter().find_map(|it| {
        declared(spec, observed, it)?;
        let others = others(spec, observed, it);
        Some((&it.member, awaited(observed, it, &others)?))
    })
}

/// Whether the restart of a member for an edit waits for another one.
pub(super) fn waits(spec: &ClusterSpec, observed: &Observed) -> bool {
    waiting(spec, observed).is_some()
}

/// The same in words.
pub fn words(spec: &ClusterSpec, observed: &Observed) -> Option<Detail> {
    let (member, awaited) = waiting(spec, observed)?;
    Some(match awaited {
        Awaited::Serves(other) => detail(format_args!(
            "{member} is restarted with the edited document once {other} serves: one member at a time is away"
        )),
        Awaited::Lasts(other) => detail(format_args!(
            "{member} is restarted with the edited document once {other} has answered for {LASTS_SECONDS} s"
        )),
    })
}
