//! A member inside a Pod: what the controller passes to it, and how the Pod writes that where the guard
//! looks for it. The Pod's claim is mounted at the state directory, so a member's disk looks the same in
//! both modes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::records::{self, IdentityFile, Launch, MemberRecord};
use super::refused::unplaceable;
use super::starts;
use super::turn::{self, AskedToEnd, Peer};
use crate::cluster::{ClusterId, MemberId};
use crate::etcd::store::StoreError;
use crate::etcd::{data_dir, store};
use crate::paths::Paths;
use crate::render;
use crate::spec::ClusterSpec;
use crate::spec::backup::Place;
use crate::start::Refusal;
use crate::state::{self, StateError};
use crate::tls::Certificates;
use crate::version::Version;

/// The environment variable that carries a [`PodMember`]. It contains no secret.
pub const VARIABLE: &str = "ETCD_OPERATOR_MEMBER";
/// The variable that carries the document for a restore.
pub const DOCUMENT_VARIABLE: &str = "ETCD_OPERATOR_DOCUMENT";
/// The variable that carries the id of a restore, such as the EtcdRestore's UID.
pub const RESTORE_VARIABLE: &str = "ETCD_OPERATOR_RESTORE";
/// The variable that carries the request for a Pod that works on snapshots.
pub const BACKUP_VARIABLE: &str = "ETCD_OPERATOR_BACKUP";
/// Where the Secret with the member's certificates is mounted.
pub const TLS_DIR: &str = "/tls";
/// The public key with which the cluster signs its snapshots, for the Pod of a restore.
pub const SIGNER_VARIABLE: &str = "ETCD_OPERATOR_SIGNER";
/// Where a Pod that takes snapshots finds the key with which it signs them.
pub const SIGNER_DIR: &str = "/signs";
/// The file for the Pod's termination message, which the controller reads.
pub const LAST_WORDS: &str = "/dev/termination-log";

/// How long the guard of a Pod waits for a refusal to pass. Short, because the reason becomes visible only when the container has
/// ended.
pub const GUARD_PATIENCE: Duration = Duration::from_secs(10);

/// The key of a Secret with access keys, and the name of its mounted file.
pub const S3_KEY: &str = "credentials";
/// The key of such a Secret with further CAs, where the store's certificate is of none that everybody knows.
pub const S3_CA: &str = "ca.crt";
/// Where the claim with the snapshots is mounted.
pub const CLAIM_DIR: &str = "/claim";
/// The variable that says which worker serves the snapshots of a restore.
pub const SERVED_VARIABLE: &str = "ETCD_OPERATOR_SERVED";
/// The most destinations of a document.
const S3_MAX: usize = crate::spec::backup::DESTINATIONS_MAX;

/// Where the Secret with the access keys of a destination is mounted.
pub fn s3_dir(index: usize) -> String {
    format!("/s3/{index}")
}

/// The file in memory that the document in a Pod names for the access keys of a destination.
pub fn s3_credentials(index: usize) -> String {
    format!("/run/etcd-operator/s3-{index}")
}

/// Where the access keys of a destination are in the Secret that is mounted.
fn mounted_keys(index: usize) -> PathBuf {
    Path::new(&s3_dir(index)).join(S3_KEY)
}

/// Copies access keys to files that only this user can read. The group can read a mounted Secret. What was taken away
/// is used no longer. The document gets the further CAs that lie beside them.
pub fn lay_down_credentials(spec: &mut ClusterSpec) -> Result<(), StateError> {
    for index in 0..S3_MAX {
        let file = s3_credentials(index);
        let file = Path::new(&file);
        match std::fs::read(mounted_keys(index)) {
            Ok(text) => state::write_file(file, &text)?,
            Err(_) => drop(std::fs::remove_file(file)),
        }
    }
    let backup = spec.backup.iter_mut();
    let destinations = backup.flat_map(|it| &mut it.destinations);
    for (index, destination) in destinations.enumerate() {
        let ca = mounted_ca(index);
        if let Place::S3(s3) = &mut destination.place
            && mounted_keys(index).parent().is_some_and(Path::is_dir)
        {
            let there = ca.to_str().filter(|_| ca.exists());
            s3.ca_file = there.and_then(|it| it.try_into().ok());
        }
    }
    Ok(())
}

/// Where further CAs are in the same Secret.
fn mounted_ca(index: usize) -> PathBuf {
    Path::new(&s3_dir(index)).join(S3_CA)
}

