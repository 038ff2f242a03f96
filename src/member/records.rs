//! Records of the member on disk: who it is, how it is started, why it was not.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::clock::rfc3339;
use crate::cluster::{ClusterId, ClusterName, MemberId, MemberName, Timestamp, detail};
use crate::paths::Paths;

use crate::spec::ClusterSpec;
use crate::start::{Identity, Refusal};
use crate::state::{self, StateError};
use crate::version::Version;

pub use super::launch::{Launch, Running, Served};

/// The identity file (rule B9), in the state directory and beside the data: which cluster the data belongs to, and
/// which member of it this place has. The member may change, where it is removed and joins again; the cluster does
/// not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdentityFile {
    /// The cluster.
    pub cluster: ClusterRecord,
    /// The member.
    pub member: MemberRecord,
}

/// What makes a cluster the one that it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterRecord {
    /// The document's name.
    pub name: String,
    /// The `initial-cluster-token`.
    pub token: String,
    /// When it was born, by a trusted clock, as RFC 3339 has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub born: Option<String>,
    /// In hexadecimal, once etcd has served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The fingerprint of the CAs that it first served with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authorities: Option<String>,
    /// Ids that the cluster had before it was restored, oldest first: their snapshots are its own.
    #[serde(default, rename = "formerIDs", skip_serializing_if = "Vec::is_empty")]
    pub former_ids: Vec<String>,
    /// The jumps that its revisions made with each restore, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jumps: Vec<Jump>,
    /// The last revision of a life that was taken back (`restore --undo`): clients have seen it, and no
    /// later life may have it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub highest: Option<i64>,
}

impl ClusterRecord {
    /// A cluster that is born now, or the same one with the data of a snapshot: etcd gives the id once it serves.
    pub fn new(name: &str, token: String) -> Self {
        ClusterRecord {
            name: name.to_owned(),
            token,
            born: None,
            id: None,
            authorities: None,
            former_ids: Vec::new(),
            jumps: Vec::new(),
            highest: None,
        }
    }
}

/// What makes a member the one that it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberRecord {
    /// Its name.
    pub name: String,
    /// The version of etcd that it is started with.
    pub version: String,
    /// The other version that may open the data, while a change of version is not final.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_version: Option<String>,
    /// That change is taken back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub goes_back: bool,
    /// In Kubernetes: the image that the document named for the version, and for the other one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// See `image`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_image: Option<String>,
    /// The quota that it is started with, in bytes.
    pub quota: u64,
    /// `/etc/machine-id` when it was made; in a Pod the node that has its directory.
    #[serde(rename = "machineID")]
    pub machine_id: String,
    /// It joined a cluster that lived: it never makes one of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub joined: bool,
    /// In hexadecimal, once it has served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// In Kubernetes: the UID of the claim that its data was seen to be on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
    /// In Kubernetes: the node where it was seen to serve on that claim. A volume that was there before names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// In Kubernetes: how many claims members of this name have given up. The next one is named by it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub claims_given_up: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde asks")]
fn is_zero(it: &u32) -> bool {
    *it == 0
}

/// What a restore did to the revisions: the snapshot had `from`, and they went on from `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Jump {
    /// The snapshot's.
    pub from: i64,
    /// The first one of the restored cluster.
    pub to: i64,
}

/// How many revisions a restore to `wanted` would lose of a cluster that is at `live`: those that were
/// written, without what restores before it have jumped over.
pub fn revisions_lost(live: i64, wanted: i64, jumps: &[Jump]) -> i64 {
    let (mut lost, mut at) = (0, live);
    for jump in jumps.iter().rev() {
        if wanted >= jump.to {
            break;
        }
        lost += (at - jump.to).max(0);
        at = jump.from;
    }
    lost + (at - wanted).max(0)
}

