//! What the operator tells: the object's status, Events and metrics.

use std::rc::Rc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource as _;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::runtime::events::{Event, EventType, Recorder};
use serde_json::{Value, json};

use super::apply::NAMESPACE_ENDS;
use super::names::SPEC_INVALID;
use super::objects::resource;
use super::seen::Meta;
use super::{Cluster, ControllerError, Shared, Watched};
use crate::api::status::{EtcdClusterStatus, News, news, to_wire};
use crate::api::{EtcdCluster, EtcdClusterSpec, convert, rules};
use crate::clock;
use crate::clock::rfc3339;
use crate::cluster::{Detail, MemberName, PeerUrl, Timestamp, detail};
use crate::error::chain;
use crate::member::refused::next_step;
use crate::observed::{Again, Observed};
use crate::plan::Plan;
use crate::runtime::{Runtime, reconcile};
use crate::spec::{ClusterSpec, MemberSpec, Settings};
use crate::status::Status;

/// A status that says the same is written again after so long: a dead operator shows.
pub(crate) const HEARTBEAT_SECONDS: i64 = 1800;
/// An operator that has come so long ago has tried a write, or does not (a paused cluster).
const YOUNG_SECONDS: u64 = 60;
/// After a pass that failed, the next one waits longer each time.
const FAILED: [u64; 5] = [1, 2, 5, 15, 30];
/// Events that are not told again.
const TOLD_MAX: usize = 24;

/// Characters of an Event: the API server takes 1,024 bytes.
const NOTE_MAX: usize = 256;

/// The API server's words for a field that its CRD does not have.
const NOT_DECLARED: &str = "field not declared in schema";

/// The status that was written last.
pub(super) struct Written {
    resource_version: String,
    /// The watch has brought it.
    seen: bool,
    /// The server has kept something else of it.
    kept_otherwise: bool,
}

impl Shared {
    /// An Event about an object: a reason, a text, and whether it is a warning. One that fails is a line of the log.
    pub(super) async fn tell_of(
        &self,
        (reason, text, warning): (&str, String, bool),
        about: &ObjectReference,
    ) {
        let event = Event {
            type_: if warning {
                EventType::Warning
            } else {
                EventType::Normal
            },
            reason: reason.to_owned(),
            note: Some(text.chars().take(NOTE_MAX).collect()),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        if self.confirmed.confirm().await.is_err() {
            return; // the log has the line
        }
        // One that is kept takes another text of the same reason for the first one, told again.
        let recorder = Recorder::new(self.client.clone(), self.reporter.clone());
        match recorder.publish(&event, about).await {
            Ok(()) => self.untold.set(false),
            // A namespace that ends takes no Event about its end, nor any other: the log has the line.
            Err(kube::Error::Api(it)) if it.message.contains(NAMESPACE_ENDS) => {}
            Err(error) if !self.untold.replace(true) => {
                tracing::warn!("failed to write an Event: {error}");
            }
            Err(_) => {}
        }
    }

    /// Writes the whole status of an object of ours; what was in it and is no longer said goes. The version that the
    /// object has then; none where it went meanwhile.
    pub(super) async fn write_status(
        &self,
        resource: &ApiResource,
        meta: &Meta,
        name: &str,
        status: &Value,
    ) -> Result<Option<String>, ControllerError> {
        self.confirmed.confirm().await?;
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &meta.namespace, resource);
        let object = serde_json::json!({
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": name, "uid": meta.uid}, // of that one and no later one
            "status": status,
        });
        let mut parameters = PatchParams::apply(super::names::OPERATOR).force();
        let mut written = api
            .patch_status(name, &parameters, &Patch::Apply(&object))
            .await;
        if let Err(kube::Error::Api(it)) = &written
            && it.message.contains(NOT_DECLARED)
        {
            // What the server's CRD does not know goes this way without a word.
            let text = detail(format_args!(
                "the CRDs are older than this operator, apply deploy/crds.yaml of its version: {}",
                it.message
            ));
            self.older.replace(Some(text));
            parameters.force = false;
            written = api
                .patch_status(name, &parameters, &Patch::Merge(&object))
                .await;
        }
        match written {
            Ok(it) => Ok(it.metadata.resource_version),
            // It went meanwhile: nobody reads it any more.
            Err(kube::Error::Api(it)) if it.is_not_found() || it.is_conflict() => Ok(None),
            Err(error) => {
                let kind = if resource.kind == "EtcdCluster" {
                    "EtcdCluster"
                } else {
                    "a request"
                };
                let what = "write the status of";
                Err(ControllerError::of_server(what, kind, name, error))
            }
        }
    }
}

