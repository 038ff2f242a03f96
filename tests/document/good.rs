//! Documents that are accepted, and what they mean.

use etcd_operator::api::EtcdClusterSpec;
use etcd_operator::api::rules::{OF_KUBERNETES, RULES};
use etcd_operator::document::{Schema, parse, parse_against};
use etcd_operator::spec::ClusterSpec;
use expect_test::expect;
use serde_json::{Value as Json, json};

use super::document;
use super::random::{self, Random};

pub(crate) const EXAMPLE: &str = include_str!("../../deploy/examples/host.yaml");

/// Every field that has an effect.
pub(crate) const LARGEST: &str = "\
# Every field that has an effect.
apiVersion: etcd.edge-operator.io/v1alpha1
kind: EtcdCluster
metadata: {name: edge, namespace: default, labels: {app: etcd}, annotations: {note: 'a: b'}}
spec:
  size: 1
  version: v3.6.14
  paused: false
  profile: standard
  storage:
    path: /mnt/etcd
    quota: 512Mi
    unsafeFilesystem: allow
  network:
    clientPort: 12379
    peerPort: 12380
    metricsPort: 12381
    listenAddresses:
    - 127.0.0.1
    - '::1'
    - \"10.0.0.1\"
    advertisedAddresses: [edge.local, 10.0.0.1]
  tls: {mode: managed, leafDays: 90}
  clients:
  - name: k3s
  - {name: backup}
  options:
    autoCompaction: &compaction
      mode: disabled
      retention: 3
    heartbeatMilliseconds: 100
    electionMilliseconds: 1000
    snapshotCount: 5000
    maxRequestSize: 1536Ki
    maxTransactionOperations: 256
    memoryLimit: 128Mi
    httpGateway: false
    logLevel: warn
  maintenance: {onNoSpace: hold, windows: []}
  recovery:
    singleMember: restoreLatestVerified
  deletionPolicy: Retain
  backup:
    schedule: 15 3 * * 1-5
    destinations:
    - local: {path: /mnt/backup, keep: 3, keepDaily: 7, maxBytes: 2Gi}
    - s3:
        bucket: backup
        prefix: shops/berlin
        endpoint: https://s3.example.com:9000
        region: garage
        pathStyle: true
        caFile: /etc/ca.pem
        credentials: /etc/s3
        keep: 30
        bandwidth: 1Mi
        encryption: {recipients: [age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p]}
    verify: {level: 4, every: 7d}
    copyGrace: 72h
    trustedSigners: ['ed25519:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=']
  bootstrap: {from: latest}
  hosts: []
";

/// What `kubectl get -o yaml` prints.
pub(crate) const EXPORT: &str = r#"
apiVersion: etcd.edge-operator.io/v1alpha1
kind: EtcdCluster
metadata:
  annotations:
    kubectl.kubernetes.io/last-applied-configuration: |
      {"apiVersion":"etcd.edge-operator.io/v1alpha1","kind":"EtcdCluster","metadata":{"annotations":{},"name":"edge","namespace":"default"},"spec":{}}
  creationTimestamp: "2026-01-01T00:00:00Z"
  deletionGracePeriodSeconds: 0
  deletionTimestamp: "2026-01-02T00:00:00Z"
  finalizers:
  - etcd.edge-operator.io/finalizer
  generation: 2
  managedFields:
  - apiVersion: etcd.edge-operator.io/v1alpha1
    fieldsType: FieldsV1
    fieldsV1:
      f:metadata:
        f:annotations:
          .: {}
          f:kubectl.kubernetes.io/last-applied-configuration: {}
      f:spec: {}
    manager: kubectl-client-side-apply
    operation: Update
    time: "2026-01-01T00:00:00Z"
  name: edge
  namespace: default
  resourceVersion: "4711"
  uid: 0b5a1c4e-8d1f-4a43-9d5e-1f2e3d4c5b6a
spec:
  deletionPolicy: Retain
  maintenance:
    onNoSpace: repair
  network:
    clientPort: 2379
    metricsPort: 2381
    peerPort: 2380
  options:
    autoCompaction:
      mode: periodic
      retention: 1
    logLevel: info
  paused: false
  profile: edge
  recovery:
    singleMember: hold
  size: 1
  storage:
    unsafeFilesystem: refuse
  tls:
    leafDays: 365
    mode: managed
status:
  conditions:
  - lastTransitionTime: "2026-01-01T00:00:00Z"
    message: reads and writes are served
    reason: Serving
    status: "True"
    type: Available
  observedGeneration: 2
"#;

#[track_caller]
fn accepted(text: &str) -> ClusterSpec {
    parse(text.as_bytes()).unwrap_or_else(|it| panic!("{it}\n{text}"))
}

/// The same document as JSON, through the typed form.
fn typed(text: &str) -> String {
    let mut document: Json = serde_saphyr::from_str(text).unwrap();
    let fields = document["spec"].as_object_mut().unwrap();
    fields.retain(|_, it| !it.is_null());
    let wire: EtcdClusterSpec = serde_json::from_value(document["spec"].clone()).unwrap();
    document["spec"] = serde_json::to_value(wire).unwrap();
    document.to_string()
}

