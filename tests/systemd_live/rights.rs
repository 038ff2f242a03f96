//! What the operator may, and may not, and what it says where it may not.

use crate::host::{MEMBER, OPERATOR, SOON, shipped};
use crate::lab::{condition, text};
use crate::machine::{BOOKWORM, Machine, TRIXIE};

#[test]
fn credentials_reach_the_operator_and_nobody_else() {
    let Some(machine) = Machine::with_files() else {
        return;
    };
    machine.sh(
        "install -d -m 0700 /etc/credstore; umask 077; echo sesame > /etc/credstore/etcd-operator.s3",
    );
    machine.sh(&format!("systemctl start {OPERATOR}"));
    let pid = machine.pid(OPERATOR).unwrap();
    let file = "/run/credentials/etcd-operator.service/etcd-operator.s3";
    let environment = machine.sh(&format!("tr '\\0' '\\n' < /proc/{pid}/environ"));
    let dir = "CREDENTIALS_DIRECTORY=/run/credentials/etcd-operator.service";
    assert!(environment.contains(dir), "{environment}");
    // As the operator sees it: in its mounts, as its user.
    let seen = machine.sh(&format!(
        "nsenter -t {pid} -m setpriv --reuid=etcd-operator --regid=etcd-operator --clear-groups cat {file}"
    ));
    assert_eq!(seen, "sesame\n");
    machine.sh("useradd --system other");
    for user in ["other", "nobody"] {
        let look = machine.sh_as(user, &format!("cat {file}"));
        assert!(!look.status.success(), "{user}");
    }
    let source = machine.sh_as("etcd-operator", "cat /etc/credstore/etcd-operator.s3");
    assert!(!source.status.success(), "the source is root's alone");
    // etcd has no use for them.
    machine.wait_available();
    let etcd = machine.pid(MEMBER).unwrap();
    let environment = machine.sh(&format!("tr '\\0' '\\n' < /proc/{etcd}/environ"));
    assert!(!environment.contains("CREDENTIALS"), "{environment}");
    assert!(!machine.journal(OPERATOR).contains("sesame"));
}

#[test]
fn the_operators_memory_is_limited_and_etcds_is_not() {
    let Some(machine) = Machine::serving() else {
        return;
    };
    assert_eq!(machine.property(MEMBER, "MemoryMax"), "infinity");
    if !machine.can_limit_memory() {
        return;
    }
    let etcd = machine.pid(MEMBER);
    let group = machine.sh(
        "ls -d /sys/fs/cgroup/{,memory/}system.slice/etcd-operator.service 2> /dev/null || true",
    );
    let group = group.trim();
    let limit: u64 = machine
        .sh(&format!(
            "cat {group}/memory.{{limit_in_bytes,max}} 2> /dev/null || true"
        ))
        .trim()
        .parse()
        .unwrap();
    // Room for etcdutl and a trial restore, and no more.
    assert!(limit <= 384 << 20, "{limit}");
    // Whatever eats memory in there is ended, and etcd does not notice.
    let hog = machine.try_sh(&format!(
        "echo $$ > {group}/cgroup.procs; head -c 800M /dev/zero | tail -c 800M | wc -c | grep -q 838860800"
    ));
    assert!(!hog.status.success());
    machine.wait_available();
    assert_eq!(machine.pid(MEMBER), etcd);
}

#[test]
fn the_operators_user_starts_and_stops_its_own_unit_and_no_other() {
    what_the_operators_user_may(BOOKWORM);
}

#[test]
fn under_systemd_257_too_the_operators_user_starts_and_stops_its_own_unit_and_no_other() {
    what_the_operators_user_may(TRIXIE);
}

/// Debian's etcd-server brings a user `etcd` of its own, and takes it along when it is purged.
#[test]
fn debians_user_etcd_reads_nothing_of_ours_and_may_go() {
    let Some(machine) = Machine::serving() else {
        return;
    };
    machine.sh("adduser --system --group --quiet etcd");
    for dir in ["/var/lib/etcd-operator", "/run/etcd-operator"] {
        let look = machine.sh_as("etcd", &format!("ls {dir}"));
        assert!(!look.status.success(), "{dir}: {}", text(&look.stdout));
    }
    let etcd = machine.pid(MEMBER);
    machine.sh("deluser --system --quiet etcd");
    assert_eq!(machine.pid(MEMBER), etcd);
    machine.sh(&format!("systemctl restart {MEMBER} {OPERATOR}"));
    machine.wait_available();
}

