//! Snapshots in Kubernetes: a worker's Pod takes them (`worker`); the operator tells what it knows, and passes on what
//! EtcdBackups ask for.

pub(super) mod worker;

use std::rc::Rc;

use kube::api::{Api, DynamicObject};

use super::claim::Which;
use super::names;
use super::objects::{exactly, resource};
use super::restore::wire_now;
use super::{Cluster, ControllerError, Watched};
use crate::api::EtcdBackup;
use crate::api::requests::{EtcdBackupStatus, Phase};
use crate::backup::place;
use crate::backup::work::Made;
use crate::cluster::{Detail, Timestamp, detail};
use crate::member::pod::{CLAIM_DIR, S3_CA, S3_KEY, s3_credentials};
use crate::observed::{BackupFailure, Backups, Clock, Observed, Reading};
use crate::plan::Hold;
use crate::retention::VERIFIED;
use crate::spec::ClusterSpec;
use crate::spec::backup::Place;
use crate::worker::report::{Ended, Report};

impl Cluster {
    /// What the worker knows of the snapshots.
    pub(super) async fn backups(
        &mut self,
        spec: &ClusterSpec,
        clock: Clock,
        now: Timestamp,
    ) -> Backups {
        let trusted = clock.trusted(now);
        let restore_failed = self.restore_failed(trusted);
        let Some(backup) = &spec.backup else {
            self.memory.heard = worker::Heard::default();
            return Backups {
                elsewhere: true,
                restore_failed,
                ..Backups::default()
            };
        };
        // A restore is before anything else that is done with the data, a snapshot of it among that.
        let rests = spec.paused || self.memory.restoring.is_some();
        self.hear_worker(trusted, rests).await;
        self.take_note();
        let known = self.memory.heard.known();
        let mut seen = match &known {
            Some((report, seconds)) => report.backups(*seconds),
            None => Backups {
                elsewhere: true,
                ..Backups::default()
            },
        };
        for (seen, destination) in seen.destinations.iter_mut().zip(&backup.destinations) {
            seen.place = match &destination.place {
                Place::Local(_) => {
                    let claim = self.claim_of_snapshots().unwrap_or_default();
                    detail(format_args!("the claim {claim}"))
                }
                Place::S3(_) => detail(format_args!("{}", place::describe(destination))),
            };
        }
        for failure in [&mut seen.failed, &mut seen.copy_failed]
            .into_iter()
            .flatten()
        {
            failure.why = self.in_words_of_the_document(&failure.why);
        }
        let unheard = self.memory.heard.unheard().map(|why| BackupFailure {
            reason: "SnapshotFailed",
            why,
        });
        let deleted = self.goes(Which::Snapshots).then(|| BackupFailure {
            reason: Hold::ClaimDeleted.reason(),
            why: detail(format_args!(
                "somebody deleted the claim {}: Kubernetes removes it, with the snapshots, as soon as no Pod uses it, so the operator keeps the worker; next: kubectl delete pod {}, which gives them up, and the operator makes a new claim",
                names::snapshots_claim(&self.name),
                names::backup_pod(&self.name)
            )),
        });
        // At first its Pod only has not come up yet.
        let late = known.is_some() || self.memory.heard.is_late();
        Backups {
            failed: deleted
                .or_else(|| unheard.filter(|_| late))
                .or_else(|| seen.failed.take()),
            asked: self.next_request().is_some(),
            restore_failed,
            ..seen
        }
    }

    /// Access keys are a file of the worker's and a Secret of whoever reads it; a directory of the worker's is a claim.
    fn in_words_of_the_document(&self, text: &str) -> Detail {
        let claim = self.claim_of_snapshots().unwrap_or_default();
        let mut text = text
            .replace(CLAIM_DIR, &format!("the claim {claim}"))
            .replace("caFile", &format!("the key {S3_CA} of its Secret"));
        for (index, it) in self.object.object.spec.destinations().iter().enumerate() {
            let secret = it.s3.as_ref().and_then(|it| it.credentials_secret.as_ref());
            if let Some(secret) = secret {
                text = text.replace(&s3_credentials(index), &format!("of the Secret {secret}"));
            }
        }
        detail(format_args!("{text}"))
    }

