//! Several members: hosts with disks and processes over etcd's own rules (`world::raft`), kept by one controller
//! that sees all of them and sometimes late, or by an agent on each host, of which one may change the member list.
//!
//! The controller sees Pods: no disk, what the guard of one said, a Pod of a lost node as nobody's, one whose claim was given
//! up, one that ends and serves meanwhile, and one whose claim has no volume.
//!
//! Hosts freeze, are cut off, lose power, lose their disks as long as a majority keeps its data; members are evicted
//! or killed, which to their operator is one and the same; calls are lost, late, repeated, or refused because what
//! they change has changed; the operator is killed between any two actions; sizes and settings are edited. Of the
//! agents only the lock for restarts and the election are this test's own.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use etcd_operator::cluster::{
    Answer, Detail, FAILED_SECONDS, Health, LEARNERS_MAX, MemberId, MemberName, MemberSet, Role,
    Silence, VOTERS_MAX, detail,
};
use etcd_operator::observed::{
    Again, Authority, Claim, Clock, Details, Instance, ListFrom, MadeFor, Membership, Observed,
    Process, Reading, Service, Writing,
};
use etcd_operator::plan::permit::{Declared, Grounds, Permit};
use etcd_operator::plan::{Act, Change, Hold, Interruption, Plan, Task, Upkeep, leaves_its_claim};
use etcd_operator::runtime::{Runtime, reconcile};
use etcd_operator::spec::{ClusterSpec, MemberSpec, Settings};
use etcd_operator::start::{DataDir, Facts, Identity, Refusal, Start, StartHistory, verdict};
use etcd_operator::status::Status;

use crate::world::raft::{Entry, Raft, Refused};
use crate::world::random::Random;
use crate::world::{
    self, CLUSTER, DAY, QUOTA, VERSION, data, details, facts, identity, observed, serving, stopped,
};
use crate::{Lost, each_seed, now_or_panic};

const NAMES: [&str; VOTERS_MAX] = [
    "test-0", "test-1", "test-2", "test-3", "test-4", "test-5", "test-6",
];
/// Seconds for which an agent holds the election or the lock for restarts, unless it renews.
const LEASE: u64 = 30;
/// Peer ports that the document may ask for.
const PORTS: [u16; 2] = [2380, 2390];
/// Once faults have stopped, all is as asked after so many seconds: a member that no host holds any more is given up
/// after its grace, and the rest takes as long at most.
const HEALED_WITHIN: u64 = 2 * FAILED_SECONDS;
/// After a pass that failed, the next one follows.
const FAILED: Duration = Duration::from_secs(2);
/// A Pod that is asked to end has ended after less than so many seconds: its grace, and a kubelet that is late.
const MADE_TO_END_AFTER: u64 = 90;
/// For so many passes faults happen.
const PASSES: u32 = 80;

/// What a member's etcd wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Data {
    /// Whose it is; none where the first start was cut short before there was a log.
    member: Option<u64>,
    damaged: bool,
    /// A reader has found the damage.
    found: bool,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    pid: u32,
    settings: Settings,
    since: u64,
    /// A write was acknowledged.
    wrote: bool,
    /// Its guard waits for its place in the list.
    waits: bool,
}

/// A place for a member.
#[derive(Clone, Debug, Default)]
struct Host {
    identity: Option<Identity>,
    marker: Option<Identity>,
    data: Option<Data>,
    process: Option<Running>,
    frozen: bool,
    cut: bool,
    failed: u32,
    restart_at: u64,
    /// In Kubernetes: since when its node is away, for good or for a while.
    lost: Option<u64>,
    /// Its claim was given up, and the Pod on it is still listed.
    former: bool,
    /// Its Pod's guard, or the scheduler, lets no etcd start; with what the Pod was made for.
    refused: Option<(Refusal, Settings)>,
    /// What its Pod was made for.
    made: Option<ListFrom>,
    /// Since when its Pod is asked to end, and when it has ended: until then its etcd serves.
    ends: Option<(u64, u64)>,
    volume: Volume,
}

/// What a claim without data has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Volume {
    #[default]
    Bound,
    /// No node has room for one.
    Pending,
}

impl Host {
    /// Its etcd reaches the others.
    fn reaches(&self) -> bool {
        self.is_connected() && self.process.is_some_and(|it| !it.waits)
    }

    fn is_connected(&self) -> bool {
        !self.frozen && !self.cut && self.lost.is_none()
    }

    /// Its disk lost what a vote stands on.
    fn is_lost(&self) -> bool {
        self.lost.is_some() || self.data.is_none_or(|it| it.damaged)
    }

    fn facts(&self, now: u64) -> Facts {
        let found = match self.data.filter(|_| !self.former) {
            None => DataDir::EMPTY,
            Some(Data { member: None, .. }) => data(false, true, None),
            Some(it) => {
                let mut found = data(true, true, Some(CLUSTER));
                found.owner = it.member.map(|it| (CLUSTER, MemberId(it)));
                found.damage = it.found.then(world::damage);
                found
            }
        };
        Facts {
            identity: self.identity.clone(),
            marker: self.marker.clone().filter(|_| !self.former),
            data: found,
            history: StartHistory {
                failed: self.failed,
                window_left: self.restart_at.saturating_sub(now),
                ..StartHistory::NONE
            },
            ..facts()
        }
    }
}

fn identity_of(index: usize) -> Identity {
    Identity {
        member: world::name(NAMES[index]),
        ..identity(false)
    }
}

#[derive(Default)]
struct Counts {
    changes: u32,
    refused: BTreeMap<Refused, u32>,
    interruptions: u32,
    joined: u32,
    set_aside: u32,
    disks_lost: u32,
    nodes_lost: u32,
    claims_given_up: u32,
    unplaced: u32,
    quorum_lost: u32,
    /// Seconds from the last fault until all is as asked.
    healed_after: u64,
}

