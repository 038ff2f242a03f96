//! What one pass sees on this host. Reads only; a failed read is a value.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use super::Agent;
use super::driver::Driver as _;
use super::report::Reached;
use crate::clock;
use crate::cluster::{MemberName, Timestamp, detail};
use crate::disk;
use crate::etcd::{data_dir, store};
use crate::host::HostFacts;
use crate::member::certificates::{self, survey_by_clock};
use crate::member::contact::Endpoint;
use crate::member::facts;
use crate::member::listen;
use crate::member::pause;
use crate::member::place::{self, HostPlace};
use crate::member::records::{self, Launch, RefusalFile, Running, Served};
use crate::member::starts;
use crate::observed::{
    Authority, CaState, Certificates, Claim, Clock, Instance, LastServed, ListFrom, Looker,
    Observed, Placement, Predecessors, Process, Restoring,
};
use crate::spec::{self, ClusterSpec, QUOTA_DEFAULT};
use crate::start::{self, Facts, Refusal, Unserved, Writable, of_the_host};
use crate::state;
use crate::sysfs;
use crate::systemd;
use crate::version::Version;

/// Asking timedated starts its service, and journald logs that. While timedated answers "no", the
/// agent asks less and less often, at most this many seconds apart. It sees the marker of
/// systemd-timesyncd at once.
const CLOCK_ASK_SECONDS_MAX: u64 = 3600;

/// Seconds between two inspections of the host, which changes slowly.
const HOST_LOOK_SECONDS: u64 = 60;

/// What a start would find.
struct Found {
    facts: Facts,
    last_served: Option<LastServed>,
    writable: Writable,
    machine_changed: bool,
    newest_installed: Option<Version>,
}

impl Agent {
    /// Looks at everything.
    pub(super) async fn gather(&mut self, spec: &ClusterSpec) -> Box<Observed> {
        let process = self.process().await;
        let runs = matches!(process, Process::Running { .. });
        let running = Running::load(&self.paths).filter(|_| runs);
        self.ask_timedated().await;
        let (place, now) = (self.place(spec), clock::now());
        let (mut summary, clock) = self.certificates(spec, &place, now);
        let (restoring, upgrade) = (self.restoring(), self.upgrade(spec));
        let mut found = self.found(spec, &place, running.as_ref(), &mut summary);
        let facts = &mut found.facts;
        let restoring = restoring.unwrap_or_else(|why| {
            facts.unreadable.get_or_insert(why);
            None
        });
        facts.restoring = restoring.is_some_and(Restoring::holds_the_data);
        let served = facts.identity.as_ref().and_then(|it| it.served).is_some();
        let (endpoint, contact) = (self.endpoint(spec), &mut self.memory.contact);
        let (service, membership) = contact.look(&endpoint, process, served).await;
        let regain = contact.regain(&service);
        let storage_dir = self.reached(spec).storage_dir;
        let seen = (&service, summary.pairs);
        let tries = self.tries(spec, (&found.facts, &storage_dir), process, seen);
        let (restart_in, refused) = self.next_start(runs);
        let instance = Instance {
            member: member(spec, &found.facts),
            process,
            terminating: 0, // the driver waits for its end
            claim: Claim::Stays,
            alone: true, // sizes above 1 are refused, so no cluster of ours had another member
            facts: found.facts,
            last_served: found.last_served,
            writable: found.writable,
            tries,
            newest_installed: found.newest_installed,
            quota_at_birth: quota_at_birth(&place),
            certificates: summary,
            service,
            restart_in,
            made_for: None, // each start reads the document's
            refused,
            machine_changed: found.machine_changed,
            kept_elsewhere: self.driver.kept_elsewhere(),
            unserved: running.and_then(|it| self.unserved(spec, &it, &place.listen)),
            list_from: ListFrom::Operator,
            regain,
            unheard: None, // it runs where this agent does
            no_place: None,
            placement: Placement::default(),
        };
        let host = self.host(&storage_dir, &instance);
        let backups = self.backups(spec, clock, now);
        let predecessors = self.predecessors(spec, &instance, clock, now);
        Box::new(Observed {
            now,
            clock,
            authority: Authority::Cluster,
            membership,
            failed: self.memory.failed.clone(),
            host: Some(host),
            backups,
            predecessors,
            restoring,
            upgrade,
            paused: pause::load(&self.paths),
            unreached: None, // clients and the operator use one address
            document: self.board.document(),
            looker: self.looker(),
            instances: [instance].into_iter().collect(),
        })
    }

