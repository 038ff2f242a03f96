//! What an edit does is seen beforehand and done as it was said; what cannot be done waits, and what is in
//! force goes on, over deaths of etcd and of the agent.

use std::fs;
use std::net::TcpListener;
use std::process::Output;
use std::time::Duration;

use serde_json::Value;

use crate::lab::{Lab, condition, free_ports, text};

pub fn born(lines: &[&str]) -> Lab {
    let mut lab = Lab::new("3.6");
    for it in lines {
        lab.add(it);
    }
    lab.start_agent();
    lab.wait_available();
    lab
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("no JSON: {} {}", text(&output.stdout), text(&output.stderr)))
}

/// What `diff` says: the exit code, and each field with its effect.
fn diff(lab: &Lab) -> (i32, Vec<(String, String)>) {
    let output = lab.operator(&["diff", "-o", "json"]);
    let said = json(&output);
    let changes = said["changes"].as_array().unwrap().iter();
    let word = |it: &Value, key: &str| it[key].as_str().unwrap().to_owned();
    let changes = changes.map(|it| (word(it, "path"), word(it, "effect")));
    (output.status.code().unwrap(), changes.collect())
}

fn reload(lab: &Lab) -> Output {
    lab.operator(&["reload"])
}

fn accepted(status: &Value) -> (&str, &str) {
    condition(status, "DocumentAccepted")
}

/// Waits until the document is wholly in force and etcd serves.
fn wait_in_force(lab: &Lab) -> Value {
    lab.wait("the document in force", |it| {
        accepted(it) == ("True", "InForce") && condition(it, "Available").0 == "True"
    })
}

/// A field of the lab's document after the other, each as a person would edit it.
const EDITS: &[(&str, &str, &str)] = &[
    ("spec.profile", "profile: standard", "restart"),
    ("spec.tls.leafDays", "tls: {leafDays: 90}", "live"),
    ("spec.clients", "clients: [{name: till}]", "live"),
    (
        "spec.options.snapshotCount",
        "options: {snapshotCount: 4321}",
        "restart",
    ),
    (
        "spec.options.logLevel",
        "options: {logLevel: warn}",
        "restart",
    ),
    (
        "spec.options.memoryLimit",
        "options: {memoryLimit: 96Mi}",
        "restart",
    ),
    (
        "spec.options.maxRequestSize",
        "options: {maxRequestSize: 2Mi}",
        "restart",
    ),
    (
        "spec.options.maxTransactionOperations",
        "options: {maxTransactionOperations: 256}",
        "restart",
    ),
    (
        "spec.options.autoCompaction.retention",
        "options: {autoCompaction: {retention: 5}}",
        "restart",
    ),
    (
        "spec.maintenance.onNoSpace",
        "maintenance: {onNoSpace: hold}",
        "live",
    ),
    ("spec.deletionPolicy", "deletionPolicy: Delete", "nothing"),
    (
        "spec.pod",
        "pod: {resources: {requests: {memory: 128Mi}}}",
        "nothing",
    ),
    (
        "spec.image",
        "image: quay.io/coreos/etcd:v3.6.14",
        "nothing",
    ),
    (
        "spec.bootstrap",
        "bootstrap: {from: /no/such/file}",
        "nothing",
    ),
    ("spec.paused", "paused: true", "live"),
];

