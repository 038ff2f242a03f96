//! The conditions CertificatesValid and ClockTrusted.

use super::{Condition, Kind, Verdict, condition};
use crate::cluster::detail;
use crate::observed::{CaState, Clock, Instance, Observed, Pairs};
use crate::plan::certificate;

/// Whether etcd and its clients have usable certificates.
pub(super) fn valid(observed: &Observed) -> Condition {
    let told =
        |verdict, reason, message| condition(Kind::CertificatesValid, verdict, reason, message);
    // The worst of all members; of equals the first.
    let all = observed.instances.iter().map(|it| of(it, observed));
    all.min_by_key(|it| (it.verdict != Verdict::False, it.reason == "Valid"))
        .unwrap_or_else(|| {
            told(
                Verdict::Unknown,
                "NotObserved",
                detail(format_args!(
                    "the operator has not checked the certificates yet"
                )),
            )
        })
}

/// The same of one member.
fn of(instance: &Instance, observed: &Observed) -> Condition {
    let told =
        |verdict, reason, message| condition(Kind::CertificatesValid, verdict, reason, message);
    let certificates = &instance.certificates;
    let no = |reason, text: &str| told(Verdict::False, reason, detail(format_args!("{text}")));
    match certificates.pairs {
        Pairs::Missing => no("Missing", "there are no certificates yet"),
        Pairs::Broken => no(
            "Broken",
            "a certificate or key cannot be read, or the two do not match",
        ),
        Pairs::Expired => no("Expired", "a certificate has expired"),
        Pairs::NotYetValid => no(
            "NotYetValid",
            "a certificate is not valid yet: the clock went back",
        ),
        _ if certificates.authorities == CaState::Damaged => no(
            "AuthorityDamaged",
            "a CA cannot be read or cannot sign, so no certificate can be renewed",
        ),
        _ if certificates.authorities == CaState::Replaced => no(
            "AuthorityReplaced",
            "the CA was replaced: etcd refuses certificates that the old CA signed; next: issue them again (certs issue NAME), then run: etcd-operator certs accept; or put tls/ back from a copy",
        ),
        Pairs::AddressesDiffer | Pairs::Usable => match &certificates.issued_earliest {
            Some((name, end))
                if end.seconds_since(observed.now) <= certificate::WARN_BEFORE_SECONDS =>
            {
                let days = end.seconds_since(observed.now).max(0) / 86_400;
                let message = detail(format_args!(
                    "a certificate of {name} that nobody renews ends in {days} days; next: run certs issue {name} as before"
                ));
                told(Verdict::True, "IssuedCertificateEnds", message)
            }
            _ if certificates.provisional => told(
                Verdict::True,
                "Provisional",
                detail(format_args!(
                    "the certificates were made while the clock was not trusted"
                )),
            ),
            _ => told(
                Verdict::True,
                "Valid",
                detail(format_args!("all certificates are valid")),
            ),
        },
    }
}

/// Whether certificates may be renewed by date.
pub(super) fn clock_trusted(clock: Clock) -> Condition {
    let told = |verdict, reason, message| condition(Kind::ClockTrusted, verdict, reason, message);
    match clock {
        Clock::Trusted => told(
            Verdict::True,
            "Synchronised",
            detail(format_args!("the clock is synchronised")),
        ),
        Clock::Unsynchronised => told(
            Verdict::False,
            "Unsynchronised",
            detail(format_args!(
                "no time source confirms the clock; renewals by date wait"
            )),
        ),
        Clock::BehindKnown { .. } => told(
            Verdict::False,
            "BehindKnownTime",
            detail(format_args!(
                "the clock is behind a time already seen; renewals by date wait"
            )),
        ),
    }
}
