//! etcd's rules about its member list, as an operator meets them: what it accepts, what it refuses, who may lead.
//! `tests/etcd_live/several/rules.rs` gives the same commands to this model and to a real etcd.

/// Only who was connected for so long counts when etcd asks whether a change is safe (its `HealthInterval`).
pub const CONNECTED_FOR: u64 = 5000;

/// Why etcd refuses a change of its member list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refused {
    /// No majority answers: the call times out.
    NoQuorum,
    /// `unhealthy cluster`.
    Unhealthy,
    /// `not enough started members`.
    NotEnoughStarted,
    /// `member not found`.
    NotFound,
    /// `Peer URLs already exists`.
    UrlExists,
    /// `too many learner members`.
    TooManyLearners,
    /// `can only promote a learner member which is in sync with leader`.
    NotInSync,
    /// `can only promote a learner member`.
    NoLearner,
}

/// An entry of the member list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub id: u64,
    /// Empty until it has started for the first time.
    pub name: String,
    pub peer_url: String,
    pub learner: bool,
    /// Since when its etcd runs and the others reach it, in milliseconds.
    pub connected: Option<u64>,
    /// The last index of the log that it holds.
    pub held: u64,
}

/// A cluster.
#[derive(Clone, Debug, Default)]
pub struct Raft {
    /// Milliseconds.
    pub now: u64,
    pub entries: Vec<Entry>,
    /// The last index that was committed.
    pub committed: u64,
    pub leader: Option<u64>,
    pub max_learners: usize,
    pub next_id: u64,
    /// Members that are connected and get what is committed later than the others.
    pub slow: Vec<u64>,
}

impl Raft {
    pub fn entry(&self, id: u64) -> Option<&Entry> {
        self.entries.iter().find(|it| it.id == id)
    }

    pub fn entry_mut(&mut self, id: u64) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|it| it.id == id)
    }

    pub fn voters(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|it| !it.learner)
    }

    /// Voters that answer each other.
    pub fn connected(&self) -> impl Iterator<Item = &Entry> {
        self.voters().filter(|it| it.connected.is_some())
    }

    pub fn has_quorum(&self) -> bool {
        self.connected().count() > self.voters().count() / 2
    }

    /// Voters that were connected for so long that etcd counts them.
    fn settled(&self) -> usize {
        let settled = |it: &&Entry| {
            let since = it.connected.map(|it| self.now - it);
            // The leader, which answers, is connected with itself.
            Some(it.id) == self.leader || since.is_some_and(|it| it >= CONNECTED_FOR)
        };
        self.voters().filter(settled).count()
    }

    /// `etcdctl member add --learner`. Returns the new id.
    pub fn add_learner(&mut self, peer_url: &str) -> Result<u64, Refused> {
        if !self.has_quorum() {
            return Err(Refused::NoQuorum);
        }
        // As if the new one had a vote and were down. Older patches wanted all of the voters.
        let voters = self.voters().count();
        if voters > 1 && self.settled() < voters.div_ceil(2) + 1 {
            return Err(Refused::Unhealthy);
        }
        if self.entries.iter().any(|it| it.peer_url == peer_url) {
            return Err(Refused::UrlExists);
        }
        if self.entries.len() - self.voters().count() >= self.max_learners {
            return Err(Refused::TooManyLearners);
        }
        let id = self.next_id;
        self.next_id += 1;
        self.commit();
        self.entries.push(Entry {
            id,
            name: String::new(),
            peer_url: peer_url.to_owned(),
            learner: true,
            connected: None,
            held: 0,
        });
        Ok(id)
    }

    /// `etcdctl member promote`.
    pub fn promote(&mut self, id: u64) -> Result<(), Refused> {
        if !self.has_quorum() {
            return Err(Refused::NoQuorum);
        }
        let it = self.entry(id).ok_or(Refused::NotFound)?;
        if it.learner && it.held * 10 < self.committed * 9 {
            return Err(Refused::NotInSync);
        }
        let started = self.voters().filter(|it| !it.name.is_empty()).count();
        if started < self.voters().count().div_ceil(2) {
            return Err(Refused::NotEnoughStarted);
        }
        if !it.learner {
            return Err(Refused::NoLearner);
        }
        self.commit();
        if let Some(it) = self.entry_mut(id) {
            it.learner = false;
        }
        Ok(())
    }

    /// `etcdctl member remove`.
    pub fn remove(&mut self, id: u64) -> Result<(), Refused> {
        if !self.has_quorum() {
            return Err(Refused::NoQuorum);
        }
        let learner = self.entry(id).is_some_and(|it| it.learner);
        let others = || self.voters().filter(|it| it.id != id);
        let started = others().filter(|it| !it.name.is_empty()).count();
        if !learner && started < others().count() / 2 + 1 {
            return Err(Refused::NotEnoughStarted);
        }
        let it = self.entry(id).ok_or(Refused::NotFound)?;
        let voters = self.voters().count();
        // Who is not connected is not missed.
        if !learner && it.connected.is_some() && self.settled() < 2 + (voters - 1) / 2 {
            return Err(Refused::Unhealthy);
        }
        self.commit();
        self.entries.retain(|it| it.id != id);
        self.elect();
        Ok(())
    }

    /// `etcdctl member update`.
    pub fn update(&mut self, id: u64, peer_url: &str) -> Result<(), Refused> {
        if !self.has_quorum() {
            return Err(Refused::NoQuorum);
        }
        self.entry(id).ok_or(Refused::NotFound)?;
        let others = self.entries.iter().filter(|it| it.id != id);
        if others.into_iter().any(|it| it.peer_url == peer_url) {
            return Err(Refused::UrlExists);
        }
        self.commit();
        if let Some(it) = self.entry_mut(id) {
            peer_url.clone_into(&mut it.peer_url);
        }
        Ok(())
    }

    /// An entry is committed: a majority of the voters holds it, and so do the others that are connected and not
    /// slow.
    pub fn commit(&mut self) {
        self.committed += 1;
        let majority = self.voters().count() / 2 + 1;
        let mut holders = 0;
        let (leader, slow) = (self.leader, self.slow.clone());
        let order = |it: &&mut Entry| (Some(it.id) != leader, slow.contains(&it.id));
        let connected = self.entries.iter_mut().filter(|it| it.connected.is_some());
        let mut connected: Vec<&mut Entry> = connected.collect();
        connected.sort_by_key(order);
        for it in connected {
            if !slow.contains(&it.id) || !it.learner && holders < majority {
                it.held = self.committed;
                holders += usize::from(!it.learner);
            }
        }
    }

    /// Who leads after members came and went.
    ///
    /// # Panics
    /// Nobody of a majority holds what was committed: acknowledged writes are lost.
    pub fn elect(&mut self) {
        if !self.has_quorum() {
            self.leader = None;
            return;
        }
        let stays = self.connected().any(|it| Some(it.id) == self.leader);
        let furthest = self.connected().map(|it| it.held).max();
        assert_eq!(
            furthest,
            Some(self.committed),
            "acknowledged writes are lost"
        );
        if !stays {
            let heir = self.connected().find(|it| Some(it.held) == furthest);
            self.leader = heir.map(|it| it.id);
        }
    }
}
