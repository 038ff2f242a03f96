//! `pause` and `resume`: the operator changes nothing for a while, and the while ends by itself.

use super::places::trusted_now;
use super::print::{self, span};
use super::{Context, DONE, FAILED, Failure, Outcome, USAGE, runtime};
use crate::agent::socket::{Reply, Request, ask};
use crate::api::formats::seconds;
use crate::cluster::Timestamp;
use crate::member::pause;

/// Longer is no pause for a piece of work: the document says `paused`.
const SECONDS_MAX: u64 = 7 * 86_400;

pub(super) fn pause(context: &Context, duration: &str) -> Outcome {
    if duration == "0" {
        return resume(context);
    }
    let seconds = seconds(duration).filter(|it| *it <= SECONDS_MAX);
    let seconds = seconds.ok_or_else(|| {
        let text = format!(
            "{duration}: allowed is a time span such as 30m or 2h, at most 7d, or 0 to end a pause; for longer set paused: true in the document"
        );
        Failure::new(USAGE, text)
    })?;
    let now = trusted_now(context);
    pause::begin(&context.paths, seconds, now)?;
    wake(context)?;
    let until = now.map_or_else(String::new, |it| {
        let end = Timestamp(it.0 + i64::try_from(seconds).unwrap_or(0));
        format!(", until {end}")
    });
    print::text(&format!(
        "the operator changes nothing for {}{until}; it ends by itself, or with etcd-operator resume\n",
        span(seconds)
    ))?;
    Ok(DONE)
}

pub(super) fn resume(context: &Context) -> Outcome {
    let was = pause::end(&context.paths)?;
    wake(context)?;
    let text = if was {
        "the operator makes changes again\n"
    } else {
        "there was no pause\n"
    };
    print::text(text)?;
    Ok(DONE)
}

/// The agent looks now; without one the next one does.
fn wake(context: &Context) -> Result<(), Failure> {
    match runtime()?.block_on(ask(&context.paths.socket(), &Request::Status)) {
        Reply::Refused(why) => Err(Failure::new(FAILED, why)),
        _ => Ok(()),
    }
}
