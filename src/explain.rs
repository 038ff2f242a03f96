//! What a reason means: one table, the page `src/explain/troubleshooting.md`, which is read by people as it is
//! and by `etcd-operator explain`. `tests/tidy` finds a reason that has no entry.

use std::collections::BTreeSet;

use serde::Serialize;

const PAGE: &str = include_str!("explain/troubleshooting.md");
const HEADING: &str = "## ";

/// A reason, explained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The word of status, an Event, an alert.
    pub reason: &'static str,
    /// Where it is met.
    pub kinds: Vec<&'static str>,
    /// What is the case.
    pub means: String,
    /// What the operator does by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator: Option<String>,
    /// What a person does next.
    pub you: String,
    /// What the operator never does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub never: Option<String>,
    /// Words of the messages that have this reason.
    #[serde(skip)]
    pub says: Vec<Says>,
}

/// Words of a message; `...` stands for what differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Says(String);

impl Says {
    /// How many characters of a message these words explain; 0: it has them not, or in another order.
    fn weight(&self, message: &str) -> usize {
        let (mut rest, mut weight) = (message, 0);
        for part in self.0.split("...").map(str::trim) {
            let Some((_, after)) = rest.split_once(part) else {
                return 0;
            };
            rest = after;
            weight += part.len();
        }
        weight
    }
}

/// What the kinds of the page are, in the order in which a person looks for them. Each reason stands in the first of its kinds.
pub const KINDS: [(&str, &str); 9] = [
    ("Type", "Types of conditions"),
    ("Refusal", "Why no etcd is started"),
    ("Hold", "Why the operator takes no further step"),
    ("Diagnosis", "What preflight and the start of etcd find"),
    ("Host", "What the host needs"),
    ("Condition", "What conditions say"),
    ("Request", "How backups and restores stand"),
    ("Alert", "Alerts"),
    ("Event", "Events"),
];

/// All of them, in alphabetical order.
pub fn entries() -> impl Iterator<Item = Explanation> {
    let mut parts = PAGE.split("\n## ");
    parts.next(); // what the page is
    parts.filter_map(parse)
}

/// What a text that a person gives is about.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// It names this one, however it is written.
    Named(Explanation),
    /// A message: this one is most like it, and then these.
    Like(Explanation, Vec<&'static str>),
    /// None; these have a similar name.
    None(Vec<&'static str>),
}

/// Characters of a message that are looked at; the rest of a longer one says nothing new.
const MESSAGE_MAX: usize = 4096;
/// A message is like an entry that has words of this weight in common with it: three that few others have.
const WEIGHT_MIN: f64 = 9.0;
/// Words of etcd, of its clients and of the kernel, and the reason under which this page speaks of them.
const OTHERS_WORDS: &[(&str, &str)] = &[
    ("no space left on device", "DiskFull"),
    ("database space exceeded", "NoSpace"),
    ("certificate has expired", "Expired"),
    ("certificate is not yet valid", "NotYetValid"),
    (
        "certificate signed by unknown authority",
        "AuthorityReplaced",
    ),
    ("etcdserver: no leader", "NoLeader"),
    ("etcdserver: request timed out", "QuorumLost"),
    ("context deadline exceeded", "NoAnswer"),
    ("connection refused", "NoAnswer"),
    ("crc mismatch", "WalDamaged"),
    ("address already in use", "PortTaken"),
    ("cannot assign requested address", "AddressGone"),
    ("read-only file system", "FilesystemReadOnly"),
    ("exec format error", "BinaryWrongArchitecture"),
];
/// Fewer characters of a message than these may stand in another one, too.
const SAYS_MIN: usize = 18;
/// Entries that are named beside the one that is most like a message.
const OTHERS: usize = 3;

/// What is meant by the name of a reason, of a condition or of an alert, or by a whole message.
pub fn find(text: &str) -> Found {
    let end = text
        .char_indices()
        .nth(MESSAGE_MAX)
        .map_or(text.len(), |it| it.0);
    let text = text[..end].trim();
    let wanted = text.to_lowercase();
    let all: Vec<Explanation> = entries().collect();
    let named = |name: &str| {
        all.iter()
            .find(|it| it.reason.to_lowercase() == name)
            .cloned()
    };
    // `DiskFull`, and also "DiskFull." and disk full.
    let bare: String = wanted.chars().filter(|it| it.is_alphanumeric()).collect();
    if let Some(it) = named(&bare) {
        return Found::Named(it);
    }
    if text.contains(' ') {
        let weight = |it: &Explanation| it.says.iter().map(|it| it.weight(&wanted)).max();
        let weighed = all.iter().map(|it| (weight(it).unwrap_or(0), it));
        let (weight, said) = weighed.max_by_key(|it| it.0).unzip();
        let told = reason_in(text, &all)
            .or_else(|| said.filter(|_| weight >= Some(SAYS_MIN)))
            .or_else(|| others_words(&wanted, &all))
            .or_else(|| {
                all.iter()
                    .find(|it| is_type(it) && wanted.contains(&it.reason.to_lowercase()))
            });
        return match (told, said.filter(|_| weight > Some(0))) {
            (Some(it), _) => Found::Named(it.clone()),
            (None, Some(it)) => Found::Like(it.clone(), Vec::new()),
            (None, None) => most_like(&wanted, &all),
        };
    }
    let alike = |it: &&Explanation| {
        if wanted.is_empty() {
            return false;
        }
        let name = it.reason.to_lowercase();
        name.contains(&wanted) || (wanted.len() > 3 && wanted.contains(&name))
    };
    Found::None(all.iter().filter(alike).map(|it| it.reason).collect())
}

/// The reason that a message names: in a line of a log behind its key, and before the condition that it is of.
fn reason_in<'a>(text: &str, all: &'a [Explanation]) -> Option<&'a Explanation> {
    let named = |name: &str| all.iter().find(|it| it.reason.eq_ignore_ascii_case(name));
    let word = |it: &str| !it.is_empty() && it.chars().all(char::is_alphanumeric);
    let keys = ["reason=", "hold="];
    let of_key = |it: &str| {
        keys.iter()
            .find_map(|key| it.strip_prefix(key))
            .and_then(named)
    };
    let of_log = text.split_whitespace().find_map(of_key);
    // A reason is one word with a capital within; words such as "valid" and "waits" are only words.
    let is_reason = |it: &&str| word(it) && it.chars().skip(1).any(char::is_uppercase);
    let words = text
        .split(|it: char| !it.is_alphanumeric())
        .filter(is_reason);
    let found: Vec<&Explanation> = words.filter_map(named).collect();
    let other = found.into_iter().find(|it| !is_type(it));
    // Or it has one, and its message behind it.
    let before = |it: &str| {
        let name = it
            .strip_suffix(':')
            .filter(|it| it.starts_with(char::is_uppercase));
        name.and_then(named).filter(|it| !is_type(it))
    };
    // Or it is a row of status.
    let tokens: Vec<&str> = text.split_whitespace().collect();
    let of_row = |it: &[&str]| match it {
        [_, "True" | "False" | "Unknown", reason] => named(reason),
        _ => None,
    };
    of_log
        .or(other)
        .or_else(|| tokens.windows(3).find_map(of_row))
        .or_else(|| tokens.iter().copied().find_map(before))
}

