//! Restores on this host, step by step as the core plans them.

mod tries;

use std::path::PathBuf;
use std::time::Duration;

use super::apply::{NO_RANDOM_BYTES, failed};
use super::driver::Driver as _;
use super::observe::quota_at_birth;
use super::predecessors;
use super::{Agent, AgentError};
use crate::backup::restore::{self, Failed, Preparation, Prepared, RestoreError};
use crate::backup::source;
use crate::backup::work::{self, Ended};
use crate::clock;
use crate::cluster::{Detail, PeerUrl, Timestamp, detail};
use crate::disk;
use crate::error::chain;
use crate::etcd::store;
use crate::member::contact;
use crate::member::crash::CrashPoint;
use crate::member::examiner::Examiner;
use crate::member::place::HostPlace;
use crate::member::records::{self, IdentityFile, SeenFile};
use crate::member::restore_record::{
    self, Outcome, Reason, RestoreRecord, RestoreReport, StoredPhase,
};
use crate::member::starts;
use crate::observed::{Observed, Restoring};
use crate::paths::Paths;
use crate::plan::permit::{Lapsed, Permit};
use crate::plan::{Asked, Hold, Interruption};
use crate::spec::ClusterSpec;
use crate::version::Version;

pub(super) use tries::Tries;

/// A dying process keeps the member's lock until its last thread has ended.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);

impl Agent {
    /// The restore under way, as the core sees it.
    pub(super) fn restoring(&mut self) -> Result<Option<Restoring>, Detail> {
        let busy = self.is_busy();
        let record = RestoreRecord::load(&self.paths);
        let record = record.map_err(|error| detail(format_args!("{}", chain(&error))))?;
        Ok(record.map(|it| Restoring {
            phase: it.phase.into(),
            busy,
            stops_first: false,
        }))
    }

    /// Why the operator does not retry the document's own restore now: the last one failed, or there were
    /// too many. The second value is the seconds until the operator retries it, if it does. A person's
    /// request for another try clears both. `now`: the time, if it is trusted.
    pub(super) fn restore_failed(
        &mut self,
        spec: &ClusterSpec,
        now: Option<Timestamp>,
    ) -> Option<(Detail, Option<u64>)> {
        if let Some(why) = restore::why_no_more(&self.paths, now) {
            return Some((why, None));
        }
        let report = self.own_failure()?;
        let storage_dir = self.place(spec).storage_dir;
        if let (Some(needed), Some(free)) = (report.room, disk::free_bytes(&storage_dir))
            && free >= needed
        {
            return None; // the space that it lacked is free now
        }
        // A failed restore touched nothing, so a retry costs only another look.
        let repeats = report.outcome == Outcome::Failed && self.operates();
        let retry_in = repeats.then(|| self.memory.restores.retry_in(&report.id, spec));
        if retry_in == Some(0) {
            return None;
        }
        let why = report.message.unwrap_or_default();
        Some((detail(format_args!("{why}")), retry_in))
    }

    /// The report of the last restore, if the document asked for it and it failed.
    fn own_failure(&self) -> Option<RestoreReport> {
        restore_record::last_report(&self.paths)
            .filter(|it| it.reason != Reason::Command && it.outcome != Outcome::Restored)
            .filter(|it| !it.forgotten)
    }

    /// A person asks for another try. The operator also reads again what it has read.
    pub(super) fn forget_failed_restore(&mut self) {
        self.work.retry_now();
        self.memory.restores = Tries::default();
        self.memory.predecessors = predecessors::Search::default();
        self.memory.examiner = Examiner::default();
        self.memory.examiner_elsewhere = Examiner::default();
        restore::forget_recoveries(&self.paths);
        if let Some(report) = self.own_failure() {
            let forgotten = RestoreReport {
                forgotten: true,
                ..report
            };
            if let Err(error) = crate::state::save(&self.paths.restored(), &forgotten) {
                self.log_once(&chain(&error));
            }
        }
    }

