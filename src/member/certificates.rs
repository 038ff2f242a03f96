//! The certificates of this host as the core sees them: one bounded summary.

use std::collections::BTreeMap;
use std::path::Path;

use super::records;
use crate::clock;
use crate::cluster::ADMIN;
use crate::cluster::Timestamp;
use crate::observed::{CaState, Certificates as Summary, Clock, Observed, Pairs};
use crate::plan::certificate::due;
use crate::render;
use crate::spec::ClusterSpec;
use crate::start::CertificatesUsable;
use crate::tls::{Certificates, Issued, Leaf, Leaves, TlsError, Usability, Validity};

/// What clients are told and who the document names.
pub struct Wanted<'a> {
    /// Names and addresses that the server's certificate must carry.
    pub names: &'a [String],
    /// The same of the peer's certificate.
    pub peer_names: &'a [String],
    /// Clients of the document; `admin` comes on top.
    pub clients: &'a [&'a str],
    /// Whether renewals may go by the clock.
    pub clock: Clock,
}

/// Reads and judges all certificates in use.
pub fn survey(certificates: &Certificates, now: Timestamp, wanted: &Wanted<'_>) -> Summary {
    let mut pairs = Pairs::Usable;
    let mut leaves = Vec::new();
    for (role, leaf) in certificates.leaves() {
        match leaf {
            Ok(leaf) => {
                let names = match role {
                    "server" => wanted.names,
                    "peer" => wanted.peer_names,
                    _ => &[],
                };
                pairs = worst(pairs, pairs_of(&leaf, now));
                if !names.iter().all(|it| leaf.names.contains(it)) {
                    pairs = worst(pairs, Pairs::AddressesDiffer);
                }
                leaves.push(leaf);
            }
            Err(Usability::Missing) => pairs = worst(pairs, Pairs::Missing),
            Err(Usability::Broken(_)) => pairs = worst(pairs, Pairs::Broken),
        }
    }
    let issued = certificates.issued();
    let asked = issued.keys().map(String::as_str);
    let renewed: Vec<&str> = wanted
        .clients
        .iter()
        .copied()
        .chain([ADMIN])
        .chain(asked)
        .collect();
    Summary {
        pairs,
        provisional: leaves.iter().any(Leaf::is_provisional),
        not_before: leaves
            .iter()
            .map(|it| it.not_before)
            .max()
            .unwrap_or(Timestamp(0)),
        not_after: leaves
            .iter()
            .map(|it| it.not_after)
            .min()
            .unwrap_or(Timestamp(0)),
        authorities: if certificates.authorities_usable() {
            CaState::Usable
        } else {
            CaState::Damaged
        },
        authority_not_after: certificates.authority_not_after().unwrap_or(Timestamp(0)),
        // The key that signs is made with them.
        clients_due: certificates.has_authorities() && !certificates.has_signer()
            || renewed
                .iter()
                .any(|it| client_due(certificates, it, now, wanted.clock)),
        issued_earliest: not_renewed(certificates, &issued, &renewed),
    }
}

/// What ends first among the certificates that nobody renews: copies that a person had made, and clients
/// that the document named once.
fn not_renewed(
    certificates: &Certificates,
    issued: &BTreeMap<String, Issued>,
    renewed: &[&str],
) -> Option<(heapless::String<63>, Timestamp)> {
    let copies = issued.iter().flat_map(|(name, it)| {
        let ends = it.copies.values().map(|end| Timestamp(*end));
        ends.map(move |end| (name.clone(), end))
    });
    let clients = certificates.clients().into_iter();
    let forgotten = clients.filter(|it| !renewed.contains(&it.as_str()));
    let forgotten = forgotten.filter_map(|name| {
        let leaf = certificates.client_leaf(&name).ok()?;
        Some((name, leaf.not_after))
    });
    let (name, end) = copies.chain(forgotten).min_by_key(|(_, end)| *end)?;
    Some((heapless::String::try_from(name.as_str()).ok()?, end))
}

/// Judges certificates and clock together: the clock's trust depends on what is dated, and renewal on the
/// clock's trust. `trust`: of the clock, where this is the latest beginning among the leaves.
pub fn survey_by_clock(
    certificates: &Certificates,
    now: Timestamp,
    names: &[String],
    spec: &ClusterSpec,
    trust: impl FnOnce(Option<Timestamp>) -> Clock,
) -> (Summary, Clock) {
    let clients: Vec<&str> = spec.clients.iter().map(heapless::String::as_str).collect();
    let peer_names = peer_names(spec);
    let wanted = |clock| Wanted {
        names,
        peer_names: &peer_names,
        clients: &clients,
        clock,
    };
    let dated = survey(certificates, now, &wanted(Clock::Unsynchronised));
    let clock = trust((dated.not_before.0 > 0).then_some(dated.not_before));
    if clock == Clock::Trusted {
        (survey(certificates, now, &wanted(clock)), clock)
    } else {
        (dated, clock)
    }
}