#[test]
fn diff_says_beforehand_what_an_edit_then_does() {
    let lab = &mut born(&[]);
    let unedited = lab.spec.clone();
    assert_eq!(diff(lab), (0, Vec::new()), "nothing differs");
    let snapshots = lab.root.join("snapshots");
    let backup = format!(
        "backup: {{destinations: [{{local: {{path: {}}}}}]}}",
        snapshots.display()
    );
    let backup = ("spec.backup", backup.as_str(), "live");
    for (path, line, effect) in EDITS.iter().copied().chain([backup]) {
        for (line, back) in [(Some(line), false), (None, true)] {
            lab.spec.clone_from(&unedited);
            lab.write_document();
            if let Some(line) = line {
                lab.add(line);
            }
            let (code, said) = diff(lab);
            let path = path.to_owned();
            assert_eq!(said, [(path.clone(), effect.to_owned())], "{path} {back}");
            assert_eq!(code, 0, "{path}");
            // The plan knows the document on disk; it is no other one than diff's.
            let plan = lab.operator(&["plan"]);
            let page = text(&plan.stdout);
            assert!(
                page.contains(&path) && !page.contains("there is nothing to do"),
                "{page}"
            );
            let before = lab.etcd_pid();
            let output = reload(lab);
            assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
            assert!(
                text(&output.stdout).contains(&path),
                "{}",
                text(&output.stdout)
            );
            wait_in_force(lab);
            let restarted = lab.etcd_pid() != before;
            assert_eq!(restarted, effect == "restart", "{path} {back}");
            assert_eq!(diff(lab), (0, Vec::new()), "{path} {back}");
            let plan = lab.operator(&["plan"]);
            let page = text(&plan.stdout);
            assert_eq!(
                page.contains("hold: Paused"),
                path == "spec.paused" && !back,
                "{page}"
            );
        }
    }
    assert!(lab.put("still", "served"));
}

#[test]
fn what_waits_or_is_refused_is_told_with_its_reason_before_and_after() {
    let lab = &mut born(&["storage: {quota: 64Mi}"]);
    let unedited = lab.spec.clone();
    let version = lab.version.clone();
    let name = lab.name.clone();
    let pid = lab.etcd_pid();
    let mut refused =
        |edit: &dyn Fn(&mut Lab), path: &str, reason: &str, words: &str, code: i32| {
            edit(lab);
            lab.write_document();
            let output = lab.operator(&["diff"]);
            let page = text(&output.stdout);
            assert_eq!(output.status.code(), Some(3), "{page}");
            assert!(page.contains(path) && page.contains(reason), "{page}");
            assert!(page.contains(words) && page.contains("next: "), "{page}");
            let plan = lab.operator(&["plan"]);
            assert_eq!(plan.status.code(), Some(3), "{}", text(&plan.stdout));
            let output = reload(lab);
            assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
            let said = text(&output.stdout) + &text(&output.stderr);
            assert!(said.contains(words), "{said}");
            let status = lab.wait("told", |it| it["conditions"].to_string().contains(reason));
            assert_ne!(accepted(&status), ("True", "InForce"), "{status:#}");
            assert_eq!(condition(&status, "Available").0, "True");
            // Also when the file is what was last read: it is not in force.
            assert!(!text(&lab.operator(&["plan"]).stdout).contains("there is nothing to do"));
            assert_eq!(lab.operator(&["diff"]).status.code(), Some(3));
            lab.spec.clone_from(&unedited);
            lab.version.clone_from(&version);
            lab.name.clone_from(&name);
            lab.write_document();
            assert_eq!(reload(lab).status.code(), Some(0));
            wait_in_force(lab);
        };
    refused(
        &|lab| lab.spec = lab.spec.replace("64Mi", "32Mi"),
        "spec.storage.quota",
        "QuotaSmaller",
        "the document asks for a quota of 32 MiB, and 64 MiB are in force, of which the database takes 1 MiB",
        3,
    );
    refused(
        &|lab| lab.version = "3.5.30".to_owned(),
        "spec.version",
        "UpgradeNotAllowed",
        "etcd 3.5.30 cannot follow etcd",
        3,
    );
    refused(
        &|lab| lab.name = "other".to_owned(),
        "metadata.name",
        "DocumentOfAnotherCluster",
        "this host keeps the cluster lab",
        2,
    );
    assert_eq!(lab.etcd_pid(), pid, "nothing of it restarts etcd");
}

/// How a document can be spoilt, and a word of what is said of it.
const SPOILT: &[(&str, &str)] = &[
    ("profil: edge", "did you mean profile?"),
    (
        "size: 3",
        "more than 1 member is not supported on hosts yet",
    ),
    ("size: one", "a whole number"),
    ("backup: {destinations: []}", "spec.backup.destinations"),
    ("tls: {leafDays: 1}", "spec.tls.leafDays"),
    ("storage: {quota: 2Gb}", "spec.storage"),
    ("network: {}", "appears twice"),
    ("options: [", "not valid YAML"),
    ("profile: fast", "one of edge, standard"),
    ("\tpaused: true", "not valid YAML"),
];

