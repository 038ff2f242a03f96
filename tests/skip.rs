//! What a machine cannot run is counted, with its reason. Under `CI=1` it fails.
//!
//! `tests/run.sh` empties `target/skipped` first and lists it last.

use std::io::Write as _;
use std::path::Path;

/// Notes that the test that calls it does not run. The caller returns.
///
/// # Panics
/// Under `CI`: there everything is installed, so a skip is a failure of the set-up.
#[track_caller]
pub fn skip(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "CI skips nothing: {why}");
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("?");
    let suite = std::env::args().next().unwrap_or_default();
    let suite = Path::new(&suite).file_name().unwrap_or_default();
    let suite = suite.to_string_lossy();
    // Cargo adds a hash.
    let suite = suite.rsplit_once('-').map_or(&*suite, |(name, _)| name);
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/skipped");
    let line = format!("{suite}::{test}: {why}\n");
    let file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(list);
    file.and_then(|mut it| it.write_all(line.as_bytes()))
        .expect("target/skipped cannot be written");
    eprintln!("skipped: {line}");
}
