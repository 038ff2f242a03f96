//! What one pass sees of one cluster. Reads only; a failed read is a value.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::rc::Rc;

use super::claim::{SIZE_DEFAULT, Which};
use super::names::SPEC_INVALID;
use super::seen::{Container, NO_IMAGE, PodSeen};
use super::{Cluster, names, upgrade};
use crate::api::formats;
use crate::clock;
use crate::cluster::{Detail, MemberName, Timestamp, detail};
use crate::member::certificates::{self, survey_by_clock};
use crate::member::contact::Endpoint;
use crate::member::place::HostPlace;
use crate::member::pod::{refusal_from, unplaceable};
use crate::member::records::IdentityFile;
use crate::observed::{
    Authority, Certificates, Claim, Clock, DocumentSeen, Instance, Looker, MadeFor, Membership,
    Observed, Predecessors, Process, Reading, Service, Writing,
};
use crate::render;
use crate::spec::{self, ClusterSpec, QUOTA_DEFAULT, Settings};
use crate::start::{
    self, Binary, CertificatesUsable, DataDir, Database, Facts, Filesystem, Identity, Refusal,
    Room, StartHistory, Writable,
};
use crate::version::VERSION_AT_BIRTH;

/// The next look at a Pod that waits; its watch rings before.
const WAITS_SECONDS: u64 = 5;
/// A Pod that its kubelet has been making for longer than this is told of.
pub(super) const MAKING_SECONDS: u64 = 60;
/// A guard has looked at everything, or etcd is about to serve, after so long.
const LOOKS_SECONDS: u64 = 10;

impl Cluster {
    /// Looks at everything.
    pub(super) async fn gather(&mut self, spec: &ClusterSpec) -> Box<Observed> {
        let now = clock::now();
        let pod = self.pod_now();
        let place = self.place(spec, pod.as_deref());
        let process = self.process(pod.as_deref());
        let (certificates, clock) = self.certificates(spec, &place, now);
        let identity = self.identity.as_ref().and_then(IdentityFile::to_identity);
        let served = identity.as_ref().is_some_and(|it| it.served.is_some());
        let (service, membership) = self.ask(&place, spec, process, served).await;
        let regain = self.memory.contact.regain(&service);
        let tries = self.tries(pod.as_deref(), process, &service, certificates.pairs);
        let (process, waiting) = match refused_before(pod.as_deref(), process, &service) {
            Some(refusal) => (Process::Stopped, Waiting::Refused(refusal)),
            None => (process, self.waiting(pod.as_deref())),
        };
        let mut facts = self.facts(spec, identity, certificates::usable(&certificates));
        facts.history.ending.words = upgrade::words_of(pod.as_deref(), tries.ends);
        let answers = service.read == Reading::Answered;
        let instance = Instance {
            member: member(spec, self.identity.as_ref()),
            process,
            terminating: self.terminating(pod.as_deref()),
            claim: self.claim_of_data(),
            alone: true, // sizes above 1 are refused, so no cluster of ours had another member
            writable: facts.writable,
            facts,
            last_served: None,
            tries,
            newest_installed: Some(VERSION_AT_BIRTH),
            quota_at_birth: self.quota_at_birth(),
            certificates,
            service,
            restart_in: if waiting == Waiting::No {
                0
            } else {
                WAITS_SECONDS
            },
            made_for: pod
                .as_deref()
                .filter(|_| process == Process::Stopped)
                .map(made_for),
            refused: waiting.refusal(),
            machine_changed: false,
            kept_elsewhere: false,
            regain,
        };
        let backups = self.backups(spec, clock, now).await;
        let mut instances = heapless::Vec::new();
        let _ = instances.push(instance);
        Box::new(Observed {
            paused: None, // here the document says so
            now,
            clock,
            authority: Authority::Cluster,
            membership,
            failed: self.memory.failed.clone(),
            host: None, // the node is Kubernetes' to watch
            backups,
            predecessors: Predecessors::None, // only Pods see snapshots
            restoring: self.restoring(),
            upgrade: self.upgrade(spec),
            unreached: self.unreached(pod.as_deref(), process, answers),
            document: self.document_seen(spec),
            looker: Looker::Operator,
            instances,
        })
    }

