//! `plan` and `env`, and the report that they and `status` read: the agent's where one runs, else by
//! a look of one's own.

use std::time::Duration;

use super::print::{self, Output};
use super::{Context, DONE, FAILED, Failure, HELD, Outcome, runtime};
use crate::agent::driver::HostDriver;
use crate::agent::socket::{Request, ask};
use crate::agent::{self, Agent, AgentError, Locking, Report};
use crate::clock;
use crate::cluster::ADMIN;
use crate::member::place;
use crate::systemd;
use crate::tls::{Certificates, ClientFiles};

/// An agent that holds the lock and does not answer yet is starting; it gets so long.
const AGENT_PATIENCE: Duration = Duration::from_secs(5);

/// The report: the agent's, or our own.
pub(super) fn report(context: &Context) -> Result<Report, Failure> {
    let runtime = runtime()?;
    let begin = clock::since_boot();
    loop {
        if let Some(answer) = runtime.block_on(ask(&context.paths.socket(), &Request::Status)) {
            let text = answer.map_err(|why| Failure::new(FAILED, why))?;
            return Ok(serde_json::from_str(&text)?);
        }
        // Looking alone creates nothing: where no state is, there is nothing to lock.
        let lock = if context.paths.lib.exists() {
            agent::lock(&context.paths, Locking::Look).map(Some)
        } else {
            Ok(None)
        };
        match lock {
            Ok(_lock) => {
                let spec = context.document()?;
                return Ok(runtime.block_on(
                    Agent::new(
                        &context.paths,
                        HostDriver::choose(&context.paths, &spec.name),
                        None,
                    )
                    .look(&spec),
                ));
            }
            Err(AgentError::Locked { .. }) if clock::since_boot() < begin + AGENT_PATIENCE => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn plan_lines(report: &Report) -> std::io::Result<()> {
    let plan = &report.status.plan;
    match (&plan.hold, &plan.next) {
        (Some(hold), _) => {
            let (message, next) = (plan.message.as_deref(), plan.next_step.as_deref());
            print::text(&format!(
                "hold: {hold}: {}\nnext: {}\n",
                message.unwrap_or("-"),
                next.unwrap_or("-")
            ))
        }
        (None, Some(next)) => print::text(&format!("next: {next}\n")),
        (None, None) => print::text("nothing is to be done\n"),
    }
}

pub(super) fn plan(context: &Context, output: Output) -> Outcome {
    let report = report(context)?;
    if output == Output::Table {
        plan_lines(&report)?;
    } else {
        print::value(output, &report.status.plan)?;
    }
    Ok(if report.status.plan.hold.is_some() {
        HELD
    } else {
        DONE
    })
}

/// A word as a shell reads it back. `'` is the only character that ends a quoted one.
pub(super) fn quoted(text: &str) -> String {
    let plain = |it: u8| it.is_ascii_alphanumeric() || b"-_./:=,@%+".contains(&it);
    if !text.is_empty() && text.bytes().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

pub(super) fn env(context: &Context, k3s: bool) -> Outcome {
    // A running agent knows which document is in force.
    let url = match runtime()?.block_on(ask(&context.paths.socket(), &Request::Status)) {
        Some(Ok(text)) => serde_json::from_str::<Report>(&text)?.host.etcd.client_url,
        _ => place::resolve(&context.paths, &context.document()?).client_url,
    };
    let certificates = Certificates::at(context.paths.tls());
    let client = if k3s && certificates.client_leaf("k3s").is_ok() {
        "k3s"
    } else {
        ADMIN
    };
    let ClientFiles { ca, cert, key, .. } = client_files(context, client)?;
    if k3s {
        let embedded = context.paths.k3s_embedded_etcd();
        if embedded.exists() {
            // Rule A11: k3s says nothing when it ignores these flags.
            eprintln!(
                "etcd-operator: warning: k3s ignores --datastore-endpoint while {} exists: move it aside first",
                embedded.display()
            );
        }
        print::text(&format!(
            "--datastore-endpoint={url}\n--datastore-cafile={}\n--datastore-certfile={}\n--datastore-keyfile={}\n",
            ca.display(),
            cert.display(),
            key.display()
        ))?;
        return Ok(DONE);
    }
    let line = |name: &str, value: &str| format!("export ETCDCTL_{name}={}\n", quoted(value));
    print::text(
        &[
            line("ENDPOINTS", &url),
            line("CACERT", &ca.to_string_lossy()),
            line("CERT", &cert.to_string_lossy()),
            line("KEY", &key.to_string_lossy()),
        ]
        .concat(),
    )?;
    Ok(DONE)
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