impl Cluster {
    /// One pass; a failure is logged once, stands in the next status, and is tried again.
    pub(super) async fn pass(&mut self) -> Duration {
        if let Err(error) = self.load().await {
            // Nothing is known of the cluster; what a person has to mend is told.
            if let Some(reason) = super::apply::unplaceable(&error) {
                let why = detail(format_args!("{error}"));
                self.tell(reason, &why, true).await;
                if let Err(error) = self.publish_unknown(reason, &why, next_step(reason)).await {
                    tracing::debug!("{error}");
                }
                self.requests_wait(&why).await;
            }
            return self.failed(&error);
        }
        self.memory.invalid = None;
        match self.judge() {
            Ok(spec) => self.memory.spec = Some(spec),
            Err(why) => {
                self.tell(SPEC_INVALID, &why, true).await;
                self.memory.invalid = Some(why);
                self.use_sound_spec();
            }
        }
        let Some(spec) = self.memory.spec.clone() else {
            let why = self.memory.invalid.clone().unwrap_or_default();
            let next = "correct the document";
            self.requests_wait(&why).await;
            return match self.publish_unknown(SPEC_INVALID, &why, next).await {
                Ok(()) => Duration::from_secs(600), // the watch rings when it changes
                Err(error) => self.failed(&error),
            };
        };
        self.take_up_restores(&spec).await;
        match reconcile(self, &spec).await {
            Ok(wait) => {
                self.memory.failed = None;
                self.memory.failures = 0;
                wait
            }
            Err(error) => self.failed(&error),
        }
    }

    /// What was refused reaches no Pod, no directory and no Secret: this pass works with the last
    /// specification that was sound.
    fn use_sound_spec(&mut self) {
        let Some(sound) = &self.memory.sound else {
            return;
        };
        let mut object = self.object.object.clone();
        object.spec = sound.object.spec.clone();
        self.object = Rc::new(Watched {
            meta: self.object.meta.clone(),
            name: self.name.clone(),
            object,
        });
    }

    fn failed(&mut self, error: &ControllerError) -> Duration {
        let text = match super::apply::unplaceable(error) {
            // Whatever was tried first.
            Some(reason @ "NamespaceTerminating") => {
                format!(
                    "{reason}: the namespace {} is being terminated, so the operator creates nothing in it",
                    self.namespace
                )
            }
            _ => chain(error),
        };
        if self.memory.failed.as_deref() != Some(detail(format_args!("{text}")).as_str()) {
            tracing::warn!(namespace = %self.namespace, cluster = %self.name, "{text}");
        }
        self.memory.failed = Some(detail(format_args!("{text}")));
        let wait = FAILED[self.memory.failures.min(FAILED.len() - 1)];
        self.memory.failures += 1;
        Duration::from_secs(wait)
    }

    /// The object as the host's parser would judge it: the API server has checked it against its own
    /// copy of the rules, which may be another version's.
    fn judge(&mut self) -> Result<ClusterSpec, Detail> {
        let object = self.object.clone();
        let wire = &object.object.spec;
        let mut all = rules::RULES.iter().chain(rules::OF_A_HOST);
        if let Some(rule) = all.find(|it| !(it.holds)(wire)) {
            let (path, message) = (rule.path, rule.message);
            return Err(detail(format_args!("spec.{path}: {message}")));
        }
        let first = self.is_too_old_for(wire.size).then(|| EtcdClusterSpec {
            size: 1, // the version comes first
            ..wire.clone()
        });
        let wire = first.as_ref().unwrap_or(wire);
        let mut spec = convert::to_spec(&self.name, wire).map_err(|misfits| {
            let first = misfits.first();
            first.map_or_else(Detail::new, |it| detail(format_args!("{}: {it}", it.path)))
        })?;
        for number in spec.size.into()..self.members.len() {
            let name = self.members[number].name.clone();
            let peer_url = PeerUrl::new();
            let _ = spec.former.push(MemberSpec { name, peer_url });
        }
        for it in spec.members.iter_mut().chain(&mut spec.former) {
            let url = self.peer_url(&it.name, spec.network.peer_port);
            it.peer_url = PeerUrl::try_from(url.as_str())
                .map_err(|_| detail(format_args!("the peer URL {url} is too long")))?;
        }
        let of_etcd = spec.settings;
        spec.settings = self.settings_of_pod(of_etcd);
        // What runs by such a document already is looked after as before; another operator's limits stop nobody.
        let in_force = self.runs_from(wire.image.as_ref())
            && (0..self.members.len())
                .filter_map(|it| self.member_pod(it))
                .any(|it| it.settings == Some(spec.settings.0));
        let refused = crate::api::pod::refused(wire, &self.shared.own.image_prefixes);
        if let Some(why) = refused.filter(|_| !in_force) {
            return Err(why);
        }
        self.memory.sound = Some(object.clone());
        self.know_image(&spec);
        spec.settings = self.settings_of_pod(of_etcd);
        Ok(spec)
    }

