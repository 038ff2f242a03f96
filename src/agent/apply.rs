//! Executes the plan, one step after the other.

use std::fs;
use std::path::Path;

use super::driver::Driver as _;
use super::{Agent, AgentError};
use crate::clock;
use crate::cluster::{ClusterId, MemberId, Timestamp};
use crate::error::chain;
use crate::etcd::store;
use crate::member::certificates;
use crate::member::change::{self, initial_cluster};
use crate::member::contact::{self, CallError};
use crate::member::place::HostPlace;
use crate::member::records::{self, IdentityFile, Launch, Running, SeenFile, Served};
use crate::member::{facts, starts};
use crate::observed::{Instance, Membership, Observed};
use crate::plan::permit::Permit;
use crate::plan::{Act, Hold, Interruption, Plan, Task, Upkeep, killed_after};
use crate::runtime::{Failures, Runtime as _};
use crate::spec::ClusterSpec;
use crate::start::{Start, Writable};
use crate::state::{self, StateError};
use crate::version::Version;

impl Agent {
    /// Executes a plan. A failed step prevents only the steps that depend on it.
    pub(super) async fn act(
        &mut self,
        spec: &ClusterSpec,
        observed: &Observed,
        plan: Plan,
    ) -> Result<(), AgentError> {
        let place = self.place(spec);
        let mut failures = Failures::default();
        let paused = plan.hold().is_some_and(Hold::is_pause);
        let marked = if paused { Ok(()) } else { self.hibernate(spec) };
        let writable = observed
            .instances
            .iter()
            .any(|it| it.writable == Writable::Yes);
        let accepted = if self.memory.accepts_machine && !paused && writable {
            self.accept_machine(spec)
        } else {
            Ok(())
        };
        for task in &plan.upkeep {
            if !failures.lets(&task.step) {
                continue;
            }
            self.board.doing(&task.describe_of(observed));
            let taken = self.step(spec, observed, &place, task).await;
            failures.note(&task.step, taken);
        }
        let mut interrupted = Ok(());
        if let Some(permit) = plan.interruption {
            let act = permit.step().act;
            let unmarked = marked.is_err() && act == Act::Stop;
            if !unmarked && failures.let_interrupt(act) {
                self.board.doing(&permit.describe());
                // On the heap: it is large, seldom there, and each caller's frame would hold it.
                interrupted = Box::pin(self.interrupt(spec, observed, &place, permit)).await;
            }
        }
        let mut changed = Ok(());
        if let Ok(Some(permit)) = plan.change {
            self.board.doing(&permit.step().describe_of(observed));
            let own = std::iter::once(self.endpoint(spec));
            changed = Box::pin(change::make(own, permit)).await;
        }
        let mut failed = failures.into_errors();
        failed.extend(changed.err().map(AgentError::from));
        failed.extend(interrupted.err());
        failed.extend(marked.err());
        failed.extend(accepted.err());
        match failed.len() {
            0 | 1 => failed.pop().map_or(Ok(()), Err),
            _ => Err(AgentError::Several(failed)),
        }
    }

