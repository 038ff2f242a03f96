//! Copies in a bucket of a real S3 server, and restores from there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::lab::{Lab, condition, free_ports, text};
use crate::restore::{backups, json};

/// s3s-fs on loopback, over a directory of its own.
pub struct Server {
    pub root: PathBuf,
    pub port: u16,
    _claims: Vec<fs::File>,
    child: Option<Child>,
    /// Of its process, such as a faked clock.
    pub environment: Vec<(String, String)>,
}

const SECRET: &str = "an-example-of-a-secret-key";

impl Server {
    pub fn new(lab: &Lab) -> Server {
        let root = lab.root.join("s3");
        fs::create_dir_all(root.join("backup")).unwrap();
        let (ports, claims) = free_ports();
        let mut server = Server {
            root,
            port: ports[0],
            _claims: claims,
            child: None,
            environment: Vec::new(),
        };
        server.start();
        server
    }

    pub fn start(&mut self) {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/s3s-fs");
        assert!(
            program.exists(),
            "no s3s-fs: run make test, or tests/tools/s3s-fs.sh"
        );
        let child = Command::new(program)
            .args(["--host", "127.0.0.1", "--port", &self.port.to_string()])
            .args(["--access-key", "edge", "--secret-key", SECRET])
            .arg(&self.root)
            .envs(self.environment.iter().cloned())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.child = Some(child);
        let begin = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(begin.elapsed() < Duration::from_secs(10));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub fn objects(&self) -> Vec<String> {
        let dir = self.root.join("backup/shops/lab");
        let mut names: Vec<String> = fs::read_dir(dir)
            .map(|it| {
                it.map(|it| it.unwrap().file_name().into_string().unwrap())
                    .collect()
            })
            .unwrap_or_default();
        names.sort();
        names
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A host that copies to the bucket; `more` goes into the destination.
pub fn lab(server: &dyn Fn(&Lab) -> Server, more: &str) -> (Lab, Server) {
    let mut lab = Lab::new("3.6");
    let server = server(&lab);
    fs::create_dir_all(backups(&lab)).unwrap();
    let credentials = lab.root.join("credentials");
    fs::write(
        &credentials,
        format!("[default]\naws_access_key_id = edge\naws_secret_access_key = {SECRET}\n"),
    )
    .unwrap();
    private(&credentials);
    let document = format!(
        "  backup:\n    destinations:\n    - local: {{path: {}}}\n    - s3: {{bucket: backup, prefix: shops, endpoint: 'http://127.0.0.1:{}', pathStyle: true, credentials: {}{more}}}\n",
        backups(&lab).display(),
        server.port,
        credentials.display(),
    );
    lab.spec.push_str(&document);
    lab.write_document();
    (lab, server)
}

fn private(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

pub fn queued(lab: &Lab, count: u32) {
    lab.wait("the queue", |it| it["backups"]["queued"] == count);
}

#[test]
fn a_link_that_is_down_is_no_alert_before_its_time() {
    let (mut lab, mut server) = lab(&Server::new, "");
    server.stop();
    lab.start_agent();
    lab.wait_available();
    for number in 0..3 {
        assert!(lab.put("a", &number.to_string()));
        json(&lab, &["backup", "create"]);
    }
    // A link that is down is waited for, and told; longer than the document allows it is an alert.
    let status = lab.wait("the reason", |it| {
        condition(it, "BackupHealthy").1 == "CopiesWait" && it["backups"]["queued"] == 3
    });
    assert_eq!(condition(&status, "BackupHealthy").0, "True");
    assert_eq!(condition(&status, "Available").0, "True");
    let to = &status["backups"]["destinations"][1];
    assert_eq!(
        (&to["place"], &to["queued"]),
        (&"s3://backup/shops".into(), &3.into())
    );
    assert!(
        to["nextSeconds"].is_u64() && to["lastVerified"].is_null(),
        "{to:#}"
    );
    let message = status["conditions"].to_string();
    for words in [
        "3 to be copied to s3://backup/shops",
        "waiting since 20",
        "the operator retries every 1 min",
    ] {
        assert!(message.contains(words), "{message}");
    }
    let table = text(&lab.operator(&["status"]).stdout);
    assert!(table.starts_with("OK: "), "{table}");
    assert!(
        table.contains("s3://backup/shops: no verified snapshot yet; 3 to be copied ("),
        "{table}"
    );
    lab.spec = lab
        .spec
        .replace("  backup:\n", "  backup:\n    copyGrace: 1s\n");
    lab.write_document();
    lab.signal_agent("HUP");
    let status = lab.wait("the alert", |it| {
        condition(it, "BackupHealthy") == ("False", "CopyFailed")
    });
    assert_eq!(condition(&status, "Available").0, "True");
    let table = text(&lab.operator(&["status"]).stdout);
    assert!(
        table.starts_with("ATTENTION: CopyFailed: 3 to be copied to s3://"),
        "{table}"
    );
}

#[test]
fn the_queue_waits_for_the_link_and_survives_the_operator() {
    let (mut lab, mut server) = lab(&Server::new, "");
    server.stop();
    lab.start_agent();
    lab.wait_available();
    for number in 0..3 {
        assert!(lab.put("a", &number.to_string()));
        json(&lab, &["backup", "create"]);
    }
    let status = lab.wait("the reason", |it| {
        condition(it, "BackupHealthy").1 == "CopiesWait" && it["backups"]["queued"] == 3
    });
    assert_eq!(condition(&status, "Available").0, "True");
    let log = lab.log();
    assert!(!log.contains(SECRET) && !status.to_string().contains(SECRET));
    lab.kill_agent();
    server.start();
    lab.start_agent();
    queued(&lab, 0);
    assert_eq!(server.objects().len(), 6, "{:?}", server.objects());
    let status = lab.wait("health", |it| {
        condition(it, "BackupHealthy").1 == "Verified"
    });
    assert_eq!(status["backups"]["count"], 3);
    let [here, there] = [0, 1].map(|it| &status["backups"]["destinations"][it]["lastVerified"]);
    assert_eq!(here["revision"], there["revision"]);
    assert!(there["ageSeconds"].as_u64().unwrap() < 600, "{there}");
    // A copy alone brings the data back on another box.
    assert!(lab.put("b", "late"));
    fs::rename(backups(&lab), lab.root.join("stolen")).unwrap();
    let report = json(&lab, &["restore", "--yes"]);
    assert_eq!(report["outcome"], "restored", "{report}");
    assert_eq!(lab.get("a").as_deref(), Some("2"));
    assert_eq!(lab.get("b"), None);
    assert!(!lab.lib("backup/fetched").exists());
}

#[test]
fn what_is_encrypted_comes_back_with_the_right_key_only() {
    let identity = age::x25519::Identity::generate();
    let more = format!(", encryption: {{recipients: [{}]}}", identity.to_public());
    let (mut lab, server) = lab(&Server::new, &more);
    lab.start_agent();
    lab.wait_available();
    // Once held in memory on its way, once too large for that.
    assert!(lab.put("a", "small"));
    json(&lab, &["backup", "create"]);
    queued(&lab, 0);
    let value = |number| random_text(number, 100_000);
    for number in 0..110 {
        assert!(lab.put(&format!("large-{number}"), &value(number)));
    }
    let created = json(&lab, &["backup", "create"]);
    assert!(created["snapshot"]["size"].as_u64().unwrap() > 8 << 20);
    queued(&lab, 0);
    let objects = server.objects();
    let sealed = objects.iter().map(Path::new);
    let sealed: Vec<&Path> = sealed
        .filter(|it| it.extension().is_some_and(|it| it == "age"))
        .collect();
    assert_eq!(sealed.len(), 3, "two snapshots and the CAs: {objects:?}");
    for object in sealed {
        let bytes = fs::read(server.root.join("backup/shops/lab").join(object)).unwrap();
        assert!(bytes.starts_with(b"age-encryption.org/v1"));
    }
    fs::rename(backups(&lab), lab.root.join("stolen")).unwrap();
    fs::create_dir_all(backups(&lab).join("lab")).unwrap();
    let refused = |arguments: &[&str], words: &str| {
        let output = lab.operator(&[&["restore", "--yes"], arguments].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(words), "{said}");
    };
    refused(&[], "--identity");
    let wrong = secret_file(&lab, "wrong", &age::x25519::Identity::generate());
    refused(&["--identity", &wrong], "cannot be decrypted");
    let right = secret_file(&lab, "right", &identity);
    let report = json(&lab, &["restore", "--yes", "--identity", &right]);
    assert_eq!(report["outcome"], "restored");
    assert_eq!(lab.get("large-7"), Some(value(7)));
    // A replaced box: the same document, nothing else, and the key. Its clients notice nothing.
    let ca = fs::read(lab.certificates().client_files("admin").ca).unwrap();
    assert!(server.objects().contains(&"authorities.age".to_owned()));
    let new = another_box(&lab);
    only_proposed(&new, &right);
    // Nobody here knows the key of the box before: a yes beforehand does not do.
    let held = new.operator(&["restore", "--yes", "--identity", &right]);
    let (said, key) = (text(&held.stderr), lab.signer());
    assert_eq!(held.status.code(), Some(3), "{said}");
    assert!(said.contains(&format!("--trust {key}")), "{said}");
    assert!(!new.lib("tls").exists() && !new.lib("restore.json").exists());
    let restore = ["restore", "--yes", "--identity", &right, "--trust", &key];
    let report = json(&new, &restore);
    assert_eq!(report["outcome"], "restored");
    assert_eq!(new.get("large-7"), Some(value(7)));
    let files = new.certificates().client_files("admin");
    assert_eq!(fs::read(files.ca).unwrap(), ca, "the same CA");
    assert_eq!(new.signer(), key, "and the same signer");
    new.kill_etcd();
}

/// The file with a secret key of age.
pub fn secret_file(lab: &Lab, name: &str, key: &age::x25519::Identity) -> String {
    use age::secrecy::ExposeSecret as _;
    let path = lab.root.join(name);
    fs::write(&path, key.to_string().expose_secret()).unwrap();
    private(&path);
    path.to_str().unwrap().to_owned()
}

/// A box with the same document, ports and an empty directory of its own, and nothing else.
pub fn another_box(lab: &Lab) -> Lab {
    let new = Lab::new("3.6");
    let empty = new.root.join("snapshots");
    fs::create_dir_all(&empty).unwrap();
    let document = fs::read_to_string(lab.document_path()).unwrap();
    let document = document.replace(backups(lab).to_str().unwrap(), empty.to_str().unwrap());
    let document = (0..3).fold(document, |text, it| {
        text.replace(&lab.ports[it].to_string(), &new.ports[it].to_string())
    });
    fs::write(new.document_path(), document).unwrap();
    new
}

/// `--dry-run` leaves nothing behind.
fn only_proposed(lab: &Lab, identity: &str) {
    let proposed = json(lab, &["restore", "--dry-run", "--identity", identity]);
    assert!(proposed["snapshotRevision"].as_i64().unwrap() > 100);
    for made in ["tls", "backup/fetched", "restore.json"] {
        assert!(!lab.lib(made).exists(), "--dry-run left {made}");
    }
}

/// Text that does not pack.
pub fn random_text(seed: u64, length: usize) -> String {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64.wrapping_add(seed);
    (0..length)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            char::from(b'!' + u8::try_from((state >> 33) % 90).unwrap())
        })
        .collect()
}

#[test]
fn a_wrong_secret_is_told_and_the_local_snapshots_go_on() {
    let (mut lab, server) = lab(&Server::new, "");
    let credentials = lab.root.join("credentials");
    fs::write(
        &credentials,
        "AWS_ACCESS_KEY_ID=edge\nAWS_SECRET_ACCESS_KEY=not-this-one\n",
    )
    .unwrap();
    lab.start_agent();
    lab.wait_available();
    assert!(lab.put("a", "1"));
    json(&lab, &["backup", "create"]);
    let status = lab.wait("the reason", |it| {
        condition(it, "BackupHealthy").1 == "CopyFailed"
    });
    let words = status["conditions"].to_string();
    assert!(words.contains("secret"), "{words}");
    assert!(!words.contains("not-this-one"));
    assert!(server.objects().is_empty());
    // The right one is read with the next run, without a restart (rule B15).
    fs::write(
        &credentials,
        format!("AWS_ACCESS_KEY_ID=edge\nAWS_SECRET_ACCESS_KEY={SECRET}\n"),
    )
    .unwrap();
    let copied = json(&lab, &["backup", "copy"]);
    assert_eq!(
        (&copied["copied"], &copied["queued"]),
        (&1.into(), &0.into())
    );
    assert_eq!(server.objects().len(), 2);
}

#[test]
fn a_snapshot_is_deleted_from_the_bucket_too_and_not_copied_again() {
    let (mut lab, server) = lab(&Server::new, "");
    lab.start_agent();
    lab.wait_available();
    let mut names = Vec::new();
    for number in 0..3 {
        assert!(lab.put("a", &number.to_string()));
        let created = json(&lab, &["backup", "create"]);
        names.push(created["snapshot"]["name"].as_str().unwrap().to_owned());
    }
    queued(&lab, 0);
    assert_eq!(server.objects().len(), 6);
    // In the bucket alone: it stays here, and is not sent a second time.
    let rows = json(
        &lab,
        &[
            "backup",
            "delete",
            &names[0],
            "--yes",
            "--at",
            "s3://backup/shops",
        ],
    );
    assert_eq!(rows[0]["deleted"], true, "{rows}");
    assert_eq!(server.objects().len(), 4);
    assert_eq!(json(&lab, &["backup", "copy"])["queued"], 0);
    assert_eq!(server.objects().len(), 4);
    // Everywhere.
    let revision = names[1].rsplit('-').nth(1).unwrap();
    let rows = json(&lab, &["backup", "delete", revision, "--yes"]);
    assert_eq!(rows.as_array().unwrap().len(), 2, "{rows}");
    assert_eq!(server.objects().len(), 2);
    let listed = json(&lab, &["backup", "list"]);
    let left: Vec<&str> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    assert_eq!(left.len(), 3, "{listed:#}");
    assert!(!left.contains(&names[1].as_str()));
    let refused = lab.operator(&["backup", "delete", &names[2], "--yes"]);
    assert_eq!(refused.status.code(), Some(3), "{}", text(&refused.stderr));
    let shown = json(
        &lab,
        &["backup", "show", &names[2], "--at", "s3://backup/shops"],
    );
    assert_eq!(
        shown["path"],
        format!("s3://backup/shops/lab/{}.db.zst", names[2])
    );
}

#[test]
fn retention_of_the_bucket_is_its_own() {
    let (mut lab, server) = lab(&Server::new, ", keep: 2");
    let spec = lab
        .spec
        .replace("  backup:\n", "  backup:\n    interval: 1s\n");
    lab.spec = spec;
    lab.write_document();
    lab.start_agent();
    lab.wait_available();
    fs::write(server.root.join("backup/somebody-elses"), "x").unwrap();
    let begin = Instant::now();
    let mut taken = std::collections::BTreeSet::new();
    while taken.len() < 5 {
        assert!(begin.elapsed() < Duration::from_secs(60), "{}", lab.log());
        assert!(lab.put("a", &begin.elapsed().as_nanos().to_string()));
        for row in json(&lab, &["backup", "list"]).as_array().unwrap() {
            taken.insert(row["name"].as_str().unwrap().to_owned());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    queued(&lab, 0);
    lab.wait("retention", |_| server.objects().len() == 4);
    assert!(server.root.join("backup/somebody-elses").exists());
    // What the first destination keeps and the bucket gave up is not sent again and again.
    let spec = lab.spec.replace("    interval: 1s\n", "");
    lab.spec = spec;
    lab.write_document();
    lab.signal_agent("HUP");
    let copies = || lab.log().matches("snapshot copied and verified").count();
    // A snapshot that was under way is still copied.
    let mut before = usize::MAX;
    for _ in 0..20 {
        queued(&lab, 0);
        if std::mem::replace(&mut before, copies()) == before {
            break;
        }
        std::thread::sleep(Duration::from_secs(2));
    }
    assert!(
        json(
            &lab,
            &["backup", "list", "--at", backups(&lab).to_str().unwrap()]
        )
        .as_array()
        .unwrap()
        .len()
            > 2
    );
    for _ in 0..5 {
        queued(&lab, 0);
        std::thread::sleep(Duration::from_millis(300));
    }
    assert_eq!(copies(), before, "{}", lab.log());
    assert_eq!(server.objects().len(), 4);
}

/// A byte of an object changes, as on a worn disk of the server.
fn damage(server: &Server, name: &str) {
    let path = server.root.join("backup/shops/lab").join(name);
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    fs::write(&path, bytes).unwrap();
}

fn snapshots(server: &Server) -> Vec<String> {
    let all = server.objects().into_iter();
    all.filter(|it| it.ends_with(".db.zst")).collect()
}

/// A host that copies to a bucket and to a second disk, with two snapshots in each place.
fn with_three_places() -> (Lab, Server, [String; 3]) {
    let (mut lab, server) = lab(&Server::new, "");
    let usb = lab.root.join("usb");
    fs::create_dir(&usb).unwrap();
    let spec = format!("{}    - local: {{path: {}}}\n", lab.spec, usb.display());
    lab.spec = spec;
    lab.write_document();
    lab.start_agent();
    lab.wait_available();
    for number in 0..2 {
        assert!(lab.put("a", &number.to_string()));
        json(&lab, &["backup", "create"]);
        queued(&lab, 0);
    }
    let places = [
        backups(&lab).display().to_string(),
        "s3://backup/shops".to_owned(),
        usb.display().to_string(),
    ];
    (lab, server, places)
}

#[test]
fn every_destination_is_listed_shown_verified_and_pruned() {
    let (lab, mut server, places) = with_three_places();
    let rows = |arguments: &[&str]| json(&lab, arguments).as_array().unwrap().clone();
    let all = rows(&["backup", "list"]);
    assert_eq!(all.len(), 6, "{all:#?}");
    let name = all[0]["name"].as_str().unwrap();
    for place in &places {
        let here = rows(&["backup", "list", "--at", place]);
        assert_eq!(here.len(), 2, "{place}");
        assert!(
            here.iter()
                .all(|it| it["destination"] == **place && it["size"].is_u64()),
            "{here:#?}"
        );
        assert_eq!(
            json(&lab, &["backup", "show", name, "--at", place])["name"],
            name
        );
        let checked = rows(&["backup", "verify", "--at", place, name]);
        let level = if place.starts_with("s3") { 2 } else { 3 };
        assert_eq!(checked[0]["level"], level, "{place}");
    }
    let refused = lab.operator(&["backup", "list", "--at", "/elsewhere"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        text(&refused.stderr).contains("s3://backup/shops"),
        "{}",
        text(&refused.stderr)
    );
    // Damage anywhere is found, and is told with its place.
    let object = format!("{name}.db.zst");
    damage(&server, &object);
    let found = lab.operator(&["backup", "verify", "-o", "json"]);
    assert_eq!(found.status.code(), Some(1), "{}", text(&found.stderr));
    let found: serde_json::Value = serde_json::from_slice(&found.stdout).unwrap();
    let found = found.as_array().unwrap();
    assert_eq!(found.len(), 6);
    let problems: Vec<_> = found
        .iter()
        .filter(|it| it["problem"].is_string())
        .collect();
    assert_eq!(problems.len(), 1, "{found:#?}");
    assert_eq!(problems[0]["destination"], "s3://backup/shops");
    assert!(problems[0]["problem"].as_str().unwrap().contains("level 2"));
    // It is sent again, and is whole.
    lab.status();
    lab.wait("the copy", |_| {
        json(&lab, &["backup", "list", "--at", "s3://backup/shops"])[0]["level"] == 3
    });
    queued(&lab, 0);
    assert_eq!(rows(&["backup", "verify", name]).len(), 3);
    // What a person took stays in every place.
    let pruned = rows(&["backup", "prune", "--dry-run"]);
    assert_eq!(pruned.len(), 6);
    assert!(pruned.iter().all(|it| it["removed"] == false));
    // A bucket that cannot be reached: what is known of it, and a warning.
    server.stop();
    let listed = lab.operator(&["backup", "list", "-o", "json"]);
    assert!(
        text(&listed.stderr).contains("warning: s3://backup/shops"),
        "{}",
        text(&listed.stderr)
    );
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 6);
    let unreached = lab.operator(&["backup", "verify", "--at", "s3://backup/shops"]);
    assert_eq!(unreached.status.code(), Some(1));
}

#[test]
fn copies_are_read_back_and_a_damaged_one_is_made_again() {
    let (mut lab, server) = lab(&Server::new, "");
    let usb = lab.root.join("usb");
    fs::create_dir(&usb).unwrap();
    let spec = lab.spec.replace(
        "  backup:\n",
        "  backup:\n    verify: {level: 3, every: 1s}\n",
    );
    lab.spec = format!("{spec}    - local: {{path: {}}}\n", usb.display());
    lab.write_document();
    lab.start_agent();
    lab.wait_available();
    assert!(lab.put("a", "1"));
    json(&lab, &["backup", "create"]);
    queued(&lab, 0);
    lab.wait("copies read back", |it| {
        it["backups"]["copiesChecked"].is_string()
    });
    let object = snapshots(&server).remove(0);
    let sent = server.root.join("backup/shops/lab").join(&object);
    let copied = usb.join("lab").join(&object);
    let whole = fs::read(&sent).unwrap();
    lab.stop_agent();
    damage(&server, &object);
    let mut bytes = fs::read(&copied).unwrap();
    bytes[100] ^= 1;
    fs::write(&copied, bytes).unwrap();
    // Both are due: `verify.every` has passed since either was read last.
    std::thread::sleep(Duration::from_secs(2));
    lab.start_agent();
    let status = lab.wait("the damage", |it| {
        condition(it, "BackupHealthy").1 == "CopyDamaged"
    });
    let words = status["conditions"].to_string();
    for part in [
        "s3://backup/shops",
        "level 2",
        object.strip_suffix(".db.zst").unwrap(),
    ] {
        assert!(words.contains(part), "{words}");
    }
    // The next run makes both again; a person need not wait for it.
    let made = json(&lab, &["backup", "copy"]);
    assert_eq!((&made["copied"], &made["queued"]), (&2.into(), &0.into()));
    assert_eq!(fs::read(&sent).unwrap(), whole);
    assert_eq!(fs::read(&copied).unwrap(), whole);
}

/// Whoever removes the newest brings an older one up.
#[test]
fn snapshots_that_somebody_else_removed_from_a_bucket_are_told_and_sent_again() {
    let (mut lab, server) = lab(&Server::new, "");
    lab.start_agent();
    lab.wait_available();
    let take = |value: &str| {
        assert!(lab.put("a", value));
        let created = json(&lab, &["backup", "create"]);
        queued(&lab, 0);
        created["snapshot"]["name"].as_str().unwrap().to_owned()
    };
    let (_, newest) = (take("1"), take("2"));
    for suffix in [".db.zst", ".json"] {
        let path = format!("backup/shops/lab/{newest}{suffix}");
        fs::remove_file(server.root.join(path)).unwrap();
    }
    take("3");
    lab.wait("the word", |_| {
        let log = lab.log();
        let told = log.lines().find(|it| it.contains("gone from the bucket"));
        told.is_some_and(|it| it.contains(&newest))
    });
    let status = lab.wait("the condition", |it| {
        condition(it, "BackupHealthy").1 == "CopiesVanished"
    });
    let words = status["conditions"].to_string();
    assert!(
        words.contains("1 copies are gone from s3://backup/shops, the newest of revision 3"),
        "{words}"
    );
    lab.wait("the next copy", |_| {
        let _ = lab.operator(&["backup", "copy"]);
        server.objects().len() == 6
    });
}
