//! `status`, `plan` and `backup` of a cluster in Kubernetes, from where a kubeconfig is.

use std::os::unix::fs::symlink;
use std::process::Command;

use serde_json::{Value, json};

use crate::backups::with_a_bucket;
use crate::cluster::{Access, Output, output};
use crate::lab::{SOON, tools};
use crate::operated::{Operated, document};

/// What a person has who looks after a cluster, and nobody's Secrets.
const RIGHTS: &str = r#"
apiVersion: v1
kind: ServiceAccount
metadata: {name: keeper}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: keeper}
rules:
- {apiGroups: [etcd.edge-operator.io], resources: [etcdclusters], verbs: [get, list]}
- {apiGroups: [""], resources: [pods], verbs: [get]}
- {apiGroups: [""], resources: [pods/exec], verbs: [create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: keeper}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: keeper}
subjects: [{kind: ServiceAccount, name: keeper, namespace: default}]
"#;

/// A desk: kubectl, this program, and its plugin.
struct Desk<'a> {
    it: &'a Operated,
    access: Access,
}

/// The path of a desk, by which a shell finds kubectl, this program and its plugin.
pub fn path(it: &Operated) -> String {
    let dir = it.dir.join("desk");
    std::fs::create_dir_all(&dir).unwrap();
    for name in ["etcd-operator", "kubectl-etcd"] {
        let _ = symlink(env!("CARGO_BIN_EXE_etcd-operator"), dir.join(name));
    }
    let kubernetes = tools().join("kubernetes");
    format!("{}:{}:/usr/bin:/bin", dir.display(), kubernetes.display())
}

impl Desk<'_> {
    fn run(&self, line: &str) -> Output {
        let mut shell = Command::new("bash");
        shell
            .args(["-c", line])
            .env_clear()
            .env("PATH", path(self.it))
            .env("HOME", &self.access.home)
            .env("KUBECONFIG", &self.access.kubeconfig);
        output(&mut shell)
    }

    #[track_caller]
    fn prints(&self, line: &str) -> String {
        let done = self.run(line);
        assert!(done.ok, "{line}: {} {}", done.stdout, done.stderr);
        done.stdout
    }

    #[track_caller]
    fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.prints(line)).unwrap()
    }

    /// Its exit code, and what it says.
    #[track_caller]
    fn fails(&self, line: &str) -> (String, String) {
        let done = self.run(&format!("{line}; echo \"exit $?\""));
        let code = done.stdout.lines().last().unwrap().to_owned();
        (code, done.stderr)
    }
}

#[test]
fn a_desk_sees_a_cluster_and_its_snapshots_as_a_host_does() {
    let Some((it, _server, _)) = with_a_bucket() else {
        return;
    };
    it.apply(RIGHTS);
    let access = it.service_account("default/keeper");
    let desk = Desk { it: &it, access };
    looks(&desk);
    edits(&desk);
    snapshots(&desk);
    // Which one is meant.
    it.apply(&document("EtcdCluster", "other", "{size: 0}"));
    let (code, said) = desk.fails("etcd-operator status -n default");
    assert_eq!(code, "exit 2", "{said}");
    assert!(said.contains("2 clusters in this namespace, other, till: name one with --cluster"));
    let (code, said) = desk.fails("kubectl etcd backup list --cluster nobody");
    assert_eq!(code, "exit 1");
    assert!(said.contains("nobody-backup"), "{said}");
    for (line, words) in [
        ("kubectl etcd agent", "agent is no command of kubectl etcd"),
        (
            "kubectl etcd --config a.yaml status",
            "--config name files of this host",
        ),
        (
            "etcd-operator --root /a plan -n default",
            "--config name files of this host",
        ),
    ] {
        let (code, said) = desk.fails(line);
        assert_eq!(code, "exit 2", "{line}");
        assert!(said.contains(words), "{line}: {said}");
    }
}

