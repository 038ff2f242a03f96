//! Certificates: renewed in place, provisional on a wrong clock, private, and never plain text.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use etcd_operator::cluster::Timestamp;
use etcd_operator::tls::{Leaves, Validity};
use serde_json::Value;

use crate::disk::run;
use crate::lab::{Lab, condition, skip, text};

fn now() -> i64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(elapsed.as_secs()).unwrap()
}

/// A time span around now, in seconds.
fn span(begin: i64, end: i64) -> Validity {
    Validity {
        not_before: Timestamp(now() + begin),
        not_after: Timestamp(now() + end),
    }
}

/// Puts leaves in place that begin and end so many seconds from now, signed by the lab's own CA.
pub fn replace_generation(lab: &Lab, begin: i64, end: i64) {
    let certificates = lab.certificates();
    let [(_, server), ..] = certificates.leaves();
    certificates
        .mint(&Leaves {
            names: &server.unwrap().names,
            peer_names: &["127.0.0.1".to_owned()],
            cluster: "lab",
            validity: span(begin, end),
        })
        .unwrap();
}

fn born(lines: &[&str]) -> (Lab, u32) {
    let mut lab = Lab::new("3.6");
    for line in lines {
        lab.add(line);
    }
    lab.start_agent();
    lab.wait_available();
    let pid = lab.etcd_pid().unwrap();
    (lab, pid)
}

pub fn serial(pem: &Path) -> String {
    run(
        "openssl",
        &["x509", "-noout", "-serial", "-in", pem.to_str().unwrap()],
    )
    .unwrap()
}

/// The serial number that etcd presents in a handshake on the client port.
fn served_serial(lab: &Lab) -> String {
    let files = lab.lib("tls/clients/admin");
    let script = format!(
        "openssl s_client -connect 127.0.0.1:{} -CAfile {dir}/ca.crt -cert {dir}/client.crt -key {dir}/client.key < /dev/null 2> /dev/null | openssl x509 -noout -serial",
        lab.ports[0],
        dir = files.display()
    );
    run("sh", &["-c", &script]).unwrap()
}

pub fn server_file(lab: &Lab, name: &str) -> PathBuf {
    lab.lib("tls/current").join(name)
}

/// Waits until the leaves in use are other ones and serve; the status of a later pass.
pub fn wait_renewed(lab: &Lab, old: &str) -> Value {
    lab.wait("renewed", |_| {
        serial(&server_file(lab, "server.crt")) != old
    });
    let status = lab.wait_available();
    assert_eq!(served_serial(lab), serial(&server_file(lab, "server.crt")));
    status
}

#[test]
fn leaves_near_their_end_are_renewed_without_a_restart() {
    let (lab, pid) = born(&["tls: {leafDays: 2}"]);
    // In the last third of a life of two days, one of them backdated.
    replace_generation(&lab, -2 * 86_400, 86_400 - 3600);
    let old = serial(&server_file(&lab, "server.crt"));
    let status = wait_renewed(&lab, &old);
    assert_eq!(condition(&status, "CertificatesValid"), ("True", "Valid"));
    assert_eq!(lab.etcd_pid(), Some(pid), "no restart");
    let [(_, server), ..] = lab.certificates().leaves();
    let left = server.unwrap().not_after.0 - now();
    assert!((86_400..=2 * 86_400).contains(&left), "{left}");
    // Young ones are left alone.
    let fresh = serial(&server_file(&lab, "server.crt"));
    for _ in 0..3 {
        lab.status();
    }
    assert_eq!(serial(&server_file(&lab, "server.crt")), fresh);
}

#[test]
fn leaves_that_ran_out_while_the_host_was_off_are_renewed_before_etcd_starts() {
    let (mut lab, _) = born(&[]);
    assert!(lab.put("kept", "yes"));
    lab.stop_agent();
    lab.kill_etcd();
    replace_generation(&lab, -400 * 86_400, -86_400);
    let old = serial(&server_file(&lab, "server.crt"));
    lab.start_agent();
    let status = wait_renewed(&lab, &old);
    assert_eq!(condition(&status, "CertificatesValid"), ("True", "Valid"));
    assert_eq!(lab.get("kept").as_deref(), Some("yes"));
    let log = lab.log();
    let starts: Vec<&str> = log
        .lines()
        .filter(|it| it.contains("start etcd") || it.contains("issue certificates"))
        .collect();
    assert!(
        starts.len() == 4 && starts[2].contains("issue certificates"),
        "issued, started, issued, started: {starts:?}"
    );
}

