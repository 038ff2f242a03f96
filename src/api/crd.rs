//! The CustomResourceDefinition: the schema of the types, and the rules of [`super::rules`].
//!
//! `deploy/crds.yaml` is generated from here and a test proves it fresh. The binary carries the
//! file, not this code: the host's parser checks documents against the very schema that the API
//! server checks them against.

use kube::CustomResourceExt as _;
use serde_json::{Value, json};

use super::{EtcdCluster, rules};

/// `deploy/crds.yaml`.
pub const CRDS_YAML: &str = include_str!("../../deploy/crds.yaml");

/// The CRD as the types and rules say it.
pub fn generate() -> Value {
    let mut crd = serde_json::to_value(EtcdCluster::crd()).unwrap_or(Value::Null);
    let spec = crd.pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/spec");
    if let Some(Value::Object(spec)) = spec {
        let rules: Vec<Value> = rules::RULES
            .iter()
            .map(|it| match it.path {
                "" => json!({"rule": it.cel, "message": it.message}),
                path => json!({
                    "rule": it.cel,
                    "message": format!("spec.{path}: {}", it.message),
                    "fieldPath": format!(".{path}"),
                }),
            })
            .collect();
        spec.insert("x-kubernetes-validations".to_owned(), Value::Array(rules));
    }
    crd
}
