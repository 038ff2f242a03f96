//! An EtcdRestore into a new cluster: an EtcdCluster is made whose document asks for the data.

use kube::api::{Api, DynamicObject, PostParams};

use super::wire_now;
use crate::api::requests::{EtcdRestoreStatus, Phase};
use crate::api::{EtcdCluster, EtcdClusterSpec, EtcdRestore};
use crate::controller::names::{self, OPERATOR};
use crate::controller::objects::{Kind, resource};
use crate::controller::{Cluster, ControllerError, Watched};
use crate::spec::backup::SIGNERS_MAX;

impl Cluster {
    /// Restores into a new cluster: it is made with the specification of this one and its snapshot.
    pub(super) async fn make_new_clusters(&mut self) -> Result<(), ControllerError> {
        for request in self.requests() {
            let Some(into) = request.object.spec.into.clone() else {
                continue;
            };
            let there = self.shared.clusters.get(&self.namespace, &into);
            let mut status = match &there {
                None => self.make_new_cluster(&request, &into).await?,
                Some(there) => progress(&request, there),
            };
            let before = request.object.status.as_ref();
            status.conditions = before.map(|it| it.conditions.clone()).unwrap_or_default();
            if Some(&status) != before {
                self.answer(&request, &status).await?;
                if status.phase.is_some_and(Phase::is_end) {
                    self.memory.note_end(&request.meta.uid);
                }
            }
        }
        Ok(())
    }

    /// What an earlier one of this name left: it would be served in place of the snapshot.
    async fn left_of(&self, into: &str) -> Result<Option<String>, ControllerError> {
        let claims = names::members(into).map(|it| (Kind::Claim, names::claim(&it, 0)));
        let secret = (Kind::Secret, names::authority_secret(into));
        for (kind, name) in std::iter::once(secret).chain(claims) {
            let there = self.objects.get(kind, &self.namespace, &name).await?;
            if there.is_some() {
                return Ok(Some(format!("the {} {name}", kind.name())));
            }
        }
        Ok(None)
    }

    async fn make_new_cluster(
        &mut self,
        request: &Watched<EtcdRestore>,
        into: &str,
    ) -> Result<EtcdRestoreStatus, ControllerError> {
        let asked = &request.object.spec.from;
        let cluster = self.new_cluster(request, into, asked)?;
        let resource = resource::<EtcdCluster>();
        let client = self.shared.client.clone();
        let api: Api<DynamicObject> = Api::namespaced_with(client, &self.namespace, &resource);
        let parameters = PostParams {
            field_manager: Some(OPERATOR.to_owned()),
            ..PostParams::default()
        };
        let running = EtcdRestoreStatus {
            phase: Some(Phase::Running),
            ..EtcdRestoreStatus::default()
        };
        let create = |error| ControllerError::of_server("create", "EtcdCluster", into, error);
        let dry = PostParams {
            dry_run: true,
            ..parameters.clone()
        };
        self.shared.confirmed.confirm().await?;
        match api.create(&dry, &cluster).await {
            Ok(_) => {}
            // Made already, and the watch is behind; or somebody else's, which is seen then.
            Err(kube::Error::Api(it)) if it.is_already_exists() => return Ok(running),
            Err(error) => return Err(create(error)),
        }
        if let Some(left) = self.left_of(into).await? {
            return Ok(failed(format!(
                "{left} of an earlier cluster exists: delete it, or choose another name"
            )));
        }
        let name = match self.counting(asked).await {
            Ok(Some(name)) => name,
            Ok(None) => {
                let name = &self.name;
                return Ok(failed(format!(
                    "there is no verified snapshot {asked} of {name}"
                )));
            }
            Err(error) => return Ok(waits(error.to_string())),
        };
        let cluster = self.new_cluster(request, into, &name)?;
        match api.create(&parameters, &cluster).await {
            Ok(_) => Ok(EtcdRestoreStatus {
                phase: Some(Phase::Running),
                snapshot: Some(name),
                message: Some(format!("the operator created the EtcdCluster {into}")),
                ..EtcdRestoreStatus::default()
            }),
            Err(kube::Error::Api(it)) if it.is_already_exists() => Ok(running),
            Err(error) => Err(create(error)),
        }
    }

    /// It begins with this snapshot of this cluster.
    fn new_cluster(
        &self,
        request: &Watched<EtcdRestore>,
        into: &str,
        snapshot: &str,
    ) -> Result<DynamicObject, ControllerError> {
        let from = format!("{}/{snapshot}", self.name);
        let mut cluster = EtcdCluster::new(into, self.copied(from));
        cluster.metadata.namespace = Some(self.namespace.clone());
        let by = (names::RESTORED_BY.to_owned(), request.meta.uid.clone());
        cluster.metadata.annotations = Some([by].into());
        let made = serde_json::to_value(&cluster).and_then(serde_json::from_value);
        made.map_err(|_| ControllerError::Malformed("EtcdCluster"))
    }

    /// The specification for another cluster of the namespace.
    fn copied(&self, from: String) -> EtcdClusterSpec {
        let mut spec = self.object.object.spec.clone();
        // A port of the nodes belongs to one Service.
        if let Some(service) = &mut spec.service {
            service.node_port = None;
        }
        // The new cluster has another key, and takes what this one signed.
        if let (Some(backup), Some(key)) = (&mut spec.backup, self.public_key()) {
            backup.trusted_signers.retain(|it| *it != key);
            backup.trusted_signers.insert(0, key);
            backup.trusted_signers.truncate(SIGNERS_MAX);
        }
        spec.bootstrap = Some(crate::api::Bootstrap { from });
        spec
    }
}

/// What nobody knows yet is no failure.
fn waits(message: String) -> EtcdRestoreStatus {
    EtcdRestoreStatus {
        phase: Some(Phase::Running),
        message: Some(message),
        ..EtcdRestoreStatus::default()
    }
}

pub(super) fn failed(message: String) -> EtcdRestoreStatus {
    EtcdRestoreStatus {
        phase: Some(Phase::Failed),
        message: Some(message),
        completed: wire_now(),
        ..EtcdRestoreStatus::default()
    }
}

/// How far a restore into a new cluster is, by that cluster's own status.
fn progress(request: &Watched<EtcdRestore>, there: &Watched<EtcdCluster>) -> EtcdRestoreStatus {
    let before = request.object.status.clone().unwrap_or_default();
    let annotations = there.object.metadata.annotations.as_ref();
    let ours = annotations.and_then(|it| it.get(names::RESTORED_BY)) == Some(&request.meta.uid);
    if !ours {
        return EtcdRestoreStatus {
            phase: Some(Phase::Failed),
            message: Some(format!(
                "the EtcdCluster {} exists already; the operator does not change it",
                there.name
            )),
            completed: wire_now(),
            ..before
        };
    }
    let status = there.object.status.clone().unwrap_or_default();
    let condition = |kind: &str| status.conditions.iter().find(|it| it.type_ == kind);
    let available = condition("Available").is_some_and(|it| it.status == "True");
    let failed = status.plan.hold.as_deref() == Some("RestoreFailed");
    let message = if failed {
        status.plan.message.clone()
    } else {
        condition("Available").map(|it| it.message.clone())
    };
    EtcdRestoreStatus {
        phase: Some(match (available, failed) {
            (true, _) => Phase::Succeeded,
            (_, true) => Phase::Failed,
            _ => Phase::Running,
        }),
        message,
        completed: if available || failed {
            wire_now()
        } else {
            None
        },
        ..before
    }
}
