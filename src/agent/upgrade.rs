//! Changes of etcd's version on this host, step by step as the core plans them.

pub(super) mod record;

use std::path::Path;

use super::{Agent, AgentError};
use crate::api::status::ChangeOutcome as Outcome;
use crate::backup::work::NotRehearsed;
use crate::backup::{place, trial};
use crate::clock;
use crate::cluster::{Detail, Timestamp, detail};
use crate::error::chain;
use crate::etcd::{data_dir, store};
use crate::member::crash::CrashPoint;
use crate::member::records::{self, IdentityFile};
use crate::member::starts;
use crate::observed::{
    Instance, Pairs, Process, Reading, Service, Tries, Unanswered, Upgrade, Writing,
};
use crate::plan::version::{Back, why_back};
use crate::spec::ClusterSpec;
use crate::start::Facts;
use crate::version::Version;

use record::{FailedUpgrade, UpgradesFile};

/// A rehearsal counts for so many seconds: the snapshot that it began with is one "of now".
const REHEARSED_SECONDS: u64 = 600;
/// Seconds until a rehearsal is tried again for which there was no room, or no snapshot: by how many failed so.
const RETRY_SECONDS: [u64; 4] = [60, 60, 300, 900];

/// What is remembered of a rehearsal. An operator that restarts rehearses anew.
#[derive(Clone)]
pub(super) struct Rehearsal {
    to: Version,
    /// When it began or ended, in seconds since boot.
    at: u64,
    /// The time when it began, if that was trusted.
    began: Option<Timestamp>,
    /// How many of this version could not be tried.
    waited: usize,
    outcome: Rehearsed,
}

/// The process that was looked at, and what it did.
#[derive(Clone, Copy)]
pub(super) struct Serving {
    pid: u32,
    /// Since when it has served, or has not, in seconds since boot.
    since: u64,
    /// `None`: it serves.
    looks: Option<u32>,
}

#[derive(Clone)]
enum Rehearsed {
    UnderWay,
    Served(i64),
    Waits(Detail),
}

impl Agent {
    /// The change of version, as the core sees it.
    pub(super) fn upgrade(&mut self, spec: &ClusterSpec) -> Upgrade {
        let file = UpgradesFile::load(&self.paths);
        let file = match (file, spec.version) {
            (Ok(file), _) => file,
            // Only another change of version depends on it.
            (Err(error), Some(to)) => {
                return Upgrade::NotRehearsed {
                    to,
                    why: detail(format_args!("{}", chain(&error))),
                    retry_in: RETRY_SECONDS[0],
                };
            }
            (Err(_), None) => UpgradesFile::default(),
        };
        self.memory.changes = file.history;
        if let Some(failed) = file.failed
            && let Ok(to) = failed.to.parse::<Version>()
            && spec.version == Some(to)
            && self.memory.document == failed.document
        {
            let why = detail(format_args!("{}", failed.why));
            return Upgrade::Failed { to, why };
        }
        let busy = self.is_busy();
        let kept = |it: &Rehearsal| match it.outcome {
            Rehearsed::UnderWay => busy,
            _ => spec.version == Some(it.to),
        };
        let rehearsal = self.memory.rehearsal.take().filter(kept);
        self.memory.rehearsal.clone_from(&rehearsal);
        let Some(Rehearsal {
            to,
            at,
            outcome,
            waited,
            ..
        }) = rehearsal
        else {
            return Upgrade::None;
        };
        let seconds = clock::since_boot().as_secs().saturating_sub(at);
        let retry = RETRY_SECONDS[waited.saturating_sub(1).min(RETRY_SECONDS.len() - 1)];
        match outcome {
            Rehearsed::UnderWay => Upgrade::Rehearsing { to },
            Rehearsed::Served(revision) if seconds < REHEARSED_SECONDS => {
                Upgrade::Rehearsed { to, revision }
            }
            Rehearsed::Served(_) => Upgrade::None,
            Rehearsed::Waits(why) => Upgrade::NotRehearsed {
                to,
                why,
                retry_in: retry.saturating_sub(seconds),
            },
        }
    }

