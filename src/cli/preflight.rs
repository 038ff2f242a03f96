//! `preflight`: is this host fit for etcd and its operator?

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use super::print::{self, Output};
use super::{Context, DONE, FAILED, Failure, Outcome, runtime};
use crate::accounts::{USER, user};
use crate::agent::unit::{enabled, is_hidden};
use crate::backup::place::describe;
use crate::clock;
use crate::cluster::{Detail, detail};
use crate::disk;
use crate::etcd::store;
use crate::host::preflight::{Polkit, PreflightFacts, Storage, SyncLatency, judge};
use crate::host::{Grade, HostFacts};
use crate::member::{facts, place, records};
use crate::observed::Clock;
use crate::paths::Paths;
use crate::spec::ClusterSpec;
use crate::spec::backup::Place;
use crate::start::{Binary, Filesystem, Writable};
use crate::sysfs;
use crate::systemd::{self, Systemd};
use crate::version::Version;

/// How long the disk is tried.
const SYNC_LIMIT: Duration = Duration::from_secs(10);
/// How long a file system may take to answer.
const DISK_DEADLINE: Duration = Duration::from_secs(2);

/// One finding, for programs.
#[derive(Serialize)]
struct Row {
    check: &'static str,
    result: &'static str,
    reason: &'static str,
    found: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    next: String,
}

fn grade(grade: Grade) -> &'static str {
    match grade {
        Grade::Good => "ok",
        Grade::Note => "note",
        Grade::Unknown => "unknown",
        Grade::Warning => "warning",
        Grade::Failure => "failed",
    }
}

pub(super) fn preflight(context: &Context, skip_disk: bool, output: Output) -> Outcome {
    let root = rustix::process::geteuid().is_root();
    if !root && systemd::runs(&context.paths) {
        // Nobody else sees the state, the administrator's rules of polkit and who holds a port.
        let text = "under systemd this needs root: sudo etcd-operator preflight";
        return Err(Failure::new(FAILED, text));
    }
    let facts = gather(context, skip_disk)?;
    let document = context.document();
    let problems = document.as_ref().err().map_or("", |it| it.text.as_str());
    let mut rows: Vec<Row> = judge(&facts)
        .iter()
        .map(|it| Row {
            check: it.check,
            result: grade(it.grade),
            reason: it.reason,
            found: it.found.to_string(),
            next: it.next.to_string(),
        })
        .collect();
    // Every problem of the document, each in a row of its own.
    let at = rows.iter().position(|it| it.reason == "SpecInvalid");
    for (number, problem) in problems.lines().enumerate().skip(1) {
        let row = Row {
            check: "document",
            result: grade(Grade::Failure),
            reason: "SpecInvalid",
            found: problem.to_owned(),
            next: String::new(),
        };
        rows.insert(at.unwrap_or(0) + number, row);
    }
    if output == Output::Table {
        table(&rows)?;
    } else {
        print::value(output, &rows)?;
    }
    let fit = rows.iter().all(|it| it.result != grade(Grade::Failure));
    Ok(if fit { DONE } else { FAILED })
}

fn table(rows: &[Row]) -> std::io::Result<()> {
    let mut lines = vec![["CHECK", "RESULT", "FOUND"].map(str::to_owned)];
    lines.extend(
        rows.iter()
            .map(|it| [it.check.to_owned(), it.result.to_owned(), it.found.clone()]),
    );
    print::table(&lines)?;
    let mut next = vec![["NEXT", ""].map(str::to_owned)];
    next.extend(
        rows.iter()
            .filter(|it| !it.next.is_empty())
            .map(|it| [it.check.to_owned(), it.next.clone()]),
    );
    if next.len() > 1 {
        print::text("\n")?;
        print::table(&next)?;
    }
    Ok(())
}

fn gather(context: &Context, skip_disk: bool) -> Result<PreflightFacts, Failure> {
    let paths = &context.paths;
    let document = context.document();
    let spec = document.as_ref().ok();
    let storage_dir = spec.map_or_else(
        || paths.member(),
        |it| place::resolve(paths, it).storage_dir,
    );
    let named = spec.is_some_and(|it| it.storage_path.is_some());
    let cluster = spec.map_or("", |it| it.name.as_str());
    let systemd = runtime()?.block_on(async {
        if !systemd::runs(paths) {
            return (None, false, false);
        }
        match Systemd::connect().await {
            Ok(it) => {
                let version = it.version().await.unwrap_or(0);
                (Some(version), true, systemd::clock_is_synchronised().await)
            }
            Err(_) => (Some(0), false, false),
        }
    });
    let now = clock::now();
    let newest = clock::newest_known(&records::data_dir(&storage_dir), None);
    let synchronised = systemd.2;
    let writable = disk::writable(&storage_dir, DISK_DEADLINE);
    Ok(PreflightFacts {
        host: HostFacts {
            unverified: version(paths, spec).and_then(|it| store::unverified(&paths.store(), it)),
            ..sysfs::look(paths, &storage_dir, writable)
        },
        architecture: std::env::consts::ARCH,
        systemd: systemd.0,
        document: match &document {
            Ok(spec) => Ok(detail(format_args!("{}", spec.name))),
            Err(failure) => Err(detail(format_args!("{}", first_line(&failure.text)))),
        },
        in_clear: spec.and_then(in_clear),
        etcd: etcd(paths, spec),
        user: user(Path::new("/etc/passwd"), USER).is_some(),
        state_private: fs::metadata(&paths.lib).ok().map(|it| {
            let owner = user(Path::new("/etc/passwd"), USER);
            let private = systemd.0.is_none() || owner.is_none_or(|(uid, _)| uid == it.uid());
            private && it.permissions().mode().trailing_zeros() >= 6
        }),
        bus: systemd.1,
        polkit: polkit(&paths.root),
        runs_as_root: paths
            .units()
            .join("etcd-operator.service.d/run-as-root.conf")
            .exists(),
        unit: systemd::has_member_unit(paths, cluster)
            && enabled(paths, &systemd::member_unit(cluster)),
        clock_trusted: clock::trust(paths, now, newest, synchronised) == Clock::Trusted,
        journal_on_disk: paths.root.join("var/log/journal").is_dir(),
        unsafe_filesystem: match disk::filesystem(&storage_dir) {
            Filesystem::Unsafe(name) if spec.is_none_or(|it| !it.unsafe_filesystem_allowed) => {
                Some(name)
            }
            _ => None,
        },
        port_taken: spec.and_then(|it| port_taken(paths, it)),
        storage: storage(paths, &storage_dir, writable, systemd.0.is_some()),
        has_data: records::data_dir(&storage_dir).join("member").exists(),
        sync: if writable == Writable::Yes || !named {
            sync(&storage_dir, skip_disk)
        } else {
            Err(detail(format_args!("not tried")))
        },
    })
}

