//! The variables of etcd in an old document, and the fields that set the same.

use serde_json::Value as Json;

use super::{Fate, Old, plain, set};
use crate::document::compare::shown;
use crate::document::node::{Node, Value, printable};

const COMPACTS_AFTER: &str = "ETCD_AUTO_COMPACTION_RETENTION";
const RETENTION: &str = "spec.options.autoCompaction.retention";

/// How a value of etcd's environment is written here.
#[derive(Clone, Copy)]
enum As {
    Text,
    Number,
    Bytes,
    /// A number; of hours, where it has a unit.
    Retention,
}

/// etcd's variables, and the field that sets the same.
const ENVIRONMENT: [(&str, &str, As); 10] = [
    (
        "ETCD_AUTO_COMPACTION_MODE",
        "spec.options.autoCompaction.mode",
        As::Text,
    ),
    (COMPACTS_AFTER, RETENTION, As::Retention),
    ("ETCD_QUOTA_BACKEND_BYTES", "spec.storage.quota", As::Bytes),
    (
        "ETCD_SNAPSHOT_COUNT",
        "spec.options.snapshotCount",
        As::Number,
    ),
    (
        "ETCD_HEARTBEAT_INTERVAL",
        "spec.options.heartbeatMilliseconds",
        As::Number,
    ),
    (
        "ETCD_ELECTION_TIMEOUT",
        "spec.options.electionMilliseconds",
        As::Number,
    ),
    (
        "ETCD_MAX_REQUEST_BYTES",
        "spec.options.maxRequestSize",
        As::Bytes,
    ),
    (
        "ETCD_MAX_TXN_OPS",
        "spec.options.maxTransactionOperations",
        As::Number,
    ),
    ("ETCD_LOG_LEVEL", "spec.options.logLevel", As::Text),
    ("ETCD_DEBUG", "spec.options.logLevel", As::Text),
];

/// Whether another object has the value that says after how long old revisions go.
pub(super) fn has_compaction_elsewhere(node: &Node) -> bool {
    Variables::of(node).is_elsewhere(COMPACTS_AFTER)
}

pub(super) fn convert(old: &mut Old<'_>, it: &mut Json, node: &Node) {
    if !matches!(node.value, Value::List(_)) {
        return old.tell(
            "spec.pod.etcdEnv",
            Fate::Decide,
            format!("found {}, expected a list", node.value.describe()),
        );
    }
    let variables = Variables::of(node);
    for index in 0..variables.0.len() {
        let path = format!("spec.pod.etcdEnv[{index}]");
        match variables.becomes(index) {
            Ok((field, value)) => {
                let text = format!("{field}: {}", shown(Some(&value)));
                set(it, field, value);
                old.tell(&path, Fate::Mapped, text);
            }
            Err((fate, text)) => old.tell(&path, fate, text),
        }
    }
    // Ours are set together or not at all.
    let options = &mut it["spec"]["options"];
    for (one, other, default) in [
        ("electionMilliseconds", "heartbeatMilliseconds", 100),
        ("heartbeatMilliseconds", "electionMilliseconds", 1000),
    ] {
        if options[one].is_u64() && options[other].is_null() {
            options[other] = default.into();
            let text = format!("spec.options.{other}: {default}, etcd's own, goes with {one}");
            old.tell("spec.pod.etcdEnv", Fate::Changed, text);
        }
    }
    if options.is_null() {
        it["spec"].as_object_mut().map(|it| it.remove("options"));
    }
}

/// The environment of etcd.
struct Variables<'a>(&'a [Node]);

impl<'a> Variables<'a> {
    fn of(node: &'a Node) -> Self {
        match &node.value {
            Value::List(items) => Variables(items),
            _ => Variables(&[]),
        }
    }

    /// The last one of a name, which is the one that etcd got.
    fn last(&self, name: &str) -> Option<&Node> {
        let index = (0..self.0.len()).rev().find(|it| self.name(*it) == name)?;
        Some(&self.0[index])
    }