#[test]
fn the_example_is_accepted() {
    let spec = accepted(EXAMPLE);
    assert_eq!((spec.name.as_str(), spec.size), ("edge", 1));
    assert_eq!(spec, accepted(&typed(EXAMPLE)));
}

#[test]
fn an_empty_spec_takes_every_default() {
    let spec = accepted(&document("spec: {}"));
    expect![[r#"
        ClusterSpec {
            name: "edge",
            size: 1,
            members: [
                MemberSpec {
                    name: "edge-0",
                    peer_url: "https://127.0.0.1:2380",
                },
            ],
            former: [],
            own: 0,
            version: None,
            paused: false,
            profile: Edge,
            quota: None,
            storage_path: None,
            unsafe_filesystem_allowed: false,
            network: Network {
                client_port: 2379,
                peer_port: 2380,
                metrics_port: 2381,
                listen: [],
                advertised: [],
            },
            leaf_seconds: 31536000,
            clients: [],
            options: Options {
                auto_compaction: Hours(
                    1,
                ),
                heartbeat: None,
                election: None,
                snapshot_count: None,
                max_request_bytes: None,
                max_txn_ops: None,
                memory_limit: None,
                http_gateway: true,
                log_level: "info",
            },
            repair_no_space: true,
            backup: None,
            bootstrap: None,
            restore_when_damaged: false,
            replace_failed: true,
            grace_seconds: 600,
            skip_rehearsal: None,
            settings: Settings(
                14695981039346656037,
            ),
        }
    "#]]
    .assert_debug_eq(&spec);
}

#[test]
fn every_field_with_an_effect_arrives() {
    let it = accepted(LARGEST);
    let parts = [
        format!("{:?}", (&it.name, it.size, &it.members, it.version)),
        format!("{:?}", (it.paused, it.profile, it.leaf_seconds)),
        format!("{:?}", (it.quota, &it.storage_path)),
        format!("{:?}", (it.unsafe_filesystem_allowed, it.repair_no_space)),
        format!("{:?}", it.network),
        format!("{:?}", it.clients),
        format!("{:?}", it.options),
        format!("{:?}", it.backup),
        format!("{:?}", (&it.bootstrap, it.restore_when_damaged)),
        // A contract with the file that the previous operator wrote.
        format!("{:?}", it.settings),
    ];
    expect![[r#"
        ("edge", 1, [MemberSpec { name: "edge-0", peer_url: "https://127.0.0.1:12380" }], Some(Version { major: 3, minor: 6, patch: 14 }))
        (false, Standard, 7776000)
        (Some(536870912), Some("/mnt/etcd"))
        (true, false)
        Network { client_port: 12379, peer_port: 12380, metrics_port: 12381, listen: [127.0.0.1, ::1, 10.0.0.1], advertised: ["edge.local", "10.0.0.1"] }
        ["k3s", "backup"]
        Options { auto_compaction: Off, heartbeat: Some(100), election: Some(1000), snapshot_count: Some(5000), max_request_bytes: Some(1572864), max_txn_ops: Some(256), memory_limit: Some(134217728), http_gateway: false, log_level: "warn" }
        Some(Backup { trigger: Some(Schedule("15 3 * * 1-5")), destinations: [Destination { place: Local("/mnt/backup"), keep: Keep { last: 3, hourly: 0, daily: 7, weekly: 0, max_bytes: 2147483648 } }, Destination { place: S3(S3 { bucket: "backup", prefix: "shops/berlin", endpoint: Some("https://s3.example.com:9000"), region: Some("garage"), path_style: true, ca_file: Some("/etc/ca.pem"), credentials: Some("/etc/s3"), bandwidth: Some(1048576), recipients: ["age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"] }), keep: Keep { last: 30, hourly: 0, daily: 0, weekly: 0, max_bytes: 68719476736 } }], verify_level: 4, verify_every: Some(604800), copy_grace: 259200, trusted_signers: ["ed25519:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="] })
        (Some(Latest), true)
        Settings(14186547243880335383)"#]].assert_eq(&parts.join("\n"));
    assert_eq!(it, accepted(&typed(LARGEST)));
}

#[test]
fn an_export_from_an_api_server_is_the_document_that_was_applied() {
    assert_eq!(accepted(EXPORT), accepted(&document("spec: {}")));
}

#[test]
fn ways_to_write_the_same() {
    let plain = accepted(&document("spec: {size: 0, paused: true}"));
    for text in [
        "spec:\n  size: 0\n  paused: yes",
        "spec:\r\n  size: 0\r\n  paused: true\r\n",
        "spec: {\"size\": 0, 'paused': !!bool \"true\"}",
        "spec: {<<: {size: 0, paused: false}, paused: true}",
        "spec: {size: 0, paused: true, version: , clients: , hosts: ~, network: null, backup: null}",
        "spec: {size: 0x0, paused: True}\n...\n",
        "spec: &spec {size: 0, paused: true}\nstatus: *spec",
    ] {
        assert_eq!(accepted(&document(text)), plain, "{text}");
    }
    let text = document("spec: {size: 0, paused: true}");
    assert_eq!(accepted(&format!("\u{feff}{text}")), plain);
    assert_eq!(accepted(&format!("%YAML 1.2\n---\n{text}")), plain);
    let json: Json = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(accepted(&json.to_string()), plain);
    assert_eq!(
        accepted(&serde_json::to_string_pretty(&json).unwrap()),
        plain
    );
}

/// The fields that differ from the default.
fn without_defaults(value: &Json, default: &Json) -> Json {
    let Json::Object(fields) = value else {
        return value.clone();
    };
    fields
        .iter()
        .filter(|(key, it)| default.get(key) != Some(it))
        .map(|(key, it)| (key.clone(), without_defaults(it, &default[key])))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// The spec without the fields that break a rule.
fn mended(wire: &EtcdClusterSpec) -> EtcdClusterSpec {
    let mut json = serde_json::to_value(wire).unwrap();
    let all = RULES.iter().chain(OF_KUBERNETES);
    for rule in all.filter(|it| !(it.holds)(wire)) {
        let pointer = format!("/{}", rule.path.replace('.', "/"));
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        // What a backup cannot do without goes with it.
        let (parent, key) = match parent {
            "/backup" => ("", "backup"),
            "/bootstrap" => ("", "bootstrap"),
            _ => (parent, key),
        };
        if let Some(Json::Object(fields)) = json.pointer_mut(parent) {
            fields.remove(key);
        }
    }
    serde_json::from_value(json).unwrap()
}

/// One document is good in both homes: what is a claim in Kubernetes is a directory of the operator's on a host, wherever
/// that lies.
#[test]
fn on_a_host_a_claim_is_a_directory() {
    for (local, there) in [
        ("{claimName: snaps}", "/claims/snaps"),
        ("{claim: {size: 2Gi}}", "/snapshots"),
        ("{}", "/snapshots"),
    ] {
        let text = format!(
            "apiVersion: etcd.edge-operator.io/v1alpha1\nkind: EtcdCluster\nmetadata: {{name: edge}}\n\
             spec: {{backup: {{destinations: [{{local: {local}}}, {{local: {{path: /mnt/usb}}}}]}}}}\n"
        );
        for home in ["/var/lib/etcd-operator", "/tmp/root/var/lib/etcd-operator"] {
            let read = etcd_operator::document::check(text.as_bytes()).unwrap();
            let read = read.at(std::path::Path::new(home));
            let all = read.spec.backup.unwrap().destinations;
            assert_eq!(
                all[0].local_path(),
                Some(format!("{home}{there}").as_str()),
                "{local}"
            );
            assert_eq!(all[1].local_path(), Some("/mnt/usb"));
        }
    }
}

#[test]
fn what_names_no_limit_has_one() {
    let text = "apiVersion: etcd.edge-operator.io/v1alpha1\nkind: EtcdCluster\nmetadata: {name: edge}\n\
                spec: {backup: {destinations: [{local: {path: /a, keep: 9}}, {local: {path: /b}}, {s3: {bucket: abc}}]}}\n";
    let spec = etcd_operator::document::parse(text.as_bytes()).unwrap();
    let backup = spec.backup.unwrap();
    let bytes = backup.destinations.iter().map(|it| it.keep.max_bytes >> 30);
    assert!(bytes.eq([8, 8, 64]));
}

#[test]
fn an_accepted_document_survives_the_typed_form() {
    let schema = Schema::load();
    let default: EtcdClusterSpec = serde_json::from_value(json!({})).unwrap();
    let default = serde_json::to_value(default).unwrap();
    let mut seen = [0, 0];
    for seed in 0..1000 {
        let mut wire = random::spec(&mut Random(seed));
        if seed % 2 == 0 {
            wire = mended(&wire);
        }
        let full = serde_json::to_value(&wire).unwrap();
        let parse = |spec: &Json| {
            let document = json!({"apiVersion": "etcd.edge-operator.io/v1alpha1", "kind": "EtcdCluster", "metadata": {"name": "edge"}, "spec": spec});
            parse_against(&schema, document.to_string().as_bytes())
        };
        let short = without_defaults(&full, &default);
        let again: EtcdClusterSpec = serde_json::from_value(short.clone()).unwrap();
        assert_eq!(again, wire, "SEED={seed}");
        match parse(&full) {
            Ok(spec) => assert_eq!(parse(&short), Ok(spec), "SEED={seed}"),
            Err(_) => assert!(parse(&short).is_err(), "SEED={seed}"),
        }
        let lawful = RULES
            .iter()
            .chain(OF_KUBERNETES)
            .all(|it| (it.holds)(&wire));
        assert_eq!(parse(&full).is_ok(), lawful, "SEED={seed}");
        seen[usize::from(lawful)] += 1;
    }
    assert!(seen[0] > 300 && seen[1] > 300, "{seen:?}");
}
