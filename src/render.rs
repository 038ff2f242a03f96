//! Text from data: etcd's configuration file and environment, the same in both homes.
//!
//! One shape for each version line: options that were renamed or removed differ, nothing else
//! does. It allocates text and knows no file.

pub mod unit;

use core::fmt::Write as _;
use core::net::{IpAddr, SocketAddr};

use crate::cluster::LEARNERS_MAX;
use crate::spec::{AutoCompaction, ClusterSpec, Profile};
use crate::version::{Line, SHORT_LOG};

/// What only the place knows in which the member lives.
#[derive(Clone, Debug)]
pub struct Place<'a> {
    /// This member's name.
    pub member: &'a str,
    /// etcd's `data-dir`.
    pub data_dir: &'a str,
    /// The directory whose `server.crt`, `peer.crt` and CAs etcd reads at every handshake.
    pub tls_dir: &'a str,
    /// etcd's own log file; `None` where its standard error goes to a journal.
    pub log_file: Option<&'a str>,
    /// The log goes to standard output, too, where a Pod's log is read.
    pub log_stdout: bool,
    /// Where metrics are served, plain.
    pub metrics_listen: IpAddr,
    /// The quota latched at birth.
    pub quota: u64,
    /// Where clients are served.
    pub listen: &'a [IpAddr],
    /// What clients are told; text as in a URL.
    pub advertised: &'a [String],
    /// Unique for each cluster that is ever born (rule D35).
    pub token: &'a str,
    /// The `initial-cluster` list.
    pub initial_cluster: &'a str,
    /// This member's peer URLs.
    pub peer_urls: &'a str,
    /// `new`, or `existing` for a member that joins (rule D2).
    pub initial_state: &'a str,
}

/// Milliseconds between heartbeats and until an election.
///
/// Slow disks make leaders late (rule A15). With one member nobody waits for a heartbeat, and a
/// long election timeout only makes every start longer: etcd elects its only member after one to
/// two timeouts. Five heartbeats are the least that etcd takes; a shorter heartbeat would shorten
/// starts further, at the price of more CPU at rest.
pub fn timing(spec: &ClusterSpec) -> (u32, u32) {
    let default = match (spec.profile, spec.members.len()) {
        (Profile::Edge, 2..) => (500, 5000),
        (Profile::Edge, _) => (100, 500),
        (Profile::Standard, _) => (100, 1000),
    };
    (
        spec.options.heartbeat.unwrap_or(default.0),
        spec.options.election.unwrap_or(default.1),
    )
}

/// The settings in which the profiles differ.
struct Tuning {
    snapshot_count: u32,
    catchup_entries: u32,
    /// Nanoseconds between two commits of the database. The write-ahead log is synced for every
    /// write before it is acknowledged, whatever this says: a crash costs a longer replay.
    batch_interval: u64,
    max_wals: u32,
    max_snapshots: u32,
}

/// Rules D32, D46, D47; measured by `make bench` (flash per put, memory).
fn tuning(profile: Profile) -> Tuning {
    match profile {
        Profile::Edge => Tuning {
            snapshot_count: 5000,
            catchup_entries: 1000,
            batch_interval: 5_000_000_000,
            max_wals: 2,
            max_snapshots: 2,
        },
        Profile::Standard => Tuning {
            snapshot_count: 10_000,
            catchup_entries: 5000,
            batch_interval: 100_000_000,
            max_wals: 5,
            max_snapshots: 5,
        },
    }
}

/// A configuration with which etcd 3.6 is soon rid of what 3.7 cannot read in the log (rule D22). A count that is smaller
/// stays.
pub fn with_short_log(conf: &str) -> String {
    let shorter = |line: &str| {
        let count = line.strip_prefix("snapshot-count: ");
        let count = count.and_then(|it| it.parse::<u32>().ok());
        match count.filter(|it| *it > SHORT_LOG) {
            Some(_) => format!("snapshot-count: {SHORT_LOG}\n"),
            None => format!("{line}\n"),
        }
    };
    conf.lines().map(shorter).collect()
}

/// Whether etcd with this configuration serves clients of an address.
pub fn listens_on(conf: &str, client: SocketAddr) -> bool {
    let line = conf
        .lines()
        .find_map(|it| it.strip_prefix("listen-client-urls: "));
    let url = format!("https://{client}");
    line.is_some_and(|it| it.trim_matches('\'').split(',').any(|it| it == url))
}

