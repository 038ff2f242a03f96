//! What is asked for: the document after the parser, valid by construction.
//!
//! It knows no serde and no file. [`crate::api::convert`] is the only way in.

pub mod backup;
pub mod field;

use core::fmt::Write as _;

use crate::cluster::{ClusterName, Member, MemberName, MemberSet, PeerUrl, VOTERS_MAX};
use crate::version::Version;

/// Client certificates that a document may name (`spec.clients`).
pub const CLIENTS_MAX: usize = 16;
/// Addresses in each list of `spec.network`.
pub const ADDRESSES_MAX: usize = 4;
/// The default of the database quota when little is known (rule D27).
pub const QUOTA_DEFAULT: u64 = 2 << 30;
/// No quota below this is accepted: etcd needs room for its own bookkeeping.
pub const QUOTA_MIN: u64 = 16 << 20;

/// The quota at birth of a document that names none, by the `room` for the database (rule D27).
pub fn quota_at_birth(room: u64) -> u64 {
    // In whole MiB, as a document says it.
    room.clamp(QUOTA_MIN, QUOTA_DEFAULT) >> 20 << 20
}

/// An IP address or a DNS name.
pub type Address = heapless::String<253>;

/// What a cluster shall be.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the document"
)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSpec {
    /// The document's name.
    pub name: ClusterName,
    /// Voting members; 0 stops etcd and keeps everything.
    pub size: u8,
    /// The members that shall exist. A cluster is born as the first one and grows.
    pub members: heapless::Vec<MemberSpec, VOTERS_MAX>,
    /// Places of the same cluster that the document does not ask for now, as far as the home knows them: etcd lists
    /// a learner that never started by its URL alone. The homes of several members fill it.
    pub former: heapless::Vec<MemberSpec, VOTERS_MAX>,
    /// Which of them this process runs, where it runs one: an index.
    pub own: usize,
    /// `None`: the newest supported one in the store at birth.
    pub version: Option<Version>,
    /// Observe and report only.
    pub paused: bool,
    /// Defaults.
    pub profile: Profile,
    /// In bytes; latched at birth. `None`: by the free disk.
    pub quota: Option<u64>,
    /// Where the data lies; `None`: in the state directory.
    pub storage_path: Option<heapless::String<256>>,
    /// Data may lie on a file system that loses it.
    pub unsafe_filesystem_allowed: bool,
    /// Ports and addresses.
    pub network: Network,
    /// Life of a leaf certificate, in seconds.
    pub leaf_seconds: i64,
    /// Who gets a client certificate; `admin` is always among them.
    pub clients: heapless::Vec<heapless::String<63>, CLIENTS_MAX>,
    /// etcd's settings.
    pub options: Options,
    /// At the quota: compact, defragment, accept writes again.
    pub repair_no_space: bool,
    /// Snapshots.
    pub backup: Option<backup::Backup>,
    /// Where the data of a new cluster comes from; used only with an empty data directory.
    pub bootstrap: Option<backup::Source>,
    /// Data that etcd cannot start from is replaced by the newest verified local snapshot.
    pub restore_when_damaged: bool,
    /// One of several members that has failed is replaced.
    pub replace_failed: bool,
    /// A member of which nothing is heard for so many seconds has failed.
    pub grace_seconds: u64,
    /// The members get this version without a rehearsal.
    pub skip_rehearsal: Option<Version>,
    /// Changes exactly when the document asks for another running etcd (settings, network,
    /// profile). A new operator with other defaults does not change it.
    pub settings: Settings,
}

/// The name of a cluster's member: `NAME-0`, `NAME-1` and so on.
pub fn member_name(cluster: &str, index: u8) -> MemberName {
    let mut name = MemberName::new();
    let _ = write!(name, "{cluster}-{index}");
    name
}

/// A member that shall exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberSpec {
    /// Its name.
    pub name: MemberName,
    /// Where its peers reach it.
    pub peer_url: PeerUrl,
}

