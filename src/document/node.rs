//! YAML as a tree that knows its lines. Aliases, tags and merge keys are resolved by the library,
//! within its budget; duplicate keys are an error.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) line: u64,
    pub(super) value: Value,
}

/// What YAML can say.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    /// Key, the key's line, value; in the order of the document.
    Map(Vec<(String, u64, Node)>),
}

/// Values in one document, aliases expanded; the example has 30, an export with managed fields
/// some hundreds.
const VALUES_MAX: usize = 20_000;

const TOO_LARGE: &str = "too deeply nested, or more than 20000 values once aliases are expanded";

/// Parses one document.
pub(super) fn parse(text: &str) -> Result<Node, (u64, String)> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_nodes: VALUES_MAX },
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::Error,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options::<serde_saphyr::Spanned<Value>>(text, options)
        .map(|it| Node {
            line: it.referenced.line(),
            value: it.value,
        })
        .map_err(|error| {
            let line = error.location().map_or(0, |it| it.line());
            (line, refusal(&error))
        })
}

/// Why the text is no document, without the library's words for programmers.
fn refusal(error: &serde_saphyr::Error) -> String {
    use serde_saphyr::Error;
    match error {
        Error::MultipleDocuments { .. } => {
            "a second document begins here; allowed is one".to_owned()
        }
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("'{}' stands twice in one map; remove one", printable(key))
        }
        Error::Budget { .. } => TOO_LARGE.to_owned(),
        other => {
            let text = other.render_with_formatter(&serde_saphyr::UserMessageFormatter);
            let text = text.lines().next().unwrap_or_default();
            // A budget that was met while an alias was expanded, or the parser's own.
            if text.contains("too large") || text.contains("recursion limit") {
                return TOO_LARGE.to_owned();
            }
            let end = text.rfind(" at line ").unwrap_or(text.len());
            format!("not valid YAML: {}", printable(&text[..end]))
        }
    }
}

/// A text as it may stand in a message: on one line, without control characters, not endless.
pub(super) fn printable(text: &str) -> String {
    let mut shown = String::new();
    for (count, it) in text.chars().enumerate() {
        if count == TEXT_MAX {
            shown.push_str("...");
            break;
        }
        if it.is_control() {
            shown.extend(it.escape_default());
        } else {
            shown.push(it);
        }
    }
    shown
}

/// Characters of a text that a message shows.
const TEXT_MAX: usize = 60;

impl Node {
    /// The value of a key.
    pub(super) fn get(&self, key: &str) -> Option<&Node> {
        match &self.value {
            Value::Map(fields) => fields
                .iter()
                .find(|(name, ..)| name == key)
                .map(|(.., it)| it),
            _ => None,
        }
    }

    /// Nothing, or a list of nothing.
    pub(super) fn is_empty(&self) -> bool {
        match &self.value {
            Value::List(items) => items.is_empty(),
            other => matches!(other, Value::Null),
        }
    }

    pub(super) fn is_null(&self) -> bool {
        matches!(self.value, Value::Null)
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A scalar as a message shows it.
    pub(super) fn as_scalar(&self) -> Option<String> {
        match &self.value {
            Value::Map(_) | Value::List(_) => None,
            other => Some(other.describe()),
        }
    }

    /// The node at a path such as `spec.clients[0].name`.
    pub(super) fn at(&self, path: &str) -> Option<&Node> {
        path.split('.').try_fold(self, |node, part| {
            let (key, index) = match part.split_once('[') {
                Some((key, rest)) => (key, rest.trim_end_matches(']').parse::<usize>().ok()),
                None => (part, None),
            };
            let field = node.get(key)?;
            match (index, &field.value) {
                (None, _) => Some(field),
                (Some(index), Value::List(items)) => items.get(index),
                (Some(_), _) => None,
            }
        })
    }

    /// The line of a path, or of the nearest part of it that is there.
    pub(super) fn line_of(&self, path: &str) -> u64 {
        let mut end = path.len();
        loop {
            if let Some(node) = self.at(&path[..end]) {
                return node.line;
            }
            match path[..end].rfind(['.', '[']) {
                Some(shorter) => end = shorter,
                None => return self.line,
            }
        }
    }

    /// The same without lines. Nulls are left out: in Kubernetes' API they mean "not given".
    pub(super) fn to_json(&self) -> serde_json::Value {
        use serde_json::Value as Json;
        match &self.value {
            Value::Null => Json::Null,
            Value::Bool(it) => Json::Bool(*it),
            Value::Integer(it) => {
                i64::try_from(*it).map_or_else(|_| Json::String(it.to_string()), Json::from)
            }
            Value::Float(it) => Json::from(*it),
            Value::Text(it) => Json::String(it.clone()),
            Value::List(items) => Json::Array(items.iter().map(Node::to_json).collect()),
            Value::Map(fields) => Json::Object(
                fields
                    .iter()
                    .filter(|(.., node)| !matches!(node.value, Value::Null))
                    .map(|(key, _, node)| (key.clone(), node.to_json()))
                    .collect(),
            ),
        }
    }
}

impl Value {
    /// What was found, for a message.
    pub(super) fn describe(&self) -> String {
        match self {
            Value::Null => "nothing".to_owned(),
            Value::Bool(it) => format!("{it}"),
            Value::Integer(it) => format!("the number {it}"),
            Value::Float(it) => format!("the number {it:?}"),
            Value::Text(it) => format!("'{}'", printable(it)),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a map".to_owned(),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_bool<E>(self, it: bool) -> Result<Value, E> {
        Ok(Value::Bool(it))
    }

    fn visit_i64<E>(self, it: i64) -> Result<Value, E> {
        Ok(Value::Integer(it.into()))
    }

    fn visit_u64<E>(self, it: u64) -> Result<Value, E> {
        Ok(Value::Integer(it.into()))
    }

    fn visit_i128<E>(self, it: i128) -> Result<Value, E> {
        Ok(Value::Integer(it))
    }

    fn visit_f64<E>(self, it: f64) -> Result<Value, E> {
        Ok(Value::Float(it))
    }

    fn visit_str<E>(self, it: &str) -> Result<Value, E> {
        Ok(Value::Text(it.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(it) = items.next_element::<serde_saphyr::Spanned<Value>>()? {
            list.push(Node {
                line: it.referenced.line(),
                value: it.value,
            });
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut fields: Vec<(String, u64, Node)> = Vec::new();
        while let Some(key) = entries.next_key::<serde_saphyr::Spanned<String>>()? {
            let it = entries.next_value::<serde_saphyr::Spanned<Value>>()?;
            // A map or list begins, for people, where its key stands.
            let line = match it.value {
                Value::Map(_) | Value::List(_) => key.referenced.line(),
                _ => it.referenced.line(),
            };
            let node = Node {
                line,
                value: it.value,
            };
            fields.push((key.value, key.referenced.line(), node));
        }
        Ok(Value::Map(fields))
    }
}
