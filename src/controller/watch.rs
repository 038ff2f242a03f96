//! Watches: they bring what changed into [`super::seen`] and ring the cluster that it concerns.
//!
//! All of them are watches of one type, which is compiled once: objects of ours are made of what they bring.

use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use futures_util::{Stream, TryStreamExt as _};
use k8s_openapi::api::core::v1;
use kube::Resource;
use kube::api::{Api, ApiResource, DynamicObject, ObjectMeta};
use kube::core::DynamicResourceScope;
use kube::runtime::watcher;
use kube::runtime::watcher::{Config, Error, Event};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::names::{NEW_AUTHORITY, OURS, RESTORED_BY};
use super::objects::resource;
use super::requests::{answer, tell_if_alone, with_message};
use super::seen::{ClaimSeen, EVERYWHERE, Key, Meta, PodSeen, Scope, Seen, ServiceSeen};
use super::{Own, Shared, Watched, keep_cluster};
use crate::api::{EtcdBackup, EtcdCluster, EtcdRestore};
use crate::error::chain;

/// The label of the operator's own Pods.
const COMPONENT: &str = "app.kubernetes.io/component";

fn key(meta: &ObjectMeta) -> Key {
    (
        meta.namespace.clone().unwrap_or_default(),
        meta.name.clone().unwrap_or_default(),
    )
}

/// The event of what is made of its object; none where nothing can be made of it.
fn mapped<K, T>(event: Event<K>, map: impl Fn(K) -> Option<T>) -> Option<Event<T>> {
    Some(match event {
        Event::Apply(it) => Event::Apply(map(it)?),
        Event::Delete(it) => Event::Delete(map(it)?),
        Event::Init => Event::Init,
        Event::InitApply(it) => Event::InitApply(map(it)?),
        Event::InitDone => Event::InitDone,
    })
}

type Objects = Pin<Box<dyn Stream<Item = Result<Event<DynamicObject>, Error>>>>;

/// What is watched for clusters: the namespaces that this operator was given, or all in one.
pub(super) fn scopes(own: &Own) -> Vec<String> {
    match own.namespaces.as_slice() {
        [] => vec![EVERYWHERE.to_owned()],
        given => given.to_vec(),
    }
}

/// The same for Pods: operators are among them.
pub(super) fn scopes_of_pods(own: &Own) -> Vec<String> {
    let mut scopes = scopes(own);
    if !own.works_in(&own.namespace) {
        scopes.push(own.namespace.clone());
    }
    scopes
}

fn api<K>(shared: &Shared, scope: &Scope, resource: &ApiResource) -> Api<K>
where
    K: Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>,
{
    let client = shared.client.clone();
    match scope {
        EVERYWHERE => Api::all_with(client, resource),
        namespace => Api::namespaced_with(client, namespace, resource),
    }
}

fn objects(shared: &Shared, scope: &Scope, resource: &ApiResource, config: Config) -> Objects {
    let api = api::<DynamicObject>(shared, scope, resource);
    Box::pin(watcher(api, config))
}

/// Objects a page. An object may have more than 256 KiB of annotations, and a page is in memory at once.
const PAGE: u32 = 50;

fn paged() -> Config {
    Config::default().page_size(PAGE)
}

/// Members' Pods, and the operator's own.
pub(super) fn pods(shared: &Rc<Shared>) {
    for scope in scopes_of_pods(&shared.own) {
        let pods = ("Pods", &Rc::from(scope));
        made::<v1::Pod, _>(pods, shared, |it| &it.pods, PodSeen::of, |it| &it.meta);
    }
}

/// Objects of one kind that the operator made: each rings the cluster that it was made for.
fn made<K: Resource<DynamicType = ()>, T: PartialEq + 'static>(
    (what, scope): (&'static str, &Rc<Scope>),
    shared: &Rc<Shared>,
    seen: fn(&Shared) -> &Seen<T>,
    of: fn(&DynamicObject) -> T,
    meta: fn(&T) -> &Meta,
) {
    let stream = objects(shared, scope, &resource::<K>(), paged().labels(OURS));
    let scope = scope.clone();
    let shared = shared.clone();
    tokio::task::spawn_local(async move {
        let feed = |event| {
            let event = mapped(event, |it: DynamicObject| {
                Some((key(&it.metadata), of(&it)))
            });
            let fed = event.map(|it| seen(&shared).feed(&scope, it));
            for it in fed.unwrap_or_default() {
                let meta = meta(&it);
                let component = meta.labels.get(COMPONENT);
                if component.is_some_and(|it| it == "operator") {
                    shared.operators.notify_one();
                }
                if let Some(cluster) = meta.cluster() {
                    shared.ring(&cluster);
                }
            }
        };
        run(what, stream, &feed).await;
    });
}

