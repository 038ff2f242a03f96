//! Restores: an EtcdRestore in place or into a new cluster, and `spec.bootstrap`.
//!
//! The member's Pod never carries a step of them. In place the member is stopped first; then a Pod of its
//! own works on the volume with the host's code, which is safe to be cut at any step, and leaves its
//! outcome with the id of what asked for it: it is made once, however often the node restarts.

mod end;
mod new_cluster;
mod pod;

use std::rc::Rc;

use serde_json::Value;

use super::apply::unplaceable;
use super::claim::Which;
use super::names;
use super::objects::Kind;
use super::seen::PodSeen;
use super::{Cluster, ControllerError, Watched};
use crate::api::EtcdRestore;
use crate::api::requests::Phase;
use crate::backup::name::LATEST;
use crate::backup::restore::{note_recovery, why_no_more};
use crate::clock;
use crate::clock::rfc3339;
use crate::cluster::{Detail, Timestamp};
use crate::observed::{Membership, Observed, RestorePhase, Restoring};
use crate::plan::Hold;
use crate::spec::ClusterSpec;
use crate::start::Refusal;
use crate::worker::report::Found;
pub(super) use pod::document;
use pod::{Outcome, asked_by, outcome};

/// A restore that works on this cluster's volume.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    /// Of what asked for it: it is carried out once.
    id: String,
    from: String,
    by: By,
    /// Of the document that it was asked by.
    generation: i64,
}

/// Who asked for a restore.
#[derive(Clone, Debug)]
enum By {
    Request(Rc<Watched<EtcdRestore>>),
    /// An EtcdRestore that was removed after the operator created its Pod.
    Withdrawn,
    /// The document's bootstrap.
    Bootstrap,
    /// The document, where data is damaged.
    Recovery,
    /// Nobody any more: the volume holds one that was cut.
    Cut,
}

impl Asked {
    fn request(&self) -> Option<&Rc<Watched<EtcdRestore>>> {
        match &self.by {
            By::Request(request) => Some(request),
            _ => None,
        }
    }

    fn of(request: Rc<Watched<EtcdRestore>>) -> Self {
        Asked {
            id: request.meta.uid.clone(),
            from: request.object.spec.from.clone(),
            generation: 0, // a request is never changed
            by: By::Request(request),
        }
    }
}

/// Whether the API server would take the Pod of a restore in place.
#[derive(Debug)]
pub(super) struct Tried {
    id: String,
    /// In seconds since boot; `None`: it would.
    refused_at: Option<u64>,
    /// The snapshot that it asks for: another word may mean another one later.
    meant: Option<String>,
}

/// What is known of the snapshot of a restore, before anything stops for it.
enum Source {
    /// By its name, where something else than the latest was asked for.
    There(Option<String>),
    /// The worker does not say; others may have it.
    Elsewhere(Detail),
    /// The worker says that there is none, and nobody else could have it.
    Missing,
    /// What is asked for fits several, in the worker's words.
    Several(String),
    /// The worker does not say, and nobody else could have it.
    Unknown(Detail),
}

/// A restore that the document asks for and that failed.
#[derive(Clone, Debug)]
pub(super) struct FailedRestore {
    why: Detail,
    /// Of the document that asked.
    generation: i64,
    /// When it is tried again, in seconds since boot.
    again: u64,
}

/// What the document asks for is tried again after so long: a bucket or a worker may have been away. A document that was
/// corrected is tried at once. Recoveries are few in a day all the same.
const TRIED_AGAIN_SECONDS: u64 = 600;

/// A Pod that waits for so long has not begun.
const WAITS_SECONDS: u64 = 15;
/// A restore in place whose Pod was refused is tried again after so long.
const TRIED_AFTER_SECONDS: u64 = 60;

impl Cluster {
    /// Requests for this cluster that have not ended, oldest first.
    fn requests(&self) -> Vec<Rc<Watched<EtcdRestore>>> {
        let mut all = self.shared.restores.requests(&self.namespace, |it| {
            let phase = it.status.as_ref().and_then(|it| it.phase);
            it.spec.cluster == self.name && !phase.is_some_and(Phase::is_end)
        });
        all.retain(|it| !self.memory.has_ended(&it.meta));
        all
    }

