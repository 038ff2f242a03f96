//! Rules that a schema cannot say, one row each: the expression that stands in the CRD, the same
//! as code for the host's parser, where it points and what it says.
//!
//! A test runs both over thousands of documents and compares the verdicts.

use super::{Backup, BackupDestination, formats};
use super::{EtcdClusterSpec, ServiceType, SingleMemberRecovery, TlsMode};

/// One rule over `spec`.
pub struct Rule {
    /// The path below `spec` that a message points at; empty for the whole.
    pub path: &'static str,
    /// The rule in CEL; `self` is the spec.
    pub cel: &'static str,
    /// What is wrong and what is allowed, a sentence without a period.
    pub message: &'static str,
    /// The same as `cel`.
    pub holds: fn(&EtcdClusterSpec) -> bool,
}

impl Rule {
    /// Whether the rule says no more than that its field is not given.
    pub fn forbids_the_field(&self) -> bool {
        let absent = format!("!has(self.{})", self.path);
        let rest = self.cel.strip_prefix(&absent);
        rest.is_some_and(|it| {
            it.is_empty() || it == format!(" || size(self.{}) == 0", self.path).as_str()
        })
    }
}

/// Whether something holds for each place for snapshots.
fn destinations(spec: &EtcdClusterSpec, holds: fn(&BackupDestination) -> bool) -> bool {
    spec.destinations().iter().all(holds)
}

/// Where a destination's snapshots lie, whatever else is said of it.
fn place(it: &BackupDestination) -> (Option<&str>, Option<[&str; 3]>) {
    let s3 = it.s3.as_ref().map(|it| {
        let [prefix, endpoint] = [&it.prefix, &it.endpoint].map(|it| it.as_deref().unwrap_or(""));
        [it.bucket.as_str(), prefix, endpoint]
    });
    let local = it.local.as_ref();
    let path = local.map(|it| it.path.as_ref().or(it.claim_name.as_ref()));
    (path.map(|it| it.map_or("", String::as_str)), s3)
}

/// So many bytes or more, in a unit of a million or more.
fn is_at_least(quantity: &str, least: u64) -> bool {
    let unit = quantity.trim_start_matches(|it: char| it.is_ascii_digit());
    let is_large = ["M", "Mi", "G", "Gi", "T", "Ti"].contains(&unit);
    is_large && formats::bytes(quantity).is_some_and(|it| it >= least)
}

