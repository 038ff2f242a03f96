//! What is written down of a restore: while it is under way, and how it ended.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::crash::CrashPoint;
use super::records::{IdentityFile, revisions_lost};
use crate::observed::{RestorePhase, Restoring};
use crate::paths::Paths;
use crate::state::{self, StateError};
use crate::version::Version;

/// How far revisions jump, so that no client that watched the lost revisions takes new writes for
/// old ones. The jump equals a week at 1,500 writes a second (rule D35).
pub const BUMP: u64 = 1_000_000_000;

/// A restore that was asked for and has not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestoreRecord {
    /// Tells it from others; part of the names of what it sets aside.
    pub id: String,
    /// Who asked.
    pub reason: Reason,
    /// Where it is.
    pub phase: StoredPhase,
    /// The snapshot.
    pub source: SourceFile,
    /// The last revision that the data to be replaced was seen to have.
    pub live_revision: Option<i64>,
    /// The last one that it can have had, where its log tells.
    #[serde(default)]
    pub live_at_most: Option<i64>,
    /// By how much revisions jump.
    pub bump: u64,
    /// Who lived here before; none where nobody did.
    pub former: Option<IdentityFile>,
    /// Who will live here, once prepared.
    pub next: Option<IdentityFile>,
    /// The time when it was asked for, if it was trusted.
    pub asked: Option<String>,
    /// The version of an older line of etcd, which the data is given to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// It takes a restore back: the new data is what that one set aside, in this directory beside the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub takes_back: Option<String>,
}

/// Who asked for a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reason {
    /// A person.
    Command,
    /// `spec.bootstrap`.
    Bootstrap,
    /// `spec.recovery`.
    Recovery,
}

/// [`RestorePhase`] as it is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the words of RestorePhase")]
pub enum StoredPhase {
    Requested,
    Prepared,
    Swapping,
    Starting,
    Undoing,
}

impl From<StoredPhase> for RestorePhase {
    fn from(it: StoredPhase) -> Self {
        match it {
            StoredPhase::Requested => RestorePhase::Requested,
            StoredPhase::Prepared => RestorePhase::Prepared,
            StoredPhase::Swapping => RestorePhase::Swapping,
            StoredPhase::Starting => RestorePhase::Starting,
            StoredPhase::Undoing => RestorePhase::Undoing,
        }
    }
}

/// The snapshot of a restore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceFile {
    /// Its file. Opened for reading only.
    pub path: PathBuf,
    /// Its name, for people.
    pub name: String,
    /// The last revision in it.
    pub revision: i64,
    /// The id of the cluster that it was taken from, where a manifest says it.
    #[serde(rename = "clusterID")]
    pub cluster_id: Option<String>,
    /// Bytes of the database.
    pub database: u64,
    /// It carries etcd's checksum.
    pub checksummed: bool,
    /// sha256 of the file, where a manifest says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// etcdutl's hash of the database, once the file was looked for and found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
}

/// How a restore ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestoreReport {
    /// Of which restore.
    pub id: String,
    /// Who asked.
    pub reason: Reason,
    /// How it ended.
    pub outcome: Outcome,
    /// The snapshot's name.
    pub snapshot: String,
    /// The last revision in the snapshot.
    pub snapshot_revision: i64,
    /// The last revision seen before.
    pub live_revision: Option<i64>,
    /// How many revisions the restore lost.
    pub revisions_lost: Option<i64>,
    /// What kind of number that is.
    #[serde(default)]
    pub lost_is: LostIs,
    /// Where the data from before lies.
    pub kept: Option<PathBuf>,
    /// Why, where it did not succeed.
    pub message: Option<String>,
    /// It failed for want of so many free bytes, and is tried again once they are there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room: Option<u64>,
    /// What `restore --undo` brings back; of a restore before, where this one changed nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aside: Option<Aside>,
    /// A person has asked for another try since.
    #[serde(default)]
    pub forgotten: bool,
}

