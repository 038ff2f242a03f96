//! `backup`, `bootstrap` and `recovery`: what each mistake is told.

use etcd_operator::spec::backup::Source;
use expect_test::expect;

use super::check_spec;

#[test]
fn a_backup_without_a_local_place_or_with_half_of_one() {
    check_spec(
        "spec:\n  backup: {interval: 6h, destinations: []}",
        &expect![
            "line 6: spec.backup.destinations: found a list, allowed: at least 1 items, here are 0"
        ],
    );
    check_spec(
        "spec:\n  backup: {interval: 6h, destinations: [{s3: {bucket: backup}}]}",
        &expect![
            "line 6: spec.backup.destinations: the first must be local: snapshots are taken and verified there, then copied"
        ],
    );
    check_spec(
        "spec:\n  backup: {destinations: [{local: {path: /a}, s3: {bucket: backup}}]}",
        &expect!["line 6: spec.backup.destinations: each is either local or s3"],
    );
    check_spec(
        "spec:\n  backup: {destinations: [{local: {path: /a}}, {}]}",
        &expect!["line 6: spec.backup.destinations: each is either local or s3"],
    );
    for both in [
        "{path: /a, claimName: snapshots}",
        "{claim: {size: 1Gi}, claimName: snapshots}",
    ] {
        check_spec(
            &format!("spec:\n  backup: {{destinations: [{{local: {both}}}]}}"),
            &expect![
                "line 6: spec.backup.destinations: path, claim and claimName of a local destination exclude each other"
            ],
        );
    }
    check_spec(
        "spec:\n  backup: {destinations: [{local: {path: /a}}, {local: {path: /a}}]}",
        &expect!["line 6: spec.backup.destinations: each place may appear once"],
    );
    check_spec(
        "spec:\n  backup: {destinations: [{local: {path: /a}}, {local: {path: /a, keep: 2}}]}",
        &expect!["line 6: spec.backup.destinations: each place may appear once"],
    );
    check_spec(
        "spec:\n  backup: {destinations: [{local: {path: /a}}, {s3: {bucket: snaps, keep: 1}}, {s3: {bucket: snaps}}]}",
        &expect!["line 6: spec.backup.destinations: each place may appear once"],
    );
}

#[test]
fn a_schedule_that_is_none() {
    check_spec(
        "spec:\n  backup: {schedule: 0 3 * * *, interval: 6h, destinations: [{local: {path: /a}}]}",
        &expect!["line 6: spec.backup: schedule and interval exclude each other"],
    );
    check_spec(
        "spec:\n  backup: {schedule: '@reboot', destinations: [{local: {path: /a}}]}",
        &expect![
            "line 6: spec.backup.schedule: found '@reboot': there is only @hourly @daily @weekly @monthly; allowed: five fields of cron in UTC, such as 0 3 * * *, or one of @hourly @daily @weekly @monthly"
        ],
    );
    check_spec(
        "spec:\n  backup: {schedule: 0 24 * * *, destinations: [{local: {path: /a}}]}",
        &expect![
            "line 6: spec.backup.schedule: found '0 24 * * *': hours go from 0 to 23: there is no 24; allowed: five fields of cron in UTC, such as 0 3 * * *"
        ],
    );
    check_spec(
        "spec:\n  backup: {interval: daily, destinations: [{local: {path: /a}}]}",
        &expect![
            "line 6: spec.backup.interval: found 'daily': 'd' (character 1) is no digit; allowed: a time span such as 30m or 6h"
        ],
    );
}

#[test]
fn a_schedule_names_what_no_day_has() {
    let fault = |schedule: &str| {
        let text = format!(
            "apiVersion: etcd.edge-operator.io/v1alpha1\nkind: EtcdCluster\nmetadata: {{name: edge}}\n\
             spec: {{backup: {{schedule: '{schedule}', destinations: [{{local: {{path: /a}}}}]}}}}\n"
        );
        let problems = etcd_operator::document::check(text.as_bytes());
        problems.err().map(|it| it.to_string())
    };
    for (schedule, words) in [
        ("61 * * * *", "minutes go from 0 to 59: there is no 61"),
        ("0 25 * * *", "hours go from 0 to 23: there is no 25"),
        (
            "0 3 0 * *",
            "days of the month go from 1 to 31: there is no 0",
        ),
        ("0 3 * 13 *", "months go from 1 to 12: there is no 13"),
        (
            "0 3 * * 8",
            "days of the week go from 0 to 7: there is no 8",
        ),
        ("0 3 * * FRI-MON", "from the lower one to the higher one"),
        ("0 3 31 FEB *", "no day has this date"),
        ("5/10 * * * *", "write */10 or 5-59/10"),
        ("0 3 * * MON/2", "write */2 or MON-7/2"),
        ("0 3 * FEB/3 *", "write */3 or FEB-12/3"),
        ("0 3 * * mon", "'mon' is no day of the week: write MON"),
        ("0 3 * jan-mar *", "write JAN-MAR"),
    ] {
        let said = fault(schedule).unwrap_or_default();
        assert!(said.contains(words), "{schedule}: {said}");
    }
    for schedule in ["0 3 29 FEB *", "0 3 * * MON-FRI", "@weekly"] {
        assert_eq!(fault(schedule), None, "{schedule}");
    }
}

