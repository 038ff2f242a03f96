//! Members that come and go. Every state of one that may have left its cluster: what runs for it is ended only where a
//! majority confirmed that the cluster has no such member, and the permit lapses as soon as that is not so any more.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test"
)]

mod world;

use etcd_operator::cluster::{
    Answer, ClusterId, FAILED_SECONDS, Health, Member, MemberId, MemberSet, Role,
};
use etcd_operator::observed::{
    Again, Claim, Details, Instance, ListFrom, MadeFor, Membership, NoPlace, Observed,
    Predecessors, Process, Reading, Service,
};
use etcd_operator::plan::permit::{Grounds, Lapsed};
use etcd_operator::plan::{Act, Change, Hold, Plan, Task, Upkeep, leaves_its_claim, plan};
use etcd_operator::spec::ClusterSpec;
use etcd_operator::start::{DataDir, Identity, Refusal, Start};
use etcd_operator::status::{Kind, status};
use etcd_operator::version::Version;
use world::{CLUSTER, MEMBER, SETTINGS, VERSION, identity, member, name, place, spec};

/// The member that may have left.
const NAME: &str = "test-1";
const ID: MemberId = MemberId(77);

fn document(asks: bool) -> ClusterSpec {
    let mut document = spec(&["test-0", "test-2", "test-3"]);
    if asks {
        document.members[1] = place(NAME);
    } else {
        document.former.push(place(NAME)).unwrap();
    }
    document
}

/// All whom it asks for are listed.
fn whole() -> ClusterSpec {
    spec(&["test-0", NAME, "test-2"])
}

/// The list of the others; `id`: with this member under it, or as one that never started.
fn listed(id: Option<MemberId>, is_started: bool) -> MemberSet {
    let mut members = MemberSet::of(CLUSTER);
    let others = [(MEMBER, "test-0"), (MemberId(2), "test-2")];
    for (id, name) in others {
        let it = member(id.0, name, Role::Voter, Health::Serving);
        members.insert(it).unwrap();
    }
    if let Some(id) = id {
        let mut it = member(id.0, NAME, Role::Voter, Health::Unknown);
        if !is_started {
            (it.name, it.role) = (name(""), Role::Learner { caught_up: false });
        }
        members.insert(it).unwrap();
    }
    members
}

fn processes() -> [(Process, bool); 5] {
    [
        (Process::Unknown, false),
        (Process::Stopped, false),
        (Process::Stopped, true), // a Pod that waits to run
        (world::running(SETTINGS, 1000), false),
        (Process::Foreign { pid: None }, false),
    ]
}

/// `served`: the ids that were written down. `joins`: it was to join, and was not seen to serve.
fn instance(
    process: (Process, bool),
    served: Option<(ClusterId, MemberId)>,
    joins: bool,
) -> Instance {
    let identity = Identity {
        member: name(NAME),
        joined: joins,
        served,
        ..identity(false)
    };
    let mut it = world::stopped();
    it.member = name(NAME);
    it.alone = false;
    it.process = process.0;
    it.made_for = process.1.then_some(MadeFor {
        settings: SETTINGS,
        version: VERSION,
    });
    it.facts.data = world::data(served.is_some(), served.is_some(), None);
    it.facts.marker = Some(identity.clone());
    it.facts.identity = Some(identity);
    it
}

fn seen(instance: Instance, membership: Membership) -> Observed {
    let mut all = world::observed(world::running_instance(), membership);
    all.instances[0].alone = false;
    all.instances.push(instance).unwrap();
    all
}

