//! A member that joins starts after those that join with it and come before it in the document.
//!
//! Before it serves its peers, etcd asks every listed member for its version and for a downgrade, and waits for each as long as
//! for a request to the cluster: 15 s with the profile `edge`. Two that start at the same moment wait for each other, both
//! times (measured with 3.6: 31 s instead of 1).

use std::path::Path;
use std::time::Duration;

use hyper::{Method, StatusCode};
use tokio::net::lookup_host;
use tokio::time::{sleep, timeout};

use crate::http::Way;
use crate::tls::ClientFiles;

/// No longer than two that start together would wait for each other: one of them may not come at all.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// A member that serves its peers answers at once, also on a slow board.
const ANSWERS: Duration = Duration::from_secs(2);
const AGAIN: Duration = Duration::from_millis(100);
/// etcd's answer has a tenth.
const ANSWER_MAX: usize = 4096;

/// The member's certificate for its peers, as its Secret is mounted.
fn files(tls: &Path) -> ClientFiles {
    ClientFiles {
        server_name: None,
        ca: tls.join("peer-ca.crt"),
        cert: tls.join("peer.crt"),
        key: tls.join("peer.key"),
    }
}

/// Waits until each of these serves at its peer URL, all together for so long at most. `tls`: where the certificates are.
pub fn wait(before: &[String], tls: &Path, patience: Duration) {
    if before.is_empty() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build();
    let Ok(runtime) = runtime else {
        return; // it only starts earlier than it should
    };
    let all = async {
        for peer_url in before {
            while !serves(peer_url, tls).await {
                sleep(AGAIN).await;
            }
        }
    };
    let waited = runtime.block_on(async { timeout(patience, all).await });
    if waited.is_err() {
        let seconds = patience.as_secs();
        tracing::warn!("one that joins before this member has not served within {seconds} s");
    }
    runtime.shutdown_background(); // a name may still be looked up
}

async fn serves(peer_url: &str, tls: &Path) -> bool {
    let Some(place) = peer_url.strip_prefix("https://") else {
        return true; // no URL of ours
    };
    let Some((host, _)) = place.rsplit_once(':') else {
        return true;
    };
    let asked = async {
        let address = lookup_host(place).await.ok()?.next()?;
        let way = Way {
            address,
            server_name: host,
            files: &files(tls),
        };
        way.ask(Method::GET, "/version", ANSWER_MAX).await.ok()
    };
    let answer = timeout(ANSWERS, asked).await.ok().flatten();
    answer.is_some_and(|(status, _)| status == StatusCode::OK)
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

        wait(std::slice::from_ref(&url), &tls, Duration::from_millis(300)); // not for ever

        let serves = Arc::new(AtomicBool::new(false));
        let begun = serves.clone();
        let config = Arc::new(files(&tls).to_serve().unwrap());
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            begun.store(true, Ordering::SeqCst);
            answer(listener, &config);
        });
        wait(&[url], &tls, Duration::from_secs(60));
        assert!(serves.load(Ordering::SeqCst), "it was waited for");
        let _ = std::fs::remove_dir_all(&room);
    }
}
