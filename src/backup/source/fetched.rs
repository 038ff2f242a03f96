//! Where snapshots lie that were brought here for a restore, until it has ended.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::backup::local::LocalStore;
use crate::backup::restore::RestoreError;
use crate::paths::Paths;
use crate::spec::ClusterSpec;
use crate::state;

/// Where snapshots lie that were brought from a bucket, until the restore has ended.
pub fn fetched(paths: &Paths, spec: &ClusterSpec) -> LocalStore {
    LocalStore::at(&paths.backup().join("fetched"), &spec.name)
}

/// A copy of an open file, where what is brought from buckets lies.
pub(super) fn copy_of(
    paths: &Paths,
    spec: &ClusterSpec,
    mut file: &File,
    named: &Path,
) -> Result<PathBuf, RestoreError> {
    let failed = |what| {
        let path = named.to_owned();
        move |source| RestoreError::Io { what, path, source }
    };
    let store = fetched(paths, spec);
    state::create_private_dir(store.path())?;
    let size = file.metadata().map_err(failed("look at"))?.len();
    crate::backup::local::room_for(store.path(), size)?;
    let path = store.path().join("named");
    let mut copy = crate::backup::new_file(&path).map_err(failed("copy"))?;
    std::io::copy(&mut file, &mut copy).map_err(failed("copy"))?;
    Ok(path)
}

/// What was brought from a bucket goes again.
pub fn forget_fetched(paths: &Paths) {
    let _ = std::fs::remove_dir_all(paths.backup().join("fetched"));
}
