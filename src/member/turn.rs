//! A member that joins waits in its guard: until the cluster lists it, then for its turn.
//!
//! Its Pod may be made before the cluster knows of it, so that images and volumes are fetched while the others are born. etcd
//! starts only with the list as it is; so the guard reads it where etcd itself does, at the peers.
//!
//! Then it starts after those that join with it and come before it in the document. Before it serves its peers, etcd asks every
//! listed member for its version and for a downgrade, and waits for each as long as for a request to the cluster: 15 s with the
//! profile `edge`. Two that start at the same moment wait for each other, both times (measured with 3.6: 31 s instead of 1).

use std::path::Path;
use std::time::Duration;

use futures_util::future::select_all;
use hyper::body::Bytes;
use hyper::{Method, StatusCode};
use serde::{Deserialize, Serialize};
use tokio::net::lookup_host;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

use super::change::initial_cluster;
use crate::clock;
use crate::cluster::{Health, Member, MemberId, Role};
use crate::http::Way;
use crate::spec::MemberSpec;
use crate::tls::ClientFiles;

/// No longer than two that start together would wait for each other: one of them may not come at all.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// For so long a member that may have data of its own waits to hear whether it is another one's: without a majority nobody tells,
/// and then its vote may be the one that is missing.
pub const OWN_PATIENCE: Duration = Duration::from_secs(2);
/// etcd starts only with the list as it is, and all are added one right after the other. One of them may never be.
const ALL_LISTED: Duration = Duration::from_secs(5);
/// A member that serves its peers answers at once, also on a slow board.
const ANSWERS: Duration = Duration::from_secs(2);
const AGAIN: Duration = Duration::from_millis(100);
/// etcd's list of seven members has a twentieth.
const ANSWER_MAX: usize = 64 << 10;

/// A member of the document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Where its peers reach it.
    pub url: String,
}

impl Peer {
    fn to_spec(&self) -> MemberSpec {
        MemberSpec {
            name: self.name.as_str().try_into().unwrap_or_default(),
            peer_url: self.url.as_str().try_into().unwrap_or_default(),
        }
    }
}

/// What a member that joins takes from the cluster's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The id that the list has for it, in hexadecimal.
    pub id: String,
    /// The list, as etcd's `initial-cluster`.
    pub list: String,
    /// The peer URLs of those that join as well and start before it.
    pub before: Vec<String>,
}

/// Somebody has asked this process to end.
#[derive(Debug)]
pub struct AskedToEnd;

/// A member as its peers list it.
#[derive(Deserialize)]
struct Entry {
    id: u64,
    #[serde(default)]
    name: String,
    #[serde(default, rename = "peerURLs")]
    peer_urls: Vec<String>,
    #[serde(default, rename = "isLearner")]
    is_learner: bool,
}

impl Entry {
    fn to_member(&self) -> Member {
        let peer_url = self.peer_urls.first().map_or("", String::as_str);
        Member {
            id: MemberId(self.id),
            name: self.name.as_str().try_into().unwrap_or_default(),
            peer_url: peer_url.try_into().unwrap_or_default(),
            role: if self.is_learner {
                Role::Learner { caught_up: false }
            } else {
                Role::Voter
            },
            health: Health::Unknown,
        }
    }
}

/// The member with this peer URL in the list. `None`: it is not there, or it has had data.
fn listed(members: &[Member], document: &[MemberSpec], own: &str) -> Option<Listed> {
    let number = document.iter().position(|it| it.peer_url == own)?;
    let waits = |it: &&Member| it.name.is_empty();
    let entry_of = |place: &MemberSpec| members.iter().find(|it| place.is_of(it)).filter(waits);
    let entry = entry_of(&document[number])?;
    let before = document.iter().take(number);
    let before = before.filter(|it| entry_of(it).is_some());
    Some(Listed {
        id: entry.id.to_string(),
        list: initial_cluster(document, members.iter()),
        before: before.map(|it| it.peer_url.to_string()).collect(),
    })
}

