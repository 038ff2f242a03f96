//! The Pod of a backup worker.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{Parts, command, container, extend, host_path, pod};
use crate::api::EtcdClusterSpec;
use crate::api::node_paths::{self, CLAIM_DIR};
use crate::controller::names::{self, QUOTA, SETTINGS};
use crate::controller::secrets::SIGNER_KEY;
use crate::member::pod::{BACKUP_VARIABLE, SIGNER_DIR, TLS_DIR};
use crate::worker::{Config, PORT};

/// What a worker finds on the node, or on a claim.
pub(in crate::controller) struct Places {
    cluster: String,
    /// Of the first destination, where it is one.
    claim: Option<String>,
    /// Directories of the node.
    directories: Vec<String>,
    /// Directories with files that the document names, read-only.
    files: BTreeSet<String>,
    /// Where the records lie on the node; those about snapshots on a claim lie beside them.
    state: String,
}

/// Where a worker's records lie on the node: apart from what the operator itself keeps there.
pub(in crate::controller) fn records_dir(namespace: &str, name: &str) -> String {
    format!("{}/worker", node_paths::state_dir(namespace, name))
}

/// What the worker of this cluster finds. `prepared`: the directories that it can use.
pub(in crate::controller) fn places(
    namespace: &str,
    name: &str,
    wire: &EtcdClusterSpec,
    prepared: &[String],
) -> Places {
    let files = node_paths::files(wire);
    let parents = files.filter_map(|it| Some(Path::new(it).parent()?.to_str()?.to_owned()));
    Places {
        cluster: name.to_owned(),
        claim: node_paths::local(wire).find_map(|it| it.claim_name.clone()),
        directories: prepared.to_vec(),
        files: parents.collect(),
        state: records_dir(namespace, name),
    }
}

impl Places {
    /// Where the records lie.
    pub(in crate::controller) fn records(&self) -> PathBuf {
        match &self.claim {
            Some(_) => [CLAIM_DIR, ".etcd-operator", &self.cluster]
                .iter()
                .collect(),
            None => self.state.clone().into(),
        }
    }
}

/// The Pod that works on snapshots: it streams from the member as any client would.
pub(in crate::controller) fn worker(
    parts: &Parts<'_>,
    name: &str,
    config: &Config,
    document: &str,
    places: &Places,
) -> Value {
    let mut container = container(parts, &["backup", "worker"]);
    let config = serde_json::to_string(config).unwrap_or_default();
    let mut more = command(parts, document, (BACKUP_VARIABLE, &config));
    if let Some(name) = &places.claim {
        let claim = json!({"persistentVolumeClaim": {"claimName": name}});
        more.mount("claim", &claim, CLAIM_DIR, false);
    } else {
        more.mount("records", &host_path(&places.state), &places.state, false);
    }
    for (index, dir) in places.directories.iter().enumerate() {
        let name = format!("snapshots-{index}");
        more.mount(&name, &host_path(dir), dir, false);
        // A disk that is mounted there later is seen, too.
        if let Some(mount) = more.mounts.last_mut() {
            mount["mountPropagation"] = json!("HostToContainer");
        }
    }
    for (index, dir) in places.files.iter().enumerate() {
        more.mount(&format!("files-{index}"), &host_path(dir), dir, true);
    }
    let tls = json!({"secret": {
        "secretName": names::member_secret(parts.name),
        "defaultMode": 0o440,
    }});
    more.mount("tls", &tls, TLS_DIR, true);
    let key = json!({"secret": {
        "secretName": names::authority_secret(parts.name),
        "defaultMode": 0o440,
        "items": [{"key": SIGNER_KEY, "path": format!("signer/{SIGNER_KEY}")}],
        "optional": true, // a Secret of before the first signature
    }});
    more.mount("signs", &key, SIGNER_DIR, true);
    extend(&mut container["env"], more.env);
    container["ports"] = json!([{"name": "operator", "containerPort": PORT}]);
    container["resources"] = json!({
        "requests": {"cpu": "10m", "memory": "16Mi"},
    });
    if let Some(mounts) = container["volumeMounts"].as_array_mut() {
        mounts.retain(|it| it["name"] != "data" && it["name"] != "keys"); // the member's alone
    }
    extend(&mut container["volumeMounts"], more.mounts);
    container["terminationMessagePolicy"] = json!("FallbackToLogsOnError");
    let mut pod = pod(parts, name, "backup", &container);
    pod["spec"]["restartPolicy"] = json!("Always");
    // These describe an etcd: an edit of them replaces no worker.
    if let Some(annotations) = pod["metadata"]["annotations"].as_object_mut() {
        annotations.retain(|it, _| it != SETTINGS && it != QUOTA);
    }
    if let Some(volumes) = pod["spec"]["volumes"].as_array_mut() {
        volumes.retain(|it| it["name"] != "data" && it["name"] != "keys");
    }
    extend(&mut pod["spec"]["volumes"], more.volumes);
    pod
}
