//! Several members on real etcd: growing, shrinking, replacing, under a writer. Every acknowledged write is
//! there at the end.

#![allow(clippy::print_stdout, reason = "figures of a test")]

mod rules;

use std::fs;
use std::future::Future;
use std::time::{Duration, Instant};

use etcd_operator::cluster::MemberId;
use etcd_operator::observed::{Membership, Observed};

use crate::fleet::{Fleet, Writer, is_of_a_stranger, kill_member, runs, written};
use crate::lab::kill;

/// On a stack of its own: what is seen of several members lies there, and unoptimised code copies it often.
fn run<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(test());
    };
    let thread = std::thread::Builder::new().stack_size(64 << 20).spawn(run);
    thread.unwrap().join().unwrap();
}

/// A cluster of so many voters, and a writer.
async fn cluster(line: &str, places: usize, size: usize) -> (Fleet, Writer) {
    let (mut fleet, writer) = Fleet::with_writer(line, places).await;
    fleet.size = size;
    fleet.until_whole().await;
    (fleet, writer)
}

async fn assert_all_there(fleet: &Fleet, writer: Writer) {
    let (acknowledged, gap) = writer.end();
    let found = written(&fleet.homes[0].url(), &fleet.files()).await;
    println!(
        "{acknowledged} writes acknowledged, {found} found, longest gap {gap:?}; {:?}",
        fleet.acts
    );
    assert!(acknowledged > 0 && found >= acknowledged);
}

/// A member is a new one, and its old data lies aside.
async fn assert_replaced_and_kept(fleet: &mut Fleet, index: usize, before: MemberId) {
    assert_ne!(fleet.id_of(index).await, before);
    let aside = fleet.homes[index].lab.data("").with_extension("removed");
    assert!(aside.join("member/wal").is_dir(), "{}", aside.display());
}

async fn grow_and_shrink(line: &str) {
    let (mut fleet, writer) = cluster(line, 5, 1).await;
    for size in [3, 5, 3, 1] {
        fleet.size = size;
        let begin = Instant::now();
        let before = writer.acknowledged();
        fleet.until_voters().await;
        println!("{line}: {size} voters after {:?}", begin.elapsed());
        fleet.until_whole().await;
        println!("{line}: all serve after {:?}", begin.elapsed());
        assert!(
            writer.acknowledged() > before,
            "nobody could write meanwhile"
        );
    }
    assert_all_there(&fleet, writer).await;
}

#[test]
fn a_cluster_grows_to_five_and_shrinks_to_one_on_3_6() {
    run(|| grow_and_shrink("3.6"));
}

#[test]
fn a_cluster_grows_to_five_and_shrinks_to_one_on_3_7() {
    run(|| grow_and_shrink("3.7"));
}

/// The disk of a member was replaced by an empty one, its identity included.
#[test]
fn a_member_whose_disk_was_emptied_is_replaced() {
    run(|| async {
        let (mut fleet, writer) = cluster("3.6", 3, 3).await;
        let before = fleet.id_of(1).await;
        kill_member(&fleet.homes[1]);
        let member = fleet.homes[1].lab.lib("member");
        fs::remove_dir_all(&member).unwrap();
        let begin = Instant::now();
        fleet.until_whole().await;
        println!("an emptied disk: a voter again after {:?}", begin.elapsed());
        assert_ne!(fleet.id_of(1).await, before, "a new member with a new id");
        assert_all_there(&fleet, writer).await;
    });
}

/// One byte in the middle of a member's log: its data goes aside, and it comes back from the others.
#[test]
fn a_member_whose_log_is_damaged_is_replaced_and_its_data_kept() {
    run(|| async {
        let (mut fleet, writer) = cluster("3.6", 3, 3).await;
        let before = fleet.id_of(2).await;
        while writer.acknowledged() < 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        kill_member(&fleet.homes[2]);
        let wal = fleet.homes[2].lab.data("member/wal");
        let segment = fs::read_dir(wal).unwrap().flatten().map(|it| it.path());
        let mut segments: Vec<_> = segment
            .filter(|it| it.extension().is_some_and(|it| it == "wal"))
            .collect();
        segments.sort();
        let mut bytes = fs::read(&segments[0]).unwrap();
        let is_value = |it: &(usize, &[u8])| it.1 == b"written";
        let values: Vec<usize> = bytes
            .windows(7)
            .enumerate()
            .filter(is_value)
            .map(|it| it.0)
            .collect();
        bytes[values[values.len() / 2]] ^= 0x40;
        fs::write(&segments[0], bytes).unwrap();
        fleet.until_whole().await;
        assert_replaced_and_kept(&mut fleet, 2, before).await;
        assert_all_there(&fleet, writer).await;
    });
}

