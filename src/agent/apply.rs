//! Acts, one step of the plan after the other, and stops at the first failure.

use std::fs;

use super::driver::Driver as _;
use super::{Agent, AgentError};
use crate::clock;
use crate::cluster::ADMIN;
use crate::etcd::{client, store};
use crate::member::certificates::client_due;
use crate::member::place::{self, HostPlace};
use crate::member::records::{self, IdentityFile, Launch, SeenFile};
use crate::member::{facts, starts};
use crate::observed::{Clock, Observed, Process, Regain, Writing};
use crate::plan::permit::{Declared, Grounds, Permit, to_interrupt};
use crate::plan::space::REGAINED_PERCENT;
use crate::plan::{Plan, Upkeep};
use crate::spec::ClusterSpec;
use crate::state::{self, StateError};
use crate::tls::{Leaves, Validity};
use crate::version::Version;

impl Agent {
    /// Carries out a plan.
    pub(super) async fn act(
        &mut self,
        spec: &ClusterSpec,
        observed: &Observed,
        plan: &Plan,
    ) -> Result<(), AgentError> {
        let place = place::resolve(&self.paths, spec);
        if !spec.paused {
            self.hibernate(spec)?;
        }
        for step in &plan.upkeep {
            self.step(spec, observed, &place, step).await?;
        }
        // Membership changes need more than one host, which the document does not accept yet.
        Ok(())
    }

    async fn step(
        &mut self,
        spec: &ClusterSpec,
        observed: &Observed,
        place: &HostPlace,
        step: &Upkeep,
    ) -> Result<(), AgentError> {
        if !matches!(step, Upkeep::ProbeWrite | Upkeep::SkipSnapshot) {
            self.log_once(&step.describe());
        }
        match step {
            Upkeep::AdoptIdentity => self.adopt_identity(place),
            Upkeep::LatchIdentity { version, quota } => {
                self.latch_identity(spec, place, *version, *quota)
            }
            Upkeep::MintCertificates(_) => self.mint_certificates(spec, observed, place),
            Upkeep::MintClients => self.mint_clients(spec, observed, place),
            Upkeep::Start(_) => {
                self.prepare(spec, place)?;
                self.driver.start().await
            }
            Upkeep::Stop(permit) => {
                self.permitted(observed, *permit)?;
                self.driver.stop().await
            }
            Upkeep::Restart(permit) => {
                self.permitted(observed, *permit)?;
                // What cannot be written down is found before etcd is stopped for it.
                self.prepare(spec, place)?;
                self.driver.stop().await?;
                self.driver.start().await
            }
            Upkeep::ProbeWrite => self.probe_write(observed).await,
            Upkeep::RecordServed => self.record_served(observed, place),
            Upkeep::RegainSpace(permit) => {
                self.permitted(observed, *permit)?;
                self.regain_space(observed).await
            }
            Upkeep::SkipSnapshot => self.skip_snapshot(observed.now),
            Upkeep::TakeSnapshot => self.take_snapshot(spec, place, trusted(observed)),
            Upkeep::CopySnapshots => {
                self.copy_snapshots(spec, place, trusted(observed));
                Ok(())
            }
            Upkeep::CheckSnapshots => {
                self.check_snapshots(spec, place, trusted(observed));
                Ok(())
            }
            Upkeep::RequestRestore(asked) => {
                self.request_restore(spec, place, *asked, trusted(observed))
            }
            Upkeep::PrepareRestore => self.prepare_restore(spec, place),
            Upkeep::SwapRestored(permit) => {
                self.swap_restored(spec, observed, place, *permit).await
            }
            Upkeep::FinishRestore => self.finish_restore(place),
            Upkeep::UndoRestore(permit) => self.undo_restore(spec, observed, place, *permit).await,
        }
    }

    /// The second half of the pair: the permit is asked for again right before the act.
    pub(super) fn permitted(
        &mut self,
        observed: &Observed,
        permit: Permit,
    ) -> Result<(), AgentError> {
        let instance = observed.instances.first();
        let member = instance
            .and_then(|it| it.service.details)
            .map(|it| it.member);
        let declared = match permit.grounds() {
            Grounds::QuorumSurvives => None,
            Grounds::DeclaredOutage(declared) => Some(declared),
        };
        let alone = instance.is_some_and(|it| it.alone);
        if declared != Some(Declared::SizeZero) || member.is_some() {
            to_interrupt(&observed.membership, member, alone, declared)
                .map_err(AgentError::NoPermit)?;
        }
        // What was planned for one process is not done to another.
        match (instance.map(|it| it.process), self.driver.look()) {
            (Some(Process::Running { pid, .. }), Process::Running { pid: now, .. })
                if pid == now =>
            {
                Ok(())
            }
            _ => Err(AgentError::Etcd {
                what: "interrupt etcd",
                why: "its process changed meanwhile".to_owned(),
            }),
        }
    }

