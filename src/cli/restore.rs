//! `restore`: says what will be lost, asks, and sees it through to its end.

mod clean;
mod origin;
mod proposal;
mod undo;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use origin::Origin;
pub(super) use origin::trust;
use proposal::{lines, not_in_it, propose, show};

use super::env::client_url;
use super::places::trusted_now;
use super::print::{self, Output};
use super::progress::Display;
use super::{
    Context, DONE, FAILED, Failure, HELD, INTERRUPTED, Outcome, RestoreArgs, RestoreCommand,
    runtime,
};
use crate::agent::driver::HostDriver;
use crate::agent::socket::{Reply, Request, ask};
use crate::agent::{self, Agent, AgentError, Locking, Report};
use crate::backup::directory::{self, Links, Parts};
use crate::backup::name::{LATEST, SnapshotName};
use crate::backup::restore::{self, RestoreError};
use crate::backup::served::Served;
use crate::backup::source::{self, Found, Search};
use crate::backup::trust::Trust;
use crate::clock;
use crate::clock::rfc3339;
use crate::etcd::client;
use crate::member::crash::CrashPoint;
use crate::member::pause;
use crate::member::place::{self, HostPlace};
use crate::member::records::{self, IdentityFile, SeenFile};
use crate::member::restore_record::{
    self, Outcome as Ended, Reason, RestoreRecord, RestoreReport, SourceFile,
};
use crate::spec::ClusterSpec;
use crate::tls::Certificates;
use crate::version::{VERSION_AT_BIRTH, Version};

/// Between two questions for how far the agent is: each is a look at etcd, too.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);
/// Between two looks whether the restore has ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);

pub(super) fn restore(context: &Context, arguments: &RestoreArgs) -> Outcome {
    if let Some(RestoreCommand::Clean(it)) = &arguments.command {
        return clean::clean(context, it);
    }
    let spec = context.document()?;
    let place = place::resolve(&context.paths, &spec);
    if RestoreRecord::load(&context.paths)?.is_some() {
        return Err(under_way());
    }
    if spec.size == 0 {
        let text = "the document says size: 0, and a restore ends when etcd serves: set size: 1 to restore";
        return Err(Failure::new(HELD, text));
    }
    if spec.paused {
        let text = "the document sets paused: true; to restore, set paused: false";
        return Err(Failure::new(HELD, text));
    }
    if pause::load(&context.paths).is_some() {
        let text = "the operator is paused: etcd-operator resume, then restore";
        return Err(Failure::new(HELD, text));
    }
    let chosen = if arguments.undo {
        undo::choose(context, &place, arguments)
    } else {
        choose(context, &spec, &place, arguments)
    };
    let record = match chosen {
        Ok(Some(record)) => record,
        // Nothing will use what was brought here.
        other => {
            source::forget_fetched(&context.paths);
            return other.map(|_| DONE);
        }
    };
    let report = carry_out(context, &spec, &record)?;
    tell(arguments.output, &report)
}

