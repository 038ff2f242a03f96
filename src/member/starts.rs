//! Starts since etcd last served: how many, when, and how the last one ended (rule D9).
//!
//! The record lies under /run: it costs no flash, outlives the operator, and a reboot clears it.

use std::fs::{self, File};
use std::io::{BufReader, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::ending::Said;
use super::records::{RefusalFile, SeenFile};
use crate::clock;
use crate::diagnosis;
use crate::paths::Paths;
use crate::start::{Ending, How, LastWords, Room, START_WINDOW_SECONDS, StartHistory};
use crate::state;

/// How much of etcd's standard error is read. The beginning gives the cause.
const STDERR_BYTES_MAX: u64 = 64 * 1024;
/// Seconds to wait before a start, by the number of short starts before it. The last value applies
/// to any higher number.
const BACK_OFF: [u64; 6] = [0, 1, 2, 5, 15, 60];
/// Seconds to wait after the guard refused a start that the operator had considered possible.
const AFTER_REFUSAL: u64 = 5;
/// A start that served and then crashed by itself counts as failed, unless it lived this long. A
/// start that served and was ended from outside does not count as failed, however short its life was.
const SERVED_SECONDS: u64 = 30;

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StartsFile {
    boot_id: String,
    /// Starts that ended too soon, and the last start until its end is known.
    starts: Vec<Short>,
    /// The last start.
    last: Option<Last>,
    /// Ends that nobody asked for, since the file was begun.
    #[serde(default)]
    ends: u32,
    /// [`crate::etcd::data_dir::stamp`] of data that was read through and found sound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sound: Option<String>,
}

/// A start that ended soon. It makes the next one wait.
#[derive(Clone, Serialize, Deserialize)]
struct Short {
    /// Seconds since boot.
    at: u64,
    /// It never served: it counts against the budget, too.
    failed: bool,
}

#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Last {
    /// Seconds since boot.
    at: u64,
    /// The inode of etcd's log at the start, and its length.
    log: Option<(u64, u64)>,
    /// Seconds since boot when it ended, if the end was seen.
    #[serde(default)]
    ended: Option<u64>,
    /// What the system reported about its end.
    #[serde(default)]
    how: Option<HowFile>,
    /// A write was acknowledged.
    #[serde(default)]
    acknowledged: bool,
    /// It ended because it was asked to.
    #[serde(default)]
    stopped: bool,
    /// What etcd logged, once that was examined.
    #[serde(default)]
    said: Option<SaidFile>,
}

/// [`How`] as it is written down.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the words of How")]
enum HowFile {
    Exit(u8),
    Signal(u8),
    OutOfMemory,
}

