//! The shape of the source: who may import whom, what the core may not know, sizes, and words.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
#![allow(
    clippy::disallowed_methods,
    reason = "a small program is written, built and run"
)]

#[path = "tidy/circles.rs"]
mod circles;
#[path = "tidy/profile.rs"]
mod profile;
#[path = "tidy/reasons.rs"]
mod reasons;
#[path = "tidy/rules.rs"]
mod rules;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Which modules each module may name. Arrows only point down; see src/lib.rs.
const EDGES: &[(&str, &[&str])] = &[
    ("cluster", &[]),
    ("version", &[]),
    ("diagnosis", &[]),
    ("spec", &["cluster", "version"]),
    ("start", &["cluster", "version", "diagnosis"]),
    ("host", &["cluster"]),
    ("observed", &["cluster", "version", "spec", "start", "host"]),
    (
        "plan",
        &[
            "cluster",
            "version",
            "spec",
            "start",
            "observed",
            "retention",
        ],
    ),
    (
        "status",
        &[
            "cluster", "version", "spec", "start", "host", "observed", "plan",
        ],
    ),
    ("render", &["cluster", "version", "spec"]),
    ("retention", &["cluster", "spec", "observed", "version"]),
    (
        "runtime",
        &["cluster", "spec", "observed", "plan", "status"],
    ),
    // Adapters.
    (
        "api",
        &[
            "cluster", "version", "spec", "observed", "status", "clock", "error", "schedule",
        ],
    ),
    ("document", &["api", "cluster", "error", "spec", "version"]),
    ("error", &[]),
    ("explain", &[]),
    ("schedule", &["cluster"]),
    ("paths", &[]),
    ("state", &["untrusted"]),
    ("untrusted", &[]),
    ("http", &["error", "tls"]),
    ("clock", &["cluster", "observed", "paths"]),
    ("disk", &["start", "host", "clock"]),
    ("accounts", &["cluster", "untrusted"]),
    (
        "sysfs",
        &["start", "host", "paths", "clock", "disk", "accounts"],
    ),
    ("process", &["spec", "clock"]),
    ("tls", &["cluster", "state"]),
    ("dial", &["untrusted"]),
    (
        "s3",
        &["cluster", "clock", "dial", "error", "state", "untrusted"],
    ),
    (
        "etcd",
        &[
            "diagnosis",
            "cluster",
            "version",
            "observed",
            "start",
            "state",
            "process",
            "tls",
            "dial",
            "error",
            "http",
        ],
    ),
    (
        "member",
        &[
            "cluster",
            "version",
            "spec",
            "start",
            "observed",
            "plan",
            "diagnosis",
            "render",
            "paths",
            "state",
            "clock",
            "disk",
            "process",
            "tls",
            "http",
            "etcd",
        ],
    ),
    (
        "guard",
        &[
            "error", "cluster", "version", "start", "observed", "render", "paths", "state",
            "clock", "process", "tls", "etcd", "member", "disk",
        ],
    ),
    (
        "backup",
        &[
            "schedule",
            "http",
            "untrusted",
            "error",
            "cluster",
            "version",
            "start",
            "spec",
            "observed",
            "retention",
            "api",
            "paths",
            "state",
            "clock",
            "disk",
            "process",
            "tls",
            "etcd",
            "member",
            "s3",
        ],
    ),
    (
        "changes",
        &[
            "api", "clock", "cluster", "member", "observed", "paths", "state", "version",
        ],
    ),
    ("systemd", &["paths"]),
    ("telemetry", &["api", "status", "observed", "clock", "http"]),
    (
        "agent",
        &[
            "accounts",
            "http",
            "error",
            "cluster",
            "version",
            "spec",
            "start",
            "host",
            "observed",
            "plan",
            "status",
            "runtime",
            "api",
            "document",
            "paths",
            "state",
            "clock",
            "disk",
            "process",
            "render",
            "sysfs",
            "systemd",
            "tls",
            "etcd",
            "member",
            "backup",
            "changes",
            "retention",
            "telemetry",
        ],
    ),
    (
        "worker",
        &[
            "http",
            "error",
            "cluster",
            "spec",
            "observed",
            "plan",
            "paths",
            "render",
            "state",
            "clock",
            "tls",
            "etcd",
            "member",
            "backup",
            "telemetry",
        ],
    ),
    (
        "controller",
        &[
            "worker",
            "http",
            "error",
            "diagnosis",
            "cluster",
            "version",
            "spec",
            "start",
            "observed",
            "plan",
            "status",
            "runtime",
            "render",
            "retention",
            "api",
            "paths",
            "state",
            "clock",
            "disk",
            "tls",
            "s3",
            "etcd",
            "member",
            "backup",
            "changes",
            "telemetry",
        ],
    ),
    (
        "cli",
        &[
            "accounts",
            "error",
            "explain",
            "s3",
            "controller",
            "state",
            "cluster",
            "version",
            "spec",
            "api",
            "document",
            "paths",
            "clock",
            "disk",
            "process",
            "host",
            "start",
            "observed",
            "sysfs",
            "etcd",
            "tls",
            "render",
            "member",
            "guard",
            "systemd",
            "agent",
            "worker",
            "backup",
            "retention",
            "telemetry",
            "untrusted",
        ],
    ),
    ("main", &["cli"]),
];

