//! Bad input and a bad place: a clear message and exit code, or a hold; nothing lost.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::disk::{Disk, may_mount, run};
use crate::lab::{Lab, condition, text};

#[test]
fn a_document_that_is_none_ends_the_agent_with_2_and_says_why() {
    type Damage = fn(&Path);
    let documents: [(&str, Damage); 8] = [
        ("sudo etcd-operator init", |path| {
            fs::remove_file(path).unwrap();
        }),
        ("is not a file", |path| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        }),
        ("is empty", |path| fs::write(path, " \n").unwrap()),
        ("allowed is a map", |path| {
            fs::write(path, "- one\n- two\n").unwrap();
        }),
        ("not UTF-8", |path| fs::write(path, b"a: \xff\xfe").unwrap()),
        ("second document", |path| {
            let one = fs::read_to_string(path).unwrap();
            fs::write(path, format!("{one}---\n{one}")).unwrap();
        }),
        ("spec.sizes", |path| {
            let one = fs::read_to_string(path).unwrap();
            fs::write(path, format!("{one}  sizes: 1\n")).unwrap();
        }),
        ("spec.size", |path| {
            let one = fs::read_to_string(path).unwrap();
            fs::write(path, format!("{one}  size: 2\n")).unwrap();
        }),
    ];
    for (words, damage) in documents {
        let mut lab = Lab::new("3.6");
        damage(&lab.document_path());
        lab.start_agent();
        assert_eq!(lab.agent_exit(), 2, "{words}: {}", lab.log());
        assert!(lab.log().contains(words), "{words}: {}", lab.log());
        assert!(lab.log().contains("cluster.yaml"), "{words}: {}", lab.log());
        assert!(!lab.lib("member").exists(), "{words}: nothing was begun");
    }
}

#[test]
fn a_taken_port_is_a_hold_that_names_who_has_it_and_heals_when_it_is_free() {
    for which in 0..3 {
        let mut lab = Lab::new("3.6");
        let taken = TcpListener::bind(("127.0.0.1", lab.ports[which])).unwrap();
        lab.start_agent();
        let status = lab.wait("a hold", |it| it["plan"]["hold"].is_string());
        let message = status["plan"]["message"].as_str().unwrap();
        assert!(
            message.contains(&format!("127.0.0.1:{}", lab.ports[which])),
            "{message}"
        );
        assert!(
            message.contains(&format!("pid {}", std::process::id())),
            "{message}"
        );
        assert_eq!(condition(&status, "Available").0, "False");
        assert!(!lab.data("").exists(), "etcd was not started");
        drop(taken);
        lab.wait_available();
    }
}

