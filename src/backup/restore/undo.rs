//! A restore is taken back: what it set aside takes the place of what it brought.

use super::{RestoreError, RestoreRecord};
use crate::etcd::data_dir;
use crate::etcd::examine::examine;
use crate::member::records::IdentityFile;
use crate::version::Version;
use std::path::Path;

/// Sees that what was set aside is whole, and the data of who lived there.
pub fn check_aside(
    record: &RestoreRecord,
    storage_dir: &Path,
) -> Result<IdentityFile, RestoreError> {
    let path = record.made(storage_dir);
    let refused = |why: String| RestoreError::Aside {
        path: path.clone(),
        why,
    };
    let identity = record.next.clone();
    let identity = identity.ok_or_else(|| refused("is nobody's".to_owned()))?;
    let version: Option<Version> = identity.version.parse().ok();
    let line = version.and_then(Version::line);
    let seen = data_dir::look(&path, line, true);
    if !path.is_dir() {
        return Err(refused("is gone: somebody removed it".to_owned()));
    }
    if let Some(why) = seen.unreadable {
        return Err(refused(format!("cannot be read: {why}")));
    }
    if seen.lacks_a_part() {
        return Err(refused("lacks a part, as it did before".to_owned()));
    }
    let damage = match seen.damage {
        Some(it) => Some(it),
        None => examine(&path, line).map_err(|it| refused(format!("cannot be read: {it}")))?,
    };
    if let Some(damage) = damage {
        return Err(refused(format!("is damaged, as it was before: {damage}")));
    }
    let owner = seen.owner.map(|(cluster, _)| cluster.to_string());
    if owner != identity.cluster_id {
        return Err(refused("is of another cluster".to_owned()));
    }
    Ok(identity)
}