/// Waits until the list has the member that joins. `peers`: the document's members; `own`: its peer URL; `had`: the id that
/// data here has; `tls`: where the certificates are; `patience`: where the data may be its own. `None`: it is its own.
///
/// # Errors
/// The process was asked to end.
pub fn wait_until_listed(
    peers: &[Peer],
    own: &str,
    had: Option<&str>,
    tls: &Path,
    patience: Option<Duration>,
) -> Result<Option<Listed>, AskedToEnd> {
    let document: Vec<MemberSpec> = peers.iter().map(Peer::to_spec).collect();
    let told = |members: &[Member]| {
        let is_had = |it: &Member| had == Some(it.id.to_string().as_str());
        match listed(members, &document, own) {
            None if members.iter().any(is_had) => Some(None),
            listed => listed.map(Some),
        }
    };
    let has_all = |members: &[Member]| {
        let is_there = |place: &MemberSpec| members.iter().any(|it| place.is_of(it));
        document.iter().all(is_there)
    };
    let asked = async |url: &str| {
        let mut found = None;
        loop {
            let members = ask_for_list(url, tls).await;
            let told = members.and_then(|it| Some((told(&it)?, has_all(&it))));
            if let Some((told, all)) = told {
                let since = *found.get_or_insert_with(clock::since_boot);
                if all || told.is_none() || clock::since_boot() > since + ALL_LISTED {
                    return told;
                }
            }
            sleep(AGAIN).await;
        }
    };
    let others = peers.iter().filter(|it| it.url != own);
    let all: Vec<_> = others.map(|it| Box::pin(asked(&it.url))).collect();
    if all.is_empty() {
        return Ok(None);
    }
    Ok(run(patience, select_all(all))?.and_then(|it| it.0))
}

async fn ask_for_list(peer_url: &str, tls: &Path) -> Option<Vec<Member>> {
    let answer = ask(peer_url, tls, "/members").await?;
    let entries: Vec<Entry> = serde_json::from_slice(&answer).ok()?;
    Some(entries.iter().map(Entry::to_member).collect())
}

/// Waits until each of these serves at its peer URL, all together for so long at most.
///
/// # Errors
/// The process was asked to end.
pub fn wait(before: &[String], tls: &Path, patience: Duration) -> Result<(), AskedToEnd> {
    if before.is_empty() {
        return Ok(());
    }
    let all = async {
        for peer_url in before {
            while ask(peer_url, tls, "/version").await.is_none() {
                sleep(AGAIN).await;
            }
        }
    };
    if run(Some(patience), all)?.is_none() {
        let seconds = patience.as_secs();
        tracing::warn!("one that joins before this member has not served within {seconds} s");
    }
    Ok(())
}

/// `None`: nothing came of it within the patience, or the system has no room for a runtime.
fn run<T>(
    patience: Option<Duration>,
    waits: impl Future<Output = T>,
) -> Result<Option<T>, AskedToEnd> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build();
    let Ok(runtime) = runtime else {
        return Ok(None); // it only starts earlier than it should
    };
    // The first process of a container has to listen for it.
    let ended = async {
        match signal(SignalKind::terminate()) {
            Ok(mut asked) => asked.recv().await,
            Err(_) => std::future::pending().await,
        }
    };
    let waited = runtime.block_on(async {
        tokio::select! {
            _ = ended => Err(AskedToEnd),
            waited = timeout(patience.unwrap_or(Duration::MAX), waits) => Ok(waited.ok()),
        }
    });
    runtime.shutdown_background(); // a name may still be looked up
    waited
}

/// The member's certificate for its peers, as its Secret is mounted.
fn files(tls: &Path) -> ClientFiles {
    ClientFiles {
        server_name: None,
        ca: tls.join("peer-ca.crt"),
        cert: tls.join("peer.crt"),
        key: tls.join("peer.key"),
    }
}

