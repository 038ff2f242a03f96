//! The trial of another version, by a Pod of its image that works on a copy of the data.

use std::rc::Rc;

use super::outcome::{MadeFor, Outcome, made_for, outcome};
use crate::backup::served::FOR_REHEARSAL;
use crate::changes::{REHEARSED_SECONDS, retry_seconds};
use crate::clock;
use crate::cluster::{Detail, Timestamp, detail};
use crate::controller::apply::unplaceable;
use crate::controller::objects::Kind;
use crate::controller::restore::document;
use crate::controller::seen::PodSeen;
use crate::controller::{Cluster, ControllerError, names, pod};
use crate::member::records::IdentityFile;
use crate::observed::{Failed, Observed, Upgrade};
use crate::spec::ClusterSpec;
use crate::start::serves_within;
use crate::version::Version;
use crate::worker::Config;

/// A watch tells of a Pod that was made within so many seconds.
const SEEN_WITHIN_SECONDS: u64 = 30;
/// What the kubelet tries again and again is told for at least so many seconds.
const TOLD_SECONDS: u64 = 60;
/// A snapshot or a trial that takes longer than this, and twice what etcd has to serve its database, does not end.
const ENDS_WITHIN_SECONDS: u64 = 900;

/// What is remembered of a rehearsal. An operator that comes anew knows it by its Pod, or rehearses anew.
#[derive(Clone, Debug)]
pub(in crate::controller) struct Rehearsal {
    made_for: MadeFor,
    /// When this stage began, in seconds since boot.
    at: u64,
    /// The time when it began, if that was trusted.
    began: Option<Timestamp>,
    /// How many of this version could not be tried.
    waited: usize,
    stage: Stage,
}

#[derive(Clone, Debug)]
enum Stage {
    /// The worker takes a snapshot, for the request of this id.
    Snapshot(String),
    /// A Pod works.
    Pod,
    /// The new etcd served the data of the snapshot of this revision.
    Served(i64),
    /// It could not be tried.
    Waits(Detail),
    /// The image did not stand the trial; the version is the one that serves.
    Refused(Detail),
}

impl Cluster {
    /// The Pod of this cluster's rehearsal, however it stands.
    fn rehearsal_pod(&self) -> Option<Rc<PodSeen>> {
        let name = names::rehearsal_pod(&self.name);
        let pod = self.shared.pods.get(&self.namespace, &name);
        pod.filter(|it| self.owns(it))
    }

    /// What the document asks to try: another version, or the same one from another image.
    fn to_try(&self, spec: &ClusterSpec) -> Option<(Version, MadeFor)> {
        let same = || {
            self.version_in_force()
                .filter(|_| self.asks_for_image(spec))
        };
        let to = self.other_version(spec).or_else(same)?;
        let made_for = MadeFor {
            to: to.to_string(),
            image: self.object.object.spec.image.clone(),
            document: self.document_word(),
        };
        Some((to, made_for))
    }

    /// That a version failed, by the document that is in force.
    fn version_failed(&self, to: Version) -> Option<Failed> {
        let failed = self.memory.changes.failed.as_ref()?;
        let failed = failed.by(&self.document_word())?;
        (failed.to == to).then_some(failed)
    }

    /// What is known of the trial that the document asks for: remembered, or seen by its Pod.
    fn rehearsal(&self, spec: &ClusterSpec) -> Option<Rehearsal> {
        let (to, asked) = self.to_try(spec)?;
        if self.version_failed(to).is_some() {
            return None; // that is written down
        }
        let known = self.memory.rehearsal.as_ref();
        if let Some(known) = known.filter(|it| it.made_for == asked) {
            return Some(known.clone());
        }
        let pod = self.rehearsal_pod().filter(|it| !it.meta.deleting)?;
        let found = made_for(&pod).filter(|it| *it == asked)?;
        Some(Rehearsal::found(found))
    }

    /// Whether the document's image has served a copy of the data.
    pub(super) fn image_was_tried(&self, spec: &ClusterSpec) -> bool {
        let known = self.rehearsal(spec);
        known.is_some_and(|it| {
            matches!(it.stage, Stage::Served(_)) && it.seconds() < REHEARSED_SECONDS
        })
    }

