//! `deploy/helm` by the real helm: the objects are those of the manifests, values that are wrong are refused, and no data goes
//! with a release.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::cluster::{Access, Output, output};
use crate::lab::{Api, Options, SOON, is_true, root, skip, tools};
use crate::nodes::holder;
use crate::operated::{Operated, document};
use crate::operator::{self, Operator, deployed, namespace};
use crate::writer::restarts;

/// As in the chart's own words for a person.
const RELEASE: [&str; 4] = ["etcd-operator", "deploy/helm", "-n", "etcd-operator"];

/// What helm keeps goes here.
fn scratch() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

fn can() -> bool {
    let of_go = ["helm", "monitoring-crds"].map(|it| tools().join("kubernetes").join(it));
    let there = of_go.iter().all(|it| it.exists());
    if !there {
        skip(
            "tests/tools/kubernetes.sh builds helm with Go, and fetches the types of the Prometheus operator",
        );
    }
    there
}

fn helm(access: Option<&Access>, arguments: &[&str], values: &[&str]) -> Output {
    let mut command = Command::new(tools().join("kubernetes/helm"));
    command
        .env_clear()
        .env("HOME", scratch())
        .current_dir(root())
        .args(arguments);
    for value in values {
        command.args(["--set", value]);
    }
    if let Some(access) = access {
        command.env("KUBECONFIG", &access.kubeconfig);
    }
    output(&mut command)
}

fn rendered(values: &[&str]) -> String {
    let arguments = [&["template"], &RELEASE[..]].concat();
    helm(None, &arguments, values).good()
}

/// The objects of a text by kind, namespace and name, without what says who brought them.
fn objects(text: &str) -> BTreeMap<String, Value> {
    let parts = text.split("\n---\n").filter(|it| it.contains("kind:"));
    let mut all = BTreeMap::new();
    for part in parts {
        let mut it: Value = serde_saphyr::from_str(part).unwrap();
        let metadata = it["metadata"].as_object_mut().unwrap();
        let mut labels = metadata.remove("labels").unwrap_or_else(|| json!({}));
        let of_whom = [
            "app.kubernetes.io/managed-by",
            "app.kubernetes.io/instance",
            "helm.sh/chart",
        ];
        labels
            .as_object_mut()
            .unwrap()
            .retain(|it, _| !of_whom.contains(&it.as_str()));
        metadata.insert("labels".to_owned(), labels);
        let annotations = metadata
            .get_mut("annotations")
            .and_then(Value::as_object_mut);
        annotations.map(|it| it.remove("helm.sh/resource-policy"));
        if metadata.get("annotations") == Some(&json!({})) {
            metadata.remove("annotations");
        }
        let key = format!(
            "{} {} {}",
            it["kind"], it["metadata"]["namespace"], it["metadata"]["name"]
        );
        if it["kind"] != "Namespace" {
            assert!(all.insert(key.clone(), it).is_none(), "{key} twice");
        }
    }
    all
}

#[track_caller]
fn assert_same(ours: &BTreeMap<String, Value>, theirs: &BTreeMap<String, Value>) {
    let keys = |it: &BTreeMap<String, Value>| it.keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(ours), keys(theirs));
    for (key, it) in ours {
        assert_eq!(it, &theirs[key], "{key}");
    }
}

fn kustomized(directory: &str) -> BTreeMap<String, Value> {
    let mut kubectl = Command::new(tools().join("kubernetes/kubectl"));
    objects(&output(kubectl.args(["kustomize", directory]).current_dir(root())).good())
}

#[test]
fn the_chart_renders_what_kustomize_and_manifests_do() {
    if !can() {
        return;
    }
    let linted = helm(None, &["lint", "--strict", "deploy/helm"], &[]);
    assert!(linted.ok, "{}{}", linted.stdout, linted.stderr);
    assert_same(&objects(&rendered(&[])), &kustomized("deploy"));

    let manifests = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_etcd-operator"));
        output(command.arg("manifests").args(arguments)).good()
    };
    let without_types = "crds.enabled=false";
    assert_same(
        &objects(&rendered(&[without_types])),
        &objects(&manifests(&[])),
    );
    assert_same(
        &objects(&rendered(&[
            without_types,
            "namespaces={shop,till}",
            "image.registry=mirror:5000/edge",
            "image.tag=v1",
        ])),
        &objects(&manifests(&[
            "--namespaces",
            "shop,till",
            "--image",
            "mirror:5000/edge/etcd-operator:v1",
        ])),
    );
    let monitored = objects(&rendered(&[
        "monitoring.podMonitors=true",
        "monitoring.rules=true",
        "monitoring.dashboard=true",
    ]));
    for (key, it) in kustomized("deploy/monitoring") {
        assert_eq!(monitored[&key], it, "{key}");
    }
    let packed = format!(
        "target/dist/etcd-operator-{}-chart.tgz",
        env!("CARGO_PKG_VERSION")
    );
    if root().join(&packed).exists() {
        let arguments = ["template", "etcd-operator", &packed, "-n", "etcd-operator"];
        let theirs = helm(None, &arguments, &[]).good();
        assert_same(&objects(&rendered(&[])), &objects(&theirs));
    } else {
        skip("make dist packs the chart");
    }
    let version = format!("version: {}\n", env!("CARGO_PKG_VERSION"));
    let chart = deployed("helm/Chart.yaml");
    assert_eq!(chart.matches(&version).count(), 1, "{chart}");
    assert_eq!(chart.matches(&format!("appV{}", &version[1..])).count(), 1);
}