    /// The first one that is asked for in place.
    fn in_place(&self) -> Option<Asked> {
        let mut all = self.requests().into_iter();
        let found = all.find(|it| it.object.spec.replace_data.as_ref() == Some(&self.name));
        let mut asked = Asked::of(found?);
        let tried = self.memory.tried.as_ref().filter(|it| it.id == asked.id);
        if let Some(name) = tried.and_then(|it| it.meant.as_ref()) {
            asked.from.clone_from(name);
        }
        Some(asked)
    }

    /// Takes up a restore that was asked for.
    fn take_up_restore(&mut self) {
        let pod = self.restore_pod();
        let by_document = self.memory.restoring.take();
        let by_document = by_document.filter(|it| match it.by {
            // Another document may ask for another snapshot.
            By::Bootstrap => pod.is_some() || !self.is_outdated(it),
            By::Recovery | By::Cut => true,
            By::Request(_) | By::Withdrawn => false,
        });
        let in_place = self.in_place();
        self.memory.restoring = in_place
            .filter(|it| pod.is_some() || self.may_begin(it))
            .or(by_document)
            .or_else(|| pod.as_deref().and_then(asked_by));
    }

    /// The restore under way, as the core sees it: of what was asked for, or of a Pod that works on the volume.
    pub(super) fn restoring(&self) -> Option<Restoring> {
        let busy = self.restore_pod().is_some();
        (busy || self.memory.restoring.is_some()).then_some(Restoring {
            phase: RestorePhase::Requested,
            busy,
            stops_first: true, // both work on one volume
        })
    }

    fn is_outdated(&self, asked: &Asked) -> bool {
        matches!(asked.by, By::Bootstrap) && asked.generation != self.generation()
    }

    /// A member is stopped only for a Pod that the API server would take.
    fn may_begin(&self, asked: &Asked) -> bool {
        let tried = self.memory.tried.as_ref();
        tried.is_some_and(|it| it.id == asked.id && it.refused_at.is_none())
            || self.pod_of_any().is_none()
    }

    /// Why the last restore that the document asked for failed, until it is tried again.
    /// `now`: the time, if it is trusted.
    pub(super) fn restore_failed(&mut self, now: Option<Timestamp>) -> Option<Detail> {
        let unborn = self.members[0].identity.is_none();
        let (seconds, generation) = (clock::since_boot().as_secs(), self.generation());
        self.memory
            .restore_failed
            .take_if(|it| it.generation != generation || seconds >= it.again);
        // What another cluster of this name came to keeps nobody from being born.
        let no_more = if unborn {
            None
        } else {
            why_no_more(&self.paths, now)
        };
        let failed = self.memory.restore_failed.as_ref();
        no_more.or_else(|| Some(failed?.why.clone()))
    }

    /// `seconds`: after which it is tried again.
    fn note_failed(&mut self, why: Detail, seconds: u64) {
        self.memory.restore_failed = Some(FailedRestore {
            why,
            generation: self.generation(),
            again: clock::since_boot().as_secs() + seconds,
        });
    }

    /// The document asks for the data of a snapshot, and no cluster was ever born here.
    pub(super) fn request_bootstrap(&mut self) {
        let object = self.object.clone();
        let Some(bootstrap) = &object.object.spec.bootstrap else {
            return;
        };
        if self.memory.restoring.is_none() {
            // Each try is another one: what is on the volume then is kept.
            self.memory.restoring = Some(Asked {
                id: format!("{}-{}", object.meta.uid, clock::now().0),
                from: bootstrap.from.clone(),
                by: By::Bootstrap,
                generation: self.generation(),
            });
        }
    }

    /// The document asks for the newest verified snapshot where data is damaged.
    pub(super) async fn request_recovery(
        &mut self,
        now: Option<Timestamp>,
    ) -> Result<(), ControllerError> {
        let pod = names::founder(&self.name);
        let pod = self.shared.pods.get(&self.namespace, &pod);
        let (Some(pod), None) = (pod, &self.memory.restoring) else {
            return Ok(());
        };
        // Each try counts: none begins while nobody can say whether there is a snapshot.
        if !matches!(self.source_of(LATEST).await, Source::There(_)) {
            return Ok(());
        }
        note_recovery(&self.paths, now)?;
        if let Err(error) = self.push().await {
            self.loaded = false; // the record is what the Secret says
            return Err(error);
        }
        self.memory.restoring = Some(Asked {
            id: pod.meta.uid.clone(),
            from: LATEST.to_owned(),
            by: By::Recovery,
            generation: self.generation(),
        });
        Ok(())
    }