    /// The process of etcd, looked after again where its record was lost.
    async fn process(&mut self) -> Process {
        let process = self.driver.look();
        if self.operates() && !matches!(process, Process::Running { .. }) && self.adopt().await {
            return self.driver.look();
        }
        process
    }

    /// Seconds until an etcd that does not run may start again, and the guard's last refusal.
    fn next_start(&self, runs: bool) -> (u64, Option<Refusal>) {
        if runs {
            return (0, None);
        }
        let refused = RefusalFile::load(&self.paths);
        (starts::restart_in(&self.paths), refused)
    }

    /// Whether this is the agent, and not a command that only looks.
    pub(super) fn operates(&self) -> bool {
        self.memory.generation > 0
    }

    /// The snapshots in the destinations, if a cluster would be born now.
    fn predecessors(
        &mut self,
        spec: &ClusterSpec,
        instance: &Instance,
        clock: Clock,
        now: Timestamp,
    ) -> Predecessors {
        let facts = &instance.facts;
        let unborn = facts.identity.is_none() && facts.marker.is_none();
        if !unborn || spec.size == 0 || spec.bootstrap.is_some() || spec.backup.is_none() {
            return Predecessors::None;
        }
        let trusted = clock.trusted(now);
        let asks = self.looker() == Looker::Operator;
        let bell = self.work.bell();
        let asked = &mut self.memory.predecessors;
        asked.look(&self.paths, spec, trusted, bell, asks)
    }

    /// Who observes. A command reads the document only once and executes nothing.
    fn looker(&self) -> Looker {
        if self.operates() {
            Looker::Operator
        } else {
            Looker::Command
        }
    }

    /// Examines how the last start ended, with the data that it used. That need not be the
    /// document's data.
    fn look_into_the_last_start(&self, running: Option<&Running>, asked: &Launch) {
        if running.is_some() {
            return;
        }
        let last = state::load_volatile::<Running>(&self.paths.process());
        if let Some(last) = last.filter(|it| it.launch.storage_dir != asked.storage_dir) {
            facts::look_into_the_last_start(&self.paths, &last.launch);
        }
    }

    /// Addresses of clients that the document asks for, and on which the running etcd serves nobody: those that are back,
    /// else those that are gone.
    fn unserved(
        &mut self,
        spec: &ClusterSpec,
        running: &Running,
        asked: &[IpAddr],
    ) -> Option<Unserved> {
        let launch = &running.launch;
        let serves = launch.clients_but(&running.left_out);
        let at = |it: &IpAddr| SocketAddr::new(*it, launch.client_port());
        let mut clients: Vec<SocketAddr> = asked.iter().map(at).collect();
        let known = if spec.network.listen.is_empty() {
            of_the_host(&serves, &listen::gone(&serves))
        } else {
            Some(launch.clients_but(&[]))
        };
        clients.retain(|it| known.as_ref().is_none_or(|known| known.contains(it)));
        let gone = listen::gone(&clients);
        let is_back = |it: &&SocketAddr| !serves.contains(it) && !gone.contains(it);
        let back: Vec<SocketAddr> = clients.iter().filter(is_back).copied().collect();
        let now = clock::since_boot().as_secs();
        let there = self.memory.returned.note(running.process.pid, &back, now);
        let told = if back.is_empty() { gone } else { back };
        let names: Vec<String> = told.iter().map(|it| it.ip().to_string()).collect();
        (!names.is_empty()).then(|| Unserved {
            addresses: detail(format_args!("{}", names.join(", "))),
            there,
        })
    }

