//! Output for people and programs. Stdout carries results and nothing else.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

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
    page(text).map(|_| ())
}

/// Prints text as it is; whether somebody still reads.
pub(super) fn page(text: &str) -> io::Result<bool> {
    let mut stdout = io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        other => other.map(|()| true),
    }
}

/// Asks a person at a terminal; without one, and for any other answer than yes, it is a no.
pub(super) fn confirmed(question: &str) -> io::Result<bool> {
    if !io::stdin().is_terminal() {
        return Ok(false);
    }
    eprint!("{question} [y/N] ");
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

/// A size for people.
pub(super) fn bytes(count: u64) -> String {
    match count {
        0..1024 => format!("{count} B"),
        1024..1_048_576 => format!("{:.1} KiB", count as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", count as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", count as f64 / 1_073_741_824.0),
    }
}

/// A span of time for people, in its largest unit.
pub(super) fn span(seconds: u64) -> String {
    let (count, unit) = match seconds {
        0..120 => (seconds, "s"),
        120..7200 => (seconds / 60, "min"),
        7200..172_800 => (seconds / 3600, "h"),
        _ => (seconds / 86_400, "days"),
    };
    format!("{count} {unit}")
}

/// What a word is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Good,
    Doubtful,
    Bad,
    Plain,
}

/// A word in its colour, where `colour` is wanted.
pub(super) fn toned(colour: bool, tone: Tone, text: &str) -> String {
    let code = match tone {
        Tone::Good => "32",
        Tone::Doubtful => "33",
        Tone::Bad => "1;31",
        Tone::Plain => "",
    };
    if !colour || code.is_empty() {
        return text.to_owned();
    }
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// Whether people read at a terminal that shows colours, and want them (no-color.org).
pub(super) fn in_colour() -> bool {
    let unset = |name: &str| std::env::var_os(name).is_none_or(|it| it.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|it| it == "dumb");
    io::stdout().is_terminal() && unset("NO_COLOR") && !dumb
}

/// Columns that a text takes on a terminal: its colours take none.
fn width(text: &str) -> usize {
    let (mut width, mut colour) = (0, false);
    for it in text.chars() {
        match (colour, it) {
            (false, '\x1b') => colour = true,
            (true, 'm') => colour = false,
            (true, _) => {}
            (false, _) => width += 1,
        }
    }
    width
}

/// Prints a value as JSON or YAML.
pub(super) fn value<T: Serialize>(output: Output, value: &T) -> io::Result<()> {
    text(&encode(output, value)?)
}

/// A value as JSON or YAML.
pub(super) fn encode<T: Serialize>(output: Output, value: &T) -> io::Result<String> {
    match output {
        Output::Yaml => crate::document::to_yaml(value).map_err(io::Error::other),
        Output::Table | Output::Json => {
            let text = serde_json::to_string_pretty(value).map_err(io::Error::other)?;
            Ok(format!("{text}\n"))
        }
    }
}

/// Prints rows in columns; the last column is as wide as it is.
pub(super) fn table<const N: usize>(rows: &[[String; N]]) -> io::Result<()> {
    text(&columns(rows))
}

/// Rows in columns.
pub(super) fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    let widest = |column: usize| rows.iter().map(|it| width(&it[column])).max();
    let widths: Vec<usize> = (0..N).map(|it| widest(it).unwrap_or(0)).collect();
    let mut page = String::new();
    for row in rows {
        for (index, cell) in row.iter().enumerate() {
            page.push_str(cell);
            if index + 1 < N {
                page.extend(std::iter::repeat_n(' ', widths[index] - width(cell) + 2));
            }
        }
        page.truncate(page.trim_end_matches(' ').len());
        page.push('\n');
    }
    page
}
