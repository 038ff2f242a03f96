//! `restore --pod` and `backup worker`: the host's work, inside of a Pod that the controller made for it.
//!
//! A restore has the member's volume as its state directory; etcd is started on the new data, asked, and
//! stopped again; the controller reads the outcome from the Pod's last words. The worker has no volume of the
//! member: it is a client, and answers for itself. A rehearsal (`--rehearse`) has none either: it starts another version of
//! etcd on a copy of the data.

use std::path::Path;

use super::{BackupCommand, Command, Context, DONE, Failure, Outcome, RestoreArgs, runtime};
use crate::agent::Agent;
use crate::agent::driver::{HostDriver, ProcessDriver};
use crate::backup::restore;
use crate::backup::served::Served;
use crate::backup::work::{Member, NotRehearsed, rehearse_alone};
use crate::cluster::detail;
use crate::error::chain;
use crate::etcd::{client, store};
use crate::member::certificates;
use crate::member::crash::CrashPoint;
use crate::member::pod::{
    BACKUP_VARIABLE, CLAIM_DIR, DOCUMENT_VARIABLE, PodMember, RESTORE_VARIABLE, Rehearsed,
    Restored, SERVED_VARIABLE, SIGNER_DIR, SIGNER_VARIABLE, TLS_DIR, VARIABLE, is_of_worker,
    lay_down_credentials, say_last,
};
use crate::member::records::{self, IdentityFile};
use crate::member::refused::denied;
use crate::member::restore_record::{self, Outcome as Ended, Reason, RestoreRecord, RestoreReport};
use crate::observed::Reading;
use crate::paths::Paths;
use crate::spec::ClusterSpec;
use crate::state;
use crate::tls::{Certificates, ClientFiles};
use crate::version::Version;
use crate::worker::{Config, Worker};

fn missing(name: &str) -> Failure {
    Failure::new(super::USAGE, format!("{name} is not in the environment"))
}

fn told(name: &str) -> Result<String, Failure> {
    std::env::var(name).map_err(|_| missing(name))
}

/// Refuses a volume that this user may not write to. The controller reads the reason at the end of the Pod's log.
fn may_write(volume: &Path) -> Result<(), Failure> {
    match denied(volume) {
        Some(refusal) => {
            let text = format!("{refusal}; next: {}", refusal.next_step());
            Err(Failure::new(super::FAILED, text))
        }
        None => Ok(()),
    }
}

/// Lays down what came with the environment: the document, the image's etcd, keys of buckets.
fn prepare(context: &Context, paths: &Paths) -> Result<(PodMember, ClusterSpec), Failure> {
    let document = told(DOCUMENT_VARIABLE)?;
    let member = PodMember::from_environment().ok_or_else(|| missing(VARIABLE))?;
    state::create_private_dir(&paths.run)?;
    let version = member.launch.version.parse();
    let version = version.map_err(|_| missing("a version of etcd"))?;
    store::link(&paths.store(), version)?;
    state::write_file(&paths.document(), document.as_bytes())?;
    let mut spec = context.document()?;
    lay_down_credentials(&mut spec)?;
    for it in &mut spec.members {
        it.peer_url = member.peer_url.as_str().try_into().unwrap_or_default();
    }
    Ok((member, spec))
}

/// The worker that serves the snapshots; none: they lie on a claim of this Pod.
fn served() -> Result<Option<Served>, Failure> {
    let Ok(served) = std::env::var(SERVED_VARIABLE) else {
        return Ok(None);
    };
    let served = serde_json::from_str(&served);
    served.map(Some).map_err(|_| missing(SERVED_VARIABLE))
}

/// Carries the restore out, or brings one that was cut to its end.
pub(super) fn restore(context: &Context, arguments: &RestoreArgs) -> Outcome {
    let id = told(RESTORE_VARIABLE)?;
    let paths = &context.paths;
    may_write(&paths.lib)?;
    state::create_private_dir(&paths.member())?;
    // It may have ended before the Pod did: it is never made twice.
    let ended = || restore_record::last_report(paths).filter(|it| it.id == id);
    let report = if let Some(report) = ended() {
        Ok(report)
    } else {
        let (_, spec) = prepare(context, paths)?;
        let last =
            || restore_record::last_report(paths).filter(|it| arguments.resume || it.id == id);
        carry_out(context, &spec, &id, arguments).and_then(|()| {
            last().ok_or_else(|| Failure::new(super::FAILED, "the restore left no report"))
        })
    };
    let (_, identity) = records::load_identities(paths, &paths.member())?;
    let restored = match report {
        Ok(report) => Restored {
            id,
            identity,
            succeeded: report.outcome == Ended::Restored,
            data_found: false,
            snapshot: report.snapshot.clone(),
            revision: report.snapshot_revision,
            revisions_lost: report.revisions_lost,
            lost: restore_record::lost_words(report.revisions_lost, report.lost_is),
            message: message(&report),
        },
        Err(failure) => Restored {
            id,
            data_found: arguments.bootstrap && has_data(paths, identity.as_ref()),
            identity,
            succeeded: false,
            snapshot: arguments.from.clone(),
            revision: 0,
            revisions_lost: None,
            lost: String::new(),
            message: failure.text,
        },
    };
    say_last(&serde_json::to_string(&restored)?);
    Ok(DONE)
}

