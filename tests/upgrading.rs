//! Changes of etcd's version, exhaustively: every sequence of edits, deaths, silences and restarts of the operator over
//! three versions, of which one behaves badly in each way that a version can.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod world;

use std::collections::{HashSet, VecDeque};
use std::fmt::Write as _;

use etcd_operator::cluster::{Health, Role};
use etcd_operator::observed::{
    Details, Failed, MadeFor, Membership, Observed, Process, Reach, Reading, Service,
    SnapshotNamed, SnapshotSeen, Unanswered, Upgrade, Writing,
};
use etcd_operator::plan::version::{
    Back, ENDS_MAX, LOWERS_WITHIN_SECONDS, SERVES_WITHIN_LOOKS, SKIPS_SECONDS, STABLE_SECONDS,
    why_back,
};
use etcd_operator::plan::{Act, Hold, Plan, Upkeep, killed_after, plan};
use etcd_operator::spec::ClusterSpec;
use etcd_operator::start::{Binary, Identity, Refusal, serves_within};
use etcd_operator::status::{Kind, Verdict, status};
use etcd_operator::version::Version;
use world::{identity, observed, running_instance, serving, single, spec, stopped};

const OLD: Version = Version::new(3, 6, 14);
const OTHER: [Version; 2] = [Version::new(3, 6, 16), Version::new(3, 7, 4)];
/// The one that may be bad: a patch of the line, or one of the next line.
const NEW: [Version; 2] = [Version::new(3, 6, 15), Version::new(3, 7, 3)];

/// How the new version behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quality {
    Good,
    /// It does not serve a copy.
    FailsOnTheCopy,
    /// It serves a copy, and on the data it ends at once.
    Ends,
    /// It serves a copy, and on the data it answers nothing.
    Silent,
    /// It serves, then ends.
    ServesThenEnds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Rehearsal {
    None,
    UnderWay(Version),
    Served(Version),
}

/// Which lines can read the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Data {
    /// Not the newer one: its log has requests of 3.5.
    Older,
    /// All.
    Both,
    /// Only the newer one, which has served it.
    Newer,
}

/// The whole world, as small as it can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct World {
    new: Version,
    /// One that is good.
    other_asked: Version,
    asked: Version,
    identity: Version,
    data: Data,
    other: Option<Version>,
    back: bool,
    runs: Option<Version>,
    /// It has run for long enough to be final, or to be silent for too long.
    long: bool,
    ends: u32,
    rehearsal: Rehearsal,
    failed: Option<Version>,
    /// The document has not changed since.
    same: bool,
    lowering: Lowering,
    trial: Trial,
}

/// What the document says of the trial of what it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Trial {
    Wanted,
    Skipped,
}

/// Whether etcd's own downgrade is enabled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Lowering {
    enabled: bool,
    /// The operator has written it down.
    written: bool,
}

impl World {
    const BEGIN: World = World {
        new: NEW[0],
        other_asked: OTHER[0],
        asked: OLD,
        identity: OLD,
        data: Data::Older,
        other: None,
        back: false,
        runs: Some(OLD),
        long: true,
        ends: 0,
        rehearsal: Rehearsal::None,
        failed: None,
        same: false,
        lowering: Lowering {
            enabled: false,
            written: false,
        },
        trial: Trial::Wanted,
    };

    fn spec(self) -> ClusterSpec {
        ClusterSpec {
            version: Some(self.asked),
            backup: Some(world::backup("interval")),
            skip_rehearsal: (self.trial == Trial::Skipped).then_some(self.asked),
            ..spec(&["test-0"])
        }
    }

    fn serves(self, quality: Quality) -> bool {
        match self.runs {
            Some(it) if it == self.new => !matches!(quality, Quality::Silent | Quality::Ends),
            other => other.is_some(),
        }
    }

    /// Whether this version cannot open the data any more.
    fn is_too_old(self, it: Version) -> bool {
        self.data == Data::Newer && it.line() == OLD.line()
    }

    /// Whether this version would end at the log.
    fn cannot_read(self, it: Version) -> bool {
        self.data == Data::Older && it.line() > OLD.line()
    }

