//! `EtcdCluster.status` on the wire: the core's [`Status`], serialisable. The host's `status -o
//! json` prints the same keys.

mod members;
mod news;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::clock::rfc3339;
use crate::cluster::Timestamp;
use crate::observed::{Backups, DestinationSeen, SnapshotNamed, SnapshotSeen};
use crate::status::{Kind, Status, Verdict};

use members::member_to_wire;
pub use members::{MemberStatus, role_name};
pub use news::{News, news};

/// What the operator knows of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EtcdClusterStatus {
    /// Available, Progressing, Degraded, BackupHealthy, CertificatesValid, ClockTrusted,
    /// DocumentAccepted, HostHealthy.
    #[serde(default)]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map"), extend("x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Everything here was confirmed up to this time. If it is old, the operator is not running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmed_until: Option<Time>,
    /// The members as etcd lists them.
    #[serde(default)]
    #[schemars(length(max = 13))]
    pub members: Vec<MemberStatus>,
    /// Voting members that answer.
    #[serde(default)]
    pub ready_members: u8,
    /// The same, of how many that the document asks for: `2/3`.
    #[serde(default)]
    pub ready: String,
    /// Claims whose members were removed or replaced. They keep their data until somebody deletes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 253)))]
    pub kept_claims: Vec<String>,
    /// The cluster's id, in hexadecimal.
    #[serde(default, rename = "clusterID", skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    /// The version of etcd that runs; of several members the oldest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub version: Option<String>,
    /// Since when: a change, or its birth. Left out where the clock was not trusted then, or a restore brought it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub version_since: Option<String>,
    /// The store's revision when it was last read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
    /// The leader's member id, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// The database, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database: Option<DatabaseStatus>,
    /// The next step, or why there is none.
    #[serde(default)]
    pub plan: PlanStatus,
    /// Leaf certificates in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificates: Option<CertificatesStatus>,
    /// Snapshots, where the document configures any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backups: Option<BackupsStatus>,
    /// The last changes of etcd's version, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub history: Vec<ChangeStatus>,
    /// The generation of the document that this status describes.
    #[serde(default)]
    pub observed_generation: i64,
}

/// A change that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChangeStatus {
    /// The field of the document: `version`.
    pub what: String,
    /// What was in force before.
    pub from: String,
    /// What the document asked for.
    pub to: String,
    /// When it ended, if the clock was trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// How it ended.
    pub outcome: ChangeOutcome,
    /// Why it did not succeed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// How a change ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ChangeOutcome {
    /// It is in force.
    Done,
    /// The new etcd did not serve a copy of the data; the data was not touched.
    NotRehearsed,
    /// The new etcd did not serve the data; the one before serves it again.
    RolledBack,
    /// The new etcd did not serve the data, and the one before cannot open it any more.
    Stuck,
}

/// Changes of the version that are kept.
pub const HISTORY_MAX: usize = 10;

impl EtcdClusterStatus {
    /// Adds the last changes of the version, and since when the one in force is: since the birth, where none has
    /// brought another one.
    pub fn tell_changes(&mut self, history: &[ChangeStatus], born: Option<&String>) {
        let version = self.version.as_ref();
        let brings = [ChangeOutcome::Done, ChangeOutcome::Stuck];
        let is_done = |it: &&ChangeStatus| brings.contains(&it.outcome);
        let mut done = history.iter().filter(is_done);
        let brought = done.clone().rfind(|it| version == Some(&it.to));
        let since = match brought {
            Some(it) => it.at.clone(),
            None if done.next().is_none() && history.len() < HISTORY_MAX => born.cloned(),
            None => None,
        };
        self.version_since = since.filter(|_| version.is_some());
        self.history = history.to_vec();
    }

    /// Whether anything but times and counters changed.
    pub fn differs(&self, other: &Self) -> bool {
        let strip = |it: &Self| {
            let mut it = it.clone();
            it.confirmed_until = None;
            it.revision = None;
            it.database = None;
            it.plan.next_try_seconds = None;
            for member in &mut it.members {
                member.lag = None;
            }
            if let Some(backups) = &mut it.backups {
                backups.next_seconds = None;
                let destinations = backups.destinations.iter_mut();
                let snapshots = destinations.map(|it| {
                    it.next_seconds = None;
                    &mut it.last_verified
                });
                let both = [&mut backups.last, &mut backups.last_verified];
                for snapshot in snapshots.chain(both).flatten() {
                    snapshot.age_seconds = None;
                }
                for snapshot in &mut backups.snapshots {
                    snapshot.age_seconds = None;
                }
            }
            it
        };
        strip(self) != strip(other)
    }
}