    async fn step(
        &mut self,
        spec: &ClusterSpec,
        observed: &Observed,
        place: &HostPlace,
        Task { member, step }: &Task,
    ) -> Result<(), AgentError> {
        let instance = observed.instance(member);
        if !matches!(step, Upkeep::ProbeWrite | Upkeep::SkipSnapshot) {
            self.log_once(&step.describe(observed.membership.known()));
        }
        let now = observed.clock.trusted(observed.now);
        match step {
            Upkeep::AdoptIdentity => self.adopt_identity(place),
            Upkeep::LatchIdentity {
                version,
                quota,
                joins,
            } => self.latch_identity((spec, now), place, *version, *quota, *joins),
            Upkeep::SetDataAside => self.set_data_aside(place).await,
            Upkeep::MintCertificates(_) => self.mint_certificates(spec, observed, place),
            Upkeep::MintClients => self.mint_clients(spec, observed, place),
            Upkeep::Start(start) => {
                let joins = (*start == Start::Join).then_some(&observed.membership);
                self.prepare(spec, place, joins)?;
                self.driver.start().await
            }
            Upkeep::StartAsBefore => {
                self.prepare_as_before()?;
                self.driver.start().await
            }
            Upkeep::RaiseQuota(quota) => self.raise_quota(spec, *quota),
            Upkeep::RehearseVersion(to) => {
                self.rehearse(spec, now, *to, instance);
                Ok(())
            }
            Upkeep::EnableDowngrade(to) => self.enable_downgrade(spec, *to).await,
            Upkeep::CancelDowngrade => self.cancel_downgrade(spec).await,
            Upkeep::SetVersion(to) => self.set_version(spec, *to),
            Upkeep::TakeVersionBack => self.take_version_back(spec, instance),
            Upkeep::FinishVersion => self.finish_version(spec, now).await,
            Upkeep::StayWithVersion => self.stay_with_version(spec, instance, now),
            Upkeep::ProbeWrite => {
                self.probe_write(instance).await;
                Ok(())
            }
            Upkeep::RecordServed => {
                let ids = instance.and_then(|it| it.ids(&observed.membership));
                self.record_served(spec, ids)
            }
            Upkeep::GiveUpLeadership { to } => {
                Ok(contact::give_up_leadership(&self.endpoint(spec), *to).await?)
            }
            Upkeep::AcceptWrites => match instance {
                Some(instance) => Ok(self.memory.contact.accept_writes(instance).await?),
                None => Ok(()),
            },
            Upkeep::SkipSnapshot => self.skip_snapshot(observed.now),
            Upkeep::TakeSnapshot => {
                self.take_snapshot(spec, now);
                Ok(())
            }
            // A command takes it by itself; no host has a claim.
            Upkeep::TakeRequested | Upkeep::GiveUpClaim => Ok(()),
            Upkeep::CopySnapshots => {
                self.copy_snapshots(spec, now);
                Ok(())
            }
            Upkeep::CheckSnapshots => {
                self.check_snapshots(spec, now);
                Ok(())
            }
            Upkeep::RequestRestore(asked) => self.request_restore(spec, place, *asked),
            Upkeep::PrepareRestore => self.prepare_restore(spec, place, now),
            Upkeep::FinishRestore => self.finish_restore(spec, place).await,
        }
    }

    /// Interrupts a member, if what is read of it right before still permits it.
    async fn interrupt(
        &mut self,
        spec: &ClusterSpec,
        observed: &Observed,
        place: &HostPlace,
        permit: Permit<Interruption>,
    ) -> Result<(), AgentError> {
        self.log_once(&permit.describe());
        match permit.step().act {
            Act::SwapRestored => self.swap_restored(spec, observed, place, permit).await,
            Act::UndoRestore => self.undo_restore(spec, observed, place, permit).await,
            Act::Stop => {
                self.permitted(spec, permit).await?;
                self.driver.stop(None).await
            }
            Act::Restart => {
                let step = self.permitted(spec, permit).await?;
                let instance = observed.instance(&step.member);
                // Write the records before etcd is stopped, so that a failed write does not stop it.
                self.prepare(spec, place, None)?;
                let killed_after = instance.and_then(|it| killed_after(spec, it));
                self.driver.stop(killed_after).await?;
                self.driver.start().await
            }
            Act::RegainSpace => {
                let step = self.permitted(spec, permit).await?;
                match observed.instance(&step.member) {
                    Some(instance) => Ok(self.memory.contact.regain_space(instance).await?),
                    None => Ok(()),
                }
            }
        }
    }

    /// Exchanges a permit for its step, with the member read again.
    pub(super) async fn permitted(
        &mut self,
        spec: &ClusterSpec,
        permit: Permit<Interruption>,
    ) -> Result<Interruption, AgentError> {
        let again = self.look_again(spec, &permit.step().member).await;
        permit.exchange(&again).map_err(AgentError::NoPermit)
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
        let machine_id = facts::machine_id(&self.paths);
        let token = records::new_token(&spec.name);
        let token = token.ok_or_else(|| failed("make a cluster token", NO_RANDOM_BYTES))?;
        Ok(IdentityFile::at_birth(
            spec, token, version, quota, machine_id,
        ))
    }

