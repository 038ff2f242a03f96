//! Answers the operator. Snapshots it also serves to the Pod of a restore, which shows the member's own certificate.
//! Nobody else is answered.
//!
//! ```text
//! GET  /report?now=S&rests=BOOL&member=IP   what is known
//!      now: seconds since 1970, where the clock is trusted; rests: nothing is begun; member: where etcd is
//! GET  /snapshots/NAME            what lies there of this name, or of `latest`; 503 before the first look
//! GET  /snapshots/NAME/manifest   what is known of it; also of `latest`: the one that a restore takes
//! GET  /snapshots/NAME/file?from=N   the file, from this byte on
//! POST /snapshots/ID              one now, for the request of this id; the same id again is the same request
//! ```

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::files::{self, Meant};
use super::report::{Ended, Found, Report};
use crate::backup::local::LocalStore;
use crate::backup::name::{LATEST, SnapshotName, meant};
use crate::clock;
use crate::error::chain;
use crate::http;
use crate::tls::{ClientFiles, is_leaf_of, is_operator};

/// Requests that wait, and ends that are remembered: an operator asks for one after the other.
const REQUESTS_MAX: usize = 16;
/// An id of a request is a UID of Kubernetes, or the operator's own.
const ID_MAX: usize = 64;
/// Two synchronised clocks show times as near as this, and the way there takes a part of it.
const SAME_SECONDS: u64 = 5;
/// A handshake takes milliseconds.
const HANDSHAKE: Duration = Duration::from_secs(10);

const REFUSED: &str =
    "the operator is answered here, and a restore's Pod may fetch snapshots; nobody else\n";

/// What is asked and known.
#[derive(Default)]
pub(super) struct Board {
    posted: Mutex<Posted>,
    rung: Arc<Notify>,
}

#[derive(Default)]
struct Posted {
    report: Report,
    /// Names, levels, and whether they count; none before the first look that succeeded.
    snapshots: Option<Vec<(SnapshotName, u8, bool)>>,
    asked: VecDeque<String>,
    ended: VecDeque<Ended>,
    /// From the time since boot to the wall clock, while the operator trusts the clock.
    offset: Option<i64>,
    rests: bool,
    /// The operator has asked.
    heard: bool,
    /// Of the member's Pod.
    address: Option<IpAddr>,
}

impl Board {
    fn posted(&self) -> MutexGuard<'_, Posted> {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rung when somebody asks for a snapshot.
    pub(super) fn asked(&self) -> Arc<Notify> {
        self.rung.clone()
    }

    /// The request that was made first.
    pub(super) fn next(&self) -> Option<String> {
        self.posted().asked.front().cloned()
    }

    pub(super) fn offset(&self) -> Option<i64> {
        self.posted().offset
    }

    /// Where the operator last saw the member.
    pub(super) fn address(&self) -> Option<IpAddr> {
        self.posted().address
    }

    /// Whether the operator has asked since this process began.
    pub(super) fn is_heard(&self) -> bool {
        self.posted().heard
    }

    /// The operator says that nothing is to be begun.
    pub(super) fn rests(&self) -> bool {
        self.posted().rests
    }

    /// A request has ended.
    pub(super) fn end(&self, ended: Ended) {
        let posted = &mut *self.posted();
        posted.asked.retain(|it| *it != ended.id);
        if posted.ended.len() >= REQUESTS_MAX {
            posted.ended.pop_front();
        }
        posted.ended.push_back(ended);
    }

    pub(super) fn tell(&self, report: Report, snapshots: Option<Vec<(SnapshotName, u8, bool)>>) {
        let posted = &mut *self.posted();
        (posted.report, posted.snapshots) = (report, snapshots);
    }

    /// Whether it was taken up.
    fn ask(&self, id: &str) -> bool {
        let posted = &mut *self.posted();
        let known =
            posted.asked.iter().any(|it| it == id) || posted.ended.iter().any(|it| it.id == id);
        if !known && posted.asked.len() >= REQUESTS_MAX {
            return false;
        }
        if !known {
            posted.asked.push_back(id.to_owned());
            self.rung.notify_one();
        }
        true
    }

    fn report(&self, query: &str) -> Report {
        let said = |name: &str| {
            let all = query.split('&').filter_map(|it| it.split_once('='));
            all.filter(|it| it.0 == name).map(|it| it.1).next()
        };
        let posted = &mut *self.posted();
        posted.offset = said("now").and_then(|it| offset(it.parse().ok()?));
        posted.rests = said("rests") == Some("true");
        if !std::mem::replace(&mut posted.heard, true) {
            self.rung.notify_one();
        }
        let told = said("member").and_then(|it| it.parse().ok());
        posted.address = told.or(posted.address);
        let mut report = posted.report.clone();
        report.asked = posted.asked.iter().cloned().collect();
        report.ended = posted.ended.iter().cloned().collect();
        report
    }

