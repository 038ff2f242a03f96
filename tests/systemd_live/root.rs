//! What root's commands may read, and what everybody else is told.

use crate::host::OPERATOR;
use crate::lab::{condition, text};
use crate::machine::Machine;

#[test]
fn without_rights_every_command_is_one_sentence_that_says_sudo() {
    let Some(machine) = Machine::serving() else {
        return;
    };
    machine.sh("useradd --system other");
    for command in [
        "status",
        "status -o json",
        "plan",
        "env",
        "env --for k3s",
        "etcdctl get a",
        "etcd list",
        "etcd list -o json",
        "etcd install --from /usr/local/lib/etcd 3.6.16",
        "pause 30m",
        "resume",
        "certs list",
        "certs issue till",
        "certs issue till --out /tmp/till --owner till",
        "certs remove till",
        "backup delete x",
        "backup list",
        "backup create",
        "backup show latest",
        "backup verify",
        "backup prune",
        "backup copy",
        "restore --dry-run",
        "restore --from /tmp/x.db --yes",
    ] {
        let output = machine.sh_as("other", &format!("etcd-operator {command}"));
        assert_eq!(output.status.code(), Some(1), "{command}");
        assert_eq!(text(&output.stdout), "", "{command}");
        let said = text(&output.stderr);
        let wanted = format!(
            "etcd-operator: /var/lib/etcd-operator is not this user's: sudo etcd-operator {command}\n"
        );
        assert_eq!(said, wanted);
    }
    // What a word of the command line needs so that a shell reads it back.
    let said = machine.sh_as("other", "etcd-operator --config 'a b' status");
    assert!(text(&said.stderr).ends_with("sudo etcd-operator --config 'a b' status\n"));
    // The agent is a unit's.
    let said = machine.sh_as("other", "etcd-operator agent");
    assert!(text(&said.stderr).ends_with("sudo systemctl start etcd-operator\n"));
    // Whoever is of the operator's group may ask its agent, and nothing else.
    machine.sh("usermod --append --groups etcd-operator other");
    let status = machine.sh_as("other", "etcd-operator status");
    assert!(status.status.success(), "{}", text(&status.stderr));
    assert!(!machine.sh_as("other", "etcd-operator env").status.success());
}

/// With the right program and certificates, and with no right of root's.
#[test]
fn etcdctl_works_under_sudo_and_as_the_operators_user() {
    let Some(machine) = Machine::serving() else {
        return;
    };
    machine.sh("etcd-operator etcdctl put a 1");
    let seen = machine.sh_as(
        "etcd-operator",
        "etcd-operator etcdctl get --print-value-only a",
    );
    assert_eq!(text(&seen.stdout), "1\n", "{}", text(&seen.stderr));
    let saved = machine.try_sh("etcd-operator etcdctl snapshot save /root/snap.db 2>&1");
    assert!(
        text(&saved.stdout).contains("permission denied"),
        "{}",
        text(&saved.stdout)
    );
    machine.sh("test ! -e /root/snap.db -a ! -e /root/snap.db.part");
    // Nor with a program that the operator's user has put there.
    machine.sh("install -d -o etcd-operator /srv/out");
    let program = format!(
        "/var/lib/etcd-operator/store/etcd-{}/etcdctl",
        crate::host::version()
    );
    let own = format!(
        "rm {program}; printf '#!/bin/sh\\nid > /srv/out/id\\n' > {program}; chmod 755 {program}"
    );
    assert!(machine.sh_as("etcd-operator", &own).status.success());
    machine.sh("etcd-operator etcdctl get a");
    let id = machine.sh("cat /srv/out/id");
    assert!(
        id.contains("(etcd-operator)") && !id.contains("root"),
        "{id}"
    );
}

