//! What is written down of changes of etcd's version: in the identity, which version opens the data; and in a record, the
//! last changes and the one that failed. Both modes keep the same record; in Kubernetes it lies in the cluster's Secret.

use serde::{Deserialize, Serialize};

use crate::api::status::{ChangeOutcome, ChangeStatus, HISTORY_MAX};
use crate::clock::rfc3339;
use crate::cluster::{Detail, MemberName, Timestamp, detail};
use crate::member::records::IdentityFile;
use crate::observed::Failed;
use crate::paths::Paths;
use crate::state::{self, StateError};
use crate::version::{Class, Version, classify};

/// A rehearsal counts for so many seconds: the snapshot that it began with is one "of now".
pub const REHEARSED_SECONDS: u64 = 600;

/// Seconds until a rehearsal is tried again for which there was no room, or no snapshot: by how many failed so.
const RETRY_SECONDS: [u64; 4] = [60, 60, 300, 900];

/// The seconds from a rehearsal that could not be made to the next one. `waited`: how many could not, this one included.
pub fn retry_seconds(waited: usize) -> u64 {
    RETRY_SECONDS[waited.saturating_sub(1).min(RETRY_SECONDS.len() - 1)]
}

/// What is kept of changes of the version, over restarts of the operator and of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// The last ones, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<ChangeStatus>,
    /// A version that is not tried again until the document changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<FailedUpgrade>,
    /// The version for which the operator enabled etcd's own downgrade, until that has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub downgrade: Option<String>,
    /// The last one of the history was written before the identity. If a crash came between the two, the next end of that
    /// change replaces it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub open: bool,
}

/// A change that is final.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The version that may open the data no more.
    pub from: Version,
    /// The one that stays.
    pub to: Version,
    /// It was the way back.
    pub back: bool,
}

/// A version that did not serve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedUpgrade {
    /// The version.
    pub to: String,
    /// What happened.
    pub why: String,
    /// The member whose data it did not serve; empty: it did not serve a copy.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub member: String,
    /// The document that asked for it: on a host the sha256 of its text, in Kubernetes its generation.
    pub document: String,
}

impl FailedUpgrade {
    /// The version, and why it is not tried again by this document, if it is the same one.
    pub fn by(&self, document: &str) -> Option<Failed> {
        let failed = Failed {
            to: self.to.parse().ok()?,
            why: detail(format_args!("{}", self.why)),
            member: MemberName::try_from(self.member.as_str()).unwrap_or_default(),
        };
        (self.document == document).then_some(failed)
    }
}

impl Changes {
    /// The record; an empty one where there is none.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn load(paths: &Paths) -> Result<Self, StateError> {
        Ok(state::load(&paths.upgrades())?.unwrap_or_default())
    }

    /// Writes the record.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save(&self, paths: &Paths) -> Result<(), StateError> {
        state::save(&paths.upgrades(), self)
    }

    /// A version failed; the one before serves the data, or will.
    pub fn fail(&mut self, failed: &Failed, document: String) {
        self.failed = Some(FailedUpgrade {
            to: failed.to.to_string(),
            why: failed.why.to_string(),
            member: failed.member.to_string(),
            document,
        });
    }

    /// The rehearsal of a version failed, which ends the change. `began`: the time, if it was trusted.
    pub fn fail_rehearsal(
        &mut self,
        hop: (Version, Version),
        why: &Detail,
        document: String,
        began: Option<Timestamp>,
    ) {
        let failed = Failed {
            to: hop.1,
            why: why.clone(),
            member: MemberName::new(),
        };
        self.fail(&failed, document);
        let why = Some(why.to_string());
        self.note(hop, ChangeOutcome::NotRehearsed, why, began);
    }

    /// A version is final. `now`: the time, if it is trusted. `others`: some of the other members do not have it yet.
    pub fn finish(
        &mut self,
        Ended { from, to, back }: Ended,
        now: Option<Timestamp>,
        others: bool,
    ) {
        if others && !back {
            return;
        }
        let failed = self.failed.take().filter(|_| back);
        // Etcd of the older line ends its own downgrade by itself.
        let older = self.downgrade().and_then(Version::line);
        if !back && older == to.line() {
            self.downgrade = None;
        }
        match failed.filter(|it| it.to == from.to_string()) {
            Some(failed) => {
                let why = Some(failed.why.clone());
                self.failed = Some(failed);
                self.note((to, from), ChangeOutcome::RolledBack, why, now);
            }
            None => self.note((from, to), ChangeOutcome::Done, None, now),
        }
    }

    /// The version for which the operator enabled etcd's own downgrade.
    pub fn downgrade(&self) -> Option<Version> {
        self.downgrade.as_ref()?.parse().ok()
    }

    /// Nothing leads back from a version, whether it failed or a person asked for the one before.
    pub fn stay(&mut self, Ended { from, to, .. }: Ended, now: Option<Timestamp>) {
        let failed = self.failed.as_ref().filter(|it| it.to == to.to_string());
        match failed.map(|it| it.why.clone()) {
            Some(why) => self.note((from, to), ChangeOutcome::Stuck, Some(why), now),
            None => self.note((from, to), ChangeOutcome::Done, None, now),
        }
    }

    /// The version in force serves, so it has not failed.
    pub fn serves(&mut self, version: Option<Version>) {
        let other = |it: &FailedUpgrade| version.is_none_or(|version| it.to != version.to_string());
        self.failed = self.failed.take().filter(other);
    }

    /// Notes a change that has ended, before the identity says so.
    pub fn note_before(&mut self, note: impl FnOnce(&mut Self)) {
        if self.open {
            self.history.pop();
        }
        let before = self.history.last().cloned();
        note(self);
        self.open = self.history.last() != before.as_ref();
    }

    /// The identity names one version: whatever was noted before it is final.
    pub fn settle(&mut self) {
        self.open = false;
    }

    /// Adds a change that has ended.
    fn note(
        &mut self,
        (from, to): (Version, Version),
        outcome: ChangeOutcome,
        message: Option<String>,
        at: Option<Timestamp>,
    ) {
        let excess = (self.history.len() + 1).saturating_sub(HISTORY_MAX);
        self.history.drain(..excess);
        self.history.push(ChangeStatus {
            what: "version".to_owned(),
            from: from.to_string(),
            to: to.to_string(),
            at: at.map(rfc3339),
            outcome,
            message,
        });
    }
}

