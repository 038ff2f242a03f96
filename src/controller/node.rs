//! Whether the node of a member is away. A Pod that was not ready before its node went tells nothing of it.

use std::rc::Rc;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, Pod};
use kube::Api;
use kube::api::ListParams;
use kube::core::DynamicObject;
use serde_json::{Value, json};

use super::claim::Which;
use super::confirmed::ANSWER;
use super::names::{CLUSTER, MEMBER};
use super::objects::resource;
use super::seen::{Container, PodSeen};
use super::{Cluster, ControllerError};
use crate::api::pod as asked;
use crate::clock;
use crate::observed::NoPlace;

/// So long a member is silent before its node is asked for, each time: who only starts needs less, and the node's controller needs
/// longer to see that a node is away.
const LOOKS_SECONDS: u64 = 10;
/// A node that went is called away so long after its members fell silent: the grace of Kubernetes' node controller is 50 s, and it
/// looks every 5 s; then the next look from here.
const TOLD_SECONDS: u64 = 70;
/// Nodes a page: one with many images has tens of KiB.
const PAGE: u32 = 50;
/// What the API server told of a node stands for so long while it tells nothing more.
const STANDS_SECONDS: u64 = 60;

/// The node of a member that does not answer.
#[derive(Default)]
pub(super) struct NodeSeen {
    name: String,
    /// The UID of the claim that the member has its data on. What was seen of the node tells nothing of one with another claim.
    claim: Option<String>,
    /// Since when the member is silent, in seconds since boot.
    since: u64,
    /// When the API server was asked last; at first, `since`.
    asked_at: u64,
    /// When it told something last.
    told_at: u64,
    is_away: bool,
    /// Whoever cordoned it means to bring it back.
    cordoned: bool,
    /// Of one that is away: why no other node would take a member in the stead of its one.
    pub(super) no_place: Option<NoPlace>,
}

impl Cluster {
    /// Asks about the node of a member that does not answer. What cannot be asked is not known to be away.
    pub(super) async fn look_at_node(
        &mut self,
        number: usize,
        pod: Option<&Rc<PodSeen>>,
        answers: bool,
    ) {
        let name = self.silent_on(number, pod).filter(|_| !answers);
        let claim = self.uid_of_claim(number);
        let seen = &mut self.members[number].node;
        let Some(name) = name else {
            *seen = NodeSeen::default();
            return;
        };
        let now = clock::since_boot().as_secs();
        if seen.name != name || seen.claim != claim {
            *seen = NodeSeen {
                name,
                claim,
                since: now,
                asked_at: now,
                ..NodeSeen::default()
            };
            return;
        }
        if now < seen.asked_at + LOOKS_SECONDS {
            return;
        }
        let told = match self.volume_of(number, pod) {
            None => self.read_node(&name).await,
            // One that other nodes reach is not lost with the node that it was first used on.
            Some(volume) => match self.lies_on_one_node(&volume).await {
                Some(true) => self.read_node(&name).await,
                other => other.map(|_| (false, false)),
            },
        };
        let no_place = match told {
            Some((true, _)) => self.without_a_place(number).await,
            _ => None,
        };
        let seen = &mut self.members[number].node;
        seen.asked_at = now;
        if let Some((is_away, cordoned)) = told {
            (seen.is_away, seen.cordoned, seen.told_at) = (is_away, cordoned, now);
            seen.no_place = no_place;
        } else if now > seen.told_at + STANDS_SECONDS {
            (seen.is_away, seen.cordoned, seen.no_place) = (false, false, None);
        }
    }

    /// Whether a node is away, and whether it is cordoned; none where the API server does not tell.
    async fn read_node(&self, name: &str) -> Option<(bool, bool)> {
        let client = self.shared.client.clone();
        let nodes = Api::<DynamicObject>::all_with(client, &resource::<Node>());
        let node = self.learn("Node", name, nodes.get_opt(name)).await?;
        Some(node.map_or((true, false), |it| {
            (is_away(&it.data), is_cordoned(&it.data))
        }))
    }

