//! CRDs of another version than the operator's.

use serde_json::{Value, json};

use crate::lab::{Api, ApiOptions, SOON};
use crate::operator::{self, Operator, cluster};

const CRD: &str = "etcdclusters.etcd.edge-operator.io";
const SCHEMA: &str = "/spec/versions/0/schema/openAPIV3Schema/properties";

/// Changes the CRD of EtcdClusters at one place of its schema.
fn change(api: &Api, operation: &str, path: &str, value: &Value) {
    let operations =
        json!([{"op": operation, "path": format!("{SCHEMA}/{path}"), "value": value}]).to_string();
    api.kubectl(&["patch", "crd", CRD, "--type=json", "-p", &operations])
        .good();
}

#[test]
fn crds_older_than_the_operator_are_told_and_members_are_made_all_the_same() {
    if !operator::can() {
        return;
    }
    let Some(api) = Api::up(&ApiOptions::default()) else {
        return;
    };
    let access = operator::install(&api);
    change(&api, "remove", "status/properties/plan", &Value::Null);
    api.eventually("the server to forget it", SOON, || {
        let explained = api.kubectl(&["explain", "etcdcluster.status"]);
        (explained.ok && !explained.stdout.contains("plan")).then_some(())
    });
    let _operator = Operator::start(&access);
    api.apply(&cluster("default", "edge", &json!({})));
    let told = api.eventually("an Event", SOON, || {
        let all = api.events("default");
        all.into_iter().find(|(reason, _)| reason == "CrdOlder")
    });
    assert!(
        told.1.contains("status.plan") && told.1.contains("deploy/crds.yaml"),
        "{told:?}"
    );
    api.eventually("its Pod", SOON, || api.try_json(&["get", "pod", "edge-0"]));
}

#[test]
fn what_newer_crds_brought_is_told_and_not_worked_on_in_part() {
    if !operator::can() {
        return;
    }
    let Some(api) = Api::up(&ApiOptions::default()) else {
        return;
    };
    let access = operator::install(&api);
    change(
        &api,
        "add",
        "spec/properties/novelty",
        &json!({"type": "string"}),
    );
    let new = cluster("default", "edge", &json!({"novelty": "of tomorrow"}));
    api.eventually("the server to know it", SOON, || {
        let applied = api.try_apply(&new);
        (applied.ok && applied.stderr.is_empty()).then_some(())
    });
    api.apply(&cluster("default", "other", &json!({})));
    // A watch from before would bring what the CRD was then.
    let _operator = Operator::start(&access);
    api.eventually("the other's Pod", SOON, || {
        api.try_json(&["get", "pod", "other-0"])
    });
    let said = api.eventually("words", SOON, || {
        let it = api.try_json(&["get", "etcdcluster", "edge"])?;
        let message = it["status"]["plan"]["message"].as_str()?.to_owned();
        (it["status"]["plan"]["hold"] == "SpecUnreadable").then_some(message)
    });
    assert!(said.contains("novelty"), "{said}");
    assert!(api.try_json(&["get", "pod", "edge-0"]).is_none());
    api.apply(&cluster("default", "edge", &json!({})));
    api.eventually("its Pod", SOON, || api.try_json(&["get", "pod", "edge-0"]));
}
