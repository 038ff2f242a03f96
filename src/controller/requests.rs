//! What EtcdBackups and EtcdRestores have in common: in which order they are worked on, and what is said
//! of them in their status.

use std::rc::Rc;
use std::time::Duration;

use kube::Resource;
use kube::api::ApiResource;
use serde::Serialize;
use serde_json::{Value, json};

use super::objects::resource;
use super::restore::wire_now;
use super::seen::{Key, Meta, Seen};
use super::{Cluster, ControllerError, Shared, Watched};
use crate::api::requests::Phase;

/// An EtcdBackup or an EtcdRestore.
pub(super) trait Request: Resource<DynamicType = ()> + Serialize {}

impl<K: Resource<DynamicType = ()> + Serialize> Request for K {}

impl<K: Resource> Seen<Watched<K>> {
    /// Requests of a namespace, oldest first.
    pub(super) fn requests(
        &self,
        namespace: &str,
        wanted: impl Fn(&K) -> bool,
    ) -> Vec<Rc<Watched<K>>> {
        let mut all = self.all();
        all.retain(|it| it.meta.namespace == namespace && !it.meta.deleting && wanted(&it.object));
        all.sort_by_key(|it| {
            let created = it.object.meta().creation_timestamp.clone();
            (created.map(|it| it.0), it.name.clone())
        });
        all
    }
}

impl Cluster {
    /// Writes the status of a request.
    pub(super) async fn answer<K: Request>(
        &self,
        request: &Watched<K>,
        status: &impl Serialize,
    ) -> Result<(), ControllerError> {
        let mut status = serde_json::to_value(status).unwrap_or_default();
        let before = status_of(request);
        status["conditions"] = conditions(&status, &before["conditions"]);
        let (meta, name) = (&request.meta, &request.name);
        let shared = &self.shared;
        let resource = resource::<K>();
        let written = shared.write_status(&resource, meta, name, &status).await?;
        let phase = status["phase"].as_str().unwrap_or_default();
        let ended = matches!(phase, "Succeeded" | "Failed");
        let news = before["phase"] != phase && !self.memory.has_ended(meta);
        if ended && news && written.is_some() {
            let how = (phase, end_in_words(&status), phase == "Failed");
            let about = request.object.object_ref(&());
            shared.tell_of(how, &about).await;
        }
        Ok(())
    }

    /// Says why nobody works on a request yet.
    pub(super) async fn waits(
        &self,
        request: &Watched<impl Request>,
        why: &str,
    ) -> Result<(), ControllerError> {
        self.say(request, None, &format!("waits: {why}")).await
    }

    /// Says so of every request for this cluster that nobody works on.
    pub(super) async fn requests_wait(&mut self, why: &str) {
        let restores = self.restores_wait(why).await;
        if let Err(error) = restores.and(self.backups_wait(why).await) {
            tracing::debug!("{error}");
        }
    }

    /// Says how far a request is that is worked on.
    pub(super) async fn progress(
        &self,
        request: &Watched<impl Request>,
        text: &str,
    ) -> Result<(), ControllerError> {
        self.say(request, Some(Phase::Running), text).await
    }

    /// Written when it is news.
    async fn say(
        &self,
        request: &Watched<impl Request>,
        phase: Option<Phase>,
        text: &str,
    ) -> Result<(), ControllerError> {
        let before = status_of(request);
        let Some(mut status) = with_message(before.clone(), text) else {
            return Ok(());
        };
        if let Some(phase) = phase {
            status["phase"] = json!(phase);
        }
        if status == before {
            return Ok(());
        }
        self.answer(request, &status).await
    }
}

/// How a request ended, for the Event that `kubectl describe` shows beside it.
fn end_in_words(status: &Value) -> String {
    let message = status["message"].as_str().unwrap_or_default();
    match (status["snapshot"].as_str(), status["revision"].as_i64()) {
        (Some(name), Some(revision)) => {
            let text = format!("{name} at revision {revision}; {message}");
            text.trim_end_matches("; ").to_owned()
        }
        _ => message.to_owned(),
    }
}

/// What `kubectl wait`, Argo CD and Flux look at: Ready once it has ended as asked, Stalled once it has failed.
fn conditions(status: &Value, before: &Value) -> Value {
    let phase = status["phase"].as_str().unwrap_or("Waiting");
    let message = status["message"].as_str().unwrap_or_default();
    let condition = |kind: &str, holds: bool| {
        let value = if holds { "True" } else { "False" };
        let before = before.as_array().into_iter().flatten();
        let mut same = before.filter(|it| it["type"] == kind && it["status"] == value);
        let since = same.next().map(|it| it["lastTransitionTime"].clone());
        json!({
            "type": kind, "status": value, "reason": phase, "message": message,
            "lastTransitionTime": since.unwrap_or_else(|| json!(wire_now())),
        })
    };
    json!([
        condition("Ready", phase == "Succeeded"),
        condition("Stalled", phase == "Failed"),
    ])
}

/// Between two looks whether every watch was answered.
const UNTIL_READY: Duration = Duration::from_millis(50);

pub(super) fn status_of(request: &Watched<impl Request>) -> Value {
    let mut object = serde_json::to_value(&request.object).unwrap_or_default();
    object["status"].take()
}

/// The status of a request with a message, which is written whole. One that has ended stays as it is:
/// without its phase it would be taken up again.
pub(super) fn with_message(mut status: Value, message: &str) -> Option<Value> {
    let phase = status["phase"].as_str().unwrap_or_default();
    if ["Succeeded", "Failed"].contains(&phase) {
        return None;
    }
    if !status.is_object() {
        status = json!({});
    }
    status["message"] = message.into();
    Some(status)
}

/// Nobody works on a request whose cluster is not there: so much is said in its status.
fn without_cluster(request: &Watched<impl Request>, cluster: &str) -> Option<Value> {
    if request.meta.deleting {
        return None;
    }
    let message = format!(
        "there is no EtcdCluster {cluster} in this namespace yet that this operator can read"
    );
    with_message(status_of(request), &message)
}

/// Once everything is known: a request whose cluster is there is that one's to answer.
pub(super) async fn tell_if_alone(
    shared: Rc<Shared>,
    resource: ApiResource,
    request: Rc<Watched<impl Request>>,
    cluster: Key,
) {
    while !shared.is_ready_in(&cluster.0) {
        tokio::time::sleep(UNTIL_READY).await;
    }
    let there = shared.clusters.get(&cluster.0, &cluster.1);
    if there.is_none()
        && let Some(status) = without_cluster(&request, &cluster.1)
    {
        let (meta, name) = (request.meta.clone(), request.name.clone());
        answer(shared, resource, meta, name, status).await;
    }
}

/// What is said of an object that no cluster's own task works on.
pub(super) async fn answer(
    shared: Rc<Shared>,
    resource: ApiResource,
    meta: Meta,
    name: String,
    mut status: Value,
) {
    let before = status["conditions"].take();
    status["conditions"] = if resource.kind == "EtcdCluster" {
        before
    } else {
        conditions(&status, &before)
    };
    let said = shared.write_status(&resource, &meta, &name, &status);
    if let Err(error) = said.await {
        tracing::debug!("failed to write its status: {error}");
    }
}