    /// One step of what is under way. `held`: why the plan does not go on with it.
    pub(super) async fn carry_restore_on(
        &mut self,
        observed: &Observed,
        held: Option<Detail>,
    ) -> Result<(), ControllerError> {
        self.make_new_clusters().await?;
        let Some(asked) = self.memory.restoring.clone() else {
            self.look_for_cut(observed);
            return self.clear_away().await;
        };
        if let Some(there) = self.pod_of_any() {
            let details = observed.speaker().and_then(|it| it.service.details);
            if let Some(details) = details {
                self.memory.live_revision = Some(details.revision);
            }
            let text = match &held {
                Some(why) => why.as_str(),
                None if there.meta.deleting => match self.unstoppable() {
                    Some(why) => &format!("{} does not end: {why}", there.name),
                    None => &format!("{} ends", there.name),
                },
                None => &format!("the operator stops {}", there.name),
            };
            return self.restore_says(&asked, text).await;
        }
        let name = names::restore_pod(&self.name);
        let Some(there) = self.shared.pods.get(&self.namespace, &name) else {
            return Ok(());
        };
        if !self.owns(&there) {
            return Err(ControllerError::not_ours(Kind::Pod, &name));
        }
        if asked_by(&there).is_none_or(|it| it.id != asked.id) {
            return self.end_another(&asked, &there).await;
        }
        self.carry_pod_on(&asked, &there).await
    }

    /// A restore in place is taken up before anything else is done with the data, a snapshot of it among
    /// that; and only where the API server would take its Pod.
    pub(super) async fn take_up_restores(&mut self, spec: &ClusterSpec) {
        self.take_up_restore();
        if spec.paused || self.object.meta.deleting || self.memory.restoring.is_some() {
            return;
        }
        let Some(asked) = self.in_place() else {
            return;
        };
        if let Some(why) = self.cannot_stop(spec) {
            return self.not_begun(&asked, &why).await;
        }
        let now = clock::since_boot().as_secs();
        let tried = self.memory.tried.as_ref().filter(|it| it.id == asked.id);
        let refused_at = tried.and_then(|it| it.refused_at);
        if refused_at.is_some_and(|it| now < it + TRIED_AFTER_SECONDS) {
            return;
        }
        let mut meant = tried.and_then(|it| it.meant.clone());
        if tried.is_none() {
            match self.source_of(&asked.from).await {
                Source::There(name) => meant = name,
                Source::Elsewhere(why) => {
                    let text =
                        format!("the restore takes its snapshot from a further destination: {why}");
                    self.tell("Restoring", &text, true).await;
                }
                Source::Missing => {
                    let text = format!("there is no snapshot {} of {}", asked.from, self.name);
                    return self.refuse_restore(&asked, text).await;
                }
                Source::Several(text) => return self.refuse_restore(&asked, text).await,
                Source::Unknown(why) => return self.not_begun(&asked, &why).await,
            }
        }
        let Err(error) = self.try_restore_pod(spec, &asked).await else {
            self.memory.tried = Some(Tried {
                id: asked.id,
                refused_at: None,
                meant,
            });
            return self.take_up_restore();
        };
        if !matches!(error, ControllerError::Api { code: 0, .. }) {
            self.memory.tried = Some(Tried {
                id: asked.id.clone(),
                refused_at: Some(now),
                meant,
            });
        }
        let hint = match unplaceable(&error) {
            Some("QuotaExceeded") => "; set size: 0 to free the member's share of the quota",
            _ => "",
        };
        self.not_begun(&asked, &format!("{error}{hint}")).await;
    }

