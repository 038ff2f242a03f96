//! What a document would change: the file against what is in force, field by field.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::kept::{Accepted, sum};
use super::report::HostDocument;
use crate::api::{EtcdCluster, EtcdClusterSpec, EtcdClusterStatus};
use crate::changes::{Changes, FailedUpgrade};
use crate::cluster::ClusterName;
use crate::document::Document;
use crate::document::compare::{differences, spelled_out};
use crate::etcd::{data_dir, store};
use crate::member::records::{self, IdentityFile, Running};
use crate::member::{facts, place};
use crate::paths::Paths;
use crate::plan::edit::{Effect, Situation, effect, rename};
use crate::spec::field::{self, FIELDS};
use crate::start::{Identity, Refusal};
use crate::state;
use crate::version::{VERSION_AT_BIRTH, Version};

/// What is in force on this host: the last document that was sound, but for the settings that etcd runs
/// with, which are those that it was started with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InForce {
    /// The document, where one was accepted.
    pub document: Option<HostDocument>,
    /// The cluster's name.
    pub name: Option<String>,
    /// Its spec, with every default.
    pub spec: Value,
    /// Who lives here.
    pub identity: Option<IdentityFile>,
    /// The version of the etcd that runs.
    pub running: Option<String>,
    /// The addresses that it listens on.
    pub addresses: Vec<SocketAddr>,
    /// Where its data lies.
    pub storage_dir: Option<PathBuf>,
    /// The quota that is in force, in bytes.
    pub quota: u64,
    /// The database file, in bytes.
    pub database: Option<u64>,
    /// What its last start took.
    pub start_took_milliseconds: Option<u64>,
    /// The version that did not serve, with the document that asked for it.
    pub failed: Option<FailedUpgrade>,
}

/// What an edit changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FieldChange {
    /// The field.
    pub path: String,
    /// What is in force; none where it is not given.
    pub in_force: Option<Value>,
    /// What is asked for.
    pub asked: Option<Value>,
    /// One word: birth, nothing, live, nextStart, restart, upgrade, stop, start, waits, refused.
    pub effect: String,
    /// For people.
    pub message: String,
    /// What a person does about it, where it is held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_step: Option<String>,
    /// One word: why it is held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold: Option<String>,
}

impl InForce {
    /// From the records.
    pub fn of(
        paths: &Paths,
        accepted: Option<&Accepted>,
        running: Option<&Running>,
        identity: Option<IdentityFile>,
    ) -> Self {
        let launch = running.map(|it| &it.launch);
        let latched = identity.as_ref().map_or(0, |it| it.member.quota);
        let quota = launch.map_or(latched, |it| it.quota);
        let mut spec = accepted.map_or_else(
            || spelled_out(&EtcdClusterSpec::default()),
            |it| spelled_out(&it.document.wire),
        );
        let wanted = accepted.map(|it| &it.document.spec);
        if let Some(Value::Object(asked)) = launch.map(|it| &it.asked) {
            let default = spelled_out(&EtcdClusterSpec::default());
            for it in FIELDS.iter().filter(|it| it.class.is_setting()) {
                let value = asked.get(it.path).or_else(|| at(&default, it.path));
                set(&mut spec, it.path, value.cloned());
            }
        }
        // What waits, or is refused, is not in force.
        let asked = wanted.and_then(|it| it.quota);
        if quota > 0 && asked.is_some_and(|it| it != quota) {
            set(&mut spec, "storage.quota", Some(mebibytes(quota).into()));
        }
        if let (Some(asked), Some(launch)) = (wanted.and_then(|it| it.version), launch)
            && asked.to_string() != launch.version
        {
            set(&mut spec, "version", Some(launch.version.clone().into()));
        }
        let name = accepted.map(|it| it.document.spec.name.to_string());
        let by_document = |it: &Accepted| place::resolve(paths, &it.document.spec).storage_dir;
        InForce {
            storage_dir: launch
                .map(|it| it.storage_dir.clone())
                .or_else(|| accepted.map(by_document)),
            document: accepted.map(HostDocument::of),
            name: identity.as_ref().map(|it| it.cluster.name.clone()).or(name),
            spec,
            running: launch.map(|it| it.version.clone()),
            addresses: running.map(Running::bound).unwrap_or_default(),
            quota,
            identity,
            database: None,
            start_took_milliseconds: None,
            failed: Changes::load(paths).ok().and_then(|it| it.failed),
        }
    }

    /// What a document would change.
    pub fn changes(&self, paths: &Paths, asked: &Document) -> Vec<FieldChange> {
        let identity = self.identity.as_ref().and_then(IdentityFile::to_identity);
        let refusal = self.refusal(paths, asked);
        let empty = |dir: &PathBuf| !data_dir::has_data(&records::data_dir(dir));
        let served = identity.as_ref().is_none_or(|it| it.served.is_some());
        let failed = self.failed.as_ref();
        let failed = failed.and_then(|it| it.by(&sum(asked)));
        let situation = Situation {
            failed: failed.as_ref().map(|it| (it.to, &it.why)),
            unserved: !served
                && self.running.is_none()
                && self.storage_dir.as_ref().is_some_and(empty),
            identity: identity.as_ref(),
            running: self.running.as_ref().and_then(|it| it.parse().ok()),
            quota: self.quota,
            database: self.database,
            binary: asked
                .spec
                .version
                .map(|it| store::binary(&paths.store(), it)),
            refusal: refusal.as_ref(),
            start_took: self.start_took_milliseconds,
            members: None,
            asked: &asked.spec,
        };
        changes(self.name.as_deref(), &self.spec, asked, &situation)
    }
}

