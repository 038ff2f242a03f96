//! Every field of the document and what an edit of it does: one row for each leaf of the CRD's schema,
//! which a test holds. `diff`, `plan`, the settings that etcd is restarted for and the documentation
//! go by this table.

/// What an edit of a field does to a cluster that lives. What it does in a certain state is
/// [`crate::plan::edit`]'s to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Nothing on a host: Kubernetes alone has such a thing.
    Kubernetes(There),
    /// Nothing: it is read when the cluster is born.
    Birth,
    /// The operator takes it over; etcd runs on.
    Live,
    /// The same; but under systemd the operator may write to another directory only once it is restarted.
    Directory,
    /// It takes effect when etcd starts the next time.
    NextStart,
    /// etcd is restarted once.
    Restart,
    /// etcd is stopped or started.
    Size,
    /// etcd is restarted once with a larger one; a smaller one is refused.
    Quota,
    /// etcd is restarted once, where the cluster's data lies there already.
    Moved,
    /// Another version is tried on a copy of the data, then etcd is restarted with it.
    Version,
    /// The parser refuses it: not supported yet.
    Unsupported,
}

/// What an edit of a field does that Kubernetes alone has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum There {
    /// A claim that is there stays as it is.
    Claim,
    /// The operator takes it over; etcd runs on.
    Live,
    /// The members' Pods are made anew, one after the other.
    Pod,
}

impl Class {
    /// Whether the running etcd has been started with it.
    pub fn is_setting(self) -> bool {
        matches!(self, Class::Restart | Class::Moved)
    }

    /// For the documentation.
    pub fn words(self) -> &'static str {
        match self {
            Class::Kubernetes(_) => "nothing on a host: only Kubernetes uses it",
            Class::Birth => "nothing: it is read only when the cluster is created",
            Class::Live => "takes effect at once; etcd runs on",
            Class::Directory => {
                "takes effect at once; under systemd, restart the operator for a new directory; etcd runs on"
            }
            Class::NextStart => "takes effect when etcd starts the next time",
            Class::Restart => "restarts etcd once",
            Class::Size => "0 stops etcd and keeps everything; 1 starts it again",
            Class::Quota => "a larger one restarts etcd once; a smaller one is refused",
            Class::Moved => {
                "restarts etcd once, if the cluster's data is already there; until then the edit waits"
            }
            Class::Version => {
                "another version is tried on a copy of the data, then etcd is restarted with it"
            }
            Class::Unsupported => "refused: not supported yet",
        }
    }
}

/// A field of the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its path below `spec`; `[]` is an item of a list.
    pub path: &'static str,
    /// What an edit does.
    pub class: Class,
}

const fn field(path: &'static str, class: Class) -> Field {
    Field { path, class }
}

