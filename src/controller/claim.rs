//! The claims of data and snapshots: what they ask for, that they grow where their class lets them, and that one is made
//! anew where it never had a volume and the document was corrected.

use std::rc::Rc;

use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::names::{self, OPERATOR};
use super::objects::{Kind, exactly, is_made_for};
use super::seen::{ClaimSeen, PodSeen};
use super::{Cluster, ControllerError};
use crate::api::{DeletionPolicy, formats};
use crate::clock;
use crate::cluster::{Detail, detail};
use crate::spec::{ClusterSpec, member_name};
use crate::status::MemberStatus;

/// Wanted for where the document names no size.
pub(super) const SIZE_DEFAULT: &str = "2Gi";

/// Kept claims that the status names.
const KEPT_MAX: usize = 32;

/// Which claim of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Which {
    /// Of the member with this number.
    Data(usize),
    Snapshots,
}

impl Which {
    fn member(cluster: &str, number: usize) -> String {
        let number = u8::try_from(number).unwrap_or(u8::MAX);
        member_name(cluster, number).to_string()
    }

    /// The Pod that mounts it.
    fn pod(self, cluster: &str) -> String {
        match self {
            Which::Data(number) => Which::member(cluster, number),
            Which::Snapshots => names::backup_pod(cluster),
        }
    }

    /// Where the document speaks of it.
    fn field(self) -> &'static str {
        match self {
            Which::Data(_) => "spec.storage.volumeClaim",
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
    /// The document says so, and not the default.
    named: bool,
}

/// Why a claim did not grow.
#[derive(Debug)]
pub(super) struct NotGrown {
    asked: Wanted,
    /// It is tried again then, in seconds since boot: somebody may have changed its class.
    again: u64,
    why: Detail,
}

/// A claim that did not grow is tried again after so long.
const REFUSED_SECONDS: u64 = 600;

/// What the API server says where a claim's class lets none grow.
const NO_GROWTH: &str = "can be resized";

/// What may be done with a claim, at most.
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

fn state(claim: &ClaimSeen, cluster: &str) -> State {
    match claim.phase.as_str() {
        _ if !is_made_for(&claim.meta.labels, cluster) => State::Foreign,
        _ if claim.meta.deleting => State::Going,
        "Pending" if claim.volume.is_none() => State::Unbound,
        "Bound" => State::Bound,
        _ => State::Other,
    }
}

/// The document asks for another class than the claim was made with and has. A cluster's default class, which the
/// API server wrote in, is no other one.
fn has_another_class(claim: &ClaimSeen, asked: &Wanted) -> bool {
    claim
        .made_with
        .as_ref()
        .is_some_and(|it| *it != asked.class)
        && claim.class.as_deref().unwrap_or_default() != asked.class
}

/// It never asks for less, and removes no claim that has a volume.
fn step(claim: &ClaimSeen, state: State, asked: &Wanted) -> Step {
    // What somebody wrote in another unit is left as it is.
    let less = claim
        .size
        .zip(formats::bytes(&asked.size))
        .is_some_and(|(has, asked)| has < asked);
    match state {
        State::Foreign | State::Going => Step::Wait,
        State::Unbound if has_another_class(claim, asked) => Step::Replace,
        State::Bound if less => Step::Grow,
        // Nothing grows before it has a volume.
        State::Unbound | State::Other if less => Step::Wait,
        State::Unbound | State::Bound | State::Other => Step::Keep,
    }
}

impl Cluster {
    /// All that the operator makes for this document, and those of members that are looked at.
    pub(super) fn all_claims(&self, spec: &ClusterSpec) -> Vec<Which> {
        let data = self.looked_at(spec).into_iter().map(Which::Data);
        data.chain([Which::Snapshots]).collect()
    }

    /// A member's has another name after each that was given up.
    pub(super) fn claim_name(&self, which: Which) -> String {
        match which {
            Which::Data(number) => {
                let record = self.members[number].identity.as_ref();
                let given_up = record.map_or(0, |it| it.member.claims_given_up);
                names::claim(&self.members[number].name, given_up)
            }
            Which::Snapshots => names::snapshots_claim(&self.name),
        }
    }

    /// The member that joins gets another claim. The one of before stays, with the data, and says so.
    pub(super) async fn give_up_claim(&mut self, number: usize) -> Result<(), ControllerError> {
        let (which, member) = (Which::Data(number), self.members[number].name.to_string());
        if self.claim(which).is_some() {
            self.shared.confirmed.confirm().await?;
            let name = self.claim_name(which);
            let label = json!({"metadata": {"labels": {(names::GIVEN_UP): member}}});
            let api = self.objects.api(Kind::Claim, &self.namespace);
            let labelled = api
                .patch(&name, &PatchParams::default(), &Patch::Merge(&label))
                .await;
            labelled.map_err(|error| ControllerError::api("write", Kind::Claim, &name, error))?;
        }
        let Some(identity) = &mut self.members[number].identity else {
            return Ok(());
        };
        let given_up = &mut identity.member.claims_given_up;
        *given_up += 1;
        // One that an earlier cluster of this name left is not taken.
        let claims = &self.shared.claims;
        while claims
            .get(&self.namespace, &names::claim(&member, *given_up))
            .is_some()
        {
            *given_up += 1;
        }
        Ok(())
    }