#[test]
fn a_refused_document_is_told_and_the_last_sound_one_goes_on_over_every_death() {
    let mut lab = born(&["clients: [{name: till}]"]);
    let unedited = lab.spec.clone();
    spoil(&mut lab);
    // A file that is gone is no other thing. Read twice, it is told of once in the log.
    fs::remove_file(lab.document_path()).unwrap();
    for _ in 0..2 {
        lab.signal_agent("HUP");
        lab.wait("told", |it| accepted(it) == ("False", "DocumentUnreadable"));
    }
    let told = lab.log().matches("there is no document").count();
    assert_eq!(told, 1, "{}", lab.log());
    everything_dies(&mut lab);
    lab.spec = unedited;
    lab.write_document();
    assert_eq!(reload(&lab).status.code(), Some(0));
    wait_in_force(&lab);
}

/// Each way to spoil the document is told, and etcd runs on.
fn spoil(lab: &mut Lab) {
    let unedited = lab.spec.clone();
    let pid = lab.etcd_pid();
    for (line, words) in SPOILT {
        lab.add(line);
        let output = reload(lab);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {said}");
        assert!(
            said.contains(words) && said.contains("cluster.yaml: "),
            "{line}: {said}"
        );
        let status = lab.status_now();
        assert_eq!(
            accepted(&status),
            ("False", "SpecInvalid"),
            "{line}: {status:#}"
        );
        assert_eq!(condition(&status, "Degraded").0, "True", "{line}");
        assert_eq!(condition(&status, "Available").0, "True", "{line}");
        let plan = lab.operator(&["plan"]);
        assert_eq!(
            plan.status.code(),
            Some(2),
            "{line}: {}",
            text(&plan.stdout)
        );
        assert!(text(&plan.stderr).contains(words), "{line}");
        assert_eq!(lab.operator(&["diff"]).status.code(), Some(2), "{line}");
        lab.spec.clone_from(&unedited);
    }
    assert_eq!(lab.etcd_pid(), pid);
}

/// Everything dies, as in a power cut: what comes back is what was sound.
fn everything_dies(lab: &mut Lab) {
    lab.spec.push_str("  profil: edge\n  sise: 1\n");
    lab.write_document();
    lab.kill_agent();
    lab.kill_etcd();
    fs::remove_dir_all(lab.run("")).unwrap();
    lab.start_agent();
    let status = lab.wait_available();
    assert_eq!(accepted(&status), ("False", "SpecInvalid"));
    let since = |status: &Value| {
        let all = status["conditions"].as_array().unwrap();
        let it = all.iter().find(|it| it["type"] == "DocumentAccepted");
        let it = it.unwrap();
        assert!(
            it["message"].as_str().unwrap().contains("(and 1 more"),
            "{it}"
        );
        it["lastTransitionTime"].clone()
    };
    let began = since(&status);
    assert!(lab.lib("tls/clients/till").exists());
    let told = lab.log().matches("spec.sise").count();
    assert_eq!(told, 1, "{}", lab.log());
    // Since when, over a restart of the agent.
    lab.stop_agent();
    std::thread::sleep(Duration::from_millis(1100));
    lab.start_agent();
    assert_eq!(since(&lab.wait_available()), began);
    // Without an agent the same is seen.
    lab.stop_agent();
    let status = lab.status();
    assert_eq!(accepted(&status), ("False", "SpecInvalid"));
    assert_eq!(status["host"]["etcd"]["pid"], lab.etcd_pid().unwrap());
    lab.start_agent();
    lab.wait_available();
}

#[test]
fn an_agent_that_never_had_a_sound_document_ends_with_2() {
    let mut lab = Lab::new("3.6");
    lab.add("profil: edge");
    lab.add("sise: 1");
    lab.start_agent();
    assert_eq!(lab.agent_exit(), 2);
    assert!(lab.log().contains("spec.profil") && lab.log().contains("spec.sise"));
}