/// What is true, whatever anybody sees of it.
struct World {
    random: Random,
    faults: bool,
    /// One controller sees all members, by their Pods.
    in_kubernetes: bool,
    /// Seconds.
    now: u64,
    raft: Raft,
    hosts: Vec<Host>,
    size: usize,
    settings: Settings,
    /// The document, as each host reads it.
    document: Rc<[ClusterSpec]>,
    /// Where the document has the members listen for their peers.
    port: u16,
    next_pid: u32,
    /// Since when an entry does not answer.
    silent: BTreeMap<u64, u64>,
    /// How many members were in the list when it was last read.
    listed: usize,
    /// What a controller saw of each member the last time.
    before: Vec<Option<Instance>>,
    /// A change that was sent and has not arrived.
    late: Option<Change>,
    /// Which agent may change the list, and which one may interrupt its member, until when.
    election: Option<(usize, u64)>,
    lock: Option<(usize, u64)>,
    /// Why the last pass of each operator was not carried out; the controller's is the last.
    failed: Vec<Option<Detail>>,
    /// The shortest time until one of them looks again.
    next_look: Duration,
    counts: Counts,
}

impl World {
    fn new(seed: u64, in_kubernetes: bool) -> Self {
        let mut world = World {
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            faults: true,
            in_kubernetes,
            now: 1000,
            raft: Raft {
                committed: 1,
                max_learners: LEARNERS_MAX,
                next_id: 2,
                ..Raft::default()
            },
            hosts: vec![Host::default(); NAMES.len()],
            size: 1,
            settings: world::SETTINGS,
            document: Rc::new([]),
            port: PORTS[0],
            next_pid: 100,
            silent: BTreeMap::new(),
            listed: 1,
            before: vec![None; NAMES.len()],
            late: None,
            election: None,
            lock: None,
            failed: vec![None; NAMES.len() + 1],
            next_look: Duration::ZERO,
            counts: Counts::default(),
        };
        // One member that serves: every cluster is born so.
        let born = Identity {
            served: Some((CLUSTER, MemberId(1))),
            ..identity_of(0)
        };
        let first = &mut world.hosts[0];
        (first.identity, first.marker) = (Some(born.clone()), Some(born));
        first.data = Some(Data {
            member: Some(1),
            damaged: false,
            found: false,
        });
        world.raft.entries.push(Entry {
            id: 1,
            name: NAMES[0].to_owned(),
            peer_url: format!("https://{}:{}", NAMES[0], PORTS[0]),
            learner: false,
            connected: None,
            held: 1,
        });
        world.write_document();
        world.run(0, world::SETTINGS);
        world.settle();
        world
    }