    /// The claims of data that no member of the document has, nor one that etcd lists: of those that were removed or replaced.
    pub(super) fn kept_claims(&self, spec: &ClusterSpec, listed: &[MemberStatus]) -> Vec<String> {
        let is_used = |number: usize| {
            let name = &self.members[number].name;
            let stays = spec.size == 0 || number < usize::from(spec.size);
            stays || listed.iter().any(|it| it.member.name == *name)
        };
        let used: Vec<String> = (0..self.members.len())
            .filter(|it| is_used(*it))
            .map(|it| self.claim_name(Which::Data(it)))
            .collect();
        let all = self.claims_of_data().map(|it| it.name.clone());
        let mut kept: Vec<String> = all.filter(|it| !used.contains(it)).collect();
        kept.sort();
        kept.truncate(KEPT_MAX);
        kept
    }

    /// Those that were made for members of a cluster of this name.
    pub(super) fn claims_of_data(&self) -> impl Iterator<Item = Rc<ClaimSeen>> {
        let ours = (self.namespace.clone(), self.name.clone());
        let all = self.shared.claims.all().into_iter();
        all.filter(move |it| {
            it.meta.labels.contains_key(names::MEMBER) && it.meta.cluster().as_ref() == Some(&ours)
        })
    }

    /// The Pod that mounts a claim.
    pub(super) fn pod_of(&self, which: Which) -> Option<Rc<PodSeen>> {
        let name = which.pod(&self.name);
        self.shared.pods.get(&self.namespace, &name)
    }

    /// A claim that the operator made.
    pub(super) fn claim(&self, which: Which) -> Option<Rc<ClaimSeen>> {
        let name = self.claim_name(which);
        self.shared.claims.get(&self.namespace, &name)
    }

    /// The UID of the claim that a member's data is on.
    pub(super) fn uid_of_claim(&self, number: usize) -> Option<String> {
        let claim = self.claim(Which::Data(number));
        claim.map(|it| it.meta.uid.clone())
    }

    /// Somebody deleted it, and not the whole cluster: it goes as soon as no Pod uses it.
    pub(super) fn goes(&self, which: Which) -> bool {
        let deleted = self.claim(which).is_some_and(|it| it.meta.deleting);
        deleted && !self.object.meta.deleting
    }

    /// The same, asked of the API server right before a Pod that uses the claim is ended, as the watch may lag. No answer counts
    /// as yes; `gone`: what a claim counts as that is there no more, as where somebody took its finalizer.
    pub(super) async fn goes_again(&self, which: Which, gone: bool) -> bool {
        if self.object.meta.deleting {
            return false;
        }
        let name = self.claim_name(which);
        match self.objects.get(Kind::Claim, &self.namespace, &name).await {
            Ok(Some(claim)) => claim.metadata.deletion_timestamp.is_some(),
            Ok(None) => gone,
            Err(_) => true,
        }
    }

    /// What the document asks of a claim; none where the operator makes none.
    fn asked_of_claim(&self, which: Which) -> Option<Wanted> {
        let wire = &self.object.object.spec;
        let asked = match which {
            Which::Data(_) => wire.storage.volume_claim.as_ref(),
            Which::Snapshots => {
                let local = wire.local().filter(|it| it.claim_name.is_none())?;
                local.claim.as_ref()
            }
        };
        Some(Wanted {
            size: asked.map_or(SIZE_DEFAULT, |it| &it.size).to_owned(),
            class: asked
                .and_then(|it| it.storage_class_name.clone())
                .unwrap_or_default(),
            named: asked.is_some(),
        })
    }

    /// Why a claim is not as the document asks.
    pub(super) fn claim_not_changed(&self, spec: &ClusterSpec) -> Option<Detail> {
        self.all_claims(spec).into_iter().find_map(|which| {
            let asked = self.asked_of_claim(which).filter(|it| it.named)?;
            let claim = self.claim(which)?;
            let kept = self.memory.not_grown.get(&which);
            let kept = kept.filter(|it| it.asked == asked);
            match step(&claim, state(&claim, &self.name), &asked) {
                Step::Grow => Some(kept?.why.clone()),
                Step::Keep if has_another_class(&claim, &asked) => {
                    let (name, field) = (self.claim_name(which), which.field());
                    let has = claim.class.as_deref().unwrap_or("none");
                    Some(detail(format_args!(
                        "{field}.storageClassName: the claim {name} has its volume already, of the class {has}; next: name that class, or restore a snapshot into a new cluster"
                    )))
                }
                _ => None,
            }
        })
    }

    /// Brings a claim to what the document asks for. It never asks for less, and removes no claim that has a volume.
    pub(super) async fn tend_claim(&mut self, which: Which) -> Result<(), ControllerError> {
        let Some(asked) = self.asked_of_claim(which) else {
            return Ok(());
        };
        let Some(claim) = self.claim(which) else {
            return self.bring_claim(which).await;
        };
        match step(&claim, state(&claim, &self.name), &asked) {
            Step::Replace => self.remove_unbound(which, &claim, &asked).await,
            Step::Grow if asked.named => self.grow(which, asked).await,
            Step::Grow | Step::Wait | Step::Keep => Ok(()),
        }
    }

