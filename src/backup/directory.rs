//! A whole data directory as the source of a restore, such as that of a box that died: an etcd of the store takes up what its
//! log holds, on a copy and on loopback, and a snapshot of that is what is restored. The directory is only read.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use etcd_client::Client;

use super::restore::RestoreError;
use super::source::{self, Found, fetched};
use super::trial::{self, Etcd, Scratch, TrialError};
use super::{Phase, Progress, place};
use crate::clock;
use crate::cluster::ClusterId;
use crate::error::chain;
use crate::etcd::client::plain;
use crate::etcd::{data_dir, examine};
use crate::member::records::{self, IdentityFile};
use crate::paths::Paths;
use crate::spec::{ClusterSpec, QUOTA_DEFAULT};
use crate::start::{Completeness, serves_within};
use crate::state;
use crate::tls::{Certificates, Leaves, Validity};
use crate::untrusted::Folder;
use crate::version::{Line, Version};

/// Where `wal` and `snap` lie, from what a person names: the directory `member`, etcd's `data-dir`, and the state of a
/// host of this operator.
const PLACES: [&[&str]; 4] = [
    &[],
    &["member"],
    &["data", "member"],
    &["member", "data", "member"],
];
/// Of each kind; etcd keeps five segments of its log and five snapshots of Raft.
const FILES_MAX: usize = 200;
/// So much is copied at a time.
const PIECE: u64 = 1 << 20;
/// Ten years: the clock may be set meanwhile.
const LIFE_SECONDS: i64 = 10 * 365 * 86_400;
/// Between two pieces of a snapshot on loopback.
const STALL: Duration = Duration::from_secs(60);

/// Links in the path of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// They are the word of the person who names it.
    Followed,
    /// There may be none.
    Refused,
}

/// The files of a data directory, open.
pub struct Parts {
    /// As a person named it.
    named: PathBuf,
    /// `wal` or `snap`, and the name below it.
    files: Vec<(&'static str, String, File)>,
}

impl Parts {
    /// Opens what an etcd reads at a start; none where this is no directory. `links`: the path may lead through links.
    /// Where root opens it for another user, it may not: that user could put a link to a file of root's there.
    ///
    /// # Errors
    /// It holds no data of etcd, or something in it cannot be opened.
    pub fn open(place: &Path, links: Links) -> Result<Option<Parts>, RestoreError> {
        if !place.is_dir() {
            return Ok(None);
        }
        let refused = |why: String| RestoreError::Directory {
            path: place.to_owned(),
            why,
        };
        let failed = |error: io::Error| refused(format!("it cannot be read: {error}"));
        let Some(folders) = folders(place, links).map_err(failed)? else {
            let text = "no data directory of etcd lies there, with wal and snap in member; for a snapshot, name the file";
            return Err(refused(text.to_owned()));
        };
        let mut files = Vec::new();
        for (part, folder) in ["wal", "snap"].into_iter().zip(&folders) {
            let names = folder.names(|it| is_read(part, it).then(|| it.to_owned()));
            let names = names.map_err(failed)?;
            if names.len() > FILES_MAX {
                let text = format!("{part} holds more than {FILES_MAX} files, which is no etcd's");
                return Err(refused(text));
            }
            for name in names {
                let file = folder.open(&name);
                let file = file.map_err(|error| refused(format!("{part}/{name}: {error}")))?;
                files.push((part, name, file));
            }
        }
        Ok(Some(Parts {
            named: place.to_owned(),
            files,
        }))
    }

    fn refused(&self, why: String) -> RestoreError {
        RestoreError::Directory {
            path: self.named.clone(),
            why,
        }
    }

    fn bytes(&self) -> u64 {
        let sizes = self
            .files
            .iter()
            .map(|it| it.2.metadata().map_or(0, |it| it.len()));
        sizes.sum()
    }

    /// An etcd that runs writes on: a copy would be of no moment.
    fn check_unused(&self) -> Result<(), RestoreError> {
        let mut databases = self.files.iter().filter(|it| it.1 == "db");
        if databases.any(|it| data_dir::is_locked_by_another(&it.2)) {
            let text = "a running etcd has it open: take a snapshot of that etcd (etcdctl snapshot save FILE), or stop it first";
            return Err(self.refused(text.to_owned()));
        }
        Ok(())
    }