#[test]
fn the_guard_alone_makes_provisional_ones_when_they_ran_out() {
    let (mut lab, _) = born(&[]);
    lab.stop_agent();
    lab.kill_etcd();
    replace_generation(&lab, -400 * 86_400, -86_400);
    let (code, words) = lab.guard();
    assert_eq!(code, 0, "{words}");
    let [(_, server), ..] = lab.certificates().leaves();
    assert!(server.unwrap().is_provisional());
}

#[test]
fn a_broken_or_missing_pair_is_replaced_and_the_old_one_kept_aside() {
    type Damage = fn(&Lab);
    let damages: [(&str, Damage); 4] = [
        ("half a certificate", |lab| {
            let path = server_file(lab, "server.crt");
            let whole = fs::read(&path).unwrap();
            fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        }),
        ("another's key", |lab| {
            fs::copy(server_file(lab, "peer.key"), server_file(lab, "server.key")).unwrap();
        }),
        ("no key", |lab| {
            fs::remove_file(server_file(lab, "operator.key")).unwrap();
        }),
        ("no generation", |lab| {
            fs::remove_file(lab.lib("tls/current")).unwrap();
        }),
    ];
    let (lab, pid) = born(&[]);
    for (what, damage) in damages {
        let old = fs::read_link(lab.lib("tls/current")).unwrap();
        damage(&lab);
        lab.wait(what, |it| {
            fs::read_link(lab.lib("tls/current")).is_ok_and(|it| it != old)
                && condition(it, "Available").0 == "True"
                && condition(it, "CertificatesValid") == ("True", "Valid")
        });
        assert!(lab.put("after", what), "{what}");
        assert_eq!(lab.etcd_pid(), Some(pid), "{what}");
        assert_eq!(
            served_serial(&lab),
            serial(&server_file(&lab, "server.crt")),
            "{what}"
        );
    }
}

const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

