//! What one pass sees on this host. Reads only; a failed read is a value.

use std::net::Ipv4Addr;

use super::Agent;
use super::driver::Driver as _;
use crate::clock;
use crate::cluster::{MemberName, Timestamp};
use crate::disk;
use crate::etcd::store;
use crate::host::HostFacts;
use crate::member::certificates::{self, survey_by_clock};
use crate::member::contact::Endpoint;
use crate::member::facts;
use crate::member::place::{self, HostPlace};
use crate::member::records::{self, IdentityFile, Launch, RefusalFile};
use crate::member::starts;
use crate::observed::{Authority, Certificates, Clock, Instance, Observed, Process, Restoring};
use crate::spec::{ClusterSpec, QUOTA_DEFAULT, QUOTA_MIN};
use crate::start::{CertificatesUsable, Facts, Writable};
use crate::sysfs;
use crate::systemd;
use crate::version::Version;

/// Asking timedated starts it, and journald writes that down: while it says "no" it is asked less and
/// less often, up to so many seconds apart. The marker of systemd-timesyncd is seen at once.
const CLOCK_ASK_SECONDS_MAX: u64 = 3600;

/// The box changes slowly.
const HOST_LOOK_SECONDS: u64 = 60;

impl Agent {
    /// Looks at everything.
    pub(super) async fn gather(&mut self, spec: &ClusterSpec) -> Observed {
        let place = place::resolve(&self.paths, spec);
        let process = self.driver.look();
        let running = matches!(process, Process::Running { .. });
        let now = clock::now();
        let (summary, clock) = self.certificates(spec, &place, now);
        let usable = certificates::usable(&summary);
        let newest_installed = store::newest_supported(&self.paths.store());
        let version = self.version(spec, &place, newest_installed);
        let launch = place.launch(spec, version);
        let (facts, identity, restoring) = self.facts(&launch, version, usable, running);
        let machine_changed = identity
            .as_ref()
            .is_some_and(|it| it.is_of_another_machine(&facts::machine_id(&self.paths)));
        let endpoint = self.endpoint(spec, &place);
        let served = facts
            .identity
            .as_ref()
            .is_some_and(|it| it.served.is_some());
        let contact = &mut self.memory.contact;
        let (service, membership) = contact.look(&endpoint, process, served).await;
        let regain = contact.regain(&service);
        let restoring = restoring.map(|it| self.count_unanswered(it, process, &service.read));
        let refused = RefusalFile::load(&self.paths).filter(|_| !running);
        let restart_in = if running {
            0
        } else {
            starts::restart_in(&self.paths)
        };
        let instance = Instance {
            member: member(spec, &facts),
            process,
            alone: true, // sizes above 1 are refused, so no cluster of ours had another member
            facts,
            newest_installed,
            quota_at_birth: quota_at_birth(&place),
            certificates: summary,
            service,
            restart_in,
            refused,
            machine_changed,
            kept_elsewhere: self.driver.kept_elsewhere(),
            regain,
        };
        let host = self.host(&place, instance.facts.writable);
        let backups = self.backups(spec, &place, clock, now);
        let mut instances = heapless::Vec::new();
        let _ = instances.push(instance);
        Observed {
            now,
            clock,
            authority: Authority::Cluster,
            membership,
            failed: self.memory.failed.clone(),
            host: Some(host),
            backups,
            restoring,
            instances,
        }
    }

    /// What a start would find, who lives here, and the restore under way.
    fn facts(
        &mut self,
        launch: &Launch,
        version: Version,
        usable: CertificatesUsable,
        running: bool,
    ) -> (Facts, Option<IdentityFile>, Option<Restoring>) {
        let restoring = self.restoring();
        let examiner = &mut self.memory.examiner;
        let gathered = facts::gather(&self.paths, launch, version, usable, running, examiner);
        let mut facts = gathered.facts;
        let restoring = restoring.unwrap_or_else(|why| {
            facts.unreadable.get_or_insert(why);
            None
        });
        facts.restoring = restoring.is_some_and(Restoring::holds_the_data);
        (facts, gathered.identity, restoring)
    }

    fn endpoint(&self, spec: &ClusterSpec, place: &HostPlace) -> Endpoint {
        Endpoint {
            url: place.client_url.clone(),
            files: self.certificates.operator_files(),
            metrics: (Ipv4Addr::LOCALHOST, spec.network.metrics_port).into(),
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
            let synchronised = self.kernel_synchronised();
            clock::trust(&self.paths, now, newest, synchronised)
        })
    }

    /// The kernel's own word (adjtimex), through timedated, where systemd runs this host.
    fn kernel_synchronised(&mut self) -> bool {
        if !systemd::runs(&self.paths) {
            return false;
        }
        let uptime = clock::since_boot().as_secs();
        if let Some((synchronised, asked)) = self.memory.kernel_synchronised
            && (synchronised || uptime < asked + (asked / 2).clamp(60, CLOCK_ASK_SECONDS_MAX))
        {
            return synchronised;
        }
        let synchronised = clock::kernel_synchronised();
        self.memory.kernel_synchronised = Some((synchronised, uptime));
        synchronised
    }

    /// The version that a start would take: what was born, else what is asked for or installed.
    fn version(&self, spec: &ClusterSpec, place: &HostPlace, newest: Option<Version>) -> Version {
        let born = records::load_identities(&self.paths, &place.storage_dir)
            .ok()
            .and_then(|(identity, marker)| identity.or(marker))
            .and_then(|it| it.version.parse().ok());
        born.or(spec.version)
            .or(newest)
            .unwrap_or(Version::new(0, 0, 0))
    }

    /// The box; asking the firmware of a Pi interrupts it, so that it is not asked with every pass.
    fn host(&mut self, place: &HostPlace, writable: Writable) -> HostFacts {
        let uptime = clock::since_boot().as_secs();
        let known = self.memory.host.take();
        let (mut facts, looked) = known
            .filter(|(_, looked)| uptime < looked + HOST_LOOK_SECONDS)
            .unwrap_or_else(|| {
                let facts = sysfs::look(&self.paths, &place.storage_dir, writable);
                (facts, uptime)
            });
        facts.disk.read_only = sysfs::read_only(writable);
        let free = (writable != Writable::Stalled).then(|| disk::room(&place.storage_dir));
        facts.disk.space = self.memory.space.note(uptime, free.flatten());
        self.memory.host = Some((facts.clone(), looked));
        facts
    }
}

/// The member of this host: the document's, or who lives here while its size is 0.
fn member(spec: &ClusterSpec, facts: &Facts) -> MemberName {
    let born = || facts.identity.as_ref().map(|it| it.member.clone());
    let asked = spec.members.first().cloned();
    asked.or_else(born).unwrap_or_default()
}

/// Rule D27: a quarter of the free disk, at most 2 GiB.
pub(super) fn quota_at_birth(place: &HostPlace) -> u64 {
    let free = disk::free_bytes(&place.storage_dir).unwrap_or(QUOTA_DEFAULT * 4);
    (free / 4).clamp(QUOTA_MIN, QUOTA_DEFAULT)
}