/// Data that a restore set aside, and all that is needed to live on it again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Aside {
    /// The directory's name, beside the data.
    pub directory: String,
    /// Who lived there.
    pub identity: IdentityFile,
    /// The last revision that it was seen to have.
    pub revision: Option<i64>,
}

/// What kind of number a loss is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LostIs {
    /// No more and no less.
    #[default]
    Exactly,
    /// Counted in the log: not each of its entries need have made a revision.
    AtMost,
    /// Seen; and the log does not tell how far it reached beyond.
    AtLeast,
}

/// How many revisions are lost, as it is told.
pub fn lost_words(revisions: Option<i64>, is: LostIs) -> String {
    let bound = match is {
        LostIs::Exactly => "",
        LostIs::AtMost => "at most ",
        LostIs::AtLeast => "at least ",
    };
    match (revisions, is) {
        (None, _) => "an unknown number of revisions".to_owned(),
        (Some(0), LostIs::Exactly | LostIs::AtMost) => "nothing".to_owned(),
        (Some(1), _) => format!("{bound}1 revision"),
        (Some(it), _) => format!("{bound}{it} revisions"),
    }
}

/// How a restore ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// etcd serves the snapshot's data.
    Restored,
    /// etcd did not serve it; the data from before is back.
    Undone,
    /// It could not be prepared; nothing was touched.
    Failed,
}

impl RestoreRecord {
    /// One that nothing was done for yet.
    pub fn requested(
        id: String,
        reason: Reason,
        source: SourceFile,
        live_revision: Option<i64>,
        former: Option<IdentityFile>,
    ) -> Self {
        RestoreRecord {
            id,
            reason,
            phase: StoredPhase::Requested,
            source,
            live_revision,
            live_at_most: None,
            bump: BUMP,
            former,
            next: None,
            asked: None,
            version: None,
            takes_back: None,
        }
    }

    /// The same for a person who asks: where the document names a version of an older line, the data is given to that one.
    #[must_use]
    pub fn with_version_of(mut self, asked: Option<Version>) -> Self {
        let older = self.former.as_ref().and_then(|it| it.older_line(asked));
        self.version = older.map(|it| it.to_string());
        self
    }

    /// The one under way.
    pub fn load(paths: &Paths) -> Result<Option<Self>, StateError> {
        state::load(&paths.restore())
    }

    /// The data is being exchanged: nobody may start etcd.
    pub fn holds_the_data(&self) -> bool {
        let phase = self.phase.into();
        Restoring {
            phase,
            busy: false,
            stops_first: false,
        }
        .holds_the_data()
    }

    /// Data was touched: it is brought to its end, whatever is asked next.
    pub fn has_begun(&self) -> bool {
        !matches!(self.phase, StoredPhase::Requested | StoredPhase::Prepared)
    }

    /// Revisions go on beyond everything that was ever seen of this cluster, the lost ones and those
    /// of its newest snapshot among them: `newest`.
    pub fn set_bump(&mut self, newest: Option<i64>) {
        let former = self.former.as_ref().and_then(|it| it.cluster.highest);
        let seen = self.live_revision.max(newest).max(former).unwrap_or(0);
        let ahead = seen.saturating_sub(self.source.revision).max(0);
        self.bump = BUMP.saturating_add(u64::try_from(ahead).unwrap_or(0));
    }

    /// The life that is taken back has been seen by clients up to here: the one that comes back remembers it.
    pub fn remember_highest(&mut self) {
        let (Some(former), Some(next)) = (&self.former, &mut self.next) else {
            return;
        };
        if self.takes_back.is_none() {
            return;
        }
        let begun = former.cluster.jumps.last().map(|it| it.to);
        // Where nobody can say how far it came: no life has come further than the room of a jump.
        let unknown = begun.map(|it| it.saturating_add_unsigned(BUMP));
        let reached = self.live_revision.max(self.live_at_most).or(unknown);
        let highest = next.cluster.highest.max(former.cluster.highest);
        next.cluster.highest = highest.max(reached);
    }

    /// Writes it down.
    pub fn save(&self, paths: &Paths) -> Result<(), StateError> {
        state::save(&paths.restore(), self)
    }

