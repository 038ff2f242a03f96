//! Documents of the first operator, `etcd.database.coreos.com/v1beta2`, as ours, with a row for each of their fields: what
//! became of it, and why. What a person has to decide is told as that, and an EtcdCluster that comes out is sound by
//! [`super::check_of_kubernetes`].
//!
//! Sources: coreos/etcd-operator 0.9.4, `pkg/apis/etcd/v1beta2` for the fields, `pkg/util/k8sutil` and `pkg/backup` for what
//! they did.

mod backup;
mod cluster;
mod environment;
mod sound;

use std::fmt;

use serde_json::{Value as Json, json};

use super::node::{self, Node, Value};
use super::{Problems, SIZE_MAX, too_large};
use crate::api::GROUP;
use crate::error::shown;
use sound::sound;

/// The first operator's group.
const OLD_GROUP: &str = "etcd.database.coreos.com";

/// Characters that a row has of its text: a command with several destinations is the longest.
const TEXT_MAX: usize = 4000;

/// What became of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The same under our name.
    Mapped,
    /// Something else, which does what it was for.
    Changed,
    /// Nothing: it has no use here.
    Dropped,
    /// A person has to decide.
    Decide,
}

/// One field of an old document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its line, from 1.
    pub line: u64,
    /// Kind and name of its document.
    pub object: String,
    /// Its path there.
    pub path: String,
    /// What became of it.
    pub fate: Fate,
    /// What it is now, or why it is no more.
    pub text: String,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fate = match self.fate {
            Fate::Mapped => "mapped to",
            Fate::Changed => "changed:",
            Fate::Dropped => "dropped:",
            Fate::Decide => "decide:",
        };
        let Row {
            line,
            object,
            path,
            text,
            ..
        } = self;
        write!(f, "line {line}: {object}: ")?;
        if !path.is_empty() {
            write!(f, "{}: ", shown(path, TEXT_MAX))?;
        }
        write!(f, "{fate} {}", shown(text, TEXT_MAX))
    }
}

/// What came out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Converted {
    /// Our documents. Each EtcdCluster is sound.
    pub documents: Vec<Json>,
    /// Of each old field one, in the order of their lines.
    pub report: Vec<Row>,
}

impl Converted {
    /// Whether something is left for a person.
    pub fn is_open(&self) -> bool {
        self.report.iter().any(|it| it.fate == Fate::Decide)
    }
}

/// An old document, while its fields are gone through.
struct Old<'a> {
    root: &'a Node,
    object: String,
    report: &'a mut Vec<Row>,
    /// Rows of the documents before it.
    before: usize,
}

impl<'a> Old<'a> {
    fn new(root: &'a Node, report: &'a mut Vec<Row>) -> Self {
        let field = |path: &str| {
            node::printable(
                root.at(path)
                    .and_then(Node::as_text)
                    .unwrap_or("without a name"),
            )
        };
        let object = format!("{} {}", field("kind"), field("metadata.name"));
        Old {
            root,
            object,
            before: report.len(),
            report,
        }
    }

    fn tell(&mut self, path: &str, fate: Fate, text: impl Into<String>) {
        self.report.push(Row {
            line: self.root.line_of(path),
            object: self.object.clone(),
            path: path.to_owned(),
            fate,
            text: text.into(),
        });
    }

    /// The fields of the map at a path; told of where it is none.
    fn fields(&mut self, path: &str) -> Vec<(String, Node)> {
        let Some(node) = self.root.at(path) else {
            return Vec::new();
        };
        match &node.value {
            Value::Map(fields) => {
                let given = fields.iter().filter(|(.., it)| !it.is_null());
                given
                    .map(|(key, _, it)| (key.clone(), it.clone()))
                    .collect()
            }
            Value::Null => Vec::new(),
            other => {
                let text = format!("found {}, expected a map", other.describe());
                self.tell(path, Fate::Decide, text);
                Vec::new()
            }
        }
    }

    fn text(&self, path: &str) -> Option<&str> {
        self.root.at(path).and_then(Node::as_text)
    }

    /// The text at a path, also of what only looks like a number; nothing of an empty one.
    fn plain(&self, path: &str) -> Option<String> {
        self.root.at(path).and_then(plain)
    }

    /// A row for each field that has none so far: nothing is left out in silence.
    fn tell_the_rest(&mut self) {
        let told: Vec<String> = { self.report[self.before..].iter() }
            .map(|it| it.path.clone())
            .collect();
        let mut rest = Vec::new();
        untold(self.root, "", &told, &mut rest);
        for (path, is_empty) in rest {
            if is_empty {
                self.tell(&path, Fate::Dropped, "it is empty");
            } else {
                let text = "this operator knows no such field of v1beta2; a fork's own, or mistyped: it is left out";
                self.tell(&path, Fate::Decide, text);
            }
        }
    }

