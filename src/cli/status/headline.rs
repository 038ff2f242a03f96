//! The first line: OK, or what needs a person's attention and what to do next.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::Told;
use crate::cli::print::{Tone, span, toned};
use crate::clock;
use crate::cluster::Timestamp;
use crate::controller::HEARTBEAT_SECONDS;
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

/// In Kubernetes the operator says that all is as it was, too: once it has missed that, and somewhat later.
const SILENT_SECONDS: i64 = 2 * HEARTBEAT_SECONDS + 60;

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
pub(super) fn headline(told: &Told) -> Headline {
    let plan = &told.status.plan;
    let conditions = &told.status.conditions;
    if let Some(hold) = &plan.hold {
        let message = plan.message.clone().unwrap_or_default();
        let further = further(told, hold);
        return Headline {
            ok: false,
            what: format!("{hold}: {message}{further}"),
            next: plan.next_step.clone(),
            reason: hold.clone(),
            message,
        };
    }
    if let Some((what, next)) = operator_away(told) {
        return Headline {
            ok: false,
            what,
            next: Some(next.to_owned()),
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
        let host = told.host.as_ref();
        let version = host.map_or(&told.status.version, |it| &it.etcd.version);
        let version = version.as_deref().unwrap_or_default();
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
    let further = further(told, &worst.reason);
    Headline {
        ok: false,
        what: format!("{}: {message}{further}", worst.reason),
        next,
        reason: worst.reason.clone(),
        message: message.to_owned(),
    }
}

/// Nobody looks after it: what is said, and the next step.
fn operator_away(told: &Told) -> Option<(String, &'static str)> {
    let Some(host) = &told.host else {
        let next = "kubectl get pods --all-namespaces -l app.kubernetes.io/name=etcd-operator";
        let Some(seen) = &told.status.confirmed_until else {
            return Some((
                "no operator has looked at this cluster yet".to_owned(),
                next,
            ));
        };
        let age = clock::now().seconds_since(Timestamp(seen.0.as_second()));
        let silent = u64::try_from(age).ok().filter(|_| age > SILENT_SECONDS)?;
        let said = format!("the operator has said nothing for {}", span(silent));
        return Some((said, next));
    };
    if host.operator.pid.is_some() {
        return None;
    }
    let etcd = if host.etcd.pid.is_some() {
        "etcd runs without it"
    } else {
        "nor is etcd"
    };
    let start = if told.systemd {
        "sudo systemctl start etcd-operator"
    } else {
        "etcd-operator agent"
    };
    Some((format!("the operator is not running, {etcd}"), start))
}

/// How many conditions need attention beside the one with this reason.
fn further(told: &Told, reason: &str) -> String {
    let conditions = told.status.conditions.iter();
    let others = conditions.filter(|it| needs_attention(it) && it.reason != reason);
    match others.count() {
        0 => String::new(),
        count => format!(" (and {count} more below)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::Report;

    fn told(conditions: &[(&str, &str, &str, &str)]) -> Told {
        let conditions: Vec<serde_json::Value> = conditions
            .iter()
            .map(|(kind, status, reason, message)| {
                serde_json::json!({"type": kind, "status": status, "reason": reason,
                    "message": message, "lastTransitionTime": "2026-11-22T10:00:00Z"})
            })
            .collect();
        let report: Report = serde_json::from_value(serde_json::json!({
            "conditions": conditions,
            "host": {"name": "edge", "driver": "process", "operator": {"pid": 7},
                "etcd": {"pid": 8, "version": "3.6.16", "clientURL": "", "metricsURL": "", "dataDir": ""},
                "files": {"ca": "", "cert": "", "key": ""}},
        }))
        .unwrap();
        Told {
            status: report.status,
            name: report.host.name.clone(),
            host: Some(report.host),
            systemd: true,
            unseen: false,
        }
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

    fn but(kind: &str, status: &'static str, message: &'static str) -> Told {
        let mut all = WELL.to_vec();
        match all.iter_mut().find(|it| it.0 == kind) {
            Some(it) => *it = (it.0, status, "Reason", message),
            None => all.push(("Future", status, "Reason", message)),
        }
        told(&all)
    }

    #[test]
    fn each_condition_counts_in_its_own_polarity() {
        let line = |told: &Told| headline(told).line(false);
        let ok = "OK: etcd 3.6.16 serves reads and writes\n";
        assert_eq!(line(&told(&WELL)), ok);
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
            let said = line(&but(kind, bad, "it is so; next: do that"));
            let wanted = "ATTENTION: Reason: it is so\nnext: do that\n";
            assert_eq!(said, wanted, "{kind} {bad}");
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
        let mut told = but("HostHealthy", "False", "the disk is worn; next: replace it");
        told.status.conditions[2].status = "True".to_owned();
        told.status.conditions[2].reason = "NoSpace".to_owned();
        told.status.conditions[2].message = "the database has reached its quota".to_owned();
        let said = headline(&told);
        let wanted = "ATTENTION: NoSpace: the database has reached its quota (and 1 more below)\n";
        assert_eq!(said.line(false), wanted);
        assert!(said.says(&told.status.conditions[2]));
        assert!(!said.says(&told.status.conditions[7]));
        assert!(said.line(true).starts_with("\x1b[1;31mATTENTION\x1b[0m: "));
    }

    #[test]
    fn without_its_operator_nothing_is_ok() {
        let mut of_host = told(&WELL);
        of_host.host.as_mut().unwrap().operator.pid = None;
        let said = headline(&of_host).line(false);
        let wanted = "ATTENTION: the operator is not running, etcd runs without it\n";
        assert!(said.starts_with(wanted), "{said}");
    }

    #[test]
    fn in_kubernetes_an_operator_that_says_nothing_is_away() {
        let mut told = told(&WELL);
        told.host = None;
        told.status.version = Some("3.6.16".to_owned());
        let line = |told: &Told| headline(told).line(false);
        assert!(line(&told).starts_with("ATTENTION: no operator has looked"));
        let ago = |seconds: i64| {
            let at = crate::clock::rfc3339(Timestamp(clock::now().0 - seconds));
            serde_json::from_value(at.into()).unwrap()
        };
        told.status.confirmed_until = Some(ago(1800));
        assert_eq!(line(&told), "OK: etcd 3.6.16 serves reads and writes\n");
        told.status.confirmed_until = Some(ago(7205));
        let wanted = "ATTENTION: the operator has said nothing for 2 h\n";
        assert!(line(&told).starts_with(wanted), "{}", line(&told));
    }
}
