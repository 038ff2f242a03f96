//! Fields that have no effect yet are refused, never ignored.

use expect_test::expect;

use super::check_spec;

#[test]
fn each_field_without_effect() {
    check_spec(
        "spec:\n  storage: {memory: {sizeLimit: 1Gi}}",
        &expect!["line 6: spec.storage.memory: not supported yet"],
    );
    check_spec(
        "spec:\n  tls: {mode: secretRefs}",
        &expect!["line 6: spec.tls.mode: found 'secretRefs': only managed is supported yet"],
    );
    check_spec(
        "spec:\n  tls: {mode: disabledInsecure}",
        &expect!["line 6: spec.tls.mode: found 'disabledInsecure': only managed is supported yet"],
    );
    check_spec(
        "spec:\n  tls: {secretRefs: {server: a, peer: b, operator: c}}",
        &expect!["line 6: spec.tls.secretRefs: not supported yet"],
    );
    check_spec(
        "spec:\n  maintenance:\n    defragment: {fragmentationPercent: 50, minimumSize: 100Mi}",
        &expect!["line 7: spec.maintenance.defragment: not supported yet"],
    );
    check_spec(
        "spec:\n  maintenance:\n    windows: [{schedule: 0 3 * * *, minutes: 60}]",
        &expect!["line 7: spec.maintenance.windows: not supported yet"],
    );
    check_spec(
        "spec:\n  hosts: [{name: one, address: 10.0.0.1}]",
        &expect!["line 6: spec.hosts: not supported yet"],
    );
    check_spec(
        "spec:\n  size: 5",
        &expect![
            "line 6: spec.size: found the number 5: more than 1 member is not supported on hosts yet, only in Kubernetes"
        ],
    );
}

#[test]
fn several_at_once_even_where_they_are_wrong_in_themselves() {
    check_spec(
        "spec:\n  storage:\n    path: /mnt\n    memory: {sizeLimit: much}\n    volumeClaim: {}\n  bootstrap: latest\n  hosts: [{name: One}]\n  pod:\n    labels: {a: 1}\n",
        &expect![[r#"
            line 8: spec.storage.memory.sizeLimit: found 'much': 'm' (character 1) is no digit; allowed: a size such as 512Mi or 2Gi
            line 8: spec.storage.memory: not supported yet
            line 9: spec.storage.volumeClaim.size: is missing
            line 10: spec.bootstrap: found 'latest', allowed: a map
            line 11: spec.hosts[0].name: found 'One': 'O' (character 1) is not allowed; allowed: lower-case letters, digits and '-', beginning and ending with a letter or digit
            line 11: spec.hosts[0].address: is missing
            line 11: spec.hosts: not supported yet
            line 13: spec.pod.labels.a: found the number 1, allowed: text, in quotes if it looks like a number"#]],
    );
}
