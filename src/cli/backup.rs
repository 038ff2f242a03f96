//! `backup create|list|show|verify|prune` and `verify-snapshot`.

use std::path::Path;

use serde::Serialize;

use super::print::{self, Output};
use super::progress::Display;
use super::{BackupCommand, Context, DONE, FAILED, Failure, HELD, Outcome, USAGE, runtime};
use crate::agent::socket::{Request as Question, ask};
use crate::backup::create::{self, Created};
use crate::backup::local::{Entry, LocalStore};
use crate::backup::manifest::{Class, Manifest};
use crate::backup::name::{SnapshotName, When};
use crate::backup::place::{self, BackupLock, Work};
use crate::backup::source::LATEST;
use crate::backup::{copy, prune, remote};
use crate::member::place as member_place;
use crate::member::records;
use crate::retention::VERIFIED;
use crate::spec::ClusterSpec;
use crate::tls::Certificates;

/// One snapshot in one place.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    name: String,
    destination: String,
    #[serde(rename = "clusterID", skip_serializing_if = "Option::is_none")]
    cluster_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<String>,
    revision: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<u64>,
    /// Bytes of the stored file.
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    /// Bytes of the database in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    database_size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<Class>,
    /// The highest level of verification that it passed.
    level: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    verified_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

fn row(entry: &Entry, destination: &str) -> Row {
    let manifest = entry.manifest.as_ref().ok();
    let problem = match &entry.manifest {
        Err(why) => Some(why.clone()),
        Ok(it) => match entry.size {
            None => Some("its file is not there".to_owned()),
            Some(size) if size != it.file.size => Some(format!(
                "its file has {size} bytes, written were {}",
                it.file.size
            )),
            Some(_) if it.verified.level == 0 => Some("it was found damaged".to_owned()),
            Some(_) => None,
        },
    };
    Row {
        name: entry.name.to_string(),
        destination: destination.to_owned(),
        cluster_id: manifest.map(|it| it.cluster_id.clone()),
        created: manifest.and_then(|it| it.created.clone()),
        revision: entry.name.revision,
        entries: manifest.map(|it| it.entries),
        size: entry.size,
        database_size: manifest.map(|it| it.database.size),
        class: manifest.map(|it| it.class),
        level: entry.level(),
        verified_at: manifest.and_then(|it| it.verified.at.clone()),
        problem,
    }
}

/// A size for people.
pub(super) fn bytes(count: u64) -> String {
    match count {
        0..1024 => format!("{count} B"),
        1024..1_048_576 => format!("{:.1} KiB", count as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", count as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", count as f64 / 1_073_741_824.0),
    }
}

fn print_rows(rows: &[Row]) -> std::io::Result<()> {
    let dash = || "-".to_owned();
    let header = [
        "NAME", "CREATED", "REVISION", "SIZE", "DATABASE", "LEVEL", "CLASS", "PLACE",
    ];
    let mut table = vec![header.map(str::to_owned)];
    for it in rows {
        let level = match &it.problem {
            Some(why) => format!("{} ({why})", it.level),
            None => it.level.to_string(),
        };
        table.push([
            it.name.clone(),
            it.created.clone().unwrap_or_else(dash),
            it.revision.to_string(),
            it.size.map_or_else(dash, bytes),
            it.database_size.map_or_else(dash, bytes),
            level,
            match it.class {
                Some(Class::Scheduled) => "scheduled".to_owned(),
                Some(Class::OnDemand) => "on demand".to_owned(),
                None => dash(),
            },
            it.destination.clone(),
        ]);
    }
    print::table(&table)
}

/// The document and its first destination.
pub(super) fn primary(context: &Context) -> Result<(ClusterSpec, LocalStore), Failure> {
    let spec = context.document()?;
    let store = place::primary(&spec).ok_or_else(|| {
        let text = format!(
            "{}: spec.backup is not there: say where snapshots go, such as backup: {{destinations: [{{local: {{path: /mnt/backup}}}}]}}",
            context.config.display()
        );
        Failure::new(USAGE, text)
    })?;
    Ok((spec, store))
}

