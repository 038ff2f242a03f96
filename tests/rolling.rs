//! A version that goes over three members, by thousands of seeds: edits, deaths, losses of power and operators that begin
//! anew, with a version that is bad for one member's data. At most one member changes, the leader is the last one, the
//! majority stays, and what failed once is tried nowhere else.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test"
)]

mod world;

use etcd_operator::cluster::{Health, MemberId, MemberSet, Role};
use etcd_operator::observed::{
    Details, Failed, Instance, Membership, Observed, Process, Reading, Service, Unanswered,
    Upgrade, Writing,
};
use etcd_operator::plan::version::{
    ENDS_MAX, SERVES_WITHIN_LOOKS, STABLE_SECONDS, given_up, words,
};
use etcd_operator::plan::{Act, Change, Hold, Plan, Task, Upkeep, plan};
use etcd_operator::spec::ClusterSpec;
use etcd_operator::start::{Binary, Identity, serves_within};
use etcd_operator::version::Version;
use world::random::Random;
use world::{CLUSTER, SETTINGS, backup, details, member, name, running, serving, spec, stopped};

const OLD: Version = Version::new(3, 6, 14);
const NAMES: [&str; 3] = ["test-0", "test-1", "test-2"];
/// Passes within which the operator alone comes to rest.
const REST_PASSES: usize = 120;

/// How the new version behaves on the data of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quality {
    Good,
    /// It does not serve a copy of any.
    FailsOnTheCopy,
    Ends,
    Silent,
}

