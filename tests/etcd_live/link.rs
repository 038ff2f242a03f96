//! What lies between the operator and a bucket: a page of a portal, a thin link, a clock that is not
//! the server's, a CA of one's own.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::editor::{Editor, Verdict, instead};
use crate::lab::{Lab, condition, skip, text};
use crate::restore::json;
use crate::s3::{Server, lab, queued, random_text};
use crate::wire::{Wire, private_ca};

/// Something that passes bytes on, in a thread of its own, for as long as the test.
struct Relay {
    port: u16,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    fn run<T>(make: impl AsyncFnOnce() -> (u16, T) + Send + 'static) -> Relay {
        let (told, port) = mpsc::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let (port, _relay) = make().await;
                told.send(port).unwrap();
                let _ = stopped.await;
            });
        });
        Relay {
            port: port.recv().unwrap(),
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// The document's bucket is behind it.
    fn between(&self, lab: &mut Lab, server: &Server, scheme: &str) {
        let from = format!("http://127.0.0.1:{}", server.port);
        assert!(lab.spec.contains(&from));
        let to = format!("{scheme}://127.0.0.1:{}", self.port);
        lab.spec = lab.spec.replace(&from, &to);
        lab.write_document();
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[test]
fn a_page_of_a_portal_is_no_bucket_and_copies_go_on_behind_it() {
    let (mut lab, server) = lab(&Server::new, "");
    let portal = Arc::new(AtomicBool::new(true));
    let (port, open) = (server.port, Arc::clone(&portal));
    let relay = Relay::run(async move || {
        let page = "<html><body>Please log in</body></html>";
        let editor = Editor::before(port, move |_| {
            if open.load(Ordering::Relaxed) {
                instead(200, "text/html", page)
            } else {
                Verdict::Pass
            }
        });
        let editor = editor.await;
        (editor.port, editor)
    });
    relay.between(&mut lab, &server, "http");
    lab.start_agent();
    lab.wait_available();
    assert!(lab.put("a", "1"));
    json(&lab, &["backup", "create"]);
    let status = lab.wait("the reason", |it| {
        condition(it, "BackupHealthy").1 == "CopyFailed"
    });
    let words = status["conditions"].to_string();
    assert!(words.contains("a web page, status 200"), "{words}");
    assert_eq!(status["backups"]["queued"], 1);
    assert_eq!(condition(&status, "Available").0, "True");
    assert!(server.objects().is_empty());
    // The local ones go on, and nothing there is taken for a snapshot.
    assert!(lab.put("a", "2"));
    assert_eq!(json(&lab, &["backup", "create"])["result"], "saved");
    let listed = lab.operator(&["backup", "list", "-o", "json"]);
    let rows: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(rows.as_array().unwrap().len(), 2, "{rows:#}");
    portal.store(false, Ordering::Relaxed);
    assert_eq!(json(&lab, &["backup", "copy"])["queued"], 0);
    assert_eq!(server.objects().len(), 4);
}

#[test]
fn over_a_thin_link_a_copy_takes_its_time_and_keeps_nobody_waiting() {
    let (mut lab, server) = lab(&Server::new, "");
    let port = server.port;
    let relay = Relay::run(async move || {
        let wire = Wire::to(port);
        wire.slow_down(200_000);
        (wire.port, wire)
    });
    relay.between(&mut lab, &server, "http");
    lab.start_agent();
    lab.wait_available();
    for number in 0..12 {
        let value = random_text(number, 100_000);
        assert!(lab.put(&format!("large-{number}"), &value));
    }
    let first = json(&lab, &["backup", "create"]);
    let size = first["snapshot"]["size"].as_u64().unwrap();
    assert!(size > 700_000, "{size}");
    let begin = Instant::now();
    // While it is on its way, another one is taken, and etcd serves.
    assert!(lab.put("meanwhile", "1"));
    assert_eq!(json(&lab, &["backup", "create"])["result"], "saved");
    let status = lab.status();
    assert_eq!(condition(&status, "Available").0, "True");
    assert!(status["backups"]["queued"].as_u64().unwrap() > 0);
    lab.wait_for(Duration::from_secs(90), "the copies", |it| {
        it["backups"]["queued"] == 0
    });
    let took = begin.elapsed().as_secs_f64();
    let least = size as f64 / 200_000.0 * 0.7;
    println!("{size} B and another in {took:.1} s");
    assert!(took > least, "{took} s, the link carries it in {least} s");
    assert_eq!(server.objects().len(), 4);
}

#[test]
fn with_a_server_twenty_minutes_ahead_copies_arrive_and_nothing_is_removed() {
    let libraries = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"];
    let library = libraries
        .iter()
        .map(|it| Path::new(it).join("faketime/libfaketime.so.1"))
        .find(|it| it.exists());
    let Some(library) = library else {
        return skip("a faked clock needs the package libfaketime");
    };
    let (mut lab, mut server) = lab(&Server::new, ", keep: 1");
    server.stop();
    let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    server.environment = vec![
        set("LD_PRELOAD", library.to_str().unwrap()),
        set("FAKETIME", "+20m"),
        set("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
    ];
    server.start();
    lab.spec = lab
        .spec
        .replace("  backup:\n", "  backup:\n    interval: 1s\n");
    lab.write_document();
    lab.start_agent();
    lab.wait_available();
    let begin = Instant::now();
    while server.objects().len() < 6 {
        assert!(begin.elapsed() < Duration::from_secs(60), "{}", lab.log());
        assert!(lab.put("a", &begin.elapsed().as_nanos().to_string()));
        lab.status();
        std::thread::sleep(Duration::from_millis(300));
    }
    assert!(
        !lab.log().contains("removed from the bucket"),
        "{}",
        lab.log()
    );
    let prune = || lab.operator(&["backup", "prune", "--at", "s3://backup/shops"]);
    let mut refused = prune();
    // While the agent takes or copies one, a person waits.
    while text(&refused.stderr).contains("another process takes or checks") {
        assert!(begin.elapsed() < Duration::from_secs(90), "{}", lab.log());
        refused = prune();
    }
    let words = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(3), "{words}");
    assert!(words.contains("clock"), "{words}");
}

#[test]
fn a_bucket_behind_a_ca_of_ones_own_is_trusted_once_the_document_names_it() {
    let (mut lab, server) = lab(&Server::new, "");
    let (ca, acceptor) = private_ca("edge", &["127.0.0.1"]);
    let port = server.port;
    let relay = Relay::run(async move || {
        let wire = Wire::with_tls(port, acceptor);
        (wire.port, wire)
    });
    relay.between(&mut lab, &server, "https");
    lab.start_agent();
    lab.wait_available();
    assert!(lab.put("a", "1"));
    json(&lab, &["backup", "create"]);
    let status = lab.wait("the reason", |it| {
        condition(it, "BackupHealthy").1 == "CopyFailed"
    });
    let words = status["conditions"].to_string();
    assert!(words.contains("caFile"), "{words}");
    assert!(server.objects().is_empty());
    let file = lab.root.join("ca.crt");
    fs::write(&file, ca).unwrap();
    let named = format!("pathStyle: true, caFile: {}", file.display());
    lab.spec = lab.spec.replace("pathStyle: true", &named);
    lab.write_document();
    assert_eq!(json(&lab, &["backup", "copy"])["queued"], 0);
    assert_eq!(server.objects().len(), 2);
    lab.signal_agent("HUP");
    queued(&lab, 0);
    let rows = json(&lab, &["backup", "verify", "--at", "s3://backup/shops"]);
    assert_eq!(rows[0]["level"], 2, "{rows}");
}
