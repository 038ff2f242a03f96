//! Objects at the API server: made, corrected, removed, and never taken over.

use std::collections::BTreeMap;
use std::rc::Rc;

use k8s_openapi::api::core::v1;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GetParams, Patch, PatchParams, PostParams,
    Preconditions,
};
use kube::{Client, Resource, ResourceExt as _};
use serde_json::Value;

use super::ControllerError;
use super::confirmed::{ANSWER, Confirmed};
use super::names::{CLUSTER, CLUSTER_NAMESPACE, MADE_FROM, MANAGED_BY, OPERATOR};
use super::seen::{Meta, addresses};
use crate::clock;

/// Kinds that the controller makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Pod,
    Service,
    Secret,
    Claim,
    NetworkPolicy,
    DisruptionBudget,
}

impl Kind {
    pub(super) fn resource(self) -> ApiResource {
        match self {
            Kind::Pod => resource::<v1::Pod>(),
            Kind::Service => resource::<v1::Service>(),
            Kind::Secret => resource::<v1::Secret>(),
            Kind::Claim => resource::<v1::PersistentVolumeClaim>(),
            Kind::NetworkPolicy => resource::<NetworkPolicy>(),
            Kind::DisruptionBudget => resource::<PodDisruptionBudget>(),
        }
    }

    /// As people call it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Pod => "Pod",
            Kind::Service => "Service",
            Kind::Secret => "Secret",
            Kind::Claim => "PersistentVolumeClaim",
            Kind::NetworkPolicy => "NetworkPolicy",
            Kind::DisruptionBudget => "PodDisruptionBudget",
        }
    }
}

/// What was last sent of an object, and what the server answered.
#[derive(Clone, PartialEq, Eq)]
struct Sent {
    resource_version: String,
    sum: String,
}

impl Sent {
    fn of(resource_version: &str, sum: String) -> Self {
        Sent {
            resource_version: resource_version.to_owned(),
            sum,
        }
    }
}

/// Kind, namespace and name.
type Key = (Kind, String, String);

/// What is not watched is looked at again after so many seconds. Secrets are not watched: the right would read those of
/// every namespace.
const LOOKED_SECONDS: u64 = 60;

/// The objects of one cluster.
pub(super) struct Objects {
    client: Client,
    /// Nothing is written before it says that this operator acts.
    confirmed: Rc<Confirmed>,
    /// So that nothing is sent twice while nothing has changed.
    sent: BTreeMap<Key, Sent>,
    /// What is not watched, and when it was looked at, in seconds since boot.
    looked: BTreeMap<Key, u64>,
    /// What an operator before this one left, as it was read.
    read: BTreeMap<Key, DynamicObject>,
    /// Addresses of Services, by name.
    addresses: BTreeMap<String, Vec<String>>,
}

impl Objects {
    pub(super) fn new(client: Client, confirmed: Rc<Confirmed>) -> Self {
        Objects {
            client,
            confirmed,
            sent: BTreeMap::new(),
            looked: BTreeMap::new(),
            read: BTreeMap::new(),
            addresses: BTreeMap::new(),
        }
    }

    /// The addresses of a Service that was sent, by the server's answer; the watch is behind it.
    pub(super) fn addresses(&self, service: &str) -> Option<&Vec<String>> {
        self.addresses.get(service)
    }

    /// Takes note of an object that was read whole: where it is as it shall be, it is not sent.
    pub(super) fn note_read(&mut self, kind: Kind, object: DynamicObject) {
        let namespace = object.namespace().unwrap_or_default();
        let key = (kind, namespace, object.name_any());
        self.read.insert(key, object);
    }