impl SeenFile {
    /// The last revision that this cluster was seen to have in this boot.
    pub fn revision_of(paths: &Paths, identity: Option<&IdentityFile>) -> Option<i64> {
        let seen: SeenFile = state::load_volatile(&paths.seen())?;
        let same = identity?.cluster.id.as_ref() == Some(&seen.cluster_id);
        seen.revision.filter(|_| same)
    }

    /// The last entry of the log that this cluster was seen to have in this boot.
    pub fn index_of(paths: &Paths, identity: Option<&IdentityFile>) -> Option<u64> {
        let seen: SeenFile = state::load_volatile(&paths.seen())?;
        let same = identity?.cluster.id.as_ref() == Some(&seen.cluster_id);
        (same && seen.boot_id == crate::clock::boot_id() && seen.raft_index > 0)
            .then_some(seen.raft_index)
    }
}

impl IdentityFile {
    /// The same member, which never served, with another version and quota.
    #[must_use]
    pub fn with(mut self, version: Version, quota: u64) -> Self {
        self.member.version = version.to_string();
        self.member.quota = quota;
        self
    }

    /// Whether it has joined, or will, and was not seen to serve since.
    pub fn joins(&self) -> bool {
        self.member.joined && self.member.id.is_none()
    }

    /// It becomes a new member, which joins the cluster that it was of: snapshots of it stay its own.
    pub fn joins_again(&mut self) {
        self.member.joined = true;
        // A change of version was one of the data that goes.
        let _ = self.finish_version();
        (self.member.id, self.member.claim, self.member.node) = (None, None, None);
    }

    /// etcd has told its ids.
    pub fn has_served(&mut self, (cluster, member): (ClusterId, MemberId)) {
        self.cluster.id = Some(cluster.to_string());
        self.member.id = Some(member.to_string());
    }

    /// The same as the first member of a cluster that begins anew, with the ids that etcd gives when it serves.
    #[must_use]
    pub fn without_ids(mut self) -> Self {
        (self.cluster.id, self.member.id) = (None, None);
        self.member.joined = false;
        self
    }

    /// The ids that the cluster has and had, in hexadecimal.
    pub fn clusters(&self) -> Vec<String> {
        let cluster = &self.cluster;
        let all = cluster.former_ids.iter().chain(&cluster.id);
        all.cloned().collect()
    }

    /// The disk was moved to another machine since; unknown ids tell nothing.
    pub fn is_of_another_machine(&self, own: &str) -> bool {
        let then = &self.member.machine_id;
        !own.is_empty() && !then.is_empty() && then != own
    }

    /// What is fixed when a cluster is born; etcd gives the ids once it serves.
    pub fn at_birth(
        spec: &ClusterSpec,
        token: String,
        version: Version,
        quota: u64,
        machine_id: String,
    ) -> Self {
        let member = spec.own().map(|it| it.name.to_string());
        IdentityFile {
            cluster: ClusterRecord::new(&spec.name, token),
            member: MemberRecord {
                name: member.unwrap_or_default(),
                version: version.to_string(),
                quota,
                machine_id,
                ..MemberRecord::default()
            },
        }
    }

    /// The revision from which the present life's count on: where the last restore jumped to; 0: at its birth.
    pub fn begun(&self) -> i64 {
        self.cluster.jumps.last().map_or(0, |it| it.to)
    }

    /// The same, born at this time, where the clock was trusted.
    #[must_use]
    pub fn born_at(mut self, now: Option<Timestamp>) -> Self {
        self.cluster.born = now.map(rfc3339);
        self
    }

    /// As the core has it; `None` when a field does not fit, which no version of ours writes.
    pub fn to_identity(&self) -> Option<Identity> {
        let hex = |text: &Option<String>| u64::from_str_radix(text.as_deref()?, 16).ok();
        let (cluster, member) = (&self.cluster, &self.member);
        Some(Identity {
            cluster: ClusterName::try_from(cluster.name.as_str()).ok()?,
            member: MemberName::try_from(member.name.as_str()).ok()?,
            version: member.version.parse().ok()?,
            other_version: member.other_version.as_ref().and_then(|it| it.parse().ok()),
            goes_back: member.goes_back,
            quota: member.quota,
            joined: member.joined,
            served: hex(&cluster.id)
                .zip(hex(&member.id))
                .map(|(cluster, member)| (ClusterId(cluster), MemberId(member))),
        })
    }
}