    fn latch_identity(
        &self,
        (spec, now): (&ClusterSpec, Option<Timestamp>),
        place: &HostPlace,
        version: Version,
        quota: u64,
        joins: bool,
    ) -> Result<(), AgentError> {
        let (identity, marker) = records::load_identities(&self.paths, &place.storage_dir)?;
        let mut file = match identity.or(marker) {
            Some(known) => known.with(version, quota),
            None => self.identity_at_birth(spec, version, quota)?.born_at(now),
        };
        file.member.joined |= joins;
        if !place.storage_named {
            state::create_private_dir(&place.storage_dir)?;
        }
        Ok(records::save_identity(
            &self.paths,
            &place.storage_dir,
            &file,
        )?)
    }

    /// Renames the data of a member that the cluster has removed, and forgets its id; after a crash between the two, the rest.
    async fn set_data_aside(&self, place: &HostPlace) -> Result<(), AgentError> {
        let _lock = self.hold_the_member().await?; // so no etcd starts on it meanwhile
        records::set_aside(&place.storage_dir)?;
        let _ = fs::remove_file(self.paths.seen()); // of the log that lies aside
        self.change_identity(&place.storage_dir, |it| {
            it.joins_again();
            true
        })
    }

    pub(super) fn mint_certificates(
        &self,
        spec: &ClusterSpec,
        observed: &Observed,
        place: &HostPlace,
    ) -> Result<(), AgentError> {
        let validity = certificates::validity(spec, observed, &place.storage_dir);
        let minted = certificates::mint(&self.certificates, spec, &place.names, validity);
        Ok(minted?)
    }

    pub(super) fn mint_clients(
        &self,
        spec: &ClusterSpec,
        observed: &Observed,
        place: &HostPlace,
    ) -> Result<(), AgentError> {
        let validity = certificates::validity(spec, observed, &place.storage_dir);
        let issued = certificates::issue_due(&self.certificates, spec, observed, validity);
        Ok(issued?)
    }

    /// Writes what the guard needs for a start. `joins`: the member list of the cluster that it joins.
    pub(super) fn prepare(
        &self,
        spec: &ClusterSpec,
        place: &HostPlace,
        joins: Option<&Membership>,
    ) -> Result<(), AgentError> {
        let (identity, _) = records::load_identities(&self.paths, &place.storage_dir)?;
        let unborn = || failed("start etcd", "this host has no identity yet");
        let identity = identity.ok_or_else(unborn)?;
        let joins = joins.and_then(Membership::known);
        let joins = joins.map(|it| initial_cluster(&spec.members, it.iter()));
        let launch = place.launch_of(&self.paths, spec, &identity, joins.as_deref());
        self.prepare_launch(&Launch {
            asked: self.memory.asked.clone(),
            ..launch.ok_or_else(unborn)?
        })
    }

    /// The same for a start with the settings that served last.
    fn prepare_as_before(&self) -> Result<(), AgentError> {
        let none = || {
            failed(
                "start etcd",
                "the operator knows no earlier settings that served",
            )
        };
        self.prepare_launch(&self.last_launch().ok_or_else(none)?)
    }