#[derive(Clone, Default, Serialize, Deserialize)]
struct SaidFile {
    /// [`crate::etcd::data_dir::stamp`] of the data as it was left.
    stamp: String,
    /// The text of the diagnosis.
    text: Option<String>,
    /// The fatal message, if its meaning is unknown.
    words: Option<String>,
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

/// Records a start. The guard calls this right before etcd starts, after it has read the history.
pub fn record(paths: &Paths) {
    let mut file = load(paths);
    let now = clock::since_boot().as_secs();
    file.boot_id = clock::boot_id();
    file.starts
        .retain(|it| now.saturating_sub(it.at) < START_WINDOW_SECONDS);
    file.starts.push(Short {
        at: now,
        failed: true,
    });
    let log = fs::metadata(paths.etcd_log()).ok();
    file.last = Some(Last {
        at: now,
        log: log.map(|it| (it.ino(), it.len())),
        ..Last::default()
    });
    save(paths, &file);
}

/// Records that etcd ended. The process that saw the end calls this. `stopped`: etcd was asked to end.
pub fn ended(paths: &Paths, stopped: bool, how: How) {
    let mut file = load(paths);
    let Some(last) = file.last.as_mut().filter(|it| it.ended.is_none()) else {
        return;
    };
    last.ended = Some(clock::since_boot().as_secs());
    last.stopped |= stopped;
    last.how = match how {
        How::Unknown => None,
        How::Exit(code) => Some(HowFile::Exit(code)),
        How::Signal(number) => Some(HowFile::Signal(number)),
        How::OutOfMemory => Some(HowFile::OutOfMemory),
    };
    save(paths, &file);
}

/// Records that etcd is asked to end, where the process that sees the end cannot know.
pub fn stopping(paths: &Paths) {
    let mut file = load(paths);
    if let Some(last) = file.last.as_mut().filter(|it| it.ended.is_none()) {
        last.stopped = true;
        save(paths, &file);
    }
}

/// What systemd reports about an ended process (`$SERVICE_RESULT`, `$EXIT_CODE`, `$EXIT_STATUS`).
pub fn how_by_systemd(result: &str, code: &str, status: &str) -> How {
    match (result, code) {
        ("oom-kill", _) => How::OutOfMemory,
        (_, "exited") => status.parse().map_or(How::Unknown, How::Exit),
        (_, "killed" | "dumped") => signal_number(status).map_or(How::Unknown, How::Signal),
        _ => How::Unknown,
    }
}

/// systemd names signals without `SIG`.
fn signal_number(status: &str) -> Option<u8> {
    const NAMES: [(&str, u8); 8] = [
        ("HUP", 1),
        ("INT", 2),
        ("QUIT", 3),
        ("ABRT", 6),
        ("BUS", 7),
        ("KILL", 9),
        ("SEGV", 11),
        ("TERM", 15),
    ];
    let named = NAMES.iter().find(|(name, _)| *name == status);
    named
        .map(|(_, number)| *number)
        .or_else(|| status.parse().ok())
}

/// Records an acknowledged write: no start before it counts. The place in the log where this start
/// begins is kept, because later messages of this etcd are examined, too.
pub fn clear(paths: &Paths) {
    let mut file = load(paths);
    let known = file.last.as_ref().is_none_or(|it| it.acknowledged);
    if !known || !file.starts.is_empty() {
        file.starts.clear();
        if let Some(last) = &mut file.last {
            last.acknowledged = true;
        }
        save(paths, &file);
    }
    let _ = fs::remove_file(paths.refusal());
}

/// Forgets failed starts and refusals: another etcd is started now.
pub fn begin_anew(paths: &Paths) {
    for path in [paths.starts(), paths.refusal()] {
        let _ = fs::remove_file(path);
    }
}

/// The same when a person asks for another try, whatever was lost.
pub fn forget(paths: &Paths) {
    begin_anew(paths);
    // Keep the last revision that was seen: a restore counts its loss from there.
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

/// Examines once how the last start ended, and only while etcd does not run. Where the disk lacks
/// the `room` that etcd needs, an end for want of it is not a failed start.
pub fn look_into_the_last(paths: &Paths, stamp: &str, room: Room) {
    let mut file = load(paths);
    let now = clock::since_boot().as_secs();
    let Some(last) = file.last.as_mut().filter(|it| it.said.is_none()) else {
        return;
    };
    let said = said(paths, last);
    let lived = last.ended.unwrap_or(now).saturating_sub(last.at);
    // Where etcd's log lies on that disk, its last words found no room either. A signal is a cause of its own.
    let speechless = !room.holds(WORDS_BYTES)
        && said.words().is_none()
        && !matches!(last.how, Some(HowFile::Signal(_) | HowFile::OutOfMemory));
    let known = said.diagnosis();
    let known = known.or_else(|| diagnosis::by_text(NO_SPACE).filter(|_| speechless));
    last.said = Some(SaidFile {
        stamp: stamp.to_owned(),
        text: known.map(|it| it.text.to_owned()),
        words: said.words().map(str::to_owned),
    });
    let full = !room.holds(room.resume);
    let excused = full && known.is_some_and(|it| it.reason == diagnosis::DISK_FULL);
    let served = last.acknowledged || said.served && said.words().is_none();
    let long = last.acknowledged || said.served && lived >= SERVED_SECONDS;
    let (at, counts) = (last.at, !excused && !last.stopped);
    if file.starts.last().is_some_and(|it| it.at == at) {
        file.starts.pop();
    }
    file.ends = file.ends.saturating_add(u32::from(counts));
    if long {
        file.starts.clear();
    } else if counts {
        file.starts.push(Short {
            at,
            failed: !served,
        });
    }
    save(paths, &file);
}

const NO_SPACE: &str = "no space left on device";
/// With less room than this in bytes, a log may lack its last lines.
const WORDS_BYTES: u64 = 1 << 20;

/// The failed starts on data of this stamp. Failed starts on other data no longer count, because
/// the data has been changed since.
pub fn history(paths: &Paths, stamp: &str) -> StartHistory {
    let mut file = load(paths);
    let now = clock::since_boot().as_secs();
    let said = file.last.as_ref().and_then(|it| it.said.as_ref());
    if said.is_some_and(|it| it.stamp != stamp) {
        file.starts.clear();
    }
    let in_window = |it: &&Short| now.saturating_sub(it.at) < START_WINDOW_SECONDS;
    let failed: Vec<u64> = file
        .starts
        .iter()
        .filter(in_window)
        .filter(|it| it.failed)
        .map(|it| it.at)
        .collect();
    StartHistory {
        failed: u32::try_from(failed.len()).unwrap_or(u32::MAX),
        window_left: failed.first().map_or(0, |it| {
            START_WINDOW_SECONDS.saturating_sub(now.saturating_sub(*it))
        }),
        ending: file
            .last
            .as_ref()
            .filter(|it| !it.stopped)
            .map_or(Ending::UNKNOWN, ending),
    }
}

/// How an examined start ended.
fn ending(last: &Last) -> Ending {
    let said = last.said.as_ref();
    let diagnosis = said.and_then(|it| diagnosis::by_text(it.text.as_deref()?));
    let mut words = LastWords::new();
    let unknown = said.and_then(|it| it.words.as_deref());
    for it in unknown
        .filter(|_| diagnosis.is_none())
        .unwrap_or_default()
        .chars()
    {
        if words.push(it).is_err() {
            break;
        }
    }
    Ending {
        diagnosis,
        words,
        how: match last.how {
            None => How::Unknown,
            Some(HowFile::Exit(code)) => How::Exit(code),
            Some(HowFile::Signal(number)) => How::Signal(number),
            Some(HowFile::OutOfMemory) => How::OutOfMemory,
        },
    }
}

/// Records that data of this stamp was read completely and found sound, so it is not read again.
pub fn note_sound(paths: &Paths, stamp: &str) {
    let mut file = load(paths);
    file.boot_id = clock::boot_id();
    file.sound = Some(stamp.to_owned());
    save(paths, &file);
}

/// Whether data of this stamp was found sound.
pub fn is_sound(paths: &Paths, stamp: &str) -> bool {
    load(paths).sound.as_deref() == Some(stamp)
}

/// How often etcd ended since [`begin_anew`], though nobody asked it to and its disk was not full.
pub fn ends(paths: &Paths) -> u32 {
    load(paths).ends
}

/// Seconds until the next start may be tried.
pub fn restart_in(paths: &Paths) -> u64 {
    let now = clock::since_boot().as_secs();
    let refused = RefusalFile::age(paths, now).map_or(0, |age| AFTER_REFUSAL.saturating_sub(age));
    refused.max(back_off(paths))
}

/// Seconds to wait because of starts that ended soon.
pub fn back_off(paths: &Paths) -> u64 {
    let file = load(paths);
    let now = clock::since_boot().as_secs();
    let short: Vec<u64> = file
        .starts
        .iter()
        .map(|it| it.at)
        .filter(|it| now.saturating_sub(*it) < START_WINDOW_SECONDS)
        .collect();
    let wait = BACK_OFF[short.len().min(BACK_OFF.len() - 1)];
    short
        .last()
        .map_or(0, |last| (last + wait).saturating_sub(now))
}

/// What etcd wrote to its log and to standard error during the last start.
fn said(paths: &Paths, last: &Last) -> Said {
    let mut stderr = Vec::new();
    if let Ok(file) = File::open(paths.etcd_stderr()) {
        let _ = file.take(STDERR_BYTES_MAX).read_to_end(&mut stderr);
    }
    let mut log: Box<dyn std::io::Read> = Box::new(std::io::empty());
    for (file, offset) in logs(&paths.etcd_log(), last.log) {
        let mut file = file;
        if file.seek(SeekFrom::Start(offset)).is_ok() {
            log = Box::new(log.chain(file));
        }
    }
    Said::read(BufReader::new(log), &String::from_utf8_lossy(&stderr))
}

/// The files that hold the log from `since` on (inode and length). etcd renames a full log and
/// begins the next one.
fn logs(path: &Path, since: Option<(u64, u64)>) -> Vec<(File, u64)> {
    let Ok(current) = File::open(path) else {
        return Vec::new();
    };
    let length = current.metadata().map_or(0, |it| it.len());
    let inode = |it: &File| it.metadata().map_or(0, |it| it.ino());
    match since {
        None => vec![(current, 0)],
        Some((before, offset)) if inode(&current) == before => {
            // A person truncated the log, so all of it is new.
            vec![(current, if length < offset { 0 } else { offset })]
        }
        Some((before, offset)) => {
            let dir = path.parent().and_then(|it| fs::read_dir(it).ok());
            let renamed = dir
                .into_iter()
                .flatten()
                .flatten()
                .filter_map(|it| File::open(it.path()).ok())
                .find(|it| inode(it) == before);
            let renamed = renamed.map(|it| (it, offset));
            renamed.into_iter().chain([(current, 0)]).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READY: &str = "{\"level\":\"info\",\"msg\":\"ready to serve client requests\"}\n";
    const FULL: &str = "{\"level\":\"fatal\",\"msg\":\"failed to commit tx\",\"error\":\"write db: no space left on device\"}\n";
    const TORN: &str =
        "{\"level\":\"fatal\",\"msg\":\"discovery failed\",\"error\":\"crc mismatch\"}\n";

    struct Host {
        paths: Paths,
        root: std::path::PathBuf,
    }

    fn room(full: bool) -> Room {
        Room {
            free: Some(if full { 40 << 20 } else { 1 << 30 }),
            resume: 80 << 20,
            ..Room::AMPLE
        }
    }

    impl Host {
        fn new(name: &str) -> Host {
            let root = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&root);
            let paths = Paths::under(&root);
            fs::create_dir_all(paths.etcd_log().parent().unwrap()).unwrap();
            fs::create_dir_all(&paths.run).unwrap();
            Host { paths, root }
        }

        fn says(&self, text: &str) {
            use std::io::Write as _;
            let log = self.paths.etcd_log();
            let mut file = fs::OpenOptions::new()
                .create(true)
                .append(true)
                .open(log)
                .unwrap();
            file.write_all(text.as_bytes()).unwrap();
        }

        /// One start, what it says, and how it ends.
        fn start(&self, text: &str, full: bool) -> StartHistory {
            record(&self.paths);
            self.says(text);
            ended(&self.paths, false, How::Signal(9));
            look_into_the_last(&self.paths, "data", room(full));
            history(&self.paths, "data")
        }
    }

    impl Drop for Host {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.root);
        }
    }

    #[test]
    fn a_start_that_served_and_was_killed_has_not_failed() {
        let host = Host::new("served");
        for _ in 0..5 {
            let seen = host.start(READY, false);
            assert_eq!((seen.failed, seen.ending.diagnosis), (0, None));
            assert_eq!(seen.ending.how, How::Signal(9));
        }
        assert!(back_off(&host.paths) > 0, "and the next one waits a little");
        let seen = host.start("", false);
        assert_eq!(seen.failed, 1);
        // One that serves and falls over by itself at once has failed.
        let seen = host.start(&format!("{READY}{TORN}"), false);
        assert_eq!(seen.failed, 2);
        assert!(seen.ending.hints_at_damage());
    }

    #[test]
    fn three_starts_within_a_second_are_three() {
        let host = Host::new("fast");
        for failed in 1..=3 {
            assert_eq!(host.start(TORN, false).failed, failed);
        }
        // Somebody has changed the data since: the words stay a hint, and the budget is new.
        let seen = history(&host.paths, "other data");
        assert_eq!(seen.failed, 0);
        assert!(seen.ending.hints_at_damage());
        clear(&host.paths);
        assert_eq!(history(&host.paths, "data").failed, 0);
    }

    #[test]
    fn a_full_disk_costs_no_start_of_the_budget_and_no_time() {
        let host = Host::new("full");
        for _ in 0..5 {
            let seen = host.start(FULL, true);
            assert!(seen.failed == 0 && seen.ending.for_want_of_room());
            assert_eq!(back_off(&host.paths), 0);
        }
        // There was room: it is no reason.
        assert_eq!(host.start(FULL, false).failed, 1);
    }

    /// The log is on the full disk.
    #[test]
    fn an_etcd_whose_last_words_found_no_room_ended_for_want_of_it() {
        let host = Host::new("speechless");
        let after = |left: u64, how: How| {
            record(&host.paths);
            host.says(READY);
            ended(&host.paths, false, how);
            let free = Some(left);
            let room = Room { free, ..room(true) };
            look_into_the_last(&host.paths, "data", room);
            history(&host.paths, "data").ending.for_want_of_room()
        };
        assert!(after(0, How::Exit(1)));
        assert!(after(4096, How::Unknown));
        assert!(!after(4096, How::Signal(9)), "somebody killed it");
        assert!(!after(4096, How::OutOfMemory));
        assert!(
            !after(2 << 20, How::Exit(1)),
            "its words would have found room"
        );
    }

    #[test]
    fn one_that_was_asked_to_end_has_not_failed() {
        let host = Host::new("stopped");
        for killed in [false, true] {
            record(&host.paths);
            if killed {
                stopping(&host.paths);
                ended(&host.paths, false, How::Signal(9)); // what systemd tells
            } else {
                ended(&host.paths, true, How::Exit(0));
            }
            look_into_the_last(&host.paths, "data", room(false));
            assert_eq!(history(&host.paths, "data"), StartHistory::NONE);
            assert_eq!((back_off(&host.paths), ends(&host.paths)), (0, 0));
        }
    }

    /// A write was acknowledged and the starts before are forgotten; what it says later is read.
    #[test]
    fn an_end_after_long_service_is_looked_into() {
        let host = Host::new("later");
        record(&host.paths);
        host.says(READY);
        clear(&host.paths);
        host.says(FULL);
        look_into_the_last(&host.paths, "data", room(true));
        let seen = history(&host.paths, "data");
        assert!(seen.failed == 0 && seen.ending.for_want_of_room());
    }

    /// etcd renames its log when it is long, and begins another.
    #[test]
    fn a_log_that_was_renamed_meanwhile_is_read_on() {
        let host = Host::new("renamed");
        host.says(TORN);
        record(&host.paths);
        host.says(READY);
        let log = host.paths.etcd_log();
        fs::rename(&log, log.with_file_name("etcd-2026.log")).unwrap();
        host.says("{\"level\":\"info\",\"msg\":\"more\"}\n");
        ended(&host.paths, false, How::Signal(9));
        look_into_the_last(&host.paths, "data", room(false));
        let seen = history(&host.paths, "data");
        assert_eq!((seen.failed, seen.ending.diagnosis), (0, None));
    }

    #[test]
    fn systemd_names_signals() {
        assert_eq!(how_by_systemd("signal", "killed", "KILL"), How::Signal(9));
        assert_eq!(
            how_by_systemd("oom-kill", "killed", "KILL"),
            How::OutOfMemory
        );
        assert_eq!(how_by_systemd("exit-code", "exited", "2"), How::Exit(2));
        assert_eq!(how_by_systemd("core-dump", "dumped", "33"), How::Signal(33));
        assert_eq!(how_by_systemd("", "", ""), How::Unknown);
    }
}
