//! Addresses that etcd should listen on: one that it cannot, and those that a start does without.

use core::net::SocketAddr;

use crate::cluster::Detail;

/// An address that etcd should listen on but cannot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressConflict {
    /// `IP:port`.
    pub address: heapless::String<64>,
    /// The host has no such address (else: the port is taken).
    pub not_ours: bool,
    /// This user may not listen there.
    pub denied: bool,
    /// Who holds the port, as far as it can be seen.
    pub holder: heapless::String<64>,
    /// A k3s with an embedded etcd keeps its data on this host (rule A10).
    pub k3s_embedded: bool,
}

/// So many seconds after a boot an address that is not there is waited for: the network comes up.
pub const NETWORK_SECONDS: u64 = 60;

/// Whether a start does without the addresses that are `gone` from this host, of those that were `asked` for: etcd has
/// `served` on them before, so that none of them is a mistake of an edit; all are clients'; and one of the clients' is left.
/// `up`: seconds since boot.
pub fn does_without(
    (asked, gone): (&[SocketAddr], &[SocketAddr]),
    served: &[SocketAddr],
    client_port: u16,
    up: u64,
) -> bool {
    let is_clients = |it: &SocketAddr| it.port() == client_port;
    let left = asked.iter().any(|it| is_clients(it) && !gone.contains(it));
    left && up >= NETWORK_SECONDS && gone.iter().all(|it| is_clients(it) && served.contains(it))
}

/// Where a document names no address, etcd listens on loopback and on the host's own one. Of what the host has as that now,
/// these count, of those that an etcd `serves` on: any (none is returned) once all but loopback are `gone`, as with a new
/// lease, or with a boot before the network. While one is left, another uplink that takes over for a while changes nothing.
pub fn of_the_host(serves: &[SocketAddr], gone: &[SocketAddr]) -> Option<Vec<SocketAddr>> {
    let is_left = |it: &SocketAddr| !it.ip().is_loopback() && !gone.contains(it);
    serves.iter().any(is_left).then(|| serves.to_vec())
}

/// Addresses of clients on which a running etcd serves nobody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unserved {
    /// Which.
    pub addresses: Detail,
    /// Seconds since they are this host's again, where etcd was started without them; none: they are not.
    pub there: Option<u64>,
}

impl Unserved {
    /// They stay, so that a restart takes them.
    pub fn is_back(&self) -> bool {
        self.there.is_some_and(|it| it >= BACK_SECONDS)
    }
}

/// After a restart for an address, so many seconds pass until the next one: an address that leaves whenever etcd is away,
/// as one that follows a check of etcd, costs one restart in that time.
const AGAIN_SECONDS: u64 = 3600;

/// Since when addresses are back that an etcd was started without. Losing it costs a wait.
#[derive(Clone, Debug, Default)]
pub struct Returned {
    pid: u32,
    since: Vec<(SocketAddr, u64)>,
    /// Another etcd runs since it was to be restarted for an address.
    restarted: Option<u64>,
}

impl Returned {
    /// Notes those that are `back` now (seconds since boot) and that this process serves nobody on; for how long the first
    /// of them was, not counted before a restart may follow.
    pub fn note(&mut self, pid: u32, back: &[SocketAddr], now: u64) -> Option<u64> {
        if pid != self.pid {
            if self.there(now).is_some_and(|it| it >= BACK_SECONDS) {
                self.restarted = Some(now);
            }
            (self.pid, self.since) = (pid, Vec::new());
        }
        self.since.retain(|(it, _)| back.contains(it));
        for it in back {
            if !self.since.iter().any(|(known, _)| known == it) {
                self.since.push((*it, now));
            }
        }
        self.there(now)
    }

    fn there(&self, now: u64) -> Option<u64> {
        let first = self.since.iter().map(|it| it.1).min()?;
        let from = self.restarted.map_or(0, |it| it + AGAIN_SECONDS);
        Some(now.saturating_sub(first.max(from)))
    }
}

/// So many seconds an address is there before etcd is restarted for it: one that flaps costs no restart.
pub const BACK_SECONDS: u64 = 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_does_without_what_it_had_and_lost_as_long_as_clients_have_another_way() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let all = [
            "127.0.0.1:2379",
            "10.0.0.7:2379",
            "127.0.0.1:2380",
            "127.0.0.1:2381",
        ]
        .map(at);
        let gone = [at("10.0.0.7:2379")];
        let does = |gone: &[SocketAddr], served: &[SocketAddr], up| {
            does_without((&all, gone), served, 2379, up)
        };
        assert!(does(&gone, &all, NETWORK_SECONDS));
        assert!(
            !does(&gone, &all, NETWORK_SECONDS - 1),
            "the network comes up"
        );
        assert!(!does(&gone, &all[..1], 999), "an edit's mistake");
        assert!(!does(&gone, &[], 999), "it never served");
        assert!(!does(&all[..2], &all, 999), "no way is left");
        let peers = [gone[0], all[2]];
        assert!(!does(&peers, &all, 999), "peers need theirs");
    }

    #[test]
    fn another_address_of_the_host_counts_once_the_one_before_is_gone() {
        let [local, lan] = ["127.0.0.1:2379", "10.0.0.7:2379"].map(|it| it.parse().unwrap());
        assert_eq!(
            of_the_host(&[local, lan], &[]),
            Some(vec![local, lan]),
            "a second uplink"
        );
        assert_eq!(of_the_host(&[local, lan], &[lan]), None, "a new lease");
        assert_eq!(
            of_the_host(&[local], &[]),
            None,
            "a boot before the network"
        );
    }

    #[test]
    fn an_address_counts_from_its_last_return_and_restarts_etcd_once_an_hour() {
        let one = "10.0.0.7:2379".parse().unwrap();
        let other = "10.0.0.8:2379".parse().unwrap();
        let mut seen = Returned::default();
        assert_eq!(seen.note(1, &[one], 100), Some(0));
        assert_eq!(seen.note(1, &[one], 130), Some(30));
        assert_eq!(seen.note(1, &[], 140), None, "it went once more");
        assert_eq!(seen.note(1, &[one], 150), Some(0));
        assert_eq!(seen.note(1, &[one, other], 180), Some(30));
        assert_eq!(
            seen.note(1, &[one], 210),
            Some(60),
            "whatever becomes of the other"
        );
        // It was restarted, and the address was away just then.
        assert_eq!(seen.note(2, &[one], 220), Some(0));
        assert_eq!(seen.note(2, &[one], 3000), Some(0));
        assert_eq!(seen.note(2, &[one], 220 + AGAIN_SECONDS + 60), Some(60));
        // One that died by itself is no restart for an address.
        let mut seen = Returned::default();
        seen.note(1, &[one], 100);
        assert_eq!(seen.note(2, &[one], 110), Some(0));
        assert_eq!(seen.note(2, &[one], 170), Some(60));
    }
}
