//! Gathers the facts that [`crate::start::verdict`] judges. It decides nothing.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use super::examiner::Examiner;
use super::listen::{self, Taken};
use super::records::{self, IdentityFile, Launch, SeenFile, Served};
use super::starts;
use crate::clock;
use crate::cluster::{ClusterName, detail};
use crate::disk;
use crate::etcd::{data_dir, store};
use crate::paths::Paths;
use crate::process;
use crate::start::damage::Lost;
use crate::start::{
    AddressConflict, CertificatesUsable, DataDir, Facts, Log, Room, StartHistory, Writable,
    does_without,
};
use crate::state;
use crate::version::{Line, Version};

/// How long the file system may take to answer.
pub const DISK_DEADLINE: Duration = Duration::from_secs(2);

/// Facts, and the identity files that they were read from.
pub struct Gathered {
    /// For the predicate.
    pub facts: Facts,
    /// From the state directory.
    pub identity: Option<IdentityFile>,
    /// The copy beside the data.
    pub marker: Option<IdentityFile>,
    /// The addresses of clients that a start does without: they went from this host.
    pub left_out: Vec<SocketAddr>,
}

/// Gathers everything that decides whether etcd may start. `running`: where our etcd listens if it
/// runs. Its ports then count as its own and its data as open, and no earlier start is examined.
pub fn gather(
    paths: &Paths,
    launch: &Launch,
    version: Version,
    certificates: CertificatesUsable,
    running: Option<&[SocketAddr]>,
    examiner: &mut Examiner,
) -> Gathered {
    let taken = running.unwrap_or_default();
    let running = running.is_some();
    let data = records::data_dir(&launch.storage_dir);
    let writable = match disk::writable(&launch.storage_dir, DISK_DEADLINE) {
        // The operator makes its default directory at birth. One that the document names must exist
        // (rule D3).
        Writable::Missing if !launch.storage_named => Writable::Yes,
        other => other,
    };
    // Every further access to a frozen file system would block, too.
    let stalled = writable == Writable::Stalled;
    let mut unreadable = None;
    let (identity, marker) = if stalled {
        (None, None)
    } else {
        records::load_identities(paths, &launch.storage_dir).unwrap_or_else(|error| {
            unreadable = Some(detail(format_args!("{error}")));
            (None, None)
        })
    };
    let line = version.line();
    let changes = identity
        .as_ref()
        .is_some_and(|it| it.member.other_version.is_some());
    let look = match (stalled, running) {
        (true, _) => DataLook::of_nothing(),
        (false, true) => DataLook {
            data: DataDir {
                in_use: false,
                ..data_dir::look(&data, line, false)
            },
            ..DataLook::of_nothing()
        },
        (false, false) => look_at_data(paths, launch, (line, changes), examiner),
    };
    let served = identity.as_ref().or(marker.as_ref());
    let (left_out, addresses) = left_out(paths, launch);
    let unborn = !running && !stalled && served.is_none_or(|it| it.member.id.is_none());
    let facts = Facts {
        cluster: ClusterName::try_from(launch.cluster.as_str()).unwrap_or_default(),
        hibernates: launch.hibernates,
        restoring: false, // the guard and the agent look themselves
        unreadable,
        version,
        unsafe_filesystem_allowed: launch.unsafe_filesystem_allowed,
        identity: identity.as_ref().and_then(IdentityFile::to_identity),
        marker: marker.as_ref().and_then(IdentityFile::to_identity),
        seen: seen_index(paths, &look.data),
        strange_etcd: unborn
            .then(|| data_dir::strange_etcd(&launch.storage_dir))
            .flatten(),
        data: look.data,
        room: look.room,
        history: look.history,
        filesystem: disk::filesystem(&launch.storage_dir),
        writable,
        binary: store::binary(&paths.store(), version),
        certificates,
        conflict: first_conflict(paths, &addresses, taken),
    };
    Gathered {
        facts,
        identity,
        marker,
        left_out,
    }
}

/// Findings about the data, and about the starts on it.
struct DataLook {
    data: DataDir,
    room: Room,
    history: StartHistory,
}

impl DataLook {
    fn of_nothing() -> Self {
        DataLook {
            data: DataDir::EMPTY,
            room: Room::AMPLE,
            history: StartHistory::NONE,
        }
    }
}

