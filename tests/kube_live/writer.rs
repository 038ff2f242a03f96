//! A client that writes all the while, on a node's network: it needs no API server.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster::{Output, output};
use crate::lab::root;
use crate::operated::Operated;

/// The longest time between two acknowledged writes, while something happens.
pub fn longest_gap(it: &Operated, cluster: &str, happens: impl FnOnce()) -> Duration {
    Writer::new(it, 1, cluster).longest_gap(happens)
}

/// It has the admin's certificate and the Pod's address.
pub struct Writer {
    network: String,
    hosts: PathBuf,
    etcdctl: String,
}

impl Writer {
    pub fn new(it: &Operated, node: u32, cluster: &str) -> Self {
        Writer::try_new(it, node, cluster).unwrap()
    }

    /// None where the member's Pod has no address.
    pub fn try_new(it: &Operated, node: u32, cluster: &str) -> Option<Self> {
        let secret = format!("{cluster}-client-admin");
        let dir = it.dir.join(format!("client-{cluster}"));
        std::fs::create_dir_all(&dir).unwrap();
        for key in ["ca.crt", "tls.crt", "tls.key"] {
            std::fs::write(dir.join(key), it.secret(&secret, key)).unwrap();
        }
        let pod = it.try_json(&["get", "pod", &format!("{cluster}-0")])?;
        let address = pod["status"]["podIP"].as_str()?;
        // The server's certificate names no address of a Pod: Pods come and go.
        let hosts = it.dir.join(format!("hosts-{cluster}"));
        std::fs::write(&hosts, format!("{address} {cluster}-client\n")).unwrap();
        let file = |name: &str| dir.join(name).to_str().unwrap().to_owned();
        let etcdctl = format!(
            "{} --dial-timeout=1s --command-timeout=2s --endpoints=https://{cluster}-client:2379 \
             --cacert={} --cert={} --key={}",
            root().join("target/tools/etcd/3.6/etcdctl").display(),
            file("ca.crt"),
            file("tls.crt"),
            file("tls.key"),
        );
        Some(Writer {
            network: it.network_of(node),
            hosts,
            etcdctl,
        })
    }

    fn command(&self, script: &str) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(&self.network)
            .args(["unshare", "-m", "sh", "-c"]);
        let hosts = self.hosts.display();
        command.arg(format!("mount --bind {hosts} /etc/hosts && {script}"));
        command.arg("sh");
        command
    }

    fn run(&self, script: &str, words: &[&str]) -> Output {
        output(self.command(script).args(words))
    }

    /// Watches keys, wherever the member is: the file of hosts is written anew for each of its Pods.
    pub fn watch(&self, prefix: &str) -> Watcher {
        let path = self.hosts.with_extension("watched");
        let file = std::fs::File::create(&path).unwrap();
        let mut command = self.command(&format!("exec {} \"$@\"", self.etcdctl));
        let command = command.args(["watch", "--prefix", prefix]).stdout(file);
        let child = command.stdin(Stdio::null()).spawn().unwrap();
        Watcher { child, path }
    }

    /// The longest time between two acknowledged writes, while something happens.
    pub fn longest_gap(&self, happens: impl FnOnce()) -> Duration {
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let gaps = scope.spawn(|| {
                let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
                while !ends.load(Ordering::Relaxed) {
                    if self.put() {
                        longest = longest.max(last.elapsed());
                        last = Instant::now();
                    }
                    std::thread::sleep(Duration::from_millis(50));
                }
                longest.max(last.elapsed())
            });
            // The writer ends also where this fails.
            let happened = std::panic::catch_unwind(std::panic::AssertUnwindSafe(happens));
            ends.store(true, Ordering::Relaxed);
            let longest = gaps.join().unwrap();
            happened.unwrap_or_else(|why| std::panic::resume_unwind(why));
            longest
        })
    }

    pub fn ask(&self, words: &[&str]) -> Option<String> {
        let asked = self.run(&format!("exec {} \"$@\"", self.etcdctl), words);
        asked.ok.then_some(asked.stdout)
    }

    pub fn put(&self) -> bool {
        self.ask(&["put", "written", "all the while"]).is_some()
    }

    /// So many MB that nothing makes smaller.
    pub fn fill(&self, megabytes: u32) {
        assert!(self.try_fill(megabytes));
    }

    /// Whether etcd took all of them.
    pub fn try_fill(&self, megabytes: u32) -> bool {
        let etcdctl = &self.etcdctl;
        let script = format!(
            "for i in $(seq {megabytes}); do head -c 1000000 /dev/urandom | {etcdctl} put filler$i || exit 1; done"
        );
        self.run(&script, &[]).ok
    }
}

/// What was seen by one watch of etcdctl.
pub struct Watcher {
    child: Child,
    path: PathBuf,
}

impl Watcher {
    /// The keys of a prefix so far, in their order.
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        let text = std::fs::read_to_string(&self.path).unwrap();
        let keys = text.lines().filter(|it| it.starts_with(prefix));
        keys.map(ToOwned::to_owned).collect()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How often the member's container was started again in its Pod.
pub fn restarts(it: &Operated, cluster: &str) -> Value {
    let pod = it.json(&["get", "pod", &format!("{cluster}-0")]);
    pod["status"]["containerStatuses"][0]["restartCount"].clone()
}
