//! `etcd install` and `etcd list`: the versions of etcd on this host.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use tokio::runtime::Runtime;

use super::arguments::InstallArgs;
use super::progress::Display;
use super::{Context, DONE, FAILED, Failure, Outcome, Output, USAGE, print, runtime};
use crate::backup::{Phase, Progress};
use crate::error::shell_word;
use crate::etcd::archive::{self, ArchiveError, Unpacked};
use crate::etcd::download::{DownloadError, Part, Release, Told};
use crate::etcd::store::{self, Installed};
use crate::start::Binary;
use crate::version::{Class, Version, classify};

pub(super) fn install(context: &Context, arguments: &InstallArgs) -> Outcome {
    let text = &arguments.version;
    let version: Version = text
        .parse()
        .map_err(|_| Failure::new(USAGE, format!("'{text}' is not a version such as 3.6.16")))?;
    match classify(version) {
        Class::TooOld | Class::Unknown => {
            let text =
                format!("etcd {version} is not supported; this operator supports 3.5, 3.6 and 3.7");
            return Err(Failure::new(USAGE, text));
        }
        Class::NeverCreate(bug) => {
            eprintln!(
                "etcd-operator: warning: the operator creates no cluster with etcd {version}: {bug}"
            );
        }
        Class::Warn(bug) => eprintln!("etcd-operator: warning: {bug}"),
        Class::Supported => {}
    }
    // Nobody but root, or the owner of --root, writes there.
    let beside = context.paths.lib.parent().unwrap_or(&context.paths.lib);
    let source = if arguments.download {
        if let Some(it) = downloaded_before(&context.paths.store(), version) {
            return told(&it);
        }
        download(arguments, version, beside)?
    } else {
        brought(arguments, version, beside)?
    };
    let from = arguments.from.as_deref();
    let from = source.unpacked.as_ref().map_or(from, |it| Some(it.dir()));
    let installed = store::install(&context.paths.store(), version, from, !source.verified)?;
    if let Some(part) = source.part {
        part.remove()?;
    }
    for (program, need) in [
        ("etcdutl", "restoring a snapshot"),
        ("etcdctl", "etcd-operator etcdctl"),
    ] {
        if !installed.programs.contains(&program) {
            eprintln!("etcd-operator: warning: {program} was not there; {need} will need it");
        }
    }
    told(&installed)
}

fn told(it: &Installed) -> Outcome {
    let programs = it.programs.join(", ");
    print::text(&format!(
        "etcd {} ({programs}) sha256 {}\n",
        it.version, it.sha256
    ))?;
    Ok(DONE)
}

/// Where programs come from.
struct Source {
    /// An archive's; none where they lie in a directory.
    unpacked: Option<Unpacked>,
    /// Somebody compared the archive's checksum with the release's.
    verified: bool,
    /// The archive, if it was downloaded.
    part: Option<Part>,
}

/// The archive or the directory that a person brought.
fn brought(arguments: &InstallArgs, version: Version, beside: &Path) -> Result<Source, Failure> {
    let mut source = Source {
        unpacked: None,
        verified: false,
        part: None,
    };
    if let Some(file) = arguments.from.as_deref().filter(|it| !it.is_dir()) {
        source.verified = check_release(file, version, arguments.unverified)?;
        fs::create_dir_all(beside)?;
        source.unpacked = Some(archive::unpack(file, beside)?);
    }
    Ok(source)
}

/// Whether an archive is known to be the one that the project released. One that is another is refused, unless the person
/// says so.
fn check_release(file: &Path, version: Version, unverified: bool) -> Result<bool, Failure> {
    let sum = archive::sha256(file)?;
    match archive::released(version, std::env::consts::ARCH) {
        Some(known) if known == sum => return Ok(true),
        Some(_) if unverified => {}
        Some(known) => {
            let text = format!(
                "{} has the sha256 {sum}, and the release of etcd {version} has {known}: download it again; if you built it yourself, add --unverified",
                file.display()
            );
            return Err(Failure::new(FAILED, text));
        }
        None => eprintln!(
            "etcd-operator: note: no checksum of etcd {version} is known here: compare the sha256 {sum} with the release's SHA256SUMS"
        ),
    }
    Ok(false)
}

/// A verified one is not fetched a second time.
fn downloaded_before(store: &Path, version: Version) -> Option<Installed> {
    let mut installed = store::list(store).into_iter();
    let found = installed.find(|it| it.version == version && !it.unverified)?;
    (store::binary(store, version) == Binary::Ready).then_some(found)
}

