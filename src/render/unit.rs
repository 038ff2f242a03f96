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
    /// Holds the data directory.
    pub storage_dir: &'a str,
}

/// A drop-in for the operator's own unit, where the data lies elsewhere: `None` where it needs none.
pub fn operator_drop_in(place: &UnitPlace<'_>) -> Option<String> {
    (!place.storage_dir.starts_with(place.state_dir)).then(|| {
        format!(
            "\
# Written by etcd-operator: {} names this directory.
[Service]
ReadWritePaths=-{}
",
            place.document, place.storage_dir
        )
    })
}

/// The text of `etcd-member@NAME.service`.
pub fn etcd_unit(spec: &ClusterSpec, place: &UnitPlace<'_>) -> String {
    let writable = if place.storage_dir.starts_with(place.state_dir) {
        place.state_dir.to_owned()
    } else {
        // A disk that is not there at boot is reported by the guard, not by a failed namespace.
        format!("{} -{}", place.state_dir, place.storage_dir)
    };
    include_str!("../../systemd/etcd-member@.service.in")
        .replace("%NAME%", &spec.name)
        .replace("%DOCUMENT%", place.document)
        .replace("%STATE_DIR%", place.state_dir)
        .replace("%GUARD%", place.guard)
        .replace("%WRITABLE%", &writable)
}