/// A sum of what is mounted for buckets: another one where it changed.
pub fn credentials_sum() -> String {
    let mut all = Vec::new();
    for index in 0..S3_MAX {
        for file in [mounted_keys(index), mounted_ca(index)] {
            all.extend(std::fs::read(file).unwrap_or_default());
            all.push(0);
        }
    }
    state::sha256(&all)
}

/// Destinations for whose access keys a Secret is mounted that is not there, or has no such key.
pub fn missing_credentials() -> Vec<usize> {
    let lacks = |index: &usize| {
        let file = mounted_keys(*index);
        file.parent().is_some_and(Path::is_dir) && !file.exists()
    };
    (0..S3_MAX).filter(lacks).collect()
}

/// What the controller knows of a member. It is fixed when the Pod is created, and the kubelet restarts the
/// container with the same values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodMember {
    /// The controller's copy of the identity; the other one lies beside the data (rule B9).
    pub identity: IdentityFile,
    /// What the guard needs for a start.
    pub launch: Launch,
    /// Of a member that joins: all that the document asks for. It asks the others for the list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub joins: Vec<Peer>,
    /// Where its peers reach it.
    #[serde(default, rename = "peerURL")]
    pub peer_url: String,
}

/// The termination message of a Pod that was created for a restore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Restored {
    /// The id of the restore.
    pub id: String,
    /// The identity of the data on the volume now.
    pub identity: Option<IdentityFile>,
    /// Whether etcd has served the new data; if not, the old data is in place.
    pub succeeded: bool,
    /// Whether a bootstrap found data on the volume, which it kept.
    #[serde(default)]
    pub data_found: bool,
    /// The snapshot.
    pub snapshot: String,
    /// Its revision.
    pub revision: i64,
    /// How many revisions the restore lost, if that is known.
    pub revisions_lost: Option<i64>,
    /// That number in words.
    #[serde(default)]
    pub lost: String,
    /// Why it failed, or where the old data is.
    pub message: String,
}

/// The termination message of a Pod that tried another version on a copy of the data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rehearsed {
    /// The version.
    pub to: String,
    /// The revision of the snapshot that the copy was made of.
    pub revision: i64,
    /// Why it did not serve; none: it did.
    pub why: Option<String>,
    /// The version is the cause, and not the place or the moment.
    pub of_the_version: bool,
}

/// Whether this is the Pod of a backup worker.
pub fn is_of_worker() -> bool {
    std::env::var_os(BACKUP_VARIABLE).is_some()
}

/// Writes the termination message for the controller. The file exists only in a Pod.
pub fn say_last(words: &str) {
    #[expect(
        clippy::disallowed_methods,
        reason = "a file that the kubelet mounts: it can only be written in place"
    )]
    let said = std::fs::write(LAST_WORDS, words);
    if let Err(error) = said {
        tracing::debug!(%error, "failed to write the termination message");
    }
}

/// Whether no etcd has written anything here.
fn is_empty(storage_dir: &Path) -> bool {
    let data = records::data_dir(storage_dir);
    std::fs::read_dir(data).map_or(true, |mut it| it.next().is_none())
}

/// Why the Pod could not be prepared.
#[derive(Debug)]
pub enum LayDownError {
    /// etcd must not be started here.
    Refused(Refusal),
    /// A record could not be read or written.
    State(StateError),
    /// Somebody ends the Pod.
    AskedToEnd,
}

impl From<AskedToEnd> for LayDownError {
    fn from(_: AskedToEnd) -> Self {
        LayDownError::AskedToEnd
    }
}

impl From<StateError> for LayDownError {
    fn from(error: StateError) -> Self {
        LayDownError::State(error)
    }
}

fn refused(reason: &'static str, why: std::fmt::Arguments<'_>) -> LayDownError {
    LayDownError::Refused(unplaceable(reason, why))
}

impl PodMember {
    /// Reads it from the environment. `None`: this process does not run in one of our Pods.
    pub fn from_environment() -> Option<Self> {
        serde_json::from_str(&std::env::var(VARIABLE).ok()?).ok()
    }

