//! The bench itself is real: what the other tests stand on.

use std::fs;
use std::path::{Path, PathBuf};

use crate::lab::text;
use crate::machine::{Machine, TRIXIE};

#[test]
fn another_root_boots_systemd_257() {
    let Some(machine) = Machine::bare_on(TRIXIE) else {
        return;
    };
    assert!(machine.sh("systemctl --version").starts_with("systemd 257"));
    assert_eq!(
        machine.sh("systemctl list-units --failed --plain --no-legend"),
        ""
    );
}

const CAP_SYS_TIME: u64 = 1 << 25;

#[test]
fn pid_1_is_systemd_252_and_every_unit_of_the_machine_runs() {
    let Some(machine) = Machine::bare() else {
        return;
    };
    assert_eq!(
        machine.sh("readlink /proc/1/exe"),
        "/usr/lib/systemd/systemd\n"
    );
    assert!(machine.sh("systemctl --version").starts_with("systemd 252"));
    assert_eq!(
        machine.sh("systemctl list-units --failed --plain --no-legend"),
        ""
    );
    // Its own network, with nothing but loopback.
    assert_eq!(machine.sh("ls /sys/class/net; cat /proc/net/route"), {
        let columns = machine.sh("head -n 1 /proc/net/route");
        format!("lo\n{columns}")
    });
    assert!(machine.sh("ip -br addr show lo").contains("127.0.0.1/8"));
    // The kernel is that of the machine outside: nobody in here may turn its clock.
    for process in ["1", "self"] {
        let bounds = machine.sh(&format!(
            "sed -n 's/^CapBnd:\\s*//p' /proc/{process}/status"
        ));
        let bounds = u64::from_str_radix(bounds.trim(), 16).unwrap();
        assert_eq!(bounds & CAP_SYS_TIME, 0, "{process}");
    }
    // Rules for users are enforced.
    machine.sh("useradd --system guest");
    let refused = machine.sh_as("guest", "systemctl restart dbus.service 2>&1");
    assert!(!refused.status.success(), "{}", text(&refused.stdout));
}

#[test]
fn data_lies_on_a_real_file_system() {
    let Some(machine) = Machine::bare() else {
        return;
    };
    assert_eq!(machine.sh("stat -f -c %T /").trim(), "overlayfs");
    let kind = machine.sh("stat -f -c %T /var/lib");
    assert!(
        !["overlayfs", "tmpfs"].contains(&kind.trim()),
        "the checkout lies on {kind}"
    );
}

#[test]
fn memory_max_is_enforced() {
    let Some(machine) = Machine::bare() else {
        return;
    };
    if !machine.can_limit_memory() {
        return;
    }
    // tail keeps a line without an end in memory.
    let hog = "sh -c 'head -c 96M /dev/zero | tail -c 96M | wc -c | grep -q 100663296'";
    let run = |limit: &str| {
        let run = format!("systemd-run --wait --collect --quiet -p MemoryMax={limit} {hog}");
        machine.try_sh(&run).status.success()
    };
    assert!(run("256M"), "what is enough is enough");
    assert!(!run("32M"), "what is not is not");
}

#[test]
fn load_credential_reaches_the_unit_and_nobody_else() {
    let Some(machine) = Machine::bare() else {
        return;
    };
    machine
        .sh("useradd --system owner; useradd --system other; umask 077; echo sesame > /etc/word");
    machine.write(
        "/etc/systemd/system/reader.service",
        "[Service]\nUser=owner\nLoadCredential=word:/etc/word\n\
         ExecStart=sh -c 'cat $CREDENTIALS_DIRECTORY/word && exec sleep 600'\n",
    );
    machine.sh("systemctl daemon-reload; systemctl start reader; sleep 0.3");
    assert!(machine.journal("reader").contains("sesame"));
    let file = "/run/credentials/reader.service/word";
    assert!(
        machine
            .sh_as("owner", &format!("cat {file}"))
            .status
            .success()
    );
    assert!(
        !machine
            .sh_as("other", &format!("cat {file}"))
            .status
            .success()
    );
    assert!(!machine.sh_as("owner", "cat /etc/word").status.success());
}