#[test]
fn what_runs_is_ended_only_where_the_list_has_no_such_member() {
    let lists = [
        (None, true),
        (Some(ID), true),
        (Some(ID), false),
        (Some(MemberId(78)), true),
        (Some(MemberId(78)), false),
    ];
    let known: [fn(MemberSet) -> Membership; 3] =
        [Membership::Known, Membership::Unconfirmed, |_| {
            Membership::Unreachable
        }];
    let served = [None, Some((CLUSTER, ID)), Some((ClusterId(9), ID))];
    let mut ended = 0;
    for number in 0..5 * 5 * 3 * 3 * 2 * 2 * 2 {
        let process = processes()[number % 5];
        let (id, is_started) = lists[number / 5 % 5];
        let known_as = known[number / 25 % 3];
        let served = served[number / 75 % 3];
        let joins = number / 225 % 2 == 1;
        let asks = number / 450 % 2 == 1;
        let membership = known_as(listed(id, is_started));
        let from = [ListFrom::Operator, ListFrom::Peers][number / 900];
        let mut it = instance(process, served, joins);
        it.list_from = from;
        let observed = seen(it, membership.clone());
        let plan = plan(&document(asks), &observed);
        let permit = plan
            .interruption
            .filter(|it| it.grounds() == Grounds::HasLeft);
        let there = matches!(process.0, Process::Running { .. }) || process.1;
        let gone = match served {
            Some((cluster, own)) => cluster == CLUSTER && id != Some(own),
            // Its guard waits for its place.
            None => joins && id.is_none() && !(asks && from == ListFrom::Peers),
        };
        let confirmed = matches!(membership, Membership::Known(_));
        assert_eq!(
            permit.is_some(),
            there && gone && confirmed,
            "{process:?} {served:?} {joins} {membership:?}"
        );
        if let Some(permit) = permit {
            assert_eq!(
                (permit.step().act, &*permit.step().member),
                (Act::Stop, NAME)
            );
            ended += 1;
        }
    }
    println!("{ended} are ended");
    assert!(ended > 20);
}

/// What was read right before the act decides.
#[test]
fn the_permit_lapses_where_the_list_has_the_member_again_or_nobody_tells() {
    let running = world::running(SETTINGS, 1000);
    let again = |process, id, membership| Again {
        process,
        id,
        membership,
        claim_deleted: true, // of data that nobody asks for any more
    };
    let gone = || Membership::Known(listed(None, true));
    let back = Membership::Known(listed(Some(ID), true));
    let cases = vec![
        (again(running, None, gone()), true),
        (again(running, Some(ID), gone()), true),
        (again(running, Some(ID), back), false),
        // It says nothing, and the list has the id that was written down, under no name yet.
        (
            again(running, None, Membership::Known(listed(Some(ID), false))),
            false,
        ),
        (again(running, None, Membership::Unreachable), false),
        (
            again(running, None, Membership::Unconfirmed(listed(None, true))),
            false,
        ),
        (again(Process::Stopped, None, gone()), false),
        (again(Process::Unknown, None, gone()), false),
    ];
    for (again, holds) in cases {
        let of = instance((running, false), Some((CLUSTER, ID)), true);
        let permit = plan(&document(false), &seen(of, gone()))
            .interruption
            .unwrap();
        let exchanged = permit.exchange(&again);
        assert_eq!(exchanged.is_ok(), holds, "{again:?} {exchanged:?}");
        if let Err(lapsed) = exchanged {
            assert!(matches!(lapsed, Lapsed::Held(_) | Lapsed::ProcessChanged));
        }
    }
}

/// Its own answer says which member it is, whatever was written down.
#[test]
fn one_that_answers_as_a_member_of_the_list_is_left_alone() {
    let mut it = instance((world::running(SETTINGS, 1000), false), None, true);
    it.service = Service {
        details: Some(Details {
            member: ID,
            ..world::details()
        }),
        ..world::serving()
    };
    let members = listed(Some(ID), true);
    let answer = Answer {
        member: ID,
        raft_index: 10,
    };
    let membership = Membership::Known(members.with(&[answer]));
    let plan = plan(&document(true), &seen(it, membership));
    assert!(plan.interruption.is_none(), "{plan:?}");
}

