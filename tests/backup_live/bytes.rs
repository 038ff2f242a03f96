//! Any changed, missing or added byte of a stored snapshot is found.

use std::fs;
use std::path::Path;

use etcd_operator::backup::verify;
use serde_json::Value;

use crate::lab::text;
use crate::stage::Stage;

/// What verification finds wrong with the only snapshot there.
fn problem(stage: &Stage) -> Option<String> {
    let entries = stage.entries();
    let [entry] = entries.as_slice() else {
        return Some(format!("{} snapshots", entries.len()));
    };
    let manifest = match &entry.manifest {
        Ok(manifest) => manifest,
        Err(why) => return Some(why.clone()),
    };
    let path = stage.store().snapshot(&entry.name);
    let found = verify::verify(&path, manifest, 3, &mut |_| ());
    found.err().map(|it| it.to_string())
}

/// The first and the last bytes, and some between them.
fn places(length: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..length.min(40))
        .chain((0..length).step_by(length / 120 + 1))
        .chain(length.saturating_sub(60)..length)
        .collect();
    places.sort_unstable();
    places.dedup();
    places
}

/// Changes, takes and adds a byte at each place.
fn any_byte(stage: &Stage, file: &Path, places: &[usize]) {
    let whole = fs::read(file).unwrap();
    let mut missed = Vec::new();
    let mut look = |bytes: &[u8], what: String| {
        fs::write(file, bytes).unwrap();
        if problem(stage).is_none() {
            missed.push(what);
        }
    };
    for &place in places {
        let mut other = whole.clone();
        other[place] ^= 1 << (place % 8);
        look(&other, format!("byte {place} changed"));
        let mut other = whole.clone();
        other.remove(place);
        look(&other, format!("byte {place} missing"));
        let mut other = whole.clone();
        other.insert(place, whole[place]);
        look(&other, format!("byte {place} twice"));
    }
    for (added, what) in [(0, "zero"), (b'\n', "line feed"), (b' ', "space")] {
        let other = [whole.as_slice(), &[added]].concat();
        look(&other, format!("a {what} behind the end"));
    }
    look(&[], "empty".to_owned());
    fs::write(file, &whole).unwrap();
    assert_eq!(problem(stage), None, "no false alarm");
    assert!(
        missed.is_empty(),
        "{} of {}: {missed:#?}",
        missed.len(),
        places.len() * 3
    );
    println!(
        "{} places of {} bytes in {}",
        places.len(),
        whole.len(),
        file.display()
    );
}

#[test]
fn any_changed_missing_or_added_byte_of_a_snapshot_is_found() {
    let stage = Stage::new("3.6");
    stage.fill("key", 4000, 100);
    let (file, manifest) = stage.saved();
    assert_eq!(problem(&stage), None);
    let length = usize::try_from(fs::metadata(&file).unwrap().len()).unwrap();
    assert!(length > 200_000, "several frames: {length}");
    any_byte(&stage, &file, &places(length));
    let manifest = stage.dir().join(format!("{}.json", manifest.name));
    let length = usize::try_from(fs::metadata(&manifest).unwrap().len()).unwrap();
    any_byte(&stage, &manifest, &(0..length).collect::<Vec<_>>());
}

#[test]
fn backup_verify_finds_a_changed_byte_writes_it_down_and_takes_it_back() {
    let stage = Stage::new("3.6");
    stage.fill("key", 2000, 100);
    let (file, manifest) = stage.saved();
    let whole = fs::read(&file).unwrap();
    let level = || {
        let output = stage.lab.operator(&["backup", "list", "-o", "json"]);
        let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(rows[0]["name"], manifest.name);
        rows[0]["level"].as_u64().unwrap()
    };
    let verify = || {
        let output = stage.lab.operator(&["backup", "verify", &manifest.name]);
        (output.status.code().unwrap(), text(&output.stdout))
    };
    assert_eq!(level(), 3);
    let (code, words) = verify();
    assert_eq!((code, words.contains("verified")), (0, true), "{words}");
    for place in [0, whole.len() / 2, whole.len() - 1] {
        let mut other = whole.clone();
        other[place] ^= 0x10;
        fs::write(&file, &other).unwrap();
        let (code, words) = verify();
        assert_eq!(code, 1, "{words}");
        assert!(
            words.contains("is not what was written: its sha256 differs"),
            "{words}"
        );
        assert_eq!(level(), 0, "it is known to be damaged");
        let output = stage.lab.operator(&["backup", "list"]);
        assert!(text(&output.stdout).contains("(damaged)"));
    }
    fs::write(&file, &whole).unwrap();
    assert_eq!(verify().0, 0);
    assert_eq!(level(), 3);
}
