//! Decides when certificates are made: at birth, before they expire, and once the clock is trusted.

use super::{Hold, Steps, Upkeep};
use crate::cluster::Timestamp;
use crate::observed::{Certificates, Clock, Instance, Observed, Pairs};

/// Renewal starts at the latest this many seconds before the end (rule D41: 30 days).
pub const RENEW_BEFORE_SECONDS: i64 = 30 * 86_400;
/// With an untrusted clock the operator renews nothing by date. But it replaces a pair that expires within
/// this many seconds by that clock with a provisional one.
pub const PROVISIONAL_BEFORE_SECONDS: i64 = 86_400;
/// The operator warns about a client certificate that nobody renews this many seconds before its end.
pub const WARN_BEFORE_SECONDS: i64 = 30 * 86_400;

/// Why certificates are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mint {
    /// There are none, or they are unusable.
    Unusable,
    /// Two thirds of their lifetime have passed, or fewer than 30 days are left.
    Renewal,
    /// They are provisional, and the clock is trusted now.
    ClockTrusted,
    /// They lack an address that clients use.
    Addresses,
}

/// Whether a leaf's renewal is due at `now`: after two thirds of its life, or 30 days before its
/// end, whichever comes first (rule D41).
pub fn due(not_before: Timestamp, not_after: Timestamp, now: Timestamp) -> bool {
    let life = not_after.seconds_since(not_before);
    let last_third = life / 3;
    // A short life has no 30 days to spare: then the last third alone counts.
    let ahead = if life > 2 * RENEW_BEFORE_SECONDS {
        last_third.max(RENEW_BEFORE_SECONDS)
    } else {
        last_third
    };
    not_after.seconds_since(now) <= ahead
}

/// Why the host's leaves are made again; `None`: they are not.
pub(super) fn mint(certificates: &Certificates, observed: &Observed) -> Option<Mint> {
    let trusted = observed.clock == Clock::Trusted;
    match certificates.pairs {
        Pairs::Missing | Pairs::Broken | Pairs::Expired | Pairs::NotYetValid => {
            Some(Mint::Unusable)
        }
        _ if trusted && certificates.provisional => Some(Mint::ClockTrusted),
        _ if trusted
            && due(
                certificates.not_before,
                certificates.not_after,
                observed.now,
            ) =>
        {
            Some(Mint::Renewal)
        }
        _ if !trusted
            && certificates.not_after.seconds_since(observed.now) <= PROVISIONAL_BEFORE_SECONDS =>
        {
            Some(Mint::Renewal)
        }
        Pairs::AddressesDiffer => Some(Mint::Addresses),
        Pairs::Usable => None,
    }
}

/// Plans new leaves. etcd reads them at the next handshake, so they need no permit (rule D38).
pub(super) fn steps(
    observed: &Observed,
    instance: &Instance,
    steps: &mut Steps<'_>,
) -> Result<(), Hold> {
    if !instance.certificates.can_be_made() {
        return Err(Hold::AuthorityDamaged);
    }
    if let Some(reason) = mint(&instance.certificates, observed) {
        steps.push(Upkeep::MintCertificates(reason));
    }
    Ok(())
}

/// Plans clients' certificates. etcd does not need them to start, so they are made while it comes up.
pub(super) fn client_steps(instance: &Instance, steps: &mut Steps<'_>) {
    if instance.certificates.clients_due && instance.certificates.can_be_made() {
        steps.push(Upkeep::MintClients);
    }
}

impl core::fmt::Display for Mint {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Mint::Unusable => "issue certificates",
            Mint::Renewal => "renew certificates",
            Mint::ClockTrusted => "replace provisional certificates",
            Mint::Addresses => "issue certificates for changed addresses",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewal_comes_at_two_thirds_or_thirty_days_before_the_end() {
        let day = 86_400;
        let at =
            |life: i64, age: i64| due(Timestamp(0), Timestamp(life * day), Timestamp(age * day));
        assert!(!at(365, 243) && at(365, 244), "two thirds of a year");
        assert!(!at(72, 41) && at(72, 42), "thirty days before the end");
        assert!(!at(3, 1) && at(3, 2), "a short life");
        assert!(at(365, 400), "long over");
    }
}
