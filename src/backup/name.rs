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