    /// Requests the restore that the document asks for.
    pub(super) fn request_restore(
        &mut self,
        spec: &ClusterSpec,
        place: &HostPlace,
        asked: Asked,
    ) -> Result<(), AgentError> {
        let (identity, marker) = records::load_identities(&self.paths, &place.storage_dir)?;
        let former = identity.or(marker);
        let reason = match asked {
            Asked::Bootstrap => Reason::Bootstrap,
            Asked::Recovery => Reason::Recovery,
        };
        let record = RestoreRecord::requested(
            restore_record::new_id(),
            reason,
            source::unresolved(spec, reason),
            SeenFile::revision_of(&self.paths, former.as_ref()),
            former,
        );
        // A command may have requested a restore since this was planned. That restore comes first.
        record.request(&self.paths)?;
        Ok(())
    }

    /// Verifies the snapshot and makes new data from it, in a job beside the loop.
    pub(super) fn prepare_restore(
        &mut self,
        spec: &ClusterSpec,
        place: &HostPlace,
        now: Option<Timestamp>,
    ) -> Result<(), AgentError> {
        let Some(record) = RestoreRecord::load(&self.paths)? else {
            return Ok(());
        };
        let identity = if record.takes_back.is_some() {
            None // it is the one that was there
        } else if let Some(former) = &record.former {
            let mut next = former.clone().without_ids();
            next.cluster.former_ids = former.clusters();
            if let Some(older) = record.version.as_ref().and_then(|it| it.parse().ok()) {
                next.restore_as(older);
            }
            next.cluster.token = records::new_token(&spec.name)
                .ok_or_else(|| failed("make a cluster token", NO_RANDOM_BYTES))?;
            Some(next)
        } else {
            let version = spec
                .version
                .or_else(|| store::newest_supported(&self.paths.store()))
                .ok_or(AgentError::NoPermit(Lapsed::Held(Hold::NoVersion)))?;
            let quota = spec.quota.unwrap_or_else(|| quota_at_birth(place));
            Some(self.identity_at_birth(spec, version, quota)?)
        };
        let job = PrepareJob {
            paths: self.paths.clone(),
            spec: spec.clone(),
            storage_dir: place.storage_dir.clone(),
            peer_url: spec.peer_url(),
            now,
        };
        self.begin(move || Ended::Prepared(Box::new(job.run(record, identity))));
        Ok(())
    }

    /// Takes the job's result. The restore continues, or it has failed and nothing was touched.
    pub(super) fn restore_prepared(&mut self, prepared: Prepared) {
        let Prepared { record, result } = prepared;
        let noted = match result {
            Ok(identity) => {
                let (lost, is) = record.loss();
                let what = match record.takes_back {
                    Some(_) => "the data that was set aside is intact",
                    None => "the operator verified the snapshot and made new data from it",
                };
                tracing::info!(
                    snapshot = record.source.name,
                    revision = record.source.revision,
                    "{what}; will be lost: {}",
                    restore_record::lost_words(lost, is)
                );
                let saved = RestoreRecord {
                    phase: StoredPhase::Prepared,
                    next: Some(identity),
                    ..record
                }
                .save(&self.paths);
                CrashPoint::PreparedWritten.pass();
                saved.map_err(AgentError::from)
            }
            // The data is sound, so the reason for this restore is gone; no person asked for it.
            Err(Failed {
                why,
                is_sound: true,
                ..
            }) => {
                tracing::warn!("{why}");
                record.withdraw(&self.paths).map_err(AgentError::from)
            }
            Err(Failed { why, room, .. }) => {
                let before = restore_record::last_report(&self.paths).and_then(|it| it.message);
                if before.as_ref() != Some(&why) {
                    tracing::error!("the restore failed, and nothing was touched: {why}");
                }
                let report = RestoreReport {
                    room,
                    ..record.report(Outcome::Failed, None, Some(why))
                };
                record.end(&self.paths, report).map_err(AgentError::from)
            }
        };
        if let Err(error) = noted {
            self.log_once(&chain(&error));
        }
    }