/// A value that is wrong, and what the refusal names.
const REFUSED: [(&str, &str); 21] = [
    ("image.tagg=1", "tagg"),
    ("imagee.tag=1", "imagee"),
    ("image.digest=sha256:1", "/image/digest"),
    ("image.pullPolicy=Sometimes", "/image/pullPolicy"),
    ("image.registry=https://mirror", "/image/registry"),
    ("kind=StatefulSet", "/kind"),
    ("replicas=two", "/replicas"),
    ("namespaces=shop", "/namespaces"),
    ("namespaces={Shop}", "/namespaces/0"),
    ("crds.keep=maybe", "/crds/keep"),
    ("monitoring.podMonitor=true", "podMonitor"),
    ("log.level=loud", "/log/level"),
    (
        "global.imageRegistry=https://mirror",
        "/global/imageRegistry",
    ),
    ("image.etcdPrefixes={a b}", "/image/etcdPrefixes/0"),
    ("namespaces={a.b}", "/namespaces/0"),
    ("priorityClassName=X_y", "/priorityClassName"),
    ("resources.limits.cpus=1", "cpus"),
    ("resources.limits.memory=64MB", "/resources/limits/memory"),
    ("resources.limit.memory=64Mi", "limit"),
    ("tolerations[0].operatr=Exists", "operatr"),
    ("tolerations[0].effect=NoExec", "/tolerations/0/effect"),
];

#[test]
fn a_value_that_is_wrong_is_refused_by_its_name() {
    if !can() {
        return;
    }
    let arguments = [&["template"], &RELEASE[..]].concat();
    for (value, named) in REFUSED {
        let said = helm(None, &arguments, &[value]);
        assert!(!said.ok, "{value} was taken");
        assert!(said.stderr.contains(named), "{value}: {}", said.stderr);
    }
}

/// Ways to install it, each whole.
const MATRIX: [&[&str]; 7] = [
    &[],
    &[
        "kind=Deployment",
        "replicas=2",
        "priorityClassName=system-cluster-critical",
    ],
    &[
        "namespaces={shop,till}",
        "policies.enabled=false",
        "monitoring.dashboard=true",
    ],
    &[
        "image.registry=mirror:5000",
        "image.pullSecrets={pull}",
        "image.etcdPrefixes={mirror:5000/etcd}",
        "log.format=json",
    ],
    &[
        "image.digest=sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        "crds.keep=false",
    ],
    &[
        "resources.limits.memory=64Mi",
        "nodeSelector.disk=flash",
        "podAnnotations.a=b",
        "podLabels.c=d",
        "tolerations[0].operator=Exists",
    ],
    // The Prometheus operator's own types know each of their fields.
    &[
        "monitoring.podMonitors=true",
        "monitoring.rules=true",
        "monitoring.labels.release=prometheus",
    ],
];

