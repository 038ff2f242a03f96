//! The name of a snapshot: `MEMBER-WHEN-rREVISION-HASH` (rule A1).
//!
//! It begins with the member, whose name begins with the cluster's, so that clusters that share a
//! place tell their snapshots apart; by name they sort by time. Made under a clock that is not
//! trusted, it carries the boot instead (rule G3).

use std::fmt;
use std::str::FromStr;

use time::{Date, Month, OffsetDateTime, Time};

use crate::cluster::{Timestamp, is_dns_label};

/// The newest verified one, in the words of `bootstrap` and the command line.
pub const LATEST: &str = "latest";

/// When a snapshot was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// By a trusted clock.
    At(Timestamp),
    /// In this boot of the machine, by the first half of its id; nobody knew the time.
    Boot(u64),
}

/// The name of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotName {
    /// The member that it was taken from.
    pub member: String,
    /// When.
    pub when: When,
    /// etcd's revision of the data in it.
    pub revision: i64,
    /// etcdutl's hash of it.
    pub hash: u32,
}

impl SnapshotName {
    /// When it was made, by a trusted clock.
    pub fn created(&self) -> Option<Timestamp> {
        match self.when {
            When::At(it) => Some(it),
            When::Boot(_) => None,
        }
    }

    /// Whether it is of this cluster, by its member's name.
    pub fn is_of(&self, cluster: &str) -> bool {
        let place = self.member.strip_prefix(cluster);
        place
            .and_then(|it| it.strip_prefix('-'))
            .is_some_and(|it| it.parse::<u8>().is_ok())
    }
}

impl fmt::Display for SnapshotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-", self.member)?;
        match self.when {
            When::At(timestamp) => {
                let it =
                    OffsetDateTime::from_unix_timestamp(timestamp.0).map_err(|_| fmt::Error)?;
                let (year, month, day) = it.to_calendar_date();
                let (hour, minute, second) = it.to_hms();
                let month = u8::from(month);
                write!(
                    f,
                    "{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z"
                )?;
            }
            When::Boot(boot) => write!(f, "boot{boot:016x}")?,
        }
        write!(f, "-r{}-{:08x}", self.revision, self.hash)
    }
}

/// The fewest characters of a beginning that stand for a name.
const BEGINNING_MIN: usize = 4;
/// The most names that are told where a word fits several.
const TOLD_MAX: usize = 3;

/// A word fits several snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Several {
    /// What was said.
    pub word: String,
    /// All that it fits, by name.
    pub names: Vec<String>,
}

impl fmt::Display for Several {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (told, more) = self.names.split_at(self.names.len().min(TOLD_MAX));
        write!(
            f,
            "'{}' fits {} snapshots: {}",
            self.word,
            self.names.len(),
            told.join(", ")
        )?;
        if !more.is_empty() {
            write!(f, " and {} more", more.len())?;
        }
        f.write_str("; name one of them, or more of its name")
    }
}

impl std::error::Error for Several {}

/// The one of `names` that a person means by this word: its name; `r` and its revision; or the beginning of its name,
/// or of what follows the member's, of 4 characters at least. None: there is none.
///
/// # Errors
/// It fits several.
pub fn meant<'a>(
    word: &str,
    names: impl Iterator<Item = &'a SnapshotName>,
) -> Result<Option<&'a SnapshotName>, Several> {
    let mut fitting: Vec<(String, &SnapshotName)> = Vec::new();
    for name in names {
        let whole = name.to_string();
        if whole == word {
            return Ok(Some(name));
        }
        let own = &whole[name.member.len() + 1..];
        let begins =
            word.len() >= BEGINNING_MIN && (whole.starts_with(word) || own.starts_with(word));
        let revision = word.strip_prefix('r').and_then(|it| it.parse().ok());
        if begins || revision == Some(name.revision) {
            fitting.push((whole, name));
        }
    }
    // The same one may lie at several places.
    fitting.sort_by(|one, other| one.0.cmp(&other.0));
    fitting.dedup_by(|one, other| one.0 == other.0);
    match fitting.as_slice() {
        [] => Ok(None),
        [(_, name)] => Ok(Some(name)),
        _ => Err(Several {
            word: word.to_owned(),
            names: fitting.into_iter().map(|it| it.0).collect(),
        }),
    }
}

/// It is no name of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a name of a snapshot such as shop-0-20261121T131500Z-r1234-9f3ab2c1")]
pub struct NotAName;

