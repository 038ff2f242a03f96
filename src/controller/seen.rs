//! What the watches have brought, small and by name. A watch that has not brought its first list yet
//! knows nothing: nobody acts before [`Seen::is_ready`].

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use kube::api::{DynamicObject, ObjectMeta};
use kube::runtime::watcher::Event;
use serde_json::Value;

use super::names::{
    CLUSTER, CLUSTER_NAMESPACE, CONTAINER, DATA, GUARD, IMAGE_ASKED, MADE_FOR, MADE_FROM, OPERATOR,
    QUOTA, SETTINGS, STORAGE_CLASS, VERSION,
};
use crate::api::formats;

/// Namespace and name.
pub(super) type Key = (String, String);

/// A namespace that is watched, or [`EVERYWHERE`].
pub(super) type Scope = str;
/// All namespaces, in one watch.
pub(super) const EVERYWHERE: &Scope = "";

type Items<T> = BTreeMap<Key, Rc<T>>;

/// Those of a watch, and the others.
fn split<T>(items: Items<T>, scope: &Scope) -> (Items<T>, Items<T>) {
    items.into_iter().partition(|(key, _)| is_in(key, scope))
}

fn is_in(key: &Key, scope: &Scope) -> bool {
    scope == EVERYWHERE || key.0 == scope
}

/// The objects of one kind: of one watch, or of one for each namespace.
pub(super) struct Seen<T> {
    /// How many watches there are.
    watches: usize,
    /// Of which the first list is complete.
    ready: RefCell<BTreeSet<String>>,
    items: RefCell<Items<T>>,
    /// A list that is being brought again.
    next: RefCell<Items<T>>,
}

impl<T> Seen<T> {
    pub(super) fn of(watches: usize) -> Self {
        Seen {
            watches,
            ready: RefCell::default(),
            items: RefCell::default(),
            next: RefCell::default(),
        }
    }
}

impl<T: PartialEq> Seen<T> {
    /// The first list is complete, of each watch.
    pub(super) fn is_ready(&self) -> bool {
        self.ready.borrow().len() == self.watches
    }

    /// The same of this namespace: what is not known of another one is nothing to it.
    pub(super) fn is_ready_in(&self, namespace: &str) -> bool {
        let ready = self.ready.borrow();
        ready.contains(EVERYWHERE) || ready.contains(namespace)
    }

    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<Rc<T>> {
        let key = (namespace.to_owned(), name.to_owned());
        self.items.borrow().get(&key).cloned()
    }

    pub(super) fn all(&self) -> Vec<Rc<T>> {
        self.items.borrow().values().cloned().collect()
    }

    /// It has gone, whether or not it could be read in the end.
    pub(super) fn forget(&self, key: &Key) -> Vec<Rc<T>> {
        self.items.borrow_mut().remove(key).into_iter().collect()
    }

    /// Takes an event of a watch in; the objects that came, changed or went.
    pub(super) fn feed(&self, scope: &Scope, event: Event<(Key, T)>) -> Vec<Rc<T>> {
        match event {
            Event::Apply((key, item)) => {
                let item = Rc::new(item);
                let before = self.items.borrow_mut().insert(key, item.clone());
                if before.is_some_and(|it| *it == *item) {
                    return Vec::new();
                }
                vec![item]
            }
            Event::Delete((key, _)) => self.items.borrow_mut().remove(&key).into_iter().collect(),
            Event::Init => {
                self.next.borrow_mut().retain(|it, _| !is_in(it, scope));
                Vec::new()
            }
            Event::InitApply((key, item)) => {
                self.next.borrow_mut().insert(key, Rc::new(item));
                Vec::new()
            }
            Event::InitDone => {
                self.ready.borrow_mut().insert(scope.to_owned());
                let (now, under_way) = split(self.next.take(), scope);
                self.next.replace(under_way);
                let (before, mut items) = split(self.items.take(), scope);
                items.extend(now.clone());
                self.items.replace(items);
                let gone = before.iter().filter(|(key, _)| !now.contains_key(*key));
                let came = now
                    .iter()
                    .filter(|(key, item)| before.get(*key) != Some(*item));
                gone.chain(came).map(|(_, item)| item.clone()).collect()
            }
        }
    }
}

