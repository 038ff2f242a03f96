//! No input panics the parser, and each refusal says something. `FUZZ_RUNS` raises the count;
//! `FUZZ_SEED` begins elsewhere.

use std::panic::catch_unwind;

use etcd_operator::document::v1beta2::convert;
use etcd_operator::document::{PROBLEMS_MAX, Schema, parse_against, to_yaml};

use super::good::{EXAMPLE, EXPORT, LARGEST};
use super::old::one_of_each;
use super::random::Random;

const TOKENS: &[&str] = &[
    "\n",
    "\n\n",
    " ",
    "  ",
    "\t",
    "\r",
    ":",
    ": ",
    "- ",
    "-",
    "? ",
    ", ",
    "[",
    "]",
    "{",
    "}",
    "#",
    "&a ",
    "*a",
    "<<: *a",
    "!!str ",
    "!!int ",
    "!!binary ",
    "!foo ",
    "! ",
    "|",
    ">",
    "|2-\n",
    "'",
    "\"",
    "\\",
    "\\x41",
    "\\uD800",
    "%",
    "%YAML 1.2\n",
    "@",
    "`",
    "---",
    "\n---\n",
    "\n...\n",
    "~",
    "null",
    "true",
    "no",
    "off",
    ".nan",
    "-.inf",
    "1e999",
    "0x7f",
    "0o17",
    "1_000",
    "-1",
    "0",
    "1",
    "2",
    "3",
    "9",
    "3.6",
    "3.6.14",
    "99999999999999999999",
    "170141183460469231731687303715884105728",
    "2026-01-01",
    "512Mi",
    "::1",
    "\u{feff}",
    "\0",
    "\u{85}",
    "\u{2028}",
    "é",
    "😀",
    "spec",
    "size",
    "metadata",
    "name",
    "clients",
    "network",
    "clientPort",
    "options",
    "storage",
    "quota",
    "backup",
    "destinations",
    "local",
    "path",
    "hosts",
    "pod",
    "labels",
    "status",
    "apiVersion",
    "kind",
];

pub(crate) fn mutate(random: &mut Random, corpus: &[&str]) -> Vec<u8> {
    let mut bytes = random.pick(corpus).as_bytes().to_vec();
    for _ in 0..=random.below(6) {
        let at = random.below(bytes.len() + 1);
        let end = (at + random.below(40)).min(bytes.len());
        match random.below(8) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 => bytes.truncate(at),
            2 => drop(bytes.drain(at..end)),
            3 => {
                let from = random.pick(corpus).as_bytes();
                let start = random.below(from.len());
                let length = random.below(200).min(from.len() - start);
                bytes
                    .splice(at..end, from[start..start + length].iter().copied())
                    .for_each(drop);
            }
            4 => {
                let piece = bytes[at..end].to_vec();
                let to = random.below(bytes.len() + 1);
                bytes.splice(to..to, piece).for_each(drop);
            }
            // A value, a key or another token gives way to one of the list.
            5 | 6 => {
                let token = random.pick(TOKENS);
                let stop = |it: &u8| b" :,\n[]{}".contains(it);
                let from = bytes[..at].iter().rposition(stop).map_or(0, |it| it + 1);
                let to = bytes[at..]
                    .iter()
                    .position(stop)
                    .map_or(bytes.len(), |it| at + it);
                bytes.splice(from..to, token.bytes()).for_each(drop);
            }
            _ => {
                let token = random.pick(TOKENS).repeat(1 + random.below(3));
                bytes.splice(at..at, token.bytes()).for_each(drop);
            }
        }
    }
    bytes
}

/// `Ok` with whether the document was accepted.
fn judge(schema: &Schema, bytes: &[u8]) -> Result<bool, String> {
    let Err(problems) = parse_against(schema, bytes) else {
        return Ok(true);
    };
    // YAML breaks lines at CR, LF and both; the end may stand on a line of its own.
    let breaks = bytes
        .iter()
        .filter(|it| **it == b'\n' || **it == b'\r')
        .count();
    let lines = u64::try_from(breaks).unwrap() + 1;
    if problems.0.is_empty() || problems.0.len() > PROBLEMS_MAX + 1 {
        return Err(format!("{} problems", problems.0.len()));
    }
    for it in &problems.0 {
        if it.message.trim().is_empty() || it.message.chars().any(char::is_control) {
            return Err(format!("the message {:?}", it.message));
        }
        if it.path.chars().any(char::is_control) || it.path.len() > 1000 {
            return Err(format!("the path {:?}", it.path));
        }
        if it.line > lines {
            return Err(format!("line {} of {lines}: {it}", it.line));
        }
    }
    Ok(false)
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |it| it.parse().unwrap())
}

#[test]
fn no_input_panics_the_parser() {
    let (first, runs) = (number("FUZZ_SEED", 0), number("FUZZ_RUNS", 20_000));
    let threads = 2;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                let schema = Schema::load();
                let mut seen = [0_u64, 0];
                for seed in (first + thread..first + runs).step_by(2) {
                    let bytes = mutate(&mut Random(seed), &[EXAMPLE, LARGEST, EXPORT]);
                    let schema = std::panic::AssertUnwindSafe(&schema);
                    match catch_unwind(|| judge(*schema, &bytes)) {
                        Ok(Ok(accepted)) => seen[usize::from(accepted)] += 1,
                        failure => panic!(
                            "FUZZ_SEED={seed} FUZZ_RUNS=1: {failure:?}\n{}",
                            String::from_utf8_lossy(&bytes)
                        ),
                    }
                }
                assert!(
                    runs < 1000 || seen.iter().all(|it| it * 50 > runs),
                    "{seen:?}"
                );
            });
        }
    });
}

#[test]
fn no_input_panics_the_conversion_and_no_row_has_a_control_character() {
    let mut rows = 0;
    for seed in 0..3_000 {
        let mut random = Random(seed);
        let text = one_of_each(&mut random).map(|it| to_yaml(&it).unwrap());
        let text = text.join("---\n");
        let bytes = mutate(&mut random, &[&text]);
        let Ok(Ok(it)) = std::str::from_utf8(&bytes).map(convert) else {
            continue;
        };
        for row in &it.report {
            let row = row.to_string();
            assert!(!row.chars().any(char::is_control), "{seed}: {row:?}");
            rows += 1;
        }
    }
    assert!(rows > 5_000, "{rows}");
}