impl FromStr for SnapshotName {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        let mut parts = text.rsplitn(4, '-');
        let mut next = || parts.next().ok_or(NotAName);
        let (hash, revision, when, member) = (next()?, next()?, next()?, next()?);
        let when = match when.strip_prefix("boot") {
            Some(boot) => When::Boot(u64::from_str_radix(boot, 16).map_err(|_| NotAName)?),
            None => When::At(parse_time(when).ok_or(NotAName)?),
        };
        let revision = revision.strip_prefix('r').ok_or(NotAName)?;
        let name = SnapshotName {
            member: member.to_owned(),
            when,
            revision: revision.parse().map_err(|_| NotAName)?,
            hash: u32::from_str_radix(hash, 16).map_err(|_| NotAName)?,
        };
        // Only what this code writes is a name of ours.
        (is_dns_label(member) && name.to_string() == text)
            .then_some(name)
            .ok_or(NotAName)
    }
}

/// `20261121T131500Z`.
fn parse_time(text: &str) -> Option<Timestamp> {
    if text.len() != 16 || !text.is_ascii() || &text[8..9] != "T" || !text.ends_with('Z') {
        return None;
    }
    let two = |at: usize| text[at..at + 2].parse::<u8>().ok();
    let month = Month::try_from(two(4)?).ok()?;
    let date = Date::from_calendar_date(text[..4].parse().ok()?, month, two(6)?).ok()?;
    let time = Time::from_hms(two(9)?, two(11)?, two(13)?).ok()?;
    Some(Timestamp(
        date.with_time(time).assume_utc().unix_timestamp(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_means_one_snapshot_or_none_and_several_are_told() {
        let all = [
            "shop-0-20261121T131500Z-r1234-9f3ab2c1",
            "shop-0-20261122T131500Z-r1240-00000001",
            "shop-0-boot78586e7d23c142a2-r6-aadf92be",
            "shop-0-boot78586e7d23c142a2-r60-aadf92be",
            "shop-1-20261123T131500Z-r1240-00000001",
        ];
        let names: Vec<SnapshotName> = all.iter().map(|it| it.parse().unwrap()).collect();
        let means = |word: &str| {
            let found = meant(word, names.iter().chain(&names))?;
            Ok::<_, Several>(
                found.map(|it| all.iter().position(|name| *name == it.to_string()).unwrap()),
            )
        };
        for (word, expected) in [
            (all[0], Some(0)),
            ("r1234", Some(0)),
            ("r6", Some(2)),
            ("r60", Some(3)),
            ("20261121", Some(0)),
            ("20261122T", Some(1)),
            ("shop-0-20261121", Some(0)),
            ("shop-1", Some(4)),
            ("boot78586e7d23c142a2-r60", Some(3)),
            ("r7", None),
            ("r", None),
            ("r-6", None),
            ("", None),
            ("sho", None),
            ("hop-0", None),
            ("latest", None),
            ("shop-0-20261121T131500Z-r1234-9f3ab2c10", None),
        ] {
            assert_eq!(means(word), Ok(expected), "{word}");
        }
        for (word, count) in [
            ("shop", 5),
            ("2026", 3),
            ("r1240", 2),
            ("boot78586e7d23c142a2-r6", 2),
        ] {
            let told = means(word).unwrap_err();
            assert_eq!(told.names.len(), count, "{word}");
        }
        let told = |word| means(word).unwrap_err().to_string();
        assert_eq!(
            told("r1240"),
            format!(
                "'r1240' fits 2 snapshots: {}, {}; name one of them, or more of its name",
                all[1], all[4]
            )
        );
        assert!(
            told("shop").contains(&format!("{} and 2 more;", all[2])),
            "{}",
            told("shop")
        );
    }

    #[test]
    fn a_name_reads_back_as_itself_and_nothing_else_does() {
        for text in [
            "shop-0-20261121T131500Z-r1234-9f3ab2c1",
            "my-shop-2-boot00ab34cd00ab34cd-r1-00000000",
        ] {
            let name: SnapshotName = text.parse().unwrap();
            assert_eq!(name.to_string(), text);
        }
        for text in [
            "",
            "shop-0",
            "shop-0-20261121T131500Z-r1234",
            "shop-0-20261321T131500Z-r1234-9f3ab2c1",
            "shop-0-20261121T131500Z-r01234-9f3ab2c1",
            "shop-0-20261121T131500Z-r1234-9F3AB2C1",
            "../shop-0-20261121T131500Z-r1234-9f3ab2c1",
            "Shop-0-20261121T131500Z-r1234-9f3ab2c1",
            "shop-0-20261121T131500Z-r1234-9f3ab2c1.db",
            "snapshot-pi-1700000000",
        ] {
            assert_eq!(text.parse::<SnapshotName>(), Err(NotAName), "{text}");
        }
    }

    #[test]
    fn clusters_whose_names_begin_alike_are_told_apart() {
        let name: SnapshotName = "shop-0-0-20261121T131500Z-r1-00000000".parse().unwrap();
        assert!(name.is_of("shop-0"));
        assert!(!name.is_of("shop"));
    }
}
