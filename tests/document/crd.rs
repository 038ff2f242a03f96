//! `deploy/crds.yaml` as an API server wants it, and explained.

use etcd_operator::api::{crd, rules};
use serde_json::Value as Json;

/// Calls `visit` for each schema below, with its path; `in_list` for items of lists.
fn walk(schema: &Json, path: &str, visit: &mut dyn FnMut(&str, &Json)) {
    visit(path, schema);
    for (key, property) in schema["properties"].as_object().into_iter().flatten() {
        walk(property, &format!("{path}.{key}"), visit);
    }
    if let Some(items) = schema.get("items") {
        walk(items, &format!("{path}[]"), visit);
    }
    if let Some(values) = schema.get("additionalProperties") {
        walk(values, &format!("{path}{{}}"), visit);
    }
}

fn schema() -> Json {
    let crds: Json = serde_saphyr::from_str(crd::of_clusters()).unwrap();
    crds.pointer("/spec/versions/0/schema/openAPIV3Schema")
        .unwrap()
        .clone()
}

#[test]
fn the_schema_is_structural() {
    let known = [
        "additionalProperties",
        "default",
        "description",
        "enum",
        "format",
        "items",
        "maxItems",
        "maxLength",
        "maximum",
        "minItems",
        "minLength",
        "minimum",
        "nullable",
        "pattern",
        "properties",
        "required",
        "title",
        "type",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-list-type",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-validations",
    ];
    // Only these parts are checked by Kubernetes alone, when the Pod is made.
    let free = [
        ".spec.pod.affinity",
        ".spec.pod.topologySpreadConstraints[]",
    ];
    let types = ["array", "boolean", "integer", "object", "string"];
    let mut schemas = 0;
    walk(&schema(), "", &mut |path, schema| {
        schemas += 1;
        for key in schema.as_object().unwrap().keys() {
            assert!(known.contains(&key.as_str()), "{path}: {key}");
        }
        let kind = schema["type"].as_str().unwrap_or_default();
        assert!(types.contains(&kind), "{path}: type {kind:?}");
        if let Some(format) = schema.get("format").and_then(Json::as_str) {
            assert!(
                ["int32", "int64", "date-time"].contains(&format),
                "{path}: {format}"
            );
        }
        for limit in ["minimum", "maximum"]
            .iter()
            .filter_map(|it| schema.get(it))
        {
            assert!(limit.is_i64(), "{path}: {limit}");
        }
        assert!(
            kind != "object"
                || schema.get("properties").is_some()
                || schema.get("additionalProperties").is_some()
                || schema["x-kubernetes-preserve-unknown-fields"] == true && free.contains(&path),
            "{path}"
        );
        assert!(kind != "array" || schema.get("items").is_some(), "{path}");
    });
    assert!(schemas > 100, "{schemas}");
}

/// Kubernetes multiplies the cost of a rule by the largest list and the longest text it may meet,
/// and refuses a CRD above its limit.
#[test]
fn what_rules_touch_is_bounded() {
    walk(
        &schema()["properties"]["spec"],
        "spec",
        &mut |path, schema| {
            let bounded = match schema["type"].as_str() {
                Some("array") => schema["maxItems"].as_u64().is_some_and(|it| it <= 16),
                Some("string") => {
                    schema.get("enum").is_some()
                        || schema["maxLength"].as_u64().is_some_and(|it| it <= 512)
                        || path.ends_with("{}")
                }
                _ => true,
            };
            assert!(bounded, "{path}");
        },
    );
    for map in ["{}", ".pod."] {
        assert!(
            rules::RULES
                .iter()
                .chain(rules::OF_A_HOST)
                .all(|it| !it.cel.contains(map)),
            "a rule reads an unbounded map"
        );
    }
}

#[test]
fn each_rule_stands_in_the_schema_and_points_at_a_field() {
    let schema = schema();
    let spec = &schema["properties"]["spec"];
    let stand = spec["x-kubernetes-validations"].as_array().unwrap();
    let rules = rules::RULES.iter().chain(rules::OF_A_HOST);
    let rules = rules.map(|it| (it.path, it.cel, it.message));
    let all: Vec<_> = rules.chain(rules::LASTING).collect();
    assert_eq!(stand.len(), all.len());
    for ((path, cel, message), stands) in all.into_iter().zip(stand) {
        assert_eq!(stands["rule"], cel);
        assert!(stands["message"].as_str().unwrap().contains(message));
        assert!(!message.ends_with('.'), "{message}");
        let field = path.split('.').fold(spec, |it, key| &it["properties"][key]);
        assert!(field.is_object(), "{path}");
    }
}

/// `kubectl explain` shows these.
#[test]
fn each_field_is_explained() {
    let mut fields = 0;
    walk(&schema(), "", &mut |path, schema| {
        for (key, property) in schema["properties"].as_object().into_iter().flatten() {
            let text = property["description"].as_str().unwrap_or_default();
            // `.spec` and `.status` aside, these are all fields that a person meets.
            assert!(
                text.len() >= 9 && text.ends_with('.'),
                "{path}.{key}: {text:?}"
            );
            assert!(!text.to_lowercase().contains("todo"), "{path}.{key}");
            fields += 1;
        }
    });
    assert!(fields > 100, "{fields}");
}

#[test]
fn the_printed_columns_and_the_scale_read_fields_that_are_there() {
    let crds: Json = serde_saphyr::from_str(crd::of_clusters()).unwrap();
    let version = &crds["spec"]["versions"][0];
    let schema = &version["schema"]["openAPIV3Schema"];
    let columns = version["additionalPrinterColumns"]
        .as_array()
        .unwrap()
        .iter();
    let scale = version["subresources"]["scale"]
        .as_object()
        .unwrap()
        .values();
    let paths: Vec<&str> = columns
        .map(|it| &it["jsonPath"])
        .chain(scale)
        .filter_map(Json::as_str)
        .collect();
    assert!(paths.len() >= 7);
    for path in paths.iter().filter(|it| !it.starts_with(".metadata.")) {
        let plain = path.split("[?").next().unwrap();
        let field = plain[1..]
            .split('.')
            .fold(schema, |it, key| &it["properties"][key]);
        assert!(field.is_object(), "{path}");
    }
}
