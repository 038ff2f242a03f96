//! The store: a release as it is published, and the etcdctl in it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::lab::{Lab, condition, program, text};

/// Packs what lies in a folder, by these names in this order.
fn pack(dir: &Path, names: &[&str]) -> PathBuf {
    let archive = dir.join("release.tar.gz");
    let mut command = Command::new("tar");
    command.arg("-C").arg(dir).arg("-czPf").arg(&archive);
    assert!(command.args(names).status().unwrap().success());
    archive
}

fn release(lab: &Lab) -> (PathBuf, String) {
    let name = format!("etcd-v{}-linux-amd64", lab.version);
    let dir = lab.root.join("release");
    fs::create_dir_all(dir.join(&name)).unwrap();
    for program in ["etcd", "etcdctl", "etcdutl"] {
        fs::copy(lab.etcd.join(program), dir.join(&name).join(program)).unwrap();
    }
    fs::write(dir.join(&name).join("README.md"), "etcd").unwrap();
    (dir, name)
}

fn install(lab: &Lab, from: &Path) -> Output {
    lab.operator(&[
        "etcd",
        "install",
        "--from",
        from.to_str().unwrap(),
        &lab.version.clone(),
    ])
}

#[test]
fn a_release_is_installed_as_it_is_published() {
    let lab = Lab::new("3.6");
    fs::remove_dir_all(lab.lib("store")).unwrap();
    let (dir, name) = release(&lab);
    // What else may be in there: a name that leads out, and the same program a second time.
    fs::write(lab.root.join("evil"), "evil").unwrap();
    fs::create_dir(dir.join("x")).unwrap();
    fs::write(dir.join("x/etcd"), "another").unwrap();
    let archive = pack(&dir, &[&name, "../evil", "x"]);
    fs::remove_file(lab.root.join("evil")).unwrap();
    let installed = install(&lab, &archive);
    assert!(installed.status.success(), "{}", text(&installed.stderr));
    let said = text(&installed.stdout);
    assert!(said.contains("(etcd, etcdutl, etcdctl)"), "{said}");
    assert!(!lab.root.join("evil").exists());
    // Nothing of it is left beside the state.
    let beside: Vec<_> = fs::read_dir(lab.lib("").parent().unwrap())
        .unwrap()
        .collect();
    assert_eq!(beside.len(), 1, "{beside:?}");
    // Again: nothing happens.
    assert!(install(&lab, &archive).status.success());
}

/// What is downloaded runs with the keys of the cluster.
#[test]
fn an_archive_that_the_project_did_not_release_is_refused() {
    let lab = Lab::new("3.6");
    let (dir, name) = release(&lab);
    let archive = pack(&dir, &[&name]);
    let install = |more: &[&str]| {
        let from = archive.to_str().unwrap();
        let output = lab.operator(&[&["etcd", "install", "--from", from, "3.6.14"], more].concat());
        assert_eq!(output.status.code(), Some(1));
        assert!(!lab.lib("store/etcd-3.6.14").exists());
        text(&output.stderr)
    };
    let said = install(&[]);
    assert!(
        said.contains("the release of etcd 3.6.14 has") && said.contains("--unverified"),
        "{said}"
    );
    let said = install(&["--unverified"]);
    assert!(said.contains("instead of 3.6.14"), "{said}");
}