    /// What a start would find.
    fn found(
        &mut self,
        spec: &ClusterSpec,
        place: &HostPlace,
        running: Option<&Running>,
        certificates: &mut Certificates,
    ) -> Found {
        let newest_installed = store::newest_supported(&self.paths.store());
        let version = self.version(spec, place, newest_installed);
        let launch = place.launch(spec, version);
        let (in_force, bound) = (running.map(|it| &it.launch), running.map(Running::bound));
        let usable = certificates::usable(certificates);
        self.look_into_the_last_start(running, &launch);
        let examiner = &mut self.memory.examiner;
        let gathered = facts::gather(
            &self.paths,
            &launch,
            version,
            usable,
            bound.as_deref(),
            examiner,
        );
        let (facts, identity) = (gathered.facts, gathered.identity);
        let own = facts::machine_id(&self.paths);
        let machine_changed = identity
            .as_ref()
            .is_some_and(|it| it.is_of_another_machine(&own));
        let authorities = identity
            .as_ref()
            .and_then(|it| it.cluster.authorities.as_deref());
        if certificates.can_be_made()
            && authorities.is_some_and(|it| self.certificates.replaced(it))
        {
            certificates.authorities = CaState::Replaced;
        }
        self.board.lock().identity = identity;
        Found {
            last_served: match running {
                Some(_) => None,
                None => self.last_served(&launch, version, &facts),
            },
            writable: match in_force {
                Some(it) if it.storage_dir != launch.storage_dir => {
                    disk::writable(&it.storage_dir, facts::DISK_DEADLINE)
                }
                _ => facts.writable,
            },
            facts,
            machine_changed,
            newest_installed,
        }
    }

    /// The place that the document asks for. While etcd runs with other settings, or would restart
    /// with them, its certificate names the addresses of both, so clients keep working with either.
    pub(super) fn place(&self, spec: &ClusterSpec) -> HostPlace {
        let mut place = place::resolve(&self.paths, spec);
        let before = Running::load(&self.paths).map(|it| it.launch);
        let before = before.or_else(|| self.served().map(|it| it.launch));
        let Some(before) = before.filter(|it| it.settings != spec.settings.0) else {
            return place;
        };
        place.names.extend(before.names);
        place.names.sort();
        place.names.dedup();
        place
    }

    /// Where etcd is reached and where its data lies: from the running etcd, else from the document.
    pub(super) fn reached(&self, spec: &ClusterSpec) -> Reached {
        let (client_url, launch) = if let Some(it) = Running::load(&self.paths) {
            (it.client_url(), it.launch)
        } else {
            let place = place::resolve(&self.paths, spec);
            let launch = place.launch(spec, Version::new(0, 0, 0));
            (launch.client_url.clone(), launch)
        };
        Reached {
            client_url,
            metrics: launch.metrics,
            storage_dir: launch.storage_dir,
        }
    }

    /// The settings that served last.
    pub(super) fn served(&self) -> Option<Served> {
        state::load(&self.paths.served()).ok().flatten()
    }

    /// What a start with the settings that served last would find, if their directory or addresses
    /// differ from the document's.
    fn last_served(
        &mut self,
        asked: &Launch,
        version: Version,
        facts: &Facts,
    ) -> Option<LastServed> {
        let launch = self.last_launch()?;
        let elsewhere = launch.storage_dir != asked.storage_dir;
        if launch.version != version.to_string()
            || !elsewhere && launch.addresses == asked.addresses
        {
            return None;
        }
        let launch = Launch {
            hibernates: asked.hibernates,
            unsafe_filesystem_allowed: asked.unsafe_filesystem_allowed,
            ..launch
        };
        let certificates = facts.certificates;
        let examiner = if elsewhere {
            &mut self.memory.examiner_elsewhere
        } else {
            &mut self.memory.examiner
        };
        let gathered = facts::gather(&self.paths, &launch, version, certificates, None, examiner);
        Some(LastServed {
            facts: gathered.facts,
            elsewhere,
        })
    }

    /// The settings that served last, for the version that the data is for: another one of its line may have served with
    /// them.
    pub(super) fn last_launch(&self) -> Option<Launch> {
        let launch = self.served()?.launch;
        let (identity, _) = records::load_identities(&self.paths, &launch.storage_dir).ok()?;
        let identity = identity?.to_identity()?;
        let version: Version = launch.version.parse().ok()?;
        let of_one_line = version.line() == identity.version.line();
        (of_one_line && identity.may_open(version)).then(|| Launch {
            version: identity.version.to_string(),
            ..launch
        })
    }

