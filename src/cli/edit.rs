//! `diff`, `reload`, and what `plan` says of the document on disk: what an edit changes, before and after.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::desk::Desk;
use super::print::{self, Output};
use super::{ClusterArgs, Context, DONE, DiffArgs, FAILED, Failure, HELD, Outcome, USAGE, runtime};
use crate::agent::edit::{self, FieldChange, InForce};
use crate::agent::kept;
use crate::agent::socket::{Reply, Request, ask};
use crate::document::compare::shown;
use crate::document::{self, Problem, Problems};
use crate::member::records::{IdentityFile, Running, Served};
use crate::paths::Paths;
use crate::state;

/// How a document comes into force.
const TAKE_UP: &str = "apply it with systemctl reload etcd-operator (or etcd-operator reload)";

/// What is known of what is in force.
pub(super) enum Known {
    /// By the agent, or by the records of this host.
    Is(Box<InForce>),
    /// This user may not read them.
    NotAllowed,
}

/// A document beside what is in force.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Comparison {
    /// The document's file.
    pub(super) document: PathBuf,
    /// What is wrong with it; nothing: it is sound.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) problems: Vec<String>,
    /// Whether what is in force could be read.
    pub(super) compared: bool,
    /// What it would change.
    pub(super) changes: Vec<FieldChange>,
}

impl Comparison {
    /// Of a file.
    pub(super) fn of(context: &Context, path: &Path) -> Result<Self, Failure> {
        let document = match read(path)?.and_then(|it| document::check(&it)) {
            Ok(document) => document.at(&context.paths.lib),
            Err(problems) => return Ok(Comparison::refused(path, &problems)),
        };
        Ok(Comparison::compared(
            path,
            match known(context)? {
                Known::Is(it) => Some(it.changes(&context.paths, &document)),
                Known::NotAllowed => None,
            },
        ))
    }

    /// Of a document beside the object of its name.
    fn of_object(cluster: &ClusterArgs, path: &Path) -> Result<Self, Failure> {
        let document = match read(path)?.and_then(|it| document::check_of_kubernetes(&it)) {
            Ok(document) => document,
            Err(problems) => return Ok(Comparison::refused(path, &problems)),
        };
        let desk = Desk::to(cluster, Some(&document.spec.name))?;
        let changes = edit::changes_of_object(&desk.object()?, &document);
        Ok(Comparison::compared(path, Some(changes)))
    }

    /// Of a sound document; none: this user may not read what is in force.
    fn compared(path: &Path, changes: Option<Vec<FieldChange>>) -> Self {
        Comparison {
            document: path.to_owned(),
            problems: Vec::new(),
            compared: changes.is_some(),
            changes: changes.unwrap_or_default(),
        }
    }

    fn refused(path: &Path, problems: &Problems) -> Self {
        Comparison {
            problems: problems.0.iter().map(Problem::to_string).collect(),
            ..Comparison::compared(path, None)
        }
    }

    /// Nothing of it differs from what is in force, as far as that is known.
    pub(super) fn is_in_force(&self) -> bool {
        self.problems.is_empty() && self.changes.is_empty()
    }

    /// 0: it can be taken as it is; 2: it is bad; 3: a part of it is refused, or waits.
    pub(super) fn code(&self) -> u8 {
        if !self.problems.is_empty() {
            USAGE
        } else if self.changes.iter().any(|it| it.hold.is_some()) {
            HELD
        } else {
            DONE
        }
    }

    /// Every problem, on stderr.
    pub(super) fn complain(&self) {
        for problem in &self.problems {
            eprintln!("etcd-operator: {}", document::line(&self.document, problem));
        }
    }
}

/// What a file holds, or standard input.
fn read(path: &Path) -> Result<Result<Vec<u8>, Problems>, Failure> {
    if path != Path::new("-") {
        return Ok(document::bytes_of(path));
    }
    let mut bytes = Vec::new();
    std::io::stdin()
        .take(document::SIZE_MAX + 1)
        .read_to_end(&mut bytes)?;
    Ok(Ok(bytes))
}

/// What is in force: by the agent, else by the records.
pub(super) fn known(context: &Context) -> Result<Known, Failure> {
    match runtime()?.block_on(ask(&context.paths.socket(), &Request::InForce)) {
        Reply::Answered(text) => Ok(Known::Is(Box::new(serde_json::from_str(&text)?))),
        Reply::NotAllowed => Ok(Known::NotAllowed),
        Reply::Refused(_) | Reply::Nobody | Reply::Silent => Ok(recorded(&context.paths)),
    }
}

