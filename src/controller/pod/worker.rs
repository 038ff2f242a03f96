//! The Pod of a backup worker.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::{Parts, certificates, command, container, extend, pod};
use crate::backup::served::PORT;
use crate::controller::names::{self, QUOTA, SETTINGS};
use crate::controller::secrets::SIGNER_KEY;
use crate::member::pod::{BACKUP_VARIABLE, CLAIM_DIR, SIGNER_DIR, TLS_DIR};
use crate::worker::Config;

/// Where a worker's records lie: beside the snapshots, on the claim.
pub(in crate::controller) fn records(cluster: &str) -> PathBuf {
    [CLAIM_DIR, ".etcd-operator", cluster].iter().collect()
}

/// The Pod that works on snapshots: it streams from the member as any client would. `claim`: where they lie.
pub(in crate::controller) fn worker(
    parts: &Parts<'_>,
    name: &str,
    config: &Config,
    document: &str,
    claim: &str,
) -> Value {
    let mut container = container(parts, &["backup", "worker"]);
    let config = serde_json::to_string(config).unwrap_or_default();
    let mut more = command(document, (BACKUP_VARIABLE, &config));
    more.mount_keys(parts);
    let claim = json!({"persistentVolumeClaim": {"claimName": claim}});
    more.mount("claim", &claim, CLAIM_DIR, false);
    more.mount("tls", &certificates(parts.name), TLS_DIR, true);
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
