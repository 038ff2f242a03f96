//! Nothing that the operator is or makes is more than Pod Security's level `restricted` allows: an API server that
//! enforces it takes all of it, and refuses what is more.

use serde_json::{Value, json};

use crate::lab::{Api, SOON};
use crate::operator::{cluster, namespace};
use crate::tenants::up;

#[test]
fn the_operator_and_every_pod_that_it_makes_pass_restricted() {
    let Some((api, operator)) = up(true) else {
        return;
    };
    the_operators_own(&api);
    let level = json!({"pod-security.kubernetes.io/enforce": "restricted"});
    api.apply(&namespace("shop", &level));
    let bucket = json!({"s3": {"bucket": "edge", "region": "eu", "credentialsSecret": "keys"}});
    let mut spec = json!({"backup": {"destinations": [{"local": {}}, bucket]}});
    api.apply(&cluster("shop", "a", &spec));
    spec["bootstrap"] = json!({"from": "latest"});
    api.apply(&cluster("shop", "b", &spec));
    // The third, a worker, is made once etcd has served: `claims` looks at it.
    for name in ["a-0", "b-restore"] {
        let pod = api.eventually(name, SOON, || {
            api.try_json(&["get", "pod", "-n", "shop", name])
        });
        is_restricted(&pod);
    }
    drop(operator);
}

/// The DaemonSet's Pod, in the namespace as it is applied. The API server alone has no node that would make it.
fn the_operators_own(api: &Api) {
    let own = "etcd-operator";
    let set = api.json(&["get", "daemonset", "-n", own, own]);
    let template = &set["spec"]["template"]["spec"];
    assert_eq!(beyond(template), Vec::<String>::new());
    let takes = |spec: &Value| {
        let metadata = json!({"name": "try", "namespace": own});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
        api.admin()
            .with_input(&["create", "--dry-run=server"], &pod.to_string())
    };
    takes(template).good();
    let of_the_node = json!({"name": "node", "hostPath": {"path": "/var/lib"}});
    let mut more = template.clone();
    more["volumes"].as_array_mut().unwrap().push(of_the_node);
    let mut as_root = template.clone();
    as_root["securityContext"]["runAsUser"] = json!(0);
    let mut able = template.clone();
    able["containers"][0]["securityContext"]["capabilities"]["add"] = json!(["CHOWN"]);
    for more in [more, as_root, able] {
        let refused = takes(&more);
        let text = &refused.stderr;
        assert!(!refused.ok && text.contains("PodSecurity"), "{refused:?}");
    }
}

/// A Pod that the operator made, which has no token either.
#[track_caller]
pub fn is_restricted(pod: &Value) {
    let (name, spec) = (&pod["metadata"]["name"], &pod["spec"]);
    assert_eq!(beyond(spec), Vec::<String>::new(), "{name}");
    assert_eq!(spec["automountServiceAccountToken"], false, "{name}");
    let volumes = spec["volumes"].to_string();
    assert!(!volumes.contains("serviceAccountToken"), "{name}");
}

/// What a Pod's specification has beyond `restricted` and a root file system that is read only.
fn beyond(spec: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut expect = |what: &str, is: bool| {
        if !is {
            found.push(what.to_owned());
        }
    };
    let context = &spec["securityContext"];
    expect("runAsNonRoot", context["runAsNonRoot"] == true);
    expect("runAsUser", context["runAsUser"] == 65532);
    expect(
        "seccompProfile",
        context["seccompProfile"]["type"] == "RuntimeDefault",
    );
    for namespace in ["hostNetwork", "hostPID", "hostIPC"] {
        expect(namespace, spec[namespace].is_null());
    }
    expect("priorityClassName", {
        let class = spec["priorityClassName"].as_str().unwrap_or_default();
        !class.starts_with("system-")
    });
    for volume in spec["volumes"].as_array().unwrap() {
        expect("hostPath", volume["hostPath"].is_null());
    }
    let containers = ["containers", "initContainers"].map(|it| spec[it].as_array());
    for container in containers.into_iter().flatten().flatten() {
        let name = &container["name"];
        let context = &container["securityContext"];
        let mut expect = |what: &str, is: bool| expect(&format!("{name}: {what}"), is);
        expect(
            "allowPrivilegeEscalation",
            context["allowPrivilegeEscalation"] == false,
        );
        expect(
            "capabilities",
            context["capabilities"] == json!({"drop": ["ALL"]}),
        );
        expect(
            "readOnlyRootFilesystem",
            context["readOnlyRootFilesystem"] == true,
        );
        expect("privileged", context["privileged"].is_null());
        expect("runAsUser", context["runAsUser"].is_null());
        for port in container["ports"].as_array().into_iter().flatten() {
            expect("hostPort", port["hostPort"].is_null());
        }
    }
    found
}
