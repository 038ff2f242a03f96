//! Documents of the first operator. The examples are of every kind that its project showed, written anew.

use std::fmt::Write as _;

use etcd_operator::document::to_yaml;
use etcd_operator::document::v1beta2::convert;
use expect_test::{Expect, expect};

use crate::old::GROUP;

fn old(kind: &str, name: &str, spec: &str) -> String {
    format!("apiVersion: {GROUP}\nkind: {kind}\nmetadata: {{name: {name}}}\nspec:\n  {spec}\n")
}

/// Our documents, and below them the report.
#[track_caller]
fn converts(text: &str, expected: &Expect) {
    let said = match convert(text) {
        Ok(it) => {
            let documents: Vec<String> =
                it.documents.iter().map(|it| to_yaml(it).unwrap()).collect();
            let mut said = documents.join("---\n");
            for row in &it.report {
                let _ = writeln!(said, "# {row}");
            }
            said
        }
        Err(problems) => problems.to_string(),
    };
    expected.assert_eq(&said);
}

#[test]
fn the_simplest_cluster() {
    converts(
        &old(
            "EtcdCluster",
            "example-etcd-cluster",
            "{size: 3, version: 3.2.13}",
        ),
        &expect![[r#"
            apiVersion: etcd.edge-operator.io/v1alpha1
            kind: EtcdCluster
            metadata:
              name: example-etcd-cluster
            spec:
              size: 3
              version: "3.6.16"
            # line 3: EtcdCluster example-etcd-cluster: metadata.name: mapped to metadata.name
            # line 4: EtcdCluster example-etcd-cluster: spec: changed: clients spoke plain HTTP; now they need a certificate: the Secret example-etcd-cluster-client-admin has one, spec.clients makes others
            # line 4: EtcdCluster example-etcd-cluster: spec: changed: data went with the Pod; now a claim of the default StorageClass keeps it: spec.storage.volumeClaim
            # line 4: EtcdCluster example-etcd-cluster: spec: changed: etcd kept all old revisions; now those older than an hour are compacted: spec.options.autoCompaction
            # line 4: EtcdCluster example-etcd-cluster: spec: changed: this is another cluster, and empty: etcdctl make-mirror copies the keys, without leases, users and old revisions
            # line 5: EtcdCluster example-etcd-cluster: spec.size: mapped to spec.size
            # line 5: EtcdCluster example-etcd-cluster: spec.version: decide: '3.2.13' is too old for a new cluster of several members; 3.6.16 is written
        "#]],
    );
    let newer = old("EtcdCluster", "shop", "{size: 3, version: v3.6.15}");
    assert!(
        !convert(&newer).unwrap().is_open(),
        "a clean one exits with 0"
    );
}

#[test]
fn a_cluster_with_all_that_a_pod_may_have() {
    let spec = r#"size: 5
  version: 3.6.16
  repository: registry.example/mirror/etcd
  paused: true
  pod:
    labels: {team: till}
    annotations: {a: b}
    nodeSelector: {disk: flash}
    antiAffinity: true
    tolerations: [{key: edge, operator: Exists, effect: NoExecute, tolerationSeconds: 30}]
    resources: {requests: {cpu: 100m, memory: 64Mi, ephemeral-storage: 1Gi}, limits: {cpu: 1}}
    securityContext: {runAsUser: 9000}
    DNSTimeoutInSecond: 5
    ClusterDomain: edge.local"#;
    converts(
        &old("EtcdCluster", "shop", spec),
        &expect![[r#"
            apiVersion: etcd.edge-operator.io/v1alpha1
            kind: EtcdCluster
            metadata:
              name: shop
            spec:
              image: registry.example/mirror/etcd:v3.6.16
              paused: true
              pod:
                annotations:
                  a: b
                labels:
                  team: till
                nodeSelector:
                  disk: flash
                resources:
                  limits:
                    cpu: "1"
                  requests:
                    cpu: "100m"
                    memory: "64Mi"
                spread: required
                tolerations:
                - effect: NoExecute
                  key: edge
                  operator: Exists
              service:
                dnsDomain: edge.local
              size: 5
              version: "3.6.16"
            # line 3: EtcdCluster shop: metadata.name: mapped to metadata.name
            # line 4: EtcdCluster shop: spec: changed: clients spoke plain HTTP; now they need a certificate: the Secret shop-client-admin has one, spec.clients makes others
            # line 4: EtcdCluster shop: spec: changed: data went with the Pod; now a claim of the default StorageClass keeps it: spec.storage.volumeClaim
            # line 4: EtcdCluster shop: spec: changed: etcd kept all old revisions; now those older than an hour are compacted: spec.options.autoCompaction
            # line 4: EtcdCluster shop: spec: changed: this is another cluster, and empty: etcdctl make-mirror copies the keys, without leases, users and old revisions
            # line 5: EtcdCluster shop: spec.size: mapped to spec.size
            # line 6: EtcdCluster shop: spec.version: mapped to spec.version
            # line 7: EtcdCluster shop: spec.repository: decide: spec.image: registry.example/mirror/etcd:v3.6.16; the operator takes it by its --image-prefix
            # line 8: EtcdCluster shop: spec.paused: mapped to spec.paused
            # line 10: EtcdCluster shop: spec.pod.labels: mapped to spec.pod.labels
            # line 11: EtcdCluster shop: spec.pod.annotations: mapped to spec.pod.annotations
            # line 12: EtcdCluster shop: spec.pod.nodeSelector: mapped to spec.pod.nodeSelector
            # line 13: EtcdCluster shop: spec.pod.antiAffinity: mapped to spec.pod.spread: required
            # line 14: EtcdCluster shop: spec.pod.tolerations: changed: without tolerationSeconds: a member stays on its node, where its data is
            # line 15: EtcdCluster shop: spec.pod.resources.requests.cpu: mapped to spec.pod.resources.requests.cpu
            # line 15: EtcdCluster shop: spec.pod.resources.requests.memory: mapped to spec.pod.resources.requests.memory
            # line 15: EtcdCluster shop: spec.pod.resources.requests.ephemeral-storage: dropped: cpu and memory alone are asked for
            # line 15: EtcdCluster shop: spec.pod.resources.limits.cpu: mapped to spec.pod.resources.limits.cpu
            # line 16: EtcdCluster shop: spec.pod.securityContext: dropped: Pods are restricted: no root, no privileges, a group of their own for the volume
            # line 17: EtcdCluster shop: spec.pod.DNSTimeoutInSecond: dropped: no container waits for DNS
            # line 18: EtcdCluster shop: spec.pod.ClusterDomain: mapped to spec.service.dnsDomain
        "#]],
    );
}

#[test]
fn a_cluster_with_etcds_environment_and_a_claim() {
    let spec = r#"size: 3
  version: 3.6.16
  pod:
    etcdEnv:
    - {name: ETCD_AUTO_COMPACTION_MODE, value: periodic}
    - {name: ETCD_AUTO_COMPACTION_RETENTION, value: 1h}
    - {name: ETCD_QUOTA_BACKEND_BYTES, value: "2147483648"}
    - {name: ETCD_DEBUG, value: "true"}
    - {name: ETCD_ENABLE_V2, value: "true"}
    persistentVolumeClaimSpec: {storageClassName: fast, accessModes: [ReadWriteOnce], resources: {requests: {storage: 4Gi}}}"#;
    converts(
        &old("EtcdCluster", "shop", spec),
        &expect![[r#"
            apiVersion: etcd.edge-operator.io/v1alpha1
            kind: EtcdCluster
            metadata:
              name: shop
            spec:
              options:
                autoCompaction:
                  mode: periodic
                  retention: 1
                logLevel: debug
              size: 3
              storage:
                quota: "2Gi"
                volumeClaim:
                  size: "4Gi"
                  storageClassName: fast
              version: "3.6.16"
            # line 3: EtcdCluster shop: metadata.name: mapped to metadata.name
            # line 4: EtcdCluster shop: spec: changed: clients spoke plain HTTP; now they need a certificate: the Secret shop-client-admin has one, spec.clients makes others
            # line 4: EtcdCluster shop: spec: changed: this is another cluster, and empty: etcdctl make-mirror copies the keys, without leases, users and old revisions
            # line 5: EtcdCluster shop: spec.size: mapped to spec.size
            # line 6: EtcdCluster shop: spec.version: mapped to spec.version
            # line 9: EtcdCluster shop: spec.pod.etcdEnv[0]: mapped to spec.options.autoCompaction.mode: periodic
            # line 10: EtcdCluster shop: spec.pod.etcdEnv[1]: mapped to spec.options.autoCompaction.retention: 1
            # line 11: EtcdCluster shop: spec.pod.etcdEnv[2]: mapped to spec.storage.quota: 2Gi
            # line 12: EtcdCluster shop: spec.pod.etcdEnv[3]: mapped to spec.options.logLevel: debug
            # line 13: EtcdCluster shop: spec.pod.etcdEnv[4]: decide: ETCD_ENABLE_V2 has no field of its own here: it is left out
            # line 14: EtcdCluster shop: spec.pod.persistentVolumeClaimSpec.storageClassName: mapped to spec.storage.volumeClaim.storageClassName
            # line 14: EtcdCluster shop: spec.pod.persistentVolumeClaimSpec.accessModes: dropped: one node at a time, always
            # line 14: EtcdCluster shop: spec.pod.persistentVolumeClaimSpec.resources.requests.storage: mapped to spec.storage.volumeClaim.size
        "#]],
    );
}

#[test]
fn static_certificates_and_what_forks_have_need_a_person() {
    let spec = r#"size: 1
  version: 3.5.33
  TLS: {static: {member: {peerSecret: peer, serverSecret: server}, operatorSecret: client}}
  storageClass: fast"#;
    converts(
        &old("EtcdCluster", "shop", spec),
        &expect![[r#"
            apiVersion: etcd.edge-operator.io/v1alpha1
            kind: EtcdCluster
            metadata:
              name: shop
            spec:
              size: 1
              version: "3.5.33"
            # line 3: EtcdCluster shop: metadata.name: mapped to metadata.name
            # line 4: EtcdCluster shop: spec: changed: data went with the Pod; now a claim of the default StorageClass keeps it: spec.storage.volumeClaim
            # line 4: EtcdCluster shop: spec: changed: etcd kept all old revisions; now those older than an hour are compacted: spec.options.autoCompaction
            # line 4: EtcdCluster shop: spec: changed: this is another cluster, and empty: etcdctl make-mirror copies the keys, without leases, users and old revisions
            # line 5: EtcdCluster shop: spec.size: mapped to spec.size
            # line 6: EtcdCluster shop: spec.version: mapped to spec.version
            # line 7: EtcdCluster shop: spec.TLS.static.member.peerSecret: decide: the operator makes members' certificates by CAs of its own; clients need new ones, from the Secrets of spec.clients
            # line 7: EtcdCluster shop: spec.TLS.static.member.serverSecret: decide: the operator makes members' certificates by CAs of its own; clients need new ones, from the Secrets of spec.clients
            # line 7: EtcdCluster shop: spec.TLS.static.operatorSecret: decide: the operator makes the operator's certificates by CAs of its own; clients need new ones, from the Secrets of spec.clients
            # line 8: EtcdCluster shop: spec.storageClass: decide: this operator knows no such field of v1beta2; a fork's own, or mistyped: it is left out
        "#]],
    );
}

#[test]
fn a_backup_becomes_a_part_of_its_cluster() {
    let backup = r#"etcdEndpoints: ["http://shop-client:2379"]
  storageType: S3
  backupPolicy: {backupIntervalInSecond: 3600, maxBackups: 5, timeoutInSecond: 60}
  s3: {path: edge/shops/etcd.backup, awsSecret: aws, endpoint: "https://s3.example.com", forcePathStyle: true}"#;
    let cluster = old("EtcdCluster", "shop", "{size: 1, version: 3.6.16}");
    let text = format!("{}---\n{cluster}", old("EtcdBackup", "often", backup));
    converts(
        &text,
        &expect![[r#"
            apiVersion: etcd.edge-operator.io/v1alpha1
            kind: EtcdCluster
            metadata:
              name: shop
            spec:
              backup:
                destinations:
                - local: {}
                - s3:
                    bucket: edge
                    credentialsSecret: aws
                    endpoint: https://s3.example.com
                    keep: 5
                    pathStyle: true
                    prefix: shops
                interval: "1h"
              size: 1
              version: "3.6.16"
            # line 3: EtcdBackup often: metadata.name: mapped to metadata.name
            # line 4: EtcdBackup often: spec: changed: spec.backup.destinations[0]: {local: {}}, a claim: snapshots are verified there before they are copied
            # line 5: EtcdBackup often: spec.etcdEndpoints: mapped to spec.cluster: shop
            # line 6: EtcdBackup often: spec.storageType: mapped to spec.backup.destinations[1].s3
            # line 7: EtcdBackup often: spec.backupPolicy.backupIntervalInSecond: mapped to spec.backup.interval: 1h
            # line 7: EtcdBackup often: spec.backupPolicy.maxBackups: mapped to keep
            # line 7: EtcdBackup often: spec.backupPolicy.timeoutInSecond: dropped: a snapshot ends when nothing comes any more, however long it takes
            # line 8: EtcdBackup often: spec.s3.path: changed: bucket and prefix; the names of snapshots are the operator's own
            # line 8: EtcdBackup often: spec.s3.awsSecret: decide: credentialsSecret; look into the Secret: where its config names a region, set region
            # line 8: EtcdBackup often: spec.s3.endpoint: mapped to endpoint
            # line 8: EtcdBackup often: spec.s3.forcePathStyle: mapped to pathStyle
            # line 12: EtcdCluster shop: metadata.name: mapped to metadata.name
            # line 13: EtcdCluster shop: spec: changed: clients spoke plain HTTP; now they need a certificate: the Secret shop-client-admin has one, spec.clients makes others
            # line 13: EtcdCluster shop: spec: changed: data went with the Pod; now a claim of the default StorageClass keeps it: spec.storage.volumeClaim
            # line 13: EtcdCluster shop: spec: changed: etcd kept all old revisions; now those older than an hour are compacted: spec.options.autoCompaction
            # line 13: EtcdCluster shop: spec: changed: this is another cluster, and empty: etcdctl make-mirror copies the keys, without leases, users and old revisions
            # line 14: EtcdCluster shop: spec.size: mapped to spec.size
            # line 14: EtcdCluster shop: spec.version: mapped to spec.version
        "#]],
    );
}

#[test]
fn a_backup_without_its_cluster_names_the_command() {
    let backup = r#"etcdEndpoints: ["https://shop-client.default.svc:2379"]
  storageType: S3
  s3: {path: edge/etcd.backup, awsSecret: aws}
  clientTLSSecret: tls"#;
    converts(
        &old("EtcdBackup", "now", backup),
        &expect![[r#"
            apiVersion: etcd.edge-operator.io/v1alpha1
            kind: EtcdBackup
            metadata:
              name: now
            spec:
              cluster: shop
            # line 3: EtcdBackup now: metadata.name: mapped to metadata.name
            # line 4: EtcdBackup now: spec: changed: spec.backup.destinations[0]: {local: {}}, a claim: snapshots are verified there before they are copied
            # line 4: EtcdBackup now: spec: decide: the EtcdCluster shop is not among these documents; once it is there: kubectl patch etcdcluster shop -n default --type=merge -p '{"spec":{"backup":{"destinations":[{"local":{}},{"s3":{"bucket":"edge","credentialsSecret":"aws"}}]}}}'
            # line 5: EtcdBackup now: spec.etcdEndpoints: mapped to spec.cluster: shop
            # line 6: EtcdBackup now: spec.storageType: mapped to spec.backup.destinations[1].s3
            # line 7: EtcdBackup now: spec.s3.path: changed: bucket and prefix; the names of snapshots are the operator's own
            # line 7: EtcdBackup now: spec.s3.awsSecret: decide: credentialsSecret; look into the Secret: where its config names a region, set region
            # line 8: EtcdBackup now: spec.clientTLSSecret: dropped: the operator has a certificate of its own
        "#]],
    );
}

#[test]
fn other_stores_and_restores_need_a_person() {
    let stores = [("GCS", "gcs"), ("ABS", "abs"), ("OSS", "oss")].map(|(name, field)| {
        let spec = format!("{{etcdEndpoints: [\"http://shop-client:2379\"], storageType: {name}, {field}: {{path: a/b}}}}");
        old("EtcdBackup", &name.to_lowercase(), &spec)
    });
    let restore = "{etcdCluster: {name: shop}, backupStorageType: S3, s3: {path: edge/etcd.backup, awsSecret: aws}}";
    let text = format!(
        "{}---\n{}",
        stores.join("---\n"),
        old("EtcdRestore", "shop", restore)
    );
    converts(
        &text,
        &expect![[r#"
            apiVersion: etcd.edge-operator.io/v1alpha1
            kind: EtcdBackup
            metadata:
              name: gcs
            spec:
              cluster: shop
            ---
            apiVersion: etcd.edge-operator.io/v1alpha1
            kind: EtcdBackup
            metadata:
              name: abs
            spec:
              cluster: shop
            ---
            apiVersion: etcd.edge-operator.io/v1alpha1
            kind: EtcdBackup
            metadata:
              name: oss
            spec:
              cluster: shop
            # line 3: EtcdBackup gcs: metadata.name: mapped to metadata.name
            # line 4: EtcdBackup gcs: spec: changed: spec.backup.destinations[0]: {local: {}}, a claim: snapshots are verified there before they are copied
            # line 4: EtcdBackup gcs: spec: decide: the EtcdCluster shop is not among these documents; once it is there: kubectl patch etcdcluster shop -n default --type=merge -p '{"spec":{"backup":{"destinations":[{"local":{}}]}}}'
            # line 5: EtcdBackup gcs: spec.storageType: decide: no such store; Google's speaks S3 with HMAC keys: destinations: [{local: {}}, {s3: {endpoint: https://storage.googleapis.com, ...}}]
            # line 5: EtcdBackup gcs: spec.etcdEndpoints: mapped to spec.cluster: shop
            # line 5: EtcdBackup gcs: spec.gcs: dropped: no copy goes to this store
            # line 9: EtcdBackup abs: metadata.name: mapped to metadata.name
            # line 10: EtcdBackup abs: spec: changed: spec.backup.destinations[0]: {local: {}}, a claim: snapshots are verified there before they are copied
            # line 10: EtcdBackup abs: spec: decide: the EtcdCluster shop is not among these documents; once it is there: kubectl patch etcdcluster shop -n default --type=merge -p '{"spec":{"backup":{"destinations":[{"local":{}}]}}}'
            # line 11: EtcdBackup abs: spec.storageType: decide: Azure's store does not speak S3: no copy goes there; snapshots stay on the local claim
            # line 11: EtcdBackup abs: spec.etcdEndpoints: mapped to spec.cluster: shop
            # line 11: EtcdBackup abs: spec.abs: dropped: no copy goes to this store
            # line 15: EtcdBackup oss: metadata.name: mapped to metadata.name
            # line 16: EtcdBackup oss: spec: changed: spec.backup.destinations[0]: {local: {}}, a claim: snapshots are verified there before they are copied
            # line 16: EtcdBackup oss: spec: decide: the EtcdCluster shop is not among these documents; once it is there: kubectl patch etcdcluster shop -n default --type=merge -p '{"spec":{"backup":{"destinations":[{"local":{}}]}}}'
            # line 17: EtcdBackup oss: spec.storageType: decide: no such store; Alibaba's speaks S3: destinations: [{local: {}}, {s3: {endpoint: https://oss-REGION.aliyuncs.com, ...}}]
            # line 17: EtcdBackup oss: spec.etcdEndpoints: mapped to spec.cluster: shop
            # line 17: EtcdBackup oss: spec.oss: dropped: no copy goes to this store
            # line 21: EtcdRestore shop: metadata.name: dropped: no document of it
            # line 22: EtcdRestore shop: spec: decide: no document of it: edge/etcd.backup is a snapshot of the first operator, and an EtcdRestore takes those of shop's own destinations. Restore it with etcdutl into an etcd of your own, and copy its keys with etcdctl make-mirror
            # line 23: EtcdRestore shop: spec.etcdCluster.name: dropped: no document of it
            # line 23: EtcdRestore shop: spec.backupStorageType: dropped: no document of it
            # line 23: EtcdRestore shop: spec.s3.path: dropped: no document of it
            # line 23: EtcdRestore shop: spec.s3.awsSecret: dropped: no document of it; the Secret stays, and its keys read the snapshot
        "#]],
    );
}

#[test]
fn what_is_not_of_the_first_operator() {
    let other = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: etcd-operator}\n";
    converts(
        other,
        &expect![
            "there is no EtcdCluster, EtcdBackup or EtcdRestore of etcd.database.coreos.com/v1beta2 here"
        ],
    );
    let beside = format!(
        "# a comment\n---\n{other}---\n{}",
        old(
            "EtcdCluster",
            "shop",
            "{size: 4, version: 3.6.16, repositry: a}"
        )
    );
    converts(
        &beside,
        &expect![[r#"
            apiVersion: etcd.edge-operator.io/v1alpha1
            kind: EtcdCluster
            metadata:
              name: shop
            spec:
              size: 5
              version: "3.6.16"
            # line 3: Deployment etcd-operator: dropped: apps/v1 is none of the first operator's documents
            # line 9: EtcdCluster shop: metadata.name: mapped to metadata.name
            # line 10: EtcdCluster shop: spec: changed: clients spoke plain HTTP; now they need a certificate: the Secret shop-client-admin has one, spec.clients makes others
            # line 10: EtcdCluster shop: spec: changed: data went with the Pod; now a claim of the default StorageClass keeps it: spec.storage.volumeClaim
            # line 10: EtcdCluster shop: spec: changed: etcd kept all old revisions; now those older than an hour are compacted: spec.options.autoCompaction
            # line 10: EtcdCluster shop: spec: changed: this is another cluster, and empty: etcdctl make-mirror copies the keys, without leases, users and old revisions
            # line 11: EtcdCluster shop: spec.size: decide: 4 members survive no more losses than 3; 5 is written
            # line 11: EtcdCluster shop: spec.version: mapped to spec.version
            # line 11: EtcdCluster shop: spec.repositry: decide: this operator knows no such field of v1beta2; a fork's own, or mistyped: it is left out
        "#]],
    );
    let older = "apiVersion: etcd.coreos.com/v1beta1\nkind: Cluster\nmetadata: {name: shop}\n";
    converts(
        older,
        &expect![[r#"
            # line 2: Cluster shop: kind: decide: only EtcdCluster, EtcdBackup and EtcdRestore of etcd.database.coreos.com/v1beta2 are read, not this of etcd.coreos.com/v1beta1
        "#]],
    );
    converts(
        "a: [",
        &expect!["line 1: not valid YAML: unclosed bracket '['"],
    );
}

#[test]
fn what_is_wrong_in_a_field_is_left_out_and_told() {
    let spec = r#"size: 9
  version: latest
  pod: {labels: {a: [b]}, resources: {requests: {memory: 64MB}}, etcdEnv: [{name: ETCD_SNAPSHOT_COUNT, value: many}], persistentVolumeClaimSpec: {}}"#;
    converts(
        &old("EtcdCluster", "Shop", "{size: 1, version: 3.6.16}"),
        &expect![[r#"
            # line 3: EtcdCluster Shop: metadata.name: mapped to metadata.name
            # line 3: EtcdCluster Shop: decide: no document of it: metadata.name: found 'Shop': 'S' (character 1) is not allowed; allowed: lower-case letters, digits and '-', at most 50
            # line 4: EtcdCluster Shop: spec: changed: clients spoke plain HTTP; now they need a certificate: the Secret Shop-client-admin has one, spec.clients makes others
            # line 4: EtcdCluster Shop: spec: changed: data went with the Pod; now a claim of the default StorageClass keeps it: spec.storage.volumeClaim
            # line 4: EtcdCluster Shop: spec: changed: etcd kept all old revisions; now those older than an hour are compacted: spec.options.autoCompaction
            # line 4: EtcdCluster Shop: spec: changed: this is another cluster, and empty: etcdctl make-mirror copies the keys, without leases, users and old revisions
            # line 5: EtcdCluster Shop: spec.size: mapped to spec.size
            # line 5: EtcdCluster Shop: spec.version: mapped to spec.version
        "#]],
    );
    converts(
        &old("EtcdCluster", "shop", spec),
        &expect![[r#"
            apiVersion: etcd.edge-operator.io/v1alpha1
            kind: EtcdCluster
            metadata:
              name: shop
            spec:
              options: {}
              pod:
                labels: {}
                resources:
                  requests: {}
              size: 7
              storage:
                volumeClaim:
                  size: "2Gi"
              version: "3.6.16"
            # line 3: EtcdCluster shop: metadata.name: mapped to metadata.name
            # line 4: EtcdCluster shop: spec: changed: clients spoke plain HTTP; now they need a certificate: the Secret shop-client-admin has one, spec.clients makes others
            # line 4: EtcdCluster shop: spec: changed: etcd kept all old revisions; now those older than an hour are compacted: spec.options.autoCompaction
            # line 4: EtcdCluster shop: spec: changed: this is another cluster, and empty: etcdctl make-mirror copies the keys, without leases, users and old revisions
            # line 5: EtcdCluster shop: spec.size: decide: found 9, at most 7 are possible; 7 is written
            # line 6: EtcdCluster shop: spec.version: decide: 'latest' is no version; 3.6.16 is written
            # line 7: EtcdCluster shop: spec.pod.labels: mapped to spec.pod.labels
            # line 7: EtcdCluster shop: spec.pod.resources.requests.memory: decide: left out: spec.pod.resources.requests.memory: found '64MB': there is no unit 'MB': 64Mi, or 64M of thousands; allowed: a size such as 512Mi or 2Gi
            # line 7: EtcdCluster shop: spec.pod.etcdEnv[0]: decide: left out: spec.options.snapshotCount: found 'many', allowed: a whole number
            # line 7: EtcdCluster shop: spec.pod.persistentVolumeClaimSpec.resources.requests.storage: decide: it asks for no size; 2Gi is written
            # line 7: EtcdCluster shop: decide: left out: spec.pod.labels.a: found a list, allowed: text, in quotes if it looks like a number
        "#]],
    );
}

#[test]
fn the_command_says_by_its_exit_code_whether_a_person_has_to_look() {
    let clean = old("EtcdCluster", "shop", "{size: 1, version: 3.6.16}");
    let open = old("EtcdCluster", "shop", "{size: 2, version: 3.6.16}");
    for (text, code) in [(&*clean, 0), (&*open, 3), ("a: b", 2), ("\u{7}", 2)] {
        let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("old-{}.yaml", std::process::id()));
        std::fs::write(&file, text).unwrap();
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_etcd-operator"));
        let done = command.arg("convert").arg(&file).output().unwrap();
        std::fs::remove_file(&file).unwrap();
        let said = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(code), "{said}");
        assert_eq!(!done.stdout.is_empty(), code != 2);
        assert!(said.contains("old-"), "each line names the file: {said}");
    }
}
