//! Snapshots on a claim, and trial restores: the operator's own Pod mounts no claim and has no etcd, so a
//! Pod on the member's node works on them, and leaves in its last words what lies there. Copies to buckets
//! have a Pod of their own.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde::{Deserialize, Serialize};

use crate::api::node_paths::CLAIM_DIR;
use crate::backup::local::LocalStore;
use crate::backup::name::LATEST;
use crate::backup::work::{Ask, Asked, Done, Kept, Task, UnderWay, note_check};
use crate::cluster::{Timestamp, detail};
use crate::controller::apply::unplaceable;
use crate::controller::objects::Kind;
use crate::controller::observe::MAKING_SECONDS;
use crate::controller::restore::document;
use crate::controller::seen::{Container, PodSeen};
use crate::controller::{Cluster, ControllerError, names, pod};
use crate::observed::{BackupFailure, Backups, Clock};
use crate::spec::ClusterSpec;
use crate::state;

/// What such a Pod was made for, in an annotation of it.
#[derive(Serialize, Deserialize)]
struct MadeFor {
    task: Task,
    /// `None`: for the directory of the node.
    claim: Option<String>,
    /// Of the document.
    generation: i64,
}

/// How such a Pod stands.
enum Stands {
    Running,
    Starting,
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

    fn work_pod(&self, name: &str) -> Option<Rc<PodSeen>> {
        self.shared.pods.get(&self.namespace, name)
    }

    /// A Pod works on the snapshots.
    pub(super) fn is_worked_on(&self) -> bool {
        self.work_pod(&names::backup_pod(&self.name)).is_some()
    }

    /// What operators of this node know to lie on the claim; `listed` where this one has seen it.
    fn kept(&mut self) -> Kept {
        let path = self.kept_path();
        match &self.memory.kept {
            Some((known, kept)) if *known == path => kept.clone(),
            _ => {
                let kept: Option<Kept> = state::load(&path).ok().flatten();
                // Known long ago, perhaps: another node's operator may have acted since.
                let kept = kept.map(|it| Kept {
                    listed: false,
                    ..it
                });
                self.memory.kept = kept.clone().map(|it| (path, it));
                kept.unwrap_or_default()
            }
        }
    }

    /// `None`: this operator knows what lies on the claim. Otherwise a Pod goes and looks, as another node's
    /// operator may have acted: what is waited for.
    pub(in crate::controller) async fn look_at_claim(
        &mut self,
        spec: &ClusterSpec,
        trusted: bool,
    ) -> Result<Option<String>, ControllerError> {
        let nothing_there = self.claimed().is_none() || self.identity.is_none();
        let before = self.kept();
        if nothing_there || before.listed {
            return Ok(None);
        }
        if let (Some(failure), 1..) = (before.checks.failure(), self.memory.work.looks_in()) {
            let why = &failure.why;
            return Ok(Some(format!(
                "the operator could not list the snapshots on the claim: {why}"
            )));
        }
        self.make_backup_pod(spec, Task::Checks, trusted).await?;
        Ok(Some("a Pod lists the snapshots on the claim".to_owned()))
    }

    pub(in crate::controller) fn generation(&self) -> i64 {
        self.object.object.metadata.generation.unwrap_or(0)
    }

    /// What is known of snapshots on a claim.
    pub(super) fn backups_on_claim(
        &mut self,
        spec: &ClusterSpec,
        clock: Clock,
        now: Timestamp,
    ) -> Backups {
        let kept = self.kept();
        let snapshots = self.work_pod(&names::backup_pod(&self.name));
        let copies = self.work_pod(&names::copy_pod(&self.name));
        let waits = [&snapshots, &copies].into_iter().flatten();
        let waits = waits.filter_map(|it| match self.stands(it) {
            Stands::Waits(why) => Some(why),
            _ => None,
        });
        let waits = waits.last().map(|why| BackupFailure {
            reason: "SnapshotFailed",
            why: detail(format_args!("{why}")),
        });
        let under_way = UnderWay {
            snapshots: snapshots.is_some(),
            copies: copies.is_some(),
            waits,
        };
        let failed = self.restore_failed(clock.trusted(now));
        self.with_member(spec, |work, member| {
            work.look_at(member, &kept, under_way, (clock, now), failed)
        })
    }

