//! Changes of etcd's version, step by step as the core plans them: what is written down of them, and how often the new
//! version ended. A Pod of its own tries the new image on a copy of the data (`rehearsal`).

mod outcome;
mod rehearsal;

use std::fmt::Write as _;

use super::seen::{End, PodSeen};
use super::{Cluster, ControllerError};
use crate::changes::{Changes, Ended};
use crate::cluster::{Detail, Timestamp, detail};
use crate::diagnosis::DISK_FULL;
use crate::member::contact;
use crate::member::records::IdentityFile;
use crate::observed::{Instance, Pairs, Process, Reach, Service, Tries, Unanswered};
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
    /// The guard has not looked since the last of them.
    unexplained: bool,
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
        match of_it.and_then(|it| it.end.as_ref()) {
            Some(End::Unasked { container, .. })
                if !self.containers.contains(container)
                    && self.containers.len() < CONTAINERS_MAX =>
            {
                self.containers.push(container.clone());
                self.unexplained = true;
            }
            // As on a host: an end for want of room is no failure of the version.
            Some(End::Asked)
                if self.unexplained && of_it.is_some_and(|it| it.is_refused_for(DISK_FULL)) =>
            {
                self.containers.pop();
                self.unexplained = false;
            }
            _ => {}
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

    /// The records of the members that the document asks for and that have served.
    fn records<'a>(&'a self, spec: &'a ClusterSpec) -> impl Iterator<Item = &'a IdentityFile> {
        let records = self.members.iter().filter_map(|it| it.identity.as_ref());
        let wanted = |it: &&IdentityFile| {
            let name = &it.member.name;
            it.member.id.is_some() && (spec.size == 0 || spec.member(name).is_some())
        };
        records.filter(wanted)
    }

    /// The version with which the members serve; while it changes, the first one's.
    pub(super) fn version_in_force(&self) -> Option<Version> {
        let mut records = self.members.iter().filter_map(|it| it.identity.as_ref());
        let served = records.clone().find(|it| it.member.id.is_some());
        served.or_else(|| records.next())?.version()
    }

    /// Whether the only member has a version that takes one new member at a time. An upgrade is the way to more.
    pub(super) fn is_too_old_for(&self, size: u8) -> bool {
        let records = self.members.iter().filter_map(|it| it.identity.as_ref());
        let served = records.filter(|it| it.member.id.is_some()).count();
        let in_force = self.version_in_force();
        size > 1 && served == 1 && in_force.is_some_and(|it| !it.takes_several())
    }

    /// Why there are not as many members as the document asks for, where it does not ask for a newer version either.
    pub(super) fn size_not_changed(&self, spec: &ClusterSpec) -> Option<Detail> {
        let in_force = self.version_in_force()?;
        let waits = spec.version.is_none() && self.is_too_old_for(self.object.object.spec.size);
        waits.then(|| {
            detail(format_args!(
                "more than 1 member needs etcd 3.6 or newer, and etcd {in_force} runs; next: set version to the newest patch of 3.6"
            ))
        })
    }

    /// A member whose data is another version's than the document asks for: the first one.
    fn behind<'a>(&'a self, spec: &'a ClusterSpec) -> Option<&'a IdentityFile> {
        let asked = spec.version?;
        self.records(spec).find(|it| it.version() != Some(asked))
    }

    /// The version that the document asks for, where a member's data is another one's.
    fn other_version(&self, spec: &ClusterSpec) -> Option<Version> {
        spec.version.filter(|_| self.behind(spec).is_some())
    }

    /// Whether the document names another image than one from which the version of the data runs.
    fn asks_for_image(&self, spec: &ClusterSpec) -> bool {
        let asked = &self.object.object.spec.image;
        // An image holds one version: while they have several, none is for all of them.
        let version = self.version_in_force();
        let settled =
            |it: &IdentityFile| it.member.other_version.is_none() && it.version() == version;
        self.behind(spec).is_none()
            && self.records(spec).all(settled)
            && self.records(spec).any(|it| it.member.image != *asked)
    }

    /// Whether a member runs from the document's image, or none has a record yet. A record takes it only once it was tried,
    /// or where the one before is of no use.
    pub(super) fn runs_from(&self, asked: Option<&String>) -> bool {
        let records = self.members.iter().filter_map(|it| it.identity.as_ref());
        let mut images = records.map(|it| it.member.image.as_ref()).peekable();
        images.peek().is_none() || images.any(|it| it == asked)
    }

    /// Takes the document's image. It is written down with the next Pod at the latest.
    pub(super) fn know_image(&mut self, spec: &ClusterSpec) {
        let unserved = !self.has_served();
        if !unserved && !self.asks_for_image(spec) {
            return;
        }
        let asked = self.object.object.spec.image.clone();
        let for_all = unserved || self.image_was_tried(spec);
        for number in 0..self.members.len() {
            let useless = self.member_pod(number).is_some_and(|it| it.lacks_image());
            if (for_all || useless)
                && let Some(identity) = &mut self.members[number].identity
            {
                identity.member.image.clone_from(&asked);
            }
        }
        if for_all {
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
        (pairs, could_serve): (Pairs, bool),
    ) -> Tries {
        let member = &mut self.members[number];
        if let Some(details) = service.details {
            member.database = details.db_size;
            member.revision = member.revision.max(Some(details.revision));
        }
        // Silence may be the network's, so the kubelet has to say the same.
        let unready = pod.and_then(|it| it.not_ready.as_ref());
        let unready = unready.is_some_and(|it| !it.is_empty()); // of a lost node it says nothing
        let is_heard = pairs.are_taken() && could_serve && (service.read.is_answer() || unready);
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
        let made_from = member.identity.as_ref().map(|it| &it.member.image);
        let known = Some(member.database).filter(|it| *it > 0);
        Tries {
            ends: member.ends.seen(pod, member.identity.as_ref()),
            database: known.unwrap_or(most),
            downgrade: self.memory.changes.downgrade(),
            // No operator reads a log on a claim.
            reach: Reach {
                begun: member.identity.as_ref().map_or(0, IdentityFile::begun),
                at_least: member.revision,
                at_most: None,
            },
            has_another_image: made_from.is_some_and(|it| it != &self.object.object.spec.image),
            ..tries
        }
    }

    /// Writes down what `change` does to the identity, and the record of changes. Where that fails, both are what the Secret
    /// says.
    pub(super) async fn change_identity(
        &mut self,
        number: usize,
        change: impl FnOnce(&mut IdentityFile) -> bool,
    ) -> Result<(), ControllerError> {
        let before = self.members[number].identity.clone();
        let identity = self.members[number].identity.as_mut();
        if !identity.is_some_and(change) {
            return Ok(());
        }
        let written = self.push().await;
        if written.is_err() {
            self.members[number].identity = before;
            self.loaded = false; // the next pass reads it
        }
        written
    }

    /// Has etcd lower the version of its data. Written down first, so that it can be ended.
    pub(super) async fn enable_downgrade(
        &mut self,
        spec: &ClusterSpec,
        number: usize,
        to: Version,
    ) -> Result<(), ControllerError> {
        self.memory.changes.downgrade = Some(to.to_string());
        self.push().await?;
        Ok(contact::enable_downgrade(&self.endpoint_now(spec, number), to).await?)
    }

    /// Has etcd end the downgrade.
    pub(super) async fn cancel_downgrade(
        &mut self,
        spec: &ClusterSpec,
        number: usize,
    ) -> Result<(), ControllerError> {
        contact::cancel_downgrade(&self.endpoint_now(spec, number)).await?;
        self.memory.changes.downgrade = None;
        self.push().await
    }

    /// Records the version for the next Pod.
    pub(super) async fn set_version(
        &mut self,
        number: usize,
        to: Version,
    ) -> Result<(), ControllerError> {
        let image = self.object.object.spec.image.clone();
        self.change_identity(number, |it| it.change_to(to, image))
            .await?;
        self.memory.rehearsal = None;
        Ok(())
    }

    /// Notes that a version is given up, and why; it is written with the identity.
    fn note_failure(&mut self, spec: &ClusterSpec, instance: Option<&Instance>) {
        if let Some(failed) = instance.and_then(|it| given_up(spec, it)) {
            let document = self.document_word();
            self.memory.changes.fail(&failed, document);
        }
    }

    /// Records the version before for the next Pod again, and why.
    pub(super) async fn take_version_back(
        &mut self,
        spec: &ClusterSpec,
        number: usize,
        instance: Option<&Instance>,
    ) -> Result<(), ControllerError> {
        self.note_failure(spec, instance);
        self.change_identity(number, IdentityFile::go_back).await // the hold tells why
    }

    /// The version that serves is final, and has not failed.
    pub(super) async fn finish_version(
        &mut self,
        spec: &ClusterSpec,
        number: usize,
        now: Option<Timestamp>,
    ) -> Result<(), ControllerError> {
        let endpoint = self.endpoint_now(spec, number);
        let identity = self.members[number].identity.as_ref();
        contact::begin_log_anew(&endpoint, identity).await?;
        let version = identity.and_then(IdentityFile::version);
        self.memory.changes.serves(version);
        let others = self.records(spec).any(|it| it.version() != version);
        let noted = |it: &mut Changes, ended| it.finish(ended, now, others);
        self.end_change(number, IdentityFile::finish_version, noted)
            .await
    }

    /// The newer version stays: the one before cannot open the data any more.
    pub(super) async fn stay_with_version(
        &mut self,
        spec: &ClusterSpec,
        number: usize,
        instance: Option<&Instance>,
        now: Option<Timestamp>,
    ) -> Result<(), ControllerError> {
        self.note_failure(spec, instance);
        let noted = |it: &mut Changes, ended| it.stay(ended, now);
        self.end_change(number, IdentityFile::stay, noted).await
    }

    /// A change has ended: it is written into the record, and with it the identity, at once.
    async fn end_change(
        &mut self,
        number: usize,
        end: fn(&mut IdentityFile) -> Option<Ended>,
        note: impl FnOnce(&mut Changes, Ended),
    ) -> Result<(), ControllerError> {
        let identity = self.members[number].identity.clone();
        let Some(ended) = identity.and_then(|mut it| end(&mut it)) else {
            return self.push().await; // of the record alone
        };
        note(&mut self.memory.changes, ended);
        self.change_identity(number, |it| end(it).is_some()).await
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
        // The guard says why the last one ended, once for each.
        let refused = |container: &str| {
            let mut pod = pod("3.6.16", container);
            pod.end = Some(End::Asked);
            pod.last_words = Some("DiskFull: 1 MiB is free".to_owned());
            pod
        };
        for (container, left) in [("c://4", 1), ("c://5", 1)] {
            assert_eq!(ends.seen(Some(&refused(container)), Some(&identity)), left);
        }
        let mut seen = |version: &str, container: &str, identity: &IdentityFile| {
            ends.seen(Some(&pod(version, container)), Some(identity))
        };
        assert_eq!(seen("3.6.16", "c://6", &identity), 2);
        identity.go_back();
        assert_eq!(
            seen("3.6.15", "c://4", &identity),
            1,
            "the version before, anew"
        );
    }
}
