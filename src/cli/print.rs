//! Output for people and programs. Stdout carries results and nothing else.

use std::io::{self, Write as _};

use serde::Serialize;

/// How to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// For people.
    Table,
    /// One JSON document.
    Json,
    /// The same as YAML.
    Yaml,
}

/// Prints text as it is. A reader that went away is no failure of ours to report twice.
pub(super) fn text(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Prints a value as JSON or YAML.
pub(super) fn value<T: Serialize>(output: Output, value: &T) -> io::Result<()> {
    match output {
        Output::Yaml => text(&crate::document::to_yaml(value).map_err(io::Error::other)?),
        Output::Table | Output::Json => text(&format!(
            "{}\n",
            serde_json::to_string_pretty(value).map_err(io::Error::other)?
        )),
    }
}

/// Prints rows in columns; the last column is as wide as it is.
pub(super) fn table<const N: usize>(rows: &[[String; N]]) -> io::Result<()> {
    let width = |column: usize| {
        rows.iter()
            .map(|it| it[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut page = String::new();
    for row in rows {
        for (index, cell) in row.iter().enumerate() {
            page.push_str(cell);
            if index + 1 < N {
                page.extend(std::iter::repeat_n(
                    ' ',
                    widths[index] - cell.chars().count() + 2,
                ));
            }
        }
        page.truncate(page.trim_end_matches(' ').len());
        page.push('\n');
    }
    text(&page)
}
