//! The bench's own client: the same for both sides of every comparison.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions};
use tokio::time::timeout;

/// Between two looks for a file or a port.
const LOOK: Duration = Duration::from_millis(1);
/// No start takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where etcd serves, and the files of a client.
#[derive(Clone, Debug)]
pub struct Target {
    /// Of clients, on loopback.
    pub port: u16,
    /// The folder with `ca.crt`, `client.crt`, `client.key`.
    pub files: PathBuf,
}

/// A runtime for one thread.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

impl Target {
    /// Connects with mutual TLS.
    pub async fn connect(&self) -> Client {
        let read = |name: &str| fs::read(self.files.join(name)).unwrap();
        let tls = TlsOptions::new()
            .ca_certificate(Certificate::from_pem(read("ca.crt")))
            .identity(Identity::from_pem(read("client.crt"), read("client.key")));
        let options = ConnectOptions::new().with_tls(tls);
        let url = format!("https://127.0.0.1:{}", self.port);
        Client::connect([url], Some(options)).await.unwrap()
    }

    /// Time since `begin` until a write is acknowledged. Certificates and port may not be there yet.
    pub fn first_write(&self, begin: Instant) -> Duration {
        self.milestones(begin)[2]
    }

    /// Times since `begin`: the client's key is there, the port is open, a write is acknowledged.
    pub fn milestones(&self, begin: Instant) -> [Duration; 3] {
        let wait = |what: &str, found: &dyn Fn() -> bool| {
            while !found() {
                assert!(begin.elapsed() < PATIENCE, "waited in vain for {what}");
                thread::sleep(LOOK);
            }
            begin.elapsed()
        };
        let key = wait("the client's key", &|| {
            Path::exists(&self.files.join("client.key"))
        });
        let port = wait("the port", &|| {
            TcpStream::connect(("127.0.0.1", self.port)).is_ok()
        });
        runtime().block_on(async {
            let mut client = self.connect().await;
            while !matches!(
                timeout(Duration::from_secs(5), client.put("bench/first", "x", None)).await,
                Ok(Ok(_))
            ) {
                assert!(begin.elapsed() < PATIENCE, "no write is acknowledged");
                tokio::time::sleep(LOOK).await;
            }
        });
        [key, port, begin.elapsed()]
    }

    /// Writes `count` keys of `size` bytes, 50 at a time.
    pub fn load(&self, count: usize, size: usize) {
        const AT_A_TIME: usize = 50;
        runtime().block_on(async {
            let client = self.connect().await;
            let writers = (0..AT_A_TIME).map(|first| {
                let mut client = client.kv_client();
                tokio::spawn(async move {
                    for number in (first..count).step_by(AT_A_TIME) {
                        let key = format!("bench/load/{number:07}");
                        client.put(key, value(number, size), None).await.unwrap();
                    }
                })
            });
            for writer in writers.collect::<Vec<_>>() {
                writer.await.unwrap();
            }
        });
    }
}

/// Half noise, half zeros: compressible like mixed data.
fn value(seed: usize, size: usize) -> Vec<u8> {
    let mut state = seed as u64 | 1 << 40;
    (0..size)
        .map(|it| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            if it < size / 2 {
                state.to_le_bytes()[0]
            } else {
                0
            }
        })
        .collect()
}

/// A light, steady load, as leases make it: one put a second over ten keys.
pub struct Writer {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Begins to write values of 512 B.
    pub fn start(target: &Target) -> Self {
        let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let (target, stopped, counter): (_, _, Arc<AtomicU64>) =
            (target.clone(), stop.clone(), Arc::clone(&count));
        let thread = thread::spawn(move || {
            runtime().block_on(async {
                let mut client = target.connect().await;
                let mut tick = tokio::time::interval(Duration::from_secs(1));
                for number in 0.. {
                    tick.tick().await;
                    if stopped.load(Ordering::Relaxed) {
                        return;
                    }
                    let key = format!("bench/lease/{}", number % 10);
                    client.put(key, value(number, 512), None).await.unwrap();
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            });
        });
        Writer {
            stop,
            count,
            thread: Some(thread),
        }
    }

    /// Writes acknowledged so far.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
