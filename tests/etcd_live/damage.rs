//! Rows of the table of crash and loss: each makes the damage to a real etcd's data and sees it
//! start with every key, or held with a reason that names the damage and the data untouched.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use crate::hints::{found_sound, say};
use crate::lab::{Lab, condition};
use crate::tools::{
    append_torn_record, empty, empty_next_segment, files, flip_bit_in, flip_bit_in_log,
    garbage_meta, garbage_one_meta, garbage_pages, garble_a_length, garble_an_inner_length,
    segment, truncate_in_last_record, zero_body_of_last_record, zero_log_from_a_record,
    zero_second_half_of_log, zero_tail_of_last_record,
};

const KEYS: u32 = 200;
/// What lies beside those keys.
#[derive(Clone, Copy, PartialEq)]
enum With {
    Nothing,
    /// Half of the log are small records.
    SmallRecords,
    RaftSnapshots,
}

/// 200 acknowledged keys; then the operator was killed, and etcd after it.
fn filled(line: &str, with: With) -> Lab {
    let mut lab = Lab::new(line);
    if with == With::RaftSnapshots {
        lab.spec.push_str("  options: {snapshotCount: 100}\n");
        lab.write_document();
    }
    lab.start_agent();
    lab.wait_available();
    lab.fill(KEYS);
    match with {
        With::Nothing => {}
        With::RaftSnapshots => until_snapshots(&lab, 2),
        With::SmallRecords => {
            for number in 0..40 {
                assert!(lab.put("small", &format!("{number:0250}")));
            }
        }
    }
    lab.wait_available(); // a look, in which the operator sees how far the log reaches
    lab.kill_agent();
    assert!(lab.put("last", "not seen by the operator"));
    lab.kill_etcd();
    lab
}

/// Writes until etcd has made so many raft snapshots.
fn until_snapshots(lab: &Lab, count: usize) {
    for round in 0.. {
        if files(&lab.data("member/snap"), "snap").len() >= count {
            return;
        }
        assert!(round < 2000, "no raft snapshot");
        assert!(lab.put("more", &round.to_string()));
    }
}

/// The operator returns, etcd starts, every key is there, and no file is gone.
fn starts(mut lab: Lab) {
    let before = lab.fingerprints();
    lab.start_agent();
    lab.wait_available();
    assert_eq!(lab.filled(), KEYS as usize);
    let after = lab.fingerprints();
    for path in before.keys().filter(|it| !it.ends_with("db.tmp.1234567")) {
        assert!(after.contains_key(path), "{} is gone", path.display());
    }
}

/// The operator returns and holds with this reason; etcd was started at most once, nothing of the
/// data changed, and it stays so: the guard refuses too, whoever asks it. What was said.
fn held(lab: Lab, reason: &str, by: Seen) -> String {
    held_for_one_of(lab, &[reason], by).1
}

/// The same for whichever of these reasons it is; that, and what was said.
fn held_for_one_of(mut lab: Lab, reasons: &[&str], by: Seen) -> (String, String) {
    let before = lab.fingerprints();
    lab.start_agent();
    let status = lab.wait(&format!("one of the holds {reasons:?}"), |it| {
        reasons.iter().any(|reason| it["plan"]["hold"] == *reason)
    });
    let reason = status["plan"]["hold"].as_str().unwrap();
    assert_eq!(condition(&status, "Available"), ("False", reason));
    lab.kill_agent();
    let (code, words) = lab.guard();
    assert_eq!(code, 3, "{words}");
    let message = status["plan"]["message"].as_str().unwrap();
    assert!(words.contains(message), "{words}: {message}");
    assert_eq!(lab.etcd_pid(), None);
    assert_eq!(lab.starts(), usize::from(by == Seen::ByEtcd));
    untouched(&before, &lab.fingerprints(), by, reason);
    let names_a_file = message.starts_with("member/");
    let about_a_part = ["DataDirIncomplete", "AcknowledgedWritesMissing"].contains(&reason);
    assert!(names_a_file || about_a_part, "{message}");
    (reason.to_owned(), message.to_owned())
}

/// The same, and nothing but the file that it names keeps etcd from starting.
fn held_at(lab: Lab, reason: &str, by: Seen, file: &str, offset: u64) -> String {
    let message = held(lab, reason, by);
    let place = format!("{file} at byte {offset}: ");
    assert!(message.starts_with(&place), "{message}: {place}");
    message
}