/// What is needed of any object of ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) uid: String,
    pub(super) resource_version: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) deleting: bool,
    pub(super) namespace: String,
    /// What it was made from; none where somebody else has changed it since.
    pub(super) made_from: Option<String>,
}

impl Meta {
    pub(super) fn of(meta: &ObjectMeta) -> Self {
        Meta {
            uid: meta.uid.clone().unwrap_or_default(),
            resource_version: meta.resource_version.clone().unwrap_or_default(),
            labels: meta.labels.clone().unwrap_or_default(),
            deleting: meta.deletion_timestamp.is_some(),
            namespace: meta.namespace.clone().unwrap_or_default(),
            made_from: made_from(meta),
        }
    }

    /// The cluster that it was made for: its labels say so, and for a Secret in another namespace also
    /// which namespace the cluster is in.
    pub(super) fn cluster(&self) -> Option<Key> {
        let name = self.labels.get(CLUSTER)?.clone();
        let namespace = self.labels.get(CLUSTER_NAMESPACE);
        Some((namespace.unwrap_or(&self.namespace).clone(), name))
    }
}

fn made_from(meta: &ObjectMeta) -> Option<String> {
    let mut managers = meta.managed_fields.iter().flatten();
    let ours = managers.all(|it| {
        it.manager.as_deref() == Some(OPERATOR) || it.subresource.as_deref() == Some("status")
    });
    let annotations = meta.annotations.as_ref().filter(|_| ours)?;
    annotations.get(MADE_FROM).cloned()
}

/// A Service that the operator made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ServiceSeen {
    pub(super) meta: Meta,
    /// Its own, and those of its load balancer.
    pub(super) addresses: Vec<String>,
}

impl ServiceSeen {
    pub(super) fn of(service: &DynamicObject) -> Self {
        ServiceSeen {
            meta: Meta::of(&service.metadata),
            addresses: addresses(&service.data),
        }
    }
}

/// Addresses of a Service: its own, and those of its load balancer.
pub(super) fn addresses(service: &Value) -> Vec<String> {
    let list = |pointer: &str| {
        let found = service.pointer(pointer).and_then(Value::as_array);
        found.into_iter().flatten()
    };
    let own = list("/spec/clusterIPs").filter_map(Value::as_str);
    let balancers = list("/status/loadBalancer/ingress").take(BALANCERS_MAX);
    let balancers = balancers.flat_map(|it| [it["ip"].as_str(), it["hostname"].as_str()]);
    let all = own.chain(balancers.flatten());
    all.filter(|it| *it != "None").map(str::to_owned).collect()
}

/// Addresses of a load balancer that stand in the certificate: k3s' has one for each node.
const BALANCERS_MAX: usize = 8;

/// A container of a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Container {
    /// Nothing is known of it yet.
    None,
    /// Not started, or to be started again.
    Waiting {
        reason: String,
        message: String,
    },
    Running {
        id: String,
        /// RFC 3339.
        started: String,
    },
    Ended,
}

/// Reasons of the kubelet for an image that a node has not and cannot get. They alternate.
pub(super) const NO_IMAGE: [&str; 4] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
];

/// How a container of a Pod ended last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It was asked to, its node went, or the guard refused a start.
    Asked,
    /// Nobody asked it to.
    Unasked {
        container: String,
        reason: String,
        code: i64,
    },
}

impl End {
    fn of(container: &Value) -> Option<Self> {
        let all = ["/state/terminated", "/lastState/terminated"];
        let end = all.iter().find_map(|it| container.pointer(it))?;
        let code = end["exitCode"].as_i64().unwrap_or(0);
        let reason = text(end, "/reason");
        // The first process of a container that is asked with SIGTERM ends well; a guard that refuses says why. Of a node
        // that lost its power nobody knows how its containers ended.
        let lost = ["Unknown", "ContainerStatusUnknown"].contains(&reason.as_str());
        if lost || [0, 143].contains(&code) || !text(end, "/message").is_empty() {
            return Some(End::Asked);
        }
        Some(End::Unasked {
            container: text(end, "/containerID"),
            reason,
            code,
        })
    }
}

