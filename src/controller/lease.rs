//! Who acts, where the operator runs on several nodes: the holder of one Lease.
//!
//! Renewals are what wears the disk under an API server, so there is none while nobody could take over:
//! the Lease is written once, renewed only while another operator's Pod is there, and released on
//! SIGTERM. A candidate counts by its own clock from when it saw the Lease change last, and is seen by
//! the holder as a Pod long before it may act.

use std::rc::Rc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::json;

use super::confirmed::{AGAIN, ANSWER, CONFIRMED_SECONDS, NAME, holder};
use super::names::OPERATOR;
use super::objects::resource;
use super::{ControllerError, Shared};
use crate::clock::rfc3339;
use crate::clock::{self, Since};

/// A holder that has not renewed for so long has gone.
const EXPIRES_SECONDS: u64 = 50;
/// How often a holder renews while another operator could take over.
const RENEW: Duration = Duration::from_secs(15);
/// How often a candidate looks.
const LOOK: Duration = Duration::from_secs(1);
/// A holder that could not renew for so long no longer acts. With what the last attempt takes it is less
/// than [`EXPIRES_SECONDS`].
const YIELD_SECONDS: u64 = 35;
/// How it was come by.
enum Taken {
    /// Nobody held it, or an operator of this node that has ended.
    Free,
    /// Its holder has not renewed it.
    Expired,
}

pub(super) struct Lease {
    shared: Rc<Shared>,
    api: Api<DynamicObject>,
}

impl Lease {
    pub(super) fn new(shared: &Rc<Shared>) -> Self {
        Lease {
            api: Api::namespaced_with(
                shared.client.clone(),
                &shared.own.namespace,
                &resource::<v1::Lease>(),
            ),
            shared: shared.clone(),
        }
    }

    fn identity(&self) -> &str {
        &self.shared.confirmed.identity
    }

    /// Waits until this operator may act.
    pub(super) async fn acquire(&self) {
        let mut told = String::new();
        let mut unchanged = Since::default();
        loop {
            let attempt = tokio::time::timeout(ANSWER, self.attempt(&mut unchanged)).await;
            let attempt =
                attempt.unwrap_or_else(|_| Err("the Lease cannot be read: no answer".to_owned()));
            match attempt {
                // Whoever held it may have read it right before, and reads it again only then.
                Ok(Taken::Expired) => {
                    return tokio::time::sleep(Duration::from_secs(CONFIRMED_SECONDS)).await;
                }
                Ok(Taken::Free) => return,
                Err(text) if text != told => {
                    tracing::info!("{text}");
                    told = text;
                }
                Err(_) => {}
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Takes it where it is free. `unchanged`: since when its version has been what it is.
    async fn attempt(&self, unchanged: &mut Since) -> Result<Taken, String> {
        match self.api.get_opt(NAME).await {
            Ok(Some(lease)) => {
                let holder = holder(&lease);
                let version = lease.metadata.resource_version.clone().unwrap_or_default();
                let seconds = unchanged.seconds(&version);
                let free = holder.is_empty() || holder == self.identity();
                if free {
                    self.take(Some(version)).await.map(|()| Taken::Free)
                } else if seconds > EXPIRES_SECONDS {
                    self.take(Some(version)).await.map(|()| Taken::Expired)
                } else {
                    Err(format!("standing by: {holder} acts"))
                }
            }
            Ok(None) => self.take(None).await.map(|()| Taken::Free),
            Err(error) => Err(format!("the Lease cannot be read: {error}")),
        }
    }

    /// Takes it, exactly as it was seen: of two that try, one is refused.
    async fn take(&self, version: Option<String>) -> Result<(), String> {
        let lease = self.object(self.identity(), version.as_deref());
        let lease: DynamicObject = serde_json::from_value(lease).map_err(|it| it.to_string())?;
        let parameters = PostParams::default();
        let asked = clock::since_boot().as_secs();
        let taken = if version.is_some() {
            self.api.replace(NAME, &parameters, &lease).await
        } else {
            self.api.create(&parameters, &lease).await
        };
        taken
            .map(|_| self.shared.confirmed.note(asked))
            .map_err(|error| format!("the Lease was not taken: {error}"))
    }

    fn object(&self, holder: &str, version: Option<&str>) -> serde_json::Value {
        // The server takes this time with a fraction only.
        let now = rfc3339(clock::now()).replace('Z', ".000000Z");
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": NAME,
                "namespace": self.shared.own.namespace,
                "resourceVersion": version,
            },
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": EXPIRES_SECONDS,
                "renewTime": now,
            },
        })
    }

    /// Whether another operator could take over.
    fn contested(&self) -> bool {
        let own = &self.shared.own.pod;
        self.shared.pods.all().iter().any(|it| {
            it.meta
                .labels
                .get("app.kubernetes.io/component")
                .is_some_and(|it| it == "operator")
                && it.meta.namespace == self.shared.own.namespace
                && it.name != *own
                && !it.meta.deleting
        })
    }

    /// Keeps it. Returns when it was lost: nothing may be done any more.
    pub(super) async fn keep(&self) -> Result<(), ControllerError> {
        tokio::select! {
            ended = self.renew_where_contested() => ended,
            lost = self.shared.confirmed.lost() => Err(lost),
        }
    }

    async fn renew_where_contested(&self) -> Result<(), ControllerError> {
        let mut renewed = clock::since_boot().as_secs();
        loop {
            if !self.contested() {
                self.shared.operators.notified().await;
                renewed = clock::since_boot().as_secs();
                continue;
            }
            let asked = clock::since_boot().as_secs();
            let renewal = tokio::time::timeout(ANSWER, self.renew()).await;
            let wait = match renewal.unwrap_or(Err(None)) {
                Ok(()) => {
                    renewed = asked;
                    RENEW
                }
                Err(Some(holder)) => return Err(ControllerError::LeaseLost(holder)),
                Err(None) if clock::since_boot().as_secs() >= renewed + YIELD_SECONDS => {
                    return Err(ControllerError::LeaseLost("nobody known".to_owned()));
                }
                Err(None) => AGAIN,
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Renews it; otherwise who holds it, if that is known.
    async fn renew(&self) -> Result<(), Option<String>> {
        let lease = self.api.get(NAME).await.map_err(|_| None)?;
        let holder = holder(&lease);
        if holder != self.identity() {
            return Err(Some(holder));
        }
        let version = lease.metadata.resource_version;
        self.take(version).await.map_err(|_| None)
    }

    /// Whether it is still ours.
    async fn is_ours(&self) -> bool {
        let Ok(lease) = self.api.get(NAME).await else {
            return false;
        };
        holder(&lease) == self.identity()
    }

    /// Gives it back, so that the next operator need not wait.
    pub(super) async fn release(&self) {
        if tokio::time::timeout(ANSWER, self.give_back())
            .await
            .is_err()
        {
            tracing::warn!("the operator did not release the Lease: no answer");
        }
    }

    async fn give_back(&self) {
        self.shared.confirmed.end();
        let nobody = json!({"spec": {"holderIdentity": "", "renewTime": null}});
        let parameters = PatchParams {
            field_manager: Some(OPERATOR.to_owned()),
            ..PatchParams::default()
        };
        if self.is_ours().await
            && let Err(error) = self
                .api
                .patch(NAME, &parameters, &Patch::Merge(nobody))
                .await
        {
            tracing::warn!("the operator did not release the Lease: {error}");
        }
    }
}
