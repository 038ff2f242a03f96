//! Scenario files: what was seen, and the plan and status that follow, as text.
//!
//! A file holds scenes: lines of input, `----`, the expected output, an empty line.
//! `UPDATE_EXPECT=1 cargo test --test plan` rewrites the output; the diff is for the reviewer.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a test"
)]

mod world;

use std::fmt::Write as _;
use std::path::Path;

use etcd_operator::cluster::{ClusterId, Health, MemberSet, Role, Timestamp};
use etcd_operator::diagnosis;
use etcd_operator::explain::{Found, KINDS, entries, find};
use etcd_operator::observed::{
    BackupFailure, CaState, Clock, DestinationSeen, DocumentSeen, Instance, LastServed, Looker,
    MadeFor, Membership, Observed, Pairs, Pause, Process, Proposals, Reading, Regain, RestorePhase,
    Restoring, Service, Writing,
};
use etcd_operator::plan::plan;
use etcd_operator::spec::backup::Source;
use etcd_operator::spec::{ClusterSpec, Settings};
use etcd_operator::start::{
    AddressConflict, Binary, CertificatesUsable, DataDir, Filesystem, How, Room, Unserved, Writable,
};
use etcd_operator::status::{Kind, Verdict, status};
use world::{
    CLUSTER, DAY, NOW, SETTINGS, data, identity, member, observed, running, running_instance,
    single, spec, stopped,
};

struct Scene {
    spec: ClusterSpec,
    seen: Observed,
}

fn taken_by(holder: &str) -> AddressConflict {
    AddressConflict {
        address: "127.0.0.1:2379".try_into().unwrap(),
        not_ours: false,
        denied: false,
        holder: holder.try_into().unwrap(),
        k3s_embedded: holder == "k3s",
    }
}

fn unserved(there: &str) -> Unserved {
    Unserved {
        addresses: "192.168.1.7".try_into().unwrap(),
        there: there.parse().ok(),
    }
}

impl Scene {
    fn new() -> Self {
        let mut seen = observed(stopped(), Membership::Unreachable);
        seen.instances[0].member = world::name("test-0");
        Scene {
            spec: spec(&["test-0"]),
            seen,
        }
    }

    fn host(&mut self) -> &mut Instance {
        &mut self.seen.instances[0]
    }

    fn line(&mut self, line: &str) {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        for word in rest.split_whitespace() {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            match verb {
                "spec" => self.spec_word(key, value),
                "host" => self.host_word(key, value),
                "data" => self.data_word(key, value),
                "etcd" => self.etcd_word(key, value),
                "certificates" => self.certificates_word(key, value),
                "members" => self.members_word(key, value),
                "backups" => self.backups_word(key, value),
                "restore" => self.restore_word(key, value),
                "paused" => self.paused_word(key, value),
                _ => panic!("unknown verb in: {line}"),
            }
        }
    }

    fn spec_word(&mut self, key: &str, value: &str) {
        match key {
            "size" => self.spec.size = value.parse().unwrap(),
            "members" => self.spec = spec(&value.split(',').collect::<Vec<_>>()),
            "paused" => self.spec.paused = true,
            "version" => self.spec.version = Some(value.parse().unwrap()),
            "no-version" => self.spec.version = None,
            "edited" => self.spec.settings = Settings(99),
            "no-space" => self.spec.repair_no_space = value == "repair",
            "quota-mib" => self.spec.quota = Some(value.parse::<u64>().unwrap() << 20),
            "refused" => {
                self.seen.document = DocumentSeen::Refused {
                    reason: "SpecInvalid",
                    why: value.replace('_', " ").as_str().try_into().unwrap(),
                }
            }
            "name" => self.spec.name = value.try_into().unwrap(),
            "backup" => self.spec.backup = Some(world::backup(value)),
            "bootstrap" if value == "empty" => self.spec.bootstrap = Some(Source::Empty),
            "bootstrap" => self.spec.bootstrap = Some(Source::Latest),
            "recovery" => self.spec.restore_when_damaged = true,
            _ => panic!("spec {key}"),
        }
    }