fn wal_name(lab: &Lab) -> String {
    let segment = segment(lab);
    format!("member/wal/{}", segment.file_name().unwrap().display())
}

/// Who saw the damage.
#[derive(Clone, Copy, PartialEq)]
enum Seen {
    /// The guard: etcd was not started.
    ByGuard,
    /// etcd, which ended by itself.
    ByEtcd,
}

/// etcd opens its database before it knows whether log and database fit, and commits a transaction
/// of its own to it: where only it sees the damage, its failing start has written to that one file.
fn untouched(
    before: &BTreeMap<PathBuf, String>,
    after: &BTreeMap<PathBuf, String>,
    by: Seen,
    reason: &str,
) {
    for (path, hash) in before {
        let etcds_own = by == Seen::ByEtcd && reason != "DatabaseDamaged" && path.ends_with("db");
        assert!(after.contains_key(path), "{} is gone", path.display());
        assert!(
            after.get(path) == Some(hash) || etcds_own,
            "{} changed",
            path.display()
        );
    }
    for path in after.keys() {
        assert!(before.contains_key(path), "{} is new", path.display());
    }
}

fn killed(line: &str) {
    starts(filled(line, With::Nothing));
}

fn leftover_of_a_defragmentation(line: &str) {
    let lab = filled(line, With::Nothing);
    // etcd removes it by itself ("orphaned defragmentation file"): it is no file of the data.
    fs::write(lab.data("member/snap/db.tmp.1234567"), [0xA5; 9000]).unwrap();
    starts(lab);
}

fn next_segment_empty(line: &str) {
    let lab = filled(line, With::Nothing);
    empty_next_segment(&lab);
    starts(lab);
}

fn log_cut_in_the_last_record(line: &str) {
    let lab = filled(line, With::SmallRecords);
    truncate_in_last_record(&lab);
    starts(lab);
}

fn last_record_is_zeros(line: &str) {
    let lab = filled(line, With::SmallRecords);
    zero_body_of_last_record(&lab);
    held(lab, "WalTornWrite", Seen::ByGuard);
}

fn last_record_ends_in_zeros(line: &str) {
    let lab = filled(line, With::SmallRecords);
    zero_tail_of_last_record(&lab);
    held(lab, "WalDamaged", Seen::ByGuard);
}

fn bit_flipped_in_the_log(line: &str) {
    let lab = filled(line, With::Nothing);
    let _ = flip_bit_in_log(&lab);
    held(lab, "WalDamaged", Seen::ByGuard);
}

fn second_half_of_the_log_zeroed(line: &str) {
    let lab = filled(line, With::SmallRecords);
    zero_second_half_of_log(&lab);
    held(lab, "WalDamaged", Seen::ByGuard);
}

/// The zeros begin with a record and cover whole sectors: etcd takes that for a torn write, cuts
/// the log there, starts, and half of the acknowledged keys are gone without a word. Where it wrote its database
/// meanwhile, which it does every few seconds, that holds more than the rest of the log.
fn second_half_of_the_log_gone_in_whole_sectors(line: &str) {
    let lab = filled(line, With::SmallRecords);
    zero_log_from_a_record(&lab);
    let reasons = ["AcknowledgedWritesMissing", "WalDamaged"];
    let (reason, message) = held_for_one_of(lab, &reasons, Seen::ByGuard);
    let by_the_database = message.contains("the log ends before what the database holds");
    assert_eq!(by_the_database, reason == "WalDamaged", "{message}");
}

fn pages_of_the_database_overwritten(line: &str) {
    let lab = filled(line, With::Nothing);
    garbage_pages(&lab);
    held(lab, "DatabaseDamaged", Seen::ByEtcd);
}

fn both_meta_pages_overwritten(line: &str) {
    let lab = filled(line, With::Nothing);
    garbage_meta(&lab);
    held_at(lab, "DatabaseDamaged", Seen::ByGuard, "member/snap/db", 0);
}

fn database_gone_and_the_whole_log_there(line: &str) {
    let lab = filled(line, With::Nothing);
    fs::remove_file(lab.data("member/snap/db")).unwrap();
    starts(lab);
}