    fn observed(self, quality: Quality) -> Observed {
        let mut it = if self.runs.is_some() {
            running_instance()
        } else {
            stopped()
        };
        let own = Identity {
            version: self.identity,
            other_version: self.other,
            goes_back: self.back,
            ..identity(true)
        };
        it.facts.version = own.version;
        if self.runs.is_none() {
            let agreed = Version::new(3, self.new.minor, 0);
            it.facts.data.agreed = (self.data == Data::Newer).then_some(agreed);
            it.facts.data.log.replays_v2 = self.data == Data::Older;
        }
        it.facts.identity = Some(own.clone());
        it.facts.marker = Some(own);
        it.tries.ends = self.ends;
        if let Process::Running { version, .. } = &mut it.process {
            *version = self.runs.unwrap();
        }
        if self.long && self.serves(quality) {
            it.tries.served = STABLE_SECONDS;
        }
        it.tries.downgrade = self.lowering.written.then_some(OLD);
        it.service = match (self.runs, self.serves(quality)) {
            (None, _) => Service::UNKNOWN,
            (_, true) => Service {
                details: Some(Details {
                    downgrade_to: self.lowering.enabled.then_some(OLD),
                    storage: Some(if self.data == Data::Newer {
                        self.new
                    } else {
                        OLD
                    }),
                    ..world::details()
                }),
                ..serving()
            },
            (_, false) => Service {
                read: Reading::TimedOut,
                write: Writing::NotTried,
                details: None,
                ..serving()
            },
        };
        if self.runs.is_some() && !self.serves(quality) && self.long {
            it.tries.unserved = Unanswered {
                looks: SERVES_WITHIN_LOOKS,
                seconds: serves_within(0) + 1,
            };
        }
        let mut seen = observed(it, single());
        seen.upgrade = match (self.failed, self.rehearsal) {
            (Some(to), _) if self.same && to == self.asked => Upgrade::Failed(Failed {
                to,
                why: "it failed".try_into().unwrap(),
                member: seen.instances[0].member.clone(),
            }),
            (_, Rehearsal::UnderWay(to)) => Upgrade::Rehearsing { to },
            (_, Rehearsal::Served(to)) => Upgrade::Rehearsed { to, revision: 10 },
            (_, Rehearsal::None) => Upgrade::None,
        };
        seen.backups.due_in = Some(0); // a snapshot is due at any time
        seen.backups.verified = (self.trial == Trial::Skipped).then(|| of_age(SKIPS_SECONDS));
        seen.backups.busy = matches!(self.rehearsal, Rehearsal::UnderWay(_));
        seen
    }

    /// Carries out the first `count` steps of what is planned; the operator ends before the next one.
    fn act(mut self, plan: &Plan, quality: Quality, count: usize) -> World {
        let seen = self.observed(quality);
        let steps = plan.upkeep.iter().map(|it| Some(&it.step));
        let interrupts = plan.interruption.iter().map(|_| None);
        for step in steps.chain(interrupts).take(count) {
            match step {
                None => {
                    assert_eq!(plan.act(), Some(Act::Restart));
                    assert_ne!(self.runs, Some(self.identity), "what runs is right");
                    self.start();
                }
                Some(Upkeep::Start(_)) => self.start(),
                Some(Upkeep::RehearseVersion(_)) if self.trial == Trial::Skipped => {
                    panic!("a trial that nobody wants")
                }
                Some(Upkeep::RehearseVersion(to)) => self.rehearsal = Rehearsal::UnderWay(*to),
                Some(Upkeep::EnableDowngrade(to)) => {
                    assert_eq!(self.asked, *to, "nobody asked for it");
                    assert!(self.serves(quality), "it cannot answer");
                    self.lowering.enabled = true;
                    self.lowering.written = true;
                }
                Some(Upkeep::CancelDowngrade) => self.cancel(),
                Some(Upkeep::SetVersion(to)) => self.set(*to, quality),
                Some(Upkeep::TakeVersionBack) => {
                    let why = why_back(&self.spec(), &seen, &seen.instances[0]).unwrap();
                    if matches!(why, Back::Failed(_)) {
                        self.failed = Some(self.identity);
                        self.same = true;
                    }
                    let before = self.other.replace(self.identity).unwrap();
                    self.identity = before;
                    let again = matches!(why, Back::Failed(_)) && self.back;
                    assert!(!again, "forth and back again");
                    self.back = !self.back;
                    self.ends = 0;
                }
                Some(Upkeep::FinishVersion) => {
                    assert_eq!(self.runs, Some(self.identity));
                    assert!(self.serves(quality) && self.long, "final without serving");
                    let other = self.other.take();
                    self.lowering.written &= self.back || self.identity.line() != OLD.line();
                    self.back = false;
                    if self.failed != other {
                        self.failed = None;
                    }
                    self.ends = 0;
                }
                Some(Upkeep::StayWithVersion) => {
                    assert_eq!(
                        self.data,
                        Data::Newer,
                        "the version before could still open the data"
                    );
                    let why = why_back(&self.spec(), &seen, &seen.instances[0]);
                    let fails = matches!(why, Some(Back::Failed(_)));
                    if fails || self.failed == Some(self.new) {
                        (self.failed, self.same) = (Some(self.new), true);
                    }
                    self.identity = self.new;
                    (self.other, self.back, self.ends) = (None, false, 0);
                }
                Some(Upkeep::ProbeWrite) => {}
                Some(Upkeep::TakeSnapshot | Upkeep::SkipSnapshot) => {
                    let rehearses = |it: &Upkeep| matches!(it, Upkeep::RehearseVersion(_));
                    assert!(!plan.steps().any(rehearses), "two jobs at once");
                }
                Some(step) => panic!("{step:?} in {self:?}"),
            }
        }
        self
    }

