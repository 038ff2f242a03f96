//! `backup prune`, in every place.

use serde::Serialize;

use super::super::print::{self, Output};
use super::super::{Context, DONE, FAILED, Failure, HELD, Outcome, runtime};
use super::{Kind, Site, lock, ours, primary, sites, trusted_now};
use crate::backup::age::Ages;
use crate::backup::name::SnapshotName;
use crate::backup::place::{self, Work};
use crate::backup::prune::{self, Ours};
use crate::backup::remote;
use crate::backup::remote::RemoteEntry;
use crate::retention::Fate;
use crate::spec::ClusterSpec;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Pruned {
    name: String,
    destination: String,
    fate: &'static str,
    removed: bool,
}

pub(super) fn prune(context: &Context, dry_run: bool, at: Option<&str>, output: Output) -> Outcome {
    let (spec, store) = primary(context)?;
    let _lock = lock(context, Work::Local)?;
    let ours = ours(context, &spec)?;
    let now = trusted_now(context);
    let failed = place::save_failed(&context.paths);
    let frozen = prune::frozen(&store.list()?, &ours, now, failed);
    if let (false, Some(why)) = (dry_run, frozen) {
        let text = format!("nothing was removed: {}", prune::words(why));
        return Err(Failure::new(HELD, text));
    }
    let sites = sites(&spec, at)?;
    let further = sites
        .iter()
        .any(|it| it.name != store.path().display().to_string());
    let _copies = (further && !dry_run)
        .then(|| lock(context, Work::Copies))
        .transpose()?;
    let mut rows = Vec::new();
    let mut failures = false;
    for site in &sites {
        if let Some(why) = site.lacks_keys().filter(|_| at.is_none()) {
            eprintln!("etcd-operator: warning: {why}");
            continue;
        }
        match prune_site(context, &spec, site, &ours, dry_run) {
            Ok(more) => rows.extend(more),
            Err(failure) if sites.len() == 1 => return Err(failure),
            Err(failure) => {
                failures = true;
                eprintln!("etcd-operator: {}: {}", site.name, failure.text);
            }
        }
    }
    if output == Output::Table {
        let mut table = vec![["NAME", "", "WHY", "PLACE"].map(str::to_owned)];
        for it in rows {
            let goes = it.fate.starts_with("goes");
            let what = match (it.removed, goes) {
                (true, _) => "removed",
                (false, true) => "would be removed",
                (false, false) => "stays",
            };
            table.push([it.name, what.to_owned(), it.fate.to_owned(), it.destination]);
        }
        print::table(&table)?;
    } else {
        print::value(output, &rows)?;
    }
    Ok(if failures { FAILED } else { DONE })
}

fn prune_site(
    context: &Context,
    spec: &ClusterSpec,
    site: &Site<'_>,
    ours: &Ours,
    dry_run: bool,
) -> Result<Vec<Pruned>, Failure> {
    let keep = site.destination.keep;
    let ages = Ages::new(trusted_now(context));
    let row = |name: &SnapshotName, fate: Fate| Pruned {
        name: name.to_string(),
        destination: site.name.clone(),
        fate: prune::fate_words(fate),
        removed: fate.removes() && !dry_run,
    };
    match &site.kind {
        Kind::Local(store) => {
            let entries = store.list()?;
            let fates = prune::fates(keep, &entries, ours, &ages);
            let mut rows = Vec::new();
            for (entry, fate) in entries.iter().zip(fates) {
                if fate.removes() && !dry_run {
                    store.remove(&entry.name)?;
                }
                rows.push(row(&entry.name, fate));
            }
            Ok(rows)
        }
        Kind::Bucket(s3) => {
            let (mut store, entries) = site.look(context, s3, spec)?;
            if let Some(seconds) = store.clock_skew().filter(|_| !dry_run) {
                let text = format!(
                    "nothing was removed: the server's clock and this one are {seconds} s apart; next: see preflight"
                );
                return Err(Failure::new(HELD, text));
            }
            let fates: Vec<(RemoteEntry, Fate)> = if dry_run {
                let fates = remote::fates(keep, &entries, ours, &ages);
                entries.into_iter().zip(fates).collect()
            } else {
                runtime()?.block_on(store.prune(site.destination, ours, &ages))?
            };
            Ok(fates
                .iter()
                .map(|(it, fate)| row(&it.name, *fate))
                .collect())
        }
    }
}
