//! What a reason means: one table, the page `src/explain/troubleshooting.md`, which is read by people as it is
//! and by `etcd-operator explain`. `tests/tidy` finds a reason that has no entry.

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
}

/// All of them, in alphabetical order.
pub fn entries() -> impl Iterator<Item = Explanation> {
    let mut parts = PAGE.split("\n## ");
    parts.next(); // what the page is
    parts.filter_map(parse)
}

/// The one with this reason, however it is written; else those that are much like it.
pub fn find(reason: &str) -> Result<Explanation, Vec<&'static str>> {
    let wanted = reason.to_lowercase();
    let is = |it: &Explanation| it.reason.to_lowercase() == wanted;
    if let Some(it) = entries().find(is) {
        return Ok(it);
    }
    let alike = |it: &Explanation| {
        let name = it.reason.to_lowercase();
        name.contains(&wanted) || (wanted.len() > 3 && wanted.contains(&name))
    };
    Err(entries().filter(alike).map(|it| it.reason).collect())
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
    Some(Explanation {
        reason,
        kinds: kinds.split(", ").collect(),
        means: field("Means")?,
        operator: field("The operator"),
        you: field("You")?,
        never: field("Never"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [&str; 8] = [
        "Hold",
        "Refusal",
        "Condition",
        "Host",
        "Event",
        "Request",
        "Diagnosis",
        "Alert",
    ];
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
            let known = it.kinds.iter().all(|it| KINDS.contains(it));
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
        assert_eq!(find("diskfull").unwrap().reason, "DiskFull");
        assert!(find("Wal").unwrap_err().contains(&"WalDamaged"));
        assert!(find("nothing of the kind").unwrap_err().is_empty());
    }
}
