//! Changes of etcd's version on this host, step by step as the core plans them.

mod record;

use super::{Agent, AgentError};
use crate::api::status::ChangeOutcome as Outcome;
use crate::backup::work::NotRehearsed;
use crate::backup::{place, trial};
use crate::clock;
use crate::cluster::{Detail, Timestamp, detail};
use crate::etcd::{data_dir, store};
use crate::member::crash::CrashPoint;
use crate::member::records::{self, IdentityFile};
use crate::member::starts;
use crate::observed::{Instance, Process, Reading, Tries, Upgrade};
use crate::plan::version::{Back, why_back};
use crate::spec::ClusterSpec;
use crate::start::{Facts, Identity};
use crate::state;
use crate::version::Version;

use record::{FailedUpgrade, UpgradesFile};

/// A rehearsal counts for so many seconds: the snapshot that it began with is one "of now".
const REHEARSED_SECONDS: u64 = 600;
/// Seconds until a rehearsal is tried again for which there was no room, or no snapshot.
const RETRY_SECONDS: u64 = 60;
/// Processes that are told apart.
const TRIED_MAX: usize = 8;

/// What is remembered of a rehearsal. An operator that restarts rehearses anew.
#[derive(Clone)]
pub(super) struct Rehearsal {
    to: Version,
    /// When it began or ended, in seconds since boot.
    at: u64,
    /// The time when it began, if that was trusted.
    began: Option<Timestamp>,
    outcome: Rehearsed,
}

#[derive(Clone)]
enum Rehearsed {
    UnderWay,
    Served(i64),
    Waits(Detail),
}

impl Agent {
    /// The change of version, as the core sees it.
    pub(super) fn upgrade(&mut self, spec: &ClusterSpec) -> Result<Upgrade, Detail> {
        let file = UpgradesFile::load(&self.paths);
        let file = file.map_err(|error| detail(format_args!("{error}")))?;
        self.memory.changes = file.history;
        if let Some(failed) = file.failed
            && let Ok(to) = failed.to.parse::<Version>()
            && spec.version == Some(to)
            && self.document_sum() == failed.document
        {
            let why = detail(format_args!("{}", failed.why));
            return Ok(Upgrade::Failed { to, why });
        }
        let now = clock::since_boot().as_secs();
        let rehearsal = self.memory.rehearsal.take();
        let rehearsal = rehearsal.filter(|it| spec.version == Some(it.to) || it.is_under_way());
        self.memory.rehearsal.clone_from(&rehearsal);
        let Some(Rehearsal {
            to, at, outcome, ..
        }) = rehearsal
        else {
            return Ok(Upgrade::None);
        };
        let seconds = now.saturating_sub(at);
        Ok(match outcome {
            Rehearsed::UnderWay => Upgrade::Rehearsing { to },
            Rehearsed::Served(revision) if seconds < REHEARSED_SECONDS => {
                Upgrade::Rehearsed { to, revision }
            }
            Rehearsed::Served(_) => Upgrade::None,
            Rehearsed::Waits(why) => Upgrade::NotRehearsed {
                to,
                why,
                retry_in: RETRY_SECONDS.saturating_sub(seconds),
            },
        })
    }

    /// How etcd does with data, or with a version, that is new to it.
    pub(super) fn tries(
        &mut self,
        spec: &ClusterSpec,
        facts: &Facts,
        process: Process,
        read: &Reading,
    ) -> Tries {
        let born = facts.born();
        let asked = spec.version;
        let other = asked.filter(|it| born.is_some_and(|born| born.version != *it));
        let storage_dir = self.reached(spec).storage_dir;
        Tries {
            unanswered: self.count_unanswered(process, read),
            ends: self.count_ends(born, process),
            database: data_dir::database_bytes(&records::data_dir(&storage_dir)),
            asked_binary: other.map(|it| store::binary(&self.paths.store(), it)),
        }
    }

    /// How often etcd ended by itself since its version was changed, as far as this agent saw.
    fn count_ends(&mut self, identity: Option<&Identity>, process: Process) -> u32 {
        let tried = &mut self.memory.tried;
        let Some(identity) = identity.filter(|it| it.other_version.is_some()) else {
            tried.clear();
            return 0;
        };
        let runs = match process {
            Process::Running { pid, version, .. } if version == identity.version => {
                if !tried.contains(&pid) && tried.len() < TRIED_MAX {
                    tried.push(pid);
                }
                1
            }
            _ => 0,
        };
        u32::try_from(tried.len().saturating_sub(runs)).unwrap_or(u32::MAX)
    }

    /// The document that is in force, in one word.
    fn document_sum(&self) -> String {
        let posted = self.board.lock();
        let wire = posted.accepted.as_ref().map(|it| &it.document.wire);
        let text = serde_json::to_vec(&wire).unwrap_or_default();
        state::sha256(&text)
    }

    /// Tries another version on a copy of the data, beside the loop.
    pub(super) fn rehearse(&mut self, spec: &ClusterSpec, now: Option<Timestamp>, to: Version) {
        self.memory.rehearsal = None;
        self.remember_rehearsal(to, Rehearsed::UnderWay);
        if let Some(rehearsal) = &mut self.memory.rehearsal {
            rehearsal.began = now;
        }
        self.with_member(spec, |work, member| work.rehearse(member, now, to));
        if !self.work.is_busy() {
            let why = detail(format_args!("the system has no room for one more thread"));
            self.remember_rehearsal(to, Rehearsed::Waits(why));
        }
    }