fn what_the_operators_user_may(suite: &str) {
    let Some(machine) = Machine::serving_on(suite) else {
        return;
    };
    let may = |script: &str| machine.sh_as("etcd-operator", script);
    for script in [
        "systemctl restart dbus.service",
        "systemctl stop etcd-operator.service",
        "systemctl start etcd-member@edge.service.evil.service",
        "systemctl mask etcd-member@edge.service",
        "systemctl daemon-reload",
        "systemctl enable /tmp/etcd-member@other.service",
        "systemctl set-property --runtime etcd-member@edge.service MemoryMax=1M",
        "systemctl kill etcd-operator.service",
        "systemd-run --unit=etcd-member@evil touch /run/evil",
        "systemd-run --unit=etcd-member@evil --uid=0 touch /run/evil",
        "systemd-run --unit=etcd-member@edge touch /run/evil",
        "systemctl poweroff",
    ] {
        let refused = may(&format!("{script} 2>&1"));
        assert!(
            !refused.status.success(),
            "{script}: {}",
            text(&refused.stdout)
        );
    }
    machine.sh("test ! -e /run/evil");
    assert_eq!(machine.property(OPERATOR, "ActiveState"), "active");
    machine.sh(&format!("systemctl stop {OPERATOR}"));
    let stopped = may(&format!("systemctl stop {MEMBER} 2>&1"));
    assert!(stopped.status.success(), "{}", text(&stopped.stdout));
    assert_eq!(machine.pid(MEMBER), None);
    // Nor is the name of a unit that rests a way to run something else.
    let other = may("systemd-run --unit=etcd-member@edge touch /run/evil 2>&1");
    assert!(!other.status.success(), "{}", text(&other.stdout));
    machine.sh("test ! -e /run/evil");
    let started = may(&format!("systemctl start {MEMBER} 2>&1"));
    assert!(started.status.success(), "{}", text(&started.stdout));
    assert!(machine.serves());
    // Nobody else may even that.
    machine.sh("useradd --system other");
    let refused = machine.sh_as("other", &format!("systemctl stop {MEMBER} 2>&1"));
    assert!(!refused.status.success(), "{}", text(&refused.stdout));
    assert!(machine.serves());
}

#[test]
fn without_polkit_the_status_says_so_and_the_drop_in_repairs_it() {
    let Some(machine) = Machine::with_files() else {
        return;
    };
    machine.sh("DEBIAN_FRONTEND=noninteractive dpkg --purge --force-depends polkitd 2>&1");
    machine.sh(&format!("systemctl start {OPERATOR}"));
    let status = machine.wait("polkit in the words", |it| {
        it.to_string().contains("polkit")
    });
    assert_eq!(condition(&status, "Available").0, "False");
    assert!(
        status.to_string().contains("run-as-root.conf"),
        "{status:#}"
    );
    assert!(machine.journal(OPERATOR).contains("polkit"));
    assert_eq!(machine.pid(MEMBER), None);

    machine.copy(
        &shipped("run-as-root.conf"),
        "/etc/systemd/system/etcd-operator.service.d/run-as-root.conf",
        0o644,
    );
    machine.sh(&format!(
        "systemctl daemon-reload; systemctl restart {OPERATOR}"
    ));
    machine.wait_available();
    let operator = machine.pid(OPERATOR).unwrap();
    assert_eq!(
        machine.sh(&format!("stat -c %U /proc/{operator}")).trim(),
        "root"
    );
    let etcd = machine.pid(MEMBER).unwrap();
    assert_eq!(
        machine.sh(&format!("stat -c %U /proc/{etcd}")).trim(),
        "etcd-operator"
    );
    // What root's operator runs of etcd's programs runs as etcd's user: a trial restore, and a restore.
    machine.sh("install -d -o etcd-operator -g etcd-operator -m 700 /srv/snapshots");
    machine.write_document(
        "  backup: {interval: 1s, destinations: [{local: {path: /srv/snapshots}}], verify: {level: 4}}\n",
    );
    machine.sh(&format!("systemctl restart {OPERATOR}"));
    machine.wait_available();
    machine.wait("a trial restore by root's operator", |it| {
        it["backups"]["lastVerified"]["level"] == 4
    });
    let restored = machine.try_sh("etcd-operator restore --yes");
    assert!(restored.status.success(), "{}", text(&restored.stderr));
    let etcd = machine.pid(MEMBER).unwrap();
    // etcd can read whatever root made, also without the operator: a start proves it.
    machine.sh(&format!("systemctl stop {OPERATOR}"));
    machine.kill("KILL", MEMBER);
    machine.wait_restarted(Some(etcd));
    machine.sh("rm -r /srv/snapshots");
    machine.write_document("");
    let strange = machine.sh("find /var/lib/etcd-operator ! -user etcd-operator");
    assert_eq!(strange, "");
    // And back: its own user goes on with what root left.
    machine.sh(&format!(
        "rm -r /etc/systemd/system/etcd-operator.service.d; systemctl daemon-reload; \
         systemctl start {OPERATOR}"
    ));
    let etcd = machine.pid(MEMBER);
    machine.wait_available();
    assert_eq!(machine.pid(MEMBER), etcd);
}

#[test]
fn with_polkit_but_without_the_rule_etcd_serves_on_and_the_hold_is_told() {
    let Some(machine) = Machine::serving() else {
        return;
    };
    let etcd = machine.pid(MEMBER);
    machine.sh(
        "rm /usr/share/polkit-1/rules.d/50-etcd-operator.rules; systemctl restart polkit.service",
    );
    // An edit that needs a restart, which the operator may no longer ask for.
    machine.write_document("  options: {snapshotCount: 1234}\n");
    machine.sh(&format!("systemctl reload {OPERATOR}"));
    machine.until(SOON, "polkit in the journal", || {
        machine.journal(OPERATOR).contains("polkit")
    });
    assert_eq!(machine.pid(MEMBER), etcd);
    assert!(machine.serves());
    machine.copy(
        &shipped("polkit.rules"),
        "/usr/share/polkit-1/rules.d/50-etcd-operator.rules",
        0o644,
    );
    machine.sh("systemctl restart polkit.service");
    machine.sh(&format!("systemctl reload {OPERATOR}"));
    machine.wait_restarted(etcd);
}
