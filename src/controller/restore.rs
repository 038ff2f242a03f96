//! Restores: an EtcdRestore in place or into a new cluster, and `spec.bootstrap`.
//!
//! The member's Pod never carries a step of them. In place the member is stopped first; then a Pod of its
//! own works on the volume with the host's code, which is safe to be cut at any step, and leaves its
//! outcome with the id of what asked for it: it is made once, however often the node restarts.

mod new_cluster;

use std::rc::Rc;

use serde_json::{Value, json};

use super::names;
use super::objects::{Kind, resource};
use super::seen::{Container, PodSeen};
use super::{Cluster, ControllerError, Watched, pod};
use crate::api::requests::{EtcdRestoreStatus, Phase};
use crate::api::status::rfc3339;
use crate::api::{EtcdClusterSpec, EtcdRestore, GROUP, VERSION};
use crate::backup::restore::{RECOVERIES_MAX, lost_words, note_recovery, too_many_recoveries};
use crate::backup::source::LATEST;
use crate::clock;
use crate::cluster::{Detail, Timestamp, detail};
use crate::member::pod::{Restored, s3_credentials};
use crate::observed::Observed;
use crate::spec::ClusterSpec;
use crate::state;

/// A restore that works on this cluster's volume.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    /// Of what asked for it.
    id: String,
    from: String,
    /// `None`: the document's bootstrap.
    request: Option<Rc<Watched<EtcdRestore>>>,
}

impl Cluster {
    /// Requests for this cluster that have not ended, oldest first.
    fn requests(&self) -> Vec<Rc<Watched<EtcdRestore>>> {
        let mut all = self.shared.restores.requests(&self.namespace, |it| {
            let phase = it.status.as_ref().and_then(|it| it.phase);
            let ended = matches!(phase, Some(Phase::Succeeded | Phase::Failed));
            it.spec.cluster == self.name && !ended
        });
        all.retain(|it| !self.memory.has_ended(&it.meta));
        all
    }

    /// Takes up a restore in place that was asked for. While there is one, the member stays stopped.
    pub(super) fn take_up_restore(&mut self, spec: &mut ClusterSpec) {
        let in_place = self
            .requests()
            .into_iter()
            .find(|it| it.object.spec.replace_data.as_ref() == Some(&self.name));
        let bootstrap = self
            .memory
            .restoring
            .as_ref()
            .is_some_and(|it| it.request.is_none());
        if let Some(request) = in_place {
            self.memory.restoring = Some(Asked {
                id: request.meta.uid.clone(),
                from: request.object.spec.from.clone(),
                request: Some(request),
            });
        } else if !bootstrap {
            self.memory.restoring = None;
        }
        if self.memory.restoring.is_some() && self.identity.is_some() {
            spec.size = 0;
            spec.members.clear();
        }
    }

    /// What is told in place of "size is 0" while a restore is under way.
    pub(super) fn restore_words(&self) -> Option<Detail> {
        let asked = self.memory.restoring.as_ref()?;
        Some(detail(format_args!(
            "the data of {} is brought back",
            asked.from
        )))
    }

    /// The document asks for the data of a snapshot, and no cluster was ever born here.
    pub(super) fn request_bootstrap(&mut self) {
        let object = self.object.clone();
        let Some(bootstrap) = &object.object.spec.bootstrap else {
            return;
        };
        if self.memory.restoring.is_none() {
            self.memory.restoring = Some(Asked {
                id: object.meta.uid.clone(),
                from: bootstrap.from.clone(),
                request: None,
            });
        }
    }

    /// The document asks for the newest verified snapshot where data is damaged. On a card that damages
    /// whatever is written to it that has an end, too, which outlives this operator.
    pub(super) fn request_recovery(
        &mut self,
        now: Option<Timestamp>,
    ) -> Result<(), ControllerError> {
        let pod = names::member(&self.name);
        let pod = self.shared.pods.get(&self.namespace, &pod);
        let (Some(pod), None) = (pod, &self.memory.restoring) else {
            return Ok(());
        };
        if too_many_recoveries(&self.paths, now) {
            self.memory.bootstrap_failed = Some(detail(format_args!(
                "the data was damaged again after {RECOVERIES_MAX} restores in a day: replace the disk"
            )));
            return Ok(());
        }
        state::create_private_dir(&self.paths.lib)?;
        note_recovery(&self.paths, now)?;
        self.memory.restoring = Some(Asked {
            id: pod.meta.uid.clone(),
            from: LATEST.to_owned(),
            request: None,
        });
        Ok(())
    }