/// What shall be done; none where it was only to be shown.
fn choose(
    context: &Context,
    spec: &ClusterSpec,
    place: &HostPlace,
    arguments: &RestoreArgs,
) -> Result<Option<RestoreRecord>, Failure> {
    let former = former(context, place)?;
    let trust = trust(context, spec, arguments);
    let by_person = (former.as_ref(), &trust, true);
    let found = find(context, spec, arguments, by_person, None);
    let mut found = runtime()?.block_on(found)?;
    check(spec, &found, former.as_ref())?;
    check_id(&found, former.as_ref(), arguments.other_cluster)?;
    if arguments.dry_run || !arguments.yes {
        // Whom a person asks about it, knows it to be whole; a yes beforehand waits for no answer.
        let mut display = Display::new();
        found.prove(&mut |it| display.show(it))?;
    }
    let live = runtime()?.block_on(live_revision(context, &client_url(context, place)));
    let record = request(context, &place.storage_dir, &found.file, live, former);
    let origin = Origin::of(spec, &found, &trust);
    let proposal = propose(context, &place.storage_dir, &found, &record, origin);
    if arguments.dry_run {
        show(arguments.output, &proposal)?;
        return Ok(None);
    }
    restore::check_room(&place.storage_dir, found.file.database)?;
    proposal.origin.check(context, arguments)?;
    if !arguments.yes && !print::confirmed(&format!("{}restore?", lines(&proposal)))? {
        let text = "nothing was done: say --yes to restore; --dry-run shows what would be done";
        return Err(Failure::new(HELD, text));
    }
    if let Some(text) = not_in_it(&found.file).filter(|_| arguments.yes) {
        eprintln!("etcd-operator: warning: {}: {text}", found.file.name);
    }
    found.import(&context.paths)?;
    if crate::systemd::runs(&context.paths) {
        found.bring_into_sight(&context.paths, spec)?;
    }
    Ok(Some(RestoreRecord {
        asked: trusted_now(context).map(rfc3339),
        source: found.file,
        ..record.with_version_of(spec.version)
    }))
}

/// Who lives here.
fn former(context: &Context, place: &HostPlace) -> Result<Option<IdentityFile>, Failure> {
    let (identity, marker) = records::load_identities(&context.paths, &place.storage_dir)?;
    Ok(identity.or(marker))
}

fn under_way() -> Failure {
    let text = "a restore is under way already: see etcd-operator status";
    Failure::new(HELD, text)
}

/// Finds the snapshot. `by_person`: one is there to decide about a snapshot whose origin does not count. `served`: a worker
/// has the first destination.
pub(super) async fn find(
    context: &Context,
    spec: &ClusterSpec,
    arguments: &RestoreArgs,
    (former, trust, by_person): (Option<&IdentityFile>, &Trust, bool),
    served: Option<&Served>,
) -> Result<Found, Failure> {
    let from = arguments.from.as_str();
    let mut wanted = source::unresolved(spec, Reason::Command);
    from.clone_into(&mut wanted.name);
    // Of this cluster, where one lives here; else of its name.
    let clusters = former.map(IdentityFile::clusters).unwrap_or_default();
    let identity = context.given.identity.as_ref().map(|(_, path)| path);
    let identity = identity.or(arguments.identity.as_ref());
    let (paths, identity) = (&context.paths, identity.map(PathBuf::as_path));
    let mut display = Display::new();
    let mut show = |it| display.show(it);
    let search = Search {
        paths,
        spec,
        wanted: &wanted,
        identity,
        clusters: &clusters,
        trust: Some(trust).filter(|_| !by_person || !names_a_place(context, from)),
        passed: &[],
        at_most: target(spec, former),
        served,
    };
    let found = if let Some(key) = from.strip_prefix("s3://") {
        search.in_bucket(key, &mut show).await?
    } else if names_a_place(context, from) {
        let path = std::path::absolute(from)?;
        let opened = match &context.given.directory {
            Some(_) => None,
            None => Parts::open(&path, Links::Followed)?,
        };
        match context.given.directory.as_ref().or(opened.as_ref()) {
            Some(parts) => {
                let version = target(spec, former).unwrap_or(VERSION_AT_BIRTH);
                let taken_up = directory::take_up(paths, spec, parts, version, &mut show);
                // What it has copied goes with it.
                tokio::select! {
                    found = Box::pin(taken_up) => found?,
                    () = ended() => return Err(Failure::new(INTERRUPTED, "nothing was done")),
                }
            }
            None => named_file(context, spec, &path)?,
        }
    } else {
        match search.anywhere(&mut show).await {
            Err(RestoreError::Untrusted(_)) if by_person => {
                let anybodys = Search {
                    trust: None,
                    ..search
                };
                anybodys.anywhere(&mut show).await?
            }
            found => found?,
        }
    };
    Ok(found)
}

