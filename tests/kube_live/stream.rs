//! A client of several members, on a node's network: one key after the other, to whichever member answers, while it
//! watches them.

use std::io::{Read, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use etcd_client::WatchOptions;
use etcd_operator::etcd::client;
use etcd_operator::tls::ClientFiles;

use crate::lab::SOON;
use crate::operated::Operated;

/// After so long a request goes to the next member.
const PATIENCE: Duration = Duration::from_secs(2);
/// The members' addresses, the directory of the certificate and the server's name.
const ASKED: &str = "STREAM_OF_WRITES";

/// A process of its own, for it lives on the node's network.
pub struct Stream(Child);

impl Stream {
    /// To these members of a cluster.
    pub fn start(it: &Operated, cluster: &str, members: &[&str]) -> Stream {
        let secret = format!("{cluster}-client-admin");
        let dir = it.dir.join(format!("stream-{cluster}"));
        std::fs::create_dir_all(&dir).unwrap();
        for key in ["ca.crt", "tls.crt", "tls.key"] {
            std::fs::write(dir.join(key), it.secret(&secret, key)).unwrap();
        }
        let urls = members.iter().map(|name| {
            let service = it.json(&["get", "service", name]);
            let address = service["spec"]["clusterIP"].as_str().unwrap();
            format!("https://{address}:2379")
        });
        let urls: Vec<String> = urls.collect();
        let asked = format!(
            "{} {} {cluster}-client.default.svc",
            urls.join(","),
            dir.display()
        );
        let mut command = Command::new("nsenter");
        command
            .arg(it.network_of(1))
            .arg(std::env::current_exe().unwrap())
            .args(["stream::writes_until_its_input_ends", "--exact"])
            .args(["--ignored", "--nocapture"])
            .env(ASKED, asked)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        Stream(command.spawn().unwrap())
    }

    /// How many writes were acknowledged, and the longest time between two.
    pub fn end(mut self) -> (u64, Duration) {
        drop(self.0.stdin.take());
        let mut said = String::new();
        let mut out = self.0.stdout.take().unwrap();
        out.read_to_string(&mut said).unwrap();
        assert!(self.0.wait().unwrap().success(), "{said}");
        let line = said.lines().find_map(|it| it.split_once("written: "));
        let mut words = line.unwrap().1.split_whitespace();
        let mut number = || words.next().unwrap().parse::<u64>().unwrap();
        (number(), Duration::from_millis(number()))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// How many keys are there; none while etcd does not answer.
pub fn written(it: &Operated, cluster: &str) -> Option<u64> {
    let how = ["--prefix", "--count-only", "--write-out=fields"];
    let counted = it.try_etcdctl(cluster, &[&["get", "w/"][..], &how].concat())?;
    let mut lines = counted.lines();
    let count = lines.find_map(|it| it.strip_prefix("\"Count\" : "))?;
    count.parse().ok()
}

/// Every acknowledged write is there.
#[track_caller]
pub fn assert_written(it: &Operated, cluster: &str, acknowledged: u64) {
    let count = it.eventually("the keys", SOON, || written(it, cluster));
    assert!(
        count >= acknowledged && acknowledged > 0,
        "{count} of {acknowledged}"
    );
}

#[test]
#[ignore = "a process of other tests, on a node's network"]
fn writes_until_its_input_ends() {
    let Ok(asked) = std::env::var(ASKED) else {
        return;
    };
    let mut words = asked.split(' ');
    let urls: Vec<&str> = words.next().unwrap().split(',').collect();
    let dir = std::path::PathBuf::from(words.next().unwrap());
    let files = ClientFiles {
        ca: dir.join("ca.crt"),
        cert: dir.join("tls.crt"),
        key: dir.join("tls.key"),
        server_name: words.next().map(str::to_owned),
    };
    let ends = Arc::new(AtomicBool::new(false));
    let told = ends.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        told.store(true, Ordering::Relaxed);
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let (count, longest) = runtime.unwrap().block_on(async {
        tokio::select! {
            written = stream(&urls, &files, &ends) => written,
            never = watch(&urls, &files) => match never {},
        }
    });
    let mut out = std::io::stdout();
    writeln!(out, "\nwritten: {count} {}", longest.as_millis()).unwrap();
}

/// Watches what is written, at one member until its etcd ends.
async fn watch(urls: &[&str], files: &ClientFiles) -> std::convert::Infallible {
    loop {
        for url in urls {
            if let Ok(Ok(mut client)) =
                tokio::time::timeout(PATIENCE, client::connect(url, files)).await
                && let Ok(mut seen) = client
                    .watch("w/", Some(WatchOptions::new().with_prefix()))
                    .await
            {
                while let Ok(Some(_)) = seen.message().await {}
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn stream(urls: &[&str], files: &ClientFiles, ends: &AtomicBool) -> (u64, Duration) {
    let (mut count, mut longest) = (0, Duration::ZERO);
    let mut last = None::<Instant>;
    for url in urls.iter().cycle() {
        if ends.load(Ordering::Relaxed) {
            break;
        }
        let connected = tokio::time::timeout(PATIENCE, client::connect(url, files)).await;
        let Ok(Ok(mut client)) = connected else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        while !ends.load(Ordering::Relaxed) {
            let put = client.put(format!("w/{count:08}"), "written", None);
            if !matches!(tokio::time::timeout(PATIENCE, put).await, Ok(Ok(_))) {
                break;
            }
            count += 1;
            longest = longest.max(last.map_or(Duration::ZERO, |it| it.elapsed()));
            last = Some(Instant::now());
            // The others on this machine have their turn, too.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    (count, longest)
}