    /// Name, namespace, labels and annotations.
    fn metadata(&mut self) -> Json {
        let mut kept = json!({});
        for (key, node) in self.fields("metadata") {
            let path = format!("metadata.{key}");
            match key.as_str() {
                "name" | "namespace" => {
                    kept[&key] = node.to_json();
                    self.tell(&path, Fate::Mapped, &path);
                }
                "labels" | "annotations" => {
                    for (entry, value) in self.fields(&path) {
                        self.entry(&mut kept[&key], &format!("{path}.{entry}"), &entry, &value);
                    }
                    if kept[&key].is_null() {
                        kept.as_object_mut().map(|it| it.remove(&key));
                    }
                }
                _ => self.tell(&path, Fate::Dropped, "it is of the old object"),
            }
        }
        kept
    }

    /// A label or an annotation.
    fn entry(&mut self, kept: &mut Json, path: &str, key: &str, value: &Node) {
        let theirs = ["kubectl.kubernetes.io/", OLD_GROUP];
        if theirs.iter().any(|of| key.starts_with(of)) {
            self.tell(
                path,
                Fate::Dropped,
                "kubectl's, or the first operator's own",
            );
        } else if let Some(text) = value.as_text() {
            kept[key] = text.into();
            self.tell(path, Fate::Mapped, path);
        } else {
            let text = format!(
                "found {}, expected text: it is left out",
                value.value.describe()
            );
            self.tell(path, Fate::Decide, text);
        }
    }

    /// Nothing came of the document: no row of it may say otherwise.
    fn nothing_came(&mut self, why: &str) {
        let told = |it: &&mut Row| matches!(it.fate, Fate::Mapped | Fate::Changed);
        for row in self.report[self.before..].iter_mut().filter(told) {
            row.fate = Fate::Dropped;
            why.clone_into(&mut row.text);
        }
    }

    /// Whether it can be made: an object has a name, and no other one here has it.
    fn is_nameable(&mut self, metadata: &Json, others: &[&Json]) -> bool {
        let text = if metadata["name"].as_str().is_none_or(str::is_empty) {
            "it has no name: no document of it"
        } else if others.iter().any(|it| is_same(&it["metadata"], metadata)) {
            "another document here is of this kind and name: no document of it"
        } else {
            return true;
        };
        self.tell("metadata", Fate::Decide, text);
        false
    }
}

/// Whether two objects have one name in one namespace.
fn is_same(one: &Json, other: &Json) -> bool {
    let namespace = |it: &Json| it["namespace"].as_str().unwrap_or("default").to_owned();
    one["name"] == other["name"] && namespace(one) == namespace(other)
}

/// Rows of these are of what is missing in them.
const SECTIONS: [&str; 3] = ["", "spec", "metadata"];

/// The other maps of v1beta2 whose fields are looked at one by one.
const MAPS: [&str; 16] = [
    "spec.TLS",
    "spec.TLS.static",
    "spec.TLS.static.member",
    "spec.pod",
    "spec.pod.resources",
    "spec.pod.resources.requests",
    "spec.pod.resources.limits",
    "spec.pod.persistentVolumeClaimSpec",
    "spec.pod.persistentVolumeClaimSpec.resources",
    "spec.pod.persistentVolumeClaimSpec.resources.requests",
    "spec.s3",
    "spec.gcs",
    "spec.abs",
    "spec.oss",
    "spec.backupPolicy",
    "spec.etcdCluster",
];

/// Paths of the fields that no row is of, and whether they are empty.
fn untold(node: &Node, path: &str, told: &[String], found: &mut Vec<(String, bool)>) {
    let is_section = SECTIONS.contains(&path);
    let is_map = is_section || MAPS.contains(&path) || path.starts_with("metadata.");
    let is_told = told.iter().any(|it| it == path);
    let is_told_in = |it: &String| {
        let rest = it.strip_prefix(path);
        rest.is_some_and(|it| it.is_empty() || it.starts_with(['.', '[']))
    };
    match &node.value {
        Value::Map(fields)
            if is_section && !fields.is_empty() || is_map && !is_nothing(node) && !is_told =>
        {
            for (key, _, node) in fields {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                if !["apiVersion", "kind"].contains(&path.as_str()) {
                    untold(node, &path, told, found);
                }
            }
        }
        _ if told.iter().any(is_told_in) => {}
        _ => found.push((path.to_owned(), is_nothing(node))),
    }
}

