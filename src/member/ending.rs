//! Reads why etcd ended: the last fatal line of its log, or what Go wrote to standard error.
//!
//! Nothing else counts. At other levels, etcd reports in the same words what it has repaired by itself,
//! and clients' data may contain any words.

use std::io::{BufRead, Read as _};

use serde::Deserialize;

use crate::diagnosis::{self, Diagnosis};

/// The most bytes of a line of etcd's log that are read.
const LINE_BYTES_MAX: u64 = 64 * 1024;
/// etcd logs this once it serves (3.5, 3.6 and 3.7).
const SERVES: &str = "ready to serve client requests";
/// etcd logs this once it has cut a torn end off its write-ahead log (3.5, 3.6 and 3.7).
const REPAIRED: &str = "repaired WAL";
/// How Go's report of a crash begins.
const CRASHES: [&str; 5] = [
    "panic: ",
    "fatal error: ",
    "unexpected fault address",
    "runtime: ",
    "SIG",
];

/// What etcd logged in one start.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    /// It logged that it serves.
    pub(super) served: bool,
    /// Its last fatal message.
    pub(super) fatal: Option<String>,
    /// Go's report of a crash.
    pub(super) crash: Option<String>,
}

/// The parsed part of a line of etcd's log.
#[derive(Deserialize)]
struct Line {
    level: String,
    #[serde(default)]
    msg: String,
    #[serde(default)]
    error: Option<serde_json::Value>,
}

impl Line {
    fn words(&self) -> String {
        match &self.error {
            Some(serde_json::Value::String(error)) => format!("{}: {error}", self.msg),
            _ => self.msg.clone(),
        }
    }

    /// Whether etcd ends after a line of this level.
    fn is_fatal(&self) -> bool {
        matches!(self.level.as_str(), "fatal" | "panic" | "dpanic")
    }
}

impl Said {
    /// Reads what a start left in the log and on standard error.
    pub(super) fn read(mut log: impl BufRead, stderr: &str) -> Said {
        let mut said = Said::default();
        let mut line = Vec::new();
        loop {
            line.clear();
            match (&mut log).take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
                Ok(count) if count > 0 => said.line(&line),
                _ => break,
            }
        }
        said.crash = crash(stderr);
        if !said.served && said.fatal.is_none() && said.crash.is_none() {
            said.fatal = refusal(stderr);
        }
        said
    }

    fn line(&mut self, line: &[u8]) {
        let has = |text: &str| line.windows(text.len()).any(|it| it == text.as_bytes());
        // Parsing is expensive, and most lines contain none of these.
        if ![SERVES, REPAIRED, "fatal", "panic"].into_iter().any(has) {
            return;
        }
        let Ok(line) = serde_json::from_slice::<Line>(line) else {
            return;
        };
        if line.is_fatal() {
            self.fatal = Some(line.words());
        } else if line.msg == SERVES {
            (self.served, self.fatal) = (true, None);
        } else if line.msg == REPAIRED {
            self.fatal = None;
        }
    }

    /// The known meaning of the message. The log names the cause; a crash often names only its place.
    pub(super) fn diagnosis(&self) -> Option<&'static Diagnosis> {
        let mut words = self.fatal.iter().chain(&self.crash);
        words.find_map(|it| diagnosis::diagnose(it))
    }

    /// The message itself.
    pub(super) fn words(&self) -> Option<&str> {
        self.fatal.as_deref().or(self.crash.as_deref())
    }
}

/// The report of a crash up to its first stack: stacks name functions, not causes.
fn crash(stderr: &str) -> Option<String> {
    let begins = |it: &&str| CRASHES.iter().any(|crash| it.starts_with(crash));
    let mut lines = stderr.lines().skip_while(|it| !begins(it)).peekable();
    lines.peek()?;
    let head: Vec<&str> = lines
        .take_while(|it| !it.starts_with("goroutine "))
        .filter(|it| !it.trim().is_empty())
        .collect();
    Some(head.join(" "))
}