    /// The snapshot that a word means: a name, another word for it, or the latest.
    fn meant(&self, word: &str) -> Meant {
        if let Ok(name) = word.parse() {
            return Meant::Named(name);
        }
        let posted = self.posted();
        let Some(all) = &posted.snapshots else {
            return Meant::Unknown;
        };
        if word == LATEST {
            let name = posted.report.restorable.as_ref();
            let name = name.and_then(|it| it.parse().ok());
            return name.map_or(Meant::None, Meant::Named);
        }
        match meant(word, all.iter().map(|it| &it.0)) {
            Ok(name) => name.cloned().map_or(Meant::None, Meant::Named),
            Err(several) => Meant::Several(several),
        }
    }

    fn found(&self, word: &str) -> Option<Found> {
        let meant = self.meant(word);
        let posted = self.posted();
        let all = posted.snapshots.as_ref()?;
        let mut found = Found::default();
        match meant {
            Meant::Named(name) => {
                if let Some((_, level, counts)) = all.iter().find(|it| it.0 == name) {
                    (found.level, found.counts) = (Some(*level), *counts);
                }
                found.name = Some(name.to_string());
            }
            Meant::Several(several) => found.several = Some(several.to_string()),
            Meant::None | Meant::Unknown => {}
        }
        if word == LATEST {
            found.level = all.iter().map(|it| it.1).max();
            found.counts = true;
        }
        Some(found)
    }

    fn respond(&self, method: &Method, path: &str, query: &str) -> (StatusCode, String) {
        let json = |text: Result<String, serde_json::Error>| match text {
            Ok(text) => (StatusCode::OK, text),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        };
        let id = path.strip_prefix("/snapshots/");
        let is_id = |it: &str| {
            (1..=ID_MAX).contains(&it.len())
                && it
                    .bytes()
                    .all(|it| it.is_ascii_alphanumeric() || it == b'-')
        };
        match (method, path, id) {
            (&Method::GET, "/report", _) => json(serde_json::to_string(&self.report(query))),
            (&Method::GET, _, Some(name)) => {
                if let Some(found) = self.found(name) {
                    json(serde_json::to_string(&found))
                } else {
                    let failed = self.posted().report.failed.clone();
                    let why = failed.map_or(String::new(), |it| format!(": {}", it.why));
                    let text = format!("it could not list the snapshots{why}\n");
                    (StatusCode::SERVICE_UNAVAILABLE, text)
                }
            }
            (&Method::POST, _, Some(id)) if is_id(id) => {
                if self.ask(id) {
                    (StatusCode::ACCEPTED, String::new())
                } else {
                    let text = format!("{REQUESTS_MAX} requests wait already\n");
                    (StatusCode::TOO_MANY_REQUESTS, text)
                }
            }
            _ => (
                StatusCode::NOT_FOUND,
                "this server has /report and /snapshots\n".to_owned(),
            ),
        }
    }
}

/// From the time since boot to the wall clock, where the operator's clock, which it trusts, shows the same as this
/// node's: nodes have times since boot of their own.
fn offset(told: i64) -> Option<i64> {
    let now = clock::now().0;
    let since_boot = clock::since_boot().as_secs();
    (now.abs_diff(told) <= SAME_SECONDS).then(|| now.saturating_sub_unsigned(since_boot))
}

/// Begins to answer on all addresses of this Pod, and says at which port. `store`: where the snapshots lie.
pub(super) async fn serve(
    port: u16,
    files: ClientFiles,
    board: Arc<Board>,
    store: Option<LocalStore>,
) -> io::Result<u16> {
    // A node without IPv6 has only the other family.
    let listener = match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Ok(listener) => listener,
        Err(_) => TcpListener::bind(("0.0.0.0", port)).await?,
    };
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        let mut open = http::Connections::default();
        loop {
            let (stream, _) = http::accept(|| listener.accept()).await;
            let served = answer(stream, files.clone(), board.clone(), store.clone());
            open.admit(tokio::spawn(served).abort_handle());
        }
    });
    Ok(port)
}