/// Whether it is the type of a condition, which has reasons of its own.
fn is_type(it: &Explanation) -> bool {
    it.kinds.contains(&"Type")
}

/// The entry under which the page speaks of words of others.
fn others_words<'a>(wanted: &str, all: &'a [Explanation]) -> Option<&'a Explanation> {
    let (_, reason) = OTHERS_WORDS.iter().find(|it| wanted.contains(it.0))?;
    all.iter().find(|it| it.reason == *reason)
}

/// The entry that has most words in common with a message, each weighed by how few entries have it.
fn most_like(message: &str, all: &[Explanation]) -> Found {
    fn words(text: &str) -> BTreeSet<&str> {
        let all = text.split(|it: char| !it.is_alphabetic());
        all.filter(|it| it.len() > 2).collect()
    }
    let text = |it: &Explanation| format!("{} {}", it.means, it.you).to_lowercase();
    let texts: Vec<String> = all.iter().map(text).collect();
    let texts: Vec<BTreeSet<&str>> = texts.iter().map(|it| words(it)).collect();
    let count = |it: usize| f64::from(u32::try_from(it).unwrap_or(u32::MAX));
    let weighed = words(message).into_iter().map(|word| {
        let having = texts.iter().filter(|it| it.contains(word)).count();
        (word, (count(all.len()) / count(having.max(1))).ln())
    });
    let weighed: Vec<(&str, f64)> = weighed.collect();
    let weight = |text: &BTreeSet<&str>| {
        let common = weighed.iter().filter(|it| text.contains(it.0));
        common.map(|it| it.1).sum::<f64>()
    };
    let mut found: Vec<(f64, &Explanation)> = texts.iter().map(weight).zip(all).collect();
    found.sort_by(|one, other| other.0.total_cmp(&one.0));
    let mut found = found.into_iter().filter(|it| it.0 >= WEIGHT_MIN);
    match found.next() {
        Some((_, it)) => {
            let others = found.take(OTHERS).map(|it| it.1.reason);
            Found::Like(it.clone(), others.collect())
        }
        None => Found::None(Vec::new()),
    }
}