/// Snapshots.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupsStatus {
    /// The newest one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<SnapshotStatus>,
    /// The newest one that is verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_verified: Option<SnapshotStatus>,
    /// The newest ones in the first destination that this cluster has signed, newest first: what `from` of a restore
    /// names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub snapshots: Vec<NamedSnapshotStatus>,
    /// Seconds until the document asks for the next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_seconds: Option<u64>,
    /// The public key with which this cluster signs them, as `backup.trustedSigners` of another one pins it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signer: Option<String>,
    /// How many there are in the first destination.
    pub count: u32,
    /// Their bytes.
    pub bytes: u64,
    /// How many wait to be copied to another destination.
    pub queued: u32,
    /// Their bytes.
    pub queued_bytes: u64,
    /// When copies were last read back and found intact, for the destination where that is longest ago.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies_checked: Option<String>,
    /// The document's destinations, in its order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    pub destinations: Vec<DestinationStatus>,
}

/// A destination of snapshots.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DestinationStatus {
    /// A directory, or s3://BUCKET/PREFIX.
    pub place: String,
    /// The newest verified snapshot that is known to lie there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_verified: Option<SnapshotStatus>,
    /// How many wait to be copied there.
    pub queued: u32,
    /// Their bytes.
    pub queued_bytes: u64,
    /// When the oldest of them was taken; left out where the clock was not trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_since: Option<String>,
    /// Seconds until the next snapshot, or until what waits is copied or tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_seconds: Option<u64>,
}

/// A snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotStatus {
    /// The last revision in it.
    pub revision: i64,
    /// When it was taken; left out where the clock was not trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
    /// The level of verification that it reached.
    pub level: u8,
    /// The size of its file, in bytes.
    pub size: u64,
    /// Its age; left out where nobody knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<u64>,
}

/// A snapshot by its name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamedSnapshotStatus {
    /// Its name.
    pub name: String,
    /// The last revision in it.
    pub revision: i64,
    /// When it was taken; left out where the clock was not trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
    /// The level of verification that it reached.
    pub level: u8,
    /// Its age; left out where nobody knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<u64>,
    /// Where it lies: a directory, or s3://BUCKET/PREFIX.
    pub place: String,
}

/// The database, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DatabaseStatus {
    /// The file.
    pub size: u64,
    /// The part in use.
    pub in_use: u64,
    /// The size at which etcd refuses writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<u64>,
}

/// The next step, or why there is none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanStatus {
    /// What is done next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The reason of the hold, one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<String>,
    /// The reason in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What a person does to end the hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_step: Option<String>,
    /// Seconds until the operator retries, if a retry is scheduled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_try_seconds: Option<u64>,
}

/// Leaf certificates in use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CertificatesStatus {
    /// When the first of them expires.
    pub earliest_expiry: String,
    /// Made while the clock was not trusted.
    pub provisional: bool,
}

fn wire_time(timestamp: Timestamp) -> Option<Time> {
    serde_json::from_value(serde_json::Value::String(rfc3339(timestamp))).ok()
}

/// The name of a condition on the wire.
pub fn condition_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Available => "Available",
        Kind::Progressing => "Progressing",
        Kind::Degraded => "Degraded",
        Kind::BackupHealthy => "BackupHealthy",
        Kind::CertificatesValid => "CertificatesValid",
        Kind::ClockTrusted => "ClockTrusted",
        Kind::DocumentAccepted => "DocumentAccepted",
        Kind::HostHealthy => "HostHealthy",
    }
}

/// The value of a condition on the wire.
pub fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::True => "True",
        Verdict::False => "False",
        Verdict::Unknown => "Unknown",
    }
}

fn plan(status: &Status) -> PlanStatus {
    let told = status.hold.as_ref();
    PlanStatus {
        next: status.next.as_ref().map(ToString::to_string),
        hold: told.map(|it| it.hold.reason().to_owned()),
        message: told.map(|it| it.words.to_string()),
        next_step: told.map(|it| it.hold.next_step().to_string()),
        next_try_seconds: status.next_try,
    }
}

/// The status on the wire. `before` is the last one: a condition keeps its transition time as long
/// as its value does.
pub fn to_wire(
    status: &Status,
    before: Option<&EtcdClusterStatus>,
    generation: i64,
) -> EtcdClusterStatus {
    let now = wire_time(status.confirmed_until);
    let conditions = status.conditions.iter().filter_map(|it| {
        let name = condition_name(it.kind);
        let value = verdict_name(it.verdict);
        let kept = before
            .and_then(|it| it.conditions.iter().find(|it| it.type_ == name))
            .filter(|it| it.status == value)
            .map(|it| it.last_transition_time.clone());
        Some(Condition {
            type_: name.to_owned(),
            status: value.to_owned(),
            reason: it.reason.to_owned(),
            message: it.message.to_string(),
            observed_generation: Some(generation),
            last_transition_time: kept.or_else(|| now.clone())?,
        })
    });
    EtcdClusterStatus {
        conditions: conditions.collect(),
        history: before.map(|it| it.history.clone()).unwrap_or_default(),
        members: status.members.iter().map(member_to_wire).collect(),
        ready_members: status.ready_members,
        ready: format!("{}/{}", status.ready_members, status.size),
        kept_claims: Vec::new(),
        cluster_id: status.details.map(|it| it.cluster.to_string()),
        version: status.version.map(|it| it.to_string()),
        version_since: None,
        revision: status.details.map(|it| it.revision),
        leader: status
            .details
            .and_then(|it| it.leader)
            .map(|it| it.to_string()),
        database: status.details.map(|it| DatabaseStatus {
            size: it.db_size,
            in_use: it.db_in_use,
            quota: status.quota,
        }),
        plan: plan(status),
        certificates: status
            .certificates
            .map(|(end, provisional)| CertificatesStatus {
                earliest_expiry: rfc3339(end),
                provisional,
            }),
        backups: status.backups.as_ref().map(|it| BackupsStatus {
            last: it.last.as_ref().map(snapshot),
            last_verified: it.verified.as_ref().map(snapshot),
            snapshots: it
                .named
                .iter()
                .map(|named| named_snapshot(named, it))
                .collect(),
            destinations: destinations(it),
            next_seconds: it.due_in,
            signer: it.signer.as_ref().map(ToString::to_string),
            count: it.kept.0,
            bytes: it.kept.1,
            queued: it.queued.0,
            queued_bytes: it.queued.1,
            copies_checked: it.copies_checked.map(rfc3339),
        }),
        observed_generation: generation,
        confirmed_until: now,
    }
}

