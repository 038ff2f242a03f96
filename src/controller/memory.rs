//! What one cluster's passes remember.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use super::Watched;
use super::backup::worker::Heard;
use super::claim::{NotGrown, Which};
use super::publish::Written;
use super::restore::{Asked, FailedRestore, Tried};
use super::seen::Meta;
use super::upgrade::Rehearsal;
use crate::api::{EtcdCluster, EtcdClusterStatus};
use crate::changes::Changes;
use crate::clock::Since;
use crate::cluster::Detail;
use crate::spec::ClusterSpec;
use crate::worker::report::Ended;

/// What is kept from pass to pass: nothing that a decision could not do without.
#[derive(Default)]
pub(super) struct Memory {
    /// The last document that was sound: in force while a newer one is not.
    pub(super) spec: Option<ClusterSpec>,
    /// The object that it came from: what is made for a Pod is taken from it and from no newer one.
    pub(super) sound: Option<Rc<Watched<EtcdCluster>>>,
    /// Why the newest one is not.
    pub(super) invalid: Option<Detail>,
    /// Claims that did not grow as the document asks.
    pub(super) not_grown: BTreeMap<Which, NotGrown>,
    /// Why the last pass could not be carried out.
    pub(super) failed: Option<Detail>,
    /// How many passes failed in a row.
    pub(super) failures: usize,
    /// Namespaces that take no client of this cluster, and when they were asked, in seconds since boot.
    pub(super) unaccepted: BTreeMap<String, u64>,
    pub(super) published: Option<EtcdClusterStatus>,
    pub(super) written: Option<Written>,
    /// Events that were told, so that each is told once.
    pub(super) told: VecDeque<String>,
    /// The member that snapshots are taken from, by its number.
    pub(super) source: usize,
    /// What the backup worker says.
    pub(super) heard: Heard,
    /// The EtcdBackup that the worker was asked for.
    pub(super) taking: Option<String>,
    /// How the last one ended, until it is written.
    pub(super) taken: Option<(String, Ended)>,
    /// EtcdBackups and EtcdRestores whose end was written: a watch may be long behind.
    pub(super) ended: VecDeque<String>,
    /// What is written down of changes of the version.
    pub(super) changes: Changes,
    /// A trial of another version.
    pub(super) rehearsal: Option<Rehearsal>,
    /// A restore that the document or an EtcdRestore asked for.
    pub(super) restoring: Option<Asked>,
    /// The last revision that etcd was seen to have before it was stopped for one.
    pub(super) live_revision: Option<i64>,
    /// The restore in place whose Pod was last tried.
    pub(super) tried: Option<Tried>,
    /// The restore's Pod that nobody asks for any more and that waits.
    pub(super) waits: Since,
    /// The document's own restore failed.
    pub(super) restore_failed: Option<FailedRestore>,
}

/// Requests whose end is remembered.
const ENDED_MAX: usize = 16;

impl Memory {
    /// The end of a request was written: it is never taken up again.
    pub(super) fn note_end(&mut self, uid: &str) {
        self.ended.push_back(uid.to_owned());
        if self.ended.len() > ENDED_MAX {
            self.ended.pop_front();
        }
    }

    /// The worker is at something that comes within seconds.
    pub(super) fn is_expecting(&self) -> bool {
        let rehearsal = self.rehearsal.as_ref();
        self.heard.is_expected() || rehearsal.is_some_and(Rehearsal::is_expected)
    }

    pub(super) fn has_ended(&self, meta: &Meta) -> bool {
        self.ended.contains(&meta.uid)
    }
}