/// The project's archive, or a mirror's. What came stays until it is installed, or of no use.
fn download(arguments: &InstallArgs, version: Version, beside: &Path) -> Result<Source, Failure> {
    let release = Release::new(version, arguments.mirror.as_deref())
        .map_err(|it| Failure::new(USAGE, format!("--mirror: {it}")))?;
    let known = archive::released(version, std::env::consts::ARCH);
    let unverified = arguments.unverified;
    if known.is_none() && !release.is_proven() && !unverified {
        let text = format!(
            "no checksum of etcd {version} is known here, and {} does not prove who it is: name a mirror with https://, or add --unverified",
            release.address()
        );
        return Err(Failure::new(FAILED, text));
    }
    fs::create_dir_all(beside)?;
    let mut part = Part::open(&beside.join(format!(".{}.part", release.name)))?;
    let runtime = runtime()?;
    let expected = match known {
        Some(known) => Some(known.to_owned()),
        None if unverified => None,
        None => {
            let listed = runtime.block_on(release.listed());
            Some(listed.map_err(|it| failed(&it, &release, &part))?)
        }
    };
    let sum = fetch(&runtime, &release, &mut part, expected.as_deref())?;
    let is_compared = expected.as_ref() == Some(&sum);
    if let Some(expected) = expected.filter(|_| !is_compared && !unverified) {
        part.remove()?;
        let text = format!(
            "what came from {} has the sha256 {sum}, and the release of etcd {version} has {expected}: it was changed on the way, or is another file; download it from elsewhere, or name another --mirror",
            release.address()
        );
        return Err(Failure::new(FAILED, text));
    }
    if !is_compared {
        eprintln!("etcd-operator: note: nobody compared the sha256 {sum}");
    } else if known.is_none() {
        eprintln!(
            "etcd-operator: note: no checksum of etcd {version} is known here: compared with the SHA256SUMS beside it"
        );
    }
    let unpacked = match archive::unpack(part.path(), beside) {
        Ok(unpacked) => unpacked,
        Err(error) => {
            // What is wrong with this host is not the archive's fault.
            if !matches!(error, ArchiveError::Io { .. }) {
                part.remove()?;
            }
            return Err(error.into());
        }
    };
    Ok(Source {
        unpacked: Some(unpacked),
        verified: is_compared && (known.is_some() || release.is_official),
        part: Some(part),
    })
}

/// Downloads what is not there yet, and tells its sha256. What an earlier command left may be of another file: then it is
/// fetched anew.
fn fetch(
    runtime: &Runtime,
    release: &Release,
    part: &mut Part,
    expected: Option<&str>,
) -> Result<String, Failure> {
    let is_right = |sum: &str| expected.is_none_or(|it| it == sum);
    let mut began = part.size()? > 0;
    if began && expected.is_some() {
        let sum = part.sha256()?;
        if is_right(&sum) {
            return Ok(sum);
        }
    }
    loop {
        let mut display = Display::new();
        let mut told = |it: Told<'_>| match it {
            Told::Came(done, total) => display.show(Progress {
                phase: Phase::Copying,
                done,
                total,
            }),
            Told::Broke(error, done) => {
                eprintln!(
                    "etcd-operator: {error}; trying again after {} MiB",
                    done >> 20
                );
            }
        };
        let fetched = runtime.block_on(release.fetch(part, &mut told));
        fetched.map_err(|it| failed(&it, release, part))?;
        let sum = part.sha256()?;
        if is_right(&sum) || !began {
            return Ok(sum);
        }
        began = false;
        part.clear()?;
    }
}

/// With what helps: the same command again where something came, another way to get the archive here where this host is not
/// at fault.
fn failed(error: &DownloadError, release: &Release, part: &Part) -> Failure {
    let mut text = crate::error::chain(error);
    let came = part.size().unwrap_or_default();
    if came > 0 {
        let _ = write!(
            text,
            "; {} KiB are kept, and the same command goes on from there",
            came >> 10
        );
    }
    if !matches!(error, DownloadError::Part(_)) {
        let address = release.address();
        let _ = write!(
            text,
            "; or download {} elsewhere, copy it here, and name it with --from",
            shell_word(&address)
        );
    }
    Failure::new(FAILED, text)
}

pub(super) fn list(context: &Context, output: Output) -> Outcome {
    let class = |version| match classify(version) {
        Class::Supported => "supported".to_owned(),
        Class::Warn(bug) => format!("known bug: {bug}"),
        Class::NeverCreate(bug) => format!("loses data: {bug}"),
        Class::TooOld | Class::Unknown => "not supported".to_owned(),
    };
    let installed = store::list(&context.paths.store());
    if output != Output::Table {
        let values: Vec<_> = installed
            .iter()
            .map(|it| {
                serde_json::json!({
                    "version": it.version.to_string(), "programs": it.programs, "sha256": it.sha256,
                    "class": class(it.version), "verified": !it.unverified,
                })
            })
            .collect();
        print::value(output, &values)?;
        return Ok(DONE);
    }
    let mut rows = vec![[
        "VERSION".to_owned(),
        "PROGRAMS".to_owned(),
        "CLASS".to_owned(),
    ]];
    rows.extend(installed.iter().map(|it| {
        [
            it.version.to_string(),
            it.programs.join(","),
            class(it.version),
        ]
    }));
    print::table(&rows)?;
    Ok(DONE)
}
