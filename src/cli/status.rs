//! `status`: a first line that says whether a person is needed, the facts, and every condition.

mod headline;

use std::fmt::Write as _;
use std::time::Duration;

use super::print::bytes;
use super::print::{self, Output, columns, span, toned};
use super::show::{next_try, report};
use super::{Context, DONE, FAILED, Failure, Outcome, StatusArgs, runtime};
use crate::agent::Report;
use crate::api::status::{ChangeOutcome, ChangeStatus, DestinationStatus, SnapshotStatus};
use crate::clock;
use crate::clock::parse_rfc3339;
use crate::cluster::Timestamp;
use crate::start::restore_helps;
use crate::systemd;
use headline::{Headline, headline, tone};

/// Between two looks of `--watch`.
const WATCH_EVERY: Duration = Duration::from_secs(2);
/// To the upper left corner, and everything behind it gone.
const CLEAR: &str = "\x1b[H\x1b[J";

pub(super) fn status(context: &Context, arguments: &StatusArgs) -> Outcome {
    if arguments.watch {
        return watch(context, arguments.output);
    }
    let report = report(context)?;
    if arguments.output == Output::Table {
        print::text(&page(&report, context, print::in_colour()))?;
    } else {
        print::value(arguments.output, &report)?;
    }
    Ok(if is_available(&report) { DONE } else { FAILED })
}

fn is_available(report: &Report) -> bool {
    let conditions = report.status.conditions.iter();
    let mut available = conditions.filter(|it| it.type_ == "Available");
    available.any(|it| it.status == "True")
}

/// Shows it again and again; on a terminal in the same place, elsewhere one block after the other.
fn watch(context: &Context, output: Output) -> Outcome {
    use std::io::IsTerminal as _;
    let colour = print::in_colour();
    let clear = std::io::stdout().is_terminal() && output == Output::Table;
    let runtime = runtime()?;
    let mut interrupt = runtime.block_on(async {
        let kind = tokio::signal::unix::SignalKind::interrupt();
        tokio::signal::unix::signal(kind)
    })?;
    loop {
        let text = match report(context) {
            Ok(report) if output == Output::Table => page(&report, context, colour),
            Ok(report) => print::encode(output, &report)?,
            // An agent that starts again, a document that is being edited: the next look may do.
            Err(Failure { text, .. }) => format!("{text}\n"),
        };
        let between = if clear { CLEAR } else { "" };
        let behind = if clear || output != Output::Table {
            ""
        } else {
            "\n"
        };
        if !print::page(&format!("{between}{text}{behind}"))? {
            return Ok(DONE);
        }
        let ended = runtime.block_on(async {
            tokio::select! {
                () = tokio::time::sleep(WATCH_EVERY) => false,
                _ = interrupt.recv() => true,
            }
        });
        if ended {
            return Ok(DONE);
        }
    }
}

/// The whole, for people.
fn page(report: &Report, context: &Context, colour: bool) -> String {
    let headline = headline(report, systemd::runs(&context.paths));
    let mut text = headline.line(colour);
    text += &next_try(&report.status.plan);
    if let Some(cure) = cure(report) {
        text += &cure;
    }
    if let Some(reason) = headline.explained() {
        let _ = writeln!(text, "more: etcd-operator explain {reason}");
    }
    text.push('\n');
    text += &facts(report);
    text.push('\n');
    text += &conditions(report, &headline, colour);
    let members = &report.status.members;
    if members.len() > 1 || members.iter().any(|it| !it.serving) {
        text.push('\n');
        text += &member_rows(report);
    }
    text.push('\n');
    if let Some(next) = &report.status.plan.next {
        let _ = writeln!(text, "doing: {next}");
    }
    let _ = writeln!(text, "{}", confirmed(report));
    text
}

/// Where a restore helps: which snapshot there is, and what shows what it would lose.
fn cure(report: &Report) -> Option<String> {
    let hold = report.status.plan.hold.as_deref()?;
    let newest = report.status.backups.as_ref()?.last_verified.as_ref()?;
    restore_helps(hold).then(|| {
        format!(
            "newest verified snapshot: revision {}, {}; sudo etcd-operator restore --dry-run shows what would be lost\n",
            newest.revision,
            taken(newest)
        )
    })
}