/// No value, and none in it.
fn is_nothing(node: &Node) -> bool {
    match &node.value {
        Value::Null => true,
        Value::Text(text) => text.is_empty(),
        Value::List(items) => items.iter().all(is_nothing),
        Value::Map(fields) => fields.iter().all(|(.., it)| is_nothing(it)),
        _ => false,
    }
}

/// A scalar as it was written.
fn plain(node: &Node) -> Option<String> {
    let text = match &node.value {
        Value::Text(text) => text.clone(),
        Value::Bool(_) | Value::Integer(_) | Value::Float(_) => node.to_json().to_string(),
        _ => return None,
    };
    Some(text).filter(|it| !it.is_empty())
}

/// Sets a field by its path, and the maps above it.
fn set(document: &mut Json, path: &str, value: impl Into<Json>) {
    let mut at = document;
    for part in path.split('.') {
        if !at.is_object() {
            *at = json!({});
        }
        at = &mut at[part];
    }
    *at = value.into();
}

fn ours(kind: &str, metadata: &Json, spec: &Json) -> Json {
    json!({"apiVersion": format!("{GROUP}/v1alpha1"), "kind": kind, "metadata": metadata, "spec": spec})
}

/// The documents of a text, those in lists among them.
fn documents(text: &str) -> Result<Vec<Node>, Problems> {
    let mut all = Vec::new();
    for root in node::parse_all(text).map_err(|(line, message)| Problems::one(line, message))? {
        let is_list = root
            .at("kind")
            .and_then(Node::as_text)
            .is_some_and(|it| it.ends_with("List"));
        match root.get("items").map(|it| &it.value) {
            Some(Value::List(items)) if is_list => all.extend(items.iter().cloned()),
            _ => all.push(root),
        }
    }
    Ok(all)
}

/// Converts the documents of a text.
///
/// # Errors
/// It is no YAML, too large, or none of its documents is of the first operator.
pub fn convert(text: &str) -> Result<Converted, Problems> {
    if text.len() as u64 > SIZE_MAX {
        return Err(too_large(text.len() as u64));
    }
    let mut it = Converted::default();
    let mut clusters: Vec<(Json, &Node)> = Vec::new();
    let (first, then): (Vec<Node>, Vec<Node>) = { documents(text)?.into_iter() }
        .partition(|it| it.at("kind").and_then(Node::as_text) == Some("EtcdCluster"));
    for root in first.iter().chain(&then) {
        let mut old = Old::new(root, &mut it.report);
        let version = old.text("apiVersion").unwrap_or_default().to_owned();
        let is_old = version == format!("{OLD_GROUP}/v1beta2");
        let version = node::printable(&version);
        if is_old && root.at("status").is_some() {
            old.tell("status", Fate::Dropped, "the operator tells its own");
        }
        match old.text("kind").unwrap_or_default() {
            "EtcdCluster" if is_old => {
                let others: Vec<&Json> = clusters.iter().map(|it| &it.0).collect();
                if let Some(document) = cluster::convert(&mut old, &others) {
                    old.tell_the_rest();
                    clusters.push((document, root));
                }
            }
            "EtcdBackup" if is_old => {
                let others: Vec<&Json> = it.documents.iter().collect();
                let request = backup::backup(&mut old, &mut clusters, &others);
                it.documents.extend(request);
                old.tell_the_rest();
            }
            "EtcdRestore" if is_old => {
                backup::restore(&mut old);
                old.tell_the_rest();
            }
            _ if version.starts_with(OLD_GROUP) || version.starts_with("etcd.coreos.com/") => {
                let text = format!(
                    "only EtcdCluster, EtcdBackup and EtcdRestore of {OLD_GROUP}/v1beta2 are read, not this of {version}"
                );
                old.tell("kind", Fate::Decide, text);
            }
            _ => {
                let text = format!("{version} is none of the first operator's documents");
                old.tell("", Fate::Dropped, text);
            }
        }
    }
    if !it.report.iter().any(|row| row.fate != Fate::Dropped) {
        let text = format!(
            "there is no EtcdCluster, EtcdBackup or EtcdRestore of {OLD_GROUP}/v1beta2 here"
        );
        return Err(Problems::one(0, text));
    }
    let mut all = Vec::new();
    for (document, root) in clusters {
        all.extend(sound(document, root, &mut it.report));
    }
    all.append(&mut it.documents);
    it.documents = all;
    it.report.sort_by_key(|row| row.line);
    Ok(it)
}
