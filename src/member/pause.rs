//! A pause that a person asked for: the agent changes nothing until it ends, which it does by itself.
//! Under /run, by the clock that no one sets: it survives the agent, and no reboot.

use serde::{Deserialize, Serialize};

use crate::clock;
use crate::cluster::Timestamp;
use crate::observed::Pause;
use crate::paths::Paths;
use crate::state::{self, StateError};

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PauseFile {
    /// Seconds since boot. The boot itself is not named: a unit of a container may see another id of it
    /// than the command, and a reboot clears /run.
    ends: u64,
    /// What was asked for.
    seconds: u64,
    /// By the wall clock, where that was trusted.
    until: Option<i64>,
}

/// The pause of now. More than was asked for cannot be left of one of this boot.
pub fn load(paths: &Paths) -> Option<Pause> {
    let file: PauseFile = state::load_volatile(&paths.pause())?;
    let left = file.ends.checked_sub(clock::since_boot().as_secs())?;
    (1..=file.seconds).contains(&left).then_some(Pause {
        left,
        seconds: file.seconds,
        until: file.until.map(Timestamp),
    })
}

/// Begins one of so many seconds; `now`: the time, if it is trusted.
pub fn begin(paths: &Paths, seconds: u64, now: Option<Timestamp>) -> Result<(), StateError> {
    let wall = i64::try_from(seconds).unwrap_or(i64::MAX);
    state::create_private_dir(&paths.run)?;
    let file = PauseFile {
        ends: clock::since_boot().as_secs().saturating_add(seconds),
        seconds,
        until: now.map(|it| it.0.saturating_add(wall)),
    };
    state::save_volatile(&paths.pause(), &file)
}

/// Ends it; whether there was one.
pub fn end(paths: &Paths) -> Result<bool, StateError> {
    let was = load(paths).is_some();
    let path = paths.pause();
    match std::fs::remove_file(&path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            let what = "remove";
            Err(StateError::Io { what, path, source })
        }
        _ => Ok(was),
    }
}