/// What has a vote is known by its id, so the id is written down first: of the only voter before another member is added, of
/// a learner before it is promoted.
#[test]
fn a_member_gets_its_vote_once_its_id_is_written_down() {
    let learner = Role::Learner { caught_up: true };
    let answer = Answer {
        member: ID,
        raft_index: 10,
    };
    let mut members = MemberSet::of(CLUSTER);
    for (id, name, role) in [
        (MEMBER, "test-0", Role::Voter),
        (MemberId(2), "test-2", Role::Voter),
        (ID, NAME, learner),
    ] {
        members
            .insert(member(id.0, name, role, Health::Serving))
            .unwrap();
    }
    let membership = Membership::Known(members);
    for recorded in [None, Some((CLUSTER, ID))] {
        let mut it = instance((world::running(SETTINGS, 1000), false), recorded, true);
        it.service = Service {
            read: Reading::Joining(answer),
            ..Service::UNKNOWN
        };
        let plan = plan(&whole(), &seen(it, membership.clone()));
        let records = plan.steps().any(|it| *it == Upkeep::RecordServed);
        let promotes =
            matches!(&plan.change, Ok(Some(it)) if *it.step() == Change::Promote { member: ID });
        assert_eq!(
            (records, promotes),
            (recorded.is_none(), recorded.is_some()),
            "{plan:?}"
        );
    }
}

/// A watch may be late: the list has the learner, and its Pod was seen before etcd told anything.
#[test]
fn one_that_was_not_seen_to_tell_its_id_gets_no_vote() {
    let mut members = listed(None, true);
    let mut learner = member(
        ID.0,
        NAME,
        Role::Learner { caught_up: true },
        Health::Serving,
    );
    learner.name = name(NAME);
    members.insert(learner).unwrap();
    let it = instance((world::running(SETTINGS, 1000), false), None, true);
    let plan = plan(&whole(), &seen(it, Membership::Known(members)));
    assert!(!matches!(plan.change, Ok(Some(_))), "{plan:?}");
}

fn blank() -> Instance {
    let mut it = world::stopped();
    (it.facts.identity, it.facts.marker) = (None, None);
    it.facts.data = DataDir::EMPTY;
    it
}

/// A document of three of which nobody has anything; Pods whose guards wait for their place.
fn unborn() -> (ClusterSpec, Observed) {
    let spec = whole();
    let mut all = world::observed(blank(), Membership::Unbootstrapped);
    all.instances = spec
        .members
        .iter()
        .map(|it| Instance {
            member: it.name.clone(),
            list_from: ListFrom::Peers,
            ..blank()
        })
        .collect();
    (spec, all)
}

fn starts(plan: &Plan) -> Vec<(&str, Start)> {
    let start = |it: &Task| match it.step {
        Upkeep::Start(it) => Some(it),
        _ => None,
    };
    let all = plan.upkeep.iter();
    all.filter_map(|it| Some((&*it.member, start(it)?)))
        .collect()
}

/// So images and volumes are fetched at the same time; but none before the first one, and none beside what may be the cluster.
#[test]
fn all_pods_of_a_cluster_that_is_born_are_made_together() {
    let (spec, mut all) = unborn();
    let first = ("test-0", Start::Go);
    let others = [(NAME, Start::Join), ("test-2", Start::Join)];
    let made = plan(&spec, &all);
    assert_eq!(starts(&made), [&[first][..], &others].concat());
    let latched = made.steps().filter_map(|it| match it {
        Upkeep::LatchIdentity { joins, .. } => Some(*joins),
        _ => None,
    });
    assert_eq!(latched.collect::<Vec<_>>(), [false, true, true]);
    // The second of an operator that was killed there: they come once the first one tells the list.
    for it in &mut all.instances {
        it.list_from = ListFrom::Operator;
    }
    assert_eq!(starts(&plan(&spec, &all)), [first]);
    let (_, mut all) = unborn();
    all.predecessors = Predecessors::Looking;
    assert_eq!(starts(&plan(&spec, &all)), []);
    let (_, mut all) = unborn();
    all.instances[1].facts.identity = Some(Identity {
        member: name(NAME),
        ..identity(true)
    });
    assert!(!starts(&plan(&spec, &all)).contains(&first), "it has lived");
    let (_, mut all) = unborn();
    all.instances[2].process = Process::Unknown;
    assert!(!starts(&plan(&spec, &all)).contains(&first), "nobody knows");
}

