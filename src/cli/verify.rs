//! `backup verify` and `verify-snapshot`.

use std::path::Path;

use serde::Serialize;

use super::places::{Kind, Site, lock, nowhere, pick, pick_remote, primary, sites, trusted_now};
use super::print::bytes;
use super::print::{self, Output};
use super::progress::Display;
use super::{Context, DONE, FAILED, Failure, Outcome, runtime};
use crate::backup::local::{Entry, LocalStore};
use crate::backup::manifest::Manifest;
use crate::backup::place::Work;
use crate::backup::remote::RemoteEntry;
use crate::backup::{trial, verify as levels};
use crate::spec::ClusterSpec;
use crate::spec::backup::S3;

/// What a check of one snapshot brought.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Checked {
    name: String,
    destination: String,
    /// The level that was asked for, if it passed; 0 if not.
    level: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

pub(super) fn verify(
    context: &Context,
    name: Option<&str>,
    level: u8,
    at: Option<&str>,
    output: Output,
) -> Outcome {
    let (spec, _) = primary(context)?;
    let _lock = lock(context, Work::Local)?;
    let sites = sites(&spec, at)?;
    let mut checked = Vec::new();
    let mut failures = false;
    for site in &sites {
        if let Some(why) = site.lacks_keys().filter(|_| at.is_none()) {
            eprintln!("etcd-operator: warning: {why}");
            continue;
        }
        let found = match &site.kind {
            Kind::Local(store) => local(context, site, store, name, level),
            Kind::Bucket(s3) => bucket(context, &spec, site, s3, name, level),
        };
        match found {
            Ok(more) => checked.extend(more),
            Err(failure) if sites.len() == 1 => return Err(failure),
            Err(failure) => {
                failures = true;
                eprintln!("etcd-operator: {}: {}", site.name, failure.text);
            }
        }
    }
    if let (Some(name), true, false) = (name, checked.is_empty(), failures) {
        return Err(nowhere(name, &sites));
    }
    let damaged = checked.iter().any(|it| it.problem.is_some());
    if output == Output::Table {
        let mut table = vec![["NAME", "LEVEL", "RESULT", "PLACE"].map(str::to_owned)];
        for it in checked {
            let result = it.problem.unwrap_or_else(|| "verified".to_owned());
            table.push([it.name, it.level.to_string(), result, it.destination]);
        }
        print::table(&table)?;
    } else {
        print::value(output, &checked)?;
    }
    Ok(if damaged || failures { FAILED } else { DONE })
}

fn local(
    context: &Context,
    site: &Site<'_>,
    store: &LocalStore,
    name: Option<&str>,
    level: u8,
) -> Result<Vec<Checked>, Failure> {
    let entries = store.list()?;
    let entries = match name {
        Some(name) => pick(entries, name)?.into_iter().collect(),
        None => entries,
    };
    let mut checked = Vec::new();
    for entry in entries {
        let mut display = Display::new();
        let problem = check(store, &entry, level, context, &mut display);
        checked.push(Checked {
            name: entry.name.to_string(),
            destination: site.name.clone(),
            level: if problem.is_none() { level } else { 0 },
            problem,
        });
    }
    Ok(checked)
}

/// The bytes of a bucket are read back; that they are those that passed level 3 is what their hash
/// says.
fn bucket(
    context: &Context,
    spec: &ClusterSpec,
    site: &Site<'_>,
    s3: &S3,
    name: Option<&str>,
    level: u8,
) -> Result<Vec<Checked>, Failure> {
    let (mut store, entries) = site.look(context, s3, spec)?;
    let entries: Vec<RemoteEntry> = match name {
        Some(name) => pick_remote(entries, name)?.into_iter().collect(),
        None => entries,
    };
    // The agent may be writing down what has arrived.
    let _lock = lock(context, Work::Copies)?;
    let level = level.min(2);
    let mut checked = Vec::new();
    for entry in entries {
        let mut display = Display::new();
        let name = entry.name.to_string();
        let mut show = |it| display.show(it);
        let problem = runtime()?.block_on(store.prove(&name, level, &mut show))?;
        checked.push(Checked {
            name,
            destination: site.name.clone(),
            level: if problem.is_none() { level } else { 0 },
            problem,
        });
    }
    Ok(checked)
}