/// Every rule. Those that say "not supported yet" go as the feature comes.
pub const RULES: &[Rule] = &[
    Rule {
        path: "size",
        cel: "self.size in [0, 1, 3, 5, 7]",
        message: "allowed are 0 (stopped, everything kept), 1, 3, 5 and 7: an even number survives no more failures than the one below it",
        holds: |spec| [0, 1, 3, 5, 7].contains(&spec.size),
    },
    Rule {
        path: "size",
        cel: "self.size <= 1 || !has(self.version) || !self.version.matches('^v?3[.]5[.]')",
        message: "more than 1 member needs etcd 3.6 or newer",
        holds: |spec| {
            let version = spec.version.as_ref();
            spec.size <= 1
                || version.is_none_or(|it| !it.strip_prefix('v').unwrap_or(it).starts_with("3.5."))
        },
    },
    Rule {
        path: "network",
        cel: "self.network.clientPort != self.network.peerPort && self.network.clientPort != self.network.metricsPort && self.network.peerPort != self.network.metricsPort",
        message: "clientPort, peerPort and metricsPort must differ",
        holds: |spec| {
            let it = &spec.network;
            it.client_port != it.peer_port
                && it.client_port != it.metrics_port
                && it.peer_port != it.metrics_port
        },
    },
    Rule {
        path: "options",
        cel: "!has(self.options.heartbeatMilliseconds) || !has(self.options.electionMilliseconds) || self.options.electionMilliseconds >= 5 * self.options.heartbeatMilliseconds",
        message: "electionMilliseconds must be at least 5 times heartbeatMilliseconds",
        holds: |spec| match (
            spec.options.heartbeat_milliseconds,
            spec.options.election_milliseconds,
        ) {
            (Some(heartbeat), Some(election)) => election >= 5 * heartbeat,
            _ => true,
        },
    },
    Rule {
        path: "options",
        cel: "has(self.options.heartbeatMilliseconds) == has(self.options.electionMilliseconds)",
        message: "heartbeatMilliseconds and electionMilliseconds are set together or not at all",
        holds: |spec| {
            spec.options.heartbeat_milliseconds.is_some()
                == spec.options.election_milliseconds.is_some()
        },
    },
    Rule {
        path: "storage.quota",
        cel: "!has(self.storage.quota) || !self.storage.quota.matches('^[0-9]+(k|Ki)?$|^([0-9]|1[0-5])Mi$|^([0-9]|1[0-6])M$')",
        message: "at least 16Mi, written with Mi, Gi or Ti, or M, G or T",
        holds: |spec| {
            let quota = spec.storage.quota.as_deref();
            quota.is_none_or(|it| is_at_least(it, crate::spec::QUOTA_MIN))
        },
    },
    Rule {
        path: "options.maxRequestSize",
        cel: "!has(self.options.maxRequestSize) || self.options.maxRequestSize.matches('^([1-9]|10)Mi?$|^[0-9]{1,4}(k|Ki)$|^[0-9]{1,7}$')",
        message: "at most 10Mi, as etcd advises; in Ki at most 9999, in bytes at most 9999999",
        holds: |spec| {
            spec.options.max_request_size.as_deref().is_none_or(|it| {
                let number = it.trim_end_matches(['k', 'K', 'M', 'i']);
                match &it[number.len()..] {
                    "M" | "Mi" => number.parse().is_ok_and(|it: u64| it <= 10),
                    "k" | "Ki" => number.len() <= 4,
                    _ => it.len() <= 7 && it.bytes().all(|it| it.is_ascii_digit()),
                }
            })
        },
    },
    Rule {
        path: "options.memoryLimit",
        cel: "!has(self.options.memoryLimit) || !self.options.memoryLimit.matches('^[0-9]+(k|Ki)?$|^([0-9]|[1-5][0-9]|6[0-3])Mi$|^([0-9]|[1-5][0-9]|6[0-7])M$')",
        message: "at least 64Mi, written with Mi, Gi or Ti, or M, G or T",
        holds: |spec| {
            let limit = spec.options.memory_limit.as_deref();
            limit.is_none_or(|it| is_at_least(it, 64 << 20))
        },
    },
    Rule {
        path: "storage",
        cel: "(has(self.storage.path) ? 1 : 0) + (has(self.storage.volumeClaim) ? 1 : 0) + (has(self.storage.memory) ? 1 : 0) <= 1",
        message: "path, volumeClaim and memory exclude each other",
        holds: |spec| {
            let it = &spec.storage;
            usize::from(it.path.is_some())
                + usize::from(it.volume_claim.is_some())
                + usize::from(it.memory.is_some())
                <= 1
        },
    },
    Rule {
        path: "clients",
        cel: "!has(self.clients) || self.clients.all(one, self.clients.exists_one(other, other.name == one.name))",
        message: "each name may appear once",
        holds: |spec| {
            spec.clients
                .iter()
                .all(|one| spec.clients.iter().filter(|it| it.name == one.name).count() == 1)
        },
    },
    Rule {
        path: "clients",
        cel: "!has(self.clients) || self.clients.all(one, one.name != 'etcd-operator')",
        message: "etcd-operator is the operator's own name; choose another",
        holds: |spec| spec.clients.iter().all(|it| it.name != "etcd-operator"),
    },
    Rule {
        path: "service.nodePort",
        cel: "!has(self.service) || !has(self.service.nodePort) || self.service.type != 'ClusterIP'",
        message: "type ClusterIP has none",
        holds: |spec| {
            let service = spec.service.as_ref();
            service.is_none_or(|it| it.node_port.is_none() || it.kind != ServiceType::ClusterIP)
        },
    },
    Rule {
        path: "service.loadBalancerClass",
        cel: "!has(self.service) || !has(self.service.loadBalancerClass) || self.service.type == 'LoadBalancer'",
        message: "only type LoadBalancer has one",
        holds: |spec| {
            let service = spec.service.as_ref();
            service.is_none_or(|it| {
                it.load_balancer_class.is_none() || it.kind == ServiceType::LoadBalancer
            })
        },
    },
    Rule {
        path: "storage.memory",
        cel: "!has(self.storage.memory)",
        message: "not supported yet",
        holds: |spec| spec.storage.memory.is_none(),
    },
    Rule {
        path: "tls.mode",
        cel: "self.tls.mode == 'managed'",
        message: "only managed is supported yet",
        holds: |spec| spec.tls.mode == TlsMode::Managed,
    },
    Rule {
        path: "tls.secretRefs",
        cel: "!has(self.tls.secretRefs)",
        message: "not supported yet",
        holds: |spec| spec.tls.secret_refs.is_none(),
    },
    Rule {
        path: "backup",
        cel: "!has(self.backup) || !has(self.backup.schedule) || !has(self.backup.interval)",
        message: "schedule and interval exclude each other",
        holds: |spec| {
            let both = |it: &Backup| it.schedule.is_some() && it.interval.is_some();
            !spec.backup.as_ref().is_some_and(both)
        },
    },
    Rule {
        path: "backup.destinations",
        cel: "!has(self.backup) || self.backup.destinations.all(it, has(it.local) != has(it.s3))",
        message: "each is either local or s3",
        holds: |spec| destinations(spec, |it| it.local.is_some() != it.s3.is_some()),
    },
    Rule {
        path: "backup.destinations",
        cel: "!has(self.backup) || self.backup.destinations.all(it, !has(it.local) || (has(it.local.path) ? 1 : 0) + (has(it.local.claim) ? 1 : 0) + (has(it.local.claimName) ? 1 : 0) <= 1)",
        message: "path, claim and claimName of a local destination exclude each other",
        holds: |spec| {
            destinations(spec, |it| {
                it.local.as_ref().is_none_or(|it| {
                    let named = [
                        it.path.is_some(),
                        it.claim.is_some(),
                        it.claim_name.is_some(),
                    ];
                    named.into_iter().filter(|it| *it).count() <= 1
                })
            })
        },
    },
    Rule {
        path: "backup.destinations",
        cel: "!has(self.backup) || has(self.backup.destinations[0].local)",
        message: "the first must be local: snapshots are taken and verified there, then copied",
        holds: |spec| {
            let first = spec.backup.as_ref().and_then(|it| it.destinations.first());
            first.is_none_or(|it| it.local.is_some())
        },
    },
    Rule {
        path: "backup.destinations",
        cel: "!has(self.backup) || self.backup.destinations.all(one, self.backup.destinations.exists_one(other, (has(one.local) ? [has(one.local.path) ? one.local.path : has(one.local.claimName) ? one.local.claimName : ''] : []) == (has(other.local) ? [has(other.local.path) ? other.local.path : has(other.local.claimName) ? other.local.claimName : ''] : []) && (has(one.s3) ? [one.s3.bucket, has(one.s3.prefix) ? one.s3.prefix : '', has(one.s3.endpoint) ? one.s3.endpoint : ''] : []) == (has(other.s3) ? [other.s3.bucket, has(other.s3.prefix) ? other.s3.prefix : '', has(other.s3.endpoint) ? other.s3.endpoint : ''] : [])))",
        message: "each place may appear once",
        holds: |spec| {
            let all = spec.destinations();
            all.iter().all(|one| {
                let same = all.iter().filter(|it| place(it) == place(one));
                same.count() == 1
            })
        },
    },
    Rule {
        path: "bootstrap",
        cel: "!has(self.bootstrap) || has(self.backup) || self.bootstrap.from.matches('/|^empty$')",
        message: "from names a snapshot, and there is no backup to find it in: describe backup, or on a host name a file",
        holds: |spec| {
            spec.bootstrap.as_ref().is_none_or(|it| {
                spec.backup.is_some() || it.from == "empty" || it.from.contains('/')
            })
        },
    },
    Rule {
        path: "recovery.singleMember",
        cel: "self.recovery.singleMember == 'hold' || has(self.backup)",
        message: "restoreLatestVerified needs a backup with a local destination",
        holds: |spec| {
            spec.recovery.single_member == SingleMemberRecovery::Hold || spec.backup.is_some()
        },
    },
    Rule {
        path: "maintenance.defragment",
        cel: "!has(self.maintenance.defragment)",
        message: "not supported yet",
        holds: |spec| spec.maintenance.defragment.is_none(),
    },
    Rule {
        path: "maintenance.windows",
        cel: "!has(self.maintenance.windows) || size(self.maintenance.windows) == 0",
        message: "not supported yet",
        holds: |spec| spec.maintenance.windows.is_empty(),
    },
    Rule {
        path: "hosts",
        cel: "!has(self.hosts) || size(self.hosts) == 0",
        message: "not supported yet",
        holds: |spec| spec.hosts.is_empty(),
    },
];

