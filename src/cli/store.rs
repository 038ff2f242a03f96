//! `etcd install` and `etcd list`: the versions of etcd on this host.

use std::fs;
use std::path::Path;

use super::arguments::InstallArgs;
use super::progress::Display;
use super::{Context, DONE, FAILED, Failure, Outcome, Output, USAGE, print, runtime};
use crate::backup::{Phase, Progress};
use crate::error::shell_word;
use crate::etcd::download::{DownloadError, Release};
use crate::etcd::{archive, store};
use crate::state;
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
    let mut verified = false;
    let unpacked = if arguments.download {
        fs::create_dir_all(beside)?;
        let release = Release::new(version, arguments.mirror.as_deref())
            .map_err(|it| Failure::new(USAGE, it.to_string()))?;
        let file = beside.join(format!(".{}.part", release.name));
        verified = download(&release, version, &file, arguments.unverified)?;
        let unpacked = archive::unpack(&file, beside);
        fs::remove_file(&file)?;
        Some(unpacked?)
    } else {
        match arguments.from.as_deref() {
            Some(file) if !file.is_dir() => {
                verified = check_release(file, version, arguments.unverified)?;
                fs::create_dir_all(beside)?;
                Some(archive::unpack(file, beside)?)
            }
            _ => None,
        }
    };
    let from = arguments.from.as_deref();
    let from = unpacked.as_ref().map_or(from, |it| Some(it.dir()));
    let installed = store::install(&context.paths.store(), version, from, !verified)?;
    for (program, need) in [
        ("etcdutl", "restoring a snapshot"),
        ("etcdctl", "etcd-operator etcdctl"),
    ] {
        if !installed.programs.contains(&program) {
            eprintln!("etcd-operator: warning: {program} was not there; {need} will need it");
        }
    }
    print::text(&format!(
        "etcd {version} ({}) sha256 {}\n",
        installed.programs.join(", "),
        installed.sha256
    ))?;
    Ok(DONE)
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

/// Downloads a release into a file, and tells whether its checksum is the project's: one that is known here, else the
/// one that the release itself lists. A mirror's own list tells only that nothing was damaged on the way.
fn download(
    release: &Release,
    version: Version,
    path: &Path,
    unverified: bool,
) -> Result<bool, Failure> {
    let failed = |error: DownloadError| {
        let text = format!(
            "{:#}; or download {} elsewhere, copy it here, and name it with --from",
            anyhow::Error::from(error),
            shell_word(&release.address())
        );
        Failure::new(FAILED, text)
    };
    let known = archive::released(version, std::env::consts::ARCH);
    if known.is_none() && !release.is_proven() && !unverified {
        let text = format!(
            "no checksum of etcd {version} is known here, and {} does not prove who it is: name a mirror with https://, or add --unverified",
            release.address()
        );
        return Err(Failure::new(FAILED, text));
    }
    let runtime = runtime()?;
    let expected = match known {
        Some(known) => Some(known.to_owned()),
        None if unverified => None,
        None => Some(runtime.block_on(release.listed()).map_err(failed)?),
    };
    let mut file = state::open_own(path)
        .map_err(|it| Failure::new(FAILED, format!("failed to open {}: {it}", path.display())))?;
    let whole = expected.is_some() && archive::sha256(path).ok() == expected;
    if !whole {
        let mut display = Display::new();
        let mut told = |done, total| {
            let phase = Phase::Copying;
            display.show(Progress { phase, done, total });
        };
        runtime
            .block_on(release.fetch(&mut file, &mut told))
            .map_err(failed)?;
    }
    let sum = archive::sha256(path)?;
    match expected {
        Some(expected) if expected == sum => {}
        Some(_) if unverified => return Ok(false),
        Some(expected) => {
            fs::remove_file(path)?;
            let text = format!(
                "what came from {} has the sha256 {sum}, and the release of etcd {version} has {expected}: it was changed on the way, or is another file",
                release.address()
            );
            return Err(Failure::new(FAILED, text));
        }
        None => {
            eprintln!("etcd-operator: note: nobody compared the sha256 {sum}");
            return Ok(false);
        }
    }
    if known.is_none() {
        eprintln!(
            "etcd-operator: note: no checksum of etcd {version} is known here: compared with the SHA256SUMS beside it"
        );
    }
    Ok(known.is_some() || release.is_official)
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