    fn host_word(&mut self, key: &str, value: &str) {
        let host = self.host();
        match (key, value) {
            ("new", _) => {
                host.facts.identity = None;
                host.facts.marker = None;
                host.facts.data = DataDir::EMPTY;
                host.certificates.pairs = Pairs::Missing;
                self.seen.membership = Membership::Unbootstrapped;
            }
            ("identity" | "marker", _) => self.identity_word(key, value),
            ("waits", made_for) => {
                host.restart_in = 5;
                host.made_for = Some(MadeFor {
                    settings: world::SETTINGS,
                    version: made_for.parse().unwrap(),
                });
            }
            ("binary", "missing") => host.facts.binary = Binary::Missing(None),
            ("binary", stored) if stored.starts_with("missing/") => {
                let stored = stored["missing/".len()..].parse().unwrap();
                host.facts.binary = Binary::Missing(Some(stored));
            }
            ("installed", "none") => host.newest_installed = None,
            ("filesystem", _) => host.facts.filesystem = Filesystem::Unsafe("tmpfs"),
            ("disk", how) => {
                host.facts.writable = match how {
                    "read-only" => Writable::ReadOnly,
                    "stalled" => Writable::Stalled,
                    "denied" => Writable::Denied,
                    _ => Writable::Missing,
                };
                host.writable = host.facts.writable;
            }
            // Where the document asks the data to be, and etcd's is elsewhere.
            ("disk-asked", _) => host.facts.writable = Writable::Missing,
            ("served-before", how) => {
                host.last_served = Some(LastServed {
                    facts: world::facts(),
                    elsewhere: how == "elsewhere",
                });
            }
            ("port-taken-by", holder) => host.facts.conflict = Some(taken_by(holder)),
            ("failed-starts", number) => {
                host.facts.history.failed = number.parse().unwrap();
                host.facts.history.window_left = 300;
            }
            ("ended-with", text) => {
                let diagnosis = diagnosis::diagnose(&text.replace('-', " ")).unwrap();
                host.facts.history = world::failed(1, Some(diagnosis.text));
            }
            ("ended-by-signal", number) => {
                let how = How::Signal(number.parse().unwrap());
                host.facts.history.ending.how = how;
            }
            ("last-words", words) => {
                let words = words.replace('-', " ");
                host.facts.history.ending.words = words.as_str().try_into().unwrap();
            }
            ("back-off", seconds) => host.restart_in = seconds.parse().unwrap(),
            ("clock", "unsynchronised") => self.seen.clock = Clock::Unsynchronised,
            ("clock", "behind") => self.seen.clock = Clock::BehindKnown { newest: NOW },
            ("machine", "another") => host.machine_changed = true,
            ("kept", "elsewhere") => host.kept_elsewhere = true,
            ("address", there) => host.unserved = Some(unserved(there)),
            ("operator", "none") => self.seen.looker = Looker::Command,
            ("process", "foreign") => host.process = Process::Foreign { pid: Some(4711) },
            ("process", "unknown") => host.process = Process::Unknown,
            ("terminating", _) => host.terminating = value.parse().unwrap(),
            _ => panic!("host {key}={value}"),
        }
    }

    fn identity_word(&mut self, key: &str, value: &str) {
        let host = self.host();
        match (key, value) {
            ("identity", "unreadable") => {
                let why = "failed to read identity.json";
                host.facts.unreadable = Some(why.try_into().unwrap());
            }
            ("identity", "none") => host.facts.identity = None,
            ("identity", "unserved") => {
                host.facts.identity = Some(identity(false));
                host.facts.marker = Some(identity(false));
            }
            ("marker", "none") => host.facts.marker = None,
            _ => panic!("host {key}={value}"),
        }
    }