/// A file system in memory, unmounted when it is dropped.
struct Tmpfs(std::path::PathBuf);
impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = run("umount", &["-l", self.0.to_str().unwrap()]);
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn data_on_a_file_system_in_memory_is_refused_unless_the_document_accepts_it() {
    if !may_mount() {
        return;
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tmpfs-{}", std::process::id()));
    fs::create_dir_all(&path).unwrap();
    run(
        "mount",
        &[
            "-t",
            "tmpfs",
            "-o",
            "size=256m,mode=0700",
            "tmpfs",
            path.to_str().unwrap(),
        ],
    )
    .unwrap();
    let tmpfs = Tmpfs(path);
    let mut lab = Lab::new("3.6");
    lab.spec.clear();
    lab.storage(&format!("path: {}, quota: 16Mi", tmpfs.0.display()));
    lab.start_agent();
    let status = lab.wait_hold("FilesystemUnsafe");
    assert!(
        status["plan"]["message"]
            .as_str()
            .unwrap()
            .contains("tmpfs"),
        "{status:#}"
    );
    assert!(
        fs::read_dir(&tmpfs.0).unwrap().next().is_none(),
        "nothing was written there"
    );
    lab.spec.clear();
    lab.storage(&format!(
        "path: {}, quota: 16Mi, unsafeFilesystem: allow",
        tmpfs.0.display()
    ));
    lab.wait("the agent", |it| it["host"]["operator"]["pid"].is_u64());
    lab.signal_agent("HUP");
    lab.wait_available();
}

#[test]
fn a_storage_path_that_is_not_there_is_a_hold_until_it_is_mounted() {
    if !may_mount() {
        return;
    }
    let disk = Disk::new("missing", 192);
    let place = disk.path.join("data");
    let mut lab = Lab::new("3.6");
    lab.storage(&format!("path: {}, quota: 16Mi", place.display()));
    lab.start_agent();
    lab.wait_hold("StorageMissing");
    assert!(!place.exists(), "a mount point is not made up");
    fs::create_dir(&place).unwrap();
    lab.wait_available();
}

#[test]
fn a_full_disk_loses_nothing_and_heals_when_there_is_room() {
    if !may_mount() {
        return;
    }
    let disk = Disk::new("full", 512);
    let mut lab = Lab::new("3.6");
    // The whole state lies on it: records, certificates, logs and data.
    let state = disk.path.join("state");
    let lib = lab.root.join("var/lib/etcd-operator");
    run(
        "cp",
        &["-a", lib.to_str().unwrap(), state.to_str().unwrap()],
    )
    .unwrap();
    fs::remove_dir_all(&lib).unwrap();
    std::os::unix::fs::symlink(&state, &lib).unwrap();
    lab.storage("quota: 16Mi");
    let ballast = disk.fill();
    lab.start_agent();
    let full = |it: &serde_json::Value| {
        let told = it["conditions"].to_string();
        told.contains("No space left on device") || told.contains("the disk is too full")
    };
    let status = lab.wait("told", full);
    assert_eq!(condition(&status, "Available").0, "False");
    assert_eq!(condition(&status, "Degraded"), ("True", "StepFailed"));
    fs::remove_file(&ballast).unwrap();
    lab.wait_available();
    assert!(lab.put("kept", "yes"));
    lab.wait("recorded", |_| {
        lab.identity().is_some_and(|it| it.member.id.is_some())
    });
    // Full again, over a death of etcd and of the operator, with an edit that must be recorded.
    let ballast = disk.fill();
    lab.kill_agent();
    lab.kill_etcd();
    let identity = fs::read(lab.lib("member/identity.json")).unwrap();
    lab.add("options: {snapshotCount: 4321}");
    lab.start_agent();
    let status = lab.wait("told", full);
    assert_eq!(condition(&status, "Available").0, "False");
    assert_eq!(fs::read(lab.lib("member/identity.json")).unwrap(), identity);
    fs::remove_file(&ballast).unwrap();
    let status = lab.wait_available();
    assert_eq!(condition(&status, "Degraded").0, "False");
    assert_eq!(lab.get("kept").as_deref(), Some("yes"));
    let conf = fs::read_to_string(lab.lib("member/etcd.conf.yaml")).unwrap();
    assert!(conf.contains("snapshot-count: 4321"));
}

/// A program whose head says another machine.
fn foreign(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    bytes[18] ^= 0x55;
    fs::remove_file(path).unwrap();
    fs::write(path, bytes).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn an_etcd_for_another_machine_is_neither_installed_nor_started() {
    let mut lab = Lab::new("3.6");
    let from = lab.root.join("download");
    fs::create_dir(&from).unwrap();
    fs::copy(lab.etcd.join("etcd"), from.join("etcd")).unwrap();
    foreign(&from.join("etcd"));
    let version = lab.version.clone();
    let output = lab.operator(&[
        "etcd",
        "install",
        "--from",
        from.to_str().unwrap(),
        &version,
    ]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("not a program for this machine"),
        "{}",
        text(&output.stderr)
    );
    // A card that was written for another board.
    let program = lab.lib(&format!("store/etcd-{version}/etcd"));
    foreign(&program);
    lab.start_agent();
    let status = lab.wait_hold("BinaryWrongArchitecture");
    assert_eq!(condition(&status, "Available").0, "False");
    let from = lab.etcd.to_str().unwrap().to_owned();
    let output = lab.operator(&["etcd", "install", "--from", &from, &version]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    lab.wait_available();
}

/// A firmware that reports too little voltage cannot be had here: its file is written by hand.
#[test]
fn a_weak_supply_is_a_condition_and_a_line_of_preflight() {
    let mut lab = Lab::new("3.6");
    let firmware = lab.root.join("sys/devices/platform/soc/soc:firmware");
    fs::create_dir_all(&firmware).unwrap();
    fs::write(firmware.join("get_throttled"), "50005\n").unwrap();
    lab.start_agent();
    let status = lab.wait_available();
    assert_eq!(condition(&status, "HostHealthy"), ("False", "UnderVoltage"));
    assert_eq!(
        condition(&status, "Degraded").0,
        "False",
        "etcd is as asked"
    );
    let preflight = lab.operator(&["preflight", "-o", "json"]);
    let rows: serde_json::Value = serde_json::from_slice(&preflight.stdout).unwrap();
    let row = |check: &str| {
        let rows = rows.as_array().unwrap();
        rows.iter().find(|it| it["check"] == check).unwrap().clone()
    };
    assert_eq!(row("power supply")["result"], "warning");
    assert!(
        row("power supply")["next"]
            .as_str()
            .unwrap()
            .contains("power adapter")
    );
    // Everything else that this host can answer for is as it should be.
    for check in ["document", "etcd", "state", "ports", "sync"] {
        assert!(
            matches!(row(check)["result"].as_str(), Some("ok" | "note")),
            "{:#}",
            row(check)
        );
    }
    assert_eq!(preflight.status.code(), Some(0), "a warning is no failure");
    fs::write(firmware.join("get_throttled"), "0\n").unwrap();
    let preflight = lab.operator(&["preflight", "--skip-disk", "-o", "json"]);
    assert!(!text(&preflight.stdout).contains("UnderVoltage"));
}

#[test]
fn preflight_fails_where_etcd_could_not_run_and_says_what_to_do() {
    let lab = Lab::new("3.6");
    let store = lab.lib(&format!("store/etcd-{}", lab.version));
    fs::rename(&store, lab.lib("store/elsewhere")).unwrap();
    let taken = std::net::TcpListener::bind(("127.0.0.1", lab.ports[0])).unwrap();
    let preflight = lab.operator(&["preflight", "--skip-disk"]);
    let page = text(&preflight.stdout);
    assert_eq!(preflight.status.code(), Some(1), "{page}");
    assert!(
        page.contains("etcd-operator etcd install --from FILE"),
        "{page}"
    );
    // A child that another test forks holds the socket too, until it becomes its own program.
    let names_the_holder = || {
        let preflight = lab.operator(&["preflight", "--skip-disk"]);
        text(&preflight.stdout).contains("held by etcd_live")
    };
    assert!((0..20).any(|_| names_the_holder()), "{page}");
    drop(taken);
    fs::write(lab.document_path(), "kind: nonsense\n").unwrap();
    let preflight = lab.operator(&["preflight", "--skip-disk"]);
    assert!(
        text(&preflight.stdout).contains("document"),
        "a bad document does not end it"
    );
    assert_eq!(preflight.status.code(), Some(1));
}

#[test]
fn the_systemd_driver_is_refused_where_systemd_does_not_run_the_host() {
    let lab = Lab::new("3.6");
    let agent = lab.operator(&["agent", "--driver", "systemd"]);
    assert_eq!(agent.status.code(), Some(2));
    assert!(
        text(&agent.stderr).contains("--driver process"),
        "{}",
        text(&agent.stderr)
    );
    let unit = lab.operator(&["unit", "--install"]);
    assert_eq!(unit.status.code(), Some(1), "{}", text(&unit.stderr));
}