/// Whether the words name a file or an object: that is a person's word for it, whoever signed it.
fn names_a_place(context: &Context, from: &str) -> bool {
    let given = context.given.snapshot.is_some() || context.given.directory.is_some();
    !is_name(from) && (from.contains('/') || Path::new(from).exists() || given)
}

/// Whether the word is a snapshot's name, and no file's or directory's.
pub(super) fn is_name(from: &str) -> bool {
    from == LATEST || from.parse::<SnapshotName>().is_ok()
}

/// A file of the command line. Root's own was opened by root.
fn named_file(context: &Context, spec: &ClusterSpec, path: &Path) -> Result<Found, Failure> {
    let denied = File::open(path).is_err_and(|it| it.kind() == io::ErrorKind::PermissionDenied);
    match &context.given.snapshot {
        Some(open) if denied => Ok(source::opened(&context.paths, spec, open, path)?),
        None if denied => {
            let text = format!(
                "{} cannot be read by the owner of {}: name the file itself, not a link to it, or change its mode",
                path.display(),
                context.paths.lib.display()
            );
            Err(Failure::new(FAILED, text))
        }
        _ => Ok(source::file(path)?),
    }
}

/// Another cluster's snapshot, or one of a newer etcd, is refused before anything is written down.
pub(super) fn check(
    spec: &ClusterSpec,
    found: &Found,
    former: Option<&IdentityFile>,
) -> Result<(), Failure> {
    if let Some(other) = found
        .cluster
        .as_deref()
        .filter(|it| *it != spec.name.as_str())
    {
        let text = format!(
            "{} belongs to the cluster {other}, and the document names {}: to use it anyway, name a copy of the file without its manifest",
            found.file.name, spec.name
        );
        return Err(Failure::new(FAILED, text));
    }
    Ok(found.check_version(target(spec, former))?)
}

/// The version of etcd that gets the data.
fn target(spec: &ClusterSpec, former: Option<&IdentityFile>) -> Option<Version> {
    let older = former.and_then(|it| it.older_line(spec.version));
    let own = former.and_then(IdentityFile::version);
    older.or(own).or(spec.version)
}

/// A name says little where several boxes share one: an id that the cluster here never had is of another
/// one, and taken only where a person says so.
fn check_id(
    found: &Found,
    former: Option<&IdentityFile>,
    other_cluster: bool,
) -> Result<(), Failure> {
    let (Some(id), Some(former), false) = (&found.file.cluster_id, former, other_cluster) else {
        return Ok(());
    };
    let ours = former.clusters();
    if ours.is_empty() || ours.contains(id) {
        return Ok(());
    }
    let text = format!(
        "{} belongs to another cluster of the same name, with the id {id}: to use it anyway, add --other-cluster",
        found.file.name
    );
    Err(Failure::new(FAILED, text))
}

/// What etcd says, if it answers.
async fn live_revision(context: &Context, url: &str) -> Option<i64> {
    let files = Certificates::at(context.paths.tls()).operator_files();
    let look = client::look(url, &files).await;
    look.details.map(|it| it.revision)
}

/// What is asked for. Where etcd does not answer, what it was seen to have, and what its log says.
fn request(
    context: &Context,
    storage_dir: &Path,
    file: &SourceFile,
    live: Option<i64>,
    former: Option<IdentityFile>,
) -> RestoreRecord {
    let seen = live.or_else(|| SeenFile::revision_of(&context.paths, former.as_ref()));
    let index = SeenFile::index_of(&context.paths, former.as_ref());
    let (id, reason, file) = (restore_record::new_id(), Reason::Command, file.clone());
    let mut record = RestoreRecord::requested(id, reason, file, seen, former);
    if live.is_some() {
        record.live_at_most = live;
        return record;
    }
    let former = record.former.as_ref();
    let version: Option<Version> = former.and_then(|it| it.member.version.parse().ok());
    let reader = version.and_then(Version::line);
    restore::count_loss(&mut record, None, storage_dir, reader, index);
    record
}