/// What a member answers at its peer URL, with the certificate that this one has for its peers.
async fn ask(peer_url: &str, tls: &Path, path: &str) -> Option<Bytes> {
    let place = peer_url.strip_prefix("https://")?;
    let (host, _) = place.rsplit_once(':')?;
    let files = files(tls);
    let asked = async {
        let way = Way {
            address: lookup_host(place).await.ok()?.next()?,
            server_name: host,
            files: &files,
        };
        way.ask(Method::GET, path, ANSWER_MAX).await.ok()
    };
    let (status, answer) = timeout(ANSWERS, asked).await.ok().flatten()?;
    (status == StatusCode::OK).then_some(answer)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use http_body_util::Full;
    use hyper::body::{Bytes, Incoming};
    use hyper::service::service_fn;
    use hyper::{Request, Response};
    use hyper_util::rt::TokioIo;
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::tls::{Certificates, Leaves, Validity};

    fn certificates(room: &Path) -> std::path::PathBuf {
        let own = Certificates::at(room);
        let now = crate::clock::now();
        own.ensure_authorities("shop", now).unwrap();
        let names = ["localhost".to_owned()];
        let leaves = Leaves {
            names: &names,
            peer_names: &names,
            cluster: "shop",
            validity: Validity::trusted(now, 3600),
        };
        own.mint(&leaves).unwrap();
        own.current()
    }

    fn answer(listener: std::net::TcpListener, config: &Arc<rustls::ServerConfig>) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        runtime.block_on(async {
            listener.set_nonblocking(true).unwrap();
            let listener = TcpListener::from_std(listener).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let Ok(stream) = TlsAcceptor::from(config.clone()).accept(stream).await else {
                    continue;
                };
                let version = service_fn(|asked: Request<Incoming>| async move {
                    assert_eq!(asked.uri().path(), "/version");
                    Ok::<_, hyper::Error>(Response::new(Full::new(Bytes::from("{}"))))
                });
                let served = crate::http::builder();
                let _ = served.serve_connection(TokioIo::new(stream), version).await;
            }
        });
    }

    /// Who is asked for what: a list in which `shop-1` and `shop-2` wait for their members.
    #[test]
    fn one_that_joins_finds_its_place_and_who_goes_before_it() {
        let peer = |number: u32| Peer {
            name: format!("shop-{number}"),
            url: format!("https://shop-{number}:2380"),
        };
        let peers: Vec<Peer> = (0..3).map(peer).collect();
        let list = r#"[
            {"id": 10, "peerURLs": ["https://shop-0:2380"], "name": "shop-0", "clientURLs": ["https://shop:2379"]},
            {"id": 12, "peerURLs": ["https://shop-2:2380"], "isLearner": true},
            {"id": 11, "peerURLs": ["https://shop-1:2380"], "isLearner": true},
            {"id": 13, "peerURLs": ["https://elsewhere:2380"]}
        ]"#;
        let entries: Vec<Entry> = serde_json::from_str(list).unwrap();
        let mut members: Vec<Member> = entries.iter().map(Entry::to_member).collect();
        let document: Vec<MemberSpec> = peers.iter().map(Peer::to_spec).collect();
        let at = |members: &[Member], url: &str| listed(members, &document, url);
        let place = at(&members, "https://shop-2:2380").unwrap();
        assert_eq!(place.id, "000000000000000c");
        assert_eq!(place.before, ["https://shop-1:2380"]);
        assert_eq!(
            place.list,
            "shop-0=https://shop-0:2380,shop-2=https://shop-2:2380,shop-1=https://shop-1:2380,000000000000000d=https://elsewhere:2380"
        );
        // One that had data is removed first, and one that is not listed waits.
        assert_eq!(at(&members, "https://shop-0:2380"), None);
        members.retain(|it| it.id.0 != 12);
        assert_eq!(at(&members, "https://shop-2:2380"), None);
        let first = at(&members, "https://shop-1:2380").unwrap();
        assert!(first.before.is_empty());
        members.truncate(1);
        assert_eq!(at(&members, "https://shop-1:2380"), None);
    }

    /// The other half of the next test, in a process of its own.
    #[test]
    #[ignore = "it waits for ever"]
    fn waits_for_a_place_that_nobody_gives() {
        let peer = |number: u32| Peer {
            name: format!("shop-{number}"),
            url: format!("https://localhost:{number}"),
        };
        let peers = [peer(1), peer(2)]; // nobody listens there
        let waited = wait_until_listed(&peers, &peers[1].url, None, Path::new("/nowhere"), None);
        assert!(waited.is_err(), "{waited:?}");
    }

    /// The first process of a container ends on no signal that it does not listen for.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "this test itself, once more")]
    fn one_that_waits_ends_when_its_pod_is_deleted() {
        let this = std::env::current_exe().unwrap();
        let waits = "member::turn::tests::waits_for_a_place_that_nobody_gives";
        let mut child = std::process::Command::new(this)
            .args(["--exact", "--ignored", waits])
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let status = format!("/proc/{}/status", child.id());
        let listens = || {
            let text = std::fs::read_to_string(&status).unwrap();
            let caught = text.lines().find_map(|it| it.strip_prefix("SigCgt:"));
            let caught = u64::from_str_radix(caught.unwrap().trim(), 16).unwrap();
            caught & (1 << 14) != 0
        };
        while !listens() {
            std::thread::sleep(AGAIN);
        }
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(child.wait().unwrap().success());
    }

    /// As etcd, whose port takes connections long before anybody answers there.
    #[test]
    fn one_waits_until_the_other_serves_and_not_only_listens() {
        let room = std::env::temp_dir().join(format!("etcd-operator-turn-{}", std::process::id()));
        let tls = certificates(&room);
        let listener = std::net::TcpListener::bind("localhost:0").unwrap();
        let url = format!(
            "https://localhost:{}",
            listener.local_addr().unwrap().port()
        );

        wait(std::slice::from_ref(&url), &tls, Duration::from_millis(300)).unwrap(); // not for ever

        let serves = Arc::new(AtomicBool::new(false));
        let begun = serves.clone();
        let config = Arc::new(files(&tls).to_serve().unwrap());
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            begun.store(true, Ordering::SeqCst);
            answer(listener, &config);
        });
        wait(&[url], &tls, Duration::from_secs(60)).unwrap();
        assert!(serves.load(Ordering::SeqCst), "it was waited for");
        let _ = std::fs::remove_dir_all(&room);
    }
}
