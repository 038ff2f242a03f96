//! Committed files equal what the code generates. `UPDATE_EXPECT=1 cargo test --test generated`
//! rewrites them.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test"
)]

use std::path::Path;

fn assert_fresh(file: &str, generated: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::fs::read_to_string(&path).unwrap_or_default() == generated {
        return;
    }
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, generated).unwrap();
        return;
    }
    panic!(
        "{file} is not what the code generates: run UPDATE_EXPECT=1 cargo test --test generated"
    );
}

#[test]
fn the_crds_file_is_what_the_types_and_rules_say() {
    let yaml = etcd_operator::api::crd::generate()
        .map(|it| etcd_operator::document::to_yaml(&it).unwrap())
        .join("---\n");
    let header = "# Generated from src/api.rs, src/api/requests.rs and src/api/rules.rs; tests/generated.rs keeps it fresh.\n";
    assert_fresh("deploy/crds.yaml", &format!("{header}{yaml}"));
}

#[test]
fn documents_are_checked_against_the_schema_of_the_crds_file() {
    let clusters = etcd_operator::api::crd::generate().into_iter().next();
    let crd = serde_json::to_value(clusters).unwrap();
    let spec = crd.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec");
    assert_fresh(
        "src/document/spec.schema.json",
        &format!("{}\n", spec.unwrap()),
    );
}

#[test]
fn the_manifests_are_what_the_code_says() {
    use etcd_operator::controller::manifests;
    let image = manifests::image(env!("CARGO_PKG_VERSION"));
    let all: Vec<String> = manifests::generate(&image)
        .iter()
        .map(|it| etcd_operator::document::to_yaml(it).unwrap())
        .collect();
    let header = "# Generated from src/controller/manifests.rs and src/controller/rights.rs;\n\
                  # tests/generated.rs keeps it fresh. Another image: etcd-operator manifests --image IMAGE\n";
    let yaml = all.join("---\n");
    assert_fresh("deploy/etcd-operator.yaml", &format!("{header}{yaml}"));
}