    pub(super) fn api(&self, kind: Kind, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &kind.resource())
    }

    pub(super) async fn get(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
    ) -> Result<Option<DynamicObject>, ControllerError> {
        let found = self.api(kind, namespace).get_opt(name).await;
        found.map_err(|error| ControllerError::api("read", kind, name, error))
    }

    /// Makes an object, or puts back what differs. `seen`: what the watch knows of it; none: it is made,
    /// and one of the same name that is not ours is left alone.
    pub(super) async fn ensure(
        &mut self,
        kind: Kind,
        object: Value,
        seen: Option<&Meta>,
    ) -> Result<(), ControllerError> {
        let sum = crate::state::sha256(object.to_string().as_bytes());
        let mut object: DynamicObject =
            serde_json::from_value(object).map_err(|_| ControllerError::Malformed(kind.name()))?;
        if matches!(
            kind,
            Kind::Service | Kind::NetworkPolicy | Kind::DisruptionBudget
        ) {
            let from = sum[..16].to_owned();
            object.annotations_mut().insert(MADE_FROM.to_owned(), from);
        }
        let (name, namespace) = (object.name_any(), object.namespace().unwrap_or_default());
        let key: Key = (kind, namespace.clone(), name.clone());
        let sent = self.sent.get(&key);
        match seen {
            Some(meta) if !is_ours(&meta.labels, &object) => {
                return Err(ControllerError::not_ours(kind, &name));
            }
            // Going: what comes after it is made when it has gone.
            Some(meta) if meta.deleting => return Ok(()),
            Some(meta)
                if sent.is_some_and(|it| {
                    it.sum == sum && it.resource_version == meta.resource_version
                }) =>
            {
                return Ok(());
            }
            // Of an operator before this one.
            Some(meta) if sent.is_none() && is_made_from(meta, &object) => {
                self.sent.insert(key, Sent::of(&meta.resource_version, sum));
                return Ok(());
            }
            _ => {}
        }
        if let Some(read) = self.is_as_read(&key, &object, seen) {
            self.remember(key, &read, sum);
            return Ok(());
        }
        self.confirmed.confirm().await?;
        let api = self.api(kind, &namespace);
        let failed = |error| ControllerError::api("write", kind, &name, error);
        if seen.is_none() {
            let made = PostParams {
                field_manager: Some(OPERATOR.to_owned()),
                ..PostParams::default()
            };
            match api.create(&made, &object).await {
                Ok(answer) => {
                    self.remember(key, &answer, sum);
                    return Ok(());
                }
                Err(kube::Error::Api(status)) if status.is_already_exists() => {
                    // Ours, and the watch is behind; or somebody else's.
                    let there = api.get_metadata(&name).await.map_err(failed)?;
                    if !is_ours(there.labels(), &object) {
                        return Err(ControllerError::not_ours(kind, &name));
                    }
                    if there.metadata.deletion_timestamp.is_some() {
                        let kind = kind.name();
                        return Err(ControllerError::Going { kind, name });
                    }
                }
                Err(error) => return Err(failed(error)),
            }
        }
        if matches!(kind, Kind::Pod | Kind::Claim) {
            return Ok(()); // what these are, they are for life
        }
        let answer = correct(&api, &name, &object).await;
        let answer = answer.map_err(|error| ControllerError::api("write", kind, &name, error))?;
        self.remember(key, &answer, sum);
        Ok(())
    }

    /// What was read whole and is as it shall be.
    fn is_as_read(
        &mut self,
        key: &Key,
        object: &DynamicObject,
        seen: Option<&Meta>,
    ) -> Option<DynamicObject> {
        let read = self.read.remove(key)?;
        let same = read.metadata.resource_version.as_ref() == Some(&seen?.resource_version);
        (same && is_same(&read, object)).then_some(read)
    }

    /// The same for what is not watched: looked at when it changes, and every [`LOOKED_SECONDS`].
    pub(super) async fn ensure_unwatched(
        &mut self,
        kind: Kind,
        object: Value,
    ) -> Result<(), ControllerError> {
        if self.is_fresh(kind, &object) {
            return Ok(());
        }
        let key = key_of(kind, &object);
        let there = match self.read.get(&key) {
            Some(read) => Some(Meta::of(&read.metadata)),
            None => self.metadata_of(&key).await?,
        };
        self.ensure(kind, object, there.as_ref()).await?;
        self.looked.insert(key, clock::since_boot().as_secs());
        Ok(())
    }

    async fn metadata_of(
        &self,
        (kind, namespace, name): &Key,
    ) -> Result<Option<Meta>, ControllerError> {
        // An API server that is away keeps a pass waiting once, and not for each object.
        self.confirmed.confirm().await?;
        // From the server's memory: nothing is read from its disk for it.
        let (api, from) = (self.api(*kind, namespace), GetParams::any());
        let there = tokio::time::timeout(ANSWER, api.get_metadata_opt_with(name, &from)).await;
        let there = there.map_err(|_| ControllerError::Api {
            what: "read",
            kind: kind.name(),
            name: name.clone(),
            code: 0,
            why: "no answer".to_owned(),
        })?;
        let there = there.map_err(|error| ControllerError::api("read", *kind, name, error))?;
        Ok(there.map(|it| Meta::of(&it.metadata)))
    }

    /// Whether it was sent as it is, and was looked at a moment ago.
    pub(super) fn is_fresh(&self, kind: Kind, object: &Value) -> bool {
        let key = key_of(kind, object);
        let sum = crate::state::sha256(object.to_string().as_bytes());
        let now = clock::since_boot().as_secs();
        let looked = self.looked.get(&key);
        let looked = looked.is_some_and(|it| now < it + LOOKED_SECONDS);
        looked && self.sent.get(&key).is_some_and(|it| it.sum == sum)
    }

    fn remember(&mut self, key: Key, answer: &DynamicObject, sum: String) {
        if key.0 == Kind::Service {
            self.addresses
                .insert(key.2.clone(), addresses(&answer.data));
        }
        let version = answer.resource_version().unwrap_or_default();
        self.sent.insert(key, Sent::of(&version, sum));
    }

    /// Removes exactly the object that was seen; one that has gone already is as good.
    pub(super) async fn remove(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        uid: &str,
        grace_seconds: Option<u32>,
    ) -> Result<(), ControllerError> {
        let parameters = DeleteParams {
            grace_period_seconds: grace_seconds,
            ..exactly(Some(uid.to_owned()), None)
        };
        let api = self.api(kind, namespace);
        let removed = self.remove_seen((&api, kind.name()), name, &parameters);
        removed.await.map(drop)
    }

    /// Whether it was removed; one that has gone, or is not what was seen any more, is not.
    pub(super) async fn remove_seen(
        &self,
        (api, kind): (&Api<DynamicObject>, &'static str),
        name: &str,
        seen: &DeleteParams,
    ) -> Result<bool, ControllerError> {
        self.confirmed.confirm().await?;
        match api.delete(name, seen).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {
                Ok(false)
            }
            Err(error) => Err(ControllerError::of_server("remove", kind, name, error)),
        }
    }
}