    fn adopt_identity(&self, place: &HostPlace) -> Result<(), AgentError> {
        let marker: Option<IdentityFile> = state::load(&records::marker_path(&place.storage_dir))?;
        if let Some(marker) = marker {
            state::create_private_dir(&self.paths.member())?;
            state::save(&self.paths.identity(), &marker)?;
        }
        Ok(())
    }

    pub(super) fn identity_at_birth(
        &self,
        spec: &ClusterSpec,
        version: Version,
        quota: u64,
    ) -> Result<IdentityFile, AgentError> {
        Ok(IdentityFile {
            cluster: spec.name.to_string(),
            member: spec
                .members
                .first()
                .map(ToString::to_string)
                .unwrap_or_default(),
            token: new_token(spec)?,
            version: version.to_string(),
            quota,
            machine_id: facts::machine_id(&self.paths),
            cluster_id: None,
            member_id: None,
            former_ids: Vec::new(),
            jumps: Vec::new(),
        })
    }

    fn latch_identity(
        &self,
        spec: &ClusterSpec,
        place: &HostPlace,
        version: Version,
        quota: u64,
    ) -> Result<(), AgentError> {
        let file = self.identity_at_birth(spec, version, quota)?;
        if !place.storage_named {
            state::create_private_dir(&place.storage_dir)?;
        }
        Ok(records::save_identity(
            &self.paths,
            &place.storage_dir,
            &file,
        )?)
    }

    pub(super) fn mint_certificates(
        &self,
        spec: &ClusterSpec,
        observed: &Observed,
        place: &HostPlace,
    ) -> Result<(), AgentError> {
        let validity = validity(spec, observed, place);
        self.certificates
            .ensure_authorities(&spec.name, validity.not_after)?;
        self.certificates.mint(&Leaves {
            names: &place.names,
            cluster: &spec.name,
            validity,
        })?;
        Ok(())
    }

    pub(super) fn mint_clients(
        &self,
        spec: &ClusterSpec,
        observed: &Observed,
        place: &HostPlace,
    ) -> Result<(), AgentError> {
        let validity = validity(spec, observed, place);
        self.certificates
            .ensure_authorities(&spec.name, validity.not_after)?;
        for name in spec
            .clients
            .iter()
            .map(heapless::String::as_str)
            .chain([ADMIN])
        {
            if client_due(&self.certificates, name, observed.now, observed.clock) {
                self.certificates.issue(name, validity)?;
            }
        }
        Ok(())
    }

