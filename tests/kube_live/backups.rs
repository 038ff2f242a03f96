//! Backups in Kubernetes: a bucket that has what the node lost, and an API server that goes away in the
//! middle of a backup and of a restore.

use std::time::{Duration, Instant};

use crate::bucket::{SECRET, Server, WRONG, secret, tells_a_key};
use crate::claims::directory;
use crate::cluster::Mark;
use crate::lab::SOON;
use crate::operated::{Operated, document, pass};
use crate::writer::Writer;

/// A cluster with a bucket, a snapshot of its first key in it; what its document says of backups.
pub fn with_a_bucket() -> Option<(Operated, Server, String)> {
    let it = Operated::up()?;
    let server = Server::start(&it);
    let backup = format!(
        "backup: {{interval: 24h, destinations: [{{local: {{keep: 5}}}}, {}]}}",
        server.destination("keys")
    );
    it.apply(&secret("keys", SECRET));
    it.apply(&document("EtcdCluster", "till", &format!("{{{backup}}}")));
    it.available("till");
    it.put("till", "first", "1");
    let first = take(&it, "first");
    server.gets(&it, &first);
    it.says("till", "BackupHealthy", "Verified");
    Some((it, server, backup))
}

#[test]
fn a_bucket_whose_keys_are_wrong_or_taken_away_is_told_and_its_keys_are_told_to_nobody() {
    let Some((it, server, _)) = with_a_bucket() else {
        return;
    };
    wrong_keys(&it, &server);
    no_keys(&it, &server);
    nobody_is_told_the_keys(&it, "");
}

#[test]
fn a_bucket_has_what_the_node_lost_and_its_keys_are_told_to_nobody() {
    let Some((it, server, backup)) = with_a_bucket() else {
        return;
    };
    it.put("till", "second", "2");
    it.put("till", "third", "3");
    let newest = take(&it, "newest");
    server.gets(&it, &newest);
    let told = brought_back_from_the_bucket(&it, &newest);
    nobody_is_told_the_keys(&it, &told);
    the_data_is_lost(&it, &backup);
    a_replaced_node(&it, &backup);
    nobody_is_told_the_keys(&it, "");
}

/// Asks for a snapshot; its name.
pub fn take(it: &Operated, name: &str) -> String {
    let spec = "{cluster: till}";
    it.apply(&document("EtcdBackup", name, spec));
    let taken = it.phase("etcdbackup", name, "Succeeded");
    assert_eq!(taken["status"]["level"], 3, "{taken}");
    taken["status"]["snapshot"].as_str().unwrap().to_owned()
}

/// Nobody restarts anything: the keys are read anew for each run.
fn wrong_keys(it: &Operated, server: &Server) {
    it.apply(&secret("keys", WRONG));
    reaches_the_worker(it, Some(WRONG));
    it.put("till", "second", "2");
    let second = take(it, "second");
    let told = it.says("till", "BackupHealthy", "CopyFailed");
    assert_eq!(told["status"], "False");
    let message = told["message"].as_str().unwrap();
    assert!(
        message.contains("the S3 server refuses the keys"),
        "{message}"
    );
    assert!(!server.holds().iter().any(|it| it.contains(&second)));
    it.apply(&secret("keys", SECRET));
    reaches_the_worker(it, Some(SECRET));
    // Else it is tried again after a minute, and later and later.
    let begun = Instant::now();
    assert_eq!(take(it, "again"), second, "nothing was written since");
    it.says("till", "BackupHealthy", "Verified");
    println!("right keys to BackupHealthy: {:.1?}", begun.elapsed());
    server.gets(it, &second);
}

/// The kubelet brings an edited Secret into a Pod that runs within a minute or two.
fn reaches_the_worker(it: &Operated, key: Option<&str>) {
    let uid = it.uid("pod", "till-backup").unwrap();
    let dir = format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~secret/s3-1");
    let file = it.path(1, &dir).join("credentials");
    it.eventually("the keys in the worker's Pod", 2 * SOON, || {
        let there = std::fs::read_to_string(&file).ok();
        let same = match key {
            Some(key) => there?.contains(key),
            None => there.is_none(),
        };
        same.then_some(())
    });
}

