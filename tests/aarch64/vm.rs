//! The arm64 package on a whole arm64 machine: `make test-vm`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use etcd_client::{Certificate, Client, ConnectOptions, GetOptions, Identity, TlsOptions};
use serde_json::Value;

use crate::lab::{condition, skip};
use crate::machine::{Machine, NEWER, OLDER};

/// What is written to the document that the package brought. 10.0.2.15 is where qemu's network finds
/// the machine; this host's clock is far ahead of the machine's, so its certificates live long.
const DOCUMENT: &str = "\
apiVersion: etcd.edge-operator.io/v1alpha1
kind: EtcdCluster
metadata: {name: pi}
spec:
  version: VERSION
  network: {listenAddresses: [127.0.0.1, 10.0.2.15]}
  tls: {leafDays: 3650}
";

/// Enough that the cut comes in the midst of a stream.
const WRITES_BEFORE_THE_CUT: u64 = 200;

/// What a client needs to connect.
#[derive(Clone, PartialEq, Eq)]
struct Credentials {
    ca: String,
    cert: String,
    key: String,
}

impl Credentials {
    /// Carried over from the machine, as a person would with a stick.
    fn of(machine: &mut Machine, status: &Value) -> Credentials {
        let mut file = |name: &str| {
            let path = status["host"]["files"][name].as_str().unwrap().to_owned();
            machine.must(&format!("cat {path}")) + "\n"
        };
        Credentials {
            ca: file("ca"),
            cert: file("cert"),
            key: file("key"),
        }
    }

    async fn connect(&self, port: u16) -> Result<Client, etcd_client::Error> {
        let tls = TlsOptions::new()
            .ca_certificate(Certificate::from_pem(&self.ca))
            .identity(Identity::from_pem(&self.cert, &self.key));
        let options = ConnectOptions::new()
            .with_tls(tls)
            .with_connect_timeout(Duration::from_secs(30))
            .with_timeout(Duration::from_secs(30));
        Client::connect([format!("https://127.0.0.1:{port}")], Some(options)).await
    }

    /// Sees every one of the first `count` keys with its value; how many there are. One more may be:
    /// written, and its answer lost.
    fn check(&self, port: u16, count: u64) -> u64 {
        let found = wait_for(async {
            let mut client = self.connect(port).await?;
            let options = GetOptions::new().with_prefix();
            client.get("written/", Some(options)).await
        });
        let found = found.unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let found: std::collections::BTreeMap<String, String> = found
            .kvs()
            .iter()
            .map(|it| (text(it.key()), text(it.value())))
            .collect();
        let lost: Vec<u64> = (0..count)
            .filter(|it| found.get(&key(*it)) != Some(&value(*it)))
            .collect();
        assert!(
            lost.is_empty(),
            "of {count} acknowledged writes are gone: {lost:?}"
        );
        let found = found.len() as u64;
        assert!(
            (count..=count + 1).contains(&found),
            "{found} keys, {count} acknowledged"
        );
        found
    }
}

fn key(number: u64) -> String {
    format!("written/{number:08}")
}

fn value(number: u64) -> String {
    format!("value of {number}")
}

fn wait_for<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread();
    { runtime }.enable_all().build().unwrap().block_on(work)
}

/// Writes one key after the other from this host, until an answer stays away.
struct Writer {
    from: u64,
    acknowledged: Arc<AtomicU64>,
    thread: std::thread::JoinHandle<Instant>,
}

impl Writer {
    /// The keys before `from` are there.
    fn start(credentials: &Credentials, port: u16, from: u64) -> Writer {
        let acknowledged = Arc::new(AtomicU64::new(from));
        let count = acknowledged.clone();
        let credentials = credentials.clone();
        let thread = std::thread::spawn(move || {
            wait_for(async {
                let mut client = credentials.connect(port).await.unwrap();
                let mut last = Instant::now();
                loop {
                    let number = count.load(Ordering::SeqCst);
                    if client.put(key(number), value(number), None).await.is_err() {
                        return last;
                    }
                    count.store(number + 1, Ordering::SeqCst);
                    last = Instant::now();
                }
            })
        });
        Writer {
            from,
            acknowledged,
            thread,
        }
    }