impl IdentityFile {
    /// The version that the data is for.
    pub fn version(&self) -> Option<Version> {
        self.member.version.parse().ok()
    }

    /// The other version that may open the data.
    pub fn other_version(&self) -> Option<Version> {
        self.member.other_version.as_ref()?.parse().ok()
    }

    /// The next start is one of this version; the one before may still open the data. `image`: where it comes from, if the
    /// document names an image. Whether anything changed.
    pub fn change_to(&mut self, to: Version, image: Option<String>) -> bool {
        let member = &mut self.member;
        let other = member.version != to.to_string();
        if other {
            let before = std::mem::replace(&mut member.version, to.to_string());
            member.other_version = Some(before);
            member.other_image = std::mem::replace(&mut member.image, image);
        }
        other
    }

    /// The next start is one of the version before again; on the way back, of the one that was given up. Whether there is one.
    pub fn go_back(&mut self) -> bool {
        let member = &mut self.member;
        let Some(before) = member.other_version.take() else {
            return false;
        };
        let given_up = std::mem::replace(&mut member.version, before);
        member.other_version = Some(given_up);
        std::mem::swap(&mut member.image, &mut member.other_image);
        member.goes_back = !member.goes_back;
        true
    }

    /// The version that the document asks for, if it is a sound one of an older line: a restore leads to it.
    pub fn older_line(&self, asked: Option<Version>) -> Option<Version> {
        let own = self.version()?;
        let sound = |it: &Version| matches!(classify(*it), Class::Supported | Class::Warn(_));
        asked.filter(|it| own.is_newer_line_than(*it) && sound(it))
    }

    /// The data is replaced by a snapshot's because a person asked for that: the way to an older line, which opens no newer
    /// data.
    pub fn restore_as(&mut self, older: Version) {
        let _ = self.finish_version();
        self.member.version = older.to_string();
        self.cluster.born = None; // with another version
    }

    /// The newer one of two versions stays, whichever was to be started.
    pub fn stay(&mut self) -> Option<Ended> {
        if self.member.goes_back {
            self.go_back();
        }
        self.finish_version()
    }

    /// No other version may open the data any more.
    pub fn finish_version(&mut self) -> Option<Ended> {
        let to = self.version();
        let member = &mut self.member;
        let other = member.other_version.take();
        member.other_image = None;
        let back = std::mem::take(&mut member.goes_back);
        let (from, to) = other.and_then(|it| it.parse().ok()).zip(to)?;
        Some(Ended { from, to, back })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_changes_are_kept() {
        let mut file = Changes::default();
        let version = |patch| Version::new(3, 6, patch);
        for patch in 0..12 {
            let (from, to) = (version(patch), version(patch + 1));
            let back = false;
            file.finish(Ended { from, to, back }, None, false);
        }
        assert_eq!(file.history.len(), HISTORY_MAX);
        assert_eq!(file.history[0].from, "3.6.2");
        assert_eq!(file.history[9].to, "3.6.12");
    }

    #[test]
    fn a_version_that_failed_is_not_tried_until_the_document_changes() {
        let (old, new) = (Version::new(3, 6, 15), Version::new(3, 6, 16));
        let mut file = Changes::default();
        let failed = Failed {
            to: new,
            why: detail(format_args!("it ended")),
            member: MemberName::new(),
        };
        file.fail(&failed, "1".to_owned());
        let (from, to, back) = (new, old, true);
        file.finish(Ended { from, to, back }, None, false);
        assert_eq!(file.history[0].outcome, ChangeOutcome::RolledBack);
        assert_eq!(
            (file.history[0].from.as_str(), file.history[0].to.as_str()),
            ("3.6.15", "3.6.16")
        );
        let written = file.failed.as_ref().unwrap();
        assert_eq!(written.by("1"), Some(failed.clone()));
        assert_eq!(written.by("2"), None);
        // Another version that is final is the end of it, also from the one that failed and had no way back.
        for from in [old, new] {
            file.fail(&failed, "1".to_owned());
            let (to, back) = (Version::new(3, 6, 17), false);
            file.finish(Ended { from, to, back }, None, false);
            assert_eq!(file.failed, None);
            assert_eq!(file.history.last().unwrap().outcome, ChangeOutcome::Done);
        }
    }
}
