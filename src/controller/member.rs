//! One member: what is kept of it between passes, and where it is found.

use std::rc::Rc;

use super::claim::Which;
use super::node::NodeSeen;
use super::seen::PodSeen;
use super::upgrade::Ends;
use super::{Cluster, ControllerError, names};
use crate::clock::Since;
use crate::cluster::{Detail, MemberName, Timestamp, detail};
use crate::member::change;
use crate::member::contact::{CallError, Contact, Endpoint};
use crate::member::counts::Counts;
use crate::member::records::{self, IdentityFile};
use crate::observed::{Membership, Observed, Placement};
use crate::plan::permit::Permit;
use crate::plan::{Change, leaves_its_claim};
use crate::spec::ClusterSpec;
use crate::version::Version;

/// Everything that belongs to one member, `NAME-0`, `NAME-1` and so on, whether the document asks for it or not.
#[derive(Default)]
pub(super) struct Member {
    pub(super) name: MemberName,
    /// From the Secret; `None` before its birth.
    pub(super) identity: Option<IdentityFile>,
    pub(super) contact: Contact,
    /// For how long it has answered and served, or has not.
    pub(super) counts: Counts,
    /// How often the version that is new to the data has ended.
    pub(super) ends: Ends,
    /// Bytes of its database, when it last answered.
    pub(super) database: u64,
    /// The last revision that it answered with.
    pub(super) revision: Option<i64>,
    /// What keeps its Pod from its place.
    pub(super) unplaceable: Option<(&'static str, Detail)>,
    /// Its Pod that was made and says nothing.
    pub(super) making: Since,
    /// Its Pod that waits for its image.
    pub(super) pulled: Since,
    /// Its Pod, while it ends.
    pub(super) terminating: Since,
    /// While nobody hears of it and of its node.
    pub(super) unheard: Since,
    /// Its node, while it does not answer.
    pub(super) node: NodeSeen,
}

impl Member {
    /// All that a cluster can have, in their order; the first is the founder.
    pub(super) fn all(cluster: &str) -> Vec<Member> {
        let member = |name| Member {
            name,
            ..Member::default()
        };
        names::members(cluster).map(member).collect()
    }
}

impl Cluster {
    /// The Pod of a member, by its number.
    pub(super) fn member_pod(&self, number: usize) -> Option<Rc<PodSeen>> {
        let name = self.members.get(number)?.name.as_str();
        self.shared.pods.get(&self.namespace, name)
    }

    /// A Pod of a member, of which the founder's counts whoever made it.
    pub(super) fn pod_of_any(&self) -> Option<Rc<PodSeen>> {
        let mut others = (1..self.members.len()).filter_map(|it| self.member_pod(it));
        self.member_pod(0)
            .or_else(|| others.find(|it| self.owns(it)))
    }

    /// Whether this object owns the Pod.
    pub(super) fn owns(&self, pod: &PodSeen) -> bool {
        pod.owner.as_ref() == Some(&self.object.meta.uid)
    }

    /// The number of the member with this name.
    pub(super) fn number(&self, member: &str) -> Option<usize> {
        self.members.iter().position(|it| it.name == member)
    }

    /// The members to look at: those that the document asks for, and those of before that are not through. At size 0
    /// the founder is among them.
    pub(super) fn looked_at(&self, spec: &ClusterSpec) -> Vec<usize> {
        let wanted = usize::from(spec.size.max(1));
        let all = 0..self.members.len();
        all.filter(|it| *it < wanted || self.remains(*it)).collect()
    }

    /// Whether there is something of a member: a Pod, or the record of one that has served and was not removed since.
    fn remains(&self, number: usize) -> bool {
        let recorded = self.members[number].identity.as_ref();
        let counts = recorded.is_some_and(|it| it.member.id.is_some());
        counts || self.member_pod(number).is_some_and(|it| self.owns(&it))
    }

    /// Whether its claim is another one than its data was on.
    pub(super) fn has_another_claim(&self, number: usize) -> bool {
        let record = self.members[number].identity.as_ref();
        let before = record.and_then(|it| it.member.claim.as_ref());
        let now = self.claim(Which::Data(number));
        before
            .zip(now)
            .is_some_and(|(before, now)| *before != now.meta.uid)
    }

    pub(super) fn placement(&self, number: usize, pod: Option<&PodSeen>) -> Placement {
        let named = |it: &String| detail(format_args!("{it}"));
        let claim = self.claim(Which::Data(number));
        Placement {
            node: pod.and_then(|it| it.node.as_ref()).map(named),
            claim: claim.map(|it| named(&it.name)),
        }
    }