#[test]
fn a_reboot_keeps_the_disk_and_loses_run() {
    let Some(mut machine) = Machine::bare() else {
        return;
    };
    machine.write(
        "/etc/systemd/system/last.service",
        "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=true\n\
         ExecStop=sh -c 'echo in order > /var/lib/stopped'\n[Install]\nWantedBy=multi-user.target\n",
    );
    machine.sh(
        "systemctl enable --now --quiet last; touch /etc/kept /var/lib/kept /run/lost /tmp/lost",
    );
    let look =
        |machine: &Machine| machine.sh("cat /etc/machine-id /proc/sys/kernel/random/boot_id");
    let before = look(&machine);
    machine.reboot();
    machine.sh("test -e /etc/kept -a -e /var/lib/kept -a ! -e /run/lost -a ! -e /tmp/lost");
    assert_eq!(machine.sh("cat /var/lib/stopped"), "in order\n");
    assert_eq!(machine.property("last", "ActiveState"), "active");
    let after = look(&machine);
    assert_eq!(before.lines().next(), after.lines().next(), "the machine");
    assert_ne!(before.lines().nth(1), after.lines().nth(1), "the boot");
    assert_eq!(
        machine.sh("journalctl --list-boots --quiet | wc -l").trim(),
        "2"
    );
}

#[test]
fn a_power_cut_stops_nothing_in_order_and_keeps_the_disk() {
    let Some(mut machine) = Machine::bare() else {
        return;
    };
    machine.write(
        "/etc/systemd/system/counter.service",
        "[Service]\nExecStart=bash -c 'while :; do echo $((++i)) >> /var/lib/count; sleep 0.01; done'\n\
         ExecStopPost=touch /var/lib/stopped\n[Install]\nWantedBy=multi-user.target\n",
    );
    machine.sh("systemctl enable --now --quiet counter; sleep 0.3");
    machine.power_cut();
    let counted = fs::read_to_string(machine.path("/var/lib/count")).unwrap();
    assert!(counted.lines().count() > 3, "{counted}");
    assert!(!machine.path("/var/lib/stopped").exists());
    machine.boot();
    let kept = machine.sh("cat /var/lib/count");
    assert!(kept.starts_with(&counted));
    assert_eq!(machine.property("counter", "ActiveState"), "active");
}

#[test]
fn a_machine_that_goes_leaves_nothing() {
    let Some(machine) = Machine::bare() else {
        return;
    };
    machine.sh("systemd-run --quiet sleep 4242");
    let init = machine.init();
    let disk = machine.disk().to_owned();
    let cgroups = cgroups_of(init);
    assert!(!cgroups.is_empty(), "init has a cgroup of its own");
    assert!(cgroups.iter().all(|it| it.exists()));
    drop(machine);
    assert!(!Path::new(&format!("/proc/{init}")).exists());
    assert!(cgroups.iter().all(|it| !it.exists()), "{cgroups:?}");
    assert!(!disk.exists());
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    assert!(!mounts.contains(disk.to_str().unwrap()), "{mounts}");
}

/// The machine's own sub-tree: in each hierarchy of version 1, or in the one of version 2.
fn cgroups_of(init: u32) -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let only_version_2 = root.join("cgroup.controllers").exists();
    let lines = fs::read_to_string(format!("/proc/{init}/cgroup")).unwrap();
    let names = lines.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let hierarchy = match fields.next()? {
            "" if only_version_2 => "",
            "" => "unified",
            name => name.trim_start_matches("name="),
        };
        let machine = fields.next()?.split('/').nth(1)?;
        machine
            .starts_with("etcd-operator-machine-")
            .then(|| root.join(hierarchy).join(machine))
    });
    names.collect()
}