fn database_empty_and_the_whole_log_there(line: &str) {
    let lab = filled(line, With::Nothing);
    empty(&lab.data("member/snap/db"));
    starts(lab);
}

fn database_gone_and_raft_snapshots_there(line: &str) {
    let lab = filled(line, With::RaftSnapshots);
    fs::remove_file(lab.data("member/snap/db")).unwrap();
    held(lab, "DataDirIncomplete", Seen::ByGuard);
}

fn database_empty_and_raft_snapshots_there(line: &str) {
    let lab = filled(line, With::RaftSnapshots);
    empty(&lab.data("member/snap/db"));
    held(lab, "DataDirIncomplete", Seen::ByGuard);
}

fn database_older_than_the_raft_snapshot(line: &str) {
    let mut lab = filled(line, With::RaftSnapshots);
    let copy = lab.root.join("old-db");
    fs::copy(lab.data("member/snap/db"), &copy).unwrap();
    lab.start_agent();
    lab.wait_available();
    let have = files(&lab.data("member/snap"), "snap").len();
    until_snapshots(&lab, have + 2);
    lab.kill_agent();
    lab.kill_etcd();
    fs::copy(copy, lab.data("member/snap/db")).unwrap();
    held(lab, "DatabaseOlderThanLog", Seen::ByEtcd);
}

fn newest_raft_snapshot_empty(line: &str) {
    let mut lab = filled(line, With::RaftSnapshots);
    let newest = files(&lab.data("member/snap"), "snap").pop().unwrap();
    empty(&newest);
    lab.start_agent();
    lab.wait_available();
    assert_eq!(lab.filled(), KEYS as usize);
    let broken = PathBuf::from(format!("{}.broken", newest.display()));
    assert!(
        broken.exists() || newest.exists(),
        "etcd sets it aside by rename"
    );
}

/// The place of the record whose length is nonsense is named, and how many entries lie behind it; nobody
/// has seen how far the log reached before.
fn a_length_is_nonsense_in_the_middle_of_the_log(line: &str) {
    let lab = filled(line, With::SmallRecords);
    fs::remove_file(lab.run("seen.json")).unwrap();
    let (name, at) = (wal_name(&lab), garble_a_length(&lab));
    let message = held_at(lab, "WalDamaged", Seen::ByGuard, &name, at);
    assert!(message.contains("lost of the log: entries "), "{message}");
    assert!(message.contains(" to at most "), "{message}");
}

/// etcd 3.5 and 3.6 take it for the end of the log, 3.7 does not start.
fn an_inner_length_is_nonsense(line: &str) {
    let lab = filled(line, With::SmallRecords);
    fs::remove_file(lab.run("seen.json")).unwrap();
    let (name, at) = (wal_name(&lab), garble_an_inner_length(&lab));
    held_at(lab, "WalDamaged", Seen::ByGuard, &name, at);
}

/// Some sectors in the middle are zeros from the begin of a record on, what comes behind them is there:
/// etcd would take that for the end of the log.
fn sectors_in_the_middle_are_zeros(line: &str) {
    let lab = filled(line, With::SmallRecords);
    fs::remove_file(lab.run("seen.json")).unwrap();
    let (name, at) = (
        wal_name(&lab),
        crate::tools::zero_sectors_in_the_middle(&lab),
    );
    held_at(lab, "WalDamaged", Seen::ByGuard, &name, at);
}

fn torn_record_that_nobody_was_promised(line: &str) {
    let lab = filled(line, With::SmallRecords);
    append_torn_record(&lab);
    starts(lab);
}

/// As a crash in the middle of a commit leaves it: etcd goes on with the other one. Words of damage make
/// the database be read, and it is sound.
fn one_meta_page_overwritten(line: &str) {
    for which in [0, 1] {
        let mut lab = filled(line, With::Nothing);
        garbage_one_meta(&lab, which);
        say(&lab, "fatal", "invalid database");
        lab.start_agent();
        lab.wait_available();
        assert!(!found_sound(&lab).is_null(), "it was read");
        assert_eq!(lab.filled(), KEYS as usize);
    }
}