    fn remember_rehearsal(&mut self, to: Version, outcome: Rehearsed) {
        self.memory.rehearsal = Some(Rehearsal {
            to,
            at: clock::since_boot().as_secs(),
            began: self.memory.rehearsal.as_ref().and_then(|it| it.began),
            outcome,
        });
    }

    /// Ends and removes what a trial of an agent before this one has left, unless a command's trial runs.
    pub(super) fn clear_trial(&self) {
        if let Ok(Some(_lock)) = place::lock(&self.paths, place::Work::Local) {
            trial::clear(&self.paths);
        }
    }

    /// Takes note of a rehearsal that has ended.
    pub(super) fn rehearsed(&mut self, to: Version, result: Result<i64, NotRehearsed>) {
        match result {
            Ok(revision) => {
                tracing::info!(version = %to, revision, "etcd served a copy of the data");
                self.remember_rehearsal(to, Rehearsed::Served(revision));
            }
            Err(NotRehearsed {
                why,
                of_the_version: false,
            }) => {
                self.log_once(&format!("etcd {to} could not be tried on a copy: {why}"));
                self.remember_rehearsal(to, Rehearsed::Waits(why));
            }
            Err(NotRehearsed { why, .. }) => {
                let log = self.paths.rehearsal_log();
                tracing::error!(version = %to, log = %log.display(), "the rehearsal failed: {why}");
                let began = self.memory.rehearsal.take().and_then(|it| it.began);
                let ended = Some((Outcome::NotRehearsed, began));
                if let Err(error) = self.note_failed(to, &why, ended) {
                    // Without the record it would be tried again at once.
                    self.remember_rehearsal(to, Rehearsed::Waits(detail(format_args!("{error}"))));
                }
            }
        }
    }

    /// Writes down that a version failed. `ended`: nothing more is to be done about it.
    fn note_failed(
        &self,
        to: Version,
        why: &Detail,
        ended: Option<(Outcome, Option<Timestamp>)>,
    ) -> Result<(), AgentError> {
        let mut file = UpgradesFile::load(&self.paths)?;
        file.failed = Some(FailedUpgrade {
            to: to.to_string(),
            why: why.to_string(),
            document: self.document_sum(),
        });
        let from = self.board.lock().identity.as_ref().and_then(version_of);
        if let (Some((outcome, at)), Some(from)) = (ended, from) {
            file.note((from, to), outcome, Some(why.to_string()), at);
        }
        Ok(file.save(&self.paths)?)
    }

    /// Records the version for the next start.
    pub(super) fn set_version(
        &mut self,
        spec: &ClusterSpec,
        to: Version,
    ) -> Result<(), AgentError> {
        self.change_identity(&self.reached(spec).storage_dir, |it| {
            let other = it.member.version != to.to_string();
            if other {
                let before = std::mem::replace(&mut it.member.version, to.to_string());
                it.member.other_version = Some(before);
            }
            other
        })?;
        CrashPoint::VersionWritten.pass();
        self.memory.rehearsal = None;
        starts::begin_anew(&self.paths);
        Ok(())
    }

    /// Records the version before for the next start again, and why.
    pub(super) fn take_version_back(
        &mut self,
        spec: &ClusterSpec,
        instance: Option<&Instance>,
    ) -> Result<(), AgentError> {
        let why = instance.and_then(|it| Some((it, why_back(spec, it)?)));
        if let Some((instance, Back::Failed(why))) = why
            && let Some(identity) = instance.facts.born()
        {
            tracing::error!(version = %identity.version, "the version before comes back: {why}");
            self.note_failed(identity.version, &why, None)?;
            CrashPoint::VersionFailed.pass();
        }
        self.change_identity(&self.reached(spec).storage_dir, |it| {
            let Some(before) = it.member.other_version.take() else {
                return false;
            };
            let new = std::mem::replace(&mut it.member.version, before);
            it.member.other_version = Some(new);
            it.member.goes_back = true;
            true
        })?;
        CrashPoint::VersionTakenBack.pass();
        self.memory.tried.clear();
        starts::begin_anew(&self.paths);
        Ok(())
    }

    /// The version that serves is final.
    pub(super) fn finish_version(
        &self,
        spec: &ClusterSpec,
        now: Option<Timestamp>,
    ) -> Result<(), AgentError> {
        let mut hop = None;
        self.change_identity(&self.reached(spec).storage_dir, |it| {
            let other = it.member.other_version.take();
            it.member.goes_back = false;
            hop = other
                .and_then(|it| it.parse::<Version>().ok())
                .zip(version_of(it));
            hop.is_some()
        })?;
        CrashPoint::VersionFinal.pass();
        let Some((from, to)) = hop else {
            return Ok(());
        };
        let mut file = UpgradesFile::load(&self.paths)?;
        let failed = file.failed.take();
        match failed.filter(|it| it.to == from.to_string()) {
            Some(failed) => {
                let why = Some(failed.why.clone());
                file.failed = Some(failed);
                file.note((to, from), Outcome::RolledBack, why, now);
            }
            None => file.note((from, to), Outcome::Done, None, now),
        }
        tracing::info!(%from, %to, "the version is final");
        Ok(file.save(&self.paths)?)
    }
}

impl Rehearsal {
    fn is_under_way(&self) -> bool {
        matches!(self.outcome, Rehearsed::UnderWay)
    }
}

fn version_of(identity: &IdentityFile) -> Option<Version> {
    identity.member.version.parse().ok()
}
