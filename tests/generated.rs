//! Committed files equal what the code generates. `UPDATE_EXPECT=1 cargo test --test generated`
//! rewrites them.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use etcd_operator::spec::field::{Class, FIELDS, Field, There};

fn assert_fresh(file: &str, generated: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::fs::read_to_string(&path).unwrap_or_default() == generated {
        return;
    }
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, generated).unwrap();
        return;
    }
    panic!(
        "{file} is not what the code generates: run UPDATE_EXPECT=1 cargo test --test generated"
    );
}

#[test]
fn the_crds_file_is_what_the_types_and_rules_say() {
    let yaml = etcd_operator::api::crd::generate()
        .map(|it| etcd_operator::document::to_yaml(&it).unwrap())
        .join("---\n");
    let header = "# Generated from src/api.rs, src/api/requests.rs and src/api/rules.rs; tests/generated.rs keeps it fresh.\n";
    assert_fresh("deploy/crds.yaml", &format!("{header}{yaml}"));
}

#[test]
fn documents_are_checked_against_the_schema_of_the_crds_file() {
    let clusters = etcd_operator::api::crd::generate().into_iter().next();
    let crd = serde_json::to_value(clusters).unwrap();
    let spec = crd.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec");
    assert_fresh(
        "src/document/spec.schema.json",
        &format!("{}\n", spec.unwrap()),
    );
}

#[test]
fn the_manifests_are_what_the_code_says() {
    use etcd_operator::controller::manifests;
    let image = manifests::image(env!("CARGO_PKG_VERSION"));
    let all: Vec<String> = manifests::generate(&image, &[])
        .iter()
        .map(|it| etcd_operator::document::to_yaml(it).unwrap())
        .collect();
    let header = "# Generated from src/controller/manifests.rs and src/controller/rights.rs;\n\
                  # tests/generated.rs keeps it fresh. Another image: etcd-operator manifests --image IMAGE\n";
    let yaml = all.join("---\n");
    assert_fresh("deploy/etcd-operator.yaml", &format!("{header}{yaml}"));
}

/// What a heading of a committed text stands above, up to the next one, which begins with `next`.
fn assert_fresh_section(file: &str, heading: &str, next: &str, generated: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let text = std::fs::read_to_string(path).unwrap();
    let (before, rest) = text.split_once(heading).unwrap();
    let end = rest.find(next).unwrap_or(rest.len());
    assert_fresh(
        file,
        &format!("{before}{heading}{generated}{}", &rest[end..]),
    );
}

/// Fields of one class, those of one map together where all of them are. What is Kubernetes' alone has a
/// row of its own.
fn grouped(class: Class) -> String {
    let alone = |it: Class| matches!(it, Class::Kubernetes(_));
    let is = |it: Class| it == class || alone(it) && alone(class);
    let same = |it: &Field| is(it.class) || alone(it.class);
    let mut names: Vec<String> = Vec::new();
    for field in FIELDS.iter().filter(|it| is(it.class)) {
        let dots = field
            .path
            .match_indices('.')
            .map(|(at, _)| &field.path[..=at]);
        let mut maps = dots.filter(|map| {
            let mut below = FIELDS.iter().filter(|it| it.path.starts_with(*map));
            below.all(same)
        });
        let name = maps
            .next()
            .map_or_else(|| format!("`{}`", field.path), |map| format!("`{map}*`"));
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(", ")
}

#[test]
fn the_table_of_edits_is_what_the_code_says() {
    let classes = [
        Class::Live,
        Class::Directory,
        Class::Restart,
        Class::Size,
        Class::Quota,
        Class::Moved,
        Class::NextStart,
        Class::Version,
        Class::Birth,
        Class::Kubernetes(There::Live),
        Class::Unsupported,
    ];
    let known = |it: Class| matches!(it, Class::Kubernetes(_)) || classes.contains(&it);
    assert!(FIELDS.iter().all(|it| known(it.class)));
    let mut text = String::from(
        "\n\n`etcd-operator diff` shows what a file would change, `etcd-operator plan` what the document on disk \
         would\nchange. `systemctl reload etcd-operator` applies an edit. It fails if the document, or a part of \
         it, is refused\nor has to wait.\n\n| field of `spec` | what an edit does |\n|---|---|\n",
    );
    for class in classes {
        writeln!(text, "| {} | {} |", grouped(class), class.words()).unwrap();
    }
    assert_fresh_section("systemd/README.md", "## What an edit does", "\n## ", &text);
}

/// Manual pages of a command and of those below it, by the names of their files.
fn pages(command: &clap::Command, all: &mut BTreeMap<String, String>) {
    let page = Man::new(command.clone()).section("8");
    let name = page.get_filename().replace(".8", "").to_uppercase();
    let after = command.get_after_help().map(ToString::to_string);
    let after = after.unwrap_or_default().replace("Examples:", "Example:");
    let (words, examples) = after.split_once("Example:\n").unwrap_or((&after, ""));
    let mut text = Vec::new();
    page.render_name_section(&mut text).unwrap();
    page.render_synopsis_section(&mut text).unwrap();
    page.render_description_section(&mut text).unwrap();
    section(&mut text, "", words);
    page.render_options_section(&mut text).unwrap();
    if command.has_subcommands() {
        page.render_subcommands_section(&mut text).unwrap();
    }
    section(&mut text, "EXAMPLES", examples);
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]);
    roff.text([bold("etcd-operator"), roman("(8)")]);
    roff.to_writer(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    // An apostrophe is defined once, not before each section; an empty date needs its quotes.
    let (apostrophe, _) = text.split_once(".SH").unwrap();
    let title = format!(".TH {name} 8 \"\" etcd-operator \"System administration\"\n");
    let text = format!("{apostrophe}{title}{}", text.replace(apostrophe, ""));
    all.insert(page.get_filename(), text);
    for below in command.get_subcommands() {
        pages(below, all);
    }
}