/// Where data goes that is set aside: beside the directory, under `data.REASON-1` or the next name that is free.
pub fn aside(data: &Path, reason: &str) -> PathBuf {
    let name = |number: u32| data.with_extension(format!("{reason}-{number}"));
    let taken = (1..u32::MAX).take_while(|it| name(*it).exists()).last();
    name(taken.unwrap_or(0) + 1)
}

/// Renames the data of a removed member aside, where there is some. Of those before it nothing stays: each is as large.
///
/// # Errors
/// The directory could not be renamed, or an older one not removed.
pub fn set_aside(storage_dir: &Path) -> Result<(), StateError> {
    let data = data_dir(storage_dir);
    if !data.exists() {
        return Ok(());
    }
    let to = data.with_extension("removed");
    if to.exists() {
        std::fs::remove_dir_all(&to).map_err(|source| StateError::Io {
            what: "remove",
            path: to.clone(),
            source,
        })?;
    }
    std::fs::rename(&data, &to).map_err(|source| StateError::Io {
        what: "set aside",
        path: data,
        source,
    })?;
    state::sync_dir(storage_dir)?;
    tracing::warn!(to = %to.display(), "the cluster has removed this member; its data was set aside");
    Ok(())
}

/// A word that no other cluster of this name has: etcd derives the cluster's id from it. `None`: the
/// kernel gave no random bytes.
pub fn new_token(cluster: &str) -> Option<String> {
    let mut random = [0_u8; 8];
    ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut random).ok()?;
    Some(format!("{cluster}-{}", state::hex(&random)))
}

/// The copy of the identity beside the data.
pub fn marker_path(storage_dir: &Path) -> PathBuf {
    storage_dir.join("identity.json")
}

/// etcd's `data-dir`.
pub fn data_dir(storage_dir: &Path) -> PathBuf {
    storage_dir.join("data")
}

/// How far the log was seen to reach: acknowledged writes are in it, so it never ends before.
/// Under /run, so that it costs no flash; a reboot clears it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SeenFile {
    /// In hexadecimal.
    #[serde(rename = "clusterID")]
    pub cluster_id: String,
    /// The last index that Raft had committed.
    pub raft_index: u64,
    /// The store's revision then.
    #[serde(default)]
    pub revision: Option<i64>,
    /// The boot in which that was.
    pub boot_id: String,
}

/// What the guard refused, for the operator that comes back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusalFile {
    /// One word.
    pub reason: String,
    /// For people.
    pub message: String,
    /// Seconds since boot.
    pub at: u64,
    /// Since when it was the same reason, in seconds since boot.
    #[serde(default)]
    pub reason_since: u64,
    /// The boot in which that was.
    pub boot_id: String,
}

impl RefusalFile {
    /// Writes down a refusal, where it can be.
    pub fn save(paths: &Paths, refusal: &Refusal) {
        let now = crate::clock::since_boot().as_secs();
        let file = RefusalFile {
            reason: refusal.reason().to_owned(),
            message: refusal.to_string(),
            at: now,
            reason_since: Self::of_this_boot(paths)
                .filter(|it| it.reason == refusal.reason())
                .map_or(now, |it| it.reason_since),
            boot_id: crate::clock::boot_id(),
        };
        if let Err(error) = state::save_volatile(&paths.refusal(), &file) {
            tracing::warn!(%error, "failed to write down why etcd was not started");
        }
    }

    fn of_this_boot(paths: &Paths) -> Option<Self> {
        state::load_volatile::<Self>(&paths.refusal())
            .filter(|it| it.boot_id == crate::clock::boot_id())
    }

