//! Whether this operator still acts: read before it writes anything, where the last answer is old.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1;
use kube::api::{Api, ApiResource, DynamicObject};
use tokio::sync::Notify;

use super::{ControllerError, Own};
use crate::clock;

/// The Lease's name, in the operator's namespace.
pub(super) const NAME: &str = "etcd-operator";
/// How often such a holder tries.
pub(super) const AGAIN: Duration = Duration::from_secs(2);
/// An answer comes within this, or none is waited for: a request into a wire that was cut would wait for
/// a quarter of an hour.
pub(super) const ANSWER: Duration = Duration::from_secs(5);

/// Whoever has not read the Lease for so many seconds reads it before it writes anything: a holder that was frozen, or
/// whose watch no longer brings anything, would not know of another one. A Lease lasts longer.
pub(super) const CONFIRMED_SECONDS: u64 = 30;

/// Whether this operator still acts, as far as the Lease was read.
pub(super) struct Confirmed {
    api: Api<DynamicObject>,
    pub(super) identity: String,
    /// When it was last read and was ours, in seconds since boot.
    read: Cell<Option<u64>>,
    /// When it could not be read, in seconds since boot.
    unread: Cell<Option<u64>>,
    /// Who has taken it.
    lost: Cell<Option<String>>,
    /// Rung when it is seen to be somebody else's.
    taken: Notify,
    /// This operator ends, and gives it back.
    over: Cell<bool>,
}

impl Confirmed {
    pub(super) fn new(client: &kube::Client, own: &Own) -> Rc<Self> {
        let resource = ApiResource::erase::<v1::Lease>(&());
        Rc::new(Confirmed {
            api: Api::namespaced_with(client.clone(), &own.namespace, &resource),
            // A DaemonSet has one Pod a node: an operator of this node that held it has ended.
            identity: own.node.clone(),
            read: Cell::new(None),
            unread: Cell::new(None),
            lost: Cell::default(),
            taken: Notify::new(),
            over: Cell::new(false),
        })
    }

    /// It was read, or taken, and is ours. `asked`: when that was asked for, in seconds since boot. An operator that stood
    /// still since then comes by the answer late, and it says nothing of the time between.
    pub(super) fn note(&self, asked: u64) {
        self.read.set(Some(asked));
    }

    /// Before something is written.
    ///
    /// # Errors
    /// Another operator acts, or nobody can tell.
    pub(super) async fn confirm(&self) -> Result<(), ControllerError> {
        if self.over.get() {
            return Err(ControllerError::LeaseLost("nobody yet".to_owned()));
        }
        let now = clock::since_boot().as_secs();
        let fresh = |it: u64| now < it + CONFIRMED_SECONDS;
        if self.read.get().is_some_and(fresh) {
            return Ok(());
        }
        let unread = || ControllerError::Api {
            what: "read",
            kind: "Lease",
            name: NAME.to_owned(),
            code: 0,
            why: "no answer".to_owned(),
        };
        // A pass writes several things, and an API server that is away keeps each of them waiting once.
        let just_now = |it: u64| now < it + AGAIN.as_secs();
        if self.unread.get().is_some_and(just_now) {
            return Err(unread());
        }
        let read = tokio::time::timeout(ANSWER, self.api.get_opt(NAME)).await;
        self.unread.set(Some(clock::since_boot().as_secs()));
        let lease = read.map_err(|_| unread())?;
        let lease =
            lease.map_err(|error| ControllerError::of_server("read", "Lease", NAME, error))?;
        self.unread.set(None);
        let holder = lease.as_ref().map(holder).unwrap_or_default();
        if holder == self.identity {
            self.note(now);
            return Ok(());
        }
        let holder = if holder.is_empty() {
            "nobody".to_owned()
        } else {
            holder
        };
        self.lost.set(Some(holder.clone()));
        self.taken.notify_one();
        Err(ControllerError::LeaseLost(holder))
    }

    /// Nothing is written from now on.
    pub(super) fn end(&self) {
        self.over.set(true);
    }

    /// Waits until it was seen to be somebody else's.
    pub(super) async fn lost(&self) -> ControllerError {
        loop {
            if let Some(holder) = self.lost.take() {
                return ControllerError::LeaseLost(holder);
            }
            self.taken.notified().await;
        }
    }
}

/// Who holds it; empty: nobody.
pub(super) fn holder(lease: &DynamicObject) -> String {
    let holder = lease.data["spec"]["holderIdentity"].as_str();
    holder.unwrap_or_default().to_owned()
}
