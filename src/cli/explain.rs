//! `explain`: what a reason means, what the operator does about it, and what a person does.

use std::fmt::Write as _;

use super::print::{self, Output};
use super::{DONE, ExplainArgs, FAILED, Failure, Outcome};
use crate::explain::{self, Explanation};

pub(super) fn explain(arguments: &ExplainArgs) -> Outcome {
    let Some(reason) = &arguments.reason else {
        return list(arguments.output);
    };
    let entry = explain::find(reason).map_err(|alike| unknown(reason, &alike))?;
    match arguments.output {
        Output::Table => print::text(&page(&entry))?,
        other => print::value(other, &entry)?,
    }
    Ok(DONE)
}

fn list(output: Output) -> Outcome {
    let all: Vec<Explanation> = explain::entries().collect();
    if output != Output::Table {
        print::value(output, &all)?;
        return Ok(DONE);
    }
    let mut rows = vec![["REASON", "WHERE", "MEANS"].map(str::to_owned)];
    for it in all {
        let first = it.means.split_inclusive(". ").next().unwrap_or_default();
        let first = first.trim().to_owned();
        rows.push([it.reason.to_owned(), it.kinds.join(", "), first]);
    }
    print::table(&rows)?;
    Ok(DONE)
}

fn unknown(reason: &str, alike: &[&str]) -> Failure {
    let text = match alike {
        [] => format!("there is no reason {reason}: see etcd-operator explain --list"),
        some => format!(
            "there is no reason {reason}; did you mean {}?",
            some.join(", ")
        ),
    };
    Failure::new(FAILED, text)
}

/// Columns of text beside the names of the fields.
const WIDTH: usize = 90;

fn page(it: &Explanation) -> String {
    let mut text = format!("{}  ({})\n", it.reason, it.kinds.join(", "));
    let fields = [
        ("means", Some(&it.means)),
        ("operator", it.operator.as_ref()),
        ("you", Some(&it.you)),
        ("never", it.never.as_ref()),
    ];
    for (name, words) in fields {
        for (number, line) in words.iter().flat_map(|it| lines(it)).enumerate() {
            let name = if number == 0 { name } else { "" };
            let _ = writeln!(text, "{name:9} {line}");
        }
    }
    text
}

/// Broken between words.
fn lines(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last().map_or(0, |it| it.chars().count());
        if last > 0 && last + 1 + word.chars().count() > WIDTH {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}
