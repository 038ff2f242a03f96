//! The Pod of a rehearsal: another version of etcd, on a copy of the data.

use serde_json::{Value, json};

use super::{Parts, REHEARSAL, certificates, command, container, extend, pod};
use crate::backup::served::Served;
use crate::controller::names;
use crate::member::pod::{BACKUP_VARIABLE, SERVED_VARIABLE, SIGNER_VARIABLE, TLS_DIR};
use crate::worker::Config;

/// What the Pod of a rehearsal is asked.
pub(in crate::controller) struct Rehearsal<'a> {
    /// What the host's command reads.
    pub(in crate::controller) document: &'a str,
    /// Where the member is reached.
    pub(in crate::controller) member: &'a Config,
    /// The snapshot, and the worker that serves it; none: the Pod takes one from the member itself.
    pub(in crate::controller) snapshot: Option<(&'a Served, &'a str)>,
    /// The public key with which the cluster signs its snapshots.
    pub(in crate::controller) signer: Option<String>,
    /// Where the member runs: what is tried elsewhere proves nothing of this node, and leaves no image there.
    pub(in crate::controller) node: Option<&'a str>,
}

/// The Pod of a rehearsal. It has no volume of the cluster's; what it keeps goes with it.
pub(in crate::controller) fn rehearsal(parts: &Parts<'_>, asks: &Rehearsal<'_>) -> Value {
    let from = asks.snapshot.map_or("latest", |it| it.1);
    let words = ["restore", "--pod", "--rehearse", "--yes", "--from", from];
    let mut container = container(parts, &words);
    let member = serde_json::to_string(asks.member).unwrap_or_default();
    let mut more = command(asks.document, (BACKUP_VARIABLE, &member));
    let signer = asks.signer.as_deref();
    more.env
        .extend(signer.map(|it| json!({"name": SIGNER_VARIABLE, "value": it})));
    if let Some((served, _)) = asks.snapshot {
        more.tell(SERVED_VARIABLE, served);
    }
    more.mount("tls", &certificates(parts.name), TLS_DIR, true);
    extend(&mut container["env"], more.env);
    extend(&mut container["volumeMounts"], more.mounts);
    container["terminationMessagePolicy"] = json!("FallbackToLogsOnError");
    let name = names::rehearsal_pod(parts.name);
    let mut pod = pod(parts, &name, REHEARSAL, &container);
    pod["spec"]["restartPolicy"] = json!("Never");
    let volumes = pod["spec"]["volumes"].as_array_mut();
    let data = volumes.and_then(|all| all.iter_mut().find(|it| it["name"] == "data"));
    if let Some(data) = data {
        *data = json!({"name": "data", "emptyDir": {}});
    }
    extend(&mut pod["spec"]["volumes"], more.volumes);
    if let Some(node) = asks.node {
        let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
        let terms = json!([{"matchFields": [field]}]);
        pod["spec"]["affinity"] = json!({"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
        }});
    }
    pod
}