fn message(report: &RestoreReport) -> String {
    let kept = report
        .kept
        .as_ref()
        .map(|it| format!("the old data is kept on the volume in {}", it.display()));
    report.message.clone().or(kept).unwrap_or_default()
}

fn carry_out(
    context: &Context,
    spec: &ClusterSpec,
    id: &str,
    arguments: &RestoreArgs,
) -> Result<(), Failure> {
    let paths = &context.paths;
    let runtime = runtime()?;
    let other = |it: &RestoreRecord| it.id != id;
    if RestoreRecord::load(paths)?.is_some_and(|it| other(&it) && it.has_begun()) {
        // An earlier request was cut and then withdrawn: nothing is left half done.
        end(context, spec, &runtime)?;
    }
    if arguments.resume {
        return Ok(());
    }
    // One that touched nothing and was withdrawn is not carried out.
    if RestoreRecord::load(paths)?.as_ref().is_none_or(other) {
        let (_, former) = records::load_identities(paths, &paths.member())?;
        if arguments.bootstrap && has_data(paths, former.as_ref()) {
            return Err(Failure::new(
                super::FAILED,
                "the volume holds data, which is kept: bootstrap needs an empty volume",
            ));
        }
        let reason = if former.is_some() {
            Reason::Command
        } else {
            Reason::Bootstrap
        };
        let own = std::env::var(SIGNER_VARIABLE).ok();
        let trust = super::restore::trust(context, spec, arguments).with_own(own);
        let served = served()?;
        let found = runtime.block_on(super::restore::find(
            context,
            spec,
            arguments,
            (former.as_ref(), &trust, false),
            served.as_ref(),
        ))?;
        if former.is_some() {
            super::restore::check(spec, &found, former.as_ref())?;
        }
        restore::check_room(&paths.member(), found.file.database)?;
        found.import(paths)?;
        let live = arguments.live_revision;
        // The operator names an older line only where a person asked for the restore.
        let record = RestoreRecord::requested(id.to_owned(), reason, found.file, live, former);
        record.with_version_of(spec.version).save(paths)?;
        CrashPoint::RequestWritten.pass();
    }
    end(context, spec, &runtime)
}

/// Also where it is missed: etcd has served it.
fn has_data(paths: &Paths, identity: Option<&IdentityFile>) -> bool {
    if identity.is_some_and(|it| it.member.id.is_some()) {
        return true;
    }
    let data = records::data_dir(&paths.member());
    std::fs::read_dir(data).is_ok_and(|mut it| it.next().is_some())
}

/// Brings the restore that is written down to its end.
fn end(
    context: &Context,
    spec: &ClusterSpec,
    runtime: &tokio::runtime::Runtime,
) -> Result<(), Failure> {
    let paths = &context.paths;
    let _lock = crate::agent::lock(paths, crate::agent::Locking::Act)?;
    let driver = HostDriver::Process(ProcessDriver::new(paths));
    let mut agent = Agent::new(paths, driver, None);
    runtime.block_on(async {
        agent.end_restore(spec).await;
        agent.end_etcd().await
    })?;
    Ok(())
}

/// Starts the image's etcd on a copy of the cluster's data. The controller reads from the last words how that went.
pub(super) fn rehearse(context: &Context, arguments: &RestoreArgs) -> Outcome {
    let member = PodMember::from_environment().ok_or_else(|| missing(VARIABLE))?;
    let to = member.launch.version.parse();
    let to: Version = to.map_err(|_| missing("a version of etcd"))?;
    let tried = try_on_a_copy(context, arguments, &member, to);
    if tried.is_err() {
        // `kubectl logs` shows what etcd said.
        let log = std::fs::read_to_string(context.paths.rehearsal_log()).unwrap_or_default();
        super::print::text(&log)?;
    }
    let _ = std::fs::remove_dir_all(context.paths.backup());
    let rehearsed = Rehearsed {
        to: to.to_string(),
        revision: *tried.as_ref().unwrap_or(&0),
        of_the_version: tried.as_ref().is_err_and(|it| it.of_the_version),
        why: tried.err().map(|it| it.why.to_string()),
    };
    say_last(&serde_json::to_string(&rehearsed)?);
    Ok(DONE)
}

