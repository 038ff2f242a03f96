//! The claims of data and snapshots: what they ask for, that they grow where their class lets them, and that one is made
//! anew where it never had a volume and the document was corrected.

use std::rc::Rc;

use kube::api::{DynamicObject, Patch, PatchParams};
use serde_json::json;

use super::names::{self, OPERATOR, STORAGE_CLASS};
use super::objects::{Kind, exactly, is_made_for};
use super::seen::PodSeen;
use super::{Cluster, ControllerError};
use crate::api::formats;
use crate::clock;
use crate::cluster::{Detail, detail};
use crate::member::records::IdentityFile;
use crate::spec::ClusterSpec;

/// Wanted for where the document names no size.
pub(super) const SIZE_DEFAULT: &str = "2Gi";

/// Which claim of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Which {
    Data,
    Snapshots,
}

impl Which {
    pub(super) const ALL: [Which; 2] = [Which::Data, Which::Snapshots];

    pub(super) fn name(self, cluster: &str) -> String {
        match self {
            Which::Data => names::claim(cluster),
            Which::Snapshots => names::snapshots_claim(cluster),
        }
    }

    /// The Pod that mounts it.
    fn pod(self, cluster: &str) -> String {
        match self {
            Which::Data => names::member(cluster),
            Which::Snapshots => names::backup_pod(cluster),
        }
    }

    /// Where the document speaks of it.
    fn field(self) -> &'static str {
        match self {
            Which::Data => "spec.storage.volumeClaim",
            Which::Snapshots => "spec.backup.destinations[].local.claim",
        }
    }
}

/// What the document asks of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    size: String,
    /// Empty where it names none.
    class: String,
}

/// What became of it.
#[derive(Debug)]
pub(super) struct Tended {
    asked: Wanted,
    /// When it is looked at again, in seconds since boot; none: it is as asked.
    again: Option<u64>,
    /// Why the claim is not as asked.
    pub(super) refused: Option<Detail>,
}

/// A claim that stayed as it is is looked at again after so long: somebody may have changed its class.
const REFUSED_SECONDS: u64 = 600;
/// One that has no volume yet, or goes, is looked at again after so long.
const WAITS_SECONDS: u64 = 15;

/// What the API server says where a claim's class lets none grow.
const NO_GROWTH: &str = "can be resized";

/// A claim as the API server has it.
struct There<'a> {
    state: State,
    /// The class that the document named when the claim was made; none: the operator did not make it.
    made_with: Option<&'a str>,
    class: Option<&'a str>,
    /// Bytes; none where nobody can tell.
    size: Option<u64>,
}

/// What may be done with it, at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Foreign,
    Going,
    /// It never had a volume. The same words as the policy for the operator's account.
    Unbound,
    Bound,
    /// Its volume is coming, or was lost.
    Other,
}

/// What a claim needs.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// It goes, or has no volume yet, or belongs to somebody else.
    Wait,
    /// It has no volume and was made with another class.
    Replace,
    Grow,
    Keep,
}

impl<'a> There<'a> {
    fn of(claim: &'a DynamicObject, cluster: &str) -> Self {
        let labels = claim.metadata.labels.as_ref();
        let annotations = claim.metadata.annotations.as_ref();
        let (spec, phase) = (&claim.data["spec"], claim.data["status"]["phase"].as_str());
        let volume = spec["volumeName"].as_str().unwrap_or_default();
        let size = spec["resources"]["requests"]["storage"].as_str();
        let is_ours = labels.is_some_and(|it| is_made_for(it, cluster));
        There {
            state: match phase {
                _ if !is_ours => State::Foreign,
                _ if claim.metadata.deletion_timestamp.is_some() => State::Going,
                Some("Pending") if volume.is_empty() => State::Unbound,
                Some("Bound") => State::Bound,
                _ => State::Other,
            },
            made_with: annotations
                .and_then(|it| it.get(STORAGE_CLASS))
                .map(String::as_str),
            class: spec["storageClassName"].as_str(),
            size: size.and_then(formats::bytes),
        }
    }

    /// The document asks for another class than the claim was made with and has. A cluster's default class, which the
    /// API server wrote in, is no other one.
    fn has_another_class(&self, asked: &Wanted) -> bool {
        self.made_with.is_some_and(|it| it != asked.class)
            && self.class.unwrap_or_default() != asked.class
    }