#[test]
fn copies_of_a_certificate_belong_to_whom_they_are_for_and_no_link_leads_them_astray() {
    let Some(machine) = Machine::serving() else {
        return;
    };
    machine
        .sh("useradd --system till; install -d -o till -m 700 /srv/till; echo keep > /root/file");
    // The user's own links in its directory.
    let link = machine.sh_as(
        "till",
        "ln -s /root/file /srv/till/till.key; ln -s /root /srv/till/ca.crt",
    );
    assert!(link.status.success());
    let issue = "etcd-operator certs issue till --out /srv/till --owner till";
    let said = machine.sh(issue);
    assert!(said.contains("issued, valid for 365 days"), "{said}");
    assert_eq!(machine.sh("cat /root/file"), "keep\n");
    let found = machine.sh("stat -c '%n %U %a %F' /srv/till/*");
    let wanted = ["ca.crt", "till.crt", "till.key"]
        .map(|it| format!("/srv/till/{it} till 600 regular file\n"));
    assert_eq!(found, wanted.concat());
    // It connects with them, as that user.
    let connects = "/usr/local/lib/etcd/etcdctl --endpoints=https://127.0.0.1:2379 --cacert=/srv/till/ca.crt \
                    --cert=/srv/till/till.crt --key=/srv/till/till.key put a 1";
    let put = machine.sh_as("till", connects);
    assert!(put.status.success(), "{}", text(&put.stderr));
    assert!(machine.sh(issue).contains("good already"));
    // What the operator's user has put in place of the key is not read as root.
    let tls = "/var/lib/etcd-operator/tls/clients";
    let swap = format!(
        "rm {tls}/till; mkdir {tls}/till; ln -s /root/file {tls}/till/client.key; \
                        ln -s /root/file {tls}/till/client.crt; ln -s /root/file {tls}/till/ca.crt"
    );
    machine.sh(&format!("systemctl stop {OPERATOR}"));
    assert!(machine.sh_as("etcd-operator", &swap).status.success());
    let refused = machine.try_sh(&format!("{issue} 2>&1"));
    assert!(!refused.status.success(), "{}", text(&refused.stdout));
    assert!(!machine.sh("cat /srv/till/till.key").contains("keep"));
    // A directory that this user may not make.
    let refused =
        machine.try_sh("etcd-operator certs issue other --out /etc/till --owner till 2>&1");
    let said = text(&refused.stdout);
    assert!(
        said.contains("sudo install -d -o till -m 700 /etc/till"),
        "{said}"
    );
    assert_eq!(
        machine.sh("find /var/lib/etcd-operator ! -user etcd-operator"),
        ""
    );
}

#[test]
fn a_snapshot_that_root_alone_can_read_is_restored_and_no_link_leads_anywhere() {
    let Some(machine) = Machine::serving() else {
        return;
    };
    assert!(machine.put("a", "1"));
    let saved = machine.etcdctl(&["snapshot", "save", "/root/snap.db"]);
    assert!(saved.status.success(), "{}", text(&saved.stderr));
    assert_eq!(
        machine.sh("stat -c '%U %a' /root/snap.db").trim(),
        "root 600"
    );
    assert!(machine.put("a", "2"));
    let shown = machine.sh("cd /root; etcd-operator restore --from snap.db --dry-run");
    assert!(shown.contains("/root/snap.db"), "{shown}");
    machine.sh("etcd-operator restore --from /root/snap.db --yes");
    machine.wait_available();
    assert_eq!(machine.get("a").as_deref(), Some("1"));
    // No copy of it stays behind.
    machine.sh("test ! -e /var/lib/etcd-operator/backup/fetched");

    // The operator's user puts a link to a file of root's where root is told to look.
    machine.sh("install -d -o etcd-operator -g etcd-operator -m 700 /srv/snapshots");
    for link in ["ln -s /root/snap.db", "ln -s /root"] {
        let made = machine.sh_as(
            "etcd-operator",
            &format!("rm -f /srv/snapshots/x; {link} /srv/snapshots/x"),
        );
        assert!(made.status.success(), "{}", text(&made.stderr));
        let name = if link.ends_with("db") {
            "x"
        } else {
            "x/snap.db"
        };
        let refused = machine.try_sh(&format!(
            "etcd-operator restore --from /srv/snapshots/{name} --dry-run 2>&1"
        ));
        let said = text(&refused.stdout);
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(
            said.contains("name the file itself, not a link to it"),
            "{said}"
        );
    }
    // Nor under a second name.
    machine.sh("ln /root/snap.db /root/second.db");
    let refused = machine.try_sh("etcd-operator restore --from /root/snap.db --dry-run");
    assert!(!refused.status.success());
}