    /// Where the member's etcd is reached.
    pub fn endpoint(&self, spec: &ClusterSpec) -> Endpoint {
        let reached = self.reached(spec);
        Endpoint {
            url: reached.client_url,
            files: self.certificates.operator_files(),
            metrics: reached.metrics,
            joins: self
                .memory
                .contact
                .joins(self.board.lock().identity.as_ref()),
        }
    }

    fn certificates(
        &mut self,
        spec: &ClusterSpec,
        place: &HostPlace,
        now: Timestamp,
    ) -> (Certificates, Clock) {
        let certificates = self.certificates.clone();
        survey_by_clock(&certificates, now, &place.names, spec, |dated| {
            let newest = clock::newest_known(&records::data_dir(&place.storage_dir), dated);
            let synchronised = self.memory.kernel_synchronised.is_some_and(|(it, _)| it);
            clock::trust(&self.paths, now, newest, synchronised)
        })
    }

    /// Asks whether the kernel's clock is synchronised, if systemd runs this host and it is time to ask.
    async fn ask_timedated(&mut self) {
        if !systemd::runs(&self.paths) {
            return;
        }
        let uptime = clock::since_boot().as_secs();
        if let Some((synchronised, asked)) = self.memory.kernel_synchronised
            && (synchronised || uptime < asked + (asked / 2).clamp(60, CLOCK_ASK_SECONDS_MAX))
        {
            return;
        }
        let synchronised = systemd::clock_is_synchronised().await;
        self.memory.kernel_synchronised = Some((synchronised, uptime));
    }

    /// The version that a start would use.
    fn version(&self, spec: &ClusterSpec, place: &HostPlace, newest: Option<Version>) -> Version {
        let found = records::load_identities(&self.paths, &place.storage_dir).ok();
        let born = found.and_then(|(identity, marker)| identity.or(marker)?.to_identity());
        let unserved = born.as_ref().is_some_and(|it| it.served.is_none());
        let data = unserved && data_dir::has_data(&records::data_dir(&place.storage_dir));
        start::version(spec.version, born.as_ref(), data, newest).unwrap_or(Version::new(0, 0, 0))
    }

    /// Facts about the host. Asking the firmware of a Pi interrupts it, so not every pass asks.
    fn host(&mut self, storage_dir: &Path, instance: &Instance) -> HostFacts {
        let writable = instance.writable;
        let version = instance.facts.identity.as_ref().map(|it| it.version);
        let answers = instance.service.read.is_answer();
        let uptime = clock::since_boot().as_secs();
        let known = self.memory.host.take();
        let current =
            |looked: u64, of: Option<Version>| uptime < looked + HOST_LOOK_SECONDS && of == version;
        let (mut facts, looked) = match known {
            Some((facts, looked, of)) if current(looked, of) => (facts, looked),
            _ => {
                let mut facts = sysfs::look(&self.paths, storage_dir, writable);
                facts.unverified =
                    version.and_then(|it| store::unverified(&self.paths.store(), it));
                (facts, uptime)
            }
        };
        facts.disk.read_only = sysfs::read_only(writable);
        let free = (writable != Writable::Stalled).then(|| disk::room(storage_dir));
        facts.disk.space = self.memory.space.note(uptime, free.flatten(), answers);
        self.memory.host = Some((facts.clone(), looked, version));
        facts
    }
}

/// The member of this host: the document's, or the one that lives here while the size is 0.
fn member(spec: &ClusterSpec, facts: &Facts) -> MemberName {
    let born = || facts.identity.as_ref().map(|it| it.member.clone());
    let asked = spec.own().map(|it| it.name.clone());
    asked.or_else(born).unwrap_or_default()
}

/// Rule D27: a quarter of the free disk, at most 2 GiB.
pub(super) fn quota_at_birth(place: &HostPlace) -> u64 {
    let free = disk::free_bytes(&place.storage_dir).unwrap_or(QUOTA_DEFAULT * 4);
    spec::quota_at_birth(free / 4)
}
