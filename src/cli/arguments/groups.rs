//! The commands as the help lists them.

use std::fmt::Write as _;

use clap::{Args as _, CommandFactory as _};

use super::{Cli, ClusterArgs};

/// What a person uses every day comes first.
const GROUPS: &[(&str, &[&str])] = &[
    (
        "Every day",
        &[
            "status", "explain", "plan", "diff", "reload", "etcdctl", "env", "pause", "resume",
            "backup", "restore", "certs",
        ],
    ),
    ("To begin", &["init", "preflight", "etcd", "crd", "convert"]),
    (
        "For units, Pods and scripts",
        &[
            "agent",
            "unit",
            "guard",
            "controller",
            "manifests",
            "completions",
            "verify-snapshot",
            "version",
            "help",
        ],
    ),
];
/// What kubectl's plugin has of them.
const OF_PLUGIN: &[&str] = &["status", "explain", "plan", "diff", "backup", "help"];
const TEMPLATE: &str =
    "{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}{all-args}{after-help}";

/// The command line, with its commands in groups; `plugin`: as kubectl's.
pub(in crate::cli) fn command(plugin: bool) -> clap::Command {
    let mut command = Cli::command();
    if plugin {
        // As with kubectl, they may stand before the command. Files of this host have no use there.
        let about = command.get_about().cloned().unwrap_or_default();
        command = ClusterArgs::augment_args(command)
            .about(about)
            .mut_arg("root", |it| it.hide(true))
            .mut_arg("config", |it| it.hide(true))
            .after_help("Start with: kubectl etcd status -n NAMESPACE");
    }
    command.build();
    let (listed, usage) = if plugin {
        (rows(&command, OF_PLUGIN), "kubectl etcd")
    } else {
        (listed(&command), "etcd-operator")
    };
    // Listed in their groups, and not a second time.
    let command = command.mut_subcommands(|it| it.hide(true));
    command
        .override_usage(format!("{usage} [OPTIONS] <COMMAND>"))
        .before_help(listed)
        .help_template(TEMPLATE)
}

/// Whether kubectl's plugin has this command.
pub(in crate::cli) fn is_of_plugin(command: &str) -> bool {
    OF_PLUGIN.contains(&command)
}

/// Each group's title and, further in, its commands with what they do.
fn listed(command: &clap::Command) -> String {
    let mut text = String::new();
    for (title, names) in GROUPS {
        let _ = writeln!(text, "{title}:");
        text += &rows(command, names);
        text.push('\n');
    }
    text
}

fn rows(command: &clap::Command, names: &[&str]) -> String {
    let row = |name: &&str| {
        let found = command.find_subcommand(name);
        let about = found.and_then(clap::Command::get_about);
        let about = about.map(ToString::to_string).unwrap_or_default();
        format!("  {name:16}{about}\n")
    };
    names.iter().map(row).collect()
}

/// Every command without what is hidden, for manual pages and completions; before the help of the first
/// one stand the groups of the others.
pub fn commands() -> clap::Command {
    let mut built = Cli::command();
    built.build();
    without_hidden(&Cli::command())
        .version(env!("CARGO_PKG_VERSION"))
        .before_help(listed(&built))
}

/// A command made again, as clap takes nothing away from one. Its name is never given back: the program
/// prints it, and ends.
fn without_hidden(of: &clap::Command) -> clap::Command {
    let below = of.get_subcommands().filter(|it| !it.is_hide_set());
    let mut command = clap::Command::new(&*of.get_name().to_owned().leak())
        .disable_help_subcommand(true)
        .subcommand_required(of.is_subcommand_required_set())
        .args(of.get_arguments().filter(|it| !it.is_hide_set()).cloned())
        .subcommands(below.map(without_hidden));
    if let Some(about) = of.get_about() {
        command = command.about(about.clone());
    }
    if let Some(help) = of.get_after_help() {
        command = command.after_help(help.clone());
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_stands_in_one_group_of_the_help() {
        let mut command = Cli::command();
        command.build();
        let mut listed: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, names)| *names)
            .copied()
            .collect();
        let shown = command.get_subcommands().filter(|it| !it.is_hide_set());
        let mut there: Vec<&str> = shown.map(clap::Command::get_name).collect();
        listed.sort_unstable();
        there.sort_unstable();
        assert_eq!(listed, there);
        let help = super::command(false).render_help().to_string();
        assert!(
            help.contains("\nEvery day:\n  status          Shows"),
            "{help}"
        );
        assert!(!help.contains("\nCommands:"), "{help}");
        // No line of the list is broken in two.
        for name in &listed {
            let about = command
                .find_subcommand(name)
                .and_then(clap::Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            assert!(about.len() <= 82, "{name}: {about}");
        }
    }
}