/// What only a host has: the API server and the controller refuse it, and name what to use instead. The host's parser
/// knows none of these rules.
pub const OF_A_HOST: &[Rule] = &[
    Rule {
        path: "storage.path",
        cel: "!has(self.storage.path)",
        message: "a directory is a field of a host: in Kubernetes the data lies on a claim; leave it out, or describe the claim in storage.volumeClaim",
        holds: |spec| spec.storage.path.is_none(),
    },
    Rule {
        path: "backup.destinations",
        cel: "!has(self.backup) || self.backup.destinations.all(it, !has(it.local) || !has(it.local.path))",
        message: "path, a directory, is a field of a host: in Kubernetes snapshots lie on a claim; write local: {}, describe the claim in local.claim, or name one in local.claimName",
        holds: |spec| {
            destinations(spec, |it| {
                it.local.as_ref().is_none_or(|it| it.path.is_none())
            })
        },
    },
    Rule {
        path: "backup.destinations",
        cel: "!has(self.backup) || self.backup.destinations.exists_one(it, has(it.local))",
        message: "in Kubernetes one is local: the Pod that takes snapshots has one claim; further ones are s3",
        holds: |spec| {
            let backup = spec.backup.as_ref();
            backup.is_none_or(|it| {
                let local = it.destinations.iter().filter(|it| it.local.is_some());
                local.count() == 1
            })
        },
    },
    Rule {
        path: "backup.destinations",
        cel: "!has(self.backup) || self.backup.destinations.all(it, !has(it.s3) || !has(it.s3.caFile) && !has(it.s3.credentials))",
        message: "caFile and credentials are files of a host: in Kubernetes name a Secret in credentialsSecret, with the keys credentials and ca.crt",
        holds: |spec| {
            destinations(spec, |it| {
                it.s3
                    .as_ref()
                    .is_none_or(|it| it.ca_file.is_none() && it.credentials.is_none())
            })
        },
    },
    Rule {
        path: "bootstrap.from",
        cel: "!has(self.bootstrap) || !self.bootstrap.from.matches('^/')",
        message: "a file is a field of a host: in Kubernetes name a snapshot, latest, or CLUSTER/NAME for one of another cluster of this namespace",
        holds: |spec| {
            spec.bootstrap
                .as_ref()
                .is_none_or(|it| !it.from.starts_with('/'))
        },
    },
];

