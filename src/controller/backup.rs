//! Snapshots in Kubernetes: the host's pipeline, in the operator's own Pod, into directories of the node
//! that it alone writes to and into buckets; and EtcdBackups, which ask for one now.

mod pod;

use std::io;
use std::path::PathBuf;
use std::rc::Rc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::api::{Api, DynamicObject};

use super::names;
use super::objects::{Kind, exactly, resource};
use super::restore::wire_now;
use super::{Cluster, ControllerError, Watched};
use crate::api::EtcdBackup;
use crate::api::requests::{EtcdBackupStatus, Phase};
use crate::backup::local::Entry;
use crate::backup::name::LATEST;
use crate::backup::place;
use crate::backup::trust::Trust;
use crate::backup::work::{self, Asked, Made, Member, Task, Told, Work};
use crate::cluster::{Detail, Timestamp, detail};
use crate::error::chain;
use crate::member::records::IdentityFile;
use crate::observed::{Backups, Clock, Observed, Reading};
use crate::retention::VERIFIED;
use crate::spec::ClusterSpec;
use crate::spec::backup::{Destination, Place, Text};
use crate::state;
use crate::tls::ClientFiles;

/// The directories of the document's destinations.
fn local_paths(spec: &ClusterSpec) -> Vec<PathBuf> {
    let destinations = spec.backup.iter().flat_map(|it| &it.destinations);
    let paths = destinations.filter_map(Destination::local_path);
    paths.map(PathBuf::from).collect()
}

/// Key of a Secret with the text of a file of access keys.
const CREDENTIALS: &str = "credentials";

impl Cluster {
    /// What is known of the snapshots.
    pub(super) fn backups(&mut self, spec: &ClusterSpec, clock: Clock, now: Timestamp) -> Backups {
        let asked = self.next_request().is_some();
        let seen = if self.claimed().is_some() {
            self.backups_on_claim(spec, clock, now)
        } else {
            let failed = self.restore_failed(clock.trusted(now));
            self.with_member(spec, |work, member| work.look(member, clock, now, failed))
        };
        Backups {
            busy: seen.busy || self.is_worked_on(),
            asked,
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
            certificates: self.certificates.clone(),
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
    pub(super) fn make_destinations(&mut self, spec: &ClusterSpec) {
        if self.claimed().is_none() && !self.object.meta.deleting {
            for path in local_paths(spec) {
                // What is in the way is told by whoever looks there.
                let _ = self.prepare_destination(path, true);
            }
        }
    }

    /// A directory for snapshots: made below the one that this cluster may use. `missing`: only where it is not
    /// there. It may lie on a share that does not answer, so it is made beside the loop.
    fn prepare_destination(&mut self, path: PathBuf, missing: bool) -> Result<(), ControllerError> {
        let look = self.memory.made.entry(path.clone()).or_default();
        let own = path.clone();
        let made = look.at((), move |_| {
            if missing && own.exists() {
                return Ok(());
            }
            Self::prepare_dir(&own).map_err(|it| detail(format_args!("{}", chain(&it))))
        });
        let source = match (made.silent, made.what) {
            (None, Some(Ok(()))) => return Ok(()),
            (None, Some(Err(why))) => io::Error::other(why.to_string()),
            _ => io::ErrorKind::TimedOut.into(),
        };
        Err(ControllerError::System {
            what: "use",
            path,
            source,
        })
    }

    /// The first destination; the others are in the way of nothing that goes there.
    fn prepare_first(&mut self, spec: &ClusterSpec) -> Result<(), ControllerError> {
        let first = local_paths(spec).into_iter().next();
        first.map_or(Ok(()), |it| self.prepare_destination(it, false))
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
        self.prepare_first(spec)?;
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
        for path in local_paths(spec) {
            self.prepare_destination(path, false)?;
        }
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
    pub(super) fn snapshot_file(&mut self, from: &str) -> Result<Option<String>, Detail> {
        if self.claimed().is_some() {
            return Ok(self.file_on_claim(from));
        }
        let Some(spec) = self.memory.spec.clone() else {
            return Ok(None);
        };
        let Some(store) = place::primary(&spec) else {
            return Ok(None);
        };
        let entries = self.with_member(&spec, Work::entries)?;
        let counting = Trust::of(&self.certificates, &spec, None).counting(&entries);
        let entry = self.named(&counting, from);
        let entry = entry.filter(|it| it.level() >= VERIFIED);
        let path = entry.map(|it| store.snapshot(&it.name));
        Ok(path.map(|it| it.to_string_lossy().into_owned()))
    }

    /// Whether a restore would find nothing. Where other places than the directory of the member's own node, which
    /// is this one, may have the snapshot, only the restore's Pod can tell; and where that does not answer.
    pub(super) fn snapshot_is_missing(&mut self, spec: &ClusterSpec, from: &str) -> bool {
        let alone = spec
            .backup
            .as_ref()
            .is_some_and(|it| it.destinations.len() == 1);
        let member = names::member(&self.name);
        let pod = self.shared.pods.get(&self.namespace, &member);
        let here = pod.is_some_and(|it| it.node.as_ref() == Some(&self.shared.own.node));
        if !alone || !here || self.claimed().is_some() {
            return false;
        }
        let entries = self.with_member(spec, Work::entries);
        entries.is_ok_and(|it| self.named(&it, from).is_none())
    }

    /// The snapshot that a restore from there would take.
    fn named<'a>(&self, entries: &'a [Entry], from: &str) -> Option<&'a Entry> {
        if from == LATEST {
            let clusters = self.identity.as_ref().map(IdentityFile::clusters);
            return place::newest_verified(entries, &clusters.unwrap_or_default());
        }
        entries.iter().find(|it| it.name.to_string() == from)
    }

    /// What has ended is told. `waits`: why nobody begins what was asked for.
    pub(super) async fn carry_backups_on(
        &mut self,
        spec: &ClusterSpec,
        observed: &Observed,
        waits: Option<Detail>,
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
        let silent = (!answers).then_some("etcd does not answer");
        if let Some(why) = silent.or(waits.as_deref()) {
            self.backups_wait(why).await?;
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
        self.collect_backup_pods().await
    }

    /// Takes the snapshot that was asked for first.
    pub(super) async fn take_requested(
        &mut self,
        spec: &ClusterSpec,
        now: Option<Timestamp>,
    ) -> Result<(), ControllerError> {
        let Some(request) = self.next_request() else {
            return Ok(());
        };
        if let Err(error) = self.prepare_first(spec) {
            self.waits(&request, &chain(&error)).await?;
            return Err(error);
        }
        let status = EtcdBackupStatus {
            phase: Some(Phase::Running),
            ..EtcdBackupStatus::default()
        };
        self.answer(&request, &status).await?;
        let id = request.meta.uid.clone();
        if self.claimed().is_some() {
            let task = Task::OnDemand(id);
            return self.make_backup_pod(spec, task, now.is_some()).await;
        }
        self.memory.taking = Some(id.clone());
        self.with_member(spec, |work, member| work.take(member, now, Some(id)));
        Ok(())
    }

    /// The oldest request that nobody works on, where nobody works on another one, and the end of the last one was
    /// written.
    fn next_request(&self) -> Option<Rc<Watched<EtcdBackup>>> {
        let (memory, mut all) = (&self.memory, self.backup_requests().into_iter());
        let next = all.find(|it| !is_over(it) && !memory.has_ended(&it.meta));
        let free = memory.taking.is_none() && memory.taken.is_none() && !self.is_worked_on();
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
                    completed: wire_now(),
                    ..EtcdBackupStatus::default()
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