/// How long a process has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
enum Age {
    Starts,
    Short,
    Long,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct One {
    identity: Version,
    other: Option<Version>,
    back: bool,
    runs: Option<(Version, Age)>,
    ends: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Trial {
    None,
    UnderWay(Version),
    Served(Version),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct World {
    quality: Quality,
    new: Version,
    /// On whose data the new version is bad.
    bad: usize,
    asked: Version,
    all: [One; 3],
    leader: usize,
    trial: Trial,
    /// By the document of now: the version, and whose data it did not serve.
    failed: Option<(Version, Option<usize>)>,
    /// The data is the newer line's.
    raised: bool,
    /// etcd's own downgrade.
    enabled: bool,
    written: bool,
}

impl World {
    fn begin(quality: Quality, new: Version, bad: usize) -> Self {
        let one = One {
            identity: OLD,
            other: None,
            back: false,
            runs: Some((OLD, Age::Long)),
            ends: 0,
        };
        World {
            quality,
            new,
            bad,
            asked: OLD,
            all: [one; 3],
            leader: 0,
            trial: Trial::None,
            failed: None,
            raised: false,
            enabled: false,
            written: false,
        }
    }

    fn spec(&self) -> ClusterSpec {
        ClusterSpec {
            version: Some(self.asked),
            backup: Some(backup("interval")),
            ..spec(&NAMES)
        }
    }

    fn is_bad(&self, number: usize, version: Version) -> bool {
        version == self.new && number == self.bad
    }

    /// Whether it takes part.
    fn is_up(&self, number: usize) -> bool {
        let silent = self.quality == Quality::Silent;
        let up = |(version, age)| age > Age::Starts && !(silent && self.is_bad(number, version));
        self.all[number].runs.is_some_and(up)
    }

    fn up(&self) -> usize {
        (0..3).filter(|it| self.is_up(*it)).count()
    }

    fn serves(&self, number: usize) -> bool {
        self.is_up(number) && self.up() >= 2
    }

    fn newer(&self) -> bool {
        self.new.is_newer_line_than(OLD)
    }

    fn instance(&self, number: usize) -> Instance {
        let one = &self.all[number];
        let mut it = stopped();
        it.member = name(NAMES[number]);
        it.alone = false;
        let id = MemberId(number as u64 + 1);
        let own = Identity {
            member: name(NAMES[number]),
            version: one.identity,
            other_version: one.other,
            goes_back: one.back,
            joined: number > 0,
            served: Some((CLUSTER, id)),
            ..world::identity(true)
        };
        it.facts.version = one.identity;
        it.facts.identity = Some(own.clone());
        it.facts.marker = Some(own);
        it.facts.data.owner = Some((CLUSTER, id));
        it.tries.ends = one.ends;
        it.tries.downgrade = self.written.then_some(OLD);
        let stored = if self.raised { self.new } else { OLD };
        let Some((version, age)) = one.runs else {
            it.facts.data.agreed = Some(stored);
            return it;
        };
        it.process = running(SETTINGS, 100);
        if let Process::Running { version: runs, .. } = &mut it.process {
            *runs = version;
        }
        if self.serves(number) {
            it.tries.served = if age == Age::Long { STABLE_SECONDS } else { 1 };
            it.service = Service {
                details: Some(Details {
                    member: id,
                    leader: Some(MemberId(self.leader as u64 + 1)),
                    storage: Some(stored),
                    downgrade_to: self.enabled.then_some(OLD),
                    ..details()
                }),
                ..serving()
            };
            return it;
        }
        it.service = Service {
            read: Reading::TimedOut,
            write: Writing::NotTried,
            details: None,
            ..serving()
        };
        // Without others for a majority the silence is not this version's.
        let others = (0..3).filter(|it| *it != number);
        if age == Age::Long && others.clone().any(|it| self.is_up(it)) {
            it.tries.unserved = Unanswered {
                looks: SERVES_WITHIN_LOOKS,
                seconds: serves_within(0) + 1,
            };
        }
        it
    }

    fn observed(&self) -> Observed {
        let mut members = MemberSet::of(CLUSTER);
        for (number, its_name) in NAMES.iter().enumerate() {
            let health = if self.serves(number) {
                Health::Serving
            } else {
                Health::Unknown
            };
            let it = member(number as u64 + 1, its_name, Role::Voter, health);
            members.insert(it).unwrap();
        }
        let membership = if self.up() >= 2 {
            Membership::Known(members)
        } else {
            Membership::Unreachable
        };
        let mut seen = world::observed(self.instance(0), membership);
        for number in 1..3 {
            seen.instances.push(self.instance(number)).unwrap();
        }
        seen.upgrade = match (self.failed, &self.trial) {
            (Some((to, of)), _) if to == self.asked => Upgrade::Failed(Failed {
                to,
                why: "it failed".try_into().unwrap(),
                member: of.map_or_else(|| name(""), |it| name(NAMES[it])),
            }),
            (_, Trial::UnderWay(to)) => Upgrade::Rehearsing { to: *to },
            (_, Trial::Served(to)) => Upgrade::Rehearsed {
                to: *to,
                revision: 10,
            },
            (_, Trial::None) => Upgrade::None,
        };
        seen.backups.busy = matches!(self.trial, Trial::UnderWay(_));
        seen
    }

    /// Carries out the first `count` steps; then the operator ends.
    fn act(&mut self, plan: &Plan, count: usize) {
        let seen = self.observed();
        let document = self.spec();
        let upkeep = plan.upkeep.iter().map(|it| (&it.member, Some(&it.step)));
        let interrupted = plan
            .interruption
            .as_ref()
            .map(|it| (&it.step().member, None));
        for (of, step) in upkeep.chain(interrupted).take(count) {
            let number = NAMES.iter().position(|it| *it == &**of).unwrap();
            match step {
                None => {
                    assert_eq!(plan.act(), Some(Act::Restart));
                    let costs = self.is_up(number) && self.up() >= 2;
                    assert!(!costs || self.up() == 3, "the majority is lost: {self:?}");
                    self.start(number);
                }
                Some(Upkeep::Start(_)) => self.start(number),
                Some(Upkeep::GiveUpLeadership { to }) => {
                    assert_eq!(number, self.leader);
                    self.leader = usize::try_from(to.0).unwrap() - 1;
                    assert!(self.is_up(self.leader));
                }
                Some(Upkeep::RehearseVersion(to)) => self.trial = Trial::UnderWay(*to),
                Some(Upkeep::EnableDowngrade(to)) => {
                    assert_eq!(self.asked, *to);
                    // etcd refuses it in a cluster of two lines.
                    assert!(self.raised, "there is nothing to lower: {self:?}");
                    (self.enabled, self.written) = (true, true);
                }
                Some(Upkeep::CancelDowngrade) => (self.enabled, self.written) = (false, false),
                Some(Upkeep::SetVersion(to)) => self.set(number, *to),
                Some(Upkeep::TakeVersionBack) => {
                    if let Some(failed) = given_up(&document, &seen.instances[number]) {
                        assert_eq!(failed.member, **of);
                        let named = failed.why.starts_with(&format!("{of}: "));
                        assert!(named, "{}", failed.why);
                        self.failed = Some((failed.to, Some(number)));
                    }
                    let one = &mut self.all[number];
                    let before = one.other.replace(one.identity).unwrap();
                    (one.identity, one.back, one.ends) = (before, !one.back, 0);
                }
                Some(Upkeep::FinishVersion) => self.finish(number),
                Some(Upkeep::StayWithVersion) => {
                    assert!(self.raised, "the one before could open it: {self:?}");
                    if let Some(failed) = given_up(&document, &seen.instances[number]) {
                        self.failed = Some((failed.to, Some(number)));
                    }
                    let one = &mut self.all[number];
                    (one.identity, one.other) = (self.new, None);
                    (one.back, one.ends) = (false, 0);
                }
                Some(Upkeep::ProbeWrite) => {}
                Some(step) => panic!("{step:?} in {self:?}"),
            }
        }
        assert!(plan.change.as_ref().is_ok_and(Option::is_none) || self.up() < 2);
    }

    fn set(&mut self, number: usize, to: Version) {
        assert_eq!(self.asked, to, "nobody asked for it");
        let others = (0..3).filter(|it| *it != number);
        let changing = others.clone().any(|it| self.all[it].other.is_some());
        assert!(!changing, "two members change at once: {self:?}");
        let mut others = others.map(|it| &self.all[it]);
        let last = others.clone().all(|it| it.identity == to);
        assert!(number != self.leader || last, "the leader first: {self:?}");
        let serves = others.any(|it| it.identity == to && it.runs.is_some_and(|it| it.0 == to));
        let rehearsed = self.trial == Trial::Served(to);
        assert!(rehearsed || serves, "not tried: {self:?}");
        assert_eq!(self.up(), 3, "somebody is away: {self:?}");
        let is_lower = self.newer() && to == OLD;
        let runs = |it: &One| it.runs.is_some_and(|it| it.0 == OLD);
        let lowered = self.enabled && !self.raised || self.all.iter().any(runs);
        assert!(!is_lower || lowered, "etcd may raise it now: {self:?}");
        let failed = self.failed.is_some_and(|it| it.0 == to);
        assert!(!failed, "a second attempt by the same document: {self:?}");
        let one = &mut self.all[number];
        one.other = Some(one.identity);
        (one.identity, one.ends) = (to, 0);
        self.trial = Trial::None; // as it is forgotten there
    }

    fn finish(&mut self, number: usize) {
        assert!(self.serves(number), "final without serving: {self:?}");
        let one = &mut self.all[number];
        assert_eq!(one.runs, Some((one.identity, Age::Long)));
        (one.other, one.back, one.ends) = (None, false, 0);
        let identity = one.identity;
        if self.failed.is_some_and(|it| it.0 == identity) {
            self.failed = None;
        }
        if identity == OLD && self.all.iter().all(|it| it.identity == OLD) {
            self.written = false;
        }
    }

    fn start(&mut self, number: usize) {
        let version = self.all[number].identity;
        let older = self.newer() && version == OLD;
        self.all[number].runs = (!older || !self.raised).then_some((version, Age::Starts));
        self.elect();
    }

    fn elect(&mut self) {
        if !self.is_up(self.leader)
            && let Some(it) = (0..3).find(|it| self.is_up(*it))
        {
            self.leader = it;
        }
    }

    /// Time passes.
    fn later(&mut self) {
        if let Trial::UnderWay(to) = self.trial {
            let bad = to == self.new && self.quality == Quality::FailsOnTheCopy;
            if bad && to == self.asked {
                self.failed = Some((to, None));
            }
            self.trial = if bad { Trial::None } else { Trial::Served(to) };
        }
        for number in 0..3 {
            let Some((version, age)) = self.all[number].runs else {
                continue;
            };
            let ends = self.quality == Quality::Ends && self.is_bad(number, version);
            self.all[number].runs = match age {
                _ if ends => None,
                Age::Starts => Some((version, Age::Short)),
                _ => Some((version, Age::Long)),
            };
            if ends {
                self.count_end(number);
            }
        }
        self.elect();
        let runs = |it: &One, of: Version| it.runs.is_some_and(|it| it.0 == of);
        // It takes a moment.
        let long = |it: &One| it.runs == Some((self.new, Age::Long));
        if self.newer() && (0..3).all(|it| self.is_up(it) && long(&self.all[it])) {
            self.raised = !self.enabled;
        }
        if self.all.iter().all(|it| runs(it, OLD)) {
            self.enabled = false;
        }
    }

    fn count_end(&mut self, number: usize) {
        let one = &mut self.all[number];
        one.ends = (one.ends + u32::from(one.other.is_some())).min(ENDS_MAX);
    }

    /// Something happens.
    fn happens(&mut self, random: &mut Random) {
        match random.below(12) {
            0 => {
                let before = self.asked;
                self.asked = if random.chance(50) { OLD } else { self.new };
                if before != self.asked {
                    (self.failed, self.trial) = (None, Trial::None);
                }
            }
            1 => {
                let number = usize::try_from(random.below(3)).unwrap();
                if self.all[number].runs.take().is_some() {
                    self.count_end(number);
                }
            }
            2 => {
                for one in &mut self.all {
                    (one.runs, one.ends) = (None, 0);
                }
                self.trial = Trial::None;
            }
            3 => self.trial = Trial::None, // an operator that comes anew
            _ => {}
        }
        self.elect();
    }

    /// The member has this version for good, and serves with it.
    fn settle(&mut self, number: usize, version: Version) {
        self.all[number].identity = version;
        self.all[number].runs = Some((version, Age::Long));
    }

    fn check(&self) {
        let changing = self.all.iter().filter(|it| it.other.is_some()).count();
        assert!(changing <= 1, "two members change at once: {self:?}");
        for one in &self.all {
            let may = |(it, _)| it == one.identity || Some(it) == one.other;
            assert!(one.runs.is_none_or(may), "a third version runs: {self:?}");
        }
    }

    fn pass(&mut self, count: usize) {
        let plan = plan(&self.spec(), &self.observed());
        self.act(&plan, count);
        self.later();
        self.check();
    }
}

/// From here the operator alone brings it to rest.
fn rests(mut world: World) -> World {
    for _ in 0..REST_PASSES {
        let before = world.clone();
        world.pass(usize::MAX);
        if world == before {
            break;
        }
    }
    let settled = |it: &One| it.other.is_none() && it.runs == Some((it.identity, Age::Long));
    let next = plan(&world.spec(), &world.observed());
    assert!(
        world.all.iter().all(settled),
        "never at rest: {world:?}: {next:?}"
    );
    let has = world.all.iter().all(|it| it.identity == world.asked);
    let failed = world.failed.is_some_and(|it| it.0 == world.asked);
    assert!(has || failed, "rests with {world:?}");
    world
}

/// Its own version is gone, and another one of its line could be started; but one changes after the other.
#[test]
fn a_member_whose_version_is_gone_waits_for_the_one_that_changes() {
    let new = Version::new(3, 6, 15);
    let mut world = World::begin(Quality::Good, new, 0);
    world.asked = new;
    world.all[2].runs = None;
    for (changes, expected) in [(true, false), (false, true)] {
        let one = &mut world.all[1];
        (one.identity, one.other) = (if changes { new } else { OLD }, changes.then_some(OLD));
        let mut seen = world.observed();
        seen.instances[2].facts.binary = Binary::Missing(None);
        let plan = plan(&world.spec(), &seen);
        let of_it = |it: &Task| &*it.member == NAMES[2] && it.step == Upkeep::SetVersion(new);
        assert_eq!(plan.upkeep.iter().any(of_it), expected, "{plan:?}");
    }
}

/// What is stored is the older line's only until the cluster raises it, unless a member of that line holds it back.
#[test]
fn what_is_not_raised_yet_is_not_taken_for_lowered() {
    let new = Version::new(3, 7, 3);
    let mut world = World::begin(Quality::Good, new, 0);
    world.trial = Trial::Served(OLD);
    for (stays, expected) in [(true, true), (false, false)] {
        for number in [1, 2] {
            let version = if stays && number == 1 { OLD } else { new };
            world.settle(number, version);
        }
        world.settle(0, new);
        let plan = plan(&world.spec(), &world.observed());
        let lowers = |it: &Task| it.step == Upkeep::SetVersion(OLD);
        assert_eq!(plan.upkeep.iter().any(lowers), expected, "{plan:?}");
    }
}

#[test]
fn a_version_goes_over_three_members_one_by_one_or_stops_at_the_first_failure() {
    let qualities = [
        Quality::Good,
        Quality::FailsOnTheCopy,
        Quality::Ends,
        Quality::Silent,
    ];
    for new in [Version::new(3, 6, 15), Version::new(3, 7, 3)] {
        for quality in qualities {
            let (mut whole, mut stopped) = (0, 0);
            for seed in 1..=600_u64 {
                let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                let bad = usize::try_from(random.below(3)).unwrap();
                let mut world = World::begin(quality, new, bad);
                world.asked = new;
                for _ in 0..random.below(60) {
                    world.happens(&mut random);
                    let count = if random.chance(20) {
                        usize::try_from(random.below(4)).unwrap()
                    } else {
                        usize::MAX
                    };
                    world.pass(count);
                }
                let end = rests(world);
                whole += usize::from(end.asked == new && end.failed.is_none());
                stopped += usize::from(end.failed.is_some());
            }
            println!("{new} {quality:?}: {whole} have it, {stopped} stopped");
            // Of a good one two deaths in a row count as its own.
            match quality {
                Quality::Good => assert!(whole > 10 * stopped, "{whole}, {stopped}"),
                _ => assert!(whole == 0 && stopped > 0, "{quality:?}: {whole}, {stopped}"),
            }
        }
    }
}

/// A power cut takes a member's data in the middle of a change: it is replaced, else the one that changes would wait for a
/// majority that never comes.
#[test]
fn a_lost_member_is_replaced_in_the_middle_of_a_change() {
    let new = Version::new(3, 6, 15);
    let mut world = World::begin(Quality::Good, new, 0);
    world.asked = new;
    (world.all[0].identity, world.all[0].other) = (new, Some(OLD));
    let add = |seen: &Observed| match plan(&world.spec(), seen).change {
        Ok(Some(permit)) => matches!(permit.step(), Change::AddLearner { .. }),
        _ => false,
    };
    for (voters, expected) in [(2, true), (1, false)] {
        let mut members = MemberSet::of(CLUSTER);
        for (number, its_name) in NAMES.iter().enumerate().take(voters) {
            let it = member(number as u64 + 1, its_name, Role::Voter, Health::Serving);
            members.insert(it).unwrap();
        }
        let mut seen = world.observed();
        seen.membership = Membership::Known(members);
        for instance in seen.instances.iter_mut().skip(voters) {
            instance.process = Process::Stopped;
            instance.service = Service::UNKNOWN;
            instance.facts.identity = None;
            instance.facts.marker = None;
            instance.facts.data = world::data(false, false, None);
        }
        assert_eq!(add(&seen), expected, "{voters}");
    }
}

/// The document's larger quota ends a full database also while another member's version is not final.
#[test]
fn a_full_member_takes_its_quota_in_the_middle_of_a_change() {
    let new = Version::new(3, 6, 15);
    let mut world = World::begin(Quality::Good, new, 0);
    world.asked = new;
    (world.all[1].identity, world.all[1].other) = (new, Some(OLD));
    world.all[1].runs = Some((new, Age::Short));
    let mut document = world.spec();
    document.quota = Some(world::QUOTA * 2);
    let mut seen = world.observed();
    for instance in &mut seen.instances {
        instance.service.alarms.no_space = true;
        if &*instance.member == "test-1" {
            instance.facts.identity.as_mut().unwrap().quota *= 2;
            if let Process::Running { quota, .. } = &mut instance.process {
                *quota *= 2;
            }
        }
    }
    let plan = plan(&document, &seen);
    let raises = |it: &Task| matches!(it.step, Upkeep::RaiseQuota(_));
    assert!(plan.upkeep.iter().any(raises), "{plan:?}");
}

/// Before this operator has proven a write nobody serves for it; who joins takes the others' version all the same.
#[test]
fn who_joins_takes_the_version_of_those_that_answer() {
    let new = Version::new(3, 6, 15);
    let mut world = World::begin(Quality::Good, new, 0);
    world.asked = new;
    let mut seen = world.observed();
    for instance in &mut seen.instances {
        instance.service.write = Writing::NotTried;
    }
    assert_eq!(seen.version_of_others(&seen.instances[2]), Some(OLD));
}

fn upkeep(plan: &Plan, number: usize) -> Vec<&Upkeep> {
    let mut own = Vec::new();
    for task in &plan.upkeep {
        if &*task.member == NAMES[number] {
            own.push(&task.step);
        }
    }
    own
}

/// It has its version for good and answers nothing, for long.
fn silence(instance: &mut Instance) {
    instance.service = Service {
        read: Reading::TimedOut,
        ..Service::UNKNOWN
    };
    instance.tries.served = 0;
    instance.tries.unserved = Unanswered {
        looks: SERVES_WITHIN_LOOKS,
        seconds: serves_within(0) + 1,
    };
}

fn mark(seen: &mut Observed, number: usize, health: Health) {
    let Membership::Known(members) = &mut seen.membership else {
        panic!("no list");
    };
    let mut marked = MemberSet::of(CLUSTER);
    for it in members.iter() {
        let mut it = it.clone();
        if &*it.name == NAMES[number] {
            it.health = health;
        }
        marked.insert(it).unwrap();
    }
    *members = marked;
}

/// Nobody else can be changed before a silent member serves, so the version comes to it first: it may be what mends it.
#[test]
fn a_member_that_answers_nothing_gets_a_patch_first() {
    let new = Version::new(3, 6, 15);
    let mut world = World::begin(Quality::Good, new, 0);
    world.asked = new;
    let mut seen = world.observed();
    silence(&mut seen.instances[2]);
    mark(&mut seen, 2, Health::Unknown);
    let next = plan(&world.spec(), &seen);
    assert!(
        upkeep(&next, 2).contains(&&Upkeep::SetVersion(new)),
        "{next:?}"
    );
    // Before it counts as silent the others wait for it, and that is told.
    seen.instances[2].tries.unserved = Unanswered::default();
    let next = plan(&world.spec(), &seen);
    assert!(next.upkeep.is_empty(), "{next:?}");
    let told = words(&world.spec(), &seen).unwrap();
    assert!(told.contains("waits for test-2"), "{told}");
}

/// Neither version serves: the document that asked once is not followed a second time.
#[test]
fn what_failed_is_not_taken_again_where_the_version_before_fails_too() {
    let new = Version::new(3, 6, 15);
    let mut world = World::begin(Quality::Good, new, 0);
    world.asked = new;
    let one = &mut world.all[1];
    (one.identity, one.other, one.back) = (OLD, Some(new), true);
    (one.runs, one.ends) = (Some((OLD, Age::Starts)), ENDS_MAX);
    for (failed, expected) in [(None, true), (Some((new, Some(1))), false)] {
        world.failed = failed;
        let next = plan(&world.spec(), &world.observed());
        let takes = upkeep(&next, 1).contains(&&Upkeep::TakeVersionBack);
        assert_eq!(takes, expected, "{next:?}");
    }
}

/// The newer line's etcd breaks where it was final already; the others hold the data back at the older line.
#[test]
fn a_broken_member_of_the_newer_line_goes_back_while_others_are_of_the_older() {
    let new = Version::new(3, 7, 3);
    let mut world = World::begin(Quality::Good, new, 0);
    world.all[1].identity = new;
    for (held_back, expected) in [(true, true), (false, false)] {
        if !held_back {
            for number in [0, 2] {
                world.settle(number, new);
            }
        }
        // It does not start.
        world.all[1].runs = None;
        let mut seen = world.observed();
        seen.instances[1].facts.binary = Binary::Missing(None);
        let next = plan(&world.spec(), &seen);
        let goes = upkeep(&next, 1).contains(&&Upkeep::SetVersion(OLD));
        assert_eq!(goes, expected, "{next:?}");
        // It starts, and answers nothing.
        world.all[1].runs = Some((new, Age::Long));
        let mut seen = world.observed();
        silence(&mut seen.instances[1]);
        mark(&mut seen, 1, Health::Unknown);
        let next = plan(&world.spec(), &seen);
        let goes = upkeep(&next, 1).contains(&&Upkeep::SetVersion(OLD));
        assert_eq!(goes, expected, "{next:?}");
    }
}

/// Nobody says which of two versions it shall be: that is told.
#[test]
fn several_versions_without_one_in_the_document_are_told() {
    let new = Version::new(3, 6, 15);
    let mut world = World::begin(Quality::Good, new, 0);
    let mut document = world.spec();
    document.version = None;
    let next = plan(&document, &world.observed());
    assert_eq!(next.hold(), None);
    world.settle(1, new);
    let next = plan(&document, &world.observed());
    assert_eq!(next.hold(), Some(&Hold::VersionsDiffer(OLD, new)));
}

/// Another image may hold another etcd of the same version: only a trial says how it does.
#[test]
fn what_another_image_brought_is_no_trial_of_this_one() {
    let new = Version::new(3, 6, 15);
    let mut world = World::begin(Quality::Good, new, 0);
    world.asked = new;
    world.settle(1, new);
    for (other, step) in [
        (false, Upkeep::SetVersion(new)),
        (true, Upkeep::RehearseVersion(new)),
    ] {
        let mut seen = world.observed();
        seen.instances[1].tries.has_another_image = other;
        let next = plan(&world.spec(), &seen);
        assert!(upkeep(&next, 2).contains(&&step), "{next:?}");
    }
}

/// A third member is away, so nothing may be interrupted; but whoever starts this one next starts the version before.
#[test]
fn the_way_back_is_written_down_also_where_nothing_may_be_interrupted() {
    let new = Version::new(3, 6, 15);
    let mut world = World::begin(Quality::Silent, new, 1);
    world.asked = new;
    let one = &mut world.all[1];
    (one.identity, one.other) = (new, Some(OLD));
    one.runs = Some((new, Age::Long));
    world.all[2].runs = None;
    let seen = world.observed();
    assert_eq!(seen.membership, Membership::Unreachable);
    let next = plan(&world.spec(), &seen);
    assert!(
        upkeep(&next, 1).contains(&&Upkeep::TakeVersionBack),
        "{next:?}"
    );
    assert_eq!(next.act(), None, "{next:?}");
}