    fn data_word(&mut self, key: &str, value: &str) {
        if key == "log-ends-at" {
            self.host().facts.data.log.last_index = Some(value.parse().unwrap());
            return;
        }
        if key == "seen" {
            self.host().facts.seen = Some(value.parse().unwrap());
            return;
        }
        if key == "examined" {
            self.host().facts.data.examining = true;
            return;
        }
        if key == "torn" || key == "full" {
            self.host().facts.room = Room {
                free: Some(value.parse::<u64>().unwrap() << 20),
                repair: if key == "torn" { 64_000_000 } else { 0 },
                resume: 80 << 20,
                join: 200 << 20,
            };
            return;
        }
        if key == "log-damaged" {
            self.host().facts.data.damage = Some(world::damage());
            return;
        }
        self.host().facts.data = match key {
            "empty" => DataDir::EMPTY,
            "no-log" => data(false, true, None),
            "no-database" => DataDir {
                wal_from_start: false,
                ..data(true, false, Some(CLUSTER))
            },
            "only-log" => data(true, false, Some(CLUSTER)),
            "of-another-cluster" => data(true, true, Some(ClusterId(0xbad))),
            "beside-another-etcd" => {
                self.host().facts.strange_etcd = Some("/data/default".try_into().unwrap());
                DataDir::EMPTY
            }
            "unreadable" => DataDir {
                unreadable: Some("member/wal: Permission denied".try_into().unwrap()),
                ..DataDir::EMPTY
            },
            "in-use" => DataDir {
                in_use: true,
                ..data(true, true, Some(CLUSTER))
            },
            _ => panic!("data {key}"),
        }
    }

    fn etcd_word(&mut self, key: &str, value: &str) {
        if !matches!(self.host().process, Process::Running { .. }) {
            let Instance {
                process, service, ..
            } = running_instance();
            (self.host().process, self.host().service) = (process, service);
            self.seen.membership = single();
        }
        let service = &mut self.host().service;
        match (key, value) {
            ("serves", _) => {}
            ("starts", _) => {
                *service = Service::UNKNOWN;
                service.read = Reading::Failed("Connection refused".try_into().unwrap());
                self.host().process = running(SETTINGS, 1);
                self.seen.membership = Membership::Unbootstrapped;
            }
            ("frozen", _) => {
                (service.read, service.details) = (Reading::TimedOut, None);
                self.seen.membership = Membership::Unreachable;
            }
            ("auth", _) => {
                service.read = Reading::NotPermitted("permission denied".try_into().unwrap());
                service.write = Writing::NotTried;
            }
            ("joined-by", how) => self.joined_by(how),
            ("write", "untried") => service.write = Writing::NotTried,
            ("write", why) => service.write = Writing::Failed(why.try_into().unwrap()),
            ("alarm", "nospace") => service.alarms.no_space = true,
            ("alarm", "corrupt") => service.alarms.corrupt = true,
            ("regained-too-little", seconds) => {
                let seconds = seconds.parse().unwrap();
                let attempt = Regain {
                    revision: 10,
                    in_use: 900 << 20,
                    attempts: 1,
                    seconds,
                };
                service.alarms.no_space = true;
                service.details.as_mut().unwrap().db_in_use = 900 << 20;
                self.host().regain = Some(attempt);
            }
            ("deleted-since", _) => {
                let details = service.details.as_mut().unwrap();
                details.revision += 1;
                details.db_in_use = 100 << 20;
            }
            ("database-mib", mib) => {
                service.details.as_mut().unwrap().db_size = mib.parse::<u64>().unwrap() << 20;
            }
            ("quota-mib", mib) => {
                let Process::Running { quota, .. } = &mut self.host().process else {
                    panic!()
                };
                *quota = mib.parse::<u64>().unwrap() << 20;
            }
            ("proposals", "stuck") => service.proposals = Proposals::Stuck,
            ("cluster", "another") => service.details.as_mut().unwrap().cluster = ClusterId(0xbad),
            ("version", version) => {
                let version = version.parse().unwrap();
                self.host().process = Process::Running {
                    pid: 100,
                    settings: SETTINGS,
                    version,
                    quota: world::QUOTA,
                    seconds: 1000,
                };
                self.spec.version = Some(version);
            }
            _ => panic!("etcd {key}={value}"),
        }
    }

