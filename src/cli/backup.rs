//! `backup`: its commands, and what they have in common.

mod delete;
mod list;
mod prune;

use std::fmt::Write as _;

use serde::Serialize;

use super::desk::Desk;
use super::places::{
    Kind, Site, lock, nowhere, pick, pick_name, pick_remote, primary, sites, trusted_now,
};
use super::print::{self, Output, bytes};
use super::progress::Display;
use super::{BackupArgs, BackupCommand, Context, DONE, FAILED, Failure, Outcome, USAGE, runtime};
use crate::agent::socket::{Request as Question, ask};
use crate::api::formats::seconds;
use crate::backup::age::Ages;
use crate::backup::create::{self, Created};
use crate::backup::local::Entry;
use crate::backup::manifest::{Class, Manifest};
use crate::backup::name::SnapshotName;
use crate::backup::place::{self, Work};
use crate::backup::prune::Ours;
use crate::backup::trust::Trust;
use crate::backup::{copy, prune as retention, work};
use crate::error::chain;
use crate::spec::ClusterSpec;

use list::{Row, print_rows, row};

pub(super) fn backup(context: &Context, arguments: &BackupArgs) -> Outcome {
    let command = &arguments.command;
    if let Some(desk) = Desk::of(&arguments.cluster)? {
        return desk.in_worker(std::env::args_os());
    }
    match command {
        BackupCommand::Worker => super::pod::worker(context),
        BackupCommand::Create { ttl, output } => create(context, ttl.as_deref(), *output),
        BackupCommand::List { at, output } => list::list(context, at.as_deref(), *output),
        BackupCommand::Show { name, at, output } => {
            list::show(context, name, at.as_deref(), *output)
        }
        BackupCommand::Delete(it) => delete::delete(context, it),
        BackupCommand::Verify {
            name,
            level,
            at,
            output,
        } => super::verify::verify(context, name.as_deref(), *level, at.as_deref(), *output),
        BackupCommand::Copy(it) => copy(context, it.output),
        BackupCommand::Prune {
            dry_run,
            at,
            output,
        } => prune::prune(context, *dry_run, at.as_deref(), *output),
    }
}

fn create(context: &Context, ttl: Option<&str>, output: Output) -> Outcome {
    #[derive(Serialize)]
    struct Answer {
        result: &'static str,
        snapshot: Row,
    }
    let (spec, store) = primary(context)?;
    let ttl = match ttl {
        Some(text) => Some(seconds(text).ok_or_else(|| {
            let text = format!("--ttl {text}: allowed is a time span such as 30m, 24h or 7d");
            Failure::new(USAGE, text)
        })?),
        None => None,
    };
    let lock = lock(context, Work::Local)?;
    place::prepare(&context.paths, &store)?;
    let identity = context.identity(&spec)?.ok_or_else(|| {
        let text = "there is no cluster here yet: start etcd-operator agent first";
        Failure::new(FAILED, text)
    })?;
    let entries = store.list()?;
    let (url, files) = context.etcd(&spec)?;
    let request = create::Request {
        url: &url,
        files: &files,
        signer: context.certificates().sound_signer()?,
        cluster: &spec.name,
        member: &identity.member.name,
        store: &store,
        class: Class::OnDemand,
        ttl,
        now: trusted_now(context),
        quota: identity.member.quota,
        entries: &entries,
    };
    let runtime = runtime()?;
    let mut display = Display::new();
    let created = runtime.block_on(create::create(&request, &mut |it| display.show(it)));
    drop(display);
    let saved = created.is_ok() || work::lacks_room(&created);
    place::note_save(&context.paths, saved);
    let created = created.map_err(|error| refused(context, error))?;
    place::mark_used(&context.paths, &store)?;
    // Where no schedule takes any, nobody else removes what has outlived its time.
    let ages = Ages::new(request.now);
    let ours = ours(context, &spec)?;
    for name in retention::remove_outlived(&store, &ours, &ages)? {
        eprintln!("etcd-operator: removed {name}, which is older than its --ttl");
    }
    drop(lock);
    // The agent sees it, and copies it.
    let _ = runtime.block_on(ask(&context.paths.socket(), &Question::Status));
    let (result, manifest) = match created {
        Created::Saved(it) => ("saved", it),
        Created::Unchanged(it) => ("unchanged", it),
    };
    let entry = entry(&manifest)?;
    let row = row(&entry, &store.path().display().to_string(), &ages);
    if output == Output::Table {
        if result == "unchanged" {
            print::text("nothing was written to etcd since this snapshot:\n")?;
        }
        print_rows(&[row])?;
    } else {
        let answer = Answer {
            result,
            snapshot: row,
        };
        print::value(output, &answer)?;
    }
    Ok(DONE)
}

/// Why no snapshot was taken: where etcd does not serve, its hold says more than the connection.
fn refused(context: &Context, error: create::CreateError) -> Failure {
    if !matches!(error, create::CreateError::Etcd { .. }) || context.worker.is_some() {
        return error.into();
    }
    let Ok(report) = super::show::report(context) else {
        return error.into();
    };
    let mut conditions = report.status.conditions.iter();
    let Some(available) = conditions.find(|it| it.type_ == "Available" && it.status != "True")
    else {
        return error.into();
    };
    let mut text = format!(
        "{}; etcd does not serve: {}: {}",
        chain(&error),
        available.reason,
        available.message
    );
    if let Some(next) = &report.status.plan.next_step {
        let _ = write!(text, "; next: {next}");
    }
    Failure::new(FAILED, text)
}

fn entry(manifest: &Manifest) -> Result<Entry, Failure> {
    Ok(Entry {
        name: manifest.name.parse::<SnapshotName>()?,
        manifest: Ok(manifest.clone()),
        size: Some(manifest.file.size),
    })
}

/// Copies what waits, and says what is left.
fn copy(context: &Context, output: Output) -> Outcome {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Answer {
        copied: u32,
        queued: u32,
        queued_bytes: u64,
    }
    let (spec, store) = primary(context)?;
    let _lock = lock(context, Work::Copies)?;
    let ours = ours(context, &spec)?;
    let now = trusted_now(context);
    let ages = Ages::new(now);
    let queue = |entries: &[Entry]| copy::queue(&context.paths, &spec, entries, &ours, &ages);
    let before = queue(&store.list()?);
    let mut display = Display::new();
    let copied = runtime()?.block_on(copy::run(&context.paths, &spec, &ours, now, &mut |it| {
        display.show(it);
    }));
    drop(display);
    let after = queue(&store.list()?);
    let answer = Answer {
        copied: before.0.saturating_sub(after.0),
        queued: after.0,
        queued_bytes: after.1,
    };
    if output == Output::Table {
        let (copied, queued) = (answer.copied, answer.queued);
        print::text(&format!("{copied} copied, {queued} wait\n"))?;
    } else {
        print::value(output, &answer)?;
    }
    copied?;
    Ok(DONE)
}

/// The snapshots of the cluster of this host.
fn ours(context: &Context, spec: &ClusterSpec) -> Result<Ours, Failure> {
    let identity = context.identity(spec)?;
    Ok(Ours {
        clusters: identity.map(|it| it.clusters()).unwrap_or_default(),
        trust: Trust::of(&context.certificates(), spec, None),
    })
}