/// What a document would change of a cluster in Kubernetes.
pub fn changes_of_object(object: &EtcdCluster, asked: &Document) -> Vec<FieldChange> {
    let nothing = EtcdClusterStatus::default();
    let status = object.status.as_ref().unwrap_or(&nothing);
    let running = status.version.as_ref().and_then(|it| it.parse().ok());
    let database = status.database.as_ref();
    let quota = database.and_then(|it| it.quota).unwrap_or(0);
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let own: ClusterName = name.try_into().unwrap_or_default();
    let identity = status.cluster_id.is_some().then(|| Identity {
        member: own.clone(),
        cluster: own,
        version: running.unwrap_or(VERSION_AT_BIRTH),
        other_version: None,
        goes_back: false,
        quota,
        joined: false,
        served: None,
    });
    let members = u8::try_from(status.members.len()).unwrap_or(u8::MAX);
    let situation = Situation {
        identity: identity.as_ref(),
        running: running.filter(|_| members > 0),
        quota,
        database: database.map(|it| it.size),
        binary: None, // the Pod that tries the image finds that first
        failed: None,
        refusal: None,
        start_took: None,
        unserved: identity.is_none(),
        members: Some(members),
        asked: &asked.spec,
    };
    changes(Some(name), &spelled_out(&object.spec), asked, &situation)
}

/// What a document changes of a cluster with this name and spec.
fn changes(
    name: Option<&str>,
    spec: &Value,
    asked: &Document,
    situation: &Situation<'_>,
) -> Vec<FieldChange> {
    let mut changes = Vec::new();
    if let Some(name) = name
        && name != asked.spec.name.as_str()
    {
        changes.push(FieldChange::of(
            "metadata.name",
            (Some(name.into()), Some(asked.spec.name.as_str().into())),
            &rename(situation),
        ));
    }
    for it in differences(spec, &spelled_out(&asked.wire)) {
        // Every field of the schema has a class, which a test holds.
        let class = field::class_of(&it.path).unwrap_or(field::Class::Live);
        let effect = effect(class, situation);
        let path = format!("spec.{}", it.path);
        changes.push(FieldChange::of(&path, (it.before, it.after), &effect));
    }
    changes
}

impl InForce {
    /// Why etcd could not be started with the settings of a document, as far as they are its fault.
    fn refusal(&self, paths: &Paths, asked: &Document) -> Option<Refusal> {
        let wanted = place::resolve(paths, &asked.spec);
        let launch = wanted.launch(&asked.spec, Version::new(0, 0, 0));
        let elsewhere = self
            .storage_dir
            .as_ref()
            .is_some_and(|it| *it != launch.storage_dir);
        let lives_here = self.identity.as_ref().filter(|_| elsewhere);
        let moved = lives_here.and_then(|it| not_moved(it, &launch.storage_dir));
        moved.or_else(|| {
            let conflict = facts::conflict(paths, &launch, &self.addresses);
            conflict.map(Refusal::AddressUnavailable)
        })
    }
}

/// Why the data of a cluster is not in a directory; `None`: it is.
fn not_moved(identity: &IdentityFile, storage_dir: &Path) -> Option<Refusal> {
    match std::fs::metadata(storage_dir) {
        Ok(it) if it.is_dir() => {}
        Err(it) if it.kind() == std::io::ErrorKind::PermissionDenied => {
            return Some(Refusal::StorageDenied);
        }
        _ => return Some(Refusal::StorageMissing),
    }
    let marker = state::load::<IdentityFile>(&records::marker_path(storage_dir));
    match marker.ok().flatten() {
        Some(it) if it.cluster.name != identity.cluster.name => {
            let name = it.cluster.name.as_str().try_into().unwrap_or_default();
            Some(Refusal::StorageOfAnotherCluster(name))
        }
        Some(_) if records::data_dir(storage_dir).is_dir() => None,
        _ => Some(Refusal::DataMissing),
    }
}

impl FieldChange {
    fn of(path: &str, values: (Option<Value>, Option<Value>), effect: &Effect) -> Self {
        let hold = effect.hold();
        FieldChange {
            path: path.to_owned(),
            in_force: values.0,
            asked: values.1,
            effect: effect.name().to_owned(),
            message: effect.to_string(),
            next_step: hold.map(|it| it.next_step().to_string()),
            hold: hold.map(|it| it.reason().to_owned()),
        }
    }
}

/// A size as a document would say it.
fn mebibytes(bytes: u64) -> String {
    match bytes % (1 << 20) {
        0 => format!("{}Mi", bytes >> 20),
        _ => bytes.to_string(),
    }
}

fn at<'a>(spec: &'a Value, path: &str) -> Option<&'a Value> {
    spec.pointer(&format!("/{}", path.replace('.', "/")))
}

/// Sets or removes a field.
fn set(spec: &mut Value, path: &str, value: Option<Value>) {
    let (parent, key) = path.rsplit_once('.').unwrap_or(("", path));
    let parent = if parent.is_empty() {
        Some(spec)
    } else {
        spec.pointer_mut(&format!("/{}", parent.replace('.', "/")))
    };
    if let Some(Value::Object(fields)) = parent {
        match value {
            Some(value) => drop(fields.insert(key.to_owned(), value)),
            None => drop(fields.remove(key)),
        }
    }
}
