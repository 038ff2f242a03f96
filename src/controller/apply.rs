//! Acts, one step of the plan after the other.

use std::time::Duration;

use super::claim::Which;
use super::names;
use super::objects::Kind;
use super::pod::{self, Parts};
use super::seen::PodSeen;
use super::{Cluster, ControllerError};
use crate::cluster::detail;
use crate::member::certificates;
use crate::member::contact;
use crate::member::pod::PodMember;
use crate::member::records::IdentityFile;
use crate::member::turn::Peer;
use crate::observed::Observed;
use crate::plan::permit::{Grounds, Permit};
use crate::plan::{Act, Asked, Hold, Interruption, Plan, Task, Upkeep, killed_after};
use crate::runtime::{Failures, Runtime as _};
use crate::spec::{ClusterSpec, MemberSpec};

/// What a Pod that is told to end gets; etcd needs far less.
const GRACE_SECONDS: u32 = 60;

impl Cluster {
    /// Carries out a plan.
    pub(super) async fn act(
        &mut self,
        spec: &ClusterSpec,
        observed: &Observed,
        plan: Plan,
    ) -> Result<(), ControllerError> {
        if self.object.meta.deleting {
            return Ok(());
        }
        if spec.paused {
            // To prove that writes are served is to observe.
            for task in &plan.upkeep {
                self.step(spec, observed, task).await?;
            }
            self.restores_wait("the cluster is paused").await?;
            return self.backups_wait("the cluster is paused").await;
        }
        let placed = self.place_again(spec, &plan).await;
        // A Secret or Service that cannot be put back is told last: the member and its snapshots go on.
        let mut objects = Ok(());
        if self.loaded && self.members[0].identity.is_some() {
            objects = self.upkeep_of_objects(spec).await;
        }
        for which in self.all_claims(spec) {
            objects = objects.and(self.tend_claim(which).await);
        }
        let held = plan.held(observed);
        let why = held.as_ref().map(|it| it.words.clone());
        let restores = held.is_some_and(|it| matches!(it.hold, Hold::Restoring(_)));
        let held = why.clone().filter(|_| !restores);
        let begins = plan.steps().any(|it| *it == Upkeep::TakeRequested);
        let backups = &observed.backups;
        let waits = backups.asked && !backups.busy && !begins;
        let waits = why.filter(|_| waits);
        let (mut failures, mut minted) = (Failures::default(), false);
        for task in &plan.upkeep {
            let step = &task.step;
            let mints = matches!(step, Upkeep::MintCertificates(_));
            if !failures.lets(step) || mints && std::mem::replace(&mut minted, true) {
                continue;
            }
            // Of a Pod it is told when it was made.
            let told = !matches!(
                step,
                Upkeep::ProbeWrite | Upkeep::Start(_) | Upkeep::PrepareRestore
            );
            if told {
                self.tell(step_reason(step), &task.describe_of(observed), false)
                    .await;
            }
            let taken = self.step(spec, observed, task).await;
            failures.note(step, taken);
        }
        let mut interrupted = Ok(());
        if let Some(permit) = plan.interruption {
            let act = permit.step().act;
            if failures.let_interrupt(act) {
                self.tell(act_reason(act), &permit.describe_of(observed), false)
                    .await;
                // On the heap: it is large, seldom there, and each caller's frame would hold it.
                interrupted = Box::pin(self.interrupt(spec, observed, permit)).await;
            }
        }
        let mut changed = Ok(());
        if let Ok(Some(permit)) = plan.change {
            self.tell("Changing", &permit.step().describe_of(observed), false)
                .await;
            changed = Box::pin(self.change(spec, observed, permit)).await;
        }
        let failed = failures.into_errors().into_iter().next();
        let failed = failed.or_else(|| interrupted.err());
        let failed = failed.or_else(|| changed.err());
        let rehearsal = self.carry_rehearsal_on(spec, observed).await;
        let restores = self.carry_restore_on(observed, held).await;
        let backups = self.carry_backups_on(spec, observed, waits).await;
        let done = failed.map_or(objects, Err).and(placed).and(rehearsal);
        done.and(restores).and(backups)
    }

    /// What kept a Pod from its place may have gone, and nothing tells so.
    async fn place_again(
        &mut self,
        spec: &ClusterSpec,
        plan: &Plan,
    ) -> Result<(), ControllerError> {
        let mut placed = Ok(());
        for (member, hold) in &plan.holds {
            if let (Some(number), Hold::Start(_)) = (self.number(member), hold)
                && self.members[number].unplaceable.is_some()
            {
                placed = placed.and(self.start(spec, number).await);
                if self.members[number].unplaceable.is_none() {
                    break; // one after the other
                }
            }
        }
        placed
    }