impl MemberSpec {
    /// Its entry in etcd's member list.
    pub fn listed_in<'a>(&self, members: &'a MemberSet) -> Option<&'a Member> {
        members.entry(&self.name, &self.peer_url)
    }

    /// Whether an entry of etcd's member list is of this place: by its name, or by its peer URL while it has never
    /// started.
    pub fn is_of(&self, member: &Member) -> bool {
        if member.name.is_empty() {
            self.peer_url == member.peer_url
        } else {
            self.name == member.name
        }
    }
}

impl ClusterSpec {
    /// The member that this process runs, also one that the document does not ask for now; `None` on a host at size 0.
    pub fn own(&self) -> Option<&MemberSpec> {
        self.members.iter().chain(&self.former).nth(self.own)
    }

    /// Where the peers of this process' member reach it.
    pub fn peer_url(&self) -> PeerUrl {
        let own = self.own().map(|it| it.peer_url.clone());
        own.unwrap_or_else(|| self.network.peer_url())
    }

    /// The place that an entry of etcd's member list has in the document.
    pub fn place_of(&self, member: &Member) -> Option<&MemberSpec> {
        self.members.iter().find(|it| it.is_of(member))
    }

    /// A member's name. One that never started is listed by its URL alone, and has the name of its place.
    pub fn name_of<'a>(&'a self, member: &'a Member) -> &'a MemberName {
        self.place_of(member).map_or(&member.name, |it| &it.name)
    }

    /// The first member that etcd's member list lacks.
    pub fn missing(&self, members: &MemberSet) -> Option<&MemberSpec> {
        let lacks = |it: &&MemberSpec| it.listed_in(members).is_none();
        self.members.iter().find(lacks)
    }

    /// Whether this is the name of a member of this cluster, of any size, as [`member_name`] makes them.
    pub fn is_member_name(&self, name: &str) -> bool {
        let number = name.strip_prefix(self.name.as_str());
        let number = number.and_then(|it| it.strip_prefix('-'));
        number.is_some_and(|it| !it.is_empty() && it.bytes().all(|it| it.is_ascii_digit()))
    }

    /// The member with this name.
    pub fn member(&self, name: &str) -> Option<&MemberSpec> {
        self.members.iter().find(|it| it.name == name)
    }
}

/// A hash over what the document says of the running etcd, defaults left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings(pub u64);

/// A set of defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Small boxes and flash.
    Edge,
    /// etcd's own.
    Standard,
}

/// Ports and addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// Clients, with mutual TLS.
    pub client_port: u16,
    /// Members, with mutual TLS.
    pub peer_port: u16,
    /// Metrics, plain, loopback only.
    pub metrics_port: u16,
    /// Empty: loopback and the host's address.
    pub listen: heapless::Vec<core::net::IpAddr, ADDRESSES_MAX>,
    /// Empty: the addresses listened on.
    pub advertised: heapless::Vec<Address, ADDRESSES_MAX>,
}

impl Network {
    /// Where the only member's peers would find it.
    pub fn peer_url(&self) -> PeerUrl {
        let mut url = PeerUrl::new();
        let _ = write!(url, "https://127.0.0.1:{}", self.peer_port);
        url
    }
}

/// etcd's settings; `None` follows the profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Which old revisions are forgotten.
    pub auto_compaction: AutoCompaction,
    /// Milliseconds.
    pub heartbeat: Option<u32>,
    /// Milliseconds.
    pub election: Option<u32>,
    /// Entries.
    pub snapshot_count: Option<u32>,
    /// Bytes.
    pub max_request_bytes: Option<u64>,
    /// Operations.
    pub max_txn_ops: Option<u32>,
    /// Bytes, for Go's runtime.
    pub memory_limit: Option<u64>,
    /// JSON over HTTP is answered, too.
    pub http_gateway: bool,
    /// As etcd spells it.
    pub log_level: &'static str,
}

/// Which old revisions are forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutoCompaction {
    /// Those older than so many hours.
    Hours(u32),
    /// All but so many.
    Revisions(u32),
    /// None; a client compacts.
    Off,
}
