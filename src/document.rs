//! The document as a file: text in, [`ClusterSpec`] out, or every problem at once.
//!
//! Each problem names its path in the document, its line, what was found and what is allowed. The
//! structure is checked against the schema of `deploy/crds.yaml` itself, the rules against
//! [`crate::api::rules`]: the verdict is the API server's. It touches no file but through
//! [`read`].

mod node;
mod schema;

use std::fmt;
use std::path::Path;

use crate::api::{self, EtcdClusterSpec, convert, rules};
use crate::spec::ClusterSpec;
use node::Node;

/// A document larger than this is none of ours: the example has 2 KiB.
pub const SIZE_MAX: u64 = 256 * 1024;

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

/// Reads and checks a file.
pub fn read(path: &Path) -> Result<ClusterSpec, Problems> {
    let problem = |what: &str, error: &std::io::Error| {
        Problems::one(0, format!("failed to {what} {}: {error}", path.display()))
    };
    let metadata = std::fs::metadata(path).map_err(|error| problem("read", &error))?;
    if !metadata.is_file() {
        return Err(Problems::one(
            0,
            format!("{} is not a file", path.display()),
        ));
    }
    if metadata.len() > SIZE_MAX {
        let message = format!(
            "{} has {} bytes, allowed are {SIZE_MAX}",
            path.display(),
            metadata.len()
        );
        return Err(Problems::one(0, message));
    }
    let bytes = std::fs::read(path).map_err(|error| problem("read", &error))?;
    parse(&bytes)
}

/// Checks a document.
pub fn parse(bytes: &[u8]) -> Result<ClusterSpec, Problems> {
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
    let Node {
        value: node::Value::Map(_),
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
    header(&root, &mut problems);
    schema::check(&root, &mut problems);
    let spec = root.get("spec");
    let wire = spec.map_or_else(
        || Ok(EtcdClusterSpec::default()),
        |it| serde_json::from_value::<EtcdClusterSpec>(it.to_json()),
    );
    let name = root
        .get("metadata")
        .and_then(|it| it.get("name"))
        .and_then(Node::as_text);
    match wire {
        Ok(wire) if problems.is_empty() => {
            check_rules(&root, &wire, &mut problems);
            match convert::to_spec(name.unwrap_or_default(), &wire) {
                Ok(spec) if problems.is_empty() => return Ok(spec),
                Ok(_) => {}
                Err(misfits) => problems.extend(misfits.into_iter().map(|it| Problem {
                    line: root.line_of(&it.path),
                    message: format!("found '{}', allowed: {}", it.found, it.allowed),
                    path: it.path,
                })),
            }
        }
        Ok(wire) => check_rules(&root, &wire, &mut problems),
        // The schema already said what; the typed form can add something only where it did not.
        Err(error) if problems.is_empty() => problems.push(Problem {
            path: "spec".to_owned(),
            line: spec.map_or(0, |it| it.line),
            message: error.to_string(),
        }),
        Err(_) => {}
    }
    problems.sort_by_key(|it| it.line);
    problems.dedup();
    Err(Problems(problems))
}

/// What makes the document an EtcdCluster.
fn header(root: &Node, problems: &mut Vec<Problem>) {
    let expected = [
        ("apiVersion", format!("{}/{}", api::GROUP, api::VERSION)),
        ("kind", "EtcdCluster".to_owned()),
    ];
    for (key, allowed) in expected {
        let found = root.get(key);
        if found.and_then(Node::as_text) != Some(allowed.as_str()) {
            let message = match found {
                Some(node) => format!("found {}, allowed is {allowed}", node.value.describe()),
                None => format!("is missing; it must be {allowed}"),
            };
            problems.push(Problem {
                path: key.to_owned(),
                line: found.map_or(0, |it| it.line),
                message,
            });
        }
    }
    let metadata = root.get("metadata");
    if metadata.and_then(|it| it.get("name")).is_none() {
        problems.push(Problem {
            path: "metadata.name".to_owned(),
            line: metadata.map_or(0, |it| it.line),
            message: "is missing; it names the cluster".to_owned(),
        });
    }
}

fn check_rules(root: &Node, wire: &EtcdClusterSpec, problems: &mut Vec<Problem>) {
    for rule in rules::RULES.iter().filter(|it| !(it.holds)(wire)) {
        let path = format!("spec.{}", rule.path);
        let line = root.line_of(&path);
        let found = root.at(&path).and_then(Node::as_scalar);
        let message = match found {
            Some(found) => format!("found {found}: {}", rule.message),
            None => rule.message.to_owned(),
        };
        problems.push(Problem {
            path,
            line,
            message,
        });
    }
}