    /// One pair of certificates is for all members.
    async fn mint(
        &mut self,
        spec: &ClusterSpec,
        observed: &Observed,
    ) -> Result<(), ControllerError> {
        // The Service's address is one of the names; where there is none yet, it is told with the other objects.
        let _ = self.ensure_services(spec).await;
        let validity = certificates::validity(spec, observed, &self.paths.lib);
        certificates::mint(&self.certificates, spec, &self.names(spec), validity)?;
        self.push().await
    }

    /// What somebody removed or edited is put back. While nothing has changed, nothing is sent. One that
    /// is refused keeps no other one from its place.
    async fn upkeep_of_objects(&mut self, spec: &ClusterSpec) -> Result<(), ControllerError> {
        let all = [
            self.push().await,
            self.ensure_services(spec).await,
            self.ensure_policy(spec).await,
            self.ensure_budget(spec).await,
            self.push_clients().await,
        ];
        all.into_iter().collect()
    }

    async fn step(
        &mut self,
        spec: &ClusterSpec,
        observed: &Observed,
        Task { member, step }: &Task,
    ) -> Result<(), ControllerError> {
        let instance = observed.instance(member);
        let Some(number) = self.number(member) else {
            return Ok(());
        };
        let now = observed.clock.trusted(observed.now);
        match step {
            Upkeep::AdoptIdentity => Ok(()), // both copies are one here
            Upkeep::LatchIdentity {
                version,
                quota,
                joins,
            } => {
                let birth = (*version, *quota, *joins);
                self.latch((&Self::spec_of(spec, number), now), number, birth)
            }
            Upkeep::SetDataAside => self.set_data_aside(spec, observed, number).await,
            Upkeep::GiveUpClaim => {
                self.give_up_claim(number).await?;
                self.push().await
            }
            Upkeep::MintCertificates(_) => self.mint(spec, observed).await,
            Upkeep::MintClients => {
                let validity = certificates::validity(spec, observed, &self.paths.lib);
                certificates::issue_due(&self.certificates, spec, observed, validity)?;
                self.push_clients().await
            }
            Upkeep::Start(_) => self.start(spec, number).await,
            Upkeep::StartAsBefore => Ok(()), // the document's Pod is the only one
            Upkeep::RaiseQuota(quota) => {
                if let Some(identity) = &mut self.members[number].identity {
                    identity.member.quota = identity.member.quota.max(*quota);
                }
                self.push().await
            }
            Upkeep::ProbeWrite => {
                let process = instance.map(|it| it.process);
                self.members[number].contact.probe_write(process).await;
                Ok(())
            }
            Upkeep::RecordServed => self.record_served(observed, number).await,
            Upkeep::AcceptWrites => match instance {
                Some(instance) => Ok(self.members[number].contact.accept_writes(instance).await?),
                None => Ok(()),
            },
            Upkeep::TakeRequested => self.take_requested().await,
            Upkeep::RequestRestore(Asked::Bootstrap) => {
                self.request_bootstrap();
                Ok(())
            }
            Upkeep::RequestRestore(Asked::Recovery) => self.request_recovery(now).await,
            Upkeep::PrepareRestore => self.make_restore_pod(spec).await,
            Upkeep::RehearseVersion(_) => self.rehearse(spec, now).await,
            Upkeep::EnableDowngrade(to) => self.enable_downgrade(spec, number, *to).await,
            Upkeep::CancelDowngrade => self.cancel_downgrade(spec, number).await,
            Upkeep::SetVersion(to) => self.set_version(number, *to).await,
            Upkeep::TakeVersionBack => self.take_version_back(spec, number, instance).await,
            Upkeep::FinishVersion => self.finish_version(spec, number, now).await,
            Upkeep::StayWithVersion => self.stay_with_version(spec, number, instance, now).await,
            Upkeep::GiveUpLeadership { to } => {
                let endpoint = self.endpoint_now(spec, number);
                Ok(contact::give_up_leadership(&endpoint, *to).await?)
            }
            // The backup worker takes the first four by itself, and a restore's Pod the last one.
            Upkeep::SkipSnapshot
            | Upkeep::TakeSnapshot
            | Upkeep::CopySnapshots
            | Upkeep::CheckSnapshots
            | Upkeep::FinishRestore => Ok(()),
        }
    }

