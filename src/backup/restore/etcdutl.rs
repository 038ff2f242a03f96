//! Calls of etcdutl: it makes a data directory of a snapshot, and says whether 3.6 can open the data of 3.5.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::RestoreError;
use crate::etcd::store;
use crate::version::Version;

/// etcdutl of a version, from the store.
pub(in crate::backup) struct Etcdutl {
    version: String,
    program: PathBuf,
}

impl Etcdutl {
    /// etcdutl of this version, or of its line.
    ///
    /// # Errors
    /// There is none.
    pub(in crate::backup) fn of(store: &Path, version: &str) -> Result<Self, RestoreError> {
        let found = version.parse::<Version>().ok();
        let found = found.and_then(|it| store::etcdutl(store, it));
        let program = found.ok_or_else(|| RestoreError::Etcdutl {
            version: version.to_owned(),
            why: format!(
                "is not in the store: run etcd-operator etcd install --from DIR {version} with a directory that holds it"
            ),
        })?;
        Ok(Etcdutl {
            version: version.to_owned(),
            program,
        })
    }

    /// A call without arguments yet.
    pub(in crate::backup) fn command(&self) -> Command {
        #[expect(
            clippy::disallowed_methods,
            reason = "the one tool that makes and checks data directories"
        )]
        let mut command = Command::new(&self.program);
        command.env_clear().current_dir("/").stdin(Stdio::null());
        command
    }

    /// Waits for its end. `owner`: a directory whose owner it runs as.
    ///
    /// # Errors
    /// It failed, with its last words.
    pub(in crate::backup) fn run(
        &self,
        command: &mut Command,
        owner: &Path,
    ) -> Result<(), RestoreError> {
        let failed = |why: String| RestoreError::Etcdutl {
            version: self.version.clone(),
            why,
        };
        let output = crate::process::as_owner(command, owner).and_then(Command::output);
        let output = output.map_err(|error| failed(error.to_string()))?;
        if output.status.success() {
            return Ok(());
        }
        let words = String::from_utf8_lossy(&output.stderr);
        let last = words.lines().rev().find(|it| !it.trim().is_empty());
        Err(failed(last.unwrap_or("ended without a word").to_owned()))
    }

    /// Whether data of 3.5 has nothing in the old store that 3.6 refuses (rule D22). It only reads, also while etcd serves.
    ///
    /// # Errors
    /// It has, or etcdutl does not say.
    pub(in crate::backup) fn check_v2store(&self, data: &Path) -> Result<(), RestoreError> {
        let mut command = self.command();
        command.args(["check", "v2store", "--data-dir"]).arg(data);
        self.run(&mut command, data)
    }
}
