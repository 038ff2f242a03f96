//! A document against the schema of `deploy/crds.yaml`, the one that the API server uses.
//!
//! Every keyword that the file contains is understood here; a test fails when a new one appears.

use serde_json::Value as Json;

use super::Problem;
use super::node::{Node, Value, printable};
use crate::api::formats;

/// Keywords that constrain a value. The rest describes, or concerns only Kubernetes.
#[cfg(test)]
const UNDERSTOOD: &[&str] = &[
    "type",
    "properties",
    "required",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "items",
    "additionalProperties",
    "nullable",
    "x-kubernetes-preserve-unknown-fields",
    // No constraint on a host:
    "description",
    "default",
    "format",
    "x-kubernetes-validations",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
];

/// Keys of `metadata`: all that an export from an API server can carry. On a host `name` counts.
const METADATA: &[&str] = &[
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "name",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// The schema of `spec`.
pub struct Schema(Json);

/// The part of `deploy/crds.yaml` that a document is checked against, as `tests/generated.rs` writes
/// it: JSON is read in a tenth of the time, and every start reads it.
const SPEC: &str = include_str!("spec.schema.json");

impl Schema {
    /// Reads it from the binary.
    pub fn load() -> Self {
        // A test holds the file to what the types generate: it always parses. Were the schema null,
        // every document would be refused.
        Schema(serde_json::from_str(SPEC).unwrap_or_default())
    }
}

/// Checks the whole document. What is sound of its spec comes back, so that the rules can be
/// checked beside the first mistakes.
pub(super) fn check(root: &Node, schema: &Schema, problems: &mut Vec<Problem>) -> Option<Json> {
    let top = ["apiVersion", "kind", "metadata", "spec", "status"];
    unknown_fields(root, "", &top, problems);
    if let Some(metadata) = root.get("metadata") {
        unknown_fields(metadata, "metadata", METADATA, problems);
    }
    match root.get("spec") {
        Some(spec) if !spec.is_null() => check_node(spec, &schema.0, "spec", problems),
        spec => {
            problems.push(Problem {
                path: "spec".to_owned(),
                line: spec.map_or(0, |it| it.line),
                message: "is missing; spec: {} takes every default".to_owned(),
            });
            None
        }
    }
}

fn unknown_fields(node: &Node, path: &str, known: &[&str], problems: &mut Vec<Problem>) {
    if let Value::Map(fields) = &node.value {
        for (key, line, _) in fields {
            if !known.contains(&key.as_str()) {
                problems.push(unknown_field(path, key, *line, known.iter().copied()));
            }
        }
    }
}

/// The value as JSON if all of it is sound, a map also without the fields that are not.
fn check_node(node: &Node, schema: &Json, path: &str, problems: &mut Vec<Problem>) -> Option<Json> {
    let text = |key: &str| schema.get(key).and_then(Json::as_str);
    let kind = text("type").unwrap_or_default();
    let before = problems.len();
    let mut refuse = |why: String| {
        problems.push(Problem {
            path: path.to_owned(),
            line: node.line,
            message: format!("found {}{why}", node.value.describe()),
        });
    };
    if let Value::Text(text) = &node.value
        && let Some(format) = format_of(schema)
        && let Some(fault) = (format.fault)(text)
    {
        refuse(format!(": {fault}; allowed: {}", format.allowed));
    }
    let mut wrong = |allowed: String| refuse(format!(", allowed: {allowed}"));
    if let Some((found, allowed)) = check_count(&node.value, schema) {
        wrong(format!("{allowed}, here are {found}"));
    }
    match (&node.value, kind) {
        // The API server takes null for "not given" where the field may be left out.
        (Value::Null, _) if schema["nullable"] == true || schema.get("default").is_some() => {}
        // What only Kubernetes knows.
        (Value::Map(_), "object") if schema["x-kubernetes-preserve-unknown-fields"] == true => {}
        (Value::Map(fields), "object") => return check_map(node, fields, schema, path, problems),
        (Value::List(items), "array") => {
            for (index, item) in items.iter().enumerate() {
                let path = format!("{path}[{index}]");
                check_node(item, &schema["items"], &path, problems);
            }
        }
        (Value::Text(it), "string") => check_text(it, schema, &mut wrong),
        (Value::Integer(it), "integer" | "number") => check_number(*it, schema, &mut wrong),
        (Value::Bool(_), "boolean") => {}
        (_, kind) => wrong(describe_type(kind, schema)),
    }
    (problems.len() == before).then(|| node.to_json())
}

fn describe_type(kind: &str, schema: &Json) -> String {
    if let Some(Json::Array(values)) = schema.get("enum") {
        return format!("{}, in quotes", one_of(values));
    }
    match (kind, format_of(schema)) {
        (_, Some(format)) => format!("{}, in quotes", format.allowed),
        ("object", _) => "a map".to_owned(),
        ("array", _) => "a list".to_owned(),
        ("boolean", _) => "true or false".to_owned(),
        ("integer", _) => "a whole number".to_owned(),
        ("string", _) => "text, in quotes if it looks like a number".to_owned(),
        (other, _) => other.to_owned(),
    }
}

fn one_of(values: &[Json]) -> String {
    let names: Vec<&str> = values.iter().filter_map(Json::as_str).collect();
    format!("one of {}", names.join(", "))
}

fn check_map(
    node: &Node,
    fields: &[(String, u64, Node)],
    schema: &Json,
    path: &str,
    problems: &mut Vec<Problem>,
) -> Option<Json> {
    let known = schema.get("properties").and_then(Json::as_object);
    let others = schema
        .get("additionalProperties")
        .filter(|it| it.is_object());
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Json::as_array)
        .into_iter()
        .flatten()
        .filter_map(Json::as_str)
        .collect();
    let mut sound = serde_json::Map::new();
    for (key, line, field) in fields {
        match (known.and_then(|it| it.get(key)), others) {
            (Some(_), _) if field.is_null() && required.contains(&key.as_str()) => {}
            (Some(schema), _) | (None, Some(schema)) => {
                let path = format!("{path}.{}", printable(key));
                match check_node(field, schema, &path, problems) {
                    None | Some(Json::Null) => {}
                    Some(value) => drop(sound.insert(key.clone(), value)),
                }
            }
            (None, None) => {
                let names = known
                    .into_iter()
                    .flat_map(serde_json::Map::keys)
                    .map(String::as_str);
                problems.push(unknown_field(path, key, *line, names));
            }
        }
    }
    for key in &required {
        if node.get(key).is_none_or(Node::is_null) {
            problems.push(Problem {
                path: format!("{path}.{key}"),
                line: node.line,
                message: "is missing".to_owned(),
            });
        }
    }
    let complete = required.iter().all(|it| sound.contains_key(*it));
    complete.then_some(Json::Object(sound))
}

