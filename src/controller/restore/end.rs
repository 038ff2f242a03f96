//! How the Pod of a restore ends, and what becomes of what it leaves.

use super::pod::is_misled;
use super::{Asked, By, Outcome, TRIED_AGAIN_SECONDS, WAITS_SECONDS, outcome, wire_now};
use crate::api::requests::{EtcdRestoreStatus, Phase};
use crate::cluster::detail;
use crate::controller::seen::PodSeen;
use crate::controller::{Cluster, ControllerError};
use crate::member::pod::Restored;
use crate::member::records::IdentityFile;

impl Cluster {
    /// One step of what a Pod works on.
    pub(super) async fn carry_pod_on(
        &mut self,
        asked: &Asked,
        there: &PodSeen,
    ) -> Result<(), ControllerError> {
        match outcome(there) {
            Outcome::Failed(_) | Outcome::Cut if there.meta.deleting => Ok(()),
            Outcome::Ended(restored) => self.end_restore(asked, *restored, there).await,
            Outcome::Cut => {
                let text = format!(
                    "its Pod was ended; another Pod continues: {}",
                    there.message
                );
                self.restore_says(asked, &text).await?;
                if matches!(asked.by, By::Withdrawn) {
                    self.memory.restoring = Some(self.what_was_cut(there));
                }
                self.remove_pod(there, None).await
            }
            Outcome::Failed(why) => {
                let failed = Restored {
                    id: asked.id.clone(),
                    identity: None,
                    succeeded: false,
                    data_found: false,
                    snapshot: asked.from.clone(),
                    revision: 0,
                    revisions_lost: None,
                    lost: String::new(),
                    message: why,
                };
                self.end_restore(asked, failed, there).await
            }
            // It waits for a worker where none is any more. What it has begun the next Pod ends.
            Outcome::Waits(_) | Outcome::UnderWay(_)
                if !there.meta.deleting
                    && self.source(asked).0.is_some_and(|it| is_misled(there, &it)) =>
            {
                if matches!(asked.by, By::Withdrawn) {
                    self.memory.restoring = Some(self.what_was_cut(there));
                }
                self.remove_pod(there, None).await
            }
            // Nobody asks for it any more. Where it had begun, the member's guard says so.
            Outcome::Waits(_)
                if (matches!(asked.by, By::Withdrawn) || self.is_outdated(asked))
                    && self.waits_for_long(there) =>
            {
                self.remove_pod(there, None).await
            }
            Outcome::Waits(text) => {
                if asked.request().is_none() && self.waits_for_long(there) {
                    self.tell("Restoring", &text, true).await; // nobody else's status says it
                }
                self.restore_says(asked, &text).await
            }
            Outcome::UnderWay(text) => {
                self.memory.waits.end();
                self.restore_says(asked, &text).await
            }
        }
    }

    /// A Pod that was made for something else works on the volume: it comes to its end first.
    pub(super) async fn end_another(
        &mut self,
        asked: &Asked,
        there: &PodSeen,
    ) -> Result<(), ControllerError> {
        match outcome(there) {
            Outcome::Ended(restored) => {
                self.adopt(&restored).await?;
                self.memory.note_end(&there.meta.uid);
                self.remove_pod(there, None).await
            }
            _ if there.meta.deleting => Ok(()),
            Outcome::Cut | Outcome::Failed(_) => self.remove_pod(there, None).await,
            Outcome::Waits(_) if self.waits_for_long(there) => self.remove_pod(there, None).await,
            Outcome::UnderWay(text) | Outcome::Waits(text) => {
                let text = format!("an earlier restore ends first: {text}");
                self.restore_says(asked, &text).await
            }
        }
    }

    /// What the kubelet tells of a Pod is late: one that seems to wait may have begun.
    fn waits_for_long(&mut self, pod: &PodSeen) -> bool {
        self.memory.waits.seconds(&pod.meta.uid) >= WAITS_SECONDS
    }

    async fn end_restore(
        &mut self,
        asked: &Asked,
        restored: Restored,
        there: &PodSeen,
    ) -> Result<(), ControllerError> {
        self.adopt(&restored).await?;
        let lost = &restored.lost;
        let found = restored.data_found;
        if restored.succeeded {
            let text = format!(
                "{} at revision {} is back; lost: {lost}",
                restored.snapshot, restored.revision
            );
            self.tell("Restored", &text, false).await;
        } else if found {
            self.tell("DataFound", &restored.message, false).await;
        } else {
            let text = format!("not restored: {}", restored.message);
            self.tell("RestoreFailed", &text, true).await;
        }
        if let Some(request) = asked.request() {
            let status = EtcdRestoreStatus {
                phase: Some(if restored.succeeded {
                    Phase::Succeeded
                } else {
                    Phase::Failed
                }),
                snapshot: Some(restored.snapshot.clone()),
                revision: Some(restored.revision).filter(|_| restored.succeeded),
                revisions_lost: restored.revisions_lost,
                message: Some(restored.message.clone()).filter(|it| !it.is_empty()),
                completed: wire_now(),
                ..EtcdRestoreStatus::default()
            };
            self.answer(request, &status).await?;
            self.memory.note_end(&request.meta.uid);
        } else if !restored.succeeded && !found {
            let why = detail(format_args!("{}", restored.message));
            self.note_failed(why, TRIED_AGAIN_SECONDS);
        }
        self.memory.note_end(&there.meta.uid);
        self.memory.restoring = None;
        self.remove_pod(there, None).await
    }

    /// Who lives on the volume now: a new cluster with ids of its own, which etcd tells once it serves.
    async fn adopt(&mut self, restored: &Restored) -> Result<(), ControllerError> {
        // What was not restored may leave a record that is older than the operator's own.
        let known =
            |it: &IdentityFile| it.member.id.is_some() || self.members[0].identity.is_none();
        let told = restored.identity.as_ref();
        let Some(identity) = told.filter(|it| restored.succeeded || known(it)) else {
            return Ok(());
        };
        let mut identity = identity.clone();
        // Which version and image the data is for, and whether that is final, is only known here.
        let known = self.members[0]
            .identity
            .as_ref()
            .map(|it| it.member.clone());
        let own = self.members[0]
            .identity
            .as_ref()
            .and_then(IdentityFile::version);
        let older = own.zip(identity.version()).filter(|_| restored.succeeded);
        if older.is_some_and(|(own, it)| own.is_newer_line_than(it)) {
            // The restore was the way to an older line.
            identity
                .member
                .image
                .clone_from(&self.object.object.spec.image);
        } else if let Some(known) = known {
            let member = &mut identity.member;
            (member.version, member.other_version) = (known.version, known.other_version);
            (member.image, member.other_image) = (known.image, known.other_image);
            member.goes_back = known.goes_back;
        }
        self.members[0].identity = Some(identity);
        self.members[0].contact.forget();
        self.push().await
    }
}