    /// Asks for it, unless another one is under way: `false`.
    pub fn request(&self, paths: &Paths) -> Result<bool, StateError> {
        state::save_new(&paths.restore(), self)
    }

    /// It has ended.
    pub fn end(&self, paths: &Paths, mut report: RestoreReport) -> Result<(), StateError> {
        if report.outcome != Outcome::Restored {
            report.aside = last_report(paths).and_then(|it| it.aside);
        }
        state::save(&paths.restored(), &report)?;
        CrashPoint::ReportWritten.pass();
        self.withdraw(paths)
    }

    /// It is under way no more.
    pub fn withdraw(&self, paths: &Paths) -> Result<(), StateError> {
        let previous = paths.restore().with_extension("json.previous");
        for path in [previous, paths.restore()] {
            match fs::remove_file(&path) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    let what = "remove";
                    return Err(StateError::Io { what, path, source });
                }
                _ => {}
            }
        }
        state::sync_dir(&paths.lib)
    }

    /// How many revisions it loses, by what is known of the data that it replaces.
    pub fn loss(&self) -> (Option<i64>, LostIs) {
        let jumps = self.former.as_ref().map(|it| it.cluster.jumps.as_slice());
        let jumps = jumps.unwrap_or_default();
        let lost = |live| revisions_lost(live, self.source.revision, jumps);
        match (self.live_revision.map(lost), self.live_at_most.map(lost)) {
            (seen, Some(most)) if seen >= Some(most) => (seen, LostIs::Exactly),
            (_, Some(most)) => (Some(most), LostIs::AtMost),
            (seen, None) => (seen, LostIs::AtLeast),
        }
    }

    /// The report of its end.
    pub fn report(
        &self,
        outcome: Outcome,
        kept: Option<PathBuf>,
        message: Option<String>,
    ) -> RestoreReport {
        let (lost, lost_is) = self.loss();
        // An undo is not undone: snapshots of two lives that both go on could not be told apart.
        let kept_of_a_restore = kept.as_deref().filter(|_| self.takes_back.is_none());
        let name = kept_of_a_restore.and_then(Path::file_name);
        let aside = name.zip(self.former.clone()).map(|(name, identity)| Aside {
            directory: name.to_string_lossy().into_owned(),
            identity,
            revision: self.live_revision,
        });
        RestoreReport {
            id: self.id.clone(),
            reason: self.reason,
            outcome,
            snapshot: self.source.name.clone(),
            snapshot_revision: self.source.revision,
            live_revision: self.live_revision,
            revisions_lost: lost.filter(|_| outcome == Outcome::Restored),
            lost_is,
            kept,
            message,
            room: None,
            aside,
            forgotten: false,
        }
    }

    /// Where the data lies that takes the place of the old.
    pub fn made(&self, storage_dir: &Path) -> PathBuf {
        match &self.takes_back {
            Some(directory) => storage_dir.join(directory),
            None => RestoreRecord::scratch(storage_dir).join("data"),
        }
    }

    /// Where new data is made.
    pub fn scratch(storage_dir: &Path) -> PathBuf {
        storage_dir.join("restore.part")
    }

    /// Where the old data is kept.
    pub fn kept(&self, storage_dir: &Path) -> PathBuf {
        storage_dir.join(format!("data.before-restore-{}", self.id))
    }

    /// Where data is kept that etcd did not serve: what was set aside goes back to where it lay.
    pub fn failed(&self, storage_dir: &Path) -> PathBuf {
        if self.takes_back.is_some() {
            return self.made(storage_dir);
        }
        storage_dir.join(format!("data.failed-restore-{}", self.id))
    }
}

/// A word that no other restore has.
pub fn new_id() -> String {
    let mut random = [0_u8; 4];
    let _ = ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut random);
    state::hex(&random)
}

/// How the last restore ended.
pub fn last_report(paths: &Paths) -> Option<RestoreReport> {
    state::load(&paths.restored()).ok().flatten()
}