    /// Somebody added a member: a `learner`, a `voter` that does not run, or one that votes.
    fn joined_by(&mut self, how: &str) {
        let role = match how {
            "learner" => Role::Learner { caught_up: false },
            _ => Role::Voter,
        };
        let Membership::Known(mut members) = single() else {
            panic!()
        };
        let stranger = member(0xbad, "", role, Health::Unknown);
        members.insert(stranger).unwrap();
        self.seen.membership = match how {
            "voter" => {
                let service = &mut self.host().service;
                service.read = Reading::TimedOut;
                service.details = None;
                Membership::Unconfirmed(members)
            }
            _ => Membership::Known(members),
        };
    }

    fn certificates_word(&mut self, key: &str, value: &str) {
        let now = NOW;
        let certificates = &mut self.host().certificates;
        match (key, value) {
            ("expired", _) => certificates.pairs = Pairs::Expired,
            ("not-yet-valid", _) => certificates.pairs = Pairs::NotYetValid,
            ("broken", _) => certificates.pairs = Pairs::Broken,
            ("authority-damaged", _) => {
                certificates.authorities = CaState::Damaged;
                if value == "and-leaves-expired" {
                    certificates.pairs = Pairs::Expired;
                    self.host().facts.certificates = CertificatesUsable::No;
                }
            }
            ("authority-replaced", _) => certificates.authorities = CaState::Replaced,
            ("addresses-differ", _) => certificates.pairs = Pairs::AddressesDiffer,
            ("provisional", _) => {
                certificates.provisional = true;
                certificates.not_before = Timestamp(0);
            }
            ("days-left", days) => {
                certificates.not_after = Timestamp(now.0 + days.parse::<i64>().unwrap() * DAY);
                certificates.not_before = Timestamp(certificates.not_after.0 - 365 * DAY);
            }
            ("clients-due", _) => certificates.clients_due = true,
            ("issued-days-left", days) => {
                let end = Timestamp(now.0 + days.parse::<i64>().unwrap() * DAY);
                certificates.issued_earliest = Some(("k3s".try_into().unwrap(), end));
            }
            _ => panic!("certificates {key}"),
        }
    }

    fn backups_word(&mut self, key: &str, value: &str) {
        let backups = &mut self.seen.backups;
        let number = || value.parse().unwrap();
        let failure = |reason| {
            Some(BackupFailure {
                reason,
                why: value.replace('-', " ").as_str().try_into().unwrap(),
            })
        };
        match key {
            "due-in" => backups.due_in = Some(number()),
            "busy" => backups.busy = true,
            "last" => backups.last = Some(world::snapshot(value.parse().unwrap(), 3)),
            "verified" => {
                backups.last = Some(world::snapshot(value.parse().unwrap(), 3));
                backups.verified = backups.last;
            }
            "failed" => backups.failed = failure("SnapshotFailed"),
            "copy-failed" => backups.copy_failed = failure("CopyFailed"),
            "link-down" => {
                backups.copy_failed = failure(BackupFailure::LINK_DOWN);
                backups.copy_retry_every = 900;
            }
            "link-down-for" => backups.copy_failing = number(),
            "two-wait-for" => {
                let waits = number();
                let since = Timestamp(NOW.0 - i64::try_from(waits).unwrap());
                let destination = DestinationSeen {
                    place: "s3://edge/shops".try_into().unwrap(),
                    queued: (2, 1 << 20),
                    waits_since: Some(since),
                    waits,
                    ..DestinationSeen::default()
                };
                backups.destinations.push(destination).unwrap();
            }
            "age-unknown" => backups.destinations.last_mut().unwrap().waits_since = None,
            "retry-in" => backups.retry_in = number(),
            "copy-due" => backups.queued.0 = 1,
            "check-due" => self.spec.backup.as_mut().unwrap().verify_every = Some(3600),
            "asked" => backups.asked = true,
            "next-try-in" => backups.restore_retry_in = Some(number()),
            "of-before" => self.seen.predecessors = world::predecessors(value),
            "restore-failed" => {
                backups.restore_failed = Some(value.replace('-', " ").as_str().try_into().unwrap());
            }
            _ => panic!("backups {key}"),
        }
    }

    fn paused_word(&mut self, key: &str, value: &str) {
        let pause = self.seen.paused.get_or_insert(Pause {
            left: 0,
            seconds: 0,
            until: Some(NOW),
        });
        match key {
            "for" => pause.seconds = value.parse().unwrap(),
            "left" => pause.left = value.parse().unwrap(),
            "undated" => pause.until = None,
            _ => panic!("paused {key}"),
        }
    }

