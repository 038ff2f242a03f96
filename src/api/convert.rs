//! From the wire to the core: the only place where a [`ClusterSpec`] is made.
//!
//! Structure and rules were checked before; what is left is what neither can say, such as whether
//! a text of the right characters is an IP address.

mod backup;

use std::fmt;
use std::net::IpAddr;

use serde_json::Value;

use super::{
    AutoCompactionMode, EtcdClusterSpec, LogLevel, MemberRecovery, OnNoSpace, Profile,
    UnsafeFilesystem, formats,
};
use crate::cluster::ClusterName;
use crate::error::shown;
use crate::spec::field::FIELDS;
use crate::spec::{self, AutoCompaction, ClusterSpec, MemberSpec, Settings};
use crate::version::Version;

/// A value that the core cannot hold: where, what was found, what is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// Path in the document.
    pub path: String,
    /// What is there.
    pub found: String,
    /// What is wrong with it, where that can be said in short.
    pub fault: Option<String>,
    /// What may be there.
    pub allowed: &'static str,
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = shown(&self.found, SHOWN_MAX);
        match &self.fault {
            Some(fault) => write!(f, "found '{found}': {fault}; allowed: {}", self.allowed),
            None => write!(f, "found '{found}', allowed: {}", self.allowed),
        }
    }
}

/// Characters of a value that a message shows.
const SHOWN_MAX: usize = 60;

fn misfit(path: impl Into<String>, found: &str, allowed: &'static str) -> Misfit {
    Misfit {
        path: path.into(),
        found: found.to_owned(),
        fault: None,
        allowed,
    }
}