    /// Why not every member could be stopped. A restore that waited for one of them would have stopped the others for nothing.
    fn cannot_stop(&self, spec: &ClusterSpec) -> Option<String> {
        if self.goes(Which::Data(0)) {
            let why = Hold::ClaimDeleted;
            return Some(format!("{why}; next: {}", why.next_step()));
        }
        let mut members = self.looked_at(spec).into_iter();
        let goes = members.find(|it| self.goes(Which::Data(*it)));
        let goes = goes.map(|it| {
            let (claim, member) = (self.claim_name(Which::Data(it)), &self.members[it].name);
            format!("the claim {claim} is being deleted; next: kubectl delete pod {member}, which gives its data up")
        });
        goes.or_else(|| self.unstoppable())
            .or_else(|| self.may_be_away())
    }

    async fn not_begun(&mut self, asked: &Asked, why: &str) {
        let name = &self.name;
        let text = format!("the restore has not begun, and {name} stays as it is: {why}");
        if let Err(error) = self.restore_says(asked, &text).await {
            tracing::debug!("{error}");
        }
    }

    /// Whether a restore in place would find its snapshot. Where the worker does not say, that is why; and where other
    /// places may have it, the Pod of the restore looks there.
    async fn source_of(&mut self, from: &str) -> Source {
        if self.object.object.spec.destinations().is_empty() {
            return Source::Missing;
        }
        let alone = !self.has_other_places();
        match self.find(from).await {
            Ok(Found {
                several: Some(text),
                ..
            }) => Source::Several(text),
            Ok(found) if found.level.is_none() && alone => Source::Missing,
            Ok(found) => Source::There(found.name.filter(|_| from != LATEST)),
            Err(why) if alone => Source::Unknown(why),
            Err(why) => Source::Elsewhere(why),
        }
    }

    /// Ends a request for a snapshot that is not there, or not to be told from others. The member runs on.
    async fn refuse_restore(&mut self, asked: &Asked, why: String) {
        let Some(request) = asked.request() else {
            return;
        };
        let text = format!("{why}; {} runs on unchanged", self.name);
        match self
            .answer(request, &new_cluster::failed(text.clone()))
            .await
        {
            Ok(()) => self.memory.note_end(&request.meta.uid),
            Err(error) => tracing::debug!("{error}"),
        }
        self.tell("RestoreFailed", &text, true).await;
    }

    /// One that was cut, and that nobody asks for any more.
    fn look_for_cut(&mut self, observed: &Observed) {
        let member = names::founder(&self.name);
        let mut instances = observed.instances.iter();
        let founder = instances.find(|it| it.member == *member);
        let refused = founder.and_then(|it| it.refused.as_ref());
        let cut = refused.is_some_and(|it| it.reason() == Refusal::Restoring.reason());
        // Where the others serve, what is on its volume is of no use: the data of before is theirs.
        let others_serve = matches!(observed.membership, Membership::Known(_));
        if let Some(pod) = self.shared.pods.get(&self.namespace, &member)
            && cut
            && !others_serve
            && self.memory.restore_failed.is_none()
        {
            self.memory.restoring = Some(self.what_was_cut(&pod));
        }
    }

    fn what_was_cut(&self, found_by: &PodSeen) -> Asked {
        Asked {
            id: found_by.meta.uid.clone(),
            from: "what was cut".to_owned(),
            by: By::Cut,
            generation: self.generation(),
        }
    }

    /// The Pod of a restore whose end was told, and that could not be removed then.
    async fn clear_away(&self) -> Result<(), ControllerError> {
        match self.own_restore_pod() {
            Some(it)
                if !it.meta.deleting
                    && (self.memory.has_ended(&it.meta) || asked_by(&it).is_none()) =>
            {
                self.remove_pod(&it, None).await
            }
            _ => Ok(()),
        }
    }

    /// How far one is that an EtcdRestore asked for.
    async fn restore_says(&mut self, asked: &Asked, text: &str) -> Result<(), ControllerError> {
        match asked.request() {
            Some(request) => self.progress(request, text).await,
            None => Ok(()),
        }
    }

    /// What nobody works on yet says why.
    pub(super) async fn restores_wait(&mut self, why: &str) -> Result<(), ControllerError> {
        for request in self.requests() {
            self.waits(&request, why).await?;
        }
        Ok(())
    }
}

pub(super) fn wire_now() -> Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time> {
    serde_json::from_value(Value::String(rfc3339(clock::now()))).ok()
}