/// A killed member comes back with its own data; nothing is removed.
#[test]
fn a_killed_member_comes_back_as_itself() {
    run(|| async {
        let (mut fleet, writer) = cluster("3.6", 3, 3).await;
        let before = fleet.ids().await;
        for index in [2, 0, 1] {
            kill_member(&fleet.homes[index]);
            fleet.until_whole().await;
            assert_eq!(fleet.id_of(index).await, before[index]);
        }
        assert_all_there(&fleet, writer).await;
    });
}

/// The power of all of them fails at once.
#[test]
fn members_that_were_all_killed_come_back_as_themselves() {
    run(|| async {
        let (mut fleet, writer) = cluster("3.6", 3, 3).await;
        let before = fleet.ids().await;
        let acts = fleet.acts.len();
        fleet.homes.iter().for_each(kill_member);
        fleet.until_whole().await;
        assert_eq!(fleet.ids().await, before);
        assert_eq!(fleet.acts.len(), acts, "{:?}", fleet.acts);
        assert_all_there(&fleet, writer).await;
    });
}

/// Two of three disks are empty. Only a person can decide: nothing is started on them, no second cluster is
/// born, and the last member is left as it is.
#[test]
fn where_the_majority_is_lost_nothing_is_changed() {
    run(|| async {
        let (mut fleet, writer) = cluster("3.6", 3, 3).await;
        let (acts, survivor) = (fleet.acts.len(), fleet.homes[0].lab.etcd_pid());
        for home in &fleet.homes[1..] {
            kill_member(home);
            fs::remove_dir_all(home.lab.lib("member")).unwrap();
        }
        writer.end();
        let begin = Instant::now();
        fleet
            .until("six seconds", |observed, plan| {
                assert!(!runs(observed, 1) && !runs(observed, 2));
                assert!(!matches!(plan.change, Ok(Some(_))) && plan.interruption.is_none());
                begin.elapsed() > Duration::from_secs(6)
            })
            .await;
        assert_eq!(fleet.acts.len(), acts, "{:?}", fleet.acts);
        assert_eq!(fleet.homes[0].lab.etcd_pid(), survivor);
    });
}

/// From one to the most voters that there may be, in one edit.
#[test]
fn a_cluster_grows_to_seven_at_once() {
    run(|| async {
        let (mut fleet, writer) = cluster("3.6", 7, 1).await;
        fleet.size = 7;
        let begin = Instant::now();
        fleet.until_voters().await;
        println!("seven voters after {:?}", begin.elapsed());
        fleet.until_whole().await;
        assert_all_there(&fleet, writer).await;
    });
}

/// A frozen member is not touched while its grace lasts.
#[test]
fn a_frozen_member_is_waited_for() {
    run(|| async {
        let (mut fleet, writer) = cluster("3.6", 3, 3).await;
        let before = fleet.id_of(2).await;
        let pid = fleet.homes[2].lab.etcd_pid().unwrap();
        kill("STOP", pid);
        let acts = fleet.acts.len();
        let mut passes = 0;
        fleet
            .until("three passes with a frozen member", |_, _| {
                passes += 1;
                passes > 3
            })
            .await;
        assert_eq!(fleet.acts.len(), acts, "{:?}", fleet.acts);
        kill("CONT", pid);
        fleet.until_whole().await;
        assert_eq!(fleet.id_of(2).await, before);
        assert_all_there(&fleet, writer).await;
    });
}