    /// Waits for this many of its own.
    fn wait(&self, count: u64) {
        let begin = Instant::now();
        while self.acknowledged.load(Ordering::SeqCst) < self.from + count {
            assert!(begin.elapsed() < Duration::from_secs(240));
            assert!(!self.thread.is_finished(), "the writer was not answered");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// How many keys were acknowledged, those before its own included, and when its last was.
    fn end(self) -> (u64, Instant) {
        let last = self.thread.join().unwrap();
        (self.acknowledged.load(Ordering::SeqCst), last)
    }
}

fn is_available(status: &Value) -> bool {
    condition(status, "Available").0 == "True"
}

/// It serves, knows that its clock is wrong, and has certificates that do not mind.
fn serves_without_a_clock(machine: &mut Machine) -> Value {
    let status = machine.wait("Available", is_available);
    assert_eq!(machine.must("date +%Y"), "1970");
    assert_eq!(
        condition(&status, "ClockTrusted"),
        ("False", "BehindKnownTime")
    );
    assert_eq!(
        condition(&status, "CertificatesValid"),
        ("True", "Provisional")
    );
    assert_eq!(status["host"]["driver"], "systemd");
    let units = machine.must("systemctl is-active etcd-operator.service etcd-member@pi.service");
    assert_eq!(units, "active\nactive");
    status
}

/// The package and its second disk, as a person would put them there.
fn install(machine: &mut Machine) {
    machine.must("mkdir /in && tar -xf /dev/vdb -C /in");
    machine.must("dpkg -i /in/etcd-operator.deb");
}

/// Puts one of the two patches of etcd into the store; its version.
fn install_etcd(machine: &mut Machine, patch: &str) -> String {
    let version = machine.must(&format!(
        "/in/{patch}/etcd --version | sed -n 's/^etcd Version: //p'"
    ));
    machine.must(&format!(
        "etcd-operator etcd install --from /in/{patch} {version}"
    ));
    version
}

fn write_document(machine: &mut Machine, version: &str) {
    let document = DOCUMENT.replace("VERSION", version);
    machine.must(&format!(
        "cat > /etc/etcd-operator/cluster.yaml << 'EOF'\n{document}EOF"
    ));
}

/// Starts the operator; the status once it serves. Prints and bounds what that takes.
fn first_start(machine: &mut Machine) -> Value {
    machine.must("systemctl enable etcd-operator");
    let begin = machine.uptime();
    machine.must("systemctl start etcd-operator");
    let ready = machine.uptime() - begin;
    let status = serves_without_a_clock(machine);
    let serving = machine.uptime() - begin;
    eprintln!(
        "measured: READY {ready:.1} s after systemctl start, seen to serve after {serving:.1} s"
    );
    let operator = &status["host"]["operator"]["pid"];
    let memory = machine.must(&format!(
        "cat /proc/{operator}/status /proc/{operator}/smaps_rollup | sed -nE '/^(VmRSS|Private_Dirty):/s/[^0-9]//gp'"
    ));
    let kilobytes: Vec<u64> = memory.lines().map(|it| it.parse().unwrap()).collect();
    let [resident, private] = kilobytes[..] else {
        panic!("{memory}")
    };
    eprintln!("measured: the operator's VmRSS {resident} KiB, private dirty {private} KiB");
    assert!(resident <= 8 * 1024, "{resident} KiB");
    status
}

/// How many writes of a client on this host were acknowledged when the power went.
fn cut_in_the_midst_of_writing(machine: &mut Machine, credentials: &Credentials) -> u64 {
    let begin = Instant::now();
    let writer = Writer::start(credentials, machine.port, 0);
    writer.wait(WRITES_BEFORE_THE_CUT);
    let cut = Instant::now();
    machine.cut();
    let (acknowledged, last) = writer.end();
    let silence = cut.saturating_duration_since(last);
    assert!(
        silence < Duration::from_secs(5),
        "nothing was written for {silence:?}"
    );
    let seconds = begin.elapsed().as_secs_f64();
    eprintln!(
        "measured: {acknowledged} writes acknowledged in {seconds:.1} s, then the power was cut"
    );
    acknowledged
}

/// A time source answers at last.
fn set_the_clock(machine: &mut Machine) {
    let now = std::time::SystemTime::UNIX_EPOCH
        .elapsed()
        .unwrap()
        .as_secs();
    machine.must(&format!("date --set=@{now}"));
    machine.must("mkdir -p /run/systemd/timesync && touch /run/systemd/timesync/synchronized");
}

#[test]
#[ignore = "boots a machine twice, which takes two minutes: make test-vm"]
fn a_board_without_a_clock_keeps_every_acknowledged_write_when_its_power_is_cut() {
    let mut machine = match Machine::new("cut") {
        Ok(machine) => machine,
        Err(why) => return skip(&why),
    };
    machine.boot();
    assert_eq!(machine.must("uname -m"), "aarch64");
    install(&mut machine);
    let version = install_etcd(&mut machine, NEWER);
    write_document(&mut machine, &version);
    let status = first_start(&mut machine);
    let cluster = status["clusterID"].clone();
    let before = Credentials::of(&mut machine, &status);
    let acknowledged = cut_in_the_midst_of_writing(&mut machine, &before);

    machine.boot();
    let status = serves_without_a_clock(&mut machine);
    eprintln!(
        "measured: seen to serve {:.1} s after the power came back",
        machine.uptime()
    );
    assert_eq!(status["clusterID"], cluster);
    before.check(machine.port, acknowledged);

    set_the_clock(&mut machine);
    let trusted = machine.wait("certificates with true dates", |it| {
        condition(it, "CertificatesValid") == ("True", "Valid")
            && it["certificates"]["provisional"] == false
    });
    assert_eq!(condition(&trusted, "ClockTrusted").0, "True");
    for program in ["etcd", "operator"] {
        let pid = |status: &Value| status["host"][program]["pid"].as_u64().unwrap();
        assert_eq!(pid(&trusted), pid(&status), "{program} was not restarted");
    }
    let after = Credentials::of(&mut machine, &trusted);
    assert!(
        after.cert != before.cert,
        "the client's certificate was issued anew"
    );
    assert!(after.ca == before.ca, "by the same authority");
    for credentials in [&before, &after] {
        credentials.check(machine.port, acknowledged);
    }
    machine.power_off();
    assert!(
        machine.console().contains("Power down"),
        "{}",
        machine.console()
    );
}

/// Where a change of version is cut: the first sight of it in the machine, by a command that succeeds then.
fn signs(newer: &str) -> [(&'static str, String); 3] {
    let named = "grep -q otherVersion /var/lib/etcd-operator/member/identity.json";
    let runs = format!("ls -l /proc/[0-9]*/exe 2> /dev/null | grep -q etcd-{newer}/etcd");
    let serves = format!("etcd-operator status -o json | grep -q \"version.: *.{newer}\"");
    [
        ("the rehearsal runs", format!("{runs} && ! {named}")),
        ("the newer one may open the data", named.to_owned()),
        ("the newer one serves", serves),
    ]
}

#[test]
#[ignore = "boots a machine four times, which takes five minutes: make test-vm"]
fn a_change_of_version_goes_on_after_every_power_cut_in_its_midst() {
    let mut machine = match Machine::new("change") {
        Ok(machine) => machine,
        Err(why) => return skip(&why),
    };
    machine.boot();
    install(&mut machine);
    let older = install_etcd(&mut machine, OLDER);
    let newer = install_etcd(&mut machine, NEWER);
    write_document(&mut machine, &older);
    let status = first_start(&mut machine);
    let credentials = Credentials::of(&mut machine, &status);
    let mut there = 0;
    let mut writer = Some(Writer::start(&credentials, machine.port, there));
    writer.as_ref().unwrap().wait(WRITES_BEFORE_THE_CUT);
    write_document(&mut machine, &newer);
    machine.must("systemctl reload etcd-operator");
    for (what, sign) in signs(&newer) {
        let (code, _) = machine.run(&format!("timeout 200 sh -c 'until {sign}; do :; done'"));
        machine.cut();
        assert_eq!(code, 0, "{what}");
        let acknowledged = writer.take().map_or(there, |it| it.end().0);
        eprintln!("measured: {what}: {acknowledged} writes acknowledged, then the power was cut");
        machine.boot();
        let status = serves_without_a_clock(&mut machine);
        eprintln!(
            "measured: {} serves after {:.1} s",
            status["version"],
            machine.uptime()
        );
        there = credentials.check(machine.port, acknowledged);
        if status["version"] == *older {
            writer = Some(Writer::start(&credentials, machine.port, there));
        }
    }
    let status = machine.wait("the change to be final", |it| {
        it["version"] == *newer && it["history"][0]["outcome"] == "Done"
    });
    assert_eq!(status["history"].as_array().unwrap().len(), 1, "{status:#}");
    assert_eq!(condition(&status, "Progressing").0, "False", "{status:#}");
    credentials.check(machine.port, there);
}
