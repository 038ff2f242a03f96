//! An operator that was given some namespaces has rights in these alone, and works there as elsewhere.

use std::process::Command;

use serde_json::json;

use crate::lab::{Api, ApiOptions, SOON};
use crate::operator::{self, Operator, USER, cluster, deployed, namespace};
use crate::tenants::status;

const GIVEN: [&str; 2] = ["shop", "tills"];
const OTHER: &str = "bank";

#[test]
fn an_operator_of_two_namespaces_has_no_rights_in_others_and_leaves_their_clusters_alone() {
    if !operator::can() {
        return;
    }
    let Some(api) = Api::up(&ApiOptions::default()) else {
        return;
    };
    for name in [GIVEN[0], GIVEN[1], OTHER] {
        api.apply(&namespace(name, &json!({})));
    }
    let given = GIVEN.join(",");
    let printed = Command::new(env!("CARGO_BIN_EXE_etcd-operator"))
        .args(["manifests", "--namespaces", &given])
        .output();
    let printed = String::from_utf8(printed.unwrap().stdout).unwrap();
    assert!(printed.contains(&format!("--namespaces={given}")));
    api.apply(&deployed("crds.yaml"));
    api.apply(&printed);
    let established = ["wait", "--for=condition=Established", "crd", "--all"];
    api.kubectl(&established).good();
    let access = api.service_account("etcd-operator/etcd-operator");
    for (name, may) in [(GIVEN[0], true), (GIVEN[1], true), (OTHER, false)] {
        for what in ["pods", "secrets", "services"] {
            let asked = ["auth", "can-i", "create", what, "-n", name, "--quiet"];
            if may {
                // The server's own watch brings the Role.
                api.eventually(&format!("{what} in {name}"), SOON, || {
                    access.kubectl(&asked).ok.then_some(())
                });
            } else {
                assert!(!access.kubectl(&asked).ok, "{what} in {name}");
            }
        }
    }
    let mark = api.mark();
    let mut operator = Operator::start_as(&access, &["--namespaces", &given]);
    for name in [GIVEN[0], GIVEN[1], OTHER] {
        api.apply(&cluster(name, "c", &json!({})));
    }
    let pod = |namespace: &str| api.try_json(&["get", "pod", "c-0", "-n", namespace]);
    for name in GIVEN {
        api.eventually("its Pod", SOON, || pod(name));
    }
    // One that goes is seen to go, and the other namespace's is as it was.
    api.kubectl(&["delete", "etcdcluster", "c", "-n", GIVEN[0]])
        .good();
    api.eventually("its end to be seen", SOON, || {
        operator
            .said()
            .contains("EtcdCluster deleted")
            .then_some(())
    });
    assert!(pod(GIVEN[1]).is_some() && pod(OTHER).is_none());
    assert!(status(&api, OTHER, "c").is_null(), "nobody works on it");
    let sent = api.requests("", mark).into_iter();
    let elsewhere = |it: &str| !GIVEN.contains(&it) && it != "etcd-operator";
    let sent = sent.filter(|it| it.user == USER && elsewhere(&it.namespace));
    let sent: Vec<String> = sent
        .map(|it| format!("{} {} {}", it.verb, it.resource, it.namespace))
        .collect();
    assert!(sent.is_empty(), "{sent:?}");
    assert!(
        !operator.said().contains("forbidden"),
        "{}",
        operator.said()
    );
    assert!(operator.terminate().success());
    // One namespace's Role goes: the next operator says so, and works in the other one.
    let away = ["delete", "role,rolebinding", "--all", "-n", GIVEN[0]];
    api.kubectl(&away).good();
    let operator = Operator::start_as(&access, &["--namespaces", &given]);
    api.eventually("what is forbidden to be said", SOON, || {
        operator.said().contains("forbidden").then_some(())
    });
    let clients = json!({"clients": [{"name": "a", "namespace": OTHER}]});
    api.apply(&cluster(GIVEN[1], "d", &clients));
    api.eventually("a Pod in the other one", SOON, || {
        api.try_json(&["get", "pod", "d-0", "-n", GIVEN[1]])
    });
    api.eventually("a client elsewhere to be refused", SOON, || {
        operator
            .said()
            .contains("works in others alone")
            .then_some(())
    });
    let ready = operator.get("/readyz").unwrap();
    assert_eq!(ready.0, 200, "{ready:?}");
}
