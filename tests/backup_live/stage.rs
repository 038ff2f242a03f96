//! A host with etcd and a place for snapshots, a client that fills it, and etcd's own word on a file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions, Txn, TxnOp};
use etcd_operator::backup::local::{Entry, LocalStore};
use etcd_operator::backup::manifest::Manifest;
use serde_json::Value;

use crate::lab::{Lab, etcd_dir, text};

/// Operations in a transaction; etcd allows 128.
const OPERATIONS: u32 = 100;
/// Transactions on their way at once.
const AT_ONCE: u32 = 16;

/// A host whose document names a place for snapshots.
pub struct Stage {
    /// The host.
    pub lab: Lab,
    /// The directory that the document names.
    pub place: PathBuf,
}

impl Stage {
    /// A host with a running etcd of this line, and an empty place for snapshots.
    pub fn new(line: &str) -> Self {
        Stage::with(line, "", "")
    }

    /// The same with further fields of the destination (in YAML's flow style) and lines of `spec`.
    pub fn with(line: &str, keep: &str, lines: &str) -> Self {
        let mut stage = Stage::cold(line, keep, lines);
        stage.lab.start_agent();
        stage.lab.wait_available();
        stage
    }

    /// A host with no agent and no etcd yet.
    pub fn cold(line: &str, keep: &str, lines: &str) -> Self {
        let mut lab = Lab::new(line);
        let place = lab.root.join("snapshots");
        fs::create_dir(&place).unwrap();
        for line in lines.lines() {
            lab.add(line);
        }
        lab.add(&format!(
            "backup: {{destinations: [{{local: {{path: {}{keep}}}}}]}}",
            place.display()
        ));
        Stage { lab, place }
    }

    /// Where this cluster's snapshots lie.
    pub fn dir(&self) -> PathBuf {
        self.place.join(&self.lab.name)
    }

    /// The library's view of that place.
    pub fn store(&self) -> LocalStore {
        LocalStore::at(&self.place, &self.lab.name)
    }

    /// What lies there, newest first.
    pub fn entries(&self) -> Vec<Entry> {
        self.store().list().unwrap()
    }

    /// The names of all files there, in order.
    pub fn files(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.dir())
            .into_iter()
            .flatten()
            .flatten()
            .map(|it| it.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// Takes a snapshot, which succeeds; the command's answer.
    pub fn create(&self) -> Value {
        let output = self.lab.operator(&["backup", "create", "-o", "json"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Takes a snapshot of something new; its file and its manifest.
    pub fn saved(&self) -> (PathBuf, Manifest) {
        let answer = self.create();
        assert_eq!(answer["result"], "saved", "{answer}");
        let name = answer["snapshot"]["name"].as_str().unwrap();
        self.stored(name)
    }

    /// A snapshot's file and its manifest.
    pub fn stored(&self, name: &str) -> (PathBuf, Manifest) {
        let manifest = fs::read(self.dir().join(format!("{name}.json"))).unwrap();
        let manifest = Manifest::decode(&manifest, name).unwrap();
        (self.dir().join(format!("{name}.db.zst")), manifest)
    }

    /// Runs something with a client of etcd.
    pub fn client<T>(&self, work: impl AsyncFnOnce(Client) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let file = |name: &str| fs::read(self.lab.lib("tls/clients/admin").join(name)).unwrap();
            let tls = TlsOptions::new()
                .ca_certificate(Certificate::from_pem(file("ca.crt")))
                .identity(Identity::from_pem(file("client.crt"), file("client.key")));
            let url = format!("https://127.0.0.1:{}", self.lab.ports[0]);
            let options = ConnectOptions::new().with_tls(tls);
            work(Client::connect([url], Some(options)).await.unwrap()).await
        })
    }

    /// Writes keys `NAME/0` and so on with values of `size` bytes, half of them random.
    pub fn fill(&self, name: &str, count: u32, size: usize) {
        let each = if size > 10_000 { 1 } else { OPERATIONS };
        self.client(async |client| {
            let writers = (0..AT_ONCE).map(|writer| {
                let mut client = client.kv_client();
                let name = name.to_owned();
                tokio::spawn(async move {
                    let firsts = (writer * each..count).step_by((AT_ONCE * each) as usize);
                    for first in firsts {
                        let operations = (first..(first + each).min(count)).map(|it| {
                            TxnOp::put(format!("{name}/{it:06}"), half_random(it, size), None)
                        });
                        let txn = Txn::new().and_then(operations.collect::<Vec<_>>());
                        client.txn(txn).await.unwrap();
                    }
                })
            });
            for writer in writers.collect::<Vec<_>>() {
                writer.await.unwrap();
            }
        });
    }

    /// Drops everything but the newest of each key, and writes one more, which is a new revision: a
    /// compaction is none, and so no reason for a new snapshot.
    pub fn compact(&self) {
        let answer = self.etcdctl(&["get", "no-such-key", "-w", "json"]);
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let revision = answer["header"]["revision"].to_string();
        self.etcdctl(&["compaction", &revision, "--physical"]);
        self.etcdctl(&["put", "compacted", &revision]);
    }

    /// Runs etcdctl, which succeeds.
    pub fn etcdctl(&self, arguments: &[&str]) -> String {
        let output = self.lab.etcdctl(arguments);
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            text(&output.stderr)
        );
        text(&output.stdout)
    }

    /// What `verify-snapshot` says of a file.
    pub fn examined(&self, file: &Path) -> Value {
        let path = file.to_str().unwrap();
        let output = self.lab.operator(&["verify-snapshot", path, "-o", "json"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The agent and etcd end; the data stays.
    pub fn stop(&mut self) {
        self.lab.stop_agent();
        self.lab.kill_etcd();
    }
}

/// Bytes of which every other one is random, the same for the same seed.
pub fn half_random(seed: u32, size: usize) -> Vec<u8> {
    let mut state = u64::from(seed) << 20 | 1;
    (0..size)
        .map(|it| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            if it % 2 == 0 {
                state.to_le_bytes()[3]
            } else {
                b'-'
            }
        })
        .collect()
}

/// Unpacks a stored snapshot, as `zstd -d` does.
pub fn unpack(packed: &Path, to: &Path) {
    let from = fs::File::open(packed).unwrap();
    let to = fs::File::create(to).unwrap();
    zstd::stream::copy_decode(from, to).unwrap();
}

/// Runs the etcdutl of a line.
pub fn etcdutl(line: &str, arguments: &[&str]) -> Output {
    let program = etcd_dir(line).join("etcdutl");
    Command::new(program).args(arguments).output().unwrap()
}

/// What etcd's own tool says of a file: hash, revision, number of keys, size.
pub fn status(line: &str, file: &Path) -> Value {
    let path = file.to_str().unwrap();
    let output = etcdutl(line, &["snapshot", "status", "-w", "json", path]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}
