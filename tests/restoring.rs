//! Every state of a host in which a restore is under way: what may be done, and what never is.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test"
)]

mod world;

use etcd_operator::observed::{
    Alarms, Instance, MadeFor, Membership, Observed, Pairs, Process, Reading, RestorePhase,
    Restoring, Service, Unanswered, Writing,
};
use etcd_operator::plan::permit::{Declared, Grounds, Permit};
use etcd_operator::plan::{Act, Hold, Interruption, Upkeep, plan};
use etcd_operator::start::{DataDir, StartHistory, Writable};
use world::{observed, running, serving, single, spec, stopped};

const PHASES: [RestorePhase; 5] = [
    RestorePhase::Requested,
    RestorePhase::Prepared,
    RestorePhase::Swapping,
    RestorePhase::Starting,
    RestorePhase::Undoing,
];

fn processes() -> Vec<Process> {
    vec![
        Process::Unknown,
        Process::Stopped,
        running(world::SETTINGS, 1),
        running(world::SETTINGS, 1000),
        Process::Foreign { pid: None },
    ]
}

fn services() -> Vec<Service> {
    let mut all = Vec::new();
    for read in [Reading::Answered, Reading::TimedOut, Reading::NotTried] {
        for write in [Writing::Acknowledged, Writing::NotTried] {
            for no_space in [false, true] {
                let details = serving().details.filter(|_| read == Reading::Answered);
                all.push(Service {
                    read: read.clone(),
                    write: write.clone(),
                    alarms: Alarms {
                        no_space,
                        corrupt: false,
                    },
                    details,
                    ..serving()
                });
            }
        }
    }
    all
}

fn histories() -> [StartHistory; 3] {
    [
        StartHistory::NONE,
        world::failed(1, Some("crc mismatch")),
        world::failed(3, None),
    ]
}

fn datas() -> [DataDir; 3] {
    let sound = stopped().facts.data;
    let damaged = DataDir {
        damage: Some(world::damage()),
        ..sound.clone()
    };
    [DataDir::EMPTY, sound, damaged]
}

/// How often and how long etcd was asked in vain: not yet, once after a day of silence from here, often
/// at once, and often for long enough.
fn unanswered() -> [Unanswered; 4] {
    [(0, 0), (1, 86_400), (1000, 10), (1000, 1000)]
        .map(|(looks, seconds)| Unanswered { looks, seconds })
}

fn made_for(waits: bool) -> Option<MadeFor> {
    waits.then_some(MadeFor {
        settings: world::SETTINGS,
        version: world::VERSION,
    })
}

/// Whether the new data is made where the old data lies, and something waits to run there.
const PLACES: [(bool, bool); 3] = [(false, false), (true, false), (true, true)];

