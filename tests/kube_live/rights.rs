//! The operator's rights: exactly these, each of them needed, and what it says where one is missing.

use std::rc::Rc;
use std::time::{Duration, Instant};

use etcd_operator::controller::manifests;
use etcd_operator::controller::rights::{RIGHTS, Right, Where};
use serde_json::{Value, json};

use crate::cluster::Access;
use crate::lab::{Api, ApiOptions, SOON};
use crate::needs::{Stage, table, without_lease};
use crate::operator::{self, Operator, cluster, namespace};

/// All rights but this one.
fn leave(api: &Api, access: &Access, missing: Option<(&Right, &str)>) {
    let but = |it: &Right| {
        let mut verbs = it.verbs.to_vec();
        if let Some((right, verb)) = missing
            && (right.resource, right.name) == (it.resource, it.name)
        {
            verbs.retain(|it| *it != verb);
        }
        let mut rule = json!({"apiGroups": [it.group], "resources": [it.resource], "verbs": verbs});
        if let Some(name) = it.name {
            rule["resourceNames"] = json!([name]);
        }
        (!verbs.is_empty()).then_some(rule)
    };
    for (scope, kind) in [
        (Where::Everywhere, "ClusterRole"),
        (Where::OwnNamespace, "Role"),
    ] {
        let rules: Vec<Value> = RIGHTS
            .iter()
            .filter(|it| it.scope == scope)
            .filter_map(but)
            .collect();
        if missing.is_none() {
            assert_eq!(rules, manifests::rules(scope));
        }
        let patch = json!([{"op": "replace", "path": "/rules", "value": rules}]).to_string();
        let arguments = ["-n", "etcd-operator", "--type=json", "-p", &patch];
        let mut all = vec!["patch", kind, "etcd-operator"];
        all.extend(arguments);
        api.kubectl(&all).good();
    }
    // The server's own watch brings it.
    let can = |right: &Right, verb: &str| {
        let resource = format!(
            "{}.{}",
            right.resource.split('/').next().unwrap(),
            right.group
        );
        let part = right
            .resource
            .split_once('/')
            .map(|(_, it)| format!("--subresource={it}"));
        let mut asked = vec!["auth", "can-i", verb, resource.trim_end_matches('.')];
        asked.extend(part.as_deref());
        asked.extend(right.name);
        asked.extend(["-n", "etcd-operator", "--quiet"]);
        access.kubectl(&asked).ok
    };
    let Some((right, verb)) = missing else {
        std::thread::sleep(Duration::from_millis(300));
        return;
    };
    api.eventually("the right to be withdrawn", SOON, || {
        (!can(right, verb)).then_some(())
    });
}

#[test]
fn each_right_has_a_row_and_each_row_a_right() {
    let mut rights: Vec<String> = RIGHTS
        .iter()
        .flat_map(|it| {
            it.verbs
                .iter()
                .map(move |verb| format!("{verb} {}", it.resource))
        })
        // The one that is used at the end has a test of its own.
        .filter(|it| it != "patch leases")
        .collect();
    let mut named: Vec<String> = table().iter().map(|it| it.right.to_owned()).collect();
    rights.sort();
    named.sort();
    assert_eq!(named, rights);
}

#[test]
fn without_a_right_something_named_breaks_and_heals_when_it_returns_1_of_3() {
    without_every_third_from(0);
}

#[test]
fn without_a_right_something_named_breaks_and_heals_when_it_returns_2_of_3() {
    without_every_third_from(1);
}

#[test]
fn without_a_right_something_named_breaks_and_heals_when_it_returns_3_of_3() {
    without_every_third_from(2);
}