/// Name by name what is known. A line of which nothing is known is left out.
fn facts(report: &Report) -> String {
    let mut rows: Vec<[String; 2]> = Vec::new();
    let mut row = |name: &str, text: String| rows.push([name.to_owned(), text]);
    let (status, host) = (&report.status, &report.host);
    let id = status.cluster_id.as_deref();
    let id = id.map_or_else(String::new, |it| format!(", id {it}"));
    row("cluster", format!("{}{id}", host.name));
    row("etcd", etcd(report));
    if let Some(it) = status.history.last() {
        row("last change", change(it));
    }
    let operator = host.operator.pid;
    let operator = operator.map_or_else(|| "not running".to_owned(), |it| format!("pid {it}"));
    row(
        "operator",
        format!("{} ({operator})", host.operator.version),
    );
    row("clients", host.etcd.client_url.clone());
    if let Some(database) = database(report) {
        row("database", database);
    }
    row("data", data(report));
    if let Some(it) = &status.certificates {
        row("certificates", ends(&it.earliest_expiry, it.provisional));
    }
    for (index, it) in status
        .backups
        .iter()
        .flat_map(|it| &it.destinations)
        .enumerate()
    {
        row(
            if index == 0 { "backups" } else { "" },
            destination(it, index == 0),
        );
    }
    for (index, it) in host.leftovers.iter().enumerate() {
        let text = format!(
            "{} ({}), kept by a restore or an interrupted first start",
            it.path,
            bytes(it.bytes)
        );
        row(if index == 0 { "leftovers" } else { "" }, text);
    }
    columns(&rows)
}

fn etcd(report: &Report) -> String {
    let etcd = &report.host.etcd;
    let version = etcd.version.as_deref().unwrap_or("-");
    let Some(pid) = etcd.pid else {
        return format!("{version} (not running)");
    };
    let mut text = version.to_owned();
    if let Some(seconds) = etcd.up_seconds {
        let _ = write!(text, ", up {}", span(seconds));
        if is_clock_trusted(report) {
            let begin = Timestamp(clock::now().0 - i64::try_from(seconds).unwrap_or(0));
            let _ = write!(text, " since {begin}");
        }
    }
    let restarts = match etcd.restarts {
        0 => "no restart".to_owned(),
        1 => "1 restart".to_owned(),
        count => format!("{count} restarts"),
    };
    let driver = &report.host.driver;
    let _ = write!(text, ", {restarts} in this boot (pid {pid}, {driver})");
    text
}

/// The last change of the version, and what became of it.
fn change(it: &ChangeStatus) -> String {
    let outcome = match it.outcome {
        ChangeOutcome::Done => "in force",
        ChangeOutcome::NotRehearsed => "not served on a copy of the data, nothing was touched",
        ChangeOutcome::RolledBack => "taken back",
        ChangeOutcome::Stuck => "it does not serve, and the one before cannot open the data",
    };
    let at = it.at.as_ref().map_or_else(String::new, |at| {
        let since = if it.outcome == ChangeOutcome::Done {
            "since"
        } else {
            "at"
        };
        format!(" {since} {at}")
    });
    format!("etcd {} -> {}: {outcome}{at}", it.from, it.to)
}

fn is_clock_trusted(report: &Report) -> bool {
    let mut conditions = report.status.conditions.iter();
    conditions.any(|it| it.type_ == "ClockTrusted" && it.status == "True")
}

fn database(report: &Report) -> Option<String> {
    let database = report.status.database.as_ref()?;
    let mut text = bytes(database.size);
    if let Some(quota) = database.quota.filter(|it| *it > 0) {
        let percent = database.size.saturating_mul(100) / quota;
        let _ = write!(text, " of {} ({percent} %)", bytes(quota));
    }
    let _ = write!(text, ", {} in use", bytes(database.in_use));
    if let Some(revision) = report.status.revision {
        let _ = write!(text, "; revision {revision}");
    }
    Some(text)
}

fn data(report: &Report) -> String {
    let dir = &report.host.etcd.data_dir;
    let Some(disk) = report.host.disk else {
        return dir.clone();
    };
    let (free, size) = (bytes(disk.free_bytes), bytes(disk.size_bytes));
    format!("{dir}; {free} of {size} free on its disk")
}

