//! `backup delete`: snapshots that a person no longer wants, by name.

use std::io::{BufRead as _, IsTerminal as _};

use serde::Serialize;

use super::super::print::{self, Output};
use super::super::{Context, DONE, DeleteArgs, FAILED, Failure, HELD, Outcome, runtime};
use super::{Kind, Site, lock, nowhere, ours, pick_name, primary, sites};
use crate::backup::copy;
use crate::backup::local::{Entry, LocalStore};
use crate::backup::name::{LATEST, SnapshotName};
use crate::backup::place::{self, Work};
use crate::backup::prune::Ours;
use crate::backup::remote::{RemoteEntry, RemoteStore};
use crate::retention::VERIFIED;

/// One that was asked for, in one place.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    name: String,
    destination: String,
    deleted: bool,
    /// Why it is still there.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

/// What shall go from one place.
enum Found<'a> {
    Local(&'a LocalStore, Vec<Entry>),
    Bucket(Box<RemoteStore>, Vec<RemoteEntry>),
}

/// What matters of a snapshot here.
struct Candidate {
    name: String,
    cluster: Option<String>,
    verified: bool,
    order: (i64, Option<i64>),
}

pub(super) fn delete(context: &Context, arguments: &DeleteArgs) -> Outcome {
    let (spec, first) = primary(context)?;
    let _lock = lock(context, Work::Local)?;
    let at = arguments.at.as_deref();
    let sites = sites(&spec, at)?;
    let ours = ours(context, &spec)?;
    let further = sites.iter().any(|it| it.name != place_of(&first));
    let _copies = further.then(|| lock(context, Work::Copies)).transpose()?;
    let (mut listed, mut names, mut skipped) = (Vec::new(), Vec::new(), false);
    for site in &sites {
        if let Some(why) = site.lacks_keys().filter(|_| at.is_none()) {
            eprintln!("etcd-operator: warning: {why}");
            skipped = true;
            continue;
        }
        let (all, here) = match &site.kind {
            Kind::Local(store) => {
                let entries = store.list()?;
                names.extend(entries.iter().map(|it| (it.name.clone(), it.level())));
                let all: Vec<Candidate> = entries
                    .iter()
                    .map(|it| local_candidate(it, &ours))
                    .collect();
                (all, Found::Local(store, entries))
            }
            Kind::Bucket(s3) => {
                let (store, entries) = site.look(context, s3, &spec)?;
                names.extend(entries.iter().map(|it| (it.name.clone(), it.level())));
                let all: Vec<Candidate> = entries
                    .iter()
                    .map(|it| bucket_candidate(it, &ours))
                    .collect();
                (all, Found::Bucket(Box::new(store), entries))
            }
        };
        listed.push((site, all, here));
    }
    let wanted = whole_names(&arguments.names, &names, skipped, &sites)?;
    let mut found = Vec::new();
    for (site, all, here) in listed {
        check(site, &all, (&wanted, arguments.force), &ours.clusters)?;
        found.push((site, here.only(&wanted)));
    }
    if !arguments.yes && !confirmed(&found)? {
        let text = "nothing was deleted: say --yes to delete without being asked";
        return Err(Failure::new(HELD, text));
    }
    let mut rows = Vec::new();
    for (site, found) in found {
        let first = site.name == place_of(&first);
        remove(context, site, first, found, &mut rows)?;
    }
    let kept = rows.iter().any(|it| !it.deleted);
    if arguments.output == Output::Table {
        let mut table = vec![["NAME", "", "PLACE"].map(str::to_owned)];
        for it in rows {
            let what = it.problem.unwrap_or_else(|| "deleted".to_owned());
            table.push([it.name, what, it.destination]);
        }
        print::table(&table)?;
    } else {
        print::value(arguments.output, &rows)?;
    }
    Ok(if kept { FAILED } else { DONE })
}

