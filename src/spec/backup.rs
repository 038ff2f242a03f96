//! `spec.backup` and `spec.bootstrap`, after the parser.

use super::Address;

/// Places for snapshots.
pub const DESTINATIONS_MAX: usize = 4;
/// For how many seconds copies may wait for a link, where the document says nothing: a shop that is closed
/// for the night is no alert.
pub const COPY_GRACE_SECONDS: u64 = 86_400;
/// Public keys of one destination.
pub const RECIPIENTS_MAX: usize = 8;

/// Public keys of clusters that a document trusts.
pub const SIGNERS_MAX: usize = 8;

/// The public half of a key that signs snapshots.
pub type PublicKey = heapless::String<64>;

/// A path, a URL, a prefix.
pub type Text = heapless::String<256>;

/// Snapshots: when, where to, how well proven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backup {
    /// `None`: only when a person asks.
    pub trigger: Option<Trigger>,
    /// The first is local: there they are taken and proven, and from there copied to the others.
    pub destinations: heapless::Vec<Destination, DESTINATIONS_MAX>,
    /// 3, or 4 for a trial restore too.
    pub verify_level: u8,
    /// Seconds between two further checks of what is kept.
    pub verify_every: Option<u64>,
    /// Copies may wait for a link for so many seconds.
    pub copy_grace: u64,
    /// Public keys whose snapshots are restored without a person, besides the cluster's own.
    pub trusted_signers: heapless::Vec<PublicKey, SIGNERS_MAX>,
}

/// When snapshots are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// So many seconds after the last one; needs no clock.
    Every(u64),
    /// Five fields of cron, in UTC; waits for a trusted clock.
    Schedule(heapless::String<64>),
}

/// A place for snapshots, and which of them stay there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Where.
    pub place: Place,
    /// Which stay.
    pub keep: Keep,
}

impl Destination {
    /// The directory, where it is one of this host.
    pub fn local_path(&self) -> Option<&str> {
        match &self.place {
            Place::Local(path) => Some(path),
            Place::S3(_) => None,
        }
    }
}

/// Where snapshots lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A directory of the host.
    Local(Text),
    /// A bucket of an S3-compatible store.
    S3(S3),
}

/// A bucket of an S3-compatible store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3 {
    /// It is never created.
    pub bucket: heapless::String<63>,
    /// The beginning of every key; empty: none.
    pub prefix: Text,
    /// `None`: Amazon's.
    pub endpoint: Option<Text>,
    /// `None`: `us-east-1`.
    pub region: Option<heapless::String<64>>,
    /// The bucket in the path instead of the host name.
    pub path_style: bool,
    /// Further CAs.
    pub ca_file: Option<Text>,
    /// A file with the access keys.
    pub credentials: Option<Text>,
    /// Bytes in a second.
    pub bandwidth: Option<u64>,
    /// Public keys of age; empty: not encrypted.
    pub recipients: heapless::Vec<heapless::String<128>, RECIPIENTS_MAX>,
}

impl S3 {
    /// What others can see of what is sent there, on its way or where it lies; none where it is nothing.
    pub fn in_clear(&self) -> Option<&'static str> {
        let endpoint = self.endpoint.as_ref();
        let http = endpoint.is_some_and(|it| it.starts_with("http://"));
        match (self.recipients.is_empty(), http) {
            (true, true) => Some("not encrypted, and sent over http"),
            (true, false) => Some("not encrypted: who can read the bucket can read every key"),
            (false, true) => Some("sent over http: names and sizes can be seen on the way"),
            (false, false) => None,
        }
    }
}

/// Which snapshots stay: whatever any of these keeps, within the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// The newest so many.
    pub last: u32,
    /// The newest of each of so many hours, days and weeks that have one.
    pub hourly: u32,
    /// Days.
    pub daily: u32,
    /// Weeks.
    pub weekly: u32,
    /// No more bytes than these, but for the newest verified one.
    pub max_bytes: u64,
}

impl Keep {
    /// The newest verified one only.
    pub const ONE: Keep = Keep {
        last: 1,
        hourly: 0,
        daily: 0,
        weekly: 0,
        max_bytes: 0,
    };

    /// How many the rules of hours, days and weeks can keep.
    pub fn by_age(self) -> u32 {
        self.hourly
            .saturating_add(self.daily)
            .saturating_add(self.weekly)
    }

    /// Where the document says nothing: two weeks and a month in outline, in the room of some
    /// fifteen snapshots.
    pub const DEFAULT: Keep = Keep {
        last: 5,
        hourly: 0,
        daily: 7,
        weekly: 4,
        max_bytes: Keep::BYTES_LOCAL,
    };

    /// In a directory, where the document says nothing: a full database of etcd's default quota (2 GiB) in each of
    /// the snapshots that the default keeps, at a quarter of its size. Without a limit whoever may write documents
    /// fills a disk that others use, too.
    pub const BYTES_LOCAL: u64 = 8 << 30;

    /// In a bucket, where the document says nothing: what runs away there costs money, and stops nobody.
    pub const BYTES_S3: u64 = 64 << 30;
}

/// Where the data of a new cluster comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The newest verified snapshot of this cluster's name.
    Latest,
    /// The snapshot of this name.
    Named(Address),
    /// A file of the host.
    File(Text),
    /// Nowhere: it begins with nothing, whatever snapshots there are.
    Empty,
}