/// `until` is RFC 3339.
fn ends(until: &str, provisional: bool) -> String {
    let left = parse_rfc3339(until).map(|it| it.seconds_since(clock::now()));
    let left = match left {
        Some(left) if left < 0 => "ran out".to_owned(),
        Some(left) => format!("valid for {} days", left / 86_400),
        None => "valid".to_owned(),
    };
    let provisional = if provisional {
        ", provisional: made without a trusted clock"
    } else {
        ""
    };
    format!("{left}, until {until}{provisional}")
}

fn destination(it: &DestinationStatus, first: bool) -> String {
    let mut text = format!("{}: ", it.place);
    match &it.last_verified {
        Some(snapshot) => {
            let _ = write!(
                text,
                "revision {} verified, {}",
                snapshot.revision,
                taken(snapshot)
            );
        }
        None => text += "no verified snapshot yet",
    }
    let next = it.next_seconds.map(|it| match it {
        0 => "now".to_owned(),
        it => format!("in {}", span(it)),
    });
    match (first, next) {
        (true, Some(next)) => {
            let _ = write!(text, "; next {next}");
        }
        (true, None) => text += "; none is scheduled",
        (false, next) if it.queued > 0 => {
            let next = next.unwrap_or_else(|| "soon".to_owned());
            let size = bytes(it.queued_bytes);
            let _ = write!(
                text,
                "; {} to be copied ({size}), next try {next}",
                it.queued
            );
        }
        (false, _) => {}
    }
    text
}

fn taken(it: &SnapshotStatus) -> String {
    let age = it.age_seconds.map(|it| format!("{} old", span(it)));
    match (age, &it.created) {
        (Some(age), Some(created)) => format!("{age} ({created})"),
        (Some(age), None) => format!("{age} (taken without a trusted clock)"),
        (None, Some(created)) => format!("taken {created}"),
        (None, None) => "of an unknown age".to_owned(),
    }
}

fn conditions(report: &Report, said: &Headline, colour: bool) -> String {
    let mut rows = vec![["CONDITION", "STATUS", "REASON", "MESSAGE"].map(str::to_owned)];
    for it in &report.status.conditions {
        // What the first line says is not said again.
        let message = if said.says(it) {
            "see above".to_owned()
        } else {
            it.message.clone()
        };
        let status = toned(colour, tone(it), &it.status);
        rows.push([it.type_.clone(), status, it.reason.clone(), message]);
    }
    columns(&rows)
}

fn member_rows(report: &Report) -> String {
    let mut rows = vec![["MEMBER", "ID", "ROLE", "SERVING", "LEADER"].map(str::to_owned)];
    let yes = |it: bool| if it { "yes" } else { "no" }.to_owned();
    for it in &report.status.members {
        let (serving, leader) = (yes(it.serving), yes(it.leader));
        rows.push([
            it.name.clone(),
            it.id.clone(),
            it.role.clone(),
            serving,
            leader,
        ]);
    }
    columns(&rows)
}

/// When all of it was seen.
fn confirmed(report: &Report) -> String {
    let at = report.status.confirmed_until.as_ref();
    let at = at.and_then(|it| serde_json::to_value(it).ok());
    let Some(text) = at.as_ref().and_then(|it| it.as_str()) else {
        return "never confirmed".to_owned();
    };
    let age = parse_rfc3339(text).map(|it| clock::now().seconds_since(it));
    let seen = match age.and_then(|it| u64::try_from(it).ok()) {
        Some(age) => format!("seen {} ago ({text})", span(age)),
        None => format!("seen {text}"),
    };
    seen + &under_way(report)
}

/// Why a report could not be made anew.
fn under_way(report: &Report) -> String {
    let look = report.host.look.as_ref();
    let Some(it) = look.and_then(|it| it.under_way.as_ref()) else {
        return String::new();
    };
    let step = it.step.as_deref().unwrap_or("observing etcd and its disk");
    format!("; under way for {} s: {step}", it.seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_their_largest_unit() {
        let told = [0, 119, 120, 7199, 7200, 172_799, 172_800].map(span);
        let wanted = ["0 s", "119 s", "2 min", "119 min", "2 h", "47 h", "2 days"];
        assert_eq!(told, wanted);
    }
}
