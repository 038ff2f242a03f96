//! Changes of etcd's version, step by step as the core plans them: what is written down of them, and how often the new
//! version ended. A Pod of its own tries the new image on a copy of the data (`rehearsal`).

mod outcome;
mod rehearsal;

use std::fmt::Write as _;

use super::seen::{End, PodSeen};
use super::{Cluster, ControllerError};
use crate::changes::{Changes, Ended};
use crate::cluster::Timestamp;
use crate::member::contact;
use crate::member::records::IdentityFile;
use crate::observed::{Instance, Pairs, Process, Service, Tries, Unanswered};
use crate::plan::version::{SERVES_WITHIN_LOOKS, given_up};
use crate::spec::ClusterSpec;
use crate::start::LastWords;
use crate::version::Version;

pub(super) use rehearsal::Rehearsal;

/// Containers that are told apart.
const CONTAINERS_MAX: usize = 8;

/// Containers of the version that is new to the data, which ended though nobody asked them to.
#[derive(Default)]
pub(super) struct Ends {
    version: String,
    containers: Vec<String>,
}

impl Ends {
    /// How many were seen, with what the Pod shows now.
    pub(super) fn seen(&mut self, pod: Option<&PodSeen>, identity: Option<&IdentityFile>) -> u32 {
        let member = identity.map(|it| &it.member);
        let Some(member) = member.filter(|it| it.other_version.is_some()) else {
            *self = Ends::default();
            return 0;
        };
        if self.version != member.version {
            self.version.clone_from(&member.version);
            self.containers.clear();
        }
        let of_it = pod.filter(|it| it.version.as_ref() == Some(&member.version) && !it.is_over());
        if let Some(End::Unasked { container, .. }) = of_it.and_then(|it| it.end.as_ref())
            && !self.containers.contains(container)
            && self.containers.len() < CONTAINERS_MAX
        {
            self.containers.push(container.clone());
        }
        u32::try_from(self.containers.len()).unwrap_or(u32::MAX)
    }
}

impl Cluster {
    /// The document that is in force, as it is written down beside what it asked for and what failed.
    fn document_word(&self) -> String {
        let sound = self.memory.sound.as_ref().unwrap_or(&self.object);
        let generation = sound.object.metadata.generation.unwrap_or(0);
        format!("{}/{generation}", self.object.meta.uid)
    }

    /// The version that the document asks for, where that is another one than the data's.
    fn other_version(&self, spec: &ClusterSpec) -> Option<Version> {
        let identity = self.members[0].identity.as_ref()?.version()?;
        spec.version.filter(|it| *it != identity)
    }

    /// Whether the document names another image than the one from which the version of the data runs.
    fn asks_for_image(&self, spec: &ClusterSpec) -> bool {
        let asked = &self.object.object.spec.image;
        let member = self.members[0].identity.as_ref().map(|it| &it.member);
        let settled = self.other_version(spec).is_none();
        member.is_some_and(|it| settled && it.other_version.is_none() && it.image != *asked)
    }

    /// The image that members run from: the document's only once it was tried, or where the one before is of no use.
    pub(super) fn image_in_force(&self) -> Option<&String> {
        match &self.members[0].identity {
            Some(it) => it.member.image.as_ref(),
            None => self.object.object.spec.image.as_ref(),
        }
    }

    /// Takes the document's image. It is written down with the next Pod at the latest.
    pub(super) fn know_image(&mut self, spec: &ClusterSpec) {
        if !self.asks_for_image(spec) {
            return;
        }
        let asked = self.object.object.spec.image.clone();
        let unserved = !self.has_served();
        let pod = self.member_pod(0);
        let useless = pod.as_deref().is_some_and(PodSeen::lacks_image);
        if unserved || useless || self.image_was_tried(spec) {
            let records = self
                .members
                .iter_mut()
                .filter_map(|it| it.identity.as_mut());
            for identity in records {
                identity.member.image.clone_from(&asked);
            }
            self.memory.rehearsal = None;
        }
    }

    /// How etcd does with a version that is new to its data.
    pub(super) fn tries(
        &mut self,
        number: usize,
        pod: Option<&PodSeen>,
        process: Process,
        service: &Service,
        pairs: Pairs,
    ) -> Tries {
        let member = &mut self.members[number];
        if let Some(details) = service.details {
            member.database = details.db_size;
        }
        // Silence may be the network's, so the kubelet has to say the same.
        let unready = pod.and_then(|it| it.not_ready.as_ref());
        let unready = unready.is_some_and(|it| !it.is_empty()); // of a lost node it says nothing
        let is_heard = pairs.are_taken() && (service.read.is_answer() || unready);
        let mut tries = member.counts.look(process, service, is_heard);
        match pod.filter(|it| process == Process::Stopped && it.lacks_image()) {
            Some(pod) => {
                tries.unserved = Unanswered {
                    looks: SERVES_WITHIN_LOOKS, // the kubelet's
                    seconds: member.pulled.seconds(&pod.meta.uid),
                }
            }
            None => member.pulled.end(),
        }
        // Before it has answered this operator it may be as large as it is allowed to.
        let most = member.identity.as_ref().map_or(0, |it| it.member.quota);
        let known = Some(member.database).filter(|it| *it > 0);
        Tries {
            ends: member.ends.seen(pod, member.identity.as_ref()),
            database: known.unwrap_or(most),
            downgrade: self.memory.changes.downgrade(),
            ..tries
        }
    }