    /// What a reader of a failure needs.
    fn tell(&self) -> String {
        let entries = self.raft.entries.iter().map(|it| {
            let role = if it.learner { "learner" } else { "voter" };
            let up = it.connected.is_some();
            format!(
                "\n  {} '{}' {role} up {up} holds {}",
                it.id, it.name, it.held
            )
        });
        let hosts = self.hosts.iter().zip(NAMES).map(|(it, name)| {
            let served = it.identity.as_ref().map(|it| (it.joined, it.served));
            format!(
                "\n  {name} {:?} runs {:?} identity {served:?} marker {} failed {} lost {:?} former {}",
                it.data,
                it.process,
                it.marker.is_some(),
                it.failed,
                it.lost,
                it.former
            )
        });
        format!(
            "size {} settings {:?} now {} leader {:?} committed {}, list:{}\nhosts:{}",
            self.size,
            self.settings,
            self.now,
            self.raft.leader,
            self.raft.committed,
            entries.collect::<String>(),
            hosts.collect::<String>()
        )
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.faults && self.random.chance(percent)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.random.below(limit as u64)).unwrap()
    }

    fn write_document(&mut self) {
        let spec = ClusterSpec {
            settings: self.settings,
            members: (0..self.size).map(|it| self.place(it)).collect(),
            former: (self.size..NAMES.len()).map(|it| self.place(it)).collect(),
            ..world::spec(&NAMES[..self.size])
        };
        let on_host = |own| ClusterSpec {
            own,
            ..spec.clone()
        };
        self.document = (0..NAMES.len()).map(on_host).collect();
    }

    fn place(&self, index: usize) -> MemberSpec {
        MemberSpec {
            peer_url: self.peer_url(index).as_str().try_into().unwrap(),
            ..world::place(NAMES[index])
        }
    }

    fn peer_url(&self, index: usize) -> String {
        format!("https://{}:{}", NAMES[index], self.port)
    }

    /// The only member moves to another port.
    fn move_member(&mut self) {
        if self.raft.entries.len() == 1 && self.late.is_none() {
            self.port = PORTS[self.below(PORTS.len())];
            self.settings = Settings(self.settings.0 + 10);
            self.write_document();
        }
    }

    fn run(&mut self, index: usize, settings: Settings) {
        self.next_pid += 1;
        self.hosts[index].process = Some(Running {
            pid: self.next_pid,
            settings,
            since: self.now,
            wrote: false,
            waits: false,
        });
    }

    fn end(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        (host.process, host.refused, host.frozen) = (None, None, false);
        host.ends = None;
        if host.former {
            self.begin_anew(index);
        }
    }

    /// Whether a member's Pod was asked to end. Nobody asks such a one anything any more.
    fn ends(&self, id: u64) -> bool {
        let mine = |it: &&Host| it.data.is_some_and(|it| it.member == Some(id));
        let mut hosts = self.hosts.iter().filter(mine);
        hosts.any(|it| it.ends.is_some())
    }

    /// Whether somebody leads, and a majority is there when all that were asked to end have ended.
    fn stays_led(&self) -> bool {
        let led = self.raft.leader.is_some();
        let voters = self.raft.voters();
        let stay = voters.filter(|it| it.connected.is_some() && !self.ends(it.id));
        led && stay.count() > self.raft.voters().count() / 2
    }

    /// A Pod is asked to end, and takes its time.
    fn ask_to_end(&mut self, index: usize) {
        let lingers = self.in_kubernetes && self.hosts[index].process.is_some() && self.chance(50);
        let until = self.now + self.random.below(MADE_TO_END_AFTER);
        if lingers {
            self.hosts[index].ends.get_or_insert((self.now, until));
        } else {
            self.end(index);
        }
    }

    /// Who reaches whom decides who leads; who was removed and learns of it ends.
    fn settle(&mut self) {
        self.raft.now = self.now * 1000;
        for entry in &mut self.raft.entries {
            let mine = |it: &&Host| it.data.is_some_and(|it| it.member == Some(entry.id));
            let reached = self.hosts.iter().filter(mine).any(Host::reaches);
            entry.connected = reached.then_some(entry.connected.unwrap_or(self.raft.now));
        }
        self.raft.elect();
        if self.raft.leader.is_none() {
            return;
        }
        for (index, host) in self.hosts.iter_mut().enumerate() {
            let Some(member) = host.data.and_then(|it| it.member) else {
                continue;
            };
            match self.raft.entry_mut(member) {
                Some(it) if host.reaches() => NAMES[index].clone_into(&mut it.name),
                None if host.reaches() => host.process = None,
                _ => {}
            }
        }
    }

    /// Time passes, clients write. Without faults the next look is when a plan says so, or late.
    fn tick(&mut self) {
        self.now += if self.faults {
            self.random.below(40) + 1
        } else {
            self.next_look.as_secs().max(1) * (self.random.below(4) + 1)
        };
        for index in 0..NAMES.len() {
            if self.hosts[index].ends.is_some_and(|it| it.1 <= self.now) {
                self.end(index);
            }
        }
        self.settle();
        (0..NAMES.len()).for_each(|it| self.look_for_place(it));
        if self.raft.leader.is_some() {
            self.raft.commit();
        }
        for host in &mut self.hosts {
            if host.restart_at < self.now {
                host.failed = 0;
            }
        }
        if let Some(late) = self.late.take_if(|_| self.random.chance(40)) {
            let _ = self.arrive(&late); // nobody waits for the answer any more
        }
    }

    /// Voters whose disks hold nothing that can be used.
    fn lost_voters(&self) -> usize {
        let holds = |entry: &&Entry| {
            let mine =
                |it: &Host| it.data.is_some_and(|it| it.member == Some(entry.id)) && !it.is_lost();
            self.hosts.iter().any(mine)
        };
        self.raft.voters().filter(|it| !holds(it)).count()
    }

    fn disturb(&mut self) {
        let index = self.below(NAMES.len());
        match self.random.below(18) {
            0 | 1 => self.ask_to_end(index),
            2 => (0..NAMES.len()).for_each(|it| self.end(it)), // a power cut for all of them
            3 => self.hosts[index].frozen = self.hosts[index].process.is_some(),
            4 | 5 => self.hosts[index].frozen = false,
            6 => self.hosts[index].cut = true,
            7 | 8 => self.hosts[index].cut = false,
            9 => self.lose_disk(index),
            10 => {
                let slow = self.raft.entries.iter().map(|it| it.id);
                let slow: Vec<u64> = slow.filter(|_| self.random.chance(30)).collect();
                self.raft.slow = slow;
            }
            11 => {
                self.settings = Settings(self.random.below(3) + 7);
                self.write_document();
            }
            12 => {
                self.size = [1, 3, 5, 7][self.below(4)];
                self.write_document();
            }
            13 if self.in_kubernetes => self.lose_node(index),
            14 if self.in_kubernetes && self.hosts[index].lost.take().is_some() => {
                self.hosts[index].refused = None;
            }
            15 if self.in_kubernetes => self.hosts[index].volume = Volume::Pending,
            16 if self.hosts[index].volume == Volume::Pending => self.place_volume(index),
            _ => self.now += self.random.below(2 * FAILED_SECONDS),
        }
        self.settle();
    }

    /// A minority of the voters may lose what it has.
    fn may_be_lost(&self, index: usize) -> bool {
        let voters = self.raft.voters().count();
        let has = self.hosts[index].data.and_then(|it| it.member);
        let votes = has
            .and_then(|it| self.raft.entry(it))
            .is_some_and(|it| !it.learner);
        !votes || self.lost_voters() < (voters - 1) / 2 && self.late.is_none()
    }

    /// With the node what lies on it is away.
    fn lose_node(&mut self, index: usize) {
        if self.hosts[index].data.is_some() && self.may_be_lost(index) {
            self.counts.nodes_lost += u32::from(self.hosts[index].lost.is_none());
            self.hosts[index].lost.get_or_insert(self.now);
        }
    }

    /// The claim gets its volume, and the Pod that waits for it its node.
    fn place_volume(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        if std::mem::take(&mut host.volume) == Volume::Pending {
            host.refused = None;
        }
    }

    /// The Pod is gone, or made anew with the next claim, which any node takes.
    fn begin_anew(&mut self, index: usize) {
        self.hosts[index].former = false;
        self.end(index);
        let host = &mut self.hosts[index];
        (host.data, host.marker) = (None, None);
        (host.lost, host.cut) = (None, false);
        host.failed = 0;
    }

    fn give_up_claim(&mut self, index: usize) {
        let member = self.hosts[index].data.and_then(|it| it.member);
        let listed = member.is_some_and(|it| self.raft.entry(it).is_some());
        assert!(!listed, "the claim of a member was given up");
        self.counts.claims_given_up += 1;
        if self.hosts[index].process.is_some() || self.hosts[index].refused.is_some() {
            self.hosts[index].former = true;
        } else {
            self.begin_anew(index);
        }
    }

    /// Emptied, damaged, or a disk that is not there.
    fn lose_disk(&mut self, index: usize) {
        if !self.may_be_lost(index) || self.hosts[index].lost.is_some() {
            return;
        }
        self.counts.disks_lost += 1;
        self.end(index);
        let kind = self.random.below(3);
        let host = &mut self.hosts[index];
        match (kind, &mut host.data) {
            (0, Some(data)) => data.damaged = true,
            (1, _) => (host.data, host.marker) = (None, None),
            _ => (host.data, host.marker, host.identity) = (None, None, None),
        }
    }

    /// The member list as etcd gives it, with what each member answers.
    fn members(&mut self) -> MemberSet {
        let mut members = MemberSet::of(CLUSTER);
        let mut answers = Vec::new();
        for entry in self.raft.entries.clone() {
            let role = if entry.learner {
                Role::Learner { caught_up: false }
            } else {
                Role::Voter
            };
            let mut it = world::member(entry.id, &entry.name, role, Health::Unknown);
            it.peer_url = entry.peer_url.as_str().try_into().unwrap();
            members.insert(it).unwrap();
            if entry.connected.is_some() && !self.ends(entry.id) && !self.chance(5) {
                self.silent.remove(&entry.id);
                answers.push(Answer {
                    member: MemberId(entry.id),
                    raft_index: entry.held,
                });
            } else {
                self.silent.entry(entry.id).or_insert(self.now);
            }
        }
        let silences = self.silent.iter().map(|(id, since)| Silence {
            member: MemberId(*id),
            seconds: self.now - since,
        });
        let silences: Vec<Silence> = silences.collect();
        self.listed = members.iter().count();
        let members = members.with(&answers);
        if self.in_kubernetes {
            let places = (0..NAMES.len()).map(|it| self.by_its_pod(it));
            let instances: Vec<Instance> = places.collect();
            let known = Membership::Known(members).after(&self.document[0], &instances);
            let Membership::Known(members) = known else {
                unreachable!("it was known");
            };
            return members;
        }
        members.after(&silences, FAILED_SECONDS)
    }

    fn membership(&mut self) -> Membership {
        if self.raft.leader.is_none() || self.chance(5) {
            return Membership::Unreachable;
        }
        Membership::Known(self.members())
    }

    fn instance(&self, index: usize) -> Instance {
        let host = &self.hosts[index];
        let mut it = Instance {
            member: world::name(NAMES[index]),
            alone: self.listed <= 1,
            facts: host.facts(self.now),
            restart_in: host.restart_at.saturating_sub(self.now),
            ..stopped()
        };
        if let Some(running) = host.process {
            it.process = Process::Running {
                pid: running.pid,
                settings: running.settings,
                version: VERSION,
                quota: QUOTA,
                seconds: self.now - running.since,
            };
            it.service = self.service(host, running);
            let answers = it.service.read == Reading::Answered;
            it.tries.answered = if answers { self.now - running.since } else { 0 };
        }
        it
    }

    /// What a controller sees of it: its Pod, what was written down, and no disk.
    fn by_its_pod(&self, index: usize) -> Instance {
        let host = &self.hosts[index];
        let mut it = self.instance(index);
        let served = host.identity.as_ref().is_some_and(|it| it.served.is_some());
        // A claim that somebody deleted is another one by its UID.
        let stays = host.data.is_some() || self.listed <= 1;
        it.facts.data = data(served && stays, served && stays, None);
        it.facts.marker = it.facts.identity.clone();
        it.restart_in = 0;
        if let Some((refusal, settings)) = &host.refused {
            it.refused = Some(refusal.clone());
            it.made_for = Some(MadeFor {
                settings: *settings,
                version: VERSION,
            });
            it.restart_in = 5;
        }
        let is_there = host.process.is_some() || host.refused.is_some();
        if host.process.is_some() && (host.cut || host.lost.is_some()) {
            (it.process, it.service) = (Process::Unknown, Service::UNKNOWN);
        }
        if let Some((since, _)) = host.ends {
            (it.process, it.terminating) = (Process::Unknown, self.now - since);
        }
        it.list_from = ListFrom::Peers;
        if is_there && host.made == Some(ListFrom::Operator) && it.joins() {
            // It was made for the member that was here before.
            it.list_from = ListFrom::Operator;
            if let Some(made) = &mut it.made_for {
                made.settings = Settings(0);
            }
        }
        it.unheard = host.lost.filter(|_| is_there).map(|it| self.now - it);
        if host.former {
            it.claim = Claim::Former;
            it.facts.data = data(false, false, None);
        } else if served && !stays {
            it.claim = Claim::New;
        }
        it
    }

    fn service(&self, host: &Host, running: Running) -> Service {
        let member = host.data.and_then(|it| it.member);
        let entry = member.and_then(|it| self.raft.entry(it));
        let Some(entry) = entry.filter(|_| host.reaches() && self.raft.leader.is_some()) else {
            return Service {
                read: Reading::TimedOut,
                ..Service::UNKNOWN
            };
        };
        if entry.learner {
            return Service {
                read: Reading::Joining(Answer {
                    member: MemberId(entry.id),
                    raft_index: entry.held,
                }),
                ..Service::UNKNOWN
            };
        }
        Service {
            write: if running.wrote {
                Writing::Acknowledged
            } else {
                Writing::NotTried
            },
            details: Some(Details {
                member: MemberId(entry.id),
                leader: self.raft.leader.map(MemberId),
                raft_index: entry.held,
                ..details()
            }),
            ..serving()
        }
    }

    fn again(&mut self, index: usize) -> Again {
        if self.in_kubernetes {
            // Each member that answers is asked for the list.
            let it = self.by_its_pod(index);
            return Again {
                process: it.process,
                id: it.service.answer().map(|it| it.member),
                membership: match self.raft.leader {
                    Some(_) => Membership::Known(self.members()),
                    None => Membership::Unreachable,
                },
                claim_deleted: false,
            };
        }
        let it = self.instance(index);
        let asked = matches!(it.process, Process::Running { .. });
        Again {
            process: it.process,
            id: it.service.answer().map(|it| it.member),
            membership: match self.raft.leader {
                Some(_) if asked && it.service.read == Reading::Answered => {
                    Membership::Known(self.members())
                }
                _ => Membership::Unreachable,
            },
            claim_deleted: false,
        }
    }

    /// etcd answers a change of its list.
    fn arrive(&mut self, change: &Change) -> Result<(), Refused> {
        let led = self.raft.leader.is_some();
        let answer = match change {
            Change::AddLearner { peer_url, .. } => self.raft.add_learner(peer_url).map(drop),
            Change::Promote { member } => self.raft.promote(member.0),
            Change::Remove { member } => self.raft.remove(member.0),
            Change::Update { member, peer_url } => self.raft.update(member.0, peer_url),
        };
        match answer {
            Ok(()) => self.counts.changes += 1,
            Err(why) => *self.counts.refused.entry(why).or_default() += 1,
        }
        self.settle();
        assert_eq!(
            led,
            self.raft.leader.is_some(),
            "{change:?} cost the quorum: {:?}",
            self.raft
        );
        answer
    }

    fn step(&mut self, index: usize, step: &Upkeep, observed: &Observed) -> Result<(), Lost> {
        let half = self.chance(10);
        match step {
            Upkeep::AdoptIdentity => self.hosts[index].identity = self.hosts[index].marker.clone(),
            Upkeep::LatchIdentity { joins, .. } => {
                assert!(*joins, "born twice");
                if half && self.in_kubernetes {
                    return Err(Lost("the only copy was not written"));
                }
                let host = &mut self.hosts[index];
                let known = host.identity.take().unwrap_or_else(|| identity_of(index));
                assert_eq!(known.served, None, "a member that served is made anew");
                let it = Identity {
                    joined: true,
                    ..known
                };
                host.marker = Some(it.clone());
                if half {
                    return Err(Lost("killed between the two copies of the identity"));
                }
                host.identity = Some(it);
            }
            Upkeep::SetDataAside => {
                let seen = observed.instance(NAMES[index]);
                if seen.is_some_and(|it| leaves_its_claim(&self.document[0], it)) {
                    self.give_up_claim(index);
                    self.forget(index);
                } else if self.in_kubernetes {
                    self.forget(index);
                } else {
                    self.set_aside(index, half)?;
                }
            }
            Upkeep::GiveUpClaim => self.give_up_claim(index),
            Upkeep::Start(start) => self.start(index, *start, observed),
            Upkeep::ProbeWrite => {
                let serves = self.instance(index).service.read == Reading::Answered;
                if let Some(it) = self.hosts[index].process.as_mut().filter(|_| serves) {
                    it.wrote = true;
                }
            }
            Upkeep::RecordServed => {
                let member = self.hosts[index].data.and_then(|it| it.member);
                let host = &mut self.hosts[index];
                if let Some(it) = &mut host.identity {
                    it.served = member.map(|it| (CLUSTER, MemberId(it)));
                }
                host.marker = host.identity.clone();
            }
            Upkeep::GiveUpLeadership { to } => {
                let heir = self.raft.connected().find(|it| it.id == to.0);
                match heir {
                    Some(heir)
                        if self.raft.leader.is_some() && !self.raft.slow.contains(&heir.id) =>
                    {
                        self.raft.leader = Some(to.0);
                        self.raft.commit();
                    }
                    _ => return Err(Lost("etcd did not hand the leadership over")),
                }
            }
            Upkeep::MintCertificates(_) | Upkeep::MintClients => {}
            other => panic!("nobody asked for this: {other:?}"),
        }
        Ok(())
    }

    fn set_aside(&mut self, index: usize, half: bool) -> Result<(), Lost> {
        let host = &mut self.hosts[index];
        if host.process.is_some() {
            return Err(Lost("an etcd holds the data"));
        }
        if let Some(it) = host.data.take() {
            let listed = it.member.is_some_and(|it| self.raft.entry(it).is_some());
            assert!(!listed, "the data of a member went aside");
            self.counts.set_aside += 1;
        }
        if half {
            return Err(Lost("killed before the identity was changed"));
        }
        self.forget(index);
        Ok(())
    }

    /// It is to join again.
    fn forget(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        let it = host.identity.take().or_else(|| host.marker.take());
        let again = it.map(|it| Identity {
            served: None,
            joined: true,
            ..it
        });
        (host.identity, host.marker) = (again.clone(), again);
    }

    /// In Kubernetes the guard of one that joins renames what lies on its claim.
    fn guard_sets_aside(&mut self, index: usize) {
        let Some(it) = self.hosts[index].data.take() else {
            return;
        };
        let entry = it.member.and_then(|it| self.raft.entry(it));
        let serves = entry.is_some_and(|it| !it.name.is_empty());
        assert!(!serves, "the data of a member went aside");
        self.counts.set_aside += 1;
    }

    /// The guard, then etcd itself.
    fn start(&mut self, index: usize, start: Start, observed: &Observed) {
        let host = &self.hosts[index];
        let facts = host.facts(self.now);
        if host.process.is_some() || host.identity.is_none() {
            return;
        }
        if self.in_kubernetes && start == Start::Join && host.lost.is_none() {
            if host.volume == Volume::Pending && host.data.is_none() {
                self.hosts[index].refused = Some((world::elsewhere(), self.settings));
                self.hosts[index].made = Some(ListFrom::Peers);
                self.counts.unplaced += 1;
            } else if host.refused.is_none() {
                self.run(index, self.settings);
                self.hosts[index].made = Some(ListFrom::Peers);
                self.hosts[index].process.as_mut().unwrap().waits = true;
            }
            return;
        }
        if host.refused.is_none() {
            self.hosts[index].made = Some(ListFrom::Operator);
        }
        let host = &self.hosts[index];
        let unplaced = host.lost.map(|_| world::elsewhere());
        if let Some(refusal) = unplaced.or_else(|| verdict(&facts).err()) {
            let refused = (refusal, self.settings);
            self.hosts[index].refused = self.in_kubernetes.then_some(refused);
            return;
        }
        match host.data {
            None if start == Start::Join => return self.join(index, observed),
            Some(Data {
                member: Some(_),
                damaged: false,
                ..
            }) => {
                return self.run(index, self.settings);
            }
            Some(Data { damaged: true, .. }) => {
                let damaged = |it: Data| Data { found: true, ..it };
                self.hosts[index].data = host.data.map(damaged);
            }
            // `initial-cluster-state: existing` with a list of one: etcd does not come up.
            _ => assert!(
                self.hosts[index].identity.as_ref().unwrap().joined,
                "born twice"
            ),
        }
        self.fail(index);
    }

    fn fail(&mut self, index: usize) {
        self.hosts[index].failed += 1;
        self.hosts[index].restart_at = self.now + 10;
    }

    /// The guard of one that joins asks the others for the list. It waits a while for all to be listed, and sets aside what
    /// another member left.
    fn look_for_place(&mut self, index: usize) {
        let host = &self.hosts[index];
        let goes_on = host.is_connected() && host.ends.is_none();
        let waits = host.process.is_some_and(|it| it.waits) && goes_on;
        let url = self.peer_url(index);
        let told = self.raft.connected().any(|it| it.peer_url != url);
        if !waits || !told || self.random.chance(30) {
            return;
        }
        let entries = &self.raft.entries;
        let had = host.data.and_then(|it| it.member);
        let place = entries
            .iter()
            .find(|it| it.peer_url == url && it.name.is_empty());
        let place = place.map(|it| it.id);
        let complete = self.document[index].members.iter().all(|it| {
            let mut entries = entries.iter();
            entries.any(|entry| entry.name == *it.name || entry.peer_url == *it.peer_url)
        });
        match place {
            None if entries.iter().any(|it| Some(it.id) == had) => {}
            None => return,
            Some(_) if !complete && !self.random.chance(10) => return,
            Some(id) => {
                if had != Some(id) {
                    self.guard_sets_aside(index);
                }
                return self.come_in(index, id);
            }
        }
        self.hosts[index].process.as_mut().unwrap().waits = false;
    }

    /// etcd comes up only with the list as it is, and only as a member that never started.
    fn join(&mut self, index: usize, observed: &Observed) {
        let Membership::Known(members) = &observed.membership else {
            panic!("joined without a list");
        };
        let mut told: Vec<&str> = members.iter().map(|it| it.peer_url.as_str()).collect();
        let mut listed: Vec<&str> = self
            .raft
            .entries
            .iter()
            .map(|it| it.peer_url.as_str())
            .collect();
        told.sort_unstable();
        listed.sort_unstable();
        let url = self.peer_url(index);
        let entry = self.raft.entries.iter().find(|it| it.peer_url == url);
        let entry = entry.filter(|it| it.name.is_empty() && told == listed);
        match entry.map(|it| it.id) {
            Some(id) => self.come_in(index, id),
            None => self.fail(index),
        }
    }

    /// A first start, which may be cut short.
    fn come_in(&mut self, index: usize, id: u64) {
        self.counts.joined += 1;
        let cut_short = self.chance(10);
        let member = (!cut_short || self.random.chance(50)).then_some(id);
        self.hosts[index].data = Some(Data {
            member,
            damaged: false,
            found: false,
        });
        // The container starts again.
        if let Some(it) = &mut self.hosts[index].process {
            it.waits = cut_short;
        } else if !cut_short {
            self.run(index, self.settings);
        }
        self.settle();
    }

    /// An agent has to be the only one whose member is away, or gives its leadership up.
    fn lock(&mut self, own: Option<usize>) -> Result<(), Lost> {
        let Some(own) = own else {
            return Ok(());
        };
        let held = self
            .lock
            .filter(|(holder, until)| *holder != own && *until >= self.now);
        if held.is_some() {
            return Err(Lost("another host interrupts its member"));
        }
        self.lock = Some((own, self.now + LEASE));
        Ok(())
    }

    fn interrupt(&mut self, own: Option<usize>, permit: Permit<Interruption>) -> Result<(), Lost> {
        let index = index_of(&permit.step().member);
        let again = self.again(index);
        let grounds = permit.grounds();
        let seen = again.membership.clone();
        let step = permit
            .exchange(&again)
            .map_err(|_| Lost("not taken after a second look"))?;
        if grounds == Grounds::HasLeft {
            let member = self.hosts[index].data.and_then(|it| it.member);
            let listed = member.is_some_and(|it| self.raft.entry(it).is_some());
            assert!(!listed, "a member was ended as one that has left");
            self.ask_to_end(index);
            return Ok(());
        }
        assert_eq!(step.pid, self.hosts[index].process.map(|it| it.pid));
        self.lock(own)?;
        assert_eq!(step.act, Act::Restart, "nobody asked for another act");
        self.is_alone_away(index, &seen);
        // Who ends already may be one too many.
        let led = self.raft.voters().count() > 1 && self.stays_led();
        self.counts.interruptions += 1;
        self.ask_to_end(index);
        self.settle();
        if led {
            assert!(
                self.stays_led(),
                "a restart cost the quorum: {:?}",
                self.raft
            );
        }
        Ok(())
    }

    /// Of those that the second look saw, one at a time is away.
    fn is_alone_away(&self, index: usize, seen: &Membership) {
        let id = self.hosts[index].data.and_then(|it| it.member);
        let Membership::Known(members) = seen else {
            return;
        };
        let own = members.voters().find(|it| Some(it.id.0) == id);
        if own.is_some_and(|it| it.health == Health::Serving) {
            let away = |it: &&Entry| it.connected.is_none();
            let away = self.raft.voters().find(away);
            assert!(away.is_none(), "one more at a time: {away:?}");
        }
    }

    fn change(&mut self, spec: &ClusterSpec, permit: Permit<Change>) -> Result<(), Lost> {
        if self.raft.leader.is_none() {
            return Err(Lost("nobody tells the list"));
        }
        let members = self.members();
        let Ok(change) = permit.exchange(&members) else {
            return Err(Lost("not made after a second look"));
        };
        if let Change::Remove { member } = change
            && let Some(it) = members.by_id(member)
        {
            let wanted = spec.member(&it.name).is_some();
            let serves = it.role == Role::Voter && it.health == Health::Serving;
            assert!(
                !wanted || !serves,
                "a voter that serves was removed: {it:?}"
            );
        }
        // A call that is overtaken by its deadline is not sent; one that waits in a buffer is.
        if self.chance(5) && !matches!(change, Change::Promote { .. }) {
            self.late = Some(change);
            return Err(Lost("sent, and nobody answered"));
        }
        let answer = self.arrive(&change);
        if self.chance(5) {
            let _ = self.arrive(&change); // by a layer that repeats
        }
        if self.chance(5) {
            return Err(Lost("made, and the answer was lost"));
        }
        answer.map_err(|_| Lost("etcd refused it"))
    }
}

