//! A year of one box in two minutes, in the order in which such things happen: the package on a Debian
//! machine, the first document, edits good and bad, a damaged log, a full disk.

use crate::host::{MEMBER, OPERATOR, SOON, package, version};
use crate::lab::{condition, text};
use crate::machine::Machine;

const DOCUMENT: &str = "/etc/etcd-operator/cluster.yaml";
/// The box's data lies on a disk of its own, small enough to be filled.
/// Disks have such names.
const DISK: &str = "/mnt/SD CARD ä";

/// The document of the box, with further lines below `spec:`.
fn edit(machine: &Machine, spec: &str) {
    machine.write_document(&format!(
        "  storage: {{path: {DISK}/etcd, unsafeFilesystem: allow}}\n{spec}"
    ));
}

fn first_line(machine: &Machine) -> String {
    let page = machine.run(&["etcd-operator", "status"]);
    let page = text(&page.stdout);
    page.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn a_box_lives_through_edits_damage_and_a_full_disk() {
    let Some(package) = package() else { return };
    let Some(machine) = Machine::bare() else {
        return;
    };
    machine.trust_clock();
    first_start(&machine, &package);
    edits(&machine);
    damage(&machine);
    full_disk(&machine);
    // Nobody but the person of the story asked for anything: no start failed, and nothing is open.
    assert_eq!(machine.property(OPERATOR, "NRestarts"), "0");
    assert_nothing_open(&machine);
}

/// Nothing waits for a person: but that memory cannot be limited is told where that is so.
#[track_caller]
fn assert_nothing_open(machine: &Machine) {
    let said = first_line(machine);
    let expected = if machine.limits_memory() {
        format!("OK: etcd {}", version())
    } else {
        "ATTENTION: MemoryLimitsOff".to_owned()
    };
    assert!(said.starts_with(&expected), "{said}");
}

/// Installed, and started with what `init` wrote and a person completed.
fn first_start(machine: &Machine, package: &std::path::Path) {
    machine.install(package);
    machine.install_etcd();
    let wrote = machine.sh("etcd-operator init --name edge");
    assert!(wrote.contains("cluster edge"), "{wrote}");
    machine.sh(&format!(
        "mkdir -p '{DISK}'; mount -t tmpfs -o size=400m none '{DISK}'; \
         install -d -o etcd-operator -g etcd-operator -m 700 '{DISK}/etcd' '/srv/USB STICK'"
    ));
    edit(machine, "");
    machine.sh(&format!("systemctl enable --now --quiet {OPERATOR}"));
    machine.wait_available();
    assert_nothing_open(machine);
    assert!(machine.put("first", "1"));
}

/// What an edit does is said beforehand; a bad one is refused, and nothing of it stays.
fn edits(machine: &Machine) {
    const BACKUP: &str = "  backup: {destinations: [{local: {path: /srv/USB STICK}}]}\n";
    let etcd = machine.pid(MEMBER);
    edit(machine, BACKUP);
    let diff = machine.try_sh("etcd-operator diff");
    assert!(diff.status.success(), "{}", text(&diff.stderr));
    assert!(
        text(&diff.stdout).contains("backup"),
        "{}",
        text(&diff.stdout)
    );
    machine.sh(&format!("systemctl reload {OPERATOR}"));
    machine.wait("in force", |it| {
        condition(it, "DocumentAccepted") == ("True", "InForce")
    });
    assert_eq!(machine.pid(MEMBER), etcd, "a live edit restarts nothing");

    // A typing error.
    edit(machine, &format!("{BACKUP}  profil: edge\n"));
    let refused = machine.try_sh(&format!("systemctl reload {OPERATOR}"));
    assert!(!refused.status.success(), "the reload has to fail");
    let status = machine.status();
    assert_eq!(
        condition(&status, "DocumentAccepted"),
        ("False", "SpecInvalid")
    );
    let said = first_line(machine);
    assert!(said.starts_with("ATTENTION: "), "{said}");
    let page = text(&machine.run(&["etcd-operator", "status"]).stdout);
    assert!(page.contains("spec.profil: unknown field"), "{page}");
    assert!(machine.put("while-refused", "1"));
    assert_eq!(machine.pid(MEMBER), etcd);

    // A setting of etcd's, which needs the one declared restart.
    edit(
        machine,
        &format!("{BACKUP}  options: {{snapshotCount: 2000}}\n"),
    );
    let diff = text(&machine.try_sh("etcd-operator diff").stdout);
    assert!(
        diff.contains("options.snapshotCount") && diff.contains("restart"),
        "{diff}"
    );
    machine.sh(&format!("systemctl reload {OPERATOR}"));
    machine.wait_restarted(etcd);
    machine.wait("in force", |it| {
        condition(it, "DocumentAccepted") == ("True", "InForce")
    });
    assert_eq!(machine.get("while-refused").as_deref(), Some("1"));
    machine.sh(&format!("cp {DOCUMENT} /var/tmp/good.yaml"));
}

/// One byte in the middle of the log: held with its place, restored by a person, the loss a number.
fn damage(machine: &Machine) {
    machine.sh("etcd-operator backup create");
    assert!(machine.put("marked", "where-the-byte-flips"));
    for number in 0..20 {
        assert!(machine.put(&format!("later/{number}"), "1"));
    }
    machine.sh(&format!("systemctl stop {OPERATOR} {MEMBER}"));
    let segment = machine.sh(&format!(
        "grep -l where-the-byte-flips '{DISK}'/etcd/data/member/wal/*.wal | head -n 1"
    ));
    let segment = segment.trim();
    machine.sh(&format!(
        "at=$(grep -abo where-the-byte-flips '{segment}' | head -n 1 | cut -d : -f 1); \
         printf X | dd of='{segment}' bs=1 seek=$at conv=notrunc status=none"
    ));
    machine.sh(&format!("systemctl start {OPERATOR}"));
    let status = machine.wait_hold("WalDamaged");
    let message = status["plan"]["message"].as_str().unwrap();
    assert!(message.contains(".wal"), "the file is named: {message}");
    let said = first_line(machine);
    assert!(said.starts_with("ATTENTION: WalDamaged"), "{said}");
    assert!(!machine.serves(), "what is damaged is not started");
    let restored = machine.try_sh("etcd-operator restore --yes");
    assert!(restored.status.success(), "{}", text(&restored.stderr));
    let told = text(&restored.stdout);
    assert!(
        told.contains("lost: ") && told.contains("revision"),
        "{told}"
    );
    machine.wait_available();
    assert_eq!(machine.get("first").as_deref(), Some("1"));
    assert_eq!(machine.get("while-refused").as_deref(), Some("1"));
    // What the restore set aside is removed by a person alone.
    let aside = machine.sh(&format!("ls '{DISK}/etcd'"));
    assert!(aside.contains("data.before-restore-"), "{aside}");
    machine.sh("etcd-operator restore clean --yes");
    let left = machine.sh(&format!("ls '{DISK}/etcd'"));
    assert!(!left.contains("data.before-restore-"), "{left}");
}

/// Something else fills the disk, etcd dies of it, and is back by itself once there is room.
fn full_disk(machine: &Machine) {
    machine.sh(&format!(
        "fallocate -l $(df --output=avail -B1 '{DISK}' | tail -n 1) '{DISK}/ballast'"
    ));
    machine.sh("head -c 60000 /dev/zero | tr '\\0' v > /var/tmp/value");
    let writes = machine.try_sh(
        "i=0; end=$((SECONDS + 90)); while [ $SECONDS -lt $end ]; do \
           etcd-operator etcdctl put full/$i \"$(cat /var/tmp/value)\" > /dev/null 2>&1 || break; \
           i=$((i + 1)); done; echo $i",
    );
    let acknowledged: u32 = text(&writes.stdout).trim().parse().unwrap();
    assert!(acknowledged > 0);
    let status = machine.wait_hold("DiskFull");
    assert_eq!(condition(&status, "Available"), ("False", "DiskFull"));
    let said = first_line(machine);
    assert!(said.starts_with("ATTENTION: DiskFull"), "{said}");
    machine.sh(&format!("rm '{DISK}/ballast'"));
    machine.until(SOON, "a write with no person's help", || {
        machine.put("after", "1")
    });
    machine.wait_available();
    let keys = machine.etcdctl(&["get", "--prefix", "--keys-only", "full/"]);
    let keys = text(&keys.stdout);
    let found = keys.lines().filter(|it| it.starts_with("full/")).count();
    assert!(found >= acknowledged as usize, "{found} of {acknowledged}");
    assert_eq!(machine.get("first").as_deref(), Some("1"));
}
