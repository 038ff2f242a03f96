//! What a document says of the Pod, of the Service for clients and of the claim, at a real API server.

use serde_json::{Value, json};

use crate::kept::names_of_the_server;
use crate::lab::{Api, SOON};
use crate::operator::{cluster, namespace, storage_class};
use crate::tenants::{says, status, up};

fn get(api: &Api, kind: &str, name: &str) -> Option<Value> {
    api.try_json(&["get", kind, name, "-n", "shop"])
}

fn patch(api: &Api, kind: &str, name: &str, more: &[&str], change: &Value) {
    let change = change.to_string();
    let mut arguments = vec![
        "patch",
        kind,
        name,
        "-n",
        "shop",
        "--type=merge",
        "-p",
        &change,
    ];
    arguments.extend(more);
    api.kubectl(&arguments).good();
}

#[test]
fn a_pod_and_a_service_are_what_the_document_says() {
    let Some((api, operator)) = up(false) else {
        return;
    };
    api.apply(&namespace("shop", &json!({})));
    let term = json!({"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]});
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        {"nodeSelectorTerms": [term]}}});
    let spread =
        json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"});
    let spec = json!({
        "pod": {
            "resources": {
                "requests": {"memory": "96Mi"},
                "limits": {"memory": "256Mi", "cpu": "500m"},
            },
            "tolerations": [{"key": "edge", "operator": "Exists", "effect": "NoSchedule"}],
            "affinity": affinity,
            "topologySpreadConstraints": [spread],
            "imagePullSecrets": [{"name": "registry"}],
        },
        "service": {
            "type": "LoadBalancer",
            "nodePort": 31_379,
            "loadBalancerClass": "example.com/one",
            "annotations": {"example.com/pool": "shop"},
            "dnsDomain": "edge.internal",
        },
    });
    api.apply(&cluster("shop", "c", &spec));
    let pod = api.eventually("the Pod", SOON, || get(&api, "pod", "c-0"));
    let etcd = &pod["spec"]["containers"][0];
    assert_eq!(
        etcd["resources"]["requests"],
        json!({"cpu": "500m", "memory": "96Mi"})
    );
    assert_eq!(
        etcd["resources"]["limits"],
        json!({"cpu": "500m", "memory": "256Mi"})
    );
    let tolerations = pod["spec"]["tolerations"].to_string();
    assert!(tolerations.contains(r#""key":"edge""#), "{tolerations}");
    assert!(
        tolerations.contains("not-ready"),
        "those of the operator stay: {tolerations}"
    );
    assert_eq!(pod["spec"]["affinity"], affinity, "the constraints spread");
    assert_eq!(pod["spec"]["topologySpreadConstraints"], json!([spread]));
    assert_eq!(
        pod["spec"]["imagePullSecrets"],
        json!([{"name": "registry"}])
    );
    let service = get(&api, "service", "c-client").unwrap();
    assert_eq!(service["spec"]["type"], "LoadBalancer");
    assert_eq!(service["spec"]["ports"][0]["nodePort"], 31_379);
    assert_eq!(service["spec"]["loadBalancerClass"], "example.com/one");
    assert_eq!(
        service["metadata"]["annotations"]["example.com/pool"],
        "shop"
    );
    // A balancer gives it an address, which the certificate carries soon; a pass learns it by the Service's watch.
    let address = json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}}});
    patch(
        &api,
        "service",
        "c-client",
        &["--subresource=status"],
        &address,
    );
    api.eventually("a certificate with the address", SOON, || {
        let names = names_of_the_server(&api, "c-member");
        let has = |it: &str| names.contains(it);
        (has("192.0.2.7") && has("c-client.shop.svc.edge.internal")).then_some(())
    });
    // What Kubernetes itself refuses of it is told in its words.
    let wrong = json!({"spec": {"pod": {"affinity": {"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}}}});
    api.apply(&cluster("shop", "d", &wrong["spec"]));
    says(&api, "shop", "d", "nodeSelectorTerms");
    let nowhere = json!({"pod": {"priorityClassName": "nowhere"}});
    api.apply(&cluster("shop", "f", &nowhere));
    says(&api, "shop", "f", "PodRefused");
    let refused = api.try_apply(&cluster(
        "shop",
        "e",
        &json!({"service": {"nodePort": 31_380}}),
    ));
    assert!(
        !refused.ok && refused.stderr.contains("type ClusterIP has none"),
        "{}",
        refused.stderr
    );
    drop(operator);
}

/// Members keep apart where they can, or have to; and as the document says it, where it does.
#[test]
fn members_keep_apart_by_default_by_a_word_or_as_the_document_says() {
    let Some((api, operator)) = up(false) else {
        return;
    };
    api.apply(&namespace("shop", &json!({})));
    let own = json!({"preferredDuringSchedulingIgnoredDuringExecution": []});
    let nodes = json!({"preferredDuringSchedulingIgnoredDuringExecution": []});
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let affinity_of = |name: &str, pod: &Value| {
        api.apply(&cluster("shop", name, &json!({"pod": pod})));
        let member = format!("{name}-0");
        let pod = api.eventually("the Pod", SOON, || get(&api, "pod", &member));
        pod["spec"]["affinity"].clone()
    };
    let apart = &affinity_of("a", &json!({}))["podAntiAffinity"];
    let terms = apart[preferred].as_array().unwrap();
    let topology = |it: &Value| it["podAffinityTerm"]["topologyKey"].clone();
    let keys: Vec<Value> = terms.iter().map(topology).collect();
    assert_eq!(
        keys,
        ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    );
    let of_cluster = &terms[0]["podAffinityTerm"]["labelSelector"]["matchLabels"];
    assert_eq!(of_cluster["etcd.edge-operator.io/cluster"], "a");
    assert!(apart[required].is_null(), "{apart}");

    let asked = json!({"spread": "required", "affinity": {"nodeAffinity": nodes}});
    let affinity = affinity_of("b", &asked);
    let term = &affinity["podAntiAffinity"][required][0];
    assert_eq!(term["topologyKey"], "kubernetes.io/hostname", "{affinity}");
    assert!(affinity["nodeAffinity"].is_object(), "{affinity}");

    let asked = json!({"spread": "required", "affinity": {"podAntiAffinity": own}});
    let affinity = affinity_of("c", &asked);
    assert!(
        affinity["podAntiAffinity"][required].is_null(),
        "{affinity}"
    );
    drop(operator);
}

/// The class of a claim says whether it grows; a controller of storage that binds claims is played here.
#[test]
fn a_claim_grows_where_its_class_lets_it_and_else_that_is_told() {
    let Some((api, operator)) = up(false) else {
        return;
    };
    api.apply(&namespace("shop", &json!({})));
    for (name, grows) in [("grows", true), ("fixed", false)] {
        api.apply(&storage_class(name, grows));
        let claims = |data: &str, snapshots: &str| {
            let claim = |size: &str| json!({"size": size, "storageClassName": name});
            let local = json!({"local": {"claim": claim(snapshots)}});
            json!({"storage": {"volumeClaim": claim(data)}, "backup": {"destinations": [local]}})
        };
        snapshots_claim(&api, name, name);
        api.apply(&cluster("shop", name, &claims("1Gi", "1Gi")));
        let made = [format!("data-{name}-0"), format!("{name}-snapshots")];
        for (it, larger) in made.iter().zip([("3Gi", "1Gi"), ("3Gi", "3Gi")]) {
            api.eventually("the claim", SOON, || get(&api, "pvc", it));
            let volume = json!({"spec": {"volumeName": format!("v-{it}")}});
            patch(&api, "pvc", it, &[], &volume);
            let bound = json!({"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}});
            patch(&api, "pvc", it, &["--subresource=status"], &bound);
            let larger = json!({"spec": claims(larger.0, larger.1)});
            patch(&api, "etcdcluster", name, &[], &larger);
            let size = || {
                let claim = get(&api, "pvc", it).unwrap();
                claim["spec"]["resources"]["requests"]["storage"].clone()
            };
            if grows {
                api.eventually("a larger claim", SOON, || (size() == "3Gi").then_some(()));
            } else {
                // Of two that stay as they are the data's is told first.
                says(&api, "shop", name, "ClaimNotChanged");
                assert_eq!(size(), "1Gi");
            }
        }
    }
    assert!(
        !status(&api, "shop", "grows")
            .to_string()
            .contains("ClaimNotChanged")
    );
    drop(operator);
}

/// As the operator made it for a document that named this class; it has no volume.
fn snapshots_claim(api: &Api, cluster: &str, class: &str) {
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": format!("{cluster}-snapshots"), "namespace": "shop",
            "labels": {"app.kubernetes.io/managed-by": "etcd-operator", "etcd.edge-operator.io/cluster": cluster},
            "annotations": {"etcd.edge-operator.io/storage-class": class},
        },
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "resources": {"requests": {"storage": "1Gi"}}},
    });
    api.apply(&claim.to_string());
}

/// The claim of a class that is not there is made anew when the document is corrected, and no claim with a volume goes.
#[test]
fn a_class_is_corrected_before_the_claim_has_a_volume() {
    let Some((api, operator)) = up(true) else {
        return;
    };
    api.apply(&namespace("shop", &json!({})));
    api.apply(&storage_class("right", false));
    let of = |class: &str| json!({"storage": {"volumeClaim": {"size": "1Gi", "storageClassName": class}}});
    let name_class =
        |class: &str| patch(&api, "etcdcluster", "c", &[], &json!({"spec": of(class)}));
    // The snapshots' is made by the worker's start, which the API server alone has not.
    snapshots_claim(&api, "d", "wrong");
    let local = json!({"local": {"claim": {"size": "1Gi", "storageClassName": "right"}}});
    let spec = json!({"backup": {"destinations": [local]}});
    api.apply(&cluster("shop", "d", &spec));
    api.eventually("the claim of the wrong class to go", SOON, || {
        get(&api, "pvc", "d-snapshots").is_none().then_some(())
    });
    api.apply(&cluster("shop", "c", &of("wrong")));
    let claim = || get(&api, "pvc", "data-c-0");
    let first = api.eventually("the claim", SOON, claim);
    assert_eq!(first["spec"]["storageClassName"], "wrong");
    name_class("right");
    api.eventually("a claim of the right class", SOON, || {
        (claim()?["spec"]["storageClassName"] == "right").then_some(())
    });
    // With its volume it stays, whatever the document says.
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "right",
            "hostPath": {"path": "/nowhere"}, "claimRef": {"namespace": "shop", "name": "data-c-0"},
        },
    });
    api.apply(&volume.to_string());
    let bound = api.eventually("a volume", SOON, || {
        claim().filter(|it| it["status"]["phase"] == "Bound")
    });
    name_class("wrong");
    says(&api, "shop", "c", "ClaimNotChanged");
    assert_eq!(
        claim().unwrap()["metadata"]["uid"],
        bound["metadata"]["uid"]
    );
    name_class("right");
    api.eventually("nothing to be told", SOON, || {
        let status = status(&api, "shop", "c").to_string();
        (!status.contains("ClaimNotChanged")).then_some(())
    });
    drop(operator);
}
