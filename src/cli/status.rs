//! `status`: a first line that says whether a person is needed, the facts, and every condition.

mod headline;

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::desk::{self, Desk, UNSEEN};
use super::print::bytes;
use super::print::{self, Output, columns, span, toned};
use super::show::{next_try, report};
use super::{Context, DONE, FAILED, Failure, Outcome, StatusArgs, runtime};
use crate::agent::{Host, Report};
use crate::api::status::{
    ChangeOutcome, ChangeStatus, DestinationStatus, EtcdClusterStatus, SnapshotStatus,
};
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

/// What a host, or an object in Kubernetes, tells.
#[derive(Serialize)]
struct Told {
    #[serde(flatten)]
    status: EtcdClusterStatus,
    /// None in Kubernetes.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<Host>,
    #[serde(skip)]
    name: String,
    /// systemd runs this host.
    #[serde(skip)]
    systemd: bool,
    /// An edit that the operator has not seen yet.
    #[serde(skip)]
    unseen: bool,
}

impl Told {
    fn by_host(context: &Context) -> Result<Self, Failure> {
        let Report { status, host } = report(context)?;
        Ok(Told {
            name: host.name.clone(),
            status,
            host: Some(host),
            systemd: systemd::runs(&context.paths),
            unseen: false,
        })
    }

    fn by_object(desk: &Desk) -> Result<Self, Failure> {
        let object = desk.object()?;
        Ok(Told {
            unseen: desk::is_unseen(&object),
            name: object.metadata.name.unwrap_or_default(),
            status: object.status.unwrap_or_default(),
            host: None,
            systemd: false,
        })
    }

    fn look(context: &Context, desk: Option<&Desk>) -> Result<Self, Failure> {
        match desk {
            Some(desk) => Told::by_object(desk),
            None => Told::by_host(context),
        }
    }
}

pub(super) fn status(context: &Context, arguments: &StatusArgs) -> Outcome {
    let desk = Desk::of(&arguments.cluster)?;
    let look = || Told::look(context, desk.as_ref());
    if arguments.watch {
        return watch(look, arguments.output);
    }
    let told = look()?;
    if arguments.output == Output::Table {
        print::text(&page(&told, print::in_colour()))?;
    } else {
        print::value(arguments.output, &told)?;
    }
    Ok(if is_available(&told) { DONE } else { FAILED })
}

fn is_available(told: &Told) -> bool {
    let conditions = told.status.conditions.iter();
    let mut available = conditions.filter(|it| it.type_ == "Available");
    available.any(|it| it.status == "True")
}

