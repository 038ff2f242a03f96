//! The same commands to the model of etcd's rules, on which the simulation stands, and to a real etcd: both accept
//! one, or both refuse it for the same reason.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use etcd_operator::cluster::{Health, Member, MemberSet, Role};
use etcd_operator::etcd::client;
use etcd_operator::observed::Membership;

use super::run;
use crate::fleet::{Fleet, kill_member};
use crate::raft::{CONNECTED_FOR, Entry, Raft, Refused};

/// At least so many commands are given, and more until each of these was said; the ids, and so the run, are never
/// the same twice.
const COMMANDS: usize = 20;
const COMMANDS_MAX: usize = 200;
const SAID: [&str; 6] = [
    "add: done",
    "add: Unhealthy",
    "promote: done",
    "promote: NotInSync",
    "remove: done",
    "remove: NotFound",
];
const PLACES: usize = 5;

/// A cluster of three with places for more, and the model of it.
struct Both {
    fleet: Fleet,
    raft: Raft,
    begin: Instant,
    random: u64,
    /// What both said, and how often.
    said: BTreeMap<String, u32>,
}

impl Both {
    async fn new(line: &str) -> Both {
        let mut fleet = Fleet::new(line, PLACES);
        fleet.until_whole().await;
        fleet.size = 3;
        fleet.until_whole().await;
        // From here on the test alone changes the list.
        fleet.upkeep_only = true;
        fleet.size = PLACES;
        let mut both = Both {
            fleet,
            raft: Raft {
                max_learners: etcd_operator::cluster::LEARNERS_MAX,
                ..Raft::default()
            },
            begin: Instant::now(),
            random: 0x9e37_79b9_7f4a_7c15,
            said: BTreeMap::new(),
        };
        for it in both.list().await.iter() {
            both.raft.entries.push(Entry {
                id: it.id.0,
                name: it.name.to_string(),
                peer_url: it.peer_url.to_string(),
                learner: false,
                connected: Some(0),
                held: 0,
            });
        }
        both.settle().await;
        both
    }

    fn below(&mut self, limit: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        usize::try_from(self.random % limit as u64).unwrap()
    }

    async fn list(&mut self) -> MemberSet {
        match self.fleet.membership().await {
            Membership::Known(members) => members,
            other => panic!("{other:?}"),
        }
    }

    fn place_of(&self, id: u64) -> Option<usize> {
        let url = &self.raft.entry(id)?.peer_url;
        (0..PLACES).find(|it| self.fleet.peer_url(*it) == *url)
    }

    /// Waits until nobody can be in doubt whether etcd takes the connections for old enough.
    async fn settle(&mut self) {
        tokio::time::sleep(Duration::from_millis(CONNECTED_FOR + 1000)).await;
        self.now().await;
    }

    async fn now(&mut self) {
        self.raft.now = u64::try_from(self.begin.elapsed().as_millis()).unwrap();
        let leader = self.fleet.leader().await;
        self.raft.leader = Some(self.fleet.id_of(leader).await.0);
    }

    async fn kill(&mut self) {
        let leader = self.raft.leader;
        let spare = self.raft.connected().count() > self.raft.voters().count() / 2 + 1;
        let voters = self.raft.connected().filter(|it| Some(it.id) != leader);
        let voters: Vec<u64> = voters.map(|it| it.id).collect();
        if !spare || voters.is_empty() {
            return;
        }
        let id = voters[self.below(voters.len())];
        let place = self.place_of(id).unwrap();
        kill_member(&self.fleet.homes[place]);
        let entry = self.raft.entries.iter_mut().find(|it| it.id == id);
        entry.unwrap().connected = None;
        tokio::time::sleep(Duration::from_millis(500)).await;
        self.now().await;
    }

    /// The first place that is not listed.
    fn unlisted(&self) -> Option<String> {
        let mut urls = (0..PLACES).map(|it| self.fleet.peer_url(it));
        urls.find(|url| !self.raft.entries.iter().any(|it| it.peer_url == *url))
    }

    /// All that are listed and can run do so.
    async fn heal(&mut self) {
        let all = self.unlisted().is_none();
        let begin = Instant::now();
        let places: Vec<String> = (0..PLACES).map(|it| self.fleet.peer_url(it)).collect();
        let answers = |it: &Member| {
            let joins = it.role != Role::Voter;
            let stranger = !places.contains(&it.peer_url.to_string());
            it.health == Health::Serving || joins && (!all || stranger)
        };
        let mut healed = Vec::new();
        self.fleet
            .until("all that can run", |observed, _| {
                let Membership::Known(members) = &observed.membership else {
                    return false;
                };
                healed = members.iter().cloned().collect();
                healed.iter().all(answers)
            })
            .await;
        self.now().await;
        let now = self.raft.now;
        for it in healed.iter().filter(|it| it.health == Health::Serving) {
            let entry = self.raft.entries.iter_mut().find(|its| its.id == it.id.0);
            let entry = entry.unwrap();
            entry.connected = entry.connected.or(Some(now));
            entry.name = it.name.to_string();
            entry.held = self.raft.committed;
        }
        // Who took longer may have been connected for some time.
        if begin.elapsed() > Duration::from_secs(2) {
            self.settle().await;
        }
    }

