//! Two documents, field by field.

use serde_json::Value;

use crate::api::EtcdClusterSpec;

/// A field that differs. `None`: it is not given there.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Its path below `spec`, such as `clients[0].name`; the nearest one that both have.
    pub path: String,
    /// What it was.
    pub before: Option<Value>,
    /// What it is now.
    pub after: Option<Value>,
}

/// A document's `spec` with every default.
pub fn spelled_out(wire: &EtcdClusterSpec) -> Value {
    serde_json::to_value(wire).unwrap_or_default()
}

/// What differs between two specs, in the order of their fields.
pub fn differences(before: &Value, after: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    compare("", before, after, &mut found);
    found
}

fn compare(path: &str, before: &Value, after: &Value, found: &mut Vec<Difference>) {
    match (before, after) {
        _ if before == after => {}
        (Value::Object(one), Value::Object(other)) => {
            let mut keys: Vec<&String> = one.keys().chain(other.keys()).collect();
            keys.sort_unstable();
            keys.dedup();
            for key in keys {
                let path = match path {
                    "" => key.clone(),
                    _ => format!("{path}.{key}"),
                };
                let field = |it: &serde_json::Map<String, Value>| it.get(key).cloned();
                let (one, other) = (field(one), field(other));
                compare(
                    &path,
                    &one.unwrap_or_default(),
                    &other.unwrap_or_default(),
                    found,
                );
            }
        }
        (Value::Array(one), Value::Array(other))
            if one.len() == other.len() && one.iter().all(Value::is_object) =>
        {
            for (index, (one, other)) in one.iter().zip(other).enumerate() {
                compare(&format!("{path}[{index}]"), one, other, found);
            }
        }
        _ => found.push(Difference {
            path: path.to_owned(),
            before: given(before),
            after: given(after),
        }),
    }
}

fn given(value: &Value) -> Option<Value> {
    (!value.is_null()).then(|| value.clone())
}

/// A value as a table shows it.
pub fn shown(value: Option<&Value>) -> String {
    let text = match value {
        None => return "-".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    super::node::printable(&text)
}