    /// A Pod is made again for what stands in it, as etcd is restarted for its settings.
    fn settings_of_pod(&self, of_etcd: Settings) -> Settings {
        let Some(pod) = &self.object.object.spec.pod else {
            return of_etcd;
        };
        let sum = json!({"pod": pod}).to_string();
        let sum = crate::state::sha256(sum.as_bytes());
        Settings(of_etcd.0 ^ u64::from_str_radix(&sum[..16], 16).unwrap_or_default())
    }

    fn reference(&self) -> ObjectReference {
        self.object.object.object_ref(&())
    }

    /// An Event, once: the same words are not told again while they are among the last ones.
    pub(super) async fn tell(&mut self, reason: &str, text: &str, warning: bool) {
        let line = format!("{reason}: {text}");
        if self.memory.told.contains(&line) {
            return;
        }
        if warning {
            tracing::warn!(namespace = %self.namespace, cluster = %self.name, %reason, "{text}");
        } else {
            tracing::info!(namespace = %self.namespace, cluster = %self.name, %reason, "{text}");
        }
        self.memory.told.push_back(line);
        if self.memory.told.len() > TOLD_MAX {
            self.memory.told.pop_front();
        }
        let how = (reason, text.to_owned(), warning);
        self.shared.tell_of(how, &self.reference()).await;
    }

    async fn tell_changes(&mut self, now: &EtcdClusterStatus) {
        let before = self.memory.published.clone();
        for News {
            condition,
            wrong,
            turned,
        } in news(before.as_ref(), now)
        {
            let (kind, value, reason) = (&condition.type_, &condition.status, &condition.reason);
            // What came and went is news again.
            if turned {
                let prefix = format!("{reason}: ");
                self.memory.told.retain(|it| !it.starts_with(&prefix));
            }
            let text = format!("{kind} is {value}: {}", condition.message);
            self.tell(reason, &text, wrong).await;
        }
    }

    /// Writes the status where it says something new, or half an hour after the last time.
    async fn write_status(&mut self, status: EtcdClusterStatus) -> Result<(), ControllerError> {
        let before = self.memory.published.as_ref();
        let old = before.and_then(|it| it.confirmed_until.as_ref());
        let age = old.map(|it| clock::now().seconds_since(Timestamp(it.0.as_second())));
        let heartbeat = age.is_none_or(|it| !(0..HEARTBEAT_SECONDS).contains(&it));
        let news = before.is_none_or(|it| it.differs(&status));
        let edited = self.status_was_edited();
        if !heartbeat && !news && !edited {
            return Ok(());
        }
        let before = self.memory.published.as_ref();
        // An operator that has just come proves a write first: until then, what the last one said stands.
        let reason = |it: &EtcdClusterStatus| {
            let found = it.conditions.iter().find(|it| it.type_ == "Available");
            found.map(|it| it.reason.clone()).unwrap_or_default()
        };
        let young = clock::since_boot().as_secs() < self.began + YOUNG_SECONDS;
        if young
            && reason(&status) == "WriteNotProven"
            && before.is_some_and(|it| reason(it) == "Serving")
        {
            return Ok(());
        }
        self.tell_changes(&status).await;
        let resource = resource::<EtcdCluster>();
        let value = serde_json::to_value(&status).unwrap_or_default();
        let shared = self.shared.clone();
        let version = shared
            .write_status(&resource, &self.object.meta, &self.name, &value)
            .await?;
        self.memory.written = version.map(|resource_version| Written {
            resource_version,
            seen: false,
            kept_otherwise: false,
        });
        self.memory.published = Some(status);
        let older = shared.older.take();
        if let Some(text) = older {
            self.tell("CrdOlder", &text, true).await;
        }
        Ok(())
    }

