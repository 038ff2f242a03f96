//! A home for several members on this machine: each has a root directory, ports and an agent of its own. One
//! process observes all of them, plans with `plan()`, and carries the plan out with the product's agents, guard
//! and changes of the member list. Nothing but this home itself is made for tests.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use etcd_operator::agent::driver::{Driver as _, HostDriver, ProcessDriver};
use etcd_operator::agent::{Agent, AgentError};
use etcd_operator::cluster::{
    Answer, FAILED_SECONDS, Health, Member, MemberId, MemberName, MemberSet, Role, Silence,
};
use etcd_operator::etcd::client;
use etcd_operator::member::change;
use etcd_operator::member::contact::Endpoint;
use etcd_operator::observed::{Again, Instance, Membership, Observed, Process, Reading};
use etcd_operator::paths::Paths;
use etcd_operator::plan::{Act, Hold, Plan, Task, Upkeep, plan, turn};
use etcd_operator::runtime::{Runtime, reconcile};
use etcd_operator::spec::{ClusterSpec, MemberSpec, Settings, member_name};
use etcd_operator::status::Status;
use etcd_operator::tls::ClientFiles;

use crate::lab::{Lab, kill, program};

/// A member's host.
pub struct Home {
    pub lab: Lab,
    agent: Agent,
    /// The document, as this member's host has it: with its own ports.
    spec: ClusterSpec,
}

impl Home {
    fn paths(&self) -> Paths {
        Paths::under(&self.lab.root)
    }

    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.lab.ports[0])
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint {
            url: self.url(),
            files: self.lab.certificates().operator_files(),
            metrics: ([127, 0, 0, 1], self.lab.ports[2]).into(),
            joins: self.agent.endpoint(&self.spec).joins,
        }
    }
}

/// A cluster of several members, and the one operator that keeps it.
pub struct Fleet {
    pub homes: Vec<Home>,
    pub size: usize,
    /// How many members the list had when it was last seen.
    listed: usize,
    silent: BTreeMap<MemberId, Instant>,
    /// What counts as silent for the whole grace: tests do not wait ten minutes.
    pub grace: Duration,
    /// The list is left as it is, and nobody is interrupted.
    pub upkeep_only: bool,
    /// What the last pass saw.
    seen: Option<Box<Observed>>,
    /// Changes of the member list and interruptions, in order.
    pub acts: Vec<String>,
}

impl Fleet {
    /// Places for so many members, all empty; one cluster, whose CAs all of them have.
    pub fn new(line: &str, places: usize) -> Fleet {
        let labs: Vec<Lab> = (0..places).map(|_| Lab::new(line)).collect();
        let members: heapless::Vec<MemberSpec, 7> = (0..).zip(&labs).map(place).collect();
        let homes = (0..).zip(labs).map(|(own, lab)| {
            let spec = etcd_operator::document::parse(lab.document().as_bytes());
            let spec = spec.unwrap_or_else(|_| panic!("{}", lab.document()));
            // An etcd that joins waits 5 s and two elections for its own name.
            let mut options = spec.options.clone();
            (options.heartbeat, options.election) = (Some(100), Some(1000));
            let paths = Paths::under(&lab.root);
            Home {
                agent: Agent::new(&paths, driver(&paths), None),
                spec: ClusterSpec {
                    members: members.clone(),
                    own,
                    options,
                    // One document; only the ports differ, because all share one machine.
                    settings: Settings(1),
                    ..spec
                },
                lab,
            }
        });
        let homes: Vec<Home> = homes.collect();
        let first = homes[0].lab.certificates();
        let newest = etcd_operator::clock::now();
        first.ensure_authorities("lab", newest).unwrap();
        for home in &homes[1..] {
            for ca in ["peer-ca", "client-ca"] {
                copy(
                    &homes[0].lab.lib("tls").join(ca),
                    &home.lab.lib("tls").join(ca),
                );
            }
        }
        Fleet {
            homes,
            size: 1,
            listed: 0,
            silent: BTreeMap::new(),
            grace: Duration::from_secs(600),
            upkeep_only: false,
            seen: None,
            acts: Vec::new(),
        }
    }

