//! Snapshots on a claim, and trial restores: the operator's own Pod mounts no claim and has no etcd, so a
//! Pod on the member's node works on them, one at a time, and leaves in its last words what lies there.

use std::path::{Path, PathBuf};

use crate::api::requests::{EtcdBackupStatus, Phase};
use crate::backup::local::LocalStore;
use crate::backup::manifest::Manifest;
use crate::backup::source::LATEST;
use crate::backup::work::{Ask, Asked, Kept, Task, note_check};
use crate::cluster::{Timestamp, detail};
use crate::controller::apply::unplaceable;
use crate::controller::objects::Kind;
use crate::controller::restore::document;
use crate::controller::seen::{Container, PodSeen};
use crate::controller::{Cluster, ControllerError, names, pod};
use crate::observed::{BackupFailure, Backups, Clock};
use crate::spec::ClusterSpec;
use crate::state;

/// How such a Pod stands.
enum Stands {
    UnderWay,
    /// It is not started, and why.
    Waits(String),
    Ended(Box<Kept>),
    Failed(String),
}

impl Cluster {
    /// The claim that snapshots lie on.
    pub(in crate::controller) fn claimed(&self) -> Option<&str> {
        let backup = self.object.object.spec.backup.as_ref()?;
        let local = backup.destinations.first()?.local.as_ref()?;
        local.claim_name.as_deref()
    }

    /// Where the last words of such a Pod are kept: on the node, so that the next operator knows them.
    fn kept_path(&self) -> PathBuf {
        let claim = self.claimed().unwrap_or_default();
        self.paths.backup().join(format!("claim-{claim}.json"))
    }

    fn backup_pod(&self) -> Option<std::rc::Rc<PodSeen>> {
        let name = names::backup_pod(&self.name);
        self.shared.pods.get(&self.namespace, &name)
    }

    /// A Pod works on the snapshots.
    pub(super) fn is_worked_on(&self) -> bool {
        self.backup_pod().is_some()
    }

    pub(super) fn kept(&mut self) -> Kept {
        let path = self.kept_path();
        match &self.memory.kept {
            Some((known, kept)) if *known == path => kept.clone(),
            _ => {
                let kept: Kept = state::load(&path).ok().flatten().unwrap_or_default();
                self.memory.kept = Some((path, kept.clone()));
                kept
            }
        }
    }

    /// What is known of snapshots on a claim.
    pub(super) fn backups_on_claim(
        &mut self,
        spec: &ClusterSpec,
        clock: Clock,
        now: Timestamp,
    ) -> Backups {
        let kept = self.kept();
        let there = self.backup_pod();
        let waits = match there.as_deref().map(stands) {
            Some(Stands::Waits(why)) => Some(BackupFailure {
                reason: "SnapshotFailed",
                why: detail(format_args!("{why}")),
            }),
            _ => None,
        };
        let failed = self.memory.bootstrap_failed.clone();
        self.with_member(spec, |work, member| {
            let at = (clock, now);
            work.look_at(member, &kept, there.is_some(), waits, at, failed)
        })
    }

    /// Has a Pod work on the snapshots: those on the claim, or in the directory of the node.
    pub(super) async fn make_backup_pod(
        &mut self,
        spec: &ClusterSpec,
        task: Task,
        trusted: bool,
    ) -> Result<(), ControllerError> {
        let (Some(identity), false) = (self.identity.clone(), self.is_worked_on()) else {
            return Ok(());
        };
        let Some(member) = self.pod_member(spec, &identity) else {
            return Ok(());
        };
        let object = self.object.clone();
        let wire = &object.object.spec;
        let backup = wire.backup.as_ref();
        let local = backup.and_then(|it| it.destinations.first()?.local.as_ref());
        let Some(local) = local else {
            return Ok(());
        };
        let seen = names::member(&self.name);
        let seen = self.shared.pods.get(&self.namespace, &seen);
        let node = seen.as_ref().and_then(|it| it.node.clone());
        let place = match (&local.claim_name, &local.path) {
            (Some(claim), _) => pod::Snapshots::Claim(claim),
            (None, Some(path)) => pod::Snapshots::Directory(path),
            (None, None) => return Ok(()),
        };
        let ask = Ask {
            task,
            rest: place.is_claim(),
            trusted,
            url: self.place(spec, seen.as_deref()).client_url,
            server_name: self.server_name(),
            lib: place.records(&self.name),
        };
        let image = self.shared.image.borrow().clone();
        let mut parts = self.parts(spec, wire, &member, &image);
        parts.node = node.as_deref();
        let document = document(&self.name, wire, &identity, place.is_claim());
        let made = pod::backup(&parts, &ask, &document, place);
        match self.objects.ensure(Kind::Pod, made, None).await {
            Err(error) if unplaceable(&error).is_some() => {
                let kept = self.kept().without_a_word(&error.to_string());
                self.end_work(kept).await
            }
            made => made,
        }
    }