    /// Whether another object has the value of a variable.
    fn is_elsewhere(&self, name: &str) -> bool {
        let last = self.last(name);
        last.is_some_and(|it| it.get("valueFrom").is_some())
    }

    fn name(&self, index: usize) -> &str {
        let name = self.0[index].get("name").and_then(Node::as_text);
        name.unwrap_or_default()
    }

    fn value(&self, name: &str) -> Option<String> {
        self.last(name)?.get("value").and_then(plain)
    }

    /// Whether old revisions were compacted.
    fn compacts(&self) -> bool {
        let retention = self.value(COMPACTS_AFTER);
        retention.is_some_and(|it| !is_never(&it))
    }

    fn debugs(&self) -> bool {
        let value = self.value("ETCD_DEBUG");
        value.is_some_and(|it| ["1", "t", "T", "true", "TRUE", "True"].contains(&it.as_str()))
    }

    /// Field and value of a variable, or what became of it else.
    fn becomes(&self, index: usize) -> Result<(&'static str, Json), (Fate, String)> {
        let name = self.name(index);
        let dropped = |why: &str| Err((Fate::Dropped, why.to_owned()));
        let left_out = |why: String| Err((Fate::Decide, format!("{why}: it is left out")));
        let Some((_, field, form)) = ENVIRONMENT.iter().find(|(it, ..)| *it == name) else {
            return left_out(if name.is_empty() {
                "a variable without a name".to_owned()
            } else {
                format!("{} has no field of its own here", printable(name))
            });
        };
        if (index + 1..self.0.len()).any(|it| self.name(it) == name) {
            return dropped("it is given again below");
        }
        if self.is_elsewhere(name) {
            return left_out(format!("another object has the value of {name}"));
        }
        if name == "ETCD_AUTO_COMPACTION_MODE" && self.is_elsewhere(COMPACTS_AFTER) {
            return left_out(format!("another object has the value of {COMPACTS_AFTER}"));
        }
        let Some(value) = self.value(name) else {
            return dropped("it is empty");
        };
        let value = match (name, form) {
            ("ETCD_AUTO_COMPACTION_MODE", _) if !self.compacts() => {
                return dropped("etcd compacted nothing, as there is no retention");
            }
            ("ETCD_LOG_LEVEL", _) if self.debugs() => return dropped("ETCD_DEBUG is set"),
            ("ETCD_DEBUG", _) if !self.debugs() => return dropped("it is off"),
            ("ETCD_DEBUG", _) => "debug".into(),
            (_, As::Retention) if is_never(&value) => {
                return Ok(("spec.options.autoCompaction.mode", "disabled".into()));
            }
            (_, As::Number) => number(&value),
            (_, As::Retention) => number(value.strip_suffix('h').unwrap_or(&value)),
            (_, As::Bytes) => bytes(&value).into(),
            (_, As::Text) => value.into(),
        };
        Ok((field, value))
    }
}

/// `0` and `0h`.
fn is_never(retention: &str) -> bool {
    let number = retention.trim_end_matches(|it: char| it.is_ascii_alphabetic());
    number.parse() == Ok(0_u64)
}

/// One that is wrong stays as it is, and is refused as that.
fn number(text: &str) -> Json {
    { text.parse::<u64>() }.map_or_else(|_| text.into(), Json::from)
}

/// Bytes in the largest unit that names them exactly.
fn bytes(number: &str) -> String {
    let Ok(bytes) = number.parse::<u64>() else {
        return number.to_owned();
    };
    let units = [(30, "Gi"), (20, "Mi"), (10, "Ki")];
    let found = units
        .iter()
        .find(|(bits, _)| bytes > 0 && bytes.is_multiple_of(1 << bits));
    found.map_or_else(
        || bytes.to_string(),
        |(bits, unit)| format!("{}{unit}", bytes >> bits),
    )
}