/// The same for clients of these addresses alone.
pub fn listening_on(conf: &str, clients: &[SocketAddr]) -> String {
    let all: Vec<String> = clients.iter().map(|it| format!("https://{it}")).collect();
    let listening = |line: &str| match line.strip_prefix("listen-client-urls: ") {
        Some(_) => format!("listen-client-urls: {}\n", quoted(&all.join(","))),
        None => format!("{line}\n"),
    };
    conf.lines().map(listening).collect()
}

/// The same with the list that a member joins by.
pub fn with_initial_cluster(conf: &str, list: &str) -> String {
    let listed = |line: &str| match line.strip_prefix("initial-cluster: ") {
        Some(_) => format!("initial-cluster: {}\n", quoted(list)),
        None => format!("{line}\n"),
    };
    conf.lines().map(listed).collect()
}

/// Environment variables for etcd's Go runtime. No `ETCD_*` is ever set (rule D6).
pub fn environment(spec: &ClusterSpec) -> Vec<(&'static str, String)> {
    let mut variables = Vec::new();
    if spec.profile == Profile::Edge {
        variables.push(("GOGC", "50".to_owned())); // less memory for a little more CPU
    }
    if let Some(limit) = spec.options.memory_limit {
        variables.push(("GOMEMLIMIT", limit.to_string()));
    }
    variables
}

/// etcd's configuration file.
pub fn etcd_conf_yaml(spec: &ClusterSpec, line: Line, place: &Place<'_>) -> String {
    let mut text = String::with_capacity(2048);
    text.push_str("# Written by etcd-operator before each start it makes; edits are lost.\n");
    let mut put = |key: &str, value: &str| {
        let _ = writeln!(text, "{key}: {value}");
    };
    cluster_and_network(spec, place, &mut put);
    storage_and_limits(spec, line, place, &mut put);
    security(line, place, &mut put);
    // A configuration file's default is not the flag's: off.
    put(
        "enable-grpc-gateway",
        if spec.options.http_gateway {
            "true"
        } else {
            "false"
        },
    );
    logging(spec, place, &mut put);
    text
}

type Put<'a> = dyn FnMut(&str, &str) + 'a;

/// A text as YAML spells any of one line.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Whether etcd with this configuration answers JSON over HTTP.
pub fn has_gateway(conf: &str) -> bool {
    conf.contains("\nenable-grpc-gateway: true\n")
}

/// An address as a URL spells it.
pub fn url_host(address: &str) -> String {
    if address.contains(':') {
        format!("[{address}]")
    } else {
        address.to_owned()
    }
}

/// The host of a URL that [`url_host`] wrote.
pub fn host_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let host = rest.rsplit_once(':').map_or(rest, |(host, _)| host);
    host.trim_matches(['[', ']'])
}

/// The addresses at which peers are waited for: the one of the peer URL, or all where that is a name.
pub fn listen_for_peers(peer_url: &str, all: &[IpAddr]) -> Vec<IpAddr> {
    let address = host_of(peer_url).parse();
    address.map_or_else(|_| all.to_vec(), |it| vec![it])
}

fn urls<'a>(hosts: impl Iterator<Item = &'a str>, port: u16) -> String {
    hosts
        .map(|it| format!("https://{}:{port}", url_host(it)))
        .collect::<Vec<_>>()
        .join(",")
}

fn cluster_and_network(spec: &ClusterSpec, place: &Place<'_>, put: &mut Put<'_>) {
    let listen: Vec<String> = place.listen.iter().map(ToString::to_string).collect();
    put("name", &quoted(place.member));
    put("initial-cluster", &quoted(place.initial_cluster));
    put("initial-cluster-state", place.initial_state);
    put("initial-cluster-token", &quoted(place.token));
    put("strict-reconfig-check", "true"); // rule D19
    put(
        "listen-client-urls",
        &quoted(&urls(
            listen.iter().map(String::as_str),
            spec.network.client_port,
        )),
    );
    put(
        "advertise-client-urls",
        &quoted(&urls(
            place.advertised.iter().map(String::as_str),
            spec.network.client_port,
        )),
    );
    let peers = listen_for_peers(place.peer_urls, place.listen);
    let peers: Vec<String> = peers.iter().map(ToString::to_string).collect();
    put(
        "listen-peer-urls",
        &quoted(&urls(
            peers.iter().map(String::as_str),
            spec.network.peer_port,
        )),
    );
    put("initial-advertise-peer-urls", &quoted(place.peer_urls));
    put(
        "listen-metrics-urls",
        &quoted(&format!(
            "http://{}:{}",
            url_host(&place.metrics_listen.to_string()),
            spec.network.metrics_port
        )),
    );
    let (heartbeat, election) = timing(spec);
    put("heartbeat-interval", &heartbeat.to_string());
    put("election-timeout", &election.to_string());
}