    /// Takes note of a Pod that has ended.
    pub(super) async fn collect_backup_pod(&mut self) -> Result<(), ControllerError> {
        let Some(there) = self.backup_pod() else {
            return Ok(());
        };
        if there.owner.as_deref() != Some(&self.object.meta.uid) {
            return Err(ControllerError::not_ours(Kind::Pod, &there.name));
        }
        if there.meta.deleting {
            return Ok(());
        }
        let claimed = self.claimed().is_some();
        let kept = match stands(&there) {
            Stands::UnderWay => return Ok(()),
            // It goes on when what it waits for comes.
            Stands::Waits(why) if claimed => return self.backup_says(&why).await,
            Stands::Waits(why) | Stands::Failed(why) => self.kept().without_a_word(&why),
            Stands::Ended(kept) => *kept,
        };
        self.end_work(kept).await?;
        self.remove_pod(&there, None).await
    }

    /// Why what an EtcdBackup asked for waits; written when the words change.
    async fn backup_says(&self, text: &str) -> Result<(), ControllerError> {
        let all = self.backup_requests();
        let taking = self.memory.taking.as_ref();
        let Some(request) = all.iter().find(|it| Some(&it.meta.uid) == taking) else {
            return Ok(());
        };
        let before = request.object.status.clone().unwrap_or_default();
        if before.message.as_deref() == Some(text) {
            return Ok(());
        }
        let status = EtcdBackupStatus {
            phase: Some(Phase::Running),
            message: Some(text.to_owned()),
            ..before
        };
        self.write_backup(request, &status).await
    }

    /// Work has ended, or cannot begin.
    async fn end_work(&mut self, kept: Kept) -> Result<(), ControllerError> {
        let claimed = self.claimed().is_some();
        if claimed {
            self.memory.work.note(&kept);
        } else {
            // Checks of what lies on the node: the operator sees the rest by itself.
            note_check(&self.paths, kept.checked.map(Timestamp))?;
            self.memory.work.note_checks(&kept);
        }
        for failure in [&kept.snapshot, &kept.copies, &kept.checks]
            .into_iter()
            .flatten()
        {
            let text = format!("{}: {}", failure.reason, failure.why);
            self.tell("BackupFailed", &text, true).await;
        }
        let taking = self.memory.taking.take_if(|_| claimed);
        let id = taking.or_else(|| kept.id.clone());
        if let Some(id) = id.filter(|it| !self.memory.ended.contains(it)) {
            let result = match &kept.snapshot {
                Some(failure) => Err(BackupFailure::from(failure)),
                None => Ok(kept.entry()),
            };
            let asked = Asked {
                id: id.clone(),
                result,
            };
            let status = self.ended_as(asked).await;
            self.memory.taken = Some((id, status));
        }
        if claimed {
            state::create_private_dir(&self.paths.backup())?;
            let path = self.kept_path();
            state::save(&path, &kept)?;
            self.memory.kept = Some((path, kept));
        }
        Ok(())
    }

    /// Where a snapshot on the claim is found by a restore's Pod.
    pub(super) fn file_on_claim(&mut self, from: &str) -> Option<String> {
        let kept = self.kept();
        let newest = kept.newest.as_ref().filter(|it| it.verified.level >= 3);
        let name = match from {
            LATEST => newest.map(|it: &Manifest| it.name.clone())?,
            name => name.to_owned(),
        };
        let store = LocalStore::at(Path::new(pod::CLAIM_DIR), &self.name);
        let file = store.snapshot(&name.parse().ok()?);
        Some(file.to_string_lossy().into_owned())
    }
}

fn stands(pod: &PodSeen) -> Stands {
    let words = pod.last_words.as_deref();
    let kept = words.and_then(|it| serde_json::from_str::<Kept>(it).ok());
    match (pod.phase.as_str(), kept, &pod.container) {
        ("Succeeded", Some(kept), _) => Stands::Ended(Box::new(kept)),
        ("Succeeded" | "Failed", _, _) => {
            let words = words.unwrap_or("it ended without a word");
            let why = format!("{} {} {words}", pod.reason, pod.message);
            Stands::Failed(format!("the Pod {}: {}", pod.name, why.trim()))
        }
        (_, _, Container::Waiting { reason, message })
            if !["PodInitializing", "ContainerCreating"].contains(&reason.as_str()) =>
        {
            Stands::Waits(format!("the Pod {} waits: {reason} {message}", pod.name))
        }
        (_, _, Container::None) if pod.reason == "Unschedulable" => {
            let (name, message) = (&pod.name, &pod.message);
            Stands::Waits(format!("the Pod {name} has no place: {message}"))
        }
        _ => Stands::UnderWay,
    }
}
