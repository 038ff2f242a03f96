//! What the thread that answers and the one that makes passes know of each other.
//!
//! A pass may wait: a minute for etcd's end, for a disk that does not answer as long as that lasts. Who
//! asks meanwhile gets the last report, with its age and what is being done.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::edit::InForce;
use super::kept::{Accepted, RefusedDocument};
use super::report::{HostLook, Report, UnderWay};
use crate::api::status::{document_refused, document_waits};
use crate::clock;
use crate::member::records::IdentityFile;
use crate::observed::DocumentSeen;

/// Shared by the two threads.
#[derive(Default)]
pub(super) struct Board(Mutex<Posted>);

/// What stands there.
#[derive(Default)]
pub(super) struct Posted {
    /// The document that is in force.
    pub(super) accepted: Option<Accepted>,
    /// Why the newest one is not.
    pub(super) refused: Option<RefusedDocument>,
    /// The report of the last pass.
    report: Option<Report>,
    /// Of the document that it tells of; none: it is an earlier agent's.
    generation: Option<i64>,
    /// When the look began that it tells of, in milliseconds since boot.
    seen: u64,
    /// Passes that have ended.
    passes: u64,
    /// Since when a pass is under way, in milliseconds since boot.
    under_way: Option<u64>,
    /// The step that is being taken.
    step: Option<String>,
    /// Who lives here, as the last pass saw it.
    pub(super) identity: Option<IdentityFile>,
    /// What the last start of etcd took.
    pub(super) start_took: Option<u64>,
}

impl Board {
    pub(super) fn lock(&self) -> MutexGuard<'_, Posted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest document, as the core has it.
    pub(super) fn document(&self) -> DocumentSeen {
        match &self.lock().refused {
            Some(it) => DocumentSeen::Refused {
                reason: it.reason,
                why: it.why(),
            },
            None => DocumentSeen::Accepted,
        }
    }

    /// A report that an agent before this one left in this boot. It is as old as it says.
    pub(super) fn inherit(&self, mut report: Report) {
        report.host.operator.pid = Some(std::process::id());
        let posted = &mut *self.lock();
        let age = report.status.confirmed_until.as_ref();
        let age = age.map_or(0, |it| (clock::now().0 - it.0.as_second()).max(0));
        let age = u64::try_from(age).unwrap_or(0) * 1000;
        posted.seen = clock::milliseconds_since_boot().saturating_sub(age);
        posted.report = Some(report);
    }

    /// A pass begins.
    pub(super) fn begin(&self) {
        self.lock().under_way = Some(clock::milliseconds_since_boot());
    }

    /// What the pass has seen.
    pub(super) fn post(&self, report: Report) {
        let posted = &mut *self.lock();
        posted.seen = posted.under_way.unwrap_or(posted.seen);
        posted.generation = Some(report.status.observed_generation);
        posted.report = Some(report);
    }

    /// What the pass does now.
    pub(super) fn doing(&self, step: &str) {
        self.lock().step = Some(step.to_owned());
    }

    /// The pass has ended.
    pub(super) fn end(&self) {
        let posted = &mut *self.lock();
        posted.under_way = None;
        posted.step = None;
        posted.passes += 1;
    }

    /// The step that is being taken.
    pub(super) fn step(&self) -> Option<String> {
        self.lock().step.clone()
    }

    /// For how long a pass has been under way, in seconds.
    pub(super) fn under_way(&self) -> Option<u64> {
        let now = clock::milliseconds_since_boot();
        Some(now.saturating_sub(self.lock().under_way?) / 1000)
    }

    /// The last report, and how old it is. `fresh`: its look began after it was asked for.
    pub(super) fn report(&self, fresh: bool) -> Option<Report> {
        let posted = self.lock();
        let now = clock::milliseconds_since_boot();
        let seconds = |since: u64| now.saturating_sub(since) / 1000;
        let mut report = posted.report.clone()?;
        // What was read since that look.
        if let Some(it) = &posted.refused {
            document_refused(&mut report.status, it.reason, &it.why(), clock::now());
        } else if posted.generation.is_some()
            && posted.accepted.as_ref().map(|it| it.generation) > posted.generation
        {
            let step = posted
                .step
                .as_deref()
                .unwrap_or("the observation that is under way");
            let why = format!("it was read and comes into force after this: {step}");
            document_waits(&mut report.status, &why, clock::now());
        }
        report.host.look = Some(HostLook {
            fresh,
            passes: posted.passes,
            age_seconds: seconds(posted.seen),
            under_way: posted.under_way.filter(|_| !fresh).map(|it| UnderWay {
                seconds: seconds(it),
                step: posted.step.clone(),
            }),
        });
        Some(report)
    }

    /// What an edit is compared with.
    pub(super) fn in_force(&self, paths: &crate::paths::Paths) -> InForce {
        let running = crate::member::records::Running::load(paths);
        let posted = self.lock();
        let database = posted
            .report
            .as_ref()
            .and_then(|it| it.status.database.as_ref());
        InForce {
            database: database.map(|it| it.size),
            start_took_milliseconds: posted.start_took,
            ..InForce::of(
                paths,
                posted.accepted.as_ref(),
                running.as_ref(),
                posted.identity.clone(),
            )
        }
    }
}
