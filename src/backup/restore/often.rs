//! How often the document's policy has replaced damaged data: a card that fails damages what is
//! restored, too, and each restore loses what was written since the snapshot.

use serde::{Deserialize, Serialize};

use crate::clock;
use crate::cluster::{Detail, Timestamp, detail};
use crate::paths::Paths;
use crate::state::{self, StateError};

/// So many within a day; then a person decides.
const RECOVERIES_MAX: usize = 3;
/// A day.
const WINDOW_SECONDS: u64 = 86_400;

#[derive(Default, Serialize, Deserialize)]
struct RecoveriesFile {
    recoveries: Vec<Recovery>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Recovery {
    boot_id: String,
    /// Seconds since boot.
    since_boot: u64,
    /// By the wall clock, if it was trusted.
    at: Option<i64>,
}

/// The time, by both clocks.
struct Now {
    boot_id: String,
    since_boot: u64,
    at: Option<i64>,
}

impl Now {
    fn look(now: Option<Timestamp>) -> Now {
        Now {
            boot_id: clock::boot_id(),
            since_boot: clock::since_boot().as_secs(),
            at: now.map(|it| it.0),
        }
    }
}

impl Recovery {
    /// What is not known to be older is taken for recent.
    fn is_recent(&self, now: &Now) -> bool {
        let passed = if self.boot_id == now.boot_id {
            Some(now.since_boot.saturating_sub(self.since_boot))
        } else {
            let both = now.at.zip(self.at);
            both.and_then(|(now, then)| u64::try_from(now.saturating_sub(then)).ok())
        };
        passed.is_none_or(|it| it < WINDOW_SECONDS)
    }
}

fn load(paths: &Paths) -> Result<Vec<Recovery>, StateError> {
    let file = state::load::<RecoveriesFile>(&paths.recoveries())?;
    Ok(file.unwrap_or_default().recoveries)
}

/// Writes one down, before it begins. `now`: the time, if it is trusted.
pub fn note_recovery(paths: &Paths, now: Option<Timestamp>) -> Result<(), StateError> {
    let now = Now::look(now);
    let mut recoveries = load(paths)?;
    recoveries.retain(|it| it.is_recent(&now));
    recoveries.push(Recovery {
        boot_id: now.boot_id,
        since_boot: now.since_boot,
        at: now.at,
    });
    state::save(&paths.recoveries(), &RecoveriesFile { recoveries })
}

/// Why damaged data is not replaced once more, if it is a person's turn. `now`: the time, if it is trusted.
pub fn why_no_more(paths: &Paths, now: Option<Timestamp>) -> Option<Detail> {
    let now = Now::look(now);
    // A record that cannot be read lies on the disk that is in question.
    let too_many = load(paths).map_or(true, |it| {
        it.iter().filter(|it| it.is_recent(&now)).count() >= RECOVERIES_MAX
    });
    too_many.then(|| {
        detail(format_args!(
            "damaged data was replaced {RECOVERIES_MAX} times within a day: the disk may be failing; next: see the kernel's log (dmesg) and replace the disk"
        ))
    })
}

/// A person asks for another try.
pub fn forget_recoveries(paths: &Paths) {
    let path = paths.recoveries();
    let _ = std::fs::remove_file(path.with_extension("json.previous"));
    let _ = std::fs::remove_file(path);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recovery_counts_until_it_is_known_to_be_a_day_old() {
        let it = Recovery {
            boot_id: "one".to_owned(),
            since_boot: 100,
            at: Some(1_000),
        };
        let now = |boot: &str, since_boot, at| Now {
            boot_id: boot.to_owned(),
            since_boot,
            at,
        };
        let day = 86_400_u32;
        let later = u64::from(day) + 100;
        assert!(it.is_recent(&now("one", later - 1, None)));
        assert!(!it.is_recent(&now("one", later, None)));
        assert!(
            it.is_recent(&now("one", 200, Some(9_000_000))),
            "the clock jumped"
        );
        assert!(it.is_recent(&now("two", later, None)), "nobody knows");
        assert!(it.is_recent(&now("two", 1, Some(1_000 + i64::from(day) - 1))));
        assert!(!it.is_recent(&now("two", 1, Some(1_000 + i64::from(day)))));
        assert!(it.is_recent(&now("two", 1, Some(1))), "the clock went back");
    }
}