fn looks(desk: &Desk<'_>) {
    let page = desk.prints("etcd-operator status -n default");
    assert!(page.starts_with("OK: etcd 3.6."), "{page}");
    for words in ["cluster", "1/1 members ready", "NODE", "data-till-0"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    let again = desk.prints("kubectl etcd status --cluster till");
    assert_eq!(again.lines().nth(2), page.lines().nth(2));
    let status = desk.json("kubectl etcd status --cluster till -o json");
    let object = desk.it.json(&["get", "etcdcluster", "till"]);
    assert_eq!(status["clusterID"], object["status"]["clusterID"]);
    assert!(status.get("host").is_none());
    // With kubectl's own flags, which may stand before the command.
    let file = desk.access.kubeconfig.display();
    let context = desk.prints("kubectl config current-context");
    let context = context.trim();
    for line in [
        "kubectl etcd -n default status".to_owned(),
        format!("kubectl etcd --context {context} status -n default"),
        format!("KUBECONFIG= kubectl etcd --kubeconfig={file} status"),
        format!("KUBECONFIG= etcd-operator status --kubeconfig {file} --context {context}"),
    ] {
        assert_eq!(
            desk.prints(&line).lines().nth(2),
            page.lines().nth(2),
            "{line}"
        );
    }
    let (code, said) = desk.fails("kubectl etcd --context nobody status");
    assert_eq!(code, "exit 1");
    assert!(said.contains("nobody"), "{said}");
    let plan = desk.prints("etcd-operator plan --cluster till");
    assert_eq!(plan, "there is nothing to do\n");
    // On a node of k3s there is its kubectl; the lab has no k3s.
    let node = desk.it.dir.join("node");
    std::fs::create_dir_all(&node).unwrap();
    let k3s =
        "printf '#!/bin/sh\nshift; exec %s \"$@\"' \"$(command -v kubectl)\" > k3s; chmod 755 k3s";
    let asked = "PATH=$PWD:$(dirname \"$(command -v kubectl-etcd)\"):/usr/bin:/bin etcd-operator plan -n default";
    let line = format!("cd {}; {k3s}; {asked}", node.display());
    assert_eq!(desk.prints(&line), plan);
    let (code, said) =
        desk.fails("PATH=$(dirname \"$(command -v kubectl-etcd)\") kubectl-etcd plan");
    assert_eq!(code, "exit 1");
    assert!(said.contains("kubectl, which is not in PATH"), "{said}");
}

fn edits(desk: &Desk<'_>) {
    let mut object = desk.it.json(&["get", "etcdcluster", "till"]);
    let file = desk.it.dir.join("till.json");
    let name = file.display();
    let metadata = json!({"name": "till"});
    let mut write = |edit: Value| {
        object["metadata"] = metadata.clone();
        object.as_object_mut().unwrap().remove("status");
        for (key, value) in edit.as_object().unwrap() {
            object["spec"][key] = value.clone();
        }
        std::fs::write(&file, object.to_string()).unwrap();
    };
    write(json!({}));
    let said = desk.prints(&format!("kubectl etcd diff {name}"));
    assert!(said.contains("nothing differs"), "{said}");
    write(json!({"size": 3, "pod": {"labels": {"a": "b"}}, "deletionPolicy": "Delete"}));
    let said = desk.prints(&format!("etcd-operator diff -n default {name}"));
    for words in [
        "adds 2 members to 1; etcd runs on",
        "restarts etcd once: up to 3 s to stop, about a second to start",
        "takes effect at once; etcd runs on",
        "nothing was changed: to apply the document, kubectl apply -f",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    write(json!({"size": 1, "version": "3.4.1"}));
    let (code, said) = desk.fails(&format!("kubectl etcd diff {name} -o json"));
    assert_eq!(code, "exit 3", "{said}");
    write(json!({"size": 2}));
    let (code, said) = desk.fails(&format!("kubectl etcd diff {name}"));
    assert_eq!(code, "exit 2", "{said}");
    assert!(said.contains("size"), "{said}");
}

fn snapshots(desk: &Desk<'_>) {
    let before = desk.json("kubectl etcd backup list -o json");
    let before = before.as_array().unwrap().len();
    assert_eq!(before, 2, "one on the claim and its copy");
    desk.it.put("till", "from the desk", "1");
    let taken = desk.prints("etcd-operator backup create --cluster till --ttl 7d");
    assert!(taken.contains("on demand, for 7 days"), "{taken}");
    // The worker sees it, and copies it.
    let all = desk.it.eventually("the copy", SOON, || {
        let now = desk.json("kubectl etcd backup list -o json");
        (now.as_array().unwrap().len() == 4).then_some(now)
    });
    let context = desk.prints("kubectl config current-context");
    let way = format!("--context={} -n default --cluster till", context.trim());
    let same = desk.json(&format!("kubectl etcd {way} backup list -o json"));
    assert_eq!(same.as_array().unwrap().len(), 4);
    assert!(all[0]["ageSeconds"].as_u64().is_some(), "{all:#}");
    let name = all[0]["name"].as_str().unwrap();
    let shown = desk.json("kubectl etcd backup show latest -o json");
    assert_eq!(shown["name"].as_str(), Some(name));
    assert!(shown["signed"]["signature"].is_string(), "{shown:#}");
    let checked = desk.json(&format!("kubectl etcd backup verify {name} -o json"));
    assert_eq!(checked.as_array().unwrap().len(), 2, "{checked:#}");
    let keeps = desk.prints("kubectl etcd backup prune --dry-run");
    assert!(keeps.contains("stays"), "{keeps}");
    // Nobody answers the question.
    let (code, said) = desk.fails(&format!("kubectl etcd backup delete {name} --force"));
    assert_eq!(code, "exit 3", "{said}");
    desk.prints(&format!("kubectl etcd backup delete {name} --force --yes"));
    let after = desk.json("kubectl etcd backup list -o json");
    assert_eq!(after.as_array().unwrap().len(), before);
}
