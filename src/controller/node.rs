//! Whether the node of a member is away. A Pod that was not ready before its node went tells nothing of it.

use std::rc::Rc;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::core::DynamicObject;
use serde_json::Value;

use super::claim::Which;
use super::objects::resource;
use super::seen::{Container, PodSeen};
use super::{Cluster, ControllerError};
use crate::clock;

/// So long a member is silent before its node is asked for, each time: who only starts needs less, and the node's controller needs
/// longer to see that a node is away.
const LOOKS_SECONDS: u64 = 10;
/// A node that went is called away so long after its members fell silent: the grace of Kubernetes' node controller is 50 s, and it
/// looks every 5 s; then the next look from here.
const TOLD_SECONDS: u64 = 70;

/// The node of a member that does not answer.
#[derive(Default)]
pub(super) struct NodeSeen {
    name: String,
    /// Since when the member is silent, in seconds since boot.
    since: u64,
    /// When the API server was asked last; at first, `since`.
    asked_at: u64,
    is_away: bool,
    /// Whoever cordoned it means to bring it back.
    cordoned: bool,
}

impl Cluster {
    /// Asks about the node of a member that does not answer. What cannot be asked is not known to be away.
    pub(super) async fn look_at_node(
        &mut self,
        number: usize,
        pod: Option<&Rc<PodSeen>>,
        answers: bool,
    ) {
        let bound = |it: &Rc<PodSeen>| self.bound_to(number, it);
        let name = pod.filter(|_| !answers).and_then(bound);
        let Some(name) = name else {
            self.members[number].node = NodeSeen::default();
            return;
        };
        let now = clock::since_boot().as_secs();
        let seen = &mut self.members[number].node;
        if seen.name != name {
            *seen = NodeSeen {
                name,
                since: now,
                asked_at: now,
                ..NodeSeen::default()
            };
            return;
        }
        let since = seen.since;
        if now < seen.asked_at + LOOKS_SECONDS {
            return;
        }
        let client = self.shared.client.clone();
        let nodes = Api::<DynamicObject>::all_with(client, &resource::<Node>());
        let (is_away, cordoned) = match nodes.get_opt(&name).await {
            Ok(Some(node)) => (is_away(&node.data), is_cordoned(&node.data)),
            Ok(None) => (true, false),
            Err(error) => {
                let error = ControllerError::of_server("read", "Node", &name, error);
                tracing::warn!(namespace = %self.namespace, cluster = %self.name, "{error}");
                (false, false)
            }
        };
        self.members[number].node = NodeSeen {
            name,
            since,
            asked_at: now,
            is_away,
            cordoned,
        };
    }

    /// A member that fell silent with its container running, and may be on a node that nobody calls away yet.
    pub(super) fn may_be_away(&self) -> Option<String> {
        let now = clock::since_boot().as_secs();
        let mut silent = (0..self.members.len()).filter(|it| {
            let node = &self.members[*it].node;
            !node.name.is_empty() && !node.is_away && now < node.since + TOLD_SECONDS
        });
        silent.find_map(|it| {
            let pod = self.member_pod(it)?;
            let node = pod.node.as_ref()?;
            matches!(pod.container, Container::Running { .. }).then(|| {
                format!("{} does not answer, and its node {node} may be away: the restore begins within {TOLD_SECONDS} s if the node is there", pod.name)
            })
        })
    }

    /// The node that a Pod is bound to: by itself, or by its member's volume.
    fn bound_to(&self, number: usize, pod: &PodSeen) -> Option<String> {
        let by_volume = || self.lies_on(number, pod);
        pod.node.clone().or_else(by_volume)
    }

    /// The node of a member's volume, where the nodes with room for a Pod of it cannot reach that.
    pub(super) fn lies_on(&self, number: usize, pod: &PodSeen) -> Option<String> {
        let claim = self.claim(Which::Data(number))?;
        claim.node.clone().filter(|_| pod.lies_elsewhere())
    }

    /// Why members cannot be stopped: nodes that are away with their Pods, and what a person does.
    pub(super) fn unstoppable(&self) -> Option<String> {
        let members = (0..self.members.len()).filter(|it| self.members[*it].node.is_away);
        let pods = members.filter_map(|it| self.member_pod(it));
        let mut nodes: Vec<String> = pods.filter_map(|it| it.node.clone()).collect();
        nodes.sort();
        nodes.dedup();
        let nodes = nodes.join(" ");
        (!nodes.is_empty()).then(|| {
            format!("nobody can stop a member on a node that is away ({nodes}); next: bring it back, or once it is off for good: kubectl delete node {nodes}")
        })
    }

    /// For how long nothing is heard of the member, nor of its node, which nobody cordoned.
    pub(super) fn unheard(&mut self, number: usize, answers: bool) -> Option<u64> {
        let member = &mut self.members[number];
        if !answers && member.node.is_away && !member.node.cordoned {
            return Some(member.unheard.seconds(""));
        }
        member.unheard.end();
        None
    }
}

/// The node's controller has not heard of its kubelet.
fn is_away(node: &Value) -> bool {
    let mut conditions = node["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten();
    conditions.any(|it| it["type"] == "Ready" && it["status"] == "Unknown")
}

fn is_cordoned(node: &Value) -> bool {
    node["spec"]["unschedulable"] == true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_away_where_nobody_hears_of_its_kubelet() {
        let node = |status: &str| {
            let ready = serde_json::json!({"type": "Ready", "status": status});
            let other = serde_json::json!({"type": "DiskPressure", "status": "Unknown"});
            serde_json::json!({"status": {"conditions": [other, ready]}})
        };
        assert!(is_away(&node("Unknown")));
        assert!(!is_away(&node("False")), "its kubelet says so itself");
        assert!(!is_away(&node("True")));
        assert!(!is_away(&Value::Null), "nobody has said anything yet");
        let mut cordoned = node("Unknown");
        cordoned["spec"] = serde_json::json!({"unschedulable": true});
        assert!(
            is_away(&cordoned) && is_cordoned(&cordoned),
            "nobody can stop a member there"
        );
        assert!(!is_cordoned(&node("Unknown")));
    }
}
