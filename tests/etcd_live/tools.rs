//! Damage to etcd's files, as power cuts, bad blocks and people make it.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::lab::Lab;

/// Files of a directory with this extension, oldest first.
pub fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(dir)
        .unwrap()
        .map(|it| it.unwrap().path())
        .filter(|it| it.extension().is_some_and(|it| it == extension))
        .collect();
    found.sort();
    found
}

pub fn open(path: &Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap()
}

/// The segment of the log that is written to.
pub fn segment(lab: &Lab) -> PathBuf {
    files(&lab.data("member/wal"), "wal").pop().unwrap()
}

/// Offset and whole length of each record in a segment.
pub fn records(segment: &Path) -> Vec<(u64, u64)> {
    let file = File::open(segment).unwrap();
    let end = file.metadata().unwrap().len();
    let mut found = Vec::new();
    let mut at = 0;
    let mut head = [0; 8];
    while at + 8 <= end {
        file.read_exact_at(&mut head, at).unwrap();
        let field = u64::from_le_bytes(head);
        if field == 0 {
            break;
        }
        let padding = if field >> 63 == 1 {
            (field >> 56) & 7
        } else {
            0
        };
        let length = 8 + (field & ((1 << 56) - 1)) + padding;
        found.push((at, length));
        at += length;
    }
    found
}

fn last_record(lab: &Lab) -> (File, u64, u64) {
    let segment = segment(lab);
    let (at, length) = *records(&segment).last().unwrap();
    (open(&segment), at, length)
}

/// The power went while the last record was written, and the file ends there.
pub fn truncate_in_last_record(lab: &Lab) {
    let (file, at, length) = last_record(lab);
    file.set_len(at + length / 2).unwrap();
}

/// The power went while another record was written, of which nobody heard: its head and 20 bytes.
pub fn append_torn_record(lab: &Lab) {
    let segment = segment(lab);
    let end = end(&records(&segment));
    let file = open(&segment);
    let mut torn = 250_u64.to_le_bytes().to_vec();
    torn.extend([0x08, 0x02, 0x10]);
    torn.extend([0x7f; 17]);
    file.set_len(end).unwrap();
    file.write_all_at(&torn, end).unwrap();
}

/// The same in a segment that keeps the room which etcd took for it: sectors of the record are zeros.
pub fn torn_record_in_allocated_room(segment: &Path) {
    let end = end(&records(segment));
    let mut torn = 2000_u64.to_le_bytes().to_vec();
    torn.extend([0x08, 0x02, 0x10]);
    torn.extend([0x7f; 17]);
    open(segment).write_all_at(&torn, end).unwrap();
}

/// The length of a record in the middle is nonsense: etcd takes that for the end of the log.
pub fn garble_a_length(lab: &Lab) -> u64 {
    let segment = segment(lab);
    let all = records(&segment);
    let (at, _) = all[all.len() / 2];
    let nonsense = (70_u64 << 20).to_le_bytes();
    open(&segment).write_all_at(&nonsense, at).unwrap();
    at
}

/// The length of an entry's data in the middle reaches beyond its record. etcd 3.5 and 3.6 take that for
/// the end of the log, 3.7 does not.
pub fn garble_an_inner_length(lab: &Lab) -> u64 {
    let segment = segment(lab);
    let file = open(&segment);
    let all = records(&segment);
    for (at, length) in &all[all.len() / 2..] {
        let mut body = vec![0; usize::try_from(length - 8).unwrap()];
        file.read_exact_at(&mut body, at + 8).unwrap();
        // An entry, its sum, its data.
        let sum = body[3..].iter().position(|it| it & 0x80 == 0).unwrap() + 4;
        if body[..2] == [0x08, 0x02] && body[sum] == 0x1a {
            let nonsense = [0xff, 0x7f];
            file.write_all_at(&nonsense, at + 8 + sum as u64 + 1)
                .unwrap();
            return *at;
        }
    }
    panic!("no entry");
}

/// A record in the middle and what follows it up to the end of its sector, and one sector more.
pub fn zero_sectors_in_the_middle(lab: &Lab) -> u64 {
    let segment = segment(lab);
    let all = records(&segment);
    let middle = end(&all) / 2;
    let (at, _) = all.into_iter().find(|it| it.0 >= middle).unwrap();
    let until = (at + 1).next_multiple_of(512) + 512;
    let zeros = vec![0; usize::try_from(until - at).unwrap()];
    open(&segment).write_all_at(&zeros, at).unwrap();
    at
}

