//! What a restore would do, for whoever decides.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::origin::Origin;
use crate::backup::restore;
use crate::backup::source::Found;
use crate::backup::verify::not_in_a_database;
use crate::cli::Context;
use crate::cli::places::trusted_now;
use crate::cli::print::{self, Output, bytes};
use crate::clock::parse_rfc3339;
use crate::disk;
use crate::member::records;
use crate::member::restore_record::{self, LostIs, RestoreRecord, SourceFile};

/// What a restore would do.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Proposal {
    snapshot: String,
    file: PathBuf,
    snapshot_revision: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    age_seconds: Option<i64>,
    /// None where it is not known.
    live_revision: Option<i64>,
    /// What is there now and would not be any more.
    revisions_lost: Option<i64>,
    /// What kind of number that is.
    lost_is: LostIs,
    /// What may not be in the snapshot, of what it was taken from.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_in_it: Option<String>,
    needed_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    free_bytes: Option<u64>,
    #[serde(flatten)]
    pub(super) origin: Origin,
    steps: Vec<String>,
}

pub(super) fn propose(
    context: &Context,
    storage_dir: &Path,
    found: &Found,
    record: &RestoreRecord,
    origin: Origin,
) -> Proposal {
    let former = record.former.as_ref();
    let (revisions_lost, lost_is) = record.loss();
    let created = found.created.as_deref().and_then(parse_rfc3339);
    let age = created.and_then(|it| Some(trusted_now(context)?.seconds_since(it)));
    let aside = if former.is_some() {
        format!(
            "stop etcd, rename {} aside (it is kept)",
            records::data_dir(storage_dir).display()
        )
    } else {
        "create the cluster with this data".to_owned()
    };
    Proposal {
        snapshot: found.file.name.clone(),
        file: found.file.path.clone(),
        snapshot_revision: found.file.revision,
        created: found.created.clone(),
        age_seconds: age,
        live_revision: record.live_revision.max(record.live_at_most),
        revisions_lost,
        lost_is,
        not_in_it: not_in_it(&found.file),
        needed_bytes: restore::needed(found.file.database),
        free_bytes: disk::free_bytes(storage_dir),
        origin,
        steps: vec![
            "verify the snapshot again and make new data from it beside the old data, with a new cluster id"
                .to_owned(),
            aside,
            "put the new data in its place; revisions go on 1,000,000,000 beyond the last one seen"
                .to_owned(),
            "start etcd, read and write; if it does not serve, put the old data back".to_owned(),
        ],
    }
}

pub(super) fn not_in_it(file: &SourceFile) -> Option<String> {
    (!file.checksummed).then(|| not_in_a_database(&file.path))
}

pub(super) fn lines(it: &Proposal) -> String {
    let unknown = || "unknown (etcd does not answer)".to_owned();
    let age = it.age_seconds.map_or_else(String::new, |age| {
        format!(", {} h {} min old", age / 3600, age % 3600 / 60)
    });
    let mut text = format!(
        "snapshot   {}\n           revision {}, taken {}{age}\n{}live data  revision {}\nlost       {}\n{}space      {} needed, {} free\n",
        it.snapshot,
        it.snapshot_revision,
        it.created.as_deref().unwrap_or("at an unknown time"),
        it.origin.lines(),
        it.live_revision.map_or_else(unknown, |it| it.to_string()),
        it.revisions_lost.map_or_else(unknown, |lost| {
            restore_record::lost_words(Some(lost), it.lost_is)
        }),
        it.not_in_it
            .as_ref()
            .map_or_else(String::new, |text| format!("not in it  {text}\n")),
        bytes(it.needed_bytes),
        it.free_bytes.map_or_else(|| "?".to_owned(), bytes),
    );
    for (number, step) in (1..).zip(&it.steps) {
        let _ = writeln!(text, "step {number}     {step}");
    }
    text
}

pub(super) fn show(output: Output, proposal: &Proposal) -> std::io::Result<()> {
    match output {
        Output::Table => print::text(&lines(proposal)),
        other => print::value(other, proposal),
    }
}