    /// Whether the Pod is on a claim that the member has given up.
    pub(super) fn has_former_claim(&self, number: usize, pod: &PodSeen) -> bool {
        let now = self.claim_name(Which::Data(number));
        self.owns(pod) && pod.claim.as_ref().is_some_and(|it| *it != now)
    }

    /// The document as this member's: the one that its Pod runs.
    pub(super) fn spec_of(spec: &ClusterSpec, number: usize) -> ClusterSpec {
        ClusterSpec {
            own: number,
            ..spec.clone()
        }
    }

    /// `spec`: the member's own.
    pub(super) fn latch(
        &mut self,
        (spec, now): (&ClusterSpec, Option<Timestamp>),
        number: usize,
        (version, quota, joins): (Version, u64, bool),
    ) -> Result<(), ControllerError> {
        let mut identity = match self.members[number].identity.take() {
            Some(known) => known.with(version, quota),
            None => self.identity_at_birth(spec, version, quota)?.born_at(now),
        };
        // Who joins is of the cluster of the others, and takes the image of one with its version.
        let mut others = self.members.iter().filter_map(|it| it.identity.as_ref());
        let same = others.clone().find(|it| it.version() == Some(version));
        if let Some(other) = same.or_else(|| others.next()).filter(|_| joins) {
            identity.cluster.clone_from(&other.cluster);
            identity.member.image.clone_from(&other.member.image);
        }
        identity.member.joined |= joins;
        self.members[number].identity = Some(identity);
        self.know_image(spec);
        Ok(())
    }

    pub(super) fn identity_at_birth(
        &self,
        spec: &ClusterSpec,
        version: Version,
        quota: u64,
    ) -> Result<IdentityFile, ControllerError> {
        let token = records::new_token(&spec.name).ok_or_else(|| CallError {
            what: "make a cluster token",
            why: "the kernel gave no random bytes".to_owned(),
        })?;
        let machine = String::new(); // a claim moves with its volume
        let mut identity = IdentityFile::at_birth(spec, token, version, quota, machine);
        identity
            .member
            .image
            .clone_from(&self.object.object.spec.image);
        Ok(identity)
    }

    /// The cluster has removed this member: what lies on its claim is of no use to the next one of its name. The guard
    /// renames it aside.
    pub(super) async fn set_data_aside(
        &mut self,
        spec: &ClusterSpec,
        observed: &Observed,
        number: usize,
    ) -> Result<(), ControllerError> {
        let instance = observed.instance(&self.members[number].name);
        if instance.is_some_and(|it| leaves_its_claim(spec, it)) {
            self.give_up_claim(number).await?;
        }
        if let Some(identity) = &mut self.members[number].identity {
            identity.joins_again();
        }
        self.push().await
    }

    /// Changes the member list. Who is removed by it comes back as another member, if at all.
    pub(super) async fn change(
        &mut self,
        spec: &ClusterSpec,
        observed: &Observed,
        permit: Permit<Change>,
    ) -> Result<(), ControllerError> {
        let removed = match (permit.step(), &observed.membership) {
            (Change::Remove { member }, Membership::Known(members)) => members.by_id(*member),
            _ => None,
        };
        let numbers = self.looked_at(spec).into_iter();
        let all: Vec<Endpoint> = numbers.map(|it| self.endpoint_now(spec, it)).collect();
        let reached = all
            .into_iter()
            .filter(|it| !it.metrics.ip().is_unspecified());
        change::make(reached, permit).await?;
        let Some(removed) = removed else {
            return Ok(());
        };
        let mut all = spec.members.iter().chain(&spec.former);
        let place = all.find(|it| it.is_of(removed));
        let number = place.and_then(|it| self.number(&it.name));
        match number {
            Some(number) => self.set_data_aside(spec, observed, number).await,
            None => Ok(()),
        }
    }

    pub(super) async fn record_served(
        &mut self,
        observed: &Observed,
        number: usize,
    ) -> Result<(), ControllerError> {
        let instance = observed.instance(&self.members[number].name);
        let ids = instance.and_then(|it| it.ids(&observed.membership));
        let claim = self.uid_of_claim(number);
        let Some(ids) = ids else {
            return Ok(());
        };
        let node = self.member_pod(number).and_then(|it| it.node.clone());
        let served = |identity: &mut IdentityFile| {
            identity.has_served(ids);
            (identity.member.claim, identity.member.node) = (claim, node);
            true
        };
        self.change_identity(number, served).await
    }
}
