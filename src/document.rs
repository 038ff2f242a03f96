//! The document as a file: text in, [`ClusterSpec`] out, or every problem at once.
//!
//! Each problem names its path in the document, its line, what was found and what is allowed. The
//! structure is checked against the schema of `deploy/crds.yaml` itself, the rules against
//! [`crate::api::rules`]: the verdict is the API server's. It touches no file but through
//! [`read`].

pub mod compare;
mod emit;
mod node;
mod schema;
pub mod v1beta2;

use std::fmt;
use std::io::Read as _;
use std::path::Path;

use crate::api::rules::{self, Rule};
use crate::api::{self, EtcdClusterSpec, convert};
use crate::spec::ClusterSpec;
use crate::spec::backup::Place;
pub use emit::to_yaml;
use node::{Node, Value};
pub use schema::Schema;
use serde_json::json;

/// A document larger than this is none of ours: the example has 2 KiB.
pub const SIZE_MAX: u64 = 256 * 1024;

/// Problems that are listed; whoever has more of them mends these first.
pub const PROBLEMS_MAX: usize = 50;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where in the document, such as `spec.network.clientPort`; empty for the whole.
    pub path: String,
    /// The line, from 1; 0 where there is none.
    pub line: u64,
    /// What was found and what is allowed.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "line {}: ", self.line)?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        write!(f, "{}", self.message)
    }
}

/// All that is wrong with a document, in the order of its lines.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    fn one(line: u64, message: impl Into<String>) -> Self {
        Problems(vec![Problem {
            path: String::new(),
            line,
            message: message.into(),
        }])
    }
}

/// A document that is sound.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// What it asks for.
    pub spec: Box<ClusterSpec>,
    /// Its `spec`, with every default.
    pub wire: Box<EtcdClusterSpec>,
    /// As it was written.
    pub text: String,
}

impl Document {
    /// With the operator's own directory, and what a path names below it, at `home`; other paths are as they were written.
    #[must_use]
    pub fn at(mut self, home: &Path) -> Self {
        let backup = self.spec.backup.iter_mut();
        for it in backup.flat_map(|it| &mut it.destinations) {
            if let Place::Local(path) = &mut it.place
                && let Ok(rest) = Path::new(path.as_str()).strip_prefix(api::HOME)
                && let Some(there) = home.join(rest).to_str()
            {
                *path = there.try_into().unwrap_or_else(|_| path.clone());
            }
        }
        self
    }

    /// The line of a path, or of the nearest part of it that is there.
    pub fn line_of(&self, path: &str) -> u64 {
        node::parse(&self.text).map_or(0, |it| it.line_of(path))
    }
}

/// A problem as people are told it: the file, then the line.
pub fn line(path: &Path, problem: &dyn std::fmt::Display) -> String {
    format!("{}: {problem}", path.display())
}

/// Reads and checks a file, for an operator whose own directory is `home`.
pub fn read(path: &Path, home: &Path) -> Result<Document, Problems> {
    Ok(check(&bytes_of(path)?)?.at(home))
}

/// What a file holds, up to the size that a document may have.
pub fn bytes_of(path: &Path) -> Result<Vec<u8>, Problems> {
    let problem = |error: &std::io::Error| {
        let name = path.display();
        let text = if error.kind() == std::io::ErrorKind::NotFound {
            "there is no document: sudo etcd-operator init writes the first one".to_owned()
        } else {
            format!("failed to read {name}: {error}")
        };
        Problems::one(0, text)
    };
    let metadata = std::fs::metadata(path).map_err(|error| problem(&error))?;
    if !metadata.is_file() {
        return Err(Problems::one(
            0,
            format!("{} is not a file", path.display()),
        ));
    }
    if metadata.len() > SIZE_MAX {
        return Err(too_large(metadata.len()));
    }
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| problem(&error))?;
    // One that grows meanwhile is too large as well.
    file.take(SIZE_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| problem(&error))?;
    Ok(bytes)
}

fn too_large(bytes: u64) -> Problems {
    let message = format!("the document has {bytes} bytes, allowed are {SIZE_MAX}");
    Problems::one(0, message)
}

/// Checks a document; what it asks for.
pub fn parse(bytes: &[u8]) -> Result<ClusterSpec, Problems> {
    Ok(*check(bytes)?.spec)
}

/// Checks a document.
pub fn check(bytes: &[u8]) -> Result<Document, Problems> {
    check_against(&Schema::load(), rules::OF_KUBERNETES, bytes)
}

/// Checks a document of Kubernetes, as the API server does.
pub fn check_of_kubernetes(bytes: &[u8]) -> Result<Document, Problems> {
    check_against(&Schema::load(), rules::OF_A_HOST, bytes)
}

/// Checks one of many documents; what it asks for.
pub fn parse_against(schema: &Schema, bytes: &[u8]) -> Result<ClusterSpec, Problems> {
    Ok(*check_against(schema, rules::OF_KUBERNETES, bytes)?.spec)
}

/// `elsewhere`: what is refused in this home.
fn check_against(schema: &Schema, elsewhere: &[Rule], bytes: &[u8]) -> Result<Document, Problems> {
    if bytes.len() as u64 > SIZE_MAX {
        return Err(too_large(bytes.len() as u64));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        Problems::one(
            0,
            format!("not UTF-8 text: byte {} is not", error.valid_up_to()),
        )
    })?;
    if text.trim().is_empty() {
        return Err(Problems::one(
            0,
            "the document is empty; etcd-operator crd and the example show what belongs in it",
        ));
    }
    let root = node::parse(text).map_err(|(line, message)| Problems::one(line, message))?;
    judge(schema, elsewhere, text, &root)
}