    /// Secrets that the worker misses.
    fn without_keys(&self, report: &Report) -> Vec<String> {
        let destinations = self.object.object.spec.destinations();
        let missing = report.without_keys.iter();
        let missing = missing.filter_map(|it| destinations.get(*it)?.s3.as_ref());
        missing
            .filter_map(|it| it.credentials_secret.clone())
            .collect()
    }

    /// How requests stand with the worker.
    fn take_note(&mut self) {
        let Some(id) = self.memory.taking.clone() else {
            return;
        };
        let heard = &self.memory.heard;
        let Some((report, _)) = heard.known().filter(|_| heard.silent.is_none()) else {
            return;
        };
        if let Some(ended) = report.ended.iter().find(|it| it.id == id) {
            self.memory.taking = None;
            self.memory.taken = Some((id, ended.clone()));
        } else if !report.asked.contains(&id) {
            self.memory.taking = None; // of a worker that was cut: it is asked again
        }
    }

    /// The verified snapshot that a restore from there would take, of those that count.
    pub(super) async fn counting(&mut self, from: &str) -> Result<Option<String>, Detail> {
        if self.claim_of_snapshots().is_none() {
            return Ok(None);
        }
        let found = self.find(from).await?;
        if let Some(several) = found.several {
            return Err(detail(format_args!("{several}")));
        }
        let counts = found.counts && found.level.is_some_and(|it| it >= VERIFIED);
        Ok(found.name.filter(|_| counts))
    }

    /// What has ended is told. `waits`: why nobody begins what was asked for.
    pub(super) async fn carry_backups_on(
        &mut self,
        spec: &ClusterSpec,
        observed: &Observed,
        waits: Option<Detail>,
    ) -> Result<(), ControllerError> {
        let known = self.memory.heard.known();
        if let Some((number, text)) = known.iter().find_map(|it| it.0.failure.clone())
            && self.memory.heard.told.replace(number) != Some(number)
        {
            let text = self.in_words_of_the_document(&text);
            self.tell("BackupFailed", &text, true).await;
        }
        let missing: Vec<String> = known
            .iter()
            .flat_map(|it| self.without_keys(&it.0))
            .collect();
        for name in missing {
            let text = format!("there is no Secret {name} with a key {S3_KEY}");
            self.tell("SecretMissing", &text, true).await;
        }
        let now = observed.clock.trusted(observed.now);
        self.write_taken(now.is_some()).await?;
        let instance = observed.speaker();
        let answers = instance.is_some_and(|it| it.service.read == Reading::Answered);
        let silent = (!answers).then(|| detail(format_args!("etcd does not answer")));
        let heard = &self.memory.heard;
        let unheard = heard.silent.as_ref().map(|it| it.why.clone());
        let unheard = unheard.filter(|_| spec.backup.is_some() && heard.is_late());
        if let Some(why) = silent.or(waits).or(unheard) {
            self.backups_wait(&why).await?;
        }
        for request in self.backup_requests() {
            if is_over(&request) {
                if let Some(now) = now {
                    self.remove_old(&request, now).await?;
                }
            } else if spec.backup.is_none() && !self.memory.has_ended(&request.meta) {
                let text = format!(
                    "{} has no spec.backup, which names the destinations",
                    self.name
                );
                self.write_end(&request, failed(&text), now.is_some())
                    .await?;
                self.memory.note_end(&request.meta.uid);
            }
        }
        self.keep_worker(spec).await
    }

    /// Has the worker take the snapshot that was asked for first.
    pub(super) async fn take_requested(&mut self) -> Result<(), ControllerError> {
        let Some(request) = self.next_request() else {
            return Ok(());
        };
        let id = request.meta.uid.clone();
        if self.ask_for(&id).await.is_err() {
            return Ok(()); // why it waits is told with the next look
        }
        self.memory.taking = Some(id);
        let status = EtcdBackupStatus {
            phase: Some(Phase::Running),
            ..EtcdBackupStatus::default()
        };
        self.answer(&request, &status).await
    }

    /// The oldest request that nobody works on, where nobody works on another one, and the end of the last one was
    /// written.
    fn next_request(&self) -> Option<Rc<Watched<EtcdBackup>>> {
        let (memory, mut all) = (&self.memory, self.backup_requests().into_iter());
        let next = all.find(|it| !is_over(it) && !memory.has_ended(&it.meta));
        let free = memory.taking.is_none() && memory.taken.is_none();
        next.filter(|_| free)
    }