    fn cancel(&mut self) {
        assert!(self.lowering.written, "somebody else's");
        let needed = self.asked.line() == OLD.line()
            && self.runs.is_some_and(|it| it.line() > OLD.line())
            && !(self.same && self.failed == Some(self.asked));
        assert!(!needed, "{self:?}");
        self.lowering = Lowering::default();
    }

    fn set(&mut self, to: Version, quality: Quality) {
        assert_eq!(self.asked, to, "nobody asked for it");
        let silent =
            self.runs.is_some() && !self.serves(quality) && to.line() == self.identity.line();
        assert!(
            self.rehearsal == Rehearsal::Served(to) || silent || self.trial == Trial::Skipped,
            "not rehearsed"
        );
        assert_eq!(self.other, None, "two changes at once");
        let tried = self.failed == Some(to) && self.same;
        assert!(!tried, "a second attempt with the same document");
        self.other = Some(self.identity);
        self.identity = to;
        self.ends = 0;
    }

    fn start(&mut self) {
        if self.is_too_old(self.identity) || self.cannot_read(self.identity) {
            self.runs = None; // the guard refuses
            return;
        }
        self.runs = Some(self.identity);
        self.long = false;
    }

    /// Time passes, and everything that runs does what it does.
    fn later(mut self, quality: Quality) -> World {
        if let Rehearsal::UnderWay(to) = self.rehearsal {
            let bad = to == self.new && quality == Quality::FailsOnTheCopy;
            self.rehearsal = if bad {
                (self.failed, self.same) = (Some(to), true);
                Rehearsal::None
            } else {
                Rehearsal::Served(to)
            };
        }
        let ends = matches!(quality, Quality::Ends | Quality::ServesThenEnds);
        let newer = self.runs.is_some_and(|it| it.line() > OLD.line());
        if newer && self.serves(quality) {
            self.data = if self.lowering.enabled {
                Data::Both
            } else {
                Data::Newer
            };
        }
        // An etcd of the older line ends the downgrade once it serves.
        self.lowering.enabled &= newer || self.runs.is_none();
        if self.runs == Some(self.new) && ends {
            self.end();
        } else {
            self.long = true;
        }
        self
    }

    /// etcd ends by itself.
    fn end(&mut self) {
        self.runs = None;
        self.long = false;
        self.ends = (self.ends + u32::from(self.other.is_some())).min(ENDS_MAX);
    }

    /// What somebody or something may do at any moment.
    fn happens(self, quality: Quality) -> Vec<World> {
        let mut all: Vec<World> = [OLD, self.new, self.other_asked]
            .into_iter()
            .filter(|it| *it != self.asked)
            .map(|asked| World {
                asked,
                same: false,
                ..self
            })
            .collect();
        let forgets = World {
            rehearsal: Rehearsal::None,
            ends: 0,
            long: false,
            ..self
        };
        let mut killed = self;
        killed.end();
        let cut = World {
            runs: None,
            ..forgets
        };
        let expired = World {
            rehearsal: match self.rehearsal {
                Rehearsal::Served(_) => Rehearsal::None,
                other => other,
            },
            ..self
        };
        let anew = World {
            data: match (self.data, self.runs) {
                (Data::Older, Some(_)) => Data::Both,
                (data, _) => data,
            },
            ..self
        };
        all.extend([self.later(quality), forgets, killed, cut, expired, anew]);
        // Somebody's hand.
        if self.runs.is_some_and(|it| it.line() > OLD.line()) && self.serves(quality) {
            let mut hand = self;
            hand.lowering.enabled = !hand.lowering.enabled;
            all.push(hand);
        }
        all
    }