    /// Whether the API server shows another status than was written last, because somebody edited it.
    fn status_was_edited(&mut self) -> bool {
        let Some(written) = &mut self.memory.written else {
            return false;
        };
        let differs = self.object.object.status.as_ref() != self.memory.published.as_ref();
        if self.object.meta.resource_version == written.resource_version {
            written.seen = true;
            // An older CRD drops what it does not know.
            written.kept_otherwise = differs;
            return false;
        }
        let number = |it: &str| it.parse::<u64>().ok();
        let (now, then) = (
            &self.object.meta.resource_version,
            &written.resource_version,
        );
        let newer = number(now)
            .zip(number(then))
            .is_some_and(|(now, then)| now > then);
        (written.seen || newer) && differs && !written.kept_otherwise
    }

    /// No document was ever sound, or the Secrets are not ours: nothing is known but that.
    async fn publish_unknown(
        &mut self,
        reason: &str,
        why: &str,
        next: &str,
    ) -> Result<(), ControllerError> {
        let now = rfc3339(clock::now());
        let generation = self.generation();
        let condition = |kind: &str, value: &str| {
            json!({
                "type": kind, "status": value, "reason": reason,
                "message": why, "lastTransitionTime": now,
                "observedGeneration": generation,
            })
        };
        let mut conditions = vec![
            condition("Available", "Unknown"),
            condition("Degraded", "True"),
        ];
        if reason == SPEC_INVALID {
            conditions.push(condition("DocumentAccepted", "False"));
        }
        let status = json!({
            "conditions": conditions,
            "confirmedUntil": now,
            "observedGeneration": generation,
            "plan": {"hold": reason, "message": why, "nextStep": next},
        });
        let Ok(mut status) = serde_json::from_value::<EtcdClusterStatus>(status) else {
            return Ok(());
        };
        if let Some(before) = &self.memory.published {
            status.cluster_id.clone_from(&before.cluster_id);
            status.history.clone_from(&before.history);
            for condition in &mut status.conditions {
                let same = before
                    .conditions
                    .iter()
                    .find(|it| it.type_ == condition.type_ && it.status == condition.status);
                if let Some(same) = same {
                    condition.last_transition_time = same.last_transition_time.clone();
                }
            }
        }
        self.write_status(status).await
    }
}

impl Runtime for Cluster {
    type Error = ControllerError;

    async fn observe(&mut self, spec: &ClusterSpec) -> Box<Observed> {
        self.gather(spec).await
    }

    async fn publish(
        &mut self,
        spec: &ClusterSpec,
        observed: &Observed,
        status: &Status,
    ) -> Result<(), ControllerError> {
        let metrics = self.shared.metrics.of(&self.namespace, &self.name);
        metrics.record(observed, status);
        let generation = self.generation();
        let mut wire = to_wire(status, self.memory.published.as_ref(), generation);
        let mut records = self.members.iter().filter_map(|it| it.identity.as_ref());
        let born = records.find_map(|it| it.cluster.born.as_ref());
        wire.tell_changes(&self.memory.changes.history, born);
        wire.kept_claims = self.kept_claims(spec, &status.members);
        // Also while it does not answer: it shows that there was one, whatever becomes of its Secrets.
        let born = self.members[0]
            .identity
            .as_ref()
            .and_then(|it| it.cluster.id.clone());
        wire.cluster_id = wire.cluster_id.or(born);
        self.write_status(wire).await
    }

    async fn look_again(&mut self, spec: &ClusterSpec, member: &MemberName) -> Again {
        self.read_again(spec, member).await
    }

    async fn execute(
        &mut self,
        spec: &ClusterSpec,
        observed: &Observed,
        plan: Plan,
    ) -> Result<(), ControllerError> {
        self.act(spec, observed, plan).await
    }
}
