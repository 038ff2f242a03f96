//! Links of the pages that are installed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use regex::Regex;

use crate::{ARCHES, PAGES, Scratch, arg, dist, folder, run, tarball};

/// What a page names with `](...)`: a file, or none for the page itself, and a heading, or none.
fn links(text: &str) -> Vec<(String, String)> {
    let link = Regex::new(r"\]\(([^)#:]*)(?:#([^)]*))?\)").unwrap();
    let found = link.captures_iter(text);
    let part = |it: Option<regex::Match<'_>>| it.map_or(String::new(), |it| it.as_str().to_owned());
    found.map(|it| (part(it.get(1)), part(it.get(2)))).collect()
}

/// The anchors of a page's headings, as forges make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for heading in text.lines().filter(|it| it.starts_with('#')) {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words
            .chars()
            .filter(|it| it.is_alphanumeric() || matches!(it, ' ' | '-' | '_'));
        anchors.insert(kept.map(|it| if it == ' ' { '-' } else { it }).collect());
    }
    anchors
}

/// Each link of the pages below a directory that leads to nothing.
fn broken(top: &Path) -> Vec<String> {
    let mut broken = Vec::new();
    for page in PAGES.iter().filter(|it| !it.starts_with("deploy/examples")) {
        let at = top.join(page);
        let Ok(text) = fs::read_to_string(&at) else {
            broken.push(format!("{page} is not there"));
            continue;
        };
        if text.contains("deploy/crds.yaml") && !text.contains("`etcd-operator crd` prints") {
            broken.push(format!("{page}: deploy/crds.yaml"));
        }
        for (file, heading) in links(&text) {
            let target: PathBuf = if file.is_empty() {
                at.clone()
            } else {
                at.with_file_name(&file)
            };
            let sound = match fs::read_to_string(&target) {
                Ok(text) => heading.is_empty() || anchors(&text).contains(&heading),
                Err(_) => false,
            };
            if !sound {
                broken.push(format!("{page}: {file}#{heading}"));
            }
        }
    }
    broken
}

#[test]
fn no_link_of_a_page_that_is_installed_leads_to_nothing() {
    let Some(dist) = dist() else { return };
    let none: [String; 0] = [];
    for arch in ARCHES {
        let dir = Scratch::empty();
        run(
            "tar",
            &["-xzf", arg(&tarball(&dist, &arch)), "-C", arg(&dir.0)],
        );
        let unpacked = dir.0.join(folder(&arch));
        assert_eq!(broken(&unpacked), none);
        // The Debian package has the same pages: see its list and the next line.
        let deb = dist.join(format!(
            "etcd-operator_{}_{}.deb",
            crate::VERSION,
            arch.name
        ));
        if Command::new("dpkg-deb").arg("--version").output().is_ok() {
            run("dpkg-deb", &["--extract", arg(&deb), arg(&dir.0)]);
            assert_eq!(broken(&dir.0.join("usr/share/doc/etcd-operator")), none);
        }
        fs::remove_file(unpacked.join("deploy/TUTORIAL.md")).unwrap();
        let named = "README.md: deploy/TUTORIAL.md#".to_owned();
        assert!(broken(&unpacked).contains(&named), "nobody sees it");
    }
}