fn index_of(name: &str) -> usize {
    NAMES.iter().position(|it| *it == name).unwrap()
}

/// A controller, or the agent of one host.
struct Operator<'a> {
    world: &'a mut World,
    own: Option<usize>,
}

impl Operator<'_> {
    /// The holder of the election changes the list; whoever finds it free takes it.
    fn authority(&mut self) -> Authority {
        let Some(own) = self.own else {
            return Authority::Cluster;
        };
        let now = self.world.now;
        let free = self
            .world
            .election
            .is_none_or(|(holder, until)| holder == own || until < now);
        let host = &self.world.hosts[own];
        let member = host.data.and_then(|it| it.member);
        let listed = member.is_some_and(|it| self.world.raft.entry(it).is_some());
        let reached = host.reaches() && listed && self.world.raft.leader.is_some();
        if free && reached {
            self.world.election = Some((own, now + LEASE));
            return Authority::Cluster;
        }
        Authority::Host
    }
}

impl Runtime for Operator<'_> {
    type Error = Lost;

    async fn observe(&mut self, _: &ClusterSpec) -> Box<Observed> {
        let authority = self.authority();
        let world = &mut *self.world;
        let membership = match self.own {
            Some(own) if world.hosts[own].cut => Membership::Unreachable,
            _ => world.membership(),
        };
        let mut seen = observed(stopped(), membership);
        (seen.authority, seen.instances) = (authority, heapless::Vec::new());
        seen.failed
            .clone_from(&world.failed[self.own.unwrap_or(NAMES.len())]);
        if world.chance(5) {
            // Nothing about members follows from a wall clock.
            seen.clock = Clock::Unsynchronised;
            seen.now.0 +=
                i64::try_from(world.random.below(20 * 365)).unwrap() * DAY - 10 * 365 * DAY;
        }
        for index in 0..NAMES.len() {
            if self.own.is_some_and(|it| it != index) {
                continue;
            }
            let mut it = world.instance(index);
            if self.own.is_none() {
                it = world.by_its_pod(index);
                // A watch lags behind.
                let before = world.before[index].replace(it.clone());
                it = before.filter(|_| world.chance(5)).unwrap_or(it);
            }
            seen.instances.push(it).unwrap();
        }
        let it = &seen.instances[0];
        let current =
            matches!(it.process, Process::Running { settings, .. } if settings == world.settings);
        if current && it.service.read == Reading::Answered {
            world.lock = world.lock.filter(|(holder, _)| self.own != Some(*holder));
        }
        Box::new(seen)
    }

    async fn publish(&mut self, _: &ClusterSpec, _: &Observed, it: &Status) -> Result<(), Lost> {
        let named = it
            .members
            .iter()
            .take_while(|it| !it.member.name.is_empty());
        assert!(named.is_sorted_by_key(|it| &it.member.name), "{it:?}");
        if self.world.chance(3) {
            return Err(Lost("nobody could be told"));
        }
        Ok(())
    }

    async fn look_again(&mut self, _: &ClusterSpec, member: &MemberName) -> Again {
        self.world.again(index_of(member))
    }

    async fn execute(
        &mut self,
        spec: &ClusterSpec,
        seen: &Observed,
        plan: Plan,
    ) -> Result<(), Lost> {
        let world = &mut *self.world;
        for Task { member, step } in &plan.upkeep {
            if world.chance(3) {
                return Err(Lost("the operator was killed here"));
            }
            if world.chance(3) {
                world.disturb();
            }
            if world.chance(3) {
                return Err(Lost("refused: what it changes was changed by another"));
            }
            if matches!(step, Upkeep::GiveUpLeadership { .. }) {
                world.lock(self.own)?;
            }
            world.step(index_of(member), step, seen)?;
        }
        if world.chance(10) {
            world.disturb();
        }
        if let Some(permit) = plan.interruption {
            if world.chance(3) {
                return Err(Lost("refused: what it changes was changed by another"));
            }
            let edited = Grounds::DeclaredOutage(Declared::DocumentEdited);
            let voter = world.hosts[index_of(&permit.step().member)].data;
            let voter = voter.and_then(|it| world.raft.entry(it.member?));
            let voter = voter.is_some_and(|it| !it.learner);
            if self.own.is_none() && voter && permit.grounds() == edited {
                assert_no_outage_for_an_edit(spec, seen, &plan.holds);
            }
            world.interrupt(self.own, permit)?;
        }
        match plan.change {
            Ok(Some(permit)) => world.change(spec, permit),
            _ => Ok(()),
        }
    }
}

