//! Addresses, directories and names of this host's member, from the document and the host.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;

use super::certificates;
use super::records::{self, IdentityFile, Launch};
use crate::paths::Paths;
use crate::render::{self, Place};
use crate::spec::ClusterSpec;
use crate::version::Version;

/// Where this host's member lives and how it is reached.
#[derive(Clone, Debug)]
pub struct HostPlace {
    /// Holds the data directory and the marker.
    pub storage_dir: PathBuf,
    /// The document named it.
    pub storage_named: bool,
    /// On which clients are served.
    pub listen: Vec<IpAddr>,
    /// What clients are told.
    pub advertised: Vec<String>,
    /// Everything that the server's certificate names (rule D40).
    pub names: Vec<String>,
    /// For the operator and clients on this host.
    pub client_url: String,
    /// etcd's metrics.
    pub metrics_url: String,
    /// Where etcd serves them.
    pub metrics_listen: IpAddr,
    /// etcd logs to standard output, too.
    pub log_stdout: bool,
}

/// Resolves what the document leaves open.
pub fn resolve(paths: &Paths, spec: &ClusterSpec) -> HostPlace {
    let listen: Vec<IpAddr> = if spec.network.listen.is_empty() {
        std::iter::once(IpAddr::V4(Ipv4Addr::LOCALHOST))
            .chain(host_address())
            .collect()
    } else {
        // As Go has them: ::ffff:10.0.0.1 is 10.0.0.1.
        let mut listen: Vec<IpAddr> = Vec::new();
        for address in spec.network.listen.iter().map(IpAddr::to_canonical) {
            if !listen.contains(&address) {
                listen.push(address);
            }
        }
        listen
    };
    let reachable: Vec<String> = listen
        .iter()
        .filter_map(|it| {
            if it.is_unspecified() {
                host_address()
            } else {
                Some(*it)
            }
        })
        .map(|it| it.to_string())
        .collect();
    let advertised: Vec<String> = match (spec.network.advertised.as_slice(), reachable.as_slice()) {
        ([], []) => vec!["127.0.0.1".to_owned()],
        ([], reachable) => reachable.to_vec(),
        (named, _) => named.iter().map(ToString::to_string).collect(),
    };
    let mut names: Vec<String> = advertised.clone();
    names.extend(reachable);
    names.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
    names.extend(hostname());
    names.sort();
    names.dedup();
    let loopback = listen.iter().find(|it| it.is_loopback()).copied();
    let own = match (loopback, listen.first()) {
        (Some(loopback), _) => loopback,
        (None, Some(first)) if !first.is_unspecified() => *first,
        _ => IpAddr::V4(Ipv4Addr::LOCALHOST),
    };
    // One socket of both families: another address of the same port could not be listened on beside it.
    let wildcard = listen.iter().find(|it| it.is_unspecified()).copied();
    let listen = wildcard.map_or(listen, |it| vec![it]);
    HostPlace {
        storage_named: spec.storage_path.is_some(),
        storage_dir: spec
            .storage_path
            .as_ref()
            .map_or_else(|| paths.member(), |it| PathBuf::from(it.as_str())),
        client_url: format!(
            "https://{}:{}",
            render::url_host(&own.to_string()),
            spec.network.client_port
        ),
        metrics_url: format!("http://127.0.0.1:{}", spec.network.metrics_port),
        metrics_listen: IpAddr::V4(Ipv4Addr::LOCALHOST),
        log_stdout: false,
        listen,
        advertised,
        names,
    }
}

/// The address from which this host would reach others. Nothing is sent: connecting a datagram
/// socket only asks the kernel for a route (to an address reserved for documentation).
pub fn host_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

/// This host's name, where it can stand in a certificate.
pub fn hostname() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()?
        .trim()
        .to_lowercase();
    let usable = name
        .bytes()
        .all(|it| it.is_ascii_alphanumeric() || it == b'-' || it == b'.');
    (usable && !name.is_empty() && name.len() <= 253 && name.as_bytes()[0] != b'.').then_some(name)
}

