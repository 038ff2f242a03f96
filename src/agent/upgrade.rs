//! Changes of etcd's version on this host, step by step as the core plans them.

use std::path::Path;

use super::{Agent, AgentError};
use crate::backup::work::{Ended as Job, Live, NotRehearsed};
use crate::backup::{place, trial};
use crate::changes::{Changes, Ended, REHEARSED_SECONDS, retry_seconds};
use crate::clock;
use crate::cluster::{Detail, Timestamp, detail};
use crate::error::chain;
use crate::etcd::reach::reach;
use crate::etcd::{data_dir, store};
use crate::member::contact;
use crate::member::crash::CrashPoint;
use crate::member::records::{self, IdentityFile};
use crate::member::starts;
use crate::observed::{Instance, Pairs, Process, Reach, Service, Tries, Upgrade};
use crate::plan::version::given_up;
use crate::spec::ClusterSpec;
use crate::start::Facts;
use crate::state::StateError;
use crate::version::Version;

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

#[derive(Clone)]
enum Rehearsed {
    UnderWay,
    Served(i64),
    Waits(Detail),
}

impl Agent {
    /// The change of version, as the core sees it.
    pub(super) fn upgrade(&mut self, spec: &ClusterSpec) -> Upgrade {
        if let Err(error) = self.know_changes()
            && let Some(to) = spec.version
        {
            // Only another change of version depends on it.
            return Upgrade::NotRehearsed {
                to,
                why: detail(format_args!("{}", chain(&error))),
                retry_in: retry_seconds(1),
            };
        }
        let failed = self.memory.changes.as_ref();
        let failed = failed.and_then(|it| it.failed.as_ref()?.by(&self.memory.document));
        if let Some(failed) = failed.filter(|it| spec.version == Some(it.to)) {
            return Upgrade::Failed(failed);
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
        match outcome {
            Rehearsed::UnderWay => Upgrade::Rehearsing { to },
            Rehearsed::Served(revision) if seconds < REHEARSED_SECONDS => {
                Upgrade::Rehearsed { to, revision }
            }
            Rehearsed::Served(_) => Upgrade::None,
            Rehearsed::Waits(why) => Upgrade::NotRehearsed {
                to,
                why,
                retry_in: retry_seconds(waited).saturating_sub(seconds),
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
        let _ = self.know_changes(); // told with the change that is asked for
        if born.is_some_and(|it| it.other_version.is_none())
            && let Some(changes) = &mut self.memory.changes
        {
            changes.settle();
        }
        let live = service.details.map(|it| it.revision);
        let reach = self.reach(facts, storage_dir, (process, live));
        Tries {
            reach,
            downgrade: self.memory.changes.as_ref().and_then(Changes::downgrade),
            ends: starts::ends(&self.paths),
            database: data_dir::database_bytes(&records::data_dir(storage_dir)),
            asked_binary: other.map(|it| store::binary(&self.paths.store(), it)),
            ..self.memory.counts.look(process, service, pairs.are_taken())
        }
    }

    /// How far the data of a version that failed reaches: read beside the loop, once after each end of etcd.
    /// What it has been given since, only etcd knows.
    fn reach(
        &mut self,
        facts: &Facts,
        storage_dir: &Path,
        (process, live): (Process, Option<i64>),
    ) -> Reach {
        let failed = self
            .memory
            .changes
            .as_ref()
            .and_then(|it| it.failed.as_ref());
        let in_force = facts.born().filter(|it| it.other_version.is_none());
        let version = in_force.map(|it| it.version);
        let Some(version) = version.filter(|it| failed.is_some_and(|f| f.to == it.to_string()))
        else {
            self.memory.reach = None;
            return Reach::default();
        };
        let data = records::data_dir(storage_dir);
        let stamp = data_dir::stamp(&data);
        let read = self.memory.reach.as_ref().filter(|it| it.1 == stamp);
        if read.is_none() && process == Process::Stopped {
            let (seen, stamp) = (facts.seen, stamp.clone());
            self.begin(move || {
                let lies_still = || !data_dir::is_in_use(&data) && data_dir::stamp(&data) == stamp;
                let reach = reach(&data, version.line(), &[], seen).unwrap_or_default();
                Job::Counted(lies_still().then_some(reach), stamp)
            });
        }
        let begun = self.board.lock().identity.as_ref().map(IdentityFile::begun);
        let read = self.memory.reach.as_ref();
        Reach {
            begun: begun.unwrap_or_default(),
            at_least: live.max(read.and_then(|it| it.0.at_least)),
            at_most: read.filter(|it| it.1 == stamp).and_then(|it| it.0.at_most),
        }
    }

    /// Reads what is written down of changes, once: only this agent writes it.
    fn know_changes(&mut self) -> Result<(), StateError> {
        if self.memory.changes.is_none() {
            self.memory.changes = Some(Changes::load(&self.paths)?);
        }
        Ok(())
    }

    /// Writes down what `change` does. A record that cannot be read is begun anew.
    fn write_changes(&mut self, change: impl FnOnce(&mut Changes)) -> Result<(), StateError> {
        let _ = self.know_changes();
        let changes = self.memory.changes.get_or_insert_default();
        change(changes);
        changes.save(&self.paths)
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
        let live = Live {
            pid: instance.and_then(|it| it.process.pid()),
            database: instance.map_or(0, |it| it.tries.database),
            data: records::data_dir(&self.reached(spec).storage_dir),
        };
        self.with_member(spec, |work, member| work.rehearse(member, now, to, live));
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
                let document = self.memory.document.clone();
                let posted = self.board.lock().identity.clone();
                let from = posted.and_then(|it| it.version()).unwrap_or(to);
                let noted =
                    self.write_changes(|it| it.fail_rehearsal((from, to), &why, document, began));
                if let Err(error) = noted {
                    // Without the record it would be tried again at once.
                    self.remember_rehearsal(to, Rehearsed::Waits(detail(format_args!("{error}"))));
                }
            }
        }
    }

    /// Has etcd lower the version of its data. Written down first, so that it can be ended.
    pub(super) async fn enable_downgrade(
        &mut self,
        spec: &ClusterSpec,
        to: Version,
    ) -> Result<(), AgentError> {
        self.write_changes(|it| it.downgrade = Some(to.to_string()))?;
        CrashPoint::DowngradeWritten.pass();
        Ok(contact::enable_downgrade(&self.endpoint(spec), to).await?)
    }

    /// Has etcd end the downgrade.
    pub(super) async fn cancel_downgrade(&mut self, spec: &ClusterSpec) -> Result<(), AgentError> {
        contact::cancel_downgrade(&self.endpoint(spec)).await?;
        Ok(self.write_changes(|it| it.downgrade = None)?)
    }

    /// Records the version for the next start.
    pub(super) fn set_version(
        &mut self,
        spec: &ClusterSpec,
        to: Version,
    ) -> Result<(), AgentError> {
        // Somebody may have exchanged it, and no trial has asked it where none is made.
        store::check_program(&self.paths.store(), to)?;
        // What is noted of the change before stays, also where this operator ends before this one has.
        self.write_changes(|_| ())?;
        // Ends until now were those of the version before.
        starts::begin_anew(&self.paths);
        self.change_identity(&self.reached(spec).storage_dir, |it| it.change_to(to, None))?;
        CrashPoint::VersionWritten.pass();
        self.memory.rehearsal = None;
        Ok(())
    }

    /// Writes down that a version is given up, and why, before anything else is done about it.
    fn note_failure(&mut self, spec: &ClusterSpec, instance: Option<&Instance>) {
        let Some(failed) = instance.and_then(|it| given_up(spec, it)) else {
            return;
        };
        tracing::error!(version = %failed.to, "the version does not serve: {}", failed.why);
        // What serves again matters more than a note about it.
        let document = self.memory.document.clone();
        if let Err(error) = self.write_changes(|it| it.fail(&failed, document)) {
            self.log_once(&chain(&error));
        }
        CrashPoint::VersionFailed.pass();
    }

    /// Records the version before for the next start again, and why.
    pub(super) fn take_version_back(
        &mut self,
        spec: &ClusterSpec,
        instance: Option<&Instance>,
    ) -> Result<(), AgentError> {
        self.note_failure(spec, instance);
        self.change_identity(&self.reached(spec).storage_dir, IdentityFile::go_back)?;
        CrashPoint::VersionTakenBack.pass();
        starts::begin_anew(&self.paths);
        Ok(())
    }

    /// The version that serves is final, and has not failed.
    pub(super) async fn finish_version(
        &mut self,
        spec: &ClusterSpec,
        now: Option<Timestamp>,
    ) -> Result<(), AgentError> {
        let posted = self.board.lock().identity.clone();
        contact::begin_log_anew(&self.endpoint(spec), posted.as_ref()).await?;
        let noted = |it: &mut Changes, ended| it.finish(ended, now, false);
        match self.end_change(spec, IdentityFile::finish_version, noted)? {
            Some(ended) => {
                tracing::info!(from = %ended.from, to = %ended.to, "the version is final");
            }
            None => self.write_changes(|it| it.serves(posted.and_then(|it| it.version())))?,
        }
        Ok(())
    }

    /// The newer version stays: the one before cannot open the data any more.
    pub(super) fn stay_with_version(
        &mut self,
        spec: &ClusterSpec,
        instance: Option<&Instance>,
        now: Option<Timestamp>,
    ) -> Result<(), AgentError> {
        self.note_failure(spec, instance);
        let noted = |it: &mut Changes, ended| it.stay(ended, now);
        let ended = self.end_change(spec, IdentityFile::stay, noted)?;
        starts::begin_anew(&self.paths);
        if let Some(ended) = ended {
            tracing::error!(version = %ended.to, "no older etcd can open the data any more");
        }
        Ok(())
    }

    /// Writes down which version alone may open the data from now on. The record of changes comes first: after a crash in
    /// between nobody would write it there.
    fn end_change(
        &mut self,
        spec: &ClusterSpec,
        end: fn(&mut IdentityFile) -> Option<Ended>,
        note: impl FnOnce(&mut Changes, Ended),
    ) -> Result<Option<Ended>, AgentError> {
        let storage_dir = self.reached(spec).storage_dir;
        let mut ended = None;
        self.change_identity(&storage_dir, |it| {
            ended = end(&mut it.clone());
            false
        })?;
        let Some(ended) = ended else {
            return Ok(None);
        };
        self.write_changes(|it| it.note_before(|it| note(it, ended)))?;
        CrashPoint::VersionNoted.pass();
        self.change_identity(&storage_dir, |it| end(it).is_some())?;
        CrashPoint::VersionFinal.pass();
        Ok(Some(ended))
    }
}