fn states(mut visit: impl FnMut(&Observed, Restoring)) {
    for (((phase, busy), unanswered), (stops_first, waits)) in PHASES
        .into_iter()
        .flat_map(|it| [(it, false), (it, true)])
        .flat_map(|it| unanswered().map(|asked| (it, asked)))
        .flat_map(|it| PLACES.map(|place| (it, place)))
    {
        for process in processes() {
            for service in services() {
                for history in histories() {
                    for data in datas() {
                        for writable in [Writable::Yes, Writable::ReadOnly] {
                            for membership in [single(), Membership::Unreachable] {
                                let restoring = Restoring {
                                    phase,
                                    busy,
                                    stops_first,
                                };
                                let mut instance: Instance = stopped();
                                instance.process = process;
                                instance.tries.unanswered = unanswered;
                                instance.made_for = made_for(waits && process == Process::Stopped);
                                instance.service = service.clone();
                                instance.facts.history = history.clone();
                                instance.facts.data = data.clone();
                                instance.facts.writable = writable;
                                instance.facts.restoring = restoring.holds_the_data();
                                let mut seen = observed(instance, membership);
                                seen.restoring = Some(restoring);
                                seen.backups.due_in = Some(0);
                                visit(&seen, restoring);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A restore interrupts for itself alone, and needs leave for what runs. Returns whether it gives up.
fn check_interruption(
    permit: &Permit<Interruption>,
    instance: &Instance,
    restoring: Restoring,
) -> bool {
    let runs = matches!(instance.process, Process::Running { .. });
    assert_eq!(permit.step().pid.is_some(), runs, "leave to stop what runs");
    let declared = Grounds::DeclaredOutage(Declared::Restore);
    let grounds = if runs { declared } else { Grounds::NothingRuns };
    assert_eq!(permit.grounds(), grounds);
    let phase = restoring.phase;
    match permit.step().act {
        Act::Stop => {
            assert!(phase == RestorePhase::Requested && restoring.stops_first);
            assert!(instance.is_there(), "what is not there is not stopped");
            false
        }
        Act::SwapRestored => {
            assert!(matches!(
                phase,
                RestorePhase::Prepared | RestorePhase::Swapping
            ));
            false
        }
        Act::UndoRestore => {
            let asked = instance.tries.unanswered;
            assert!(
                phase != RestorePhase::Starting || !runs || asked.looks > 1 && asked.seconds > 10,
                "no single question, and no age of etcd's, gives up data that may be served: {asked:?}"
            );
            true
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_restore_is_the_only_thing_that_is_done_and_etcd_is_stopped_only_for_it() {
    let mut spec = spec(&["test-0"]);
    spec.backup = Some(world::backup("interval"));
    spec.bootstrap = Some(etcd_operator::spec::backup::Source::Latest);
    spec.restore_when_damaged = true;
    let (mut count, mut finished, mut undone, mut given_up) = (0_u32, 0_u32, 0_u32, 0_u32);
    let mut prepared_in_place = 0_u32;
    states(|seen, restoring| {
        count += 1;
        let plan = plan(&spec, seen);
        let instance = &seen.instances[0];
        assert!(plan.change.is_err(), "nothing about the members");
        let steps = plan.upkeep.len() + usize::from(plan.interruption.is_some());
        assert!(steps <= 1, "one step at a time");
        if steps == 0 {
            return;
        }
        assert!(
            matches!(plan.change, Err(Hold::Restoring(it)) if it == restoring.phase),
            "{plan:?}"
        );
        let runs = matches!(instance.process, Process::Running { .. });
        if let Some(permit) = &plan.interruption {
            let undoes = check_interruption(permit, instance, restoring);
            undone += u32::from(undoes);
            let starting = restoring.phase == RestorePhase::Starting;
            given_up += u32::from(undoes && starting && runs);
        }
        let Some(step) = plan.steps().next() else {
            return;
        };
        match step {
            Upkeep::PrepareRestore => {
                assert!(restoring.phase == RestorePhase::Requested && !restoring.busy);
                let in_place = restoring.stops_first && instance.is_there();
                assert!(!in_place, "two would work on one volume");
                prepared_in_place += u32::from(restoring.stops_first);
            }
            Upkeep::Start(_) => {
                assert_eq!(restoring.phase, RestorePhase::Starting);
                assert_eq!(instance.process, Process::Stopped);
            }
            Upkeep::ProbeWrite => assert!(runs && restoring.phase == RestorePhase::Starting),
            Upkeep::FinishRestore => {
                finished += 1;
                let service = &instance.service;
                assert!(runs && restoring.phase == RestorePhase::Starting);
                assert_eq!(service.read, Reading::Answered);
                assert_eq!(service.write, Writing::Acknowledged);
            }
            other => panic!("{other:?}"),
        }
    });
    println!(
        "restores: {count} states (phase 5 x busy 2 x place 3 x unanswered 4 x process 5 x service 12 x history 3 x data 3 x writable 2 x membership 2), {finished} finished, {undone} undone"
    );
    assert!(count == 259_200 && finished > 0 && undone > given_up && given_up > 0);
    assert!(prepared_in_place > 0);
}

#[test]
fn a_process_that_cannot_be_told_is_no_stopped_one() {
    let spec = spec(&["test-0"]);
    states(|seen, restoring| {
        if seen.instances[0].process == Process::Unknown {
            let plan = plan(&spec, seen);
            let touches = plan.steps().any(|it| !matches!(it, Upkeep::PrepareRestore));
            assert!(!touches, "{restoring:?} {plan:?}");
            assert!(plan.interruption.is_none(), "{restoring:?} {plan:?}");
        }
    });
}

#[test]
fn an_operator_that_etcd_cannot_know_gives_up_no_restored_data() {
    let spec = spec(&["test-0"]);
    states(|seen, restoring| {
        let mut seen = seen.clone();
        for pairs in [Pairs::Missing, Pairs::Broken, Pairs::Expired] {
            seen.instances[0].certificates.pairs = pairs;
            let plan = plan(&spec, &seen);
            let stops = plan.interruption.as_ref();
            let undoes = stops
                .is_some_and(|it| it.step().act == Act::UndoRestore && it.step().pid.is_some());
            assert!(
                !undoes || restoring.phase == RestorePhase::Undoing,
                "{plan:?}"
            );
        }
    });
}

/// Nobody of before serves beside the data that comes: it is prepared once, and only where no member is there.
#[test]
fn of_several_members_all_stop_before_the_data_of_one_is_replaced() {
    let restoring = Restoring {
        phase: RestorePhase::Requested,
        busy: false,
        stops_first: true,
    };
    let names = ["test-0", "test-1", "test-2"];
    let document = spec(&names);
    let states = [
        (Process::Unknown, false),
        (Process::Stopped, false),
        (Process::Stopped, true), // a Pod that waits to run
        (running(world::SETTINGS, 1000), false),
        (Process::Foreign { pid: None }, false),
    ];
    let (mut prepared, mut stopped_one) = (0, 0);
    for number in 0..5_usize.pow(3) * 2 {
        let mut all = Vec::new();
        for (index, its_name) in names.iter().enumerate() {
            let (process, waits) = states[number / 5_usize.pow(u32::try_from(index).unwrap()) % 5];
            let mut it = stopped();
            it.member = world::name(its_name);
            it.alone = false;
            it.process = process;
            it.made_for = waits.then_some(MadeFor {
                settings: world::SETTINGS,
                version: world::VERSION,
            });
            all.push(it);
        }
        let there = all.iter().any(Instance::is_there);
        let unknown = all.iter().any(|it| it.process != Process::Stopped);
        let membership = if number < 125 {
            single()
        } else {
            Membership::Unreachable
        };
        let mut seen = observed(all.remove(0), membership);
        for it in all {
            seen.instances.push(it).unwrap();
        }
        seen.restoring = Some(restoring);
        let plan = plan(&document, &seen);
        let steps: Vec<_> = plan.upkeep.iter().collect();
        if there || unknown {
            assert!(steps.is_empty(), "{steps:?}");
        } else {
            assert_eq!(steps.len(), 1);
            assert_eq!(
                (&*steps[0].member, &steps[0].step),
                ("test-0", &Upkeep::PrepareRestore)
            );
            prepared += 1;
        }
        assert_eq!(plan.interruption.is_some(), there, "{seen:?}");
        stopped_one += usize::from(plan.act() == Some(Act::Stop));
    }
    assert!(
        prepared == 2 && stopped_one > 100,
        "{prepared} {stopped_one}"
    );
}
