//! The first line: OK, or what needs a person's attention and what to do next.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::agent::Report;
use crate::cli::print::{Tone, toned};
use crate::explain::{self, Found};

/// Which verdict of a condition is the good one; worst first. One that is not listed is good when it is
/// True.
const GOOD: &[(&str, &str)] = &[
    ("Available", "True"),
    ("Degraded", "False"),
    ("DocumentAccepted", "True"),
    ("BackupHealthy", "True"),
    ("CertificatesValid", "True"),
    ("HostHealthy", "True"),
];
/// Conditions that need nobody, whatever they say: what goes on, and a clock without a network.
const NEUTRAL: [&str; 2] = ["Progressing", "ClockTrusted"];
/// Where Unknown needs somebody, too: elsewhere nothing was asked for, or nothing is there yet.
const MUST_BE_KNOWN: [&str; 1] = ["Available"];
/// Reasons that pass by themselves in a moment.
const PASSING: [&str; 2] = ["Starting", "WriteNotProven"];

/// How a condition reads.
pub(super) fn tone(it: &Condition) -> Tone {
    let neutral = NEUTRAL.contains(&it.type_.as_str());
    match (it.status.as_str(), good(&it.type_)) {
        _ if it.type_ == "Progressing" => Tone::Plain,
        (status, good) if status == good => Tone::Good,
        ("Unknown", _) => Tone::Doubtful,
        _ if neutral || PASSING.contains(&it.reason.as_str()) => Tone::Doubtful,
        _ => Tone::Bad,
    }
}

fn good(kind: &str) -> &'static str {
    let row = GOOD.iter().find(|(name, _)| *name == kind);
    row.map_or("True", |(_, good)| good)
}

fn needs_attention(it: &Condition) -> bool {
    if NEUTRAL.contains(&it.type_.as_str()) || it.status == good(&it.type_) {
        return false;
    }
    it.status != "Unknown" || MUST_BE_KNOWN.contains(&it.type_.as_str())
}

/// What the first line says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Headline {
    /// Nobody is needed.
    ok: bool,
    what: String,
    next: Option<String>,
    /// The reason and the words of what is said, as conditions repeat them.
    reason: String,
    message: String,
}

impl Headline {
    /// Whether a condition says no more than this.
    pub(super) fn says(&self, it: &Condition) -> bool {
        !self.ok && it.reason == self.reason && it.message.starts_with(&self.message)
    }

    /// The reason, where there is more to say about it.
    pub(super) fn explained(&self) -> Option<&str> {
        match explain::find(&self.reason) {
            Found::Named(it) => Some(it.reason),
            _ => None,
        }
    }

    /// One line, and what to do next on another.
    pub(super) fn line(&self, colour: bool) -> String {
        let (word, tone) = if self.ok {
            ("OK", Tone::Good)
        } else {
            ("ATTENTION", Tone::Bad)
        };
        let next = self.next.as_deref();
        let next = next.map_or_else(String::new, |it| format!("next: {it}\n"));
        format!("{}: {}\n{next}", toned(colour, tone, word), self.what)
    }
}

/// The worst of all that is known.
pub(super) fn headline(report: &Report, systemd: bool) -> Headline {
    let plan = &report.status.plan;
    let conditions = &report.status.conditions;
    if let Some(hold) = &plan.hold {
        let message = plan.message.clone().unwrap_or_default();
        let further = further(report, hold);
        return Headline {
            ok: false,
            what: format!("{hold}: {message}{further}"),
            next: plan.next_step.clone(),
            reason: hold.clone(),
            message,
        };
    }
    if report.host.operator.pid.is_none() {
        let serves = report.host.etcd.pid.is_some();
        let etcd = if serves {
            "etcd runs without it"
        } else {
            "nor is etcd"
        };
        let start = if systemd {
            "sudo systemctl start etcd-operator"
        } else {
            "etcd-operator agent"
        };
        return Headline {
            ok: false,
            what: format!("the operator is not running, {etcd}"),
            next: Some(start.to_owned()),
            reason: String::new(),
            message: String::new(),
        };
    }
    let rank = |it: &&Condition| {
        let place = GOOD.iter().position(|(name, _)| *name == it.type_);
        place.unwrap_or(GOOD.len())
    };
    let worst = conditions
        .iter()
        .filter(|it| needs_attention(it))
        .min_by_key(rank);
    let Some(worst) = worst else {
        let version = report.host.etcd.version.as_deref().unwrap_or_default();
        return Headline {
            ok: true,
            what: format!("etcd {version} serves reads and writes"),
            next: None,
            reason: String::new(),
            message: String::new(),
        };
    };
    // A message ends with its own next step, where it has one.
    let (message, next) = match worst.message.split_once("; next: ") {
        Some((message, next)) => (message, Some(next.to_owned())),
        None => (worst.message.as_str(), None),
    };
    let further = further(report, &worst.reason);
    Headline {
        ok: false,
        what: format!("{}: {message}{further}", worst.reason),
        next,
        reason: worst.reason.clone(),
        message: message.to_owned(),
    }
}