    fn claim_of_data(&self) -> Claim {
        if self.goes(Which::Data) {
            Claim::Deleted
        } else {
            Claim::Stays
        }
    }

    async fn ask(
        &mut self,
        place: &HostPlace,
        spec: &ClusterSpec,
        process: Process,
        served: bool,
    ) -> (Service, Membership) {
        let endpoint = self.endpoint(place, spec);
        if endpoint.metrics.ip().is_unspecified() && matches!(process, Process::Running { .. }) {
            let nobody = Service {
                read: Reading::Failed(detail(format_args!("the Pod has no address yet"))),
                write: Writing::NotTried,
                ..Service::UNKNOWN
            };
            return (nobody, Membership::Unreachable);
        }
        self.memory.contact.look(&endpoint, process, served).await
    }

    /// Where the member is reached; its address is unspecified while its Pod has none.
    fn endpoint(&self, place: &HostPlace, spec: &ClusterSpec) -> Endpoint {
        let address = place.listen.first().copied();
        let address = address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        Endpoint {
            url: place.client_url.clone(),
            files: crate::tls::ClientFiles {
                server_name: Some(self.server_name()),
                ..self.certificates.operator_files()
            },
            metrics: (address, spec.network.metrics_port).into(),
            joins: false,
        }
    }

    pub(super) fn pod_now(&self) -> Option<Rc<PodSeen>> {
        let name = names::member(&self.name);
        self.shared.pods.get(&self.namespace, &name)
    }

    /// Where the member is reached by what its Pod shows now.
    pub(super) fn endpoint_now(&self, spec: &ClusterSpec) -> Endpoint {
        let place = self.place(spec, self.pod_now().as_deref());
        self.endpoint(&place, spec)
    }

    /// The member's process as its Pod shows it now. `answers`: etcd has just answered, so no guard refuses.
    pub(super) fn process_now(&self, answers: bool) -> Process {
        let pod = self.pod_now();
        let process = self.process(pod.as_deref());
        match refused_before(pod.as_deref(), process, &Service::UNKNOWN) {
            Some(_) if !answers => Process::Stopped,
            _ => process,
        }
    }

    /// The member's place as the operator reaches it: at its Pod's address.
    pub(super) fn place(&self, spec: &ClusterSpec, pod: Option<&PodSeen>) -> HostPlace {
        let address = pod.and_then(|it| it.address.as_deref()?.parse::<IpAddr>().ok());
        let address = address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let host = render::url_host(&address.to_string());
        HostPlace {
            storage_dir: Self::pod_paths().member(),
            storage_named: false,
            listen: vec![address],
            advertised: vec![self.server_name()],
            names: self.names(spec),
            client_url: format!("https://{host}:{}", spec.network.client_port),
            metrics_url: format!("http://{host}:{}", spec.network.metrics_port),
            metrics_listen: address,
            log_stdout: true,
        }
    }

    /// The state directory inside of the member's Pod.
    pub(super) fn pod_paths() -> crate::paths::Paths {
        crate::paths::Paths::under(&PathBuf::from("/"))
    }

    fn process(&self, pod: Option<&PodSeen>) -> Process {
        let Some(pod) = pod else {
            return Process::Stopped;
        };
        if pod.owner.as_deref() != Some(&self.object.meta.uid) {
            return Process::Foreign { pid: None };
        }
        if pod.meta.deleting {
            return Process::Unknown; // it ends; what comes after it is made when it has gone
        }
        let Container::Running { id, started } = &pod.container else {
            return Process::Stopped;
        };
        let version = pod.version.as_deref().and_then(|it| it.parse().ok());
        let (Some(settings), Some(version)) = (pod.settings, version) else {
            return Process::Foreign { pid: None };
        };
        let latched = self.identity.as_ref().map(|it| it.member.quota);
        let started = crate::clock::parse_rfc3339(started);
        let seconds = started.map_or(0, |it| clock::now().seconds_since(it).max(0));
        Process::Running {
            pid: number(id),
            settings: Settings(settings),
            version,
            quota: pod.quota.or(latched).unwrap_or(0),
            seconds: u64::try_from(seconds).unwrap_or(0),
        }
    }

