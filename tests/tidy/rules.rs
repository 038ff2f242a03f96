//! Every rule that a comment cites by number is explained in src/rules.md, and nothing else is.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A rule's letter and number, in the order of the page.
type Rule = (char, u8);

/// What may cite a rule.
const FOLDERS: &[&str] = &["src", "tests", "benches", "cross", "systemd", "deploy"];
/// The page itself, and the examples below.
const NOT_READ: &[&str] = &["src/rules.md", "tests/tidy/rules.rs"];

/// `D35` is a rule. `D`, `d35`, `D355` and `0xD35` are none.
fn rule(word: &str) -> Option<Rule> {
    let letter = word.chars().next().filter(char::is_ascii_uppercase)?;
    let digits = &word[1..];
    let is_number = (1..=2).contains(&digits.len())
        && !digits.starts_with('0')
        && digits.bytes().all(|it| it.is_ascii_digit());
    let number = digits.parse().ok().filter(|_| is_number)?;
    Some((letter, number))
}

/// The rules that follow the words "rule" and "rules": `rule D35`, `Rules B9, D1-D3 and G2 to G4`.
///
/// Signs between words do not count: a citation may go on in the comment's next line.
fn cited(text: &str) -> BTreeSet<Rule> {
    let mut found = BTreeSet::new();
    let (mut follows, mut ranges) = (false, false);
    let mut last: Option<Rule> = None;
    let text = text.replace('-', " to ");
    let words = text.split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
    for word in words.filter(|it| !it.is_empty()) {
        if word.eq_ignore_ascii_case("rule") || word.eq_ignore_ascii_case("rules") {
            (follows, ranges, last) = (true, false, None);
        } else if let Some(now) = rule(word).filter(|_| follows) {
            let first = last.filter(|_| ranges).unwrap_or(now);
            assert!(
                first.0 == now.0 && first.1 <= now.1,
                "{first:?} to {now:?} is no range"
            );
            found.extend((first.1..=now.1).map(|it| (now.0, it)));
            (ranges, last) = (false, Some(now));
        } else if follows && last.is_some() && word == "to" {
            ranges = true;
        } else {
            follows = follows && last.is_some() && word == "and";
        }
    }
    found
}

/// The rules that are cited, and a file that cites each.
fn citations() -> BTreeMap<Rule, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders: Vec<PathBuf> = FOLDERS.iter().map(|it| root.join(it)).collect();
    let mut citations = BTreeMap::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            let relative = path.strip_prefix(root).unwrap().display().to_string();
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
            } else if !NOT_READ.contains(&relative.as_str()) {
                // What is no text cites nothing.
                let text = std::fs::read_to_string(&path).unwrap_or_default();
                for it in cited(&text) {
                    citations.entry(it).or_insert_with(|| relative.clone());
                }
            }
        }
    }
    assert!(citations.len() > 50, "{citations:?}");
    citations
}

/// The rules that the page explains, in its order.
fn entries() -> Vec<Rule> {
    let page = include_str!("../../src/rules.md");
    let lines = page.lines().filter_map(|it| it.strip_prefix("- **"));
    let entries = lines.map(|it| {
        let (id, text) = it.split_once("** ").unwrap_or_else(|| panic!("{it}"));
        assert!(!text.trim().is_empty(), "{id} has no text");
        rule(id).unwrap_or_else(|| panic!("{id} is no rule's number"))
    });
    entries.collect()
}

#[test]
fn every_cited_rule_is_explained() {
    let entries = entries();
    let unexplained: Vec<_> = citations()
        .into_iter()
        .filter(|(it, _)| !entries.contains(it))
        .collect();
    assert!(
        unexplained.is_empty(),
        "without an entry in src/rules.md: {unexplained:?}"
    );
}

#[test]
fn every_explained_rule_is_cited() {
    let entries = entries();
    assert!(
        entries.is_sorted_by(|one, next| one < next),
        "src/rules.md is not in order, or explains a rule twice: {entries:?}"
    );
    let citations = citations();
    let uncited: Vec<_> = entries
        .iter()
        .filter(|it| !citations.contains_key(*it))
        .collect();
    assert!(uncited.is_empty(), "nothing cites {uncited:?}");
}

#[test]
fn citations_are_found_however_they_are_written() {
    let found = |text: &str| -> Vec<String> {
        let rules = cited(text).into_iter();
        rules.map(|(letter, it)| format!("{letter}{it}")).collect()
    };
    assert_eq!(found("// Rule D27: a quarter"), ["D27"]);
    assert_eq!(found("(rules B3, B11): what"), ["B3", "B11"]);
    assert_eq!(
        found("Rules B9, D1-D3 and A10."),
        ["A10", "B9", "D1", "D2", "D3"]
    );
    assert_eq!(found("/// Rules G2 to G4: no harm"), ["G2", "G3", "G4"]);
    assert_eq!(found("serves (rule\n    /// B13), and"), ["B13"]);
    assert_eq!(found("rule D5 of V3, B4 and key F1"), ["D5"]);
    assert!(found("rules of D5; rule_D5; a rule: D555; overrules D5").is_empty());
}
