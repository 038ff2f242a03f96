//! Every alert of `deploy/monitoring` fires when it should and not otherwise, by Prometheus' own tool.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use etcd_operator::member::refused::refusal_from;
use serde_json::{Value, json};

use crate::cluster::output;
use crate::lab::{skip, tools};
use crate::monitoring::{alerts, rules, text};

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Series: its name and labels, and its values, one a minute.
type Series = (&'static str, &'static str);
/// An alert and its severity, what is given, when it is asked, and whether it fires then.
type Case = (
    &'static str,
    &'static str,
    &'static [Series],
    &'static str,
    bool,
);

const LEADER: &str = r#"etcd_server_has_leader{namespace="a",cluster="b",pod="b-0"}"#;
const SIZE: &str = r#"etcd_mvcc_db_total_size_in_bytes{namespace="a",cluster="b",pod="b-0"}"#;
const IN_USE: &str =
    r#"etcd_mvcc_db_total_size_in_use_in_bytes{namespace="a",cluster="b",pod="b-0"}"#;
const QUOTA: &str = r#"etcd_server_quota_backend_bytes{namespace="a",cluster="b",pod="b-0"}"#;
const AVAILABLE: &str =
    r#"etcd_operator_condition{namespace="a",cluster="b",condition="Available"}"#;
const BACKUP: &str =
    r#"etcd_operator_condition{namespace="a",cluster="b",condition="BackupHealthy"}"#;
const CLOCK: &str =
    r#"etcd_operator_condition{namespace="a",cluster="b",condition="ClockTrusted"}"#;
const DOCUMENT: &str =
    r#"etcd_operator_condition{namespace="a",cluster="b",condition="DocumentAccepted"}"#;
const MEMBERS: [&str; 3] = [
    r#"etcd_operator_member_serving{namespace="a",cluster="b",member="b-0",role="voter",node="x"}"#,
    r#"etcd_operator_member_serving{namespace="a",cluster="b",member="b-1",role="voter",node="y"}"#,
    r#"etcd_operator_member_serving{namespace="a",cluster="b",member="b-2",role="voter",node="z"}"#,
];
const BESIDE: &str =
    r#"etcd_operator_member_serving{namespace="a",cluster="b",member="b-3",role="voter",node="x"}"#;
const LEADERS: &str =
    r#"etcd_server_leader_changes_seen_total{namespace="a",cluster="b",pod="b-0"}"#;
const STOPPED: &str = r#"etcd_operator_stopped{namespace="a",cluster="b"}"#;
const CONFIRMED: &str = r#"etcd_operator_confirmed_timestamp_seconds{namespace="a",cluster="b"}"#;
const EXPIRY: &str =
    r#"etcd_operator_certificate_expiry_timestamp_seconds{namespace="a",cluster="b"}"#;
const VERIFIED: &str =
    r#"etcd_operator_backup_last_verified_timestamp_seconds{namespace="a",cluster="b"}"#;
const FREE: &str = r#"etcd_operator_disk_free_bytes{namespace="a",cluster="b"}"#;
const FULL_IN: &str = r#"etcd_operator_disk_full_in_seconds{namespace="a",cluster="b"}"#;
const DISK_FULL: &str = r#"etcd_operator_hold{namespace="a",cluster="b",reason="DiskFull"}"#;
const CORRUPT: &str = r#"etcd_operator_hold{namespace="a",cluster="b",reason="Corrupt"}"#;
const PAUSED: &str = r#"etcd_operator_hold{namespace="a",cluster="b",reason="Paused"}"#;
const RESTORING: &str = r#"etcd_operator_hold{namespace="a",cluster="b",reason="Restoring"}"#;
const READ_ONLY: &str =
    r#"etcd_operator_hold{namespace="a",cluster="b",reason="FilesystemReadOnly"}"#;
const WAL: &str = r#"etcd_operator_hold{namespace="a",cluster="b",reason="WalDamaged"}"#;
const FSYNC_FAST: &str = r#"etcd_disk_wal_fsync_duration_seconds_bucket{namespace="a",cluster="b",pod="b-0",le="0.256"}"#;
const FSYNC_SLOW: &str = r#"etcd_disk_wal_fsync_duration_seconds_bucket{namespace="a",cluster="b",pod="b-0",le="2.048"}"#;
const FSYNC_ALL: &str =
    r#"etcd_disk_wal_fsync_duration_seconds_bucket{namespace="a",cluster="b",pod="b-0",le="+Inf"}"#;