    /// Waits until the list has a member that joins. `None`: it does not join, or it has its own data.
    ///
    /// # Errors
    /// A record could not be read, or the Pod is asked to end.
    pub fn listed(&self, paths: &Paths) -> Result<Option<turn::Listed>, LayDownError> {
        if !self.identity.joins() {
            return Ok(None);
        }
        let storage_dir = &self.launch.storage_dir;
        let (_, beside) = records::load_identities(paths, storage_dir)?;
        let is_empty = is_empty(storage_dir);
        if beside.is_none() && !is_empty {
            return Ok(None); // it is refused
        }
        let had = self.had(beside.as_ref());
        // Its own record is written by this Pod, which knows no id.
        let may_be_own = beside.is_some_and(|it| it.member.id.is_none()) && !is_empty;
        let patience = may_be_own.then_some(turn::OWN_PATIENCE);
        let (own, tls) = (&self.peer_url, Path::new(TLS_DIR));
        turn::wait_until_listed(&self.joins, own, had.as_deref(), tls, patience)
            .map_err(LayDownError::from)
    }

    /// Writes the records where the guard looks for them, and links the image's etcd into the store. The
    /// controller's copy of the identity never replaces the one on the volume.
    pub fn lay_down(
        &self,
        paths: &Paths,
        listed: Option<&turn::Listed>,
    ) -> Result<(), LayDownError> {
        state::create_private_dir(&paths.member())?;
        let version: Version = self.launch.version.parse().map_err(|_| {
            refused(
                "ImageVersion",
                format_args!("{} is no version", self.launch.version),
            )
        })?;
        store::link(&paths.store(), version).map_err(|error| match error {
            // What the volume refuses says nothing of the image.
            StoreError::State(it) => LayDownError::from(it),
            other => refused("ImageVersion", format_args!("{other}")),
        })?;
        self.reconcile_identity(paths, listed)?;
        let launch = listed.map_or_else(
            || self.launch.clone(),
            |it| Launch {
                conf: render::with_initial_cluster(&self.launch.conf, &it.list),
                ..self.launch.clone()
            },
        );
        let known = state::load::<Launch>(&paths.launch()).ok().flatten();
        if known.as_ref() != Some(&launch) {
            state::save(&paths.launch(), &launch)?;
        }
        point_at_secret(paths);
        Ok(())
    }

    /// Compares the two copies of the identity (rule B9): the controller's, and the one beside the data.
    fn reconcile_identity(
        &self,
        paths: &Paths,
        listed: Option<&turn::Listed>,
    ) -> Result<(), LayDownError> {
        let storage_dir = &self.launch.storage_dir;
        let (_, beside) = records::load_identities(paths, storage_dir)?;
        let ours = &self.identity;
        let is_empty = || is_empty(storage_dir);
        if self.is_of_another_member(listed, beside.as_ref()) {
            records::set_aside(storage_dir)?;
            return Ok(records::save_identity(paths, storage_dir, ours)?);
        }
        let Some(beside) = beside else {
            return match (&ours.member.id, is_empty()) {
                (None, true) => Ok(records::save_identity(paths, storage_dir, ours)?),
                (Some(_), true) => Err(LayDownError::Refused(Refusal::DataMissing)), // rule D3
                (_, false) => Err(LayDownError::Refused(Refusal::DataForeign)),      // rule A10
            };
        };
        // A cluster that never served is given another version as long as no etcd has written anything.
        let unserved = ours.member.id.is_none() && beside.member.id.is_none();
        if unserved
            && beside.member.version != ours.member.version
            && beside.cluster.token == ours.cluster.token
            && is_empty()
        {
            return Ok(records::save_identity(paths, storage_dir, ours)?);
        }
        // A change of version is written down before it is acted upon, and here by the first Pod of the other version. One
        // that has ended may have left the other version here.
        let may_open = |it: &IdentityFile, other: &IdentityFile| {
            let version = Some(&other.member.version);
            version == Some(&it.member.version) || version == it.member.other_version.as_ref()
        };
        if !may_open(ours, &beside) && !may_open(&beside, ours) {
            return Err(refused(
                "ImageVersion",
                format_args!(
                    "etcd {} wrote the data, and this Pod runs etcd {}",
                    beside.member.version, ours.member.version
                ),
            ));
        }
        // One that joins takes no data of another birth, whatever its Pod knows of this one.
        let of_another_birth = ours.joins() && ours.cluster.token != beside.cluster.token;
        match (&ours.cluster.id, &beside.cluster.id) {
            (ours, Some(beside)) if ours.as_ref().map_or(of_another_birth, |it| it != beside) => {
                let id = u64::from_str_radix(beside, 16).unwrap_or_default();
                let other = crate::cluster::ClusterId(id);
                Err(LayDownError::Refused(Refusal::DataOfAnotherCluster(other)))
            }
            (Some(_), None) if ours.cluster.token == beside.cluster.token => {
                Ok(records::save_identity(paths, storage_dir, ours)?)
            }
            _ => Ok(self.bring_up_to_date(paths, &beside)?),
        }
    }

