//! What one pass sees of one cluster. Reads only; a failed read is a value.

mod waiting;

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::rc::Rc;

use futures_util::future::join_all;

use super::claim::{SIZE_DEFAULT, Which};
use super::member::Member;
use super::names::SPEC_INVALID;
use super::seen::{Container, PodSeen};
use super::{Cluster, names, upgrade};
use crate::api::formats;
use crate::clock;
use crate::cluster::{Answer, Detail, Timestamp, detail};
use crate::member::certificates::{self, survey_by_clock};
use crate::member::contact::{Contact, Endpoint};
use crate::member::counts::could_serve;
use crate::member::place::HostPlace;
use crate::member::pod::GUARD_PATIENCE;
use crate::member::records::IdentityFile;
use crate::observed::{
    Again, Authority, Certificates, Claim, Clock, DocumentSeen, Instance, ListFrom, Looker,
    MadeFor, Membership, Observed, Predecessors, Process, Reading, Service, Writing,
};
use crate::render;
use crate::spec::{self, ClusterSpec, QUOTA_DEFAULT, Settings};
use crate::start::{
    self, Binary, CertificatesUsable, DataDir, Database, Facts, Filesystem, Identity, Room,
    StartHistory, Writable,
};
use crate::version::VERSION_AT_BIRTH;
use waiting::{Waiting, refused_before};

/// The next look at a Pod that waits; its watch rings before.
const WAITS_SECONDS: u64 = 5;
/// A Pod that its kubelet has been making for longer than this is told of.
pub(super) const MAKING_SECONDS: u64 = 60;
/// A guard has ended, or etcd is about to serve, after so long: its last look comes up to 5 s after its patience, and the
/// kubelet tells of it within a second.
const LOOKS_SECONDS: u64 = GUARD_PATIENCE.as_secs() + 6;