/// Everything else that a pass looks at.
pub(super) fn everything(shared: &Rc<Shared>) {
    for scope in scopes(&shared.own) {
        let scope: Rc<Scope> = scope.into();
        made::<v1::Service, _>(
            ("Services", &scope),
            shared,
            |it| &it.services,
            ServiceSeen::of,
            |it| &it.meta,
        );
        made::<v1::PersistentVolumeClaim, _>(
            ("PersistentVolumeClaims", &scope),
            shared,
            |it| &it.claims,
            ClaimSeen::of,
            |it| &it.meta,
        );
        requests::<EtcdBackup>(
            ("EtcdBackups", &scope),
            shared,
            |it| &it.backups,
            |it| it.spec.cluster.clone(),
        );
        requests::<EtcdRestore>(
            ("EtcdRestores", &scope),
            shared,
            |it| &it.restores,
            |it| it.spec.cluster.clone(),
        );
        clusters(shared, scope);
    }
}

fn clusters(shared: &Rc<Shared>, scope: Rc<Scope>) {
    let stream = objects(shared, &scope, &resource::<EtcdCluster>(), paged());
    let shared = shared.clone();
    tokio::task::spawn_local(async move {
        let feed = |event| {
            for cluster in fed(&shared.clusters, &scope, event, |it| readable(&shared, it)) {
                let key = (cluster.meta.namespace.clone(), cluster.name.clone());
                let known = shared.bells.borrow().contains_key(&key);
                let exists = shared.clusters.get(&key.0, &key.1).is_some();
                ring_source(&shared, &cluster);
                if known {
                    shared.ring(&key);
                } else if exists {
                    let bell = Rc::new(Notify::new());
                    shared.bells.borrow_mut().insert(key.clone(), bell.clone());
                    tokio::task::spawn_local(keep_cluster(shared.clone(), key, bell));
                }
            }
        };
        run("EtcdClusters", stream, &feed).await;
    });
}

/// Whoever waits for a cluster that an EtcdRestore made is told of it at once.
fn ring_source(shared: &Shared, cluster: &Watched<EtcdCluster>) {
    let annotations = cluster.object.metadata.annotations.as_ref();
    let Some(by) = annotations.and_then(|it| it.get(RESTORED_BY)) else {
        return;
    };
    let all = shared.restores.all();
    if let Some(request) = all.iter().find(|it| it.meta.uid == *by) {
        let source = &request.object.spec.cluster;
        shared.ring(&(request.meta.namespace.clone(), source.clone()));
    }
}

/// Takes in what was read of an event; what was deleted has gone, whether or not it could be read.
fn fed<T: PartialEq>(
    seen: &Seen<T>,
    scope: &Scope,
    event: Event<DynamicObject>,
    read: impl Fn(DynamicObject) -> Option<(Key, T)>,
) -> Vec<Rc<T>> {
    if let Event::Delete(it) = &event {
        return seen.forget(&key(&it.metadata));
    }
    let event = mapped(event, read);
    event.map(|it| seen.feed(scope, it)).unwrap_or_default()
}

/// An object of ours. One that this version cannot read is left out, and its status says why.
fn readable<K>(shared: &Rc<Shared>, mut object: DynamicObject) -> Option<(Key, Watched<K>)>
where
    K: Resource<DynamicType = ()> + DeserializeOwned,
{
    object.metadata.managed_fields = None;
    keep_ours(&mut object.metadata);
    let key = key(&object.metadata);
    let meta = Meta::of(&object.metadata);
    // The same words at the same time are no change, and ring for nobody.
    let since = object.metadata.creation_timestamp.clone();
    let before = object.data["status"].clone();
    let name = key.1.clone();
    match serde_json::to_value(object).and_then(serde_json::from_value) {
        Ok(object) => Some((key, Watched { meta, name, object })),
        Err(error) => {
            let version = env!("CARGO_PKG_VERSION");
            let why = format!("etcd-operator {version} cannot read this object: {error}");
            tracing::warn!(namespace = key.0, name, "{why}");
            let resource = resource::<K>();
            let status = if resource.kind == "EtcdCluster" {
                Some(unreadable(&why, &json!(since)))
            } else {
                with_message(before, &why)
            };
            if let Some(status) = status {
                tokio::task::spawn_local(answer(shared.clone(), resource, meta, name, status));
            }
            None
        }
    }
}

