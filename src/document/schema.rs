//! A document against the schema of `deploy/crds.yaml`, the one that the API server uses.
//!
//! Every keyword that the file contains is understood here; a test fails when a new one appears.

use serde_json::Value as Json;

use super::Problem;
use super::node::{Node, Value};
use crate::api::{crd, formats};

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
    // No constraint on a host:
    "description",
    "default",
    "format",
    "x-kubernetes-validations",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
];

/// Keys of `metadata` that say something on a host; the others are the API server's.
const METADATA: &[&str] = &[
    "name",
    "namespace",
    "labels",
    "annotations",
    "creationTimestamp",
    "generation",
    "resourceVersion",
    "uid",
    "managedFields",
    "finalizers",
    "ownerReferences",
];

/// Checks the whole document.
pub(super) fn check(root: &Node, problems: &mut Vec<Problem>) {
    let Ok(crds) = serde_saphyr::from_str::<Json>(crd::CRDS_YAML) else {
        return; // tests/generated.rs holds the file to what the types generate
    };
    let schema = crds.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec");
    if let Value::Map(fields) = &root.value {
        for (key, line, _) in fields {
            let known = ["apiVersion", "kind", "metadata", "spec", "status"];
            if !known.contains(&key.as_str()) {
                problems.push(unknown_field("", key, *line, known.into_iter()));
            }
        }
    }
    if let Some(Node {
        value: Value::Map(fields),
        ..
    }) = root.get("metadata")
    {
        for (key, line, _) in fields
            .iter()
            .filter(|(key, ..)| !METADATA.contains(&key.as_str()))
        {
            problems.push(unknown_field(
                "metadata",
                key,
                *line,
                METADATA.iter().copied(),
            ));
        }
    }
    match (root.get("spec"), schema) {
        (Some(spec), Some(schema)) => check_node(spec, schema, "spec", problems),
        (None, _) => {
            problems.push(Problem {
                path: "spec".to_owned(),
                line: root.line,
                message: "is missing".to_owned(),
            });
        }
        (Some(_), None) => {}
    }
}

fn check_node(node: &Node, schema: &Json, path: &str, problems: &mut Vec<Problem>) {
    let text = |key: &str| schema.get(key).and_then(Json::as_str);
    let kind = text("type").unwrap_or_default();
    let mut wrong = |allowed: String| {
        problems.push(Problem {
            path: path.to_owned(),
            line: node.line,
            message: format!("found {}, allowed: {allowed}", node.value.describe()),
        });
    };
    match (&node.value, kind) {
        (Value::Null, _) => {} // not given
        (Value::Map(fields), "object") => check_map(node, fields, schema, path, problems),
        (Value::List(items), "array") => {
            check_count(
                items.len(),
                schema,
                ("minItems", "maxItems"),
                "items",
                &mut wrong,
            );
            if let Some(items_schema) = schema.get("items") {
                for (index, item) in items.iter().enumerate() {
                    check_node(item, items_schema, &format!("{path}[{index}]"), problems);
                }
            }
        }
        (Value::Text(it), "string") => check_text(it, schema, &mut wrong),
        (Value::Integer(it), "integer" | "number") => check_number(*it, schema, &mut wrong),
        (Value::Bool(_), "boolean") => {}
        (_, kind) => wrong(describe_type(kind, schema)),
    }
}

fn describe_type(kind: &str, schema: &Json) -> String {
    if let Some(Json::Array(values)) = schema.get("enum") {
        return one_of(values);
    }
    let pattern = schema
        .get("pattern")
        .and_then(Json::as_str)
        .and_then(formats::format_of);
    match (kind, pattern) {
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
) {
    let known = schema.get("properties").and_then(Json::as_object);
    let others = schema
        .get("additionalProperties")
        .filter(|it| it.is_object());
    for (key, line, field) in fields {
        match (known.and_then(|it| it.get(key)), others) {
            (Some(schema), _) | (None, Some(schema)) => {
                check_node(field, schema, &format!("{path}.{key}"), problems);
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
    let required = schema
        .get("required")
        .and_then(Json::as_array)
        .into_iter()
        .flatten();
    for key in required.filter_map(Json::as_str) {
        if node
            .get(key)
            .is_none_or(|it| matches!(it.value, Value::Null))
        {
            problems.push(Problem {
                path: format!("{path}.{key}"),
                line: node.line,
                message: "is missing".to_owned(),
            });
        }
    }
}

fn unknown_field<'a>(
    path: &str,
    key: &str,
    line: u64,
    known: impl Iterator<Item = &'a str>,
) -> Problem {
    let lower = key.to_lowercase();
    let nearest = known
        .map(|it| (strsim::osa_distance(&it.to_lowercase(), &lower), it))
        .min()
        .filter(|(distance, it)| *distance <= 1 + it.len() / 3);
    let message = match nearest {
        Some((_, name)) => format!("unknown field; did you mean {name}?"),
        None => "unknown field".to_owned(),
    };
    let path = if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    };
    Problem {
        path,
        line,
        message,
    }
}

fn check_count(
    count: usize,
    schema: &Json,
    (min, max): (&str, &str),
    unit: &str,
    wrong: &mut impl FnMut(String),
) {
    let limit = |key: &str| schema.get(key).and_then(Json::as_u64);
    if limit(min).is_some_and(|it| (count as u64) < it) {
        wrong(format!(
            "at least {} {unit}",
            limit(min).unwrap_or_default()
        ));
    }
    if limit(max).is_some_and(|it| (count as u64) > it) {
        wrong(format!("at most {} {unit}", limit(max).unwrap_or_default()));
    }
}

fn check_text(text: &str, schema: &Json, wrong: &mut impl FnMut(String)) {
    if let Some(Json::Array(values)) = schema.get("enum")
        && !values.iter().any(|it| it.as_str() == Some(text))
    {
        return wrong(one_of(values));
    }
    check_count(
        text.chars().count(),
        schema,
        ("minLength", "maxLength"),
        "characters",
        wrong,
    );
    let format = schema
        .get("pattern")
        .and_then(Json::as_str)
        .and_then(formats::format_of);
    if let Some(format) = format
        && !(format.accepts)(text)
    {
        wrong(format.allowed.to_owned());
    }
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
        let crds: Json = serde_saphyr::from_str(crd::CRDS_YAML).unwrap();
        let spec = crds
            .pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec")
            .unwrap();
        let mut seen = 0;
        walk(spec, &mut |key, value| {
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