    /// Puts the new data in place of the old data.
    pub(super) async fn swap_restored(
        &mut self,
        spec: &ClusterSpec,
        observed: &Observed,
        place: &HostPlace,
        permit: Permit<Interruption>,
    ) -> Result<(), AgentError> {
        let Some(mut record) = RestoreRecord::load(&self.paths)? else {
            return Ok(());
        };
        // The loss is counted from this last observation before etcd stops.
        let instance = observed.instance(&permit.step().member);
        if let Some(details) = instance.and_then(|it| it.service.details) {
            record.live_revision = Some(details.revision);
            record.live_at_most = record.live_revision;
        }
        record.remember_highest();
        if record.reason == Reason::Recovery && record.phase == StoredPhase::Prepared {
            let now = observed.clock.trusted(observed.now);
            restore::note_recovery(&self.paths, now)?;
        }
        self.enter(&mut record, StoredPhase::Swapping)?;
        CrashPoint::SwappingWritten.pass();
        self.stop_for_restore(spec, permit).await?;
        CrashPoint::EtcdStopped.pass();
        let lock = self.hold_the_member().await?;
        let swapped = restore::swap(&record, &self.paths, &place.storage_dir);
        drop(lock);
        self.forget_service();
        if let Err(error @ RestoreError::NewDataGone(_)) = swapped {
            let why = chain(&error);
            tracing::error!("the restore failed, and the old data stays in place: {why}");
            let report = record.report(Outcome::Failed, None, Some(why));
            return Ok(record.end(&self.paths, report)?);
        }
        swapped?;
        let minted = self
            .mint_certificates(spec, observed, place)
            .and_then(|()| self.mint_clients(spec, observed, place));
        if let Err(error) = minted {
            self.log_once(&chain(&error));
        }
        self.prepare(spec, place, None)?;
        self.enter(&mut record, StoredPhase::Starting)?;
        CrashPoint::StartingWritten.pass();
        Ok(())
    }

    /// Ends the restore: etcd serves the new data.
    pub(super) async fn finish_restore(
        &mut self,
        spec: &ClusterSpec,
        place: &HostPlace,
    ) -> Result<(), AgentError> {
        let Some(record) = RestoreRecord::load(&self.paths)? else {
            return Ok(());
        };
        // A snapshot of data that was being lowered would have that done here.
        contact::cancel_downgrade(&self.endpoint(spec)).await?;
        CrashPoint::Served.pass();
        self.record_authorities(&place.storage_dir)?;
        let kept = Some(record.kept(&place.storage_dir)).filter(|it| it.exists());
        let report = record.report(Outcome::Restored, kept, None);
        let lost = restore_record::lost_words(report.revisions_lost, report.lost_is);
        tracing::warn!(
            snapshot = report.snapshot,
            revision = report.snapshot_revision,
            "restored; lost: {lost}"
        );
        record.end(&self.paths, report)?;
        source::forget_fetched(&self.paths);
        Ok(())
    }

    /// Puts the old data back, because etcd did not serve the new data.
    pub(super) async fn undo_restore(
        &mut self,
        spec: &ClusterSpec,
        observed: &Observed,
        place: &HostPlace,
        permit: Permit<Interruption>,
    ) -> Result<(), AgentError> {
        let Some(mut record) = RestoreRecord::load(&self.paths)? else {
            return Ok(());
        };
        let instance = observed.instance(&permit.step().member);
        let why = instance.map_or_else(String::new, |it| {
            crate::start::verdict(&it.facts)
                .err()
                .map_or_else(|| "it never served".to_owned(), |it| it.to_string())
        });
        self.enter(&mut record, StoredPhase::Undoing)?;
        CrashPoint::UndoingWritten.pass();
        self.stop_for_restore(spec, permit).await?;
        let lock = self.hold_the_member().await?;
        restore::undo(&record, &self.paths, &place.storage_dir)?;
        drop(lock);
        self.forget_service();
        if record.former.is_some() {
            self.prepare(spec, place, None)?;
        }
        let failed = record.failed(&place.storage_dir);
        let message = format!(
            "etcd did not serve the restored data: {why}; the operator put the old data back, and what was written since lies in {}",
            failed.display()
        );
        tracing::error!("{message}");
        let report = record.report(Outcome::Undone, None, Some(message));
        Ok(record.end(&self.paths, report)?)
    }

    /// Records a phase before it begins.
    fn enter(&self, record: &mut RestoreRecord, phase: StoredPhase) -> Result<(), AgentError> {
        record.phase = phase;
        Ok(record.save(&self.paths)?)
    }

