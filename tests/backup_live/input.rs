//! Bad places and bad files: each is named with what to do, and nothing is lost.

use std::fs;
use std::process::Command;

use etcd_operator::backup::manifest::Manifest;

use crate::lab::{skip, text};
use crate::stage::{Stage, unpack};
use crate::watched::Watched;

/// A command fails with this exit code and says all of these.
fn says(stage: &Stage, arguments: &[&str], code: i32, words: &[&str]) -> String {
    let output = stage.lab.operator(arguments);
    check(&output, code, words)
}

fn check(output: &std::process::Output, code: i32, words: &[&str]) -> String {
    let said = text(&output.stderr) + &text(&output.stdout);
    println!("{}", said.trim());
    assert_eq!(output.status.code(), Some(code), "{said}");
    for it in words {
        assert!(said.contains(it), "'{it}' is missing: {said}");
    }
    said
}

#[test]
fn a_missing_or_unmounted_place_is_named_and_nothing_is_written_beside_it() {
    let mut stage = Stage::new("3.6");
    stage.etcdctl(&["put", "key", "1"]);
    let away = stage.lab.root.join("away");
    fs::rename(&stage.place, &away).unwrap();
    let place = stage.place.display().to_string();
    for command in ["create", "list", "verify", "prune"] {
        let words = [place.as_str(), "is not there: mount the disk"];
        says(&stage, &["backup", command], 1, &words);
    }
    assert!(
        !stage.place.exists(),
        "nothing is made where a disk should be mounted"
    );
    fs::rename(&away, &stage.place).unwrap();
    stage.saved();
    // The disk is gone, its mount point is there and empty.
    fs::rename(&stage.place, &away).unwrap();
    fs::create_dir(&stage.place).unwrap();
    let words = [
        place.as_str(),
        "held snapshots of this cluster",
        "mount the disk",
        "create",
    ];
    says(&stage, &["backup", "create"], 1, &words);
    assert_eq!(fs::read_dir(&stage.place).unwrap().count(), 0);
    // As the message says.
    fs::create_dir(stage.dir()).unwrap();
    stage.saved();
    fs::remove_dir_all(&stage.place).unwrap();
    fs::rename(&away, &stage.place).unwrap();
    assert_eq!(stage.entries().len(), 1);
    // A file where the directory should be.
    stage.lab.spec = stage.lab.spec.replace(&place, &format!("{place}/lab/file"));
    stage.lab.write_document();
    fs::write(stage.dir().join("file"), "").unwrap();
    says(&stage, &["backup", "create"], 1, &["is not there"]);
}

/// Whether this test may mount; says so if not.
fn may_mount() -> bool {
    let tried = Command::new("unshare")
        .args(["--mount", "mount", "-t", "tmpfs", "none", "/mnt"])
        .output();
    let may = tried.is_ok_and(|it| it.status.success());
    if !may {
        skip("file systems of its own need root and unshare (util-linux)");
    }
    may
}

#[test]
fn no_space_is_seen_before_and_on_the_way() {
    if !may_mount() {
        return;
    }
    let stage = Stage::new("3.6");
    stage.fill("key", 4000, 10_000);
    let place = stage.place.display().to_string();
    let dir = stage.dir().display().to_string();
    let mount =
        |mib: u32| format!("mount -t tmpfs -o size={mib}m,mode=700 none {place}\nmkdir {dir}");
    let create = ["backup", "create"];
    // 40 MB of database, and 128 MiB that stay free.
    let output = Watched::among_mounts(&stage, &mount(150), &create)
        .end()
        .output;
    let words = [
        "MiB free",
        "may need",
        "free some space, or lower maxBytes or keep",
    ];
    check(&output, 1, &words);
    // Others fill the disk meanwhile: to below the reserve, and to the last byte.
    for (left, words) in [(60, "MiB free"), (0, "No space left on device")] {
        let command = Watched::among_mounts(&stage, &mount(400), &create);
        let part = stage.store().part();
        assert!(command.stop_at(&part, 1 << 20), "it was too fast");
        let other = command.path(&stage.place.join("other"));
        let file = fs::File::create(other).unwrap();
        // What was stopped in the middle of a write has taken its room a moment later.
        let filled = (0..10).any(|_| {
            let room = rustix::fs::statvfs(command.path(&stage.place)).unwrap();
            let bytes = room.f_bavail * room.f_frsize - (left << 20);
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes).is_ok()
        });
        assert!(filled, "the disk could not be filled");
        drop(file);
        // The mount ends with the command: a second descriptor shows what it left.
        let dir = fs::File::open(command.path(&stage.dir())).unwrap();
        command.go_on();
        check(&command.end().output, 1, &["snapshot", words]);
        let names = rustix::fs::Dir::read_from(&dir).unwrap();
        let left = names
            .flatten()
            .filter(|it| !it.file_name().to_bytes().starts_with(b"."));
        assert_eq!(left.count(), 0);
        let part = rustix::fs::statat(
            &dir,
            part.file_name().unwrap(),
            rustix::fs::AtFlags::empty(),
        );
        assert!(
            part.is_err(),
            "the part is removed, so that its room is free again"
        );
    }
    // Nothing of it reached the real directory.
    assert!(stage.entries().is_empty());
}

