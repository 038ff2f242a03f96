//! Room on the disk under the data: how much is left, and how long it lasts at the present rate
//! (rules D32, D48). Pure.

use super::{Finding, Grade};
use crate::cluster::{Detail, detail};

/// Below this etcd ends with one of its next writes: a commit of its database needs it (measured on
/// 3.5, 3.6 and 3.7; see `etcd::data_dir`).
pub const FULL: u64 = 16 << 20;
/// Below this etcd cannot take the next segment of its log (64 MB) and mend a torn one (64 MB) besides
/// (rule D32).
pub const NEARLY_FULL: u64 = 144 << 20;
/// Nothing new is put on a disk with less: log, database, a copy of it, a snapshot (rule D32).
pub const FOR_A_CLUSTER: u64 = 1 << 30;
/// A rate says something of 24 times as long as it was seen: that of an hour of a day, early enough for a person
/// to come, and that of a minute of 24 minutes. `apt upgrade` is no disk that fills up.
const BELIEVED_TIMES: u64 = 24;

/// Samples that are kept, and the seconds between two of them: the present rate is that of an hour.
const SAMPLES: usize = 60;
const SAMPLE_SECONDS: u64 = 60;

/// What is looked at.
pub(super) const CHECK: &str = "free space";

/// Room, as it was last seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes that etcd may still take.
    pub free: Option<u64>,
    /// By how much that has become less.
    pub shrinks: Option<Shrinks>,
}

/// How fast room goes: a fact with its age. Losing it at a restart costs an hour's warning at the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shrinks {
    /// So many bytes,
    pub bytes: u64,
    /// within so many seconds up to now.
    pub seconds: u64,
}

impl Space {
    /// Seconds until nothing is left at the present rate. None: it does not become less, or nothing is
    /// known of it.
    pub fn full_in(&self) -> Option<u64> {
        let Shrinks { bytes, seconds } = self.shrinks?;
        let left = u128::from(self.free?) * u128::from(seconds) / u128::from(bytes.max(1));
        (bytes > 0).then(|| u64::try_from(left).unwrap_or(u64::MAX))
    }

    /// The same where it is to be told.
    fn warning(&self) -> Option<u64> {
        let left = self.full_in()?;
        (left < self.shrinks?.seconds.saturating_mul(BELIEVED_TIMES)).then_some(left)
    }
}

/// Remembers how much room there was.
#[derive(Clone, Debug, Default)]
pub struct SpaceWatch {
    /// Seconds since boot, and free bytes.
    samples: heapless::Deque<(u64, u64), SAMPLES>,
}

impl SpaceWatch {
    /// Takes note of what is free now. No rate is known where etcd does not answer: what a start takes comes once, for
    /// a new member two parts of its log of 64 MB.
    pub fn note(&mut self, now: u64, free: Option<u64>, answers: bool) -> Space {
        let Some(bytes) = free else {
            return Space::default();
        };
        if !answers {
            self.samples.clear();
            return Space {
                free,
                shrinks: None,
            };
        }
        let oldest = self.samples.front().copied();
        // Room came back: what was before is no measure any more.
        if oldest.is_some_and(|(_, it)| it < bytes) {
            self.samples.clear();
        }
        let due = self
            .samples
            .back()
            .is_none_or(|(at, _)| now >= at + SAMPLE_SECONDS);
        if due {
            if self.samples.is_full() {
                let _ = self.samples.pop_front();
            }
            let _ = self.samples.push_back((now, bytes));
        }
        let shrinks = self.samples.front().and_then(|(at, before)| {
            let seconds = now.saturating_sub(*at);
            (seconds >= SAMPLE_SECONDS).then_some(Shrinks {
                bytes: before.saturating_sub(bytes),
                seconds,
            })
        });
        Space { free, shrinks }
    }
}

/// For people, not more exact than it is.
fn in_words(seconds: u64) -> Detail {
    match seconds {
        0..7200 => detail(format_args!("{} min", seconds / 60)),
        _ => detail(format_args!("{} h", seconds / 3600)),
    }
}