#[test]
fn keys_that_are_missing_are_told_as_missing_and_root_reads_those_that_are_there() {
    let Some(machine) = Machine::with_files() else {
        return;
    };
    machine.sh("install -d -o etcd-operator -g etcd-operator -m 700 /srv/snapshots");
    machine.write_document(
        "  backup: {destinations: [{local: {path: /srv/snapshots}}, \
         {s3: {bucket: edge, endpoint: 'http://127.0.0.1:9', pathStyle: true, \
         region: eu}}]}\n",
    );
    machine.sh(&format!("systemctl enable --now --quiet {OPERATOR}"));
    machine.wait_available();
    machine.sh("etcd-operator backup create");
    // systemd makes the directory of credentials also where there are none.
    let missing = "there are no S3 keys: write AWS_ACCESS_KEY_ID=... and AWS_SECRET_ACCESS_KEY=... \
                   to /etc/credstore/etcd-operator.s3 (root's, mode 600) and restart etcd-operator";
    machine.wait("the agent's words", |it| {
        let all = it["conditions"].as_array();
        let told = all.and_then(|all| all.iter().find(|it| it["type"] == "BackupHealthy"));
        told.is_some_and(|it| it["message"].as_str().unwrap_or("").contains(missing))
    });
    // Here everything works, and the place that was not asked is named.
    for command in ["list", "verify", "prune --dry-run", "show latest"] {
        let output = machine.try_sh(&format!("etcd-operator backup {command}"));
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{command}: {said}");
        assert!(text(&output.stdout).contains("edge-0-"), "{command}");
        assert_eq!(
            said.contains(missing),
            command != "show latest",
            "{command}: {said}"
        );
    }
    let none = machine.try_sh("etcd-operator backup show nonexistent 2>&1");
    assert!(text(&none.stdout).contains("there is no snapshot nonexistent"));
    let at = machine.try_sh("etcd-operator backup verify --at s3://edge");
    assert_eq!(at.status.code(), Some(1), "asked for by name");

    // Keys of the unit itself, wherever it has them from; then those of the credential store.
    let keys = "printf 'AWS_ACCESS_KEY_ID=a\\nAWS_SECRET_ACCESS_KEY=b\\n'";
    for give in [
        format!(
            "umask 077; {keys} > /root/keys; mkdir -p /etc/systemd/system/etcd-operator.service.d; \
             umask 022; printf '[Service]\\nLoadCredential=etcd-operator.s3:/root/keys\\n' \
             > /etc/systemd/system/etcd-operator.service.d/keys.conf; \
             systemctl daemon-reload; systemctl restart {OPERATOR}"
        ),
        format!(
            "rm -r /root/keys /etc/systemd/system/etcd-operator.service.d/keys.conf; \
             systemctl daemon-reload; systemctl restart {OPERATOR}; \
             install -d -m 700 /etc/credstore; umask 077; {keys} > /etc/credstore/etcd-operator.s3"
        ),
    ] {
        machine.sh(&give);
        let output = machine.try_sh("etcd-operator backup list 2>&1");
        let said = text(&output.stdout);
        assert!(
            said.contains("edge-0-") && said.contains("refused"),
            "{said}"
        );
        assert!(!said.contains("S3 keys"), "{said}");
    }
    let status = machine.status();
    assert_eq!(condition(&status, "Available").0, "True");
}