fn unknown_field<'a>(
    path: &str,
    key: &str,
    line: u64,
    known: impl Iterator<Item = &'a str>,
) -> Problem {
    let lower = key.to_lowercase();
    let nearest = known
        .filter(|it| lower.len() < 2 * it.len())
        .map(|it| (strsim::osa_distance(&it.to_lowercase(), &lower), it))
        .min()
        .filter(|(distance, it)| *distance <= 1 + it.len() / 3);
    let message = match nearest {
        Some((_, name)) => format!("unknown field; did you mean {name}?"),
        None => "unknown field".to_owned(),
    };
    let key = printable(key);
    let path = if path.is_empty() {
        key
    } else {
        format!("{path}.{key}")
    };
    Problem {
        path,
        line,
        message,
    }
}

/// How many there are and how many may be, where that is a mistake.
fn check_count(value: &Value, schema: &Json) -> Option<(usize, String)> {
    let (count, min, max, unit) = match value {
        Value::List(items) => (items.len(), "minItems", "maxItems", "items"),
        Value::Text(text) => (text.chars().count(), "minLength", "maxLength", "characters"),
        _ => return None,
    };
    let limit = |key: &str| schema.get(key).and_then(Json::as_u64);
    if let Some(least) = limit(min).filter(|it| (count as u64) < *it) {
        return Some((count, format!("at least {least} {unit}")));
    }
    let most = limit(max).filter(|it| (count as u64) > *it)?;
    Some((count, format!("at most {most} {unit}")))
}

fn check_text(text: &str, schema: &Json, wrong: &mut impl FnMut(String)) {
    if let Some(Json::Array(values)) = schema.get("enum")
        && !values.iter().any(|it| it.as_str() == Some(text))
    {
        wrong(one_of(values));
    }
}

fn format_of(schema: &Json) -> Option<&'static formats::Format> {
    formats::format_of(schema.get("pattern")?.as_str()?)
}

fn check_number(number: i128, schema: &Json, wrong: &mut impl FnMut(String)) {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "limits in the schema are small whole numbers"
    )]
    let limit = |key: &str| schema.get(key).and_then(Json::as_f64).map(|it| it as i128);
    let (min, max) = (limit("minimum"), limit("maximum"));
    if min.is_some_and(|it| number < it) || max.is_some_and(|it| number > it) {
        match (min, max) {
            (Some(min), Some(max)) => wrong(format!("{min} to {max}")),
            (Some(min), None) => wrong(format!("at least {min}")),
            (_, max) => wrong(format!("at most {}", max.unwrap_or_default())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(schema: &Json, visit: &mut dyn FnMut(&str, &Json)) {
        let Json::Object(fields) = schema else { return };
        for (key, value) in fields {
            visit(key, value);
            match key.as_str() {
                "properties" => value
                    .as_object()
                    .unwrap()
                    .values()
                    .for_each(|it| walk(it, visit)),
                "items" | "additionalProperties" => walk(value, visit),
                _ => {}
            }
        }
    }

    #[test]
    fn every_keyword_and_every_pattern_of_the_schema_is_understood() {
        let Schema(spec) = Schema::load();
        let mut seen = 0;
        walk(&spec, &mut |key, value| {
            assert!(UNDERSTOOD.contains(&key), "the schema uses {key}");
            if key == "pattern" {
                assert!(
                    formats::format_of(value.as_str().unwrap()).is_some(),
                    "{value}"
                );
                seen += 1;
            }
        });
        assert!(seen > 10);
    }
}
