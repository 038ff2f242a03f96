//! The Pod of a restore: what it is made for stands on it, so that whoever acts next knows.

use std::net::SocketAddr;
use std::rc::Rc;

use kube::api::PostParams;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Asked, By, TRIED_AFTER_SECONDS};
use crate::api::{DeletionPolicy, EtcdClusterSpec, GROUP, Recovery, VERSION, formats};
use crate::backup::served::Served;
use crate::clock::{self, parse_rfc3339};
use crate::cluster::detail;
use crate::controller::claim::{SIZE_DEFAULT, Which};
use crate::controller::names;
use crate::controller::objects::Kind;
use crate::controller::seen::{Container, PodSeen};
use crate::controller::{Cluster, ControllerError, pod};
use crate::member::pod::{CLAIM_DIR, Restored, s3_credentials};
use crate::member::records::IdentityFile;
use crate::spec::ClusterSpec;
use crate::spec::backup::Keep;
use crate::version::VERSION_AT_BIRTH;

/// What such a Pod was made for, in an annotation of it.
#[derive(Serialize, Deserialize)]
struct MadeFor {
    id: String,
    from: String,
    by: ByWhom,
    /// Of the document.
    generation: i64,
    /// The worker's address.
    served: Option<SocketAddr>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum ByWhom {
    Request,
    Bootstrap,
    Recovery,
    Cut,
}

/// Who asked for a Pod that nobody here remembers. An EtcdRestore that is there is known otherwise.
pub(super) fn asked_by(pod: &PodSeen) -> Option<Asked> {
    let made_for: MadeFor = serde_json::from_str(pod.made_for.as_deref()?).ok()?;
    Some(Asked {
        id: made_for.id,
        from: made_for.from,
        generation: made_for.generation,
        by: match made_for.by {
            ByWhom::Request => By::Withdrawn,
            ByWhom::Bootstrap => By::Bootstrap,
            ByWhom::Recovery => By::Recovery,
            ByWhom::Cut => By::Cut,
        },
    })
}

/// A container that has run for so long, in seconds, fetches no more.
const FETCHES_SECONDS: i64 = 300;

/// Whether a Pod fetches from a worker that has another address now.
pub(super) fn is_misled(pod: &PodSeen, served: &Served) -> bool {
    if let Container::Running { started, .. } = &pod.container
        && let Some(started) = parse_rfc3339(started)
        && clock::now().seconds_since(started) > FETCHES_SECONDS
    {
        return false;
    }
    let made_for = pod.made_for.as_deref();
    let made_for = made_for.and_then(|it| serde_json::from_str::<MadeFor>(it).ok());
    let told = made_for.and_then(|it| it.served);
    told.is_some() && served.address.is_some() && told != served.address
}

fn malformed() -> ControllerError {
    ControllerError::Malformed(Kind::Pod.name())
}

impl Cluster {
    /// This cluster's Pod of a restore, however it stands.
    pub(super) fn own_restore_pod(&self) -> Option<Rc<PodSeen>> {
        let name = names::restore_pod(&self.name);
        let pod = self.shared.pods.get(&self.namespace, &name);
        pod.filter(|it| self.owns(it))
    }

    /// The Pod that works on this cluster's volume, until it has ended and that was taken note of.
    pub(in crate::controller) fn restore_pod(&self) -> Option<Rc<PodSeen>> {
        let pod = self.own_restore_pod()?;
        let ended = matches!(pod.phase.as_str(), "Succeeded" | "Failed");
        // An operator before this one has noted it where the member is back.
        let member = names::founder(&self.name);
        let is_back = || self.shared.pods.get(&self.namespace, &member).is_some();
        let goes = pod.meta.deleting && (pod.phase == "Failed" || is_back());
        let noted = self.memory.has_ended(&pod.meta) || goes;
        (!ended || !noted).then_some(pod)
    }

