//! Takes a snapshot: from etcd's stream through hash and zstd into a file that becomes visible once
//! it is proven (rules B1-B3).

mod origin;

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use etcd_client::Client;
use ring::digest::{Context, SHA256};
use tokio::time::timeout;

use super::frames::FrameWriter;
use super::local::{Entry, LocalError, LocalStore};
use super::manifest::{self, Class, Database, Manifest, Revision, Verified};
use super::name::{SnapshotName, When};
use super::verify::{self, VerifyError};
use super::{Phase, Progress};
use crate::clock;
use crate::cluster::Timestamp;
use crate::etcd::client;
use crate::state::{self, hex};
use crate::tls::{ClientFiles, Signer};
use origin::{Origin, origin};

/// No part of the snapshot for so long: etcd hangs, or its disk.
const STALL: Duration = Duration::from_secs(60);
/// A question gets so long.
const ANSWER: Duration = Duration::from_secs(20);
/// Written between two looks at the room that is left.
const LOOK_AT_ROOM: u64 = 8 << 20;
/// A snapshot comes at least so fast, in bytes a second, once [`STALL`] is over: a slow card writes ten times as much. Who
/// sends a byte a minute keeps others from their turn.
const SLOWEST: u64 = 128 << 10;
/// A database is no larger than so many times its quota, with [`QUOTA_SLACK`]: etcd refuses writes at the quota, and sees
/// the size of its file up to five seconds late (profile `edge`).
const QUOTA_TIMES: u64 = 2;
/// See [`QUOTA_TIMES`]: bytes that a fast writer can add in these seconds.
const QUOTA_SLACK: u64 = 1 << 30;
/// The sha256 that etcd sends last.
const TRAILER: usize = 32;

/// What a snapshot is taken of, and where to.
pub struct Request<'a> {
    /// Where etcd serves.
    pub url: &'a str,
    /// Who asks.
    pub files: &'a ClientFiles,
    /// The cluster's key, with which the manifest is signed.
    pub signer: Option<Signer>,
    /// The document's name.
    pub cluster: &'a str,
    /// The member's name.
    pub member: &'a str,
    /// Where it is kept.
    pub store: &'a LocalStore,
    /// Why.
    pub class: Class,
    /// For how many seconds, where a person said so.
    pub ttl: Option<u64>,
    /// Wall-clock time, if it is trusted.
    pub now: Option<Timestamp>,
    /// The database's quota, in bytes: what claims to be much larger is no snapshot of this cluster.
    pub quota: u64,
    /// What is there already, newest first.
    pub entries: &'a [Entry],
}

