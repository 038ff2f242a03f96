//! `restore --pod`: the host's restore, inside of a Pod that the controller made for it. The member's
//! volume is the state directory; etcd is started on the new data, asked, and stopped again, and the
//! controller reads the outcome from the Pod's last words.

use super::{Context, DONE, Failure, Outcome, RestoreArgs, runtime};
use crate::agent::Agent;
use crate::agent::driver::{HostDriver, ProcessDriver};
use crate::backup::restore::{
    self, CrashPoint, Outcome as Ended, Reason, RestoreRecord, RestoreReport,
};
use crate::etcd::store;
use crate::member::pod::{DOCUMENT_VARIABLE, PodMember, RESTORE_VARIABLE, Restored, say_last};
use crate::member::records;
use crate::spec::ClusterSpec;
use crate::state;

/// Carries the restore out, or brings one that was cut to its end.
pub(super) fn restore(context: &Context, arguments: &RestoreArgs) -> Outcome {
    let missing =
        |name: &str| Failure::new(super::USAGE, format!("{name} is not in the environment"));
    let id = std::env::var(RESTORE_VARIABLE).map_err(|_| missing(RESTORE_VARIABLE))?;
    let document = std::env::var(DOCUMENT_VARIABLE).map_err(|_| missing(DOCUMENT_VARIABLE))?;
    let member = PodMember::from_environment().ok_or_else(|| missing("ETCD_OPERATOR_MEMBER"))?;
    let paths = &context.paths;
    state::create_private_dir(&paths.member())?;
    state::create_private_dir(&paths.run)?;
    // It may have ended before the Pod did: it is never made twice.
    let ended = || restore::last_report(paths).filter(|it| it.id == id);
    let report = if let Some(report) = ended() {
        Ok(report)
    } else {
        let version = member.launch.version.parse();
        let version = version.map_err(|_| missing("a version of etcd"))?;
        store::link(&paths.store(), version)?;
        state::write_file(&paths.document(), document.as_bytes())?;
        let spec = context.document()?;
        carry_out(context, &spec, &id, arguments).and_then(|()| {
            ended().ok_or_else(|| Failure::new(super::FAILED, "the restore left no report"))
        })
    };
    let (_, identity) = records::load_identities(paths, &paths.member())?;
    let restored = match report {
        Ok(report) => Restored {
            id,
            identity,
            succeeded: report.outcome == Ended::Restored,
            snapshot: report.snapshot.clone(),
            revision: report.snapshot_revision,
            revisions_lost: report.revisions_lost,
            message: message(&report),
        },
        Err(failure) => Restored {
            id,
            identity,
            succeeded: false,
            snapshot: arguments.from.clone(),
            revision: 0,
            revisions_lost: None,
            message: failure.text,
        },
    };
    say_last(&serde_json::to_string(&restored)?);
    Ok(DONE)
}

fn message(report: &RestoreReport) -> String {
    let kept = report.kept.as_ref().map(|it| {
        format!(
            "the data from before is kept on the volume in {}",
            it.display()
        )
    });
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
    if RestoreRecord::load(paths)?.is_none() {
        let (_, former) = records::load_identities(paths, &paths.member())?;
        let reason = if former.is_some() {
            Reason::Command
        } else {
            Reason::Bootstrap
        };
        let found = runtime.block_on(super::restore::find(
            context,
            spec,
            arguments,
            former.as_ref(),
        ))?;
        if former.is_some() {
            super::restore::check(spec, &found, former.as_ref())?;
        }
        restore::check_room(&paths.member(), found.file.database)?;
        found.import(paths)?;
        let live = arguments.live_revision;
        RestoreRecord::requested(id.to_owned(), reason, found.file, live, former).save(paths)?;
        CrashPoint::RequestWritten.pass();
    }
    let _lock = crate::agent::lock(paths, crate::agent::Locking::Act)?;
    let driver = HostDriver::Process(ProcessDriver::new(paths));
    let mut agent = Agent::new(paths, driver, None);
    runtime.block_on(async {
        agent.end_restore(spec).await;
        agent.end_etcd().await
    })?;
    Ok(())
}