    fn prepare_launch(&self, launch: &Launch) -> Result<(), AgentError> {
        match state::load::<Launch>(&self.paths.launch()) {
            Ok(Some(same)) if same == *launch => {}
            // All of it comes from the document, so a damaged record is written anew.
            Ok(_) | Err(StateError::Damaged(_)) => state::save(&self.paths.launch(), launch)?,
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

    /// Marks size 0 on disk, before etcd is stopped and while etcd does not run. A guard asks
    /// nothing else, whether a service manager starts it at the next boot or it already waits.
    fn hibernate(&self, spec: &ClusterSpec) -> Result<(), AgentError> {
        let marker = self.paths.hibernates();
        if spec.size > 0 || marker.exists() || !self.paths.launch().exists() {
            return Ok(());
        }
        Ok(state::write_file(&marker, b"size: 0\n")?)
    }

    async fn probe_write(&mut self, instance: Option<&Instance>) {
        let process = instance.map(|it| it.process);
        if self.memory.contact.probe_write(process).await {
            starts::clear(&self.paths);
            self.note_served();
        }
    }

    /// Saves the settings that serve, after etcd acknowledged a write.
    fn note_served(&mut self) {
        let Some(running) = Running::load(&self.paths) else {
            return;
        };
        let now = clock::milliseconds_since_boot();
        // The agent did not see the start of an etcd that ran before it.
        if running.process.started >= self.memory.began {
            let took = now.saturating_sub(running.process.started);
            self.board.lock().start_took = Some(took);
        }
        let before = self.served();
        if before.is_some_and(|it| it.launch == running.launch) {
            return;
        }
        let served = Served {
            launch: running.launch,
            took_milliseconds: self.board.lock().start_took,
        };
        if let Err(error) = state::save(&self.paths.served(), &served) {
            self.log_once(&chain(&error));
        }
    }

    /// Writes the identity again where `change` says that it made another one of it.
    pub(super) fn change_identity(
        &self,
        storage_dir: &Path,
        change: impl FnOnce(&mut IdentityFile) -> bool,
    ) -> Result<(), AgentError> {
        let (identity, marker) = records::load_identities(&self.paths, storage_dir)?;
        let Some(mut file) = identity.or(marker) else {
            return Ok(());
        };
        if change(&mut file) {
            records::save_identity(&self.paths, storage_dir, &file)?;
        }
        Ok(())
    }

    fn raise_quota(&self, spec: &ClusterSpec, quota: u64) -> Result<(), AgentError> {
        self.change_identity(&self.reached(spec).storage_dir, |it| {
            let raised = it.member.quota < quota;
            it.member.quota = it.member.quota.max(quota);
            raised
        })
    }

    /// Accepts this machine as the cluster's own: a person asked for another try and knows the machine.
    pub(super) fn accept_machine(&mut self, spec: &ClusterSpec) -> Result<(), AgentError> {
        let storage_dir = self.reached(spec).storage_dir;
        let (identity, marker) = records::load_identities(&self.paths, &storage_dir)?;
        let own = facts::machine_id(&self.paths);
        self.memory.accepts_machine = false;
        match (identity, marker) {
            // Only for this cluster's own data: nothing is written beside another cluster's data.
            (Some(mut identity), Some(marker))
                if marker.cluster.token == identity.cluster.token
                    && identity.is_of_another_machine(&own) =>
            {
                identity.member.machine_id = own;
                records::save_identity(&self.paths, &storage_dir, &identity)?;
                tracing::info!(
                    "a person confirmed this machine (reload): the cluster belongs to it from now on"
                );
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Records the CAs of a cluster that was born by a restore and has now served.
    pub(super) fn record_authorities(&self, storage_dir: &Path) -> Result<(), AgentError> {
        self.change_identity(storage_dir, |it| {
            let known = it.cluster.authorities.is_some();
            if !known {
                it.cluster.authorities = self.certificates.authorities();
            }
            !known
        })
    }

    fn record_served(
        &self,
        spec: &ClusterSpec,
        ids: Option<(ClusterId, MemberId)>,
    ) -> Result<(), AgentError> {
        self.change_identity(&self.reached(spec).storage_dir, |it| {
            let Some(ids) = ids else {
                return false;
            };
            it.has_served(ids);
            it.cluster.authorities = self.certificates.authorities();
            true
        })
    }

    /// Puts the guard beside etcd before the first start needs it.
    pub(super) fn place_guard(&self) -> Result<(), AgentError> {
        store::place_guard(&self.paths.store())?;
        Ok(())
    }

    /// Logs a line unless it was among the last ones (rule F8: repeats wear the card that holds the
    /// log). After a condition has changed, every line may be logged again.
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

    /// Records how far the log reaches, if that has changed.
    pub(super) fn remember_seen(&mut self, observed: &Observed) {
        let details = observed.speaker().and_then(|it| it.service.details);
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

pub(super) fn failed(what: &'static str, why: &str) -> AgentError {
    let why = why.to_owned();
    CallError { what, why }.into()
}

/// Why there is no token.
pub(super) const NO_RANDOM_BYTES: &str = "the kernel gave no random bytes";

/// The number of recent lines that are not repeated.
const TOLD_MAX: usize = 8;