    fn restore_word(&mut self, key: &str, value: &str) {
        let phase = match key {
            "requested" => RestorePhase::Requested,
            "prepared" => RestorePhase::Prepared,
            "swapping" => RestorePhase::Swapping,
            "starting" => RestorePhase::Starting,
            "undoing" => RestorePhase::Undoing,
            _ => panic!("restore {key}"),
        };
        let restoring = Restoring {
            phase,
            busy: value == "busy" || value == "in-its-pod",
            stops_first: value == "stops-first" || value == "in-its-pod",
        };
        self.host().facts.restoring = restoring.holds_the_data();
        self.seen.restoring = Some(restoring);
    }

    /// `test-1=voter test-2=voter,failed test-3=learner`
    fn members_word(&mut self, key: &str, value: &str) {
        let mut members = match &self.seen.membership {
            Membership::Known(members) if self.seen.instances.is_empty() => members.clone(),
            _ => MemberSet::default(),
        };
        self.seen.instances.clear();
        let words: Vec<&str> = value.split(',').collect();
        let has = |it: &str| words.contains(&it);
        let role = if has("learner") {
            Role::Learner {
                caught_up: has("caught-up"),
            }
        } else {
            Role::Voter
        };
        let health = match () {
            () if has("failed") => Health::Failed,
            () if has("silent") => Health::Unknown,
            () => Health::Serving,
        };
        let id = key["test-".len()..].parse().unwrap();
        members.insert(member(id, key, role, health)).unwrap();
        self.seen.membership = Membership::Known(members);
    }

    fn outcome(&self) -> String {
        let plan = plan(&self.spec, &self.seen);
        let status = status(&self.spec, &self.seen, &plan);
        let mut text = String::new();
        if let Ok(Some(permit)) = &plan.change {
            writeln!(text, "change: {}", permit.step().describe_of(&self.seen)).unwrap();
        }
        if let Some(hold) = plan.hold() {
            writeln!(text, "hold {}: {hold}", hold.reason()).unwrap();
            writeln!(text, "next: {}", hold.next_step()).unwrap();
        }
        for step in plan.steps() {
            writeln!(text, "do: {}", step.describe(self.seen.membership.known())).unwrap();
        }
        if let Some(permit) = &plan.interruption {
            writeln!(text, "do: {}", permit.describe()).unwrap();
        }
        for kind in [
            Kind::Available,
            Kind::Degraded,
            Kind::BackupHealthy,
            Kind::CertificatesValid,
            Kind::DocumentAccepted,
        ] {
            let it = status.condition(kind);
            let usual = match kind {
                Kind::Available => false,
                Kind::BackupHealthy => it.reason == "NotConfigured",
                Kind::Degraded => it.verdict == Verdict::False,
                Kind::DocumentAccepted => it.reason == "InForce",
                _ => it.reason == "Valid" || self.seen.instances.is_empty(),
            };
            let nobody = self.seen.instances.is_empty() && kind == Kind::Available;
            if !usual && !nobody {
                writeln!(
                    text,
                    "{kind:?} {:?} {}: {}",
                    it.verdict, it.reason, it.message
                )
                .unwrap();
            }
        }
        writeln!(text, "look again in {:?}", plan.requeue_after).unwrap();
        text
    }
}

/// Runs every scene of a file; the file as it should be, and the number of scenes.
fn run(file: &str) -> (String, usize) {
    let mut fresh = String::new();
    let mut count = 0;
    for block in file.trim_end().split("\n\n") {
        let (input, rest) = match block.split_once("\n----") {
            Some((input, rest)) => (input, Some(rest)),
            None => (block, None),
        };
        let lines: Vec<&str> = input.lines().filter(|it| !it.starts_with('#')).collect();
        if rest.is_none() && lines.is_empty() {
            writeln!(fresh, "{block}\n").unwrap(); // the story of the file
            continue;
        }
        let mut scene = Scene::new();
        for line in lines {
            scene.line(line);
        }
        writeln!(fresh, "{input}\n----\n{}", scene.outcome()).unwrap();
        count += 1;
    }
    (format!("{}\n", fresh.trim_end()), count)
}

