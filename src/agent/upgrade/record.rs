//! The record of the changes of etcd's version: the last ones, and the one that failed.

use serde::{Deserialize, Serialize};

use crate::api::status::{ChangeOutcome, ChangeStatus};
use crate::clock::rfc3339;
use crate::cluster::Timestamp;
use crate::paths::Paths;
use crate::state::{self, StateError};
use crate::version::Version;

/// Changes that are kept.
const HISTORY_MAX: usize = 10;

/// What is kept of changes of the version, over restarts of the operator and of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::agent) struct UpgradesFile {
    /// The last ones, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(in crate::agent) history: Vec<ChangeStatus>,
    /// A version that is not tried again until the document changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::agent) failed: Option<FailedUpgrade>,
}

/// A version that did not serve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedUpgrade {
    /// The version.
    pub to: String,
    /// What happened.
    pub why: String,
    /// The sha256 of the document that asked for it.
    pub document: String,
}

impl UpgradesFile {
    /// The record; an empty one where there is none.
    ///
    /// # Errors
    /// It cannot be read.
    pub(in crate::agent) fn load(paths: &Paths) -> Result<Self, StateError> {
        Ok(state::load(&paths.upgrades())?.unwrap_or_default())
    }

    /// Writes the record.
    ///
    /// # Errors
    /// It cannot be written.
    pub(in crate::agent) fn save(&self, paths: &Paths) -> Result<(), StateError> {
        state::save(&paths.upgrades(), self)
    }

    /// Adds a change that has ended. `now`: the time, if it is trusted.
    pub(in crate::agent) fn note(
        &mut self,
        (from, to): (Version, Version),
        outcome: ChangeOutcome,
        message: Option<String>,
        now: Option<Timestamp>,
    ) {
        let excess = (self.history.len() + 1).saturating_sub(HISTORY_MAX);
        self.history.drain(..excess);
        self.history.push(ChangeStatus {
            what: "version".to_owned(),
            from: from.to_string(),
            to: to.to_string(),
            at: now.map(rfc3339),
            outcome,
            message,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_changes_are_kept() {
        let mut file = UpgradesFile::default();
        let version = |patch| Version::new(3, 6, patch);
        for patch in 0..12 {
            let hop = (version(patch), version(patch + 1));
            file.note(hop, ChangeOutcome::Done, None, None);
        }
        assert_eq!(file.history.len(), HISTORY_MAX);
        assert_eq!(file.history[0].from, "3.6.2");
        assert_eq!(file.history[9].to, "3.6.12");
    }
}
