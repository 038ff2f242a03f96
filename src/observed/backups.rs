//! What is known of snapshots.

use crate::cluster::{Detail, Timestamp};
use crate::spec::backup::{Backup, DESTINATIONS_MAX, PublicKey};
use crate::version::Version;

/// Snapshots that are told by name: as many as a person reads.
pub const NAMED_MAX: usize = 10;

/// In seconds.
const DAY: i64 = 86_400;

/// Snapshots, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts that do not exclude each other"
)]
pub struct Backups {
    /// Seconds until the next one is due. `None`: the document asks for none, or its schedule waits
    /// for a trusted clock.
    pub due_in: Option<u64>,
    /// Snapshots are being worked on.
    pub busy: bool,
    /// Somebody has asked for one, and nobody works on it yet.
    pub asked: bool,
    /// Another process takes what is due. This one passes on only what was asked for.
    pub elsewhere: bool,
    /// The public key with which this cluster signs them.
    pub signer: Option<PublicKey>,
    /// The newest one in the first destination that this cluster has signed.
    pub last: Option<SnapshotSeen>,
    /// The newest one that is verified.
    pub verified: Option<SnapshotSeen>,
    /// The newest ones in the first destination that this cluster has signed, by name, newest first.
    pub named: heapless::Vec<SnapshotNamed, NAMED_MAX>,
    /// How many there are, and their bytes.
    pub kept: (u32, u64),
    /// How long the last one took, verification included.
    pub took_milliseconds: Option<u64>,
    /// The last attempt failed.
    pub failed: Option<BackupFailure>,
    /// Seconds until another attempt.
    pub retry_in: u64,
    /// How many wait to be copied to another destination, and their bytes.
    pub queued: (u32, u64),
    /// The last copy failed.
    pub copy_failed: Option<BackupFailure>,
    /// Seconds since the first failed copy after a successful one. A restart loses this value, but
    /// not the age of the waiting snapshots.
    pub copy_failing: u64,
    /// Seconds until copies are tried again.
    pub copy_retry_in: u64,
    /// Seconds from the last attempt to the next one.
    pub copy_retry_every: u64,
    /// The document's destinations, in its order.
    pub destinations: heapless::Vec<DestinationSeen, DESTINATIONS_MAX>,
    /// When copies were last read back and found whole, for the destination where that is longest ago.
    pub copies_checked: Option<Timestamp>,
    /// There are copies in a destination of which none was ever read back.
    pub copies_unchecked: bool,
    /// Snapshots are being copied, or copies read back.
    pub copying: bool,
    /// When all that are kept were last checked; else when the first of them was.
    pub checked: Option<Timestamp>,
    /// Seconds until they are checked again after a failure.
    pub check_retry_in: u64,
    /// Why the last restore that only the document asked for has failed.
    pub restore_failed: Option<Detail>,
    /// Seconds until the operator retries it. `None`: it is not retried by itself, or it did not fail.
    pub restore_retry_in: Option<u64>,
}

impl Backups {
    /// Whether snapshots wait to be copied, or a copy is to be read back: as often as what is kept is checked.
    /// `now`: the time, if it is trusted.
    pub fn copy_due(&self, backup: &Backup, now: Option<Timestamp>) -> bool {
        if self.copying || self.copy_retry_in > 0 {
            return false;
        }
        let checked = |every, now| {
            let last = self.copies_checked;
            self.copies_unchecked || last.is_some_and(|it| due_again(it, every, now))
        };
        self.queued.0 > 0
            || backup
                .verify_every
                .zip(now)
                .is_some_and(|it| checked(it.0, it.1))
    }

    /// Whether what is kept was checked longer ago than the document asks; where it does not say how often,
    /// whether the newest one was never restored for a trial, which level 4 asks for. `now`: the time, if it is
    /// trusted.
    pub fn check_due(&self, backup: &Backup, now: Option<Timestamp>) -> bool {
        let Some(verified) = self.verified.filter(|_| self.check_retry_in == 0) else {
            return false;
        };
        let Some(every) = backup.verify_every else {
            return backup.verify_level >= 4 && verified.level < 4;
        };
        let due = |now| self.checked.is_none_or(|it| due_again(it, every, now));
        now.is_some_and(due)
    }
}

/// Whether what was checked then is to be checked again, every so many seconds. What is dated in the future by more
/// than a day was dated by a clock that was wrong, and counts as never.
pub fn due_again(last: Timestamp, every: u64, now: Timestamp) -> bool {
    let age = now.seconds_since(last);
    age < -DAY || u64::try_from(age).is_ok_and(|it| it >= every)
}