/// Keys that are taken away are used no longer.
fn no_keys(it: &Operated, server: &Server) {
    it.kubectl(&["delete", "secret", "keys"]).good();
    reaches_the_worker(it, None);
    it.put("till", "third", "3");
    let third = take(it, "third");
    let told = it.says("till", "BackupHealthy", "CopyFailed");
    let message = told["message"].as_str().unwrap();
    assert!(message.contains("the Secret keys"), "{message}");
    it.eventually("an Event of it", SOON, || {
        let events = it.events("default");
        let mut missing = events
            .iter()
            .filter(|(reason, _)| reason == "SecretMissing");
        missing.any(|(_, text)| text.contains("keys")).then_some(())
    });
    assert!(!server.holds().iter().any(|it| it.contains(&third)));
    it.apply(&secret("keys", SECRET));
    reaches_the_worker(it, Some(SECRET));
    take(it, "once-more");
    server.gets(it, &third);
}

/// What the restore's Pod said.
fn brought_back_from_the_bucket(it: &Operated, snapshot: &str) -> String {
    it.put("till", "second", "after");
    it.put("till", "lost", "after");
    forget_snapshots(it);
    let begun = Instant::now();
    it.ask_for_restore("till", "back");
    let mut said = String::new();
    let restored = it.eventually("the restore", SOON, || {
        let now = it.log_on(1, "till-restore");
        if !now.is_empty() {
            said = now; // it goes with the Pod
        }
        let restore = it.try_json(&["get", "etcdrestore", "back"])?;
        let phase = restore["status"]["phase"].as_str()?;
        assert_ne!(phase, "Failed", "{restore}\n{said}");
        (phase == "Succeeded").then_some(restore)
    });
    assert_eq!(restored["status"]["snapshot"], snapshot, "{restored}");
    assert_eq!(restored["status"]["revisionsLost"], 2, "{restored}");
    it.available("till");
    println!("restore from the bucket: {:.1?}", begun.elapsed());
    assert_eq!(it.get("till", "first"), "1");
    assert_eq!(it.get("till", "second"), "2");
    assert_eq!(it.get("till", "third"), "3");
    assert_eq!(it.get("till", "lost"), "");
    said
}

/// By hand, as somebody would who makes room.
fn forget_snapshots(it: &Operated) {
    let dir = it.path(1, &directory(it, "till-snapshots")).join("till");
    let files: Vec<_> = std::fs::read_dir(&dir).unwrap().flatten().collect();
    assert!(!files.is_empty());
    for file in files {
        std::fs::remove_file(file.path()).unwrap();
    }
}

fn nobody_is_told_the_keys(it: &Operated, more: &str) {
    let all = |what: &str| it.kubectl(&["get", what, "-A", "-o", "json"]).good();
    assert!(tells_a_key(&all("secrets")), "it would be found");
    let objects = "etcdclusters,etcdbackups,etcdrestores,pods,events,configmaps,leases";
    let mut texts = vec![all(objects), it.operator_log(), more.to_owned()];
    let mut dirs = vec![it.path(1, "/var/log/pods")];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            if entry.path().is_dir() {
                dirs.push(entry.path());
            } else {
                texts.extend(std::fs::read_to_string(entry.path()));
            }
        }
    }
    assert!(texts.len() > 6, "logs of Pods are among them");
    for text in texts {
        assert!(!tells_a_key(&text), "{text}");
    }
}