/// One right after the other, of three tests beside each other.
fn without_every_third_from(first: usize) {
    if !operator::can() {
        return;
    }
    let Some(api) = Api::up(&ApiOptions::default()) else {
        return;
    };
    let api = Rc::new(api);
    let access = operator::install(&api);
    let only = std::env::var("RIGHT").unwrap_or_default();
    for (number, row) in table()
        .iter()
        .enumerate()
        .skip(first)
        .step_by(3)
        .filter(|(_, it)| it.right.contains(&only))
    {
        let begun = Instant::now();
        let (verb, resource) = row.right.split_once(' ').unwrap();
        let right = RIGHTS
            .iter()
            .find(|it| it.resource == resource && it.verbs.contains(&verb))
            .unwrap();
        let stage = Stage {
            api: api.clone(),
            namespace: format!("n{number}"),
            other: format!("n{number}-other"),
        };
        api.apply(&namespace(&stage.namespace, &json!({})));
        let accepts = json!({"etcd.edge-operator.io/accepts-clients-of": stage.namespace});
        api.apply(&namespace(&stage.other, &accepts));
        without_lease(&stage);
        (row.before)(&stage);
        leave(&api, &access, Some((right, verb)));
        let mut operator = Operator::start(&access);
        (row.then)(&stage);
        let sign = format!("cannot {verb} resource \"{resource}\"");
        let deadline = Instant::now() + SOON;
        while !operator.said().contains(&sign) {
            let said = operator.said();
            assert!(
                Instant::now() < deadline,
                "{}: it never said {sign}:\n{said}",
                row.right
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        (row.after)(&stage);
        std::thread::sleep(Duration::from_secs(1));
        let said = operator.said();
        assert!(
            !(row.whole)(&stage),
            "{} is not needed for: {}\n{said}",
            row.right,
            row.breaks
        );
        leave(&api, &access, None);
        api.eventually(&format!("{}: to heal", row.right), SOON, || {
            (row.whole)(&stage).then_some(())
        });
        assert!(operator.is_alive());
        println!(
            "{:<32} {:<64} {:.1?}",
            row.right,
            row.breaks,
            begun.elapsed()
        );
        assert!(operator.terminate().success());
        api.kubectl(&[
            "delete",
            "etcdclusters,etcdbackups,etcdrestores",
            "--all",
            "-n",
            &stage.namespace,
        ])
        .good();
    }
}

/// The holder's name in the Lease.
fn holder(api: &Api) -> String {
    let lease = api.try_json(&["get", "lease", "-n", "etcd-operator", "etcd-operator"]);
    lease.map_or_else(String::new, |it| {
        it["spec"]["holderIdentity"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    })
}

#[test]
fn an_operator_that_ends_gives_the_lease_back_and_says_so_where_it_may_not() {
    if !operator::can() {
        return;
    }
    let Some(api) = Api::up(&ApiOptions::default()) else {
        return;
    };
    let access = operator::install(&api);
    let acting = |it: &Operator| {
        api.eventually("it to act", SOON, || {
            it.get("/readyz").filter(|(_, text)| text == "acting\n")
        });
    };
    let lease = RIGHTS
        .iter()
        .find(|it| it.verbs.contains(&"update"))
        .unwrap();
    leave(&api, &access, Some((lease, "patch")));
    let mut operator = Operator::start(&access);
    acting(&operator);
    assert_eq!(holder(&api), "edge1");
    assert!(operator.terminate().success());
    assert_eq!(
        holder(&api),
        "edge1",
        "the next operator would wait for it to expire"
    );
    let said = operator.said();
    assert!(
        said.contains("the operator did not release the Lease"),
        "{said}"
    );
    leave(&api, &access, None);
    let mut operator = Operator::start(&access);
    acting(&operator);
    assert!(operator.terminate().success());
    assert_eq!(holder(&api), "");
}

#[test]
fn a_right_withdrawn_at_run_time_is_told_in_the_status_and_what_waited_for_it_is_done() {
    if !operator::can() {
        return;
    }
    let Some(api) = Api::up(&ApiOptions::default()) else {
        return;
    };
    let access = operator::install(&api);
    let operator = Operator::start(&access);
    api.apply(&cluster("default", "edge", &json!({})));
    api.eventually("the Pod", SOON, || api.try_json(&["get", "pod", "edge-0"]));
    let services = RIGHTS.iter().find(|it| it.resource == "services").unwrap();
    leave(&api, &access, Some((services, "patch")));
    let patch = r#"[{"op": "replace", "path": "/spec/ports/0/port", "value": 7}]"#;
    api.kubectl(&[
        "patch",
        "service",
        "edge-client",
        "--type=json",
        "-p",
        patch,
    ])
    .good();
    let status = || api.json(&["get", "etcdcluster", "edge"])["status"].clone();
    let told = |status: &Value| {
        let all = status["conditions"].as_array().unwrap();
        all.iter().any(|it| {
            let text = it["message"].as_str().unwrap_or_default();
            text.contains("Service edge-client") && text.contains("cannot patch")
        })
    };
    api.eventually("the condition to name it", SOON, || {
        told(&status()).then_some(())
    });
    api.eventually("an Event to name it", SOON, || {
        let mut events = api.events("default").into_iter();
        events
            .any(|(_, text)| text.contains("edge-client"))
            .then_some(())
    });
    leave(&api, &access, None);
    api.eventually("the Service to be put back", SOON, || {
        let service = api.json(&["get", "service", "edge-client"]);
        (service["spec"]["ports"][0]["port"] == 2379).then_some(())
    });
    api.eventually("the condition to go", SOON, || {
        (!told(&status())).then_some(())
    });
    drop(operator);
}
