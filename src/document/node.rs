//! YAML as a tree that knows its lines, built from the events of a parser. Aliases and merge keys are
//! resolved here, within a budget; duplicate keys are an error.

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, Tag};

use crate::error::shown;

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
/// Lists and maps within each other; the schema has 8.
const DEPTH_MAX: usize = 64;

const TOO_LARGE: &str = "too deeply nested, or more than 20000 values once aliases are expanded";

/// A line and what is wrong there.
type Mistake = (u64, String);

/// Parses one document.
pub(super) fn parse(text: &str) -> Result<Node, Mistake> {
    let mut all = read(text, true)?;
    Ok(all.pop().unwrap_or(Node {
        line: 1,
        value: Value::Null,
    }))
}

/// Parses as many documents as there are. One that is empty is none.
pub(super) fn parse_all(text: &str) -> Result<Vec<Node>, Mistake> {
    read(text, false)
}

fn read(text: &str, is_one: bool) -> Result<Vec<Node>, Mistake> {
    let mut tree = Tree {
        is_one,
        ..Tree::default()
    };
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| {
            let text = match error.kind() {
                ErrorKind::RecursionLimitExceeded => TOO_LARGE.to_owned(),
                other => format!("not valid YAML: {}", printable(&other.to_string())),
            };
            (line_of(error.marker()), text)
        })?;
        tree.take(&event, line_of(&span.start))?;
    }
    Ok(tree.roots)
}

fn line_of(marker: &granit_parser::Marker) -> u64 {
    marker.line() as u64
}

/// What was read so far.
#[derive(Default)]
struct Tree {
    roots: Vec<Node>,
    /// No second document may follow.
    is_one: bool,
    /// Lists and maps that have begun and not ended, the outermost first.
    open: Vec<Open>,
    /// Values with an anchor, and how many values each consists of.
    anchors: Vec<(usize, Node, usize)>,
    values: usize,
    /// Where the document begins that is read now.
    begins: u64,
}

/// A list or map that has not ended.
struct Open {
    line: u64,
    anchor: usize,
    /// Values that were read before it.
    before: usize,
    items: Items,
}

enum Items {
    List(Vec<Node>),
    Map {
        fields: Vec<(String, u64, Node)>,
        key: Option<(String, u64)>,
    },
}

/// Takes the fields of another map where the map has none of that name.
const MERGE_KEY: &str = "<<";