/// An edit restarts the only voter, while it serves, not as long as somebody joins: soon another one has a vote.
fn assert_no_outage_for_an_edit(spec: &ClusterSpec, seen: &Observed, holds: &[(MemberName, Hold)]) {
    let Membership::Known(members) = &seen.membership else {
        return;
    };
    let comes = |it: &Instance| {
        let entry = spec.member(&it.member).and_then(|it| it.listed_in(members));
        let held = holds.iter().any(|(member, _)| *member == it.member);
        entry.is_some_and(|it| it.role != Role::Voter) && !held
    };
    assert!(
        members.voter_count() > 1
            || members.serving_voters() == 0
            || !seen.instances.iter().any(comes),
        "an edit is an outage while others join: {members:?}"
    );
}

/// One pass of the controller, or of each agent in turn.
fn pass(world: &mut World, agents: bool) {
    let owners: Vec<Option<usize>> = if agents {
        (0..NAMES.len()).map(Some).collect()
    } else {
        vec![None]
    };
    world.next_look = Duration::MAX;
    for own in owners {
        let document = Rc::clone(&world.document);
        let spec = &document[own.unwrap_or(0)];
        if own.is_some() && world.chance(20) {
            continue; // this one sleeps
        }
        let passed = now_or_panic(reconcile(&mut Operator { world, own }, spec));
        let wait = passed.as_ref().map_or(FAILED, |it| *it);
        world.next_look = world.next_look.min(wait);
        let failed = passed.err().map(|it| detail(format_args!("{it}")));
        world.failed[own.unwrap_or(NAMES.len())] = failed;
        if own.is_some() && world.chance(20) {
            world.tick();
        }
    }
}