/// Looks at data that no etcd of ours has open. `changes`: the version changes.
fn look_at_data(
    paths: &Paths,
    launch: &Launch,
    (line, changes): (Option<Line>, bool),
    examiner: &mut Examiner,
) -> DataLook {
    let dir = records::data_dir(&launch.storage_dir);
    let mut data = examiner.look(&dir, line, changes);
    let room = data_dir::room(&dir, data.log, disk::room(&launch.storage_dir));
    let stamp = data_dir::stamp(&dir);
    starts::look_into_the_last(paths, &stamp, room);
    let history = starts::history(paths, &stamp);
    examiner.examine(paths, &dir, line, &history, &mut data);
    let seen = seen_index(paths, &data);
    if let Some(damage) = &mut data.damage
        && let Lost::Entries { to, .. } = &mut damage.lost
    {
        *to = (*to).max(seen); // the files may not show it, and it was there
    }
    DataLook {
        data,
        room,
        history,
    }
}

/// Examines how the last start ended, before any other check.
pub fn look_into_the_last_start(paths: &Paths, launch: &Launch) {
    let dir = records::data_dir(&launch.storage_dir);
    let room = data_dir::room(&dir, Log::UNREAD, disk::room(&launch.storage_dir));
    starts::look_into_the_last(paths, &data_dir::stamp(&dir), room);
}

/// The last log index that this cluster was seen to reach in this boot.
fn seen_index(paths: &Paths, data: &DataDir) -> Option<u64> {
    let seen: SeenFile = state::load_volatile(&paths.seen())?;
    let (owner, _) = data.owner?;
    (seen.boot_id == clock::boot_id() && seen.cluster_id == owner.to_string())
        .then_some(seen.raft_index)
}

/// The addresses of clients that a start with these settings does without, and all others.
fn left_out(paths: &Paths, launch: &Launch) -> (Vec<SocketAddr>, Vec<SocketAddr>) {
    let gone = listen::gone(&launch.addresses);
    if gone.is_empty() {
        return (Vec::new(), launch.addresses.clone());
    }
    let served = state::load::<Served>(&paths.served()).ok().flatten();
    let served = served.map(|it| it.launch.addresses).unwrap_or_default();
    let asked = (launch.addresses.as_slice(), gone.as_slice());
    let up = clock::since_boot().as_secs();
    if !does_without(asked, &served, launch.client_port(), up) {
        return (Vec::new(), launch.addresses.clone());
    }
    launch.addresses.iter().partition(|it| gone.contains(it))
}

/// The first address of these settings that etcd could not listen on, once it has released the addresses in `own`.
pub fn conflict(paths: &Paths, launch: &Launch, own: &[SocketAddr]) -> Option<AddressConflict> {
    first_conflict(paths, &left_out(paths, launch).1, own)
}

fn first_conflict(
    paths: &Paths,
    asked: &[SocketAddr],
    own: &[SocketAddr],
) -> Option<AddressConflict> {
    let (address, taken) = listen::first_taken(asked, own)?;
    let (not_ours, denied) = (taken == Taken::Address, taken == Taken::Denied);
    let mut text = heapless::String::new();
    let _ = std::fmt::Write::write_fmt(&mut text, format_args!("{address}"));
    let holder = if not_ours || denied {
        None
    } else {
        process::listener(address.port(), |it| listen::is_anothers(it, own))
    };
    Some(AddressConflict {
        address: text,
        not_ours,
        denied,
        holder: holder
            .and_then(|it| heapless::String::try_from(it.as_str()).ok())
            .unwrap_or_default(),
        k3s_embedded: !not_ours && !denied && is_used(&paths.k3s_embedded_etcd()),
    })
}

fn is_used(dir: &Path) -> bool {
    std::fs::read_dir(dir).is_ok_and(|mut it| it.next().is_some())
}

/// `/etc/machine-id`, empty where there is none.
pub fn machine_id(paths: &Paths) -> String {
    let own = paths.root.join("etc/machine-id");
    std::fs::read_to_string(own)
        .or_else(|_| std::fs::read_to_string("/etc/machine-id"))
        .unwrap_or_default()
        .trim()
        .to_owned()
}
