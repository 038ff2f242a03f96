//! Whoever can write to a place of snapshots plants some there. Nothing of it becomes data or a CA of the next cluster.

use std::fs;
use std::path::{Path, PathBuf};

use etcd_operator::backup::manifest::Manifest;
use etcd_operator::tls::SignedBundle;

use crate::lab::{Lab, text};
use crate::restore::{backups, damage, json, wait_for_the_end, with_a_snapshot};
use crate::s3;

/// How a planted snapshot looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    /// Signed by the key of the one who plants it, who is a cluster of the same name.
    TheirKey,
    /// With the real one's signature.
    StolenSignature,
    /// Nobody has signed it.
    Unsigned,
}

/// A snapshot of somebody else's etcd, newer than all, said to be of this cluster: the file and its manifest.
fn planted(attacker: &Lab, real: &Path, how: Planted) -> [(String, Vec<u8>); 2] {
    let file = only_snapshot(attacker);
    let of = |file: &Path| {
        let manifest = file.with_extension("").with_extension("json");
        let name = manifest.file_stem().unwrap().to_str().unwrap().to_owned();
        Manifest::decode(&fs::read(manifest).unwrap(), &name).unwrap()
    };
    let real = of(real);
    // A date after now would be enough to refuse a stolen signature.
    let created = match how {
        Planted::StolenSignature => real.created.clone(),
        _ => Some("2099-01-01T00:00:00Z".to_owned()),
    };
    let mut said = Manifest {
        cluster_id: real.cluster_id.clone(),
        created,
        ..of(&file)
    };
    said.revision.before = 900;
    said.revision.after = 900;
    let day = 1 + how as u8;
    said.name = format!("lab-0-209901{day:02}T000000Z-r900-{}", said.hash);
    let said = match how {
        Planted::TheirKey => said.signed_by(attacker.certificates().signer().as_ref()),
        Planted::StolenSignature => Manifest {
            signed: real.signed,
            ..said
        },
        Planted::Unsigned => said.signed_by(None),
    };
    [
        (format!("{}.db.zst", said.name), fs::read(file).unwrap()),
        (format!("{}.json", said.name), said.encode()),
    ]
}

fn only_snapshot(lab: &Lab) -> PathBuf {
    let name = json(lab, &["backup", "list"])[0]["name"].clone();
    backups(lab).join(format!("lab/{}.db.zst", name.as_str().unwrap()))
}

fn plant(files: &[(String, Vec<u8>)], dir: &Path) {
    for (name, bytes) in files {
        fs::write(dir.join(name), bytes).unwrap();
    }
}

/// An etcd of somebody else, whose cluster has the same name.
fn attacker() -> Lab {
    let mut lab = crate::restore::lab("3.6");
    lab.start_agent();
    lab.wait_available();
    assert!(lab.put("evil", "yes"));
    json(&lab, &["backup", "create"]);
    lab
}

const ALL: [Planted; 3] = [
    Planted::TheirKey,
    Planted::StolenSignature,
    Planted::Unsigned,
];

fn is_ours(lab: &Lab) {
    assert_eq!(lab.get("a").as_deref(), Some("1"));
    assert_eq!(lab.get("evil"), None);
}

#[test]
fn nothing_planted_in_a_directory_becomes_the_data_of_a_replaced_or_damaged_box() {
    let attacker = attacker();
    let mut old = with_a_snapshot("3.6");
    let (key, real) = (old.signer(), only_snapshot(&old));
    for how in ALL {
        plant(&planted(&attacker, &real, how), &backups(&old).join("lab"));
    }
    // A person who says yes beforehand, the document for damaged data, and the one of a replaced box.
    json(&old, &["restore", "--yes"]);
    is_ours(&old);
    old.add("recovery: {singleMember: restoreLatestVerified}");
    old.stop_agent();
    old.kill_etcd();
    damage(&old);
    old.start_agent();
    old.wait_available();
    wait_for_the_end(&old);
    is_ours(&old);
    old.stop_agent();
    old.kill_etcd();
    let mut new = Lab::new("3.6");
    let path = backups(&old).display().to_string();
    new.add(&format!(
        "backup: {{interval: 6h, destinations: [{{local: {{path: {path}}}}}]}}"
    ));
    new.add("bootstrap: {from: latest}");
    new.start_agent();
    let status = new.wait_hold("RestoreFailed");
    let said = status["plan"]["message"].as_str().unwrap();
    assert!(
        said.contains("trustedSigners") || said.contains("signature"),
        "{said}"
    );
    assert_eq!(new.starts(), 0, "nothing is born without a pin");
    new.trust(&key);
    new.signal_agent("HUP");
    new.wait_available();
    wait_for_the_end(&new);
    is_ours(&new);
}

/// Anybody can encrypt to the public key that the document names.
fn sealed(identity: &age::x25519::Identity, bytes: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::new();
    let to = [identity.to_public().to_string()];
    etcd_operator::backup::encrypt::encrypt_bytes(bytes, &to, &mut sealed).unwrap();
    sealed
}

/// The attacker's CAs, as they would lie in the bucket.
fn planted_authorities(attacker: &Lab, lab: &Lab, how: Planted) -> Vec<u8> {
    let of = |lab: &Lab, signed: bool| {
        let certificates = lab.certificates();
        let key = certificates.signer().filter(|_| signed);
        SignedBundle::of("lab", certificates.export().unwrap(), key.as_ref())
    };
    let mut theirs = serde_json::to_value(of(attacker, how == Planted::TheirKey)).unwrap();
    if how == Planted::StolenSignature {
        let real = serde_json::to_value(of(lab, true)).unwrap();
        theirs["signed"] = real["signed"].clone();
    }
    serde_json::to_vec(&theirs).unwrap()
}

