//! Plans the upkeep of a running member: first steps that only observe, then steps that interrupt etcd.

use super::permit::{Declared, permit};
use super::{Act, Hold, Steps, Upkeep, backup, certificate, edit, join, space, turn, version};
use crate::cluster::Member;
use crate::observed::{Claim, Instance, Membership, Observed, Process, Reading, Writing};
use crate::spec::ClusterSpec;
use crate::start::{self, Refusal, Writable};

/// Plans what a running instance needs. The hold is returned last and prevents no independent step:
/// the operator still proves what is served, records identities and takes snapshots.
pub(super) fn steps(
    spec: &ClusterSpec,
    observed: &Observed,
    instance: &Instance,
    steps: &mut Steps<'_>,
) -> Result<(), Hold> {
    let service = &instance.service;
    let identity = instance.facts.identity.as_ref();
    probe(instance, steps);
    // A document of another cluster says nothing about the one that runs here.
    if let Some(identity) = identity
        && identity.cluster != spec.name
    {
        let refusal = Refusal::DocumentOfAnotherCluster(identity.cluster.clone());
        return Err(Hold::Start(refusal));
    }
    let zero = spec.size == 0;
    if zero {
        match permit(observed, instance, Act::Stop, Declared::SizeZero) {
            Ok(permit) => {
                steps.interrupt(permit);
                return Ok(());
            }
            // It serves on: with certificates, and for the snapshot that is the way out.
            Err(Hold::ClaimDeleted) => {}
            Err(hold) => return Err(hold),
        }
    }
    // A write to a frozen file system blocks until it thaws, so nothing is written now.
    if instance.writable == Writable::Stalled {
        return Ok(());
    }
    if is_unrecorded(observed, instance) {
        steps.push(Upkeep::RecordServed);
    }
    let certificates = certificate::steps(observed, instance, steps);
    certificate::client_steps(instance, steps);
    if let Some(foreign) = foreign(instance) {
        return Err(foreign);
    }
    if service.alarms.corrupt {
        if let Some(step) = backup::requested(spec, observed, instance) {
            steps.push(step);
        }
        return Err(Hold::Corrupt);
    }
    // An operator that may not read may not free space either.
    let permitted = !matches!(service.read, Reading::NotPermitted(_));
    let interruption = if zero {
        Err(Hold::ClaimDeleted)
    } else if service.alarms.no_space && permitted {
        space_steps(spec, observed, instance, steps)
    } else {
        edit_steps(spec, observed, instance, steps)
    };
    // One job at a time works on snapshots.
    if !steps.interrupts()
        && !steps.rehearses()
        && let Some(step) = backup::step(spec, observed, instance)
    {
        steps.push(step);
    }
    interruption.and(certificates)?;
    if permitted {
        Ok(())
    } else {
        Err(Hold::AuthEnabled)
    }
}

/// Whether what etcd tells of itself is still to be written down: once it serves, and before it gets its vote. What has a
/// vote is known by its id, whatever happens to it.
fn is_unrecorded(observed: &Observed, instance: &Instance) -> bool {
    let Some(identity) = &instance.facts.identity else {
        return false;
    };
    let ids = instance.ids(&observed.membership);
    if instance.service.serves() {
        // Only what serves as this member says on which claim its data is.
        let moved = instance.claim == Claim::New && identity.served == ids;
        return identity.served.is_none() || moved;
    }
    let Membership::Known(members) = &observed.membership else {
        return false;
    };
    let own = ids.and_then(|(_, it)| members.by_id(it));
    identity.served.is_none() && own.is_some_and(Member::is_ready)
}

/// Plans the proof that writes are served, if this process has not proven it yet (rule D7). The probe
/// changes nothing, so no hold prevents it. The operator does not send it to a cluster that is not ours.
pub(super) fn probe(instance: &Instance, steps: &mut Steps<'_>) {
    let service = &instance.service;
    let refused = service.alarms.no_space || service.alarms.corrupt;
    if matches!(instance.process, Process::Running { .. })
        && service.read == Reading::Answered
        && service.write != Writing::Acknowledged
        && !refused
        && instance.writable != Writable::Stalled
        && foreign(instance).is_none()
    {
        steps.push(Upkeep::ProbeWrite);
    }
}

/// The hold if a cluster other than ours answers.
fn foreign(instance: &Instance) -> Option<Hold> {
    let served = instance.facts.identity.as_ref().and_then(|it| it.served);
    let (cluster, _) = served?;
    let details = instance.service.details?;
    (details.cluster != cluster).then_some(Hold::ForeignCluster(details.cluster))
}

/// The database has reached its quota and etcd refuses writes.
fn space_steps(
    spec: &ClusterSpec,
    observed: &Observed,
    instance: &Instance,
    steps: &mut Steps<'_>,
) -> Result<(), Hold> {
    // A person chose a larger quota as the way out. While that edit is on hold, plan the usual repair.
    if edit::quota_to_start_with(spec, instance).is_some() {
        let edited = edit_steps(spec, observed, instance, steps);
        if edited.is_err() && !steps.interrupts() {
            let _ = repair(spec, observed, instance, steps);
        }
        return edited;
    }
    repair(spec, observed, instance, steps)
}

/// Accepts writes if there is already space, else regains space.
fn repair(
    spec: &ClusterSpec,
    observed: &Observed,
    instance: &Instance,
    steps: &mut Steps<'_>,
) -> Result<(), Hold> {
    if space::is_there(instance) {
        steps.push(Upkeep::AcceptWrites);
        return Ok(());
    }
    if !spec.repair_no_space {
        return Err(Hold::NoSpace);
    }
    space::worth_trying(instance)?;
    let declared = Declared::NoSpaceRepair;
    steps.interrupt(permit(observed, instance, Act::RegainSpace, declared)?);
    Ok(())
}

/// Plans the restart that a changed document needs, when it is this member's turn.
fn edit_steps(
    spec: &ClusterSpec,
    observed: &Observed,
    instance: &Instance,
    steps: &mut Steps<'_>,
) -> Result<(), Hold> {
    // A change of version ends first; but a larger quota is the way out of a full database.
    if version::changing(instance).is_some() && !edit::makes_room(spec, instance) {
        return version::running(spec, observed, instance, steps);
    }
    if let Some(declared) = turn::declared(spec, observed, instance) {
        let others = turn::others(spec, observed, instance);
        if join::another_enters(observed, instance)
            || turn::awaited(observed, instance, &others).is_some()
        {
            return Ok(());
        }
        // Do not stop an etcd that could not start again: the edit waits and etcd runs on as it is.
        start::verdict(&instance.facts).map_err(Hold::Start)?;
        let permit = permit(observed, instance, Act::Restart, declared)?.while_serving(others);
        let quota = edit::quota_to_start_with(spec, instance);
        let latched = instance.facts.identity.as_ref().map_or(0, |it| it.quota);
        if let Some(quota) = quota.filter(|it| *it > latched) {
            steps.push(Upkeep::RaiseQuota(quota));
        }
        steps.interrupt(permit);
    } else {
        version::running(spec, observed, instance, steps)?;
    }
    edit::smaller_quota(spec, instance).map_or(Ok(()), Err)
}