/// Whether a client needs a new certificate: it has no usable one, or, by a clock
/// that can be believed, renewal is due.
pub fn client_due(certificates: &Certificates, name: &str, now: Timestamp, clock: Clock) -> bool {
    let Ok(leaf) = certificates.client_leaf(name) else {
        return true;
    };
    let renewal = leaf.is_provisional() || due(leaf.not_before, leaf.not_after, now);
    pairs_of(&leaf, now) != Pairs::Usable || clock == Clock::Trusted && renewal
}

/// Whether etcd may be started with them: what is not usable is made before the start, unless there is
/// nothing to sign it with.
pub fn usable(certificates: &Summary) -> CertificatesUsable {
    match certificates.pairs {
        Pairs::Usable | Pairs::AddressesDiffer => CertificatesUsable::Yes,
        _ if certificates.can_be_made() => CertificatesUsable::Yes,
        _ => CertificatesUsable::No,
    }
}

/// How long new leaves live: by a trusted clock, or whatever the clock says.
pub fn validity(spec: &ClusterSpec, observed: &Observed, storage_dir: &Path) -> Validity {
    match observed.clock {
        Clock::Trusted => Validity::trusted(observed.now, spec.leaf_seconds),
        Clock::BehindKnown { newest } => Validity::provisional(newest, spec.leaf_seconds),
        Clock::Unsynchronised => {
            let data = records::data_dir(storage_dir);
            let newest = clock::newest_known(&data, Some(observed.now));
            Validity::provisional(newest, spec.leaf_seconds)
        }
    }
}

/// What the certificates of peers name: all of them have one where they share a Secret.
pub fn peer_names(spec: &ClusterSpec) -> Vec<String> {
    let all = spec.members.iter().chain(&spec.former);
    let mut names: Vec<String> = all
        .map(|it| render::host_of(&it.peer_url).to_owned())
        .collect();
    names.push(render::host_of(&spec.peer_url()).to_owned());
    names.sort();
    names.dedup();
    names
}

/// Longer than any trial takes, in seconds.
const TRIAL_SECONDS: i64 = 86_400;

/// Makes keys for the etcd of a trial, which listens on loopback.
///
/// # Errors
/// They could not be made or written.
pub fn mint_for_a_trial(keys: &Certificates, spec: &ClusterSpec) -> Result<(), TlsError> {
    let validity = Validity::trusted(clock::now(), TRIAL_SECONDS);
    mint(keys, spec, &["127.0.0.1".to_owned()], validity)
}

/// New leaves for etcd and the operator, and the CAs where there are none.
pub fn mint(
    certificates: &Certificates,
    spec: &ClusterSpec,
    names: &[String],
    validity: Validity,
) -> Result<(), TlsError> {
    certificates.ensure_authorities(&spec.name, validity.not_after)?;
    certificates.mint(&Leaves {
        names,
        peer_names: &peer_names(spec),
        cluster: &spec.name,
        validity,
    })
}

/// New leaves for the document's clients, and those that a person asked for, where they need one.
pub fn issue_due(
    certificates: &Certificates,
    spec: &ClusterSpec,
    observed: &Observed,
    validity: Validity,
) -> Result<(), TlsError> {
    certificates.ensure_authorities(&spec.name, validity.not_after)?;
    let issued = certificates.issued();
    let declared = spec.clients.iter().map(heapless::String::as_str);
    let asked = issued.keys().map(String::as_str);
    let due = |name: &&str| client_due(certificates, name, observed.now, observed.clock);
    // One that cannot be written keeps no other one from its certificate.
    let due = declared.chain([ADMIN]).chain(asked).filter(due);
    let made = due.map(|it| certificates.issue(it, validity).map(drop));
    made.fold(Ok(()), Result::and)
}

/// Whether a sound pair is valid now.
fn pairs_of(leaf: &Leaf, now: Timestamp) -> Pairs {
    if now > leaf.not_after {
        Pairs::Expired
    } else if now < leaf.not_before {
        Pairs::NotYetValid
    } else {
        Pairs::Usable
    }
}

fn worst(one: Pairs, other: Pairs) -> Pairs {
    let rank = |it| match it {
        Pairs::Missing => 5,
        Pairs::Broken => 4,
        Pairs::Expired => 3,
        Pairs::NotYetValid => 2,
        Pairs::AddressesDiffer => 1,
        Pairs::Usable => 0,
    };
    if rank(other) > rank(one) { other } else { one }
}