/// The data and the local snapshots are gone. The Secret with its identity says that there was data: no
/// new cluster is made in its place, unless a person asks.
fn the_data_is_lost(it: &Operated, backup: &str) {
    lose(it);
    let spec = format!("{{bootstrap: {{from: latest}}, {backup}}}");
    it.apply(&document("EtcdCluster", "till", &spec));
    it.says("till", "Degraded", "DataDirMissing");
    // Each time that the guard looks again, it stands there anew.
    it.eventually("the next step", SOON, || {
        let plan = it.cluster("till")["status"]["plan"].clone();
        let next = plan["nextStep"].as_str()?.to_owned();
        next.contains("restore a snapshot").then_some(())
    });
    let begun = Instant::now();
    it.restored("till", "again");
    it.available("till");
    println!("lost data from the bucket: {:.1?}", begun.elapsed());
    assert_eq!(it.get("till", "first"), "1");
    assert_eq!(it.get("till", "second"), "2");
    assert_eq!(it.get("till", "third"), "3");
}

/// Nothing of the cluster is left but the bucket, and the key that its status showed.
fn a_replaced_node(it: &Operated, backup: &str) {
    let key = it.eventually("the key in the status", SOON, || {
        let told = it.cluster("till")["status"]["backups"]["signer"].clone();
        told.as_str().map(str::to_owned)
    });
    let key = key.as_str();
    lose(it);
    it.kubectl(&["delete", "secret", "till-ca"]).good();
    let spec = |backup: &str| format!("{{bootstrap: {{from: latest}}, {backup}}}");
    it.apply(&document("EtcdCluster", "till", &spec(backup)));
    it.eventually("the signer to be told", SOON, || {
        let plan = it.cluster("till")["status"]["plan"].clone();
        let held = plan["hold"] == "RestoreFailed";
        (held && plan["message"].as_str()?.contains(key)).then_some(())
    });
    let begun = Instant::now();
    let pinned = format!("backup: {{trustedSigners: ['{key}'], ");
    let pinned = backup.replacen("backup: {", &pinned, 1);
    it.apply(&document("EtcdCluster", "till", &spec(&pinned)));
    it.available("till");
    println!("bootstrap from the bucket: {:.1?}", begun.elapsed());
    assert_eq!(it.get("till", "first"), "1");
    assert_eq!(it.get("till", "second"), "2");
    assert_eq!(it.get("till", "third"), "3");
}

fn lose(it: &Operated) {
    it.kubectl(&["delete", "etcdcluster", "till"]).good();
    it.gone(&["pod", "till-0"]);
    it.gone(&["pod", "till-backup"]);
    it.kubectl(&["delete", "pvc", "data-till-0", "till-snapshots"])
        .good();
}

/// A cluster with so many revisions was restored.
const JUMP: i64 = 1_000_000_000;
/// How long the API server is away, in seconds: long enough for what was begun to end meanwhile. The longer
/// it is, the longer the scheduler and the kubelet wait before they ask again, up to 30 s.
const AWAY: u64 = 8;

#[test]
fn a_backup_and_a_restore_end_as_asked_and_once_where_the_api_server_goes_away_in_the_middle() {
    let Some(it) = Operated::up() else {
        return;
    };
    let spec = "{backup: {interval: 24h, destinations: [{local: {keep: 5}}]}}";
    it.apply(&document("EtcdCluster", "till", spec));
    it.available("till");
    it.says("till", "BackupHealthy", "Verified");
    let writer = Writer::new(&it, 1, "till");
    writer.fill(60);
    it.put("till", "kept", "before");
    backed_up_meanwhile(&it, &writer);
    // Before the member is stopped, and while the restore's Pod works.
    restored_meanwhile(&it, "early", || {
        let asked = it.try_json(&["get", "etcdrestore", "early"])?;
        (asked["status"]["phase"] == "Running").then_some(())
    });
    restored_meanwhile(&it, "late", || {
        let pod = it.try_json(&["get", "pod", "till-restore"])?;
        let state = &pod["status"]["containerStatuses"][0]["state"];
        state["running"].is_object().then_some(())
    });
}

/// Away in the middle of what this begins, and back.
fn away(it: &Operated) {
    it.api_stop();
    pass(AWAY);
    it.api_start();
}

