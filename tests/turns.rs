//! Whose turn it is: an edit restarts several members one after the other, however many a majority can do without; and what is
//! told first where several things are wrong.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod world;

use etcd_operator::cluster::{Health, MemberId, MemberSet, Role, detail};
use etcd_operator::observed::{
    Again, Details, Instance, Membership, Observed, Process, Reading, Service,
};
use etcd_operator::plan::permit::Lapsed;
use etcd_operator::plan::turn::LASTS_SECONDS;
use etcd_operator::plan::{Act, Change, Hold, Plan, REQUEUE_PROGRESSING, plan};
use etcd_operator::spec::{ClusterSpec, Settings};
use etcd_operator::start::{Identity, Refusal};
use etcd_operator::status::{Kind, Status, Verdict, status};
use world::{CLUSTER, SETTINGS, details, member, name, running, serving, spec, stopped};

const NAMES: [&str; 5] = ["test-0", "test-1", "test-2", "test-3", "test-4"];
const EDITED: Settings = Settings(8);

fn edited() -> ClusterSpec {
    ClusterSpec {
        settings: EDITED,
        ..spec(&NAMES)
    }
}

fn id(number: usize) -> MemberId {
    MemberId(number as u64 + 1)
}

fn instance(number: usize, settings: Settings) -> Instance {
    let own = Identity {
        member: name(NAMES[number]),
        joined: number > 0,
        served: Some((CLUSTER, id(number))),
        ..world::identity(true)
    };
    let mut it = stopped();
    it.member = name(NAMES[number]);
    it.alone = false;
    it.facts.data.owner = Some((CLUSTER, id(number)));
    it.facts.identity = Some(own.clone());
    it.facts.marker = Some(own);
    it.process = running(settings, 1000);
    it.service = Service {
        details: Some(Details {
            member: id(number),
            leader: Some(id(4)),
            ..details()
        }),
        ..serving()
    };
    it
}

/// Five that serve with the settings of before; the last one leads.
fn five() -> Observed {
    let mut seen = world::observed(instance(0, SETTINGS), list(&[]));
    for number in 1..NAMES.len() {
        seen.instances.push(instance(number, SETTINGS)).unwrap();
    }
    seen
}

fn list(away: &[usize]) -> Membership {
    Membership::Known(members(away))
}

fn members(away: &[usize]) -> MemberSet {
    let mut members = MemberSet::of(CLUSTER);
    for (number, it) in NAMES.iter().enumerate() {
        let health = if away.contains(&number) {
            Health::Unknown
        } else {
            Health::Serving
        };
        let it = member(id(number).0, it, Role::Voter, health);
        members.insert(it).unwrap();
    }
    members
}

fn is_silent(seen: &mut Observed, number: usize) {
    seen.instances[number].service = Service::UNKNOWN;
    seen.instances[number].tries.answered = 0;
    seen.membership = list(&[number]);
}

fn restarts(plan: &Plan) -> Option<&str> {
    let permit = plan.interruption.as_ref()?;
    assert_eq!(permit.step().act, Act::Restart);
    Some(&permit.step().member)
}

fn told(seen: &Observed, plan: &Plan) -> Status {
    status(&edited(), seen, plan)
}

fn progresses(status: &Status, words: &str) {
    let it = status.condition(Kind::Progressing);
    assert_eq!((it.verdict, it.reason), (Verdict::True, "Acting"), "{it:?}");
    assert!(it.message.contains(words), "{it:?}");
}

#[test]
fn an_edit_waits_while_another_member_is_away() {
    let mut seen = five();
    assert_eq!(restarts(&plan(&edited(), &seen)), Some("test-0"));
    // A majority could do without both.
    is_silent(&mut seen, 3);
    seen.instances[3].process = running(EDITED, 1000);
    let planned = plan(&edited(), &seen);
    assert_eq!(restarts(&planned), None);
    assert_eq!(planned.hold(), None, "it is no fault that an edit waits");
    let status = told(&seen, &planned);
    progresses(
        &status,
        "test-0 is restarted with the edited document once test-3 serves",
    );
    let degraded = status.condition(Kind::Degraded);
    assert_eq!(degraded.reason, "MembersNotServing", "{degraded:?}");
}

/// What an edit may mend.
#[test]
fn one_that_does_not_serve_is_restarted_whoever_else_is_away() {
    let mut seen = five();
    is_silent(&mut seen, 2);
    is_silent(&mut seen, 3);
    seen.membership = list(&[2, 3]);
    seen.instances[3].process = running(EDITED, 1000);
    assert_eq!(restarts(&plan(&edited(), &seen)), Some("test-2"));
}

