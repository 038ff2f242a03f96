//! `backup list` and `backup show`.

use std::cmp::Reverse;
use std::fmt::Write as _;

use serde::Serialize;

use super::super::print::{self, Output, span};
use super::super::{Context, DONE, FAILED, Failure, Outcome, runtime};
use super::{Kind, Site, bytes, nowhere, pick, pick_remote, primary, sites, trusted_now};
use crate::backup::age::Ages;
use crate::backup::local::{Entry, LocalStore};
use crate::backup::manifest::{Class, Manifest};
use crate::backup::name::SnapshotName;
use crate::backup::remote::{self, RemoteEntry};
use crate::clock;
use crate::clock::parse_rfc3339;
use crate::clock::rfc3339;
use crate::spec::ClusterSpec;

/// One snapshot in one place.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    name: String,
    destination: String,
    #[serde(rename = "clusterID", skip_serializing_if = "Option::is_none")]
    cluster_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<String>,
    /// Left out where nobody knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    age_seconds: Option<u64>,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_seconds: Option<u64>,
    /// The highest level of verification that it passed.
    level: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    verified_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

pub(super) fn row(entry: &Entry, destination: &str, ages: &Ages) -> Row {
    let manifest = entry.manifest.as_ref().ok();
    let problem = match &entry.manifest {
        Err(why) => Some(why.clone()),
        Ok(it) => match entry.size {
            None => Some("its file is missing".to_owned()),
            Some(size) if size != it.file.size => Some(format!(
                "its file has {size} bytes, written were {}",
                it.file.size
            )),
            Some(_) if it.verified.level == 0 => Some("damaged".to_owned()),
            Some(_) => None,
        },
    };
    Row {
        cluster_id: manifest.map(|it| it.cluster_id.clone()),
        created: manifest.and_then(|it| it.created.clone()),
        age_seconds: manifest.and_then(|it| ages.of(it)),
        entries: manifest.map(|it| it.entries),
        size: entry.size,
        database_size: manifest.map(|it| it.database.size),
        class: manifest.map(|it| it.class),
        ttl_seconds: manifest.and_then(|it| it.ttl),
        verified_at: manifest.and_then(|it| it.verified.at.clone()),
        problem,
        ..named_row(&entry.name, entry.level(), destination, ages)
    }
}

/// What a name says.
fn named_row(name: &SnapshotName, level: u8, destination: &str, ages: &Ages) -> Row {
    Row {
        name: name.to_string(),
        destination: destination.to_owned(),
        created: name.created().map(rfc3339),
        age_seconds: ages.since(name.created()),
        revision: name.revision,
        level,
        ..Row::default()
    }
}

fn bucket_row(entry: &RemoteEntry, destination: &str, ages: &Ages) -> Row {
    let problem = match (&entry.known, entry.size) {
        (None, _) => Some("its manifest is missing or cannot be read".to_owned()),
        (_, None) => Some("its object is missing".to_owned()),
        _ if entry.level() == 0 => Some("damaged".to_owned()),
        _ => None,
    };
    Row {
        cluster_id: entry.cluster_id().map(str::to_owned),
        size: entry.size,
        class: entry.class(),
        ttl_seconds: entry.ttl(),
        problem,
        ..named_row(&entry.name, entry.level(), destination, ages)
    }
}

fn local_rows(store: &LocalStore, ages: &Ages) -> Result<Vec<Row>, Failure> {
    let destination = store.path().display().to_string();
    let entries = store.list()?;
    let rows = entries.iter().map(|it| row(it, &destination, ages));
    Ok(rows.collect())
}

/// Newest first, by time where one is known: a cluster that was restored or replaced counts its
/// revisions anew. What was taken in this boot without a clock is newer than whatever came before it.
fn newest_first(rows: &mut [Row]) {
    let created = |it: &Row| it.created.as_deref().and_then(parse_rfc3339);
    let newest = rows.iter().filter_map(created).max();
    let now = newest.max(Some(clock::now()));
    let time = |it: &Row| {
        let age = i64::try_from(it.age_seconds?).ok()?;
        Some(now?.0 - age)
    };
    rows.sort_by_key(|it| {
        let at = created(it).map(|it| it.0).or_else(|| time(it));
        (Reverse(at), Reverse(it.revision))
    });
}