/// Two segments, and a bit of the old one: etcd reads it, too.
fn bit_flipped_in_an_old_segment(line: &str) {
    let mut lab = filled(line, With::Nothing);
    lab.start_agent();
    lab.wait_available();
    crate::health::put_megabytes(&lab, 70);
    lab.kill_agent();
    lab.kill_etcd();
    let segments = files(&lab.data("member/wal"), "wal");
    assert!(segments.len() > 1, "{segments:?}");
    let _ = flip_bit_in(&segments[0]);
    let name = segments[0].file_name().unwrap().to_owned();
    let message = held(lab, "WalDamaged", Seen::ByEtcd);
    assert!(message.contains(name.to_str().unwrap()), "{message}");
}

/// The newest segment is gone: the log ends before what the database holds, and etcd would start, look
/// healthy, and take no write.
fn newest_segment_gone(line: &str) {
    let mut lab = filled(line, With::Nothing);
    lab.start_agent();
    lab.wait_available();
    crate::health::put_megabytes(&lab, 70);
    lab.stop_agent();
    // So that the database has taken up what the newest segment holds.
    let pid = lab.etcd_pid().unwrap();
    crate::lab::kill("TERM", pid);
    while lab.etcd_pid().is_some() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    clear_run(&lab);
    fs::remove_file(segment(&lab)).unwrap();
    let message = held(lab, "WalDamaged", Seen::ByGuard);
    assert!(
        message.contains("before what the database holds"),
        "{message}"
    );
}

fn only_segment_empty(line: &str) {
    let lab = filled(line, With::Nothing);
    empty(&segment(&lab));
    let message = held(lab, "WalDamaged", Seen::ByGuard);
    assert!(
        message.contains("no record says whose log it is"),
        "{message}"
    );
}

/// A part that is no file cannot be read; nothing is known to be lost, and nothing is thrown away for it.
fn parts_that_are_no_files(line: &str) {
    for (part, why) in [
        ("wal", "a directory, not a file"),
        ("wal", "a link that leads nowhere"),
        ("db", "a directory, not a file"),
        ("db", "a link that leads nowhere"),
    ] {
        let mut lab = filled(line, With::Nothing);
        let snapshots = lab.root.join("snapshots");
        fs::create_dir_all(&snapshots).unwrap();
        lab.add("recovery: {singleMember: restoreLatestVerified}");
        lab.add(&format!(
            "backup: {{destinations: [{{local: {{path: {}}}}}]}}",
            snapshots.display()
        ));
        let path = match part {
            "wal" => segment(&lab),
            _ => lab.data("member/snap/db"),
        };
        let aside = lab.root.join("aside");
        fs::rename(&path, &aside).unwrap();
        if why.contains("directory") {
            fs::create_dir(&path).unwrap();
        } else {
            std::os::unix::fs::symlink("/no/such/disk", &path).unwrap();
        }
        lab.start_agent();
        let status = lab.wait_hold("DataUnreadable");
        let message = status["plan"]["message"].as_str().unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(message.contains(name) && message.contains(why), "{message}");
        assert_eq!(lab.starts(), 0);
        assert!(!lab.lib("restored.json").exists());
        // It is looked at again, by itself.
        let _ = fs::remove_dir(&path);
        let _ = fs::remove_file(&path);
        fs::rename(&aside, &path).unwrap();
        lab.wait_available();
        assert_eq!(lab.filled(), KEYS as usize);
    }
}

/// A segment is called as if the log began later: etcd's words for that stand in no table. Once the
/// budget of starts is spent, the data is read.
fn log_begins_too_late(line: &str) {
    let mut lab = filled(line, With::Nothing);
    let first = segment(&lab);
    let later = lab.data("member/wal/0000000000000001-0000000000000005.wal");
    fs::rename(&first, &later).unwrap();
    lab.start_agent();
    let status = lab.wait_hold("WalDamaged");
    let message = status["plan"]["message"].as_str().unwrap();
    assert!(
        message.contains("begins behind the newest raft snapshot"),
        "{message}"
    );
    fs::rename(&later, &first).unwrap();
    lab.wait_available();
    assert_eq!(lab.filled(), KEYS as usize);
}