#[test]
fn a_read_only_place_is_named() {
    if !may_mount() {
        return;
    }
    let stage = Stage::new("3.6");
    stage.etcdctl(&["put", "key", "1"]);
    let (file, manifest) = stage.saved();
    let place = stage.place.display();
    let setup = format!("mount --bind {place} {place}\nmount -o remount,bind,ro {place}");
    stage.etcdctl(&["put", "key", "2"]);
    let output = Watched::among_mounts(&stage, &setup, &["backup", "create"])
        .end()
        .output;
    let words = [
        stage.place.to_str().unwrap(),
        "read-only",
        "dmesg",
        "mount it for writing",
    ];
    check(&output, 1, &words);
    let output = Watched::among_mounts(&stage, &setup, &["backup", "verify"])
        .end()
        .output;
    let words = [
        "verified",
        "warning: the findings could not be recorded",
        "Read-only",
    ];
    check(&output, 0, &words);
    let output = Watched::among_mounts(&stage, &setup, &["backup", "list"])
        .end()
        .output;
    check(&output, 0, &[&manifest.name]);
    assert!(file.exists());
}

#[test]
fn foreign_files_are_never_listed_and_never_removed() {
    let mut stage = Stage::new("3.6");
    stage.lab.spec = stage.lab.spec.replace("}}]}", ", keep: 1}}]}");
    stage.lab.write_document();
    stage.etcdctl(&["put", "key", "1"]);
    let (file, manifest) = stage.saved();
    let foreign = [
        "README".to_owned(),
        "etcd-snapshot-pi-1700000000".to_owned(),
        "snapshot.db".to_owned(),
        "other-0-20261121T131500Z-r1234-9f3ab2c1.db.zst".to_owned(),
        "other-0-20261121T131500Z-r1234-9f3ab2c1.json".to_owned(),
        "lab-east-0-20261121T131500Z-r1234-9f3ab2c1.db.zst".to_owned(),
        "lab-0-20261121T131500Z-r01234-9f3ab2c1.db.zst".to_owned(),
        format!("{}.db.zst.bak", manifest.name),
        format!("copy of {}.db.zst", manifest.name),
        format!("{}.db", manifest.name),
        ".hidden".to_owned(),
    ];
    for name in &foreign {
        fs::write(stage.dir().join(name), "foreign").unwrap();
    }
    fs::write(stage.place.join("beside"), "foreign").unwrap();
    fs::create_dir(stage.dir().join("lost+found")).unwrap();
    let names: Vec<String> = stage
        .entries()
        .iter()
        .map(|it| it.name.to_string())
        .collect();
    assert_eq!(names, [manifest.name.as_str()]);
    stage.etcdctl(&["put", "key", "2"]);
    stage.saved();
    says(&stage, &["backup", "prune"], 0, &[]);
    says(&stage, &["backup", "verify"], 0, &[]);
    for name in &foreign {
        assert_eq!(
            fs::read(stage.dir().join(name)).unwrap(),
            b"foreign",
            "{name}"
        );
    }
    assert!(stage.place.join("beside").exists() && stage.dir().join("lost+found").exists());
    assert!(file.exists(), "asked for by a person");
}