    /// Interrupts a member, if what is read of it right before still permits it.
    async fn interrupt(
        &mut self,
        spec: &ClusterSpec,
        observed: &Observed,
        permit: Permit<Interruption>,
    ) -> Result<(), ControllerError> {
        let again = self.look_again(spec, &permit.step().member).await;
        let has_left = permit.grounds() == Grounds::HasLeft;
        let step = permit.exchange(&again).map_err(ControllerError::NoPermit)?;
        let Some(number) = self.number(&step.member) else {
            return Ok(());
        };
        match step.act {
            // A Restart is the same: the next pass finds no Pod and makes one as the document says.
            Act::Stop | Act::Restart => {
                let instance = observed.instance(&step.member);
                let instance = instance.filter(|_| step.act == Act::Restart);
                let killed_after = instance.and_then(|it| killed_after(spec, it));
                self.stop(number, has_left, killed_after).await
            }
            Act::RegainSpace => match observed.instance(&step.member) {
                Some(instance) => Ok(self.members[number].contact.regain_space(instance).await?),
                None => Ok(()),
            },
            // Of a restore on a host: here its Pod takes these steps.
            Act::SwapRestored | Act::UndoRestore => Ok(()),
        }
    }

    /// What goes into a Pod of this cluster.
    pub(super) fn pod_member(
        &self,
        spec: &ClusterSpec,
        identity: &IdentityFile,
    ) -> Option<PodMember> {
        let name = &identity.member.name;
        let spec = &Self::spec_of(spec, self.number(name)?);
        let place = self.place(spec, None);
        let peer = |it: &MemberSpec| Peer {
            name: it.name.to_string(),
            url: it.peer_url.to_string(),
        };
        let joins = identity.joins();
        Some(PodMember {
            launch: place.launch_of(&Self::pod_paths(), spec, identity, None)?,
            identity: identity.clone(),
            joins: spec.members.iter().filter(|_| joins).map(peer).collect(),
            peer_url: spec.peer_url().to_string(),
        })
    }

    async fn start(&mut self, spec: &ClusterSpec, number: usize) -> Result<(), ControllerError> {
        self.members[number].unplaceable = None;
        let started = self.try_start(spec, number).await;
        if let Err(error) = &started
            && let Some(reason) = unplaceable(error)
        {
            // Told as a hold, and tried again with every look that finds it so.
            let why = detail(format_args!("{error}"));
            self.members[number].unplaceable = Some((reason, why));
            return Ok(());
        }
        started
    }

    async fn try_start(
        &mut self,
        spec: &ClusterSpec,
        number: usize,
    ) -> Result<(), ControllerError> {
        let Some(mut identity) = self.members[number].identity.clone() else {
            return Ok(());
        };
        if self.restore_pod().is_some() {
            return Ok(()); // it works on the same volume
        }
        let name = self.members[number].name.to_string();
        if let Some(there) = self.member_pod(number) {
            if there.is_over() && !there.meta.deleting && !self.goes(Which::Data(number)) {
                let text = detail(format_args!(
                    "the Pod {name} has ended; the operator replaces it, and its data stays: {} {}",
                    there.reason, there.message
                ));
                self.tell("PodReplaced", &text, true).await;
                return self.remove_pod(&there, Some(0)).await;
            }
            return Ok(()); // the kubelet starts it
        }
        let founder = self.members[0].identity.as_ref();
        if let Some(founder) = founder.filter(|_| identity.joins()) {
            // It may have been restored since the record was made.
            identity.cluster.clone_from(&founder.cluster);
            self.members[number].identity = Some(identity.clone());
        }
        let Some(member) = self.pod_member(spec, &identity) else {
            return Ok(());
        };
        self.push().await?;
        self.ensure_service_for_clients(spec).await?;
        self.ensure_service_of(spec, number).await?;
        self.ensure_claim(Which::Data(number)).await?;
        let object = self.object.clone();
        let image = self.shared.image.borrow().clone();
        let parts = self.parts(spec, &object.object.spec, &member, &image);
        let mut made = pod::member(&parts);
        if identity.joins() {
            made["metadata"]["annotations"][names::MADE_FOR] = names::TO_JOIN.into();
        }
        self.objects.ensure(Kind::Pod, made, None).await?;
        let text = detail(format_args!("the operator created the Pod {name}"));
        self.tell("PodCreated", &text, false).await;
        Ok(())
    }