/// The agent's environment for another wall clock; `None` where the library is not installed.
fn faked(time: &str) -> Option<Vec<(String, String)>> {
    let library = [
        FAKETIME,
        "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    ]
    .into_iter()
    .find(|it| Path::new(it).exists());
    let Some(library) = library else {
        skip("a faked clock needs the package libfaketime");
        return None;
    };
    let pairs = [
        ("LD_PRELOAD", library),
        ("FAKETIME", time),
        ("DONT_FAKE_MONOTONIC", "1"),
    ];
    Some(
        pairs
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .to_vec(),
    )
}

#[test]
fn a_box_that_boots_in_1970_serves_with_provisional_leaves_until_its_clock_is_right() {
    let Some(environment) = faked("@1970-01-02 00:00:00") else {
        return;
    };
    let mut lab = Lab::new("3.6");
    lab.environment = environment;
    lab.start_agent();
    let status = lab.wait_available();
    let pid = lab.etcd_pid();
    assert_eq!(
        condition(&status, "ClockTrusted"),
        ("False", "BehindKnownTime")
    );
    assert_eq!(
        condition(&status, "CertificatesValid"),
        ("True", "Provisional")
    );
    for (role, leaf) in lab.certificates().leaves() {
        let leaf = leaf.unwrap();
        assert_eq!(leaf.not_before, Timestamp(0), "{role}");
        assert!(
            leaf.not_after.0 > now() + 86_400,
            "{role}: valid when the clock is right"
        );
    }
    assert!(lab.put("born", "in 1970"));
    let old = serial(&server_file(&lab, "server.crt"));
    // A client that is issued meanwhile is good for later, too.
    let issued = lab.operator(&["certs", "issue", "early"]);
    assert!(issued.status.success(), "{}", text(&issued.stderr));
    let early = lab.certificates().client_leaf("early").unwrap();
    assert!(
        early.not_before.0 == 0 && early.not_after.0 > now(),
        "{early:?}"
    );
    lab.stop_agent();
    lab.environment.clear();
    lab.start_agent();
    let status = wait_renewed(&lab, &old);
    assert_eq!(condition(&status, "ClockTrusted").0, "True");
    assert_eq!(condition(&status, "CertificatesValid"), ("True", "Valid"));
    assert!(
        lab.certificates()
            .leaves()
            .iter()
            .all(|(_, it)| !it.as_ref().unwrap().is_provisional())
    );
    assert!(
        !lab.certificates()
            .client_leaf("admin")
            .unwrap()
            .is_provisional()
    );
    assert_eq!(lab.etcd_pid(), pid, "no restart");
    assert_eq!(lab.get("born").as_deref(), Some("in 1970"));
}

#[test]
fn provisional_leaves_stay_while_nobody_vouches_for_the_clock() {
    let mut lab = Lab::new("3.6");
    let marker = lab.root.join("run/systemd/timesync/synchronized");
    fs::remove_file(&marker).unwrap();
    lab.start_agent();
    let status = lab.wait_available();
    assert_eq!(
        condition(&status, "ClockTrusted"),
        ("False", "Unsynchronised")
    );
    assert_eq!(
        condition(&status, "CertificatesValid"),
        ("True", "Provisional")
    );
    let (pid, old) = (lab.etcd_pid(), serial(&server_file(&lab, "server.crt")));
    for _ in 0..3 {
        lab.status();
    }
    assert_eq!(serial(&server_file(&lab, "server.crt")), old);
    fs::write(&marker, "").unwrap();
    let status = wait_renewed(&lab, &old);
    assert_eq!(condition(&status, "CertificatesValid"), ("True", "Valid"));
    assert_eq!(lab.etcd_pid(), pid, "no restart");
}

#[test]
fn a_clock_that_falls_back_by_a_year_gets_leaves_that_are_valid_then_and_now() {
    let Some(environment) = faked("-365d") else {
        return;
    };
    let (mut lab, pid) = born(&[]);
    let old = serial(&server_file(&lab, "server.crt"));
    lab.stop_agent();
    lab.environment = environment;
    lab.start_agent();
    let status = wait_renewed(&lab, &old);
    assert_eq!(
        condition(&status, "ClockTrusted"),
        ("False", "BehindKnownTime")
    );
    assert_eq!(
        condition(&status, "CertificatesValid"),
        ("True", "Provisional")
    );
    assert!(lab.put("last", "year"));
    let old = serial(&server_file(&lab, "server.crt"));
    lab.stop_agent();
    lab.environment.clear();
    lab.start_agent();
    let status = wait_renewed(&lab, &old);
    assert_eq!(condition(&status, "CertificatesValid"), ("True", "Valid"));
    assert_eq!(lab.etcd_pid(), Some(pid), "no restart");
}

/// `certs issue NAME` with further arguments, to its success.
fn issue(lab: &Lab, name: &str, arguments: &[&str]) -> Value {
    let arguments = [&["certs", "issue", name, "-o", "json"], arguments].concat();
    let output = lab.operator(&arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn wait_renewed_client(lab: &Lab, name: &str) {
    lab.wait("renewal", |_| {
        lab.certificates().client_leaf(name).unwrap().not_after.0 > now() + 100 * 86_400
    });
}

#[test]
fn an_issued_client_is_renewed_like_a_declared_one_and_a_good_one_is_kept() {
    let (lab, _) = born(&["clients: [{name: k3s}]"]);
    let file = lab.lib("tls/clients/laptop/client.crt");
    assert_eq!(issue(&lab, "laptop", &[])["issued"], true);
    let first = serial(&file);
    // Again: the same one, unless a person wants another.
    assert_eq!(issue(&lab, "laptop", &[])["issued"], false);
    assert_eq!(serial(&file), first);
    assert_eq!(issue(&lab, "laptop", &["--renew"])["issued"], true);
    assert_ne!(serial(&file), first);
    assert_eq!(
        condition(&lab.status(), "CertificatesValid"),
        ("True", "Valid")
    );
    // Both near their ends: nobody has to run anything.
    let soon = span(-300 * 86_400, 5 * 86_400);
    for name in ["laptop", "k3s"] {
        lab.certificates().issue(name, soon).unwrap();
    }
    for name in ["laptop", "k3s"] {
        wait_renewed_client(&lab, name);
    }
}

#[test]
fn a_client_that_nobody_renews_is_warned_about_and_a_removed_one_is_gone() {
    let (mut lab, _) = born(&["clients: [{name: k3s}]"]);
    issue(&lab, "laptop", &[]);
    let soon = span(-300 * 86_400, 5 * 86_400);
    // One that the document named once is nobody's to renew.
    lab.certificates().issue("former", soon).unwrap();
    let former = serial(&lab.lib("tls/clients/former/client.crt"));
    let status = lab.wait("a warning", |it| {
        condition(it, "CertificatesValid") == ("True", "IssuedCertificateEnds")
    });
    let message = status["conditions"].to_string();
    assert!(message.contains("certs issue former"), "{message}");
    assert_eq!(serial(&lab.lib("tls/clients/former/client.crt")), former);
    // Removed: it is not renewed any more, and nothing of it is left here.
    let removed = lab.operator(&["certs", "remove", "former"]);
    assert!(removed.status.success(), "{}", text(&removed.stderr));
    lab.wait("no warning", |it| {
        condition(it, "CertificatesValid") == ("True", "Valid")
    });
    assert!(
        lab.operator(&["certs", "remove", "laptop"])
            .status
            .success()
    );
    let names = fs::read_dir(lab.lib("tls/clients")).unwrap().flatten();
    let left = names.filter(|it| it.file_name().to_string_lossy().starts_with("laptop"));
    assert_eq!(left.count(), 0);
    assert!(!lab.lib("tls/issued/laptop.json").exists());
    for (name, code) in [("laptop", 1), ("k3s", 3), ("admin", 3)] {
        let refused = lab.operator(&["certs", "remove", name]);
        assert_eq!(refused.status.code(), Some(code), "{name}");
    }
    assert_eq!(issue(&lab, "laptop", &[])["issued"], true);
    // The same command where no agent runs.
    lab.stop_agent();
    let issued = lab.operator(&["certs", "issue", "offline", "-o", "json"]);
    assert!(issued.status.success(), "{}", text(&issued.stderr));
    let files: Value = serde_json::from_slice(&issued.stdout).unwrap();
    for (kind, mode) in [("cert", 0o600), ("key", 0o600), ("ca", 0o600)] {
        let path = files[kind].as_str().unwrap();
        assert_eq!(
            fs::metadata(path).unwrap().permissions().mode() & 0o777,
            mode,
            "{path}"
        );
    }
    let listed = text(&lab.operator(&["certs", "list"]).stdout);
    for name in [
        "server", "peer", "operator", "admin", "k3s", "laptop", "offline",
    ] {
        assert!(
            listed.lines().any(|it| it.starts_with(name)),
            "{name}: {listed}"
        );
    }
}

#[test]
fn copies_are_made_anew_by_the_same_command_and_warned_about_before_they_end() {
    let (lab, _) = born(&[]);
    let out = lab.root.join("out");
    let issue = || issue(&lab, "till", &["--out", out.to_str().unwrap()]);
    let files = issue();
    for (kind, name) in [("ca", "ca.crt"), ("cert", "till.crt"), ("key", "till.key")] {
        let path = out.join(name);
        assert_eq!(files[kind], path.to_str().unwrap());
        assert_eq!(
            fs::metadata(path).unwrap().permissions().mode() & 0o777,
            0o600
        );
    }
    assert!(
        files.get("contents").is_none(),
        "no key on the standard output"
    );
    let copied = serial(&out.join("till.crt"));
    assert_eq!(copied, serial(&lab.lib("tls/clients/till/client.crt")));
    // A good one stays the same file.
    let inode =
        |name: &str| std::os::unix::fs::MetadataExt::ino(&fs::metadata(out.join(name)).unwrap());
    let before = inode("till.key");
    assert_eq!(issue()["issued"], false);
    assert_eq!(inode("till.key"), before);
    // The operator renews its own; the copy is old from then on, and that is told in time.
    let soon = span(-300 * 86_400, 5 * 86_400);
    lab.certificates().issue("till", soon).unwrap();
    let end = Timestamp(now() + 5 * 86_400);
    lab.certificates()
        .note_issued("till", Some((&out, end)))
        .unwrap();
    wait_renewed_client(&lab, "till");
    let status = lab.wait("a warning", |it| {
        condition(it, "CertificatesValid") == ("True", "IssuedCertificateEnds")
    });
    let message = status["conditions"].to_string();
    assert!(
        message.contains("run certs issue till as before"),
        "{message}"
    );
    assert_eq!(issue()["issued"], false, "it was renewed already");
    assert_ne!(serial(&out.join("till.crt")), copied);
    assert_eq!(
        serial(&out.join("till.crt")),
        serial(&lab.lib("tls/clients/till/client.crt"))
    );
    lab.wait("no warning", |it| {
        condition(it, "CertificatesValid") == ("True", "Valid")
    });
    let nobody = lab.operator(&[
        "certs",
        "issue",
        "till",
        "--out",
        "/x",
        "--owner",
        "no-such-user",
    ]);
    assert_eq!(nobody.status.code(), Some(2), "{}", text(&nobody.stderr));
}

#[test]
fn a_name_that_is_no_clients_name_is_refused_with_and_without_an_agent() {
    let (mut lab, _) = born(&[]);
    let long = "a".repeat(64);
    for round in ["with", "without"] {
        for name in [
            "etcd-operator",
            "../up",
            "a b",
            "UPPER",
            "",
            "a.b",
            "a%2Fb",
            &long,
        ] {
            let output = lab.operator(&["certs", "issue", name]);
            assert_eq!(
                output.status.code(),
                Some(2),
                "{round} '{name}': {}",
                text(&output.stderr)
            );
            assert!(
                text(&output.stderr).contains("client's name"),
                "{round} '{name}': {}",
                text(&output.stderr)
            );
        }
        if round == "with" {
            lab.stop_agent();
        }
    }
    assert_eq!(lab.certificates().clients(), ["admin"]);
}

#[test]
fn a_certificate_that_is_issued_with_a_wrong_clock_and_no_agent_is_good_for_later() {
    let Some(environment) = faked("@1970-01-02 00:00:00") else {
        return;
    };
    let (mut lab, _) = born(&[]);
    lab.stop_agent();
    let output = Command::new(crate::lab::program())
        .args(["certs", "issue", "field", "--root"])
        .arg(&lab.root)
        .envs(environment)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let leaf = lab.certificates().client_leaf("field").unwrap();
    assert!(
        leaf.not_before.0 == 0 && leaf.not_after.0 > now() + 86_400,
        "{leaf:?}"
    );
}

/// etcdctl with other files than the client's.
fn etcdctl_as(lab: &Lab, port: u16, cert: Option<&Path>) -> std::process::Output {
    let mut command = Command::new(lab.etcd.join("etcdctl"));
    command
        .env_clear()
        .env("ETCDCTL_ENDPOINTS", format!("https://127.0.0.1:{port}"))
        .env("ETCDCTL_CACERT", lab.lib("tls/clients/admin/ca.crt"))
        .args([
            "--dial-timeout",
            "2s",
            "--command-timeout",
            "2s",
            "get",
            "x",
        ]);
    if let Some(cert) = cert {
        command
            .env("ETCDCTL_CERT", cert)
            .env("ETCDCTL_KEY", cert.with_extension("key"));
    }
    command.output().unwrap()
}

#[test]
fn nobody_is_served_without_a_certificate_of_the_right_ca() {
    let (lab, _) = born(&[]);
    let admin = lab.lib("tls/clients/admin/client.crt");
    assert!(
        etcdctl_as(&lab, lab.ports[0], Some(&admin))
            .status
            .success()
    );
    assert!(
        !etcdctl_as(&lab, lab.ports[0], None).status.success(),
        "no certificate"
    );
    let peer = server_file(&lab, "peer.crt");
    assert!(
        !etcdctl_as(&lab, lab.ports[0], Some(&peer)).status.success(),
        "a peer is no client"
    );
    // A client is no peer. HTTP/1 over the peer port answers whom it trusts.
    let ask = |cert: &Path| {
        let script = format!(
            "printf 'GET /version HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n' | openssl s_client -quiet -connect 127.0.0.1:{} -cert {} -key {} 2>&1",
            lab.ports[1],
            cert.display(),
            cert.with_extension("key").display()
        );
        run("sh", &["-c", &script]).unwrap_or_else(|why| why)
    };
    assert!(ask(&peer).contains("etcdserver"), "{}", ask(&peer));
    assert!(!ask(&admin).contains("etcdserver"), "{}", ask(&admin));
}

/// Addresses and ports on which a process listens.
fn listening(pid: u32) -> Vec<(String, u16)> {
    let inodes: Vec<String> = fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .flatten()
        .filter_map(|it| fs::read_link(it.path()).ok())
        .filter_map(|it| {
            let text = it.to_string_lossy().into_owned();
            Some(text.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
        })
        .collect();
    let mut found = Vec::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        for line in fs::read_to_string(table)
            .unwrap_or_default()
            .lines()
            .skip(1)
        {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            if fields[3] == "0A" && inodes.iter().any(|it| it == fields[9]) {
                let (address, port) = fields[1].rsplit_once(':').unwrap();
                found.push((address.to_owned(), u16::from_str_radix(port, 16).unwrap()));
            }
        }
    }
    found.sort_by_key(|it| it.1);
    found
}

#[test]
fn only_metrics_on_loopback_are_plain_text() {
    let (lab, pid) = born(&[]);
    let mut ports = lab.ports;
    ports.sort_unstable();
    let found = listening(pid);
    assert_eq!(
        found.iter().map(|it| it.1).collect::<Vec<_>>(),
        ports,
        "{found:?}"
    );
    assert!(found.iter().all(|it| it.0 == "0100007F"), "{found:?}");
    let plain = |port: u16| {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        std::io::Write::write_all(&mut stream, b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        let _ = std::io::Read::read_to_end(&mut stream, &mut answer);
        text(&answer)
    };
    assert!(plain(lab.ports[2]).contains("etcd_server_has_leader 1"));
    for port in [lab.ports[0], lab.ports[1]] {
        let answer = plain(port);
        assert!(!answer.contains("200 OK"), "{answer}");
    }
    // The operator itself listens nowhere.
    assert_eq!(listening(lab.agent_pid()), []);
    // And nothing older than TLS 1.2.
    let old = Command::new("openssl")
        .args([
            "s_client",
            "-tls1_1",
            "-connect",
            &format!("127.0.0.1:{}", lab.ports[0]),
        ])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(!old.status.success());
}

#[test]
fn a_damaged_ca_is_told_and_never_replaced_and_etcd_runs_on() {
    let (mut lab, pid) = born(&[]);
    let key = lab.lib("tls/client-ca/ca.key");
    let whole = fs::read(&key).unwrap();
    let half = &whole[..whole.len() / 2];
    fs::write(&key, half).unwrap();
    let status = lab.wait_hold("AuthorityDamaged");
    assert_eq!(
        condition(&status, "CertificatesValid"),
        ("False", "AuthorityDamaged")
    );
    assert_eq!(condition(&status, "Available").0, "True");
    assert_eq!(lab.etcd_pid(), Some(pid));
    // etcd starts with the leaves that are still good.
    lab.kill_etcd();
    lab.wait_available();
    // Once nothing is good any more, it is a hold that says so.
    lab.stop_agent();
    lab.kill_etcd();
    fs::write(&key, &whole).unwrap();
    replace_generation(&lab, -400 * 86_400, -86_400);
    fs::write(&key, half).unwrap();
    lab.start_agent();
    let status = lab.wait_hold("CertificatesUnusable");
    assert_eq!(
        condition(&status, "Available"),
        ("False", "CertificatesUnusable")
    );
    assert_eq!(fs::read(&key).unwrap(), half, "never replaced");
    fs::write(&key, &whole).unwrap();
    lab.wait_available();
}

/// Whoever has a certificate of the CA that was lost is refused from now on, and somebody should know.
#[test]
fn a_ca_that_was_lost_is_told_until_a_person_accepts_the_new_one() {
    let (mut lab, _) = born(&["clients: [{name: k3s}]"]);
    let valid = |it: &Value| condition(it, "CertificatesValid").0 == "True";
    lab.wait("the first certificates", valid);
    let copy = lab.root.join("old");
    let old = copy.join("client.crt");
    fs::create_dir(&copy).unwrap();
    for it in ["client.crt", "client.key"] {
        fs::copy(lab.lib("tls/clients/k3s").join(it), copy.join(it)).unwrap();
    }
    let port = lab.ports[0];
    lab.stop_agent();
    lab.kill_etcd();
    fs::rename(lab.lib("tls"), lab.root.join("tls-lost")).unwrap();
    lab.start_agent();
    let status = lab.wait_available();
    assert_eq!(
        condition(&status, "CertificatesValid"),
        ("False", "AuthorityReplaced")
    );
    assert!(!etcdctl_as(&lab, port, Some(&old)).status.success());
    let table = text(&lab.operator(&["status"]).stdout);
    assert!(
        table.starts_with("ATTENTION: AuthorityReplaced: the CA was replaced"),
        "{table}"
    );
    // A restart of the operator and another look change nothing about it.
    lab.stop_agent();
    lab.start_agent();
    lab.wait("the same", |it| {
        condition(it, "CertificatesValid").1 == "AuthorityReplaced"
    });
    let accepted = lab.operator(&["certs", "accept"]);
    assert!(accepted.status.success(), "{}", text(&accepted.stderr));
    lab.wait("nothing to tell", valid);
    // The old one, put back, is as good as ever.
    lab.stop_agent();
    lab.kill_etcd();
    fs::remove_dir_all(lab.lib("tls")).unwrap();
    fs::rename(lab.root.join("tls-lost"), lab.lib("tls")).unwrap();
    lab.start_agent();
    lab.wait("the old one", valid);
    lab.wait_available();
    assert!(etcdctl_as(&lab, port, Some(&old)).status.success());
}
