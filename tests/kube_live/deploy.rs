//! `deploy/` as a person applies it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use etcd_operator::document;
use serde_json::Value;

use crate::cluster::{Output, output};
use crate::lab::{Api, ApiOptions, SOON, root, skip, tools};
use crate::operator::{self, Operator, deployed};

/// The minors that k3s ships.
const MINORS: [&str; 4] = ["1.33", "1.34", "1.35", "1.36"];

fn validated(minor: &str, file: &str) -> Output {
    let program = tools().join("validate/bin/kubernetes-validate");
    output(Command::new(program).args(["--strict", "-k", minor, file]))
}

fn can_validate() -> bool {
    let there = tools().join("validate/bin/kubernetes-validate").exists();
    if !there {
        skip("tests/tools/kubernetes-validate.sh brings kubernetes-validate");
    }
    there
}

/// A file that ends with its value.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, text: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("{}-{name}", std::process::id()));
        fs::write(&path, text).unwrap();
        Scratch(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn the_manifests_fit_every_minor_that_k3s_ships() {
    if !can_validate() {
        return;
    }
    for minor in MINORS {
        for file in ["crds.yaml", "etcd-operator.yaml"] {
            let path = root().join("deploy").join(file);
            let said = validated(minor, path.to_str().unwrap());
            assert!(said.ok, "{minor}: {}{}", said.stdout, said.stderr);
        }
    }
    let wrong = deployed("etcd-operator.yaml").replace("emptyDir:", "emptyDirs:");
    let wrong = Scratch::new("wrong.yaml", &wrong);
    assert!(
        !validated("1.36", wrong.path()).ok,
        "a wrong field is found"
    );
}

fn minor_of(api: &Api) -> String {
    let version = api.json(&["version"])["serverVersion"].clone();
    format!(
        "{}.{}",
        version["major"].as_str().unwrap(),
        version["minor"].as_str().unwrap()
    )
}

#[test]
fn one_command_applies_it_and_the_example_becomes_objects_that_fit_every_minor() {
    if !operator::can() {
        return;
    }
    let Some(api) = Api::up(&ApiOptions::default()) else {
        return;
    };
    let deploy = root().join("deploy");
    let applied = api.eventually("kubectl apply -k", SOON, || {
        let applied = api.kubectl(&["apply", "-k", deploy.to_str().unwrap()]);
        applied.ok.then_some(applied.stdout)
    });
    for file in ["crds.yaml", "etcd-operator.yaml"] {
        for document in deployed(file).split("\n---\n") {
            let it: Value = serde_saphyr::from_str(document).unwrap();
            let (kind, name) = (
                it["kind"].as_str().unwrap(),
                it["metadata"]["name"].as_str().unwrap(),
            );
            let line = format!("/{name} ");
            let found = applied.lines().any(|said| {
                said.to_lowercase().starts_with(&kind.to_lowercase()) && said.contains(&line)
            });
            assert!(found, "{kind} {name}: {applied}");
        }
    }
    let again = api
        .kubectl(&["apply", "-k", deploy.to_str().unwrap()])
        .good();
    assert!(again.lines().all(|it| it.ends_with("unchanged")), "{again}");

    let example = deployed("examples/single-node.yaml");
    document::parse(example.as_bytes()).unwrap_or_else(|it| panic!("{it}"));
    // What is commented out is right, too.
    let whole = uncommented(&example);
    assert!(whole.contains("\n    - s3:\n"), "{whole}");
    document::parse(whole.as_bytes()).unwrap_or_else(|it| panic!("{it}:\n{whole}"));
    api.eventually("the example to be taken", SOON, || {
        api.admin()
            .with_input(&["create", "--dry-run=server"], &whole)
            .ok
            .then_some(())
    });
    let access = api.service_account("etcd-operator/etcd-operator");
    let operator = Operator::start(&access);
    api.apply(&example);
    api.eventually("the Pod", SOON, || api.try_json(&["get", "pod", "shop-0"]));
    api.eventually("the client's Secret", SOON, || {
        api.try_json(&["get", "secret", "shop-client-till"])
    });
    let status = api.eventually("a status", SOON, || {
        let it = api.json(&["get", "etcd", "shop"])["status"].clone();
        it["conditions"].is_array().then_some(it)
    });
    let said = status.to_string();
    assert!(!said.contains("SpecInvalid"), "{said}");
    if can_validate() {
        let kinds = "pods,services,secrets,persistentvolumeclaims,networkpolicies";
        let label = "app.kubernetes.io/managed-by=etcd-operator";
        let made = api.json(&["get", kinds, "-l", label]);
        let made: Vec<String> = made["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(made.len(), 10, "{made:#?}");
        let file = Scratch::new("made.yaml", &made.join("\n---\n"));
        let minor = minor_of(&api);
        assert!(MINORS.contains(&minor.as_str()), "the lab's own is {minor}");
        for minor in MINORS {
            let said = validated(minor, file.path());
            assert!(said.ok, "{minor}: {}{}", said.stdout, said.stderr);
        }
    }
    drop(operator);
    // For the Prometheus operator, whose types are not there.
    let monitoring = deploy.join("monitoring");
    let made = api
        .kubectl(&["kustomize", monitoring.to_str().unwrap()])
        .good();
    let kinds = ["ConfigMap", "PodMonitor", "PodMonitor", "PrometheusRule"];
    let mut found: Vec<&str> = made
        .lines()
        .filter_map(|it| it.strip_prefix("kind: "))
        .collect();
    found.sort_unstable();
    assert_eq!(found, kinds);
    assert!(made.contains("grafana_dashboard: \"1\""), "{made}");
}

/// k3s keeps an object of each file's name, takes files in the order of names, and applies all of them
/// again when it starts. A server-side apply stands in for its own.
#[test]
fn the_files_fit_k3s_directory_and_applying_them_again_changes_nothing() {
    if !operator::can() {
        return;
    }
    let Some(api) = Api::up(&ApiOptions::default()) else {
        return;
    };
    let files = ["crds.yaml", "etcd-operator.yaml"];
    assert!(files.is_sorted(), "the CRDs come first");
    for file in files {
        let name = file.strip_suffix(".yaml").unwrap();
        let is_label = |it: char| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '-';
        assert!(name.chars().all(is_label) && !name.ends_with('-'), "{name}");
    }
    let apply = || {
        for file in files {
            let path = root().join("deploy").join(file);
            let arguments = ["apply", "--server-side", "-f", path.to_str().unwrap()];
            api.kubectl(&arguments).good();
        }
    };
    let versions = || -> Vec<(String, String)> {
        let kinds = "crds,namespaces,serviceaccounts,clusterroles,clusterrolebindings,roles,rolebindings,daemonsets";
        let label = "app.kubernetes.io/name=etcd-operator";
        let ours = api.json(&["get", kinds, "-A", "-l", label]);
        let crds = api.json(&["get", "crds"]);
        let all = [&ours, &crds].map(|it| it["items"].as_array().unwrap().clone());
        let all = all.concat().into_iter().map(|it| {
            let metadata = &it["metadata"];
            let name = format!("{} {}", it["kind"], metadata["name"]);
            let generation = &metadata["generation"];
            (
                name,
                format!("{generation} {}", metadata["resourceVersion"]),
            )
        });
        all.collect()
    };
    apply();
    for kind in ["etcdclusters", "etcdbackups", "etcdrestores"] {
        let name = format!("crd/{kind}.etcd.edge-operator.io");
        let words = [
            "wait",
            "--for=condition=Established",
            "--timeout=60s",
            &name,
        ];
        api.kubectl(&words).good();
    }
    let first = versions();
    assert!(first.len() >= 12, "{first:?}");
    apply();
    assert_eq!(versions(), first);
}

/// The example with everything that it leaves out as a comment.
fn uncommented(text: &str) -> String {
    let line = |line: &str| {
        let indent = line.len() - line.trim_start().len();
        match line.trim_start().strip_prefix("# ") {
            Some(rest) if indent > 0 && (rest.starts_with("- ") || rest.starts_with(' ')) => {
                format!("{}{rest}\n", &line[..indent])
            }
            _ => format!("{line}\n"),
        }
    };
    text.lines().map(line).collect()
}
