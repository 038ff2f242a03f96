//! Rooms of one module do not import each other in a circle: each can be read without the ones above it.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Source, code, sources};

/// A room is a file right below a module, with the files below it.
type Room = (String, String);
type Imports = BTreeMap<Room, BTreeSet<Room>>;

/// The parts of a file's module path.
fn parts(path: &str) -> Vec<String> {
    let path = path.trim_start_matches("src/").trim_end_matches(".rs");
    path.split('/').map(str::to_owned).collect()
}

fn room(parts: &[String]) -> Option<Room> {
    Some((parts.first()?.clone(), parts.get(1)?.clone()))
}

/// Paths that begin with `crate::` or `super::`, groups of `use` written out.
fn paths(source: &Source) -> Vec<String> {
    let lines = code(source).lines();
    let text: String = lines
        .filter(|it| !it.trim_start().starts_with("//"))
        .collect();
    let mut found = Vec::new();
    for start in ["crate::", "super::"] {
        for (at, _) in text.match_indices(start) {
            let before = text[..at].chars().next_back();
            if before.is_none_or(|it| !it.is_alphanumeric() && it != '_' && it != ':') {
                written_out("", &text[at..], &mut found);
            }
        }
    }
    found
}

/// Adds the paths of `text`, which begins with one, and returns how far it reaches.
fn written_out(before: &str, text: &str, found: &mut Vec<String>) -> usize {
    let is_of_a_path = |it: char| it.is_alphanumeric() || it == '_' || it == ':';
    let end = text.find(|it| !is_of_a_path(it)).unwrap_or(text.len());
    let path = format!("{before}{}", &text[..end]);
    if !text[end..].starts_with('{') {
        found.push(path);
        return end;
    }
    let mut at = end + 1;
    while at < text.len() && !text[at..].starts_with('}') {
        let step = written_out(&path, &text[at..], found);
        at += step.max(1);
    }
    at + 1
}

/// The file that a path leads to, from the module `own`.
fn target(path: &str, own: &[String], modules: &BTreeSet<Vec<String>>) -> Option<Vec<String>> {
    let mut rest: Vec<String> = path.split("::").map(str::to_owned).collect();
    let mut whole = Vec::new();
    if rest[0] == "super" {
        whole = own.to_vec();
    }
    while matches!(rest.first().map(String::as_str), Some("crate" | "super")) {
        if rest.remove(0) == "super" {
            whole.pop();
        }
    }
    whole.extend(rest);
    while !whole.is_empty() && !modules.contains(&whole) {
        whole.pop();
    }
    Some(whole).filter(|it| !it.is_empty())
}

fn imports(sources: &[Source]) -> Imports {
    let modules: BTreeSet<Vec<String>> = sources.iter().map(|it| parts(&it.path)).collect();
    let mut imports = Imports::new();
    for source in sources {
        let own = parts(&source.path);
        let Some(from) = room(&own) else { continue };
        let reached = paths(source);
        let reached = reached
            .iter()
            .filter_map(|it| room(&target(it, &own, &modules)?));
        let beside = reached.filter(|it| it.0 == from.0 && *it != from).collect();
        imports
            .entry(from.clone())
            .or_default()
            .append(&mut { beside });
    }
    imports
}

/// A circle through `at`, if there is one.
fn circle(imports: &Imports, at: &Room, way: &mut Vec<Room>, seen: &mut BTreeSet<Room>) -> bool {
    if let Some(begin) = way.iter().position(|it| it == at) {
        way.drain(..begin);
        return true;
    }
    if !seen.insert(at.clone()) {
        return false;
    }
    way.push(at.clone());
    let next = imports.get(at).into_iter().flatten();
    for it in next {
        if circle(imports, it, way, seen) {
            return true;
        }
    }
    way.pop();
    false
}

#[test]
fn rooms_import_each_other_in_no_circle() {
    let imports = imports(&sources());
    assert!(imports.values().map(BTreeSet::len).sum::<usize>() > 50);
    let mut seen = BTreeSet::new();
    for it in imports.keys() {
        let mut way = Vec::new();
        assert!(
            !circle(&imports, it, &mut way, &mut seen),
            "each of these imports the next, and the last the first: {way:?}"
        );
    }
}

#[test]
fn a_circle_is_found() {
    let source = |path: &str, text: &str| Source {
        path: path.to_owned(),
        module: String::new(),
        text: text.to_owned(),
    };
    let sources = [
        source("src/a/one.rs", "use crate::a::{two::{B, C}, three};"),
        source("src/a/two.rs", "use std::fs;"),
        source("src/a/two/inner.rs", "use super::super::three::X;"),
        source("src/a/three.rs", "let x = super::one::A;"),
    ];
    let imports = imports(&sources);
    let mut way = Vec::new();
    let first = ("a".to_owned(), "one".to_owned());
    assert!(circle(&imports, &first, &mut way, &mut BTreeSet::new()));
    assert!(way.len() >= 2, "{way:?}");
}