    /// Writes what the guard needs for a start.
    pub(super) fn prepare(&self, spec: &ClusterSpec, place: &HostPlace) -> Result<(), AgentError> {
        let (identity, _) = records::load_identities(&self.paths, &place.storage_dir)?;
        let unborn = || AgentError::Etcd {
            what: "start etcd",
            why: "this host has no identity yet".to_owned(),
        };
        let identity = identity.ok_or_else(unborn)?;
        let version: Version = identity.version.parse().map_err(|_| unborn())?;
        let conf = place
            .etcd_conf(&self.paths, spec, &identity)
            .ok_or_else(unborn)?;
        if fs::read_to_string(self.paths.etcd_conf()).ok().as_deref() != Some(conf.as_str()) {
            state::write_file(&self.paths.etcd_conf(), conf.as_bytes())?;
        }
        let launch = place.launch(spec, version);
        match state::load::<Launch>(&self.paths.launch()) {
            Ok(Some(same)) if same == launch => {}
            // All of it comes from the document: a damaged record is written anew.
            Ok(_) | Err(StateError::Damaged(_)) => state::save(&self.paths.launch(), &launch)?,
            Err(other) => return Err(other.into()),
        }
        let marker = self.paths.hibernates();
        match fs::remove_file(&marker) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(AgentError::System {
                    what: "remove",
                    path: marker,
                    source,
                })
            }
            _ => Ok(()),
        }
    }

    /// Written down before etcd is stopped, and while it is not running: a service manager that starts
    /// it at the next boot, and a guard that waits, ask nobody else.
    fn hibernate(&self, spec: &ClusterSpec) -> Result<(), AgentError> {
        let marker = self.paths.hibernates();
        if spec.size > 0 || marker.exists() || !self.paths.launch().exists() {
            return Ok(());
        }
        Ok(state::write_file(&marker, b"size: 0\n")?)
    }

    async fn probe_write(&mut self, observed: &Observed) -> Result<(), AgentError> {
        let Some(client) = self.memory.client.as_mut() else {
            return Ok(());
        };
        let written = client::probe_write(client).await;
        if written == Writing::Acknowledged {
            if let Some(Process::Running { pid, .. }) =
                observed.instances.first().map(|it| it.process)
            {
                self.memory.write_proven = Some(pid);
            }
            starts::clear(&self.paths);
        }
        self.memory.last_write = Some(written);
        Ok(())
    }

    fn record_served(&self, observed: &Observed, place: &HostPlace) -> Result<(), AgentError> {
        let details = observed.instances.first().and_then(|it| it.service.details);
        let (identity, _) = records::load_identities(&self.paths, &place.storage_dir)?;
        if let (Some(details), Some(identity)) = (details, identity) {
            let file = IdentityFile {
                cluster_id: Some(details.cluster.to_string()),
                member_id: Some(details.member.to_string()),
                ..identity
            };
            records::save_identity(&self.paths, &place.storage_dir, &file)?;
        }
        Ok(())
    }

    /// Rule D28: compact, defragment, look, and only then disarm.
    async fn regain_space(&mut self, observed: &Observed) -> Result<(), AgentError> {
        let failed = |what| {
            move |error: etcd_client::Error| AgentError::Etcd {
                what,
                why: client::plain(&error),
            }
        };
        let instance = observed.instances.first();
        let details = instance.and_then(|it| it.service.details);
        let quota = instance
            .and_then(|it| it.facts.identity.as_ref())
            .map(|it| it.quota);
        let (Some(client), Some(details), Some(quota)) =
            (self.memory.client.as_mut(), details, quota)
        else {
            return Ok(());
        };
        // Counted before it is made: one that fails half-way is not repeated with every pass.
        let attempts = self.memory.regain.map_or(0, |(it, _)| it.attempts);
        let mut attempt = Regain {
            revision: details.revision,
            in_use: details.db_in_use,
            attempts: attempts.saturating_add(1),
            seconds: 0,
        };
        self.memory.regain = Some((attempt, clock::since_boot().as_secs()));
        let (size, in_use) = client::compact_and_defragment(client)
            .await
            .map_err(failed("compact and defragment"))?;
        attempt.in_use = in_use;
        self.memory.regain = Some((attempt, clock::since_boot().as_secs()));
        tracing::info!(size, in_use, quota, "compacted and defragmented");
        if size > quota / 100 * REGAINED_PERCENT {
            return Err(AgentError::Etcd {
                what: "regain space",
                why: format!(
                    "{} MiB of the quota's {} MiB are live data: delete keys, then compact",
                    in_use >> 20,
                    quota >> 20
                ),
            });
        }
        client::disarm_no_space(client, details.member)
            .await
            .map_err(failed("disarm the NOSPACE alarm"))?;
        self.memory.regain = None;
        // A write must be proven again.
        self.memory.write_proven = None;
        self.memory.last_write = None;
        Ok(())
    }

    /// Puts the guard beside etcd before the first start needs it.
    pub(super) fn place_guard(&self) -> Result<(), AgentError> {
        store::place_guard(&self.paths.store())?;
        Ok(())
    }

    /// Logs a line unless it was among the last ones (rule F8: repeats wear the card that holds the
    /// log). A changed condition lets everything be said again.
    pub(super) fn log_once(&mut self, text: &str) {
        if self.memory.told.iter().any(|it| it == text) {
            return;
        }
        tracing::info!("{text}");
        self.memory.told.push_back(text.to_owned());
        if self.memory.told.len() > TOLD_MAX {
            self.memory.told.pop_front();
        }
    }

    /// Writes down how far the log reaches, when it does so further than before.
    pub(super) fn remember_seen(&mut self, observed: &Observed) {
        let details = observed.instances.first().and_then(|it| it.service.details);
        let Some(details) = details.filter(|it| Some(it.raft_index) != self.memory.seen) else {
            return;
        };
        let file = SeenFile {
            cluster_id: details.cluster.to_string(),
            raft_index: details.raft_index,
            revision: Some(details.revision),
            boot_id: clock::boot_id(),
        };
        if state::save_volatile(&self.paths.seen(), &file).is_ok() {
            self.memory.seen = Some(details.raft_index);
        }
    }
}

/// A word that no other cluster of this name has: etcd derives the cluster's id from it.
pub(super) fn new_token(spec: &ClusterSpec) -> Result<String, AgentError> {
    let mut random = [0_u8; 8];
    ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut random).map_err(
        |_| AgentError::Etcd {
            what: "make a cluster token",
            why: "the kernel gave no random bytes".to_owned(),
        },
    )?;
    Ok(format!("{}-{}", spec.name, state::hex(&random)))
}

/// The time, where it is trusted.
fn trusted(observed: &Observed) -> Option<crate::cluster::Timestamp> {
    (observed.clock == Clock::Trusted).then_some(observed.now)
}

/// Lines that are not repeated.
const TOLD_MAX: usize = 8;

/// How long new leaves live: by a trusted clock, or whatever the clock says.
pub(super) fn validity(spec: &ClusterSpec, observed: &Observed, place: &HostPlace) -> Validity {
    match observed.clock {
        Clock::Trusted => Validity::trusted(observed.now, spec.leaf_seconds),
        Clock::BehindKnown { newest } => Validity::provisional(newest, spec.leaf_seconds),
        Clock::Unsynchronised => {
            let data = records::data_dir(&place.storage_dir);
            let newest = clock::newest_known(&data, Some(observed.now));
            Validity::provisional(newest, spec.leaf_seconds)
        }
    }
}