fn is_as_asked(world: &World) -> bool {
    let names = world.raft.voters().map(|it| it.name.as_str());
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    let runs = |it: &Host| {
        it.process
            .is_some_and(|it| it.settings == world.settings && it.wrote)
            && it.identity.as_ref().is_some_and(|it| it.served.is_some())
    };
    world.raft.leader.is_some()
        && world.raft.entries.len() == world.size
        && world
            .raft
            .entries
            .iter()
            .all(|it| it.peer_url.ends_with(&world.port.to_string()))
        && names == NAMES[..world.size]
        && world.hosts[..world.size].iter().all(runs)
}

fn live_through(seed: u64, agents: bool) -> Counts {
    let mut world = World::new(seed, !agents);
    for _ in 0..PASSES {
        pass(&mut world, agents);
        if world.random.chance(40) {
            world.disturb();
        }
        if world.random.chance(20) {
            world.move_member();
        }
        world.tick();
        world.counts.quorum_lost += u32::from(world.raft.leader.is_none());
    }
    world.faults = false;
    world.raft.slow.clear();
    for host in &mut world.hosts {
        (host.frozen, host.cut) = (false, false);
    }
    (0..NAMES.len()).for_each(|it| world.place_volume(it));
    world.settle();
    let begin = world.now;
    while world.now < begin + HEALED_WITHIN {
        pass(&mut world, agents);
        world.tick();
        if is_as_asked(&world) {
            world.counts.healed_after = world.now - begin;
            return world.counts;
        }
    }
    panic!("not healed: {}", world.tell());
}

