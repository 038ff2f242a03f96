//! `restore --undo`: what the last restore set aside comes back, and what it brought goes aside.

use std::fmt::Write as _;

use serde::Serialize;

use super::super::print::{self, Output};
use super::super::{Context, Failure, HELD, RestoreArgs, runtime};
use super::{former, live_revision, request};
use crate::backup::restore;
use crate::cli::env::client_url;
use crate::member::place::HostPlace;
use crate::member::records::revisions_lost;
use crate::member::restore_record::{self, Aside, LostIs, RestoreRecord, SourceFile};

/// What taking it back would do.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Proposal {
    /// The directory that comes back.
    directory: String,
    /// The last revision that was seen there.
    revision: Option<i64>,
    /// What the restore had lost.
    revisions_back: Option<i64>,
    live_revision: Option<i64>,
    /// What was written since the restore.
    revisions_lost: Option<i64>,
    lost_is: LostIs,
    steps: [&'static str; 4],
}

const STEPS: [&str; 4] = [
    "read the data that was set aside; damaged data does not come back",
    "stop etcd, set the present data aside (it is kept)",
    "put the old data in its place, with its cluster id and its revisions, which are lower: restart clients that watch or cache (k3s: systemctl restart k3s)",
    "start etcd, read and write; if it does not serve, put the present data back",
];

/// What shall be done; none where it was only to be shown.
pub(super) fn choose(
    context: &Context,
    place: &HostPlace,
    arguments: &RestoreArgs,
) -> Result<Option<RestoreRecord>, Failure> {
    let nothing = |text: &str| Failure::new(HELD, format!("nothing is undone: {text}"));
    let last = restore_record::last_report(&context.paths).and_then(|it| it.aside);
    let aside = last.ok_or_else(|| nothing("no restore has set data aside here"))?;
    let former = former(context, place)?;
    let former = former.ok_or_else(|| nothing("no cluster exists here"))?;
    let mut next = aside.identity.clone();
    next.member.machine_id.clone_from(&former.member.machine_id);
    let since = former.cluster.jumps.last().map(|it| it.from);
    let file = SourceFile {
        path: place.storage_dir.join(&aside.directory),
        name: aside.directory.clone(),
        // Where nobody has seen it: the data reached at least to the snapshot.
        revision: aside.revision.or(since).unwrap_or(0),
        cluster_id: next.cluster.id.clone(),
        database: 0,
        checksummed: false,
        sha256: None,
        hash: None,
    };
    let live = runtime()?.block_on(live_revision(context, &client_url(context, place)));
    let record = RestoreRecord {
        next: Some(next),
        takes_back: Some(aside.directory.clone()),
        ..request(context, &place.storage_dir, &file, live, Some(former))
    };
    let proposal = propose(aside, &record, since);
    if arguments.dry_run || !arguments.yes {
        restore::check_aside(&record, &place.storage_dir, &context.paths.store())?;
    }
    if arguments.dry_run {
        match arguments.output {
            Output::Table => print::text(&lines(&proposal))?,
            other => print::value(other, &proposal)?,
        }
        return Ok(None);
    }
    if !arguments.yes && !print::confirmed(&format!("{}undo?", lines(&proposal)))? {
        let text = "say --yes to do it; --dry-run shows what would be done";
        return Err(nothing(text));
    }
    Ok(Some(record))
}

fn propose(aside: Aside, record: &RestoreRecord, since: Option<i64>) -> Proposal {
    let (lost, lost_is) = record.loss();
    let back = aside.revision.zip(since);
    let jumps = &aside.identity.cluster.jumps;
    Proposal {
        revisions_back: back.map(|(seen, snapshot)| revisions_lost(seen, snapshot, jumps)),
        directory: aside.directory,
        revision: aside.revision,
        live_revision: record.live_revision.max(record.live_at_most),
        revisions_lost: lost,
        lost_is,
        steps: STEPS,
    }
}

fn lines(it: &Proposal) -> String {
    let number = |it: Option<i64>| it.map_or_else(|| "unknown".to_owned(), |it| it.to_string());
    let words = |it, is| restore_record::lost_words(it, is);
    let mut text = format!(
        "data       {}\n           revision {}\nlive data  revision {}\ncomes back {}\nset aside  {}\n",
        it.directory,
        number(it.revision),
        number(it.live_revision),
        words(it.revisions_back, LostIs::Exactly),
        words(it.revisions_lost, it.lost_is),
    );
    for (number, step) in (1..).zip(it.steps) {
        let _ = writeln!(text, "step {number}     {step}");
    }
    text
}
