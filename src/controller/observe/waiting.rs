//! What is in the way of a member's start, in Kubernetes' words and the guard's.

use super::{LOOKS_SECONDS, MAKING_SECONDS};
use crate::controller::Cluster;
use crate::controller::claim::Which;
use crate::controller::seen::{Container, NO_IMAGE, PodSeen};
use crate::member::refused::{refusal_from, unplaceable};
use crate::observed::{Process, Reading, Service};
use crate::start::Refusal;

impl Cluster {
    /// A Pod that is there and does not run.
    pub(super) fn waiting(&mut self, number: usize, pod: Option<&PodSeen>) -> Waiting {
        if let Some((reason, why)) = &self.members[number].unplaceable {
            return Waiting::Refused(unplaceable(reason, format_args!("{why}")));
        }
        let Some(pod) = pod.filter(|it| !it.is_over()) else {
            self.members[number].making.end();
            return Waiting::No; // evicted, or its node was shut down: it is replaced
        };
        let waiting = match &pod.container {
            Container::Running { .. } => Waiting::No,
            Container::Waiting { reason, message } => {
                Waiting::because(why_waiting(pod, reason, message))
            }
            Container::Ended => Waiting::because(pod.last_words.as_deref().map(refusal_from)),
            Container::None if pod.reason == "Unschedulable" => {
                Waiting::Refused(self.unschedulable(number, pod))
            }
            Container::None => Waiting::Silently,
        };
        let made = match &pod.container {
            Container::None => true,
            Container::Waiting { reason, .. } => {
                ["ContainerCreating", "PodInitializing"].contains(&reason.as_str())
            }
            Container::Running { .. } | Container::Ended => false,
        };
        if waiting != Waiting::Silently || !made {
            self.members[number].making.end();
            return waiting;
        }
        let made_for = self.members[number].making.seconds(&pod.meta.uid);
        if made_for < MAKING_SECONDS || pod.meta.deleting {
            return Waiting::Silently;
        }
        Waiting::Refused(being_made(pod))
    }

    /// The scheduler finds no node. Of a claim that is not bound it only says so.
    fn unschedulable(&self, number: usize, pod: &PodSeen) -> Refusal {
        let message = &pod.message;
        let claim = self.object.object.spec.storage.volume_claim.as_ref();
        let named = claim.is_some_and(|it| it.storage_class_name.is_some());
        let unbound = message.contains("unbound immediate PersistentVolumeClaims");
        if unbound && !named {
            return unplaceable("NoStorageClass", format_args!("{message}"));
        }
        match self.lies_on(number, pod) {
            Some(node) => {
                let name = self.claim_name(Which::Data(number));
                let why = format_args!("the claim {name} lies on the node {node}: {message}");
                unplaceable("VolumeElsewhere", why)
            }
            None => unplaceable("Unschedulable", format_args!("{message}")),
        }
    }
}

/// What is in the way of a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    /// Nothing.
    No,
    /// Kubernetes is at it.
    Silently,
    /// Something that it, or the guard, says.
    Refused(Refusal),
}

impl Waiting {
    fn because(refusal: Option<Refusal>) -> Self {
        refusal.map_or(Waiting::Silently, Waiting::Refused)
    }

    pub(super) fn refusal(self) -> Option<Refusal> {
        match self {
            Waiting::Refused(refusal) => Some(refusal),
            Waiting::No | Waiting::Silently => None,
        }
    }
}

/// A guard that refused, was started again and has not said anything new: what it said stands, or the
/// status would change with each of its starts.
pub(super) fn refused_before(
    pod: Option<&PodSeen>,
    process: Process,
    service: &Service,
) -> Option<Refusal> {
    let Process::Running { seconds, .. } = process else {
        return None;
    };
    if seconds > LOOKS_SECONDS || service.read == Reading::Answered {
        return None;
    }
    let refusal = refusal_from(pod?.last_words.as_deref()?);
    matches!(refusal, Refusal::Unplaceable { .. }).then_some(refusal)
}

/// A Pod that nobody says anything of: why is in its Events, which this operator does not read.
fn being_made(pod: &PodSeen) -> Refusal {
    let name = &pod.name;
    let what = match &pod.container {
        Container::Waiting { reason, .. } => format!(
            "has been {reason} for more than a minute: an image is pulled, or a volume or the network is missing"
        ),
        _ => "has existed for more than a minute, and the kubelet has not started it".to_owned(),
    };
    unplaceable("PodNotStarted", format_args!("the Pod {name} {what}"))
}

/// Why a container is not started, in Kubernetes' own words.
fn why_waiting(pod: &PodSeen, reason: &str, message: &str) -> Option<Refusal> {
    match reason {
        _ if NO_IMAGE.contains(&reason) => {
            let why = format_args!("{reason}: {message}");
            Some(unplaceable("ImageUnavailable", why))
        }
        "CrashLoopBackOff" => pod.last_words.as_deref().map(refusal_from),
        "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" => Some(
            unplaceable("PodRefused", format_args!("{reason}: {message}")),
        ),
        _ => None, // ContainerCreating, PodInitializing
    }
}