/// A snapshot that was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotSeen {
    /// The last revision in it.
    pub revision: i64,
    /// When it was taken, by a trusted clock.
    pub created: Option<Timestamp>,
    /// The level of verification that it reached.
    pub level: u8,
    /// Of its file.
    pub bytes: u64,
    /// Its age in seconds, where that is known.
    pub seconds: Option<u64>,
    /// The etcd that it was taken from, where that is known.
    pub version: Option<Version>,
}

/// A snapshot by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotNamed {
    /// As a restore names it.
    pub name: heapless::String<128>,
    /// What is known of it.
    pub seen: SnapshotSeen,
}

/// A destination of snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DestinationSeen {
    /// The destination as a command line names it.
    pub place: Detail,
    /// The newest verified snapshot of this cluster that is known to lie there.
    pub verified: Option<SnapshotSeen>,
    /// How many wait to be copied there, and their bytes.
    pub queued: (u32, u64),
    /// When the oldest of them was taken, by a trusted clock.
    pub waits_since: Option<Timestamp>,
    /// Seconds that the oldest one has waited; if its age is unknown, seconds that copying has failed.
    pub waits: u64,
    /// How many copies are gone from there that this operator did not remove, and the revision of the newest.
    pub vanished: Option<(u32, i64)>,
}

/// Why something about snapshots failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupFailure {
    /// One CamelCase word.
    pub reason: &'static str,
    /// For people.
    pub why: Detail,
}

impl BackupFailure {
    /// The reason for a failure that ends when the link to the destination comes back.
    pub const LINK_DOWN: &'static str = "LinkDown";
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::spec::ClusterSpec;

    const HOUR: i64 = 3600;

    fn spec(verify: &str) -> ClusterSpec {
        let text = format!(
            "apiVersion: etcd.edge-operator.io/v1alpha1\nkind: EtcdCluster\nmetadata: {{name: shop}}\n\
             spec:\n  backup: {{interval: 1h, verify: {verify}, destinations: [{{local: {{path: /a}}}}, {{local: {{path: /b}}}}]}}\n"
        );
        crate::document::parse(text.as_bytes()).unwrap()
    }

    fn kept(level: u8) -> Backups {
        Backups {
            verified: Some(SnapshotSeen {
                revision: 1,
                created: None,
                level,
                bytes: 1,
                seconds: None,
                version: None,
            }),
            ..Backups::default()
        }
    }

    #[test]
    fn what_is_kept_and_its_copies_are_checked_as_often_as_the_document_asks() {
        let spec = spec("{level: 3, every: 1d}");
        let backup = spec.backup.as_ref().unwrap();
        let at = |hour: i64| Timestamp(2_000_000_000 + hour * HOUR);
        let due = |last: Option<i64>, now: Option<i64>| {
            let seen = Backups {
                checked: last.map(at),
                copies_checked: last.map(at),
                copies_unchecked: last.is_none(),
                ..kept(3)
            };
            let both = (
                seen.check_due(backup, now.map(at)),
                seen.copy_due(backup, now.map(at)),
            );
            assert_eq!(both.0, both.1);
            let failed = Backups {
                check_retry_in: 1,
                copy_retry_in: 1,
                ..seen.clone()
            };
            let copying = Backups {
                copying: true,
                ..seen
            };
            assert!(!failed.check_due(backup, now.map(at)));
            assert!(!failed.copy_due(backup, now.map(at)));
            assert!(!copying.copy_due(backup, now.map(at)));
            both.0
        };
        assert!(!due(Some(0), Some(1)) && !due(Some(0), Some(23)) && due(Some(0), Some(24)));
        assert!(due(None, Some(0)), "never checked");
        assert!(!due(Some(40), Some(39)), "clocks differ a little");
        assert!(due(Some(40), Some(15)), "by a clock that was wrong");
        assert!(
            !due(None, None) && !due(Some(0), None),
            "nobody knows the time"
        );
        let none = Backups::default();
        assert!(!none.check_due(backup, Some(at(0))) && !none.copy_due(backup, Some(at(0))));
        let waits = Backups {
            queued: (1, 1),
            ..none
        };
        assert!(waits.copy_due(backup, None), "a copy waits for no clock");
    }

    #[test]
    fn what_was_never_tried_is_where_the_document_asks_for_it() {
        let asked = spec("{level: 4}");
        let asked = asked.backup.as_ref().unwrap();
        assert!(kept(3).check_due(asked, None) && !kept(4).check_due(asked, None));
        let less = spec("{level: 3}");
        assert!(!kept(3).check_due(less.backup.as_ref().unwrap(), None));
    }
}
