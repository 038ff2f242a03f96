//! The document's parser, the CRD and the rules: the same verdicts on a host and in Kubernetes.
//! Needs nothing but cargo.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::needless_raw_string_hashes,
    reason = "a test; expect-test writes raw strings with hashes"
)]

mod backup;
mod bad;
mod crd;
mod fields;
mod formats;
mod fuzz;
mod good;
#[allow(unreachable_pub, reason = "one file, several binaries")]
mod old;
mod random;
mod rules;
mod told;
mod unreadable;
mod unsupported;
mod v1beta2;

/// A whole document around the text of its spec, which begins on line 5.
fn document(spec: &str) -> String {
    format!(
        "apiVersion: etcd.edge-operator.io/v1alpha1\nkind: EtcdCluster\nmetadata:\n  name: edge\n{spec}\n"
    )
}

/// Holds what the parser says of a text against what stands in the test.
#[track_caller]
fn check(text: &str, expected: &expect_test::Expect) {
    let said = match etcd_operator::document::parse(text.as_bytes()) {
        Ok(_) => "accepted".to_owned(),
        Err(problems) => problems.to_string(),
    };
    expected.assert_eq(&said);
}

/// The same for a spec.
#[track_caller]
fn check_spec(spec: &str, expected: &expect_test::Expect) {
    check(&document(spec), expected);
}
