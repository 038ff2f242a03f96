//! What was installed, written down beside it: what is started is compared with that.
//!
//! It finds what happens by accident: a copy by hand over the old program, half an image, another build. Whoever can write
//! to the store on purpose can write the record, too.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::state::{self, StateError};

/// In the folder of a version. A line for each program: its name, its checksum, and the stamp that its file had.
const FILE: &str = "installed";
/// Of an archive that the list of releases does not know.
const UNVERIFIED: &str = "unverified";

/// What the record says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    programs: Vec<Program>,
    /// Nobody compared it with the checksum of a release.
    pub(super) unverified: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Program {
    name: String,
    sha256: String,
    stamp: String,
}

impl Record {
    /// Of programs that lie in a folder, each with its checksum.
    pub(super) fn of(folder: &Path, programs: &[(&str, String)], unverified: bool) -> Self {
        let programs = programs.iter().map(|(name, sha256)| Program {
            name: (*name).to_owned(),
            sha256: sha256.clone(),
            stamp: stamp(&folder.join(name)).unwrap_or_default(),
        });
        Record {
            programs: programs.collect(),
            unverified,
        }
    }

    /// None where nothing was written down: in a Pod the image has the programs.
    pub(super) fn load(folder: &Path) -> Option<Self> {
        let text = fs::read_to_string(folder.join(FILE)).ok()?;
        let program = |line: &str| {
            let (name, rest) = line.split_once(' ')?;
            let (sha256, stamp) = rest.split_once(' ')?;
            (sha256.len() == 64).then(|| Program {
                name: name.to_owned(),
                sha256: sha256.to_owned(),
                stamp: stamp.to_owned(),
            })
        };
        Some(Record {
            programs: text.lines().filter_map(program).collect(),
            unverified: text.lines().any(|it| it == UNVERIFIED),
        })
    }

    fn text(&self) -> String {
        let programs = self.programs.iter();
        let lines = programs.map(|it| format!("{} {} {}\n", it.name, it.sha256, it.stamp));
        let unverified = self.unverified.then(|| format!("{UNVERIFIED}\n"));
        lines.chain(unverified).collect()
    }

    /// Into a folder that is not in its place yet.
    pub(super) fn write_synced(&self, folder: &Path) -> Result<(), StateError> {
        state::write_synced(&folder.join(FILE), self.text().as_bytes())
    }

    /// Into the folder that it speaks of, where it says something else there.
    pub(super) fn save(&self, folder: &Path) -> Result<(), StateError> {
        if Self::load(folder).as_ref() == Some(self) {
            return Ok(());
        }
        state::write_file(&folder.join(FILE), self.text().as_bytes())
    }

    /// The checksum of a program.
    pub(super) fn sha256(&self, name: &str) -> Option<&str> {
        let found = self.programs.iter().find(|it| it.name == name);
        found.map(|it| it.sha256.as_str())
    }
}

/// Nothing is known of what lies there any more.
pub(super) fn forget(folder: &Path) {
    let _ = fs::remove_file(folder.join(FILE));
}

/// A file that was written, replaced or given away since has another one.
fn stamp(file: &Path) -> io::Result<String> {
    let it = fs::metadata(file)?;
    Ok(format!(
        "{} {} {}.{:09}",
        it.ino(),
        it.size(),
        it.ctime(),
        it.ctime_nsec()
    ))
}

/// The last programs whose stamps had changed, and whether their content had: nobody reads 25 MB with each look.
static READ: Mutex<Vec<(String, bool)>> = Mutex::new(Vec::new());
/// The programs of a version or two.
const READ_MAX: usize = 8;
/// So often an installation may come between two looks.
const TURNS: u32 = 3;

/// Whether a program in a folder is another one than was installed. What cannot be read is not said to be another one:
/// whoever starts it meets the reason.
pub(super) fn is_changed(folder: &Path) -> bool {
    for _ in 0..TURNS {
        let Some(record) = Record::load(folder) else {
            return false;
        };
        let changed = |it: &Program| {
            let file = folder.join(&it.name);
            let now = stamp(&file).ok().filter(|now| *now != it.stamp)?;
            differs(&file, &now, &it.sha256)
        };
        if !record.programs.iter().filter_map(changed).any(|it| it) {
            return false;
        }
        // Somebody may have installed another one meanwhile.
        if Record::load(folder).as_ref() == Some(&record) {
            return true;
        }
    }
    true
}

/// Whether the file with this stamp has another content; `None`: it cannot be read.
fn differs(file: &Path, stamp: &str, sha256: &str) -> Option<bool> {
    let key = format!("{} {stamp} {sha256}", file.display());
    let known = {
        let read = READ.lock().unwrap_or_else(PoisonError::into_inner);
        read.iter().find(|it| it.0 == key).map(|it| it.1)
    };
    if known.is_some() {
        return known;
    }
    let mut open = fs::File::open(file).ok()?;
    let found = state::copy_hashed(&mut open, &mut io::sink()).ok()?;
    let differs = found != sha256;
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    if read.len() >= READ_MAX {
        read.remove(0);
    }
    read.push((key, differs));
    Some(differs)
}

/// Writes down the stamps that files have now whose content is what was installed: those that came with an image of the
/// disk have others, and each start would read all of them.
pub(super) fn renew(folder: &Path) -> Result<(), StateError> {
    let Some(mut record) = Record::load(folder) else {
        return Ok(());
    };
    for it in &mut record.programs {
        let file = folder.join(&it.name);
        let Ok(now) = stamp(&file) else { continue };
        if now != it.stamp && differs(&file, &now, &it.sha256) == Some(false) {
            it.stamp = now;
        }
    }
    record.save(folder)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test writes files")]
mod tests {
    use super::*;

    #[test]
    fn another_content_is_found_and_the_same_one_at_another_time_is_not() {
        let dir = std::env::temp_dir().join(format!("installed-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        assert!(!is_changed(&dir), "nothing was written down");
        let sum = |text: &str| crate::state::sha256(text.as_bytes());
        for name in ["etcd", "etcdutl"] {
            fs::write(dir.join(name), name).unwrap();
        }
        let programs = ["etcd", "etcdutl"].map(|it| (it, sum(it)));
        Record::of(&dir, &programs, true).save(&dir).unwrap();
        let known = Record::load(&dir).unwrap();
        assert_eq!(known.sha256("etcd"), Some(sum("etcd").as_str()));
        assert!(known.unverified && !is_changed(&dir));
        for name in ["etcd", "etcdutl"] {
            let place = |text: &str| {
                let fresh = dir.join("fresh");
                fs::write(&fresh, text).unwrap();
                fs::rename(&fresh, dir.join(name)).unwrap();
            };
            place("another");
            assert!(is_changed(&dir), "{name}");
            place(name);
            assert!(!is_changed(&dir), "{name}");
            renew(&dir).unwrap();
            assert_ne!(Record::load(&dir).unwrap(), known);
            assert!(Record::load(&dir).unwrap().unverified);
        }
        forget(&dir);
        assert_eq!(Record::load(&dir), None);
        fs::remove_dir_all(&dir).unwrap();
    }
}