/// One process at a time.
pub(super) fn lock(context: &Context, work: Work) -> Result<BackupLock, Failure> {
    place::lock(&context.paths, work)?.ok_or_else(|| {
        let text = match work {
            Work::Local => "another process takes or checks snapshots: try again when it has ended",
            Work::Copies => {
                "the agent is copying already: see queued in etcd-operator status -o json"
            }
        };
        Failure::new(HELD, text)
    })
}

pub(super) fn backup(context: &Context, command: &BackupCommand) -> Outcome {
    match command {
        BackupCommand::Create(it) => create(context, it.output),
        BackupCommand::List(it) => list(context, it.output),
        BackupCommand::Show { name, output } => show(context, name, *output),
        BackupCommand::Verify {
            name,
            level,
            output,
        } => super::verify::verify(context, name.as_deref(), *level, *output),
        BackupCommand::Copy(it) => copy(context, it.output),
        BackupCommand::Prune { dry_run, output } => prune(context, *dry_run, *output),
    }
}

fn create(context: &Context, output: Output) -> Outcome {
    #[derive(Serialize)]
    struct Answer {
        result: &'static str,
        snapshot: Row,
    }
    let (spec, store) = primary(context)?;
    let lock = lock(context, Work::Local)?;
    place::prepare(&context.paths, &store)?;
    let member = member_place::resolve(&context.paths, &spec);
    let (identity, _) = records::load_identities(&context.paths, &member.storage_dir)?;
    let identity = identity.ok_or_else(|| {
        let text = "there is no cluster here yet: start etcd-operator agent first";
        Failure::new(FAILED, text)
    })?;
    let entries = store.list()?;
    let request = create::Request {
        url: &member.client_url,
        files: &Certificates::at(context.paths.tls()).operator_files(),
        cluster: &spec.name,
        member: &identity.member,
        store: &store,
        class: Class::OnDemand,
        now: trusted_now(context),
        entries: &entries,
    };
    let runtime = runtime()?;
    let mut display = Display::new();
    let created = runtime.block_on(create::create(&request, &mut |it| display.show(it)))?;
    drop(display);
    drop(lock);
    // The agent sees it, and copies it.
    let _ = runtime.block_on(ask(&context.paths.socket(), &Question::Status));
    let (result, manifest) = match created {
        Created::Saved(it) => ("saved", it),
        Created::Unchanged(it) => ("unchanged", it),
    };
    let entry = entry(&manifest)?;
    let row = row(&entry, &store.path().display().to_string());
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

fn entry(manifest: &Manifest) -> Result<Entry, Failure> {
    Ok(Entry {
        name: manifest.name.parse::<SnapshotName>()?,
        manifest: Ok(manifest.clone()),
        size: Some(manifest.file.size),
    })
}

/// The time, if it is trusted.
pub(super) fn trusted_now(context: &Context) -> Option<crate::cluster::Timestamp> {
    use crate::clock;
    let now = clock::now();
    let newest = clock::newest_known(Path::new("/nonexistent"), None);
    let kernel = crate::systemd::runs(&context.paths) && clock::kernel_synchronised();
    let clock = clock::trust(&context.paths, now, newest, kernel);
    (clock == crate::observed::Clock::Trusted).then_some(now)
}

fn list(context: &Context, output: Output) -> Outcome {
    let (spec, store) = primary(context)?;
    let mut rows = local_rows(&store)?;
    let backup = spec.backup.as_ref();
    let further = backup.and_then(|it| it.destinations.get(1..));
    for destination in further.unwrap_or_default() {
        if let Some(store) = place::local(&spec, destination) {
            match local_rows(&store) {
                Ok(more) => rows.extend(more),
                Err(failure) => eprintln!("etcd-operator: warning: {}", failure.text),
            }
        } else {
            // What was seen to arrive: a list asks no link for anything.
            let known = remote::known_names(&context.paths, destination);
            rows.extend(known.iter().rev().filter_map(|(name, level)| {
                remote_row(name, *level, &place::describe(destination))
            }));
        }
    }
    if output == Output::Table {
        print_rows(&rows)?;
    } else {
        print::value(output, &rows)?;
    }
    Ok(DONE)
}

fn local_rows(store: &LocalStore) -> Result<Vec<Row>, Failure> {
    let destination = store.path().display().to_string();
    let entries = store.list()?;
    Ok(entries.iter().map(|it| row(it, &destination)).collect())
}

fn remote_row(name: &str, level: u8, destination: &str) -> Option<Row> {
    let parsed = name.parse::<SnapshotName>().ok()?;
    let created = match parsed.when {
        When::At(it) => Some(crate::api::status::rfc3339(it)),
        When::Boot(_) => None,
    };
    Some(Row {
        name: name.to_owned(),
        destination: destination.to_owned(),
        cluster_id: None,
        created,
        revision: parsed.revision,
        entries: None,
        size: None,
        database_size: None,
        class: None,
        level,
        verified_at: None,
        problem: None,
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
    let clusters = clusters(context, &spec)?;
    let queue = |entries: &[Entry]| copy::queue(&context.paths, &spec, entries, &clusters);
    let before = queue(&store.list()?);
    let mut display = Display::new();
    let copied = runtime()?.block_on(copy::run(
        &context.paths,
        &spec,
        &clusters,
        trusted_now(context),
        &mut |it| display.show(it),
    ));
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

/// The ids that the cluster of this host has and had.
fn clusters(context: &Context, spec: &ClusterSpec) -> Result<Vec<String>, Failure> {
    let member = member_place::resolve(&context.paths, spec);
    let (identity, _) = records::load_identities(&context.paths, &member.storage_dir)?;
    Ok(identity.map(|it| it.clusters()).unwrap_or_default())
}

/// The snapshot that a person means.
pub(super) fn find(store: &LocalStore, name: &str) -> Result<Entry, Failure> {
    let entries = store.list()?;
    let found = match name {
        LATEST => entries.into_iter().find(|it| it.level() >= VERIFIED),
        name => entries.into_iter().find(|it| it.name.to_string() == name),
    };
    found.ok_or_else(|| {
        let text = format!(
            "there is no snapshot {name} in {}: see etcd-operator backup list",
            store.path().display()
        );
        Failure::new(FAILED, text)
    })
}

fn show(context: &Context, name: &str, output: Output) -> Outcome {
    let (_, store) = primary(context)?;
    let entry = find(&store, name)?;
    let manifest = entry
        .manifest
        .map_err(|why| Failure::new(FAILED, format!("{}: {why}", entry.name)))?;
    let output = if output == Output::Table {
        Output::Yaml
    } else {
        output
    };
    print::value(output, &manifest)?;
    Ok(DONE)
}

fn prune(context: &Context, dry_run: bool, output: Output) -> Outcome {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Pruned {
        name: String,
        destination: String,
        fate: &'static str,
        removed: bool,
    }
    let (spec, store) = primary(context)?;
    let _lock = lock(context, Work::Local)?;
    let clusters = clusters(context, &spec)?;
    let entries = store.list()?;
    let Some(keep) = spec.backup.as_ref().and_then(|it| it.destinations.first()) else {
        return Ok(DONE);
    };
    let fates = prune::fates(keep.keep, &entries, &clusters);
    let now = trusted_now(context);
    if let (false, Some(why)) = (dry_run, prune::frozen(&entries, &clusters, now, false)) {
        let text = format!("nothing was removed: {}", prune::words(why));
        return Err(Failure::new(HELD, text));
    }
    let mut rows = Vec::new();
    for (entry, fate) in entries.iter().zip(fates) {
        let removed = fate.removes() && !dry_run;
        if removed {
            store.remove(&entry.name)?;
        }
        rows.push(Pruned {
            name: entry.name.to_string(),
            destination: store.path().display().to_string(),
            fate: prune::fate_words(fate),
            removed,
        });
    }
    if output == Output::Table {
        let mut table = vec![["NAME", "", "WHY"].map(str::to_owned)];
        for it in rows {
            let goes = it.fate.starts_with("goes");
            let what = match (it.removed, goes) {
                (true, _) => "removed",
                (false, true) => "would be removed",
                (false, false) => "stays",
            };
            table.push([it.name, what.to_owned(), it.fate.to_owned()]);
        }
        print::table(&table)?;
    } else {
        print::value(output, &rows)?;
    }
    Ok(DONE)
}
