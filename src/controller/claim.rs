//! The member's claim: what it asks for, and that it grows where its class lets it.

use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::names::{self, CLUSTER, MANAGED_BY, OPERATOR};
use super::objects::Kind;
use super::{Cluster, ControllerError};
use crate::api::formats;
use crate::clock;
use crate::cluster::{Detail, detail};

/// Asked for where the document names no size.
pub(super) const SIZE_DEFAULT: &str = "2Gi";

/// A class that let no claim grow is asked again after so long: somebody may have changed it.
const AGAIN_SECONDS: u64 = 600;

/// What became of the size that a document names.
#[derive(Debug)]
pub(super) struct Grown {
    size: String,
    /// When, in seconds since boot.
    at: u64,
    /// Why it did not grow to it.
    pub(super) refused: Option<Detail>,
}

/// What the API server says where a claim's class lets none grow.
const NO_GROWTH: &str = "can be resized";

impl Cluster {
    /// Asks for more where the document names more than the claim has. It never asks for less: no volume shrinks.
    pub(super) async fn grow_claim(&mut self) -> Result<(), ControllerError> {
        let storage = &self.object.object.spec.storage;
        let Some(size) = storage.volume_claim.as_ref().map(|it| it.size.clone()) else {
            return Ok(());
        };
        let now = clock::since_boot().as_secs();
        let known = self.memory.grown.as_ref().filter(|it| it.size == size);
        if known.is_some_and(|it| it.refused.is_none() || now < it.at + AGAIN_SECONDS) {
            return Ok(());
        }
        let name = names::claim(&self.name);
        let (kind, namespace) = (Kind::Claim, self.namespace.as_str());
        let Some(claim) = self.objects.get(kind, namespace, &name).await? else {
            return Ok(());
        };
        let labels = claim.metadata.labels.clone().unwrap_or_default();
        let ours = labels.get(MANAGED_BY).is_some_and(|it| it == OPERATOR)
            && labels.get(CLUSTER) == Some(&self.name);
        let there = claim.data["spec"]["resources"]["requests"]["storage"].as_str();
        let there = there.and_then(formats::bytes);
        // What somebody wrote in another unit is left as it is.
        let less = there.zip(formats::bytes(&size)).is_some_and(|(a, b)| a < b);
        if !ours || (less && claim.data["status"]["phase"] != "Bound") {
            return Ok(()); // nothing grows before it has a volume
        }
        let mut refused = None;
        if less {
            self.shared.confirmed.confirm().await?;
            let more = json!({"spec": {"resources": {"requests": {"storage": size}}}});
            let parameters = PatchParams {
                field_manager: Some(OPERATOR.to_owned()),
                ..PatchParams::default()
            };
            let api = self.objects.api(kind, namespace);
            match api.patch(&name, &parameters, &Patch::Merge(&more)).await {
                Ok(_) => {
                    let text = detail(format_args!("the claim {name} asks for {size} now"));
                    self.tell("ClaimGrows", &text, false).await;
                }
                Err(kube::Error::Api(it)) if it.message.contains(NO_GROWTH) => {
                    refused = Some(detail(format_args!(
                        "spec.storage.volumeClaim.size: the claim {name} cannot grow to {size}: its StorageClass does not allow it; next: set allowVolumeExpansion in the class, or restore a snapshot into a new cluster"
                    )));
                }
                Err(error) => return Err(ControllerError::api("write", kind, &name, error)),
            }
        }
        self.memory.grown = Some(Grown {
            size,
            at: now,
            refused,
        });
        Ok(())
    }
}
