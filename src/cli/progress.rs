//! Progress of long work: bars on a terminal, plain lines elsewhere, always on stderr.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::backup::{Phase, Progress};
use crate::clock;

/// Between two plain lines.
const LINE_EVERY: Duration = Duration::from_secs(10);
const BAR: &str = "{msg:10} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";

/// Shows how far one piece of work is.
pub(super) struct Display {
    bar: Option<ProgressBar>,
    phase: Option<Phase>,
    told: Duration,
}

impl Display {
    pub(super) fn new() -> Self {
        Display {
            bar: std::io::stderr().is_terminal().then(|| {
                let bar = ProgressBar::no_length();
                bar.set_style(
                    ProgressStyle::with_template(BAR)
                        .unwrap_or_else(|_| ProgressStyle::default_bar()),
                );
                bar
            }),
            phase: None,
            told: clock::since_boot(),
        }
    }

    pub(super) fn show(&mut self, progress: Progress) {
        let new = self.phase != Some(progress.phase);
        if let Some(bar) = &self.bar {
            if new {
                bar.reset();
                bar.set_message(words(progress.phase));
            }
            bar.set_length(progress.total);
            bar.set_position(progress.done);
        } else if clock::since_boot() > self.told + LINE_EVERY {
            self.told = clock::since_boot();
            eprintln!(
                "etcd-operator: {}: {} of {} MiB",
                words(progress.phase),
                progress.done >> 20,
                progress.total >> 20
            );
        }
        self.phase = Some(progress.phase);
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn words(phase: Phase) -> &'static str {
    match phase {
        Phase::Taking => "taking",
        Phase::Hashing => "hashing",
        Phase::Walking => "walking",
        Phase::Copying => "copying",
        Phase::Unpacking => "unpacking",
    }
}