/// Destinations whose copies others can read on their way, or where they lie.
fn in_clear(spec: &ClusterSpec) -> Option<Detail> {
    let destinations = spec.backup.iter().flat_map(|it| &it.destinations);
    let open = destinations.filter_map(|it| {
        let Place::S3(s3) = &it.place else {
            return None;
        };
        let why = s3.in_clear()?;
        Some(format!("{}: {why}", describe(it)))
    });
    let open: Vec<String> = open.collect();
    (!open.is_empty()).then(|| detail(format_args!("{}", open.join("; "))))
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// The version that the document's cluster would be born with.
fn version(paths: &Paths, spec: Option<&ClusterSpec>) -> Option<Version> {
    spec.and_then(|it| it.version)
        .or_else(|| store::newest_supported(&paths.store()))
}

fn etcd(
    paths: &Paths,
    spec: Option<&ClusterSpec>,
) -> Result<Detail, (&'static str, Detail, Detail)> {
    let install = |version: &dyn std::fmt::Display| {
        detail(format_args!(
            "etcd-operator etcd install --from FILE {version}"
        ))
    };
    let Some(version) = version(paths, spec) else {
        let none = detail(format_args!("none is in the store"));
        return Err(("BinaryMissing", none, install(&"VERSION")));
    };
    match store::binary(&paths.store(), version) {
        Binary::Ready => Ok(detail(format_args!("{version} is in the store"))),
        Binary::Missing(stored) => Err((
            "BinaryMissing",
            match stored {
                Some(stored) => detail(format_args!("{version} is not in the store, {stored} is")),
                None => detail(format_args!("{version} is not in the store")),
            },
            install(&version),
        )),
        Binary::Changed => Err((
            "BinaryChanged",
            detail(format_args!("{version} is not the one that was installed")),
            install(&version),
        )),
        Binary::WrongArchitecture => Err((
            "BinaryWrongArchitecture",
            detail(format_args!("{version} is not for this machine")),
            detail(format_args!(
                "install the release for {}: etcd-operator etcd install --from FILE {version}",
                std::env::consts::ARCH
            )),
        )),
    }
}

fn polkit(root: &Path) -> Polkit {
    let service = "usr/share/dbus-1/system-services/org.freedesktop.PolicyKit1.service";
    if !root.join(service).exists() {
        return Polkit::Missing;
    }
    let rules = ["usr/share", "etc"].map(|it| root.join(it).join("polkit-1/rules.d"));
    let ours = rules
        .iter()
        .any(|it| it.join("50-etcd-operator.rules").exists());
    // Only root may look into the folder of the administrator's rules.
    if ours { Polkit::Ready } else { Polkit::NoRule }
}

/// The first port that somebody else holds.
fn port_taken(paths: &Paths, spec: &ClusterSpec) -> Option<Detail> {
    let place = place::resolve(paths, spec);
    let launch = place.launch(spec, Version::new(0, 0, 0));
    let own = records::Running::load(paths).map(|it| it.bound());
    let conflict = facts::conflict(paths, &launch, &own.unwrap_or_default())?;
    Some(if conflict.holder.is_empty() {
        detail(format_args!("etcd cannot listen on {}", conflict.address))
    } else {
        detail(format_args!(
            "{} is held by {}",
            conflict.address, conflict.holder
        ))
    })
}

fn storage(paths: &Paths, dir: &Path, writable: Writable, systemd: bool) -> Storage {
    if dir.starts_with(&paths.lib) {
        return Storage::Ready;
    }
    match writable {
        Writable::Missing => return Storage::Missing,
        Writable::Denied => return Storage::NotOwned,
        Writable::Stalled => return Storage::Stalled,
        Writable::Yes | Writable::ReadOnly => {}
    }
    let owner = user(Path::new("/etc/passwd"), USER).map(|(uid, _)| uid);
    let fits = fs::metadata(dir).is_ok_and(|it| Some(it.uid()) == owner);
    match systemd {
        true if is_hidden(dir) => Storage::Hidden,
        true if !fits => Storage::NotOwned,
        _ => Storage::Ready,
    }
}

fn sync(storage_dir: &Path, skip: bool) -> Result<SyncLatency, Detail> {
    if skip {
        return Err(detail(format_args!("not tried (--skip-disk)")));
    }
    let mut there = storage_dir.ancestors().filter(|it| it.is_dir());
    let dir = there.next().unwrap_or_else(|| Path::new("/"));
    disk::sync_latency(dir, SYNC_LIMIT)
        .map_err(|error| detail(format_args!("cannot write to {}: {error}", dir.display())))
}
