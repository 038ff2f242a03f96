//! What a Pod that works on snapshots is asked.

use serde::{Deserialize, Serialize};

/// What is asked of a Pod that works on snapshots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ask {
    /// What is done.
    pub task: Task,
    /// The clock is trusted.
    pub trusted: bool,
    /// Where etcd is reached.
    pub url: String,
    /// A name that its certificate carries.
    pub server_name: String,
    /// Where the records about snapshots lie.
    pub lib: std::path::PathBuf,
}

/// What a Pod is made for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Task {
    /// The document's time for a snapshot has come.
    Scheduled,
    /// Whoever has this id asks for one; it stays until a person removes it.
    OnDemand(String),
    /// Copies wait.
    Copies,
    /// What is kept is checked, due or not.
    Checks,
}

impl Task {
    /// Of what asked for it.
    pub fn id(&self) -> Option<&str> {
        match self {
            Task::OnDemand(id) => Some(id),
            Task::Scheduled | Task::Copies | Task::Checks => None,
        }
    }
}
