//! Starts since etcd last served: how many, when, and why the last one ended (rule D9).
//!
//! The record lies under /run: it costs no flash, outlives the operator, and a reboot clears it.

use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::records::{RefusalFile, SeenFile, diagnosis_of};
use crate::clock;
use crate::diagnosis;
use crate::etcd::data_dir;
use crate::paths::Paths;
use crate::start::{START_WINDOW_SECONDS, StartHistory};
use crate::state;

/// The most that is read of etcd's last words.
const TAIL_BYTES: u64 = 128 * 1024;
/// Seconds to wait before the n-th start after n failed ones; the last counts for all further.
const BACK_OFF: [u64; 6] = [0, 1, 2, 5, 15, 60];
/// Seconds to wait after the guard refused what the operator had thought possible.
const AFTER_REFUSAL: u64 = 5;
/// A start after which etcd said that it serves, and that ended so much later, did not fail.
const SERVED_SECONDS: u64 = 30;
/// What etcd logs once it serves; 3.5, 3.6 and 3.7 alike.
const SERVES: &str = "ready to serve client requests";

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StartsFile {
    boot_id: String,
    /// Seconds since boot.
    starts: Vec<u64>,
    /// Size of etcd's log at the last start.
    log_offset: u64,
    /// Seconds since boot when the last one ended, where the service manager told.
    #[serde(default)]
    ended: Option<u64>,
    /// The last start was looked into.
    diagnosed: bool,
    /// The text of the diagnosis.
    diagnosis: Option<String>,
    /// The data when the diagnosis was made.
    data_stamp: Option<String>,
}

fn load(paths: &Paths) -> StartsFile {
    state::load_volatile::<StartsFile>(&paths.starts())
        .filter(|it| it.boot_id == clock::boot_id())
        .unwrap_or_default()
}

fn save(paths: &Paths, file: &StartsFile) {
    if let Err(error) = state::save_volatile(&paths.starts(), file) {
        tracing::warn!(%error, "failed to write down the starts of etcd");
    }
}

/// Called by the guard right before etcd starts.
pub fn record(paths: &Paths) {
    let mut file = load(paths);
    let now = clock::since_boot().as_secs();
    file.boot_id = clock::boot_id();
    if served(paths, &file) {
        file.starts.clear();
    }
    file.ended = None;
    file.starts
        .retain(|it| now.saturating_sub(*it) < START_WINDOW_SECONDS);
    file.starts.push(now);
    file.log_offset = fs::metadata(paths.etcd_log()).map_or(0, |it| it.len());
    file.diagnosed = false;
    file.diagnosis = None;
    file.data_stamp = None;
    save(paths, &file);
}

/// Called by the service manager when etcd has ended; `stopped`: as it was asked to, which is no
/// failed start, however short its life was.
pub fn ended(paths: &Paths, stopped: bool) {
    let mut file = load(paths);
    if stopped && file.ended.is_none() && file.starts.pop().is_some() {
        save(paths, &file);
        return;
    }
    if !file.starts.is_empty() && file.ended.is_none() {
        file.ended = Some(clock::since_boot().as_secs());
        save(paths, &file);
    }
}

/// Whether the last start led to a member that served for a while: what ended it later is no failed
/// start, also where no operator was there to see it serve.
fn served(paths: &Paths, file: &StartsFile) -> bool {
    let lived = match (file.starts.last(), file.ended) {
        (Some(last), Some(ended)) => ended.saturating_sub(*last),
        _ => 0,
    };
    lived >= SERVED_SECONDS && head(&paths.etcd_log(), file.log_offset).contains(SERVES)
}

/// Called when etcd has served.
pub fn clear(paths: &Paths) {
    for path in [paths.starts(), paths.refusal()] {
        let _ = fs::remove_file(path);
    }
}

/// Called when a person asks for another try, whatever was lost.
pub fn forget(paths: &Paths) {
    clear(paths);
    // How far the store was seen to be stays: a restore counts its loss from there.
    if let Some(seen) = state::load_volatile::<SeenFile>(&paths.seen()) {
        let seen = SeenFile {
            raft_index: 0,
            ..seen
        };
        if state::save_volatile(&paths.seen(), &seen).is_ok() {
            return;
        }
    }
    let _ = fs::remove_file(paths.seen());
}

/// What is known of the failed starts. Only meaningful while etcd does not run: the last start is
/// looked into here, once.
pub fn history(paths: &Paths, data: &Path) -> StartHistory {
    let mut file = load(paths);
    let now = clock::since_boot().as_secs();
    let served = served(paths, &file);
    let counted: Vec<u64> = file
        .starts
        .iter()
        .copied()
        .filter(|it| !served && now.saturating_sub(*it) < START_WINDOW_SECONDS)
        .collect();
    if file.starts.is_empty() {
        return StartHistory::NONE;
    }
    if !file.diagnosed {
        let words = last_words(paths, file.log_offset);
        file.diagnosis = diagnosis::diagnose(&words).map(|it| it.text.to_owned());
        file.data_stamp = Some(data_dir::stamp(data));
        file.diagnosed = true;
        save(paths, &file);
    }
    let diagnosis = diagnosis_of(file.diagnosis.as_deref());
    StartHistory {
        // Damage does not go away with time: the record of it counts until the data changes.
        failed: u32::try_from(counted.len().max(usize::from(diagnosis.is_some())))
            .unwrap_or(u32::MAX),
        window_left: counted
            .first()
            .map_or(0, |it| START_WINDOW_SECONDS - now.saturating_sub(*it)),
        diagnosis,
        data_unchanged: diagnosis.is_some() && file.data_stamp == Some(data_dir::stamp(data)),
    }
}

/// Seconds until the next start may be tried.
pub fn restart_in(paths: &Paths) -> u64 {
    let now = clock::since_boot().as_secs();
    let refused = RefusalFile::age(paths, now).map_or(0, |age| AFTER_REFUSAL.saturating_sub(age));
    refused.max(back_off(paths))
}

/// Seconds to wait because of failed starts.
pub fn back_off(paths: &Paths) -> u64 {
    let file = load(paths);
    let now = clock::since_boot().as_secs();
    let Some(last) = file.starts.last().filter(|_| !served(paths, &file)) else {
        return 0;
    };
    let failed = file
        .starts
        .iter()
        .filter(|it| now.saturating_sub(**it) < START_WINDOW_SECONDS)
        .count();
    let wait = BACK_OFF[failed.min(BACK_OFF.len() - 1)];
    (last + wait).saturating_sub(now)
}

/// The end of etcd's log since `offset`, and of its standard error.
fn last_words(paths: &Paths, offset: u64) -> String {
    let mut text = tail(&paths.etcd_log(), offset);
    text.push_str(&tail(&paths.etcd_stderr(), 0));
    text
}

/// The beginning of what was written to a log after `offset`.
fn head(path: &Path, offset: u64) -> String {
    let mut bytes = Vec::new();
    if let Ok(mut file) = fs::File::open(path)
        && file.seek(SeekFrom::Start(offset)).is_ok()
    {
        let _ = file.take(TAIL_BYTES).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn tail(path: &Path, offset: u64) -> String {
    let Ok(mut file) = fs::File::open(path) else {
        return String::new();
    };
    let length = file.metadata().map_or(0, |it| it.len());
    // A log shorter than before was rotated: all of it is new.
    let from = if length < offset { 0 } else { offset };
    let from = from.max(length.saturating_sub(TAIL_BYTES));
    let mut bytes = Vec::new();
    let _ = file.seek(SeekFrom::Start(from));
    let _ = file.take(TAIL_BYTES).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}