    /// Why the image of the version that serves is not exchanged as the document asks.
    pub(in crate::controller) fn image_not_changed(&self, spec: &ClusterSpec) -> Option<Detail> {
        if !self.asks_for_image(spec) {
            return None;
        }
        match self.rehearsal(spec)?.stage {
            Stage::Waits(why) | Stage::Refused(why) => Some(why),
            Stage::Pod => match self.rehearsal_pod().as_deref().map(outcome)? {
                Outcome::Waits(why) => Some(why),
                _ => None,
            },
            Stage::Snapshot(_) | Stage::Served(_) => None,
        }
    }

    /// The change of version, as the core sees it.
    pub(in crate::controller) fn upgrade(&mut self, spec: &ClusterSpec) -> Upgrade {
        self.memory.rehearsal = self.rehearsal(spec);
        if let Some(failed) = spec.version.and_then(|to| self.version_failed(to)) {
            return Upgrade::Failed(failed);
        }
        let Some(to) = self.other_version(spec) else {
            let tries = spec.size > 0 && self.asks_for_image(spec);
            return match self.image_not_changed(spec) {
                None if tries => Upgrade::RehearsingImage,
                _ => Upgrade::None,
            };
        };
        let Some(rehearsal) = self.memory.rehearsal.clone() else {
            return Upgrade::None;
        };
        match rehearsal.stage {
            Stage::Pod => match self.rehearsal_pod().as_deref().map(outcome) {
                Some(Outcome::Waits(why)) => Upgrade::NotRehearsed {
                    to,
                    why,
                    retry_in: TOLD_SECONDS,
                },
                _ => Upgrade::Rehearsing { to },
            },
            Stage::Snapshot(_) => Upgrade::Rehearsing { to },
            Stage::Served(revision) if rehearsal.seconds() < REHEARSED_SECONDS => {
                Upgrade::Rehearsed { to, revision }
            }
            Stage::Served(_) | Stage::Refused(_) => Upgrade::None,
            Stage::Waits(ref why) => Upgrade::NotRehearsed {
                to,
                why: why.clone(),
                retry_in: rehearsal.retry_in(),
            },
        }
    }

    /// Begins to try another version, or another image, on a copy of the data.
    pub(in crate::controller) async fn rehearse(
        &mut self,
        spec: &ClusterSpec,
        now: Option<Timestamp>,
    ) -> Result<(), ControllerError> {
        let Some((to, made_for)) = self.to_try(spec) else {
            return Ok(());
        };
        if let Some(there) = self.rehearsal_pod() {
            return self.remove_rehearsal(&there).await; // of an earlier one; the watch rings when it has gone
        }
        let at = clock::since_boot().as_secs();
        let before = self.memory.rehearsal.take();
        let id = format!("{FOR_REHEARSAL}{}-{at}", self.object.meta.uid);
        let stage = if spec.backup.is_some() {
            Stage::Snapshot(id)
        } else {
            Stage::Pod
        };
        self.memory.rehearsal = Some(Rehearsal {
            made_for,
            at,
            began: now,
            waited: before.map_or(0, |it| it.waited),
            stage: stage.clone(),
        });
        match stage {
            Stage::Snapshot(id) => {
                if let Err(silence) = self.ask_for(&id).await {
                    self.rehearsal_waits(silence.why);
                }
                Ok(())
            }
            _ => self.make_rehearsal_pod(spec, to, None).await,
        }
    }

    /// Whether the document's image is to be tried now: the plan asks for trials of other versions alone.
    fn tries_image(&self, spec: &ClusterSpec, observed: &Observed) -> bool {
        if !self.asks_for_image(spec) || observed.backups.busy || spec.size == 0 {
            return false;
        }
        let serves = observed.speaker().is_some_and(|it| it.service.serves());
        let waits = |it: &Rehearsal| match it.stage {
            Stage::Waits(_) => it.retry_in() > 0,
            Stage::Served(_) => it.seconds() < REHEARSED_SECONDS,
            _ => true,
        };
        serves && !self.memory.rehearsal.as_ref().is_some_and(waits)
    }

    fn enter(&mut self, stage: Stage) {
        if let Some(rehearsal) = &mut self.memory.rehearsal {
            rehearsal.at = clock::since_boot().as_secs();
            rehearsal.stage = stage;
        }
    }

    /// It could not be made now.
    fn rehearsal_waits(&mut self, why: Detail) {
        if let Some(rehearsal) = &mut self.memory.rehearsal {
            rehearsal.waited += 1;
        }
        self.enter(Stage::Waits(why));
    }

