//! What comes out of an old document, without what is refused: each part of it is told.

use serde_json::Value as Json;

use super::{Fate, Row};
use crate::document::node::Node;
use crate::document::{check_of_kubernetes, to_yaml};

/// The document without what [`check_of_kubernetes`] refuses, which is told; nothing where it refuses what must be there.
pub(super) fn sound(mut document: Json, root: &Node, report: &mut Vec<Row>) -> Option<Json> {
    let object = format!(
        "EtcdCluster {}",
        document["metadata"]["name"].as_str().unwrap_or_default()
    );
    loop {
        let text = to_yaml(&document).ok()?;
        let Err(problems) = check_of_kubernetes(text.as_bytes()) else {
            return Some(document);
        };
        let mut taken = false;
        for problem in problems.0 {
            let is_needed = ["metadata.name", "spec.version", "spec.size", "spec"]
                .contains(&problem.path.as_str());
            let away = if is_needed {
                None
            } else {
                take_away(&mut document, &problem.path)
            };
            let text = format!("{}: {}", problem.path, problem.message);
            let text = match &away {
                Some(it) if it.path != dotted(&problem.path) => {
                    format!("left out: {}, because of {text}", it.path)
                }
                Some(_) => format!("left out: {text}"),
                None => format!("no document of it: {text}"),
            };
            taken |= away.is_some();
            // What was told of it before is so no more.
            let is_of = |row: &&mut Row| {
                row.object == object
                    && row.fate == Fate::Mapped
                    && away
                        .as_ref()
                        .is_some_and(|it| is_within(&row.text, &it.path))
            };
            let mut is_told = false;
            for row in report.iter_mut().filter(is_of) {
                (row.fate, row.text) = (Fate::Decide, text.clone());
                is_told = true;
            }
            let row = Row {
                line: root.line_of(&problem.path),
                object: object.clone(),
                path: String::new(),
                fate: Fate::Decide,
                text,
            };
            if !is_told && !report.contains(&row) {
                report.push(row);
            }
            if away.is_some_and(|it| it.of_several) {
                break; // the other problems name places that are others now
            }
        }
        if !taken {
            return None;
        }
    }
}

/// Whether a text begins with this path, or with one below it.
fn is_within(text: &str, above: &str) -> bool {
    let rest = text.strip_prefix(above);
    rest.is_some_and(|it| it.is_empty() || it.starts_with(['.', '[', ':', ' ']))
}

/// A path with a dot before the number of an item, too.
fn dotted(path: &str) -> String {
    path.replace('[', ".").replace(']', "")
}

/// The keys to which a path leads, as far as it does: a key may have dots of its own.
fn led(document: &Json, path: &str) -> Vec<String> {
    let path = dotted(path);
    let parts: Vec<&str> = path.split('.').collect();
    let (mut at, mut led, mut done) = (document, Vec::new(), 0);
    while done < parts.len() {
        let longest = (done + 1..=parts.len()).rev().find_map(|end| {
            let key = parts[done..end].join(".");
            let next = match at {
                Json::Object(fields) => fields.get(&key),
                Json::Array(items) => key.parse().ok().and_then(|it: usize| items.get(it)),
                _ => None,
            };
            next.map(|it| (it, key, end))
        });
        let Some((next, key, end)) = longest else {
            break;
        };
        led.push(key);
        (at, done) = (next, end);
    }
    led
}

/// What was taken away.
struct Taken {
    /// Its path.
    path: String,
    /// It was one of several, so that the places of those after it are others now.
    of_several: bool,
}

/// Takes the field at a path away; where it is not there, the nearest above it, since something is missing in that.
fn take_away(document: &mut Json, path: &str) -> Option<Taken> {
    let led = led(document, path);
    let (key, above) = led.split_last().filter(|it| !it.1.is_empty())?;
    let mut at = document;
    for key in above {
        at = match at {
            Json::Array(items) => items.get_mut(key.parse::<usize>().ok()?)?,
            other => other.get_mut(key)?,
        };
    }
    let of_several = match at {
        Json::Object(fields) => fields.remove(key).map(|_| false),
        Json::Array(items) => {
            let place = key.parse().ok();
            let place = place.filter(|it: &usize| *it < items.len());
            place.map(|it| items.remove(it)).map(|_| true)
        }
        _ => None,
    }?;
    let path = led.join(".");
    Some(Taken { path, of_several })
}
