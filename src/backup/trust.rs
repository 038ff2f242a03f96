//! Whose snapshots a restore takes: whoever can write to a bucket or a stick must not decide over the next cluster.

use std::fmt;

use super::local::Entry;
use super::manifest::Manifest;
use crate::cluster::Timestamp;
use crate::spec::ClusterSpec;
use crate::tls::{Certificates, Signer};

/// In place of a key: what nobody has signed.
pub const UNSIGNED: &str = "unsigned";
/// Two machines' clocks, both set by a time source, are closer to each other.
const CLOCKS_DIFFER_SECONDS: i64 = 600;

/// Whose signatures count.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    own: Option<String>,
    pinned: Vec<String>,
    /// What a person has accepted for this time: keys, or [`UNSIGNED`].
    accepted: Vec<String>,
    /// None where the clock is not trusted: nothing is of the future then.
    now: Option<Timestamp>,
}

/// Why a snapshot's origin counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// This cluster's own key signed it.
    Own,
    /// A key of `backup.trustedSigners` signed it.
    Pinned,
    /// A person has accepted it for this time.
    Accepted,
}

/// Why it does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Distrust {
    /// It carries no signature, or one that does not hold.
    Unsigned,
    /// By another key than those that count.
    Unknown(String),
    /// Dated after now.
    Future(String),
}

impl fmt::Display for Distrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Distrust::Unsigned => f.write_str("carries no valid signature"),
            Distrust::Unknown(key) => write!(
                f,
                "is signed by {key}, which is neither this cluster's key nor in backup.trustedSigners"
            ),
            Distrust::Future(created) => {
                write!(f, "says that it was taken at {created}, after now")
            }
        }
    }
}

impl Trust {
    /// The key beside these certificates and those that the document pins.
    pub fn of(own: &Certificates, spec: &ClusterSpec, now: Option<Timestamp>) -> Self {
        let signers = spec.backup.iter().flat_map(|it| &it.trusted_signers);
        Trust {
            own: own.signer().as_ref().map(Signer::public),
            pinned: signers.map(ToString::to_string).collect(),
            accepted: Vec::new(),
            now,
        }
    }

    /// The cluster's own key, where this is a Pod that does not hold it.
    #[must_use]
    pub fn with_own(self, own: Option<String>) -> Self {
        Trust {
            own: own.or(self.own),
            ..self
        }
    }

    /// A person accepts these, too.
    #[must_use]
    pub fn accepting(self, words: &[String]) -> Self {
        let accepted = words.to_vec();
        Trust { accepted, ..self }
    }

    /// Whether what this key signed counts; `None`: nobody has signed it.
    pub fn signer(&self, key: Option<&str>) -> Result<Whose, Distrust> {
        let accepted = |word: &str| self.accepted.iter().any(|it| it == word);
        match key {
            Some(key) if accepted(key) => Ok(Whose::Accepted),
            Some(key) if self.own.as_deref() == Some(key) => Ok(Whose::Own),
            Some(key) if self.pinned.iter().any(|it| it == key) => Ok(Whose::Pinned),
            None if accepted(UNSIGNED) => Ok(Whose::Accepted),
            Some(key) => Err(Distrust::Unknown(key.to_owned())),
            None => Err(Distrust::Unsigned),
        }
    }

    /// Whether a snapshot counts of which only the signer and the time are known.
    pub fn signer_at(
        &self,
        key: Option<&str>,
        created: Option<Timestamp>,
    ) -> Result<Whose, Distrust> {
        let whose = self.signer(key)?;
        match created.filter(|it| whose != Whose::Accepted && self.is_future(*it)) {
            Some(at) => Err(Distrust::Future(at.to_string())),
            None => Ok(whose),
        }
    }

    fn is_future(&self, at: Timestamp) -> bool {
        self.now
            .is_some_and(|now| at.seconds_since(now) > CLOCKS_DIFFER_SECONDS)
    }

