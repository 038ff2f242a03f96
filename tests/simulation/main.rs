//! The real `reconcile()` over a simulated host and a simulated cluster: lost, late and repeated
//! calls, a crash between any two actions, power cuts, wrong clocks, partitions, edits.
//!
//! A failing seed prints itself; `SEED=n cargo test --test simulation` runs that one alone, and
//! `SEEDS=n` sets how many are run. A bug found here becomes a scenario in tests/scenarios.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test"
)]
#![allow(
    clippy::too_many_lines,
    clippy::similar_names,
    reason = "dimensions are loops, and loops nest"
)]

mod several;
#[path = "../world/mod.rs"]
mod world;

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use etcd_operator::cluster::{Health, MemberName, MemberSet, Role, Timestamp};
use etcd_operator::observed::{
    Again, Alarms, Clock, Instance, LastServed, Membership, Observed, Pairs, Process, Proposals,
    Reading, Service, Writing,
};
use etcd_operator::plan::permit::{Grounds, Lapsed, Permit};
use etcd_operator::plan::{Act, Interruption, Plan, Upkeep};
use etcd_operator::runtime::{Failures, Runtime, reconcile};
use etcd_operator::spec::{ClusterSpec, Settings};
use etcd_operator::start::{
    AddressConflict, DataDir, Facts, Identity, START_BUDGET, StartHistory, Writable, verdict,
};
use etcd_operator::status::{Kind, Status, Verdict};
use world::random::Random;
use world::{
    CLUSTER, DAY, MEMBER, NOW, QUOTA, VERSION, certificates, data, details, facts, identity,
    member, observed, serving, single, spec, stopped,
};

/// Futures of the simulation are always ready.
fn now_or_panic<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the simulation never waits"),
    }
}

