//! Copies are read back from time to time: one of each destination in turn, whichever was not looked at
//! for the longest time, so that a thin link carries no more than one of them in each period.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{arrived, arrived_path, further};
use crate::backup::name::SnapshotName;
use crate::backup::remote::CopyError;
use crate::backup::remote::{self, RemoteStore};
use crate::backup::{Progress, place, verify};
use crate::cluster::Timestamp;
use crate::observed::due_again;
use crate::paths::Paths;
use crate::retention::VERIFIED;
use crate::spec::ClusterSpec;
use crate::spec::backup::{Destination, Place, S3};
use crate::state;

/// When the copies of a destination were read back.
#[derive(Default, Serialize, Deserialize)]
struct ChecksFile {
    /// The last time; seconds since 1970.
    last: Option<i64>,
    /// Each of them.
    copies: BTreeMap<String, i64>,
}

fn checks_path(paths: &Paths, destination: &Destination) -> PathBuf {
    let key = place::key(destination);
    paths.backup().join(format!("checks-{key}.json"))
}

fn load_checks(paths: &Paths, destination: &Destination) -> ChecksFile {
    let file = state::load::<ChecksFile>(&checks_path(paths, destination));
    file.ok().flatten().unwrap_or_default()
}

/// What was seen to have arrived, by name.
fn names(paths: &Paths, spec: &ClusterSpec, destination: &Destination) -> Vec<String> {
    match &destination.place {
        Place::Local(_) => arrived(paths, spec, destination).into_iter().collect(),
        Place::S3(_) => remote::known_names(paths, destination)
            .into_iter()
            .filter(|(_, level)| *level > 0)
            .map(|(name, _)| name)
            .collect(),
    }
}

fn is_due(file: &ChecksFile, every: u64, now: Timestamp) -> bool {
    let last = file.last.map(Timestamp);
    last.is_none_or(|it| due_again(it, every, now))
}

/// When the last copy was read back and found whole, of the destination where that is longest ago; and whether
/// there are copies in one of which none ever was. A destination that is known to hold none does not count.
pub fn last_check(paths: &Paths, spec: &ClusterSpec) -> (Option<Timestamp>, bool) {
    let further = further(spec).iter();
    let held = further.filter(|it| !names(paths, spec, it).is_empty());
    let last: Vec<Option<i64>> = held.map(|it| load_checks(paths, it).last).collect();
    let known = last.iter().flatten().min();
    (known.copied().map(Timestamp), last.contains(&None))
}