    /// The id that the data here has: by its log, else by the record beside it. Where neither says it, it may be the member's
    /// own: a container starts again with the same word.
    fn had(&self, beside: Option<&IdentityFile>) -> Option<String> {
        let owner = self.owner().map(|(_, it)| it.to_string());
        owner.or_else(|| beside?.member.id.clone())
    }

    fn owner(&self) -> Option<(ClusterId, MemberId)> {
        let data = records::data_dir(&self.launch.storage_dir);
        data_dir::look(&data, None, false).owner
    }

    /// Whether a member that joins has found data of another member of its cluster: of one that had its name before.
    fn is_of_another_member(
        &self,
        listed: Option<&turn::Listed>,
        beside: Option<&IdentityFile>,
    ) -> bool {
        let (Some(listed), Some(beside)) = (listed, beside) else {
            return false;
        };
        let ours = &self.identity;
        let clusters = ours.clusters();
        // A Pod that was made with the first member's knows the cluster by its token alone.
        let knows_no_id = ours.cluster.id.is_none() && ours.cluster.token == beside.cluster.token;
        let of = |it: &String| knows_no_id || clusters.contains(it);
        let is_ours = ours.joins()
            && beside.cluster.name == ours.cluster.name
            && beside.cluster.id.as_ref().is_none_or(of)
            && self.owner().is_none_or(|(it, _)| of(&it.to_string()));
        is_ours && self.had(Some(beside)).is_some_and(|it| it != listed.id)
    }

    /// Writes beside the data what has changed since: the version, and the document's quota, which only grows.
    fn bring_up_to_date(&self, paths: &Paths, beside: &IdentityFile) -> Result<(), StateError> {
        let ours = &self.identity.member;
        let other_version = ours.version != beside.member.version;
        let mut now = beside.clone();
        if self.identity.cluster.id.is_some() {
            now.member = MemberRecord {
                version: ours.version.clone(),
                other_version: ours.other_version.clone(),
                goes_back: ours.goes_back,
                image: ours.image.clone(),
                other_image: ours.other_image.clone(),
                quota: ours.quota.max(beside.member.quota),
                id: beside.member.id.clone().or_else(|| ours.id.clone()),
                ..beside.member.clone()
            };
        }
        if now == *beside {
            return Ok(());
        }
        records::save_identity(paths, &self.launch.storage_dir, &now)?;
        if other_version {
            starts::begin_anew(paths);
        }
        Ok(())
    }
}