    /// One member that serves, places for more, and a writer.
    pub async fn with_writer(line: &str, places: usize) -> (Fleet, Writer) {
        let mut fleet = Fleet::new(line, places);
        fleet.until_whole().await;
        let writer = Writer::start(fleet.urls(), fleet.files());
        (fleet, writer)
    }

    /// The document of the cluster, with so many members.
    fn spec(&self, own: usize) -> ClusterSpec {
        let spec = &self.homes[own].spec;
        ClusterSpec {
            size: u8::try_from(self.size).unwrap(),
            members: spec.members.iter().take(self.size).cloned().collect(),
            former: spec.members.iter().skip(self.size).cloned().collect(),
            own,
            ..spec.clone()
        }
    }

    /// The spec by which a host prepares its member, which may be one that leaves.
    fn spec_of_host(&self, own: usize) -> ClusterSpec {
        let all = &self.homes[own].spec;
        ClusterSpec {
            size: u8::try_from(self.size.max(1)).unwrap(),
            ..all.clone()
        }
    }

    /// Passes until the cluster is as wanted.
    pub async fn until(&mut self, what: &str, mut wanted: impl FnMut(&Observed, &Plan) -> bool) {
        let begin = Instant::now();
        loop {
            let spec = self.spec(0);
            let wait = reconcile(self, &spec).await;
            let observed = self.seen.take().unwrap();
            let next = plan(&spec, &observed);
            if wanted(&observed, &next) {
                return;
            }
            assert!(
                begin.elapsed() < Duration::from_secs(60),
                "waited in vain for {what}: {wait:?} {next:?} {:?} {:?}",
                observed.membership,
                self.acts
            );
            tokio::time::sleep(
                wait.unwrap_or(Duration::from_millis(100))
                    .min(Duration::from_millis(50)),
            )
            .await;
        }
    }

    /// Passes until the list has so many members, all of them voters that follow a leader.
    pub async fn until_voters(&mut self) {
        let size = self.size;
        self.until(&format!("{size} voters"), |observed, _| {
            is_whole(observed, size)
        })
        .await;
    }

    /// Passes until all of them serve clients, and nothing is left to do.
    pub async fn until_whole(&mut self) {
        let (size, spec) = (self.size, self.spec(0));
        self.until(&format!("{size} that serve"), |observed, plan| {
            let serve = |it: &Instance| it.service.read == Reading::Answered;
            is_whole(observed, size)
                && observed.instances.iter().take(size).all(serve)
                && plan.change == Ok(None)
                && plan.interruption.is_none()
                && plan.upkeep.is_empty()
                && turn::words(&spec, observed).is_none()
        })
        .await;
    }

    /// The member list, with every member's own answer.
    pub async fn members(&mut self) -> MemberSet {
        let spec = self.spec(0);
        match self.observe(&spec).await.membership {
            Membership::Known(members) => members,
            other => panic!("no list: {other:?}"),
        }
    }

    /// The ids of the members that etcd's list has under their names.
    pub async fn ids(&mut self) -> Vec<MemberId> {
        let members = self.members().await;
        let id = |it: &MemberSpec| members.named(&it.name).map(|it| it.id);
        self.homes[0].spec.members.iter().filter_map(id).collect()
    }

    pub async fn id_of(&mut self, index: usize) -> MemberId {
        let name = self.homes[index].spec.members[index].name.clone();
        self.members().await.named(&name).unwrap().id
    }

    /// Where its peers reach a member.
    pub fn peer_url(&self, index: usize) -> String {
        self.homes[index].spec.members[index].peer_url.to_string()
    }

