//! Snapshots in Kubernetes: the host's pipeline, in the operator's own Pod, into directories of the node
//! that it alone writes to and into buckets; and EtcdBackups, which ask for one now.

mod pod;

use std::path::{Path, PathBuf};
use std::rc::Rc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::api::{Api, DeleteParams, DynamicObject, Preconditions};

use super::names;
use super::objects::{Kind, resource};
use super::restore::wire_now;
use super::{Cluster, ControllerError, Watched};
use crate::api::EtcdBackup;
use crate::api::requests::{EtcdBackupStatus, Phase};
use crate::backup::local::LocalError;
use crate::backup::name::LATEST;
use crate::backup::place;
use crate::backup::work::{self, Asked, Made, Member, Task, Told, Work};
use crate::cluster::{Timestamp, detail};
use crate::error::chain;
use crate::member::records::IdentityFile;
use crate::observed::{Backups, Clock, Observed, Reading};
use crate::retention::VERIFIED;
use crate::spec::ClusterSpec;
use crate::spec::backup::{Destination, Place, Text};
use crate::state;
use crate::tls::ClientFiles;

/// Key of a Secret with the text of a file of access keys.
const CREDENTIALS: &str = "credentials";

impl Cluster {
    /// What is known of the snapshots.
    pub(super) fn backups(&mut self, spec: &ClusterSpec, clock: Clock, now: Timestamp) -> Backups {
        if self.claimed().is_some() {
            return self.backups_on_claim(spec, clock, now);
        }
        let failed = self.restore_failed();
        let worked_on = self.is_worked_on();
        let seen = self.with_member(spec, |work, member| work.look(member, clock, now, failed));
        Backups {
            busy: seen.busy || worked_on,
            ..seen
        }
    }

