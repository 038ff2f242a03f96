//! `deploy/TUTORIAL.md`, command by command, as every etcd operator is shown, on three nodes.

use std::process::Command;
use std::time::Instant;

use crate::cluster::{Output, output};
use crate::desk;
use crate::lab::{Options, root};
use crate::operated::Operated;
use crate::several::{MEMBERS, id_of, whole};
use crate::stream::{Stream, assert_written};

/// A block of commands, and what it prints.
struct Step {
    section: String,
    script: String,
    printed: Vec<String>,
}

fn steps() -> Vec<Step> {
    let page = std::fs::read_to_string(root().join("deploy/TUTORIAL.md")).unwrap();
    let (mut steps, mut section, mut fence) = (Vec::<Step>::new(), String::new(), "");
    for line in page.lines() {
        match (fence, line) {
            ("", _) if line.starts_with("## ") => line[3..].clone_into(&mut section),
            ("", "```sh") => {
                fence = "sh";
                steps.push(Step {
                    section: section.clone(),
                    script: String::new(),
                    printed: Vec::new(),
                });
            }
            ("", "```text") => fence = "text",
            (_, "```") => fence = "",
            ("sh", _) => {
                let script = &mut steps.last_mut().unwrap().script;
                script.push_str(line);
                script.push('\n');
            }
            ("text", _) => steps.last_mut().unwrap().printed.push(line.to_owned()),
            _ => {}
        }
    }
    steps
}

/// As a person's shell runs it.
fn run(it: &Operated, script: &str) -> Output {
    let mut shell = Command::new("bash");
    shell
        .args(["-euxc", script])
        .current_dir(root())
        .env_clear()
        .env("PATH", desk::path(it))
        .env("HOME", &it.admin().home)
        .env("KUBECONFIG", &it.admin().kubeconfig);
    output(&mut shell)
}

/// Each line of the page is there in this order, by its first word: ages and addresses differ.
fn assert_printed(step: &Step, done: &Output) {
    let first = |it: &str| it.split_whitespace().next().unwrap_or_default().to_owned();
    let mut lines = done.stdout.lines().map(first);
    for line in step.printed.iter().map(|it| first(it)) {
        assert!(
            lines.any(|it| it == line),
            "{}: no {line} in\n{}",
            step.section,
            done.stdout
        );
    }
}

#[test]
fn the_tutorial_does_what_it_says() {
    let Some(it) = Operated::not_installed(&Options {
        nodes: 3,
        ..Options::default()
    }) else {
        return;
    };
    let steps = steps();
    let sections: Vec<&str> = steps.iter().map(|it| it.section.as_str()).collect();
    let (mut writer, mut acknowledged, mut before) = (None, 0, None);
    for (number, step) in steps.iter().enumerate() {
        let begins = number == 0 || sections[number - 1] != step.section;
        match step.section.as_str() {
            "A client" if begins => writer = Some(Stream::start(&it, "shop", &MEMBERS)),
            "A Pod and its claim are lost" if begins => before = Some(whole(&it, 3)),
            "Back up and restore" if begins => {
                let (count, gap) = writer.take().unwrap().end();
                println!("{count} writes, longest gap {gap:?}");
                acknowledged = count;
            }
            _ => {}
        }
        let begun = Instant::now();
        let done = run(&it, &step.script);
        println!(
            "## {}: {:.1?}\n{}",
            step.section,
            begun.elapsed(),
            done.stdout
        );
        assert!(done.ok, "{}\n{}\n{}", step.section, done.stderr, it.story());
        assert_printed(step, &done);
        if let (Some(before), "A Pod and its claim are lost") = (&before, step.section.as_str()) {
            let after = whole(&it, 3);
            assert_ne!(id_of(&after, "shop-1"), id_of(before, "shop-1"));
            assert_eq!(id_of(&after, "shop-0"), id_of(before, "shop-0"));
        }
    }
    assert_written(&it, "shop", acknowledged);
}