/// Makes the specification, or says everything that stands in the way.
pub fn to_spec(name: &str, wire: &EtcdClusterSpec) -> Result<ClusterSpec, Vec<Misfit>> {
    let mut problems = Vec::new();
    let cluster = ClusterName::try_from(name).unwrap_or_default();
    if cluster.is_empty() || name.len() > 50 || !crate::cluster::is_dns_label(name) {
        problems.push(Misfit {
            fault: formats::name_fault(name),
            ..misfit(
                "metadata.name",
                name,
                "lower-case letters, digits and '-', at most 50",
            )
        });
    }
    let network = network(wire, &mut problems);
    let options = options(wire, &mut problems);
    let version = version_of("spec.version", wire.version.as_deref(), &mut problems);
    let skip = wire.upgrade.skip_rehearsal.as_deref();
    let skip_rehearsal = version_of("spec.upgrade.skipRehearsal", skip, &mut problems);
    let quota = quantity(
        "spec.storage.quota",
        wire.storage.quota.as_deref(),
        &mut problems,
    );
    let storage_path = wire.storage.path.as_deref().and_then(|path| {
        let fits = heapless::String::try_from(path).ok();
        if fits.is_none() {
            problems.push(misfit("spec.storage.path", path, "at most 256 bytes"));
        }
        fits
    });
    let clients = clients(wire, &mut problems);
    let backup = backup::backup(wire, &mut problems);
    let bootstrap = backup::bootstrap(wire, &mut problems);
    let mut members = heapless::Vec::new();
    for index in 0..wire.size {
        let _ = members.push(MemberSpec {
            name: spec::member_name(name, index),
            peer_url: network.peer_url(),
        });
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    Ok(ClusterSpec {
        name: cluster,
        size: wire.size,
        members,
        former: heapless::Vec::new(),
        own: 0,
        version,
        paused: wire.paused,
        profile: match wire.profile {
            Profile::Edge => spec::Profile::Edge,
            Profile::Standard => spec::Profile::Standard,
        },
        quota,
        storage_path,
        unsafe_filesystem_allowed: wire.storage.unsafe_filesystem == UnsafeFilesystem::Allow,
        network,
        leaf_seconds: i64::from(wire.tls.leaf_days) * 86_400,
        clients,
        options,
        repair_no_space: wire.maintenance.on_no_space == OnNoSpace::Repair,
        backup,
        bootstrap,
        restore_when_damaged: wire.recovery.restores(),
        replace_failed: wire.recovery.member == MemberRecovery::Replace,
        grace_seconds: wire.recovery.grace_seconds(),
        skip_rehearsal,
        settings: settings(wire),
    })
}

fn version_of(path: &str, text: Option<&str>, problems: &mut Vec<Misfit>) -> Option<Version> {
    let text = text?;
    let version = text.parse().ok();
    if version.is_none() {
        problems.push(misfit(path, text, "a version such as 3.6.14"));
    }
    version
}

fn quantity(path: &str, text: Option<&str>, problems: &mut Vec<Misfit>) -> Option<u64> {
    let text = text?;
    let bytes = formats::bytes(text).filter(|it| i64::try_from(*it).is_ok());
    if bytes.is_none() {
        problems.push(misfit(path, text, "a size that fits 63 bits"));
    }
    bytes
}

fn network(wire: &EtcdClusterSpec, problems: &mut Vec<Misfit>) -> spec::Network {
    let mut listen = heapless::Vec::new();
    for (index, text) in wire.network.listen_addresses.iter().flatten().enumerate() {
        match text.parse::<IpAddr>() {
            Ok(address) if listen.contains(&address) => {}
            Ok(address) if listen.push(address).is_ok() => {}
            _ => problems.push(misfit(
                format!("spec.network.listenAddresses[{index}]"),
                text,
                "an IP address such as 192.168.1.10",
            )),
        }
    }
    let mut advertised = heapless::Vec::new();
    for (index, text) in wire
        .network
        .advertised_addresses
        .iter()
        .flatten()
        .enumerate()
    {
        let pushed = spec::Address::try_from(text.as_str())
            .ok()
            .map(|it| advertised.push(it));
        if !matches!(pushed, Some(Ok(()))) {
            let path = format!("spec.network.advertisedAddresses[{index}]");
            problems.push(misfit(path, text, "a DNS name or an IP address"));
        }
    }
    spec::Network {
        client_port: wire.network.client_port,
        peer_port: wire.network.peer_port,
        metrics_port: wire.network.metrics_port,
        listen,
        advertised,
    }
}

fn options(wire: &EtcdClusterSpec, problems: &mut Vec<Misfit>) -> spec::Options {
    let it = &wire.options;
    spec::Options {
        auto_compaction: match it.auto_compaction.mode {
            AutoCompactionMode::Periodic => AutoCompaction::Hours(it.auto_compaction.retention),
            AutoCompactionMode::Revision => AutoCompaction::Revisions(it.auto_compaction.retention),
            AutoCompactionMode::Disabled => AutoCompaction::Off,
        },
        heartbeat: it.heartbeat_milliseconds,
        election: it.election_milliseconds,
        snapshot_count: it.snapshot_count,
        max_request_bytes: quantity(
            "spec.options.maxRequestSize",
            it.max_request_size.as_deref(),
            problems,
        ),
        max_txn_ops: it.max_transaction_operations,
        memory_limit: quantity(
            "spec.options.memoryLimit",
            it.memory_limit.as_deref(),
            problems,
        ),
        http_gateway: it.http_gateway,
        log_level: match it.log_level {
            LogLevel::Debug => "debug",
            LogLevel::Info => "info",
            LogLevel::Warn => "warn",
            LogLevel::Error => "error",
        },
    }
}

fn clients(
    wire: &EtcdClusterSpec,
    problems: &mut Vec<Misfit>,
) -> heapless::Vec<heapless::String<63>, { spec::CLIENTS_MAX }> {
    let mut clients = heapless::Vec::new();
    for (index, client) in wire.clients.iter().enumerate() {
        let path = || format!("spec.clients[{index}].name");
        let pushed = heapless::String::try_from(client.name.as_str())
            .ok()
            .map(|it| clients.push(it));
        if !matches!(pushed, Some(Ok(()))) {
            problems.push(misfit(
                path(),
                &client.name,
                "at most 63 characters, at most 16 clients",
            ));
        }
    }
    clients
}

/// What the document says of the running etcd, by path: the fields that etcd is restarted for, where they
/// differ from the defaults. An operator with other defaults, or with more fields, says the same.
pub fn settings_of(wire: &EtcdClusterSpec) -> Value {
    let text = |it| serde_json::to_value(it).unwrap_or_default();
    let (asked, default) = (text(wire), text(&EtcdClusterSpec::default()));
    let fields = FIELDS.iter().filter(|it| it.class.is_setting());
    let said = fields.filter_map(|it| {
        let pointer = format!("/{}", it.path.replace('.', "/"));
        let value = asked.pointer(&pointer)?;
        let differs = default.pointer(&pointer) != Some(value);
        differs.then(|| (it.path.to_owned(), value.clone()))
    });
    // Timing and checks that only several members need.
    let several = (wire.size > 1).then(|| ("size".to_owned(), Value::from("several")));
    Value::Object(said.chain(several).collect())
}

/// FNV-1a over [`settings_of`]: stable across versions of Rust, unlike the standard library's hasher.
fn settings(wire: &EtcdClusterSpec) -> Settings {
    let said = settings_of(wire);
    let mut fields: Vec<_> = said.as_object().into_iter().flatten().collect();
    // Sorted here: a feature of serde_json would keep the order of the table.
    fields.sort_by_key(|(path, _)| path.as_str());
    let mut hash = 0xcbf2_9ce4_8422_2325;
    for (path, value) in fields {
        for byte in path.bytes().chain([0]).chain(value.to_string().bytes()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    Settings(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_etcd_sees_changes_the_settings() {
        let default = EtcdClusterSpec {
            size: 1,
            ..EtcdClusterSpec::default()
        };
        let of = |change: fn(&mut EtcdClusterSpec)| {
            let mut wire = default.clone();
            change(&mut wire);
            to_spec("one", &wire).unwrap().settings
        };
        let plain = of(|_| {});
        assert_eq!(plain, of(|it| it.size = 0));
        assert_ne!(plain, of(|it| it.size = 3));
        assert_eq!(of(|it| it.size = 3), of(|it| it.size = 5));
        assert_eq!(plain, of(|it| it.version = Some("3.6.14".to_owned())));
        assert_eq!(plain, of(|it| it.storage.quota = Some("64Mi".to_owned())));
        assert_eq!(plain, of(|it| it.tls.leaf_days = 30));
        assert_ne!(plain, of(|it| it.network.client_port = 1));
        assert_ne!(plain, of(|it| it.profile = Profile::Standard));
        assert_ne!(plain, of(|it| it.options.snapshot_count = Some(100)));
        // The values are a contract with the record that the previous operator wrote.
        assert_eq!(plain, Settings(0xcbf2_9ce4_8422_2325));
        assert_eq!(
            of(|it| it.network.client_port = 1),
            Settings(0x1437_660a_d578_399a)
        );
    }
}