/// The first one starts again whatever its image or its node did, while the others wait for it.
#[test]
fn guards_that_wait_for_their_place_keep_no_cluster_from_its_birth() {
    let (spec, mut all) = unborn();
    for it in &mut all.instances {
        let own = Identity {
            member: it.member.clone(),
            joined: it.member != "test-0",
            ..identity(false)
        };
        (it.facts.identity, it.facts.marker) = (Some(own.clone()), Some(own));
    }
    for process in [Process::Stopped, world::running(SETTINGS, 1000)] {
        all.instances[1].process = process;
        all.instances[2].process = process;
        let plan = plan(&spec, &all);
        assert!(starts(&plan).contains(&("test-0", Start::Go)), "{plan:?}");
        assert!(
            plan.interruption.is_none() && !matches!(plan.change, Ok(Some(_))),
            "{plan:?}"
        );
    }
    // Where the list is rendered by the operator, who is to join has seen the cluster.
    all.instances[1].list_from = ListFrom::Operator;
    assert!(!starts(&plan(&spec, &all)).contains(&("test-0", Start::Go)));
}

#[test]
fn nobody_is_added_beside_a_voter_whose_id_is_not_written_down() {
    for recorded in [false, true] {
        let mut all = seen(
            instance((Process::Stopped, false), None, true),
            Membership::Known(listed(None, true)),
        );
        let founder = &mut all.instances[0];
        let served = recorded.then_some((CLUSTER, MEMBER));
        let born = Identity {
            served,
            ..identity(true)
        };
        (founder.facts.identity, founder.facts.marker) = (Some(born.clone()), Some(born));
        founder.service = world::serving();
        let plan = plan(&document(true), &all);
        let adds =
            matches!(&plan.change, Ok(Some(it)) if matches!(it.step(), Change::AddLearner { .. }));
        let records = plan.steps().any(|it| *it == Upkeep::RecordServed);
        assert_eq!((records, adds), (!recorded, recorded), "{plan:?}");
    }
}

/// Another claim under a member that serves is written down, so that it is no lost one when the member stops.
#[test]
fn the_claim_of_a_member_that_serves_is_written_down() {
    let other = Details {
        member: MemberId(2),
        ..world::details()
    };
    for (claim, details, is_recorded) in [
        (Claim::Stays, world::details(), false),
        (Claim::New, world::details(), true),
        (Claim::New, other, false), // another member's data
    ] {
        let mut all = seen(
            instance((Process::Stopped, false), None, true),
            Membership::Known(listed(None, true)),
        );
        all.instances[0].claim = claim;
        all.instances[0].service.details = Some(details);
        let plan = plan(&document(true), &all);
        let records = plan.steps().any(|it| *it == Upkeep::RecordServed);
        assert_eq!(records, is_recorded, "{plan:?}");
    }
}

/// The document may name a version that is not rolled out, and a smaller quota.
#[test]
fn who_joins_takes_the_version_and_at_least_the_quota_of_the_others() {
    let mut spec = whole();
    spec.version = Some(Version::new(3, 7, 1));
    spec.quota = Some(1 << 30);
    let mut it = instance((Process::Stopped, false), None, true);
    (it.facts.identity, it.facts.marker, it.quota_at_birth) = (None, None, 2 << 30);
    let all = seen(it, Membership::Known(listed(Some(ID), false)));
    let plan = plan(&spec, &all);
    let latch = Upkeep::LatchIdentity {
        version: VERSION,
        quota: 2 << 30,
        joins: true,
    };
    assert!(plan.steps().any(|it| *it == latch), "{plan:?}");
}

/// A member that nobody asks for is removed; where the operator ended before it wrote that down, it does so later.
#[test]
fn the_record_of_a_removed_member_is_ended_later_too() {
    let it = instance((Process::Stopped, false), Some((CLUSTER, ID)), true);
    let plan = plan(
        &document(false),
        &seen(it, Membership::Known(listed(None, true))),
    );
    assert!(
        plan.steps().any(|it| *it == Upkeep::SetDataAside),
        "{plan:?}"
    );
}