fn storage_and_limits(spec: &ClusterSpec, line: Line, place: &Place<'_>, put: &mut Put<'_>) {
    let tuning = tuning(spec.profile);
    put("data-dir", &quoted(place.data_dir));
    put("quota-backend-bytes", &place.quota.to_string());
    put(
        "snapshot-count",
        &spec
            .options
            .snapshot_count
            .unwrap_or(tuning.snapshot_count)
            .to_string(),
    );
    let catchup = match line {
        Line::V3_5 => "experimental-snapshot-catch-up-entries",
        Line::V3_6 | Line::V3_7 => "snapshot-catchup-entries",
    };
    put(catchup, &tuning.catchup_entries.to_string());
    put("backend-batch-interval", &tuning.batch_interval.to_string());
    put("max-wals", &tuning.max_wals.to_string());
    if line == Line::V3_5 {
        // Deprecated since: newer lines keep the number that they need themselves.
        put("max-snapshots", &tuning.max_snapshots.to_string());
    }
    if line >= Line::V3_6 {
        // A cluster that grows adds all its new members at once. In 3.5 this is no key of the file.
        put("max-learners", &LEARNERS_MAX.to_string());
    }
    if let Some(bytes) = spec.options.max_request_bytes {
        put("max-request-bytes", &bytes.to_string());
    }
    if let Some(operations) = spec.options.max_txn_ops {
        put("max-txn-ops", &operations.to_string());
    }
    let (mode, retention) = match spec.options.auto_compaction {
        AutoCompaction::Hours(hours) => ("periodic", format!("{hours}h")),
        AutoCompaction::Revisions(revisions) => ("revision", revisions.to_string()),
        AutoCompaction::Off => ("periodic", "0".to_owned()),
    };
    put("auto-compaction-mode", mode);
    put("auto-compaction-retention", &quoted(&retention));
    if spec.members.len() > 1 {
        corruption_checks(line, put);
    }
}

/// Both compare with peers. Alone they find nothing, and still the one hashes the whole database at
/// each start and the other writes two lines a minute to the log, which keeps flash from ever being
/// at rest.
fn corruption_checks(line: Line, put: &mut Put<'_>) {
    match line {
        Line::V3_5 => {
            put("experimental-initial-corrupt-check", "true");
            put("experimental-compact-hash-check-enabled", "true");
        }
        Line::V3_6 | Line::V3_7 => {
            put(
                "feature-gates",
                "'InitialCorruptCheck=true,CompactHashCheck=true'",
            );
        }
    }
}

fn security(line: Line, place: &Place<'_>, put: &mut Put<'_>) {
    let tls = |file: &str| quoted(&format!("{}/{file}", place.tls_dir));
    let section = |name: &str, ca: &str| {
        format!(
            "\n  cert-file: {}\n  key-file: {}\n  client-cert-auth: true\n  trusted-ca-file: {}",
            tls(&format!("{name}.crt")),
            tls(&format!("{name}.key")),
            tls(ca),
        )
    };
    put(
        "client-transport-security",
        &section("server", "client-ca.crt"),
    );
    let mut peer = section("peer", "peer-ca.crt");
    if line >= Line::V3_6 {
        // Peers are trusted by their CA, not by their address. In 3.5 this is a flag only, and a
        // configuration file excludes flags: there a cluster has one member.
        peer.push_str("\n  skip-client-san-verification: true");
    }
    put("peer-transport-security", &peer);
    put("tls-min-version", "TLS1.2"); // rule D43
}

fn logging(spec: &ClusterSpec, place: &Place<'_>, put: &mut Put<'_>) {
    put("logger", "zap");
    put("log-level", spec.options.log_level);
    match place.log_file {
        Some(file) => {
            let stdout = if place.log_stdout { "stdout, " } else { "" };
            put("log-outputs", &format!("[{stdout}{}]", quoted(file)));
            put("enable-log-rotation", "true");
            // MB; the log is bounded by 3 x 4 MB.
            put(
                "log-rotation-config-json",
                r#"'{"maxsize": 4, "maxbackups": 2}'"#,
            );
        }
        None => put("log-outputs", "[stderr]"),
    }
}