    /// One step of what is under way.
    pub(super) async fn carry_restore_on(
        &mut self,
        spec: &ClusterSpec,
        observed: &Observed,
    ) -> Result<(), ControllerError> {
        let trusted = super::apply::trusted(observed).is_some();
        self.make_new_clusters(spec, trusted).await?;
        let Some(asked) = self.memory.restoring.clone() else {
            return self.clear_away().await;
        };
        let member = names::member(&self.name);
        if let Some(there) = self.shared.pods.get(&self.namespace, &member) {
            let details = observed.instances.first().and_then(|it| it.service.details);
            if let Some(details) = details {
                self.memory.live_revision = Some(details.revision);
            }
            let text = if there.meta.deleting {
                "the member ends"
            } else if asked.request.is_none() && there.owner.as_ref() == Some(&self.object.meta.uid)
            {
                // Its data is damaged: it does not serve, and is started again and again.
                self.remove_pod(&there, None).await?;
                "the member ends"
            } else {
                "the member is stopped"
            };
            return self.restore_says(&asked, text).await;
        }
        let name = names::restore_pod(&self.name);
        let Some(there) = self.shared.pods.get(&self.namespace, &name) else {
            return self.make_restore_pod(spec, &asked, &name).await;
        };
        if there.owner.as_deref() != Some(&self.object.meta.uid) {
            return Err(ControllerError::not_ours(Kind::Pod, &name));
        }
        match outcome(&there) {
            Outcome::Ended(restored) if restored.id == asked.id => {
                self.end_restore(&asked, *restored, &there).await
            }
            // Of an earlier request: it goes, and then comes this one.
            Outcome::Ended(_) | Outcome::Failed(_) | Outcome::Cut if there.meta.deleting => Ok(()),
            Outcome::Ended(_) => self.remove_pod(&there, None).await,
            Outcome::Cut => {
                let text = format!("its Pod was ended, another one goes on: {}", there.message);
                self.restore_says(&asked, &text).await?;
                self.remove_pod(&there, None).await
            }
            Outcome::Failed(why) => {
                let failed = Restored {
                    id: asked.id.clone(),
                    identity: self.identity.clone(),
                    succeeded: false,
                    snapshot: asked.from.clone(),
                    revision: 0,
                    revisions_lost: None,
                    message: why,
                };
                self.end_restore(&asked, failed, &there).await
            }
            Outcome::UnderWay(text) => self.restore_says(&asked, &text).await,
        }
    }

    /// The Pod of a restore whose end was told, and that could not be removed then.
    async fn clear_away(&self) -> Result<(), ControllerError> {
        let name = names::restore_pod(&self.name);
        let there = self.shared.pods.get(&self.namespace, &name);
        match there.filter(|it| it.owner.as_ref() == Some(&self.object.meta.uid)) {
            Some(it) if !it.meta.deleting && !matches!(outcome(&it), Outcome::UnderWay(_)) => {
                self.remove_pod(&it, None).await
            }
            _ => Ok(()),
        }
    }

    async fn make_restore_pod(
        &mut self,
        spec: &ClusterSpec,
        asked: &Asked,
        name: &str,
    ) -> Result<(), ControllerError> {
        let object = self.object.clone();
        let wire = &object.object.spec;
        let identity = if let Some(identity) = &self.identity {
            identity.clone()
        } else {
            let version = spec.version.unwrap_or(super::observe::VERSION_AT_BIRTH);
            let quota = spec.quota.unwrap_or_else(|| self.quota_at_birth());
            self.identity_at_birth(spec, version, quota)?
        };
        let born = self.identity.is_some();
        let Some(member) = self.pod_member(spec, &identity) else {
            return Ok(());
        };
        self.ensure_storage(spec, &member).await?;
        let mut arguments = vec!["--from".to_owned(), asked.from.clone()];
        if let Some(revision) = self.memory.live_revision.filter(|_| born) {
            arguments.extend(["--live-revision".to_owned(), revision.to_string()]);
        }
        let image = self.shared.image.borrow().clone();
        let parts = self.parts(spec, wire, &member, &image);
        let snapshots = self.snapshots_dir(&asked.from);
        let asks = pod::Restore {
            id: &asked.id,
            document: &document(&self.name, wire, &identity, self.claimed().is_some()),
            arguments: &arguments,
            snapshots: snapshots.as_deref(),
            claim: self.claimed(),
        };
        let made = pod::restore(&parts, &asks);
        if let Err(error) = self.objects.ensure(Kind::Pod, made, None).await {
            self.restore_says(asked, &error.to_string()).await?;
            return Err(error);
        }
        let text = format!("the Pod {name} brings the data of {} back", asked.from);
        self.tell("Restoring", &text, false).await;
        self.restore_says(asked, "its Pod was made").await
    }

    /// The directory of the node with the snapshots: this cluster's, or that of another of its namespace
    /// where the document names a file there.
    fn snapshots_dir(&self, from: &str) -> Option<String> {
        let own = pod::node_dir(&self.namespace, &self.name);
        let namespace = pod::node_dir(&self.namespace, "");
        let other = from
            .strip_prefix(&namespace)
            .and_then(|it| it.split('/').next());
        let dir = match other {
            Some(cluster) => pod::node_dir(&self.namespace, cluster),
            None if self.claimed().is_some() => return None,
            None => own,
        };
        std::path::Path::new(&dir).is_dir().then_some(dir)
    }

