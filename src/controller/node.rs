//! Whether the node of a member is away. A Pod that was not ready before its node went tells nothing of it.

use std::rc::Rc;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::core::DynamicObject;
use serde_json::Value;

use super::objects::resource;
use super::seen::PodSeen;
use super::{Cluster, ControllerError};
use crate::clock;

/// So long a member is silent before its node is asked for, each time: who only starts needs less, and the node's controller needs
/// longer to see that a node is away.
const LOOKS_SECONDS: u64 = 10;

/// The node of a member that does not answer.
#[derive(Default)]
pub(super) struct NodeSeen {
    name: String,
    /// Since boot; at first, since when the member is silent.
    asked_at: u64,
    is_away: bool,
}

impl Cluster {
    /// Asks about the node of a member that does not answer. What cannot be asked is not known to be away.
    pub(super) async fn look_at_node(
        &mut self,
        number: usize,
        pod: Option<&Rc<PodSeen>>,
        answers: bool,
    ) {
        let name = pod.filter(|_| !answers).and_then(|it| it.node.clone());
        let Some(name) = name else {
            self.members[number].node = NodeSeen::default();
            return;
        };
        let now = clock::since_boot().as_secs();
        let seen = &mut self.members[number].node;
        if seen.name != name {
            *seen = NodeSeen {
                name,
                asked_at: now,
                is_away: false,
            };
            return;
        }
        if now < seen.asked_at + LOOKS_SECONDS {
            return;
        }
        let client = self.shared.client.clone();
        let nodes = Api::<DynamicObject>::all_with(client, &resource::<Node>());
        let is_away = match nodes.get_opt(&name).await {
            Ok(node) => node.is_none_or(|it| is_away(&it.data)),
            Err(error) => {
                let error = ControllerError::of_server("read", "Node", &name, error);
                tracing::warn!(namespace = %self.namespace, cluster = %self.name, "{error}");
                false
            }
        };
        self.members[number].node = NodeSeen {
            name,
            asked_at: now,
            is_away,
        };
    }

    /// For how long nothing is heard of the member, nor of the node that its Pod is bound to, by itself or by its volume.
    pub(super) fn unheard(
        &mut self,
        number: usize,
        pod: Option<&PodSeen>,
        answers: bool,
    ) -> Option<u64> {
        let waits = pod.is_some_and(|it| it.node.is_none() && it.waits_for_a_lost_volume());
        let member = &mut self.members[number];
        if !answers && (member.node.is_away || waits) {
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
    }
}
