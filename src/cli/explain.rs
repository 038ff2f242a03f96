//! `explain`: what a reason means, what the operator does about it, and what a person does.

use std::fmt::Write as _;

use super::print::{self, Output};
use super::{DONE, ExplainArgs, FAILED, Failure, Outcome};
use crate::error;
use crate::explain::{self, Explanation, Found};

pub(super) fn explain(arguments: &ExplainArgs) -> Outcome {
    let Some(text) = &arguments.reason else {
        return list(arguments.output);
    };
    let (entry, others) = match explain::find(text) {
        Found::Named(it) => (it, None),
        Found::Like(it, others) => (it, Some(others)),
        Found::None(alike) => return Err(unknown(text, &alike)),
    };
    if let Some(others) = others {
        let or = match others.as_slice() {
            [] => String::new(),
            some => format!("; or {}", some.join(", ")),
        };
        eprintln!(
            "etcd-operator: no reason stands in this message; most like it is {}{or}",
            entry.reason
        );
    }
    match arguments.output {
        Output::Table => print::text(&page(&entry))?,
        other => print::value(other, &entry)?,
    }
    Ok(DONE)
}

fn list(output: Output) -> Outcome {
    let mut all: Vec<Explanation> = explain::entries().collect();
    if output != Output::Table {
        print::value(output, &all)?;
        return Ok(DONE);
    }
    for (kind, title) in explain::KINDS {
        let (here, others): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|it| it.kinds.contains(&kind));
        all = others;
        let mut rows = vec![[title.to_uppercase(), "MEANS".to_owned()]];
        for it in here {
            let first = it.means.split_inclusive(". ").next().unwrap_or_default();
            rows.push([it.reason.to_owned(), first.trim().to_owned()]);
        }
        print::table(&rows)?;
        print::text("\n")?;
    }
    print::text("etcd-operator explain REASON tells more; also for a whole message, in quotes.\n")?;
    Ok(DONE)
}

/// Characters of what a person typed that a message shows.
const SHOWN: usize = 60;

fn unknown(reason: &str, alike: &[&str]) -> Failure {
    let shown = error::shown(reason, SHOWN);
    let text = match alike {
        [] => format!("there is no reason {shown}: see etcd-operator explain"),
        some => format!(
            "there is no reason {shown}; did you mean {}?",
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