impl Cluster {
    /// Looks at everything.
    pub(super) async fn gather(&mut self, spec: &ClusterSpec) -> Box<Observed> {
        let now = clock::now();
        let numbers = self.looked_at(spec);
        let pods: Vec<Option<Rc<PodSeen>>> =
            numbers.iter().map(|it| self.member_pod(*it)).collect();
        let (certificates, clock) = self.certificates(spec, now);
        let looks = self.ask(spec, &numbers).await;
        let others = |at: usize| looks.iter().enumerate().filter(move |it| it.0 != at);
        let could_serve = |at| could_serve(others(at).map(|(_, (_, told))| told));
        let could_serve: Vec<bool> = (0..looks.len()).map(could_serve).collect();
        let told = looks.iter().map(|(_, told)| told.clone());
        let answers: Vec<Answer> = looks.iter().filter_map(|it| it.0.answer()).collect();
        let membership = Membership::best(told).with(&answers);
        let alone = self.is_alone(spec, &membership);
        let mut instances = heapless::Vec::new();
        let looks = looks.into_iter().zip(could_serve);
        for ((number, pod), ((service, _), could_serve)) in numbers.iter().zip(&pods).zip(looks) {
            self.look_at_node(*number, pod.as_ref(), service.read.is_answer())
                .await;
            let seen = (pod.as_deref(), service, certificates.clone());
            let mut instance = self.instance(spec, *number, seen, alone || could_serve);
            instance.alone = alone;
            let known = matches!(membership, Membership::Known(_));
            if known && !alone && self.has_another_claim(*number) {
                // Where nobody tells that the others go on, the guard looks: all claims may have come from a backup.
                instance.facts.data = DataDir::EMPTY;
            }
            let to_join = |it: &Rc<PodSeen>| it.made_for.as_deref() == Some(names::TO_JOIN);
            if instance.joins() && !pod.as_ref().is_none_or(to_join) {
                // It was made for the member that was here before.
                instance.list_from = ListFrom::Operator;
                if let Some(made) = &mut instance.made_for {
                    made.settings = Settings(0);
                }
            }
            let _ = instances.push(instance);
        }
        let membership = membership.after(spec, &instances);
        let unreached = self.unreached(&pods, &instances);
        let source = instances
            .iter()
            .max_by_key(|it: &&Instance| (it.service.serves(), !leads(it)));
        let source = source.and_then(|it| self.number(&it.member));
        self.memory.source = source.unwrap_or_default();
        let backups = self.backups(spec, clock, now).await;
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
            unreached,
            document: self.document_seen(spec),
            looker: Looker::Operator,
            instances,
        })
    }

    /// One member, by its Pod and what its etcd answers.
    fn instance(
        &mut self,
        spec: &ClusterSpec,
        number: usize,
        (pod, service, certificates): (Option<&PodSeen>, Service, Certificates),
        could_serve: bool,
    ) -> Instance {
        let process = self.process(number, pod);
        let regain = self.members[number].contact.regain(&service);
        let heard = (certificates.pairs, could_serve);
        let tries = self.tries(number, pod, process, &service, heard);
        let unheard = self.unheard(number, service.read.is_answer());
        let (process, waiting) = match refused_before(pod, process, &service) {
            Some(refusal) => (Process::Stopped, Waiting::Refused(refusal)),
            None => (process, self.waiting(number, pod)),
        };
        let member = &self.members[number];
        let identity = member.identity.as_ref().and_then(IdentityFile::to_identity);
        let mut facts = self.facts(spec, number, identity, certificates::usable(&certificates));
        facts.history.ending.words = upgrade::words_of(pod, tries.ends);
        Instance {
            member: member.name.clone(),
            process,
            terminating: self.terminating(number, pod),
            claim: self.claim_of_data(number, pod),
            alone: true,
            writable: facts.writable,
            facts,
            last_served: None,
            tries,
            newest_installed: self.version_in_force().or(Some(VERSION_AT_BIRTH)),
            quota_at_birth: self.quota_at_birth(),
            certificates,
            service,
            restart_in: if waiting == Waiting::No {
                0
            } else {
                WAITS_SECONDS
            },
            made_for: pod
                .filter(|_| process == Process::Stopped)
                .map(|it| self.made_for(number, it)),
            refused: waiting.refusal(),
            machine_changed: false,
            kept_elsewhere: false,
            unserved: None, // etcd listens on all addresses of its Pod
            list_from: ListFrom::Peers,
            regain,
            unheard,
            no_place: self.members[number].node.no_place,
            placement: self.placement(number, pod),
        }
    }

    fn claim_of_data(&self, number: usize, pod: Option<&PodSeen>) -> Claim {
        let record = self.members[number].identity.as_ref();
        let recorded = record.and_then(|it| it.member.claim.as_ref());
        match self.claim(Which::Data(number)) {
            _ if pod.is_some_and(|it| self.has_former_claim(number, it)) => Claim::Former,
            _ if self.goes(Which::Data(number)) => Claim::Deleted,
            Some(claim) if recorded != Some(&claim.meta.uid) => Claim::New,
            _ => Claim::Stays,
        }
    }

    /// Whether the cluster has one member. While nobody tells, its records do.
    fn is_alone(&self, spec: &ClusterSpec, membership: &Membership) -> bool {
        if let Membership::Known(members) = membership {
            return members.iter().count() <= 1;
        }
        let counts = |it: &&Member| {
            let wanted = spec.member(&it.name).is_some();
            let record = it.identity.as_ref().map(|it| &it.member);
            record.is_some_and(|it| it.id.is_some() || it.joined && wanted)
        };
        self.members.iter().filter(counts).count() <= 1
    }

    /// Asks these members, all at the same time.
    async fn ask(&mut self, spec: &ClusterSpec, numbers: &[usize]) -> Vec<(Service, Membership)> {
        let served = self.has_served();
        let mut contacts: Vec<Contact> = Vec::new();
        let mut ways = Vec::new();
        for number in numbers {
            ways.push((self.endpoint_now(spec, *number), self.process_now(*number)));
            contacts.push(std::mem::take(&mut self.members[*number].contact));
        }
        let looks = contacts.iter_mut().zip(&ways);
        let looks =
            looks.map(|(contact, (endpoint, process))| look(contact, endpoint, *process, served));
        let looks = join_all(looks).await;
        for (number, contact) in numbers.iter().zip(contacts) {
            self.members[*number].contact = contact;
        }
        looks
    }

    /// Whether etcd has told its ids to this cluster's operator.
    pub(super) fn has_served(&self) -> bool {
        let mut records = self.members.iter().filter_map(|it| it.identity.as_ref());
        records.any(|it| it.member.id.is_some())
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

    /// Where a member is reached by what its Pod shows now.
    pub(super) fn endpoint_now(&self, spec: &ClusterSpec, number: usize) -> Endpoint {
        let place = self.place(spec, self.member_pod(number).as_deref());
        let member = &self.members[number];
        Endpoint {
            joins: member.contact.joins(member.identity.as_ref()),
            ..self.endpoint(&place, spec)
        }
    }

    /// A member's process as its Pod shows it now.
    fn process_now(&self, number: usize) -> Process {
        self.process(number, self.member_pod(number).as_deref())
    }

    /// The same right before it is interrupted. `answers`: etcd has just answered, so no guard refuses.
    fn process_again(&self, number: usize, answers: bool) -> Process {
        let pod = self.member_pod(number);
        let process = self.process(number, pod.as_deref());
        match refused_before(pod.as_deref(), process, &Service::UNKNOWN) {
            Some(_) if !answers => Process::Stopped,
            _ => process,
        }
    }

    /// Everything that permits an interruption, read again.
    pub(super) async fn read_again(&mut self, spec: &ClusterSpec, member: &str) -> Again {
        let number = self.number(member).unwrap_or_default();
        let (mut told, mut answers, mut own) = (Vec::new(), Vec::new(), None);
        // Size 0 needs no answer of an etcd that may hang.
        let asked = if spec.size > 0 {
            self.looked_at(spec)
        } else {
            Vec::new()
        };
        for it in asked {
            let process = self.process_again(it, false);
            let endpoint = self.endpoint_now(spec, it);
            if endpoint.metrics.ip().is_unspecified() {
                continue;
            }
            let (id, membership) = self.members[it]
                .contact
                .look_again(&endpoint, process)
                .await;
            told.push(membership);
            answers.extend(id.map(|member| Answer {
                member,
                raft_index: 0,
            }));
            own = own.or_else(|| id.filter(|_| it == number));
        }
        let placed = self.member_pod(number).is_some_and(|it| it.node.is_some());
        Again {
            process: self.process_again(number, own.is_some()), // etcd may have taken its time to answer
            id: own,
            membership: Membership::best(told.into_iter()).with(&answers),
            claim_deleted: placed && self.goes_again(Which::Data(number), true).await,
        }
    }

    /// A member's place as the operator reaches it: at its Pod's address.
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

    fn process(&self, number: usize, pod: Option<&PodSeen>) -> Process {
        let Some(pod) = pod else {
            return Process::Stopped;
        };
        if !self.owns(pod) {
            return Process::Foreign { pid: None };
        }
        if pod.meta.deleting {
            return Process::Unknown; // it ends; what comes after it is made when it has gone
        }
        let Container::Running { id, started } = &pod.container else {
            return Process::Stopped;
        };
        let version = pod.version.as_deref().and_then(|it| it.parse().ok());
        let (Some(settings), Some(version)) = (self.settings_of(number, pod), version) else {
            return Process::Foreign { pid: None };
        };
        let latched = self.members[number]
            .identity
            .as_ref()
            .map(|it| it.member.quota);
        let started = crate::clock::parse_rfc3339(started);
        let seconds = started.map_or(0, |it| clock::now().seconds_since(it).max(0));
        Process::Running {
            pid: pid_of(id),
            settings,
            version,
            quota: pod.quota.or(latched).unwrap_or(0),
            seconds: u64::try_from(seconds).unwrap_or(0),
        }
    }

    /// The settings that a Pod was made for; with another image than the record has, those that nobody asks for.
    fn settings_of(&self, number: usize, pod: &PodSeen) -> Option<Settings> {
        let record = self.members[number].identity.as_ref().map(|it| &it.member);
        let image = record.map(|it| {
            let of_other = pod.version.is_some() && pod.version == it.other_version;
            let image = if of_other { &it.other_image } else { &it.image };
            image.as_ref()
        });
        let same = image.is_none_or(|it| it == pod.image.as_ref());
        let settings = pod.settings.map(Settings)?;
        Some(if same { settings } else { Settings(0) })
    }

    /// What a Pod that does not run was made for; where that was taken from it, for nothing that anybody asks for.
    fn made_for(&self, number: usize, pod: &PodSeen) -> MadeFor {
        let version = pod.version.as_deref().and_then(|it| it.parse().ok());
        let known = self.settings_of(number, pod).zip(version);
        let (settings, version) = known.unwrap_or((Settings(0), VERSION_AT_BIRTH));
        MadeFor { settings, version }
    }

    /// For how long the Pod has been asked to end.
    fn terminating(&mut self, number: usize, pod: Option<&PodSeen>) -> u64 {
        let terminating = &mut self.members[number].terminating;
        if let Some(pod) = pod.filter(|it| it.meta.deleting) {
            return terminating.seconds(&pod.meta.uid);
        }
        terminating.end();
        0
    }

    fn document_seen(&self, spec: &ClusterSpec) -> DocumentSeen {
        let invalid = self.memory.invalid.as_ref().map(|why| (SPEC_INVALID, why));
        let invalid = invalid.map(|(reason, why)| (reason, why.clone()));
        let claim = || Some(("ClaimNotChanged", self.claim_not_changed(spec)?));
        let image = || Some(("ImageNotChanged", self.image_not_changed(spec)?));
        let size = || Some(("SizeNotChanged", self.size_not_changed(spec)?));
        match invalid.or_else(claim).or_else(image).or_else(size) {
            Some((reason, why)) => DocumentSeen::Refused { reason, why },
            None => DocumentSeen::Accepted,
        }
    }

    fn certificates(&self, spec: &ClusterSpec, now: Timestamp) -> (Certificates, Clock) {
        survey_by_clock(&self.certificates, now, &self.names(spec), spec, |dated| {
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
        number: usize,
        identity: Option<Identity>,
        certificates: CertificatesUsable,
    ) -> Facts {
        // A restore brings data that has not served yet.
        let record = self.members[number].identity.as_ref();
        let restored =
            record.is_some_and(|it| !it.member.joined && !it.cluster.former_ids.is_empty());
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
        // Whoever joins has the founder's.
        if let Some(founder) = &self.members[0].identity {
            return founder.member.quota;
        }
        let claim = self.object.object.spec.storage.volume_claim.as_ref();
        let size = claim.map_or(SIZE_DEFAULT, |it| it.size.as_str());
        let room = formats::bytes(size).map(|it| it / 2);
        spec::quota_at_birth(room.unwrap_or(QUOTA_DEFAULT))
    }
}

/// A number that changes with each start of a container.
fn pid_of(id: &str) -> u32 {
    let hex = id.rsplit('/').next().unwrap_or_default();
    let hex = hex.get(..8).unwrap_or_default();
    u32::from_str_radix(hex, 16).unwrap_or(1).max(1)
}

fn leads(instance: &Instance) -> bool {
    instance.service.details.is_some_and(|it| it.leads())
}

/// Asks one member.
async fn look(
    contact: &mut Contact,
    endpoint: &Endpoint,
    process: Process,
    served: bool,
) -> (Service, Membership) {
    if endpoint.metrics.ip().is_unspecified() && matches!(process, Process::Running { .. }) {
        let nobody = Service {
            read: Reading::Failed(detail(format_args!("the Pod has no address yet"))),
            write: Writing::NotTried,
            ..Service::UNKNOWN
        };
        return (nobody, Membership::Unreachable);
    }
    contact.look(endpoint, process, served).await
}