/// Judges the room.
pub(super) fn judge(space: &Space) -> Finding {
    let told = |grade, reason, found| Finding::new(CHECK, grade, reason, found);
    let Some(free) = space.free else {
        let found = detail(format_args!("the file system does not report it"));
        return told(Grade::Unknown, "FreeSpace", found);
    };
    let mib = free >> 20;
    let next = detail(format_args!(
        "free some space on the disk that holds the data, or move the data to a larger one"
    ));
    if free < FULL {
        let found = detail(format_args!(
            "{mib} MiB: one of the next writes ends etcd, which starts again when there is space"
        ));
        return told(Grade::Failure, "DiskFull", found).next(next);
    }
    if let Some(left) = space.warning() {
        let found = detail(format_args!(
            "{mib} MiB; at the present rate the disk is full in {}",
            in_words(left)
        ));
        return told(Grade::Warning, "DiskFillsUp", found).next(next);
    }
    if free < NEARLY_FULL {
        let found = detail(format_args!(
            "{mib} MiB: too little for the next part of the log"
        ));
        return told(Grade::Warning, "DiskNearlyFull", found).next(next);
    }
    told(Grade::Good, "FreeSpace", detail(format_args!("{mib} MiB")))
}

/// Judges the room for a cluster that is not there yet.
pub(super) fn judge_for_a_cluster(space: &Space) -> Finding {
    match space.free {
        Some(free) if free < FOR_A_CLUSTER => {
            let found = detail(format_args!(
                "{} MiB: a cluster needs {} MiB for its log, its database and a copy of it",
                free >> 20,
                FOR_A_CLUSTER >> 20
            ));
            Finding::new(CHECK, Grade::Failure, "DiskTooSmall", found).next(detail(format_args!(
                "free some space, or name a larger disk in storage.path"
            )))
        }
        _ => judge(space),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(free: u64, shrinks: Option<(u64, u64)>) -> (&'static str, Grade) {
        let shrinks = shrinks.map(|(bytes, seconds)| Shrinks { bytes, seconds });
        let finding = judge(&Space {
            free: Some(free),
            shrinks,
        });
        (finding.reason, finding.grade)
    }

    #[test]
    fn a_full_disk_is_named_before_it_is_full() {
        const GIB: u64 = 1 << 30;
        assert_eq!(reason(8 * GIB, None), ("FreeSpace", Grade::Good));
        assert_eq!(reason(NEARLY_FULL, None), ("FreeSpace", Grade::Good));
        assert_eq!(
            reason(NEARLY_FULL - 1, None),
            ("DiskNearlyFull", Grade::Warning)
        );
        assert_eq!(reason(FULL - 1, None), ("DiskFull", Grade::Failure));
        assert_eq!(reason(0, Some((1, 60))), ("DiskFull", Grade::Failure));
        // Half a GiB an hour leaves 16 hours.
        let hour = Some((GIB / 2, 3600));
        assert_eq!(reason(8 * GIB, hour), ("DiskFillsUp", Grade::Warning));
        assert_eq!(reason(16 * GIB, hour), ("FreeSpace", Grade::Good));
        // A minute says nothing of a day or an hour, but much of the next minutes.
        assert_eq!(reason(8 * GIB, Some((GIB / 100, 60))).1, Grade::Good);
        assert_eq!(reason(8 * GIB, Some((GIB / 3, 60))).1, Grade::Good);
        assert_eq!(reason(8 * GIB, Some((GIB / 2, 60))).0, "DiskFillsUp");
        assert_eq!(judge(&Space::default()).grade, Grade::Unknown);
        let small = Space {
            free: Some(900 << 20),
            shrinks: None,
        };
        assert_eq!(judge_for_a_cluster(&small).grade, Grade::Failure);
        assert_eq!(judge(&small).grade, Grade::Good);
    }

    #[test]
    fn the_rate_is_that_of_the_last_hour_and_forgets_when_room_comes_back() {
        let mut watch = SpaceWatch::default();
        let mut free = 100 << 30;
        let first = watch.note(1000, Some(free), true);
        assert_eq!((first.free, first.shrinks), (Some(free), None));
        assert_eq!(watch.note(1059, Some(free - 1), true).shrinks, None);
        let mut last = first;
        for minute in 1..=200 {
            free -= 1 << 20;
            last = watch.note(1000 + minute * 60, Some(free), true);
        }
        let shrinks = last.shrinks.unwrap();
        assert_eq!((shrinks.bytes, shrinks.seconds), (59 << 20, 59 * 60));
        assert_eq!(last.full_in(), Some(free * 59 * 60 / (59 << 20)));
        let back = watch.note(20_000, Some(200 << 30), true);
        assert_eq!((back.shrinks, back.full_in()), (None, None));
        assert_eq!(watch.note(20_060, Some(200 << 30), true).full_in(), None);
        assert_eq!(watch.note(20_120, None, true), Space::default());
        // What a start takes is no rate.
        watch.note(20_180, Some(100 << 30), false);
        assert_eq!(watch.note(20_190, Some(50 << 30), true).shrinks, None);
        let after = watch.note(20_260, Some(50 << 30), true);
        assert_eq!(after.full_in(), None, "{after:?}");
    }
}