/// What others annotate is nothing to us, and may be large.
fn keep_ours(metadata: &mut ObjectMeta) {
    if let Some(annotations) = &mut metadata.annotations {
        annotations.retain(|it, value| {
            [RESTORED_BY, NEW_AUTHORITY].contains(&it.as_str()) && value.len() <= UID_MAX
        });
    }
}

/// A UID has 36 characters.
const UID_MAX: usize = 64;

fn unreadable(why: &str, since: &Value) -> Value {
    let condition = |kind: &str, status: &str| {
        json!({
            "type": kind, "status": status, "reason": "SpecUnreadable", "message": why,
            "lastTransitionTime": since,
        })
    };
    json!({
        "conditions": [condition("Available", "Unknown"), condition("Degraded", "True")],
        "plan": {
            "hold": "SpecUnreadable",
            "message": why,
            "nextStep": "apply deploy/etcd-operator.yaml of the version that these CRDs belong to",
        },
    })
}

/// EtcdBackups and EtcdRestores: they ring the cluster that they name.
fn requests<K>(
    (what, scope): (&'static str, &Rc<Scope>),
    shared: &Rc<Shared>,
    seen: fn(&Shared) -> &Seen<Watched<K>>,
    cluster: fn(&K) -> String,
) where
    K: Resource<DynamicType = ()> + DeserializeOwned + Serialize + 'static,
{
    let resource = resource::<K>();
    let stream = objects(shared, scope, &resource, paged());
    let (shared, scope) = (shared.clone(), scope.clone());
    tokio::task::spawn_local(async move {
        let feed = |event| {
            for it in fed(seen(&shared), &scope, event, |it| readable(&shared, it)) {
                let key = (it.meta.namespace.clone(), cluster(&it.object));
                shared.ring(&key);
                let (shared, resource) = (shared.clone(), resource.clone());
                tokio::task::spawn_local(tell_if_alone(shared, resource, it, key));
            }
        };
        run(what, stream, &feed).await;
    });
}

/// Milliseconds until the next attempt after so many failed ones. What happens meanwhile is not seen: an
/// API server that is back is not kept waiting.
const RETRY: [u64; 5] = [200, 500, 1000, 2000, 5000];

/// Runs a watch for good: what the server refuses is logged when it changes, and asked for again.
async fn run(what: &'static str, mut stream: Objects, feed: &dyn Fn(Event<DynamicObject>)) {
    let mut told = String::new();
    let mut failed = 0;
    loop {
        match stream.try_next().await {
            Ok(Some(event)) => {
                // A list that begins is no answer yet.
                if !matches!(event, Event::Init) {
                    failed = 0;
                    if !told.is_empty() {
                        tracing::info!("{what} are watched again");
                        told.clear();
                    }
                }
                feed(event);
            }
            Ok(None) => return,
            Err(error) => {
                // The server is there, and forgot where the watch was: all is listed anew.
                if matches!(&error, Error::WatchError(it) if it.code == 410) {
                    failed = 0;
                }
                let text = chain(&error);
                if text != told {
                    let hint = if text.contains("404") {
                        "; apply deploy/crds.yaml of this version"
                    } else {
                        ""
                    };
                    tracing::warn!("{what} cannot be watched: {text}{hint}");
                    told = text;
                }
                let wait = RETRY[failed.min(RETRY.len() - 1)];
                tokio::time::sleep(Duration::from_millis(wait)).await;
                failed += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_annotate_is_not_kept_in_memory() {
        let large = "x".repeat(250_000);
        let annotations = [
            ("kubectl.kubernetes.io/last-applied-configuration", &large),
            ("a/b", &"c".to_owned()),
            (
                RESTORED_BY,
                &"1b4e28ba-2fa1-11d2-883f-0016d3cca427".to_owned(),
            ),
        ];
        let mut metadata = ObjectMeta {
            annotations: Some(
                annotations
                    .map(|(key, it)| (key.to_owned(), it.clone()))
                    .into(),
            ),
            ..ObjectMeta::default()
        };
        keep_ours(&mut metadata);
        let kept = metadata.annotations.clone().unwrap_or_default();
        assert_eq!(kept.into_keys().collect::<Vec<_>>(), [RESTORED_BY]);
        metadata.annotations = Some([(RESTORED_BY.to_owned(), large)].into());
        keep_ours(&mut metadata);
        assert_eq!(metadata.annotations, Some([].into()));
    }
}