#[test]
fn the_next_one_follows_when_the_last_one_has_lasted() {
    let mut seen = five();
    seen.instances[1].process = running(EDITED, 5);
    for (answered, next) in [
        (0, None),
        (LASTS_SECONDS - 1, None),
        (LASTS_SECONDS, Some("test-0")),
    ] {
        seen.instances[1].tries.answered = answered;
        let planned = plan(&edited(), &seen);
        assert_eq!(restarts(&planned), next, "{answered}");
        if next.is_none() {
            assert_eq!(planned.requeue_after, REQUEUE_PROGRESSING);
            progresses(&told(&seen, &planned), "once test-1 has answered for");
        }
    }
    // One that flaps comes first, while it answers: the edit may mend it.
    seen.instances[1].process = running(SETTINGS, 5);
    seen.instances[1].tries.answered = 0;
    assert_eq!(restarts(&plan(&edited(), &seen)), Some("test-1"));
}

/// A larger quota is the way out for all of them.
#[test]
fn a_full_database_waits_for_nobody() {
    let mut seen = five();
    is_silent(&mut seen, 3);
    seen.instances[3].process = running(EDITED, 1000);
    if let Process::Running { quota, .. } = &mut seen.instances[3].process {
        *quota = 2 * world::QUOTA;
    }
    let document = ClusterSpec {
        quota: Some(2 * world::QUOTA),
        ..edited()
    };
    assert_eq!(restarts(&plan(&document, &seen)), None);
    for it in &mut seen.instances {
        it.service.alarms.no_space = true;
    }
    let planned = plan(&document, &seen);
    assert_eq!(restarts(&planned), Some("test-0"));
    let again = Again {
        process: running(SETTINGS, 1000),
        id: Some(id(0)),
        membership: list(&[3]),
        claim_deleted: false,
    };
    assert!(planned.interruption.unwrap().exchange(&again).is_ok());
}

/// etcd's own users: nothing is known to be wrong but that.
#[test]
fn several_members_that_do_not_let_the_operator_in_are_told_as_such() {
    let mut seen = five();
    for it in &mut seen.instances {
        it.service.read = Reading::NotPermitted(detail(format_args!("permission denied")));
    }
    seen.membership = Membership::Unconfirmed(members(&[]));
    for settings in [SETTINGS, EDITED] {
        let document = ClusterSpec {
            settings,
            ..spec(&NAMES)
        };
        let planned = plan(&document, &seen);
        assert_eq!(planned.hold(), Some(&Hold::AuthEnabled), "{planned:?}");
    }
}

/// Surplus members go after the edit; but one that is away would keep the edit waiting.
#[test]
fn between_two_restarts_only_a_silent_member_is_removed() {
    let document = ClusterSpec {
        former: NAMES[3..].iter().map(|it| world::place(it)).collect(),
        settings: EDITED,
        ..spec(&NAMES[..3])
    };
    let removed = |seen: &Observed| {
        let change = plan(&document, seen).change.unwrap();
        change.map(|it| it.step().clone())
    };
    let mut seen = five();
    seen.instances[0].process = running(EDITED, 5);
    seen.instances[0].tries.answered = 5;
    assert_eq!(restarts(&plan(&document, &seen)), None);
    assert_eq!(removed(&seen), None);
    is_silent(&mut seen, 3);
    assert_eq!(removed(&seen), Some(Change::Remove { member: id(3) }));
}

#[test]
fn a_restart_lapses_where_another_member_went_meanwhile() {
    let permit = || plan(&edited(), &five()).interruption.unwrap();
    let again = |away: &[usize]| Again {
        process: running(SETTINGS, 1000),
        id: Some(id(0)),
        membership: list(away),
        claim_deleted: false,
    };
    assert!(permit().exchange(&again(&[])).is_ok());
    assert_eq!(
        permit().exchange(&again(&[4])),
        Err(Lapsed::AnotherAway),
        "four of five serve"
    );
    // The restart of one that does not serve costs nothing; of one that serves again it does.
    let mut seen = five();
    is_silent(&mut seen, 0);
    let permit = || plan(&edited(), &seen).interruption.unwrap();
    assert!(permit().exchange(&again(&[0, 4])).is_ok());
    assert_eq!(permit().exchange(&again(&[4])), Err(Lapsed::AnotherAway));
}

#[test]
fn a_lost_majority_is_told_before_why_one_of_them_does_not_start() {
    let refusal = || Refusal::Unplaceable {
        reason: "VolumeElsewhere",
        why: detail(format_args!("its claim lies on edge2")),
        next: "bring it back",
    };
    let mut seen = five();
    for number in [0, 1, 2] {
        let mut it = instance(number, SETTINGS);
        (it.process, it.service) = (stopped().process, Service::UNKNOWN);
        (it.refused, it.restart_in) = (Some(refusal()), 5);
        seen.instances[number] = it;
    }
    seen.membership = Membership::Unconfirmed(members(&[0, 1, 2]));
    let document = spec(&NAMES);
    let planned = plan(&document, &seen);
    assert!(matches!(planned.hold(), Some(Hold::MajorityLost(3, 5, _))));
    let status = status(&document, &seen, &planned);
    let held = status.hold.as_ref().unwrap();
    for words in ["test-0, test-1, test-2", "test-0: ", "edge2"] {
        assert!(held.words.contains(words), "{}", held.words);
    }
    assert_eq!(held.hold.reason(), "QuorumLost");
}
