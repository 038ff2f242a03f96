//! Finds the addresses that etcd could not listen on.
//!
//! An address that our own etcd holds is free for its next start. A wildcard covers every address of its
//! port. For `0.0.0.0` and for `[::]` alike, Go opens one socket of both families.

use std::io::{Error, ErrorKind};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};

use crate::process;

/// Why etcd cannot listen on an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Another process listens there.
    Port,
    /// The host has no such address, or nobody can listen on it as it is written.
    Address,
    /// This user may not listen there.
    Denied,
}

/// Whether two sockets cannot have these addresses at the same time.
pub fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let wildcard = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port() && (wildcard || one.ip() == other.ip())
}

/// Whether a listening socket is not etcd's own. Nobody else can listen on etcd's addresses. If etcd holds
/// a wildcard, nobody else can listen on its port.
pub fn is_anothers(socket: SocketAddr, own: &[SocketAddr]) -> bool {
    let mut of_port = own.iter().filter(|it| it.port() == socket.port());
    !of_port.any(|it| it.ip().is_unspecified() || it.ip() == socket.ip())
}

/// Whether another process prevents etcd from taking an address that overlaps with its present ones. An
/// address that etcd holds already is free for it. Otherwise one of the two is a wildcard. If etcd holds the
/// wildcard, nobody else can be on the port. If the wildcard is asked for, nobody else may be on the port.
pub fn kept_by_another(asked: SocketAddr, own: &[SocketAddr], listening: &[SocketAddr]) -> bool {
    let another = |it: &SocketAddr| it.port() == asked.port() && is_anothers(*it, own);
    !own.contains(&asked) && listening.iter().any(another)
}

/// The first address that etcd could not listen on after it has released its present ones.
pub fn first_taken(asked: &[SocketAddr], own: &[SocketAddr]) -> Option<(SocketAddr, Taken)> {
    asked.iter().find_map(|address| {
        let held = own.iter().any(|it| overlap(*it, *address));
        let taken = if own.contains(address) {
            None // and the kernel's list, which takes milliseconds, is not asked for
        } else if held {
            let listening = process::listening(address.port());
            kept_by_another(*address, own, &listening).then_some(Taken::Port)
        } else {
            bind(*address)
        };
        // In any case, the address must be one of this host.
        let taken = taken.or_else(|| bind(SocketAddr::new(address.ip(), 0)));
        taken.map(|it| (*address, it))
    })
}

/// Those that are no addresses of this host.
pub fn gone(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let is_gone = |it: &&SocketAddr| bind(SocketAddr::new(it.ip(), 0)) == Some(Taken::Address);
    addresses.iter().filter(is_gone).copied().collect()
}

/// Tries to listen. An error that does not concern the address, such as too many open files, is left for
/// etcd to report.
fn bind(address: SocketAddr) -> Option<Taken> {
    let mut bound = TcpListener::bind(as_go(address));
    let no_ipv6 = |it: &Error| it.kind() != ErrorKind::AddrInUse;
    if address.ip().is_unspecified() && bound.as_ref().is_err_and(no_ipv6) {
        bound = TcpListener::bind(address);
    }
    let error = bound.err()?;
    match error.kind() {
        ErrorKind::AddrInUse => Some(Taken::Port),
        ErrorKind::AddrNotAvailable | ErrorKind::InvalidInput => Some(Taken::Address),
        ErrorKind::PermissionDenied => Some(Taken::Denied),
        _ => None,
    }
}

fn as_go(address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), address.port())
    } else {
        address
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As etcd binds, which is written in Go.
    fn listen(addresses: &[SocketAddr]) -> Option<Vec<TcpListener>> {
        let bound = addresses.iter().map(|it| TcpListener::bind(as_go(*it)));
        bound.collect::<Result<Vec<_>, _>>().ok()
    }

    /// As others bind, who may take the addresses of one family alone.
    fn listen_as_others(addresses: &[SocketAddr]) -> Option<Vec<TcpListener>> {
        let bound = addresses.iter().map(TcpListener::bind);
        bound.collect::<Result<Vec<_>, _>>().ok()
    }

    fn subsets(addresses: &[IpAddr], port: u16) -> Vec<Vec<SocketAddr>> {
        (0..1_usize << addresses.len())
            .map(|bits| {
                let chosen = addresses.iter().enumerate();
                let chosen = chosen.filter(|(index, _)| bits >> index & 1 == 1);
                chosen.map(|(_, it)| SocketAddr::new(*it, port)).collect()
            })
            .collect()
    }

    /// Every set of addresses that etcd may hold, beside every set that others hold, to every set that a
    /// document may ask for: what is told beforehand is what the kernel says once etcd has ended.
    #[test]
    fn what_is_taken_is_what_the_kernel_refuses_once_etcd_has_ended() {
        let texts = ["127.0.0.1", "127.0.0.2", "0.0.0.0", "::1", "::"];
        let addresses = texts.map(|it| it.parse::<IpAddr>().unwrap());
        if TcpListener::bind("[::1]:0").is_err() {
            return; // a host without IPv6
        }
        let (mut tried, mut refused) = (0, 0);
        let free = TcpListener::bind("[::]:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        for own in subsets(&addresses, port) {
            for others in subsets(&addresses, port) {
                let held = listen(&own);
                if held.is_none() || listen_as_others(&others).is_none() {
                    continue; // nobody can hold these at one time
                }
                drop(held);
                for asked in subsets(&addresses, port) {
                    if asked.is_empty() || listen(&asked).is_none() {
                        continue; // `place` asks for none that exclude each other
                    }
                    let held_by_others = listen_as_others(&others).unwrap();
                    let held = listen(&own).unwrap();
                    let told = first_taken(&asked, &own);
                    drop(held);
                    let possible = listen(&asked).is_some();
                    drop(held_by_others);
                    tried += 1;
                    refused += u32::from(!possible);
                    assert_eq!(
                        told.is_none(),
                        possible,
                        "own {own:?}, others {others:?}, asked {asked:?}: {told:?}"
                    );
                }
            }
        }
        assert!(
            tried > 50 && refused > 20,
            "{tried} tried, {refused} refused"
        );
        let gone: SocketAddr = SocketAddr::new("192.0.2.1".parse().unwrap(), port);
        let wildcard = SocketAddr::new(addresses[2], port);
        // Without the interface that it belongs to, an address of a link is none.
        let link = SocketAddr::new("fe80::1".parse().unwrap(), port);
        for address in [gone, link] {
            for own in [&[][..], &[wildcard], &[address]] {
                let told = first_taken(&[address], own);
                assert_eq!(told, Some((address, Taken::Address)), "{own:?}");
            }
        }
    }
}