    /// Why a claim with a volume stays with its class.
    fn keeps_its_class(&self, which: Which, name: &str, asked: &Wanted) -> Option<Detail> {
        let (has, field) = (self.class.unwrap_or("none"), which.field());
        self.has_another_class(asked).then(|| detail(format_args!(
            "{field}.storageClassName: the claim {name} has its volume already, of the class {has}; next: name that class, or restore a snapshot into a new cluster"
        )))
    }

    /// It never asks for less, and removes no claim that has a volume.
    fn step(&self, asked: &Wanted) -> Step {
        // What somebody wrote in another unit is left as it is.
        let less = self
            .size
            .zip(formats::bytes(&asked.size))
            .is_some_and(|(has, asked)| has < asked);
        match self.state {
            State::Foreign | State::Going => Step::Wait,
            State::Unbound if self.has_another_class(asked) => Step::Replace,
            State::Bound if less => Step::Grow,
            // Nothing grows before it has a volume.
            State::Unbound | State::Other if less => Step::Wait,
            State::Unbound | State::Bound | State::Other => Step::Keep,
        }
    }
}

impl Cluster {
    /// The Pod that mounts a claim.
    pub(super) fn pod_of(&self, which: Which) -> Option<Rc<PodSeen>> {
        let name = which.pod(&self.name);
        self.shared.pods.get(&self.namespace, &name)
    }

    /// What the document asks of a claim; none where the operator makes none, or where it asks for nothing and the claim
    /// has its volume.
    fn asked_of_claim(&self, which: Which) -> Option<Wanted> {
        let wire = &self.object.object.spec;
        let (asked, has_volume) = match which {
            Which::Data => {
                let ids = self.identity.as_ref().map(IdentityFile::clusters);
                let has_served = ids.is_some_and(|it| !it.is_empty());
                (wire.storage.volume_claim.as_ref(), has_served)
            }
            Which::Snapshots => {
                let local = wire.local().filter(|it| it.claim_name.is_none())?;
                let placed = self.pod_of(which).is_some_and(|it| it.node.is_some());
                (local.claim.as_ref(), placed)
            }
        };
        if asked.is_none() && has_volume {
            return None;
        }
        Some(Wanted {
            size: asked.map_or(SIZE_DEFAULT, |it| &it.size).to_owned(),
            class: asked
                .and_then(|it| it.storage_class_name.clone())
                .unwrap_or_default(),
        })
    }

    /// Brings a claim to what the document asks for. It never asks for less, and removes no claim that has a volume.
    pub(super) async fn tend_claim(
        &mut self,
        which: Which,
        spec: &ClusterSpec,
    ) -> Result<(), ControllerError> {
        let Some(asked) = self.asked_of_claim(which) else {
            self.memory.tended.remove(&which);
            return Ok(());
        };
        let now = clock::since_boot().as_secs();
        let known = self.memory.tended.get(&which);
        let known = known.filter(|it| it.asked == asked);
        if known.is_some_and(|it| it.again.is_none_or(|again| now < again)) {
            return Ok(());
        }
        let name = which.name(&self.name);
        let waits = Some(now + WAITS_SECONDS);
        let claim = self
            .objects
            .get(Kind::Claim, &self.namespace, &name)
            .await?;
        let (again, refused) = match &claim {
            None if self.bring_claim(which, spec).await? => (waits, None),
            None => (None, None),
            Some(claim) => {
                let there = There::of(claim, &self.name);
                match there.step(&asked) {
                    Step::Replace => return self.remove_unbound(which, claim, &asked).await,
                    Step::Wait => (waits, None),
                    step => {
                        let kept = match step {
                            Step::Grow => self.grow(which, &name, &asked.size).await?,
                            _ => None,
                        };
                        let refused = kept.or_else(|| there.keeps_its_class(which, &name, &asked));
                        let later = refused.as_ref().map(|_| now + REFUSED_SECONDS);
                        (later, refused)
                    }
                }
            }
        };
        let tended = Tended {
            asked,
            again,
            refused,
        };
        self.memory.tended.insert(which, tended);
        Ok(())
    }