/// Lives through each seed, on all cores; what they tell is in no order.
fn each_seed<T: Send>(default: u64, live: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let number = |name: &str| std::env::var(name).ok().and_then(|it| it.parse().ok());
    let range = match number("SEED") {
        Some(seed) => seed..=seed,
        None => 1..=number("SEEDS").unwrap_or(default),
    };
    let next = AtomicU64::new(*range.start());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let lives = || {
        let mut told = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if !range.contains(&seed) {
                return told;
            }
            let lived = catch_unwind(AssertUnwindSafe(|| live(seed)));
            told.push(lived.unwrap_or_else(|_| panic!("SEED={seed}")));
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(lives)).collect();
        let told = threads.into_iter().flat_map(|it| it.join().unwrap());
        told.collect()
    })
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Lost(&'static str);

// ------------------------------------------------------------------------------------------------
// One host.

/// What is true, whatever anybody sees of it.
struct Host {
    random: Random,
    spec: ClusterSpec,
    now: i64,
    clock: Clock,
    /// On disk.
    instance: Instance,
    /// Acknowledged writes, and how many of them the data holds.
    acknowledged: u64,
    held: u64,
    /// The data was damaged by the world: it must never be touched again.
    damaged: bool,
    data_touched: bool,
    /// Set while faults are on.
    faults: bool,
    starts: u32,
    stops_without_reason: u32,
    last_status: Option<(Verdict, bool)>,
    settings_of_process: Settings,
    /// Another process has the port of these settings.
    taken: Option<Settings>,
    /// What served last.
    served: Option<Settings>,
    starts_as_before: u32,
}

impl Host {
    fn new(seed: u64) -> Self {
        let mut instance = stopped();
        instance.facts.identity = None;
        instance.facts.marker = None;
        instance.facts.data = DataDir::EMPTY;
        instance.certificates.pairs = Pairs::Missing;
        Host {
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            spec: spec(&["test-0"]),
            now: NOW.0,
            clock: Clock::Unsynchronised,
            instance,
            acknowledged: 0,
            held: 0,
            damaged: false,
            data_touched: false,
            faults: true,
            starts: 0,
            stops_without_reason: 0,
            last_status: None,
            settings_of_process: world::SETTINGS,
            taken: None,
            served: None,
            starts_as_before: 0,
        }
    }

    fn runs(&self) -> bool {
        matches!(self.instance.process, Process::Running { .. })
    }

    fn end_etcd(&mut self) {
        self.instance.process = Process::Stopped;
        self.instance.service = Service::UNKNOWN;
    }

    /// The world acts between two passes.
    fn disturb(&mut self) {
        let facts = &mut self.instance.facts;
        match self.random.below(16) {
            0 if self.instance.process != Process::Stopped => self.end_etcd(),
            1 => {
                // Power cut: the process is gone, /run is empty, the disk is as it was.
                self.end_etcd();
                self.instance.facts.history = StartHistory::NONE;
                self.instance.restart_in = 0;
            }
            2 => facts.writable = Writable::ReadOnly,
            3 => facts.writable = Writable::Stalled,
            4 => facts.writable = Writable::Yes,
            5 => self.now -= 365 * DAY,
            6 => self.now += 400 * DAY,
            7 => self.clock = Clock::Trusted,
            8 => self.clock = Clock::Unsynchronised,
            9 => self.spec.size = u8::from(self.random.chance(70)),
            10 => match self.random.below(3) {
                0 => self.spec.settings = Settings(self.random.below(3)),
                1 => self.taken = Some(Settings(self.random.below(4))),
                _ => {
                    let quotas = [None, Some(1 << 29), Some(QUOTA), Some(2 << 30)];
                    self.spec.quota = quotas[usize::try_from(self.random.below(4)).unwrap()];
                }
            },
            11 if self.runs() => self.instance.service.alarms.no_space = true,
            12 if self.runs() => self.instance.service.read = Reading::TimedOut,
            13 if self.runs() => self.instance.service.read = Reading::Answered,
            14 if !self.damaged
                && self.random.chance(10)
                && self.instance.facts.data != DataDir::EMPTY =>
            {
                self.damaged = true;
                self.end_etcd();
            }
            15 => self.instance.certificates.pairs = Pairs::Broken,
            _ => {}
        }
        self.tick();
    }

    /// Time passes, clients write, certificates age.
    fn tick(&mut self) {
        self.now += i64::try_from(self.random.below(30)).unwrap();
        let now = Timestamp(self.now);
        let facts = &mut self.instance.facts;
        facts.history.window_left = facts.history.window_left.saturating_sub(60);
        if facts.history.window_left == 0 {
            facts.history = StartHistory::NONE;
        }
        self.instance.restart_in = self.instance.restart_in.saturating_sub(10);
        let own = &mut self.instance.certificates;
        if !matches!(own.pairs, Pairs::Missing | Pairs::Broken) {
            own.pairs = if now > own.not_after {
                Pairs::Expired
            } else if now < own.not_before {
                Pairs::NotYetValid
            } else {
                Pairs::Usable
            };
        }
        let service = &self.instance.service;
        let takes_writes = service.read == Reading::Answered
            && !service.alarms.no_space
            && self.instance.certificates.pairs == Pairs::Usable
            && self.instance.facts.writable == Writable::Yes;
        if takes_writes && self.runs() {
            self.acknowledged += 1;
            self.held += 1;
        }
    }

    /// What is true of a start with these settings.
    fn facts_of(&self, settings: Settings) -> Facts {
        let mut facts = self.instance.facts.clone();
        // What etcd listens on is its own.
        let own = self.runs() && self.settings_of_process == settings;
        if self.taken == Some(settings) && !own {
            facts.conflict = Some(AddressConflict {
                address: "127.0.0.1:2379".try_into().unwrap(),
                not_ours: false,
                denied: false,
                holder: heapless::String::new(),
                k3s_embedded: false,
            });
        }
        facts
    }

    /// The guard: the same predicate on the facts of the moment.
    fn start_etcd(&mut self, settings: Settings) {
        // Nothing is started without a record of who it is.
        let Some(latched) = self.instance.facts.identity.as_ref().map(|it| it.quota) else {
            return;
        };
        if verdict(&self.facts_of(settings)).is_err() {
            return;
        }
        self.starts += 1;
        if self.damaged {
            // etcd dies with the words of damage, and a reader then finds it.
            let history = &mut self.instance.facts.history;
            history.failed += 1;
            history.window_left = 600;
            history.ending = world::failed(1, Some("crc mismatch")).ending;
            self.instance.facts.data.damage = Some(world::damage());
            let history = &self.instance.facts.history;
            assert!(
                history.failed <= START_BUDGET,
                "damaged data is not tried again and again"
            );
            return;
        }
        if self.instance.facts.data == DataDir::EMPTY && self.acknowledged > 0 {
            self.data_touched = true; // a new cluster over acknowledged writes
        }
        self.instance.facts.data = data(true, true, Some(CLUSTER));
        assert!(latched >= QUOTA, "a quota only grows");
        self.settings_of_process = settings;
        self.instance.process = Process::Running {
            pid: 100 + self.starts,
            settings,
            version: VERSION,
            quota: latched,
            seconds: 30,
        };
        self.instance.service = Service {
            write: Writing::NotTried,
            ..serving()
        };
    }

    fn step(&mut self, step: &Upkeep) {
        match step {
            Upkeep::SetDataAside | Upkeep::GiveUpClaim => {
                panic!("the only member is never removed")
            }
            Upkeep::GiveUpLeadership { .. } => panic!("nobody else could lead"),
            Upkeep::RehearseVersion(_)
            | Upkeep::EnableDowngrade(_)
            | Upkeep::CancelDowngrade
            | Upkeep::SetVersion(_)
            | Upkeep::TakeVersionBack
            | Upkeep::StayWithVersion
            | Upkeep::FinishVersion => panic!("the document names the version that runs"),
            Upkeep::AdoptIdentity => {
                self.instance.facts.identity = self.instance.facts.marker.clone();
            }
            Upkeep::LatchIdentity { .. } => {
                assert!(
                    self.acknowledged == 0,
                    "a second birth over acknowledged writes"
                );
                self.instance.facts.marker = Some(identity(false));
                // A crash between the two copies leaves the one beside the data.
                if !self.random.chance(20) || !self.faults {
                    self.instance.facts.identity = Some(identity(false));
                }
            }
            Upkeep::MintCertificates(_) => {
                let trusted = self.clock == Clock::Trusted;
                let not_before = if trusted { self.now - DAY } else { 0 };
                self.instance.certificates = etcd_operator::observed::Certificates {
                    provisional: !trusted,
                    not_before: Timestamp(not_before),
                    not_after: Timestamp(self.now + 365 * DAY),
                    ..certificates()
                };
            }
            Upkeep::MintClients => self.instance.certificates.clients_due = false,
            Upkeep::Start(_) => {
                assert!(!self.runs(), "started twice");
                self.start_etcd(self.spec.settings);
            }
            Upkeep::StartAsBefore => {
                assert!(!self.runs(), "started twice");
                let served = self.served.expect("something served before");
                assert!(
                    verdict(&self.facts_of(self.spec.settings)).is_err(),
                    "the document's settings could be started"
                );
                self.starts_as_before += 1;
                self.start_etcd(served);
            }
            Upkeep::RaiseQuota(quota) => {
                let facts = &mut self.instance.facts;
                for it in [&mut facts.identity, &mut facts.marker]
                    .into_iter()
                    .flatten()
                {
                    assert!(*quota > it.quota || self.faults, "a quota only grows");
                    it.quota = it.quota.max(*quota);
                }
            }
            Upkeep::ProbeWrite => {
                if self.instance.facts.writable == Writable::Yes {
                    self.instance.service.write = Writing::Acknowledged;
                    self.instance.facts.history = StartHistory::NONE;
                    self.served = Some(self.settings_of_process);
                }
            }
            Upkeep::RecordServed => {
                let quota = self.instance.facts.identity.as_ref().unwrap().quota;
                let served = Identity {
                    quota,
                    ..identity(true)
                };
                self.instance.facts.identity = Some(served.clone());
                self.instance.facts.marker = Some(served);
            }
            Upkeep::AcceptWrites => {
                let Process::Running { quota, .. } = self.instance.process else {
                    return;
                };
                assert!(quota > QUOTA, "nobody made room");
                self.instance.service.alarms = Alarms::default();
            }
            Upkeep::SkipSnapshot
            | Upkeep::TakeSnapshot
            | Upkeep::TakeRequested
            | Upkeep::CopySnapshots
            | Upkeep::CheckSnapshots
            | Upkeep::RequestRestore(_)
            | Upkeep::PrepareRestore
            | Upkeep::FinishRestore => panic!("this document asks for no snapshot"),
        }
    }

    /// As read right before an act.
    fn again(&self) -> Again {
        let details = self.instance.service.details.filter(|_| self.runs());
        Again {
            process: self.instance.process,
            id: details.map(|it| it.member),
            membership: if details.is_some() {
                single()
            } else {
                Membership::Unreachable
            },
            claim_deleted: false,
        }
    }

    fn interrupt(&mut self, permit: Permit<Interruption>) -> Result<(), Lost> {
        assert!(matches!(permit.grounds(), Grounds::DeclaredOutage(_)));
        let planned = permit.step().pid;
        // The world does not wait: somebody else starts etcd anew, or it dies.
        if self.faults && self.random.chance(20) {
            self.end_etcd();
            if self.random.chance(50) {
                self.start_etcd(self.settings_of_process);
            }
        }
        let now = match self.instance.process {
            Process::Running { pid, .. } => Some(pid),
            _ => None,
        };
        let step = match permit.exchange(&self.again()) {
            Ok(step) => step,
            Err(why) => {
                assert!(planned != now || why != Lapsed::ProcessChanged);
                return Err(Lost("not taken after a second look"));
            }
        };
        assert_eq!(planned, now, "done to another process than the planned one");
        match step.act {
            Act::Stop => {
                assert_eq!(self.spec.size, 0);
                self.end_etcd();
            }
            Act::Restart => {
                let Process::Running { quota, .. } = self.instance.process else {
                    panic!("planned for a process");
                };
                let latched = self
                    .instance
                    .facts
                    .identity
                    .as_ref()
                    .map_or(0, |it| it.quota);
                self.stops_without_reason +=
                    u32::from(self.settings_of_process == self.spec.settings && quota >= latched);
                self.end_etcd();
                self.start_etcd(self.spec.settings);
            }
            Act::RegainSpace => self.instance.service.alarms = Alarms::default(),
            Act::SwapRestored | Act::UndoRestore => panic!("this document asks for no snapshot"),
        }
        Ok(())
    }
}

impl Runtime for Host {
    type Error = Lost;

    async fn observe(&mut self, _: &ClusterSpec) -> Box<Observed> {
        let mut instance = self.instance.clone();
        instance.writable = instance.facts.writable;
        instance.facts = self.facts_of(self.spec.settings);
        let other = self.served.filter(|it| *it != self.spec.settings);
        instance.last_served = other.filter(|_| !self.runs()).map(|it| LastServed {
            facts: self.facts_of(it),
            elsewhere: false,
        });
        // Half of what could be seen is sometimes not seen.
        if self.faults && self.random.chance(10) && self.runs() {
            instance.service = Service {
                read: Reading::TimedOut,
                details: None,
                ..instance.service
            };
        }
        if instance.service.read != Reading::Answered {
            instance.service.details = None;
            instance.service.proposals = Proposals::Unknown;
        }
        if self.faults && self.random.chance(3) {
            instance.process = Process::Unknown;
        }
        let membership = match (&instance.service.read, &instance.facts.identity) {
            (Reading::Answered, _) => single(),
            (_, Some(it)) if it.served.is_some() => Membership::Unreachable,
            _ => Membership::Unbootstrapped,
        };
        let mut seen = observed(instance, membership);
        seen.now = Timestamp(self.now);
        seen.clock = self.clock;
        Box::new(seen)
    }

    async fn publish(
        &mut self,
        _: &ClusterSpec,
        seen: &Observed,
        status: &Status,
    ) -> Result<(), Lost> {
        let told = status.condition(Kind::Available).verdict;
        self.last_status = Some((told, seen.instances[0].service.read == Reading::Answered));
        if told == Verdict::True {
            assert!(
                self.runs() && !self.instance.service.alarms.no_space,
                "it told a lie"
            );
        }
        if self.faults && self.random.chance(5) {
            Err(Lost("publish"))
        } else {
            Ok(())
        }
    }

    async fn look_again(&mut self, _: &ClusterSpec, _: &MemberName) -> Again {
        self.again()
    }

    async fn execute(&mut self, _: &ClusterSpec, _: &Observed, plan: Plan) -> Result<(), Lost> {
        let mut failures = Failures::default();
        for step in plan.upkeep.iter().map(|it| &it.step) {
            if !failures.lets(step) {
                continue;
            }
            if self.faults && self.random.chance(5) {
                let lost = "lost before it was done";
                if self.random.chance(50) {
                    failures.note(step, Err(Lost(lost)));
                    continue;
                }
                return Err(Lost("the operator was killed here"));
            }
            self.step(step);
            if self.faults && self.random.chance(5) {
                return Err(Lost("done, and the answer was lost"));
            }
            // The world does not wait for the end of a plan.
            if self.faults && self.random.chance(3) {
                self.end_etcd();
                return Err(Lost("etcd died meanwhile"));
            }
        }
        if let Some(permit) = plan.interruption
            && failures.let_interrupt(permit.step().act)
        {
            if self.faults && self.random.chance(5) {
                return Err(Lost("lost before it was done"));
            }
            self.interrupt(permit)?;
            if self.faults && self.random.chance(5) {
                return Err(Lost("done, and the answer was lost"));
            }
        }
        failures
            .into_errors()
            .into_iter()
            .next()
            .map_or(Ok(()), Err)
    }
}

fn live_through(seed: u64) -> Host {
    let mut host = Host::new(seed);
    for _ in 0..200 {
        let spec = host.spec.clone();
        let _ = now_or_panic(reconcile(&mut host, &spec));
        if host.random.chance(40) {
            host.disturb();
        } else {
            host.tick();
        }
    }
    // The faults end; what can heal must heal by itself.
    host.faults = false;
    host.spec.size = 1;
    host.clock = Clock::Trusted;
    host.instance.facts.writable = Writable::Yes;
    // A port that another process keeps is no outage where other settings served before.
    if host.served.is_none_or(|it| Some(it) == host.taken) {
        host.taken = None;
    }
    if host.runs() {
        host.instance.service.read = Reading::Answered;
        host.instance.service.details = Some(details());
    }
    for _ in 0..40 {
        let spec = host.spec.clone();
        now_or_panic(reconcile(&mut host, &spec)).unwrap();
        host.tick();
        host.now += 60;
    }
    host
}

#[test]
fn a_host_lives_through_everything_and_heals() {
    let lived = each_seed(5000, |seed| {
        let host = live_through(seed);
        assert_eq!(host.acknowledged, host.held, "acknowledged writes are gone");
        assert!(!host.data_touched, "a new cluster over old data");
        assert_eq!(
            host.stops_without_reason, 0,
            "restarted though nobody asked"
        );
        let told = host.last_status.unwrap().0;
        if host.damaged {
            assert_eq!(told, Verdict::False, "damaged data cannot be served");
        } else {
            assert_eq!(told, Verdict::True, "not healed: {:?}", host.instance);
        }
        (
            u32::from(host.damaged),
            host.acknowledged,
            host.starts_as_before,
        )
    });
    let count = lived.len();
    let damaged: u32 = lived.iter().map(|it| it.0).sum();
    let acknowledged: u64 = lived.iter().map(|it| it.1).sum();
    let as_before: u32 = lived.iter().map(|it| it.2).sum();
    println!(
        "{count} hosts lived 200 passes each, {damaged} with damaged data, {acknowledged} writes acknowledged, \
         {as_before} starts with the settings of before"
    );
    assert!(as_before > 0);
}

/// What the two worlds start from is what the planner takes for sound.
#[test]
fn the_worlds_are_sound() {
    assert!(verdict(&facts()).is_ok());
    assert_eq!(single(), {
        let mut members = MemberSet::of(CLUSTER);
        members
            .insert(member(MEMBER.0, "test-0", Role::Voter, Health::Serving))
            .unwrap();
        Membership::Known(members)
    });
    assert!(etcd_operator::version::classify(VERSION) == etcd_operator::version::Class::Supported);
}