/// A Pod, as far as a decision needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodSeen {
    pub(super) meta: Meta,
    pub(super) name: String,
    /// Of the one owner that controls it.
    pub(super) owner: Option<String>,
    pub(super) phase: String,
    /// Why it failed, or is not placed.
    pub(super) reason: String,
    pub(super) message: String,
    pub(super) address: Option<String>,
    /// Where it runs.
    pub(super) node: Option<String>,
    /// The claim with its data.
    pub(super) claim: Option<String>,
    pub(super) settings: Option<u64>,
    /// The image that the document named for it.
    pub(super) image: Option<String>,
    pub(super) version: Option<String>,
    pub(super) quota: Option<u64>,
    /// What it was made for, in the words of its maker.
    pub(super) made_for: Option<String>,
    /// Why the kubelet, or the node's controller, calls it not ready; none where it is, or nobody has said so.
    pub(super) not_ready: Option<String>,
    pub(super) container: Container,
    /// What the container said when it last ended.
    pub(super) last_words: Option<String>,
    /// How it ended then.
    pub(super) end: Option<End>,
}

/// A claim that the operator made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ClaimSeen {
    pub(super) meta: Meta,
    pub(super) name: String,
    pub(super) phase: String,
    pub(super) volume: Option<String>,
    /// The class that the document named when the claim was made; none: the operator did not make it.
    pub(super) made_with: Option<String>,
    pub(super) class: Option<String>,
    /// What it asks for, in bytes; none where nobody can tell.
    pub(super) size: Option<u64>,
    /// For which node the scheduler had its volume made; none where the volume was there before.
    pub(super) node: Option<String>,
}

/// The scheduler's annotation of a claim whose volume is made for a node.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

impl ClaimSeen {
    pub(super) fn of(claim: &DynamicObject) -> Self {
        let annotations = claim.metadata.annotations.as_ref();
        let annotation = |name: &str| annotations.and_then(|it| it.get(name)).cloned();
        let spec = &claim.data["spec"];
        let size = text(spec, "/resources/requests/storage");
        ClaimSeen {
            meta: Meta::of(&claim.metadata),
            name: claim.metadata.name.clone().unwrap_or_default(),
            phase: text(&claim.data, "/status/phase"),
            volume: Some(text(spec, "/volumeName")).filter(|it| !it.is_empty()),
            made_with: annotation(STORAGE_CLASS),
            class: spec["storageClassName"].as_str().map(str::to_owned),
            size: formats::bytes(&size),
            node: annotation(SELECTED_NODE),
        }
    }
}

/// A container's status by its name: whoever adds a sidecar adds a status, and the kubelet sorts them.
fn named<'a>(statuses: &'a Value, name: &str) -> &'a Value {
    let mut all = statuses.as_array().into_iter().flatten();
    all.find(|it| it["name"] == name).unwrap_or(&Value::Null)
}

fn text(value: &Value, pointer: &str) -> String {
    let found = value.pointer(pointer).and_then(Value::as_str);
    found.unwrap_or_default().to_owned()
}

/// Whether the scheduler finds nodes with room that do not reach the volume, in its words of today and of before 1.33: it looks at
/// the volume after what the document asks of a node and after room.
fn is_of_volume(message: &str) -> bool {
    let of_volume = [
        "PersistentVolume's node affinity",
        "volume node affinity conflict",
    ];
    of_volume.iter().any(|it| message.contains(it))
}

/// The same, and no node is left out for what the document asks of it.
fn is_elsewhere(message: &str) -> bool {
    is_of_volume(message) && !message.contains("Pod's node affinity")
}

