//! Works on a cluster's snapshots, in a Pod of its own beside the member.
//!
//! It is the host's pipeline with the host's rules: it looks at etcd as a client, and does what
//! [`crate::plan::backup`] says is due. It needs no API server and no operator: while both are away, snapshots are
//! taken, verified, copied and pruned on time. The operator asks it over mutual TLS what it knows, and for a snapshot
//! now (`front`); and it serves snapshots to the Pod of a restore (`files`), which fetches one with [`served`]. Nobody else is
//! answered.
//!
//! ```text
//! the document, the identity: of the Pod's environment     whether the clock is trusted: the operator says so
//! records: beside the snapshots, on the claim
//! ```

mod files;
mod front;
pub mod report;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use crate::backup::local::Entry;
use crate::backup::place;
use crate::backup::served::{self, PORT};
use crate::backup::trust::Trust;
use crate::backup::work::{self, Asked, Member, Told, Work};
use crate::clock;
use crate::cluster::Timestamp;
use crate::error::chain;
use crate::etcd::client::{self, Look};
use crate::member::certificates;
use crate::member::pod::{PodMember, credentials_sum, lay_down_credentials, missing_credentials};
use crate::member::records::IdentityFile;
use crate::observed::{Backups, Clock, Proposals, Reading, Service, Writing};
use crate::paths::Paths;
use crate::plan::Upkeep;
use crate::plan::backup::due;
use crate::spec::ClusterSpec;
use crate::state;
use crate::tls::{Certificates, ClientFiles, TlsError};
use front::Board;
use report::{Ended, Report};

/// Between two looks, where nothing happens.
const LOOKS: Duration = Duration::from_secs(10);
/// After a step was begun, or while one that was asked for cannot begin.
const SOON: Duration = Duration::from_secs(1);
/// An operator that is there asks within so long.
const HEARS: Duration = Duration::from_secs(30);
/// A clock that moved by more than this against the time since boot was set, and is trusted no longer.
const STEP_SECONDS: i64 = 5;

/// What a worker is told with its Pod.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Config {
    /// The names under which the members are reached, whichever addresses their Pods have.
    pub hosts: Vec<String>,
    /// Their port for clients.
    pub port: u16,
    /// A name that their certificates carry.
    pub server_name: String,
    /// Where the records about snapshots lie.
    pub lib: PathBuf,
}

impl Config {
    /// Where the members are reached by their names.
    pub fn urls(&self) -> impl Iterator<Item = String> {
        let url = |it| format!("https://{}:{}", crate::render::url_host(it), self.port);
        self.hosts.iter().map(move |it| url(it))
    }

    /// What a client shows to it: the certificate in this directory, whatever name etcd is reached by.
    pub fn files(&self, tls: &Path) -> ClientFiles {
        ClientFiles {
            server_name: Some(self.server_name.clone()),
            ..served::files(tls)
        }
    }
}

/// Why a worker ended.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// Its port, or a signal.
    #[error("failed to {what}")]
    System {
        /// Which step.
        what: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
}

/// Everything that a worker works with.
pub struct Worker {
    paths: Paths,
    spec: ClusterSpec,
    identity: IdentityFile,
    config: Config,
    files: ClientFiles,
    /// Where etcd answered last.
    url: String,
    certificates: Certificates,
    work: Work,
    board: Arc<Board>,
    /// The request whose snapshot is being taken.
    taking: Option<String>,
    /// How that went, until its snapshot was tried as the document asks.
    ended: Option<Ended>,
    /// Since boot.
    began: Duration,
    /// The last attempt that failed, and its number.
    failure: Option<(u64, String)>,
    /// It was tried, or is being tried.
    tried: bool,
    /// The access keys of the last look.
    keys: String,
    /// What commands in this Pod were told of the clock.
    noted: Option<i64>,
}