    pub(in crate::controller) async fn make_restore_pod(
        &mut self,
        spec: &ClusterSpec,
    ) -> Result<(), ControllerError> {
        let Some(asked) = self.memory.restoring.clone() else {
            return Ok(());
        };
        // Two never work on one volume; and one that has ended goes first.
        if self.pod_of_any().is_some() || self.own_restore_pod().is_some() {
            return Ok(());
        }
        if let Some(served) = self.source(&asked).0
            && served.address.is_none()
        {
            let (from, why) = (&asked.from, served.why);
            let why = format!("no worker serves the snapshot {from}: {why}");
            if matches!(asked.by, By::Bootstrap) {
                self.memory.restoring = None;
                self.note_failed(detail(format_args!("{why}")), TRIED_AFTER_SECONDS);
                return Ok(());
            }
            // It may just be made anew, of a document that was edited: a Pod without its address would fail at once.
            if !self.has_other_places() {
                if asked.request().is_none() {
                    self.tell("Restoring", &why, true).await; // nobody else's status says it
                }
                return self.restore_says(&asked, &why).await;
            }
        }
        let made = self.restore_pod_for(spec, &asked).await?;
        if let Err(error) = self.objects.ensure(Kind::Pod, made, None).await {
            self.restore_says(&asked, &error.to_string()).await?;
            return Err(error);
        }
        let name = names::restore_pod(&self.name);
        let text = match asked.by {
            By::Cut => format!("the Pod {name} finishes an interrupted restore"),
            _ => format!("the Pod {name} restores the data of {}", asked.from),
        };
        self.tell("Restoring", &text, false).await;
        self.restore_says(&asked, "the operator created its Pod")
            .await
    }

    /// With which this cluster signs its snapshots, as a document pins it.
    pub(in crate::controller) fn public_key(&self) -> Option<String> {
        self.certificates.signer().map(|it| it.public())
    }

    /// With which another cluster of the namespace signs its own, by its status.
    fn public_key_of(&self, cluster: &str) -> Option<String> {
        let there = self.shared.clusters.get(&self.namespace, cluster)?;
        let status = there.object.status.as_ref()?;
        status.backups.as_ref()?.signer.clone()
    }

    /// Whether the API server would take the Pod: a member is not stopped for one that can never run.
    pub(super) async fn try_restore_pod(
        &mut self,
        spec: &ClusterSpec,
        asked: &Asked,
    ) -> Result<(), ControllerError> {
        let name = names::restore_pod(&self.name);
        let made = self.restore_pod_for(spec, asked).await?;
        let made = serde_json::from_value(made).map_err(|_| malformed())?;
        let api = self.objects.api(Kind::Pod, &self.namespace);
        let dry = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        match api.create(&dry, &made).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(it)) if it.is_already_exists() => match self.restore_pod() {
                Some(_) => Ok(()),
                None => Err(ControllerError::not_ours(Kind::Pod, &name)),
            },
            Err(error) => Err(ControllerError::api("create", Kind::Pod, &name, error)),
        }
    }

    /// As whom the founder is restored.
    fn identity_to_restore(
        &self,
        spec: &ClusterSpec,
        asked: &Asked,
    ) -> Result<IdentityFile, ControllerError> {
        let Some(identity) = &self.members[0].identity else {
            let version = spec.version.unwrap_or(VERSION_AT_BIRTH);
            let quota = spec.quota.unwrap_or_else(|| self.quota_at_birth());
            return self.identity_at_birth(spec, version, quota);
        };
        let mut identity = identity.clone();
        let by_person = matches!(asked.by, By::Request(_) | By::Cut);
        let older = identity.older_line(spec.version).filter(|_| by_person);
        if let Some(older) = older {
            identity.restore_as(older);
            identity
                .member
                .image
                .clone_from(&self.object.object.spec.image);
        }
        Ok(identity)
    }

    async fn restore_pod_for(
        &mut self,
        spec: &ClusterSpec,
        asked: &Asked,
    ) -> Result<Value, ControllerError> {
        let object = self.object.clone();
        let wire = &object.object.spec;
        let identity = self.identity_to_restore(spec, asked)?;
        let born = self.members[0].identity.is_some();
        let member = self.pod_member(spec, &identity).ok_or_else(malformed)?;
        self.ensure_claim(Which::Data(0)).await?;
        let (served, from) = self.source(asked);
        let claim = match (&asked.by, &served) {
            (By::Bootstrap, None) => {
                self.ensure_claim(Which::Snapshots).await?;
                self.claim_of_snapshots()
            }
            _ => None,
        };
        let mut arguments = vec!["--from".to_owned(), from.to_owned()];
        if let Some(revision) = self.memory.live_revision.filter(|_| born) {
            arguments.extend(["--live-revision".to_owned(), revision.to_string()]);
        }
        let by = match asked.by {
            By::Request(_) | By::Withdrawn => ByWhom::Request,
            By::Recovery => ByWhom::Recovery,
            By::Bootstrap => {
                arguments.push("--bootstrap".to_owned());
                ByWhom::Bootstrap
            }
            By::Cut => {
                arguments.push("--resume".to_owned());
                ByWhom::Cut
            }
        };
        let image = self.shared.image.borrow().clone();
        let parts = self.parts(spec, wire, &member, &image);
        let asks = pod::Restore {
            id: &asked.id,
            document: &document(&self.name, wire, &identity),
            signer: match &served {
                Some(it) if it.cluster != self.name => self.public_key_of(&it.cluster),
                _ => self.public_key(),
            },
            arguments: &arguments,
            served: served.as_ref(),
            claim: claim.as_deref(),
        };
        let mut made = pod::restore(&parts, &asks);
        let made_for = MadeFor {
            id: asked.id.clone(),
            from: asked.from.clone(),
            by,
            generation: self.generation(),
            served: served.and_then(|it| it.address),
        };
        let made_for = serde_json::to_string(&made_for).unwrap_or_default();
        made["metadata"]["annotations"][names::MADE_FOR] = made_for.into();
        Ok(made)
    }

    /// Which worker serves the snapshots of a restore, and the name that it is asked for. None: a bootstrap of what lies on
    /// this cluster's own claim, for which nobody works yet.
    pub(super) fn source<'a>(&self, asked: &'a Asked) -> (Option<Served>, &'a str) {
        let from = asked.from.as_str();
        match (&asked.by, from.split_once('/')) {
            (By::Bootstrap, Some((cluster, name))) if cluster == self.name => (None, name),
            (By::Bootstrap, Some((cluster, name))) => (Some(self.served_by(cluster)), name),
            (By::Bootstrap | By::Cut, None) => (None, from),
            _ => (Some(self.served_here()), from),
        }
    }
}

