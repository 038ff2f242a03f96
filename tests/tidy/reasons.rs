//! Every reason that the code, or an alert, can name is explained.

use std::collections::BTreeSet;
use std::path::Path;

use etcd_operator::explain;

use crate::{code, sources};

/// Words in the same form that are no reasons: of Kubernetes, of systemd, of YAML, types of conditions, units.
#[rustfmt::skip]
const NO_REASONS: &[&str] = &[
    "AccessDenied", "ActiveState", "Age", "Always", "Backup",
    "Binding", "Bound", "Bundle", "Cluster", "ClusterDomain",
    "ClusterIP", "ClusterRole", "ClusterRoleBinding", "ContainerCreating", "ContainerStatusUnknown", "CrashLoopBackOff", "CreateContainerConfigError",
    "CreateContainerError", "DaemonSet", "Deny", "Directory", "DirectoryOrCreate",
    "DisableUnitFiles", "DisruptionTarget", "EnableUnitFiles", "Equivalent", "ErrImageNeverPull",
    "ErrImagePull", "EtcdBackup", "EtcdBackupStatus", "EtcdBackups", "EtcdCluster", "EtcdClusterStatus",
    "EtcdClusters", "EtcdRestore", "EtcdRestoreStatus", "EtcdRestores", "Everywhere", "Exists",
    "Fail", "Failed", "FallbackToLogsOnError", "False", "Get", "Gi",
    "Hold", "HostToContainer", "IfNotPresent", "ImagePullBackOff", "In", "Ingress",
    "InteractiveAuthorizationRequired", "Into", "InvalidImageName", "Ki", "Lease", "Level", "List",
    "Lost", "Mi", "Namespace", "NetworkPolicy", "Never", "No",
    "NoExecute", "NoSuchUnit", "Node", "None", "Null", "Off", "On",
    "OnFailure", "OnRootMismatch", "Opaque", "Pending", "PersistentVolume", "PersistentVolumeClaim", "PersistentVolumeClaims", "Phase", "Pod", "PodDisruptionBudget",
    "PodInitializing", "PodScheduled", "PodSecurity", "Pods", "PriorityClass", "ReadWriteOnce",
    "Ready", "Reconcile", "Reload", "Revision", "Role", "RoleBinding",
    "RunContainerError", "RuntimeDefault", "Secret", "Secrets", "Service", "ServiceAccount",
    "Services", "Size", "Snapshot", "Stalled", "StartUnit", "StopUnit",
    "Subscribe", "Succeeded", "Ti", "True", "Unknown", "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding", "Version", "Waiting", "WriteProven", "Yes",
];

/// Literals like "DiskFull" and "Serving".
fn words(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().filter(|it| !it.trim_start().starts_with("//"));
    lines
        .flat_map(|it| it.split('"').skip(1).step_by(2))
        .filter(|it| {
            it.len() > 1
                && it.starts_with(|it: char| it.is_ascii_uppercase())
                && it.chars().all(|it| it.is_ascii_alphanumeric())
                && it.chars().nth(1).is_some_and(|it| it.is_ascii_lowercase())
        })
}

#[test]
fn every_reason_is_explained() {
    let explained: BTreeSet<&str> = explain::entries().map(|it| it.reason).collect();
    let sources = sources();
    let named = sources
        .iter()
        // What stores call their errors is told as it is.
        .filter(|it| !["explain", "s3"].contains(&it.module.as_str()));
    let named = named.flat_map(|it| words(code(it)).map(|word| (word, &it.path)));
    let missing: BTreeSet<_> = named
        .filter(|(it, _)| !explained.contains(it) && !NO_REASONS.contains(it))
        .collect();
    assert!(
        missing.is_empty(),
        "without an entry in src/explain/troubleshooting.md, or a place in NO_REASONS: {missing:#?}"
    );
    let both = NO_REASONS.iter().filter(|it| explained.contains(**it));
    assert_eq!(both.collect::<Vec<_>>(), Vec::<&&str>::new());
}

#[test]
fn every_entry_is_a_reason_that_something_names() {
    let sources = sources();
    let alerts = alerts();
    let named = |it: &str| {
        alerts.iter().any(|alert| alert == it)
            || sources.iter().any(|source| code(source).contains(it))
    };
    let unknown: Vec<&str> = explain::entries()
        .map(|it| it.reason)
        .filter(|it| !named(it))
        .collect();
    assert!(unknown.is_empty(), "nothing names {unknown:?}");
}

#[test]
fn every_alert_is_explained() {
    let alerts = alerts();
    assert!(alerts.len() > 10);
    for it in alerts {
        let explain::Found::Named(entry) = explain::find(&it) else {
            panic!("{it} has no entry");
        };
        assert!(entry.kinds.contains(&"Alert"), "{it}: {:?}", entry.kinds);
    }
}

fn alerts() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let rules =
        std::fs::read_to_string(root.join("deploy/monitoring/prometheusrule.yaml")).unwrap();
    let names = rules
        .lines()
        .filter_map(|it| it.trim().strip_prefix("- alert: "));
    names.map(str::to_owned).collect()
}
