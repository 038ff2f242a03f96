//! Pods that admission makes something else of: another image, a sidecar, a longer grace. A Pod is compared by what the operator
//! asked for, so nobody is restarted for that.

use serde_json::json;

use crate::lab::SOON;
use crate::operated::{Operated, document};
use crate::several::{GROWS_WITHIN, MEMBERS, whole};

/// What a mesh and a mirror do, by the API server itself.
const CHANGES: &str = r#"
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: mesh}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}
  matchConditions:
  - name: members
    expression: object.metadata.?labels[?'app.kubernetes.io/component'].orValue('') == 'member'
  failurePolicy: Fail
  reinvocationPolicy: Never
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: >-
        Object{
          metadata: Object.metadata{annotations: {"mesh.example.com/status": "injected"}},
          spec: Object.spec{
            terminationGracePeriodSeconds: 45,
            containers: [
              Object.spec.containers{
                name: "aside",
                image: "localhost/pause:1",
                securityContext: Object.spec.containers.securityContext{allowPrivilegeEscalation: PRIVILEGED}
              },
              Object.spec.containers{name: "etcd", image: "MIRROR"}
            ]
          }
        }
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: mesh}
spec: {policyName: mesh}
"#;

#[test]
fn pods_that_admission_changed_are_restarted_for_an_edit_only() {
    let Some(it) = Operated::up() else {
        return;
    };
    let reference = it.images.etcd["3.6"].reference.clone();
    let mirror = reference.replace("quay.io/", "mirror.example.com/");
    it.tag_image(&reference, &mirror);
    let mesh = |privileged: &str| {
        let text = CHANGES.replace("MIRROR", &mirror);
        it.apply(&text.replace("PRIVILEGED", privileged));
    };
    mesh("true");
    it.eventually("the policy to be in force", SOON, || {
        let made = it.kubectl(&[
            "run",
            "tried",
            "--image=localhost/pause:1",
            "--labels=app.kubernetes.io/component=member",
            "--dry-run=server",
            "--output=jsonpath={.spec.containers[*].name}",
        ]);
        made.stdout.contains("aside").then_some(())
    });
    it.apply(&document("EtcdCluster", "shop", "{size: 3}"));
    // The policy that limits the operator's own account takes no privileges, whoever added them.
    let held = it.says("shop", "Degraded", "PodRefused")["message"].to_string();
    assert!(
        held.contains("is refused a container with privileges"),
        "{held}"
    );
    mesh("false");
    whole(&it, 3);
    let pod = it.json(&["get", "pod", "shop-1"]);
    let containers = pod["spec"]["containers"].as_array().unwrap();
    let images: Vec<_> = containers.iter().map(|it| &it["image"]).collect();
    assert_eq!(images.len(), 2, "{images:?}");
    assert!(images.contains(&&json!(mirror)), "{images:?}");
    assert_eq!(pod["spec"]["terminationGracePeriodSeconds"], 45);

    let pods = || MEMBERS.map(|name| it.uid("pod", name).unwrap());
    let restarts = |patch: &str, what: &str| {
        let before = pods();
        it.patch("shop", patch);
        it.eventually(what, GROWS_WITHIN, || {
            let now = it.cluster("shop");
            let seen = now["status"]["observedGeneration"] == now["metadata"]["generation"];
            let accepted = now["status"]["conditions"].as_array()?.iter();
            let in_force = accepted.clone().any(|it| it["reason"] == "InForce");
            (seen && in_force).then_some(())
        });
        whole(&it, 3);
        let after = pods();
        let changed = before
            .iter()
            .zip(&after)
            .filter(|(one, other)| one != other);
        changed.count()
    };
    // The next operator knows no more than what stands in the Pods.
    it.next_operator();
    let none = restarts(
        r#"{"spec": {"recovery": {"graceMinutes": 7}}}"#,
        "the first edit",
    );
    assert_eq!(none, 0, "nothing of it concerns a Pod");
    let all = restarts(
        r#"{"spec": {"options": {"snapshotCount": 4321}}}"#,
        "the second edit",
    );
    assert_eq!(all, 3);
    let none = restarts(
        r#"{"spec": {"recovery": {"graceMinutes": 8}}}"#,
        "the third edit",
    );
    assert_eq!(none, 0, "each was restarted once");
}