    /// What runs may open the data.
    fn check(self) {
        let may = |it: Version| it == self.identity || Some(it) == self.other;
        assert!(self.runs.is_none_or(may), "a third version runs: {self:?}");
        let unread = self.runs.is_some_and(|it| self.cannot_read(it));
        assert!(!unread, "an etcd that ends at the log: {self:?}");
        let old = self.runs.is_some_and(|it| self.is_too_old(it));
        assert!(!old, "an older line opened the data: {self:?}");
    }
}

/// From here the operator alone brings it to rest: with the version that the document asks for, where that one is good.
fn comes_to_rest(world: World, quality: Quality) -> World {
    let mut path = Vec::new();
    rest(world, quality, &mut path, &HashSet::new())
}

/// The same, by this path; of the `known` it was seen.
fn rest(
    mut world: World,
    quality: Quality,
    path: &mut Vec<World>,
    known: &HashSet<World>,
) -> World {
    for _ in 0..40 {
        if known.contains(&world) {
            return world;
        }
        path.push(world);
        let plan = plan(&world.spec(), &world.observed(quality));
        let next = world.act(&plan, quality, usize::MAX).later(quality);
        let same = next == world && next.other.is_none() && !next.lowering.written;
        if same && next.serves(quality) {
            let given_up = world.failed == Some(world.asked) && world.same;
            // What somebody else enabled, and the document does not ask for, is told.
            let told = world.lowering.enabled;
            assert!(
                world.runs == Some(world.asked) || given_up || told,
                "rests with {world:?}"
            );
            return world;
        }
        // A newer line that does not serve has no way back.
        if same && next.data == Data::Newer && next.identity == next.new && quality != Quality::Good
        {
            return world;
        }
        world = next;
    }
    // Who asks for the version before gets it, also where that did not serve before.
    if quality != Quality::Good && world.back && world.identity == world.new {
        return world;
    }
    // One that never serves for long cannot be asked to lower its data, nor be copied: only a restore leads back.
    if quality == Quality::ServesThenEnds
        && world.identity == world.new
        && world.new.line() > OLD.line()
    {
        return world;
    }
    panic!("never comes to rest: {world:?}");
}

#[test]
fn no_sequence_within_a_line_leads_to_a_third_version_or_a_second_attempt() {
    println!("{}", explore(NEW[0], OTHER[0]));
}

#[test]
fn no_sequence_over_lines_leads_to_a_third_version_or_a_second_attempt() {
    println!("{}", explore(NEW[1], OTHER[0]));
}

#[test]
fn no_sequence_in_the_newer_line_leads_to_a_third_version_or_a_second_attempt() {
    println!("{}", explore(NEW[1], OTHER[1]));
}

/// Every world that can be reached.
fn explore(new: Version, other: Version) -> String {
    let mut told = String::new();
    let qualities = [
        Quality::Good,
        Quality::FailsOnTheCopy,
        Quality::Ends,
        Quality::Silent,
        Quality::ServesThenEnds,
    ];
    let cases = qualities.map(|it| [(it, Trial::Wanted), (it, Trial::Skipped)]);
    for (quality, trial) in cases.into_iter().flatten() {
        let begin = World {
            new,
            other_asked: other,
            trial,
            ..World::BEGIN
        };
        let mut seen = HashSet::from([begin]);
        let mut queue = VecDeque::from([begin]);
        let (mut changed, mut back) = (0, 0);
        let mut known = HashSet::new();
        while let Some(world) = queue.pop_front() {
            world.check();
            let now = world.observed(quality);
            let plan = plan(&world.spec(), &now);
            let told = status(&world.spec(), &now, &plan);
            let done = told.condition(Kind::Progressing).reason == "Converged";
            let is_so = world.identity == world.asked && world.other.is_none();
            assert!(!done || is_so, "told as done: {world:?} {plan:?}");
            let count = plan.upkeep.len() + usize::from(plan.interruption.is_some());
            changed += usize::from(plan.steps().any(|it| matches!(it, Upkeep::SetVersion(_))));
            back += usize::from(plan.steps().any(|it| *it == Upkeep::TakeVersionBack));
            let acted = (0..=count).map(|it| world.act(&plan, quality, it));
            for next in acted.chain(world.happens(quality)) {
                if seen.insert(next) {
                    queue.push_back(next);
                }
            }
            let mut path = Vec::new();
            rest(world, quality, &mut path, &known);
            known.extend(path);
        }
        assert!(changed > 0 && back > 0, "{quality:?}");
        let _ = writeln!(
            told,
            "{new}, {other}, {quality:?}, trial {trial:?}: {} states, {changed} change the version, {back} take it back",
            seen.len()
        );
    }
    told
}