impl HostPlace {
    /// Where clients are served.
    fn clients(&self, spec: &ClusterSpec) -> Vec<SocketAddr> {
        let at = |it: &IpAddr| SocketAddr::new(*it, spec.network.client_port);
        self.listen.iter().map(at).collect()
    }

    /// Every address that etcd listens on. On a host a single member's peers are on loopback: its address
    /// may change without a word (rule A13).
    fn addresses(&self, spec: &ClusterSpec) -> Vec<SocketAddr> {
        let network = &spec.network;
        let peers = render::listen_for_peers(&spec.peer_url(), &self.listen);
        let mut all = self.clients(spec);
        all.extend(
            peers
                .iter()
                .map(|it| SocketAddr::new(*it, network.peer_port)),
        );
        all.push(SocketAddr::new(self.metrics_listen, network.metrics_port));
        all
    }

    /// What the guard needs, as far as it is known before a birth: all but etcd's configuration.
    pub fn launch(&self, spec: &ClusterSpec, version: Version) -> Launch {
        Launch {
            cluster: spec.name.to_string(),
            version: version.to_string(),
            storage_dir: self.storage_dir.clone(),
            storage_named: self.storage_named,
            unsafe_filesystem_allowed: spec.unsafe_filesystem_allowed,
            addresses: self.addresses(spec),
            names: self.names.clone(),
            peer_names: certificates::peer_names(spec),
            leaf_seconds: spec.leaf_seconds,
            environment: render::environment(spec)
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect(),
            conf: String::new(),
            quota: 0,
            client_url: self.client_url.clone(),
            metrics: SocketAddr::new(self.metrics_listen, spec.network.metrics_port),
            settings: spec.settings.0,
            asked: serde_json::Value::Null,
            hibernates: spec.size == 0,
        }
    }

    /// The same with etcd's configuration; `None` for a version of an unknown line. `joins`: the
    /// `initial-cluster` of a member that joins.
    pub fn launch_of(
        &self,
        paths: &Paths,
        spec: &ClusterSpec,
        identity: &IdentityFile,
        joins: Option<&str>,
    ) -> Option<Launch> {
        let version = identity.member.version.parse().ok()?;
        Some(Launch {
            conf: self.etcd_conf(paths, spec, identity, joins)?,
            quota: identity.member.quota,
            ..self.launch(spec, version)
        })
    }

    /// etcd's configuration for this host; `None` for a version of an unknown line.
    pub fn etcd_conf(
        &self,
        paths: &Paths,
        spec: &ClusterSpec,
        identity: &IdentityFile,
        joins: Option<&str>,
    ) -> Option<String> {
        let line = identity.member.version.parse::<Version>().ok()?.line()?;
        let peer_urls = spec.peer_url();
        let own = format!("{}={peer_urls}", identity.member.name);
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        let data_dir = text(records::data_dir(&self.storage_dir));
        let tls_dir = text(paths.tls().join("current"));
        let log_file = text(paths.etcd_log());
        let place = Place {
            member: &identity.member.name,
            data_dir: &data_dir,
            tls_dir: &tls_dir,
            log_file: Some(&log_file),
            log_stdout: self.log_stdout,
            metrics_listen: self.metrics_listen,
            quota: identity.member.quota,
            listen: &self.listen,
            advertised: &self.advertised,
            token: &identity.cluster.token,
            initial_cluster: joins.unwrap_or(&own),
            peer_urls: &peer_urls,
            // Once there is data, etcd ignores it (rule D2). Without data a member that joins never makes a
            // cluster of its own.
            initial_state: if identity.member.joined || joins.is_some() {
                "existing"
            } else {
                "new"
            },
        };
        Some(render::etcd_conf_yaml(spec, line, &place))
    }
}
