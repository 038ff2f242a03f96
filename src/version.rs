//! etcd's versions: what is known of each, and which ones lose data.
//!
//! A class is a statement for status and for a hold at birth, never a reason to stop what runs.

use core::fmt;
use core::str::FromStr;

/// A version of etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Always 3 today.
    pub major: u16,
    /// The version line: 3.5, 3.6, 3.7.
    pub minor: u16,
    /// Bug fixes within the line.
    pub patch: u16,
}

impl Version {
    /// Whether several members can join at once (`max-learners`, from 3.6 on); before, one at a time.
    pub fn takes_several(self) -> bool {
        self >= Version::new(3, 6, 0)
    }

    /// For constants.
    pub const fn new(major: u16, minor: u16, patch: u16) -> Self {
        Version {
            major,
            minor,
            patch,
        }
    }

    /// Whether it is of a newer line, also of one that this operator does not know.
    pub fn is_newer_line_than(self, other: Version) -> bool {
        (self.major, self.minor) > (other.major, other.minor)
    }

    /// The line whose configuration this version understands, if this operator knows it.
    pub fn line(self) -> Option<Line> {
        match (self.major, self.minor) {
            (3, 5) => Some(Line::V3_5),
            (3, 6) => Some(Line::V3_6),
            (3, 7) => Some(Line::V3_7),
            _ => None,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// What a cluster is born with where its document names no version: the newest of the line that has
/// been out longest without a bug that loses data, as far as this operator knows.
pub const VERSION_AT_BIRTH: Version = Version::new(3, 6, 16);

/// The text is not `MAJOR.MINOR.PATCH`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAVersion;

impl FromStr for Version {
    type Err = NotAVersion;

    /// Parses `3.6.16`; a leading `v` is accepted as people write it.
    fn from_str(text: &str) -> Result<Self, NotAVersion> {
        let mut parts = text.strip_prefix('v').unwrap_or(text).split('.');
        let mut number = || -> Result<u16, NotAVersion> {
            let part = parts.next().ok_or(NotAVersion)?;
            if !part.bytes().all(|it| it.is_ascii_digit()) {
                return Err(NotAVersion);
            }
            part.parse().map_err(|_| NotAVersion)
        };
        let version = Version::new(number()?, number()?, number()?);
        if parts.next().is_some() {
            Err(NotAVersion)
        } else {
            Ok(version)
        }
    }
}

/// A version line: within it the configuration has one shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Line {
    /// 3.5: `experimental-*` options.
    V3_5,
    /// 3.6: the options without the prefix, feature gates.
    V3_6,
    /// 3.7: the `experimental-*` options are gone.
    V3_7,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Line::V3_5 => "3.5",
            Line::V3_6 => "3.6",
            Line::V3_7 => "3.7",
        })
    }
}

/// From one line to the next, and back (rule D24).
#[derive(Clone, Copy, Debug)]
pub struct Hop {
    /// The older line.
    pub from: Line,
    /// The oldest patch of it that etcd's own documentation lets go to the next line. Nothing older gets the data back: it could
    /// go nowhere from there.
    pub patch: u16,
    /// The next line.
    pub to: Line,
}

/// Rule D21; the patches are those of etcd's upgrade guides for 3.6 and 3.7.
pub const HOPS: [Hop; 2] = [
    Hop {
        from: Line::V3_5,
        patch: 32,
        to: Line::V3_6,
    },
    Hop {
        from: Line::V3_6,
        patch: 11,
        to: Line::V3_7,
    },
];

/// An etcd 3.6 whose log has requests of the v2 kind writes a raft snapshot after so many entries, and is rid of them.
/// etcd's own advice is 1 and one more restart (its guide for 3.6); a hundred cost the disk little until the next start.
pub const SHORT_LOG: u32 = 100;