fn live(agents: bool, lives: u64) {
    let lived = each_seed(lives, |seed| live_through(seed, agents));
    let lives = lived.len();
    let mut all = Counts::default();
    for counts in lived {
        all.changes += counts.changes;
        all.interruptions += counts.interruptions;
        all.joined += counts.joined;
        all.set_aside += counts.set_aside;
        all.disks_lost += counts.disks_lost;
        all.nodes_lost += counts.nodes_lost;
        all.claims_given_up += counts.claims_given_up;
        all.unplaced += counts.unplaced;
        all.quorum_lost += counts.quorum_lost;
        all.healed_after = all.healed_after.max(counts.healed_after);
        for (why, count) in counts.refused {
            *all.refused.entry(why).or_default() += count;
        }
    }
    println!(
        "{lives} clusters lived {PASSES} passes each: {} changes of the list, {} restarts, {} joined, {} disks lost, {} \
         nodes lost, {} claims given up, {} Pods without a volume, {} data set aside, {} passes without a majority, healed after {} s at the latest; etcd refused {:?}",
        all.changes,
        all.interruptions,
        all.joined,
        all.disks_lost,
        all.nodes_lost,
        all.claims_given_up,
        all.unplaced,
        all.set_aside,
        all.quorum_lost,
        all.healed_after,
        all.refused
    );
    let enough = u32::try_from(lives).unwrap();
    if enough < 100 {
        return; // a few lives show little
    }
    assert!(all.changes > enough && all.interruptions > enough / 2 && all.set_aside > enough / 20);
    assert!(agents || all.claims_given_up > enough / 20 && all.unplaced > enough / 20);
}

#[test]
fn a_controller_keeps_a_cluster_through_everything() {
    live(false, 4000);
}

#[test]
fn agents_keep_a_cluster_through_everything() {
    live(true, 1000);
}