/// Writes the restore down and waits for its end: by the agent, or without one by this process.
fn carry_out(
    context: &Context,
    spec: &ClusterSpec,
    record: &RestoreRecord,
) -> Result<RestoreReport, Failure> {
    let runtime = runtime()?;
    let socket = context.paths.socket();
    let lock = match agent::lock(&context.paths, Locking::Act) {
        Ok(lock) => Some(lock),
        Err(AgentError::Locked { .. }) if socket.exists() => None,
        Err(error) => return Err(error.into()),
    };
    // Minutes may lie between the first look and the yes.
    if !record.request(&context.paths)? {
        return Err(under_way());
    }
    CrashPoint::RequestWritten.pass();
    if lock.is_some() {
        let driver = HostDriver::choose(&context.paths, &spec.name);
        let mut agent = Agent::new(&context.paths, driver, None);
        agent.take_settings(&context.read()?);
        let ends = async {
            agent.end_restore(spec).await;
            Ok(())
        };
        runtime.block_on(unless_interrupted(ends, "the next start of the operator"))?;
    } else {
        runtime.block_on(unless_interrupted(follow(context), "the agent"))?;
    }
    restore_record::last_report(&context.paths)
        .filter(|it| it.id == record.id)
        .ok_or_else(|| Failure::new(FAILED, "the restore left no report; see the operator's log"))
}

/// Until somebody ends this command.
async fn ended() {
    use tokio::signal::unix::{SignalKind, signal};
    let end = |kind| async move {
        match signal(kind) {
            Ok(mut it) => drop(it.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        () = end(SignalKind::interrupt()) => {}
        () = end(SignalKind::terminate()) => {}
        () = end(SignalKind::hangup()) => {}
    }
}

/// Ctrl-C ends this command and not the restore, which is written down.
async fn unless_interrupted(
    restore: impl Future<Output = Result<(), Failure>>,
    who: &str,
) -> Result<(), Failure> {
    tokio::select! {
        ended = restore => ended,
        Ok(()) = tokio::signal::ctrl_c() => {
            let text = format!(
                "the restore goes on without this command: {who} finishes it; etcd-operator status shows how far it is; the old data is kept: once the restore has ended, etcd-operator restore --undo brings it back"
            );
            Err(Failure::new(INTERRUPTED, text))
        }
    }
}

/// Tells what the agent does until the restore has ended.
async fn follow(context: &Context) -> Result<(), Failure> {
    let mut told = String::new();
    while context.paths.restore().exists() {
        let answer = ask(&context.paths.socket(), &Request::Status).await;
        if matches!(answer, Reply::Refused(_) | Reply::Silent) {
            tokio::time::sleep(FOLLOW_EVERY).await; // it has just begun, or its machine is busy
            continue;
        }
        let Reply::Answered(text) = answer else {
            let text = "the agent has ended: the restore goes on when the agent starts again";
            return Err(Failure::new(FAILED, text));
        };
        let report: Report = serde_json::from_str(&text)?;
        let message = report.status.plan.message.unwrap_or_default();
        if message != told && !message.is_empty() {
            eprintln!("etcd-operator: {message}");
            told = message;
        }
        let asked = clock::since_boot();
        while context.paths.restore().exists() && clock::since_boot() < asked + FOLLOW_EVERY {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
    Ok(())
}

fn tell(output: Output, report: &RestoreReport) -> Outcome {
    let done = report.outcome == Ended::Restored;
    if output != Output::Table {
        print::value(output, report)?;
    } else if done {
        let lost = restore_record::lost_words(report.revisions_lost, report.lost_is);
        let kept = report.kept.as_ref().map_or_else(String::new, |it| {
            format!("\nthe old data is kept in {}", it.display())
        });
        print::text(&format!(
            "restored {} at revision {}; lost: {lost}{kept}\n",
            report.snapshot, report.snapshot_revision
        ))?;
    }
    if done {
        return Ok(DONE);
    }
    let why = report.message.clone().unwrap_or_default();
    Err(Failure::new(FAILED, format!("not restored: {why}")))
}
