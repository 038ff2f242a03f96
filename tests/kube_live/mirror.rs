//! From CoreOS' etcd operator to this one, as `deploy/README.md` says: `convert`, apply, and the keys by `etcdctl make-mirror`.

use std::os::unix::fs::symlink;
use std::process::Command;

use crate::cluster::output;
use crate::desk;
use crate::lab::{SOON, root};
use crate::operated::Operated;

/// An etcd as the old operator left it: without TLS, behind the Service of that name. The operator itself is not there.
const OLD: &str = r"
apiVersion: v1
kind: Pod
metadata: {name: old-0000, labels: {etcd_cluster: old}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: etcd
    image: quay.io/coreos/etcd:v3.6.16
    command: [/usr/local/bin/etcd, --data-dir=/tmp/etcd, '--listen-client-urls=http://0.0.0.0:2379', '--advertise-client-urls=http://127.0.0.1:2379']
---
apiVersion: v1
kind: Service
metadata: {name: old-client}
spec:
  selector: {etcd_cluster: old}
  ports: [{name: client, port: 2379}]
";

/// As an example of the old project has it.
const DOCUMENT: &str = r"
apiVersion: etcd.database.coreos.com/v1beta2
kind: EtcdCluster
metadata: {name: old}
spec: {size: 1, version: 3.2.13}
";

/// The commands of the page's section.
fn commands() -> Vec<String> {
    let page = std::fs::read_to_string(root().join("deploy/README.md")).unwrap();
    let (_, section) = page.split_once("### From CoreOS' etcd operator").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let lines = section.lines().filter_map(|it| it.strip_prefix("    $ "));
    lines.map(str::to_owned).collect()
}

#[test]
fn the_keys_of_the_old_operators_etcd_come_along() {
    let Some(it) = Operated::up() else {
        return;
    };
    it.apply(OLD);
    let old = |words: &[&str]| {
        let command = [&["/usr/local/bin/etcdctl"], words].concat();
        it.exec("default", "old-0000", "etcd", &command)
    };
    it.eventually("the old etcd", SOON, || {
        old(&["put", "from/before", "1"]).ok.then_some(())
    });
    let commands = commands();
    assert_eq!(commands.len(), 4, "{commands:#?}");
    let file = it.dir.join("old.yaml");
    std::fs::write(&file, DOCUMENT).unwrap();
    // The commands write beside the examples.
    symlink(root().join("deploy"), it.dir.join("deploy")).unwrap();
    for (number, command) in commands.iter().enumerate() {
        // There is no server of the old types here: their document is a file.
        let command = match number {
            0 => command.replace(
                "kubectl get etcdclusters.etcd.database.coreos.com -o yaml",
                &format!("cat {}", file.display()),
            ),
            _ => command.clone(),
        };
        let mut shell = Command::new("bash");
        shell
            .args(["-o", "pipefail", "-c", &command])
            .current_dir(&it.dir)
            .env_clear()
            .env("PATH", desk::path(&it))
            .env("HOME", &it.admin().home)
            .env("KUBECONFIG", &it.admin().kubeconfig);
        let done = output(&mut shell);
        println!("$ {command}\n{}{}", done.stdout, done.stderr);
        // convert asks a person to look at the version.
        assert_eq!(done.ok, number != 0, "{command}: {}", done.stderr);
    }
    let comes = |key: &str, value: &str| {
        it.eventually(key, SOON, || {
            let read = it.try_etcdctl("shop", &["get", key, "--print-value-only"])?;
            (read.trim_end() == value).then_some(())
        });
    };
    comes("from/before", "1");
    old(&["put", "from/meanwhile", "2"]).good();
    comes("from/meanwhile", "2");
    old(&["del", "from/before"]).good();
    comes("from/before", "");
    it.kubectl(&["delete", "pod", "mirror", "--grace-period=1"])
        .good();
    it.put("shop", "its own", "3");
}
