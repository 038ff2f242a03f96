//! Every state, not a sample: each combination of the listed dimensions is planned, checked for
//! safety, and followed until it converges.
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

mod world;

use etcd_operator::cluster::{Answer, ClusterId, Health, MemberId, MemberName, MemberSet, Role};
use etcd_operator::observed::{
    Again, Alarms, Authority, CaState, Clock, Instance, LastServed, Membership, Observed, Pairs,
    Process, Proposals, Reading, Service, Writing,
};
use etcd_operator::plan::permit::{self, Declared, Grounds, Lapsed};
use etcd_operator::plan::{Act, Asked, Change, Hold, Mint, Plan, STEPS_MAX, Task, Upkeep, plan};
use etcd_operator::spec::backup::Source;
use etcd_operator::spec::{ClusterSpec, Settings};
use etcd_operator::start::{
    self, AddressConflict, BACK_SECONDS, Binary, CertificatesUsable, Completeness, DataDir,
    Filesystem, Identity, Refusal, Room, Start, StartHistory, Unserved, Writable,
};
use etcd_operator::status::{Kind, Verdict, status};
use world::{
    CLUSTER, NOW, SETTINGS, VERSION, certificates, damage, data, details, failed, identity, member,
    observed, running, running_instance, serving, single, spec, stopped,
};

// ------------------------------------------------------------------------------------------------
// A stopped member: every way in which a start can be wrong.

fn histories() -> [StartHistory; 5] {
    [
        StartHistory::NONE,
        failed(1, None),
        failed(3, None),
        failed(1, Some("crc mismatch")),
        failed(1, Some("no space left on device")),
    ]
}

/// What changes from start to start.
fn turns() -> impl Iterator<Item = (StartHistory, u64, Room)> {
    let full = Room {
        free: Some(1 << 20),
        repair: 64 << 20,
        resume: 80 << 20,
        join: 200 << 20,
    };
    histories().into_iter().flat_map(move |it| {
        [(0, Room::AMPLE), (5, Room::AMPLE), (0, full)].map(|(wait, room)| (it.clone(), wait, room))
    })
}

/// The dimensions of [`stopped_members`], for the count that is printed.
const STOPPED: &str = "size 0/1 x data 7 x identity 4 x marker 3 x writable 5 x strange etcd 2 x file system 2 x binary 3 x \
     certificates 3 x conflict 2 x history 5 x back-off or room 3";