    /// Whether a snapshot with this manifest counts.
    pub fn judge(&self, manifest: &Manifest) -> Result<Whose, Distrust> {
        let created = manifest.created();
        let whose = self.signer_at(manifest.signer(), created)?;
        match &manifest.created {
            // A time that nobody can read is not before now.
            Some(text) if created.is_none() && whose != Whose::Accepted => {
                Err(Distrust::Future(text.clone()))
            }
            _ => Ok(whose),
        }
    }

    /// Whether a snapshot in a directory counts.
    pub fn counts(&self, entry: &Entry) -> bool {
        let manifest = entry.manifest.as_ref();
        manifest.is_ok_and(|it| self.judge(it).is_ok())
    }

    /// Whether retention counts what this key signed: where there is a key of the cluster's own, what others signed
    /// pushes nothing out, and is not removed either.
    pub fn keeps(&self, signer: Option<&str>) -> bool {
        self.own.is_none() || self.signer(signer).is_ok()
    }

    /// Those of a directory that count.
    pub fn counting(&self, entries: &[Entry]) -> Vec<Entry> {
        let counting = entries.iter().filter(|it| self.counts(it));
        counting.cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backup::manifest::tests::manifest;

    #[test]
    fn only_what_a_known_key_signed_before_now_counts() {
        let root = std::env::temp_dir().join(format!("trust-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        let key = |name: &str| {
            let certificates = Certificates::at(root.join(name));
            certificates
                .ensure_authorities("shop", Timestamp(0))
                .unwrap();
            certificates.signer().unwrap()
        };
        let (own, other) = (key("own"), key("other"));
        let taken = manifest().created().unwrap();
        let trust = |own: Option<&Signer>, pinned: &[&Signer], words: &[&str], now| Trust {
            own: own.map(Signer::public),
            pinned: pinned.iter().map(|it| it.public()).collect(),
            accepted: words.iter().map(|it| (*it).to_owned()).collect(),
            now,
        };
        let now = Some(taken);
        let ours = manifest().signed_by(Some(&own));
        let theirs = manifest().signed_by(Some(&other));
        let nobodys = manifest();
        let unknown = || Err(Distrust::Unknown(other.public()));
        let mine = trust(Some(&own), &[], &[], now);
        assert_eq!(mine.judge(&ours), Ok(Whose::Own));
        assert_eq!(mine.judge(&theirs), unknown());
        assert_eq!(mine.judge(&nobodys), Err(Distrust::Unsigned));
        let pinned = trust(None, &[&own], &[], now);
        assert_eq!(pinned.judge(&ours), Ok(Whose::Pinned));
        assert_eq!(pinned.judge(&theirs), unknown());
        // A box without a key and without a pin takes nothing by itself.
        let bare = trust(None, &[], &[], now);
        for it in [&ours, &theirs, &nobodys] {
            assert!(bare.judge(it).is_err());
        }
        let accepted = trust(Some(&own), &[], &[UNSIGNED], now);
        assert_eq!(accepted.judge(&nobodys), Ok(Whose::Accepted));
        assert_eq!(accepted.judge(&theirs), unknown());
        let accepted = trust(Some(&own), &[], &[&other.public()], now);
        assert_eq!(accepted.judge(&theirs), Ok(Whose::Accepted));
        assert_eq!(accepted.judge(&nobodys), Err(Distrust::Unsigned));
        // The signature of another manifest.
        let moved = Manifest {
            signed: ours.signed.clone(),
            ..Manifest {
                entries: 31,
                ..manifest()
            }
        };
        assert_eq!(mine.judge(&moved), Err(Distrust::Unsigned));
        for (early, whole) in [(600, true), (601, false)] {
            let early = trust(Some(&own), &[], &[], Some(Timestamp(taken.0 - early)));
            assert_eq!(early.judge(&ours).is_ok(), whole);
        }
        let early = trust(Some(&own), &[], &[&own.public()], Some(Timestamp(0)));
        assert_eq!(early.judge(&ours), Ok(Whose::Accepted), "a person says so");
        let clockless = trust(Some(&own), &[], &[], None);
        assert_eq!(clockless.judge(&ours), Ok(Whose::Own));
        std::fs::remove_dir_all(&root).unwrap();
    }
}