    /// The document is edited: every member has to be restarted with other settings.
    pub fn edit(&mut self, snapshot_count: u32) {
        for home in &mut self.homes {
            home.spec.options.snapshot_count = Some(snapshot_count);
            home.spec.settings = Settings(snapshot_count.into());
        }
    }

    /// Who leads: an index.
    pub async fn leader(&mut self) -> usize {
        let spec = self.spec(0);
        let observed = self.observe(&spec).await;
        let leads = |it: &Instance| it.service.details.is_some_and(|it| it.leads());
        observed.instances.iter().position(leads).unwrap()
    }

    pub fn urls(&self) -> Vec<String> {
        self.homes.iter().map(Home::url).collect()
    }

    pub fn files(&self) -> ClientFiles {
        self.homes[0].lab.certificates().operator_files()
    }
}

fn driver(paths: &Paths) -> HostDriver {
    let driver = ProcessDriver::new(paths);
    HostDriver::Process(driver.with_guard(&program()))
}

fn place((index, lab): (u8, &Lab)) -> MemberSpec {
    let url = format!("https://127.0.0.1:{}", lab.ports[1]);
    MemberSpec {
        name: member_name("lab", index),
        peer_url: url.as_str().try_into().unwrap(),
    }
}

fn is_whole(observed: &Observed, size: usize) -> bool {
    let Membership::Known(members) = &observed.membership else {
        return false;
    };
    let whole = |it: &Member| it.role == Role::Voter && it.health == Health::Serving;
    members.iter().count() == size && members.iter().all(whole)
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    let copied = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(copied.unwrap().success());
}

impl Runtime for Fleet {
    type Error = AgentError;

    async fn observe(&mut self, _: &ClusterSpec) -> Box<Observed> {
        let specs: Vec<ClusterSpec> = (0..self.homes.len())
            .map(|own| self.spec_of_host(own))
            .collect();
        let agents = self.homes.iter_mut().map(|it| &mut it.agent);
        let looks = agents.zip(&specs).map(|(agent, spec)| agent.observe(spec));
        let mut all: Vec<Box<Observed>> = futures_util::future::join_all(looks).await;
        let answers: Vec<Answer> = all
            .iter()
            .filter_map(|it| it.instances[0].service.answer())
            .collect();
        let told = all.iter().map(|it| it.membership.clone());
        let mut membership = Membership::best(told).with(&answers);
        if let Membership::Known(members) = membership {
            let now = Instant::now();
            let quiet = members.iter().filter(|it| it.health != Health::Serving);
            let quiet: Vec<MemberId> = quiet.map(|it| it.id).collect();
            self.silent.retain(|id, _| quiet.contains(id));
            let silences: Vec<Silence> = quiet
                .iter()
                .map(|id| {
                    let since = *self.silent.entry(*id).or_insert(now);
                    let part = (now - since).as_secs_f64() / self.grace.as_secs_f64();
                    let seconds = FAILED_SECONDS;
                    Silence {
                        member: *id,
                        seconds: if part >= 1.0 { seconds } else { 0 },
                    }
                })
                .collect();
            self.listed = members.iter().count();
            membership = Membership::Known(members.after(&silences, FAILED_SECONDS));
        }
        let alone = self.listed <= 1;
        let mut first = all.remove(0);
        first.membership = membership;
        for mut other in all {
            let _ = first.instances.push(other.instances.remove(0));
        }
        for it in &mut first.instances {
            it.alone = alone;
        }
        self.seen = Some(first.clone());
        first
    }

    async fn publish(
        &mut self,
        _: &ClusterSpec,
        _: &Observed,
        _: &Status,
    ) -> Result<(), AgentError> {
        Ok(())
    }

    async fn look_again(&mut self, _: &ClusterSpec, member: &MemberName) -> Again {
        let mut answers = Vec::new();
        let mut asked = None;
        for own in 0..self.homes.len() {
            let spec = self.spec_of_host(own);
            let name = spec.own().unwrap().name.clone();
            let again = self.homes[own].agent.look_again(&spec, &name).await;
            let raft_index = 0;
            answers.extend(again.id.map(|member| Answer { member, raft_index }));
            if name == *member {
                asked = Some(again);
            }
        }
        let asked = asked.unwrap();
        Again {
            membership: asked.membership.with(&answers),
            ..asked
        }
    }