impl Worker {
    /// `tls`: the member's certificate; `signer`: the key that signs snapshots.
    pub fn new(
        paths: &Paths,
        spec: ClusterSpec,
        pod: PodMember,
        config: Config,
        (tls, signer): (&Path, &Path),
    ) -> Self {
        Worker {
            paths: paths.clone(),
            spec,
            identity: pod.identity,
            files: config.files(tls),
            url: String::new(),
            config,
            certificates: Certificates::at(signer),
            work: Work::default(),
            board: Arc::default(),
            taking: None,
            ended: None,
            began: clock::since_boot(),
            failure: None,
            tried: false,
            keys: String::new(),
            noted: None,
        }
    }

    /// Works until SIGTERM. What was begun is cut then; the next worker begins it anew.
    ///
    /// # Errors
    /// The port cannot be opened.
    pub async fn run(mut self) -> Result<(), WorkerError> {
        let failed = |what| move |source| WorkerError::System { what, source };
        let mut terminate =
            signal(SignalKind::terminate()).map_err(failed("listen for signals"))?;
        let store = place::primary(&self.spec);
        front::serve(PORT, self.files.clone(), self.board.clone(), store)
            .await
            .map_err(failed("open the port for the operator"))?;
        tracing::info!(cluster = %self.spec.name, port = PORT, "backup worker started");
        let asked = self.board.asked();
        loop {
            let wait = self.pass().await;
            let bell: Arc<Notify> = self.work.bell();
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = bell.notified() => {}
                () = asked.notified() => {}
                _ = terminate.recv() => return Ok(()),
            }
        }
    }

    fn with_member<T>(&mut self, act: impl FnOnce(&mut Work, &Member<'_>) -> T) -> T {
        let member = Member {
            paths: &self.paths,
            spec: &self.spec,
            identity: Some(&self.identity),
            url: &self.url,
            files: self.files.clone(),
            certificates: self.certificates.clone(),
        };
        act(&mut self.work, &member)
    }

    /// Looks, takes one step, and tells what is known.
    async fn pass(&mut self) -> Duration {
        self.collect();
        let keys = credentials_sum();
        if std::mem::replace(&mut self.keys, keys.clone()) != keys {
            self.work.copy_soon(); // what was refused may be taken now
        }
        let now = clock::now();
        self.note_clock();
        let clock = trust(self.board.offset(), now, clock::since_boot());
        let trusted = clock.trusted(now);
        let mut look = self.look().await;
        let mut backups = self.with_member(|work, member| work.look(member, clock, now, None));
        let tries = self.end_request(&backups, trusted);
        backups.busy |= tries;
        backups.copying |= self.paths.tls().is_symlink();
        backups.asked = self.taking.is_none() && self.board.next().is_some();
        // After a restore etcd is another cluster, and the next worker's.
        let own = look
            .details
            .is_some_and(|it| self.identity.clusters().contains(&it.cluster.to_string()));
        let service = Service {
            read: if own && !self.rests() {
                look.read.clone()
            } else {
                Reading::NotTried
            },
            write: Writing::Acknowledged, // proven right before a snapshot that is due
            alarms: look.alarms,
            proposals: Proposals::Unknown,
            details: look.details,
        };
        let step = due(&self.spec, &backups, &service, trusted);
        let jobs = |it: &Work| (it.is_busy(), it.is_copying());
        let before = jobs(&self.work);
        match step {
            Some(Upkeep::TakeRequested) => {
                self.taking = self.board.next();
                let asked = self.taking.clone();
                self.with_member(|work, member| work.take(member, trusted, asked));
            }
            Some(Upkeep::TakeSnapshot) => {
                let written = match look.client.as_mut() {
                    Some(client) => client::probe_write(client).await,
                    None => Writing::NotTried,
                };
                if written == Writing::Acknowledged {
                    self.with_member(|work, member| work.take(member, trusted, None));
                }
            }
            Some(Upkeep::SkipSnapshot) => Self::note(work::skip(&self.paths, now)),
            Some(Upkeep::CopySnapshots) => {
                // Read anew for each run (rule B15).
                let laid = lay_down_credentials(&mut self.spec);
                Self::note(laid);
                self.with_member(|work, member| work.copy(member, trusted));
            }
            Some(Upkeep::CheckSnapshots) => drop(self.check(trusted)),
            _ => {}
        }
        self.tell(clock, now);
        // One that the system had no room for is begun with a later look.
        if !self.work.is_busy() && self.ended.is_none() {
            self.taking = None;
        }
        if tries || jobs(&self.work) != before {
            SOON
        } else {
            LOOKS
        }
    }

    /// Ends the request whose snapshot was taken, once it was tried where the document asks for that. Whether it begins
    /// to be tried now.
    fn end_request(&mut self, backups: &Backups, now: Option<Timestamp>) -> bool {
        if self.work.is_busy() {
            return false;
        }
        let Some(ended) = self.ended.take() else {
            return false;
        };
        let asked = self.spec.backup.as_ref();
        let tries = asked.is_some_and(|it| backups.check_due(it, now)) && ended.made.is_some();
        if tries && !self.tried && self.check(now) {
            (self.tried, self.ended) = (true, Some(ended));
            return true;
        }
        self.tried = false;
        self.taking = None;
        let entries = self.with_member(Work::entries).unwrap_or_default();
        self.board.end(ended.as_it_lies(&entries));
        false
    }

    /// Begins to check what is kept. A trial waits for copies, and they for it: they would take its keys for the
    /// cluster's own.
    fn check(&mut self, now: Option<Timestamp>) -> bool {
        let tries = self
            .spec
            .backup
            .as_ref()
            .is_some_and(|it| it.verify_level >= 4);
        if tries && self.work.is_copying() {
            return false;
        }
        if tries && let Err(error) = self.make_keys() {
            tracing::warn!("{}", chain(&error));
            return false;
        }
        self.with_member(|work, member| work.check(member, now));
        true
    }

    /// For commands in this Pod: they trust the clock as long as the worker does.
    fn note_clock(&mut self) {
        let offset = self.board.offset();
        // Two reckonings of the same clock differ by a second.
        let same = |(one, other): (i64, i64)| one.abs_diff(other) <= 1;
        if self.noted != offset && !self.noted.zip(offset).is_some_and(same) {
            Self::note(state::save_volatile(&clock_record(&self.paths), &offset));
            self.noted = offset;
        }
    }

    /// Nothing is begun: the operator says so; or it has said nothing yet, neither that nor what time it is, and is given
    /// a moment.
    fn rests(&self) -> bool {
        let since = clock::since_boot().saturating_sub(self.began);
        self.board.rests() || !self.board.is_heard() && since < HEARS
    }

    /// Asks etcd: first at the address that the operator told last, for which nobody need answer names; then where it answered
    /// last; then by the members' names. The leader has enough to do: who follows it is taken where one answers.
    async fn look(&mut self) -> Look {
        let told = self.board.address();
        let told = told.map(|it| format!("https://{}", SocketAddr::new(it, self.config.port)));
        let last = std::mem::take(&mut self.url);
        let mut asked = Vec::new();
        let mut leads = None;
        for url in told.into_iter().chain([last]).chain(self.config.urls()) {
            if url.is_empty() || asked.contains(&url) {
                continue;
            }
            let look = client::look(&url, &self.files).await;
            asked.push(url.clone());
            if look.read != Reading::Answered {
                continue;
            }
            let follows = look.details.is_some_and(|it| !it.leads());
            if follows || self.config.hosts.len() < 2 {
                self.url = url;
                return look;
            }
            leads = leads.or(Some((url, look)));
        }
        let Some((url, look)) = leads else {
            return Look::failed(Reading::TimedOut);
        };
        self.url = url;
        look
    }

    fn note(done: Result<(), state::StateError>) {
        if let Err(error) = done {
            tracing::warn!("{}", chain(&error));
        }
    }

    fn collect(&mut self) {
        for told in self.work.collect() {
            match told {
                Told::Failure(text) => {
                    tracing::warn!("{text}");
                    let number = self.failure.as_ref().map_or(0, |it| it.0);
                    self.failure = Some((number + 1, text));
                }
                Told::Rehearsed(..) | Told::Counted(..) => {} // where the data is
                Told::Asked(asked) => {
                    let Asked { id, result } = *asked;
                    self.work.copy_soon();
                    self.ended = Some(Ended::of(id, result));
                }
                Told::Prepared(_) => {} // of a restore on a host
            }
        }
        if !self.work.is_busy() {
            // Keys of a trial are there only for as long.
            let _ = std::fs::remove_file(self.paths.tls());
        }
    }

    /// Keys for the etcd of a trial restore: of nobody else, and in memory, whatever the records lie on.
    fn make_keys(&self) -> Result<(), TlsError> {
        let keys = self.paths.run.join("tls");
        state::create_private_dir(&keys)?;
        let _ = std::fs::remove_file(self.paths.tls()); // of a worker that was cut
        std::os::unix::fs::symlink(&keys, self.paths.tls()).map_err(|source| TlsError::Read {
            path: self.paths.tls(),
            source,
        })?;
        certificates::mint_for_a_trial(&Certificates::at(keys), &self.spec)
    }

    /// What is known now, for whoever asks.
    fn tell(&mut self, clock: Clock, now: Timestamp) {
        let backups = self.with_member(|work, member| work.look(member, clock, now, None));
        let entries = self.with_member(Work::entries);
        let trust = Trust::of(&self.certificates, &self.spec, None);
        let clusters = self.identity.clusters();
        let mut report = Report::of(&backups);
        report.without_keys = missing_credentials();
        report.failure.clone_from(&self.failure);
        let snapshots = entries.ok().map(|entries| {
            let counting = trust.counting(&entries);
            let newest = place::newest_verified(&counting, &clusters);
            report.restorable = newest.map(|it| it.name.to_string());
            let counts = |it: &Entry| counting.iter().any(|other| other.name == it.name);
            let all = entries.iter();
            all.map(|it| (it.name.clone(), it.level(), counts(it)))
                .collect()
        });
        self.board.tell(report, snapshots);
    }
}