#[test]
fn a_version_that_fails_leaves_the_one_before() {
    for quality in [
        Quality::FailsOnTheCopy,
        Quality::Ends,
        Quality::Silent,
        Quality::ServesThenEnds,
    ] {
        let asked = World {
            asked: NEW[0],
            ..World::BEGIN
        };
        let rests = comes_to_rest(asked, quality);
        assert_eq!(
            (rests.runs, rests.failed),
            (Some(OLD), Some(NEW[0])),
            "{quality:?}"
        );
    }
}

/// From a newer line only a snapshot leads back, so one has to be taken and kept.
#[test]
fn no_newer_line_without_a_snapshot_that_is_kept() {
    let asked = World {
        asked: NEW[1],
        ..World::BEGIN
    };
    let mut spec = asked.spec();
    let mut seen = asked.observed(Quality::Good);
    let begins = |plan: &Plan| {
        plan.steps()
            .any(|it| *it == Upkeep::RehearseVersion(NEW[1]))
    };
    assert!(begins(&plan(&spec, &seen)));
    spec.backup = None;
    assert!(begins(&plan(&spec, &seen)), "a host keeps it");
    seen.backups.elsewhere = true; // in Kubernetes only a worker would
    let held = plan(&spec, &seen);
    assert_eq!(held.hold(), Some(&Hold::UpgradeNeedsBackup(NEW[1])));
    assert_eq!(held.interruption, None);
    // Neither from an etcd of which none can be taken.
    let spec = asked.spec();
    seen.instances[0].service = Service::UNKNOWN;
    seen.instances[0].tries.unserved = Unanswered {
        looks: SERVES_WITHIN_LOOKS,
        seconds: serves_within(0) + 1,
    };
    assert_eq!(plan(&spec, &seen).interruption, None);
    let patch = ClusterSpec {
        version: Some(NEW[0]),
        ..spec
    };
    assert_eq!(plan(&patch, &seen).act(), Some(Act::Restart));
}

fn of_age(seconds: u64) -> SnapshotSeen {
    SnapshotSeen {
        revision: 1,
        created: None,
        level: 2,
        bytes: 1,
        seconds: Some(seconds),
        version: None,
    }
}

/// etcd serves on, and the way out is told: an edit back ends the downgrade.
#[test]
fn a_downgrade_that_etcd_does_not_carry_out_is_told() {
    let lowers = World {
        new: NEW[1],
        asked: OLD,
        identity: NEW[1],
        runs: Some(NEW[1]),
        data: Data::Newer,
        lowering: Lowering {
            enabled: true,
            written: true,
        },
        ..World::BEGIN
    };
    let plan_after = |world: World, seconds: u64| {
        let mut seen = world.observed(Quality::Good);
        seen.instances[0].tries.lowering = seconds;
        plan(&world.spec(), &seen)
    };
    let waits = plan_after(lowers, LOWERS_WITHIN_SECONDS);
    assert_eq!((waits.hold(), waits.act()), (None, None));
    let told = plan_after(lowers, LOWERS_WITHIN_SECONDS + 1);
    let hold = Hold::DowngradeStalled(NEW[1], OLD);
    assert_eq!((told.hold(), told.act()), (Some(&hold), None));
    assert!(hold.next_step().contains(&NEW[1].to_string()));
    let back = World {
        asked: NEW[1],
        ..lowers
    };
    let ends = plan_after(back, LOWERS_WITHIN_SECONDS + 1);
    assert!(ends.steps().any(|it| *it == Upkeep::CancelDowngrade));
    assert_eq!(ends.hold(), None);
}