    fn with_member<T>(
        &mut self,
        spec: &ClusterSpec,
        act: impl FnOnce(&mut Work, &Member<'_>) -> T,
    ) -> T {
        let pod = names::member(&self.name);
        let pod = self.shared.pods.get(&self.namespace, &pod);
        let place = self.place(spec, pod.as_deref());
        let member = Member {
            paths: &self.paths,
            spec,
            identity: self.identity.as_ref(),
            url: &place.client_url,
            files: ClientFiles {
                server_name: Some(self.server_name()),
                ..self.certificates.operator_files()
            },
        };
        act(&mut self.memory.work, &member)
    }

    /// Where the access keys of a bucket lie, while they are needed: in memory, for this operator alone.
    fn credentials_file(&self, secret: &str) -> PathBuf {
        self.paths.run.join(format!("secret-{secret}"))
    }

    /// What the document says in names of Kubernetes, in those of the pipeline: a bucket's Secret is a
    /// file of this operator.
    pub(super) fn resolve(&self, spec: &mut ClusterSpec) {
        let wire = &self.object.object.spec;
        let asked = wire.backup.as_ref().map(|it| it.destinations.as_slice());
        let known = spec
            .backup
            .as_mut()
            .map(|it| it.destinations.as_mut_slice());
        let both = known
            .unwrap_or_default()
            .iter_mut()
            .zip(asked.unwrap_or_default());
        for (destination, asked) in both {
            let named = asked
                .s3
                .as_ref()
                .and_then(|it| it.credentials_secret.as_ref());
            if let (Place::S3(s3), Some(secret)) = (&mut destination.place, named) {
                let path = self.credentials_file(secret);
                s3.credentials = Text::try_from(path.to_string_lossy().as_ref()).ok();
            }
        }
    }

    /// Access keys, read anew for each run (rule B15).
    async fn fetch_credentials(&mut self) -> Result<(), ControllerError> {
        let object = self.object.clone();
        let backup = object.object.spec.backup.as_ref();
        for it in backup.iter().flat_map(|it| &it.destinations) {
            let Some(name) = it.s3.as_ref().and_then(|it| it.credentials_secret.as_ref()) else {
                continue;
            };
            let secret = self
                .objects
                .get(Kind::Secret, &self.namespace, name)
                .await?;
            let text = secret.and_then(|it| {
                let text = it.data["data"][CREDENTIALS].as_str()?.to_owned();
                STANDARD.decode(text).ok()
            });
            let Some(text) = text else {
                let text = format!("there is no Secret {name} with a key {CREDENTIALS}");
                self.tell("SecretMissing", &text, true).await;
                // What was taken away is used no longer.
                let _ = std::fs::remove_file(self.credentials_file(name));
                continue;
            };
            state::create_private_dir(&self.paths.run)?;
            state::write_file(&self.credentials_file(name), &text)?;
        }
        Ok(())
    }

    pub(super) fn skip_snapshot(&self, now: Timestamp) -> Result<(), ControllerError> {
        Ok(work::skip(&self.paths, now)?)
    }

    /// Directories for snapshots that are not there yet: of a new cluster that is nothing to be warned of.
    pub(super) fn make_destinations(&self, spec: &ClusterSpec) {
        let missing = |it: &Destination| it.local_path().is_some_and(|it| !Path::new(it).exists());
        let backup = spec.backup.as_ref();
        let missing = backup.is_some_and(|it| it.destinations.iter().any(missing));
        if missing && self.claimed().is_none() && !self.object.meta.deleting {
            // What is in the way is told by whoever looks there.
            let _ = Self::prepare_destinations(spec);
        }
    }

    /// Directories for snapshots: made below the one that this cluster may use.
    fn prepare_destinations(spec: &ClusterSpec) -> Result<(), ControllerError> {
        let backup = spec.backup.as_ref().map(|it| it.destinations.as_slice());
        for destination in backup.unwrap_or_default() {
            if let Some(path) = destination.local_path() {
                Self::prepare_dir(Path::new(path))?;
            }
        }
        Ok(())
    }

    pub(super) async fn take_snapshot(
        &mut self,
        spec: &ClusterSpec,
        now: Option<Timestamp>,
    ) -> Result<(), ControllerError> {
        if self.claimed().is_some() {
            return self
                .make_backup_pod(spec, Task::Scheduled, now.is_some())
                .await;
        }
        Self::prepare_destinations(spec)?;
        self.with_member(spec, |work, member| work.take(member, now, None));
        Ok(())
    }

    pub(super) async fn copy_snapshots(
        &mut self,
        spec: &ClusterSpec,
        now: Option<Timestamp>,
    ) -> Result<(), ControllerError> {
        if self.claimed().is_some() {
            let trusted = now.is_some();
            return self.make_backup_pod(spec, Task::Copies, trusted).await;
        }
        Self::prepare_destinations(spec)?;
        self.fetch_credentials().await?;
        self.with_member(spec, |work, member| work.copy(member, now));
        Ok(())
    }

    /// A trial restore needs an etcd, which the image of a member's Pod has.
    pub(super) async fn check_snapshots(
        &mut self,
        spec: &ClusterSpec,
        now: Option<Timestamp>,
    ) -> Result<(), ControllerError> {
        let tried = spec.backup.as_ref().is_some_and(|it| it.verify_level >= 4);
        if tried || self.claimed().is_some() {
            let trusted = now.is_some();
            return self.make_backup_pod(spec, Task::Checks, trusted).await;
        }
        self.with_member(spec, |work, member| work.check(member, now));
        Ok(())
    }

    /// The file of a verified snapshot, on this node or on a claim; `None` where there is none.
    pub(super) fn snapshot_file(&mut self, from: &str) -> Result<Option<String>, LocalError> {
        if self.claimed().is_some() {
            return Ok(self.file_on_claim(from));
        }
        let store = self.memory.spec.as_ref().and_then(place::primary);
        let Some(store) = store else {
            return Ok(None);
        };
        let entries = store.list()?;
        let clusters = self.identity.as_ref().map(IdentityFile::clusters);
        let entry = match from {
            LATEST => place::newest_verified(&entries, &clusters.unwrap_or_default()),
            name => entries
                .iter()
                .find(|it| it.name.to_string() == name && it.level() >= VERIFIED),
        };
        let path = entry.map(|it| store.snapshot(&it.name));
        Ok(path.map(|it| it.to_string_lossy().into_owned()))
    }

    /// Whether a restore would find nothing. Where other places than the directory of the member's own node, which
    /// is this one, may have the snapshot, only the restore's Pod can tell.
    pub(super) fn snapshot_is_missing(&self, spec: &ClusterSpec, from: &str) -> bool {
        let alone = spec
            .backup
            .as_ref()
            .is_some_and(|it| it.destinations.len() == 1);
        let member = names::member(&self.name);
        let pod = self.shared.pods.get(&self.namespace, &member);
        let here = pod.is_some_and(|it| it.node.as_ref() == Some(&self.shared.own.node));
        let known = alone && here && self.claimed().is_none();
        let store = place::primary(spec).filter(|_| known);
        let Some(Ok(entries)) = store.map(|it| it.list()) else {
            return false;
        };
        let clusters = self.identity.as_ref().map(IdentityFile::clusters);
        match from {
            LATEST => place::newest_verified(&entries, &clusters.unwrap_or_default()).is_none(),
            name => !entries.iter().any(|it| it.name.to_string() == name),
        }
    }

    /// What has ended is told, and what was asked for is begun.
    pub(super) async fn carry_backups_on(
        &mut self,
        spec: &ClusterSpec,
        observed: &Observed,
    ) -> Result<(), ControllerError> {
        for told in self.memory.work.collect() {
            match told {
                Told::Failure(text) => self.tell("BackupFailed", &text, true).await,
                Told::Asked(asked) => {
                    self.memory.taking = None;
                    let id = asked.id.clone();
                    let status = self.ended_as(*asked).await;
                    self.memory.taken = Some((id, status));
                }
                Told::Prepared(_) => {} // of a restore on a host
            }
        }
        let now = observed.clock.trusted(observed.now);
        self.write_taken(now.is_some()).await?;
        let instance = observed.speaker();
        let answers = instance.is_some_and(|it| it.service.read == Reading::Answered);
        if !answers {
            self.backups_wait("etcd does not answer").await?;
        }
        for request in self.backup_requests() {
            let status = request.object.status.clone().unwrap_or_default();
            if matches!(status.phase, Some(Phase::Succeeded | Phase::Failed)) {
                if let Some(now) = now {
                    self.remove_old(&request, now).await?;
                }
                continue;
            }
            if self.memory.has_ended(&request.meta) {
                continue;
            }
            let Some(_) = &spec.backup else {
                let text = format!(
                    "{} has no spec.backup, which names the destinations",
                    self.name
                );
                self.write_end(&request, failed(&text), now.is_some())
                    .await?;
                continue;
            };
            let busy = self.memory.work.is_busy() || self.is_worked_on();
            if !answers || busy || self.memory.taking.is_some() {
                continue; // looked at again when something has changed
            }
            let id = request.meta.uid.clone();
            if let Err(error) = Self::prepare_destinations(spec) {
                self.waits(&request, &chain(&error)).await?;
                return Err(error);
            }
            let status = EtcdBackupStatus {
                phase: Some(Phase::Running),
                ..EtcdBackupStatus::default()
            };
            self.answer(&request, &status).await?;
            if self.claimed().is_some() {
                self.make_backup_pod(spec, Task::OnDemand(id), now.is_some())
                    .await?;
                break; // the next one when this one has ended
            }
            self.memory.taking = Some(id.clone());
            self.with_member(spec, |work, member| work.take(member, now, Some(id)));
        }
        self.collect_backup_pods().await
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
        let Some((id, status)) = self.memory.taken.clone() else {
            return Ok(());
        };
        let all = self.backup_requests();
        if let Some(request) = all.iter().find(|it| it.meta.uid == id) {
            self.write_end(request, status, trusted).await?;
        } // otherwise it was removed meanwhile; the snapshot stays
        self.memory.note_end(&id);
        self.memory.taken = None;
        Ok(())
    }

    async fn ended_as(&mut self, asked: Asked) -> EtcdBackupStatus {
        match asked.result {
            Ok(Some(Made {
                name,
                revision,
                level,
                size,
            })) => {
                self.memory.work.copy_soon();
                let text = format!("{name} at revision {revision}, verified at level {level}");
                self.tell("SnapshotTaken", &text, false).await;
                EtcdBackupStatus {
                    phase: Some(Phase::Succeeded),
                    snapshot: Some(name),
                    revision: Some(revision),
                    level: Some(level),
                    size,
                    message: None,
                    completed: wire_now(),
                }
            }
            Ok(None) => failed("the snapshot no longer exists"),
            Err(failure) => {
                let text = format!("{}: {}", failure.reason, failure.why);
                self.tell("BackupFailed", &text, true).await;
                failed(&text)
            }
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
        let parameters = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(request.meta.uid.clone()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match api.delete(&request.name, &parameters).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(it)) if it.is_not_found() || it.is_conflict() => Ok(()),
            Err(error) => {
                let (what, kind) = ("remove", "EtcdBackup");
                Err(ControllerError::of_server(what, kind, &request.name, error))
            }
        }
    }
}

fn failed(message: &str) -> EtcdBackupStatus {
    EtcdBackupStatus {
        phase: Some(Phase::Failed),
        message: Some(detail(format_args!("{message}")).to_string()),
        completed: wire_now(),
        ..EtcdBackupStatus::default()
    }
}
