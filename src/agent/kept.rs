//! The last sound document, kept in the state directory. An agent that finds no sound document starts with
//! the kept one, so a typo causes no outage.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::clock;
use crate::cluster::{Detail, Timestamp, detail};
use crate::document::{self, Document, Problem, Problems};
use crate::member::records::IdentityFile;
use crate::paths::Paths;
use crate::state::{self, StateError};

/// A document that is in force.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// The document itself.
    pub document: Document,
    /// The file that it was read from.
    pub path: PathBuf,
    /// When it was accepted.
    pub at: Timestamp,
    /// The number of documents accepted since the agent started.
    pub generation: i64,
}

impl Accepted {
    /// A document that comes into force now.
    pub fn of(document: Document, path: &Path) -> Self {
        Accepted {
            document,
            path: path.to_owned(),
            at: clock::now(),
            generation: 1,
        }
    }
}

/// A document in one word: the sha256 of its text.
pub(super) fn sum(document: &Document) -> String {
    state::sha256(document.text.as_bytes())
}

/// A document that is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedDocument {
    /// One CamelCase word.
    pub reason: &'static str,
    /// Every problem, with its line.
    pub problems: Vec<String>,
}

impl RefusedDocument {
    /// A document that the parser or the file system refuses.
    fn of(path: &Path, problems: &Problems) -> Self {
        let readable = path.is_file() && std::fs::File::open(path).is_ok();
        RefusedDocument {
            reason: if readable {
                "SpecInvalid"
            } else {
                "DocumentUnreadable"
            },
            problems: problems.0.iter().map(Problem::to_string).collect(),
        }
    }

    /// Every problem, each after the file's name.
    pub fn lines(&self, path: &Path) -> Vec<String> {
        let problems = self.problems.iter();
        problems.map(|it| document::line(path, it)).collect()
    }

    /// The first problem, and how many more there are.
    pub fn why(&self) -> Detail {
        let first = self.problems.first().map_or("", String::as_str);
        match self.problems.len() {
            0 | 1 => detail(format_args!("{first}")),
            // Shortens the first problem, so that the hint at the end fits.
            all => {
                let first: String = first.chars().take(WHY_MAX).collect();
                let more = all - 1;
                detail(format_args!(
                    "{first} (and {more} more: etcd-operator diff)"
                ))
            }
        }
    }
}

/// Characters of the first problem, if there are more problems.
const WHY_MAX: usize = 180;

/// The kept document on disk.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct KeptDocument {
    text: String,
    path: PathBuf,
    /// When it was accepted, in seconds since 1970.
    accepted: i64,
}

/// Reads a document for this host: it has to name the cluster on this host.
pub fn read(paths: &Paths, path: &Path) -> Result<Document, RefusedDocument> {
    let document = document::read(path, &paths.lib);
    let document = document.map_err(|it| RefusedDocument::of(path, &it))?;
    let lives_here = state::load::<IdentityFile>(&paths.identity())
        .ok()
        .flatten();
    match lives_here {
        Some(it) if it.cluster.name != document.spec.name.as_str() => Err(another(&it, &document)),
        _ => Ok(document),
    }
}

fn another(lives_here: &IdentityFile, document: &Document) -> RefusedDocument {
    let (kept, named) = (&lives_here.cluster.name, &document.spec.name);
    let line = document.line_of("metadata.name");
    RefusedDocument {
        reason: "DocumentOfAnotherCluster",
        problems: vec![format!(
            "line {line}: metadata.name: found '{named}', and this host keeps the cluster {kept}: set it back to {kept}"
        )],
    }
}

/// Keeps a document, unless the same text is kept already.
pub fn keep(paths: &Paths, accepted: &Accepted) -> Result<(), StateError> {
    let path = paths.kept_document();
    let kept = state::load::<KeptDocument>(&path).ok().flatten();
    if kept.is_some_and(|it| it.text == accepted.document.text) {
        return Ok(());
    }
    let file = KeptDocument {
        text: accepted.document.text.clone(),
        path: accepted.path.clone(),
        accepted: accepted.at.0,
    };
    state::save(&path, &file)
}

/// The kept document, if it is still sound.
pub fn load(paths: &Paths) -> Option<Accepted> {
    let kept: KeptDocument = state::load(&paths.kept_document()).ok()??;
    Some(Accepted {
        document: document::check(kept.text.as_bytes()).ok()?.at(&paths.lib),
        path: kept.path,
        at: Timestamp(kept.accepted),
        generation: 1,
    })
}

/// Chooses the document that an agent starts with: the one at `path`, else the kept one with the reason why
/// the first is refused. If none is kept, a document of another cluster is chosen, and the planner holds.
pub fn choose(
    paths: &Paths,
    path: &Path,
) -> Result<(Accepted, Option<RefusedDocument>), RefusedDocument> {
    let refused = match read(paths, path) {
        Ok(document) => {
            let mut accepted = Accepted::of(document, path);
            // An unchanged document keeps the time of its acceptance.
            if let Some(kept) = load(paths).filter(|it| it.document == accepted.document) {
                accepted.at = kept.at;
            }
            return Ok((accepted, None));
        }
        Err(refused) => refused,
    };
    match (load(paths), document::read(path, &paths.lib)) {
        (Some(kept), _) => Ok((kept, Some(refused))),
        (None, Ok(document)) => Ok((Accepted::of(document, path), None)),
        (None, Err(_)) => Err(refused),
    }
}