impl PodSeen {
    pub(super) fn of(pod: &DynamicObject) -> Self {
        let data = &pod.data;
        let labels = pod.metadata.annotations.as_ref();
        let annotation = |name: &str| labels.and_then(|it| it.get(name)).cloned();
        let container = named(&data["status"]["containerStatuses"], CONTAINER);
        // Why it is not placed; or why the kubelet ended it, also where its end was a clean one.
        let conditions = data["status"]["conditions"].as_array();
        let told = conditions.into_iter().flatten().find(|it| {
            it["type"] == "PodScheduled" && it["status"] == "False"
                || it["type"] == "DisruptionTarget" && it["status"] == "True"
        });
        let ready = data["status"]["conditions"].as_array();
        let mut ready = ready.into_iter().flatten();
        let ready = ready.find(|it| it["type"] == "Ready");
        let (mut reason, mut message) =
            (text(data, "/status/reason"), text(data, "/status/message"));
        if let Some(it) = told {
            reason = text(it, "/reason");
            message = text(it, "/message");
            // The scheduler says it a second time for Pods that it could end.
            message.truncate(message.find(", preemption:").unwrap_or(message.len()));
        }
        let first = named(&data["status"]["initContainerStatuses"], GUARD);
        let shown = if first["state"]["waiting"].is_object()
            && !container["state"]["running"].is_object()
        {
            first
        } else {
            container
        };
        let words = ["/state/terminated/message", "/lastState/terminated/message"]
            .iter()
            .map(|it| text(container, it))
            .find(|it| !it.is_empty());
        PodSeen {
            meta: Meta::of(&pod.metadata),
            name: pod.metadata.name.clone().unwrap_or_default(),
            owner: pod
                .metadata
                .owner_references
                .iter()
                .flatten()
                .find(|it| it.controller == Some(true))
                .map(|it| it.uid.clone()),
            phase: text(data, "/status/phase"),
            reason,
            message,
            address: Some(text(data, "/status/podIP")).filter(|it| !it.is_empty()),
            node: Some(text(data, "/spec/nodeName")).filter(|it| !it.is_empty()),
            claim: Some(text(
                named(&data["spec"]["volumes"], DATA),
                "/persistentVolumeClaim/claimName",
            ))
            .filter(|it| !it.is_empty()),
            image: annotation(IMAGE_ASKED),
            settings: annotation(SETTINGS).and_then(|it| u64::from_str_radix(&it, 16).ok()),
            version: annotation(VERSION),
            quota: annotation(QUOTA).and_then(|it| it.parse().ok()),
            made_for: annotation(MADE_FOR),
            not_ready: ready
                .filter(|it| it["status"] != "True")
                .map(|it| text(it, "/message")),
            container: state(shown),
            last_words: words,
            end: End::of(container),
        }
    }

    /// Kubernetes will not start it again.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.phase.as_str(), "Failed" | "Succeeded")
    }

    /// Whether it waits for a volume that the nodes with room cannot reach.
    pub(super) fn lies_elsewhere(&self) -> bool {
        self.is_unschedulable() && is_elsewhere(&self.message)
    }

    /// Whether a node with room is there that does not reach its volume.
    pub(super) fn misses_volume(&self) -> bool {
        self.is_unschedulable() && is_of_volume(&self.message)
    }

    /// Whether the scheduler has looked for a node and found none.
    pub(super) fn is_unschedulable(&self) -> bool {
        self.reason == "Unschedulable"
    }

    /// Whether its guard refused a start for this reason, the last time that its container ended.
    pub(super) fn is_refused_for(&self, reason: &str) -> bool {
        let words = self
            .last_words
            .as_deref()
            .and_then(|it| it.split_once(": "));
        words.is_some_and(|it| it.0 == reason)
    }

    /// Whether its node has no image for it, or one of another version than the data's.
    pub(super) fn lacks_image(&self) -> bool {
        match &self.container {
            Container::Waiting { reason, .. } if NO_IMAGE.contains(&reason.as_str()) => true,
            Container::Running { .. } => false,
            _ => self.is_refused_for("ImageVersion"),
        }
    }

    /// Of a container that ends again and again: the last line of what it said. The kubelet's own words count seconds.
    pub(super) fn restarts(&self) -> String {
        let last = self.last_words.as_deref();
        let last = last.and_then(|it| it.trim().lines().last());
        let words = last.unwrap_or("it ended without a word");
        format!("the kubelet restarts it: {words}")
    }
}

