//! `convert`: the documents of the first operator as ours.

use std::io::Read as _;
use std::path::Path;

use super::{DONE, Failure, HELD, Outcome, USAGE, print};
use crate::document::{SIZE_MAX, line, to_yaml, v1beta2};

pub(super) fn convert(file: &Path) -> Outcome {
    let is_stdin = file == Path::new("-");
    let mut text = String::new();
    let read = if is_stdin {
        std::io::stdin()
            .take(SIZE_MAX + 1)
            .read_to_string(&mut text)
    } else {
        let opened = std::fs::File::open(file);
        opened.and_then(|it| it.take(SIZE_MAX + 1).read_to_string(&mut text))
    };
    let name = if is_stdin { Path::new("stdin") } else { file };
    let refused = |problem: &dyn std::fmt::Display| Failure::new(USAGE, line(name, problem));
    read.map_err(|error| refused(&error))?;
    let converted = v1beta2::convert(&text).map_err(|it| refused(&it))?;
    let texts: Result<Vec<String>, _> = converted.documents.iter().map(to_yaml).collect();
    print::text(&texts?.join("---\n"))?;
    for it in &converted.report {
        eprintln!("{}", line(name, it));
    }
    Ok(if converted.is_open() { HELD } else { DONE })
}
