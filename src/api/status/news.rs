//! Which changes of conditions people are told: Events in Kubernetes, lines of the log on a host.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::EtcdClusterStatus;

/// Reasons that a condition does not hold, and nothing is wrong.
const AS_ASKED: [&str; 3] = ["Starting", "NotConfigured", "SizeZero"];
/// Nobody is born with certificates.
const AT_BIRTH: &str = "Missing";

/// A condition that changed.
pub struct News<'a> {
    /// As it is now.
    pub condition: &'a Condition,
    /// Something is wrong now.
    pub wrong: bool,
    /// It was told before, and said something else than now, not only for another reason.
    pub turned: bool,
}

/// What changed, in the order of the conditions. What was never told is news where it is wrong or tells whether etcd
/// is available. Progressing is none: it changes with every step.
pub fn news<'a>(
    before: Option<&EtcdClusterStatus>,
    now: &'a EtcdClusterStatus,
) -> impl Iterator<Item = News<'a>> {
    let before = before.map_or(&[][..], |it| &it.conditions);
    now.conditions.iter().filter_map(|condition| {
        let (kind, reason) = (condition.type_.as_str(), condition.reason.as_str());
        if kind == "Progressing" || reason == "NotObserved" {
            return None;
        }
        let old = before.iter().find(|it| it.type_ == kind);
        let turned = old.is_some_and(|it| it.status != condition.status);
        let same = old.is_some_and(|it| it.reason == reason) && !turned;
        let fails = if kind == "Degraded" { "True" } else { "False" };
        let born = old.is_none() && reason == AT_BIRTH;
        let wrong = condition.status == fails && !AS_ASKED.contains(&reason) && !born;
        let first = old.is_none() && !wrong && kind != "Available";
        (!same && !first).then_some(News {
            condition,
            wrong,
            turned,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{self, rfc3339};

    fn status(conditions: &[(&str, &str, &str)]) -> EtcdClusterStatus {
        let now = rfc3339(clock::now());
        let conditions = conditions.iter().map(|(kind, status, reason)| {
            serde_json::json!({
                "type": kind, "status": status, "reason": reason, "message": "",
                "lastTransitionTime": now,
            })
        });
        let conditions = serde_json::Value::Array(conditions.collect());
        EtcdClusterStatus {
            conditions: serde_json::from_value(conditions).unwrap_or_default(),
            ..EtcdClusterStatus::default()
        }
    }

    fn told(before: Option<&EtcdClusterStatus>, now: &EtcdClusterStatus) -> Vec<String> {
        let words = |it: News<'_>| {
            let wrong = if it.wrong { "wrong " } else { "" };
            let turned = if it.turned { "turned " } else { "" };
            format!("{wrong}{turned}{}", it.condition.reason)
        };
        news(before, now).map(words).collect()
    }

    #[test]
    fn what_changed_is_told_once_and_what_is_wrong_as_such() {
        let begins = status(&[
            ("Available", "False", "Starting"),
            ("Progressing", "True", "Acting"),
            ("Degraded", "False", "AsExpected"),
            ("BackupHealthy", "False", "Overdue"),
            ("CertificatesValid", "False", "Missing"),
            ("ClockTrusted", "True", "Synchronised"),
            ("HostHealthy", "Unknown", "NotObserved"),
        ]);
        assert_eq!(told(None, &begins), ["Starting", "wrong Overdue"]);
        assert_eq!(told(Some(&begins), &begins), [""; 0]);
        let goes_on = status(&[
            ("Available", "True", "Serving"),
            ("Progressing", "False", "Converged"),
            ("Degraded", "True", "Corrupt"),
            ("BackupHealthy", "False", "SnapshotFailed"),
            ("CertificatesValid", "True", "Valid"),
            ("ClockTrusted", "True", "Synchronised"),
            ("HostHealthy", "False", "DiskFull"),
        ]);
        let expected = [
            "turned Serving",
            "wrong turned Corrupt",
            "wrong SnapshotFailed",
            "turned Valid",
            "wrong turned DiskFull",
        ];
        assert_eq!(told(Some(&begins), &goes_on), expected);
    }
}