#[test]
fn scenarios_end_as_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut scenes = 0;
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let text = std::fs::read_to_string(entry.path()).unwrap();
        let (fresh, count) = run(&text);
        scenes += count;
        if text != fresh {
            if std::env::var_os("UPDATE_EXPECT").is_some() {
                std::fs::write(entry.path(), fresh).unwrap();
            } else {
                panic!(
                    "{} ends differently:\n{fresh}\nUPDATE_EXPECT=1 rewrites it",
                    entry.path().display()
                );
            }
        }
    }
    println!("{scenes} scenes");
    assert!(scenes >= 40);
}

const CONDITIONS: [&str; 8] = [
    "Available",
    "Progressing",
    "Degraded",
    "BackupHealthy",
    "CertificatesValid",
    "ClockTrusted",
    "DocumentAccepted",
    "HostHealthy",
];

/// Of a line such as `hold QuorumLost: ...` or `Available False NoAnswer: ...`.
fn reason_and_message(line: &str) -> Option<(&str, &str)> {
    let (head, message) = line.split_once(": ")?;
    let mut words = head.split(' ');
    let kind = words.next()?;
    let is_condition = CONDITIONS.contains(&kind);
    let reason = match words.next()? {
        "True" | "False" | "Unknown" if is_condition => words.next()?,
        reason if kind == "hold" => reason,
        _ => return None,
    };
    words.next().is_none().then_some((reason, message))
}

/// Whatever a person pastes of a status, `explain` finds what it is about.
#[test]
fn explain_finds_the_reason_of_each_message() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut pairs = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let text = std::fs::read_to_string(entry.path()).unwrap();
        let found = text.lines().filter_map(reason_and_message);
        pairs.extend(found.map(|(reason, message)| (reason.to_owned(), message.to_owned())));
    }
    let mut wrong = Vec::new();
    for (reason, message) in &pairs {
        let found = match find(message) {
            Found::Named(it) | Found::Like(it, _) => it.reason,
            Found::None(_) => "nothing",
        };
        // The words of a store or of the kernel alone; and a message that has the message of another reason in it.
        let is_others = ["CopyFailed", "SnapshotFailed"].contains(&reason.as_str());
        let has_another = message.contains(&format!("; {found}: "));
        if found != reason && !is_others && !has_another {
            wrong.push(format!("{reason} | {found} | {message}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        pairs.len(),
        wrong.join("\n")
    );
    assert!(pairs.len() > 100, "{}", pairs.len());
}

/// Without a word it lists all, each once, below the heading of its kind.
#[test]
fn explain_alone_lists_every_reason_by_its_kind() {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_etcd-operator"));
    let done = command.arg("explain").output().unwrap();
    assert!(done.status.success());
    let page = String::from_utf8(done.stdout).unwrap();
    for (_, title) in KINDS {
        assert_eq!(page.matches(&title.to_uppercase()).count(), 1, "{title}");
    }
    for it in entries() {
        let rows = page
            .lines()
            .filter(|row| row.split(' ').next() == Some(it.reason));
        assert_eq!(rows.count(), 1, "{}", it.reason);
    }
}

#[test]
fn planning_allocates_nothing() {
    let healthy = observed(running_instance(), single());
    let new = {
        let mut scene = Scene::new();
        scene.line("host new");
        scene.seen
    };
    let mut several = Scene::new();
    several.line("spec members=test-1,test-2,test-3,test-4,test-5,test-6,test-7");
    several.line("members test-1=voter test-2=voter test-3=voter test-4=voter,failed test-5=voter test-6=voter test-7=voter test-8=learner,caught-up");
    let wanted = spec(&["test-0"]);
    for (spec, seen) in [
        (&wanted, &healthy),
        (&wanted, &new),
        (&several.spec, &several.seen),
    ] {
        let mut made = None;
        let info = allocation_counter::measure(|| made = Some(plan(spec, seen)));
        assert_eq!(info.count_total, 0, "{made:?}");
    }
}