fn stopped_members(mut visit: impl FnMut(&ClusterSpec, Instance)) {
    let other = ClusterId(0xbad);
    let datas = [
        DataDir::EMPTY,
        data(true, true, Some(CLUSTER)),
        data(true, true, Some(other)),
        data(false, true, None),
        DataDir {
            wal_from_start: false,
            ..data(true, false, Some(CLUSTER))
        },
        DataDir {
            damage: Some(damage()),
            ..data(true, true, Some(CLUSTER))
        },
        DataDir {
            unreadable: Some("member/wal: Permission denied".try_into().unwrap()),
            ..DataDir::EMPTY
        },
    ];
    let foreign = || start::Identity {
        cluster: "other".try_into().unwrap(),
        ..identity(true)
    };
    let strange = [None, Some("/data/default".try_into().unwrap())];
    let identities = [
        None,
        Some(identity(false)),
        Some(identity(true)),
        Some(foreign()),
    ];
    let markers = [None, Some(identity(true)), Some(foreign())];
    let writables = [
        Writable::Yes,
        Writable::ReadOnly,
        Writable::Missing,
        Writable::Denied,
        Writable::Stalled,
    ];
    let conflict = AddressConflict {
        address: "127.0.0.1:2379".try_into().unwrap(),
        not_ours: false,
        denied: false,
        holder: heapless::String::new(),
        k3s_embedded: false,
    };
    for size in [0, 1] {
        let spec = ClusterSpec {
            size,
            ..spec(&["test-0"])
        };
        for (data, id) in datas
            .iter()
            .flat_map(|data| identities.iter().map(move |id| (data, id)))
        {
            for (marker, writable, strange) in markers.iter().flat_map(|marker| {
                let places = writables
                    .into_iter()
                    .flat_map(|it| strange.each_ref().map(|etcd| (it, etcd)));
                places.map(move |(writable, strange)| (marker, writable, strange))
            }) {
                for filesystem in [Filesystem::Disk, Filesystem::Unsafe("tmpfs")] {
                    for binary in [
                        Binary::Ready,
                        Binary::Missing(None),
                        Binary::WrongArchitecture,
                        Binary::Changed,
                    ] {
                        for pairs in [Pairs::Usable, Pairs::Missing, Pairs::Expired] {
                            for conflict in [None, Some(conflict.clone())] {
                                for (history, wait, room) in turns() {
                                    let mut instance = stopped();
                                    let facts = &mut instance.facts;
                                    facts.data = data.clone();
                                    facts.identity.clone_from(id);
                                    facts.marker.clone_from(marker);
                                    facts.writable = writable;
                                    facts.strange_etcd.clone_from(strange);
                                    facts.filesystem = filesystem;
                                    facts.binary = binary;
                                    facts.conflict.clone_from(&conflict);
                                    facts.history = history;
                                    facts.room = room;
                                    // Missing ones can be made; expired ones stand here for a
                                    // CA that cannot sign.
                                    if pairs == Pairs::Expired {
                                        facts.certificates = CertificatesUsable::No;
                                        instance.certificates.authorities = CaState::Damaged;
                                    }
                                    instance.certificates.pairs = pairs;
                                    instance.restart_in = wait;
                                    visit(&spec, instance);
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn no_stopped_member_is_started_against_the_facts() {
    let (mut states, mut starts) = (0_u32, 0_u32);
    stopped_members(|spec, instance| {
        states += 1;
        let facts = instance.facts.clone();
        let wait = instance.restart_in;
        let pairs = instance.certificates.pairs;
        let seen = observed(instance, Membership::Unreachable);
        let plan = plan(spec, &seen);
        let status = status(spec, &seen, &plan);
        assert_ne!(
            status.condition(Kind::Available).verdict,
            Verdict::True,
            "nothing runs"
        );
        let Some(start) = plan.steps().find_map(|it| match it {
            Upkeep::Start(start) => Some(*start),
            _ => None,
        }) else {
            if plan.hold().is_some() {
                assert!(plan.steps().all(is_harmless), "{plan:?}");
            }
            assert!(plan.interruption.is_none(), "{plan:?}");
            return;
        };
        starts += 1;
        assert!(spec.size > 0 && wait == 0 && plan.hold().is_none());
        assert_eq!(facts.writable, Writable::Yes);
        assert_eq!(facts.filesystem, Filesystem::Disk);
        assert_eq!(facts.binary, Binary::Ready);
        assert_eq!(facts.conflict, None);
        assert!(facts.history.failed < start::START_BUDGET);
        assert!(facts.data.damage.is_none() && facts.data.unreadable.is_none());
        let needed = if facts.history.ending.for_want_of_room() {
            facts.room.resume
        } else {
            facts.room.repair
        };
        assert!(
            facts.room.holds(needed),
            "a start that must fail for want of room"
        );
        assert_eq!(facts.certificates, CertificatesUsable::Yes);
        if pairs != Pairs::Usable {
            assert!(
                plan.steps()
                    .any(|it| matches!(it, Upkeep::MintCertificates(_)))
            );
        }
        // Identity before data: what is known decides what may lie there.
        let served = facts
            .identity
            .as_ref()
            .is_some_and(|it| it.served.is_some());
        match facts.data.completeness() {
            Completeness::Complete => {
                assert!(facts.marker.is_some(), "a directory that is ours says so");
            }
            Completeness::Empty => {
                assert!(!served, "an empty directory is not the data that was");
                assert_eq!(facts.strange_etcd, None, "born beside another etcd's data");
            }
            Completeness::LogMissing => assert!(start == Start::SetAsideThenGo && !served),
            Completeness::DatabaseMissing => panic!("started without its database"),
        }
        assert!(
            facts
                .data
                .owner
                .is_none_or(|(it, _)| !served || it == CLUSTER),
            "another cluster's log"
        );
        for known in [&facts.identity, &facts.marker].into_iter().flatten() {
            assert_eq!(known.cluster, "test", "another cluster's directory");
        }
    });
    println!("stopped members: {states} states ({STOPPED}), {starts} of them start");
    assert!(states > 100_000 && starts > 20);
}

/// Volumes of one node share its disk: those who come take no room that those who serve need.
#[test]
fn a_member_joins_only_where_there_is_room_for_others_too() {
    let verdict = |joined: bool, free: Option<u64>, filesystem: Filesystem| {
        let mut facts = stopped().facts;
        facts.data = DataDir::EMPTY;
        facts.identity = Some(start::Identity {
            joined,
            ..identity(false)
        });
        facts.marker = None;
        facts.filesystem = filesystem;
        facts.unsafe_filesystem_allowed = true;
        facts.room = Room {
            free,
            repair: 0,
            resume: 80,
            join: 200,
        };
        start::verdict(&facts)
    };
    let full =
        |it: Result<Start, Refusal>| matches!(it, Err(Refusal::DiskFull { needed: 200, .. }));
    assert!(full(verdict(true, Some(199), Filesystem::Disk)));
    for (joined, free, filesystem) in [
        (true, Some(200), Filesystem::Disk),
        (true, None, Filesystem::Disk),
        // The first member takes what there is, and memory is nobody else's.
        (false, Some(1), Filesystem::Disk),
        (true, Some(1), Filesystem::Unsafe("tmpfs")),
    ] {
        let it = verdict(joined, free, filesystem);
        assert_eq!(it, Ok(Start::Go), "{joined} {free:?} {filesystem:?}");
    }
}

/// The document may have damaged data replaced. Nothing that etcd said is a reason for it, and nothing
/// that only could not be read.
#[test]
fn data_is_replaced_only_where_a_reader_has_found_damage() {
    let (mut replaced, mut hinted) = (0_u32, 0_u32);
    stopped_members(|spec, instance| {
        let spec = ClusterSpec {
            restore_when_damaged: true,
            ..spec.clone()
        };
        let data = instance.facts.data.clone();
        let hint = instance.facts.history.ending.hints_at_damage();
        let plan = plan(&spec, &observed(instance, Membership::Unreachable));
        let asked = Upkeep::RequestRestore(Asked::Recovery);
        if plan.steps().any(|it| *it == asked) {
            let part_missing = matches!(
                data.completeness(),
                Completeness::LogMissing | Completeness::DatabaseMissing
            );
            assert!(data.damage.is_some() || part_missing, "{data:?}");
            assert!(data.unreadable.is_none(), "{data:?}");
            replaced += 1;
        } else {
            hinted += u32::from(hint);
        }
    });
    assert!(replaced > 100 && hinted > 100);
}

/// Whatever destinations hold, a cluster begins with nothing only where that is known to pass nothing
/// over, or where the document says so; and one that was born is never asked.
#[test]
fn nothing_is_born_beside_snapshots_that_the_document_does_not_speak_of() {
    let words = ["none", "looking", "4", "unreadable"];
    let sources = [None, Some(Source::Latest), Some(Source::Empty)];
    let (mut births, mut holds) = (0_u32, 0_u32);
    for (word, source) in words
        .iter()
        .flat_map(|word| sources.iter().map(move |source| (*word, source)))
    {
        for (id, marker) in [
            (None, None),
            (Some(identity(false)), None),
            (None, Some(identity(false))),
        ] {
            let unborn = id.is_none() && marker.is_none();
            let spec = ClusterSpec {
                bootstrap: source.clone(),
                backup: Some(world::backup("interval")),
                ..spec(&["test-0"])
            };
            let mut instance = stopped();
            instance.facts.data = DataDir::EMPTY;
            (instance.facts.identity, instance.facts.marker) = (id, marker);
            let seen = Observed {
                predecessors: world::predecessors(word),
                ..observed(instance, Membership::Unbootstrapped)
            };
            let plan = plan(&spec, &seen);
            let empty = plan.steps().any(|it| matches!(it, Upkeep::Start(_)));
            let silent = unborn && word != "none" && source.is_none();
            assert_eq!(
                empty,
                !(silent || unborn && *source == Some(Source::Latest))
            );
            let found = matches!(
                plan.hold(),
                Some(Hold::SnapshotsFound(_) | Hold::SnapshotsUnknown(_))
            );
            assert_eq!(found, silent && word != "looking", "{plan:?}");
            births += u32::from(empty && unborn);
            holds += u32::from(found);
        }
    }
    assert_eq!((births, holds), (5, 2));
}

/// Upkeep that touches neither process nor data.
fn is_harmless(step: &Upkeep) -> bool {
    matches!(
        step,
        Upkeep::MintCertificates(_)
            | Upkeep::MintClients
            | Upkeep::AdoptIdentity
            | Upkeep::LatchIdentity { .. }
    )
}

// ------------------------------------------------------------------------------------------------
// A running member: what may interrupt it, and what may be called available.

const RUNNING: &str = "size 0/1 x paused x settings, age, driver and address 6 x read 5 x write 3 x alarms 4 x proposals 3 x \
     certificates 6 x provisional 2 x clock 3 x served 2 x writable 3 x membership 1-4 x no-space policy 2";

/// The list of a single member with somebody else's in it.
fn joined_by(role: Role) -> MemberSet {
    let Membership::Known(mut members) = single() else {
        panic!()
    };
    let stranger = member(STRANGER.0, "", role, Health::Unknown);
    members.insert(stranger).unwrap();
    members
}

const STRANGER: MemberId = MemberId(0xbad);

/// What a restart of a sound member is for.
#[derive(Clone, Copy, PartialEq)]
enum Reason {
    Nothing,
    Driver,
    Address,
}

impl Reason {
    fn unserved(self) -> Option<Unserved> {
        (self == Reason::Address).then(|| Unserved {
            addresses: "192.168.1.7".try_into().unwrap(),
            there: Some(BACK_SECONDS),
        })
    }
}

fn running_members(mut visit: impl FnMut(&ClusterSpec, &Observed)) {
    let failed = || "failed".try_into().unwrap();
    let reads = [
        Reading::NotTried,
        Reading::Answered,
        Reading::Failed(failed()),
        Reading::NotPermitted(failed()),
        Reading::TimedOut,
    ];
    let (learner, voter) = (Role::Learner { caught_up: true }, Role::Voter);
    let confirmed = [
        single(),
        Membership::TooManyMembers,
        Membership::Known(joined_by(learner)),
        Membership::Known(joined_by(voter)),
    ];
    let unconfirmed = [
        Membership::Unreachable,
        Membership::Unconfirmed(joined_by(learner)),
        Membership::Unconfirmed(joined_by(voter)),
    ];
    let writes = [
        Writing::NotTried,
        Writing::Acknowledged,
        Writing::Failed(failed()),
    ];
    let alarms = [(false, false), (true, false), (false, true), (true, true)];
    let pairs = [
        Pairs::Usable,
        Pairs::AddressesDiffer,
        Pairs::NotYetValid,
        Pairs::Expired,
        Pairs::Broken,
        Pairs::Missing,
    ];
    let clocks = [
        Clock::Trusted,
        Clock::Unsynchronised,
        Clock::BehindKnown { newest: NOW },
    ];
    let policies = [(0, false), (1, false), (1, true)]
        .into_iter()
        .flat_map(|(size, paused)| {
            [true, false].map(|repair_no_space| (size, paused, repair_no_space))
        });
    for (size, paused, repair_no_space) in policies {
        let spec = ClusterSpec {
            size,
            paused,
            repair_no_space,
            ..spec(&["test-0"])
        };
        for (settings, seconds, reason) in [
            (SETTINGS, 1, Reason::Nothing),
            (SETTINGS, 999, Reason::Nothing),
            (SETTINGS, 999, Reason::Driver),
            (SETTINGS, 999, Reason::Address),
            (Settings(1), 1, Reason::Nothing),
            (Settings(1), 999, Reason::Nothing),
        ] {
            for (read, write) in reads
                .iter()
                .flat_map(|it| writes.iter().map(move |write| (it, write)))
            {
                for (alarm, proposals) in alarms.into_iter().flat_map(|it| {
                    [Proposals::Unknown, Proposals::Moving, Proposals::Stuck]
                        .map(|proposals| (it, proposals))
                }) {
                    for (pairs, provisional) in
                        pairs.into_iter().flat_map(|it| [(it, false), (it, true)])
                    {
                        for (clock, served) in
                            clocks.into_iter().flat_map(|it| [(it, false), (it, true)])
                        {
                            for writable in [Writable::Yes, Writable::ReadOnly, Writable::Stalled] {
                                let mut instance = running_instance();
                                instance.process = running(settings, seconds);
                                instance.kept_elsewhere = reason == Reason::Driver;
                                instance.unserved = reason.unserved();
                                instance.facts.identity = Some(identity(served));
                                instance.facts.writable = writable;
                                instance.writable = writable;
                                instance.certificates.pairs = pairs;
                                instance.certificates.provisional = provisional;
                                instance.service = Service {
                                    read: read.clone(),
                                    write: write.clone(),
                                    alarms: Alarms {
                                        no_space: alarm.0,
                                        corrupt: alarm.1,
                                    },
                                    proposals,
                                    details: read.is_answer().then(details),
                                };
                                let memberships: &[Membership] = if *read == Reading::Answered {
                                    &confirmed
                                } else {
                                    &unconfirmed
                                };
                                // Who is in the list and what certificates are like has nothing in common.
                                let all = pairs == Pairs::Usable && !provisional;
                                let count = match (all, read) {
                                    (true, _) => memberships.len(),
                                    (false, Reading::Answered) => 2,
                                    (false, _) => 1,
                                };
                                let memberships = &memberships[..count];
                                for membership in memberships {
                                    let mut seen = observed(instance.clone(), membership.clone());
                                    seen.clock = clock;
                                    visit(&spec, &seen);
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_running_member_is_interrupted_only_by_declaration_and_available_only_in_truth() {
    let (mut states, mut interrupted, mut available) = (0_u32, 0_u32, 0_u32);
    let mut named = 0_u32;
    running_members(|spec, seen| {
        states += 1;
        let plan = plan(spec, seen);
        let instance = &seen.instances[0];
        let service = &instance.service;
        let Process::Running { settings, .. } = instance.process else {
            panic!()
        };
        for step in plan.steps() {
            assert!(!step.starts(), "it runs already");
            assert!(
                !spec.paused || *step == Upkeep::ProbeWrite,
                "paused means: nothing is done"
            );
        }
        if let Some(permit) = &plan.interruption {
            assert!(!spec.paused, "paused means: nothing is done");
            assert_eq!(permit.step().member, instance.member);
            match permit.step().act {
                Act::Stop => assert_eq!(spec.size, 0),
                Act::Restart => {
                    assert!(
                        settings != spec.settings
                            || instance.kept_elsewhere
                            || instance.unserved.as_ref().is_some_and(Unserved::is_back),
                        "nobody asked for a restart"
                    );
                    assert_eq!(
                        start::verdict(&instance.facts),
                        Ok(Start::Go),
                        "it could not start again"
                    );
                    assert!(matches!(permit.grounds(), Grounds::DeclaredOutage(_)));
                }
                Act::RegainSpace => {
                    assert!(
                        service.alarms.no_space && !service.alarms.corrupt && spec.repair_no_space
                    );
                }
                Act::SwapRestored | Act::UndoRestore => panic!("nothing is restored"),
            }
            interrupted += 1;
        }
        assert!(plan.upkeep.len() <= STEPS_MAX);
        // Promise 3, said a second time and in other words than src/status.rs says it.
        let truth = service.read == Reading::Answered
            && service.write == Writing::Acknowledged
            && service.alarms == Alarms::default()
            && service.proposals != Proposals::Stuck
            && instance.writable == Writable::Yes;
        let told = status(spec, seen, &plan);
        assert_eq!(
            told.condition(Kind::Available).verdict == Verdict::True,
            truth,
            "{told:?}"
        );
        available += u32::from(truth);
        named += u32::from(names_what_is_not_ours(spec, seen, &plan));
    });
    assert!(named > 10_000);
    println!(
        "running members: {states} states ({RUNNING}), {interrupted} interrupted, {available} available"
    );
    assert!(states > 300_000 && interrupted > 0 && available > 0);
}

/// etcd's own auth and a member that somebody added: never a fight, and named unless something else is.
fn names_what_is_not_ours(spec: &ClusterSpec, seen: &Observed, plan: &Plan) -> bool {
    assert!(!matches!(plan.change, Ok(Some(_))), "{plan:?}");
    let instance = &seen.instances[0];
    let Process::Running { seconds, .. } = instance.process else {
        panic!()
    };
    let service = &instance.service;
    let auth = matches!(service.read, Reading::NotPermitted(_));
    let stranger = match &seen.membership {
        Membership::Known(members) | Membership::Unconfirmed(members) => {
            members.iter().any(|it| it.id == STRANGER)
        }
        _ => false,
    };
    let named = match plan.hold() {
        Some(Hold::AuthEnabled) => {
            assert!(auth, "{plan:?}");
            true
        }
        Some(Hold::UnexpectedMember { member, quorum, .. }) => {
            assert!(stranger && *member == STRANGER);
            assert_eq!(*quorum, service.read == Reading::Answered);
            true
        }
        _ => false,
    };
    // Who else has a word: a person, a stop, a CA, an alarm, a frozen disk, and an etcd that comes up.
    let quiet = !spec.paused
        && spec.size == 1
        && instance.writable != Writable::Stalled
        && service.alarms == Alarms::default()
        && seconds > 20
        && plan.interruption.is_none()
        && !matches!(plan.hold(), Some(Hold::Start(_)));
    let own_known = service.details.is_some()
        || instance
            .facts
            .identity
            .as_ref()
            .is_some_and(|it| it.served.is_some());
    assert!(
        named || !quiet || !(auth || stranger && own_known),
        "{plan:?} {seen:?}"
    );
    named
}

// ------------------------------------------------------------------------------------------------
// One host from any state to "available" once the faults are healed.

/// What a step does to a host on which nothing fails any more.
fn apply(spec: &ClusterSpec, instance: &mut Instance, plan: &Plan) {
    for step in plan.steps() {
        match step {
            Upkeep::AdoptIdentity => instance.facts.identity = instance.facts.marker.clone(),
            Upkeep::LatchIdentity { .. } => {
                instance.facts.identity = Some(identity(false));
                instance.facts.marker = Some(identity(false));
            }
            Upkeep::MintCertificates(_) => {
                instance.certificates = certificates();
                instance.facts.certificates = CertificatesUsable::Yes;
            }
            Upkeep::MintClients => instance.certificates.clients_due = false,
            Upkeep::Start(_) => starts(spec, instance),
            Upkeep::ProbeWrite => instance.service.write = Writing::Acknowledged,
            Upkeep::RecordServed => instance.facts.identity = Some(identity(true)),
            Upkeep::AcceptWrites => instance.service.alarms = Alarms::default(),
            Upkeep::StartAsBefore | Upkeep::RaiseQuota(_) => panic!("nothing was edited"),
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
    match plan.act() {
        Some(Act::Stop) => {
            instance.process = Process::Stopped;
            instance.service = Service::UNKNOWN;
        }
        Some(Act::Restart) => starts(spec, instance),
        Some(Act::RegainSpace) => instance.service.alarms = Alarms::default(),
        Some(Act::SwapRestored | Act::UndoRestore) => panic!("this document asks for no snapshot"),
        None => {}
    }
}

fn starts(spec: &ClusterSpec, instance: &mut Instance) {
    instance.process = running(spec.settings, 1);
    instance.kept_elsewhere = false;
    instance.unserved = None;
    instance.facts.data = data(true, true, Some(CLUSTER));
    instance.service = Service {
        write: Writing::NotTried,
        ..serving()
    };
}

#[test]
fn every_sound_host_becomes_available_and_stays_so() {
    let mut states = 0_u32;
    let mut follow = |spec: &ClusterSpec, mut instance: Instance| {
        states += 1;
        for _ in 0..8 {
            let membership = if instance.service.read == Reading::Answered {
                single()
            } else {
                Membership::Unbootstrapped
            };
            let seen = observed(instance.clone(), membership);
            let plan = plan(spec, &seen);
            if plan.upkeep.is_empty() && plan.interruption.is_none() {
                assert!(plan.holds.is_empty(), "{instance:?}");
                assert_eq!(plan.change, Ok(None), "{instance:?}");
                let wanted = if spec.size == 0 {
                    Verdict::False
                } else {
                    Verdict::True
                };
                assert_eq!(
                    status(spec, &seen, &plan)
                        .condition(Kind::Available)
                        .verdict,
                    wanted
                );
                return;
            }
            apply(spec, &mut instance, &plan);
        }
        panic!("no end: {instance:?}");
    };
    stopped_members(|spec, instance| {
        // A fault of the surroundings heals; lost data and another cluster's data do not.
        let mut instance = instance;
        instance.facts.writable = Writable::Yes;
        instance.facts.filesystem = Filesystem::Disk;
        instance.facts.binary = Binary::Ready;
        instance.facts.conflict = None;
        instance.facts.history = StartHistory::NONE;
        instance.restart_in = 0;
        if start::verdict(&instance.facts).is_ok() {
            follow(spec, instance);
        }
    });
    println!("sound hosts followed to their end: {states}");
    assert!(states > 1000);
}

// ------------------------------------------------------------------------------------------------
// Edits: what comes into force, what waits, what is refused, and what goes on under it.

const EDITS: &str = "asked quota 4 x latched quota 2 x quota of the process 2 x settings 2 x name 2 x version 2 x \
     paused 2 x conflict 2 x settings that served 3 x running 2 x write 3 x alarm 2 x database 3 x snapshot due 2 \
     x no-space policy 2";

fn edits(mut visit: impl FnMut(&ClusterSpec, &Observed)) {
    let mib = |it: u64| it << 20;
    let writes = [
        Writing::NotTried,
        Writing::Acknowledged,
        Writing::Failed("failed".try_into().unwrap()),
    ];
    let conflict = AddressConflict {
        address: "127.0.0.1:2379".try_into().unwrap(),
        not_ours: false,
        denied: false,
        holder: heapless::String::new(),
        k3s_embedded: false,
    };
    let numbers = [None, Some(mib(512)), Some(mib(1024)), Some(mib(2048))];
    let numbers = numbers.into_iter().flat_map(|asked| {
        [mib(1024), mib(2048)].map(|latched| (asked, latched, [latched, mib(512)]))
    });
    for (asked, latched, of_process) in numbers {
        for bits in 0..1_u32 << 9 {
            let bit = |number: u32| bits >> number & 1 == 1;
            for (write, database) in writes
                .iter()
                .flat_map(|it| [100, 900, 1900].map(|database| (it, mib(database))))
            {
                for before in 0..3 {
                    let mut spec = ClusterSpec {
                        quota: asked,
                        paused: bit(0),
                        repair_no_space: bit(1),
                        backup: Some(world::backup("interval")),
                        ..spec(&["test-0"])
                    };
                    if bit(2) {
                        spec.settings = Settings(99);
                    }
                    if bit(3) {
                        spec.name = "other".try_into().unwrap();
                    }
                    if bit(4) {
                        spec.version = Some("3.5.30".parse().unwrap());
                    }
                    let mut instance = if bit(5) {
                        running_instance()
                    } else {
                        stopped()
                    };
                    if let Process::Running { quota, .. } = &mut instance.process {
                        *quota = of_process[usize::from(bit(6))];
                        instance.service.write = write.clone();
                        instance.service.alarms.no_space = bit(7);
                        instance.service.details.as_mut().unwrap().db_size = database;
                    } else if bit(6) || bit(7) {
                        continue; // of a process alone
                    }
                    instance.facts.cluster = spec.name.clone();
                    let identity = instance.facts.identity.as_mut().unwrap();
                    identity.quota = latched;
                    if before > 0 && !bit(5) {
                        instance.last_served = Some(LastServed {
                            facts: world::facts(),
                            elsewhere: before == 2,
                        });
                    }
                    if bit(8) {
                        instance.facts.conflict = Some(conflict.clone());
                    }
                    let mut seen = observed(instance, single());
                    seen.backups.due_in = Some(0);
                    visit(&spec, &seen);
                }
            }
        }
    }
}

#[test]
fn an_edit_interrupts_only_for_itself_and_nothing_waits_for_it_in_silence() {
    let (mut states, mut restarts, mut as_before, mut taken) = (0_u32, 0_u32, 0_u32, 0_u32);
    edits(|spec, seen| {
        states += 1;
        let instance = &seen.instances[0];
        let latched = instance.facts.identity.as_ref().unwrap().quota;
        let plan = plan(spec, seen);
        let has = |wanted: fn(&Upkeep) -> bool| plan.steps().any(wanted);
        let restart = plan.act() == Some(Act::Restart);
        let start = has(|it| matches!(it, Upkeep::Start(_)));
        let before = has(|it| matches!(it, Upkeep::StartAsBefore));
        let accept = has(|it| matches!(it, Upkeep::AcceptWrites));
        for it in plan.steps() {
            if let Upkeep::RaiseQuota(quota) = it {
                assert!(
                    *quota > latched && spec.quota == Some(*quota),
                    "a quota only grows"
                );
                assert!(restart || start, "for a start that follows");
            }
        }
        let told = status(spec, seen, &plan);
        let accepted = told.condition(Kind::DocumentAccepted);
        if let Process::Running {
            settings, quota, ..
        } = instance.process
        {
            let service = &instance.service;
            let wanted = spec.quota.map_or(latched, |it| it.max(latched));
            let edited = settings != spec.settings || wanted > quota;
            let ours = spec.name == "test";
            let may = !spec.paused && ours && instance.facts.conflict.is_none();
            let full = service.alarms.no_space;
            assert_eq!(
                restart,
                edited && may && (!full || wanted > quota),
                "{plan:?}"
            );
            restarts += u32::from(restart);
            if accept {
                assert!(full && service.details.unwrap().db_size <= quota / 100 * 80);
            }
            // What is served is proven under every hold.
            let proven = service.write == Writing::Acknowledged;
            assert_eq!(has(|it| *it == Upkeep::ProbeWrite), !proven && !full);
            // Snapshots go on under every hold of an edit.
            let snapshot = has(|it| matches!(it, Upkeep::TakeSnapshot));
            let interrupted = plan.interruption.is_some();
            assert_eq!(
                snapshot,
                proven && ours && !spec.paused && !interrupted,
                "{plan:?}"
            );
            taken += u32::from(snapshot);
            // Nothing that differs is called in force.
            let smaller = spec.quota.is_some_and(|it| it < quota);
            let version = spec.version != Some(VERSION);
            let differs = edited || version || smaller || !ours;
            assert_eq!(accepted.reason != "InForce", differs, "{spec:?} {plan:?}");
            let refused = accepted.verdict == Verdict::False;
            // No edit leads to this patch of an older line.
            let wrong = smaller || !ours || version;
            assert_eq!(refused, wrong, "{spec:?} {plan:?}");
        } else {
            let held = instance.facts.conflict.is_some() || spec.name != "test";
            assert_eq!(start, !spec.paused && !held);
            let known = instance.last_served.is_some();
            let in_the_way = instance.facts.conflict.is_some() && spec.name == "test";
            assert_eq!(before, !spec.paused && in_the_way && known, "{plan:?}");
            if before {
                as_before += 1;
                assert!(
                    matches!(plan.hold(), Some(Hold::Start(_))),
                    "the edit is held"
                );
            }
        }
    });
    println!(
        "edits: {states} states ({EDITS}), {restarts} restarts, {as_before} starts as before, {taken} snapshots"
    );
    assert!(states > 30_000 && restarts > 0 && as_before > 0 && taken > 0);
}

/// Which steps stand on which: a failing one keeps no other from being taken.
#[test]
fn only_a_start_needs_what_was_to_be_done_before_it() {
    let harmless = [
        Upkeep::MintClients,
        Upkeep::ProbeWrite,
        Upkeep::RecordServed,
        Upkeep::AcceptWrites,
        Upkeep::TakeSnapshot,
        Upkeep::TakeRequested,
        Upkeep::CopySnapshots,
        Upkeep::CheckSnapshots,
    ];
    let starts = [Upkeep::Start(Start::Go), Upkeep::StartAsBefore];
    let before = [
        Upkeep::AdoptIdentity,
        Upkeep::LatchIdentity {
            version: VERSION,
            quota: 1,
            joins: false,
        },
        Upkeep::SetDataAside,
        Upkeep::RaiseQuota(1),
        Upkeep::MintCertificates(Mint::Renewal),
    ];
    for step in &harmless {
        for failed in harmless.iter().chain(&starts).chain(&before) {
            assert!(!step.needs(failed), "{step:?} after {failed:?}");
        }
    }
    for step in &starts {
        assert!(before.iter().all(|failed| step.needs(failed)), "{step:?}");
        assert!(
            !harmless.iter().any(|failed| step.needs(failed)),
            "{step:?}"
        );
    }
    for act in [
        Act::Stop,
        Act::Restart,
        Act::RegainSpace,
        Act::SwapRestored,
        Act::UndoRestore,
    ] {
        let restart = act == Act::Restart;
        assert!(
            before.iter().all(|failed| act.needs(failed) == restart),
            "{act:?}"
        );
        assert!(!harmless.iter().any(|failed| act.needs(failed)), "{act:?}");
    }
}

// ------------------------------------------------------------------------------------------------
// Several members: every cluster of up to five hosts.

const HOSTS: [&str; 5] = ["test-1", "test-2", "test-3", "test-4", "test-5"];
const MEMBERSHIP: &str = "5 hosts x {absent, voter serving/unknown/failed, learner ready/behind/failed} x every \
     wanted set of 1, 3 or 5 hosts";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Host {
    Absent,
    Member(Role, Health),
}

const STATES: [Host; 7] = [
    Host::Absent,
    Host::Member(Role::Voter, Health::Serving),
    Host::Member(Role::Voter, Health::Unknown),
    Host::Member(Role::Voter, Health::Failed),
    Host::Member(Role::Learner { caught_up: true }, Health::Serving),
    Host::Member(Role::Learner { caught_up: false }, Health::Serving),
    Host::Member(Role::Learner { caught_up: false }, Health::Failed),
];

fn is_learner(host: Host) -> bool {
    matches!(host, Host::Member(Role::Learner { .. }, _))
}

fn members_of(hosts: &[Host; 5]) -> MemberSet {
    let mut members = MemberSet::of(CLUSTER);
    for (index, host) in hosts.iter().enumerate() {
        if let Host::Member(role, health) = host {
            let id = u64::try_from(index).unwrap() + 1;
            members
                .insert(member(id, HOSTS[index], *role, *health))
                .unwrap();
        }
    }
    members
}

fn clusters(mut visit: impl FnMut(&[&str], [Host; 5])) {
    let wanted: Vec<Vec<&str>> = (1_u32..32)
        .filter(|bits| bits.count_ones() % 2 == 1)
        .map(|bits| {
            (0..5)
                .filter(|it| bits & (1 << it) != 0)
                .map(|it| HOSTS[it])
                .collect()
        })
        .collect();
    for number in 0..7_usize.pow(5) {
        let hosts = [0, 1, 2, 3, 4].map(|it| STATES[number / 7_usize.pow(it) % 7]);
        for set in &wanted {
            visit(set, hosts);
        }
    }
}

fn plan_members(wanted: &[&str], hosts: &[Host; 5]) -> Plan {
    let mut seen = observed(running_instance(), Membership::Known(members_of(hosts)));
    seen.instances.clear();
    plan(&spec(wanted), &seen)
}

fn change(hosts: &mut [Host; 5], change: &Change) {
    let index = |id: MemberId| usize::try_from(id.0).unwrap() - 1;
    match change {
        Change::AddLearner { name, .. } => {
            let place = HOSTS.iter().position(|it| *it == name.as_str()).unwrap();
            assert!(hosts[place] == Host::Absent);
            hosts[place] = Host::Member(Role::Learner { caught_up: false }, Health::Serving);
        }
        Change::Promote { member } => {
            let place = &mut hosts[index(*member)];
            assert!(matches!(
                place,
                Host::Member(Role::Learner { caught_up: true }, Health::Serving)
            ));
            *place = Host::Member(Role::Voter, Health::Serving);
        }
        Change::Remove { member } => hosts[index(*member)] = Host::Absent,
        Change::Update { .. } => panic!("all are where the document has them"),
    }
}

#[test]
fn no_change_of_any_cluster_costs_quorum_and_every_healed_cluster_gets_its_members() {
    let (mut states, mut changed, mut longest) = (0_u32, 0_u32, 0_usize);
    clusters(|wanted, hosts| {
        states += 1;
        let before = members_of(&hosts);
        let plan = plan_members(wanted, &hosts);
        if let Ok(Some(it)) = &plan.change {
            changed += 1;
            assert!(before.has_quorum(), "without quorum nothing is changed");
            let mut after = hosts;
            change(&mut after, it.step());
            let after = members_of(&after);
            assert!(after.has_quorum(), "{it:?} costs quorum");
            assert!(after.voter_count() >= 1);
        } else if !before.has_quorum() && before.iter().next().is_some() {
            let held = plan.change.as_ref().unwrap_err();
            let Hold::MajorityLost(silent, voters, _) = *held else {
                panic!("{held:?}");
            };
            let away = before.voter_count() - before.serving_voters();
            assert_eq!(
                (usize::from(silent), usize::from(voters)),
                (away, before.voter_count())
            );
        }
        // Healed: those that may come back are back, learners catch up.
        let mut hosts = hosts.map(|it| match it {
            Host::Member(Role::Voter, _) => STATES[1],
            Host::Member(Role::Learner { .. }, _) => STATES[4],
            Host::Absent => Host::Absent,
        });
        if !members_of(&hosts).has_quorum() {
            return; // nobody is there: birth is another matter
        }
        for pass in 0..40 {
            match plan_members(wanted, &hosts).change {
                Ok(None) => {
                    let names: Vec<&str> = HOSTS
                        .into_iter()
                        .zip(hosts)
                        .filter(|(_, it)| *it == STATES[1])
                        .map(|(name, _)| name)
                        .collect();
                    assert_eq!(names, wanted);
                    longest = longest.max(pass);
                    return;
                }
                Ok(Some(it)) => change(&mut hosts, it.step()),
                Err(hold) => panic!("held while healthy: {hold:?}"),
            }
            for host in &mut hosts {
                if is_learner(*host) {
                    *host = STATES[4];
                }
            }
        }
        panic!("no end");
    });
    println!(
        "clusters: {states} states ({MEMBERSHIP}), {changed} changed, longest way {longest} passes"
    );
    assert!(states > 70_000);
}

// ------------------------------------------------------------------------------------------------
// Several members with their processes: one interruption at a time, and nobody waits for another's hold.

/// What a member is and does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Etcd {
    /// A voter that serves with the document's settings.
    Current,
    /// A voter that serves with older settings.
    Edited,
    /// A voter that runs with older settings and does not answer.
    Silent,
    /// A voter that does not run.
    Stopped,
    /// A voter that does not run, and its data is damaged.
    Damaged,
    /// A voter that does not run, and its disk is empty, its identity gone.
    Emptied,
    /// Not in the list any more; its old data lies there.
    Removed,
    /// Not in the list, and nothing lies there.
    Blank,
    /// In the list as a learner that never ran.
    Added,
    /// A learner that runs and does not answer yet.
    Joining,
    /// A learner that answers and has caught up.
    Learner,
}

/// What a visit begins with; the others follow from it.
const ETCDS: [Etcd; 7] = [
    Etcd::Current,
    Etcd::Edited,
    Etcd::Silent,
    Etcd::Stopped,
    Etcd::Damaged,
    Etcd::Emptied,
    Etcd::Blank,
];
const PROCESSES: &str = "1 to 5 members x {current, edited, silent, stopped, damaged, emptied, not there yet} x leader \
     none or any that serves x size as it is or 0";

impl Etcd {
    fn serves(self) -> bool {
        matches!(self, Etcd::Current | Etcd::Edited)
    }

    fn runs(self) -> bool {
        self.serves() || matches!(self, Etcd::Silent | Etcd::Joining | Etcd::Learner)
    }

    fn votes(self) -> bool {
        self.serves()
            || matches!(
                self,
                Etcd::Silent | Etcd::Stopped | Etcd::Damaged | Etcd::Emptied
            )
    }

    /// Its data, or nothing.
    fn has_data(self) -> bool {
        !matches!(self, Etcd::Emptied | Etcd::Blank | Etcd::Added)
    }

    /// As the member list has it.
    fn listed(self) -> Option<(Role, Health)> {
        let health = if self.serves() || self == Etcd::Learner {
            Health::Serving
        } else {
            Health::Unknown
        };
        match self {
            Etcd::Removed | Etcd::Blank => None,
            Etcd::Added | Etcd::Joining => Some((Role::Learner { caught_up: false }, health)),
            Etcd::Learner => Some((Role::Learner { caught_up: true }, health)),
            _ => Some((Role::Voter, health)),
        }
    }
}

fn id_of(index: usize) -> MemberId {
    MemberId(u64::try_from(index).unwrap() + 1)
}

fn index_of(name: &str) -> usize {
    HOSTS.iter().position(|it| *it == name).unwrap()
}

fn serving_of(etcds: &[Etcd]) -> usize {
    etcds.iter().filter(|it| it.serves()).count()
}

/// Whether a majority of the voters serves.
fn is_enough(etcds: &[Etcd]) -> bool {
    serving_of(etcds) > etcds.iter().filter(|it| it.votes()).count() / 2
}

/// A cluster of which this process runs every member.
fn cluster(etcds: &[Etcd], leader: Option<usize>) -> Observed {
    let mut members = MemberSet::of(CLUSTER);
    for (index, etcd) in etcds.iter().enumerate() {
        let Some((role, health)) = etcd.listed() else {
            continue;
        };
        let mut it = member(id_of(index).0, HOSTS[index], role, health);
        it.peer_url = world::place(HOSTS[index]).peer_url;
        if *etcd == Etcd::Added {
            it.name = MemberName::new();
        }
        members.insert(it).unwrap();
    }
    let membership = if members.has_quorum() && members.voter_count() > 0 {
        Membership::Known(members)
    } else {
        Membership::Unreachable
    };
    let mut seen = observed(stopped(), membership);
    seen.instances.clear();
    for (index, etcd) in etcds.iter().enumerate() {
        let it = instance_of(*etcd, index, etcds.len(), leader);
        seen.instances.push(it).unwrap();
    }
    seen
}

fn instance_of(etcd: Etcd, index: usize, count: usize, leader: Option<usize>) -> Instance {
    let settings = if etcd == Etcd::Edited || etcd == Etcd::Silent {
        Settings(99)
    } else {
        SETTINGS
    };
    let mut it = stopped();
    if etcd.runs() {
        it = Instance {
            process: running(settings, 1000),
            ..running_instance()
        };
    }
    it.member = HOSTS[index].try_into().unwrap();
    it.alone = count == 1;
    let served = etcd != Etcd::Joining; // the id of a learner is written down before it votes
    let identity = Identity {
        member: it.member.clone(),
        served: served.then_some((CLUSTER, id_of(index))),
        ..identity(true)
    };
    it.facts.identity = Some(identity.clone());
    it.facts.marker = Some(identity);
    it.facts.data.owner = Some((CLUSTER, id_of(index)));
    if !etcd.has_data() {
        it.facts.identity = None;
        it.facts.marker = None;
        it.facts.data = DataDir::EMPTY;
    }
    if etcd == Etcd::Damaged {
        it.facts.data.damage = Some(damage());
    }
    let details = it.service.details.as_mut();
    if let Some(details) = details {
        details.member = id_of(index);
        details.leader = leader.map(id_of);
    }
    match etcd {
        Etcd::Silent | Etcd::Joining => {
            it.service = Service {
                read: Reading::TimedOut,
                ..Service::UNKNOWN
            };
        }
        Etcd::Learner => {
            it.service = Service {
                read: Reading::Joining(Answer {
                    member: id_of(index),
                    raft_index: 1,
                }),
                ..Service::UNKNOWN
            };
        }
        _ => {}
    }
    it
}

fn clusters_with_processes(mut visit: impl FnMut(&ClusterSpec, &[Etcd], Option<usize>)) {
    for count in 1..=5_usize {
        for number in 0..ETCDS.len().pow(u32::try_from(count).unwrap()) {
            let etcds: Vec<Etcd> = (0..u32::try_from(count).unwrap())
                .map(|it| ETCDS[number / ETCDS.len().pow(it) % ETCDS.len()])
                .collect();
            let leaders = (0..count).filter(|it| etcds[*it].serves()).map(Some);
            for leader in leaders.chain([None]) {
                let mut spec = spec(&HOSTS[..count]);
                // A policy for the only member: several have the others.
                spec.restore_when_damaged = count > 1;
                visit(&spec, &etcds, leader);
                spec.size = 0;
                visit(&spec, &etcds, leader);
            }
        }
    }
}

/// What a plan says about one look, whatever the members are and do.
fn check_a_pass(spec: &ClusterSpec, etcds: &[Etcd], leader: Option<usize>, plan: &Plan) {
    let count = etcds.len();
    if let Some(permit) = &plan.interruption {
        let it = index_of(&permit.step().member);
        let others = serving_of(etcds) - usize::from(etcds[it].serves());
        let voters = etcds.iter().filter(|it| it.votes()).count();
        if spec.size > 0 {
            let edited = matches!(etcds[it], Etcd::Edited | Etcd::Silent);
            assert!(edited, "{etcds:?}");
            let survives = others > voters / 2 || voters <= 1;
            assert!(survives, "{etcds:?} loses its quorum by an edit");
            assert!(
                !matches!(plan.change, Ok(Some(_))),
                "{etcds:?}: both at once"
            );
        }
        if Some(it) == leader && spec.size > 0 {
            let heir = |(at, etcd): (usize, &Etcd)| at != it && etcd.serves();
            let heirs = etcds.iter().enumerate().filter(|it| heir(*it)).count();
            assert_eq!(
                heirs, 0,
                "{etcds:?}: {leader:?} leads while it is restarted"
            );
        }
        if Some(it) == leader {
            let waits = |(at, etcd): (usize, &Etcd)| {
                let stops = spec.size == 0 && etcd.serves();
                at != it && (*etcd == Etcd::Edited || stops)
            };
            assert!(!etcds.iter().enumerate().any(waits), "{etcds:?}");
        }
    }
    if let Ok(Some(permit)) = &plan.change {
        assert!(spec.size > 0 && is_enough(etcds), "{etcds:?}");
        let after = changed(etcds, permit.step());
        assert!(is_enough(&after), "{etcds:?} {:?}", permit.step());
    }
    // Whatever holds one member, another one gets what it needs.
    let steps = |at: usize| plan.upkeep.iter().filter(move |it| it.member == HOSTS[at]);
    let joins = |it: &Task| it.step == Upkeep::Start(Start::Join);
    assert!(plan.upkeep.iter().filter(|it| joins(it)).count() <= 1);
    let restores = |it: &Task| matches!(it.step, Upkeep::RequestRestore(_));
    assert!(!plan.upkeep.iter().any(restores), "{etcds:?}");
    for (at, etcd) in etcds.iter().enumerate() {
        assert!(steps(at).count() <= STEPS_MAX);
        let starts = steps(at).filter(|it| it.step.starts()).count();
        let held = plan.holds.iter().any(|(it, _)| it == HOSTS[at]);
        match etcd {
            Etcd::Stopped => assert_eq!(starts, usize::from(spec.size > 0), "{etcds:?}"),
            Etcd::Damaged => assert!(starts == 0 && (held || spec.size == 0), "{etcds:?}"),
            // Never with an empty disk, but as a member that was added.
            Etcd::Emptied | Etcd::Blank if count > 1 => assert_eq!(starts, 0, "{etcds:?}"),
            Etcd::Removed => assert_eq!(starts, 0, "{etcds:?}"),
            _ => {}
        }
    }
}

/// The cluster after a change of its member list.
fn changed(etcds: &[Etcd], change: &Change) -> Vec<Etcd> {
    let mut after = etcds.to_vec();
    match change {
        Change::AddLearner { name, .. } => {
            let at = &mut after[index_of(name)];
            assert!(matches!(at, Etcd::Blank | Etcd::Removed), "{etcds:?}");
            // With its old data it is listed anew, and that data still has to go aside.
            *at = Etcd::Added;
        }
        Change::Promote { member } => {
            let at = &mut after[usize::try_from(member.0).unwrap() - 1];
            assert_eq!(*at, Etcd::Learner);
            *at = Etcd::Current;
        }
        Change::Remove { member } => {
            let at = &mut after[usize::try_from(member.0).unwrap() - 1];
            assert!(matches!(at, Etcd::Damaged | Etcd::Emptied), "{etcds:?}");
            *at = match at {
                Etcd::Damaged => Etcd::Removed,
                _ => Etcd::Blank,
            };
        }
        Change::Update { .. } => panic!("all are where the document has them"),
    }
    after
}

/// The cluster after a plan was carried out.
fn carried_out(
    spec: &ClusterSpec,
    etcds: &[Etcd],
    plan: &Plan,
    leader: &mut Option<usize>,
) -> Vec<Etcd> {
    let mut after = etcds.to_vec();
    for Task { member, step } in &plan.upkeep {
        let at = &mut after[index_of(member)];
        match step {
            Upkeep::SetDataAside => *at = Etcd::Blank,
            Upkeep::GiveUpLeadership { to } => {
                assert!(*leader == Some(index_of(member)) && at.serves());
                let to = usize::try_from(to.0).unwrap() - 1;
                assert!(after[to].serves(), "{etcds:?}");
                *leader = Some(to);
            }
            Upkeep::Start(Start::Join) => *at = Etcd::Joining,
            step if step.starts() => *at = Etcd::Current,
            _ => {}
        }
    }
    if let Some(permit) = &plan.interruption {
        let at = index_of(&permit.step().member);
        let before = is_enough(&after);
        after[at] = Etcd::Stopped;
        let voters = after.iter().filter(|it| it.votes()).count();
        let may = !before || spec.size == 0 || voters <= 1 || is_enough(&after);
        assert!(may, "{etcds:?}");
        if spec.size > 0 {
            after[at] = Etcd::Current;
        }
    }
    match &plan.change {
        Ok(Some(permit)) => changed(&after, permit.step()),
        _ => after,
    }
}

#[test]
fn members_are_interrupted_one_after_the_other_and_the_leader_last() {
    let (mut states, mut interrupted, mut replaced, mut longest) = (0_u32, 0_u32, 0_u32, 0_usize);
    let mut handed_over = 0_u32;
    clusters_with_processes(|spec, etcds, leader| {
        states += 1;
        let first = plan(spec, &cluster(etcds, leader));
        check_a_pass(spec, etcds, leader, &first);
        interrupted += u32::from(first.interruption.is_some());
        // Healed, but for what lies on the disks: every member ends as the document asks, with a majority
        // all the way.
        let heal = |it: &Etcd| match it {
            Etcd::Silent => Etcd::Edited,
            Etcd::Joining => Etcd::Learner,
            other => *other,
        };
        let mut etcds: Vec<Etcd> = etcds.iter().map(heal).collect();
        let sound = |it: &&Etcd| it.serves() || **it == Etcd::Stopped;
        let sound = etcds.iter().filter(sound).count();
        let voters = etcds.iter().filter(|it| it.votes()).count();
        if sound <= voters / 2 || etcds.len() == 2 {
            return; // the majority is lost: only a person can decide; and of two nobody can be spared
        }
        let mut leader = leader;
        let unsound = etcds.iter().any(|it| !it.serves() && *it != Etcd::Stopped);
        for pass in 0..60 {
            leader = leader.filter(|it| etcds[*it].serves());
            let plan = plan(spec, &cluster(&etcds, leader));
            check_a_pass(spec, &etcds, leader, &plan);
            let led = leader;
            let after = carried_out(spec, &etcds, &plan, &mut leader);
            handed_over += u32::from(led != leader);
            let still = after == etcds && plan.change == Ok(None) && led == leader;
            etcds = after.iter().map(heal).collect();
            if still {
                let done = |it: &Etcd| match spec.size {
                    0 => !it.serves(),
                    _ => *it == Etcd::Current,
                };
                assert!(etcds.iter().all(done), "{etcds:?} {plan:?}");
                longest = longest.max(pass);
                replaced += u32::from(unsound && spec.size > 0);
                return;
            }
        }
        panic!("no end: {etcds:?}");
    });
    println!(
        "members with processes: {states} states ({PROCESSES}), {interrupted} interrupted, {replaced} with \
         members replaced or added, longest way {longest} passes"
    );
    assert!(states > 90_000 && interrupted > 1000 && replaced > 1000 && handed_over > 1000);
}

#[test]
fn of_several_members_one_gives_the_snapshot() {
    let (mut states, mut taken) = (0_u32, 0_u32);
    clusters_with_processes(|spec, etcds, leader| {
        if etcds.len() > 3 || spec.size == 0 {
            return;
        }
        let spec = ClusterSpec {
            backup: Some(world::backup("interval")),
            ..spec.clone()
        };
        for asked in [true, false] {
            states += 1;
            let mut seen = cluster(etcds, leader);
            seen.backups.asked = asked;
            seen.backups.due_in = Some(0);
            let plan = plan(&spec, &seen);
            let takes = [Upkeep::TakeSnapshot, Upkeep::TakeRequested];
            let takes = plan.upkeep.iter().filter(|it| takes.contains(&it.step));
            let takes: Vec<&Task> = takes.collect();
            assert!(takes.len() <= 1, "{etcds:?} {plan:?}");
            let all = etcds.iter().all(|it| *it == Etcd::Current);
            assert!(!takes.is_empty() || !all, "{etcds:?} {plan:?}");
            if let [it] = takes[..] {
                taken += 1;
                assert!(etcds[index_of(&it.member)].serves(), "{etcds:?} {plan:?}");
            }
        }
    });
    println!("snapshots of several members: {states} states, {taken} taken");
    assert!(taken > 100);
}

/// What lies on a member's disk before any of them runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disk {
    Blank,
    /// It does not answer, so nothing of it was read.
    Stalled,
    /// Data that has served.
    Served,
    /// Data of a member that joined and was not seen to serve.
    Joined,
    /// Recorded as one that joins; its first start is still to come.
    ToJoin,
}

const DISKS: [Disk; 5] = [
    Disk::Blank,
    Disk::Stalled,
    Disk::Served,
    Disk::Joined,
    Disk::ToJoin,
];

fn on_disk(disk: Disk, index: usize) -> Instance {
    let etcd = match disk {
        Disk::Blank | Disk::Stalled => Etcd::Blank,
        _ => Etcd::Stopped,
    };
    let mut it = instance_of(etcd, index, 3, None);
    if let Some(identity) = &mut it.facts.identity
        && disk != Disk::Served
    {
        (identity.joined, identity.served) = (true, None);
        it.facts.marker = Some(identity.clone());
    }
    match disk {
        Disk::Stalled => it.facts.writable = Writable::Stalled,
        Disk::ToJoin => it.facts.data = DataDir::EMPTY,
        _ => {}
    }
    it
}

/// A second cluster beside one that lives is the worst that can happen: whatever the members' answers say, a
/// cluster is born only where all of its disks were read and are empty, and by one of them.
#[test]
fn a_cluster_is_born_once_and_only_where_nothing_lies_with_any_member() {
    let mut births = 0;
    for number in 0..125_usize {
        let disks = [0, 1, 2].map(|it| DISKS[number / 5_usize.pow(it) % 5]);
        for membership in [Membership::Unbootstrapped, Membership::Unreachable] {
            let born = membership == Membership::Unbootstrapped && disks == [Disk::Blank; 3];
            let mut seen = observed(stopped(), membership);
            seen.instances = (0..3).map(|it| on_disk(disks[it], it)).collect();
            let plan = plan(&spec(&HOSTS[..3]), &seen);
            for (at, disk) in disks.iter().enumerate() {
                let of = plan.upkeep.iter().filter(|it| it.member == HOSTS[at]);
                let starts = of.filter(|it| it.step.starts()).count();
                let has_data = matches!(disk, Disk::Served | Disk::Joined);
                let expected = has_data || born && at == 0;
                assert_eq!(starts, usize::from(expected), "{disks:?} {at} {plan:?}");
            }
            births += u32::from(born);
            let aside = |it: &Task| it.step == Upkeep::SetDataAside;
            assert!(!plan.upkeep.iter().any(aside), "{disks:?}");
        }
    }
    assert_eq!(births, 1);
}

/// Data is renamed aside only where a majority of its own cluster says that its member is removed.
#[test]
fn only_the_data_of_a_removed_member_of_this_cluster_goes_aside() {
    const OTHER: ClusterId = ClusterId(0xdead);
    let (mut aside, mut states) = (0_u32, 0_u32);
    for number in 0..2_u32.pow(8) {
        let is = |bit: u32| number >> bit & 1 == 1;
        for own_id in [None, Some(MemberId(2)), Some(MemberId(9))] {
            states += 1;
            let mut seen = cluster(&[Etcd::Current, Etcd::Removed, Etcd::Current], None);
            if is(7) {
                seen.membership = of_another_cluster(&seen.membership, OTHER);
            }
            let Membership::Known(members) = &mut seen.membership else {
                panic!()
            };
            if let Some(id) = own_id {
                // Listed under its name: as it was, or anew.
                members
                    .insert(member(id.0, HOSTS[1], Role::Voter, Health::Unknown))
                    .unwrap();
            }
            if is(0) {
                // Its id, under another name.
                let twice = member(2, "test-8", Role::Voter, Health::Unknown);
                let _ = members.insert(twice);
            }
            let facts = &mut seen.instances[1].facts;
            let identity = facts.identity.as_mut().unwrap();
            if is(1) {
                identity.cluster = "other".try_into().unwrap();
            }
            if is(2) {
                identity.served = Some((OTHER, MemberId(2)));
            }
            if is(3) {
                facts.marker.as_mut().unwrap().cluster = "other".try_into().unwrap();
            }
            if is(4) {
                facts.data.owner = Some((OTHER, MemberId(2)));
            }
            if is(5) {
                facts.writable = Writable::ReadOnly;
            }
            if is(6) {
                facts.data.unreadable = Some("an error".try_into().unwrap());
            }
            let plan = plan(&spec(&HOSTS[..3]), &seen);
            let planned = |it: &Task| it.step == Upkeep::SetDataAside;
            let planned = plan.upkeep.iter().any(planned);
            let removed = own_id != Some(MemberId(2)) && !is(0);
            // Its ids, in the identity and in the log, are of the cluster whose list was read.
            let strange = is(1) || is(3) || is(2) != is(7) || is(4) != is(7);
            assert_eq!(
                planned,
                removed && !strange && !(5..7).any(is),
                "{number:b} {own_id:?} {plan:?}"
            );
            aside += u32::from(planned);
        }
    }
    println!("data of a stopped member: {states} states, {aside} set aside");
    assert_eq!(aside, 4);
}

/// The same members, in the list of another cluster.
fn of_another_cluster(membership: &Membership, other: ClusterId) -> Membership {
    let Membership::Known(members) = membership else {
        panic!("no list");
    };
    let mut list = MemberSet::of(other);
    for it in members.iter() {
        list.insert(it.clone()).unwrap();
    }
    Membership::Known(list)
}

/// A member that runs and does not answer.
fn unseen(membership: &Membership, alone: bool) -> permit::Seen<'_> {
    const NAME: &MemberName = &MemberName::new();
    permit::Seen {
        member: NAME,
        pid: Some(7),
        id: None,
        alone,
        membership,
        claim_deleted: false,
    }
}

/// An etcd that runs as this process.
fn running_as(pid: u32) -> Process {
    match running(SETTINGS, 60) {
        Process::Running {
            settings,
            version,
            quota,
            seconds,
            ..
        } => Process::Running {
            pid,
            settings,
            version,
            quota,
            seconds,
        },
        other => other,
    }
}

/// The world between a plan and its act: the step is taken where what is read again permits it, on the
/// process that it was planned for, and else not.
#[test]
fn a_permit_is_exchanged_only_for_what_is_read_again() {
    let processes = [
        running_as(7),
        running_as(8),
        Process::Stopped,
        Process::Unknown,
        Process::Foreign { pid: Some(7) },
    ];
    let declared = [
        None,
        Some(Declared::DocumentEdited),
        Some(Declared::SizeZero),
    ];
    let (mut kept, mut lapsed) = (0_u32, 0_u32);
    for number in 0..7_usize.pow(3) {
        let hosts = |number: usize| {
            let three = [0, 1, 2].map(|it| STATES[number / 7_usize.pow(it) % 7]);
            let absent = Host::Absent;
            Membership::Known(members_of(&[three[0], three[1], three[2], absent, absent]))
        };
        let now = hosts(number);
        for before in [&now, &hosts(1 + 7 + 49), &hosts(1)] {
            for (process, declared) in processes
                .iter()
                .flat_map(|it| declared.map(|declared| (*it, declared)))
            {
                let planned = |membership| {
                    let seen = permit::Seen {
                        id: Some(MemberId(1)),
                        ..unseen(membership, false)
                    };
                    permit::to_interrupt(seen, Act::Restart, declared)
                };
                let Ok(permit) = planned(before) else {
                    continue;
                };
                let again = Again {
                    process,
                    id: Some(MemberId(1)),
                    membership: now.clone(),
                    claim_deleted: false,
                };
                let undeclared = permit.grounds() == Grounds::QuorumSurvives;
                let taken = permit.exchange(&again);
                let may = matches!(process, Process::Running { pid: 7, .. });
                if let Ok(step) = &taken {
                    assert!(may && step.act == Act::Restart && step.pid == Some(7));
                    let Membership::Known(members) = &now else {
                        panic!()
                    };
                    let others = members.voters().filter(|it| it.id != MemberId(1));
                    let others = others.filter(|it| it.health == Health::Serving).count();
                    let zero = declared == Some(Declared::SizeZero);
                    assert!(
                        zero || members.voter_count() <= 1 && !undeclared
                            || others > members.voter_count() / 2,
                        "{before:?} {now:?}"
                    );
                    kept += 1;
                } else {
                    lapsed += 1;
                }
            }
        }
    }
    assert!(kept > 100 && lapsed > 1000, "{kept} {lapsed}");
}

/// Whatever was declared, and whatever runs: what keeps a deleted claim from going is ended by nobody.
#[test]
fn nothing_ends_what_keeps_a_deleted_claim() {
    let declared = [
        None,
        Some(Declared::DocumentEdited),
        Some(Declared::SizeZero),
        Some(Declared::Restore),
        Some(Declared::NoSpaceRepair),
    ];
    let acts = [
        Act::Stop,
        Act::Restart,
        Act::RegainSpace,
        Act::SwapRestored,
        Act::UndoRestore,
    ];
    let (mut refused, mut given) = (0, 0);
    for number in 0..7_usize.pow(3) {
        let hosts = [0, 1, 2].map(|it| STATES[number / 7_usize.pow(it) % 7]);
        let [a, b, c] = hosts;
        let members = Membership::Known(members_of(&[a, b, c, Host::Absent, Host::Absent]));
        for (declared, act) in declared.iter().flat_map(|it| acts.map(|act| (*it, act))) {
            for pid in [None, Some(7)] {
                let ask = |claim_deleted| {
                    let seen = permit::Seen {
                        id: Some(MemberId(1)),
                        pid,
                        claim_deleted,
                        ..unseen(&members, true)
                    };
                    permit::to_interrupt(seen, act, declared)
                };
                let asked = ask(true);
                if act == Act::RegainSpace {
                    assert_eq!(asked.is_ok(), ask(false).is_ok());
                    continue;
                }
                assert_eq!(asked.unwrap_err(), Hold::ClaimDeleted);
                refused += 1;
                // It is deleted between the plan and its act.
                let Ok(permit) = ask(false) else { continue };
                let process = pid.map_or(Process::Stopped, running_as);
                let again = Again {
                    process,
                    id: Some(MemberId(1)),
                    membership: members.clone(),
                    claim_deleted: true,
                };
                assert_eq!(
                    permit.exchange(&again).unwrap_err(),
                    Lapsed::Held(Hold::ClaimDeleted)
                );
                given += 1;
            }
        }
    }
    assert!(refused > 10_000 && given > 1000, "{refused} {given}");
}

/// The shared predicate by itself: what the planner asks first must not hide what it allows.
#[test]
fn a_permit_is_given_only_when_quorum_survives() {
    let mut given = [0_u32; 4];
    let edited = Some(Declared::DocumentEdited);
    for number in 0..7_usize.pow(5) {
        let hosts = [0, 1, 2, 3, 4].map(|it| STATES[number / 7_usize.pow(it) % 7]);
        let before = members_of(&hosts);
        let serving_but = |id: MemberId| {
            before
                .voters()
                .filter(|it| it.id != id && it.health == Health::Serving)
                .count()
        };
        for it in before.iter() {
            let index = usize::try_from(it.id.0).unwrap() - 1;
            let with = |host: Host| {
                let mut hosts = hosts;
                hosts[index] = host;
                members_of(&hosts)
            };
            if permit::to_remove(&before, it.id).is_ok() {
                let after = with(Host::Absent);
                assert!(before.has_quorum() && after.has_quorum() && after.voter_count() > 0);
                given[0] += 1;
            }
            if permit::to_promote(&before, it.id).is_ok() {
                assert_eq!(
                    (it.role, it.health),
                    (Role::Learner { caught_up: true }, Health::Serving)
                );
                assert!(before.has_quorum() && with(STATES[1]).has_quorum());
                given[1] += 1;
            }
            let known = Membership::Known(before.clone());
            let survives = serving_but(it.id) > before.voter_count() / 2;
            let interrupt = |declared| {
                let seen = permit::Seen {
                    id: Some(it.id),
                    ..unseen(&known, true)
                };
                permit::to_interrupt(seen, Act::Restart, declared)
            };
            let undeclared = interrupt(None);
            assert!(
                undeclared.is_err() || survives,
                "interrupted though nobody said so"
            );
            let declared = interrupt(edited);
            assert!(
                declared.is_err() || survives || before.voter_count() <= 1,
                "an edit costs quorum"
            );
            given[2] += u32::from(undeclared.is_ok()) + u32::from(declared.is_ok());
        }
        let new = world::place("test-9");
        if permit::to_add_learner(&before, &new.name, &new.peer_url).is_ok() {
            assert!(before.has_quorum());
            given[3] += 1;
        }
    }
    // Who cannot be asked is interrupted only where it was alone, and only by declaration.
    let unseen = |alone, declared| {
        let seen = unseen(&Membership::Unreachable, alone);
        permit::to_interrupt(seen, Act::Restart, declared)
    };
    assert!(unseen(true, edited).is_ok());
    assert!(
        unseen(false, edited).is_err()
            && unseen(true, None).is_err()
            && unseen(false, None).is_err()
    );
    println!("permits given: {given:?} (remove, promote, interrupt, add)");
    assert!(given.iter().all(|it| *it > 0));
}

/// A member list of so many voters and learners at their old peer URL, of which so many voters serve.
fn elsewhere(voters: usize, answering: usize, learners: usize) -> MemberSet {
    let mut members = MemberSet::of(CLUSTER);
    for index in 0..voters + learners {
        let role = if index < voters {
            Role::Voter
        } else {
            Role::Learner { caught_up: true }
        };
        let health = if index < answering || index >= voters {
            Health::Serving
        } else {
            Health::Unknown
        };
        let name = format!("test-{index}");
        let mut it = member(index as u64 + 1, &name, role, health);
        it.peer_url = format!("https://{name}:2390").as_str().try_into().unwrap();
        members.insert(it).unwrap();
    }
    members
}

/// The peer URL of a member is changed where it is the only voter and listens there already; before that, nobody
/// joins, who would look for it in vain. Of several none is moved.
#[test]
fn only_a_sole_voter_that_listens_there_is_moved_to_another_peer_url() {
    let old = Settings(SETTINGS.0 + 1);
    let processes = [
        Process::Unknown,
        Process::Stopped,
        running(old, 60),
        running(SETTINGS, 60),
    ];
    let (mut moved, mut waits, mut restarts) = (0_u32, 0_u32, 0_u32);
    for (voters, answering, learners) in (1..=3)
        .flat_map(|it| (0..=it).map(move |answering| (it, answering)))
        .flat_map(|(voters, answering)| [0, 1].map(|it| (voters, answering, it)))
    {
        for process in processes {
            for (size, authority) in [1, 3]
                .into_iter()
                .flat_map(|it| [Authority::Cluster, Authority::Host].map(|by| (it, by)))
            {
                let spec = spec(&["test-0", "test-1", "test-2"][..size]);
                let mut instance = stopped();
                instance.process = process;
                if matches!(process, Process::Running { .. }) && answering > 0 {
                    instance.service = serving();
                }
                instance.alone = voters + learners == 1;
                let members = elsewhere(voters, answering, learners);
                let mut seen = observed(instance, Membership::Known(members.clone()));
                seen.authority = authority;
                let plan = plan(&spec, &seen);
                let listens = process == running(SETTINGS, 60);
                let Ok(Some(permit)) = &plan.change else {
                    let edited = process == running(old, 60);
                    restarts += u32::from(edited && plan.act() == Some(Act::Restart));
                    waits += u32::from(voters == 1 && !listens);
                    continue;
                };
                match permit.step() {
                    Change::Update { member, peer_url } => {
                        assert!(voters == 1 && answering == 1 && listens, "{seen:?}");
                        assert_eq!(authority, Authority::Cluster);
                        assert_eq!(*member, MemberId(1));
                        assert_eq!(peer_url.as_str(), "https://test-0:2380");
                        moved += 1;
                    }
                    Change::AddLearner { .. } | Change::Promote { .. } => {
                        assert!(voters > 1, "{plan:?}");
                    }
                    Change::Remove { .. } => {}
                }
                if let Change::Update { .. } = permit.step() {
                    let other = elsewhere(2, 2, 0);
                    let step =
                        permit::to_update(&other, MemberId(1), &world::place("test-0").peer_url);
                    assert!(step.is_err(), "a second voter came in between");
                }
            }
        }
    }
    assert!(
        moved > 0 && waits > 0 && restarts > 0,
        "{moved} {waits} {restarts}"
    );
}