/// Shows it again and again; on a terminal in the same place, elsewhere one block after the other.
fn watch(look: impl Fn() -> Result<Told, Failure>, output: Output) -> Outcome {
    use std::io::IsTerminal as _;
    let colour = print::in_colour();
    let clear = std::io::stdout().is_terminal() && output == Output::Table;
    let runtime = runtime()?;
    let mut interrupt = runtime.block_on(async {
        let kind = tokio::signal::unix::SignalKind::interrupt();
        tokio::signal::unix::signal(kind)
    })?;
    loop {
        let text = match look() {
            Ok(told) if output == Output::Table => page(&told, colour),
            Ok(told) => print::encode(output, &told)?,
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
fn page(told: &Told, colour: bool) -> String {
    let headline = headline(told);
    let mut text = headline.line(colour);
    text += &next_try(&told.status.plan);
    if let Some(cure) = cure(told) {
        text += &cure;
    }
    if let Some(reason) = headline.explained() {
        let _ = writeln!(text, "more: etcd-operator explain {reason}");
    }
    text.push('\n');
    text += &facts(told);
    text.push('\n');
    text += &conditions(told, &headline, colour);
    let members = &told.status.members;
    if told.host.is_none() {
        text.push('\n');
        text += &placed_member_rows(told);
    } else if members.len() > 1 || members.iter().any(|it| !it.serving) {
        text.push('\n');
        text += &member_rows(told);
    }
    text.push('\n');
    if let Some(next) = &told.status.plan.next {
        let _ = writeln!(text, "doing: {next}");
    }
    if told.unseen {
        let _ = writeln!(text, "{UNSEEN}");
    }
    let _ = writeln!(text, "{}", confirmed(told));
    text
}

/// Where a restore helps: which snapshot there is, and what shows what it would lose.
fn cure(report: &Told) -> Option<String> {
    report.host.as_ref()?; // in Kubernetes an EtcdRestore, of which the next step tells
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
fn facts(told: &Told) -> String {
    let mut rows: Vec<[String; 2]> = Vec::new();
    let mut row = |name: &str, text: String| rows.push([name.to_owned(), text]);
    let (status, host) = (&told.status, told.host.as_ref());
    let id = status.cluster_id.as_deref();
    let id = id.map_or_else(String::new, |it| format!(", id {it}"));
    row("cluster", format!("{}{id}", told.name));
    row("etcd", etcd(told));
    if let Some(it) = status.history.last() {
        row("last change", change(it));
    }
    if let Some(host) = host {
        let operator = host.operator.pid;
        let operator = operator.map_or_else(|| "not running".to_owned(), |it| format!("pid {it}"));
        row(
            "operator",
            format!("{} ({operator})", host.operator.version),
        );
        row("clients", host.etcd.client_url.clone());
    }
    if let Some(database) = database(status) {
        row("database", database);
    }
    if let Some(host) = host {
        row("data", data(host));
    }
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
    for (index, it) in status.kept_claims.iter().enumerate() {
        let text = format!("{it}, of a member that left");
        row(if index == 0 { "kept claims" } else { "" }, text);
    }
    for (index, it) in host.iter().flat_map(|it| &it.leftovers).enumerate() {
        let text = format!(
            "{} ({}), kept by a restore or an interrupted first start",
            it.path,
            bytes(it.bytes)
        );
        row(if index == 0 { "leftovers" } else { "" }, text);
    }
    columns(&rows)
}

fn etcd(told: &Told) -> String {
    let Some(host) = &told.host else {
        let status = &told.status;
        let version = status.version.as_deref().unwrap_or("-");
        let since = status.version_since.as_ref();
        let since = since.map_or_else(String::new, |it| format!(" since {it}"));
        return format!("{version}{since}, {} members ready", status.ready);
    };
    let etcd = &host.etcd;
    let version = etcd.version.as_deref().unwrap_or("-");
    let Some(pid) = etcd.pid else {
        return format!("{version} (not running)");
    };
    let mut text = version.to_owned();
    if let Some(seconds) = etcd.up_seconds {
        let _ = write!(text, ", up {}", span(seconds));
        if is_clock_trusted(&told.status) {
            let begin = Timestamp(clock::now().0 - i64::try_from(seconds).unwrap_or(0));
            let _ = write!(text, " since {begin}");
        }
    }
    let restarts = match etcd.restarts {
        0 => "no restart".to_owned(),
        1 => "1 restart".to_owned(),
        count => format!("{count} restarts"),
    };
    let driver = &host.driver;
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

fn is_clock_trusted(status: &EtcdClusterStatus) -> bool {
    let mut conditions = status.conditions.iter();
    conditions.any(|it| it.type_ == "ClockTrusted" && it.status == "True")
}

fn database(status: &EtcdClusterStatus) -> Option<String> {
    let database = status.database.as_ref()?;
    let mut text = bytes(database.size);
    if let Some(quota) = database.quota.filter(|it| *it > 0) {
        let percent = database.size.saturating_mul(100) / quota;
        let _ = write!(text, " of {} ({percent} %)", bytes(quota));
    }
    let _ = write!(text, ", {} in use", bytes(database.in_use));
    if let Some(revision) = status.revision {
        let _ = write!(text, "; revision {revision}");
    }
    Some(text)
}

fn data(host: &Host) -> String {
    let dir = &host.etcd.data_dir;
    let Some(disk) = host.disk else {
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

fn conditions(report: &Told, said: &Headline, colour: bool) -> String {
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

fn member_rows(report: &Told) -> String {
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

/// With what only Kubernetes has.
fn placed_member_rows(told: &Told) -> String {
    let header = [
        "MEMBER", "ID", "ROLE", "SERVING", "LEADER", "VERSION", "BEHIND", "NODE", "CLAIM",
    ];
    let mut rows = vec![header.map(str::to_owned)];
    let yes = |it: bool| if it { "yes" } else { "no" }.to_owned();
    let known = |it: Option<&String>| it.map_or("-", String::as_str).to_owned();
    for it in &told.status.members {
        rows.push([
            it.name.clone(),
            it.id.clone(),
            it.role.clone(),
            yes(it.serving),
            yes(it.leader),
            known(it.version.as_ref()),
            it.lag.map_or_else(|| "-".to_owned(), |it| it.to_string()),
            known(it.node.as_ref()),
            known(it.claim.as_ref()),
        ]);
    }
    columns(&rows)
}

/// When all of it was seen.
fn confirmed(report: &Told) -> String {
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
fn under_way(report: &Told) -> String {
    let look = report.host.as_ref().and_then(|it| it.look.as_ref());
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