/// The core: pure, synchronous, fixed capacity.
const CORE: &[&str] = &[
    "cluster",
    "version",
    "diagnosis",
    "spec",
    "start",
    "host",
    "observed",
    "plan",
    "status",
    "render",
    "retention",
];
/// What no line of the core may contain.
const NOT_IN_CORE: &[&str] = &[
    "std::fs",
    "std::env",
    "std::process",
    "std::net",
    "SystemTime",
    "Instant",
    "serde",
    "tokio",
    "tracing",
    "kube",
    "async ",
    ".await",
    ".collect()",
    "println!",
    "Box<",
    "Vec<u8>",
];
/// Rendering is the one part of the core that makes text.
const RENDER_MAY: &[&str] = &[".collect()"];
/// Words for what nobody could name.
const BANNED_WORDS: &[&str] = &[
    "Manager", "Helper", "Handler", "Util", "FIXME", "TODO", "XXX",
];
const FILE_LINES_MAX: usize = 500;
/// The wire types are one list of fields, read from top to bottom.
const LONG_FILES: &[(&str, usize)] = &[("src/api.rs", 560)];

struct Source {
    path: String,
    module: String,
    text: String,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![root.join("src")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path: PathBuf = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "rs") {
                let relative = path
                    .strip_prefix(root)
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned();
                let module = relative["src/".len()..]
                    .split(['/', '.'])
                    .next()
                    .unwrap()
                    .to_owned();
                found.push(Source {
                    text: std::fs::read_to_string(&path).unwrap(),
                    path: relative,
                    module,
                });
            }
        }
    }
    assert!(found.len() > 40);
    found
}

/// A file without its unit tests.
fn code(source: &Source) -> &str {
    source.text.split("#[cfg(test)]\n").next().unwrap()
}

/// Modules named by `crate::NAME`, in `use` lines and in paths.
fn named(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|it| !it.trim_start().starts_with("//"));
    lines
        .flat_map(|line| line.split("crate::").skip(1).collect::<Vec<_>>())
        .map(|rest| {
            rest.split(|it: char| !it.is_ascii_alphanumeric() && it != '_')
                .next()
                .unwrap()
                .to_owned()
        })
        .collect()
}