/// What these words mean. `skipped`: a place could not be looked at, so that part of a name may mean another one there.
fn whole_names(
    words: &[String],
    names: &[(SnapshotName, u8)],
    skipped: bool,
    sites: &[Site<'_>],
) -> Result<Vec<String>, Failure> {
    let mut wanted = Vec::new();
    for word in words {
        if word == LATEST || skipped && word.parse::<SnapshotName>().is_err() {
            let when = if skipped {
                "where nobody could look"
            } else {
                "the next time"
            };
            let text =
                format!("nothing was deleted: {word} may mean another one {when}; name it whole");
            return Err(Failure::new(HELD, text));
        }
        let name = pick_name(names.to_vec(), word)?;
        wanted.push(name.ok_or_else(|| nowhere(word, sites))?.to_string());
    }
    Ok(wanted)
}

fn place_of(store: &LocalStore) -> String {
    store.path().display().to_string()
}

fn local_candidate(it: &Entry, ours: &Ours) -> Candidate {
    let manifest = it.manifest.as_ref().ok();
    Candidate {
        name: it.name.to_string(),
        cluster: manifest.map(|it| it.cluster_id.clone()),
        verified: it.level() >= VERIFIED && ours.trust.keeps(it.signer()),
        order: it.order(),
    }
}

fn bucket_candidate(it: &RemoteEntry, ours: &Ours) -> Candidate {
    Candidate {
        name: it.name.to_string(),
        cluster: it.cluster_id().map(str::to_owned),
        verified: it.level() >= VERIFIED && ours.trust.keeps(it.signer()),
        order: (it.name.revision, it.created().map(|it| it.0)),
    }
}

/// The newest verified one of a cluster stays in each place, unless a person insists.
fn check(
    site: &Site<'_>,
    all: &[Candidate],
    (wanted, force): (&[String], bool),
    clusters: &[String],
) -> Result<(), Failure> {
    // The ids that a cluster had before its restores are its own.
    let same = |one: &Option<String>, other: &Option<String>| {
        let ours = |it: &Option<String>| it.as_ref().is_some_and(|it| clusters.contains(it));
        one == other || ours(one) && ours(other)
    };
    for it in all.iter().filter(|it| wanted.contains(&it.name)) {
        let newer = all.iter().any(|other| {
            let stays = !wanted.contains(&other.name);
            stays && other.verified && same(&other.cluster, &it.cluster) && other.order >= it.order
        });
        if it.verified && !newer && !force {
            let text = format!(
                "nothing was deleted: {} is the newest verified snapshot in {}; --force deletes it anyway",
                it.name, site.name
            );
            return Err(Failure::new(HELD, text));
        }
    }
    Ok(())
}

impl Found<'_> {
    /// Those of these names.
    fn only(mut self, wanted: &[String]) -> Self {
        match &mut self {
            Found::Local(_, all) => all.retain(|it| wanted.contains(&it.name.to_string())),
            Found::Bucket(_, all) => all.retain(|it| wanted.contains(&it.name.to_string())),
        }
        self
    }

    fn names(&self) -> Vec<String> {
        match self {
            Found::Local(_, entries) => entries.iter().map(|it| it.name.to_string()).collect(),
            Found::Bucket(_, entries) => entries.iter().map(|it| it.name.to_string()).collect(),
        }
    }
}

/// Asks a person, where there is one.
fn confirmed(found: &[(&Site<'_>, Found<'_>)]) -> std::io::Result<bool> {
    if !std::io::stdin().is_terminal() {
        return Ok(false);
    }
    for (site, found) in found {
        for name in found.names() {
            eprintln!("{name}  {}", site.name);
        }
    }
    eprint!("delete? [y/N] ");
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

fn remove(
    context: &Context,
    site: &Site<'_>,
    first: bool,
    found: Found<'_>,
    rows: &mut Vec<Row>,
) -> Result<(), Failure> {
    let mut note = |name: String, problem: Option<String>| {
        rows.push(Row {
            name,
            destination: place::describe(site.destination),
            deleted: problem.is_none(),
            problem,
        });
    };
    match found {
        Found::Local(store, entries) => {
            let names: Vec<_> = entries.into_iter().map(|it| it.name).collect();
            if !first {
                copy::note_removed(&context.paths, site.destination, &names)?;
            }
            for name in names {
                store.remove(&name)?;
                note(name.to_string(), None);
            }
        }
        Found::Bucket(mut store, entries) => {
            let runtime = runtime()?;
            for entry in entries {
                let kept = runtime.block_on(store.delete(&entry))?;
                let problem =
                    kept.map(|why| format!("the store does not let the operator delete it: {why}"));
                note(entry.name.to_string(), problem);
            }
        }
    }
    Ok(())
}