    /// One step of a rehearsal under way; and what is left of one that nobody asks for any more goes.
    pub(in crate::controller) async fn carry_rehearsal_on(
        &mut self,
        spec: &ClusterSpec,
        observed: &Observed,
    ) -> Result<(), ControllerError> {
        if self.tries_image(spec, observed) {
            return self
                .rehearse(spec, observed.clock.trusted(observed.now))
                .await;
        }
        let pod = self.rehearsal_pod();
        let asked = self.to_try(spec);
        let known = self.memory.rehearsal.clone();
        let (Some((to, _)), Some(rehearsal)) = (asked, known) else {
            return match pod {
                Some(pod) if !self.shows_why(&pod, spec) => self.remove_rehearsal(&pod).await,
                _ => Ok(()),
            };
        };
        let most =
            ENDS_WITHIN_SECONDS + 2 * serves_within(self.members[self.memory.source].database);
        let is_late = rehearsal.seconds() >= most;
        match (rehearsal.stage.clone(), pod) {
            (Stage::Snapshot(_), _) if is_late => {
                let why = "the backup worker takes no snapshot";
                self.rehearsal_waits(detail(format_args!("{why}")));
                Ok(())
            }
            (Stage::Snapshot(id), _) => self.look_for_snapshot(spec, to, &id).await,
            (Stage::Pod, Some(pod)) if made_for(&pod).as_ref() != Some(&rehearsal.made_for) => {
                self.memory.rehearsal = None; // the watch was behind: it is begun anew when this one has gone
                self.remove_rehearsal(&pod).await
            }
            (Stage::Pod, Some(pod)) if is_late && matches!(outcome(&pod), Outcome::UnderWay) => {
                let why = format_args!("the Pod {} does not end", pod.name);
                self.rehearsal_waits(detail(why));
                self.remove_rehearsal(&pod).await
            }
            (Stage::Pod, Some(pod)) => self.look_at_rehearsal(spec, to, &pod, &rehearsal).await,
            (Stage::Pod, None) if rehearsal.seconds() >= SEEN_WITHIN_SECONDS => {
                let name = names::rehearsal_pod(&self.name);
                self.rehearsal_waits(detail(format_args!("somebody deleted the Pod {name}")));
                Ok(())
            }
            (Stage::Served(_) | Stage::Waits(_), Some(pod)) => self.remove_rehearsal(&pod).await,
            _ => Ok(()), // of an image that was refused the log stays
        }
    }

    /// Whether this Pod's log tells why the document's version failed.
    fn shows_why(&self, pod: &PodSeen, spec: &ClusterSpec) -> bool {
        let to = made_for(pod).and_then(|it| it.to.parse().ok());
        to.is_some_and(|to| {
            self.other_version(spec) == Some(to) && self.version_failed(to).is_some()
        })
    }

    async fn remove_rehearsal(&self, pod: &PodSeen) -> Result<(), ControllerError> {
        if pod.meta.deleting {
            return Ok(());
        }
        let (name, uid) = (&pod.name, &pod.meta.uid);
        self.objects
            .remove(Kind::Pod, &self.namespace, name, uid, Some(0))
            .await
    }

    /// The worker has taken the snapshot, or could not.
    async fn look_for_snapshot(
        &mut self,
        spec: &ClusterSpec,
        to: Version,
        id: &str,
    ) -> Result<(), ControllerError> {
        let Some((report, _)) = self.memory.heard.known() else {
            return Ok(());
        };
        let Some(ended) = report.ended.iter().find(|it| it.id == id) else {
            if !report.asked.iter().any(|it| it == id)
                && let Err(silence) = self.ask_for(id).await
            {
                self.rehearsal_waits(silence.why); // of a worker that was cut
            }
            return Ok(());
        };
        match (&ended.made, &ended.failed) {
            (Some(made), None) => {
                let name = made.name.clone();
                self.enter(Stage::Pod);
                self.make_rehearsal_pod(spec, to, Some(&name)).await
            }
            (_, Some(failure)) => {
                let why = detail(format_args!("{}: {}", failure.reason, failure.why));
                self.rehearsal_waits(why);
                Ok(())
            }
            (None, None) => {
                self.rehearsal_waits(detail(format_args!("somebody removed the snapshot")));
                Ok(())
            }
        }
    }