/// What this operator knows of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// No reason against it is known. A newer patch of a known line counts as supported.
    Supported,
    /// Runs, and a newer patch of its line should replace it, for the reason named.
    Warn(&'static str),
    /// Known to lose or corrupt acknowledged data: no cluster is born with it.
    NeverCreate(&'static str),
    /// A line older than 3.5: this operator renders no configuration for it.
    TooOld,
    /// A line newer than this operator, or one that never was.
    Unknown,
}

struct Bug {
    line: Line,
    first: u16,
    last: u16,
    loses_data: bool,
    what: &'static str,
}

const fn bug(line: Line, first: u16, last: u16, loses_data: bool, what: &'static str) -> Bug {
    Bug {
        line,
        first,
        last,
        loses_data,
        what,
    }
}

/// etcd's changelogs and post-mortems (reference table "bad versions", rule D26). Worst first
/// within a line: the first match is the one shown.
const BUGS: &[Bug] = &[
    bug(
        Line::V3_5,
        0,
        2,
        true,
        "3.5.0-3.5.2 silently corrupt data after a crash (fixed in 3.5.3)",
    ),
    bug(
        Line::V3_5,
        3,
        4,
        true,
        "a single member of 3.5.4 or older loses acknowledged writes in a crash (etcd#14370, fixed in 3.5.5)",
    ),
    bug(
        Line::V3_5,
        5,
        5,
        true,
        "3.5.5 and older corrupt revisions when a crash meets defragmentation (fixed in 3.5.6)",
    ),
    bug(
        Line::V3_5,
        6,
        13,
        true,
        "3.5.13 and older can move the revision backwards after a crash in compaction (fixed in 3.5.14)",
    ),
    bug(
        Line::V3_5,
        14,
        16,
        true,
        "3.5.16 and older can keep half a transaction (fixed in 3.5.17)",
    ),
    bug(
        Line::V3_5,
        17,
        22,
        true,
        "3.5.22 and older can corrupt data when a snapshot meets defragmentation (fixed in 3.5.23)",
    ),
    bug(
        Line::V3_5,
        23,
        27,
        false,
        "3.5.27 and older can serve stale reads after a pause (fixed in 3.5.28)",
    ),
    bug(
        Line::V3_5,
        28,
        31,
        false,
        "3.5.31 and older cannot be upgraded to 3.6 safely (etcd's upgrade guide asks for 3.5.32)",
    ),
    bug(
        Line::V3_5,
        32,
        32,
        false,
        "3.5.32 can be stopped by a TLS handshake (GHSA-6vch, fixed in 3.5.33)",
    ),
    bug(
        Line::V3_6,
        0,
        4,
        true,
        "3.6.0-3.6.4 can corrupt data when a snapshot meets defragmentation (fixed in 3.6.5)",
    ),
    bug(
        Line::V3_6,
        5,
        8,
        false,
        "3.6.8 and older can serve stale reads after a pause (fixed in 3.6.9)",
    ),
    bug(
        Line::V3_6,
        9,
        11,
        false,
        "3.6.11 and older can promote a learner silently (fixed in 3.6.12)",
    ),
    bug(
        Line::V3_6,
        12,
        13,
        false,
        "3.6.13 and older can be stopped by a TLS handshake (GHSA-6vch, fixed in 3.6.14)",
    ),
    bug(
        Line::V3_7,
        0,
        0,
        false,
        "3.7.0 can be stopped by a TLS handshake (GHSA-6vch, fixed in 3.7.1)",
    ),
];

/// What is known of `version`.
pub fn classify(version: Version) -> Class {
    let Some(line) = version.line() else {
        let oldest = Version::new(3, 5, 0);
        return if version < oldest {
            Class::TooOld
        } else {
            Class::Unknown
        };
    };
    let found = BUGS
        .iter()
        .find(|it| it.line == line && (it.first..=it.last).contains(&version.patch));
    match found {
        Some(bug) if bug.loses_data => Class::NeverCreate(bug.what),
        Some(bug) => Class::Warn(bug.what),
        None => Class::Supported,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_has_a_class() {
        let class = |text: &str| classify(text.parse().unwrap());
        assert!(matches!(class("3.4.45"), Class::TooOld));
        assert!(matches!(class("2.3.8"), Class::TooOld));
        assert!(matches!(class("3.8.0"), Class::Unknown));
        assert!(matches!(class("4.0.0"), Class::Unknown));
        assert!(matches!(class("3.5.4"), Class::NeverCreate(it) if it.contains("14370")));
        assert!(matches!(class("3.6.4"), Class::NeverCreate(_)));
        assert!(matches!(class("3.5.32"), Class::Warn(_)));
        assert_eq!(class("3.5.33"), Class::Supported);
        assert_eq!(class("3.6.14"), Class::Supported);
        assert_eq!(
            class("3.6.99"),
            Class::Supported,
            "a newer patch of a known line"
        );
        assert_eq!(class("3.7.1"), Class::Supported);
    }

    #[test]
    fn the_table_of_bugs_has_no_gap_and_no_overlap_in_a_line() {
        for line in [Line::V3_5, Line::V3_6, Line::V3_7] {
            let mut next = 0;
            for bug in BUGS.iter().filter(|it| it.line == line) {
                assert_eq!(bug.first, next, "{}", bug.what);
                assert!(bug.first <= bug.last);
                next = bug.last + 1;
            }
        }
    }

    #[test]
    fn only_three_numbers_are_a_version() {
        for text in [
            "",
            "3",
            "3.6",
            "3.6.x",
            "3.6.1.2",
            "3.6.-1",
            "3.6.+1",
            "3.6.99999",
            "latest",
        ] {
            assert_eq!(text.parse::<Version>(), Err(NotAVersion), "{text}");
        }
        assert_eq!("v3.6.16".parse(), Ok(Version::new(3, 6, 16)));
    }
}