    /// A claim that is not there, and whether a Pod without a place waits for it. The Pods of a restore and of a worker are
    /// made anew, and their claims before them. Where none waits, the start makes the claim.
    async fn bring_claim(
        &mut self,
        which: Which,
        spec: &ClusterSpec,
    ) -> Result<bool, ControllerError> {
        let pod = self.pod_of(which).filter(|it| it.node.is_none());
        match (which, self.restore_pod(), pod) {
            (_, Some(restore), _) if restore.node.is_none() => {
                self.remove_pod(&restore, Some(0)).await?;
            }
            (Which::Data, None, Some(_)) => self.make_claim(which, spec).await?,
            (Which::Snapshots, _, Some(worker))
                if worker.owner.as_ref() == Some(&self.object.meta.uid) =>
            {
                self.remove_pod(&worker, Some(0)).await?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Why the claim did not grow.
    async fn grow(
        &mut self,
        which: Which,
        name: &str,
        size: &str,
    ) -> Result<Option<Detail>, ControllerError> {
        self.shared.confirmed.confirm().await?;
        let more = json!({"spec": {"resources": {"requests": {"storage": size}}}});
        let parameters = PatchParams {
            field_manager: Some(OPERATOR.to_owned()),
            ..PatchParams::default()
        };
        let api = self.objects.api(Kind::Claim, &self.namespace);
        match api.patch(name, &parameters, &Patch::Merge(&more)).await {
            Ok(_) => {
                let text = detail(format_args!("the claim {name} asks for {size} now"));
                self.tell("ClaimGrows", &text, false).await;
                Ok(None)
            }
            Err(kube::Error::Api(it)) if it.message.contains(NO_GROWTH) => {
                let field = which.field();
                Ok(Some(detail(format_args!(
                    "{field}.size: the claim {name} cannot grow to {size}: its StorageClass does not allow it; next: set allowVolumeExpansion in the class, or restore a snapshot into a new cluster"
                ))))
            }
            Err(error) => Err(ControllerError::api("write", Kind::Claim, name, error)),
        }
    }

    /// Exactly the claim that was seen without a volume: one that got it meanwhile is another version. The next pass
    /// makes another one.
    async fn remove_unbound(
        &mut self,
        which: Which,
        claim: &DynamicObject,
        asked: &Wanted,
    ) -> Result<(), ControllerError> {
        let name = which.name(&self.name);
        let seen = exactly(
            claim.metadata.uid.clone(),
            claim.metadata.resource_version.clone(),
        );
        let api = self.objects.api(Kind::Claim, &self.namespace);
        let kind = Kind::Claim.name();
        if !self.objects.remove_seen((&api, kind), &name, &seen).await? {
            return Ok(());
        }
        let class = match asked.class.as_str() {
            "" => "the default class",
            class => class,
        };
        let text = detail(format_args!(
            "the claim {name} had no volume yet; the operator makes it anew with {class}"
        ));
        self.tell("ClaimReplaced", &text, false).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every claim that there can be, against one document: only the operator's own that has no volume is replaced,
    /// none shrinks, and none that goes is touched.
    #[test]
    fn a_claim_with_a_volume_is_never_replaced_and_none_shrinks() {
        let asked = Wanted {
            size: "2Gi".to_owned(),
            class: "quick".to_owned(),
        };
        let names = [None, Some(""), Some("quick"), Some("slow")];
        let sizes = [None, Some(1 << 30), Some(2 << 30), Some(3 << 30)];
        let states = [
            State::Foreign,
            State::Going,
            State::Unbound,
            State::Bound,
            State::Other,
        ];
        let mut seen = [0; 4];
        for number in 0..4 * 4 * 4 * 5 {
            let there = There {
                made_with: names[number % 4],
                class: names[number / 4 % 4],
                size: sizes[number / 16 % 4],
                state: states[number / 64],
            };
            let step = there.step(&asked);
            if step == Step::Replace {
                assert_eq!(there.state, State::Unbound);
                assert!(there.made_with.is_some_and(|it| it != "quick"));
                assert_ne!(there.class, Some("quick"));
            }
            if step == Step::Grow {
                assert_eq!((there.state, there.size), (State::Bound, Some(1 << 30)));
            }
            if matches!(there.state, State::Foreign | State::Going) {
                assert_eq!(step, Step::Wait);
            }
            seen[step as usize] += 1;
        }
        assert!(seen.iter().all(|it| *it > 0), "{seen:?}");
    }
}
