//! The manifest by which krew installs kubectl's plugin, by the real krew.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use crate::{ARCHES, Scratch, VERSION, arg, binary, checkout, dist, sha256, skip, tarball, text};

/// A person's own place, with krew as its program.
struct Home<'a> {
    krew: &'a Path,
    dir: Scratch,
}

impl Home<'_> {
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        let root = self.dir.0.join("krew");
        command
            .env_clear()
            .env("HOME", &self.dir.0)
            .env("PATH", format!("{}/bin:/usr/bin:/bin", root.display()))
            .env("KREW_ROOT", root)
            .env("KREW_NO_UPGRADE_CHECK", "1");
        command
    }

    fn install(&self, manifest: &Path, archive: &Path, os_arch: &str) -> Output {
        let (os, arch) = os_arch.split_once('/').unwrap();
        self.command(self.krew)
            .args(["install", "--manifest", arg(manifest)])
            .args(["--archive", arg(archive)])
            .envs([("KREW_OS", os), ("KREW_ARCH", arch)])
            .output()
            .unwrap()
    }
}

#[test]
fn krew_installs_the_plugin_for_each_architecture_and_refuses_another_archive() {
    let Some(dist) = dist() else { return };
    let tools = checkout().join("target/tools/kubernetes");
    let krew = tools.join("krew");
    if !krew.exists() {
        return skip("tests/tools/kubernetes.sh builds krew with Go");
    }
    let manifest = dist.join(format!("etcd-operator-{VERSION}-krew.yaml"));
    for arch in ARCHES {
        let home = Home {
            krew: &krew,
            dir: Scratch::empty(),
        };
        let said = home.install(
            &manifest,
            &tarball(&dist, &arch),
            &format!("linux/{}", arch.name),
        );
        assert!(said.status.success(), "{}", text(&said.stderr));
        let plugin = home.dir.0.join("krew/bin/kubectl-etcd");
        assert_eq!(
            sha256(&fs::read(&plugin).unwrap()),
            sha256(&binary(&dist, &arch))
        );
        let mode = fs::metadata(&plugin).unwrap().permissions().mode();
        assert_eq!(mode & 0o111, 0o111, "{mode:o}");
        if arch.machine == std::env::consts::ARCH {
            let kubectl = tools.join("kubectl");
            let help = home.command(&kubectl).args(["etcd", "--help"]).output();
            let help = text(&help.unwrap().stdout);
            assert!(help.contains("kubectl etcd [OPTIONS] <COMMAND>"), "{help}");
        }
    }
    // Of the other architecture, and one that the manifest has not.
    let home = Home {
        krew: &krew,
        dir: Scratch::empty(),
    };
    for (archive, os_arch, words) in [
        (&ARCHES[0], "linux/amd64", "checksum does not match"),
        (&ARCHES[0], "darwin/arm64", "does not offer installation"),
    ] {
        let said = home.install(&manifest, &tarball(&dist, archive), os_arch);
        assert!(!said.status.success());
        let said = text(&said.stderr);
        assert!(said.contains(words), "{said}");
    }
}