#[test]
fn a_file_that_the_command_line_names_is_the_one_that_is_looked_at() {
    let mut lab = born(&[]);
    let other = lab.root.join("other.yaml");
    let path = other.to_str().unwrap().to_owned();
    let commands = [
        &["status"][..],
        &["plan"],
        &["env"],
        &["preflight", "--skip-disk"],
    ];
    let run = |lab: &Lab, command: &[&str]| {
        let mut arguments = vec!["--config", path.as_str()];
        arguments.extend(command);
        let output = lab.operator(&arguments);
        let said = text(&output.stdout) + &text(&output.stderr);
        (output.status.code().unwrap(), said)
    };
    for agent in [true, false] {
        // A broken one, with every problem.
        fs::write(
            &other,
            format!("{}  profil: edge\n  sise: 1\n", lab.document()),
        )
        .unwrap();
        for command in commands {
            let (code, said) = run(&lab, command);
            let wanted = if command[0] == "preflight" { 1 } else { 2 };
            assert_eq!(code, wanted, "{command:?} agent {agent}: {said}");
            assert!(
                said.contains("spec.profil"),
                "{command:?} agent {agent}: {said}"
            );
            assert!(
                said.contains("spec.sise"),
                "{command:?} agent {agent}: {said}"
            );
        }
        // One that differs: what runs is told of, and that it is not that one.
        fs::write(&other, format!("{}  profile: standard\n", lab.document())).unwrap();
        let (_, said) = run(&lab, &["plan"]);
        assert!(
            said.contains("spec.profile") && said.contains("standard"),
            "{said}"
        );
        assert!(!said.contains("there is nothing to do"), "{said}");
        if agent {
            for command in ["status", "env"] {
                let (code, said) = run(&lab, &[command]);
                assert_eq!(code, 0, "{said}");
                assert!(
                    said.contains("whose document is") && said.contains("cluster.yaml"),
                    "{said}"
                );
                assert!(said.contains("differs from it in 1 field"), "{said}");
            }
            lab.stop_agent();
        }
    }
    let (code, said) = run(&lab, &["diff"]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("spec.profile"), "{said}");
    let output = lab.operator(&["diff", "/no/such/file"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("/no/such/file"));
    let reload = reload(&lab);
    assert_eq!(reload.status.code(), Some(1));
    assert!(
        text(&reload.stderr).contains("no agent answers"),
        "{}",
        text(&reload.stderr)
    );
}

#[test]
fn an_edit_that_cannot_be_started_waits_and_what_worked_comes_back() {
    let lab = &mut born(&[]);
    let [client, ..] = lab.ports;
    let env = text(&lab.operator(&["env"]).stdout);
    let (free, _claims) = crate::lab::free_ports();
    let holder = TcpListener::bind(("127.0.0.1", free[0])).unwrap();
    let port = lab.document().replace(
        &format!("clientPort: {client}"),
        &format!("clientPort: {}", free[0]),
    );
    let address = lab
        .document()
        .replace("[127.0.0.1]", "[127.0.0.1, 192.0.2.7]");
    let moved = format!("{}  storage: {{path: /no/such/disk}}\n", lab.document());
    let edits = [
        (port.clone(), "PortTaken"),
        (address, "AddressGone"),
        (
            moved.replace("  storage: {unsafeFilesystem: allow}\n", ""),
            "StorageMissing",
        ),
    ];
    for (document, reason) in edits {
        fs::write(lab.document_path(), &document).unwrap();
        waits(lab, reason, &env);
        lab.write_document();
        assert_eq!(reload(lab).status.code(), Some(0));
        wait_in_force(lab);
    }
    // The port becomes free: what waited is done by itself.
    fs::write(lab.document_path(), port).unwrap();
    reload(lab);
    lab.wait_hold("PortTaken");
    drop(holder);
    let status = wait_in_force(lab);
    let url = format!("https://127.0.0.1:{}", free[0]);
    assert_eq!(status["host"]["etcd"]["clientURL"], url.as_str());
    lab.ports[0] = free[0];
    assert_eq!(lab.get("PortTaken").as_deref(), Some("acknowledged"));
}

/// The document's edit waits with this reason; etcd serves as before, also after it has died.
fn waits(lab: &mut Lab, reason: &str, env: &str) {
    let [client, ..] = lab.ports;
    let before = lab.etcd_pid();
    let (code, said) = diff(lab);
    assert_eq!(code, 3, "{reason}: {said:?}");
    assert!(said.iter().any(|(_, effect)| effect == "waits"), "{said:?}");
    assert_eq!(reload(lab).status.code(), Some(3), "{reason}");
    let status = lab.wait_hold(reason);
    for round in 0..2 {
        let status = if round == 0 {
            status.clone()
        } else {
            // It dies: it comes back with what worked, and the edit still waits.
            lab.kill_etcd();
            lab.wait("etcd again", |it| {
                condition(it, "Available").0 == "True" && it["plan"]["hold"] == reason
            })
        };
        // What is told is what is in force: an etcd that serves.
        assert_eq!(
            condition(&status, "Available").0,
            "True",
            "{reason}: {status:#}"
        );
        assert_eq!(accepted(&status), ("True", "Waits"), "{reason}: {status:#}");
        let url = format!("https://127.0.0.1:{client}");
        assert_eq!(
            status["host"]["etcd"]["clientURL"],
            url.as_str(),
            "{reason}"
        );
        let data = status["host"]["etcd"]["dataDir"].as_str().unwrap();
        assert!(
            data.starts_with(lab.root.to_str().unwrap()),
            "{reason}: {data}"
        );
        assert_eq!(text(&lab.operator(&["env"]).stdout), env, "{reason}");
        assert!(lab.put(reason, "acknowledged"));
        assert_eq!(lab.etcd_pid() == before, round == 0, "{reason}");
    }
    // And once more with nobody but the command to look.
    lab.stop_agent();
    assert_eq!(text(&lab.operator(&["env"]).stdout), env, "{reason}");
    lab.start_agent();
    lab.wait_hold(reason);
    lab.wait_available();
    assert_eq!(lab.get(reason).as_deref(), Some("acknowledged"));
}

/// Whether a client reaches etcd at an address of its own choice, by a name that its certificate has.
fn reaches(lab: &Lab, address: &str) -> bool {
    let files = lab.lib("tls/clients/admin");
    let file = |name: &str| files.join(name);
    let status = std::process::Command::new(lab.etcd.join("etcdctl"))
        .env_clear()
        .arg(format!("--endpoints=https://{address}:{}", lab.ports[0]))
        .args(["--dial-timeout=3s", "--command-timeout=5s"])
        .arg("--cacert")
        .arg(file("ca.crt"))
        .arg("--cert")
        .arg(file("client.crt"))
        .arg("--key")
        .arg(file("client.key"))
        .args(["get", "anything"])
        .stderr(std::process::Stdio::null())
        .status();
    status.unwrap().success()
}

#[test]
fn clients_of_an_address_that_is_in_force_go_on_while_another_one_is_waited_for() {
    let lab = &mut born(&[]);
    let unedited = lab.document();
    let listen = |lab: &Lab, addresses: &str| {
        let document = unedited.replace("[127.0.0.1]", addresses);
        fs::write(lab.document_path(), document).unwrap();
        reload(lab);
    };
    listen(lab, "[127.0.0.1, 127.0.0.2]");
    wait_in_force(lab);
    assert!(reaches(lab, "127.0.0.2"));
    // What was proven of the process before is not proven of the one that it was restarted as.
    let log = lab.log();
    let (_, since) = log.split_once("restart etcd").unwrap();
    assert!(since.contains("a write is being tried"), "{log}");
    let serial = || fs::read(lab.lib("tls/current/server.crt")).unwrap();
    let before = serial();
    listen(lab, "[127.0.0.1, 192.0.2.7]");
    lab.wait_hold("AddressGone");
    lab.wait("the certificate for both", |_| serial() != before);
    assert!(reaches(lab, "127.0.0.2"));
    let status = lab.wait_available();
    assert_eq!(status["plan"]["hold"], "AddressGone");
    // Of what comes back after its death the same is true.
    lab.kill_etcd();
    lab.wait_available();
    assert!(reaches(lab, "127.0.0.2"));
}

#[test]
fn data_that_a_person_moved_is_found_where_the_document_says_it_is() {
    let lab = &mut born(&[]);
    assert!(lab.put("kept", "1"));
    let unedited = lab.spec.clone();
    let disk = lab.root.join("disk");
    fs::create_dir(&disk).unwrap();
    // While etcd runs, a directory without its data is no place for it.
    lab.store_at(&disk);
    assert_eq!(diff(lab).0, 3);
    assert_eq!(reload(lab).status.code(), Some(3));
    let status = lab.wait_hold("DataDirMissing");
    assert_eq!(condition(&status, "Available").0, "True");
    // What the texts say: stop it, move the data, name its place, start it.
    lab.spec = format!("{unedited}  size: 0\n");
    lab.write_document();
    assert_eq!(reload(lab).status.code(), Some(0));
    lab.wait("stopped", |it| condition(it, "Available").1 == "SizeZero");
    for name in ["data", "identity.json"] {
        let moved = std::process::Command::new("cp")
            .arg("-a")
            .arg(lab.lib("member").join(name))
            .arg(&disk)
            .status();
        assert!(moved.unwrap().success());
    }
    lab.store_at(&disk);
    let (code, said) = diff(lab);
    assert_eq!(code, 0, "{said:?}");
    let said = said.iter().map(|(_, effect)| effect.as_str());
    assert_eq!(said.collect::<Vec<_>>(), ["start", "nextStart"]);
    assert_eq!(reload(lab).status.code(), Some(0));
    let status = wait_in_force(lab);
    let data = status["host"]["etcd"]["dataDir"].as_str().unwrap();
    assert!(data.starts_with(disk.to_str().unwrap()), "{data}");
    assert_eq!(lab.get("kept").as_deref(), Some("1"));
}

#[test]
fn listening_addresses_change_to_a_wildcard_and_back_with_one_restart_each() {
    let lab = &mut born(&[]);
    let unedited = lab.document();
    let listen = |lab: &Lab, addresses: &str| {
        let document = unedited.replace("[127.0.0.1]", addresses);
        fs::write(lab.document_path(), document).unwrap();
    };
    assert!(lab.put("kept", "1"));
    let ways = [
        "[0.0.0.0]",
        "[127.0.0.1]",
        "['::']",
        "[127.0.0.1, 127.0.0.2]",
        "[0.0.0.0]",
        "[127.0.0.2, 127.0.0.1]",
        "[127.0.0.1, 0.0.0.0]",
        "[127.0.0.3]",
        "[127.0.0.1]",
    ];
    for addresses in ways {
        listen(lab, addresses);
        let (code, said) = diff(lab);
        assert_eq!(code, 0, "{addresses}: {said:?}");
        let (before, started) = (lab.etcd_pid(), lab.log().matches("restart etcd").count());
        assert_eq!(reload(lab).status.code(), Some(0), "{addresses}");
        let status = wait_in_force(lab);
        assert_ne!(lab.etcd_pid(), before, "{addresses}");
        let restarts = lab.log().matches("restart etcd").count() - started;
        assert_eq!(restarts, 1, "{addresses}: {}", lab.log());
        assert!(status["plan"]["hold"].is_null(), "{addresses}: {status:#}");
        if !addresses.contains("127.0.0.3") {
            assert_eq!(lab.get("kept").as_deref(), Some("1"), "{addresses}");
        }
    }
    // Somebody else holds an address that a wildcard would cover: it is that one that is named.
    let stranger = TcpListener::bind(("127.0.0.4", lab.ports[0])).unwrap();
    listen(lab, "[0.0.0.0]");
    assert_eq!(diff(lab).0, 3);
    let before = lab.etcd_pid();
    assert_eq!(reload(lab).status.code(), Some(3));
    let status = lab.wait_hold("PortTaken");
    let message = status["plan"]["message"].as_str().unwrap();
    assert!(
        message.contains(&format!("pid {}", std::process::id())),
        "{message}"
    );
    assert_eq!(condition(&status, "Available").0, "True");
    assert_eq!(lab.etcd_pid(), before);
    drop(stranger);
    wait_in_force(lab);
    assert_eq!(lab.get("kept").as_deref(), Some("1"));
}

/// The quota that the running etcd was started with, in MiB.
fn quota_in_force(lab: &Lab) -> u64 {
    let log = fs::read_to_string(lab.lib("member/log/etcd.log")).unwrap();
    let started = log
        .lines()
        .rev()
        .find(|it| it.contains("starting an etcd server"));
    let line: Value = serde_json::from_str(started.unwrap()).unwrap();
    line["quota-backend-bytes"].as_u64().unwrap() >> 20
}

#[test]
fn the_quota_grows_by_one_restart_and_never_shrinks() {
    let lab = &mut born(&["storage: {quota: 64Mi}"]);
    assert_eq!(quota_in_force(lab), 64);
    let pid = lab.etcd_pid();
    // Smaller: etcd runs on with what it has, also over its death and the agent's.
    lab.spec = lab.spec.replace("64Mi", "32Mi");
    lab.write_document();
    reload(lab);
    let status = lab.wait_hold("QuotaSmaller");
    assert_eq!(accepted(&status), ("False", "QuotaSmaller"));
    let message = status["plan"]["message"].as_str().unwrap();
    assert!(
        message.contains("32 MiB") && message.contains("64 MiB"),
        "{message}"
    );
    assert_eq!(lab.etcd_pid(), pid);
    lab.kill_agent();
    lab.kill_etcd();
    lab.start_agent();
    lab.wait_hold("QuotaSmaller");
    lab.wait_available();
    assert_eq!(quota_in_force(lab), 64);
    // Larger, beside another edit: one restart for both.
    let started = lab.log().matches("restart etcd").count();
    lab.spec = lab.spec.replace("32Mi", "128Mi");
    lab.add("profile: standard");
    let (code, said) = diff(lab);
    assert_eq!(code, 0);
    let word = |it: &str| it.to_owned();
    let expected = [
        ("spec.profile", "restart"),
        ("spec.storage.quota", "restart"),
    ];
    assert_eq!(said, expected.map(|(one, other)| (word(one), word(other))));
    reload(lab);
    wait_in_force(lab);
    assert_eq!(quota_in_force(lab), 128);
    assert_eq!(lab.log().matches("restart etcd").count() - started, 1);
    for name in ["identity.json", "launch.json"] {
        let record = fs::read_to_string(lab.lib(&format!("member/{name}"))).unwrap();
        assert!(record.contains("134217728"), "{name}: {record}");
    }
    // What is left out stays as it is.
    lab.spec = lab.spec.replace("quota: 128Mi", "unsafeFilesystem: refuse");
    let unsafe_allowed = lab.spec.matches("unsafeFilesystem: allow").count() > 0;
    if unsafe_allowed {
        lab.spec = lab.spec.replace("unsafeFilesystem: refuse, ", "");
    }
    lab.write_document();
    let pid = lab.etcd_pid();
    assert_eq!(reload(lab).status.code(), Some(0));
    wait_in_force(lab);
    assert_eq!((lab.etcd_pid(), quota_in_force(lab)), (pid, 128));
}

/// A cluster of one that moves before it grows: new members would look for it where it was.
#[test]
fn an_edited_peer_port_is_told_to_the_member_list() {
    let lab = &mut born(&[]);
    assert!(lab.put("kept", "1"));
    let pid = lab.etcd_pid();
    let (ports, _claims) = free_ports();
    lab.ports[1] = ports[1];
    lab.write_document();
    assert!(reload(lab).status.success());
    let url = format!("https://127.0.0.1:{}", ports[1]);
    lab.wait("the new peer URL", |_| {
        let list = lab.etcdctl(&["member", "list", "-w", "json"]);
        text(&list.stdout).contains(&url)
    });
    wait_in_force(lab);
    assert_ne!(lab.etcd_pid(), pid, "it listens there");
    assert!(TcpListener::bind(("127.0.0.1", ports[1])).is_err());
    assert_eq!(lab.get("kept").as_deref(), Some("1"));
    let log = lab.log();
    assert_eq!(log.matches("changed the member list").count(), 1, "{log}");
}
