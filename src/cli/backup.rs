//! `backup create|list|show|verify|prune` and `verify-snapshot`.

mod places;
mod prune;

use std::fmt::Write as _;
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
use crate::backup::remote::RemoteEntry;
use crate::backup::{copy, remote};

use crate::member::place as member_place;
use crate::member::records;
use crate::spec::ClusterSpec;
use crate::tls::Certificates;

pub(super) use places::{Kind, Site, nowhere, pick, pick_remote, sites};

/// One snapshot in one place.
#[derive(Default, Serialize)]
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
        BackupCommand::Pod => super::pod::backup(context),
        BackupCommand::Create(it) => create(context, it.output),
        BackupCommand::List { at, output } => list(context, at.as_deref(), *output),
        BackupCommand::Show { name, at, output } => show(context, name, at.as_deref(), *output),
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
    let created = runtime.block_on(create::create(&request, &mut |it| display.show(it)));
    drop(display);
    place::note_save(&context.paths, created.is_ok());
    let created = created?;
    place::mark_used(&context.paths, &store)?;
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

fn list(context: &Context, at: Option<&str>, output: Output) -> Outcome {
    let (spec, _) = primary(context)?;
    let mut rows = Vec::new();
    let mut first = true;
    for site in sites(&spec, at)? {
        let found = match &site.kind {
            Kind::Local(store) => local_rows(store),
            Kind::Bucket(s3) => site.look(context, s3, &spec).map(|(_, entries)| {
                let rows = entries.iter().map(|it| bucket_row(it, &site.name));
                rows.collect()
            }),
        };
        match (found, &site.kind) {
            (Ok(more), _) => rows.extend(more),
            // Without its first destination nothing is known.
            (Err(failure), Kind::Local(_)) if first || at.is_some() => return Err(failure),
            (Err(failure), kind) => {
                eprintln!("etcd-operator: warning: {}: {}", site.name, failure.text);
                if let Kind::Bucket(_) = kind {
                    eprintln!("etcd-operator: warning: listed is what was seen to arrive there");
                    let known = remote::known_names(&context.paths, site.destination);
                    let known = known.iter().rev();
                    rows.extend(known.filter_map(|(name, level)| {
                        Some(named_row(&name.parse().ok()?, *level, &site.name))
                    }));
                }
            }
        }
        first = false;
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

fn bucket_row(entry: &RemoteEntry, destination: &str) -> Row {
    let problem = match (&entry.known, entry.size) {
        (None, _) => Some("it has no manifest that can be read".to_owned()),
        (_, None) => Some("its object is not there".to_owned()),
        _ if entry.level() == 0 => Some("it was found damaged".to_owned()),
        _ => None,
    };
    Row {
        cluster_id: entry.cluster_id().map(str::to_owned),
        size: entry.size,
        class: entry.class(),
        problem,
        ..named_row(&entry.name, entry.level(), destination)
    }
}

/// What a name says.
fn named_row(name: &SnapshotName, level: u8, destination: &str) -> Row {
    Row {
        name: name.to_string(),
        destination: destination.to_owned(),
        created: match name.when {
            When::At(it) => Some(crate::api::status::rfc3339(it)),
            When::Boot(_) => None,
        },
        revision: name.revision,
        level,
        ..Row::default()
    }
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

fn show(context: &Context, name: &str, at: Option<&str>, output: Output) -> Outcome {
    let (spec, _) = primary(context)?;
    let sites = sites(&spec, at)?;
    let mut unasked = Vec::new();
    for site in &sites {
        // A place that cannot be asked is no answer, and none of the others'.
        match manifest(context, &spec, site, name) {
            Ok(Some(manifest)) => {
                let output = if output == Output::Table {
                    Output::Yaml
                } else {
                    output
                };
                print::value(output, &manifest)?;
                return Ok(DONE);
            }
            Ok(None) => {}
            Err(failure) => unasked.push(format!("{}: {}", site.name, failure.text)),
        }
    }
    let mut failure = nowhere(name, &sites);
    for why in unasked {
        let _ = write!(failure.text, "\nnot seen: {why}");
    }
    Err(failure)
}

fn manifest(
    context: &Context,
    spec: &ClusterSpec,
    site: &Site<'_>,
    name: &str,
) -> Result<Option<Manifest>, Failure> {
    let damaged = |why: &str| Failure::new(FAILED, format!("{name} in {}: {why}", site.name));
    match &site.kind {
        Kind::Local(store) => match pick(store.list()?, name) {
            Some(entry) => entry.manifest.map(Some).map_err(|why| damaged(&why)),
            None => Ok(None),
        },
        Kind::Bucket(s3) => {
            let (mut store, entries) = site.look(context, s3, spec)?;
            let Some(entry) = pick_remote(entries, name) else {
                return Ok(None);
            };
            let manifest = runtime()?.block_on(store.manifest(&entry.name.to_string()))?;
            let manifest = manifest.ok_or_else(|| damaged("its manifest cannot be read"));
            manifest.map(Some)
        }
    }
}
