//! `restore clean`: what restores and interrupted births set aside goes, by a person's word alone.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde::Serialize;

use super::super::print::bytes;
use super::super::print::{self, Output};
use super::super::{CleanArgs, Context, DONE, Failure, HELD, Outcome};
use super::under_way;
use crate::agent::{Leftover, leftovers};
use crate::etcd::data_dir;
use crate::member::place;
use crate::member::records;
use crate::member::restore_record::RestoreRecord;
use crate::start::Completeness;
use crate::state;

/// One directory, and whether it is there no more.
#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    leftover: Leftover,
    removed: bool,
}

pub(super) fn clean(context: &Context, arguments: &CleanArgs) -> Outcome {
    let spec = context.document()?;
    let storage_dir = place::resolve(&context.paths, &spec).storage_dir;
    // What a restore sets aside after this look has a name that is not in it.
    let found = leftovers(&storage_dir);
    if RestoreRecord::load(&context.paths)?.is_some() {
        return Err(under_way());
    }
    if found.is_empty() || arguments.dry_run {
        tell(arguments.output, found, false)?;
        return Ok(DONE);
    }
    let data = data_dir::look(&records::data_dir(&storage_dir), None, false);
    if data.unreadable.is_some() || data.completeness() != Completeness::Complete {
        let text = format!(
            "nothing was removed: the data in {} is incomplete, and the data set aside may be all that is left",
            storage_dir.display()
        );
        return Err(Failure::new(HELD, text));
    }
    if !arguments.yes && !print::confirmed(&format!("{}remove?", lines(&found)))? {
        let text = "nothing was removed: say --yes to remove it; --dry-run lists it";
        return Err(Failure::new(HELD, text));
    }
    for it in &found {
        // Minutes may lie between the look and the yes.
        if RestoreRecord::load(&context.paths)?.is_some() {
            return Err(under_way());
        }
        fs::remove_dir_all(Path::new(&it.path))?;
    }
    state::sync_dir(&storage_dir)?;
    tell(arguments.output, found, true)?;
    Ok(DONE)
}

fn lines(found: &[Leftover]) -> String {
    let mut text = String::new();
    for it in found {
        let _ = writeln!(text, "{}  {}", bytes(it.bytes), it.path);
    }
    text
}

fn tell(output: Output, found: Vec<Leftover>, removed: bool) -> std::io::Result<()> {
    if output != Output::Table {
        let rows = found.into_iter();
        let rows: Vec<Row> = rows.map(|leftover| Row { leftover, removed }).collect();
        return print::value(output, &rows);
    }
    let sum = bytes(found.iter().map(|it| it.bytes).sum());
    let last = match (found.is_empty(), removed) {
        (true, _) => "nothing was set aside\n".to_owned(),
        (false, true) => format!("removed, {sum}\n"),
        (false, false) => format!("{sum} would be removed\n"),
    };
    print::text(&format!("{}{last}", lines(&found)))
}