/// The last document that was sound, the process that runs, and who lives here.
fn recorded(paths: &Paths) -> Known {
    let hidden = |path: &Path| {
        std::fs::read_dir(path).is_err_and(|it| it.kind() == std::io::ErrorKind::PermissionDenied)
    };
    if hidden(&paths.lib) || hidden(&paths.run) {
        return Known::NotAllowed;
    }
    let running = Running::load(paths);
    let identity = state::load::<IdentityFile>(&paths.identity())
        .ok()
        .flatten();
    let served = state::load::<Served>(&paths.served()).ok().flatten();
    Known::Is(Box::new(InForce {
        start_took_milliseconds: served.and_then(|it| it.took_milliseconds),
        ..InForce::of(
            paths,
            kept::load(paths).as_ref(),
            running.as_ref(),
            identity,
        )
    }))
}

pub(super) fn diff(context: &Context, arguments: &DiffArgs) -> Outcome {
    let (file, output) = (arguments.file.as_deref(), arguments.output);
    let desk = Desk::is_meant(&arguments.cluster);
    let path = match file {
        None if desk => return Err(Failure::new(USAGE, "which document? name its file, or -")),
        file => file.unwrap_or(&context.config),
    };
    let comparison = if desk {
        Comparison::of_object(&arguments.cluster, path)?
    } else {
        Comparison::of(context, path)?
    };
    comparison.complain();
    if output != Output::Table {
        print::value(output, &comparison)?;
        return Ok(comparison.code());
    }
    if !comparison.problems.is_empty() {
        return Ok(USAGE);
    }
    let name = path.display();
    let apply = if desk {
        format!("kubectl apply -f {name}")
    } else {
        "systemctl reload etcd-operator (or etcd-operator reload)".to_owned()
    };
    if !comparison.compared {
        print::text(&format!(
            "{name} is sound; to compare it with the document in force: sudo etcd-operator diff {name}\n"
        ))?;
    } else if comparison.changes.is_empty() {
        print::text(&format!("{name} is in force: nothing differs\n"))?;
    } else {
        changes(&comparison.changes)?;
        print::text(&format!(
            "\nnothing was changed: to apply the document, {apply}\n"
        ))?;
    }
    Ok(comparison.code())
}

/// What `plan` says of the document on disk.
pub(super) fn on_disk(comparison: &Comparison) -> std::io::Result<()> {
    if comparison.changes.is_empty() {
        return Ok(());
    }
    let name = comparison.document.display();
    print::text(&format!("\n{name} is not in force yet: {TAKE_UP}\n"))?;
    changes(&comparison.changes)
}

fn changes(changes: &[FieldChange]) -> std::io::Result<()> {
    let mut rows = vec![["FIELD", "IN FORCE", "ASKED", "EFFECT"].map(str::to_owned)];
    rows.extend(changes.iter().map(|it| {
        [
            it.path.clone(),
            shown(it.in_force.as_ref()),
            shown(it.asked.as_ref()),
            it.message.clone(),
        ]
    }));
    print::table(&rows)?;
    let mut next: Vec<&str> = changes
        .iter()
        .filter_map(|it| it.next_step.as_deref())
        .collect();
    next.dedup();
    for it in next {
        print::text(&format!("next: {it}\n"))?;
    }
    Ok(())
}

pub(super) fn reload(context: &Context, output: Output) -> Outcome {
    let socket = context.paths.socket();
    let runtime = runtime()?;
    if context.named
        && let Reply::Answered(text) = runtime.block_on(ask(&socket, &Request::InForce))
    {
        let in_force: InForce = serde_json::from_str(&text)?;
        if let Some(it) = in_force.document.filter(|it| it.path != context.config) {
            let text = format!(
                "the agent reads {}: edit that one, or start it with --config {}",
                it.path.display(),
                context.config.display()
            );
            return Err(Failure::new(USAGE, text));
        }
    }
    let text = match runtime.block_on(ask(&socket, &Request::Reload)) {
        Reply::Answered(text) => text,
        Reply::Refused(problems) => return Err(Failure::new(USAGE, problems)),
        other => return Err(unanswered(context, &other)),
    };
    let all: Vec<FieldChange> = serde_json::from_str(&text)?;
    if output != Output::Table {
        print::value(output, &all)?;
    } else if all.is_empty() {
        print::text("the document is in force: nothing differs\n")?;
    } else {
        print::text("the document is accepted\n")?;
        changes(&all)?;
    }
    let held = all.iter().any(|it| it.hold.is_some());
    Ok(if held { HELD } else { DONE })
}

/// Why no agent answered.
pub(super) fn unanswered(context: &Context, asked: &Reply) -> Failure {
    let socket = context.paths.socket();
    let text = match asked {
        Reply::NotAllowed => format!(
            "{} answers only root and its own group: use sudo",
            socket.display()
        ),
        Reply::Silent => format!(
            "the agent behind {} does not answer: see its log",
            socket.display()
        ),
        _ => format!(
            "no agent answers at {}: systemctl start etcd-operator, or etcd-operator agent",
            socket.display()
        ),
    };
    Failure::new(FAILED, text)
}
