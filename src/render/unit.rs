//! etcd's own systemd unit (rules F1, F4, F5).
//!
//! It names no program of the package: the guard in the store starts etcd, so that a member goes on,
//! and starts again, after the package was removed.

use crate::spec::ClusterSpec;

/// What the unit needs to know of the host.
#[derive(Clone, Copy, Debug)]
pub struct UnitPlace<'a> {
    /// The document.
    pub document: &'a str,
    /// The operator's state directory.
    pub state_dir: &'a str,
    /// The guard in the store.
    pub guard: &'a str,
    /// There while the document's size is 0.
    pub hibernates: &'a str,
    /// Holds the data directory.
    pub storage_dir: &'a str,
    /// Local destinations of snapshots: the operator writes there, etcd does not.
    pub snapshots: &'a [&'a str],
}

impl UnitPlace<'_> {
    fn is_elsewhere(&self, path: &str) -> bool {
        // By whole names: /var/lib/etcd-operator-data is elsewhere.
        path.strip_prefix(self.state_dir)
            .is_none_or(|rest| !rest.is_empty() && !rest.starts_with('/'))
    }

    /// What of the system is read-only. Where the data lies elsewhere, its directory cannot be opened
    /// for writing by name: a disk that is mounted there later would stay hidden below that opening.
    fn protect_system(&self) -> &'static str {
        if self.is_elsewhere(self.storage_dir) {
            "full"
        } else {
            "strict"
        }
    }
}

/// A drop-in for the operator's own unit, where data or snapshots lie elsewhere: `None` where it needs
/// none.
pub fn operator_drop_in(place: &UnitPlace<'_>) -> Option<String> {
    let mut written = core::iter::once(place.storage_dir).chain(place.snapshots.iter().copied());
    let elsewhere = written.find(|it| place.is_elsewhere(it))?;
    Some(format!(
        "\
# Written by etcd-operator: {} names {elsewhere}.
[Service]
ProtectSystem=full
",
        place.document
    ))
}

/// The text of `etcd-member@NAME.service`.
pub fn etcd_unit(spec: &ClusterSpec, place: &UnitPlace<'_>) -> String {
    include_str!("../../systemd/etcd-member@.service.in")
        .replace("%NAME%", &spec.name)
        .replace("%DOCUMENT%", place.document)
        .replace("%STATE_DIR%", place.state_dir)
        .replace("%GUARD%", place.guard)
        .replace("%HIBERNATES%", place.hibernates)
        .replace("%PROTECT_SYSTEM%", place.protect_system())
}