    /// Why no other node would take a member in this one's stead, where no two may share a node.
    async fn without_a_place(&self, number: usize) -> Option<NoPlace> {
        let nothing = asked::Pod::default();
        let asked = self.object.object.spec.pod.as_ref().unwrap_or(&nothing);
        if !asked.has_nodes_of_their_own() {
            match self.others_keep_apart(number).await {
                Some(true) => {}
                Some(false) => return None,
                None => return Some(NoPlace::Unknown),
            }
        }
        let others = (0..self.members.len()).filter(|it| *it != number);
        let occupied: Vec<String> = others
            .filter_map(|it| self.member_pod(it)?.node.clone())
            .collect();
        let takes = |it: &DynamicObject| {
            let name = it.metadata.name.as_deref().unwrap_or_default();
            !occupied.iter().any(|it| it == name) && takes_a_member(it, asked)
        };
        let client = self.shared.client.clone();
        let nodes = Api::<DynamicObject>::all_with(client, &resource::<Node>());
        let mut page = ListParams::default().limit(PAGE);
        loop {
            let Some(list) = self.learn("Node", "list", nodes.list(&page)).await else {
                return Some(NoPlace::Unknown);
            };
            if list.items.iter().any(takes) {
                return None;
            }
            page.continue_token = list.metadata.continue_.filter(|it| !it.is_empty());
            if page.continue_token.is_none() {
                return Some(NoPlace::NoOtherNode);
            }
        }
    }

    /// Whether the others' Pods keep a member off their nodes: until they are made anew, whatever the document says by now. None
    /// where the API server does not tell.
    async fn others_keep_apart(&self, number: usize) -> Option<bool> {
        let client = self.shared.client.clone();
        let pods =
            Api::<DynamicObject>::namespaced_with(client, &self.namespace, &resource::<Pod>());
        let members = format!("{CLUSTER}={},{MEMBER}", self.name);
        let members = ListParams::default().labels(&members);
        let pods = self.learn("Pod", "list", pods.list(&members)).await?;
        let own = self.members[number].name.as_str();
        let other = |it: &&DynamicObject| it.metadata.name.as_deref() != Some(own);
        Some(pods.items.iter().filter(other).any(keeps_apart))
    }

    /// The volume of a member whose Pod is on no node.
    fn volume_of(&self, number: usize, pod: Option<&Rc<PodSeen>>) -> Option<String> {
        pod.filter(|it| it.node.is_none())?;
        self.claim(Which::Data(number))?.volume.clone()
    }

    /// Whether a volume is one node's alone; none where the API server does not tell.
    async fn lies_on_one_node(&self, name: &str) -> Option<bool> {
        let client = self.shared.client.clone();
        let volumes = Api::<DynamicObject>::all_with(client, &resource::<PersistentVolume>());
        let read = self.learn("PersistentVolume", name, volumes.get_opt(name));
        Some(read.await?.is_some_and(|it| is_of_one_node(&it.data)))
    }

    /// What the API server tells of an object within its time.
    async fn learn<T>(
        &self,
        kind: &'static str,
        name: &str,
        asked: impl Future<Output = Result<T, kube::Error>>,
    ) -> Option<T> {
        let why = match tokio::time::timeout(ANSWER, asked).await {
            Ok(Ok(it)) => return Some(it),
            Ok(Err(error)) => ControllerError::of_server("read", kind, name, error).to_string(),
            Err(_) => format!(
                "the API server did not tell of the {kind} {name} within {} s",
                ANSWER.as_secs()
            ),
        };
        tracing::warn!(namespace = %self.namespace, cluster = %self.name, "{why}");
        None
    }

    /// On which node a member is silent: its Pod's, or its volume's. Between two Pods, and until the scheduler has looked at the
    /// second one, it is on the one that is away.
    fn silent_on(&self, number: usize, pod: Option<&Rc<PodSeen>>) -> Option<String> {
        let before = &self.members[number].node;
        let same = before.is_away && before.claim == self.uid_of_claim(number);
        let before = same.then(|| before.name.clone());
        match pod {
            Some(pod) if pod.node.is_some() => pod.node.clone(),
            Some(pod) if pod.is_unschedulable() => {
                self.node_of_volume(number).filter(|_| pod.misses_volume())
            }
            _ => before,
        }
    }

