//! Snapshots on this host, by the agent.

use std::path::Path;

use super::{Agent, AgentError};
use crate::backup::work::{self, Ended, Member, Told};
use crate::cluster::Timestamp;
use crate::member::records::{self, IdentityFile};
use crate::observed::{Backups, Clock};
use crate::spec::ClusterSpec;

impl Agent {
    /// Begins a job; its end wakes the loop.
    pub(super) fn begin(&mut self, job: impl FnOnce() -> Ended + Send + 'static) {
        self.work.begin(job);
    }

    /// Whether a job runs. One that has ended is taken note of.
    pub(super) fn is_busy(&mut self) -> bool {
        for told in self.work.collect() {
            match told {
                Told::Failure(text) => self.log_once(&text),
                Told::Prepared(prepared) => self.restore_prepared(*prepared),
                Told::Asked(_) => {} // on a host a command takes them itself
                Told::Rehearsed(to, result) => self.rehearsed(to, result),
                Told::Counted(reach, stamp) => self.memory.reach = Some((reach, stamp)),
            }
        }
        self.work.is_busy()
    }

    /// What is known of the snapshots of this cluster.
    pub(super) fn backups(&mut self, spec: &ClusterSpec, clock: Clock, now: Timestamp) -> Backups {
        self.is_busy();
        let trusted = clock.trusted(now);
        let failed = self.restore_failed(spec, trusted);
        let (restore_failed, restore_retry_in) = failed.unzip();
        let failed = self.memory.reach.is_some();
        let seen = self.with_member(spec, |work, member| {
            let mut seen = work.look(member, clock, now, restore_failed);
            if failed && spec.backup.is_none() {
                seen.named = work::of_changes(member);
            }
            seen
        });
        Backups {
            restore_retry_in: restore_retry_in.flatten(),
            ..seen
        }
    }

    pub(super) fn with_member<T>(
        &mut self,
        spec: &ClusterSpec,
        act: impl FnOnce(&mut work::Work, &Member<'_>) -> T,
    ) -> T {
        let reached = self.reached(spec);
        let identity = self.identity(&reached.storage_dir);
        let member = Member {
            paths: &self.paths,
            spec,
            identity: identity.as_ref(),
            url: &reached.client_url,
            files: self.certificates.operator_files(),
            certificates: self.certificates.clone(),
        };
        act(&mut self.work, &member)
    }

    fn identity(&self, storage_dir: &Path) -> Option<IdentityFile> {
        let identities = records::load_identities(&self.paths, storage_dir);
        identities.ok().and_then(|(identity, _)| identity)
    }

    /// The document's time for a snapshot has come, and nothing was written since the last one.
    pub(super) fn skip_snapshot(&self, now: Timestamp) -> Result<(), AgentError> {
        Ok(work::skip(&self.paths, now)?)
    }

    /// Takes a snapshot beside the loop, and removes what the document no longer keeps.
    pub(super) fn take_snapshot(&mut self, spec: &ClusterSpec, now: Option<Timestamp>) {
        self.with_member(spec, |work, member| work.take(member, now, None));
    }

    /// Copies what waits to the other destinations, beside the loop.
    pub(super) fn copy_snapshots(&mut self, spec: &ClusterSpec, now: Option<Timestamp>) {
        self.with_member(spec, |work, member| work.copy(member, now));
    }

    /// Checks again what is kept, beside the loop.
    pub(super) fn check_snapshots(&mut self, spec: &ClusterSpec, now: Option<Timestamp>) {
        self.with_member(spec, |work, member| work.check(member, now));
    }
}