/// How many conditions need attention beside the one with this reason.
fn further(report: &Report, reason: &str) -> String {
    let conditions = report.status.conditions.iter();
    let others = conditions.filter(|it| needs_attention(it) && it.reason != reason);
    match others.count() {
        0 => String::new(),
        count => format!(" (and {count} more below)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(conditions: &[(&str, &str, &str, &str)]) -> Report {
        let conditions: Vec<serde_json::Value> = conditions
            .iter()
            .map(|(kind, status, reason, message)| {
                serde_json::json!({"type": kind, "status": status, "reason": reason,
                    "message": message, "lastTransitionTime": "2026-11-22T10:00:00Z"})
            })
            .collect();
        let mut report: Report = serde_json::from_value(serde_json::json!({
            "conditions": conditions,
            "host": {"name": "edge", "driver": "process", "operator": {"pid": 7},
                "etcd": {"pid": 8, "version": "3.6.16", "clientURL": "", "metricsURL": "", "dataDir": ""},
                "files": {"ca": "", "cert": "", "key": ""}},
        }))
        .unwrap();
        report.status.plan.hold = None;
        report
    }

    const WELL: [(&str, &str, &str, &str); 8] = [
        (
            "Available",
            "True",
            "Serving",
            "reads and writes are served",
        ),
        (
            "Progressing",
            "False",
            "Converged",
            "there is nothing to do",
        ),
        (
            "Degraded",
            "False",
            "AsAsked",
            "nothing is known to be wrong",
        ),
        (
            "BackupHealthy",
            "True",
            "Verified",
            "revision 7 is verified",
        ),
        ("CertificatesValid", "True", "Valid", "all are valid"),
        (
            "ClockTrusted",
            "True",
            "Synchronised",
            "the clock is synchronised",
        ),
        (
            "DocumentAccepted",
            "True",
            "Accepted",
            "the document is in force",
        ),
        ("HostHealthy", "True", "Sound", "the host needs nobody"),
    ];

    fn but(kind: &str, status: &'static str, message: &'static str) -> Report {
        let mut all = WELL.to_vec();
        match all.iter_mut().find(|it| it.0 == kind) {
            Some(it) => *it = (it.0, status, "Reason", message),
            None => all.push(("Future", status, "Reason", message)),
        }
        report(&all)
    }

    #[test]
    fn each_condition_counts_in_its_own_polarity() {
        let line = |report: &Report| headline(report, true).line(false);
        let ok = "OK: etcd 3.6.16 serves reads and writes\n";
        assert_eq!(line(&report(&WELL)), ok);
        for (kind, bad) in [
            ("Available", "False"),
            ("Available", "Unknown"),
            ("Degraded", "True"),
            ("BackupHealthy", "False"),
            ("CertificatesValid", "False"),
            ("DocumentAccepted", "False"),
            ("HostHealthy", "False"),
            ("of a version to come", "False"),
        ] {
            let told = line(&but(kind, bad, "it is so; next: do that"));
            let wanted = "ATTENTION: Reason: it is so\nnext: do that\n";
            assert_eq!(told, wanted, "{kind} {bad}");
        }
        for (kind, harmless) in [
            ("Progressing", "True"),
            ("ClockTrusted", "False"),
            ("BackupHealthy", "Unknown"),
            ("HostHealthy", "Unknown"),
        ] {
            assert_eq!(line(&but(kind, harmless, "")), ok, "{kind} {harmless}");
        }
    }

    #[test]
    fn the_worst_is_said_and_the_others_are_counted() {
        let mut report = but("HostHealthy", "False", "the disk is worn; next: replace it");
        report.status.conditions[2].status = "True".to_owned();
        report.status.conditions[2].reason = "NoSpace".to_owned();
        report.status.conditions[2].message = "the database has reached its quota".to_owned();
        let told = headline(&report, true);
        let wanted = "ATTENTION: NoSpace: the database has reached its quota (and 1 more below)\n";
        assert_eq!(told.line(false), wanted);
        assert!(told.says(&report.status.conditions[2]));
        assert!(!told.says(&report.status.conditions[7]));
        assert!(told.line(true).starts_with("\x1b[1;31mATTENTION\x1b[0m: "));
    }

    #[test]
    fn without_its_operator_nothing_is_ok() {
        let mut report = report(&WELL);
        report.host.operator.pid = None;
        let told = headline(&report, true).line(false);
        assert!(
            told.starts_with("ATTENTION: the operator is not running"),
            "{told}"
        );
    }
}