/// One of the two meta pages, as a crash in the middle of a commit leaves it.
pub fn garbage_one_meta(lab: &Lab, which: u64) {
    let file = open(&lab.data("member/snap/db"));
    file.write_all_at(&[0xA5; 200], which * PAGE).unwrap();
}

/// The power went while the last record was written: all but its head is zeros.
pub fn zero_body_of_last_record(lab: &Lab) {
    let segment = segment(lab);
    let (at, _) = last_in_one_sector(&segment);
    // The head: the length, and the number of the record's kind.
    zero_from(&segment, at + 10);
}

/// The same, a little later: its last bytes are zeros.
pub fn zero_tail_of_last_record(lab: &Lab) {
    let segment = segment(lab);
    let (at, length) = last_in_one_sector(&segment);
    zero_from(&segment, at + length * 3 / 4);
}

/// Zeros everything from the beginning of a record in the middle on.
pub fn zero_log_from_a_record(lab: &Lab) {
    let segment = segment(lab);
    let all = records(&segment);
    let middle = end(&all) / 2;
    let (at, _) = all.into_iter().find(|it| it.0 >= middle).unwrap();
    zero_from(&segment, at);
}

/// The second half of what was written.
pub fn zero_second_half_of_log(lab: &Lab) {
    let segment = segment(lab);
    let all = records(&segment);
    let middle = end(&all) / 2;
    let (at, length) = all
        .into_iter()
        .find(|it| it.0 >= middle && in_one_sector(it))
        .unwrap();
    zero_from(&segment, at + length / 2);
}

/// etcd takes a record with a sector of nothing but zeros for one that was never acknowledged, cuts
/// the log there and starts: only a record within one sector shows zeros as damage.
fn in_one_sector((at, length): &(u64, u64)) -> bool {
    at / 512 == (at + length - 1) / 512 && *length >= 200
}

fn last_in_one_sector(segment: &Path) -> (u64, u64) {
    records(segment).into_iter().rfind(in_one_sector).unwrap()
}

fn end(records: &[(u64, u64)]) -> u64 {
    records.last().map_or(0, |it| it.0 + it.1)
}

fn zero_from(segment: &Path, at: u64) {
    let length = usize::try_from(end(&records(segment)) - at).unwrap();
    open(segment).write_all_at(&vec![0; length], at).unwrap();
}

/// One bit of the largest record; what is returned flips it back, as soon as a repair can come: in
/// the same second, and with the same length.
pub fn flip_bit_in_log(lab: &Lab) -> impl Fn() + use<> {
    flip_bit_in(&segment(lab))
}

/// The same of one segment.
pub fn flip_bit_in(segment: &Path) -> impl Fn() + use<> {
    let (at, length) = *records(segment).iter().max_by_key(|it| it.1).unwrap();
    let file = open(segment);
    let flip = move || {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at + length / 2).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at + length / 2).unwrap();
    };
    flip();
    let file = open(segment);
    let damaged = file.metadata().unwrap().modified().unwrap();
    move || {
        flip();
        file.set_modified(damaged + std::time::Duration::from_nanos(1))
            .unwrap();
    }
}

const PAGE: u64 = 4096;

/// Everything behind the two meta pages.
pub fn garbage_pages(lab: &Lab) {
    let file = open(&lab.data("member/snap/db"));
    let length = file.metadata().unwrap().len();
    file.write_all_at(
        &vec![0xA5; usize::try_from(length - 2 * PAGE).unwrap()],
        2 * PAGE,
    )
    .unwrap();
}

/// Both meta pages, without which nothing in the file can be found.
pub fn garbage_meta(lab: &Lab) {
    let file = open(&lab.data("member/snap/db"));
    file.write_all_at(&[0xA5; 8192], 0).unwrap();
}

/// The next segment was created and nothing was written to it.
pub fn empty_next_segment(lab: &Lab) {
    let segment = segment(lab);
    let name = segment.file_name().unwrap().to_str().unwrap();
    let number = u64::from_str_radix(&name[..16], 16).unwrap() + 1;
    // More entries than there are in the log: one segment follows the other.
    File::create(segment.with_file_name(format!("{number:016x}-{:016x}.wal", 1000))).unwrap();
}

pub fn empty(path: &Path) {
    open(path).set_len(0).unwrap();
}

/// A PEM file whose middle was overwritten.
pub fn break_pem(path: &Path) {
    let file = open(path);
    let middle = file.metadata().unwrap().len() / 2;
    file.write_all_at(b"!!!!!!!!", middle).unwrap();
}