fn try_on_a_copy(
    context: &Context,
    arguments: &RestoreArgs,
    pod: &PodMember,
    to: Version,
) -> Result<i64, NotRehearsed> {
    let failed = |why: &str, of_the_version| NotRehearsed {
        why: detail(format_args!("{why}")),
        of_the_version,
    };
    let paths = &context.paths;
    // An image that holds another version is no matter of a moment.
    store::link(&paths.store(), to)
        .map_err(|error| failed(&chain(&error), error.is_of_the_program()))?;
    let prepared = || -> Result<_, Failure> {
        let (_, spec) = prepare(context, paths)?;
        let config = worker_config()?;
        // Of nobody else, and in memory.
        let keys = Certificates::at(paths.tls());
        certificates::mint_for_a_trial(&keys, &spec)?;
        let there = match served()? {
            Some(served) => {
                let own = std::env::var(SIGNER_VARIABLE).ok();
                let trust = super::restore::trust(context, &spec, arguments).with_own(own);
                let of = (Some(&pod.identity), &trust, false);
                let found = super::restore::find(context, &spec, arguments, of, Some(&served));
                let found = runtime()?.block_on(found)?;
                found.check_version(Some(to))?;
                Some(found.file)
            }
            None => None,
        };
        Ok((spec, config, keys, there))
    };
    let (spec, config, keys, there) = prepared().map_err(|it| failed(&it.text, false))?;
    let member = Member {
        paths,
        spec: &spec,
        identity: Some(&pod.identity),
        url: &config.urls().next().unwrap_or_default(),
        files: config.files(Path::new(TLS_DIR)),
        certificates: keys,
    };
    rehearse_alone(&member, &pod.identity, to, there)
}

/// What a command about snapshots has in the Pod of a worker instead of a host's records.
pub(super) struct InWorker {
    pub(super) spec: ClusterSpec,
    pub(super) identity: IdentityFile,
    config: Config,
}

impl InWorker {
    /// A member that answers, and the certificate that it knows.
    pub(super) fn member(&self) -> Result<(String, ClientFiles), Failure> {
        let files = self.config.files(Path::new(TLS_DIR));
        let answering = async {
            for url in self.config.urls() {
                if client::look(&url, &files).await.read == Reading::Answered {
                    return Some(url);
                }
            }
            None
        };
        match runtime()?.block_on(answering) {
            Some(url) => Ok((url, files)),
            None => Err(Failure::new(super::FAILED, "no member answers")),
        }
    }

    /// The key that signs snapshots here.
    pub(super) fn certificates() -> Certificates {
        Certificates::at(SIGNER_DIR)
    }
}

/// A command about snapshots goes on with the worker's records, its document and its keys, where this is the worker's Pod.
pub(super) fn act_in_worker(context: &mut Context, command: &Command) -> Result<(), Failure> {
    match command {
        Command::Backup(it) if is_of_worker() && !matches!(it.command, BackupCommand::Worker) => {}
        _ => return Ok(()),
    }
    super::protect_process();
    let config = worker_config()?;
    context.paths.lib.clone_from(&config.lib);
    let (pod, spec) = prepare(context, &context.paths)?;
    context.worker = Some(Box::new(InWorker {
        spec,
        identity: pod.identity,
        config,
    }));
    Ok(())
}

fn worker_config() -> Result<Config, Failure> {
    let config = told(BACKUP_VARIABLE)?;
    serde_json::from_str(&config).map_err(|_| missing(BACKUP_VARIABLE))
}

/// Works on snapshots until the Pod ends.
pub(super) fn worker(context: &Context) -> Outcome {
    let config = worker_config()?;
    let paths = Paths {
        lib: config.lib.clone(),
        ..context.paths.clone()
    };
    // One that turned read-only still serves what lies there.
    if let Err(error) = state::create_private_dir(&paths.lib) {
        may_write(Path::new(CLAIM_DIR))?;
        return Err(error.into());
    }
    let (pod, spec) = prepare(context, &paths)?;
    let keys = (Path::new(TLS_DIR), Path::new(SIGNER_DIR));
    let worker = Worker::new(&paths, spec, pod, config, keys);
    runtime()?
        .block_on(worker.run())
        .map_err(|error| Failure::new(super::FAILED, chain(&error)))?;
    Ok(DONE)
}
