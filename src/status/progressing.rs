//! The condition Progressing: an edit is carried out, or held, or still under way.

use super::{Condition, Kind, Verdict, condition};
use crate::cluster::detail;
use crate::observed::{Instance, Looker, Observed, Process, Reading};
use crate::plan::{Held, Plan, turn, version};
use crate::spec::ClusterSpec;

/// What the operator does, and whether it is done.
pub(super) fn progressing(
    spec: &ClusterSpec,
    observed: &Observed,
    plan: &Plan,
    held: Option<&Held>,
) -> Condition {
    let told = |verdict, reason, message| condition(Kind::Progressing, verdict, reason, message);
    if let Some(Held { hold: it, words }) = held {
        let message = detail(format_args!("{words}; next: {}", it.next_step()));
        return told(Verdict::False, it.reason(), message);
    }
    if observed.looker == Looker::Operator
        && let Some(words) = version::words(spec, observed)
    {
        return told(Verdict::True, "Upgrading", words);
    }
    let waiting = observed.instances.iter().map(|it| it.restart_in).max();
    let waiting = waiting.unwrap_or(0);
    let comes_up = |it: &Instance| {
        matches!(it.process, Process::Running { .. }) && it.service.read != Reading::Answered
    };
    // One that was asked to end is made anew.
    let unknown = |it: &&Instance| it.process == Process::Unknown;
    let unknown = observed.instances.iter().find(unknown);
    let turn = turn::words(spec, observed);
    match (&plan.change, plan.first_step(observed)) {
        (_, Some(step)) if observed.looker == Looker::Command => told(
            Verdict::False,
            "NoOperator",
            detail(format_args!("no operator runs; it would: {step}")),
        ),
        (Ok(Some(permit)), _) => told(
            Verdict::True,
            "Changing",
            permit.step().describe_of(observed),
        ),
        (_, Some(step)) => told(Verdict::True, "Acting", step),
        _ if observed.looker == Looker::Operator && turn.is_some() => {
            told(Verdict::True, "Acting", turn.unwrap_or_default())
        }
        _ if waiting > 0 => told(
            Verdict::True,
            "BackingOff",
            detail(format_args!(
                "the operator starts etcd again in {waiting} s"
            )),
        ),
        _ if observed.looker == Looker::Operator && unknown.is_some() => told(
            Verdict::True,
            "Acting",
            detail(format_args!(
                "waits to see whether {} still runs",
                unknown.map_or("", |it| it.member.as_str())
            )),
        ),
        _ if observed.instances.iter().any(comes_up) => told(
            Verdict::True,
            "Starting",
            detail(format_args!("etcd runs but does not serve yet")),
        ),
        _ => match (version::pending(spec, observed), observed.looker) {
            (Some(words), Looker::Operator) => told(Verdict::True, "Upgrading", words),
            (Some(words), _) => told(
                Verdict::False,
                "NoOperator",
                detail(format_args!("no operator runs; {words}")),
            ),
            (None, _) => told(
                Verdict::False,
                "Converged",
                detail(format_args!("there is nothing to do")),
            ),
        },
    }
}