/// Why etcd ended before it had set up its log, for example because of a wrong option.
fn refusal(stderr: &str) -> Option<String> {
    let mut words = None;
    for line in stderr.lines().filter(|it| !it.trim().is_empty()) {
        match serde_json::from_str::<Line>(line) {
            Ok(line) if line.level == "info" || line.level == "debug" => {}
            Ok(line) => words = Some(line.words()),
            // Only the first such line counts: a list of all options follows it.
            Err(_) if words.is_none() => words = Some(line.to_owned()),
            Err(_) => {}
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::DIAGNOSES;

    fn line(level: &str, msg: &str, error: &str) -> String {
        format!(
            "{{\"level\":\"{level}\",\"ts\":\"2026-11-22T10:59:49Z\",\"caller\":\"a/b.go:1\",\
             \"msg\":\"{msg}\",\"error\":\"{error}\",\"stacktrace\":\"freepages\"}}\n"
        )
    }

    fn read(log: &str, stderr: &str) -> Said {
        Said::read(log.as_bytes(), stderr)
    }

    const LEVELS: [&str; 8] = [
        "debug", "info", "warn", "error", "dpanic", "panic", "fatal", "strange",
    ];

    /// Every text of the table at every level, and as data, in the log of an etcd that serves, and of
    /// one that was killed before: none of them is its end.
    #[test]
    fn no_text_in_the_log_of_a_healthy_start_says_anything() {
        for row in DIAGNOSES {
            for level in LEVELS {
                let told = line(level, row.text, row.text);
                for sign in [SERVES, REPAIRED] {
                    let log = format!("{told}{}{}", line("info", sign, ""), line("info", "x", ""));
                    let said = read(&log, "");
                    assert_eq!(said.diagnosis(), None, "{level} {}", row.text);
                    assert_eq!(said.served, sign == SERVES);
                    assert_eq!(said.words(), None);
                }
                let is_fatal = ["dpanic", "panic", "fatal"].contains(&level);
                let said = read(&told, "");
                assert_eq!(said.diagnosis().is_some(), is_fatal, "{level} {}", row.text);
                let after = format!("{}{told}", line("info", SERVES, ""));
                assert_eq!(read(&after, "").diagnosis().is_some(), is_fatal);
            }
            // As a client's data, with a fatal level in it.
            let data = format!(
                "{{\\\"level\\\":\\\"fatal\\\",\\\"msg\\\":\\\"{}\\\"}}",
                row.text
            );
            let said = read(&line("info", "put", &data), "");
            assert_eq!(said.diagnosis(), None, "{}", row.text);
            // Beside an etcd that served, standard error counts from a crash on.
            let ready = line("info", SERVES, "");
            assert_eq!(read(&ready, &format!("note: {}\n", row.text)).words(), None);
        }
    }

    #[test]
    fn the_last_fatal_line_counts_and_in_it_the_last_cause() {
        let log = line("fatal", "failed to open WAL", "crc mismatch")
            + &line(
                "fatal",
                "failed to recover v3 backend from snapshot",
                "write: no space left on device",
            );
        let said = read(&log, "");
        assert_eq!(said.diagnosis().unwrap().reason, diagnosis::DISK_FULL);
        let unknown = read(&line("fatal", "a new failure", "of some kind"), "");
        assert_eq!(unknown.diagnosis(), None);
        assert_eq!(unknown.words(), Some("a new failure: of some kind"));
    }

    #[test]
    fn a_crash_is_read_from_standard_error_without_its_stacks() {
        let stderr = "unexpected fault address 0x7f\nfatal error: fault\n[signal SIGBUS]\n\n\
            goroutine 1 [running]:\ngo.etcd.io/bbolt.(*DB).freepages()\n";
        let said = read("", stderr);
        assert_eq!(said.diagnosis().unwrap().text, "unexpected fault address");
        let said = read(
            "",
            "panic: cannot use none as id\n\ngoroutine 1 [running]:\nfreepages\n",
        );
        assert_eq!(said.diagnosis(), None);
        assert_eq!(said.words(), Some("panic: cannot use none as id"));
        let log = line("panic", "failed to open database", "invalid database");
        let said = read(&log, "panic: failed to open database\n\ngoroutine 1\n");
        assert_eq!(said.diagnosis().unwrap().text, "invalid database");
    }

    #[test]
    fn a_refused_configuration_is_read_from_standard_error() {
        let stderr = line("info", "Running", "") + &line("warn", "failed to verify flags", "yaml");
        let said = read("", &stderr);
        assert_eq!(said.diagnosis().unwrap().text, "failed to verify flags");
        let said = read("", "flag provided but not defined: -x\nUsage:\n  etcd\n");
        assert_eq!(
            said.diagnosis().unwrap().text,
            "flag provided but not defined"
        );
        assert_eq!(read("", "").words(), None);
    }
}