    pub(super) fn parts<'a>(
        &'a self,
        spec: &'a ClusterSpec,
        wire: &'a crate::api::EtcdClusterSpec,
        member: &'a PodMember,
        image: &'a str,
    ) -> Parts<'a> {
        Parts {
            namespace: &self.namespace,
            name: &self.name,
            wire,
            spec,
            member,
            operator_image: image,
            owner: self.owner(),
        }
    }

    /// What was planned for one Pod is not done to another. `has_left`: the data of its member is of no use, so a deleted
    /// claim may go with it. Nobody ends the Pod of one whose claim was given up: its node is away.
    async fn stop(
        &mut self,
        number: usize,
        has_left: bool,
        killed_after: Option<Duration>,
    ) -> Result<(), ControllerError> {
        let seconds = killed_after.and_then(|it| u32::try_from(it.as_secs()).ok());
        let grace = seconds.unwrap_or(GRACE_SECONDS);
        match self.member_pod(number) {
            Some(pod) if has_left => {
                let waits = !self.has_former_claim(number, &pod);
                let grace = if waits { grace } else { 0 };
                self.remove_seen(&pod, Some(grace)).await
            }
            Some(pod) => self.remove_pod(&pod, Some(grace)).await,
            None => Ok(()),
        }
    }

    /// Removes exactly the Pod that was seen, unless a deleted claim would go with it. `grace_seconds`: instead of the Pod's own.
    pub(super) async fn remove_pod(
        &self,
        pod: &PodSeen,
        grace_seconds: Option<u32>,
    ) -> Result<(), ControllerError> {
        // Even one that has ended keeps its claim. Only a person gives that up.
        let which = if pod.name == names::backup_pod(&self.name) {
            Which::Snapshots
        } else {
            // Of a restore: the founder's.
            Which::Data(self.number(&pod.name).unwrap_or_default())
        };
        if pod.node.is_some() && self.goes_again(which, false).await {
            return Ok(());
        }
        self.remove_seen(pod, grace_seconds).await
    }

    /// The same, whatever goes with it.
    async fn remove_seen(
        &self,
        pod: &PodSeen,
        grace_seconds: Option<u32>,
    ) -> Result<(), ControllerError> {
        let (name, uid) = (&pod.name, &pod.meta.uid);
        self.objects
            .remove(Kind::Pod, &self.namespace, name, uid, grace_seconds)
            .await
    }
}

/// The API server's words where a namespace ends, which takes nothing new.
pub(super) const NAMESPACE_ENDS: &str = "being terminated";

/// Refusals of the API server, and of what lies there, that a person has to mend.
pub(super) fn unplaceable(error: &ControllerError) -> Option<&'static str> {
    match error {
        ControllerError::NotOurs { .. } => Some("NotOurs"),
        ControllerError::Api { code: 403, why, .. } if why.contains(NAMESPACE_ENDS) => {
            Some("NamespaceTerminating")
        }
        ControllerError::Api { code: 403, why, .. }
            if why.contains("PodSecurity") || why.contains("PriorityClass") =>
        {
            Some("PodRefused")
        }
        // A policy's words, then a webhook's.
        ControllerError::Api { kind, why, .. }
            if why.contains("denied request") || why.contains("denied the request") =>
        {
            (*kind == "Pod").then_some("PodRefused")
        }
        ControllerError::Api { code: 403, why, .. } if why.contains("exceeded quota") => {
            Some("QuotaExceeded")
        }
        ControllerError::Api { code: 403, .. } => Some("RightMissing"),
        ControllerError::Going { .. } => Some("Terminating"),
        ControllerError::Unreadable { .. } => Some("RecordUnreadable"),
        ControllerError::AuthorityMissing { .. } => Some("AuthorityMissing"),
        _ => None,
    }
}

/// The reason of an Event: stable, one CamelCase word.
fn step_reason(step: &Upkeep) -> &'static str {
    match step {
        Upkeep::AdoptIdentity | Upkeep::LatchIdentity { .. } => "Born",
        Upkeep::MintCertificates(_) => "CertificatesMade",
        Upkeep::MintClients => "ClientCertificatesMade",
        Upkeep::Start(_) | Upkeep::StartAsBefore | Upkeep::SetDataAside => "Starting",
        Upkeep::GiveUpClaim => "ClaimGivenUp",
        Upkeep::RaiseQuota(_) => "RaisingQuota",
        Upkeep::RehearseVersion(_) => "RehearsingVersion",
        Upkeep::EnableDowngrade(_) | Upkeep::CancelDowngrade => "Downgrading",
        Upkeep::SetVersion(_) | Upkeep::TakeVersionBack => "ChangingVersion",
        Upkeep::FinishVersion | Upkeep::StayWithVersion => "VersionFinal",
        Upkeep::ProbeWrite => "WriteProven",
        Upkeep::RecordServed => "Served",
        Upkeep::GiveUpLeadership { .. } => "Restarting",
        Upkeep::AcceptWrites => "RegainingSpace",
        Upkeep::SkipSnapshot | Upkeep::TakeSnapshot | Upkeep::TakeRequested => "TakingSnapshot",
        Upkeep::CopySnapshots => "CopyingSnapshots",
        Upkeep::CheckSnapshots => "CheckingSnapshots",
        Upkeep::RequestRestore(_) | Upkeep::PrepareRestore | Upkeep::FinishRestore => "Restoring",
    }
}

/// The same of an interruption.
fn act_reason(act: Act) -> &'static str {
    match act {
        Act::Stop => "Stopping",
        Act::Restart => "Restarting",
        Act::RegainSpace => "RegainingSpace",
        Act::SwapRestored | Act::UndoRestore => "Restoring",
    }
}