#[test]
fn what_is_no_release_is_refused_and_nothing_is_left_of_it() {
    let lab = Lab::new("3.6");
    let (dir, name) = release(&lab);
    let whole = fs::read(pack(&dir, &[&name])).unwrap();
    let refused = |archive: &Path, words: &str| {
        let output = install(&lab, archive);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(words), "{said}");
        let beside: Vec<_> = fs::read_dir(lab.lib("").parent().unwrap())
            .unwrap()
            .collect();
        assert_eq!(beside.len(), 1, "{beside:?}");
    };
    let archive = dir.join("damaged.tar.gz");
    fs::write(&archive, &whole[..whole.len() / 2]).unwrap();
    refused(&archive, "tar cannot read");
    fs::write(&archive, "PK").unwrap();
    refused(&archive, "is neither a directory nor a release's .tar.gz");
    refused(
        Path::new("/no/such.tar.gz"),
        "failed to open /no/such.tar.gz: No such file",
    );
    fs::remove_file(dir.join(&name).join("etcd")).unwrap();
    refused(&pack(&dir, &[&name]), "holds no etcd");
    // A link in the archive leads nowhere.
    symlink(lab.etcd.join("etcd"), dir.join(&name).join("etcd")).unwrap();
    refused(&pack(&dir, &[&name]), "is not a program for this machine");
    // One of 4 GiB of zeros, in a few MiB: it ends where no program is larger.
    fs::remove_file(dir.join(&name).join("etcd")).unwrap();
    let bomb = fs::File::create(dir.join(&name).join("etcd")).unwrap();
    bomb.set_len(1 << 29).unwrap();
    refused(&pack(&dir, &[&name]), "is larger than 256 MiB");
}

fn etcdctl(lab: &Lab, arguments: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.arg("--root").arg(&lab.root).arg("etcdctl");
    command.args(arguments).output().unwrap()
}

#[test]
fn etcdctl_connects_by_itself_and_its_exit_code_is_the_commands() {
    let mut lab = Lab::new("3.6");
    let early = etcdctl(&lab, &["get", "a"]);
    assert_eq!(early.status.code(), Some(1));
    assert!(
        text(&early.stderr).contains("start the operator"),
        "{}",
        text(&early.stderr)
    );
    lab.start_agent();
    lab.wait_available();
    assert!(etcdctl(&lab, &["put", "a", "--", "-1"]).status.success());
    let got = etcdctl(&lab, &["get", "a", "--print-value-only"]);
    assert_eq!(text(&got.stdout), "-1\n", "{}", text(&got.stderr));
    assert!(etcdctl(&lab, &["endpoint", "health"]).status.success());
    // As etcdctl itself ends.
    let own = lab.etcdctl(&["get"]).status.code();
    assert_ne!(own, Some(0));
    assert_eq!(etcdctl(&lab, &["get"]).status.code(), own);
    // Also without an agent.
    lab.stop_agent();
    assert!(etcdctl(&lab, &["get", "a"]).status.success());
    fs::remove_file(lab.lib(&format!("store/etcd-{}/etcdctl", lab.version))).unwrap();
    let none = etcdctl(&lab, &["get", "a"]);
    assert_eq!(none.status.code(), Some(1));
    let wanted = format!("etcd install --from FILE {}", lab.version);
    assert!(
        text(&none.stderr).contains(&wanted),
        "{}",
        text(&none.stderr)
    );
}

/// What is trusted without proof stands in the status, and is no defect of the host.
#[test]
fn an_etcd_of_no_release_and_members_of_the_group_are_told_in_the_status() {
    let mut lab = Lab::new("3.6");
    fs::create_dir_all(lab.root.join("etc")).unwrap();
    fs::write(lab.root.join("etc/group"), "etcd-operator:x:998:till\n").unwrap();
    // The host is looked at before there is an etcd, and the next look is a minute away.
    let (store, aside) = (lab.lib("store"), lab.root.join("store"));
    fs::rename(&store, &aside).unwrap();
    lab.start_agent();
    lab.wait("a look at the host", |it| {
        it["host"]["look"]["fresh"] == true && condition(it, "HostHealthy").0 != "Unknown"
    });
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let _ = fs::remove_dir_all(&store);
    fs::rename(&aside, &store).unwrap();
    let told =
        |status: &serde_json::Value, words: &str| status["conditions"].to_string().contains(words);
    let status = lab.wait("both words", |it| {
        told(it, "group: till") && told(it, "nobody compared it with the checksum")
    });
    assert_eq!(condition(&status, "HostHealthy"), ("True", "Sound"));
}
