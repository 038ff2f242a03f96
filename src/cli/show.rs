//! `plan` and `env`, and the report that they and `status` read: the agent's where one runs, else by
//! a look of one's own.

use std::time::Duration;

use serde::Serialize;

use super::desk::{self, Desk, UNSEEN};
use super::edit::{self, Comparison, Known};
use super::print::{self, Output};
use super::{Context, DONE, FAILED, Failure, HELD, Outcome, PlanArgs, USAGE, runtime};
use crate::agent::driver::HostDriver;
use crate::agent::kept::{self, Accepted};
use crate::agent::socket::{Reply, Request, ask};
use crate::agent::{self, Agent, AgentError, Locking, Report};
use crate::api::status::PlanStatus;
use crate::clock;
use crate::document::Document;
use crate::state;
use crate::systemd;
use crate::tls::{Certificates, ClientFiles};

/// An agent that holds the lock and does not answer yet is starting; it gets so long.
const AGENT_PATIENCE: Duration = Duration::from_secs(5);

/// The report: the agent's, or our own.
pub(super) fn report(context: &Context) -> Result<Report, Failure> {
    // A document that the command line names is looked at, whoever answers.
    let named = context.named.then(|| context.read()).transpose()?;
    let runtime = runtime()?;
    let begin = clock::since_boot();
    loop {
        let waits = clock::since_boot() < begin + AGENT_PATIENCE;
        match runtime.block_on(ask(&context.paths.socket(), &Request::Status)) {
            Reply::Answered(text) => {
                let report: Report = serde_json::from_str(&text)?;
                if let Some(named) = &named {
                    tell_which(context, named, &report)?;
                }
                return Ok(report);
            }
            // It has just begun.
            Reply::Refused(_) if waits => {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            }
            Reply::Refused(why) => return Err(Failure::new(FAILED, why)),
            other @ Reply::NotAllowed => return Err(edit::unanswered(context, &other)),
            Reply::Nobody | Reply::Silent => {}
        }
        // Looking alone creates nothing: where no state is, there is nothing to lock.
        let lock = if context.paths.lib.exists() {
            agent::lock(&context.paths, Locking::Look).map(Some)
        } else {
            Ok(None)
        };
        match lock {
            Ok(_lock) => return look(context, &runtime),
            Err(AgentError::Locked { .. }) if waits => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(error @ AgentError::Locked { .. }) => return last_report(context, error),
            Err(error) => return Err(error.into()),
        }
    }
}

/// A look of our own: by the document, or by the last one that was sound.
fn look(context: &Context, runtime: &tokio::runtime::Runtime) -> Result<Report, Failure> {
    let (accepted, refused) = match kept::choose(&context.paths, &context.config) {
        Ok(chosen) => chosen,
        Err(_) => (Accepted::of(context.read()?, &context.config), None),
    };
    let driver = HostDriver::choose(&context.paths, &accepted.document.spec.name);
    let mut agent = Agent::new(&context.paths, driver, None);
    Ok(runtime.block_on(agent.look(accepted, refused)))
}

/// An agent is there and does not answer: what it said last.
fn last_report(context: &Context, locked: AgentError) -> Result<Report, Failure> {
    let Some(report) = state::load_volatile::<Report>(&context.paths.status()) else {
        return Err(locked.into());
    };
    eprintln!(
        "etcd-operator: warning: {locked}, and that process does not answer: this is what it saw last"
    );
    Ok(report)
}

/// Which document is in force, where another one is named.
pub(super) fn tell_which(
    context: &Context,
    named: &Document,
    report: &Report,
) -> Result<(), Failure> {
    let in_force = match edit::known(context)? {
        Known::Is(it) => it,
        Known::NotAllowed => return Ok(()),
    };
    let count = in_force.changes(&context.paths, named).len();
    let path = report.host.document.as_ref().map(|it| it.path.display());
    if let Some(path) = path
        && count > 0
    {
        eprintln!(
            "etcd-operator: note: this describes the running agent, whose document is {path}; {} differs from it in {count} fields: etcd-operator diff {}",
            context.config.display(),
            context.config.display()
        );
    }
    Ok(())
}

/// When what is held is tried again by itself.
pub(super) fn next_try(plan: &PlanStatus) -> String {
    let seconds = plan.next_try_seconds;
    seconds.map_or_else(String::new, |it| format!("next try in {it} s, by itself\n"))
}

fn plan_lines(plan: &PlanStatus) -> std::io::Result<()> {
    match (&plan.hold, &plan.next) {
        (Some(hold), _) => {
            let (message, next) = (plan.message.as_deref(), plan.next_step.as_deref());
            print::text(&format!(
                "hold: {hold}: {}\nnext: {}\n{}",
                message.unwrap_or("-"),
                next.unwrap_or("-"),
                next_try(plan)
            ))
        }
        (None, Some(next)) => print::text(&format!("next: {next}\n")),
        (None, None) => print::text("there is nothing to do\n"),
    }
}

/// The plan, and what the document on disk would change.
#[derive(Serialize)]
struct PlanAndDocument<'a> {
    #[serde(flatten)]
    plan: &'a PlanStatus,
    document: &'a Comparison,
}

/// Of an object: what its operator does, once it has seen the last edit.
fn plan_of(desk: &Desk, output: Output) -> Outcome {
    let object = desk.object()?;
    if desk::is_unseen(&object) {
        eprintln!("etcd-operator: note: {UNSEEN}");
    }
    let status = object.status.unwrap_or_default();
    if output == Output::Table {
        plan_lines(&status.plan)?;
    } else {
        print::value(output, &status.plan)?;
    }
    let held = status.plan.hold.is_some();
    Ok(if held { HELD } else { DONE })
}

pub(super) fn plan(context: &Context, arguments: &PlanArgs) -> Outcome {
    let output = arguments.output;
    if let Some(desk) = Desk::of(&arguments.cluster)? {
        return plan_of(&desk, output);
    }
    let comparison = Comparison::of(context, &context.config)?;
    comparison.complain();
    if context.named && !comparison.problems.is_empty() {
        return Ok(USAGE);
    }
    let report = report(context)?;
    let plan = &report.status.plan;
    if output != Output::Table {
        let document = &comparison;
        print::value(output, &PlanAndDocument { plan, document })?;
    } else if plan.hold.is_some() || plan.next.is_some() || comparison.is_in_force() {
        plan_lines(plan)?;
        edit::on_disk(&comparison)?;
    } else {
        edit::on_disk(&comparison)?;
    }
    Ok(match comparison.code() {
        DONE if plan.hold.is_some() => HELD,
        code => code,
    })
}

/// The files of a client that has a usable certificate.
pub(super) fn client_files(context: &Context, client: &str) -> Result<ClientFiles, Failure> {
    let certificates = Certificates::at(context.paths.tls());
    if certificates.client_leaf(client).is_ok() {
        return Ok(certificates.client_files(client));
    }
    let start = if systemd::runs(&context.paths) {
        "sudo systemctl start etcd-operator"
    } else {
        "etcd-operator agent"
    };
    let text = format!("there is no client certificate yet: start the operator: {start}");
    Err(Failure::new(FAILED, text))
}