#[test]
fn modules_import_only_what_lies_below_them() {
    let edges: BTreeMap<&str, &[&str]> = EDGES.iter().copied().collect();
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|it| it.module != "lib") {
        let allowed = edges
            .get(source.module.as_str())
            .unwrap_or_else(|| panic!("{} has no row", source.path));
        for name in named(code(source)) {
            if name != source.module
                && !allowed.contains(&name.as_str())
                && edges.contains_key(name.as_str())
            {
                wrong.push(format!("{} names {name}", source.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // The table itself has no circle: each row names only rows of the same list that do not name it.
    for (module, below) in EDGES {
        for name in *below {
            let back = edges.get(name).is_some_and(|it| it.contains(module));
            assert!(!back, "{module} and {name} name each other");
        }
    }
}

/// Where others may write, a name is opened by `untrusted` alone.
#[test]
fn what_others_may_write_is_opened_in_one_way() {
    let rooms = ["src/backup", "src/s3", "src/untrusted"];
    let plain = [
        "File::open(",
        "fs::read(",
        "fs::read_to_string(",
        "fs::metadata(",
    ];
    // This operator's own, just made: what is synced, the log of an etcd of its own, the stamp of a directory.
    let own = [
        (
            "src/backup/restore.rs",
            "File::open(&path).map_err(io_error(\"open\"",
        ),
        ("src/backup/trial.rs", "fs::File::open(log)"),
        ("src/backup/local.rs", "fs::metadata(&self.dir)"),
        // A person's own word at the command line, which may be a pipe.
        ("src/untrusted.rs", "content(&File::open(path)?, most)"),
    ];
    for source in sources() {
        if !rooms.iter().any(|it| source.path.starts_with(it)) {
            continue;
        }
        for line in code(&source).lines() {
            let known = |it: &(&str, &str)| source.path == it.0 && line.contains(it.1);
            let named = plain.iter().any(|it| line.contains(it));
            assert!(
                !named || own.iter().any(known),
                "{}: {}",
                source.path,
                line.trim()
            );
        }
    }
}

#[test]
fn the_core_knows_no_world() {
    for source in sources()
        .iter()
        .filter(|it| CORE.contains(&it.module.as_str()))
    {
        for banned in NOT_IN_CORE {
            if source.module == "render" && RENDER_MAY.contains(banned) {
                continue;
            }
            let line = code(source)
                .lines()
                .find(|it| it.contains(banned) && !it.trim_start().starts_with("//"));
            assert!(
                line.is_none(),
                "{}: {banned} in the core: {}",
                source.path,
                line.unwrap().trim()
            );
        }
    }
}

#[test]
fn every_file_says_what_it_is_and_stays_small() {
    for source in sources() {
        assert!(
            source.text.starts_with("//! "),
            "{} does not say what it is",
            source.path
        );
        let lines = code(&source).lines().count();
        let most = LONG_FILES
            .iter()
            .find(|(it, _)| *it == source.path)
            .map_or(FILE_LINES_MAX, |(_, it)| *it);
        assert!(
            lines <= most,
            "{} has {lines} lines, allowed are {most}: split it along its subject",
            source.path
        );
        // systemd's own name for its interface.
        let text = source.text.replace("org.freedesktop.systemd1.Manager", "");
        for word in BANNED_WORDS {
            assert!(!text.contains(word), "{} contains {word}", source.path);
        }
    }
}

#[test]
fn every_metric_is_recorded() {
    let telemetry = sources()
        .into_iter()
        .find(|it| it.path == "src/telemetry.rs")
        .unwrap()
        .text;
    let fields = telemetry
        .split("pub struct Metrics {")
        .nth(1)
        .unwrap()
        .split('}')
        .next()
        .unwrap();
    let record = telemetry.split("pub fn record(").nth(1).unwrap();
    let names = fields
        .lines()
        .filter_map(|it| it.trim().split_once(':'))
        .map(|(name, _)| name);
    for name in names.filter(|it| !it.starts_with("//") && *it != "registry") {
        assert!(
            record.contains(&format!("self.{name}")),
            "{name} is never recorded"
        );
    }
}

/// Files that carry shell, make or text: no word about machines or registries.
#[test]
fn nothing_names_a_machine() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for file in [
        "README.md",
        "CHANGELOG.md",
        "Makefile",
        "Cargo.toml",
        "tests/tools/etcd.sh",
        "tests/tools/demo.sh",
    ] {
        let text = std::fs::read_to_string(root.join(file)).unwrap();
        for banned in [
            "/work/",
            "/root/",
            "proxy.golang",
            "static.crates",
            "index.crates",
            "deb.debian",
        ] {
            assert!(!text.contains(banned), "{file} contains {banned}");
        }
    }
}