/// What commands in this Pod read of the clock. One of a former boot does not fit the time since this one, and is not
/// trusted.
fn clock_record(paths: &Paths) -> PathBuf {
    paths.run.join("clock.json")
}

/// Whether the worker of this Pod trusts the clock.
pub fn clock_by_worker(paths: &Paths, now: Timestamp) -> Clock {
    let offset = state::load_volatile::<Option<i64>>(&clock_record(paths));
    trust(offset.flatten(), now, clock::since_boot())
}

/// Whether the clock shows what it showed, by the time since boot, when the operator last said that it is trusted.
/// `offset`: from the time since boot to the wall clock then.
fn trust(offset: Option<i64>, now: Timestamp, since_boot: Duration) -> Clock {
    let own = now.0.saturating_sub_unsigned(since_boot.as_secs());
    match offset {
        Some(told) if own.abs_diff(told) <= STEP_SECONDS.unsigned_abs() => Clock::Trusted,
        _ => Clock::Unsynchronised,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_stays_trusted_until_somebody_sets_it() {
        let boot = Duration::from_secs(1000);
        let told = Some(2_000_000_000 - 1000);
        let week = Duration::from_secs(1000 + 604_800);
        let at = |seconds: i64| Timestamp(2_000_000_000 + seconds);
        assert_eq!(trust(told, at(0), boot), Clock::Trusted);
        assert_eq!(trust(told, at(604_800), week), Clock::Trusted);
        assert_eq!(trust(told, at(604_790), week), Clock::Unsynchronised);
        assert_eq!(
            trust(told, Timestamp(i64::MIN), week),
            Clock::Unsynchronised
        );
        assert_eq!(trust(None, at(0), boot), Clock::Unsynchronised);
    }
}