/// `kubectl wait --for=condition=Progressing=false` ends when an edit is carried out or held, not before.
#[test]
fn an_edit_that_waits_is_not_told_as_done() {
    let asked = World {
        asked: NEW[0],
        ..World::BEGIN
    };
    let told_as = |reason, change: fn(&mut Observed)| {
        let mut seen = asked.observed(Quality::Good);
        seen.backups.due_in = Some(3600);
        change(&mut seen);
        let plan = plan(&asked.spec(), &seen);
        assert_eq!((plan.hold(), plan.act()), (None, None));
        let told = status(&asked.spec(), &seen, &plan);
        let it = told.condition(Kind::Progressing);
        assert_eq!((it.verdict, it.reason), (Verdict::True, reason), "{plan:?}");
        it.message.to_string()
    };
    let told = |change| told_as("Upgrading", change);
    let words = told(|it| it.backups.busy = true);
    assert!(
        words.ends_with("begins once the work on snapshots has ended"),
        "{words}"
    );
    // The Pod before ends.
    let words = told_as("Acting", |it| it.instances[0].process = Process::Unknown);
    assert!(words.ends_with("still runs"), "{words}");
    let words = told(|it| it.upgrade = Upgrade::RehearsingImage);
    assert_eq!(
        words,
        "another image of etcd 3.6.14 is tried on a copy of the data"
    );
    let words = told(|it| it.upgrade = Upgrade::Rehearsing { to: OTHER[0] });
    assert!(
        words.ends_with("begins once the rehearsal of 3.6.16 has ended"),
        "{words}"
    );
    let words = told(|it| {
        let details = it.instances[0].service.details.as_mut().unwrap();
        details.downgrade_to = Some(Version::new(3, 5, 0));
    });
    assert!(
        words.ends_with("which somebody enabled: etcdctl downgrade cancel"),
        "{words}"
    );
}

/// Where no older line opens the data any more, the hold names the snapshot that one can read, and what it lacks.
#[test]
fn what_leads_back_from_a_newer_line_is_named_and_counted() {
    let stuck = World {
        new: NEW[1],
        asked: NEW[1],
        identity: NEW[1],
        data: Data::Newer,
        runs: None,
        failed: Some(NEW[1]),
        same: true,
        ..World::BEGIN
    };
    let named = |revision, level, version| SnapshotNamed {
        name: "any".try_into().unwrap(),
        seen: SnapshotSeen {
            revision,
            level,
            version,
            ..of_age(60)
        },
    };
    let next = |reach: Reach, all: &[SnapshotNamed]| {
        let mut seen = stuck.observed(Quality::ServesThenEnds);
        seen.backups.named = all.iter().cloned().collect();
        seen.instances[0].tries.reach = reach;
        let plan = plan(&stuck.spec(), &seen);
        let hold = plan.hold().unwrap();
        assert_eq!(hold.reason(), "UpgradeStuck");
        hold.next_step().to_string()
    };
    let reach = |at_least, at_most| Reach {
        begun: 0,
        at_least,
        at_most,
    };
    // Of the newer line, damaged, of nobody knows what; then the one.
    let all = [
        named(90, 3, Some(NEW[1])),
        named(80, 2, Some(OLD)),
        named(70, 3, None),
        named(60, 3, Some(OLD)),
        named(50, 3, Some(OLD)),
    ];
    for (reach, lacks) in [
        (reach(Some(60), Some(60)), "lacks no write"),
        (reach(Some(61), Some(61)), "lacks 1 write"),
        (reach(Some(62), Some(67)), "lacks 2 to 7 writes"),
        (reach(Some(60), Some(67)), "lacks at most 7 writes"),
        (reach(Some(67), Some(67)), "lacks 7 writes"),
        (reach(None, Some(67)), "lacks at most 7 writes"),
        (reach(Some(67), None), "lacks at least 7 writes"),
        (
            reach(Some(60), None),
            "may lack writes, nobody knows how many",
        ),
        (reach(None, None), "may lack writes, nobody knows how many"),
    ] {
        let next = next(reach, &all);
        let words = format!("restore r60, which {lacks}: ");
        assert!(next.contains(&words), "{next}");
    }
    // Of a life before a restore that jumped.
    let later = Reach {
        begun: 1_000_000_060,
        at_least: Some(1_000_000_065),
        at_most: Some(1_000_000_065),
    };
    assert!(next(later, &all).contains("restore r60, which may lack writes"));
    let next = next(reach(Some(60), Some(60)), &all[..3]);
    assert!(!next.contains("restore r"), "{next}");
}