    /// Writes down what `change` does to the identity, and the record of changes. Where that fails, both are what the Secret
    /// says.
    async fn change_identity(
        &mut self,
        change: impl FnOnce(&mut IdentityFile) -> bool,
    ) -> Result<(), ControllerError> {
        let before = self.members[0].identity.clone();
        if !self.members[0].identity.as_mut().is_some_and(change) {
            return Ok(());
        }
        let written = self.push().await;
        if written.is_err() {
            self.members[0].identity = before;
            self.loaded = false; // the next pass reads it
        }
        written
    }

    /// Has etcd lower the version of its data. Written down first, so that it can be ended.
    pub(super) async fn enable_downgrade(
        &mut self,
        spec: &ClusterSpec,
        to: Version,
    ) -> Result<(), ControllerError> {
        self.memory.changes.downgrade = Some(to.to_string());
        self.push().await?;
        Ok(contact::enable_downgrade(&self.endpoint_now(spec, 0), to).await?)
    }

    /// Has etcd end the downgrade.
    pub(super) async fn cancel_downgrade(
        &mut self,
        spec: &ClusterSpec,
    ) -> Result<(), ControllerError> {
        contact::cancel_downgrade(&self.endpoint_now(spec, 0)).await?;
        self.memory.changes.downgrade = None;
        self.push().await
    }

    /// Records the version for the next Pod.
    pub(super) async fn set_version(&mut self, to: Version) -> Result<(), ControllerError> {
        let image = self.object.object.spec.image.clone();
        self.change_identity(|it| it.change_to(to, image)).await?;
        self.memory.rehearsal = None;
        Ok(())
    }

    /// Notes that a version is given up, and why; it is written with the identity.
    fn note_failure(&mut self, spec: &ClusterSpec, instance: Option<&Instance>) {
        if let Some((to, why)) = instance.and_then(|it| given_up(spec, it)) {
            let document = self.document_word();
            self.memory.changes.fail(to, &why, document);
        }
    }

    /// Records the version before for the next Pod again, and why.
    pub(super) async fn take_version_back(
        &mut self,
        spec: &ClusterSpec,
        instance: Option<&Instance>,
    ) -> Result<(), ControllerError> {
        self.note_failure(spec, instance);
        self.change_identity(IdentityFile::go_back).await // the hold tells why
    }

    /// The version that serves is final, and has not failed.
    pub(super) async fn finish_version(
        &mut self,
        spec: &ClusterSpec,
        now: Option<Timestamp>,
    ) -> Result<(), ControllerError> {
        contact::begin_log_anew(
            &self.endpoint_now(spec, 0),
            self.members[0].identity.as_ref(),
        )
        .await?;
        let version = self.members[0]
            .identity
            .as_ref()
            .and_then(IdentityFile::version);
        self.memory.changes.serves(version);
        let noted = |it: &mut Changes, ended| it.finish(ended, now);
        self.end_change(IdentityFile::finish_version, noted).await
    }

    /// The newer version stays: the one before cannot open the data any more.
    pub(super) async fn stay_with_version(
        &mut self,
        spec: &ClusterSpec,
        instance: Option<&Instance>,
        now: Option<Timestamp>,
    ) -> Result<(), ControllerError> {
        self.note_failure(spec, instance);
        let noted = |it: &mut Changes, ended| it.stay(ended, now);
        self.end_change(IdentityFile::stay, noted).await
    }

    /// A change has ended: it is written into the record, and with it the identity, at once.
    async fn end_change(
        &mut self,
        end: fn(&mut IdentityFile) -> Option<Ended>,
        note: impl FnOnce(&mut Changes, Ended),
    ) -> Result<(), ControllerError> {
        let identity = self.members[0].identity.clone();
        let Some(ended) = identity.and_then(|mut it| end(&mut it)) else {
            return self.push().await; // of the record alone
        };
        note(&mut self.memory.changes, ended);
        self.change_identity(|it| end(it).is_some()).await
    }
}

/// How the version that is new to the data ended last, in a few words; empty where it did not.
pub(super) fn words_of(pod: Option<&PodSeen>, ends: u32) -> LastWords {
    let mut words = LastWords::new();
    if let Some(End::Unasked { reason, code, .. }) = pod.and_then(|it| it.end.as_ref())
        && ends > 0
    {
        let _ = write!(words, "{reason}, exit code {code}");
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::records::{ClusterRecord, MemberRecord};

    fn pod(version: &str, container: &str) -> PodSeen {
        let pod = serde_json::json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "shop-0", "namespace": "one",
                "annotations": {(super::super::names::VERSION): version},
            },
            "status": {"containerStatuses": [{
                "name": "etcd",
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"exitCode": 3, "reason": "Error", "containerID": container}},
            }]},
        });
        PodSeen::of(&serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn each_end_of_the_version_that_is_new_counts_once() {
        let new = Version::new(3, 6, 16);
        let mut identity = IdentityFile {
            cluster: ClusterRecord::new("shop", "shop-1".to_owned()),
            member: MemberRecord {
                version: "3.6.15".to_owned(),
                ..MemberRecord::default()
            },
        };
        let mut ends = Ends::default();
        // Without a change nothing is counted.
        assert_eq!(ends.seen(Some(&pod("3.6.15", "c://1")), Some(&identity)), 0);
        identity.change_to(new, None);
        let mut seen = |version: &str, container: &str, identity: &IdentityFile| {
            ends.seen(Some(&pod(version, container)), Some(identity))
        };
        assert_eq!(seen("3.6.15", "c://1", &identity), 0, "the Pod of before");
        assert_eq!(seen("3.6.16", "c://2", &identity), 1);
        assert_eq!(seen("3.6.16", "c://2", &identity), 1);
        assert_eq!(seen("3.6.16", "c://3", &identity), 2);
        identity.go_back();
        assert_eq!(
            seen("3.6.15", "c://4", &identity),
            1,
            "the version before, anew"
        );
    }
}