    /// Has a Pod work on the snapshots: those on the claim, or in the directory of the node.
    pub(super) async fn make_backup_pod(
        &mut self,
        spec: &ClusterSpec,
        task: Task,
        trusted: bool,
    ) -> Result<(), ControllerError> {
        let name = match task {
            Task::Copies => names::copy_pod(&self.name),
            _ => names::backup_pod(&self.name),
        };
        let (Some(identity), None) = (self.identity.clone(), self.work_pod(&name)) else {
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
        let seen = self.work_pod(&names::member(&self.name));
        let node = seen.as_ref().and_then(|it| it.node.clone());
        let place = match (&local.claim_name, &local.path) {
            (Some(claim), _) => pod::Snapshots::Claim(claim),
            (None, Some(path)) => pod::Snapshots::Directory(path),
            (None, None) => return Ok(()),
        };
        let made_for = MadeFor {
            task: task.clone(),
            claim: local.claim_name.clone(),
            generation: self.generation(),
        };
        let ask = Ask {
            task: task.clone(),
            trusted,
            url: self.place(spec, seen.as_deref()).client_url,
            server_name: self.server_name(),
            lib: place.records(&self.name),
        };
        let image = self.shared.image.borrow().clone();
        let mut parts = self.parts(spec, wire, &member, &image);
        parts.node = node.as_deref();
        let document = document(&self.name, wire, &identity, place.is_claim());
        let mut made = pod::backup(&parts, &name, &ask, &document, place);
        let made_for = serde_json::to_string(&made_for).unwrap_or_default();
        made["metadata"]["annotations"][names::MADE_FOR] = made_for.into();
        match self.objects.ensure(Kind::Pod, made, None).await {
            Err(error) if unplaceable(&error).is_some() => {
                let kept = self.kept().without_a_word(&task, &error.to_string());
                self.end_work(&task, kept).await;
                Ok(())
            }
            made => made,
        }
    }

    /// Takes note of Pods that have ended.
    pub(super) async fn collect_backup_pods(&mut self) -> Result<(), ControllerError> {
        for name in [names::backup_pod(&self.name), names::copy_pod(&self.name)] {
            if let Some(there) = self.work_pod(&name) {
                self.collect_backup_pod(&there).await?;
            }
        }
        Ok(())
    }

    async fn collect_backup_pod(&mut self, there: &PodSeen) -> Result<(), ControllerError> {
        if there.owner.as_deref() != Some(&self.object.meta.uid) {
            return Err(ControllerError::not_ours(Kind::Pod, &there.name));
        }
        if there.meta.deleting {
            return Ok(());
        }
        let made_for = there.made_for.as_deref();
        let made_for = made_for.and_then(|it| serde_json::from_str::<MadeFor>(it).ok());
        // Noted already, and the watch is behind; or of another version of this operator.
        let (Some(made_for), false) = (made_for, self.memory.has_ended(&there.meta)) else {
            return self.remove_pod(there, None).await;
        };
        let outdated = made_for.generation != self.generation();
        let kept = match self.stands(there) {
            // What the document says now may be there.
            Stands::Starting | Stands::Waits(_) if outdated => {
                return self.remove_pod(there, Some(0)).await;
            }
            Stands::Running | Stands::Starting => return Ok(()),
            // It goes on when what it waits for comes.
            Stands::Waits(why) if made_for.claim.is_some() => {
                return self.backup_says(&made_for.task, &why).await;
            }
            Stands::Waits(why) | Stands::Failed(why) => {
                self.kept().without_a_word(&made_for.task, &why)
            }
            Stands::Ended(kept) => *kept,
        };
        // Of another claim than the document's it says nothing that is asked any more.
        if made_for.claim.as_deref() == self.claimed() {
            self.end_work(&made_for.task, kept).await;
        }
        self.memory.note_end(&there.meta.uid);
        self.remove_pod(there, None).await
    }

    /// One that its kubelet has been making for long waits, too.
    fn stands(&mut self, pod: &PodSeen) -> Stands {
        let stands = stands(pod);
        let name = &pod.name;
        let copies = *name == names::copy_pod(&self.name);
        let since = &mut self.memory.starts[usize::from(copies)];
        if matches!(stands, Stands::Starting) && since.seconds(&pod.meta.uid) >= MAKING_SECONDS {
            let why =
                format!("the Pod {name} is not started: kubectl describe pod {name} says why");
            return Stands::Waits(why);
        }
        stands
    }

    /// Why what an EtcdBackup asked for waits; written when the words change.
    async fn backup_says(&self, task: &Task, text: &str) -> Result<(), ControllerError> {
        let all = self.backup_requests();
        let asks = |uid: &str| task.id() == Some(uid);
        let Some(request) = all.iter().find(|it| asks(&it.meta.uid)) else {
            return Ok(());
        };
        self.progress(request, text).await
    }

    /// Work has ended, or cannot begin.
    async fn end_work(&mut self, task: &Task, kept: Kept) {
        let kept = kept.or_as_before(self.kept());
        self.memory.work.note(&kept);
        let parts = [&kept.snapshot, &kept.copies, &kept.checks];
        for failure in parts.into_iter().filter_map(Done::failure) {
            let text = format!("{}: {}", failure.reason, failure.why);
            self.tell("BackupFailed", &text, true).await;
        }
        let id = task.id().map(str::to_owned);
        if let Some(id) = id.filter(|it| !self.memory.ended.contains(it)) {
            let result = match kept.snapshot.failure() {
                Some(failure) => Err(failure.into()),
                None => Ok(kept.made.clone()),
            };
            let asked = Asked {
                id: id.clone(),
                result,
            };
            let status = self.ended_as(asked).await;
            self.memory.taken = Some((id, status));
        }
        let path = self.kept_path();
        let noted = if self.claimed().is_some() {
            state::create_private_dir(&self.paths.backup()).and_then(|()| state::save(&path, &kept))
        } else {
            // Checks of what lies on the node: the operator sees the rest by itself.
            note_check(&self.paths, kept.checked.map(Timestamp))
        };
        if let Err(error) = noted {
            tracing::warn!("failed to record which snapshots lie on the claim: {error}");
        }
        self.memory.kept = Some((path, kept));
    }

    /// Where a snapshot on the claim is found by a restore's Pod.
    pub(super) fn file_on_claim(&mut self, from: &str) -> Option<String> {
        let name = match from {
            LATEST => self.kept().restorable?,
            name => name.to_owned(),
        };
        let store = LocalStore::at(Path::new(CLAIM_DIR), &self.name);
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
            let words = words.unwrap_or("it ended without a message");
            let why = format!("{} {} {words}", pod.reason, pod.message);
            Stands::Failed(format!("the Pod {}: {}", pod.name, why.trim()))
        }
        (_, _, Container::Running { .. }) => Stands::Running,
        (_, _, Container::Waiting { reason, message })
            if !["PodInitializing", "ContainerCreating"].contains(&reason.as_str()) =>
        {
            Stands::Waits(format!("the Pod {} waits: {reason} {message}", pod.name))
        }
        (_, _, Container::None) if pod.reason == "Unschedulable" => {
            let (name, message) = (&pod.name, &pod.message);
            Stands::Waits(format!("the Pod {name} cannot be scheduled: {message}"))
        }
        _ => Stands::Starting,
    }
}