/// The newest document was refused since this status was made.
pub fn document_refused(status: &mut EtcdClusterStatus, reason: &str, why: &str, now: Timestamp) {
    change(status, "DocumentAccepted", ("False", reason, why), now);
    let degraded = |it: &Condition| it.type_ == "Degraded" && it.status == "True";
    if !status.conditions.iter().any(degraded) {
        change(status, "Degraded", ("True", reason, why), now);
    }
}

/// It was accepted since, and is not in force yet.
pub fn document_waits(status: &mut EtcdClusterStatus, why: &str, now: Timestamp) {
    change(status, "DocumentAccepted", ("True", "Waits", why), now);
}

fn change(
    status: &mut EtcdClusterStatus,
    kind: &str,
    (value, reason, why): (&str, &str, &str),
    now: Timestamp,
) {
    for it in status.conditions.iter_mut().filter(|it| it.type_ == kind) {
        if it.status != value
            && let Some(now) = wire_time(now)
        {
            it.last_transition_time = now;
        }
        value.clone_into(&mut it.status);
        reason.clone_into(&mut it.reason);
        why.clone_into(&mut it.message);
    }
}

fn snapshot(it: &SnapshotSeen) -> SnapshotStatus {
    SnapshotStatus {
        revision: it.revision,
        created: it.created.map(rfc3339),
        level: it.level,
        size: it.bytes,
        age_seconds: it.seconds,
    }
}

fn named_snapshot(it: &SnapshotNamed, backups: &Backups) -> NamedSnapshotStatus {
    let first = backups.destinations.first();
    NamedSnapshotStatus {
        name: it.name.as_str().to_owned(),
        revision: it.seen.revision,
        created: it.seen.created.map(rfc3339),
        level: it.seen.level,
        age_seconds: it.seen.seconds,
        place: first.map(|it| it.place.to_string()).unwrap_or_default(),
    }
}

fn destinations(backups: &Backups) -> Vec<DestinationStatus> {
    let next = |index, it: &DestinationSeen| match index {
        0 if backups.failed.is_some() && backups.retry_in > 0 => Some(backups.retry_in),
        0 => backups.due_in,
        _ => (it.queued.0 > 0).then_some(backups.copy_retry_in),
    };
    let all = backups.destinations.iter().enumerate();
    let all = all.map(|(index, it)| DestinationStatus {
        place: it.place.to_string(),
        last_verified: it.verified.as_ref().map(snapshot),
        queued: it.queued.0,
        queued_bytes: it.queued.1,
        waiting_since: it.waits_since.map(rfc3339),
        next_seconds: next(index, it),
    });
    all.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_counts_up_or_down_is_no_change() {
        let snapshot = |age| {
            Some(SnapshotStatus {
                revision: 7,
                age_seconds: Some(age),
                ..SnapshotStatus::default()
            })
        };
        let status = |moment: u64, queued| EtcdClusterStatus {
            revision: Some(7 + i64::try_from(moment).unwrap()),
            database: Some(DatabaseStatus {
                size: moment,
                ..DatabaseStatus::default()
            }),
            backups: Some(BackupsStatus {
                last: snapshot(moment),
                last_verified: snapshot(moment),
                snapshots: vec![NamedSnapshotStatus {
                    age_seconds: Some(moment),
                    ..NamedSnapshotStatus::default()
                }],
                next_seconds: Some(100 - moment),
                destinations: vec![DestinationStatus {
                    last_verified: snapshot(moment),
                    queued,
                    next_seconds: Some(100 - moment),
                    ..DestinationStatus::default()
                }],
                ..BackupsStatus::default()
            }),
            ..EtcdClusterStatus::default()
        };
        assert!(!status(1, 0).differs(&status(11, 0)));
        assert!(status(1, 0).differs(&status(1, 1)));
    }
}