    /// One command to both.
    async fn command(&mut self) {
        let ids: Vec<u64> = self.raft.entries.iter().map(|it| it.id).collect();
        let joined = |it: &&Entry| it.learner && !it.name.is_empty();
        let joined = self.raft.entries.iter().find(joined).map(|it| it.id);
        let id = match (self.below(8), joined) {
            (0, _) => 0xdead,
            (1..5, Some(id)) => id,
            _ => ids[self.below(ids.len())],
        };
        let url = match (self.below(6), self.unlisted()) {
            (0, _) => format!("https://127.0.0.1:{}", 100 + self.below(900)),
            (1..4, Some(url)) => url,
            _ => {
                let place = self.below(PLACES);
                self.fleet.peer_url(place)
            }
        };
        let leader = self.place_of(self.raft.leader.unwrap()).unwrap();
        let endpoint = self.fleet.homes[leader].url();
        let mut client = client::connect(&endpoint, &self.fleet.files())
            .await
            .unwrap();
        let (what, etcd, model) = match self.below(3) {
            0 => {
                // An id is a hash of the URL and of the second.
                tokio::time::sleep(Duration::from_millis(1100)).await;
                let options = etcd_client::MemberAddOptions::new().with_is_learner();
                let etcd = client.member_add([url.as_str()], Some(options)).await;
                let etcd = etcd.map(|it| self.raft.next_id = it.member().unwrap().id());
                ("add", etcd, self.raft.add_learner(&url).map(drop))
            }
            1 => {
                let etcd = client.member_promote(id).await.map(drop);
                ("promote", etcd, self.raft.promote(id))
            }
            _ if Some(id) == self.raft.leader => return, // the list is read through it
            _ => {
                let etcd = client.member_remove(id).await.map(drop);
                ("remove", etcd, self.raft.remove(id))
            }
        };
        let etcd = etcd.map_err(|it| refused(&it));
        assert_eq!(etcd, model, "{what} {id:x} {url}: {:#?}", self.raft);
        let said = format!(
            "{what}: {}",
            etcd.map_or_else(|it| format!("{it:?}"), |()| "done".into())
        );
        *self.said.entry(said).or_default() += 1;
    }
}

/// The reason, by etcd's words.
fn refused(error: &etcd_client::Error) -> Refused {
    let words = client::plain(error);
    let reasons = [
        ("unhealthy cluster", Refused::Unhealthy),
        ("not enough started members", Refused::NotEnoughStarted),
        ("member not found", Refused::NotFound),
        ("Peer URLs already exists", Refused::UrlExists),
        ("too many learner members", Refused::TooManyLearners),
        ("in sync with leader", Refused::NotInSync),
        ("can only promote a learner member", Refused::NoLearner),
    ];
    let known = reasons.iter().find(|(it, _)| words.contains(it));
    known
        .unwrap_or_else(|| panic!("no word of the model's: {words}"))
        .1
}

async fn ask_both(line: &str) {
    let mut both = Both::new(line).await;
    for given in 0.. {
        if given >= COMMANDS && SAID.iter().all(|it| both.said.contains_key(*it)) {
            break;
        }
        assert!(
            given < COMMANDS_MAX,
            "{SAID:?} was not all said: {:?}",
            both.said
        );
        match both.below(8) {
            0 | 1 => both.kill().await,
            2 => both.heal().await,
            _ => {}
        }
        // Close to the limit neither of them is to be blamed.
        let near = |it: &Entry| {
            let since = it.connected.map(|it| both.raft.now.saturating_sub(it));
            since.is_some_and(|it| (1500..CONNECTED_FOR + 1000).contains(&it))
        };
        if both.raft.voters().any(near) {
            both.settle().await;
        }
        both.now().await;
        both.command().await;
        both.now().await;
    }
    println!("{line}: etcd and its model said the same: {:?}", both.said);
}

#[test]
fn etcd_3_6_and_its_model_accept_and_refuse_the_same() {
    run(|| ask_both("3.6"));
}

#[test]
fn etcd_3_7_and_its_model_accept_and_refuse_the_same() {
    run(|| ask_both("3.7"));
}