/// Three members, of which nothing is heard of this one and its node.
fn unheard(seconds: u64, serving: usize) -> Observed {
    unheard_without(seconds, serving, None)
}

/// The same, and why no other node takes one in its stead.
fn unheard_without(seconds: u64, serving: usize, no_place: Option<NoPlace>) -> Observed {
    let mut it = instance(
        (world::running(SETTINGS, 5000), false),
        Some((CLUSTER, ID)),
        true,
    );
    (it.unheard, it.no_place) = (Some(seconds), no_place);
    let mut members = MemberSet::of(CLUSTER);
    for (number, it) in listed(Some(ID), true).iter().enumerate() {
        let mut it = it.clone();
        if it.id != ID && number >= serving {
            it.health = Health::Unknown;
        }
        members.insert(it).unwrap();
    }
    let all = seen(it, Membership::Known(members));
    let membership = all.membership.clone().after(&whole(), &all.instances);
    Observed { membership, ..all }
}

/// A member and its node are away for long: the others replace it, as long as they are a majority.
#[test]
fn who_is_not_heard_of_for_the_grace_is_replaced_by_a_majority_of_the_others() {
    let spec = whole();
    let removes = |seen: &Observed| {
        let plan = plan(&spec, seen);
        matches!(&plan.change, Ok(Some(it)) if *it.step() == Change::Remove { member: ID })
    };
    assert!(removes(&unheard(FAILED_SECONDS, 3)));
    assert!(!removes(&unheard(FAILED_SECONDS - 1, 3)), "before its time");
    assert!(!removes(&unheard(FAILED_SECONDS, 1)), "without a majority");
    let holds = ClusterSpec {
        replace_failed: false,
        ..whole()
    };
    let held = plan(&holds, &unheard(FAILED_SECONDS, 3));
    assert_eq!(held.hold(), Some(&Hold::MemberFailed(name(NAME))));
    let held = plan(&holds, &unheard(FAILED_SECONDS - 1, 3));
    assert_eq!(held.hold(), None);
}

/// That another one could take its place is told first, and why it does not start with it.
#[test]
fn who_is_held_without_data_is_told_as_failed() {
    let holds = ClusterSpec {
        replace_failed: false,
        ..whole()
    };
    let mut it = instance((Process::Stopped, false), Some((CLUSTER, ID)), true);
    it.facts.data = world::data(false, false, None);
    it.refused = Some(Refusal::DataMissing);
    let seen = seen(it, Membership::Known(listed(Some(ID), true)));
    let plan = plan(&holds, &seen);
    let held = plan.held(&seen).unwrap();
    assert_eq!(held.hold, Hold::MemberFailed(name(NAME)), "{plan:?}");
    let cause = plan.holds.iter().find(|it| it.0 == name(NAME)).unwrap();
    let cause = cause.1.to_string();
    assert!(held.words.ends_with(cause.as_str()), "{}", held.words);
}

/// It counts among the others' majority again when its node is back; removed, it would not.
#[test]
fn who_has_no_place_on_another_node_is_not_removed_and_that_is_told() {
    let spec = whole();
    for (why, words) in [
        (NoPlace::NoOtherNode, "no other node has a place for it"),
        (NoPlace::Unknown, "is not known"),
    ] {
        let seen = unheard_without(10 * FAILED_SECONDS, 3, Some(why));
        let plan = plan(&spec, &seen);
        assert_eq!((plan.hold(), &plan.change), (None, &Ok(None)));
        assert!(!leaves_its_claim(&spec, &seen.instances[1]));
        let status = status(&spec, &seen, &plan);
        let mut all = status.conditions.iter();
        let told = all.find(|it| it.kind == Kind::Degraded).unwrap();
        assert_eq!(told.reason, "NodeAway");
        assert!(told.message.contains(words), "{}", told.message);
    }
}

