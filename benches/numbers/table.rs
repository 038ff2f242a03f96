//! One table: figure, ours, what it is compared with, the ratio, what was promised, whether it is kept.

use std::fmt;
use std::path::Path;

/// The directory in which `make bench` collects its tables, if it runs.
const COLLECTED_IN: &str = "ETCD_OPERATOR_FIGURES";

/// A line of the table.
pub struct Row {
    figure: String,
    ours: String,
    other: String,
    ratio: String,
    promised: String,
    kept: Option<bool>,
}

impl Row {
    /// For information: nothing was promised.
    pub fn new(figure: impl Into<String>, ours: impl Into<String>) -> Self {
        Row {
            figure: figure.into(),
            ours: ours.into(),
            other: String::new(),
            ratio: String::new(),
            promised: String::new(),
            kept: None,
        }
    }

    /// What it is compared with, and the ratio of the two; `limit` is the promise on that ratio.
    pub fn against(mut self, other: impl Into<String>, ratio: f64, limit: Option<f64>) -> Self {
        self.other = other.into();
        self.ratio = format!("{ratio:.2}");
        if let Some(limit) = limit {
            self.promised = format!("<= {limit}");
            self.kept = Some(ratio <= limit);
        }
        self
    }

    /// What it stands beside, where a ratio would say nothing.
    pub fn compared(mut self, other: impl Into<String>) -> Self {
        self.other = other.into();
        self
    }

    /// A promise on the figure itself.
    pub fn promised(mut self, words: impl Into<String>, kept: bool) -> Self {
        self.promised = words.into();
        self.kept = Some(kept);
        self
    }

    fn cells(&self) -> [&str; 6] {
        let kept = match self.kept {
            None => "",
            Some(true) => "ok",
            Some(false) => "MISSED",
        };
        [
            &self.figure,
            &self.ours,
            &self.other,
            &self.ratio,
            &self.promised,
            kept,
        ]
    }
}

/// All lines.
#[derive(Default)]
pub struct Table {
    rows: Vec<Row>,
}

impl Table {
    /// Adds lines.
    pub fn extend(&mut self, rows: Vec<Row>) {
        self.rows.extend(rows);
    }

    /// Prints the table, and keeps it for benches/README.md where `make bench` asks for that.
    #[allow(clippy::print_stdout, reason = "the table is the result")]
    pub fn publish(&self, part: &str) {
        if self.rows.is_empty() {
            return;
        }
        println!("{self}");
        if let Some(dir) = std::env::var_os(COLLECTED_IN) {
            let file = Path::new(&dir).join(format!("{part}.md"));
            #[allow(clippy::disallowed_methods, reason = "a bench writes its result")]
            std::fs::write(file, self.markdown()).unwrap();
        }
    }

    fn markdown(&self) -> String {
        let head = "| figure | ours | compared with | ratio | promised |\n|---|---|---|---|---|\n";
        let lines = self.rows.iter().map(|row| {
            let [figure, ours, other, ratio, promised, kept] = row.cells();
            let missed = if kept == "MISSED" { ", **missed**" } else { "" };
            format!("| {figure} | {ours} | {other} | {ratio} | {promised}{missed} |\n")
        });
        std::iter::once(head.to_owned()).chain(lines).collect()
    }
}

const HEAD: [&str; 6] = [
    "FIGURE",
    "OURS",
    "COMPARED WITH",
    "RATIO",
    "PROMISED",
    "KEPT",
];

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut widths = HEAD.map(str::len);
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row.cells()) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for cells in std::iter::once(HEAD).chain(self.rows.iter().map(Row::cells)) {
            let line: Vec<String> = cells
                .iter()
                .zip(widths)
                .map(|(cell, width)| format!("{cell:width$}"))
                .collect();
            writeln!(f, "{}", line.join("  ").trim_end())?;
        }
        Ok(())
    }
}

/// Bytes as MiB.
pub fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / 1_048_576.0)
}

/// Bytes as KiB.
pub fn kib(bytes: f64) -> String {
    format!("{:.1} KiB", bytes / 1024.0)
}
