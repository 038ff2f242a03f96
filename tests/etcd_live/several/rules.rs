//! The same commands to the model of etcd's rules, on which the simulation stands, and to a real etcd: both accept
//! one, or both refuse it for the same reason.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use etcd_operator::cluster::{Health, Member, Role};
use etcd_operator::etcd::client;
use etcd_operator::observed::Membership;

use super::run;
use crate::fleet::{Fleet, kill_member};
use crate::raft::{CONNECTED_FOR, Entry, Raft, Refused};
use crate::random::Random;

/// So many commands by lot, after one of each kind that is asked for on purpose.
const BY_LOT: usize = 40;
const SAID: [&str; 9] = [
    "add: done",
    "add: Unhealthy",
    "promote: done",
    "promote: NotInSync",
    "remove: done",
    "remove: NotFound",
    "update: done",
    "update: NotFound",
    "update: UrlExists",
];
/// No member has this id.
const NOBODY: u64 = 0xdead;
const PLACES: usize = 5;

/// A cluster of three with places for more, and the model of it.
struct Both {
    fleet: Fleet,
    raft: Raft,
    begin: Instant,
    random: Random,
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
            random: Random(0x9e37_79b9_7f4a_7c15),
            said: BTreeMap::new(),
        };
        for it in both.fleet.members().await.iter() {
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
        usize::try_from(self.random.below(limit as u64)).unwrap()
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

    /// Any voter but the leader, while a majority lives without it.
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
        self.raft.entry_mut(id).unwrap().connected = None;
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
        let (now, committed) = (self.raft.now, self.raft.committed);
        for it in healed.iter().filter(|it| it.health == Health::Serving) {
            let entry = self.raft.entry_mut(it.id.0).unwrap();
            entry.connected = entry.connected.or(Some(now));
            entry.name = it.name.to_string();
            entry.held = committed;
        }
        // Who took longer may have been connected for some time.
        if begin.elapsed() > Duration::from_secs(2) {
            self.settle().await;
        }
    }

    /// Whether a member that has started would be looked for where it is not.
    fn moves(&self, id: u64, url: &str) -> bool {
        let entry = self.raft.entry(id);
        let elsewhere = entry.is_some_and(|it| !it.name.is_empty() && it.peer_url != url);
        elsewhere && self.raft.entries.iter().all(|it| it.peer_url != url)
    }

    /// Whether this learner's etcd runs and was not seen to serve: only its leader knows how far it is.
    fn is_on_its_way(&self, id: u64) -> bool {
        let joins = self
            .raft
            .entry(id)
            .is_some_and(|it| it.learner && it.connected.is_none());
        let place = self.place_of(id);
        joins && place.is_some_and(|it| self.fleet.homes[it].lab.etcd_pid().is_some())
    }

    /// One command by lot.
    async fn command(&mut self) {
        let ids: Vec<u64> = self.raft.entries.iter().map(|it| it.id).collect();
        let joined = |it: &&Entry| it.learner && !it.name.is_empty();
        let joined = self.raft.entries.iter().find(joined).map(|it| it.id);
        let id = match (self.below(8), joined) {
            (0, _) => NOBODY,
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
        let what = match self.below(4) {
            0 => "add",
            1 if self.is_on_its_way(id) => return,
            1 => "promote",
            // The list is read through the leader; and what runs is found where it is.
            2 if Some(id) == self.raft.leader => return,
            3 if self.moves(id, &url) => return,
            3 => "update",
            _ => "remove",
        };
        let _ = self.give(what, id, &url).await;
    }

    /// One command to both. Returns what both said.
    async fn give(&mut self, what: &str, id: u64, url: &str) -> Result<(), Refused> {
        if what == "add" {
            // An id is a hash of the URL and of the second.
            tokio::time::sleep(Duration::from_millis(1100)).await;
        }
        let mut etcd = self.ask_etcd(what, id, url).await;
        let model = match what {
            "add" => self.raft.add_learner(url).map(drop),
            "promote" => self.raft.promote(id),
            "update" => self.raft.update(id, url),
            _ => self.raft.remove(id),
        };
        // A leader that is new hears from each learner first.
        let begin = Instant::now();
        while what == "promote"
            && (model, etcd) == (Ok(()), Err(Refused::NotInSync))
            && begin.elapsed() < Duration::from_secs(5)
        {
            tokio::time::sleep(Duration::from_millis(100)).await;
            etcd = self.ask_etcd(what, id, url).await;
        }
        assert_eq!(
            etcd, model,
            "etcd and model: {what} {id:x} {url}: {:#?}",
            self.raft
        );
        let words = etcd.map_or_else(|it| format!("{it:?}"), |()| "done".into());
        *self.said.entry(format!("{what}: {words}")).or_default() += 1;
        self.now().await;
        etcd
    }

    async fn ask_etcd(&mut self, what: &str, id: u64, url: &str) -> Result<(), Refused> {
        let leader = self.place_of(self.raft.leader.unwrap()).unwrap();
        let endpoint = self.fleet.homes[leader].url();
        let mut client = client::connect(&endpoint, &self.fleet.files())
            .await
            .unwrap();
        let options = etcd_client::MemberAddOptions::new().with_is_learner();
        let answer = match what {
            "add" => {
                let etcd = client.member_add([url], Some(options)).await;
                etcd.map(|it| self.raft.next_id = it.member().unwrap().id())
            }
            "promote" => client.member_promote(id).await.map(drop),
            "update" => client.member_update(id, [url.to_owned()]).await.map(drop),
            _ => client.member_remove(id).await.map(drop),
        };
        answer.map_err(|it| refused(&it))
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
    each_on_purpose(&mut both).await;
    for _ in 0..BY_LOT {
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
    }
    println!("{line}: etcd and its model said the same: {:?}", both.said);
}

/// Everything in [`SAID`], on three voters with two places for more.
async fn each_on_purpose(both: &mut Both) {
    let leader = both.raft.leader.unwrap();
    let voters: Vec<u64> = both.raft.voters().map(|it| it.id).collect();
    let urls: Vec<String> = (0..PLACES).map(|it| both.fleet.peer_url(it)).collect();
    let listed = |both: &Both, url: &str| both.raft.entries.iter().any(|it| it.peer_url == url);
    let free: Vec<String> = urls.into_iter().filter(|it| !listed(both, it)).collect();
    let url_of = |both: &Both, id| both.raft.entry(id).unwrap().peer_url.clone();
    let (own, others) = (
        url_of(both, leader),
        url_of(both, voters[1 - usize::from(voters[1] == leader)]),
    );
    let _ = both.give("update", NOBODY, &free[0]).await;
    let _ = both.give("update", leader, &others).await;
    let _ = both.give("update", leader, &own).await;
    let _ = both.give("remove", NOBODY, &own).await;
    both.kill().await;
    let _ = both.give("add", 0, &free[0]).await;
    both.heal().await;
    both.settle().await;
    for url in &free {
        let _ = both.give("add", 0, url).await;
    }
    let learners: Vec<u64> = both
        .raft
        .entries
        .iter()
        .filter(|it| it.learner)
        .map(|it| it.id)
        .collect();
    let _ = both.give("promote", learners[0], "").await;
    both.heal().await;
    let _ = both.give("promote", learners[0], "").await;
    let _ = both.give("remove", learners[1], "").await;
    assert!(
        SAID.iter().all(|it| both.said.contains_key(*it)),
        "{SAID:?} was not all said: {:?}",
        both.said
    );
}

#[test]
fn etcd_3_6_and_its_model_accept_and_refuse_the_same() {
    run(|| ask_both("3.6"));
}

#[test]
fn etcd_3_7_and_its_model_accept_and_refuse_the_same() {
    run(|| ask_both("3.7"));
}
