//! A restore is taken back: what it set aside takes the place of what it brought.

use std::path::Path;

use super::RestoreError;
use crate::disk;
use crate::etcd::examine::examine;
use crate::etcd::{data_dir, store};
use crate::member::records::IdentityFile;
use crate::member::restore_record::RestoreRecord;
use crate::start::Binary;
use crate::version::Version;

/// Sees that what was set aside is whole, and the data of who lived there.
pub fn check_aside(
    record: &RestoreRecord,
    storage_dir: &Path,
    store: &Path,
) -> Result<IdentityFile, RestoreError> {
    let path = record.made(storage_dir);
    let refused = |why: String| RestoreError::Aside {
        path: path.clone(),
        why,
    };
    let identity = record.next.clone();
    let identity = identity.ok_or_else(|| refused("has no identity recorded".to_owned()))?;
    let version: Option<Version> = identity.member.version.parse().ok();
    let line = version.and_then(Version::line);
    match std::fs::symlink_metadata(&path) {
        Ok(it) if it.is_dir() => {}
        // etcd would run on the file system behind it, which nobody has looked at.
        Ok(_) => return Err(refused("is no directory".to_owned())),
        Err(error) => return Err(refused(format!("no longer exists: {error}"))),
    }
    let ready = version.is_some_and(|it| store::binary(store, it) == Binary::Ready);
    if !ready {
        let version = &identity.member.version;
        return Err(refused(format!(
            "is of etcd {version}, which is not in the store: run etcd-operator etcd install"
        )));
    }
    let seen = data_dir::look(&path, line, true);
    if let Some(why) = seen.unreadable {
        return Err(refused(format!("cannot be read: {why}")));
    }
    if seen.lacks_a_part() {
        return Err(refused("lacks a part".to_owned()));
    }
    let damage = match seen.damage {
        Some(it) => Some(it),
        None => examine(&path, line).map_err(|it| refused(format!("cannot be read: {it}")))?,
    };
    if let Some(damage) = damage {
        return Err(refused(format!("is damaged: {damage}")));
    }
    let room = data_dir::room(&path, seen.log, disk::room(storage_dir));
    if !room.holds(room.resume) {
        return Err(refused(
            "needs more room to start than its disk has: free some space".to_owned(),
        ));
    }
    let owner = seen.owner.map(|(cluster, _)| cluster.to_string());
    if owner != identity.cluster.id {
        return Err(refused("is of another cluster".to_owned()));
    }
    Ok(identity)
}