/// Checks one and writes down what was found; what is wrong with it.
fn check(
    store: &LocalStore,
    entry: &Entry,
    level: u8,
    context: &Context,
    display: &mut Display,
) -> Option<String> {
    let manifest = match &entry.manifest {
        Ok(manifest) => manifest,
        Err(why) => return Some(why.clone()),
    };
    let path = store.snapshot(&entry.name);
    let proven = levels::verify(&path, manifest, level, &mut |it| display.show(it));
    let found = match &proven {
        Ok(()) => Some(level.min(3)),
        Err(error) => error.is_damage().then_some(0),
    };
    let (mut found, mut problem) = (found, proven.err().map(anyhow::Error::from));
    if level >= 4 && problem.is_none() {
        // A trial that was not made, for want of room or of etcdutl, says nothing about the snapshot.
        match try_restore(context, entry, manifest, &path, display) {
            Ok(()) => found = Some(level),
            Err(error) => problem = Some(error),
        }
    }
    let known = manifest.verified.level;
    if let Some(found) = found.filter(|it| *it == 0 && known != 0 || *it >= known) {
        let now = trusted_now(context);
        if let Err(error) = store.record_level(&entry.name, manifest, found, now) {
            let error = anyhow::Error::from(error);
            eprintln!("etcd-operator: warning: the findings could not be recorded: {error:#}");
        }
    }
    problem.map(|it| format!("{it:#}"))
}

/// Level 4.
fn try_restore(
    context: &Context,
    entry: &Entry,
    manifest: &Manifest,
    path: &Path,
    display: &mut Display,
) -> anyhow::Result<()> {
    let spec = context
        .document()
        .map_err(|it| anyhow::anyhow!("{}", it.text))?;
    let identity = context.identity(&spec);
    let identity = identity.map_err(|it| anyhow::anyhow!("{}", it.text))?;
    let identity = identity.ok_or_else(|| {
        anyhow::anyhow!(
            "{}: level 4 needs a cluster on this host, whose etcd serves the trial",
            entry.name
        )
    })?;
    let trial = trial::Trial {
        paths: &context.paths,
        spec: &spec,
        identity: &identity,
        then: None,
        expected: None,
        log: None,
        file: path,
        revision: manifest.revision.held(),
        database: manifest.database.size,
    };
    runtime()?.block_on(trial::run(&trial, &mut |it| display.show(it)))?;
    Ok(())
}

/// A file alone: what `etcdutl snapshot status` says, after a check of every page.
pub(super) fn verify_snapshot(file: &Path, output: Output) -> Outcome {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Answer {
        hash: String,
        revision: i64,
        total_keys: u64,
        total_size: u64,
        checksummed: bool,
        /// What may not be in it.
        #[serde(skip_serializing_if = "Option::is_none")]
        not_in_it: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        cluster_version: Option<String>,
    }
    let mut display = Display::new();
    let examined = levels::examine(file, &mut |it| display.show(it))?;
    drop(display);
    let it = &examined.summary;
    let answer = Answer {
        hash: format!("{:08x}", it.hash),
        revision: it.revision,
        total_keys: it.entries,
        total_size: it.size,
        checksummed: examined.checksummed,
        not_in_it: (!examined.checksummed).then(|| levels::not_in_a_database(file)),
        cluster_version: it.cluster_version.clone(),
    };
    if output == Output::Table {
        let header = ["HASH", "REVISION", "TOTAL KEYS", "TOTAL SIZE", "CHECKSUM"];
        let row = [
            answer.hash.clone(),
            it.revision.to_string(),
            it.entries.to_string(),
            bytes(it.size),
            if examined.checksummed {
                "fits"
            } else {
                "none: a copy from a data directory"
            }
            .to_owned(),
        ];
        print::table(&[header.map(str::to_owned), row])?;
        if let Some(text) = &answer.not_in_it {
            eprintln!("etcd-operator: warning: {text}");
        }
    } else {
        print::value(output, &answer)?;
    }
    Ok(DONE)
}
