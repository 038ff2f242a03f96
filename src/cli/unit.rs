//! `unit`: etcd's own systemd unit.

use super::print;
use super::{Context, DONE, FAILED, Failure, HELD, Outcome, protect_process, runtime};
use crate::agent::unit::{UnitError, install, text};
use crate::telemetry::{self, LogFormat};

pub(super) fn unit(context: &Context, write: bool) -> Outcome {
    let spec = context.document().map_err(|failure| {
        // The operator itself, whose unit runs this first, says what is wrong with the document.
        if write && std::env::var_os("JOURNAL_STREAM").is_some() {
            Failure::new(
                failure.code,
                "etcd's unit stays unchanged: there is no sound document",
            )
        } else {
            failure
        }
    })?;
    if !write {
        print::text(&text(&context.paths, &spec, &context.config))?;
        return Ok(DONE);
    }
    protect_process();
    telemetry::log(LogFormat::Text, tracing::Level::INFO);
    match runtime()?.block_on(install(&context.paths, &spec, &context.config)) {
        Ok(changed) => {
            if changed {
                tracing::info!("wrote and enabled etcd-member@{}.service", spec.name);
            }
            Ok(DONE)
        }
        Err(error @ UnitError::AnotherCluster { .. }) => Err(Failure::new(HELD, error.to_string())),
        Err(error) => Err(Failure::new(
            FAILED,
            format!("{:#}", anyhow::Error::from(error)),
        )),
    }
}