/// One connection.
async fn answer(
    stream: TcpStream,
    files: ClientFiles,
    board: Arc<Board>,
    store: Option<LocalStore>,
) {
    let config = match files.to_serve() {
        Ok(config) => config,
        Err(error) => {
            tracing::warn!("{}", chain(&error));
            return;
        }
    };
    let accepted = TlsAcceptor::from(Arc::new(config)).accept(stream);
    let Ok(Ok(stream)) = timeout(HANDSHAKE, accepted).await else {
        return;
    };
    let shown = stream.get_ref().1.peer_certificates();
    let operator = is_operator(shown);
    let may = operator || is_leaf_of(shown, &files.cert);
    let service = service_fn(move |request: Request<Incoming>| {
        let (board, store) = (board.clone(), store.clone());
        async move {
            let (method, uri) = (request.method(), request.uri());
            let (path, query) = (uri.path(), uri.query().unwrap_or_default());
            let fetches = may && method == Method::GET;
            let wanted = files::asked(path, query).filter(|_| fetches);
            Ok::<_, Infallible>(match wanted {
                Some(wanted) => {
                    let meant = board.meant(&wanted.name);
                    files::respond((wanted, meant), store).await
                }
                None if operator => {
                    let (status, text) = board.respond(method, path, query);
                    files::text(status, text)
                }
                None => files::text(StatusCode::FORBIDDEN, REFUSED.to_owned()),
            })
        }
    });
    let _ = http::builder()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::io::AsyncReadExt as _;

    use super::*;
    use crate::backup::served::{self, Served};
    use crate::http::Way;
    use crate::tls::{Certificates, Leaves, Validity};

    fn ended(id: &str) -> Ended {
        Ended {
            id: id.to_owned(),
            ..Ended::default()
        }
    }

    #[test]
    fn a_request_is_one_however_often_it_is_made_and_there_are_not_too_many() {
        let board = Board::default();
        let post = |id: &str| {
            board
                .respond(&Method::POST, &format!("/snapshots/{id}"), "")
                .0
        };
        assert_eq!(
            (post("a"), post("a")),
            (StatusCode::ACCEPTED, StatusCode::ACCEPTED)
        );
        assert_eq!(board.next().as_deref(), Some("a"));
        board.end(ended("a"));
        assert_eq!(post("a"), StatusCode::ACCEPTED);
        assert_eq!(board.next(), None, "it has ended");
        for number in 0..REQUESTS_MAX {
            assert_eq!(post(&format!("b{number}")), StatusCode::ACCEPTED);
        }
        assert_eq!(post("more"), StatusCode::TOO_MANY_REQUESTS);
        for bad in ["", "a/b", "a b", &"a".repeat(ID_MAX + 1)] {
            assert_eq!(post(bad), StatusCode::NOT_FOUND, "{bad}");
        }
        let report = board.report("");
        assert_eq!((report.asked.len(), report.ended.len()), (REQUESTS_MAX, 1));
        for number in 0..2 * REQUESTS_MAX {
            board.end(ended(&format!("b{number}")));
        }
        let report = board.report("");
        assert_eq!((report.asked.len(), report.ended.len()), (0, REQUESTS_MAX));
    }

    /// A way to this port that ends each connection after so many bytes of answers.
    async fn thin_way(port: u16, most: usize) -> SocketAddr {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            loop {
                let (mut near, _) = listener.accept().await.unwrap();
                let mut far = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                tokio::spawn(async move {
                    let (mut asks, mut near) = near.split();
                    let (answers, mut far) = far.split();
                    let mut answers = answers.take(most as u64);
                    tokio::select! {
                        _ = tokio::io::copy(&mut asks, &mut far) => {}
                        _ = tokio::io::copy(&mut answers, &mut near) => {}
                    }
                });
            }
        });
        address
    }

    #[tokio::test]
    async fn a_snapshot_is_fetched_over_a_link_that_is_cut_by_the_member_and_by_no_client() {
        let room = std::env::temp_dir().join(format!("fetched-over-a-link-{}", std::process::id()));
        let own = Certificates::at(room.join("tls"));
        let validity = Validity::trusted(clock::now(), 3600);
        own.ensure_authorities("shop", clock::now()).unwrap();
        let names = ["shop-client.default.svc".to_owned()];
        let leaves = Leaves {
            names: &names,
            peer_names: &names,
            cluster: "shop",
            validity,
        };
        own.mint(&leaves).unwrap();
        let till = own.issue("till", validity).unwrap();
        let store = LocalStore::at(&room, "shop");
        store.prepare(false).unwrap();
        let content: Vec<u8> = (0..300_000_u32).map(|it| (it % 251) as u8).collect();
        let mut manifest = crate::backup::manifest::tests::manifest();
        manifest.file.size = content.len() as u64;
        crate::state::write_file(&store.part(), &content).unwrap();
        let name: SnapshotName = manifest.name.parse().unwrap();
        store.commit(&store.part(), &name, &manifest).unwrap();

        let board = Arc::<Board>::default();
        let mut report = Report::default();
        report.restorable = Some(manifest.name.clone());
        board.tell(report, Some(vec![(name, 3, true)]));
        let files = served::files(&own.current());
        let port = serve(0, files.clone(), board, Some(store)).await.unwrap();
        let served = Served {
            cluster: "shop".to_owned(),
            address: Some(thin_way(port, 140_000).await),
            server_name: names[0].clone(),
            why: String::new(),
        };
        let told = served.manifest(&own.current(), "latest").await.unwrap();
        let told = told.unwrap();
        assert_eq!(told.name, manifest.name);
        let path = room.join("fetched");
        let mut file = std::fs::File::create(&path).unwrap();
        let (tls, mut untold) = (own.current(), |_| ());
        let fetched = served.fetch(&tls, &told, &mut file, &mut untold);
        fetched.await.unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), content);
        // No more than the manifest says, whatever is sent.
        let mut less = told.clone();
        less.file.size = 100;
        let mut file = std::fs::File::create(&path).unwrap();
        let fetched = served.fetch(&tls, &less, &mut file, &mut untold);
        assert!(fetched.await.unwrap_err().contains("longer"));

        let operator = own.operator_files();
        for (who, path, expected) in [
            (&operator, "/report", StatusCode::OK),
            (&operator, "/snapshots/latest/manifest", StatusCode::OK),
            (&files, "/snapshots/latest/manifest", StatusCode::OK),
            (&files, "/snapshots/none/manifest", StatusCode::NOT_FOUND),
            (&files, "/report", StatusCode::FORBIDDEN),
            (&files, "/snapshots/latest", StatusCode::FORBIDDEN),
            (&till, "/snapshots/latest/manifest", StatusCode::FORBIDDEN),
            (&till, "/snapshots/latest/file", StatusCode::FORBIDDEN),
            (&till, "/report", StatusCode::FORBIDDEN),
        ] {
            let way = Way {
                address: ([127, 0, 0, 1], port).into(),
                server_name: &names[0],
                files: who,
            };
            let answer = way.ask(Method::GET, path, 1 << 20).await.unwrap();
            assert_eq!(answer.0, expected, "{path} {}", who.cert.display());
        }
        let _ = std::fs::remove_dir_all(room);
    }

    #[test]
    fn before_somebody_has_looked_nothing_is_said_to_be_missing() {
        let board = Board::default();
        let get = |name: &str| board.respond(&Method::GET, &format!("/snapshots/{name}"), "");
        assert_eq!(get("latest").0, StatusCode::SERVICE_UNAVAILABLE);
        let name = "shop-0-20261121T131500Z-r6-9f3ab2c1";
        let later = "shop-0-20261122T131500Z-r7-9f3ab2c1";
        let all = [(name, 3), (later, 1)].map(|it| (it.0.parse().unwrap(), it.1, false));
        board.tell(Report::default(), Some(all.to_vec()));
        let found = |word: &str| serde_json::from_str::<Found>(&get(word).1).unwrap();
        for word in [name, "r6", "20261121", "shop-0-20261121"] {
            let found = found(word);
            let expected = (Some(3), false, Some(name.to_owned()));
            assert_eq!((found.level, found.counts, found.name), expected, "{word}");
        }
        assert_eq!(found("r8"), Found::default());
        assert_eq!(found("passwd"), Found::default());
        let several = found("shop-0");
        assert!(
            several.level.is_none()
                && several
                    .several
                    .is_some_and(|it| it.contains("fits 2 snapshots"))
        );
        let latest = found("latest");
        assert_eq!((latest.level, latest.name), (Some(3), None));
        board.tell(Report::default(), None);
        assert_eq!(get(name).0, StatusCode::SERVICE_UNAVAILABLE);
    }

    #[test]
    fn the_clock_is_trusted_as_long_as_the_operator_says_so() {
        let board = Board::default();
        let get = |query: &str| board.respond(&Method::GET, "/report", query);
        let now = clock::now().0;
        get(&format!("now={now}&rests=true"));
        assert!(board.offset().is_some() && board.rests());
        get("rests=false&member=10.0.0.7");
        assert!(board.offset().is_none() && !board.rests());
        get("rests=false&member=");
        assert_eq!(
            board.address(),
            Some([10, 0, 0, 7].into()),
            "the last one known"
        );
        get(&format!("now={}", now + 60));
        assert_eq!(
            board.offset(),
            None,
            "this node's clock shows something else"
        );
        assert_eq!(
            board.respond(&Method::GET, "/other", "").0,
            StatusCode::NOT_FOUND
        );
    }
}