const COMMIT_FAST: &str = r#"etcd_disk_backend_commit_duration_seconds_bucket{namespace="a",cluster="b",pod="b-0",le="0.128"}"#;
const COMMIT_SLOW: &str = r#"etcd_disk_backend_commit_duration_seconds_bucket{namespace="a",cluster="b",pod="b-0",le="2.048"}"#;
const COMMIT_ALL: &str = r#"etcd_disk_backend_commit_duration_seconds_bucket{namespace="a",cluster="b",pod="b-0",le="+Inf"}"#;
const GROWS: &str = "0+60x100";
const ZERO: &str = "0x10000";
const ONE: &str = "1x10000";

const CASES: &[Case] = &[
    ("EtcdNoLeader", "critical", &[(LEADER, ZERO)], "2m", true),
    ("EtcdNoLeader", "critical", &[(LEADER, ZERO)], "30s", false),
    ("EtcdNoLeader", "critical", &[(LEADER, ONE)], "10m", false),
    (
        "EtcdSlowFsync",
        "warning",
        &[(FSYNC_FAST, ZERO), (FSYNC_SLOW, GROWS), (FSYNC_ALL, GROWS)],
        "30m",
        true,
    ),
    (
        "EtcdSlowFsync",
        "warning",
        &[(FSYNC_FAST, GROWS), (FSYNC_SLOW, GROWS), (FSYNC_ALL, GROWS)],
        "30m",
        false,
    ),
    (
        "EtcdSlowCommit",
        "warning",
        &[
            (COMMIT_FAST, ZERO),
            (COMMIT_SLOW, GROWS),
            (COMMIT_ALL, GROWS),
        ],
        "30m",
        true,
    ),
    (
        "EtcdSlowCommit",
        "warning",
        &[
            (COMMIT_FAST, GROWS),
            (COMMIT_SLOW, GROWS),
            (COMMIT_ALL, GROWS),
        ],
        "30m",
        false,
    ),
    (
        "EtcdDatabaseFillsQuota",
        "info",
        &[(SIZE, "61x100"), (QUOTA, "100x100")],
        "20m",
        true,
    ),
    (
        "EtcdDatabaseFillsQuota",
        "info",
        &[(SIZE, "59x100"), (QUOTA, "100x100")],
        "20m",
        false,
    ),
    (
        "EtcdDatabaseFillsQuota",
        "warning",
        &[(SIZE, "81x100"), (QUOTA, "100x100")],
        "20m",
        true,
    ),
    (
        "EtcdDatabaseFillsQuota",
        "warning",
        &[(SIZE, "79x100"), (QUOTA, "100x100")],
        "20m",
        false,
    ),
    (
        "EtcdDatabaseFillsQuota",
        "critical",
        &[(SIZE, "96x100"), (QUOTA, "100x100")],
        "3m",
        true,
    ),
    (
        "EtcdDatabaseFillsQuota",
        "critical",
        &[(SIZE, "94x100"), (QUOTA, "100x100")],
        "20m",
        false,
    ),
    (
        "EtcdFragmented",
        "info",
        &[(SIZE, "200000000x200"), (IN_USE, "100000000x200")],
        "70m",
        true,
    ),
    (
        "EtcdFragmented",
        "info",
        &[(SIZE, "200000000x200"), (IN_USE, "120000000x200")],
        "70m",
        false,
    ),
    (
        "EtcdFragmented",
        "info",
        &[(SIZE, "90000000x200"), (IN_USE, "1000000x200")],
        "70m",
        false,
    ),
    (
        "EtcdNotAvailable",
        "critical",
        &[(AVAILABLE, ZERO), (STOPPED, ZERO)],
        "3m",
        true,
    ),
    (
        "EtcdNotAvailable",
        "critical",
        &[(AVAILABLE, "-1x100"), (STOPPED, ZERO)],
        "3m",
        true,
    ),
    (
        "EtcdNotAvailable",
        "critical",
        &[(AVAILABLE, ZERO), (STOPPED, ONE)],
        "10m",
        false,
    ),
    (
        "EtcdNotAvailable",
        "critical",
        &[(AVAILABLE, ONE), (STOPPED, ZERO)],
        "10m",
        false,
    ),
    (
        "EtcdMemberDown",
        "warning",
        &[(MEMBERS[0], ONE), (MEMBERS[1], ZERO), (STOPPED, ZERO)],
        "6m",
        true,
    ),
    (
        "EtcdMemberDown",
        "warning",
        &[(MEMBERS[0], ZERO)],
        "6m",
        false,
    ),
    (
        "EtcdMemberDown",
        "warning",
        &[(MEMBERS[0], ZERO), (MEMBERS[1], ZERO), (STOPPED, ONE)],
        "60m",
        false,
    ),
    (
        "EtcdQuorumAtRisk",
        "critical",
        &[(MEMBERS[0], ONE), (MEMBERS[1], ONE), (MEMBERS[2], ZERO)],
        "6m",
        true,
    ),
    (
        "EtcdQuorumAtRisk",
        "critical",
        &[(MEMBERS[0], ONE), (MEMBERS[1], ONE), (MEMBERS[2], ONE)],
        "60m",
        false,
    ),
    (
        "EtcdQuorumAtRisk",
        "critical",
        &[(MEMBERS[0], ZERO), (STOPPED, ZERO)],
        "60m",
        false,
    ),
    (
        "EtcdQuorumAtRisk",
        "critical",
        &[
            (MEMBERS[0], ZERO),
            (MEMBERS[1], ZERO),
            (MEMBERS[2], ZERO),
            (STOPPED, ONE),
        ],
        "60m",
        false,
    ),
    (
        "EtcdMembersShareNode",
        "info",
        &[(MEMBERS[0], ONE), (MEMBERS[1], ONE), (BESIDE, ONE)],
        "70m",
        true,
    ),
    (
        "EtcdMembersShareNode",
        "info",
        &[(MEMBERS[0], ONE), (MEMBERS[1], ONE), (MEMBERS[2], ONE)],
        "70m",
        false,
    ),
    (
        "EtcdLeaderChanges",
        "warning",
        &[(LEADERS, "0x10 0+1x100")],
        "40m",
        true,
    ),
    (
        "EtcdLeaderChanges",
        "warning",
        &[(LEADERS, "1x60 2x100")],
        "2h",
        false,
    ),
    ("EtcdHeld", "warning", &[(CORRUPT, ONE)], "6m", true),
    (
        "EtcdHeld",
        "warning",
        &[(CORRUPT, ZERO), (PAUSED, ONE), (RESTORING, ONE)],
        "60m",
        false,
    ),
    ("EtcdDiskFails", "critical", &[(READ_ONLY, ONE)], "2m", true),
    ("EtcdDiskFails", "critical", &[(WAL, ONE)], "2m", true),
    (
        "EtcdDiskFails",
        "critical",
        &[(READ_ONLY, ZERO), (WAL, ZERO), (PAUSED, ONE)],
        "60m",
        false,
    ),
    ("EtcdPaused", "info", &[(PAUSED, ONE)], "25h", true),
    ("EtcdPaused", "info", &[(PAUSED, ONE)], "23h", false),
    (
        "EtcdOperatorSilent",
        "warning",
        &[(CONFIRMED, "1x100")],
        "12m",
        true,
    ),
    (
        "EtcdOperatorSilent",
        "warning",
        &[(CONFIRMED, GROWS)],
        "60m",
        false,
    ),
    (
        "EtcdOperatorSilent",
        "warning",
        &[(LEADER, ONE)],
        "6m",
        true,
    ),
    (
        "EtcdOperatorSilent",
        "warning",
        &[(LEADER, ONE), (CONFIRMED, GROWS)],
        "60m",
        false,
    ),
    // In 14 and a half days, asked a day later; in 20 days, asked at once; in 4 days.
    (
        "EtcdCertificateExpires",
        "warning",
        &[(EXPIRY, "1252800x3000")],
        "1d",
        true,
    ),
    (
        "EtcdCertificateExpires",
        "warning",
        &[(EXPIRY, "1728000x200")],
        "2h",
        false,
    ),
    (
        "EtcdCertificateExpires",
        "warning",
        &[(EXPIRY, ZERO)],
        "2h",
        false,
    ),
    (
        "EtcdCertificateExpires",
        "critical",
        &[(EXPIRY, "172800x200")],
        "1h",
        true,
    ),
    (
        "EtcdCertificateExpires",
        "critical",
        &[(EXPIRY, "345600x200")],
        "1h",
        false,
    ),
    (
        "EtcdBackupOld",
        "warning",
        &[(VERIFIED, "1x10000")],
        "49h",
        true,
    ),
    (
        "EtcdBackupOld",
        "warning",
        &[(VERIFIED, "1x10000")],
        "47h",
        false,
    ),
    (
        "EtcdBackupOld",
        "warning",
        &[(VERIFIED, ZERO)],
        "49h",
        false,
    ),
    (
        "EtcdBackupUnhealthy",
        "warning",
        &[(BACKUP, ZERO)],
        "20m",
        true,
    ),
    (
        "EtcdBackupUnhealthy",
        "warning",
        &[(BACKUP, ONE)],
        "20m",
        false,
    ),
    (
        "EtcdBackupUnhealthy",
        "warning",
        &[(BACKUP, "-1x100")],
        "20m",
        false,
    ),
    ("EtcdDiskFull", "critical", &[(FREE, ZERO)], "5m", true),
    ("EtcdDiskFull", "critical", &[(DISK_FULL, ONE)], "5m", true),
    (
        "EtcdDiskFull",
        "critical",
        &[(FREE, "-1x100"), (DISK_FULL, ZERO)],
        "5m",
        false,
    ),
    (
        "EtcdDiskFull",
        "critical",
        &[(FREE, "20000000x100")],
        "5m",
        false,
    ),
    (
        "EtcdDiskFillsUp",
        "warning",
        &[(FREE, "20000000x100")],
        "40m",
        true,
    ),
    (
        "EtcdDiskFillsUp",
        "warning",
        &[(FREE, "9000000000x100"), (FULL_IN, "80000x100")],
        "40m",
        true,
    ),
    (
        "EtcdDiskFillsUp",
        "warning",
        &[(FREE, "9000000000x100"), (FULL_IN, "-1x100")],
        "40m",
        false,
    ),
    (
        "EtcdDiskFillsUp",
        "warning",
        &[(FREE, "9000000000x100"), (FULL_IN, "90000x100")],
        "40m",
        false,
    ),
    (
        "EtcdClockUntrusted",
        "warning",
        &[(CLOCK, ZERO)],
        "40m",
        true,
    ),
    (
        "EtcdClockUntrusted",
        "warning",
        &[(CLOCK, ONE)],
        "40m",
        false,
    ),
    (
        "EtcdClockUntrusted",
        "warning",
        &[(CLOCK, ZERO)],
        "20m",
        false,
    ),
    (
        "EtcdDocumentRefused",
        "warning",
        &[(DOCUMENT, ZERO)],
        "40m",
        true,
    ),
    (
        "EtcdDocumentRefused",
        "warning",
        &[(DOCUMENT, ONE)],
        "40m",
        false,
    ),
    (
        "EtcdDocumentRefused",
        "warning",
        &[(DOCUMENT, ZERO)],
        "5m",
        false,
    ),
];