    /// How etcd does with data, or with a version, that is new to it.
    pub(super) fn tries(
        &mut self,
        spec: &ClusterSpec,
        (facts, storage_dir): (&Facts, &Path),
        process: Process,
        (service, pairs): (&Service, Pairs),
    ) -> Tries {
        let born = facts.born();
        let asked = spec.version;
        let other = asked.filter(|it| born.is_some_and(|born| born.version != *it));
        let (served, unserved) = self.count_served(process, service, pairs);
        Tries {
            unanswered: self.count_unanswered(process, &service.read),
            unserved,
            served,
            ends: starts::ends(&self.paths),
            database: data_dir::database_bytes(&records::data_dir(storage_dir)),
            asked_binary: other.map(|it| store::binary(&self.paths.store(), it)),
        }
    }

    /// For how long this process has served; or how often and how long it has not, though the operator could ask and the
    /// database is not full.
    fn count_served(
        &mut self,
        process: Process,
        service: &Service,
        pairs: Pairs,
    ) -> (u64, Unanswered) {
        let Process::Running { pid, .. } = process else {
            self.memory.serving = None;
            return (0, Unanswered::default());
        };
        let serves = service.read == Reading::Answered && service.write == Writing::Acknowledged;
        let ours = matches!(pairs, Pairs::Usable | Pairs::AddressesDiffer);
        let permitted = !matches!(service.read, Reading::NotPermitted(_));
        if !serves && (service.alarms.no_space || !ours || !permitted) {
            self.memory.serving = None;
            return (0, Unanswered::default());
        }
        let now = clock::since_boot().as_secs();
        let before = self.memory.serving;
        let before = before.filter(|it| it.pid == pid && it.looks.is_none() == serves);
        let seen = Serving {
            pid,
            since: before.map_or(now, |it| it.since),
            looks: (!serves).then(|| before.and_then(|it| it.looks).unwrap_or(0) + 1),
        };
        self.memory.serving = Some(seen);
        let seconds = now.saturating_sub(seen.since);
        match seen.looks {
            None => (seconds, Unanswered::default()),
            Some(looks) => (0, Unanswered { looks, seconds }),
        }
    }

    /// Tries another version on a copy of the data, beside the loop.
    pub(super) fn rehearse(
        &mut self,
        spec: &ClusterSpec,
        now: Option<Timestamp>,
        to: Version,
        instance: Option<&Instance>,
    ) {
        self.remember_rehearsal(to, Rehearsed::UnderWay);
        if let Some(rehearsal) = &mut self.memory.rehearsal {
            rehearsal.began = now;
        }
        let pid = instance.and_then(|it| match it.process {
            Process::Running { pid, .. } => Some(pid),
            _ => None,
        });
        let database = instance.map_or(0, |it| it.tries.database);
        self.with_member(spec, |work, member| {
            work.rehearse(member, now, to, (pid, database));
        });
        if !self.work.is_busy() {
            let why = detail(format_args!("the system has no room for one more thread"));
            self.remember_rehearsal(to, Rehearsed::Waits(why));
        }
    }

    fn remember_rehearsal(&mut self, to: Version, outcome: Rehearsed) {
        let before = self.memory.rehearsal.as_ref().filter(|it| it.to == to);
        let waits = usize::from(matches!(outcome, Rehearsed::Waits(_)));
        self.memory.rehearsal = Some(Rehearsal {
            to,
            at: clock::since_boot().as_secs(),
            began: before.and_then(|it| it.began),
            waited: before.map_or(0, |it| it.waited) + waits,
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
        let mut file = UpgradesFile::load(&self.paths).unwrap_or_default();
        file.failed = Some(FailedUpgrade {
            to: to.to_string(),
            why: why.to_string(),
            document: self.memory.document.clone(),
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
            // What serves again matters more than a note about it.
            if let Err(error) = self.note_failed(identity.version, &why, None) {
                self.log_once(&chain(&error));
            }
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
        let mut file = UpgradesFile::load(&self.paths).unwrap_or_default();
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

fn version_of(identity: &IdentityFile) -> Option<Version> {
    identity.member.version.parse().ok()
}
