//! Documents with mistakes: the complete text that a person reads.

use expect_test::expect;

use super::{check, check_spec, document};

#[test]
fn sizes() {
    check_spec(
        "spec: {size: 2}",
        &expect![[r#"
            line 5: spec.size: found the number 2: allowed are 0 (stopped, everything kept), 1, 3, 5 and 7: an even number survives no more failures than the one below it
            line 5: spec.size: found the number 2: more than 1 member is not supported on hosts yet, only in Kubernetes"#]],
    );
    check_spec(
        "spec: {size: 3}",
        &expect![
            "line 5: spec.size: found the number 3: more than 1 member is not supported on hosts yet, only in Kubernetes"
        ],
    );
    check_spec(
        "spec: {size: 9}",
        &expect!["line 5: spec.size: found the number 9, allowed: 0 to 7"],
    );
    check_spec(
        "spec: {size: -1}",
        &expect!["line 5: spec.size: found the number -1, allowed: 0 to 7"],
    );
    check_spec(
        "spec: {size: '1'}",
        &expect!["line 5: spec.size: found '1', allowed: a whole number"],
    );
    check_spec(
        "spec: {size: 1.5}",
        &expect!["line 5: spec.size: found the number 1.5, allowed: a whole number"],
    );
    check_spec(
        "spec: {size: 99999999999999999999999999}",
        &expect!["line 5: spec.size: found the number 99999999999999999999999999, allowed: 0 to 7"],
    );
    check_spec(
        "spec: {size: [1]}",
        &expect!["line 5: spec.size: found a list, allowed: a whole number"],
    );
}

#[test]
fn versions() {
    check_spec(
        "spec: {version: 3.6}",
        &expect![
            "line 5: spec.version: found the number 3.6, allowed: a version such as 3.6.14, in quotes"
        ],
    );
    check_spec(
        "spec: {version: latest}",
        &expect![
            "line 5: spec.version: found 'latest': 'latest' is no number; allowed: a version such as 3.6.14"
        ],
    );
    check_spec(
        "spec: {version: 3.6.14-rc.1}",
        &expect![
            "line 5: spec.version: found '3.6.14-rc.1': '14-rc' is no number; allowed: a version such as 3.6.14"
        ],
    );
    check_spec(
        "spec: {version: 3.6.14.1}",
        &expect![
            "line 5: spec.version: found '3.6.14.1': it has 4 numbers, and a version has 3; allowed: a version such as 3.6.14"
        ],
    );
    check_spec(
        "spec: {version: 33333.6.14}",
        &expect![
            "line 5: spec.version: found '33333.6.14': a number has more than 4 digits; allowed: a version such as 3.6.14"
        ],
    );
}

#[test]
fn wrong_types() {
    check_spec(
        "spec:\n  size: big\n  paused: maybe\n  profile: 5\n  storage: [a]\n  network: none\n  clients: {name: k3s}\n  options:\n    logLevel: true\n    httpGateway: maybe\n    snapshotCount: many\n    autoCompaction:\n      mode: off\n",
        &expect![[r#"
            line 6: spec.size: found 'big', allowed: a whole number
            line 7: spec.paused: found 'maybe', allowed: true or false
            line 8: spec.profile: found the number 5, allowed: one of edge, standard, in quotes
            line 9: spec.storage: found a list, allowed: a map
            line 10: spec.network: found 'none', allowed: a map
            line 11: spec.clients: found a map, allowed: a list
            line 13: spec.options.logLevel: found true, allowed: one of debug, info, warn, error, in quotes
            line 14: spec.options.httpGateway: found 'maybe', allowed: true or false
            line 15: spec.options.snapshotCount: found 'many', allowed: a whole number
            line 17: spec.options.autoCompaction.mode: found false, allowed: one of periodic, revision, disabled, in quotes"#]],
    );
}

#[test]
fn words_that_are_not_allowed() {
    check_spec(
        "spec:\n  profile: egde\n  deletionPolicy: retain\n  options: {logLevel: trace}\n  maintenance: {onNoSpace: ignore}\n  tls: {mode: none}\n",
        &expect![[r#"
            line 6: spec.profile: found 'egde', allowed: one of edge, standard
            line 7: spec.deletionPolicy: found 'retain', allowed: one of Retain, Delete
            line 8: spec.options.logLevel: found 'trace', allowed: one of debug, info, warn, error
            line 9: spec.maintenance.onNoSpace: found 'ignore', allowed: one of repair, hold
            line 10: spec.tls.mode: found 'none', allowed: one of managed, secretRefs, disabledInsecure"#]],
    );
}

#[test]
fn sizes_in_bytes() {
    check_spec(
        "spec:\n  storage: {quota: 15Mi}\n  options: {memoryLimit: 63Mi}",
        &expect![[r#"
            line 6: spec.storage.quota: found '15Mi': at least 16Mi, written with Mi, Gi or Ti, or M, G or T
            line 7: spec.options.memoryLimit: found '63Mi': at least 64Mi, written with Mi, Gi or Ti, or M, G or T"#]],
    );
    check_spec(
        "spec:\n  storage: {quota: 8388608Ki}\n  options: {memoryLimit: '536870912'}",
        &expect![[r#"
            line 6: spec.storage.quota: found '8388608Ki': at least 16Mi, written with Mi, Gi or Ti, or M, G or T
            line 7: spec.options.memoryLimit: found '536870912': at least 64Mi, written with Mi, Gi or Ti, or M, G or T"#]],
    );
    check_spec(
        "spec:\n  options: {maxRequestSize: 11Mi}",
        &expect![[r#"
            line 6: spec.options.maxRequestSize: found '11Mi': at most 10Mi, as etcd advises; in Ki at most 9999, in bytes at most 9999999"#]],
    );
    check_spec(
        "spec:\n  storage: {quota: 512M}\n  options: {maxRequestSize: 1.5Mi}",
        &expect![
            "line 7: spec.options.maxRequestSize: found '1.5Mi': only whole numbers are allowed: 1536Ki; allowed: a size such as 512Mi or 2Gi"
        ],
    );
    check_spec(
        "spec:\n  storage: {quota: 0Gi}\n  options: {maxRequestSize: 1000000Ti}",
        &expect![[r#"
            line 6: spec.storage.quota: found '0Gi': it begins with 0; allowed: a size such as 512Mi or 2Gi
            line 7: spec.options.maxRequestSize: found '1000000Ti': it is too large; allowed: a size such as 512Mi or 2Gi"#]],
    );
    check_spec(
        "spec:\n  storage: {quota: 536870912}",
        &expect![
            "line 6: spec.storage.quota: found the number 536870912, allowed: a size such as 512Mi or 2Gi, in quotes"
        ],
    );
}

#[test]
fn ports() {
    check_spec(
        "spec:\n  network: {clientPort: 2380}",
        &expect!["line 6: spec.network: clientPort, peerPort and metricsPort must differ"],
    );
    check_spec(
        "spec:\n  network: {clientPort: 0, peerPort: 70000, metricsPort: 02381}",
        &expect![[r#"
            line 6: spec.network.clientPort: found the number 0, allowed: 1 to 65535
            line 6: spec.network.peerPort: found the number 70000, allowed: 1 to 65535
            line 6: spec.network.metricsPort: found '02381', allowed: a whole number"#]],
    );
}

#[test]
fn addresses() {
    check_spec(
        "spec:\n  network:\n    listenAddresses: [127.0.0.1, 300.1.1.1, localhost, 10.0.0.0/8, '::1%eth0']\n    advertisedAddresses: ['-edge', 'https://edge']\n",
        &expect![[r#"
            line 7: spec.network.listenAddresses: found a list, allowed: at most 4 items, here are 5
            line 7: spec.network.listenAddresses[1]: found '300.1.1.1': 300 is more than 255; allowed: an IP address such as 192.168.1.10
            line 7: spec.network.listenAddresses[2]: found 'localhost': 'l' (character 1) is not allowed; allowed: an IP address such as 192.168.1.10
            line 7: spec.network.listenAddresses[3]: found '10.0.0.0/8': '/' (character 9) is not allowed; allowed: an IP address such as 192.168.1.10
            line 7: spec.network.listenAddresses[4]: found '::1%eth0': '%' (character 4) is not allowed; allowed: an IP address such as 192.168.1.10
            line 8: spec.network.advertisedAddresses[0]: found '-edge': it begins with '-'; allowed: a DNS name or an IP address
            line 8: spec.network.advertisedAddresses[1]: found 'https://edge': '/' (character 7) is not allowed; allowed: a DNS name or an IP address"#]],
    );
    check_spec(
        "spec:\n  network:\n    listenAddresses: [300.1.1.1, '1:2', 1.2]\n    advertisedAddresses: []\n",
        &expect![[r#"
            line 7: spec.network.listenAddresses[0]: found '300.1.1.1': 300 is more than 255; allowed: an IP address such as 192.168.1.10
            line 7: spec.network.listenAddresses[1]: found '1:2': it has not the numbers of an address; allowed: an IP address such as 192.168.1.10
            line 7: spec.network.listenAddresses[2]: found the number 1.2, allowed: an IP address such as 192.168.1.10, in quotes
            line 8: spec.network.advertisedAddresses: found a list, allowed: at least 1 items, here are 0"#]],
    );
}

#[test]
fn addresses_that_only_look_like_some() {
    check_spec(
        "spec:\n  network:\n    listenAddresses: [300.1.1.1, '1:2', 127.0.0.1]",
        &expect![[r#"
            line 7: spec.network.listenAddresses[0]: found '300.1.1.1': 300 is more than 255; allowed: an IP address such as 192.168.1.10
            line 7: spec.network.listenAddresses[1]: found '1:2': it has not the numbers of an address; allowed: an IP address such as 192.168.1.10"#]],
    );
    check_spec(
        "spec:\n  network:\n    listenAddresses: ['1:2:3', '1::2::3', '::1']\n  profil: edge",
        &expect![[r#"
            line 7: spec.network.listenAddresses[0]: found '1:2:3', allowed: an IP address such as 192.168.1.10
            line 7: spec.network.listenAddresses[1]: found '1::2::3', allowed: an IP address such as 192.168.1.10
            line 8: spec.profil: unknown field; did you mean profile?"#]],
    );
}

#[test]
fn timing() {
    check_spec(
        "spec:\n  options: {heartbeatMilliseconds: 100}",
        &expect![
            "line 6: spec.options: heartbeatMilliseconds and electionMilliseconds are set together or not at all"
        ],
    );
    check_spec(
        "spec:\n  options: {heartbeatMilliseconds: 500, electionMilliseconds: 1000}",
        &expect![
            "line 6: spec.options: electionMilliseconds must be at least 5 times heartbeatMilliseconds"
        ],
    );
    check_spec(
        "spec:\n  options: {heartbeatMilliseconds: 1, electionMilliseconds: 99999}",
        &expect![[r#"
            line 6: spec.options.heartbeatMilliseconds: found the number 1, allowed: 10 to 5000
            line 6: spec.options.electionMilliseconds: found the number 99999, allowed: 50 to 50000"#]],
    );
}

#[test]
fn paths() {
    check_spec(
        "spec:\n  storage: {path: data}",
        &expect![
            "line 6: spec.storage.path: found 'data': it does not begin with /; allowed: an absolute path such as /mnt/etcd"
        ],
    );
    check_spec(
        "spec:\n  storage: {path: /mnt/../etc}",
        &expect![
            "line 6: spec.storage.path: found '/mnt/../etc': it has . or .. as a directory; allowed: an absolute path such as /mnt/etcd"
        ],
    );
    check_spec(
        "spec:\n  storage: {path: /mnt/data/}",
        &expect![
            "line 6: spec.storage.path: found '/mnt/data/': it ends with /; allowed: an absolute path such as /mnt/etcd"
        ],
    );
    check_spec(
        "spec:\n  storage: {path: \"/mnt/a\\nb\"}",
        &expect![[
            r#"line 6: spec.storage.path: found '/mnt/a\nb': a control character (character 7) is not allowed; allowed: an absolute path such as /mnt/etcd"#
        ]],
    );
    let long = format!("spec:\n  storage: {{path: /{}}}", "d".repeat(300));
    check_spec(
        &long,
        &expect![
            "line 6: spec.storage.path: found '/ddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd...', allowed: at most 256 characters, here are 301"
        ],
    );
}

#[test]
fn unknown_fields() {
    check(
        &format!(
            "{}statsu: {{}}\n",
            document("spec: {}").replace("  name:", "  lables: {}\n  name:")
        ),
        &expect![[r#"
            line 4: metadata.lables: unknown field; did you mean labels?
            line 7: statsu: unknown field; did you mean status?"#]],
    );
    check_spec(
        "spec:\n  profil: edge\n  Size: 1\n  network:\n    clientport: 2379\n  options:\n    autoCompaction: {retentionHours: 1}\n  clients:\n    - nane: k3s\n  somethingElseEntirely: 1\n",
        &expect![[r#"
            line 6: spec.profil: unknown field; did you mean profile?
            line 7: spec.Size: unknown field; did you mean size?
            line 9: spec.network.clientport: unknown field; did you mean clientPort?
            line 11: spec.options.autoCompaction.retentionHours: unknown field
            line 13: spec.clients[0].nane: unknown field; did you mean name?
            line 13: spec.clients[0].name: is missing
            line 14: spec.somethingElseEntirely: unknown field"#]],
    );
}

#[test]
fn a_mistake_hides_no_other() {
    check_spec(
        "spec:\n  size: 3\n  profil: edge\n  network: {clientPort: 2380}\n  storage: {quota: 1Mi, path: data}\n  backup: {interval: often}\n  image: etcd\n  clients: [{name: a}, {name: a}]\n  options: {heartbeatMilliseconds: 100}\n",
        &expect![[r#"
            line 6: spec.size: found the number 3: more than 1 member is not supported on hosts yet, only in Kubernetes
            line 7: spec.profil: unknown field; did you mean profile?
            line 8: spec.network: clientPort, peerPort and metricsPort must differ
            line 9: spec.storage.path: found 'data': it does not begin with /; allowed: an absolute path such as /mnt/etcd
            line 9: spec.storage.quota: found '1Mi': at least 16Mi, written with Mi, Gi or Ti, or M, G or T
            line 10: spec.backup.interval: found 'often': 'o' (character 1) is no digit; allowed: a time span such as 30m or 6h
            line 10: spec.backup.destinations: is missing
            line 12: spec.clients: each name may appear once
            line 13: spec.options: heartbeatMilliseconds and electionMilliseconds are set together or not at all"#]],
    );
}

/// The default takes the place of the mistyped port and meets the other one.
#[test]
fn a_mistake_breaks_no_rule_that_nobody_broke() {
    check_spec(
        "spec:\n  network: {clientport: 12379, peerPort: 2379}\n  options: {heartbeatMilliseconds: ten, electionMilliseconds: 1000}",
        &expect![[r#"
            line 6: spec.network.clientport: unknown field; did you mean clientPort?
            line 7: spec.options.heartbeatMilliseconds: found 'ten', allowed: a whole number"#]],
    );
}

#[test]
fn the_kind_of_document() {
    check(
        "spec: {}",
        &expect![[r#"
        apiVersion: is missing; it must be etcd.edge-operator.io/v1alpha1
        kind: is missing; it must be EtcdCluster
        metadata.name: is missing; it names the cluster"#]],
    );
    check(
        &document("spec: {}").replace("v1alpha1", "v1"),
        &expect![
            "line 1: apiVersion: found 'etcd.edge-operator.io/v1', allowed is etcd.edge-operator.io/v1alpha1"
        ],
    );
    check(
        &document("spec: {}").replace("EtcdCluster", "ConfigMap"),
        &expect!["line 2: kind: found 'ConfigMap', allowed is EtcdCluster"],
    );
    check(
        "apiVersion: 1\nkind: [EtcdCluster]\nmetadata: edge\nspec: []\n",
        &expect![[r#"
            line 1: apiVersion: found the number 1, allowed is etcd.edge-operator.io/v1alpha1
            line 2: kind: found a list, allowed is EtcdCluster
            line 3: metadata: found 'edge', allowed: a map with name
            line 4: spec: found a list, allowed: a map"#]],
    );
    check(
        &document(""),
        &expect!["spec: is missing; spec: {} takes every default"],
    );
    check(
        &document("spec:"),
        &expect!["line 5: spec: is missing; spec: {} takes every default"],
    );
    check(
        &document("{}").replace("\n{}", ""),
        &expect!["spec: is missing; spec: {} takes every default"],
    );
}

#[test]
fn names() {
    let named = |name: &str| document("spec: {}").replace("edge\n", &format!("{name}\n"));
    check(
        &named(""),
        &expect!["line 4: metadata.name: found nothing, allowed: a name, in quotes"],
    );
    check(
        &named("Edge"),
        &expect![
            "line 4: metadata.name: found 'Edge': 'E' (character 1) is not allowed; allowed: lower-case letters, digits and '-', at most 50"
        ],
    );
    check(
        &named("edge.one"),
        &expect![
            "line 4: metadata.name: found 'edge.one': '.' (character 5) is not allowed; allowed: lower-case letters, digits and '-', at most 50"
        ],
    );
    check(
        &named("-edge"),
        &expect![
            "line 4: metadata.name: found '-edge': it begins with '-'; allowed: lower-case letters, digits and '-', at most 50"
        ],
    );
    check(
        &named(&"e".repeat(51)),
        &expect![
            "line 4: metadata.name: found 'eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee': it has 51 characters; allowed: lower-case letters, digits and '-', at most 50"
        ],
    );
    check(
        &named("7"),
        &expect!["line 4: metadata.name: found the number 7, allowed: a name, in quotes"],
    );
    check(
        &document("spec: {}").replace("  name: edge", "  labels: {}"),
        &expect!["line 3: metadata.name: is missing; it names the cluster"],
    );
}

#[test]
fn clients() {
    check_spec(
        "spec:\n  clients: [{name: etcd-operator}]",
        &expect!["line 6: spec.clients: etcd-operator is the operator's own name; choose another"],
    );
    check_spec(
        "spec:\n  clients:\n    - name: k3s\n    - name: backup\n    - name: k3s\n",
        &expect!["line 6: spec.clients: each name may appear once"],
    );
    check_spec(
        "spec:\n  clients: [{name: K3S}, {name: no}, {}, k3s]",
        &expect![[r#"
            line 6: spec.clients[0].name: found 'K3S': 'K' (character 1) is not allowed; allowed: lower-case letters, digits and '-', beginning and ending with a letter or digit
            line 6: spec.clients[1].name: found false, allowed: lower-case letters, digits and '-', beginning and ending with a letter or digit, in quotes
            line 6: spec.clients[2].name: is missing
            line 6: spec.clients[3]: found 'k3s', allowed: a map"#]],
    );
    let many: Vec<String> = (0..17)
        .map(|it| format!("    - name: client-{it}\n"))
        .collect();
    let many = many.concat();
    check_spec(
        &format!("spec:\n  clients:\n{many}"),
        &expect!["line 6: spec.clients: found a list, allowed: at most 16 items, here are 17"],
    );
}

#[test]
fn nulls() {
    check_spec(
        "spec:\n  clients: [null]\n  network: {listenAddresses: [~]}",
        &expect![[r#"
            line 6: spec.clients[0]: found nothing, allowed: a map
            line 7: spec.network.listenAddresses[0]: found nothing, allowed: an IP address such as 192.168.1.10, in quotes"#]],
    );
    check_spec(
        "spec:\n  backup: {destinations: }",
        &expect!["line 6: spec.backup.destinations: is missing"],
    );
    check(
        "apiVersion:\nkind:\nmetadata:\nspec:\n",
        &expect![[r#"
        metadata.name: is missing; it names the cluster
        line 1: apiVersion: found nothing, allowed is etcd.edge-operator.io/v1alpha1
        line 2: kind: found nothing, allowed is EtcdCluster
        line 4: spec: is missing; spec: {} takes every default"#]],
    );
}

#[test]
fn what_was_found_stays_on_its_line() {
    check_spec(
        "spec: {version: \"3\\n\\e[31m6\", \"a\\nb\": 1}",
        &expect![[r#"
            line 5: spec.version: found '3\n\u{1b}[31m6': '3\n\u{1b}[31m6' is no number; allowed: a version such as 3.6.14
            line 5: spec.a\nb: unknown field"#]],
    );
    check_spec(
        &format!("spec: {{version: {0}, {0}: 1}}", "x".repeat(500)),
        &expect![[r#"
            line 5: spec.version: found 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...': 'xxxxxxxxxxxxxxxxxxxxxxxx...' is no number; allowed: a version such as 3.6.14
            line 5: spec.version: found 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...', allowed: at most 16 characters, here are 500
            line 5: spec.xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...: unknown field"#]],
    );
}