#[test]
fn nothing_planted_in_a_bucket_becomes_data_or_a_ca() {
    let identity = age::x25519::Identity::generate();
    let recipient = format!(", encryption: {{recipients: [{}]}}", identity.to_public());
    let attacker = attacker();
    let (mut lab, server) = s3::lab(&s3::Server::new, &recipient);
    lab.start_agent();
    lab.wait_available();
    assert!(lab.put("a", "1"));
    json(&lab, &["backup", "create"]);
    s3::queued(&lab, 0);
    let (key, real) = (lab.signer(), only_snapshot(&lab));
    let bucket = server.root.join("backup/shops/lab");
    let secret = s3::secret_file(&lab, "secret", &identity);
    let new = s3::another_box(&lab);
    let untouched = || assert!(!new.lib("restore.json").exists() && !new.lib("tls").exists());

    // Encryption is demanded of what goes there: what lies there in clear is nobody's of us, signed or not.
    for how in ALL {
        plant(&planted(&attacker, &real, how), &bucket);
    }
    let proposed = json(&new, &["restore", "--dry-run", "--identity", &secret]);
    let name = real.file_name().unwrap().to_str().unwrap();
    assert_eq!(proposed["snapshot"], name.strip_suffix(".db.zst").unwrap());
    assert_eq!(proposed["signedBy"], key.as_str());
    assert_eq!(proposed["trusted"], false);

    let [(name, bytes), (manifest, said)] = planted(&attacker, &real, Planted::TheirKey);
    let newer = |it: &str| it.replace("20990101", "20990109");
    let mut said = Manifest::decode(&said, manifest.strip_suffix(".json").unwrap()).unwrap();
    said.name = newer(&said.name);
    let said = said.signed_by(attacker.certificates().signer().as_ref());
    fs::write(bucket.join(newer(&manifest)), said.encode()).unwrap();
    let bytes = sealed(&identity, &bytes);
    fs::write(bucket.join(format!("{}.age", newer(&name))), bytes).unwrap();
    let restore = ["restore", "--yes", "--identity", &secret];
    let held = new.operator(&restore);
    assert_eq!(held.status.code(), Some(3), "{}", text(&held.stderr));
    untouched();
    let trusting = [&restore[..], &["--trust", &key]].concat();

    // The CAs of somebody else beside snapshots that are real.
    let authorities = bucket.join("authorities.age");
    let genuine = fs::read(&authorities).unwrap();
    for how in ALL {
        let planted = planted_authorities(&attacker, &lab, how);
        fs::write(&authorities, sealed(&identity, &planted)).unwrap();
        let held = new.operator(&trusting);
        let words = text(&held.stderr);
        assert_eq!(held.status.code(), Some(3), "{how:?}: {words}");
        assert!(words.contains("authorities.age"), "{how:?}: {words}");
        untouched();
        // A path is a word for data: who can write there has signed both.
        let path = format!("s3://backup/shops/lab/{}.age", newer(&name));
        let named = [&restore[..], &["--from", &path]].concat();
        let held = new.operator(&named);
        assert_eq!(held.status.code(), Some(3), "{}", text(&held.stderr));
        untouched();
    }
    fs::write(&authorities, genuine).unwrap();
    assert_eq!(json(&new, &trusting)["outcome"], "restored");
    is_ours(&new);
    let ca = |lab: &Lab| fs::read(lab.certificates().client_files("admin").ca).unwrap();
    assert_eq!(ca(&new), ca(&lab));
    new.kill_etcd();
}

/// It is no backup of this cluster's: without a person nobody would restore it.
#[test]
fn a_snapshot_without_our_signature_keeps_none_of_ours_from_being_taken() {
    let mut lab = crate::restore::lab("3.6");
    lab.spec = lab.spec.replace("  backup: {", "  backup: {interval: 6h, ");
    lab.write_document();
    lab.start_agent();
    lab.wait("the first snapshot", |it| it["backups"]["count"] == 1);
    assert_eq!(lab.status()["backups"]["signer"], lab.signer().as_str());
    let manifest = only_snapshot(&lab)
        .with_extension("")
        .with_extension("json");
    let name = manifest.file_stem().unwrap().to_str().unwrap();
    let said = Manifest::decode(&fs::read(&manifest).unwrap(), name).unwrap();
    fs::write(&manifest, said.signed_by(None).encode()).unwrap();
    // As a restart of the agent, which then looks at what lies there, is one.
    lab.stop_agent();
    lab.start_agent();
    lab.wait("one of ours", |it| it["backups"]["count"] == 2);
}

#[test]
fn a_damaged_key_is_told_takes_no_snapshot_and_stops_no_etcd() {
    let mut lab = with_a_snapshot("3.6");
    fs::write(lab.lib("tls/signer/signer.key"), "no key").unwrap();
    assert!(lab.put("d", "4"));
    let failed = lab.operator(&["backup", "create"]);
    let said = text(&failed.stderr);
    assert_eq!(failed.status.code(), Some(1), "{said}");
    assert!(said.contains("signer.key is damaged"), "{said}");
    lab.stop_agent();
    lab.kill_etcd();
    fs::remove_dir_all(lab.lib("tls/generations")).unwrap();
    lab.start_agent();
    lab.wait_available();
    assert_eq!(lab.get("d").as_deref(), Some("4"));
}
