//! The API server refuses a member's Pod: that is told with what to do, and the member comes once the
//! refusal is lifted.

use serde_json::{Value, json};

use crate::lab::{Api, SOON};
use crate::operator::{cluster, namespace};
use crate::tenants::{ours, says, status, up};

fn degraded(api: &Api, space: &str) -> Value {
    let told = status(api, space, "edge");
    let all = told["conditions"].as_array().cloned().unwrap_or_default();
    let found = all.into_iter().find(|it| it["type"] == "Degraded");
    found.unwrap_or_default()
}

/// The reason, what the API server said, and the next step.
#[track_caller]
fn refused(api: &Api, space: &str, reason: &str, words: &str, next: &str) {
    says(api, space, "edge", reason);
    let told = degraded(api, space);
    println!("{space}: {told}");
    assert_eq!(told["status"], "True", "{told}");
    assert_eq!(told["reason"], reason, "{told}");
    assert!(told["message"].as_str().unwrap().contains(words), "{told}");
    let plan = status(api, space, "edge")["plan"].clone();
    assert_eq!(plan["hold"], reason, "{plan}");
    assert!(plan["nextStep"].as_str().unwrap().contains(next), "{plan}");
    assert!(!ours(api, space).contains("pod/"), "there is no Pod");
}

/// Nobody touches the EtcdCluster.
#[track_caller]
fn comes(api: &Api, space: &str) {
    let begun = std::time::Instant::now();
    api.eventually("the Pod", SOON, || {
        api.try_json(&["get", "pod", "-n", space, "edge-0"])
    });
    api.eventually("the refusal to be told no longer", SOON, || {
        let reason = degraded(api, space)["reason"].clone();
        (reason != "PodRefused" && reason != "QuotaExceeded").then_some(())
    });
    println!("{space}: lifted to the Pod: {:.1?}", begun.elapsed());
}

#[test]
fn a_pod_that_its_namespace_does_not_take_is_told_and_comes_when_it_does() {
    let Some((api, operator)) = up(true) else {
        return;
    };
    let level = |it: &str| json!({"pod-security.kubernetes.io/enforce": it});
    api.apply(&namespace("safe", &level("restricted")));
    api.apply(&namespace("small", &json!({})));
    api.apply(&namespace("poor", &json!({})));
    api.apply(&quota("0"));
    api.apply(&quota_of_claims("0"));
    for space in ["small", "poor"] {
        api.eventually("the quota to be in force", SOON, || {
            let it = api.try_json(&["get", "resourcequota", "-n", space, "all"])?;
            it["status"]["hard"].is_object().then_some(())
        });
    }
    let important = json!({"pod": {"priorityClassName": "important"}});
    api.apply(&cluster("safe", "edge", &important));
    api.apply(&cluster("small", "edge", &json!({})));
    api.apply(&cluster("poor", "edge", &json!({})));
    refused(&api, "safe", "PodRefused", "important", "correct spec.pod");
    refused(&api, "small", "QuotaExceeded", "exceeded quota: all", "");
    let claims = "PersistentVolumeClaim data-edge-0: persistentvolumeclaims \"data-edge-0\" is forbidden: exceeded quota";
    refused(&api, "poor", "QuotaExceeded", claims, "");
    api.apply(&priority_class("important"));
    comes(&api, "safe");
    api.apply(&quota("5"));
    comes(&api, "small");
    api.apply(&quota_of_claims("5"));
    comes(&api, "poor");
    drop(operator);
}

fn priority_class(name: &str) -> String {
    json!({
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": 1000,
    })
    .to_string()
}

fn quota(pods: &str) -> String {
    quota_in("small", &json!({"pods": pods}))
}

fn quota_of_claims(claims: &str) -> String {
    quota_in("poor", &json!({"persistentvolumeclaims": claims}))
}

fn quota_in(space: &str, hard: &Value) -> String {
    json!({
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "all", "namespace": space},
        "spec": {"hard": hard},
    })
    .to_string()
}
