//! YAML for people and for `kubectl`: block style, keys in order, no line folded.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value as Json;

/// A value as one YAML document.
///
/// # Errors
/// Where the value has no form in JSON, such as a map whose keys are no text.
pub fn to_yaml<T: Serialize>(value: &T) -> Result<String, serde_json::Error> {
    let mut text = String::new();
    match serde_json::to_value(value)? {
        Json::Object(fields) if !fields.is_empty() => put_map(&mut text, &fields, 0),
        Json::Array(items) if !items.is_empty() => put_list(&mut text, &items, 0),
        scalar => {
            put_scalar(&mut text, &scalar, 0);
            text.push('\n');
        }
    }
    Ok(text)
}

fn indent(text: &mut String, columns: usize) {
    text.extend(std::iter::repeat_n(' ', columns));
}

fn put_map(text: &mut String, fields: &serde_json::Map<String, Json>, columns: usize) {
    for (index, (key, value)) in fields.iter().enumerate() {
        // The first key of a map in a list stands behind the item's dash.
        if index > 0 || text.is_empty() || text.ends_with('\n') {
            indent(text, columns);
        }
        put_text(text, key);
        text.push(':');
        match value {
            Json::Object(fields) if !fields.is_empty() => {
                text.push('\n');
                put_map(text, fields, columns + 2);
            }
            Json::Array(items) if !items.is_empty() => {
                text.push('\n');
                put_list(text, items, columns);
            }
            scalar => {
                text.push(' ');
                put_scalar(text, scalar, columns + 2);
                text.push('\n');
            }
        }
    }
}

fn put_list(text: &mut String, items: &[Json], columns: usize) {
    for item in items {
        if text.is_empty() || text.ends_with('\n') {
            indent(text, columns);
        }
        text.push_str("- ");
        match item {
            Json::Object(fields) if !fields.is_empty() => put_map(text, fields, columns + 2),
            Json::Array(items) if !items.is_empty() => put_list(text, items, columns + 2),
            scalar => {
                put_scalar(text, scalar, columns + 2);
                text.push('\n');
            }
        }
    }
}

/// Everything that fits behind a key; several lines of text as a literal block.
fn put_scalar(text: &mut String, value: &Json, columns: usize) {
    match value {
        Json::Object(_) => text.push_str("{}"),
        Json::Array(_) => text.push_str("[]"),
        Json::String(it) if is_block(it) => {
            text.push_str("|-");
            for line in it.split('\n') {
                text.push('\n');
                if !line.is_empty() {
                    indent(text, columns);
                    text.push_str(line);
                }
            }
        }
        Json::String(it) => put_text(text, it),
        other => drop(write!(text, "{other}")),
    }
}

/// Whether a literal block says the same: it neither begins with a blank nor ends with a line's end.
fn is_block(text: &str) -> bool {
    text.contains('\n')
        && !text.starts_with([' ', '\n'])
        && !text.ends_with('\n')
        && !text.contains(|it: char| it.is_control() && it != '\n')
}

fn put_text(text: &mut String, value: &str) {
    if is_plain(value) {
        text.push_str(value);
    } else {
        // JSON's quoted text is YAML's, but for characters that YAML wants escaped.
        for it in Json::from(value).to_string().chars() {
            if it.is_control() || it == '\u{feff}' {
                let _ = write!(text, "\\u{:04x}", u32::from(it));
            } else {
                text.push(it);
            }
        }
    }
}

/// Whether a text without quotes is read back as that text by every reader of YAML 1.1 and 1.2.
fn is_plain(text: &str) -> bool {
    const WORDS: [&str; 10] = [
        "", "~", "null", "true", "false", "yes", "no", "on", "off", "=",
    ];
    let safe = |it: char| it.is_alphanumeric() || " _-./,()'<>=+*@;!?\"$%&{}[]|^`\\#:".contains(it);
    text.starts_with(|it: char| it.is_ascii_alphabetic() || "/(^".contains(it))
        && text.chars().all(safe)
        && !text.ends_with([' ', ':'])
        && !text.contains(": ")
        && !text.contains(" #")
        && !WORDS.contains(&text.to_ascii_lowercase().as_str())
        && !["y", "n"].contains(&text.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_printed_is_read_back() {
        let texts = [
            "",
            " a",
            "a ",
            "a: b",
            "a #b",
            "- a",
            "1",
            "1.5",
            "0x1f",
            "true",
            "No",
            "y",
            "null",
            "~",
            "a\nb",
            "a\n\nb\n",
            "\n a",
            "tab\there",
            "é ü",
            "\"quoted\"",
            "'single'",
            "{a}",
            "[a]",
            "*a",
            "&a",
            "!a",
            "%a",
            "@a",
            "`a",
            "| a",
            "> a",
            "? a",
            "a:",
            ": a",
            ".5",
            ".inf",
            "=",
            "2026-11-22T00:00:00Z",
            "https://127.0.0.1:2379",
            "\u{7f}",
            "\u{feff}x",
            "a\rb",
            "...",
            "---",
        ];
        let value = json!({
            "texts": texts.as_slice(),
            "map": texts.iter().map(|it| ((*it).to_owned(), json!(it))).collect::<serde_json::Map<_, _>>(),
            "nested": [[1, [2]], {"a": [{"b": {}}, []]}, [], {}],
            "numbers": [0, -1, 1.5, u64::MAX],
            "nothing": [true, false],
        });
        let text = to_yaml(&value).unwrap();
        let back: Json = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(back, value, "{text}");
        let own = super::super::node::parse(&text).unwrap().to_json();
        assert_eq!(own, value, "{text}");
    }
}