    async fn look_at_rehearsal(
        &mut self,
        spec: &ClusterSpec,
        to: Version,
        pod: &PodSeen,
        rehearsal: &Rehearsal,
    ) -> Result<(), ControllerError> {
        if pod.meta.deleting {
            return Ok(());
        }
        match outcome(pod) {
            Outcome::UnderWay | Outcome::Waits(_) => return Ok(()),
            Outcome::Served(revision) => {
                let text = format!("etcd {to} served a copy of the data at revision {revision}");
                self.tell("VersionRehearsed", &text, false).await;
                self.enter(Stage::Served(revision));
            }
            Outcome::Ended(why) => self.rehearsal_waits(why),
            Outcome::Failed(why) => {
                let why = detail(format_args!("{why}; its log: kubectl logs {}", pod.name));
                let behind = self.behind(spec).and_then(IdentityFile::version);
                let from = behind.or_else(|| self.version_in_force());
                if from == Some(to) {
                    self.enter(Stage::Refused(why)); // told as a field that cannot be followed
                    return Ok(());
                }
                let before = self.memory.changes.clone();
                let hop = (from.unwrap_or(to), to);
                let document = self.document_word();
                let changes = &mut self.memory.changes;
                changes.fail_rehearsal(hop, &why, document, rehearsal.began);
                if let Err(error) = self.push().await {
                    self.memory.changes = before; // with the next look
                    return Err(error);
                }
                self.memory.rehearsal = None;
                return Ok(()); // its log stays for whoever asks
            }
        }
        self.remove_rehearsal(pod).await
    }

    /// Makes the Pod. `snapshot`: the one that the worker serves.
    async fn make_rehearsal_pod(
        &mut self,
        spec: &ClusterSpec,
        to: Version,
        snapshot: Option<&str>,
    ) -> Result<(), ControllerError> {
        let Some(made) = self.rehearsal_pod_for(spec, to, snapshot) else {
            self.rehearsal_waits(detail(format_args!("no worker serves the snapshot now")));
            return Ok(());
        };
        let Err(error) = self.objects.ensure(Kind::Pod, made, None).await else {
            return Ok(());
        };
        self.rehearsal_waits(detail(format_args!("{error}")));
        // What a person has to mend is the hold's to tell.
        unplaceable(&error).map_or(Err(error), |_| Ok(()))
    }

    fn rehearsal_pod_for(
        &self,
        spec: &ClusterSpec,
        to: Version,
        snapshot: Option<&str>,
    ) -> Option<serde_json::Value> {
        let object = self.object.clone();
        let wire = &object.object.spec;
        let rehearsal = self.memory.rehearsal.as_ref()?;
        // Beside a member that follows, where there is one.
        let number = self.memory.source;
        let mut identity = self.members[number].identity.clone()?;
        identity.member.version = to.to_string();
        identity.member.image.clone_from(&wire.image);
        let member = self.pod_member(spec, &identity)?;
        let there = self.member_pod(number);
        let address = there.as_ref().and_then(|it| it.address.clone());
        let config = Config {
            hosts: vec![address.unwrap_or_else(|| self.member_host(&identity.member.name))],
            port: spec.network.client_port,
            server_name: self.server_name(),
            lib: Self::pod_paths().lib,
        };
        let served = self.served_here();
        if snapshot.is_some() && served.address.is_none() {
            return None;
        }
        let image = self.shared.image.borrow().clone();
        let parts = self.parts(spec, wire, &member, &image);
        let asks = pod::Rehearsal {
            document: &document(&self.name, wire, &identity),
            member: &config,
            snapshot: snapshot.map(|it| (&served, it)),
            signer: self.public_key(),
            node: there.as_ref().and_then(|it| it.node.as_deref()),
        };
        let mut made = pod::rehearsal(&parts, &asks);
        let text = serde_json::to_string(&rehearsal.made_for).unwrap_or_default();
        made["metadata"]["annotations"][names::MADE_FOR] = text.into();
        Some(made)
    }
}

impl Rehearsal {
    /// Seconds since its stage began.
    fn seconds(&self) -> u64 {
        clock::since_boot().as_secs().saturating_sub(self.at)
    }

    /// Seconds until what could not be tried is tried again.
    fn retry_in(&self) -> u64 {
        retry_seconds(self.waited).saturating_sub(self.seconds())
    }

    /// The worker is waited for.
    pub(in crate::controller) fn is_expected(&self) -> bool {
        matches!(self.stage, Stage::Snapshot(_))
    }

    /// Of an operator before this one.
    fn found(made_for: MadeFor) -> Self {
        Rehearsal {
            made_for,
            at: clock::since_boot().as_secs(),
            began: None,
            waited: 0,
            stage: Stage::Pod,
        }
    }
}