fn state(container: &Value) -> Container {
    let state = &container["state"];
    if state["running"].is_object() {
        Container::Running {
            id: text(container, "/containerID"),
            started: text(state, "/running/startedAt"),
        }
    } else if state["waiting"].is_object() {
        Container::Waiting {
            reason: text(state, "/waiting/reason"),
            message: text(state, "/waiting/message"),
        }
    } else if state["terminated"].is_object() {
        Container::Ended
    } else {
        Container::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        ("one".to_owned(), name.to_owned())
    }

    #[test]
    fn a_container_is_found_by_its_name_whatever_others_a_pod_has() {
        let pod = |ready: &str| {
            let pod = serde_json::json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "shop-0", "namespace": "one"},
                "status": {
                    "phase": "Running",
                    "conditions": [{"type": "Ready", "status": ready, "message": "unready: [daprd]"}],
                    "initContainerStatuses": [
                        {"name": "aaa", "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
                        {"name": "guard", "state": {"terminated": {"exitCode": 0}}},
                    ],
                    "containerStatuses": [
                        {"name": "daprd", "state": {"waiting": {"reason": "Error"}},
                         "lastState": {"terminated": {"message": "of somebody else"}}},
                        {"name": "etcd", "containerID": "c://1", "state": {"running": {"startedAt": "now"}},
                         "lastState": {"terminated": {"message": "DataDirMissing: gone"}}},
                    ],
                },
            });
            PodSeen::of(&serde_json::from_value(pod).unwrap())
        };
        let seen = pod("False");
        let running = Container::Running {
            id: "c://1".to_owned(),
            started: "now".to_owned(),
        };
        assert_eq!(seen.container, running);
        assert_eq!(seen.last_words.as_deref(), Some("DataDirMissing: gone"));
        assert_eq!(seen.not_ready.as_deref(), Some("unready: [daprd]"));
        assert_eq!(pod("True").not_ready, None);
    }

    #[test]
    fn a_node_that_the_document_does_not_want_is_not_a_volume_elsewhere() {
        let selector = "1 node(s) didn't match Pod's node affinity/selector";
        for volume in [
            "1 node(s) didn't match PersistentVolume's node affinity",
            "1 node(s) had volume node affinity conflict",
        ] {
            assert!(is_elsewhere(&format!("0/1 nodes are available: {volume}.")));
            let both = format!("0/2 nodes are available: {selector}, {volume}.");
            assert!(!is_elsewhere(&both) && is_of_volume(&both));
        }
        assert!(!is_elsewhere(selector));
        assert!(!is_elsewhere(
            "0/1 nodes are available: 1 Insufficient memory."
        ));
    }

    #[test]
    fn nothing_is_known_before_the_first_list_and_a_new_list_tells_what_went() {
        let seen = Seen::<u8>::of(1);
        assert!(!seen.is_ready());
        seen.feed(EVERYWHERE, Event::Init);
        seen.feed(EVERYWHERE, Event::InitApply((key("a"), 1)));
        assert!(!seen.is_ready() && seen.get("one", "a").is_none());
        assert_eq!(seen.feed(EVERYWHERE, Event::InitDone), [Rc::new(1)]);
        assert_eq!(
            seen.feed(EVERYWHERE, Event::Apply((key("b"), 2))),
            [Rc::new(2)]
        );
        assert!(
            seen.feed(EVERYWHERE, Event::Apply((key("b"), 2)))
                .is_empty(),
            "as before"
        );
        seen.feed(EVERYWHERE, Event::Init);
        seen.feed(EVERYWHERE, Event::InitApply((key("b"), 3)));
        assert_eq!(
            seen.all().len(),
            2,
            "the old list counts until the new is whole"
        );
        assert_eq!(
            seen.feed(EVERYWHERE, Event::InitDone),
            [Rc::new(1), Rc::new(3)]
        );
        assert_eq!(
            seen.feed(EVERYWHERE, Event::Delete((key("b"), 3))),
            [Rc::new(3)]
        );
        assert!(seen.all().is_empty());
    }
    #[test]
    fn of_several_namespaces_each_list_says_nothing_of_the_other() {
        let seen = Seen::<u8>::of(2);
        let key = |scope: &str| (scope.to_owned(), "a".to_owned());
        for scope in ["one", "two"] {
            assert!(!seen.is_ready());
            seen.feed(scope, Event::Init);
            seen.feed(scope, Event::InitApply((key(scope), 1)));
        }
        // Both lists were under way; each is complete for itself, and one alone is not all.
        assert_eq!(seen.feed("one", Event::InitDone).len(), 1);
        assert!(!seen.is_ready() && seen.get("two", "a").is_none());
        assert!(seen.is_ready_in("one") && !seen.is_ready_in("two"));
        assert_eq!(seen.feed("two", Event::InitDone).len(), 1);
        assert!(seen.is_ready());
        // The list of one comes again, without what went.
        seen.feed("one", Event::Init);
        assert_eq!(seen.feed("one", Event::InitDone).len(), 1);
        assert!(seen.get("one", "a").is_none() && seen.get("two", "a").is_some());
    }
}