    async fn execute(
        &mut self,
        spec: &ClusterSpec,
        observed: &Observed,
        plan: Plan,
    ) -> Result<(), AgentError> {
        for own in 0..self.homes.len() {
            let host = self.spec_of_host(own);
            let name = &host.own().unwrap().name;
            let tasks = plan.upkeep.iter().filter(|it| it.member == *name);
            let leaves = |it: &&Task| matches!(it.step, Upkeep::GiveUpLeadership { .. });
            for it in tasks.clone().filter(leaves) {
                self.acts
                    .push(format!("{name}: {}", it.step.describe(None)));
            }
            let part = Plan {
                upkeep: tasks.cloned().collect(),
                interruption: None,
                change: Ok(None),
                holds: heapless::Vec::new(),
                requeue_after: plan.requeue_after,
            };
            self.homes[own].agent.execute(&host, observed, part).await?;
        }
        if self.upkeep_only {
            return Ok(());
        }
        if let Some(permit) = plan.interruption {
            let member = permit.step().member.to_string();
            self.acts.push(format!("{member}: {}", permit.describe()));
            let again = self.look_again(spec, &permit.step().member).await;
            let step = permit.exchange(&again).map_err(AgentError::NoPermit)?;
            assert!(matches!(step.act, Act::Stop | Act::Restart));
            let home = self
                .homes
                .iter()
                .find(|it| it.spec.own().unwrap().name == step.member);
            // The next pass starts it with the document's settings.
            driver(&home.unwrap().paths()).stop(None).await?;
        }
        if let Ok(Some(permit)) = plan.change {
            self.acts
                .push(permit.step().describe_of(observed).to_string());
            let endpoints: Vec<Endpoint> = self.homes.iter().map(Home::endpoint).collect();
            let made = change::make(endpoints.into_iter(), permit).await;
            if let Err(error) = made {
                self.acts.push(format!("not made: {error}"));
            }
        }
        Ok(())
    }
}

/// Writes one key after the other to whichever member answers, until it is told to stop.
pub struct Writer {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    /// The longest time without an acknowledged write, in milliseconds.
    longest: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Writer {
    pub fn start(urls: Vec<String>, files: ClientFiles) -> Writer {
        let (stop, acknowledged) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let longest = Arc::<AtomicU64>::default();
        let (told, count, gap) = (stop.clone(), acknowledged.clone(), longest.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.unwrap().block_on(async {
                let mut last = Instant::now();
                while !told.load(Ordering::Relaxed) {
                    for url in &urls {
                        write(url, &files, &told, &count, &gap, &mut last).await;
                    }
                }
            });
        });
        Writer {
            stop,
            acknowledged,
            longest,
            thread: Some(thread),
        }
    }

    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Ends, and returns how many writes were acknowledged and the longest gap between two.
    pub fn end(mut self) -> (u64, Duration) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        let gap = Duration::from_millis(self.longest.load(Ordering::Relaxed));
        (self.acknowledged(), gap)
    }
}

