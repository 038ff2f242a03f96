//! How the Pod of a restore ends, and what becomes of what it leaves.

use super::pod::is_misled;
use super::{Asked, By, Outcome, TRIED_AGAIN_SECONDS, WAITS_SECONDS, outcome, wire_now};
use crate::api::requests::{EtcdRestoreStatus, Phase};
use crate::cluster::detail;
use crate::controller::claim::Which;
use crate::controller::seen::PodSeen;
use crate::controller::{Cluster, ControllerError};
use crate::member::pod::Restored;
use crate::member::records::IdentityFile;

impl Cluster {
    /// What a person does where the founder's volume is out of reach: its data is of no use to a restore.
    fn elsewhere(&self, pod: &PodSeen) -> String {
        let claim = self.claim_name(Which::Data(0));
        self.lies_on(0, pod).map_or_else(String::new, |node| {
            format!("; next: bring the node {node} back, or once it is lost for good: kubectl delete pvc {claim}, and another claim takes its place")
        })
    }

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
                let text = text + &self.elsewhere(there);
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
        let image = self.object.object.spec.image.clone();
        let all = self.members.iter_mut().map(|it| &mut it.identity);
        if !adopt(all, restored, image) {
            return Ok(());
        }
        for member in &mut self.members {
            member.contact.forget();
        }
        self.push().await
    }
}

/// Takes over whose data lies on the founder's volume. `all`: the members' records, the founder's first; `image`: the
/// document's. Whether anything has changed.
fn adopt<'a>(
    mut all: impl Iterator<Item = &'a mut Option<IdentityFile>>,
    restored: &Restored,
    image: Option<String>,
) -> bool {
    let Some((founder, told)) = all.next().zip(restored.identity.as_ref()) else {
        return false;
    };
    // What was not restored may leave a record that is older than the operator's own.
    let known = || told.member.id.is_some() || founder.is_none();
    if !restored.succeeded && !known() {
        return false;
    }
    let mut now = told.clone();
    // Which version and image the data is for, and whether that is final, is only known here.
    if let Some(before) = founder.as_ref() {
        // An operator before this one took it over: others may have joined since.
        if restored.succeeded && before.cluster.token == now.cluster.token {
            return false;
        }
        let versions = before.version().zip(now.version());
        let older = versions.is_some_and(|(before, now)| before.is_newer_line_than(now));
        if restored.succeeded && older {
            // The restore was the way to an older line. What lay there may have been in the middle of a change.
            let _ = now.finish_version();
            now.member.image = image;
        } else {
            let (member, before) = (&mut now.member, &before.member);
            member.version.clone_from(&before.version);
            member.other_version.clone_from(&before.other_version);
            member.image.clone_from(&before.image);
            member.other_image.clone_from(&before.other_image);
            member.goes_back = before.goes_back;
        }
    }
    // With the data of before nobody can take part in the cluster that begins.
    for other in all.flatten().filter(|_| restored.succeeded) {
        other.joins_again();
        other.cluster.clone_from(&now.cluster);
    }
    *founder = Some(now);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::records::{ClusterRecord, MemberRecord};

    fn record(token: &str, id: Option<&str>) -> IdentityFile {
        IdentityFile {
            cluster: ClusterRecord::new("shop", token.to_owned()),
            member: MemberRecord {
                id: id.map(str::to_owned),
                version: "3.6.16".to_owned(),
                ..MemberRecord::default()
            },
        }
    }

    fn restored(succeeded: bool) -> Restored {
        Restored {
            id: "1".to_owned(),
            identity: Some(record("new", None)),
            succeeded,
            data_found: false,
            snapshot: "shop-1".to_owned(),
            revision: 1,
            revisions_lost: None,
            lost: String::new(),
            message: String::new(),
        }
    }

    /// The newer line opens nothing of what a restore to an older one brought, whatever the volume had in mind.
    #[test]
    fn a_restore_to_an_older_line_ends_what_was_in_the_middle() {
        let mut newer = record("old", Some("a"));
        newer.member.version = "3.7.3".to_owned();
        let mut all = [Some(newer)];
        let mut back = restored(true);
        let told = &mut back.identity.as_mut().unwrap().member;
        (told.other_version, told.goes_back) = (Some("3.7.3".to_owned()), true);
        assert!(adopt(all.iter_mut(), &back, Some("own".to_owned())));
        let member = &all[0].as_ref().unwrap().member;
        assert_eq!(member.version, "3.6.16");
        assert_eq!(member.image.as_deref(), Some("own"));
        assert_eq!((&member.other_version, member.goes_back), (&None, false));
    }

    #[test]
    fn the_others_join_the_cluster_that_begins_and_once_only() {
        let mut all = ["a", "b", "c"].map(|id| Some(record("old", Some(id))));
        let before = all.clone();
        assert!(!adopt(all.iter_mut(), &restored(false), None));
        assert_eq!(all, before, "what failed changes nobody");

        assert!(adopt(all.iter_mut(), &restored(true), None));
        for (number, it) in all.iter().flatten().enumerate() {
            assert_eq!(
                (&*it.cluster.token, it.joins(), &it.member.id),
                ("new", number > 0, &None)
            );
        }
        // They have joined; then an operator that comes anew finds the Pod of the restore again.
        for (it, id) in all.iter_mut().flatten().zip(["d", "e", "f"]) {
            it.member.id = Some(id.to_owned());
        }
        let joined = all.clone();
        assert!(!adopt(all.iter_mut(), &restored(true), None));
        assert_eq!(all, joined, "their data stays");
    }
}