/// As a reboot does.
fn clear_run(lab: &Lab) {
    for entry in fs::read_dir(lab.run("")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
}

fn log_gone_and_the_database_there(line: &str) {
    let lab = filled(line, With::Nothing);
    fs::rename(lab.data("member/wal"), lab.root.join("wal-aside")).unwrap();
    held(lab, "DataDirIncomplete", Seen::ByGuard);
}

/// A test for each row on a line of etcd.
macro_rules! rows {
    ($module:ident $line:literal: $($row:ident)*) => {
        mod $module {
            $(#[test]
            fn $row() {
                super::$row($line);
            })*
        }
    };
}

rows!(on_3_6 "3.6":
    killed
    leftover_of_a_defragmentation
    next_segment_empty
    log_cut_in_the_last_record
    last_record_is_zeros
    last_record_ends_in_zeros
    bit_flipped_in_the_log
    second_half_of_the_log_zeroed
    second_half_of_the_log_gone_in_whole_sectors
    pages_of_the_database_overwritten
    both_meta_pages_overwritten
    database_gone_and_the_whole_log_there
    database_empty_and_the_whole_log_there
    database_gone_and_raft_snapshots_there
    database_empty_and_raft_snapshots_there
    database_older_than_the_raft_snapshot
    newest_raft_snapshot_empty
    log_gone_and_the_database_there
    newest_segment_gone
    parts_that_are_no_files
    log_begins_too_late
    a_length_is_nonsense_in_the_middle_of_the_log
    an_inner_length_is_nonsense
    sectors_in_the_middle_are_zeros
    torn_record_that_nobody_was_promised
    one_meta_page_overwritten
    bit_flipped_in_an_old_segment
    only_segment_empty
);
// Where etcd's own words or habits may differ from line to line.
rows!(on_3_5 "3.5":
    log_cut_in_the_last_record
    last_record_is_zeros
    last_record_ends_in_zeros
    bit_flipped_in_the_log
    second_half_of_the_log_zeroed
    second_half_of_the_log_gone_in_whole_sectors
    pages_of_the_database_overwritten
    both_meta_pages_overwritten
    database_gone_and_the_whole_log_there
    database_older_than_the_raft_snapshot
    newest_raft_snapshot_empty
    a_length_is_nonsense_in_the_middle_of_the_log
    an_inner_length_is_nonsense
    sectors_in_the_middle_are_zeros
    torn_record_that_nobody_was_promised
    one_meta_page_overwritten
    bit_flipped_in_an_old_segment
    only_segment_empty
);
rows!(on_3_7 "3.7":
    log_cut_in_the_last_record
    last_record_is_zeros
    last_record_ends_in_zeros
    bit_flipped_in_the_log
    second_half_of_the_log_zeroed
    second_half_of_the_log_gone_in_whole_sectors
    pages_of_the_database_overwritten
    both_meta_pages_overwritten
    database_gone_and_the_whole_log_there
    database_older_than_the_raft_snapshot
    newest_raft_snapshot_empty
    a_length_is_nonsense_in_the_middle_of_the_log
    an_inner_length_is_nonsense
    sectors_in_the_middle_are_zeros
    torn_record_that_nobody_was_promised
    one_meta_page_overwritten
    bit_flipped_in_an_old_segment
    only_segment_empty
);

/// Damage is held after the first failed start. It ends when the data changes, or when a person
/// asks for another try.
#[test]
fn damage_is_held_until_the_data_changes_or_a_person_asks() {
    let mut lab = filled("3.6", With::Nothing);
    let db = lab.data("member/snap/db");
    let copy = lab.root.join("db-copy");
    fs::copy(&db, &copy).unwrap();
    garbage_pages(&lab);
    lab.start_agent();
    lab.wait_hold("DatabaseDamaged");
    assert_eq!(lab.starts(), 1);
    let log = lab.log_length();
    lab.signal_agent("HUP");
    lab.wait("another try, and the hold again", |it| {
        lab.log_length() > log && it["plan"]["hold"] == "DatabaseDamaged"
    });
    fs::copy(copy, db).unwrap();
    lab.wait_available();
    assert_eq!(lab.filled(), KEYS as usize);
}

/// What the log lacks is known by the guard, and a person may decide to start without it.
#[test]
fn acknowledged_writes_are_given_up_only_by_a_person() {
    let mut lab = filled("3.6", With::SmallRecords);
    zero_log_from_a_record(&lab);
    lab.start_agent();
    let status = lab.wait_hold("AcknowledgedWritesMissing");
    let message = status["plan"]["message"].as_str().unwrap();
    assert!(
        message.contains("acknowledged writes would be lost"),
        "{message}"
    );
    lab.signal_agent("HUP");
    lab.wait_available();
}