#[test]
fn a_real_server_takes_the_chart_with_every_kind_of_value() {
    if !can() {
        return;
    }
    let Some(api) = Api::up(&crate::lab::ApiOptions::default()) else {
        return;
    };
    for name in ["etcd-operator", "shop", "till"] {
        api.apply(&namespace(name, &json!({})));
    }
    let crds = std::fs::read_to_string(tools().join("kubernetes/monitoring-crds")).unwrap();
    // Too long for the annotation of an apply.
    api.admin().with_input(&["create"], &crds).good();
    for name in ["podmonitors", "prometheusrules"] {
        let crd = format!("crd/{name}.monitoring.coreos.com");
        let asked = ["wait", "--for=condition=Established", &crd];
        api.kubectl(&asked).good();
    }
    for values in MATRIX {
        let asked = ["apply", "--dry-run=server", "--validate=strict"];
        let said = api.admin().with_input(&asked, &rendered(values));
        assert!(said.ok, "{values:?}: {}", said.stderr);
        assert!(
            !said.stderr.contains("Warning"),
            "{values:?}: {}",
            said.stderr
        );
    }
    api.apply(&deployed("crds.yaml"));
    let chart: Value = serde_saphyr::from_str(&deployed("helm/Chart.yaml")).unwrap();
    let examples = &chart["annotations"]["artifacthub.io/crdsExamples"];
    let examples: Vec<Value> = serde_saphyr::from_str(examples.as_str().unwrap()).unwrap();
    for it in examples {
        let asked = ["create", "--dry-run=server"];
        api.eventually("the example of Artifact Hub", SOON, || {
            let said = api.admin().with_input(&asked, &it.to_string());
            println!("{}", said.stderr);
            said.ok.then_some(())
        });
    }
    let deployment = objects(&rendered(MATRIX[1]));
    let deployment = &deployment[r#""Deployment" "etcd-operator" "etcd-operator""#]["spec"];
    assert_eq!(deployment["replicas"], 2);
    let environment = deployment["template"]["spec"]["containers"][0]["env"]
        .as_array()
        .unwrap();
    let holder = environment
        .iter()
        .find(|it| it["name"] == "NODE_NAME")
        .unwrap();
    assert_eq!(
        holder["valueFrom"]["fieldRef"]["fieldPath"], "metadata.name",
        "two on a node would act as one"
    );
}

/// What the dry runs do not show: what values become.
#[test]
fn images_and_secrets_are_those_of_the_values() {
    if !can() {
        return;
    }
    let pod = |values: &[&str]| {
        let all = objects(&rendered(values));
        let daemons = &all[r#""DaemonSet" "etcd-operator" "etcd-operator""#];
        daemons["spec"]["template"]["spec"].clone()
    };
    let image = |values: &[&str]| pod(values)["containers"][0]["image"].clone();
    let digest = MATRIX[4][0];
    let named = digest.strip_prefix("image.digest=").unwrap();
    assert_eq!(
        image(&[digest, "image.tag=v1"]),
        format!("localhost/etcd-operator@{named}")
    );
    let mirror = "global.imageRegistry=mirror:5000";
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        image(&[mirror]),
        format!("mirror:5000/etcd-operator:{version}")
    );
    // As charts above this one hand it down where nobody named one.
    assert_eq!(
        image(&["global.imageRegistry="]),
        format!("localhost/etcd-operator:{version}")
    );
    let secrets = |values: &[&str]| pod(values)["imagePullSecrets"].clone();
    assert_eq!(secrets(&[]), json!(null));
    let global = "global.imagePullSecrets={all}";
    assert_eq!(secrets(&[global]), json!([{"name": "all"}]));
    assert_eq!(
        secrets(&["global.imagePullSecrets[0].name=all"]),
        json!([{"name": "all"}])
    );
    assert_eq!(
        secrets(&[global, "image.pullSecrets={pull}"]),
        json!([{"name": "pull"}])
    );
    let kept = |values: &[&str]| {
        rendered(values)
            .matches("helm.sh/resource-policy: keep")
            .count()
    };
    assert_eq!((kept(&[]), kept(&["crds.keep=false"])), (3, 0));
}

/// The CRDs of a version that this operator does not know, as somebody else brought them.
fn crds_of_another_version() -> String {
    let ours = deployed("crds.yaml");
    let others = ours.replace("name: v1alpha1", "name: v9");
    assert!(others != ours);
    others
}

/// Neither the chart nor the operator touches them, and both say so.
#[test]
fn crds_of_another_version_are_told() {
    if !can() || !operator::can() {
        return;
    }
    let Some(api) = Api::up(&crate::lab::ApiOptions::default()) else {
        return;
    };
    api.apply(&crds_of_another_version());
    let arguments = [&["install", "--create-namespace"], &RELEASE[..]].concat();
    let refused = helm(Some(api.admin()), &arguments, &[]);
    assert!(!refused.ok);
    for words in ["etcdclusters.etcd.edge-operator.io", "cannot be imported"] {
        assert!(refused.stderr.contains(words), "{}", refused.stderr);
    }
    let operator = Operator::start(&operator::install_without_crds(&api));
    api.eventually("the operator to tell of it", SOON, || {
        let told = "apply deploy/crds.yaml of this version";
        operator.said().contains(told).then_some(())
    });
    let crd = api.json(&["get", "crd", "etcdclusters.etcd.edge-operator.io"]);
    let versions = crd["spec"]["versions"].as_array().unwrap();
    assert!(versions.len() == 1 && versions[0]["name"] == "v9", "{crd}");
    // Told what to do, a person does it.
    for name in ["etcdclusters", "etcdbackups", "etcdrestores"] {
        let crd = format!("{name}.etcd.edge-operator.io");
        api.kubectl(&["delete", "crd", &crd, "--ignore-not-found"])
            .good();
    }
    api.apply(&deployed("crds.yaml"));
    api.apply(&operator::cluster("default", "shop", &json!({})));
    api.eventually("its Pod", 3 * SOON, || {
        api.try_json(&["get", "pod", "shop-0"])
    });
}

fn installed(it: &Operated, verb: &str, more: &[&str], values: &[&str]) -> Output {
    let arguments = [&[verb], &RELEASE[..], more].concat();
    helm(Some(it.admin()), &arguments, values)
}

/// What a release must not touch.
fn kept(it: &Operated) -> (Option<String>, Value) {
    it.available("one");
    assert_eq!(it.get("one", "kept"), "1");
    (it.pod_uid("one"), restarts(it, "one"))
}

/// An operator does what a document asks for: one more client, which stays.
#[track_caller]
fn acts(it: &Operated, client: &str) {
    let add =
        format!(r#"[{{"op": "add", "path": "/spec/clients/-", "value": {{"name": "{client}"}}}}]"#);
    it.kubectl(&["patch", "etcd", "one", "--type=json", "-p", &add])
        .good();
    it.eventually("what was asked of an operator", SOON, || {
        it.uid("secret", &format!("one-client-{client}"))
    });
}

#[test]
fn a_release_is_installed_upgraded_and_uninstalled_and_data_stays() {
    if !can() {
        return;
    }
    let Some(it) = Operated::not_installed(&Options::default()) else {
        return;
    };
    let said = installed(&it, "install", &["--create-namespace", "--wait"], &[]).good();
    assert!(
        said.contains("kubectl wait --for=condition=Available etcd/shop"),
        "{said}"
    );
    assert!(
        said.contains("pod-security.kubernetes.io/enforce=restricted"),
        "{said}"
    );
    it.acting();
    it.apply(&document("EtcdCluster", "one", "{clients: []}"));
    it.available("one");
    it.put("one", "kept", "1");
    let before = kept(&it);

    installed(
        &it,
        "upgrade",
        &["--wait"],
        &["kind=Deployment", "replicas=2", "log.level=debug"],
    )
    .good();
    it.eventually("a Deployment's Pods", SOON, || {
        let all = it.try_json(&["get", "deployments", "-n", "etcd-operator"])?;
        (all["items"][0]["status"]["readyReplicas"] == 2).then_some(())
    });
    acts(&it, "late");
    assert_eq!(kept(&it), before);
    // One of two on a node acts, and the other one takes over.
    let first = holder(&it);
    it.kubectl(&["delete", "pod", &first, "-n", "etcd-operator"])
        .good();
    acts(&it, "after");
    assert_ne!(holder(&it), first);
    assert_eq!(kept(&it), before);

    helm(
        Some(it.admin()),
        &[
            "uninstall",
            "etcd-operator",
            "-n",
            "etcd-operator",
            "--wait",
        ],
        &[],
    )
    .good();
    it.gone(&["clusterrole", "etcd-operator"]);
    it.eventually("no operator", SOON, || {
        let left = it.processes("etcd-operator controller");
        left.is_empty().then_some(())
    });
    assert_eq!(kept(&it), before);

    installed(&it, "install", &["--wait"], &[]).good();
    it.acting();
    acts(&it, "later");
    assert_eq!(kept(&it), before);
}

/// Neither takes over what the other brought unless it is told to.
#[test]
fn a_chart_over_manifests_and_manifests_over_a_chart_are_told_and_lose_nothing() {
    if !can() {
        return;
    }
    let Some(it) = Operated::with_one() else {
        return;
    };
    let before = kept(&it);
    let refused = installed(&it, "install", &[], &[]);
    assert!(!refused.ok);
    assert!(
        refused
            .stderr
            .contains("exists and cannot be imported into the current release"),
        "{}",
        refused.stderr
    );
    assert_eq!(kept(&it), before);
    installed(
        &it,
        "install",
        &["--take-ownership", "--force-conflicts", "--wait"],
        &["log.level=debug"],
    )
    .good();
    it.acting();
    assert_eq!(kept(&it), before);

    let file = |name: &str| root().join("deploy").join(name).display().to_string();
    let (crds, operator) = (file("crds.yaml"), file("etcd-operator.yaml"));
    it.kubectl(&["apply", "-f", &crds, "-f", &operator]).good();
    it.eventually("one operator without the chart's values", SOON, || {
        let pods = it.try_json(&["get", "pods", "-n", "etcd-operator"])?;
        let pods = pods["items"].as_array()?;
        let arguments = &pods[0]["spec"]["containers"][0]["args"];
        (pods.len() == 1 && *arguments == json!(["controller"]) && is_true(&pods[0], "Ready"))
            .then_some(())
    });
    assert_eq!(kept(&it), before);
}