/// Checks what was parsed: apart from that, whose recursion needs the stack that this would take.
fn judge(
    schema: &Schema,
    elsewhere: &[Rule],
    text: &str,
    root: &Node,
) -> Result<Document, Problems> {
    let Node {
        value: Value::Map(_),
        ..
    } = root
    else {
        return Err(Problems::one(
            root.line,
            format!(
                "found {}, allowed is a map with apiVersion, kind, metadata and spec",
                root.value.describe()
            ),
        ));
    };
    let mut problems = Vec::new();
    header(root, &mut problems);
    let sound = schema::check(root, schema, &mut problems);
    let wire = serde_json::from_value::<EtcdClusterSpec>(sound.unwrap_or_else(|| json!({})));
    let wire = match wire {
        Ok(wire) => wire,
        Err(error) => {
            // The schema already said what; the typed form adds something only where it did not.
            if problems.is_empty() {
                problems.push(Problem {
                    path: "spec".to_owned(),
                    line: root.line_of("spec"),
                    message: error.to_string(),
                });
            }
            return Err(in_order(problems));
        }
    };
    // What a rule says of a part that is wrong in itself would only confuse.
    let wrong: Vec<String> = problems.iter().map(|it| it.path.clone()).collect();
    let judged = |path: &str| !wrong.iter().any(|it| touches(it, path));
    let all = rules::RULES.iter().chain(elsewhere);
    check_rules(all, root, &wire, judged, &mut problems);
    let name = root.at("metadata.name").and_then(Node::as_text);
    match convert::to_spec(name.unwrap_or_default(), &wire) {
        Ok(spec) if problems.is_empty() => {
            let text = text.to_owned();
            return Ok(Document {
                spec: Box::new(spec),
                wire: Box::new(wire),
                text,
            });
        }
        Ok(_) => {}
        Err(misfits) => {
            let misfits = misfits.into_iter().filter(|it| judged(&it.path));
            problems.extend(misfits.map(|it| Problem {
                line: root.line_of(&it.path),
                message: it.to_string(),
                path: it.path,
            }));
        }
    }
    Err(in_order(problems))
}

/// The problems by line, the first [`PROBLEMS_MAX`] of them.
fn in_order(mut problems: Vec<Problem>) -> Problems {
    problems.sort_by_key(|it| it.line);
    problems.dedup();
    let more = problems.len().saturating_sub(PROBLEMS_MAX);
    problems.truncate(PROBLEMS_MAX);
    if more > 0 {
        problems.push(Problem {
            path: String::new(),
            line: 0,
            message: format!("{more} more problems"),
        });
    }
    Problems(problems)
}

/// Whether one of the paths is the other or lies in it.
fn touches(one: &str, other: &str) -> bool {
    let within = |inner: &str, outer: &str| {
        inner
            .strip_prefix(outer)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    within(one, other) || within(other, one)
}

/// What makes the document an EtcdCluster.
fn header(root: &Node, problems: &mut Vec<Problem>) {
    let mut wrong = |path: &str, line: u64, message: String| {
        problems.push(Problem {
            path: path.to_owned(),
            line,
            message,
        });
    };
    let expected = [
        ("apiVersion", format!("{}/{}", api::GROUP, api::VERSION)),
        ("kind", "EtcdCluster".to_owned()),
    ];
    for (key, allowed) in expected {
        match root.get(key) {
            Some(it) if it.as_text() == Some(&allowed) => {}
            Some(it) => {
                let found = it.value.describe();
                wrong(key, it.line, format!("found {found}, allowed is {allowed}"));
            }
            None => wrong(key, 0, format!("is missing; it must be {allowed}")),
        }
    }
    let metadata = root.get("metadata").filter(|it| !it.is_null());
    let name = metadata.and_then(|it| it.get("name"));
    match (metadata.map(|it| (it, &it.value)), name) {
        (Some((it, Value::Map(_))), None) => {
            wrong("metadata.name", it.line, NAME_MISSING.to_owned());
        }
        (None, _) => wrong("metadata.name", 0, NAME_MISSING.to_owned()),
        (Some((it, found)), None) => {
            let message = format!("found {}, allowed: a map with name", found.describe());
            wrong("metadata", it.line, message);
        }
        (_, Some(name)) if name.as_text().is_none() => {
            let found = name.value.describe();
            let message = format!("found {found}, allowed: a name, in quotes");
            wrong("metadata.name", name.line, message);
        }
        _ => {}
    }
}

const NAME_MISSING: &str = "is missing; it names the cluster";

/// The rules that do not hold, but for those about parts that are not to be `judged`.
fn check_rules<'a>(
    all: impl Iterator<Item = &'a Rule>,
    root: &Node,
    wire: &EtcdClusterSpec,
    judged: impl Fn(&str) -> bool,
    problems: &mut Vec<Problem>,
) {
    for rule in all {
        let path = format!("spec.{}", rule.path);
        let found = root.at(&path);
        let broken = if rule.forbids_the_field() {
            found.is_some_and(|it| !it.is_empty())
        } else {
            judged(&path) && !(rule.holds)(wire)
        };
        if !broken {
            continue;
        }
        let message = match found.and_then(Node::as_scalar) {
            Some(found) => format!("found {found}: {}", rule.message),
            None => rule.message.to_owned(),
        };
        problems.push(Problem {
            line: root.line_of(&path),
            path,
            message,
        });
    }
}