/// What only Kubernetes has, of fields and of their values: the host's parser refuses it.
pub const OF_KUBERNETES: &[Rule] = &[
    Rule {
        path: "size",
        cel: "self.size <= 1",
        message: "more than 1 member is not supported on hosts yet, only in Kubernetes",
        holds: |spec| spec.size <= 1,
    },
    Rule {
        path: "bootstrap.from",
        cel: "!has(self.bootstrap) || !self.bootstrap.from.matches('^[^/]+/')",
        message: "CLUSTER/NAME is a snapshot in Kubernetes: on a host name a file, latest, or a snapshot of the document's destinations",
        holds: |spec| {
            spec.bootstrap
                .as_ref()
                .is_none_or(|it| it.from.starts_with('/') || !it.from.contains('/'))
        },
    },
];

/// What a cluster is made with and keeps, in Kubernetes: the path below `spec`, the rule in CEL over what
/// was and what is asked, and what is wrong with a change. A host's document has no object that was.
pub const LASTING: [(&str, &str, &str); 3] = [
    (
        "deletionPolicy",
        "self.deletionPolicy == oldSelf.deletionPolicy",
        "cannot be changed: what goes with the object was marked when it was made; kubectl delete --cascade=orphan keeps everything, whatever is said here",
    ),
    (
        "storage.volumeClaim",
        "!has(self.storage.volumeClaim) || !has(oldSelf.storage.volumeClaim) || quantity(self.storage.volumeClaim.size).compareTo(quantity(oldSelf.storage.volumeClaim.size)) >= 0",
        "its size may only grow: no volume shrinks; restore a snapshot into a new cluster",
    ),
    (
        "network",
        "self.size <= 1 && oldSelf.size <= 1 || self.network.peerPort == oldSelf.network.peerPort && self.network.clientPort == oldSelf.network.clientPort",
        "clientPort and peerPort of several members cannot be changed: the members would look for each other in vain; set size: 1 first",
    ),
];