    /// Requests for this cluster, oldest first.
    fn backup_requests(&self) -> Vec<Rc<Watched<EtcdBackup>>> {
        let ours = |it: &EtcdBackup| it.spec.cluster == self.name;
        self.shared.backups.requests(&self.namespace, ours)
    }

    /// What nobody works on yet says why.
    pub(super) async fn backups_wait(&self, why: &str) -> Result<(), ControllerError> {
        for request in self.backup_requests() {
            let status = request.object.status.as_ref();
            if status.is_none_or(|it| it.phase.is_none()) {
                self.waits(&request, why).await?;
            }
        }
        Ok(())
    }

    /// A time that nobody trusts is none: the lifetime is counted from it.
    async fn write_end(
        &self,
        request: &Watched<EtcdBackup>,
        mut status: EtcdBackupStatus,
        trusted: bool,
    ) -> Result<(), ControllerError> {
        status.completed = status.completed.filter(|_| trusted);
        self.answer(request, &status).await
    }

    /// Writes how the last one ended; where that fails, with the next pass.
    async fn write_taken(&mut self, trusted: bool) -> Result<(), ControllerError> {
        let Some((id, ended)) = self.memory.taken.clone() else {
            return Ok(());
        };
        let all = self.backup_requests();
        if let Some(request) = all.iter().find(|it| it.meta.uid == id) {
            let status = self.ended_as(ended).await;
            self.write_end(request, status, trusted).await?;
        } // otherwise it was removed meanwhile; the snapshot stays
        self.memory.note_end(&id);
        self.memory.taken = None;
        Ok(())
    }

    async fn ended_as(&mut self, ended: Ended) -> EtcdBackupStatus {
        match (ended.made, ended.failed) {
            (_, Some(failure)) => {
                let text = format!("{}: {}", failure.reason, failure.why);
                self.tell("BackupFailed", &text, true).await;
                failed(&text)
            }
            (Some(made), None) => {
                let Made {
                    name,
                    revision,
                    level,
                    size,
                } = made;
                let text = format!("{name} at revision {revision}, verified at level {level}");
                self.tell("SnapshotTaken", &text, false).await;
                EtcdBackupStatus {
                    phase: Some(Phase::Succeeded),
                    snapshot: Some(name),
                    revision: Some(revision),
                    level: Some(level),
                    size,
                    completed: wire_now(),
                    ..EtcdBackupStatus::default()
                }
            }
            (None, None) => failed("the snapshot no longer exists"),
        }
    }

    /// An EtcdBackup whose time is over.
    async fn remove_old(
        &self,
        request: &Watched<EtcdBackup>,
        now: Timestamp,
    ) -> Result<(), ControllerError> {
        let Some(hours) = request.object.spec.ttl_hours else {
            return Ok(());
        };
        let status = request.object.status.clone().unwrap_or_default();
        let Some(ended) = &status.completed else {
            // It ended while nobody knew the time.
            let status = EtcdBackupStatus {
                completed: wire_now(),
                ..status
            };
            return self.answer(request, &status).await;
        };
        if now.seconds_since(Timestamp(ended.0.as_second())) < i64::from(hours) * 3600 {
            return Ok(());
        }
        let resource = resource::<EtcdBackup>();
        let client = self.shared.client.clone();
        let api: Api<DynamicObject> = Api::namespaced_with(client, &self.namespace, &resource);
        let seen = exactly(Some(request.meta.uid.clone()), None);
        let removed = self
            .objects
            .remove_seen((&api, "EtcdBackup"), &request.name, &seen);
        removed.await.map(drop)
    }
}

/// Its end was written.
fn is_over(request: &Watched<EtcdBackup>) -> bool {
    let phase = request.object.status.as_ref().and_then(|it| it.phase);
    phase.is_some_and(Phase::is_end)
}

fn failed(message: &str) -> EtcdBackupStatus {
    EtcdBackupStatus {
        phase: Some(Phase::Failed),
        message: Some(detail(format_args!("{message}")).to_string()),
        completed: wire_now(),
        ..EtcdBackupStatus::default()
    }
}
