//! The Debian packages.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{
    ARCHES, Arch, Scratch, VERSION, arg, binary, dist, lines, listing, manual, output, pages, run,
    skip,
};

fn package(dist: &Path, arch: &Arch) -> PathBuf {
    dist.join(format!("etcd-operator_{VERSION}_{}.deb", arch.name))
}

/// The artefacts, where there is a dpkg to read them with.
fn debs() -> Option<PathBuf> {
    let found = Command::new("dpkg-deb").arg("--version").output();
    if found.is_err() {
        skip("dpkg-deb reads the packages, and is not here");
        return None;
    }
    dist()
}

#[test]
fn a_package_holds_exactly_what_is_listed() {
    let Some(dist) = debs() else { return };
    for arch in ARCHES {
        let deb = package(&dist, &arch);
        let files = run("dpkg-deb", &["--fsys-tarfile", arg(&deb)]);
        let expected = "
            rwxr-xr-x usr/bin/etcd-operator
            rw-r--r-- usr/lib/systemd/system/etcd-operator.service
            rw-r--r-- usr/lib/sysusers.d/etcd-operator.conf
            rw-r--r-- usr/lib/tmpfiles.d/etcd-operator.conf
            rw-r--r-- usr/share/polkit-1/rules.d/50-etcd-operator.rules
            rw-r--r-- usr/share/doc/etcd-operator/CHANGELOG.md.gz
            rw-r--r-- usr/share/doc/etcd-operator/THIRD-PARTY.txt.gz
            rw-r--r-- usr/share/doc/etcd-operator/changelog.gz
            rw-r--r-- usr/share/doc/etcd-operator/copyright
            rw-r--r-- usr/share/doc/etcd-operator/examples/cluster.yaml
            rw-r--r-- usr/share/doc/etcd-operator/examples/k3s-on-etcd.conf
            rw-r--r-- usr/share/doc/etcd-operator/examples/run-as-root.conf
            rw-r--r-- usr/share/bash-completion/completions/etcd-operator
            rw-r--r-- usr/share/fish/vendor_completions.d/etcd-operator.fish
            rw-r--r-- usr/share/zsh/vendor-completions/_etcd-operator
            rw-r--r-- usr/share/lintian/overrides/etcd-operator";
        let pages = pages("usr/share/doc/etcd-operator/");
        let expected = format!("{expected}{pages}{}", manual("usr/share/man/man8", ".gz"));
        assert_eq!(listing(&files), lines(&expected), "{}", arch.name);
        let control = run("dpkg-deb", &["--ctrl-tarfile", arg(&deb)]);
        let expected = "
            rw-r--r-- control
            rwxr-xr-x postinst
            rwxr-xr-x postrm
            rwxr-xr-x prerm";
        assert_eq!(listing(&control), lines(expected), "{}", arch.name);

        let dir = Scratch::empty();
        run("dpkg-deb", &["--raw-extract", arg(&deb), arg(&dir.0)]);
        let same = fs::read(dir.0.join("usr/bin/etcd-operator")).unwrap() == binary(&dist, &arch);
        assert!(same, "{}: not the tarball's binary", arch.name);
    }
}

#[test]
fn a_package_asks_for_what_it_needs_and_no_library() {
    let Some(dist) = debs() else { return };
    for arch in ARCHES {
        let deb = package(&dist, &arch);
        let text = String::from_utf8(run("dpkg-deb", &["--field", arg(&deb)])).unwrap();
        let fields: BTreeMap<&str, &str> = text
            .lines()
            .filter(|it| !it.is_empty() && !it.starts_with(' '))
            .map(|it| it.split_once(": ").unwrap())
            .collect();
        assert_eq!(fields["Package"], "etcd-operator");
        assert_eq!(fields["Version"], VERSION);
        assert_eq!(fields["Architecture"], arch.name);
        assert_eq!(fields["Section"], "admin");
        assert_eq!(
            fields["Depends"],
            "systemd | systemd-standalone-sysusers | systemd-sysusers, \
             systemd | systemd-standalone-tmpfiles | systemd-tmpfiles"
        );
        assert_eq!(
            fields["Recommends"],
            "polkitd (>= 121), default-dbus-system-bus | dbus-system-bus"
        );
        assert_eq!(fields["Suggests"], "etcd-client");
        for absent in ["Pre-Depends", "Conflicts", "Breaks", "Replaces", "Provides"] {
            assert!(!fields.contains_key(absent), "{absent}");
        }
    }
}

#[test]
fn lintian_finds_nothing_to_complain_of() {
    let Some(dist) = debs() else { return };
    if Command::new("lintian").arg("--version").output().is_err() {
        return skip("lintian is not installed");
    }
    for arch in ARCHES {
        let deb = package(&dist, &arch);
        let strict = ["--fail-on", "error,warning", "--tag-display-limit", "0"];
        let found = output(
            "lintian",
            &[&strict[..], &["--allow-root", arg(&deb)]].concat(),
        );
        let report = String::from_utf8_lossy(&found.stdout);
        assert!(found.status.success(), "{}: {report}", arch.name);
    }
}