#[test]
fn a_bad_snapshot_or_manifest_is_named_by_list_and_verify() {
    let stage = Stage::new("3.6");
    stage.etcdctl(&["put", "key", "1"]);
    let (file, manifest) = stage.saved();
    let name = manifest.name.as_str();
    let json = file.with_file_name(format!("{name}.json"));
    let (packed, said) = (fs::read(&file).unwrap(), fs::read(&json).unwrap());
    let newer = text(&said).replace("\"format\": 1", "\"format\": 2");
    let other = Manifest {
        name: name.replace("lab-0", "lab-1"),
        ..manifest.clone()
    };
    let long = [packed.as_slice(), b"more"].concat();
    let length = packed.len();
    let cases: [(&str, &[u8], &[u8], &str); 7] = [
        (
            "truncated",
            &packed[..length / 2],
            &said,
            "bytes, written were",
        ),
        ("empty", &[], &said, "has 0 bytes, written were"),
        ("longer", &long, &said, "bytes, written were"),
        (
            "a manifest of another",
            &packed,
            &other.encode(),
            "the manifest is that of lab-1-",
        ),
        (
            "a newer manifest",
            &packed,
            newer.as_bytes(),
            "newer version of this operator (format 2",
        ),
        ("an empty manifest", &packed, b"", "the manifest is damaged"),
        (
            "a manifest that is text",
            &packed,
            b"<html>",
            "the manifest is damaged",
        ),
    ];
    for (what, packed, said, words) in cases {
        println!("{what}:");
        fs::write(&file, packed).unwrap();
        fs::write(&json, said).unwrap();
        says(&stage, &["backup", "list"], 0, &[name, words]);
        says(&stage, &["backup", "verify"], 1, &[name, words]);
        assert!(stage.entries().iter().all(|it| it.level() == 0), "{what}");
        says(
            &stage,
            &["backup", "show", "latest"],
            1,
            &["there is no snapshot latest"],
        );
        says(&stage, &["backup", "prune"], 0, &[]);
        assert!(file.exists() && json.exists(), "{what} is not removed");
    }
}

#[test]
fn a_snapshot_alone_or_under_the_name_of_another_is_none() {
    let stage = Stage::new("3.6");
    stage.etcdctl(&["put", "key", "1"]);
    let (file, manifest) = stage.saved();
    let name = manifest.name.as_str();
    let json = file.with_file_name(format!("{name}.json"));
    let (packed, said) = (fs::read(&file).unwrap(), fs::read(&json).unwrap());
    for (gone, words) in [(&file, "is missing"), (&json, "it has no manifest")] {
        fs::write(&file, &packed).unwrap();
        fs::write(&json, &said).unwrap();
        fs::remove_file(gone).unwrap();
        says(&stage, &["backup", "list"], 0, &[name, words]);
        says(&stage, &["backup", "verify", name], 1, &[words]);
    }
    // Under the name of another one.
    fs::write(&file, &packed).unwrap();
    fs::write(&json, &said).unwrap();
    let misnamed = name.replace("-r", "-r9");
    for (from, end) in [(&file, "db.zst"), (&json, "json")] {
        fs::rename(from, file.with_file_name(format!("{misnamed}.{end}"))).unwrap();
    }
    let words = [misnamed.as_str(), "the manifest is that of", name];
    says(&stage, &["backup", "verify"], 1, &words);
    assert!(stage.entries().iter().all(|it| it.level() == 0));
}

#[test]
fn a_snapshot_is_called_by_its_revision_or_the_beginning_of_its_name() {
    let stage = Stage::new("3.6");
    let names: Vec<String> = (0..3)
        .map(|number| {
            stage.etcdctl(&["put", "key", &number.to_string()]);
            stage.saved().1.name
        })
        .collect();
    let words = |name: &str| {
        let revision = name.rsplit('-').nth(1).unwrap();
        let until = name.find(&format!("-{revision}-")).unwrap() + revision.len() + 2;
        [
            revision.to_owned(),
            name[..until].to_owned(),
            name["lab-0-".len()..until].to_owned(),
        ]
    };
    for name in &names {
        for word in words(name) {
            says(&stage, &["backup", "show", &word], 0, &[name]);
            says(&stage, &["backup", "verify", &word], 0, &[name, "verified"]);
        }
    }
    for command in ["show", "verify", "delete"] {
        let several = ["'lab-0' fits 3 snapshots", &names[0], "or more of its name"];
        says(&stage, &["backup", command, "lab-0"], 1, &several);
        says(
            &stage,
            &["backup", command, "r999"],
            1,
            &["there is no snapshot r999"],
        );
        says(
            &stage,
            &["backup", command, "lab"],
            1,
            &["there is no snapshot lab"],
        );
    }
    let [revision, ..] = words(&names[0]);
    says(
        &stage,
        &["backup", "delete", &revision, "--yes"],
        0,
        &[&names[0], "deleted"],
    );
    says(
        &stage,
        &["backup", "delete", "latest", "--yes"],
        3,
        &["latest may mean another one the next time"],
    );
    assert_eq!(stage.entries().len(), 2);
}