fn parse(text: &'static str) -> Option<Explanation> {
    let mut paragraphs = text.split("\n\n");
    let reason = paragraphs.next()?.trim_start_matches(HEADING).trim();
    let kinds = paragraphs.next()?.trim().trim_matches('*');
    let named: Vec<(&str, String)> = paragraphs
        .filter_map(|it| it.trim().split_once(": "))
        .map(|(name, words)| (name, words.split_whitespace().collect::<Vec<_>>().join(" ")))
        .collect();
    let field = |name: &str| {
        let mut all = named.iter().filter(|it| it.0 == name);
        all.next().map(|it| it.1.clone())
    };
    let says = field("Says").unwrap_or_default();
    Some(Explanation {
        reason,
        kinds: kinds.split(", ").collect(),
        means: field("Means")?,
        operator: field("The operator"),
        you: field("You")?,
        never: field("Never"),
        says: says
            .split("; ")
            .filter(|it| !it.is_empty())
            .map(|it| Says(it.trim_matches('`').to_lowercase()))
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who meets one of these wants to know everything.
    const WHOLE: [&str; 4] = ["Hold", "Refusal", "Diagnosis", "Alert"];

    #[test]
    fn each_entry_is_whole_and_in_its_place() {
        let all: Vec<Explanation> = entries().collect();
        assert_eq!(
            all.len(),
            PAGE.matches("\n## ").count(),
            "one cannot be read"
        );
        for it in &all {
            let is = |kind: &&str| KINDS.iter().any(|it| it.0 == *kind);
            let known = it.kinds.iter().all(is);
            assert!(
                known && !it.kinds.is_empty(),
                "{}: {:?}",
                it.reason,
                it.kinds
            );
            if it.kinds.iter().any(|it| WHOLE.contains(it)) {
                let whole = it.operator.is_some() && it.never.is_some();
                assert!(whole, "{}: The operator and Never", it.reason);
            }
        }
        let names: Vec<&str> = all.iter().map(|it| it.reason).collect();
        assert!(names.is_sorted_by(|a, b| a < b), "in alphabetical order");
    }

    #[test]
    fn a_reason_is_found_however_it_is_written() {
        let named = |text: &str| match find(text) {
            Found::Named(it) => it.reason,
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(named("diskfull"), "DiskFull");
        assert_eq!(named("available"), "Available");
        assert_eq!(named(" EtcdBackupOld "), "EtcdBackupOld");
        let pasted = "shop-0: SnapshotFailed: the backup worker does not say";
        assert_eq!(named(pasted), "SnapshotFailed");
        for typed in [
            "disk full",
            "disk-full",
            "DiskFull:",
            "\"DiskFull\".",
            "DISK FULL",
        ] {
            assert_eq!(named(typed), "DiskFull", "{typed}");
        }
        for (told, reason) in [
            (
                "2026-11-20T10:00:00Z WARN hold=QuorumLost cluster=shop",
                "QuorumLost",
            ),
            (
                "BackupHealthy is False: no space reason=SnapshotFailed",
                "SnapshotFailed",
            ),
            (
                "BackupHealthy  False  SnapshotFailed  no room",
                "SnapshotFailed",
            ),
            (
                "HostHealthy is False: 3 MiB are free reason=DiskFull",
                "DiskFull",
            ),
            (
                "CertificatesValid False Expired server: 3 days ago",
                "Expired",
            ),
            ("condition BackupHealthy is not as it was", "BackupHealthy"),
            ("etcd runs but does not serve yet", "Starting"),
            (
                "upgrade 3.6.15 -> 3.6.16: waits for shop-1, which does not serve",
                "Upgrading",
            ),
            (
                "etcd 3.7.0 does not serve the data, which no older line can open",
                "UpgradeStuck",
            ),
            (
                "a write failed: etcdserver: mvcc: database space exceeded",
                "NoSpace",
            ),
            (
                "etcd ended 3 times before it served: etcd says \"crc mismatch\", and its files were found sound",
                "CrashLoop",
            ),
        ] {
            assert_eq!(named(told), reason, "{told}");
        }
        assert!(matches!(find("Wal"), Found::None(it) if it.contains(&"WalDamaged")));
        for (words, reason) in OTHERS_WORDS {
            assert_eq!(named(&format!("error: {words} (1)")), *reason);
        }
        for nothing in ["nothing of the kind", "", " ", "???", "the of and"] {
            assert_eq!(find(nothing), Found::None(Vec::new()), "{nothing}");
        }
        let endless = "a word that says nothing ".repeat(50_000);
        assert_eq!(find(&endless), Found::None(Vec::new()));
    }

    /// Words of holds and refusals, as a person pastes them.
    #[test]
    fn a_pasted_message_finds_its_reason() {
        use crate::plan::Hold;
        for hold in [
            Hold::QuorumLost,
            Hold::Unreachable,
            Hold::ClaimDeleted,
            Hold::Terminating,
        ] {
            let message = format!("{hold}; next: {}", hold.next_step());
            let (first, others) = match find(&message) {
                Found::Like(first, others) => (first, others),
                Found::Named(it) => (it, Vec::new()),
                Found::None(_) => panic!("{message}"),
            };
            let found = first.reason == hold.reason() || others.contains(&hold.reason());
            assert!(found, "{message}: {} {others:?}", first.reason);
        }
    }
}