#[test]
fn a_place_that_is_none() {
    check_spec(
        "spec:\n  backup: {destinations: [{local: {path: backup, keep: 0, maxBytes: much}}]}",
        &expect![[r#"
            line 6: spec.backup.destinations[0].local.path: found 'backup': it does not begin with /; allowed: an absolute path such as /mnt/etcd
            line 6: spec.backup.destinations[0].local.keep: found the number 0, allowed: 1 to 10000
            line 6: spec.backup.destinations[0].local.maxBytes: found 'much': 'm' (character 1) is no digit; allowed: a size such as 512Mi or 2Gi"#]],
    );
    check_spec(
        "spec:\n  backup: {destinations: [{local: {path: /a}}, {s3: {bucket: B, prefix: /x, endpoint: s3.local, region: '', credentials: key}}]}",
        &expect![[r#"
            line 6: spec.backup.destinations[1].s3.bucket: found 'B': 'B' (character 1) is not allowed; allowed: a bucket's name: lower-case letters, digits, '.' and '-'
            line 6: spec.backup.destinations[1].s3.bucket: found 'B', allowed: at least 3 characters, here are 1
            line 6: spec.backup.destinations[1].s3.prefix: found '/x': it begins with /; allowed: the beginning of keys, such as shops/berlin, without a slash at either end
            line 6: spec.backup.destinations[1].s3.endpoint: found 's3.local': it does not begin with https:// or http://; allowed: a URL without a path, such as https://s3.example.com:9000
            line 6: spec.backup.destinations[1].s3.region: found '': it is empty; allowed: a region such as eu-central-1, auto or garage
            line 6: spec.backup.destinations[1].s3.credentials: found 'key': it does not begin with /; allowed: an absolute path such as /mnt/etcd"#]],
    );
    check_spec(
        "spec:\n  backup: {destinations: [{local: {path: /a}}, {s3: {bucket: backup, encryption: {recipients: [age1me]}}}]}",
        &expect![
            "line 6: spec.backup.destinations[1].s3.encryption.recipients[0]: found 'age1me': it has 6 characters; allowed: a public key of age, which begins with age1 and has 62 characters"
        ],
    );
    check_spec(
        "spec:\n  backup: {destinations: [{local: {path: /a}}, {s3: {bucket: backup, encryption: {recipients: [age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8q]}}}]}",
        &expect![
            "line 6: spec.backup.destinations[1].s3.encryption.recipients[0]: found 'age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac...', allowed: a public key as age-keygen prints it; this one has a typing error"
        ],
    );
}

#[test]
fn a_restore_that_cannot_work() {
    check_spec(
        "spec:\n  bootstrap: {from: latest}",
        &expect![
            "line 6: spec.bootstrap: from names a snapshot, and there is no backup to find it in: describe backup, or on a host name a file"
        ],
    );
    let empty = "apiVersion: etcd.edge-operator.io/v1alpha1\nkind: EtcdCluster\nmetadata: {name: shop}\n\
                 spec: {bootstrap: {from: empty}}\n";
    let spec = etcd_operator::document::parse(empty.as_bytes()).unwrap();
    assert_eq!(spec.bootstrap, Some(Source::Empty), "it needs none");
    check_spec(
        "spec:\n  bootstrap: {from: 's3://backup/x'}",
        &expect![
            "line 6: spec.bootstrap.from: found 's3://backup/x': ':' (character 3) is not allowed; allowed: latest, empty, the name of a snapshot, in Kubernetes CLUSTER/NAME, on a host an absolute path"
        ],
    );
    check_spec(
        "spec:\n  bootstrap: {from: till/latest}",
        &expect![
            "line 6: spec.bootstrap.from: found 'till/latest': CLUSTER/NAME is a snapshot in Kubernetes: on a host name a file, latest, or a snapshot of the document's destinations"
        ],
    );
    check_spec(
        "spec:\n  recovery: {singleMember: restoreLatestVerified}",
        &expect![
            "line 6: spec.recovery.singleMember: found 'restoreLatestVerified': restoreLatestVerified needs a backup with a local destination"
        ],
    );
}