    /// Copies them to what etcd gets as `data-dir`. Whoever waits can end it between two pieces.
    async fn copy(
        &self,
        data: &Path,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), RestoreError> {
        let (mut done, total) = (0, self.bytes());
        let mut buffer = Vec::new();
        for (part, name, file) in &self.files {
            let dir = data.join("member").join(part);
            state::create_private_dir(&dir)?;
            let path = dir.join(name);
            let failed = |source| RestoreError::Io {
                what: "copy to",
                path: path.clone(),
                source,
            };
            let mut left = file.metadata().map_err(failed)?.len();
            let (from, mut to) = (file, super::new_file(&path).map_err(failed)?);
            while left > 0 {
                let piece = from.take(left.min(PIECE)).read_to_end(&mut buffer);
                let piece = piece.map_err(failed)? as u64;
                to.write_all(&buffer).map_err(failed)?;
                buffer.clear();
                if piece == 0 {
                    break; // it has become shorter, which its reader finds
                }
                left -= piece;
                done += piece;
                progress(Progress {
                    phase: Phase::Copying,
                    done,
                    total,
                });
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }
}

/// `wal` and `snap` at the first place that has both.
fn folders(named: &Path, links: Links) -> io::Result<Option<[Folder; 2]>> {
    let top = match links {
        Links::Followed => Folder::named(named)?,
        Links::Refused => Folder::without_links(named)?,
    };
    for place in PLACES {
        let both = (below(&top, place, "wal")?, below(&top, place, "snap")?);
        if let (Some(wal), Some(snap)) = both {
            return Ok(Some([wal, snap]));
        }
    }
    Ok(None)
}

/// A directory below another one; none where one of the names is not there.
fn below(top: &Folder, place: &[&str], last: &str) -> io::Result<Option<Folder>> {
    let mut at: Option<Folder> = None;
    for name in place.iter().chain([&last]) {
        let next = match &at {
            Some(it) => it.below(name),
            None => top.below(name),
        };
        at = match next {
            Ok(it) => Some(it),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
    }
    Ok(at)
}

/// What etcd reads at a start, of what lies there.
fn is_read(part: &str, name: &str) -> bool {
    let name = Path::new(name);
    let ends = |it: &str| name.extension().is_some_and(|own| own == it);
    match part {
        "wal" => ends("wal"),
        _ => ends("snap") || name.as_os_str() == "db",
    }
}

/// What the data in a directory holds, as a snapshot that lies where those from buckets do.
///
/// # Errors
/// The data is in use, damaged, of another line or of several members, or there is no room for a copy.
pub async fn take_up(
    paths: &Paths,
    spec: &ClusterSpec,
    parts: &Parts,
    version: Version,
    progress: &mut dyn FnMut(Progress),
) -> Result<Found, RestoreError> {
    parts.check_unused()?;
    // Scratch is the agent's as well, for its trials.
    let lock = place::lock(paths, place::Work::Local);
    let lock = lock.map_err(|error| parts.refused(chain(&error)))?;
    let Some(_lock) = lock else {
        let text = "another process takes, checks or tries snapshots: try again when it is done";
        return Err(parts.refused(text.to_owned()));
    };
    let mut scratch = Scratch::new(paths);
    trial::check_room(paths, parts.bytes())?;
    let data = records::data_dir(&scratch.dir);
    parts.copy(&data, progress).await?;
    parts.check_unused()?;
    let owner = check(parts, &data, version)?;
    let failed = |error: TrialError| parts.refused(chain(&error));
    let (spec_here, place) = trial::on_loopback(spec, &scratch.dir).map_err(failed)?;
    let own = Paths::under(&scratch.dir);
    let certificates = own_certificates(&own, &spec_here)?;
    let quota = spec.quota.unwrap_or(QUOTA_DEFAULT);
    let token = "taken-up".to_owned();
    let identity = IdentityFile::at_birth(&spec_here, token, version, quota, String::new());
    let etcd = Etcd {
        store: &paths.store(),
        paths: &own,
        spec: &spec_here,
        place: &place,
        identity: &identity,
    };
    scratch.etcd = Some(trial::start(&etcd, version).map_err(failed)?);
    let files = certificates.operator_files();
    let patience = Duration::from_secs(serves_within(parts.bytes()));
    let at = (place.client_url.as_str(), &files);
    let (client, _) = scratch.wait(at, patience, version).await.map_err(failed)?;
    let store = fetched(paths, spec);
    state::create_private_dir(store.path())?;
    let path = store.path().join("taken-up");
    let saved = save(client, &path).await;
    saved.map_err(|why| parts.refused(format!("no snapshot of it could be taken: {why}")))?;
    let mut found = source::file(&path)?;
    found.file.name = parts.named.display().to_string();
    found.file.cluster_id = owner.map(|it| it.to_string());
    Ok(found)
}

/// Whether an etcd of this version can take up this data, and whose it is.
fn check(parts: &Parts, data: &Path, version: Version) -> Result<Option<ClusterId>, RestoreError> {
    let seen = data_dir::look(data, version.line(), true);
    let alone = "its database alone may do: name the file snap/db";
    if let Some(why) = &seen.unreadable {
        return Err(parts.refused(format!("it cannot be read: {why}")));
    }
    match seen.completeness() {
        Completeness::Complete => {}
        Completeness::Empty => return Err(parts.refused("it holds no data".to_owned())),
        Completeness::LogMissing => {
            return Err(parts.refused(format!("it has no log: {alone}")));
        }
        Completeness::DatabaseMissing => {
            let text =
                "its database (snap/db) is missing, and its log does not begin at the beginning";
            return Err(parts.refused(text.to_owned()));
        }
    }
    if let Some(damage) = &seen.damage {
        return Err(parts.refused(format!("it is damaged: {damage}; {alone}")));
    }
    if let Some(several) = examine::members(data).filter(|it| *it > 1) {
        let text =
            format!("it is of one of {several} members, which alone may lack writes: {alone}");
        return Err(parts.refused(text));
    }
    if let Some(agreed) = seen.agreed.filter(|it| it.is_newer_line_than(version)) {
        let text = format!(
            "it is data of etcd {agreed}, which etcd {version} cannot read: set version to a patch of that line"
        );
        return Err(parts.refused(text));
    }
    let old = seen.agreed.and_then(Version::line) == Some(Line::V3_5);
    if version.line() == Some(Line::V3_7) && (old || seen.log.replays_v2) {
        let text = format!(
            "it is data of etcd 3.5, which etcd {version} does not read: set version to a patch of 3.6 first"
        );
        return Err(parts.refused(text));
    }
    Ok(seen.owner.map(|(cluster, _)| cluster))
}

/// CAs and pairs of its own: nobody else is to talk to it.
fn own_certificates(own: &Paths, spec: &ClusterSpec) -> Result<Certificates, RestoreError> {
    let certificates = Certificates::at(own.tls());
    let (now, names) = (clock::now(), ["127.0.0.1".to_owned()]);
    let made = certificates
        .ensure_authorities(&spec.name, now)
        .and_then(|()| {
            certificates.mint(&Leaves {
                names: &names,
                peer_names: &names,
                cluster: &spec.name,
                validity: Validity::provisional(now, LIFE_SECONDS),
            })
        });
    made.map_err(super::remote::CopyError::from)?;
    Ok(certificates)
}

/// Saves etcd's own snapshot, which ends with its checksum.
async fn save(mut client: Client, path: &Path) -> Result<(), String> {
    let _ = fs::remove_file(path);
    let mut file = super::new_file(path).map_err(|error| error.to_string())?;
    let mut stream = client.snapshot().await.map_err(|error| plain(&error))?;
    loop {
        let message = tokio::time::timeout(STALL, stream.message()).await;
        let message = message.map_err(|_| "etcd stalls".to_owned())?;
        let Some(message) = message.map_err(|error| plain(&error))? else {
            break;
        };
        let written = file.write_all(message.blob());
        written.map_err(|error| error.to_string())?;
    }
    file.sync_all().map_err(|error| error.to_string())
}