/// The word names one version, and a newer line still needs what leads back.
#[test]
fn a_trial_is_skipped_for_the_version_that_the_document_names() {
    let plan_for = |skip: Version, to: Version, age: Option<u64>| {
        let asked = World {
            asked: to,
            ..World::BEGIN
        };
        let spec = ClusterSpec {
            skip_rehearsal: Some(skip),
            ..asked.spec()
        };
        let mut seen = asked.observed(Quality::Good);
        seen.backups.verified = age.map(of_age);
        seen.upgrade = Upgrade::NotRehearsed {
            to,
            why: "no room".try_into().unwrap(),
            retry_in: 60,
        };
        plan(&spec, &seen)
    };
    let changes = |it: &Plan| {
        let sets = it.steps().any(|it| matches!(it, Upkeep::SetVersion(_)));
        assert_eq!(sets, it.act() == Some(Act::Restart));
        assert_ne!(
            sets,
            it.hold()
                .is_some_and(|it| it.reason() == "UpgradeNotRehearsed")
        );
        sets
    };
    assert!(changes(&plan_for(NEW[0], NEW[0], None)));
    assert!(!changes(&plan_for(OTHER[0], NEW[0], Some(0))));
    assert!(changes(&plan_for(NEW[1], NEW[1], Some(SKIPS_SECONDS))));
    assert!(!changes(&plan_for(NEW[1], NEW[1], Some(SKIPS_SECONDS + 1))));
    assert!(!changes(&plan_for(NEW[1], NEW[1], None)));
}

/// A Pod of the version before that does not run says nothing of the one that is to be started.
#[test]
fn what_another_version_is_refused_for_takes_none_back() {
    let asked = World {
        asked: NEW[0],
        identity: NEW[0],
        other: Some(OLD),
        runs: None,
        ..World::BEGIN
    };
    for (made, back) in [(OLD, false), (NEW[0], true)] {
        let mut seen = asked.observed(Quality::Good);
        let it = &mut seen.instances[0];
        it.made_for = Some(MadeFor {
            settings: asked.spec().settings,
            version: made,
        });
        it.refused = Some(Refusal::Unplaceable {
            reason: "CrashLoop",
            why: "it ended 3 times".try_into().unwrap(),
            next: "see its log",
        });
        it.restart_in = 60;
        let next = plan(&asked.spec(), &seen);
        let taken = next.steps().any(|it| *it == Upkeep::TakeVersionBack);
        assert_eq!((taken, next.act().is_some()), (back, !back), "{next:?}");
    }
}

/// Rule D22: what is not well is not changed.
#[test]
fn no_change_begins_with_an_alarm_a_learner_or_a_member_that_does_not_serve() {
    let asked = World {
        asked: NEW[0],
        ..World::BEGIN
    };
    let steps = |change: &dyn Fn(&mut Observed)| {
        let mut seen = asked.observed(Quality::Good);
        change(&mut seen);
        let plan = plan(&asked.spec(), &seen);
        let begins = |it: &Upkeep| matches!(it, Upkeep::RehearseVersion(_) | Upkeep::SetVersion(_));
        plan.steps().any(begins)
    };
    assert!(steps(&|_| {}), "it is well");
    let joined = |role: Role, health: Health| {
        move |it: &mut Observed| {
            let Membership::Known(members) = &mut it.membership else {
                panic!("{it:?}");
            };
            members
                .insert(world::member(9, "test-1", role, health))
                .unwrap();
        }
    };
    let not_well: [&dyn Fn(&mut Observed); 5] = [
        &|it| it.instances[0].service.alarms.no_space = true,
        &|it| it.instances[0].service.alarms.corrupt = true,
        &joined(Role::Learner { caught_up: true }, Health::Serving),
        &joined(Role::Voter, Health::Failed),
        &|it| it.membership = Membership::Unreachable,
    ];
    for (number, change) in not_well.into_iter().enumerate() {
        assert!(!steps(change), "{number}");
    }
}

/// What serves, comes up or may be started is not given up for a version that is not there.
#[test]
fn nothing_goes_back_to_a_version_that_is_not_in_the_store() {
    for (runs, quality) in [
        (Some(NEW[0]), Quality::Good),
        (Some(NEW[0]), Quality::Silent),
        (None, Quality::Good),
    ] {
        let changing = World {
            asked: OLD,
            identity: NEW[0],
            other: Some(OLD),
            runs,
            long: false,
            ..World::BEGIN
        };
        let plan_with = |binary: Binary| {
            let mut seen = changing.observed(quality);
            seen.instances[0].tries.asked_binary = Some(binary);
            plan(&changing.spec(), &seen)
        };
        let goes = |it: &Plan| it.steps().any(|it| *it == Upkeep::TakeVersionBack);
        assert!(goes(&plan_with(Binary::Ready)));
        let stays = plan_with(Binary::Missing(None));
        assert!(!goes(&stays), "{runs:?} {quality:?} {stays:?}");
        let Some(Hold::Start(Refusal::BinaryMissing { .. })) = stays.hold() else {
            assert!(runs.is_none() && stays.hold().is_none(), "{stays:?}");
            assert!(
                stays.steps().any(|it| matches!(it, Upkeep::Start(_))),
                "{stays:?}"
            );
            continue;
        };
        assert_eq!(stays.act(), None);
    }
}