/// What came of it.
#[derive(Debug)]
pub enum Created {
    /// A new snapshot, verified.
    Saved(Box<Manifest>),
    /// Nothing was written to etcd since this one (rule B5).
    Unchanged(Box<Manifest>),
}

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// etcd did not answer, or not as it should.
    #[error("failed to {what}: {why}")]
    Etcd {
        /// The question.
        what: &'static str,
        /// etcd's reason.
        why: String,
    },
    /// A learner may be behind: what it has is no snapshot of the cluster (rule B13).
    #[error("this member is a learner, and snapshots need a voter")]
    Learner,
    /// The stream ended early, or its checksum differs (rule B2).
    #[error("etcd's snapshot is incomplete: {0}; the operator discarded it")]
    NotWhole(String),
    /// The directory.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// Writing.
    #[error("failed to write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// What was written is not what was sent.
    #[error("the new snapshot failed its verification, and the operator discarded it")]
    Verify(#[from] VerifyError),
    /// A record could not be written.
    #[error(transparent)]
    State(#[from] state::StateError),
}

fn etcd(what: &'static str) -> impl Fn(etcd_client::Error) -> CreateError {
    move |error| CreateError::Etcd {
        what,
        why: client::plain(&error),
    }
}

fn late(what: &'static str) -> CreateError {
    CreateError::Etcd {
        what,
        why: "no answer in time".to_owned(),
    }
}

/// Takes a snapshot, unless nothing changed since the newest one. The caller holds the lock on
/// backups; the store is prepared.
pub async fn create(
    request: &Request<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Created, CreateError> {
    const CONNECT: &str = "connect to etcd";
    let connected = timeout(ANSWER, client::connect(request.url, request.files)).await;
    let mut client = connected
        .map_err(|_| late(CONNECT))?
        .map_err(|why| CreateError::Etcd { what: CONNECT, why })?;
    let origin = origin(&mut client).await?;
    if let Some(same) = unchanged(request, &origin) {
        return Ok(Created::Unchanged(Box::new(same)));
    }
    request
        .store
        .room_for(expected_size(request.entries, origin.size))?;
    let part = request.store.part();
    let result = save(request, &origin, &mut client, &part, progress).await;
    if result.is_err() {
        // What is not proven is not kept; the next one would replace it anyway.
        let _ = std::fs::remove_file(&part);
    }
    Ok(Created::Saved(Box::new(result?)))
}

/// The newest snapshot, where it has all that etcd has and is whole.
fn unchanged(request: &Request<'_>, origin: &Origin) -> Option<Manifest> {
    let newest = request.entries.iter().find_map(|it| {
        let manifest = it.manifest.as_ref().ok()?;
        (manifest.cluster_id == origin.cluster_id && it.level() >= 3).then_some(manifest)
    })?;
    // One that a key before this one signed is none that this cluster could rely on.
    let key = request.signer.as_ref().map(Signer::public);
    if key.is_some() && newest.signer() != key.as_deref() {
        return None;
    }
    // Nor one of data that was lowered since.
    let lowered = origin.lowered.map(|it| it.to_string());
    if lowered.is_some_and(|it| it != newest.etcd_version) {
        return None;
    }
    // What goes by itself is nothing that a person can rely on.
    let lasts = newest.class == Class::OnDemand && newest.ttl.is_none();
    let keeps = request.class == Class::Scheduled || lasts;
    (newest.revision.held() == origin.revision && keeps).then(|| newest.clone())
}

/// What the file will take: as packed as the one before with a quarter more, else as large as the
/// database.
fn expected_size(entries: &[Entry], database: u64) -> u64 {
    let before = entries.iter().find_map(|it| it.manifest.as_ref().ok());
    let packed = before.map(|it| {
        let (file, before) = (
            u128::from(it.file.size),
            u128::from(it.database.size.max(1)),
        );
        let bytes = u128::from(database).saturating_mul(file.saturating_mul(5)) / (before * 4);
        u64::try_from(bytes)
            .unwrap_or(u64::MAX)
            .saturating_add(1 << 20)
    });
    packed.unwrap_or(database).min(database)
}

async fn save(
    request: &Request<'_>,
    origin: &Origin,
    client: &mut Client,
    part: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<Manifest, CreateError> {
    let received = receive(request, client, part, progress).await?;
    let after = timeout(ANSWER, client::revision(client)).await;
    let after = after.ok().and_then(Result::ok);
    let mut manifest = Manifest {
        format: manifest::FORMAT,
        name: String::new(),
        cluster: request.cluster.to_owned(),
        cluster_id: origin.cluster_id.clone(),
        member: request.member.to_owned(),
        member_id: origin.member_id.clone(),
        etcd_version: origin.version.clone(),
        operator_version: env!("CARGO_PKG_VERSION").to_owned(),
        created: request.now.map(clock::rfc3339),
        boot_id: clock::boot_id(),
        since_boot: clock::since_boot().as_secs(),
        class: request.class,
        ttl: request.ttl,
        revision: Revision {
            before: origin.revision,
            snapshot: 0,
            after: 0,
        },
        entries: 0,
        hash: String::new(),
        database: Database {
            size: received.size,
            in_use: origin.in_use,
            sha256: received.database,
        },
        file: received.file,
        verified: Verified {
            level: 3,
            at: request.now.map(clock::rfc3339),
        },
        signed: None,
        checksum: String::new(),
    };
    // From the disk, not from the kernel's memory of it.
    let summary = verify::prove_new(part, &manifest, progress)?;
    manifest.revision.snapshot = summary.revision;
    manifest.revision.after = after.unwrap_or(summary.revision);
    manifest.entries = summary.entries;
    manifest.hash = format!("{:08x}", summary.hash);
    manifest.etcd_version = origin.data_version(summary.cluster_version.as_deref());
    let name = SnapshotName {
        member: request.member.to_owned(),
        when: request
            .now
            .map_or_else(|| When::Boot(boot_number()), When::At),
        revision: manifest.revision.held(),
        hash: summary.hash,
    };
    manifest.name = name.to_string();
    let manifest = manifest.signed_by(request.signer.as_ref());
    request.store.commit(part, &name, &manifest)?;
    Ok(manifest)
}

/// The first half of the boot's id.
fn boot_number() -> u64 {
    let id: String = clock::boot_id()
        .chars()
        .filter(char::is_ascii_hexdigit)
        .take(16)
        .collect();
    u64::from_str_radix(&id, 16).unwrap_or(0)
}

struct Received {
    size: u64,
    database: String,
    file: manifest::File,
}

/// Streams etcd's snapshot into a new file, which is synced.
async fn receive(
    request: &Request<'_>,
    client: &mut Client,
    part: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<Received, CreateError> {
    const WHAT: &str = "read etcd's snapshot";
    let failed = |source| CreateError::Write {
        path: part.to_owned(),
        source,
    };
    let mut file = super::new_file(part).map_err(failed)?;
    let mut packed = Packed {
        file: &mut file,
        sum: Context::new(&SHA256),
        written: 0,
    };
    let mut frames = FrameWriter::new().map_err(failed)?;
    let mut content = Trailed::new();
    let stream = timeout(STALL, client.snapshot()).await;
    let mut stream = stream.map_err(|_| late(WHAT))?.map_err(etcd(WHAT))?;
    let mut looked_at = 0;
    let mut bounds = Bounds {
        begun: clock::since_boot(),
        announced: 0,
    };
    loop {
        let message = timeout(STALL, stream.message()).await;
        let message = message.map_err(|_| late(WHAT))?.map_err(etcd(WHAT))?;
        bounds.check_pace(content.total)?;
        let Some(message) = message else { break };
        let got = message.blob().len() as u64;
        if content.total == 0 {
            // The size that etcd's status tells is that of its last commit, 5 s ago or more.
            bounds.announce(got.saturating_add(message.remaining_bytes()), request.quota)?;
            let expected = expected_size(request.entries, bounds.announced);
            request.store.room_for(expected)?;
        }
        bounds.check_length(content.total, got)?;
        content.push(message.blob());
        frames
            .write(message.blob(), &mut |bytes| packed.write(bytes))
            .map_err(failed)?;
        if packed.written >= looked_at + LOOK_AT_ROOM {
            looked_at = packed.written;
            request.store.room_for(0)?;
        }
        progress(Progress {
            phase: Phase::Taking,
            done: content.total.min(bounds.announced),
            total: bounds.announced,
        });
    }
    let (size, database) = content.finish()?;
    frames
        .finish(&mut |bytes| packed.write(bytes))
        .map_err(failed)?;
    let file_facts = manifest::File {
        codec: "zstd".to_owned(),
        size: packed.written,
        sha256: hex(packed.sum.finish().as_ref()),
    };
    file.sync_all().map_err(failed)?;
    verify::forget_cached(&file);
    Ok(Received {
        size,
        database,
        file: file_facts,
    })
}

/// What a stream may bring. Whoever speaks in etcd's place could send without end, or nothing.
struct Bounds {
    /// Since boot.
    begun: Duration,
    /// Bytes of the database. etcd does not count the checksum behind it.
    announced: u64,
}

impl Bounds {
    fn announce(&mut self, bytes: u64, quota: u64) -> Result<(), CreateError> {
        self.announced = bytes;
        let most = quota
            .saturating_mul(QUOTA_TIMES)
            .saturating_add(QUOTA_SLACK);
        if bytes <= most {
            return Ok(());
        }
        Err(CreateError::NotWhole(format!(
            "etcd announced {} MiB, and the quota is {} MiB: see whether it is this cluster's etcd that answers",
            bytes >> 20,
            quota >> 20
        )))
    }

    fn check_length(&self, total: u64, got: u64) -> Result<(), CreateError> {
        let most = self.announced.saturating_add(TRAILER as u64);
        if got > 0 && total.saturating_add(got) <= most {
            return Ok(());
        }
        let announced = self.announced;
        Err(CreateError::NotWhole(format!(
            "etcd announced {announced} bytes and sent {got} more after {total}: see whether it is this cluster's etcd that answers"
        )))
    }

    fn check_pace(&self, total: u64) -> Result<(), CreateError> {
        let within = STALL + Duration::from_secs(total / SLOWEST);
        if clock::since_boot() <= self.begun + within {
            return Ok(());
        }
        Err(CreateError::NotWhole(format!(
            "it comes slower than {} KiB a second: the disk of etcd or of the snapshots is too slow, or overloaded",
            SLOWEST >> 10
        )))
    }
}

/// The file, its hash and its length.
struct Packed<'a> {
    file: &'a mut File,
    sum: Context,
    written: u64,
}

impl Packed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.sum.update(bytes);
        self.written += bytes.len() as u64;
        Ok(())
    }
}

/// Hashes a stream but for its last bytes, which are the hash that it shall have.
struct Trailed {
    sum: Context,
    tail: Vec<u8>,
    total: u64,
}

impl Trailed {
    fn new() -> Self {
        Trailed {
            sum: Context::new(&SHA256),
            tail: Vec::with_capacity(2 * TRAILER),
            total: 0,
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        // All but the last bytes of what is known so far.
        let (now, rest) = bytes.split_at(bytes.len().saturating_sub(TRAILER));
        if now.is_empty() {
            self.tail.extend_from_slice(rest);
            let surplus = self.tail.len().saturating_sub(TRAILER);
            self.sum.update(&self.tail[..surplus]);
            self.tail.drain(..surplus);
        } else {
            self.sum.update(&self.tail);
            self.sum.update(now);
            self.tail.clear();
            self.tail.extend_from_slice(rest);
        }
    }

    /// Size and hash of what is before the hash (rule B2).
    fn finish(self) -> Result<(u64, String), CreateError> {
        let found = self.sum.finish();
        if self.total % 512 != TRAILER as u64 {
            let why = format!(
                "{} bytes arrived, which is not a whole number of pages",
                self.total
            );
            return Err(CreateError::NotWhole(why));
        }
        if found.as_ref() != self.tail.as_slice() {
            let why = "its checksum differs".to_owned();
            return Err(CreateError::NotWhole(why));
        }
        Ok((self.total - TRAILER as u64, hex(found.as_ref())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_bounded_by_what_it_announces_by_the_quota_and_by_its_pace() {
        const QUOTA: u64 = 64 << 20;
        let now = clock::since_boot();
        let mut bounds = Bounds {
            begun: now,
            announced: 0,
        };
        assert!(bounds.announce(2 * QUOTA + QUOTA_SLACK, QUOTA).is_ok());
        assert!(bounds.announce(2 * QUOTA + QUOTA_SLACK + 1, QUOTA).is_err());
        assert!(bounds.announce(u64::MAX, u64::MAX).is_ok());
        bounds.announced = 1000;
        assert!(bounds.check_length(0, 1000).is_ok());
        assert!(bounds.check_length(1000, TRAILER as u64).is_ok());
        assert!(bounds.check_length(1000, TRAILER as u64 + 1).is_err());
        assert!(bounds.check_length(u64::MAX, 1).is_err());
        assert!(
            bounds.check_length(10, 0).is_err(),
            "nothing, again and again"
        );
        assert!(bounds.check_pace(0).is_ok());
        if let Some(begun) = now.checked_sub(2 * STALL) {
            bounds.begun = begun;
            assert!(bounds.check_pace(0).is_err());
            assert!(bounds.check_pace(2 * SLOWEST * STALL.as_secs()).is_ok());
        }
    }

    #[test]
    fn no_numbers_of_others_overflow_what_a_file_will_take() {
        let mut planted = crate::backup::manifest::tests::manifest();
        planted.file.size = u64::MAX;
        planted.database.size = 0;
        let entry = Entry {
            name: planted.name.parse().unwrap(),
            size: Some(u64::MAX),
            manifest: Ok(planted),
        };
        assert_eq!(expected_size(&[entry], u64::MAX), u64::MAX);
    }

    #[test]
    fn the_checksum_at_the_end_is_found_however_the_stream_is_cut() {
        let content: Vec<u8> = (0_u8..=255).cycle().take(1024).collect();
        let mut stream = content.clone();
        stream.extend_from_slice(ring::digest::digest(&SHA256, &content).as_ref());
        for length in [1, 7, 31, 32, 33, 100, 1024, 2000] {
            let mut trailed = Trailed::new();
            for part in stream.chunks(length) {
                trailed.push(part);
            }
            assert_eq!(trailed.finish().unwrap().0, 1024, "in pieces of {length}");
        }
        for cut in [0, 1, 32, 512, 1055] {
            let mut trailed = Trailed::new();
            trailed.push(&stream[..cut]);
            assert!(trailed.finish().is_err(), "cut at {cut}");
        }
        stream[5] ^= 1;
        let mut trailed = Trailed::new();
        trailed.push(&stream);
        assert!(trailed.finish().is_err());
    }
}