    /// The last refusal of this boot.
    pub fn load(paths: &Paths) -> Option<Refusal> {
        let RefusalFile {
            reason, message, ..
        } = Self::of_this_boot(paths)?;
        // Such a one has this reason itself.
        let plain = Refusal::Other(detail(format_args!("{message}")));
        if reason == plain.reason() {
            return Some(plain);
        }
        Some(Refusal::Other(detail(format_args!("{reason}: {message}"))))
    }

    /// The refusal of this boot, if it is not older than `at` (seconds since boot).
    pub fn since(paths: &Paths, at: u64) -> Option<Refusal> {
        (Self::of_this_boot(paths)?.at >= at)
            .then(|| Self::load(paths))
            .flatten()
    }

    /// Seconds for which the last refusal of this boot has had its reason.
    pub fn lasts(paths: &Paths) -> u64 {
        let now = crate::clock::since_boot().as_secs();
        Self::of_this_boot(paths).map_or(0, |it| now.saturating_sub(it.reason_since))
    }

    /// Seconds since it.
    pub(super) fn age(paths: &Paths, now: u64) -> Option<u64> {
        Some(now.saturating_sub(Self::of_this_boot(paths)?.at))
    }
}

/// Reads the identity of the state directory and the copy beside the data.
pub fn load_identities(
    paths: &Paths,
    storage_dir: &Path,
) -> Result<(Option<IdentityFile>, Option<IdentityFile>), StateError> {
    let marker = marker_path(storage_dir);
    let identity = state::load::<IdentityFile>(&paths.identity())?;
    if marker == paths.identity() {
        return Ok((identity.clone(), identity));
    }
    Ok((identity, state::load(&marker)?))
}

/// Writes both copies. The one beside the data first: where only it exists, it is adopted.
pub fn save_identity(
    paths: &Paths,
    storage_dir: &Path,
    file: &IdentityFile,
) -> Result<(), StateError> {
    let marker = marker_path(storage_dir);
    if marker != paths.identity() {
        state::save(&marker, file)?;
    }
    state::create_private_dir(&paths.member())?;
    state::save(&paths.identity(), file)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_joins_again_knows_its_cluster_and_its_snapshots() {
        let mut it = IdentityFile {
            cluster: ClusterRecord {
                id: Some("b".to_owned()),
                former_ids: vec!["a".to_owned()],
                ..ClusterRecord::new("shop", "shop-1".to_owned())
            },
            member: MemberRecord {
                name: "shop-0".to_owned(),
                version: "3.6.16".to_owned(),
                id: Some("c".to_owned()),
                ..MemberRecord::default()
            },
        };
        assert!(!it.joins());
        it.joins_again();
        assert!(it.joins());
        assert_eq!(it.clusters(), ["a", "b"]);
        assert_eq!(it.to_identity().unwrap().served, None, "as this member");
        let text = serde_json::to_string(&it).unwrap();
        assert_eq!(serde_json::from_str::<IdentityFile>(&text).unwrap(), it);
    }

    #[test]
    fn what_a_restore_jumped_over_is_not_lost() {
        let jump = |from, to| Jump { from, to };
        assert_eq!(revisions_lost(40, 31, &[]), 9);
        assert_eq!(revisions_lost(31, 31, &[]), 0);
        // Restored to 31, three writes since.
        let once = [jump(31, 1031)];
        assert_eq!(revisions_lost(1034, 1032, &once), 2, "of the new life");
        assert_eq!(revisions_lost(1034, 31, &once), 3, "to the same one again");
        assert_eq!(revisions_lost(1034, 20, &once), 14, "to an older one");
        assert_eq!(revisions_lost(1034, 35, &once), 3, "to what was lost then");
        let twice = [jump(31, 1031), jump(1033, 3033)];
        assert_eq!(revisions_lost(3040, 1033, &twice), 7);
        assert_eq!(revisions_lost(3040, 31, &twice), 9);
    }
}