/// Somebody empties the store between the trial and the change.
#[test]
fn what_was_tried_and_is_gone_stops_nobody() {
    let tried = World {
        asked: NEW[0],
        rehearsal: Rehearsal::Served(NEW[0]),
        ..World::BEGIN
    };
    let plan_with = |binary: Binary| {
        let mut seen = tried.observed(Quality::Good);
        seen.instances[0].tries.asked_binary = Some(binary);
        plan(&tried.spec(), &seen)
    };
    let goes = |it: &Plan| it.steps().any(|it| *it == Upkeep::SetVersion(NEW[0]));
    assert!(goes(&plan_with(Binary::Ready)));
    let stays = plan_with(Binary::Missing(None));
    assert!(!goes(&stays) && stays.act().is_none(), "{stays:?}");
    let hold = stays.hold();
    assert!(
        matches!(hold, Some(Hold::Start(Refusal::BinaryMissing { .. }))),
        "{stays:?}"
    );
}

/// Somebody put an older identity beside newer data: no older etcd could open it, so the one that the document names may.
#[test]
fn data_of_a_newer_line_gets_the_version_that_can_open_it() {
    let held = World {
        runs: None,
        data: Data::Newer,
        new: NEW[1],
        ..World::BEGIN
    };
    let seen = held.observed(Quality::Good);
    let refused = plan(&held.spec(), &seen);
    assert_eq!(refused.hold().map(Hold::reason), Some("DataNewer"));
    let asked = World {
        asked: NEW[1],
        ..held
    };
    let next = plan(&asked.spec(), &asked.observed(Quality::Good));
    let sets = |it: &Upkeep| *it == Upkeep::SetVersion(NEW[1]);
    assert!(next.steps().any(sets), "{next:?}");
}

/// No older etcd could open its data, so there is nothing to interrupt it for.
#[test]
fn a_newer_line_that_serves_is_never_taken_back() {
    for (new, back) in [(NEW[0], true), (NEW[1], false)] {
        let changed = World {
            new,
            asked: OLD,
            identity: new,
            other: Some(OLD),
            runs: Some(new),
            long: false,
            ends: ENDS_MAX,
            data: Data::Both,
            ..World::BEGIN
        };
        let next = plan(&changed.spec(), &changed.observed(Quality::Good));
        let taken = next.steps().any(|it| *it == Upkeep::TakeVersionBack);
        assert_eq!((taken, next.act().is_some()), (back, back), "{next:?}");
    }
}

/// Another line would find in the database what its predecessor had not written yet.
#[test]
fn a_restart_kills_etcd_only_where_its_line_stays() {
    let versions = [OLD, NEW[0], OTHER[0], NEW[1], Version::new(3, 9, 0)];
    let others = || versions.into_iter().map(Some).chain([None]);
    for (running, born) in versions
        .iter()
        .flat_map(|it| versions.map(|born| (*it, born)))
    {
        for (other, asked) in others().flat_map(|it| others().map(move |asked| (it, asked))) {
            let mut instance = running_instance();
            if let Process::Running { version, .. } = &mut instance.process {
                *version = running;
            }
            instance.facts.identity = Some(Identity {
                version: born,
                other_version: other,
                ..identity(true)
            });
            let spec = ClusterSpec {
                version: asked,
                ..spec(&["edge-0"])
            };
            let all = [Some(running), Some(born), other, asked];
            let all_of = |minor| all.into_iter().flatten().all(|it| it.minor == minor);
            let stays = all_of(6) || all_of(7); // nobody knows 3.9
            let killed = killed_after(&spec, &instance).is_some();
            assert_eq!(killed, stays, "{all:?}");
        }
    }
    assert_eq!(killed_after(&spec(&["edge-0"]), &stopped()), None);
}