    /// The node where a member's volume was first used: as the scheduler chose it, else where the member was seen to serve.
    fn node_of_volume(&self, number: usize) -> Option<String> {
        let claim = self.claim(Which::Data(number))?;
        let record = self.members[number].identity.as_ref();
        let record = record.map(|it| &it.member);
        let same = record.filter(|it| it.claim.as_ref() == Some(&claim.meta.uid));
        claim.node.clone().or_else(|| same?.node.clone())
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

    /// The node of a member's volume, where the nodes with room for a Pod of it cannot reach that.
    pub(super) fn lies_on(&self, number: usize, pod: &PodSeen) -> Option<String> {
        let gone = self.members[number].node.is_away && pod.misses_volume();
        let elsewhere = pod.lies_elsewhere() || gone;
        self.node_of_volume(number).filter(|_| elsewhere)
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
            let claim = member.node.claim.as_deref().unwrap_or_default();
            return Some(member.unheard.seconds(claim));
        }
        member.unheard.end();
        None
    }
}

/// The node's controller has not heard of its kubelet.
fn is_away(node: &Value) -> bool {
    is_ready(node, "Unknown")
}

/// Whether a node's condition Ready has this status.
fn is_ready(node: &Value, status: &str) -> bool {
    let conditions = node["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|it| it["type"] == "Ready" && it["status"] == status)
}

fn is_cordoned(node: &Value) -> bool {
    node["spec"]["unschedulable"] == true
}

/// Whether a node is there and would take a member: by what it is, what keeps Pods off, and what the document asks of it by name.
fn takes_a_member(node: &DynamicObject, asked: &asked::Pod) -> bool {
    let data = &node.data;
    let labels = node.metadata.labels.as_ref();
    let has = |(key, value): (&String, &String)| labels.and_then(|it| it.get(key)) == Some(value);
    let mut taints = data["spec"]["taints"].as_array().into_iter().flatten();
    is_ready(data, "True")
        && !is_cordoned(data)
        && asked.node_selector.iter().all(has)
        && !taints.any(|it| keeps_off(it, &asked.tolerations))
}

/// Whether a Pod shares its node with none of its kind.
fn keeps_apart(pod: &DynamicObject) -> bool {
    let terms = &pod.data["spec"]["affinity"]["podAntiAffinity"];
    let terms = &terms["requiredDuringSchedulingIgnoredDuringExecution"];
    let mut terms = terms.as_array().into_iter().flatten();
    let has = |(key, value): (&String, &Value)| {
        let labels = pod.metadata.labels.as_ref();
        labels
            .and_then(|it| it.get(key))
            .is_some_and(|it| value == it)
    };
    terms.any(|it| {
        let of_its_kind = it["labelSelector"]["matchLabels"].as_object();
        let of_its_kind = of_its_kind.is_some_and(|it| it.iter().all(has));
        of_its_kind && it["topologyKey"] == "kubernetes.io/hostname"
    })
}

/// Whether a taint keeps Pods with these tolerations off.
fn keeps_off(taint: &Value, tolerations: &[asked::Toleration]) -> bool {
    let tolerates = |it: &asked::Toleration| {
        let effect = it.effect.is_none_or(|it| taint["effect"] == json!(it));
        let key = it.key.as_deref().is_none_or(|it| taint["key"] == it);
        let value = it.operator == Some(asked::Compare::Exists)
            || taint["value"].as_str().unwrap_or_default()
                == it.value.as_deref().unwrap_or_default();
        effect && key && value
    };
    taint["effect"] != json!(asked::Effect::PreferNoSchedule) && !tolerations.iter().any(tolerates)
}

/// Whether a volume can be used on one node only, as local ones are.
fn is_of_one_node(volume: &Value) -> bool {
    let terms = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
    let [term] = terms.as_array().map_or(&[][..], Vec::as_slice) else {
        return false;
    };
    let names = |it: &Value| {
        let one = it["values"].as_array().is_some_and(|it| it.len() == 1);
        let of_node = it["key"] == "kubernetes.io/hostname" || it["key"] == "metadata.name";
        one && of_node && it["operator"] == "In"
    };
    ["matchExpressions", "matchFields"].iter().any(|it| {
        let mut all = term[*it].as_array().into_iter().flatten();
        all.any(names)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_of_one_node_says_so() {
        let volume = |terms: Value| {
            let required = serde_json::json!({"nodeSelectorTerms": terms});
            serde_json::json!({"spec": {"nodeAffinity": {"required": required}}})
        };
        let of = |key: &str, values: &[&str]| serde_json::json!({"key": key, "operator": "In", "values": values});
        let host = of("kubernetes.io/hostname", &["edge2"]);
        let zone = of("topology.kubernetes.io/zone", &["a"]);
        let term = |it: &[&Value]| serde_json::json!({"matchExpressions": it});
        for (terms, one) in [
            (serde_json::json!([term(&[&host])]), true),
            (serde_json::json!([term(&[&zone, &host])]), true),
            (
                serde_json::json!([{"matchFields": [of("metadata.name", &["edge2"])]}]),
                true,
            ),
            (serde_json::json!([term(&[&zone])]), false),
            (serde_json::json!([term(&[&host]), term(&[&zone])]), false),
            (
                serde_json::json!([term(&[&of("kubernetes.io/hostname", &["a", "b"])])]),
                false,
            ),
            (serde_json::json!([]), false),
        ] {
            assert_eq!(is_of_one_node(&volume(terms.clone())), one, "{terms}");
        }
        assert!(!is_of_one_node(&Value::Null), "a network's volume");
    }

    #[test]
    fn a_node_takes_a_member_where_nothing_that_is_known_keeps_it_off() {
        let node = |more: Value| -> DynamicObject {
            let mut it = json!({
                "metadata": {"name": "edge3", "labels": {"shop": "yes"}},
                "spec": {},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]},
            });
            for (part, value) in more.as_object().unwrap() {
                it[part] = value.clone();
            }
            serde_json::from_value(it).unwrap()
        };
        let taint = |effect: &str| {
            let it = json!({"key": "for", "value": "shops", "effect": effect});
            node(json!({"spec": {"taints": [it]}}))
        };
        let asked = |it: Value| serde_json::from_value::<asked::Pod>(it).unwrap();
        let nothing = asked(json!({}));
        let selects = |value: &str| asked(json!({"nodeSelector": {"shop": value}}));
        let tolerates = |it: Value| asked(json!({"tolerations": [it]}));
        let status =
            |it: &str| node(json!({"status": {"conditions": [{"type": "Ready", "status": it}]}}));
        let exists = || tolerates(json!({"operator": "Exists"}));
        let key = |it: &str| tolerates(json!({"operator": "Exists", "key": it}));
        let effect = |it: &str| tolerates(json!({"operator": "Exists", "effect": it}));
        for (node, asked, takes) in [
            (node(json!({})), &nothing, true),
            (node(json!({})), &selects("yes"), true),
            (node(json!({})), &selects("no"), false),
            (
                node(json!({"spec": {"unschedulable": true}})),
                &nothing,
                false,
            ),
            (status("False"), &nothing, false),
            (status("Unknown"), &nothing, false),
            (taint("PreferNoSchedule"), &nothing, true),
            (taint("NoSchedule"), &nothing, false),
            (taint("NoExecute"), &nothing, false),
            (taint("NoSchedule"), &exists(), true),
            (taint("NoSchedule"), &key("for"), true),
            (taint("NoSchedule"), &key("other"), false),
            (taint("NoSchedule"), &effect("NoExecute"), false),
            (
                taint("NoSchedule"),
                &tolerates(json!({"key": "for", "value": "shops"})),
                true,
            ),
            (
                taint("NoSchedule"),
                &tolerates(json!({"key": "for", "value": "trains"})),
                false,
            ),
            (
                taint("NoSchedule"),
                &tolerates(json!({"key": "for"})),
                false,
            ),
        ] {
            assert_eq!(takes_a_member(&node, asked), takes, "{node:?} {asked:?}");
        }
    }

    #[test]
    fn a_pod_that_shares_its_node_with_none_says_so() {
        let pod = |when: &str, topology: &str, of: &str| -> DynamicObject {
            let selector = json!({"matchLabels": {"cluster": of}});
            let term = json!({"topologyKey": topology, "labelSelector": selector});
            let it = json!({
                "metadata": {"name": "shop-0", "labels": {"cluster": "shop", "more": "yes"}},
                "spec": {"affinity": {"podAntiAffinity": {when: [term]}}},
            });
            serde_json::from_value(it).unwrap()
        };
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
        let (node, zone) = ("kubernetes.io/hostname", "topology.kubernetes.io/zone");
        for (pod, apart) in [
            (pod(required, node, "shop"), true),
            (pod(required, node, "other"), false),
            (pod(required, zone, "shop"), false),
            (pod(preferred, node, "shop"), false),
        ] {
            assert_eq!(keeps_apart(&pod), apart, "{pod:?}");
        }
    }

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