    async fn end_restore(
        &mut self,
        asked: &Asked,
        restored: Restored,
        there: &PodSeen,
    ) -> Result<(), ControllerError> {
        if let Some(identity) = &restored.identity {
            // The new cluster has ids of its own, which etcd tells once it serves in the member's Pod.
            self.identity = Some(identity.clone());
            self.memory.contact.forget();
            self.push().await?;
        }
        let lost = lost_words(restored.revisions_lost);
        if restored.succeeded {
            let text = format!(
                "{} at revision {} is back; {lost} revisions that were there before are lost",
                restored.snapshot, restored.revision
            );
            self.tell("Restored", &text, false).await;
        } else {
            let text = format!("not restored: {}", restored.message);
            self.tell("RestoreFailed", &text, true).await;
        }
        if let Some(request) = &asked.request {
            let status = EtcdRestoreStatus {
                phase: Some(if restored.succeeded {
                    Phase::Succeeded
                } else {
                    Phase::Failed
                }),
                snapshot: Some(restored.snapshot.clone()),
                revision: Some(restored.revision).filter(|_| restored.succeeded),
                revisions_lost: restored.revisions_lost,
                message: Some(restored.message.clone()).filter(|it| !it.is_empty()),
                completed: wire_now(),
            };
            self.write_restore(request, &status).await?;
            self.memory.note_end(&request.meta.uid);
        } else if !restored.succeeded {
            self.memory.bootstrap_failed = Some(detail(format_args!("{}", restored.message)));
        }
        self.remove_pod(there, None).await?;
        self.memory.restoring = None;
        Ok(())
    }

    /// Progress, written when its words change.
    async fn restore_says(&mut self, asked: &Asked, text: &str) -> Result<(), ControllerError> {
        let Some(request) = &asked.request else {
            return Ok(());
        };
        let before = request.object.status.clone().unwrap_or_default();
        if before.phase == Some(Phase::Running) && before.message.as_deref() == Some(text) {
            return Ok(());
        }
        let status = EtcdRestoreStatus {
            phase: Some(Phase::Running),
            message: Some(text.to_owned()),
            ..before
        };
        self.write_restore(request, &status).await
    }

    async fn write_restore(
        &self,
        request: &Watched<EtcdRestore>,
        status: &EtcdRestoreStatus,
    ) -> Result<(), ControllerError> {
        let resource = resource::<EtcdRestore>();
        let status = serde_json::to_value(status).unwrap_or_default();
        let shared = &self.shared;
        shared
            .write_status(&resource, &request.meta, &request.name, &status)
            .await
    }
}

/// What the host's command reads in the Pod of a restore or of a backup: the same cluster, on the volumes
/// of the Pod.
pub(super) fn document(
    name: &str,
    wire: &EtcdClusterSpec,
    identity: &crate::member::records::IdentityFile,
    claimed: bool,
) -> String {
    let mut spec = wire.clone();
    spec.size = 1;
    spec.paused = false;
    spec.version = Some(identity.version.clone());
    spec.storage.path = None;
    spec.storage.volume_claim = None;
    spec.storage.quota = Some(format!("{}Mi", identity.quota >> 20));
    spec.network.listen_addresses = Some(vec!["127.0.0.1".to_owned()]);
    spec.network.advertised_addresses = None;
    spec.bootstrap = None;
    let destinations = spec.backup.iter_mut().flat_map(|it| &mut it.destinations);
    for (index, destination) in destinations.enumerate() {
        if let Some(local) = destination.local.as_mut().filter(|_| claimed) {
            local.claim_name = None;
            local.path = Some(pod::CLAIM_DIR.to_owned());
        }
        let s3 = destination.s3.as_mut();
        if let Some(s3) = s3.filter(|it| it.credentials_secret.is_some()) {
            s3.credentials = Some(s3_credentials(index));
        }
    }
    let document = json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": "EtcdCluster",
        "metadata": {"name": name},
        "spec": spec,
    });
    serde_json::to_string(&without_nulls(document)).unwrap_or_default()
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .into_iter()
            .filter(|(_, it)| !it.is_null())
            .map(|(key, it)| (key, without_nulls(it)))
            .collect(),
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

/// How the Pod of a restore stands.
enum Outcome {
    UnderWay(String),
    Cut,
    Ended(Box<Restored>),
    Failed(String),
}

fn outcome(pod: &PodSeen) -> Outcome {
    let words = pod.last_words.as_deref();
    let restored = words.and_then(|it| serde_json::from_str::<Restored>(it).ok());
    match (pod.phase.as_str(), restored, &pod.container) {
        ("Succeeded", Some(restored), _) => Outcome::Ended(Box::new(restored)),
        ("Succeeded", None, _) => Outcome::Failed("the Pod ended without a word".to_owned()),
        // Evicted, or its node was shut down: what it began is on the volume, and the next Pod ends it.
        ("Failed", _, _) => Outcome::Cut,
        (_, _, Container::Waiting { reason, message }) if reason != "PodInitializing" => {
            Outcome::UnderWay(format!("{reason} {message}").trim().to_owned())
        }
        (_, _, Container::Running { .. }) => {
            Outcome::UnderWay("the snapshot is proven and new data made of it".to_owned())
        }
        _ => Outcome::UnderWay("its Pod starts".to_owned()),
    }
}

pub(super) fn wire_now() -> Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time> {
    serde_json::from_value(Value::String(rfc3339(clock::now()))).ok()
}