    /// Makes a claim for which a Pod without a place waits. Where none waits, the start makes it.
    async fn bring_claim(&mut self, which: Which) -> Result<(), ControllerError> {
        let pods = [self.pod_of(which), self.restore_pod()];
        let waits = |it: &Rc<PodSeen>| it.node.is_none() && !it.meta.deleting;
        if pods.iter().flatten().any(waits) {
            return self.ensure_claim(which).await;
        }
        Ok(())
    }

    /// Makes a claim that is not there, where the document asks for one that the operator makes.
    pub(super) async fn ensure_claim(&mut self, which: Which) -> Result<(), ControllerError> {
        let Some(asked) = self.asked_of_claim(which) else {
            return Ok(());
        };
        let mut labels = self.labels();
        if let Which::Data(number) = which
            && let Some(identity) = &self.members[number].identity
        {
            labels.insert(
                names::MEMBER.to_owned(),
                self.members[number].name.to_string(),
            );
            // What is born by now has CAs: beside this claim they never come anew in silence.
            let token = identity.cluster.token.rsplit('-').next();
            labels.insert(names::BORN.to_owned(), token.unwrap_or_default().to_owned());
        }
        let mut metadata = json!({
            "name": self.claim_name(which),
            "namespace": self.namespace,
            "labels": labels,
            "annotations": {(names::STORAGE_CLASS): asked.class},
        });
        // Else it has no owner, and outlives the object.
        if self.object.object.spec.deletion_policy == DeletionPolicy::Delete {
            metadata["ownerReferences"] = self.owner();
        }
        let mut spec = json!({
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": asked.size}},
        });
        if !asked.class.is_empty() {
            spec["storageClassName"] = json!(asked.class);
        }
        let claim = json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": metadata,
            "spec": spec,
        });
        self.objects.ensure(Kind::Claim, claim, None).await
    }

    async fn grow(&mut self, which: Which, asked: Wanted) -> Result<(), ControllerError> {
        let now = clock::since_boot().as_secs();
        let refused = self.memory.not_grown.get(&which);
        if refused.is_some_and(|it| it.asked == asked && now < it.again) {
            return Ok(());
        }
        self.shared.confirmed.confirm().await?;
        let (name, size) = (self.claim_name(which), &asked.size);
        let more = json!({"spec": {"resources": {"requests": {"storage": size}}}});
        let parameters = PatchParams {
            field_manager: Some(OPERATOR.to_owned()),
            ..PatchParams::default()
        };
        let api = self.objects.api(Kind::Claim, &self.namespace);
        match api.patch(&name, &parameters, &Patch::Merge(&more)).await {
            Ok(_) => {
                let text = detail(format_args!("the claim {name} asks for {size} now"));
                self.tell("ClaimGrows", &text, false).await;
                Ok(())
            }
            Err(kube::Error::Api(it)) if it.message.contains(NO_GROWTH) => {
                let field = which.field();
                let why = detail(format_args!(
                    "{field}.size: the claim {name} cannot grow to {size}: its StorageClass does not allow it; next: set allowVolumeExpansion in the class, or restore a snapshot into a new cluster"
                ));
                let again = now + REFUSED_SECONDS;
                let refused = NotGrown { asked, again, why };
                self.memory.not_grown.insert(which, refused);
                Ok(())
            }
            Err(error) => Err(ControllerError::api("write", Kind::Claim, &name, error)),
        }
    }

    /// Exactly the claim that was seen without a volume: one that got it meanwhile is another version. The next pass
    /// makes another one.
    async fn remove_unbound(
        &mut self,
        which: Which,
        claim: &ClaimSeen,
        asked: &Wanted,
    ) -> Result<(), ControllerError> {
        let name = self.claim_name(which);
        let (uid, version) = (&claim.meta.uid, &claim.meta.resource_version);
        let seen = exactly(Some(uid.clone()), Some(version.clone()));
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
            named: true,
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
            let there = ClaimSeen {
                made_with: names[number % 4].map(str::to_owned),
                class: names[number / 4 % 4].map(str::to_owned),
                size: sizes[number / 16 % 4],
                ..ClaimSeen::default()
            };
            let state = states[number / 64];
            let step = step(&there, state, &asked);
            if step == Step::Replace {
                assert_eq!(state, State::Unbound);
                assert!(there.made_with.is_some_and(|it| it != "quick"));
                assert_ne!(there.class.as_deref(), Some("quick"));
            }
            if step == Step::Grow {
                assert_eq!((state, there.size), (State::Bound, Some(1 << 30)));
            }
            if matches!(state, State::Foreign | State::Going) {
                assert_eq!(step, Step::Wait);
            }
            seen[step as usize] += 1;
        }
        assert!(seen.iter().all(|it| *it > 0), "{seen:?}");
    }
}
