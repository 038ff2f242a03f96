//! What a member that runs needs: what only looks first, then what etcd is interrupted for.

use super::permit::{self, Declared};
use super::{Hold, Steps, Upkeep, backup, certificate, edit, space};
use crate::observed::{Instance, Observed, Process, Reading, Writing};
use crate::plan::permit::Permit;
use crate::spec::ClusterSpec;
use crate::start::{self, Refusal, Writable};

/// What a running instance needs. A hold is the last word and keeps no independent step from being
/// taken: what is served is proven, identities are recorded and snapshots are taken under it.
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
    if spec.size == 0 {
        let permit = permit(observed, instance, Declared::SizeZero)?;
        steps.push(Upkeep::Stop(permit));
        return Ok(());
    }
    // Whoever writes to a frozen file system waits until it thaws: nothing is written then.
    if instance.writable == Writable::Stalled {
        return Ok(());
    }
    if service.read == Reading::Answered
        && service.write == Writing::Acknowledged
        && identity.is_some_and(|it| it.served.is_none())
    {
        steps.push(Upkeep::RecordServed);
    }
    let certificates = certificate::steps(observed, instance, steps);
    certificate::client_steps(instance, steps);
    if let Some(foreign) = foreign(instance) {
        return Err(foreign);
    }
    if service.alarms.corrupt {
        return Err(Hold::Corrupt);
    }
    let begun = steps.upkeep.len();
    // Who may not read may not make room either.
    let permitted = !matches!(service.read, Reading::NotPermitted(_));
    let interruption = if service.alarms.no_space && permitted {
        space_steps(spec, observed, instance, steps)
    } else {
        edit_steps(spec, observed, instance, steps)
    };
    let interrupted = steps.upkeep[begun..].iter().any(Upkeep::interrupts);
    if !interrupted && let Some(step) = backup::step(spec, observed, instance) {
        steps.push(step);
    }
    interruption.and(certificates)?;
    if permitted {
        Ok(())
    } else {
        Err(Hold::AuthEnabled)
    }
}

/// Proves that writes are served, where that is not known of this process yet (rule D7). It changes
/// nothing, so that no hold keeps it from being tried; it is not sent to a cluster that is not ours.
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

/// Another cluster than ours answers.
fn foreign(instance: &Instance) -> Option<Hold> {
    let served = instance.facts.identity.as_ref().and_then(|it| it.served);
    let (cluster, _) = served?;
    let details = instance.service.details?;
    (details.cluster != cluster).then_some(Hold::ForeignCluster(details.cluster))
}

fn permit(observed: &Observed, instance: &Instance, declared: Declared) -> Result<Permit, Hold> {
    let member = instance.service.details.map(|it| it.member);
    permit::to_interrupt(&observed.membership, member, instance.alone, Some(declared))
}

/// The database has reached its quota and etcd refuses writes.
fn space_steps(
    spec: &ClusterSpec,
    observed: &Observed,
    instance: &Instance,
    steps: &mut Steps<'_>,
) -> Result<(), Hold> {
    // A larger quota is the way out that a person chose; while it is held, there is the usual one.
    if edit::quota_to_start_with(spec, instance).is_some() {
        let begun = steps.upkeep.len();
        let edited = edit_steps(spec, observed, instance, steps);
        if edited.is_err() && steps.upkeep.len() == begun {
            let _ = repair(spec, observed, instance, steps);
        }
        return edited;
    }
    repair(spec, observed, instance, steps)
}

/// Space is regained from what is there.
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
    let permit = permit(observed, instance, Declared::NoSpaceRepair)?;
    steps.push(Upkeep::RegainSpace(permit));
    Ok(())
}

/// What the document asks of an etcd that runs with something else. A restart happens only because the
/// document was edited or the host was moved to another driver, never because this operator would
/// render something else than the one before it.
fn edit_steps(
    spec: &ClusterSpec,
    observed: &Observed,
    instance: &Instance,
    steps: &mut Steps<'_>,
) -> Result<(), Hold> {
    let Process::Running {
        settings, version, ..
    } = instance.process
    else {
        return Ok(());
    };
    let quota = edit::quota_to_start_with(spec, instance);
    let declared = if settings != spec.settings || quota.is_some() {
        Some(Declared::DocumentEdited)
    } else if instance.kept_elsewhere {
        Some(Declared::DriverChanged)
    } else {
        None
    };
    if let Some(declared) = declared {
        // What could not be started again is not stopped: the edit waits, etcd runs on as it is.
        start::verdict(&instance.facts).map_err(Hold::Start)?;
        let permit = permit(observed, instance, declared)?;
        let latched = instance.facts.identity.as_ref().map_or(0, |it| it.quota);
        if let Some(quota) = quota.filter(|it| *it > latched) {
            steps.push(Upkeep::RaiseQuota(quota));
        }
        steps.push(Upkeep::Restart(permit));
    }
    match (spec.version, edit::smaller_quota(spec, instance)) {
        (Some(to), _) if to != version => Err(Hold::UpgradeNotSupportedYet { from: version, to }),
        (_, Some(refused)) => Err(refused),
        _ => Ok(()),
    }
}
