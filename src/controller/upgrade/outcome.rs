//! What the Pod of a rehearsal was made for, and how it stands.

use serde::{Deserialize, Serialize};

use crate::cluster::{Detail, detail};
use crate::controller::seen::{Container, End, NO_IMAGE, PodSeen};
use crate::member::pod::Rehearsed;

/// What its Pod was made for, in an annotation of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MadeFor {
    pub(super) to: String,
    pub(super) image: Option<String>,
    pub(super) document: String,
}

/// How a Pod of a rehearsal stands.
pub(super) enum Outcome {
    UnderWay,
    Waits(Detail),
    Served(i64),
    /// The version did not stand the trial.
    Failed(Detail),
    /// It ended, and says nothing of the version.
    Ended(Detail),
}

pub(super) fn made_for(pod: &PodSeen) -> Option<MadeFor> {
    serde_json::from_str(pod.made_for.as_deref()?).ok()
}

pub(super) fn outcome(pod: &PodSeen) -> Outcome {
    let words = pod.last_words.as_deref();
    let said = words.and_then(|it| serde_json::from_str::<Rehearsed>(it).ok());
    match (pod.phase.as_str(), said, &pod.container) {
        ("Succeeded", Some(said), _) if made_for(pod).is_some_and(|it| it.to == said.to) => {
            match (said.why, said.of_the_version) {
                (None, _) => Outcome::Served(said.revision),
                (Some(why), true) => Outcome::Failed(detail(format_args!("{why}"))),
                (Some(why), false) => Outcome::Ended(detail(format_args!("{why}"))),
            }
        }
        ("Succeeded" | "Failed", _, _) => {
            let name = &pod.name;
            let how = match &pod.end {
                Some(End::Unasked { reason, .. }) if reason == "OOMKilled" => {
                    "OOMKilled: it had too little memory; raise spec.pod.resources.limits.memory"
                        .to_owned()
                }
                Some(End::Unasked { reason, code, .. }) => format!("{reason}, exit code {code}"),
                _ => String::new(),
            };
            let why = [
                how.as_str(),
                pod.reason.as_str(),
                pod.message.as_str(),
                words.unwrap_or_default(),
            ];
            let why = why.join(" ");
            Outcome::Ended(detail(format_args!("the Pod {name} ended: {}", why.trim())))
        }
        (_, _, Container::Waiting { reason, .. }) if NO_IMAGE.contains(&reason.as_str()) => {
            let name = &pod.name;
            Outcome::Waits(detail(format_args!(
                "the node has no image of it and gets none: kubectl describe pod {name} says why; import it (k3s ctr images import FILE), or correct spec.image"
            )))
        }
        (_, _, Container::Waiting { reason, message })
            if !["PodInitializing", "ContainerCreating"].contains(&reason.as_str()) =>
        {
            Outcome::Waits(detail(format_args!("{reason}: {message}")))
        }
        (_, _, Container::None) if pod.reason == "Unschedulable" => Outcome::Waits(detail(
            format_args!("the Pod {} cannot be scheduled: {}", pod.name, pod.message),
        )),
        _ => Outcome::UnderWay,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::names::MADE_FOR;
    use serde_json::{Value, json};

    fn pod(phase: &str, container: &Value) -> PodSeen {
        let made_for = json!({"to": "3.6.16", "image": null, "document": "1"}).to_string();
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "shop-rehearsal", "annotations": {(MADE_FOR): made_for}},
            "status": {"phase": phase, "containerStatuses": [container]},
        });
        PodSeen::of(&serde_json::from_value(pod).unwrap())
    }

    fn said(to: &str, why: Option<&str>, of_the_version: bool) -> PodSeen {
        let said = Rehearsed {
            to: to.to_owned(),
            revision: 7,
            why: why.map(str::to_owned),
            of_the_version,
        };
        let message = serde_json::to_string(&said).unwrap();
        let ended = json!({"exitCode": 0, "message": message});
        pod(
            "Succeeded",
            &json!({"name": "etcd", "state": {"terminated": ended}}),
        )
    }

    #[test]
    fn a_version_is_condemned_by_its_own_trial_alone() {
        assert!(matches!(
            outcome(&said("3.6.16", None, false)),
            Outcome::Served(7)
        ));
        let failed = said("3.6.16", Some("it ended"), true);
        assert!(matches!(outcome(&failed), Outcome::Failed(_)));
        let no_room = said("3.6.16", Some("no room"), false);
        assert!(matches!(outcome(&no_room), Outcome::Ended(_)));
        // What another version was found to be.
        assert!(matches!(
            outcome(&said("3.6.17", None, false)),
            Outcome::Ended(_)
        ));
        let evicted = pod("Failed", &json!({"name": "etcd", "state": {}}));
        assert!(matches!(outcome(&evicted), Outcome::Ended(_)));
    }

    #[test]
    fn what_the_kubelet_says_of_a_missing_image_does_not_alternate() {
        let waiting = |reason: &str| {
            let waiting = json!({"reason": reason, "message": reason});
            match outcome(&pod(
                "Pending",
                &json!({"name": "etcd", "state": {"waiting": waiting}}),
            )) {
                Outcome::Waits(why) => Some(why),
                _ => None,
            }
        };
        assert_eq!(waiting("ErrImagePull"), waiting("ImagePullBackOff"));
        assert!(waiting("ErrImagePull").is_some());
        assert_eq!(waiting("ContainerCreating"), None);
    }
}
