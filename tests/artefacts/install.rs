//! The tarballs, and `make install` from one.

use std::fs;
use std::path::Path;

use crate::{
    ARCHES, Scratch, arg, dist, folder, lines, listing, manual, pages, run, tarball, text,
};

#[test]
fn a_tarball_holds_exactly_what_is_listed() {
    let Some(dist) = dist() else { return };
    for arch in ARCHES {
        let tar = run("gzip", &["-dc", arg(&tarball(&dist, &arch))]);
        let folder = folder(&arch);
        let expected = "
            rwxr-xr-x etcd-operator
            rw-r--r-- CHANGELOG.md
            rw-r--r-- LICENSE
            rw-r--r-- Makefile
            rw-r--r-- THIRD-PARTY.txt
            rw-r--r-- systemd/completions/_etcd-operator
            rw-r--r-- systemd/completions/etcd-operator
            rw-r--r-- systemd/completions/etcd-operator.fish
            rw-r--r-- systemd/etcd-operator.service
            rwxr-xr-x systemd/install.sh
            rw-r--r-- systemd/k3s-on-etcd.conf
            rw-r--r-- systemd/polkit.rules
            rw-r--r-- systemd/run-as-root.conf
            rw-r--r-- systemd/sysusers.conf
            rw-r--r-- systemd/tmpfiles.conf";
        let expected = format!("{expected}{}{}", pages(""), manual("systemd/man", ""));
        let inside = listing(&tar).into_iter();
        let inside: Vec<String> = inside
            .map(|it| it.replace(&format!(" {folder}/"), " "))
            .collect();
        assert_eq!(inside, lines(&expected), "{}", arch.name);
    }
}

#[test]
fn the_licences_of_what_is_linked_in_go_with_the_binary() {
    let Some(dist) = dist() else { return };
    let member = format!("{}/THIRD-PARTY.txt", folder(&ARCHES[0]));
    let tarball = tarball(&dist, &ARCHES[0]);
    let notices = text(&run("tar", &["-xzOf", arg(&tarball), &member]));
    // Of Cargo.lock a crate of ours, one of theirs, and one that only builds others.
    for name in ["etcd-client", "rustls-webpki", "tokio"] {
        assert!(notices.contains(&format!("\n{name} ")), "{name}");
    }
    assert!(!notices.contains("\nprost-build "));
    assert!(notices.contains("Permission is hereby granted, free of charge"));
}

/// Every file below a directory, as `PATH` from it.
fn below(dir: &Path) -> Vec<String> {
    let found = text(&run(
        "find",
        &[arg(dir), "-type", "f", "-printf", "%M %P\n"],
    ));
    lines(&found.replace("\n-", "\n").replacen('-', "", 1))
}

#[test]
fn make_install_from_the_tarball_places_every_file_and_uninstall_leaves_the_document() {
    let Some(dist) = dist() else { return };
    for (prefix, rules, zsh) in [
        ("/usr/local", "etc/polkit-1/rules.d", "site-functions"),
        ("/usr", "usr/share/polkit-1/rules.d", "vendor-completions"),
    ] {
        let dir = Scratch::empty();
        let tarball = tarball(&dist, &ARCHES[0]);
        run("tar", &["-xzf", arg(&tarball), "-C", arg(&dir.0)]);
        let unpacked = dir.0.join(folder(&ARCHES[0]));
        let root = dir.0.join("root");
        let make = |goal: &str| {
            let destdir = format!("DESTDIR={}", root.display());
            let prefix = format!("PREFIX={prefix}");
            run("make", &["-C", arg(&unpacked), goal, &destdir, &prefix])
        };
        make("install");
        let at = &prefix[1..];
        let doc = format!("{at}/share/doc/etcd-operator");
        let expected = format!(
            "rwxr-xr-x {at}/bin/etcd-operator
            rw-r--r-- {at}/lib/systemd/system/etcd-operator.service
            rw-r--r-- {at}/lib/sysusers.d/etcd-operator.conf
            rw-r--r-- {at}/lib/tmpfiles.d/etcd-operator.conf
            rw-r--r-- {at}/share/bash-completion/completions/etcd-operator
            rw-r--r-- {at}/share/fish/vendor_completions.d/etcd-operator.fish
            rw-r--r-- {at}/share/zsh/{zsh}/_etcd-operator
            rw-r--r-- {doc}/LICENSE
            rw-r--r-- {doc}/THIRD-PARTY.txt
            rw-r--r-- {doc}/examples/k3s-on-etcd.conf
            rw-r--r-- {doc}/examples/run-as-root.conf
            rw-r--r-- {rules}/50-etcd-operator.rules{}{}",
            pages(&format!("{doc}/")),
            manual(&format!("{at}/share/man/man8"), ""),
        );
        assert_eq!(below(&root), lines(&expected));
        // A page that went with a newer version, and the place of the others.
        let page = |it: &str| fs::read_to_string(root.join(at).join(it)).unwrap();
        let named = page("share/man/man8/etcd-operator.8");
        assert!(named.contains(&format!("{prefix}/share/doc/etcd-operator")));
        fs::write(
            root.join(at).join("share/man/man8/etcd-operator-gone.8"),
            "",
        )
        .unwrap();
        make("install");
        assert_eq!(below(&root), lines(&expected));
        // The unit starts the binary where it was installed.
        let unit = root
            .join(at)
            .join("lib/systemd/system/etcd-operator.service");
        let unit = fs::read_to_string(unit).unwrap();
        assert!(unit.contains(&format!("ExecStart={prefix}/bin/etcd-operator ")));
        assert_eq!(unit.contains("/usr/bin/"), prefix == "/usr");

        // The document of this host stays, also when installed over.
        let document = root.join("etc/etcd-operator/cluster.yaml");
        fs::create_dir_all(document.parent().unwrap()).unwrap();
        fs::write(&document, "edited").unwrap();
        make("install");
        assert_eq!(fs::read_to_string(&document).unwrap(), "edited");
        fs::create_dir_all(root.join("var/lib/etcd-operator")).unwrap();
        fs::write(root.join("var/lib/etcd-operator/data"), "").unwrap();
        make("uninstall");
        let left = "rw-r--r-- etc/etcd-operator/cluster.yaml
            rw-r--r-- var/lib/etcd-operator/data";
        assert_eq!(below(&root), lines(left));
    }
}