fn backed_up_meanwhile(it: &Operated, writer: &Writer) {
    let before = snapshots(it);
    let since = it.mark();
    // What is written meanwhile would be in a second snapshot.
    let gap = writer.longest_gap(|| {
        it.apply(&document("EtcdBackup", "now", "{cluster: till}"));
        it.eventually("the backup to be under way", SOON, || {
            let asked = it.try_json(&["get", "etcdbackup", "now"])?;
            (!asked["status"]["phase"].is_null()).then_some(())
        });
        it.api_stop();
        let told = requests(it, since, "patch", "etcdbackups/status", "now");
        assert_eq!(told, 1, "it is under way, and has not ended");
        pass(AWAY);
        it.api_start();
    });
    println!(
        "API server away in the middle of a backup: longest time between two writes {gap:.1?}"
    );
    assert!(gap < Duration::from_secs(2), "{gap:?}");
    let begun = Instant::now();
    let taken = it.phase("etcdbackup", "now", "Succeeded");
    println!("API server back to Succeeded: {:.1?}", begun.elapsed());
    pass(3);
    let snapshot = taken["status"]["snapshot"].as_str().unwrap();
    let mut new = snapshots(it);
    new.retain(|it| !before.contains(it));
    let is_its = |it: &String| it.starts_with(snapshot);
    assert!(
        !new.is_empty() && new.iter().all(is_its),
        "{new:?}, {taken}"
    );
    assert_eq!(
        it.json(&["get", "etcdbackup", "now"])["status"],
        taken["status"]
    );
}

/// One restore, which the API server leaves at this moment.
fn restored_meanwhile(it: &Operated, name: &str, mut moment: impl FnMut() -> Option<()>) {
    it.put("till", "kept", "after");
    it.put("till", "lost", "after");
    let revision = revision(it);
    let since = it.mark();
    it.ask_for_restore("till", name);
    it.eventually("the moment", SOON, &mut moment);
    away(it);
    let begun = Instant::now();
    let restored = it.phase("etcdrestore", name, "Succeeded");
    println!(
        "{name}: API server back to Succeeded: {:.1?}",
        begun.elapsed()
    );
    it.available("till");
    let status = &restored["status"];
    // After a restore revisions jump ahead, which is no loss.
    let lost = if revision < JUMP {
        revision - status["revision"].as_i64().unwrap()
    } else {
        2
    };
    assert_eq!(status["revisionsLost"], lost, "{revision}: {status}");
    assert_eq!(it.get("till", "kept"), "before");
    assert_eq!(it.get("till", "lost"), "");
    pass(3);
    assert_eq!(requests(it, since, "create", "pods", "till-restore"), 1);
    assert_eq!(requests(it, since, "create", "pods", "till-0"), 1);
    assert_eq!(&it.json(&["get", "etcdrestore", name])["status"], status);
    it.gone(&["pod", "till-restore"]);
}

fn revision(it: &Operated) -> i64 {
    let told = it.etcdctl("till", &["endpoint", "status", "-w", "json"]);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    told[0]["Status"]["header"]["revision"].as_i64().unwrap()
}

/// Files beside each other: snapshots and their manifests.
fn snapshots(it: &Operated) -> Vec<String> {
    let dir = it.path(1, &directory(it, "till-snapshots")).join("till");
    let names = std::fs::read_dir(dir).into_iter().flatten().flatten();
    names
        .map(|it| it.file_name().to_string_lossy().into_owned())
        .collect()
}

/// How often this was asked for since then, and done.
pub fn requests(it: &Operated, since: Mark, verb: &str, resource: &str, name: &str) -> usize {
    let all = it.requests("", since).into_iter();
    all.filter(|it| {
        (it.verb.as_str(), it.resource.as_str(), it.name.as_str()) == (verb, resource, name)
            && (200..300).contains(&it.code)
    })
    .count()
}