/// Makes etcd read its certificates from the mounted Secret, where the kubelet replaces them.
fn point_at_secret(paths: &Paths) {
    let current = Certificates::at(paths.tls()).current();
    if std::fs::read_link(&current).is_ok_and(|it| it.as_os_str() == TLS_DIR) {
        return;
    }
    let _ = state::create_private_dir(&paths.tls());
    let _ = std::fs::remove_file(&current);
    let _ = std::os::unix::fs::symlink(TLS_DIR, &current);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    /// A member of the cluster `shop`: its id, and whether it joined.
    fn record(id: Option<&str>, joined: bool) -> IdentityFile {
        let mut cluster = records::ClusterRecord::new("shop", "shop-1".to_owned());
        cluster.id = Some("c1".to_owned());
        IdentityFile {
            cluster,
            member: MemberRecord {
                name: "shop-1".to_owned(),
                version: "3.6.16".to_owned(),
                joined,
                id: id.map(str::to_owned),
                ..MemberRecord::default()
            },
        }
    }

    fn pod(identity: IdentityFile, storage_dir: &Path) -> PodMember {
        let launch = serde_json::json!({
            "cluster": "shop", "version": "3.6.16", "storageDir": storage_dir, "storageNamed": false,
            "unsafeFilesystemAllowed": false, "addresses": [], "names": [], "leafSeconds": 1,
            "environment": [], "conf": "", "quota": 1, "clientURL": "", "metrics": "127.0.0.1:1",
            "settings": 0, "asked": null,
        });
        PodMember {
            identity,
            launch: serde_json::from_value(launch).unwrap(),
            joins: Vec::new(),
            peer_url: String::new(),
        }
    }

    fn listed_as(id: &str) -> turn::Listed {
        turn::Listed {
            id: id.to_owned(),
            list: String::new(),
            before: Vec::new(),
        }
    }

    /// What lies on the claim of a member that joins: it is renamed aside only where it is another member's of its cluster.
    #[test]
    fn only_the_data_of_a_removed_member_is_set_aside() {
        let root = std::env::temp_dir().join(format!("etcd-operator-joins-{}", std::process::id()));
        let joins = record(None, true);
        let before = record(Some("a1"), false);
        let (mut another, mut of_before) = (before.clone(), before.clone());
        another.cluster.name = "other".to_owned();
        of_before.cluster.id = Some("c0".to_owned());
        let mut restored = joins.clone();
        restored.cluster.former_ids = vec!["c0".to_owned()];
        let mut foreign = before.clone();
        foreign.cluster.id = Some("c9".to_owned());
        for (number, (ours, joins_as, beside, is_set_aside)) in [
            (joins.clone(), Some("b2"), before.clone(), true), // whether its end was written down or not
            (joins.clone(), Some("b2"), joins.clone(), false), // nobody knows whose it is
            (joins.clone(), Some("a1"), before.clone(), false), // its own: the container started again
            (restored, Some("b2"), of_before, true),
            (joins.clone(), Some("b2"), another, false),
            (joins.clone(), Some("b2"), foreign, false),
            (joins.clone(), None, before.clone(), false), // nobody tells with which id it joins
            (record(Some("a1"), true), Some("a1"), before, false),
        ]
        .into_iter()
        .enumerate()
        {
            let paths = Paths::under(&root.join(number.to_string()));
            let dir = paths.member();
            let data = records::data_dir(&dir);
            std::fs::create_dir_all(data.join("member/wal")).unwrap();
            let older = data.with_extension("removed").join("older");
            std::fs::create_dir_all(&older).unwrap();
            records::save_identity(&paths, &dir, &beside).unwrap();
            let listed = joins_as.map(listed_as);
            let laid_down = pod(ours.clone(), &dir).reconcile_identity(&paths, listed.as_ref());
            let aside = data.with_extension("removed").join("member/wal");
            assert_eq!(aside.is_dir(), is_set_aside, "{number}: {laid_down:?}");
            assert_eq!(data.is_dir(), !is_set_aside);
            assert_eq!(older.is_dir(), !is_set_aside, "each is as large");
            if is_set_aside {
                let (now, _) = records::load_identities(&paths, &dir).unwrap();
                assert_eq!(now, Some(ours));
            }
        }
        std::fs::remove_dir_all(&root).unwrap();
    }

    /// A claim that an earlier cluster of this name left: the Pod of one that joins may have been made before the new cluster
    /// had an id.
    #[test]
    fn one_that_joins_takes_no_data_of_another_birth() {
        let root = std::env::temp_dir().join(format!("etcd-operator-birth-{}", std::process::id()));
        let mut ours = record(None, true);
        ours.cluster.id = None;
        for (token, is_taken) in [("shop-1", true), ("shop-0", false)] {
            let mut beside = record(Some("a1"), true);
            beside.cluster.token = token.to_owned();
            let paths = Paths::under(&root.join(token));
            let dir = paths.member();
            std::fs::create_dir_all(records::data_dir(&dir).join("member/wal")).unwrap();
            records::save_identity(&paths, &dir, &beside).unwrap();
            let listed = listed_as("a1");
            let laid_down = pod(ours.clone(), &dir).reconcile_identity(&paths, Some(&listed));
            let refused = matches!(
                laid_down,
                Err(LayDownError::Refused(Refusal::DataOfAnotherCluster(_)))
            );
            assert_eq!(refused, !is_taken, "{laid_down:?}");
        }
        std::fs::remove_dir_all(&root).unwrap();
    }

    /// An operator that knows a member's id tells it to the record beside its data, and overwrites none.
    #[test]
    fn the_record_beside_the_data_takes_an_id_over() {
        let dir = std::env::temp_dir().join(format!("etcd-operator-id-{}", std::process::id()));
        let paths = Paths::under(&dir);
        for (beside, expected) in [(None, "a1"), (Some("b2"), "b2")] {
            let storage = paths.member();
            records::save_identity(&paths, &storage, &record(beside, true)).unwrap();
            let ours = record(Some("a1"), true);
            pod(ours, &storage)
                .reconcile_identity(&paths, None)
                .unwrap();
            let (_, now) = records::load_identities(&paths, &storage).unwrap();
            assert_eq!(now.unwrap().member.id.as_deref(), Some(expected));
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