impl Tree {
    fn take(&mut self, event: &Event<'_>, line: u64) -> Result<(), Mistake> {
        match event {
            Event::DocumentStart(..) => {
                self.begins = line;
                Ok(())
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.count(1, line)?;
                if self.awaits_key() {
                    self.key(text, line)
                } else {
                    let value = scalar(text, *style, tag.as_deref()).map_err(|it| (line, it))?;
                    self.put(Node { line, value }, *anchor, 1)
                }
            }
            Event::SequenceStart(_, anchor, _) => self.begin(line, *anchor, Items::List(vec![])),
            Event::MappingStart(_, anchor, _) => {
                let (fields, key) = (vec![], None);
                self.begin(line, *anchor, Items::Map { fields, key })
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(anchor) => self.repeat(*anchor, line),
            _ => Ok(()),
        }
    }

    fn count(&mut self, values: usize, line: u64) -> Result<(), Mistake> {
        self.values += values;
        if self.values > VALUES_MAX {
            return Err((line, TOO_LARGE.to_owned()));
        }
        Ok(())
    }

    fn awaits_key(&self) -> bool {
        let open = self.open.last().map(|it| &it.items);
        matches!(open, Some(Items::Map { key: None, .. }))
    }

    fn key(&mut self, text: &str, line: u64) -> Result<(), Mistake> {
        if let Some(Items::Map { fields, key }) = self.open.last_mut().map(|it| &mut it.items) {
            if text != MERGE_KEY && fields.iter().any(|(other, ..)| other == text) {
                let shown = printable(text);
                return Err((
                    line,
                    format!("'{shown}' appears twice in one map; remove one"),
                ));
            }
            *key = Some((text.to_owned(), line));
        }
        Ok(())
    }

    fn begin(&mut self, line: u64, anchor: usize, items: Items) -> Result<(), Mistake> {
        if self.awaits_key() {
            return Err((line, NO_KEY.to_owned()));
        }
        if self.open.len() == DEPTH_MAX {
            return Err((line, TOO_LARGE.to_owned()));
        }
        let before = self.values;
        self.count(1, line)?;
        // A map or list begins, for people, where its key stands.
        let line = match self.open.last().map(|it| &it.items) {
            Some(Items::Map {
                key: Some((_, line)),
                ..
            }) => *line,
            _ => line,
        };
        self.open.push(Open {
            line,
            anchor,
            before,
            items,
        });
        Ok(())
    }

    fn end(&mut self) -> Result<(), Mistake> {
        let Some(open) = self.open.pop() else {
            return Ok(());
        };
        let value = match open.items {
            Items::List(items) => Value::List(items),
            Items::Map { fields, .. } => Value::Map(merged(fields)?),
        };
        let line = open.line;
        self.put(Node { line, value }, open.anchor, self.values - open.before)
    }

    fn repeat(&mut self, anchor: usize, line: u64) -> Result<(), Mistake> {
        if self.awaits_key() {
            return Err((line, NO_KEY.to_owned()));
        }
        let found = self.anchors.iter().rfind(|(id, ..)| *id == anchor);
        let Some((_, node, values)) = found else {
            let text = "not valid YAML: an alias within the value that it names";
            return Err((line, text.to_owned()));
        };
        let (value, values) = (node.value.clone(), *values);
        self.count(values, line)?;
        self.put(Node { line, value }, 0, values)
    }

    fn put(&mut self, node: Node, anchor: usize, values: usize) -> Result<(), Mistake> {
        if anchor > 0 {
            self.anchors.push((anchor, node.clone(), values));
        }
        match self.open.last_mut().map(|it| &mut it.items) {
            Some(Items::List(items)) => items.push(node),
            Some(Items::Map { fields, key }) => {
                if let Some((key, line)) = key.take() {
                    fields.push((key, line, node));
                }
            }
            // One of comments alone, as tools leave them, is none.
            None if node.is_null() => {}
            None if self.is_one && !self.roots.is_empty() => {
                let text = "a second document begins here; allowed is one";
                return Err((self.begins, text.to_owned()));
            }
            None => self.roots.push(node),
        }
        Ok(())
    }
}

const NO_KEY: &str = "not valid YAML: a list, map or alias where a field's name belongs";

/// The fields of a map, with those of its merge keys: what the map says itself wins.
fn merged(fields: Vec<(String, u64, Node)>) -> Result<Vec<(String, u64, Node)>, Mistake> {
    let (merges, mut fields): (Vec<_>, Vec<_>) =
        fields.into_iter().partition(|(key, ..)| key == MERGE_KEY);
    for (_, line, merge) in merges {
        let others = match merge.value {
            Value::List(items) => items,
            _ => vec![merge],
        };
        for other in others {
            let Value::Map(other) = other.value else {
                let text = "not valid YAML: << takes a map, or a list of maps";
                return Err((line, text.to_owned()));
            };
            for (key, line, node) in other {
                if !fields.iter().any(|(known, ..)| *known == key) {
                    fields.push((key, line, node));
                }
            }
        }
    }
    Ok(fields)
}

/// What a scalar says by YAML's core schema; yes, no, on and off as the API server takes them.
fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Value, String> {
    let core = tag.filter(|it| it.is_yaml_core_schema());
    let is_text = match core.map(Tag::suffix) {
        Some("str") => true,
        Some(_) => false,
        None => style != ScalarStyle::Plain,
    };
    if is_text {
        return Ok(Value::Text(text.to_owned()));
    }
    Ok(match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => Value::Bool(true),
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => {
            Value::Bool(false)
        }
        _ => match integer(text) {
            Some(it) => Value::Integer(it),
            None => float(text)?.map_or_else(|| Value::Text(text.to_owned()), Value::Float),
        },
    })
}

fn integer(text: &str) -> Option<i128> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    // 017 is 15 to some readers and 17 to others: it stays text, which the schema refuses.
    let (digits, radix) = match digits.get(..2) {
        Some(it) if it != "0x" && it != "0o" && it.starts_with('0') => return None,
        Some("0x") => (&digits[2..], 16),
        Some("0o") => (&digits[2..], 8),
        _ => (digits, 10),
    };
    if !digits.starts_with(|it: char| it.is_digit(radix)) {
        return None;
    }
    i128::from_str_radix(digits, radix).ok().map(|it| sign * it)
}

/// A number with a point or an exponent, where the text is one.
fn float(text: &str) -> Result<Option<f64>, String> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if [".inf", ".Inf", ".INF", ".nan", ".NaN", ".NAN"].contains(&unsigned) {
        return Err(format!("not valid here: {text} is not a finite number"));
    }
    let looks_like = unsigned.starts_with(|it: char| it.is_ascii_digit() || it == '.')
        && unsigned.contains(['.', 'e', 'E'])
        && unsigned.contains(|it: char| it.is_ascii_digit());
    let number = text.parse::<f64>().ok().filter(|it| it.is_finite());
    Ok(number.filter(|_| looks_like))
}

/// A text as it may stand in a message: on one line, without control characters, not endless.
pub(super) fn printable(text: &str) -> String {
    shown(text, TEXT_MAX)
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
            Value::Integer(it) => match (i64::try_from(*it), u64::try_from(*it)) {
                (Ok(it), _) => Json::from(it),
                (_, Ok(it)) => Json::from(it),
                _ => Json::String(it.to_string()),
            },
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