/// Puts back what differs.
async fn correct(
    api: &Api<DynamicObject>,
    name: &str,
    object: &DynamicObject,
) -> Result<DynamicObject, kube::Error> {
    let parameters = PatchParams::apply(OPERATOR).force();
    match api.patch(name, &parameters, &Patch::Apply(object)).await {
        // Beside what somebody wrote into a list ours does not fit: the list is replaced.
        Err(kube::Error::Api(it)) if it.code == 422 => {
            let whole = PatchParams {
                field_manager: Some(OPERATOR.to_owned()),
                ..PatchParams::default()
            };
            api.patch(name, &whole, &Patch::Merge(object)).await
        }
        answer => answer,
    }
}

/// A removal of this object, or of this version of it, and of no other one.
pub(super) fn exactly(uid: Option<String>, resource_version: Option<String>) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions {
            uid,
            resource_version,
        }),
        ..DeleteParams::default()
    }
}

/// Whether it was made from just this, and is as it was made.
fn is_made_from(there: &Meta, object: &DynamicObject) -> bool {
    let from = object.annotations().get(MADE_FROM);
    from.is_some() && there.made_from.as_ref() == from
}

/// Whether what was read is as it shall be, in all that this operator says of it.
fn is_same(read: &DynamicObject, object: &DynamicObject) -> bool {
    let owners = |it: &DynamicObject| it.metadata.owner_references.clone().unwrap_or_default();
    let same = |field: &str| read.data[field] == object.data[field];
    read.metadata.labels == object.metadata.labels
        && owners(read) == owners(object)
        && same("data")
        && same("type")
}

fn key_of(kind: Kind, object: &Value) -> Key {
    let text = |pointer: &str| {
        let found = object.pointer(pointer).and_then(Value::as_str);
        found.unwrap_or_default().to_owned()
    };
    (kind, text("/metadata/namespace"), text("/metadata/name"))
}

/// Whether an object with these labels was made for this cluster of its namespace.
pub(super) fn is_made_for(labels: &BTreeMap<String, String>, cluster: &str) -> bool {
    let says = |key: &str, value: &str| labels.get(key).is_some_and(|it| it == value);
    says(MANAGED_BY, OPERATOR) && says(CLUSTER, cluster)
}

/// Whether what is there was made for the same cluster: two clusters' objects may have one name.
fn is_ours(there: &BTreeMap<String, String>, object: &DynamicObject) -> bool {
    let same = |key: &str| there.get(key) == object.labels().get(key);
    there.get(MANAGED_BY).map(String::as_str) == Some(OPERATOR)
        && same(CLUSTER)
        && same(CLUSTER_NAMESPACE)
}

/// The resource of a type, for watches.
pub(super) fn resource<K>() -> ApiResource
where
    K: Resource<DynamicType = ()>,
{
    ApiResource::erase::<K>(&())
}
