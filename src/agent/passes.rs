//! The thread that makes passes. It may wait: for etcd's end, for a disk that does not answer. Nobody else
//! waits for it: who asks is answered by `front`.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::driver::{Changed, Driver as _};
use super::kept::{self, Accepted};
use super::{Agent, notify};
use crate::api::convert::settings_of;
use crate::clock;
use crate::document::Document;
use crate::error::chain;
use crate::member::certificates;
use crate::member::starts;
use crate::runtime::reconcile;
use crate::spec::ClusterSpec;

/// What is asked of the thread. It is looked at between two passes.
pub(super) enum Order {
    /// One more pass; answered when it has ended.
    Look(oneshot::Sender<()>),
    /// The document was read again: what stands on the board is in force, and a person asks for another
    /// try with it.
    TryAgain,
    /// A certificate for this client; `true`: a new one, also where there is a good one.
    Issue(String, bool, oneshot::Sender<Result<String, String>>),
}

/// After a pass that failed, the next one comes soon, and then ever less often.
const FAILED: [u64; 8] = [1, 1, 1, 1, 2, 2, 5, 10];

/// Certificates that may be asked for within an hour: each client's one. Whoever is in the operator's group may ask, and
/// each takes some 12 KiB of a flash disk.
const ISSUED_MAX: usize = 64;

/// When the last certificates were made that somebody asked for, in seconds since boot.
#[derive(Default)]
pub(super) struct Issues(VecDeque<u64>);

impl Issues {
    /// Takes note of another one; otherwise for how many seconds whoever asks has to wait.
    fn admit(&mut self, now: u64) -> Result<(), u64> {
        if self.0.len() >= ISSUED_MAX {
            let free = self.0.front().map_or(0, |it| it + 3600);
            if now < free {
                return Err(free - now);
            }
            self.0.pop_front();
        }
        self.0.push_back(now);
        Ok(())
    }
}

/// Makes passes until nobody gives orders any more.
pub(super) async fn keep(mut agent: Agent, accepted: Accepted, mut orders: mpsc::Receiver<Order>) {
    if let Err(error) = agent.place_guard() {
        agent.log_once(&chain(&error)); // tried again with every start of etcd
    }
    agent.clear_trial();
    let mut service_manager = notify::Notices::default();
    let mut spec = accepted.document.spec.clone();
    agent.take_up(accepted);
    let mut asked: Vec<oneshot::Sender<()>> = Vec::new();
    loop {
        while let Ok(order) = orders.try_recv() {
            agent.carry_out(&mut spec, order, &mut asked).await;
        }
        agent.board.begin();
        agent.keep_document();
        let wait = agent.pass(&spec).await;
        agent.board.end();
        service_manager.passed(agent.memory.published.as_ref());
        for it in asked.drain(..) {
            let _ = it.send(());
        }
        let bell = agent.work.bell();
        let order = tokio::select! {
            () = tokio::time::sleep(wait) => continue,
            () = bell.notified() => continue,
            changed = agent.driver.changed() => {
                if changed == Changed::Ended {
                    tracing::warn!("etcd's process ended");
                }
                continue;
            }
            order = orders.recv() => order,
        };
        match order {
            Some(order) => agent.carry_out(&mut spec, order, &mut asked).await,
            None => return,
        }
    }
}

impl Agent {
    async fn carry_out(
        &mut self,
        spec: &mut ClusterSpec,
        order: Order,
        asked: &mut Vec<oneshot::Sender<()>>,
    ) {
        match order {
            Order::Look(answer) => asked.push(answer),
            Order::TryAgain => {
                // What was counted against etcd is forgotten.
                starts::forget(&self.paths);
                self.forget_failed_restore();
                self.memory.accepts_machine = true;
                let accepted = self.board.lock().accepted.clone();
                let newer = accepted.filter(|it| it.generation > self.memory.generation);
                if let Some(accepted) = newer {
                    self.driver
                        .rename(&self.paths, &accepted.document.spec.name);
                    spec.clone_from(&accepted.document.spec);
                    self.take_up(accepted);
                }
            }
            Order::Issue(name, renew, answer) => {
                let _ = answer.send(self.issue(spec, &name, renew).await);
            }
        }
    }

    /// From now on this document is in force.
    pub(super) fn take_up(&mut self, accepted: Accepted) {
        self.memory.generation = accepted.generation;
        self.memory.document = kept::sum(&accepted.document);
        self.take_settings(&accepted.document);
        self.memory.keep = Some(accepted);
    }

    /// What a start of etcd is recorded with.
    pub fn take_settings(&mut self, document: &Document) {
        self.memory.asked = settings_of(&document.wire);
    }

    /// Keeps the document that is in force for an agent that finds nothing sound; tried until it is kept.
    fn keep_document(&mut self) {
        let Some(accepted) = self.memory.keep.take() else {
            return;
        };
        if let Err(error) = kept::keep(&self.paths, &accepted) {
            self.log_once(&format!(
                "the document is in force and cannot be kept for the next start: {}",
                chain(&error)
            ));
            self.memory.keep = Some(accepted);
        }
    }

    async fn issue(
        &mut self,
        spec: &ClusterSpec,
        name: &str,
        renew: bool,
    ) -> Result<String, String> {
        let observed = self.gather(spec).await;
        let (now, trust) = (observed.now, observed.clock);
        let files = if renew || certificates::client_due(&self.certificates, name, now, trust) {
            let storage_dir = self.place(spec).storage_dir;
            let validity = certificates::validity(spec, &observed, &storage_dir);
            let wait = self.memory.issued.admit(clock::since_boot().as_secs());
            wait.map_err(|seconds| {
                format!(
                    "{ISSUED_MAX} certificates were made within an hour, as many as may be asked for; ask again in {} min",
                    seconds.div_ceil(60)
                )
            })?;
            let issued = self.certificates.issue(name, validity);
            tracing::info!(
                client = name,
                done = issued.is_ok(),
                "somebody asked for a certificate"
            );
            issued.map_err(|error| error.to_string())?
        } else {
            self.certificates.client_files(name)
        };
        serde_json::to_string(&files).map_err(|error| error.to_string())
    }

    /// One pass; a failure is logged once, stands in the next status, and is tried again.
    pub(super) async fn pass(&mut self, spec: &ClusterSpec) -> Duration {
        // On the heap, and given back: it holds some 150 KiB that an idle operator has no use for.
        match Box::pin(reconcile(self, spec)).await {
            Ok(wait) => {
                self.memory.failed = None;
                self.memory.failures = 0;
                wait
            }
            Err(error) => {
                let text = chain(&error);
                self.log_once(&text);
                self.memory.failed = Some(crate::cluster::detail(format_args!("{text}")));
                let seconds = FAILED[self.memory.failures.min(FAILED.len() - 1)];
                self.memory.failures += 1;
                Duration::from_secs(seconds)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_limited_by_the_hour_and_not_for_good() {
        let mut issues = Issues::default();
        for second in 0..ISSUED_MAX as u64 {
            assert_eq!(issues.admit(second), Ok(()));
        }
        assert_eq!(issues.admit(100), Err(3500));
        assert_eq!(issues.admit(3600), Ok(()));
        assert_eq!(issues.admit(3600), Err(1));
    }
}
