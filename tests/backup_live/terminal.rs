//! What a person sees of long work, and a log of it.

use std::process::{Command, Output, Stdio};

use crate::lab::{program, skip, text};
use crate::stage::Stage;

fn on_a_terminal(arguments: &[&str]) -> Output {
    // A terminal of 100 columns, by util-linux' script.
    let quoted: Vec<String> = arguments.iter().map(|it| format!("'{it}'")).collect();
    let line = format!(
        "stty cols 100; exec '{}' {}",
        program().display(),
        quoted.join(" ")
    );
    Command::new("script")
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn a_terminal_shows_bytes_rate_and_time_left_and_a_pipe_none_of_it() {
    let stage = Stage::new("3.6");
    // Large enough for the bar to be drawn more than once.
    stage.fill("key", 96, 1 << 20);
    let (file, _) = stage.saved();
    let arguments = ["verify-snapshot", file.to_str().unwrap()];
    if Command::new("script").arg("--version").output().is_err() {
        return skip("a terminal is made by script, of bsdutils");
    }
    let seen = on_a_terminal(&arguments);
    let words = text(&seen.stdout);
    assert!(seen.status.success(), "{words}");
    let drawn: Vec<&str> = words.split('\r').filter(|it| it.contains("MiB/")).collect();
    let last = drawn.last().unwrap_or_else(|| panic!("no bar: {words:?}"));
    for part in ["walking", "MiB/s"] {
        assert!(
            drawn.iter().any(|it| it.contains(part)),
            "{part}: {drawn:?}"
        );
    }
    // Bytes of bytes, bytes a second, seconds: the template's three.
    let numbers = last.split_whitespace().collect::<Vec<_>>();
    assert!(
        numbers
            .iter()
            .any(|it| it.ends_with('s') && it.starts_with(|it: char| it.is_ascii_digit())),
        "time left: {last:?}"
    );
    assert!(words.contains("\u{1b}[2K"), "it is cleared: {words:?}");
    // The result stands alone in the end.
    assert!(words.trim_end().ends_with("fits"), "{words:?}");
    let piped = Command::new(program()).args(arguments).output().unwrap();
    assert!(piped.status.success());
    let stderr = text(&piped.stderr);
    assert!(
        !stderr.contains('\r') && !stderr.contains('\u{1b}'),
        "{stderr:?}"
    );
    assert!(!text(&piped.stdout).contains('\u{1b}'));
}