#[test]
fn what_the_disk_alert_names_are_reasons_of_holds() {
    let found = alerts()
        .into_iter()
        .find(|it| it["alert"] == "EtcdDiskFails");
    let alert = found.unwrap();
    let (_, named) = text(&alert, "/expr").split_once("reason=~\"").unwrap();
    let (named, _) = named.split_once('"').unwrap();
    for reason in named.split('|') {
        let refusal = refusal_from(&format!("{reason}: why"));
        assert_eq!(refusal.reason(), reason);
    }
}

#[test]
fn each_alert_fires_when_it_should_and_not_otherwise() {
    let promtool = tools().join("prometheus/bin/promtool");
    if !promtool.exists() {
        skip("tests/tools/prometheus.sh brings promtool");
        return;
    }
    let scratch = Scratch::new("rules");
    let file = |name: &str, content: &Value| {
        let path = scratch.0.join(name);
        // JSON is YAML.
        fs::write(&path, content.to_string()).unwrap();
        path
    };
    let rules = file("rules.yml", &rules());
    let checked = output(
        Command::new(&promtool)
            .args(["check", "rules", "--lint=all", "--lint-fatal"])
            .arg(&rules),
    );
    assert!(checked.ok, "{}{}", checked.stdout, checked.stderr);
    let mut tests = Vec::new();
    for (alert, severity, series, at, fires) in CASES {
        let series: Vec<Value> = series
            .iter()
            .map(|(series, values)| json!({"series": series, "values": values}))
            .collect();
        let fired = format!(
            r#"count(ALERTS{{alertname="{alert}",severity="{severity}",alertstate="firing"}})"#
        );
        let expected = if *fires {
            json!([{"labels": "{}", "value": 1}])
        } else {
            json!([])
        };
        tests.push(json!({
            "name": format!("{alert} {severity} at {at}: {fires}"),
            "interval": "1m",
            "input_series": series,
            "promql_expr_test": [{"expr": fired, "eval_time": at, "exp_samples": expected}],
        }));
    }
    let suite = json!({"rule_files": [rules], "evaluation_interval": "1m", "tests": tests});
    let suite = file("test.yml", &suite);
    let tested = output(Command::new(&promtool).args(["test", "rules"]).arg(&suite));
    assert!(tested.ok, "{}{}", tested.stdout, tested.stderr);
    for alert in alerts() {
        let (name, severity) = (text(&alert, "/alert"), text(&alert, "/labels/severity"));
        for fires in [true, false] {
            let tried = CASES
                .iter()
                .any(|it| (it.0, it.1, it.4) == (name, severity, fires));
            assert!(tried, "no case of {name} {severity} that fires: {fires}");
        }
        for part in ["summary", "description"] {
            let words = text(&alert, &format!("/annotations/{part}"));
            assert!(
                part != "summary" || words.contains("$labels.cluster"),
                "{name}: {words}"
            );
        }
    }
}
