//! What the operator stands on is not there: no API server, no CRDs.

use std::time::Duration;

use serde_json::json;

use crate::lab::{Api, ApiOptions, SOON};
use crate::operator::{self, Operator, cluster};

#[test]
fn an_operator_outlives_its_api_server_and_goes_on_when_it_is_back() {
    if !operator::can() {
        return;
    }
    let Some(api) = Api::up(&ApiOptions::default()) else {
        return;
    };
    let access = operator::install(&api);
    let mut operator = Operator::start(&access);
    api.apply(&cluster("default", "before", &json!({})));
    api.eventually("the Pod", SOON, || {
        api.try_json(&["get", "pod", "before-0"])
    });
    let lines = operator.said().lines().count();
    api.api_stop();
    std::thread::sleep(Duration::from_secs(30));
    assert!(operator.is_alive());
    assert_eq!(operator.get("/livez").unwrap().0, 200);
    let said = operator.said();
    let more = said.lines().count() - lines;
    assert!(
        (1..80).contains(&more),
        "it says so, and is no flood: {said}"
    );
    api.api_start();
    api.kubectl(&["delete", "service", "before-client"]).good();
    api.apply(&cluster("default", "after", &json!({})));
    api.eventually("what was removed to come back", SOON, || {
        api.try_json(&["get", "service", "before-client"])
    });
    api.eventually("the new cluster's Pod", SOON, || {
        api.try_json(&["get", "pod", "after-0"])
    });
    assert!(operator.is_alive());
}

#[test]
fn an_operator_without_crds_says_what_to_apply_and_goes_on_when_they_come() {
    if !operator::can() {
        return;
    }
    let Some(api) = Api::up(&ApiOptions::default()) else {
        return;
    };
    let access = operator::install_without_crds(&api);
    let mut operator = Operator::start(&access);
    for kind in ["EtcdClusters", "EtcdBackups", "EtcdRestores"] {
        api.eventually("words", SOON, || {
            let said = operator.said();
            let mut lines = said.lines().filter(|it| it.contains(kind));
            lines
                .any(|it| it.contains("apply deploy/crds.yaml"))
                .then_some(())
        });
    }
    let (status, text) = operator.get("/readyz").unwrap();
    assert_eq!(status, 503, "{text}");
    assert_eq!(operator.get("/livez").unwrap().0, 200);
    api.apply(&operator::deployed("crds.yaml"));
    api.eventually("the cluster to be taken", SOON, || {
        api.try_apply(&cluster("default", "edge", &json!({})))
            .ok
            .then_some(())
    });
    api.eventually("its Pod", SOON, || api.try_json(&["get", "pod", "edge-0"]));
    assert_eq!(
        operator.get("/readyz").unwrap(),
        (200, "acting\n".to_owned())
    );
    assert!(operator.is_alive());
}