pub(super) fn print_rows(rows: &[Row]) -> std::io::Result<()> {
    let dash = || "-".to_owned();
    let header = [
        "NAME", "AGE", "CREATED", "REVISION", "SIZE", "DATABASE", "LEVEL", "CLASS", "CLUSTER",
        "PLACE",
    ];
    let mut table = vec![header.map(str::to_owned)];
    for it in rows {
        let level = match &it.problem {
            Some(why) => format!("{} ({why})", it.level),
            None => it.level.to_string(),
        };
        let class = match (it.class, it.ttl_seconds) {
            (Some(Class::Scheduled), _) => "scheduled".to_owned(),
            (Some(Class::OnDemand), Some(ttl)) => format!("on demand, for {}", span(ttl)),
            (Some(Class::OnDemand), None) => "on demand".to_owned(),
            (None, _) => dash(),
        };
        table.push([
            it.name.clone(),
            it.age_seconds.map_or_else(dash, span),
            it.created.clone().unwrap_or_else(dash),
            it.revision.to_string(),
            it.size.map_or_else(dash, bytes),
            it.database_size.map_or_else(dash, bytes),
            level,
            class,
            it.cluster_id.clone().unwrap_or_else(dash),
            it.destination.clone(),
        ]);
    }
    print::table(&table)
}

pub(super) fn list(context: &Context, at: Option<&str>, output: Output) -> Outcome {
    let (spec, _) = primary(context)?;
    let ages = Ages::new(trusted_now(context));
    let mut rows = Vec::new();
    let mut first = true;
    for site in sites(&spec, at)? {
        let found = match &site.kind {
            Kind::Local(store) => local_rows(store, &ages),
            Kind::Bucket(s3) => site.look(context, s3, &spec).map(|(_, entries)| {
                let rows = entries.iter().map(|it| bucket_row(it, &site.name, &ages));
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
                    eprintln!(
                        "etcd-operator: warning: the list shows the copies that arrived there"
                    );
                    let known = remote::known_names(&context.paths, site.destination);
                    rows.extend(known.iter().filter_map(|(name, level)| {
                        Some(named_row(&name.parse().ok()?, *level, &site.name, &ages))
                    }));
                }
            }
        }
        first = false;
    }
    newest_first(&mut rows);
    if output == Output::Table {
        print_rows(&rows)?;
    } else {
        print::value(output, &rows)?;
    }
    Ok(DONE)
}

/// A manifest, and where its snapshot lies.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    /// A file, or an object of a bucket.
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    age_seconds: Option<u64>,
    #[serde(flatten)]
    manifest: Manifest,
}

pub(super) fn show(context: &Context, name: &str, at: Option<&str>, output: Output) -> Outcome {
    let (spec, _) = primary(context)?;
    let sites = sites(&spec, at)?;
    let mut unasked = Vec::new();
    for site in &sites {
        // A place that cannot be asked is no answer, and none of the others'.
        match find(context, &spec, site, name) {
            Ok(Some((path, manifest))) => {
                let output = match output {
                    Output::Table => Output::Yaml,
                    other => other,
                };
                let age_seconds = Ages::new(trusted_now(context)).of(&manifest);
                let shown = Shown {
                    path,
                    age_seconds,
                    manifest,
                };
                print::value(output, &shown)?;
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

/// The place of a snapshot and its manifest.
fn find(
    context: &Context,
    spec: &ClusterSpec,
    site: &Site<'_>,
    name: &str,
) -> Result<Option<(String, Manifest)>, Failure> {
    let damaged = |why: &str| Failure::new(FAILED, format!("{name} in {}: {why}", site.name));
    match &site.kind {
        Kind::Local(store) => match pick(store.list()?, name)? {
            Some(entry) => {
                let path = store.snapshot(&entry.name).display().to_string();
                let manifest = entry.manifest.map_err(|why| damaged(&why))?;
                Ok(Some((path, manifest)))
            }
            None => Ok(None),
        },
        Kind::Bucket(s3) => {
            let (mut store, entries) = site.look(context, s3, spec)?;
            let Some(entry) = pick_remote(entries, name)? else {
                return Ok(None);
            };
            let name = entry.name.to_string();
            let manifest = runtime()?.block_on(store.manifest(&name))?;
            let manifest = manifest.ok_or_else(|| damaged("its manifest cannot be read"))?;
            let path = format!("{}/{}", site.name, store.key(&name, entry.encrypted));
            Ok(Some((path, manifest)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_is_the_one_that_was_taken_last() {
        let row = |name: &str, created: Option<&str>, age_seconds, revision| Row {
            name: name.to_owned(),
            created: created.map(str::to_owned),
            age_seconds,
            revision,
            ..Row::default()
        };
        let mut rows = [
            row("older", Some("2026-11-22T08:56:58Z"), None, 67),
            row(
                "restored, and so with few revisions",
                Some("2026-11-22T08:58:38Z"),
                None,
                1,
            ),
            row("of another boot, nobody knows when", None, None, 90),
            row("of that boot, and older", None, None, 80),
            row("of this boot, without a clock", None, Some(10), 3),
            row("of this boot, before it", None, Some(20), 4),
        ];
        newest_first(&mut rows);
        let names = rows.iter().map(|it| it.name.as_str());
        assert_eq!(
            names.collect::<Vec<_>>(),
            [
                "of this boot, without a clock",
                "of this boot, before it",
                "restored, and so with few revisions",
                "older",
                "of another boot, nobody knows when",
                "of that boot, and older",
            ]
        );
    }
}