/// Reads one copy of each destination back. One that is damaged waits to be made again. The caller
/// holds the lock on copies.
pub async fn check(
    paths: &Paths,
    spec: &ClusterSpec,
    now: Timestamp,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<(), CopyError> {
    let every = spec.backup.as_ref().and_then(|it| it.verify_every);
    let mut first_failure = None;
    for destination in further(spec) {
        let mut file = load_checks(paths, destination);
        if !every.is_some_and(|it| is_due(&file, it, now)) {
            continue;
        }
        let names = names(paths, spec, destination);
        file.copies.retain(|it, _| names.contains(it));
        let Some(name) = next(&file, &names) else {
            continue;
        };
        let checked = match &destination.place {
            Place::Local(_) => local(paths, spec, destination, &name, progress),
            Place::S3(it) => bucket(paths, spec, (destination, it), &name, progress).await,
        };
        match checked {
            Ok(()) => {
                tracing::info!(
                    name,
                    at = place::describe(destination),
                    "copy read back and found intact"
                );
                file.last = Some(now.0);
                file.copies.insert(name, now.0);
                state::save(&checks_path(paths, destination), &file)?;
            }
            Err(error) => {
                first_failure.get_or_insert(error);
            }
        }
    }
    first_failure.map_or(Ok(()), Err)
}

/// The one that was not looked at for the longest time; of several the newest.
fn next(file: &ChecksFile, names: &[String]) -> Option<String> {
    let revision = |it: &String| it.parse::<SnapshotName>().map_or(0, |it| it.revision);
    let longest = names.iter().min_by_key(|it| {
        let at = file.copies.get(*it).copied();
        (at, std::cmp::Reverse(revision(it)))
    });
    longest.cloned()
}

fn damaged(destination: &Destination, name: &str, why: String) -> CopyError {
    CopyError::CopyDamaged {
        name: name.to_owned(),
        place: place::describe(destination),
        why,
    }
}

fn local(
    paths: &Paths,
    spec: &ClusterSpec,
    destination: &Destination,
    name: &str,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<(), CopyError> {
    let Some(store) = place::local(spec, destination) else {
        return Ok(());
    };
    let entries = store.list()?;
    let entry = entries.iter().find(|it| it.name.to_string() == name);
    let problem = match entry.map(|it| (it, &it.manifest)) {
        None => Some("it is not there".to_owned()),
        Some((_, Err(why))) => Some(why.clone()),
        Some((it, Ok(manifest))) => {
            match verify::verify_in(&store, manifest, &it.name, VERIFIED, progress) {
                Ok(_) => None,
                Err(error) if error.is_damage() => {
                    store.record_level(&it.name, manifest, 0, None)?;
                    Some(error.to_string())
                }
                Err(error) => return Err(error.into()),
            }
        }
    };
    let Some(why) = problem else { return Ok(()) };
    let mut file = super::load(paths, destination);
    file.names.remove(name);
    state::save(&arrived_path(paths, destination), &file)?;
    Err(damaged(destination, name, why))
}

async fn bucket(
    paths: &Paths,
    spec: &ClusterSpec,
    (destination, s3): (&Destination, &S3),
    name: &str,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<(), CopyError> {
    let mut store = RemoteStore::open(paths, destination, s3, &spec.name)?;
    match store.prove(name, 2, progress).await? {
        None => Ok(()),
        Some(why) => Err(damaged(destination, name, why)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_copy_has_its_turn() {
        let name = |revision: u32| format!("lab-0-20261121T131500Z-r{revision}-9f3ab2c1");
        let names = [name(1), name(2), name(3)];
        let mut file = ChecksFile::default();
        let mut turn = |at| {
            let next = next(&file, &names).unwrap();
            file.copies.insert(next.clone(), at);
            next
        };
        let turns: Vec<String> = (0..6).map(&mut turn).collect();
        let round = [name(3), name(2), name(1)];
        assert_eq!(turns, [round.clone(), round].concat());
    }

    #[test]
    fn the_first_is_due_at_once_and_the_next_after_the_period() {
        let mut file = ChecksFile::default();
        assert!(is_due(&file, 100, Timestamp(5)));
        file.last = Some(5);
        assert!(!is_due(&file, 100, Timestamp(104)));
        assert!(is_due(&file, 100, Timestamp(105)));
        assert!(!is_due(&file, 100, Timestamp(-1)), "the clock went back");
        file.last = Some(2_000_000_000);
        assert!(is_due(&file, 100, Timestamp(5)), "it was wrong before");
    }

    /// Else a check would be due for ever: there is nothing to read back.
    #[test]
    fn a_destination_that_holds_no_copy_waits_for_no_check() {
        let root = std::env::temp_dir().join(format!("no-copy-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        let paths = Paths::under(&root);
        state::create_private_dir(&paths.backup()).unwrap();
        let text = format!(
            "apiVersion: etcd.edge-operator.io/v1alpha1\nkind: EtcdCluster\nmetadata: {{name: lab}}\nspec:\n  \
             backup: {{interval: 1h, destinations: [{{local: {{path: /a}}}}, {{local: {{path: {0}/b}}}}, \
             {{local: {{path: {0}/c}}}}]}}\n",
            root.display()
        );
        let spec = crate::document::parse(text.as_bytes()).unwrap();
        assert_eq!(last_check(&paths, &spec), (None, false));
        let first = &further(&spec)[0];
        let name = "lab-0-20261121T131500Z-r1-9f3ab2c1";
        let store = place::local(&spec, first).unwrap();
        let path = store.snapshot(&name.parse().unwrap());
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::File::create(path).unwrap();
        let mut file = super::super::load(&paths, first);
        file.names.insert(name.to_owned());
        state::save(&arrived_path(&paths, first), &file).unwrap();
        assert_eq!(last_check(&paths, &spec), (None, true));
        let file = ChecksFile {
            last: Some(5),
            ..ChecksFile::default()
        };
        state::save(&checks_path(&paths, first), &file).unwrap();
        assert_eq!(last_check(&paths, &spec), (Some(Timestamp(5)), false));
        std::fs::remove_dir_all(&root).unwrap();
    }
}