/// Until a write fails.
async fn write(
    url: &str,
    files: &ClientFiles,
    stop: &AtomicBool,
    count: &AtomicU64,
    gap: &AtomicU64,
    last: &mut Instant,
) {
    let patience = Duration::from_secs(2);
    let connected = tokio::time::timeout(patience, client::connect(url, files)).await;
    let Ok(Ok(mut client)) = connected else {
        tokio::time::sleep(Duration::from_millis(20)).await;
        return;
    };
    while !stop.load(Ordering::Relaxed) {
        let next = count.load(Ordering::Relaxed);
        let put = client.put(format!("w/{next:08}"), "written", None);
        if !matches!(tokio::time::timeout(patience, put).await, Ok(Ok(_))) {
            return;
        }
        count.store(next + 1, Ordering::Relaxed);
        let quiet = u64::try_from(last.elapsed().as_millis()).unwrap();
        gap.fetch_max(quiet, Ordering::Relaxed);
        *last = Instant::now();
        // The others on this machine have their turn, too.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Watches the writer's keys, and goes on where it was when its etcd has gone.
pub struct Watcher {
    stop: Arc<AtomicBool>,
    /// How many keys it has seen, each in its turn.
    seen: Arc<AtomicU64>,
    thread: std::thread::JoinHandle<()>,
}

impl Watcher {
    pub fn start(url: String, files: ClientFiles) -> Watcher {
        let (stop, seen) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (told, count) = (stop.clone(), seen.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.unwrap().block_on(async {
                let mut from = 1;
                while !told.load(Ordering::Relaxed) {
                    watch(&url, &files, &told, &count, &mut from).await;
                }
            });
        });
        Watcher { stop, seen, thread }
    }

    /// How many keys it has seen once it has seen so many, or has had its time.
    pub fn end(self, all: u64) -> u64 {
        let begun = Instant::now();
        let seen = || self.seen.load(Ordering::Relaxed);
        while seen() < all && begun.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(20));
        }
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        self.seen.load(Ordering::Relaxed)
    }
}

/// Until the stream ends. A key that the writer wrote again, for it got no answer, is no news.
async fn watch(
    url: &str,
    files: &ClientFiles,
    stop: &AtomicBool,
    seen: &AtomicU64,
    from: &mut i64,
) {
    let patience = Duration::from_secs(2);
    let connected = tokio::time::timeout(patience, client::connect(url, files)).await;
    let Ok(Ok(mut client)) = connected else {
        tokio::time::sleep(Duration::from_millis(20)).await;
        return;
    };
    let options = etcd_client::WatchOptions::new()
        .with_prefix()
        .with_start_revision(*from);
    let opened = tokio::time::timeout(patience, client.watch("w/", Some(options))).await;
    let Ok(Ok(mut stream)) = opened else {
        return;
    };
    let mut quiet = Instant::now();
    while !stop.load(Ordering::Relaxed) && quiet.elapsed() < 2 * patience {
        let pause = Duration::from_millis(100);
        let Ok(next) = tokio::time::timeout(pause, stream.message()).await else {
            continue;
        };
        let Ok(Some(response)) = next else {
            return;
        };
        assert!(!response.canceled(), "{}", response.cancel_reason());
        quiet = Instant::now();
        for event in response.events() {
            let pair = event.kv().unwrap();
            let number: u64 = pair.key_str().unwrap()[2..].parse().unwrap();
            assert!(pair.mod_revision() >= *from, "an event twice");
            let before = seen.fetch_max(number + 1, Ordering::Relaxed);
            assert!(number <= before, "{number} came before {before}");
            *from = pair.mod_revision() + 1;
        }
    }
}

/// How many of the writer's keys are there.
pub async fn written(url: &str, files: &ClientFiles) -> u64 {
    let mut client = client::connect(url, files).await.unwrap();
    let options = etcd_client::GetOptions::new()
        .with_prefix()
        .with_count_only();
    let found = client.get("w/", Some(options)).await.unwrap();
    u64::try_from(found.count()).unwrap()
}

/// Ends a member's etcd as a power cut would.
pub fn kill_member(home: &Home) {
    kill("KILL", home.lab.etcd_pid().unwrap());
}

/// Whether a plan holds the member list for somebody that the operator does not know.
pub fn is_of_a_stranger(plan: &Plan) -> bool {
    matches!(plan.change, Err(Hold::UnexpectedMember { .. }))
}

/// Whether a member's etcd runs.
pub fn runs(observed: &Observed, index: usize) -> bool {
    matches!(observed.instances[index].process, Process::Running { .. })
}