/// All of them, by path.
pub const FIELDS: &[Field] = &[
    field("backup.copyGrace", Class::Live),
    field("backup.destinations[].local.claim.size", Class::Live),
    field(
        "backup.destinations[].local.claim.storageClassName",
        Class::Live,
    ),
    field("backup.destinations[].local.claimName", Class::Live),
    field("backup.destinations[].local.keep", Class::Live),
    field("backup.destinations[].local.keepDaily", Class::Live),
    field("backup.destinations[].local.keepHourly", Class::Live),
    field("backup.destinations[].local.keepWeekly", Class::Live),
    field("backup.destinations[].local.maxBytes", Class::Live),
    field("backup.destinations[].local.path", Class::Directory),
    field("backup.destinations[].s3.bandwidth", Class::Live),
    field("backup.destinations[].s3.bucket", Class::Live),
    field("backup.destinations[].s3.caFile", Class::Live),
    field("backup.destinations[].s3.credentials", Class::Live),
    field(
        "backup.destinations[].s3.credentialsSecret",
        Class::Kubernetes(There::Live),
    ),
    field(
        "backup.destinations[].s3.encryption.recipients",
        Class::Live,
    ),
    field("backup.destinations[].s3.endpoint", Class::Live),
    field("backup.destinations[].s3.keep", Class::Live),
    field("backup.destinations[].s3.keepDaily", Class::Live),
    field("backup.destinations[].s3.keepHourly", Class::Live),
    field("backup.destinations[].s3.keepWeekly", Class::Live),
    field("backup.destinations[].s3.maxBytes", Class::Live),
    field("backup.destinations[].s3.pathStyle", Class::Live),
    field("backup.destinations[].s3.prefix", Class::Live),
    field("backup.destinations[].s3.region", Class::Live),
    field("backup.interval", Class::Live),
    field("backup.schedule", Class::Live),
    field("backup.trustedSigners", Class::Live),
    field("backup.verify.every", Class::Live),
    field("backup.verify.level", Class::Live),
    field("bootstrap.from", Class::Birth),
    field("clients[].name", Class::Live),
    field("clients[].namespace", Class::Kubernetes(There::Live)),
    field("deletionPolicy", Class::Kubernetes(There::Live)),
    field("hosts[].address", Class::Unsupported),
    field("hosts[].name", Class::Unsupported),
    field("image", Class::Kubernetes(There::Pod)),
    field(
        "maintenance.defragment.fragmentationPercent",
        Class::Unsupported,
    ),
    field("maintenance.defragment.minimumSize", Class::Unsupported),
    field("maintenance.onNoSpace", Class::Live),
    field("maintenance.windows[].minutes", Class::Unsupported),
    field("maintenance.windows[].schedule", Class::Unsupported),
    field("network.advertisedAddresses", Class::Restart),
    field("network.clientPort", Class::Restart),
    field("network.listenAddresses", Class::Restart),
    field("network.metricsPort", Class::Restart),
    field("network.peerPort", Class::Restart),
    field("options.autoCompaction.mode", Class::Restart),
    field("options.autoCompaction.retention", Class::Restart),
    field("options.electionMilliseconds", Class::Restart),
    field("options.heartbeatMilliseconds", Class::Restart),
    field("options.httpGateway", Class::Restart),
    field("options.logLevel", Class::Restart),
    field("options.maxRequestSize", Class::Restart),
    field("options.maxTransactionOperations", Class::Restart),
    field("options.memoryLimit", Class::Restart),
    field("options.snapshotCount", Class::Restart),
    field("paused", Class::Live),
    field("pod.affinity", Class::Kubernetes(There::Pod)),
    field("pod.annotations", Class::Kubernetes(There::Pod)),
    field("pod.imagePullSecrets[].name", Class::Kubernetes(There::Pod)),
    field("pod.labels", Class::Kubernetes(There::Pod)),
    field("pod.nodeSelector", Class::Kubernetes(There::Pod)),
    field("pod.priorityClassName", Class::Kubernetes(There::Pod)),
    field("pod.resources.limits.cpu", Class::Kubernetes(There::Pod)),
    field("pod.resources.limits.memory", Class::Kubernetes(There::Pod)),
    field("pod.resources.requests.cpu", Class::Kubernetes(There::Pod)),
    field(
        "pod.resources.requests.memory",
        Class::Kubernetes(There::Pod),
    ),
    field("pod.spread", Class::Kubernetes(There::Pod)),
    field("pod.tolerations[].effect", Class::Kubernetes(There::Pod)),
    field("pod.tolerations[].key", Class::Kubernetes(There::Pod)),
    field("pod.tolerations[].operator", Class::Kubernetes(There::Pod)),
    field("pod.tolerations[].value", Class::Kubernetes(There::Pod)),
    field(
        "pod.topologySpreadConstraints[]",
        Class::Kubernetes(There::Pod),
    ),
    field("profile", Class::Restart),
    field("recovery.graceMinutes", Class::Live),
    field("recovery.member", Class::Live),
    field("recovery.singleMember", Class::Live),
    field("service.annotations", Class::Kubernetes(There::Live)),
    field("service.dnsDomain", Class::Kubernetes(There::Live)),
    field("service.loadBalancerClass", Class::Kubernetes(There::Live)),
    field("service.nodePort", Class::Kubernetes(There::Live)),
    field("service.type", Class::Kubernetes(There::Live)),
    field("size", Class::Size),
    field("storage.memory.sizeLimit", Class::Unsupported),
    field("storage.path", Class::Moved),
    field("storage.quota", Class::Quota),
    field("storage.unsafeFilesystem", Class::NextStart),
    field("storage.volumeClaim.size", Class::Kubernetes(There::Claim)),
    field(
        "storage.volumeClaim.storageClassName",
        Class::Kubernetes(There::Claim),
    ),
    field("tls.leafDays", Class::Live),
    field("tls.mode", Class::Unsupported),
    field("tls.secretRefs.operator", Class::Unsupported),
    field("tls.secretRefs.peer", Class::Unsupported),
    field("tls.secretRefs.server", Class::Unsupported),
    field("upgrade.skipRehearsal", Class::Live),
    field("version", Class::Version),
];

/// What an edit does at a path of a document, such as `backup` or `clients[0].name`: where several
/// fields lie below it, what does most. `None`: there is no such field.
pub fn class_of(path: &str) -> Option<Class> {
    let below = FIELDS.iter().filter(|it| is_below(it.path, path));
    below.map(|it| it.class).max()
}

/// Whether a field is this path of a document, or lies below it. Numbers of items do not count.
fn is_below(field: &str, path: &str) -> bool {
    let mut field = field.bytes();
    let mut number = false;
    for byte in path.bytes() {
        if number && byte.is_ascii_digit() {
            continue;
        }
        number = byte == b'[';
        if field.next() != Some(byte) {
            return false;
        }
    }
    matches!(field.next(), None | Some(b'.' | b'['))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_a_document_finds_its_fields() {
        assert_eq!(class_of("network.clientPort"), Some(Class::Restart));
        assert_eq!(class_of("network"), Some(Class::Restart));
        assert_eq!(class_of("clients[12].name"), Some(Class::Live));
        assert_eq!(class_of("clients"), Some(Class::Live));
        assert_eq!(class_of("backup"), Some(Class::Directory));
        assert_eq!(class_of("backup.destinations[1]"), Some(Class::Directory));
        assert_eq!(class_of("storage.path"), Some(Class::Moved));
        assert_eq!(class_of("network.client"), None);
        assert_eq!(class_of("nonsense"), None);
        for it in FIELDS {
            let path = it.path.replace("[]", "[3]");
            assert_eq!(class_of(&path), Some(it.class), "{path}");
        }
    }
}