/// An edit restarts one member after the other, the leader last and after it handed its leadership over.
#[test]
fn an_edit_is_rolled_one_member_after_the_other() {
    run(|| async {
        let (mut fleet, writer) = cluster("3.6", 3, 3).await;
        let leader = fleet.leader().await;
        let before: Vec<u32> = fleet
            .homes
            .iter()
            .map(|it| it.lab.etcd_pid().unwrap())
            .collect();
        let acts = fleet.acts.len();
        fleet.edit(2000);
        let begin = Instant::now();
        fleet.until_whole().await;
        println!(
            "an edit: rolled through three members after {:?}",
            begin.elapsed()
        );
        for (home, before) in fleet.homes.iter().zip(before) {
            assert_ne!(home.lab.etcd_pid(), Some(before));
        }
        let acts = &fleet.acts[acts..];
        let restarts: Vec<&String> = acts
            .iter()
            .filter(|it| it.contains("restart etcd"))
            .collect();
        let name = format!("lab-{leader}: ");
        assert!(
            restarts.len() == 3 && restarts[2].starts_with(&name),
            "{acts:?}"
        );
        let handed = acts
            .iter()
            .position(|it| it.starts_with(&name) && it.contains("hand the leadership"));
        let restarted = acts
            .iter()
            .position(|it| it.starts_with(&name) && it.contains("restart etcd"));
        assert!(handed.is_some() && handed < restarted, "{acts:?}");
        assert_all_there(&fleet, writer).await;
    });
}

/// A leader that the document no longer asks for hands its leadership over before it is removed.
#[test]
fn a_leader_that_is_removed_hands_its_leadership_over_first() {
    run(|| async {
        let (mut fleet, writer) = cluster("3.6", 3, 3).await;
        while fleet.leader().await != 2 {
            let (from, to) = (fleet.leader().await, fleet.id_of(2).await.to_string());
            fleet.homes[from].lab.etcdctl(&["move-leader", &to]);
        }
        let acts = fleet.acts.len();
        fleet.size = 1;
        fleet.until_whole().await;
        let acts = &fleet.acts[acts..];
        assert!(
            acts.iter()
                .any(|it| it.starts_with("lab-2: hand the leadership")),
            "{acts:?}"
        );
        assert!(acts.last().unwrap().starts_with("remove lab-"), "{acts:?}");
        assert_all_there(&fleet, writer).await;
    });
}

/// A member that is silent beyond its grace is removed, and comes back as a new one once its process is gone.
#[test]
fn a_member_that_failed_gives_its_place_to_a_new_one() {
    run(|| async {
        let (mut fleet, writer) = cluster("3.6", 3, 3).await;
        let before = fleet.id_of(2).await;
        let pid = fleet.homes[2].lab.etcd_pid().unwrap();
        fleet.grace = Duration::from_secs(2);
        kill("STOP", pid);
        let removed = |observed: &Observed| match &observed.membership {
            Membership::Known(members) => members.by_id(before).is_none(),
            _ => false,
        };
        fleet
            .until("its removal", |observed, _| removed(observed))
            .await;
        fleet.grace = Duration::from_secs(600);
        kill("CONT", pid);
        fleet.until_whole().await;
        assert_replaced_and_kept(&mut fleet, 2, before).await;
        assert_all_there(&fleet, writer).await;
    });
}

/// A member that somebody else added is told and left alone; the others are still looked after.
#[test]
fn a_member_that_somebody_else_added_is_told_and_left_alone() {
    run(|| async {
        let (mut fleet, writer) = cluster("3.6", 4, 3).await;
        let add = [
            "member",
            "add",
            "theirs",
            "--learner",
            "--peer-urls=https://127.0.0.1:9",
        ];
        // For 5 s after a change etcd refuses the next one.
        let begin = Instant::now();
        while !fleet.homes[0].lab.etcdctl(&add).status.success() {
            assert!(begin.elapsed() < Duration::from_secs(20));
        }
        let acts = fleet.acts.len();
        fleet
            .until("the hold", |_, plan| is_of_a_stranger(plan))
            .await;
        assert_eq!(fleet.acts.len(), acts, "{:?}", fleet.acts);
        // It keeps nobody from being replaced.
        let before = fleet.id_of(1).await;
        kill_member(&fleet.homes[1]);
        fs::remove_dir_all(fleet.homes[1].lab.lib("member")).unwrap();
        fleet
            .until("the hold, with all members", |observed, plan| {
                let serve = (0..3).all(|it| {
                    runs(observed, it) && observed.instances[it].service.answer().is_some()
                });
                is_of_a_stranger(plan) && serve
            })
            .await;
        assert_ne!(fleet.id_of(1).await, before);
        assert_all_there(&fleet, writer).await;
    });
}
