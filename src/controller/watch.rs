//! Watches: they bring what changed into [`super::seen`] and ring the cluster that it concerns.

use std::fmt::Debug;
use std::rc::Rc;

use futures_util::TryStreamExt as _;
use k8s_openapi::api::core::v1;
use kube::api::{Api, DynamicObject, ObjectMeta, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{Config, Event};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::Notify;

use super::names::{OPERATOR, OURS};
use super::objects::resource;
use super::seen::{Key, Meta, PodSeen, Seen};
use super::{Shared, Watched, keep_cluster};
use crate::api::{EtcdBackup, EtcdCluster, EtcdRestore};
use crate::clock;

/// The label of the operator's own Pods.
const COMPONENT: &str = "app.kubernetes.io/component";

fn key(meta: &ObjectMeta) -> Key {
    (
        meta.namespace.clone().unwrap_or_default(),
        meta.name.clone().unwrap_or_default(),
    )
}

fn mapped<K, T>(event: Event<K>, map: impl Fn(K) -> (Key, T)) -> Event<(Key, T)> {
    match event {
        Event::Apply(it) => Event::Apply(map(it)),
        Event::Delete(it) => Event::Delete(map(it)),
        Event::Init => Event::Init,
        Event::InitApply(it) => Event::InitApply(map(it)),
        Event::InitDone => Event::InitDone,
    }
}

/// Members' Pods, and the operator's own.
pub(super) fn pods(shared: &Rc<Shared>) {
    let api: Api<DynamicObject> = Api::all_with(shared.client.clone(), &resource::<v1::Pod>());
    let stream = watcher(api, Config::default().labels(OURS));
    let shared = shared.clone();
    tokio::task::spawn_local(async move {
        let feed = |event: Event<DynamicObject>| {
            let event = mapped(event, |pod| (key(&pod.metadata), PodSeen::of(&pod)));
            for pod in shared.pods.feed(event) {
                if pod
                    .meta
                    .labels
                    .get(COMPONENT)
                    .is_some_and(|it| it == "operator")
                {
                    shared.operators.notify_one();
                }
                if let Some(cluster) = pod.meta.cluster() {
                    shared.ring(&cluster);
                }
            }
        };
        run("Pods", &shared, stream, feed).await;
    });
}

/// Everything else that a pass looks at.
pub(super) fn everything(shared: &Rc<Shared>) {
    metadata::<v1::Service>("Services", shared, |it| &it.services);
    metadata::<v1::Secret>("Secrets", shared, |it| &it.secrets);
    metadata::<v1::PersistentVolumeClaim>("PersistentVolumeClaims", shared, |it| &it.claims);
    requests::<EtcdBackup>(
        "EtcdBackups",
        shared,
        |it| &it.backups,
        |it| it.spec.cluster.clone(),
    );
    requests::<EtcdRestore>(
        "EtcdRestores",
        shared,
        |it| &it.restores,
        |it| it.spec.cluster.clone(),
    );
    clusters(shared);
}

fn clusters(shared: &Rc<Shared>) {
    let stream = watcher(
        Api::<EtcdCluster>::all(shared.client.clone()),
        Config::default(),
    );
    let shared = shared.clone();
    tokio::task::spawn_local(async move {
        let feed = |event: Event<EtcdCluster>| {
            let event = mapped(event, |it| (key(&it.metadata), watched(it)));
            for cluster in shared.clusters.feed(event) {
                let key = (cluster.meta.namespace.clone(), cluster.name.clone());
                let known = shared.bells.borrow().contains_key(&key);
                let exists = shared.clusters.get(&key.0, &key.1).is_some();
                if known {
                    shared.ring(&key);
                } else if exists {
                    let bell = Rc::new(Notify::new());
                    shared.bells.borrow_mut().insert(key.clone(), bell.clone());
                    tokio::task::spawn_local(keep_cluster(shared.clone(), key, bell));
                }
            }
        };
        run("EtcdClusters", &shared, stream, feed).await;
    });
}

fn watched<K: Resource>(mut object: K) -> Watched<K> {
    object.managed_fields_mut().clear();
    Watched {
        meta: Meta::of(object.meta()),
        name: object.name_any(),
        object,
    }
}

/// EtcdBackups and EtcdRestores: they ring the cluster that they name.
fn requests<K>(
    what: &'static str,
    shared: &Rc<Shared>,
    seen: fn(&Shared) -> &Seen<Watched<K>>,
    cluster: fn(&K) -> String,
) where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    K: Resource<Scope = kube::core::NamespaceResourceScope>,
{
    let stream = watcher(Api::<K>::all(shared.client.clone()), Config::default());
    let shared = shared.clone();
    tokio::task::spawn_local(async move {
        let feed = |event: Event<K>| {
            let event = mapped(event, |it| (key(it.meta()), watched(it)));
            for it in seen(&shared).feed(event) {
                let key = (it.meta.namespace.clone(), cluster(&it.object));
                if shared.is_ready() && shared.clusters.get(&key.0, &key.1).is_none() {
                    tokio::task::spawn_local(waits_for_cluster(shared.clone(), it, key));
                } else {
                    shared.ring(&key);
                }
            }
        };
        run(what, &shared, stream, feed).await;
    });
}

/// Nobody works on a request whose cluster is not there: so much is said in its status, once.
async fn waits_for_cluster<K>(shared: Rc<Shared>, request: Rc<Watched<K>>, (namespace, name): Key)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    K: Resource<Scope = kube::core::NamespaceResourceScope>,
{
    if request.meta.deleting {
        return;
    }
    let api = Api::<K>::namespaced(shared.client.clone(), &namespace);
    let object = json!({
        "apiVersion": K::api_version(&()),
        "kind": K::kind(&()),
        "metadata": {"name": request.name, "uid": request.meta.uid},
        "status": {"message": format!("there is no EtcdCluster {name} in this namespace yet")},
    });
    let parameters = PatchParams::apply(OPERATOR).force();
    let patch = Patch::Apply(object);
    if let Err(error) = api.patch_status(&request.name, &parameters, &patch).await {
        tracing::debug!("a request was not answered: {error}");
    }
}

/// Only names, labels and versions: the content of no Secret is ever listed.
fn metadata<K>(what: &'static str, shared: &Rc<Shared>, seen: fn(&Shared) -> &Seen<Meta>)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let api = Api::<PartialObjectMeta<K>>::all(shared.client.clone());
    let stream = watcher(api, Config::default().labels(OURS));
    let shared = shared.clone();
    tokio::task::spawn_local(async move {
        let feed = |event: Event<PartialObjectMeta<K>>| {
            let event = mapped(event, |it| (key(&it.metadata), Meta::of(&it.metadata)));
            for meta in seen(&shared).feed(event) {
                if let Some(cluster) = meta.cluster() {
                    shared.ring(&cluster);
                }
            }
        };
        run(what, &shared, stream, feed).await;
    });
}

/// Runs a watch for good: what the server refuses is logged when it changes, and asked for again.
async fn run<K>(
    what: &'static str,
    shared: &Shared,
    stream: impl futures_util::Stream<Item = Result<Event<K>, kube::runtime::watcher::Error>>,
    feed: impl Fn(Event<K>),
) {
    let mut told = String::new();
    let stream = stream.default_backoff();
    let mut stream = std::pin::pin!(stream);
    loop {
        match stream.try_next().await {
            Ok(Some(event)) => {
                shared.answered.set(clock::since_boot().as_secs());
                if !told.is_empty() {
                    tracing::info!("{what} are seen again");
                    told.clear();
                }
                feed(event);
            }
            Ok(None) => return,
            Err(error) => {
                let text = super::chain(&error);
                if text != told {
                    let hint = if text.contains("404") {
                        "; apply deploy/crds.yaml of this version"
                    } else {
                        ""
                    };
                    tracing::warn!("{what} cannot be watched: {text}{hint}");
                    told = text;
                }
            }
        }
    }
}