    /// Stops etcd if it runs.
    async fn stop_for_restore(
        &mut self,
        spec: &ClusterSpec,
        permit: Permit<Interruption>,
    ) -> Result<(), AgentError> {
        let step = self.permitted(spec, permit).await?;
        match step.pid {
            Some(_) => self.driver.stop(None).await,
            None => Ok(()),
        }
    }

    /// Takes the member's lock. A guard takes it before it reads the record of the restore, and etcd holds
    /// it while it runs. So a guard that decided to start etcd before the record changed holds the lock
    /// here, and the next pass sees what became of it.
    pub(super) async fn hold_the_member(&self) -> Result<std::fs::File, AgentError> {
        use rustix::fs::{FlockOperation, flock};
        // On a new host whose data lies in another directory, this directory does not exist yet.
        crate::state::create_private_dir(&self.paths.member())?;
        let path = self.paths.member_lock();
        let file = crate::state::open_lock(&path);
        let file = file.map_err(|source| AgentError::System {
            what: "open",
            path: path.clone(),
            source,
        })?;
        let begin = clock::since_boot();
        while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            if clock::since_boot() > begin + LOCK_PATIENCE {
                let holder = crate::process::lock_holder(&path);
                let hold = Hold::ForeignProcess(holder);
                return Err(AgentError::NoPermit(Lapsed::Held(hold)));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(file)
    }

    /// Forgets what was observed of the process before: none of it holds for the next process.
    fn forget_service(&mut self) {
        starts::forget(&self.paths);
        self.memory.contact.forget();
        self.memory.seen = None;
    }
}

/// The job that makes new data beside the loop.
struct PrepareJob {
    paths: Paths,
    spec: ClusterSpec,
    storage_dir: PathBuf,
    peer_url: PeerUrl,
    /// Wall-clock time, if it is trusted.
    now: Option<Timestamp>,
}

impl PrepareJob {
    /// `identity`: the identity of the new data; `None`: the data that was set aside has its own.
    fn run(&self, mut record: RestoreRecord, identity: Option<IdentityFile>) -> Prepared {
        let result = match identity {
            Some(identity) => self.make(&mut record, identity),
            None => restore::check_aside(&record, &self.storage_dir, &self.paths.store()),
        };
        let result = result.map_err(|error| Failed {
            why: chain(&error),
            is_sound: matches!(error, RestoreError::Sound),
            room: match error {
                RestoreError::Space { needed, .. } => Some(needed),
                _ => None,
            },
        });
        Prepared { record, result }
    }