    /// For how long the Pod has been asked to end.
    fn terminating(&mut self, pod: Option<&PodSeen>) -> u64 {
        if let Some(pod) = pod.filter(|it| it.meta.deleting) {
            return self.memory.terminating.seconds(&pod.meta.uid);
        }
        self.memory.terminating.end();
        0
    }

    fn document_seen(&self, spec: &ClusterSpec) -> DocumentSeen {
        let invalid = self.memory.invalid.as_ref().map(|why| (SPEC_INVALID, why));
        let invalid = invalid.map(|(reason, why)| (reason, why.clone()));
        let claim = || Some(("ClaimNotChanged", self.claim_not_changed()?));
        let image = || Some(("ImageNotChanged", self.image_not_changed(spec)?));
        match invalid.or_else(claim).or_else(image) {
            Some((reason, why)) => DocumentSeen::Refused { reason, why },
            None => DocumentSeen::Accepted,
        }
    }

    /// A Pod that is there and does not run.
    fn waiting(&mut self, pod: Option<&PodSeen>) -> Waiting {
        if let Some((reason, why)) = &self.memory.unplaceable {
            return Waiting::Refused(unplaceable(reason, format_args!("{why}")));
        }
        let Some(pod) = pod.filter(|it| !it.is_over()) else {
            self.memory.making.end();
            return Waiting::No; // evicted, or its node was shut down: it is replaced
        };
        let waiting = match &pod.container {
            Container::Running { .. } => Waiting::No,
            Container::Waiting { reason, message } => {
                Waiting::because(why_waiting(pod, reason, message))
            }
            Container::Ended => Waiting::because(pod.last_words.as_deref().map(refusal_from)),
            Container::None if pod.reason == "Unschedulable" => {
                Waiting::Refused(self.unschedulable(&pod.message))
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
            self.memory.making.end();
            return waiting;
        }
        let made_for = self.memory.making.seconds(&pod.meta.uid);
        if made_for < MAKING_SECONDS || pod.meta.deleting {
            return Waiting::Silently;
        }
        Waiting::Refused(being_made(pod))
    }

    /// The scheduler finds no node. Of a claim that is not bound it only says so.
    fn unschedulable(&self, message: &str) -> Refusal {
        let claim = self.object.object.spec.storage.volume_claim.as_ref();
        let named = claim.is_some_and(|it| it.storage_class_name.is_some());
        let unbound = message.contains("unbound immediate PersistentVolumeClaims");
        if unbound && !named {
            return unplaceable("NoStorageClass", format_args!("{message}"));
        }
        let claim = self.claim(Which::Data);
        let node = claim.as_ref().and_then(|it| it.node.as_ref());
        match node.filter(|_| is_elsewhere(message)) {
            Some(node) => {
                let name = names::claim(&self.name);
                let why = format_args!("the claim {name} lies on the node {node}: {message}");
                unplaceable("VolumeElsewhere", why)
            }
            None => unplaceable("Unschedulable", format_args!("{message}")),
        }
    }

    fn certificates(
        &self,
        spec: &ClusterSpec,
        place: &HostPlace,
        now: Timestamp,
    ) -> (Certificates, Clock) {
        survey_by_clock(&self.certificates, now, &place.names, spec, |dated| {
            let newest = clock::newest_known(&self.paths.member(), dated);
            clock::trust(&self.paths, now, newest, self.shared.synchronised())
        })
    }

    /// What a start would find. The data lies on a volume that only the member's Pod sees: there the
    /// guard looks before each start and refuses in words that this operator reads; until it has,
    /// nothing is known to be wrong.
    fn facts(
        &self,
        spec: &ClusterSpec,
        identity: Option<Identity>,
        certificates: CertificatesUsable,
    ) -> Facts {
        // A restore brings data that has not served yet.
        let restored = self
            .identity
            .as_ref()
            .is_some_and(|it| !it.cluster.former_ids.is_empty());
        let served = restored || identity.as_ref().is_some_and(|it| it.served.is_some());
        let version = start::version(spec.version, identity.as_ref(), served, None);
        let version = version.unwrap_or(VERSION_AT_BIRTH);
        Facts {
            cluster: spec.name.clone(),
            hibernates: false,
            restoring: false,
            unreadable: self.unloaded(),
            version,
            unsafe_filesystem_allowed: spec.unsafe_filesystem_allowed,
            marker: identity.clone(),
            identity,
            data: DataDir {
                wal_segments: u32::from(served),
                wal_from_start: served,
                database: if served {
                    Database::Present
                } else {
                    Database::Absent
                },
                ..DataDir::EMPTY
            },
            strange_etcd: None,
            room: Room::AMPLE, // the guard looks
            filesystem: Filesystem::Unknown,
            writable: Writable::Yes,
            binary: Binary::Ready,
            certificates,
            conflict: None,
            seen: None,
            history: StartHistory::NONE,
        }
    }

    /// Before the Secret was read nothing is known of the cluster's identity: nothing is started.
    fn unloaded(&self) -> Option<Detail> {
        if self.loaded {
            return None;
        }
        let name = names::authority_secret(&self.name);
        Some(detail(format_args!(
            "the Secret {name} could not be read yet"
        )))
    }

    /// Rule D27, of the claim's size: half of it, since etcd needs room for its log and for a defragmented copy.
    pub(super) fn quota_at_birth(&self) -> u64 {
        let claim = self.object.object.spec.storage.volume_claim.as_ref();
        let size = claim.map_or(SIZE_DEFAULT, |it| it.size.as_str());
        let room = formats::bytes(size).map(|it| it / 2);
        spec::quota_at_birth(room.unwrap_or(QUOTA_DEFAULT))
    }
}

/// Whether the scheduler finds no node for a volume that others cannot reach, in its words of today and of before 1.33; and
/// not for what the document asks of a node.
fn is_elsewhere(message: &str) -> bool {
    let of_volume = [
        "PersistentVolume's node affinity",
        "volume node affinity conflict",
    ];
    of_volume.iter().any(|it| message.contains(it)) && !message.contains("Pod's node affinity")
}

/// A number that changes with each start of a container.
fn number(id: &str) -> u32 {
    let hex = id.rsplit('/').next().unwrap_or_default();
    let hex = hex.get(..8).unwrap_or_default();
    u32::from_str_radix(hex, 16).unwrap_or(1).max(1)
}

/// The document's member, or who lives here while its size is 0.
fn member(spec: &ClusterSpec, identity: Option<&IdentityFile>) -> MemberName {
    let born = || MemberName::try_from(identity?.member.name.as_str()).ok();
    let asked = spec.own().map(|it| it.name.clone());
    asked.or_else(born).unwrap_or_default()
}

/// What a Pod that does not run was made for; where that was taken from it, for nothing that anybody asks for.
fn made_for(pod: &PodSeen) -> MadeFor {
    let version = pod.version.as_deref().and_then(|it| it.parse().ok());
    let known = pod.settings.map(Settings).zip(version);
    let (settings, version) = known.unwrap_or((Settings(0), VERSION_AT_BIRTH));
    MadeFor { settings, version }
}

/// What is in the way of a start.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Waiting {
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

    fn refusal(self) -> Option<Refusal> {
        match self {
            Waiting::Refused(refusal) => Some(refusal),
            Waiting::No | Waiting::Silently => None,
        }
    }
}

/// A guard that refused, was started again and has not said anything new: what it said stands, or the
/// status would change with each of its starts.
fn refused_before(pod: Option<&PodSeen>, process: Process, service: &Service) -> Option<Refusal> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_the_document_does_not_want_is_not_a_volume_elsewhere() {
        let selector = "1 node(s) didn't match Pod's node affinity/selector";
        for volume in [
            "1 node(s) didn't match PersistentVolume's node affinity",
            "1 node(s) had volume node affinity conflict",
        ] {
            assert!(is_elsewhere(&format!("0/1 nodes are available: {volume}.")));
            assert!(!is_elsewhere(&format!(
                "0/2 nodes are available: {selector}, {volume}."
            )));
        }
        assert!(!is_elsewhere(selector));
        assert!(!is_elsewhere(
            "0/1 nodes are available: 1 Insufficient memory."
        ));
    }
}
