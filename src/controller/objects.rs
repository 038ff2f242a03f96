//! Objects at the API server: made, corrected, removed, and never taken over.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions,
};
use kube::{Client, Resource, ResourceExt as _};
use serde_json::Value;

use super::ControllerError;
use super::names::{CLUSTER, CLUSTER_NAMESPACE, MANAGED_BY, OPERATOR};
use super::seen::Meta;

/// Kinds that the controller makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Pod,
    Service,
    Secret,
    Claim,
    NetworkPolicy,
}

impl Kind {
    pub(super) fn resource(self) -> ApiResource {
        match self {
            Kind::Pod => resource::<v1::Pod>(),
            Kind::Service => resource::<v1::Service>(),
            Kind::Secret => resource::<v1::Secret>(),
            Kind::Claim => resource::<v1::PersistentVolumeClaim>(),
            Kind::NetworkPolicy => resource::<NetworkPolicy>(),
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
        }
    }
}

/// What was last sent of an object, and what the server answered.
#[derive(Clone, PartialEq, Eq)]
struct Sent {
    resource_version: String,
    sum: String,
}

/// The objects of one cluster.
pub(super) struct Objects {
    client: Client,
    /// So that nothing is sent twice while nothing has changed.
    sent: BTreeMap<(Kind, String, String), Sent>,
}

impl Objects {
    pub(super) fn new(client: Client) -> Self {
        Objects {
            client,
            sent: BTreeMap::new(),
        }
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
        let object: DynamicObject =
            serde_json::from_value(object).map_err(|_| ControllerError::Malformed(kind.name()))?;
        let (name, namespace) = (object.name_any(), object.namespace().unwrap_or_default());
        let key = (kind, namespace.clone(), name.clone());
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
            _ => {}
        }
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
        let parameters = PatchParams::apply(OPERATOR).force();
        let answer = match api.patch(&name, &parameters, &Patch::Apply(&object)).await {
            // Beside what somebody wrote into a list ours does not fit: the list is replaced.
            Err(kube::Error::Api(it)) if it.code == 422 => {
                let whole = PatchParams {
                    field_manager: Some(OPERATOR.to_owned()),
                    ..PatchParams::default()
                };
                api.patch(&name, &whole, &Patch::Merge(&object)).await
            }
            answer => answer,
        };
        let answer = answer.map_err(|error| ControllerError::api("write", kind, &name, error))?;
        self.remember(key, &answer, sum);
        Ok(())
    }

    /// What the watch shows is what was sent last, and that is this.
    pub(super) fn is_as_sent(&self, kind: Kind, object: &Value, seen: &Meta) -> bool {
        let sum = crate::state::sha256(object.to_string().as_bytes());
        let sent = self.sent.get(&key_of(kind, object));
        sent.is_some_and(|it| it.sum == sum && it.resource_version == seen.resource_version)
    }

    /// The same for what is not watched: sent once in the life of this operator, and when it changes.
    pub(super) async fn ensure_once(
        &mut self,
        kind: Kind,
        object: Value,
    ) -> Result<(), ControllerError> {
        let sum = crate::state::sha256(object.to_string().as_bytes());
        if self
            .sent
            .get(&key_of(kind, &object))
            .is_some_and(|it| it.sum == sum)
        {
            return Ok(());
        }
        self.ensure(kind, object, None).await
    }

    fn remember(&mut self, key: (Kind, String, String), answer: &DynamicObject, sum: String) {
        let resource_version = answer.resource_version().unwrap_or_default();
        let sent = Sent {
            resource_version,
            sum,
        };
        self.sent.insert(key, sent);
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
            preconditions: Some(Preconditions {
                uid: Some(uid.to_owned()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match self.api(kind, namespace).delete(name, &parameters).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {
                Ok(())
            }
            Err(error) => Err(ControllerError::api("remove", kind, name, error)),
        }
    }
}

fn key_of(kind: Kind, object: &Value) -> (Kind, String, String) {
    let text = |pointer: &str| {
        let found = object.pointer(pointer).and_then(Value::as_str);
        found.unwrap_or_default().to_owned()
    };
    (kind, text("/metadata/namespace"), text("/metadata/name"))
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
