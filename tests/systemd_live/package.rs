//! The Debian package: installed, upgraded under a writer, downgraded, removed, purged.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::host::{MEMBER, OPERATOR, SOON, package, version};
use crate::lab::text;
use crate::machine::Machine;

/// The same package as another version, with a program that differs from it.
struct Repacked(PathBuf);

impl Repacked {
    fn new(package: &Path, version: &str) -> Repacked {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("package-{}-{version}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        run(Command::new("dpkg-deb").arg("-R").arg(package).arg(&dir));
        let control = dir.join("DEBIAN/control");
        let fields = std::fs::read_to_string(&control).unwrap();
        let fields = fields.lines().map(|line| {
            if line.starts_with("Version: ") {
                format!("Version: {version}\n")
            } else {
                format!("{line}\n")
            }
        });
        std::fs::write(&control, fields.collect::<String>()).unwrap();
        // A sample that changed, too.
        for sample in ["usr/share/doc/etcd-operator/examples", "etc/etcd-operator"] {
            let sample = dir.join(sample).join("cluster.yaml");
            if let Ok(mut text) = std::fs::read_to_string(&sample) {
                let _ = writeln!(text, "# sample of {version}");
                std::fs::write(&sample, text).unwrap();
            }
        }
        // Behind what the kernel loads.
        let mut program = std::fs::OpenOptions::new()
            .append(true)
            .open(dir.join("usr/bin/etcd-operator"))
            .unwrap();
        program.write_all(version.as_bytes()).unwrap();
        drop(program);
        let _ = std::fs::remove_file(dir.join("DEBIAN/md5sums"));
        let package = dir.with_extension("deb");
        run(Command::new("dpkg-deb")
            .args(["-Znone", "--root-owner-group", "-b"])
            .arg(&dir)
            .arg(&package));
        std::fs::remove_dir_all(dir).unwrap();
        Repacked(package)
    }
}

impl Drop for Repacked {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// A machine with the package, whose etcd serves.
fn serving() -> Option<(Machine, PathBuf)> {
    let package = package()?;
    let machine = Machine::with_package(&package)?;
    machine.sh(&format!("systemctl enable --now --quiet {OPERATOR}"));
    machine.wait_available();
    Some((machine, package))
}

#[test]
fn an_installed_package_starts_nothing_by_itself_and_enable_now_does() {
    let Some(package) = package() else { return };
    let Some(machine) = Machine::bare() else {
        return;
    };
    let said = machine.install(&package);
    assert!(!said.contains("warning"), "{said}");
    assert_eq!(machine.property(OPERATOR, "LoadState"), "loaded");
    assert_eq!(machine.property(OPERATOR, "UnitFileState"), "disabled");
    assert_eq!(machine.property(OPERATOR, "ActiveState"), "inactive");
    assert_eq!(
        machine.sh("stat -c '%U %a' /var/lib/etcd-operator").trim(),
        "etcd-operator 700"
    );
    // What a newcomer is told, to the letter: there is no document, and init writes it.
    assert!(said.contains("next: sudo etcd-operator init"), "{said}");
    machine.sh("test ! -e /etc/etcd-operator/cluster.yaml");
    let told = machine.try_sh("etcd-operator status 2>&1");
    assert_eq!(told.status.code(), Some(2));
    assert!(text(&told.stdout).contains("sudo etcd-operator init"));
    machine.install_etcd();
    let wrote = machine.sh("etcd-operator init");
    assert!(
        wrote.contains(&format!("cluster edge, etcd {}", version())),
        "{wrote}"
    );
    let start = "systemctl enable --now etcd-operator";
    assert!(wrote.contains(&format!("sudo {start}")), "{wrote}");
    machine.sh(start);
    machine.wait_available();
    assert!(machine.put("a", "1"));
    // A second one writes nothing.
    let document = machine.sh("cat /etc/etcd-operator/cluster.yaml");
    let again = machine.try_sh("etcd-operator init --name other 2>&1");
    assert_eq!(again.status.code(), Some(3), "{}", text(&again.stdout));
    assert_eq!(machine.sh("cat /etc/etcd-operator/cluster.yaml"), document);
}

/// unattended-upgrades and a person who presses Enter get the same: the box's own document.
#[test]
fn an_upgrade_with_another_sample_asks_nothing_and_keeps_the_document() {
    let Some((machine, package)) = serving() else {
        return;
    };
    machine.sh("echo '# of this box' >> /etc/etcd-operator/cluster.yaml");
    let document = machine.sh("cat /etc/etcd-operator/cluster.yaml");
    assert_eq!(
        machine.sh("dpkg-query -W -f '${Conffiles}' etcd-operator"),
        ""
    );
    let newer = Repacked::new(&package, "0.1.1");
    machine.copy(&newer.0, "/var/tmp/package.deb", 0o644);
    // As apt does it: nobody answers, and nothing is decided beforehand.
    let said = machine.sh("DEBIAN_FRONTEND=noninteractive dpkg -i /var/tmp/package.deb 2>&1");
    assert!(!said.contains("next: "), "{said}");
    assert_eq!(machine.sh("cat /etc/etcd-operator/cluster.yaml"), document);
    let state = machine.sh("dpkg-query -W -f '${db:Status-Abbrev}${Version}' etcd-operator");
    assert_eq!(state, "ii 0.1.1");
    let samples = machine.sh("cat /usr/share/doc/etcd-operator/examples/cluster.yaml");
    assert!(samples.ends_with("# sample of 0.1.1\n"), "{samples}");
    machine.wait_available();
}

#[test]
fn an_upgrade_and_a_downgrade_fail_no_write_and_leave_etcds_process() {
    let Some((machine, package)) = serving() else {
        return;
    };
    let etcd = machine.pid(MEMBER);
    let writer = machine.writer("w");
    let newer = Repacked::new(&package, "99.0.0");
    for (package, version) in [(newer.0.as_path(), "99.0.0"), (package.as_path(), "")] {
        let operator = machine.pid(OPERATOR);
        machine.install(package);
        let installed = machine.sh("dpkg-query -W -f '${Version}' etcd-operator");
        assert_eq!(installed == "99.0.0", version == "99.0.0");
        machine.until(SOON, "the operator's new program", || {
            let now = machine.pid(OPERATOR);
            now.is_some() && now != operator
        });
        machine.wait_available();
        writer.more(&machine, 10);
        // The guard that starts etcd is of the same version, and the document is the person's own.
        machine.sh("cmp /usr/bin/etcd-operator /var/lib/etcd-operator/store/etcd-operator");
        assert!(
            machine
                .sh("cat /etc/etcd-operator/cluster.yaml")
                .contains("name: edge")
        );
        assert_eq!(machine.pid(MEMBER), etcd);
        assert_eq!(machine.property(OPERATOR, "UnitFileState"), "enabled");
    }
    let written = writer.stop(&machine);
    assert!(written.failed.is_empty(), "{:?}", written.failed);
    assert_eq!(machine.lost(&written), 0);
    // One that was stopped stays so.
    machine.sh(&format!("systemctl stop {OPERATOR}"));
    machine.install(&newer.0);
    assert_eq!(machine.property(OPERATOR, "ActiveState"), "inactive");
    assert_eq!(machine.pid(MEMBER), etcd);
}

#[test]
fn a_downgrade_refuses_newer_state_and_touches_nothing() {
    let Some((machine, package)) = serving() else {
        return;
    };
    let etcd = machine.pid(MEMBER);
    machine.sh(&format!("systemctl stop {OPERATOR}"));
    // As a version to come would write it.
    let identity = "/var/lib/etcd-operator/member/identity.json";
    machine.sh(&format!(
        "grep -q '\"format\":1' {identity}; sed -i 's/\"format\":1/\"format\":2/' {identity}"
    ));
    let sums = "cd /var/lib/etcd-operator; find member tls -type f ! -path '*/data/*' \
                ! -path '*/log/*' ! -name '*.lock' -exec sha256sum {} + | sort";
    let before = machine.sh(sums);
    machine.install(&package);
    machine.sh(&format!("systemctl start {OPERATOR}"));
    machine.until(SOON, "the reason", || {
        machine.journal(OPERATOR).contains("newer version")
    });
    assert_eq!(machine.pid(MEMBER), etcd);
    assert!(machine.serves());
    assert_eq!(machine.sh(sums), before);
    machine.sh(&format!("sed -i 's/\"format\":2/\"format\":1/' {identity}"));
    machine.sh(&format!("systemctl restart {OPERATOR}"));
    machine.wait_available();
    assert_eq!(machine.pid(MEMBER), etcd);
}

#[test]
fn a_removed_package_leaves_an_etcd_that_serves_and_restarts() {
    let Some((mut machine, package)) = serving() else {
        return;
    };
    let id = machine.status()["clusterID"].clone();
    let etcd = machine.pid(MEMBER);
    let writer = machine.writer("w");
    machine.sh("DEBIAN_FRONTEND=noninteractive dpkg --remove etcd-operator");
    writer.more(&machine, 10);
    machine.sh("test ! -e /usr/bin/etcd-operator");
    assert_eq!(machine.property(OPERATOR, "LoadState"), "not-found");
    assert_eq!(machine.pid(MEMBER), etcd);
    let written = writer.stop(&machine);
    assert!(written.failed.is_empty(), "{:?}", written.failed);

    machine.kill("KILL", MEMBER);
    machine.wait_restarted(etcd);
    machine.reboot();
    machine.until(SOON, "etcd after the boot", || machine.serves());
    assert_eq!(machine.lost(&written), 0);

    let etcd = machine.pid(MEMBER);
    machine.install(&package);
    machine.sh(&format!("systemctl enable --now --quiet {OPERATOR}"));
    assert_eq!(machine.wait_available()["clusterID"], id);
    assert_eq!(machine.pid(MEMBER), etcd, "adopted");
}

#[test]
fn purge_never_deletes_data_and_says_where_it_is() {
    let Some((machine, package)) = serving() else {
        return;
    };
    assert!(machine.put("a", "1"));
    let etcd = machine.pid(MEMBER);
    let said = machine.sh("DEBIAN_FRONTEND=noninteractive dpkg --purge etcd-operator 2>&1");
    assert!(said.contains("/var/lib/etcd-operator"), "{said}");
    assert_eq!(machine.pid(MEMBER), etcd);
    assert!(machine.serves());
    machine.sh("getent passwd etcd-operator");
    machine.kill("KILL", MEMBER);
    machine.wait_restarted(etcd);
    assert_eq!(machine.get("a").as_deref(), Some("1"));

    let etcd = machine.pid(MEMBER);
    machine.install(&package);
    machine.write_document("");
    machine.sh(&format!("systemctl enable --now --quiet {OPERATOR}"));
    machine.wait_available();
    assert_eq!(machine.pid(MEMBER), etcd);
    assert_eq!(machine.get("a").as_deref(), Some("1"));
}
