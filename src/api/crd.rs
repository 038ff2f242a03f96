//! The CustomResourceDefinitions: the schemas of the types, and the rules of [`super::rules`].
//!
//! `deploy/crds.yaml` is generated from here and a test proves it fresh. The binary carries the
//! file, not this code: the host's parser checks documents against the very schema that the API
//! server checks them against.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;
use serde_json::{Value, json};

use super::{EtcdBackup, EtcdCluster, EtcdRestore, requests, rules};
use crate::version::{HOPS, Line};

/// `deploy/crds.yaml`.
pub const CRDS_YAML: &str = include_str!("../../deploy/crds.yaml");

/// The CRD of `EtcdCluster`, the one that the host's parser checks documents against.
pub fn of_clusters() -> &'static str {
    CRDS_YAML.split("\n---\n").next().unwrap_or(CRDS_YAML)
}

/// The CRDs as the types and rules say it: clusters first.
pub fn generate() -> [Value; 3] {
    let lasting = rules::LASTING.iter();
    let lasting = lasting.map(|(path, cel, message)| at_path(path, cel, message));
    let rules = rules::RULES.iter().chain(rules::OF_A_HOST).map(rule);
    let cluster: Vec<Value> = rules.chain(lasting).collect();
    let immutable = || json!({"rule": requests::IMMUTABLE.0, "message": requests::IMMUTABLE.1});
    let acknowledged =
        json!({"rule": requests::ACKNOWLEDGED.0, "message": requests::ACKNOWLEDGED.1});
    [
        finished(EtcdCluster::crd(), cluster, vec![hops()]),
        finished(EtcdBackup::crd(), vec![immutable()], Vec::new()),
        finished(
            EtcdRestore::crd(),
            vec![immutable(), acknowledged],
            Vec::new(),
        ),
    ]
}

/// What can be told of [`crate::version::HOPS`] from the version in force and the one that is asked for, once there is
/// data. Whether the new one loses data, or is unknown, the controller says.
fn hops() -> Value {
    let pairs = |from: Line, patch: u16, to: Line| {
        let [from, to] = [from, to].map(|it| it.to_string().replace("3.", ""));
        [
            format!("v[0][1] == {from} && v[0][2] >= {patch} && v[1][1] == {to}"),
            format!("v[0][1] == {to} && v[1][1] == {from} && v[1][2] >= {patch}"),
        ]
    };
    let pairs = HOPS.iter().flat_map(|it| pairs(it.from, it.patch, it.to));
    let pairs: Vec<String> = pairs.collect();
    let steps = HOPS.iter();
    let steps = steps.map(|it| format!("{}.{} or newer to {}", it.from, it.patch, it.to));
    let steps: Vec<String> = steps.collect();
    let numbers = "[self.status.version, self.spec.version].map(it, it.replace('v', '').split('.').map(n, int(n)))";
    json!({
        "rule": format!(
            "!has(self.spec.version) || has(oldSelf.spec.version) && oldSelf.spec.version == self.spec.version \
             || !has(self.status) || !has(self.status.version) || !has(self.status.clusterID) || [{numbers}].all(v, v[0][1] == v[1][1] || {})",
            pairs.join(" || ")
        ),
        "message": "spec.version: this version cannot follow the one that runs",
        "messageExpression": format!(
            "'spec.version: etcd ' + self.spec.version + ' cannot follow etcd ' + self.status.version \
             + ', which runs on; one line at a time, and back the same way: {}'",
            steps.join(", ")
        ),
        "fieldPath": ".spec.version",
    })
}

fn rule(it: &rules::Rule) -> Value {
    match it.path {
        "" => json!({"rule": it.cel, "message": it.message}),
        path => at_path(path, it.cel, it.message),
    }
}

fn at_path(path: &str, cel: &str, message: &str) -> Value {
    json!({
        "rule": cel,
        "message": format!("spec.{path}: {message}"),
        "fieldPath": format!(".{path}"),
    })
}

/// `rules`: of the specification; `whole`: of the object.
fn finished(crd: CustomResourceDefinition, rules: Vec<Value>, mut whole: Vec<Value>) -> Value {
    let mut crd = serde_json::to_value(crd).unwrap_or(Value::Null);
    let spec = crd.pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/spec");
    if let Some(Value::Object(spec)) = spec {
        spec.insert("x-kubernetes-validations".to_owned(), Value::Array(rules));
    }
    if let Some(schema) = crd.pointer_mut("/spec/versions/0/schema/openAPIV3Schema") {
        tidy(schema);
        whole.insert(0, json!({"rule": NAME_RULE, "message": NAME_MESSAGE}));
        schema["x-kubernetes-validations"] = Value::Array(whole);
    }
    crd
}

/// The cluster's name is part of the names of its members; [`super::convert`] says the same.
const NAME_RULE: &str = "size(self.metadata.name) <= 50 && self.metadata.name.matches('^[a-z0-9]([a-z0-9-]*[a-z0-9])?$')";
const NAME_MESSAGE: &str = "metadata.name: lower-case letters, digits and '-', at most 50";

/// Formats of numbers that an API server knows; it warns about others.
const FORMATS: [&str; 4] = ["int32", "int64", "float", "double"];

/// Says the same in Kubernetes' words: no formats that it does not know, limits of whole numbers
/// as whole numbers, and null for "not given" wherever a field may be left out.
fn tidy(schema: &mut Value) {
    let Value::Object(fields) = schema else {
        return;
    };
    let number = matches!(fields.get("type").and_then(Value::as_str), Some("integer"));
    if number {
        fields.retain(|key, it| {
            key != "format" || it.as_str().is_some_and(|it| FORMATS.contains(&it))
        });
        for key in ["minimum", "maximum"] {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "limits are small whole numbers"
            )]
            if let Some(limit) = fields.get_mut(key)
                && let Some(it) = limit.as_f64()
            {
                *limit = Value::from(it as i64);
            }
        }
    }
    let required = fields.get("required").cloned().unwrap_or_default();
    let required = required.as_array().cloned().unwrap_or_default();
    if let Some(Value::Object(properties)) = fields.get_mut("properties") {
        for (name, property) in properties {
            let given = required.iter().any(|it| it.as_str() == Some(name.as_str()));
            if !given && property.get("default").is_none() {
                property["nullable"] = Value::Bool(true);
            }
            tidy(property);
        }
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = fields.get_mut(key) {
            tidy(inner);
        }
    }
}