#[test]
fn exit_codes_tell_usage_from_failure_and_from_a_hold() {
    let mut stage = Stage::new("3.6");
    stage.fill("key", 3000, 10_000);
    let create = ["backup", "create"];
    let command = Watched::start(&stage, &create);
    assert!(
        command.stop_at(&stage.store().part(), 1 << 20),
        "it was too fast"
    );
    for arguments in [&create[..], &["backup", "verify"], &["backup", "prune"]] {
        says(
            &stage,
            arguments,
            3,
            &["another process takes or checks snapshots", "try again"],
        );
    }
    says(&stage, &["backup", "list"], 0, &[]);
    command.go_on();
    assert_eq!(command.end().output.status.code(), Some(0));
    let no_such = "lab-0-20261121T131500Z-r1234-9f3ab2c1";
    for command in ["show", "verify"] {
        let words = ["there is no snapshot", no_such, "backup list"];
        says(&stage, &["backup", command, no_such], 1, &words);
    }
    says(&stage, &["backup", "verify", "--level", "9"], 2, &[]);
    says(&stage, &["backup", "remove"], 2, &[]);
    stage.etcdctl(&["put", "key", "1"]);
    stage.stop();
    let words = ["failed to", "etcd"];
    let begin = std::time::Instant::now();
    says(&stage, &create, 1, &words);
    assert!(begin.elapsed().as_secs() < 25, "{:?}", begin.elapsed());
    let at = stage.lab.spec.find("  backup:").unwrap();
    stage.lab.spec.truncate(at);
    stage.lab.write_document();
    for command in ["create", "list", "verify", "prune"] {
        says(
            &stage,
            &["backup", command],
            2,
            &["spec.backup is not there", "local"],
        );
    }
}

/// As a machine of the other byte order writes its numbers: what a meta page begins with.
fn swapped(database: &[u8]) -> Vec<u8> {
    let mut swapped = database.to_owned();
    swapped[16..20].reverse();
    swapped
}

#[test]
fn a_file_that_is_no_snapshot_is_told_by_what_it_is() {
    let stage = Stage::new("3.6");
    stage.fill("key", 3000, 100);
    let (packed, _) = stage.saved();
    let raw = stage.lab.root.join("raw.db");
    unpack(&packed, &raw);
    let (packed, raw) = (fs::read(packed).unwrap(), fs::read(raw).unwrap());
    let zeros = vec![0; 100_000];
    let mut changed = raw.clone();
    let length = changed.len();
    changed[length - 1] ^= 1;
    let plain = zstd::stream::encode_all(raw.as_slice(), 1).unwrap();
    let starting = |first: &[u8]| [first, zeros.as_slice()].concat();
    let (gzip, zip, age) = (
        starting(&[0x1f, 0x8b, 8]),
        starting(b"PK\x03\x04"),
        starting(b"age-encryption.org/v1\n"),
    );
    let longer = [raw.as_slice(), b"."].concat();
    let cases: [(&str, &[u8], &str); 14] = [
        ("empty", b"", "is no snapshot: it is empty"),
        ("short", b"abc", "is no snapshot: it is empty"),
        ("zeros", &zeros, "this is no database of etcd"),
        (
            "html",
            b"<html><body>403 Forbidden</body></html>        ",
            "is text and no snapshot",
        ),
        (
            "json",
            b"{\"error\": \"no such key\", \"code\": 404}        ",
            "is text and no snapshot",
        ),
        ("gzip", &gzip, "gzip: unpack it first"),
        ("zip", &zip, "zip archive, as k3s compresses"),
        ("age", &age, "is encrypted"),
        ("cut off", &packed[..packed.len() - 1], "zstd"),
        ("half", &raw[..length / 2], "its pages need"),
        (
            "without the last byte",
            &raw[..length - 1],
            "no checksum of etcd's",
        ),
        ("with a byte more", &longer, "no checksum of etcd's"),
        (
            "with another checksum",
            &changed,
            "the checksum at its end differs",
        ),
        ("by another zstd", &plain, "unpack it with zstd -d first"),
    ];
    let file = stage.lab.root.join("file");
    let path = file.to_str().unwrap();
    let examine = |bytes: &[u8], code: i32, words: &str| {
        fs::write(&file, bytes).unwrap();
        says(&stage, &["verify-snapshot", path], code, &[words]);
    };
    examine(&packed, 0, "fits");
    examine(&raw, 0, "fits");
    examine(&swapped(&raw), 1, "of the other byte order, such as s390x");
    for (_, bytes, words) in cases {
        examine(bytes, 1, words);
    }
    let missing = stage.lab.root.join("missing").display().to_string();
    says(&stage, &["verify-snapshot", &missing], 1, &["is missing"]);
    let dir = stage.lab.root.display().to_string();
    says(&stage, &["verify-snapshot", &dir], 1, &[&dir]);
}