    fn make(
        &self,
        record: &mut RestoreRecord,
        mut identity: IdentityFile,
    ) -> Result<IdentityFile, RestoreError> {
        let version: Option<Version> = identity.member.version.parse().ok();
        let line = version.and_then(Version::line);
        if record.reason == Reason::Recovery && !restore::is_damaged_still(&self.storage_dir, line)
        {
            return Err(RestoreError::Sound);
        }
        let runtime = work::runtime();
        let runtime = runtime.map_err(|it| RestoreError::NoSnapshot(it.why.to_string()))?;
        let (paths, spec) = (&self.paths, &self.spec);
        runtime.block_on(source::resolve(paths, spec, record, &identity, self.now))?;
        record.set_bump(source::newest_revision(paths, spec, record.former.as_ref()));
        // A cluster that existed before does not adopt another cluster's snapshots: its retention would
        // remove them.
        let former = record.former.as_ref();
        if former.is_none_or(|it| it.clusters().is_empty()) {
            identity
                .cluster
                .former_ids
                .extend(record.source.cluster_id.clone());
        }
        let made = restore::prepare(
            &Preparation {
                record,
                storage_dir: &self.storage_dir,
                identity: &identity,
                store: &self.paths.store(),
                peer_url: &self.peer_url,
            },
            &mut |_| (),
        )?;
        let seen = SeenFile::index_of(&self.paths, record.former.as_ref());
        restore::count_loss(record, made.index, &self.storage_dir, line, seen);
        Ok(made.identity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::driver::HostDriver;
    use crate::member::place as member_place;
    use crate::paths::Paths;
    use crate::plan::Act;
    use crate::plan::permit::{Declared, Seen, to_interrupt};
    use crate::runtime::Runtime as _;

    const DOCUMENT: &str = "apiVersion: etcd.edge-operator.io/v1alpha1\nkind: EtcdCluster\n\
        metadata: {name: shop}\nspec: {size: 1, version: 3.6.0}\n";

    fn prepared(spec: &ClusterSpec, identity: IdentityFile) -> RestoreRecord {
        RestoreRecord {
            id: "1".to_owned(),
            reason: Reason::Command,
            phase: StoredPhase::Prepared,
            source: source::unresolved(spec, Reason::Command),
            live_revision: None,
            live_at_most: None,
            bump: restore_record::BUMP,
            former: Some(identity.clone()),
            next: Some(identity),
            asked: None,
            version: None,
            takes_back: None,
        }
    }

    fn permit(observed: &Observed, act: Act) -> Permit<Interruption> {
        let seen = Seen {
            member: &observed.instances[0].member,
            pid: None,
            id: None,
            alone: true,
            membership: &observed.membership,
            claim_deleted: false,
        };
        to_interrupt(seen, act, Some(Declared::Restore)).unwrap()
    }

    /// As a guard that has read the record already, and is about to become etcd.
    #[tokio::test]
    async fn data_is_not_exchanged_under_an_etcd_that_is_just_starting() {
        let root = std::env::temp_dir().join(format!("starting-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        let paths = Paths::under(&root);
        for dir in [&paths.lib, &paths.run] {
            std::fs::create_dir_all(dir).unwrap();
        }
        let spec = crate::document::parse(DOCUMENT.as_bytes()).unwrap();
        let place = member_place::resolve(&paths, &spec);
        let driver = HostDriver::choose(&paths, &spec.name);
        let mut agent = Agent::new(&paths, driver, None);
        let version = crate::version::Version::new(3, 6, 0);
        let identity = agent.identity_at_birth(&spec, version, 1 << 30).unwrap();
        let data = place.storage_dir.join("data");
        let made = RestoreRecord::scratch(&place.storage_dir).join("data");
        std::fs::create_dir_all(data.join("old")).unwrap();
        std::fs::create_dir_all(made.join("new")).unwrap();
        let mut record = prepared(&spec, identity);
        record.save(&paths).unwrap();
        let observed = agent.observe(&spec).await;

        let guard = crate::state::open_lock(&paths.member_lock()).unwrap();
        let exclusive = rustix::fs::FlockOperation::LockExclusive;
        rustix::fs::flock(&guard, exclusive).unwrap();
        let permit = |act| permit(&observed, act);
        let swap = permit(Act::SwapRestored);
        let swapped = agent.swap_restored(&spec, &observed, &place, swap).await;
        assert!(matches!(
            swapped,
            Err(AgentError::NoPermit(Lapsed::ProcessChanged))
        ));
        // Where the guard takes the lock only after that look.
        let lock = agent.hold_the_member().await;
        let held = matches!(
            lock,
            Err(AgentError::NoPermit(Lapsed::Held(Hold::ForeignProcess(_))))
        );
        assert!(held, "{:?}", lock.err());
        assert!(data.join("old").exists(), "nothing was renamed");
        drop(guard);
        agent
            .swap_restored(&spec, &observed, &place, permit(Act::SwapRestored))
            .await
            .unwrap();
        assert!(data.join("new").exists());

        let guard = crate::state::open_lock(&paths.member_lock()).unwrap();
        rustix::fs::flock(&guard, exclusive).unwrap();
        agent.enter(&mut record, StoredPhase::Starting).unwrap();
        let undo = permit(Act::UndoRestore);
        let undone = agent.undo_restore(&spec, &observed, &place, undo).await;
        assert!(matches!(
            undone,
            Err(AgentError::NoPermit(Lapsed::ProcessChanged))
        ));
        assert!(data.join("new").exists(), "nothing was renamed");
        drop(guard);
        agent
            .undo_restore(&spec, &observed, &place, permit(Act::UndoRestore))
            .await
            .unwrap();
        assert!(data.join("old").exists());
        std::fs::remove_dir_all(&root).unwrap();
    }
}