/// Its claim was given up: what is on that one is ended, whatever its node says, and nobody else's.
#[test]
fn what_is_on_a_claim_that_was_given_up_is_ended_whatever_its_node_says() {
    for process in processes() {
        for (claim, lists) in [
            (Claim::Former, Some(ID)),
            (Claim::Former, None),
            (Claim::Stays, Some(ID)),
        ] {
            let mut it = instance(process, None, true);
            it.claim = claim;
            let membership = Membership::Known(listed(lists, false));
            let plan = plan(&whole(), &seen(it, membership.clone()));
            let permit = plan
                .interruption
                .filter(|it| it.grounds() == Grounds::HasLeft);
            let foreign = matches!(process.0, Process::Foreign { .. });
            let ends = claim == Claim::Former && !foreign;
            assert_eq!(permit.is_some(), ends, "{process:?} {claim:?} {lists:?}");
            let Some(permit) = permit else { continue };
            let again = Again {
                process: process.0,
                id: None,
                membership,
                claim_deleted: false,
            };
            assert!(permit.exchange(&again).is_ok(), "{process:?}");
        }
    }
}

/// The operator that removed the member, or waited for it to join, ended before it gave the claim up: the next one does.
#[test]
fn what_lies_on_a_lost_node_is_given_up_by_the_next_operator_too() {
    let served = Some((CLUSTER, ID));
    let known = |it| Membership::Known(listed(it, false));
    let step = |membership: &Membership, served, unheard, claim| {
        let mut it = instance((Process::Unknown, false), served, served.is_none());
        (it.unheard, it.claim) = (Some(unheard), claim);
        let plan = plan(&whole(), &seen(it, membership.clone()));
        let gives = |it: &&Upkeep| matches!(it, Upkeep::SetDataAside | Upkeep::GiveUpClaim);
        plan.steps().find(gives).cloned()
    };
    let long = FAILED_SECONDS;
    let aside = Some(Upkeep::SetDataAside);
    assert_eq!(step(&known(None), served, long, Claim::Stays), aside);
    assert_eq!(step(&known(None), served, long - 1, Claim::Stays), None);
    assert_eq!(step(&known(None), served, long, Claim::Former), None);
    assert_eq!(step(&known(Some(ID)), served, long, Claim::Stays), None);
    let unconfirmed = Membership::Unconfirmed(listed(None, false));
    assert_eq!(step(&unconfirmed, served, long, Claim::Stays), None);
    let mut silent = MemberSet::of(CLUSTER);
    for it in listed(None, false).iter() {
        let health = Health::Unknown;
        silent
            .insert(Member {
                health,
                ..it.clone()
            })
            .unwrap();
    }
    let silent = Membership::Known(silent);
    assert_eq!(step(&silent, served, long, Claim::Stays), None);
    // One that was to join: first the list is without it, so that nobody else starts under its id.
    let given_up = Some(Upkeep::GiveUpClaim);
    assert_eq!(step(&known(None), None, long, Claim::New), given_up);
    assert_eq!(step(&known(None), None, long - 1, Claim::New), None);
    assert_eq!(step(&known(Some(ID)), None, long, Claim::New), None);
    let mut it = instance((Process::Unknown, false), None, true);
    it.unheard = Some(long);
    let membership = known(Some(ID)).after(&whole(), std::slice::from_ref(&it));
    let plan = plan(&whole(), &seen(it, membership));
    let change = plan.change.as_ref().ok().and_then(Option::as_ref);
    let removes = change.map(|it| it.step().clone());
    assert_eq!(removes, Some(Change::Remove { member: ID }), "{plan:?}");
}

/// The list of a minority is told, and nothing follows from it.
#[test]
fn a_minority_tells_who_is_silent() {
    let it = instance((Process::Unknown, false), Some((CLUSTER, ID)), true);
    let alone = Membership::Unconfirmed(listed(Some(ID), true));
    let held = plan(&whole(), &seen(it, alone)).change.err();
    let silent = NAME.try_into().unwrap();
    assert_eq!(held, Some(Hold::MajorityLost(1, 3, silent)));
    let leaderless = Hold::MajorityLost(0, 3, "".try_into().unwrap()).to_string();
    assert!(
        leaderless.starts_with("no majority of the 3"),
        "{leaderless}"
    );
}