/// What the host's command reads in the Pod of a restore or of a backup: the same cluster, on the volumes
/// of the Pod.
pub(in crate::controller) fn document(
    name: &str,
    wire: &EtcdClusterSpec,
    identity: &IdentityFile,
) -> String {
    let mut spec = wire.clone();
    spec.size = 1;
    spec.paused = false;
    spec.version = Some(identity.member.version.clone());
    spec.image.clone_from(&identity.member.image);
    spec.storage.volume_claim = None;
    spec.storage.quota = Some(format!("{}Mi", identity.member.quota >> 20));
    spec.network.listen_addresses = Some(vec!["127.0.0.1".to_owned()]);
    spec.network.advertised_addresses = None;
    spec.bootstrap = None;
    // Neither a restore nor a worker uses these: an edit of them replaces no Pod of theirs.
    spec.clients = Vec::new();
    (spec.pod, spec.service) = (None, None);
    spec.recovery = Recovery::default();
    spec.deletion_policy = DeletionPolicy::default();
    let destinations = spec.backup.iter_mut().flat_map(|it| &mut it.destinations);
    for (index, destination) in destinations.enumerate() {
        if let Some(local) = &mut destination.local {
            // What the claim has room for, where its size is known: etcd and others leave it alone.
            if local.claim_name.is_none() && local.max_bytes.is_none() {
                let size = local.claim.as_ref().map_or(SIZE_DEFAULT, |it| &it.size);
                let half = formats::bytes(size).map(|it| (it / 2).min(Keep::BYTES_LOCAL));
                local.max_bytes = half.map(|it| format!("{}Mi", (it >> 20).max(1)));
            }
            (local.claim, local.claim_name) = (None, None);
            local.path = Some(CLAIM_DIR.to_owned());
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
pub(super) enum Outcome {
    UnderWay(String),
    /// It has not begun, or is to be started again.
    Waits(String),
    /// Kubernetes ended it.
    Cut,
    Ended(Box<Restored>),
    Failed(String),
}

pub(super) fn outcome(pod: &PodSeen) -> Outcome {
    let words = pod.last_words.as_deref();
    let restored = words.and_then(|it| serde_json::from_str::<Restored>(it).ok());
    match (pod.phase.as_str(), restored, &pod.container) {
        ("Succeeded", Some(restored), _) => Outcome::Ended(Box::new(restored)),
        ("Succeeded", None, _) => Outcome::Failed("the Pod ended without a message".to_owned()),
        // Evicted, or its node was shut down: what it began is on the volume, and the next Pod ends it.
        ("Failed", _, _) => Outcome::Cut,
        (_, _, Container::Waiting { reason, .. }) if reason == "CrashLoopBackOff" => {
            Outcome::Waits(format!("its Pod fails, and {}", pod.restarts()))
        }
        (_, _, Container::Waiting { reason, message }) if reason != "PodInitializing" => {
            Outcome::Waits(format!("{reason} {message}").trim().to_owned())
        }
        (_, _, Container::None) if pod.reason == "Unschedulable" => {
            Outcome::Waits(format!("its Pod cannot be scheduled: {}", pod.message))
        }
        (_, _, Container::Running { .. }) => Outcome::UnderWay(
            "the operator verifies the snapshot and makes new data from it".to_owned(),
        ),
        _ => Outcome::Waits("its Pod starts".to_owned()),
    }
}