/// Lines as they are, below a heading or as one more paragraph; none where there are no lines.
fn section(text: &mut Vec<u8>, heading: &str, lines: &str) {
    if lines.trim().is_empty() {
        return;
    }
    let mut roff = Roff::new();
    if heading.is_empty() {
        roff.control("PP", []);
    } else {
        roff.control("SH", [heading]);
        roff.control("nf", []);
    }
    for line in lines.trim().lines() {
        roff.text([roman(line.trim())]);
    }
    if !heading.is_empty() {
        roff.control("fi", []);
    }
    roff.to_writer(text).unwrap();
}

#[test]
fn each_command_has_a_manual_page_and_the_first_one_names_them() {
    let mut commands = etcd_operator::cli::commands();
    commands.build();
    let mut all = BTreeMap::new();
    for command in commands.get_subcommands() {
        pages(command, &mut all);
    }
    assert!(
        all.contains_key("etcd-operator-backup-list.8"),
        "{:?}",
        all.keys()
    );
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd/man");
    for file in std::fs::read_dir(dir).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        let known = name == "etcd-operator.8" || all.contains_key(&name);
        assert!(known, "systemd/man/{name} is of no command");
    }
    for (name, text) in &all {
        assert_fresh(&format!("systemd/man/{name}"), text);
    }

    let listed = commands.get_before_help().unwrap().to_string();
    let mut roff = Roff::new();
    for line in listed.lines().filter(|it| !it.is_empty()) {
        let Some(line) = line.strip_prefix("  ") else {
            roff.control("SS", [line.trim_end_matches(':')]);
            continue;
        };
        let (name, about) = line.split_once(' ').unwrap();
        // Clap's own.
        if name == "help" {
            continue;
        }
        let page = format!("etcd-operator-{name}.8");
        assert!(all.contains_key(&page), "{page} is not there");
        roff.control("TP", []);
        roff.text([bold(format!("etcd-operator-{name}")), roman("(8)")]);
        roff.text([roman(about.trim())]);
    }
    let text = format!("\n{}", roff.render().trim_end());
    assert_fresh_section(
        "systemd/man/etcd-operator.8",
        ".SH COMMANDS",
        "\n.SH ",
        &text,
    );
}

/// The cell "ours" of a figure that `make bench` wrote.
fn figure(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/README.md");
    let page = std::fs::read_to_string(path).unwrap();
    let rows = page.lines().map(|it| it.split('|').map(str::trim));
    let mut cells =
        rows.filter_map(|mut it| it.nth(1).filter(|it| *it == name).and_then(|_| it.next()));
    let ours = cells
        .next()
        .unwrap_or_else(|| panic!("benches/README.md has no figure '{name}'"));
    ours.to_owned()
}

#[test]
fn readme_says_what_the_bench_measured() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let page = std::fs::read_to_string(path).unwrap();
    let measured = format!(
        "{} under systemd, {} in Kubernetes",
        figure("operator at rest: VmRSS"),
        figure("operator with one cluster: VmRSS")
    );
    let lines = page.split_inclusive('\n').map(|line| {
        if !line.starts_with("| memory at idle |") {
            return line.to_owned();
        }
        let (others, _) = line.trim_end_matches(" |\n").rsplit_once(" | ").unwrap();
        format!("{others} | {measured} |\n")
    });
    let generated: String = lines.collect();
    assert!(
        generated.contains(&measured),
        "README.md has no row 'memory at idle'"
    );
    assert_fresh("README.md", &generated);
}
